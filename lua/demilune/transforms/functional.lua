-- demilune.transforms.functional: the transforms without randomness (torchvision's module of
-- that name). x: an image uint8 {C, H, W} on the CPU, or a batch; resize, pad,
-- center_crop, hflip, vflip, rgb_to_grayscale and the adjustments but sharpness take others
-- too.

local geometry = require "demilune.transforms.geometry"
local colour = require "demilune.transforms.colour"
local step = require "demilune.transforms.step"
local ops = require "demilune.transforms.ops"

local functional = {}

-- resize(x, size, opts), pad(x, padding, opts), center_crop(x, size), rgb_to_grayscale(x,
-- num_output_channels): as Resize, Pad, CenterCrop and Grayscale.
function functional.resize(x, ...) return geometry.Resize(...)(x) end
function functional.pad(x, ...) return geometry.Pad(...)(x) end
function functional.center_crop(x, ...) return geometry.CenterCrop(...)(x) end
function functional.rgb_to_grayscale(x, ...) return colour.Grayscale(...)(x) end
function functional.hflip(x) return geometry.RandomHorizontalFlip(1)(x) end
function functional.vflip(x) return geometry.RandomVerticalFlip(1)(x) end

-- rotate(x, degrees, {interpolation =, fill =}), counter-clockwise.
function functional.rotate(x, degrees, opts)
  return geometry.RandomRotation({degrees, degrees}, opts)(x)
end

function functional.invert(x) return colour.RandomInvert(1)(x) end
function functional.posterize(x, bits) return colour.RandomPosterize(bits, 1)(x) end
function functional.solarize(x, threshold) return colour.RandomSolarize(threshold, 1)(x) end
function functional.autocontrast(x) return colour.RandomAutocontrast(1)(x) end
function functional.equalize(x) return colour.RandomEqualize(1)(x) end
function functional.adjust_sharpness(x, factor)
  return colour.RandomAdjustSharpness(factor, 1)(x)
end

-- adjust_brightness(x, factor), adjust_contrast, adjust_saturation: 1 leaves x as it is;
-- adjust_hue(x, part): -0.5 to 0.5 of the wheel of colours.
for _, name in ipairs{"brightness", "contrast", "saturation", "hue"} do
  local class = step.class("adjust_" .. name, ops.colour)
  function class:declare()
    return {kind = "RandomAdjust", p = 1, adjust = name, much = self.much}
  end
  functional["adjust_" .. name] = function(x, much)
    local least, most = name == "hue" and -0.5 or 0, name == "hue" and 0.5 or 1e6
    step.range("adjust_" .. name, "factor", {much, much}, least, most)
    return setmetatable({much = much}, class)(x)
  end
end

return functional
