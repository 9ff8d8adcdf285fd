/* Matrix products on the device. */
#ifndef DM_KERNELS_GEMM_H
#define DM_KERNELS_GEMM_H

#include "kernels/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "op/linear/matmul.h"

/* The product by our own kernel (gemm.cu): every dtype but bool, every stride; no sums of
   rows. */
dm_status dm_cuda_gemm(const dm_Product *p);

/* The product by cuBLASLt (lt.c), sums of rows and an activation but gelu's erf form
   included. *done false: it is not there, or not for this product, and nothing was written. */
dm_status dm_lt_multiply(const dm_Product *p, bool *done);

/* The activation (not "none") of in (unary.cu); out may be in. */
dm_status dm_cuda_activate(dm_Tensor *out, dm_Activation a, dm_Tensor *in);
/* Its gradient before = gy a'(saved), and that summed over the rows, from one read of
   gy. Matrices; before and sums, a vector, are dense. */
dm_status dm_cuda_activate_backward(dm_Tensor *before, dm_Tensor *sums, dm_Activation a,
                                    dm_Tensor *gy, dm_Tensor *saved);

/* x, summed over the dims in mask (reduce.cu). */
dm_status dm_cuda_sum(dm_Tensor *out, const dm_Tensor *x, unsigned mask);

#ifdef __cplusplus
}
#endif
#endif
