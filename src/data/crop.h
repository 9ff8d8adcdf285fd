/* A crop of an image, which is narrowed, padded and mirrored by arithmetic on its position
   alone. Pixels are copied once, when something wants them. */
#ifndef DM_CROP_H
#define DM_CROP_H

#include "data/augment.h"

typedef struct dm_Crop {
  dm_Image image;
  int64_t top, left, height, width;        /* in the image; pixels outside of it show fill */
  uint8_t fill[DM_TRANSFORM_MAX_CHANNELS]; /* a channel */
  uint8_t *owned;                          /* the image's bytes when they are the crop's */
} dm_Crop;

enum { DM_LEVELS = 256 }; /* values of a sample */

dm_Crop dm_crop_on(const dm_Image *image);
void dm_crop_free(dm_Crop *w);

/* The crop becomes a part of itself, from row top and column left on. */
void dm_crop_narrow(dm_Crop *w, int64_t top, int64_t left, int64_t height, int64_t width);
void dm_crop_mirror(dm_Crop *w);  /* left and right */
void dm_crop_reverse(dm_Crop *w); /* top and bottom */

/* Adds a border of pad[4] (left, top, right, bottom; 0 at least); fill as in a transform. */
dm_status dm_crop_pad(dm_Crop *w, const int64_t pad[4], dm_PadMode mode, const float *fill,
                      int n_fill);

/* The position from 0 in a row of n that padded position i, from -n_before on, shows; not for
   CONSTANT. */
DM_API int64_t dm_pad_source(int64_t i, int64_t n, dm_PadMode mode);

/* whole: the crop's image becomes just what the crop shows; own: a dense copy of that. */
dm_status dm_crop_whole(dm_Crop *w);
dm_status dm_crop_own(dm_Crop *w);

/* make: a new image of uninitialized pixels; put: the crop becomes all of it, and owns it. */
dm_status dm_crop_make(dm_Image *out, int64_t channels, int64_t height, int64_t width);
void dm_crop_put(dm_Crop *w, const dm_Image *image);

/* out (C,H,W) = what the crop shows; floats: table[value] with the table of the channel, or
   with the only one. */
void dm_crop_bytes(const dm_Crop *w, uint8_t *out);
void dm_crop_floats(const dm_Crop *w, const float *tables, int n_tables, float *out);

#endif
