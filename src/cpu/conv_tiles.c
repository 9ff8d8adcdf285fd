/* See conv_tiles.h. */
#include "cpu/conv_tiles.h"

#include "cpu/gemm_kernel.h"
#include "cpu/loops/loops.h"
#include "cpu/vec.h"

#include <string.h>

enum {
  TILE_COLS = 800,   /* positions of a task, when planes are small */
  BUFFER = 96 << 10, /* elements of a padded buffer that stay in L2 */
  WIDE = 1 << 10,    /* elements of 16 bits that are widened on the stack */
  TINY = 64          /* positions of a plane that is copied by a map */
};

void dm_input_range(dm_ConvInput *x) {
  for (int d = 0; d < 2; d++) {
    x->lo[d] = INT64_MAX;
    x->hi[d] = INT64_MIN;
    for (int64_t i = 0; i < x->n_tap[d]; i++) {
      x->lo[d] = dm_min_i64(x->lo[d], x->tap[d][i]);
      x->hi[d] = dm_max_i64(x->hi[d], x->tap[d][i]);
    }
  }
}

/* The number of small images that make a tile: as many as possible, but fewer where that saves
   a tenth of the time, which counts whole strips of nr positions and takes the last tile for
   as long as the others. */
static int64_t best_n_img(int64_t positions, int64_t most_img, int64_t n_img, int64_t nr) {
  int64_t best = 1, best_time = INT64_MAX;
  for (int64_t i = dm_min_i64(most_img, TILE_COLS / positions); i > 0; i--) {
    const int64_t time = dm_ceil_div(n_img, i) * dm_ceil_div(i * positions, nr);
    if (best_time < INT64_MAX && time * 10 > best_time * 9) continue;
    best = i;
    best_time = time;
  }
  return best;
}

/* The padded planes hold every row and column that the positions of a tile read. */
static void measure_grid(const dm_ConvInput *x, dm_TileGrid *grid) {
  grid->ph = (grid->rows - 1) * x->step[0] + x->hi[0] - x->lo[0] + 1;
  grid->part = grid->columns + (x->hi[1] - x->lo[1]) / x->step[1];
  grid->pw = grid->part * x->step[1];
  grid->buffer = grid->n_img * grid->n_chan * grid->ph * grid->pw;
}

/* About TILE_COLS positions make a tile: enough to use packed weights often, few enough for
   their planes to stay in L2. Where the buffer is larger than BUFFER, first images and then
   channels are halved. */
dm_TileGrid dm_tile_grid(const dm_ConvInput *x, int64_t group, int64_t depth, int64_t most_img,
                         int64_t nr, int64_t unit) {
  dm_TileGrid grid = {.n_img = 1, .rows = x->p, .columns = x->q, .n_part = 1};
  const int64_t positions = x->p * x->q, taps = x->n_tap[0] * x->n_tap[1];
  if (positions <= TILE_COLS)
    grid.n_img = best_n_img(positions, dm_min_i64(x->n_img, most_img), x->n_img, nr);
  else grid.rows = dm_even_part(x->p, dm_max_i64(1, TILE_COLS / x->q), 1);
  if (grid.rows == 1 && x->q > TILE_COLS) grid.columns = dm_even_part(x->q, TILE_COLS, nr);
  grid.n_part = dm_ceil_div(x->q, grid.columns);
  grid.n_chan = dm_min_i64(group, dm_even_part(group, dm_max_i64(1, depth / taps), unit));
  measure_grid(x, &grid);
  while (grid.buffer > BUFFER && (grid.n_img > 1 || grid.n_chan > unit)) {
    if (grid.n_img > 1) grid.n_img = dm_ceil_div(grid.n_img, 2);
    else grid.n_chan = dm_even_part(grid.n_chan, dm_ceil_div(grid.n_chan, 2), unit);
    measure_grid(x, &grid);
  }
  grid.n_band = dm_ceil_div(x->p, grid.rows) * grid.n_part;
  grid.n_tile = grid.n_band * dm_ceil_div(x->n_img, grid.n_img);
  grid.cols = grid.n_img * grid.rows * grid.columns;
  return grid;
}

/* The bands of one group of images are numbered one after the other, then those of the next
   group; the last band and the last group may be smaller. */
dm_ConvTile dm_tile_at(const dm_ConvInput *x, const dm_TileGrid *grid, int64_t i) {
  dm_ConvTile tile = {.img = i / grid->n_band * grid->n_img,
                      .p = i % grid->n_band / grid->n_part * grid->rows,
                      .q = i % grid->n_part * grid->columns};
  tile.n_img = dm_min_i64(grid->n_img, x->n_img - tile.img);
  tile.rows = dm_min_i64(grid->rows, x->p - tile.p);
  tile.columns = dm_min_i64(grid->columns, x->q - tile.q);
  tile.cols = tile.n_img * tile.rows * tile.columns;
  return tile;
}

/* Copies n elements of es bytes, 2 or 8, that lie `step` apart. Of 16 bits, every second one is
   the low half of a word, for which there are instructions (the last word may end outside). */
static void copy_every(const char *src, int64_t step, int64_t n, int64_t es, char *dst) {
  const bool words = es == 2 && step == 2 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;
  int64_t i = 0;
  for (uint32_t word; words && i < n - 1; i++) {
    memcpy(&word, src + 4 * i, 4);
    const uint16_t low = (uint16_t)word;
    memcpy(dst + 2 * i, &low, 2);
  }
  for (; es == 2 && i < n; i++) memcpy(dst + 2 * i, src + 2 * i * step, 2);
  for (; es == 8 && i < n; i++) memcpy(dst + 8 * i, src + 8 * i * step, 8);
}

/* Whether a tap reads columns of the padded planes that leave remainder a. */
static bool is_read(const dm_ConvInput *x, int64_t a) {
  for (int64_t s = 0; s < x->n_tap[1]; s++)
    if ((x->tap[1][s] - x->lo[1]) % x->step[1] == a) return true;
  return false;
}

/* Rows of columns [left, end) of a padded plane, split by remainder. */
static void split_rows(const dm_ConvInput *x, const dm_TileGrid *grid, const char *src,
                       dm_DType t, int64_t rows, int64_t left, int64_t end, dm_DType to,
                       char *dst) {
  const int64_t in = dm_dtype_size(t), es = dm_dtype_size(to), step = x->step[1];
  for (int64_t a = 0; a < dm_min_i64(step, end - left); a++) {
    const int64_t column = left + a, n = dm_ceil_div(end - column, step);
    if (!is_read(x, column % step)) continue;
    const char *from = src + a * in;
    char *at = dst + (column % step * grid->part + column / step) * es;
    if (t == DM_F32 && to == DM_F32)
      dm_loops()->copy_rows((const float *)(const void *)from, x->w, step, rows, n,
                            (float *)(void *)at, grid->pw);
    else
      for (int64_t h = 0; h < rows; h++, from += x->w * in, at += grid->pw * es)
        if (t == to) copy_every(from, step, n, es, at);
        else dm_load_f32(t, from, step, n, (float *)(void *)at);
  }
}

/* Plane (img, chan), from row h0 and column w0 on, with zeros outside. What is read of a small
   plane of 16 bits is widened in one run. */
static void load_plane(const dm_ConvInput *x, const dm_TileGrid *grid, int64_t plane,
                       int64_t h0, int64_t w0, dm_DType to, char *dst) {
  float wide[WIDE];
  dm_DType t = x->dtype;
  const int64_t left = dm_min_i64(dm_max_i64(0, -w0), grid->pw);
  const int64_t end = dm_max_i64(left, dm_min_i64(x->w - w0, grid->pw));
  const int64_t top = dm_max_i64(0, h0), rows = dm_min_i64(x->h, h0 + grid->ph) - top;
  const char *src = x->data + (plane * x->h + top) * x->w * dm_dtype_size(t);
  if (dm_is_low(t) && t != to && rows > 0 && rows * x->w <= WIDE) {
    dm_load_f32(t, src, 1, rows * x->w, wide);
    src = (const char *)wide;
    t = DM_F32;
  }
  const int64_t in = dm_dtype_size(t), es = dm_dtype_size(to), row = grid->pw * es;
  memset(dst, 0, (size_t)(grid->ph * row)); /* quicker than a call for each end of a row */
  if (rows <= 0 || left == end) return;
  src += (w0 + left) * in;
  dst += (top - h0) * row;
  if (x->step[1] > 1) {
    split_rows(x, grid, src, t, rows, left, end, to, dst);
    return;
  }
  dst += left * es;
  for (int64_t h = 0; h < rows; h++, src += x->w * in, dst += row) {
    if (t == to) memcpy(dst, src, (size_t)((end - left) * es));
    else dm_convert(t, src, to, dst, end - left);
  }
}

/* A plane of a few positions, whole: rows are too short for a call each. */
static bool is_tiny(const dm_ConvInput *x, const dm_TileGrid *grid) {
  return x->h * x->w > 0 && x->h * x->w <= TINY && grid->ph * grid->pw <= TINY;
}

/* Fills the map from each element of a padded plane to its index in the plane; -1 outside. */
static void map_plane(const dm_ConvInput *x, const dm_TileGrid *grid, int64_t h0,
                      int32_t map[TINY]) {
  for (int64_t i = 0; i < grid->ph; i++)
    for (int64_t j = 0; j < grid->pw; j++) {
      const int64_t h = h0 + i, w = x->lo[1] + j % grid->part * x->step[1] + j / grid->part;
      const bool inside = h >= 0 && h < x->h && w >= 0 && w < x->w;
      *map++ = inside ? (int32_t)(h * x->w + w) : -1;
    }
}

#define DEFINE_SPREAD(REAL, NAME)                                                        \
  static void NAME(const void *vsrc, int64_t n_plane, int64_t plane, const int32_t *map, \
                   int64_t size, void *vdst) {                                           \
    const REAL *src = vsrc;                                                              \
    REAL *dst = vdst;                                                                    \
    for (; n_plane > 0; n_plane--, src += plane, dst += size)                            \
      for (int64_t i = 0; i < size; i++) dst[i] = map[i] < 0 ? 0 : src[map[i]];          \
  }
DEFINE_SPREAD(uint16_t, spread_u16)
DEFINE_SPREAD(float, spread_f32)
DEFINE_SPREAD(double, spread_f64)
#undef DEFINE_SPREAD

/* Planes [first, first + n) by their map. */
static void load_tiny(const dm_ConvInput *x, const dm_TileGrid *grid, int64_t first, int64_t n,
                      const int32_t *map, dm_DType to, char *dst) {
  const int64_t plane = x->h * x->w, size = grid->ph * grid->pw, es = dm_dtype_size(to);
  const char *src = x->data + first * plane * dm_dtype_size(x->dtype);
  if (x->dtype == DM_F64) {
    spread_f64(src, n, plane, map, size, dst);
  } else if (x->dtype == DM_F32) {
    spread_f32(src, n, plane, map, size, dst);
  } else if (x->dtype == to && es == 2) {
    spread_u16(src, n, plane, map, size, dst);
  } else {
    float wide[WIDE];
    for (const int64_t most = WIDE / plane; n > 0; n -= most) {
      const int64_t some = dm_min_i64(n, most);
      dm_load_f32(x->dtype, src, 1, some * plane, wide);
      spread_f32(wide, some, plane, map, size, dst);
      src += some * plane * dm_dtype_size(x->dtype);
      dst += some * size * es;
    }
  }
}

/* Tiny planes go by one map for all, others row by row. */
void dm_load_tile(const dm_ConvInput *x, const dm_TileGrid *grid, const dm_ConvTile *tile,
                  int64_t c0, int64_t n_chan, dm_DType to, char *dst) {
  const int64_t es = dm_dtype_size(to), size = grid->ph * grid->pw,
                img = grid->n_chan * size * es;
  const int64_t h0 = tile->p * x->step[0] + x->lo[0], w0 = tile->q * x->step[1] + x->lo[1];
  const bool tiny = is_tiny(x, grid);
  int32_t map[TINY];
  if (tiny) map_plane(x, grid, h0, map);
  for (int64_t i = 0; i < tile->n_img; i++, dst += img) {
    const int64_t plane = (tile->img + i) * x->n_chan + c0;
    if (tiny) load_tiny(x, grid, plane, n_chan, map, to, dst);
    else
      for (int64_t c = 0; c < n_chan; c++)
        load_plane(x, grid, plane + c, h0, w0, to, dst + c * size * es);
  }
}

void dm_list_positions(const dm_ConvInput *x, const dm_TileGrid *grid, const dm_ConvTile *tile,
                       int32_t *position) {
  const int64_t img = grid->n_chan * grid->ph * grid->pw;
  for (int64_t i = 0; i < tile->n_img; i++)
    for (int64_t p = 0; p < tile->rows; p++)
      for (int64_t q = 0; q < tile->columns; q++)
        *position++ = (int32_t)(i * img + p * x->step[0] * grid->pw + q);
}

void dm_list_taps(const dm_ConvInput *x, const dm_TileGrid *grid, int32_t *tap) {
  for (int64_t c = 0; c < grid->n_chan; c++)
    for (int64_t r = 0; r < x->n_tap[0]; r++)
      for (int64_t s = 0; s < x->n_tap[1]; s++) {
        const int64_t column = x->tap[1][s] - x->lo[1], step = x->step[1];
        *tap++ = (int32_t)((c * grid->ph + x->tap[0][r] - x->lo[0]) * grid->pw +
                           column % step * grid->part + column / step);
      }
}
