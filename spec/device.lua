-- The device that the specs run on (DEMILUNE_DEVICE), as autocast sees it.
--   type     "cpu" or "cuda"
--   other    the device type that it is not
--   low      its 16-bit dtype where a region names none
--   another  the 16-bit dtype that is not
local dm = require "demilune"

local device = {type = dm.get_default_device():match "^%a+"}
device.other = device.type == "cpu" and "cuda" or "cpu"
device.low = device.type == "cpu" and "bfloat16" or "float16"
device.another = device.type == "cpu" and "float16" or "bfloat16"

-- device.region(rules, dtype): options of a region by the rules of that device
-- type, which are named only where they are not the device's own.
function device.region(rules, dtype)
  return {dtype = dtype, rules = rules ~= device.type and rules or nil}
end

return device
