-- dm.plot.lr_finder: the loss while the learning rate grows from step to step, which shows where
-- training is fast and where it diverges. Source: L. Smith, "Cyclical Learning Rates for Training
-- Neural Networks" (2017), section 3.3; smoothing and stop as in fastai.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
require "demilune.nn" -- the kind "module"
local axes = require "demilune.plot.axes"
local figure = require "demilune.plot.figure"
local scale = require "demilune.plot.scale"

local lr_finder = {}

-- ---- all as it was ----

-- A copy of a state_dict, whose tensors are those that an optimizer changes.
local function copied(v)
  if core.is_tensor(v) then return core.keep(v:clone()) end
  if type(v) ~= "table" then return v end
  local copy = {}
  for key, item in pairs(v) do copy[key] = copied(item) end
  return copy
end

-- {{tensor, its values, its gradient}, ...} of parameters and buffers.
local function tensors_of(model)
  local list = {}
  for _, walk in ipairs{"named_parameters", "named_buffers"} do
    for _, t in model[walk](model) do list[#list + 1] = {t, core.keep(t:clone()), t.grad} end
  end
  return list
end

local function modes_of(model)
  local modes = {}
  for _, module in model:named_modules() do modes[module] = module.training end
  return modes
end

-- Copies what a run changes: -> a value that brings it back when it is closed, on every way out.
local function kept(o)
  local tensors, state, random, modes, at
  do
    local _ <close> = core.no_grad()
    tensors, state = tensors_of(o.model), copied(o.optimizer:state_dict())
    random, modes = core.get_rng_state(), modes_of(o.model)
    at = o.loader.state_dict and o.loader:state_dict()
  end
  for _, entry in ipairs(tensors) do entry[1].grad = nil end
  return setmetatable({}, {__close = function()
    local _ <close> = core.no_grad()
    for _, entry in ipairs(tensors) do
      entry[1]:copy_(entry[2])
      entry[1].grad = entry[3]
    end
    o.optimizer:load_state_dict(state)
    for module, mode in pairs(modes) do module.training = mode end
    if at and o.loader.load_state_dict then o.loader:load_state_dict(at) end
    core.set_rng_state(random)
  end})
end

-- ---- the run ----

local function moved(device, first, ...)
  if first == nil then return end
  return core.is_tensor(first) and first:to(device) or first, moved(device, ...)
end

local function loss_of(o, x, y, ...)
  if o.forward then return (o.forward(o.model, x, y, ...)) end
  return o.loss(o.model(x), y)
end

-- One step: -> the loss before it, a number.
local function step(o, ...)
  local _ <close> = core.scope()
  o.optimizer:zero_grad()
  local loss = loss_of(o, moved(o.device, ...))
  if not core.is_tensor(loss) or loss:numel() ~= 1 then
    caller.raise("lr_finder: the loss is %s, wanted a tensor of one element",
      core.is_tensor(loss) and "of shape " .. tostring(loss.shape) or "a " .. type(loss))
  end
  loss:backward()
  o.optimizer:step()
  return loss:item()
end

-- Sets the first group's learning rate, and those of others in their proportion to it.
local function set_lr(optimizer, shares, lr)
  for g, group in ipairs(optimizer.param_groups) do group.lr = lr * shares[g] end
end

local function shares_of(optimizer)
  local shares, first = {}, optimizer.param_groups[1].lr
  for g, group in ipairs(optimizer.param_groups) do
    shares[g] = first > 0 and group.lr / first or 1
  end
  return shares
end

-- Batches of the loader, epoch after epoch: -> iterator of one epoch's. Calls take(...) with each
-- until that is false; raises for a loader that gives none.
local function each_batch(loader, take)
  while true do
    local any = false
    for _, x, y, z in loader:iter() do
      any = true
      if not take(x, y, z) then return end
    end
    if not any then caller.raise("lr_finder: the loader gives no batch") end
  end
end

-- The learning rates and the losses, plain and smoothed, of all steps up to the one that diverges.
local function run(o)
  local result = {lr = {}, loss = {}, smoothed = {}}
  local shares, i, mean, best = shares_of(o.optimizer), 0, 0, math.huge
  local factor = (o.to / o.from) ^ (1 / (o.steps - 1))
  o.model:train()
  each_batch(o.loader, function(...)
    local lr = o.from * factor ^ i
    set_lr(o.optimizer, shares, lr)
    local loss = step(o, ...)
    i = i + 1
    mean = o.smooth * mean + (1 - o.smooth) * loss
    local smoothed = mean / (1 - o.smooth ^ i) -- without the zero that it began with
    if smoothed ~= smoothed or smoothed > o.diverge * math.abs(best) then return false end
    best = math.min(best, smoothed)
    result.lr[i], result.loss[i], result.smoothed[i] = lr, loss, smoothed
    return i < o.steps
  end)
  return result
end

-- The learning rate at which the smoothed loss falls most steeply over log(lr), or nil where it
-- falls nowhere by more than rounding. The first tenth of the steps, whose mean is of few losses,
-- is left out.
local function steepest(result)
  local lr, loss = result.lr, result.smoothed
  local best, slope = nil, -1e-6 * math.abs(loss[1] or 0)
  for i = 2 + #lr // 10, #lr - 1 do
    local s = (loss[i + 1] - loss[i - 1]) / math.log(lr[i + 1] / lr[i - 1])
    if s < slope then best, slope = i, s end
  end
  return best and lr[best] or nil
end

local function drawn(o, result)
  local suggestion = result.suggestion
  local view = axes.new{title = o.title, xlabel = "learning rate", ylabel = "loss", logx = true,
    series = {{kind = "line", name = "loss", x = result.lr, y = result.loss},
      {kind = "line", name = "smoothed", x = result.lr, y = result.smoothed}},
    marks = suggestion and {{suggestion, scale.number(suggestion)}}}
  return figure.new("lr_finder", view, o.width, o.height, "loss by learning rate")
end

-- ---- the call ----

local bind = options.signature("lr_finder", [[*, model: module, loss?: function,
  forward?: function, optimizer: optimizer, loader: table, device?: device, from: number = 1e-7,
  to: number = 10.0, steps: integer = 100, diverge: number = 4.0, smooth: number = 0.9,
  title: string = 'Learning rate finder', width: number = 640, height: number = 400]])

local function check(o)
  if (o.loss == nil) == (o.forward == nil) then
    caller.raise("lr_finder: wanted loss(scores, y), or forward(model, x, ...) that gives the loss")
  end
  if not o.loader.iter then
    caller.raise("lr_finder: loader is a %s, wanted a DataLoader", type(o.loader))
  end
  if not (o.from > 0 and o.from < o.to and o.to < math.huge) then
    caller.raise("lr_finder: from is %g and to %g, wanted 0 < from < to", o.from, o.to)
  end
  if o.steps < 2 then caller.raise("lr_finder: steps is %d, wanted 2 at least", o.steps) end
  if not (o.smooth >= 0 and o.smooth < 1) then
    caller.raise("lr_finder: smooth is %g, wanted 0 to below 1", o.smooth)
  end
  if o.diverge ~= o.diverge or o.diverge <= 1 then
    caller.raise("lr_finder: diverge is %g, wanted more than 1", o.diverge)
  end
end

local Result = {}
Result.__index = Result

function Result:__tostring()
  return ("%s\n%s"):format(self.figure, self.suggestion
    and ("suggestion: lr = %s"):format(scale.number(self.suggestion))
    or "no suggestion: the loss fell nowhere")
end

--- Trains for some steps whose learning rates grow by one factor, until the loss diverges, and then
--- brings model, optimizer, loader, gradients and random numbers back to where they were.
---   local found = dm.plot.lr_finder{model = model, loss = nn.CrossEntropyLoss(),
---     optimizer = optimizer, loader = train}
---   print(found)
---   optimizer.param_groups[1].lr = found.suggestion
--- Groups of parameters keep the proportions of their learning rates; lr is the first group's.
---@param opts table {model =, loss = (loss(model(x), y)), forward = (instead:
---  forward(model, x, ...) gives the loss), optimizer =, loader = (batches x, y and one more at
---  most), device = (the model's), from = 1e-7, to = 10, steps = 100, diverge = 4 (it stops where
---  the smoothed loss is so many times the least one), smooth = 0.9 (weight of the mean so far),
---  title =, width =, height =}
---@return table {lr = list, loss = list, smoothed = list, suggestion = the learning rate of the
---  steepest descent, or nil; figure =}
function lr_finder.lr_finder(...)
  local o = bind(...)
  check(o)
  local first = o.model:parameters()[1]
  o.device = o.device or first and first.device or "cpu"
  local result
  do
    local _ <close> = kept(o)
    result = core.enable_grad(function() return run(o) end)
  end
  result.suggestion = steepest(result)
  result.figure = drawn(o, result)
  return setmetatable(result, Result)
end

return lr_finder
