-- Schedules made of schedules: one after the other, or all at once.

local caller = require "demilune.caller"
local options = require "demilune.options"
local lr_scheduler = require "demilune.optim.lr_scheduler"

local function check_schedules(name, optimizer, schedules)
  lr_scheduler.check_optimizer(name, optimizer)
  if type(schedules) ~= "table" or #schedules == 0 then
    caller.raise("%s: wanted an array of schedules", name)
  end
  for i, s in ipairs(schedules) do
    if s.optimizer ~= optimizer then
      caller.raise("%s: schedule %d is of another optimizer", name, i)
    end
  end
end

local Composite = {}

function Composite:get_last_lr() return self.schedulers[1]:get_last_lr() end

function Composite:state_dict()
  local state = {last_epoch = self.last_epoch, schedulers = {}}
  for i, s in ipairs(self.schedulers) do state.schedulers[i] = s:state_dict() end
  return state
end

function Composite:load_state_dict(state)
  if type(state.schedulers) ~= "table" or #state.schedulers ~= #self.schedulers then
    caller.raise("%s:load_state_dict: wanted the state of %d schedules", self.class,
      #self.schedulers)
  end
  self.last_epoch = state.last_epoch
  for i, s in ipairs(self.schedulers) do s:load_state_dict(state.schedulers[i]) end
end

function Composite:__tostring()
  return ("%s(step %d, lr = %g)"):format(self.class, self.last_epoch, self:get_last_lr()[1])
end

local function class(name)
  local c = setmetatable({class = name, __tostring = Composite.__tostring}, {__index = Composite})
  c.__index = c
  return c
end

local Sequential = class "SequentialLR"

-- {milestones = {5, 9}}: the first schedule for 5 steps, the second for the next 4, the
-- third from then on, each from its own first step.
local function sequential(optimizer, schedules, opts)
  local name = "SequentialLR"
  check_schedules(name, optimizer, schedules)
  local o = options.read(name, opts, {milestones = {}})
  if #o.milestones ~= #schedules - 1 then
    caller.raise("%s: %d milestones for %d schedules, wanted %d", name, #o.milestones, #schedules,
      #schedules - 1)
  end
  schedules[1]:restart()
  return setmetatable({optimizer = optimizer, schedulers = schedules, milestones = o.milestones,
    last_epoch = 0}, Sequential)
end

function Sequential:step()
  self.last_epoch = self.last_epoch + 1
  local i = 1
  while self.milestones[i] and self.milestones[i] <= self.last_epoch do i = i + 1 end
  local current = self.schedulers[i]
  if i > 1 and self.milestones[i - 1] == self.last_epoch then
    current:restart()
  else
    current:step()
  end
end

local Chained = class "ChainedScheduler"

-- All schedules at each step; those that multiply the rate of the step before combine.
local function chained(schedules)
  local optimizer = type(schedules) == "table" and schedules[1] and schedules[1].optimizer
  check_schedules("ChainedScheduler", optimizer, schedules)
  return setmetatable({optimizer = optimizer, schedulers = schedules, last_epoch = 0}, Chained)
end

function Chained:step()
  self.last_epoch = self.last_epoch + 1
  for _, s in ipairs(self.schedulers) do s:step() end
end

return {SequentialLR = sequential, ChainedScheduler = chained}
