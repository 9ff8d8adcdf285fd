/* What other families draw from a generator. */
#ifndef DM_RANDOM_H
#define DM_RANDOM_H

#include "base/rng.h"
#include "engine/op.h"

typedef struct dm_DropAttr {
  double p;
  int64_t seed, offset;
} dm_DropAttr;

/* Moves the generator on by what n elements of dropout use, and says where it was. */
dm_DropAttr dm_drop_attr(double p, int64_t n);

/* Numbers in [0, 1): elements first .. first + n - 1 of the draw that op drop
   compares with p; what falls below p is dropped. */
void dm_drop_draw(const dm_DropAttr *a, int64_t first, int64_t n, float *out);

#endif
