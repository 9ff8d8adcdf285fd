-- Losses as modules, and what they refuse.

local dm = require "demilune"
require "spec.helper"
local nn, F = dm.nn, dm.nn.functional

local function refuses(pattern, fn, ...)
  local ok, message = pcall(fn, ...)
  assert.is_false(ok)
  assert.matches("^spec/loss_spec", message)
  assert.matches(pattern, message)
end

local function int(v) return dm.tensor(v, {dtype = "int64"}) end

-- What the module gives is what the function gives.
local function agrees(module, name, ...)
  local args = table.pack(...)
  args[args.n + 1] = next(module.opts or {}) and module.opts
  assert.is_true(module(...):equal(F[name](table.unpack(args))))
end

describe("losses as modules", function()
  local a, b, c = dm.rand(4, 3), dm.rand(4, 3), dm.rand(4, 3)
  local signs, labels = dm.tensor{1.0, -1.0, 1.0, -1.0}, int{2, 1, 3, 2}

  it("agree with the functions", function()
    local w = dm.tensor{1.0, 2.0, 3.0}
    agrees(nn.KLDivLoss{reduction = "batchmean"}, "kl_div", a:log(), b)
    agrees(nn.PoissonNLLLoss{full = true}, "poisson_nll_loss", a, b)
    agrees(nn.GaussianNLLLoss{eps = 0.5}, "gaussian_nll_loss", a, b, c)
    agrees(nn.SoftMarginLoss(), "soft_margin_loss", a[{{}, 1}], signs)
    agrees(nn.MultiLabelSoftMarginLoss{weight = w}, "multilabel_soft_margin_loss", a, b)
    agrees(nn.MultiMarginLoss{p = 2, weight = w}, "multi_margin_loss", a, labels)
    agrees(nn.MultiLabelMarginLoss(), "multilabel_margin_loss", a[1], int{2, -1, 1})
    agrees(nn.HingeEmbeddingLoss{margin = 2}, "hinge_embedding_loss", a[{{}, 1}], signs)
    agrees(nn.MarginRankingLoss{margin = 1}, "margin_ranking_loss", a[{{}, 1}], b[{{}, 1}], signs)
    agrees(nn.CosineEmbeddingLoss{margin = 0.5}, "cosine_embedding_loss", a, b, signs)
    agrees(nn.TripletMarginLoss{swap = true}, "triplet_margin_loss", a, b, c)
    agrees(nn.CosineSimilarity(), "cosine_similarity", a, b)
    agrees(nn.PairwiseDistance{keepdim = true}, "pairwise_distance", a, b)
    agrees(nn.CrossEntropyLoss{label_smoothing = 0.1}, "cross_entropy", a, b)
    assert.matches("margin = 2, p = 1", tostring(nn.TripletMarginLoss{p = 1, margin = 2}))
    refuses("unknown option 'margn'; did you mean 'margin'", nn.TripletMarginLoss, {margn = 1})
  end)

  it("keep tensor options as buffers, which move with the module", function()
    local m = nn.MultiMarginLoss{weight = dm.tensor{1.0, 2.0, 3.0}}
    assert.equal(1, #m:buffers())
    assert.equal("float64", m:double()(a:double(), labels).dtype)
  end)

  it("refuse shapes and numbers that do not fit", function()
    refuses("probabilities in x's shape; hint: y:long", F.cross_entropy, a, signs)
    refuses("ignore_index is for labels", F.cross_entropy, a, b, {ignore_index = 2})
    refuses("gaussian_nll_loss: var has elements below 0", F.gaussian_nll_loss, a, b, -c)
    refuses("gaussian_nll_loss: x has shape {4, 3}, var {2}", F.gaussian_nll_loss, a, b, dm.ones(2))
    refuses("multi_margin_loss: p is 3", F.multi_margin_loss, a, labels, {p = 3})
    refuses("multi_margin_loss: x has shape {4, 3}, the target {2}", F.multi_margin_loss, a,
      int{1, 2})
    refuses("multilabel_margin_loss: x has shape", F.multilabel_margin_loss, a, labels)
    refuses("cosine_embedding_loss: x1 has shape", F.cosine_embedding_loss, a, b, dm.tensor(1.0))
  end)
end)
