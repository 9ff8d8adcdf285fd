/* Two normal numbers of two random words (Box & Muller 1958) in float32, C and CUDA.

   r = sqrt(-2 log(1 - u)) is the radius and 2 pi t the angle of a point whose coordinates are
   normal and independent; u and t are 24 bits of a word each. The arithmetic is straight-line,
   so that a compiler makes vector code of a loop around it, and every product and sum of it is
   rounded by itself: one seed gives the same bits in C, in vectors of any width and on CUDA.
   The polynomials were fitted here: log to a relative error of 3e-8, sin and cos of an eighth
   of a turn to 4e-8. A number errs by 3e-7 of its radius at most, which spec/cpu_check.c
   checks. */
#ifndef DM_NORMAL_H
#define DM_NORMAL_H

#include <math.h>

#include "base/half.h"

/* a b + c in two roundings; the compiler of CUDA fuses others. */
#ifdef __CUDA_ARCH__
#define DM_UNFUSED(a, b, c) __fadd_rn(__fmul_rn(a, b), c)
#else
#define DM_UNFUSED(a, b, c) ((a) * (b) + (c))
#endif

/* log v of a normal v > 0 as k log 2 + log(1 + f), sqrt(1/2) <= 1 + f < sqrt(2); log 2 in two
   parts, of which the first has few bits, so that its product with k is exact. */
static inline DM_HD float dm_unfused_log(float v) {
  const uint32_t bits = dm_f32_to_bits(v);
  const int32_t k = (int32_t)(bits - 0x3f3504f3u /* sqrt(1/2) */) >> 23;
  const float f = dm_bits_to_f32(bits - ((uint32_t)k << 23)) - 1.0f, n = (float)k;
  float p = 0.0873489678f;
  p = DM_UNFUSED(p, f, -0.143076137f);
  p = DM_UNFUSED(p, f, 0.14917995f);
  p = DM_UNFUSED(p, f, -0.16570498f);
  p = DM_UNFUSED(p, f, 0.199620694f);
  p = DM_UNFUSED(p, f, -0.250017554f);
  p = DM_UNFUSED(p, f, 0.333339512f);
  p = DM_UNFUSED(p, f, -0.499999911f);
  const float rest = DM_UNFUSED(n, -2.12194440e-4f, p * (f * f));
  return DM_UNFUSED(n, 0.693359375f, f + rest);
}

/* sin and cos of pi/2 x, |x| <= 1/2. */
static inline DM_HD float dm_unfused_sin(float x) {
  const float s = x * x;
  float p = -0.00460165506f;
  p = DM_UNFUSED(p, s, 0.079680033f);
  p = DM_UNFUSED(p, s, -0.64596343f);
  p = DM_UNFUSED(p, s, 1.57079637f);
  return p * x;
}
static inline DM_HD float dm_unfused_cos(float x) {
  const float s = x * x;
  float p = -0.0204172675f;
  p = DM_UNFUSED(p, s, 0.25360322f);
  p = DM_UNFUSED(p, s, -1.23369765f);
  return DM_UNFUSED(p, s, 1.0f);
}

/* The angle is n quarter turns and the part x of one, both exact: n says which of the two
   functions of x is the sine, and the signs. 1 - u is exact, and never 0. */
static inline DM_HD void dm_normal_f32(uint32_t w0, uint32_t w1, float *v0, float *v1) {
  const float rest = (float)((1 << 24) - (int32_t)(w0 >> 8)) * 5.9604644775390625e-08f;
  const int32_t t = (int32_t)(w1 >> 8), n = (t + (1 << 21)) >> 22;
  const float x = (float)(t - (n << 22)) * 2.384185791015625e-07f; /* 2^-22 */
  const float r = sqrtf(-2.0f * dm_unfused_log(rest));
  const float s = dm_unfused_sin(x), c = dm_unfused_cos(x);
  const uint32_t flip = (uint32_t)(n + 1) << 30 & 0x80000000u; /* where n is 1 or 2 */
  *v0 = r * dm_bits_to_f32(dm_f32_to_bits(n & 1 ? s : c) ^ flip);
  *v1 = r * dm_bits_to_f32(dm_f32_to_bits(n & 1 ? c : s) ^ ((uint32_t)n << 30 & 0x80000000u));
}

#endif
