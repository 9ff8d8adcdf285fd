-- SGD, Adam and AdamW: options, buffers, and one call of the engine a group.
--
-- 16-bit parameters: each step computes in float32 and rounds. With
-- master_weights = true the optimizer keeps their float32 values (state[p].master)
-- and moments, updates those, and writes them rounded into the parameter. With
-- stochastic_rounding = true there is no master: a step smaller than what 16 bits
-- can tell apart moves the weight by chance, and on average by its own size.
-- Parameters of other dtypes ignore both.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local Optimizer = require "demilune.optim.optimizer"

local methods = {}

local SIXTEEN = {float16 = true, bfloat16 = true}

local check_range = Optimizer.check_range

local function check_rounding(class, o)
  if o.master_weights and o.stochastic_rounding then
    caller.raise("%s: master_weights and stochastic_rounding are two ways to the same end; " ..
      "wanted one of them", class)
  end
end

-- The engine answers with a parameter that lacks a buffer, until none does.
-- make(buffers, like, group): adds those that are missing, true if momentum is new;
-- step(params, state, found_inf, first, ...): the rest are its options.
local function update(self, group, found_inf, make, step, ...)
  local params, first = group.params, nil
  local lacking = step(params, self.state, found_inf, nil, ...)
  while lacking do
    local p = params[lacking]
    local buffers = self.state[p] or {}
    if group.master_weights and SIXTEEN[p.dtype] then
      buffers.master = buffers.master or core.keep(p.data:to "float32")
    end
    first = first or {}
    first[p] = make(buffers, buffers.master or p, group)
    self.state[p] = buffers
    lacking = step(params, self.state, found_inf, first, ...)
  end
end

local function sgd(class)
  local SGD = Optimizer.extend(class, {lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0,
    nesterov = false, maximize = false, master_weights = false, stochastic_rounding = false,
    foreach = options.NONE, fused = options.NONE})

  function SGD.check(o)
    for _, name in ipairs{"lr", "momentum", "weight_decay"} do check_range(class, o, name) end
    if o.nesterov and (o.momentum == 0 or o.dampening ~= 0) then
      caller.raise("%s: nesterov wants a momentum above 0 and dampening 0", class)
    end
    check_rounding(class, o)
  end

  SGD.takes_found_inf = true

  local function make(buffers, like, group)
    if group.momentum == 0 or buffers.momentum_buffer then return false end
    buffers.momentum_buffer = Optimizer.zeros_like(like)
    return true
  end

  function SGD:update(group, found_inf)
    return update(self, group, found_inf, make, core.sgd_step, group.lr, group.momentum,
      group.dampening, group.weight_decay, group.nesterov, group.maximize,
      group.stochastic_rounding, group.master_weights)
  end
  return SGD
end

local function adam(class, weight_decay, decoupled)
  local Adam = Optimizer.extend(class, {lr = 1e-3, betas = {0.9, 0.999}, eps = 1e-8,
    weight_decay = weight_decay, amsgrad = false, maximize = false,
    decoupled_weight_decay = decoupled, master_weights = false, stochastic_rounding = false,
    foreach = options.NONE, fused = options.NONE})

  function Adam.check(o)
    for _, name in ipairs{"lr", "eps", "weight_decay"} do check_range(class, o, name) end
    if type(o.betas) ~= "table" then caller.raise("%s: betas is a pair {b1, b2}", class) end
    for i = 1, 2 do check_range(class .. ": betas", o.betas, i, 1) end
    check_rounding(class, o)
  end

  Adam.takes_found_inf = true

  local function make(buffers, like, group)
    buffers.step = buffers.step
      or core.keep(core.tensor(0.0, {device = like.device}))
    for _, name in ipairs{"exp_avg", "exp_avg_sq", group.amsgrad and "max_exp_avg_sq" or nil} do
      buffers[name] = buffers[name] or Optimizer.zeros_like(like)
    end
  end

  function Adam:update(group, found_inf)
    local betas = group.betas
    return update(self, group, found_inf, make, core.adam_step, group.lr, betas[1], betas[2],
      group.eps, group.weight_decay, group.amsgrad, group.decoupled_weight_decay, group.maximize,
      group.stochastic_rounding, group.master_weights)
  end
  return Adam
end

methods.SGD = sgd "SGD"
methods.Adam = adam("Adam", 0, false)
methods.AdamW = adam("AdamW", 1e-2, true)

return methods
