-- Gradient accumulation: the gradients of four small batches add up, scaled,
-- and the optimizer steps once, as after one large batch. With clipping, which
-- wants them unscaled: only then, and only once.

package.path = (arg[0]:match "^(.*)/" or ".") .. "/?.lua;" .. package.path
local dm = require "demilune"
local task = require "task"
local nn, optim, amp = dm.nn, dm.optim, dm.amp

local ACCUMULATION_STEPS, MAX_NORM = 4, 1.0

local args = task.options("Gradient accumulation with clipping.", "float16")
local model, loader = task.model(args.device), task.loader(16)
local criterion = nn.CrossEntropyLoss()
local optimizer = optim.SGD(model:parameters(), {lr = 0.2, momentum = 0.9})
local scaler = amp.GradScaler{device = args.device, enabled = args.amp}
local region = {device_type = args.device, dtype = args.dtype, enabled = args.amp}

local function loss_of(inputs, labels)
  return amp.autocast(region, function()
    return criterion(model(inputs:to(args.device)), labels:to(args.device))
  end)
end

local sum, steps = 0, 0
for i, inputs, labels in loader:iter() do
  local _ <close> = dm.scope()
  local loss = loss_of(inputs, labels) / ACCUMULATION_STEPS
  scaler:scale(loss):backward()
  sum = sum + loss:item()
  if i % ACCUMULATION_STEPS == 0 then
    scaler:unscale_(optimizer)
    nn.utils.clip_grad_norm_(model:parameters(), MAX_NORM)
    scaler:step(optimizer)
    scaler:update()
    optimizer:zero_grad()
    steps = steps + 1
    print(("step %d: loss = %.4f"):format(steps, sum))
    sum = 0
  end
end

-- The same gradient as that of the 64 points at once?
local weight = model[1].weight
local function gradient(batch_size)
  optimizer:zero_grad()
  for i, inputs, labels in task.loader(batch_size):iter() do
    if (i - 1) * batch_size >= 64 then break end
    scaler:scale(loss_of(inputs, labels) * (batch_size / 64)):backward()
  end
  return weight.grad:clone() / scaler:get_scale()
end
local apart, whole = gradient(16), gradient(64)
print(("one large batch: gradients differ by %.2g of their norm"):format(
  ((apart - whole):norm() / whole:norm()):item()))
