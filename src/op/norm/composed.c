/* The checks that all norms share, and the norms that are composed of other ops:
   rms_norm, instance_norm and local_response_norm. */
#include <float.h>

#include "base/error.h"
#include "op/norm/norm.h"
#include "op/pointwise/pointwise.h"

/* ---- checks ---- */

dm_status dm_check_affine(const dm_Call *c, const char *name, const dm_Tensor *t, int64_t n) {
  if (!t) return DM_OK;
  if (!dm_is_float((dm_DType)t->dtype))
    return dm_fail(DM_EARG, "%s: %s is %s, wanted a float dtype", c->op->name, name,
                   dm_dtype_name((dm_DType)t->dtype));
  if (t->numel == n) return DM_OK;
  return dm_fail(DM_EARG, "%s: %s has shape %s, wanted %lld elements", c->op->name, name,
                 DM_SHAPE(t), (long long)n);
}

dm_status dm_check_ends_in(const dm_Call *c, const dm_Tensor *x, const dm_Ints *shape) {
  const int64_t lead = x->ndim - shape->n;
  DM_TRY(dm_check_float(c, x, "x"));
  bool ok = lead >= 0 && shape->n > 0;
  for (int64_t d = 0; ok && d < shape->n; d++) ok = shape->v[d] == x->shape[lead + d];
  if (ok) return DM_OK;
  return dm_fail(DM_EARG, "%s: x is %s, wanted one that ends in normalized_shape %s",
                 c->op->name, DM_SHAPE(x), DM_DIMS((int)shape->n, shape->v));
}

dm_status dm_check_channels(const dm_Call *c, const dm_Tensor *x) {
  DM_TRY(dm_check_float(c, x, "x"));
  if (x->ndim >= 2) return DM_OK;
  return dm_fail(DM_EARG, "%s: x is %s, wanted at least 2 dims (batch, channels)", c->op->name,
                 DM_SHAPE(x));
}

dm_status dm_check_running(const dm_Call *c, const char *name, const dm_Tensor *t) {
  if (!t || (t->ndim == 1 && !dm_tensor_overlaps_itself(t))) return DM_OK;
  return dm_fail(DM_EARG, "%s: %s has shape %s%s, wanted one dim%s", c->op->name, name,
                 DM_SHAPE(t), t->ndim == 1 ? ", expanded" : "",
                 t->ndim == 1 ? " of its own" : "");
}

static dm_Tensor *x_mean(dm_X *x, dm_Tensor *t, dm_Ints dims, bool keepdim) {
  const dm_SumAttr attr = {dims, keepdim, DM_NO_DTYPE};
  return dm_x(x, DM_OP_mean, &attr, 1, t);
}

/* ---- rms_norm ---- */

/* y = x / sqrt(mean(x^2) + eps) * weight, the mean over the last dims (Zhang & Sennrich
   2019). 16-bit inputs are computed in float32 and rounded once; without eps the
   epsilon of the compute type is used, as in PyTorch. */
dm_status rms_norm_compose(dm_Call *c, dm_X *x) {
  const dm_RmsNormAttr *a = c->attr;
  dm_Tensor *t = c->in[0], *w = c->in[1];
  DM_TRY(dm_check_ends_in(c, t, &a->normalized_shape));
  const int n = (int)a->normalized_shape.n;
  DM_TRY(dm_check_affine(c, "weight", w, dm_numel(n, a->normalized_shape.v)));
  const dm_DType compute = dm_compute_dtype((dm_DType)t->dtype);
  const double least = compute == DM_F64 ? DBL_EPSILON : (double)FLT_EPSILON;
  const double eps = a->eps.set ? a->eps.v : least;
  if (t->device.type == DM_CPU) {
    const dm_RmsRowsAttr rows = {a->normalized_shape, eps};
    c->out[0] = dm_x(x, DM_OP_rms_rows, &rows, 2, t, w);
    return x->st;
  }
  dm_Ints last = {n, {0}};
  for (int d = 0; d < n; d++) last.v[d] = d - n;
  dm_Tensor *v = x_cast(x, t, compute);
  dm_Tensor *power = x_mean(x, x_mul(x, v, v), last, true);
  dm_Tensor *scale = x_unary(x, DM_OP_rsqrt, x_shift(x, power, eps));
  dm_Tensor *y = x_mul(x, v, scale);
  if (w) y = x_mul(x, y, x_reshape(x, x_cast(x, w, compute), n, a->normalized_shape.v));
  c->out[0] = x_cast(x, y, (dm_DType)t->dtype);
  return x->st;
}

/* ---- instance_norm ---- */

/* Replaces both running statistics (C) by the mean over the samples of the updated
   copies (N C). Both means are computed before either is written, so that a call that
   fails changes neither. */
static dm_status keep_means(dm_X *x, dm_Tensor *const running[2], dm_Tensor *const moved[2],
                            int64_t n) {
  dm_Tensor *mean[2] = {NULL, NULL};
  for (int i = 0; i < 2; i++)
    if (running[i] && n > 0)
      mean[i] =
          x_mean(x, x_reshape(x, moved[i], 2, (int64_t[]){n, -1}), (dm_Ints){1, {0}}, false);
  for (int i = 0; i < 2 && x->st == DM_OK; i++) {
    dm_Tensor *in[2] = {running[i], mean[i]};
    if (mean[i]) x->st = dm_call_inplace(DM_OP_copy, 2, in, &(int64_t){0});
  }
  return x->st;
}

/* instance_norm with the statistics of each sample: x (N, C, ...) is seen as one sample
   with N C channels, (1, N C, ...), and batch_norm in training normalizes each of them
   by itself. Weight, bias and running statistics are repeated N times for that, in float32,
   so that 16 bits are rounded once. */
static dm_status by_sample(dm_Call *c, dm_X *x) {
  dm_Tensor *t = c->in[0], *one[5];
  const int64_t n = t->shape[0];
  const dm_Ints times = {1, {n}};
  const dm_InstanceNormAttr *a = DM_ATTR(dm_InstanceNormAttr, c);
  const dm_BatchNormAttr train = {true, a->momentum, a->eps, 0};
  int64_t shape[DM_MAX_DIM] = {1, n * t->shape[1]};
  DM_TRY(dm_check_running(c, "running_mean", c->in[1]));
  DM_TRY(dm_check_running(c, "running_var", c->in[2]));
  if (dm_numel(t->ndim - 2, t->shape + 2) == 1)
    return dm_fail(DM_EARG,
                   "instance_norm: one value per channel in %s, wanted more to train on",
                   DM_SHAPE(t));
  for (int d = 2; d < t->ndim; d++) shape[d] = t->shape[d];
  one[0] = x_reshape(x, t, t->ndim, shape);
  for (int i = 1; i < 5; i++)
    one[i] = c->in[i] ? dm_x(x, DM_OP_tile, &times, 1, dm_x_widen(x, c->in[i])) : NULL;
  dm_Tensor *y = dm_x(x, DM_OP_batch_norm, &train, 5, one[0], one[1], one[2], one[3], one[4]);
  c->out[0] = x_reshape(x, y, t->ndim, t->shape);
  return keep_means(x, c->in + 1, one + 1, n);
}

/* use_input_stats false normalizes with the running statistics, as batch_norm in
   evaluation. */
dm_status instance_norm_compose(dm_Call *c, dm_X *x) {
  static const char *const names[] = {"x", "running_mean", "running_var", "weight", "bias"};
  const dm_InstanceNormAttr *a = DM_ATTR(dm_InstanceNormAttr, c);
  const dm_BatchNormAttr eval = {false, a->momentum, a->eps, 0};
  dm_Tensor *const *in = c->in;
  DM_TRY(dm_check_channels(c, in[0]));
  for (int i = 1; i < 5; i++) DM_TRY(dm_check_affine(c, names[i], in[i], in[0]->shape[1]));
  if (a->use_input_stats) return by_sample(c, x);
  if (!in[1] || !in[2])
    return dm_fail(DM_EARG, "instance_norm: running_mean and running_var are wanted where "
                            "use_input_stats is false");
  c->out[0] = dm_x(x, DM_OP_batch_norm, &eval, 5, in[0], in[1], in[2], in[3], in[4]);
  return x->st;
}

/* ---- local_response_norm ---- */

/* Means of t^2 over windows of `size` neighbouring channels, with zeros beyond the
   first and the last channel. Average pooling computes them: over (N, 1, C, L) when t
   has three dims, else over (N, 1, C, L, 1) with avg_pool3d, because PyTorch uses these
   two ops and autocast treats them differently. */
static dm_Tensor *over_channels(dm_X *x, dm_Tensor *t, int64_t size) {
  const bool planes = t->ndim == 3;
  const int64_t shape[4] = {t->shape[0], 1, t->shape[1], dm_numel(t->ndim - 2, t->shape + 2)};
  const dm_PadAttr ends = {{4, {0, 0, size / 2, (size - 1) / 2}}, 0, 0};
  const dm_AvgPoolAttr plane = {{size, 1}, {1, {1}}, {0, 0}, 0, 1, {0, 0}};
  const dm_AvgPool3dAttr space = {{size, 1, 1}, {1, {1}}, {0, 0, 0}, 0, 1, {0, 0}};
  dm_Tensor *v = dm_x(x, DM_OP_pad, &ends, 1, x_reshape(x, x_mul(x, t, t), 4, shape));
  v = planes ? dm_x(x, DM_OP_avg_pool2d, &plane, 1, v)
             : dm_x(x, DM_OP_avg_pool3d, &space, 1,
                    dm_x(x, DM_OP_unsqueeze, &(int64_t){-1}, 1, v));
  return x_reshape(x, v, t->ndim, t->shape);
}

/* y = x / (k + alpha * mean of x^2 over `size` channels)^beta (Krizhevsky et al.
   2012). */
dm_status local_response_norm_compose(dm_Call *c, dm_X *x) {
  const dm_LocalResponseNormAttr *a = c->attr;
  dm_Tensor *t = c->in[0];
  DM_TRY(dm_check_float(c, t, "x"));
  if (t->ndim < 3)
    return dm_fail(DM_EARG,
                   "local_response_norm: x is %s, wanted at least 3 dims (batch, "
                   "channels, positions)",
                   DM_SHAPE(t));
  if (a->size < 1 || a->size > INT32_MAX)
    return dm_fail(DM_EARG, "local_response_norm: size is %lld, wanted at least 1",
                   (long long)a->size);
  c->out[0] = t;
  if (t->numel == 0) return DM_OK;
  dm_Tensor *around = over_channels(x, t, a->size);
  dm_Tensor *base = x_shift(x, x_scale(x, around, a->alpha), a->k);
  dm_Tensor *by = dm_x(x, DM_OP_pow, NULL, 2, base, dm_x_number(x, a->beta));
  c->out[0] = x_div(x, t, by);
  return x->st;
}
