-- nn.functional: every op, and what is several ops.

local core = require "demilune.core"

return setmetatable({}, {__index = core})
