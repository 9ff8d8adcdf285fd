/* Loops over one row in float and double that a compiler can vectorise: sums
   run in independent lanes, which are then joined in a fixed order. */
#ifndef DM_ROWMATH_H
#define DM_ROWMATH_H

#include "cpu/vmath.h"

enum { DM_LANES = 32 };
#define DM_EACH_LANE DM_KEEP_LOOP for (int k = 0; k < DM_LANES; k++)

/* max of a row (NaN may be lost); sum; sum of v*w; sums of v and of v (w - by);
   exp(v - by) into y and its sum; and the mean with the sum of squared differences
   from it. */
#define DM_ROWMATH(SUFFIX, TYPE)                                                            \
  static inline TYPE dm_row_max_##SUFFIX(const TYPE *v, int64_t n) {                        \
    TYPE lane[DM_LANES], best = v[0];                                                       \
    int64_t i = 0;                                                                          \
    for (int k = 0; k < DM_LANES; k++) lane[k] = best;                                      \
    for (; i + DM_LANES <= n; i += DM_LANES)                                                \
      DM_EACH_LANE lane[k] = v[i + k] > lane[k] ? v[i + k] : lane[k];                       \
    for (; i < n; i++) best = v[i] > best ? v[i] : best;                                    \
    for (int k = 0; k < DM_LANES; k++) best = lane[k] > best ? lane[k] : best;              \
    return best;                                                                            \
  }                                                                                         \
  static inline double dm_lanes_##SUFFIX(const TYPE *lane) {                                \
    double s = 0;                                                                           \
    for (int k = 0; k < DM_LANES; k++) s += (double)lane[k];                                \
    return s;                                                                               \
  }                                                                                         \
  static inline double dm_row_sum_##SUFFIX(const TYPE *v, int64_t n) {                      \
    TYPE lane[DM_LANES] = {0};                                                              \
    int64_t i = 0;                                                                          \
    for (; i + DM_LANES <= n; i += DM_LANES) DM_EACH_LANE lane[k] += v[i + k];              \
    for (; i < n; i++) lane[i % DM_LANES] += v[i];                                          \
    return dm_lanes_##SUFFIX(lane);                                                         \
  }                                                                                         \
  static inline double dm_row_dot_##SUFFIX(const TYPE *v, const TYPE *w, int64_t n) {       \
    TYPE lane[DM_LANES] = {0};                                                              \
    int64_t i = 0;                                                                          \
    for (; i + DM_LANES <= n; i += DM_LANES) DM_EACH_LANE lane[k] += v[i + k] * w[i + k];   \
    for (; i < n; i++) lane[i % DM_LANES] += v[i] * w[i];                                   \
    return dm_lanes_##SUFFIX(lane);                                                         \
  }                                                                                         \
  static inline void dm_row_sums_##SUFFIX(const TYPE *v, const TYPE *w, TYPE by, int64_t n, \
                                          double *sum, double *dot) {                       \
    TYPE s[DM_LANES] = {0}, d[DM_LANES] = {0};                                              \
    int64_t i = 0;                                                                          \
    for (; i + DM_LANES <= n; i += DM_LANES) DM_EACH_LANE {                                 \
        s[k] += v[i + k];                                                                   \
        d[k] += v[i + k] * (w[i + k] - by);                                                 \
      }                                                                                     \
    for (; i < n; i++) {                                                                    \
      s[i % DM_LANES] += v[i];                                                              \
      d[i % DM_LANES] += v[i] * (w[i] - by);                                                \
    }                                                                                       \
    *sum = dm_lanes_##SUFFIX(s);                                                            \
    *dot = dm_lanes_##SUFFIX(d);                                                            \
  }                                                                                         \
  static inline double dm_row_exp_##SUFFIX(const TYPE *v, TYPE by, int64_t n, TYPE *y) {    \
    for (int64_t i = 0; i < n; i++) y[i] = dm_exp_##SUFFIX(v[i] - by);                      \
    return dm_row_sum_##SUFFIX(y, n);                                                       \
  }                                                                                         \
  static inline double dm_row_moments_##SUFFIX(const TYPE *v, int64_t n, double *m2) {      \
    const TYPE about = (TYPE)(dm_row_sum_##SUFFIX(v, n) / (double)n);                       \
    TYPE d1[DM_LANES] = {0}, d2[DM_LANES] = {0};                                            \
    int64_t i = 0;                                                                          \
    for (; i + DM_LANES <= n; i += DM_LANES) DM_EACH_LANE {                                 \
        const TYPE d = v[i + k] - about;                                                    \
        d1[k] += d;                                                                         \
        d2[k] += d * d;                                                                     \
      }                                                                                     \
    for (; i < n; i++) {                                                                    \
      const TYPE d = v[i] - about;                                                          \
      d1[0] += d;                                                                           \
      d2[0] += d * d;                                                                       \
    }                                                                                       \
    const double off = dm_lanes_##SUFFIX(d1);                                               \
    *m2 = dm_lanes_##SUFFIX(d2) - off * off / (double)n;                                    \
    return (double)about + off / (double)n;                                                 \
  }
DM_ROWMATH(f32, float)
DM_ROWMATH(f64, double)
#undef DM_ROWMATH

#endif
