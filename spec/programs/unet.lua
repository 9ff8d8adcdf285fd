-- U-Net segmentation: double convolutions, skip connections, cross-entropy with a Dice loss.
local dm = require "demilune"
local nn, F, optim = dm.nn, dm.nn.functional, dm.optim

local DoubleConv = nn.Module:extend "DoubleConv"
function DoubleConv:init(in_channels, out_channels)
  self.double_conv = nn.Sequential(
    nn.Conv2d(in_channels, out_channels, {kernel_size = 3, padding = 1, bias = false}),
    nn.BatchNorm2d(out_channels),
    nn.ReLU{inplace = true},
    nn.Conv2d(out_channels, out_channels, {kernel_size = 3, padding = 1, bias = false}),
    nn.BatchNorm2d(out_channels),
    nn.ReLU{inplace = true}
  )
end
function DoubleConv:forward(x) return self.double_conv(x) end

local Up = nn.Module:extend "Up"
function Up:init(in_channels, out_channels)
  self.up = nn.ConvTranspose2d(in_channels, in_channels // 2, {kernel_size = 2, stride = 2})
  self.conv = DoubleConv(in_channels, out_channels)
end
function Up:forward(x1, x2)
  x1 = self.up(x1)
  local diffY, diffX = x2:size()[3] - x1:size()[3], x2:size()[4] - x1:size()[4]
  x1 = F.pad(x1, {diffX // 2, diffX - diffX // 2, diffY // 2, diffY - diffY // 2})
  return self.conv(dm.cat({x2, x1}, {dim = 2}))
end

local UNet = nn.Module:extend "UNet"
function UNet:init(n_channels, n_classes)
  self.inc = DoubleConv(n_channels, 6)
  self.down = nn.Sequential(nn.MaxPool2d(2), DoubleConv(6, 12))
  self.up = Up(12, 6)
  self.outc = nn.Conv2d(6, n_classes, {kernel_size = 1})
end
function UNet:forward(x)
  local x1 = self.inc(x)
  local x2 = self.down(x1)
  return self.outc(self.up(x2, x1))
end

local function dice_loss(input, target)
  local inter = 2 * (input * target):sum{dim = {3, 4}}
  local sets_sum = input:sum{dim = {3, 4}} + target:sum{dim = {3, 4}}
  return 1 - ((inter + 1e-6) / (sets_sum + 1e-6)):mean()
end

return function(run)
  local noise = dm.rand(6, 1, 13, 13)
  local image = F.avg_pool2d(noise, 5, {stride = 1, padding = 2}) + noise * 0.02
  local mask = image:gt(image:median()):squeeze(2):long() + 1
  local model = UNet(1, 2):to(run.device)
  local criterion = nn.CrossEntropyLoss()
  local optimizer = optim.RMSprop(model:parameters(), {lr = 2e-3, momentum = 0.9, foreach = true})
  local losses = {}
  for i = 1, 12 do
    losses[i] = run.step(optimizer, function()
      local masks_pred = model(image)
      local loss = criterion(masks_pred, mask)
      return loss + dice_loss(F.softmax(masks_pred, {dim = 2}):float(),
        F.one_hot(mask, 2):permute(1, 4, 2, 3):float())
    end, {clip = 1.0, model = model})
  end
  return losses
end
