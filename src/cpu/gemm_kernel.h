/* The register kernels of gemm.c and the convolutions: what a kernel computes, and the loops
   around it.

   A kernel multiplies a panel of mr rows of A with a strip of nr columns of B and keeps the
   (mr, nr) sums in vector registers. mr * nr is as large as the registers allow, because each
   step of k then loads mr + nr elements for mr * nr multiply-adds:

     plain     6 x  8 floats, 6 x 4 doubles   SSE2's 16 registers, or any processor
     AVX2      6 x 16 floats, 6 x 8 doubles   12 of 16 registers are sums
     AVX512   12 x 32 floats, 12 x 16 doubles 24 of 32
     NEON      8 x 12 floats, 8 x 6 doubles   24 of 32
     AVX512-BF16  12 x 32 floats, from pairs of bfloat16
     AMX-BF16     32 x 32 floats, from pairs, in four of eight tiles

   Products run in the compute type, float32 or float64; buffers travel as void *, so that one
   driver serves both. Every kernel adds its k products to one sum per element in order of k,
   so results do not depend on how a matrix was cut into tiles. */
#ifndef DM_GEMM_KERNEL_H
#define DM_GEMM_KERNEL_H

#include "base/dtype.h"

/* c (m,n) = [c +] a (m,k) b (k,n) for m <= mr and n <= nr. a(i,k) lies at
   a + i*a_rs + k*a_cs; rows of b and c have unit column stride. Touches
   nothing outside the m x n, m x k and k x n elements. */
typedef void dm_TileFn(int m, int n, int64_t k, const void *a, int64_t a_rs, int64_t a_cs,
                       const void *b, int64_t b_rs, void *c, int64_t c_rs, bool add);

/* c (m,n) = [c +] a b for m <= few_rows, any n, and a b whose depth is contiguous, as a layer's
   weights are: element (k,j), of float32 or 16 bits, is b[j*b_cs + k]; b of a kernel of pairs
   is of those. a is packed to a panel as wide as it has rows. Blocks of b are turned in
   registers, which costs less than packing what few rows use; each sum has the bits of
   dm_TileFn's. */
typedef void dm_TurnedFn(dm_DType t, int m, int n, int64_t k, const void *a, const void *b,
                         int64_t b_cs, float *c, int64_t c_rs, bool add);
enum { DM_FEW_ROWS = 8 };

/* c (m,n) = [c +] a b for m <= few_rows, any n, and a b (k,n) that is read where it lies:
   element (p,j), of bfloat16 or, unless the kernel is of pairs, of float32, is b[p*b_rs + j]. a
   is packed to a panel as wide as it has rows, or for a kernel of tiles to one of its own. Each
   sum has the bits of dm_TileFn's. */
typedef void dm_FewFn(dm_DType t, int m, int64_t n, int64_t k, const void *a, const void *b,
                      int64_t b_rs, float *c, int64_t c_rs, bool add);

/* dst[k*width + l] = src(l,k), l < n_lane <= width, at src + l*ls + k*ks
   elements of dtype t. Lanes from n_lane on may come to hold anything. */
typedef void dm_PackFn(dm_DType t, const void *src, int64_t ls, int64_t ks, int n_lane,
                       int64_t k, int width, void *dst);

/* dst[k*width + l] = src[lane[l] + at[k]], both lists ascending. `gather`
   expects runs of +1 in lane; `gather_t` in at, and may read src up to
   DM_SLACK elements past the last one named. */
typedef void dm_GatherFn(const void *src, const int32_t *lane, int n_lane, const int32_t *at,
                         int64_t k, int width, void *dst);
enum { DM_SLACK = 8 };

/* dst[j] = [dst[j] +] sum over k of w[k*w_step] * src[at[k] + j], j < n. */
typedef void dm_StencilFn(const void *src, const int32_t *at, int64_t k, const void *w,
                          int64_t w_step, int64_t n, void *dst, bool add);

/* The transforms of winograd.inc. Those of 4 x 4 outputs interpolate at 0, +-A and +-B. */
#define WINO_A 0.625f
#define WINO_B 1.5f
typedef void dm_WinoInFn(const float *line, int64_t line_step, int n, float *dst,
                         int64_t e_step);
typedef void dm_WinoLanesFn(const float *area, float *dst, int64_t e_step);
typedef void dm_WinoOutFn(const float *m, int64_t e_step, float bias, float *line);

/* A panel of k floats a lane, each a bfloat16 of 32 bits, becomes one of pairs in its memory.
 */
typedef void dm_JoinFn(int64_t k, int width, void *panel);

/* A panel of A of k products deep, packed by `pack` or `join`, becomes one of `pack_a`. */
typedef void dm_TurnFn(int64_t k, void *panel);

/* on: before this thread's first call of `tile`; off: behind the last one. */
typedef void dm_ConfigureFn(bool on);

enum { DM_MOST_MR = 32, DM_MOST_NR = 32, DM_TILE_PAIRS = 16 };
typedef struct dm_Kernel {
  dm_DType type; /* of sums: DM_F32 or DM_F64 */
  int mr, nr;    /* at most DM_MOST_MR, DM_MOST_NR */
  dm_TileFn *tile;
  dm_TurnedFn *turned; /* NULL: there is none */
  dm_FewFn *few;       /* NULL: there is none */
  dm_DType few_low;
  int few_rows, few_nr; /* columns are best a multiple of few_nr */
  dm_PackFn *pack;
  dm_GatherFn *gather, *gather_t;
  dm_StencilFn *stencil;
  dm_WinoInFn *wino_in, *wino_grad; /* of DM_F32 */
  dm_WinoLanesFn *wino4_in, *wino4_grad;
  dm_WinoOutFn *wino_out, *wino4_out;
  /* Panels hold pairs of bfloat16, as much of DM_F32's bytes: `tile` and `turned` count pairs,
     all others k. The gathers read bfloat16. There are no stencil and no transforms; nr is that
     of DM_F32. */
  bool pairs;
  dm_JoinFn *join;
  /* Pairs are multiplied in tiles: a panel's depth is a multiple of DM_TILE_PAIRS, with zeros
     at its end, `tile` reads all mr rows and nr columns, and panels of A are packed by
     `pack_a`, lane l of pair p at (p / 16 * mr + l) * 16 + p % 16. */
  bool tiles;
  dm_ConfigureFn *configure; /* NULL without tiles */
  dm_PackFn *pack_a;
  dm_TurnFn *turn;
} dm_Kernel;

/* Items of a panel of depth k. */
static inline int64_t dm_depth(const dm_Kernel *kn, int64_t k) {
  const int64_t n = kn->pairs ? (k + 1) / 2 : k;
  return kn->tiles ? (n + DM_TILE_PAIRS - 1) / DM_TILE_PAIRS * DM_TILE_PAIRS : n;
}

/* Products that a depth is cut at, so that its parts are panels of their own. */
static inline int64_t dm_depth_unit(const dm_Kernel *kn) {
  return kn->tiles ? 2 * DM_TILE_PAIRS : kn->pairs ? 2 : 1;
}

/* Any dtype and stride, any processor. */
dm_PackFn dm_pack_f32, dm_pack_f64;
dm_GatherFn dm_gather_f32, dm_gather_f64;
dm_StencilFn dm_stencil_f32, dm_stencil_f64;

/* c (n) = alpha * acc + beta * c + bias, one row: bias NULL, bias_step 0 (one
   value for the row) or 1. beta 0 never reads c. */
typedef struct dm_Epilogue {
  double alpha, beta;
  dm_DType c_dtype, bias_dtype;
} dm_Epilogue;
void dm_epilogue_row(const dm_Epilogue *f, dm_DType acc_type, const void *acc, int64_t n,
                     void *c, const void *bias, int bias_step);

/* Panels of A, of mr lanes, or strips of B, of nr lanes, each k deep: dst[panel][k][width]. */
typedef enum dm_Side { DM_A, DM_B } dm_Side;
void dm_pack_panels(const dm_Kernel *kn, dm_Side side, dm_DType t, const void *src, int64_t ls,
                    int64_t ks, int64_t n_lane, int64_t k, void *dst);

/* Rows of memory that will be packed next. A sweep asks for a few of their
   lines before each register tile, so that they come while it multiplies. */
typedef struct dm_Prefetch {
  const char *row;                       /* NULL: nothing to ask for */
  int64_t step, n_byte, at, n_row, rate; /* bytes; `rate` lines a tile */
} dm_Prefetch;

/* Elements (l, k) of a matrix, one stride 1, within n_tile register tiles. */
dm_Prefetch dm_prefetch(dm_DType t, const void *src, int64_t ls, int64_t ks, int64_t n_lane,
                        int64_t k, int64_t n_tile);

/* The initial value of c: element (i,j) is at[i*row + j*col], steps of 0 or 1, in the compute
   type. The prologue writes one register tile at a time, so that a bias costs no pass over
   c. */
typedef struct dm_Prologue {
  const void *at;
  int row, col;
} dm_Prologue;

/* Panels of a, as packed or as they lie: element (i,k) of panel p is
   at[p*panel + i*rs + k*cs]. */
typedef struct dm_Panels {
  const void *at;
  int64_t panel, rs, cs;
} dm_Panels;

/* Panels of a as packed, each `panel` items long. */
static inline dm_Panels dm_packed_panels(const dm_Kernel *kn, const void *at, int64_t panel) {
  return (dm_Panels){at, panel, kn->tiles ? DM_TILE_PAIRS : 1, kn->mr};
}

/* A strip of b: element (k,j) is at[k*rs + j]. */
typedef struct dm_Strip {
  const void *at;
  int64_t rs;
} dm_Strip;

/* Where sums go as a low float, with a bias added: element (i,j) to at[i*rs + j], its bias is
   bias[i*bias_row + j*bias_col], steps of 0 or 1, or NULL. */
typedef struct dm_Store {
  dm_DType dtype, bias_dtype;
  char *at;
  int64_t rs;
  const char *bias;
  int bias_row, bias_col;
} dm_Store;

/* Sums c: element (i,j) is at[i*rs + j]. The product is added to what c holds (add), to the
   prologue (or NULL), or replaces c. Each register tile is then stored (store, or NULL), while
   it is in the first-level cache; c may be the memory of one tile for all (one_tile). */
typedef struct dm_Sums {
  void *at;
  int64_t rs;
  bool add;
  const dm_Prologue *prologue;
  const dm_Store *store;
  bool one_tile;
} dm_Sums;

/* c (m,n) = [c or prologue +] a (m,k) b (k,n) for n <= nr, one register tile after another.
   prefetch: two, or NULL. */
void dm_tile_column(const dm_Kernel *kn, int64_t m, int n, int64_t k, const dm_Panels *a,
                    const dm_Strip *b, const dm_Sums *c, dm_Prefetch *prefetch);

/* Sizes of even parts: the least multiple of `unit` that cuts n into parts of
   at most `most`. */
static inline int64_t dm_even_part(int64_t n, int64_t most, int64_t unit) {
  const int64_t parts = n <= most ? 1 : (n + most - 1) / most;
  const int64_t part = (n + parts - 1) / parts;
  return (part + unit - 1) / unit * unit;
}
static inline int64_t dm_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Products of a block of the depth k, whose sums are added before the next block's: every
   product of one kernel cuts k in the same way, so that all have the same bits. A strip of 16
   floats is 16 KB of L1, as is a strip or a panel of tiles. */
enum { DM_KC = 256, DM_KC_UNIT = 4 /* steps of depth that the kernels take at once */ };
static inline int64_t dm_block_depth(const dm_Kernel *kn, int64_t k) {
  const int64_t most = kn->pairs && !kn->tiles ? 2 * DM_KC : DM_KC;
  const int64_t unit = dm_depth_unit(kn);
  return dm_even_part(k, most, unit > DM_KC_UNIT ? unit : DM_KC_UNIT);
}

/* The kernels of one instruction set each; NULL where it is not built. gemm_variant.h chooses.
 */
const dm_Kernel *dm_kernel_plain(dm_DType type);
const dm_Kernel *dm_kernel_neon(dm_DType type);
const dm_Kernel *dm_kernel_avx2(dm_DType type);
const dm_Kernel *dm_kernel_avx512(dm_DType type);
const dm_Kernel *dm_kernel_avx512bf16(void);
const dm_Kernel *dm_kernel_amx(void);

#endif
