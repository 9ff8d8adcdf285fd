-- Hooks of a module's backward pass. The tensors that go in and those that come out pass through
-- an identity of their own, so that the gradients of all of one side arrive together, and
-- those of an input are this module's share alone.

local core = require "demilune.core"
local autograd = require "demilune.autograd"
local caller = require "demilune.caller"

local backward_hooks = {}

-- gate(fn, t1, t2, ...) -> the same; their gradients are what fn makes of them.
local gate = autograd.Function{
  name = "backward_hook",
  forward = function(ctx, fn, ...)
    ctx.fn = fn
    ctx:set_materialize_grads(false)
    return ...
  end,
  backward = function(ctx, ...) return nil, ctx.fn(...) end,
}

-- A list of values whose tensors that want a gradient have passed the gate, or nil where
-- there are none.
-- fn gets and gives lists of gradients that stand as the values do.
local function pass(values, fn)
  local tensors, positions = {}, {}
  for i = 1, values.n do
    local v = values[i]
    if core.is_tensor(v) and v.requires_grad then
      tensors[#tensors + 1], positions[#positions + 1] = v, i
    end
  end
  if #tensors == 0 then return nil end
  local passed = table.pack(gate(function(...)
    local given, grads = {...}, {n = values.n}
    for k, i in ipairs(positions) do grads[i] = given[k] end
    grads = fn(grads)
    for k, i in ipairs(positions) do given[k] = grads[i] end
    return table.unpack(given, 1, #positions)
  end, table.unpack(tensors)))
  local list = table.move(values, 1, values.n, 1, {n = values.n})
  for k, i in ipairs(positions) do list[i] = passed[k] end
  return list
end

-- A list of gradients after the hooks: each may replace it by a list or by one tensor.
local function run(hooks, what, module, grads, ...)
  for _, hook in ipairs(hooks) do
    local changed = hook(module, grads, ...)
    if core.is_tensor(changed) then changed = {changed, n = 1} end
    if changed ~= nil then
      local n = type(changed) == "table" and (changed.n or #changed)
      if n ~= grads.n then
        caller.raise("%s of %s returned %s, wanted %d gradients, in a table", what, module.class,
          n and n .. " gradients" or "a " .. type(changed), grads.n)
      end
      changed.n = n
      grads = changed
    end
  end
  return grads
end

-- A module's hooks of a kind as they are now: as in PyTorch, those of the forward pass are called
-- in the backward pass, also where one has been removed since.
local function snapshot(module, kind)
  local hooks = rawget(module, kind)
  return hooks and table.move(hooks, 1, #hooks, 1, {}) or {}
end

--- Calls forward(inputs), with the module's hooks of the backward pass around it.
---@param inputs table a list with n
---@param forward fun(inputs: table): ...
function backward_hooks.around(module, inputs, forward)
  local before = snapshot(module, "_backward_pre_hooks")
  local after = snapshot(module, "_backward_hooks")
  local grad_output
  local passed = pass(inputs, function(grads)
    if not grad_output then return grads end
    grads = run(after, "a full backward hook", module, grads, grad_output)
    grad_output = nil
    return grads
  end)
  local outputs = table.pack(forward(passed or inputs))
  local left = pass(outputs, function(grads)
    grad_output = run(before, "a full backward pre-hook", module, grads)
    grads = grad_output
    if not passed then
      -- no gradient goes to the inputs, so there is nothing to wait for
      run(after, "a full backward hook", module, {n = inputs.n}, grads)
    end
    return grads
  end) or outputs
  return table.unpack(left, 1, left.n)
end

return backward_hooks
