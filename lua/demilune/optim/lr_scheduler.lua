-- Learning rates over steps, by PyTorch's formulas. A schedule sets the rates of
-- an optimizer's groups when it is made and at each step(). Step numbers count
-- steps done: the first is 0. Each has step(), get_last_lr(), state_dict() and
-- load_state_dict(state). step() comes after optimizer:step().

local caller = require "demilune.caller"
local late = require "demilune.late"
local shown = require "demilune.shown"
local options = require "demilune.options"
local replay = require "demilune.replay"

local lr_scheduler = {}

local Schedule = {}
Schedule.__index = Schedule

-- Sets the rates: rate(self, i, group) gives group i's.
local function set(self, rate)
  for i, group in ipairs(self.optimizer.param_groups) do group.lr = rate(self, i, group) end
end

-- Sets the first rates. Those of schedules that multiply rates combine with those of schedules
-- made before.
function Schedule:begin()
  self.last_epoch, self.is_initial = 0, true
  set(self, self.rate)
  self.is_initial = nil
end

-- Sets the rates of the next step, or those of step `epoch`.
-- Optimizers of this library count their steps, those that a GradScaler made them
-- skip as well: a skipped first step is no reason to warn. Of any other optimizer
-- nothing is known.
function Schedule:step(epoch)
  local optimizer = self.optimizer
  if self.last_epoch == 0 and not self.warned and optimizer.update and not optimizer.steps then
    self.warned = true
    caller.warn("%s:step() came before optimizer:step(), so the first rate is passed over; " ..
      "hint: step the optimizer first", self.class)
  end
  self.last_epoch = epoch or self.last_epoch + 1
  set(self, epoch and self.closed or self.rate)
end
Schedule.step = replay.again(Schedule.step)

-- Within a sequence, when its turn comes.
function Schedule:restart() self:step(0) end

-- The groups' rates; for other kinds of schedules too.
function lr_scheduler.get_last_lr(self)
  local rates = {}
  for i, group in ipairs(self.optimizer.param_groups) do rates[i] = group.lr end
  return rates
end
Schedule.get_last_lr = lr_scheduler.get_last_lr

-- Numbers only: the optimizer and functions stay out.
function Schedule:state_dict()
  local state = {last_epoch = self.last_epoch, base_lrs = {table.unpack(self.base_lrs)}}
  for key, value in pairs(self.settings) do
    if type(value) ~= "function" and type(value) ~= "table" then state[key] = value end
  end
  return shown(state)
end

-- PyTorch saves milestones as {[milestone] = how often it is there}.
local function list_of_counts(counts)
  local list = {}
  for milestone, n in pairs(counts) do
    for _ = 1, n do list[#list + 1] = milestone end
  end
  table.sort(list)
  return list
end

-- Takes up a saved state, PyTorch's too; the optimizer's own holds the rates.
function Schedule:load_state_dict(state)
  self.last_epoch = state.last_epoch
  self.base_lrs = {table.unpack(state.base_lrs)}
  for key in pairs(self.settings) do
    local value = state[key]
    if key == "milestones" and type(value) == "table" then value = list_of_counts(value) end
    if value ~= nil then self.settings[key] = value end
  end
end

function Schedule:__tostring()
  return ("%s(step %d, lr = %g)"):format(self.class, self.last_epoch,
    self.optimizer.param_groups[1].lr)
end

caller.with_colon(Schedule, "scheduler", "step state_dict load_state_dict get_last_lr")

-- The rate that group i had when the schedule was made. A group that was added since has none.
local function base(self, i)
  local lr = self.base_lrs[i]
  if not lr then
    caller.raise("%s:step: group %d was added after the schedule was made, so it has no base "
      .. "rate; hint: make the schedule after add_param_group", self.class, i)
  end
  return lr
end

-- The settings that may be lists, a value a group.
local PER_GROUP = {"lr_lambda", "base_lr", "max_lr", "base_momentum", "max_momentum"}

local function check_lists(name, settings, n)
  for _, key in ipairs(PER_GROUP) do
    local value = settings[key]
    if type(value) == "table" and #value ~= n then
      caller.raise("%s: %s has %d values, wanted %d, one a group", name, key, #value, n)
    end
  end
end

local function of_group(v, i) return type(v) == "table" and v[i] or v end

-- The numbers that settings may be, by class: {least, greatest}; above = true: not the least
-- itself. A rate would be NaN or infinite otherwise, or PyTorch refuses the number.
local LIMITS = {
  StepLR = {step_size = {1}},
  LinearLR = {start_factor = {0, 1, above = true}, end_factor = {0, 1}, total_iters = {0}},
  ConstantLR = {factor = {0, 1}},
  PolynomialLR = {power = {0}},
  CosineAnnealingLR = {T_max = {0, above = true}},
  CosineAnnealingWarmRestarts = {T_0 = {1}, T_mult = {1}},
  OneCycleLR = {pct_start = {0, 1}, total_steps = {1}, epochs = {1}, steps_per_epoch = {1},
    div_factor = {0, above = true}, final_div_factor = {0, above = true}},
  CyclicLR = {step_size_up = {1}, step_size_down = {0}},
}

local function check_limits(name, settings)
  for key, limit in pairs(LIMITS[name] or {}) do
    local v, least, most = settings[key], limit[1], limit[2]
    if v ~= nil and not (v >= least and v <= (most or math.huge))
      or v == least and limit.above then
      caller.raise("%s: %s is %s, wanted a number %s %d%s", name, key, tostring(v),
        limit.above and "above" or "from", least,
        most and (limit.above and ", up to %d" or " to %d"):format(most)
          or limit.above and "" or " up")
    end
  end
end

-- A class of schedules. text: its settings, behind the optimizer; prepare(self, fresh)
-- runs before the first rates are set, fresh: of an optimizer that no schedule had before;
-- rate(self, i, group) gives group i's, from that of the
-- step before where schedules shall combine. class.closed(self, i) then gives it without, for
-- step(epoch).
local function schedule(name, text, rate, prepare)
  local bind = options.signature(name, "optimizer: optimizer, " .. text)
  local class = setmetatable({class = name, rate = rate, __tostring = Schedule.__tostring},
    {__index = Schedule})
  class.__index = class
  lr_scheduler[name] = function(...)
    local settings = bind(...)
    local optimizer = settings.optimizer
    settings.optimizer = nil
    check_limits(name, settings)
    check_lists(name, settings, #optimizer.param_groups)
    local self = setmetatable({optimizer = optimizer, settings = settings, last_epoch = 0,
      base_lrs = {}}, class)
    local fresh = false
    for i, group in ipairs(optimizer.param_groups) do
      fresh = fresh or group.initial_lr == nil
      group.initial_lr = group.initial_lr or group.lr
      self.base_lrs[i] = group.initial_lr
    end
    if prepare then prepare(self, fresh) end
    self:begin()
    return self
  end
  return class
end

-- lr *= gamma every step_size steps
schedule("StepLR", "step_size: integer, gamma: number = 0.1", function(self, _, group)
  local t, s = self.last_epoch, self.settings
  if t == 0 or t % s.step_size ~= 0 then return group.lr end
  return group.lr * s.gamma
end).closed = function(self, i)
  return base(self, i) * self.settings.gamma ^ (self.last_epoch // self.settings.step_size)
end

-- lr *= gamma at each milestone (steps done)
schedule("MultiStepLR", "milestones: numbers, gamma: number = 0.1", function(self, _, group)
  local lr = group.lr
  for _, milestone in ipairs(self.settings.milestones) do
    if milestone == self.last_epoch and milestone > 0 then lr = lr * self.settings.gamma end
  end
  return lr
end).closed = function(self, i)
  local lr = base(self, i)
  for _, milestone in ipairs(self.settings.milestones) do
    if milestone <= self.last_epoch then lr = lr * self.settings.gamma end
  end
  return lr
end

-- lr *= gamma every step
schedule("ExponentialLR", "gamma: number", function(self, _, group)
  return self.last_epoch == 0 and group.lr or group.lr * self.settings.gamma
end).closed = function(self, i)
  return base(self, i) * self.settings.gamma ^ self.last_epoch
end

-- From start_factor to end_factor of the base rate in a straight line.
schedule("LinearLR", [[start_factor: number = 1 / 3, end_factor: number = 1.0,
  total_iters: integer = 5]], function(self, _, group)
  local t, s = self.last_epoch, self.settings
  if t == 0 then return group.lr * s.start_factor end
  if t > s.total_iters then return group.lr end
  local rise = s.end_factor - s.start_factor
  return group.lr * (1 + rise / (s.total_iters * s.start_factor + (t - 1) * rise))
end).closed = function(self, i)
  local s = self.settings
  local done = math.min(self.last_epoch, s.total_iters) / s.total_iters
  return base(self, i) * (s.start_factor + (s.end_factor - s.start_factor) * done)
end

-- The base rate times factor, until total_iters steps are done.
schedule("ConstantLR", "factor: number = 1 / 3, total_iters: integer = 5",
function(self, i, group)
  local t, s = self.last_epoch, self.settings
  if t == 0 then return group.lr * s.factor end
  if t ~= s.total_iters then return group.lr end
  return s.factor == 0 and base(self, i) or group.lr * (1 / s.factor)
end).closed = function(self, i)
  local s = self.settings
  return base(self, i) * (self.last_epoch < s.total_iters and s.factor or 1)
end

-- From the base rate to 0 in total_iters steps, by a power of what is left.
schedule("PolynomialLR", "total_iters: integer = 5, power: number = 1.0",
function(self, _, group)
  local t, s = self.last_epoch, self.settings
  if t == 0 or t > s.total_iters then return group.lr end
  return group.lr * ((1 - t / s.total_iters) / (1 - (t - 1) / s.total_iters)) ^ s.power
end).closed = function(self, i)
  local s = self.settings
  return base(self, i) * (1 - math.min(self.last_epoch, s.total_iters) / s.total_iters) ^ s.power
end

-- rate *= fn(steps done); fn: a function, or one a group
schedule("MultiplicativeLR", "lr_lambda: function|list", function(self, i, group)
  if self.is_initial then return group.lr end
  local fn = self.settings.lr_lambda
  if type(fn) == "table" then
    base(self, i)
    fn = fn[i]
  end
  return group.lr * fn(self.last_epoch)
end)

-- base * fn(steps done); fn: a function, or one a group
schedule("LambdaLR", "lr_lambda: function|list", function(self, i)
  local fn, lr = self.settings.lr_lambda, base(self, i)
  if type(fn) == "table" then fn = fn[i] end
  return lr * fn(self.last_epoch)
end)

-- Half a cosine from the base rate to eta_min in T_max steps, and back.
-- I. Loshchilov, F. Hutter 2016. Recursive, as PyTorch's.
schedule("CosineAnnealingLR", "T_max: number, eta_min: number = 0.0", function(self, i, group)
  local t, n, low = self.last_epoch, self.settings.T_max, self.settings.eta_min
  if t == 0 then return group.lr end
  if (t - 1 - n) % (2 * n) == 0 then
    return group.lr + (base(self, i) - low) * (1 - math.cos(math.pi / n)) / 2
  end
  return (1 + math.cos(math.pi * t / n)) / (1 + math.cos(math.pi * (t - 1) / n))
    * (group.lr - low) + low
end).closed = function(self, i)
  local s = self.settings
  local height = (1 + math.cos(math.pi * self.last_epoch / s.T_max)) / 2
  return s.eta_min + (base(self, i) - s.eta_min) * height
end

-- Half a cosine in T_0 steps, again in T_0 T_mult, and so on. I. Loshchilov, F. Hutter
-- 2016. step(epoch) with a number, fractions too, goes to that position.
schedule("CosineAnnealingWarmRestarts", [[T_0: integer, T_mult: integer = 1,
  eta_min: number = 0.0]], function(self, i)
  local s, t = self.settings, self.last_epoch
  local length, from = s.T_0, 0
  if s.T_mult == 1 then
    from = t // length * length
  else
    while t - from >= length do from, length = from + length, length * s.T_mult end
  end
  local height = (1 + math.cos(math.pi * (t - from) / length)) / 2
  return s.eta_min + (base(self, i) - s.eta_min) * height
end)

-- ---- OneCycleLR: L. Smith, N. Topin 2017 ----

local ANNEAL = {
  cos = function(from, to, done) return to + (from - to) / 2 * (1 + math.cos(math.pi * done)) end,
  linear = function(from, to, done) return (to - from) * done + from end,
}

local function one_cycle_prepare(self)
  local s = self.settings
  if not s.total_steps then
    if not (s.epochs and s.steps_per_epoch) then
      caller.raise("OneCycleLR: wanted total_steps, or epochs and steps_per_epoch")
    end
    s.total_steps = s.epochs * s.steps_per_epoch
  end
  local n, up = s.total_steps, s.pct_start
  if up * n == 1 or not s.three_phase and up == 1 then
    caller.raise("OneCycleLR: pct_start is %g of %d steps, which leaves no step to the %s; "
      .. "hint: another pct_start", up, n, up * n == 1 and "rise" or "fall")
  end
  if s.three_phase then
    self.phases = {{up * n - 1, "initial_lr", "max_lr", "max_momentum", "base_momentum"},
      {2 * up * n - 2, "max_lr", "initial_lr", "base_momentum", "max_momentum"},
      {n - 1, "initial_lr", "min_lr", "max_momentum", "max_momentum"}}
  else
    self.phases = {{up * n - 1, "initial_lr", "max_lr", "max_momentum", "base_momentum"},
      {n - 1, "max_lr", "min_lr", "base_momentum", "max_momentum"}}
  end
  self.ends = {}
  for i, group in ipairs(self.optimizer.param_groups) do
    local max_lr = of_group(s.max_lr, i)
    local initial = max_lr / s.div_factor
    group.initial_lr = initial
    self.base_lrs[i] = initial
    self.ends[i] = {initial_lr = initial, max_lr = max_lr, min_lr = initial / s.final_div_factor,
      base_momentum = of_group(s.base_momentum, i),
      max_momentum = of_group(s.max_momentum, i)}
    if s.cycle_momentum and group.momentum == nil and not group.betas then
      caller.raise("OneCycleLR: cycle_momentum wants an optimizer with momentum or betas")
    end
  end
end

schedule("OneCycleLR", [[max_lr: number|numbers, total_steps?: integer, epochs?: integer,
  steps_per_epoch?: integer, pct_start: number = 0.3, anneal_strategy: 'cos'|'linear' = 'cos',
  cycle_momentum: boolean = true, base_momentum: number|numbers = 0.85,
  max_momentum: number|numbers = 0.95, div_factor: number = 25.0,
  final_div_factor: number = 1e4, three_phase: boolean = false]],
function(self, i, group)
  local s, t, from = self.settings, self.last_epoch, 0
  if t > s.total_steps then
    caller.raise("OneCycleLR: step %d of %d", t, s.total_steps)
  end
  base(self, i)
  local anneal, ends = ANNEAL[s.anneal_strategy], self.ends[i]
  for k, phase in ipairs(self.phases) do
    local to = phase[1]
    if t <= to or k == #self.phases then
      local done = (t - from) / (to - from)
      if s.cycle_momentum then
        local momentum = anneal(ends[phase[4]], ends[phase[5]], done)
        if group.betas then group.betas[1] = momentum else group.momentum = momentum end
      end
      return anneal(ends[phase[2]], ends[phase[3]], done)
    end
    from = to
  end
end, one_cycle_prepare)

-- ---- CyclicLR: L. Smith 2015 ----

-- How the height of a cycle changes, by the cycles begun or by the steps done.
local HEIGHT = {
  triangular = {"cycle", function() return 1 end},
  triangular2 = {"cycle", function(_, n) return 0.5 ^ (n - 1) end},
  exp_range = {"iterations", function(gamma, n) return gamma ^ n end},
}

-- How far in a cycle, from 0 up to 1 and back, and how high it goes.
local function cycle_position(s, t)
  local up = s.step_size_up
  local total = up + (s.step_size_down or up)
  local cycle = math.floor(1 + t / total)
  local x, ratio = 1 + t / total - cycle, up / total
  local position = x <= ratio and x / ratio or (x - 1) / (ratio - 1)
  local by, height = s.scale_mode, s.scale_fn
  if not height then
    local f = HEIGHT[s.mode]
    by, height = f[1], function(n) return f[2](s.gamma, n) end
  end
  return position * height(by == "cycle" and cycle or t)
end

-- base_lr to max_lr in step_size_up steps and back in step_size_down, momentum the other way.
schedule("CyclicLR", [[base_lr: number|numbers, max_lr: number|numbers,
  step_size_up: integer = 2000, step_size_down?: integer,
  mode: 'triangular'|'triangular2'|'exp_range' = 'triangular', gamma: number = 1.0,
  scale_fn?: function, scale_mode: 'cycle'|'iterations' = 'cycle',
  cycle_momentum: boolean = true, base_momentum: number|numbers = 0.8,
  max_momentum: number|numbers = 0.9]], function(self, i, group)
  local s, least = self.settings, base(self, i)
  local position = cycle_position(s, self.last_epoch)
  if s.cycle_momentum then
    local low, high = of_group(s.base_momentum, i), of_group(s.max_momentum, i)
    local momentum = high - (high - low) * position
    if group.betas then group.betas[1] = momentum else group.momentum = momentum end
  end
  return least + (of_group(s.max_lr, i) - least) * position
end, function(self, fresh)
  local s = self.settings
  for i, group in ipairs(self.optimizer.param_groups) do
    self.base_lrs[i] = of_group(s.base_lr, i)
    if fresh then group.initial_lr = self.base_lrs[i] end
    if s.cycle_momentum and group.momentum == nil and not group.betas then
      caller.raise("CyclicLR: cycle_momentum wants an optimizer with momentum or betas")
    end
  end
end)

-- Schedules of another kind, in modules of their own.
return late.extend(lr_scheduler, {
  ReduceLROnPlateau = "demilune.optim.lr_plateau",
  SequentialLR = "demilune.optim.lr_sequence",
  ChainedScheduler = "demilune.optim.lr_sequence",
})
