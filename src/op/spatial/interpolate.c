/* interpolate: x (N, C, ...) resized along each spatial dim in turn. Every output
   index of a dim is a weighted sum of 1 (nearest), 2 (linear, bilinear, trilinear)
   or 4 (bicubic) slices of x along that dim, so separable interpolation costs taps
   per dim and not their product; slices are gathered by index_select, whose gradient
   scatters back. mode 'area' is adaptive average pooling.

   Positions follow PyTorch: with scale = in / out (or 1 / scale_factor), output i
   lies at scale (i + 1/2) - 1/2; with align_corners at i (in - 1) / (out - 1);
   nearest takes floor(scale i), nearest-exact floor(scale (i + 1/2)). Indices and
   weights are computed once on the host; sums are in float32 or wider and rounded
   once. */
#include <math.h>

#include "base/error.h"
#include "op/index/index.h"
#include "op/pointwise/pointwise.h"

typedef enum Mode { NEAREST, LINEAR, BILINEAR, BICUBIC, TRILINEAR, AREA, NEAREST_EXACT } Mode;

/* One resized dim: its size before and after. */
typedef struct Axis {
  int64_t in, out;
  double scale;       /* input elements per output element */
  bool align, narrow; /* narrow: positions and weights are rounded to float32, as PyTorch's */
} Axis;

/* v in the precision that PyTorch computes positions in. */
static double rounded(const Axis *a, double v) { return a->narrow ? (double)(float)v : v; }

/* The fractional position of output i in the input. */
static double position_of(const Axis *a, int64_t i) {
  if (a->align) return rounded(a, a->scale * (double)i);
  return rounded(a, rounded(a, a->scale * ((double)i + 0.5)) - 0.5);
}

/* The input index of output i for nearest (floor of the scaled index) and
   nearest-exact (of its centre). */
static int64_t nearest(const Axis *a, int64_t i, bool exact) {
  const double at = rounded(a, a->scale * ((double)i + (exact ? 0.5 : 0)));
  return dm_min_i64((int64_t)floor(at), a->in - 1);
}

/* Weights of the four taps at the distances 1 + t, t, 1 - t, 2 - t: cubic
   convolution (Keys 1981) with a = -0.75. */
static void cubic_weights(double t, double w[4]) {
  const double a = -0.75;
  for (int k = 0; k < 4; k++) {
    const double d = fabs(t + 1 - k);
    w[k] = d <= 1 ? ((a + 2) * d - (a + 3)) * d * d + 1
                  : ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
  }
}

/* Sets the input indices and weights of output i and returns their number; indices
   outside are clamped to the border. */
static int taps_of(const Axis *a, Mode mode, int64_t i, int64_t at[4], double w[4]) {
  if (mode == NEAREST || mode == NEAREST_EXACT) {
    at[0] = nearest(a, i, mode == NEAREST_EXACT);
    w[0] = 1;
    return 1;
  }
  double p = position_of(a, i);
  if (mode == BICUBIC) {
    const double below = floor(p);
    cubic_weights(rounded(a, p - below), w);
    for (int k = 0; k < 4; k++)
      at[k] = dm_max_i64(0, dm_min_i64((int64_t)below - 1 + k, a->in - 1));
    return 4;
  }
  if (p < 0) p = 0;
  at[0] = dm_min_i64((int64_t)p, a->in - 1);
  at[1] = dm_min_i64(at[0] + 1, a->in - 1);
  w[1] = rounded(a, fmin(p - (double)at[0], 1));
  w[0] = rounded(a, 1 - w[1]);
  return 2;
}

/* t with dim d resized: sum over taps k of index_select(t, d, from[k]) * weight[k]. */
static dm_Tensor *resized(dm_X *x, dm_Tensor *t, int d, const Axis *a, Mode mode, int base) {
  const int taps = mode == BICUBIC ? 4 : mode == NEAREST || mode == NEAREST_EXACT ? 1 : 2;
  int64_t *at[4] = {NULL}, shape[DM_MAX_DIM];
  dm_Tensor *from[4] = {NULL}, *weight[4] = {NULL}, *sum = NULL;
  for (int k = 0; k < t->ndim; k++) shape[k] = k == d ? a->out : 1;
  for (int k = 0; k < taps && x->st == DM_OK; k++) {
    from[k] = dm_x_positions(x, a->out, &at[k]);
    if (x->st == DM_OK)
      x->st = dm_tensor_new(DM_F64, 1, &a->out, (dm_Device){DM_CPU, 0}, &weight[k]);
    weight[k] = dm_x_own(x, weight[k]);
  }
  if (x->st != DM_OK) return NULL;
  for (int64_t i = 0; i < a->out; i++) {
    int64_t index[4];
    double w[4];
    taps_of(a, mode, i, index, w);
    for (int k = 0; k < taps; k++) {
      at[k][i] = index[k] + base;
      ((double *)dm_tensor_data(weight[k]))[i] = w[k];
    }
  }
  for (int k = 0; k < taps && x->st == DM_OK; k++) {
    dm_Tensor *slice = dm_x_select(x, t, d, from[k]);
    if (taps > 1) {
      dm_Tensor *w = x_reshape(x, x_cast(x, weight[k], (dm_DType)t->dtype), t->ndim, shape);
      slice = x_mul(x, slice, dm_x_there(x, w, t->device));
    }
    sum = sum ? x_add(x, sum, slice) : slice;
  }
  return sum;
}

/* ---- antialias ---- */

/* The filter at a distance of t: a triangle, or cubic convolution with a = -1/2. */
static double filter_at(Mode mode, double t) {
  const double a = -0.5;
  t = fabs(t);
  if (mode == BILINEAR) return t < 1 ? 1 - t : 0;
  if (t < 1) return ((a + 2) * t - (a + 3)) * t * t + 1;
  return t < 2 ? (((t - 5) * t + 8) * t - 4) * a : 0;
}

/* t with dim d resized by a filter that is as wide as `scale` elements where that is more than
   one, whose weights sum to 1: a product with the matrix (in, out) of the weights. */
static dm_Tensor *filtered(dm_X *x, dm_Tensor *t, int d, const Axis *a, Mode mode) {
  const double wide = fmax(a->scale, 1), support = (mode == BILINEAR ? 1 : 2) * wide;
  dm_Tensor *weights = NULL;
  x->st = x->st != DM_OK ? x->st
                         : dm_tensor_new(DM_F64, 2, (int64_t[]){a->in, a->out},
                                         (dm_Device){DM_CPU, 0}, &weights);
  weights = dm_x_own(x, weights);
  if (x->st != DM_OK) return NULL;
  double *const w = dm_tensor_data(weights);
  for (int64_t i = 0; i < a->out; i++) {
    const double centre = a->scale * ((double)i + 0.5);
    const int64_t first = dm_max_i64((int64_t)(centre - support + 0.5), 0);
    const int64_t end = dm_min_i64((int64_t)(centre + support + 0.5), a->in);
    double sum = 0;
    for (int64_t k = first; k < end; k++)
      sum += filter_at(mode, ((double)k - centre + 0.5) / wide);
    for (int64_t k = 0; k < a->in; k++) {
      const bool inside = k >= first && k < end;
      w[k * a->out + i] = inside ? filter_at(mode, ((double)k - centre + 0.5) / wide) / sum : 0;
    }
  }
  weights = dm_x_there(x, x_cast(x, weights, (dm_DType)t->dtype), t->device);
  return x_transpose(x, x_matmul(x, x_transpose(x, t, d, -1), weights), d, -1);
}

/* The number of spatial dims that the mode is for; 0: any. */
static int dims_of(Mode mode) {
  switch (mode) {
  case LINEAR: return 1;
  case BILINEAR:
  case BICUBIC: return 2;
  case TRILINEAR: return 3;
  default: return 0;
  }
}

/* Fails unless mode, rank, size or scale_factor and align_corners fit together. */
static dm_status check(const dm_Call *c, const dm_InterpolateAttr *a, int dims) {
  static const char *const words[] = {"nearest",   "linear", "bilinear",     "bicubic",
                                      "trilinear", "area",   "nearest-exact"};
  const Mode mode = (Mode)a->mode;
  const int wanted = dims_of(mode);
  if (dims < 1 || dims > 3 || (wanted && wanted != dims))
    return dm_fail(DM_EARG,
                   "interpolate: x has shape %s, '%s' wants %s dims behind the channels",
                   DM_SHAPE(c->in[0]), words[mode],
                   wanted == 1   ? "1"
                   : wanted == 2 ? "2"
                   : wanted == 3 ? "3"
                                 : "1 to 3");
  if ((a->size.n >= 0) == (a->scale_factor.n >= 0))
    return dm_fail(DM_EARG, "interpolate: wanted size or scale_factor, one of them");
  if (a->size.n >= 0 && a->size.n != 1 && a->size.n != dims)
    return dm_fail(DM_EARG, "interpolate: size has %lld numbers, wanted %d",
                   (long long)a->size.n, dims);
  if (a->scale_factor.n > 1 && a->scale_factor.n != dims)
    return dm_fail(DM_EARG, "interpolate: scale_factor has %lld numbers, wanted %d",
                   (long long)a->scale_factor.n, dims);
  for (int k = 0; k < a->scale_factor.n; k++)
    if (!(a->scale_factor.v[k] > 0 && a->scale_factor.v[k] < 1e6))
      return dm_fail(DM_EARG, "interpolate: scale_factor is %g, wanted more than 0",
                     a->scale_factor.v[k]);
  if (a->recompute_scale_factor && a->size.n >= 0)
    return dm_fail(DM_EARG,
                   "interpolate: recompute_scale_factor is for a scale_factor, not a size");
  if (a->antialias && mode != BILINEAR && mode != BICUBIC)
    return dm_fail(DM_EARG, "interpolate: antialias with '%s', wanted bilinear or bicubic",
                   words[mode]);
  if (a->align_corners && (wanted == 0))
    return dm_fail(DM_EARG, "interpolate: align_corners with '%s', which has no corners",
                   words[mode]);
  return mode == NEAREST || mode == NEAREST_EXACT ? DM_OK : dm_check_float(c, c->in[0], "x");
}

/* Computes size and scale of every axis, then resizes dim by dim, the last one
   first. */
dm_status interpolate_compose(dm_Call *c, dm_X *x) {
  const dm_InterpolateAttr *a = DM_ATTR(dm_InterpolateAttr, c);
  dm_Tensor *t = c->in[0];
  const int dims = t->ndim - 2;
  const Mode mode = (Mode)a->mode;
  DM_TRY(check(c, a, dims));
  const dm_DType dtype = (dm_DType)t->dtype;
  Axis axis[3];
  for (int k = 0; k < dims; k++) {
    const int64_t in = t->shape[2 + k];
    const double factor = a->scale_factor.v[a->scale_factor.n > 1 ? k : 0];
    const int64_t out = a->size.n == 1   ? a->size.v[0]
                        : a->size.n >= 0 ? a->size.v[k]
                                         : (int64_t)floor((double)in * factor);
    if (in < 1 || out < 1 || out > INT32_MAX)
      return dm_fail(DM_EARG, "interpolate: dim %d from size %lld to %lld, wanted at least 1",
                     2 + k + c->base, (long long)in, (long long)out);
    Axis *s = &axis[k];
    *s = (Axis){in, out, 0, a->align_corners != 0, dtype != DM_F64};
    const bool by_factor = a->scale_factor.n >= 0 && !a->recompute_scale_factor;
    const double ratio = by_factor ? 1 / factor : (double)in / (double)out;
    s->scale = !s->align ? ratio : out > 1 ? (double)(in - 1) / (double)(out - 1) : 0;
    s->scale = rounded(s, s->scale);
  }
  if (mode == AREA) {
    int64_t size[3];
    for (int k = 0; k < dims; k++) size[k] = axis[k].out;
    static const int op[] = {DM_OP_adaptive_avg_pool1d, DM_OP_adaptive_avg_pool2d,
                             DM_OP_adaptive_avg_pool3d};
    c->out[0] = dm_x(x, op[dims - 1], size, 1, t);
    return x->st;
  }
  const bool weighs = mode != NEAREST && mode != NEAREST_EXACT;
  /* a channels-last tensor is contiguous as (N, H, W, C), and so is its result */
  const bool last = t->device.type != DM_CPU && dm_tensor_is_channels_last(t);
  if (weighs && dtype != DM_F64) t = x_cast(x, t, DM_F32);
  if (last) t = dm_x(x, DM_OP_permute, &(dm_Ints){4, {0, 2, 3, 1}}, 1, t);
  for (int k = dims - 1; k >= 0 && x->st == DM_OK; k--) /* the last dim first, as in PyTorch */
    t = a->antialias ? filtered(x, t, (last ? 1 : 2) + k, &axis[k], mode)
                     : resized(x, t, (last ? 1 : 2) + k, &axis[k], mode, c->base);
  t = x_cast(x, t, dtype);
  if (last) t = dm_x(x, DM_OP_permute, &(dm_Ints){4, {0, 3, 1, 2}}, 1, t);
  c->out[0] = t;
  return x->st;
}
