/* Register kernels for AVX2 with FMA: 6 x 16 floats or 6 x 8 doubles. Twelve of the sixteen
   registers hold sums, two hold a row of B, one a broadcast element of A. A step of k is two
   loads, six broadcasts and twelve independent multiply-adds, enough to hide their latency.

   A tile at the edge of C has a kernel of its own: fewer rows by a constant m, fewer
   columns by masked loads and stores. Packing converts 16-bit elements with F16C, and turns
   8 x 8 blocks in registers where k is the contiguous dim. */
#include "cpu/gemm_kernel.h"
#include "cpu/transpose.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "base/half.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

#define MR 6

/* ---- register kernels --------------------------------------------------------- */

/* All bits set in the first n lanes. */
INLINE __m256i mask_f32(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE __m256i mask_f64(int n) {
  return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
}

/* Sums are named, not an array: gcc keeps an array of vectors in memory. */
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5)
#define CLEAR(I) VEC u##I = ZERO(), v##I = ZERO();
/* C is far away by the time it is stored: its lines are asked for first. */
#define ASK_ROW(I)                                           \
  if (m > I) {                                               \
    __builtin_prefetch(c + I * c_rs, 1);                     \
    __builtin_prefetch(c + I * c_rs + n_vec * LANES - 1, 1); \
  }

/* The six rows of A are addressed from two pointers with offsets 0, 1 and 2 strides,
   which the addressing modes of x86 have; more pointers would spill. */
#define ADD_ROW(I)                                                  \
  if (m > I) {                                                      \
    const VEC x = BROADCAST((I < 3 ? low : high) + (I % 3) * a_rs); \
    u##I = FMA(x, row0, u##I);                                      \
    if (n_vec == 2) v##I = FMA(x, row1, v##I);                      \
  }

/* Stores or adds row I: whole vectors, and the last one under the mask. */
#define STORE_ROW(I)                                         \
  if (m > I) {                                               \
    REAL *const to = c + I * c_rs;                           \
    if (n_vec == 1 && masked) STORE_MASKED(to, u##I)         \
    else STORE_WHOLE(to, u##I)                               \
    if (n_vec == 2 && masked) STORE_MASKED(to + LANES, v##I) \
    else if (n_vec == 2) STORE_WHOLE(to + LANES, v##I)       \
  }
#define STORE_MASKED(TO, V) MASK_STORE(TO, mask, add ? ADD(MASK_LOAD(TO, mask), V) : V);
#define STORE_WHOLE(TO, V) STORE(TO, add ? ADD(LOAD(TO), V) : V);

/* m rows, n_vec vectors of columns, the last under `mask` if masked. */
#define DEFINE_PRODUCT(NAME)                                                              \
  INLINE void NAME(int m, int n_vec, bool masked, __m256i mask, int64_t k, const REAL *a, \
                   int64_t a_rs, int64_t a_cs, const REAL *b, int64_t b_rs, REAL *c,      \
                   int64_t c_rs, bool add) {                                              \
    EACH_ROW(CLEAR)                                                                       \
    EACH_ROW(ASK_ROW)                                                                     \
    const REAL *low = a, *high = m > 3 ? a + 3 * a_rs : a;                                \
    _Pragma("GCC unroll 4") for (int64_t p = 0; p < k; p++) {                             \
      const VEC row0 = n_vec == 1 && masked ? MASK_LOAD(b, mask) : LOAD(b);               \
      const VEC row1 = n_vec == 1 ? ZERO()                                                \
                       : masked   ? MASK_LOAD(b + LANES, mask)                            \
                                  : LOAD(b + LANES);                                        \
      EACH_ROW(ADD_ROW)                                                                   \
      low += a_cs;                                                                        \
      high += a_cs;                                                                       \
      b += b_rs;                                                                          \
    }                                                                                     \
    EACH_ROW(STORE_ROW)                                                                   \
  }

#define REAL float
#define VEC __m256
#define LANES 8
#define ZERO _mm256_setzero_ps
#define LOAD _mm256_loadu_ps
#define STORE _mm256_storeu_ps
#define MASK_LOAD _mm256_maskload_ps
#define MASK_STORE _mm256_maskstore_ps
#define BROADCAST _mm256_broadcast_ss
#define FMA _mm256_fmadd_ps
#define ADD _mm256_add_ps
DEFINE_PRODUCT(product_f32)
#undef REAL
#undef VEC
#undef LANES
#undef ZERO
#undef LOAD
#undef STORE
#undef MASK_LOAD
#undef MASK_STORE
#undef BROADCAST
#undef FMA
#undef ADD

#define REAL double
#define VEC __m256d
#define LANES 4
#define ZERO _mm256_setzero_pd
#define LOAD _mm256_loadu_pd
#define STORE _mm256_storeu_pd
#define MASK_LOAD _mm256_maskload_pd
#define MASK_STORE _mm256_maskstore_pd
#define BROADCAST _mm256_broadcast_sd
#define FMA _mm256_fmadd_pd
#define ADD _mm256_add_pd
DEFINE_PRODUCT(product_f64)
#undef REAL
#undef VEC
#undef LANES
#undef ZERO
#undef LOAD
#undef STORE
#undef MASK_LOAD
#undef MASK_STORE
#undef BROADCAST
#undef FMA
#undef ADD
#undef DEFINE_PRODUCT
#undef STORE_WHOLE
#undef STORE_MASKED
#undef STORE_ROW
#undef ADD_ROW
#undef ASK_ROW
#undef CLEAR
#undef EACH_ROW

/* ---- one function a shape ------------------------------------------------------- */

#define REST k, a, a_rs, a_cs, b, b_rs, c, c_rs, add
#define ROWS(FN, N_VEC, MASKED)                      \
  switch (m) {                                       \
  case 1: FN(1, N_VEC, MASKED, mask, REST); return;  \
  case 2: FN(2, N_VEC, MASKED, mask, REST); return;  \
  case 3: FN(3, N_VEC, MASKED, mask, REST); return;  \
  case 4: FN(4, N_VEC, MASKED, mask, REST); return;  \
  case 5: FN(5, N_VEC, MASKED, mask, REST); return;  \
  default: FN(6, N_VEC, MASKED, mask, REST); return; \
  }

/* Chooses the function of a shape once per tile: rows and vectors are constants in
   each, so that the loop over k has no branch. The common full tile of packed
   operands also has constant strides. */
#define DEFINE_TILE(REAL, TILE, FN, MASK, LANES)                                        \
  static void TILE(int m, int n, int64_t k, const void *va, int64_t a_rs, int64_t a_cs, \
                   const void *vb, int64_t b_rs, void *vc, int64_t c_rs, bool add) {    \
    const REAL *a = va, *b = vb;                                                        \
    REAL *c = vc;                                                                       \
    const __m256i mask = MASK(n > LANES ? n - LANES : n);                               \
    if (n == 2 * LANES) {                                                               \
      if (m == MR && a_rs == 1 && a_cs == MR) { /* packed: fixed offsets */             \
        FN(MR, 2, false, mask, k, a, 1, MR, b, b_rs, c, c_rs, add);                     \
        return;                                                                         \
      }                                                                                 \
      ROWS(FN, 2, false)                                                                \
    } else if (n > LANES) {                                                             \
      ROWS(FN, 2, true)                                                                 \
    } else if (n == LANES) {                                                            \
      ROWS(FN, 1, false)                                                                \
    } else {                                                                            \
      ROWS(FN, 1, true)                                                                 \
    }                                                                                   \
  }
DEFINE_TILE(float, tile_f32, product_f32, mask_f32, 8)
DEFINE_TILE(double, tile_f64, product_f64, mask_f64, 4)
#undef DEFINE_TILE
#undef ROWS
#undef REST

/* ---- packing floats --------------------------------------------------------------- */

/* Eight 16-bit floats as float32: bfloat16 is the upper half of a float32. */
INLINE __m256 widen(dm_DType t, __m128i half) {
  if (t == DM_F16) return _mm256_cvtph_ps(half);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* Eight neighbours from element `at` on as float32. */
INLINE __m256 load8(dm_DType t, const char *src, int64_t at) {
  if (t == DM_F32) return _mm256_loadu_ps((const float *)(const void *)src + at);
  return widen(t, _mm_loadu_si128((const __m128i *)(const void *)(src + 2 * at)));
}

/* Six elements, reading no more. */
INLINE __m256 load6(dm_DType t, const char *src, int64_t at) {
  if (t == DM_F32) {
    const float *p = (const float *)(const void *)src + at;
    const __m128i high = _mm_loadl_epi64((const __m128i *)(const void *)(p + 4));
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_castsi128_ps(high),
                                1);
  }
  const char *p = src + 2 * at;
  int32_t tail;
  memcpy(&tail, p + 8, 4);
  const __m128i low = _mm_loadl_epi64((const __m128i *)(const void *)p);
  return widen(t, _mm_insert_epi32(low, tail, 2));
}

/* The first six lanes; a panel of A is six wide and the next k follows at once. */
INLINE void store6(float *dst, __m256 v) {
  _mm_storeu_ps(dst, _mm256_castps256_ps128(v));
  _mm_storel_pi((__m64 *)(void *)(dst + 4), _mm256_extractf128_ps(v, 1));
}

/* Rows become columns in three steps: pairs, fours, halves of registers. */
INLINE void transpose8(__m256 r[8]) {
  __m256 t[8], u[8];
  for (int i = 0; i < 4; i++) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 2; i++) {
    u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
  for (int i = 0; i < 4; i++) {
    r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

/* Lanes side by side in memory: rows are copied. */
INLINE void pack_rows(dm_DType t, const char *src, int64_t ks, int64_t k, int width,
                      float *dst) {
  for (int64_t p = 0; p < k; p++) {
    if (width == MR) {
      store6(dst + p * MR, load6(t, src, p * ks));
    } else {
      _mm256_storeu_ps(dst + p * 16, load8(t, src, p * ks));
      _mm256_storeu_ps(dst + p * 16 + 8, load8(t, src, p * ks + 8));
    }
  }
}

/* k side by side in memory: 8 x 8 blocks are transposed. Returns how many k
   it did; the rest is less than a block. */
INLINE int64_t pack_columns(dm_DType t, const char *src, int64_t ls, int n_lane, int64_t k,
                            int width, float *dst) {
  int64_t p = 0;
  for (; p + 8 <= k; p += 8)
    for (int l0 = 0; l0 < n_lane; l0 += 8) {
      __m256 r[8];
      for (int l = 0; l < 8; l++)
        r[l] = l0 + l < n_lane ? load8(t, src, (l0 + l) * ls + p) : _mm256_setzero_ps();
      transpose8(r);
      for (int q = 0; q < 8; q++) {
        if (width == MR) store6(dst + (p + q) * MR, r[q]);
        else _mm256_storeu_ps(dst + (p + q) * 16 + l0, r[q]);
      }
    }
  return p;
}

/* One panel or strip of a dtype that is a constant here, by rows, by 8 x 8 blocks,
   or, for what is left over and for rare strides, by the plain loop. */
INLINE void pack_typed(dm_DType t, const char *src, int64_t ls, int64_t ks, int n_lane,
                       int64_t k, int width, float *dst) {
  int64_t done = 0;
  if (ls == 1 && n_lane == width) {
    pack_rows(t, src, ks, k, width, dst);
    return;
  }
  if (ks == 1) {
    if (n_lane == MR && width == MR) done = pack_columns(t, src, ls, MR, k, MR, dst);
    else if (n_lane == 16) done = pack_columns(t, src, ls, 16, k, 16, dst);
    else done = pack_columns(t, src, ls, n_lane, k, width, dst);
  }
  const int64_t es = t == DM_F32 ? 4 : 2;
  if (done < k)
    dm_pack_f32(t, src + done * ks * es, ls, ks, n_lane, k - done, width, dst + done * width);
}

/* The dtype is tested once per panel: each case inlines pack_typed for its own
   constant. */
static void pack_f32(dm_DType t, const void *src, int64_t ls, int64_t ks, int n_lane, int64_t k,
                     int width, void *dst) {
  if (width == MR || width == 16) {
    switch (t) {
    case DM_F32: pack_typed(DM_F32, src, ls, ks, n_lane, k, width, dst); return;
    case DM_F16: pack_typed(DM_F16, src, ls, ks, n_lane, k, width, dst); return;
    case DM_BF16: pack_typed(DM_BF16, src, ls, ks, n_lane, k, width, dst); return;
    default: break;
    }
  }
  dm_pack_f32(t, src, ls, ks, n_lane, k, width, dst);
}

/* ---- few rows of A ---------------------------------------------------------------- */

typedef __m256 Wide_f32;
typedef float WideAt_f32 __attribute__((vector_size(32), aligned(4), may_alias));
#define WIDE 32
#define LOW LOW_8
#define HIGH HIGH_8
#define MULTIPLY_ADD(s, x, b) _mm256_fmadd_ps(_mm256_set1_ps(x), (b), (s))
#define FEW_PAIRED 0
#define FEW_ITEM float
#define FEW_ITEMS Wide_f32
enum { LANES = WIDE / 4 };
#include "cpu/gemm_turned.inc"
#include "cpu/gemm_few.inc"

/* Eight columns of b in n_lane <= 8, of which the last is repeated: their products with a panel
   (k, m) of a. Squares of 8 x 8 read a line of floats in two loads; two of gemm_turned.inc's by
   turns, which take four, took 1.4 times as long for a weight whose columns are 4 KB apart. */
INLINE void square_columns(int m, int n_lane, int64_t k, const float *a, const float *b,
                           int64_t b_cs, float *c, int64_t c_rs, bool add) {
  __m256 s[DM_FEW_ROWS], r[8];
  float line[8] = {0};
  int64_t p = 0;
  for (int i = 0; i < m; i++) s[i] = _mm256_setzero_ps();
  for (; p + 8 <= k; p += 8, a += 8 * m) {
    for (int l = 0; l < 8; l++) {
      const float *const column = b + dm_min_i64(l, n_lane - 1) * b_cs + p;
      __builtin_prefetch(column + 8 * b_cs, 0, 2);
      r[l] = _mm256_loadu_ps(column);
    }
    transpose8(r);
    for (int q = 0; q < 8; q++)
      for (int i = 0; i < m; i++)
        s[i] = _mm256_fmadd_ps(_mm256_broadcast_ss(a + q * m + i), r[q], s[i]);
  }
  for (; p < k; p++, a += m) {
    for (int l = 0; l < n_lane; l++) line[l] = b[l * b_cs + p];
    const __m256 v = _mm256_loadu_ps(line);
    for (int i = 0; i < m; i++) s[i] = _mm256_fmadd_ps(_mm256_broadcast_ss(a + i), v, s[i]);
  }
  for (int i = 0; i < m; i++, c += c_rs) {
    _mm256_storeu_ps(line, s[i]);
    for (int l = 0; l < n_lane; l++) c[l] = add ? c[l] + line[l] : line[l];
  }
}

static void turned_f32(dm_DType t, int m, int n, int64_t k, const void *a, const void *vb,
                       int64_t b_cs, float *c, int64_t c_rs, bool add) {
  const float *b = vb;
  if (t != DM_F32) {
    turned(t, m, n, k, a, vb, b_cs, c, c_rs, add);
    return;
  }
  for (; n > 0; n -= 8, b += 8 * b_cs, c += 8) {
    const int n_lane = n < 8 ? n : 8;
    switch (m) {
#define ROWS(M) \
  case M: square_columns(M, n_lane, k, a, b, b_cs, c, c_rs, add); break;
      ROWS(1)
      ROWS(2)
      ROWS(3)
      ROWS(4)
      ROWS(5)
      ROWS(6)
#undef ROWS
    default: break;
    }
  }
}

/* ---- gathering floats ---------------------------------------------------------- */

/* Eight lanes in one or two runs: the second starts at lane `cut`, and what
   lies `cut` before it fills the first lanes of its load. */
typedef struct Runs {
  int32_t first, second;
  __m256 take; /* lanes of the second run */
  int n_run;   /* 1, 2, or 0: too broken */
} Runs;

/* Finds one or two runs of neighbours in eight lanes' offsets. */
static Runs find_runs(const int32_t *lane, int n_lane) {
  Runs r = {0};
  if (n_lane < 8) return r;
  int cut = 1;
  while (cut < 8 && lane[cut] == lane[0] + cut) cut++;
  r.first = lane[0];
  r.n_run = cut == 8 ? 1 : 2;
  if (cut == 8) return r;
  for (int l = cut; l < 8; l++)
    if (lane[l] != lane[cut] + l - cut) r.n_run = 0;
  r.second = lane[cut] - cut;
  r.take = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                                                  _mm256_set1_epi32(cut - 1)));
  return r;
}

/* Eight lanes from two overlapping loads; both stay inside what the caller padded. */
INLINE __m256 load_runs(const Runs *r, const float *src) {
  const __m256 first = _mm256_loadu_ps(src + r->first);
  if (r->n_run == 1) return first;
  return _mm256_blendv_ps(first, _mm256_loadu_ps(src + r->second), r->take);
}

/* Positions of a row are neighbours, so eight lanes are one load, or two where a row ends
   among them; anything else is gathered one by one. */
static void gather_f32(const void *vsrc, const int32_t *lane, int n_lane, const int32_t *at,
                       int64_t k, int width, void *vdst) {
  const float *src = vsrc;
  float *dst = vdst;
  const Runs lo = find_runs(lane, n_lane), hi = find_runs(lane + 8, n_lane - 8);
  if (width != 16 || lo.n_run == 0 || hi.n_run == 0) {
    dm_gather_f32(src, lane, n_lane, at, k, width, dst);
  } else if (lo.n_run == 1 && hi.n_run == 1) {
    for (int64_t p = 0; p < k; p++) {
      _mm256_storeu_ps(dst + 16 * p, _mm256_loadu_ps(src + at[p] + lo.first));
      _mm256_storeu_ps(dst + 16 * p + 8, _mm256_loadu_ps(src + at[p] + hi.first));
    }
  } else {
    for (int64_t p = 0; p < k; p++) {
      _mm256_storeu_ps(dst + 16 * p, load_runs(&lo, src + at[p]));
      _mm256_storeu_ps(dst + 16 * p + 8, load_runs(&hi, src + at[p]));
    }
  }
}

/* Runs along k: up to eight at a time are loaded a lane and transposed. */
static void gather_t_f32(const void *vsrc, const int32_t *lane, int n_lane, const int32_t *at,
                         int64_t k, int width, void *vdst) {
  const float *src = vsrc;
  float *dst = vdst;
  if (width != 16 || n_lane < 4) {
    dm_gather_f32(src, lane, n_lane, at, k, width, dst);
    return;
  }
  for (int64_t p = 0; p < k;) {
    int run = 1;
    while (run < 8 && p + run < k && at[p + run] == at[p] + run) run++;
    if (run < 3) {
      dm_gather_f32(src, lane, n_lane, at + p, run, width, dst + p * 16);
      p += run;
      continue;
    }
    for (int l0 = 0; l0 < n_lane; l0 += 8) {
      __m256 r[8];
      for (int l = 0; l < 8; l++)
        r[l] =
            l0 + l < n_lane ? _mm256_loadu_ps(src + lane[l0 + l] + at[p]) : _mm256_setzero_ps();
      transpose8(r);
      for (int q = 0; q < run; q++) _mm256_storeu_ps(dst + (p + q) * 16 + l0, r[q]);
    }
    p += run;
  }
}

/* ---- stencils ------------------------------------------------------------------- */

/* Sixteen outputs at a time in two registers; the last ones under a mask. */
static void stencil_f32(const void *vsrc, const int32_t *at, int64_t k, const void *vw,
                        int64_t w_step, int64_t n, void *vdst, bool add) {
  const float *src = vsrc, *w = vw;
  float *dst = vdst;
  for (int64_t j = 0; j < n; j += 16) {
    const int left = n - j > 16 ? 16 : (int)(n - j);
    const __m256i low = mask_f32(left), high = mask_f32(left - 8);
    __m256 a = _mm256_setzero_ps(), b = _mm256_setzero_ps();
    if (left == 16) {
      for (int64_t p = 0; p < k; p++) {
        const __m256 x = _mm256_broadcast_ss(w + p * w_step);
        a = _mm256_fmadd_ps(x, _mm256_loadu_ps(src + at[p] + j), a);
        b = _mm256_fmadd_ps(x, _mm256_loadu_ps(src + at[p] + j + 8), b);
      }
    } else {
      for (int64_t p = 0; p < k; p++) {
        const __m256 x = _mm256_broadcast_ss(w + p * w_step);
        a = _mm256_fmadd_ps(x, _mm256_maskload_ps(src + at[p] + j, low), a);
        b = _mm256_fmadd_ps(x, _mm256_maskload_ps(src + at[p] + j + 8, high), b);
      }
    }
    if (add) {
      a = _mm256_add_ps(_mm256_maskload_ps(dst + j, low), a);
      b = _mm256_add_ps(_mm256_maskload_ps(dst + j + 8, high), b);
    }
    _mm256_maskstore_ps(dst + j, low, a);
    _mm256_maskstore_ps(dst + j + 8, high, b);
  }
}

#include "cpu/winograd.inc"

static const dm_Kernel avx2_f32 = {.type = DM_F32,
                                   .mr = MR,
                                   .nr = 16,
                                   .tile = tile_f32,
                                   .turned = turned_f32,
                                   .few = few,
                                   .few_low = FEW_LOW,
                                   .few_rows = FEW_ROWS,
                                   .few_nr = FEW_NR,
                                   .pack = pack_f32,
                                   .gather = gather_f32,
                                   .gather_t = gather_t_f32,
                                   .stencil = stencil_f32,
                                   .wino_in = wino_in,
                                   .wino_grad = wino_grad,
                                   .wino_out = wino_out,
                                   .wino4_in = wino4_in,
                                   .wino4_grad = wino4_grad,
                                   .wino4_out = wino4_out};
static const dm_Kernel avx2_f64 = {.type = DM_F64,
                                   .mr = MR,
                                   .nr = 8,
                                   .tile = tile_f64,
                                   .pack = dm_pack_f64,
                                   .gather = dm_gather_f64,
                                   .gather_t = dm_gather_f64,
                                   .stencil = dm_stencil_f64};

const dm_Kernel *dm_kernel_avx2(dm_DType type) {
  return type == DM_F64 ? &avx2_f64 : &avx2_f32;
}
#else
const dm_Kernel *dm_kernel_avx2(dm_DType type) {
  DM_UNUSED(type);
  return NULL;
}
#endif
