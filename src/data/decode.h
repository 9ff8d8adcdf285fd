/* Images out of files, JPEG or PNG, told apart by how they begin. */
#ifndef DM_DECODE_H
#define DM_DECODE_H

#include "base/base.h"
#include "data/image.h"

typedef enum dm_ImageMode {
  DM_IMAGE_UNCHANGED, /* the channels of the file: 1 gray, 2 gray and alpha, 3, 4 */
  DM_IMAGE_GRAY,      /* 1: 0.299 red + 0.587 green + 0.114 blue; alpha is dropped */
  DM_IMAGE_RGB        /* 3: gray three times; alpha is dropped */
} dm_ImageMode;

typedef struct dm_ImageHow {
  dm_ImageMode mode;
  bool exif; /* turned and mirrored as Exif's orientation says */
} dm_ImageHow;

/* An image with dense pixels (H,W,C); the caller owns out->data (dm_free), and on a
   failure *out is left as it was. Nothing that is cut short or damaged is given: DM_EIO.
   `name` is for messages. */
DM_API dm_status dm_image_decode(dm_Image *out, const dm_ImageHow *how, const uint8_t *bytes,
                                 int64_t n_bytes, const char *name);
DM_API dm_status dm_image_read(dm_Image *out, const dm_ImageHow *how, const char *path);

#endif
