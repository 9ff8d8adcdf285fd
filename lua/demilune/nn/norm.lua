-- BatchNorm1d and 2d, LayerNorm, GroupNorm.
-- S. Ioffe, C. Szegedy 2015; J. Ba et al. 2016; Y. Wu, K. He 2018.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local Module = require "demilune.nn.module"

local layers = {}

local function ones(...) return core.parameter(core.ones(...)) end
local function zeros(...) return core.parameter(core.zeros(...)) end

-- By channel over the batch, x (N, C, ...). momentum = "cumulative": running
-- statistics are the plain mean over all batches so far (PyTorch's None).
local function batch_norm(name, wanted, ranks)
  local Norm = Module:extend(name)
  Norm.keeps_nothing = true

  function Norm:init(num_features, opts)
    local o = options.read(name, opts, {eps = 1e-5, momentum = 0.1, affine = true,
      track_running_stats = true, dtype = "float32", device = options.NONE})
    local how = {dtype = o.dtype, device = o.device}
    self.num_features, self.eps, self.momentum = num_features, o.eps, o.momentum
    if o.affine then
      self.weight = ones(num_features, how)
      self.bias = zeros(num_features, how)
    end
    if o.track_running_stats then
      self:register_buffer("running_mean", core.zeros(num_features, how))
      self:register_buffer("running_var", core.ones(num_features, how))
      self:register_buffer("num_batches_tracked", core.tensor(0, {dtype = "int64",
        device = o.device}))
    end
  end

  -- The share of this batch in the running statistics.
  local function share(self)
    if not (self.training and self.running_mean) then return 0.0 end
    self.num_batches_tracked:add_(1)
    if self.momentum == "cumulative" then return 1 / self.num_batches_tracked:item() end
    return self.momentum
  end

  function Norm:forward(x)
    if not ranks[x:dim()] then
      caller.raise("%s: x is %s, wanted %s", name, tostring(x.shape), wanted)
    end
    return core.batch_norm(x, self.running_mean, self.running_var,
      {weight = self.weight, bias = self.bias, momentum = share(self), eps = self.eps,
        training = self.training or not self.running_mean})
  end

  function Norm:extra_repr() return tostring(self.num_features) end
  layers[name] = Norm
end
batch_norm("BatchNorm1d", "{N, C} or {N, C, L}", {[2] = true, [3] = true})
batch_norm("BatchNorm2d", "{N, C, H, W}", {[4] = true})

-- Over the last dims, x (..., normalized_shape).
local LayerNorm = Module:extend "LayerNorm"
LayerNorm.keeps_nothing = true

function LayerNorm:init(normalized_shape, opts)
  local o = options.read("LayerNorm", opts, {eps = 1e-5, elementwise_affine = true, bias = true,
    dtype = "float32", device = options.NONE})
  local shape = type(normalized_shape) == "table" and {table.unpack(normalized_shape)}
    or {normalized_shape}
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

-- Over groups of channels, x (N, C, ...).
local GroupNorm = Module:extend "GroupNorm"
GroupNorm.keeps_nothing = true

function GroupNorm:init(num_groups, num_channels, opts)
  local o = options.read("GroupNorm", opts, {eps = 1e-5, affine = true, dtype = "float32",
    device = options.NONE})
  if num_channels % num_groups ~= 0 then
    caller.raise("GroupNorm: %d groups do not divide %d channels", num_groups, num_channels)
  end
  self.num_groups, self.num_channels, self.eps = num_groups, num_channels, o.eps
  if o.affine then
    local how = {dtype = o.dtype, device = o.device}
    self.weight = ones(num_channels, how)
    self.bias = zeros(num_channels, how)
  end
end

function GroupNorm:forward(x)
  return core.group_norm(x, self.num_groups,
    {weight = self.weight, bias = self.bias, eps = self.eps})
end

function GroupNorm:extra_repr() return ("%d, %d"):format(self.num_groups, self.num_channels) end

layers.LayerNorm, layers.GroupNorm = LayerNorm, GroupNorm
return layers
