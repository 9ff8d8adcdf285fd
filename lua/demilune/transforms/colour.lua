-- Transforms of colours, and RandAugment.

local caller = require "demilune.caller"
local options = require "demilune.options"
local step = require "demilune.transforms.step"
local ops = require "demilune.transforms.ops"

local colour = {}

-- ---- ColorJitter ----

local JITTER = {"brightness", "contrast", "saturation", "hue"}
local NEUTRAL = {brightness = 1, contrast = 1, saturation = 1, hue = 0}

local ColorJitter = step.class("ColorJitter", ops.colour)

function ColorJitter:declare()
  local flat = {}
  for _, name in ipairs(JITTER) do
    flat[#flat + 1], flat[#flat + 2] = self[name][1], self[name][2]
  end
  return {kind = "ColorJitter", jitter = flat}
end

function ColorJitter:describe()
  local words = {}
  for i, name in ipairs(JITTER) do
    words[i] = ("%s = {%s}"):format(name, step.words(self[name]))
  end
  return table.concat(words, ", ")
end

-- ColorJitter{brightness = 0, contrast = 0, saturation = 0, hue = 0}: the four, in an order
-- drawn, by factors drawn: n: 1 - n to 1 + n, 0 at least (hue: -n to n, up to 0.5); or
-- {low, high}.
local bind_jitter = options.signature("ColorJitter", [[brightness: number|numbers = 0,
  contrast: number|numbers = 0, saturation: number|numbers = 0, hue: number|numbers = 0]])
function colour.ColorJitter(...)
  local opts = bind_jitter(...)
  for _, name in ipairs(JITTER) do
    local v, neutral = opts[name], NEUTRAL[name]
    if type(v) == "number" then
      if v < 0 then caller.raise("ColorJitter: %s is %g, wanted 0 or more", name, v) end
      v = {neutral == 1 and math.max(0, 1 - v) or -v, neutral + v}
    end
    opts[name] = step.range("ColorJitter", name, v, neutral - (neutral == 1 and 1 or 0.5),
      neutral == 1 and 1e6 or 0.5)
  end
  return setmetatable(opts, ColorJitter)
end

-- ---- greys ----

local Grayscale = step.class("Grayscale", ops.colour)
function Grayscale:declare() return {kind = "Grayscale", channels = self.channels} end
function Grayscale:describe() return tostring(self.channels) end

-- Grayscale(num_output_channels = 1): without colour; 3: as three equal channels.
local bind_grey = options.signature("Grayscale", "num_output_channels: integer = 1")
function colour.Grayscale(...)
  local channels = bind_grey(...).num_output_channels
  if channels ~= 1 and channels ~= 3 then
    caller.raise("Grayscale: num_output_channels is %s, wanted 1 or 3", tostring(channels))
  end
  return setmetatable({channels = channels}, Grayscale)
end

local RandomGrayscale = step.class("RandomGrayscale", ops.colour)
function RandomGrayscale:declare() return {kind = "RandomGrayscale", p = self.p} end
function RandomGrayscale:describe() return ("p = %g"):format(self.p) end

-- RandomGrayscale(p = 0.1): with this probability without colour; as many channels.
local bind_random_grey = options.signature("RandomGrayscale", "p: number = 0.1")
function colour.RandomGrayscale(...)
  return setmetatable({p = step.probability("RandomGrayscale", bind_random_grey(...).p)},
    RandomGrayscale)
end

-- ---- one adjustment, with a probability ----

-- A constructor (p) or (much, p); much lies within least and most.
local function adjustment(name, adjust, argument, least, most)
  local class = step.class(name)
  function class:declare()
    return {kind = "RandomAdjust", p = self.p, adjust = adjust, much = self.much}
  end
  function class:describe()
    return ("%sp = %g"):format(argument and ("%g, "):format(self.much) or "", self.p)
  end
  local bind = options.signature(name, (argument and argument .. ": number, " or "")
    .. "p: number = 0.5")
  return function(...)
    local o = bind(...)
    local much = o[argument or "p"]
    if argument and not (much >= least and much <= most) then
      caller.raise("%s: %s is %s, wanted %g to %g", name, argument, tostring(much), least, most)
    end
    return setmetatable({much = argument and much, p = step.probability(name, o.p)}, class)
  end
end

-- With probability p, 0.5 by default: RandomInvert(p); RandomPosterize(bits, p) keeps so
-- many bits; RandomSolarize(threshold, p) inverts what is at least that bright;
-- RandomAdjustSharpness(sharpness_factor, p): 0 smooth, 1 as it is;
-- RandomAutocontrast(p); RandomEqualize(p).
colour.RandomInvert = adjustment("RandomInvert", "invert")
colour.RandomPosterize = adjustment("RandomPosterize", "posterize", "bits", 0, 8)
colour.RandomSolarize = adjustment("RandomSolarize", "solarize", "threshold", 0, 256)
colour.RandomAdjustSharpness = adjustment("RandomAdjustSharpness", "sharpness",
  "sharpness_factor", 0, 1e6)
colour.RandomAutocontrast = adjustment("RandomAutocontrast", "autocontrast")
colour.RandomEqualize = adjustment("RandomEqualize", "equalize")

-- ---- RandAugment ----

local RandAugment = step.class "RandAugment"
function RandAugment:declare()
  return {kind = "RandAugment", count = self.num_ops, magnitude = self.magnitude,
    bins = self.num_magnitude_bins, interpolation = self.interpolation, values = self.fill}
end
function RandAugment:describe()
  return ("num_ops = %d, magnitude = %d of %d, interpolation = %s"):format(self.num_ops,
    self.magnitude, self.num_magnitude_bins, self.interpolation)
end

-- RandAugment{num_ops = 2, magnitude = 9, num_magnitude_bins = 31, interpolation =
-- "nearest", fill = 0}: so many of fourteen changes, drawn one by one, each of that
-- magnitude (0 to num_magnitude_bins - 1): E. Cubuk et al., 2019.
local bind_augment = options.signature("RandAugment", [[num_ops: integer = 2,
  magnitude: integer = 9, num_magnitude_bins: integer = 31,
  interpolation: 'nearest'|'bilinear' = 'nearest', fill: number|numbers = 0]])
function colour.RandAugment(...)
  local opts = bind_augment(...)
  local bins = opts.num_magnitude_bins
  if not (step.is_count(opts.num_ops, 0) and step.is_count(bins, 2)
    and step.is_count(opts.magnitude, 0) and opts.magnitude < bins) then
    caller.raise("RandAugment: num_ops is %s, magnitude %s of num_magnitude_bins %s; wanted "
      .. "whole numbers, the magnitude below its bins", tostring(opts.num_ops),
      tostring(opts.magnitude), tostring(bins))
  end
  opts.fill = step.fill("RandAugment", opts.fill)
  return setmetatable(opts, RandAugment)
end

return colour
