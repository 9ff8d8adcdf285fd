-- Losses.
local op = ...

op.kernel "cross_entropy" {
  tensors = "x, target, weight?",
  options = {
    "ignore_index:num=-100", "reduction:enum(none|mean|sum)=mean", "label_smoothing:num=0",
  },
  saves = "I0 I1 I2",
  autocast = "fp32",
  flags = "reads_low",
  doc = "-log softmax(x) at each target: x is (N, classes, ...), target (N, ...) holds positions "
    .. "of classes, or in x's shape probabilities; the mean is weighted by the classes of the "
    .. "targets, and those equal to ignore_index do not count",
}

op.composed "cross_entropy_soft" {
  tensors = "x, target, weight?",
  options = {
    "ignore_index:num=-100", "reduction:enum(none|mean|sum)=mean", "label_smoothing:num=0",
  },
  autocast = "fp32",
  flags = "hidden",
  attr = "dm_CrossEntropyAttr",
  doc = "cross_entropy of targets that are probabilities",
}

op.kernel "soft_labels" {
  tensors = "x, target",
  outputs = 3,
  saves = "I0 I1 O1 O2",
  cuda = false,
  flags = "hidden aside",
  doc = "the same of each row, with the classes as the last dim",
}

op.kernel "soft_labels_backward" {
  tensors = "gy, x, target, largest, log_sum",
  gradient = false,
  cuda = false,
  flags = "hidden",
  doc = "gradient of soft_labels in x",
}

op.kernel "cross_entropy_backward" {
  tensors = "gy, x, target, weight?",
  options = {
    "ignore_index:num=-100", "reduction:enum(none|mean|sum)=mean", "label_smoothing:num=0",
  },
  gradient = false,
  flags = "hidden",
  attr = "dm_CrossEntropyAttr",
  doc = "gradient of cross_entropy in x",
}

op.kernel "cross_entropy_overwrite" {
  tensors = "x, gy, target, weight?",
  options = {
    "ignore_index:num=-100", "reduction:enum(none|mean|sum)=mean", "label_smoothing:num=0",
  },
  gradient = false,
  flags = "hidden only_inplace pointwise",
  attr = "dm_CrossEntropyAttr",
  doc = "the same, written over x",
}

op.kernel "nll_loss" {
  tensors = "x, target, weight?",
  options = {"ignore_index:num=-100", "reduction:enum(none|mean|sum)=mean"},
  saves = "I1 I2",
  autocast = "fp32",
  doc = "-x at each target: x is (N, classes, ...), log-probabilities, target (N, ...) holds "
    .. "positions of classes; the mean is weighted by the classes of the targets, and those equal "
    .. "to ignore_index do not count",
}

op.kernel "nll_loss_backward" {
  tensors = "gy, target, weight?",
  options = {"ignore_index:num=-100", "reduction:enum(none|mean|sum)=mean", "shape:sizes"},
  saves = "I1 I2",
  flags = "hidden",
  doc = "gradient of nll_loss in x",
}

op.composed "mse_loss" {
  tensors = "x, target",
  options = {"reduction:enum(none|mean|sum)=mean"},
  autocast = "fp32",
  attr = "dm_ReductionAttr",
  doc = "(x - target)^2",
}

op.composed "l1_loss" {
  tensors = "x, target",
  options = {"reduction:enum(none|mean|sum)=mean"},
  autocast = "fp32",
  attr = "dm_ReductionAttr",
  doc = "|x - target|",
}

op.kernel "loss_term" {
  tensors = "x, target, other?",
  options = {"formula:int", "p:num", "q:num"},
  saves = "I0 I1 I2",
  flags = "hidden pointwise layout",
  doc = "the loss of each element by a formula of base/triple.inc, before its reduction",
}

op.kernel "loss_backward" {
  tensors = "gy, x, target",
  options = {"formula:int", "p:num", "q:num"},
  gradient = false,
  flags = "hidden pointwise layout",
  attr = "dm_LossTermAttr",
  doc = "gradient of loss_term in x by a formula of base/triple.inc",
}

op.kernel "reduce_formula" {
  tensors = "x, target, other?",
  options = {
    "formula:int", "p:num", "q:num", "reduction:enum(none|mean|sum|batchmean|norm)=mean",
    "last:bool=0",
  },
  saves = "I0 I1 I2 O0",
  cuda = false,
  flags = "hidden",
  doc = "loss_term reduced to its mean, sum or 2-norm, over the last dim or all, without a tensor "
    .. "of its elements",
}

op.composed "smooth_l1_loss" {
  tensors = "x, target",
  options = {"reduction:enum(none|mean|sum)=mean", "beta:num=1"},
  autocast = "fp32",
  doc = "d^2 / (2 beta) where d = |x - target| < beta, else d - beta / 2",
}

op.composed "huber_loss" {
  tensors = "x, target",
  options = {"reduction:enum(none|mean|sum)=mean", "delta:num=1"},
  autocast = "fp32",
  doc = "d^2 / 2 where d = |x - target| < delta, else delta (d - delta / 2)",
}

op.composed "binary_cross_entropy" {
  tensors = "x, target, weight?",
  options = {"reduction:enum(none|mean|sum)=mean"},
  autocast = {cpu = "fp32", cuda = "banned"},
  attr = "dm_ReductionAttr",
  doc = "-(target log x + (1 - target) log(1 - x)), x being probabilities",
}

op.composed "binary_cross_entropy_with_logits" {
  tensors = "x, target, weight?, pos_weight?",
  options = {"reduction:enum(none|mean|sum)=mean"},
  compose = "bce_with_logits_compose",
  autocast = "fp32",
  attr = "dm_ReductionAttr",
  doc = "binary_cross_entropy of sigmoid(x), without overflow",
}

op.composed "soft_margin_loss" {
  tensors = "x, target",
  options = {"reduction:enum(none|mean|sum)=mean"},
  autocast = "fp32",
  attr = "dm_ReductionAttr",
  doc = "log(1 + exp(-target x)), targets being 1 or -1",
}

op.composed "multilabel_soft_margin_loss" {
  tensors = "x, target, weight?",
  options = {"reduction:enum(none|mean|sum)=mean"},
  attr = "dm_ReductionAttr",
  autocast = {cuda = "fp32"},
  doc = "mean over the classes (the last dim) of binary_cross_entropy_with_logits",
}

op.composed "kl_div" {
  tensors = "x, target",
  options = {"reduction:enum(none|mean|sum|batchmean)=mean", "log_target:bool=0"},
  autocast = "fp32",
  doc = "target * (log target - x), x being log-probabilities, and target too with log_target; "
    .. "batchmean: the sum by the size of dim 1",
}

op.composed "poisson_nll_loss" {
  tensors = "x, target",
  options = {
    "log_input:bool=1", "full:bool=0", "eps:num=1e-8", "reduction:enum(none|mean|sum)=mean",
  },
  autocast = "fp32",
  doc = "exp(x) - target * x, or x - target * log(x + eps) when not log_input; full: with "
    .. "log(target!) by Stirling's formula",
}

op.composed "gaussian_nll_loss" {
  tensors = "x, target, var#",
  options = {"full:bool=0", "eps:num=1e-6", "reduction:enum(none|mean|sum)=mean"},
  doc = "(log var + (x - target)^2 / var) / 2, var not below eps; full: with log(2 pi) / 2",
}

op.composed "hinge_embedding_loss" {
  tensors = "x, target",
  options = {"margin:num=1", "reduction:enum(none|mean|sum)=mean"},
  autocast = "fp32",
  attr = "dm_MarginAttr",
  doc = "x where target is 1, max(0, margin - x) where it is -1",
}

op.composed "margin_ranking_loss" {
  tensors = "input1, input2, target",
  options = {"margin:num=0", "reduction:enum(none|mean|sum)=mean"},
  autocast = "fp32",
  attr = "dm_MarginAttr",
  doc = "max(0, margin - target * (input1 - input2)), targets being 1 or -1",
}

op.composed "cosine_embedding_loss" {
  tensors = "input1, input2, target",
  options = {"margin:num=0", "reduction:enum(none|mean|sum)=mean"},
  autocast = "fp32",
  attr = "dm_MarginAttr",
  doc = "1 - cos(input1, input2) where target is 1, max(0, cos(input1, input2) - margin) where it "
    .. "is -1",
}

op.composed "triplet_margin_loss" {
  tensors = "anchor, positive, negative",
  options = {
    "margin:num=1", "p:num=2", "eps:num=1e-6", "swap:bool=0", "reduction:enum(none|mean|sum)=mean",
  },
  autocast = "fp32",
  doc = "max(0, margin + d(anchor, positive) - d(anchor, negative)), d being pairwise_distance; "
    .. "swap: or d(positive, negative) where that is smaller; Balntas et al. 2016",
}

op.composed "multi_margin_loss" {
  tensors = "x, target, weight?",
  options = {"p:num=1", "margin:num=1", "reduction:enum(none|mean|sum)=mean"},
  autocast = "fp32",
  flags = "widen",
  doc = "mean over classes of max(0, margin - x[target] + x)^p, of the others",
}

op.composed "multilabel_margin_loss" {
  tensors = "x, target",
  options = {"reduction:enum(none|mean|sum)=mean"},
  autocast = "fp32",
  attr = "dm_ReductionAttr",
  flags = "widen",
  doc = "mean over classes of max(0, 1 - x[label] + x), of the others, summed over a row's "
    .. "labels, which -1 ends",
}

op.composed "ctc_loss" {
  tensors = "log_probs, targets, input_lengths, target_lengths",
  options = {"blank:pos=0", "reduction:enum(none|mean|sum)=mean", "zero_infinity:bool=0"},
  autocast = {cpu = "fp32"},
  flags = "no_double widen",
  doc = "-log of the probability of the labels, however they lie in time: log_probs (T,N,C), "
    .. "targets (N,S) or one after another; the mean is by each one's labels; Graves et al. 2006",
}

op.kernel "ctc" {
  tensors = "log_probs, targets, input_lengths, target_lengths",
  options = {"blank:pos"},
  outputs = 2,
  saves = "I0 I1 I2 I3 O1",
  flags = "hidden aside no_double",
  doc = "each sequence's ctc_loss",
}

op.kernel "ctc_backward" {
  tensors = "gy, log_probs, targets, input_lengths, target_lengths, alpha",
  options = {"blank:pos"},
  gradient = false,
  flags = "hidden",
  attr = "dm_CtcAttr",
  doc = "ctc's gradient in log_probs",
}
