-- Autograd functions of one's own under autocast.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local regions = require "demilune.amp.autocast"

local custom = {}

local CUSTOM = {cast_inputs = options.NONE, device_type = "cpu"}

-- Floating tensors as dtype, float64 aside; tables are walked.
local function cast(value, dtype)
  if core.is_tensor(value) then
    local fits = value:is_floating_point() and value.dtype ~= "float64"
    return fits and value:to(dtype) or value
  end
  if type(value) ~= "table" or getmetatable(value) ~= nil then return value end
  local out = {}
  for key, item in pairs(value) do out[key] = cast(item, dtype) end
  return out
end

-- For forward of an autograd Function: remembers the region. cast_inputs: inputs
-- become that dtype and the body runs with autocast off, if it was on.
function custom.custom_fwd(fn, opts)
  local o = options.read("custom_fwd", opts, CUSTOM)
  local kind = regions.device_type_of(o.device_type)
  return function(ctx, ...)
    local dtype = core.get_autocast_dtype(kind)
    local enabled = core.is_autocast_enabled(kind)
    ctx._autocast = {device_type = kind, dtype = dtype, enabled = enabled}
    if not (o.cast_inputs and enabled) then
      return fn(ctx, ...)
    end
    ctx._autocast.enabled = false
    local args = table.pack(...)
    for i = 1, args.n do args[i] = cast(args[i], o.cast_inputs) end
    local _ <close> = regions.autocast{device_type = kind, enabled = false}
    return fn(ctx, table.unpack(args, 1, args.n))
  end
end

-- For backward: runs in the state that forward ran in.
function custom.custom_bwd(fn)
  return function(ctx, ...)
    if not ctx._autocast then
      caller.raise("custom_bwd: forward was not wrapped by amp.custom_fwd")
    end
    local _ <close> = regions.autocast(ctx._autocast)
    return fn(ctx, ...)
  end
end

return custom
