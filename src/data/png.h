/* PNG files: pictures of 8 bits a sample.
   Format: ISO/IEC 15948, https://www.w3.org/TR/png-3/ */
#ifndef DM_PNG_H
#define DM_PNG_H

#include "base/base.h"

typedef struct dm_Png {
  int channels; /* 1 gray, 2 gray and alpha, 3 red green blue, 4 and alpha */
  int64_t height, width;
  uint8_t *data; /* (height, width, channels), dense */
} dm_Png;

/* Reads the whole picture; the caller owns out->data (dm_free), and on a
   failure *out is left as it was. Palettes and 1, 2 or 4 bits become 8 bits, a
   transparent colour an alpha channel, 16 bits are rounded to 8. A file that is
   missing, cut short, damaged or no PNG gives DM_EIO, and so does any file in a
   build without libpng. */
DM_API dm_status dm_png_read(dm_Png *out, const char *path);

/* Writes the picture. All or nothing: after a failure the file that was there
   is still there. */
DM_API dm_status dm_png_write(const char *path, const dm_Png *image);

#endif
