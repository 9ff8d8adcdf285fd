-- A batch norm with a ReLU or a ReLU6 behind it is one op in training: the bits are those of two
-- ops, for results, gradients and running statistics (on a GPU, where the library sums in other
-- orders, their values), and whoever looks at a module's own output sees it.
local dm = require "demilune"
local both = require "spec.cuda.both"
local nn, F, amp = dm.nn, dm.nn.functional, dm.amp

-- Images of a convolution, which lie channels last on a GPU.
local function images(dtype, n, c, h, w)
  dm.manual_seed(5)
  return dm.conv2d(dm.randn(n, 4, h, w):to(dtype), dm.randn(c, 4, 1, 1):to(dtype)):detach()
end

local function rows(dtype, ...)
  dm.manual_seed(6)
  return dm.randn(...):to(dtype)
end

local MAKERS = {
  {"images", function(dtype) return images(dtype, 3, 8, 4, 5) end},
  {"images of 12 channels", function(dtype) return images(dtype, 3, 12, 3, 3) end},
  {"images in rows", function(dtype) return rows(dtype, 2, 8, 3, 4) end},
  {"sequences", function(dtype) return rows(dtype, 3, 5, 7) end},
  {"vectors", function(dtype) return rows(dtype, 9, 16) end},
  -- some of which are rounded to 0 or to 6
  {"many sequences", function(dtype) return rows(dtype, 8, 4, 900) end},
}

-- Of relu and relu6: how wide norms are spread, so that some are cut at 6.
local SPREAD = {relu = 1, relu6 = 4}

local function two_of(word)
  return function(x, mean, var, options)
    options.activation = nil
    return F[word](F.batch_norm(x, mean, var, options))
  end
end
local function one_of(word)
  return function(x, mean, var, options)
    options.activation = word
    return F.batch_norm(x, mean, var, options)
  end
end

local NEAR = {float16 = 2^-9, bfloat16 = 2^-6, float32 = 2e-5, float64 = 1e-12}

-- The same names, and tensors that are alike.
local function same(want, got, what)
  for name, t in pairs(want) do
    both.alike(t, got[name], ("%s %s"):format(what or "", name), NEAR[t.dtype] or 0)
  end
end

-- y, the gradients and the running statistics.
local function results_of(f, x, training, plain, spread)
  local c = x:size(2)
  dm.manual_seed(7)
  x = x:clone():requires_grad_()
  local w, b = dm.randn(c):mul(spread):requires_grad_(), dm.randn(c):requires_grad_()
  local mean, var, count = dm.zeros(c), dm.ones(c), dm.zeros({}, {dtype = "int64"})
  local options = {training = training, eps = 1e-5, momentum = 0.1, num_batches_tracked = count}
  if not plain then options.weight, options.bias = w, b end
  local y = f(x, mean, var, options)
  local gy = rows(y.dtype, table.unpack(x.shape))
  y:backward(gy)
  local all = {}
  for i, t in ipairs{y:detach(), x.grad, mean, var, count, w.grad or mean, b.grad or mean} do
    all[i] = t
  end
  return all
end

for word, spread in pairs(SPREAD) do
  describe("batch_norm with " .. word, function()
    local two, one = two_of(word), one_of(word)

    for _, maker in ipairs(MAKERS) do
      it("gives the bits of two ops: " .. maker[1], function()
        for _, dtype in ipairs{"float32", "float16", "bfloat16", "float64"} do
          for _, training in ipairs{true, false} do
            for _, plain in ipairs{false, true} do
              local x = maker[2](dtype)
              same(results_of(two, x, training, plain, spread),
                results_of(one, x, training, plain, spread), dtype)
            end
          end
        end
      end)
    end

    it("keeps NaN, and what an overflow makes of a gradient", function()
      for _, bad in ipairs{0 / 0, math.huge} do
        local x = images("float16", 2, 8, 3, 3)
        x[1][3][2][2] = bad
        same(results_of(two, x, true, false, spread), results_of(one, x, true, false, spread))
      end
    end)

    it("has the second derivatives of two ops", function()
      local function second(f)
        local x = images("float32", 2, 8, 3, 3):requires_grad_()
        dm.manual_seed(8)
        local w, b = dm.randn(8):mul(spread):requires_grad_(), dm.randn(8):requires_grad_()
        local y = f(x, nil, nil, {weight = w, bias = b, training = true})
        local gx, gw = dm.autograd.grad(y:square():sum(), {x, w}, {create_graph = true})
        local hx, hw = dm.autograd.grad((gx * gx):sum() + (gw * gw):sum(), {x, w})
        return hx, hw
      end
      local x1, w1 = second(two)
      local x2, w2 = second(one)
      local o = not both.exact() and {rtol = 1e-3, atol = 1e-4} or nil
      assert.is_true(x1:allclose(x2, o) and w1:allclose(w2, o))
      assert.is_true(x1:abs():max():item() > 0)
    end)

    it("agrees with finite differences", function()
      local x = rows("float64", 3, 4, 2):requires_grad_()
      local w = rows("float64", 4):mul(spread):requires_grad_()
      local b = rows("float64", 4):requires_grad_()
      local function f(v, weight, bias)
        return F.batch_norm(v, nil, nil, {weight = weight, bias = bias, training = true,
          activation = word})
      end
      assert.is_true(dm.autograd.gradcheck(f, {x, w, b}))
    end)
  end)
end

describe("batch_norm with relu", function()
  it("refuses other activations, and one value per channel, and counts nothing then", function()
    local count = dm.zeros({}, {dtype = "int64"})
    assert.refuses("activation: 'gelu' is none of", function()
      F.batch_norm(rows("float32", 2, 3), nil, nil, {training = true, activation = "gelu"})
    end)
    assert.refuses("one value per channel", function()
      F.batch_norm(rows("float32", 1, 3), nil, nil, {training = true, activation = "relu",
        num_batches_tracked = count})
    end)
    assert.equal(0, count:item())
  end)

  it("finds a result that was changed in place, or does not read it", function()
    local function gradient(change)
      local x = images("float32", 2, 8, 3, 3):requires_grad_()
      local y = F.batch_norm(x, nil, nil, {training = true, activation = "relu"})
      if change then y:mul_(2) else y = y * 2 end
      (y * rows("float32", table.unpack(y.shape))):sum():backward()
      return x.grad
    end
    if dm.zeros(1).device == "cpu" then
      assert.equal(both.bits(gradient(false)), both.bits(gradient(true)))
    else
      assert.refuses("changed in place", function() gradient(true) end)
    end
  end)
end)

describe("a batch norm module before a ReLU", function()
  local function layers(relu)
    dm.manual_seed(9)
    return nn.Sequential{nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), relu or nn.ReLU(),
      nn.Conv2d(8, 2, 1)}
  end

  -- The results of a step under autocast, of y, all gradients and all state.
  local function step(model, x)
    local y
    do
      local _ <close> = amp.autocast{device_type = x.device:match "^%a+", dtype = "bfloat16"}
      y = model(x)
    end
    y:float():square():sum():backward()
    local all = {y = y:detach()}
    for name, p in model:named_parameters() do all["g " .. name] = p.grad end
    for name, t in pairs(model:state_dict()) do all[name] = t:clone() end
    return all
  end


  it("gives the bits of modules that are called apart", function()
    for _, relu in ipairs{nn.ReLU(), nn.ReLU{inplace = true}, nn.ReLU6(),
      nn.ReLU6{inplace = true}} do
      local x = rows("float32", 2, 4, 6, 6)
      local fused, apart = layers(relu), layers(relu)
      for _, model in ipairs{fused, apart} do model[2].weight.data:fill_(4) end
      function apart:forward(v)
        for _, m in ipairs(self) do v = m(v) end
        return v
      end
      same(step(apart, x), step(fused, x))
    end
  end)

  it("is not one op where a hook or an observer looks", function()
    local model, x = layers(), rows("float32", 2, 4, 6, 6)
    local seen
    local hook = model[2]:register_forward_hook(function(_, _, y) seen = y:min():item() end)
    model(x)
    assert.is_true(seen < 0)
    hook:remove()
    seen = nil
    hook = model[3]:register_forward_hook(function(_, input) seen = input[1]:min():item() end)
    model(x)
    assert.is_true(seen < 0)
    hook:remove()
  end)

  it("is one op in training alone, and never of another ReLU", function()
    local bn, relu, x = nn.BatchNorm1d(4), nn.ReLU(), rows("float32", 5, 4)
    assert.is_true(bn:can_fuse_relu())
    assert.is_false(bn:eval():can_fuse_relu())
    bn:train()
    local Other = nn.ReLU:extend "Other"
    function Other:forward(v) -- luacheck: ignore self
      return v * 1
    end
    assert.is_true(nn.Module.then_relu(bn, Other(), x):min():item() < 0)
    assert.is_true(nn.Module.then_relu(bn, function(v) return v * 1 end, x):min():item() < 0)
    assert.equal(0, nn.Module.then_relu(bn, relu, x):min():item())
    assert.equal(0, nn.Module.then_relu(nn.Identity(), relu, x):min():item())
    local six = nn.Module.then_relu(bn, nn.ReLU6(), x * 100)
    assert.is_true(six:min():item() == 0 and six:max():item() <= 6)
    assert.is_false(nn.Linear(2, 2):can_fuse_relu "relu6")
  end)
end)

describe("add_relu", function()
  it("has the bits of the sum's relu, forward and backward, broadcast and in place", function()
    for _, dtype in ipairs{"float32", "float16", "bfloat16", "float64"} do
      for _, shape in ipairs{{3, 8, 5, 5}, {8, 1, 5}, {5}} do
        local function run(f)
          local x, other = rows(dtype, 3, 8, 5, 5), rows(dtype, table.unpack(shape))
          if dtype == "float16" then x[1][2][3][4], x[2][1][1][1] = 0 / 0, math.huge end
          x:requires_grad_()
          other:requires_grad_()
          local y = f(x * 1, other)
          y:backward(rows(dtype, 3, 8, 5, 5))
          return {y = y:detach(), gx = x.grad, other = other.grad}
        end
        local want = run(function(x, other) return (x + other):relu() end)
        for _, f in ipairs{dm.add_relu, function(x, other) return x:add_relu_(other) end} do
          local got = run(f)
          for name, t in pairs(want) do assert.equal(both.bits(t), both.bits(got[name]), name) end
        end
      end
    end
    assert.same({0, 3, 0}, dm.add_relu(dm.tensor{-2, 1, 0}, dm.tensor{1, 2, 0}):totable())
  end)

  it("gives vectors in evaluation the bits of sequences of them", function()
    for _, shape in ipairs{{1, 3}, {70, 1}, {33, 7}, {5, 100}, {3, 600}, {1, 1300}} do
      for _, dtype in ipairs{"float32", "bfloat16", "float16", "float64"} do
        for activation in pairs{none = 1, relu = 1} do
          local n, c = shape[1], shape[2]
          local x, mean, var = rows(dtype, n, c), rows("float32", c), rows("float32", c):abs()
          local function run(v)
            return F.batch_norm(v, mean, var, {weight = rows("float32", c) * 2, bias = mean * 3,
              training = false, activation = activation == "relu" and "relu" or nil})
          end
          local twice = x:unsqueeze(-1):expand(n, c, 2):contiguous()
          assert.equal(both.bits(run(twice):select(-1, 1):contiguous()), both.bits(run(x)),
            ("%s (%d, %d) %s"):format(dtype, n, c, activation))
        end
      end
    end
  end)

  it("normalizes vectors as sequences, with means that are far from 0", function()
    for _, shape in ipairs{{2, 3}, {70, 1}, {333, 7}, {5, 100}, {3, 600}, {2500, 40}, {90, 1300}} do
      for _, dtype in ipairs{"float32", "bfloat16", "float64"} do
        for activation in pairs{none = 1, relu = 1} do
          local n, c = shape[1], shape[2]
          local offset = rows("float32", c) * (dtype == "bfloat16" and 1 or 30)
          local x, gy = (rows("float32", n, c) + offset):to(dtype), rows(dtype, n, c) / n
          local function run(v, g)
            local mean, var = dm.zeros(c), dm.ones(c)
            local w, b = (rows("float32", c) * 2):requires_grad_(), (offset * 0.1):requires_grad_()
            v = v:clone():requires_grad_()
            local y = F.batch_norm(v, mean, var, {weight = w, bias = b, training = true,
              activation = activation == "relu" and "relu" or nil})
            y:backward(g)
            return {y = y:detach(), gx = v.grad, gw = w.grad, gb = b.grad, mean = mean, var = var}
          end
          local want = run(x:t():unsqueeze(1):contiguous(), gy:t():unsqueeze(1):contiguous())
          local got = run(x, gy)
          for name, t in pairs(got) do
            local other = want[name]
            if t:dim() == 2 then other = other:squeeze(1):t() end
            local size = math.max(1, other:abs():max():item())
            local most = (t:double() - other:double()):abs():max():item()
            local what = ("%s of %s (%d, %d) %s: %g"):format(name, dtype, n, c, activation, most)
            assert.is_true(most <= size * NEAR[t.dtype], what)
          end
        end
      end
    end
  end)

  it("ends a residual block, unless a hook or a relu of another kind is there", function()
    dm.manual_seed(3)
    local block = dm.models.resnet18{num_classes = 2}.layer1[1]
    local x, sums = rows("float32", 2, 64, 8, 8), {}
    local want = block(x):detach()
    local hook = block.relu:register_forward_hook(function(_, inputs)
      sums[#sums + 1] = inputs[1]:min():item()
    end)
    assert.is_true(dm.equal(want, block(x)))
    assert.is_true(#sums == 2)
    hook:remove()
    local Twice = nn.ReLU:extend "Twice"
    function Twice.forward(_, v) return dm.relu(v) * 2 end
    block.relu = Twice()
    assert.is_false(dm.equal(want, block(x)))
  end)
end)
