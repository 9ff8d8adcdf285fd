/* float16 and bfloat16 to and from float32, one element at a time: round to
   nearest, ties to even; subnormals kept; NaN stays NaN. C and CUDA.
   The vector forms of src/cpu give the same bits.

   Rounding is integer arithmetic on float32's bits. Where k low bits are cut off, half of the
   last kept bit, less one, plus that bit itself is added first: the carry rounds up above a
   tie, and at a tie only where the kept bit is odd. It runs on into the exponent where the
   mantissa is full, which is the next power of 2, or infinity, as it should be.
   bfloat16 is float32's upper half. float16 has its exponent biased by 15 instead of 127, so
   112 << 23 (0x38000000) is subtracted; its subnormals are rounded by float32's adder, whose
   last bit is 2^-24 at 0.5 (F. Giesen 2012, "Half to float done quick"). */
#ifndef DM_HALF_H
#define DM_HALF_H

#include <string.h>

#include "base/base.h"

/* By memcpy, which C and CUDA compile to a move: a union or a cast would break their rules. */
static inline DM_HD float dm_bits_to_f32(uint32_t u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}
static inline DM_HD uint32_t dm_f32_to_bits(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}

static inline DM_HD float dm_bf16_to_f32(uint16_t h) {
  return dm_bits_to_f32((uint32_t)h << 16);
}

/* 0x40 keeps a NaN whose payload is cut off a NaN, and makes it quiet. */
static inline DM_HD uint16_t dm_f32_to_bf16(float f) {
  const uint32_t u = dm_f32_to_bits(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
  return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* Exact: every float16 is a float32. */
static inline DM_HD float dm_f16_to_f32(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
  const uint32_t expo = (h >> 10) & 0x1fu, mant = h & 0x3ffu;
  if (expo == 31) return dm_bits_to_f32(sign | 0x7f800000u | (mant << 13));
  if (expo != 0) return dm_bits_to_f32(sign | ((expo + 112) << 23) | (mant << 13));
  /* zero or subnormal: mant * 2^-24, exact in float32 */
  const float v = (float)mant * 5.9604644775390625e-08f; /* 2^-24 */
  return dm_bits_to_f32(sign | dm_f32_to_bits(v));
}

/* From 65520 on, half a step beyond the largest float16, the result is infinity. */
static inline DM_HD uint16_t dm_f32_to_f16(float f) {
  const uint32_t u = dm_f32_to_bits(f);
  const uint16_t sign = (uint16_t)((u >> 16) & 0x8000u);
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((a >> 13) & 0x1ffu));
  if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* >= 65520 */
  if (a < 0x38800000u) { /* below 2^-14: subnormal; adding 0.5 rounds at 2^-24 */
    const float r = dm_bits_to_f32(a) + 0.5f;
    return (uint16_t)(sign | (dm_f32_to_bits(r) - 0x3f000000u));
  }
  const uint32_t odd = (a >> 13) & 1u;
  return (uint16_t)(sign | ((a - 0x38000000u + 0xfffu + odd) >> 13));
}

#endif
