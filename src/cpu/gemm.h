/* Matrix products. Row-major; every element type below computes in its
   compute type (float32, or float64 for float64) and rounds once at the store. */
#ifndef DM_GEMM_H
#define DM_GEMM_H

#include "cpu/matrix.h"

typedef enum dm_BiasAxis { DM_BIAS_NONE, DM_BIAS_PER_COL, DM_BIAS_PER_ROW } dm_BiasAxis;

/* c (m,n) = beta * c + alpha * a (m,k) b (k,n) [+ bias]. c rows have stride
   ldc and unit column stride. beta 0 never reads c. bias_col: bias[j] per
   column (linear), bias_row: bias[i] per row (conv), in dtype bias_dtype.
   Returns DM_EMEM when packing buffers cannot be had. Parallel inside; the
   result does not depend on the thread count. */
dm_status dm_gemm(int64_t m, int64_t n, int64_t k, double alpha, dm_Mat a, dm_Mat b,
                  double beta, void *c, dm_DType c_dtype, int64_t ldc, const void *bias,
                  dm_DType bias_dtype, dm_BiasAxis bias_axis);

/* n_batch independent products, as above, c at c + i*c_step etc. (steps in elements). */
dm_status dm_gemm_batched(int64_t n_batch, int64_t m, int64_t n, int64_t k, double alpha,
                          dm_Mat a, int64_t a_step, dm_Mat b, int64_t b_step, double beta,
                          void *c, dm_DType c_dtype, int64_t ldc, int64_t c_step);

#endif
