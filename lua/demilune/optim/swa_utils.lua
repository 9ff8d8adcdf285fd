-- Means of weights over a training: of all steps (stochastic weight averaging, P. Izmailov
-- et al. 2018) or exponential ones (EMA).
--
--   local mean = optim.swa_utils.AveragedModel(model, {decay = 0.999})
--   ... optimizer:step(); mean:update_parameters(model)
--   mean(x)                                   -- the model with the mean's weights

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local Module = require "demilune.nn.module"
local lr_scheduler = require "demilune.optim.lr_scheduler"

local swa_utils = {}

local AveragedModel = Module:extend "AveragedModel"
swa_utils.AveragedModel = AveragedModel

-- decay: an exponential mean with this share of what was; without one all steps weigh
-- alike. use_buffers: means of float buffers too; else they are the last model's.
function AveragedModel:init(model, opts)
  if not Module.is_module(model) then
    caller.raise("AveragedModel: wanted a module, got %s", type(model))
  end
  local o = options.read("AveragedModel", opts, {decay = options.NONE, use_buffers = false,
    device = options.NONE})
  if o.decay ~= nil and not (type(o.decay) == "number" and o.decay >= 0 and o.decay <= 1) then
    caller.raise("AveragedModel: decay is %s, wanted a number from 0 to 1", tostring(o.decay))
  end
  self.module = model:copy()
  if o.device then self.module:to(o.device) end
  self.decay, self.use_buffers = o.decay, o.use_buffers
  self:register_buffer("n_averaged", core.tensor(0, {dtype = "int64"}))
end

function AveragedModel:forward(...) return self.module(...) end

-- mean += (value - mean) share; the first time the value itself.
local function blend(mean, value, share)
  value = value.data:to(mean.device)
  if share == 1 or not mean:is_floating_point() then
    mean.data:copy_(value)
  else
    mean.data:lerp_(value:to(mean.dtype), share)
  end
end

--- Takes the weights that `model` has now into the mean.
function AveragedModel:update_parameters(model)
  local _ <close> = core.no_grad()
  local n = self.n_averaged:item()
  local share = n == 0 and 1 or self.decay and 1 - self.decay or 1 / (n + 1)
  local theirs = model:parameters()
  for i, p in ipairs(self.module:parameters()) do blend(p, theirs[i], share) end
  theirs = model:buffers()
  for i, b in ipairs(self.module:buffers()) do
    blend(b, theirs[i], self.use_buffers and share or 1)
  end
  self.n_averaged:add_(1)
end

--- Makes the running statistics of the batch norms in `model` anew: their mean over the
--- batches x of `loader`, a DataLoader or an iterator.
function swa_utils.update_bn(loader, model)
  local norms, was_training = {}, model.training
  for _, m in model:named_modules() do
    if m.running_mean then
      norms[m] = m.momentum
      m.running_mean:zero_()
      m.running_var:fill_(1)
      m.num_batches_tracked:zero_()
      m.momentum = "cumulative"
    end
  end
  if next(norms) == nil then return end
  model:train()
  local _ <close> = core.no_grad()
  local function feed(x)
    local _ <close> = core.scope()
    model(core.is_tensor(x) and x or x[1])
  end
  if type(loader) == "function" then
    for x in loader do feed(x) end
  else
    for _, x in loader:iter() do feed(x) end
  end
  for m, momentum in pairs(norms) do m.momentum = momentum end
  model:train(was_training)
end

local SHARE = {
  cos = function(done) return (1 - math.cos(math.pi * done)) / 2 end,
  linear = function(done) return done end,
}

local SWALR = {class = "SWALR"}
SWALR.__index = SWALR

--- Moves each group's rate to swa_lr (a number, or one a group) within anneal_epochs
--- steps, by a 'cos' or 'linear' curve, and holds it there; with 0 of them at once.
function swa_utils.SWALR(optimizer, swa_lr, opts)
  lr_scheduler.check_optimizer("SWALR", optimizer)
  local o = options.read("SWALR", opts, {anneal_epochs = 10, anneal_strategy = "cos"})
  if not SHARE[o.anneal_strategy] then
    caller.raise("SWALR: anneal_strategy is '%s', wanted 'cos' or 'linear'",
      tostring(o.anneal_strategy))
  end
  local rates = {}
  for i in ipairs(optimizer.param_groups) do
    rates[i] = type(swa_lr) == "table" and swa_lr[i] or swa_lr
    if type(rates[i]) ~= "number" then caller.raise("SWALR: wanted swa_lr, a number") end
  end
  if o.anneal_epochs == 0 then
    for i, group in ipairs(optimizer.param_groups) do group.lr = rates[i] end
  end
  return setmetatable({optimizer = optimizer, swa_lr = rates, anneal_epochs = o.anneal_epochs,
    share = SHARE[o.anneal_strategy], last_epoch = 0}, SWALR)
end

-- The share of the way that n steps go.
local function gone(self, n)
  if self.anneal_epochs == 0 then return 1 end
  return self.share(math.max(0, math.min(1, n / self.anneal_epochs)))
end

-- From the rate as it is: another schedule may have moved it before the first step here.
function SWALR:step()
  self.last_epoch = self.last_epoch + 1
  local before, now = gone(self, self.last_epoch - 1), gone(self, self.last_epoch)
  for i, group in ipairs(self.optimizer.param_groups) do
    local goal = self.swa_lr[i]
    local from = before == 1 and goal or (group.lr - before * goal) / (1 - before)
    group.lr = goal * now + from * (1 - now)
  end
end

SWALR.get_last_lr = lr_scheduler.get_last_lr

function SWALR:state_dict() return {last_epoch = self.last_epoch} end
function SWALR:load_state_dict(state) self.last_epoch = state.last_epoch end

return swa_utils
