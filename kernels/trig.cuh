/* sin, cos and tan of any float32, in float32 and integers: CUDA's sinf, cosf and tanf use
   float64 for large arguments, which is slow on most GPUs. Errors: sin and cos below 2 ulp,
   tan below 4; spec/emulated_check.cu measures them.

   x is reduced to r in [-pi/4, pi/4] and n quarter turns; n selects the polynomial of sin r or
   cos r and the sign. For |x| up to 1e5 the reduction subtracts n pi/2, with pi/2 in three
   parts, by fused multiply-adds (Cody & Waite 1980). Beyond that it multiplies the mantissa of
   x by those bits of 2/pi that matter, in integers (Payne & Hanek 1983). */
#ifndef DM_TRIG_CUH
#define DM_TRIG_CUH

#include <math.h>

#include "kernels/launch.cuh"

extern "C" {
#include "base/half.h"
}

/* The bits of 2 / pi after the binary point, 32 at a time, after 32 zeros. */
static DM_HD inline uint32_t dm_two_over_pi(int i) {
  switch (i) {
  case 1: return 0xa2f9836eu;
  case 2: return 0x4e441529u;
  case 3: return 0xfc2757d1u;
  case 4: return 0xf534ddc0u;
  case 5: return 0xdb629599u;
  case 6: return 0x3c439041u;
  case 7: return 0xfe5163abu;
  default: return 0;
  }
}

/* Returns r with x = n pi/2 + r and |r| <= pi/4 (up to rounding); only the low two bits of n
   are used. Payne & Hanek 1983: of the product m 2^e times 2/pi it leaves out the bits of 2/pi
   that give multiples of 4 quarter turns, and those that are too small to matter. */
static DM_HD inline float dm_reduce_large(float x, uint32_t *n) {
  const uint32_t bits = dm_f32_to_bits(x), m = (bits & 0x7fffffu) | 0x800000u;
  const int from = (int)(bits >> 23 & 255u) - 150 + 30, i = from >> 5, shift = from & 31;
  uint32_t w[3];
  DM_ROLLED
  for (int k = 0; k < 3; k++) {
    const uint64_t two = (uint64_t)dm_two_over_pi(i + k) << 32 | dm_two_over_pi(i + k + 1);
    w[k] = (uint32_t)(two << shift >> 32);
  }
  const uint64_t low = (uint64_t)m * w[2], mid = (uint64_t)m * w[1] + (low >> 32);
  const uint64_t high = (uint64_t)m * w[0] + (mid >> 32);
  const uint64_t quarters = high << 32 | (uint32_t)mid; /* in 2^-62 */
  const uint64_t part = quarters << 2 | (uint32_t)low >> 30;
  *n = (uint32_t)(quarters >> 62) + (uint32_t)(part >> 63);
  const int64_t whole = (int64_t)part >> 1; /* in 2^-63; as two floats, times pi/2 as two */
  const float a = (float)whole, b = (float)(whole - (int64_t)a);
  const float r = fmaf(a, 0x1.921fb6p-63f, fmaf(a, -0x1.777a5cp-88f, b * 0x1.921fb6p-63f));
  if (x >= 0) return r;
  *n = 0 - *n;
  return -r;
}

/* Returns r and n for any finite x, and NaN for others. */
static DM_HD inline float dm_reduce_pi_2(float x, uint32_t *n) {
  const float size = fabsf(x);
  if (size > 1e5f) {
    *n = 0;
    return size < INFINITY ? dm_reduce_large(x, n) : x - x; /* NaN */
  }
  const float k = rintf(x * 0.636619772f); /* 2/pi */
  *n = (uint32_t)(int)k;
  if (k == 0) return x;                 /* -0 stays */
  float r = fmaf(k, -0x1.921fb6p0f, x); /* pi/2 in three parts */
  r = fmaf(k, 0x1.777a5cp-25f, r);
  return fmaf(k, 0x1.ee59dap-50f, r);
}

/* Minimax polynomials of the relative error on [-pi/4, pi/4]: 4e-9 and 2e-10. */
static DM_HD inline float dm_sin_part(float r) {
  const float s = r * r;
  const float p = fmaf(fmaf(-1.95146315e-4f, s, 8.332156051e-3f), s, -0.1666665454f);
  return fmaf(r * s, p, r);
}
static DM_HD inline float dm_cos_part(float r) {
  const float s = r * r;
  const float p = fmaf(fmaf(2.443241259e-5f, s, -1.388730986e-3f), s, 0.04166664555f);
  return fmaf(s * s, p, fmaf(-0.5f, s, 1.0f));
}

/* The sine of n quarter turns plus r. cos(x) takes n + 1. */
static DM_HD inline float dm_sin_turned(float r, uint32_t n) {
  const float y = n & 1u ? dm_cos_part(r) : dm_sin_part(r);
  return n & 2u ? -y : y;
}

static DM_HD inline float dm_sin(float x) {
  uint32_t n;
  const float r = dm_reduce_pi_2(x, &n);
  return x == 0 ? x : dm_sin_turned(r, n); /* -0 stays */
}
static DM_HD inline float dm_cos(float x) {
  uint32_t n;
  const float r = dm_reduce_pi_2(x, &n);
  return dm_sin_turned(r, n + 1);
}
static DM_HD inline float dm_tan(float x) {
  uint32_t n;
  const float r = dm_reduce_pi_2(x, &n), s = dm_sin_part(r), c = dm_cos_part(r);
  return x == 0 ? x : n & 1u ? -c / s : s / c;
}

#endif
