/* Outputs are cut into 2 x 2 tiles, each from 4 x 4 pixels, numbered through
   images, rows and columns. Sixteen tiles are a strip. With B^T d B of the pixels
   and G g G^T of the weights, each of 16 places e is a product over channels:

     m[e] (O, tiles) = u[e] (O, C) v[e] (C, tiles),     y = A^T m A

   A task transforms some strips, multiplies them with u[e] while that is in
   cache, and transforms back. An infinite pixel spreads over its tile. */
#include "cpu/winograd.h"

#include "base/error.h"
#include "cpu/gemm_kernel.h"
#include "cpu/threads.h"
#include "cpu/vec.h"

#include <stdatomic.h>
#include <string.h>

enum {
  LANES = 16,           /* tiles of a strip */
  PLACES = 16,          /* of a 4 x 4 tile */
  CHANNELS = 32,        /* fewer do not pay for the transforms */
  LINE = 2 * LANES + 2, /* pixels that a run of tiles reads of a row */
  STRIPS = 16,          /* most strips of a task, */
  TASK_BYTES = 4 << 20  /* and what their transforms may hold */
};

/* dx is the same with the weights turned round and the channels changed over. */
typedef struct Wino {
  const dm_Kernel *kn;
  dm_DType dtype;
  int64_t n, in, h, w, out, p, q; /* x (n, in, h, w) -> y (n, out, p, q) */
  int64_t pad[2], tile_rows, tile_cols, n_tile;
  int64_t n_strip; /* of a task */
  const char *x, *weights, *bias;
  char *y;
  int64_t w_in, w_out; /* strides of the weights in elements */
  bool turned;
  float *u; /* [PLACES][panels of out][in][mr] */
  int64_t u_step;
  atomic_bool failed;
} Wino;

/* ---- weights -------------------------------------------------------------- */

/* u[e] = G g G^T, for panels [begin, end) of outputs; lanes past the last are 0. */
static void transform_weights(void *ctx, int64_t begin, int64_t end) {
  enum { MR = 8 };
  const Wino *const j = ctx;
  const int64_t mr = j->kn->mr, es = dm_dtype_size(j->dtype);
  for (int64_t k = begin * j->in; k < end * j->in; k++) {
    const int64_t o = k / j->in * mr, c = k % j->in;
    const int n = (int)dm_min_i64(mr, j->out - o);
    float g[9][MR] = {{0}}, t[4][3][MR], line[9];
    for (int l = 0; l < n; l++) {
      dm_load_f32(j->dtype, j->weights + ((o + l) * j->w_out + c * j->w_in) * es, 1, 9, line);
      for (int i = 0; i < 9; i++) g[j->turned ? 8 - i : i][l] = line[i];
    }
    for (int s = 0; s < 3; s++)
      for (int l = 0; l < MR; l++) {
        t[0][s][l] = g[s][l];
        t[1][s][l] = 0.5f * (g[s][l] + g[3 + s][l] + g[6 + s][l]);
        t[2][s][l] = 0.5f * (g[s][l] - g[3 + s][l] + g[6 + s][l]);
        t[3][s][l] = g[6 + s][l];
      }
    float *to = j->u + k * mr;
    for (int i = 0; i < 4; i++, to += 4 * j->u_step)
      for (int l = 0; l < mr; l++) {
        to[l] = t[i][0][l];
        to[j->u_step + l] = 0.5f * (t[i][0][l] + t[i][1][l] + t[i][2][l]);
        to[2 * j->u_step + l] = 0.5f * (t[i][0][l] - t[i][1][l] + t[i][2][l]);
        to[3 * j->u_step + l] = t[i][2][l];
      }
  }
}

/* ---- strips ------------------------------------------------------------------ */

/* Tiles of a strip that lie side by side in one image. */
typedef struct Run {
  int64_t image, row, col; /* of the first tile, in tiles */
  int first, n;
} Run;

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

/* The four rows that a run reads, with zeros outside of the plane. */
static void load_lines(const Wino *j, const Run *r, int64_t c, float *line) {
  const int64_t es = dm_dtype_size(j->dtype), n = 2 * r->n + 2;
  const int64_t col = 2 * r->col - j->pad[1], left = dm_max_i64(0, -col);
  const int64_t end = dm_max_i64(left, dm_min_i64(n, j->w - col));
  for (int64_t i = 0; i < 4; i++, line += LINE) {
    const int64_t row = 2 * r->row - j->pad[0] + i;
    if (row < 0 || row >= j->h) {
      memset(line, 0, (size_t)n * sizeof *line);
      continue;
    }
    for (int64_t k = 0; k < left; k++) line[k] = 0;
    for (int64_t k = end; k < n; k++) line[k] = 0;
    const char *const src =
        j->x + (((r->image * j->in + c) * j->h + row) * j->w + col + left) * es;
    if (j->dtype == DM_F32) memcpy(line + left, src, (size_t)(end - left) * 4);
    else dm_load_f32(j->dtype, src, 1, end - left, line + left);
  }
}

static void transform_strip(const Wino *j, const Run *run, int n_run, float *v) {
  float line[4 * LINE];
  for (int64_t c = 0; c < j->in; c++)
    for (int i = 0; i < n_run; i++) {
      load_lines(j, &run[i], c, line);
      j->kn->wino_in(line, LINE, run[i].n, v + c * LANES + run[i].first, j->in * LANES);
    }
}

static void store_strip(const Wino *j, const Run *run, int n_run, const float *m) {
  const int64_t es = dm_dtype_size(j->dtype);
  float line[4 * LANES], bias = 0;
  for (int64_t o = 0; o < j->out; o++) {
    if (j->bias) dm_load_f32(j->dtype, j->bias + o * es, 1, 1, &bias);
    j->kn->wino_out(m + o * LANES, j->out * LANES, bias, line);
    for (int i = 0; i < n_run; i++)
      for (int64_t k = 0; k < 2 && 2 * run[i].row + k < j->p; k++) {
        const int64_t col = 2 * run[i].col, row = 2 * run[i].row + k;
        dm_store_f32(
            j->dtype, j->y + (((run[i].image * j->out + o) * j->p + row) * j->q + col) * es, 1,
            dm_min_i64(2 * run[i].n, j->q - col), line + 2 * (k * LANES + run[i].first));
      }
  }
}

/* Strips [begin, end) of tiles. */
static void run_strips(const Wino *j, int64_t begin, int64_t end, float *v, float *m) {
  const int64_t v_size = PLACES * LANES * j->in, m_size = PLACES * LANES * j->out;
  const int64_t mr = j->kn->mr;
  Run run[STRIPS][LANES];
  int n_run[STRIPS];
  for (int64_t s = begin; s < end; s++) {
    const int n = (int)dm_min_i64(LANES, j->n_tile - s * LANES);
    if (n < LANES) memset(v + (s - begin) * v_size, 0, (size_t)v_size * sizeof *v);
    n_run[s - begin] = list_runs(j, s * LANES, n, run[s - begin]);
    transform_strip(j, run[s - begin], n_run[s - begin], v + (s - begin) * v_size);
  }
  for (int64_t e = 0; e < PLACES; e++)
    for (int64_t s = 0; s < end - begin; s++)
      for (int n = 0; n < LANES; n += j->kn->nr)
        dm_tile_column(j->kn, j->out, j->kn->nr, j->in, j->u + e * j->u_step, j->in * mr, 1, mr,
                       v + s * v_size + e * j->in * LANES + n, LANES,
                       m + s * m_size + e * j->out * LANES + n, LANES, false, NULL, NULL);
  for (int64_t s = 0; s < end - begin; s++) store_strip(j, run[s], n_run[s], m + s * m_size);
}

/* Tasks [begin, end). */
static void run_tasks(void *ctx, int64_t begin, int64_t end) {
  Wino *const j = ctx;
  const int64_t all = dm_ceil_div(j->n_tile, LANES);
  const int64_t strip = PLACES * LANES * (j->in + j->out) * 4;
  float *const v = dm_scratch(DM_SCRATCH_TASK, j->n_strip * strip);
  if (!v) {
    atomic_store(&j->failed, true);
    return;
  }
  for (int64_t i = begin; i < end; i++)
    run_strips(j, i * j->n_strip, dm_min_i64(all, (i + 1) * j->n_strip), v,
               v + j->n_strip * PLACES * LANES * j->in);
}

static dm_status run(Wino *j, const char *op) {
  j->kn = dm_kernel(DM_F32);
  j->tile_rows = dm_ceil_div(j->p, 2);
  j->tile_cols = dm_ceil_div(j->q, 2);
  j->n_tile = j->n * j->tile_rows * j->tile_cols;
  j->u_step = dm_ceil_div(j->out, j->kn->mr) * j->kn->mr * j->in;
  j->u = dm_scratch(DM_SCRATCH_JOB, PLACES * j->u_step * 4);
  if (!j->u) return dm_fail(DM_EMEM, "%s: out of memory for the weights' transforms", op);
  const int64_t strips = dm_ceil_div(j->n_tile, LANES);
  j->n_strip = TASK_BYTES / (PLACES * LANES * (j->in + j->out) * 4);
  j->n_strip = dm_max_i64(1, dm_min_i64(STRIPS, j->n_strip));
  j->n_strip = dm_even_part(strips, j->n_strip, 1);
  dm_parallel_for(dm_ceil_div(j->out, j->kn->mr), dm_max_i64(1, (1 << 10) / j->in),
                  transform_weights, j);
  dm_parallel_for(dm_ceil_div(strips, j->n_strip), 1, run_tasks, j);
  dm_scratch_trim(DM_SCRATCH_JOB);
  if (!atomic_load(&j->failed)) return DM_OK;
  return dm_fail(DM_EMEM, "%s: out of memory for the transforms", op);
}

/* ---- either way ------------------------------------------------------------- */

bool dm_conv2d_is_winograd(const dm_ConvDims *d, dm_DType t) {
  return dm_compute_dtype(t) == DM_F32 && d->r == 3 && d->s == 3 && d->groups == 1 &&
         d->stride[0] == 1 && d->stride[1] == 1 && d->dil[0] == 1 && d->dil[1] == 1 &&
         d->pad[0] <= 2 && d->pad[1] <= 2 && d->p >= 4 && d->q >= 4 && d->h >= 4 && d->w >= 4 &&
         dm_min_i64(d->c, d->o) >= CHANNELS;
}

dm_status dm_winograd_fwd(const dm_ConvDims *d, dm_DType t, const void *x, const void *w,
                          const void *bias, void *y) {
  Wino j = {.dtype = t,
            .n = d->n,
            .in = d->c,
            .h = d->h,
            .w = d->w,
            .out = d->o,
            .p = d->p,
            .q = d->q,
            .pad = {d->pad[0], d->pad[1]},
            .x = x,
            .weights = w,
            .bias = bias,
            .y = y,
            .w_in = 9,
            .w_out = 9 * d->c};
  return run(&j, "conv2d");
}

dm_status dm_winograd_dx(const dm_ConvDims *d, dm_DType t, const void *dy, const void *w,
                         void *dx) {
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
            .y = dx,
            .w_in = 9 * d->c,
            .w_out = 9,
            .turned = true};
  return run(&j, "conv2d_dx");
}
