-- SyncBatchNorm: batch norms whose statistics are those of the batches of all ranks.
--
-- Each rank computes the mean and the sum of squared distances from it by channel; the ranks
-- exchange these with their counts, and combine them in one order (T. Chan et al. 1979, Updating
-- formulae and a pairwise algorithm for computing sample variances). A forward in training mode
-- takes one message of 2 C + 1 numbers, a backward one of 2 C, all in float64.

local core = require "demilune.core"
local autograd = require "demilune.autograd"
local caller = require "demilune.caller"
local options = require "demilune.options"
local collectives = require "demilune.distributed.collectives"
local world = require "demilune.distributed.world"
local norm = require "demilune.nn.norm"

local NAME = "SyncBatchNorm"

-- The dims of x (N, C, ...) but C, for sums by channel.
local function dims_of(x)
  local dims = {1}
  for d = 3, x:dim() do dims[#dims + 1] = d end
  return dims
end

-- v (C) in the dims of x (N, C, ...).
local function by_channel(v, x)
  local shape = {1, -1}
  for d = 3, x:dim() do shape[d] = 1 end
  return v:reshape(shape)
end

-- x in float32, or in float64 where it is that.
local function wide(x) return x.dtype == "float64" and x or x:to "float32" end

-- Mean, variance by channel (both float64) and count of the batches of all ranks, of x (N, C, ...).
local function statistics(x, group)
  local n = x:numel() // math.max(1, x:size(2))
  local how = {dtype = "float64", device = x.device}
  local mean, m2 = core.zeros(x:size(2), how), core.zeros(x:size(2), how)
  if n > 0 then
    local own = x:mean(dims_of(x))
    mean, m2 = own:to "float64", (x - by_channel(own, x)):square():sum(dims_of(x)):to "float64"
  end
  local message = core.cat{mean, m2, core.tensor({n}, how)}
  local all = core.empty({#group.ranks, message:numel()}, how)
  collectives.all_gather_into_tensor(all, message, group)
  local c = x:size(2)
  local means, m2s, counts = all[{{}, {1, c}}], all[{{}, {c + 1, 2 * c}}], all[{{}, {-1, -1}}]
  local count = counts:sum()
  mean = (means * counts):sum(1) / count
  m2 = (m2s + (means - mean):square() * counts):sum(1)
  return mean, m2 / count, count:item()
end

local sync = autograd.Function{
  name = NAME,
  -- x (N, C, ...), weight and bias (C) or nil -> y like x, mean and variance (C)
  forward = function(ctx, x, weight, bias, eps, group)
    local _ <close> = core.autocast_resume(core.autocast_state(true))
    local v = wide(x)
    local mean, var, count = statistics(v, group)
    if count <= 1 then
      caller.raise("%s: %d values per channel on all ranks, wanted more to train on", NAME, count)
    end
    local scale = (var + eps):rsqrt()
    ctx.group, ctx.count, ctx.has_bias = group, count, bias ~= nil
    ctx:save_for_backward(x, weight, mean:to(v.dtype), scale:to(v.dtype))
    ctx:mark_non_differentiable(mean, var)
    local y = (v - by_channel(mean:to(v.dtype), x)) * by_channel(scale:to(v.dtype), x)
    if weight then y = y * by_channel(weight:to(v.dtype), x) end
    if bias then y = y + by_channel(bias:to(v.dtype), x) end
    return y:to(x.dtype), mean, var * (count / (count - 1))
  end,
  backward = function(ctx, gy)
    if core.is_grad_enabled() then
      caller.raise("%s: has no second derivative; hint: create_graph = false", NAME)
    end
    local _ <close> = core.autocast_resume(core.autocast_state(true))
    local x, weight, mean, scale = ctx:saved_tensors()
    local g, v, c = wide(gy), wide(x), x:size(2)
    local normed = (v - by_channel(mean, x)) * by_channel(scale, x)
    local g_bias, g_weight = g:sum(dims_of(x)), (g * normed):sum(dims_of(x))
    local gx
    if ctx.needs_input_grad[1] then
      local sums = core.cat{g_bias:to "float64", g_weight:to "float64"}
      collectives.all_reduce(sums, "sum", ctx.group)
      sums = (sums / ctx.count):to(v.dtype)
      gx = g - by_channel(sums[{{1, c}}], x) - normed * by_channel(sums[{{c + 1, 2 * c}}], x)
      gx = (gx * by_channel(weight and scale * weight:to(v.dtype) or scale, x)):to(x.dtype)
    end
    return gx, weight and g_weight:to(weight.dtype), ctx.has_bias and g_bias:to(v.dtype) or nil
  end,
}

-- running = (1 - share) running + share value, in its dtype
local function track(running, share, value)
  running:copy_(running:to "float64" * (1 - share) + value * share)
end

-- The group in which this norm has to ask for statistics; nil: this rank's are all.
local function group_of(self)
  if not self.training or not world.is_open() then return nil end
  local group = world.group(NAME, self.process_group)
  if #group.ranks == 1 then return nil end
  return world.aside(group)
end

local function normalize(self, x, share, count)
  local group = group_of(self)
  if not group then return norm.by_own_batch(self, x, share, count) end
  if x:size(2) ~= self.num_features then
    caller.raise("%s: x is %s, wanted %d channels", NAME, tostring(x.shape), self.num_features)
  end
  local y, mean, var = sync(x, self.weight, self.bias, self.eps, group)
  if self.running_mean then
    local _ <close> = core.no_grad()
    track(self.running_mean, share, mean)
    track(self.running_var, share, var)
    if count then count:add_(1) end
  end
  return y
end

local RANKS = {}
for d = 2, 8 do RANKS[d] = true end

--- A batch norm whose statistics, in training mode, are those of the batches of all ranks, which
--- may differ in size: x (N, C, ...) -> the same shape. All ranks call it, and their backward
--- passes reach it. In eval mode, alone, and without a process group it is BatchNorm, bit by bit.
local SyncBatchNorm = norm.new_batch_norm(NAME, "{N, C, ...}", RANKS, {
  argument = "process_group?: group, ",
  begin = function(self, o) rawset(self, "process_group", o.process_group) end,
  normalize = normalize,
})

-- The SyncBatchNorm that has the tensors of a batch norm.
local function synced(old, group)
  local new = SyncBatchNorm(old.num_features, {eps = old.eps, momentum = old.momentum,
    affine = false, track_running_stats = false, process_group = group})
  for _, name in ipairs{"weight", "bias", "training"} do new[name] = old[name] end
  for _, name in ipairs{"running_mean", "running_var", "num_batches_tracked"} do
    if old[name] then new:register_buffer(name, old[name]) end
  end
  return new
end

-- Whether a module is a batch norm of one process; raises for one that has no tensors yet.
local function is_batch_norm(module)
  local class = getmetatable(module)
  while class and class ~= norm.BatchNorm1d and class ~= norm.BatchNorm2d
    and class ~= norm.BatchNorm3d do
    class = rawget(class, "super")
  end
  if class and rawget(module, "_later") then
    caller.raise("convert_sync_batchnorm: this %s has no tensors before its first call; hint: call "
      .. "the model on a batch first", module.class)
  end
  return class ~= nil
end

local bind_convert = options.signature("convert_sync_batchnorm",
  "module: module, process_group?: group")

--- Puts a SyncBatchNorm where a batch norm is, in the module and all below it. It has the same
--- tensors, so that an optimizer that holds them stays right.
---@param module table changed; a batch norm itself is not
---@param process_group? demilune.distributed.Group all ranks by default
---@return table module the same, or the SyncBatchNorm for a batch norm
---```lua
---local model = nn.SyncBatchNorm.convert_sync_batchnorm(dm.models.resnet18())
---```
function SyncBatchNorm.convert_sync_batchnorm(...)
  local o = bind_convert(...)
  local made = {}
  local function converted(module)
    if not is_batch_norm(module) then return nil end
    made[module] = made[module] or synced(module, o.process_group)
    return made[module]
  end
  for _, parent in ipairs(o.module:modules()) do
    for name, child in parent:named_children() do
      local new = converted(child)
      if new then parent:set_submodule(name, new) end
    end
  end
  return converted(o.module) or o.module
end

return {SyncBatchNorm = SyncBatchNorm}
