/* 2-d convolution on raw memory, NCHW. conv.c lists the algorithms. */
#ifndef DM_CONV_H
#define DM_CONV_H

#include "cpu/conv_dims.h"

dm_ConvForwardFn dm_conv2d_fwd;
dm_ConvDxFn dm_conv2d_dx;
dm_ConvDwFn dm_conv2d_dw;

#endif
