/* Exclusive prefix sums of int64: within a block, and over an array on the device. A block's
   scan takes two levels: lanes of a warp by shuffles (Hillis & Steele 1986), then warps
   through shared memory. */
#ifndef DM_SCAN_CUH
#define DM_SCAN_CUH

#include "kernels/cuda.cuh"

enum { DM_WARPS = DM_THREADS / 32 };

/* Returns the sum of v over the threads before this one, and in *all that over the block.
   `sums` has DM_WARPS elements. All DM_THREADS threads of the block call it. */
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
  __syncthreads(); /* so that `sums` may be written again */
  return before + sum - v;
}

/* Replaces v[i] by the sum of v[0] .. v[i - 1], for n numbers on the device (scan.cu). */
dm_status dm_cuda_scan(int64_t *v, int64_t n);

#endif
