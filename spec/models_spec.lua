-- Models have torchvision's parameter names, shapes and outputs, run in mixed precision, and
-- learn. scripts/golden/torchvision_models.py writes the expected values.

local dm = require "demilune"
local device = require "spec.device"
local amp, models, nn = dm.amp, dm.models, dm.nn

-- ---- names and shapes ----

-- models: counts (parameters, the checksum of the state's names and shapes, and of the
-- parameters' order) and tree; results: see below.
local GOLDEN = require "spec.golden.torchvision_models"

local function count(model)
  local n = 0
  for _, p in model:named_parameters() do n = n + p:numel() end
  return n
end

local function checksum(lines)
  local total = 0
  for _, line in ipairs(lines) do
    for k = 1, #line do total = total * 33 + line:byte(k) & 0xffffffff end
    total = total * 33 + 10 & 0xffffffff
  end
  return total
end

-- "name 64x3x7x7", in the order of names.
local function state_lines(model)
  local lines = {}
  for name, t in pairs(model:state_dict()) do
    lines[#lines + 1] = {name, name .. " " .. table.concat(t.shape, "x")}
  end
  table.sort(lines, function(a, b) return a[1] < b[1] end)
  for i, line in ipairs(lines) do lines[i] = line[2] end
  return lines
end

-- The parameters' names in their order, which optimizers number them by.
local function parameter_names(model)
  local names = {}
  for name in model:named_parameters() do names[#names + 1] = name end
  return names
end

-- The classes of a module and of those below, with their names, in order. Children of one
-- structure that stand together share one entry: "Sequential(0,1=Linear)".
local function tree(model)
  local groups, last = {}, nil
  for name, child in model:named_children() do
    local below = tree(child)
    if below == last then
      groups[#groups] = groups[#groups]:sub(1, -#below - 2) .. "," .. name .. "=" .. below
    else
      groups[#groups + 1] = name .. "=" .. below
    end
    last = below
  end
  return #groups > 0 and ("%s(%s)"):format(model.class, table.concat(groups, " ")) or model.class
end

-- fn() with parameters that get no values: they cost no time then.
local function without_values(fn)
  local kept = {uniform_ = nn.init.uniform_, normal_ = nn.init.normal_,
    trunc_normal_ = nn.init.trunc_normal_}
  for name in pairs(kept) do nn.init[name] = function(t) return t end end
  local ok, result = pcall(fn)
  for name, fill in pairs(kept) do nn.init[name] = fill end
  return ok and result or error(result, 0)
end

describe("models", function()
  for name, wanted in pairs(GOLDEN.models) do
    it(name .. " has torchvision's modules, names, shapes, order and number of parameters",
      function()
        local _ <close> = dm.device "cpu" -- where memory of large models is cheap to get
        local model = without_values(models[name])
        assert.equal(wanted.tree, tree(model))
        assert.same(wanted.counts,
          {count(model), checksum(state_lines(model)), checksum(parameter_names(model))})
      end)
  end

  it("are nil when there is none of the name, and refuse unknown options", function()
    assert.is_nil(models.resnet19)
    for _, name in ipairs{"resnet50", "mobilenet_v2", "efficientnet_b0", "vgg16", "lenet",
      "alexnet", "densenet121", "convnext_tiny", "swin_t", "resnext50_32x4d"} do
      local ok, message = pcall(models[name], {num_clases = 10})
      assert.is_false(ok)
      assert.matches(name .. ": unknown option 'num_clases'; did you mean 'num_classes'",
        message, 1, true)
    end
  end)

  it("lenet has 61706 parameters", function()
    assert.equal(61706, count(models.lenet()))
    assert.same({2, 10}, {table.unpack(models.lenet{in_channels = 3, padding = 0}(
      dm.zeros(2, 3, 32, 32)).shape)})
  end)
end)

describe("densenet", function()
  it("takes the names of torchvision's files", function()
    local model = without_values(models.densenet121)
    local state, name = model:state_dict(), "features.denseblock2.denselayer3.norm1.weight"
    state["features.denseblock2.denselayer3.norm.1.weight"] = state[name] + 1
    state[name] = nil
    local wanted = state["features.denseblock2.denselayer3.norm.1.weight"]
    model:load_state_dict(state)
    assert.is_true(dm.equal(wanted, model:state_dict()[name]))
  end)
end)

-- ---- results ----

-- Of models of ten classes, in float64 and without chance: the loss of four images, the norm of
-- the first parameter's gradient, and in evaluation four scores of the second image.
local OPTIONS = {
  mobilenet_v2 = {dropout = 0}, vgg11_bn = {dropout = 0, small_head = true},
  efficientnet_b0 = {dropout = 0, stochastic_depth = 0},
  convnext_tiny = {stochastic_depth_prob = 0, layer_scale = 0.5},
  swin_t = {stochastic_depth_prob = 0},
}

-- Of element i, from 0: (i i + 7919 i) mod 1021, which repeats itself after 1021.
local at = dm.arange(0, 1020)
local PERIOD = ((at * at + at * 7919):remainder(1021):double() / 1021 - 0.5):unsqueeze(1)

local function formula(shape, size)
  local n = 1
  for _, d in ipairs(shape) do n = n * d end
  local rows = (n + 1020) // 1021
  return (PERIOD * size):expand(rows, 1021):reshape(-1):narrow(1, 1, n)
    :reshape(table.unpack(shape))
end

local function fill(model)
  local _ <close> = dm.no_grad()
  for name, p in model:named_parameters() do
    if p:dim() == 1 then
      p:copy_(formula(p.shape, 0.125) + (name:match "weight$" and 1 or 0))
    else
      p:copy_(formula(p.shape, math.sqrt(24 / (p:numel() / p:size(1)))))
    end
  end
end

local function with(opts, more)
  local all = {}
  for _, t in ipairs{opts or {}, more} do
    for key, value in pairs(t) do all[key] = value end
  end
  return all
end

local function close(wanted, got)
  assert.near(wanted, got, 1e-6 * math.abs(wanted) + 1e-8)
end

-- The emulated device takes minutes where a CPU takes a second: one model does for it.
local slow = dm.get_default_device() ~= "cpu"
local QUICK = {mobilenet_v2 = true}

describe("results", function()
  for name, wanted in pairs(GOLDEN.results) do
    local tag = slow and not QUICK[name] and " #slow" or ""
    it(("of %s are torchvision's%s"):format(name, tag), function()
      local model = without_values(function()
        local model = models[name](with(OPTIONS[name], {num_classes = 10}))
        if name == "alexnet" then model.classifier = nn.Linear(256 * 6 * 6, 10) end
        return model:double()
      end)
      fill(model)
      local x = formula({4, 3, wanted.side, wanted.side}, 4)
      local loss = dm.cross_entropy(model(x), dm.tensor({3, 8, 1, 10}, {dtype = "int64"}))
      close(wanted.loss, loss:item())
      if wanted.gradient then -- those of millions of parameters take long
        loss:backward()
        close(wanted.gradient, model:parameters()[1].grad:norm():item())
      end
      model:eval()
      local logits = model(x)[2]
      for k, v in ipairs(wanted.eval) do close(v, logits[k]:item()) end
    end)
  end
end)

-- ---- parts ----

describe("stochastic depth", function()
  local StochasticDepth = require("demilune.vision.layers").StochasticDepth

  it("leaves out whole rows in training, and keeps the mean", function()
    dm.manual_seed(1)
    local layer = StochasticDepth(0.25)
    local y = layer(dm.ones(4096, 2, 1, 1))
    local first = y[{{}, 1, 1, 1}]
    assert.is_true(dm.equal(first, y[{{}, 2, 1, 1}]))
    local kept = first:gt(0):float()
    assert.is_true(dm.equal(first, kept / 0.75))
    assert.near(0.75, kept:mean():item(), 0.03) -- 4 standard deviations
    assert.equal("bfloat16", layer(dm.ones(2, 3):to "bfloat16").dtype)
    layer:eval()
    local x = dm.ones(3, 2)
    assert.is_true(rawequal(x, layer(x)))
  end)

  it("is rarer in early blocks", function()
    local model, seen = without_values(models.efficientnet_b0), {}
    for _, m in model:named_modules() do
      if m.class == "StochasticDepth" then seen[#seen + 1] = m.p end
    end
    assert.equal(16, #seen)
    for i, p in ipairs(seen) do assert.near(0.2 * (i - 1) / 16, p, 1e-12) end
  end)
end)

it("ReLU6 holds values between 0 and 6", function()
  assert.same({0.0, 2.0, 6.0}, nn.ReLU6()(dm.tensor{-1.0, 2.0, 9.0}):totable())
end)

-- ---- training ----

-- Networks for small images, the side of these, and how they are trained.
local SMALL = {
  resnet50 = {side = 16, steps = 2, lr = 0.001, small_stem = true},
  mobilenet_v2 = {side = 32, steps = 8, lr = 0.01, small_stem = true, width_mult = 0.25,
    dropout = 0},
  efficientnet_b0 = {side = 32, steps = 3, lr = 0.0005, small_stem = true, dropout = 0,
    stochastic_depth = 0},
  lenet = {side = 32, steps = 20, lr = 0.1, in_channels = 3, padding = 0},
}

local function check_gradients(model)
  for name, p in model:named_parameters() do
    assert.is_true(p.grad:isfinite():all():item(), name)
    assert.equal("float32", p.grad.dtype)
  end
end

-- The losses of some steps on four images in mixed precision.
local function train(model, how, dtype, steps)
  local optimizer = dm.optim.SGD(model:parameters(), {lr = how.lr})
  local scaler = amp.GradScaler{enabled = dtype == "float16", init_scale = 16}
  local x, target = dm.randn(4, 3, how.side, how.side), dm.arange(1, 4)
  local losses = {}
  for step = 1, steps do
    optimizer:zero_grad()
    local loss = amp.autocast({dtype = dtype}, function()
      local logits = model(x)
      assert.equal(dtype, logits.dtype)
      return dm.cross_entropy(logits, target)
    end)
    scaler:scale(loss):backward()
    scaler:unscale_(optimizer)
    if step == 1 then check_gradients(model) end
    scaler:step(optimizer)
    scaler:update()
    losses[step] = loss:item()
    assert.equal("float32", loss.dtype)
  end
  return losses
end

describe("mixed precision", function()
  for name, how in pairs(SMALL) do
    it(("trains %s: the loss falls in bfloat16, a step in float16 is finite%s"):format(name,
      (slow or name == "resnet50") and " #slow" or ""),
      function()
        dm.manual_seed(3)
        local opts = with(how, {num_classes = 4})
        opts.side, opts.steps, opts.lr = nil, nil, nil
        local model = models[name](opts)
        local losses = train(model, how, "bfloat16", how.steps)
        assert.is_true(losses[how.steps] < losses[1], table.concat(losses, " "))
        assert.is_true(train(model, how, "float16", 1)[1] < 20)
      end)
  end
end)

describe("unet", function()
  local unet = models.unet

  it("gives each pixel classes, and refuses sides that cannot be halved", function()
    local model = without_values(function() return unet{width = 4, depth = 3} end)
    assert.same({2, 2, 16, 24}, {table.unpack(model(dm.zeros(2, 3, 16, 24)).shape)})
    local ok, message = pcall(function() model(dm.zeros(2, 3, 16, 20)) end)
    assert.is_false(ok)
    assert.matches("UNet: the input has shape {2, 3, 16, 20}, wanted {N, C, H, W} with H and W "
      .. "that 8 divides", message, 1, true)
    -- 9 inputs outputs of each 3x3 convolution, 2 outputs of its norm, and the head's
    local function double(i, o) return 9 * i * o + 9 * o * o + 4 * o end
    local n = 64 + 64 + 2 -- bottom up: the head; then what each level has
    for level, width in ipairs{64, 128, 256, 512} do
      n = n + double(level == 1 and 3 or width // 2, width) + double(3 * width, width)
    end
    assert.equal(n + double(512, 1024), count(without_values(unet)))
  end)

  it("learns which pixels are bright, in mixed precision", function()
    dm.manual_seed(2)
    local model = unet{in_channels = 1, width = 8, depth = 2}
    local optimizer = dm.optim.Adam(model:parameters(), {lr = 0.01})
    local x = dm.randn(4, 1, 16, 16)
    local target = x:squeeze(2):gt(0):long() + 1
    local loss
    for _ = 1, 12 do
      optimizer:zero_grad()
      loss = amp.autocast({dtype = "bfloat16"}, function()
        return dm.cross_entropy(model(x), target)
      end)
      loss:backward()
      optimizer:step()
    end
    assert.is_true(loss:item() < 0.2, loss:item())
  end)
end)

describe("a transformer's forward pass", function()
  local WIDTH, TOKENS = 32, 64
  local function gpt()
    return models.gpt2{n_layer = 3, n_embd = WIDTH, n_head = 2, block_size = TOKENS,
      vocab_size = 11, dropout = 0}
  end
  local function vit()
    local model = models.vit_s_16{image_size = 32, num_classes = 4}
    return model, dm.randn(2, 3, 32, 32)
  end

  it("leaves little to the collector", function()
    local function left(model, x)
      collectgarbage()
      collectgarbage()
      collectgarbage "stop"
      local before = dm.memory_allocated(device.type)
      local y = model(x)
      local all = dm.memory_allocated(device.type) - before
      collectgarbage()
      collectgarbage()
      local kept = dm.memory_allocated(device.type) - before
      collectgarbage "restart"
      assert.is_true(y:numel() > 0)
      return all - kept, kept
    end
    local garbage, kept = left(gpt(), dm.randint(11, {2, TOKENS}))
    assert.is_true(garbage < 0.05 * kept, ("%d of %d"):format(garbage, kept))
    garbage, kept = left(vit())
    assert.is_true(garbage < 0.25 * kept, ("%d of %d"):format(garbage, kept))
  end)

  it("leaves to hooks what they saw", function()
    local model, x = gpt(), dm.randint(11, {2, TOKENS})
    local seen = {}
    local handle = model.transformer.h[2].attn.c_attn:register_forward_hook(function(_, given, y)
      seen[1], seen[2] = given[1], y
    end)
    model(x):sum():backward()
    assert.same({2, TOKENS, WIDTH}, {table.unpack(seen[1].shape)})
    assert.is_true(seen[2]:isfinite():all():item())
    handle.remove()
    local norm, last = nn.LayerNorm(4), nn.Linear(4, 4)
    assert.is_true(nn.Module.hold_nothing(norm, last))
    local own = nn.Module:extend "Own"()
    assert.is_false(nn.Module.hold_nothing(norm, own))
    handle = own:register_forward_pre_hook(print)
    assert.is_false(nn.Module.hold_nothing(norm, last))
    handle.remove()
    handle.remove()
    assert.is_true(nn.Module.hold_nothing(norm, last))
  end)

  it("works with layers that give back what they were given", function()
    local model, x = gpt(), dm.randint(11, {2, TOKENS})
    for _, block in ipairs(model.transformer.h) do
      block.ln_1, block.mlp = nn.Identity(), nn.Identity()
    end
    assert.is_true(model(x):isfinite():all():item())
  end)
end)
