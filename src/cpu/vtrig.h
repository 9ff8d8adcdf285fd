/* sin, cos, tan and their inverses in float32, in the manner of vmath.h: straight-line
   arithmetic of which a compiler makes vector code.

   The polynomials are those of Cephes' single precision (S. Moshier 1989). An angle is reduced
   to r in [-pi/4, pi/4] and n quarter turns; n selects the polynomial of sin r or cos r and the
   sign. The reduction subtracts n pi/2 in float64, with pi/2 in two parts of which the first
   has 33 bits, so that its product with n is exact (Cody & Waite 1980). This holds to
   DM_NEAR_ANGLE; loops leave larger angles to the C library. Errors: sin and cos 2 ulp, the
   others 3 ulp, which spec/cpu_check.c checks. */
#ifndef DM_VTRIG_H
#define DM_VTRIG_H

#include "cpu/vmath.h"

#define DM_NEAR_ANGLE 1e5f

/* x = n pi/2 + r -> r, |x| < DM_NEAR_ANGLE. */
DM_VMATH float dm_turn(float x, int32_t *n) {
  const float t = DM_MULADD(x, 0.636619772f /* 2/pi */, DM_ROUND_MAGIC);
  const double turns = (double)(t - DM_ROUND_MAGIC);
  *n = dm_rounded(t);
  return (float)((double)x - turns * 1.57079632673412561417 -
                 turns * 6.07710050650619224932e-11);
}

/* sin r and cos r, |r| <= pi/4. */
DM_VMATH float dm_sin_part(float r) {
  const float s = r * r;
  float p = -1.9515295891e-4f;
  p = DM_MULADD(p, s, 8.3321608736e-3f);
  p = DM_MULADD(p, s, -1.6666654611e-1f);
  return DM_MULADD(p * s, r, r);
}
DM_VMATH float dm_cos_part(float r) {
  const float s = r * r;
  float p = 2.443315711809948e-5f;
  p = DM_MULADD(p, s, -1.388731625493765e-3f);
  p = DM_MULADD(p, s, 4.166664568298827e-2f);
  return DM_MULADD(p * s, s, DM_MULADD(-0.5f, s, 1.0f));
}

/* sin(r + n pi/2). */
DM_VMATH float dm_sin_turned(float r, int32_t n) {
  const float y = n & 1 ? dm_cos_part(r) : dm_sin_part(r);
  return n & 2 ? -y : y;
}
DM_VMATH float dm_sin_near(float x) {
  int32_t n;
  const float r = dm_turn(x, &n), y = dm_sin_turned(r, n);
  return x == 0.0f ? x : y; /* -0 stays */
}
DM_VMATH float dm_cos_near(float x) {
  int32_t n;
  const float r = dm_turn(x, &n);
  return dm_sin_turned(r, n + 1);
}

/* sin(pi x) / (pi x), |x| < DM_NEAR_ANGLE, whose angles the reduction still holds for; and its
   slope, as in base/scalar.inc. */
DM_VMATH float dm_sinc_near(float x) {
  const float t = x * 3.14159265f, y = dm_sin_near(t) / t;
  return x == 0.0f ? 1.0f : y;
}
DM_VMATH float dm_sinc_slope_near(float x) {
  const float t = x * 3.14159265f, s = t * t;
  float p = 2.50521084e-7f;             /* 1/3991680 */
  p = DM_MULADD(p, s, -2.20458554e-5f); /* 1/45360 */
  p = DM_MULADD(p, s, 1.19047619e-3f);  /* 1/840 */
  p = DM_MULADD(p, s, -3.33333333e-2f);
  p = DM_MULADD(p, s, 3.33333333e-1f);
  const float far = (dm_cos_near(t) - dm_sin_near(t) / t) / x;
  return s < 1.0f ? t * p * -3.14159265f : far;
}

/* tan r, |r| <= pi/4, and -1 / tan r after an odd number of quarter turns. */
DM_VMATH float dm_tan_near(float x) {
  int32_t n;
  const float r = dm_turn(x, &n), s = r * r;
  float p = 9.38540185543e-3f;
  p = DM_MULADD(p, s, 3.11992232697e-3f);
  p = DM_MULADD(p, s, 2.44301354525e-2f);
  p = DM_MULADD(p, s, 5.34112807005e-2f);
  p = DM_MULADD(p, s, 1.33387994085e-1f);
  p = DM_MULADD(p, s, 3.33331568548e-1f);
  const float tan = DM_MULADD(p * s, r, r);
  const float y = n & 1 ? -1.0f / tan : tan;
  return x == 0.0f ? x : y;
}

/* asin a = a + a^3 P(a^2), |a| <= 1/2; z = a^2. */
DM_VMATH float dm_asin_part(float a, float z) {
  float p = 4.2163199048e-2f;
  p = DM_MULADD(p, z, 2.4181311049e-2f);
  p = DM_MULADD(p, z, 4.5470025998e-2f);
  p = DM_MULADD(p, z, 7.4953002686e-2f);
  p = DM_MULADD(p, z, 1.6666752422e-1f);
  return DM_MULADD(p * z, a, a);
}
/* Beyond 1/2: asin a = pi/2 - 2 asin(sqrt((1 - a) / 2)), whose root is NaN beyond 1. */
DM_VMATH float dm_asin_f32(float x) {
  const float a = fabsf(x), half = DM_MULADD(-0.5f, a, 0.5f);
  const float z = a > 0.5f ? half : a * a, root = a > 0.5f ? sqrtf(half) : a;
  const float part = dm_asin_part(root, z);
  return copysignf(a > 0.5f ? DM_MULADD(-2.0f, part, 1.57079633f) : part, x);
}
DM_VMATH float dm_acos_f32(float x) {
  const float a = fabsf(x), half = DM_MULADD(-0.5f, a, 0.5f);
  const float z = a > 0.5f ? half : a * a, root = a > 0.5f ? sqrtf(half) : x;
  const float part = dm_asin_part(root, z);
  const float far = x > 0.0f ? 2.0f * part : DM_MULADD(-2.0f, part, 3.14159265f);
  return a > 0.5f ? far : 1.57079633f - part;
}

/* atan(low / high) for 0 <= low <= high: beyond tan(pi/8) it is pi/4 + atan((low - high) /
   (low + high)). */
DM_VMATH float dm_atan_ratio(float low, float high) {
  const float over = low > 0.414213562f * high ? 1.0f : 0.0f;
  const float a = over != 0.0f ? (low - high) / (low + high) : low / high, s = a * a;
  float p = 8.05374449538e-2f;
  p = DM_MULADD(p, s, -1.38776856032e-1f);
  p = DM_MULADD(p, s, 1.99777106478e-1f);
  p = DM_MULADD(p, s, -3.33329491539e-1f);
  return DM_MULADD(p * s, a, a) + over * 0.785398163f;
}
DM_VMATH float dm_atan_f32(float x) {
  const float a = fabsf(x), up = a > 1.0f ? a : 1.0f;
  const float part = dm_atan_ratio(a > 1.0f ? 1.0f : a, up);
  return copysignf(a > 1.0f ? 1.57079633f - part : part, x);
}

/* The angle of (x, y). They are scaled, so that the sum of two large ones is finite and
   subnormal ones have all their bits; the ratio is that of 1 and 1 for two infinities, and 0
   for two zeros. */
DM_VMATH float dm_atan2_f32(float y, float x) {
  const float a = fabsf(y), b = fabsf(x), most = a < b ? b : a;
  const float scale = most > 1e30f ? 0.5f : most < 1e-30f ? 0x1p40f : 1.0f;
  float low = scale * (a < b ? a : b), high = scale * most;
  high = low == INFINITY || high == 0.0f ? 1.0f : high;
  low = low == INFINITY ? 1.0f : low;
  const float part = dm_atan_ratio(low, high);
  const float turned = a > b ? 1.57079633f - part : part;
  const float angle = copysignf(1.0f, x) < 0.0f ? 3.14159265f - turned : turned;
  return x != x || y != y ? NAN : copysignf(angle, y);
}

#endif
