/* Forward and dx as implicit matrix products (S. Chetlur et al., "cuDNN: efficient primitives
   for deep learning", 2014): the columns of the im2col matrix are gathered a strip at a time,
   in the order in which the register kernel reads them, and are never stored as a whole.

     forward  y  (O x NPQ)   = w (O x CRS) * gathered x (CRS x NPQ)
     dx       dx (C x NH'W') = w^T (C x O taps) * gathered dy (O taps x NH'W'),
              one such product for each of stride[0] * stride[1] phases

   Backward by phases: position h = h' * stride + phase of dx meets kernel row r only if
   (phase + pad - r * dil) % stride == 0. All positions of a phase share these taps, so dx of a
   phase is a forward convolution of dy with stride 1 and fewer taps. No product is computed
   with the zeros that a transposed convolution would insert, and no element of dx is written
   twice. A phase without taps keeps what dx begins with: the bias, or zeros. The phases of
   neighbouring columns run together: a task copies their planes once, and writes whole runs of
   dx.

   A task is one tile of output positions (conv_tiles.h), one group, and a block of at most
   ROWS output channels. It copies the planes under the tile, gathers strips of nr positions
   and multiplies them with the packed weights, a chunk of channels at a time, so that a
   strip (DEPTH x nr) stays in L1. Sums of 16-bit tensors stay in float32 until the last
   chunk and are rounded once.

   Where the processor multiplies pairs of bfloat16, planes keep their dtype and strips are
   gathered as pairs. */
#include "cpu/conv_implicit.h"

#include "base/error.h"
#include "cpu/gemm_variant.h"
#include "cpu/scratch.h"
#include "cpu/threads.h"
#include "cpu/vec.h"

#include <stdatomic.h>
#include <string.h>

enum {
  DEPTH = 384,   /* products a chunk of channels adds: a packed strip in L1 */
  ROWS = 384,    /* output channels of a task, of all its phases */
  PHASES = 4,    /* of dx, of neighbouring columns, that run together */
  WIDE = 1 << 10 /* elements of 16 bits that are widened on the stack */
};

dm_status dm_conv_no_memory(const char *op) {
  return dm_fail(DM_EMEM, "%s: out of memory for the packing buffers", op);
}

const dm_Kernel *dm_conv_multiply_kernel(const dm_Kernel *gather_kernel, dm_DType t,
                                         int64_t out) {
  return out > 1 ? dm_kernel_for(t) : gather_kernel;
}

/* ---- products of gathered strips: forward and dx ------------------------------- */

/* The packed weights of one product, of the forward pass or of one phase of dx. "in" and "out"
   are the product's: dx sums over O and makes C. */
typedef struct Weights {
  const dm_ConvDims *d;
  dm_DType dtype;
  const dm_Kernel *gather_kernel, *multiply_kernel; /* the same, or one of pairs */
  const char *w;
  char *panels;       /* [group][panel][depth][mr], pairs in the first half of a panel */
  int64_t in, out;    /* channels of a group: summed over, produced */
  int64_t k, depth;   /* in * taps; floats a lane of a panel has */
  int64_t group_size; /* elements of a group's panels */
  int64_t n_tap[2];
  const int64_t *tap[2]; /* dx: which r and s take part */
} Weights;

/* Floats of a lane that is gathered k deep and then joined: a tile may be deeper than k. */
static int64_t lane_depth(const Weights *p, int64_t k) {
  return dm_max_i64(k, dm_depth(p->multiply_kernel, k));
}

/* One implicit product, or one for each of n_phase phases of dx, which differ in weights, in
   the taps of x, and in the first column of y. Output position (p,q) of image i and channel c
   is element i * img_step + c * chan_step + p * row_step + q * col_step of y: phases have steps
   of `stride` rows and columns. The last position of a row may lie beyond the `width` of y for
   all phases but the first. */
typedef struct Job {
  const Weights *weights; /* (n_phase) */
  int64_t es, plane_es;   /* bytes of a sum, of an element of the planes */
  dm_ConvInput x[PHASES];
  int64_t first, shift[PHASES]; /* columns of y: that of phase 0, and those behind it */
  int64_t width, n_phase;
  dm_TileGrid grid;
  int64_t rows, n_block;                           /* output channels of a task; tasks a tile */
  const char *bias;                                /* compute type, or NULL */
  char *y;                                         /* first output position of this job */
  int64_t img_step, chan_step, row_step, col_step; /* of the output */
  atomic_bool failed;
} Job;

/* The buffers of a task. */
typedef struct Work {
  char *planes, *strip; /* the padded planes; a gathered strip */
  char *product; /* (phases, rows, nr) of a strip, where its outputs are not contiguous */
  char *sums;    /* (phases, rows, cols) of a tile, where y has 16 bits */
  int32_t *position, *tap[PHASES];
  int64_t *to; /* output offset of each position */
} Work;

/* Whether sums pass through a buffer, because y has 16 bits. */
static bool is_staged(const Job *job) {
  return job->x->dtype != job->weights->gather_kernel->type;
}

/* The sizes of a task's buffers, in the order of Work. */
static void carve_work(const void *ctx, dm_Arena *a, void *parts) {
  const Job *const job = ctx;
  Work *const w = parts;
  const int64_t nr = job->weights->gather_kernel->nr;
  int64_t most = 0;
  for (int64_t f = 0; f < job->n_phase; f++) {
    const int64_t depth = job->grid.n_chan * job->x[f].n_tap[0] * job->x[f].n_tap[1];
    w->tap[f] = dm_arena_take(a, depth * 4);
    most = dm_max_i64(most, depth);
  }
  w->planes = dm_arena_take(a, (job->grid.buffer + DM_SLACK) * job->plane_es);
  w->strip = dm_arena_take(a, lane_depth(job->weights, most) * nr * job->es);
  w->product = dm_arena_take(a, job->n_phase * job->rows * nr * job->es);
  w->sums = dm_arena_take(
      a, is_staged(job) ? job->n_phase * job->rows * job->grid.cols * job->es : 0);
  w->position = dm_arena_take(a, job->grid.cols * 4);
  w->to = dm_arena_take(a, job->grid.cols * 8);
}

/* to[j]: the offset in y of position j of a tile, in elements, for channel 0. */
static void list_outputs(const Job *job, const dm_ConvTile *tile, int64_t *to) {
  for (int64_t i = 0; i < tile->n_img; i++)
    for (int64_t p = 0; p < tile->rows; p++)
      for (int64_t q = 0; q < tile->columns; q++)
        *to++ = (tile->img + i) * job->img_step + (tile->p + p) * job->row_step +
                (tile->q + q) * job->col_step;
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

/* How many of n positions, of which the first one's output is `to`, are columns of its row that
   lie `shift` columns further. */
static int64_t n_inside(const Job *job, int64_t shift, int64_t to, int64_t n) {
  if (job->col_step == 1) return n;
  const int64_t left = job->width - job->first - to % job->width - shift;
  return dm_max_i64(0, dm_min_i64(n, dm_ceil_div(left, job->col_step)));
}

/* The products (phases, rows, n) of a strip to outputs that lie apart: run by run of those of
   one row, of which two phases of every second column leave none out. */
#define DEFINE_SCATTER(REAL, NAME)                                                          \
  static void NAME(const Job *job, const REAL *product, int64_t rows, int64_t n, REAL *y,   \
                   const int64_t *to, bool add) {                                           \
    const int64_t step = job->col_step, nr = job->weights->gather_kernel->nr;               \
    const int64_t phase = job->rows * nr;                                                   \
    const bool pairs = job->n_phase == 2 && step == 2 && job->shift[1] == 1 && !add;        \
    for (int64_t j = 0, run; j < n; j += run) {                                             \
      int64_t inside[PHASES] = {0};                                                         \
      for (run = 1; j + run < n && to[j + run] == to[j] + run * step;) run++;               \
      run = n_inside(job, 0, to[j], run); /* the next image may follow */                   \
      for (int64_t f = 0; f < job->n_phase; f++)                                            \
        inside[f] = n_inside(job, job->shift[f], to[j], run);                               \
      const int both = pairs ? (int)inside[1] : 0;                                          \
      for (int64_t i = 0; i < rows; i++) {                                                  \
        REAL *DM_RESTRICT const at = y + i * job->chan_step + to[j];                        \
        const REAL *DM_RESTRICT p = product + i * nr + j, *DM_RESTRICT const q = p + phase; \
        for (int k = 0; k < both; k++) at[2 * k] = p[k], at[2 * k + 1] = q[k];              \
        for (int64_t f = 0; f < job->n_phase; f++, p += phase)                              \
          for (int64_t k = both; k < inside[f]; k++) {                                      \
            REAL *const sum = at + k * step + job->shift[f];                                \
            *sum = add ? *sum + p[k] : p[k];                                                \
          }                                                                                 \
      }                                                                                     \
    }                                                                                       \
  }
DEFINE_SCATTER(float, scatter_f32)
DEFINE_SCATTER(double, scatter_f64)
#undef DEFINE_SCATTER

/* The data that all strips of a tile share while they add up one chunk of channels. */
typedef struct Chunk {
  const char *weights[PHASES]; /* packed, of the block of output channels and this chunk */
  int64_t depth[PHASES];       /* products an output */
  int64_t chan, rows;          /* output channels [chan, chan + rows) */
  int64_t columns;             /* of the tile */
  int64_t cols;                /* its positions */
  bool add;                    /* chunks before this one are in the sums */
} Chunk;

/* The gathered strip of positions [j, j + n) times the weights of phase f: straight into y
   where the outputs lie side by side and in the compute type, else into a buffer. Returns
   whether it is to be scattered from there. */
static bool run_strip(const Job *job, const Work *w, const Chunk *chunk, int64_t f, int64_t j,
                      int n) {
  const Weights *const p = &job->weights[f];
  const dm_Kernel *const kernel = p->multiply_kernel;
  const int64_t nr = p->gather_kernel->nr;
  const bool contiguous = job->col_step == 1 && w->to[j + n - 1] - w->to[j] == n - 1;
  const bool biased = job->bias && !chunk->add, staged = is_staged(job);
  char *const y = job->y + chunk->chan * job->chan_step * job->es;
  const dm_Prologue prologue = {biased ? job->bias + chunk->chan * job->es : NULL, 1, 0};
  dm_Sums sums = {.at = w->product + f * job->rows * nr * job->es,
                  .rs = nr,
                  .prologue = biased ? &prologue : NULL};
  if (staged) {
    sums.at = w->sums + (f * job->rows * chunk->cols + j) * job->es;
    sums.rs = chunk->cols;
    sums.add = chunk->add;
  } else if (contiguous) {
    sums.at = y + w->to[j] * job->es;
    sums.rs = job->chan_step;
    sums.add = chunk->add;
  }
  const dm_Panels weights = dm_packed_panels(kernel, chunk->weights[f], p->depth * kernel->mr);
  const dm_Strip strip = {.at = w->strip, .rs = nr};
  dm_tile_column(kernel, chunk->rows, n, dm_depth(kernel, chunk->depth[f]), &weights, &strip,
                 &sums, NULL);
  return !staged && !contiguous;
}

/* Rounds staged sums (phases, rows, cols) into y. */
static void store_sums(const Job *job, const dm_ConvTile *tile, const Work *w, int64_t chan,
                       int64_t rows) {
  const bool dense = job->col_step == 1 && job->row_step == tile->columns;
  const int64_t run = dense ? tile->rows * tile->columns : tile->columns;
  const int64_t out = dm_dtype_size(job->x->dtype);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < tile->cols; j += run)
      for (int64_t f = 0; f < job->n_phase; f++) {
        const int64_t to = (chan + i) * job->chan_step + w->to[j] + job->shift[f];
        dm_store_f32(job->x->dtype, job->y + to * out, job->col_step,
                     n_inside(job, job->shift[f], w->to[j], run),
                     (const float *)(const void *)w->sums + (f * job->rows + i) * tile->cols +
                         j);
      }
}

/* One output channel and neighbours in memory: nothing to share, so rows are
   summed where they lie, without gathering. */
static bool is_stencil(const Job *job) {
  return job->weights->out == 1 && job->x->step[1] == 1 && job->col_step == 1;
}

/* Each row of positions at once: sum over taps of weight times a shifted input row. */
static void run_stencil(const Job *job, const Work *w, const Chunk *chunk) {
  const dm_Kernel *const kernel = job->weights->gather_kernel;
  char *const y = job->y + chunk->chan * job->chan_step * job->es;
  for (int64_t j = 0; j < chunk->cols; j += chunk->columns) {
    char *const dst = is_staged(job) ? w->sums + j * job->es : y + w->to[j] * job->es;
    const bool biased = job->bias && !chunk->add;
    if (biased) fill_bias(job, chunk->chan, chunk->columns, dst);
    kernel->stencil(w->planes + w->position[j] * job->es, w->tap[0], chunk->depth[0],
                    chunk->weights[0], kernel->mr, chunk->columns, dst, chunk->add || biased);
  }
}

/* One chunk of channels, for all positions of a tile: gather a strip, multiply, next strip. The
   strip is used for all output channels of the task while it is in L1. */
static void run_chunk(const Job *job, const Work *w, const Chunk *chunk) {
  const dm_Kernel *const kernel = job->weights->multiply_kernel;
  const int64_t nr = kernel->nr;
  if (is_stencil(job)) {
    run_stencil(job, w, chunk);
    return;
  }
  for (int64_t j = 0; j < chunk->cols; j += nr) {
    const int n = (int)dm_min_i64(nr, chunk->cols - j);
    bool apart = false;
    for (int64_t f = 0; f < job->n_phase; f++) {
      kernel->gather(w->planes, w->position + j, n, w->tap[f], chunk->depth[f], (int)nr,
                     w->strip);
      apart = run_strip(job, w, chunk, f, j, n);
    }
    char *const y = job->y + chunk->chan * job->chan_step * job->es;
    if (apart && job->es == 4)
      scatter_f32(job, (const float *)(const void *)w->product, chunk->rows, n,
                  (float *)(void *)y, w->to + j, chunk->add);
    else if (apart)
      scatter_f64(job, (const double *)(const void *)w->product, chunk->rows, n,
                  (double *)(void *)y, w->to + j, chunk->add);
  }
}

/* Task number: (tile, group, block of output channels), the last one fastest, so that tasks in
   turn read the same planes. */
static void run_task(const Job *job, const Work *w, int64_t task) {
  const Weights *const p = job->weights;
  const dm_Kernel *const kernel = p->multiply_kernel;
  const int64_t block = task % job->n_block, rest = task / job->n_block;
  const int64_t group = rest % p->d->groups, first = block * job->rows;
  const dm_ConvTile tile = dm_tile_at(job->x, &job->grid, rest / p->d->groups);
  Chunk chunk = {.chan = group * p->out + first,
                 .rows = dm_min_i64(job->rows, p->out - first),
                 .columns = tile.columns,
                 .cols = tile.cols};
  dm_list_positions(job->x, &job->grid, &tile, w->position);
  list_outputs(job, &tile, w->to);
  for (int64_t c = 0; c < p->in; c += job->grid.n_chan) {
    const int64_t n_chan = dm_min_i64(job->grid.n_chan, p->in - c);
    dm_load_tile(job->x, &job->grid, &tile, group * p->in + c, n_chan, dm_gathered(kernel),
                 w->planes);
    for (int64_t f = 0; f < job->n_phase; f++) {
      const int64_t taps = job->x[f].n_tap[0] * job->x[f].n_tap[1];
      const int64_t at = group * p[f].group_size + first * p[f].depth +
                         dm_depth(kernel, c * taps) * kernel->mr;
      chunk.depth[f] = n_chan * taps;
      chunk.weights[f] = p[f].panels + at * job->es;
    }
    chunk.add = c > 0;
    run_chunk(job, w, &chunk);
  }
  if (is_staged(job)) store_sums(job, &tile, w, chunk.chan, chunk.rows);
}

/* Tasks [begin, end) with one set of buffers, which belong to the thread. */
static void run_tasks(void *ctx, int64_t begin, int64_t end) {
  Job *const job = ctx;
  Work w;
  if (!dm_scratch_carve(DM_SCRATCH_TASK, carve_work, job, &w)) {
    atomic_store(&job->failed, true);
    return;
  }
  for (int64_t f = 0; f < job->n_phase; f++) dm_list_taps(&job->x[f], &job->grid, w.tap[f]);
  for (int64_t i = begin; i < end; i++) run_task(job, &w, i);
}

/* Cuts the output channels into blocks. Where the tiles are too few for the threads, blocks are
   halved, further where a thread would have nothing to do: that changes who computes an
   element, not how it is summed. */
static void cut_channels(Job *job) {
  const Weights *const p = job->weights;
  const int64_t threads = dm_threads_here(), mr = p->multiply_kernel->mr;
  job->rows = dm_even_part(p->out, ROWS / job->n_phase, mr);
  for (;;) {
    job->n_block = dm_ceil_div(p->out, job->rows);
    const int64_t tasks = job->grid.n_tile * p->d->groups * job->n_block;
    const int64_t least = (tasks < threads ? 2 : 8) * mr;
    if (tasks >= 2 * threads || job->rows <= least) return;
    job->rows = dm_even_part(job->rows, dm_ceil_div(job->rows, 2), mr);
  }
}

/* Cuts and runs a job whose inputs, weights and output are set. Its phases read one copy of the
   planes, which holds what any of them reads. */
static dm_status run_job(Job *job, const char *op) {
  const Weights *const p = job->weights;
  const dm_ConvInput *most = job->x;
  int64_t k = 0, lo = INT64_MAX, hi = INT64_MIN;
  for (int64_t f = 0; f < job->n_phase; f++) {
    dm_ConvInput *const x = &job->x[f];
    dm_input_range(x);
    lo = dm_min_i64(lo, x->lo[1]);
    hi = dm_max_i64(hi, x->hi[1]);
    if (x->n_tap[1] > most->n_tap[1]) most = x;
    k += p[f].k;
  }
  for (int64_t f = 0; f < job->n_phase; f++) {
    job->x[f].lo[1] = lo;
    job->x[f].hi[1] = hi;
  }
  job->plane_es = dm_dtype_size(dm_gathered(p->multiply_kernel));
  job->grid = dm_tile_grid(most, p->in, DEPTH, INT64_MAX, p->gather_kernel->nr,
                           dm_depth_unit(p->multiply_kernel));
  if (job->grid.buffer > INT32_MAX)
    return dm_fail(DM_EARG, "%s: a row of taps spans more than 2^31 positions", op);
  cut_channels(job);
  const int64_t work = job->rows * job->grid.cols * k + 1;
  dm_parallel_for(job->grid.n_tile * p->d->groups * job->n_block,
                  dm_max_i64(1, DM_CONV_TASK_WORK / work), run_tasks, job);
  return atomic_load(&job->failed) ? dm_conv_no_memory(op) : DM_OK;
}

/* ---- weights -------------------------------------------------------------------- */

/* n rounded up to whole panels of mr lanes. */
static int64_t padded_lanes(const dm_Kernel *kernel, int64_t n) {
  return dm_ceil_div(n, kernel->mr) * kernel->mr;
}

/* w (O, CRS) as it is: panels of O. One unit is one panel. */
static void pack_forward(void *ctx, int64_t begin, int64_t end) {
  const Weights *const p = ctx;
  const int64_t es = dm_dtype_size(p->gather_kernel->type), in = dm_dtype_size(p->dtype),
                mr = p->multiply_kernel->mr;
  const int64_t n_panel = dm_ceil_div(p->out, mr);
  for (int64_t u = begin; u < end; u++) {
    const int64_t first = u % n_panel * mr, o = u / n_panel * p->out + first;
    dm_pack_panels(p->multiply_kernel, DM_A, p->dtype, p->w + o * p->k * in, p->k, 1,
                   dm_min_i64(mr, p->out - first), p->k, p->panels + u * p->depth * mr * es);
  }
}

/* Lanes of w (n_lane, RS) side by side: the taps of this phase, mr apart. Few taps are
   gathered at once: a call for each costs small planes more than their products. */
static void pack_taps(const Weights *p, dm_DType type, const char *w, int n_lane, char *dst) {
  enum { LANES = 32, TAPS = 64 };
  const int64_t rs = p->d->r * p->d->s, taps = p->n_tap[0] * p->n_tap[1],
                mr = p->multiply_kernel->mr;
  const bool fits =
      type == p->gather_kernel->type && mr <= LANES && taps <= TAPS && mr * rs <= INT32_MAX;
  int32_t lane[LANES] = {0}, at[TAPS];
  for (int64_t i = 0; i < taps; i++) {
    const int64_t tap = p->tap[0][i / p->n_tap[1]] * p->d->s + p->tap[1][i % p->n_tap[1]];
    if (fits) at[i] = (int32_t)tap;
    else
      p->gather_kernel->pack(type, w + tap * dm_dtype_size(type), rs, 1, n_lane, 1, (int)mr,
                             dst + i * mr * dm_dtype_size(p->gather_kernel->type));
  }
  if (!fits) return;
  for (int l = 0; l < n_lane; l++) lane[l] = l * (int32_t)rs;
  p->gather_kernel->gather(w, lane, n_lane, at, taps, (int)mr, dst);
}

/* One tap: rows of w (O, C) are lanes side by side. Units of one group. */
static void pack_single(const Weights *p, int64_t begin, int64_t end) {
  const int64_t es = dm_dtype_size(p->gather_kernel->type), in = dm_dtype_size(p->dtype),
                mr = p->multiply_kernel->mr;
  const int64_t g = begin / p->in, o = begin % p->in;
  for (int64_t c = 0; c < p->out; c += mr)
    p->gather_kernel->pack(p->dtype, p->w + (begin * p->out + c) * in, 1, p->out,
                           (int)dm_min_i64(mr, p->out - c), end - begin, (int)mr,
                           p->panels + (g * p->group_size + (c * p->depth + o * mr)) * es);
}

/* Panels of C, k = (o, taps of this phase). One unit is one o of one group. */
static void pack_backward(void *ctx, int64_t begin, int64_t end) {
  const Weights *const p = ctx;
  const int64_t es = dm_dtype_size(p->gather_kernel->type), in = dm_dtype_size(p->dtype);
  const int64_t rs = p->d->r * p->d->s, taps = p->n_tap[0] * p->n_tap[1],
                mr = p->multiply_kernel->mr;
  float wide[WIDE];
  for (int64_t next; rs == 1 && begin < end; begin = next) {
    next = dm_min_i64(end, (begin / p->in + 1) * p->in);
    pack_single(p, begin, next);
  }
  for (int64_t u = begin; u < end; u++) {
    const int64_t g = u / p->in, o = u % p->in;
    const char *const src = p->w + u * p->out * rs * in;
    for (int64_t c = 0; c < p->out; c += mr) {
      char *const dst = p->panels + (g * p->group_size + (c * p->depth + o * taps * mr)) * es;
      const int n_lane = (int)dm_min_i64(mr, p->out - c);
      const char *at = src + c * rs * in;
      dm_DType type = p->dtype;
      if (dm_is_low(type) && n_lane * rs <= WIDE) {
        dm_load_f32(type, at, 1, n_lane * rs, wide);
        at = (const char *)wide;
        type = DM_F32;
      }
      if (taps == rs) p->gather_kernel->pack(type, at, rs, 1, n_lane, taps, (int)mr, dst);
      else pack_taps(p, type, at, n_lane, dst);
    }
  }
}

/* Panels of floats become panels of pairs. */
static void join_panels(void *ctx, int64_t begin, int64_t end) {
  const Weights *const p = ctx;
  const int64_t mr = p->multiply_kernel->mr,
                size = p->depth * mr * dm_dtype_size(p->gather_kernel->type);
  for (int64_t u = begin; u < end; u++) {
    p->multiply_kernel->join(p->k, (int)mr, p->panels + u * size);
    if (p->multiply_kernel->turn) p->multiply_kernel->turn(p->k, p->panels + u * size);
  }
}

/* ---- forward --------------------------------------------------------------------- */

dm_ConvInput dm_conv_input(const dm_ConvDims *d, dm_DType t, const void *x, int64_t *taps) {
  dm_ConvInput input = {.data = x,
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
  dm_input_range(&input);
  return input;
}

typedef struct ForwardParts {
  int64_t *taps;
  char *panels, *bias;
} ForwardParts;

/* The packed weights and the bias in the compute type. */
static void carve_forward(const void *ctx, dm_Arena *a, void *parts) {
  const Job *const job = ctx;
  const dm_ConvDims *const d = job->weights->d;
  ForwardParts *const f = parts;
  f->taps = dm_arena_take(a, (d->r + d->s) * 8);
  f->panels = dm_arena_take(a, d->groups * job->weights->group_size * job->es);
  f->bias = dm_arena_take(a, d->o * job->es);
}

dm_status dm_conv_implicit_fwd(const dm_ConvDims *d, dm_DType t, const void *x, const void *w,
                               const void *bias, void *y) {
  const int64_t positions = d->p * d->q, out = d->o / d->groups;
  const dm_Kernel *const kernel = dm_kernel(dm_compute_dtype(t));
  Weights p = {.d = d,
               .dtype = t,
               .gather_kernel = kernel,
               .multiply_kernel = dm_conv_multiply_kernel(kernel, t, out),
               .w = w,
               .in = d->c / d->groups,
               .out = out};
  p.k = p.in * d->r * d->s;
  p.depth = lane_depth(&p, p.k);
  p.group_size = padded_lanes(p.multiply_kernel, out) * p.depth;
  Job job = {.weights = &p,
             .es = dm_dtype_size(kernel->type),
             .n_phase = 1,
             .y = y,
             .img_step = d->o * positions,
             .chan_step = positions,
             .row_step = d->q,
             .col_step = 1};
  ForwardParts parts;
  if (!dm_scratch_carve(DM_SCRATCH_JOB, carve_forward, &job, &parts))
    return dm_conv_no_memory("conv2d");
  p.panels = parts.panels;
  const int64_t mr = p.multiply_kernel->mr;
  dm_parallel_for(d->groups * dm_ceil_div(out, mr), dm_max_i64(1, (1 << 16) / (p.k * mr)),
                  pack_forward, &p);
  if (bias) {
    dm_convert(t, bias, kernel->type, parts.bias, d->o);
    job.bias = parts.bias;
  }
  job.x[0] = dm_conv_input(d, t, x, parts.taps);
  const dm_status st = run_job(&job, "conv2d");
  dm_scratch_trim(DM_SCRATCH_JOB);
  return st;
}

/* ---- dx -------------------------------------------------------------------------- */

/* Taps r of one dim that reach positions h = h'*step + phase: lists r, and the
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

static void pack_phase(Weights *p) {
  const int64_t unit = p->out * p->n_tap[0] * p->n_tap[1];
  dm_parallel_for(p->d->groups * p->in, dm_max_i64(1, (1 << 14) / unit), pack_backward, p);
  if (p->multiply_kernel->pairs)
    dm_parallel_for(p->d->groups * dm_ceil_div(p->out, p->multiply_kernel->mr),
                    dm_max_i64(1, (1 << 16) / (p->k * p->multiply_kernel->mr)), join_panels, p);
}

typedef struct DxParts {
  int64_t *lists; /* 2 (R + S) numbers of each phase of a run */
  char *panels, *bias;
} DxParts;

/* Panels for all taps, which the phases of some columns do not exceed, with what pads each of
   them: the next phases use them again. */
static void carve_dx(const void *ctx, dm_Arena *a, void *parts) {
  const Job *const job = ctx;
  const Weights *const p = job->weights;
  const dm_ConvDims *const d = p->d;
  const int64_t lanes = d->groups * padded_lanes(p->multiply_kernel, p->out);
  const int64_t depth =
      lane_depth(p, p->in * d->r * d->s) + PHASES * dm_depth_unit(p->multiply_kernel);
  DxParts *const x = parts;
  x->lists = dm_arena_take(a, PHASES * 2 * (d->r + d->s) * 8);
  x->panels = dm_arena_take(a, lanes * depth * job->es);
  x->bias = dm_arena_take(a, d->c * job->es);
}

/* dx of positions (h' * stride + ph, w' * stride + pw), for PHASES pw from `first` on. */
static dm_status run_phases(Job *job, Weights *all, int64_t ph, int64_t first,
                            const DxParts *parts, char *dx) {
  const dm_ConvDims *const d = all->d;
  const int64_t end = dm_min_i64(first + PHASES, dm_min_i64(d->stride[1], d->w));
  char *panels = parts->panels;
  job->first = first;
  job->y = dx + (ph * d->w + first) * dm_dtype_size(all->dtype);
  job->n_phase = 0;
  for (int64_t pw = first; pw < end && ph < d->h; pw++) {
    Weights *const p = &all[job->n_phase];
    dm_ConvInput *const x = &job->x[job->n_phase];
    int64_t *const which_h = parts->lists + job->n_phase * 2 * (d->r + d->s);
    int64_t *const which_w = which_h + d->r, *const tap_h = which_w + d->s;
    int64_t *const tap_w = tap_h + d->r;
    *p = all[0];
    *x = job->x[0];
    x->p = dm_ceil_div(d->h - ph, d->stride[0]);
    x->q = dm_ceil_div(d->w - first, d->stride[1]); /* for all of them */
    x->n_tap[0] = p->n_tap[0] = phase_taps(d, 0, ph, which_h, tap_h);
    x->n_tap[1] = p->n_tap[1] = phase_taps(d, 1, pw, which_w, tap_w);
    x->tap[0] = tap_h;
    x->tap[1] = tap_w;
    p->tap[0] = which_h;
    p->tap[1] = which_w;
    if (x->n_tap[0] * x->n_tap[1] == 0) continue;
    p->k = p->in * x->n_tap[0] * x->n_tap[1];
    p->depth = lane_depth(p, p->k);
    p->group_size = padded_lanes(p->multiply_kernel, p->out) * p->depth;
    p->panels = panels;
    pack_phase(p);
    panels += d->groups * p->group_size * job->es;
    job->shift[job->n_phase++] = pw - first;
  }
  return job->n_phase > 0 ? run_job(job, "conv2d_dx") : DM_OK;
}

void dm_conv_fill(const dm_ConvDims *d, dm_DType t, const void *bias, void *dx) {
  const int64_t plane = d->h * d->w, es = dm_dtype_size(t);
  if (!bias) memset(dx, 0, (size_t)(d->n * d->c * plane * es));
  for (int64_t i = 0; bias && i < d->n * d->c * plane; i++)
    memcpy((char *)dx + i * es, (const char *)bias + i / plane % d->c * es, (size_t)es);
}

/* The phases of some columns run one after the other, each in parallel; they write disjoint
   positions of dx. */
dm_status dm_conv_implicit_dx(const dm_ConvDims *d, dm_DType t, const void *dy, const void *w,
                              const void *bias, void *dx) {
  const dm_Kernel *const kernel = dm_kernel(dm_compute_dtype(t));
  /* positions that no tap reaches */
  if (d->r < d->stride[0] || d->s < d->stride[1] || d->dil[0] > 1 || d->dil[1] > 1)
    dm_conv_fill(d, t, bias, dx);
  Weights p[PHASES] = {{.d = d,
                        .dtype = t,
                        .gather_kernel = kernel,
                        .multiply_kernel = dm_conv_multiply_kernel(kernel, t, d->c / d->groups),
                        .w = w,
                        .in = d->o / d->groups,
                        .out = d->c / d->groups}};
  Job job = {.weights = p,
             .es = dm_dtype_size(kernel->type),
             .width = d->w,
             .img_step = d->c * d->h * d->w,
             .chan_step = d->h * d->w,
             .row_step = d->w * d->stride[0],
             .col_step = d->stride[1]};
  job.x[0] = (dm_ConvInput){.data = dy,
                            .dtype = t,
                            .n_img = d->n,
                            .n_chan = d->o,
                            .h = d->p,
                            .w = d->q,
                            .step = {1, 1}};
  DxParts parts;
  if (!dm_scratch_carve(DM_SCRATCH_JOB, carve_dx, &job, &parts))
    return dm_conv_no_memory("conv2d_dx");
  if (bias) {
    dm_convert(t, bias, kernel->type, parts.bias, d->c);
    job.bias = parts.bias;
  }
  dm_status st = DM_OK;
  for (int64_t ph = 0; ph < d->stride[0] && st == DM_OK; ph++)
    for (int64_t pw = 0; pw < d->stride[1] && st == DM_OK; pw += PHASES)
      st = run_phases(&job, p, ph, pw, &parts, dx);
  dm_scratch_trim(DM_SCRATCH_JOB);
  return st;
}
