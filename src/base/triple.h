/* The formulas of triple.inc need this on every device: the number of each formula, and
   how its parameters p and q become integers. */
#ifndef DM_TRIPLE_H
#define DM_TRIPLE_H

#include "base/base.h"

enum {
#define TRIPLE(NAME, ...) DM_TRIPLE_##NAME,
#include "base/triple.inc"
  DM_N_TRIPLE
};

/* Truncated to what int64 holds: a bound beyond it, or an absent one, is its nearest end. */
static inline int64_t dm_saturate_i64(double v) {
  return v < -0x1p63 ? INT64_MIN : v >= 0x1p63 ? INT64_MAX : (int64_t)v;
}

#endif
