/* Distances of all pairs of rows: what the kernels of every device share. */
#ifndef DM_DISTANCE_H
#define DM_DISTANCE_H

#include <math.h>

#include "base/base.h"

/* What p is; the kinds without a root come first. */
typedef enum dm_DistanceKind {
  DM_DISTANCE_0,
  DM_DISTANCE_1,
  DM_DISTANCE_2,
  DM_DISTANCE_INF,
  DM_DISTANCE_P
} dm_DistanceKind;
static inline dm_DistanceKind dm_distance_kind(double p) {
  if (p == 0) return DM_DISTANCE_0;
  if (p == 1) return DM_DISTANCE_1;
  if (p == 2) return DM_DISTANCE_2;
  return p == (double)INFINITY ? DM_DISTANCE_INF : DM_DISTANCE_P;
}

/* Where the pair (i, j) of a triangle of n rows lies, less j. */
static inline DM_HD int64_t dm_triangle_row(int64_t i, int64_t n) {
  return i * (2 * n - i - 3) / 2 - 1;
}

#endif
