/* Reductions over ranks in the order of the ranks, or in one tree over them, so that the bits
   of a result depend on nothing else: neither on the library that carried the parts nor on the
   size of the slices. */
#ifndef DM_DIST_REDUCE_H
#define DM_DIST_REDUCE_H

#include "base/dtype.h"

typedef enum dm_RankOp {
  DM_RANK_SUM,
  DM_RANK_AVG, /* floats only */
  DM_RANK_MIN, /* NaN where one is NaN */
  DM_RANK_MAX,
  DM_RANK_PRODUCT,
  DM_RANK_BAND, /* integers and bool only */
  DM_RANK_BOR,
  DM_RANK_TREE /* a sum of halves, which are sums of halves: n_part is a power of two */
} dm_RankOp;

/* Parts of n elements of a dtype, which has `size` bytes: one behind the other at `parts`, but
   for part `own` (-1: none), which lies at own_part. */
typedef struct dm_RankParts {
  dm_DType dtype;
  int64_t size, n;
  const void *parts;
  int own;
  const void *own_part;
} dm_RankParts;

/* out: (n), the first part, the own one, or other memory. Floats of less than 32 bits are
   combined in float32 and rounded once; integers wrap; of bool a sum is "any" and a product
   "all". */
void dm_rank_reduce(dm_RankOp op, int n_part, const dm_RankParts *parts, void *out);

#endif
