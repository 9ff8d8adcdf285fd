/* The loops in 256-bit vectors; loops_avx512.c compiles this file once more. */
#include "cpu/loops/loops.h"

#ifndef NAME
#define NAME dm_loops_avx2
#endif

#ifdef __AVX2__
#include <immintrin.h>

/* The halves of 32-bit products: of each lane of c and k. */
static inline __m256i products(__m256i c, __m256i k, __m256i *low) {
  const __m256i even = _mm256_mul_epu32(c, k);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(c, 32), k);
  *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
  return _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}

/* dm_philox_words: eight counters side by side, in registers. */
static void philox_words(dm_Generator g, uint64_t counter, int64_t n, uint32_t *out) {
  const __m256i m0 = _mm256_set1_epi32((int)0xD2511F53u);
  const __m256i m1 = _mm256_set1_epi32((int)0xCD9E8D57u);
  for (int64_t at = 0; at < n; at += DM_PHILOX_LANES, out += 4 * DM_PHILOX_LANES) {
    uint32_t number[2][DM_PHILOX_LANES], k0 = (uint32_t)g.seed, k1 = (uint32_t)(g.seed >> 32);
    for (int i = 0; i < DM_PHILOX_LANES; i++) {
      const uint64_t v = g.offset + counter + (uint64_t)(at + i);
      number[0][i] = (uint32_t)v;
      number[1][i] = (uint32_t)(v >> 32);
    }
    __m256i c0 = _mm256_loadu_si256((const __m256i *)number[0]), c2 = _mm256_setzero_si256();
    __m256i c1 = _mm256_loadu_si256((const __m256i *)number[1]), c3 = c2;
    for (int round = 0; round < 10; round++) {
      __m256i low0, low1;
      const __m256i high0 = products(c0, m0, &low0), high1 = products(c2, m1, &low1);
      c0 = _mm256_xor_si256(_mm256_xor_si256(high1, c1), _mm256_set1_epi32((int)k0));
      c2 = _mm256_xor_si256(_mm256_xor_si256(high0, c3), _mm256_set1_epi32((int)k1));
      c1 = low1;
      c3 = low0;
      k0 += 0x9E3779B9u; /* golden ratio */
      k1 += 0xBB67AE85u; /* sqrt(3) - 1 */
    }
    /* the four words of a counter side by side */
    const __m256i a = _mm256_unpacklo_epi32(c0, c1), b = _mm256_unpackhi_epi32(c0, c1);
    const __m256i c = _mm256_unpacklo_epi32(c2, c3), d = _mm256_unpackhi_epi32(c2, c3);
    const __m256i r0 = _mm256_unpacklo_epi64(a, c), r1 = _mm256_unpackhi_epi64(a, c);
    const __m256i r2 = _mm256_unpacklo_epi64(b, d), r3 = _mm256_unpackhi_epi64(b, d);
    __m256i *to = (__m256i *)(void *)out;
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(r0, r1, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(r2, r3, 0x20));
    _mm256_storeu_si256(to + 2, _mm256_permute2x128_si256(r0, r1, 0x31));
    _mm256_storeu_si256(to + 3, _mm256_permute2x128_si256(r2, r3, 0x31));
  }
}

#define PHILOX_WORDS philox_words
#define LOOPS static const dm_Loops wide
#include "cpu/loops/loops.inc"

const dm_Loops *NAME(void) { return &wide; }
#else
const dm_Loops *NAME(void) { return NULL; }
#endif
