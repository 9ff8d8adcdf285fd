/* Convolutions that one matrix product does: 1 x 1 on large planes, and planes
   so small that most taps fall outside. conv.c asks; operands as in conv.h. */
#ifndef DM_CONV_PRODUCT_H
#define DM_CONV_PRODUCT_H

#include "cpu/conv.h"

/* `made`: how many channels are wanted; 0: dw, whose sums run over images. None of d's
   sizes is 0. */
bool dm_conv2d_is_product(const dm_ConvDims *d, dm_DType t, int64_t made);

dm_status dm_conv2d_product_fwd(const dm_ConvDims *d, dm_DType t, const void *x, const void *w,
                                const void *bias, void *y);
dm_status dm_conv2d_product_dx(const dm_ConvDims *d, dm_DType t, const void *dy, const void *w,
                               void *dx);
dm_status dm_conv2d_product_dw(const dm_ConvDims *d, dm_DType t, const void *dy, const void *x,
                               void *dw);

#endif
