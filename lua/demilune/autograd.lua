-- demilune.autograd: gradients as values, functions with a gradient of their
-- own, and the check of gradients against finite differences.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"

local autograd = {}

local function as_list(v) return core.is_tensor(v) and {v} or v end

-- Gradients of outputs (a tensor or an array) with respect to inputs, one
-- result an input; .grad stays as it is.
function autograd.grad(outputs, inputs, opts)
  if opts and core.is_tensor(opts.grad_outputs) then
    local copy = {}
    for key, value in pairs(opts) do copy[key] = value end
    copy.grad_outputs = {opts.grad_outputs}
    opts = copy
  end
  return core.autograd_grad(as_list(outputs), as_list(inputs), opts)
end

-- ---- Function ----

local Context = {}
Context.__index = Context

function Context:save_for_backward(...)
  self._saved = table.pack(...)
end

-- The tensors saved, in order; raises when one was changed in place since.
function Context:saved_tensors()
  local saved = self._saved or {n = 0}
  for i = 1, saved.n do
    local t = saved[i]
    if core.is_tensor(t) and t:_version() ~= self._versions[i] then
      caller.raise("%s: saved tensor %d was changed in place: it has version %d, wanted %d",
        self._name, i, t:_version(), self._versions[i])
    end
  end
  return table.unpack(saved, 1, saved.n)
end

function Context:mark_non_differentiable(...)
  self._plain = {}
  for _, t in ipairs{...} do self._plain[t] = true end
end

local function note_versions(ctx)
  ctx._versions = {}
  for i = 1, ctx._saved and ctx._saved.n or 0 do
    local t = ctx._saved[i]
    ctx._versions[i] = core.is_tensor(t) and t:_version()
  end
end

-- Gradients of the tensor inputs, out of those of all arguments.
local function pick(positions, ...)
  local all, out = table.pack(...), {}
  for i, position in ipairs(positions) do out[i] = all[position] end
  return table.unpack(out, 1, #positions)
end

local function apply(def, ...)
  local args = table.pack(...)
  local ctx = setmetatable({_name = def.name, needs_input_grad = {}}, Context)
  local inputs, positions = {}, {}
  local recording = false
  for i = 1, args.n do
    local needs = core.is_tensor(args[i]) and args[i].requires_grad
    ctx.needs_input_grad[i] = needs
    if core.is_tensor(args[i]) then
      inputs[#inputs + 1], positions[#positions + 1] = args[i], i
      recording = recording or needs
    end
  end
  recording = recording and core.is_grad_enabled()
  local results
  do
    local _ <close> = core.no_grad()
    results = table.pack(def.forward(ctx, ...))
  end
  if not recording then return table.unpack(results, 1, results.n) end
  local outputs, slots = {}, {}
  for i = 1, results.n do
    local y = results[i]
    if core.is_tensor(y) and y:is_floating_point() and not (ctx._plain and ctx._plain[y]) then
      for _, x in ipairs(inputs) do
        if rawequal(x, y) then y = y:detach() break end
      end
      results[i] = y
      outputs[#outputs + 1], slots[#slots + 1] = y, i
    end
  end
  note_versions(ctx)
  local n = results.n
  core.custom_record(def.name, inputs, outputs, function(...)
    local given, gy = {...}, {}
    for k, slot in ipairs(slots) do gy[slot] = given[k] end
    return pick(positions, def.backward(ctx, table.unpack(gy, 1, n)))
  end)
  return table.unpack(results, 1, n)
end

-- A function {name = , forward = fn(ctx, ...), backward = fn(ctx, gy...)};
-- backward gives one gradient (or nil) an argument of forward.
function autograd.Function(def)
  options.read("Function", def, {name = "Function", forward = options.NONE,
    backward = options.NONE})
  if type(def.forward) ~= "function" or type(def.backward) ~= "function" then
    caller.raise("Function: wanted forward and backward, both functions")
  end
  local name = def.name or "Function"
  local callee = {name = name, forward = def.forward, backward = def.backward}
  return setmetatable({name = name, apply = function(...) return apply(callee, ...) end}, {
    __call = function(_, ...) return apply(callee, ...) end,
    __tostring = function() return "autograd.Function " .. name end,
  })
end

-- ---- gradcheck ----

local CHECK = {eps = 1e-6, atol = 1e-5, rtol = 1e-3, raise_exception = true}

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

-- Compares gradients of fn(inputs...) with central differences, weighting the
-- outputs at random. Inputs: float64 leaves, those with requires_grad checked.
-- true; else raises (or gives false and the text), naming input and element.
function autograd.gradcheck(fn, inputs, opts)
  local o = options.read("gradcheck", opts, CHECK)
  inputs = as_list(inputs)
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

-- gradcheck of the gradient itself.
function autograd.gradgradcheck(fn, inputs, opts)
  inputs = as_list(inputs)
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
  end, inputs, opts)
end

return autograd
