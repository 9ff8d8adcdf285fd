/* 3 x 3 convolutions with stride 1 by Winograd's F(2 x 2, 3 x 3): 16 products
   for 4 outputs in place of 36. conv.c asks; operands as in conv.h. */
#ifndef DM_WINOGRAD_H
#define DM_WINOGRAD_H

#include "cpu/conv.h"

bool dm_conv2d_is_winograd(const dm_ConvDims *d, dm_DType t);

dm_status dm_winograd_fwd(const dm_ConvDims *d, dm_DType t, const void *x, const void *w,
                          const void *bias, void *y);
dm_status dm_winograd_dx(const dm_ConvDims *d, dm_DType t, const void *dy, const void *w,
                         void *dx);

#endif
