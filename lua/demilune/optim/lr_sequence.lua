-- Schedules made of schedules: one after the other, or all at once.

local caller = require "demilune.caller"
local options = require "demilune.options"
local replay = require "demilune.replay"
local shown = require "demilune.shown"
local lr_scheduler = require "demilune.optim.lr_scheduler"

local function check_schedules(name, optimizer, schedules)
  if #schedules == 0 then caller.raise("%s: wanted an array of schedules", name) end
  for i, s in ipairs(schedules) do
    if type(s) ~= "table" or not s.optimizer then
      caller.raise("%s: element %d is a %s, wanted a schedule", name, i, type(s))
    end
    if not s.restart then
      caller.raise("%s: element %d is a %s, whose step wants an argument", name, i, s.class)
    end
    if s.optimizer ~= (optimizer or schedules[1].optimizer) then
      caller.raise("%s: schedule %d is of another optimizer", name, i)
    end
  end
end

local Composite = {}

Composite.get_last_lr = lr_scheduler.get_last_lr

-- The states of all schedules.
function Composite:state_dict()
  local state = {last_epoch = self.last_epoch, schedulers = {}, milestones = self.milestones
    and {table.unpack(self.milestones)}}
  for i, s in ipairs(self.schedulers) do state.schedulers[i] = s:state_dict() end
  return shown(state)
end

-- Takes up a saved state of as many schedules, PyTorch's too.
function Composite:load_state_dict(state)
  local saved, milestones = state.schedulers or state._schedulers, state.milestones
    or state._milestones
  if type(saved) ~= "table" or #saved ~= #self.schedulers then
    caller.raise("%s:load_state_dict: wanted the state of %d schedules", self.class,
      #self.schedulers)
  end
  self.last_epoch = state.last_epoch or saved[1].last_epoch -- PyTorch's ChainedScheduler has none
  if milestones then self.milestones = {table.unpack(milestones)} end
  for i, s in ipairs(self.schedulers) do s:load_state_dict(saved[i]) end
end

function Composite:__tostring()
  return ("%s(step %d, lr = %g)"):format(self.class, self.last_epoch, self:get_last_lr()[1])
end

-- step(self): see the classes; begin(self) sets the first rates.
local function class(name, step, begin)
  local c = setmetatable({class = name, __tostring = Composite.__tostring,
    step = replay.again(step), begin = begin, restart = begin}, {__index = Composite})
  for _, method in ipairs{"state_dict", "load_state_dict", "get_last_lr"} do
    c[method] = Composite[method]
  end
  c.__index = c
  caller.with_colon(c, "scheduler", "step state_dict load_state_dict get_last_lr")
  return c
end

-- The position among the schedules of the one for this step, and whether the step is its first.
local function turn(self)
  local i, t = 1, self.last_epoch
  while self.milestones[i] and self.milestones[i] <= t do i = i + 1 end
  return i, self.milestones[i - 1] == t
end

local Sequential = class("SequentialLR", function(self)
  self.last_epoch = self.last_epoch + 1
  local i, first = turn(self)
  local current = self.schedulers[i]
  if first then current:restart() else current:step() end
end, function(self)
  self.last_epoch = 0
  for _, group in ipairs(self.optimizer.param_groups) do group.lr = group.initial_lr end
  self.schedulers[(turn(self))]:begin()
end)

-- {milestones = {5, 9}}: the first schedule for 5 steps, the second for the next 4, the
-- third from then on, each from its own first step.
local bind_sequential = options.signature("SequentialLR",
  "optimizer: optimizer, schedulers: list, milestones: numbers = {}")

local function sequential(...)
  local name, o = "SequentialLR", bind_sequential(...)
  local optimizer, schedules = o.optimizer, o.schedulers
  check_schedules(name, optimizer, schedules)
  if #o.milestones ~= #schedules - 1 then
    caller.raise("%s: %d milestones for %d schedules, wanted %d", name, #o.milestones, #schedules,
      #schedules - 1)
  end
  local self = setmetatable({optimizer = optimizer, schedulers = schedules,
    milestones = o.milestones}, Sequential)
  self:begin()
  return self
end

local Chained = class("ChainedScheduler", function(self)
  self.last_epoch = self.last_epoch + 1
  for _, s in ipairs(self.schedulers) do s:step() end
end, function(self)
  self.last_epoch = 0
  for _, s in ipairs(self.schedulers) do s:begin() end
end)

-- All schedules at each step; those that multiply the rate of the step before combine.
local bind_chained = options.signature("ChainedScheduler",
  "schedulers: list, optimizer?: optimizer")

local function chained(...)
  local o = bind_chained(...)
  local schedules = o.schedulers
  check_schedules("ChainedScheduler", o.optimizer, schedules)
  local optimizer = schedules[1].optimizer
  return setmetatable({optimizer = optimizer, schedulers = schedules, last_epoch = 0}, Chained)
end

return {SequentialLR = sequential, ChainedScheduler = chained}
