/* Fill, copy and add on the device, for other files (cast.cu, binary.cu). */
#ifndef DM_KERNELS_FILL_H
#define DM_KERNELS_FILL_H

#include "kernels/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

dm_status dm_cuda_fill(dm_Tensor *t, double value);
/* Copies `in`, broadcast and converted, into `out`. Both may be views; `in` may be a host
   number. */
dm_status dm_cuda_copy(dm_Tensor *out, dm_Tensor *in);
/* out = a + b in a float dtype, broadcast; all may be views. */
dm_status dm_cuda_add(dm_Tensor *out, dm_Tensor *a, dm_Tensor *b);

#ifdef __cplusplus
}
#endif
#endif
