/* Pictures in files as rows of a loader's column: decoded when they are asked for, by any
   number of threads at the same time, and not kept. */
#ifndef DM_PICTURES_H
#define DM_PICTURES_H

#include "data/decode.h"

typedef struct dm_Pictures dm_Pictures;

/* The files' names are copied. */
DM_API dm_status dm_pictures_new(dm_Pictures **out, const char *const *paths, int64_t n,
                                 const dm_PictureHow *how);
DM_API void dm_pictures_free(dm_Pictures **pictures); /* NULL is fine */
DM_API int64_t dm_pictures_count(const dm_Pictures *pictures);
/* dm_picture_read of file i, counted from 0. */
DM_API dm_status dm_pictures_read(const dm_Pictures *pictures, int64_t i, dm_Picture *out);

#endif
