-- Residual networks with torchvision's names.
-- K. He, X. Zhang, S. Ren, J. Sun, "Deep residual learning", 2015.

local nn = require "demilune.nn"
local options = require "demilune.options"

local resnet = {}

local function conv(inputs, outputs, size, stride)
  return nn.Conv2d(inputs, outputs, size, {stride = stride, padding = size // 2, bias = false})
end

local function shortcut(inputs, outputs, stride)
  if stride == 1 and inputs == outputs then return nil end
  return nn.Sequential{conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)}
end

-- A batch norm saves its input, so that its output may change in place.
local function joined(self, y, x)
  return y:add_(self.downsample and self.downsample(x) or x):relu_()
end

-- ---- two 3x3 convolutions with a shortcut ----

--- x (N, inputs, H, W) -> (N, width, H / stride, W / stride).
local BasicBlock = nn.Module:extend "BasicBlock"
BasicBlock.expansion = 1

function BasicBlock:init(inputs, width, stride)
  self.conv1 = conv(inputs, width, 3, stride)
  self.bn1 = nn.BatchNorm2d(width)
  self.conv2 = conv(width, width, 3, 1)
  self.bn2 = nn.BatchNorm2d(width)
  self.downsample = shortcut(inputs, width, stride)
end

function BasicBlock:forward(x)
  local y = self.bn1(self.conv1(x)):relu_()
  return joined(self, self.bn2(self.conv2(y)), x)
end

-- ---- a 3x3 convolution between two of 1x1, with a shortcut ----

--- x (N, inputs, H, W) -> (N, 4 width, H / stride, W / stride). The 3x3 convolution has the
--- stride, as torchvision has it.
local Bottleneck = nn.Module:extend "Bottleneck"
Bottleneck.expansion = 4

function Bottleneck:init(inputs, width, stride)
  local outputs = self.expansion * width
  self.conv1 = conv(inputs, width, 1, 1)
  self.bn1 = nn.BatchNorm2d(width)
  self.conv2 = conv(width, width, 3, stride)
  self.bn2 = nn.BatchNorm2d(width)
  self.conv3 = conv(width, outputs, 1, 1)
  self.bn3 = nn.BatchNorm2d(outputs)
  self.downsample = shortcut(inputs, outputs, stride)
end

function Bottleneck:forward(x)
  local y = self.bn1(self.conv1(x)):relu_()
  y = self.bn2(self.conv2(y)):relu_()
  return joined(self, self.bn3(self.conv3(y)), x)
end

-- ---- ResNet ----

--- x (N, 3, H, W) -> scores (N, num_classes).
local ResNet = nn.Module:extend "ResNet"

-- n blocks; the first strides and comes from `inputs` channels.
local function layer(Block, inputs, width, n, stride)
  local blocks = {Block(inputs, width, stride)}
  for i = 2, n do blocks[i] = Block(Block.expansion * width, width, 1) end
  return nn.Sequential(blocks)
end

-- torchvision's initial weights: K. He et al. 2015, by fan out.
local function initialise(module)
  if module.class == "Conv2d" then
    nn.init.kaiming_normal_(module.weight, {mode = "fan_out", nonlinearity = "relu"})
  end
end

-- depths: how many blocks each of the four layers has.
function ResNet:init(Block, depths, opts)
  if opts.small_stem then
    self.conv1 = conv(3, 64, 3, 1)
  else
    self.conv1 = conv(3, 64, 7, 2)
    self.maxpool = nn.MaxPool2d(3, {stride = 2, padding = 1})
  end
  self.bn1 = nn.BatchNorm2d(64)
  local inputs = 64
  for i, n in ipairs(depths) do
    local width = 64 << i - 1
    self["layer" .. i] = layer(Block, inputs, width, n, i == 1 and 1 or 2)
    inputs = Block.expansion * width
  end
  self.avgpool = nn.AdaptiveAvgPool2d(1)
  self.fc = nn.Linear(inputs, opts.num_classes)
  self:apply(initialise)
end

function ResNet:forward(x)
  x = self.bn1(self.conv1(x)):relu_()
  if self.maxpool then x = self.maxpool(x) end
  x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
  return self.fc(self.avgpool(x):flatten(2))
end

-- resnet18{num_classes = 1000, small_stem = false} -> a module of images
-- (N,3,H,W) that gives (N, num_classes); so resnet34, 50, 101 and 152. small_stem, for
-- images of 32x32: the first convolution is 3x3 with stride 1 instead of 7x7 with
-- stride 2, and no max pool.
for name, how in pairs{
  resnet18 = {BasicBlock, {2, 2, 2, 2}},
  resnet34 = {BasicBlock, {3, 4, 6, 3}},
  resnet50 = {Bottleneck, {3, 4, 6, 3}},
  resnet101 = {Bottleneck, {3, 4, 23, 3}},
  resnet152 = {Bottleneck, {3, 8, 36, 3}},
} do
  resnet[name] = function(opts)
    return ResNet(how[1], how[2], options.read(name, opts,
      {num_classes = 1000, small_stem = false}))
  end
end

return resnet
