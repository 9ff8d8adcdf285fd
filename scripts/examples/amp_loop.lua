-- A training loop in mixed precision: plain_loop.lua with a scaler and a region.
--   diff scripts/examples/plain_loop.lua scripts/examples/amp_loop.lua
-- --dtype float32 switches both off, and the loop is the plain one.

package.path = (arg[0]:match "^(.*)/" or ".") .. "/?.lua;" .. package.path
local dm = require "demilune"
local task = require "task"
local nn, optim, amp = dm.nn, dm.optim, dm.amp

local args = task.options("A training loop in mixed precision.", "float16")
local model, loader = task.model(args.device), task.loader()
local criterion = nn.CrossEntropyLoss()
local optimizer = optim.SGD(model:parameters(), {lr = 0.1, momentum = 0.9, weight_decay = 1e-4})
local scaler = amp.GradScaler{device = args.device, enabled = args.amp}
local region = {device_type = args.device, dtype = args.dtype, enabled = args.amp}

model:train()
for epoch = 1, 3 do
  local sum, count = 0, 0
  for _, inputs, labels in loader:iter() do
    local _ <close> = dm.scope()
    inputs, labels = inputs:to(args.device), labels:to(args.device)
    optimizer:zero_grad()
    local loss = amp.autocast(region, function()
      local outputs = model(inputs)
      return criterion(outputs, labels)
    end)
    scaler:scale(loss):backward()
    scaler:step(optimizer)
    scaler:update()
    sum, count = sum + loss:item(), count + 1
  end
  print(("Epoch %d: loss = %.4f"):format(epoch, sum / count))
end
