-- Backward passes that add to the gradients and send nothing to other processes.

local core = require "demilune.core"

local PAUSE = setmetatable({}, {__close = function() core._reducers_pause(-1) end})

--- Until the value that it returns is closed, no DistributedDataParallel of this process averages
--- gradients.
return function()
  core._reducers_pause(1)
  return PAUSE
end
