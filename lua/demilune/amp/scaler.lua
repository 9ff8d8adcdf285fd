-- The gradient scaler.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local regions = require "demilune.amp.autocast"

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
local function new(opts)
  local o = options.read("GradScaler", opts, SCALER)
  o.device = regions.device_type_of(o.device)
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

return {GradScaler = new}
