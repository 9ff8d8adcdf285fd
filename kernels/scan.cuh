/* Sums of all that comes before: in a block, and over an array. */
#ifndef DM_SCAN_CUH
#define DM_SCAN_CUH

#include "kernels/cuda.cuh"

enum { DM_WARPS = DM_THREADS / 32 };

/* The sum of v over the threads before this one; *all: over the block. `sums` has
   DM_WARPS elements. All DM_THREADS threads of the block call it. */
static __device__ inline int64_t dm_block_scan(int64_t v, DM_SHARED_PTR(int64_t) sums,
                                               int64_t *all) {
  const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
  int64_t sum = v, before = 0;
  for (int d = 1; d < 32; d *= 2) {
    const int64_t left = __shfl_up_sync(0xffffffffu, sum, (unsigned)d);
    if (lane >= d) sum += left;
  }
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  *all = 0;
  for (int w = 0; w < DM_WARPS; w++) {
    if (w == warp) before = *all;
    *all += sums[w];
  }
  __syncthreads(); /* `sums` may be written again */
  return before + sum - v;
}

/* v[i] becomes the sum of v[0] to v[i - 1]; n numbers on the device. */
dm_status dm_cuda_scan(int64_t *v, int64_t n);

#endif
