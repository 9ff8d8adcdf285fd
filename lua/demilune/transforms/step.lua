-- The class of transforms, and the reading of their arguments.
--
-- A transform is what its method `declare` returns, a row of core.augment's list. The engine
-- applies it to uint8 images on the CPU; a function of transforms/ops.lua to other tensors.

local core = require "demilune.core"
local caller = require "demilune.caller"

local step = {}

-- The classes by name, see transforms.classes.
step.classes = {}

-- A seed for one call's draws, from the generator of dm.manual_seed.
function step.draw()
  return core.randint(0, (1 << 62) - 1, {1}, {dtype = "int64", device = "cpu"}):item()
end

-- A number in [low, high), likewise.
function step.uniform(low, high)
  return low + (high - low) * core.rand(1, {dtype = "float64", device = "cpu"}):item()
end

-- The engine's list of these transforms, or raises.
function step.compiled(list)
  local compiled, problem = core.augment(list)
  if not compiled then caller.raise("%s", problem) end
  return compiled
end

function step.is_bytes(x) return x.dtype == "uint8" and x.device == "cpu" end

-- Applies the engine's list to x (..., C, H, W); dims in front of four are as a longer batch.
function step.run(list, x)
  if x:dim() <= 4 then return list:apply(x, step.draw()) end
  local y = list:apply(x:flatten(1, -4), step.draw())
  local shape = {table.unpack(x.shape, 1, x:dim() - 3)}
  table.move(y.shape, 2, 4, #shape + 1, shape)
  return y:reshape(shape)
end

local function apply(self, x)
  local declared = self:declare(x:size(-3))
  if step.is_bytes(x) then return step.run(step.compiled{declared}, x) end
  if not self.on_tensor then
    caller.raise("%s: the image is %s on %s, wanted uint8 on the CPU; hint: ToTensor after it",
      self.class, x.dtype, x.device)
  end
  return self.on_tensor(self.class, x, declared)
end

-- A class of transforms, which are called with an image and return `apply`'s result.
-- on_tensor(name, x, what declare returns) applies it to what is not uint8 on the CPU; nil:
-- nothing does.
function step.class(name, on_tensor)
  local c = {class = name, apply = apply, on_tensor = on_tensor}
  c.__index = c
  step.classes[name] = c
  function c:__call(x)
    if not core.is_tensor(x) or x:dim() < 3 then
      caller.raise("%s: wanted an image {C, H, W} or a batch {N, C, H, W}, got %s", name,
        core.is_tensor(x) and tostring(x.shape) or type(x))
    end
    return self:apply(x)
  end
  function c:__tostring() return ("%s(%s)"):format(name, self:describe()) end
  function c.describe() return "" end
  return c
end

-- ---- arguments ----

function step.is_count(v, least) return math.type(v) == "integer" and v >= least end

-- height, width of a size: a number for both, or two.
function step.size(what, size)
  local height, width = size, size
  if type(size) == "table" then height, width = size[1], size[2] or size[1] end
  if not (step.is_count(height, 1) and step.is_count(width, 1)) then
    caller.raise("%s: size is %s, %s; wanted whole numbers above 0", what, tostring(height),
      tostring(width))
  end
  return height, width
end

function step.probability(what, p)
  if not (p >= 0 and p <= 1) then
    caller.raise("%s: p is %s, wanted 0 to 1", what, tostring(p))
  end
  return p
end

-- Two numbers {low, high} within least and most.
function step.range(what, name, v, least, most)
  local good = type(v) == "table" and #v == 2 and type(v[1]) == "number"
    and type(v[2]) == "number" and v[1] >= least and v[1] <= v[2] and v[2] <= most
  if not good then
    local given = type(v) == "table" and ("{%s}"):format(step.words(v)) or tostring(v)
    caller.raise("%s: %s is %s, wanted {low, high} within %g and %g", what, name, given, least,
      most)
  end
  return {v[1], v[2]}
end

-- A number or a list of them as a list, each within least and most.
function step.numbers(what, name, v, least, most)
  if type(v) == "number" then v = {v} end
  local good = type(v) == "table" and #v > 0
  for _, number in ipairs(good and v or {}) do
    good = good and type(number) == "number" and number >= least and number <= most
  end
  if not good then
    caller.raise("%s: %s: wanted a number, or one per channel%s", what, name,
      most < math.huge and (", %g to %g"):format(least, most) or "")
  end
  return {table.unpack(v)}
end

function step.fill(what, v) return step.numbers(what, "fill", v, 0, 255) end

-- n, {n}, {x, y} or {left, top, right, bottom} as the last.
function step.padding(what, v)
  local list = type(v) == "table" and v or {v}
  local n, good = #list, #list == 1 or #list == 2 or #list == 4
  for _, side in ipairs(list) do good = good and step.is_count(side, 0) end
  if not good then
    caller.raise("%s: padding is %s; wanted whole numbers from 0 on: one, {x, y} or "
      .. "{left, top, right, bottom}", what, type(v) == "table" and step.words(v) or tostring(v))
  end
  return {list[1], list[n > 1 and 2 or 1], list[n == 4 and 3 or 1], list[n == 1 and 1 or n]}
end

-- A list in words.
function step.words(list)
  local out = {}
  for i, v in ipairs(list) do out[i] = type(v) == "number" and ("%g"):format(v) or tostring(v) end
  return table.concat(out, ", ")
end

-- A number or a list with one entry for each channel, as a list of so many.
function step.per_channel(what, name, v, channels)
  local list = {}
  if #v ~= 1 and #v ~= channels then
    caller.raise("%s: %s has %d numbers, the images have %d channels", what, name, #v, channels)
  end
  for c = 1, channels do list[c] = v[#v == 1 and 1 or c] end
  return list
end

-- The same as a tensor (C,1,1) of the dtype and device of x (..., C, H, W).
function step.planes(what, name, v, x)
  local list = step.per_channel(what, name, v, x:size(-3))
  return core.tensor(list, {dtype = x.dtype, device = x.device}):reshape(-1, 1, 1)
end

return step
