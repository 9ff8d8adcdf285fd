/* 2-d pooling over x (N, C, H, W) or (C, H, W): each window of a plane (H, W) gives
   one output element; the planes are independent and are divided among threads.

   Max pooling: the forward pass also stores which element of its window won, as a
   code (row * kernel width + column in the window). A code takes one byte for
   windows of up to 256 elements, where an int64 index takes eight, so a training
   step saves little. The gradient, max_pool2d_scatter, adds gy at the elements that
   the codes name; max_pool2d_gather reads these elements. Both turn a code into a
   position with a small table, and each is the other's gradient. Indices for the
   caller come from the codes by max_pool2d_position.

   Average pooling: each axis has a table of spans [lo, hi) with a divisor, for
   windows of a fixed size as for adaptive ones, so that both are one kernel. Rows of
   a window are added first, along whole rows of the plane, and then the columns.
   Spreading gy / divisor over the spans is the gradient of the mean, and the mean is
   the gradient of the spreading.

   16-bit planes are converted one at a time into a buffer of the running thread. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "core/copy.h"
#include "cpu/threads.h"
#include "cpu/vec.h"
#include "op/index/index.h"
#include "op/pointwise/pointwise.h"
#include "op/reduce/reduce.h"
#include "op/spatial/pool.h"

enum { PLANE_GRAIN = 65536 }; /* elements that are worth a thread */

/* ---- planes ---- */

/* The number of planes of t (N, C, H, W): N C. */
static int64_t n_planes(const dm_Tensor *t) { return dm_numel(t->ndim - 2, t->shape); }

/* Fails unless t has the dims (N, C, H, W) or (C, H, W). */
static dm_status check_planes(const dm_Call *c, const dm_Tensor *t) {
  if (t->ndim == 3 || t->ndim == 4) return DM_OK;
  return dm_fail(DM_EARG,
                 "%s: input has shape %s, wanted {n, channels, height, width} or "
                 "{channels, height, width}",
                 c->op->name, DM_SHAPE(t));
}

/* Sets the meta of output i: like x with planes (h, w). On devices other than the
   CPU a channels-last batch keeps that layout, because its neighbours are
   convolutions that use it; a batch of 1 x 1 planes counts as channels-last too. */
static void planes_meta(dm_Call *c, int i, const dm_Tensor *like, dm_DType t, int64_t h,
                        int64_t w) {
  dm_out_like(c, i, like, t);
  c->out_meta[i].channels_last =
      like->device.type != DM_CPU && dm_tensor_is_channels_last(like);
  c->out_meta[i].shape[like->ndim - 2] = h;
  c->out_meta[i].shape[like->ndim - 1] = w;
}

/* ---- windows of a fixed size ---- */

enum {
  MAX_WINDOW = 1 << 20
}; /* the limit of kernel, stride and dilation; no product of them overflows */

/* With slack = in + 2 pad - dil (kernel - 1) - 1 the outputs are floor(slack /
   stride) + 1; ceil_mode adds stride - 1 before the division, which rounds up. Limits
   on the numbers keep all products in int64. */
dm_status dm_pool_axis_of(const dm_Call *c, const char *name, int64_t in, int64_t kernel,
                          int64_t stride, int64_t pad, int64_t dil, bool ceil_mode,
                          dm_PoolAxis *a) {
  *a = (dm_PoolAxis){in, 0, kernel, stride, pad, dil};
  if (kernel < 1 || stride < 1 || dil < 1 || kernel > MAX_WINDOW || stride > MAX_WINDOW ||
      dil > MAX_WINDOW)
    return dm_fail(DM_EARG, "%s: kernel %lld, stride %lld, dilation %lld: wanted 1 to %d",
                   c->op->name, (long long)kernel, (long long)stride, (long long)dil,
                   MAX_WINDOW);
  if (pad < 0 || pad > kernel / 2)
    return dm_fail(DM_EARG, "%s: padding %lld, wanted 0 to half of the kernel's %lld",
                   c->op->name, (long long)pad, (long long)kernel);
  const int64_t slack = in + 2 * pad - dil * (kernel - 1) - 1;
  const int64_t up = slack + (ceil_mode ? stride - 1 : 0);
  a->out = up < 0 ? 0 : up / stride + 1;
  /* in ceil mode the last window must start inside the input or its left padding */
  if (ceil_mode && a->out > 0 && (a->out - 1) * stride >= in + pad) a->out--;
  if (a->out >= 1) return DM_OK;
  return dm_fail(
      DM_EARG, "%s: a window that spans %lld does not fit into %s %lld, padding included",
      c->op->name, (long long)(dil * (kernel - 1) + 1), name, (long long)(in + 2 * pad));
}

/* A stride has one or two numbers, or none for the kernel's size. */
static dm_status check_stride(const dm_Call *c, const dm_Ints *stride) {
  if (stride->n <= 2) return DM_OK;
  return dm_fail(DM_EARG, "%s: stride has %lld numbers, wanted 1 or 2", c->op->name,
                 (long long)stride->n);
}

/* ---- maxima ---- */

/* Describes both axes of a max pooling over planes of this size. */
static dm_status max_axes(const dm_Call *c, const dm_MaxPoolAttr *a, const int64_t size[2],
                          dm_PoolAxis ax[2]) {
  DM_TRY(check_stride(c, &a->stride));
  for (int i = 0; i < 2; i++)
    DM_TRY(dm_pool_axis_of(c, i ? "width" : "height", size[i], a->kernel_size[i],
                           dm_pool_stride(&a->stride, a->kernel_size, i), a->padding[i],
                           a->dilation[i], a->ceil_mode != 0, &ax[i]));
  if (a->kernel_size[0] * a->kernel_size[1] > INT32_MAX) /* a code must fit in int32 */
    return dm_fail(DM_EARG, "%s: a window of %lld elements", c->op->name,
                   (long long)(a->kernel_size[0] * a->kernel_size[1]));
  return DM_OK;
}

/* uint8 when every code fits in a byte. */
static dm_DType code_dtype(const dm_MaxPoolAttr *a) {
  return a->kernel_size[0] * a->kernel_size[1] <= 256 ? DM_U8 : DM_I32;
}

/* The job that all threads of one call share. */
typedef struct MaxJob {
  dm_PoolAxis h, w;
  dm_DType dtype, code_dtype;
  const char *in;
  char *out, *code;
  const int64_t *offset; /* the offset of each code, see dm_pool_position */
  int64_t base;          /* positions count from this base */
  atomic_bool no_memory;
} MaxJob;

/* The code of output i, stored as uint8 or int32. */
static int64_t code_at(const MaxJob *j, int64_t i) {
  return j->code_dtype == DM_U8 ? (int64_t)((const uint8_t *)j->code)[i]
                                : (int64_t)((const int32_t *)(const void *)j->code)[i];
}

/* Stores the codes of n outputs from index `at` on. */
static void store_codes(const MaxJob *j, int64_t at, int64_t n, const int32_t *code) {
  if (j->code_dtype == DM_U8) {
    uint8_t *to = (uint8_t *)j->code + at;
    for (int64_t i = 0; i < n; i++) to[i] = (uint8_t)code[i];
  } else {
    memcpy(j->code + at * 4, code, (size_t)n * 4);
  }
}

/* The outputs [*begin, *end) whose window element k lies inside the axis, so that
   the inner loop needs no bounds check. */
static void inside(const dm_PoolAxis *a, int64_t k, int64_t *begin, int64_t *end) {
  const int64_t shift = k * a->dil - a->pad; /* input = out * stride + shift */
  *begin = shift >= 0 ? 0 : (-shift + a->stride - 1) / a->stride;
  *end = shift >= a->in ? 0 : dm_min_i64(a->out, (a->in - 1 - shift) / a->stride + 1);
}

/* The rows and columns of windows that have their own loop: 2 by 2, 1 by 2 or 2 by 1, side by
   side and without padding. 0: others. */
static int64_t side_of(const dm_PoolAxis *a) {
  return a->kernel <= 2 && a->stride == a->kernel && a->pad == 0 && a->dil == 1 &&
                 a->kernel * a->out <= a->in
             ? a->kernel
             : 0;
}

/* v replaces the best so far when it is larger or NaN (of several NaN the last one
   stays). */
#define TAKE(V, K)                              \
  do {                                          \
    const bool wins = (V) > best || (V) != (V); \
    best = wins ? (V) : best;                   \
    k = wins ? (K) : k;                         \
  } while (0)

/* One plane x to y, in one compute type; code and first have w.out elements. */
#define MAX_PLANE(SUFFIX, TYPE, LOWEST)                                                        \
  static void max_row_##SUFFIX(const MaxJob *j, const TYPE *x, int64_t p, TYPE *y,             \
                               int32_t *code) {                                                \
    const dm_PoolAxis *h = &j->h, *w = &j->w;                                                  \
    for (int64_t r = dm_pool_first_inside(h, p); r < h->kernel; r++) {                         \
      const int64_t row = p * h->stride - h->pad + r * h->dil;                                 \
      if (row >= h->in) break;                                                                 \
      for (int64_t s = 0; s < w->kernel; s++) {                                                \
        int64_t begin, end;                                                                    \
        inside(w, s, &begin, &end);                                                            \
        const TYPE *from = x + row * w->in + s * w->dil - w->pad;                              \
        for (int64_t q = begin; q < end; q++) {                                                \
          TYPE best = y[q];                                                                    \
          int32_t k = code[q];                                                                 \
          const TYPE v = from[q * w->stride];                                                  \
          TAKE(v, (int32_t)(r * w->kernel + s));                                               \
          y[q] = best;                                                                         \
          code[q] = k;                                                                         \
        }                                                                                      \
      }                                                                                        \
    }                                                                                          \
  }                                                                                            \
  static void max_plane_##SUFFIX(const MaxJob *j, const TYPE *x, TYPE *y, int64_t at,          \
                                 int32_t *code, const int32_t *first) {                        \
    const int64_t q_end = j->w.out;                                                            \
    for (int64_t p = 0; p < j->h.out; p++, y += q_end, at += q_end) {                          \
      const int32_t r = (int32_t)(dm_pool_first_inside(&j->h, p) * j->w.kernel);               \
      for (int64_t q = 0; q < q_end; q++) y[q] = LOWEST;                                       \
      for (int64_t q = 0; q < q_end; q++) code[q] = r + first[q];                              \
      max_row_##SUFFIX(j, x, p, y, code);                                                      \
      store_codes(j, at, q_end, code);                                                         \
    }                                                                                          \
  }                                                                                            \
  /* windows of `rows` by `cols`, 2 at most, side by side */                                   \
  static inline void max_side_##SUFFIX(const MaxJob *j, int64_t rows, int64_t cols,            \
                                       const TYPE *DM_RESTRICT x, TYPE *DM_RESTRICT y,         \
                                       int64_t at, int32_t *DM_RESTRICT code) {                \
    const int64_t n = j->w.out;                                                                \
    for (int64_t p = 0; p < j->h.out; p++, y += n, at += n) {                                  \
      const TYPE *up = x + rows * p * j->w.in, *low = up + j->w.in;                            \
      for (int64_t q = 0; q < n; q++) {                                                        \
        TYPE best = up[cols * q];                                                              \
        int32_t k = 0;                                                                         \
        if (cols == 2) TAKE(up[cols * q + 1], 1);                                              \
        if (rows == 2) TAKE(low[cols * q], (int32_t)cols);                                     \
        if (rows == 2 && cols == 2) TAKE(low[cols * q + 1], 3);                                \
        y[q] = best;                                                                           \
        code[q] = k;                                                                           \
      }                                                                                        \
      store_codes(j, at, n, code);                                                             \
    }                                                                                          \
  }                                                                                            \
  static void max_windows_##SUFFIX(const MaxJob *j, const TYPE *x, TYPE *y, int64_t at,        \
                                   int32_t *code, const int32_t *first) {                      \
    switch (side_of(&j->h) * 3 + side_of(&j->w)) {                                             \
    case 8: max_side_##SUFFIX(j, 2, 2, x, y, at, code); return;                                \
    case 7: max_side_##SUFFIX(j, 2, 1, x, y, at, code); return;                                \
    case 5: max_side_##SUFFIX(j, 1, 2, x, y, at, code); return;                                \
    default: max_plane_##SUFFIX(j, x, y, at, code, first);                                     \
    }                                                                                          \
  }                                                                                            \
  static void max_range_##SUFFIX(void *ctx, int64_t begin, int64_t end) {                      \
    MaxJob *j = ctx;                                                                           \
    const int64_t n_in = j->h.in * j->w.in, n_out = j->h.out * j->w.out;                       \
    const int64_t size = dm_dtype_size(j->dtype);                                              \
    const bool direct = dm_dtype_size(j->dtype) == sizeof(TYPE);                               \
    const int64_t n_wide = direct ? 0 : n_in + n_out;                                          \
    TYPE *wide = dm_alloc(n_wide * (int64_t)sizeof(TYPE) + j->w.out * 8);                      \
    if (!wide) {                                                                               \
      atomic_store(&j->no_memory, true);                                                       \
      return;                                                                                  \
    }                                                                                          \
    int32_t *code = (int32_t *)(void *)(wide + n_wide), *first = code + j->w.out;              \
    for (int64_t q = 0; q < j->w.out; q++) first[q] = (int32_t)dm_pool_first_inside(&j->w, q); \
    for (int64_t i = begin; i < end; i++) {                                                    \
      const char *in = j->in + i * n_in * size;                                                \
      char *out = j->out + i * n_out * size;                                                   \
      const TYPE *x = direct ? (const TYPE *)(const void *)in : wide;                          \
      TYPE *y = direct ? (TYPE *)(void *)out : wide + n_in;                                    \
      if (!direct) dm_load_##SUFFIX(j->dtype, in, 1, n_in, wide);                              \
      max_windows_##SUFFIX(j, x, y, i *n_out, code, first);                                    \
      if (!direct) dm_store_##SUFFIX(j->dtype, out, 1, n_out, y);                              \
    }                                                                                          \
    dm_free(wide);                                                                             \
  }                                                                                            \
  /* the gradient: in = gy, out = gx */                                                        \
  static void scatter_range_##SUFFIX(void *ctx, int64_t begin, int64_t end) {                  \
    MaxJob *j = ctx;                                                                           \
    const int64_t n_in = j->h.in * j->w.in, n_out = j->h.out * j->w.out;                       \
    const int64_t size = dm_dtype_size(j->dtype);                                              \
    const bool direct = dm_dtype_size(j->dtype) == sizeof(TYPE);                               \
    TYPE *wide = direct ? NULL : dm_alloc((n_in + n_out) * (int64_t)sizeof(TYPE));             \
    if (!direct && !wide) {                                                                    \
      atomic_store(&j->no_memory, true);                                                       \
      return;                                                                                  \
    }                                                                                          \
    for (int64_t i = begin; i < end; i++) {                                                    \
      const char *in = j->in + i * n_out * size;                                               \
      char *out = j->out + i * n_in * size;                                                    \
      const TYPE *gy = direct ? (const TYPE *)(const void *)in : wide + n_in;                  \
      TYPE *gx = direct ? (TYPE *)(void *)out : wide;                                          \
      if (!direct) dm_load_##SUFFIX(j->dtype, in, 1, n_out, wide + n_in);                      \
      memset(gx, 0, (size_t)n_in * sizeof(TYPE));                                              \
      int64_t o = 0;                                                                           \
      for (int64_t p = 0; p < j->h.out; p++)                                                   \
        for (int64_t q = 0; q < j->w.out; q++, o++) {                                          \
          const int64_t to =                                                                   \
              dm_pool_corner(&j->h, &j->w, p, q) + j->offset[code_at(j, i * n_out + o)];       \
          if (to >= 0 && to < n_in) gx[to] += gy[o];                                           \
        }                                                                                      \
      if (!direct) dm_store_##SUFFIX(j->dtype, out, 1, n_in, gx);                              \
    }                                                                                          \
    dm_free(wide);                                                                             \
  }
MAX_PLANE(f32, float, -INFINITY)
MAX_PLANE(f64, double, (double)-INFINITY)
MAX_PLANE(i64, int64_t, INT64_MIN)
#undef MAX_PLANE
#undef TAKE

/* out[o] = the element of the plane that output o's code names, or 0 where it lies
   outside. */
static void gather_range(void *ctx, int64_t begin, int64_t end) {
  MaxJob *j = ctx;
  const int64_t n_in = j->h.in * j->w.in, n_out = j->h.out * j->w.out;
  const int64_t size = dm_dtype_size(j->dtype);
  for (int64_t i = begin; i < end; i++) {
    int64_t o = i * n_out;
    for (int64_t p = 0; p < j->h.out; p++)
      for (int64_t q = 0; q < j->w.out; q++, o++) {
        const int64_t from = dm_pool_corner(&j->h, &j->w, p, q) + j->offset[code_at(j, o)];
        if (from < 0 || from >= n_in) memset(j->out + o * size, 0, (size_t)size);
        else memcpy(j->out + o * size, j->in + (i * n_in + from) * size, (size_t)size);
      }
  }
}

/* out[o] = the flat position in the plane (H W) that output o's code names, plus
   base. */
static void position_range(void *ctx, int64_t begin, int64_t end) {
  MaxJob *j = ctx;
  int64_t o = begin * j->h.out * j->w.out, *out = (int64_t *)(void *)j->out;
  for (int64_t i = begin; i < end; i++)
    for (int64_t p = 0; p < j->h.out; p++)
      for (int64_t q = 0; q < j->w.out; q++, o++)
        out[o] = dm_pool_corner(&j->h, &j->w, p, q) + j->offset[code_at(j, o)] + j->base;
}

/* Runs fn over all planes in parallel, with the table of code offsets when `with_offsets`
   is set. */
static dm_status run_max(dm_Call *c, MaxJob *j, const dm_PoolAxis ax[2], int64_t planes,
                         bool with_offsets, dm_RangeFn *fn) {
  j->h = ax[0];
  j->w = ax[1];
  atomic_init(&j->no_memory, false);
  int64_t *offset = NULL;
  if (with_offsets) {
    const int64_t n = j->h.kernel * j->w.kernel;
    offset =
        dm_alloc(dm_max_i64(n, j->code_dtype == DM_U8 ? 256 : n) * (int64_t)sizeof *offset);
    if (!offset) return dm_fail(DM_EMEM, "%s: out of memory", c->op->name);
    for (int64_t k = 0; k < n; k++) offset[k] = dm_pool_position(&j->h, &j->w, (int32_t)k);
    j->offset = offset;
  }
  dm_parallel_for(planes, dm_max_i64(1, PLANE_GRAIN / (j->h.in * j->w.in + 1)), fn, j);
  dm_free(offset);
  if (atomic_load(&j->no_memory)) return dm_fail(DM_EMEM, "%s: out of memory", c->op->name);
  return DM_OK;
}

/* out: y and its codes, both (..., P, Q). */
dm_status max_pool2d_coded_rule(dm_Call *c) {
  const dm_MaxPoolAttr *a = DM_ATTR(dm_MaxPoolAttr, c);
  const dm_Tensor *x = c->in[0];
  dm_PoolAxis ax[2];
  DM_TRY(check_planes(c, x));
  DM_TRY(max_axes(c, a, dm_plane_size(x), ax));
  planes_meta(c, 0, x, (dm_DType)x->dtype, ax[0].out, ax[1].out);
  planes_meta(c, 1, x, code_dtype(a), ax[0].out, ax[1].out);
  return DM_OK;
}

/* y and codes of all planes, in the compute type of x's dtype. */
dm_status max_pool2d_coded_cpu(dm_Call *c) {
  const dm_MaxPoolAttr *a = DM_ATTR(dm_MaxPoolAttr, c);
  dm_Tensor *x;
  dm_PoolAxis ax[2];
  if (c->out[0]->numel == 0) return DM_OK;
  DM_TRY(max_axes(c, a, dm_plane_size(c->in[0]), ax));
  DM_TRY(dm_dense_new(c->in[0], &x));
  MaxJob j = {.dtype = (dm_DType)x->dtype,
              .code_dtype = code_dtype(a),
              .in = dm_tensor_data(x),
              .out = dm_tensor_data(c->out[0]),
              .code = dm_tensor_data(c->out[1])};
  const dm_DType t = dm_compute_dtype(j.dtype);
  const dm_status st = run_max(c, &j, ax, n_planes(x), false,
                               t == DM_F32   ? max_range_f32
                               : t == DM_F64 ? max_range_f64
                                             : max_range_i64);
  dm_tensor_unref(&x);
  return st;
}

/* dx is gy scattered to the elements that won. */
void max_pool2d_coded_grad(dm_Grad *g) {
  if (!g->gy[0] || !g->need[0]) return;
  const dm_Meta *m = dm_in_meta(g, 0);
  const dm_MaxPoolSizedAttr a = {*DM_ATTR(dm_MaxPoolAttr, g),
                                 {m->shape[m->ndim - 2], m->shape[m->ndim - 1]}};
  g->gx[0] = dm_x(g->x, DM_OP_max_pool2d_scatter, &a, 2, g->gy[0], g->out[1]);
}

/* in: gy, codes (..., P, Q); out: dx (..., H, W), where `size` gives H and W. */
dm_status max_pool2d_scatter_rule(dm_Call *c) {
  const dm_MaxPoolSizedAttr *a = DM_ATTR(dm_MaxPoolSizedAttr, c);
  planes_meta(c, 0, c->in[0], (dm_DType)c->in[0]->dtype, a->size[0], a->size[1]);
  return DM_OK;
}

/* Runs scatter or gather: inputs are values and codes, made contiguous. */
static dm_status run_coded(dm_Call *c, const dm_MaxPoolAttr *a, const int64_t size[2],
                           dm_RangeFn *fn) {
  dm_Tensor *values = NULL, *codes = NULL;
  dm_status st = DM_OK;
  dm_PoolAxis ax[2];
  if (c->out[0]->numel == 0) return DM_OK;
  DM_TRY(max_axes(c, a, size, ax));
  DM_GO(dm_dense_new(c->in[0], &values));
  DM_GO(dm_dense_new(c->in[1], &codes));
  MaxJob j = {.dtype = (dm_DType)values->dtype,
              .code_dtype = (dm_DType)codes->dtype,
              .in = dm_tensor_data(values),
              .out = dm_tensor_data(c->out[0]),
              .code = dm_tensor_data(codes)};
  st = run_max(c, &j, ax, n_planes(codes), true, fn);
done:
  dm_tensor_unref(&codes);
  dm_tensor_unref(&values);
  return st;
}

/* gx = zeros, gx[position of code o] += gy[o]: windows that overlap may name one
   element several times. Sums run in the compute type and 16-bit planes are rounded
   once. */
dm_status max_pool2d_scatter_cpu(dm_Call *c) {
  const dm_MaxPoolSizedAttr *a = DM_ATTR(dm_MaxPoolSizedAttr, c);
  const dm_DType t = dm_compute_dtype((dm_DType)c->in[0]->dtype);
  return run_coded(c, &a->max, a->size,
                   t == DM_F32   ? scatter_range_f32
                   : t == DM_F64 ? scatter_range_f64
                                 : scatter_range_i64);
}

/* The op is linear in gy: its gradient gathers at the codes. */
void max_pool2d_scatter_grad(dm_Grad *g) {
  const dm_MaxPoolAttr *a = &DM_ATTR(dm_MaxPoolSizedAttr, g)->max;
  if (g->need[0]) g->gx[0] = dm_x(g->x, DM_OP_max_pool2d_gather, a, 2, g->gy[0], g->in[1]);
}

/* in: x (..., H, W), codes (..., P, Q); out: (..., P, Q). */
dm_status max_pool2d_gather_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[1], (dm_DType)c->in[0]->dtype);
  return DM_OK;
}

/* y[o] = x[position of code o]: elements are copied as bytes, whatever their dtype. */
dm_status max_pool2d_gather_cpu(dm_Call *c) {
  return run_coded(c, DM_ATTR(dm_MaxPoolAttr, c), dm_plane_size(c->in[0]), gather_range);
}

/* The gradient of the gather is the scatter. */
void max_pool2d_gather_grad(dm_Grad *g) {
  const dm_Meta *m = dm_in_meta(g, 0);
  const dm_MaxPoolSizedAttr a = {*DM_ATTR(dm_MaxPoolAttr, g),
                                 {m->shape[m->ndim - 2], m->shape[m->ndim - 1]}};
  if (g->need[0]) g->gx[0] = dm_x(g->x, DM_OP_max_pool2d_scatter, &a, 2, g->gy[0], g->in[1]);
}

/* in: codes (..., P, Q); out: int64 positions for the caller. */
dm_status max_pool2d_position_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[0], DM_I64);
  return DM_OK;
}

/* Positions depend on the codes and the geometry alone, not on x, so they are
   computed only when the caller asks for indices. */
dm_status max_pool2d_position_cpu(dm_Call *c) {
  const dm_MaxPoolSizedAttr *a = DM_ATTR(dm_MaxPoolSizedAttr, c);
  dm_Tensor *codes;
  dm_PoolAxis ax[2];
  if (c->out[0]->numel == 0) return DM_OK;
  DM_TRY(max_axes(c, &a->max, a->size, ax));
  DM_TRY(dm_dense_new(c->in[0], &codes));
  MaxJob j = {.code_dtype = (dm_DType)codes->dtype,
              .code = dm_tensor_data(codes),
              .out = dm_tensor_data(c->out[0]),
              .base = c->base};
  const dm_status st = run_max(c, &j, ax, n_planes(codes), true, position_range);
  dm_tensor_unref(&codes);
  return st;
}

/* The public op: the coded op, and the positions if return_indices is set. */
dm_status max_pool2d_compose(dm_Call *c, dm_X *x) {
  const dm_MaxPool2dAttr *a = DM_ATTR(dm_MaxPool2dAttr, c);
  dm_Tensor *in = c->in[0];
  c->n_out = a->return_indices ? 2 : 1;
  DM_TRY(check_planes(c, in));
  DM_TRY(dm_check_samples(c, 2));
  dm_PoolAxis ax[2]; /* checked here so that messages name the public op */
  DM_TRY(max_axes(c, &a->max, dm_plane_size(in), ax));
  c->out[0] = dm_x(x, DM_OP_max_pool2d_coded, &a->max, 1, in);
  if (!a->return_indices || x->st != DM_OK) return x->st;
  const dm_MaxPoolSizedAttr sized = {a->max, {ax[0].in, ax[1].in}};
  dm_Tensor *codes = x->own[x->n - 2]; /* dm_x owns the second output before the first */
  c->out[1] = dm_x(x, DM_OP_max_pool2d_position, &sized, 1, codes);
  return x->st;
}

/* ---- averages ---- */

/* The job of an average pooling: planes (h, w) and outputs (p, q). */
typedef struct MeanJob {
  int64_t h, w, p, q;
  dm_PoolSpan *rows, *cols; /* spans of both axes, one allocation of p + q */
  double divisor;           /* 0: divide by the product of the axes' counts */
  dm_DType dtype;
  const char *in;
  char *out;
  atomic_bool no_memory;
} MeanJob;

/* Loops over one plane in one compute type. sum: x[0] + ... + x[n-1] in eight
   running sums, which vectorizes and loses little in long spans. mean_plane: (H, W)
   -> (P, Q). spread_plane: the transpose, gy (P, Q) -> gx (H, W). */
#define MEANS(SUFFIX, TYPE)                                                                    \
  static TYPE sum_##SUFFIX(const TYPE *x, int64_t n) {                                         \
    TYPE s[8] = {0}, rest = 0;                                                                 \
    int64_t i = 0;                                                                             \
    for (; i + 8 <= n; i += 8)                                                                 \
      for (int k = 0; k < 8; k++) s[k] += x[i + k];                                            \
    for (; i < n; i++) rest += x[i];                                                           \
    return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7])) + rest;           \
  }                                                                                            \
  static TYPE divisor_##SUFFIX(const MeanJob *j, const dm_PoolSpan *r, const dm_PoolSpan *s) { \
    return j->divisor != 0 ? (TYPE)j->divisor : (TYPE)(r->count * s->count);                   \
  }                                                                                            \
  /* down the rows first, along whole rows; then across */                                     \
  static void mean_plane_##SUFFIX(const MeanJob *j, const TYPE *x, TYPE *y, TYPE *row) {       \
    for (int64_t p = 0; p < j->p; p++, y += j->q) {                                            \
      const dm_PoolSpan *r = &j->rows[p];                                                      \
      memset(row, 0, (size_t)j->w * sizeof *row);                                              \
      for (int64_t i = r->lo; i < r->hi; i++)                                                  \
        for (int64_t l = 0; l < j->w; l++) row[l] += x[i * j->w + l];                          \
      for (int64_t q = 0; q < j->q; q++) {                                                     \
        const dm_PoolSpan *s = &j->cols[q];                                                    \
        const bool empty = r->hi <= r->lo || s->hi <= s->lo;                                   \
        y[q] =                                                                                 \
            empty ? 0 : sum_##SUFFIX(row + s->lo, s->hi - s->lo) / divisor_##SUFFIX(j, r, s);  \
      }                                                                                        \
    }                                                                                          \
  }                                                                                            \
  static void spread_plane_##SUFFIX(const MeanJob *j, const TYPE *gy, TYPE *gx, TYPE *row) {   \
    memset(gx, 0, (size_t)(j->h * j->w) * sizeof *gx);                                         \
    for (int64_t p = 0; p < j->p; p++, gy += j->q) {                                           \
      const dm_PoolSpan *r = &j->rows[p];                                                      \
      memset(row, 0, (size_t)j->w * sizeof *row);                                              \
      for (int64_t q = 0; q < j->q; q++) {                                                     \
        const dm_PoolSpan *s = &j->cols[q];                                                    \
        if (r->hi <= r->lo || s->hi <= s->lo) continue;                                        \
        const TYPE g = gy[q] / divisor_##SUFFIX(j, r, s);                                      \
        for (int64_t l = s->lo; l < s->hi; l++) row[l] += g;                                   \
      }                                                                                        \
      for (int64_t i = r->lo; i < r->hi; i++)                                                  \
        for (int64_t l = 0; l < j->w; l++) gx[i * j->w + l] += row[l];                         \
    }                                                                                          \
  }                                                                                            \
  static void means_##SUFFIX(MeanJob *j, int64_t begin, int64_t end, bool spread) {            \
    const int64_t n_in = spread ? j->p * j->q : j->h * j->w;                                   \
    const int64_t n_out = spread ? j->h * j->w : j->p * j->q;                                  \
    const int64_t size = dm_dtype_size(j->dtype);                                              \
    const bool direct = dm_dtype_size(j->dtype) == sizeof(TYPE);                               \
    const int64_t n_wide = direct ? 0 : n_in + n_out;                                          \
    TYPE *row = dm_alloc((j->w + n_wide) * (int64_t)sizeof(TYPE)), *wide = row + j->w;         \
    if (!row) {                                                                                \
      atomic_store(&j->no_memory, true);                                                       \
      return;                                                                                  \
    }                                                                                          \
    for (int64_t i = begin; i < end; i++) {                                                    \
      const char *in = j->in + i * n_in * size;                                                \
      char *out = j->out + i * n_out * size;                                                   \
      const TYPE *from = direct ? (const TYPE *)(const void *)in : wide;                       \
      TYPE *to = direct ? (TYPE *)(void *)out : wide + n_in;                                   \
      if (!direct) dm_load_##SUFFIX(j->dtype, in, 1, n_in, wide);                              \
      if (spread) spread_plane_##SUFFIX(j, from, to, row);                                     \
      else mean_plane_##SUFFIX(j, from, to, row);                                              \
      if (!direct) dm_store_##SUFFIX(j->dtype, out, 1, n_out, to);                             \
    }                                                                                          \
    dm_free(row);                                                                              \
  }                                                                                            \
  static void mean_range_##SUFFIX(void *ctx, int64_t begin, int64_t end) {                     \
    means_##SUFFIX(ctx, begin, end, false);                                                    \
  }                                                                                            \
  static void spread_range_##SUFFIX(void *ctx, int64_t begin, int64_t end) {                   \
    means_##SUFFIX(ctx, begin, end, true);                                                     \
  }
MEANS(f32, float)
MEANS(f64, double)
#undef MEANS

/* Allocates a job for planes of size in -> out; its spans are still to be set. */
static dm_status job_new(const dm_Call *c, const int64_t in[2], const int64_t out[2],
                         MeanJob *j) {
  *j = (MeanJob){.h = in[0], .w = in[1], .p = out[0], .q = out[1]};
  atomic_init(&j->no_memory, false);
  j->rows = dm_alloc((j->p + j->q) * (int64_t)sizeof *j->rows);
  if (!j->rows) return dm_fail(DM_EMEM, "%s: out of memory", c->op->name);
  j->cols = j->rows + j->p;
  return DM_OK;
}

/* Runs a job whose spans are set over all planes of input 0, and frees the spans. */
static dm_status run_means(dm_Call *c, MeanJob *j, bool spread) {
  dm_Tensor *x = NULL;
  dm_status st = DM_OK;
  DM_GO(dm_dense_new(c->in[0], &x));
  j->dtype = (dm_DType)x->dtype;
  j->in = dm_tensor_data(x);
  j->out = dm_tensor_data(c->out[0]);
  const bool f64 = j->dtype == DM_F64;
  dm_RangeFn *fn = spread ? (f64 ? spread_range_f64 : spread_range_f32)
                          : (f64 ? mean_range_f64 : mean_range_f32);
  dm_parallel_for(n_planes(x), dm_max_i64(1, PLANE_GRAIN / (j->h * j->w + 1)), fn, j);
  if (atomic_load(&j->no_memory)) st = dm_fail(DM_EMEM, "%s: out of memory", c->op->name);
done:
  dm_tensor_unref(&x);
  dm_free(j->rows);
  return st;
}

/* ---- avg_pool2d ---- */

/* Describes both axes of an average pooling over planes of this size. */
static dm_status avg_axes(const dm_Call *c, const dm_AvgPoolAttr *a, const int64_t size[2],
                          dm_PoolAxis ax[2]) {
  DM_TRY(check_stride(c, &a->stride));
  if (a->divisor_override.set && a->divisor_override.v == 0)
    return dm_fail(DM_EARG, "%s: divisor_override is 0", c->op->name);
  for (int i = 0; i < 2; i++)
    DM_TRY(dm_pool_axis_of(c, i ? "width" : "height", size[i], a->kernel_size[i],
                           dm_pool_stride(&a->stride, a->kernel_size, i), a->padding[i], 1,
                           a->ceil_mode != 0, &ax[i]));
  return DM_OK;
}

/* The spans of all windows of an axis. */
static void fixed_spans(const dm_PoolAxis *a, bool include_pad, dm_PoolSpan *span) {
  for (int64_t o = 0; o < a->out; o++) span[o] = dm_pool_fixed_span(a, include_pad, o);
}

/* avg_pool2d of planes of this size, or with `spread` its gradient. */
static dm_status run_avg(dm_Call *c, const dm_AvgPoolAttr *a, const int64_t size[2],
                         bool spread) {
  dm_PoolAxis ax[2];
  MeanJob j;
  if (c->out[0]->numel == 0) return DM_OK;
  DM_TRY(avg_axes(c, a, size, ax));
  const int64_t out[2] = {ax[0].out, ax[1].out};
  DM_TRY(job_new(c, size, out, &j));
  j.divisor = a->divisor_override.set ? a->divisor_override.v : 0;
  fixed_spans(&ax[0], a->count_include_pad != 0, j.rows);
  fixed_spans(&ax[1], a->count_include_pad != 0, j.cols);
  return run_means(c, &j, spread);
}

/* (..., H, W) -> (..., P, Q) in x's dtype, which must be a float. */
dm_status avg_pool2d_rule(dm_Call *c) {
  const dm_Tensor *x = c->in[0];
  dm_PoolAxis ax[2];
  DM_TRY(check_planes(c, x));
  DM_TRY(dm_check_float(c, x, "input"));
  DM_TRY(avg_axes(c, DM_ATTR(dm_AvgPoolAttr, c), dm_plane_size(x), ax));
  planes_meta(c, 0, x, (dm_DType)x->dtype, ax[0].out, ax[1].out);
  return DM_OK;
}

/* Each y[p, q] is the sum over its span of rows and columns divided by the product of
   both counts, or by divisor_override. */
dm_status avg_pool2d_cpu(dm_Call *c) {
  return run_avg(c, DM_ATTR(dm_AvgPoolAttr, c), dm_plane_size(c->in[0]), false);
}

/* dx spreads gy / divisor over each window. */
void avg_pool2d_grad(dm_Grad *g) {
  const dm_Meta *m = dm_in_meta(g, 0);
  const dm_AvgPoolSizedAttr a = {*DM_ATTR(dm_AvgPoolAttr, g),
                                 {m->shape[m->ndim - 2], m->shape[m->ndim - 1]}};
  if (g->need[0]) g->gx[0] = dm_x(g->x, DM_OP_avg_pool2d_spread, &a, 1, g->gy[0]);
}

/* in: gy (..., P, Q); out: gx (..., H, W), where `size` gives H and W, which gy's
   shape does not tell: the number of windows is rounded down. */
dm_status avg_pool2d_spread_rule(dm_Call *c) {
  const dm_AvgPoolSizedAttr *a = DM_ATTR(dm_AvgPoolSizedAttr, c);
  planes_meta(c, 0, c->in[0], (dm_DType)c->in[0]->dtype, a->size[0], a->size[1]);
  return DM_OK;
}

/* gx[i, j] = the sum of gy / divisor over all windows that cover (i, j). */
dm_status avg_pool2d_spread_cpu(dm_Call *c) {
  const dm_AvgPoolSizedAttr *a = DM_ATTR(dm_AvgPoolSizedAttr, c);
  return run_avg(c, &a->avg, a->size, true);
}

/* The op is the transpose of the mean, and the transpose of the transpose is the
   mean: the second gradient is avg_pool2d of the incoming one. */
void avg_pool2d_spread_grad(dm_Grad *g) {
  const dm_AvgPoolAttr *a = &DM_ATTR(dm_AvgPoolSizedAttr, g)->avg;
  if (g->need[0]) g->gx[0] = dm_x(g->x, DM_OP_avg_pool2d, a, 1, g->gy[0]);
}

/* ---- adaptive_avg_pool2d ---- */

/* The spans of all outputs of an axis; neighbours overlap where out does not divide
   in. */
static void adaptive_spans(int64_t in, int64_t out, dm_PoolSpan *span) {
  for (int64_t o = 0; o < out; o++) span[o] = dm_pool_adaptive_span(in, out, o);
}

/* adaptive_avg_pool2d from planes `in` to `out`, or with `spread` its gradient. */
static dm_status run_adaptive(dm_Call *c, const int64_t in[2], const int64_t out[2],
                              bool spread) {
  MeanJob j;
  if (c->out[0]->numel == 0) return DM_OK;
  DM_TRY(job_new(c, in, out, &j));
  adaptive_spans(in[0], out[0], j.rows);
  adaptive_spans(in[1], out[1], j.cols);
  return run_means(c, &j, spread);
}

/* (..., H, W) -> (..., size[0], size[1]). */
dm_status adaptive_avg_pool2d_rule(dm_Call *c) {
  const dm_Tensor *x = c->in[0];
  const int64_t *size = DM_ATTR(dm_AdaptiveAvgPool2dAttr, c)->output_size;
  DM_TRY(check_planes(c, x));
  DM_TRY(dm_check_float(c, x, "input"));
  const int64_t *in = dm_plane_size(x);
  if (size[0] < 0 || size[1] < 0 || in[0] < 1 || in[1] < 1)
    return dm_fail(DM_EARG,
                   "%s: output {%lld, %lld} of input %s: wanted sizes of at least 0 and "
                   "planes that are not empty",
                   c->op->name, (long long)size[0], (long long)size[1], DM_SHAPE(x));
  planes_meta(c, 0, x, (dm_DType)x->dtype, size[0], size[1]);
  return DM_OK;
}

/* The mean over the window of each output, whose size may differ by one element from
   its neighbour's; or over whole planes. */
dm_status adaptive_avg_pool2d_cpu(dm_Call *c) {
  const int64_t *size = DM_ATTR(dm_AdaptiveAvgPool2dAttr, c)->output_size;
  const dm_Tensor *x = c->in[0];
  if (size[0] == 1 && size[1] == 1) return dm_mean(c->out[0], x, 3u << (x->ndim - 2));
  return run_adaptive(c, dm_plane_size(x), size, false);
}

/* dx spreads gy / (elements of the window) over each window. */
void adaptive_avg_pool2d_grad(dm_Grad *g) {
  const dm_Meta *m = dm_in_meta(g, 0);
  const dm_AdaptiveAvgPool2dSpreadAttr a = {{m->shape[m->ndim - 2], m->shape[m->ndim - 1]}};
  if (g->need[0]) g->gx[0] = dm_x(g->x, DM_OP_adaptive_avg_pool2d_spread, &a, 1, g->gy[0]);
}

/* in: gy (..., P, Q); out: gx (..., H, W) with H and W from `size`. */
dm_status adaptive_avg_pool2d_spread_rule(dm_Call *c) {
  const dm_AdaptiveAvgPool2dSpreadAttr *a = DM_ATTR(dm_AdaptiveAvgPool2dSpreadAttr, c);
  planes_meta(c, 0, c->in[0], (dm_DType)c->in[0]->dtype, a->size[0], a->size[1]);
  return DM_OK;
}

/* The transpose of the adaptive mean: the window of output (p, q) gets gy / (its
   elements). */
dm_status adaptive_avg_pool2d_spread_cpu(dm_Call *c) {
  return run_adaptive(c, DM_ATTR(dm_AdaptiveAvgPool2dSpreadAttr, c)->size,
                      dm_plane_size(c->in[0]), true);
}

/* As for fixed windows: the gradient of the spreading is the mean. */
void adaptive_avg_pool2d_spread_grad(dm_Grad *g) {
  const dm_Meta *m = dm_in_meta(g, 0);
  const dm_AdaptiveAvgPool2dAttr a = {{m->shape[m->ndim - 2], m->shape[m->ndim - 1]}};
  if (g->need[0]) g->gx[0] = dm_x(g->x, DM_OP_adaptive_avg_pool2d, &a, 1, g->gy[0]);
}
