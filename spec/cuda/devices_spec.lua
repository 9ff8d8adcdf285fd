-- Several devices: calls that mix them are refused, and gradient scaling and clipping work across
-- them.

local dm = require "demilune"
local both = require "spec.cuda.both"
local amp, optim = dm.amp, dm.optim

if both.missing() then return end
if dm.cuda.device_count() < 2 then
  return describe("two devices", function() pending "there is no second CUDA device" end)
end

local ZERO, ONE = "cuda:0", "cuda:1"

-- A leaf of ones on the device, with this gradient.
local function weight(device, gradient)
  local w = dm.ones(#gradient, {device = device}):requires_grad_()
  w.grad = dm.tensor(gradient, {device = device})
  return w
end

-- SGD with a group for each parameter, and a scaler whose scale 4 lies on `home`.
local function training(home, ...)
  local groups = {}
  for i, w in ipairs{...} do groups[i] = {params = {w}, lr = 1} end
  local scaler = amp.GradScaler{device = "cuda", init_scale = 4, growth_interval = 1}
  scaler:scale(dm.ones(1, {device = home}))
  return scaler, optim.SGD(groups)
end

local function each_home(check)
  for _, home in ipairs{ZERO, ONE, "cpu"} do check(home) end
end

describe("two devices", function()
  it("one call takes gradients of one device", function()
    local a, b = weight(ZERO, {1.0}), weight(ONE, {1.0})
    assert.refuses("tensor 2 is on cuda:1, what came before it on cuda:0", function()
      dm.total_norm({a, b}, 2)
    end)
    local found = dm.tensor(0.0, {device = ONE})
    local where = dm.zeros(2, {dtype = "int64", device = ZERO})
    assert.refuses("found_inf is .* on cuda:1, wanted .* on the gradients' device", function()
      dm.amp_unscale_({{params = {a}}}, dm.tensor(1.0, {device = ZERO}), found, where)
    end)
    assert.same({1}, a.grad:totable())
  end)

  it("a group of parameters steps on each, with its numbers", function()
    for _, class in ipairs{"SGD", "Adam"} do
      local function run(first, second)
        local a, b = weight(first, {1.0, -2.0}), weight(second, {3.0})
        local c, idle = weight(first, {-1.0}), dm.ones(2, {device = second, requires_grad = true})
        local optimizer = optim[class]({a, b, c, idle}, {lr = 0.5})
        for i = 1, 3 do
          optimizer.param_groups[1].lr = 0.5 / i
          optimizer:step()
        end
        assert.equal(second, b.device)
        return {a:totable(), b:totable(), c:totable(), idle:totable()}
      end
      local want = run(ZERO, ZERO)
      assert.same(want, run(ZERO, ONE))
      assert.same(want, run("cpu", ONE))
    end
  end)

  it("one group of both steps under a scaler, or is skipped as a whole", function()
    each_home(function(home)
      local a, b = weight(ZERO, {4.0}), weight(ONE, {8.0})
      local scaler = training(home, a)
      local optimizer = optim.SGD({a, b}, {lr = 1})
      scaler:step(optimizer)
      scaler:update()
      assert.same({{0}, {-1}}, {a:totable(), b:totable()})
      a.grad, b.grad = dm.ones(1, {device = ZERO}), dm.full({1}, math.huge, {device = ONE})
      scaler:step(optimizer)
      scaler:update()
      assert.same({{0}, {-1}}, {a:totable(), b:totable()})
      assert.equal(2, scaler:stats().last_skip.parameter)
    end)
  end)

  it("gradients are clipped by the norm of all, which lies on the first one's", function()
    for _, norm_type in ipairs{0, 1, 2, 3, math.huge} do
      local function run(first, second)
        local a, b, c = weight(first, {3.0, 0.0}), weight(second, {4.0, -1.0}), weight(first, {2.0})
        local none = dm.ones(1, {device = second, requires_grad = true})
        local list = {none, a, b, c}
        local norm = dm.nn.utils.clip_grad_norm_(list, 0.5, {norm_type = norm_type})
        assert.equal(first, norm.device)
        assert.equal(second, b.grad.device)
        dm.nn.utils.clip_grads_with_norm_(list, 0.25, 0.5)
        return {norm:item(), a.grad:totable(), b.grad:totable(), c.grad:totable()}
      end
      local want, got = run(ZERO, ZERO), run(ZERO, ONE)
      assert.is_true(math.abs(want[1] - got[1]) < 1e-6 * want[1])
      for i = 2, 4 do
        for k, v in ipairs(want[i]) do assert.is_true(math.abs(v - got[i][k]) < 1e-6) end
      end
    end
  end)

  it("gradients are held by value on both", function()
    local a, b = weight(ZERO, {3.0, -0.5}), weight(ONE, {-4.0})
    dm.nn.utils.clip_grad_value_({a, b}, 1)
    assert.same({{1, -0.5}, {-1}}, {a.grad:totable(), b.grad:totable()})
  end)

  it("two names of one device are one", function()
    local a, b = weight("cuda", {2.0}), weight("cuda:0", {4.0})
    assert.equal(a.device, b.device)
    local found = dm.tensor(0.0, {device = ZERO})
    local where = dm.zeros(2, {dtype = "int64", device = ZERO})
    local scale = dm.tensor(2.0, {device = ZERO})
    local here, elsewhere = dm.amp_unscale_({{params = {a, b}}}, scale, found, where)
    assert.same({2, 0}, {here, elsewhere})
    assert.same({1, 2}, {a.grad:item(), b.grad:item()})
  end)

  it("gradients on both are unscaled, wherever the scale lies", function()
    each_home(function(home)
      local a, b = weight(ZERO, {4.0, 8.0}), weight(ONE, {-4.0})
      local scaler, optimizer = training(home, a, b)
      scaler:unscale_(optimizer)
      assert.same({{1, 2}, {-1}}, {a.grad:totable(), b.grad:totable()})
      scaler:step(optimizer)
      scaler:update()
      assert.same({{0, -1}, {2}}, {a:totable(), b:totable()})
      assert.is_true(scaler:stepped(optimizer))
      assert.equal(8, scaler:get_scale())
    end)
  end)

  it("an overflow on either keeps both from the step, and is told of", function()
    local inf = math.huge
    each_home(function(home)
      for _, case in ipairs{{{inf, inf}, {4.0}, 1, 2}, {{4.0, 4.0}, {inf}, 2, 1},
        {{0 / 0, 4.0}, {inf}, 1, 1}} do
        local a, b = weight(ZERO, case[1]), weight(ONE, case[2])
        local scaler, optimizer = training(home, a, b)
        scaler:step(optimizer)
        scaler:update()
        assert.same({{1, 1}, {1}}, {a:totable(), b:totable()})
        assert.equal(2, scaler:get_scale())
        local skip = scaler:stats().last_skip
        assert.same({case[3], case[4]}, {skip.group, skip.count})
        -- the next step, without one
        a.grad, b.grad = dm.full({2}, 2.0, {device = ZERO}), dm.full({1}, 2.0, {device = ONE})
        scaler:step(optimizer)
        scaler:update()
        assert.same({{0, 0}, {0}}, {a:totable(), b:totable()})
        assert.equal(4, scaler:get_scale())
      end
    end)
  end)

  it("an optimizer all of whose gradients lie apart from the scale forgets an overflow", function()
    local b = weight(ONE, {math.huge})
    local scaler, optimizer = training(ZERO, b)
    scaler:step(optimizer)
    scaler:update()
    assert.is_true(scaler:skipped(optimizer))
    b.grad = dm.full({1}, 2.0, {device = ONE})
    scaler:step(optimizer)
    scaler:update()
    assert.is_false(scaler:skipped(optimizer))
    assert.same({0}, b:totable())
  end)
end)
