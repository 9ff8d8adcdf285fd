/* masked_select, masked_put and nonzero, and tril and triu.

   The first three are stream compaction, which keeps the elements' order (Harris et al. 2007):
   each block counts the chosen elements of its tile, a scan of the counts gives the number
   before each tile, and a second pass adds an element's rank within its tile. The shape rule
   of an op whose size depends on the count has computed the count before, and waited for
   it. */
#include "kernels/own.cuh"
#include "kernels/scan.cuh"

extern "C" {
#include "op/strided.h"
}

enum { EACH = 8, TILE = DM_THREADS * EACH };

/* A choice: elements between a masked tensor and a dense row of the chosen ones. */
struct MaskedElements {
  dm_Walk<2> walk; /* offsets in the tensor and in the mask */
  void *tensor, *row;
  const uint8_t *mask;
  int size;     /* bytes of an element */
  int64_t step; /* step between elements of row; 0: one for all */
  bool put;     /* from row to tensor, or from tensor to row */

  __device__ bool chosen(int64_t i) const {
    int64_t off[2];
    walk.at(i, off);
    return mask[off[1]] != 0;
  }
  __device__ void take(int64_t i, int64_t rank) const {
    int64_t off[2];
    walk.at(i, off);
    if (put) dm_move(size, tensor, off[0], row, rank * step);
    else dm_move(size, row, rank * step, tensor, off[0]);
  }
};

/* A choice: positions of elements that are not 0, each a row of ndim in out. C is a type in
   which only 0 becomes 0. */
template <class C> struct NonzeroPositions {
  dm_Walk<1> walk;
  const void *x;
  int dtype, ndim, base;
  int64_t shape[DM_MAX_DIM];
  int64_t *out;

  __device__ bool chosen(int64_t i) const {
    int64_t off[1];
    walk.at(i, off);
    return dm_load<C>(dtype, x, off[0]) != C(0);
  }
  __device__ void take(int64_t i, int64_t rank) const {
    for (int d = ndim - 1; d >= 0; d--) {
      out[rank * ndim + d] = i % shape[d] + base;
      i /= shape[d];
    }
  }
};

/* The first pass. counts (tiles) gets the number of chosen elements in each tile of TILE
   elements, EACH per thread. */
template <class Choice>
static __global__ void __launch_bounds__(DM_THREADS)
    count_kernel(Choice choice, int64_t n, int64_t *counts) {
  DM_SHARED(int64_t, sums, DM_WARPS);
  const int64_t first = dm_thread() * EACH;
  int64_t count = 0, all;
  for (int k = 0; k < EACH && first + k < n; k++) count += choice.chosen(first + k);
  (void)dm_block_scan(count, sums, &all);
  if (threadIdx.x == 0) counts[blockIdx.x] = all;
}

/* The second pass: takes each chosen element with its rank, the number of chosen ones before
   it. ranks (tiles) holds the number before each tile. */
template <class Choice>
static __global__ void __launch_bounds__(DM_THREADS)
    masked_take_kernel(Choice choice, int64_t n, const int64_t *ranks) {
  DM_SHARED(int64_t, sums, DM_WARPS);
  const int64_t first = dm_thread() * EACH;
  bool chosen[EACH];
  int64_t count = 0, all;
  for (int k = 0; k < EACH; k++) count += chosen[k] = first + k < n && choice.chosen(first + k);
  /* The rank of this thread's first chosen element: those before the tile and before the
     thread. */
  int64_t rank = ranks[blockIdx.x] + dm_block_scan(count, sums, &all);
  for (int k = 0; k < EACH; k++)
    if (chosen[k]) choice.take(first + k, rank++);
}

/* Calls choice.take(i, rank) for each i of n for which choice.chosen(i) is true. */
template <class Choice> static dm_status compact(const Choice &choice, int64_t n) {
  const int64_t n_tile = dm_ceil_div(n, TILE);
  dm_Scratch<int64_t> ranks;
  DM_TRY(ranks.get(n_tile));
  DM_TRY(dm_launch(count_kernel<Choice>, (unsigned)n_tile, DM_THREADS, 0, choice, n, ranks.p));
  DM_TRY(dm_cuda_scan(ranks.p, n_tile));
  return dm_launch(masked_take_kernel<Choice>, (unsigned)n_tile, DM_THREADS, 0, choice, n,
                   ranks.p);
}

/* Copies the elements of t where the mask is set to `row`, or (put) from it. */
static dm_status compact_masked(dm_Tensor *t, dm_Tensor *mask, const void *row, int64_t step,
                                bool put) {
  dm_Own own;
  DM_TRY(dm_bring(&mask, t->device, &own));
  dm_Tensor *both[2] = {t, mask};
  void *data[2];
  MaskedElements m;
  m.walk = dm_walk<2>(both, data);
  m.tensor = data[0];
  m.mask = (const uint8_t *)data[1];
  m.row = (void *)row;
  m.size = dm_dtype_sizes[t->dtype];
  m.step = step;
  m.put = put;
  return compact(m, t->numel);
}

/* x is expanded to the broadcast shape as a view. */
DM_CUDA_KERNEL(masked_select_cuda) {
  dm_Tensor *x = c->in[0], *out = c->out[0];
  dm_Own own;
  int ndim;
  int64_t shape[DM_MAX_DIM];
  if (out->numel == 0) return DM_OK;
  DM_TRY(dm_bring(&x, out->device, &own));
  DM_TRY(dm_broadcast("masked_select", x, c->in[1], &ndim, shape));
  dm_Tensor wide = dm_view_expanded(x, ndim, shape);
  return compact_masked(&wide, c->in[1], dm_tensor_data(out), 1, false);
}

/* out = x, but where the mask is set out takes the elements of source in order, or its only
   one. */
DM_CUDA_KERNEL(masked_put_cuda) {
  dm_Tensor *out = c->out[0], *source = c->in[2];
  dm_Own own;
  const void *row;
  DM_TRY(dm_cuda_copy(out, c->in[0]));
  if (out->numel == 0 || source->numel == 0) return DM_OK;
  DM_TRY(dm_dense_as(source, (dm_DType)out->dtype, source->ndim, source->shape, out->device,
                     &own, &row));
  return compact_masked(out, c->in[1], row, source->numel == 1 ? 0 : 1, true);
}

/* Positions of x's nonzero elements. The type C is double for float64 and float for all
   others: as float, no integer but 0 is 0. */
template <class C> static dm_status nonzero(dm_Tensor *x, int64_t *out, int base) {
  void *data[1];
  NonzeroPositions<C> p;
  p.walk = dm_walk<1>(&x, data);
  p.x = data[0];
  p.dtype = x->dtype;
  p.ndim = x->ndim;
  p.base = base;
  p.out = out;
  for (int d = 0; d < x->ndim; d++) p.shape[d] = x->shape[d];
  return compact(p, x->numel);
}
/* The number of nonzero elements is known here: it is the size of out. */
DM_CUDA_KERNEL(nonzero_cuda) {
  int64_t *out = (int64_t *)dm_tensor_data(c->out[0]);
  if (c->out[0]->numel == 0) return DM_OK;
  return c->in[0]->dtype == DM_F64 ? nonzero<double>(c->in[0], out, c->base)
                                   : nonzero<float>(c->in[0], out, c->base);
}

/* ---- triangles ---- */

template <class T>
/* x (..., rows, columns): element i is kept or zeroed by how far right of the diagonal it
   is. */
static __global__ void __launch_bounds__(DM_THREADS)
    triangle_kernel(T *out, const T *x, dm_Walk<2> walk, int64_t rows, int64_t columns,
                    int64_t diagonal, bool upper) {
  for (int64_t i = dm_thread(); i < walk.numel; i += dm_threads()) {
    int64_t off[2];
    walk.at(i, off);
    const int64_t above = i % columns - i / columns % rows - diagonal;
    out[off[0]] = (upper ? above >= 0 : above <= 0) ? x[off[1]] : T(0);
  }
}

/* tril keeps the diagonal and what is below it, triu what is above; the rest is 0. */
static dm_status triangle(dm_Call *c, bool upper) {
  dm_Tensor *both[2] = {c->out[0], c->in[0]};
  const dm_Tensor *out = c->out[0];
  const int64_t rows = out->shape[out->ndim - 2], columns = out->shape[out->ndim - 1];
  const int64_t far = rows + columns; /* a larger offset changes nothing; avoids overflow */
  const int64_t diagonal =
      dm_max_i64(-far, dm_min_i64(far, DM_ATTR(dm_TriangleAttr, c)->diagonal));
  void *data[2];
  if (out->numel == 0) return DM_OK;
  const dm_Walk<2> walk = dm_walk<2>(both, data);
  DM_SIZE_TYPES(out->dtype, return dm_launch(triangle_kernel<T>, dm_blocks(out->numel),
                                             DM_THREADS, 0, (T *)data[0], (const T *)data[1],
                                             walk, rows, columns, diagonal, upper););
}
DM_CUDA_KERNEL(tril_cuda) { return triangle(c, false); }
DM_CUDA_KERNEL(triu_cuda) { return triangle(c, true); }
