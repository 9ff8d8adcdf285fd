-- demilune.amp: autocast regions and the gradient scaler.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"

local amp = {}

-- ---- autocast ----

-- A region may be entered again while it is open: it keeps a stack.
local Region = {}
Region.__index = Region
Region.__name = "demilune.autocast"

local TYPES = {cpu = true, cuda = true}
local LOW = {float16 = true, bfloat16 = true}
local REGION = {device_type = "cpu", dtype = options.NONE, enabled = true,
  cache_enabled = options.NONE}

function amp.is_autocast_available(device_type)
  return device_type == "cpu" or device_type == "cuda"
end

local function device_type_of(name)
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
  o.device_type = device_type_of(o.device_type)
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
function amp.autocast(opts, fn)
  local region = setmetatable({settings = settings_of(opts)}, Region)
  if fn == nil then return region:enter() end
  return region:wrap(fn)()
end

amp.is_autocast_enabled = core.is_autocast_enabled
amp.get_autocast_dtype = core.get_autocast_dtype

-- {op = class} of the ops that autocast treats on that device.
function amp.op_table(device_type)
  local kind, classes = device_type_of(device_type or "cpu"), {}
  for _, row in ipairs(core.ops()) do
    if not row.hidden and row[kind] ~= "unlisted" then classes[row.name] = row[kind] end
  end
  return classes
end

-- ---- functions of one's own under autocast ----

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
function amp.custom_fwd(fn, opts)
  local o = options.read("custom_fwd", opts, CUSTOM)
  local kind = device_type_of(o.device_type)
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
    local _ <close> = amp.autocast{device_type = kind, enabled = false}
    return fn(ctx, table.unpack(args, 1, args.n))
  end
end

-- For backward: runs in the state that forward ran in.
function amp.custom_bwd(fn)
  return function(ctx, ...)
    if not ctx._autocast then
      caller.raise("custom_bwd: forward was not wrapped by amp.custom_fwd")
    end
    local _ <close> = amp.autocast(ctx._autocast)
    return fn(ctx, ...)
  end
end

-- ---- GradScaler ----

-- Scale, counter and found_inf are tensors; step() and update() read none of
-- them on the host. The records of an optimizer: stage and found_inf.
local GradScaler = {}
GradScaler.__index = GradScaler
GradScaler.__name = "demilune.GradScaler"

local SCALER = {device = "cpu", init_scale = 2.0 ^ 16, growth_factor = 2.0, backoff_factor = 0.5,
  growth_interval = 2000, enabled = true, min_scale = 0.0}

local function check_factors(growth, backoff)
  if growth <= 1 or growth ~= growth then
    caller.raise("GradScaler: growth_factor is %s, wanted above 1", growth)
  end
  if not (backoff < 1 and backoff > 0) then
    caller.raise("GradScaler: backoff_factor is %s, wanted between 0 and 1", backoff)
  end
end

-- min_scale: backing off stops there (0: never).
function amp.GradScaler(opts)
  local o = options.read("GradScaler", opts, SCALER)
  o.device = device_type_of(o.device)
  if o.enabled and o.device == "cuda" and not require("demilune.cuda").is_available() then
    caller.warn("GradScaler: there is no CUDA device; the scaler is off")
    o.enabled = false
  end
  if o.enabled then check_factors(o.growth_factor, o.backoff_factor) end
  return setmetatable({
    _enabled = o.enabled, _device = o.device, _init_scale = o.init_scale + 0.0,
    _growth_factor = o.growth_factor, _backoff_factor = o.backoff_factor,
    _growth_interval = o.growth_interval, _min_scale = o.min_scale,
    _init_tracker = 0, _records = setmetatable({}, {__mode = "k"}),
    _skips = setmetatable({}, {__mode = "k"}), _n_steps = 0,
    _n_skipped = core.keep(core.tensor(0.0)),
  }, GradScaler)
end

local function scalar(v, dtype) return core.keep(core.tensor(v, {dtype = dtype})) end

local function start(self)
  if self._scale then return end
  self._scale = scalar(self._init_scale, "float32")
  self._tracker = scalar(self._init_tracker, "int32")
end

local function scaled(self, value)
  if core.is_tensor(value) then return value * self._scale end
  if type(value) ~= "table" or getmetatable(value) ~= nil then
    caller.raise("scale: got a %s, wanted a tensor or a table of tensors", type(value))
  end
  local out = {}
  for key, item in pairs(value) do out[key] = scaled(self, item) end
  return out
end

-- The loss (or a table of losses) times the scale.
function GradScaler:scale(outputs)
  if not self._enabled then return outputs end
  start(self)
  return scaled(self, outputs)
end

local function need_scale(self, method)
  if not self._scale then
    caller.raise("%s: there is no scale yet; hint: scaler:scale(loss):backward() comes first",
      method)
  end
end

local function record_of(self, optimizer)
  local record = self._records[optimizer]
  if not record then
    record = {stage = "ready"}
    self._records[optimizer] = record
  end
  return record
end

local function unscale(self, optimizer, record)
  local found = scalar(0.0, "float32")
  local inverse = core.tensor(1 / self._scale:item())
  local n = 0
  for _, group in ipairs(optimizer.param_groups) do
    n = n + core.amp_unscale_(group.params, found, inverse)
  end
  if n > 0 then record.found_inf = found end
  record.stage = "unscaled"
end

-- Divides the optimizer's gradients by the scale, in place, so that they may be
-- looked at or clipped before step().
function GradScaler:unscale_(optimizer)
  if not self._enabled then return end
  need_scale(self, "unscale_")
  local record = record_of(self, optimizer)
  if record.stage == "unscaled" then
    caller.raise("unscale_: called already for this optimizer since the last update()")
  elseif record.stage == "stepped" then
    caller.raise("unscale_: called after step()")
  end
  unscale(self, optimizer, record)
end

-- optimizer:step(), unless a gradient is inf or NaN; unscales first if need be.
function GradScaler:step(optimizer, closure)
  if not self._enabled then
    if type(closure) == "table" then closure = closure.closure end
    return optimizer:step(closure)
  end
  if closure ~= nil then
    caller.raise("step: closures are not supported while the scaler is enabled")
  end
  need_scale(self, "step")
  local record = record_of(self, optimizer)
  if record.stage == "stepped" then
    caller.raise("step: called already for this optimizer since the last update()")
  end
  if record.stage == "ready" then unscale(self, optimizer, record) end
  local found = record.found_inf
  if not found then
    record.stage = "ready"
    caller.raise("step: no parameter of this optimizer has a gradient")
  end
  record.stage = "stepped"
  self._skips[optimizer] = found
  self._n_steps = self._n_steps + 1
  self._n_skipped:add_(found)
  if optimizer.update then return optimizer:step(nil, found) end
  if found:item() == 0 then return optimizer:step() end
end

local function set_scale(self, value)
  if core.is_tensor(value) then
    if value:numel() ~= 1 or value.requires_grad or value.dtype ~= "float32" then
      caller.raise("update: new_scale is %s %s, wanted one float32 element that requires no grad",
        value.dtype, tostring(value.shape))
    end
    self._scale:copy_(value:reshape())
  elseif type(value) == "number" then
    self._scale:fill_(value)
  else
    caller.raise("update: new_scale is a %s, wanted a number or a tensor", type(value))
  end
end

-- Ends an iteration: backs the scale off after an inf or NaN, else counts
-- towards growth. new_scale (a number, a tensor, or {new_scale = }) sets it.
function GradScaler:update(new_scale)
  if not self._enabled then return end
  need_scale(self, "update")
  if type(new_scale) == "table" then
    new_scale = options.read("update", new_scale, {new_scale = options.NONE}).new_scale
  end
  if new_scale ~= nil then
    set_scale(self, new_scale)
  else
    local found
    for _, record in pairs(self._records) do
      if record.found_inf then found = found and found + record.found_inf or record.found_inf end
    end
    if not found then caller.raise("update: no gradients were checked since the last update()") end
    core.amp_update_scale_(self._scale, self._tracker, found, self._growth_factor,
      self._backoff_factor, self._growth_interval)
    if self._min_scale > 0 then self._scale:clamp_(self._min_scale, math.huge) end
  end
  self._records = setmetatable({}, {__mode = "k"})
end

-- Whether the last step() of this optimizer did nothing.
function GradScaler:skipped(optimizer)
  local found = self._skips[optimizer]
  return found ~= nil and found:item() ~= 0
end

function GradScaler:get_scale()
  if not self._enabled then return 1.0 end
  return self._scale and self._scale:item() or self._init_scale
end

local function tracker_of(self)
  return self._tracker and self._tracker:item() or self._init_tracker
end

-- {scale, growth_tracker, steps, skipped, grows_in}
function GradScaler:stats()
  local tracker = tracker_of(self)
  return {scale = self:get_scale(), growth_tracker = tracker, steps = self._n_steps,
    skipped = math.tointeger(self._n_skipped:item()), grows_in = self._growth_interval - tracker}
end

function GradScaler:is_enabled() return self._enabled end
function GradScaler:get_growth_factor() return self._growth_factor end
function GradScaler:get_backoff_factor() return self._backoff_factor end
function GradScaler:get_growth_interval() return self._growth_interval end

function GradScaler:set_growth_factor(v)
  check_factors(v, self._backoff_factor)
  self._growth_factor = v
end

function GradScaler:set_backoff_factor(v)
  check_factors(self._growth_factor, v)
  self._backoff_factor = v
end

function GradScaler:set_growth_interval(v)
  if math.type(v) ~= "integer" or v < 1 then
    caller.raise("GradScaler: growth_interval is %s, wanted an integer from 1", tostring(v))
  end
  self._growth_interval = v
end

-- PyTorch's five entries; empty for a scaler that is off.
function GradScaler:state_dict()
  if not self._enabled then return {} end
  return {scale = self:get_scale(), growth_factor = self._growth_factor,
    backoff_factor = self._backoff_factor, growth_interval = self._growth_interval,
    _growth_tracker = tracker_of(self)}
end

function GradScaler:load_state_dict(state)
  if not self._enabled then return end
  if next(state) == nil then
    caller.raise("load_state_dict: the state is empty; hint: it was saved by a scaler that was off")
  end
  self._init_scale, self._init_tracker = state.scale + 0.0, state._growth_tracker
  self._growth_factor, self._backoff_factor = state.growth_factor, state.backoff_factor
  self._growth_interval = state.growth_interval
  self._scale, self._tracker = nil, nil
  start(self)
end

function GradScaler:__tostring()
  if not self._enabled then return "GradScaler(off)" end
  local s = self:stats()
  return ("GradScaler(scale = %g, %d of %d steps skipped, grows in %d)"):format(s.scale, s.skipped,
    s.steps, s.grows_in)
end

return amp
