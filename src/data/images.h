/* Images in files as rows of a loader's column: decoded when they are asked for, by any
   number of threads at the same time, and not kept. */
#ifndef DM_IMAGES_H
#define DM_IMAGES_H

#include "data/augment.h"
#include "data/decode.h"

typedef struct dm_Images dm_Images;

/* The files' names are copied. */
DM_API dm_status dm_images_new(dm_Images **out, const char *const *paths, int64_t n,
                               const dm_ImageHow *how);
DM_API void dm_images_free(dm_Images **images); /* NULL is fine */
DM_API int64_t dm_images_count(const dm_Images *images);
/* dm_image_read of file i, counted from 0. */
DM_API dm_status dm_images_read(const dm_Images *images, int64_t i, dm_Image *out);

/* Images after a list of transforms, all of one shape. */
typedef struct dm_ImageRows {
  const dm_Images *images;
  const dm_Augment *augment;
  int64_t shape[3]; /* channels, height, width of a row */
  /* When the transforms alone do not fix the shape: the image that did, and its own. */
  int64_t model, stored[3];
} dm_ImageRows;

/* Borrows both. When the shape depends on the images, the first that can be decoded is. */
DM_API dm_status dm_images_rows(dm_ImageRows *out, const dm_Images *images,
                                const dm_Augment *augment);

/* dm_LoaderColumn.read, of the dtype of the transforms. A file that is missing or damaged gives
   DM_EIO; one that they refuse, or that gets another shape, gives DM_EARG and is named. */
DM_API dm_status dm_images_row(const void *rows, int64_t i, uint64_t draw, void *dst);

#endif
