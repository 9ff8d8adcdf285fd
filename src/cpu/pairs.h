/* Rows of bfloat16 joined to pairs in vectors of 64 bytes. */
#ifndef DM_PAIRS_H
#define DM_PAIRS_H

#include <stdint.h>

#include "cpu/transpose.h"

enum { DM_JOINED = 32 }; /* columns that are joined at once */

/* to[j] = first[j] in the low half and second[j] in the high half, for 32 columns j. Numbers
   are interleaved within each 16 bytes, which are then brought into the columns' order. */
static inline __attribute__((always_inline)) void
dm_join_rows(const uint16_t *first, const uint16_t *second, uint32_t *to) {
  typedef uint16_t Numbers __attribute__((vector_size(64)));
  typedef Numbers NumbersAt __attribute__((aligned(2), may_alias));
  typedef uint64_t Parts __attribute__((vector_size(64)));
  typedef Parts PartsAt __attribute__((aligned(4), may_alias));
  const Numbers x = *(const NumbersAt *)(const void *)first;
  const Numbers y = *(const NumbersAt *)(const void *)second;
  const Parts low = (Parts)PICK(x, y, 0, 32, 1, 33, 2, 34, 3, 35, 8, 40, 9, 41, 10, 42, 11, 43,
                                16, 48, 17, 49, 18, 50, 19, 51, 24, 56, 25, 57, 26, 58, 27, 59);
  const Parts high =
      (Parts)PICK(x, y, 4, 36, 5, 37, 6, 38, 7, 39, 12, 44, 13, 45, 14, 46, 15, 47, 20, 52, 21,
                  53, 22, 54, 23, 55, 28, 60, 29, 61, 30, 62, 31, 63);
  *(PartsAt *)(void *)to = PICK(low, high, 0, 1, 8, 9, 2, 3, 10, 11);
  *(PartsAt *)(void *)(to + 16) = PICK(low, high, 4, 5, 12, 13, 6, 7, 14, 15);
}

#endif
