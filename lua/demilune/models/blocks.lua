-- Blocks that several families of convolutional networks share.

local core = require "demilune.core"
local nn = require "demilune.nn"

local blocks = {}

-- A convolution that keeps the size (but for its stride), its batch norm and, where
-- one is given, its activation.
-- opts: stride (1), groups (1), activation (nn.ReLU6, ...; none).
function blocks.conv_norm(inputs, outputs, size, opts)
  local layers = {
    nn.Conv2d(inputs, outputs, size, {stride = opts.stride or 1, padding = size // 2,
      groups = opts.groups or 1, bias = false}),
    nn.BatchNorm2d(outputs),
  }
  if opts.activation then layers[3] = opts.activation() end
  return nn.Sequential(layers)
end

-- The multiple of 8 next to a number of channels, not less than 9/10 of it: how
-- M. Sandler et al. 2018 round widths.
function blocks.round_width(width)
  local rounded = math.max(8, math.floor(width + 4) // 8 * 8)
  return rounded < 0.9 * width and rounded + 8 or rounded
end

-- torchvision's start of convolutions: K. He et al. 2015, by their outputs; no bias.
function blocks.start_conv(module)
  if module.class ~= "Conv2d" then return end
  nn.init.kaiming_normal_(module.weight, {mode = "fan_out", nonlinearity = "relu"})
  if module.bias then nn.init.zeros_(module.bias) end
end

-- torchvision's start of VGG's and MobileNetV2's layers.
function blocks.start(module)
  blocks.start_conv(module)
  if module.class == "Linear" then
    nn.init.normal_(module.weight, 0, 0.01)
    nn.init.zeros_(module.bias)
  end
end

-- Leaves out whole rows of x with probability p in training, and scales the others
-- so that the mean stays. G. Huang et al. 2016.
local StochasticDepth = nn.Module:extend "StochasticDepth"
blocks.StochasticDepth = StochasticDepth

function StochasticDepth:init(p) self.p = p end

function StochasticDepth:forward(x)
  if not self.training or self.p == 0 then return x end
  local shape = {x:size(1)}
  for d = 2, x:dim() do shape[d] = 1 end
  local ones = core.ones(shape, {dtype = x.dtype, device = x.device})
  return x * core.dropout(ones, {p = self.p, training = true})
end

function StochasticDepth:extra_repr() return ("p = %g"):format(self.p) end

-- Scales each channel by a number from 0 to 1, computed from the means of all channels.
-- J. Hu et al. 2018.
local SqueezeExcitation = nn.Module:extend "SqueezeExcitation"
blocks.SqueezeExcitation = SqueezeExcitation

function SqueezeExcitation:init(channels, squeezed, activation)
  self.avgpool = nn.AdaptiveAvgPool2d(1)
  self.fc1 = nn.Conv2d(channels, squeezed, 1)
  self.fc2 = nn.Conv2d(squeezed, channels, 1)
  self.activation = activation()
end

function SqueezeExcitation:forward(x)
  local share = self.fc2(self.activation(self.fc1(self.avgpool(x)))):sigmoid()
  return x * share
end

return blocks
