/* Sums and products of sizes that a script gives. Beyond int64 they stay at its limits, which
   no tensor can hold, so that the check of a shape refuses them. */
#ifndef DM_SIZES_H
#define DM_SIZES_H

#include "base/base.h"

/* a + b, or the limit of int64 that the sum passes. */
static inline int64_t dm_add_sizes(int64_t a, int64_t b) {
  int64_t r;
  return __builtin_add_overflow(a, b, &r) ? (b < 0 ? INT64_MIN : INT64_MAX) : r;
}
/* a * b, or the limit of int64 that the product passes. */
static inline int64_t dm_mul_sizes(int64_t a, int64_t b) {
  int64_t r;
  return __builtin_mul_overflow(a, b, &r) ? ((a < 0) != (b < 0) ? INT64_MIN : INT64_MAX) : r;
}

#endif
