-- Transforms that crop, pad, mirror, resize, rotate and erase.

local caller = require "demilune.caller"
local options = require "demilune.options"
local step = require "demilune.transforms.step"
local ops = require "demilune.transforms.ops"

local geometry = {}

local BORDER = [[fill: number|numbers = 0,
  padding_mode: 'constant'|'edge'|'reflect'|'symmetric' = 'constant']]
local SMOOTH = "interpolation: 'nearest'|'bilinear'|'bicubic' = 'bilinear', "
local ROUGH = "interpolation: 'nearest'|'bilinear' = 'nearest', "

local function borders(what, opts)
  opts.padding = step.padding(what, opts.padding)
  opts.fill = step.fill(what, opts.fill)
  return opts
end

-- ---- Pad and the crops ----

local Pad = step.class("Pad", ops.move)
function Pad:declare()
  return {kind = "Pad", pad = self.padding, padding_mode = self.padding_mode, values = self.fill}
end
function Pad:describe()
  return ("{%s}, padding_mode = %s"):format(step.words(self.padding), self.padding_mode)
end

-- Pad(padding, {fill = 0, padding_mode = "constant"}): a border. padding: a number, {x, y}
-- or {left, top, right, bottom}; padding_mode: "constant" (fill: a number, or one per
-- channel), "edge", "reflect" or "symmetric".
local bind_pad = options.signature("Pad", "padding: number|numbers, " .. BORDER)
function geometry.Pad(...) return setmetatable(borders("Pad", bind_pad(...)), Pad) end

local RandomCrop = step.class("RandomCrop", ops.move)

function RandomCrop:declare()
  return {kind = "RandomCrop", height = self.height, width = self.width, pad = self.padding,
    padding_mode = self.padding_mode, pad_if_needed = self.pad_if_needed, values = self.fill}
end

function RandomCrop:describe()
  return ("%dx%d, padding = {%s}"):format(self.height, self.width, step.words(self.padding))
end

-- RandomCrop(size, {padding = 0, pad_if_needed = false, fill = 0, padding_mode =
-- "constant"}): a crop at a random position of the image with a border as Pad's.
-- size: a number, or {height, width}.
local bind_crop = options.signature("RandomCrop", [[size: number|numbers,
  padding: number|numbers = 0, pad_if_needed: boolean = false, ]] .. BORDER)
function geometry.RandomCrop(...)
  local opts = bind_crop(...)
  opts.height, opts.width = step.size("RandomCrop", opts.size)
  return setmetatable(borders("RandomCrop", opts), RandomCrop)
end

local CenterCrop = step.class("CenterCrop", ops.move)
function CenterCrop:declare()
  return {kind = "CenterCrop", height = self.height, width = self.width}
end
function CenterCrop:describe() return ("%dx%d"):format(self.height, self.width) end

-- CenterCrop(size): the middle; a smaller image gets a black border.
local bind_center = options.signature("CenterCrop", "size: number|numbers")
function geometry.CenterCrop(...)
  local height, width = step.size("CenterCrop", bind_center(...).size)
  return setmetatable({height = height, width = width}, CenterCrop)
end

-- ---- mirror images ----

local function flip(name)
  local class = step.class(name, ops.move)
  function class:declare() return {kind = name, p = self.p} end
  function class:describe() return ("p = %g"):format(self.p) end
  local bind = options.signature(name, "p: number = 0.5")
  return function(...)
    return setmetatable({p = step.probability(name, bind(...).p)}, class)
  end
end

-- RandomHorizontalFlip(p = 0.5): with this probability left and right are exchanged;
-- RandomVerticalFlip(p = 0.5): top and bottom.
geometry.RandomHorizontalFlip = flip "RandomHorizontalFlip"
geometry.RandomVerticalFlip = flip "RandomVerticalFlip"

-- ---- other sizes ----

local function check_antialias(what, opts)
  if not opts.antialias then
    caller.raise("%s: antialias is false; images made smaller are always smoothed, as Pillow does",
      what)
  end
end

local Resize = step.class("Resize", ops.move)

function Resize:declare()
  return {kind = "Resize", height = self.height, width = self.width, max_size = self.max_size,
    interpolation = self.interpolation}
end

function Resize:describe()
  local size = self.width and ("%dx%d"):format(self.height, self.width) or self.height
  return ("%s, interpolation = %s"):format(size, self.interpolation)
end

-- Resize(size, {interpolation = "bilinear", max_size = nil, antialias = true}): size:
-- {height, width}, or a number, which the shorter side becomes; then the longer one is at
-- most max_size. interpolation: "bilinear", "bicubic" or "nearest".
local bind_resize = options.signature("Resize",
  "size: number|numbers, " .. SMOOTH .. "max_size?: number, antialias: boolean = true")
function geometry.Resize(...)
  local opts = bind_resize(...)
  check_antialias("Resize", opts)
  local size = opts.size
  local one = type(size) ~= "table" or #size == 1
  opts.height, opts.width = step.size("Resize", size)
  if one then opts.width = nil end
  local most = opts.max_size
  if most ~= nil and not (one and step.is_count(most, opts.height + 1)) then
    caller.raise("Resize: max_size is %s with size %s; it goes with one number, and is larger",
      tostring(most), one and opts.height or "{height, width}")
  end
  return setmetatable(opts, Resize)
end

local function boxes(what, opts)
  opts.scale = step.range(what, "scale", opts.scale, 0, 1)
  opts.ratio = step.range(what, "ratio", opts.ratio, 1e-6, 1e6)
  return opts
end

local RandomResizedCrop = step.class("RandomResizedCrop", ops.move)

function RandomResizedCrop:declare()
  return {kind = "RandomResizedCrop", height = self.height, width = self.width,
    area = self.scale, ratio = self.ratio, interpolation = self.interpolation}
end

function RandomResizedCrop:describe()
  return ("%dx%d, scale = {%s}, ratio = {%s}, interpolation = %s"):format(self.height, self.width,
    step.words(self.scale), step.words(self.ratio), self.interpolation)
end

-- RandomResizedCrop(size, {scale = {0.08, 1}, ratio = {3/4, 4/3}, interpolation =
-- "bilinear", antialias = true}): a crop with so much of the area and this aspect, at a
-- random position, resized. size: a number, or {height, width}.
local bind_resized = options.signature("RandomResizedCrop", [[size: number|numbers,
  scale: numbers = {0.08, 1}, ratio: numbers = {3 / 4, 4 / 3}, ]] .. SMOOTH
  .. "antialias: boolean = true")
function geometry.RandomResizedCrop(...)
  local opts = bind_resized(...)
  check_antialias("RandomResizedCrop", opts)
  opts.height, opts.width = step.size("RandomResizedCrop", opts.size)
  return setmetatable(boxes("RandomResizedCrop", opts), RandomResizedCrop)
end

-- ---- affine maps ----

local RandomAffine = step.class "RandomAffine"

function RandomAffine:declare()
  return {kind = "RandomAffine", p = 1, degrees = self.degrees, move = self.translate,
    zoom = self.scale, shear = self.shear, interpolation = self.interpolation,
    values = self.fill}
end

function RandomAffine:describe()
  return ("degrees = {%s}, translate = {%s}, scale = {%s}, shear = {%s}"):format(
    step.words(self.degrees), step.words(self.translate), step.words(self.scale),
    step.words(self.shear))
end

-- n as {-n, n}; a range as it is.
local function both_sides(what, name, v, most)
  if type(v) == "number" and v >= 0 then v = {-v, v} end
  return step.range(what, name, v, -most, most)
end

-- RandomAffine(degrees, {translate = {0, 0}, scale = {1, 1}, shear = 0, interpolation =
-- "nearest", fill = 0}): turned by degrees (n: -n to n; or {low, high}), moved by up to
-- these parts of width and height, scaled, and sheared by degrees along x (n, {low, high}),
-- and along y too with {x low, x high, y low, y high}.
local bind_affine = options.signature("RandomAffine", [[degrees: number|numbers,
  translate: numbers = {0, 0}, scale: numbers = {1, 1}, shear: number|numbers = 0, ]] .. ROUGH
  .. "fill: number|numbers = 0")
function geometry.RandomAffine(...)
  local opts = bind_affine(...)
  opts.degrees = both_sides("RandomAffine", "degrees", opts.degrees, 1e6)
  opts.translate = step.numbers("RandomAffine", "translate", opts.translate, 0, 1)
  if #opts.translate ~= 2 then
    caller.raise("RandomAffine: translate is {%s}, wanted {x, y}", step.words(opts.translate))
  end
  opts.scale = step.range("RandomAffine", "scale", opts.scale, 1e-3, 1e3)
  local shear = opts.shear
  local four = type(shear) == "table" and #shear == 4
  local x = both_sides("RandomAffine", "shear", four and {shear[1], shear[2]} or shear, 89)
  local y = step.range("RandomAffine", "shear", four and {shear[3], shear[4]} or {0, 0}, -89, 89)
  opts.shear = {x[1], x[2], y[1], y[2]}
  opts.fill = step.fill("RandomAffine", opts.fill)
  return setmetatable(opts, RandomAffine)
end

local RandomRotation = step.class "RandomRotation"
function RandomRotation:declare() -- counter-clockwise, which RandomAffine's are not
  return {kind = "RandomAffine", p = 1, degrees = {-self.degrees[2], -self.degrees[1]},
    zoom = {1, 1}, interpolation = self.interpolation, values = self.fill}
end
function RandomRotation:describe() return ("degrees = {%s}"):format(step.words(self.degrees)) end

-- RandomRotation(degrees, {interpolation = "nearest", fill = 0}): turned about its middle
-- by degrees, counter-clockwise: n: -n to n; or {low, high}.
local bind_rotation = options.signature("RandomRotation",
  "degrees: number|numbers, " .. ROUGH .. "*, fill: number|numbers = 0")
function geometry.RandomRotation(...)
  local opts = bind_rotation(...)
  opts.degrees = both_sides("RandomRotation", "degrees", opts.degrees, 1e6)
  opts.fill = step.fill("RandomRotation", opts.fill)
  return setmetatable(opts, RandomRotation)
end

-- ---- boxes that are erased: behind ToTensor ----

local function erase(self, x)
  if not x:is_floating_point() then
    caller.raise("%s: the image is %s, wanted a float dtype; hint: ToTensor before it",
      self.class, x.dtype)
  end
  return ops.erase(self.class, x, self:declare(x:size(-3)))
end

local RandomErasing = step.class "RandomErasing"
RandomErasing.apply = erase

function RandomErasing:declare(channels)
  return {kind = "RandomErasing", p = self.p, area = self.scale, ratio = self.ratio,
    noise = not self.value,
    values = self.value and step.per_channel("RandomErasing", "value", self.value, channels)}
end

function RandomErasing:describe()
  return ("p = %g, scale = {%s}, ratio = {%s}, value = %s"):format(self.p,
    step.words(self.scale), step.words(self.ratio),
    self.value and ("{%s}"):format(step.words(self.value)) or "random")
end

-- RandomErasing{p = 0.5, scale = {0.02, 0.33}, ratio = {0.3, 3.3}, value = 0}: with
-- probability p a box with so much of the area and this ratio of height to width becomes
-- value: a number, one per channel, or "random", normal noise.
local bind_erasing = options.signature("RandomErasing", [[p: number = 0.5,
  scale: numbers = {0.02, 0.33}, ratio: numbers = {0.3, 3.3},
  value: number|numbers|'random' = 0]])
function geometry.RandomErasing(...)
  local opts = bind_erasing(...)
  opts.p = step.probability("RandomErasing", opts.p)
  if opts.value == "random" then opts.value = nil
  else
    opts.value = step.numbers("RandomErasing", "value", opts.value, -math.huge, math.huge)
  end
  return setmetatable(boxes("RandomErasing", opts), RandomErasing)
end

local Cutout = step.class "Cutout"
Cutout.apply = erase
function Cutout:declare() return {kind = "Cutout", count = self.n_holes, width = self.length} end
function Cutout:describe() return ("%d, n_holes = %d"):format(self.length, self.n_holes) end

-- Cutout(length, {n_holes = 1}): squares of this side become 0, as far as they lie inside;
-- their middles are anywhere in the image.
local bind_cutout = options.signature("Cutout", "length: integer, n_holes: integer = 1")
function geometry.Cutout(...)
  local opts = bind_cutout(...)
  if opts.length < 1 or opts.n_holes < 0 then
    caller.raise("Cutout: length is %s and n_holes %s; wanted whole numbers from 1 and 0 on",
      opts.length, opts.n_holes)
  end
  return setmetatable(opts, Cutout)
end

return geometry
