-- demilune.cuda: what CUDA devices there are.

local cuda = {}

-- false and the reason, where there is none.
function cuda.is_available() return false, "this build has no CUDA part" end

function cuda.device_count() return 0 end

-- dm.cuda.amp is dm.amp: regions there find their device themselves.
return setmetatable(cuda, {
  __index = function(_, name)
    if name == "amp" then return require "demilune.amp" end
  end,
})
