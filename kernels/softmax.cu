/* softmax and log_softmax, forward and backward.

   Along the last dim a group of threads takes a row: part of a warp or a warp for short rows,
   a block for long ones. A row that fits in shared memory is read once from global memory, and
   the stable three steps (maximum, sum of exp(x - max), scaling) work there, with one exp per
   element. A longer row is read twice: the first pass computes maximum and sum together by the
   online softmax (M. Milakov & N. Gimelshein 2018; dm_LogSum), the second one writes the
   results. Along other dims a block takes neighbouring slices, so that loads are contiguous.

   16-bit inputs compute in float32. Sums are joined by a fixed tree. */
#include "kernels/reduce.cuh"

extern "C" {
#include "core/copy.h"
#include "op/along.h"
}

/* The parameters of a launch. The tensor is seen as (outer, n, inner), with softmax along
   n. */
struct Rows {
  const void *x, *gy; /* x: the input, or in backward the forward's result */
  void *y;
  int from, to; /* dtypes of x (and gy) and of y */
  bool log;
  dm_Along at;
  int64_t n_load; /* loads of a row */
  int lanes;      /* threads that share a row, or slices that share a block */
  unsigned tiles; /* blocks of one outer index */
  int slots;      /* elements that a thread keeps in shared memory; 0: the row does not fit */
};

/* Stores V elements in one word, or one element of a dtype known at run time. */
template <class C, class T, int V>
static __device__ inline void store_run(void *y, int dtype, int64_t at, const C *v) {
  if constexpr (!dm_same_type<T, dm_AnyType>) {
    dm_Run<T, V> run;
    dm_narrow_all(dtype, v, &run);
    *(dm_Run<T, V> *)((T *)y + at) = run;
  } else {
    dm_store<C>(dtype, y, at, v[0]);
  }
}

/* ---- along the last dim ---- */

/* The index of a thread's k-th element in shared memory. Each thread has a column of its own:
   no bank conflicts, and no barriers. */
static __device__ inline int slot(int k) { return k * DM_THREADS + (int)threadIdx.x; }

/* Forward along the last dim: p.lanes threads per row, V elements per load. */
template <class C, class From, class To, int V>
static __global__ void __launch_bounds__(DM_THREADS) softmax_rows_kernel(Rows p) {
  DM_DYNAMIC_SHARED(C, kept);
  const int64_t row = dm_thread() / p.lanes, first = row * p.n_load;
  const int lane = threadIdx.x & (p.lanes - 1);
  const int64_t n = row < p.at.outer ? p.n_load : 0;
  typedef dm_Loads<C, From, V> Loads;
  C top, sum;
  /* First pass: loads the row and finds its maximum. */
  if (p.slots > 0) {
    top = -(C)INFINITY;
    for (int64_t i = lane, k = 0; i < n; i += p.lanes, k += V) {
      const Loads x(p.x, p.from, (first + i) * V);
      for (int e = 0; e < V; e++) {
        kept[slot((int)k + e)] = x.v[e];
        dm_Larger().join(top, x.v[e]);
      }
    }
    top = dm_join_lanes(dm_Larger(), top, p.lanes);
    /* Second pass, in shared memory: log_softmax keeps x - max, softmax exp(x - max). */
    sum = 0;
    for (int64_t i = lane, k = 0; i < n; i += p.lanes, k += V)
      for (int e = 0; e < V; e++) {
        const C v = kept[slot((int)k + e)] - top, exp_v = dm_exp(v);
        kept[slot((int)k + e)] = p.log ? v : exp_v;
        sum += exp_v;
      }
    sum = dm_join_lanes(dm_Plus(), sum, p.lanes);
  } else {
    /* One pass over the row: maximum and sum together. */
    const dm_LogSum<C> reducer;
    typename dm_LogSum<C>::State s = reducer.start();
    for (int64_t i = lane; i < n; i += p.lanes) {
      const Loads x(p.x, p.from, (first + i) * V);
      for (int e = 0; e < V; e++) reducer.add(s, x.v[e], 0);
    }
    s = dm_join_lanes(reducer, s, p.lanes);
    top = s.top;
    sum = s.sum + (top - top); /* makes the sum NaN where the largest is infinite */
  }
  /* Last pass: scales and stores, from shared memory or by reading the row again. */
  const C scale = 1 / sum, shift = dm_log(sum);
  for (int64_t i = lane, k = 0; i < n; i += p.lanes, k += V) {
    C y[V];
    if (p.slots > 0) {
      for (int e = 0; e < V; e++) y[e] = kept[slot((int)k + e)];
    } else {
      const Loads x(p.x, p.from, (first + i) * V);
      for (int e = 0; e < V; e++) y[e] = p.log ? x.v[e] - top : dm_exp(x.v[e] - top);
    }
    for (int e = 0; e < V; e++) y[e] = p.log ? y[e] - shift : y[e] * scale;
    store_run<C, To, V>(p.y, p.to, (first + i) * V, y);
  }
}

/* Backward along the last dim. softmax: gx = y (gy - sum(gy y)); log_softmax: gx = gy - exp(y)
   sum(gy). The first pass keeps y (or exp(y)) and gy in shared memory where they fit. */
template <class C, class T, class, int V>
static __global__ void __launch_bounds__(DM_THREADS) backward_rows_kernel(Rows p) {
  DM_DYNAMIC_SHARED(C, kept);
  const int64_t row = dm_thread() / p.lanes, first = row * p.n_load;
  const int lane = threadIdx.x & (p.lanes - 1), half = p.slots / 2;
  const int64_t n = row < p.at.outer ? p.n_load : 0;
  typedef dm_Loads<C, T, V> Loads;
  C sum = 0;
  for (int64_t i = lane, k = 0; i < n; i += p.lanes, k += V) {
    const Loads y(p.x, p.from, (first + i) * V), gy(p.gy, p.from, (first + i) * V);
    for (int e = 0; e < V; e++) {
      sum += p.log ? gy.v[e] : gy.v[e] * y.v[e];
      if (p.slots == 0) continue;
      kept[slot((int)k + e)] = p.log ? dm_exp(y.v[e]) : y.v[e];
      kept[slot(half + (int)k + e)] = gy.v[e];
    }
  }
  sum = dm_join_lanes(dm_Plus(), sum, p.lanes);
  for (int64_t i = lane, k = 0; i < n; i += p.lanes, k += V) {
    C y[V], gy[V];
    if (p.slots > 0) {
      for (int e = 0; e < V; e++) {
        y[e] = kept[slot((int)k + e)];
        gy[e] = kept[slot(half + (int)k + e)];
      }
    } else {
      const Loads from_y(p.x, p.from, (first + i) * V), from_gy(p.gy, p.from, (first + i) * V);
      for (int e = 0; e < V; e++) {
        y[e] = p.log ? dm_exp(from_y.v[e]) : from_y.v[e];
        gy[e] = from_gy.v[e];
      }
    }
    for (int e = 0; e < V; e++) y[e] = p.log ? gy[e] - y[e] * sum : y[e] * (gy[e] - sum);
    store_run<C, T, V>(p.y, p.to, (first + i) * V, y);
  }
}

/* ---- along another dim: blocks of p.lanes neighbouring slices ---- */

/* The slice of this thread: p.lanes neighbouring slices share a block. */
static __device__ inline int64_t column_of(const Rows &p) {
  return (int64_t)(blockIdx.x % p.tiles) * p.lanes + (threadIdx.x & (p.lanes - 1));
}

/* Joins the states of the threads of each slice by a tree in shared memory; every thread gets
   its slice's result. */
template <class Reducer, class S>
static __device__ inline S reduce_column(const Reducer &reducer, S s, int lanes) {
  DM_SHARED(S, tile, DM_THREADS);
  const int t = threadIdx.x;
  tile[t] = s;
  for (int h = DM_THREADS / 2; h >= lanes; h /= 2) {
    __syncthreads();
    if (t >= h) continue;
    const S other = tile[t + h];
    reducer.join(s, other);
    tile[t] = s;
  }
  __syncthreads();
  return tile[t & (lanes - 1)];
}

/* Forward along a dim that is not the last. Each block has p.lanes slices and DM_THREADS /
   p.lanes threads per slice; the first pass is the online softmax, the second one writes. */
template <class C>
static __global__ void __launch_bounds__(DM_THREADS, 4) softmax_columns_kernel(Rows p) {
  const int rows = DM_THREADS / p.lanes;
  const int64_t inner = p.at.inner, column = column_of(p);
  const int64_t first = blockIdx.x / p.tiles * p.at.n * inner + column;
  const int64_t n = column < inner ? p.at.n : 0, begin = threadIdx.x / p.lanes;
  const dm_LogSum<C> reducer;
  typename dm_LogSum<C>::State s = reducer.start();
  for (int64_t i = begin; i < n; i += rows)
    reducer.add(s, dm_load<C>(p.from, p.x, first + i * inner), 0);
  s = reduce_column(reducer, s, p.lanes);
  const C sum = s.sum + (s.top - s.top), scale = 1 / sum, shift = dm_log(sum);
  for (int64_t i = begin; i < n; i += rows) {
    const C v = dm_load<C>(p.from, p.x, first + i * inner) - s.top;
    dm_store<C>(p.to, p.y, first + i * inner, p.log ? v - shift : dm_exp(v) * scale);
  }
}

/* Backward along a dim that is not the last; x is the forward's result y. */
template <class C>
static __global__ void __launch_bounds__(DM_THREADS) backward_columns_kernel(Rows p) {
  const int rows = DM_THREADS / p.lanes;
  const int64_t inner = p.at.inner, column = column_of(p);
  const int64_t first = blockIdx.x / p.tiles * p.at.n * inner + column;
  const int64_t n = column < inner ? p.at.n : 0, begin = threadIdx.x / p.lanes;
  C sum = 0;
  for (int64_t i = begin; i < n; i += rows) {
    const C gy = dm_load<C>(p.from, p.gy, first + i * inner);
    sum += p.log ? gy : gy * dm_load<C>(p.from, p.x, first + i * inner);
  }
  sum = reduce_column(dm_Plus(), sum, p.lanes);
  for (int64_t i = begin; i < n; i += rows) {
    const C gy = dm_load<C>(p.from, p.gy, first + i * inner);
    const C y = dm_load<C>(p.from, p.x, first + i * inner);
    dm_store<C>(p.to, p.y, first + i * inner, p.log ? gy - dm_exp(y) * sum : y * (gy - sum));
  }
}

/* ---- launches ---- */

/* Of a block's 48 KiB: the rest is for the arrays that join its threads. */
enum { SHARED = 49152 - 1024, SHARED_WARPS = 32768 /* up to which a warp takes a row */ };

/* Sets how many threads share a row, and whether the row is kept in shared memory. Returns the
   bytes that a block would need for it. */
template <class C, int V> static int64_t keep(Rows *p, int lanes) {
  p->lanes = lanes;
  const int64_t slots = dm_ceil_div(p->n_load, lanes) * V * (p->gy ? 2 : 1);
  const int64_t bytes = slots * DM_THREADS * (int64_t)sizeof(C);
  p->slots = bytes <= SHARED ? (int)slots : 0;
  return bytes;
}

/* Rows of up to a warp's capacity share a warp or part of it; longer ones get a block. */
template <class C, class From, class To, int V> static dm_status launch_rows(Rows p) {
  p.n_load = p.at.n / V;
  int64_t bytes = keep<C, V>(&p, dm_lanes(p.n_load, 32));
  if (bytes > SHARED_WARPS) bytes = keep<C, V>(&p, DM_THREADS);
  const dim3 grid((unsigned)dm_ceil_div(p.at.outer * p.lanes, DM_THREADS));
  const size_t shared = p.slots > 0 ? (size_t)bytes : 0;
  if (p.gy)
    return dm_launch((backward_rows_kernel<C, From, To, V>), grid, DM_THREADS, shared, p);
  return dm_launch((softmax_rows_kernel<C, From, To, V>), grid, DM_THREADS, shared, p);
}

/* Loads 16 bytes at a time where the row's length and all addresses allow it. */
template <class From, class To> static dm_status launch_fast(const Rows &p) {
  const int V = 16 / (int)sizeof(From);
  const uintptr_t all = (uintptr_t)p.x | (uintptr_t)p.gy | (uintptr_t)p.y;
  if (p.at.n % V == 0 && all % (sizeof(To) * V) == 0) return launch_rows<float, From, To, V>(p);
  return launch_rows<float, From, To, 1>(p);
}

/* Types known at run time, or a dim that is not the last. */
template <class C> static dm_status launch_any(Rows p) {
  if (p.at.inner == 1) return launch_rows<C, dm_AnyType, dm_AnyType, 1>(p);
  p.lanes = dm_lanes(p.at.inner, 32);
  p.tiles = (unsigned)dm_ceil_div(p.at.inner, p.lanes);
  const dim3 grid((unsigned)p.at.outer * p.tiles);
  if (p.gy) return dm_launch((backward_columns_kernel<C>), grid, DM_THREADS, 0, p);
  return dm_launch((softmax_columns_kernel<C>), grid, DM_THREADS, 0, p);
}

/* Chooses the kernel's types: equal float types, or low floats with float32 output, have
   instances of their own. */
static dm_status launch(const Rows &p) {
  const int from = p.from, to = p.to;
  if (from == DM_F64 || to == DM_F64) return launch_any<double>(p);
  if (p.at.inner > 1) return launch_any<float>(p);
  if (from == DM_F32 && to == DM_F32) return launch_fast<float, float>(p);
  if (dm_is_low((dm_DType)from) && to == from) return launch_fast<dm_Low, dm_Low>(p);
  if (dm_is_low((dm_DType)from) && to == DM_F32 && !p.gy) return launch_fast<dm_Low, float>(p);
  return launch_any<float>(p);
}

/* Describes the call; gy is NULL in the forward pass. */
static dm_status run(dm_Call *c, dm_Tensor *x, dm_Tensor *gy, int64_t dim, bool log) {
  Rows p;
  memset(&p, 0, sizeof p);
  p.x = dm_tensor_data(x);
  p.gy = gy ? dm_tensor_data(gy) : NULL;
  p.y = dm_tensor_data(c->out[0]);
  p.from = x->dtype;
  p.to = c->out[0]->dtype;
  p.log = log;
  p.at = dm_along(x, dim);
  return launch(p);
}

/* y = exp(x - max) / sum or, for log_softmax, x - max - log(sum). x may have another dtype
   than y. */
DM_CUDA_KERNEL(softmax_cuda) {
  dm_Tensor *x = NULL;
  if (c->out[0]->numel == 0) return DM_OK;
  DM_TRY(dm_dense_new(c->in[0], &x));
  const dm_status st =
      run(c, x, NULL, DM_ATTR(dm_SoftmaxAttr, c)->dim, c->op == &dm_ops[DM_OP_log_softmax]);
  dm_tensor_unref(&x);
  return st;
}
/* in: gy and the forward's y. */
DM_CUDA_KERNEL(softmax_backward_cuda) {
  const dm_SoftmaxBackwardAttr *a = DM_ATTR(dm_SoftmaxBackwardAttr, c);
  dm_Tensor *gy = NULL, *y = NULL;
  if (c->out[0]->numel == 0) return DM_OK;
  dm_status st = dm_dense_new(c->in[0], &gy);
  if (st == DM_OK) st = dm_dense_new(c->in[1], &y);
  if (st == DM_OK) st = run(c, y, gy, a->dim, a->log != 0);
  dm_tensor_unref(&gy);
  dm_tensor_unref(&y);
  return st;
}
