-- MNIST: a small CNN with dropout, Adadelta and StepLR.
local dm = require "demilune"
local nn, F, optim, data = dm.nn, dm.nn.functional, dm.optim, dm.data

local Net = nn.Module:extend "Net"
function Net:init()
  self.conv1 = nn.Conv2d(1, 8, 3, 1)
  self.conv2 = nn.Conv2d(8, 16, 3, 1)
  self.dropout1 = nn.Dropout(0.25)
  self.dropout2 = nn.Dropout(0.5)
  self.fc1 = nn.Linear(16 * 4 * 4, 32)
  self.fc2 = nn.Linear(32, 10)
end
function Net:forward(x)
  x = F.relu(self.conv1(x))
  x = F.relu(self.conv2(x))
  x = F.max_pool2d(x, 2)
  x = self.dropout1(x)
  x = dm.flatten(x, 2)
  x = F.relu(self.fc1(x))
  x = self.dropout2(x)
  return F.log_softmax(self.fc2(x), -1)
end

local function test(run, model, loader)
  model:eval()
  local loss, correct = 0, 0
  do
    local _ <close> = dm.no_grad()
    local _ <close> = run.autocast()
    for _, images, target in loader do
      images, target = images:to(run.device), target:to(run.device)
      local output = model(images)
      loss = loss + F.nll_loss(output, target, {reduction = "sum"}):item()
      local pred = output:argmax(2, {keepdim = true})
      correct = correct + pred:eq(target:view_as(pred)):sum():item()
    end
  end
  return loss / #loader.dataset, correct / #loader.dataset
end

return function(run)
  local images, labels = run.digits(80, 12)
  local set = data.TensorDataset(images, labels)
  local train_loader = data.DataLoader(set, {batch_size = 16, shuffle = true, drop_last = true})
  local test_loader = data.DataLoader(set, {batch_size = 40})
  local model = Net():to(run.device)
  local optimizer = optim.Adadelta(model:parameters(), {lr = 1.0})
  local scheduler = optim.lr_scheduler.StepLR(optimizer, {step_size = 1, gamma = 0.9})
  local losses = {(test(run, model, test_loader))}
  for _ = 1, 8 do
    model:train()
    for _, x, target in train_loader do
      x, target = x:to(run.device), target:to(run.device)
      run.step(optimizer, function() return F.nll_loss(model(x), target) end)
    end
    scheduler:step()
    losses[#losses + 1] = test(run, model, test_loader)
  end
  local _, accuracy = test(run, model, test_loader)
  assert(accuracy > 0.8, accuracy)
  return losses
end
