-- AutoAugment and TrivialAugmentWide: changes of uint8 images by policies. Each change is the
-- engine's, with Pillow's numbers; which one, and how strong, is drawn in Lua, so that the loader
-- runs them in its Lua workers.
-- E. Cubuk et al. 2019 (AutoAugment); S. Mueller, F. Hutter 2021 (TrivialAugment).

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local step = require "demilune.transforms.step"
local ops = require "demilune.transforms.ops"

local policies = {}

-- ---- one change ----

local FACTORS = {Brightness = "brightness", Color = "saturation", Contrast = "contrast",
  Sharpness = "sharpness"}
local OTHERS = {Posterize = "posterize", Solarize = "solarize", AutoContrast = "autocontrast",
  Equalize = "equalize", Invert = "invert"}

-- x moved by whole pixels; the uncovered part becomes fill.
local function translate(what, x, right, down, fill)
  local height, width = x:size(-2), x:size(-1)
  local out = step.planes(what, "fill", fill, x):expand(x.shape):clone()
  local h, w = height - math.abs(down), width - math.abs(right)
  if h > 0 and w > 0 then
    ops.crop(out, math.max(down, 0) + 1, math.max(right, 0) + 1, h, w):copy_(
      ops.crop(x, math.max(-down, 0) + 1, math.max(-right, 0) + 1, h, w))
  end
  return out
end

-- What core.augment takes for a change: its name in torchvision and its strength; nil for those
-- that are none of its kinds.
local function declared(name, much, o)
  local turn = {kind = "RandomAffine", p = 1, degrees = {0, 0}, zoom = {1, 1},
    interpolation = o.interpolation, values = o.fill}
  local slope = math.deg(math.atan(much))
  if name == "ShearX" then
    turn.shear, turn.at_corner = {slope, slope, 0, 0}, true
  elseif name == "ShearY" then
    turn.shear, turn.at_corner = {0, 0, slope, slope}, true
  elseif name == "Rotate" then
    turn.degrees = {-much, -much} -- counter-clockwise
  elseif FACTORS[name] then
    return {kind = "RandomAdjust", p = 1, adjust = FACTORS[name], much = 1 + much}
  else
    return {kind = "RandomAdjust", p = 1, adjust = OTHERS[name], much = much}
  end
  return turn
end

-- One change of x. much: a slope, pixels, degrees, a factor less 1, bits or a threshold.
local function change(what, x, name, much, o)
  if name == "Identity" then return x end
  local pixels = math.tointeger(much // 1 + (much < 0 and much % 1 > 0 and 1 or 0)) -- towards 0
  if name == "TranslateX" then return translate(what, x, pixels, 0, o.fill) end
  if name == "TranslateY" then return translate(what, x, 0, pixels, o.fill) end
  return step.run(step.compiled{declared(name, much, o)}, x)
end

-- The strengths of a change at each of `bins` magnitudes, as torchvision computes them, and
-- whether a sign is drawn. most: the largest strengths by name.
local function strengths(name, bins, most)
  local function line(from, to) return core.linspace(from, to, bins, {device = "cpu"}) end
  if name == "Posterize" then
    return 8 - (line(0, bins - 1) / ((bins - 1) / most.Posterize)):round(), false
  elseif name == "Solarize" then return line(255, 0), false
  elseif FACTORS[name] then return line(0, most.factor), true
  elseif most[name] then return line(0, most[name]), true end
  return nil, false -- AutoContrast, Equalize, Invert, Identity have none
end

-- A class of policies: `draw` applies them to an image of bytes.
local function class(name, draw)
  local c = step.class(name)
  function c:apply(x)
    if not step.is_bytes(x) then
      caller.raise("%s: the image is %s on %s, wanted uint8 on the CPU; hint: ToTensor after it",
        name, x.dtype, x.device)
    end
    return draw(self, x)
  end
  return c
end

local HOW = "interpolation: 'nearest'|'bilinear' = 'nearest', fill: number|numbers = 0"

local function draw_below(n) return math.floor(step.uniform(0, n)) end

-- ---- TrivialAugmentWide ----

local WIDE = {ShearX = 0.99, ShearY = 0.99, TranslateX = 32, TranslateY = 32, Rotate = 135,
  factor = 0.99, Posterize = 6}
local CHOICES = {"Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate",
  "Brightness", "Color", "Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast",
  "Equalize"}

local TrivialAugmentWide = class("TrivialAugmentWide", function(self, x)
  local name = CHOICES[draw_below(#CHOICES) + 1]
  local list, signed = strengths(name, self.num_magnitude_bins, WIDE)
  local much = list and list[draw_below(#list) + 1]:item() or 0
  if signed and draw_below(2) == 1 then much = -much end
  return change("TrivialAugmentWide", x, name, much, self)
end)

function TrivialAugmentWide:describe()
  return ("num_magnitude_bins = %d, interpolation = %s"):format(self.num_magnitude_bins,
    self.interpolation)
end

--- One of fourteen changes, of a random magnitude. x: uint8 images on the CPU.
---@param opts? table num_magnitude_bins (31): how many magnitudes there are; interpolation
---  ("nearest") or "bilinear"; fill (0): a number, or one a channel
local bind_wide = options.signature("TrivialAugmentWide",
  "num_magnitude_bins: integer = 31, " .. HOW)
function policies.TrivialAugmentWide(...)
  local o = bind_wide(...)
  o.fill = step.fill("TrivialAugmentWide", o.fill)
  if not step.is_count(o.num_magnitude_bins, 2) then
    caller.raise("TrivialAugmentWide: num_magnitude_bins is %s, wanted a whole number from 2",
      tostring(o.num_magnitude_bins))
  end
  return setmetatable(o, TrivialAugmentWide)
end

-- ---- AutoAugment ----

-- Each line is a policy: two changes, each with its probability in tenths and, where it has
-- strengths, which of ten, from 0.
local FOUND = {
  imagenet = [[
Posterize 4 8, Rotate 6 9
Solarize 6 5, AutoContrast 6
Equalize 8, Equalize 6
Posterize 6 7, Posterize 6 6
Equalize 4, Solarize 2 4
Equalize 4, Rotate 8 8
Solarize 6 3, Equalize 6
Posterize 8 5, Equalize 10
Rotate 2 3, Solarize 6 8
Equalize 6, Posterize 4 6
Rotate 8 8, Color 4 0
Rotate 4 9, Equalize 6
Equalize 0, Equalize 8
Invert 6, Equalize 10
Color 6 4, Contrast 10 8
Rotate 8 8, Color 10 2
Color 8 8, Solarize 8 7
Sharpness 4 7, Invert 6
ShearX 6 5, Equalize 10
Color 4 0, Equalize 6
Equalize 4, Solarize 2 4
Solarize 6 5, AutoContrast 6
Invert 6, Equalize 10
Color 6 4, Contrast 10 8
Equalize 8, Equalize 6]],
  cifar10 = [[
Invert 1, Contrast 2 6
Rotate 7 2, TranslateX 3 9
Sharpness 8 1, Sharpness 9 3
ShearY 5 8, TranslateY 7 9
AutoContrast 5, Equalize 9
ShearY 2 7, Posterize 3 7
Color 4 3, Brightness 6 7
Sharpness 3 9, Brightness 7 9
Equalize 6, Equalize 5
Contrast 6 7, Sharpness 6 5
Color 7 7, TranslateX 5 8
Equalize 3, AutoContrast 4
TranslateY 4 3, Sharpness 2 6
Brightness 9 6, Color 2 8
Solarize 5 2, Invert 0
Equalize 2, AutoContrast 6
Equalize 2, Equalize 6
Color 9 9, Equalize 6
AutoContrast 8, Solarize 2 8
Brightness 1 3, Color 7 0
Solarize 4 5, AutoContrast 9
TranslateY 9 9, TranslateY 7 9
AutoContrast 9, Solarize 8 3
Equalize 8, Invert 1
TranslateY 7 9, AutoContrast 9]],
  svhn = [[
ShearX 9 4, Invert 2
ShearY 9 8, Invert 7
Equalize 6, Solarize 6 6
Invert 9, Equalize 6
Equalize 6, Rotate 9 3
ShearX 9 4, AutoContrast 8
ShearY 9 8, Invert 4
ShearY 9 5, Solarize 2 6
Invert 9, AutoContrast 8
Equalize 6, Rotate 9 3
ShearX 9 4, Solarize 3 3
ShearY 8 8, Invert 7
Equalize 9, TranslateY 6 6
Invert 9, Equalize 6
Contrast 3 3, Rotate 8 4
Invert 8, TranslateY 0 2
ShearY 7 6, Solarize 4 8
Invert 6, Rotate 8 4
ShearY 3 7, TranslateX 9 3
ShearX 1 6, Invert 6
Solarize 7 2, TranslateY 6 7
ShearY 8 4, Invert 8
ShearX 7 9, TranslateY 8 3
ShearY 8 5, AutoContrast 7
ShearX 7 2, Invert 1]],
}

-- "Rotate 8 3" ... -> {{{name =, p =, magnitude =}, {...}}, ...}
local function parse(text)
  local list = {}
  for line in text:gmatch "[^\n]+" do
    local policy = {}
    for name, p, magnitude in line:gmatch "(%a+) (%d+) ?(%d*)" do
      policy[#policy + 1] = {name = name, p = p / 10, magnitude = tonumber(magnitude)}
    end
    list[#list + 1] = policy
  end
  return list
end

local AutoAugment = class("AutoAugment", function(self, x)
  local policy = self.policies[draw_below(#self.policies) + 1]
  local most = {ShearX = 0.3, ShearY = 0.3, TranslateX = 150 / 331 * x:size(-1),
    TranslateY = 150 / 331 * x:size(-2), Rotate = 30, factor = 0.9, Posterize = 4}
  for _, one in ipairs(policy) do
    local applies, negative = step.uniform(0, 1) <= one.p, draw_below(2) == 0
    if applies then
      local list, signed = strengths(one.name, 10, most)
      local much = list and list[one.magnitude + 1]:item() or 0
      x = change("AutoAugment", x, one.name, signed and negative and -much or much, self)
    end
  end
  return x
end)

function AutoAugment:describe()
  return ("policy = %s, interpolation = %s"):format(self.policy, self.interpolation)
end

--- One of 25 policies that were found on a data set: two changes, each with a probability. x:
--- uint8 images on the CPU.
---@param opts? table policy ("imagenet"), "cifar10" or "svhn"; interpolation ("nearest") or
---  "bilinear"; fill (0): a number, or one a channel
local bind_auto = options.signature("AutoAugment",
  "policy: 'imagenet'|'cifar10'|'svhn' = 'imagenet', " .. HOW)
function policies.AutoAugment(...)
  local o = bind_auto(...)
  o.fill = step.fill("AutoAugment", o.fill)
  o.policies = parse(FOUND[o.policy])
  return setmetatable(o, AutoAugment)
end

return policies
