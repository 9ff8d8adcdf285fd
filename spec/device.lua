-- The device that the specs run on (DEMILUNE_DEVICE, see helper.lua), and what autocast
-- takes there where no dtype is named.

local DEVICE = require("demilune").get_default_device():match "^%a+"

return {DEVICE = DEVICE, LOW = DEVICE == "cpu" and "bfloat16" or "float16"}
