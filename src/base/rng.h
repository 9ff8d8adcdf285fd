/* Philox 4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as
   1, 2, 3"): counter based, so that element i of a draw is the same whatever
   the device or the number of threads. C and CUDA.

   The seed is a key of two words, the counter a block of four (here the upper two are 0). A
   round multiplies two of the words by constants to 64 bits, crosses the four halves over and
   XORs the high ones with the neighbouring words and the key; the key then moves on by
   constants (a Weyl sequence). After ten rounds the block is four random words: they pass
   TestU01's BigCrush, and PyTorch and cuRAND draw from the same function. */
#ifndef DM_RNG_H
#define DM_RNG_H

#include <math.h>

#include "base/base.h"
#include "base/dtype.h"
#include "base/half.h"

typedef struct dm_Philox {
  uint32_t v[4];
} dm_Philox;

/* The four words of one counter; `attempt` is its third word, for draws that take an unknown
   number of blocks a counter. */
static inline DM_HD dm_Philox dm_philox_again(uint64_t seed, uint64_t counter,
                                              uint32_t attempt) {
  uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = attempt, c3 = 0;
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < 10; round++) {
    const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)p1;
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)p0;
    k0 += 0x9E3779B9u; /* golden ratio */
    k1 += 0xBB67AE85u; /* sqrt(3) - 1 */
  }
  const dm_Philox words = {{c0, c1, c2, c3}};
  return words;
}
static inline DM_HD dm_Philox dm_philox(uint64_t seed, uint64_t counter) {
  return dm_philox_again(seed, counter, 0);
}

/* [0, 1) with 24 bits; and with 53 bits from two words. */
static inline DM_HD float dm_uniform_f32(uint32_t u) {
  return (float)(u >> 8) * 5.9604644775390625e-08f; /* 2^-24 */
}
static inline DM_HD double dm_uniform_f64(uint32_t hi, uint32_t lo) {
  const uint64_t u = ((uint64_t)hi << 32 | lo) >> 11;
  return (double)u * 1.1102230246251565e-16; /* 2^-53 */
}

/* The bits of such a float32 that a dtype keeps: rounding would make 1 of the largest. */
static inline DM_HD uint32_t dm_uniform_bits(int dtype) {
#define CUT(X, E, S, BITS, NAME, METHOD, RANK, NPY, ST, AT, DIGITS, ...) \
  if (dtype == DM_##E) return ~0u << (23 - DIGITS);
  DM_LOW_DTYPES(CUT, )
#undef CUT
  return ~0u;
}
static inline DM_HD float dm_uniform_cut(float u, uint32_t bits) {
  return dm_bits_to_f32(dm_f32_to_bits(u) & bits);
}

/* A generator is a seed and the number of the next unused counter. */
typedef struct dm_Generator {
  uint64_t seed, offset;
} dm_Generator;

enum { DM_PHILOX_LANES = 8 };

/* The words of n counters from g.offset + counter on, four each; n is rounded up
   to DM_PHILOX_LANES. dm_philox's arithmetic, with word k of
   DM_PHILOX_LANES counters side by side, so that a vector unit computes them together. */
static inline void dm_philox_words(dm_Generator g, uint64_t counter, int64_t n, uint32_t *out) {
  for (int64_t at = 0; at < n; at += DM_PHILOX_LANES) {
    uint32_t c[4][DM_PHILOX_LANES], k0 = (uint32_t)g.seed, k1 = (uint32_t)(g.seed >> 32);
    for (int i = 0; i < DM_PHILOX_LANES; i++) {
      const uint64_t number = g.offset + counter + (uint64_t)(at + i);
      c[0][i] = (uint32_t)number;
      c[1][i] = (uint32_t)(number >> 32);
      c[2][i] = c[3][i] = 0;
    }
    for (int round = 0; round < 10; round++) {
      DM_KEEP_LOOP for (int i = 0; i < DM_PHILOX_LANES; i++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c[0][i];
        const uint64_t p1 = (uint64_t)0xCD9E8D57u * c[2][i];
        c[0][i] = (uint32_t)(p1 >> 32) ^ c[1][i] ^ k0;
        c[1][i] = (uint32_t)p1;
        c[2][i] = (uint32_t)(p0 >> 32) ^ c[3][i] ^ k1;
        c[3][i] = (uint32_t)p0;
      }
      k0 += 0x9E3779B9u; /* golden ratio */
      k1 += 0xBB67AE85u; /* sqrt(3) - 1 */
    }
    for (int i = 0; i < DM_PHILOX_LANES; i++)
      for (int k = 0; k < 4; k++) out[4 * (at + i) + k] = c[k][i];
  }
}

/* The next word of a small sequential generator, which makes seeds out of other seeds:
   splitmix64, G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom
   number generators", OOPSLA 2014. */
static inline uint64_t dm_splitmix64(uint64_t *state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15u; /* 2^64 / golden ratio, odd */
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

#endif
