/* The dtype table. Source of promotion: PyTorch's type promotion lattice. */
#include "base/dtype.h"

#include <string.h>

/* Bytes of an element and names, in the order of dm_DType. */
const uint8_t dm_dtype_sizes[DM_N_DTYPE] = {1, 1, 1, 2, 4, 8, 2, 2, 4, 8};
static const char *const names[DM_N_DTYPE] = {"bool",    "uint8",  "int8",    "int16",
                                              "int32",   "int64",  "float16", "bfloat16",
                                              "float32", "float64"};

const char *dm_dtype_name(dm_DType d) { return d >= 0 && d < DM_N_DTYPE ? names[d] : "none"; }

/* The dtype of that name, or DM_NO_DTYPE. A name is found by search: ten are few. */
dm_DType dm_dtype_find(const char *name) {
  for (int d = 0; d < DM_N_DTYPE; d++)
    if (strcmp(names[d], name) == 0) return (dm_DType)d;
  return DM_NO_DTYPE;
}

/* Along the ORDER the larger wins, but for two pairs that have no order:
   uint8 with int8 needs int16, float16 with bfloat16 needs float32. */
dm_DType dm_promote(dm_DType a, dm_DType b) {
  if ((a == DM_U8 && b == DM_I8) || (a == DM_I8 && b == DM_U8)) return DM_I16;
  if ((a == DM_F16 && b == DM_BF16) || (a == DM_BF16 && b == DM_F16)) return DM_F32;
  return a > b ? a : b;
}
