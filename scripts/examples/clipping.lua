-- Gradient clipping: gradients are unscaled first, so that max_norm means what
-- it does in float32.

package.path = (arg[0]:match "^(.*)/" or ".") .. "/?.lua;" .. package.path
local dm = require "demilune"
local task = require "task"
local nn, optim, amp = dm.nn, dm.optim, dm.amp

local MAX_NORM = 1.0

local args = task.options("Gradient clipping in mixed precision.", "float16")
local model, loader = task.model(args.device), task.loader()
local criterion = nn.CrossEntropyLoss()
local optimizer = optim.SGD(model:parameters(), {lr = 0.1, momentum = 0.9})
local scaler = amp.GradScaler{device = args.device, enabled = args.amp}
local region = {device_type = args.device, dtype = args.dtype, enabled = args.amp}

local function gradients()
  local list = {}
  for i, p in ipairs(model:parameters()) do list[i] = p.grad end
  return list
end

for i, inputs, labels in loader:iter() do
  local _ <close> = dm.scope()
  optimizer:zero_grad()
  local loss = amp.autocast(region, function()
    return criterion(model(inputs:to(args.device)), labels:to(args.device))
  end)
  scaler:scale(loss):backward()
  scaler:unscale_(optimizer)
  local norm = nn.utils.clip_grad_norm_(model:parameters(), MAX_NORM)
  local clipped = nn.utils.get_total_norm(gradients())
  scaler:step(optimizer)
  scaler:update()
  print(("step %d: loss %.4f, norm %.4f, clipped to %.4f"):format(i, loss:item(), norm:item(),
    clipped:item()))
end
