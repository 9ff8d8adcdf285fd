-- demilune.amp: mixed precision. Each file is loaded when a name of it is first used.

local late = require "demilune.late"

local FILES = {
  autocast = {"autocast", "cast_count", "clear_autocast_cache",
    "get_autocast_dtype", "is_autocast_available", "is_autocast_cache_enabled",
    "is_autocast_enabled", "op_table", "set_autocast_cache_enabled", "set_autocast_dtype",
    "set_autocast_enabled"},
  scaler = {"GradScaler"},
  step = {"step"},
  custom = {"custom_fwd", "custom_bwd", "register"},
  report = {"report", "memory"},
  initialize = {"initialize", "scale_loss", "loss_scalers"},
}

local file_of = {}
for file, names in pairs(FILES) do
  for _, name in ipairs(names) do file_of[name] = "demilune.amp." .. file end
end

return late.extend({}, file_of)
