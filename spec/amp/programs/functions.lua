-- Functions of one's own in random programs. Each is written once, with call(name, ...) for the ops
-- in it, so that the engine and the casts by hand run the same lines.

local dm = require "demilune"

local functions = {}

-- forward and backward; takes: the shapes of the tensors; gives: that of the result.
functions.product = {
  takes = {{2, 3}, {3, 2}}, gives = {2, 2},
  forward = function(call, ctx, a, b)
    ctx:save_for_backward(a, b)
    return call("mm", a, b)
  end,
  backward = function(call, ctx, gy)
    local a, b = ctx:saved_tensors()
    return call("mm", gy, call("t", b)), call("mm", call("t", a), gy)
  end,
}
functions.squares = {
  takes = {{2, 3}, {2, 3}}, gives = {2, 3},
  forward = function(call, ctx, a, b)
    ctx:save_for_backward(a, b)
    return call("square", call("atan2", a, b))
  end,
  backward = function(call, ctx, gy)
    local a, b = ctx:saved_tensors()
    return call("mul", call("exp", gy), b), call("softmax", a, 1)
  end,
}
functions.layers = {
  takes = {{2, 3}, {2, 3}}, gives = {2, 2},
  forward = function(call, ctx, x, weight)
    ctx:save_for_backward(x, weight)
    return call("matmul", call("linear", x, weight), call("linear", weight, x))
  end,
  backward = function(call, ctx, gy)
    local x, weight = ctx:saved_tensors()
    return call("mm", gy, weight), call("mm", call("t", gy), x)
  end,
}

-- The autograd.Function of a name whose ops go through call.
function functions.new(name, call, forward, backward)
  local f = functions[name]
  return dm.autograd.Function{
    name = name,
    forward = forward(function(...) return f.forward(call, ...) end),
    backward = backward(function(...) return f.backward(call, ...) end),
  }
end

local function direct(name, ...) return dm[name](...) end
local function bare(fn) return fn end

-- The function as a user writes it. how: {} (bare), {cast_inputs = dtype} or {custom = true} for
-- amp.custom_fwd, {policy = word} for amp.register.
function functions.custom(name, how)
  local amp = dm.amp
  local decorated = how.custom or how.cast_inputs
  local f = functions.new(name, direct, decorated and function(fn)
    return amp.custom_fwd(fn, {cast_inputs = how.cast_inputs})
  end or bare, decorated and amp.custom_bwd or bare)
  if how.policy then amp.register{op = f, policy = how.policy} end
  return f
end

return functions
