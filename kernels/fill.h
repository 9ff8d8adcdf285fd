/* Constant elements, and copies; see cast.cu. */
#ifndef DM_KERNELS_FILL_H
#define DM_KERNELS_FILL_H

#include "kernels/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

dm_status dm_cuda_fill(dm_Tensor *t, double value);
/* Copies `in` into `out`, broadcast and converted. Windows will do; `in` may be a
   host number. */
dm_status dm_cuda_copy(dm_Tensor *out, dm_Tensor *in);
/* out = a + b, floats, broadcast; windows will do. See binary.cu. */
dm_status dm_cuda_add(dm_Tensor *out, dm_Tensor *a, dm_Tensor *b);

#ifdef __cplusplus
}
#endif
#endif
