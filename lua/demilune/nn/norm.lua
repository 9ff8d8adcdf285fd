-- BatchNorm and InstanceNorm 1d to 3d, LayerNorm, RMSNorm, LocalResponseNorm, GroupNorm.
-- S. Ioffe, C. Szegedy 2015; D. Ulyanov et al. 2016; J. Ba et al. 2016; B. Zhang,
-- R. Sennrich 2019; A. Krizhevsky et al. 2012; Y. Wu, K. He 2018.

local core = require "demilune.core"
local caller = require "demilune.caller"
local check_input = require "demilune.nn.input"
local follow = require "demilune.nn.follow"
local options = require "demilune.options"
local Module = require "demilune.nn.module"

local layers = {}

local function ones(...) return core.parameter(core.ones(...)) end
local function zeros(...) return core.parameter(core.zeros(...)) end

-- The fields that batch norms and instance norms share.
local function begin(self, o)
  local num_features, how = o.num_features, {dtype = o.dtype, device = o.device}
  self.num_features, self.eps, self.momentum = num_features, o.eps, o.momentum
  if o.affine then
    self.weight = ones(num_features, how)
    if o.bias then self.bias = zeros(num_features, how) end
  end
  if o.track_running_stats then
    self:register_buffer("running_mean", core.zeros(num_features, how))
    self:register_buffer("running_var", core.ones(num_features, how))
    self:register_buffer("num_batches_tracked", core.tensor(0, {dtype = "int64",
      device = o.device}))
  end
end

-- The norm of x by the statistics of the batch, or in eval mode by the running ones. share: of this
-- batch in those. count: num_batches_tracked where this call is to count the batch.
-- activation: "relu", "relu6" or nil.
local function by_own_batch(self, x, share, count, activation)
  return core.batch_norm(x, self.running_mean, self.running_var,
    {weight = self.weight, bias = self.bias, momentum = share, eps = self.eps,
      training = self.training or not self.running_mean, num_batches_tracked = count,
      activation = activation})
end

-- [1]: a function that a batch norm calls before it reads its buffers, which another process is
-- sending; or nil. A class whose forward does so has it as its field _awaits_buffers, too.
local arrival = {}

-- Adds a class of norms by channel over the batch, x (N, C, ...). momentum = "cumulative": running
-- statistics are the plain mean over all batches so far (PyTorch's None). wanted: x in words;
-- ranks: the numbers of dims that fit. sync (nn/sync_norm.lua): {argument =, begin(self, o),
-- normalize(self, x, share, count)} of one whose statistics are those of several processes.
local function batch_norm(name, wanted, ranks, sync)
  local Norm = Module:extend(name)
  Norm.holds_no_activations = true
  local normalize = sync and sync.normalize or by_own_batch
  local bind = options.signature(name, ([[num_features: integer, eps,
    momentum: number|'cumulative' = 0.1, affine: boolean = true,
    track_running_stats: boolean = true, %sdevice?: device, dtype?: dtype, *,
    bias: boolean = true]]):format(sync and sync.argument or ""), "batch_norm")

  function Norm:init(...)
    local o = bind(...)
    if o.eps <= 0 or o.eps ~= o.eps then
      caller.raise("%s: eps is %g, wanted above 0", name, o.eps)
    end
    begin(self, o)
    if sync then sync.begin(self, o) end
  end

  -- The share of this batch in the running statistics; and their counter, where it is the norm's
  -- to count the batch.
  local function share(self)
    if not (self.training and self.running_mean) then return 0.0 end
    local count = self.num_batches_tracked
    if self.momentum ~= "cumulative" then return self.momentum, count end
    count:add_(1)
    return 1 / count:item()
  end

  -- activation: for this call.
  function Norm:forward(x, activation)
    if arrival[1] then arrival[1]() end
    check_input(name, x)
    if not ranks[x:dim()] then
      caller.raise("%s: x is %s, wanted %s", name, tostring(x.shape), wanted)
    end
    local part, count = share(self)
    return normalize(self, x, part, count, activation)
  end

  -- Whether relu(self(x)), or relu6 of it, may be computed as one op: in training, which saves a
  -- pass over the result and one over its gradient. As for Linear, the bits are the same, but
  -- hooks and observers must see the norm's own output.
  local forward, observer = Norm.forward, Module._observer
  Norm._awaits_buffers = forward
  function Norm:can_fuse_relu()
    return not sync and self.training and self.forward == forward and not self._has_hooks
      and not observer[1]
  end

  function Norm:extra_repr() return tostring(self.num_features) end
  layers[name] = Norm
  return Norm
end
-- For nn/sync_norm.lua and nn/parallel.lua; pairs does not list them, as they are no layers.
setmetatable(layers, {__index = {new_batch_norm = batch_norm, by_own_batch = by_own_batch,
  arrival = arrival}})
batch_norm("BatchNorm1d", "{N, C} or {N, C, L}", {[2] = true, [3] = true})
batch_norm("BatchNorm2d", "{N, C, H, W}", {[4] = true})
batch_norm("BatchNorm3d", "{N, C, D, H, W}", {[5] = true})

-- By channel of each sample, x (N, C, ...) or (C, ...) with `dims` dims after C. Neither
-- weights nor running statistics unless asked for: {affine =, track_running_stats =}.
local function instance_norm(dims, wanted)
  local name = ("InstanceNorm%dd"):format(dims)
  local Norm = Module:extend(name)
  Norm.holds_no_activations = true
  local bind = options.signature(name, [[num_features: integer, eps, momentum,
    affine: boolean = false, track_running_stats: boolean = false, device?: device,
    dtype?: dtype, *, bias: boolean = true]], "instance_norm")

  function Norm:init(...) begin(self, bind(...)) end

  function Norm:forward(x)
    check_input(name, x)
    local rank = x:dim()
    if rank ~= dims + 1 and rank ~= dims + 2 then
      caller.raise("%s: x is %s, wanted %s, N or not", name, tostring(x.shape), wanted)
    end
    local y = core.instance_norm(rank == dims + 1 and x:unsqueeze(1) or x, self.running_mean,
      self.running_var, {weight = self.weight, bias = self.bias, momentum = self.momentum,
        eps = self.eps, use_input_stats = self.training or not self.running_mean})
    return rank == dims + 1 and y:squeeze(1) or y
  end

  function Norm:extra_repr() return tostring(self.num_features) end
  layers[name] = Norm
end
for dims, wanted in ipairs{"{N, C, L}", "{N, C, H, W}", "{N, C, D, H, W}"} do
  instance_norm(dims, wanted)
end

--- (x - mean) / sqrt(var + eps) over the last dims, times weight plus bias:
--- x (..., normalized_shape) -> the same shape; J. Ba et al. 2016.
local LayerNorm = Module:extend "LayerNorm"
LayerNorm.holds_no_activations = true

local bind_layer = options.signature("LayerNorm", [[normalized_shape: size, eps,
  elementwise_affine: boolean = true, bias: boolean = true, device?: device,
  dtype?: dtype]], "layer_norm")

local function as_shape(size) return type(size) == "table" and {table.unpack(size)} or {size} end

function LayerNorm:init(...)
  local o = bind_layer(...)
  local shape = as_shape(o.normalized_shape)
  self.normalized_shape, self.eps = shape, o.eps
  local args = {table.unpack(shape)}
  args[#args + 1] = {dtype = o.dtype, device = o.device}
  if o.elementwise_affine then
    self.weight = ones(table.unpack(args))
    if o.bias then self.bias = zeros(table.unpack(args)) end
  end
end

function LayerNorm:forward(x)
  return core.layer_norm(x, self.normalized_shape,
    {weight = self.weight, bias = self.bias, eps = self.eps})
end

function LayerNorm:extra_repr() return table.concat(self.normalized_shape, ", ") end

--- x over the root of its mean square over the last dims, times weight:
--- x (..., normalized_shape) -> the same shape. eps, added to the mean: float32's own where none
--- is given (float64's in that dtype).
local RMSNorm = Module:extend "RMSNorm"
RMSNorm.holds_no_activations = true

local bind_rms = options.signature("RMSNorm", [[normalized_shape: size, eps,
  elementwise_affine: boolean = true, device?: device, dtype?: dtype]], "rms_norm")

function RMSNorm:init(...)
  local o = bind_rms(...)
  local shape = as_shape(o.normalized_shape)
  self.normalized_shape, self.eps = shape, o.eps
  if o.elementwise_affine then self.weight = ones(shape, {dtype = o.dtype, device = o.device}) end
end

function RMSNorm:forward(x)
  return core.rms_norm(x, self.normalized_shape, {weight = self.weight, eps = self.eps})
end

function RMSNorm:extra_repr() return table.concat(self.normalized_shape, ", ") end

--- x / (k + alpha * mean of x^2 over size neighbouring channels)^beta: x (N, C, ...) -> the same
--- shape; A. Krizhevsky et al. 2012.
local LocalResponseNorm = Module:extend "LocalResponseNorm"
LocalResponseNorm.holds_no_activations = true
local RESPONSE = "size, alpha, beta, k"
local bind_response = options.signature("LocalResponseNorm", RESPONSE, "local_response_norm")
local hold_response, response_options = follow(RESPONSE)

function LocalResponseNorm:init(...) hold_response(self, bind_response(...)) end

function LocalResponseNorm:forward(x)
  return core.local_response_norm(x, response_options(self))
end
function LocalResponseNorm:extra_repr() return tostring(self.size) end

--- (x - mean) / sqrt(var + eps), of each sample over groups of channels, times weight plus bias,
--- (num_channels) each: x (N, num_channels, ...) -> the same shape; Y. Wu, K. He 2018.
local GroupNorm = Module:extend "GroupNorm"
GroupNorm.holds_no_activations = true

local bind_group = options.signature("GroupNorm", [[num_groups, num_channels: integer, eps,
  affine: boolean = true, device?: device, dtype?: dtype, *,
  bias: boolean = true]], "group_norm")

function GroupNorm:init(...)
  local o = bind_group(...)
  local num_groups, num_channels = o.num_groups, o.num_channels
  if num_groups < 1 or num_channels % num_groups ~= 0 then
    caller.raise("GroupNorm: %d groups do not divide %d channels", num_groups, num_channels)
  end
  self.num_groups, self.num_channels, self.eps = num_groups, num_channels, o.eps
  if o.affine then
    local how = {dtype = o.dtype, device = o.device}
    self.weight = ones(num_channels, how)
    if o.bias then self.bias = zeros(num_channels, how) end
  end
end

function GroupNorm:forward(x)
  return core.group_norm(x, self.num_groups,
    {weight = self.weight, bias = self.bias, eps = self.eps})
end

function GroupNorm:extra_repr() return ("%d, %d"):format(self.num_groups, self.num_channels) end

layers.LayerNorm, layers.GroupNorm = LayerNorm, GroupNorm
layers.RMSNorm, layers.LocalResponseNorm = RMSNorm, LocalResponseNorm
return layers
