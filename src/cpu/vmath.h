/* exp, exp2, expm1, log, log2, log10, log1p, tanh, atanh, sinh, cosh, erf, erfc, erfinv, hypot
   and fmod, pow and nextafter in float32, for vector units. vtrig.h has the functions of
   angles.

   Each function is straight-line arithmetic without calls, tables or branches, so that a
   compiler makes vector code of a loop around it: both sides of a choice are computed, and one
   is selected. Each reduces its argument to a small interval and evaluates a minimax polynomial
   there (coefficients of Cephes' expf and logf, S. Moshier 1989; those of tanh, erf, erfc and
   erfinv were fitted here to the relative error).

   Error bounds over all of float32, with and without fused multiply-adds, which
   spec/cpu_check.c checks: exp, exp2 and log 1.5 ulp, erfc 5 ulp, erfinv and atanh 3 ulp, the
   others 2 ulp. The fused forms differ from the others in the last bit, so a processor without
   FMA may give other bits; the width of the vectors makes no difference. */
#ifndef DM_VMATH_H
#define DM_VMATH_H

#include <math.h>

#include "base/half.h"

#if defined __FMA__ || defined __ARM_FEATURE_FMA
#define DM_MULADD(a, b, c) __builtin_fmaf(a, b, c)
#else
#define DM_MULADD(a, b, c) ((a) * (b) + (c))
#endif

#if defined __FMA__ || defined __ARM_FEATURE_FMA
#define DM_MULADD_F64(a, b, c) __builtin_fma(a, b, c)
#else
#define DM_MULADD_F64(a, b, c) ((a) * (b) + (c))
#endif

/* Always in place: a call in a loop would keep it from the vector units. */
#ifdef __GNUC__
#define DM_VMATH static inline __attribute__((always_inline))
#else
#define DM_VMATH static inline
#endif

#define DM_ROUND_MAGIC 12582912.0f /* 1.5 * 2^23: adding it rounds to an integer */

/* e^r - 1, |r| <= ln 2 / 2: r + r^2 / 2 + r^3 P(r), P of degree 5 in all (Cephes' expf). */
DM_VMATH float dm_expm1_near_0(float r) {
  float p = 1.9875691500e-4f;
  p = DM_MULADD(p, r, 1.3981999507e-3f);
  p = DM_MULADD(p, r, 8.3334519073e-3f);
  p = DM_MULADD(p, r, 4.1665795894e-2f);
  p = DM_MULADD(p, r, 1.6666665459e-1f);
  p = DM_MULADD(p, r, 5.0000001201e-1f);
  return DM_MULADD(p, r * r, r);
}

/* n = t - magic as an integer. */
DM_VMATH int32_t dm_rounded(float t) {
  return (int32_t)(dm_f32_to_bits(t) - dm_f32_to_bits(DM_ROUND_MAGIC));
}

/* p 2^k, in two halves, so that subnormal results come out too. */
DM_VMATH float dm_scale_f32(float p, int32_t k) {
  const int32_t half = k >> 1;
  p *= dm_bits_to_f32((uint32_t)(half + 127) << 23);
  return p * dm_bits_to_f32((uint32_t)(k - half + 127) << 23);
}

/* x = n ln 2 + r; t is n + magic. ln 2 in two parts. */
DM_VMATH float dm_exp_rest(float x, float *t) {
  *t = DM_MULADD(x, 1.44269504f /* log2(e) */, DM_ROUND_MAGIC);
  const float n = *t - DM_ROUND_MAGIC;
  return DM_MULADD(n, 2.12194440e-4f, DM_MULADD(n, -0.693359375f, x));
}

DM_VMATH float dm_exp_f32(float x) {
  x = x < -110.0f ? -110.0f : x;
  x = x > 89.0f ? 89.0f : x;
  float t;
  const float r = dm_exp_rest(x, &t);
  return dm_scale_f32(dm_expm1_near_0(r) + 1.0f, dm_rounded(t));
}

DM_VMATH float dm_exp2_f32(float x) {
  x = x < -160.0f ? -160.0f : x;
  x = x > 129.0f ? 129.0f : x;
  const float t = x + DM_ROUND_MAGIC, n = t - DM_ROUND_MAGIC;
  return dm_scale_f32(dm_expm1_near_0((x - n) * 0.693147182f /* ln 2 */) + 1.0f, dm_rounded(t));
}

/* 2^n (e^r - 1) + (2^n - 1), with half of 2^n: n reaches 128. Near 0 it is x, subnormal or
   -0 too; so is log1p. */
DM_VMATH float dm_expm1_f32(float x) {
  x = x < -40.0f ? -40.0f : x;
  x = x > 89.0f ? 89.0f : x;
  float t;
  const float r = dm_exp_rest(x, &t);
  const float half = dm_bits_to_f32((uint32_t)(dm_rounded(t) + 126) << 23);
  const float far = 2.0f * DM_MULADD(half, dm_expm1_near_0(r), half - 0.5f);
  return fabsf(x) < 1e-8f ? x : far;
}

/* log(1 + f) = f + what this gives, sqrt(1/2) <= 1 + f < sqrt(2) (Cephes' logf
   coefficients). */
DM_VMATH float dm_log1p_rest(float f) {
  const float z = f * f;
  float p = 7.0376836292e-2f;
  p = DM_MULADD(p, f, -1.1514610310e-1f);
  p = DM_MULADD(p, f, 1.1676998740e-1f);
  p = DM_MULADD(p, f, -1.2420140846e-1f);
  p = DM_MULADD(p, f, 1.4249322787e-1f);
  p = DM_MULADD(p, f, -1.6668057665e-1f);
  p = DM_MULADD(p, f, 2.0000714765e-1f);
  p = DM_MULADD(p, f, -2.4999993993e-1f);
  p = DM_MULADD(p, f, 3.3333331174e-1f);
  return DM_MULADD(p, f * z, -0.5f * z);
}

/* x = 2^k m with sqrt(1/2) <= m < sqrt(2), of a normal x > 0. */
DM_VMATH float dm_log_split(float x, int32_t *k) {
  const uint32_t u = dm_f32_to_bits(x);
  *k = (int32_t)(u - 0x3f3504f3u /* sqrt(1/2) */) >> 23;
  return dm_bits_to_f32(u - ((uint32_t)*k << 23));
}

/* A logarithm where x is neither 0, negative, infinite nor NaN. */
DM_VMATH float dm_log_or(float x, float log) {
  const float past = x == 0.0f ? -INFINITY : x > 0.0f ? x : NAN;
  return x > 0.0f && x < INFINITY ? log : past;
}

/* k and 1 + f; subnormal numbers are scaled first. */
DM_VMATH float dm_log_parts(float x, float *k) {
  const float tiny = x < 1.17549435e-38f ? 1.0f : 0.0f;
  int32_t e;
  const float m = dm_log_split(tiny != 0.0f ? x * 8388608.0f /* 2^23 */ : x, &e);
  *k = (float)e - 23.0f * tiny;
  return m - 1.0f;
}

DM_VMATH float dm_log_f32(float x) {
  float k;
  const float f = dm_log_parts(x, &k);
  const float y = DM_MULADD(k, -2.12194440e-4f, dm_log1p_rest(f));
  return dm_log_or(x, DM_MULADD(k, 0.693359375f, f + y));
}

/* log2(e) and log10(e), log10(2) in two parts. */
DM_VMATH float dm_log2_f32(float x) {
  float k;
  const float f = dm_log_parts(x, &k), y = dm_log1p_rest(f);
  const float low = DM_MULADD(f, 0.44269504f, y * 0.44269504f) + y;
  return dm_log_or(x, (low + f) + k);
}
DM_VMATH float dm_log10_f32(float x) {
  float k;
  const float f = dm_log_parts(x, &k), y = dm_log1p_rest(f);
  const float low = DM_MULADD(k, 2.48745663981e-4f, (f + y) * 7.00731903e-4f);
  const float more = DM_MULADD(f, 4.3359375e-1f, DM_MULADD(y, 4.3359375e-1f, low));
  return dm_log_or(x, DM_MULADD(k, 3.0078125e-1f, more));
}

/* log(1 + x), with what 1 + x rounds off; that counts for little where k is large. */
DM_VMATH float dm_log1p_f32(float x) {
  const float u = 1.0f + x, lost = x > 1.0f ? 1.0f - (u - x) : x - (u - 1.0f);
  int32_t k;
  const float m = dm_log_split(u, &k);
  const float shrink = k > 30 ? 0.0f : dm_bits_to_f32((uint32_t)(127 - (k > 30 ? 0 : k)) << 23);
  const float f = DM_MULADD(lost, shrink, m - 1.0f);
  const float y = DM_MULADD((float)k, -2.12194440e-4f, dm_log1p_rest(f));
  const float log = dm_log_or(u, DM_MULADD((float)k, 0.693359375f, f + y));
  return fabsf(x) < 1e-8f ? x : log;
}
/* atanh a = log((1 + a) / (1 - a)) / 2 = log1p(2 a / (1 - a)) / 2. */
DM_VMATH float dm_atanh_f32(float x) {
  const float a = fabsf(x), y = 0.5f * dm_log1p_f32(2.0f * a / (1.0f - a));
  return x != x ? x : copysignf(y, x);
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

/* exp(-x^2) P(u) / (1 + 2 x) with u = (x - 2) / (x + 2), for x >= 0; 2 minus that below. x^2 is
   split, as its rounding error counts in the exponential. */
DM_VMATH float dm_erfc_f32(float x) {
  const float a = fabsf(x) < 11.0f ? fabsf(x) : 11.0f, u = (a - 2.0f) / (a + 2.0f);
  const double square = (double)a * (double)a;
  const float high = (float)square, low = (float)(square - (double)high);
  float p = -3.994496e-4f;
  p = DM_MULADD(p, u, -1.2280024e-3f);
  p = DM_MULADD(p, u, 1.3133099e-3f);
  p = DM_MULADD(p, u, 8.630098e-3f);
  p = DM_MULADD(p, u, -8.060143e-3f);
  p = DM_MULADD(p, u, -5.4203883e-2f);
  p = DM_MULADD(p, u, 1.6405542e-1f);
  p = DM_MULADD(p, u, -1.6603146e-1f);
  p = DM_MULADD(p, u, -9.276398e-2f);
  p = DM_MULADD(p, u, 1.2769784f);
  p = p / DM_MULADD(2.0f, a, 1.0f);
  const float y = dm_exp_f32(-high) * DM_MULADD(-low, p, p);
  return x != x ? x : x < 0.0f ? 2.0f - y : y;
}

/* erfinv(x) / x for w = -log(1 - x^2) up to 16: P(w), and Q(sqrt(w)) near 1 (the form of Giles
   2011). */
DM_VMATH float dm_erfinv_ratio(float w) {
  const float v = w - 3.0f, s = sqrtf(w) - 3.0f;
  float p = -7.38284589e-9f, q = -7.49255705e-5f;
  p = DM_MULADD(p, v, -9.22676247e-9f);
  p = DM_MULADD(p, v, 4.75597261e-7f);
  p = DM_MULADD(p, v, -1.82166775e-6f);
  p = DM_MULADD(p, v, -1.2837073e-5f);
  p = DM_MULADD(p, v, 1.9522052e-4f);
  p = DM_MULADD(p, v, -8.35970626e-4f);
  p = DM_MULADD(p, v, -5.73825883e-3f);
  p = DM_MULADD(p, v, 2.41630301e-1f);
  p = DM_MULADD(p, v, 1.62354207f);
  q = DM_MULADD(q, s, -5.89491247e-5f);
  q = DM_MULADD(q, s, 1.26955064e-3f);
  q = DM_MULADD(q, s, -3.54283815e-3f);
  q = DM_MULADD(q, s, 5.75296627e-3f);
  q = DM_MULADD(q, s, -7.65307527e-3f);
  q = DM_MULADD(q, s, 9.4381813e-3f);
  q = DM_MULADD(q, s, 1.00167584f);
  q = DM_MULADD(q, s, 2.83297682f);
  return w < 5.5f ? p : q;
}

DM_VMATH float dm_erfinv_f32(float x) {
  const float y = x * dm_erfinv_ratio(-dm_log_f32((1.0f - x) * (1.0f + x)));
  return fabsf(x) == 1.0f ? x * INFINITY : y; /* NaN beyond 1, by the logarithm */
}

/* e^x / 2, which is finite a little longer than e^x. */
DM_VMATH float dm_half_exp(float x) {
  x = x > 90.0f ? 90.0f : x;
  float t;
  const float r = dm_exp_rest(x, &t);
  return dm_scale_f32(dm_expm1_near_0(r) + 1.0f, dm_rounded(t) - 1);
}
/* Below 1 sinh is a polynomial (Cephes' sinhf). */
DM_VMATH float dm_sinh_f32(float x) {
  const float a = fabsf(x), s = x * x, half = dm_half_exp(a);
  float p = 2.03721912945e-4f;
  p = DM_MULADD(p, s, 8.33028376239e-3f);
  p = DM_MULADD(p, s, 1.66667160211e-1f);
  const float near = DM_MULADD(p * s, x, x);
  const float y = a < 1.0f ? near : copysignf(half - 0.25f / half, x);
  return x != x ? x : y;
}
DM_VMATH float dm_cosh_f32(float x) {
  const float half = dm_half_exp(fabsf(x));
  return x != x ? x : half + 0.25f / half;
}

/* sqrt(x^2 + y^2), whose squares float64 holds exactly; infinite where one of them is. */
DM_VMATH float dm_hypot_f32(float x, float y) {
  const double a = (double)x, b = (double)y;
  const float z = (float)sqrt(a * a + b * b);
  return fabsf(x) == INFINITY || fabsf(y) == INFINITY ? INFINITY : z;
}

/* q 2^k, k the low bits of a number that lies k steps beyond 1.5 * 2^52; |k| < 1000. */
DM_VMATH double dm_scale_f64(double q, double n) {
  uint64_t u;
  memcpy(&u, &n, sizeof u);
  u = (u << 52) + (UINT64_C(1023) << 52);
  double power;
  memcpy(&power, &u, sizeof power);
  return q * power;
}

/* The neighbour of a in the direction of b: numbers of one sign are ordered as their bits. */
DM_VMATH float dm_nextafter_f32(float a, float b) {
  const uint32_t u = dm_f32_to_bits(a);
  const uint32_t least = (dm_f32_to_bits(b) & 0x80000000u) | 1u;
  const uint32_t step = ((a < b) == (a > 0.0f)) ? u + 1u : u - 1u;
  const float next = dm_bits_to_f32(a == 0.0f ? least : step);
  return a != a || b != b ? a + b : a == b ? b : next;
}

/* a^b of a normal a > 0 and a finite b, in float64: 2^(b log2 a), where log2 of the mantissa is
   (m - 1) / (m + 1) times a polynomial in the square of that. Within 0.51 ulp. */
DM_VMATH float dm_pow_near(float a, float b) {
  int32_t k;
  const double m = (double)dm_log_split(a, &k), s = (m - 1.0) / (m + 1.0), z = s * s;
  double p = 0.34073449894177354;
  p = DM_MULADD_F64(p, z, 0.41167249363045016);
  p = DM_MULADD_F64(p, z, 0.57708358850185115);
  p = DM_MULADD_F64(p, z, 0.96179667332454044);
  p = DM_MULADD_F64(p, z, 2.8853900817900988);
  double t = (double)b * DM_MULADD_F64(p, s, (double)k);
  t = t < -200.0 ? -200.0 : t;
  t = t > 200.0 ? 200.0 : t;
  const double magic = 6755399441055744.0; /* 1.5 * 2^52: adding it rounds to an integer */
  const double n = t + magic, r = t - (n - magic);
  double q = 1.5201909096971233e-05;
  q = DM_MULADD_F64(q, r, 0.00015469291105672708);
  q = DM_MULADD_F64(q, r, 0.0013333922620397556);
  q = DM_MULADD_F64(q, r, 0.0096180272538424604);
  q = DM_MULADD_F64(q, r, 0.055504103533736769);
  q = DM_MULADD_F64(q, r, 0.24022651198155476);
  q = DM_MULADD_F64(q, r, 0.69314718072847037);
  q = DM_MULADD_F64(q, r, 1.0);
  return (float)dm_scale_f64(q, n);
}

/* The remainder of a / b with the sign of a. Its quotient has at most 28 bits (DM_NEAR_RATIO),
   so that its product with b is exact in float64; it may be one too large. */
#define DM_NEAR_RATIO 2.68435456e8
DM_VMATH float dm_fmod_near(float a, float b) {
  const double x = fabs((double)a), y = fabs((double)b), q = trunc(x / y), r = x - q * y;
  return copysignf((float)(r < 0 ? r + y : r), a);
}

#endif
