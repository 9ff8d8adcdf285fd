/* Statistics of a float tensor's elements: are all finite, and how would their magnitudes fit
   into float16? A tensor of another device is copied to the host, which waits. When the copy
   fails, the tensor counts as finite, and its elements are not counted. */
#ifndef DM_STATS_H
#define DM_STATS_H

#include "core/tensor.h"

enum { DM_EXP_MIN = -149, DM_EXP_MAX = 127, DM_N_EXP = DM_EXP_MAX - DM_EXP_MIN + 1 };

/* Finite numbers other than 0 that float16 cannot hold, or only with fewer digits. */
typedef struct dm_HalfFit {
  int64_t lost;      /* round to 0: up to 2^-25 */
  int64_t subnormal; /* lose digits: below 2^-14 */
  int64_t overflow;  /* round to inf: from 65520 */
} dm_HalfFit;

typedef struct dm_FloatStats {
  int64_t n, zero, inf, nan;
  double largest;             /* magnitude among the finite ones */
  int64_t exponent[DM_N_EXP]; /* [e - DM_EXP_MIN]: 2^e <= |x| < 2^(e+1); the ends count all
                                 beyond */
  dm_HalfFit plain, scaled;   /* of the elements, and of the elements times the scale */
} dm_FloatStats;

/* True for tensors of integers, too. */
bool dm_all_finite(const dm_Tensor *t);
/* Adds the elements of t, each times `factor`, to the counts. */
void dm_float_stats(const dm_Tensor *t, double factor, double scale, dm_FloatStats *c);

#endif
