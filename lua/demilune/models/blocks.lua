-- The common parts of several families of convolutional networks: widths and initial weights.

local nn = require "demilune.nn"

local blocks = {}

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

return blocks
