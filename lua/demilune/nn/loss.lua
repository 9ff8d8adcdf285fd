-- Losses and distances: modules over one op each.

local follow = require "demilune.nn.follow"
local functional = require "demilune.nn.functional"
local caller = require "demilune.caller"
local options = require "demilune.options"
local Linear = require("demilune.nn.linear").Linear
local Module = require "demilune.nn.module"

local layers = {}

-- A module that calls op with its `operands` tensors (2 when not given) and its options, or none
-- where none was given: the op has the same defaults, and reads a call faster. `text` names
-- them. They are fields of the module, and tensors (weights of classes) buffers, as PyTorch's.
local function criterion(name, op, text, operands)
  local bind, defaults = options.signature(name, text, op)
  local Class = Module:extend(name)
  local hold, current = follow(text)
  local count, loss, usual = operands or 2, functional[op], nil
  function Class:init(...)
    local opts = bind(...)
    for _, key in ipairs{"weight", "pos_weight"} do
      if text:find("%f[%w_]" .. key .. "%f[^%w_]") then self:register_buffer(key, opts[key]) end
    end
    if not (opts.weight or opts.pos_weight) and options.shown(opts, defaults()) == "" then
      usual = usual or opts
      opts = usual
    end
    hold(self, opts)
  end
  function Class:forward(a, b, c, d)
    local opts = current(self)
    if opts == usual then opts = nil end
    if count == 2 then return loss(a, b, opts) end
    if count == 3 then return loss(a, b, c, opts) end
    return loss(a, b, c, d, opts)
  end
  function Class:extra_repr() return options.shown(current(self), defaults()) end
  layers[name] = Class
end

criterion("CrossEntropyLoss", "cross_entropy",
  "weight, *, ignore_index, reduction, label_smoothing")
criterion("NLLLoss", "nll_loss", "weight, *, ignore_index, reduction")
criterion("MSELoss", "mse_loss", "*, reduction")
criterion("L1Loss", "l1_loss", "*, reduction")
criterion("SmoothL1Loss", "smooth_l1_loss", "*, reduction, beta")
criterion("HuberLoss", "huber_loss", "reduction, delta")
criterion("BCELoss", "binary_cross_entropy", "weight, *, reduction")
criterion("BCEWithLogitsLoss", "binary_cross_entropy_with_logits",
  "weight, *, reduction, pos_weight")
criterion("KLDivLoss", "kl_div", "*, reduction, log_target")
criterion("PoissonNLLLoss", "poisson_nll_loss", "log_input, full, *, eps, reduction")
criterion("GaussianNLLLoss", "gaussian_nll_loss", "*, full, eps, reduction", 3)
criterion("SoftMarginLoss", "soft_margin_loss", "*, reduction")
criterion("MultiLabelSoftMarginLoss", "multilabel_soft_margin_loss", "weight, *, reduction")
criterion("MultiLabelMarginLoss", "multilabel_margin_loss", "*, reduction")
criterion("MultiMarginLoss", "multi_margin_loss", "p, margin, weight, *, reduction")
criterion("HingeEmbeddingLoss", "hinge_embedding_loss", "margin, *, reduction")
criterion("MarginRankingLoss", "margin_ranking_loss", "margin, *, reduction", 3)
criterion("CosineEmbeddingLoss", "cosine_embedding_loss", "margin, *, reduction", 3)
criterion("TripletMarginLoss", "triplet_margin_loss", "margin, p, eps, swap, *, reduction", 3)
criterion("CTCLoss", "ctc_loss", "blank, reduction, zero_infinity", 4)
criterion("CosineSimilarity", "cosine_similarity", "dim, eps")
criterion("PairwiseDistance", "pairwise_distance", "p, eps, keepdim")
criterion("TripletMarginWithDistanceLoss", "triplet_margin_with_distance_loss",
  "*, distance_function?: function, margin: number = 1.0, swap: boolean = false, "
    .. "reduction: 'none'|'mean'|'sum' = 'mean'", 3)

--- LinearCrossEntropyLoss(in_features, num_classes, {out_features = {}, bias = false, reduction =,
--- weight =, ignore_index =, label_smoothing =}): cross_entropy of a linear layer of its own. x is
--- (in) or (N, in), the target () or (N, d1, ...) where out_features is {d1, ...}.
local LinearCrossEntropyLoss = Module:extend "LinearCrossEntropyLoss"
local bind_linear = options.signature("LinearCrossEntropyLoss", [[in_features: integer,
  num_classes: integer, *, out_features?: list, bias: boolean = false, device?: device,
  dtype?: dtype, reduction: 'none'|'mean'|'sum' = 'mean', weight?: tensor, ignore_index?: integer,
  label_smoothing: number = 0.0]])
function LinearCrossEntropyLoss:init(...)
  local o = bind_linear(...)
  local rows, w = o.num_classes, o.weight
  if w and (w:dim() ~= 1 or #w ~= rows) then
    caller.raise("LinearCrossEntropyLoss: weight has shape %s, wanted one for each class, {%d}",
      tostring(w.shape), rows)
  end
  if not (o.label_smoothing >= 0 and o.label_smoothing <= 1) then
    caller.raise("LinearCrossEntropyLoss: label_smoothing is %g, wanted 0 to 1", o.label_smoothing)
  end
  for _, size in ipairs(o.out_features or {}) do rows = rows * size end
  self.linear = Linear(o.in_features, rows, {bias = o.bias, device = o.device, dtype = o.dtype})
  self:register_buffer("weight", o.weight)
  self.sizes = {o.num_classes, table.unpack(o.out_features or {})}
  self.opts = {reduction = o.reduction, ignore_index = o.ignore_index,
    label_smoothing = o.label_smoothing}
end
function LinearCrossEntropyLoss:forward(x, target)
  local linear, sizes, opts = self.linear, {table.unpack(self.sizes)}, {weight = self.weight}
  for key, value in pairs(self.opts) do opts[key] = value end
  opts.linear_bias = linear.bias and linear.bias:reshape(sizes)
  sizes[#sizes + 1] = linear.in_features
  return functional.linear_cross_entropy(x, linear.weight:reshape(sizes), target, opts)
end
layers.LinearCrossEntropyLoss = LinearCrossEntropyLoss

return layers
