-- Mixed precision in one line, as NVIDIA's apex had it: O0 is float32, O1 runs
-- ops by autocast's lists, O2 keeps a 16-bit model and float32 master weights,
-- O3 is 16 bits throughout.

package.path = (arg[0]:match "^(.*)/" or ".") .. "/?.lua;" .. package.path
local dm = require "demilune"
local task = require "task"
local nn, optim, amp = dm.nn, dm.optim, dm.amp

local args = task.options("Mixed precision in one line.", "float16", function(parser)
  parser:option("--opt_level", "how mixed"):choices{"O0", "O1", "O2", "O3"}:default "O1"
end)
local loader, criterion = task.loader(), nn.CrossEntropyLoss()
local model = task.model(args.device)
local optimizer = optim.SGD(model:parameters(), {lr = 0.1, momentum = 0.9})

model, optimizer = amp.initialize(model, optimizer, {opt_level = args.opt_level})

print(("%s: weights %s"):format(args.opt_level, model[1].weight.dtype))
for epoch = 1, 3 do
  local sum, count = 0, 0
  for _, inputs, labels in loader:iter() do
    local _ <close> = dm.scope()
    optimizer:zero_grad()
    local loss = criterion(model(inputs:to(args.device)), labels:to(args.device))
    do
      local scaled_loss <close> = amp.scale_loss(loss, optimizer)
      scaled_loss:backward()
    end
    optimizer:step()
    sum, count = sum + loss:item(), count + 1
  end
  print(("Epoch %d: loss = %.4f"):format(epoch, sum / count))
end
