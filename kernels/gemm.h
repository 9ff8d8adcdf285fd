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

/* The product by cuBLASLt (lt.c), an activation but gelu's erf form included. *done
   false: it is not there, or not for this product, and nothing was written. */
dm_status dm_lt_multiply(const dm_Product *p, bool *done);

/* The activation (not "none") of in (unary.cu); out may be in. */
dm_status dm_cuda_activate(dm_Tensor *out, dm_Activation a, dm_Tensor *in);

#ifdef __cplusplus
}
#endif
#endif
