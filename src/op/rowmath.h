/* Loops over one row in float and double that a compiler can vectorise: sums
   run in 16 independent lanes, which are then joined in a fixed order. */
#ifndef DM_ROWMATH_H
#define DM_ROWMATH_H

#include <math.h>

#include "base/half.h"

/* e^x within 2 ulp: 2^n e^r, |r| <= ln 2 / 2, by a polynomial (Cephes' expf
   coefficients); 2^n in two halves, so that subnormal results come out too. */
static inline float dm_exp_f32(float x) {
  const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
  x = x < -110.0f ? -110.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const float t = x * 1.44269504f /* log2(e) */ + magic, n = t - magic;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f; /* ln 2 in two parts */
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const int32_t k = (int32_t)(dm_f32_to_bits(t) - dm_f32_to_bits(magic)), half = k >> 1;
  p *= dm_bits_to_f32((uint32_t)(half + 127) << 23);
  return p * dm_bits_to_f32((uint32_t)(k - half + 127) << 23);
}
static inline double dm_exp_f64(double x) { return exp(x); }

/* max of a row (NaN may be lost); sum; sum of v*w; exp(v - by) into y and its
   sum; and the mean with the sum of squared differences from it. */
#define DM_ROWMATH(SUFFIX, TYPE)                                                         \
  static inline TYPE dm_row_max_##SUFFIX(const TYPE *v, int64_t n) {                     \
    TYPE lane[16], best = v[0];                                                          \
    int64_t i = 0;                                                                       \
    for (int k = 0; k < 16; k++) lane[k] = best;                                         \
    for (; i + 16 <= n; i += 16)                                                         \
      for (int k = 0; k < 16; k++) lane[k] = v[i + k] > lane[k] ? v[i + k] : lane[k];    \
    for (; i < n; i++) best = v[i] > best ? v[i] : best;                                 \
    for (int k = 0; k < 16; k++) best = lane[k] > best ? lane[k] : best;                 \
    return best;                                                                         \
  }                                                                                      \
  static inline double dm_lanes_##SUFFIX(const TYPE *lane) {                             \
    double s = 0;                                                                        \
    for (int k = 0; k < 16; k++) s += (double)lane[k];                                   \
    return s;                                                                            \
  }                                                                                      \
  static inline double dm_row_sum_##SUFFIX(const TYPE *v, int64_t n) {                   \
    TYPE lane[16] = {0};                                                                 \
    int64_t i = 0;                                                                       \
    for (; i + 16 <= n; i += 16)                                                         \
      for (int k = 0; k < 16; k++) lane[k] += v[i + k];                                  \
    for (; i < n; i++) lane[i & 15] += v[i];                                             \
    return dm_lanes_##SUFFIX(lane);                                                      \
  }                                                                                      \
  static inline double dm_row_dot_##SUFFIX(const TYPE *v, const TYPE *w, int64_t n) {    \
    TYPE lane[16] = {0};                                                                 \
    int64_t i = 0;                                                                       \
    for (; i + 16 <= n; i += 16)                                                         \
      for (int k = 0; k < 16; k++) lane[k] += v[i + k] * w[i + k];                       \
    for (; i < n; i++) lane[i & 15] += v[i] * w[i];                                      \
    return dm_lanes_##SUFFIX(lane);                                                      \
  }                                                                                      \
  static inline double dm_row_exp_##SUFFIX(const TYPE *v, TYPE by, int64_t n, TYPE *y) { \
    for (int64_t i = 0; i < n; i++) y[i] = dm_exp_##SUFFIX(v[i] - by);                   \
    return dm_row_sum_##SUFFIX(y, n);                                                    \
  }                                                                                      \
  static inline double dm_row_moments_##SUFFIX(const TYPE *v, int64_t n, double *m2) {   \
    const TYPE about = (TYPE)(dm_row_sum_##SUFFIX(v, n) / (double)n);                    \
    TYPE d1[16] = {0}, d2[16] = {0};                                                     \
    int64_t i = 0;                                                                       \
    for (; i + 16 <= n; i += 16)                                                         \
      for (int k = 0; k < 16; k++) {                                                     \
        const TYPE d = v[i + k] - about;                                                 \
        d1[k] += d;                                                                      \
        d2[k] += d * d;                                                                  \
      }                                                                                  \
    for (; i < n; i++) {                                                                 \
      const TYPE d = v[i] - about;                                                       \
      d1[0] += d;                                                                        \
      d2[0] += d * d;                                                                    \
    }                                                                                    \
    const double off = dm_lanes_##SUFFIX(d1);                                            \
    *m2 = dm_lanes_##SUFFIX(d2) - off * off / (double)n;                                 \
    return (double)about + off / (double)n;                                              \
  }
DM_ROWMATH(f32, float)
DM_ROWMATH(f64, double)
#undef DM_ROWMATH

#endif
