-- The gradient scaler. float16 holds nothing below 6e-8: the loss is multiplied
-- by a scale, so that gradients are too, and these are divided again before the
-- step. The scale falls when a gradient overflows (that step is skipped) and
-- grows after a while without.
--
-- Scale, counters and found_inf are tensors on the device. scale(), unscale_(),
-- step() of an optimizer of this library, and update() read none of them; what
-- asks for a number waits: get_scale(), state_dict(), stats(), skipped().
-- They are on the device of the first loss. Gradients may be on several devices.

local core = require "demilune.core"
local caller = require "demilune.caller"
local divided = require "demilune.distributed.divided"
local late = require "demilune.late"
local shown = require "demilune.shown"
local options = require "demilune.options"
local replay = require "demilune.replay"
local regions = require "demilune.amp.autocast"

local GradScaler = {}
GradScaler.__index = GradScaler
GradScaler.__name = "demilune.GradScaler"

-- ---- settings ----

local bind = options.signature("GradScaler", [[device: device = 'cpu',
  init_scale: value = 2.0 ^ 16, growth_factor: value = 2.0, backoff_factor: value = 0.5,
  growth_interval: value = 2000, enabled: boolean = true, *, min_scale: value = 1.0,
  max_scale: value = math.huge, patience: value = 10]]) -- looked at by a scaler that is on

local function is_finite(v) return v > -math.huge and v < math.huge end
local function is_count(v) return math.tointeger(v) ~= nil and v >= 0 end

-- The values that each setting may have, in code and in words.
local WANTED = {
  init_scale = {function(v) return v > 0 and is_finite(v) end, "a positive number"},
  growth_factor = {function(v) return v > 1 and is_finite(v) end, "a number above 1"},
  backoff_factor = {function(v) return v > 0 and v < 1 end, "a number between 0 and 1"},
  growth_interval = {is_count, "a whole number of updates (0: the scale never grows)"},
  min_scale = {function(v) return v >= 0 and is_finite(v) end, "0 (no floor) or more"},
  max_scale = {function(v) return v > 0 end, "a positive number"},
  patience = {is_count, "a whole number of updates (0: no warning)"},
}

-- v as a setting of that kind (kind: its name, unless it is given).
local function checked(what, name, v, kind)
  local fits, words = table.unpack(WANTED[kind or name])
  if type(v) ~= "number" or not fits(v) then
    caller.raise("%s: %s is %s, wanted %s", what, name, tostring(v), words)
  end
  return fits == is_count and math.tointeger(v) or v + 0.0
end

-- amp.GradScaler{...}. PyTorch's options: device, init_scale, growth_factor,
-- backoff_factor, growth_interval, enabled. Ours: min_scale (1; PyTorch has no
-- floor, as 0 does not): backing off stops there; max_scale (none): growing
-- does; patience (10): after so many updates in a row that the floor held, one
-- warning says which gradients are to blame (0: never).
-- A scaler that is off does nothing, and its settings are not looked at.
local function new(...)
  local o = bind(...)
  o.device = regions.device_type_of(o.device)
  if o.enabled and o.device == "cuda" and not require("demilune.cuda").is_available() then
    caller.warn("GradScaler: there is no CUDA device; the scaler is off")
    o.enabled = false
  end
  local self = {_enabled = o.enabled, _device = o.device, _init_tracker = 0,
    _records = setmetatable({}, {__mode = "k"}), _open = {}}
  for name in pairs(WANTED) do
    self["_" .. name] = o.enabled and checked("GradScaler", name, o[name]) or o[name]
  end
  if o.enabled and o.max_scale < o.min_scale then
    caller.raise("GradScaler: max_scale is %g, wanted min_scale (%g) or more", o.max_scale,
      o.min_scale)
  end
  return setmetatable(self, GradScaler)
end

-- ---- scale ----

local function scalar(v, dtype, device)
  return core.keep(core.tensor(v, {dtype = dtype, device = device}))
end

-- The tensors are made by the first scale(), on the device of its first loss.
local function start(self, device)
  if self._scale then return end
  local floored = scalar(0, "int32", device)
  local tracker = scalar(self._init_tracker, "int32", device)
  local updates = scalar(0, "int64", device)
  self._scale, self._tracker, self._floored, self._updates =
    scalar(self._init_scale, "float32", device), tracker, floored, updates
end

local function scaled(self, value)
  if core.is_tensor(value) then
    local out = value * self._scale:to(value.device)
    core.amp_mark_scaled_(out)
    return out
  end
  local out = {}
  for key, item in pairs(value) do out[key] = scaled(self, item) end
  return out
end

-- Raises unless it is made of tensors; the device of one, nil when there is none.
local function check_outputs(value)
  if core.is_tensor(value) then return value.device end
  if type(value) ~= "table" or getmetatable(value) ~= nil then
    caller.raise("scale: got a %s, wanted a tensor or a table of tensors", type(value))
  end
  local device
  for _, item in pairs(value) do device = check_outputs(item) or device end
  return device
end

-- Raises where self is no scaler, as with_colon() does: the methods that each step calls look for
-- the fault themselves, since its functions around them take longer.
local function check_self(self, name)
  if type(self) ~= "table" or not self[GradScaler] then caller.dotted("scaler", name) end
end

--- The loss times the scale; of a table of losses (nested at will), such a table.
--- Once for each loss. Differentiable. A scaler that is off returns its argument.
function GradScaler:scale(outputs)
  if outputs == nil then check_self(self, "scale") end
  if not self._enabled then return outputs end
  start(self, check_outputs(outputs))
  return scaled(self, outputs)
end

-- ---- records: what is known of each optimizer ----

local FIELDS = {"skipped", "run", "first_step", "step", "which", "count"} -- as op/optim.h has them

-- stage: "ready", "unscaled" or "stepped" since the last update(). steps: those
-- asked for. found_inf and where are of the last check, history of all steps but,
-- while `unnoted`, the last one: update() notes it in the same launch.
local function record_of(self, optimizer)
  local record = self._records[optimizer]
  if not record then
    local counts = {dtype = "int64", device = self._scale.device}
    record = {stage = "ready", steps = 0, found_inf = scalar(0.0, "float32", counts.device),
      where = core.keep(core.zeros(2, counts)), history = core.keep(core.zeros(#FIELDS, counts))}
    self._records[optimizer] = record
  end
  return record
end

-- Notes in the record's history how its last step went, where nobody has yet.
local function note(self, record)
  if not record.unnoted then return end
  core.amp_note_(record.history, record.found_inf, record.where, self._updates)
  record.unnoted = false
end

local function history_of(self, record)
  note(self, record)
  local history, values = {}, record.history:totable()
  for i, name in ipairs(FIELDS) do history[name] = values[i] end
  return history
end

local function check_call(self, method, optimizer)
  if type(optimizer) ~= "table" or type(optimizer.param_groups) ~= "table" then
    caller.raise("%s: got a %s, wanted an optimizer", method, type(optimizer))
  end
  if not self._scale then
    caller.raise("%s: there is no scale yet: scale() was not called; hint: " ..
      "scaler:scale(loss):backward() comes first", method)
  end
end

-- "parameter 3 'fc.weight' {10, 5} of group 1"; number counts through the
-- groups. Also the parameter, its name, its group and its index in that.
local function describe(optimizer, number)
  local i = number
  for g, group in ipairs(optimizer.param_groups) do
    local p = group.params[i]
    if p then
      local name = group.param_names and group.param_names[i]
      local quoted = name and (" '%s'"):format(name) or ""
      local text = ("parameter %d%s %s of group %d"):format(i, quoted, tostring(p.shape), g)
      return text, p, name, g, i
    end
    i = i - #group.params
  end
  return "a parameter that is gone"
end

local function raise_no_gradient(optimizer)
  local list, n, frozen = {}, 0, 0
  for _, group in ipairs(optimizer.param_groups) do
    for _, p in ipairs(group.params) do
      n = n + 1
      if not p.requires_grad then frozen = frozen + 1 end
      if n <= 4 then list[n] = describe(optimizer, n) end
    end
  end
  if n > 4 then list[5] = ("and %d more"):format(n - 4) end
  local reason = frozen == n and "none of them requires a gradient" or
    "the loss was not made from these tensors (detached, under no_grad(), another copy of the " ..
    "model), or backward() was not called, or zero_grad() came after it"
  caller.raise("step: no parameter of this optimizer has a gradient, so nothing was checked for " ..
    "inf and NaN: %s. Likely: %s", table.concat(list, ", "), reason)
end

-- The groups whose tensors have the gradients: the optimizer's own, or where ranks share gradients
-- out, such with this rank's parts in place of the parameters.
local function graded_groups(optimizer)
  return optimizer.graded_groups and optimizer:graded_groups() or optimizer.param_groups
end

local function devices_of(groups)
  local devices = {}
  for _, group in ipairs(groups) do
    for _, p in ipairs(group.params) do
      if p.grad then devices[p.grad.device] = true end
    end
  end
  return devices
end

-- The number of the first bad gradient that `where` tells of; huge: of none.
local function first_of(where)
  local first = where[1]
  return first:masked_fill(first:eq(0), math.maxinteger)
end

-- The gradients on other devices than the scale's, by copies of the scale there.
-- found_inf and the first position go into the record on the scale's device; nothing waits.
local function unscale_elsewhere(self, groups, record)
  local home, found_inf, where = self._scale.device, record.found_inf, record.where
  for device in pairs(devices_of(groups)) do
    if device ~= home then
      local found, position = scalar(0.0, "float32", device),
        core.zeros(2, {dtype = "int64", device = device})
      core.amp_unscale_(groups, self._scale:to(device), found, position)
      found, position = found:to(home), position:to(home)
      found_inf:copy_(core.maximum(found_inf, found))
      where:copy_(core.where(first_of(position):lt(first_of(where)), position, where))
    end
  end
end

-- Brings what the ranks of a group have found, that hold parts of some parameters, together: all of
-- them skip, or none does.
local function ask_ranks(optimizer, record)
  if not divided.any() then return end
  local params = {}
  for _, group in ipairs(optimizer.param_groups) do
    table.move(group.params, 1, #group.params, #params + 1, params)
  end
  local _, parts = divided.split(params)
  for _, part in ipairs(parts) do
    local collectives = late.require "demilune.distributed.collectives"
    local found_inf, where = record.found_inf, record.where
    collectives.all_reduce(found_inf, "max", part.group)
    for _, position in ipairs(collectives.all_gather(where, part.group)) do
      where:copy_(core.where(first_of(position):lt(first_of(where)), position, where))
    end
  end
end

-- Without a gradient it changes nothing, the stage neither. Where there are
-- masters, gradients become float32 first: the quotient may be too small for 16 bits.
local function unscale(self, optimizer, record)
  if optimizer.widen_gradients then optimizer:widen_gradients() end
  local groups = graded_groups(optimizer)
  local here, elsewhere = core.amp_unscale_(groups, self._scale, record.found_inf, record.where)
  local is_elsewhere = optimizer.has_gradients and optimizer:has_gradients() -- on other ranks, too
  if here + elsewhere == 0 and not is_elsewhere then return end
  if here == 0 then -- they hold what the last check found
    record.found_inf:zero_()
    record.where:zero_()
  end
  if elsewhere > 0 then unscale_elsewhere(self, groups, record) end
  ask_ranks(optimizer, record)
  record.stage = "unscaled"
  self._open[#self._open + 1] = record
  if replay.graph then
    replay.note{undo = function() record.stage, self._open = "ready", {} end}
  end
end

-- ---- the calls of an iteration ----

--- Divides the optimizer's gradients by the scale, in place, so that they may be
--- looked at or clipped before step(). Once for each optimizer and update().
function GradScaler:unscale_(optimizer)
  if not self._enabled then return end
  check_call(self, "unscale_", optimizer)
  local record = record_of(self, optimizer)
  if record.stage == "unscaled" then
    caller.raise("unscale_: called already for this optimizer since the last update(); hint: " ..
      "when gradients are accumulated, only before the step")
  elseif record.stage == "stepped" then
    caller.raise("unscale_: called after step(); hint: unscale_(), clip, step(), update()")
  end
  unscale(self, optimizer, record)
end

local function is_callable(v)
  local meta = getmetatable(v)
  return type(v) == "function" or type(meta) == "table" and meta.__call ~= nil
end

local function check_extra(optimizer, ...)
  for i = 1, select("#", ...) do
    local v = select(i, ...)
    if is_callable(v) or type(v) == "table" and v.closure ~= nil then
      caller.raise("step: a closure is not supported while the scaler is on: the loss would be " ..
        "computed again between unscaling and the step; hint: GradScaler{enabled = false}")
    elseif v ~= nil and optimizer.takes_found_inf then
      caller.raise("step: got a %s after the optimizer, whose step takes nothing", type(v))
    end
  end
end

-- A scaler that is off: {closure = f} is f by position.
local function plain_step(self, optimizer, first, ...)
  local record = self._records[optimizer] or {steps = 0}
  self._records[optimizer] = record
  record.steps = record.steps + 1
  if type(first) == "table" and first.closure then first = first.closure end
  return optimizer:step(first, ...)
end

local function step_if_finite(record, optimizer, ...)
  if optimizer.takes_found_inf then return optimizer:step(nil, record.found_inf) end
  if record.found_inf:item() == 0 then return optimizer:step(...) end
end

-- Counts a step that went well, and hands its results on.
local function counted(self, record, ...)
  record.unnoted = true
  record.stage, record.steps = "stepped", record.steps + 1
  if replay.graph then
    replay.note{
      before = function() record.steps = record.steps + 1 end,
      check = function() note(self, record) end, -- a graph without update()
      undo = function() record.steps, record.unnoted = record.steps - 1, false end,
    }
  end
  return ...
end

--- optimizer:step(...), unless a gradient is inf or NaN; unscales first if need
--- be. Returns what that returns, nothing when the host knows of a skip. An
--- optimizer with takes_found_inf = true, as all of this library's are that need no
--- closure, makes the decision on the device: it gets found_inf as step's second
--- argument and changes nothing where that is not 0. For any other optimizer the
--- host waits for the decision here.
--- To have a schedule of learning rates follow the real steps:
---   if scaler:stepped(optimizer) then schedule:step() end
function GradScaler:step(optimizer, ...)
  if optimizer == nil then check_self(self, "step") end
  if not self._enabled then return plain_step(self, optimizer, ...) end
  check_call(self, "step", optimizer)
  check_extra(optimizer, ...)
  local record = record_of(self, optimizer)
  if record.stage == "stepped" then
    caller.raise("step: called already for this optimizer since the last update(); hint: " ..
      "update() ends each iteration")
  end
  if record.stage == "ready" then unscale(self, optimizer, record) end
  if record.stage == "ready" then raise_no_gradient(optimizer) end
  return counted(self, record, step_if_finite(record, optimizer, ...))
end

local function set_scale(self, value)
  if replay.graph then replay.refuse "update: a new scale" end
  if type(value) == "number" then
    self._scale:fill_(checked("update", "new_scale", value, "init_scale"))
  elseif not core.is_tensor(value) then
    caller.raise("update: new_scale is a %s, wanted a number or a tensor", type(value))
  elseif value:numel() ~= 1 or value.requires_grad or not value:is_floating_point()
    or value.device ~= self._scale.device then
    caller.raise("update: new_scale is %s %s on %s%s, wanted one float element on %s that " ..
      "requires no gradient", value.dtype, tostring(value.shape), value.device,
      value.requires_grad and " that requires a gradient" or "", self._scale.device)
  else
    self._scale:copy_(value:squeeze())
  end
end

-- The last step that was skipped: its history, and the optimizer.
local function last_skip_of(self)
  local last, owner
  for optimizer, record in pairs(self._records) do
    local history = record.history and history_of(self, record)
    if history and history.step > 0 and (not last or history.step > last.step) then
      last, owner = history, optimizer
    end
  end
  return last, owner
end

local function warn_held(self, held)
  self._warned = true
  local skip, optimizer = last_skip_of(self)
  local blame = ""
  if skip then
    local text, p = describe(optimizer, skip.which)
    blame = (" The gradients overflow since step %d; in step %d %s had %d values that are inf " ..
      "or NaN, of %d."):format(skip.first_step, skip.step, text, skip.count,
        p and p:numel() or 0)
  end
  caller.warn("update: %d updates in a row wanted the scale below min_scale = %g, where it " ..
    "stays.%s Scaling is not to blame then: look for inf or NaN in the input, the loss and the " ..
    "weights; hint: autograd.detect_anomaly() names the op; min_scale = 0 is no floor", held,
    self._min_scale, blame)
end

local function mind_held(self, held)
  if self._patience > 0 and held >= self._patience and not self._warned then
    warn_held(self, held)
  end
end

-- An update within a graph (demilune.cuda_graph): the numbers that it goes by are fixed there.
local function record_update(self)
  replay.note{
    after = function() mind_held(self, core.amp_held(self._floored)) end,
    stamp = function()
      return ("%a %a %d %a %a"):format(self._growth_factor, self._backoff_factor,
        self._growth_interval, self._min_scale, self._max_scale)
    end,
  }
end

-- What update() goes by: found_inf of each open record, and of those whose steps it is to note,
-- which come first, the histories and `where`.
local function findings(self)
  local found, histories, wheres, others = {}, {}, {}, {}
  for _, record in ipairs(self._open) do
    if record.unnoted then
      local n = #found + 1
      found[n], histories[n], wheres[n] = record.found_inf, record.history, record.where
    else
      others[#others + 1] = record.found_inf
    end
  end
  return table.move(others, 1, #others, #found + 1, found), histories, wheres
end

local function adapt(self)
  local found, histories, wheres = findings(self)
  if #found == 0 then
    caller.raise("update: no gradients were checked since the last update(); hint: step() or " ..
      "unscale_() comes first, and update() once an iteration")
  end
  local held = core.amp_update_scale_(self._scale, self._tracker, self._floored, self._updates,
    found, histories, wheres, self._growth_factor, self._backoff_factor, self._growth_interval,
    self._min_scale, self._max_scale)
  for _, record in ipairs(self._open) do record.unnoted = false end
  mind_held(self, held)
  if replay.graph then record_update(self) end
end

local bind_update = options.signature("update", "new_scale?: number|tensor")

--- Ends an iteration: backs the scale off, once, if a gradient of any optimizer
--- was inf or NaN, else counts towards growth. new_scale (a number, a tensor of
--- one element, or {new_scale = }) sets the scale instead; the counter stays.
function GradScaler:update(new_scale)
  if type(self) ~= "table" then caller.dotted("scaler", "update") end
  if not self._enabled then return end
  if not self._scale then
    caller.raise("update: there is no scale yet: scale() was not called; hint: " ..
      "scaler:scale(loss):backward(), scaler:step(optimizer), scaler:update()")
  end
  if type(new_scale) == "table" then new_scale = bind_update(new_scale).new_scale end
  if new_scale ~= nil then
    set_scale(self, new_scale)
    for _, record in ipairs(self._open) do note(self, record) end
    self._updates:add_(1)
  else
    adapt(self)
  end
  for _, record in ipairs(self._open) do record.stage = "ready" end
  self._open = {}
end

-- ---- questions ----

--- Whether the last step() of this optimizer left everything as it was; also
--- after update(). Waits for the device.
function GradScaler:skipped(optimizer)
  local record = self._records[optimizer]
  return record ~= nil and record.history ~= nil and history_of(self, record).run > 0
end

--- Whether the last step() of this optimizer was done: the other way round, and
--- false before the first. Waits for the device.
function GradScaler:stepped(optimizer)
  local record = self._records[optimizer]
  return record ~= nil and record.steps > 0 and not self:skipped(optimizer)
end

--- The scale as a number (1 when off). Waits for the device.
function GradScaler:get_scale()
  if not self._enabled then return 1.0 end
  return self._scale and self._scale:item() or self._init_scale
end

local function tracker_of(self)
  return self._tracker and self._tracker:item() or self._init_tracker
end

--- {steps, skipped, scale, growth_tracker, grows_in, last_skip}. steps: calls of
--- step(), of these `skipped` changed nothing. grows_in: clean updates until the
--- scale grows (nil: it never does). last_skip (nil: none): {step = , first_step =
--- (where the steps skipped in a row began; counted in updates, from 1), optimizer
--- = , group = , parameter = (its index in the group), name = , shape = , count =
--- (its values that were inf or NaN)}: the first parameter that had any. A name is
--- known to optimizers made from model:named_parameters(). Waits for the device.
function GradScaler:stats()
  local tracker, steps, skipped = tracker_of(self), 0, 0
  for _, record in pairs(self._records) do
    steps = steps + record.steps
    if record.history then skipped = skipped + history_of(self, record).skipped end
  end
  local stats = {scale = self:get_scale(), growth_tracker = tracker, steps = steps,
    skipped = skipped}
  if self._enabled and self._growth_interval > 0 then
    stats.grows_in = self._growth_interval - tracker
  end
  local skip, optimizer = last_skip_of(self)
  if skip then
    local _, p, name, group, i = describe(optimizer, skip.which)
    stats.last_skip = {step = skip.step, first_step = skip.first_step, optimizer = optimizer,
      group = group, parameter = i, name = name, shape = p and p.shape, count = skip.count}
  end
  return shown(stats)
end

--- Whether the scaler scales; a disabled one passes losses and steps through.
function GradScaler:is_enabled() return self._enabled end

-- get_growth_factor(), set_growth_factor(v), and so on. The next update() uses it.
for _, name in ipairs{"growth_factor", "backoff_factor", "growth_interval"} do
  GradScaler["get_" .. name] = function(self) return self["_" .. name] end
  GradScaler["set_" .. name] = function(self, v)
    self["_" .. name] = checked("set_" .. name, name, v)
  end
end

-- ---- saving ----

--- PyTorch's five entries; empty for a scaler that is off. Between step() and
--- update() it raises: the file would lack what the last gradients did.
function GradScaler:state_dict()
  if not self._enabled then return shown{} end
  for _, record in ipairs(self._open) do
    if record.stage == "stepped" then
      caller.raise("state_dict: called between step() and update(); hint: save at the end of an " ..
        "iteration, after update()")
    end
  end
  return shown{scale = self:get_scale(), growth_factor = self._growth_factor,
    backoff_factor = self._backoff_factor, growth_interval = self._growth_interval,
    _growth_tracker = tracker_of(self)}
end

--- Takes up a saved state, PyTorch's too; floor, ceiling and patience stay this
--- scaler's own. A scaler that is off ignores it.
function GradScaler:load_state_dict(state)
  if not self._enabled then return end
  if type(state) ~= "table" then
    caller.raise("load_state_dict: got a %s, wanted a table from state_dict()", type(state))
  end
  if next(state) == nil then
    caller.raise("load_state_dict: the state is empty; hint: it was saved by a scaler that was off")
  end
  local loaded = {_init_scale = checked("load_state_dict", "scale", state.scale, "init_scale")}
  for _, name in ipairs{"growth_factor", "backoff_factor", "growth_interval"} do
    loaded["_" .. name] = checked("load_state_dict", name, state[name])
  end
  local tracker = state._growth_tracker
  if not (type(tracker) == "number" and is_count(tracker)) then
    caller.raise("load_state_dict: _growth_tracker is %s, wanted a whole number",
      tostring(tracker))
  end
  loaded._init_tracker = math.tointeger(tracker)
  for key, value in pairs(loaded) do self[key] = value end
  if not self._scale then return end
  self._scale:fill_(self._init_scale)
  self._tracker:fill_(self._init_tracker)
end

function GradScaler:__tostring()
  if not self._enabled then return "GradScaler(off)" end
  local s = self:stats()
  return ("GradScaler(scale = %g, %d of %d steps skipped, %s)"):format(s.scale, s.skipped,
    s.steps, s.grows_in and ("grows in %d"):format(s.grows_in) or "does not grow")
end

caller.with_colon(GradScaler, "scaler", "unscale_ skipped stepped get_scale stats is_enabled "
  .. "state_dict load_state_dict")

return {GradScaler = new}
