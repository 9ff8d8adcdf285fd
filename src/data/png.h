/* PNG files: images of 8 bits a sample.
   Format: ISO/IEC 15948, https://www.w3.org/TR/png-3/ */
#ifndef DM_PNG_H
#define DM_PNG_H

#include "base/base.h"
#include "data/image.h"

/* Decodes the whole image: 1 channel gray, 2 gray and alpha, 3 red green blue, 4 and
   alpha; pixels dense. The caller owns out->data (dm_free); on a failure *out is left as
   it was. Palettes and 1, 2 or 4 bits become 8 bits, a transparent colour an alpha channel,
   16 bits are rounded to 8. *orientation is Exif's, 1 to 8, not applied. Bytes that are
   cut short, damaged or no PNG file give DM_EIO, and so does anything in a build without
   libpng. `name` is for messages. */
DM_API dm_status dm_png_decode(dm_Image *out, int *orientation, const uint8_t *bytes,
                               int64_t n_bytes, const char *name);

/* Writes the image, whose pixels are contiguous (c_step 1, w_step channels). All or
   nothing: after a failure the file that was there is still there. */
DM_API dm_status dm_png_write(const char *path, const dm_Image *image);

#endif
