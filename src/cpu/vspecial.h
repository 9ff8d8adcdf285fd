/* Special functions in float32 for vector units, as vmath.h: the normal distribution's, log
   Gamma and its derivatives, Bessel functions. Coefficients were fitted here to the relative
   error. spec/cpu_check.c bounds the errors: ndtri 5 ulp, modified Bessel functions and erfcx
   6 ulp; those with zeros, log Gamma, its derivatives and J and Y, 6 ulp of 1 + |y|. */
#ifndef DM_VSPECIAL_H
#define DM_VSPECIAL_H

#include "cpu/vmath.h"
#include "cpu/vtrig.h"

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

/* exp(x^2) erfc(x): P(u) / (1 + 2 x) with u = (x - 2) / (x + 2) for x >= 0; 2 exp(x^2) minus
   that below. x^2 is split, as its rounding error counts in the exponential. */
DM_VMATH float dm_erfcx_f32(float x) {
  const float a = fabsf(x), least = a > 1e9f ? 1e9f : a, u = (least - 2.0f) / (least + 2.0f);
  const double square = (double)x * (double)x;
  const float high = (float)square, low = (float)(square - (double)high);
  float p = 5.9232179e-05f;
  p = DM_MULADD(p, u, 1.61226237e-04f);
  p = DM_MULADD(p, u, -3.46471029e-04f);
  p = DM_MULADD(p, u, -1.39678986e-03f);
  p = DM_MULADD(p, u, 1.20587492e-03f);
  p = DM_MULADD(p, u, 8.69013656e-03f);
  p = DM_MULADD(p, u, -8.01387043e-03f);
  p = DM_MULADD(p, u, -5.42123212e-02f);
  p = DM_MULADD(p, u, 1.64048535e-01f);
  p = DM_MULADD(p, u, -1.66031048e-01f);
  p = DM_MULADD(p, u, -9.27637162e-02f);
  p = DM_MULADD(p, u, 1.27697839f);
  const float y = 0.5f * p / (a + 0.5f), e = dm_exp_f32(high);
  const float left = 2.0f * DM_MULADD(e, low, e) - y, end = a > 9.4f ? INFINITY : left;
  return x < 0.0f ? end : y;
}

/* The logarithm of the normal distribution's integral, as in base/special.inc. */
DM_VMATH float dm_log_ndtr_f32(float x) {
  const float t = x * -0.707106781f;
  const float tail = dm_log_f32(0.5f * dm_erfcx_f32(t)) - 0.5f * x * x;
  const float rest = dm_log1p_f32(-0.5f * dm_erfc_f32(-t));
  return x < -1.0f ? tail : rest;
}

/* sin(pi r), |r| <= 1/2; cos(pi r) is that of 1/2 - |r|. */
DM_VMATH float dm_sin_pi(float r) {
  const float z = r * r;
  float p = -7.02821053e-03f;
  p = DM_MULADD(p, z, 8.20506902e-02f);
  p = DM_MULADD(p, z, -5.99252398e-01f);
  p = DM_MULADD(p, z, 2.55016336f);
  p = DM_MULADD(p, z, -5.16771277f);
  p = DM_MULADD(p, z, -8.74227766e-08f); /* pi less its float */
  return DM_MULADD(r, 3.14159274f, r * p);
}

/* log |Gamma(x)|. From -1/2 to 5.5 Gamma(x + 1) = x Gamma(x) leads to 2 + t, |t| <= 1/2, where
   it is a polynomial, and to a product whose logarithm joins; from there on Stirling's series.
   Left of -1/2 by Gamma(x) Gamma(1 - x) = pi / sin(pi x). */
DM_VMATH float dm_lgamma_f32(float x) {
  const float a = x < -0.5f ? 1.0f - x : x, b = a - 1.0f, c = a - 2.0f, d = a - 3.0f;
  const float low = a < 0.5f ? a : a < 1.5f ? b : c, high = a < 4.5f ? a - 4.0f : a - 5.0f;
  const float t = a < 2.5f ? low : a < 3.5f ? d : high;
  const float next = a + 1.0f, down = a * (a < 0.5f ? next : 1.0f);
  const float up = (a < 2.5f ? 1.0f : b) * (a < 3.5f ? 1.0f : c) * (a < 4.5f ? 1.0f : d);
  const float log = dm_log_f32(a < 1.5f ? fabsf(down) : a < 5.5f ? up : a);
  float p = 1.22209515e-04f;
  p = DM_MULADD(p, t, -2.52894864e-04f);
  p = DM_MULADD(p, t, 5.01687814e-04f);
  p = DM_MULADD(p, t, -1.1863625e-03f);
  p = DM_MULADD(p, t, 2.89167597e-03f);
  p = DM_MULADD(p, t, -7.38608404e-03f);
  p = DM_MULADD(p, t, 2.05807414e-02f);
  p = DM_MULADD(p, t, -6.73522873e-02f);
  p = DM_MULADD(p, t, 3.22467034e-01f);
  p = DM_MULADD(p, t, 4.22784335e-01f);
  const float near = DM_MULADD(p, t, a < 1.5f ? -log : log);
  const float s = 1.0f / a, z = s * s;
  float q = 7.93650794e-04f;
  q = DM_MULADD(q, z, -2.77777778e-03f);
  q = DM_MULADD(q, z, 8.33333333e-02f);
  const float far = DM_MULADD(a - 0.5f, log - 1.0f, DM_MULADD(q, s, 0.418938533f));
  const float y = a < 5.5f ? near : far, r = x - rintf(x);
  const float left = dm_log_f32(3.14159265f / fabsf(dm_sin_pi(r))) - y;
  const float mirrored = x == rintf(x) ? INFINITY : left;
  return x < -0.5f ? mirrored : y;
}

/* The derivative of that. Below 5 psi(x) = psi(x + 5) - 1 / x - ... - 1 / (x + 4), whose sum is
   n / d, in float64; then the asymptotic series; left of 0 by reflection. */
DM_VMATH float dm_digamma_f32(float x) {
  const float a = x < 0.0f ? 1.0f - x : x, far = a < 5.0f ? a + 5.0f : a;
  const double v = (double)a, s = 1.0 / (double)far, z = s * s;
  double n = 1, d = v;
  n = n * (v + 1) + d, d *= v + 1;
  n = n * (v + 2) + d, d *= v + 2;
  n = n * (v + 3) + d, d *= v + 3;
  n = n * (v + 4) + d, d *= v + 4;
  const double sum = n / d;
  double q = -4.16666666666666666667e-3;
  q = q * z + 3.96825396825396825397e-3;
  q = q * z - 8.33333333333333333333e-3;
  q = q * z + 8.33333333333333333333e-2;
  const float tail = (float)(0.5 * s + q * z), less = a < 5.0f ? (float)sum : 0.0f;
  const float y = dm_log_f32(far) - tail - less, r = x - rintf(x);
  const float cot = dm_sin_pi(0.5f - fabsf(r)) / dm_sin_pi(r);
  const float left = r == 0.0f ? NAN : DM_MULADD(-3.14159265f, cot, y);
  return x < 0.0f ? left : y;
}

/* The derivative of that: the sum of 1 / (x + k)^2, in float64; below 5 the first five terms
   are n / d; left of 0 by reflection. */
DM_VMATH float dm_trigamma_f32(float x) {
  const float a = x < 0.0f ? 1.0f - x : x, far = a < 5.0f ? a + 5.0f : a;
  const double v = (double)a, s = 1.0 / (double)far, z = s * s;
  const double v1 = (v + 1) * (v + 1), v2 = (v + 2) * (v + 2), v3 = (v + 3) * (v + 3);
  const double v4 = (v + 4) * (v + 4);
  double n = 1, d = v * v;
  n = n * v1 + d, d *= v1;
  n = n * v2 + d, d *= v2;
  n = n * v3 + d, d *= v3;
  n = n * v4 + d, d *= v4;
  const double sum = n / d;
  double q = -3.33333333333333333333e-2;
  q = q * z + 2.38095238095238095238e-2;
  q = q * z - 3.33333333333333333333e-2;
  q = q * z + 1.66666666666666666667e-1;
  const float tail = (float)(s + 0.5 * z + q * z * s), first = a < 5.0f ? (float)sum : 0.0f;
  const float y = tail + first, over = 3.14159265f / dm_sin_pi(x - rintf(x));
  return x < 0.0f ? DM_MULADD(over, over, -y) : y;
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

/* The slopes of i0e, i1e - sign(x) i0e, and of i1, i0 - i1 / x, which is 1/2 at 0. */
DM_VMATH float dm_i0e_slope_f32(float x) {
  const float even = dm_bessel_i_f32(x, 0, true), sign = x > 0.0f ? even : -even;
  return dm_bessel_i_f32(x, 1, true) - (x == 0.0f ? 0.0f : sign);
}
DM_VMATH float dm_i1_slope_f32(float x) {
  const float odd = dm_bessel_i_f32(x, 1, false), rest = fabsf(x) > 1e-12f ? odd / x : 0.5f;
  return dm_bessel_i_f32(x, 0, false) - rest;
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

/* J of order n, 0 or 1; second: Y; |x| < DM_NEAR_ANGLE. Below 2 a polynomial in x^2 / 4, with
   the logarithm of A&S 9.1.13 for Y; beyond it A&S 9.2.5 and 9.2.6, with polynomials in 1 / x.
 */
DM_VMATH float dm_bessel_near(float x, int n, bool second) {
  const float a = fabsf(x), z = 0.25f * x * x, half = n ? 0.5f * a : 1.0f;
  const float t = 1.0f / (a < 2.0f ? 2.0f : a);
  float j = n ? -1.07572698e-05f : -6.35505676e-05f;
  j = DM_MULADD(j, z, n ? 0.000346288964f : 0.00172909378f);
  j = DM_MULADD(j, z, n ? -0.00694394685f : -0.0277738395f);
  j = DM_MULADD(j, z, n ? 0.083333212f : 0.249998976f);
  j = DM_MULADD(j, z, n ? -0.499999989f : -0.999999899f);
  j = DM_MULADD(j, z, n ? 1.0f : 0.999999998f);
  float r = n ? 1.21985205e-05f : 6.88103846e-05f;
  r = DM_MULADD(r, z, n ? -0.000353933907f : -0.00165728957f);
  r = DM_MULADD(r, z, n ? 0.00610531614f : 0.0222092628f);
  r = DM_MULADD(r, z, n ? -0.057797039f : -0.146864808f);
  r = DM_MULADD(r, z, n ? 0.214153894f : 0.269152792f);
  r = DM_MULADD(r, z, n ? 0.0491570192f : 0.367466906f);
  const float log = 0.636619772f * dm_log_f32(0.5f * a); /* 2/pi */
  const float y = half * DM_MULADD(log, j, r) - (n ? 0.636619772f / a : 0.0f);
  float p = n ? 0.086513585f : -0.08031181f;
  p = DM_MULADD(p, t, n ? -0.261100059f : 0.230599418f);
  p = DM_MULADD(p, t, n ? 0.329103041f : -0.276238031f);
  p = DM_MULADD(p, t, n ? -0.201343601f : 0.159143388f);
  p = DM_MULADD(p, t, n ? 0.0054101906f : -0.00435707046f);
  p = DM_MULADD(p, t, n ? 0.116930295f : -0.0701096082f);
  p = DM_MULADD(p, t, n ? 4.78182508e-06f : -3.69606634e-06f);
  p = DM_MULADD(p, t, n ? 0.999999984f : 1.00000001f);
  float q = n ? -0.303775386f : 0.261936796f;
  q = DM_MULADD(q, t, n ? 0.759026359f : -0.644839254f);
  q = DM_MULADD(q, t, n ? -0.779543053f : 0.648236792f);
  q = DM_MULADD(q, t, n ? 0.373051738f : -0.29993865f);
  q = DM_MULADD(q, t, n ? -0.00333682631f : 0.0011998347f);
  q = DM_MULADD(q, t, n ? -0.102922826f : 0.073723977f);
  q = DM_MULADD(q, t, n ? 3.70360517e-05f : -3.82746213e-05f);
  q = DM_MULADD(q, t, n ? 0.374999208f : -0.124999228f);
  q *= t;
  const float sin = dm_sin_near(a), cos = dm_cos_near(a), up = sin + cos, down = sin - cos;
  const float c = n ? down : up,
              s = n ? -up : down;              /* of a - pi / 4 - n pi / 2, sqrt(2) of it */
  const float scale = 0.564189584f * sqrtf(t); /* 1/sqrt(pi) */
  const float wave = second ? DM_MULADD(p, s, q * c) : DM_MULADD(p, c, -q * s);
  const float near = second ? y : half * j, both = a < 2.0f ? near : scale * wave;
  const float odd = x < 0.0f ? -both : both;
  if (!second) return n ? odd : both;
  return x > 0.0f ? both : x == 0.0f ? -INFINITY : NAN;
}

#endif
