-- MobileNetV2 with torchvision's names.
-- M. Sandler, A. Howard, M. Zhu, A. Zhmoginov, L.-C. Chen, "MobileNetV2", 2018.

local nn = require "demilune.nn"
local options = require "demilune.options"
local blocks = require "demilune.models.blocks"
local layers = require "demilune.vision.layers"

local mobilenet = {}

local function conv(inputs, outputs, size, stride, groups)
  return layers.Conv2dNormActivation(inputs, outputs,
    {kernel_size = size, stride = stride, groups = groups, activation_layer = nn.ReLU6})
end

--- Widens by 1x1, filters each channel by 3x3, narrows by 1x1 without an activation;
--- around them goes what has the same shape.
local InvertedResidual = nn.Module:extend "InvertedResidual"

function InvertedResidual:init(inputs, outputs, stride, expansion)
  local wide = inputs * expansion
  self.around = stride == 1 and inputs == outputs
  self.conv = nn.Sequential{}
  if expansion ~= 1 then self.conv:append(conv(inputs, wide, 1)) end
  self.conv:append(conv(wide, wide, 3, stride, wide))
  self.conv:append(nn.Conv2d(wide, outputs, 1, {bias = false}))
  self.conv:append(nn.BatchNorm2d(outputs))
end

-- A batch norm saves its input, so that its output may change in place.
function InvertedResidual:forward(x)
  local y = self.conv(x)
  return self.around and y:add_(x) or y
end

-- {expansion, channels out, blocks, stride of the first}
local STAGES = {{1, 16, 1, 1}, {6, 24, 2, 2}, {6, 32, 3, 2}, {6, 64, 4, 2}, {6, 96, 3, 1},
  {6, 160, 3, 2}, {6, 320, 1, 1}}

--- x (N, 3, H, W) -> scores (N, num_classes).
local MobileNetV2 = nn.Module:extend "MobileNetV2"

function MobileNetV2:init(o)
  local inputs = blocks.round_width(32 * o.width_mult)
  local last = blocks.round_width(1280 * math.max(1, o.width_mult))
  self.features = nn.Sequential{conv(3, inputs, 3, o.small_stem and 1 or 2)}
  for _, stage in ipairs(STAGES) do
    local expansion, width, n, stride = table.unpack(stage)
    local outputs = blocks.round_width(width * o.width_mult)
    for i = 1, n do
      self.features:append(InvertedResidual(inputs, outputs, i == 1 and stride or 1, expansion))
      inputs = outputs
    end
  end
  self.features:append(conv(inputs, last, 1))
  self.classifier = nn.Sequential{nn.Dropout(o.dropout), nn.Linear(last, o.num_classes)}
  self:apply(blocks.start)
end

function MobileNetV2:forward(x)
  return self.classifier(self.features(x):mean({3, 4}))
end

--- mobilenet_v2{num_classes = 1000, width_mult = 1.0, dropout = 0.2, small_stem = false}
--- -> a module of images (N,3,H,W) that gives (N, num_classes). width_mult: how wide
--- the layers are. small_stem, for small images: the first convolution does not
--- stride.
local bind = options.signature("mobilenet_v2", [[*, num_classes: integer = 1000,
  width_mult: number = 1.0, dropout: number = 0.2, small_stem: boolean = false]])
function mobilenet.mobilenet_v2(...) return MobileNetV2(bind(...)) end

return mobilenet
