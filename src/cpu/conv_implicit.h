/* Convolution of any shape as an implicit matrix product: the im2col matrix exists only as
   strips of a few positions. conv_implicit.c has forward and dx, conv_implicit_dw.c dw;
   operands as in conv.h. */
#ifndef DM_CONV_IMPLICIT_H
#define DM_CONV_IMPLICIT_H

#include "cpu/conv_dims.h"
#include "cpu/conv_tiles.h"
#include "cpu/gemm_kernel.h"

dm_ConvForwardFn dm_conv_implicit_fwd;
dm_ConvDxFn dm_conv_implicit_dx;
dm_ConvDwFn dm_conv_implicit_dw;

/* Fills dx (N,C,H,W) with the bias (C), or with 0. */
void dm_conv_fill(const dm_ConvDims *d, dm_DType t, const void *bias, void *dx);

/* ---- shared by the two sources ---- */

enum { DM_CONV_TASK_WORK = 1 << 18 }; /* multiply-adds worth a task */

/* x as the forward pass and dw read it. taps: buffer for R + S offsets. */
dm_ConvInput dm_conv_input(const dm_ConvDims *d, dm_DType t, const void *x, int64_t *taps);

/* The kernel that multiplies what `gather_kernel` gathers, for `out` output channels of a
   group: pairs of bfloat16 where there are such, else gather_kernel itself. One channel
   alone does not pay for joining pairs. */
const dm_Kernel *dm_conv_multiply_kernel(const dm_Kernel *gather_kernel, dm_DType t,
                                         int64_t out);

dm_status dm_conv_no_memory(const char *op);

#endif
