#include "data/pictures.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

struct dm_Pictures {
  dm_PictureHow how;
  int64_t n;
  int64_t *at; /* of a file's name in names */
  char *names; /* one after the other, each with its NUL */
};

dm_status dm_pictures_new(dm_Pictures **out, const char *const *paths, int64_t n,
                          const dm_PictureHow *how) {
  int64_t n_bytes = 0;
  for (int64_t i = 0; i < n; i++) n_bytes += (int64_t)strlen(paths[i]) + 1;
  dm_Pictures *p = dm_alloc_zero(sizeof *p);
  if (p) {
    p->at = dm_alloc(n * (int64_t)sizeof *p->at);
    p->names = dm_alloc(n_bytes);
  }
  if (!p || !p->at || !p->names) {
    dm_pictures_free(&p);
    return dm_fail(DM_EMEM, "pictures: out of memory for %" PRId64 " names", n);
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

void dm_pictures_free(dm_Pictures **pictures) {
  dm_Pictures *p = *pictures;
  *pictures = NULL;
  if (!p) return;
  dm_free(p->at);
  dm_free(p->names);
  dm_free(p);
}

int64_t dm_pictures_count(const dm_Pictures *p) { return p->n; }

dm_status dm_pictures_read(const dm_Pictures *p, int64_t i, dm_Picture *out) {
  return dm_picture_read(out, &p->how, p->names + p->at[i]);
}
