-- SGD, Adam and AdamW: options, buffers, and one call of the engine a group.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local Optimizer = require "demilune.optim.optimizer"

local methods = {}

local function check_range(class, o, name, top)
  local v = o[name]
  if type(v) ~= "number" or v ~= v or v < 0 or top and v >= top then
    caller.raise("%s: %s is %s, wanted a number from 0%s", class, name, tostring(v),
      top and " to below " .. top or " up")
  end
end

-- The engine answers with a parameter that has no buffers yet, until all have.
local function update(self, group, step, found_inf, make)
  local first
  local lacking = step(group, self.state, found_inf)
  while lacking do
    local p = group.params[lacking]
    self.state[p] = make(p, group, self.state[p])
    first = first or {}
    first[p] = true
    lacking = step(group, self.state, found_inf, first)
  end
end

local function sgd(class)
  local SGD = Optimizer.extend(class, {lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0,
    nesterov = false, maximize = false, foreach = options.NONE, fused = options.NONE})

  function SGD.check(o)
    for _, name in ipairs{"lr", "momentum", "weight_decay"} do check_range(class, o, name) end
    if o.nesterov and (o.momentum == 0 or o.dampening ~= 0) then
      caller.raise("%s: nesterov wants a momentum above 0 and dampening 0", class)
    end
  end

  SGD.takes_found_inf = true

  local function make(p) return {momentum_buffer = Optimizer.zeros_like(p)} end

  function SGD:update(group, found_inf)
    return update(self, group, core.sgd_step, found_inf, make)
  end
  return SGD
end

local function adam(class, weight_decay, decoupled)
  local Adam = Optimizer.extend(class, {lr = 1e-3, betas = {0.9, 0.999}, eps = 1e-8,
    weight_decay = weight_decay, amsgrad = false, maximize = false,
    decoupled_weight_decay = decoupled, foreach = options.NONE, fused = options.NONE})

  function Adam.check(o)
    for _, name in ipairs{"lr", "eps", "weight_decay"} do check_range(class, o, name) end
    if type(o.betas) ~= "table" then caller.raise("%s: betas is a pair {b1, b2}", class) end
    for i = 1, 2 do check_range(class .. ": betas", o.betas, i, 1) end
  end

  Adam.takes_found_inf = true

  local function make(p, group, state)
    state = state or {step = core.keep(core.tensor(0.0)), exp_avg = Optimizer.zeros_like(p),
      exp_avg_sq = Optimizer.zeros_like(p)}
    if group.amsgrad then state.max_exp_avg_sq = Optimizer.zeros_like(p) end
    return state
  end

  function Adam:update(group, found_inf)
    return update(self, group, core.adam_step, found_inf, make)
  end
  return Adam
end

methods.SGD = sgd "SGD"
methods.Adam = adam("Adam", 0, false)
methods.AdamW = adam("AdamW", 1e-2, true)

return methods
