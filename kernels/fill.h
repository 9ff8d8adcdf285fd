/* Constant and copied elements; see cast.cu. */
#ifndef DM_KERNELS_FILL_H
#define DM_KERNELS_FILL_H

#include "kernels/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

dm_status dm_cuda_fill(dm_Tensor *t, double value);
/* in broadcasts to out and is cast to its dtype. */
dm_status dm_cuda_copy(dm_Tensor *out, dm_Tensor *in);

#ifdef __cplusplus
}
#endif
#endif
