/* A window on a picture: cut, bordered and mirrored by arithmetic alone. Pixels are
   copied once, when something wants them. */
#ifndef DM_WINDOW_H
#define DM_WINDOW_H

#include "data/augment.h"

typedef struct dm_Window {
  dm_Picture picture;
  int64_t top, left, height, width;      /* in the picture; what lies outside shows fill */
  uint8_t fill[DM_AUGMENT_MAX_CHANNELS]; /* a channel */
  uint8_t *owned;                        /* the picture's bytes when they are the window's */
} dm_Window;

enum { DM_LEVELS = 256 }; /* values of a sample */

dm_Window dm_window_on(const dm_Picture *picture);
void dm_window_free(dm_Window *w);

void dm_window_cut(dm_Window *w, int64_t top, int64_t left, int64_t height, int64_t width);
void dm_window_mirror(dm_Window *w);  /* left and right */
void dm_window_reverse(dm_Window *w); /* top and bottom */

/* A border of pad[4] (left, top, right, bottom; 0 at least); fill as in a step. */
dm_status dm_window_pad(dm_Window *w, const int64_t pad[4], dm_PadMode mode, const float *fill,
                        int n_fill);

/* Makes the window's picture all that it shows; then, also dense and its own. */
dm_status dm_window_whole(dm_Window *w);
dm_status dm_window_own(dm_Window *w);

/* A new picture of its own for the window, of any content; put takes its place. */
dm_status dm_window_make(dm_Picture *out, int64_t channels, int64_t height, int64_t width);
void dm_window_put(dm_Window *w, const dm_Picture *picture);

/* out (C,H,W) = what the window shows; or, of channel c, table[value] with the table
   c of n_tables, where 1 serves all. */
void dm_window_bytes(const dm_Window *w, uint8_t *out);
void dm_window_floats(const dm_Window *w, const float *tables, int n_tables, float *out);

#endif
