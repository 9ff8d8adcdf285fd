-- A training loop in bfloat16. It has float32's range, so nothing underflows
-- that would not in float32, and no scaler is needed.

package.path = (arg[0]:match "^(.*)/" or ".") .. "/?.lua;" .. package.path
local dm = require "demilune"
local task = require "task"
local nn, optim, amp = dm.nn, dm.optim, dm.amp

local args = task.options("A training loop in bfloat16, without a scaler.", "bfloat16")
local model, loader = task.model(args.device), task.loader()
local criterion = nn.CrossEntropyLoss()
local optimizer = optim.SGD(model:parameters(), {lr = 0.1, momentum = 0.9, weight_decay = 1e-4})

model:train()
for epoch = 1, 3 do
  local sum, count = 0, 0
  for _, inputs, labels in loader:iter() do
    local _ <close> = dm.scope()
    inputs, labels = inputs:to(args.device), labels:to(args.device)
    optimizer:zero_grad()
    local loss
    do -- a region as a block; amp_loop.lua has it as a function
      local _ <close> = amp.autocast{device_type = args.device, dtype = args.dtype,
        enabled = args.amp}
      loss = criterion(model(inputs), labels)
    end
    loss:backward()
    optimizer:step()
    sum, count = sum + loss:item(), count + 1
  end
  print(("Epoch %d: loss = %.4f"):format(epoch, sum / count))
end
