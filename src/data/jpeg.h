/* JPEG files: images of 8 bits a sample.
   Format: ITU-T T.81; T.871 (JFIF); T.872 6.5.3 (Adobe's marker). */
#ifndef DM_JPEG_H
#define DM_JPEG_H

#include "base/base.h"
#include "data/image.h"

DM_API bool dm_is_jpeg(const uint8_t *bytes,
                       int64_t n_bytes); /* by how it begins, short as it may be */

/* Decodes the whole image: 1 channel where it is gray, else 3, red green blue; pixels
   dense. The caller owns out->data (dm_free); on a failure *out is left as it was.
   *orientation is Exif's, 1 to 8, not applied. CMYK and YCCK count as inverted, as
   Adobe's programs write them. Bytes that are cut short, damaged or no JPEG file give
   DM_EIO, and so does anything in a build without libjpeg. `name` is for messages. */
DM_API dm_status dm_jpeg_decode(dm_Image *out, int *orientation, const uint8_t *bytes,
                                int64_t n_bytes, const char *name);

#endif
