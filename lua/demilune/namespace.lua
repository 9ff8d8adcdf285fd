-- A module whose functions are the ops of one prefix: linalg.inv is the op linalg_inv.

local core = require "demilune.core"
local late = require "demilune.late"

--- The functions in own, and core[prefix .. name] as name. pairs gives all of them.
return function(prefix, own)
  local function load(self, name)
    local fn = type(name) == "string" and core[prefix .. name] or nil
    if fn ~= nil then rawset(self, name, fn) end
    return fn
  end
  return late.computed(own or {}, load, function()
    late.require "demilune.ops"
    local set = {}
    for name in next, core do
      if name:sub(1, #prefix) == prefix then set[name:sub(#prefix + 1)] = true end
    end
    return set
  end)
end
