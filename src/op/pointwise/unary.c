/* The pointwise ops of one operand. Kernels and derivatives come from the formulas
   of base/scalar.inc, by way of loops.h; the gradients here are for create_graph, each
   the same derivative composed of ops, so that it has a gradient itself. */
#include <tgmath.h>

#include "base/error.h"
#include "op/loops/loops.h"
#include "op/pointwise/pointwise.h"
#include "op/pointwise/unary.h"

/* Integers: what stays one. */
#define INT_BLOCK(NAME, EXPR)                                                     \
  static void NAME##_block_int(const int64_t *const *in, int64_t *out, int64_t n, \
                               const double *a) {                                 \
    DM_UNUSED(a);                                                                 \
    for (int64_t i = 0; i < n; i++) {                                             \
      const int64_t x = in[0][i];                                                 \
      out[i] = EXPR;                                                              \
    }                                                                             \
  }
INT_BLOCK(neg, (int64_t)(0 - (uint64_t)x))
INT_BLOCK(abs, x < 0 ? (int64_t)(0 - (uint64_t)x) : x)
INT_BLOCK(sign, (x > 0) - (x < 0))
INT_BLOCK(square, (int64_t)((uint64_t)x *(uint64_t)x))
INT_BLOCK(relu, x < 0 ? 0 : x)
INT_BLOCK(same, x)
#undef INT_BLOCK
static void clip_block_int(const int64_t *const *in, int64_t *out, int64_t n, const double *a) {
  const int64_t lo = (int64_t)a[0], hi = (int64_t)a[1];
  for (int64_t i = 0; i < n; i++) out[i] = in[0][i] < lo ? lo : in[0][i] > hi ? hi : in[0][i];
}

static dm_BlockI64 *int_block(dm_OpId id) {
  switch (id) {
  case DM_OP_neg: return neg_block_int;
  case DM_OP_abs: return abs_block_int;
  case DM_OP_sign: return sign_block_int;
  case DM_OP_square: return square_block_int;
  case DM_OP_relu: return relu_block_int;
  case DM_OP_hardtanh: return clip_block_int;
  case DM_OP_floor:
  case DM_OP_ceil:
  case DM_OP_round:
  case DM_OP_trunc: return same_block_int;
  default: return NULL;
  }
}

dm_status unary_rule(dm_Call *c) {
  const dm_DType d = (dm_DType)c->in[0]->dtype;
  const dm_OpId id = dm_op_id(c->op);
  if (d == DM_BOOL && (id == DM_OP_sign || id == DM_OP_square)) {
    dm_out_like(c, 0, c->in[0], id == DM_OP_sign ? DM_BOOL : DM_I64);
    return DM_OK;
  }
  const int64_t most = 1000; /* polygamma's time grows with n */
  if (id == DM_OP_polygamma && !(*DM_ATTR(int64_t, c) >= 0 && *DM_ATTR(int64_t, c) <= most))
    return dm_fail(DM_EARG, "polygamma: n is %lld, wanted 0 to %lld",
                   (long long)*DM_ATTR(int64_t, c), (long long)most);
  const bool keeps = dm_is_float(d) || (d != DM_BOOL && int_block(dm_op_id(c->op)));
  if (d == DM_BOOL && c->op == &dm_ops[DM_OP_neg])
    return dm_fail(DM_EARG, "neg: bool has no negative; hint: x:logical_not()");
  dm_out_like(c, 0, c->in[0], keeps ? d : DM_F32);
  return DM_OK;
}

dm_status unary_cpu(dm_Call *c) {
  const dm_OpId id = dm_op_id(c->op);
  dm_Pointwise fn = dm_loops()->unary[id];
  fn.i64 = int_block(id);
  double pq[2];
  dm_unary_params(c->op->signature, c->attr, pq);
  return dm_pointwise(c->out[0], 1, c->in, (dm_DType)c->out_meta[0].dtype, &fn, pq);
}

dm_status dm_unary_into(dm_Tensor *out, dm_OpId id, double p, dm_Tensor *in) {
  const double pq[2] = {p, 0};
  return dm_pointwise(out, 1, &in, (dm_DType)out->dtype, &dm_loops()->unary[id], pq);
}

dm_status unary_backward_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[1], (dm_DType)c->in[1]->dtype);
  return DM_OK;
}

dm_status unary_backward_cpu(dm_Call *c) {
  const dm_UnaryBackwardAttr *a = DM_ATTR(dm_UnaryBackwardAttr, c);
  return dm_pointwise(c->out[0], 2, c->in, (dm_DType)c->out[0]->dtype,
                      &dm_loops()->unary_back[a->op], &a->p);
}

/* 1 where lo < s < hi, else 0 */
static dm_Tensor *between(dm_X *x, dm_Tensor *s, double lo, double hi) {
  return x_mul(x, x_like(x, x_test(x, DM_OP_gt, s, lo), s),
               x_like(x, x_test(x, DM_OP_lt, s, hi), s));
}

/* i1 or i1e of s, y, by s: 1/2 at 0. */
static dm_Tensor *bessel_quotient(dm_X *x, dm_Tensor *y, dm_Tensor *s) {
  dm_Tensor *zero = x_test(x, DM_OP_eq, s, 0);
  dm_Tensor *divisor = x_where(x, zero, dm_x_number(x, 1), s);
  return x_where(x, zero, dm_x_number(x, 0.5), x_div(x, y, divisor));
}

static dm_Tensor *polygamma(dm_X *x, int64_t n, dm_Tensor *s) {
  return dm_x(x, DM_OP_polygamma, &n, 1, s);
}

/* dy/dx as a composition of ops on s, the saved one of x and y; NULL where the
   derivative is constant 0. */
static dm_Tensor *derivative(dm_X *x, dm_OpId id, dm_Tensor *s, const double pq[2]) {
  dm_Tensor *one_minus_s2, *sg;
  switch (id) {
  case DM_OP_abs: return x_unary(x, DM_OP_sign, s);
  case DM_OP_square: return x_scale(x, s, 2);
  case DM_OP_exp: return s;
  case DM_OP_expm1: return x_shift(x, s, 1);
  case DM_OP_exp2: return x_scale(x, s, 0.69314718055994530942); /* ln 2 */
  case DM_OP_log: return x_unary(x, DM_OP_reciprocal, s);
  case DM_OP_log1p: return x_unary(x, DM_OP_reciprocal, x_shift(x, s, 1));
  case DM_OP_log2: /* ln 2 */
    return x_unary(x, DM_OP_reciprocal, x_scale(x, s, 0.69314718055994530942));
  case DM_OP_log10: /* ln 10 */
    return x_unary(x, DM_OP_reciprocal, x_scale(x, s, 2.30258509299404568402));
  case DM_OP_sqrt: return x_scale(x, x_unary(x, DM_OP_reciprocal, s), 0.5);
  case DM_OP_rsqrt: return x_scale(x, x_mul(x, s, x_mul(x, s, s)), -0.5);
  case DM_OP_reciprocal: return x_scale(x, x_mul(x, s, s), -1);
  case DM_OP_sin: return x_unary(x, DM_OP_cos, s);
  case DM_OP_cos: return x_scale(x, x_unary(x, DM_OP_sin, s), -1);
  case DM_OP_tan: return x_shift(x, x_mul(x, s, s), 1);
  case DM_OP_asin:
  case DM_OP_acos:
    one_minus_s2 = x_shift(x, x_scale(x, x_mul(x, s, s), -1), 1);
    return x_scale(x, x_unary(x, DM_OP_rsqrt, one_minus_s2), id == DM_OP_asin ? 1 : -1);
  case DM_OP_atan: return x_unary(x, DM_OP_reciprocal, x_shift(x, x_mul(x, s, s), 1));
  case DM_OP_sinh: return x_unary(x, DM_OP_cosh, s);
  case DM_OP_cosh: return x_unary(x, DM_OP_sinh, s);
  case DM_OP_tanh: return x_shift(x, x_scale(x, x_mul(x, s, s), -1), 1);
  case DM_OP_sigmoid: return x_sub(x, s, x_mul(x, s, s));
  case DM_OP_erf: /* 2/sqrt(pi) */
    return x_scale(x, x_unary(x, DM_OP_exp, x_scale(x, x_mul(x, s, s), -1)),
                   1.12837916709551257390);
  case DM_OP_erfc:
    return x_scale(x, x_unary(x, DM_OP_exp, x_scale(x, x_mul(x, s, s), -1)),
                   -1.12837916709551257390);
  case DM_OP_erfinv: /* sqrt(pi)/2 */
    return x_scale(x, x_unary(x, DM_OP_exp, x_mul(x, s, s)), 0.88622692545275801365);
  case DM_OP_lgamma: return x_unary(x, DM_OP_digamma, s);
  case DM_OP_digamma: return polygamma(x, 1, s);
  case DM_OP_polygamma: return polygamma(x, (int64_t)pq[0] + 1, s);
  case DM_OP_i0: return x_unary(x, DM_OP_special_i1, s);
  case DM_OP_special_i1:
    return x_sub(x, x_unary(x, DM_OP_i0, s),
                 bessel_quotient(x, x_unary(x, DM_OP_special_i1, s), s));
  case DM_OP_special_i0e: /* i1e - sign i0e */
    sg = x_unary(x, DM_OP_sign, s);
    return x_sub(x, x_unary(x, DM_OP_special_i1e, s),
                 x_mul(x, sg, x_unary(x, DM_OP_special_i0e, s)));
  case DM_OP_special_i1e: { /* i0e - sign i1e - i1e / s */
    dm_Tensor *y = x_unary(x, DM_OP_special_i1e, s);
    sg = x_mul(x, x_unary(x, DM_OP_sign, s), y);
    return x_sub(x, x_sub(x, x_unary(x, DM_OP_special_i0e, s), sg), bessel_quotient(x, y, s));
  }
  case DM_OP_special_erfcx: /* 2 s y - 2/sqrt(pi) */
    return x_shift(x, x_scale(x, x_mul(x, s, x_unary(x, DM_OP_special_erfcx, s)), 2),
                   -1.12837916709551257390);
  case DM_OP_special_ndtri: /* sqrt(2 pi) */
    return x_scale(x, x_unary(x, DM_OP_exp, x_scale(x, x_mul(x, s, s), 0.5)),
                   2.50662827463100050242);
  case DM_OP_special_log_ndtr: /* sqrt(2/pi), 1/sqrt(2) */
    sg = x_unary(x, DM_OP_special_erfcx, x_scale(x, s, -0.70710678118654752440));
    return x_scale(x, x_unary(x, DM_OP_reciprocal, sg), 0.79788456080286535588);
  case DM_OP_special_entr: return x_scale(x, x_shift(x, x_unary(x, DM_OP_log, s), 1), -1);
  case DM_OP_logsigmoid: return x_unary(x, DM_OP_sigmoid, x_scale(x, s, -1));
  case DM_OP_mish: { /* t + x (1 - t^2) sigmoid(x) with t = tanh(softplus(x)) */
    dm_Tensor *t = x_unary(x, DM_OP_tanh, x_unary(x, DM_OP_softplus, s));
    dm_Tensor *dt = x_shift(x, x_scale(x, x_mul(x, t, t), -1), 1);
    return x_add(x, t, x_mul(x, x_mul(x, s, dt), x_unary(x, DM_OP_sigmoid, s)));
  }
  case DM_OP_hardsigmoid: return x_scale(x, between(x, s, -3, 3), 1.0 / 6);
  case DM_OP_hardswish: /* x / 3 + 1/2 in between, 1 above */
    return x_add(x, x_mul(x, between(x, s, -3, 3), x_shift(x, x_scale(x, s, 1.0 / 3), 0.5)),
                 x_like(x, x_test(x, DM_OP_ge, s, 3), s));
  case DM_OP_relu: return x_like(x, x_test(x, DM_OP_gt, s, 0), s);
  case DM_OP_leaky_relu: {
    dm_Tensor *pos = x_like(x, x_test(x, DM_OP_gt, s, 0), s);
    return x_shift(x, x_scale(x, pos, 1 - pq[0]), pq[0]);
  }
  case DM_OP_elu: {
    dm_Tensor *pos = x_test(x, DM_OP_gt, s, 0);
    return x_where(x, pos, dm_x_number(x, 1), x_scale(x, x_unary(x, DM_OP_exp, s), pq[0]));
  }
  case DM_OP_silu: /* s (1 + x (1 - s)) with s = sigmoid(x) */
    sg = x_unary(x, DM_OP_sigmoid, s);
    return x_mul(x, sg, x_shift(x, x_sub(x, s, x_mul(x, s, sg)), 1));
  case DM_OP_softplus: {
    dm_Tensor *bx = x_scale(x, s, pq[0]);
    dm_Tensor *linear = x_test(x, DM_OP_gt, bx, pq[1]);
    return x_where(x, linear, dm_x_number(x, 1), x_unary(x, DM_OP_sigmoid, bx));
  }
  case DM_OP_hardtanh: return between(x, s, pq[0], pq[1]);
  case DM_OP_gelu: {
    const double k = 1.59576912160573071176; /* 2 sqrt(2/pi) */
    dm_Tensor *s2 = x_mul(x, s, s);
    /* sigmoid(u) + x sigmoid(u) sigmoid(-u) u', u = k (x + c x^3), c = 0.044715 */
    if (pq[0] != 0) {
      dm_Tensor *u = x_scale(x, x_mul(x, s, x_shift(x, x_scale(x, s2, 0.044715), 1)), k);
      dm_Tensor *gate = x_unary(x, DM_OP_sigmoid, u);
      dm_Tensor *rest = x_unary(x, DM_OP_sigmoid, x_scale(x, u, -1));
      dm_Tensor *du = x_scale(x, x_shift(x, x_scale(x, s2, 3 * 0.044715), 1), k);
      return x_add(x, gate, x_mul(x, s, x_mul(x, x_mul(x, gate, rest), du)));
    }
    dm_Tensor *cdf =
        x_unary(x, DM_OP_erf, x_scale(x, s, 0.70710678118654752440)); /* 1/sqrt 2 */
    dm_Tensor *pdf = x_scale(x, x_unary(x, DM_OP_exp, x_scale(x, s2, -0.5)),
                             0.39894228040143267794); /* 1/sqrt(2 pi) */
    return x_add(x, x_scale(x, x_shift(x, cdf, 1), 0.5), x_mul(x, s, pdf));
  }
  default: return NULL;
  }
}

dm_Tensor *x_unary_back(dm_X *x, dm_OpId id, const double pq[2], dm_Tensor *gy,
                        dm_Tensor *saved, bool create_graph) {
  if (create_graph) {
    dm_Tensor *d = derivative(x, id, saved, pq);
    return d ? x_mul(x, gy, d) : NULL;
  }
  const dm_UnaryBackwardAttr a = {id, pq[0], pq[1]};
  return dm_x(x, DM_OP_unary_backward, &a, 2, gy, saved);
}

void unary_grad(dm_Grad *g) {
  const dm_OpId id = dm_op_id(g->op);
  dm_Tensor *gy = g->gy[0], *s = g->in[0] ? g->in[0] : g->out[0];
  if (!s) { /* neg, or a step function */
    g->gx[0] = id == DM_OP_neg ? x_scale(g->x, gy, -1) : x_zeros_like(g->x, gy);
    return;
  }
  double pq[2];
  dm_unary_params(g->op->signature, g->attr, pq);
  g->gx[0] = x_unary_back(g->x, id, pq, gy, s, g->create_graph);
}

/* ---- predicates: a bool for every element ---- */

dm_status predicate_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[0], DM_BOOL);
  return DM_OK;
}

#define PREDICATE(NAME, EXPR, INT_EXPR)                                                      \
  static void NAME##_p32(const float *const *in, float *out, int64_t n, const double *a) {   \
    DM_UNUSED(a);                                                                            \
    for (int64_t i = 0; i < n; i++) {                                                        \
      const float x = in[0][i];                                                              \
      out[i] = (EXPR) ? 1.0f : 0.0f;                                                         \
    }                                                                                        \
  }                                                                                          \
  static void NAME##_p64(const double *const *in, double *out, int64_t n, const double *a) { \
    DM_UNUSED(a);                                                                            \
    for (int64_t i = 0; i < n; i++) {                                                        \
      const double x = in[0][i];                                                             \
      out[i] = (EXPR) ? 1.0 : 0.0;                                                           \
    }                                                                                        \
  }                                                                                          \
  static void NAME##_pint(const int64_t *const *in, int64_t *out, int64_t n,                 \
                          const double *a) {                                                 \
    DM_UNUSED(a);                                                                            \
    for (int64_t i = 0; i < n; i++) {                                                        \
      const int64_t x = in[0][i];                                                            \
      DM_UNUSED(x);                                                                          \
      out[i] = INT_EXPR;                                                                     \
    }                                                                                        \
  }                                                                                          \
  dm_status NAME##_cpu(dm_Call *c) {                                                         \
    static const dm_Pointwise fn = {NAME##_p32, NAME##_p64, NAME##_pint};                    \
    return dm_pointwise(c->out[0], 1, c->in, (dm_DType)c->in[0]->dtype, &fn, NULL);          \
  }
PREDICATE(isnan, x != x, 0)
PREDICATE(isinf, isinf(x), 0)
PREDICATE(isfinite, isfinite(x), 1)
PREDICATE(logical_not, x == 0, x == 0)
#undef PREDICATE
