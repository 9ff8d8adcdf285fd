-- A vision transformer: patches by a strided convolution, a class token, learnt positions.
local dm = require "demilune"
local nn, optim = dm.nn, dm.optim

local ViT = nn.Module:extend "ViT"
function ViT:init(image_size, patch_size, dim, depth, heads, num_classes)
  local num_patches = (image_size // patch_size) ^ 2
  self.patches = nn.Conv2d(1, dim, {kernel_size = patch_size, stride = patch_size})
  self.cls_token = nn.Parameter(dm.zeros(1, 1, dim))
  self.pos_embedding = nn.Parameter(dm.randn(1, num_patches + 1, dim) * 0.02)
  local layer = nn.TransformerEncoderLayer(dim, heads, {dim_feedforward = dim * 2, dropout = 0.0,
    activation = "gelu", batch_first = true, norm_first = true})
  self.encoder = nn.TransformerEncoder(layer, {num_layers = depth})
  self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, num_classes))
end
function ViT:forward(x)
  x = self.patches(x):flatten(3):transpose(2, 3)
  x = dm.cat({self.cls_token:expand(x:size(1), -1, -1), x}, {dim = 2})
  x = self.encoder(x + self.pos_embedding)
  return self.head(x[{{}, 1}])
end

return function(run)
  local images, labels = run.digits(32, 8)
  local model = ViT(8, 4, 16, 2, 2, 10):to(run.device)
  local criterion = nn.CrossEntropyLoss{label_smoothing = 0.1}
  local optimizer = optim.AdamW(model:parameters(), {lr = 0.005})
  local scheduler = optim.lr_scheduler.OneCycleLR(optimizer, {max_lr = 0.01, total_steps = 20})
  local losses = {}
  for i = 1, 20 do
    losses[i] = run.step(optimizer, function() return criterion(model(images), labels) end)
    scheduler:step()
  end
  return losses
end
