/* sort and topk along a dim, and bucketize.

   Elements become 64-bit keys whose unsigned order is the order of the values; NaN is the
   largest. A slice of up to RUN elements is sorted by a bitonic network (K. Batcher 1968) in
   one block's shared memory, several short slices in one block. A longer slice is cut into runs
   of RUN elements, which are merged pairwise: each element finds its rank in the other run by
   binary search and is written where it belongs (merge by ranks; Satish, Harris & Garland
   2009). Equal keys keep the order of their positions, so the sort is stable. topk merges only
   the first k of each run. */
#include "kernels/own.cuh"
#include "kernels/sort.h"

extern "C" {
#include "op/sort/sort.h"
#include "op/strided.h"
}

enum { RUN = 2048, SMALL = 512 /* the least that a block sorts */ };

/* ---- keys ---- */

/* The keys. For floats the sign bit is set for values that are not negative, and all bits are
   inverted for negative ones; -0 equals 0 and every NaN is the largest key. For int64 the sign
   bit is inverted. */
static __device__ inline uint64_t key_of(float v) {
  if (v != v) return UINT64_MAX;
  const uint32_t u = __float_as_uint(v + 0.0f); /* -0 is 0 */
  return u >> 31 ? ~u : u | 1u << 31;
}
static __device__ inline uint64_t key_of(double v) {
  uint64_t u;
  if (v != v) return UINT64_MAX;
  v += 0.0;
  memcpy(&u, &v, 8);
  return u >> 63 ? ~u : u | (uint64_t)1 << 63;
}
static __device__ inline uint64_t key_of(int64_t v) { return (uint64_t)v ^ (uint64_t)1 << 63; }

/* ---- slices ---- */

/* All slices to sort, of n elements each, and the outputs. */
struct SortSlices {
  dm_Walk<2> walk;  /* the slices' first elements: in the outputs, in x */
  int64_t count, n; /* slices, elements of each */
  int64_t kept;     /* so many of each slice are output */
  int64_t out_step, x_step;
  const void *x;
  void *y;
  int64_t *index; /* the position in x of each output */
  int dtype, size, base;
  bool descending;

  template <class C> __device__ uint64_t key(int64_t slice, int64_t at) const {
    int64_t off[2];
    walk.at(slice, off);
    const uint64_t key = key_of(dm_load<C>(dtype, x, off[1] + at * x_step));
    return descending ? ~key : key;
  }
  /* Outputs element `at` of the slice as its rank-th. */
  __device__ void store(int64_t slice, int64_t rank, int64_t at) const {
    int64_t off[2];
    walk.at(slice, off);
    const int64_t to = off[0] + rank * out_step;
    dm_move(size, y, to, x, off[1] + at * x_step);
    index[to] = at + base;
  }
};

/* Keys and the positions that they came from: a row of n for each slice. */
struct Order {
  uint64_t *key;
  int64_t *at;
};

/* ---- in a block ---- */

/* The bitonic network: sorts each `width` of the n pairs (key, at) on their own; both are
   powers of two. */
static __device__ void sort_shared(DM_SHARED_PTR(uint64_t) key, DM_SHARED_PTR(int) at, int n,
                                   int width) {
  for (int span = 2; span <= width; span *= 2) {
    for (int step = span / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int t = (int)threadIdx.x; t < n / 2; t += DM_THREADS) {
        /* Each thread compares the pair (low, high), which differ by `step`. Spans sort in
           turns up and down, so that the next span finds a bitonic sequence. */
        const int low = 2 * t - (t & (step - 1)), high = low + step;
        const bool rising = (low & (width - 1) & span) == 0;
        const uint64_t a = key[low], b = key[high];
        const int at_a = at[low], at_b = at[high];
        if ((a > b || (a == b && at_a > at_b)) != rising) continue;
        key[low] = b;
        key[high] = a;
        at[low] = at_b;
        at[high] = at_a;
      }
    }
  }
  __syncthreads();
}

/* Sorts runs of `width`, a power of two, as many as fit in a block. Where a run is a whole
   slice the result is output; otherwise the sorted keys go to `order` for merging. */
template <class C>
static __global__ void __launch_bounds__(DM_THREADS)
    run_kernel(SortSlices slices, int64_t runs, int width, Order order) {
  DM_SHARED(uint64_t, key, RUN);
  DM_SHARED(int, at, RUN);
  const int n = width < SMALL ? SMALL : width;
  /* Runs are numbered (slice, run of the slice). */
  const int64_t first = (int64_t)blockIdx.x * (n / width);
  for (int i = (int)threadIdx.x; i < n; i += DM_THREADS) {
    const int64_t slice = (first + i / width) / runs, run = (first + i / width) % runs;
    const int64_t k = run * width + i % width;
    /* Elements beyond the end of a slice have the largest key. */
    key[i] = slice < slices.count && k < slices.n ? slices.key<C>(slice, k) : UINT64_MAX;
    at[i] = i % width;
  }
  sort_shared(key, at, n, width);
  for (int i = (int)threadIdx.x; i < n; i += DM_THREADS) {
    const int64_t slice = (first + i / width) / runs, run = (first + i / width) % runs;
    const int64_t k = run * width + i % width;
    if (slice >= slices.count || k >= slices.n) continue;
    if (order.key) {
      order.key[slice * slices.n + k] = key[i];
      order.at[slice * slices.n + k] = run * width + at[i];
    } else if (k < slices.kept) {
      slices.store(slice, k, at[i]);
    }
  }
}

/* ---- merging ---- */

/* Counts the keys of n rising ones that are below `key`, or, with `equals`, not above it. */
static __device__ inline int64_t count_before(const uint64_t *keys, int64_t n, uint64_t key,
                                              bool equals) {
  int64_t low = 0, high = n;
  while (low < high) {
    const int64_t mid = low + (high - low) / 2;
    if (equals ? keys[mid] <= key : keys[mid] < key) low = mid + 1;
    else high = mid;
  }
  return low;
}

/* Merges pairs of runs of `width` into runs twice as long, one thread per element. Its new
   rank is its rank in its own run plus the number of elements of the other run before it. Only
   the first `kept` of each run are needed. */
static __global__ void __launch_bounds__(DM_THREADS)
    merge_kernel(Order from, Order to, int64_t count, int64_t n, int64_t kept, int64_t width) {
  for (int64_t i = dm_thread(); i < count * n; i += dm_threads()) {
    const int64_t slice = i / n * n, run = i % n / width, k = i % n % width;
    /* The run to merge with is the neighbour: 2 j with 2 j + 1. The last run may have none. */
    const int64_t other = (run ^ 1) * width, left = n - other;
    const int64_t n_other = left < 0 ? 0 : dm_min_i64(kept, dm_min_i64(width, left));
    if (k >= kept) continue;
    const uint64_t key = from.key[i];
    /* On equal keys those of the left run come first, which makes the merge stable. */
    const int64_t rank =
        k + count_before(from.key + slice + (n_other ? other : 0), n_other, key, run & 1);
    if (rank >= kept) continue;
    const int64_t index = slice + run / 2 * 2 * width + rank;
    to.key[index] = key;
    to.at[index] = from.at[i];
  }
}

/* Outputs the first `kept` of each sorted slice. */
static __global__ void __launch_bounds__(DM_THREADS)
    store_kernel(SortSlices slices, const int64_t *at) {
  for (int64_t i = dm_thread(); i < slices.count * slices.kept; i += dm_threads()) {
    const int64_t slice = i / slices.kept, rank = i % slices.kept;
    slices.store(slice, rank, at[slice * slices.n + rank]);
  }
}

/* ---- sort, topk ---- */

/* Launches the first sort, of runs of `width`. */
static dm_status sort_runs(const SortSlices &slices, int64_t runs, int width, Order order) {
  const int64_t blocks = dm_ceil_div(slices.count * runs, width < SMALL ? SMALL / width : 1);
  switch (dm_compute_dtype((dm_DType)slices.dtype)) {
  case DM_F32:
    return dm_launch(run_kernel<float>, (unsigned)blocks, DM_THREADS, 0, slices, runs, width,
                     order);
  case DM_F64:
    return dm_launch(run_kernel<double>, (unsigned)blocks, DM_THREADS, 0, slices, runs, width,
                     order);
  default:
    return dm_launch(run_kernel<int64_t>, (unsigned)blocks, DM_THREADS, 0, slices, runs, width,
                     order);
  }
}

/* Sorts long slices: runs first, then merges from one buffer into the other until one run is
   left. */
static dm_status merge_sort(const SortSlices &slices) {
  const int64_t all = slices.count * slices.n;
  dm_Scratch<uint64_t> keys;
  dm_Scratch<int64_t> positions;
  DM_TRY(keys.get(2 * all));
  DM_TRY(positions.get(2 * all));
  /* The two halves of each scratch buffer take turns as source and destination. */
  Order from = {keys.p, positions.p}, to = {keys.p + all, positions.p + all};
  DM_TRY(sort_runs(slices, dm_ceil_div(slices.n, RUN), RUN, from));
  for (int64_t width = RUN; width < slices.n; width *= 2) {
    DM_TRY(dm_launch(merge_kernel, dm_blocks(all), DM_THREADS, 0, from, to, slices.count,
                     slices.n, slices.kept, width));
    const Order merged = to;
    to = from;
    from = merged;
  }
  return dm_launch(store_kernel, dm_blocks(slices.count * slices.kept), DM_THREADS, 0, slices,
                   (const int64_t *)from.at);
}

/* Sorts slices of any length. */
static dm_status sort_slices(const SortSlices &slices) {
  if (slices.n > RUN) return merge_sort(slices);
  int width = 1;
  while (width < slices.n) width *= 2;
  return sort_runs(slices, 1, width, Order{NULL, NULL});
}

/* sort or topk of x along dim: describes the slices, whose first elements are a walk over the
   other dims. */
static dm_status sort_along(dm_Call *c, int64_t dim, bool descending) {
  dm_Tensor *out = c->out[0], *x = c->in[0];
  const int d = (int)(dim < 0 ? dim + out->ndim : dim);
  void *data[2];
  SortSlices slices;
  if (out->numel == 0) return DM_OK;
  dm_Tensor firsts[2] = {dm_view_of(out, out->ndim, out->shape, out->stride, out->offset),
                         dm_view_of(x, x->ndim, x->shape, x->stride, x->offset)};
  slices.n = slices.kept = slices.out_step = slices.x_step = 1;
  if (out->ndim > 0) {
    slices.n = x->shape[d];
    slices.kept = out->shape[d];
    slices.out_step = out->stride[d];
    slices.x_step = x->stride[d];
    /* The walk goes over the other dims only: dim d becomes size 1. */
    for (int i = 0; i < 2; i++) {
      firsts[i].numel /= firsts[i].shape[d];
      firsts[i].shape[d] = 1;
    }
  }
  dm_Tensor *both[2] = {&firsts[0], &firsts[1]};
  slices.walk = dm_walk<2>(both, data);
  slices.count = slices.walk.numel;
  slices.y = data[0];
  slices.x = data[1];
  slices.index = (int64_t *)dm_tensor_data(c->out[1]);
  slices.dtype = x->dtype;
  slices.size = dm_dtype_sizes[x->dtype];
  slices.base = c->base;
  slices.descending = descending;
  return sort_slices(slices);
}

/* out: the values and their positions (int64). */
DM_CUDA_KERNEL(sort_cuda) {
  const dm_SortAttr *a = DM_ATTR(dm_SortAttr, c);
  return sort_along(c, a->dim, a->descending != 0);
}
/* The first k of the sorted order; k is the size of out along dim. */
DM_CUDA_KERNEL(topk_cuda) {
  const dm_TopkAttr *a = DM_ATTR(dm_TopkAttr, c);
  return sort_along(c, a->dim, a->largest != 0);
}

/* Sorts n int64 keys for another kernel, with their positions from 0. */
dm_status dm_cuda_order(const int64_t *keys, int64_t n, int64_t *sorted, int64_t *at) {
  SortSlices slices;
  memset(&slices.walk, 0, sizeof slices.walk);
  slices.walk.ndim = 1;
  slices.walk.numel = slices.walk.shape[0] = 1;
  slices.count = slices.out_step = slices.x_step = 1;
  slices.n = slices.kept = n;
  slices.x = keys;
  slices.y = sorted;
  slices.index = at;
  slices.dtype = DM_I64;
  slices.size = 8;
  slices.base = 0;
  slices.descending = false;
  return n > 0 ? sort_slices(slices) : DM_OK;
}

/* ---- bucketize ---- */

/* bucketize's boundaries, in rising order. */
struct Edges {
  const void *data;
  int dtype;
  int64_t n, stride;
  bool right;
};

/* One thread per element: a binary search for the number of boundaries below it or, with
   `right`, not above it. C holds both dtypes. */
template <class C>
static __global__ void __launch_bounds__(DM_THREADS)
    bucket_kernel(void *y, int to, const void *x, int dtype, dm_Walk<2> walk, Edges edges,
                  int base) {
  for (int64_t i = dm_thread(); i < walk.numel; i += dm_threads()) {
    int64_t off[2], low = 0, high = edges.n;
    walk.at(i, off);
    const uint64_t key = key_of(dm_load<C>(dtype, x, off[1]));
    while (low < high) { /* counts the edges below x or, with `right`, not above it */
      const int64_t mid = low + (high - low) / 2;
      const uint64_t edge = key_of(dm_load<C>(edges.dtype, edges.data, mid * edges.stride));
      if (edges.right ? edge <= key : edge < key) low = mid + 1;
      else high = mid;
    }
    if (to == DM_I64) ((int64_t *)y)[off[0]] = low + base;
    else ((int32_t *)y)[off[0]] = (int32_t)(low + base);
  }
}

template <class C> static dm_status bucketize(dm_Call *c, dm_Tensor *x, const Edges &edges) {
  dm_Tensor *both[2] = {c->out[0], x};
  void *data[2];
  const dm_Walk<2> walk = dm_walk<2>(both, data);
  return dm_launch(bucket_kernel<C>, dm_blocks(walk.numel), DM_THREADS, 0, data[0],
                   (int)both[0]->dtype, data[1], (int)x->dtype, walk, edges, c->base);
}

/* Whether float holds every value: float32 and 16 bits. */
static bool in_float(const dm_Tensor *t) {
  return dm_is_float((dm_DType)t->dtype) && t->dtype != DM_F64;
}

/* x of any shape, the boundaries (n); C is a type that holds both dtypes. */
DM_CUDA_KERNEL(bucketize_cuda) {
  dm_Tensor *x = c->in[0], *t = c->in[1];
  dm_Own own;
  if (x->numel == 0) return DM_OK;
  DM_TRY(dm_bring(&x, c->out[0]->device, &own));
  const Edges edges = {dm_tensor_data(t), t->dtype, t->numel, t->stride[0],
                       DM_ATTR(dm_BucketizeAttr, c)->right != 0};
  if (in_float(x) && in_float(t)) return bucketize<float>(c, x, edges);
  if (dm_is_float((dm_DType)x->dtype) || dm_is_float((dm_DType)t->dtype))
    return bucketize<double>(c, x, edges);
  return bucketize<int64_t>(c, x, edges);
}
