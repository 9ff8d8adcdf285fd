/* A column of a loader: how a row of a batch comes from a sample. */
#ifndef DM_COLUMN_H
#define DM_COLUMN_H

#include "data/augment.h"

/* A column as the caller of dm_loader_new gives it. */
typedef struct dm_LoaderColumn {
  const void *data; /* (n_samples, row_numel), each row dense; borrowed, must stay
                       as it is until dm_loader_stop */
  dm_DType dtype;
  int64_t row_numel;
  int64_t row_step; /* elements from a row to the next, which may overlap; 0: row_numel */
  const dm_Augment *augment; /* NULL: rows are copied. Else rows are uint8 images of this
                                shape, and batches hold its results; borrowed until
                                dm_loader_free */
  int64_t shape[3];          /* channels, height, width */
  /* Instead of data: writes row i of n_samples to dst (row_numel), called by any thread.
     Its random numbers depend on `draw`, and that on (seed, epoch, sample). A failure is told
     by the dm_loader_next whose batch it is. Both borrowed likewise. */
  dm_status (*read)(const void *source, int64_t row, uint64_t draw, void *dst);
  const void *source;
} dm_LoaderColumn;

typedef struct dm_Column {
  const uint8_t *data;
  dm_DType dtype;
  int64_t step_bytes;           /* from a row of the array to the next */
  int64_t out_bytes, out_numel; /* of a row of the batch */
  const dm_Augment *augment;    /* NULL: rows are copied */
  dm_Image image;               /* augment: a row, but for where it lies */
  dm_status (*read)(const void *source, int64_t row, uint64_t draw, void *dst); /* or NULL */
  const void *source;
} dm_Column;

/* Checks and describes the caller's c-th column, from 0, of n_samples rows. */
dm_status dm_column_new(dm_Column *column, const dm_LoaderColumn *given, int64_t n_samples,
                        int c);

/* Writes the sample's row to dst; its random numbers depend on `draw`. Called by any thread. */
dm_status dm_column_row(const dm_Column *column, int64_t sample, uint64_t draw, void *dst);

#endif
