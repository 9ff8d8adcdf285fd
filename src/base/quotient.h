/* Division of numbers that are not negative; on a GPU cheap where they are small,
   as counts and positions are. */
#ifndef DM_QUOTIENT_H
#define DM_QUOTIENT_H

#include "base/base.h"

static inline DM_HD int64_t dm_quotient(int64_t a, int64_t b) {
  return (a | b) >> 32 == 0 ? (int64_t)((uint32_t)a / (uint32_t)b) : a / b;
}

#endif
