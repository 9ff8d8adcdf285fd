/* Pictures in files as rows of a loader's column: decoded when they are asked for, by any
   number of threads at the same time, and not kept. */
#ifndef DM_PICTURES_H
#define DM_PICTURES_H

#include "data/augment.h"
#include "data/decode.h"

typedef struct dm_Pictures dm_Pictures;

/* The files' names are copied. */
DM_API dm_status dm_pictures_new(dm_Pictures **out, const char *const *paths, int64_t n,
                                 const dm_PictureHow *how);
DM_API void dm_pictures_free(dm_Pictures **pictures); /* NULL is fine */
DM_API int64_t dm_pictures_count(const dm_Pictures *pictures);
/* dm_picture_read of file i, counted from 0. */
DM_API dm_status dm_pictures_read(const dm_Pictures *pictures, int64_t i, dm_Picture *out);

/* Pictures as what the steps make of them, all of one shape. */
typedef struct dm_PictureRows {
  const dm_Pictures *pictures;
  const dm_Augment *augment;
  int64_t shape[3]; /* channels, height, width of a row */
  /* Where the steps alone do not say the shape: the picture that did, and its own. */
  int64_t model, stored[3];
} dm_PictureRows;

/* Borrows both. When the shape depends on the pictures, the first that can be decoded is. */
DM_API dm_status dm_pictures_rows(dm_PictureRows *out, const dm_Pictures *pictures,
                                  const dm_Augment *augment);

/* dm_LoaderColumn.read, of the dtype of the steps. A file that is missing or damaged gives
   DM_EIO, one that the steps cannot take, or make another shape of, DM_EARG: named. */
DM_API dm_status dm_pictures_row(const void *rows, int64_t i, uint64_t draw, void *dst);

#endif
