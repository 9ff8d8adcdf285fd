/* Indexing: gather, index_select, embedding; scatter, index_put, index_copy, index_add;
   one_hot.

   Reading is one thread per output element. Writing is where order matters, as several sources
   may go to one element. The result is always that of the CPU, which applies sources one after
   another: of several writers the last wins, and several adders add in their order. PyTorch's
   scatter_add and index_add use atomicAdd on CUDA by default, whose order differs from run to
   run. Writers find the last one with atomicMax on its number, which no order of execution
   changes. Adders either run in turn in one thread per column, where sources are few or
   columns many, or are sorted by target (sort.cu, stable), and the first source of each target
   adds all of them. */
#include "kernels/own.cuh"
#include "kernels/sort.h"

extern "C" {
#include "op/index/index.h"
#include "op/strided.h"
}

enum {
  FEW = 32,     /* sources that one thread may add in turn */
  AT_ONCE = 16, /* sources of a row that a thread reads at once */
  MANY = 4096   /* threads that keep a GPU busy, however many sources each adds */
};

/* ---- positions ---- */

/* An index tensor of any integer dtype, and how its positions are checked. */
struct IndexPositions {
  const void *data;
  int dtype, base, op;
  bool wrap;    /* negative positions count from the end */
  int64_t n;    /* valid are 0 .. n-1 */
  int64_t skip; /* a position that is treated as none (padding); -1: no such */
  dm_Fault *faults;

  /* The position at offset `off` of the data, element `position` of the index; -1 where it is
     invalid or skipped. An invalid one is noted as a fault. */
  __device__ int64_t at(int64_t off, int64_t position) const {
    int64_t v;
    switch (dtype) {
    case DM_U8: v = ((const uint8_t *)data)[off]; break;
    case DM_I8: v = ((const int8_t *)data)[off]; break;
    case DM_I16: v = ((const int16_t *)data)[off]; break;
    case DM_I32: v = ((const int32_t *)data)[off]; break;
    default: v = ((const int64_t *)data)[off]; break;
    }
    /* Added unsigned: the smallest int64 wraps, and is out of range still. */
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

/* ---- taking ---- */

/* y = x at its walk's offset plus step * position, 0 for an invalid position. `inner`
   neighbouring outputs use the same element of the index, which repeats after n_index
   elements. */
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

/* Launches it on operands that have been expanded to out's shape. */
static dm_status take(dm_Tensor *out, dm_Tensor *x, dm_Tensor *at, const IndexPositions &index,
                      int64_t step, int64_t inner, int64_t n_index) {
  dm_Tensor *all[3] = {out, x, at};
  void *data[3];
  const dm_Walk<3> walk = dm_walk<3>(all, data);
  DM_SIZE_TYPES(out->dtype, return dm_launch(take_kernel<T>, dm_blocks(out->numel), DM_THREADS,
                                             0, (T *)data[0], (const T *)data[1], index, walk,
                                             step, inner, n_index););
}

/* out[i][j] = x[index[i][j]][j] for dim 0, and likewise for others. x and the index may be
   0-dim. */
DM_CUDA_KERNEL(gather_cuda) {
  dm_Tensor *x = c->in[0], *index = c->in[1], *out = c->out[0];
  const int dim = dm_dim_of(x, DM_ATTR(dm_AlongAttr, c)->dim);
  dm_Own own, own_x;
  if (out->numel == 0) return DM_OK;
  DM_TRY(dm_bring(&x, out->device, &own_x));
  DM_TRY(dm_bring(&index, out->device, &own));
  /* x is seen with the index's shape; along dim the positions step, not the walk. */
  dm_Tensor from = dm_view_of(x, out->ndim, out->shape, x->stride, x->offset);
  from.stride[dim] = 0;
  return take(out, &from, index, positions(c, index, x->shape[dim], false), x->stride[dim], 1,
              out->numel);
}

/* Takes rows: out is x with dim replaced by the dims of the index. */
static dm_status take_rows(dm_Call *c, dm_Tensor *x, dm_Tensor *index, int dim, bool wrap) {
  dm_Tensor *out = c->out[0];
  /* from and at: the steps of x and of the index along the dims of out. */
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

/* index_select rejects negative positions; x[index] counts them from the end. */
static dm_status take_along(dm_Call *c, bool wrap) {
  dm_Tensor *x = c->in[0], *index = c->in[1];
  dm_Own own;
  DM_TRY(dm_bring(&index, c->out[0]->device, &own));
  return take_rows(c, x, index, dm_dim_of(x, DM_ATTR(dm_AlongAttr, c)->dim), wrap);
}
DM_CUDA_KERNEL(index_select_cuda) { return take_along(c, false); }
DM_CUDA_KERNEL(index_get_cuda) { return take_along(c, true); }

/* Rows of the weight (n, D) by an index of any shape. */
DM_CUDA_KERNEL(embedding_cuda) {
  dm_Tensor *index = c->in[0];
  dm_Own own;
  DM_TRY(dm_bring(&index, c->out[0]->device, &own));
  return take_rows(c, c->in[1], index, 0, false);
}

/* ---- where sources go ---- */

/* target[i] is the offset of the row that source i goes to: the offset of `to` plus step times
   the index's position; -1 for none. */
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

/* The positions themselves, counted from 0. An invalid one is -1 until the fault is raised. */
DM_CUDA_KERNEL(index_check_cuda) {
  dm_Tensor *index = c->in[0], *out = c->out[0];
  const int64_t none[DM_MAX_DIM] = {0};
  void *data[2];
  dm_Own own;
  if (index->numel == 0) return DM_OK;
  DM_TRY(dm_bring(&index, out->device, &own));
  dm_Tensor start = dm_view_of(out, index->ndim, index->shape, none, 0);
  dm_Tensor *both[2] = {&start, index};
  const dm_Walk<2> walk = dm_walk<2>(both, data);
  return dm_launch(
      target_kernel, dm_blocks(walk.numel), DM_THREADS, 0, (int64_t *)dm_tensor_data(out),
      positions(c, index, DM_ATTR(dm_IndexCheckAttr, c)->n, true), walk, (int64_t)1);
}

/* Sources (outer, m, inner), dense, for x (outer, n, inner): each of the m sources has a row
   of x as its target. */
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

/* claim[row] becomes 1 + the number of the last source that goes to the row. The maximum does
   not depend on the order of the atomics. */
static __global__ void __launch_bounds__(DM_THREADS)
    claim_kernel(unsigned long long *claim, const int64_t *target, int64_t m) {
  for (int64_t k = dm_thread(); k < m; k += dm_threads())
    if (target[k] >= 0) atomicMax(&claim[target[k]], (unsigned long long)k + 1);
}

/* Writes the sources that hold their row's claim; one thread per element. */
template <class T>
static __global__ void __launch_bounds__(DM_THREADS)
    write_kernel(T *x, IndexPut put, const unsigned long long *claim) {
  for (int64_t e = dm_thread(); e < put.outer * put.m * put.inner; e += dm_threads()) {
    const int64_t k = e / put.inner % put.m, row = put.target[k];
    if (row < 0 || claim[row] != (unsigned long long)k + 1) continue;
    x[put.offset_of(e / put.inner / put.m, row, e % put.inner)] = ((const T *)put.rows)[e];
  }
}

/* Writes with the last source winning: claims, then one write per element. */
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

/* How a source is combined with what is there: addition. */
struct Plus {
  template <class C> __device__ C operator()(C a, C b) const { return a + b; }
  __device__ int64_t operator()(int64_t a, int64_t b) const {
    return (int64_t)((uint64_t)a + (uint64_t)b); /* wraps */
  }
};

/* The same for scatter_reduce's prod, amax and amin; a NaN stays. */
struct Reducer {
  int kind;

  static __device__ int64_t times(int64_t a, int64_t b) {
    return (int64_t)((uint64_t)a * (uint64_t)b); /* wraps */
  }
  static __device__ float times(float a, float b) { return a * b; }
  static __device__ double times(double a, double b) { return a * b; }
  template <class C> __device__ C operator()(C a, C b) const {
    if (kind == DM_SCATTER_PROD) return times(a, b);
    return (kind == DM_SCATTER_AMAX ? b > a : b < a) || b != b ? b : a;
  }
};

/* One thread per column (o, i) adds its m sources in turn. each: every source has a target of
   its own, an element of x, and target is (outer, m, inner). */
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

/* Runs it. 16-bit x is converted to float32 for the sums and rounded once. */
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

/* Of sorted sources, the first one behind k that has another target than k. */
static __device__ inline int64_t end_of_row(const IndexPut &put, int64_t k) {
  const int64_t row = put.target[k];
  int64_t n = 1;
  while (k + n < put.m && put.target[k + n] == row) n *= 2;
  int64_t low = k + n / 2, high = k + n < put.m ? k + n : put.m; /* low has k's target */
  while (low + 1 < high) {
    const int64_t middle = low + (high - low) / 2;
    if (put.target[middle] == row) low = middle;
    else high = middle;
  }
  return high;
}

/* Sorted sources: target holds the rows in order, and source the number that each had. The
   thread of a row's first source adds all sources of that row, in order, to x; others
   return. */
template <class C, class Join>
static __global__ void __launch_bounds__(DM_THREADS)
    add_sorted_kernel(void *x, int dtype, IndexPut put, const int64_t *source, Join join) {
  for (int64_t e = dm_thread(); e < put.outer * put.m * put.inner; e += dm_threads()) {
    const int64_t o = e / put.inner / put.m, i = e % put.inner;
    int64_t k = e / put.inner % put.m;
    const int64_t row = put.target[k];
    /* Only the first source of each row works. */
    if (row < 0 || (k > 0 && put.target[k - 1] == row)) continue;
    const int64_t to = put.offset_of(o, row, i);
    C sum = dm_load<C>(dtype, x, to);
    /* Several sources are on their way at once; they are added in order still. */
    for (const int64_t end = end_of_row(put, k); k < end; k += AT_ONCE) {
      C v[AT_ONCE];
      /* A switch over the dtype in the loop would make the loads wait for one another. */
      if (dm_same_type<C, float> && put.dtype == DM_F32) {
        DM_UNROLLED
        for (int j = 0; j < AT_ONCE; j++)
          v[j] = k + j < end
                     ? (C)((const float *)put.rows)[(o * put.m + source[k + j]) * put.inner + i]
                     : C(0);
      } else {
        for (int j = 0; j < AT_ONCE; j++)
          v[j] = k + j < end ? dm_load<C>(put.dtype, put.rows,
                                          (o * put.m + source[k + j]) * put.inner + i)
                             : C(0);
      }
      DM_UNROLLED
      for (int j = 0; j < AT_ONCE; j++)
        if (k + j < end) sum = join(sum, v[j]);
    }
    dm_store<C>(dtype, x, to, sum);
  }
}

/* Sorts the sources by target and runs it. */
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

/* The dtype of sources that are added to x: x's own if they have it, else x's compute
   dtype. */
static dm_DType adding(const dm_Tensor *x, const dm_Tensor *source) {
  return source->dtype == x->dtype ? (dm_DType)x->dtype : dm_compute_dtype((dm_DType)x->dtype);
}

/* ---- element by element: scatter, scatter_add ---- */

/* Scatter as a put into elements: all sources in one row, the targets are elements of out. */
static IndexPut scattered(const dm_Tensor *out, const dm_Tensor *index, const int64_t *target) {
  IndexPut put;
  put.outer = put.inner = 1;
  put.m = index->numel;
  put.n = out->numel;
  put.target = target;
  return put;
}

/* The same sources as columns along dim, for adding in turn. */
static void set_slices(IndexPut *put, const dm_Tensor *index, int dim) {
  put->outer = dm_numel(dim, index->shape);
  put->m = index->shape[dim];
  put->inner = index->numel / put->outer / put->m;
}

/* scatter and scatter_reduce: sources are combined by `join` if `add`, else written. */
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
  DM_TRY(find_targets(&to, index, positions(c, index, out->shape[dim], false), out->stride[dim],
                      &target));
  IndexPut put = scattered(out, index, target.p);
  /* The part of src that the index covers; a number is used for all. */
  dm_Tensor corner = dm_is_host(src) || src->ndim == 0
                         ? *src
                         : dm_view_of(src, index->ndim, index->shape, src->stride, src->offset);
  const dm_DType dtype = add ? adding(out, src) : (dm_DType)out->dtype;
  DM_TRY(dm_dense_as(&corner, dtype, index->ndim, index->shape, out->device, &own_values,
                     &put.rows));
  put.dtype = dtype;
  if (!add) return write(out, put);
  IndexPut slices = put;
  set_slices(&slices, index, dim);
  /* In turn where a thread has few sources or enough threads run; else sorted. */
  if (slices.m <= FEW || slices.outer * slices.inner >= MANY)
    return add_in_turn(out, slices, true, join);
  return add_sorted(out, put, join);
}
DM_CUDA_KERNEL(scatter_cuda) { return scatter(c, false, Plus()); }
DM_CUDA_KERNEL(scatter_add_cuda) { return scatter(c, true, Plus()); }
DM_CUDA_KERNEL(scatter_reduce_self_cuda) {
  const Reducer reducer = {(int)DM_ATTR(dm_ScatterReduceSelfAttr, c)->reduce};
  return scatter(c, true, reducer);
}

/* ---- row by row: index_put, index_copy, index_add, embedding_backward ---- */

/* Writes the rows of `source`, broadcast to `shape`, to x's rows at the positions, or adds
   them; x holds its old values already. The index has m elements. */
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

/* x[index] = values or, to accumulate, += values, along one dim; values broadcast to the
   rows. */
DM_CUDA_KERNEL(index_put_cuda) {
  const dm_IndexPutAttr *a = DM_ATTR(dm_IndexPutAttr, c);
  dm_Tensor *x = c->out[0], *index = c->in[1];
  const int dim = dm_dim_of(x, a->dim), ndim = (x->ndim > 0 ? x->ndim - 1 : 0) + index->ndim;
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

/* Rows along dim at a vector of positions. */
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

/* alpha scales the source once before it is added. */
DM_CUDA_KERNEL(index_add_cuda) {
  const double alpha = DM_ATTR(dm_IndexAddAttr, c)->alpha;
  dm_Own scaled;
  if (alpha == 1) return put_vector(c, c->in[2], true);
  DM_TRY(
      dm_scaled_new(c->in[2], dm_compute_dtype((dm_DType)c->out[0]->dtype), alpha, &scaled.t));
  return put_vector(c, scaled.t, true);
}

/* gw[index[i]] += gy[i] for gw (n, D) and gy (..., D); rows of padding_idx get nothing. */
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

/* Sets the 1s of a zeroed out (..., n), one thread per element of the index. */
static __global__ void __launch_bounds__(DM_THREADS)
    one_hot_kernel(int64_t *out, IndexPositions index, dm_Walk<1> walk) {
  for (int64_t i = dm_thread(); i < walk.numel; i += dm_threads()) {
    int64_t off[1];
    walk.at(i, off);
    const int64_t p = index.at(off[0], i);
    if (p >= 0) out[i * index.n + p] = 1;
  }
}

/* One row of n zeros and a 1 for each element of the index. */
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
