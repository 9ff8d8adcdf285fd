/* Matrix products on the device. */
#ifndef DM_KERNELS_GEMM_H
#define DM_KERNELS_GEMM_H

#include "kernels/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "op/matmul.h"

/* The product by our own kernel (gemm.cu): every dtype but bool, every stride. */
dm_status dm_cuda_gemm(const dm_Product *p);

#ifdef __cplusplus
}
#endif
#endif
