/* Division of numbers that are not negative; on a GPU cheap where they are small, as counts
   and positions are: it has no divider of 64 bits, and a division of 32 takes far fewer
   instructions. */
#ifndef DM_QUOTIENT_H
#define DM_QUOTIENT_H

#include "base/base.h"

static inline DM_HD int64_t dm_quotient(int64_t a, int64_t b) {
  return (a | b) >> 32 == 0 ? (int64_t)((uint32_t)a / (uint32_t)b) : a / b;
}

#endif
