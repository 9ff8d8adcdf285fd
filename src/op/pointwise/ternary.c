/* Three operands, broadcast together: choices, mixtures, products added. */
#include "op/pointwise/ternary.h"

#include <math.h>

#include "base/error.h"
#include "cpu/loops/loops.h"
#include "op/pointwise/pointwise.h"

/* In the output's dtype; pq: the formula's numbers. */
static dm_status run(dm_Tensor *out, int n, dm_Tensor *const *in, int triple, double p,
                     double q) {
  const double pq[2] = {p, q};
  return dm_pointwise(out, n, in, (dm_DType)out->dtype, &dm_loops()->triple[triple], pq);
}

/* Output 0: what all inputs broadcast to. */
static dm_status broadcast_all(dm_Call *c, dm_DType dtype) {
  dm_Tensor sum = {.ndim = 0}; /* carries the shape so far, no more */
  dm_Meta *m = &c->out_meta[0];
  for (int i = 0; i < c->n_in; i++) {
    int ndim;
    int64_t shape[DM_MAX_DIM];
    DM_TRY(dm_broadcast(c->op->name, &sum, c->in[i], &ndim, shape));
    sum.ndim = (uint8_t)ndim;
    for (int d = 0; d < ndim; d++) sum.shape[d] = shape[d];
  }
  dm_meta_set(m, &sum);
  m->dtype = (uint8_t)dtype;
  return DM_OK;
}

/* ---- where ---- */

/* cond, x and y broadcast together; uint8 is a condition too, as in older PyTorch. */
dm_status where_rule(dm_Call *c) {
  const dm_DType cond = (dm_DType)c->in[0]->dtype;
  if (cond != DM_BOOL && cond != DM_U8)
    return dm_fail(DM_EARG, "where: the condition is %s, wanted bool; hint: x:ne(0)",
                   dm_dtype_name(cond));
  const dm_DType to = dm_result_dtype(2, c->in + 1);
  for (int i = 1; i < 3; i++) DM_TRY(dm_check_holds_number("where", to, c->in[i]));
  return broadcast_all(c, to);
}

dm_status dm_choose(dm_Tensor *out, dm_Tensor *cond, dm_Tensor *x, dm_Tensor *y) {
  dm_Tensor *const in[3] = {cond, x, y};
  return run(out, 3, in, DM_TRIPLE_choose, 0, 0);
}
dm_status where_cpu(dm_Call *c) { return dm_choose(c->out[0], c->in[0], c->in[1], c->in[2]); }

/* Each side gets gy where it was chosen, and 0 elsewhere, even where gy is infinite. */
void where_grad(dm_Grad *g) {
  dm_Tensor *zero = dm_x_number(g->x, 0);
  if (g->need[1]) g->gx[1] = x_where(g->x, g->in[0], g->gy[0], zero);
  if (g->need[2]) g->gx[2] = x_where(g->x, g->in[0], zero, g->gy[0]);
}

/* ---- clamp ---- */

/* Whether a bound, if there is one, is a whole number. */
static bool fits_int(dm_OptNum v) { return !v.set || trunc(v.v) == v.v; }

/* An integer tensor stays one unless a bound has a fraction; a bool one becomes int64. */
dm_status clamp_rule(dm_Call *c) {
  const dm_ClampAttr *a = DM_ATTR(dm_ClampAttr, c);
  const dm_DType x = (dm_DType)c->in[0]->dtype;
  if (!a->min.set && !a->max.set)
    return dm_fail(DM_EARG, "clamp: neither min nor max given, wanted at least one");
  const bool floats = dm_is_float(x) || !fits_int(a->min) || !fits_int(a->max);
  dm_out_like(c, 0, c->in[0],
              floats && !dm_is_float(x) ? dm_default_dtype()
              : x == DM_BOOL            ? DM_I64
                                        : x);
  return DM_OK;
}

/* clamp, or clamp_backward: both take the bounds. */
static dm_status clamped(dm_Call *c, int triple) {
  const dm_ClampAttr *a = DM_ATTR(dm_ClampAttr, c);
  return run(c->out[0], c->n_in, c->in, triple, dm_clamp_low(a), dm_clamp_high(a));
}
dm_status clamp_cpu(dm_Call *c) { return clamped(c, DM_TRIPLE_clamp); }

/* gy where min < x < max, 0 at a bound and beyond; no mask is kept. */
void clamp_grad(dm_Grad *g) {
  g->gx[0] = dm_x(g->x, DM_OP_clamp_backward, g->attr, 2, g->gy[0], g->in[0]);
}

dm_status clamp_backward_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  return DM_OK;
}

dm_status clamp_backward_cpu(dm_Call *c) { return clamped(c, DM_TRIPLE_clamp_backward); }

/* Bounds that are tensors: the smaller, then the larger. */
dm_status clamp_tensor_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *y = c->in[0];
  if (c->in[1]) y = dm_x(x, DM_OP_maximum, NULL, 2, y, c->in[1]);
  if (c->in[2]) y = dm_x(x, DM_OP_minimum, NULL, 2, y, c->in[2]);
  c->out[0] = y;
  return x->st;
}

/* Linear in gy; in x it is flat wherever it has a slope. */
void clamp_backward_grad(dm_Grad *g) {
  if (g->need[0]) g->gx[0] = dm_x(g->x, DM_OP_clamp_backward, g->attr, 2, g->gy[0], g->in[1]);
}

/* ---- numbers for NaN and the infinities ---- */

/* x's shape; the numbers for the infinities have one element each. */
dm_status nan_to_number_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  return DM_OK;
}
dm_status nan_to_number_cpu(dm_Call *c) {
  return run(c->out[0], 3, c->in, DM_TRIPLE_nan_to_number, DM_ATTR(dm_NanToNumberAttr, c)->nan,
             0);
}

/* gy where x was kept. Where it was replaced gy times 0, as PyTorch has it: an infinite
   gradient becomes NaN there. Where NaN alone was, 0. */
void nan_to_number_grad(dm_Grad *g) {
  dm_Tensor *v = g->in[0], *gy = g->gy[0];
  if (DM_ATTR(dm_NanToNumberAttr, g)->replaced)
    g->gx[0] = x_mul(g->x, gy, x_unary(g->x, DM_OP_isfinite, v));
  else g->gx[0] = x_where(g->x, x_unary(g->x, DM_OP_isnan, v), dm_x_number(g->x, 0), gy);
}

/* ---- lerp ---- */

/* The promoted dtype, which must be a float, and the broadcast shape. */
static dm_status float_result(dm_Call *c) {
  const dm_DType r = dm_result_dtype(c->n_in, c->in);
  if (!dm_is_float(r))
    return dm_fail(DM_EARG,
                   "%s: the operands are %s, wanted a float dtype; hint: "
                   "x:to(\"float32\")",
                   c->op->name, dm_dtype_name(r));
  return broadcast_all(c, r);
}

dm_status lerp_rule(dm_Call *c) {
  double w;
  if (dm_is_number(c->in[2], &w)) c->save &= I2; /* the other two serve the weight's gradient */
  return float_result(c);
}

dm_status lerp_cpu(dm_Call *c) { return run(c->out[0], 3, c->in, DM_TRIPLE_lerp, 0, 0); }

/* y = a + w (b - a): gy (1 - w), gy w, and gy (b - a). */
void lerp_grad(dm_Grad *g) {
  dm_X *x = g->x;
  dm_Tensor *gy = g->gy[0], *w = g->in[2];
  double v;
  const bool once = !g->create_graph, number = dm_is_number(w, &v);
  if (g->need[1])
    g->gx[1] = once && dm_was_broadcast(g, 1)
                   ? x_partial_for(g, 1, DM_TRIPLE_product_back, 1, w, NULL)
                   : x_mul(x, gy, w);
  if (number && !(once && dm_was_broadcast(g, 0))) {
    if (g->need[0]) g->gx[0] = x_scale(x, gy, 1 - v);
    return;
  }
  if (once) {
    if (g->need[0]) g->gx[0] = x_partial_for(g, 0, DM_TRIPLE_lerp_back, 0, w, NULL);
    if (g->need[2])
      g->gx[2] = x_partial_for(g, 2, DM_TRIPLE_difference_back, 0, g->in[1], g->in[0]);
    return;
  }
  gy = dm_x_widen(x, gy);
  if (g->need[0]) g->gx[0] = x_mul(x, gy, x_shift(x, x_scale(x, dm_x_widen(x, w), -1), 1));
  if (g->need[2])
    g->gx[2] = x_mul(x, gy, x_sub(x, dm_x_widen(x, g->in[1]), dm_x_widen(x, g->in[0])));
}

/* ---- x + value * t1 * t2, x + value * t1 / t2 ---- */

dm_status addcmul_rule(dm_Call *c) { return broadcast_all(c, dm_result_dtype(c->n_in, c->in)); }
dm_status addcdiv_rule(dm_Call *c) { return float_result(c); }

dm_status addcmul_cpu(dm_Call *c) {
  return run(c->out[0], 3, c->in, DM_TRIPLE_addcmul, DM_ATTR(dm_ValueAttr, c)->value, 0);
}
dm_status addcdiv_cpu(dm_Call *c) {
  return run(c->out[0], 3, c->in, DM_TRIPLE_addcdiv, DM_ATTR(dm_ValueAttr, c)->value, 0);
}

/* y = x + v a b: gy, gy v b, and gy v a. */
void addcmul_grad(dm_Grad *g) {
  const double value = DM_ATTR(dm_ValueAttr, g)->value;
  dm_X *x = g->x;
  g->gx[0] = g->gy[0];
  for (int i = 1; i <= 2; i++) {
    dm_Tensor *gy = g->gy[0], *other = g->in[3 - i];
    if (!g->need[i]) continue;
    if (!g->create_graph) {
      g->gx[i] = x_partial_for(g, i, DM_TRIPLE_product_back, value, other, NULL);
    } else {
      gy = x_scale(x, dm_x_widen(x, gy), value);
      g->gx[i] = x_mul(x, gy, dm_x_widen(x, other));
    }
  }
}

/* y = x + v a / b: gy, gy v / b, and -gy v a / b^2. */
void addcdiv_grad(dm_Grad *g) {
  const double value = DM_ATTR(dm_ValueAttr, g)->value;
  dm_X *x = g->x;
  dm_Tensor *gy = g->gy[0], *t1 = g->in[1], *t2 = g->in[2];
  g->gx[0] = gy;
  if (!g->need[1] && !g->need[2]) return;
  if (!g->create_graph) {
    if (g->need[1]) g->gx[1] = x_partial_for(g, 1, DM_TRIPLE_quotient_back, value, t2, NULL);
    if (g->need[2]) g->gx[2] = x_partial_for(g, 2, DM_TRIPLE_addcdiv_back, value, t1, t2);
    return;
  }
  t1 = dm_x_widen(x, t1);
  t2 = dm_x_widen(x, t2);
  dm_Tensor *over = x_div(x, x_scale(x, dm_x_widen(x, gy), value), t2);
  if (g->need[1]) g->gx[1] = over;
  if (g->need[2]) g->gx[2] = x_mul(x, over, x_div(x, x_unary(x, DM_OP_neg, t1), t2));
}

/* ---- gradients in one pass ---- */

/* gy has the shape to which the operands broadcast, and the result's dtype, or float32. */
dm_status triple_backward_rule(dm_Call *c) {
  const dm_DType t = (dm_DType)c->in[0]->dtype;
  dm_out_like(c, 0, c->in[0],
              DM_ATTR(dm_TripleBackwardAttr, c)->wide ? dm_compute_dtype(t) : t);
  return DM_OK;
}
dm_status triple_backward_cpu(dm_Call *c) {
  const dm_TripleBackwardAttr *a = DM_ATTR(dm_TripleBackwardAttr, c);
  return run(c->out[0], c->n_in, c->in, (int)a->formula, a->p, 0);
}

/* ---- losses of an element, whose gradients op/loss composes ---- */

/* Integers, too, have losses that are floats, and those of 16 bits are float32. */
dm_status loss_term_rule(dm_Call *c) {
  const dm_DType r = dm_result_dtype(c->n_in, c->in);
  return broadcast_all(c, dm_is_float(r) ? dm_compute_dtype(r) : dm_default_dtype());
}
/* Rounded once to the operands' dtype, where the losses and gy are float32; float64 like gy,
   whose losses had an operand of float64 that the gradient may not read. */
dm_status loss_backward_rule(dm_Call *c) {
  const dm_DType r = dm_result_dtype(c->n_in - 1, c->in + 1);
  const bool wide = c->in[0]->dtype == DM_F64;
  return broadcast_all(c, wide ? DM_F64 : dm_is_float(r) ? r : dm_default_dtype());
}

static dm_status loss_term(dm_Call *c) {
  const dm_LossTermAttr *a = DM_ATTR(dm_LossTermAttr, c);
  return run(c->out[0], c->n_in, c->in, (int)a->formula, a->p, a->q);
}
dm_status loss_term_cpu(dm_Call *c) { return loss_term(c); }
dm_status loss_backward_cpu(dm_Call *c) { return loss_term(c); }
