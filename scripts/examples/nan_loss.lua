-- Two ways to find a NaN: looking at the loss, and asking backward which op made
-- it. Anomaly detection is slow; switch it on while searching.

package.path = (arg[0]:match "^(.*)/" or ".") .. "/?.lua;" .. package.path
local dm = require "demilune"
local task = require "task"
local amp = dm.amp

local args = task.options("Two ways to find a NaN.", "float16")
local on = {device = args.device}
local region = {device_type = args.device, dtype = args.dtype, enabled = args.amp}

-- Products of 300 x 300 leave float16's range (65504), not bfloat16's.
local x = dm.full({4, 4}, 300.0, on)
for _, dtype in ipairs{args.dtype, "bfloat16"} do
  region.dtype = dtype
  local loss = amp.autocast(region, function() return x:matmul(x):float():mean() end)
  if loss:isnan():item() or loss:isinf():item() then
    print(("%s: the loss is NaN or inf! hint: bfloat16, or a lower learning rate"):format(dtype))
  else
    print(("%s: loss = %.4g"):format(dtype, loss:item()))
  end
end

-- sqrt has no slope at 0: inf times 0 is NaN.
local w = dm.zeros(3, on):requires_grad_()
local ok, message = pcall(dm.autograd.detect_anomaly, function()
  local distance = w:sqrt() -- the line to be named
  local loss = (distance * 0):sum()
  loss:backward()
end)
print(ok and "nothing found" or message)
