-- Losses and distances: modules over one op each.

local functional = require "demilune.nn.functional"
local core = require "demilune.core"
local options = require "demilune.options"
local Module = require "demilune.nn.module"

local layers = {}

-- A module that calls op with its `operands` tensors (2 when not given) and its options, or none
-- where none was given: the op has the same defaults, and reads a call faster. `more` holds
-- defaults of options for which the op's row has none, or is a function that gives all.
-- Tensor options (weights of classes) are buffers, as PyTorch's.
local function criterion(name, op, more, operands)
  local Class = Module:extend(name)
  local count, loss, defaults = operands or 2, functional[op], more
  if type(more) ~= "function" then defaults = options.of_op(op, more) end
  function Class:init(opts)
    self.opts = options.read(name, opts, defaults())
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

criterion("CrossEntropyLoss", "cross_entropy", {weight = NONE, ignore_index = NONE})
criterion("NLLLoss", "nll_loss", {weight = NONE, ignore_index = NONE})
criterion("MSELoss", "mse_loss")
criterion("L1Loss", "l1_loss")
criterion("SmoothL1Loss", "smooth_l1_loss")
criterion("HuberLoss", "huber_loss")
criterion("BCELoss", "binary_cross_entropy", {weight = NONE})
criterion("BCEWithLogitsLoss", "binary_cross_entropy_with_logits",
  {weight = NONE, pos_weight = NONE})
criterion("KLDivLoss", "kl_div")
criterion("PoissonNLLLoss", "poisson_nll_loss")
criterion("GaussianNLLLoss", "gaussian_nll_loss", {}, 3)
criterion("SoftMarginLoss", "soft_margin_loss")
criterion("MultiLabelSoftMarginLoss", "multilabel_soft_margin_loss", {weight = NONE})
criterion("MultiLabelMarginLoss", "multilabel_margin_loss")
criterion("MultiMarginLoss", "multi_margin_loss", {weight = NONE})
criterion("HingeEmbeddingLoss", "hinge_embedding_loss")
criterion("MarginRankingLoss", "margin_ranking_loss", {}, 3)
criterion("CosineEmbeddingLoss", "cosine_embedding_loss", {}, 3)
criterion("TripletMarginLoss", "triplet_margin_loss", {}, 3)
criterion("CTCLoss", "ctc_loss", {}, 4)
criterion("CosineSimilarity", "cosine_similarity")
criterion("PairwiseDistance", "pairwise_distance")

-- A composition of functional.lua has no row.
criterion("TripletMarginWithDistanceLoss", "triplet_margin_with_distance_loss", function()
  return {distance_function = core.pairwise_distance, margin = 1.0, swap = false,
    reduction = "mean"}
end, 3)

return layers
