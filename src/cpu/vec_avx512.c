/* Conversions with AVX512, as those with AVX2; masks take the elements behind the last whole
   vector. A file that includes this one for AVX512-BF16 says NAME. */
#include "cpu/vec_table.h"

#ifndef NAME
#define NAME dm_vec_avx512
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && \
    (!defined(NEEDS_BF16) || defined(__AVX512BF16__))
#include "base/half.h"

#include <immintrin.h>

/* The same distance as in vec_avx2.c, where it was measured. */
enum { VECTOR = 16, CACHE_LINE = 32, PREFETCH = 512 }; /* elements of 16 bits */

/* The mask of the first n lanes, all of them for n >= VECTOR. */
static inline __mmask16 first(int64_t n) {
  return (__mmask16)(n >= VECTOR ? 0xffff : (1u << n) - 1);
}
static inline __m256i load16(const uint16_t *src) {
  return _mm256_loadu_si256((const __m256i *)src);
}

/* The hardware makes signalling NaNs quiet where base/half.h keeps their bits. */
static void f16_to_f32(const uint16_t *src, int64_t n, float *dst) {
  int64_t i = 0;
  for (; i + CACHE_LINE <= n; i += CACHE_LINE) {
    __builtin_prefetch(src + i + PREFETCH);
    const __m512 a = _mm512_cvtph_ps(load16(src + i));
    const __m512 b = _mm512_cvtph_ps(load16(src + i + VECTOR));
    if (DM_LIKELY(_mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) == 0)) {
      _mm512_storeu_ps(dst + i, a);
      _mm512_storeu_ps(dst + i + VECTOR, b);
    } else {
      for (int j = 0; j < CACHE_LINE; j++) dst[i + j] = dm_f16_to_f32(src[i + j]);
    }
  }
  for (; i < n; i += VECTOR) {
    const __mmask16 m = first(n - i);
    const __m512 v = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, src + i));
    if (DM_LIKELY(_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q) == 0)) {
      _mm512_mask_storeu_ps(dst + i, m, v);
    } else {
      for (int j = 0; j < VECTOR && i + j < n; j++) dst[i + j] = dm_f16_to_f32(src[i + j]);
    }
  }
}

/* bfloat16 is the upper half of a float32, so widening is a shift. */
static inline __m512i widen_bf16(__m256i h) {
  return _mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16);
}

static void bf16_to_f32(const uint16_t *src, int64_t n, float *dst) {
  int64_t i = 0;
  for (; i + CACHE_LINE <= n; i += CACHE_LINE) {
    __builtin_prefetch(src + i + PREFETCH);
    _mm512_storeu_si512(dst + i, widen_bf16(load16(src + i)));
    _mm512_storeu_si512(dst + i + VECTOR, widen_bf16(load16(src + i + VECTOR)));
  }
  for (; i < n; i += VECTOR) {
    const __mmask16 m = first(n - i);
    const __m512i v = widen_bf16(_mm256_maskz_loadu_epi16(m, src + i));
    _mm512_mask_storeu_epi32(dst + i, m, v);
  }
}

static void f32_to_f16(const float *src, int64_t n, uint16_t *dst) {
  int64_t i = 0;
  for (; i + VECTOR <= n; i += VECTOR)
    _mm256_storeu_si256((__m256i *)(dst + i),
                        _mm512_cvtps_ph(_mm512_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT));
  if (i == n) return;
  const __mmask16 m = first(n - i);
  _mm256_mask_storeu_epi16(
      dst + i, m,
      _mm512_cvtps_ph(_mm512_maskz_loadu_ps(m, src + i), _MM_FROUND_TO_NEAREST_INT));
}

/* The processor's own rounding takes subnormal numbers for 0. */
static inline __m256i narrow_bf16(__m512i u) {
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff));
  const __m512 f = _mm512_castsi512_ps(u);
  const __mmask16 nan = _mm512_cmp_ps_mask(f, f, _CMP_UNORD_Q);
  const __m512i all = _mm512_mask_or_epi32(_mm512_add_epi32(half, odd), nan, u,
                                           _mm512_set1_epi32(0x400000)); /* quiet */
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(all, 16));
}

/* Two vectors by the processor's own rounding, where none of their numbers is subnormal. */
static inline bool narrow_line(const float *src, uint16_t *dst) {
#ifdef __AVX512BF16__
  enum { SUBNORMAL = 0x20 }; /* of vfpclassps */
  const __m512 a = _mm512_loadu_ps(src), b = _mm512_loadu_ps(src + VECTOR);
  _mm512_storeu_si512(dst, (__m512i)_mm512_cvtne2ps_pbh(b, a));
  return DM_LIKELY(
      (_mm512_fpclass_ps_mask(a, SUBNORMAL) | _mm512_fpclass_ps_mask(b, SUBNORMAL)) == 0);
#else
  DM_UNUSED(src), DM_UNUSED(dst);
  return false;
#endif
}

static void f32_to_bf16(const float *src, int64_t n, uint16_t *dst) {
  int64_t i = 0;
  for (; i + CACHE_LINE <= n; i += CACHE_LINE)
    if (!narrow_line(src + i, dst + i))
      for (int j = 0; j < CACHE_LINE; j += VECTOR)
        _mm256_storeu_si256((__m256i *)(dst + i + j),
                            narrow_bf16(_mm512_loadu_si512(src + i + j)));
  for (; i + VECTOR <= n; i += VECTOR)
    _mm256_storeu_si256((__m256i *)(dst + i), narrow_bf16(_mm512_loadu_si512(src + i)));
  if (i == n) return;
  const __mmask16 m = first(n - i);
  _mm256_mask_storeu_epi16(dst + i, m, narrow_bf16(_mm512_maskz_loadu_epi32(m, src + i)));
}

DM_LOW_DTYPES(DM_VEC_ROWS, )
DM_VEC_BOOLS
static const dm_VecTable avx512 = {DM_LOW_DTYPES(DM_VEC_ENTRY, ) DM_VEC_BOOL_ENTRIES};

const dm_VecTable *NAME(void) { return &avx512; }
#else
const dm_VecTable *NAME(void) { return NULL; }
#endif
