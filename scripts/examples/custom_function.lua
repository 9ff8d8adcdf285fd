-- Autograd functions of one's own under autocast. custom_fwd and custom_bwd make
-- backward run in the state that forward ran in; cast_inputs fixes the dtype.

package.path = (arg[0]:match "^(.*)/" or ".") .. "/?.lua;" .. package.path
local dm = require "demilune"
local task = require "task"
local amp = dm.amp

local args = task.options("Autograd functions of one's own.", "bfloat16")
local of_device = {device_type = args.device}

local seen = {}
local function forward(ctx, input, weight)
  ctx:save_for_backward(input, weight)
  local output = input:mm(weight)
  seen = {forward = output.dtype}
  return output
end
local function backward(ctx, grad_output)
  local input, weight = ctx:saved_tensors()
  local grad_input = grad_output:mm(weight:t())
  seen.backward = grad_input.dtype
  return grad_input, input:t():mm(grad_output)
end

-- Runs in the region's dtype.
local MyFunction = dm.autograd.Function{
  name = "MyFunction",
  forward = amp.custom_fwd(forward, of_device),
  backward = amp.custom_bwd(backward),
}
-- Gets float32 and runs with autocast off.
local Float32Function = dm.autograd.Function{
  name = "Float32Function",
  forward = amp.custom_fwd(forward, {cast_inputs = "float32", device_type = args.device}),
  backward = amp.custom_bwd(backward),
}

for _, fn in ipairs{MyFunction, Float32Function} do
  local input = dm.randn(8, 16, {device = args.device}):requires_grad_()
  local weight = dm.randn(16, 4, {device = args.device}):requires_grad_()
  local output = amp.autocast({device_type = args.device, dtype = args.dtype, enabled = args.amp},
    function() return fn(input, weight) end)
  output:float():square():sum():backward()
  print(("%s: forward %s, backward %s, gradients %s and %s"):format(fn.name, seen.forward,
    seen.backward, input.grad.dtype, weight.grad.dtype))
end

-- Finite differences agree, in float64 and outside of any region.
local function double(m, n) return dm.randn(m, n, {dtype = "float64"}):requires_grad_() end
local a, b = double(3, 2), double(2, 2)
print("gradcheck: " .. tostring(dm.autograd.gradcheck(MyFunction, {a, b})))
