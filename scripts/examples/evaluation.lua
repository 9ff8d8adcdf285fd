-- Evaluation in mixed precision: eval mode, no recording, the region; no scaler,
-- as there is no backward.

package.path = (arg[0]:match "^(.*)/" or ".") .. "/?.lua;" .. package.path
local dm = require "demilune"
local task = require "task"
local nn, optim, amp = dm.nn, dm.optim, dm.amp

local args = task.options("Evaluation in mixed precision.", "bfloat16")
local model, loader = task.model(args.device), task.loader()
local criterion = nn.CrossEntropyLoss()
local optimizer = optim.Adam(model:parameters(), {lr = 1e-2})
local region = {device_type = args.device, dtype = args.dtype, enabled = args.amp}

for _ = 1, 3 do
  for _, inputs, labels in loader:iter() do
    local _ <close> = dm.scope()
    optimizer:zero_grad()
    criterion(model(inputs:to(args.device)), labels:to(args.device)):backward()
    optimizer:step()
  end
end

-- A function that runs in a region at each call.
local forward = amp.autocast(region):wrap(function(inputs, labels)
  local outputs = model(inputs)
  return outputs, criterion(outputs, labels)
end)

local function evaluate()
  local sum, right, total, dtype = 0, 0, 0, nil
  for _, inputs, labels in loader:iter() do
    local _ <close> = dm.scope()
    inputs, labels = inputs:to(args.device), labels:to(args.device)
    local outputs, loss = forward(inputs, labels)
    sum = sum + loss:item() * #inputs
    right = right + outputs:argmax(-1):eq(labels):sum():item()
    total, dtype = total + #inputs, outputs.dtype
  end
  return sum / total, 100 * right / total, dtype
end

model:eval()
local loss, accuracy, dtype = dm.no_grad(evaluate)
print(("outputs %s: loss = %.4f, accuracy %.2f %%"):format(dtype, loss, accuracy))
