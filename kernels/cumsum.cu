/* Running sums (inclusive scans) along a dim, from its beginning or, for the gradient, from
   its end. x is (outer, n, inner), dense.

   Slices whose elements are far apart (inner >= 32), and short slices, take a thread each:
   neighbouring threads read neighbouring slices. Other slices take a block each or, if slices
   are few, one per chunk: a first launch sums each chunk, and in the second each block starts
   from the sum of the chunks before its own (reduce then scan; no block waits for another). The
   order of additions depends on sizes alone. */
#include "kernels/reduce.cuh"

extern "C" {
#include "core/copy.h"
#include "op/along.h"
}

enum { PER_THREAD = 4, TILE = PER_THREAD * DM_THREADS };

/* The parameters: from and to are dtypes, and a slice has n elements `inner` apart. */
struct Slices {
  const void *x;
  void *y;
  int from, to;
  int64_t n, inner, n_slice;
  int64_t chunk, n_chunk;
  bool reverse;
};

/* The offset of a slice's i-th element in the order of summation. */
static __device__ inline int64_t offset_of(const Slices &p, int64_t slice, int64_t i) {
  const int64_t first = slice / p.inner * p.n * p.inner + slice % p.inner;
  return first + (p.reverse ? p.n - 1 - i : i) * p.inner;
}

/* One thread per slice. */
template <class C>
static __global__ void __launch_bounds__(DM_THREADS) thread_kernel(Slices p) {
  const int64_t slice = dm_thread(), step = p.reverse ? -p.inner : p.inner;
  if (slice >= p.n_slice) return;
  C sum = 0;
  for (int64_t i = 0, at = offset_of(p, slice, 0); i < p.n; i++, at += step) {
    sum = dm_plus(sum, dm_load<C>(p.from, p.x, at));
    dm_store<C>(p.to, p.y, at, sum);
  }
}

/* sums (n_slice, n_chunk): the sum of each chunk; blockIdx is (slice, chunk). */
template <class C>
static __global__ void __launch_bounds__(DM_THREADS) chunk_sum_kernel(Slices p, C *sums) {
  const int64_t lo = blockIdx.y * p.chunk, hi = lo + p.chunk < p.n ? lo + p.chunk : p.n;
  C sum = 0;
  for (int64_t i = lo + threadIdx.x; i < hi; i += DM_THREADS)
    sum = dm_plus(sum, dm_load<C>(p.from, p.x, offset_of(p, blockIdx.x, i)));
  sum = dm_block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x * p.n_chunk + blockIdx.y] = sum;
}

/* An exclusive scan over the block: returns the sum of v over the threads before this one, and
   in *total that of all. Sums are joined in the elements' order. */
template <class C> static __device__ inline C sum_before(C v, C *total) {
  DM_SHARED(C, part, 32);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  C sum = v;
  for (int by = 1; by < 32; by *= 2) {
    const C other = __shfl_up_sync(0xffffffffu, sum, by);
    if (lane >= by) sum = dm_plus(other, sum);
  }
  C before = __shfl_up_sync(0xffffffffu, sum, 1);
  if (lane == 0) before = 0;
  __syncthreads();
  if (lane == 31) part[warp] = sum;
  __syncthreads();
  C warps = 0;
  *total = 0;
  for (int w = 0; w < DM_THREADS / 32; w++) {
    if (w == warp) warps = *total;
    *total = dm_plus<C>(*total, part[w]);
  }
  return dm_plus(warps, before);
}

/* Scans one chunk, TILE elements at a time: each thread sums PER_THREAD neighbours, the block
   scans these sums, and `carry` goes on to the next tile. */
template <class C>
static __global__ void __launch_bounds__(DM_THREADS)
    cumsum_scan_kernel(Slices p, const C *sums) {
  const int64_t slice = blockIdx.x;
  const int64_t lo = blockIdx.y * p.chunk, hi = lo + p.chunk < p.n ? lo + p.chunk : p.n;
  /* The sum of all chunks before this one, in a fixed order. */
  C carry = 0;
  for (int64_t k = threadIdx.x; k < blockIdx.y; k += DM_THREADS)
    carry = dm_plus(carry, sums[slice * p.n_chunk + k]);
  if (blockIdx.y > 0) carry = dm_block_sum(carry);
  for (int64_t tile = lo; tile < hi; tile += TILE) {
    const int64_t begin = tile + threadIdx.x * PER_THREAD;
    C v[PER_THREAD], total;
    for (int k = 0; k < PER_THREAD; k++) {
      v[k] = begin + k < hi ? dm_load<C>(p.from, p.x, offset_of(p, slice, begin + k)) : C(0);
      if (k > 0) v[k] = dm_plus(v[k - 1], v[k]);
    }
    const C before = dm_plus(carry, sum_before(v[PER_THREAD - 1], &total));
    for (int k = 0; k < PER_THREAD && begin + k < hi; k++)
      dm_store<C>(p.to, p.y, offset_of(p, slice, begin + k), dm_plus(before, v[k]));
    carry = dm_plus(carry, total);
  }
}

/* Chooses between a thread and blocks per slice, and the chunks. */
template <class C> static dm_status run(Slices p) {
  if (p.inner >= 32 || p.n <= 32)
    return dm_launch(thread_kernel<C>, dm_blocks(p.n_slice), DM_THREADS, 0, p);
  const int64_t most = dm_ceil_div(p.n, 4 * TILE), wanted = dm_ceil_div(DM_WIDTH, p.n_slice);
  p.chunk = dm_ceil_div(p.n, wanted < most ? wanted : most);
  p.n_chunk = dm_ceil_div(p.n, p.chunk);
  const dim3 grid((unsigned)p.n_slice, (unsigned)p.n_chunk);
  const int64_t bytes = p.n_slice * p.n_chunk * (int64_t)sizeof(C);
  void *sums = NULL;
  dm_status st = DM_OK;
  if (p.n_chunk > 1) {
    DM_TRY(dm_cuda_scratch(bytes, &sums));
    st = dm_launch(chunk_sum_kernel<C>, grid, DM_THREADS, 0, p, (C *)sums);
  }
  if (st == DM_OK)
    st = dm_launch(cumsum_scan_kernel<C>, grid, DM_THREADS, 0, p, (const C *)sums);
  if (sums) dm_cuda_scratch_free(sums, bytes);
  return st;
}

/* cumsum and its gradient cumsum_back, which sums from the end. */
DM_CUDA_KERNEL(cumsum_cuda) {
  dm_Tensor *x = NULL, *y = c->out[0];
  if (y->numel == 0) return DM_OK;
  DM_TRY(dm_dense_new(c->in[0], &x));
  const dm_Along at = dm_along(x, DM_ATTR(dm_CumsumAttr, c)->dim);
  const Slices p = {dm_tensor_data(x),
                    dm_tensor_data(y),
                    x->dtype,
                    y->dtype,
                    at.n,
                    at.inner,
                    dm_along_slices(&at),
                    0,
                    1,
                    c->op == &dm_ops[DM_OP_cumsum_back]};
  dm_status st;
  if (!dm_is_float((dm_DType)y->dtype)) st = run<int64_t>(p);
  else if (x->dtype == DM_F64 || y->dtype == DM_F64) st = run<double>(p);
  else st = run<float>(p);
  dm_tensor_unref(&x);
  return st;
}
