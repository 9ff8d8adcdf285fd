-- EfficientNet B0 to B4 with torchvision's names.
-- M. Tan, Q. Le, "EfficientNet: rethinking model scaling", 2019.

local nn = require "demilune.nn"
local options = require "demilune.options"
local blocks = require "demilune.models.blocks"
local layers = require "demilune.vision.layers"

local efficientnet = {}

local function conv(inputs, outputs, size, stride, groups)
  return layers.Conv2dNormActivation(inputs, outputs,
    {kernel_size = size, stride = stride, groups = groups, activation_layer = nn.SiLU})
end

--- Widens by 1x1, filters each channel, weighs channels, narrows by 1x1 without an
--- activation; around them goes what has the same shape, and then they may be left out.
local MBConv = nn.Module:extend "MBConv"

function MBConv:init(inputs, outputs, size, stride, expansion, drop)
  local wide = inputs * expansion
  self.block = nn.Sequential{}
  if expansion ~= 1 then self.block:append(conv(inputs, wide, 1)) end
  self.block:append(conv(wide, wide, size, stride, wide))
  self.block:append(layers.SqueezeExcitation(wide, math.max(1, inputs // 4),
    {activation = nn.SiLU}))
  self.block:append(layers.Conv2dNormActivation(wide, outputs,
    {kernel_size = 1, activation_layer = false}))
  self.around = stride == 1 and inputs == outputs
  self.stochastic_depth = layers.StochasticDepth(drop)
end

function MBConv:forward(x)
  local y = self.block(x)
  return self.around and self.stochastic_depth(y) + x or y
end

-- {expansion, size, stride of the first, channels out, blocks} of B0
local STAGES = {{1, 3, 1, 16, 1}, {6, 3, 2, 24, 2}, {6, 5, 2, 40, 2}, {6, 3, 2, 80, 3},
  {6, 5, 1, 112, 3}, {6, 5, 2, 192, 4}, {6, 3, 1, 320, 1}}

-- {width, depth, dropout}: how the others differ
local VARIANTS = {
  efficientnet_b0 = {1.0, 1.0, 0.2}, efficientnet_b1 = {1.0, 1.1, 0.2},
  efficientnet_b2 = {1.1, 1.2, 0.3}, efficientnet_b3 = {1.2, 1.4, 0.3},
  efficientnet_b4 = {1.4, 1.8, 0.4},
}

--- x (N, 3, H, W) -> scores (N, num_classes).
local EfficientNet = nn.Module:extend "EfficientNet"

local function start(module)
  blocks.start_conv(module)
  if module.class == "Linear" then
    local bound = 1 / math.sqrt(module.weight:size(1))
    nn.init.uniform_(module.weight, -bound, bound)
    nn.init.zeros_(module.bias)
  end
end

-- Later blocks are left out more often: in proportion to those before them.
local function add_stages(features, inputs, width, depth, drop)
  local total, before = 0, 0
  for _, stage in ipairs(STAGES) do total = total + math.ceil(stage[5] * depth) end
  for _, stage in ipairs(STAGES) do
    local expansion, size, stride, channels, n = table.unpack(stage)
    local outputs, list = blocks.round_width(channels * width), nn.Sequential{}
    for i = 1, math.ceil(n * depth) do
      list:append(MBConv(inputs, outputs, size, i == 1 and stride or 1, expansion,
        drop * before / total))
      inputs, before = outputs, before + 1
    end
    features:append(list)
  end
  return inputs
end

function EfficientNet:init(width, depth, o)
  local first = blocks.round_width(32 * width)
  self.features = nn.Sequential{conv(3, first, 3, o.small_stem and 1 or 2)}
  local inputs = add_stages(self.features, first, width, depth, o.stochastic_depth)
  self.features:append(conv(inputs, 4 * inputs, 1))
  self.avgpool = nn.AdaptiveAvgPool2d(1)
  self.classifier = nn.Sequential{nn.Dropout(o.dropout), nn.Linear(4 * inputs, o.num_classes)}
  self:apply(start)
end

function EfficientNet:forward(x)
  return self.classifier(self.avgpool(self.features(x)):flatten(2))
end

-- efficientnet_b0{num_classes = 1000, dropout = 0.2, stochastic_depth = 0.2,
--   small_stem = false} -> a module of images (N,3,H,W) that gives (N, num_classes);
-- so b1 to b4, which are wider and deeper. stochastic_depth: how often the last block
-- would be left out. small_stem, for small images: the first convolution does not
-- stride.
for name, how in pairs(VARIANTS) do
  local bind = options.signature(name, ([[*, num_classes: integer = 1000, dropout: number = %g,
    stochastic_depth: number = 0.2, small_stem: boolean = false]]):format(how[3]))
  efficientnet[name] = function(...) return EfficientNet(how[1], how[2], bind(...)) end
end

return efficientnet
