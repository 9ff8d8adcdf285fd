/* Gradients of loss_term, the loss of each element by a formula of base/triple.inc. The usual
   one, in the prediction, takes one pass of loss_backward; the others, and those that a second
   derivative is to be made of, are composed of ops. Operands of 16 bits are widened for them.
   In the comments x is the prediction, t the target, p and q the formula's numbers. */
#include "base/triple.h"
#include "op/loss/loss.h"
#include "op/pointwise/pointwise.h"

/* A loss_term whose gradients are asked for: gy, the operands in the losses' dtype, p and q. */
typedef struct Term {
  dm_Tensor *gy, *in[3];
  double p, q;
} Term;
typedef dm_Tensor *Slope(dm_X *x, const Term *t);

static dm_Tensor *negative(dm_X *x, dm_Tensor *t) { return x_scale(x, t, -1); }
static dm_Tensor *from_one(dm_X *x, dm_Tensor *t) { return x_shift(x, negative(x, t), 1); }
static dm_Tensor *difference(dm_X *x, const Term *t) { return x_sub(x, t->in[0], t->in[1]); }

/* ---- Huber losses ---- */

/* gy sign(x - t) */
static dm_Tensor *absolute_x(dm_X *x, const Term *t) {
  return x_mul(x, t->gy, x_unary(x, DM_OP_sign, difference(x, t)));
}
static dm_Tensor *absolute_target(dm_X *x, const Term *t) {
  return negative(x, absolute_x(x, t));
}

/* gy d / q, where d = x - t is held between -p and p. */
static dm_Tensor *huber_x(dm_X *x, const Term *t) {
  const dm_ClampAttr bounds = {{1, -t->p}, {1, t->p}};
  dm_Tensor *d = dm_x(x, DM_OP_clamp, &bounds, 1, difference(x, t));
  return x_mul(x, t->gy, x_div(x, d, dm_x_number(x, t->q)));
}
static dm_Tensor *huber_target(dm_X *x, const Term *t) { return negative(x, huber_x(x, t)); }

/* ---- distances ---- */

/* gy (x - t + p), for the norm of x - t + p, and its negative. */
static dm_Tensor *shifted_x(dm_X *x, const Term *t) {
  return x_mul(x, t->gy, x_shift(x, difference(x, t), t->p));
}
static dm_Tensor *shifted_other(dm_X *x, const Term *t) { return negative(x, shifted_x(x, t)); }

/* ---- binary cross entropy ---- */

/* gy (x - t) / (x (1 - x)), the divisor at least 1e-12 as in PyTorch, so that a probability of
   0 or 1 has a finite gradient; and gy (log(1 - x) - log x). */
static dm_Tensor *log_loss_x(dm_X *x, const Term *t) {
  dm_Tensor *by = x_floor(x, x_mul(x, t->in[0], from_one(x, t->in[0])), 1e-12);
  return x_div(x, x_mul(x, t->gy, difference(x, t)), by);
}
static dm_Tensor *log_loss_target(dm_X *x, const Term *t) {
  dm_Tensor *log_q = x_unary(x, DM_OP_log1p, negative(x, t->in[0]));
  return x_mul(x, t->gy, x_sub(x, log_q, x_unary(x, DM_OP_log, t->in[0])));
}

/* gy (sigmoid(x) - t), where infinity times it is no difference of infinities; and -gy x. */
static dm_Tensor *logits_loss_x(dm_X *x, const Term *t) {
  return x_mul(x, t->gy, x_sub(x, x_unary(x, DM_OP_sigmoid, t->in[0]), t->in[1]));
}
static dm_Tensor *minus_x(dm_X *x, const Term *t) {
  return negative(x, x_mul(x, t->gy, t->in[0]));
}

/* ---- labels of 1 and -1 ---- */

/* -gy t sigmoid(-t x), and the same with x for t. */
static dm_Tensor *soft_margin(dm_X *x, const Term *t, int other) {
  dm_Tensor *against = negative(x, x_mul(x, t->in[0], t->in[1]));
  dm_Tensor *slope = x_mul(x, t->in[other], x_unary(x, DM_OP_sigmoid, against));
  return negative(x, x_mul(x, t->gy, slope));
}
static dm_Tensor *soft_margin_x(dm_X *x, const Term *t) { return soft_margin(x, t, 1); }
static dm_Tensor *soft_margin_target(dm_X *x, const Term *t) { return soft_margin(x, t, 0); }

/* gy unless t is -1, less gy where x < p unless t is 1. */
static dm_Tensor *hinge_x(dm_X *x, const Term *t) {
  dm_Tensor *zero = dm_x_number(x, 0), *gy = t->gy;
  dm_Tensor *like = x_where(x, x_test(x, DM_OP_ne, t->in[1], -1), gy, zero);
  dm_Tensor *near = x_where(x, x_test(x, DM_OP_lt, t->in[0], t->p), gy, zero);
  return x_sub(x, like, x_where(x, x_test(x, DM_OP_ne, t->in[1], 1), near, zero));
}

/* Where the loss t (b - a) + p of x = a, b is above 0: -gy t, gy t and gy (b - a). */
static dm_Tensor *ranked(dm_X *x, const Term *t, dm_Tensor *slope) {
  dm_Tensor *lead = x_mul(x, t->in[2], x_sub(x, t->in[1], t->in[0]));
  dm_Tensor *counts = x_test(x, DM_OP_gt, x_shift(x, lead, t->p), 0);
  return x_where(x, counts, x_mul(x, t->gy, slope), dm_x_number(x, 0));
}
static dm_Tensor *ranking_first(dm_X *x, const Term *t) {
  return negative(x, ranked(x, t, t->in[2]));
}
static dm_Tensor *ranking_second(dm_X *x, const Term *t) { return ranked(x, t, t->in[2]); }
static dm_Tensor *ranking_label(dm_X *x, const Term *t) {
  return negative(x, ranked(x, t, difference(x, t)));
}

/* ---- distributions ---- */

/* -gy t, and gy (log t + 1 - x), or gy (-x) where t is 0, as xlogy has it. */
static dm_Tensor *kl_div_x(dm_X *x, const Term *t) {
  return negative(x, x_mul(x, t->gy, t->in[1]));
}
static dm_Tensor *kl_div_target(dm_X *x, const Term *t) {
  dm_Tensor *log_t = x_shift(x, x_unary(x, DM_OP_log, t->in[1]), 1);
  dm_Tensor *none = x_test(x, DM_OP_eq, t->in[1], 0);
  log_t = x_where(x, none, dm_x_number(x, 1), log_t);
  return x_mul(x, t->gy, x_sub(x, log_t, t->in[0]));
}
/* -gy exp t, and gy exp(t) (t - x + 1). */
static dm_Tensor *kl_div_of_logs_x(dm_X *x, const Term *t) {
  return negative(x, x_mul(x, t->gy, x_unary(x, DM_OP_exp, t->in[1])));
}
static dm_Tensor *kl_div_of_logs_target(dm_X *x, const Term *t) {
  dm_Tensor *above = x_shift(x, x_sub(x, t->in[1], t->in[0]), 1);
  return x_mul(x, t->gy, x_mul(x, x_unary(x, DM_OP_exp, t->in[1]), above));
}

/* gy (1 - t / (x + p)), and -gy log(x + p). */
static dm_Tensor *poisson_x(dm_X *x, const Term *t) {
  dm_Tensor *rate = x_shift(x, t->in[0], t->p);
  return x_mul(x, t->gy, from_one(x, x_div(x, t->in[1], rate)));
}
static dm_Tensor *poisson_target(dm_X *x, const Term *t) {
  dm_Tensor *log_rate = x_unary(x, DM_OP_log, x_shift(x, t->in[0], t->p));
  return negative(x, x_mul(x, t->gy, log_rate));
}
/* gy (exp x - t) */
static dm_Tensor *poisson_of_log_x(dm_X *x, const Term *t) {
  return x_mul(x, t->gy, x_sub(x, x_unary(x, DM_OP_exp, t->in[0]), t->in[1]));
}

/* With v the variance, at least p, which is a constant as in PyTorch: gy (x - t) / v, its
   negative, and gy (1 - (x - t)^2 / v) / (2 v). */
static dm_Tensor *variance(dm_X *x, const Term *t) {
  dm_Tensor *v = t->in[2];
  return x_add(x, v, x_constant_sub(x, x_floor(x, v, t->p), v));
}
static dm_Tensor *gaussian_x(dm_X *x, const Term *t) {
  return x_div(x, x_mul(x, t->gy, difference(x, t)), variance(x, t));
}
static dm_Tensor *gaussian_target(dm_X *x, const Term *t) {
  return negative(x, gaussian_x(x, t));
}
static dm_Tensor *gaussian_variance(dm_X *x, const Term *t) {
  dm_Tensor *v = variance(x, t), *square = x_unary(x, DM_OP_square, difference(x, t));
  dm_Tensor *slope = x_div(x, from_one(x, x_div(x, square, v)), v);
  return x_mul(x, t->gy, x_scale(x, slope, 0.5));
}

/* ---- the table ---- */

/* By formula: that of the gradient in x in one pass, or 0, the kind of formula, and the
   gradients composed. */
enum Kind {
  OF_BOTH,       /* the gradient in x depends on x and the target */
  OF_TARGET,     /* on the target alone */
  OF_DIFFERENCE, /* on x less the target, so that the target's is its negative */
};
typedef struct Gradients {
  int once;
  enum Kind kind;
  Slope *of[3];
} Gradients;
static const Gradients gradients[DM_N_TRIPLE] = {
    [DM_TRIPLE_square_difference] = {DM_TRIPLE_huber_back,
                                     OF_DIFFERENCE,
                                     {huber_x, huber_target}},
    [DM_TRIPLE_absolute_difference] = {DM_TRIPLE_absolute_difference_back,
                                       OF_DIFFERENCE,
                                       {absolute_x, absolute_target}},
    [DM_TRIPLE_huber] = {DM_TRIPLE_huber_back, OF_DIFFERENCE, {huber_x, huber_target}},
    [DM_TRIPLE_log_loss] = {DM_TRIPLE_log_loss_back, OF_BOTH, {log_loss_x, log_loss_target}},
    [DM_TRIPLE_logits_loss] = {DM_TRIPLE_logits_loss_back, OF_BOTH, {logits_loss_x, minus_x}},
    [DM_TRIPLE_soft_margin] = {DM_TRIPLE_soft_margin_back,
                               OF_BOTH,
                               {soft_margin_x, soft_margin_target}},
    [DM_TRIPLE_kl_div] = {DM_TRIPLE_kl_div_back, OF_TARGET, {kl_div_x, kl_div_target}},
    [DM_TRIPLE_kl_div_of_logs] = {DM_TRIPLE_kl_div_of_logs_back,
                                  OF_TARGET,
                                  {kl_div_of_logs_x, kl_div_of_logs_target}},
    [DM_TRIPLE_poisson] = {DM_TRIPLE_poisson_back, OF_BOTH, {poisson_x, poisson_target}},
    [DM_TRIPLE_poisson_of_log] = {DM_TRIPLE_poisson_of_log_back,
                                  OF_BOTH,
                                  {poisson_of_log_x, minus_x}},
    [DM_TRIPLE_hinge] = {DM_TRIPLE_hinge_back, OF_BOTH, {hinge_x}},
    [DM_TRIPLE_shifted_difference] = {DM_TRIPLE_shifted_difference_back,
                                      OF_DIFFERENCE,
                                      {shifted_x, shifted_other}},
    [DM_TRIPLE_gaussian] = {0, OF_BOTH, {gaussian_x, gaussian_target, gaussian_variance}},
    [DM_TRIPLE_ranking] = {0, OF_BOTH, {ranking_first, ranking_second, ranking_label}},
};

/* gy times the formula's derivative in x, without history. */
static dm_Tensor *x_once(dm_Grad *g, const dm_LossTermAttr *a, dm_Tensor *gy) {
  const Gradients *f = &gradients[a->formula];
  const dm_LossTermAttr how = {f->once, a->p, a->q};
  if (f->kind == OF_TARGET) return dm_x(g->x, DM_OP_loss_backward, &how, 2, gy, g->in[1]);
  return dm_x(g->x, DM_OP_loss_backward, &how, 3, gy, g->in[0], g->in[1]);
}

/* The gradients of a Gaussian's mean and variance: one pass for the difference or its square,
   and one for the rest. */
static void gaussian_once(dm_Grad *g, const dm_LossTermAttr *a, dm_Tensor *gy) {
  const dm_LossTermAttr square = {DM_TRIPLE_square_difference, 0, 0},
                        of_x = {DM_TRIPLE_gaussian_back, a->p, 0},
                        of_variance = {DM_TRIPLE_gaussian_variance_back, a->p, 0};
  dm_X *x = g->x;
  dm_Tensor *z = g->in[0], *t = g->in[1], *v = g->in[2];
  if (g->need[0] || g->need[1]) {
    dm_Tensor *d = x_partial(x, DM_TRIPLE_difference_back, 0, gy, z, t);
    dm_Tensor *gx = dm_x(x, DM_OP_loss_backward, &of_x, 2, d, v);
    if (g->need[0]) g->gx[0] = gx;
    if (g->need[1]) g->gx[1] = negative(x, gx);
  }
  if (g->need[2]) {
    dm_Tensor *s = dm_x(x, DM_OP_loss_term, &square, 2, z, t);
    g->gx[2] = dm_x(x, DM_OP_loss_backward, &of_variance, 3, gy, s, v);
  }
}

/* The gradients of the two that are ranked. */
static void ranking_once(dm_Grad *g, const dm_LossTermAttr *a, dm_Tensor *gy) {
  const dm_LossTermAttr how = {DM_TRIPLE_ranking_back, -1, 0};
  dm_Tensor *loss = dm_x(g->x, DM_OP_loss_term, a, 3, g->in[0], g->in[1], g->in[2]);
  dm_Tensor *counts = x_test(g->x, DM_OP_gt, loss, 0);
  dm_Tensor *gx = dm_x(g->x, DM_OP_loss_backward, &how, 3, gy, g->in[2], counts);
  if (g->need[0]) g->gx[0] = gx;
  if (g->need[1]) g->gx[1] = negative(g->x, gx);
}

/* -t in the dtype of `like`, in one pass. */
static dm_Tensor *negative_as(dm_X *x, dm_Tensor *t, const dm_Tensor *like) {
  const dm_LossTermAttr how = {DM_TRIPLE_kl_div_back, 0, 0};
  if (x->st != DM_OK || t->dtype == like->dtype) return negative(x, t);
  dm_Tensor *one = x_cast(x, dm_x_number(x, 1), (dm_DType)like->dtype);
  return dm_x(x, DM_OP_loss_backward, &how, 2, t, one);
}

/* The gradients of g's operands for gy, that of each element. */
static void formula_grad(dm_Grad *g, const dm_LossTermAttr *a, dm_Tensor *gy) {
  const Gradients *f = &gradients[a->formula];
  const bool alone = !g->create_graph, once = alone && f->once;
  if (alone && a->formula == DM_TRIPLE_gaussian) {
    gaussian_once(g, a, gy);
    return;
  }
  if (alone && a->formula == DM_TRIPLE_ranking && !g->need[2]) {
    ranking_once(g, a, gy);
    return;
  }
  const bool two = once && f->kind == OF_DIFFERENCE;
  if ((g->need[0] && once) || two) {
    dm_Tensor *gx = x_once(g, a, gy);
    if (g->need[0]) g->gx[0] = gx;
    if (g->need[1] && two) g->gx[1] = negative_as(g->x, gx, g->in[1]);
  }
  bool compose = false;
  for (int i = once + two; i < g->n_in; i++) compose |= g->need[i];
  Term t = {.gy = gy, .p = a->p, .q = a->q};
  for (int i = 0; i < g->n_in && compose; i++) t.in[i] = dm_x_widen(g->x, g->in[i]);
  for (int i = once + two; i < g->n_in; i++)
    if (g->need[i] && f->of[i]) g->gx[i] = f->of[i](g->x, &t);
}

void loss_term_grad(dm_Grad *g) { formula_grad(g, DM_ATTR(dm_LossTermAttr, g), g->gy[0]); }

/* The norm y of elements v has the gradient gy v / y, and 0 where y is 0; formulas whose norm
   is taken have the gradients of their squares' halves in the table. */
void reduce_formula_grad(dm_Grad *g) {
  const dm_ReduceFormulaAttr *a = DM_ATTR(dm_ReduceFormulaAttr, g);
  const dm_LossTermAttr how = {a->formula, a->p, a->q};
  const dm_Meta *m = dm_in_meta(g, 0);
  const int64_t n = a->last ? m->shape[m->ndim - 1] : dm_numel(m->ndim, m->shape);
  dm_X *x = g->x;
  dm_Tensor *gy = g->gy[0];
  if (a->reduction == DM_LOSS_MEAN) gy = x_scale(x, gy, 1 / (double)n);
  if (a->reduction == DM_LOSS_NORM) {
    dm_Tensor *none = x_test(x, DM_OP_eq, g->out[0], 0);
    dm_Tensor *y = x_where(x, none, dm_x_number(x, 1), g->out[0]);
    gy = x_where(x, none, dm_x_number(x, 0), x_div(x, gy, y));
  }
  if (a->last) gy = x_unsqueeze(x, gy, -1);
  formula_grad(g, &how, x_expand(x, gy, m->ndim, m->shape));
}

/* ---- calls ---- */

/* Can reduce_formula read the operands side by side? */
static bool lie_alike(int n, dm_Tensor *const *in, bool last) {
  const dm_Tensor *z = in[0];
  bool ok = z->numel > 0 && z->ndim >= last;
  for (int i = 1; i < n && ok; i++)
    ok = dm_same_shape(z, in[i]) || (in[i]->numel == 1 && in[i]->ndim <= z->ndim);
  return ok && dm_op_has_kernel(DM_OP_reduce_formula, z->device);
}

/* The operands, those that may be repeated widened: a gradient that is a sum is rounded once.
 */
static bool widen_repeated(dm_X *x, int n, dm_Tensor *const *in, dm_Tensor **wide) {
  const dm_Tensor *most = in[0];
  for (int i = 0; i < n; i++) {
    if (!in[i]) return false;
    if (in[i]->numel > most->numel) most = in[i];
  }
  bool crossed = false; /* as (R, 1) and (1, R) */
  for (int i = 0; i < n; i++)
    crossed |= in[i]->numel == most->numel && !dm_same_shape(in[i], most);
  for (int i = 0; i < n; i++)
    wide[i] = crossed || in[i]->numel < most->numel ? dm_x_widen(x, in[i]) : in[i];
  return x->st == DM_OK;
}

dm_Tensor *x_formula(dm_X *x, const dm_LossTermAttr *f, int64_t reduction, bool last, int n,
                     dm_Tensor *const *operands) {
  const dm_ReduceFormulaAttr whole = {f->formula, f->p, f->q, reduction, last};
  const dm_Ints dims = {last ? 1 : -1, {-1}};
  const dm_SumAttr sum = {dims, false, DM_NO_DTYPE};
  const dm_NormAttr norm = {2, dims, false, DM_NO_DTYPE};
  dm_Tensor *in[3] = {NULL};
  if (x->st != DM_OK || !widen_repeated(x, n, operands, in)) return NULL;
  if (reduction != DM_LOSS_NONE && lie_alike(n, in, last))
    return dm_x(x, DM_OP_reduce_formula, &whole, n, in[0], in[1], in[2]);
  if (reduction == DM_LOSS_NORM) { /* of a shifted difference */
    dm_Tensor *d = x_sub(x, dm_x_widen(x, in[0]), dm_x_widen(x, in[1]));
    return dm_x(x, DM_OP_norm, &norm, 1, f->p != 0 ? x_shift(x, d, f->p) : d);
  }
  dm_Tensor *y = dm_x(x, DM_OP_loss_term, f, n, in[0], in[1], in[2]);
  if (reduction == DM_LOSS_NONE) return y;
  return dm_x(x, reduction == DM_LOSS_MEAN ? DM_OP_mean : DM_OP_sum, &sum, 1, y);
}
