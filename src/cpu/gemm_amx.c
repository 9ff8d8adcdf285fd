/* The register kernel for processors with tiles (AMX-BF16): 32 x 32 sums in float32. A tile is
   a register of 16 rows of 64 bytes, and one instruction (tdpbf16ps) multiplies 16 rows of 16
   pairs of bfloat16 with 16 pairs of 16 columns: 8,192 multiply-adds, in 16 cycles. Four tiles
   hold sums, two hold A and two hold B, so that each tile that is read is used twice (Intel,
   "Optimization Reference Manual", chapter 20).

   Strips of B are panels of pairs as gemm_avx512bf16.c packs them. A panel of A lies in blocks
   of 16 pairs of depth: 32 rows of 16 pairs each. The depth is a multiple of 16 pairs, with
   zeros at its end, and a panel has all of its rows and columns, of which the last ones may
   hold anything: they reach sums alone that are not stored.

   The sums of the low and of the high halves of 16 pairs are formed apart, from 0, and then
   added to c: results differ from those of vdpbf16ps in the last bits. Subnormal operands and
   sums count as 0. The checks compile this file with DM_EMULATE, in float32 arithmetic, for
   processors without tiles. */
#include "cpu/gemm_kernel.h"
#include "cpu/pairs.h"

#if defined(__AMX_BF16__) || defined(DM_EMULATE)
#include <string.h>

enum { MR = 32, NR = 32, ROWS = 16, PAIRS = 16, BLOCK = MR * PAIRS, FEW_NR = 64 };
_Static_assert((int)PAIRS == (int)DM_TILE_PAIRS, "the depth of a tile");

/* ---- tiles ------------------------------------------------------------------------ */

/* The layout of Intel's manual: palette 1, whose tiles have up to 16 rows of 64 bytes. */
typedef struct Config {
  uint8_t palette, start_row, reserved[14];
  uint16_t bytes[16]; /* of a row */
  uint8_t rows[16];
} Config;

/* Sums are tiles 0 to 3, A tiles 4 and 5, B tiles 6 and 7. */
#if defined(DM_EMULATE)
#include "base/half.h"

static _Thread_local uint32_t tiles[8][ROWS][PAIRS];
static _Thread_local Config config;

static void load_rows(int tile, const char *from, int64_t step) {
  for (int i = 0; i < config.rows[tile]; i++)
    memcpy(tiles[tile][i], from + i * step, sizeof tiles[tile][i]);
}
static void store_rows(int tile, char *to, int64_t step) {
  for (int i = 0; i < config.rows[tile]; i++)
    memcpy(to + i * step, tiles[tile][i], sizeof tiles[tile][i]);
}

/* A subnormal number is 0. */
static float flushed(uint32_t bits) { return bits & 0x7f800000 ? dm_bits_to_f32(bits) : 0; }
static float low(uint32_t x) { return flushed(x << 16); }
static float high(uint32_t x) { return flushed(x & 0xffff0000u); }

static void multiply_tiles(int c, int a, int b) {
  for (int i = 0; i < config.rows[c]; i++)
    for (int j = 0; j < PAIRS; j++) {
      float even = 0, odd = 0;
      for (int p = 0; p < PAIRS; p++) {
        even += low(tiles[a][i][p]) * low(tiles[b][p][j]);
        odd += high(tiles[a][i][p]) * high(tiles[b][p][j]);
      }
      tiles[c][i][j] = dm_f32_to_bits(dm_bits_to_f32(tiles[c][i][j]) + (even + odd));
    }
}
static void load_config(const Config *c) { config = *c; }
static void release(void) { config = (Config){0}; }
#define CLEAR(TILE) memset(tiles[TILE], 0, sizeof tiles[TILE])
#define LOAD(TILE, FROM, STEP) load_rows(TILE, (const char *)(FROM), STEP)
#define STORE(TILE, TO, STEP) store_rows(TILE, (char *)(TO), STEP)
#define MULTIPLY(C, A, B) multiply_tiles(C, A, B)
#else
#include <immintrin.h>

/* GCC's intrinsic says that it reads 8 bytes, and the compiler drops the stores behind them. */
static void load_config(const Config *c) { __asm__ volatile("ldtilecfg %0" : : "m"(*c)); }
static void release(void) { _tile_release(); }
#define CLEAR(TILE) _tile_zero(TILE)
#define LOAD(TILE, FROM, STEP) _tile_loadd(TILE, FROM, STEP)
#define STORE(TILE, TO, STEP) _tile_stored(TILE, TO, STEP)
#define MULTIPLY(C, A, B) _tile_dpbf16ps(C, A, B)
#endif

/* Tiles of A and of sums have so many rows. */
static void configure_rows(int m) {
  const uint8_t rows = (uint8_t)m;
  const Config c = {.palette = 1,
                    .bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                    .rows = {rows, rows, rows, rows, rows, rows, ROWS, ROWS}};
  load_config(&c);
}
static void configure(bool on) {
  if (on) configure_rows(ROWS);
  else release(); /* the system need not save tiles that hold nothing */
}

/* ---- the kernel --------------------------------------------------------------------- */

/* The upper left 16 x 16 sums, with the lower ones (`lower`) and those to the right (`right`),
   which are constants where it is called; add: c is read first. Without those to the right, and
   where A is a matrix that lies in memory, the rows that come next are prefetched. */
static inline __attribute__((always_inline)) void
sum_tiles(bool lower, bool right, int64_t k, const uint32_t *a, int64_t a_rs, int64_t a_cs,
          const uint32_t *b, int64_t b_rs, float *c, int64_t c_rs, bool add) {
  const int64_t a_step = a_rs * 4, b_step = b_rs * 4, c_step = c_rs * 4;
  const uint32_t *const lower_a = a + ROWS * a_rs;
  float *const lower_c = c + ROWS * c_rs;
  if (add) {
    LOAD(0, c, c_step);
    if (right) LOAD(1, c + PAIRS, c_step);
    if (lower) LOAD(2, lower_c, c_step);
    if (lower && right) LOAD(3, lower_c + PAIRS, c_step);
  } else {
    CLEAR(0);
    CLEAR(1);
    CLEAR(2);
    CLEAR(3);
  }
  for (int64_t p = 0; p < k; p += PAIRS) {
    for (int i = 0; !right && a_cs == 1 && i < MR; i++)
      __builtin_prefetch(a + (MR + i) * a_rs + p, 0, 2);
    LOAD(6, b + p * b_rs, b_step);
    LOAD(4, a + p * a_cs, a_step);
    MULTIPLY(0, 4, 6);
    if (right) LOAD(7, b + p * b_rs + PAIRS, b_step);
    if (right) MULTIPLY(1, 4, 7);
    if (lower) LOAD(5, lower_a + p * a_cs, a_step);
    if (lower) MULTIPLY(2, 5, 6);
    if (lower && right) MULTIPLY(3, 5, 7);
  }
  STORE(0, c, c_step);
  if (right) STORE(1, c + PAIRS, c_step);
  if (lower) STORE(2, lower_c, c_step);
  if (lower && right) STORE(3, lower_c + PAIRS, c_step);
}

/* Sums of fewer rows or columns pass through a buffer. */
static void tile_amx(int m, int n, int64_t k, const void *a, int64_t a_rs, int64_t a_cs,
                     const void *b, int64_t b_rs, void *vc, int64_t c_rs, bool add) {
  float *const c = vc;
  if (m == MR && n == NR) {
    sum_tiles(true, true, k, a, a_rs, a_cs, b, b_rs, c, c_rs, add);
  } else if (m == ROWS && n == NR) {
    sum_tiles(false, true, k, a, a_rs, a_cs, b, b_rs, c, c_rs, add);
  } else if (m == MR && n == PAIRS) {
    sum_tiles(true, false, k, a, a_rs, a_cs, b, b_rs, c, c_rs, add);
  } else {
    float sums[MR * NR] = {0};
    const size_t row = (size_t)n * sizeof *sums;
    for (int i = 0; add && i < m; i++) memcpy(sums + i * NR, c + i * c_rs, row);
    if (m > ROWS) sum_tiles(true, true, k, a, a_rs, a_cs, b, b_rs, sums, NR, add);
    else sum_tiles(false, true, k, a, a_rs, a_cs, b, b_rs, sums, NR, add);
    for (int i = 0; i < m; i++) memcpy(c + i * c_rs, sums + i * NR, row);
  }
}

/* ---- few rows of A ------------------------------------------------------------------ */

/* n_row <= 32 rows of n <= 64 columns of B become 16 rows of pairs, with zeros around them. */
static void join_edge(const uint16_t *b, int64_t b_rs, int64_t n_row, int64_t n,
                      uint32_t *pairs) {
  uint16_t rows[2 * PAIRS][FEW_NR] = {{0}};
  for (int64_t i = 0; i < n_row; i++) memcpy(rows[i], b + i * b_rs, (size_t)n * sizeof **rows);
  for (int p = 0; p < PAIRS; p++)
    for (int j = 0; j < FEW_NR; j += DM_JOINED)
      dm_join_rows(rows[2 * p] + j, rows[2 * p + 1] + j, pairs + p * FEW_NR + j);
}

/* The same of all of 32 rows and 64 columns. The block that comes next, `to_next` elements on,
   is prefetched: rows are pages apart, where no processor does. Into L2, because rows apart by
   a power of 2 have few lines in L1. */
static void join_block(const uint16_t *b, int64_t b_rs, int64_t to_next, uint32_t *pairs) {
  enum { LINE = 32 }; /* elements */
  for (int p = 0; p < PAIRS; p++, b += 2 * b_rs, pairs += FEW_NR) {
    const uint16_t *const next = b + to_next;
    __builtin_prefetch(next, 0, 2);
    __builtin_prefetch(next + LINE, 0, 2);
    __builtin_prefetch(next + b_rs, 0, 2);
    __builtin_prefetch(next + b_rs + LINE, 0, 2);
    for (int j = 0; j < FEW_NR; j += DM_JOINED) dm_join_rows(b + j, b + b_rs + j, pairs + j);
  }
}

/* c (m,64) = [c +] a b for n <= 64 columns of b. */
static void few_columns(int64_t n, int64_t k, const uint32_t *a, const uint16_t *b,
                        int64_t b_rs, float *c, int64_t c_rs, bool add) {
  enum { DEPTH = 2 * PAIRS, STEP = FEW_NR * 4 };
  _Alignas(64) uint32_t pairs[PAIRS * FEW_NR];
  const int64_t step = c_rs * 4, next_columns = FEW_NR - (k - 1) / DEPTH * DEPTH * b_rs;
  CLEAR(0);
  CLEAR(1);
  CLEAR(2);
  CLEAR(3);
  if (add) {
    LOAD(0, c, step);
    LOAD(1, c + PAIRS, step);
    LOAD(2, c + 2 * PAIRS, step);
    LOAD(3, c + 3 * PAIRS, step);
  }
  for (int64_t p = 0; p < k; p += DEPTH, a += BLOCK, b += DEPTH * b_rs) {
    if (n < FEW_NR || p + DEPTH > k) join_edge(b, b_rs, dm_min_i64(DEPTH, k - p), n, pairs);
    else join_block(b, b_rs, p + DEPTH < k ? DEPTH * b_rs : next_columns, pairs);
    LOAD(4, a, PAIRS * 4);
    LOAD(6, pairs, STEP);
    MULTIPLY(0, 4, 6);
    LOAD(7, pairs + PAIRS, STEP);
    MULTIPLY(1, 4, 7);
    LOAD(6, pairs + 2 * PAIRS, STEP);
    MULTIPLY(2, 4, 6);
    LOAD(7, pairs + 3 * PAIRS, STEP);
    MULTIPLY(3, 4, 7);
  }
  STORE(0, c, step);
  STORE(1, c + PAIRS, step);
  STORE(2, c + 2 * PAIRS, step);
  STORE(3, c + 3 * PAIRS, step);
}

/* Columns of B, whose rows lie side by side, become pairs 32 rows at a time, in a buffer that
   stays in L1. */
static void few_amx(dm_DType t, int m, int64_t n, int64_t k, const void *a, const void *vb,
                    int64_t b_rs, float *c, int64_t c_rs, bool add) {
  const uint16_t *b = vb;
  DM_UNUSED(t); /* bfloat16 */
  configure_rows(m);
  for (; n >= FEW_NR; n -= FEW_NR, b += FEW_NR, c += FEW_NR)
    few_columns(FEW_NR, k, a, b, b_rs, c, c_rs, add);
  if (n > 0) {
    float sums[ROWS * FEW_NR] = {0};
    const size_t row = (size_t)n * sizeof *sums;
    for (int i = 0; add && i < m; i++) memcpy(sums + i * FEW_NR, c + i * c_rs, row);
    few_columns(n, k, a, b, b_rs, sums, FEW_NR, add);
    for (int i = 0; i < m; i++) memcpy(c + i * c_rs, sums + i * FEW_NR, row);
  }
  release();
}

/* ---- packing -------------------------------------------------------------------------- */

/* Zeros from depth k to the end of the last tile. */
static void pad(int64_t k, uint32_t *panel) {
  const int64_t n_pair = (k + 1) / 2, end = (n_pair + PAIRS - 1) / PAIRS * PAIRS;
  memset(panel + n_pair * NR, 0, (size_t)((end - n_pair) * NR) * sizeof *panel);
}

/* A strip of B: pairs of nr columns. */
static void pack_b(dm_DType t, const void *src, int64_t ls, int64_t ks, int n_lane, int64_t k,
                   int width, void *dst) {
  dm_kernel_avx512bf16()->pack(t, src, ls, ks, n_lane, k, width, dst);
  pad(k, dst);
}

static void join_b(int64_t k, int width, void *panel) {
  dm_kernel_avx512bf16()->join(k, width, panel);
  pad(k, panel);
}

static void gather_b(const void *src, const int32_t *lane, int n_lane, const int32_t *at,
                     int64_t k, int width, void *dst) {
  dm_kernel_avx512bf16()->gather(src, lane, n_lane, at, k, width, dst);
  pad(k, dst);
}

static void gather_t_b(const void *src, const int32_t *lane, int n_lane, const int32_t *at,
                       int64_t k, int width, void *dst) {
  dm_kernel_avx512bf16()->gather_t(src, lane, n_lane, at, k, width, dst);
  pad(k, dst);
}

/* Each block of a panel of A is turned in its memory: 16 pairs of 32 lanes become 32 lanes of
   16 pairs. */
static void turn(int64_t k, void *panel) {
  uint32_t *block = panel, pairs[BLOCK];
  const int64_t n_pair = (k + 1) / 2;
  for (int64_t p = 0; p < n_pair; p += PAIRS, block += BLOCK) {
    memcpy(pairs, block, sizeof pairs);
    dm_kernel_avx512(DM_F32)->pack(DM_F32, pairs, MR, 1, PAIRS, MR, PAIRS, block);
  }
}

/* Rows of A whose depth is contiguous are copied, 16 pairs at a time. */
static void pack_a(dm_DType t, const void *vsrc, int64_t ls, int64_t ks, int n_lane, int64_t k,
                   int width, void *vdst) {
  if (ks != 1) {
    pack_b(t, vsrc, ls, ks, n_lane, k, width, vdst);
    turn(k, vdst);
    return;
  }
  const uint16_t *src = vsrc;
  uint16_t *dst = vdst;
  for (int64_t p = 0; p < k; p += 2 * PAIRS, dst += 2 * BLOCK) {
    const int64_t n = dm_min_i64(2 * PAIRS, k - p);
    for (int l = 0; l < n_lane; l++) {
      uint16_t *const row = dst + l * 2 * PAIRS;
      if (n == 2 * PAIRS) {
        memcpy(row, src + l * ls + p, 2 * PAIRS * sizeof *row);
      } else {
        memset(row, 0, 2 * PAIRS * sizeof *row);
        memcpy(row, src + l * ls + p, (size_t)n * sizeof *row);
      }
    }
  }
}

static const dm_Kernel amx = {.type = DM_F32,
                              .pairs = true,
                              .tiles = true,
                              .configure = configure,
                              .mr = MR,
                              .nr = NR,
                              .tile = tile_amx,
                              .few = few_amx,
                              .few_rows = ROWS,
                              .few_nr = FEW_NR,
                              .pack = pack_b,
                              .pack_a = pack_a,
                              .gather = gather_b,
                              .gather_t = gather_t_b,
                              .join = join_b,
                              .turn = turn};
const dm_Kernel *dm_kernel_amx(void) { return &amx; }
#else
const dm_Kernel *dm_kernel_amx(void) { return NULL; }
#endif
