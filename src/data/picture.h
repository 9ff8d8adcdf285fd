/* A picture as it travels from a decoder through the transforms: 8 bits a sample,
   planes (C,H,W) as tensors have them or pixels (H,W,C) as files do. */
#ifndef DM_PICTURE_H
#define DM_PICTURE_H

#include "base/base.h"

typedef struct dm_Picture {
  int64_t channels, height, width;
  int64_t c_step, h_step, w_step; /* bytes from a sample to the next in that dim; of a
                                     mirror image below 0 */
  uint8_t *data;
} dm_Picture;

/* Decoders refuse more: some bytes of a file could ask for all memory. */
enum { DM_PICTURE_MAX_PIXELS = 1 << 28 };
typedef enum dm_Filter { DM_FILTER_NEAREST, DM_FILTER_BILINEAR, DM_FILTER_BICUBIC } dm_Filter;

/* Dense planes (C,H,W) at data. */
static inline dm_Picture dm_picture_dense(uint8_t *data, int64_t channels, int64_t height,
                                          int64_t width) {
  return (dm_Picture){channels, height, width, height * width, width, 1, data};
}

/* dst, of the same channels and any size = src made larger or smaller. The filter is as
   wide as a pixel of the smaller one (antialias). Sizes are 1 at least. Pillow's
   arithmetic: columns first, rounded to 8 bits, then rows. */
dm_status dm_picture_resize(const dm_Picture *dst, const dm_Picture *src, dm_Filter filter);

#endif
