/* dw as an implicit matrix product: dw (O x CRS) = dy (O x NPQ) * gathered x (NPQ x CRS).

   The sum runs over all images and positions, usually far more than there are elements in dw,
   so it is the sum that is cut for the threads: the tiles of x (conv_tiles.h) form at most
   MOST_PARTS parts, each with its own (O x CRS) sums in the compute type. The parts are then
   added in order and rounded once. Their number depends on the shape alone, so the bits of dw
   do not depend on the number of threads.

   A task is one part, one group, and a block of channels. A strip holds nr taps of DEPTH
   positions, gathered from the padded planes of a tile. dy is read where it lies, unless a
   tile has several images or dy has 16 bits. */
#include "cpu/conv_implicit.h"

#include "base/alloc.h"
#include "base/error.h"
#include "cpu/gemm_variant.h"
#include "cpu/scratch.h"
#include "cpu/threads.h"
#include "cpu/vec.h"

#include <stdatomic.h>
#include <string.h>

enum {
  DEPTH = 256,     /* positions that a strip adds */
  MOST_PARTS = 16, /* of the sum */
  LANES = 1536,    /* taps of a chunk of channels: each chunk reads all of dy */
  MOST_IMAGES = 16 /* of a tile */
};
static const int64_t MOST_SUMS = 4 << 20; /* elements of all parts */

/* The whole product. */
typedef struct Job {
  const dm_Kernel *gather_kernel, *multiply_kernel; /* the same, or one of pairs */
  int64_t es, plane_es; /* bytes of a sum, of an element of the planes */
  const dm_ConvDims *d;
  dm_ConvInput x;
  dm_TileGrid grid;
  const char *dy;
  int64_t in, out, k;         /* channels of a group; in * taps */
  int64_t n_part, part_tiles; /* parts of all tiles; tiles of a part */
  int64_t n_block;            /* blocks of grid.n_chan channels */
  char *parts;                /* [n_part][O][k] */
  char *dw;
  atomic_bool failed;
} Job;

typedef struct Work {
  char *planes, *strip, *dy;
  int32_t *position, *tap;
} Work;

static void carve_work(const void *ctx, dm_Arena *a, void *parts) {
  const Job *const job = ctx;
  Work *const w = parts;
  const int64_t taps = job->d->r * job->d->s;
  const bool copy = job->x.dtype != job->gather_kernel->type || job->grid.n_img > 1;
  const dm_Kernel *const kernel = job->multiply_kernel;
  const int64_t rows =
      kernel->tiles ? dm_ceil_div(job->out, kernel->mr) * kernel->mr : job->out;
  const int64_t row = dm_max_i64(job->grid.cols, dm_depth(kernel, job->grid.cols));
  w->planes = dm_arena_take(a, (job->grid.buffer + DM_SLACK) * job->plane_es);
  w->strip = dm_arena_take(a, DEPTH * job->gather_kernel->nr * job->es);
  w->dy = copy ? dm_arena_take(a, rows * row * job->es) : NULL;
  w->position = dm_arena_take(a, job->grid.cols * 4);
  w->tap = dm_arena_take(a, job->grid.n_chan * taps * 4);
}

/* The rows of dy of a tile: (out, cols), *rs items of the product apart. Pairs are what
   lies side by side in rows of bfloat16, with zeros behind up to the depth of the row. */
static const char *get_dy(const Job *job, const Work *w, const dm_ConvTile *tile, int64_t group,
                          int64_t *rs) {
  const int64_t positions = job->d->p * job->d->q, in = dm_dtype_size(job->x.dtype);
  const int64_t n = tile->rows * tile->columns; /* of an image, side by side */
  const char *src = job->dy + ((tile->img * job->d->o + group * job->out) * positions +
                               tile->p * job->d->q + tile->q) *
                                  in;
  *rs = positions;
  if (!w->dy) return src;
  const bool pairs = job->multiply_kernel->pairs;
  *rs = dm_depth(job->multiply_kernel, tile->cols);
  const dm_DType to = pairs ? job->x.dtype : job->gather_kernel->type;
  const int64_t es = dm_dtype_size(to), row = *rs * job->es;
  for (int64_t i = 0; i < tile->n_img; i++, src += job->d->o * positions * in)
    for (int64_t o = 0; o < job->out; o++)
      dm_convert(job->x.dtype, src + o * positions * in, to, w->dy + o * row + i * n * es, n);
  for (int64_t o = 0; pairs && o < job->out; o++)
    memset(w->dy + o * row + tile->cols * es, 0, (size_t)(row - tile->cols * es));
  return w->dy;
}

/* Adds one tile's products to sums (out, lanes), rows k apart. */
static void add_tile(const Job *job, const Work *w, const dm_ConvTile *tile, const char *dy,
                     int64_t dy_rs, int64_t lanes, char *sums, bool add) {
  const dm_Kernel *const kernel = job->multiply_kernel;
  const int64_t nr = job->gather_kernel->nr, mr = kernel->mr, es = job->es;
  const dm_Strip strip = {.at = w->strip, .rs = nr};
  for (int64_t k = 0; k < tile->cols; k += DEPTH) {
    const int64_t depth = dm_min_i64(DEPTH, tile->cols - k);
    const dm_Panels rows = {dy + dm_depth(kernel, k) * es, mr * dy_rs, dy_rs, 1};
    for (int64_t j = 0; j < lanes; j += nr) {
      const int n = (int)dm_min_i64(nr, lanes - j);
      const dm_Sums to = {.at = sums + j * es, .rs = job->k, .add = add};
      kernel->gather_t(w->planes, w->tap + j, n, w->position + k, depth, (int)nr, w->strip);
      dm_tile_column(kernel, job->out, n, dm_depth(kernel, depth), &rows, &strip, &to, NULL);
    }
    add = true;
  }
}

/* Task number: (part, group, block of channels). Sums all tiles of a part. */
static void run_task(const Job *job, const Work *w, int64_t task) {
  const int64_t block = task % job->n_block, rest = task / job->n_block;
  const int64_t group = rest % job->d->groups, part = rest / job->d->groups;
  const int64_t taps = job->d->r * job->d->s, c = block * job->grid.n_chan;
  const int64_t n_chan = dm_min_i64(job->grid.n_chan, job->in - c);
  const int64_t end = dm_min_i64(job->grid.n_tile, (part + 1) * job->part_tiles);
  char *const sums =
      job->parts + ((part * job->d->o + group * job->out) * job->k + c * taps) * job->es;
  for (int64_t i = part * job->part_tiles; i < end; i++) {
    const dm_ConvTile tile = dm_tile_at(&job->x, &job->grid, i);
    int64_t dy_rs;
    const char *const dy = get_dy(job, w, &tile, group, &dy_rs);
    dm_load_tile(&job->x, &job->grid, &tile, group * job->in + c, n_chan,
                 dm_gathered(job->multiply_kernel), w->planes);
    add_tile(job, w, &tile, dy, dy_rs, n_chan * taps, sums, i > part * job->part_tiles);
  }
}

static void run_tasks(void *ctx, int64_t begin, int64_t end) {
  Job *const job = ctx;
  Work w;
  if (!dm_scratch_carve(DM_SCRATCH_TASK, carve_work, job, &w)) {
    atomic_store(&job->failed, true);
    return;
  }
  memset(w.planes + job->grid.buffer * job->plane_es, 0, (size_t)(DM_SLACK * job->plane_es));
  const dm_ConvTile whole = {.n_img = job->grid.n_img,
                             .rows = job->grid.rows,
                             .columns = job->grid.columns,
                             .cols = job->grid.cols};
  dm_list_positions(&job->x, &job->grid, &whole, w.position);
  dm_list_taps(&job->x, &job->grid, w.tap);
  for (int64_t i = begin; i < end; i++) run_task(job, &w, i);
}

/* Elements [begin, end) of dw: parts in order, then one rounding. */
static void join_parts(void *ctx, int64_t begin, int64_t end) {
  const Job *const job = ctx;
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
  dm_epilogue_row(&plain, job->gather_kernel->type, sums, n,
                  job->dw + begin * dm_dtype_size(job->x.dtype), NULL, 0);
}

/* Cuts the channels of x into blocks: those of the tiles, smaller where a thread would have
   nothing to do, which changes no sum. */
static void cut_channels(Job *job) {
  const int64_t taps = job->d->r * job->d->s, threads = dm_threads_here();
  int64_t *const n = &job->grid.n_chan;
  for (;;) {
    job->n_block = dm_ceil_div(job->in, *n);
    if (job->n_part * job->d->groups * job->n_block >= threads) return;
    if (*n == 1 || *n * taps <= 4 * job->gather_kernel->nr) return;
    *n = dm_ceil_div(*n, 2);
  }
}

dm_status dm_conv_implicit_dw(const dm_ConvDims *d, dm_DType t, const void *dy, const void *x,
                              void *dw) {
  const int64_t in = d->c / d->groups, k = in * d->r * d->s, size = d->o * k;
  const dm_Kernel *const kernel = dm_kernel(dm_compute_dtype(t));
  Job job = {.gather_kernel = kernel,
             .multiply_kernel = dm_conv_multiply_kernel(kernel, t, d->o / d->groups),
             .es = dm_dtype_size(kernel->type),
             .d = d,
             .dy = dy,
             .in = in,
             .out = d->o / d->groups,
             .k = k,
             .dw = dw};
  job.plane_es = dm_dtype_size(dm_gathered(job.multiply_kernel));
  int64_t *const taps = dm_alloc((d->r + d->s) * 8);
  if (!taps) return dm_conv_no_memory("conv2d_dw");
  dm_status st = DM_OK;
  job.x = dm_conv_input(d, t, x, taps);
  job.grid = dm_tile_grid(&job.x, in, LANES, MOST_IMAGES, kernel->nr, 1);
  const int64_t most = dm_max_i64(1, dm_min_i64(MOST_PARTS, MOST_SUMS / size));
  job.part_tiles = dm_ceil_div(job.grid.n_tile, most);
  job.n_part = dm_ceil_div(job.grid.n_tile, job.part_tiles);
  cut_channels(&job);
  if (job.grid.buffer > INT32_MAX) {
    st = dm_fail(DM_EARG, "conv2d_dw: a row of taps spans more than 2^31 positions");
    goto done;
  }
  job.parts = dm_scratch(DM_SCRATCH_JOB, job.n_part * size * job.es);
  if (!job.parts) {
    st = dm_conv_no_memory("conv2d_dw");
    goto done;
  }
  const int64_t work = job.part_tiles * job.grid.cols * job.out * k / job.n_block + 1;
  dm_parallel_for(job.n_part * d->groups * job.n_block, dm_max_i64(1, DM_CONV_TASK_WORK / work),
                  run_tasks, &job);
  if (atomic_load(&job.failed)) st = dm_conv_no_memory("conv2d_dw");
  else dm_parallel_for(size, 1 << 13, join_parts, &job);
  dm_scratch_trim(DM_SCRATCH_JOB);
done:
  dm_free(taps);
  return st;
}
