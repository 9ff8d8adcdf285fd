-- demilune.autograd: gradients as values, functions with a gradient of their
-- own, and the check of gradients against finite differences.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"

local autograd = {}

local function as_list(v) return core.is_tensor(v) and {v} or v end

local bind_grad = options.signature("autograd.grad", [[outputs: tensor|list,
  inputs: tensor|list, grad_outputs?: tensor|list, retain_graph?: boolean,
  create_graph: boolean = false, *, allow_unused?: boolean,
  materialize_grads: boolean = false]])

--- Gradients of outputs (a tensor or an array) with respect to inputs, one
--- result an input; .grad stays as it is. An input of which no output was made
--- raises; with allow_unused its gradient is nil, with materialize_grads zeros.
function autograd.grad(...)
  local o = bind_grad(...)
  if o.materialize_grads and o.allow_unused == false then
    caller.raise("autograd.grad: materialize_grads = true with allow_unused = false; " ..
      "hint: leave allow_unused out")
  end
  local inputs = as_list(o.inputs)
  local grads = table.pack(core.autograd_grad(as_list(o.outputs), inputs,
    {grad_outputs = as_list(o.grad_outputs), retain_graph = o.retain_graph,
      create_graph = o.create_graph, allow_unused = o.allow_unused or o.materialize_grads}))
  for i = 1, o.materialize_grads and grads.n or 0 do
    grads[i] = grads[i] or core.zeros_like(inputs[i]):requires_grad_(o.create_graph)
  end
  return table.unpack(grads, 1, grads.n)
end

local bind_backward = options.signature("autograd.backward", [[tensors: tensor|list,
  grad_tensors?: tensor|list, retain_graph?: boolean, create_graph: boolean = false, *,
  inputs?: tensor|list]])

--- Adds the gradients of tensors (one or an array) to .grad of the leaves behind them, in one
--- pass: x:backward() for several x. grad_tensors has the gradient of each, of its shape; one of
--- a single element may go without. Only `inputs`, leaves or inner tensors, get gradients where
--- they are given. Raises for another number of grad_tensors, and as x:backward does.
function autograd.backward(...)
  local o = bind_backward(...)
  core.autograd_backward(as_list(o.tensors), {grad_tensors = as_list(o.grad_tensors),
    retain_graph = o.retain_graph, create_graph = o.create_graph, inputs = as_list(o.inputs)})
end

-- ---- Function ----

-- The ctx that forward and backward share; fields that a user adds may hold other values than
-- tensors. ctx.needs_input_grad[i]: does argument i of forward want a gradient?
local Context = {}
Context.__index = Context

--- Keeps tensors (arguments, results, others; or nil) for backward. The graph
--- holds them, not the context: they go with it, and a result makes no cycle.
function Context:save_for_backward(...)
  local saved = table.pack(...)
  for i = 1, saved.n do
    if saved[i] ~= nil and not core.is_tensor(saved[i]) then
      caller.raise("save_for_backward: argument %d is a %s, wanted a tensor; hint: " ..
        "ctx.name = value", i, type(saved[i]))
    end
  end
  self._saved = saved
end

--- The tensors saved, in order. Backward raises when one was changed in place.
function Context:saved_tensors()
  local saved = self._saved
  if saved then return table.unpack(saved, 1, saved.n) end
end

-- A context holds the tensors only while backward runs.
function Context:__close() self._saved = nil end

--- These results get no gradient.
function Context:mark_non_differentiable(...)
  self._plain = {}
  for _, t in ipairs{...} do self._plain[t] = true end
end

--- false: backward gets nil, not zeros, for a result that no gradient reached.
function Context:set_materialize_grads(on) self._materialize = on end

-- The shapes and options of zero gradients for the results, by position, or nil.
local function blanks_of(ctx, results)
  if results.n < 2 or ctx._materialize == false then return nil end
  local blanks = {}
  for i = 1, results.n do
    local y = results[i]
    if core.is_tensor(y) then blanks[i] = {y.shape, {dtype = y.dtype, device = y.device}} end
  end
  return blanks
end

-- An argument that is among the results becomes another tensor, which has no history yet.
local function part_from(args, results, i)
  for k = 1, args.n do
    if rawequal(args[k], results[i]) then results[i] = results[i]:detach() break end
  end
end

-- The results that are given the function as their history, and their positions among them all.
local function outputs_of(ctx, args, results)
  local outputs, positions = {}, {}
  for i = 1, results.n do
    local y = results[i]
    if core.is_tensor(y) then
      part_from(args, results, i)
      if y:is_floating_point() and not (ctx._plain and ctx._plain[y]) then
        outputs[#outputs + 1], positions[#positions + 1] = results[i], i
      end
    end
  end
  return outputs, positions
end

local function tensors_of(args)
  local tensors = {n = args.n}
  for i = 1, args.n do tensors[i] = core.is_tensor(args[i]) and args[i] or nil end
  return tensors
end

local function record(def, ctx, args, results)
  local outputs, positions = outputs_of(ctx, args, results)
  if not core.is_grad_enabled() then return end
  local blanks, n = blanks_of(ctx, results), results.n
  local keep = ctx._saved or {n = 0}
  core.custom_record(def.name, tensors_of(args), outputs, keep, function(saved, ...)
    local given, gy = {...}, {}
    for k, position in ipairs(positions) do gy[position] = given[k] end
    for position, blank in pairs(blanks or {}) do
      gy[position] = gy[position] or core.zeros(table.unpack(blank))
    end
    ctx._saved = saved
    local _ <close> = ctx
    return def.backward(ctx, table.unpack(gy, 1, n))
  end)
  ctx._saved = nil
end

local function evaluate(def, args)
  local ctx = setmetatable({needs_input_grad = {}}, Context)
  local recording = false
  for i = 1, args.n do
    local needs = core.is_tensor(args[i]) and args[i].requires_grad
    ctx.needs_input_grad[i] = needs
    recording = recording or needs
  end
  local results
  do
    local _ <close> = core.no_grad()
    results = table.pack(def.forward(ctx, table.unpack(args, 1, args.n)))
  end
  if recording then record(def, ctx, args, results) end
  return table.unpack(results, 1, results.n)
end

local Function = {__name = "demilune.Function"}
Function.__index = Function

function Function:__call(...)
  local args = table.pack(...)
  local tensors = self.policy and tensors_of(args)
  if not (tensors and core.autocast_convert(self.name, self.policy, tensors)) then
    return evaluate(self, args)
  end
  for i = 1, args.n do args[i] = tensors[i] or args[i] end
  local _ <close> = core.autocast_resume(core.autocast_state(true))
  return evaluate(self, args)
end

function Function:__tostring() return "autograd.Function " .. self.name end

--- Whether v is a function that autograd.Function made.
function autograd.is_function(v) return getmetatable(v) == Function end

--- A function {name = , forward = fn(ctx, ...), backward = fn(ctx, gy...)};
--- backward gives one gradient (or nil) an argument of forward. Call it, or its
--- apply, as forward is called, without ctx. Backward runs in the autocast state
--- in which the function was called; PyTorch does that for decorated ones only.
--- A backward, or a field of ctx, that reaches the function's own result makes a circle which
--- Lua's collector does not see: a backward pass frees it, as in PyTorch.
local bind_function = options.signature("Function",
  "*, name: string = 'Function', forward: function, backward: function")

function autograd.Function(...)
  local self = setmetatable(bind_function(...), Function)
  function self.apply(...) return self(...) end
  return self
end

-- ---- anomaly detection ----

local HERE = debug.getinfo(1, "S").source:match "^(.*)autograd%.lua$"
local FRAMES = 6 -- lines of the script's stack that are kept for a node

-- The modules whose forward is running, outermost first, as "model.layers[3]
-- Linear(8 -> 8)"; nil outside any.
local function module_path(modules)
  local Module = package.loaded["demilune.nn.module"]
  local inner = modules[#modules]
  if not inner then return nil end
  return ("model%s %s"):format(Module.path_to(modules[1], inner) or "", inner:describe())
end

-- As Lua's own traceback puts it.
local function name_of(info)
  if info.what == "main" then return "in main chunk" end
  if info.name then return ("in %s '%s'"):format(info.namewhat, info.name) end
  return ("in function <%s:%d>"):format(info.short_src, info.linedefined)
end

-- The position in the script: its line, the module, and the calls that led there.
local function where()
  local Module = package.loaded["demilune.nn.module"]
  local lines, modules, level = {}, {}, 2
  while true do
    local info = debug.getinfo(level, "Slnf")
    if not info then break end
    if Module and info.func == Module.__call then
      local _, module = debug.getlocal(level, 1)
      table.insert(modules, 1, module)
    elseif info.currentline > 0 and info.source:sub(1, #HERE) ~= HERE and #lines < FRAMES then
      lines[#lines + 1] = ("%s:%d: %s"):format(info.short_src, info.currentline, name_of(info))
    end
    level = level + 1
  end
  local line = lines[1] and lines[1]:match "^(.-:%d+):" or "no script"
  local path = module_path(modules)
  return ("%s%s\n\t%s"):format(line, path and " in " .. path or "", table.concat(lines, "\n\t"))
end

local Anomaly = {__name = "demilune.anomaly"}
Anomaly.__index = Anomaly

local function switch(on, check_nan)
  return setmetatable({past = core.anomaly_switch(on, check_nan, where), check_nan = check_nan},
    Anomaly)
end

--- Restores the mode from before.
function Anomaly:close()
  local _ <close> = self.past
end
Anomaly.__close = Anomaly.close

--- fn with detection on, at each call; this one is closed.
function Anomaly:wrap(fn)
  self:close()
  return function(...)
    local _ <close> = switch(true, self.check_nan)
    return fn(...)
  end
end

local bind_detect = options.signature("detect_anomaly",
  "check_nan: boolean = true, *, fn?: function")
local bind_set_detect = options.signature("set_detect_anomaly",
  "mode: boolean, check_nan: boolean = true")

--- A scope in which each recorded call notes where the script made it: an error
--- in backward then tells, and a gradient that is NaN is one (an infinity is not;
--- check_nan = false: neither). Three forms: a value to be closed, (opts, fn) or
--- (fn) returning what fn returns, and :wrap(fn). The same must be on in backward.
--- It costs time; under a GradScaler the first steps may overflow on purpose.
function autograd.detect_anomaly(...)
  local o = bind_detect(...)
  local fn = o.fn
  caller.warn_once("detect_anomaly", "detect_anomaly: it slows every op; for finding faults only")
  local scope = switch(true, o.check_nan)
  if fn == nil then return scope end
  return scope:wrap(fn)()
end

--- Switches at once, and stays; what it gives may be closed to go back.
function autograd.set_detect_anomaly(...)
  local o = bind_set_detect(...)
  return switch(o.mode, o.check_nan)
end

autograd.is_anomaly_enabled = core.is_anomaly_enabled
autograd.is_anomaly_check_nan_enabled = core.is_anomaly_check_nan_enabled

-- ---- memory of the graph ----

local Saved = {__name = "demilune.saved_memory"}
Saved.__index = Saved

local function mib(bytes) return ("%.2f"):format(bytes / 2^20) end

--- The rows as a table of text, those with the most bytes first, without rows of 0.
function Saved:__tostring()
  local rows = {table.unpack(self)}
  table.sort(rows, function(a, b)
    if a.bytes ~= b.bytes then return a.bytes > b.bytes end
    if a.bytes_recomputed ~= b.bytes_recomputed then
      return a.bytes_recomputed > b.bytes_recomputed
    end
    return a.op .. "," .. a.operand .. a.dtype < b.op .. "," .. b.operand .. b.dtype
  end)
  local form = "%-24s %-12s %-9s %6s %10s %12s"
  local lines = {form:format("saved by", "operand", "dtype", "number", "MiB", "recomputed")}
  for _, r in ipairs(rows) do
    if r.bytes + r.bytes_recomputed > 0 then
      lines[#lines + 1] = form:format(r.op, r.operand, r.dtype, r.n + r.n_recomputed,
        mib(r.bytes), r.bytes_recomputed > 0 and mib(r.bytes_recomputed) or "")
    end
  end
  lines[#lines + 1] = form:format("all", "", "", "", mib(self.bytes), mib(self.bytes_recomputed))
  return table.concat(lines, "\n")
end

local bind_saved = options.signature("autograd.saved_memory", "x: tensor")

--- What the graph behind x keeps for the backward pass: a row {op =, operand =, dtype =, n =,
--- bytes =, n_recomputed =, bytes_recomputed =, n_checkpointed =} for each op, operand and dtype,
--- in the order of the forward pass, and the sums `bytes` and `bytes_recomputed`. Bytes of a
--- storage that several ops saved count for the oldest one, those of parameters for none. What
--- is recomputed (see set_recompute_bytes) or checkpointed takes no memory. print(...) shows a
--- table, in MiB.
function autograd.saved_memory(...)
  local rows = core.saved_memory(bind_saved(...).x)
  rows.bytes, rows.bytes_recomputed = 0, 0
  for _, r in ipairs(rows) do
    rows.bytes = rows.bytes + r.bytes
    rows.bytes_recomputed = rows.bytes_recomputed + r.bytes_recomputed
  end
  return setmetatable(rows, Saved)
end

local bind_recompute = options.signature("autograd.set_recompute_bytes", "bytes: number")

--- From how many bytes on the result of a cheap op (an activation, a norm, a cast, a copy, a
--- product of elements) is not kept for the backward pass, but computed there again, with the
--- same bits, from what the graph keeps anyway. 0: all such results; math.huge: none, as PyTorch
--- does. 1 MiB at first; it holds for all states of the process.
function autograd.set_recompute_bytes(...)
  local bytes = bind_recompute(...).bytes
  if bytes ~= bytes or bytes < 0 then
    caller.raise("set_recompute_bytes: bytes is %s, wanted 0 or more", tostring(bytes))
  end
  core.recompute_bytes(bytes >= math.maxinteger and math.maxinteger
    or math.tointeger(math.ceil(bytes)))
end

local bind_none = options.signature("autograd.get_recompute_bytes", "")

--- What set_recompute_bytes has set; math.huge where nothing is recomputed.
function autograd.get_recompute_bytes(...)
  bind_none(...)
  local bytes = core.recompute_bytes()
  return bytes == math.maxinteger and math.huge or bytes
end

-- ---- gradcheck ----

local CHECK = [[func: function, inputs: any, *, eps: number = 1e-6, atol: number = 1e-5,
  rtol: number = 1e-3, raise_exception: boolean = true]]
local bind_check = options.signature("gradcheck", CHECK)
local bind_twice = options.signature("gradgradcheck", CHECK)

-- sum of all outputs times their weights, as a number or a recorded tensor
local function weighted(outputs, weights)
  local total
  for i = 1, outputs.n do
    local term = (outputs[i] * weights[i]):sum()
    total = total and total + term or term
  end
  return total
end

local function run(fn, inputs)
  local outs = table.pack(fn(table.unpack(inputs)))
  local floats = {n = 0}
  for i = 1, outs.n do
    if core.is_tensor(outs[i]) and outs[i]:is_floating_point() then
      floats.n = floats.n + 1
      floats[floats.n] = outs[i]
    end
  end
  return floats
end

-- (f(x + e) - f(x - e)) / 2e in one element of x, f weighted
local function difference(fn, inputs, flat, k, weights, eps)
  local _ <close> = core.no_grad()
  local v = flat[k]:item()
  flat[k] = v + eps
  local above = weighted(run(fn, inputs), weights):item()
  flat[k] = v - eps
  local below = weighted(run(fn, inputs), weights):item()
  flat[k] = v
  return (above - below) / (2 * eps)
end

--- Compares gradients of fn(inputs...) with central differences, weighting the
--- outputs at random. Inputs: float64 leaves, those with requires_grad checked.
--- true; else raises (or gives false and the text), naming input and element.
function autograd.gradcheck(...)
  local o = bind_check(...)
  local fn, inputs = o.func, as_list(o.inputs)
  local checked = {}
  for i, x in ipairs(inputs) do
    if core.is_tensor(x) and x.requires_grad then
      if x.dtype ~= "float64" or not x:is_contiguous() then
        caller.raise("gradcheck: input %d is %s, wanted dense float64", i, x.dtype)
      end
      checked[#checked + 1] = i
    end
  end
  if #checked == 0 then caller.raise("gradcheck: no input requires a gradient") end
  local outputs = run(fn, inputs)
  local weights, leaves = {}, {}
  for i = 1, outputs.n do weights[i] = core.randn_like(outputs[i].data) end
  for k, i in ipairs(checked) do leaves[k] = inputs[i] end
  local grads = table.pack(core.autograd_grad({weighted(outputs, weights)}, leaves,
    {allow_unused = true}))
  for k, i in ipairs(checked) do
    local flat = leaves[k].data:view(-1)
    local grad = grads[k] and grads[k]:reshape(-1):totable() or {}
    for e = 1, leaves[k]:numel() do
      local want = difference(fn, inputs, flat, e, weights, o.eps)
      local got = grad[e] or 0
      local close = math.abs(got - want) <= o.atol + o.rtol * math.abs(want)
      if not close then
        local text = ("gradcheck: input %d, element %d: gradient %.9g, finite difference %.9g")
          :format(i, e, got, want)
        if o.raise_exception then caller.raise("%s", text) end
        return false, text
      end
    end
  end
  return true
end

--- gradcheck of the gradient itself.
function autograd.gradgradcheck(...)
  local o = bind_twice(...)
  local fn, inputs = o.func, as_list(o.inputs)
  local seeds
  return autograd.gradcheck(function(...)
    local args, leaves = {...}, {}
    for _, x in ipairs(args) do
      if core.is_tensor(x) and x.requires_grad then leaves[#leaves + 1] = x end
    end
    local _ <close> = core.enable_grad()
    local outputs = run(fn, args)
    if not seeds then
      seeds = {}
      for i = 1, outputs.n do seeds[i] = core.randn_like(outputs[i].data) end
    end
    return core.autograd_grad({weighted(outputs, seeds)}, leaves,
      {create_graph = true, allow_unused = true})
  end, inputs, {eps = o.eps, atol = o.atol, rtol = o.rtol, raise_exception = o.raise_exception})
end

return autograd
