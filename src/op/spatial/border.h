/* What lies around a padded dim where it is filled with the dim's own elements: mirrored
   without repeating the edge, the edge again and again, or the other end. */
#ifndef DM_BORDER_H
#define DM_BORDER_H

#include "engine/op.h"

typedef enum dm_PadMode { DM_CONSTANT, DM_REFLECT, DM_REPLICATE, DM_CIRCULAR } dm_PadMode;

/* A dim of n elements and its borders, which are negative where elements are removed. */
typedef struct dm_Border {
  dm_PadMode mode;
  int64_t n, before, out; /* out: with the borders */
  int64_t kept;           /* without removed elements, which do not come round again */
} dm_Border;

static inline dm_Border dm_border_of(dm_PadMode mode, int64_t n, int64_t before,
                                     int64_t behind) {
  const dm_Border b = {mode, n, before, n + before + behind,
                       n + dm_min_i64(before, 0) + dm_min_i64(behind, 0)};
  return b;
}

/* The element that element o of the padded dim has, for borders that the mode can fill. */
static inline int64_t dm_border_source(const dm_Border *b, int64_t o) {
  const int64_t i = o - b->before;
  if (i >= 0 && i < b->n) return i;
  if (b->mode == DM_CIRCULAR) return i < 0 ? i + b->kept : i - b->kept;
  if (b->mode == DM_REPLICATE) return i < 0 ? 0 : b->n - 1;
  return i < 0 ? -i : 2 * (b->n - 1) - i;
}

/* Borders (before and behind) of dim d of ndim, in the order of pad, which begins with the last
   dim. */
static inline int64_t dm_pad_of(const dm_Ints *pad, int ndim, int d, int side) {
  const int64_t k = 2 * (int64_t)(ndim - 1 - d) + side;
  return k < pad->n ? pad->v[k] : 0;
}

#endif
