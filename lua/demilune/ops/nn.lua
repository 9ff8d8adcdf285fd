-- Functions of neural networks, of nn.functional.

local core = require "demilune.core"
local caller = require "demilune.caller"
local op, rows = require("demilune.ops.define").family()

op.constant_pad_nd("x; pad..., value = 0", "pad with a constant", function(x, pad, value)
  return core.pad(x, pad, {value = value})
end, "function")

op.linear_cross_entropy("x, linear_weight, target, linear_bias?, weight?; reduction = mean, "
  .. "ignore_index?, label_smoothing = 0", "cross_entropy of a linear layer's result; "
  .. "linear_weight is (C, in) or "
  .. "(C, d1, ..., in), and then x is (N, "
  .. "in)", function(x, linear_weight, target, bias, weight, ...)
  local reduction, ignore_index, label_smoothing = ...
  local n, shape = linear_weight:dim(), {table.unpack(linear_weight.shape)}
  if n > 2 and x:dim() ~= 2 then
    caller.raise("linear_cross_entropy: x has shape %s, wanted {N, %d} for a weight of shape %s",
      tostring(x.shape), shape[n], tostring(linear_weight.shape))
  end
  local logits = core.linear(x, linear_weight:reshape(-1, shape[n]), bias and bias:reshape(-1))
  if n > 2 then
    local sizes = {table.unpack(x.shape, 1, x:dim() - 1)}
    table.move(shape, 1, n - 1, #sizes + 1, sizes)
    logits = logits:reshape(sizes)
  end
  return core.cross_entropy(logits, target, {weight = weight, reduction = reduction,
    ignore_index = ignore_index, label_smoothing = label_smoothing})
end, "function")

op.rrelu("input; lower = 0.125, upper = 0.3333333333333333, training = false",
  "leaky_relu with a slope of each element's own, uniform in [lower, upper], while training, with "
  .. "their mean else; B. Xu et al. 2015", function(x, lower, upper, training)
  if lower > upper then
    caller.raise("rrelu: lower is %g, upper %g, wanted lower <= upper", lower, upper)
  end
  if not training then return core.leaky_relu(x, {negative_slope = (lower + upper) / 2}) end
  local slope = core.rand_like(x:detach()) * (upper - lower) + lower
  return core.where(x:gt(0), x, x * slope)
end, "inplace")

-- ---- fractional_max_pool3d ----

-- The starts (planes, n), from 0, of the n windows of size k along an axis of size `size`, from u
-- (planes) in [0, 1): floor((i + u) a) - floor(u a), the last one at the axis's end.
local function starts_of(u, size, n, k)
  local i = core.arange(0, n - 1, {dtype = u.dtype, device = u.device})
  u = u:reshape(-1, 1)
  local alpha = n > 1 and (size - k) / (n - 1) or 0
  local start = ((i + u) * alpha):floor() - (u * alpha):floor()
  return core.where(i:eq(n - 1), size - k, start):long()
end

local function triple(v) return type(v) == "table" and v or {v, v, v} end

op.fractional_max_pool3d("x, _random_samples?; kernel_size, output_size?, output_ratio?, "
  .. "return_indices = false", "largest values of output_size windows that overlap at random, by "
  .. "_random_samples (N,C,3) in [0, 1) or drawn ones; with return_indices also their positions "
  .. "in the flat "
  .. "volume; Graham 2014", function(x, samples, kernel_size, output_size, output_ratio,
  return_indices)
  if (output_size == nil) == (output_ratio == nil) then
    caller.raise("fractional_max_pool3d: wanted output_size or output_ratio, one of them")
  end
  if x:dim() ~= 4 and x:dim() ~= 5 then
    caller.raise("fractional_max_pool3d: x has shape %s, wanted {N, C, D, H, W} or {C, D, H, W}",
      tostring(x.shape))
  end
  local t = x:dim() == 5 and x or x:unsqueeze(1)
  local N, C, kernel = t:size(1), t:size(2), triple(kernel_size)
  local out, ratio = output_size and triple(output_size) or {},
    output_ratio and triple(output_ratio)
  for d = 1, 3 do
    local size = t:size(2 + d)
    if ratio then out[d] = math.floor(size * ratio[d]) end
    if out[d] < 1 or kernel[d] < 1 or out[d] + kernel[d] - 1 > size then
      caller.raise("fractional_max_pool3d: size %d to %d by windows of %d, wanted 1 or more that "
        .. "fit",
        size, out[d], kernel[d])
    end
  end
  local wide = x.dtype == "float64" and "float64" or "float32"
  local u = samples and samples:to(wide) or core.rand(N, C, 3, {dtype = wide, device = x.device})
  u = u:narrow(1, 1, N):narrow(2, 1, C):reshape(N * C, 3)
  local at -- positions from 0: (planes, a dim each for the three starts and the three offsets)
  for d = 1, 3 do -- samples come in the order of the axes; fractional_max_pool2d has W first
    local start = starts_of(u:select(2, d), t:size(2 + d), out[d], kernel[d])
    local shape, offsets = {-1, 1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1, 1}
    shape[1 + d], offsets[4 + d] = out[d], kernel[d]
    local k = core.arange(0, kernel[d] - 1, {dtype = "int64", device = x.device})
    local part = start:reshape(shape) + k:reshape(offsets)
    at = at and at * t:size(2 + d) + part or part
  end
  local cells = out[1] * out[2] * out[3]
  local volume = kernel[1] * kernel[2] * kernel[3]
  at = (at + 1):reshape(N * C, cells * volume)
  local flat = t:reshape(N * C, t:size(3) * t:size(4) * t:size(5))
  local windows = flat:gather(2, at):reshape(N * C, cells, volume)
  local y, which = windows:max(3)
  local shape = {N, C, out[1], out[2], out[3]}
  if x:dim() == 4 then table.remove(shape, 1) end
  if not return_indices then return y:reshape(shape) end
  local index = at:reshape(N * C, cells, volume):gather(3, which:unsqueeze(3))
  return y:reshape(shape), index:reshape(shape)
end, "function")

return rows
