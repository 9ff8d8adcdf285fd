-- What the ranks of a group begin with: the same tensors, and random numbers of their own.

local core = require "demilune.core"
local collectives = require "demilune.distributed.collectives"
local shards = require "demilune.distributed.shards"

local CHUNK = 16 << 20 -- bytes that are broadcast together
local MOST_SENT = 2 -- such messages that are under way, whose memory is taken

local start = {}

-- The elements of the tensors, one after the other, in a tensor of its own: bytes of the CPU's,
-- of any dtypes, and elements of a GPU's, of one dtype.
local function joined(list)
  if list[1].device == "cpu" then return core._dist_packed(list) end
  local flat = {}
  for i, t in ipairs(list) do flat[i] = t:detach():reshape(-1) end
  return core.cat(flat)
end

-- Writes what has come.
local function write(one)
  if one.all.device == "cpu" then core._dist_unpack(one.all, one.list)
  else shards.write(one.all, one.list) end
end

--- Begins to give the tensors of the group's first rank (or of rank `root` of the world) to all,
--- in as few messages as it takes -> a function that waits for them, and writes the tensors.
---@param tensors demilune.Tensor[]
---@param group demilune.distributed.Group
---@param root? integer
---@return fun() receive
function start.send(tensors, group, root)
  local _ <close> = core.no_grad()
  local parts, sent = {}, {}
  root = root or group.ranks[1]
  local function receive()
    local one = table.remove(sent, 1)
    one.handle:wait()
    if core._dist_rank() ~= root then write(one) end
  end
  local function flush(list)
    if #sent == MOST_SENT then receive() end
    local all = joined(list)
    sent[#sent + 1] = {list = list, all = all,
      handle = collectives.broadcast(all, root, {group = group, async_op = true})}
  end
  local order = {}
  for _, t in ipairs(tensors) do
    local key = t.device == "cpu" and "cpu" or t.dtype .. t.device
    local list = parts[key]
    if not list then
      list = {bytes = 0}
      parts[key], order[#order + 1] = list, key
    end
    local bytes = t:numel() * t:element_size()
    if bytes > 0 then list[#list + 1], list.bytes = t, list.bytes + bytes end
    if list.bytes >= CHUNK then
      flush(list)
      parts[key] = {bytes = 0}
    end
  end
  for _, key in ipairs(order) do
    if parts[key].bytes > 0 then flush(parts[key]) end
  end
  return function()
    local _ <close> = core.no_grad()
    while #sent > 0 do receive() end
  end
end

--- The same, and waits for them at once.
function start.broadcast(...) start.send(...)() end

-- The seed that part_generators has made last.
local parted

--- Lets this rank's random numbers differ from now on; those of the first rank go on.
---@param index integer of this rank in its group, from 0
function start.part_generators(index)
  if index == 0 then return end
  shards.seed(core.get_rng_state(), index)
  parted = core.get_rng_state().seed
end

--- The same, unless they differ already since the last manual_seed.
function start.part_generators_once(index)
  if core.get_rng_state().seed ~= parted then start.part_generators(index) end
end

return start
