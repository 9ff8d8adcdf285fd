-- Residual networks with torchvision's names: K. He, X. Zhang, S. Ren, J. Sun, "Deep residual
-- learning", 2015; ResNeXt, whose 3x3 convolutions have groups: S. Xie et al. 2017; wide ones:
-- S. Zagoruyko, N. Komodakis 2016.

local nn = require "demilune.nn"
local options = require "demilune.options"

local resnet = {}

local then_relu = nn.Module.then_relu

local function conv(inputs, outputs, size, stride, groups)
  return nn.Conv2d(inputs, outputs, size,
    {stride = stride, padding = size // 2, groups = groups or 1, bias = false})
end

-- Its backward pass does not read the output of the layer before, a batch norm or a sum.
local function relu() return nn.ReLU{inplace = true} end

local function shortcut(inputs, outputs, stride)
  if stride == 1 and inputs == outputs then return nil end
  return nn.Sequential{conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)}
end

-- A batch norm saves its input, so that its output may change in place.
local function joined(self, y, x)
  return nn.Module.add_then_relu(self.relu, y, self.downsample and self.downsample(x) or x)
end

-- Frees the handle of an activation between two convolutions, where nobody else has it.
local function freed(self, y)
  local last = self.conv3 or self.conv2
  if nn.Module.hold_nothing(self.bn1, self.relu, self.conv2, last) then y:free() end
end

-- ---- two 3x3 convolutions with a shortcut ----

--- x (N, inputs, H, W) -> (N, width, H / stride, W / stride).
local BasicBlock = nn.Module:extend "BasicBlock"
BasicBlock.expansion = 1

function BasicBlock:init(inputs, width, stride)
  self.conv1 = conv(inputs, width, 3, stride)
  self.bn1 = nn.BatchNorm2d(width)
  self.relu = relu()
  self.conv2 = conv(width, width, 3, 1)
  self.bn2 = nn.BatchNorm2d(width)
  self.downsample = shortcut(inputs, width, stride)
end

function BasicBlock:forward(x)
  local y = then_relu(self.bn1, self.relu, self.conv1(x))
  local z = self.conv2(y)
  freed(self, y)
  return joined(self, self.bn2(z), x)
end

-- ---- a 3x3 convolution between two of 1x1, with a shortcut ----

--- x (N, inputs, H, W) -> (N, 4 width, H / stride, W / stride). The 3x3 convolution has the
--- stride, as torchvision has it, and groups, each of width * group_width // 64 channels.
local Bottleneck = nn.Module:extend "Bottleneck"
Bottleneck.expansion = 4

function Bottleneck:init(inputs, width, stride, groups, group_width)
  local outputs, inner = self.expansion * width, width * group_width // 64 * groups
  self.conv1 = conv(inputs, inner, 1, 1)
  self.bn1 = nn.BatchNorm2d(inner)
  self.conv2 = conv(inner, inner, 3, stride, groups)
  self.bn2 = nn.BatchNorm2d(inner)
  self.conv3 = conv(inner, outputs, 1, 1)
  self.bn3 = nn.BatchNorm2d(outputs)
  self.relu = relu()
  self.downsample = shortcut(inputs, outputs, stride)
end

function Bottleneck:forward(x)
  local y = then_relu(self.bn1, self.relu, self.conv1(x))
  local z = self.conv2(y)
  freed(self, y)
  z = then_relu(self.bn2, self.relu, z)
  y = self.conv3(z)
  freed(self, z)
  return joined(self, self.bn3(y), x)
end

-- ---- ResNet ----

--- x (N, 3, H, W) -> scores (N, num_classes).
local ResNet = nn.Module:extend "ResNet"

-- n blocks; the first strides and comes from `inputs` channels.
local function layer(how, inputs, width, n, stride)
  local Block, blocks = how.block, {}
  for i = 1, n do
    blocks[i] = Block(i == 1 and inputs or Block.expansion * width, width, i == 1 and stride or 1,
      how.groups or 1, how.group_width or 64)
  end
  return nn.Sequential(blocks)
end

-- torchvision's initial weights: K. He et al. 2015, by fan out.
local function initialise(module)
  if module.class == "Conv2d" then
    nn.init.kaiming_normal_(module.weight, {mode = "fan_out", nonlinearity = "relu"})
  end
end

-- how: block, and how many of them each of the four layers has; groups and group_width of
-- Bottleneck.
function ResNet:init(how, opts)
  local small = opts.small_stem
  self.conv1 = small and conv(3, 64, 3, 1) or conv(3, 64, 7, 2)
  self.bn1 = nn.BatchNorm2d(64)
  self.relu = relu()
  self.maxpool = small and nn.Identity() or nn.MaxPool2d(3, {stride = 2, padding = 1})
  local inputs = 64
  for i, n in ipairs(how) do
    local width = 64 << i - 1
    self["layer" .. i] = layer(how, inputs, width, n, i == 1 and 1 or 2)
    inputs = how.block.expansion * width
  end
  self.avgpool = nn.AdaptiveAvgPool2d(1)
  self.fc = nn.Linear(inputs, opts.num_classes)
  self:apply(initialise)
end

function ResNet:forward(x)
  x = self.maxpool(then_relu(self.bn1, self.relu, self.conv1(x)))
  x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
  return self.fc(self.avgpool(x):flatten(2))
end

-- resnet18{num_classes = 1000, small_stem = false} -> a module of images
-- (N,3,H,W) that gives (N, num_classes); so resnet34, 50, 101 and 152, the ResNeXts and the wide
-- ones. small_stem, for images of 32x32: the first convolution is 3x3 with stride 1 instead of
-- 7x7 with stride 2, and no max pool.
for name, how in pairs{
  resnet18 = {block = BasicBlock, 2, 2, 2, 2},
  resnet34 = {block = BasicBlock, 3, 4, 6, 3},
  resnet50 = {block = Bottleneck, 3, 4, 6, 3},
  resnet101 = {block = Bottleneck, 3, 4, 23, 3},
  resnet152 = {block = Bottleneck, 3, 8, 36, 3},
  resnext50_32x4d = {block = Bottleneck, groups = 32, group_width = 4, 3, 4, 6, 3},
  resnext101_32x8d = {block = Bottleneck, groups = 32, group_width = 8, 3, 4, 23, 3},
  resnext101_64x4d = {block = Bottleneck, groups = 64, group_width = 4, 3, 4, 23, 3},
  wide_resnet50_2 = {block = Bottleneck, group_width = 128, 3, 4, 6, 3},
  wide_resnet101_2 = {block = Bottleneck, group_width = 128, 3, 4, 23, 3},
} do
  local bind = options.signature(name,
    "*, num_classes: integer = 1000, small_stem: boolean = false")
  resnet[name] = function(...) return ResNet(how, bind(...)) end
end

return resnet
