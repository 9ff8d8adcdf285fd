/* See conv_blocks.h. A block of 16 channels of an image is turned, so that the channels of a
   position lie side by side; then a tap is a vector times a vector for any stride and width,
   and the result is turned back. oneDNN keeps whole networks so, as nChw16c; here a block lies
   in the cache of the core that turns it.

   A large plane is cut into tiles of the result, each of which reads a part of the image, with
   zeros around where that lies outside. The image is x for y and for the gradient of w, and
   y's gradient for that of x, whose positions get different taps by their remainders modulo
   the stride: by their phases. */
#include "cpu/conv_blocks.h"

#include "base/error.h"
#include "base/pair.h"
#include "cpu/gemm_kernel.h"
#include "cpu/loops/loops.h"
#include "cpu/scratch.h"
#include "cpu/threads.h"
#include "cpu/vec.h"

#include <stdatomic.h>
#include <string.h>

enum {
  BLOCK = DM_BLOCK_CHANNELS,
  MOST = 2048, /* positions of a tile, 128 KB */
  CHUNKS = 64  /* tasks that the gradient of w is cut into, where images suffice */
};

/* The entries in the list of taps that the results of one phase get. */
typedef struct Phase {
  int64_t first, n;
} Phase;

/* What all threads read. */
typedef struct Lists {
  Phase *phase;    /* (phases of rows, of columns) */
  int64_t *at;     /* (n_entry), where a tap reads, from where its result begins to read */
  int32_t *offset; /* (positions), where those of the image's rows go in a tile */
  int32_t *dense;  /* (positions), one after the other */
  float *w;        /* (blocks, n_result, n_entry, BLOCK) */
  float *wide;     /* w as it was, for types that are not float32 */
  float *start;    /* (blocks, n_result, BLOCK): the bias, or zeros */
  double *sum;     /* (chunks, blocks, each, taps, BLOCK), for the gradient of w */
  int64_t *tap;    /* (n_entry), the number of a tap in w, and of its output channel */
} Lists;

typedef struct Job {
  const dm_ConvDims *d;
  dm_DType t;
  bool gradient; /* of x */
  int64_t each;  /* output channels of an input channel */
  const char *image, *w, *bias, *gy;
  char *out;
  int64_t in[2], size[2];     /* of planes of the image and of the result */
  int64_t tile[2], n_tile[2]; /* of the result */
  int64_t rows, width;        /* of the image, which a tile reads at most */
  int64_t n_image, n_result;  /* planes of the image that one result reads, and back */
  int64_t n_phase[2];         /* of rows and of columns */
  int64_t n_tap, n_entry;     /* taps of a plane; of all planes that a result reads */
  int64_t n_block;            /* of channels */
  int64_t n_unit, n_chunk;    /* tiles of all images, and the parts that dw sums them in */
  Lists lists;
  atomic_bool failed;
} Job;

/* A thread's memory. */
typedef struct Memory {
  float *image;  /* (n_image, rows, width, BLOCK) */
  float *result; /* (positions, BLOCK) */
  float *own;    /* (BLOCK, positions), for types that are not float32 */
} Memory;

/* ---- sizes ---- */

/* How many positions of the image n results read along dim k at most. */
static int64_t extent(const Job *j, int k, int64_t n) {
  const dm_ConvDims *d = j->d;
  const int64_t last = ((k == 0 ? d->r : d->s) - 1) * d->dil[k];
  return j->gradient ? (n - 1 + last) / d->stride[k] + 2 : (n - 1) * d->stride[k] + last + 1;
}

/* Whether a tile of so many results suits the cache. */
static bool fits(const Job *j, int64_t rows, int64_t columns) {
  return rows * columns <= MOST && extent(j, 0, rows) * extent(j, 1, columns) <= MOST;
}

/* Cuts dim k of the result into even tiles of at most n. */
static void cut(Job *j, int k, int64_t n) {
  j->n_tile[k] = dm_ceil_div(j->size[k], n);
  j->tile[k] = dm_ceil_div(j->size[k], j->n_tile[k]);
}

static void set_tiles(Job *j) {
  /* Tiles of fewer would read too much of what their neighbours read. */
  enum { ROWS = 8, COLUMNS = 32 };
  int64_t rows = dm_min_i64(j->size[0], ROWS), columns = j->size[1];
  while (columns > COLUMNS && !fits(j, rows, columns)) columns = dm_ceil_div(columns, 2);
  while (rows > 1 && !fits(j, rows, columns)) rows--;
  while (rows < j->size[0] && fits(j, rows + 1, columns)) rows++;
  cut(j, 0, rows);
  cut(j, 1, columns);
  j->rows = extent(j, 0, j->tile[0]);
  j->width = extent(j, 1, j->tile[1]);
}

static void set_job(Job *j) {
  const dm_ConvDims *d = j->d;
  const int64_t x[2] = {d->h, d->w}, y[2] = {d->p, d->q};
  memcpy(j->in, j->gradient ? y : x, sizeof x);
  memcpy(j->size, j->gradient ? x : y, sizeof y);
  j->each = d->o / d->groups;
  j->n_image = j->gradient ? j->each : 1;
  j->n_result = j->gradient ? 1 : j->each;
  for (int k = 0; k < 2; k++) j->n_phase[k] = j->gradient ? d->stride[k] : 1;
  j->n_tap = d->r * d->s;
  j->n_entry = j->n_tap * j->n_image;
  j->n_block = dm_ceil_div(d->c, BLOCK);
  set_tiles(j);
  j->n_unit = d->n * j->n_tile[0] * j->n_tile[1];
  j->n_chunk = dm_min_i64(j->n_unit, dm_ceil_div(CHUNKS, j->n_block));
}

/* ---- the lists ---- */

static int64_t most_positions(const Job *j) {
  return dm_max_i64(j->rows * j->width, j->tile[0] * j->tile[1]);
}

static void carve_lists(const void *job, dm_Arena *a, void *parts) {
  const Job *j = job;
  Lists *l = parts;
  const int64_t blocks = j->n_block * j->n_result * BLOCK, n = most_positions(j);
  l->phase = dm_arena_take(a, j->n_phase[0] * j->n_phase[1] * (int64_t)sizeof *l->phase);
  l->at = dm_arena_take(a, j->n_entry * (int64_t)sizeof *l->at);
  l->tap = dm_arena_take(a, j->n_entry * (int64_t)sizeof *l->tap);
  l->offset = dm_arena_take(a, n * (int64_t)sizeof *l->offset);
  l->dense = dm_arena_take(a, n * (int64_t)sizeof *l->dense);
  l->w = dm_arena_take(a, blocks * j->n_entry * (int64_t)sizeof *l->w);
  l->wide =
      dm_arena_take(a, j->t == DM_F32 ? 0 : j->d->o * j->n_tap * (int64_t)sizeof *l->wide);
  l->start = dm_arena_take(a, blocks * (int64_t)sizeof *l->start);
  l->sum =
      dm_arena_take(a, j->gy ? j->n_chunk * blocks * j->n_tap * (int64_t)sizeof *l->sum : 0);
}

/* Lists the taps by phase. Result i of phase a reads tap r of the image at (i + pad - r dil) /
   stride, which is a whole number where r dil leaves the phase's remainder; the others have
   one phase, and read at i stride - pad + r dil. */
static void list_taps(Job *j) {
  const dm_ConvDims *d = j->d;
  int64_t n = 0;
  for (int64_t f = 0; f < j->n_phase[0] * j->n_phase[1]; f++) {
    const int64_t a = f / j->n_phase[1], b = f % j->n_phase[1];
    j->lists.phase[f].first = n;
    for (int64_t m = 0; m < j->n_image; m++)
      for (int64_t k = 0; k < j->n_tap; k++) {
        const int64_t r = k / d->s * d->dil[0], s = k % d->s * d->dil[1];
        const bool reads = r % j->n_phase[0] == a && s % j->n_phase[1] == b;
        if (!reads) continue;
        const int64_t row = j->gradient ? -(r / d->stride[0]) : r;
        const int64_t column = j->gradient ? -(s / d->stride[1]) : s;
        j->lists.at[n] = ((m * j->rows + row) * j->width + column) * BLOCK;
        j->lists.tap[n++] = m * j->n_tap + k;
      }
    j->lists.phase[f].n = n - j->lists.phase[f].first;
  }
}

static void list_offsets(Job *j) {
  const int64_t n = most_positions(j), width = dm_min_i64(j->width, j->in[1]);
  int64_t row = 0, column = 0;
  for (int64_t k = 0; k < n; k++) {
    j->lists.dense[k] = (int32_t)(k * BLOCK);
    j->lists.offset[k] = (int32_t)((row * j->width + column) * BLOCK);
    if (++column == width) column = 0, row++;
  }
}

static float bias_of(const Job *j, int64_t channel) {
  float v = 0;
  if (j->bias) dm_load_f32(j->t, j->bias + channel * dm_dtype_size(j->t), 1, 1, &v);
  return v;
}

/* Turns the weights; a channel that is not there is taken as the last one. */
static void turn_weights(Job *j) {
  const float *w = (const float *)(const void *)j->w;
  float *to = j->lists.w, *start = j->lists.start;
  if (j->t != DM_F32) {
    dm_load_f32(j->t, j->w, 1, j->d->o * j->n_tap, j->lists.wide);
    w = j->lists.wide;
  }
  for (int64_t b = 0; b < j->n_block; b++)
    for (int64_t m = 0; m < j->n_result; m++, start += BLOCK)
      for (int64_t k = -1; k < j->n_entry; k++)
        for (int64_t i = 0; i < BLOCK; i++) {
          const int64_t c = dm_min_i64(b * BLOCK + i, j->d->c - 1);
          if (k < 0) start[i] = bias_of(j, c * j->n_result + m);
          else *to++ = w[(c * j->each + m) * j->n_tap + j->lists.tap[k]];
        }
}

static bool make_lists(Job *j) {
  if (!dm_scratch_carve(DM_SCRATCH_JOB, carve_lists, j, &j->lists)) return false;
  list_taps(j);
  list_offsets(j);
  if (j->w) turn_weights(j);
  return true;
}

/* ---- a tile ---- */

static void carve_memory(const void *job, dm_Arena *a, void *parts) {
  const Job *j = job;
  Memory *m = parts;
  const int64_t n = (int64_t)sizeof(float) * BLOCK;
  m->image = dm_arena_take(a, n * j->n_image * j->rows * j->width);
  m->result = dm_arena_take(a, n * dm_max_i64(BLOCK, j->tile[0] * j->tile[1]));
  m->own = dm_arena_take(a, j->t == DM_F32 ? 0 : n * most_positions(j));
}

static bool get_memory(Job *j, Memory *m) {
  if (dm_scratch_carve(DM_SCRATCH_TASK, carve_memory, j, m)) return true;
  atomic_store(&j->failed, true);
  return false;
}

/* A part of the planes of a block: `n` of them, the first at element `at`, each `step` behind
   the one before. */
typedef struct Planes {
  char *p;
  int64_t at, step;
  int n;
} Planes;

/* Output channels m of block b's input channels, in image i, or those input channels. */
static Planes planes_of(const Job *j, const void *p, bool output, int64_t i, int64_t b,
                        int64_t m) {
  const dm_ConvDims *d = j->d;
  const int64_t c = b * BLOCK, plane = output ? d->p * d->q : d->h * d->w;
  return (Planes){(char *)(uintptr_t)p,
                  (output ? i * d->o + c * j->each + m : i * d->c + c) * plane,
                  output ? j->each * plane : plane, (int)dm_min_i64(BLOCK, d->c - c)};
}

/* n elements of each plane, from element k on, go to where `offset` says. */
static void turn(const Job *j, const Planes *x, int64_t k, int64_t n, const int32_t *offset,
                 float *own, float *to) {
  const char *from = x->p + (x->at + k) * dm_dtype_size(j->t);
  if (j->t == DM_F32) {
    dm_loops()->to_block((const float *)(const void *)from, x->step, x->n, n, offset, to);
    return;
  }
  if (n == x->step) dm_load_f32(j->t, from, 1, n * x->n, own);
  else
    for (int i = 0; i < x->n; i++, from += x->step * dm_dtype_size(j->t))
      dm_load_f32(j->t, from, 1, n, own + i * n);
  dm_loops()->to_block(own, n, x->n, n, offset, to);
}

static void turn_back(const Job *j, const float *from, int64_t n, const Planes *y, int64_t k,
                      float *own) {
  char *to = y->p + (y->at + k) * dm_dtype_size(j->t);
  if (j->t == DM_F32) {
    dm_loops()->from_block(from, n, y->n, (float *)(void *)to, y->step);
    return;
  }
  dm_loops()->from_block(from, n, y->n, own, n);
  if (n == y->step) dm_store_f32(j->t, to, 1, n * y->n, own);
  else
    for (int i = 0; i < y->n; i++, to += y->step * dm_dtype_size(j->t))
      dm_store_f32(j->t, to, 1, n, own + i * n);
}

/* A tile of results, and the positions of the image that it reads. */
typedef struct Tile {
  int64_t from[2], n[2]; /* of the results */
  int64_t first[2];      /* of the image; may lie outside */
  int64_t lo[2], hi[2];  /* the part of the image inside */
} Tile;

static Tile tile_of(const Job *j, int64_t number) {
  const dm_ConvDims *d = j->d;
  const int64_t at[2] = {number / j->n_tile[1], number % j->n_tile[1]};
  const int64_t last[2] = {(d->r - 1) * d->dil[0], (d->s - 1) * d->dil[1]};
  const int64_t most[2] = {j->rows, j->width};
  Tile t;
  for (int k = 0; k < 2; k++) {
    t.from[k] = at[k] * j->tile[k];
    t.n[k] = dm_min_i64(j->tile[k], j->size[k] - t.from[k]);
    t.first[k] = j->gradient ? dm_floor_div_i64(t.from[k] + d->pad[k] - last[k], d->stride[k])
                             : t.from[k] * d->stride[k] - d->pad[k];
    t.lo[k] = dm_min_i64(dm_max_i64(0, t.first[k]), j->in[k]);
    t.hi[k] = dm_max_i64(t.lo[k], dm_min_i64(t.first[k] + most[k], j->in[k]));
  }
  return t;
}

static void zero(float *p, int64_t n) { memset(p, 0, sizeof *p * (size_t)(n * BLOCK)); }

/* Turns the part of the image that a tile reads, with zeros around. */
static void turn_image(const Job *j, const Planes *x, const Tile *t, float *own, float *to) {
  const int64_t rows = t->hi[0] - t->lo[0], columns = t->hi[1] - t->lo[1];
  const int64_t first = (t->lo[0] - t->first[0]) * j->width + t->lo[1] - t->first[1];
  if (rows == 0 || columns == 0) {
    zero(to, j->rows * j->width);
    return;
  }
  zero(to, first);
  for (int64_t i = 1; i < rows && columns < j->width; i++)
    zero(to + (first + (i - 1) * j->width + columns) * BLOCK, j->width - columns);
  const int64_t behind = first + (rows - 1) * j->width + columns;
  zero(to + behind * BLOCK, j->rows * j->width - behind);
  to += first * BLOCK;
  if (columns == j->in[1]) {
    turn(j, x, t->lo[0] * columns, rows * columns, j->lists.offset, own, to);
    return;
  }
  for (int64_t i = t->lo[0]; i < t->hi[0]; i++, to += j->width * BLOCK)
    turn(j, x, i * j->in[1] + t->lo[1], columns, j->lists.dense, own, to);
}

/* A tile of the planes of the result, which lie side by side in `from`. */
static void turn_result(const Job *j, const float *from, const Planes *y, const Tile *t,
                        float *own) {
  if (t->n[1] == j->size[1]) {
    turn_back(j, from, t->n[0] * t->n[1], y, t->from[0] * t->n[1], own);
    return;
  }
  for (int64_t i = 0; i < t->n[0]; i++, from += t->n[1] * BLOCK)
    turn_back(j, from, t->n[1], y, (t->from[0] + i) * j->size[1] + t->from[1], own);
}

/* The part of y's gradient that a tile of y is, as turn_result has it. */
static void turn_gradient(const Job *j, const Planes *g, const Tile *t, float *own, float *to) {
  if (t->n[1] == j->size[1]) {
    turn(j, g, t->from[0] * t->n[1], t->n[0] * t->n[1], j->lists.dense, own, to);
    return;
  }
  for (int64_t i = 0; i < t->n[0]; i++, to += t->n[1] * BLOCK)
    turn(j, g, (t->from[0] + i) * j->size[1] + t->from[1], t->n[1], j->lists.dense, own, to);
}

/* ---- y, and the gradient of x ---- */

/* Row i of a tile: its columns by phase. */
static void result_row(const Job *j, const Tile *t, int64_t i, const float *image,
                       const float *w, const float *start, float *to) {
  const dm_ConvDims *d = j->d;
  const int64_t step = j->gradient ? 1 : d->stride[1];
  const int64_t row = j->gradient ? t->from[0] + i + d->pad[0] : i * d->stride[0];
  for (int64_t b = 0; b < j->n_phase[1] && b < t->n[1]; b++) {
    const int64_t column = j->gradient ? t->from[1] + b + d->pad[1] : 0;
    const Phase f =
        j->lists.phase[row % j->n_phase[0] * j->n_phase[1] + column % j->n_phase[1]];
    const int64_t r = j->gradient ? row / d->stride[0] - t->first[0] : row;
    const int64_t s = j->gradient ? column / d->stride[1] - t->first[1] : 0;
    dm_loops()->block_taps(image + (r * j->width + s) * BLOCK, step * BLOCK,
                           j->lists.at + f.first, w + f.first * BLOCK, f.n, start,
                           dm_ceil_div(t->n[1] - b, j->n_phase[1]), to + b * BLOCK,
                           j->n_phase[1] * BLOCK);
  }
}

static void results(void *ctx, int64_t begin, int64_t end) {
  Job *j = ctx;
  Memory memory;
  if (!get_memory(j, &memory)) return;
  const int64_t n_tile = j->n_tile[0] * j->n_tile[1];
  for (int64_t u = begin; u < end; u++) {
    const Tile t = tile_of(j, u % n_tile);
    const int64_t b = u / n_tile % j->n_block, i = u / n_tile / j->n_block;
    for (int64_t m = 0; m < j->n_image; m++) {
      const Planes x = planes_of(j, j->image, j->gradient, i, b, m);
      turn_image(j, &x, &t, memory.own, memory.image + m * j->rows * j->width * BLOCK);
    }
    for (int64_t m = 0; m < j->n_result; m++) {
      const Planes y = planes_of(j, j->out, !j->gradient, i, b, m);
      const int64_t at = (b * j->n_result + m) * BLOCK;
      for (int64_t row = 0; row < t.n[0]; row++)
        result_row(j, &t, row, memory.image, j->lists.w + at * j->n_entry, j->lists.start + at,
                   memory.result + row * t.n[1] * BLOCK);
      turn_result(j, memory.result, &y, &t, memory.own);
    }
  }
}

static dm_status run(Job *j, dm_RangeFn *fn) {
  enum { GRAIN = 1 << 17 };
  const int64_t cost = BLOCK * j->each * j->n_tap * j->d->p * j->d->q;
  const int64_t n_tile = j->n_tile[0] * j->n_tile[1];
  atomic_init(&j->failed, false);
  if (make_lists(j))
    dm_parallel_for(j->n_block * (j->gy ? j->n_chunk : j->n_unit),
                    j->gy ? 1 : dm_max_i64(1, GRAIN * n_tile / dm_max_i64(1, cost)), fn, j);
  else atomic_store(&j->failed, true);
  return atomic_load(&j->failed) ? dm_fail(DM_EMEM, "convolution: out of memory") : DM_OK;
}

dm_status dm_conv_blocks_fwd(const dm_ConvDims *d, dm_DType t, const void *x, const void *w,
                             const void *bias, void *y) {
  Job j = {.d = d, .t = t, .image = x, .w = w, .bias = bias, .out = y};
  set_job(&j);
  return run(&j, results);
}

dm_status dm_conv_blocks_dx(const dm_ConvDims *d, dm_DType t, const void *dy, const void *w,
                            const void *bias, void *dx) {
  Job j = {.d = d, .t = t, .gradient = true, .image = dy, .w = w, .bias = bias, .out = dx};
  set_job(&j);
  return run(&j, results);
}

/* ---- the gradient of w ---- */

/* A unit is a tile of an image, a task the sums of a chunk of units for a block. */
static void weight_sums(void *ctx, int64_t begin, int64_t end) {
  Job *j = ctx;
  const dm_ConvDims *d = j->d;
  Memory memory;
  if (!get_memory(j, &memory)) return;
  const int64_t n_tile = j->n_tile[0] * j->n_tile[1], n_sum = j->n_tap * BLOCK;
  for (int64_t task = begin; task < end; task++) {
    const int64_t b = task % j->n_block, chunk = task / j->n_block;
    double *const sum = j->lists.sum + task * j->each * n_sum;
    memset(sum, 0, sizeof *sum * (size_t)(j->each * n_sum));
    for (int64_t u = chunk * j->n_unit / j->n_chunk; u < (chunk + 1) * j->n_unit / j->n_chunk;
         u++) {
      const Tile t = tile_of(j, u % n_tile);
      const Planes x = planes_of(j, j->image, false, u / n_tile, b, 0);
      turn_image(j, &x, &t, memory.own, memory.image);
      for (int64_t m = 0; m < j->each; m++) {
        const Planes g = planes_of(j, j->gy, true, u / n_tile, b, m);
        turn_gradient(j, &g, &t, memory.own, memory.result);
        dm_loops()->block_dots(memory.image, d->stride[0] * j->width * BLOCK,
                               d->stride[1] * BLOCK, j->lists.at, j->n_tap, memory.result,
                               t.n[0], t.n[1], sum + m * n_sum);
      }
    }
  }
}

/* Adds up the chunks' sums, in order. */
static void store_sums(const Job *j) {
  for (int64_t o = 0; o < j->d->o; o++)
    for (int64_t k = 0; k < j->n_tap; k++) {
      const int64_t c = o / j->each, m = o % j->each;
      double sum = 0;
      for (int64_t chunk = 0; chunk < j->n_chunk; chunk++) {
        const int64_t task = chunk * j->n_block + c / BLOCK;
        sum += j->lists.sum[((task * j->each + m) * j->n_tap + k) * BLOCK + c % BLOCK];
      }
      dm_store_f64(j->t, j->out + (o * j->n_tap + k) * dm_dtype_size(j->t), 1, 1, &sum);
    }
}

dm_status dm_conv_blocks_dw(const dm_ConvDims *d, dm_DType t, const void *dy, const void *x,
                            void *dw) {
  Job j = {.d = d, .t = t, .image = x, .gy = dy, .out = dw};
  set_job(&j);
  DM_TRY(run(&j, weight_sums));
  store_sums(&j);
  return DM_OK;
}
