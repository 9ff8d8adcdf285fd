/* Powers of differences for distance.inc: |d|^p forward, and backward sign(d) (|d| / y)^(p - 1)
   for y the distance, a ratio that leaves no type's range. */
#ifndef DM_LOOPS_DISTANCE_POWERS_H
#define DM_LOOPS_DISTANCE_POWERS_H

#include <float.h>

#include "cpu/vmath.h"

/* NaN where dm_pow_near has no result for a difference that is not 0: such sums are computed
   again in float64. */
DM_VMATH float distance_power_f32(float d, float p) {
  const float a = fabsf(d), near = ((a >= FLT_MIN) & (a <= FLT_MAX)) ? a : 1.0f;
  const float power = dm_pow_near(near, p <= FLT_MAX ? p : 0.0f);
  const bool good = (near == a) & (p <= FLT_MAX);
  return good ? power : a == 0.0f ? 0.0f : NAN;
}
DM_VMATH double distance_power_f64(double d, double p) {
  return d == 0 ? 0 : (pow)(fabs(d), p);
}

/* Where d is 0 there is no slope for p < 1, and 0 or NaN, as y is, for p > 1. */
static inline double distance_slope(double d, double y, double p) {
  if (d == 0) return y == y || p < 1 ? 0 : y;
  return copysign((pow)(fabs(d) / y, p - 1), d);
}
/* d[i] becomes its slope. For p = 3 this is a square. */
static void power_slopes_f32(float *d, float y, double p, int n) {
  if (p == 3) {
    for (int i = 0; i < n; i++) {
      const float ratio = fabsf(d[i]) / y;
      d[i] = copysignf(ratio * ratio, d[i]);
    }
    return;
  }
  const float less = (float)(p - 1), bound = fabsf(less) <= FLT_MAX ? FLT_MAX : -1.0f;
  int odd = 0;
  for (int i = 0; i < n; i++) {
    const float ratio = fabsf(d[i]) / y;
    odd |= !(((ratio >= FLT_MIN) & (ratio <= bound)) | ((d[i] == 0) & (y == y)));
  }
  if (odd) {
    for (int i = 0; i < n; i++) d[i] = (float)distance_slope((double)d[i], (double)y, p);
    return;
  }
  for (int i = 0; i < n; i++) {
    const float ratio = fabsf(d[i]) / y;
    const float power = dm_pow_near(d[i] == 0 ? 1.0f : ratio, less);
    d[i] = d[i] == 0 ? 0 : copysignf(power, d[i]);
  }
}
static void power_slopes_f64(double *d, double y, double p, int n) {
  for (int i = 0; i < n; i++) d[i] = distance_slope(d[i], y, p);
}

#endif
