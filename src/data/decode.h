/* Pictures out of files, JPEG or PNG, told apart by how they begin. */
#ifndef DM_DECODE_H
#define DM_DECODE_H

#include "base/base.h"
#include "data/picture.h"

typedef enum dm_PictureMode {
  DM_PICTURE_UNCHANGED, /* the channels of the file: 1 gray, 2 gray and alpha, 3, 4 */
  DM_PICTURE_GRAY,      /* 1: 0.299 red + 0.587 green + 0.114 blue; alpha is dropped */
  DM_PICTURE_RGB        /* 3: gray three times; alpha is dropped */
} dm_PictureMode;

typedef struct dm_PictureHow {
  dm_PictureMode mode;
  bool exif; /* turned and mirrored as Exif's orientation says */
} dm_PictureHow;

/* A picture with dense pixels (H,W,C); the caller owns out->data (dm_free), and on a
   failure *out is left as it was. Nothing that is cut short or damaged is given: DM_EIO.
   `name` is for messages. */
DM_API dm_status dm_picture_decode(dm_Picture *out, const dm_PictureHow *how,
                                   const uint8_t *bytes, int64_t n_bytes, const char *name);
DM_API dm_status dm_picture_read(dm_Picture *out, const dm_PictureHow *how, const char *path);

#endif
