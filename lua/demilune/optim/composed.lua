-- Optimizers that need norms or means of whole tensors, or products of matrices: their steps
-- are composed of tensor operations, parameter by parameter. Adafactor's formulas and their
-- order are PyTorch's; LAMB is its paper's.
--
-- A step computes in the parameter's dtype, as PyTorch's does. With master_weights =
-- true a 16-bit parameter has float32 values (state[p].master) and buffers, which are
-- updated in its place and written rounded into it.

local core = require "demilune.core"
local caller = require "demilune.caller"
local dtypes = require "demilune.dtypes"
local Optimizer = require "demilune.optim.optimizer"

local composed = {}

-- The options of every class here, in addition to its own.
local COMMON = [[, *, maximize: boolean = false, master_weights: boolean = false,
  foreach?: boolean, fused?: boolean, capturable?: boolean, differentiable?: boolean]]

-- Whether a tensor's shape is p's, or p's with means in place of some dims (Adafactor's factors).
local function fits(value, p)
  for dim, size in ipairs(p.shape) do
    if value:size(dim) ~= size and value:size(dim) ~= 1 then return false end
  end
  return true
end

-- Raises where p's data were exchanged for some of another shape since its gradient or its state
-- were made; before the group's first parameter changes.
local function check_shapes(class, i, p, state)
  local function check(value)
    if value:dim() == p:dim() and not fits(value, p) then
      caller.raise("%s: parameter %d has shape {%s}, its gradient or a buffer {%s}", class, i,
        table.concat(p.shape, ", "), table.concat(value.shape, ", "))
    end
  end
  check(p.grad)
  for _, value in pairs(state or {}) do check(value) end
end

-- The weights that a step updates, and their gradient.
local function operands(p, state, group)
  local grad = p.grad
  if group.maximize then grad = -grad end
  if not (group.master_weights and dtypes.low[p.dtype]) then return p, grad end
  state.master = state.master or core.keep(p.data:float())
  return state.master, grad:float()
end

-- A step's operands before it, to be put back where it is skipped: the weights, and the state
-- by name.
local function copies(w, state)
  local old = {}
  for name, value in pairs(state) do old[name] = value:clone() end
  return w:clone(), old
end

-- Restores w and the state where skip is true; state that the step has made becomes zeros.
local function put_back(skip, w, old_w, state, old)
  w:copy_(core.where(skip, old_w, w))
  for name, value in pairs(state) do
    if value ~= w then
      value:copy_(core.where(skip, old[name] or core.zeros_like(value), value))
    end
  end
end

-- One group's step, without recording: step(p, grad, state, group) for each parameter
-- that has a gradient; state.step counts from 1. Nothing changes where found_inf is not 0,
-- which the device decides.
local function update(self, group, found_inf, step)
  local _ <close> = core.no_grad()
  for i, p in ipairs(group.params) do
    if p.grad then check_shapes(self.class, i, p, self.state[p]) end
  end
  for _, p in ipairs(group.params) do
    if p.grad then
      local _ <close> = core.scope()
      local state = self.state[p] or {}
      self.state[p] = state
      -- a state that PyTorch's Muon has saved has no step
      state.step = state.step or Optimizer.counter(0, "float32", p.device)
      local w, grad = operands(p, state, group)
      local skip, old_w, old = found_inf and found_inf:ne(0), nil, nil
      if skip then old_w, old = copies(w, state) end
      state.step:add_(1)
      step(w, grad, state, group)
      if skip then put_back(skip, w, old_w, state, old) end
      if w ~= p then p:copy_(skip and core.where(skip, p, w:to(p.dtype)) or w) end
    end
  end
end

-- A class of this name. check(o) looks at its options.
function composed.class(name, text, check, step)
  local class = Optimizer.extend(name, text .. COMMON)
  class.check = check
  class.counters = {step = "float32"}
  class.takes_found_inf = true
  function class:update(group, found_inf) return update(self, group, found_inf, step) end
  return class
end

local function add(name, ...) composed[name] = composed.class(name, ...) end

local function checks(name, numbers)
  return function(o)
    for _, key in ipairs(numbers) do Optimizer.check_range(name, o, key) end
    if o.betas ~= nil then
      if #o.betas ~= 2 then caller.raise("%s: betas is a pair {b1, b2}", name) end
      for i = 1, 2 do Optimizer.check_range(name .. ": betas", o.betas, i, 1) end
    end
  end
end

-- The buffers of these names, zeros at first.
local function buffers(state, w, ...)
  local list = {}
  for i, name in ipairs{...} do
    state[name] = state[name] or Optimizer.zeros_like(w)
    list[i] = state[name]
  end
  return table.unpack(list)
end

-- The running means of the gradient and of its square.
local function means(state, w, grad, betas)
  local m, v = buffers(state, w, "exp_avg", "exp_avg_sq")
  m:lerp_(grad, 1 - betas[1])
  v:mul_(betas[2]):addcmul_(grad, grad, {value = 1 - betas[2]})
  return m, v
end

-- The mean over dim, kept, of an Adafactor state, which moves towards it.
local function moved(state, name, square, dim, weight)
  local mean = square:mean(dim, {keepdim = true})
  state[name] = state[name] or core.keep(core.zeros_like(mean))
  state[name]:lerp_(mean, weight)
  return state[name]
end

local check_adafactor_rates = checks("Adafactor", {"lr", "weight_decay"})

local function check_adafactor(o)
  check_adafactor_rates(o)
  if o.beta2_decay > 0 or o.beta2_decay ~= o.beta2_decay then
    caller.raise("Adafactor: beta2_decay is %s, wanted 0 or less", tostring(o.beta2_decay))
  end
  if o.d < 1 or o.d ~= o.d then
    caller.raise("Adafactor: d is %s, wanted 1 or more", tostring(o.d))
  end
  for i = 1, 2 do
    if o.eps[i] then Optimizer.check_range("Adafactor: eps", o.eps, i) end
  end
end

-- N. Shazeer, M. Stern 2018: of a matrix only the rows' and the columns' mean squares are
-- kept. eps[1] is the dtype's gap after 1 where none is given; d bounds the step's size.
add("Adafactor", [[lr: number = 1e-2, beta2_decay: number = -0.8, eps: list = {false, 1e-3},
  d: number = 1.0, weight_decay: number = 0.0]], check_adafactor,
  function(w, grad, state, o)
    local eps1 = o.eps[1] or dtypes.of[w.dtype].eps
    local t = state.step:double()
    local wide = w.dtype == "float64" and "float64" or "float32"
    local weight = (t ^ o.beta2_decay):to(wide)
    local rate = (1 / t:sqrt()):clamp{max = o.lr}:to(wide)
    local size = math.sqrt(w:numel())
    local alpha = (w:norm() / size):clamp{min = o.eps[2]}
    alpha = (alpha * rate):to(w.dtype)
    w:mul_(1 - o.lr * o.weight_decay)
    local variance
    if grad:dim() > 1 then
      local square = grad * grad
      local rows = moved(state, "row_var", square, -1, weight)
      local columns = moved(state, "col_var", square, -2, weight)
      variance = rows:matmul(columns)
        / rows:mean(-2, {keepdim = true}):clamp{min = eps1}
    else
      variance = buffers(state, w, "variance")
      variance:lerp_(grad * grad, weight)
    end
    local step = variance:clamp{min = eps1 * eps1}:rsqrt() * grad
    local bound = (step:norm() / (size * o.d)):clamp{min = 1}
    w:sub_(step * (alpha / bound))
  end)

composed.Adafactor.reduced = {row_var = true, col_var = true}

-- Y. You et al. 2019: Adam's step, as long as the weights are, layer by layer. The ratio
-- of the norms stays on the device.
add("LAMB", [[lr: number = 1e-3, betas: numbers = {0.9, 0.999}, eps: number = 1e-6,
  weight_decay: number = 0.01]],
  checks("LAMB", {"lr", "eps", "weight_decay"}),
  function(w, grad, state, o)
    local m, v = means(state, w, grad, o.betas)
    local t = state.step:double()
    local r = v:div(1 - o.betas[2] ^ t):sqrt_():add_(o.eps)
    r = m:div(1 - o.betas[1] ^ t):div_(r):add_(w, {alpha = o.weight_decay})
    local ours, theirs = w:norm(), r:norm()
    local is_plain = (ours:eq(0) + theirs:eq(0)):gt(0)
    local trust = core.where(is_plain, core.ones_like(ours), ours / theirs)
    w:add_(r:mul_(trust), {alpha = -o.lr})
  end)

return composed
