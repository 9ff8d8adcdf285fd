/* Losses composed of other ops. Each computes a tensor of losses and then returns
   it, its mean or its sum; the op's first attribute, `reduction`, says which.
   Formulas and reductions are PyTorch's. In the comments x is the input, t the
   target. */
#include <math.h>

#include "base/error.h"
#include "base/triple.h"
#include "op/linear/row_products.h"
#include "op/loss/loss.h"
#include "op/pointwise/pointwise.h"
#include "op/sort/order.h"

/* Float32 losses of 16-bit operands are rounded once, as output 0; loss is NULL after a step
   that failed. */
static dm_status rounded(dm_Call *c, dm_X *x, dm_Tensor *loss) {
  const dm_DType to = dm_result_dtype(c->n_in, c->in);
  if (x->st == DM_OK && dm_is_low(to)) loss = x_cast(x, loss, to);
  c->out[0] = loss;
  return x->st;
}

/* The loss of each element of x and t by a formula of base/triple.inc, reduced by `how` over
   the last dim or all. Shapes that do not broadcast are refused by the op's own name. */
static dm_Tensor *by_formula(int64_t how, bool last, dm_Call *c, dm_X *x, int formula, double p,
                             double q) {
  const dm_LossTermAttr f = {formula, p, q};
  int64_t shape[DM_MAX_DIM];
  int ndim;
  if (x->st == DM_OK) x->st = dm_broadcast(c->op->name, c->in[0], c->in[1], &ndim, shape);
  return x->st == DM_OK ? x_formula(x, &f, how, last, 2, c->in) : NULL;
}
static dm_Tensor *term(dm_Call *c, dm_X *x, int formula) {
  return by_formula(DM_LOSS_NONE, false, c, x, formula, 0, 0);
}
/* The same as output 0. */
static dm_status whole(int64_t how, dm_Call *c, dm_X *x, int formula, double p, double q) {
  return rounded(c, x, by_formula(how, false, c, x, formula, p, q));
}

/* Reduces the losses by `how` into output 0. */
static dm_status reduced_as(int64_t how, dm_Call *c, dm_X *x, dm_Tensor *loss) {
  if (how != DM_LOSS_NONE && x->st == DM_OK)
    loss = dm_x(x, how == DM_LOSS_MEAN ? DM_OP_mean : DM_OP_sum, NULL, 1, loss);
  return rounded(c, x, loss);
}

/* The same by the op's first attribute. */
static int64_t reduction_of(const dm_Call *c) {
  return DM_ATTR(dm_ReductionAttr, c)->reduction;
}
static dm_status reduced(dm_Call *c, dm_X *x, dm_Tensor *loss) {
  return reduced_as(reduction_of(c), c, x, loss);
}

static dm_Tensor *from_one(dm_X *x, dm_Tensor *t) { /* 1 - t */
  return x_shift(x, x_scale(x, t, -1), 1);
}

/* ---- differences ---- */

/* (x - t)^2 / 2 of each element for |x - t| < bound, a line beyond, over `unit`, reduced.
   Without a bound and with a unit of 1 / 2 it is the squared error. */
static dm_status huber(dm_Call *c, dm_X *x, double bound, double unit) {
  const int formula = isinf(bound) ? DM_TRIPLE_square_difference : DM_TRIPLE_huber;
  return whole(reduction_of(c), c, x, formula, bound, unit);
}

/* (x - t)^2, whose integers stay integers. */
dm_status mse_loss_compose(dm_Call *c, dm_X *x) {
  const bool floats = dm_is_float(dm_result_dtype(2, c->in));
  if (floats) return huber(c, x, (double)INFINITY, 0.5);
  return reduced(c, x, x_unary(x, DM_OP_square, x_sub(x, c->in[0], c->in[1])));
}

/* |x - t|, likewise. */
dm_status l1_loss_compose(dm_Call *c, dm_X *x) {
  if (dm_is_float(dm_result_dtype(2, c->in)))
    return whole(reduction_of(c), c, x, DM_TRIPLE_absolute_difference, 0, 0);
  return reduced(c, x, x_unary(x, DM_OP_abs, x_sub(x, c->in[0], c->in[1])));
}

/* With d = |x - t|: d^2 / (2 beta) for d < beta, else d - beta / 2; beta 0 is the l1
   loss. */
dm_status smooth_l1_loss_compose(dm_Call *c, dm_X *x) {
  const dm_SmoothL1LossAttr *a = DM_ATTR(dm_SmoothL1LossAttr, c);
  if (a->beta < 0)
    return dm_fail(DM_EARG, "smooth_l1_loss: beta is %g, wanted 0 or more", a->beta);
  return a->beta > 0 ? huber(c, x, a->beta, a->beta) : l1_loss_compose(c, x);
}

/* With d = |x - t|: d^2 / 2 for d < delta, else delta (d - delta / 2). */
dm_status huber_loss_compose(dm_Call *c, dm_X *x) {
  const dm_HuberLossAttr *a = DM_ATTR(dm_HuberLossAttr, c);
  if (!(a->delta > 0))
    return dm_fail(DM_EARG, "huber_loss: delta is %g, wanted more than 0", a->delta);
  return huber(c, x, a->delta, 1);
}

/* ---- probabilities ---- */

/* -(t log p + (1 - t) log(1 - p)) * weight. The logarithms are clamped at -100, as in PyTorch,
   so that a certain but wrong prediction has a finite loss. */
dm_status binary_cross_entropy_compose(dm_Call *c, dm_X *x) {
  if (!c->in[2]) return whole(reduction_of(c), c, x, DM_TRIPLE_log_loss, 0, 0);
  return reduced(c, x, x_mul(x, term(c, x, DM_TRIPLE_log_loss), c->in[2]));
}

/* (1 - t) x + (1 + (w - 1) t) softplus(-x), with w the weight of positive targets:
   binary cross entropy of sigmoid(x). softplus(-x) = -logsigmoid(x) never overflows. */
dm_status bce_with_logits_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *weight = c->in[2], *pos = dm_x_widen(x, c->in[3]), *loss;
  if (!pos && !weight) return whole(reduction_of(c), c, x, DM_TRIPLE_logits_loss, 0, 0);
  if (!pos) {
    loss = term(c, x, DM_TRIPLE_logits_loss);
  } else {
    dm_Tensor *z = dm_x_widen(x, c->in[0]), *t = dm_x_widen(x, c->in[1]);
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
  const dm_SumAttr last = {{1, {-1}}, false, DM_NO_DTYPE};
  if (!c->in[2])
    return reduced(c, x, by_formula(DM_LOSS_MEAN, true, c, x, DM_TRIPLE_logits_loss, 0, 0));
  dm_Tensor *loss = x_mul(x, term(c, x, DM_TRIPLE_logits_loss), c->in[2]);
  return reduced(c, x, dm_x(x, DM_OP_mean, &last, 1, loss));
}

/* log(1 + exp(-t x)) for labels t of 1 and -1. */
dm_status soft_margin_loss_compose(dm_Call *c, dm_X *x) {
  return whole(reduction_of(c), c, x, DM_TRIPLE_soft_margin, 0, 0);
}

/* t (log t - x), with x the log-probabilities of the model; t may be given as
   log-probabilities. batchmean divides the sum by the batch size. */
dm_status kl_div_compose(dm_Call *c, dm_X *x) {
  const dm_KlDivAttr *a = DM_ATTR(dm_KlDivAttr, c);
  const int formula = a->log_target ? DM_TRIPLE_kl_div_of_logs : DM_TRIPLE_kl_div;
  if (a->reduction != DM_LOSS_BATCHMEAN) return whole(a->reduction, c, x, formula, 0, 0);
  const double size = c->in[0]->ndim ? (double)c->in[0]->shape[0] : 1;
  dm_Tensor *sum = by_formula(DM_LOSS_SUM, false, c, x, formula, 0, 0);
  return rounded(c, x, x_scale(x, sum, 1 / size));
}

/* exp(x) - t x for log_input, else x - t log(x + eps). full adds log(t!) by
   Stirling's formula, t log t - t + log(2 pi t) / 2, for targets above 1. */
dm_status poisson_nll_loss_compose(dm_Call *c, dm_X *x) {
  const dm_PoissonNllLossAttr *a = DM_ATTR(dm_PoissonNllLossAttr, c);
  const int formula = a->log_input ? DM_TRIPLE_poisson_of_log : DM_TRIPLE_poisson;
  if (!a->full) return whole(a->reduction, c, x, formula, a->eps, 0);
  /* the gradient of a wide target is the sum of two, rounded once */
  dm_Tensor *t = dm_x_widen(x, c->in[1]), *const in[2] = {c->in[0], t};
  const dm_LossTermAttr f = {formula, a->eps, 0};
  dm_Tensor *root = x_unary(x, DM_OP_log, x_scale(x, t, 6.28318530717958647693)); /* 2 pi */
  dm_Tensor *rest = x_sub(x, x_mul(x, t, x_unary(x, DM_OP_log, t)), t);
  dm_Tensor *stirling = x_add(x, rest, x_scale(x, root, 0.5));
  dm_Tensor *few = x_test(x, DM_OP_le, t, 1);
  stirling = x_where(x, few, dm_x_number(x, 0), stirling);
  return reduced_as(a->reduction, c, x,
                    x_add(x, x_formula(x, &f, DM_LOSS_NONE, false, 2, in), stirling));
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
  const dm_LossTermAttr f = {DM_TRIPLE_gaussian, a->eps, 0};
  dm_Tensor *const in[3] = {z, c->in[1], var};
  if (!a->full) return rounded(c, x, x_formula(x, &f, a->reduction, false, 3, in));
  dm_Tensor *loss = x_formula(x, &f, DM_LOSS_NONE, false, 3, in);
  loss = x_shift(x, loss, 0.91893853320467274178); /* log(2 pi) / 2 */
  return reduced_as(a->reduction, c, x, loss);
}

/* ---- losses with a margin ---- */

/* x for labels 1, max(0, margin - x) for labels -1, in x's dtype. */
dm_status hinge_embedding_loss_compose(dm_Call *c, dm_X *x) {
  const dm_MarginAttr *a = DM_ATTR(dm_MarginAttr, c);
  const dm_DType to = (dm_DType)c->in[0]->dtype;
  dm_Tensor *t = dm_is_float(to) ? x_cast(x, c->in[1], to) : c->in[1];
  dm_Tensor *const in[2] = {c->in[0], t};
  c->in = in;
  return whole(a->reduction, c, x, DM_TRIPLE_hinge, a->margin, 0);
}

/* max(0, -t (x1 - x2) + margin) */
dm_status margin_ranking_loss_compose(dm_Call *c, dm_X *x) {
  const dm_MarginAttr *a = DM_ATTR(dm_MarginAttr, c);
  const dm_LossTermAttr f = {DM_TRIPLE_ranking, a->margin, 0};
  return rounded(c, x, x_formula(x, &f, a->reduction, false, 3, c->in));
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
  dm_Tensor *product[3]; /* u v, u u and v v */
  if (!x_row_products(x, u, v, product)) return x->st;
  dm_Tensor *uu = x_shift(x, product[1], 1e-12), *vv = x_shift(x, product[2], 1e-12);
  dm_Tensor *cos = x_div(x, product[0], x_unary(x, DM_OP_sqrt, x_mul(x, uu, vv)));
  dm_Tensor *near = x_floor(x, x_shift(x, cos, -DM_ATTR(dm_MarginAttr, c)->margin), 0);
  dm_Tensor *zero = dm_x_number(x, 0);
  dm_Tensor *unlike = x_where(x, x_test(x, DM_OP_eq, t, -1), near, zero);
  dm_Tensor *like = x_where(x, x_test(x, DM_OP_eq, t, 1), from_one(x, cos), zero);
  return reduced_as(DM_ATTR(dm_MarginAttr, c)->reduction, c, x, x_add(x, like, unlike));
}

/* t, widened if it wants a gradient, so that the sum of two is rounded once. */
static dm_Tensor *used_twice(dm_X *x, dm_Tensor *t) {
  const bool wants = dm_thread_state()->grad && t->flags & DM_T_REQUIRES_GRAD;
  return wants ? dm_x_widen(x, t) : t;
}

/* max(0, d(anchor, pos) - d(anchor, neg) + margin); swap takes the smaller of
   d(anchor, neg) and d(pos, neg). */
dm_status triplet_margin_loss_compose(dm_Call *c, dm_X *x) {
  const dm_TripletMarginLossAttr *a = DM_ATTR(dm_TripletMarginLossAttr, c);
  dm_Tensor *anchor = c->in[0], *pos = c->in[1], *neg = c->in[2];
  if (!(a->margin > 0))
    return dm_fail(DM_EARG, "triplet_margin_loss: margin is %g, wanted above 0", a->margin);
  anchor = used_twice(x, anchor);
  if (a->swap) {
    pos = used_twice(x, pos);
    neg = used_twice(x, neg);
  }
  dm_Tensor *near = x_distance(x, anchor, pos, a->p, a->eps, false);
  dm_Tensor *far = x_distance(x, anchor, neg, a->p, a->eps, false);
  if (a->swap) {
    dm_Tensor *other = x_distance(x, pos, neg, a->p, a->eps, false);
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
