/* Small data that launches read, kept on the device from call to call: tables of tensors,
   learning rates, generators. */
#ifndef DM_KERNELS_KEEP_H
#define DM_KERNELS_KEEP_H

#include "kernels/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Gives in *out a copy of n bytes on the current device, for launches on the current stream
   until dm_cuda_keep_end. `site` names who asks. If it gave the same bytes last time nothing
   is copied; its copy keeps its address until it outgrows it. The memory is the caching
   allocator's. */
dm_status dm_cuda_keep(uint64_t site, const void *bytes, int64_t n, void **out);

/* The same for the options of an optimizer's step: a graph that records it can be given others
   (graph.h). */
dm_status dm_cuda_keep_step(uint64_t site, const void *bytes, int64_t n, void **out);

/* Says that a launch just made writes these bytes to the copy at p; n as when they were
   kept. */
void dm_cuda_kept_is(const void *p, const void *bytes, int64_t n);

/* Gives a device's copies back to the allocator. */
void dm_cuda_keep_drop(int device);

/* Locks the copies around dm_cuda_keep and the launches that read them. */
void dm_cuda_keep_begin(void);
void dm_cuda_keep_end(void);

/* Combines a site's name with what tells it from others. */
static inline uint64_t dm_site(uint64_t site, uint64_t more) {
  return (site ^ more) * UINT64_C(0x9E3779B97F4A7C15) + (site >> 29);
}

#ifdef __cplusplus
}
#endif
#endif
