/* Shared by the kernels of the pointwise ops of three operands on every device. */
#ifndef DM_TERNARY_H
#define DM_TERNARY_H

#include <math.h>

#include "engine/op.h"

typedef struct dm_ClampAttr {
  dm_OptNum min, max;
} dm_ClampAttr;

/* A bound that is not there is infinite. */
static inline double dm_clamp_low(const dm_ClampAttr *a) {
  return a->min.set ? a->min.v : (double)-INFINITY;
}
static inline double dm_clamp_high(const dm_ClampAttr *a) {
  return a->max.set ? a->max.v : (double)INFINITY;
}

/* Truncated to what int64 holds: a bound beyond it, or an absent one, is its nearest end. */
static inline int64_t dm_saturate_i64(double v) {
  return v < -0x1p63 ? INT64_MIN : v >= 0x1p63 ? INT64_MAX : (int64_t)v;
}

#endif
