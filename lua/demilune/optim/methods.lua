-- The element-wise optimizers: options, their checks, and one call of the engine a group. A
-- class here is the Lua half of a row of src/base/methods.inc, which has its formula.
--
-- 16-bit parameters: each step computes in float32 and rounds. With
-- master_weights = true the optimizer keeps their float32 values (state[p].master)
-- and buffers, updates those, and writes them rounded into the parameter. With
-- stochastic_rounding = true there is no master: a step smaller than what 16 bits
-- can tell apart moves the weight at random, and on average by its own size.
-- Parameters of other dtypes ignore both.

local core = require "demilune.core"
local caller = require "demilune.caller"
local replay = require "demilune.replay"
local Optimizer = require "demilune.optim.optimizer"

local methods = {}

-- The options of every class here. PyTorch's choices of an implementation are accepted and
-- change nothing.
local COMMON = [[, *, maximize: boolean = false, master_weights: boolean = false,
  stochastic_rounding: boolean = false, foreach?: boolean, fused?: boolean,
  capturable?: boolean, differentiable?: boolean]]

local check_range = Optimizer.check_range

-- Adds what a parameter's state lacks, by name. True if a buffer of the parameter's shape is
-- among it.
local function complete(self, group, p, names)
  if replay.graph then
    replay.refuse("%s: the first step of a parameter, which makes its state,", self.class)
  end
  local state, is_new = self.state[p] or {}, false
  self.state[p] = state
  for _, name in ipairs(names) do
    local initial = self.initial[name] or 0
    if type(initial) == "string" then initial = group[initial] end
    if name == "master" then
      state.master = core.keep(p.data:to "float32")
    elseif self.counters[name] then
      state[name] = Optimizer.counter(initial, self.counters[name], p.device)
    else
      is_new = true
      state[name] = core.keep(core.full_like((state.master or p).data, initial))
    end
  end
  return is_new
end

-- The engine answers with a parameter and the names that its state lacks, until there is none.
-- A first step that the host knows to be skipped leaves no state, if the method counts no steps:
-- the next one is the first.
local function update(self, group, found_inf, step, ...)
  local params, first, fresh = group.params, nil, nil
  local rounding, masters = group.stochastic_rounding, group.master_weights
  local lacking, names = step(params, self.state, found_inf, first, rounding, masters, ...)
  while lacking do
    local p = params[lacking]
    first = first or {}
    local is_fresh = not self.state[p]
    first[p] = complete(self, group, p, names)
    if is_fresh and not self.state[p].step then
      fresh = fresh or {}
      fresh[#fresh + 1] = p
    end
    lacking, names = step(params, self.state, found_inf, first, rounding, masters, ...)
  end
  if fresh and found_inf and found_inf.device == "cpu" and found_inf:item() ~= 0 then
    for _, p in ipairs(fresh) do self.state[p] = nil end
  end
end

-- A step within a graph (demilune.cuda_graph): run(self, group, found_inf), and what each launch
-- does about it. The options are taken from the group again; where the step would have other
-- arguments or has found other memory, the graph is captured again.
local function record(self, group, formula, arguments, run, found_inf)
  local graph = replay.graph
  local copies, i = core.graph_copies(group.params), graph:n_step() + 1
  core.graph_touch(group.params)
  run(self, group, found_inf)
  if graph:n_step() < i then return end -- no parameter has a gradient
  replay.note{
    before = function(g) g:set_step(i, formula, arguments(group)) end,
    stamp = function()
      return ("%d %s %s"):format(core.graph_stamp(group.params, self.state, formula,
        arguments(group)), group.master_weights, group.stochastic_rounding)
    end,
    check = function()
      for k, now in ipairs(core.graph_copies(group.params)) do
        if copies[k] ~= 0 and now ~= 0 and copies[k] ~= now then
          replay.refuse("%s: a step while an earlier graph of autograd holds a weight's 16-bit "
            .. "copy", self.class)
        end
      end
    end,
  }
end

local function check(name, row, o)
  for _, key in ipairs(row.from_zero) do check_range(name, o, key) end
  if o.betas ~= nil then
    if #o.betas ~= 2 then caller.raise("%s: betas is a pair {b1, b2}", name) end
    for i = 1, 2 do check_range(name .. ": betas", o.betas, i, 1) end
  end
  if row.check then row.check(o) end
  if o.master_weights and o.stochastic_rounding then
    caller.raise("%s: master_weights and stochastic_rounding are two ways to the same end; "
      .. "wanted one of them", name)
  end
end

-- Adds a class. In its row:
--   options    as options.signature reads them
--   arguments  a function: a group's options in the order of the engine's row
--   from_zero  names of options that are numbers from 0 up
--   check      a function that looks at further options
--   numbers    names of state that is one float64 number a parameter
--   initial    state that does not begin with zeros: {name = value, or the option that has it}
--   formula    the engine's row, where its name is another
local function add(name, row)
  local class = Optimizer.extend(name, row.options .. COMMON)
  class.takes_found_inf = true
  class.by_element = true
  class.initial = row.initial or {}
  class.counters = {step = "float32"}
  for _, number in ipairs(row.numbers or {}) do class.counters[number] = "float64" end
  class.saves_tensors = row.saves_tensors
  function class.check(o) check(name, row, o) end
  local formula, arguments = row.formula or name, row.arguments
  local step = core.optimizer_step(formula, name)
  local function run(self, group, found_inf)
    return update(self, group, found_inf, step, arguments(group))
  end
  function class:update(group, found_inf)
    if not replay.graph then return run(self, group, found_inf) end
    return record(self, group, formula, arguments, run, found_inf)
  end
  class.is_capturable = true
  methods[name] = class
end

-- w - lr m, where m = momentum m + (1 - dampening) g of the gradient g, and the first m is g;
-- nesterov: w - lr (g + momentum m). weight_decay adds weight_decay w to g.
-- master_weights keeps float32 values of 16-bit parameters, stochastic_rounding rounds their
-- steps at random: see optim.Optimizer.
add("SGD", {
  options = [[lr: number = 1e-3, momentum: number = 0, dampening: number = 0,
    weight_decay: number = 0, nesterov: boolean = false]],
  from_zero = {"lr", "momentum", "weight_decay"},
  check = function(o)
    if o.nesterov and (o.momentum == 0 or o.dampening ~= 0) then
      caller.raise "SGD: nesterov wants a momentum above 0 and dampening 0"
    end
  end,
  arguments = function(g)
    return g.lr, g.momentum, g.dampening, g.weight_decay, g.nesterov, g.maximize
  end,
})

-- Adam, and AdamW: decoupled_weight_decay shrinks the weights instead of adding to gradients.
for name, decay in pairs{Adam = {0, false}, AdamW = {1e-2, true}} do
  add(name, {
    formula = "Adam", saves_tensors = true,
    options = ([[lr: number = 1e-3, betas: numbers = {0.9, 0.999}, eps: number = 1e-8,
      weight_decay: number = %g, amsgrad: boolean = false, *,
      decoupled_weight_decay: boolean = %s]]):format(decay[1], decay[2]),
    from_zero = {"lr", "eps", "weight_decay"},
    arguments = function(g)
      local betas = g.betas
      return g.lr, betas[1], betas[2], g.eps, g.weight_decay, g.amsgrad,
        g.decoupled_weight_decay, g.maximize
    end,
  })
end

-- The gradient over the root of the mean of its squares; centered: of its variance.
add("RMSprop", {
  options = [[lr: number = 1e-2, alpha: number = 0.99, eps: number = 1e-8,
    weight_decay: number = 0, momentum: number = 0, centered: boolean = false]],
  from_zero = {"lr", "alpha", "eps", "weight_decay", "momentum"},
  arguments = function(g)
    return g.lr, g.alpha, g.eps, g.weight_decay, g.momentum, g.centered, g.maximize
  end,
})

-- w - lr g / (sqrt(s) + eps), where s is the sum of the squares of all gradients g so far
-- (J. Duchi et al. 2011); the rate falls as lr / (1 + lr_decay (step - 1)).
add("Adagrad", {
  options = [[lr: number = 1e-2, lr_decay: number = 0, weight_decay: number = 0,
    initial_accumulator_value: number = 0, eps: number = 1e-10]],
  from_zero = {"lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"},
  initial = {sum = "initial_accumulator_value"},
  arguments = function(g) return g.lr, g.lr_decay, g.eps, g.weight_decay, g.maximize end,
})

-- The gradient times the root of the mean square of the last steps over that of the last
-- gradients, so that no rate has to be chosen (M. Zeiler 2012); rho weighs the means.
add("Adadelta", {
  options = [[lr: number = 1.0, rho: number = 0.9, eps: number = 1e-6, weight_decay: number = 0]],
  from_zero = {"lr", "eps", "weight_decay"},
  check = function(o)
    if not (o.rho >= 0 and o.rho <= 1) then
      caller.raise("Adadelta: rho is %s, wanted a number from 0 to 1", tostring(o.rho))
    end
  end,
  arguments = function(g) return g.lr, g.rho, g.eps, g.weight_decay, g.maximize end,
})

-- Adam over the largest gradient, which decays by betas[2], in place of the root of their mean
-- square (D. Kingma, J. Ba 2015).
add("Adamax", {
  options = [[lr: number = 2e-3, betas: numbers = {0.9, 0.999}, eps: number = 1e-8,
    weight_decay: number = 0]],
  from_zero = {"lr", "eps", "weight_decay"},
  arguments = function(g)
    return g.lr, g.betas[1], g.betas[2], g.eps, g.weight_decay, g.maximize
  end,
})

-- Adam with Nesterov's momentum, which grows along a schedule.
add("NAdam", {
  options = [[lr: number = 2e-3, betas: numbers = {0.9, 0.999}, eps: number = 1e-8,
    weight_decay: number = 0, momentum_decay: number = 4e-3,
    decoupled_weight_decay: boolean = false]],
  from_zero = {"lr", "eps", "weight_decay", "momentum_decay"},
  numbers = {"mu_product"}, initial = {mu_product = 1},
  arguments = function(g)
    return g.lr, g.betas[1], g.betas[2], g.eps, g.weight_decay, g.momentum_decay,
      g.decoupled_weight_decay, g.maximize
  end,
})

-- Adam that waits with its adaptive rates until the squares' mean can be trusted.
add("RAdam", {
  options = [[lr: number = 1e-3, betas: numbers = {0.9, 0.999}, eps: number = 1e-8,
    weight_decay: number = 0, decoupled_weight_decay: boolean = false]],
  from_zero = {"lr", "eps", "weight_decay"},
  arguments = function(g)
    return g.lr, g.betas[1], g.betas[2], g.eps, g.weight_decay, g.decoupled_weight_decay,
      g.maximize
  end,
})

-- SGD whose mean state.ax is the answer; t0: steps before the mean begins.
add("ASGD", {
  options = [[lr: number = 1e-2, lambd: number = 1e-4, alpha: number = 0.75, t0: number = 1e6,
    weight_decay: number = 0]],
  from_zero = {"lr", "lambd", "alpha", "weight_decay"},
  numbers = {"eta", "mu"}, initial = {eta = "lr", mu = 1},
  arguments = function(g) return g.lr, g.lambd, g.alpha, g.t0, g.weight_decay, g.maximize end,
})

-- Each weight's own step size grows by etas[2] while its gradient keeps its sign, and shrinks
-- by etas[1] where that turned.
add("Rprop", {
  options = [[lr: number = 1e-2, etas: numbers = {0.5, 1.2}, step_sizes: numbers = {1e-6, 50}]],
  from_zero = {"lr"},
  check = function(o)
    local e = o.etas
    if #e ~= 2 or not (e[1] > 0 and e[1] < 1 and e[2] > 1) then
      caller.raise "Rprop: etas is a pair {less than 1, more than 1}"
    end
  end,
  initial = {step_size = "lr"},
  arguments = function(g)
    return g.lr, g.etas[1], g.etas[2], g.step_sizes[1], g.step_sizes[2], g.maximize
  end,
})

-- The sign of a mean of gradients, and decoupled weight decay.
add("Lion", {
  options = [[lr: number = 1e-4, betas: numbers = {0.9, 0.99}, weight_decay: number = 0]],
  from_zero = {"lr", "weight_decay"},
  arguments = function(g)
    return g.lr, g.betas[1], g.betas[2], g.weight_decay, g.maximize
  end,
})

return methods
