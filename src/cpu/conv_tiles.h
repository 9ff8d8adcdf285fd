/* The part of planes that a strip of a convolution reads: a window is a set of planes read
   at positions (p,q) and taps (r,s), at row p*step + tap[r] and column q*step + tap[s]. It
   is cut into pieces, each of which is copied into a padded buffer in the compute type, so
   that every later read is in bounds. */
#ifndef DM_CONV_TILES_H
#define DM_CONV_TILES_H

#include "base/dtype.h"

typedef struct dm_Window {
  const char *data;
  dm_DType dtype;
  int64_t n_img, n_chan, h, w; /* planes in memory, dense */
  int64_t p, q;                /* positions */
  int64_t step[2], n_tap[2], lo[2], hi[2];
  const int64_t *tap[2];
} dm_Window;

/* How positions are cut: whole images, or bands of rows of one image. */
typedef struct dm_Cut {
  int64_t n_img, rows;     /* of a piece, at most */
  int64_t n_band, n_piece; /* bands of an image; pieces in all */
  int64_t n_chan;          /* channels of a chunk, at most */
  int64_t ph, pw;          /* padded plane of a piece */
  int64_t cols, buffer;    /* most pixels; elements of the padded buffer */
} dm_Cut;

typedef struct dm_Piece {
  int64_t img, n_img, p, rows, cols;
} dm_Piece;

/* Fills in lo and hi. */
void dm_window_range(dm_Window *x);

/* Of `group` channels, a chunk has about `depth` taps at most; one of several chunks a
   multiple of `unit` channels. A piece has at most `most_img` images, and pixels that fill
   strips of nr. */
dm_Cut dm_cut_window(const dm_Window *x, int64_t group, int64_t depth, int64_t most_img,
                     int64_t nr, int64_t unit);
dm_Piece dm_window_piece(const dm_Window *x, const dm_Cut *cut, int64_t i);

/* dst (img, chan, ph, pw) of type `to` for n_chan channels from c0 on. */
void dm_load_piece(const dm_Window *x, const dm_Cut *cut, const dm_Piece *piece, int64_t c0,
                   int64_t n_chan, dm_DType to, char *dst);

/* Where pixel j of a piece begins in the buffer. */
void dm_list_pixels(const dm_Window *x, const dm_Cut *cut, const dm_Piece *piece,
                    int32_t *pixel);
/* How far (channel, r, s) lies from there. */
void dm_list_taps(const dm_Window *x, const dm_Cut *cut, int32_t *tap);

#endif
