-- Losses and distances: modules over one op each.

local functional = require "demilune.nn.functional"
local core = require "demilune.core"
local options = require "demilune.options"
local Module = require "demilune.nn.module"

local layers = {}

-- A module that calls op with its `operands` tensors (2 when not given) and its options,
-- or none where none was given: the op has the same defaults, and reads a call faster.
-- Tensor options (weights of classes) are buffers, as PyTorch's.
local function criterion(name, op, defaults, operands)
  local Class = Module:extend(name)
  local count, loss = operands or 2, functional[op]
  function Class:init(opts)
    self.opts = options.read(name, opts, defaults)
    self.shown = options.shown(opts or {})
    for key, value in pairs(self.opts) do
      if core.is_tensor(value) then self:register_buffer(key, value) end
    end
    if self.shown == "" and next(self._buffers) == nil then self.opts = false end
  end
  function Class:forward(a, b, c, d)
    local opts = self.opts or nil
    if count == 2 then return loss(a, b, opts) end
    if count == 3 then return loss(a, b, c, opts) end
    return loss(a, b, c, d, opts)
  end
  function Class:extra_repr() return self.shown end
  layers[name] = Class
end

local NONE = options.NONE

-- The same with a reduction.
local function loss(name, op, defaults, operands)
  defaults.reduction = "mean"
  criterion(name, op, defaults, operands)
end

loss("CrossEntropyLoss", "cross_entropy",
  {weight = NONE, ignore_index = NONE, label_smoothing = 0.0})
loss("NLLLoss", "nll_loss", {weight = NONE, ignore_index = NONE})
loss("MSELoss", "mse_loss", {})
loss("L1Loss", "l1_loss", {})
loss("SmoothL1Loss", "smooth_l1_loss", {beta = 1.0})
loss("HuberLoss", "huber_loss", {delta = 1.0})
loss("BCELoss", "binary_cross_entropy", {weight = NONE})
loss("BCEWithLogitsLoss", "binary_cross_entropy_with_logits", {weight = NONE, pos_weight = NONE})
loss("KLDivLoss", "kl_div", {log_target = false})
loss("PoissonNLLLoss", "poisson_nll_loss", {log_input = true, full = false, eps = 1e-8})
loss("GaussianNLLLoss", "gaussian_nll_loss", {full = false, eps = 1e-6}, 3)
loss("SoftMarginLoss", "soft_margin_loss", {})
loss("MultiLabelSoftMarginLoss", "multilabel_soft_margin_loss", {weight = NONE})
loss("MultiLabelMarginLoss", "multilabel_margin_loss", {})
loss("MultiMarginLoss", "multi_margin_loss", {weight = NONE, p = 1, margin = 1.0})
loss("HingeEmbeddingLoss", "hinge_embedding_loss", {margin = 1.0})
loss("MarginRankingLoss", "margin_ranking_loss", {margin = 0.0}, 3)
loss("CosineEmbeddingLoss", "cosine_embedding_loss", {margin = 0.0}, 3)
loss("TripletMarginLoss", "triplet_margin_loss",
  {margin = 1.0, p = 2.0, eps = 1e-6, swap = false}, 3)
loss("TripletMarginWithDistanceLoss", "triplet_margin_with_distance_loss",
  {distance_function = core.pairwise_distance, margin = 1.0, swap = false}, 3)
loss("CTCLoss", "ctc_loss", {blank = 1, zero_infinity = false}, 4)

criterion("CosineSimilarity", "cosine_similarity", {dim = 2, eps = 1e-8})
criterion("PairwiseDistance", "pairwise_distance", {p = 2.0, eps = 1e-6, keepdim = false})

return layers
