-- ImageNet training: a ResNet with meters, top-k accuracy, SGD with momentum and milestones.
local dm = require "demilune"
local nn, optim = dm.nn, dm.optim

local AverageMeter = {}
AverageMeter.__index = AverageMeter
function AverageMeter.new(name)
  return setmetatable({name = name, sum = 0, count = 0}, AverageMeter)
end
function AverageMeter:update(value, n)
  self.sum, self.count = self.sum + value * n, self.count + n
  self.avg = self.sum / self.count
end
function AverageMeter:__tostring() return ("%s %.3f"):format(self.name, self.avg) end

-- The accuracy in percent over the k best guesses, for each k.
local function accuracy(output, target, topk)
  return dm.no_grad(function()
    local maxk = math.max(table.unpack(topk))
    local _, pred = output:topk(maxk, 2, true, true)
    pred = pred:t()
    local correct = pred:eq(target:view(1, -1):expand_as(pred))
    local res = {}
    for i, k in ipairs(topk) do
      local correct_k = correct[{{1, k}}]:reshape(-1):float():sum(1, {keepdim = true})
      res[i] = correct_k:mul_(100 / #target)
    end
    return res
  end)
end

return function(run)
  local images, labels = run.digits(16, 8)
  images = images:expand(-1, 3, -1, -1)
  local model = dm.models.resnet18{num_classes = 10}
  model:to(run.device)
  local criterion = nn.CrossEntropyLoss():to(run.device)
  local optimizer = optim.SGD(model:parameters(), {lr = 0.02, momentum = 0.9, weight_decay = 1e-4})
  local scheduler = optim.lr_scheduler.MultiStepLR(optimizer, {4, 6}, 0.1)
  local top1, top5, losses = AverageMeter.new "Acc@1", AverageMeter.new "Acc@5", {}
  model:train()
  for epoch = 1, 4 do
    local output
    losses[epoch] = run.step(optimizer, function()
      output = model(images)
      return criterion(output, labels)
    end)
    local acc1, acc5 = table.unpack(accuracy(output, labels, {1, 5}))
    top1:update(acc1:item(), images:size(1))
    top5:update(acc5[1]:item(), images:size(1))
    scheduler:step()
  end
  assert(top5.avg >= top1.avg and top5.avg > 50, tostring(top5))
  return losses
end
