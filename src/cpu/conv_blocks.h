/* Depthwise convolutions of many channels. conv.c says when; operands as in conv.h. */
#ifndef DM_CONV_BLOCKS_H
#define DM_CONV_BLOCKS_H

#include "cpu/conv_dims.h"

dm_ConvForwardFn dm_conv_blocks_fwd;
dm_ConvDxFn dm_conv_blocks_dx;
dm_ConvDwFn dm_conv_blocks_dw;

#endif
