/* A picture as it travels from a decoder through the transforms: 8 bits a sample,
   planes (C,H,W) as tensors have them or pixels (H,W,C) as files do. */
#ifndef DM_PICTURE_H
#define DM_PICTURE_H

#include "base/base.h"

typedef struct dm_Picture {
  int64_t channels, height, width;
  int64_t c_step, h_step, w_step; /* bytes from a sample to the next in that dim */
  uint8_t *data;
} dm_Picture;

/* Decoders refuse more: some bytes of a file could ask for all memory. */
enum { DM_PICTURE_MAX_PIXELS = 1 << 28 };

#endif
