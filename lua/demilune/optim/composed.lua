-- Optimizers whose steps are composed of tensor operations, parameter by parameter. The
-- formulas and their order are PyTorch's; Lion and LAMB are their papers'.
--
-- A step computes in the parameter's dtype, as PyTorch's does. With master_weights =
-- true a 16-bit parameter has float32 values (state[p].master) and buffers, which are
-- updated in its place and written rounded into it.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local Optimizer = require "demilune.optim.optimizer"

local composed = {}

-- What every class here takes beside its own options.
local COMMON = {maximize = false, master_weights = false, foreach = options.NONE,
  fused = options.NONE, capturable = options.NONE, differentiable = options.NONE}

local SIXTEEN = {float16 = true, bfloat16 = true}

-- The values that a step works on, and its gradient alike.
local function operands(p, state, group)
  local grad = p.grad
  if group.maximize then grad = -grad end
  if not (group.master_weights and SIXTEEN[p.dtype]) then return p, grad end
  state.master = state.master or core.keep(p.data:float())
  return state.master, grad:float()
end

-- One group's step, without recording: step(p, grad, state, group) for each parameter
-- that has a gradient; state.step counts from 1.
local function update(self, group, step)
  local _ <close> = core.no_grad()
  for _, p in ipairs(group.params) do
    if p.grad then
      local _ <close> = core.scope()
      local state = self.state[p] or {step = 0}
      self.state[p] = state
      local w, grad = operands(p, state, group)
      state.step = state.step + 1
      step(w, grad, state, group)
      if w ~= p then p:copy_(w) end
    end
  end
end

-- A class of this name. check(o) looks at its options.
function composed.class(name, defaults, check, step)
  for key, value in pairs(COMMON) do defaults[key] = value end
  local class = Optimizer.extend(name, defaults)
  class.check = check
  function class:update(group) return update(self, group, step) end
  return class
end

local function add(name, ...) composed[name] = composed.class(name, ...) end

local function checks(name, numbers)
  return function(o)
    for _, key in ipairs(numbers) do Optimizer.check_range(name, o, key) end
    if o.betas ~= nil then
      if type(o.betas) ~= "table" then caller.raise("%s: betas is a pair {b1, b2}", name) end
      for i = 1, 2 do Optimizer.check_range(name .. ": betas", o.betas, i, 1) end
    end
  end
end

-- The gradient with the L2 penalty's.
local function penalised(w, grad, group)
  if group.weight_decay == 0 then return grad end
  return grad:add(w, {alpha = group.weight_decay})
end

-- Either that, or the weights shrink, and the gradient stays (decoupled decay).
local function decayed(w, grad, group)
  if not group.decoupled_weight_decay then return penalised(w, grad, group) end
  w:mul_(1 - group.lr * group.weight_decay)
  return grad
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

-- G. Hinton 2012; centered: A. Graves 2013.
add("RMSprop", {lr = 1e-2, alpha = 0.99, eps = 1e-8, weight_decay = 0, momentum = 0,
  centered = false}, checks("RMSprop", {"lr", "alpha", "eps", "weight_decay", "momentum"}),
  function(w, grad, state, o)
    grad = penalised(w, grad, o)
    local v = buffers(state, w, "square_avg")
    v:mul_(o.alpha):addcmul_(grad, grad, {value = 1 - o.alpha})
    local root
    if o.centered then
      local m = buffers(state, w, "grad_avg")
      m:lerp_(grad, 1 - o.alpha)
      root = v:addcmul(m, m, {value = -1}):sqrt_()
    else
      root = v:sqrt()
    end
    root:add_(o.eps)
    if o.momentum > 0 then
      local b = buffers(state, w, "momentum_buffer")
      b:mul_(o.momentum):addcdiv_(grad, root)
      w:add_(b, {alpha = -o.lr})
    else
      w:addcdiv_(grad, root, {value = -o.lr})
    end
  end)

-- J. Duchi, E. Hazan, Y. Singer 2011.
add("Adagrad", {lr = 1e-2, lr_decay = 0, weight_decay = 0,
  initial_accumulator_value = 0, eps = 1e-10},
  checks("Adagrad", {"lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"}),
  function(w, grad, state, o)
    grad = penalised(w, grad, o)
    state.sum = state.sum
      or core.keep(core.full_like(w, o.initial_accumulator_value))
    state.sum:addcmul_(grad, grad, {value = 1})
    local rate = o.lr / (1 + (state.step - 1) * o.lr_decay)
    w:addcdiv_(grad, state.sum:sqrt():add_(o.eps), {value = -rate})
  end)

-- M. Zeiler 2012.
add("Adadelta", {lr = 1.0, rho = 0.9, eps = 1e-6, weight_decay = 0},
  function(o)
    checks("Adadelta", {"lr", "eps", "weight_decay"})(o)
    if type(o.rho) ~= "number" or not (o.rho >= 0 and o.rho <= 1) then
      caller.raise("Adadelta: rho is %s, wanted a number from 0 to 1", tostring(o.rho))
    end
  end,
  function(w, grad, state, o)
    grad = penalised(w, grad, o)
    local v, acc = buffers(state, w, "square_avg", "acc_delta")
    v:mul_(o.rho):addcmul_(grad, grad, {value = 1 - o.rho})
    local delta = acc:add(o.eps):sqrt_():div_(v:add(o.eps):sqrt_()):mul_(grad)
    acc:mul_(o.rho):addcmul_(delta, delta, {value = 1 - o.rho})
    w:add_(delta, {alpha = -o.lr})
  end)

-- D. Kingma, J. Ba 2014, section 7.1.
add("Adamax", {lr = 2e-3, betas = {0.9, 0.999}, eps = 1e-8, weight_decay = 0},
  checks("Adamax", {"lr", "eps", "weight_decay"}),
  function(w, grad, state, o)
    grad = penalised(w, grad, o)
    local m, top = buffers(state, w, "exp_avg", "exp_inf")
    m:lerp_(grad, 1 - o.betas[1])
    top:copy_(core.maximum(top:mul(o.betas[2]), grad:abs():add_(o.eps)))
    w:addcdiv_(m, top, {value = -o.lr / (1 - o.betas[1] ^ state.step)})
  end)

-- T. Dozat 2016; the momentum grows along a schedule.
add("NAdam", {lr = 2e-3, betas = {0.9, 0.999}, eps = 1e-8, weight_decay = 0,
  momentum_decay = 4e-3, decoupled_weight_decay = false},
  checks("NAdam", {"lr", "eps", "weight_decay", "momentum_decay"}),
  function(w, grad, state, o)
    grad = decayed(w, grad, o)
    local t, b1, b2 = state.step, o.betas[1], o.betas[2]
    local function mu(at) return b1 * (1 - 0.5 * 0.96 ^ (at * o.momentum_decay)) end
    state.mu_product = (state.mu_product or 1) * mu(t)
    local m, v = means(state, w, grad, o.betas)
    local root = v:div(1 - b2 ^ t):sqrt_():add_(o.eps)
    w:addcdiv_(grad, root, {value = -o.lr * (1 - mu(t)) / (1 - state.mu_product)})
    w:addcdiv_(m, root, {value = -o.lr * mu(t + 1) / (1 - state.mu_product * mu(t + 1))})
  end)

-- L. Liu et al. 2019: a plain mean until the variance of the square's mean is tractable.
add("RAdam", {lr = 1e-3, betas = {0.9, 0.999}, eps = 1e-8, weight_decay = 0,
  decoupled_weight_decay = false}, checks("RAdam", {"lr", "eps", "weight_decay"}),
  function(w, grad, state, o)
    grad = decayed(w, grad, o)
    local t, b2 = state.step, o.betas[2]
    local m, v = means(state, w, grad, o.betas)
    local mean = m / (1 - o.betas[1] ^ t)
    local rest = 1 - b2 ^ t
    local rho_inf = 2 / (1 - b2) - 1
    local rho = rho_inf - 2 * t * b2 ^ t / rest
    if rho > 5 then
      local rect = math.sqrt((rho - 4) * (rho - 2) * rho_inf
        / ((rho_inf - 4) * (rho_inf - 2) * rho))
      local adaptive = math.sqrt(rest) / v:sqrt():add_(o.eps)
      w:add_(mean:mul_(o.lr):mul_(adaptive):mul_(rect), {alpha = -1})
    else
      w:add_(mean:mul_(o.lr), {alpha = -1})
    end
  end)

-- B. Polyak, A. Juditsky 1992: SGD whose mean state.ax is the answer; t0: steps before the
-- mean begins.
add("ASGD", {lr = 1e-2, lambd = 1e-4, alpha = 0.75, t0 = 1e6, weight_decay = 0},
  checks("ASGD", {"lr", "weight_decay"}),
  function(w, grad, state, o)
    grad = penalised(w, grad, o)
    local ax = buffers(state, w, "ax")
    local eta = state.eta or o.lr
    w:mul_(1 - o.lambd * eta):add_(grad, {alpha = -eta})
    ax:lerp_(w, state.mu or 1)
    state.eta = o.lr / (1 + o.lambd * o.lr * state.step) ^ o.alpha
    state.mu = 1 / math.max(1, state.step - o.t0)
  end)

-- M. Riedmiller, H. Braun 1993: each weight's own step grows by etas[2] while its gradient
-- keeps its sign, and shrinks by etas[1] where that turned, which undoes nothing.
add("Rprop", {lr = 1e-2, etas = {0.5, 1.2}, step_sizes = {1e-6, 50}},
  function(o)
    checks("Rprop", {"lr"})(o)
    local e = o.etas
    if type(e) ~= "table" or not (e[1] > 0 and e[1] < 1 and e[2] > 1) then
      caller.raise("Rprop: etas is a pair {less than 1, more than 1}")
    end
  end,
  function(w, grad, state, o)
    local prev = buffers(state, w, "prev")
    state.step_size = state.step_size or core.keep(core.full_like(w, o.lr))
    local size, turn = state.step_size, grad * prev
    local factor = core.where(turn:gt(0), o.etas[2], core.where(turn:lt(0), o.etas[1], 1))
    size:mul_(factor:to(w.dtype)):clamp_{min = o.step_sizes[1], max = o.step_sizes[2]}
    grad = core.where(turn:lt(0), 0, grad)
    w:addcmul_(grad:sign(), size, {value = -1})
    prev:copy_(grad)
  end)

-- The mean over dim, kept, of an Adafactor state, which moves towards it.
local function moved(state, name, square, dim, weight)
  local mean = square:mean(dim, {keepdim = true})
  state[name] = state[name] or core.keep(core.zeros_like(mean))
  state[name]:lerp_(mean, weight)
  return state[name]
end

local GAP = {float64 = 2^-52, float32 = 2^-23, float16 = 2^-10, bfloat16 = 2^-7}

-- N. Shazeer, M. Stern 2018: of a matrix only the rows' and the columns' mean squares are
-- kept. eps[1] is the dtype's gap after 1 where none is given; d bounds the step's size.
add("Adafactor", {lr = 1e-2, beta2_decay = -0.8, eps = {false, 1e-3}, d = 1.0,
  weight_decay = 0.0}, checks("Adafactor", {"lr", "weight_decay"}),
  function(w, grad, state, o)
    local eps1 = o.eps[1] or GAP[w.dtype]
    local t = state.step
    local weight = t ^ o.beta2_decay
    local rate = math.min(o.lr, 1 / math.sqrt(t))
    local size = math.sqrt(w:numel())
    local alpha = (w:norm() / size):clamp{min = o.eps[2]} * rate
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

-- X. Chen et al. 2023: the sign of a mean, and decoupled decay.
add("Lion", {lr = 1e-4, betas = {0.9, 0.99}, weight_decay = 0},
  checks("Lion", {"lr", "weight_decay"}),
  function(w, grad, state, o)
    local m = buffers(state, w, "exp_avg")
    w:mul_(1 - o.lr * o.weight_decay)
    w:add_(m:lerp(grad, 1 - o.betas[1]):sign(), {alpha = -o.lr})
    m:lerp_(grad, 1 - o.betas[2])
  end)

-- Y. You et al. 2019: Adam's step, as long as the weights are, layer by layer. The ratio
-- of the norms stays on the device.
add("LAMB", {lr = 1e-3, betas = {0.9, 0.999}, eps = 1e-6, weight_decay = 0.01},
  checks("LAMB", {"lr", "eps", "weight_decay"}),
  function(w, grad, state, o)
    local m, v = means(state, w, grad, o.betas)
    local t, b1, b2 = state.step, o.betas[1], o.betas[2]
    local r = v:div(1 - b2 ^ t):sqrt_():add_(o.eps)
    r = m:div(1 - b1 ^ t):div_(r):add_(w, {alpha = o.weight_decay})
    local ours, theirs = w:norm(), r:norm()
    local is_plain = (ours:eq(0) + theirs:eq(0)):gt(0)
    local trust = core.where(is_plain, core.ones_like(ours), ours / theirs)
    w:add_(r:mul_(trust), {alpha = -o.lr})
  end)

return composed
