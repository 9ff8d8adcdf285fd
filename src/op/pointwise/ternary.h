/* Shared by the kernels of the pointwise ops of three operands on every device. */
#ifndef DM_TERNARY_H
#define DM_TERNARY_H

#include <math.h>

#include "base/triple.h"
#include "engine/op.h"

/* A bound that is not there is infinite. */
static inline double dm_clamp_low(const dm_ClampAttr *a) {
  return a->min.set ? a->min.v : (double)-INFINITY;
}
static inline double dm_clamp_high(const dm_ClampAttr *a) {
  return a->max.set ? a->max.v : (double)INFINITY;
}

/* out = cond ? x : y, elementwise, in the compute type of out. */
dm_status dm_choose(dm_Tensor *out, dm_Tensor *cond, dm_Tensor *x, dm_Tensor *y);

#endif
