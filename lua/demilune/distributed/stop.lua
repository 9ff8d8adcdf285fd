-- SIGTERM and SIGUSR1, by which clusters ask a job to save its state and end.

local core = require "demilune.core"
local options = require "demilune.options"
local collectives = require "demilune.distributed.collectives"
local world = require "demilune.distributed.world"

local stop = {}

local LISTENS = {__close = function() core._dist_listen(false) end}

-- Until the value that it returns is closed the signals do not end this process, but are told to
-- all ranks.
function stop.listen()
  core._dist_listen(true)
  return setmetatable({}, LISTENS)
end

local is_direct = false

-- From now on the ranks ask one another, as not every step has a backward pass that carries the
-- answer.
function stop.ask_directly() is_direct = true end

-- What all ranks know at this step: whether one of them was asked to stop.
function stop.is_asked(name)
  local signal, is_agreed, is_carried = core._dist_stop()
  if #world.group(name).ranks == 1 then return signal ~= nil end
  if is_carried and not is_direct then return is_agreed end
  local one = core.tensor({signal and 1 or 0}, {dtype = "uint8", device = "cpu"})
  return collectives.all_reduce(one, "max"):item() > 0
end

local bind = options.signature("should_stop", "")
local listener -- for good

--- Tells whether the job is to save its state and end: whether one of the ranks has got SIGTERM or
--- SIGUSR1, as clusters send them before a job's time is over. It gives the same on all ranks,
--- which call it at the same step. Where a DistributedDataParallel over all ranks is trained its
--- backward() carries the answer, else the call is a small collective. From the first call on the
--- two signals no longer end this process. A Trainer with a checkpoint does all this itself.
---@return boolean
---```lua
---local dist = dm.distributed
---dist.init_process_group()
---for step = 1, 3 do
---  -- forward, backward, optimizer:step()
---  if dist.should_stop() then
---    -- the first rank saves
---    break
---  end
---end
---dist.destroy_process_group()
---```
function stop.should_stop(...)
  bind(...)
  world.rank "should_stop"
  listener = listener or stop.listen()
  return stop.is_asked "should_stop"
end

return stop
