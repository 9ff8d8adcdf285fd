/* What constant and random tensors share: their sizes and their rule. */
#ifndef DM_CREATE_H
#define DM_CREATE_H

#include "engine/op.h"

typedef struct dm_SizedAttr {
  dm_Ints size;
  int64_t dtype, device;
} dm_SizedAttr;

/* Output 0: `size`, of dtype (or `standard` when none is given), on device. */
void dm_out_sized(dm_Call *c, dm_Ints size, int64_t dtype, dm_DType standard, int64_t device);

#endif
