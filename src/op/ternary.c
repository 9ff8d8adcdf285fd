/* Three operands, broadcast together: choices, mixtures, products added. */
#include <math.h>

#include "base/error.h"
#include "op/pointwise.h"

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
  *m = dm_meta_of(&sum);
  m->dtype = (uint8_t)dtype;
  return DM_OK;
}

/* ---- where ---- */

dm_status where_rule(dm_Call *c) {
  const dm_DType cond = (dm_DType)c->in[0]->dtype;
  if (cond != DM_BOOL && cond != DM_U8)
    return dm_fail(DM_EARG, "where: the condition is %s, wanted bool; hint: x:ne(0)",
                   dm_dtype_name(cond));
  return broadcast_all(c, dm_result_dtype(2, c->in + 1));
}

#define WHERE(SUFFIX, TYPE)                                                                  \
  static void where_##SUFFIX(const TYPE *const *in, TYPE *out, int64_t n, const double *p) { \
    const TYPE *cond = in[0], *x = in[1], *y = in[2];                                        \
    DM_UNUSED(p);                                                                            \
    for (int64_t i = 0; i < n; i++) {                                                        \
      const TYPE a = x[i], b = y[i]; /* both read: no branch */                              \
      out[i] = cond[i] != 0 ? a : b;                                                         \
    }                                                                                        \
  }
WHERE(f32, float)
WHERE(f64, double)
WHERE(i64, int64_t)
#undef WHERE

dm_status where_cpu(dm_Call *c) {
  static const dm_Pointwise fn = {where_f32, where_f64, where_i64};
  return dm_pointwise(c->out[0], 3, c->in, (dm_DType)c->out[0]->dtype, &fn, NULL);
}

void where_grad(dm_Grad *g) {
  dm_Tensor *zero = dm_x_number(g->x, 0);
  if (g->need[1]) g->gx[1] = x_where(g->x, g->in[0], g->gy[0], zero);
  if (g->need[2]) g->gx[2] = x_where(g->x, g->in[0], zero, g->gy[0]);
}

/* ---- clamp ---- */

typedef struct ClampAttr {
  dm_OptNum min, max;
} ClampAttr;

static bool fits_int(dm_OptNum v) { return !v.set || trunc(v.v) == v.v; }

dm_status clamp_rule(dm_Call *c) {
  const ClampAttr *a = DM_ATTR(ClampAttr, c);
  const dm_DType x = (dm_DType)c->in[0]->dtype;
  if (!a->min.set && !a->max.set)
    return dm_fail(DM_EARG, "clamp: neither min nor max given, wanted at least one");
  const bool floats = dm_is_float(x) || !fits_int(a->min) || !fits_int(a->max);
  dm_out_like(c, 0, c->in[0], floats && !dm_is_float(x) ? DM_F32 : x == DM_BOOL ? DM_I64 : x);
  return DM_OK;
}

/* Both comparisons are false for NaN, which passes through. A bound that is
   not there is infinite. Where min > max, max wins. */
static void clamp_f32(const float *const *in, float *out, int64_t n, const double *p) {
  const float *x = in[0], lo = (float)p[0], hi = (float)p[1];
  for (int64_t i = 0; i < n; i++) {
    const float v = x[i] < lo ? lo : x[i];
    out[i] = v > hi ? hi : v;
  }
}
static void clamp_f64(const double *const *in, double *out, int64_t n, const double *p) {
  const double *x = in[0], lo = p[0], hi = p[1];
  for (int64_t i = 0; i < n; i++) {
    const double v = x[i] < lo ? lo : x[i];
    out[i] = v > hi ? hi : v;
  }
}
static int64_t to_i64(double v) {
  return v < -0x1p63 ? INT64_MIN : v >= 0x1p63 ? INT64_MAX : (int64_t)v;
}
static void clamp_i64(const int64_t *const *in, int64_t *out, int64_t n, const double *p) {
  const int64_t *x = in[0], lo = to_i64(p[0]), hi = to_i64(p[1]);
  for (int64_t i = 0; i < n; i++) out[i] = dm_min_i64(dm_max_i64(x[i], lo), hi);
}

static void bounds(const ClampAttr *a, double p[2]) {
  p[0] = a->min.set ? a->min.v : (double)-INFINITY;
  p[1] = a->max.set ? a->max.v : (double)INFINITY;
}

dm_status clamp_cpu(dm_Call *c) {
  static const dm_Pointwise fn = {clamp_f32, clamp_f64, clamp_i64};
  double p[2];
  bounds(DM_ATTR(ClampAttr, c), p);
  return dm_pointwise(c->out[0], 1, c->in, (dm_DType)c->out[0]->dtype, &fn, p);
}

void clamp_grad(dm_Grad *g) {
  g->gx[0] = dm_x(g->x, DM_OP_clamp_backward, g->attr, 2, g->gy[0], g->in[0]);
}

dm_status clamp_backward_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  return DM_OK;
}

#define CLAMP_BACKWARD(SUFFIX, TYPE)                                                \
  static void clamp_backward_##SUFFIX(const TYPE *const *in, TYPE *out, int64_t n,  \
                                      const double *p) {                            \
    const TYPE *gy = in[0], *x = in[1], lo = (TYPE)p[0], hi = (TYPE)p[1];           \
    for (int64_t i = 0; i < n; i++) {                                               \
      const TYPE v = gy[i];                       /* read in any case: no branch */ \
      out[i] = (x[i] > lo) & (x[i] < hi) ? v : 0; /* 0 at a bound */                \
    }                                                                               \
  }
CLAMP_BACKWARD(f32, float)
CLAMP_BACKWARD(f64, double)
#undef CLAMP_BACKWARD

dm_status clamp_backward_cpu(dm_Call *c) {
  static const dm_Pointwise fn = {clamp_backward_f32, clamp_backward_f64, NULL};
  double p[2];
  bounds(DM_ATTR(ClampAttr, c), p);
  return dm_pointwise(c->out[0], 2, c->in, (dm_DType)c->out[0]->dtype, &fn, p);
}

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

/* ---- lerp ---- */

static dm_status float_result(dm_Call *c) {
  const dm_DType r = dm_result_dtype(c->n_in, c->in);
  if (!dm_is_float(r))
    return dm_fail(DM_EARG,
                   "%s: the operands are %s, wanted a float dtype; hint: "
                   "x:to(\"float32\")",
                   c->op->name, dm_dtype_name(r));
  return broadcast_all(c, r);
}

dm_status lerp_rule(dm_Call *c) { return float_result(c); }

/* From the nearer end, so that weight 1 gives end itself. */
#define LERP(SUFFIX, TYPE)                                                                  \
  static void lerp_##SUFFIX(const TYPE *const *in, TYPE *out, int64_t n, const double *p) { \
    const TYPE *x = in[0], *end = in[1], *w = in[2];                                        \
    DM_UNUSED(p);                                                                           \
    for (int64_t i = 0; i < n; i++) {                                                       \
      const TYPE d = end[i] - x[i];                                                         \
      const bool near_x = w[i] < (TYPE)0.5 && w[i] > (TYPE)-0.5;                            \
      out[i] = near_x ? x[i] + w[i] * d : end[i] - d * (1 - w[i]);                          \
    }                                                                                       \
  }
LERP(f32, float)
LERP(f64, double)
#undef LERP

dm_status lerp_cpu(dm_Call *c) {
  static const dm_Pointwise fn = {lerp_f32, lerp_f64, NULL};
  return dm_pointwise(c->out[0], 3, c->in, (dm_DType)c->out[0]->dtype, &fn, NULL);
}

void lerp_grad(dm_Grad *g) {
  dm_Tensor *gy = g->gy[0], *w = g->in[2];
  if (g->need[0]) g->gx[0] = x_sub(g->x, gy, x_mul(g->x, gy, w));
  if (g->need[1]) g->gx[1] = x_mul(g->x, gy, w);
  if (g->need[2]) g->gx[2] = x_mul(g->x, gy, x_sub(g->x, g->in[1], g->in[0]));
}

/* ---- x + value * t1 * t2, x + value * t1 / t2 ---- */

dm_status addcmul_rule(dm_Call *c) { return broadcast_all(c, dm_result_dtype(c->n_in, c->in)); }
dm_status addcdiv_rule(dm_Call *c) { return float_result(c); }

#define ADDC(SUFFIX, TYPE)                                                                     \
  static void addcmul_##SUFFIX(const TYPE *const *in, TYPE *out, int64_t n, const double *p) { \
    const TYPE *x = in[0], *a = in[1], *b = in[2], v = (TYPE)*p;                               \
    for (int64_t i = 0; i < n; i++) out[i] = x[i] + v * a[i] * b[i];                           \
  }                                                                                            \
  static void addcdiv_##SUFFIX(const TYPE *const *in, TYPE *out, int64_t n, const double *p) { \
    const TYPE *x = in[0], *a = in[1], *b = in[2], v = (TYPE)*p;                               \
    for (int64_t i = 0; i < n; i++) out[i] = x[i] + v * a[i] / b[i];                           \
  }
ADDC(f32, float)
ADDC(f64, double)
#undef ADDC
static void addcmul_i64(const int64_t *const *in, int64_t *out, int64_t n, const double *p) {
  const int64_t *x = in[0], *a = in[1], *b = in[2];
  const uint64_t v = (uint64_t)to_i64(*p); /* unsigned: wraps */
  for (int64_t i = 0; i < n; i++)
    out[i] = (int64_t)((uint64_t)x[i] + v * (uint64_t)a[i] * (uint64_t)b[i]);
}

dm_status addcmul_cpu(dm_Call *c) {
  static const dm_Pointwise fn = {addcmul_f32, addcmul_f64, addcmul_i64};
  return dm_pointwise(c->out[0], 3, c->in, (dm_DType)c->out[0]->dtype, &fn, DM_ATTR(double, c));
}
dm_status addcdiv_cpu(dm_Call *c) {
  static const dm_Pointwise fn = {addcdiv_f32, addcdiv_f64, NULL};
  return dm_pointwise(c->out[0], 3, c->in, (dm_DType)c->out[0]->dtype, &fn, DM_ATTR(double, c));
}

void addcmul_grad(dm_Grad *g) {
  const double value = *(const double *)g->attr;
  g->gx[0] = g->gy[0];
  if (!g->need[1] && !g->need[2]) return;
  dm_Tensor *gv = x_scale(g->x, g->gy[0], value);
  if (g->need[1]) g->gx[1] = x_mul(g->x, gv, g->in[2]);
  if (g->need[2]) g->gx[2] = x_mul(g->x, gv, g->in[1]);
}

void addcdiv_grad(dm_Grad *g) {
  const double value = *(const double *)g->attr;
  dm_Tensor *t1 = g->in[1], *t2 = g->in[2];
  g->gx[0] = g->gy[0];
  if (!g->need[1] && !g->need[2]) return;
  dm_Tensor *over = x_div(g->x, x_scale(g->x, g->gy[0], value), t2);
  if (g->need[1]) g->gx[1] = over;
  if (g->need[2]) g->gx[2] = x_mul(g->x, over, x_div(g->x, x_unary(g->x, DM_OP_neg, t1), t2));
}
