-- What the ranks of a group begin with: the same tensors, and random numbers of their own.

local core = require "demilune.core"
local collectives = require "demilune.distributed.collectives"
local shards = require "demilune.distributed.shards"

local CHUNK = 1 << 22 -- elements that are broadcast together

local start = {}

--- Gives the tensors of the group's first rank (or of rank `root` of the world) to all, in as few
--- messages as it takes.
---@param tensors demilune.Tensor[]
---@param group demilune.distributed.Group
---@param root? integer
function start.broadcast(tensors, group, root)
  local _ <close> = core.no_grad()
  local parts = {}
  local function flush(list)
    local flat = {}
    for i, t in ipairs(list) do flat[i] = t:detach():reshape(-1) end
    local all, at = collectives.broadcast(core.cat(flat), root or group.ranks[1], group), 1
    for _, t in ipairs(list) do
      local n = t:numel()
      t:detach():copy_(all[{{at, at + n - 1}}]:reshape(t.shape))
      at = at + n
    end
  end
  local order = {}
  for _, t in ipairs(tensors) do
    local key = t.dtype .. t.device
    local list = parts[key]
    if not list then
      list = {n = 0}
      parts[key], order[#order + 1] = list, key
    end
    if t:numel() > 0 then list[#list + 1], list.n = t, list.n + t:numel() end
    if list.n >= CHUNK then
      flush(list)
      parts[key] = {n = 0}
    end
  end
  for _, key in ipairs(order) do
    if parts[key].n > 0 then flush(parts[key]) end
  end
end

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
