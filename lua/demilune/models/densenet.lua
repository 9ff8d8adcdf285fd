-- DenseNet with torchvision's names: each layer sees the outputs of all layers before it.
-- G. Huang, Z. Liu, L. van der Maaten, K. Weinberger, "Densely connected convolutional
-- networks", 2017.

local core = require "demilune.core"
local nn = require "demilune.nn"
local options = require "demilune.options"

local densenet = {}

local function relu() return nn.ReLU{inplace = true} end

--- A list of features (N, C_i, H, W) -> (N, growth_rate, H, W), from all of their channels.
local DenseLayer = nn.Module:extend "_DenseLayer"

function DenseLayer:init(inputs, o)
  local inner = o.bn_size * o.growth_rate
  self.norm1 = nn.BatchNorm2d(inputs)
  self.relu1 = relu()
  self.conv1 = nn.Conv2d(inputs, inner, 1, {bias = false})
  self.norm2 = nn.BatchNorm2d(inner)
  self.relu2 = relu()
  self.conv2 = nn.Conv2d(inner, o.growth_rate, 3, {padding = 1, bias = false})
  self.drop_rate = o.drop_rate
end

function DenseLayer:forward(features)
  local y = self.conv1(self.relu1(self.norm1(core.cat(features, 2))))
  y = self.conv2(self.relu2(self.norm2(y)))
  if self.drop_rate == 0 then return y end
  return core.dropout(y, {p = self.drop_rate, training = self.training})
end

--- x (N, inputs, H, W) -> (N, inputs + n growth_rate, H, W), by n layers.
local DenseBlock = nn.Module:extend "_DenseBlock"

function DenseBlock:init(inputs, n, o)
  for i = 1, n do
    self["denselayer" .. i] = DenseLayer(inputs + (i - 1) * o.growth_rate, o)
  end
end

function DenseBlock:forward(x)
  local features = {x}
  for _, layer in self:named_children() do features[#features + 1] = layer(features) end
  return core.cat(features, 2)
end

-- Half of the channels, half of the height and width.
local Transition = nn.Sequential:extend "_Transition"

function Transition:init(inputs)
  self.norm = nn.BatchNorm2d(inputs)
  self.relu = relu()
  self.conv = nn.Conv2d(inputs, inputs // 2, 1, {bias = false})
  self.pool = nn.AvgPool2d(2)
end

--- x (N, 3, H, W) -> scores (N, num_classes).
local DenseNet = nn.Module:extend "DenseNet"

local function start(module)
  if module.class == "Conv2d" then
    nn.init.kaiming_normal_(module.weight)
  elseif module.class == "Linear" then
    nn.init.zeros_(module.bias)
  end
end

-- depths: how many layers each of the four blocks has.
function DenseNet:init(depths, first, o)
  self.features = nn.Sequential{
    {"conv0", nn.Conv2d(3, first, 7, {stride = 2, padding = 3, bias = false})},
    {"norm0", nn.BatchNorm2d(first)},
    {"relu0", relu()},
    {"pool0", nn.MaxPool2d(3, {stride = 2, padding = 1})},
  }
  local inputs = first
  for i, n in ipairs(depths) do
    self.features["denseblock" .. i] = DenseBlock(inputs, n, o)
    inputs = inputs + n * o.growth_rate
    if i < #depths then
      self.features["transition" .. i] = Transition(inputs)
      inputs = inputs // 2
    end
  end
  self.features.norm5 = nn.BatchNorm2d(inputs)
  self.classifier = nn.Linear(inputs, o.num_classes)
  self:apply(start)
end

function DenseNet:forward(x)
  return self.classifier(self.features(x):relu_():mean({3, 4}))
end

--- Takes torchvision's files too, which have a dot in the names of a layer's parts: "norm.1".
function DenseNet.known_names(_, state)
  local own = {}
  for name, t in pairs(state) do
    if type(name) == "string" then
      name = name:gsub("(%.denselayer%d+%.%l+)%.([12]%.)", "%1%2")
    end
    own[name] = t
  end
  return own
end

-- A builder: NAME{num_classes = 1000, growth_rate =, bn_size = 4, drop_rate = 0} -> a module of
-- images (N,3,H,W) that gives (N, num_classes). growth_rate: the channels that each layer adds;
-- bn_size: how many times as many its 1x1 convolution makes; drop_rate: of a layer's output.
local function builder(name, growth_rate, first, ...)
  local depths = {...}
  local bind = options.signature(name, ([[*, num_classes: integer = 1000,
    growth_rate: integer = %d, bn_size: integer = 4, drop_rate: number = 0.0]]):format(
    growth_rate))
  densenet[name] = function(...) return DenseNet(depths, first, bind(...)) end
end
builder("densenet121", 32, 64, 6, 12, 24, 16)
builder("densenet161", 48, 96, 6, 12, 36, 24)
builder("densenet169", 32, 64, 6, 12, 32, 32)
builder("densenet201", 32, 64, 6, 12, 48, 32)

return densenet
