-- demilune.amp: mixed precision. Each room is loaded when it is first named.

local ROOMS = {
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

local room_of = {}
for room, names in pairs(ROOMS) do
  for _, name in ipairs(names) do room_of[name] = room end
end

return setmetatable({}, {
  __index = function(self, name)
    local room = room_of[name]
    if not room then return nil end
    local value = require("demilune.amp." .. room)[name]
    rawset(self, name, value)
    return value
  end,
})
