-- nn.functional: every op, and what is several ops.

local core = require "demilune.core"
local caller = require "demilune.caller"
local late = require "demilune.late"
local options = require "demilune.options"

-- Every op of the core, but none of the names with an underscore, which are the library's own.
local functional = late.computed({}, function(self, name)
  if type(name) ~= "string" or name:sub(1, 1) == "_" then return nil end
  local value = core[name]
  rawset(self, name, value)
  return value
end, function()
  local set = {}
  for _, row in ipairs(late.require("demilune.ops").rows) do set[row.name] = row.as_function end
  for _, row in ipairs(core.ops()) do set[row.name] = not row.hidden or nil end
  return set
end)

-- A number, or a table of them, as an int64 tensor on x's device; a tensor as it is.
local function lengths(v, x)
  if type(v) ~= "table" and type(v) ~= "number" then return v end
  return core.tensor(v, {dtype = "int64", device = x.device})
end

--- dm.ctc_loss, which takes tensors; here the two lengths may be tables of numbers, and
--- of a sequence without a batch numbers. opts: blank = 1, reduction = "mean",
--- zero_infinity = false.
local bind_ctc = options.signature("ctc_loss", [[log_probs, targets,
  input_lengths: tensor|integer|list, target_lengths: tensor|integer|list, blank, reduction,
  zero_infinity]], "ctc_loss")

function functional.ctc_loss(...)
  local o = bind_ctc(...)
  return core.ctc_loss(o.log_probs, o.targets, lengths(o.input_lengths, o.log_probs),
    lengths(o.target_lengths, o.log_probs), o.blank, o.reduction, o.zero_infinity)
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

-- y, whose gradient is divided by how often each id comes.
local function by_frequency(y, ids, n)
  if not y.requires_grad then return y end
  local at, how = ids:reshape(-1), {dtype = y.dtype, device = y.device}
  local counts = core.zeros(n, how):index_add_(1, at, core.ones(at:numel(), how))
  local shape = {table.unpack(ids.shape)}
  shape[#shape + 1] = 1
  local share = counts:index_select(1, at):reshape(shape)
  y:register_hook(function(g) return g / share end)
  return y:view(y.shape) -- so that the tensor given back has its own gradient
end

local bind_embedding = options.signature("embedding", [[input: tensor, weight: tensor,
  padding_idx?: integer, max_norm?: number, norm_type: number = 2.0,
  scale_grad_by_freq: boolean = false]])

--- embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq):
--- dm.embedding, and max_norm: rows looked up are first shortened, in place, to that norm of
--- order norm_type (2). scale_grad_by_freq: a row's gradient is divided by how often it is
--- looked up.
function functional.embedding(input, weight, padding_idx, ...)
  local opts = type(padding_idx) == "table" and padding_idx
  if weight and select("#", ...) == 0 and not (opts and (opts.max_norm or opts.norm_type
    or opts.scale_grad_by_freq ~= nil)) then
    return core.embedding(input, weight, padding_idx)
  end
  local o = bind_embedding(input, weight, padding_idx, ...)
  if o.max_norm then shorten(o.weight, o.input, o.max_norm, o.norm_type) end
  local y = core.embedding(o.input, o.weight, o.padding_idx)
  return o.scale_grad_by_freq and by_frequency(y, o.input, o.weight:size(1)) or y
end

-- The bag (from 1) of each of n ids, by where the bags begin.
local function bags_of(offsets, n)
  local at = core.arange(1, n, {dtype = "int64", device = offsets.device})
  return core.bucketize(at, offsets, {right = true}) - 1
end

local bind_bag = options.signature("embedding_bag", [[input: tensor, weight: tensor,
  offsets?: tensor, max_norm?: number, norm_type: number = 2.0,
  scale_grad_by_freq: boolean = false, *, mode: 'sum'|'mean'|'max' = 'mean',
  per_sample_weights?: tensor, include_last_offset: boolean = false, padding_idx?: integer]])

local function check_bag(ids, weight, o)
  if o.per_sample_weights and o.mode ~= "sum" then
    caller.raise("embedding_bag: per_sample_weights go with mode 'sum', not '%s'", o.mode)
  end
  if o.scale_grad_by_freq and o.mode == "max" then
    caller.raise("embedding_bag: scale_grad_by_freq goes with mode 'sum' or 'mean', not 'max'")
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
  if not bags and mode == "max" then return (rows:max(2)) end -- the first of equal ones
  if not bags then return rows:sum(2) end
  local zeros = core.zeros(n, rows:size(2), {dtype = rows.dtype, device = rows.device})
  if mode ~= "max" then return zeros:index_add(1, bags, rows) end
  local at = bags:unsqueeze(2):expand(rows.shape)
  return zeros:scatter_reduce(1, at, rows, "amax", {include_self = false})
end

--- Sums, means or largest values of bags of rows of weight (N, D), as (B, D): ids (B, L), a
--- bag a row; or ids (T) with offsets (B), where each bag begins, from 1. opts: mode
--- ("mean"; "sum", "max"), per_sample_weights (of ids' shape; for sums),
--- include_last_offset (the last offset ends the last bag), padding_idx (ids that do not
--- count, and get no gradient), max_norm, norm_type and scale_grad_by_freq as embedding's. A bag
--- of no ids is zeros.
function functional.embedding_bag(...)
  local o = bind_bag(...)
  local ids, weight = o.input, o.weight
  check_bag(ids, weight, o)
  local first, weights, bags, n = o.offsets, o.per_sample_weights, nil, nil
  if first and o.include_last_offset then
    local last = first[-1]:item() - 1
    ids, weights = ids:narrow(1, 1, last), weights and weights:narrow(1, 1, last)
    first = first:narrow(1, 1, #first - 1)
  end
  if first then bags, n = bags_of(first, #ids), #first end
  local rows = functional.embedding(ids, weight, {max_norm = o.max_norm,
    norm_type = o.max_norm and o.norm_type, scale_grad_by_freq = o.scale_grad_by_freq or nil})
  local narrow = rows.dtype -- 16 bits are joined in float32 and rounded once
  if narrow:find "16$" then rows = rows:float() end
  if weights then rows = rows * weights:unsqueeze(-1) end
  local pad = o.padding_idx
  if not pad and o.mode == "mean" and not bags then return rows:mean(2):to(narrow) end
  local shown
  if pad then
    shown = ids:ne(pad > 0 and pad or weight:size(1) + 1 + pad):unsqueeze(-1)
    rows = core.where(shown, rows, o.mode == "max" and -math.huge or 0)
  end
  local out = joined(rows, o.mode, bags, n)
  if o.mode == "sum" or o.mode == "max" and not pad then return out:to(narrow) end
  local ones = shown and shown:to(rows.dtype)
    or core.ones(#ids, 1, {dtype = rows.dtype, device = rows.device})
  local counts = joined(ones, "sum", bags, n)
  if o.mode == "mean" then return (out / counts:clamp{min = 1}):to(narrow) end
  return core.where(counts:gt(0), out, 0):to(narrow)
end

-- ---- functions of several ops ----

functional.upsample = core.interpolate

-- Older names of two of its modes: opts: size or scale_factor.
local function upsample(name, mode, align_corners)
  local bind = options.signature(name, "input: tensor, size?, scale_factor", "interpolate")
  functional[name] = function(...)
    local o = bind(...)
    return core.interpolate(o.input, {size = o.size, scale_factor = o.scale_factor, mode = mode,
      align_corners = align_corners})
  end
end
upsample("upsample_nearest", "nearest", false)
upsample("upsample_bilinear", "bilinear", true)

--- x over its norm of order p along dim, no norm counting less than eps. opts: p = 2,
--- dim = 2, eps = 1e-12.
local bind_normalize = options.signature("normalize",
  "input: tensor, p: number = 2.0, dim: size = 2, eps: number = 1e-12")

function functional.normalize(...)
  local o = bind_normalize(...)
  local x = o.input
  return x / core.norm(x, {p = o.p, dim = o.dim, keepdim = true}):clamp{min = o.eps}
end

--- dm.fractional_max_pool2d, and output_ratio, the output's size by the input's, in place of
--- output_size. opts: output_size or output_ratio (numbers or pairs), return_indices,
--- _random_samples (N, C, 2) in [0, 1), drawn where none are given.
local bind_fractional = options.signature("fractional_max_pool2d", [[input: tensor, kernel_size,
  output_size?, output_ratio?: number|numbers, return_indices, _random_samples]],
  "fractional_max_pool2d")

function functional.fractional_max_pool2d(...)
  local o = bind_fractional(...)
  local x, kernel_size = o.input, o.kernel_size
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
  local bind = options.signature(name, [[input: tensor, norm_type: number, kernel_size: size,
    stride?: size, ceil_mode: boolean = false]])
  functional[name] = function(...)
    local o = bind(...)
    local p, kernel_size = o.norm_type, o.kernel_size
    local mean = average(core.pow(o.input, p), kernel_size,
      {stride = o.stride, ceil_mode = o.ceil_mode})
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

--- triplet_margin_loss with a distance of one's own. opts: distance_function =
--- pairwise_distance, margin = 1, swap = false, reduction = "mean".
local bind_triplet = options.signature("triplet_margin_with_distance_loss", [[anchor: tensor,
  positive: tensor, negative: tensor, *, distance_function?: function, margin: number = 1.0,
  swap: boolean = false, reduction: 'none'|'mean'|'sum' = 'mean']])

function functional.triplet_margin_with_distance_loss(...)
  local o = bind_triplet(...)
  if o.margin <= 0 then
    caller.raise("triplet_margin_with_distance_loss: margin is %g, wanted above 0", o.margin)
  end
  local distance = o.distance_function or core.pairwise_distance
  local near, far = distance(o.anchor, o.positive), distance(o.anchor, o.negative)
  if o.swap then far = core.minimum(far, distance(o.positive, o.negative)) end
  local losses = core.relu(near - far + o.margin)
  if o.reduction == "none" then return losses end
  return losses[o.reduction](losses)
end

return functional
