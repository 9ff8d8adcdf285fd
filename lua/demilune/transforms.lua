-- demilune.transforms: what is done to pictures before a model sees them
-- (torchvision.transforms).
--
-- A picture is a tensor {C, H, W}, uint8 as files hold it or float; a batch
-- {N, C, H, W} works too, and all of it then gets the same draw. A transform is
-- called with one. In a data set of demilune.datasets the loader's threads do the
-- work of these transforms themselves, see `declare`.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"

local transforms = {}

local function class(name)
  local c = {class = name}
  c.__index = c
  function c:__call(x)
    if not core.is_tensor(x) or x:dim() < 3 then
      caller.raise("%s: wanted a picture {C, H, W} or a batch {N, C, H, W}, got %s", name,
        core.is_tensor(x) and tostring(x.shape) or type(x))
    end
    return self:apply(x)
  end
  function c:__tostring() return ("%s(%s)"):format(name, self:describe()) end
  return c
end

-- ---- ToTensor ----

local ToTensor = class "ToTensor"
function ToTensor.apply(_, x) return x.dtype == "uint8" and x:to "float32" / 255 or x end
function ToTensor.describe() return "" end
function ToTensor.declare() return {kind = "ToTensor"} end

-- ToTensor(): uint8 0..255 becomes float32 0..1; other dtypes stay.
function transforms.ToTensor() return setmetatable({}, ToTensor) end

-- ---- Normalize ----

local Normalize = class "Normalize"

-- A number or a list as a list, one entry for each channel.
local function per_channel(what, v, channels)
  local list = {}
  if #v ~= 1 and #v ~= channels then
    caller.raise("Normalize: %s has %d numbers, the pictures have %d channels", what, #v, channels)
  end
  for c = 1, channels do list[c] = v[#v == 1 and 1 or c] end
  return list
end

local function numbers(what, v)
  if type(v) == "number" then v = {v} end
  local good = type(v) == "table" and #v > 0
  for _, number in ipairs(good and v or {}) do good = good and type(number) == "number" end
  if not good then caller.raise("Normalize: %s: wanted a number, or one per channel", what) end
  return {table.unpack(v)}
end

function Normalize:apply(x)
  if not x:is_floating_point() then
    caller.raise("Normalize: the picture is %s, wanted a float dtype; hint: ToTensor before it",
      x.dtype)
  end
  local function planes(what)
    local list = per_channel(what, self[what], x:size(-3))
    return core.tensor(list, {dtype = x.dtype, device = x.device}):reshape(-1, 1, 1)
  end
  return (x - planes "mean") / planes "std"
end

function Normalize:describe()
  return ("mean = {%s}, std = {%s}"):format(table.concat(self.mean, ", "),
    table.concat(self.std, ", "))
end

function Normalize:declare(channels)
  return {kind = "Normalize", values = per_channel("mean", self.mean, channels),
    deviations = per_channel("std", self.std, channels)}
end

-- Normalize(mean, std): (x - mean) / std; each a number, or one per channel.
function transforms.Normalize(mean, std)
  local self = setmetatable({mean = numbers("mean", mean), std = numbers("std", std)}, Normalize)
  for _, deviation in ipairs(self.std) do
    if deviation == 0 then caller.raise("Normalize: std is 0, which divides by zero") end
  end
  return self
end

-- ---- RandomCrop ----

local RandomCrop = class "RandomCrop"

-- x with n zeros on each side.
local function padded(x, n)
  if n == 0 then return x end
  local shape, height, width = {table.unpack(x.shape)}, x:size(-2), x:size(-1)
  shape[#shape - 1], shape[#shape] = height + 2 * n, width + 2 * n
  local out = core.zeros(shape, {dtype = x.dtype, device = x.device})
  out:narrow(-2, n + 1, height):narrow(-1, n + 1, width):copy_(x)
  return out
end

local function window(x, dim, size)
  local room = x:size(dim)
  if size > room then
    caller.raise("RandomCrop: %d of %d rows or columns, padding counted", size, room)
  end
  return x:narrow(dim, core.randint(1, room - size + 2, {1}, {device = "cpu"}):item(), size)
end

function RandomCrop:apply(x)
  return window(window(padded(x, self.padding), -2, self.height), -1, self.width)
end

function RandomCrop:describe()
  return ("%dx%d, padding = %d"):format(self.height, self.width, self.padding)
end

function RandomCrop:declare()
  local n = self.padding
  return {kind = "RandomCrop", height = self.height, width = self.width, pad = {n, n, n, n}}
end

local function is_count(v, least) return math.type(v) == "integer" and v >= least end

-- RandomCrop(size, {padding = 0}): a window at a place drawn from the picture with
-- so many zeros around it. size: a number, or {height, width}.
function transforms.RandomCrop(size, opts)
  local padding = options.read("RandomCrop", opts, {padding = 0}).padding
  local height, width = size, size
  if type(size) == "table" then height, width = size[1], size[2] end
  if not (is_count(height, 1) and is_count(width, 1) and is_count(padding, 0)) then
    caller.raise("RandomCrop: size is %s, %s and padding %s; wanted whole numbers",
      tostring(height), tostring(width), tostring(padding))
  end
  return setmetatable({height = height, width = width, padding = padding}, RandomCrop)
end

-- ---- RandomHorizontalFlip ----

local RandomHorizontalFlip = class "RandomHorizontalFlip"
function RandomHorizontalFlip:apply(x)
  return core.rand(1, {device = "cpu"}):item() < self.p and x:flip{-1} or x
end
function RandomHorizontalFlip:describe() return ("p = %g"):format(self.p) end
function RandomHorizontalFlip:declare()
  return {kind = "RandomHorizontalFlip", p = self.p}
end

-- RandomHorizontalFlip(p = 0.5): with this probability the mirror image.
function transforms.RandomHorizontalFlip(p)
  p = p or 0.5
  if type(p) ~= "number" or not (p >= 0 and p <= 1) then
    caller.raise("RandomHorizontalFlip: p is %s, wanted 0 to 1", tostring(p))
  end
  return setmetatable({p = p}, RandomHorizontalFlip)
end

-- ---- Compose ----

local Compose = class "Compose"
function Compose:apply(x)
  for _, step in ipairs(self) do x = step(x) end
  return x
end
function Compose:describe()
  local words = {}
  for i, step in ipairs(self) do words[i] = tostring(step) end
  return table.concat(words, ", ")
end

local function is_callable(v)
  local meta = getmetatable(v)
  return type(v) == "function" or type(v) == "table" and meta ~= nil and meta.__call ~= nil
end
transforms.is_callable = is_callable

-- Compose{first, second, ...}: one after the other; functions of one's own too.
function transforms.Compose(list)
  if type(list) ~= "table" or getmetatable(list) then
    caller.raise("Compose: a list of transforms expected, got %s", type(list))
  end
  for i, step in ipairs(list) do
    if not is_callable(step) then
      caller.raise("Compose: element %d is a %s, wanted a transform", i, type(step))
    end
  end
  return setmetatable({table.unpack(list)}, Compose)
end

-- ---- for the loader's threads ----

local function flatten(transform, into)
  if getmetatable(transform) ~= Compose then
    into[#into + 1] = transform
  else
    for _, step in ipairs(transform) do flatten(step, into) end
  end
  return into
end

-- What the transform does to uint8 pictures of so many channels, as steps that the
-- loader's threads take (core.augment); nil when only Lua can do it. A mirror image may
-- come at any place, a crop anywhere before Normalize: its border is black.
function transforms.declare(transform, channels)
  local list, done = {}, {}
  for _, step in ipairs(flatten(transform, {})) do
    local kind = getmetatable(step)
    local known = type(step) == "table" and kind and rawget(kind, "declare")
    if not known or kind == Normalize and not done[ToTensor] or kind == ToTensor and done[kind]
      or kind == RandomCrop and done[Normalize] then
      return nil
    end
    list[#list + 1] = step:declare(channels)
    done[kind] = true
  end
  return core.augment(list)
end

return transforms
