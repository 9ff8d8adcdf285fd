/* interpolate: x (N, C, ...) resized along each spatial dim in turn. Every output
   index of a dim is a weighted sum of 1 (nearest), 2 (linear, bilinear, trilinear)
   or 4 (bicubic) slices of x along that dim, so separable interpolation costs taps
   per dim and not their product. On the CPU the last two dims are resized in one pass by the
   kernel resize; elsewhere, and by 'nearest', slices are gathered by index_select, whose
   gradient scatters back. mode 'area' is adaptive average pooling.

   Positions follow PyTorch: with scale = in / out (or 1 / scale_factor), output i
   lies at scale (i + 1/2) - 1/2; with align_corners at i (in - 1) / (out - 1);
   nearest takes floor(scale i), nearest-exact floor(scale (i + 1/2)). Indices and
   weights are computed once on the host; sums are in float32 or wider and rounded
   once. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "core/copy.h"
#include "cpu/scratch.h"
#include "cpu/threads.h"
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

/* ---- resize: rows and columns of planes by linear or cubic weights, on the CPU ---- */

enum { TAPS = 4, GRAIN = 16384 /* elements that are worth a thread */ };

/* How one dim of n_in elements becomes one of n: element i is the sum of weight[e] times
   element from[e] for e in [start[i], start[i + 1]). n_in 0: it stays. */
typedef struct Sums {
  int64_t n, n_in;
  int64_t *start, *from;
  void *weight; /* of the tensors' dtype */
} Sums;

/* One call: planes of x (rows.n_in, columns.n_in) become planes of y (rows.n, columns.n). A dim
   that stays has its size in n. */
typedef struct Resize {
  const void *x;
  void *y;
  Sums rows, columns;
  int taps;
  atomic_bool failed; /* out of memory */
} Resize;

static void set_weight(Sums *s, dm_DType t, int64_t e, double w) {
  if (t == DM_F64) ((double *)s->weight)[e] = w;
  else ((float *)s->weight)[e] = (float)w;
}

/* The sums of an axis, or with `back` those of its gradient, in the order of the outputs. */
static dm_status list_sums(const Axis *a, int taps, bool back, dm_DType t, Sums *s) {
  const Mode mode = taps == TAPS ? BICUBIC : LINEAR;
  int64_t at[TAPS];
  double w[TAPS];
  s->n = back ? a->in : a->out;
  s->n_in = back ? a->out : a->in;
  s->start = dm_alloc((s->n + 2) * (int64_t)sizeof *s->start);
  s->from = dm_alloc(a->out * taps * (int64_t)sizeof *s->from);
  s->weight = dm_alloc(a->out * taps * dm_dtype_size(t));
  if (!s->start || !s->from || !s->weight)
    return dm_fail(DM_EMEM, "interpolate: out of memory");
  memset(s->start, 0, sizeof *s->start * (size_t)(s->n + 2));
  /* start[i + 2] counts, then start[i + 1] is where the next sum of i goes */
  for (int64_t i = 0; i < a->out; i++) {
    taps_of(a, mode, i, at, w);
    for (int k = 0; k < taps; k++) s->start[(back ? at[k] : i) + 2]++;
  }
  for (int64_t i = 0; i < s->n; i++) s->start[i + 2] += s->start[i + 1];
  for (int64_t i = 0; i < a->out; i++) {
    taps_of(a, mode, i, at, w);
    for (int k = 0; k < taps; k++) {
      const int64_t e = s->start[(back ? at[k] : i) + 1]++;
      s->from[e] = back ? i : at[k];
      set_weight(s, t, e, w[k]);
    }
  }
  return DM_OK;
}

static void free_sums(Sums *s) {
  dm_free(s->start);
  dm_free(s->from);
  dm_free(s->weight);
}

/* take_: a row of sums of `taps` elements of a row x. weigh_: the sum of `taps` rows of n
   elements. sum_columns_, sum_rows_: the same by any number of elements, and of rows of n
   elements at x. Then the thread bodies: rows [begin, end) of y. Forward columns come first, as
   in PyTorch, so a row of x is resized once, and kept; backward rows do. */
#define RESIZE(SUFFIX, TYPE)                                                                   \
  static void take_##SUFFIX(const Resize *j, const TYPE *x, TYPE *DM_RESTRICT y) {             \
    const int64_t *at = j->columns.from, n = j->columns.n;                                     \
    const TYPE *w = j->columns.weight;                                                         \
    if (j->taps == 2)                                                                          \
      for (int64_t i = 0; i < n; i++, at += 2, w += 2)                                         \
        y[i] = x[at[0]] * w[0] + x[at[1]] * w[1];                                              \
    else                                                                                       \
      for (int64_t i = 0; i < n; i++, at += 4, w += 4)                                         \
        y[i] = x[at[0]] * w[0] + x[at[1]] * w[1] + x[at[2]] * w[2] + x[at[3]] * w[3];          \
  }                                                                                            \
  static void weigh_##SUFFIX(const Resize *j, const TYPE *const *row, const TYPE *w,           \
                             int64_t n, TYPE *DM_RESTRICT y) {                                 \
    if (j->taps == 2)                                                                          \
      for (int64_t i = 0; i < n; i++) y[i] = row[0][i] * w[0] + row[1][i] * w[1];              \
    else                                                                                       \
      for (int64_t i = 0; i < n; i++)                                                          \
        y[i] = row[0][i] * w[0] + row[1][i] * w[1] + row[2][i] * w[2] + row[3][i] * w[3];      \
  }                                                                                            \
  static void sum_columns_##SUFFIX(const Sums *s, const TYPE *x, TYPE *DM_RESTRICT y) {        \
    const TYPE *const w = s->weight;                                                           \
    for (int64_t i = 0; i < s->n; i++) {                                                       \
      TYPE sum = 0;                                                                            \
      for (int64_t e = s->start[i]; e < s->start[i + 1]; e++) sum += x[s->from[e]] * w[e];     \
      y[i] = sum;                                                                              \
    }                                                                                          \
  }                                                                                            \
  static void sum_rows_##SUFFIX(const Sums *s, int64_t i, const TYPE *x, int64_t n,            \
                                TYPE *DM_RESTRICT y) {                                         \
    memset(y, 0, sizeof *y *(size_t)n);                                                        \
    for (int64_t e = s->start[i]; e < s->start[i + 1]; e++) {                                  \
      const TYPE *const row = x + s->from[e] * n, w = ((const TYPE *)s->weight)[e];            \
      for (int64_t k = 0; k < n; k++) y[k] += row[k] * w;                                      \
    }                                                                                          \
  }                                                                                            \
  static void resize_##SUFFIX(void *ctx, int64_t begin, int64_t end) {                         \
    Resize *const j = ctx;                                                                     \
    const Sums *const rows = &j->rows, *const columns = &j->columns;                           \
    const int64_t n = columns->n, width = columns->n_in ? columns->n_in : n;                   \
    TYPE *const kept = dm_scratch(DM_SCRATCH_TASK, TAPS * n * (int64_t)sizeof *kept);          \
    int64_t held[TAPS] = {-1, -1, -1, -1}; /* the rows of x that are kept */                   \
    if (!kept) atomic_store(&j->failed, true);                                                 \
    for (int64_t r = kept ? begin : end; r < end; r++) {                                       \
      const int64_t plane = r / rows->n, i = r % rows->n;                                      \
      const TYPE *const x = j->x, *row[TAPS];                                                  \
      TYPE *const y = (TYPE *)j->y + r * n;                                                    \
      if (!rows->n_in) {                                                                       \
        take_##SUFFIX(j, x + r * width, y);                                                    \
        continue;                                                                              \
      }                                                                                        \
      for (int k = 0; k < j->taps; k++) { /* neighbours: each has a slot of its own */         \
        const int64_t at = plane * rows->n_in + rows->from[i * j->taps + k], slot = at % TAPS; \
        row[k] = columns->n_in ? kept + slot * n : x + at * width;                             \
        if (columns->n_in && held[slot] != at)                                                 \
          take_##SUFFIX(j, x + at * width, kept + slot * n);                                   \
        held[slot] = at;                                                                       \
      }                                                                                        \
      weigh_##SUFFIX(j, row, (const TYPE *)rows->weight + i * j->taps, n, y);                  \
    }                                                                                          \
  }                                                                                            \
  static void resize_back_##SUFFIX(void *ctx, int64_t begin, int64_t end) {                    \
    Resize *const j = ctx;                                                                     \
    const Sums *const rows = &j->rows, *const columns = &j->columns;                           \
    const int64_t n = columns->n, width = columns->n_in ? columns->n_in : n;                   \
    TYPE *const sum = dm_scratch(DM_SCRATCH_TASK, width * (int64_t)sizeof *sum);               \
    if (!sum) atomic_store(&j->failed, true);                                                  \
    for (int64_t r = sum ? begin : end; r < end; r++) {                                        \
      const TYPE *const x = j->x;                                                              \
      TYPE *const y = (TYPE *)j->y + r * n;                                                    \
      if (rows->n_in)                                                                          \
        sum_rows_##SUFFIX(rows, r % rows->n, x + r / rows->n * rows->n_in * width, width,      \
                          columns->n_in ? sum : y);                                            \
      if (columns->n_in) sum_columns_##SUFFIX(columns, rows->n_in ? sum : x + r * width, y);   \
    }                                                                                          \
  }
RESIZE(f32, float)
RESIZE(f64, double)
#undef RESIZE

/* The axes of the dims that are resized, the last of x. */
static Axis axis_of(const dm_ResizeAttr *a, int i, int64_t in, dm_DType t) {
  return (Axis){in, a->size.v[i], a->scale.v[i], a->align_corners != 0, t != DM_F64};
}

/* Resizes x, or is the gradient of that by x's sizes: the last dim, the last two, or of three
   the first. */
static dm_status run_resize(dm_Call *c, const dm_ResizeAttr *a, bool back) {
  dm_Tensor *const y = c->out[0], *x = NULL;
  const dm_Tensor *const small = back ? y : c->in[0];
  const dm_DType t = (dm_DType)y->dtype;
  const int dims = (int)a->size.n;
  const int64_t *const size = small->shape + small->ndim - dims;
  Resize j = {.rows = {.n = 1}, .taps = a->cubic ? TAPS : 2};
  if (y->numel == 0) return DM_OK;
  DM_TRY(dm_dense_new(c->in[0], &x));
  dm_status st = DM_OK;
  if (dims == 3) j.columns.n = size[1] * size[2];
  else {
    const Axis columns = axis_of(a, dims - 1, size[dims - 1], t);
    DM_GO(list_sums(&columns, j.taps, back, t, &j.columns));
  }
  if (dims > 1) {
    const Axis rows = axis_of(a, 0, size[0], t);
    DM_GO(list_sums(&rows, j.taps, back, t, &j.rows));
  }
  j.x = dm_tensor_data(x);
  j.y = dm_tensor_data(y);
  dm_RangeFn *const run = t == DM_F64 ? (back ? resize_back_f64 : resize_f64)
                          : back      ? resize_back_f32
                                      : resize_f32;
  dm_parallel_for(y->numel / j.columns.n, dm_max_i64(1, GRAIN / j.columns.n), run, &j);
  dm_scratch_trim(DM_SCRATCH_TASK);
  if (atomic_load(&j.failed)) st = dm_fail(DM_EMEM, "interpolate: out of memory");
done:
  free_sums(&j.rows);
  free_sums(&j.columns);
  dm_tensor_unref(&x);
  return st;
}

/* x of float32 or float64, as checked by interpolate. */
dm_status resize_rule(dm_Call *c) {
  const dm_Ints *size = &DM_ATTR(dm_ResizeAttr, c)->size;
  dm_Meta *const y = &c->out_meta[0];
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  for (int i = 0; i < size->n; i++) y->shape[y->ndim - size->n + i] = size->v[i];
  return DM_OK;
}
dm_status resize_cpu(dm_Call *c) { return run_resize(c, DM_ATTR(dm_ResizeAttr, c), false); }
void resize_grad(dm_Grad *g) {
  const dm_Meta *const m = dm_in_meta(g, 0);
  dm_ResizeBackwardAttr a = {*DM_ATTR(dm_ResizeAttr, g), {0, {0}}};
  a.of.n = a.resize.size.n;
  for (int i = 0; i < a.of.n; i++) a.of.v[i] = m->shape[m->ndim - a.of.n + i];
  g->gx[0] = dm_x(g->x, DM_OP_resize_backward, &a, 1, g->gy[0]);
}

dm_status resize_backward_rule(dm_Call *c) {
  const dm_Ints *of = &DM_ATTR(dm_ResizeBackwardAttr, c)->of;
  dm_Meta *const y = &c->out_meta[0];
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  for (int i = 0; i < of->n; i++) y->shape[y->ndim - of->n + i] = of->v[i];
  return DM_OK;
}
dm_status resize_backward_cpu(dm_Call *c) {
  return run_resize(c, &DM_ATTR(dm_ResizeBackwardAttr, c)->resize, true);
}
void resize_backward_grad(dm_Grad *g) {
  g->gx[0] = dm_x(g->x, DM_OP_resize, &DM_ATTR(dm_ResizeBackwardAttr, g)->resize, 1, g->gy[0]);
}

/* t with its spatial dims resized, the last one first. */
static dm_Tensor *resized_planes(dm_X *x, dm_Tensor *t, int dims, const Axis *axis, Mode mode) {
  const int inner = dims < 2 ? 1 : 2;
  dm_ResizeAttr a = {{inner, {0}}, {inner, {0}}, mode == BICUBIC, axis[0].align};
  for (int k = 0; k < inner; k++) {
    a.size.v[k] = axis[dims - inner + k].out;
    a.scale.v[k] = axis[dims - inner + k].scale;
  }
  t = dm_x(x, DM_OP_resize, &a, 1, t);
  if (dims < 3) return t;
  const dm_ResizeAttr deep = {{3, {axis[0].out, axis[1].out, axis[2].out}},
                              {3, {axis[0].scale, 1, 1}},
                              false,
                              axis[0].align};
  return dm_x(x, DM_OP_resize, &deep, 1, t);
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
    /* what keeps its size is copied, whatever the factor says, as in PyTorch */
    const bool copies =
        in == out && (a->antialias || mode == LINEAR || mode == BILINEAR || mode == TRILINEAR);
    const double ratio = copies ? 1 : by_factor ? 1 / factor : (double)in / (double)out;
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
  const bool whole = weighs && !a->antialias && c->in[0]->device.type == DM_CPU;
  if (whole) t = resized_planes(x, t, dims, axis, mode);
  for (int k = dims - 1; k >= 0 && !whole && x->st == DM_OK; k--) /* in PyTorch's order */
    t = a->antialias ? filtered(x, t, (last ? 1 : 2) + k, &axis[k], mode)
                     : resized(x, t, (last ? 1 : 2) + k, &axis[k], mode, c->base);
  t = x_cast(x, t, dtype);
  if (last) t = dm_x(x, DM_OP_permute, &(dm_Ints){4, {0, 3, 1, 2}}, 1, t);
  c->out[0] = t;
  return x->st;
}
