-- demilune.transforms: prepares images for a model
-- (torchvision.transforms).
--
-- An image is a tensor {C, H, W}, uint8 as files hold it or float; a batch
-- {N, C, H, W} works too, and all of it then gets the same draw. A transform is called
-- with one. The engine transforms uint8 images, with Pillow's numbers; in a data
-- set of demilune.datasets the loader's threads do that, see `declare`. Other tensors go through
-- ops with the same decisions (transforms/ops.lua).

local core = require "demilune.core"
local caller = require "demilune.caller"
local late = require "demilune.late"
local options = require "demilune.options"
local step = require "demilune.transforms.step"

local transforms = {}

-- ---- ToTensor and Normalize ----

local ToTensor = step.class "ToTensor"
function ToTensor.declare() return {kind = "ToTensor"} end
function ToTensor.apply(_, x) return x.dtype == "uint8" and x:to "float32" / 255 or x end

-- ToTensor(): uint8 0..255 becomes float32 0..1; other dtypes stay.
local bind_tensor = options.signature("ToTensor", "")
function transforms.ToTensor(...) return setmetatable(bind_tensor(...), ToTensor) end

local Normalize = step.class "Normalize"

function Normalize:apply(x)
  if not x:is_floating_point() then
    caller.raise("Normalize: the image is %s, wanted a float dtype; hint: ToTensor before it",
      x.dtype)
  end
  return (x - step.planes("Normalize", "mean", self.mean, x))
    / step.planes("Normalize", "std", self.std, x)
end

function Normalize:describe()
  return ("mean = {%s}, std = {%s}"):format(step.words(self.mean), step.words(self.std))
end

function Normalize:declare(channels)
  return {kind = "Normalize",
    values = step.per_channel("Normalize", "mean", self.mean, channels),
    deviations = step.per_channel("Normalize", "std", self.std, channels)}
end

-- Normalize(mean, std): (x - mean) / std; each a number, or one per channel.
local bind_normalize = options.signature("Normalize", "mean: number|numbers, std: number|numbers")
function transforms.Normalize(...)
  local o = bind_normalize(...)
  local self = setmetatable({
    mean = step.numbers("Normalize", "mean", o.mean, -math.huge, math.huge),
    std = step.numbers("Normalize", "std", o.std, -math.huge, math.huge),
  }, Normalize)
  for _, deviation in ipairs(self.std) do
    if deviation == 0 then caller.raise("Normalize: std is 0, which divides by zero") end
  end
  return self
end

-- ---- Compose ----

local Compose = step.class "Compose"
Compose.__stays = {lists = true}

-- All in one go where C can do all of it, with the draws that the loader's threads would
-- make of the same seed; else one after the other.
function Compose:apply(x)
  local channels = x:size(-3)
  if step.is_bytes(x) then
    self.lists = self.lists or {} -- by the number of channels: what declare gives, or false
    if self.lists[channels] == nil then
      self.lists[channels] = transforms.declare(self, channels) or false
    end
    if self.lists[channels] then return step.run(self.lists[channels], x) end
  end
  for _, one in ipairs(self) do x = one(x) end
  return x
end

function Compose:describe()
  local words = {}
  for i, one in ipairs(self) do words[i] = tostring(one) end
  return table.concat(words, ", ")
end

local function is_callable(v)
  local meta = getmetatable(v)
  return type(v) == "function" or type(v) == "table" and meta ~= nil and meta.__call ~= nil
end
transforms.is_callable = is_callable

-- Compose{first, second, ...}: one after the other; functions of one's own too.
local bind_compose = options.signature("Compose", "transforms: list")
function transforms.Compose(...)
  local list = bind_compose(...).transforms
  for i, one in ipairs(list) do
    if not is_callable(one) then
      caller.raise("Compose: element %d is a %s, wanted a transform", i, type(one))
    end
  end
  return setmetatable({table.unpack(list)}, Compose)
end

-- ---- for C ----

local function flatten(transform, into)
  if getmetatable(transform) ~= Compose then
    into[#into + 1] = transform
  else
    for _, one in ipairs(transform) do flatten(one, into) end
  end
  return into
end

-- declare(transform, channels): a transform of uint8 images of so many channels as the list that
-- the loader's threads take (core.augment); nil when only Lua can do it: functions, and orders
-- that C does not do. A mirror image may stand anywhere in front of what erases, a crop
-- anywhere before Normalize: its border is black; the rest before ToTensor.
function transforms.declare(transform, channels)
  local list = {}
  for _, one in ipairs(flatten(transform, {})) do
    local kind = getmetatable(one)
    if type(one) ~= "table" or not kind or not rawget(kind, "declare") then return nil end
    list[#list + 1] = one:declare(channels)
    channels = list[#list].channels or channels
  end
  return (core.augment(list))
end

-- The others are loaded when they are asked for.
local CLASSES = {
  geometry = [[CenterCrop Cutout Pad RandomAffine RandomCrop RandomErasing RandomHorizontalFlip
    RandomResizedCrop RandomRotation RandomVerticalFlip Resize]],
  colour = [[ColorJitter Grayscale RandAugment RandomAdjustSharpness RandomAutocontrast
    RandomEqualize RandomGrayscale RandomInvert RandomPosterize RandomSolarize]],
  mix = "CutMix MixUp",
  policies = "AutoAugment TrivialAugmentWide",
  choice = "RandomApply RandomChoice RandomOrder",
  blur = "GaussianBlur",
  perspective = "RandomPerspective",
}
local file_of = {}
for file, names in pairs(CLASSES) do
  for name in names:gmatch "%S+" do file_of[name] = "demilune.transforms." .. file end
end

-- The classes by name, by which another Lua state finds them (data/travel.lua).
transforms.classes = setmetatable(step.classes, {__index = function(self, name)
  if file_of[name] then late.require(file_of[name]) end
  return rawget(self, name)
end})

return late.extend(transforms, file_of, {functional = "demilune.transforms.functional"})
