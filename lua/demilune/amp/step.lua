-- A training step's calls in the one order that is right:
-- scale, backward, unscale, clip, step, update, zero_grad.

local caller = require "demilune.caller"
local options = require "demilune.options"
local utils = require "demilune.nn.utils"
local pause = require "demilune.distributed.pause"
local replay = require "demilune.replay"

local step = {}

local bind = options.signature("amp.step", [[loss: tensor, optimizer: optimizer|list,
  scaler?: table, max_norm?: number, accumulate: integer = 1, parameters?: parameters]])

-- Backward passes since the last step, by (first) optimizer.
local passes = setmetatable({}, {__mode = "k"})

local function read(...)
  local o = bind(...)
  o.optimizers = o.optimizer.param_groups and {o.optimizer} or o.optimizer
  if #o.optimizers == 0 then caller.raise("amp.step: the array of optimizers is empty") end
  for i, optimizer in ipairs(o.optimizers) do
    if type(optimizer) ~= "table" or not optimizer.param_groups then
      caller.raise("amp.step: optimizer %d is a %s, wanted an optimizer", i, type(optimizer))
    end
  end
  if o.accumulate < 1 then
    caller.raise("amp.step: accumulate is %d, wanted a whole number from 1", o.accumulate)
  end
  if replay.graph and o.accumulate > 1 then
    replay.refuse "amp.step: a step that not every call takes (accumulate)"
  end
  if o.scaler and not o.scaler:is_enabled() then o.scaler = nil end
  return o
end

local function parameters_of(optimizers)
  local all = {}
  for _, optimizer in ipairs(optimizers) do
    for _, group in ipairs(optimizer.param_groups) do
      table.move(group.params, 1, #group.params, #all + 1, all)
    end
  end
  return all
end

-- Clips the gradients that are there, and steps -> the norm before, or nil. o: what read() gives.
function step.finish(o)
  local scaler, optimizers = o.scaler, o.optimizers
  local norm
  if o.max_norm then
    if scaler then
      for _, optimizer in ipairs(optimizers) do scaler:unscale_(optimizer) end
    end
    norm = utils.clip_grad_norm_(o.parameters or parameters_of(optimizers), o.max_norm)
  end
  for _, optimizer in ipairs(optimizers) do
    if scaler then scaler:step(optimizer) else optimizer:step() end
  end
  if scaler then scaler:update() end
  for _, optimizer in ipairs(optimizers) do optimizer:zero_grad() end
  return norm
end

-- The next call with that optimizer begins a group of passes, whatever the last one left behind.
function step.forget(optimizer) passes[optimizer] = nil end

--- amp.step{loss = , optimizer = , scaler = , max_norm = , accumulate = ,
--- parameters = }: backward from the loss, and the step. optimizer: one, or an
--- array that the loss reaches. scaler: nil, or one that is off (bfloat16), is
--- plain training. max_norm: the norm of the gradients of `parameters` (default:
--- all of the optimizers') is held there. accumulate = n: the loss is divided by
--- n, and only each n-th call steps; the others leave the gradients to be added to, and those of
--- a DistributedDataParallel are averaged at the n-th alone.
--- Returns whether this call stepped, and the norm before clipping (a tensor, or
--- nil). It waits for nothing, so a step that the scaler skips counts as stepped:
--- scaler:stepped(optimizer) tells whether it was.
function step.step(...)
  local o = read(...)
  local scaler, n = o.scaler, o.accumulate
  local loss = n > 1 and o.loss / n or o.loss
  if scaler then loss = scaler:scale(loss) end
  local first = o.optimizers[1]
  local done = (passes[first] or 0) + 1
  if done < n then
    local _ <close> = pause() -- processes average the gradients of the last pass
    loss:backward()
    passes[first] = done
    return false
  end
  loss:backward()
  passes[first] = nil
  return true, step.finish(o)
end

return step
