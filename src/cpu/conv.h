/* 2-d convolution on raw memory, NCHW: an implicit matrix product; no im2col
   matrix in memory beyond a packing buffer. */
#ifndef DM_CONV_H
#define DM_CONV_H

#include "base/dtype.h"

/* x (N,C,H,W), w (O,C/G,R,S) -> y (N,O,P,Q), all dense and of one dtype
   (f16 bf16 f32 f64); arithmetic in the compute type, one rounding at the
   store. P = (H + 2*pad - dil*(R-1) - 1) / stride + 1, likewise Q. */
typedef struct dm_ConvDims {
  int64_t n, c, h, w, o, r, s, p, q, groups;
  int64_t stride[2], pad[2], dil[2];
} dm_ConvDims;

dm_status dm_conv2d_fwd(const dm_ConvDims *d, dm_DType t, const void *x, const void *w,
                        const void *bias /* (O) or NULL */, void *y);
dm_status dm_conv2d_dx(const dm_ConvDims *d, dm_DType t, const void *dy, const void *w,
                       void *dx);
dm_status dm_conv2d_dw(const dm_ConvDims *d, dm_DType t, const void *dy, const void *x,
                       void *dw);

#endif
