/* IDX files, the format of MNIST and Fashion-MNIST: plain or gzip, any of the six
   element types, up to 16 dims, most significant byte first.
   Format: Y. LeCun, C. Cortes, C. Burges, "The MNIST database", 1998. */
#ifndef DM_IDX_H
#define DM_IDX_H

#include "base/dtype.h"

typedef struct dm_Idx {
  dm_DType dtype; /* uint8, int8, int16, int32, float32 or float64 */
  int n_dim;
  int64_t shape[DM_MAX_DIM];
  int64_t n_bytes;
  void *data; /* dense, in the order of this machine; dm_free it */
} dm_Idx;

/* Reads the whole file. The caller owns out->data (dm_free); on a failure
   *out is left as it was. A file that is missing, cut short, damaged, or
   larger or smaller than its header says gives DM_EIO. */
DM_API dm_status dm_idx_read(dm_Idx *out, const char *path);

#endif
