/* Constant elements; see cast.cu. */
#ifndef DM_KERNELS_FILL_H
#define DM_KERNELS_FILL_H

#include "kernels/cuda.h"

#ifdef __cplusplus
extern "C"
#endif
    dm_status
    dm_cuda_fill(dm_Tensor *t, double value);

#endif
