/* What numbers a tensor of floats holds: whether all are finite, and how their
   magnitudes would fit into float16. Of another device's tensor a copy is looked
   at, which waits; one that cannot be had counts as finite, and as none. */
#ifndef DM_STATS_H
#define DM_STATS_H

#include "core/tensor.h"

enum { DM_EXP_MIN = -149, DM_EXP_MAX = 127, DM_N_EXP = DM_EXP_MAX - DM_EXP_MIN + 1 };

/* Finite numbers other than 0 that float16 would not hold as they are. */
typedef struct dm_HalfFit {
  int64_t lost;      /* round to 0: up to 2^-25 */
  int64_t subnormal; /* lose digits: below 2^-14 */
  int64_t overflow;  /* round to inf: from 65520 */
} dm_HalfFit;

typedef struct dm_FloatStats {
  int64_t n, zero, inf, nan;
  double largest; /* magnitude among the finite ones */
  int64_t
      exponent[DM_N_EXP];   /* [e - DM_EXP_MIN]: 2^e <= |x| < 2^(e+1); the ends hold the rest */
  dm_HalfFit plain, scaled; /* as they are, and times the scale */
} dm_FloatStats;

/* True of what is no float, too. */
bool dm_all_finite(const dm_Tensor *t);
/* Adds the elements of t, each times `factor`, to the census. */
void dm_float_stats(const dm_Tensor *t, double factor, double scale, dm_FloatStats *c);

#endif
