/* Convolution as a product of packed weights with gathered pixels.

   A task copies the part of the planes that it needs, a piece of a window
   (conv_tiles.h), and gathers strips of pixels from there.

     forward  y  (O x NPQ)   = w (O x CRS) * window of x
     dx       for each of step^2 phases, the pixels h = h'*step + phase see the
              taps r with (phase + pad - r*dil) % step == 0, and there
              dx (C x NH'W') = w^T (C x O taps) * window of dy, whose step is 1
     dw       dw (O x CRS)   = dy (O x NPQ) * (window of x)^T, in a number of
              parts that depends on the shape alone, summed in order

   Where the processor multiplies pairs of bfloat16, strips are gathered as floats all the
   same, and joined to pairs before they are multiplied. */
#include "cpu/conv.h"

#include "base/alloc.h"
#include "base/error.h"
#include "cpu/conv_product.h"
#include "cpu/conv_tiles.h"
#include "cpu/gemm_kernel.h"
#include "cpu/scratch.h"
#include "cpu/threads.h"
#include "cpu/vec.h"
#include "cpu/winograd.h"

#include <stdatomic.h>
#include <string.h>

enum {
  DEPTH = 384,        /* products a chunk of channels adds: packed strip in L1 */
  ROWS = 192,         /* output channels of a task */
  DW_DEPTH = 256,     /* pixels a step of dw adds */
  DW_PARTS = 16,      /* most parts of dw */
  DW_LANES = 1536,    /* taps of a chunk of channels of dw: each reads all of dy */
  DW_IMAGES = 16,     /* most images of a piece of dw */
  WIDE = 1 << 10,     /* elements of 16 bits that are widened on the stack */
  TASK_WORK = 1 << 18 /* multiply-adds worth a task */
};
static const int64_t DW_SUMS = 4 << 20; /* most elements of all parts */

/* ---- buffers ------------------------------------------------------------------ */

/* Parts of one block, each on a cache line: first measure, then hand out. */
typedef struct Arena {
  char *base;
  int64_t used;
} Arena;

static void *take(Arena *a, int64_t n_bytes) {
  void *p = a->base ? a->base + a->used : NULL;
  a->used += (n_bytes + 63) / 64 * 64;
  return p;
}

static dm_status no_memory(const char *op) {
  return dm_fail(DM_EMEM, "%s: out of memory for the packing buffers", op);
}

/* What multiplies what `kn` gathers, for so many output channels of a group: one alone does
   not pay for joining pairs. */
static const dm_Kernel *kernel_that_multiplies(const dm_Kernel *kn, dm_DType t, int64_t out) {
  return out > 1 ? dm_kernel_for(t) : kn;
}

/* ---- window products: forward and dx --------------------------------------- */

typedef struct Weights {
  const dm_ConvDims *d;
  dm_DType dtype;
  const dm_Kernel *kn, *times; /* what gathers; what multiplies: the same, or pairs */
  const char *w;
  char *panels;       /* [group][panel][k][mr], pairs in the first half of a panel */
  int64_t in, out;    /* channels of a group: summed over, produced */
  int64_t k;          /* in * taps */
  int64_t group_size; /* elements of a group's panels */
  int64_t n_tap[2];
  const int64_t *tap[2]; /* dx: which r and s take part */
} Weights;

typedef struct Job {
  const Weights *weights;
  int64_t es;
  dm_Window x;
  dm_Cut cut;
  int64_t rows, n_block; /* output channels of a task; tasks a piece */
  const char *bias;      /* compute type, or NULL */
  char *y;               /* first output pixel of this job */
  int64_t img_step, chan_step, row_step, col_step; /* of the output */
  atomic_bool failed;
} Job;

typedef struct Work {
  char *planes, *strip, *tile, *sums;
  int32_t *pixel, *tap;
  int64_t *to; /* output offset of each pixel */
} Work;

static bool is_staged(const Job *job) { return job->x.dtype != job->weights->kn->type; }

static void carve_work(const Job *job, Arena *a, Work *w) {
  const int64_t taps = job->x.n_tap[0] * job->x.n_tap[1], depth = job->cut.n_chan * taps;
  w->planes = take(a, (job->cut.buffer + DM_SLACK) * job->es);
  w->strip = take(a, depth * job->weights->kn->nr * job->es);
  w->tile = take(a, job->rows * job->weights->kn->nr * job->es);
  w->sums = take(a, is_staged(job) ? job->rows * job->cut.cols * job->es : 0);
  w->pixel = take(a, job->cut.cols * 4);
  w->tap = take(a, depth * 4);
  w->to = take(a, job->cut.cols * 8);
}

static void list_outputs(const Job *job, const dm_Piece *piece, int64_t *to) {
  for (int64_t i = 0; i < piece->n_img; i++)
    for (int64_t p = 0; p < piece->rows; p++)
      for (int64_t q = 0; q < job->x.q; q++)
        *to++ = (piece->img + i) * job->img_step + (piece->p + p) * job->row_step +
                q * job->col_step;
}

/* n elements of dst become the bias of a channel. */
static void fill_bias(const Job *job, int64_t chan, int64_t n, void *dst) {
  if (job->es == 4)
    for (int64_t j = 0; j < n; j++)
      ((float *)dst)[j] = ((const float *)(const void *)job->bias)[chan];
  else
    for (int64_t j = 0; j < n; j++)
      ((double *)dst)[j] = ((const double *)(const void *)job->bias)[chan];
}

static void scatter(const Job *job, const char *tile, int64_t rows, int64_t n, char *y,
                    const int64_t *to, bool add) {
  const int64_t nr = job->weights->kn->nr;
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < n; j++) {
      const int64_t at = i * job->chan_step + to[j];
      if (job->es == 4) {
        float *const p = (float *)(void *)y + at;
        const float v = ((const float *)(const void *)tile)[i * nr + j];
        *p = add ? *p + v : v;
      } else {
        double *const p = (double *)(void *)y + at;
        const double v = ((const double *)(const void *)tile)[i * nr + j];
        *p = add ? *p + v : v;
      }
    }
}

/* One strip of pixels times the weights of a block, into sums or y. */
static void run_strip(const Job *job, const Work *w, const char *weights, int64_t depth,
                      int64_t chan, int64_t rows, int64_t j, int n, int64_t sums_rs, bool add) {
  const Weights *const p = job->weights;
  const dm_Kernel *const kn = p->kn;
  const bool together = w->to[j + n - 1] - w->to[j] == n - 1;
  char *const y = job->y + chan * job->chan_step * job->es;
  char *dst = w->tile;
  int64_t rs = kn->nr;
  bool add_tile = false;
  if (is_staged(job)) {
    dst = w->sums + j * job->es;
    rs = sums_rs;
    add_tile = add;
  } else if (together) {
    dst = y + w->to[j] * job->es;
    rs = job->chan_step;
    add_tile = add;
  }
  const bool biased = job->bias && !add;
  const dm_Prologue lay = {biased ? job->bias + chan * job->es : NULL, 1, 0};
  dm_tile_column(p->times, rows, n, dm_depth(p->times, depth), weights, p->k * kn->mr, 1,
                 kn->mr, w->strip, kn->nr, dst, rs, add_tile, biased ? &lay : NULL, NULL);
  if (!is_staged(job) && !together) scatter(job, dst, rows, n, y, w->to + j, add);
}

/* Rounds staged sums (rows, cols) into y. */
static void store_sums(const Job *job, const dm_Piece *piece, const Work *w, int64_t chan,
                       int64_t rows) {
  const bool dense = job->col_step == 1 && job->row_step == job->x.q;
  const int64_t run = dense ? piece->rows * job->x.q : job->x.q;
  const int64_t out = dm_dtype_size(job->x.dtype);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < piece->cols; j += run)
      dm_store_f32(job->x.dtype, job->y + ((chan + i) * job->chan_step + w->to[j]) * out,
                   job->col_step, run,
                   (const float *)(const void *)w->sums + i * piece->cols + j);
}

/* One output channel and neighbours in memory: nothing to share, so rows are
   summed where they lie, without gathering. */
static bool is_stencil(const Job *job) {
  return job->weights->out == 1 && job->x.step[1] == 1 && job->col_step == 1;
}

static void run_stencil(const Job *job, const Work *w, const dm_Piece *piece,
                        const char *weights, int64_t depth, int64_t chan, bool add) {
  char *const y = job->y + chan * job->chan_step * job->es;
  for (int64_t j = 0; j < piece->cols; j += job->x.q) {
    char *const dst = is_staged(job) ? w->sums + j * job->es : y + w->to[j] * job->es;
    const bool biased = job->bias && !add;
    if (biased) fill_bias(job, chan, job->x.q, dst);
    job->weights->kn->stencil(w->planes + w->pixel[j] * job->es, w->tap, depth, weights,
                              job->weights->kn->mr, job->x.q, dst, add || biased);
  }
}

static void run_piece(const Job *job, const Work *w, int64_t task) {
  const Weights *const p = job->weights;
  const int64_t block = task % job->n_block, rest = task / job->n_block;
  const int64_t group = rest % p->d->groups, first = block * job->rows;
  const int64_t rows = dm_min_i64(job->rows, p->out - first);
  const int64_t chan = group * p->out + first, nr = p->kn->nr;
  const int64_t taps = job->x.n_tap[0] * job->x.n_tap[1];
  const dm_Piece piece = dm_window_piece(&job->x, &job->cut, rest / p->d->groups);
  const char *const weights = p->panels + (group * p->group_size + first * p->k) * job->es;
  dm_list_pixels(&job->x, &job->cut, &piece, w->pixel);
  list_outputs(job, &piece, w->to);
  for (int64_t c = 0; c < p->in; c += job->cut.n_chan) {
    const int64_t n_chan = dm_min_i64(job->cut.n_chan, p->in - c);
    const int64_t depth = n_chan * taps;
    dm_load_piece(&job->x, &job->cut, &piece, group * p->in + c, n_chan, p->kn->type,
                  w->planes);
    const char *const part = weights + dm_depth(p->times, c * taps) * p->kn->mr * job->es;
    if (is_stencil(job)) {
      run_stencil(job, w, &piece, part, depth, chan, c > 0);
      continue;
    }
    for (int64_t j = 0; j < piece.cols; j += nr) {
      const int n = (int)dm_min_i64(nr, piece.cols - j);
      p->kn->gather(w->planes, w->pixel + j, n, w->tap, depth, (int)nr, w->strip);
      if (p->times->pairs) p->times->join(depth, (int)nr, w->strip);
      run_strip(job, w, part, depth, chan, rows, j, n, piece.cols, c > 0);
    }
  }
  if (is_staged(job)) store_sums(job, &piece, w, chan, rows);
}

static void run_pieces(void *ctx, int64_t begin, int64_t end) {
  Job *const job = ctx;
  Arena arena = {NULL, 0};
  Work w;
  carve_work(job, &arena, &w);
  arena = (Arena){dm_scratch(DM_SCRATCH_TASK, arena.used), 0};
  if (!arena.base) {
    atomic_store(&job->failed, true);
    return;
  }
  carve_work(job, &arena, &w);
  dm_list_taps(&job->x, &job->cut, w.tap);
  for (int64_t i = begin; i < end; i++) run_piece(job, &w, i);
}

/* Cuts and runs a job whose window, weights and output are set. */
static dm_status run_job(Job *job, const char *op) {
  const Weights *const p = job->weights;
  const int64_t threads = dm_get_num_threads();
  dm_window_range(&job->x);
  job->cut =
      dm_cut_window(&job->x, p->in, DEPTH, INT64_MAX, p->kn->nr, p->times->pairs ? 2 : 1);
  if (job->cut.buffer > INT32_MAX)
    return dm_fail(DM_EARG, "%s: a row of taps spans more than 2^31 pixels", op);
  job->rows = dm_even_part(p->out, ROWS, p->kn->mr);
  while (job->cut.n_piece * p->d->groups * dm_ceil_div(p->out, job->rows) < 2 * threads &&
         job->rows > 8 * p->kn->mr)
    job->rows = dm_even_part(job->rows, dm_ceil_div(job->rows, 2), p->kn->mr);
  job->n_block = dm_ceil_div(p->out, job->rows);
  const int64_t work = job->rows * job->cut.cols * p->k + 1;
  dm_parallel_for(job->cut.n_piece * p->d->groups * job->n_block,
                  dm_max_i64(1, TASK_WORK / work), run_pieces, job);
  return atomic_load(&job->failed) ? no_memory(op) : DM_OK;
}

/* ---- weights -------------------------------------------------------------------- */

static int64_t padded_lanes(const dm_Kernel *kn, int64_t n) {
  return dm_ceil_div(n, kn->mr) * kn->mr;
}

/* w (O, CRS) as it is: panels of O. One unit is one panel. */
static void pack_forward(void *ctx, int64_t begin, int64_t end) {
  const Weights *const p = ctx;
  const int64_t es = dm_dtype_size(p->kn->type), in = dm_dtype_size(p->dtype), mr = p->kn->mr;
  const int64_t n_panel = dm_ceil_div(p->out, mr);
  for (int64_t u = begin; u < end; u++) {
    const int64_t first = u % n_panel * mr, o = u / n_panel * p->out + first;
    p->times->pack(p->dtype, p->w + o * p->k * in, p->k, 1, (int)dm_min_i64(mr, p->out - first),
                   p->k, (int)mr, p->panels + u * p->k * mr * es);
  }
}

/* Lanes of w (n_lane, RS) side by side: the taps of this phase, mr apart. Few taps are
   gathered at once: a call for each costs small planes more than their products. */
static void pack_taps(const Weights *p, dm_DType type, const char *w, int n_lane, char *dst) {
  enum { LANES = 32, TAPS = 64 };
  const int64_t rs = p->d->r * p->d->s, taps = p->n_tap[0] * p->n_tap[1], mr = p->kn->mr;
  const bool fits = type == p->kn->type && mr <= LANES && taps <= TAPS && mr * rs <= INT32_MAX;
  int32_t lane[LANES] = {0}, at[TAPS];
  for (int64_t i = 0; i < taps; i++) {
    const int64_t tap = p->tap[0][i / p->n_tap[1]] * p->d->s + p->tap[1][i % p->n_tap[1]];
    if (fits) at[i] = (int32_t)tap;
    else
      p->kn->pack(type, w + tap * dm_dtype_size(type), rs, 1, n_lane, 1, (int)mr,
                  dst + i * mr * dm_dtype_size(p->kn->type));
  }
  if (!fits) return;
  for (int l = 0; l < n_lane; l++) lane[l] = l * (int32_t)rs;
  p->kn->gather(w, lane, n_lane, at, taps, (int)mr, dst);
}

/* One tap: rows of w (O, C) are lanes side by side. Units of one group. */
static void pack_single(const Weights *p, int64_t begin, int64_t end) {
  const int64_t es = dm_dtype_size(p->kn->type), in = dm_dtype_size(p->dtype), mr = p->kn->mr;
  const int64_t g = begin / p->in, o = begin % p->in;
  for (int64_t c = 0; c < p->out; c += mr)
    p->kn->pack(p->dtype, p->w + (begin * p->out + c) * in, 1, p->out,
                (int)dm_min_i64(mr, p->out - c), end - begin, (int)mr,
                p->panels + (g * p->group_size + (c * p->k + o * mr)) * es);
}

/* Panels of C, k = (o, taps of this phase). One unit is one o of one group. */
static void pack_backward(void *ctx, int64_t begin, int64_t end) {
  const Weights *const p = ctx;
  const int64_t es = dm_dtype_size(p->kn->type), in = dm_dtype_size(p->dtype);
  const int64_t rs = p->d->r * p->d->s, taps = p->n_tap[0] * p->n_tap[1], mr = p->kn->mr;
  float wide[WIDE];
  for (int64_t next; rs == 1 && begin < end; begin = next) {
    next = dm_min_i64(end, (begin / p->in + 1) * p->in);
    pack_single(p, begin, next);
  }
  for (int64_t u = begin; u < end; u++) {
    const int64_t g = u / p->in, o = u % p->in;
    const char *const src = p->w + u * p->out * rs * in;
    for (int64_t c = 0; c < p->out; c += mr) {
      char *const dst = p->panels + (g * p->group_size + (c * p->k + o * taps * mr)) * es;
      const int n_lane = (int)dm_min_i64(mr, p->out - c);
      const char *at = src + c * rs * in;
      dm_DType type = p->dtype;
      if (dm_is_16bit(type) && n_lane * rs <= WIDE) {
        dm_load_f32(type, at, 1, n_lane * rs, wide);
        at = (const char *)wide;
        type = DM_F32;
      }
      if (taps == rs) p->kn->pack(type, at, rs, 1, n_lane, taps, (int)mr, dst);
      else pack_taps(p, type, at, n_lane, dst);
    }
  }
}

/* Panels of floats become panels of pairs. */
static void join_panels(void *ctx, int64_t begin, int64_t end) {
  const Weights *const p = ctx;
  const int64_t mr = p->kn->mr, size = p->k * mr * dm_dtype_size(p->kn->type);
  for (int64_t u = begin; u < end; u++) p->times->join(p->k, (int)mr, p->panels + u * size);
}

/* ---- forward --------------------------------------------------------------------- */

static dm_Window window_of_x(const dm_ConvDims *d, dm_DType t, const void *x, int64_t *taps) {
  dm_Window win = {.data = x,
                   .dtype = t,
                   .n_img = d->n,
                   .n_chan = d->c,
                   .h = d->h,
                   .w = d->w,
                   .p = d->p,
                   .q = d->q,
                   .step = {d->stride[0], d->stride[1]},
                   .n_tap = {d->r, d->s},
                   .tap = {taps, taps + d->r}};
  for (int64_t i = 0; i < d->r; i++) taps[i] = i * d->dil[0] - d->pad[0];
  for (int64_t i = 0; i < d->s; i++) taps[d->r + i] = i * d->dil[1] - d->pad[1];
  dm_window_range(&win);
  return win;
}

dm_status dm_conv2d_fwd(const dm_ConvDims *d, dm_DType t, const void *x, const void *w,
                        const void *bias, void *y) {
  const int64_t pixels = d->p * d->q;
  if (d->n * d->o * pixels <= 0) return DM_OK;
  if (dm_conv2d_is_product(d, t, d->o)) return dm_conv2d_product_fwd(d, t, x, w, bias, y);
  if (dm_conv2d_is_winograd(d, t)) return dm_winograd_fwd(d, t, x, w, bias, y);
  const int64_t in = d->c / d->groups, out = d->o / d->groups, k = in * d->r * d->s;
  const dm_Kernel *const kn = dm_kernel(dm_compute_dtype(t));
  const dm_Kernel *const times = kernel_that_multiplies(kn, t, out);
  const int64_t es = dm_dtype_size(kn->type);
  const int64_t group_size = padded_lanes(kn, out) * k;
  Arena a = {NULL, 0};
  int64_t *taps = NULL;
  char *packed = NULL, *bias_row = NULL;
  for (int pass = 0; pass < 2; pass++) {
    taps = take(&a, (d->r + d->s) * 8);
    packed = take(&a, d->groups * group_size * es);
    bias_row = take(&a, bias ? d->o * es : 0);
    if (pass == 0) a = (Arena){dm_scratch(DM_SCRATCH_JOB, a.used), 0};
    if (!a.base) return no_memory("conv2d");
  }
  Weights p = {.d = d,
               .dtype = t,
               .kn = kn,
               .times = times,
               .w = w,
               .panels = packed,
               .in = in,
               .out = out,
               .k = k,
               .group_size = group_size};
  dm_parallel_for(d->groups * dm_ceil_div(out, kn->mr), dm_max_i64(1, (1 << 16) / (k * kn->mr)),
                  pack_forward, &p);
  if (bias) dm_convert(t, bias, kn->type, bias_row, d->o);
  Job job = {.weights = &p,
             .es = es,
             .bias = bias ? bias_row : NULL,
             .y = y,
             .img_step = d->o * pixels,
             .chan_step = pixels,
             .row_step = d->q,
             .col_step = 1};
  job.x = window_of_x(d, t, x, taps);
  const dm_status st = run_job(&job, "conv2d");
  dm_scratch_trim(DM_SCRATCH_JOB);
  return st;
}

/* ---- dx -------------------------------------------------------------------------- */

/* Taps r of one dim that reach pixels h = h'*step + phase: lists r, and the
   row of dy that it reads for h' = 0. Returns how many. */
static int64_t phase_taps(const dm_ConvDims *d, int dim, int64_t phase, int64_t *which,
                          int64_t *tap) {
  const int64_t n = dim == 0 ? d->r : d->s;
  int64_t count = 0;
  for (int64_t i = 0; i < n; i++) {
    const int64_t at = phase + d->pad[dim] - i * d->dil[dim];
    if (at % d->stride[dim] != 0) continue;
    which[count] = i;
    tap[count++] = at / d->stride[dim];
  }
  return count;
}

static void run_phase(Job *job, Weights *p, const dm_ConvDims *d, int64_t ph, int64_t pw,
                      int64_t *lists, char *dx, dm_status *st) {
  int64_t *const which_h = lists, *const which_w = which_h + d->r;
  int64_t *const tap_h = which_w + d->s, *const tap_w = tap_h + d->r;
  dm_Window *const x = &job->x;
  x->p = (d->h - ph + d->stride[0] - 1) / d->stride[0];
  x->q = (d->w - pw + d->stride[1] - 1) / d->stride[1];
  x->n_tap[0] = p->n_tap[0] = phase_taps(d, 0, ph, which_h, tap_h);
  x->n_tap[1] = p->n_tap[1] = phase_taps(d, 1, pw, which_w, tap_w);
  x->tap[0] = tap_h;
  x->tap[1] = tap_w;
  p->tap[0] = which_h;
  p->tap[1] = which_w;
  if (x->p <= 0 || x->q <= 0 || x->n_tap[0] * x->n_tap[1] == 0) return;
  p->k = p->in * x->n_tap[0] * x->n_tap[1];
  p->group_size = padded_lanes(p->kn, p->out) * p->k;
  job->y = dx + (ph * d->w + pw) * dm_dtype_size(p->dtype);
  const int64_t unit = p->out * x->n_tap[0] * x->n_tap[1];
  dm_parallel_for(d->groups * p->in, dm_max_i64(1, (1 << 14) / unit), pack_backward, p);
  if (p->times->pairs)
    dm_parallel_for(d->groups * dm_ceil_div(p->out, p->kn->mr),
                    dm_max_i64(1, (1 << 16) / (p->k * p->kn->mr)), join_panels, p);
  *st = run_job(job, "conv2d_dx");
}

dm_status dm_conv2d_dx(const dm_ConvDims *d, dm_DType t, const void *dy, const void *w,
                       void *dx) {
  const int64_t size = d->n * d->c * d->h * d->w;
  if (size <= 0) return DM_OK;
  if (dm_conv2d_is_product(d, t, d->c)) return dm_conv2d_product_dx(d, t, dy, w, dx);
  if (dm_conv2d_is_winograd(d, t)) return dm_winograd_dx(d, t, dy, w, dx);
  const bool hidden = d->r < d->stride[0] || d->s < d->stride[1] || d->dil[0] > 1 ||
                      d->dil[1] > 1 || d->n * d->o * d->p * d->q <= 0;
  /* pixels that no tap reaches have gradient 0 */
  if (hidden) memset(dx, 0, (size_t)(size * dm_dtype_size(t)));
  if (d->n * d->o * d->p * d->q <= 0) return DM_OK;
  const int64_t in = d->o / d->groups, out = d->c / d->groups;
  const dm_Kernel *const kn = dm_kernel(dm_compute_dtype(t));
  const dm_Kernel *const times = kernel_that_multiplies(kn, t, out);
  const int64_t es = dm_dtype_size(kn->type);
  Arena a = {NULL, 0};
  int64_t *lists = NULL;
  char *packed = NULL;
  for (int pass = 0; pass < 2; pass++) {
    lists = take(&a, 2 * (d->r + d->s) * 8);
    packed = take(&a, d->groups * padded_lanes(kn, out) * in * d->r * d->s * es);
    if (pass == 0) a = (Arena){dm_scratch(DM_SCRATCH_JOB, a.used), 0};
    if (!a.base) return no_memory("conv2d_dx");
  }
  Weights p = {.d = d,
               .dtype = t,
               .kn = kn,
               .times = times,
               .w = w,
               .panels = packed,
               .in = in,
               .out = out};
  Job job = {.weights = &p,
             .es = es,
             .img_step = d->c * d->h * d->w,
             .chan_step = d->h * d->w,
             .row_step = d->w * d->stride[0],
             .col_step = d->stride[1]};
  job.x = (dm_Window){.data = dy,
                      .dtype = t,
                      .n_img = d->n,
                      .n_chan = d->o,
                      .h = d->p,
                      .w = d->q,
                      .step = {1, 1}};
  dm_status st = DM_OK;
  for (int64_t ph = 0; ph < d->stride[0] && st == DM_OK; ph++)
    for (int64_t pw = 0; pw < d->stride[1] && st == DM_OK; pw++)
      run_phase(&job, &p, d, ph, pw, lists, dx, &st);
  dm_scratch_trim(DM_SCRATCH_JOB);
  return st;
}

/* ---- dw -------------------------------------------------------------------------- */

typedef struct DwJob {
  const dm_Kernel *kn, *times; /* as of a Job */
  int64_t es;
  const dm_ConvDims *d;
  dm_Window x;
  dm_Cut cut;
  const char *dy;
  int64_t in, out, k;          /* channels of a group; in * taps */
  int64_t n_part, part_pieces; /* parts of all pieces */
  int64_t n_block;             /* blocks of cut.n_chan channels */
  char *parts;                 /* [n_part][O][k] */
  char *dw;
  atomic_bool failed;
} DwJob;

typedef struct DwWork {
  char *planes, *strip, *dy;
  int32_t *pixel, *tap;
} DwWork;

static void carve_dw(const DwJob *job, Arena *a, DwWork *w) {
  const int64_t taps = job->d->r * job->d->s;
  const bool copy = job->x.dtype != job->kn->type || job->cut.n_img > 1;
  w->planes = take(a, (job->cut.buffer + DM_SLACK) * job->es);
  w->strip = take(a, DW_DEPTH * job->kn->nr * job->es);
  w->dy = copy ? take(a, job->out * job->cut.cols * job->es) : NULL;
  w->pixel = take(a, job->cut.cols * 4);
  w->tap = take(a, job->cut.n_chan * taps * 4);
}

/* The rows of dy of a piece: (out, cols), *rs items of the product apart. Pairs are what
   lies side by side in rows of bfloat16, those of odd length with a zero behind. */
static const char *get_dy(const DwJob *job, const DwWork *w, const dm_Piece *piece,
                          int64_t group, int64_t *rs) {
  const int64_t pixels = job->d->p * job->d->q, in = dm_dtype_size(job->x.dtype);
  const int64_t n = piece->rows * job->d->q; /* of an image */
  const char *src =
      job->dy +
      ((piece->img * job->d->o + group * job->out) * pixels + piece->p * job->d->q) * in;
  *rs = pixels;
  if (!w->dy) return src;
  const bool pairs = job->times->pairs;
  *rs = dm_depth(job->times, piece->cols);
  const dm_DType to = pairs ? job->x.dtype : job->kn->type;
  const int64_t es = dm_dtype_size(to), row = *rs * job->es;
  for (int64_t i = 0; i < piece->n_img; i++, src += job->d->o * pixels * in)
    for (int64_t o = 0; o < job->out; o++)
      dm_convert(job->x.dtype, src + o * pixels * in, to, w->dy + o * row + i * n * es, n);
  for (int64_t o = 0; pairs && piece->cols % 2 && o < job->out; o++)
    memset(w->dy + o * row + piece->cols * es, 0, (size_t)es);
  return w->dy;
}

/* Adds one piece's products to sums (out, lanes), rows k apart. */
static void add_piece(const DwJob *job, const DwWork *w, const dm_Piece *piece, const char *dy,
                      int64_t dy_rs, int64_t lanes, char *sums, bool add) {
  const int64_t nr = job->kn->nr, mr = job->kn->mr, es = job->es;
  for (int64_t k = 0; k < piece->cols; k += DW_DEPTH) {
    const int64_t depth = dm_min_i64(DW_DEPTH, piece->cols - k);
    for (int64_t j = 0; j < lanes; j += nr) {
      const int n = (int)dm_min_i64(nr, lanes - j);
      job->kn->gather_t(w->planes, w->tap + j, n, w->pixel + k, depth, (int)nr, w->strip);
      if (job->times->pairs) job->times->join(depth, (int)nr, w->strip);
      dm_tile_column(job->times, job->out, n, dm_depth(job->times, depth),
                     dy + dm_depth(job->times, k) * es, mr * dy_rs, dy_rs, 1, w->strip, nr,
                     sums + j * es, job->k, add, NULL, NULL);
    }
    add = true;
  }
}

static void run_dw_task(const DwJob *job, const DwWork *w, int64_t task) {
  const int64_t block = task % job->n_block, rest = task / job->n_block;
  const int64_t group = rest % job->d->groups, part = rest / job->d->groups;
  const int64_t taps = job->d->r * job->d->s, c = block * job->cut.n_chan;
  const int64_t n_chan = dm_min_i64(job->cut.n_chan, job->in - c);
  const int64_t end = dm_min_i64(job->cut.n_piece, (part + 1) * job->part_pieces);
  char *const sums =
      job->parts + ((part * job->d->o + group * job->out) * job->k + c * taps) * job->es;
  for (int64_t i = part * job->part_pieces; i < end; i++) {
    const dm_Piece piece = dm_window_piece(&job->x, &job->cut, i);
    int64_t dy_rs;
    const char *const dy = get_dy(job, w, &piece, group, &dy_rs);
    dm_load_piece(&job->x, &job->cut, &piece, group * job->in + c, n_chan, job->kn->type,
                  w->planes);
    add_piece(job, w, &piece, dy, dy_rs, n_chan * taps, sums, i > part * job->part_pieces);
  }
}

static void run_dw_tasks(void *ctx, int64_t begin, int64_t end) {
  DwJob *const job = ctx;
  Arena arena = {NULL, 0};
  DwWork w;
  carve_dw(job, &arena, &w);
  arena = (Arena){dm_scratch(DM_SCRATCH_TASK, arena.used), 0};
  if (!arena.base) {
    atomic_store(&job->failed, true);
    return;
  }
  carve_dw(job, &arena, &w);
  memset(w.planes + job->cut.buffer * job->es, 0, (size_t)(DM_SLACK * job->es));
  const dm_Piece whole = {0, job->cut.n_img, 0, job->cut.rows, job->cut.cols};
  dm_list_pixels(&job->x, &job->cut, &whole, w.pixel);
  dm_list_taps(&job->x, &job->cut, w.tap);
  for (int64_t i = begin; i < end; i++) run_dw_task(job, &w, i);
}

/* Elements [begin, end) of dw: parts in order, then one rounding. */
static void join_dw(void *ctx, int64_t begin, int64_t end) {
  const DwJob *const job = ctx;
  const int64_t size = job->d->o * job->k, n = end - begin;
  const dm_Epilogue plain = {1, 0, job->x.dtype, job->x.dtype};
  char *const sums = job->parts + begin * job->es;
  for (int64_t p = 1; p < job->n_part; p++) {
    const char *const more = sums + p * size * job->es;
    if (job->es == 4)
      for (int64_t i = 0; i < n; i++)
        ((float *)(void *)sums)[i] += ((const float *)(const void *)more)[i];
    else
      for (int64_t i = 0; i < n; i++)
        ((double *)(void *)sums)[i] += ((const double *)(const void *)more)[i];
  }
  dm_epilogue_row(&plain, job->kn->type, sums, n, job->dw + begin * dm_dtype_size(job->x.dtype),
                  NULL, 0);
}

dm_status dm_conv2d_dw(const dm_ConvDims *d, dm_DType t, const void *dy, const void *x,
                       void *dw) {
  const int64_t in = d->c / d->groups, k = in * d->r * d->s, size = d->o * k;
  if (size <= 0) return DM_OK;
  if (d->n * d->p * d->q <= 0) {
    memset(dw, 0, (size_t)(size * dm_dtype_size(t)));
    return DM_OK;
  }
  if (dm_conv2d_is_product(d, t, 0)) return dm_conv2d_product_dw(d, t, dy, x, dw);
  if (dm_conv2d_dw_is_winograd(d, t)) return dm_winograd_dw(d, t, dy, x, dw);
  const dm_Kernel *const kn = dm_kernel(dm_compute_dtype(t));
  DwJob job = {.kn = kn,
               .times = kernel_that_multiplies(kn, t, d->o / d->groups),
               .es = dm_dtype_size(kn->type),
               .d = d,
               .dy = dy,
               .in = in,
               .out = d->o / d->groups,
               .k = k,
               .dw = dw};
  int64_t *const taps = dm_alloc((d->r + d->s) * 8);
  if (!taps) return no_memory("conv2d_dw");
  dm_status st = DM_OK;
  job.x = window_of_x(d, t, x, taps);
  job.cut = dm_cut_window(&job.x, in, DW_LANES, DW_IMAGES, kn->nr, 1);
  job.n_block = dm_ceil_div(in, job.cut.n_chan);
  const int64_t most = dm_max_i64(1, dm_min_i64(DW_PARTS, DW_SUMS / size));
  job.part_pieces = dm_ceil_div(job.cut.n_piece, most);
  job.n_part = dm_ceil_div(job.cut.n_piece, job.part_pieces);
  if (job.cut.buffer > INT32_MAX) {
    st = dm_fail(DM_EARG, "conv2d_dw: a row of taps spans more than 2^31 pixels");
    goto done;
  }
  job.parts = dm_scratch(DM_SCRATCH_JOB, job.n_part * size * job.es);
  if (!job.parts) {
    st = no_memory("conv2d_dw");
    goto done;
  }
  const int64_t work = job.part_pieces * job.cut.cols * job.out * k / job.n_block + 1;
  dm_parallel_for(job.n_part * d->groups * job.n_block, dm_max_i64(1, TASK_WORK / work),
                  run_dw_tasks, &job);
  if (atomic_load(&job.failed)) st = no_memory("conv2d_dw");
  else dm_parallel_for(size, 1 << 13, join_dw, &job);
  dm_scratch_trim(DM_SCRATCH_JOB);
done:
  dm_free(taps);
  return st;
}
