-- VGG networks with torchvision's names.
-- K. Simonyan, A. Zisserman, "Very deep convolutional networks", 2015.

local nn = require "demilune.nn"
local options = require "demilune.options"
local blocks = require "demilune.models.blocks"

local vgg = {}

-- The number of convolutions of 64, 128, 256, 512 and 512 channels before each pool.
local DEPTHS = {
  vgg11 = {1, 1, 2, 2, 2}, vgg13 = {2, 2, 2, 2, 2}, vgg16 = {2, 2, 3, 3, 3},
  vgg19 = {2, 2, 4, 4, 4},
}
local WIDTHS = {64, 128, 256, 512, 512}

--- x (N, 3, H, W) -> scores (N, num_classes).
local VGG = nn.Module:extend "VGG"

local function features(depths, batch_norm)
  local layers, inputs = {}, 3
  for i, n in ipairs(depths) do
    for _ = 1, n do
      layers[#layers + 1] = nn.Conv2d(inputs, WIDTHS[i], 3, {padding = 1})
      if batch_norm then layers[#layers + 1] = nn.BatchNorm2d(WIDTHS[i]) end
      layers[#layers + 1] = nn.ReLU()
      inputs = WIDTHS[i]
    end
    layers[#layers + 1] = nn.MaxPool2d(2)
  end
  return nn.Sequential(layers)
end

function VGG:init(depths, batch_norm, o)
  self.features = features(depths, batch_norm)
  local side = o.small_head and 1 or 7
  self.avgpool = nn.AdaptiveAvgPool2d(side)
  if o.small_head then
    self.classifier = nn.Sequential{nn.Dropout(o.dropout), nn.Linear(512, o.num_classes)}
  else
    self.classifier = nn.Sequential{
      nn.Linear(512 * side * side, 4096), nn.ReLU(), nn.Dropout(o.dropout),
      nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(o.dropout), nn.Linear(4096, o.num_classes),
    }
  end
  self:apply(blocks.start)
end

function VGG:forward(x)
  return self.classifier(self.avgpool(self.features(x)):flatten(2))
end

-- vgg16{num_classes = 1000, dropout = 0.5, small_head = false} -> a module of images
-- (N,3,H,W) that gives (N, num_classes); so vgg11, 13 and 19, and with batch norms
-- vgg11_bn to vgg19_bn. small_head, for images of 32x32: one linear layer instead of
-- three, which hold 9 of 10 parameters.
for name, depths in pairs(DEPTHS) do
  for _, batch_norm in ipairs{false, true} do
    local full = batch_norm and name .. "_bn" or name
    local bind = options.signature(full, [[*, num_classes: integer = 1000,
      dropout: number = 0.5, small_head: boolean = false]])
    vgg[full] = function(...) return VGG(depths, batch_norm, bind(...)) end
  end
end

return vgg
