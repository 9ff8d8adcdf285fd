/* Elements and rows at positions: taken, written, added up.

   Several sources may go to one element. What comes out is what the CPU makes, one
   source after another: of those that write, the last wins; those that add are
   added in their order. Writers claim their element by number first. Adders either
   run one after another in one thread, where there are few of them or many
   threads, or are sorted by element, and the first of each adds them all. */
#include "kernels/own.cuh"
#include "kernels/sort.h"

extern "C" {
#include "op/index/index.h"
#include "op/strided.h"
}

enum {
  FEW = 32,   /* sources that a thread may well go through one by one */
  MANY = 4096 /* threads that are enough, however long each takes */
};

/* ---- positions ---- */

struct IndexPositions {
  const void *data;
  int dtype, base, op;
  bool wrap;    /* negative positions count from the end */
  int64_t n;    /* wanted: 0..n-1 */
  int64_t skip; /* one that stands for none; -1 */
  dm_Fault *faults;

  /* The one at `off` of the data, element `position` of its tensor; -1 where it is none. */
  __device__ int64_t at(int64_t off, int64_t position) const {
    int64_t v;
    switch (dtype) {
    case DM_U8: v = ((const uint8_t *)data)[off]; break;
    case DM_I8: v = ((const int8_t *)data)[off]; break;
    case DM_I16: v = ((const int16_t *)data)[off]; break;
    case DM_I32: v = ((const int32_t *)data)[off]; break;
    default: v = ((const int64_t *)data)[off]; break;
    }
    /* unsigned: the least of int64 wraps, and is out of range still */
    const int64_t p = (int64_t)((uint64_t)v + (uint64_t)(wrap && v < 0 ? n : -(int64_t)base));
    if (p >= 0 && p < n) return p == skip ? -1 : p;
    dm_device_fault(faults, DM_FAULT_INDEX, op, base, position, v, n);
    return -1;
  }
};

static IndexPositions positions(const dm_Call *c, const dm_Tensor *index, int64_t n,
                                bool wrap) {
  IndexPositions p;
  p.data = dm_tensor_data(index);
  p.dtype = index->dtype;
  p.base = c->base;
  p.op = dm_op_id(c->op);
  p.wrap = wrap;
  p.n = n;
  p.skip = -1;
  p.faults = dm_cuda_faults();
  return p;
}

/* A 0-dim tensor has one element along its dim. */
static int64_t size_along(const dm_Tensor *t, int dim) { return t->ndim ? t->shape[dim] : 1; }
static int64_t step_along(const dm_Tensor *t, int dim) { return t->ndim ? t->stride[dim] : 0; }

/* ---- taking ---- */

/* y = x where its walk stands, `step` on for each position. Each position is met
   `inner` times in a row, the whole index again and again. */
template <class T>
static __global__ void __launch_bounds__(DM_THREADS)
    take_kernel(T *y, const T *x, IndexPositions index, dm_Walk<3> walk, int64_t step,
                int64_t inner, int64_t n_index) {
  for (int64_t i = dm_thread(); i < walk.numel; i += dm_threads()) {
    int64_t off[3];
    walk.at(i, off);
    const int64_t p =
        index.at(off[2], inner == 1 && n_index == walk.numel ? i : i / inner % n_index);
    y[off[0]] = p < 0 ? T(0) : x[off[1] + p * step];
  }
}

static dm_status take(dm_Tensor *out, dm_Tensor *x, dm_Tensor *at, const IndexPositions &index,
                      int64_t step, int64_t inner, int64_t n_index) {
  dm_Tensor *all[3] = {out, x, at};
  void *data[3];
  const dm_Walk<3> walk = dm_walk<3>(all, data);
  DM_SIZE_TYPES(out->dtype, return dm_launch(take_kernel<T>, dm_blocks(out->numel), DM_THREADS,
                                             0, (T *)data[0], (const T *)data[1], index, walk,
                                             step, inner, n_index););
}

DM_CUDA_KERNEL(gather_cuda) {
  dm_Tensor *x = c->in[0], *index = c->in[1], *out = c->out[0];
  const int dim = dm_dim_of(x, DM_ATTR(dm_AlongAttr, c)->dim);
  dm_Own own, own_x;
  if (out->numel == 0) return DM_OK;
  DM_TRY(dm_bring(&x, out->device, &own_x));
  DM_TRY(dm_bring(&index, out->device, &own));
  dm_Tensor from = dm_view_of(x, x->ndim, out->shape, x->stride, x->offset);
  if (x->ndim) from.stride[dim] = 0;
  return take(out, &from, index, positions(c, index, size_along(x, dim), false),
              step_along(x, dim), 1, out->numel);
}

/* out: x with dim replaced by the index's dims. */
static dm_status take_rows(dm_Call *c, dm_Tensor *x, dm_Tensor *index, int dim, bool wrap) {
  dm_Tensor *out = c->out[0];
  int64_t from[DM_MAX_DIM], at[DM_MAX_DIM], inner = 1;
  const int more = out->ndim - x->ndim + 1; /* dims that replace one */
  if (out->numel == 0) return DM_OK;
  for (int d = 0; d < out->ndim; d++) {
    const bool chosen = d >= dim && d < dim + more;
    from[d] = chosen ? 0 : x->stride[d < dim ? d : d - more + 1];
    at[d] = chosen && index->ndim > 0 ? index->stride[d - dim] : 0;
    if (d >= dim + more) inner *= out->shape[d];
  }
  dm_Tensor rows = dm_view_of(x, out->ndim, out->shape, from, x->offset);
  dm_Tensor expanded = dm_view_of(index, out->ndim, out->shape, at, index->offset);
  return take(out, &rows, &expanded, positions(c, index, x->shape[dim], wrap), x->stride[dim],
              inner, index->numel);
}

static dm_status take_along(dm_Call *c, bool wrap) {
  dm_Tensor *x = c->in[0], *index = c->in[1];
  dm_Own own;
  DM_TRY(dm_bring(&index, c->out[0]->device, &own));
  return take_rows(c, x, index, dm_dim_of(x, DM_ATTR(dm_AlongAttr, c)->dim), wrap);
}
DM_CUDA_KERNEL(index_select_cuda) { return take_along(c, false); }
DM_CUDA_KERNEL(index_get_cuda) { return take_along(c, true); }

DM_CUDA_KERNEL(embedding_cuda) {
  dm_Tensor *index = c->in[0];
  dm_Own own;
  DM_TRY(dm_bring(&index, c->out[0]->device, &own));
  return take_rows(c, c->in[1], index, 0, false);
}

/* ---- where sources go ---- */

/* target[i] = where `to` stands, `step` on for the index's i-th; -1 for none. */
static __global__ void __launch_bounds__(DM_THREADS)
    target_kernel(int64_t *target, IndexPositions index, dm_Walk<2> walk, int64_t step) {
  for (int64_t i = dm_thread(); i < walk.numel; i += dm_threads()) {
    int64_t off[2];
    walk.at(i, off);
    const int64_t p = index.at(off[1], i);
    target[i] = p < 0 ? -1 : off[0] + p * step;
  }
}

static dm_status find_targets(dm_Tensor *to, dm_Tensor *index, const IndexPositions &p,
                              int64_t step, dm_Scratch<int64_t> *target) {
  dm_Tensor *both[2] = {to, index};
  void *data[2];
  DM_TRY(target->get(index->numel));
  const dm_Walk<2> walk = dm_walk<2>(both, data);
  return dm_launch(target_kernel, dm_blocks(walk.numel), DM_THREADS, 0, target->p, p, walk,
                   step);
}

/* Sources (outer, m, inner), dense; each of the m has a row of x (outer, n, inner)
   as its target. */
struct IndexPut {
  int64_t outer, m, n, inner;
  const int64_t *target;
  const void *rows;
  int dtype; /* of rows */

  __device__ int64_t offset_of(int64_t o, int64_t row, int64_t i) const {
    return (o * n + row) * inner + i;
  }
};

/* ---- the last writer wins ---- */

/* claim[row]: 1 + the number of the last source that goes there. */
static __global__ void __launch_bounds__(DM_THREADS)
    claim_kernel(unsigned long long *claim, const int64_t *target, int64_t m) {
  for (int64_t k = dm_thread(); k < m; k += dm_threads())
    if (target[k] >= 0) atomicMax(&claim[target[k]], (unsigned long long)k + 1);
}

template <class T>
static __global__ void __launch_bounds__(DM_THREADS)
    write_kernel(T *x, IndexPut put, const unsigned long long *claim) {
  for (int64_t e = dm_thread(); e < put.outer * put.m * put.inner; e += dm_threads()) {
    const int64_t k = e / put.inner % put.m, row = put.target[k];
    if (row < 0 || claim[row] != (unsigned long long)k + 1) continue;
    x[put.offset_of(e / put.inner / put.m, row, e % put.inner)] = ((const T *)put.rows)[e];
  }
}

static dm_status write(dm_Tensor *x, const IndexPut &put) {
  dm_Scratch<unsigned long long> claim;
  DM_TRY(claim.get(put.n));
  DM_CUDA_TRY(cudaMemsetAsync(claim.p, 0, (size_t)claim.n_bytes, dm_cuda_stream()));
  DM_TRY(dm_launch(claim_kernel, dm_blocks(put.m), DM_THREADS, 0, claim.p, put.target, put.m));
  DM_SIZE_TYPES(x->dtype,
                return dm_launch(write_kernel<T>, dm_blocks(put.outer * put.m * put.inner),
                                 DM_THREADS, 0, (T *)dm_tensor_data(x), put,
                                 (const unsigned long long *)claim.p););
}

/* ---- sums, in the sources' order ---- */

/* How a source joins what is there. */
struct Plus {
  template <class C> __device__ C operator()(C a, C b) const { return a + b; }
  __device__ int64_t operator()(int64_t a, int64_t b) const {
    return (int64_t)((uint64_t)a + (uint64_t)b); /* wraps */
  }
};

/* By a dm_ReduceKind; NaN stays. */
struct Reducer {
  int kind;

  static __device__ int64_t times(int64_t a, int64_t b) {
    return (int64_t)((uint64_t)a * (uint64_t)b); /* wraps */
  }
  static __device__ float times(float a, float b) { return a * b; }
  static __device__ double times(double a, double b) { return a * b; }
  template <class C> __device__ C operator()(C a, C b) const {
    if (kind == DM_FOLD_PROD) return times(a, b);
    return (kind == DM_FOLD_AMAX ? b > a : b < a) || b != b ? b : a;
  }
};

/* One thread for all m sources of a column. each: every source of a column has a
   target of its own, an element of x; target is (outer, m, inner) then. */
template <class C, class Join>
static __global__ void __launch_bounds__(DM_THREADS)
    add_kernel(C *x, IndexPut put, bool each, Join join) {
  for (int64_t u = dm_thread(); u < put.outer * put.inner; u += dm_threads()) {
    const int64_t o = u / put.inner, i = u % put.inner;
    for (int64_t k = 0; k < put.m; k++) {
      const int64_t e = (o * put.m + k) * put.inner + i;
      const int64_t row = put.target[each ? e : k];
      if (row < 0) continue;
      const int64_t to = each ? row : put.offset_of(o, row, i);
      x[to] = join(x[to], dm_load<C>(put.dtype, put.rows, e));
    }
  }
}

/* 16-bit sums are kept in float32, and rounded once. */
template <class Join>
static dm_status add_in_turn(dm_Tensor *x, const IndexPut &put, bool each, Join join) {
  const dm_DType wide = dm_compute_dtype((dm_DType)x->dtype);
  const unsigned blocks = dm_blocks(put.outer * put.inner);
  dm_Own own;
  dm_Tensor *sums = x;
  if (x->dtype != wide) {
    DM_TRY(dm_tensor_new(wide, x->ndim, x->shape, x->device, &own.t));
    sums = own.t;
    DM_TRY(dm_cuda_copy(sums, x));
  }
  void *p = dm_tensor_data(sums);
  if (wide == DM_F32)
    DM_TRY(
        dm_launch(add_kernel<float, Join>, blocks, DM_THREADS, 0, (float *)p, put, each, join));
  else if (wide == DM_F64)
    DM_TRY(dm_launch(add_kernel<double, Join>, blocks, DM_THREADS, 0, (double *)p, put, each,
                     join));
  else
    DM_TRY(dm_launch(add_kernel<int64_t, Join>, blocks, DM_THREADS, 0, (int64_t *)p, put, each,
                     join));
  return sums == x ? DM_OK : dm_cuda_copy(x, sums);
}

/* target: in order; source: which of the m each belongs to. The first of each
   target adds them all to x. */
template <class C, class Join>
static __global__ void __launch_bounds__(DM_THREADS)
    add_sorted_kernel(void *x, int dtype, IndexPut put, const int64_t *source, Join join) {
  for (int64_t e = dm_thread(); e < put.outer * put.m * put.inner; e += dm_threads()) {
    const int64_t o = e / put.inner / put.m, i = e % put.inner;
    int64_t k = e / put.inner % put.m;
    const int64_t row = put.target[k];
    if (row < 0 || (k > 0 && put.target[k - 1] == row)) continue;
    const int64_t to = put.offset_of(o, row, i);
    C sum = dm_load<C>(dtype, x, to);
    for (; k < put.m && put.target[k] == row; k++)
      sum = join(sum, dm_load<C>(put.dtype, put.rows, (o * put.m + source[k]) * put.inner + i));
    dm_store<C>(dtype, x, to, sum);
  }
}

template <class Join> static dm_status add_sorted(dm_Tensor *x, IndexPut put, Join join) {
  const unsigned blocks = dm_blocks(put.outer * put.m * put.inner);
  dm_Scratch<int64_t> order;
  DM_TRY(order.get(2 * put.m));
  int64_t *const source = order.p + put.m;
  void *p = dm_tensor_data(x);
  DM_TRY(dm_cuda_order(put.target, put.m, order.p, source));
  put.target = order.p;
  switch (dm_compute_dtype((dm_DType)x->dtype)) {
  case DM_F32:
    return dm_launch(add_sorted_kernel<float, Join>, blocks, DM_THREADS, 0, p, (int)x->dtype,
                     put, (const int64_t *)source, join);
  case DM_F64:
    return dm_launch(add_sorted_kernel<double, Join>, blocks, DM_THREADS, 0, p, (int)x->dtype,
                     put, (const int64_t *)source, join);
  default:
    return dm_launch(add_sorted_kernel<int64_t, Join>, blocks, DM_THREADS, 0, p, (int)x->dtype,
                     put, (const int64_t *)source, join);
  }
}

/* The dtype in which sources are added to x: theirs when it is x's own. */
static dm_DType adding(const dm_Tensor *x, const dm_Tensor *source) {
  return source->dtype == x->dtype ? (dm_DType)x->dtype : dm_compute_dtype((dm_DType)x->dtype);
}

/* ---- element by element: scatter, scatter_add ---- */

/* Sources that lie as the index does, and go to elements of out. */
static IndexPut scattered(const dm_Tensor *out, const dm_Tensor *index, const int64_t *target) {
  IndexPut put;
  put.outer = put.inner = 1;
  put.m = index->numel;
  put.n = out->numel;
  put.target = target;
  return put;
}

/* The index's elements as lines along dim. */
static void set_lines(IndexPut *put, const dm_Tensor *index, int dim) {
  put->outer = dm_numel(dim, index->shape);
  put->m = size_along(index, dim);
  put->inner = index->numel / put->outer / put->m;
}

/* join: how sources are added; those that are not are written. */
template <class Join> static dm_status scatter(dm_Call *c, bool add, Join join) {
  dm_Tensor *out = c->out[0], *index = c->in[1], *src = c->in[2];
  const int dim = dm_dim_of(out, DM_ATTR(dm_AlongAttr, c)->dim);
  dm_Own own_index, own_values;
  dm_Scratch<int64_t> target;
  DM_TRY(dm_cuda_copy(out, c->in[0]));
  if (index->numel == 0) return DM_OK;
  DM_TRY(dm_bring(&index, out->device, &own_index));
  dm_Tensor to = dm_view_of(out, index->ndim, index->shape, out->stride, out->offset);
  if (to.ndim) to.stride[dim] = 0;
  DM_TRY(find_targets(&to, index, positions(c, index, size_along(out, dim), false),
                      step_along(out, dim), &target));
  IndexPut put = scattered(out, index, target.p);
  /* the source's corner that the index covers; a number goes everywhere */
  dm_Tensor corner = dm_is_host(src) || src->ndim == 0
                         ? *src
                         : dm_view_of(src, index->ndim, index->shape, src->stride, src->offset);
  const dm_DType dtype = add ? adding(out, src) : (dm_DType)out->dtype;
  DM_TRY(dm_dense_as(&corner, dtype, index->ndim, index->shape, out->device, &own_values,
                     &put.rows));
  put.dtype = dtype;
  if (!add) return write(out, put);
  IndexPut lines = put;
  set_lines(&lines, index, dim);
  if (lines.m <= FEW || lines.outer * lines.inner >= MANY)
    return add_in_turn(out, lines, true, join);
  return add_sorted(out, put, join);
}
DM_CUDA_KERNEL(scatter_cuda) { return scatter(c, false, Plus()); }
DM_CUDA_KERNEL(scatter_add_cuda) { return scatter(c, true, Plus()); }
DM_CUDA_KERNEL(scatter_fold_cuda) {
  const Reducer reducer = {(int)DM_ATTR(dm_ScatterFoldAttr, c)->fold};
  return scatter(c, true, reducer);
}

/* ---- row by row: index_put, index_copy, index_add, embedding_backward ---- */

/* x's rows at the positions become those of `source`, or have them added; x holds
   what was there before. The index has m elements; shape: of the source, or what
   it is broadcast to. */
static dm_status put_rows(dm_Tensor *x, int dim, dm_Tensor *index, const IndexPositions &p,
                          dm_Tensor *source, int ndim, const int64_t *shape, bool add) {
  const int64_t none[DM_MAX_DIM] = {0};
  dm_Own own;
  dm_Scratch<int64_t> target;
  IndexPut put;
  put.outer = dm_numel(dim, x->shape);
  put.m = index->numel;
  put.n = x->shape[dim];
  put.inner = dm_numel(x->ndim - dim - 1, x->shape + dim + 1);
  if (put.outer * put.m * put.inner == 0) return DM_OK;
  const dm_DType dtype = add ? adding(x, source) : (dm_DType)x->dtype;
  DM_TRY(dm_dense_as(source, dtype, ndim, shape, x->device, &own, &put.rows));
  dm_Tensor start = dm_view_of(x, index->ndim, index->shape, none, x->offset);
  DM_TRY(find_targets(&start, index, p, 1, &target));
  put.target = target.p;
  put.dtype = dtype;
  if (!add) return write(x, put);
  return put.m <= FEW ? add_in_turn(x, put, false, Plus()) : add_sorted(x, put, Plus());
}

DM_CUDA_KERNEL(index_put_cuda) {
  const dm_IndexPutAttr *a = DM_ATTR(dm_IndexPutAttr, c);
  dm_Tensor *x = c->out[0], *index = c->in[1];
  const int dim = dm_dim_of(x, a->dim), ndim = x->ndim - 1 + index->ndim;
  int64_t shape[DM_MAX_DIM];
  dm_Own own;
  DM_TRY(dm_cuda_copy(x, c->in[0]));
  DM_TRY(dm_bring(&index, x->device, &own));
  for (int d = 0; d < ndim; d++)
    shape[d] = d < dim                 ? x->shape[d]
               : d < dim + index->ndim ? index->shape[d - dim]
                                       : x->shape[d - index->ndim + 1];
  return put_rows(x, dim, index, positions(c, index, x->shape[dim], true), c->in[2], ndim,
                  shape, a->accumulate != 0);
}

static dm_status put_vector(dm_Call *c, dm_Tensor *source, bool add) {
  dm_Tensor *x = c->out[0], *index = c->in[1];
  const int dim = dm_dim_of(x, DM_ATTR(dm_AlongAttr, c)->dim);
  dm_Own own;
  DM_TRY(dm_cuda_copy(x, c->in[0]));
  DM_TRY(dm_bring(&index, x->device, &own));
  return put_rows(x, dim, index, positions(c, index, x->shape[dim], false), source,
                  source->ndim, source->shape, add);
}
DM_CUDA_KERNEL(index_copy_cuda) { return put_vector(c, c->in[2], false); }

DM_CUDA_KERNEL(index_add_cuda) {
  const double alpha = DM_ATTR(dm_IndexAddAttr, c)->alpha;
  dm_Own scaled;
  if (alpha == 1) return put_vector(c, c->in[2], true);
  DM_TRY(
      dm_scaled_new(c->in[2], dm_compute_dtype((dm_DType)c->out[0]->dtype), alpha, &scaled.t));
  return put_vector(c, scaled.t, true);
}

/* gw[index[i]] += gy[i]; rows of padding get nothing. */
DM_CUDA_KERNEL(embedding_backward_cuda) {
  const dm_EmbeddingBackwardAttr *a = DM_ATTR(dm_EmbeddingBackwardAttr, c);
  dm_Tensor *gy = c->in[0], *index = c->in[1], *out = c->out[0];
  dm_Own own;
  DM_TRY(dm_cuda_fill(out, 0));
  DM_TRY(dm_bring(&index, out->device, &own));
  IndexPositions p = positions(c, index, a->n, false);
  if (a->padding_idx.set) p.skip = a->padding_idx.v + (a->padding_idx.v < 0 ? a->n : 0);
  return put_rows(out, 0, index, p, gy, gy->ndim, gy->shape, true);
}

/* ---- one_hot ---- */

static __global__ void __launch_bounds__(DM_THREADS)
    one_hot_kernel(int64_t *out, IndexPositions index, dm_Walk<1> walk) {
  for (int64_t i = dm_thread(); i < walk.numel; i += dm_threads()) {
    int64_t off[1];
    walk.at(i, off);
    const int64_t p = index.at(off[0], i);
    if (p >= 0) out[i * index.n + p] = 1;
  }
}

DM_CUDA_KERNEL(one_hot_cuda) {
  dm_Tensor *index = c->in[0], *out = c->out[0];
  dm_Own own;
  void *data[1];
  DM_TRY(dm_cuda_fill(out, 0));
  if (index->numel == 0) return DM_OK;
  DM_TRY(dm_bring(&index, out->device, &own));
  const dm_Walk<1> walk = dm_walk<1>(&index, data);
  return dm_launch(one_hot_kernel, dm_blocks(walk.numel), DM_THREADS, 0,
                   (int64_t *)dm_tensor_data(out),
                   positions(c, index, out->shape[out->ndim - 1], false), walk);
}
