-- SimCLR: two augmented views of an image attract each other, all others repel (NT-Xent).
local dm = require "demilune"
local nn, F, optim, transforms = dm.nn, dm.nn.functional, dm.optim, dm.transforms

local function nt_xent(features, n, temperature)
  local labels = dm.cat{dm.arange(n), dm.arange(n)}
  labels = labels:unsqueeze(1):eq(labels:unsqueeze(2)):float()
  features = F.normalize(features, {dim = 2})
  local similarity_matrix = dm.matmul(features, features:t())
  local mask = dm.eye(labels.shape[1], {dtype = "bool"})
  labels = labels[~mask]:view(labels.shape[1], -1)
  similarity_matrix = similarity_matrix[~mask]:view(similarity_matrix.shape[1], -1)
  local positives = similarity_matrix[labels:bool()]:view(labels.shape[1], -1)
  local negatives = similarity_matrix[~labels:bool()]:view(similarity_matrix.shape[1], -1)
  local logits = dm.cat({positives, negatives}, {dim = 2}) / temperature
  return F.cross_entropy(logits, dm.ones(logits.shape[1], {dtype = "long"}))
end

return function(run)
  local images = run.digits(16, 12)
  local augment = transforms.Compose{
    transforms.RandomResizedCrop(12, {scale = {0.6, 1.0}}),
    transforms.RandomHorizontalFlip(),
    transforms.GaussianBlur(3),
  }
  local encoder = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(),
    nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
  local model = nn.Sequential(encoder, nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8))
  local optimizer = optim.Adam(model:parameters(), {lr = 1e-2, weight_decay = 1e-4})
  local scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, {T_max = 30})
  local losses = {}
  for i = 1, 30 do
    local views = dm.cat{augment(images), augment(images)}
    losses[i] = run.step(optimizer, function() return nt_xent(model(views), 16, 0.2) end)
    scheduler:step()
  end
  local all = dm.tensor(losses)
  return {all[{{1, 5}}]:mean():item(), all[{{-5, -1}}]:mean():item()}
end
