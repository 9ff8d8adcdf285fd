-- A module whose functions are the ops of one prefix: linalg.inv is the op linalg_inv.

local core = require "demilune.core"

--- The functions in own, and core[prefix .. name] as name.
return function(prefix, own)
  return setmetatable(own or {}, {__index = function(self, name)
    local fn = type(name) == "string" and core[prefix .. name] or nil
    if fn ~= nil then rawset(self, name, fn) end
    return fn
  end})
end
