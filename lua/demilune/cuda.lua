-- demilune.cuda: what CUDA devices there are.

local cuda = {}

-- false and the reason, where there is none.
function cuda.is_available() return false, "this build has no CUDA part" end

function cuda.device_count() return 0 end

return cuda
