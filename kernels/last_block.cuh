/* Kernels whose last block joins what all of them have written, instead of a launch more. */
#ifndef DM_LAST_BLOCK_CUH
#define DM_LAST_BLOCK_CUH

#include "kernels/cuda.cuh"
#include "kernels/keep.h"

/* Whether this block is the last of n to come here: what the others have written is there then.
   All its threads ask. *arrived is 0 before the launches of these n blocks, and after them. */
static __device__ inline bool dm_is_last_block(unsigned *arrived, unsigned n) {
  DM_SHARED(int, last, 1);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last[0] = atomicAdd(arrived, 1u) == n - 1;
    if (last[0]) *arrived = 0;
  }
  __syncthreads();
  __threadfence();
  return last[0] != 0;
}

/* The counter of a site's launches (keep.h), for use within dm_cuda_keep_begin. */
static inline dm_status dm_arrivals(uint64_t site, unsigned **out) {
  static const unsigned zero = 0;
  void *kept;
  DM_TRY(dm_cuda_keep(site, &zero, sizeof zero, &kept));
  *out = (unsigned *)kept;
  return DM_OK;
}

#endif
