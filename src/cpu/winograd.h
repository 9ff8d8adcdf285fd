/* 3 x 3 convolutions with stride 1 by Winograd's F(2 x 2, 3 x 3): 16 products
   for 4 outputs in place of 36, either way and for dw. conv.c asks; operands as in
   conv.h. */
#ifndef DM_WINOGRAD_H
#define DM_WINOGRAD_H

#include "cpu/conv.h"

bool dm_conv2d_is_winograd(const dm_ConvDims *d, dm_DType t);

dm_status dm_winograd_fwd(const dm_ConvDims *d, dm_DType t, const void *x, const void *w,
                          const void *bias, void *y);
dm_status dm_winograd_dx(const dm_ConvDims *d, dm_DType t, const void *dy, const void *w,
                         void *dx);

/* Is it worth it for dw? */
bool dm_conv2d_dw_is_winograd(const dm_ConvDims *d, dm_DType t);
dm_status dm_winograd_dw(const dm_ConvDims *d, dm_DType t, const void *dy, const void *x,
                         void *dw);

#endif
