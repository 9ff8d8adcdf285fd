-- Residual networks with torchvision's names.
-- K. He, X. Zhang, S. Ren, J. Sun, "Deep residual learning", 2015.

local nn = require "demilune.nn"
local options = require "demilune.options"

local resnet = {}

local function conv(inputs, outputs, size, stride)
  return nn.Conv2d(inputs, outputs, size, {stride = stride, padding = size // 2, bias = false})
end

-- ---- two 3x3 convolutions and a way around them ----

local BasicBlock = nn.Module:extend "BasicBlock"

function BasicBlock:init(inputs, outputs, stride)
  self.conv1, self.bn1 = conv(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs)
  self.conv2, self.bn2 = conv(outputs, outputs, 3, 1), nn.BatchNorm2d(outputs)
  if stride ~= 1 or inputs ~= outputs then
    self.downsample = nn.Sequential{conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)}
  end
end

-- A batch norm saves its input, so that its output may change in place.
function BasicBlock:forward(x)
  local y = self.bn1(self.conv1(x)):relu_()
  y = self.bn2(self.conv2(y))
  return y:add_(self.downsample and self.downsample(x) or x):relu_()
end

-- ---- ResNet ----

local ResNet = nn.Module:extend "ResNet"

local function layer(inputs, outputs, stride)
  return nn.Sequential{BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1)}
end

-- torchvision's start: convolutions as K. He et al. 2015, by their outputs.
local function initialise(module)
  if module.class == "Conv2d" then
    nn.init.kaiming_normal_(module.weight, {mode = "fan_out", nonlinearity = "relu"})
  end
end

function ResNet:init(opts)
  if opts.small_stem then
    self.conv1 = conv(3, 64, 3, 1)
  else
    self.conv1 = conv(3, 64, 7, 2)
    self.maxpool = nn.MaxPool2d(3, {stride = 2, padding = 1})
  end
  self.bn1 = nn.BatchNorm2d(64)
  self.layer1, self.layer2 = layer(64, 64, 1), layer(64, 128, 2)
  self.layer3, self.layer4 = layer(128, 256, 2), layer(256, 512, 2)
  self.avgpool = nn.AdaptiveAvgPool2d(1)
  self.fc = nn.Linear(512, opts.num_classes)
  self:apply(initialise)
end

function ResNet:forward(x)
  x = self.bn1(self.conv1(x)):relu_()
  if self.maxpool then x = self.maxpool(x) end
  x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
  return self.fc(self.avgpool(x):flatten(2))
end

-- resnet18{num_classes = 1000, small_stem = false} -> a module of pictures
-- (N,3,H,W) that gives (N, num_classes). small_stem, for pictures of 32x32: the first
-- convolution is 3x3 with stride 1 in place of 7x7 with stride 2, and no max pool.
function resnet.resnet18(opts)
  return ResNet(options.read("resnet18", opts, {num_classes = 1000, small_stem = false}))
end

return resnet
