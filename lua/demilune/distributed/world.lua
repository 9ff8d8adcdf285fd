-- The processes of a job, the groups among them, and the works that they do together.
--
-- C does the work (src/dist), in a thread of its own. Here are the checks of what a script gives,
-- and the waiting: it asks again every 50 ms, so that Ctrl-C comes through.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"

local world = {}

local SHARED = 4 << 20 -- bytes of shared memory that Open MPI takes for a rank
local FOREVER = 1e9 -- seconds, for a timeout beyond which no clock counts

-- What init_process_group has made: {world = the group of all ranks}; nil before and after.
local current
local guard -- ends the world with the Lua state; one for good
local told_of_host -- that tensors on devices go through the host: once a process
local ended -- the reason why there is none any more; or nil

-- ---- launchers ----

local function more_than_one(name)
  local n = math.tointeger(tonumber(os.getenv(name) or ""))
  return n and n > 1
end

-- Whether a launcher has started this process as one of several: mpirun of Open MPI or of
-- MPICH, or Slurm's srun.
function world.is_launched()
  if os.getenv "OMPI_COMM_WORLD_SIZE" then return more_than_one "OMPI_COMM_WORLD_SIZE" or false end
  if os.getenv "PMI_SIZE" then return more_than_one "PMI_SIZE" or false end
  if os.getenv "PMIX_RANK" or os.getenv "PMI_RANK" then return true end
  return os.getenv "SLURM_PROCID" ~= nil and (more_than_one "SLURM_NTASKS" or false)
end

-- ---- groups ----

--- Ranks that communicate among themselves.
---@class demilune.distributed.Group
---@field ranks integer[] their numbers in the world, from 0, in rising order
local Group = {class = "Group"}
Group.__index = Group

function Group:__tostring() return ("Group{%s}"):format(table.concat(self.ranks, ", ")) end

options.kind("group", function(v) return getmetatable(v) == Group end,
  "a group; hint: dist.new_group{0, 1}")

local function new_group(index, ranks)
  local me = core._dist_rank()
  local self = setmetatable({index = index, ranks = ranks, index_of = {}}, Group)
  for i, rank in ipairs(ranks) do self.index_of[rank] = i - 1 end
  self.is_member = self.index_of[me] ~= nil
  return self
end

-- Whether the process group is there.
function world.is_open() return current ~= nil and core._dist_rank() ~= nil end

-- Raises unless the process group is there.
local function check_open(name)
  if world.is_open() then return end
  if current then
    caller.raise("%s: this process was forked after init_process_group, and speaks with no other",
      name)
  end
  caller.raise("%s: there is no process group%s", name,
    ended and " any more: " .. ended or "; hint: dist.init_process_group() first")
end

-- The group that is meant, the world by default; raises where this rank is no member.
function world.group(name, group)
  check_open(name)
  group = group or current.world
  if not group.is_member then
    caller.raise("%s: rank %d is no member of this group; hint: its ranks are {%s}", name,
      core._dist_rank(), table.concat(group.ranks, ", "))
  end
  return group
end

-- The rank of this process and its rank on this machine.
function world.rank(name)
  check_open(name)
  return core._dist_rank()
end

-- The index of a rank in the group, from 0; raises where it has none.
function world.index(name, what, group, rank)
  local index = group.index_of[rank]
  if not index then
    caller.raise("%s: %s is %d, wanted a rank of the group, one of {%s}; hint: ranks count from 0",
      name, what, rank, table.concat(group.ranks, ", "))
  end
  return index
end

-- ---- works ----

local function checked_seconds(name, timeout, what)
  if math.type(timeout) and timeout > 0 then return math.min(timeout, FOREVER) end
  caller.raise("%s: %s is %s, wanted seconds above 0", name, what or "timeout", tostring(timeout))
end

-- Waits for the work; raises what went wrong.
local function finish(name, work)
  while true do
    local done, why = work:wait()
    if done then return end
    if done == nil then caller.raise("%s: %s", name, why) end
  end
end

--- A collective or a message that is under way.
---@class demilune.distributed.Handle
local Handle = {class = "Handle"}
Handle.__index = Handle

local bind_wait = options.signature("wait", "timeout?: number")

--- Waits until it is done. A timeout that has passed ends the process group, as the one of
--- init_process_group does.
---@param timeout? number seconds from now; that of init_process_group by default, since the call
---@return any the result of the call without async_op, of irecv also the rank that has sent it
---```lua
---local h = dist.all_reduce(x, {async_op = true})
---local y = h:wait{timeout = 60}
---```
function Handle:wait(...)
  local o = bind_wait(...)
  if not self.finished then
    if o.timeout then
      self.work:limit(checked_seconds("wait", o.timeout))
    end
    finish(self.name, self.work)
    self.result, self.source = self.after(self.work)
    self.finished = true
  end
  if self.source then return self.result, self.source end
  return self.result
end

--- Tells whether it is done, so that wait() returns or raises at once.
---@return boolean
function Handle:is_completed() return self.finished or self.work:wait(0) ~= false end

-- The end of `local h <close>` waits, unless an error ends the block.
function Handle:__close(failure)
  if failure == nil then self:wait() end
end

caller.with_colon(Handle, "handle", "wait is_completed")

-- Lets the ranks of a group tell one another which devices they have, before the first call with
-- tensors on such; all of them make it together.
local function connect(name, group, x)
  if not core._dist_way(group.index) then
    finish(name, core._dist_post("connect", group.index, 0, nil, x, nil, "connect", "",
      caller.where()))
  end
  local way, why, device = core._dist_way(group.index)
  group.way, group.device = way, device
  if way == "host" and not told_of_host and group.index_of[core._dist_rank()] == 0 then
    caller.warn("%s: tensors on GPUs go through the host and MPI, not by NCCL: %s", name, why)
  end
  told_of_host = told_of_host or way == "host"
end

-- Whether a call of that kind goes from x's device, by NCCL.
function world.stays(name, group, kind, op, x)
  if x.device == "cpu" or #group.ranks == 1 then return false end
  if not group.way then connect(name, group, x) end
  if group.way == "link" and x.device ~= group.device then
    caller.raise("%s: a tensor on %s, and NCCL links this rank by %s; hint: dist.device()", name,
      x.device, group.device)
  end
  return core._dist_takes(group.index, kind, op, x)
end

-- Starts what {kind =, name =, group =, peer =, op =, input =, output =, key =, stays =} describes,
-- and waits for it unless async. stays: the tensors are on the device; an exchange has sizes, and
-- the elements of a row, too, a message a tag. after(work) then makes the result.
function world.run(job, is_async, after)
  local key = (job.key or "") .. (job.stays and " on cuda" or "")
  local work = core._dist_post(job.kind, job.group.index, job.peer, job.op, job.input, job.output,
    job.name, key, caller.where(), job.sizes, job.row, job.tag)
  if is_async then
    return setmetatable({work = work, name = job.name, after = after}, Handle)
  end
  finish(job.name, work)
  return after(work)
end

local function nothing() end

-- ---- begin and end ----

local function range(n)
  local ranks = {}
  for i = 1, n do ranks[i] = i - 1 end
  return ranks
end

-- Waits until the world is open; raises where that fails, or takes too long.
local function wait_open(timeout)
  local from = os.time()
  while true do
    local is_open, why = core._dist_opened()
    if is_open then return end
    if is_open == nil then caller.raise("init_process_group: %s", why) end
    if os.difftime(os.time(), from) > timeout then
      caller.raise("init_process_group: not all ranks have called it within %g s", timeout)
    end
  end
end

-- The seconds that were given, or those of an environment variable, or by default.
local function seconds_of(option, given, variable, default)
  local name = "init_process_group"
  if given then return checked_seconds(name, given, option) end
  local text = os.getenv(variable)
  return text and checked_seconds(name, tonumber(text) or text, variable) or default
end

-- Ranks of this machine; nil: the launcher does not say.
local function n_local()
  return math.tointeger(tonumber(os.getenv "OMPI_COMM_WORLD_LOCAL_SIZE"
    or os.getenv "MPI_LOCALNRANKS" or ""))
end

-- Warns of what makes ranks of one machine slow, or ends them, by the first of them.
local function warn_of_machine()
  local first = os.getenv "OMPI_COMM_WORLD_LOCAL_RANK" or os.getenv "MPI_LOCALRANKID"
  local n = n_local()
  if first ~= "0" or not n then return end
  local own, all, shared = core._dist_machine()
  if own == 1 and all and all > n and not os.getenv "DEMILUNE_NUM_THREADS" then
    caller.warn("init_process_group: a rank is bound to one of %d processors, and %d of them stay "
      .. "idle; hint: mpirun --bind-to none", all, all - n)
  end
  if shared and shared < n * SHARED then
    caller.warn("init_process_group: /dev/shm has %.1f MiB left, wanted %.0f for %d ranks of this "
      .. "machine, which else may end by SIGBUS; hint: docker run --shm-size=1g", shared / 2^20,
      n * SHARED / 2^20, n)
  end
end

-- Opens the world of all ranks.
function world.open(timeout, warn_after, reduction)
  if current then
    caller.raise "init_process_group: was called before; hint: dist.destroy_process_group() ends it"
  end
  timeout = seconds_of("timeout", timeout, "DEMILUNE_DIST_TIMEOUT", 300)
  warn_after = seconds_of("warn_after", warn_after, "DEMILUNE_DIST_WARN_AFTER", 60)
  local by_mpi = world.is_launched()
  if by_mpi then warn_of_machine() end
  local why = core._dist_open(by_mpi, timeout, warn_after, reduction == "ordered")
  if why then
    local hint = core._dist_lacks() and "; hint: MPI is an option of the build, WITH_MPI=1, and "
      .. "takes an MPI with its headers (Debian: libopenmpi-dev)" or ""
    caller.raise("init_process_group: %s%s", why, hint)
  end
  guard = guard or core._dist_guard()
  wait_open(timeout)
  current, ended = {world = new_group(0, range(core._dist_size()))}, nil
end

-- Ends it, after all ranks have come as far.
function world.close()
  check_open "destroy_process_group"
  core._dist_leave()
  local left, why
  repeat left, why = core._dist_left() until left
  current, ended = nil, "destroy_process_group has ended it"
  if why then caller.raise("destroy_process_group: %s", why) end
end

-- The ranks of a new group in rising order, each once.
local function checked_ranks(ranks)
  local sorted, seen = {}, {}
  for i, rank in ipairs(ranks) do
    local whole = math.tointeger(rank)
    if not whole or not current.world.index_of[whole] then
      caller.raise("new_group: rank %s, wanted integers from 0 to %d", tostring(rank),
        #current.world.ranks - 1)
    elseif seen[whole] then
      caller.raise("new_group: rank %d is given twice", whole)
    end
    sorted[i], seen[whole] = whole, true
  end
  if #sorted == 0 then caller.raise "new_group: no ranks, wanted one at least" end
  table.sort(sorted)
  return sorted
end

-- A group of these ranks, or of all. All ranks of the world make it together.
function world.new_group(ranks)
  check_open "new_group"
  ranks = checked_ranks(ranks or current.world.ranks)
  local group = new_group(core._dist_new_group(ranks), ranks)
  return world.run({kind = "new_group", name = "new_group", group = group,
    key = ("{%s}"):format(table.concat(ranks, ", "))}, false, function() return group end)
end

-- A second group of a group's ranks, made at its first use, which they reach together. For what
-- backward passes exchange between the buckets of gradients: a rank that has not used a parameter
-- sends its bucket later than the others, and collectives of one group keep their order.
function world.aside(group)
  if not group.aside then
    local aside = new_group(core._dist_new_aside(group.index), group.ranks)
    world.run({kind = "new_group", name = "new_group", group = aside,
      key = ("{%s}, aside"):format(table.concat(group.ranks, ", "))}, false, nothing)
    group.aside = aside
  end
  return group.aside
end

return world
