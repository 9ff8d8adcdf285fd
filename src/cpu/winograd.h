/* 3 x 3 convolutions with stride 1 and dilation 1, of one group, by Winograd's minimal
   filtering F(4 x 4, 3 x 3) or F(2 x 2, 3 x 3). conv.c says when; operands as in conv.h. */
#ifndef DM_WINOGRAD_H
#define DM_WINOGRAD_H

#include "cpu/conv_dims.h"

enum {
  DM_WINOGRAD_STRIP = 16,   /* tiles of a strip */
  DM_WINOGRAD_DW_TILES = 64 /* fewer do not pay for sixteen matrices of sums in dw */
};

dm_ConvForwardFn dm_winograd_fwd;
dm_ConvDxFn dm_winograd_dx;
dm_ConvDwFn dm_winograd_dw;
/* Whether forward and dw, or dx, use tiles of 4 x 4 outputs. */
bool dm_winograd_is_large(const dm_ConvDims *d, bool dx);

#endif
