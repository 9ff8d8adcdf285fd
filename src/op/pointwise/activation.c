/* Pointwise functions and activations composed of other ops. Each has its autocast class
   in its row; those that PyTorch leaves unlisted are made of unlisted ops, so that they
   keep their input's dtype inside a region. */
#include <math.h>

#include "base/constants.h"
#include "base/error.h"
#include "base/triple.h"
#include "cpu/loops/loops.h"
#include "op/pointwise/pointwise.h"

/* y: the result, or NULL after a step that failed. */
static dm_status give(dm_Call *c, const dm_X *x, dm_Tensor *y) {
  c->out[0] = y;
  return x->st;
}

/* ---- numbers, bit by bit and part by part ---- */

/* ~x = x XOR -1 in two's complement. */
dm_status bitwise_not_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *t = c->in[0];
  if (t->dtype == DM_BOOL) return give(c, x, x_unary(x, DM_OP_logical_not, t));
  return give(c, x, dm_x(x, DM_OP_bitwise_xor, NULL, 2, t, x_whole(x, -1)));
}

/* One pass; integers have no such numbers. */
dm_status nan_to_num_compose(dm_Call *c, dm_X *x) {
  const dm_NanToNumAttr *a = DM_ATTR(dm_NanToNumAttr, c);
  dm_Tensor *t = c->in[0];
  const double top = dm_dtypes[t->dtype].max;
  if (!dm_is_float((dm_DType)t->dtype)) return give(c, x, x_unary(x, DM_OP_clone, t));
  dm_Tensor *pos = dm_x_number(x, a->posinf.set ? a->posinf.v : top);
  dm_Tensor *neg = dm_x_number(x, a->neginf.set ? a->neginf.v : -top);
  const dm_NanToNumberAttr how = {a->nan, true};
  return give(c, x, dm_x(x, DM_OP_nan_to_number, &how, 3, t, pos, neg));
}

/* An infinity is close to itself alone. */
dm_status isclose_compose(dm_Call *c, dm_X *x) {
  const dm_IscloseAttr *a = DM_ATTR(dm_IscloseAttr, c);
  dm_Tensor *t = c->in[0], *o = c->in[1];
  if (!(a->rtol >= 0 && a->atol >= 0))
    return dm_fail(DM_EARG, "isclose: rtol is %g and atol %g, wanted 0 or more", a->rtol,
                   a->atol);
  if (t->dtype != o->dtype)
    return dm_fail(DM_EARG,
                   "isclose: x is %s, other %s, wanted one dtype; hint: other:to(x.dtype)",
                   dm_dtype_name((dm_DType)t->dtype), dm_dtype_name((dm_DType)o->dtype));
  if (t->dtype == DM_BOOL) return give(c, x, dm_x(x, DM_OP_eq, NULL, 2, t, o));
  dm_Tensor *close = dm_x(x, DM_OP_eq, NULL, 2, t, o);
  if (!dm_is_float((dm_DType)t->dtype)) { /* a difference of integers may overflow */
    t = x_cast(x, t, DM_F64);
    o = x_cast(x, o, DM_F64);
  }
  if (a->equal_nan) {
    dm_Tensor *nan = dm_x(x, DM_OP_logical_and, NULL, 2, x_unary(x, DM_OP_isnan, t),
                          x_unary(x, DM_OP_isnan, o));
    close = dm_x(x, DM_OP_logical_or, NULL, 2, close, nan);
  }
  dm_Tensor *gap = x_unary(x, DM_OP_abs, x_sub(x, t, o));
  dm_Tensor *tolerance = x_shift(x, x_scale(x, x_unary(x, DM_OP_abs, o), a->rtol), a->atol);
  dm_Tensor *near = dm_x(x, DM_OP_logical_and, NULL, 2, x_unary(x, DM_OP_isfinite, gap),
                         dm_x(x, DM_OP_le, NULL, 2, gap, tolerance));
  return give(c, x, dm_x(x, DM_OP_logical_or, NULL, 2, close, near));
}

/* ---- activations ---- */

dm_status relu6_compose(dm_Call *c, dm_X *x) {
  const double range[2] = {0, 6};
  return give(c, x, dm_x(x, DM_OP_hardtanh, range, 1, c->in[0]));
}

/* x (N, C, ...) with weight () or (C), which is viewed as (1, C, 1, ...) to broadcast. He et
   al. 2015. */
dm_status prelu_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *t = c->in[0], *w = c->in[1];
  const int64_t channels = t->ndim > 1 ? t->shape[1] : 1;
  if (w->ndim > 1 || (w->numel != 1 && w->numel != channels))
    return dm_fail(DM_EARG,
                   "prelu: x has shape %s, weight %s, wanted one weight, or one for each of "
                   "%lld channels",
                   DM_SHAPE(t), DM_SHAPE(w), (long long)channels);
  if (w->numel > 1) {
    int64_t shape[DM_MAX_DIM] = {1, channels};
    for (int d = 2; d < t->ndim; d++) shape[d] = 1;
    w = x_reshape(x, w, t->ndim, shape);
  } else {
    w = x_reshape(x, w, 0, NULL);
  }
  return give(c, x, dm_x(x, DM_OP_prelu_term, NULL, 2, t, w));
}

/* gy above 0 and gy w below; and below gy x. */
void prelu_term_grad(dm_Grad *g) {
  dm_X *x = g->x;
  dm_Tensor *gy = g->gy[0], *t = g->in[0], *above = x_test(x, DM_OP_gt, t, 0);
  if (g->need[0]) g->gx[0] = x_where(x, above, gy, x_mul(x, gy, g->in[1]));
  if (g->need[1]) g->gx[1] = x_where(x, above, dm_x_number(x, 0), x_mul(x, gy, t));
}

static dm_Tensor *x_half(dm_X *x, dm_Tensor *t, int64_t dim, int which) {
  const int64_t half = t->shape[dim] / 2, attr[3] = {dim, which * half, half};
  return dm_x(x, DM_OP_narrow, attr, 1, t);
}

/* a sigmoid(b) of the halves a, b of x along dim. Dauphin et al. 2017. */
dm_status glu_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *t = c->in[0];
  int dim;
  DM_TRY(dm_check_dim(c, t, DM_ATTR(dm_GluAttr, c)->dim, &dim));
  if (t->ndim == 0 || t->shape[dim] % 2)
    return dm_fail(DM_EARG, "glu: x has shape %s, wanted dim %d to have two halves",
                   DM_SHAPE(t), dim + c->base);
  if (dm_is_float(t->dtype) && dm_op_has_kernel(DM_OP_glu_halves, t->device))
    return give(c, x, dm_x(x, DM_OP_glu_halves, &(dm_GluHalvesAttr){dim}, 1, t));
  dm_Tensor *a = x_half(x, t, dim, 0), *b = x_half(x, t, dim, 1);
  return give(c, x, dm_x(x, DM_OP_glu_term, NULL, 2, a, b));
}

/* gy a times the slope of sigmoid(b), of ops that have gradients. */
static dm_Tensor *glu_gate_grad(dm_X *x, dm_Tensor *gy, dm_Tensor *a, dm_Tensor *b) {
  b = dm_x_widen(x, b);
  dm_Tensor *slope = x_unary(x, DM_OP_sigmoid, x_unary(x, DM_OP_neg, b));
  slope = x_mul(x, slope, x_unary(x, DM_OP_sigmoid, b));
  return x_mul(x, x_mul(x, dm_x_widen(x, gy), dm_x_widen(x, a)), slope);
}

/* Of a sigmoid(b): gy sigmoid(b), and gy a times the sigmoid's slope, which is the sigmoid of b
   times that of -b. */
void glu_term_grad(dm_Grad *g) {
  dm_X *x = g->x;
  dm_Tensor *gy = g->gy[0], *a = g->in[0], *b = g->in[1];
  if (g->need[0]) g->gx[0] = dm_x(x, DM_OP_glu_term, NULL, 2, gy, b);
  if (!g->need[1]) return;
  if (!g->create_graph) {
    g->gx[1] = x_partial(x, DM_TRIPLE_glu_back, 1, gy, a, b);
    return;
  }
  g->gx[1] = glu_gate_grad(x, gy, a, b);
}

/* ---- the halves of one tensor, whose gradient is written where it belongs ---- */

dm_status glu_halves_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  c->out_meta[0].shape[DM_ATTR(dm_GluHalvesAttr, c)->dim] /= 2;
  return DM_OK;
}
dm_status glu_halves_backward_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[1], (dm_DType)c->in[1]->dtype);
  return DM_OK;
}

/* The halves of t along dim. */
static dm_status halves_of(dm_Tensor *t, int64_t dim, dm_Tensor *half[2]) {
  int64_t shape[DM_MAX_DIM];
  for (int d = 0; d < t->ndim; d++) shape[d] = t->shape[d] / (d == dim ? 2 : 1);
  DM_TRY(dm_tensor_view(t, t->ndim, shape, t->stride, t->offset, &half[0]));
  return dm_tensor_view(t, t->ndim, shape, t->stride, t->offset + shape[dim] * t->stride[dim],
                        &half[1]);
}

dm_status glu_halves_cpu(dm_Call *c) {
  dm_Tensor *x[2] = {NULL, NULL};
  dm_status st = halves_of(c->in[0], DM_ATTR(dm_GluHalvesAttr, c)->dim, x);
  if (st == DM_OK)
    st = dm_pointwise(c->out[0], 2, x, (dm_DType)c->out[0]->dtype,
                      &dm_loops()->pair[DM_OP_glu_term], (double[2]){0, 0});
  for (int i = 0; i < 2; i++) dm_tensor_unref(&x[i]);
  return st;
}

dm_status glu_halves_backward_cpu(dm_Call *c) {
  const int64_t dim = DM_ATTR(dm_GluHalvesAttr, c)->dim;
  const dm_DType t = (dm_DType)c->out[0]->dtype;
  dm_Tensor *x[2] = {NULL, NULL}, *gx[2] = {NULL, NULL}, *gy = c->in[0];
  const double one[2] = {1, 0};
  dm_status st = halves_of(c->in[1], dim, x);
  if (st == DM_OK) st = halves_of(c->out[0], dim, gx);
  if (st == DM_OK)
    st = dm_pointwise(gx[0], 2, (dm_Tensor *[]){gy, x[1]}, t, &dm_loops()->pair[DM_OP_glu_term],
                      one);
  if (st == DM_OK)
    st = dm_pointwise(gx[1], 3, (dm_Tensor *[]){gy, x[0], x[1]}, t,
                      &dm_loops()->triple[DM_TRIPLE_glu_back], one);
  for (int i = 0; i < 2; i++) {
    dm_tensor_unref(&x[i]);
    dm_tensor_unref(&gx[i]);
  }
  return st;
}

void glu_halves_grad(dm_Grad *g) {
  dm_X *x = g->x;
  const int64_t dim = DM_ATTR(dm_GluHalvesAttr, g)->dim;
  if (!g->create_graph) {
    g->gx[0] = dm_x(x, DM_OP_glu_halves_backward, g->attr, 2, g->gy[0], g->in[0]);
    return;
  }
  dm_Tensor *a = x_half(x, g->in[0], dim, 0), *b = x_half(x, g->in[0], dim, 1);
  dm_Tensor *ga = dm_x(x, DM_OP_glu_term, NULL, 2, g->gy[0], b);
  dm_Tensor *gb = dm_x_widen(x, glu_gate_grad(x, g->gy[0], a, b));
  g->gx[0] = dm_x(x, DM_OP_cat, &dim, 2, dm_x_widen(x, ga), gb);
}

/* ---- the softmax family ---- */

/* softmax(-x) */
dm_status softmin_compose(dm_Call *c, dm_X *x) {
  return give(c, x, dm_x(x, DM_OP_softmax, c->attr, 1, x_unary(x, DM_OP_neg, c->in[0])));
}

/* A sample of a categorical distribution that has a gradient: softmax((x + noise) / tau), with
   noise -log(-log u), u uniform in [0, 1), of Gumbel's distribution, drawn in float32 for
   16-bit x. hard: the result is one-hot, its gradient that of the softmax (straight through).
   Jang et al. 2017. */
dm_status gumbel_softmax_compose(dm_Call *c, dm_X *x) {
  const dm_GumbelSoftmaxAttr *a = DM_ATTR(dm_GumbelSoftmaxAttr, c);
  dm_Tensor *t = c->in[0];
  DM_TRY(dm_check_float(c, t, "x"));
  if (!(a->tau > 0))
    return dm_fail(DM_EARG, "gumbel_softmax: tau is %g, wanted more than 0", a->tau);
  const int64_t wide[2] = {t->dtype == DM_F64 ? DM_F64 : DM_F32, -1}; /* dtype, device */
  dm_Tensor *u = dm_x(x, DM_OP_rand_like, wide, 1, t);
  for (int i = 0; i < 2; i++) u = x_unary(x, DM_OP_neg, x_unary(x, DM_OP_log, u));
  const int64_t along[2] = {a->dim, DM_NO_DTYPE};
  dm_Tensor *logits = x_scale(x, x_add(x, t, x_like(x, u, t)), 1 / a->tau);
  dm_Tensor *soft = dm_x(x, DM_OP_softmax, along, 1, logits);
  if (!a->hard || x->st != DM_OK) return give(c, x, soft);
  const dm_DimAttr best = {{1, a->dim}, 1};
  dm_Tensor *at = dm_x(x, DM_OP_argmax, &best, 1, soft);
  dm_Tensor *hard =
      dm_x(x, DM_OP_scatter, &a->dim, 3, x_zeros_like(x, soft), at, dm_x_number(x, 1));
  return give(c, x, x_add(x, soft, x_constant_sub(x, hard, soft)));
}

/* ---- degrees and radians ---- */

static const double PI = 3.14159265358979323846;

static dm_status scaled(dm_Call *c, dm_X *x, double by) {
  c->out[0] = x_scale(x, c->in[0], by);
  return x->st;
}
dm_status deg2rad_compose(dm_Call *c, dm_X *x) { return scaled(c, x, PI / 180); }
dm_status rad2deg_compose(dm_Call *c, dm_X *x) { return scaled(c, x, 180 / PI); }
