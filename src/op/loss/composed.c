/* Losses composed of other ops. Each computes a tensor of losses and then returns
   it, its mean or its sum; the op's first attribute, `reduction`, says which.
   Formulas and reductions are PyTorch's. In the comments x is the input, t the
   target. */
#include <math.h>

#include "base/error.h"
#include "op/loss/loss.h"
#include "op/pointwise/pointwise.h"
#include "op/sort/order.h"

/* Reduces the losses by `how` into output 0; loss is NULL after a step that failed. */
static dm_status reduced_as(int64_t how, dm_Call *c, dm_X *x, dm_Tensor *loss) {
  if (how != DM_LOSS_NONE && x->st == DM_OK)
    loss = dm_x(x, how == DM_LOSS_MEAN ? DM_OP_mean : DM_OP_sum, NULL, 1, loss);
  c->out[0] = loss;
  return x->st;
}

/* The same by the op's first attribute. */
static dm_status reduced(dm_Call *c, dm_X *x, dm_Tensor *loss) {
  return reduced_as(DM_ATTR(dm_ReductionAttr, c)->reduction, c, x, loss);
}

static dm_Tensor *from_one(dm_X *x, dm_Tensor *t) { /* 1 - t */
  return x_shift(x, x_scale(x, t, -1), 1);
}

static dm_Tensor *distance(dm_X *x, dm_Call *c) { /* |x - target| */
  return x_unary(x, DM_OP_abs, x_sub(x, c->in[0], c->in[1]));
}

/* t where the targets differ from `label`, else 0. */
static dm_Tensor *unless(dm_X *x, dm_Tensor *target, double label, dm_Tensor *t) {
  return x_where(x, x_test(x, DM_OP_ne, target, label), t, dm_x_number(x, 0));
}

/* ---- differences ---- */

/* gy d / unit, where d = x - t is held between -bound and bound; and its negative. */
void huber_term_grad(dm_Grad *g) {
  const dm_HuberTermAttr *a = DM_ATTR(dm_HuberTermAttr, g);
  dm_X *x = g->x;
  dm_Tensor *gx;
  if (g->create_graph) {
    const dm_ClampAttr bounds = {{1, -a->bound}, {1, a->bound}};
    dm_Tensor *d = x_sub(x, dm_x_widen(x, g->in[0]), dm_x_widen(x, g->in[1]));
    d = dm_x(x, DM_OP_clamp, &bounds, 1, d);
    gx = x_mul(x, g->gy[0], x_div(x, d, dm_x_number(x, a->unit)));
  } else {
    gx = dm_x(x, DM_OP_huber_backward, a, 3, g->gy[0], g->in[0], g->in[1]);
  }
  if (g->need[0]) g->gx[0] = gx;
  if (g->need[1]) g->gx[1] = x_scale(x, gx, -1);
}

/* The Huber loss of each element of the operands, over `unit`, reduced as the first attribute
   says. In 16 bits the elements are float32, and the result is rounded once. Shapes that do not
   broadcast are refused by the loss's own name. */
static dm_status huber(dm_Call *c, dm_X *x, double bound, double unit) {
  const dm_HuberTermAttr a = {bound, unit};
  const dm_DType to = dm_result_dtype(2, c->in);
  int64_t shape[DM_MAX_DIM];
  int ndim;
  DM_TRY(dm_broadcast(c->op->name, c->in[0], c->in[1], &ndim, shape));
  DM_TRY(reduced(c, x, dm_x(x, DM_OP_huber_term, &a, 2, c->in[0], c->in[1])));
  if (dm_is_low(to)) c->out[0] = x_cast(x, c->out[0], to);
  return x->st;
}

/* (x - t)^2, whose integers stay integers. */
dm_status mse_loss_compose(dm_Call *c, dm_X *x) {
  const bool floats = dm_is_float(dm_result_dtype(2, c->in));
  if (floats) return huber(c, x, (double)INFINITY, 0.5);
  return reduced(c, x, x_unary(x, DM_OP_square, x_sub(x, c->in[0], c->in[1])));
}

dm_status l1_loss_compose(dm_Call *c, dm_X *x) { return reduced(c, x, distance(x, c)); }

/* With d = |x - t|: d^2 / (2 beta) for d < beta, else d - beta / 2; beta 0 is the l1
   loss. */
dm_status smooth_l1_loss_compose(dm_Call *c, dm_X *x) {
  const dm_SmoothL1LossAttr *a = DM_ATTR(dm_SmoothL1LossAttr, c);
  if (a->beta < 0)
    return dm_fail(DM_EARG, "smooth_l1_loss: beta is %g, wanted 0 or more", a->beta);
  return a->beta > 0 ? huber(c, x, a->beta, a->beta) : reduced(c, x, distance(x, c));
}

/* With d = |x - t|: d^2 / 2 for d < delta, else delta (d - delta / 2). */
dm_status huber_loss_compose(dm_Call *c, dm_X *x) {
  const dm_HuberLossAttr *a = DM_ATTR(dm_HuberLossAttr, c);
  if (!(a->delta > 0))
    return dm_fail(DM_EARG, "huber_loss: delta is %g, wanted more than 0", a->delta);
  return huber(c, x, a->delta, 1);
}

/* ---- probabilities ---- */

/* gy (p - t) / (p (1 - p)), the divisor at least 1e-12 as in PyTorch, so that a probability of
   0 or 1 has a finite gradient; and gy (log(1 - p) - log p). */
void log_loss_grad(dm_Grad *g) {
  dm_X *x = g->x;
  dm_Tensor *gy = g->gy[0], *p = g->in[0], *t = g->in[1];
  if (g->need[0]) {
    dm_Tensor *by = x_floor(x, x_mul(x, p, from_one(x, p)), 1e-12);
    g->gx[0] = x_div(x, x_mul(x, gy, x_sub(x, p, t)), by);
  }
  if (g->need[1]) {
    dm_Tensor *log_q = x_unary(x, DM_OP_log1p, x_scale(x, p, -1));
    g->gx[1] = x_mul(x, gy, x_sub(x, log_q, x_unary(x, DM_OP_log, p)));
  }
}

/* -(t log p + (1 - t) log(1 - p)) * weight. The logarithms are clamped at -100, as in PyTorch,
   so that a certain but wrong prediction has a finite loss. */
dm_status binary_cross_entropy_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *loss = dm_x(x, DM_OP_log_loss, NULL, 2, c->in[0], c->in[1]);
  if (c->in[2]) loss = x_mul(x, loss, c->in[2]);
  return reduced(c, x, loss);
}

/* gy (sigmoid(x) - t), where infinity times it is no difference of infinities; and -gy x. */
void logits_loss_grad(dm_Grad *g) {
  dm_X *x = g->x;
  dm_Tensor *gy = g->gy[0], *z = g->in[0];
  if (g->need[0]) g->gx[0] = x_mul(x, gy, x_sub(x, x_unary(x, DM_OP_sigmoid, z), g->in[1]));
  if (g->need[1]) g->gx[1] = x_scale(x, x_mul(x, gy, z), -1);
}

/* (1 - t) x + (1 + (w - 1) t) softplus(-x), with w the weight of positive targets:
   binary cross entropy of sigmoid(x). softplus(-x) = -logsigmoid(x) never overflows. */
dm_status bce_with_logits_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *z = c->in[0], *t = c->in[1], *weight = c->in[2], *pos = c->in[3], *loss;
  if (!pos) {
    loss = dm_x(x, DM_OP_logits_loss, NULL, 2, z, t);
  } else {
    dm_Tensor *by = x_shift(x, x_mul(x, x_shift(x, pos, -1), t), 1);
    dm_Tensor *soft = x_mul(x, x_unary(x, DM_OP_logsigmoid, z), by);
    loss = x_sub(x, x_mul(x, from_one(x, t), z), soft);
  }
  if (weight) loss = x_mul(x, loss, weight);
  return reduced(c, x, loss);
}

/* x, t (N, C): binary cross entropy of each class from its logit; a row's loss is
   the mean over its C classes. */
dm_status multilabel_soft_margin_loss_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *z = c->in[0], *t = c->in[1];
  dm_Tensor *yes = x_unary(x, DM_OP_logsigmoid, z);
  dm_Tensor *no = x_unary(x, DM_OP_logsigmoid, x_scale(x, z, -1));
  dm_Tensor *loss = x_add(x, x_mul(x, t, yes), x_mul(x, from_one(x, t), no));
  if (c->in[2]) loss = x_mul(x, loss, c->in[2]);
  const dm_SumAttr last = {{1, {-1}}, false, DM_NO_DTYPE};
  return reduced(c, x, x_scale(x, dm_x(x, DM_OP_mean, &last, 1, loss), -1));
}

/* log(1 + exp(-t x)) for labels t of 1 and -1, as -logsigmoid(t x). */
dm_status soft_margin_loss_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *agreed = x_mul(x, c->in[0], c->in[1]);
  return reduced(c, x, x_scale(x, x_unary(x, DM_OP_logsigmoid, agreed), -1));
}

/* t (log t - x), with x the log-probabilities of the model; t may be given as
   log-probabilities. batchmean divides the sum by the batch size. */
dm_status kl_div_compose(dm_Call *c, dm_X *x) {
  const dm_KlDivAttr *a = DM_ATTR(dm_KlDivAttr, c);
  dm_Tensor *log_q = c->in[0], *t = c->in[1], *loss;
  if (a->log_target) loss = x_mul(x, x_unary(x, DM_OP_exp, t), x_sub(x, t, log_q));
  else loss = x_sub(x, dm_x(x, DM_OP_xlogy, NULL, 2, t, t), x_mul(x, t, log_q));
  if (a->reduction != DM_LOSS_BATCHMEAN) return reduced(c, x, loss);
  dm_Tensor *sum = x_sum(x, loss, (dm_Ints){-1, {0}}, false);
  c->out[0] = x_scale(x, sum, log_q->ndim ? 1 / (double)log_q->shape[0] : 1);
  return x->st;
}

/* exp(x) - t x for log_input, else x - t log(x + eps). full adds log(t!) by
   Stirling's formula, t log t - t + log(2 pi t) / 2, for targets above 1. */
dm_status poisson_nll_loss_compose(dm_Call *c, dm_X *x) {
  const dm_PoissonNllLossAttr *a = DM_ATTR(dm_PoissonNllLossAttr, c);
  dm_Tensor *z = c->in[0], *t = c->in[1], *loss;
  if (a->log_input) loss = x_sub(x, x_unary(x, DM_OP_exp, z), x_mul(x, t, z));
  else loss = x_sub(x, z, x_mul(x, t, x_unary(x, DM_OP_log, x_shift(x, z, a->eps))));
  if (a->full) {
    dm_Tensor *root = x_unary(x, DM_OP_log, x_scale(x, t, 6.28318530717958647693)); /* 2 pi */
    dm_Tensor *rest = x_sub(x, x_mul(x, t, x_unary(x, DM_OP_log, t)), t);
    dm_Tensor *stirling = x_add(x, rest, x_scale(x, root, 0.5));
    dm_Tensor *few = x_test(x, DM_OP_le, t, 1);
    loss = x_add(x, loss, x_where(x, few, dm_x_number(x, 0), stirling));
  }
  return reduced_as(a->reduction, c, x, loss);
}

/* Brings *var to a shape that broadcasts over x: x's, with one dim of size 1 in place of its
   own, or without the last dim; or a number. */
static dm_status shape_variance(dm_X *x, const dm_Tensor *z, dm_Tensor **var) {
  const dm_Tensor *v = *var;
  int other = 0; /* dims in which they differ */
  bool ones = true;
  for (int d = 0; d < v->ndim && d < z->ndim; d++) {
    other += v->shape[d] != z->shape[d];
    ones &= v->shape[d] == z->shape[d] || v->shape[d] == 1;
  }
  if (v->ndim == 0 || (v->ndim == z->ndim && other <= 1 && ones)) return DM_OK;
  if (v->ndim == z->ndim - 1 && other == 0) {
    const int64_t last = -1;
    *var = dm_x(x, DM_OP_unsqueeze, &last, 1, *var);
    return x->st;
  }
  return dm_fail(
      DM_EARG,
      "gaussian_nll_loss: x has shape %s, var %s, wanted the same, one dim of size 1, "
      "or no last dim",
      DM_SHAPE(z), DM_SHAPE(v));
}

/* True when an element of a CPU tensor is negative. On other devices the check is
   skipped, because it would wait. */
static bool has_negative(dm_X *x, dm_Tensor *t) {
  if (t->device.type != DM_CPU) return false;
  dm_Tensor *any = x_unary(x, DM_OP_any, x_test(x, DM_OP_lt, t, 0));
  return any && *(const uint8_t *)dm_tensor_data(any);
}

/* (log v + (x - t)^2 / v) / 2 with v = max(var, eps); the clamp is a constant for
   the gradient, as in PyTorch. */
dm_status gaussian_nll_loss_compose(dm_Call *c, dm_X *x) {
  const dm_GaussianNllLossAttr *a = DM_ATTR(dm_GaussianNllLossAttr, c);
  dm_Tensor *z = c->in[0], *var = c->in[2];
  if (!(a->eps > 0))
    return dm_fail(DM_EARG, "gaussian_nll_loss: eps is %g, wanted more than 0", a->eps);
  DM_TRY(shape_variance(x, z, &var));
  if (has_negative(x, var))
    return dm_fail(DM_EARG, "gaussian_nll_loss: var has elements below 0; hint: var:exp()");
  var = x_add(x, var, x_constant_sub(x, x_floor(x, var, a->eps), var));
  dm_Tensor *square = x_unary(x, DM_OP_square, x_sub(x, z, c->in[1]));
  dm_Tensor *sum = x_add(x, x_unary(x, DM_OP_log, var), x_div(x, square, var));
  dm_Tensor *loss = x_scale(x, sum, 0.5);
  if (a->full) loss = x_shift(x, loss, 0.91893853320467274178); /* log(2 pi) / 2 */
  return reduced_as(a->reduction, c, x, loss);
}

/* cross_entropy with class probabilities as targets, in x's shape (N, C, ...): -sum
   over classes of weight * t * log_softmax(x), with label smoothing t (1 - s) + s /
   C. mean divides by the batch and the other dims, as in PyTorch. */
dm_status cross_entropy_soft_compose(dm_Call *c, dm_X *x) {
  const dm_CrossEntropyAttr *a = DM_ATTR(dm_CrossEntropyAttr, c);
  dm_Tensor *z = c->in[0], *t = c->in[1], *weight = c->in[2];
  if (!dm_same_shape(z, t) || z->ndim < 1)
    return dm_fail(DM_EARG,
                   "cross_entropy: x has shape %s, the target is %s of shape %s, wanted labels "
                   "as int64, or probabilities in x's shape; hint: y:long()",
                   DM_SHAPE(z), dm_dtype_name((dm_DType)t->dtype), DM_SHAPE(t));
  if (a->ignore_index != -100)
    return dm_fail(DM_EARG, "cross_entropy: ignore_index is for labels, the target has "
                            "probabilities");
  if (!(a->label_smoothing >= 0 && a->label_smoothing <= 1))
    return dm_fail(DM_EARG, "cross_entropy: label_smoothing is %g, wanted 0 to 1",
                   a->label_smoothing);
  const int dim = z->ndim == 1 ? 0 : 1;
  const int64_t classes = z->shape[dim], along[2] = {dim, DM_NO_DTYPE};
  if (a->label_smoothing > 0)
    t = x_shift(x, x_scale(x, t, 1 - a->label_smoothing), a->label_smoothing / (double)classes);
  dm_Tensor *loss = x_mul(x, t, dm_x(x, DM_OP_log_softmax, along, 1, z));
  if (weight) {
    if (weight->ndim != 1 || weight->shape[0] != classes)
      return dm_fail(DM_EARG,
                     "cross_entropy: weight has shape %s, wanted one for each of %lld classes",
                     DM_SHAPE(weight), (long long)classes);
    int64_t shape[DM_MAX_DIM];
    for (int d = 0; d < z->ndim; d++) shape[d] = d == dim ? classes : 1;
    loss = x_mul(x, loss, x_reshape(x, weight, z->ndim, shape));
  }
  loss = x_scale(x, x_sum(x, loss, (dm_Ints){1, {dim}}, false), -1);
  return reduced_as(a->reduction, c, x, loss);
}

/* ---- losses with a margin ---- */

/* x for labels 1, max(0, margin - x) for labels -1. */
dm_status hinge_embedding_loss_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *z = c->in[0], *t = c->in[1];
  const double margin = DM_ATTR(dm_MarginAttr, c)->margin;
  dm_Tensor *near = x_floor(x, x_shift(x, x_scale(x, z, -1), margin), 0);
  return reduced_as(DM_ATTR(dm_MarginAttr, c)->reduction, c, x,
                    x_add(x, unless(x, t, -1, z), unless(x, t, 1, near)));
}

/* max(0, -t (x1 - x2) + margin) */
dm_status margin_ranking_loss_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *lead = x_mul(x, c->in[2], x_sub(x, c->in[1], c->in[0]));
  return reduced_as(DM_ATTR(dm_MarginAttr, c)->reduction, c, x,
                    x_floor(x, x_shift(x, lead, DM_ATTR(dm_MarginAttr, c)->margin), 0));
}

/* 1 - cos(x1, x2) for label 1, max(0, cos - margin) for label -1. As in PyTorch
   1e-12 is added to the squared lengths, so that no vector is too short to divide
   by. */
dm_status cosine_embedding_loss_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *u = c->in[0], *v = c->in[1], *t = c->in[2];
  if (!dm_same_shape(u, v) || u->ndim < 1 || u->ndim > 2 || t->ndim != u->ndim - 1)
    return dm_fail(DM_EARG,
                   "cosine_embedding_loss: x1 has shape %s, x2 %s, the target %s, wanted "
                   "{N, D}, {N, D}, {N}, or {D}, {D}, {}",
                   DM_SHAPE(u), DM_SHAPE(v), DM_SHAPE(t));
  const dm_Ints last = {1, {-1}};
  dm_Tensor *uu = x_shift(x, x_sum(x, x_mul(x, u, u), last, false), 1e-12);
  dm_Tensor *vv = x_shift(x, x_sum(x, x_mul(x, v, v), last, false), 1e-12);
  dm_Tensor *lengths = x_unary(x, DM_OP_sqrt, x_mul(x, uu, vv));
  dm_Tensor *cos = x_div(x, x_sum(x, x_mul(x, u, v), last, false), lengths);
  dm_Tensor *near = x_floor(x, x_shift(x, cos, -DM_ATTR(dm_MarginAttr, c)->margin), 0);
  dm_Tensor *zero = dm_x_number(x, 0);
  dm_Tensor *unlike = x_where(x, x_test(x, DM_OP_eq, t, -1), near, zero);
  dm_Tensor *like = x_where(x, x_test(x, DM_OP_eq, t, 1), from_one(x, cos), zero);
  return reduced_as(DM_ATTR(dm_MarginAttr, c)->reduction, c, x, x_add(x, like, unlike));
}

/* max(0, d(anchor, pos) - d(anchor, neg) + margin); swap takes the smaller of
   d(anchor, neg) and d(pos, neg). */
dm_status triplet_margin_loss_compose(dm_Call *c, dm_X *x) {
  const dm_TripletMarginLossAttr *a = DM_ATTR(dm_TripletMarginLossAttr, c);
  const dm_PairwiseDistanceAttr how = {a->p, a->eps, false};
  dm_Tensor *anchor = c->in[0], *pos = c->in[1], *neg = c->in[2];
  if (!(a->margin > 0))
    return dm_fail(DM_EARG, "triplet_margin_loss: margin is %g, wanted above 0", a->margin);
  dm_Tensor *near = dm_x(x, DM_OP_pairwise_distance, &how, 2, anchor, pos);
  dm_Tensor *far = dm_x(x, DM_OP_pairwise_distance, &how, 2, anchor, neg);
  if (a->swap) {
    dm_Tensor *other = dm_x(x, DM_OP_pairwise_distance, &how, 2, pos, neg);
    far = dm_x(x, DM_OP_minimum, NULL, 2, far, other);
  }
  return reduced_as(a->reduction, c, x,
                    x_floor(x, x_shift(x, x_sub(x, near, far), a->margin), 0));
}

/* A single sample (C), or () of one class, as a batch of one. */
static dm_Tensor *as_batch(dm_X *x, dm_Tensor *t) {
  return x_reshape(x, t, 2, (int64_t[]){1, t->numel});
}

/* Sums loss (N, C) over the classes, divides by their number and reduces the rows; a
   sample that came without a batch gives a scalar. */
static dm_status of_rows(int64_t how, dm_Call *c, dm_X *x, dm_Tensor *loss, double classes,
                         bool alone) {
  dm_Tensor *rows = x_scale(x, x_sum(x, loss, (dm_Ints){1, {1}}, false), 1 / classes);
  return reduced_as(how, c, x, alone ? x_reshape(x, rows, 0, NULL) : rows);
}

/* sum over classes i != y of max(0, margin - x[y] + x[i])^p * weight[y], divided by
   C. */
dm_status multi_margin_loss_compose(dm_Call *c, dm_X *x) {
  const dm_MultiMarginLossAttr *a = DM_ATTR(dm_MultiMarginLossAttr, c);
  dm_Tensor *z = c->in[0], *t = c->in[1], *weight = c->in[2];
  const bool single = z->ndim < 2;
  if (z->ndim > 2 || t->ndim > 1 || t->numel != (single ? 1 : z->shape[0]))
    return dm_fail(DM_EARG,
                   "multi_margin_loss: x has shape %s, the target %s, wanted {N, classes} and "
                   "{N}, or {classes} and {}",
                   DM_SHAPE(z), DM_SHAPE(t));
  if (a->p != 1 && a->p != 2)
    return dm_fail(DM_EARG, "multi_margin_loss: p is %g, wanted 1 or 2", a->p);
  if (single) z = as_batch(x, z);
  t = x_reshape(x, t, 1, &t->numel);
  DM_TRY(x->st);
  const int64_t one = 1, zero = 0, classes = z->shape[1];
  dm_Tensor *at = dm_x(x, DM_OP_unsqueeze, &one, 1, t);
  dm_Tensor *own = dm_x(x, DM_OP_gather, &one, 2, z, at);
  dm_Tensor *loss = x_floor(x, x_shift(x, x_sub(x, z, own), a->margin), 0);
  if (a->p == 2) loss = x_unary(x, DM_OP_square, loss);
  if (weight) {
    dm_Tensor *each = dm_x(x, DM_OP_index_select, &zero, 2, weight, t);
    loss = x_mul(x, loss, dm_x(x, DM_OP_unsqueeze, &one, 1, each));
  }
  loss = dm_x(x, DM_OP_scatter, &one, 3, loss, at, dm_x_number(x, 0));
  return of_rows(a->reduction, c, x, loss, (double)classes, c->in[1]->ndim == 0);
}

/* sum over a row's labels j, which end at its first negative one, and over the
   classes i that are no labels of max(0, 1 - x[j] + x[i]), divided by C. The labels that count
   for a class are those whose x[j] is less than 1 + x[i], the first ones in ascending order:
   with n of them it is n (1 + x[i]) less their sum, and memory grows with C, not with C
   squared. */
dm_status multilabel_margin_loss_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *z = c->in[0], *t = c->in[1];
  const bool alone = z->ndim < 2;
  if (!dm_same_shape(z, t) || z->ndim > 2)
    return dm_fail(DM_EARG,
                   "multilabel_margin_loss: x has shape %s, the target %s, wanted {N, classes} "
                   "for both, labels first and then -1",
                   DM_SHAPE(z), DM_SHAPE(t));
  if (alone) {
    z = as_batch(x, z);
    t = as_batch(x, t);
    DM_TRY(x->st);
  }
  const int64_t one = 1, running[2] = {1, DM_NO_DTYPE};
  const dm_SearchsortedAttr left = {.right = false};
  dm_Tensor *ended = dm_x(x, DM_OP_cumsum, running, 1, x_test(x, DM_OP_lt, t, 0));
  dm_Tensor *valid = x_test(x, DM_OP_eq, ended, 0), *none = x_whole(x, c->base);
  dm_Tensor *at = x_where(x, valid, t, none), *sorted[2] = {NULL, NULL};
  dm_Tensor *own = dm_x(x, DM_OP_gather, &one, 2, z, at);
  dm_Tensor *taken =
      dm_x(x, DM_OP_scatter_add, &one, 3, x_zeros_like(x, z), at, x_like(x, valid, z));
  dm_Tensor *free_ = x_like(x, x_test(x, DM_OP_eq, taken, 0), z);
  own = x_where(x, valid, own, dm_x_number(x, (double)INFINITY));
  DM_TRY(x->st);
  if (!x_sort(x, own, 1, sorted)) return x->st;
  dm_Tensor *edge = x_shift(x, z, 1);
  dm_Tensor *next = dm_x(x, DM_OP_searchsorted, &left, 3, sorted[0], edge, NULL);
  dm_Tensor *n = x_like(x, x_add(x, next, x_whole(x, -c->base)), z);
  dm_Tensor *some = x_test(x, DM_OP_gt, n, 0);
  dm_Tensor *last = x_where(x, some, x_add(x, next, x_whole(x, -1)), none);
  dm_Tensor *sum =
      dm_x(x, DM_OP_gather, &one, 2, dm_x(x, DM_OP_cumsum, running, 1, sorted[0]), last);
  dm_Tensor *loss = x_where(x, some, x_sub(x, x_mul(x, n, edge), sum), dm_x_number(x, 0));
  DM_TRY(x->st);
  return of_rows(DM_ATTR(dm_ReductionAttr, c)->reduction, c, x, x_mul(x, loss, free_),
                 (double)z->shape[1], alone);
}
