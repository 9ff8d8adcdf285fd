/* Image files as a column of a loader: each row is read, decoded and transformed when a worker
   asks for it. */
#include "data/images.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

struct dm_Images {
  dm_ImageHow how;
  int64_t n;
  int64_t *at; /* of a file's name in names */
  char *names; /* one after the other, each with its NUL */
};

dm_status dm_images_new(dm_Images **out, const char *const *paths, int64_t n,
                        const dm_ImageHow *how) {
  int64_t n_bytes = 0;
  for (int64_t i = 0; i < n; i++) n_bytes += (int64_t)strlen(paths[i]) + 1;
  dm_Images *p = dm_alloc_zero(sizeof *p);
  if (p) {
    p->at = dm_alloc(n * (int64_t)sizeof *p->at);
    p->names = dm_alloc(n_bytes);
  }
  if (!p || !p->at || !p->names) {
    dm_images_free(&p);
    return dm_fail(DM_EMEM, "images: out of memory for %" PRId64 " names", n);
  }
  p->how = *how;
  p->n = n;
  n_bytes = 0;
  for (int64_t i = 0; i < n; i++) {
    const size_t size = strlen(paths[i]) + 1;
    p->at[i] = n_bytes;
    memcpy(p->names + n_bytes, paths[i], size);
    n_bytes += (int64_t)size;
  }
  *out = p;
  return DM_OK;
}

void dm_images_free(dm_Images **images) {
  dm_Images *p = *images;
  *images = NULL;
  if (!p) return;
  dm_free(p->at);
  dm_free(p->names);
  dm_free(p);
}

static const char *path_of(const dm_Images *p, int64_t i) { return p->names + p->at[i]; }

int64_t dm_images_count(const dm_Images *p) { return p->n; }

dm_status dm_images_read(const dm_Images *p, int64_t i, dm_Image *out) {
  return dm_image_read(out, &p->how, path_of(p, i));
}

/* ---- rows of a column ---- */

/* The image's channels, height and width. */
static void shape_of(const dm_Image *p, int64_t shape[3]) {
  shape[0] = p->channels;
  shape[1] = p->height;
  shape[2] = p->width;
}

/* Adds the file's name and size to a failure of the transforms. */
static dm_status name_file(dm_status st, const char *path, const dm_Image *x) {
  enum { WORDS = 256 };
  char why[WORDS];
  if (st == DM_EMEM) return st;
  snprintf(why, sizeof why, "%s", dm_error());
  return dm_fail(st, "'%s', %" PRId64 " x %" PRId64 ": %s", path, x->height, x->width, why);
}

/* Decodes the first image that can be, for the shape of a batch. If none can, it returns the
   DM_EIO of the first file. */
static dm_status find_model(const dm_Images *p, int64_t *model, dm_Image *x) {
  dm_status st = DM_OK;
  for (*model = 0; *model < p->n; ++*model) {
    st = dm_images_read(p, *model, x);
    if (st != DM_EIO) return st;
  }
  *model = 0;
  return dm_images_read(p, 0, x);
}

/* The shape after the transforms is often known without a file (a mode fixes the channels, a
   crop the size); only otherwise a file is decoded here. */
dm_status dm_images_rows(dm_ImageRows *out, const dm_Images *p, const dm_Augment *augment) {
  dm_ImageRows r = {.images = p, .augment = augment, .stored = {-1, -1, -1}};
  const dm_ImageMode mode = p->how.mode;
  dm_Image x;
  if (mode != DM_IMAGE_UNCHANGED) r.stored[0] = mode == DM_IMAGE_RGB ? 3 : 1;
  memcpy(r.shape, r.stored, sizeof r.shape);
  DM_TRY(dm_augment_shape(augment, r.shape));
  const bool known = r.shape[0] >= 0 && r.shape[1] >= 0 && r.shape[2] >= 0;
  if (!known && p->n == 0) {
    memset(r.shape, 0, sizeof r.shape);
  } else if (!known) {
    DM_TRY(find_model(p, &r.model, &x));
    dm_free(x.data);
    shape_of(&x, r.stored);
    memcpy(r.shape, r.stored, sizeof r.shape);
    const dm_status st = dm_augment_shape(augment, r.shape);
    if (st != DM_OK) return name_file(st, path_of(p, r.model), &x);
  }
  *out = r;
  return DM_OK;
}

/* Checks that the image becomes a row of the batch's shape. */
static dm_status check_shape(const dm_ImageRows *r, int64_t i, const dm_Image *x) {
  int64_t shape[3];
  const char *path = path_of(r->images, i);
  shape_of(x, shape);
  const dm_status st = dm_augment_shape(r->augment, shape);
  if (st != DM_OK) return name_file(st, path, x);
  if (memcmp(shape, r->shape, sizeof shape) == 0) return DM_OK;
  return dm_fail(DM_EARG,
                 "images: '%s' is {%" PRId64 ", %" PRId64 ", %" PRId64 "}, '%s' is {%" PRId64
                 ", %" PRId64 ", %" PRId64
                 "}, and a batch is of one shape; hint: transforms.Resize{height, width}, or "
                 "Resize and CenterCrop",
                 path, x->channels, x->height, x->width, path_of(r->images, r->model),
                 r->stored[0], r->stored[1], r->stored[2]);
}

/* One row: read, decode, check, transform into dst. The decoded image lives only for this
   call. */
dm_status dm_images_row(const void *rows, int64_t i, uint64_t draw, void *dst) {
  const dm_ImageRows *r = rows;
  dm_Image x;
  DM_TRY(dm_images_read(r->images, i, &x));
  dm_status st = check_shape(r, i, &x);
  if (st == DM_OK) st = dm_augment_apply(r->augment, &x, draw, dst);
  dm_free(x.data);
  return st;
}
