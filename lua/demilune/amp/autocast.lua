-- Autocast regions, and the table of what autocast does to each op.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"

local autocast = {}

-- A region may be entered again while it is open: it keeps a stack.
local Region = {}
Region.__index = Region
Region.__name = "demilune.autocast"

local TYPES = {cpu = true, cuda = true}
local LOW = {float16 = true, bfloat16 = true}
local REGION = {device_type = "cpu", dtype = options.NONE, enabled = true,
  cache_enabled = options.NONE}

function autocast.is_autocast_available(device_type)
  return device_type == "cpu" or device_type == "cuda"
end

-- "cpu" or "cuda", from a device's name.
function autocast.device_type_of(name)
  if type(name) ~= "string" then
    caller.raise("autocast: device_type is a %s, wanted a string such as \"cpu\"", type(name))
  end
  local kind = name:match "^(%l+):%d+$" or name
  if not TYPES[kind] then
    caller.raise("autocast: unknown device '%s', wanted \"cpu\" or \"cuda\"", name)
  end
  return kind
end

local function settings_of(opts)
  if type(opts) == "string" then opts = {device_type = opts} end
  local o = options.read("autocast", opts, REGION)
  o.device_type = autocast.device_type_of(o.device_type)
  if o.dtype == nil then o.dtype = core.get_autocast_dtype(o.device_type) end
  if o.cache_enabled == nil then o.cache_enabled = core.is_autocast_cache_enabled() end
  if o.enabled and o.device_type == "cuda" and not require("demilune.cuda").is_available() then
    caller.warn("autocast: there is no CUDA device; the region is off")
    o.enabled = false
  elseif o.enabled and o.device_type == "cpu" and not LOW[o.dtype] then
    caller.warn("autocast: dtype is %s, the CPU knows float16 and bfloat16; the region is off",
      tostring(o.dtype))
    o.enabled = false
  end
  return o
end

function Region:enter()
  local o = self.settings
  -- a region that is off accepts any dtype: the one in force stays
  local dtype = o.enabled and o.dtype or LOW[o.dtype] and o.dtype
    or core.get_autocast_dtype(o.device_type)
  self[#self + 1] = core.autocast_enter(o.device_type, o.enabled, dtype, o.cache_enabled)
  return self
end

function Region:leave()
  local token = table.remove(self)
  if token == nil then caller.raise("autocast: the region is not open") end
  core.autocast_leave(token)
end

function Region:__close()
  if #self > 0 then self:leave() end
end
Region.close = Region.__close

function Region:__gc()
  if #self == 0 then return end
  while #self > 0 do self:leave() end
  caller.sink("warning: an autocast region was never closed; hint: " ..
    "local _ <close> = amp.autocast{...}")
end

function Region:__tostring()
  local o = self.settings
  return ("autocast(%s, %s, %s)"):format(o.device_type, o.dtype, o.enabled and "on" or "off")
end

-- fn inside the region, at each call; the region itself is closed.
function Region:wrap(fn)
  if type(fn) ~= "function" then
    local meta = getmetatable(fn)
    if not (type(meta) == "table" and meta.__call) then
      caller.raise("autocast:wrap: wanted a function, got %s; hint: local _ <close> = " ..
        "amp.autocast{...} opens a region for a block", type(fn))
    end
  end
  while #self > 0 do self:leave() end
  return function(...)
    local _ <close> = self:enter()
    return fn(...)
  end
end

-- amp.autocast{device_type = , dtype = , enabled = , cache_enabled = } opens a
-- region, to be closed; amp.autocast(opts, fn) returns what fn() returns inside.
function autocast.autocast(opts, fn)
  local region = setmetatable({settings = settings_of(opts)}, Region)
  if fn == nil then return region:enter() end
  return region:wrap(fn)()
end

autocast.is_autocast_enabled = core.is_autocast_enabled
autocast.get_autocast_dtype = core.get_autocast_dtype

-- {op = class} of the ops that autocast treats on that device.
function autocast.op_table(device_type)
  local kind, classes = autocast.device_type_of(device_type or "cpu"), {}
  for _, row in ipairs(core.ops()) do
    if not row.hidden and row[kind] ~= "unlisted" then classes[row.name] = row[kind] end
  end
  return classes
end

return autocast
