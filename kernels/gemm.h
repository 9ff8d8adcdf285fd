/* Matrix products on the device. */
#ifndef DM_KERNELS_GEMM_H
#define DM_KERNELS_GEMM_H

#include "kernels/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "op/linear/matmul.h"

/* The product by cuBLASLt, or else by our own kernel (matmul.c). *p is changed. */
dm_status dm_cuda_multiply(dm_Product *p);

/* The product by our own kernel (gemm.cu): every dtype but bool and every stride, but no
   row_sums. */
dm_status dm_cuda_gemm(const dm_Product *p);

/* The product by cuBLASLt (lt.c), with row_sums and, but for float64, gelu's tanh form.
 *done is false if it is missing or refuses; nothing was written then. */
dm_status dm_lt_multiply(const dm_Product *p, bool *done);

/* out = activation(in), for an activation other than none (unary.cu); out may be in. */
dm_status dm_cuda_activate(dm_Tensor *out, dm_Activation a, dm_Tensor *in);
/* before = gy a'(saved), and sums (columns) = before summed over its rows, in one read of gy.
   gy and saved are matrices; before and sums are dense. */
dm_status dm_cuda_activate_backward(dm_Tensor *before, dm_Tensor *sums, dm_Activation a,
                                    dm_Tensor *gy, dm_Tensor *saved);

/* out = x summed over the dims in mask (reduce.cu). */
dm_status dm_cuda_sum(dm_Tensor *out, const dm_Tensor *x, unsigned mask);

#ifdef __cplusplus
}
#endif
#endif
