-- demilune.transforms.functional: the transforms without randomness (torchvision's module of
-- that name). x: an image uint8 {C, H, W} on the CPU, or a batch; resize, pad,
-- center_crop, hflip, vflip, rgb_to_grayscale and the adjustments but sharpness take others
-- too.

local options = require "demilune.options"
local geometry = require "demilune.transforms.geometry"
local colour = require "demilune.transforms.colour"
local step = require "demilune.transforms.step"
local ops = require "demilune.transforms.ops"

local functional = {}

-- perspective(x, startpoints, endpoints, {interpolation =, fill =}): see
-- transforms/perspective.lua, and gaussian_blur(x, kernel_size, sigma) transforms/blur.lua.
functional.perspective = require("demilune.transforms.perspective").perspective
functional.gaussian_blur = require("demilune.transforms.blur").gaussian_blur

-- resize(x, size, opts), pad(x, padding, opts), center_crop(x, size), rgb_to_grayscale(x,
-- num_output_channels): as Resize, Pad, CenterCrop and Grayscale.
function functional.resize(x, ...) return geometry.Resize(...)(x) end
function functional.pad(x, ...) return geometry.Pad(...)(x) end
function functional.center_crop(x, ...) return geometry.CenterCrop(...)(x) end
function functional.rgb_to_grayscale(x, ...) return colour.Grayscale(...)(x) end

-- functional.NAME(img, ...) is fn(o) of the bound arguments.
local function define(name, text, fn)
  local bind = options.signature(name, "img: tensor" .. text)
  functional[name] = function(...) return fn(bind(...)) end
end

define("hflip", "", function(o) return geometry.RandomHorizontalFlip(1)(o.img) end)
define("vflip", "", function(o) return geometry.RandomVerticalFlip(1)(o.img) end)

-- rotate(x, degrees, {interpolation =, fill =}), counter-clockwise.
function functional.rotate(x, degrees, ...)
  return geometry.RandomRotation({degrees, degrees}, ...)(x)
end

define("invert", "", function(o) return colour.RandomInvert(1)(o.img) end)
define("posterize", ", bits: number", function(o)
  return colour.RandomPosterize(o.bits, 1)(o.img)
end)
define("solarize", ", threshold: number", function(o)
  return colour.RandomSolarize(o.threshold, 1)(o.img)
end)
define("autocontrast", "", function(o) return colour.RandomAutocontrast(1)(o.img) end)
define("equalize", "", function(o) return colour.RandomEqualize(1)(o.img) end)
define("adjust_sharpness", ", sharpness_factor: number", function(o)
  return colour.RandomAdjustSharpness(o.sharpness_factor, 1)(o.img)
end)

-- adjust_brightness(x, factor), adjust_contrast, adjust_saturation: 1 leaves x as it is;
-- adjust_hue(x, part): -0.5 to 0.5 of the wheel of colours.
for _, name in ipairs{"brightness", "contrast", "saturation", "hue"} do
  local class = step.class("adjust_" .. name, ops.colour)
  function class:declare()
    return {kind = "RandomAdjust", p = 1, adjust = name, much = self.much}
  end
  local argument = name .. "_factor"
  define("adjust_" .. name, (", %s: number"):format(argument), function(o)
    local much = o[argument]
    local least, most = name == "hue" and -0.5 or 0, name == "hue" and 0.5 or 1e6
    step.range("adjust_" .. name, "factor", {much, much}, least, most)
    return setmetatable({much = much}, class)(o.img)
  end)
end

return functional
