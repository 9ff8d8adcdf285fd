-- Autocast regions, and the table of what autocast does to each op.

local core = require "demilune.core"
local caller = require "demilune.caller"
local dtypes = require "demilune.dtypes"
local options = require "demilune.options"
local shown = require "demilune.shown"
local cuda = require "demilune.cuda"

local autocast = {}

local TYPES = {cpu = true, cuda = true}
local DEFAULT = cuda.is_available() and "cuda" or "cpu"
local LOW, FLOATS = dtypes.low, {}
for _, row in ipairs(dtypes.floats) do FLOATS[row.name] = true end
local bind_region = options.signature("autocast", [[device_type?: value,
  dtype?: value, enabled?: boolean, cache_enabled?: boolean, *, rules?: value, policy?: any,
  fn?: function]])
local REGION = {device_type = true, dtype = true, enabled = true, cache_enabled = true,
  rules = true, policy = true}

--- "cpu" or "cuda", from a device's name. nil: cuda where there is a CUDA device, else cpu.
function autocast.device_type_of(name)
  if name == nil then return DEFAULT end
  if TYPES[name] then return name end
  if type(name) ~= "string" then
    caller.raise("autocast: device_type is a %s, wanted a string such as \"cpu\"", type(name))
  end
  local kind = name:match "^(%l+):%d+$"
  if not TYPES[kind] then
    caller.raise("autocast: unknown device '%s', wanted \"cpu\" or \"cuda\"", name)
  end
  return kind
end

--- Whether autocast knows the device type; raises when there is no such type.
function autocast.is_autocast_available(device_type)
  return TYPES[autocast.device_type_of(device_type)]
end

-- May the region be on? Warns when it may not.
local function may_be_on(kind, dtype)
  if kind == "cuda" then
    if cuda.is_available() then return true end
    caller.warn_at(nil, "autocast: there is no CUDA device; the region is off")
    return false
  end
  caller.warn_at(nil, ("autocast: dtype is %s, the CPU knows float16 and bfloat16; the region "
    .. "is off"):format(dtype))
  return false
end

local function check_flag(name, flag)
  if type(flag) ~= "boolean" then
    caller.raise("autocast: %s is %s, wanted true or false", name, tostring(flag))
  end
end

-- An open region. named: when it is forgotten, the warning names the caller's line.
local function open(opts, named)
  local kind, dtype, enabled, cache
  if opts ~= nil then
    for key in next, opts do
      if not REGION[key] then bind_region(opts) end
    end
    kind, dtype, enabled, cache = opts.device_type, opts.dtype, opts.enabled, opts.cache_enabled
    if enabled ~= nil then check_flag("enabled", enabled) end
    if cache ~= nil then check_flag("cache_enabled", cache) end
  end
  if not TYPES[kind] then kind = autocast.device_type_of(kind) end
  if dtype ~= nil and not FLOATS[dtype] then
    caller.raise("autocast: dtype is '%s', wanted \"float16\" or \"bfloat16\"", tostring(dtype))
  end
  if enabled == nil then enabled = true end
  if enabled and (kind == "cuda" or dtype and not LOW[dtype]) then
    enabled = may_be_on(kind, dtype)
  end
  -- a region that is off accepts any dtype: the one in force stays
  if dtype and not enabled and not LOW[dtype] then dtype = nil end
  return core.autocast_open(kind, enabled, dtype, cache, opts and opts.rules,
    opts and opts.policy, named)
end

local function check_callable(fn)
  if type(fn) == "function" then return end
  local meta = getmetatable(fn)
  if type(meta) == "table" and meta.__call then return end
  caller.raise("autocast: wanted a function, got %s; hint: local _ <close> = "
    .. "amp.autocast{...} opens a region for a block", type(fn))
end

-- fn inside a region of these settings, at each call, however deep; the region
-- itself is closed.
function core.region_methods.wrap(region, fn)
  region:close()
  check_callable(fn)
  return function(...)
    local _ <close> = region:reopen()
    return fn(...)
  end
end

--- Opens a region: listed ops convert their floating tensors (float64 aside).
---   local _ <close> = amp.autocast{dtype = "bfloat16"}    until the end of the block
---   local y = amp.autocast({...}, function() return model(x) end)
---   local step = amp.autocast{...}:wrap(function(x) ... end)
--- device_type (which may come first, as a string): "cpu" or "cuda"; without one
---   cuda where there is a CUDA device, else cpu.
--- dtype: "float16" or "bfloat16"; without one that of the region around, outside
---   of any bfloat16 on the CPU and float16 on CUDA.
--- enabled = false: ops work on what they are given, also inside a region that is on.
--- cache_enabled: whether a weight is cast once for the region, or at each use.
--- policy = {softmax = "lower_precision", ...}: other rules for single ops, here
---   and in the regions inside. Words: lower_precision, fp32, promote, unlisted,
---   fp32_set_opt_dtype, banned.
--- rules = "cuda" or "cpu": whose op table rules, whatever the device.
--- A region that cannot be on (no CUDA, another dtype on the CPU) warns and is off.
--- A coroutine starts with the state of the one that starts it, and from
--- then on its regions are its own.
function autocast.autocast(opts, fn, ...)
  if type(opts) == "string" then -- by position
    opts = bind_region(opts, fn, ...)
    fn, opts.fn = opts.fn, nil
  elseif opts ~= nil and type(opts) ~= "table" then
    caller.raise("autocast: device_type is a %s, wanted a string such as \"cpu\"", type(opts))
  end
  if fn == nil then return core.autocast_plain(opts, true) or open(opts, true) end
  if type(fn) ~= "function" then check_callable(fn) end
  local _ <close> = core.autocast_plain(opts) or open(opts)
  return fn()
end

-- The state itself, as in PyTorch: for a device type, by default the one that
-- autocast() takes. The setters act in the coroutine that calls.
for _, name in ipairs{"is_autocast_enabled", "set_autocast_enabled", "get_autocast_dtype",
  "set_autocast_dtype", "is_autocast_cache_enabled", "set_autocast_cache_enabled",
  "clear_autocast_cache"} do
  autocast[name] = core[name]
end

-- The number of casts that autocast has made so far.
autocast.cast_count = core.autocast_cast_count

--- {op = word}, for every op: what autocast does to it on that device. A number
--- divided by a tensor counts as a reciprocal.
---   lower_precision_fp   inputs become the region's 16-bit dtype
---   fp32                 inputs become float32
---   fp32_set_opt_dtype   the result is float32, unless a dtype is given
---   promote              inputs that differ become float32
---   banned               raises
---   unlisted             nothing
function autocast.op_table(device_type)
  local kind, words = autocast.device_type_of(device_type), {}
  for _, row in ipairs(core.ops()) do
    if not row.hidden then words[row.name] = row[kind] end
  end
  for _, row in ipairs(require("demilune.ops").rows) do -- those that are written in Lua
    if row.like then words[row.name] = words[row.like] end
  end
  return shown(words)
end

return autocast
