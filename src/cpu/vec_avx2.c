/* Conversions with AVX2 and F16C. The hardware makes signalling NaNs quiet
   where base/half.h keeps their bits; such blocks go one by one. */
#include "cpu/vec_table.h"

#if defined(__AVX2__) && defined(__F16C__)
#include "base/half.h"

#include <immintrin.h>

/* Ends a loop whose n elements are no whole number of vectors: the last vector reaches back
   over elements that are done already, which it writes again with equal values. Rows of small
   planes are such. */
#define REST(EIGHT, FOUR, ONE)               \
  if (i == n) return;                        \
  if (n >= 8) {                              \
    EIGHT(src + n - 8, dst + n - 8);         \
  } else if (n >= 4) {                       \
    FOUR(src, dst);                          \
    FOUR(src + n - 4, dst + n - 4);          \
  } else {                                   \
    for (; i < n; i++) dst[i] = ONE(src[i]); \
  }

/* A caller that works block by block would wait for the next block's first lines from L3:
   they are prefetched while this one is widened, at the distance of a block of
   op/pointwise.h; distances of 256 to 2048 elements differ little. Norms' gradients take 0.75
   of the time without. */
enum { CACHE_LINE = 32, PREFETCH = 512 }; /* elements of 16 bits */

/* Eight float16, one by one where a NaN is among them. */
static inline void widen8_f16(const uint16_t *src, float *dst) {
  const __m256 v = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)src));
  if (DM_LIKELY(_mm256_testz_ps(_mm256_cmp_ps(v, v, _CMP_UNORD_Q),
                                _mm256_cmp_ps(v, v, _CMP_UNORD_Q)))) {
    _mm256_storeu_ps(dst, v);
  } else {
    for (int j = 0; j < 8; j++) dst[j] = dm_f16_to_f32(src[j]);
  }
}

/* One float16; infinities and NaN, whose exponent bits are all 1, take the C function. */
static inline float widen1_f16(uint16_t h) {
  return DM_LIKELY((h & 0x7c00) != 0x7c00) ? _cvtsh_ss(h) : dm_f16_to_f32(h);
}
static inline void widen4_f16(const uint16_t *src, float *dst) {
  const __m128 v = _mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)src));
  if (DM_LIKELY(_mm_movemask_ps(_mm_cmpunord_ps(v, v)) == 0)) {
    _mm_storeu_ps(dst, v);
  } else {
    for (int j = 0; j < 4; j++) dst[j] = dm_f16_to_f32(src[j]);
  }
}

/* A cache line: one look for NaNs serves its four vectors. */
static inline void widen32_f16(const uint16_t *src, float *dst) {
  __m256 v[4];
  for (int j = 0; j < 4; j++)
    v[j] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(src + 8 * j)));
  const __m256 nan = _mm256_or_ps(_mm256_cmp_ps(v[0], v[1], _CMP_UNORD_Q),
                                  _mm256_cmp_ps(v[2], v[3], _CMP_UNORD_Q));
  if (DM_LIKELY(_mm256_movemask_ps(nan) == 0)) {
    for (int j = 0; j < 4; j++) _mm256_storeu_ps(dst + 8 * j, v[j]);
  } else {
    for (int j = 0; j < CACHE_LINE; j++) dst[j] = dm_f16_to_f32(src[j]);
  }
}

static void f16_to_f32(const uint16_t *src, int64_t n, float *dst) {
  int64_t i = 0;
  for (; i + CACHE_LINE <= n; i += CACHE_LINE) {
    __builtin_prefetch(src + i + PREFETCH);
    widen32_f16(src + i, dst + i);
  }
  for (; i + 8 <= n; i += 8) widen8_f16(src + i, dst + i);
  REST(widen8_f16, widen4_f16, widen1_f16)
}

static inline void narrow8_f16(const float *src, uint16_t *dst) {
  _mm_storeu_si128((__m128i *)dst,
                   _mm256_cvtps_ph(_mm256_loadu_ps(src), _MM_FROUND_TO_NEAREST_INT));
}
static inline void narrow4_f16(const float *src, uint16_t *dst) {
  _mm_storel_epi64((__m128i *)dst, _mm_cvtps_ph(_mm_loadu_ps(src), _MM_FROUND_TO_NEAREST_INT));
}
static inline uint16_t narrow1_f16(float f) {
  return (uint16_t)_cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT);
}

/* Narrows n floats. The rounding mode is part of the instruction, so the mode that the host
   program has set does not matter. */
static void f32_to_f16(const float *src, int64_t n, uint16_t *dst) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) narrow8_f16(src + i, dst + i);
  REST(narrow8_f16, narrow4_f16, narrow1_f16)
}

/* bfloat16 is the upper half of a float32, so widening is a shift. */
static inline void widen8_bf16(const uint16_t *src, float *dst) {
  const __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)src));
  _mm256_storeu_si256((__m256i *)dst, _mm256_slli_epi32(u, 16));
}
static inline void widen4_bf16(const uint16_t *src, float *dst) {
  const __m128i u = _mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)src));
  _mm_storeu_si128((__m128i *)dst, _mm_slli_epi32(u, 16));
}

static void bf16_to_f32(const uint16_t *src, int64_t n, float *dst) {
  int64_t i = 0;
  for (; i + CACHE_LINE <= n; i += CACHE_LINE) {
    __builtin_prefetch(src + i + PREFETCH);
    for (int j = 0; j < CACHE_LINE; j += 8) widen8_bf16(src + i + j, dst + i + j);
  }
  for (; i + 8 <= n; i += 8) widen8_bf16(src + i, dst + i);
  REST(widen8_bf16, widen4_bf16, dm_bf16_to_f32)
}

/* In the low half of each number. */
static inline __m256i round_bf16(__m256i u) {
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i half = _mm256_add_epi32(u, _mm256_set1_epi32(0x7fff));
  return _mm256_srli_epi32(_mm256_add_epi32(half, odd), 16);
}
static inline __m256i quiet_bf16(__m256i u) {
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256 f = _mm256_castsi256_ps(u);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(f, f, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(round_bf16(u), _mm256_srli_epi32(quiet, 16), nan);
}
static inline void narrow16_bf16(const float *src, uint16_t *dst) {
  const __m256 f = _mm256_loadu_ps(src), g = _mm256_loadu_ps(src + 8);
  __m256i a = _mm256_castps_si256(f), b = _mm256_castps_si256(g);
  const bool nan = _mm256_movemask_ps(_mm256_cmp_ps(f, g, _CMP_UNORD_Q)) != 0;
  a = DM_LIKELY(!nan) ? round_bf16(a) : quiet_bf16(a);
  b = DM_LIKELY(!nan) ? round_bf16(b) : quiet_bf16(b);
  /* packus works within 128-bit halves; put the quarters in order */
  const __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
  _mm256_storeu_si256((__m256i *)dst, both);
}
static inline void narrow8_bf16(const float *src, uint16_t *dst) {
  const __m256i a = quiet_bf16(_mm256_loadu_si256((const __m256i *)src));
  _mm_storeu_si128((__m128i *)dst,
                   _mm_packus_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1)));
}
static inline void narrow4_bf16(const float *src, uint16_t *dst) {
  const __m128i u = _mm_loadu_si128((const __m128i *)src);
  const __m128i a = _mm256_castsi256_si128(quiet_bf16(_mm256_castsi128_si256(u)));
  _mm_storel_epi64((__m128i *)dst, _mm_packus_epi32(a, a));
}

static void f32_to_bf16(const float *src, int64_t n, uint16_t *dst) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) narrow16_bf16(src + i, dst + i);
  if (i + 8 <= n) narrow8_bf16(src + i, dst + i), i += 8;
  REST(narrow8_bf16, narrow4_bf16, dm_f32_to_bf16)
}

DM_LOW_DTYPES(DM_VEC_ROWS, )
DM_VEC_BOOLS
static const dm_VecTable avx2 = {DM_LOW_DTYPES(DM_VEC_ENTRY, ) DM_VEC_BOOL_ENTRIES};

const dm_VecTable *dm_vec_avx2(void) { return &avx2; }
#else
const dm_VecTable *dm_vec_avx2(void) { return NULL; }
#endif
