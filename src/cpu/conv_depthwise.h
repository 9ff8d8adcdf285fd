/* Convolutions whose groups have one input channel each. conv.c says when; operands as in
   conv.h. */
#ifndef DM_CONV_DEPTHWISE_H
#define DM_CONV_DEPTHWISE_H

#include "cpu/conv_dims.h"

dm_ConvForwardFn dm_conv_depthwise_fwd;
dm_ConvDxFn dm_conv_depthwise_dx;
dm_ConvDwFn dm_conv_depthwise_dw;

#endif
