-- amp.initialize and amp.scale_loss give mixed precision by apex's levels O0 to O3.
local dm = require "demilune"
local device = require "spec.device"
local amp, nn, optim = dm.amp, dm.nn, dm.optim
local F = nn.functional

local LEVELS = {"O0", "O1", "O2", "O3"}

local function net()
  return nn.Sequential{nn.Conv2d(1, 4, 3, {padding = 1}), nn.BatchNorm2d(4), nn.ReLU(),
    nn.Flatten(), nn.Linear(4 * 36, 16), nn.Dropout(0.0), nn.ReLU(), nn.Linear(16, 3)}
end

local function pair(opts, class)
  dm.manual_seed(3)
  local model = net()
  local optimizer = optim[class or "SGD"](model:parameters(), {lr = 0.05})
  return amp.initialize(model, optimizer, opts)
end

-- Three classes of 6x6 images: a bright row, column or diagonal.
local function batch(n)
  local y = dm.randint(3, {n})
  local x = dm.randn(n, 1, 6, 6) * 0.3
  for i = 1, n do
    for k = 1, 6 do
      local class = y[i]:item()
      x[{i, 1, class == 1 and 3 or k, class == 2 and 3 or k}] = 1.5
    end
  end
  return x, y
end

-- One backward in a scope; factor makes gradients overflow.
local function backward(model, optimizer, x, y, factor)
  local loss = F.cross_entropy(model(x), y) * (factor or 1)
  local scaled_loss <close> = amp.scale_loss(loss, optimizer)
  scaled_loss:backward()
  return loss:item()
end

local function train(opts, class)
  local model, optimizer = pair(opts, class)
  dm.manual_seed(8)
  local x, y = batch(96)
  local loss
  for _ = 1, 40 do
    optimizer:zero_grad()
    loss = backward(model, optimizer, x, y)
    optimizer:step()
  end
  return loss, model, optimizer
end

local function dtypes(model)
  local list = {}
  for name, t in model:named_parameters() do list[name] = t.dtype end
  for name, t in model:named_buffers() do list[name] = t.dtype end
  return list
end

describe("amp.initialize", function()
  it("trains at each level to about the loss of float32", function()
    local reference = train{opt_level = "O0"}
    assert.is_true(reference < 0.1, reference)
    for _, level in ipairs{"O1", "O2", "O3"} do
      for _, dtype in ipairs{"float16", "bfloat16"} do
        local loss = train{opt_level = level, dtype = dtype}
        assert.is_true(math.abs(loss - reference) < 0.02, ("%s %s: %g, float32: %g"):format(level,
          dtype, loss, reference))
      end
    end
    local adam = train({opt_level = "O0"}, "AdamW")
    assert.is_true(math.abs(train({opt_level = "O2"}, "AdamW") - adam) < 0.02)
  end)

  it("O0 is training without it, to the bit", function()
    local _, model = train{opt_level = "O0"}
    local _, plain = train{enabled = false}
    local other = {}
    for name, p in plain:named_parameters() do other[name] = p end
    for name, p in model:named_parameters() do
      assert.is_true(dm.equal(p:detach(), other[name]:detach()), name)
    end
  end)

  it("each level casts what it says", function()
    local low = {O0 = "float32", O1 = "float32", O2 = "float16", O3 = "float16"}
    local norm = {O0 = "float32", O1 = "float32", O2 = "float32", O3 = "float16"}
    for _, level in ipairs(LEVELS) do
      local model, optimizer = pair{opt_level = level}
      local found = dtypes(model)
      assert.equal(low[level], found["0.weight"], level)
      assert.equal(low[level], found["7.bias"], level)
      assert.equal(norm[level], found["1.weight"], level)
      assert.equal(norm[level], found["1.running_var"], level)
      assert.equal("int64", found["1.num_batches_tracked"])
      assert.equal(level == "O2", optimizer.param_groups[1].master_weights, level)
      local scaler = amp.loss_scalers(optimizer)[1]
      assert.equal((level == "O1" or level == "O2") and 65536 or 1, scaler:get_scale(), level)
    end
  end)

  it("inputs become the model's dtype, outputs float32; O1 runs under autocast", function()
    for _, level in ipairs(LEVELS) do
      local seen = {}
      local Probe = nn.Module:extend "Probe"
      function Probe.init(self) self.inner = nn.Linear(4, 2) end
      function Probe.forward(self, x, more)
        seen.x, seen.more, seen.count = x.dtype, more.pair[1].dtype, more.count.dtype
        seen.out = self.inner(x).dtype
        return self.inner(x), {self.inner(x)}
      end
      local model = Probe()
      amp.initialize(model, optim.SGD(model:parameters()), {opt_level = level})
      local low = (level == "O2" or level == "O3") and "float16" or "float32"
      local a, b = model(dm.ones(1, 4), {pair = {dm.ones(1)}, count = dm.tensor{1}})
      assert.same({x = low, more = low, count = "int64",
        out = level == "O0" and "float32" or "float16"}, seen)
      assert.equal("float32", a.dtype)
      assert.equal("float32", b[1].dtype)
      assert.is_false(amp.is_autocast_enabled(device.type))
    end
  end)

  it("packed sequences are converted as tensors are", function()
    local model = amp.initialize(nn.GRU(4, 2), nil, {opt_level = "O3"})
    local y = model(nn.utils.rnn.pack_sequence{dm.randn(3, 4), dm.randn(2, 4)})
    assert.equal("float16", model.weight_hh_l0.dtype)
    assert.equal("float32", y.data.dtype)
    assert.same({2, 2, 1}, y.batch_sizes:totable())
  end)

  it("batch norm that stays keeps its values to the bit", function()
    dm.manual_seed(1)
    local model = net()
    model[2].running_mean:copy_(dm.randn(4))
    local before = model[2].running_mean:clone()
    amp.initialize(model, optim.SGD(model:parameters()), {opt_level = "O2"})
    assert.is_true(dm.equal(before, model[2].running_mean))
    local Mine = nn.BatchNorm2d:extend "Mine"
    local other = nn.Sequential{Mine(4)}
    amp.initialize(other, optim.SGD(other:parameters()), {opt_level = "O2"})
    assert.equal("float32", other[1].weight.dtype)
  end)

  it("every property can be overridden", function()
    local model, optimizer = pair{opt_level = "O2", cast_model_type = "bfloat16",
      keep_batchnorm_fp32 = false, master_weights = false, loss_scale = "128.0"}
    local found = dtypes(model)
    assert.equal("bfloat16", found["0.weight"])
    assert.equal("bfloat16", found["1.weight"])
    assert.is_false(optimizer.param_groups[1].master_weights)
    assert.equal(128, amp.loss_scalers(optimizer)[1]:get_scale())
    model = pair{opt_level = "O0", patch_functions = true}
    local seen
    model[5]:register_forward_hook(function(_, _, y) seen = y.dtype end)
    model(dm.ones(2, 1, 6, 6))
    assert.equal("float16", seen)
    model = pair{opt_level = "O3", keep_batchnorm_fp32 = true}
    assert.equal("float32", dtypes(model)["1.weight"])
  end)

  it("enabled = false leaves everything as it is", function()
    local model, optimizer = pair{opt_level = "O2", enabled = false}
    assert.is_nil(rawget(model, "forward"))
    assert.is_nil(rawget(optimizer, "step"))
    assert.equal("float32", dtypes(model)["0.weight"])
    local loss = F.cross_entropy(model(dm.ones(2, 1, 6, 6)), dm.tensor{1, 2})
    assert.equal(loss:item(), amp.scale_loss(loss, optimizer, function(l) return l:item() end))
  end)

  it("takes arrays, and gives them back", function()
    local a, b = nn.Linear(3, 3), nn.Linear(3, 3)
    local o, p = optim.SGD(a:parameters(), {lr = 0.1}), optim.Adam(b:parameters())
    local models, optimizers = amp.initialize({a, b}, {o, p}, {opt_level = "O2",
      dtype = "bfloat16"})
    assert.equal(b, models[2])
    assert.equal(p, optimizers[2])
    amp.scale_loss((a(dm.ones(1, 3)) + b(dm.ones(1, 3))):sum(), {o, p}, function(loss)
      loss:backward()
    end)
    o:step()
    p:step()
    assert.equal("float32", o.state[a.weight].master.dtype)
    assert.equal(1, p.state[b.weight].step:item())
    -- a loss that reaches one of them
    o:zero_grad()
    p:zero_grad()
    amp.scale_loss(a(dm.ones(1, 3)):sum(), {o, p}, function(loss) loss:backward() end)
  end)

  it("says what it refuses, and changes nothing then", function()
    local model = net()
    local optimizer = optim.SGD(model:parameters())
    local cases = {
      {{opt_level = "O4"}, "unknown opt_level 'O4', wanted 'O0'.*'O1'.*'O2'.*'O3'"},
      {{opt_level = "01"}, "the letter O"},
      {{cast_model_type = "float16"}, "cast_model_type has no place in opt_level 'O1'"},
      {{master_weights = true}, "their own masters"},
      {{keep_batchnorm_fp32 = false}, "keep_batchnorm_fp32 has no place"},
      {{loss_scale = "much"}, "loss_scale is much"},
      {{loss_scale = -1}, "wanted a number above 0"},
      {{opt_level = "O2", cast_model_type = "int8"}, "cast_model_type is int8"},
      {{dtype = "float64"}, "dtype is float64"},
      {{num_losses = 0}, "num_losses is 0"},
      {{min_loss_scale = 8, max_loss_scale = 4}, "the second not below the first"},
      {{max_loss_scale = "much"}, "max_loss_scale much"},
      {{opt_lvl = "O1"}, "did you mean 'opt_level'"},
    }
    for _, case in ipairs(cases) do
      assert.refuses(case[2], function() amp.initialize(model, optimizer, case[1]) end)
    end
    assert.refuses("wanted an optimizer", function() amp.initialize(model, 3) end)
    assert.refuses("wanted a module", function() amp.initialize(3, optimizer) end)
    assert.is_nil(rawget(model, "forward"))
    assert.equal("float32", dtypes(model)["0.weight"])
    amp.initialize(model, optimizer)
    assert.refuses("initialized already", function() amp.initialize(model, optimizer) end)
    local half = nn.Linear(2, 2):half()
    assert.refuses("weight is float16, wanted a model in float32", function()
      amp.initialize(half, optim.SGD(half:parameters()))
    end)
  end)
end)

-- A weight of two elements at a level, and its optimizer.
local function tiny(opts)
  local model = nn.Linear(2, 1, {bias = false})
  model.weight.data:copy_(dm.ones(1, 2))
  return amp.initialize(model, optim.SGD(model:parameters(), {lr = 0.5}), opts)
end

describe("amp.scale_loss", function()
  it("gives the scaled loss, and true gradients when it ends", function()
    local model, optimizer = tiny{opt_level = "O1", loss_scale = 1024}
    local loss = model(dm.tensor{{1.0, 3.0}}):sum()
    amp.scale_loss(loss, optimizer, function(scaled)
      assert.equal(1024 * loss:item(), scaled:item())
      scaled:backward()
      assert.same({{1024, 3072}}, model.weight.grad:totable())
    end)
    assert.same({{1, 3}}, model.weight.grad:totable())
    optimizer:step()
    assert.same({{0.5, -0.5}}, model.weight:totable())
  end)

  it("in O2 unscales in float32 what 16 bits would lose", function()
    local model, optimizer = tiny{opt_level = "O2", loss_scale = 65536}
    amp.scale_loss(model(dm.tensor{{1.0, 1.0}}):sum() * 1e-9, optimizer, function(scaled)
      scaled:backward()
      assert.equal("float16", model.weight.grad.dtype)
    end)
    assert.equal("float32", model.weight.grad.dtype)
    assert.is_true(math.abs(model.weight.grad[{1, 1}]:item() / 1e-9 - 1) < 1e-3)
  end)

  it("an overflow skips one step and halves the scale", function()
    local model, optimizer = tiny{opt_level = "O2"}
    local scaler = amp.loss_scalers(optimizer)[1]
    local function iterate(factor)
      optimizer:zero_grad()
      amp.scale_loss(model(dm.tensor{{1.0, 1.0}}):sum() * factor, optimizer, function(scaled)
        scaled:backward()
      end)
      optimizer:step()
    end
    iterate(math.huge)
    assert.same({{1, 1}}, model.weight:totable())
    assert.equal(32768, scaler:get_scale())
    iterate(0.5)
    assert.same({{0.75, 0.75}}, model.weight:totable())
    assert.equal(32768, scaler:get_scale())
  end)

  it("holds the scale between the limits", function()
    local model, optimizer = tiny{opt_level = "O1", dtype = "bfloat16", min_loss_scale = 40000,
      max_loss_scale = 70000}
    local scaler = amp.loss_scalers(optimizer)[1]
    scaler:set_growth_interval(1)
    for _, case in ipairs{{1, 70000}, {1, 70000}, {math.huge, 40000}, {math.huge, 40000}} do
      optimizer:zero_grad()
      amp.scale_loss(model(dm.ones(1, 2)):sum() * case[1], optimizer, function(scaled)
        scaled:backward()
      end)
      assert.equal(case[2], scaler:get_scale())
    end
  end)

  it("a fixed scale stays, and skips all the same", function()
    local model, optimizer = tiny{opt_level = "O1", loss_scale = 64}
    amp.scale_loss(model(dm.ones(1, 2)):sum() * math.huge, optimizer, function(l) l:backward() end)
    optimizer:step()
    assert.same({{1, 1}}, model.weight:totable())
    assert.equal(64, amp.loss_scalers(optimizer)[1]:get_scale())
  end)

  it("adds to the gradients from before: accumulation, and several losses", function()
    local model, optimizer = tiny{opt_level = "O1", dtype = "bfloat16", num_losses = 2}
    local scalers = amp.loss_scalers(optimizer)
    for id, x in ipairs{{{1.0, 2.0}}, {{10.0, 20.0}}} do
      amp.scale_loss(model(dm.tensor(x)):sum(), optimizer, {loss_id = id}, function(scaled)
        scaled:backward()
      end)
    end
    amp.scale_loss(model(dm.tensor{{0.5, 0.5}}):sum(), optimizer, function(l) l:backward() end)
    assert.same({{11.5, 22.5}}, model.weight.grad:totable())
    -- one of them overflows: its own scale falls, the step is skipped once
    amp.scale_loss(model(dm.ones(1, 2)):sum() * math.huge, optimizer, {loss_id = 2},
      function(scaled) scaled:backward() end)
    amp.scale_loss(model(dm.ones(1, 2)):sum(), optimizer, function(l) l:backward() end)
    optimizer:step()
    assert.same({{1, 1}}, model.weight:totable())
    assert.equal(65536, scalers[1]:get_scale())
    assert.equal(32768, scalers[2]:get_scale())
  end)

  it("gradients may be clipped between the scope and the step", function()
    local model, optimizer = tiny{opt_level = "O2", dtype = "bfloat16"}
    amp.scale_loss(model(dm.tensor{{3.0, 4.0}}):sum(), optimizer, function(l) l:backward() end)
    local norm = nn.utils.clip_grad_norm_(model:parameters(), 1.0)
    assert.is_true(math.abs(norm:item() - 5) < 1e-5)
    optimizer:step()
    assert.is_true(math.abs(model.weight[{1, 1}]:item() - 0.7) < 1e-3)
  end)

  it("an optimizer that knows nothing of found_inf is skipped from outside", function()
    local Plain = optim.Optimizer.extend("Plain", {lr = 0.5})
    function Plain:update(group) -- luacheck: ignore 212
      local _ <close> = dm.no_grad()
      for _, p in ipairs(group.params) do p:sub_(p.grad * group.lr) end
    end
    local model = nn.Linear(2, 1, {bias = false})
    model.weight.data:copy_(dm.ones(1, 2))
    local optimizer = Plain(model:parameters())
    amp.initialize(model, optimizer, {opt_level = "O1", dtype = "bfloat16"})
    for i, factor in ipairs{math.huge, 1} do
      optimizer:zero_grad()
      amp.scale_loss(model(dm.ones(1, 2)):sum() * factor, optimizer, function(l) l:backward() end)
      optimizer:step()
      assert.same(i == 1 and {{1, 1}} or {{0.5, 0.5}}, model.weight:totable())
    end
  end)

  it("an error inside passes, and the gradients from before are back", function()
    local model, optimizer = tiny{opt_level = "O1"}
    model.weight.grad = dm.ones(1, 2)
    assert.refuses("out", function()
      local scaled_loss <close> = amp.scale_loss(model(dm.ones(1, 2)):sum(), optimizer)
      scaled_loss:backward()
      error "out"
    end)
    assert.same({{1, 1}}, model.weight.grad:totable())
    optimizer:step()
    assert.same({{0.5, 0.5}}, model.weight:totable())
  end)

  it("refuses a step inside, unknown optimizers and losses, and no gradient", function()
    local model, optimizer = tiny{opt_level = "O1"}
    local loss = model(dm.ones(1, 2)):sum()
    local open = amp.scale_loss(loss, optimizer)
    open:backward()
    assert.refuses("still open", function() optimizer:step() end)
    assert.refuses("still open", function() amp.scale_loss(loss, optimizer) end)
    getmetatable(open).__close(open)
    assert.refuses("closure", function() optimizer:step(function() end) end)
    assert.refuses("loss_id is 2, wanted 1 to num_losses = 1", function()
      amp.scale_loss(loss, optimizer, {loss_id = 2})
    end)
    assert.refuses("loss is 3, wanted a tensor", function() amp.scale_loss(3, optimizer) end)
    assert.refuses("amp.initialize%(model, optimizer%) comes first", function()
      amp.scale_loss(loss, optim.SGD{dm.ones(1)})
    end)
    optimizer:zero_grad()
    assert.refuses("no parameter of this optimizer has a gradient", function()
      amp.scale_loss(loss, optimizer, function() end)
    end)
  end)
end)
