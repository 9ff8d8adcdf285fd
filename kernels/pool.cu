/* Pooling: a thread an output element, or a warp where windows of means are large.
   Gradients have a thread an input element, which adds up the windows that cover
   it, by rows: nothing is added to from two sides. */
#include "kernels/reduce.cuh"

extern "C" {
#include "op/dense.h"
#include "op/pool.h"
}

/* Element i of planes of h by w: which plane, row and column. */
struct Planes {
  int64_t h, w, numel;
  bool wide; /* 2^31 elements or more: true divisions */
  dm_Divisor by_h, by_w;

  __device__ void split(int64_t i, int64_t *plane, int64_t *row, int64_t *col) const {
    const int64_t line = wide ? i / w : dm_divide((uint32_t)i, by_w);
    *col = i - line * w;
    *plane = wide ? line / h : dm_divide((uint32_t)line, by_h);
    *row = line - *plane * h;
  }
};

static Planes planes_of(const dm_Tensor *t) {
  const int64_t *size = dm_plane_size(t);
  Planes p = {size[0], size[1], t->numel, t->numel >= INT64_C(1) << 31, {}, {}};
  if (!p.wide) p.by_h = dm_divisor(p.h), p.by_w = dm_divisor(p.w);
  return p;
}

/* Dense elements of type T; of one known at run time when T is void. */
template <class C, class T> struct Elements {
  T *data;
  __device__ C get(int64_t i) const { return dm_get<C, T>(data[i]); }
  __device__ void put(int64_t i, C v) const { dm_put(data + i, v); }
};
template <class C> struct Elements<C, void> {
  void *data;
  int dtype;
  __device__ C get(int64_t i) const { return dm_load<C>(dtype, data, i); }
  __device__ void put(int64_t i, C v) const { dm_store<C>(dtype, data, i, v); }
};
template <class C, class T> static Elements<C, T> elements(const dm_Tensor *t) {
  Elements<C, T> e;
  e.data = (T *)dm_tensor_data(t);
  if constexpr (sizeof(e) > sizeof(void *)) e.dtype = t->dtype;
  return e;
}

#define POOL_TYPES(DTYPE, ...)            \
  do {                                    \
    if (dm_is_float((dm_DType)(DTYPE))) { \
      DM_FLOAT_TYPES(DTYPE, __VA_ARGS__); \
    } else {                              \
      typedef void T;                     \
      typedef int64_t C;                  \
      __VA_ARGS__                         \
    }                                     \
  } while (0)

struct Windows {
  dm_PoolAxis h, w;
};

/* Outputs [*lo, *hi) of a fixed axis whose windows reach input i, holes included. */
static __device__ inline void reaching(const dm_PoolAxis &a, int64_t i, int64_t *lo,
                                       int64_t *hi) {
  const int64_t first = i + a.pad - a.dil * (a.kernel - 1);
  *lo = first > 0 ? dm_quotient(first + a.stride - 1, a.stride) : 0;
  *hi = dm_quotient(i + a.pad, a.stride) + 1;
  if (*hi > a.out) *hi = a.out;
}

/* Which element of window o is input i, which the window reaches; -1: none. */
static __device__ inline int64_t element_of(const dm_PoolAxis &a, int64_t o, int64_t i) {
  const int64_t away = i + a.pad - o * a.stride;
  const int64_t k = a.dil == 1 ? away : dm_quotient(away, a.dil);
  return k * a.dil == away ? k : -1;
}

/* ---- maxima ---- */

template <class C> static __device__ inline C lowest(void) { return -INFINITY; }
template <> __device__ inline int64_t lowest<int64_t>(void) { return INT64_MIN; }

template <class C, class T, class Code>
static __global__ void __launch_bounds__(DM_THREADS)
    max_kernel(Elements<C, T> x, Elements<C, T> y, Code *codes, Windows v, Planes out) {
  for (int64_t i = dm_thread(); i < out.numel; i += dm_threads()) {
    int64_t plane, p, q;
    out.split(i, &plane, &p, &q);
    const int64_t top = dm_pool_first_inside(&v.h, p), left = dm_pool_first_inside(&v.w, q);
    C best = lowest<C>();
    int64_t code = top * v.w.kernel + left;
    for (int64_t r = top; r < v.h.kernel; r++) {
      const int64_t row = p * v.h.stride - v.h.pad + r * v.h.dil;
      if (row >= v.h.in) break;
      for (int64_t s = left; s < v.w.kernel; s++) {
        const int64_t col = q * v.w.stride - v.w.pad + s * v.w.dil;
        if (col >= v.w.in) break;
        const C a = x.get((plane * v.h.in + row) * v.w.in + col);
        if (a > best || a != a) { /* the first of equals, the last NaN */
          best = a;
          code = r * v.w.kernel + s;
        }
      }
    }
    y.put(i, best);
    codes[i] = (Code)code;
  }
}

template <class C, class T, class Code>
static __global__ void __launch_bounds__(DM_THREADS)
    scatter_kernel(Elements<C, T> gy, const Code *codes, Elements<C, T> gx, Windows v,
                   Planes in) {
  for (int64_t i = dm_thread(); i < in.numel; i += dm_threads()) {
    int64_t plane, row, col, p, p_end, q_begin, q_end;
    in.split(i, &plane, &row, &col);
    reaching(v.h, row, &p, &p_end);
    reaching(v.w, col, &q_begin, &q_end);
    C sum = 0;
    for (; p < p_end; p++) {
      const int64_t r = element_of(v.h, p, row);
      for (int64_t q = q_begin; r >= 0 && q < q_end; q++) {
        const int64_t s = element_of(v.w, q, col), o = (plane * v.h.out + p) * v.w.out + q;
        if (s >= 0 && (int64_t)codes[o] == r * v.w.kernel + s) sum += gy.get(o);
      }
    }
    gx.put(i, sum);
  }
}

template <class T, class Code>
static __global__ void __launch_bounds__(DM_THREADS)
    gather_kernel(const T *x, const Code *codes, T *y, Windows v, Planes out) {
  const int64_t n_in = v.h.in * v.w.in;
  for (int64_t i = dm_thread(); i < out.numel; i += dm_threads()) {
    int64_t plane, p, q;
    out.split(i, &plane, &p, &q);
    const int64_t from =
        dm_pool_corner(&v.h, &v.w, p, q) + dm_pool_place(&v.h, &v.w, (int32_t)codes[i]);
    y[i] = from >= 0 && from < n_in ? x[plane * n_in + from] : T(0);
  }
}

template <class Code>
static __global__ void __launch_bounds__(DM_THREADS)
    position_kernel(const Code *codes, int64_t *y, int base, Windows v, Planes out) {
  for (int64_t i = dm_thread(); i < out.numel; i += dm_threads()) {
    int64_t plane, p, q;
    out.split(i, &plane, &p, &q);
    y[i] =
        dm_pool_corner(&v.h, &v.w, p, q) + dm_pool_place(&v.h, &v.w, (int32_t)codes[i]) + base;
  }
}

/* The rule has checked them. */
static Windows max_windows(const dm_MaxPoolAttr *a, const int64_t *in, const int64_t *out) {
  Windows v;
  for (int i = 0; i < 2; i++) {
    const dm_PoolAxis x = {in[i],         out[i],
                           a->kernel[i],  dm_pool_stride(&a->stride, a->kernel, i),
                           a->padding[i], a->dilation[i]};
    (i ? v.w : v.h) = x;
  }
  return v;
}

/* Runs the statements with `Code`, the type of the codes. */
#define CODE_TYPES(CODES, ...)     \
  do {                             \
    if ((CODES)->dtype == DM_U8) { \
      typedef uint8_t Code;        \
      __VA_ARGS__                  \
    } else {                       \
      typedef int32_t Code;        \
      __VA_ARGS__                  \
    }                              \
  } while (0)

DM_CUDA_KERNEL(max_pool2d_coded_cuda) {
  dm_Tensor *x, *y = c->out[0], *codes = c->out[1];
  dm_status st = DM_OK;
  if (y->numel == 0) return DM_OK;
  DM_TRY(dm_dense_new(c->in[0], &x));
  const Windows v = max_windows(DM_ATTR(dm_MaxPoolAttr, c), dm_plane_size(x), dm_plane_size(y));
  POOL_TYPES(x->dtype, CODE_TYPES(codes, {
               st = dm_launch((max_kernel<C, T, Code>), dm_blocks(y->numel), DM_THREADS, 0,
                              (elements<C, T>(x)), (elements<C, T>(y)),
                              (Code *)dm_tensor_data(codes), v, planes_of(y));
             }););
  dm_tensor_unref(&x);
  return st;
}

DM_CUDA_KERNEL(max_pool2d_scatter_cuda) {
  const dm_MaxPoolSizedAttr *a = DM_ATTR(dm_MaxPoolSizedAttr, c);
  dm_Tensor *gy = NULL, *codes = NULL, *gx = c->out[0];
  dm_status st = DM_OK;
  if (gx->numel == 0) return DM_OK;
  DM_GO(dm_dense_new(c->in[0], &gy));
  DM_GO(dm_dense_new(c->in[1], &codes));
  {
    const Windows v = max_windows(&a->max, a->size, dm_plane_size(codes));
    POOL_TYPES(gy->dtype, CODE_TYPES(codes, {
                 st = dm_launch((scatter_kernel<C, T, Code>), dm_blocks(gx->numel), DM_THREADS,
                                0, (elements<C, T>(gy)), (const Code *)dm_tensor_data(codes),
                                (elements<C, T>(gx)), v, planes_of(gx));
               }););
  }
done:
  dm_tensor_unref(&codes);
  dm_tensor_unref(&gy);
  return st;
}

DM_CUDA_KERNEL(max_pool2d_gather_cuda) {
  dm_Tensor *x = NULL, *codes = NULL, *y = c->out[0];
  dm_status st = DM_OK;
  if (y->numel == 0) return DM_OK;
  DM_GO(dm_dense_new(c->in[0], &x));
  DM_GO(dm_dense_new(c->in[1], &codes));
  {
    const Windows v =
        max_windows(DM_ATTR(dm_MaxPoolAttr, c), dm_plane_size(x), dm_plane_size(y));
    DM_SIZE_TYPES(x->dtype, CODE_TYPES(codes, {
                    st = dm_launch((gather_kernel<T, Code>), dm_blocks(y->numel), DM_THREADS, 0,
                                   (const T *)dm_tensor_data(x),
                                   (const Code *)dm_tensor_data(codes), (T *)dm_tensor_data(y),
                                   v, planes_of(y));
                  }););
  }
done:
  dm_tensor_unref(&codes);
  dm_tensor_unref(&x);
  return st;
}

DM_CUDA_KERNEL(max_pool2d_position_cuda) {
  const dm_MaxPoolSizedAttr *a = DM_ATTR(dm_MaxPoolSizedAttr, c);
  dm_Tensor *codes, *y = c->out[0];
  dm_status st = DM_OK;
  if (y->numel == 0) return DM_OK;
  DM_TRY(dm_dense_new(c->in[0], &codes));
  const Windows v = max_windows(&a->max, a->size, dm_plane_size(codes));
  CODE_TYPES(codes, {
    st = dm_launch(position_kernel<Code>, dm_blocks(y->numel), DM_THREADS, 0,
                   (const Code *)dm_tensor_data(codes), (int64_t *)dm_tensor_data(y), c->base,
                   v, planes_of(y));
  });
  dm_tensor_unref(&codes);
  return st;
}

/* ---- means ---- */

template <class C> struct Means {
  Windows v;
  bool include_pad;
  C divisor; /* 0: the product of the counts */

  /* kernel == 0: adaptive windows */
  __device__ dm_PoolSpan span(const dm_PoolAxis &a, int64_t o) const {
    return a.kernel == 0 ? dm_pool_adaptive_span(a.in, a.out, o)
                         : dm_pool_fixed_span(&a, include_pad, o);
  }
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

/* lanes: 1, or 32 that share a window and take every 32nd of its elements. */
template <class C, class T, int lanes>
static __global__ void __launch_bounds__(DM_THREADS)
    mean_kernel(const T *x, T *y, Means<C> m, Planes out) {
  const int lane = threadIdx.x % lanes;
  for (int64_t i = dm_thread() / lanes; i < out.numel; i += dm_threads() / lanes) {
    int64_t plane, p, q;
    out.split(i, &plane, &p, &q);
    const dm_PoolSpan r = m.span(m.v.h, p), s = m.span(m.v.w, q);
    const int64_t across = s.hi - s.lo;
    const bool empty = r.hi <= r.lo || across <= 0;
    C sum = 0;
    if (!empty) {
      const T *from = x + (plane * m.v.h.in + r.lo) * m.v.w.in + s.lo;
      const int64_t down = dm_quotient(lanes, across), over = lanes - down * across;
      int64_t row = dm_quotient(lane, across), col = lane - row * across;
      while (row < r.hi - r.lo) {
        sum += dm_get<C, T>(from[row * m.v.w.in + col]);
        row += down;
        col += over;
        if (col >= across) row++, col -= across;
      }
    }
    if (lanes > 1) sum = dm_warp_sum(sum);
    if (lane == 0) dm_put(y + i, empty ? C(0) : sum / m.over(r, s));
  }
}

template <class C, class T>
static __global__ void __launch_bounds__(DM_THREADS)
    spread_kernel(const T *gy, T *gx, Means<C> m, Planes in) {
  for (int64_t i = dm_thread(); i < in.numel; i += dm_threads()) {
    int64_t plane, row, col, p, p_end, q_begin, q_end;
    in.split(i, &plane, &row, &col);
    m.covering(m.v.h, row, &p, &p_end);
    m.covering(m.v.w, col, &q_begin, &q_end);
    C sum = 0;
    for (; p < p_end; p++) {
      const dm_PoolSpan r = m.span(m.v.h, p);
      const T *from = gy + (plane * m.v.h.out + p) * m.v.w.out;
      C line = 0;
      for (int64_t q = q_begin; q < q_end; q++)
        line += dm_get<C, T>(from[q]) / m.over(r, m.span(m.v.w, q));
      sum += line;
    }
    dm_put(gx + i, sum);
  }
}

/* avg: NULL for adaptive windows. in, out: the planes' sizes. */
static dm_status means(dm_Call *c, const dm_AvgPoolAttr *avg, const int64_t *in,
                       const int64_t *out, bool spread) {
  enum { ALONE = 16 }; /* elements that a thread adds up by itself */
  dm_Tensor *x, *y = c->out[0];
  dm_status st = DM_OK;
  Windows v;
  if (y->numel == 0) return DM_OK;
  int64_t area = 1;
  for (int i = 0; i < 2; i++) {
    dm_PoolAxis ax = {in[i], out[i], 0, 1, 0, 1};
    if (avg) {
      ax.kernel = avg->kernel[i];
      ax.stride = dm_pool_stride(&avg->stride, avg->kernel, i);
      ax.pad = avg->padding[i];
    }
    area *= avg ? ax.kernel : out[i] > 0 ? in[i] / out[i] : 0;
    (i ? v.w : v.h) = ax;
  }
  DM_TRY(dm_dense_new(c->in[0], &x));
  DM_FLOAT_TYPES(x->dtype, {
    const Means<C> m = {v, avg && avg->count_include_pad,
                        (C)(avg && avg->divisor.set ? avg->divisor.v : 0)};
    const T *from = (const T *)dm_tensor_data(x);
    T *to = (T *)dm_tensor_data(y);
    if (spread)
      st = dm_launch((spread_kernel<C, T>), dm_blocks(y->numel), DM_THREADS, 0, from, to, m,
                     planes_of(y));
    else if (area <= ALONE)
      st = dm_launch((mean_kernel<C, T, 1>), dm_blocks(y->numel), DM_THREADS, 0, from, to, m,
                     planes_of(y));
    else
      st = dm_launch((mean_kernel<C, T, 32>), dm_blocks(y->numel * 32), DM_THREADS, 0, from, to,
                     m, planes_of(y));
  });
  dm_tensor_unref(&x);
  return st;
}

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
