/* The orientation in which a camera was held, from Exif metadata.
   Formats: TIFF 6.0; Exif 2.32 (JEITA CP-3451), 4.6.4, tag 274. */
#ifndef DM_EXIF_H
#define DM_EXIF_H

#include "base/base.h"
#include "data/image.h"

/* The tag Orientation, 1 to 8, of the n bytes of a TIFF header and what follows it; 1,
   as stored, where there is none, or it makes no sense. Reads nothing but these bytes. */
DM_API int dm_exif_orientation(const uint8_t *bytes, int64_t n);

/* A view of the image as it is to be seen, whose steps may be negative. */
dm_Image dm_exif_upright(const dm_Image *stored, int orientation);

#endif
