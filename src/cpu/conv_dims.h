/* The sizes of a 2-d convolution, and the types of the functions that compute one. */
#ifndef DM_CONV_DIMS_H
#define DM_CONV_DIMS_H

#include "base/dtype.h"

/* x (N,C,H,W), w (O,C/G,R,S) -> y (N,O,P,Q), all dense and of one dtype
   (f16 bf16 f32 f64); arithmetic in the compute type, one rounding at the
   store. P = (H + 2*pad - dil*(R-1) - 1) / stride + 1, likewise Q. */
typedef struct dm_ConvDims {
  int64_t n, c, h, w, o, r, s, p, q, groups;
  int64_t stride[2], pad[2], dil[2];
} dm_ConvDims;

/* bias: one number a channel of the result, (O) of y and (C) of dx, or NULL. */
typedef dm_status dm_ConvForwardFn(const dm_ConvDims *d, dm_DType t, const void *x,
                                   const void *w, const void *bias, void *y);
typedef dm_status dm_ConvDxFn(const dm_ConvDims *d, dm_DType t, const void *dy, const void *w,
                              const void *bias, void *dx);
typedef dm_status dm_ConvDwFn(const dm_ConvDims *d, dm_DType t, const void *dy, const void *x,
                              void *dw);

#endif
