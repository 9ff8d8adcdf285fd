-- Lua values between ranks: numbers, strings, booleans, tables of them, and tensors on the CPU.
-- They travel as data, never as code.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local shown = require "demilune.shown"
local travel = require "demilune.data.travel"
local collectives = require "demilune.distributed.collectives"
local exchange = require "demilune.distributed.exchange"
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

-- The value of rank src on all of them.
local function broadcast(name, obj, src, group)
  local is_there = world.rank(name) == src
  local text = is_there and written(obj) or ""
  local size = collectives.broadcast(size_of(text), src, group):item()
  local bytes = is_there and core._from_bytes(text)
    or core.empty({size}, {dtype = "uint8", device = "cpu"})
  collectives.broadcast(bytes, src, group)
  local value = read(name, core._to_bytes(bytes), src)
  if is_there then return obj end
  return value
end

local function zeros(n)
  local list = {}
  for i = 1, n do list[i] = 0 end
  return list
end

-- Gives rank i the goes[i] bytes of the text that are its part -> the bytes that come, comes[i]
-- from rank i, one after the other.
local function trade(name, key, text, goes, comes, group)
  local total = 0
  for _, size in ipairs(comes) do total = total + size end
  local out = core.empty({total}, {dtype = "uint8", device = "cpu"})
  exchange.run(group, out, core._from_bytes(text), goes, comes, {name = name, key = key, row = 1})
  return core._to_bytes(out)
end

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
  return broadcast(name, o.obj, o.src, group)
end

local bind_broadcast_list = options.signature("broadcast_object_list",
  "object_list: list, src: integer = 0, group?: group")

--- Gives the values of rank src to all ranks, in their lists; of the kinds that broadcast_object
--- takes. Where one cannot travel, all ranks raise.
---@param object_list any[] on src the values, which the others' lists have after the call
---@param src? integer a rank of the world, from 0; 0 by default
---@param group? demilune.distributed.Group all ranks by default
---@return any[] object_list
---```lua
---local dist = dm.distributed
---dist.init_process_group()
---local list = dist.broadcast_object_list(dist.get_rank() == 0 and {"a", {b = 2}} or {})
---dist.destroy_process_group()
---```
function objects.broadcast_object_list(...)
  local name = "broadcast_object_list"
  local o = bind_broadcast_list(...)
  local group, list = world.group(name, o.group), o.object_list
  world.index(name, "src", group, o.src)
  local got = broadcast(name, list, o.src, group)
  if got ~= list then
    for i in pairs(list) do list[i] = nil end
    for i, value in pairs(got) do list[i] = value end
  end
  return list
end

local bind_gather = options.signature("gather_object",
  "obj?: any, dst: integer = 0, group?: group")

--- The values of all ranks, on rank dst; of the kinds that broadcast_object takes. Where one cannot
--- travel, all ranks raise.
---@param obj any
---@param dst? integer a rank of the world, from 0; 0 by default
---@param group? demilune.distributed.Group all ranks by default
---@return any[]? list in the order of the ranks, where a nil leaves a hole; nil on the others
---```lua
---local dist = dm.distributed
---dist.init_process_group()
---local names = dist.gather_object("rank " .. dist.get_rank(), 0)
---if names then print(table.concat(names, ", ")) end
---dist.destroy_process_group()
---```
function objects.gather_object(...)
  local name = "gather_object"
  local o = bind_gather(...)
  local group = world.group(name, o.group)
  local root, n = world.index(name, "dst", group, o.dst) + 1, #group.ranks
  local text, sizes, goes = written(o.obj), {}, zeros(n)
  local fails = text:sub(1, 1) == "!"
  for i, size in ipairs(collectives.all_gather(size_of(text) * (fails and -1 or 1), group)) do
    sizes[i] = size:item()
  end
  for i, size in ipairs(sizes) do
    if size < 0 then read(name, broadcast(name, text, group.ranks[i], group), group.ranks[i]) end
  end
  goes[root] = #text
  local is_there = world.rank(name) == o.dst
  local all = trade(name, ("to rank %d"):format(o.dst), text, goes, is_there and sizes or zeros(n),
    group)
  if not is_there then return nil end
  local list, at = {}, 1
  for i, size in ipairs(sizes) do
    list[i], at = read(name, all:sub(at, at + size - 1), group.ranks[i]), at + size
  end
  return list
end

-- The values of scatter_object_list as texts, one after the other, and {sizes =}; or "" and
-- {why =}.
local function written_list(list, n)
  if not list or #list ~= n then
    return "", {why = ("gives %s, wanted scatter_object_input_list of %d"):format(list
      and ("a list of %d values"):format(#list) or "no list", n)}
  end
  local texts, sizes = {}, {}
  for i = 1, n do
    texts[i] = written(list[i])
    sizes[i] = #texts[i]
    if texts[i]:sub(1, 1) == "!" then
      return "", {why = ("%s in element %d, wanted numbers, strings, booleans, tables or tensors")
        :format(texts[i]:sub(2), i)}
    end
  end
  return table.concat(texts), {sizes = sizes}
end

local bind_scatter = options.signature("scatter_object_list",
  "scatter_object_output_list: list, scatter_object_input_list?: list, src: integer = 0, "
  .. "group?: group")

--- Gives each rank its value of the list on rank src; of the kinds that broadcast_object takes.
--- Where one cannot travel, or the list has another length, all ranks raise.
---@param scatter_object_output_list any[] gets the value as its first element
---@param scatter_object_input_list? any[] on src: a value for each rank, in their order
---@param src? integer a rank of the world, from 0; 0 by default
---@param group? demilune.distributed.Group all ranks by default
---@return any obj the value
---```lua
---local dist = dm.distributed
---dist.init_process_group()
---local files = {}
---for i = 1, dist.get_world_size() do files[i] = ("part-%d.csv"):format(i) end
---local mine = dist.scatter_object_list({}, dist.get_rank() == 0 and files or nil, 0)
---dist.destroy_process_group()
---```
function objects.scatter_object_list(...)
  local name = "scatter_object_list"
  local o = bind_scatter(...)
  local group = world.group(name, o.group)
  local root, n = world.index(name, "src", group, o.src) + 1, #group.ranks
  local rank = world.rank(name)
  local text, told = "", nil
  if rank == o.src then text, told = written_list(o.scatter_object_input_list, n) end
  told = broadcast(name, told, o.src, group)
  if told.why then caller.raise("%s: rank %d %s", name, o.src, told.why) end
  local comes = zeros(n)
  comes[root] = told.sizes[group.index_of[rank] + 1]
  local mine = trade(name, ("from rank %d"):format(o.src), text,
    rank == o.src and told.sizes or zeros(n), comes, group)
  local value = read(name, mine, o.src)
  o.scatter_object_output_list[1] = value
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
