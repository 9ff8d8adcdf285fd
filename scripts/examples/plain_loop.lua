-- A training loop in float32. amp_loop.lua is the same in mixed precision:
--   diff scripts/examples/plain_loop.lua scripts/examples/amp_loop.lua

package.path = (arg[0]:match "^(.*)/" or ".") .. "/?.lua;" .. package.path
local dm = require "demilune"
local task = require "task"
local nn, optim = dm.nn, dm.optim

local args = task.options("A training loop in float32.", "float32")
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
    local outputs = model(inputs)
    local loss = criterion(outputs, labels)
    loss:backward()
    optimizer:step()
    sum, count = sum + loss:item(), count + 1
  end
  print(("Epoch %d: loss = %.4f"):format(epoch, sum / count))
end
