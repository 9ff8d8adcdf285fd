/* The input of an implicit convolution, cut into tiles of output positions.

   An input is a batch of planes (N, C, H, W) that is read at output positions (p,q) and
   kernel positions, called taps, (r,s): output (p,q) and tap (r,s) meet row
   p * step[0] + tap[0][r] and column q * step[1] + tap[1][s]. Rows and columns outside the
   plane count as 0. The same description serves x in the forward pass and dy in dx, where
   the step is 1 and the taps are those of one phase.

   A tile is some whole images, a band of output rows of one image, or a part of one long row.
   The planes under a
   tile are copied into a padded buffer (images, channels, ph, pw) in the compute type, a
   chunk of channels at a time. Each read of the kernels then lies inside the buffer, costs
   no conversion and no test for a border, and mostly hits L2. Columns of the buffer whose
   numbers leave the same remainder modulo step[1] lie together, so that positions side by side
   read elements side by side. */
#ifndef DM_CONV_TILES_H
#define DM_CONV_TILES_H

#include "base/dtype.h"

typedef struct dm_ConvInput {
  const char *data;
  dm_DType dtype;
  int64_t n_img, n_chan, h, w; /* planes in memory, dense */
  int64_t p, q;                /* output positions of an image */
  int64_t step[2], n_tap[2];
  int64_t lo[2], hi[2]; /* the least and the largest tap */
  const int64_t *tap[2];
} dm_ConvInput;

/* The sizes of all tiles of an input; the last ones may be smaller. */
typedef struct dm_TileGrid {
  int64_t n_img, rows;    /* images, or output rows, of a tile */
  int64_t columns;        /* output columns: all of them, or of one row */
  int64_t n_part;         /* tiles that a row is cut into */
  int64_t n_band, n_tile; /* tiles of an image, and in all */
  int64_t n_chan;         /* channels of a chunk */
  int64_t ph, pw;         /* height and width of a padded plane */
  int64_t part;           /* columns of a row that leave the same remainder */
  int64_t cols, buffer;   /* output positions of a tile; elements of the padded buffer */
} dm_TileGrid;

/* Tile number i: n_img images from img on, `rows` output rows from p on, `columns` from q on,
   cols positions. */
typedef struct dm_ConvTile {
  int64_t img, n_img, p, rows, q, columns, cols;
} dm_ConvTile;

/* Sets lo and hi from the taps. */
void dm_input_range(dm_ConvInput *x);

/* Cuts x, whose groups have `group` channels. A chunk of channels has about `depth` products
   per output at most, and a multiple of `unit` channels if there are several chunks. A tile
   has at most `most_img` images, and they are cut evenly, in strips of nr positions with few
   idle lanes. The cut depends on the shapes alone, never on the number of threads. */
dm_TileGrid dm_tile_grid(const dm_ConvInput *x, int64_t group, int64_t depth, int64_t most_img,
                         int64_t nr, int64_t unit);
dm_ConvTile dm_tile_at(const dm_ConvInput *x, const dm_TileGrid *grid, int64_t i);

/* Copies channels [c0, c0 + n_chan) under a tile to dst (img, chan, ph, pw) of type `to`. */
void dm_load_tile(const dm_ConvInput *x, const dm_TileGrid *grid, const dm_ConvTile *tile,
                  int64_t c0, int64_t n_chan, dm_DType to, char *dst);

/* position[j]: the offset in the buffer where output position j of a tile begins to read. */
void dm_list_positions(const dm_ConvInput *x, const dm_TileGrid *grid, const dm_ConvTile *tile,
                       int32_t *position);
/* tap[k]: the offset of (channel, r, s) from there. So position j and tap k read element
   position[j] + tap[k]. */
void dm_list_taps(const dm_ConvInput *x, const dm_TileGrid *grid, int32_t *tap);

#endif
