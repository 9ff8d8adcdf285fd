-- One file for all ranks: dist.save and dist.load.
--
-- The layout of a safetensors file is known from names, dtypes and shapes. So each rank writes what
-- it has to the bytes where it belongs, of one temporary file, and the first one gives it its name
-- when all have done so. A checksum goes over the whole of a tensor: a rank that has written its
-- part of one hands the sum so far to the rank that goes on. Ranks that do not find the temporary
-- file, as their disk is another one, send their parts to the first rank.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local collectives = require "demilune.distributed.collectives"
local objects = require "demilune.distributed.objects"
local shard = require "demilune.distributed.shard"
local world = require "demilune.distributed.world"
local files = require "demilune.io"

local checkpoint = {}

-- ---- trees ----

-- Whether v has a state of its own.
local function is_stateful(v)
  local meta = getmetatable(v)
  return type(v) == "table" and type(meta) == "table" and type(v.state_dict) == "function"
end

-- What saves the state: of a DistributedDataParallel the module itself, whose names one process
-- has too.
local function bare(v) return v.class == "DistributedDataParallel" and v.module or v end

-- The tree with the states of modules, optimizers and the like in their positions. All ranks come
-- by them in one order.
local function with_states(v, depth)
  if is_stateful(v) then
    v = bare(v)
    return v.sharded_state_dict and v:sharded_state_dict() or v:state_dict()
  elseif type(v) ~= "table" or getmetatable(v) ~= nil or depth > 30 then
    return v
  end
  local keys, out = {}, {}
  for key in next, v do keys[#keys + 1] = key end
  table.sort(keys, function(a, b)
    if type(a) ~= type(b) then return type(a) < type(b) end
    return type(a) == "boolean" and not a and b or type(a) ~= "boolean" and a < b
  end)
  for _, key in ipairs(keys) do out[key] = with_states(v[key], depth + 1) end
  return out
end

-- ---- agreement ----

-- The first failure of the ranks, "rank 3: ..."; or nil. own: this rank's, or nil.
local function failure_of(group, own)
  for i, why in ipairs(objects.all_gather_object(own or false, group)) do
    if why then return ("rank %d: %s"):format(group.ranks[i], why) end
  end
end

-- What the group's first rank says.
local function from_first(group, value)
  return objects.broadcast_object(value, group.ranks[1], group)
end

-- ---- who writes what ----

-- {name =, dtype =, shape =, is_shard =} of all tensors, by name.
local function entries_of(tensors)
  local list = {}
  for name, t in pairs(tensors) do
    list[#list + 1] = {name = name, dtype = t.dtype, shape = {table.unpack(t.shape)},
      is_shard = shard.is(t)}
  end
  table.sort(list, function(a, b) return a.name < b.name end)
  return list
end

local function text_of(entry)
  return ("{%s} %s"):format(table.concat(entry.shape, ", "), entry.dtype)
end

-- The names of tensors that this rank does not have as the first one has; and where one of them is
-- in shares, or of another group, the failure in words.
local function lacking(entries, tensors, group)
  local names = {}
  for _, entry in ipairs(entries) do
    local t = tensors[entry.name]
    local is_alike = t ~= nil and t.dtype == entry.dtype and shard.is(t) == entry.is_shard
      and text_of{shape = t.shape, dtype = t.dtype} == text_of(entry)
    if not is_alike then names[#names + 1] = entry.name end
    if not is_alike and entry.is_shard then
      return names, ("'%s' is not %s in shares, as on the first rank"):format(entry.name,
        text_of(entry))
    elseif entry.is_shard and t.group ~= group then
      return names, ("'%s' is in shares of another group of ranks"):format(entry.name)
    end
  end
  return names
end

-- Adds to is_lacking the tensors that are not the same on all ranks, bit by bit, such as a batch
-- norm's statistics: the first rank writes its own.
local function note_differing(entries, tensors, group, is_lacking)
  local names, list = {}, {}
  for _, entry in ipairs(entries) do
    if not entry.is_shard and not is_lacking[entry.name] then
      names[#names + 1], list[#list + 1] = entry.name, tensors[entry.name]
    end
  end
  if #list == 0 then return end
  local all = collectives.all_gather(core._digests(list), group)
  for i = 2, #all do
    local own, first = all[i]:totable(), all[1]:totable()
    for k, name in ipairs(names) do
      if own[k] ~= first[k] then is_lacking[name] = true end
    end
  end
end

local function numel_of(shape)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  return n
end

-- Gives each entry its owners. What all ranks have goes as a whole to the one that writes the
-- least; what not all have, to the first.
local function assign(entries, tensors, group, is_lacking)
  local order, loads = {}, {}
  for i = 0, #group.ranks - 1 do loads[i] = 0 end
  for i, entry in ipairs(entries) do
    entry.n = numel_of(entry.shape)
    local t = tensors[entry.name]
    if entry.is_shard then
      entry.owners = t.owners
    elseif is_lacking[entry.name] then
      entry.owners = {{index = 0, from = 0, n = entry.n}}
    else
      order[#order + 1] = i
    end
  end
  table.sort(order, function(a, b)
    local x, y = entries[a].n, entries[b].n
    return x > y or x == y and a < b
  end)
  for _, i in ipairs(order) do
    local least = 0
    for k = 1, #group.ranks - 1 do
      if loads[k] < loads[least] then least = k end
    end
    loads[least] = loads[least] + entries[i].n
    entries[i].owners = {{index = least, from = 0, n = entries[i].n}}
  end
end

-- ---- writing ----

-- This rank's part of an entry.
local function own_part(t) return shard.is(t) and t.own:detach() or t end

local function bytes_to(to, text, group)
  collectives.send(core._from_bytes(text), to, group)
end

local function bytes_from(from, n, group)
  local x = core.empty({n}, {dtype = "uint8", device = "cpu"})
  return core._to_bytes(collectives.recv(x, from, group))
end

-- Each rank writes its own parts; -> the checksums of those entries that it ended, and the failure.
local function write_own(file, entries, tensors, group, me)
  local sums, failure = {}, nil
  for i, entry in ipairs(entries) do
    for k, owner in ipairs(entry.owners) do
      if owner.index == me then
        local before, next_one = entry.owners[k - 1], entry.owners[k + 1]
        local sum = file:begin(i)
        if before then sum = bytes_from(group.ranks[before.index + 1], #sum, group) end
        if not failure then
          local done, why = file:write(i, owner.from, own_part(tensors[entry.name]), sum)
          sum, failure = done or sum, why -- the others wait for a sum, whatever it is
        end
        if next_one then
          bytes_to(group.ranks[next_one.index + 1], sum, group)
        else
          sums[i] = sum
        end
      end
    end
  end
  if not failure then
    local fine, why = file:sync()
    failure = not fine and why or nil
  end
  return sums, failure
end

-- The first rank writes all; the others send it their parts, one after the other.
local function write_by_first(file, entries, tensors, group, me)
  local sums, failure = {}, nil
  for i, entry in ipairs(entries) do
    sums[i] = me == 0 and file:begin(i) or nil
    for _, owner in ipairs(entry.owners) do
      local part = owner.index == me and own_part(tensors[entry.name]):reshape(-1) or nil
      local from = group.ranks[owner.index + 1]
      if me == 0 then
        if not part then
          part = core.empty({owner.n}, {dtype = entry.dtype, device = "cpu"})
          if owner.n > 0 then collectives.recv(part, from, group) end
        end
        if not failure then
          local done, why = file:write(i, owner.from, part, sums[i])
          sums[i], failure = done or sums[i], why
        end
      elseif part and owner.n > 0 then
        collectives.send(part, group.ranks[1], group)
      end
    end
  end
  return sums, failure
end

-- Opens the temporary file on all ranks: -> the file, and whether all have it; or nil and why the
-- first one cannot.
local function open_all(path, entries, metadata, group, me, gather)
  local file, why
  if me == 0 then file, why = core._parts_open(path, nil, entries, metadata) end
  local told = from_first(group, {temp = file and file:temp(), why = why})
  if told.why then return nil, ("rank %d: %s"):format(group.ranks[1], told.why) end
  if me ~= 0 and not gather then file = core._parts_open(path, told.temp, entries, metadata) end
  local is_shared = true
  for _, has_it in ipairs(objects.all_gather_object(file ~= nil, group)) do
    is_shared = is_shared and has_it
  end
  return file, is_shared
end

-- Writes the parts, and ends the file; -> true, or nil and a message, on all ranks alike.
local function write_all(file, entries, tensors, group, me, is_shared)
  local write = is_shared and write_own or write_by_first
  local sums, failure = write(file, entries, tensors, group, me)
  failure = failure_of(group, failure)
  if failure then return nil, failure end
  local all = {}
  for _, of_rank in ipairs(objects.all_gather_object(is_shared and sums or {}, group)) do
    for i, sum in pairs(of_rank) do all[i] = sum end
  end
  local fine, why
  if me == 0 then fine, why = file:finish(is_shared and all or sums) end
  why = from_first(group, not fine and why or false)
  if why then return nil, ("rank %d: %s"):format(group.ranks[1], why) end
  return true
end

local bind_save = options.signature("distributed.save",
  "path: string, tree: any, *, group?: group, gather: boolean = false")

--- Writes a tree of tensors, plain values, and modules, optimizers and the like, whose states it
--- takes, to one file: the bytes that dm.save writes of them in one process, where an optimizer in
--- shares has the state of all. All ranks call it with trees of the same tensors; of plain values,
--- and of tensors that differ, those of the first rank count. Each rank writes a part. Where a rank
--- does not see the first one's disk, all parts go through the first rank, one after the other. The
--- old file stays as it is until the new one is whole.
---@param path string
---@param tree any
---@param group? demilune.distributed.Group all ranks by default
---@param gather? boolean the first rank writes everything, also where all see its disk
---@return boolean? true; or, on all ranks, nil and a message that names one
---```lua
---local dist = dm.distributed
---dist.init_process_group()
---local model = nn.Linear(4, 1)
---assert(dist.save("model.safetensors", {model = model, epoch = 3}))
---dist.destroy_process_group()
---```
function checkpoint.save(...)
  local o = bind_save(...)
  local group = world.group("distributed.save", o.group)
  local me = group.index_of[world.rank "distributed.save"]
  local fine, tensors, metadata = pcall(function()
    return files._encode(with_states(o.tree, 0), shard.is)
  end)
  local failure = failure_of(group, not fine and tostring(tensors) or nil)
  if failure then caller.raise("distributed.save: %s", failure) end
  local plan = from_first(group, me == 0 and {entries = entries_of(tensors), metadata = metadata})
  local names, why = lacking(plan.entries, tensors, group)
  failure = failure_of(group, why)
  if failure then caller.raise("distributed.save: the ranks' trees differ: %s", failure) end
  local is_lacking = {}
  for _, list in ipairs(objects.all_gather_object(names, group)) do
    for _, name in ipairs(list) do is_lacking[name] = true end
  end
  note_differing(plan.entries, tensors, group, is_lacking)
  assign(plan.entries, tensors, group, is_lacking)
  local file, is_shared = open_all(o.path, plan.entries, plan.metadata, group, me, o.gather)
  if type(is_shared) == "string" then return nil, is_shared end
  local _ <close> = file
  return write_all(file, plan.entries, tensors, group, me, is_shared)
end

-- ---- reading ----

-- A tensor in a file, until it is read: whole, or the parts of it that are wanted.
local Stored = {class = "Stored"}
Stored.__index = Stored

function Stored:__tostring() return ("Stored('%s', %s)"):format(self.name, text_of(self)) end

--- Asks for n elements behind the first `from` only.
function Stored:want(from, n)
  self.parts = self.parts or {}
  table.insert(self.parts, {from = from, n = n})
end

--- The elements that were asked for, as a tensor {n}.
function Stored:part(from, n)
  for _, part in ipairs(self.parts) do
    if part.from == from and part.n == n then return part.tensor end
  end
end

-- Reads what is wanted of entry i; -> nil, or why it cannot.
local function read_own(file, i, stored)
  if not stored.parts then
    local why
    stored.tensor, why = file:read(i)
    return why
  end
  for _, part in ipairs(stored.parts) do
    local whole = part.n == numel_of(stored.shape)
    local t, why = file:read(i, not whole and part.from or nil, not whole and part.n or nil)
    if not t then return why end
    part.tensor = t:reshape(-1)
  end
end

-- The first rank reads entry i, and gives it to all.
local function read_by_first(file, i, stored, group)
  local t, why
  if file then t, why = file:read(i) end
  why = from_first(group, why or false)
  if why then return why end
  t = t or core.empty(stored.shape, {dtype = stored.dtype, device = "cpu"})
  if t:numel() > 0 then collectives.broadcast(t, group.ranks[1], group) end
  if not stored.parts then
    stored.tensor = t
    return
  end
  for _, part in ipairs(stored.parts) do
    part.tensor = t:reshape(-1):narrow(1, part.from + 1, part.n):clone()
  end
end

-- The tree with tensors for what was read whole.
local function filled(v)
  if getmetatable(v) == Stored then return v.parts and v or v.tensor end
  if type(v) ~= "table" then return v end
  for key, item in next, v do v[key] = filled(item) end
  return v
end

-- Opens the file -> it, whether all ranks see it, and {entries =, metadata =}; or nil and why not.
local function open_stored(path, group, me, gather)
  local file, why
  if me == 0 or not gather then file, why = core._stored_open(path) end
  local told = from_first(group, me == 0 and {why = why, entries = file and file:entries(),
    metadata = file and file:metadata()})
  if told.why then return nil, ("rank %d: %s"):format(group.ranks[1], told.why) end
  local is_same = file ~= nil
  if is_same and me ~= 0 then
    local own, first = file:metadata(), told.metadata
    for key in pairs(first) do is_same = is_same and own[key] == first[key] end
    for i, entry in ipairs(file:entries()) do
      local other = told.entries[i]
      is_same = is_same and other ~= nil and entry.name == other.name
        and text_of(entry) == text_of(other)
    end
  end
  local is_shared = true
  for _, fine in ipairs(objects.all_gather_object(is_same, group)) do
    is_shared = is_shared and fine
  end
  return file, is_shared, told
end

-- The tree of a file. into: {key = what takes the part of that key}; an optimizer in shares has its
-- part with what it wants of the tensors only. Nil and a message, on all ranks alike.
function checkpoint.read(path, into, group, gather)
  group = world.group("distributed.load", group)
  local me = group.index_of[world.rank "distributed.load"]
  local file, is_shared, told = open_stored(path, group, me, gather)
  if type(is_shared) == "string" then return nil, is_shared end
  local _ <close> = file
  local tensors = {}
  for _, entry in ipairs(told.entries) do tensors[entry.name] = setmetatable(entry, Stored) end
  local tree, why = files._decode(path, told.metadata, tensors)
  if tree == nil then return nil, why end
  for key, part in pairs(into) do
    if part.want_state and type(tree) == "table" and tree[key] then part:want_state(tree[key]) end
  end
  local failure
  for i, entry in ipairs(told.entries) do
    if is_shared then
      failure = failure or read_own(file, i, entry)
    else
      failure = read_by_first(file, i, entry, group)
      if failure then return nil, ("rank %d: %s"):format(group.ranks[1], failure) end
    end
  end
  failure = failure_of(group, failure)
  if failure then return nil, failure end
  return filled(tree)
end

local bind_load = options.signature("distributed.load",
  "path: string, into?: table, *, group?: group, gather: boolean = false")

--- Reads a file of dist.save or dm.save, of any number of ranks. What `into` has under a key of the
--- saved tree loads the state there: modules, optimizers, schedules. An optimizer in shares reads
--- its share only; tensors that are read whole are compared with their checksums. All ranks call
--- it; where one does not see the first one's file, that one reads for all.
---@param path string
---@param into? table {model = module, optimizer = optimizer, ...}
---@param group? demilune.distributed.Group all ranks by default
---@param gather? boolean the first rank reads for all, also where all see the file
---@return any? tree what else the file holds; or, on all ranks, nil and a message that names one
---```lua
---local dist = dm.distributed
---dist.init_process_group()
---local model = nn.Linear(4, 1)
---assert(dist.save("model.safetensors", {model = model, epoch = 3}))
---dist.load("model.safetensors", {model = model}).epoch                  --> 3
---dist.destroy_process_group()
---```
function checkpoint.load(...)
  local o = bind_load(...)
  local into = {}
  for key, part in pairs(o.into or {}) do
    if type(part) ~= "table" or not part.load_state_dict then
      caller.raise("distributed.load: '%s' is a %s, wanted a module, an optimizer or the like",
        tostring(key), type(part))
    end
    into[key] = bare(part)
  end
  local tree, why = checkpoint.read(o.path, into, o.group, o.gather)
  if tree == nil then return nil, why end
  local keys = {}
  for key in pairs(into) do
    if type(tree) ~= "table" or tree[key] == nil then
      caller.raise("distributed.load: '%s' has no '%s'", o.path, tostring(key))
    end
    keys[#keys + 1] = key
  end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  for _, key in ipairs(keys) do
    into[key]:load_state_dict(tree[key])
    tree[key] = nil
  end
  return tree
end

return checkpoint
