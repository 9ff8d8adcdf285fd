-- nn.functional: every op, and what is several ops.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"

local functional = setmetatable({}, {__index = core})

-- A number, or a table of them, as an int64 tensor on x's device; a tensor as it is.
local function lengths(v, x)
  if type(v) ~= "table" and type(v) ~= "number" then return v end
  return core.tensor(v, {dtype = "int64", device = x.device})
end

--- dm.ctc_loss, which takes tensors; here the two lengths may be tables of numbers, and
--- of a sequence without a batch numbers. opts: blank = 1, reduction = "mean",
--- zero_infinity = false.
function functional.ctc_loss(log_probs, targets, input_lengths, target_lengths, opts)
  return core.ctc_loss(log_probs, targets, lengths(input_lengths, log_probs),
    lengths(target_lengths, log_probs), opts)
end

-- ---- embeddings ----

-- Shortens, in place, the rows of weight at ids to max_norm of order p.
local function shorten(weight, ids, max_norm, p)
  local _ <close> = core.no_grad()
  local at, values = ids:reshape(-1), weight.data
  local rows = core.index_select(values, 1, at)
  local norm = core.norm(rows, {p = p, dim = 2, keepdim = true})
  local scale = core.where(norm:gt(max_norm), max_norm / (norm + 1e-7), core.ones_like(norm))
  values:index_copy_(1, at, rows * scale)
end

--- dm.embedding, and max_norm: rows looked up are first shortened, in place, to that norm
--- of order norm_type (2).
function functional.embedding(ids, weight, opts)
  if type(opts) ~= "table" or opts.max_norm == nil then
    return core.embedding(ids, weight, opts)
  end
  local o = options.read("embedding", opts, {padding_idx = options.NONE,
    max_norm = options.NONE, norm_type = 2.0})
  shorten(weight, ids, o.max_norm, o.norm_type)
  return core.embedding(ids, weight, {padding_idx = o.padding_idx})
end

-- The bag (from 1) of each of n ids, by where the bags begin.
local function bags_of(offsets, n)
  local at = core.arange(1, n, {dtype = "int64", device = offsets.device})
  return core.bucketize(at, offsets, {right = true}) - 1
end

local BAG = {offsets = options.NONE, mode = "mean", per_sample_weights = options.NONE,
  include_last_offset = false, padding_idx = options.NONE, max_norm = options.NONE,
  norm_type = 2.0}

local function check_bag(ids, weight, o)
  if o.mode ~= "sum" and o.mode ~= "mean" and o.mode ~= "max" then
    caller.raise("embedding_bag: mode is '%s', wanted 'sum', 'mean' or 'max'", tostring(o.mode))
  end
  if o.per_sample_weights and o.mode ~= "sum" then
    caller.raise("embedding_bag: per_sample_weights go with mode 'sum', not '%s'", o.mode)
  end
  if ids:dim() ~= (o.offsets and 1 or 2) then
    caller.raise("embedding_bag: ids are %s, wanted {T} with offsets or {B, L} without",
      tostring(ids.shape))
  end
  local offsets, n = o.offsets, weight:size(1)
  if offsets and (offsets:dim() ~= 1 or #offsets == 0 or offsets[1]:item() ~= 1) then
    caller.raise("embedding_bag: offsets say where each bag begins, the first at 1")
  end
  local pad = o.padding_idx
  if pad and (pad == 0 or math.abs(pad) > n) then
    caller.raise("embedding_bag: padding_idx is %d, the weight has %d rows", pad, n)
  end
end

-- The sums or largest values of rows (B, L, D) over dim 2; or, where bags says in which of n
-- bags each row of (T, D) is, over those of a bag, zeros where it has none.
local function joined(rows, mode, bags, n)
  if not bags then return mode == "max" and rows:amax(2) or rows:sum(2) end
  local zeros = core.zeros(n, rows:size(2), {dtype = rows.dtype, device = rows.device})
  if mode ~= "max" then return zeros:index_add(1, bags, rows) end
  local at = bags:unsqueeze(2):expand(rows.shape)
  return zeros:scatter_reduce(1, at, rows, "amax", {include_self = false})
end

--- Sums, means or largest values of bags of rows of weight (N, D), as (B, D): ids (B, L), a
--- bag a row; or ids (T) with offsets (B), where each bag begins, from 1. opts: mode
--- ("mean"; "sum", "max"), per_sample_weights (of ids' shape; for sums),
--- include_last_offset (the last offset ends the last bag), padding_idx (ids that do not
--- count, and get no gradient), max_norm and norm_type. A bag of no ids is zeros.
function functional.embedding_bag(ids, weight, offsets, opts)
  if not core.is_tensor(offsets) then offsets, opts = nil, opts or offsets end
  local o = options.read("embedding_bag", opts, BAG)
  o.offsets = offsets or o.offsets
  check_bag(ids, weight, o)
  local first, weights, bags, n = o.offsets, o.per_sample_weights, nil, nil
  if first and o.include_last_offset then
    local last = first[-1]:item() - 1
    ids, weights = ids:narrow(1, 1, last), weights and weights:narrow(1, 1, last)
    first = first:narrow(1, 1, #first - 1)
  end
  if first then bags, n = bags_of(first, #ids), #first end
  local rows = functional.embedding(ids, weight, {max_norm = o.max_norm,
    norm_type = o.max_norm and o.norm_type})
  if weights then rows = rows * weights:unsqueeze(-1) end
  local pad = o.padding_idx
  if not pad and o.mode == "mean" and not bags then return rows:mean(2) end
  local shown
  if pad then
    shown = ids:ne(pad > 0 and pad or weight:size(1) + 1 + pad):unsqueeze(-1)
    rows = core.where(shown, rows, o.mode == "max" and -math.huge or 0)
  end
  local out = joined(rows, o.mode, bags, n)
  if o.mode == "sum" or o.mode == "max" and not pad then return out end
  local ones = shown and shown:to(rows.dtype)
    or core.ones(#ids, 1, {dtype = rows.dtype, device = rows.device})
  local counts = joined(ones, "sum", bags, n)
  if o.mode == "mean" then return out / counts:clamp{min = 1} end
  return core.where(counts:gt(0), out, 0)
end

-- ---- what is several ops ----

functional.upsample = core.interpolate

-- Older names of two of its modes: opts: size or scale_factor.
local function upsample(name, mode, align_corners)
  functional[name] = function(x, opts)
    local o = options.read(name, opts, {size = options.NONE, scale_factor = options.NONE})
    return core.interpolate(x, {size = o.size, scale_factor = o.scale_factor, mode = mode,
      align_corners = align_corners})
  end
end
upsample("upsample_nearest", "nearest", false)
upsample("upsample_bilinear", "bilinear", true)

--- x over its norm of order p along dim, no norm counting less than eps. opts: p = 2,
--- dim = 2, eps = 1e-12.
function functional.normalize(x, opts)
  local o = options.read("normalize", opts, {p = 2.0, dim = 2, eps = 1e-12})
  return x / core.norm(x, {p = o.p, dim = o.dim, keepdim = true}):clamp{min = o.eps}
end

--- dm.fractional_max_pool2d, and output_ratio, the output's size by the input's, in place of
--- output_size. opts: output_size or output_ratio (numbers or pairs), return_indices,
--- _random_samples (N, C, 2) in [0, 1), drawn where none are given.
function functional.fractional_max_pool2d(x, kernel_size, opts)
  local o = options.read("fractional_max_pool2d", opts, {output_size = options.NONE,
    output_ratio = options.NONE, return_indices = false, _random_samples = options.NONE})
  if (o.output_size == nil) == (o.output_ratio == nil) then
    caller.raise("fractional_max_pool2d: wanted output_size or output_ratio, one of them")
  end
  local size, ratio = o.output_size, o.output_ratio
  if ratio then
    if type(ratio) ~= "table" then ratio = {ratio, ratio} end
    if not (ratio[1] > 0 and ratio[1] < 1 and ratio[2] > 0 and ratio[2] < 1) then
      caller.raise("fractional_max_pool2d: output_ratio is {%g, %g}, wanted between 0 and 1",
        ratio[1], ratio[2])
    end
    size = {x:size(-2) * ratio[1] // 1 | 0, x:size(-1) * ratio[2] // 1 | 0}
  end
  return core.fractional_max_pool2d(x, o._random_samples, {kernel_size = kernel_size,
    output_size = size, return_indices = o.return_indices})
end

-- The sum of the p-th powers of each window, to the power 1 / p: the mean times the
-- window's size, where PyTorch's too counts a window that ceil_mode cuts as whole.
local function power_pool(name, average, elements)
  functional[name] = function(x, p, kernel_size, opts)
    local o = options.read(name, opts, {stride = options.NONE, ceil_mode = false})
    local mean = average(core.pow(x, p), kernel_size, o)
    return core.pow(core.sign(mean) * core.relu(core.abs(mean)) * elements(kernel_size), 1 / p)
  end
end
-- lp_pool1d(x, p, kernel_size, {stride = kernel_size, ceil_mode = false}); lp_pool2d and
-- lp_pool3d alike, of numbers or pairs and triples.
power_pool("lp_pool1d", core.avg_pool1d, function(k) return k end)
power_pool("lp_pool2d", core.avg_pool2d, function(k)
  return type(k) == "table" and k[1] * (k[2] or k[1]) or k * k
end)
power_pool("lp_pool3d", core.avg_pool3d, function(k)
  return type(k) == "table" and k[1] * k[2] * k[3] or k ^ 3
end)

--- leaky_relu with a slope of each element's own, uniform in [lower, upper], while training,
--- with their mean else; B. Xu et al. 2015. opts: lower = 1/8, upper = 1/3, training = false.
function functional.rrelu(x, opts)
  local o = options.read("rrelu", opts, {lower = 1 / 8, upper = 1 / 3, training = false})
  if o.lower > o.upper then
    caller.raise("rrelu: lower is %g, upper %g, wanted lower <= upper", o.lower, o.upper)
  end
  if not o.training then
    return core.leaky_relu(x, {negative_slope = (o.lower + o.upper) / 2})
  end
  local slope = core.rand_like(x:detach()) * (o.upper - o.lower) + o.lower
  return core.where(x:gt(0), x, x * slope)
end

--- triplet_margin_loss with a distance of one's own. opts: distance_function =
--- pairwise_distance, margin = 1, swap = false, reduction = "mean".
function functional.triplet_margin_with_distance_loss(anchor, positive, negative, opts)
  local o = options.read("triplet_margin_with_distance_loss", opts,
    {distance_function = core.pairwise_distance, margin = 1.0, swap = false,
    reduction = "mean"})
  local near, far = o.distance_function(anchor, positive), o.distance_function(anchor, negative)
  if o.swap then far = core.minimum(far, o.distance_function(positive, negative)) end
  local losses = core.relu(near - far + o.margin)
  if o.reduction == "none" then return losses end
  if o.reduction ~= "mean" and o.reduction ~= "sum" then
    caller.raise("triplet_margin_with_distance_loss: reduction is '%s', wanted 'none', 'mean' or "
      .. "'sum'", tostring(o.reduction))
  end
  return losses[o.reduction](losses)
end

return functional
