/* The rows of a loader's columns: copied, read from files, or images that go through a list of
   transforms. */
#include "data/column.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"

/* Describes a column whose rows are images: checks that channels, height and width fit the
   row, and takes dtype and size of the results from the transforms. */
static dm_status augment_column(dm_Column *k, const dm_LoaderColumn *in, int c) {
  int64_t shape[3], numel = 1;
  if (in->dtype != DM_U8)
    return dm_fail(DM_EARG, "loader: column %d: images are uint8, this is %s", c + 1,
                   dm_dtype_name(in->dtype));
  for (int d = 0; d < 3; d++) {
    shape[d] = in->shape[d];
    numel = shape[d] < 1 || shape[d] > INT64_MAX / numel ? 0 : numel * shape[d];
    if (numel == 0) break;
  }
  if (numel == 0 || numel != in->row_numel)
    return dm_fail(DM_EARG,
                   "loader: column %d: {%" PRId64 ", %" PRId64 ", %" PRId64
                   "} does not fit rows of %" PRId64 " elements",
                   c + 1, in->shape[0], in->shape[1], in->shape[2], in->row_numel);
  k->image = dm_image_dense(NULL, shape[0], shape[1], shape[2]);
  k->augment = in->augment;
  k->dtype = dm_augment_dtype(in->augment);
  DM_TRY(dm_augment_shape(in->augment, shape));
  k->out_numel = shape[0] * shape[1] * shape[2];
  return DM_OK;
}

/* Sizes are checked for overflow here once, so that the offsets of rows need no test
   later. */
dm_status dm_column_new(dm_Column *k, const dm_LoaderColumn *in, int64_t n_samples, int c) {
  if (in->dtype < 0 || in->dtype >= DM_N_DTYPE || in->row_numel < 0 ||
      dm_max_i64(in->row_numel, in->row_step) > INT64_MAX / 8 / dm_max_i64(n_samples, 1) ||
      in->row_step < 0 || (in->read && in->augment) ||
      (!in->data && !in->read && n_samples > 0 && in->row_numel > 0))
    return dm_fail(DM_EARG, "loader: column %d: no sound data, dtype and row size", c + 1);
  k->data = in->data;
  k->read = in->read;
  k->source = in->source;
  k->dtype = in->dtype;
  k->out_numel = in->row_numel;
  k->step_bytes = (in->row_step ? in->row_step : in->row_numel) * dm_dtype_size(in->dtype);
  if (in->augment) DM_TRY(augment_column(k, in, c));
  k->out_bytes = k->out_numel * dm_dtype_size(k->dtype);
  return DM_OK;
}

/* A row comes from a reader, or from the array through transforms, or from the array as it
   is. */
dm_status dm_column_row(const dm_Column *k, int64_t sample, uint64_t draw, void *dst) {
  if (k->out_bytes == 0) return DM_OK;
  if (k->read) return k->read(k->source, sample, draw, dst);
  const uint8_t *src = k->data + sample * k->step_bytes;
  if (k->augment) {
    dm_Image image = k->image;
    image.data = (uint8_t *)(uintptr_t)src; /* only read */
    return dm_augment_apply(k->augment, &image, draw, dst);
  }
  memcpy(dst, src, (size_t)k->out_bytes);
  return DM_OK;
}
