-- A batch norm in eval mode, merged into the layer before it: one layer computes what both did.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"

local fusion = {}

-- Of each channel the scale, and the shift, the norm's value of 0.
local function line_of(mean, var, eps, weight, bias)
  local scale = (var + eps):rsqrt()
  if weight then scale = scale * weight end
  local shift = -mean * scale
  return scale, bias and shift + bias or shift
end

-- A parameter with these values, in the dtype of the parameter before.
local function parameter_like(values, before)
  return core.parameter(values:to(before.dtype), before.requires_grad)
end

-- The bias of the new layer; it trains as the layer's own did, if that had one.
local function fused_bias(bias, weight, scale, shift)
  if bias then return parameter_like(bias * scale + shift, bias) end
  return core.parameter(shift:to(weight.dtype), false)
end

-- w times the scale of each channel, which are dim 1, or of a transposed convolution dim 2 in each
-- of its groups.
local function scaled(w, scale, transpose)
  local shape = {}
  for d = 1, w:dim() do shape[d] = 1 end
  if not transpose then
    shape[1] = -1
    return w * scale:reshape(shape)
  end
  local groups = scale:numel() // math.max(w:size(2), 1)
  shape[2] = -1
  if groups <= 1 then return w * scale:reshape(shape) end
  table.insert(shape, 1, groups)
  return (w:unflatten(1, {groups, -1}) * scale:reshape(shape)):flatten(1, 2)
end

local bind_weights = options.signature("fuse_conv_bn_weights", [[conv_w: tensor, conv_b?: tensor,
  bn_rm: tensor, bn_rv: tensor, bn_eps: number, bn_w?: tensor, bn_b?: tensor,
  transpose: boolean = false]])

--- The weight and the bias of one convolution that computes a convolution with weight conv_w and
--- bias conv_b, and a batch norm after it with running_mean bn_rm, running_var bn_rv, weight bn_w
--- and bias bn_b; nil stands for one that is not there. transpose: for ConvTranspose.
---@return userdata weight, userdata bias
function fusion.fuse_conv_bn_weights(...)
  local o = bind_weights(...)
  local w, channels = o.conv_w, o.bn_rm:numel()
  local n = o.transpose and w:size(2) or w:size(1)
  if n ~= channels and not (o.transpose and n > 0 and channels % n == 0) then
    caller.raise("fuse_conv_bn_weights: the weight %s has %d channels in dim %d, bn_rm %d",
      tostring(w.shape), n, o.transpose and 2 or 1, channels)
  end
  local _ <close> = core.no_grad()
  local scale, shift = line_of(o.bn_rm, o.bn_rv, o.bn_eps, o.bn_w, o.bn_b)
  return parameter_like(scaled(w, scale, o.transpose), w), fused_bias(o.conv_b, w, scale, shift)
end

local bind_linear = options.signature("fuse_linear_bn_weights", [[linear_w: tensor,
  linear_b?: tensor, bn_rm: tensor, bn_rv: tensor, bn_eps: number, bn_w?: tensor, bn_b?: tensor]])

--- The weight and the bias of one linear layer that computes a linear layer and a batch norm after
--- it; the arguments are those of fuse_conv_bn_weights.
---@return userdata weight, userdata bias
function fusion.fuse_linear_bn_weights(...)
  local o = bind_linear(...)
  local w, n = o.linear_w, o.bn_rm:numel()
  if n ~= w:size(1) and n ~= 1 then
    caller.raise("fuse_linear_bn_weights: the weight %s has %d features, bn_rm %d",
      tostring(w.shape), w:size(1), n)
  end
  local _ <close> = core.no_grad()
  local scale, shift = line_of(o.bn_rm, o.bn_rv, o.bn_eps, o.bn_w, o.bn_b)
  return parameter_like(scaled(w, scale), w),
    fused_bias(o.linear_b, w, scale, shift:expand(w:size(1)))
end

-- Raises unless both are in eval mode, and can be merged: what, the layer's argument, has a weight
-- of its own, and bn running statistics.
local function check(name, what, layer, bn)
  for _, of in ipairs{{what, layer}, {"bn", bn}} do
    local word, module = of[1], of[2]
    if module.training then
      caller.raise("%s: %s is in training mode; hint: %s:eval() first", name, word, word)
    end
  end
  if not (core.is_tensor(bn.running_mean) and core.is_tensor(bn.running_var)) then
    caller.raise("%s: bn is a %s without running statistics", name, bn.class)
  end
  if not (core.is_tensor(layer.weight) and layer.weight.is_parameter) then
    caller.raise("%s: the weight of %s is no parameter; hint: parametrizations, weight_norm and "
      .. "masks of prune are removed first", name, layer.class)
  end
end

-- A copy of the layer with other parameters.
local function with(layer, weight, bias)
  local fused = layer:copy()
  fused.weight, fused.bias = weight, bias
  return fused
end

local bind_conv_bn = options.signature("fuse_conv_bn_eval",
  "conv: module, bn: module, transpose?: boolean")

--- A new convolution that computes bn(conv(x)), with the running statistics of the batch norm. Both
--- are in eval mode, and stay as they are. Options: transpose, whether the channels are dim 2 of
--- the weight; without it that is so of ConvTranspose.
---@param conv table a convolution
---@param bn table a batch norm
---@return table module of conv's class
function fusion.fuse_conv_bn_eval(...)
  local o, name = bind_conv_bn(...), "fuse_conv_bn_eval"
  local conv, bn = o.conv, o.bn
  check(name, "conv", conv, bn)
  if conv.out_channels ~= bn.num_features then
    caller.raise("%s: conv has %s channels out, bn %s", name, tostring(conv.out_channels),
      tostring(bn.num_features))
  end
  local transpose = o.transpose
  if transpose == nil then transpose = conv.output_padding ~= nil end
  return with(conv, fusion.fuse_conv_bn_weights(conv.weight, conv.bias, bn.running_mean,
    bn.running_var, bn.eps, bn.weight, bn.bias, transpose))
end

local bind_linear_bn = options.signature("fuse_linear_bn_eval", "linear: module, bn: module")

--- A new linear layer that computes bn(linear(x)), with the running statistics of the batch norm:
--- of x (N, I), or with a norm of one feature of x (N, 1, I). Both are in eval mode, and stay as
--- they are.
---@param linear table an nn.Linear
---@param bn table a batch norm
---@return table module of linear's class
function fusion.fuse_linear_bn_eval(...)
  local o, name = bind_linear_bn(...), "fuse_linear_bn_eval"
  local linear, bn = o.linear, o.bn
  check(name, "linear", linear, bn)
  if linear.out_features ~= bn.num_features and bn.num_features ~= 1 then
    caller.raise("%s: linear has %s features out, bn %s", name, tostring(linear.out_features),
      tostring(bn.num_features))
  elseif linear.activation then
    caller.raise("%s: linear computes %s, which stands between them", name, linear.activation)
  end
  return with(linear, fusion.fuse_linear_bn_weights(linear.weight, linear.bias, bn.running_mean,
    bn.running_var, bn.eps, bn.weight, bn.bias))
end

return fusion
