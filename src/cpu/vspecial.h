/* Special functions in float32 for vector units, as vmath.h: the inverse of the normal
   distribution, and modified Bessel functions. Coefficients were fitted here to the relative
   error. spec/cpu_check.c bounds the errors: ndtri 5 ulp, the Bessel functions 6 ulp. */
#ifndef DM_VSPECIAL_H
#define DM_VSPECIAL_H

#include "cpu/vmath.h"

/* sqrt(2) erfinv(2 x - 1); w = -log(1 - (2 x - 1)^2). Beyond erfinv's polynomials, where x or
   1 - x is below 3e-8, by one in sqrt(w) - 7 down to the least subnormal number. */
DM_VMATH float dm_ndtri_f32(float x) {
  const float u = DM_MULADD(2.0f, x, -1.0f), w = -dm_log_f32(4.0f * x * (1.0f - x));
  const float s = sqrtf(w) - 7.0f;
  float p = -2.57803339e-09f;
  p = DM_MULADD(p, s, 1.59916292e-08f);
  p = DM_MULADD(p, s, -3.79973999e-08f);
  p = DM_MULADD(p, s, 2.41437054e-07f);
  p = DM_MULADD(p, s, -1.70883279e-06f);
  p = DM_MULADD(p, s, 6.33185042e-06f);
  p = DM_MULADD(p, s, 6.49900954e-06f);
  p = DM_MULADD(p, s, -0.000513012362f);
  p = DM_MULADD(p, s, 1.00859547f);
  p = DM_MULADD(p, s, 6.86901972f);
  const float y = w < 15.9f ? u * dm_erfinv_ratio(w) : copysignf(p, u);
  const float end = x == 0.0f ? -INFINITY : INFINITY;
  return x == 0.0f || x == 1.0f ? end : 1.41421356f * y;
}

/* I of order n, 0 or 1, over x^n, for |x| < 7.75: a polynomial in z = x^2 / 4. */
DM_VMATH float dm_bessel_i_near(float z, int n) {
  float p = n ? 6.95486355e-13f : 1.44295596e-11f;
  p = DM_MULADD(p, z, n ? 2.44349757e-11f : 4.11703741e-10f);
  p = DM_MULADD(p, z, n ? 2.61626548e-09f : 4.24773857e-08f);
  p = DM_MULADD(p, z, n ? 1.36339549e-07f : 1.90168475e-06f);
  p = DM_MULADD(p, z, n ? 5.79506491e-06f : 6.95861529e-05f);
  p = DM_MULADD(p, z, n ? 0.000173585006f : 0.00173568695f);
  p = DM_MULADD(p, z, n ? 0.00347226888f : 0.0277784618f);
  p = DM_MULADD(p, z, n ? 0.0416666265f : 0.249999483f);
  p = DM_MULADD(p, z, n ? 0.250000013f : 1.00000014f);
  p = DM_MULADD(p, z, n ? 0.499999999f : 0.999999995f);
  return p;
}

/* I of order n; scaled: times exp(-|x|). Far from 0 exp(|x|) / sqrt(|x|) times a polynomial in
   1 / |x|. */
DM_VMATH float dm_bessel_i_f32(float x, int n, bool scaled) {
  const float a = fabsf(x), least = a < 7.75f ? 7.75f : a, t = 1.0f / least;
  const float e = dm_exp_f32(scaled ? -a : a);
  const float near = dm_bessel_i_near(0.25f * x * x, n) * (n ? x : 1.0f);
  float p = n ? -0.482397895f : 0.414100068f;
  p = DM_MULADD(p, t, n ? 0.0184520816f : -0.0214414417f);
  p = DM_MULADD(p, t, n ? -0.0470448435f : 0.0345520425f);
  p = DM_MULADD(p, t, n ? -0.0465390941f : 0.027867331f);
  p = DM_MULADD(p, t, n ? -0.14960598f : 0.0498700395f);
  p = DM_MULADD(p, t, n ? 0.398942286f : 0.398942276f);
  p *= sqrtf(t);
  const float far = scaled ? p : a == INFINITY ? a : e * p;
  return a < 7.75f ? scaled ? near * e : near : n ? copysignf(far, x) : far;
}

/* The slope of i1e: i0e - (sign(x) + 1 / x) i1e, 1/2 at 0. */
DM_VMATH float dm_i1e_slope_f32(float x) {
  const float a = fabsf(x), odd = dm_bessel_i_f32(a, 1, true);
  const float rest = a > 1e-12f ? odd / a : 0.5f;
  return dm_bessel_i_f32(a, 0, true) - odd - rest;
}

/* K of order n, 0 or 1; scaled: times exp(x). Up to 1 by A&S 9.6.11, with I and a polynomial in
   x^2 / 4; beyond it exp(-x) / sqrt(x) times a polynomial in 1 / x. */
DM_VMATH float dm_bessel_k_f32(float x, int n, bool scaled) {
  const float z = 0.25f * x * x, t = 1.0f / (x < 1.0f ? 1.0f : x);
  const float log = dm_log_f32(0.5f * x), i = dm_bessel_i_near(z < 0.25f ? z : 0.25f, n);
  const float e = dm_exp_f32(scaled ? x : -x);
  float p = n ? -4.47022239e-05f : 0.000129592955f;
  p = DM_MULADD(p, z, n ? -0.00111169721f : 0.00260236187f);
  p = DM_MULADD(p, z, n ? -0.0191840548f : 0.0348984891f);
  p = DM_MULADD(p, z, n ? -0.181574741f : 0.230694638f);
  p = DM_MULADD(p, z, n ? -0.67278437f : 0.422784455f);
  p = DM_MULADD(p, z, n ? 0.15443133f : -0.57721566f);
  const float near = n ? DM_MULADD(z, DM_MULADD(4.0f * log, i, p), 1.0f) / x : p - log * i;
  float q = n ? 0.0147944687f : -0.0117717787f;
  q = DM_MULADD(q, t, n ? -0.0921867198f : 0.0737661597f);
  q = DM_MULADD(q, t, n ? 0.257001171f : -0.206772985f);
  q = DM_MULADD(q, t, n ? -0.426865335f : 0.345054615f);
  q = DM_MULADD(q, t, n ? 0.478349027f : -0.387699684f);
  q = DM_MULADD(q, t, n ? -0.395197102f : 0.31961272f);
  q = DM_MULADD(q, t, n ? 0.26635545f : -0.212646071f);
  q = DM_MULADD(q, t, n ? -0.170226809f : 0.131202035f);
  q = DM_MULADD(q, t, n ? 0.127658316f : -0.091021501f);
  q = DM_MULADD(q, t, n ? -0.146835262f : 0.0880890778f);
  q = DM_MULADD(q, t, n ? 0.469992144f : -0.156663646f);
  q = DM_MULADD(q, t, 1.25331414f);
  q *= sqrtf(t);
  const float y = x < 1.0f ? scaled ? near * e : near : scaled ? q : e * q;
  return x == 0.0f ? INFINITY : y;
}

#endif
