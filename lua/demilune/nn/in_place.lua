-- in_place(op): the op in place, x becoming the result, for layers with the option inplace.

local core = require "demilune.core"

return function(op)
  -- Without the ops written in Lua, which a read of a name that C lacks would load.
  return rawget(core, op .. "_") or function(x, ...) return x:copy_(core[op](x, ...)) end
end
