/* See conv_depthwise.h. An output plane is the sum of a few shifted copies of one input plane,
   each times one number, so there is no product of matrices in it.

   The plane is copied to floats with its padding, split by stride: elements whose positions
   leave the same remainders lie together, as a plane of their own. A tap then reads a plane
   from one offset on, and output (p, q) is at p * width + q of what a tap reads, so that one
   loop over all rows does a tap; at the end of each row it computes a few numbers that nobody
   wants. The gradient of x does the same with that of y, once for each remainder of x's
   positions, and the gradient of w is a dot product for each tap.

   A thread takes whole planes, and all images of a channel for the gradient of w. */
#include "cpu/conv_depthwise.h"

#include "base/error.h"
#include "cpu/gemm_kernel.h"
#include "cpu/loops/loops.h"
#include "cpu/scratch.h"
#include "cpu/threads.h"
#include "cpu/vec.h"

#include <stdatomic.h>
#include <string.h>

/* One call, and the floats that its taps read: n_plane planes of rows x width, which together
   begin `first` elements before the image, in rows and in columns. */
typedef struct Job {
  const dm_ConvDims *d;
  dm_DType t;
  int64_t each; /* output channels of a group */
  const char *image, *w, *bias;
  char *out;
  const char *gy; /* y's gradient, where that of w is computed; else it is the image */
  int64_t first[2], rows, width, n_plane;
  int64_t n_flat;  /* numbers that a loop over all rows of a result computes at most */
  int64_t n_float; /* of a thread's memory */
  atomic_bool failed;
} Job;

static int64_t whole(int64_t n) { return dm_ceil_div(n, DM_TAP_LANES) * DM_TAP_LANES; }

/* Element i of an image or result, which is of dtype t. */
static char *at(const Job *j, const void *p, int64_t i) {
  return (char *)(uintptr_t)p + i * dm_dtype_size(j->t);
}

/* n elements as floats: where they lie, or converted to `own`. */
static const float *floats(const Job *j, const void *p, int64_t i, int64_t n, float *own) {
  if (j->t == DM_F32) return (const float *)(const void *)at(j, p, i);
  dm_load_f32(j->t, at(j, p, i), 1, n, own);
  return own;
}

/* Along one dim of n elements: the first one that has remainder a in the padded plane, where it
   goes there, and how many there are, of which `capacity` fit. */
typedef struct Part {
  int64_t from, to, n;
} Part;
static Part part_of(int64_t n, int64_t first, int64_t stride, int64_t a, int64_t capacity) {
  const int64_t from = ((a - first) % stride + stride) % stride, to = (from + first) / stride;
  return (Part){
      from, to,
      from < n && to < capacity ? dm_min_i64(dm_ceil_div(n - from, stride), capacity - to) : 0};
}

/* Copies a plane (h, w) to the planes of the remainders, whose other elements stay 0. */
static void split(const Job *j, const float *image, int64_t h, int64_t w, const int64_t *stride,
                  float *to) {
  for (int64_t a = 0; a < stride[0]; a++)
    for (int64_t b = 0; b < stride[1]; b++, to += j->rows * j->width) {
      const Part row = part_of(h, j->first[0], stride[0], a, j->rows);
      const Part column = part_of(w, j->first[1], stride[1], b, j->width);
      dm_loops()->copy_rows(image + row.from * w + column.from, w * stride[0], stride[1], row.n,
                            column.n, to + row.to * j->width + column.to, j->width);
    }
}

static float number(const Job *j, const char *p, int64_t i) {
  float v = 0;
  if (p) dm_load_f32(j->t, at(j, p, i), 1, 1, &v);
  return v;
}

/* What x's planes look like, for y and for the gradient of w. */
static void set_planes(Job *j) {
  const dm_ConvDims *d = j->d;
  j->each = d->o / d->groups;
  j->first[0] = d->pad[0];
  j->first[1] = d->pad[1];
  j->rows = d->p + (d->r - 1) * d->dil[0] / d->stride[0];
  j->width = d->q + (d->s - 1) * d->dil[1] / d->stride[1];
  j->n_plane = d->stride[0] * d->stride[1];
  j->n_flat = (d->p - 1) * j->width + d->q;
  j->n_float = j->n_plane * j->rows * j->width + 2 * whole(j->n_flat) + d->r * d->s +
               dm_max_i64(d->h * d->w, d->p * d->q);
}

/* Where each tap reads. */
static void list_taps(const Job *j, const float *planes, const float **tap) {
  const dm_ConvDims *d = j->d;
  for (int64_t r = 0; r < d->r; r++)
    for (int64_t s = 0; s < d->s; s++) {
      const int64_t a = r * d->dil[0], b = s * d->dil[1];
      const int64_t phase = a % d->stride[0] * d->stride[1] + b % d->stride[1];
      tap[r * d->s + s] =
          planes + (phase * j->rows + a / d->stride[0]) * j->width + b / d->stride[1];
    }
}

/* A thread's memory. */
typedef struct Memory {
  const float **tap; /* where each tap reads */
  double *sum;       /* (taps, DM_TAP_LANES) */
  float *planes;     /* zeros, and behind them the rest of n_float */
} Memory;

static bool get_memory(Job *j, Memory *m) {
  const int64_t n_tap = j->d->r * j->d->s;
  const int64_t n_list = n_tap * (int64_t)sizeof *m->tap;
  const int64_t n_sum = n_tap * DM_TAP_LANES * (int64_t)sizeof *m->sum;
  char *const p =
      dm_scratch(DM_SCRATCH_TASK, n_list + n_sum + j->n_float * (int64_t)sizeof *m->planes);
  if (!p) {
    atomic_store(&j->failed, true);
    return false;
  }
  m->tap = (const float **)(void *)p;
  m->sum = (double *)(void *)(p + n_list);
  m->planes = (float *)(void *)(p + n_list + n_sum);
  memset(m->planes, 0, sizeof *m->planes * (size_t)(j->n_plane * j->rows * j->width));
  return true;
}

static dm_status run(Job *j, int64_t n, int64_t cost, dm_RangeFn *fn) {
  enum { GRAIN = 1 << 15 };
  atomic_init(&j->failed, false);
  dm_parallel_for(n, dm_max_i64(1, GRAIN / dm_max_i64(1, cost)), fn, j);
  return atomic_load(&j->failed) ? dm_fail(DM_EMEM, "convolution: out of memory") : DM_OK;
}

/* ---- y ---- */

static void forward(void *ctx, int64_t begin, int64_t end) {
  Job *j = ctx;
  const dm_ConvDims *d = j->d;
  Memory memory;
  if (!get_memory(j, &memory)) return;
  const float **const tap = memory.tap;
  float *const planes = memory.planes;
  const int64_t n_tap = d->r * d->s, n_in = d->h * d->w, n_out = d->p * d->q;
  float *const flat = planes + j->n_plane * j->rows * j->width;
  float *const w = flat + j->n_flat, *const own = w + n_tap;
  list_taps(j, planes, tap);
  for (int64_t i = begin; i < end; i++) {
    split(j, floats(j, j->image, i * n_in, n_in, own), d->h, d->w, d->stride, planes);
    for (int64_t m = 0; m < j->each; m++) {
      const int64_t o = i % d->c * j->each + m;
      char *const out = at(j, j->out, (i / d->c * d->o + o) * n_out);
      float *const dense = j->t == DM_F32 ? (float *)(void *)out : own;
      const float start = number(j, j->bias, o);
      dm_load_f32(j->t, at(j, j->w, o * n_tap), 1, n_tap, w);
      for (int64_t k = 0; k < j->n_flat; k++) flat[k] = start;
      dm_loops()->taps(tap, w, n_tap, j->n_flat, flat);
      dm_loops()->copy_rows(flat, j->width, 1, d->p, d->q, dense, d->q);
      if (j->t != DM_F32) dm_store_f32(j->t, out, 1, n_out, own);
    }
  }
}

dm_status dm_conv_depthwise_fwd(const dm_ConvDims *d, dm_DType t, const void *x, const void *w,
                                const void *bias, void *y) {
  Job j = {.d = d, .t = t, .image = x, .w = w, .bias = bias, .out = y};
  set_planes(&j);
  return run(&j, d->n * d->c, d->p * d->q * d->r * d->s * j.each, forward);
}

/* ---- the gradient of w ---- */

static void weight_gradient(void *ctx, int64_t begin, int64_t end) {
  Job *j = ctx;
  const dm_ConvDims *d = j->d;
  Memory memory;
  if (!get_memory(j, &memory)) return;
  const float **const tap = memory.tap;
  float *const planes = memory.planes;
  const int64_t n_tap = d->r * d->s, n_in = d->h * d->w, n_out = d->p * d->q;
  const int64_t n = whole(j->n_flat);
  float *const gy = planes + j->n_plane * j->rows * j->width, *const own = gy + 2 * n;
  int32_t *const mask = (int32_t *)(void *)(gy + n);
  list_taps(j, planes, tap);
  memset(gy, 0, sizeof *gy * (size_t)(2 * n)); /* and the mask, which stays 0 behind each row */
  for (int64_t p = 0; p < d->p; p++)
    for (int64_t q = 0; q < d->q; q++) mask[p * j->width + q] = -1;
  for (int64_t o = begin; o < end; o++) {
    memset(memory.sum, 0, sizeof *memory.sum * (size_t)(n_tap * DM_TAP_LANES));
    for (int64_t b = 0; b < d->n; b++) {
      const int64_t x_at = (b * d->c + o / j->each) * n_in;
      split(j, floats(j, j->image, x_at, n_in, own), d->h, d->w, d->stride, planes);
      const float *const g = floats(j, j->gy, (b * d->o + o) * n_out, n_out, own);
      dm_loops()->copy_rows(g, d->q, 1, d->p, d->q, gy, j->width);
      dm_loops()->tap_dots(tap, gy, mask, n_tap, n, memory.sum);
    }
    for (int64_t k = 0; k < n_tap; k++) {
      double sum = 0;
      for (int v = 0; v < DM_TAP_LANES; v++) sum += memory.sum[k * DM_TAP_LANES + v];
      dm_store_f64(j->t, at(j, j->out, o * n_tap + k), 1, 1, &sum);
    }
  }
}

dm_status dm_conv_depthwise_dw(const dm_ConvDims *d, dm_DType t, const void *dy, const void *x,
                               void *dw) {
  Job j = {.d = d, .t = t, .image = x, .gy = dy, .out = dw};
  set_planes(&j);
  return run(&j, d->o, d->n * d->p * d->q * d->r * d->s, weight_gradient);
}

/* ---- the gradient of x ---- */

/* How many elements of x leave remainder a along dim k, whose size is n. */
static int64_t count_of(const dm_ConvDims *d, int k, int64_t n, int64_t a) {
  return n > a ? dm_ceil_div(n - a, d->stride[k]) : 0;
}

/* Sets the planes of y's gradient: element (u, v) of x with remainders (a, b) gets tap (r, s)
   from row u + (a + pad - r dil) / stride, where that is a whole number, and likewise columns.
 */
static void set_gradient_planes(Job *j) {
  const dm_ConvDims *d = j->d;
  const int64_t taps[2] = {d->r, d->s}, in[2] = {d->h, d->w}, out[2] = {d->p, d->q};
  int64_t n[2];
  for (int k = 0; k < 2; k++) {
    const int64_t back = (taps[k] - 1) * d->dil[k] - d->pad[k];
    const int64_t behind = (d->stride[k] - 1 + d->pad[k]) / d->stride[k];
    j->first[k] = back > 0 ? dm_ceil_div(back, d->stride[k]) : 0;
    n[k] = j->first[k] + dm_max_i64(out[k], dm_ceil_div(in[k], d->stride[k]) + behind);
  }
  j->each = d->o / d->groups;
  j->rows = n[0];
  j->width = n[1];
  j->n_plane = 1;
  j->n_flat = dm_ceil_div(d->h, d->stride[0]) * j->width;
  j->n_float = j->rows * j->width + d->stride[0] * d->stride[1] * j->n_flat + 2 * d->r * d->s +
               dm_max_i64(d->h * d->w, d->p * d->q);
}

/* The taps that elements of remainders (a, b) get: their number, addresses and weights. */
static int64_t taps_of(const Job *j, int64_t a, int64_t b, const float *plane, const float *w,
                       const float **tap, float *weight) {
  const dm_ConvDims *d = j->d;
  int64_t n = 0;
  for (int64_t r = 0; r < d->r; r++)
    for (int64_t s = 0; s < d->s; s++) {
      const int64_t p = a + d->pad[0] - r * d->dil[0], q = b + d->pad[1] - s * d->dil[1];
      if (p % d->stride[0] != 0 || q % d->stride[1] != 0) continue;
      tap[n] =
          plane + (p / d->stride[0] + j->first[0]) * j->width + q / d->stride[1] + j->first[1];
      weight[n++] = w[r * d->s + s];
    }
  return n;
}

static void input_gradient(void *ctx, int64_t begin, int64_t end) {
  static const int64_t one[2] = {1, 1};
  Job *j = ctx;
  const dm_ConvDims *d = j->d;
  Memory memory;
  if (!get_memory(j, &memory)) return;
  const float **const tap = memory.tap;
  float *const plane = memory.planes;
  const int64_t n_tap = d->r * d->s, n_in = d->h * d->w, n_out = d->p * d->q;
  const int64_t n_phase = d->stride[0] * d->stride[1];
  float *const flat = plane + j->rows * j->width, *const w = flat + n_phase * j->n_flat;
  float *const own = w + 2 * n_tap;
  for (int64_t i = begin; i < end; i++) {
    const int64_t c = i % d->c;
    const float start = number(j, j->bias, c);
    for (int64_t k = 0; k < n_phase * j->n_flat; k++) flat[k] = start;
    for (int64_t m = 0; m < j->each; m++) {
      const int64_t o = c * j->each + m;
      const int64_t gy_at = (i / d->c * d->o + o) * n_out;
      split(j, floats(j, j->image, gy_at, n_out, own), d->p, d->q, one, plane);
      dm_load_f32(j->t, at(j, j->w, o * n_tap), 1, n_tap, w);
      for (int64_t f = 0; f < n_phase; f++) {
        const int64_t a = f / d->stride[1], b = f % d->stride[1];
        const int64_t rows = count_of(d, 0, d->h, a), columns = count_of(d, 1, d->w, b);
        if (rows == 0 || columns == 0) continue;
        const int64_t n = taps_of(j, a, b, plane, w, tap, w + n_tap);
        dm_loops()->taps(tap, w + n_tap, n, (rows - 1) * j->width + columns,
                         flat + f * j->n_flat);
      }
    }
    char *const out = at(j, j->out, i * n_in);
    float *const dense = j->t == DM_F32 ? (float *)(void *)out : own;
    if (n_phase == 1) dm_loops()->copy_rows(flat, j->width, 1, d->h, d->w, dense, d->w);
    for (int64_t h = 0; h < d->h && n_phase > 1; h++)
      for (int64_t b = 0; b < d->stride[1]; b++) {
        const int64_t f = h % d->stride[0] * d->stride[1] + b, n = count_of(d, 1, d->w, b);
        const float *const from = flat + f * j->n_flat + h / d->stride[0] * j->width;
        float *const to = dense + h * d->w + b;
        for (int64_t k = 0; k < n; k++) to[k * d->stride[1]] = from[k];
      }
    if (j->t != DM_F32) dm_store_f32(j->t, out, 1, n_in, own);
  }
}

dm_status dm_conv_depthwise_dx(const dm_ConvDims *d, dm_DType t, const void *dy, const void *w,
                               const void *bias, void *dx) {
  Job j = {.d = d, .t = t, .image = dy, .w = w, .bias = bias, .out = dx};
  set_gradient_planes(&j);
  return run(&j, d->n * d->c, d->p * d->q * d->r * d->s * j.each, input_gradient);
}
