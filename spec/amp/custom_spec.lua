-- custom_fwd and custom_bwd: a user's function gets the right dtypes under autocast, and its
-- backward runs in the autocast state of its forward. amp.register gives a function a policy.

local dm = require "demilune"
local hooks = require("demilune.core")._test
local device = require "spec.device"
local amp, Function = dm.amp, dm.autograd.Function

local caller = require "demilune.caller"
local sink = caller.sink
setup(function() caller.sink = function() end end) -- backward() inside regions warns
teardown(function() caller.sink = sink end)

local function leaf(...) return dm.randn(...):requires_grad_() end
local function on() return amp.is_autocast_enabled(device.type) end
local function state() return on() and amp.get_autocast_dtype(device.type) or "off" end
local function low(fn, dtype) return amp.autocast({dtype = dtype or "bfloat16"}, fn) end

-- A matmul that records the dtypes of its inputs in `seen`.
local function matmul(seen, wrap_fwd, wrap_bwd)
  return Function{
    name = "MatMul",
    forward = wrap_fwd(function(ctx, a, b)
      seen.forward, seen.dtypes = state(), {a.dtype, b.dtype}
      ctx:save_for_backward(a, b)
      return a:mm(b)
    end),
    backward = wrap_bwd(function(ctx, gy)
      local a, b = ctx:saved_tensors()
      seen.backward, seen.gradient = state(), gy.dtype
      local ga, gb = gy:mm(b:t()), a:t():mm(gy)
      seen.made = ga.dtype
      return ga, gb
    end),
  }
end

local function bare(fn) return fn end
local function casting(dtype, device_type)
  return function(fn)
    return amp.custom_fwd(fn, {cast_inputs = dtype, device_type = device_type})
  end
end

describe("custom_fwd and custom_bwd", function()
  it("bare, forward sees float32 with autocast on, and backward autocast on", function()
    for _, dtype in ipairs{"bfloat16", "float16"} do
      local seen = {}
      local MatMul = matmul(seen, amp.custom_fwd, amp.custom_bwd)
      local a, b = leaf(8, 8), leaf(8, 8)
      local y = low(function() return MatMul(a, b) end, dtype)
      assert.equal(dtype, y.dtype)
      y:sum():backward()
      assert.same({forward = dtype, dtypes = {"float32", "float32"}, backward = dtype,
        gradient = dtype, made = dtype}, seen)
      assert.equal("float32", a.grad.dtype)
      -- the listed op's own gradient
      local want = {dm.autograd.grad(low(function() return a:mm(b) end, dtype):sum(), {a, b})}
      assert.is_true(dm.equal(want[1], a.grad))
      assert.is_true(dm.equal(want[2], b.grad))
    end
  end)

  local function cast_count(cache_enabled)
    local Linear = Function{
      forward = function(ctx, x, w)
        ctx:save_for_backward(x, w)
        return dm.nn.functional.linear(x, w)
      end,
      backward = function(ctx, gy)
        local x, w = ctx:saved_tensors()
        local _ <close> = amp.autocast{dtype = "bfloat16"}
        return gy:mm(w), x:t():mm(gy):t()
      end,
    }
    local x, w = leaf(2, 3):bfloat16():detach():requires_grad_(), leaf(4, 3)
    local before = dm.autocast_cast_count()
    -- a region around both keeps the cache from being emptied in between
    amp.autocast({dtype = "bfloat16", cache_enabled = cache_enabled}, function()
      Linear(x, w):sum():backward()
    end)
    assert.same({4, 3}, {table.unpack(w.grad.shape)})
    return dm.autocast_cast_count() - before
  end

  it("a weight is cast once for forward and a backward with its own region", function()
    assert.equal(1, cast_count(true))
  end)

  it("and twice when it is not cached", function()
    assert.equal(2, cast_count(false))
  end)

  it("a weight is cast by each backward outside of regions", function() -- as in PyTorch 2.15
    local MatMul = Function{
      forward = amp.custom_fwd(function(ctx, x, w)
        ctx:save_for_backward(x, w)
        return x:mm(w)
      end),
      backward = amp.custom_bwd(function(ctx, gy)
        local _, w = ctx:saved_tensors()
        return gy:mm(w), nil
      end),
    }
    local x, w = leaf(2, 3):bfloat16():detach():requires_grad_(), leaf(3, 3)
    local y = low(function() return MatMul(x, w):sum() + MatMul(x, w):sum() end, "bfloat16")
    local before = dm.autocast_cast_count()
    dm.autograd.grad(y, {x}, {create_graph = true})
    assert.equal(2, dm.autocast_cast_count() - before)
  end)

  it("cast_inputs converts and runs both with autocast off", function()
    local seen = {}
    local MatMul = matmul(seen, casting "float32", amp.custom_bwd)
    local a, b = leaf(4, 4):half():detach():requires_grad_(), leaf(4, 4)
    local y = low(function() return MatMul(a, b) end)
    assert.equal("float32", y.dtype)
    low(function() y:sum():backward() end) -- whatever is on around backward
    assert.same({forward = "off", dtypes = {"float32", "float32"}, backward = "off",
      gradient = "float32", made = "float32"}, seen)
    assert.equal("float16", a.grad.dtype)
  end)

  it("cast_inputs changes nothing where autocast is off", function()
    local seen = {}
    local MatMul = matmul(seen, casting "float16", amp.custom_bwd)
    local y = MatMul(leaf(4, 4), leaf(4, 4))
    low(function() y:sum():backward() end)
    assert.same({forward = "off", dtypes = {"float32", "float32"}, backward = "off",
      gradient = "float32", made = "float32"}, seen)
  end)

  it("cast_inputs walks tables, and leaves float64, integers and other values", function()
    local got
    local fn = amp.custom_fwd(function(_, ...) got = {...} end, {cast_inputs = "float16"})
    local meta = setmetatable({dm.ones(1)}, {})
    local key = dm.ones(1)
    low(function()
      fn({}, dm.ones(1), {dm.ones(1), {deep = dm.ones(1):bfloat16(), n = 3}, [key] = "v"},
        dm.ones(1):double(), dm.tensor{1}, "text", meta)
    end)
    assert.equal("float16", got[1].dtype)
    assert.equal("float16", got[2][1].dtype)
    assert.equal("float16", got[2][2].deep.dtype)
    assert.equal(3, got[2][2].n)
    for k, v in pairs(got[2]) do
      if v == "v" then assert.equal("float16", k.dtype) end
    end
    assert.equal("float64", got[3].dtype)
    assert.equal("int64", got[4].dtype)
    assert.equal("text", got[5])
    assert.is_true(rawequal(meta, got[6]))
  end)

  it("cast_inputs looks at the device type that it is given", function()
    local seen = {}
    local MatMul = matmul(seen, casting("float32", device.other), amp.custom_bwd)
    local y = low(function() return MatMul(leaf(2, 2), leaf(2, 2)) end)
    assert.equal("bfloat16", y.dtype)
    assert.same({"float32", "float32"}, seen.dtypes)
    assert.equal("bfloat16", seen.forward)
  end)

  it("backward has the state of its forward in another region, and in a coroutine", function()
    local seen = {}
    local MatMul = matmul(seen, amp.custom_fwd, amp.custom_bwd)
    local y = low(function() return MatMul(leaf(4, 4), leaf(4, 4)) end, "float16"):sum()
    low(function() y:backward{retain_graph = true} end)
    assert.equal("float16", seen.backward)
    seen.backward = nil
    coroutine.wrap(function()
      y:backward()
      assert.is_false(on())
    end)()
    assert.equal("float16", seen.backward)
  end)

  it("custom_bwd asks for custom_fwd", function()
    local Half = Function{
      forward = function(_, x) return x * 2 end,
      backward = amp.custom_bwd(function(_, gy) return gy end),
    }
    assert.refuses("not wrapped by amp.custom_fwd", function() Half(leaf(1)):sum():backward() end)
  end)

  it("name an unknown option", function()
    assert.refuses("did you mean 'cast_inputs'", function()
      amp.custom_fwd(bare, {cast_input = "float32"})
    end)
    assert.refuses("unknown device 'gpu'", function()
      amp.custom_bwd(bare, {device_type = "gpu"})
    end)
  end)
end)

describe("a function without decoration", function()
  it("runs backward in the autocast state of its call", function()
    local seen = {}
    local MatMul = matmul(seen, bare, bare)
    local a, b = leaf(4, 4), leaf(4, 4)
    local y = low(function() return MatMul(a, b) end, "float16"):sum()
    low(function() y:backward() end)
    assert.equal("float16", seen.backward)
    assert.equal("float16", seen.made)
    MatMul(a, b):sum():backward()
    assert.equal("off", seen.backward)
  end)

  it("built-in gradients and hooks have no autocast, but a hook may open a region", function()
    local a = leaf(4, 4)
    local h = a:exp()
    local seen = {}
    h:register_hook(function(g)
      seen[1] = state()
      seen[2] = g:mm(g).dtype
      seen[3] = low(function() return g:mm(g).dtype end)
    end)
    low(function() h:mm(h):sum():backward() end)
    assert.same({"off", "float32", "bfloat16"}, seen)
    assert.equal("float32", a.grad.dtype)
  end)
end)

describe("the context", function()
  local function sum_of(ctx_fn, backward)
    return Function{
      name = "Pair",
      forward = function(ctx, x, n)
        ctx_fn(ctx, x, n)
        return x * n, x + n, x:gt(0)
      end,
      backward = backward,
    }
  end
  local function nothing() end

  it("fills in zeros for results without a gradient, unless told not to", function()
    local got
    local function backward(_, a, b, c)
      got = {a, b, c}
      return a * 2
    end
    local x = leaf(3)
    sum_of(nothing, backward)(x, 2):sum():backward()
    assert.same({0, 0, 0}, got[2]:totable())
    assert.equal("bool", got[3].dtype)
    sum_of(function(ctx) ctx:set_materialize_grads(false) end, backward)(x, 2):sum():backward()
    assert.is_nil(got[2])
    assert.is_nil(got[3])
  end)

  it("says which inputs want a gradient, and takes nil for the others", function()
    local needs
    local Pair = sum_of(function(ctx) needs = ctx.needs_input_grad end, function(_, a) return a end)
    local x = leaf(1)
    Pair(x, dm.ones(1)):backward()
    assert.same({true, false}, needs)
    assert.equal(1, x.grad:item())
  end)

  it("a result that is marked has no gradient", function()
    local Two = Function{
      forward = function(ctx, x)
        local a, b = x * 2, x * 3
        ctx:mark_non_differentiable(b)
        return a, b
      end,
      backward = function(_, ga, gb) return ga + gb end,
    }
    local x = leaf(1)
    local a, b = Two(x)
    assert.is_false(b.requires_grad)
    a:backward()
    assert.equal(1, x.grad:item())
  end)

  it("a returned argument becomes another tensor, without a history under no_grad", function()
    local Pass = Function{forward = function(_, x) return x end,
      backward = function(_, gy) return gy * 3 end}
    local x = leaf(2)
    local function check(y, recorded)
      assert.not_equal(x, y)
      assert.equal(recorded, y.requires_grad)
      assert.is_true(x.is_leaf)
      assert.same(x:detach():totable(), y:detach():totable())
    end
    check(Pass(x), true)
    dm.no_grad(function() check(Pass(x), false) end)
  end)

  it("saves tensors and nils only", function()
    local Saves = Function{
      forward = function(ctx, x) ctx:save_for_backward(x, nil, x * 2) return x * 3 end,
      backward = function(ctx, gy)
        local a, none, b = ctx:saved_tensors()
        assert(none == nil)
        return gy * (b - a)
      end,
    }
    local x = dm.tensor({5.0}, {requires_grad = true})
    Saves(x):backward()
    assert.equal(5, x.grad:item())
    assert.refuses("argument 1 is a number", function()
      Function{forward = function(ctx, v) ctx:save_for_backward(3) return v * 1 end,
        backward = bare}(x)
    end)
  end)

  it("a saved result makes no cycle, and outlives a scope", function()
    local Exp = Function{
      forward = function(ctx, x)
        local y = x:exp()
        ctx:save_for_backward(y, x * 2)
        return y
      end,
      backward = function(ctx, gy) return gy * ctx:saved_tensors() end,
    }
    local x = leaf(100)
    local function live()
      collectgarbage()
      collectgarbage()
      return hooks.alloc_live()
    end
    Exp(x)
    local before = live()
    for _ = 1, 5 do Exp(x) end
    assert.equal(before, live())
    local y = dm.scope(function() return Exp(x):sum() end)
    y:backward()
    assert.is_true(dm.equal(x.grad, x:detach():exp()))
    -- and it has a history for a second derivative
    local g = dm.autograd.grad(Exp(x):sum(), x, {create_graph = true})
    assert.is_true(dm.equal(dm.autograd.grad(g:sum(), x), x:detach():exp()))
    g = nil -- luacheck: ignore
    x.grad = nil
    before = live()
    dm.autograd.grad(dm.autograd.grad(Exp(x):sum(), x, {create_graph = true}):sum(), x)
    assert.equal(before, live())
  end)

  it("refuses more gradients than arguments", function()
    local Extra = Function{name = "Extra", forward = function(_, x) return x * 1 end,
      backward = function(_, gy) return gy, gy end}
    assert.refuses("Extra: backward gave 2 gradients for 1 argument", function()
      Extra(leaf(1)):backward()
    end)
    local Nil = Function{forward = function(_, x) return x * 1 end,
      backward = function(_, gy) return gy, nil end}
    Nil(leaf(1)):backward()
  end)
end)

describe("amp.register", function()
  local function noted(name)
    local seen = {}
    local Op = Function{
      name = name,
      forward = function(ctx, a, b, c)
        seen.dtypes, seen.state = {a.dtype, b.dtype, c}, state()
        ctx:save_for_backward(a, b)
        return a * 2 + b
      end,
      backward = function(_, gy)
        seen.gradient, seen.backward = gy.dtype, state()
        return gy * 2, gy
      end,
    }
    return Op, seen
  end

  it("lower_precision: inputs are converted, and both run without autocast", function()
    local Op, seen = noted "Op"
    amp.register{op = Op, policy = "lower_precision"}
    local a, b = leaf(3), leaf(3)
    local before = dm.autocast_cast_count()
    local y = low(function() return Op(a, b, "x") + Op(a, b, "x") end)
    assert.equal(2, dm.autocast_cast_count() - before) -- weights' casts are shared
    assert.same({"bfloat16", "bfloat16", "x"}, seen.dtypes)
    assert.equal("off", seen.state)
    assert.equal("bfloat16", y.dtype)
    y:sum():backward()
    assert.equal("bfloat16", seen.gradient)
    assert.equal("off", seen.backward)
    assert.equal("float32", a.grad.dtype)
    assert.same({4, 4, 4}, a.grad:totable())
    Op(a, b)
    assert.same({"float32", "float32"}, seen.dtypes)
  end)

  it("fp32 and promote", function()
    local Op, seen = noted "Op"
    amp.register{op = Op, policy = "fp32", device_type = device.type}
    local h, f = dm.ones(1):bfloat16(), dm.ones(1)
    low(function() Op(h, h) end)
    assert.same({"float32", "float32"}, seen.dtypes)
    amp.register{op = Op, policy = "promote", device_type = device.type}
    low(function() Op(h, f) end)
    assert.same({"float32", "float32"}, seen.dtypes)
    low(function() Op(h, h) end)
    assert.same({"bfloat16", "bfloat16"}, seen.dtypes)
    low(function() Op(h:double(), f) end)
    assert.same({"float64", "float32"}, seen.dtypes)
  end)

  it("for another device type, or undone, changes nothing", function()
    local Op, seen = noted "Op"
    amp.register{op = Op, policy = "lower_precision", device_type = device.other}
    low(function() Op(dm.ones(1), dm.ones(1)) end)
    assert.same({"float32", "float32"}, seen.dtypes)
    assert.equal("bfloat16", seen.state)
    amp.register{op = Op, policy = "lower_precision"}
    amp.register{op = Op, policy = "unlisted"}
    low(function() Op(dm.ones(1), dm.ones(1)) end)
    assert.equal("bfloat16", seen.state)
  end)

  it("refuses what is no function, and an unknown policy", function()
    assert.refuses("wanted an autograd.Function", function()
      amp.register{op = "matmul", policy = "fp32"}
    end)
    assert.refuses("did you mean 'fp32'", function()
      amp.register{op = noted "Op", policy = "fp23"}
    end)
  end)
end)
