-- Numbers that are given to a writer or a board.

local core = require "demilune.core"
local caller = require "demilune.caller"

local number = {}

--- The number, or that in a tensor of one element, which waits for its device; a boolean there
--- counts as 0 or 1. Raises for other values.
---@param what string the method, for the message
---@param name string of the value
---@param v any
---@return number
function number.of(what, name, v)
  if core.is_tensor(v) then
    if v:numel() ~= 1 then
      caller.raise("%s: '%s' has shape %s, wanted one element", what, name, v.shape)
    end
    v = v:item()
    return type(v) == "boolean" and (v and 1 or 0) or v
  elseif type(v) ~= "number" then
    caller.raise("%s: '%s' is a %s, wanted a number", what, name, type(v))
  end
  return v
end

return number
