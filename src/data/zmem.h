/* The allocator that zlib is given: dm_alloc and dm_free, so that its memory is counted and
   failures can be tested. */
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
