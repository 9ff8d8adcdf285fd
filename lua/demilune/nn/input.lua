-- The check of layers that ask their input for its dims before an op sees it.

local core = require "demilune.core"
local caller = require "demilune.caller"

--- Raises unless x is a tensor; a number has the hint of core's ops.
---@param name string the layer's class
---@param x any
return function(name, x)
  if core.is_tensor(x) then return end
  caller.raise("%s: x: tensor expected, got %s%s", name, type(x), type(x) == "number"
    and "; hint: a DataLoader gives i, x, y: `for i, x, y in loader`" or "")
end
