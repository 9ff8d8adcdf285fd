/* Max and average pooling, forward and backward.

   The forward has one thread per output element, or a warp where the windows of an average are
   large. The backward has one thread per input element, which sums the outputs whose windows
   cover it, row by row: it gathers instead of scattering, so there are no atomics and the
   order is fixed. max_pool stores for each output a code, the index of the maximum within its
   window (uint8 where that is enough, else int32), in place of a position in the image.

   With channels last a thread computes V neighbouring channels, read and written as one
   word. */
#include "kernels/layout.h"
#include "kernels/reduce.cuh"

extern "C" {
#include "core/copy.h"
#include "op/spatial/pool.h"
}

/* The position of run i of V elements in planes of h x w positions: plane, row, column and,
   with channels last, the first of its V channels. A plane is one channel of an image (N * C of
   them), or a whole image with its channels last (N of them). */
struct Position {
  int64_t plane, row, col, c;
};
struct Planes {
  int64_t h, w, inner; /* elements per position: 1, or the channels */
  int64_t n_run;
  bool wide; /* 2^31 elements or more: 64-bit divisions */
  dm_Divisor by_h, by_w, by_run;

  template <int V> __device__ Position split(int64_t i) const {
    int64_t position = i, c = 0;
    if (inner > 1) {
      position = wide ? i / (inner / V) : dm_divide((uint32_t)i, by_run);
      c = (i - position * (inner / V)) * V;
    }
    const int64_t line = wide ? position / w : dm_divide((uint32_t)position, by_w);
    const int64_t plane = wide ? line / h : dm_divide((uint32_t)line, by_h);
    return {plane, line - plane * h, position - line * w, c};
  }
};

static Planes planes_of(const dm_Tensor *t, bool last, int V) {
  const int64_t *size = dm_plane_size(t);
  Planes p = {size[0], size[1], 1, t->numel / V, t->numel >= INT64_C(1) << 31, {}, {}, {}};
  if (last) p.inner = t->shape[1];
  if (!p.wide)
    p.by_h = dm_divisor(p.h), p.by_w = dm_divisor(p.w), p.by_run = dm_divisor(p.inner / V);
  return p;
}

/* Dense elements of type T: float, double, or dm_Low of any format; T void stands for a type
   known at run time. */
template <class C, class T> struct Elements {
  T *data;
  template <int V> __device__ void get(int64_t i, C *v) const {
    const dm_Run<T, V> run = *(const dm_Run<T, V> *)(data + i);
    dm_widen_all(0, run, v);
  }
  template <int V> __device__ void put(int64_t i, const C *v) const {
    dm_Run<T, V> run;
    dm_narrow_all(0, v, &run);
    *(dm_Run<T, V> *)(data + i) = run;
  }
};
template <class C> struct Elements<C, dm_Low> {
  dm_Low *data;
  int64_t dtype;
  template <int V> __device__ void get(int64_t i, C *v) const {
    const dm_Run<dm_Low, V> run = *(const dm_Run<dm_Low, V> *)(data + i);
    dm_widen_all((int)dtype, run, v);
  }
  template <int V> __device__ void put(int64_t i, const C *v) const {
    dm_Run<dm_Low, V> run;
    dm_narrow_all((int)dtype, v, &run);
    *(dm_Run<dm_Low, V> *)(data + i) = run;
  }
};
template <class C> struct Elements<C, void> {
  void *data;
  int64_t dtype;
  template <int V> __device__ void get(int64_t i, C *v) const {
    *v = dm_load<C>((int)dtype, data, i);
  }
  template <int V> __device__ void put(int64_t i, const C *v) const {
    dm_store<C>((int)dtype, data, i, *v);
  }
};
template <class C, class T> static Elements<C, T> elements(const dm_Tensor *t) {
  Elements<C, T> e;
  e.data = (T *)dm_tensor_data(t);
  if constexpr (sizeof(e) > sizeof(void *)) e.dtype = t->dtype;
  return e;
}

/* The elements per thread: dm_run_size, of integers one. */
template <class T> static constexpr int run_of() { return dm_run_size<T>(); }
template <> constexpr int run_of<void>() { return 1; }

static bool is_word(const dm_Tensor *t, int V) {
  return (uintptr_t)dm_tensor_data(t) % (uintptr_t)(V * dm_dtype_sizes[t->dtype]) == 0;
}
/* Whether runs of V channels are whole words in all tensors, which are channels last. */
static bool has_runs(const dm_Tensor *a, const dm_Tensor *b, const dm_Tensor *c, int V) {
  return a->shape[1] % V == 0 && is_word(a, V) && is_word(b, V) && (!c || is_word(c, V));
}
/* Whether one side is channels last. The other one may have a single position, which is both
   layouts. */
static bool lie_last(const dm_Tensor *in, const dm_Tensor *out) {
  return dm_lies_last(in) || dm_lies_last(out);
}

/* Runs the statements with the constant V, the elements per thread: RUN or 1. */
#define RUNS(RUN, LAST, A, B, EXTRA, ...)         \
  do {                                            \
    if ((LAST) && has_runs(A, B, EXTRA, (RUN))) { \
      const int V = (RUN);                        \
      __VA_ARGS__                                 \
    } else {                                      \
      const int V = 1;                            \
      __VA_ARGS__                                 \
    }                                             \
  } while (0)

/* Runs the statements with the types of a dtype: float types, or int64 arithmetic for
   integers. */
#define POOL_TYPES(DTYPE, ...)             \
  do {                                     \
    if (dm_is_float((dm_DType)(DTYPE))) {  \
      DM_STORED_TYPES(DTYPE, __VA_ARGS__); \
    } else {                               \
      typedef void T;                      \
      typedef int64_t C;                   \
      __VA_ARGS__                          \
    }                                      \
  } while (0)

/* The windows along both axes. */
struct Windows {
  dm_PoolAxis h, w;
};

/* Divides positions along an axis, padding included, which check_sides limits to 31 bits. */
static __device__ inline int64_t steps(int64_t a, int64_t b) {
  return (int64_t)((uint32_t)a / (uint32_t)b);
}
static dm_status check_sides(const dm_Tensor *t) {
  const int64_t most = 1 << 30, *size = dm_plane_size(t);
  const int64_t side = size[0] > size[1] ? size[0] : size[1];
  if (side <= most) return DM_OK;
  return dm_fail(DM_EARG, "pooling: a side of %lld is too large for cuda, wanted at most %lld",
                 (long long)side, (long long)most);
}

/* The outputs [*lo, *hi) along a fixed axis whose windows span input i, including those whose
   dilation skips it. */
static __device__ inline void reaching(const dm_PoolAxis &a, int64_t i, int64_t *lo,
                                       int64_t *hi) {
  const int64_t first = i + a.pad - a.dil * (a.kernel - 1);
  *lo = first > 0 ? steps(first + a.stride - 1, a.stride) : 0;
  *hi = steps(i + a.pad, a.stride) + 1;
  if (*hi > a.out) *hi = a.out;
}

/* The index within window o of input i, which the window spans; -1 where dilation skips it. */
static __device__ inline int64_t element_of(const dm_PoolAxis &a, int64_t o, int64_t i) {
  const int64_t away = i + a.pad - o * a.stride;
  const int64_t k = a.dil == 1 ? away : steps(away, a.dil);
  return k * a.dil == away ? k : -1;
}

/* ---- maxima ---- */

template <class C> static __device__ inline C lowest(void) { return -INFINITY; }
template <> __device__ inline int64_t lowest<int64_t>(void) { return INT64_MIN; }

/* Codes, of 8 bits or of 32, V of which are loaded or stored as one word. */
struct Codes {
  void *data;
  int64_t bytes; /* of each: 1 or 4 */

  template <class T, int V> __device__ void get_as(int64_t i, int32_t *v) const {
    const dm_Run<T, V> run = *(const dm_Run<T, V> *)((const T *)data + i);
    for (int k = 0; k < V; k++) v[k] = (int32_t)run.v[k];
  }
  template <class T, int V> __device__ void put_as(int64_t i, const int32_t *v) const {
    dm_Run<T, V> run;
    for (int k = 0; k < V; k++) run.v[k] = (T)v[k];
    *(dm_Run<T, V> *)((T *)data + i) = run;
  }
  template <int V> __device__ void get(int64_t i, int32_t *v) const {
    if (bytes == 1) get_as<uint8_t, V>(i, v);
    else get_as<int32_t, V>(i, v);
  }
  template <int V> __device__ void put(int64_t i, const int32_t *v) const {
    if (bytes == 1) put_as<uint8_t, V>(i, v);
    else put_as<int32_t, V>(i, v);
  }
};
static Codes codes_of(const dm_Tensor *t) {
  return {dm_tensor_data(t), dm_dtype_size((dm_DType)t->dtype)};
}

/* max_pool forward: one thread per run of V outputs; writes the maximum and its code. Padding
   is skipped, not compared. */
template <class C, class T, int V>
static __global__ void __launch_bounds__(DM_THREADS)
    max_kernel(Elements<C, T> x, Elements<C, T> y, Codes codes, Windows v, Planes out) {
  for (int64_t i = dm_thread(); i < out.n_run; i += dm_threads()) {
    const Position o = out.split<V>(i);
    const int64_t top = dm_pool_first_inside(&v.h, o.row);
    const int64_t left = dm_pool_first_inside(&v.w, o.col);
    /* All V channels share the window, each with a maximum of its own. */
    C best[V];
    int32_t code[V];
    for (int k = 0; k < V; k++) {
      best[k] = lowest<C>();
      code[k] = (int32_t)(top * v.w.kernel + left);
    }
    /* Rows from `top` on are inside the image; the first one beyond it ends the loop. */
    for (int64_t r = top; r < v.h.kernel; r++) {
      const int64_t row = o.row * v.h.stride - v.h.pad + r * v.h.dil;
      if (row >= v.h.in) break;
      for (int64_t s = left; s < v.w.kernel; s++) {
        const int64_t col = o.col * v.w.stride - v.w.pad + s * v.w.dil;
        if (col >= v.w.in) break;
        C a[V];
        x.template get<V>(((o.plane * v.h.in + row) * v.w.in + col) * out.inner + o.c, a);
        for (int k = 0; k < V; k++) {
          if (!(a[k] > best[k] || a[k] != a[k])) continue;
          best[k] = a[k]; /* the first of equal elements; the last NaN */
          code[k] = (int32_t)(r * v.w.kernel + s);
        }
      }
    }
    y.template put<V>(i * V, best);
    codes.put<V>(i * V, code);
  }
}

/* max_pool backward: one thread per run of V inputs sums gy of the windows whose code points
   at it. */
template <class C, class T, int V>
static __global__ void __launch_bounds__(DM_THREADS)
    scatter_kernel(Elements<C, T> gy, Codes codes, Elements<C, T> gx, Windows v, Planes in) {
  for (int64_t i = dm_thread(); i < in.n_run; i += dm_threads()) {
    const Position at = in.split<V>(i);
    int64_t p, p_end, q_begin, q_end;
    reaching(v.h, at.row, &p, &p_end);
    reaching(v.w, at.col, &q_begin, &q_end);
    C sum[V] = {};
    for (; p < p_end; p++) {
      const int64_t r = element_of(v.h, p, at.row);
      for (int64_t q = q_begin; r >= 0 && q < q_end; q++) {
        const int64_t s = element_of(v.w, q, at.col);
        const int64_t o = ((at.plane * v.h.out + p) * v.w.out + q) * in.inner + at.c;
        int32_t code[V];
        C g[V];
        if (s < 0) continue;
        codes.get<V>(o, code);
        gy.template get<V>(o, g);
        for (int k = 0; k < V; k++)
          if (code[k] == (int32_t)(r * v.w.kernel + s)) sum[k] += g[k];
      }
    }
    gx.template put<V>(i * V, sum);
  }
}

/* Picks from x the elements that the codes name; one thread per output. */
template <class T>
static __global__ void __launch_bounds__(DM_THREADS)
    gather_kernel(const T *x, Codes codes, T *y, Windows v, Planes out) {
  const int64_t n_in = v.h.in * v.w.in;
  for (int64_t i = dm_thread(); i < out.n_run; i += dm_threads()) {
    const Position o = out.split<1>(i);
    int32_t code;
    codes.get<1>(i, &code);
    const int64_t from =
        dm_pool_corner(&v.h, &v.w, o.row, o.col) + dm_pool_position(&v.h, &v.w, code);
    y[i] = from >= 0 && from < n_in ? x[(o.plane * n_in + from) * out.inner + o.c] : T{};
  }
}

/* Turns codes into positions in the plane h * w, counted from `base`: PyTorch's
   return_indices. */
static __global__ void __launch_bounds__(DM_THREADS)
    position_kernel(Codes codes, int64_t *y, int base, Windows v, Planes out) {
  for (int64_t i = dm_thread(); i < out.n_run; i += dm_threads()) {
    const Position o = out.split<1>(i);
    int32_t code;
    codes.get<1>(i, &code);
    y[i] = dm_pool_corner(&v.h, &v.w, o.row, o.col) + dm_pool_position(&v.h, &v.w, code) + base;
  }
}

/* The windows of max_pool; the shape rule has checked the sizes. */
static Windows max_windows(const dm_MaxPoolAttr *a, const int64_t *in, const int64_t *out) {
  Windows v;
  for (int i = 0; i < 2; i++) {
    const dm_PoolAxis x = {in[i],
                           out[i],
                           a->kernel_size[i],
                           dm_pool_stride(&a->stride, a->kernel_size, i),
                           a->padding[i],
                           a->dilation[i]};
    (i ? v.w : v.h) = x;
  }
  return v;
}

/* in: x (N, C, H, W); out: y (N, C, P, Q) and the codes, of y's shape. */
DM_CUDA_KERNEL(max_pool2d_coded_cuda) {
  dm_Tensor *x, *y = c->out[0], *codes = c->out[1];
  dm_status st = DM_OK;
  if (y->numel == 0) return DM_OK;
  const bool last = lie_last(c->in[0], y);
  DM_TRY(dm_layout_new(c->in[0], last, &x));
  const Windows v = max_windows(DM_ATTR(dm_MaxPoolAttr, c), dm_plane_size(x), dm_plane_size(y));
  POOL_TYPES(x->dtype, {
    RUNS(run_of<T>(), last, y, x, codes, {
      st = dm_launch((max_kernel<C, T, V>), dm_blocks(y->numel / V), DM_THREADS, 0,
                     (elements<C, T>(x)), (elements<C, T>(y)), codes_of(codes), v,
                     planes_of(y, last, V));
    });
  });
  dm_tensor_unref(&x);
  return st;
}

/* in: gy and the codes (N, C, P, Q); out: gx (N, C, H, W), each element written once. */
DM_CUDA_KERNEL(max_pool2d_scatter_cuda) {
  const dm_MaxPoolSizedAttr *a = DM_ATTR(dm_MaxPoolSizedAttr, c);
  dm_Tensor *gy = NULL, *codes = NULL, *gx = c->out[0];
  dm_status st = DM_OK;
  if (gx->numel == 0) return DM_OK;
  const bool last = lie_last(c->in[0], gx);
  DM_TRY(check_sides(gx));
  DM_GO(dm_layout_new(c->in[0], last, &gy));
  DM_GO(dm_layout_new(c->in[1], last, &codes));
  {
    const Windows v = max_windows(&a->max, a->size, dm_plane_size(codes));
    POOL_TYPES(gy->dtype, {
      RUNS(run_of<T>(), last, gx, gy, codes, {
        st = dm_launch((scatter_kernel<C, T, V>), dm_blocks(gx->numel / V), DM_THREADS, 0,
                       (elements<C, T>(gy)), codes_of(codes), (elements<C, T>(gx)), v,
                       planes_of(gx, last, V));
      });
    });
  }
done:
  dm_tensor_unref(&codes);
  dm_tensor_unref(&gy);
  return st;
}

/* in: x (N, C, H, W) and codes; out: y (N, C, P, Q), the elements that the codes name. */
DM_CUDA_KERNEL(max_pool2d_gather_cuda) {
  dm_Tensor *x = NULL, *codes = NULL, *y = c->out[0];
  dm_status st = DM_OK;
  if (y->numel == 0) return DM_OK;
  const bool last = lie_last(c->in[0], y);
  DM_GO(dm_layout_new(c->in[0], last, &x));
  DM_GO(dm_layout_new(c->in[1], last, &codes));
  {
    const Windows v =
        max_windows(DM_ATTR(dm_MaxPoolAttr, c), dm_plane_size(x), dm_plane_size(y));
    DM_SIZE_TYPES(x->dtype, {
      st = dm_launch(gather_kernel<T>, dm_blocks(y->numel), DM_THREADS, 0,
                     (const T *)dm_tensor_data(x), codes_of(codes), (T *)dm_tensor_data(y), v,
                     planes_of(y, last, 1));
    });
  }
done:
  dm_tensor_unref(&codes);
  dm_tensor_unref(&x);
  return st;
}

/* in: codes (N, C, P, Q); out: int64 positions in a plane, counted from `base`. */
DM_CUDA_KERNEL(max_pool2d_position_cuda) {
  const dm_MaxPoolSizedAttr *a = DM_ATTR(dm_MaxPoolSizedAttr, c);
  dm_Tensor *codes, *y = c->out[0];
  dm_status st = DM_OK;
  if (y->numel == 0) return DM_OK;
  const bool last = lie_last(c->in[0], y);
  DM_TRY(dm_layout_new(c->in[0], last, &codes));
  const Windows v = max_windows(&a->max, a->size, dm_plane_size(codes));
  st = dm_launch(position_kernel, dm_blocks(y->numel), DM_THREADS, 0, codes_of(codes),
                 (int64_t *)dm_tensor_data(y), c->base, v, planes_of(y, last, 1));
  dm_tensor_unref(&codes);
  return st;
}

/* ---- means ---- */

/* The windows of an average. `over` is what a sum is divided by: the override, or the number
   of elements. */
template <class C> struct Means {
  Windows v;
  bool include_pad;
  C divisor; /* 0: the product of the counts */

  /* The inputs of output o; kernel == 0 stands for adaptive windows. */
  __device__ dm_PoolSpan span(const dm_PoolAxis &a, int64_t o) const {
    return a.kernel == 0 ? dm_pool_adaptive_span(a.in, a.out, o)
                         : dm_pool_fixed_span(&a, include_pad, o);
  }
  /* The outputs [*lo, *hi) whose windows contain input i. */
  __device__ void covering(const dm_PoolAxis &a, int64_t i, int64_t *lo, int64_t *hi) const {
    if (a.kernel > 0) {
      reaching(a, i, lo, hi);
      return;
    }
    const dm_PoolSpan s = dm_pool_adaptive_span(a.out, a.in, i);
    *lo = s.lo;
    *hi = s.hi;
  }
  __device__ C over(const dm_PoolSpan &r, const dm_PoolSpan &s) const {
    return divisor != 0 ? divisor : (C)(r.count * s.count);
  }
};

/* avg_pool forward: one thread per run of V outputs. */
template <class C, class T, int V>
static __global__ void __launch_bounds__(DM_THREADS)
    mean_kernel(Elements<C, T> x, Elements<C, T> y, Means<C> m, Planes out) {
  for (int64_t i = dm_thread(); i < out.n_run; i += dm_threads()) {
    const Position o = out.split<V>(i);
    const dm_PoolSpan r = m.span(m.v.h, o.row), s = m.span(m.v.w, o.col);
    const bool empty = r.hi <= r.lo || s.hi <= s.lo;
    C sum[V] = {};
    for (int64_t row = r.lo; row < r.hi; row++)
      for (int64_t col = s.lo; col < s.hi; col++) {
        C a[V];
        x.template get<V>(((o.plane * m.v.h.in + row) * m.v.w.in + col) * out.inner + o.c, a);
        for (int k = 0; k < V; k++) sum[k] += a[k];
      }
    for (int k = 0; k < V; k++) sum[k] = empty ? C(0) : sum[k] / m.over(r, s);
    y.template put<V>(i * V, sum);
  }
}

/* The same for large windows, in rows: a warp shares an output, each lane takes every 32nd
   element of the window, and the warp sums them. */
template <class C, class T>
static __global__ void __launch_bounds__(DM_THREADS)
    wide_mean_kernel(Elements<C, T> x, Elements<C, T> y, Means<C> m, Planes out) {
  const int lanes = 32, lane = threadIdx.x % lanes;
  for (int64_t i = dm_thread() / lanes; i < out.n_run; i += dm_threads() / lanes) {
    const Position o = out.split<1>(i);
    const dm_PoolSpan r = m.span(m.v.h, o.row), s = m.span(m.v.w, o.col);
    const int64_t across = s.hi - s.lo;
    const bool empty = r.hi <= r.lo || across <= 0;
    C sum = 0;
    /* The lanes go through the window row by row: 32 elements on are `down` rows and `over`
       columns. */
    if (!empty) {
      const int64_t first = (o.plane * m.v.h.in + r.lo) * m.v.w.in + s.lo;
      const int64_t down = dm_quotient(lanes, across), over = lanes - down * across;
      int64_t row = dm_quotient(lane, across), col = lane - row * across;
      while (row < r.hi - r.lo) {
        C v;
        x.template get<1>(first + row * m.v.w.in + col, &v);
        sum += v;
        row += down;
        col += over;
        if (col >= across) row++, col -= across;
      }
    }
    sum = dm_warp_sum(sum);
    sum = empty ? C(0) : sum / m.over(r, s);
    if (lane == 0) y.template put<1>(i, &sum);
  }
}

/* avg_pool backward: one thread per run of V inputs sums gy / count of the windows that
   contain it, by rows. */
template <class C, class T, int V>
static __global__ void __launch_bounds__(DM_THREADS)
    spread_kernel(Elements<C, T> gy, Elements<C, T> gx, Means<C> m, Planes in) {
  for (int64_t i = dm_thread(); i < in.n_run; i += dm_threads()) {
    const Position at = in.split<V>(i);
    int64_t p, p_end, q_begin, q_end;
    m.covering(m.v.h, at.row, &p, &p_end);
    m.covering(m.v.w, at.col, &q_begin, &q_end);
    C sum[V] = {};
    for (; p < p_end; p++) {
      const dm_PoolSpan r = m.span(m.v.h, p);
      /* The windows of one row are summed first, then added to the total. */
      C line[V] = {};
      for (int64_t q = q_begin; q < q_end; q++) {
        const C over = m.over(r, m.span(m.v.w, q));
        C g[V];
        gy.template get<V>(((at.plane * m.v.h.out + p) * m.v.w.out + q) * in.inner + at.c, g);
        for (int k = 0; k < V; k++) line[k] += g[k] / over;
      }
      for (int k = 0; k < V; k++) sum[k] += line[k];
    }
    gx.template put<V>(i * V, sum);
  }
}

/* Launches an average's forward or (spread) backward. avg is NULL for adaptive windows; in and
   out are the sizes of the forward's planes. */
static dm_status means(dm_Call *c, const dm_AvgPoolAttr *avg, const int64_t *in,
                       const int64_t *out, bool spread) {
  enum { ALONE = 16 }; /* elements that a thread sums by itself */
  dm_Tensor *x, *y = c->out[0];
  dm_status st = DM_OK;
  Windows v;
  if (y->numel == 0) return DM_OK;
  int64_t area = 1;
  for (int i = 0; i < 2; i++) {
    dm_PoolAxis ax = {in[i], out[i], 0, 1, 0, 1};
    if (avg) {
      ax.kernel = avg->kernel_size[i];
      ax.stride = dm_pool_stride(&avg->stride, avg->kernel_size, i);
      ax.pad = avg->padding[i];
    }
    area *= avg ? ax.kernel : out[i] > 0 ? in[i] / out[i] : 0;
    (i ? v.w : v.h) = ax;
  }
  const bool last = lie_last(c->in[0], y);
  DM_TRY(check_sides(y));
  DM_TRY(dm_layout_new(c->in[0], last, &x));
  DM_STORED_TYPES(x->dtype, {
    const Means<C> m = {v, avg && avg->count_include_pad,
                        (C)(avg && avg->divisor_override.set ? avg->divisor_override.v : 0)};
    const Elements<C, T> from = elements<C, T>(x), to = elements<C, T>(y);
    if (spread) /* at most 4: there are two sums for each */
      RUNS((run_of<T>() < 4 ? run_of<T>() : 4), last, y, x, NULL, {
        st = dm_launch((spread_kernel<C, T, V>), dm_blocks(y->numel / V), DM_THREADS, 0, from,
                       to, m, planes_of(y, last, V));
      });
    else if (area > ALONE && !last)
      st = dm_launch((wide_mean_kernel<C, T>), dm_blocks(y->numel * 32), DM_THREADS, 0, from,
                     to, m, planes_of(y, false, 1));
    else
      RUNS(run_of<T>(), last, y, x, NULL, {
        st = dm_launch((mean_kernel<C, T, V>), dm_blocks(y->numel / V), DM_THREADS, 0, from, to,
                       m, planes_of(y, last, V));
      });
  });
  dm_tensor_unref(&x);
  return st;
}

/* The forward reads planes of the input's size and writes those of the output's; spread, the
   gradient, goes the other way. */
DM_CUDA_KERNEL(avg_pool2d_cuda) {
  return means(c, DM_ATTR(dm_AvgPoolAttr, c), dm_plane_size(c->in[0]), dm_plane_size(c->out[0]),
               false);
}
DM_CUDA_KERNEL(avg_pool2d_spread_cuda) {
  return means(c, &DM_ATTR(dm_AvgPoolSizedAttr, c)->avg, dm_plane_size(c->out[0]),
               dm_plane_size(c->in[0]), true);
}
DM_CUDA_KERNEL(adaptive_avg_pool2d_cuda) {
  return means(c, NULL, dm_plane_size(c->in[0]), dm_plane_size(c->out[0]), false);
}
DM_CUDA_KERNEL(adaptive_avg_pool2d_spread_cuda) {
  return means(c, NULL, dm_plane_size(c->out[0]), dm_plane_size(c->in[0]), true);
}
