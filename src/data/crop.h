/* A window on a picture: cut, bordered and mirrored by arithmetic alone. Pixels are
   copied once, when something wants them. */
#ifndef DM_CROP_H
#define DM_CROP_H

#include "data/augment.h"

typedef struct dm_Crop {
  dm_Image picture;
  int64_t top, left, height, width;      /* in the picture; what lies outside shows fill */
  uint8_t fill[DM_AUGMENT_MAX_CHANNELS]; /* a channel */
  uint8_t *owned;                        /* the picture's bytes when they are the window's */
} dm_Crop;

enum { DM_LEVELS = 256 }; /* values of a sample */

dm_Crop dm_crop_on(const dm_Image *picture);
void dm_crop_free(dm_Crop *w);

void dm_crop_cut(dm_Crop *w, int64_t top, int64_t left, int64_t height, int64_t width);
void dm_crop_mirror(dm_Crop *w);  /* left and right */
void dm_crop_reverse(dm_Crop *w); /* top and bottom */

/* A border of pad[4] (left, top, right, bottom; 0 at least); fill as in a step. */
dm_status dm_crop_pad(dm_Crop *w, const int64_t pad[4], dm_PadMode mode, const float *fill,
                      int n_fill);

/* Makes the window's picture all that it shows; then, also dense and its own. */
dm_status dm_crop_whole(dm_Crop *w);
dm_status dm_crop_own(dm_Crop *w);

/* A new picture of its own for the window, of any content; put takes its place. */
dm_status dm_crop_make(dm_Image *out, int64_t channels, int64_t height, int64_t width);
void dm_crop_put(dm_Crop *w, const dm_Image *picture);

/* out (C,H,W) = what the window shows; or, of channel c, table[value] with the table
   c of n_tables, where 1 serves all. */
void dm_crop_bytes(const dm_Crop *w, uint8_t *out);
void dm_crop_floats(const dm_Crop *w, const float *tables, int n_tables, float *out);

#endif
