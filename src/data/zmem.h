/* zlib's memory, through the one door. */
#ifndef DM_DATA_ZMEM_H
#define DM_DATA_ZMEM_H

#include "base/alloc.h"

static inline void *dm_z_alloc(void *ctx, unsigned n, unsigned size) {
  (void)ctx;
  return dm_alloc((int64_t)n * size);
}
static inline void dm_z_free(void *ctx, void *p) {
  (void)ctx;
  dm_free(p);
}

#endif
