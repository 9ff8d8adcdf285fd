-- Means of weights over a training: of all steps (stochastic weight averaging, P. Izmailov
-- et al. 2018) or exponential ones (EMA).
--
--   local mean = optim.swa_utils.AveragedModel(model, {decay = 0.999})
--   ... optimizer:step(); mean:update_parameters(model)
--   mean(x)                                   -- the model with the mean's weights

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local replay = require "demilune.replay"
local Module = require "demilune.nn.module"
local lr_scheduler = require "demilune.optim.lr_scheduler"

local swa_utils = {}

local AveragedModel = Module:extend "AveragedModel"
swa_utils.AveragedModel = AveragedModel

-- decay: an exponential mean with this share of what was; without one all steps weigh
-- alike. avg_fn(mean, value, n) gives another mean of two tensors, multi_avg_fn(means, values, n)
-- changes a list of them in place; n counts the models before. use_buffers: means of float
-- buffers too; else they are the last model's.
local bind_averaged = options.signature("AveragedModel", [[model: module, device?: device,
  avg_fn?: function, multi_avg_fn?: function, use_buffers: boolean = false, *, decay?: number]])

function AveragedModel:init(...)
  local o = bind_averaged(...)
  if o.decay ~= nil and not (o.decay >= 0 and o.decay <= 1) then
    caller.raise("AveragedModel: decay is %s, wanted a number from 0 to 1", tostring(o.decay))
  end
  self.module = o.model:copy()
  if o.device then self.module:to(o.device) end
  if (o.decay and 1 or 0) + (o.avg_fn and 1 or 0) + (o.multi_avg_fn and 1 or 0) > 1 then
    caller.raise "AveragedModel: wanted one of decay, avg_fn and multi_avg_fn"
  end
  self.decay, self.use_buffers = o.decay, o.use_buffers
  self.avg_fn, self.multi_avg_fn = o.avg_fn, o.multi_avg_fn
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

-- Lists of the float tensors' data, and of the values' on the same devices in the same dtypes.
local function data_of(means, values)
  local ours, theirs = {}, {}
  for i, mean in ipairs(means) do
    if mean:is_floating_point() then
      ours[#ours + 1] = mean.data
      theirs[#theirs + 1] = values[i].data:to(mean.device):to(mean.dtype)
    end
  end
  return ours, theirs
end

-- Takes `values` into `means`, after n others; share: of the values, where no function says more.
local function mean_of(self, means, values, n, share)
  local own = n > 0 and (self.multi_avg_fn or self.avg_fn)
  if not own then
    for i, mean in ipairs(means) do blend(mean, values[i], share) end
    return
  end
  local ours, theirs = data_of(means, values)
  if self.multi_avg_fn then return self.multi_avg_fn(ours, theirs, n) end
  for i, mean in ipairs(ours) do mean:copy_(self.avg_fn(mean, theirs[i], n)) end
end

-- An update within a graph (demilune.cuda_graph), whose launches repeat its share: that of the
-- decay, which stays the same from the second one on.
local function record_update(self, n)
  if not self.decay or n == 0 then
    replay.refuse "AveragedModel: an update whose share is the host's (use decay)"
  end
  replay.note{
    before = function() self.n_averaged:add_(1) end,
    undo = function() self.n_averaged:sub_(1) end,
  }
end

--- Takes the weights that `model` has now into the mean.
function AveragedModel:update_parameters(model)
  local _ <close> = core.no_grad()
  local n = self.n_averaged:item()
  if replay.graph then record_update(self, n) end
  local share = n == 0 and 1 or self.decay and 1 - self.decay or 1 / (n + 1)
  mean_of(self, self.module:parameters(), model:parameters(), n, share)
  local theirs = model:buffers()
  for i, b in ipairs(self.module:buffers()) do
    if self.use_buffers then
      mean_of(self, {b}, {theirs[i]}, n, share)
    else
      blend(b, theirs[i], 1)
    end
  end
  self.n_averaged:add_(1)
end

local bind_ema = options.signature("get_ema_multi_avg_fn", "decay: number = 0.999")

--- The multi_avg_fn of an exponential mean.
function swa_utils.get_ema_multi_avg_fn(...)
  local decay = bind_ema(...).decay
  if not (decay >= 0 and decay <= 1) then
    caller.raise("get_ema_multi_avg_fn: decay is %s, wanted a number from 0 to 1", tostring(decay))
  end
  return function(means, values)
    for i, mean in ipairs(means) do mean:lerp_(values[i], 1 - decay) end
  end
end

local bind_swa = options.signature("get_swa_multi_avg_fn", "")

--- The multi_avg_fn of a mean in which all steps weigh alike.
function swa_utils.get_swa_multi_avg_fn(...)
  bind_swa(...)
  return function(means, values, n)
    for i, mean in ipairs(means) do mean:lerp_(values[i], 1 / (n + 1)) end
  end
end

local bind_update = options.signature("update_bn",
  "loader: rounds, model: module, device?: device")

--- Makes the running statistics of the batch norms in `model` anew: their mean over the
--- batches x of `loader`, a DataLoader, an iterator or a list; a batch is x, or a table that
--- begins with it.
function swa_utils.update_bn(...)
  local o = bind_update(...)
  local loader, model = o.loader, o.model
  if math.type(loader) then
    caller.raise("update_bn: loader is %s, wanted a loader, a list or an iterator", loader)
  end
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
    x = core.is_tensor(x) and x or x[1]
    model(o.device and x:to(o.device) or x)
  end
  if type(loader) == "function" then
    for x in loader do feed(x) end
  elseif loader.iter then
    for _, x in loader:iter() do feed(x) end
  else
    for _, x in ipairs(loader) do feed(x) end
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

local bind_swalr = options.signature("SWALR", [[optimizer: optimizer, swa_lr: number|numbers,
  anneal_epochs: integer = 10, anneal_strategy: 'cos'|'linear' = 'cos']])

--- Moves each group's rate to swa_lr (a number, or one a group) within anneal_epochs
--- steps, by a 'cos' or 'linear' curve, and holds it there; with 0 of them at once.
function swa_utils.SWALR(...)
  local o = bind_swalr(...)
  local optimizer, swa_lr, rates = o.optimizer, o.swa_lr, {}
  for i in ipairs(optimizer.param_groups) do
    rates[i] = type(swa_lr) == "table" and swa_lr[i] or swa_lr
    if not rates[i] then caller.raise("SWALR: swa_lr has no number for group %d", i) end
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

-- Moves the rates one step on.
-- It goes from the rate as it is: another schedule may have moved it before the first step here.
function SWALR:step()
  self.last_epoch = self.last_epoch + 1
  local before, now = gone(self, self.last_epoch - 1), gone(self, self.last_epoch)
  for i, group in ipairs(self.optimizer.param_groups) do
    local goal = self.swa_lr[i]
    local from = before == 1 and goal or (group.lr - before * goal) / (1 - before)
    group.lr = goal * now + from * (1 - now)
  end
end

SWALR.step = replay.again(SWALR.step)
SWALR.get_last_lr = lr_scheduler.get_last_lr

-- The number of steps done.
function SWALR:state_dict() return {last_epoch = self.last_epoch} end

-- Takes up a saved state.
function SWALR:load_state_dict(state) self.last_epoch = state.last_epoch end

return swa_utils
