/* The register kernel for processors that multiply bfloat16 (AVX512-BF16): 12 x 32 sums in
   float32. One instruction (vdpbf16ps) adds two products to each sum, so a product of
   bfloat16 matrices takes half the steps of float32 and reads half the bytes.

   A panel holds pairs: the element at depth 2p in the low half of a 32-bit item, the one at
   2p + 1 in the high half. An odd depth ends with a pair whose high half is 0. The two
   products are rounded one after the other, the one of the high half first, and subnormal
   operands count as 0: results differ from the float32 kernels in the last bits, but not from
   one processor with the instruction to the next. The checks compile this file with
   DM_EMULATE, in float32 arithmetic, for processors without the instruction. */
#include "cpu/gemm_kernel.h"
#include "cpu/transpose.h"

#include <string.h>

#if defined(__AVX512BF16__) || defined(DM_EMULATE)
#if defined(DM_EMULATE)
#include "base/half.h"
#else
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define WIDE 64
#define MR 12
#define N_VEC 2
enum { NR = N_VEC * WIDE / 4 };

#define REAL float
#define ITEM uint32_t
#define N(name) name##_pairs
typedef float N(Wide) __attribute__((vector_size(WIDE)));
typedef float N(Narrow) __attribute__((vector_size(16)));
typedef int32_t N(WideItems) __attribute__((vector_size(WIDE)));
typedef int32_t N(NarrowItems) __attribute__((vector_size(16)));

#if defined(DM_EMULATE)
INLINE float low(uint32_t x) { return dm_bits_to_f32(x << 16); }
INLINE float high(uint32_t x) { return dm_bits_to_f32(x & 0xffff0000u); }
#define DEFINE_FMA(NAME, VEC, ITEMS)            \
  INLINE VEC NAME(VEC s, uint32_t x, ITEMS b) { \
    s += high(x) * (VEC)(b & ~0xffff);          \
    return s + low(x) * (VEC)(b << 16);         \
  }
DEFINE_FMA(N(fma_wide), N(Wide), N(WideItems))
DEFINE_FMA(N(fma_narrow), N(Narrow), N(NarrowItems))
#undef DEFINE_FMA
#else
INLINE N(Wide) N(fma_wide)(N(Wide) s, uint32_t x, N(WideItems) b) {
  return (N(Wide))_mm512_dpbf16_ps((__m512)s, (__m512bh)_mm512_set1_epi32((int)x), (__m512bh)b);
}
INLINE N(Narrow) N(fma_narrow)(N(Narrow) s, uint32_t x, N(NarrowItems) b) {
  return (N(Narrow))_mm_dpbf16_ps((__m128)s, (__m128bh)_mm_set1_epi32((int)x), (__m128bh)b);
}
#endif
INLINE float N(fma_one)(float s, uint32_t x, uint32_t b) {
  return N(fma_narrow)((N(Narrow)){s}, x, (N(NarrowItems)){(int32_t)b})[0];
}
#include "cpu/gemm_tile.inc"

/* ---- few rows of A ---------------------------------------------------------------- */

typedef N(Wide) Wide_f32;
typedef N(WideAt) WideAt_f32;
enum { LANES = WIDE / 4 };
#define LOW LOW_16
#define HIGH HIGH_16
#define MULTIPLY_ADD(s, x, b) N(fma_wide)((s), (x), (b))
#define FEW_PAIRED 1
#define FEW_ITEM uint32_t
#define FEW_ITEMS N(WideItems)
#include "cpu/gemm_turned.inc"
#include "cpu/gemm_few.inc"

/* ---- packing ---------------------------------------------------------------------- */

/* Lanes side by side: two rows are interleaved. */
INLINE void pack_rows(const uint16_t *src, int64_t ks, int n_lane, int64_t n_pair, int width,
                      uint32_t *dst) {
  for (int64_t p = 0; p < n_pair; p++, src += 2 * ks, dst += width)
    for (int l = 0; l < n_lane; l++) dst[l] = src[l] | (uint32_t)src[ks + l] << 16;
}

/* Pairs that lie as they are packed are floats to that kernel's packing, of which none
   counts; an odd depth ends with a pair whose high half is 0. */
static void pack_pairs(dm_DType t, const void *vsrc, int64_t ls, int64_t ks, int n_lane,
                       int64_t k, int width, void *vdst) {
  const uint16_t *const src = vsrc;
  uint32_t *const dst = vdst;
  const int64_t n_pair = k / 2;
  DM_UNUSED(t); /* bfloat16 */
  if (ls == 1 && n_lane == MR && width == MR) pack_rows(src, ks, MR, n_pair, MR, dst);
  else if (ls == 1 && n_lane == NR && width == NR) pack_rows(src, ks, NR, n_pair, NR, dst);
  else if (ls == 1) pack_rows(src, ks, n_lane, n_pair, width, dst);
  else if (ks == 1 && ls % 2 == 0 && (uintptr_t)src % sizeof(float) == 0)
    dm_kernel_avx512(DM_F32)->pack(DM_F32, src, ls / 2, 1, n_lane, n_pair, width, dst);
  else
    for (int64_t p = 0; p < n_pair; p++)
      for (int l = 0; l < n_lane; l++) {
        const uint16_t *const at = src + l * ls + 2 * p * ks;
        dst[p * width + l] = at[0] | (uint32_t)at[ks] << 16;
      }
  for (int l = 0; k % 2 && l < n_lane; l++)
    dst[n_pair * width + l] = src[l * ls + (k - 1) * ks];
}

/* A row of pairs takes the place of the first of the two rows it is made of, or of one
   before: what is yet to be read lies behind. */
#define DEFINE_JOIN(NAME, VEC)                                                             \
  static void NAME(int64_t k, int width, uint32_t *at) {                                   \
    typedef uint32_t VEC __attribute__((vector_size(sizeof(N(VEC))), aligned(4)));         \
    const int lanes = sizeof(VEC) / sizeof *at;                                            \
    for (int64_t p = 0; p < k / 2; p++)                                                    \
      for (int l = 0; l < width; l += lanes) {                                             \
        const uint32_t *const from = at + 2 * p * width + l;                               \
        const VEC first = *(const VEC *)(const void *)from;                                \
        const VEC second = *(const VEC *)(const void *)(from + width);                     \
        *(VEC *)(void *)(at + p * width + l) = first >> 16 | (second & ~UINT32_C(0xffff)); \
      }                                                                                    \
    for (int l = 0; k % 2 && l < width; l++)                                               \
      at[k / 2 * width + l] = at[(k - 1) * width + l] >> 16;                               \
  }
DEFINE_JOIN(join_wide, Wide)
DEFINE_JOIN(join_narrow, Narrow)
#undef DEFINE_JOIN

static void join_pairs(int64_t k, int width, void *panel) {
  if (width == NR) join_wide(k, NR, panel);
  else join_narrow(k, MR, panel);
}

/* ---- gathering ---------------------------------------------------------------------- */

/* COUNT lanes that lie in one or two runs: dst[p * width + l] is the pair of the numbers at
   at[2p] and at[2p + 1] from lane[l]. The second run begins at lane `cut`, and what lies `cut`
   before it fills the first lanes of its load. False, and nothing is written, where the lanes
   lie in more runs. */
#define DEFINE_GATHER(COUNT, NAME)                                                          \
  static bool NAME(const uint16_t *src, const int32_t *lane, const int32_t *at, int64_t k,  \
                   int width, uint32_t *dst) {                                              \
    typedef uint16_t Numbers __attribute__((vector_size(2 * COUNT)));                       \
    typedef Numbers NumbersAt __attribute__((aligned(2), may_alias));                       \
    typedef uint32_t Pairs __attribute__((vector_size(4 * COUNT)));                         \
    typedef Pairs PairsAt __attribute__((aligned(4), may_alias));                           \
    int cut = 1;                                                                            \
    while (cut < COUNT && lane[cut] == lane[0] + cut) cut++;                                \
    const uint16_t *const first = src + lane[0];                                            \
    const uint16_t *const second = cut < COUNT ? src + lane[cut] - cut : first;             \
    Numbers take = {0}; /* lanes of the second run */                                       \
    for (int l = cut; l < COUNT; l++) {                                                     \
      if (src + lane[l] != second + l) return false;                                        \
      take[l] = UINT16_MAX;                                                                 \
    }                                                                                       \
    for (int64_t p = 0; p < k; p += 2, dst += width) {                                      \
      Numbers low = *(const NumbersAt *)(const void *)(first + at[p]), high = {0};          \
      if (p + 1 < k) high = *(const NumbersAt *)(const void *)(first + at[p + 1]);          \
      if (cut < COUNT) low = (low & ~take) | (*(const NumbersAt *)(second + at[p]) & take); \
      if (cut < COUNT && p + 1 < k)                                                         \
        high = (high & ~take) | (*(const NumbersAt *)(second + at[p + 1]) & take);          \
      *(PairsAt *)(void *)dst =                                                             \
          __builtin_convertvector(low, Pairs) | __builtin_convertvector(high, Pairs) << 16; \
    }                                                                                       \
    return true;                                                                            \
  }
DEFINE_GATHER(16, gather_16)
DEFINE_GATHER(8, gather_8)
DEFINE_GATHER(4, gather_4)
#undef DEFINE_GATHER

static void gather_one(const uint16_t *src, const int32_t *at, int64_t k, int width,
                       uint32_t *dst) {
  for (int64_t p = 0; p < k; p += 2, dst += width)
    *dst = src[at[p]] | (p + 1 < k ? (uint32_t)src[at[p + 1]] << 16 : 0);
}

static void gather_pairs(const void *src, const int32_t *lane, int n_lane, const int32_t *at,
                         int64_t k, int width, void *vdst) {
  uint32_t *const dst = vdst;
  for (int l = 0; l < n_lane;) {
    const int left = n_lane - l;
    if (left >= 16 && gather_16(src, lane + l, at, k, width, dst + l)) l += 16;
    else if (left >= 8 && gather_8(src, lane + l, at, k, width, dst + l)) l += 8;
    else if (left >= 4 && gather_4(src, lane + l, at, k, width, dst + l)) l += 4;
    else {
      gather_one((const uint16_t *)src + lane[l], at, k, width, dst + l);
      l++;
    }
  }
}

/* Where k lies in runs, pairs are what lies side by side: those of each lane are copied, then
   turned. A pair of two runs, or the last one of an odd k, is gathered by itself. */
static void gather_t_pairs(const void *vsrc, const int32_t *lane, int n_lane, const int32_t *at,
                           int64_t k, int width, void *vdst) {
  enum { RUN = 64, MOST = 32 };
  const uint16_t *const src = vsrc;
  uint32_t *const dst = vdst, rows[MOST][RUN / 2];
  for (int64_t p = 0; p < k;) {
    int64_t run = 1;
    while (run < RUN && p + run < k && at[p + run] == at[p] + run) run++;
    const int64_t n = run / 2;
    for (int l = 0; l < n_lane; l++) {
      const uint16_t *const from = src + lane[l];
      if (n > 0) memcpy(rows[l], from + at[p], (size_t)n * sizeof *dst);
      else gather_one(from, at + p, dm_min_i64(2, k - p), width, dst + p / 2 * width + l);
    }
    if (n > 0)
      dm_kernel_avx512(DM_F32)->pack(DM_F32, rows, RUN / 2, 1, n_lane, n, width,
                                     dst + p / 2 * width);
    p += n > 0 ? 2 * n : 2;
  }
}

static const dm_Kernel pairs = {.type = DM_F32,
                                .pairs = true,
                                .mr = MR,
                                .nr = NR,
                                .tile = tile_pairs,
                                .turned = turned,
                                .few = few,
                                .few_rows = FEW_ROWS,
                                .few_nr = FEW_NR,
                                .pack = pack_pairs,
                                .gather = gather_pairs,
                                .gather_t = gather_t_pairs,
                                .join = join_pairs};
const dm_Kernel *dm_kernel_avx512bf16(void) { return &pairs; }
#else
const dm_Kernel *dm_kernel_avx512bf16(void) { return NULL; }
#endif
