/* See conv_product.h.

   Pointwise: x of an image is a matrix (C, HW) as it lies, so a 1 x 1 convolution is one
   product an image and group.

   Dense: on planes of a few positions nearly every output sees every input, and most taps fall
   outside. The weights are spread to the matrix m (O PQ, C HW) of the linear layer from all
   input positions to all output positions, with zeros where no tap connects them; then the
   batch is one product, y = x m^T, dx = dy m, dm = dy^T x, and dw sums the elements of dm that
   belong to one tap. */
#include "cpu/conv_product.h"

#include "base/error.h"
#include "cpu/gemm.h"
#include "cpu/gemm_kernel.h"
#include "cpu/scratch.h"
#include "cpu/threads.h"
#include "cpu/vec.h"

#include <stdatomic.h>
#include <string.h>

/* ---- 1 x 1 on large planes -------------------------------------------------- */

/* p advanced by n elements of t. */
static const void *move(const void *p, int64_t n, dm_DType t) {
  return (const char *)p + n * dm_dtype_size(t);
}

/* to (rows, HW) = w (rows, depth) from (depth, HW), for each image and group. */
static dm_status run_pointwise(const dm_ConvDims *d, dm_DType t, dm_Mat w, int64_t rows,
                               int64_t depth, const void *from, const void *bias, void *to) {
  const int64_t positions = d->h * d->w;
  for (int64_t i = 0; i < d->n * d->groups; i++) {
    const int64_t g = i % d->groups;
    const dm_Mat a = {move(w.data, g * rows * depth, t), t, w.rs, w.cs};
    const dm_Mat b = {move(from, i * depth * positions, t), t, positions, 1};
    char *const c = (char *)to + i * rows * positions * dm_dtype_size(t);
    DM_TRY(dm_gemm(rows, positions, depth, 1, a, b, 0, c, t, positions,
                   bias ? move(bias, g * rows, t) : NULL, t,
                   bias ? DM_BIAS_PER_ROW : DM_BIAS_NONE));
  }
  return DM_OK;
}

/* The three passes differ in the strides of w and in the operands alone: w, w^T, and dy x^T of
   one image. */
dm_status dm_conv_pointwise_fwd(const dm_ConvDims *d, dm_DType t, const void *x, const void *w,
                                const void *bias, void *y) {
  const int64_t in = d->c / d->groups, out = d->o / d->groups;
  return run_pointwise(d, t, (dm_Mat){w, t, in, 1}, out, in, x, bias, y);
}

dm_status dm_conv_pointwise_dx(const dm_ConvDims *d, dm_DType t, const void *dy, const void *w,
                               const void *bias, void *dx) {
  const int64_t in = d->c / d->groups, out = d->o / d->groups;
  return run_pointwise(d, t, (dm_Mat){w, t, 1, in}, in, out, dy, bias, dx);
}

dm_status dm_conv_pointwise_dw(const dm_ConvDims *d, dm_DType t, const void *dy, const void *x,
                               void *dw) {
  const int64_t positions = d->h * d->w, out = d->o / d->groups, in = d->c / d->groups;
  for (int64_t g = 0; g < d->groups; g++) {
    const dm_Mat a = {move(dy, g * out * positions, t), t, positions, 1};
    const dm_Mat b = {move(x, g * in * positions, t), t, 1, positions};
    char *const c = (char *)dw + g * out * in * dm_dtype_size(t);
    DM_TRY(dm_gemm(out, in, positions, 1, a, b, 0, c, t, in, NULL, t, DM_BIAS_NONE));
  }
  return DM_OK;
}

/* ---- small planes -------------------------------------------------------------- */

/* A dense convolution: the matrix m of the head of this file, and the tap that each of its
   elements comes from. */
typedef struct Dense {
  const dm_ConvDims *d;
  dm_DType dtype, type; /* of tensors, of sums */
  int64_t n_in, n_out;  /* positions of x, of y */
  const char *w;
  char *m, *dw, *bias;
  atomic_bool failed;
  int tap[DM_DENSE_PAIRS]; /* [position of y][of x]: r * S + s, or -1 */
} Dense;

/* The tap of one dim that connects input `in` with output `out`, or -1. */
static int64_t tap_between(const dm_ConvDims *d, int dim, int64_t out, int64_t in) {
  const int64_t n = dim == 0 ? d->r : d->s;
  const int64_t at = in + d->pad[dim] - out * d->stride[dim];
  return at >= 0 && at % d->dil[dim] == 0 && at / d->dil[dim] < n ? at / d->dil[dim] : -1;
}

/* Lists for each position of y and of x the tap that connects them. */
static void list_pairs(Dense *x, const dm_ConvDims *d, dm_DType t) {
  *x = (Dense){.d = d, .dtype = t, .type = dm_compute_dtype(t)};
  x->n_in = d->h * d->w;
  x->n_out = d->p * d->q;
  for (int64_t i = 0; i < x->n_out; i++)
    for (int64_t j = 0; j < x->n_in; j++) {
      const int64_t r = tap_between(d, 0, i / d->q, j / d->w);
      const int64_t s = tap_between(d, 1, i % d->q, j % d->w);
      x->tap[i * x->n_in + j] = r < 0 || s < 0 ? -1 : (int)(r * d->s + s);
    }
}

/* dst[i * to] = src[i * from]; src NULL: 0. */
#define DEFINE_COPY(REAL, NAME)                                                       \
  static void NAME(const void *src, int64_t from, int64_t n, void *dst, int64_t to) { \
    for (int64_t i = 0; i < n; i++)                                                   \
      ((REAL *)dst)[i * to] = src ? ((const REAL *)src)[i * from] : 0;                \
  }
DEFINE_COPY(uint16_t, copy_2)
DEFINE_COPY(uint32_t, copy_4)
DEFINE_COPY(uint64_t, copy_8)
#undef DEFINE_COPY

/* The rows of m of outputs [begin, end). */
static void spread_weights(void *ctx, int64_t begin, int64_t end) {
  const Dense *const x = ctx;
  const int64_t taps = x->d->r * x->d->s, n = x->d->c, es = dm_dtype_size(x->dtype);
  for (int64_t row = begin * x->n_out; row < end * x->n_out; row++)
    for (int64_t j = 0; j < x->n_in; j++) {
      const int tap = x->tap[row % x->n_out * x->n_in + j];
      const char *src = tap < 0 ? NULL : x->w + (row / x->n_out * n * taps + tap) * es;
      char *const dst = x->m + (row * n * x->n_in + j) * es;
      if (es == 4) copy_4(src, taps, n, dst, x->n_in);
      else if (es == 2) copy_2(src, taps, n, dst, x->n_in);
      else copy_8(src, taps, n, dst, x->n_in);
    }
}

#define DEFINE_REDUCE(REAL, NAME)                                                   \
  static void NAME(const Dense *x, int64_t o, REAL *line) {                         \
    const int64_t taps = x->d->r * x->d->s, n = x->d->c;                            \
    memset(line, 0, (size_t)(n * taps) * sizeof *line);                             \
    for (int64_t i = 0; i < x->n_out * x->n_in; i++) {                              \
      const int64_t row = o * x->n_out + i / x->n_in;                               \
      const REAL *const m =                                                         \
          (const REAL *)(const void *)x->m + row * n * x->n_in + i % x->n_in;       \
      if (x->tap[i] < 0) continue;                                                  \
      for (int64_t c = 0; c < n; c++) line[c * taps + x->tap[i]] += m[c * x->n_in]; \
    }                                                                               \
  }
DEFINE_REDUCE(float, reduce_f32)
DEFINE_REDUCE(double, reduce_f64)
#undef DEFINE_REDUCE

/* dw of outputs [begin, end): the sum of what m holds for each tap. */
static void reduce_weights(void *ctx, int64_t begin, int64_t end) {
  Dense *const x = ctx;
  const int64_t size = x->d->c * x->d->r * x->d->s;
  const dm_Epilogue plain = {1, 0, x->dtype, x->dtype};
  void *const line = dm_scratch(DM_SCRATCH_TASK, size * dm_dtype_size(x->type));
  if (!line) {
    atomic_store(&x->failed, true);
    return;
  }
  for (int64_t o = begin; o < end; o++) {
    if (x->type == DM_F64) reduce_f64(x, o, line);
    else reduce_f32(x, o, line);
    dm_epilogue_row(&plain, x->type, line, size, x->dw + o * size * dm_dtype_size(x->dtype),
                    NULL, 0);
  }
}

/* Scratch for m in `dtype`, and for the bias of each column. */
static dm_status get_matrix(Dense *x, dm_DType dtype) {
  const int64_t rows = x->d->o * x->n_out, es = dm_dtype_size(dtype);
  const int64_t longest = dm_max_i64(rows, x->d->c * x->n_in);
  x->m = dm_scratch(DM_SCRATCH_MATRIX, (rows * x->d->c * x->n_in + longest) * es);
  if (!x->m) return dm_fail(DM_EMEM, "conv2d: out of memory for the matrix of a small plane");
  x->bias = x->m + rows * x->d->c * x->n_in * es;
  return DM_OK;
}

/* Output channels of a range of dm_parallel_for, about 2^16 elements of m. */
static int64_t grain_of(const Dense *x) {
  return dm_max_i64(1, (1 << 16) / (x->d->c * x->n_in * x->n_out));
}

/* Allocates m and spreads the weights to it. */
static dm_status spread(Dense *x, const void *w) {
  DM_TRY(get_matrix(x, x->dtype));
  x->w = w;
  dm_parallel_for(x->d->o, grain_of(x), spread_weights, x);
  return DM_OK;
}

/* The bias of each column, `each` of which belong to one channel; NULL stays NULL. */
static const void *repeat_bias(const Dense *x, const void *bias, int64_t n, int64_t each) {
  const int64_t es = dm_dtype_size(x->dtype);
  for (int64_t i = 0; bias && i < n; i++)
    memcpy(x->bias + i * es, move(bias, i / each, x->dtype), (size_t)es);
  return bias ? x->bias : NULL;
}

dm_status dm_conv_dense_fwd(const dm_ConvDims *d, dm_DType t, const void *x, const void *w,
                            const void *bias, void *y) {
  Dense dense;
  list_pairs(&dense, d, t);
  DM_TRY(spread(&dense, w));
  const int64_t in = d->c * dense.n_in, out = d->o * dense.n_out;
  const dm_status st = dm_gemm(
      d->n, out, in, 1, (dm_Mat){x, t, in, 1}, (dm_Mat){dense.m, t, 1, in}, 0, y, t, out,
      repeat_bias(&dense, bias, out, dense.n_out), t, bias ? DM_BIAS_PER_COL : DM_BIAS_NONE);
  dm_scratch_trim(DM_SCRATCH_MATRIX);
  return st;
}

dm_status dm_conv_dense_dx(const dm_ConvDims *d, dm_DType t, const void *dy, const void *w,
                           const void *bias, void *dx) {
  Dense dense;
  list_pairs(&dense, d, t);
  DM_TRY(spread(&dense, w));
  const int64_t in = d->c * dense.n_in, out = d->o * dense.n_out;
  const dm_status st = dm_gemm(
      d->n, in, out, 1, (dm_Mat){dy, t, out, 1}, (dm_Mat){dense.m, t, in, 1}, 0, dx, t, in,
      repeat_bias(&dense, bias, in, dense.n_in), t, bias ? DM_BIAS_PER_COL : DM_BIAS_NONE);
  dm_scratch_trim(DM_SCRATCH_MATRIX);
  return st;
}

dm_status dm_conv_dense_dw(const dm_ConvDims *d, dm_DType t, const void *dy, const void *x,
                           void *dw) {
  Dense dense;
  list_pairs(&dense, d, t);
  DM_TRY(get_matrix(&dense, dense.type));
  dense.dw = dw;
  const int64_t in = d->c * dense.n_in, out = d->o * dense.n_out;
  dm_status st = dm_gemm(out, in, d->n, 1, (dm_Mat){dy, t, 1, out}, (dm_Mat){x, t, in, 1}, 0,
                         dense.m, dense.type, in, NULL, t, DM_BIAS_NONE);
  if (st == DM_OK) dm_parallel_for(d->o, grain_of(&dense), reduce_weights, &dense);
  if (atomic_load(&dense.failed))
    st = dm_fail(DM_EMEM, "conv2d_dw: out of memory for the sums of a small plane");
  dm_scratch_trim(DM_SCRATCH_MATRIX);
  return st;
}
