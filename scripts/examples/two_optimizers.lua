-- Two models in a chain, each with an optimizer of its own, and one scaler: each
-- optimizer decides by itself whether to skip; the scale is updated once.

package.path = (arg[0]:match "^(.*)/" or ".") .. "/?.lua;" .. package.path
local dm = require "demilune"
local task = require "task"
local nn, optim, amp = dm.nn, dm.optim, dm.amp

local args = task.options("Two models, two optimizers, one scaler.", "float16")
local loader = task.loader()
local model1 = nn.Sequential{nn.Linear(task.features, 64), nn.ReLU()}:to(args.device)
local model2 = nn.Linear(64, task.classes):to(args.device)
local opt1 = optim.Adam(model1:parameters(), {lr = 1e-2})
local opt2 = optim.SGD(model2:parameters(), {lr = 0.1})
local criterion = nn.CrossEntropyLoss()
local scaler = amp.GradScaler{device = args.device, enabled = args.amp}
local region = {device_type = args.device, dtype = args.dtype, enabled = args.amp}

for epoch = 1, 3 do
  local sum, count = 0, 0
  for _, inputs, labels in loader:iter() do
    local _ <close> = dm.scope()
    opt1:zero_grad()
    opt2:zero_grad()
    local loss = amp.autocast(region, function()
      local output1 = model1(inputs:to(args.device))
      local output2 = model2(output1)
      return criterion(output2, labels:to(args.device))
    end)
    scaler:scale(loss):backward()
    scaler:step(opt1)
    scaler:step(opt2)
    scaler:update()
    sum, count = sum + loss:item(), count + 1
  end
  print(("Epoch %d: loss = %.4f"):format(epoch, sum / count))
end
