/* Convolutions that are matrix products of whole tensors. conv.c says when; operands as in
   conv.h. */
#ifndef DM_CONV_PRODUCT_H
#define DM_CONV_PRODUCT_H

#include "cpu/conv_dims.h"

/* 1 x 1, stride 1, no padding: y (O, HW) = w (O, C) x (C, HW), for each image and group. */
dm_ConvForwardFn dm_conv_pointwise_fwd;
dm_ConvDxFn dm_conv_pointwise_dx;
dm_ConvDwFn dm_conv_pointwise_dw;

/* Small planes, one group: y (N, O PQ) = x (N, C HW) m^T, with m spread from the weights. */
dm_ConvForwardFn dm_conv_dense_fwd;
dm_ConvDxFn dm_conv_dense_dx;
dm_ConvDwFn dm_conv_dense_dw;

enum { DM_DENSE_PAIRS = 256 }; /* most positions of x times those of y, HW * PQ */

#endif
