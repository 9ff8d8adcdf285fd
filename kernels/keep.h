/* Small things that launches read, kept on the device from call to call: tables of
   tensors, learning rates. */
#ifndef DM_KERNELS_KEEP_H
#define DM_KERNELS_KEEP_H

#include "kernels/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* *out: a copy of these bytes on the current device, for launches on the current
   stream until dm_cuda_keep_end. A site names who asks; where it gave the same bytes
   the last time nothing is copied, and its copy keeps its address as long as it
   does not outgrow it. Its memory is the caching allocator's. */
dm_status dm_cuda_keep(uint64_t site, const void *bytes, int64_t n, void **out);

/* A launch that was just made writes these bytes, of as many as were kept, to the
   copy at p. */
void dm_cuda_kept_is(const void *p, const void *bytes, int64_t n);

/* Gives a device's copies back to the allocator. */
void dm_cuda_keep_drop(int device);

/* Around the calls of dm_cuda_keep and the launches that read what they gave. */
void dm_cuda_keep_begin(void);
void dm_cuda_keep_end(void);

/* A site's name, from what tells it from others. */
static inline uint64_t dm_site(uint64_t site, uint64_t more) {
  return (site ^ more) * UINT64_C(0x9E3779B97F4A7C15) + (site >> 29);
}

#ifdef __cplusplus
}
#endif
#endif
