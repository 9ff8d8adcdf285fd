-- Lua values between ranks: numbers, strings, booleans, tables of them, and tensors on the CPU.
-- They travel as data, never as code.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local shown = require "demilune.shown"
local travel = require "demilune.data.travel"
local collectives = require "demilune.distributed.collectives"
local world = require "demilune.distributed.world"

local objects = {}

local SHOWN = getmetatable(shown{})

-- The value with plain tables in place of those that this library's functions return, such as a
-- state_dict, which print and sort their content by functions.
local function without_manners(value, done)
  if type(value) ~= "table" then return value end
  if done[value] then return done[value] end
  local meta, copy = getmetatable(value), {}
  if meta ~= nil and meta ~= SHOWN then return value end
  done[value] = copy
  for key, v in next, value do copy[key] = without_manners(v, done) end
  return copy
end

-- "=" and the value as bytes; or "!" and the reason why it cannot travel.
local function written(value)
  local bytes, tensors = travel.pack_plain("the object", without_manners(value, {}))
  if not bytes then return "!" .. tensors end
  local out = {("s8I4"):pack(bytes, #tensors)}
  for _, t in ipairs(tensors) do
    local shape = t.shape
    out[#out + 1] = ("s1I1"):pack(t.dtype, #shape)
    for _, size in ipairs(shape) do out[#out + 1] = ("i8"):pack(size) end
    out[#out + 1] = ("s8"):pack(core._to_bytes(t))
  end
  return "=" .. table.concat(out)
end

-- A tensor at that byte, and the next byte.
local function read_tensor(text, at)
  local dtype, n, data
  local shape = {}
  dtype, n, at = ("s1I1"):unpack(text, at)
  for d = 1, n do shape[d], at = ("i8"):unpack(text, at) end
  data, at = ("s8"):unpack(text, at)
  return core._from_bytes(data, dtype):reshape(shape), at
end

-- The value that rank `rank` has written; raises where it could not be written.
local function read(name, text, rank)
  if text:sub(1, 1) == "!" then
    caller.raise("%s: on rank %d %s, wanted numbers, strings, booleans, tables or tensors", name,
      rank, text:sub(2))
  end
  local bytes, n, at = ("s8I4"):unpack(text, 2)
  local tensors = {}
  for i = 1, n do tensors[i], at = read_tensor(text, at) end
  return (travel.unpack_plain(bytes, tensors))
end

local function size_of(text) return core.tensor({#text}, {dtype = "int64", device = "cpu"}) end

local bind_broadcast = options.signature("broadcast_object",
  "obj?: any, src: integer = 0, group?: group")

--- Gives a value of rank src to all ranks: numbers, strings, booleans, tables of them (without
--- functions), and tensors on the CPU. Where it cannot travel, all ranks raise.
---@param obj any on src; the others may give nil
---@param src? integer a rank of the world, from 0; 0 by default
---@param group? demilune.distributed.Group all ranks by default
---@return any obj a copy; on src the object itself
---```lua
---local dist = dm.distributed
---dist.init_process_group()
---local config = dist.broadcast_object({lr = 0.1, steps = 100}, 0)
---dist.destroy_process_group()
---```
function objects.broadcast_object(...)
  local name = "broadcast_object"
  local o = bind_broadcast(...)
  local group = world.group(name, o.group)
  world.index(name, "src", group, o.src)
  local is_there = world.rank(name) == o.src
  local text = is_there and written(o.obj) or ""
  local size = collectives.broadcast(size_of(text), o.src, group):item()
  local bytes = is_there and core._from_bytes(text)
    or core.empty({size}, {dtype = "uint8", device = "cpu"})
  collectives.broadcast(bytes, o.src, group)
  local value = read(name, core._to_bytes(bytes), o.src)
  if is_there then return o.obj end
  return value
end

local bind_all_gather = options.signature("all_gather_object", "obj?: any, group?: group")

--- The values of all ranks, on all ranks; of the kinds that broadcast_object takes.
---@param obj any
---@param group? demilune.distributed.Group all ranks by default
---@return any[] list in the order of the ranks; a nil leaves a hole
function objects.all_gather_object(...)
  local name = "all_gather_object"
  local o = bind_all_gather(...)
  local group = world.group(name, o.group)
  local text, sizes, most = written(o.obj), {}, 0
  for i, size in ipairs(collectives.all_gather(size_of(text), group)) do
    sizes[i] = size:item()
    most = math.max(most, sizes[i])
  end
  local bytes = core._from_bytes(text .. ("\0"):rep(most - #text))
  local list = {}
  for i, part in ipairs(collectives.all_gather(bytes, group)) do
    list[i] = read(name, core._to_bytes(part):sub(1, sizes[i]), group.ranks[i])
  end
  return list
end

return objects
