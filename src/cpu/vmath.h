/* exp, tanh and erf in float32 as straight lines of arithmetic, which a compiler
   turns into vector code: both sides of a choice are computed. Where the processor
   has fused multiply-adds they are used. spec/cpu_check.c holds both forms to these
   bounds over float32: exp 1.5 ulp, tanh 2 ulp, erf 2 ulp. */
#ifndef DM_VMATH_H
#define DM_VMATH_H

#include <math.h>

#include "base/half.h"

#if defined __FMA__ || defined __ARM_FEATURE_FMA
#define DM_MULADD(a, b, c) __builtin_fmaf(a, b, c)
#else
#define DM_MULADD(a, b, c) ((a) * (b) + (c))
#endif

/* Always in place: a call in a loop would keep it from the vector units. */
#ifdef __GNUC__
#define DM_VMATH static inline __attribute__((always_inline))
#else
#define DM_VMATH static inline
#endif

/* 2^n e^r, |r| <= ln 2 / 2, by a polynomial (Cephes' expf coefficients); 2^n in two
   halves, so that subnormal results come out too. */
DM_VMATH float dm_exp_f32(float x) {
  const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
  x = x < -110.0f ? -110.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const float t = DM_MULADD(x, 1.44269504f /* log2(e) */, magic), n = t - magic;
  /* ln 2 in two parts */
  const float r = DM_MULADD(n, 2.12194440e-4f, DM_MULADD(n, -0.693359375f, x));
  float p = 1.9875691500e-4f;
  p = DM_MULADD(p, r, 1.3981999507e-3f);
  p = DM_MULADD(p, r, 8.3334519073e-3f);
  p = DM_MULADD(p, r, 4.1665795894e-2f);
  p = DM_MULADD(p, r, 1.6666665459e-1f);
  p = DM_MULADD(p, r, 5.0000001201e-1f);
  p = DM_MULADD(p, r * r, r) + 1.0f;
  const int32_t k = (int32_t)(dm_f32_to_bits(t) - dm_f32_to_bits(magic)), half = k >> 1;
  p *= dm_bits_to_f32((uint32_t)(half + 127) << 23);
  return p * dm_bits_to_f32((uint32_t)(k - half + 127) << 23);
}
static inline double dm_exp_f64(double x) { return exp(x); }

/* Near 0 x + x^3 P(x^2), P minimax in relative error; beyond, 1 - 2 / (e^2x + 1). */
DM_VMATH float dm_tanh_f32(float x) {
  const float t = fabsf(x), s = x * x;
  float p = -5.70495276e-3f;
  p = DM_MULADD(p, s, 2.06390535e-2f);
  p = DM_MULADD(p, s, -5.37397035e-2f);
  p = DM_MULADD(p, s, 1.33314420e-1f);
  p = DM_MULADD(p, s, -3.33332819e-1f);
  const float near = DM_MULADD(x, s * p, x);
  const float far = copysignf(1.0f - 2.0f / (dm_exp_f32(t + t) + 1.0f), x);
  return t < 0.625f ? near : far;
}

/* Near 0 x + x P(x^2); beyond, 1 - Q(t)^4 to t = 4, where it is 1. Both polynomials
   minimax in erf's relative error. */
DM_VMATH float dm_erf_f32(float x) {
  const float a = fabsf(x), s = x * x, t = a > 4.0f ? 4.0f : a;
  float p = 6.52739530e-5f, q = -1.74911201e-4f;
  p = DM_MULADD(p, s, -7.56219203e-4f);
  p = DM_MULADD(p, s, 5.13127371e-3f);
  p = DM_MULADD(p, s, -2.68201707e-2f);
  p = DM_MULADD(p, s, 1.12826855e-1f);
  p = DM_MULADD(p, s, -3.76125376e-1f);
  p = DM_MULADD(p, s, 1.28379152e-1f);
  q = DM_MULADD(q, t, 3.17051945e-3f);
  q = DM_MULADD(q, t, -2.18425885e-2f);
  q = DM_MULADD(q, t, 6.49477214e-2f);
  q = DM_MULADD(q, t, -4.82950838e-2f);
  q = DM_MULADD(q, t, -6.58146585e-2f);
  q = DM_MULADD(q, t, -3.07362969e-1f);
  q = DM_MULADD(q, t, 1.00514218f);
  q *= q;
  const float near = DM_MULADD(x, p, x);
  const float far = copysignf(DM_MULADD(-q, q, 1.0f), x);
  return a < 1.13f ? near : far;
}

#endif
