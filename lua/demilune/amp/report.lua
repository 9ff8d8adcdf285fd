-- amp.report: what mixed precision does to the training steps that it observes. The engine
-- counts ops (src/engine/amp_trace.h); this file names the counts by module, examines the
-- gradients, and says what to change.

local core = require "demilune.core"
local caller = require "demilune.caller"
local dtypes = require "demilune.dtypes"
local options = require "demilune.options"
local shown = require "demilune.shown"
local paths = require "demilune.nn.paths"
local Module = require "demilune.nn.module"
local Optimizer = require "demilune.optim.optimizer"
local advice = require "demilune.amp.advice"
local page = require "demilune.amp.page"

local Report, readers = {}, {}
Report.__name = "demilune.amp.report"

local bind = options.signature("report", [[grads?: module|optimizer|parameters|boolean,
  scaler?: table, check: boolean = true, *, fn?: function]])

-- ---- gradients: looked at when an optimizer steps ----

local open, n_open = setmetatable({}, {__mode = "k"}), 0 -- the reports that are open
local step                                               -- the optimizers' own, meanwhile

-- The set of parameters that opts.grads names; nil: all that an optimizer steps.
local function wanted_of(grads)
  if grads == nil then return nil end
  local list = {}
  if Module.is_module(grads) then
    list = grads:parameters()
  elseif type(grads) == "table" and grads.param_groups then
    for _, group in ipairs(grads.param_groups) do
      table.move(group.params, 1, #group.params, #list + 1, list)
    end
  elseif core.is_tensor(grads) then
    list = {grads}
  elseif type(grads) == "table" then
    list = grads
  elseif grads ~= false then
    caller.raise("report: grads is a %s, wanted a model, an optimizer, an array of parameters "
      .. "or false", type(grads))
  end
  local set = setmetatable({}, {__mode = "k"})
  for i, p in ipairs(list) do
    if not core.is_tensor(p) then
      caller.raise("report: grads: element %d is a %s, wanted a tensor", i, type(p))
    end
    set[p] = true
  end
  return set
end

-- The gradient where the host reads it. The report's own copy is no op of the script.
local function on_host(grad)
  if grad.device == "cpu" then return grad end
  for self in pairs(open) do self._trace:close() end
  local ok, host = pcall(grad.to, grad, "cpu")
  for self in pairs(open) do self._trace:open() end
  if not ok then error(host, 0) end
  return host
end

-- Counts the gradients of params, each times the factor; whether there were any.
local function look(self, params, factor, scale, wanted)
  local g, any = self._gradients, false
  for i, p in ipairs(params) do
    local grad = p.grad
    if grad and (not wanted or wanted[p]) then
      any = true
      local host = on_host(grad)
      local row = g.of[p]
      if not row then
        row = {name = ("parameter %d %s"):format(i, tostring(p.shape))}
        g.of[p], g.rows[#g.rows + 1] = row, row
      end
      row.name = paths.parameter(p) or row.name
      core._float_stats(host, row, factor, scale)
      core._float_stats(host, g.total, factor, scale)
    end
  end
  return any
end

local function look_at_step(optimizer, found_inf)
  for self in pairs(open) do
    local g, any = self._gradients, false
    local scaler = self._scaler
    local scale = scaler and scaler:is_enabled() and scaler:get_scale() or nil
    for _, group in ipairs(optimizer.param_groups) do
      any = look(self, group.params, 1, scale, self._wanted) or any
    end
    if any then
      g.steps, g.scale = g.steps + 1, scale
      g.scaler = g.scaler or found_inf ~= nil
      if found_inf and found_inf:item() ~= 0 then
        g.skipped_late = g.skipped_late + (g.skipped < g.steps - 1 and 1 or 0)
        g.skipped = g.skipped + 1
      end
    end
  end
end

local function observed_step(optimizer, closure, found_inf)
  if not closure then
    look_at_step(optimizer, found_inf)
    return step(optimizer, nil, found_inf)
  end
  return step(optimizer, function()
    local loss = closure()
    look_at_step(optimizer, found_inf)
    return loss
  end, found_inf)
end

-- ---- opening and closing ----

local function start(self)
  if self._open then return self end
  if n_open == 0 then step, Optimizer.step = Optimizer.step, observed_step end
  n_open = n_open + 1
  paths.start()
  self._trace:open()
  self._open, open[self] = true, true
  return self
end

--- Stops observing; the values stay readable.
function Report:close()
  if not self._open then return end
  self._open, open[self] = false, nil
  self._trace:close()
  paths.stop()
  n_open = n_open - 1
  if n_open == 0 then Optimizer.step = step end
end
Report.__close = Report.close

function Report:__gc()
  if not self._open then return end
  self:close()
  caller.sink("warning: an amp.report was never closed; hint: local report <close> = amp.report()")
end

--- report:wrap(fn): closes the report, and returns fn as a function each call of which is
--- observed.
function Report:wrap(fn)
  if type(fn) ~= "function" then
    caller.raise("report:wrap: wanted a function, got %s", type(fn))
  end
  self:close()
  return function(...)
    if self._open then return fn(...) end
    local _ <close> = start(self)
    return fn(...)
  end
end

--- report:look(params, scaler): adds the gradients that params have now to
--- report.gradients, for a script without demilune.optim. With a scaler they are
--- still scaled: they are divided by its scale. Works on a closed report, too.
function Report:look(params, scaler)
  local scale = scaler and scaler:get_scale()
  if Module.is_module(params) then params = params:parameters() end
  if type(params) ~= "table" then
    caller.raise("report:look: wanted an array of parameters or a model, got %s", type(params))
  end
  if look(self, params, 1 / (scale or 1), scale, nil) then
    local g = self._gradients
    g.steps, g.scale, g.scaler = g.steps + 1, scale or g.scale, g.scaler or scaler ~= nil
  end
  return self
end

-- amp.report(opts) observes ops from now until it is closed; amp.report(opts, fn), or
-- amp.report(fn), returns what fn(report) returns. What was seen stays readable.
--   grads   whose gradients to look at when an optimizer steps: a model, an
--           optimizer, parameters; all by default; false: none
--   scaler  the GradScaler, so that its scale is judged, too
--   check   look at each result for inf and NaN (true)
local function report(...)
  local o = bind(...)
  local fn = o.fn
  local self = setmetatable({
    _trace = core._amp_trace(o.check), _checks = o.check, _open = false, _scaler = o.scaler,
    _wanted = wanted_of(o.grads),
    _gradients = {of = setmetatable({}, {__mode = "k"}), rows = {}, total = {}, steps = 0,
      skipped = 0, skipped_late = 0, scaler = false},
  }, Report)
  if fn == nil then return start(self) end
  return self:wrap(fn)(self)
end

-- ---- observations ----

local function add(t, key, n) t[key] = (t[key] or 0) + n end

-- Ops whose dtype is what the script asked for.
local MOVES = {cast = true, clone = true, copy = true, to = true, to_device = true,
  zeros_like = true, ones_like = true}

-- The class of an op under autocast, by device: {cpu = {exp = "fp32", ...}, ...}
local classes
local function class_of(tally)
  if not classes then
    classes = {cpu = {}, cuda = {}}
    for _, row in ipairs(core.ops()) do
      classes.cpu[row.name], classes.cuda[row.name] = row.cpu, row.cuda
    end
  end
  return not MOVES[tally.op] and classes[tally.device][tally.op] or nil
end

-- Why an op of that class ran in float32 inside a region.
local function reason_of(class, mixed)
  if class == "fp32" then return "fp32 by policy" end
  if class == "fp32_set_opt_dtype" then return "float32 result by policy" end
  if class == "lower_precision_fp" then return "in place, or by the region's own policy" end
  if mixed then return class .. ": one of its inputs is float32" end
  return class .. ": its inputs are float32"
end

local function new_row(path, class)
  return {path = path, class = class, forward = {}, backward = {}, outputs = {}, kept = {},
    casts = {weights = 0, weight_bytes = 0, inputs = 0, input_bytes = 0, backward = 0,
      backward_bytes = 0}, saved = 0, nonfinite = 0}
end

local function count(row, tally)
  local kind, calls, bytes, dtype = tally.kind, tally.calls, tally.bytes, tally.dtype
  if kind == "weight" or kind == "input" then
    add(row.casts, kind .. "s", calls)
    add(row.casts, kind .. "_bytes", bytes)
  elseif kind == "kept" then
    add(row.kept, dtype, bytes)
    if dtypes.low[dtype] then row.saved = row.saved + bytes end
  elseif kind == "bad" or kind == "bad_back" then
    row.nonfinite = row.nonfinite + calls
  elseif dtype then
    add(row[kind], dtype, calls)
    if kind == "forward" then add(row.outputs, dtype, bytes) end
    if kind == "backward" and tally.op == "cast" then
      add(row.casts, "backward", calls)
      add(row.casts, "backward_bytes", bytes)
    end
  end
end

-- An op that ran inside a region: which one, and whether in float32.
local function note_region(s, row, tally)
  local class = class_of(tally)
  if not class then return end
  s.regions[tally.region] = true
  if tally.dtype ~= "float32" then return end
  local reason = reason_of(class, tally.mixed)
  local id = table.concat({row.path, row.class, tally.op, reason}, " ")
  local op = s.float32_ops[id]
  if not op then
    op = {path = row.path, class = row.class, op = tally.op, reason = reason, calls = 0, bytes = 0}
    s.float32_ops[id], s.float32_ops[#s.float32_ops + 1] = op, op
  end
  add(op, "calls", tally.calls)
  add(op, "bytes", tally.bytes)
end

-- Everything at once; the fields of a report are parts of it.
local function summary(self)
  local s = {modules = {}, total = new_row("total", ""), regions = {}, float32_ops = {}}
  local rows = {}
  local tallies = self._trace:tallies()
  table.sort(tallies, function(a, b)
    if a.module ~= b.module then return a.module % 2^32 < b.module % 2^32 end -- -1 comes last
    return a.op < b.op
  end)
  for _, tally in ipairs(tallies) do
    local path, class = paths.name(tally.module)
    local id = path .. " " .. class
    if not rows[id] then
      rows[id] = new_row(path, class)
      s.modules[#s.modules + 1] = rows[id]
    end
    count(rows[id], tally)
    count(s.total, tally)
    if tally.region and tally.kind == "forward" then note_region(s, rows[id], tally) end
  end
  s.steps, s.missed = self._trace:steps()
  s.ran = #tallies > 0
  return s
end

-- Shares of the finite gradients that are not 0.
local function shares(counts)
  local some = (counts.n or 0) - (counts.zero or 0) - (counts.inf or 0) - (counts.nan or 0)
  for _, key in ipairs{"float16", "scaled"} do
    local fit = counts[key]
    for _, what in ipairs{"underflow", "subnormal", "overflow"} do
      if fit then fit[what .. "_share"] = some > 0 and fit[what] / some or 0 end
    end
  end
  counts.nonzero = some
end

-- The largest power of two that leaves float16 a factor of two above `largest`.
local function best_scale(largest)
  if not largest or largest <= 0 then return nil end
  return 2.0 ^ math.max(-24, math.min(24, math.floor(math.log(32768 / largest, 2))))
end

local function gradients(self)
  local g = self._gradients
  if g.steps == 0 then return nil end
  for _, row in ipairs(g.rows) do shares(row) end
  shares(g.total)
  return {steps = g.steps, skipped = g.skipped, skipped_late = g.skipped_late,
    scaler = g.scaler, scale = g.scale,
    total = g.total, parameters = g.rows, best_scale = best_scale(g.total.largest)}
end

local function nonfinite(self, backward)
  local first = self._trace:first(backward)
  if not first then return nil end
  first.path, first.class = paths.name(first.module)
  return first
end

-- All values of a report in one table; see advice.lua and page.lua.
local function all(self)
  local s = summary(self)
  s.gradients, s.scaler, s.is_checked = gradients(self), self._scaler, self._checks
  s.forward_fault, s.backward_fault = nonfinite(self, false), nonfinite(self, true)
  s.suggestion = advice.suggest(s)
  return s
end

-- report.modules: by module, in the order of first calls: {path, class, forward =
-- {dtype = ops}, backward = {dtype = ops}, outputs = {dtype = bytes}, casts, kept
-- = {dtype = bytes for backward}, saved = bytes less than in float32, nonfinite}
function readers:modules() return summary(self).modules end
-- {weights, weight_bytes, inputs, input_bytes, backward, backward_bytes}: casts
-- that autocast made of weights and of other inputs, and those of the backward pass
function readers:casts() return summary(self).total.casts end
function readers:total() return summary(self).total end
-- rounds of forward and backward
function readers:steps() return (self._trace:steps()) end
-- ops that a region left or put in float32: {path, class, op, reason, calls, bytes}
function readers:float32_ops()
  local ops = summary(self).float32_ops
  return table.move(ops, 1, #ops, 1, {})
end
-- {steps, skipped, skipped_late (after the first that was not), scaler (whether there
-- is one), scale, best_scale, total, parameters}; each of these two has n, zero, inf,
-- nan, largest, exponents = {[e] = the number in [2^e, 2^(e+1))}, and float16 and
-- scaled = {underflow, subnormal, overflow} with their _share. nil: none seen
function readers:gradients() return gradients(self) end
-- {op, within, path, class, where, phase, value, dtype, shape, step, inputs_finite,
-- largest}: the op that first made inf or NaN, or nil
function readers:first_nonfinite()
  local f, b = nonfinite(self, false), nonfinite(self, true)
  if f and b then return f.step <= b.step and f or b end
  return f or b
end
function readers:suggestion() return all(self).suggestion end

--- Which dtypes the activations have: {{path, class, dtype, bytes}, ...}, bytes of
--- results over all steps.
function Report:dtypes()
  local list = {}
  for _, row in ipairs(self.modules) do
    for _, dtype in ipairs(dtypes.floats) do
      local bytes = row.outputs[dtype.name]
      if bytes then
        list[#list + 1] = {path = row.path, class = row.class, dtype = dtype.name, bytes = bytes}
      end
    end
  end
  return list
end

function Report:__index(key)
  if Report[key] ~= nil then return Report[key] end
  local read = readers[key]
  local value = read and read(self)
  return type(value) == "table" and shown(value) or value
end

function Report:__tostring() return page.report(all(self)) end

-- ---- memory ----

local Memory = {__name = "demilune.amp.memory", __tostring = page.memory}

-- Bytes that live on with the model, by dtype: {float32 = {parameters, buffers,
-- gradients, state, total}, ..., total = {...}}. state: the optimizer's.
local bind_memory = options.signature("memory", "model: module, optimizer?: optimizer")
local function memory(...)
  local o = bind_memory(...)
  local model, optimizer = o.model, o.optimizer
  local m = setmetatable({}, Memory)
  local function put(t, what)
    if not core.is_tensor(t) then return end
    for _, key in ipairs{t.dtype, "total"} do
      m[key] = m[key] or {parameters = 0, buffers = 0, gradients = 0, state = 0, total = 0}
      add(m[key], what, t:numel() * t:element_size())
      add(m[key], "total", t:numel() * t:element_size())
    end
  end
  for _, p in model:named_parameters() do
    put(p, "parameters")
    put(p.grad, "gradients")
  end
  for _, b in model:named_buffers() do put(b, "buffers") end
  for _, buffers in pairs(optimizer and optimizer.state or {}) do
    for _, b in pairs(buffers) do put(b, "state") end
  end
  return m
end

return {report = report, memory = memory}
