-- demilune.distributed: several processes that train one model (torch.distributed's names).
--
--   local dist = dm.distributed
--   dist.init_process_group()
--   local x = dm.tensor{dist.get_rank()}
--   dist.all_reduce(x)             -- the sum over all ranks, on each of them
--   dist.save("model.safetensors", {model = model, optimizer = optimizer})  -- each rank a part
--   dist.destroy_process_group()
--
-- `mpirun -n 4 lua5.4 train.lua` starts it as four ranks, which count from 0; without a launcher
-- it is a world of one rank, in which everything works and nothing is sent. All ranks make the same
-- calls in the same order: where they do not, all of them raise, and say who called what at which
-- line.

local core = require "demilune.core"
local late = require "demilune.late"
local options = require "demilune.options"
local shown = require "demilune.shown"
local world = require "demilune.distributed.world"
local collectives = require "demilune.distributed.collectives"
local objects = require "demilune.distributed.objects"
local stop = require "demilune.distributed.stop"

local distributed = {should_stop = stop.should_stop}

for _, part in ipairs{collectives, objects} do
  for name, f in pairs(part) do distributed[name] = f end
end

local bind_init = options.signature("init_process_group",
  "*, timeout?: number, warn_after?: number, reduction: 'library'|'ordered' = 'library'")

--- Joins the processes of the job, and waits for them. Under a launcher (mpirun, srun) it opens
--- MPI; else it makes a world of one rank.
---@param timeout? number seconds that a collective or a message may take, after which all ranks
--- end; 300 by default, or what DEMILUNE_DIST_TIMEOUT says
---@param warn_after? number seconds of waiting after which a report on stderr says who is not
--- there; 60 by default, or what DEMILUNE_DIST_WARN_AFTER says
---@param reduction? string how tensors on GPUs are combined: "library" (default) by NCCL, in its
--- order; "ordered" through the host, in the order of the ranks, as tensors on the CPU always are
function distributed.init_process_group(...)
  local o = bind_init(...)
  world.open(o.timeout, o.warn_after, o.reduction)
end

local bind_destroy = options.signature("destroy_process_group", "")

--- Leaves the process group, when the calls under way are done and all ranks have come as far.
--- Under MPI there is no other one after it in this process.
function distributed.destroy_process_group(...)
  bind_destroy(...)
  world.close()
end

--- Tells whether several processes can work together here: whether MPI is built in and can be
--- opened. A world of one rank needs none.
---@return boolean available
---@return string? reason where it is false
function distributed.is_available()
  local why = core._dist_lacks()
  if why then return false, why end
  return true
end

--- Tells whether init_process_group has been called and destroy_process_group not yet.
---@return boolean
function distributed.is_initialized() return world.is_open() end

local bind_rank = options.signature("get_rank", "group?: group")

--- The number of this process, from 0, in the world or in a group of which it is a member.
---@param group? demilune.distributed.Group
---@return integer
function distributed.get_rank(...)
  local group = bind_rank(...).group
  local rank = world.rank "get_rank"
  return group and world.group("get_rank", group).index_of[rank] or rank
end

local bind_size = options.signature("get_world_size", "group?: group")

--- The number of processes of the world or of a group.
---@param group? demilune.distributed.Group
---@return integer
function distributed.get_world_size(...)
  return #world.group("get_world_size", bind_size(...).group).ranks
end

--- The number of this process among those of its machine, from 0.
---@return integer
function distributed.get_node_local_rank()
  local _, rank = world.rank "get_node_local_rank"
  return rank
end

--- The device of this process: the GPU of its number on this machine, or the CPU where there is
--- none.
---@return string device such as "cuda:1"
function distributed.device()
  local n = core.cuda_count()
  local rank = distributed.get_node_local_rank()
  return n > 0 and ("cuda:%d"):format(rank % n) or "cpu"
end

local bind_group = options.signature("new_group", "ranks?: list")

--- A group of some ranks, for collectives among them. All ranks of the world make it together, with
--- the same list, those that are no members too.
---@param ranks? integer[] from 0; all by default
---@return demilune.distributed.Group group
function distributed.new_group(...) return world.new_group(bind_group(...).ranks) end

--- Counts of this process since init_process_group.
---@return table {calls =, bytes_sent =, bytes_direct =, seconds_waited =}: collectives and
--- messages; bytes that it gave to other ranks; those of them that ranks of one machine took from,
--- or put into, one another's memory; seconds in which the script waited
function distributed.stats()
  world.rank "stats"
  local calls, bytes, direct, seconds = core._dist_stats()
  return shown{calls = calls, bytes_sent = bytes, bytes_direct = direct, seconds_waited = seconds}
end

return late.extend(distributed, {
  save = "demilune.distributed.checkpoint",
  load = "demilune.distributed.checkpoint",
}, {nn = "demilune.distributed.nn"})
