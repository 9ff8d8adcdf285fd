-- Gradients of float32 weights under autocast: a GPU widens those of all weights by one launch at
-- the end of the backward pass, and nobody sees that they came later.
local dm = require "demilune"
local both = require "spec.cuda.both"
local amp, nn = dm.amp, dm.nn

if both.missing() then return end

local function mlp(depth)
  local layers = {}
  for i = 1, depth do layers[i] = nn.Linear(8, 8) end
  return nn.Sequential(layers)
end

local function loss_of(model, x)
  return amp.autocast({dtype = "float16"}, function() return model(x):float():pow(2):sum() end)
end

-- The gradients by autograd.grad, whose casts are made one by one.
local function one_by_one(model, x)
  local params = {}
  for _, p in ipairs(model:parameters()) do params[#params + 1] = p end
  return {dm.autograd.grad(loss_of(model, x), params)}
end

local function grads_equal(model, want)
  for i, p in ipairs(model:parameters()) do
    assert.equal("float32", p.grad.dtype)
    assert.equal(both.bits(want[i]), both.bits(p.grad), "parameter " .. i)
    assert.is_true(p.grad:is_contiguous())
  end
end

describe("gradients that are widened together", function()
  local function it_on(name, f)
    it(name, function() both.on("cuda", f) end)
  end

  both.it_counts("take one launch, whatever the number of weights", function()
    both.on("cuda", function()
      local function count(depth)
        local model, x = mlp(depth), dm.randn(4, 8)
        loss_of(model, x):backward() -- the first cast of each weight
        model:zero_grad()
        local loss = loss_of(model, x)
        dm.cuda.synchronize()
        local first, n = dm.cuda._count "work", {widen_kernel = 0, convert_kernel = 0}
        loss:backward()
        for i = first + 1, dm.cuda._count "work" do
          local name = dm.cuda._work(i):match "^%(?([%w_]+)"
          n[name] = (n[name] or 0) + 1
        end
        return n
      end
      local few, many = count(2), count(9)
      assert.equal(1, few.widen_kernel)
      assert.equal(1, many.widen_kernel)
      assert.equal(few.convert_kernel, many.convert_kernel)
    end)
  end)

  it_on("have the bits of casts made one by one", function()
    for _, model in ipairs{mlp(3), nn.Sequential{nn.Conv2d(3, 8, 3, {padding = 1}), nn.ReLU(),
      nn.Conv2d(8, 5, {3, 2}), nn.BatchNorm2d(5), nn.Conv2d(5, 4, 1)}} do
      local x = model[1].class == "Conv2d" and dm.randn(2, 3, 7, 6) or dm.randn(4, 8)
      local want = one_by_one(model, x)
      loss_of(model, x):backward()
      grads_equal(model, want)
      loss_of(model, x):backward() -- added to those that are there
      for i, p in ipairs(model:parameters()) do
        assert.equal(both.bits(want[i] * 2), both.bits(p.grad))
      end
    end
  end)

  it_on("are there when a hook looks", function()
    local model, x, seen = mlp(3), dm.randn(4, 8), nil
    local want = one_by_one(model, x)
    local loss = amp.autocast({dtype = "float16"}, function()
      local h = model[1](x)
      h:register_hook(function() seen = model[3].weight.grad and model[3].weight.grad:clone() end)
      return model[3](model[2](h)):float():pow(2):sum()
    end)
    loss:backward()
    assert.equal(both.bits(want[5]), both.bits(seen))
    grads_equal(model, want)
  end)

  it_on("meet other gradients of the same weight", function()
    local w, x = nn.Parameter(dm.randn(8, 8)), dm.randn(4, 8)
    local function low()
      return amp.autocast({dtype = "float16"}, function() return x:matmul(w):float():sum() end)
    end
    -- two regions, whose casts are two, and a product in float32
    ;(low() + low() + (w * w):sum()):backward()
    local a = dm.autograd.grad(low(), w)
    local b = dm.autograd.grad((w * w):sum(), w)
    assert.is_true(dm.allclose(a + a + b, w.grad))
  end)

  it_on("show a scaled loss's inf to the scaler", function()
    local model, x = mlp(2), dm.randn(4, 8) * 100
    local optimizer = dm.optim.SGD(model:parameters(), {lr = 0.1})
    local scaler = amp.GradScaler{init_scale = 2 ^ 24}
    local before = model[1].weight:detach():clone()
    scaler:scale(loss_of(model, x)):backward()
    scaler:step(optimizer)
    scaler:update()
    assert.is_true(scaler:skipped(optimizer))
    assert.is_true(dm.equal(before, model[1].weight:detach()))
  end)
end)
