/* Exclusive prefix sums over an array, in passes: each block scans its tile and stores the
   tile's sum, the sums are scanned in the same way, and a last pass adds them to the tiles
   (Harris, Sengupta & Owens 2007, GPU Gems 3, chapter 39). The single-pass scan with look-back
   (Merrill & Garland 2016) would read the array once less, but relies on blocks that wait for
   each other; the arrays here are counts per tile, and short. */
#include "kernels/own.cuh"
#include "kernels/scan.cuh"

enum { EACH = 8, TILE = DM_THREADS * EACH };

/* Scans a tile of TILE elements in place, EACH per thread; tiles[block], if wanted, gets its
   sum. */
static __global__ void __launch_bounds__(DM_THREADS)
    scan_kernel(int64_t *v, int64_t n, int64_t *tiles) {
  DM_SHARED(int64_t, sums, DM_WARPS);
  const int64_t first = dm_thread() * EACH;
  int64_t own[EACH], sum = 0, all;
  for (int k = 0; k < EACH; k++) sum += own[k] = first + k < n ? v[first + k] : 0;
  int64_t before = dm_block_scan(sum, sums, &all);
  for (int k = 0; k < EACH && first + k < n; k++) {
    v[first + k] = before;
    before += own[k];
  }
  if (tiles && threadIdx.x == 0) tiles[blockIdx.x] = all;
}

/* Adds to each tile the sum of the tiles before it. */
static __global__ void __launch_bounds__(DM_THREADS)
    scan_add_kernel(int64_t *v, int64_t n, const int64_t *tiles) {
  const int64_t first = dm_thread() * EACH;
  for (int k = 0; k < EACH && first + k < n; k++) v[first + k] += tiles[blockIdx.x];
}

dm_status dm_cuda_scan(int64_t *v, int64_t n) {
  const int64_t n_tile = dm_ceil_div(n, TILE);
  dm_Scratch<int64_t> tiles;
  if (n_tile > 1) DM_TRY(tiles.get(n_tile));
  DM_TRY(dm_launch(scan_kernel, (unsigned)n_tile, DM_THREADS, 0, v, n, tiles.p));
  if (n_tile <= 1) return DM_OK;
  /* Recurses over the tiles' sums: three levels reach 2^33 elements. */
  DM_TRY(dm_cuda_scan(tiles.p, n_tile));
  return dm_launch(scan_add_kernel, (unsigned)n_tile, DM_THREADS, 0, v, n, tiles.p);
}
