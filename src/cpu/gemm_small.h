/* Products that are over before a plan of them is made. */
#ifndef DM_GEMM_SMALL_H
#define DM_GEMM_SMALL_H

#include "cpu/matrix.h"

/* c = a b [+ bias, one a column, or NULL] as dm_gemm would give it, to the last bit.
   False: not so small, nothing done. */
bool dm_gemm_small(int64_t m, int64_t n, int64_t k, const dm_Mat *a, const dm_Mat *b, void *c,
                   dm_DType c_dtype, int64_t ldc, const void *bias, dm_DType bias_dtype);

#endif
