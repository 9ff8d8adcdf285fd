/* The plain C kernels, packing for any dtype and stride, and the loops around a kernel:
   panels, columns of register tiles, the prologue and the epilogue. gemm_avx2.c and
   gemm_wide.inc have the faster kernels; they use the packing here for rare strides.

   A register kernel adds a product of (m, k) and (k, n) to at most mr x nr sums that
   it keeps in registers over all of k. Operands come packed: a panel of A has mr rows
   and a strip of B nr columns, stored k by k, so that each step of k reads two
   contiguous pieces. The loops around it follow K. Goto & R. van de Geijn, "Anatomy
   of high-performance matrix multiplication", 2008: a strip of B stays in the
   first-level cache while panels of A pass by. */
#include "cpu/gemm_kernel.h"

#include "cpu/transpose.h"
#include "cpu/vec.h"

#include <string.h>

/* ---- one definition for float and double ------------------------------- */

enum { MR = 6, NR_F32 = 8, NR_F64 = 4, LINE = 128 };

/* NR columns at a time: 6 x 8 floats fill twelve of sixteen SSE registers. */
#define DEFINE_KERNELS(REAL, NR, TILE, EDGE, PACK, GATHER, LOAD)                               \
  static void EDGE(int m, int n, int64_t k, const REAL *a, int64_t a_rs, int64_t a_cs,         \
                   const REAL *b, int64_t b_rs, REAL acc[MR][NR]) {                            \
    for (int64_t p = 0; p < k; p++)                                                            \
      for (int i = 0; i < m; i++)                                                              \
        for (int j = 0; j < n; j++) acc[i][j] += a[i * a_rs + p * a_cs] * b[p * b_rs + j];     \
  }                                                                                            \
  static void TILE(int m, int n, int64_t k, const void *va, int64_t a_rs, int64_t a_cs,        \
                   const void *vb, int64_t b_rs, void *vc, int64_t c_rs, bool add) {           \
    const REAL *a = va, *b = vb;                                                               \
    REAL *c = vc;                                                                              \
    REAL acc[MR][NR] = {{0}};                                                                  \
    if (m == MR && n == NR) {                                                                  \
      for (int64_t p = 0; p < k; p++)                                                          \
        for (int i = 0; i < MR; i++)                                                           \
          for (int j = 0; j < NR; j++) acc[i][j] += a[i * a_rs + p * a_cs] * b[p * b_rs + j];  \
    } else {                                                                                   \
      EDGE(m, n, k, a, a_rs, a_cs, b, b_rs, acc);                                              \
    }                                                                                          \
    for (int i = 0; i < m; i++)                                                                \
      for (int j = 0; j < n; j++)                                                              \
        c[i * c_rs + j] = add ? c[i * c_rs + j] + acc[i][j] : acc[i][j];                       \
  }                                                                                            \
  void PACK(dm_DType t, const void *src, int64_t ls, int64_t ks, int n_lane, int64_t k,        \
            int width, void *vdst) {                                                           \
    const int64_t es = dm_dtype_size(t);                                                       \
    REAL line[LINE], *dst = vdst;                                                              \
    if (ls == 1) {                                                                             \
      for (int64_t p = 0; p < k; p++)                                                          \
        LOAD(t, (const char *)src + p * ks * es, 1, n_lane, dst + p * width);                  \
      return;                                                                                  \
    }                                                                                          \
    for (int l = 0; l < n_lane; l++)                                                           \
      for (int64_t p = 0; p < k; p += LINE) {                                                  \
        const int64_t n = dm_min_i64(LINE, k - p);                                             \
        LOAD(t, (const char *)src + (l * ls + p * ks) * es, ks, n, line);                      \
        for (int64_t q = 0; q < n; q++) dst[(p + q) * width + l] = line[q];                    \
      }                                                                                        \
  }                                                                                            \
  void GATHER(const void *vsrc, const int32_t *lane, int n_lane, const int32_t *at, int64_t k, \
              int width, void *vdst) {                                                         \
    const REAL *src = vsrc;                                                                    \
    REAL *dst = vdst;                                                                          \
    for (int64_t p = 0; p < k; p++)                                                            \
      for (int l = 0; l < n_lane; l++) dst[p * width + l] = src[lane[l] + at[p]];              \
  }
/* k shifted input rows times one weight each, summed in order of k. */
#define DEFINE_STENCIL(REAL, NAME)                                                          \
  void NAME(const void *vsrc, const int32_t *at, int64_t k, const void *vw, int64_t w_step, \
            int64_t n, void *vdst, bool add) {                                              \
    const REAL *src = vsrc, *w = vw;                                                        \
    REAL *dst = vdst;                                                                       \
    for (int64_t j = 0; j < n; j++) {                                                       \
      REAL sum = 0;                                                                         \
      for (int64_t p = 0; p < k; p++) sum += w[p * w_step] * src[at[p] + j];                \
      dst[j] = add ? dst[j] + sum : sum;                                                    \
    }                                                                                       \
  }
DEFINE_STENCIL(float, dm_stencil_f32)
DEFINE_STENCIL(double, dm_stencil_f64)
#undef DEFINE_STENCIL
DEFINE_KERNELS(float, NR_F32, tile_f32, edge_f32, dm_pack_f32, dm_gather_f32, dm_load_f32)
DEFINE_KERNELS(double, NR_F64, tile_f64, edge_f64, dm_pack_f64, dm_gather_f64, dm_load_f64)
#undef DEFINE_KERNELS

#include "cpu/winograd.inc"

/* The table of plain kernels: what runs on a processor without AVX2 or Neon. */
static const dm_Kernel plain_f32 = {.type = DM_F32,
                                    .mr = MR,
                                    .nr = NR_F32,
                                    .tile = tile_f32,
                                    .pack = dm_pack_f32,
                                    .gather = dm_gather_f32,
                                    .gather_t = dm_gather_f32,
                                    .stencil = dm_stencil_f32,
                                    .wino_in = wino_in,
                                    .wino_grad = wino_grad,
                                    .wino_out = wino_out,
                                    .wino4_in = wino4_in,
                                    .wino4_grad = wino4_grad,
                                    .wino4_out = wino4_out};
static const dm_Kernel plain_f64 = {.type = DM_F64,
                                    .mr = MR,
                                    .nr = NR_F64,
                                    .tile = tile_f64,
                                    .pack = dm_pack_f64,
                                    .gather = dm_gather_f64,
                                    .gather_t = dm_gather_f64,
                                    .stencil = dm_stencil_f64};

/* Kernels exist for float32 and float64; 16 bits are widened when they are packed. */
const dm_Kernel *dm_kernel_plain(dm_DType type) {
  return type == DM_F64 ? &plain_f64 : &plain_f32;
}

/* ---- panels and columns of tiles ---------------------------------------- */

enum { CACHE_LINE = 64 };

/* Asks for n rows of n_byte bytes, which are packed next: in a large matrix rows are pages
   apart, where no processor prefetches. */
static inline void ask_rows(const char *at, int64_t step, int64_t n_byte, int64_t n) {
  for (int64_t i = 0; i < n; i++, at += step)
    for (int64_t b = 0; b < n_byte; b += CACHE_LINE) __builtin_prefetch(at + b);
}

/* Where lanes are contiguous, all panels take a few rows at a time: a row is a page of its
   own, and the pages of many rows are more than the TLB holds. */
void dm_pack_panels(const dm_Kernel *kn, dm_Side side, dm_DType t, const void *src, int64_t ls,
                    int64_t ks, int64_t n_lane, int64_t k, void *dst) {
  enum { ROWS = 16 };
  dm_PackFn *const pack = side == DM_A && kn->pack_a ? kn->pack_a : kn->pack;
  const int width = side == DM_A ? kn->mr : kn->nr;
  const int64_t in = dm_dtype_size(t), out = dm_dtype_size(kn->type);
  const int64_t rows = dm_max_i64(ROWS, dm_depth_unit(kn));
  const int64_t step = ls == 1 && n_lane > width ? rows : k, depth = dm_depth(kn, k);
  for (int64_t p = 0; p < k; p += step)
    for (int64_t l = 0; l < n_lane; l += width) {
      if (ls == 1)
        ask_rows((const char *)src + (l + (p + step) * ks) * in, ks * in, width * in,
                 dm_min_i64(step, k - p - step));
      pack(t, (const char *)src + (l * ls + p * ks) * in, ls, ks,
           (int)dm_min_i64(width, n_lane - l), dm_min_i64(step, k - p), width,
           (char *)dst + (l * depth + dm_depth(kn, p) * width) * out);
    }
}

/* Spreads the lines of (n_lane, k) elements over n_tile register tiles. */
dm_Prefetch dm_prefetch(dm_DType t, const void *src, int64_t ls, int64_t ks, int64_t n_lane,
                        int64_t k, int64_t n_tile) {
  if (n_lane <= 0 || k <= 0 || (ls != 1 && ks != 1)) return (dm_Prefetch){0};
  const int64_t es = dm_dtype_size(t);
  dm_Prefetch a = {.row = src, .step = ls * es, .n_byte = k * es, .n_row = n_lane};
  if (ls == 1) a.step = ks * es, a.n_byte = n_lane * es, a.n_row = k;
  a.rate = dm_ceil_div(dm_ceil_div(a.n_byte, CACHE_LINE) * a.n_row, n_tile);
  return a;
}

/* Prefetches the next `rate` cache lines into L2. */
static inline void ask(dm_Prefetch *a) {
  for (int64_t i = 0; i < a->rate && a->n_row > 0; i++) {
    __builtin_prefetch(a->row + a->at, 0, 2);
    a->at += CACHE_LINE;
    if (a->at < a->n_byte) continue;
    a->at = 0;
    a->row += a->step;
    a->n_row--;
  }
}

/* The prologue of rows [i, i+m) of c, n columns. */
#define DEFINE_PROLOGUE(REAL, NAME)                                                \
  static void NAME(const dm_Prologue *prologue, int64_t i, int m, int n, void *vc, \
                   int64_t c_rs) {                                                 \
    const REAL *at = (const REAL *)prologue->at + i * prologue->row;               \
    REAL *c = vc;                                                                  \
    for (; m > 0; m--, c += c_rs, at += prologue->row) {                           \
      const REAL all = *at;                                                        \
      if (prologue->col) memcpy(c, at, (size_t)n * sizeof *c);                     \
      else                                                                         \
        for (int j = 0; j < n; j++) c[j] = all;                                    \
    }                                                                              \
  }
DEFINE_PROLOGUE(float, prologue_f32)
DEFINE_PROLOGUE(double, prologue_f64)
#undef DEFINE_PROLOGUE

/* Stores rows [i, i+m) of the sums c, n columns; more: the columns' biases. */
static void store_tile(const dm_Store *store, int64_t i, int m, int n, const float *more,
                       void *c, int64_t c_rs) {
  float each[DM_MOST_MR];
  dm_Rows rows = {m, n, c_rs, c, more, 0, 1};
  if (store->bias && store->bias_row) {
    dm_load_f32(store->bias_dtype, store->bias + i * dm_dtype_size(store->bias_dtype), 1, m,
                each);
    rows.more = each, rows.more_row = 1, rows.more_col = 0;
  }
  dm_store_rows_f32(store->dtype, store->at + i * store->rs * dm_dtype_size(store->dtype),
                    store->rs, &rows);
}

/* One strip of B times all panels of A: a column of register tiles of C. The prologue
   writes initial values (a bias) into the sums first, which the kernel then adds to. */
void dm_tile_column(const dm_Kernel *kn, int64_t m, int n, int64_t k, const dm_Panels *a,
                    const dm_Strip *b, const dm_Sums *c, dm_Prefetch *prefetch) {
  const int64_t es = dm_dtype_size(kn->type), rs = c->rs;
  const dm_Prologue *const prologue = c->prologue;
  const bool add = c->add || prologue;
  const char *pa = a->at;
  char *pc = c->at;
  float bias[DM_MOST_NR];
  const bool per_column = c->store && c->store->bias && c->store->bias_col;
  if (per_column) dm_load_f32(c->store->bias_dtype, c->store->bias, 1, n, bias);
  if (kn->configure) kn->configure(true);
  for (int64_t i = 0; i < m; i += kn->mr) {
    if (prefetch) ask(&prefetch[0]), ask(&prefetch[1]);
    const int rows = (int)dm_min_i64(kn->mr, m - i);
    if (prologue)
      (kn->type == DM_F64 ? prologue_f64 : prologue_f32)(prologue, i, rows, n, pc, rs);
    kn->tile(rows, n, k, pa, a->rs, a->cs, b->at, b->rs, pc, rs, add);
    if (c->store) store_tile(c->store, i, rows, n, per_column ? bias : NULL, pc, rs);
    pa += a->panel * es;
    if (!c->one_tile) pc += kn->mr * rs * es;
  }
  if (kn->configure) kn->configure(false);
}

/* ---- the store ----------------------------------------------------------- */

/* One value for the row is read once: sums of 16 bits come this way line by line. */
#define DEFINE_EPILOGUE(REAL, NAME, LOAD, STORE)                                         \
  static void NAME(const dm_Epilogue *f, const REAL *acc, int64_t n, char *c,            \
                   const char *bias, int bias_step) {                                    \
    const int64_t c_es = dm_dtype_size(f->c_dtype), b_es = dm_dtype_size(f->bias_dtype); \
    const REAL alpha = (REAL)f->alpha, beta = (REAL)f->beta;                             \
    REAL sum[LINE], more[LINE], all = 0;                                                 \
    if (alpha == 1 && f->beta == 0 && !bias) {                                           \
      STORE(f->c_dtype, c, 1, n, acc);                                                   \
      return;                                                                            \
    }                                                                                    \
    if (bias && !bias_step) LOAD(f->bias_dtype, bias, 1, 1, &all);                       \
    for (int64_t j = 0; j < n; j += LINE) {                                              \
      const int64_t len = dm_min_i64(LINE, n - j);                                       \
      for (int64_t q = 0; q < len; q++) sum[q] = alpha * acc[j + q];                     \
      if (f->beta != 0) {                                                                \
        LOAD(f->c_dtype, c + j * c_es, 1, len, more);                                    \
        for (int64_t q = 0; q < len; q++) sum[q] += beta * more[q];                      \
      }                                                                                  \
      if (bias && bias_step) {                                                           \
        LOAD(f->bias_dtype, bias + j * b_es, 1, len, more);                              \
        for (int64_t q = 0; q < len; q++) sum[q] += more[q];                             \
      } else if (bias) {                                                                 \
        for (int64_t q = 0; q < len; q++) sum[q] += all;                                 \
      }                                                                                  \
      STORE(f->c_dtype, c + j * c_es, 1, len, sum);                                      \
    }                                                                                    \
  }
DEFINE_EPILOGUE(float, epilogue_f32, dm_load_f32, dm_store_f32)
DEFINE_EPILOGUE(double, epilogue_f64, dm_load_f64, dm_store_f64)
#undef DEFINE_EPILOGUE

/* A plain store, by far the most frequent, is one conversion of the row. */
void dm_epilogue_row(const dm_Epilogue *f, dm_DType acc_type, const void *acc, int64_t n,
                     void *c, const void *bias, int bias_step) {
  const bool plain = f->alpha == 1 && f->beta == 0 && !bias;
  if (acc_type == DM_F64) {
    if (plain) dm_store_f64(f->c_dtype, c, 1, n, acc);
    else epilogue_f64(f, acc, n, c, bias, bias_step);
  } else {
    if (plain) dm_store_f32(f->c_dtype, c, 1, n, acc);
    else epilogue_f32(f, acc, n, c, bias, bias_step);
  }
}
