-- The device that the specs run on (DEMILUNE_DEVICE), and the dtypes that autocast uses there:
--   type     "cpu" or "cuda"
--   other    the other device type
--   low      the default 16-bit dtype of its regions
--   another  the other 16-bit dtype
local dm = require "demilune"

local device = {type = dm.get_default_device():match "^%a+"}
device.other = device.type == "cpu" and "cuda" or "cpu"
device.low = device.type == "cpu" and "bfloat16" or "float16"
device.another = device.type == "cpu" and "float16" or "bfloat16"

-- device.region(rules, dtype): the options of a region with the op lists of device type `rules`.
-- They name the type only when it is not the device's own.
function device.region(rules, dtype)
  return {dtype = dtype, rules = rules ~= device.type and rules or nil}
end

return device
