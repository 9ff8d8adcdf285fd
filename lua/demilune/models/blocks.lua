-- The common parts of several families of convolutional networks: widths and initial weights.

local core = require "demilune.core"
local nn = require "demilune.nn"

local blocks = {}

-- x + delta, and norm, a LayerNorm, of that sum: (..., dim) both, by one op where no hook of the
-- norm would see a call. Without delta x itself, and norm of it.
function blocks.add_norm(norm, x, delta)
  if not delta then return x, norm(x) end
  if norm:is_observed() or norm.forward ~= nn.LayerNorm.forward then
    local sum = x + delta
    return sum, norm(sum)
  end
  return core.add_layer_norm(x, delta, norm.normalized_shape,
    {weight = norm.weight, bias = norm.bias, eps = norm.eps})
end

-- Runs pre-norm blocks, each a module of the class Block, over x (B, T, dim), and gives x and a
-- delta that is still to be added to it, so that a sum and the norm behind it are one op.
-- Block:halves(x, delta, ...) -> x, delta does one block so; where a hook, or another forward,
-- would see its call, it is called as it is. more(i), if given, gives block i's further arguments.
function blocks.run(list, Block, x, more)
  local delta
  more = more or function() end
  for i, block in ipairs(list) do
    if block.forward == Block.forward and not block:is_observed() then
      x, delta = block:halves(x, delta, more(i))
    else
      if delta then x, delta = x + delta, nil end
      x = block(x, more(i))
    end
  end
  return x, delta
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

return blocks
