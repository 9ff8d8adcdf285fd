/* Convolution by Winograd's minimal filtering F(2 x 2, 3 x 3) and F(4 x 4, 3 x 3) (A. Lavin, S.
   Gray, "Fast algorithms for convolutional neural networks", CVPR 2016): a tile of 2 x 2
   outputs takes 16 products a channel pair instead of 36, one of 4 x 4 takes 36 instead of 144.

   Outputs are cut into 2 x 2 tiles, each computed from a 4 x 4 patch d of the input, or into
   4 x 4 tiles from 6 x 6 patches; tiles are numbered through images, rows and columns. With the
   weights' transform G g G^T and the patches' transform B^T d B, each of the 16 or 36 elements
   e of a transform is a matrix product over channels, and the outputs are a transform of the
   sums:

     m[e] (O, tiles) = u[e] (O, C) v[e] (C, tiles),     y = A^T m A

   All transforms and sums are float32; 16-bit tensors are widened when they are read and
   rounded once when they are stored. Beside a result in float64, of normal numbers, as parts of
   the results' standard deviation, the root mean squares of y's errors were, with 36, 128 and
   512 channels:

     2 x 2 tiles          2.1e-7  3.6e-7  6.9e-7
     4 x 4 tiles          6.5e-7  1.1e-6  2.0e-6
     oneDNN, direct sums  3.1e-7  5.9e-7  1.2e-6

   An infinite or NaN input spreads over its whole tile.

   A task transforms some strips of sixteen tiles, multiplies them with u[e] while they are in
   cache, and transforms the sums back, so that v and m never go to memory as a whole. Strips
   lie in groups as wide as the register kernel. dx is the same with the weights rotated by 180
   degrees and input and output channels exchanged; dw is further below. */
#include "cpu/winograd.h"

#include "base/error.h"
#include "cpu/gemm_variant.h"
#include "cpu/scratch.h"
#include "cpu/threads.h"
#include "cpu/transpose.h"
#include "cpu/vec.h"

#include <stdatomic.h>
#include <string.h>

enum {
  LANES = DM_WINOGRAD_STRIP, /* tiles of a strip */
  MOST = 4,                  /* outputs of a row of a tile, */
  MOST_PATCH = MOST + 2,     /* and inputs */
  LINE = MOST * LANES + 2,   /* positions that a run of tiles reads of a row */
  APART = 16,            /* floats between positions: else they meet in one set of a cache */
  STRIPS = 16,           /* most strips of a task, */
  TASK_BYTES = 4 << 20,  /* and what their transforms may hold */
  CHUNK_BYTES = 4 << 20, /* of the transforms that a sweep of dw multiplies */
  DW_DEPTH = 256,        /* tiles that the kernel adds at once */
  DW_CHANNELS = 64       /* columns of a task */
};

/* dx is the same with the weights turned round and the channels changed over. */
typedef struct Wino {
  const dm_Kernel *kn;
  dm_DType dtype;
  int size, positions;            /* a tile is size x size outputs; elements of a transform */
  int64_t n, in, h, w, out, p, q; /* x (n, in, h, w) -> y (n, out, p, q) */
  int64_t pad[2], tile_rows, tile_cols, n_tile;
  int64_t n_strip, width; /* of a task; lanes of a group of strips */
  int64_t v_step, m_step; /* from position to position of v and m */
  const char *x, *weights, *bias;
  char *y;
  int64_t w_in, w_out; /* strides of the weights in elements */
  bool turned;
  float *u; /* [positions][panels of out][in][mr] */
  int64_t u_step;
  atomic_bool failed;
} Wino;

/* ---- weights -------------------------------------------------------------- */

enum { WEIGHTS = 4 }; /* outputs, and inputs, that are transformed together */

/* A number of each of as many outputs. */
typedef float Lanes __attribute__((vector_size(4 * WEIGHTS)));

/* Not by memcpy, whose checks of lengths (_FORTIFY_SOURCE) make it a call here. */
typedef Lanes LanesAt __attribute__((aligned(4), may_alias));
static inline __attribute__((always_inline)) Lanes get(const float *from) {
  return *(const LanesAt *)(const void *)from;
}
static inline __attribute__((always_inline)) void put(float *to, Lanes x) {
  *(LanesAt *)(void *)to = x;
}

DEFINE_TRANSPOSE(turn_lanes, Lanes, WEIGHTS, LOW_4, HIGH_4)

/* Loads a square of numbers: four of each row, from `at` on, become four lanes of the rows. */
static inline __attribute__((always_inline)) void load_square(const float *const *row, int at,
                                                              Lanes to[WEIGHTS]) {
  for (int r = 0; r < WEIGHTS; r++) to[r] = get(row[r] + at);
  turn_lanes(to);
}

/* G of 4 x 4 outputs has a row (1, p, p^2) / (the product of p's distances from the other
   points) for each point p, and (0, 0, 1). */
#define A WINO_A
#define B WINO_B
#define OVER_0 (1 / (A * A * B * B))
#define OVER_A (1 / (2 * A * A * (A * A - B * B)))
#define OVER_B (1 / (2 * B * B * (B * B - A * A)))

/* G g of three numbers is size + 2. */
static inline __attribute__((always_inline)) void multiply_g(int size, const Lanes g[3],
                                                             Lanes to[MOST_PATCH]) {
  if (size == 2) {
    const Lanes ends = g[0] + g[2];
    to[0] = g[0];
    to[1] = 0.5f * (ends + g[1]);
    to[2] = 0.5f * (ends - g[1]);
    to[3] = g[2];
    return;
  }
  const Lanes even_a = OVER_A * g[0] + OVER_A * A * A * g[2], odd_a = OVER_A * A * g[1];
  const Lanes even_b = OVER_B * g[0] + OVER_B * B * B * g[2], odd_b = OVER_B * B * g[1];
  to[0] = OVER_0 * g[0];
  to[1] = even_a + odd_a;
  to[2] = even_a - odd_a;
  to[3] = even_b + odd_b;
  to[4] = even_b - odd_b;
  to[5] = g[2];
}

/* u[e] = G g G^T of one input, for WEIGHTS outputs. */
static inline __attribute__((always_inline)) void
transform_weight(const Wino *j, int size, const Lanes g[9], float *to) {
  Lanes t[3][MOST_PATCH], row[MOST_PATCH];
  for (int s = 0; s < 3; s++) multiply_g(size, (Lanes[]){g[s], g[3 + s], g[6 + s]}, t[s]);
  for (int i = 0; i < size + 2; i++) {
    multiply_g(size, (Lanes[]){t[0][i], t[1][i], t[2][i]}, row);
    for (int k = 0; k < size + 2; k++, to += j->u_step) put(to, row[k]);
  }
}

/* The rows of a block of weights, each a run of 9 numbers for each input of an output, or for
   dx for each output of an input; of other dtypes in raw. */
static void list_rows(const Wino *j, int64_t o, int64_t c, int rows, int run,
                      float raw[WEIGHTS][9 * WEIGHTS], const float *row[WEIGHTS]) {
  const int64_t step = j->turned ? j->w_in : j->w_out, es = dm_dtype_size(j->dtype);
  const char *const from = j->weights + (o * j->w_out + c * j->w_in) * es;
  for (int r = 0; r < rows; r++) {
    row[r] = raw[r];
    if (j->dtype == DM_F32) row[r] = (const float *)(const void *)from + r * step;
    else dm_load_f32(j->dtype, from + r * step * es, 1, 9 * run, raw[r]);
  }
}

/* Transforms the weights of four inputs from c on, for four outputs from o on. */
static inline __attribute__((always_inline)) void
transform_square(const Wino *j, int size, int64_t o, int64_t c, float *to) {
  float raw[WEIGHTS][9 * WEIGHTS];
  const float *row[WEIGHTS];
  Lanes g[9 * WEIGHTS];
  list_rows(j, o, c, WEIGHTS, WEIGHTS, raw, row);
  for (int i = 0; i < 9 && !j->turned; i++) load_square(row, WEIGHTS * i, g + WEIGHTS * i);
  for (int k = 0; k < WEIGHTS; k++, to += j->kn->mr) {
    if (!j->turned) {
      transform_weight(j, size, g + 9 * k, to);
      continue;
    }
    const float *const nine[WEIGHTS] = {row[k], row[k] + 9, row[k] + 18, row[k] + 27};
    Lanes back[9];
    load_square(nine, 0, g);
    load_square(nine, WEIGHTS, g + WEIGHTS);
    g[8] = (Lanes){nine[0][8], nine[1][8], nine[2][8], nine[3][8]};
    for (int i = 0; i < 9; i++) back[8 - i] = g[i];
    transform_weight(j, size, back, to);
  }
}

/* The same of n_in inputs and n_out outputs; lanes from n_out on are 0. */
static void transform_block(const Wino *j, int64_t o, int n_out, int64_t c, int n_in,
                            float *to) {
  float raw[WEIGHTS][9 * WEIGHTS];
  const float *row[WEIGHTS];
  Lanes g[9] = {{0}};
  list_rows(j, o, c, j->turned ? n_in : n_out, j->turned ? n_out : n_in, raw, row);
  for (int k = 0; k < n_in; k++, to += j->kn->mr) {
    for (int l = 0; l < n_out; l++) {
      const float *const nine = j->turned ? row[k] + 9 * l : row[l] + 9 * k;
      for (int i = 0; i < 9; i++) g[j->turned ? 8 - i : i][l] = nine[i];
    }
    transform_weight(j, j->size, g, to);
  }
}

/* Panels [begin, end) of outputs. The last square of a panel may overlap the one before. */
static void transform_weights(void *ctx, int64_t begin, int64_t end) {
  const Wino *const j = ctx;
  const int mr = j->kn->mr;
  for (int64_t p = begin; p < end; p++)
    for (int64_t c = 0; c < j->in; c += WEIGHTS)
      for (int i = 0; i < mr; i += WEIGHTS) {
        const int l = (int)dm_min_i64(i, mr - WEIGHTS);
        const int64_t o = p * mr + l, left = dm_max_i64(0, j->out - o);
        const int n_out = (int)dm_min_i64(WEIGHTS, left),
                  n_in = (int)dm_min_i64(WEIGHTS, j->in - c);
        float *const to = j->u + (p * j->in + c) * mr + l;
        if (n_out < WEIGHTS || n_in < WEIGHTS) transform_block(j, o, n_out, c, n_in, to);
        else if (j->size == 2) transform_square(j, 2, o, c, to);
        else transform_square(j, 4, o, c, to);
      }
}

/* ---- strips ------------------------------------------------------------------ */

/* Tiles of a strip that lie side by side in one image. */
typedef struct Run {
  int64_t image, row, col; /* of the first tile, in tiles */
  int first, n;
} Run;

/* Cuts the n tiles of a strip into runs along rows of tiles; returns their number. */
static int list_runs(const Wino *j, int64_t first, int n, Run *run) {
  int count = 0;
  for (int l = 0; l < n;) {
    const int64_t tile = first + l, row = tile / j->tile_cols;
    Run r = {row / j->tile_rows, row % j->tile_rows, tile % j->tile_cols, l, 0};
    r.n = (int)dm_min_i64(n - l, j->tile_cols - r.col);
    l += r.n;
    run[count++] = r;
  }
  return count;
}

/* Copies n numbers. Rows are short: a call of memcpy, which a compiler makes of a loop, takes
   longer than copies of four, of which the last two overlap. */
static inline __attribute__((always_inline)) void copy_row(float *to, const float *from,
                                                           int64_t n) {
  if (n < WEIGHTS) {
    if (n > 0) to[0] = from[0];
    if (n > 1) to[1] = from[1];
    if (n > 2) to[2] = from[2];
    return;
  }
  for (int64_t k = 0; k < n - WEIGHTS; k += WEIGHTS) put(to + k, get(from + k));
  put(to + n - WEIGHTS, get(from + n - WEIGHTS));
}

/* n_row rows of n positions from (row, col) on, of a plane (h, w), with zeros outside: where
   they lie, *step apart, or else in `buffer` of 2 n_row lines. Rows of 16 bits that are not
   longer than a line are widened in one run. */
static const float *get_lines(dm_DType t, const char *plane, int64_t h, int64_t w, int64_t row,
                              int n_row, int64_t col, int64_t n, float *buffer, int64_t *step) {
  const int64_t top = dm_max_i64(0, row), rows = dm_min_i64(h, row + n_row) - top;
  const int64_t left = dm_max_i64(0, -col);
  const int64_t end = dm_max_i64(left, dm_min_i64(n, w - col));
  const char *src = plane + top * w * dm_dtype_size(t);
  if (t != DM_F32 && w <= LINE && rows > 0) {
    float *const wide = buffer + n_row * LINE;
    dm_load_f32(t, src, 1, rows * w, wide);
    src = (const char *)wide;
    t = DM_F32;
  }
  const int64_t es = dm_dtype_size(t);
  if (t == DM_F32 && rows == n_row && end - left == n) {
    *step = w;
    return (const float *)(const void *)src + col;
  }
  *step = LINE;
  float *line = buffer;
  for (int64_t r = row; r < row + n_row; r++, line += LINE) {
    if (r < 0 || r >= h) {
      memset(line, 0, (size_t)n * sizeof *line);
      continue;
    }
    for (int64_t k = 0; k < left; k++) line[k] = 0;
    for (int64_t k = end; k < n; k++) line[k] = 0;
    const char *const from = src + ((r - top) * w + col + left) * es;
    if (t == DM_F32) copy_row(line + left, (const float *)(const void *)from, end - left);
    else dm_load_f32(t, from, 1, end - left, line + left);
  }
  return buffer;
}

/* Puts position (r, k) of each tile of a run, whose 4 x 4 outputs lie side by side, into its
   lane of to[r][k][LANES]. A tile has patch x patch positions; columns beyond its four are the
   next tile's first. */
static inline __attribute__((always_inline)) void spread_run(const float *line, int64_t step,
                                                             int n, int patch, float *to) {
  for (int r = 0; r < patch; r++, line += step, to += patch * LANES) {
    int l = 0;
    for (; l + WEIGHTS <= n; l += WEIGHTS) {
      const float *const at = line + MOST * l;
      Lanes square[WEIGHTS] = {get(at), get(at + MOST), get(at + 2 * MOST), get(at + 3 * MOST)};
      turn_lanes(square);
      put(to + l, square[0]);
      put(to + LANES + l, square[1]);
      put(to + 2 * LANES + l, square[2]);
      put(to + 3 * LANES + l, square[3]);
    }
    for (; l < n; l++)
      for (int k = 0; k < MOST; k++) to[k * LANES + l] = line[MOST * l + k];
    if (patch == MOST) continue;
    copy_row(to + MOST * LANES, to + 1, n - 1);
    copy_row(to + (MOST + 1) * LANES, to + LANES + 1, n - 1);
    to[MOST * LANES + n - 1] = line[MOST * n];
    to[(MOST + 1) * LANES + n - 1] = line[MOST * n + 1];
  }
}

/* The planes that a transform reads: x, of which a tile reads rows and columns beyond its own,
   or dy, of which it reads its own. */
typedef struct Planes {
  const char *at; /* (n, channels, h, w) */
  int64_t channels, h, w;
  const int64_t *pad;
  int patch; /* rows and columns of a tile */
  dm_WinoInFn *of_run;
  dm_WinoLanesFn *of_lanes;
} Planes;

/* Asks for the rows of a run in the plane after this one, which its own page has. */
static inline __attribute__((always_inline)) void
fetch_next(const Planes *from, const Run *r, int size, const char *plane, int64_t es) {
  enum { CACHE_LINE = 64 };
  const int64_t first = size * r->row - from->pad[0], col = size * r->col - from->pad[1];
  const char *const next = plane + from->h * from->w * es;
  for (int64_t row = dm_max_i64(0, first); row < dm_min_i64(from->h, first + from->patch);
       row++) {
    const char *const at = next + (row * from->w + dm_max_i64(0, col)) * es;
    for (int64_t b = 0; b < size * r->n * es; b += CACHE_LINE) __builtin_prefetch(at + b);
  }
}

/* The transforms of a strip's runs, of one channel. */
static void transform_runs(const Wino *j, const Planes *from, const Run *run, int n_run,
                           int64_t c, float *v, int64_t e_step) {
  const int size = j->size, patch = from->patch;
  float buffer[2 * MOST_PATCH * LINE], area[MOST_PATCH * MOST_PATCH * LANES];
  const Run *const last = run + n_run - 1;
  if (size == MOST && last->first + last->n < LANES) memset(area, 0, sizeof area);
  for (const Run *r = run; r <= last; r++) {
    int64_t step;
    const char *const plane = from->at + (r->image * from->channels + c) * from->h * from->w *
                                             dm_dtype_size(j->dtype);
    if (c + 1 < from->channels) fetch_next(from, r, size, plane, dm_dtype_size(j->dtype));
    const float *const line =
        get_lines(j->dtype, plane, from->h, from->w, size * r->row - from->pad[0], patch,
                  size * r->col - from->pad[1], size * (r->n - 1) + patch, buffer, &step);
    if (size == 2) from->of_run(line, step, r->n, v + r->first, e_step);
    else if (patch == MOST) spread_run(line, step, r->n, MOST, area + r->first);
    else spread_run(line, step, r->n, MOST_PATCH, area + r->first);
  }
  if (size == MOST) from->of_lanes(area, v, e_step);
}

/* x and its transforms. */
static Planes planes_of_x(const Wino *j) {
  return (Planes){j->x,   j->in,       j->h,           j->w,
                  j->pad, j->size + 2, j->kn->wino_in, j->kn->wino4_in};
}

/* Strips of tiles and their transforms: v of x, m of y. */
typedef struct Strips {
  const Wino *j;
  int64_t first, n;
  float *v, *m;
} Strips;

/* Where a strip begins in the transforms of its group. */
static int64_t strip_at(const Wino *j, int64_t s, int64_t step) {
  const int64_t group = j->width / LANES;
  return s / group * j->positions * step + s % group * LANES;
}
static int64_t n_group(const Strips *p) { return dm_ceil_div(p->n, p->j->width / LANES); }
static int runs_of(const Strips *p, int64_t s, Run run[LANES]) {
  const int64_t tile = (p->first + s) * LANES;
  return list_runs(p->j, tile, (int)dm_min_i64(LANES, p->j->n_tile - tile), run);
}

/* Lanes without a tile, which are the last group's, are 0. */
static void clear_rest(const Strips *p) {
  const Wino *const j = p->j;
  const int64_t size = j->positions * j->v_step, groups = n_group(p);
  if (j->n_tile - p->first * LANES < groups * j->width)
    memset(p->v + (groups - 1) * size, 0, (size_t)size * sizeof *p->v);
}

/* The transforms of strips [begin, end), channel by channel. */
static void transform_strips(void *ctx, int64_t begin, int64_t end) {
  const Strips *const p = ctx;
  const Wino *const j = p->j;
  const Planes x = planes_of_x(j);
  Run run[LANES];
  for (int64_t s = begin; s < end; s++) {
    float *const v = p->v + strip_at(j, s, j->v_step);
    const int n_run = runs_of(p, s, run);
    for (int64_t c = 0; c < j->in; c++)
      transform_runs(j, &x, run, n_run, c, v + c * j->width, j->v_step);
  }
}

/* y = A^T m A + bias of a strip, rounded once; what lies outside y is dropped. */
static void store_strip(const Wino *j, const Run *run, int n_run, const float *m) {
  const int64_t es = dm_dtype_size(j->dtype);
  const int size = j->size;
  float line[MOST * MOST * LANES], bias = 0;
  for (int64_t o = 0; o < j->out; o++) {
    if (j->bias) dm_load_f32(j->dtype, j->bias + o * es, 1, 1, &bias);
    (size == 2 ? j->kn->wino_out : j->kn->wino4_out)(m + o * j->width, j->m_step, bias, line);
    for (const Run *r = run; r < run + n_run; r++)
      for (int64_t k = 0; k < size && size * r->row + k < j->p; k++) {
        const int64_t col = size * r->col, row = size * r->row + k;
        const int64_t width = dm_min_i64(size * r->n, j->q - col);
        const float *const from = line + size * (k * LANES + r->first);
        char *const to = j->y + (((r->image * j->out + o) * j->p + row) * j->q + col) * es;
        if (j->dtype == DM_F32) copy_row((float *)(void *)to, from, width);
        else dm_store_f32(j->dtype, to, 1, width, from);
      }
  }
}

/* m = u[e] v for n columns of a group of strips. */
static void multiply(const Wino *j, int64_t e, int n, const float *v, float *m) {
  const int mr = j->kn->mr;
  const dm_Panels u = {j->u + e * j->u_step, j->in * mr, 1, mr};
  const dm_Strip strip = {.at = v, .rs = j->width};
  const dm_Sums sums = {.at = m, .rs = j->width};
  dm_tile_column(j->kn, j->out, n, j->in, &u, &strip, &sums, NULL);
}

/* Multiplies [begin, end): a position and a group of strips each. */
static void multiply_groups(void *ctx, int64_t begin, int64_t end) {
  const Strips *const p = ctx;
  const Wino *const j = p->j;
  const int64_t groups = n_group(p);
  const int columns = (int)dm_even_part(j->width, j->kn->nr, 4); /* divides width */
  for (int64_t i = begin; i < end; i++) {
    const int64_t e = i / groups, g = i % groups;
    const float *const v = p->v + (g * j->positions + e) * j->v_step;
    float *const m = p->m + (g * j->positions + e) * j->m_step;
    for (int64_t n = 0; n < j->width; n += columns) multiply(j, e, columns, v + n, m + n);
  }
}

static void store_strips(void *ctx, int64_t begin, int64_t end) {
  const Strips *const p = ctx;
  Run run[LANES];
  for (int64_t s = begin; s < end; s++) {
    const int n_run = runs_of(p, s, run);
    store_strip(p->j, run, n_run, p->m + strip_at(p->j, s, p->j->m_step));
  }
}

/* Tasks [begin, end), n_strip strips each. */
static void run_tasks(void *ctx, int64_t begin, int64_t end) {
  Wino *const j = ctx;
  const int64_t all = dm_ceil_div(j->n_tile, LANES);
  const int64_t groups = j->n_strip / (j->width / LANES);
  float *const v = dm_scratch(DM_SCRATCH_TASK, groups * j->positions * (j->v_step + j->m_step) *
                                                   (int64_t)sizeof *v);
  if (!v) {
    atomic_store(&j->failed, true);
    return;
  }
  for (int64_t i = begin; i < end; i++) {
    const int64_t first = i * j->n_strip;
    Strips part = {j, first, dm_min_i64(all - first, j->n_strip), v,
                   v + groups * j->positions * j->v_step};
    clear_rest(&part);
    transform_strips(&part, 0, part.n);
    multiply_groups(&part, 0, j->positions * n_group(&part));
    store_strips(&part, 0, part.n);
  }
}

/* All strips at once, step by step: the threads share each step. */
static void run_steps(Wino *j, float *v) {
  Strips all = {j, 0, dm_ceil_div(j->n_tile, LANES), v, NULL};
  all.m = v + n_group(&all) * j->positions * j->v_step;
  clear_rest(&all);
  dm_parallel_for(all.n, 1, transform_strips, &all);
  dm_parallel_for(j->positions * n_group(&all), 1, multiply_groups, &all);
  dm_parallel_for(all.n, 1, store_strips, &all);
}

/* Heights and widths that size does not divide end with a tile of which a part is not stored.
 */
static void cut_tiles(Wino *j, int size) {
  j->kn = dm_kernel(DM_F32);
  j->size = size;
  j->positions = (size + 2) * (size + 2);
  j->tile_rows = dm_ceil_div(j->p, size);
  j->tile_cols = dm_ceil_div(j->q, size);
  j->n_tile = j->n * j->tile_rows * j->tile_cols;
}

/* Products of a plane of p x q outputs cut into tiles of this size. */
static int64_t products(int size, int64_t p, int64_t q) {
  return (size + 2) * (size + 2) * dm_ceil_div(p, size) * dm_ceil_div(q, size);
}

/* Planes that end with tiles of which little is stored save nothing by larger ones; few tiles
   do not pay for 36 matrices of weights or of sums, nor do matrices that no cache holds. */
static int size_for(int64_t n, int64_t p, int64_t q, int64_t weights) {
  enum { TILES = 64, MOST_WEIGHTS = (24 << 20) / (MOST_PATCH * MOST_PATCH * 4) };
  const int64_t n_tile = n * dm_ceil_div(p, MOST) * dm_ceil_div(q, MOST);
  const bool less = 4 * products(MOST, p, q) <= 3 * products(2, p, q);
  return less && n_tile >= TILES && weights <= MOST_WEIGHTS ? MOST : 2;
}

bool dm_winograd_is_large(const dm_ConvDims *d, bool dx) {
  return size_for(d->n, dx ? d->h : d->p, dx ? d->w : d->q, d->c * d->o) == MOST;
}

/* Forward or dx: transforms the weights once, then runs the strips as tasks. The transforms of
   a task hold at most TASK_BYTES, so that they stay in L2 or L3 while they are multiplied.
   Tasks are smaller where they are fewer than the threads, which share each step where there
   are fewer groups of strips: that changes who computes an element, not how. */
static dm_status run(Wino *j, const char *op) {
  cut_tiles(j, size_for(j->n, j->p, j->q, j->in * j->out));
  const int64_t strips = dm_ceil_div(j->n_tile, LANES);
  j->n_strip = TASK_BYTES / (j->positions * LANES * (j->in + j->out) * 4);
  j->n_strip = dm_max_i64(1, dm_min_i64(STRIPS, j->n_strip));
  j->width = dm_max_i64(1, j->kn->nr / LANES) * LANES;
  j->v_step = j->in * j->width + APART;
  j->m_step = j->out * j->width + APART;
  const int64_t threads = dm_threads_here(), group = j->width / LANES;
  const int64_t groups = dm_ceil_div(strips, group);
  const bool steps = groups < threads;
  if (!steps) j->n_strip = dm_min_i64(j->n_strip, dm_ceil_div(strips, threads));
  j->n_strip = dm_even_part(strips, j->n_strip, group);
  j->u_step = dm_ceil_div(j->out, j->kn->mr) * j->kn->mr * j->in + APART;
  const int64_t kept = steps ? groups * (j->v_step + j->m_step) : 0;
  j->u = dm_scratch(DM_SCRATCH_JOB, j->positions * (j->u_step + kept) * 4);
  if (!j->u) return dm_fail(DM_EMEM, "%s: out of memory for the transforms of the weights", op);
  dm_parallel_for(dm_ceil_div(j->out, j->kn->mr), dm_max_i64(1, (1 << 8) / j->in),
                  transform_weights, j);
  if (steps) run_steps(j, j->u + j->positions * j->u_step);
  else dm_parallel_for(dm_ceil_div(strips, j->n_strip), 1, run_tasks, j);
  dm_scratch_trim(DM_SCRATCH_JOB);
  if (!atomic_load(&j->failed)) return DM_OK;
  return dm_fail(DM_EMEM, "%s: out of memory for the transforms", op);
}

/* ---- either way ------------------------------------------------------------- */

/* The part of a Wino that forward and dw share. */
static Wino forward(const dm_ConvDims *d, dm_DType t, const void *x) {
  return (Wino){.dtype = t,
                .n = d->n,
                .in = d->c,
                .h = d->h,
                .w = d->w,
                .out = d->o,
                .p = d->p,
                .q = d->q,
                .pad = {d->pad[0], d->pad[1]},
                .x = x,
                .w_in = 9,
                .w_out = 9 * d->c};
}

dm_status dm_winograd_fwd(const dm_ConvDims *d, dm_DType t, const void *x, const void *w,
                          const void *bias, void *y) {
  Wino j = forward(d, t, x);
  j.weights = w;
  j.bias = bias;
  j.y = y;
  return run(&j, "conv2d");
}

dm_status dm_winograd_dx(const dm_ConvDims *d, dm_DType t, const void *dy, const void *w,
                         const void *bias, void *dx) {
  Wino j = {.dtype = t,
            .n = d->n,
            .in = d->o,
            .h = d->p,
            .w = d->q,
            .out = d->c,
            .p = d->h,
            .q = d->w,
            .pad = {2 - d->pad[0], 2 - d->pad[1]},
            .x = dy,
            .weights = w,
            .bias = bias,
            .y = dx,
            .w_in = 9 * d->c,
            .w_out = 9,
            .turned = true};
  return run(&j, "conv2d_dx");
}

/* ---- dw -------------------------------------------------------------------------- */

/* dw = G^T m G of the sums over tiles

     m[e] (O, C) = g[e] (O, tiles) v[e] (C, tiles)^T,     g = A dy A^T

   The tiles come in chunks, whose size depends on the shape alone: first all of a
   chunk's transforms, plane by plane, then its products, position by position. */
typedef struct Dw {
  Wino t;
  const char *dy;
  char *dw;
  int64_t first, n, step; /* the chunk at hand; elements from row to row of v and g */
  int64_t v_step, g_step; /* from position to position */
  int64_t n_block;        /* of DW_CHANNELS */
  float *v, *g, *m;
  atomic_bool failed;
} Dw;

/* Planes [begin, end): those of x, then those of dy, whose transforms are g. */
static void transform_chunk(void *ctx, int64_t begin, int64_t end) {
  static const int64_t no_pad[2];
  const Dw *const d = ctx;
  const Wino *const j = &d->t;
  const Planes x = planes_of_x(j);
  const Planes dy = {
      d->dy, j->out, j->p, j->q, no_pad, j->size, j->kn->wino_grad, j->kn->wino4_grad};
  Run run[LANES];
  for (int64_t c = begin; c < end; c++)
    for (int64_t s = 0; s < d->n; s += LANES) {
      const int n = list_runs(j, d->first + s, (int)dm_min_i64(LANES, d->n - s), run);
      if (c < j->in) transform_runs(j, &x, run, n, c, d->v + c * d->step + s, d->v_step);
      else
        transform_runs(j, &dy, run, n, c - j->in, d->g + (c - j->in) * d->step + s, d->g_step);
    }
}

/* Multiplies tasks [begin, end), a position and a block of channels each. A task adds depth
   after depth in order, so the sums do not depend on the number of threads. */
static void multiply_chunk(void *ctx, int64_t begin, int64_t end) {
  Dw *const d = ctx;
  const dm_Kernel *const kn = d->t.kn;
  const int64_t in = d->t.in, out = d->t.out, step = d->step;
  float *const strip = dm_scratch(DM_SCRATCH_TASK, DW_DEPTH * kn->nr * 4);
  if (!strip) {
    atomic_store(&d->failed, true);
    return;
  }
  for (int64_t i = begin; i < end; i++) {
    const int64_t e = i / d->n_block, c0 = i % d->n_block * DW_CHANNELS;
    const int64_t c1 = dm_min_i64(in, c0 + DW_CHANNELS);
    for (int64_t k = 0; k < d->n; k += DW_DEPTH)
      for (int64_t c = c0; c < c1; c += kn->nr) {
        const int n = (int)dm_min_i64(kn->nr, c1 - c);
        const int64_t depth = dm_min_i64(DW_DEPTH, d->n - k);
        kn->pack(DM_F32, d->v + e * d->v_step + c * step + k, step, 1, n, depth, kn->nr, strip);
        const dm_Panels g = {d->g + e * d->g_step + k, kn->mr * step, step, 1};
        const dm_Strip v = {.at = strip, .rs = kn->nr};
        const dm_Sums sums = {.at = d->m + e * out * in + c, .rs = in, .add = d->first + k > 0};
        dm_tile_column(kn, out, n, depth, &g, &v, &sums, NULL);
      }
  }
}

/* G^T of size + 2 numbers `step` apart is three, to_step apart, for n lanes. */
static inline __attribute__((always_inline)) void
transpose_g(int size, const float *m, int64_t step, int64_t n, float *to, int64_t to_step) {
  for (int64_t l = 0; l < n; l++) {
    const float sum = m[step + l] + m[2 * step + l], less = m[step + l] - m[2 * step + l];
    if (size == 2) {
      to[l] = m[l] + 0.5f * sum;
      to[to_step + l] = 0.5f * less;
      to[2 * to_step + l] = 0.5f * sum + m[3 * step + l];
    } else {
      const float far = m[3 * step + l] + m[4 * step + l];
      const float apart = m[3 * step + l] - m[4 * step + l];
      to[l] = OVER_0 * m[l] + (OVER_A * sum + OVER_B * far);
      to[to_step + l] = OVER_A * A * less + OVER_B * B * apart;
      to[2 * to_step + l] = OVER_A * A * A * sum + OVER_B * B * B * far + m[5 * step + l];
    }
  }
}

/* Computes dw of n <= LANES channel pairs from pair i on: G^T along rows, then along columns.
 */
static inline __attribute__((always_inline)) void reduce_pairs(const Dw *d, int size, int64_t i,
                                                               int64_t n) {
  const int64_t step = d->t.out * d->t.in, es = dm_dtype_size(d->t.dtype);
  float t[3][MOST_PATCH][LANES], nine[9][LANES], line[9];
  for (int j = 0; j < size + 2; j++)
    transpose_g(size, d->m + j * step + i, (size + 2) * step, n, t[0][j], MOST_PATCH * LANES);
  for (int r = 0; r < 3; r++) transpose_g(size, t[r][0], LANES, n, nine[3 * r], LANES);
  for (int64_t l = 0; l < n; l++) {
    char *const to = d->dw + (i + l) * 9 * es;
    for (int k = 0; k < 9; k++) line[k] = nine[k][l];
    if (d->t.dtype == DM_F32) copy_row((float *)(void *)to, line, 9);
    else dm_store_f32(d->t.dtype, to, 1, 9, line);
  }
}

/* Outputs [begin, end). */
static void reduce_positions(void *ctx, int64_t begin, int64_t end) {
  const Dw *const d = ctx;
  const int64_t last = end * d->t.in;
  for (int64_t i = begin * d->t.in; i < last; i += LANES) {
    const int64_t n = dm_min_i64(LANES, last - i);
    if (d->t.size == 2) reduce_pairs(d, 2, i, n);
    else reduce_pairs(d, 4, i, n);
  }
}

/* A chunk's transforms are computed for all planes, then multiplied, before the next chunk:
   both fit CHUNK_BYTES as far as DM_WINOGRAD_DW_TILES allows. */
dm_status dm_winograd_dw(const dm_ConvDims *dims, dm_DType t, const void *dy, const void *x,
                         void *dw) {
  Dw d = {.t = forward(dims, t, x), .dy = dy, .dw = dw};
  cut_tiles(&d.t, size_for(d.t.n, d.t.p, d.t.q, d.t.in * d.t.out));
  const int64_t in = d.t.in, out = d.t.out, positions = d.t.positions;
  const int64_t most = CHUNK_BYTES / (positions * (in + out) * 4);
  const int64_t chunk = dm_even_part(d.t.n_tile, dm_max_i64(DM_WINOGRAD_DW_TILES, most), LANES);
  d.step = chunk + APART;
  d.v_step = in * d.step + APART;
  d.g_step = out * d.step + APART;
  d.n_block = dm_ceil_div(in, DW_CHANNELS);
  d.m = dm_scratch(DM_SCRATCH_JOB, positions * (out * in + d.v_step + d.g_step) * 4);
  if (!d.m) return dm_fail(DM_EMEM, "conv2d_dw: out of memory for the sums of transforms");
  d.v = d.m + positions * out * in;
  d.g = d.v + positions * d.v_step;
  for (d.first = 0; d.first < d.t.n_tile && !atomic_load(&d.failed); d.first += chunk) {
    d.n = dm_min_i64(chunk, d.t.n_tile - d.first);
    dm_parallel_for(in + out, dm_max_i64(1, (1 << 9) / chunk), transform_chunk, &d);
    dm_parallel_for(positions * d.n_block, 1, multiply_chunk, &d);
  }
  dm_parallel_for(out, dm_max_i64(1, (1 << 14) / in), reduce_positions, &d);
  dm_scratch_trim(DM_SCRATCH_JOB);
  if (!atomic_load(&d.failed)) return DM_OK;
  return dm_fail(DM_EMEM, "conv2d_dw: out of memory for a strip of transforms");
}
