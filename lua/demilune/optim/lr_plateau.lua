-- ReduceLROnPlateau: the rates fall when what is measured no longer gets better.

local caller = require "demilune.caller"
local options = require "demilune.options"
local replay = require "demilune.replay"
local shown = require "demilune.shown"
local lr_scheduler = require "demilune.optim.lr_scheduler"

local Plateau = {class = "ReduceLROnPlateau"}
Plateau.__index = Plateau

local NAME = Plateau.class
local bind = options.signature(NAME, [[optimizer: optimizer, mode: 'min'|'max' = 'min',
  factor: number = 0.1, patience: integer = 10, threshold: number = 1e-4,
  threshold_mode: 'rel'|'abs' = 'rel', cooldown: integer = 0, min_lr: number|numbers = 0,
  eps: number = 1e-8]])

-- Multiplies the rates by factor where step(value) has seen more than `patience` values without
-- a better one than the best so far; mode = "max": larger is better. threshold: by how much, as a
-- share ("rel") or a difference ("abs"). cooldown: steps after it that count for nothing. min_lr:
-- the least rate, a number or one a group; eps: a smaller change is left out.
local function new(...)
  local o = bind(...)
  local optimizer = o.optimizer
  o.optimizer = nil
  if o.factor >= 1 then
    caller.raise("%s: factor is %g, wanted less than 1", NAME, o.factor)
  end
  if type(o.min_lr) == "table" and #o.min_lr ~= #optimizer.param_groups then
    caller.raise("%s: min_lr has %d numbers, wanted %d, one a group", NAME, #o.min_lr,
      #optimizer.param_groups)
  end
  return setmetatable({optimizer = optimizer, settings = o, last_epoch = 0, num_bad_epochs = 0,
    cooldown_counter = 0, best = o.mode == "min" and math.huge or -math.huge}, Plateau)
end

local function is_better(o, value, best)
  local sign = o.mode == "min" and -1 or 1
  local bar = o.threshold_mode == "rel" and best * (1 + sign * o.threshold)
    or best + sign * o.threshold
  if o.mode == "min" then return value < bar end
  return value > bar
end

local function reduce(self)
  local o = self.settings
  if type(o.min_lr) == "table" and #o.min_lr ~= #self.optimizer.param_groups then
    caller.raise("%s:step: min_lr has %d numbers and the optimizer %d groups; hint: make the "
      .. "schedule after add_param_group", NAME, #o.min_lr, #self.optimizer.param_groups)
  end
  for i, group in ipairs(self.optimizer.param_groups) do
    local least = type(o.min_lr) == "table" and o.min_lr[i] or o.min_lr
    local lr = math.max(group.lr * o.factor, least)
    if group.lr - lr > o.eps then group.lr = lr end
  end
end

--- Takes the monitored quantity of an epoch, a number or a tensor of one element.
function Plateau:step(value)
  if replay.graph then replay.refuse("%s:step, which takes a number of the host,", NAME) end
  if type(value) ~= "number" then
    if value == nil then
      caller.raise("%s:step: wanted the monitored quantity, such as the validation loss", NAME)
    end
    value = value:item()
  end
  local o = self.settings
  self.last_epoch = self.last_epoch + 1
  if is_better(o, value, self.best) then
    self.best, self.num_bad_epochs = value, 0
  else
    self.num_bad_epochs = self.num_bad_epochs + 1
  end
  if self.cooldown_counter > 0 then
    self.cooldown_counter, self.num_bad_epochs = self.cooldown_counter - 1, 0
  end
  if self.num_bad_epochs > o.patience then
    reduce(self)
    self.cooldown_counter, self.num_bad_epochs = o.cooldown, 0
  end
end

Plateau.get_last_lr = lr_scheduler.get_last_lr

local SAVED = {"last_epoch", "num_bad_epochs", "cooldown_counter", "best"}

-- Numbers only: the optimizer stays out.
function Plateau:state_dict()
  local state = {}
  for _, key in ipairs(SAVED) do state[key] = self[key] end
  return shown(state)
end

-- Takes up a saved state.
function Plateau:load_state_dict(state)
  for _, key in ipairs(SAVED) do self[key] = state[key] end
end

function Plateau:__tostring()
  return ("%s(step %d, lr = %g)"):format(NAME, self.last_epoch, self.optimizer.param_groups[1].lr)
end

caller.with_colon(Plateau, "scheduler", "step state_dict load_state_dict get_last_lr")

return {ReduceLROnPlateau = new}
