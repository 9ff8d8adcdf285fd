/* layer_norm and group_norm, forward and backward. Both normalise rows of contiguous elements:
   a row is the normalised dims of layer_norm, or one group of channels of one image.

   A row belongs to a warp, or to a block when it is long. Where it fits it is kept in
   registers, and the moments are computed from there in two passes: the mean first, then the
   squared distances from it. Longer rows are read once for the moments, which are joined as in
   norm.cuh, and again for the result. The backward recomputes mean and rstd from x instead of
   storing them in the forward. The gradients of weight and bias are sums over rows
   (channels.cuh). */
#include "kernels/channels.cuh"

extern "C" {
#include "op/norm/norm.h"
}

struct RowShape {
  int64_t n_rows, len;
  int64_t groups, per, inner; /* groups of an image; channels of a row; elements of a channel */
  int lanes;                  /* threads that share a row: 32, or a block */
};

/* Adds over the threads of a row; each gets the sum. */
template <class C> static __device__ inline C lane_sum(C v, int lanes) {
  return lanes == 32 ? dm_warp_sum(v) : dm_block_sum(v);
}

/* Calls f(j, k) for each of this thread's runs j of a row. R > 0: k counts them, up to R; R ==
   0: there may be any number, and k is 0. */
template <int R, class F>
static __device__ inline void each_run(int64_t n_run, int lanes, const F &f) {
  const int lane = threadIdx.x & (lanes - 1);
  if constexpr (R > 0) {
    UNROLL
    for (int k = 0; k < R; k++) { /* unrolled, so that what is kept stays in registers */
      const int64_t j = lane + (int64_t)k * lanes;
      if (j < n_run) f(j, k);
    }
  } else {
    for (int64_t j = lane; j < n_run; j += lanes) f(j, 0);
  }
}

/* Keeps a row, if R > 0: R runs of V elements per thread. */
template <class C, class T, int V, int R>
static __device__ inline void keep_row(dm_From<T> p, const RowShape &s, C (*kept)[V]) {
  if constexpr (R > 0)
    each_run<R>(s.len / V, s.lanes,
                [&](int64_t j, int k) { load_run<C, T, V>(p, j * V, kept[k]); });
}

/* Computes the mean of row p and rstd = 1 / sqrt(variance + eps). R > 0: the row is in `kept`
   already. */
template <class C, class T, int V, int R>
static __device__ inline void row_moments(dm_From<T> p, const RowShape &s, C eps, C (*kept)[V],
                                          C *mean, C *rstd) {
  const int64_t n_run = s.len / V;
  const C n = (C)s.len;
  C m2 = 0;
  /* The row is in registers: two passes, the mean and then the squared distances from it. */
  if constexpr (R > 0) {
    C sum = 0;
    each_run<R>(n_run, s.lanes, [&](int64_t, int k) {
      for (int i = 0; i < V; i++) sum += kept[k][i];
    });
    *mean = lane_sum(sum, s.lanes) / n;
    const C mu = *mean;
    each_run<R>(n_run, s.lanes, [&](int64_t, int k) {
      for (int i = 0; i < V; i++) m2 += (kept[k][i] - mu) * (kept[k][i] - mu);
    });
    m2 = lane_sum(m2, s.lanes);
  } else {
    /* The row is too long: one pass joins moments of V elements at a time. */
    Moments<C> all = {0, 0, 0};
    each_run<R>(n_run, s.lanes, [&](int64_t j, int) {
      load_run<C, T, V>(p, j * V, kept[0]);
      JoinMoments().add<C, V>(all, kept[0]);
    });
    all = dm_block_reduce(JoinMoments(), all);
    *mean = all.mean;
    m2 = all.m2;
  }
  *rstd = C(1) / root(m2 / n + eps);
}

/* Loads the weights for the run at element i of a row whose first channel is c0. With inner >
   1 (group_norm of images) a channel's weight is repeated over its positions, and is of type C.
   Runs of several weights are of type T or C. */
template <class C, class T, int V>
static __device__ inline void affine_run(const dm_Vector &w, const RowShape &s, int64_t c0,
                                         int64_t i, C otherwise, C *v) {
  if (!w.data) {
    for (int k = 0; k < V; k++) v[k] = otherwise;
  } else if (s.inner > 1) {
    const C *of = (const C *)w.data + c0;
    int64_t c = dm_quotient(i, s.inner), left = s.inner - (i - c * s.inner);
    for (int k = 0; k < V; k++, left--) {
      if (left == 0) {
        c++;
        left = s.inner;
      }
      v[k] = of[c];
    }
  } else if (V == 1) {
    v[0] = w.at(c0 + i, otherwise);
  } else if (dm_dtype_is<T>(w.dtype)) {
    load_run<C, T, V>(dm_Pointers<T>::from(w.data, w.dtype), c0 + i, v);
  } else {
    load_run<C, C, V>((const C *)w.data, c0 + i, v);
  }
}

/* The forward: y = (x - mean) * rstd * weight + bias, s.lanes threads per row. */
template <class C, class T, int V, int R>
static __global__ void __launch_bounds__(DM_THREADS, 2)
    rows_kernel(dm_From<T> x, dm_To<T> y, dm_Vector w, dm_Vector b, RowShape s, C eps) {
  for (int64_t row = dm_thread() / s.lanes; row < s.n_rows; row += dm_threads() / s.lanes) {
    const dm_From<T> from = x + row * s.len;
    const int64_t c0 = row % s.groups * s.per;
    C kept[R > 0 ? R : 1][V], mean, rstd;
    keep_row<C, T, V, R>(from, s, kept);
    row_moments<C, T, V, R>(from, s, eps, kept, &mean, &rstd);
    each_run<R>(s.len / V, s.lanes, [&](int64_t j, int k) {
      C scale[V], shift[V];
      affine_run<C, T, V>(w, s, c0, j * V, C(1), scale);
      affine_run<C, T, V>(b, s, c0, j * V, C(0), shift);
      if (R == 0) load_run<C, T, V>(from, j * V, kept[k]);
      for (int i = 0; i < V; i++) kept[k][i] = (kept[k][i] - mean) * rstd * scale[i] + shift[i];
      store_run<C, T, V>(y + row * s.len, j * V, kept[k]);
    });
  }
}

/* The backward: gx = rstd (gh - mean(gh) - xhat mean(gh xhat)), with gh = gy * weight and
   means over the row. Each row's mean and rstd go to stats (n_rows, 2), for the sums by
   channel. */
template <class C, class T, int V, int R>
static __global__ void __launch_bounds__(DM_THREADS, 2)
    rows_backward_kernel(dm_From<T> gy, dm_From<T> x, dm_To<T> gx, dm_Vector w, RowShape s,
                         C eps, C *stats) {
  for (int64_t row = dm_thread() / s.lanes; row < s.n_rows; row += dm_threads() / s.lanes) {
    const int64_t first = row * s.len, n_run = s.len / V, c0 = row % s.groups * s.per;
    C kx[R > 0 ? R : 1][V], kg[R > 0 ? R : 1][V], mean, rstd, s1 = 0, s2 = 0;
    keep_row<C, T, V, R>(x + first, s, kx);
    keep_row<C, T, V, R>(gy + first, s, kg);
    row_moments<C, T, V, R>(x + first, s, eps, kx, &mean, &rstd);
    if ((threadIdx.x & (s.lanes - 1)) == 0) {
      stats[2 * row] = mean;
      stats[2 * row + 1] = rstd;
    }
    /* Reads run j as xhat and gh into slot k. */
    const auto read = [&](int64_t j, int k) {
      C scale[V];
      if (R == 0) {
        load_run<C, T, V>(x + first, j * V, kx[k]);
        load_run<C, T, V>(gy + first, j * V, kg[k]);
      }
      affine_run<C, T, V>(w, s, c0, j * V, C(1), scale);
      for (int i = 0; i < V; i++) {
        kx[k][i] = (kx[k][i] - mean) * rstd;
        kg[k][i] *= scale[i];
      }
    };
    /* First pass: the two means of the formula. Second pass: gx. */
    each_run<R>(n_run, s.lanes, [&](int64_t j, int k) {
      read(j, k);
      for (int i = 0; i < V; i++) {
        s1 += kg[k][i];
        s2 += kg[k][i] * kx[k][i];
      }
    });
    s1 = lane_sum(s1, s.lanes) / (C)s.len;
    s2 = lane_sum(s2, s.lanes) / (C)s.len;
    each_run<R>(n_run, s.lanes, [&](int64_t j, int k) {
      if (R == 0) read(j, k);
      for (int i = 0; i < V; i++) kg[k][i] = rstd * (kg[k][i] - s1 - kx[k][i] * s2);
      store_run<C, T, V>(gx + first, j * V, kg[k]);
    });
  }
}

/* ---- on the host ---- */

/* The rows of a tensor of x's shape, as the attributes split them. */
static RowShape row_shape(const dm_Tensor *x, const dm_RowNormBackwardAttr &a) {
  RowShape s;
  s.n_rows = a.outer * a.groups;
  s.len = x->numel / s.n_rows;
  s.groups = a.groups;
  s.inner = a.inner;
  s.per = s.len / a.inner;
  s.lanes = DM_THREADS;
  return s;
}

/* Gives weights or biases to a kernel of rows of `dtype`, as affine_run takes them; *own holds
   the memory. */
static dm_status affine_new(dm_Tensor *t, dm_DType dtype, int64_t inner, dm_Tensor **own,
                            dm_Vector *v) {
  const dm_DType compute = dm_compute_dtype(dtype);
  dm_Tensor *wide = NULL;
  if (t && inner > 1) DM_TRY(dm_dense_cast(t, compute, &wide));
  const dm_status st = dm_vector_new(wide ? wide : t, compute, own, v);
  dm_tensor_unref(&wide);
  return st;
}

/* Whether a thread may load V neighbouring weights of a row of `dtype`. */
static bool affine_runs(const dm_Vector &w, const RowShape &s, dm_DType dtype, int V) {
  if (!w.data || s.inner > 1) return true;
  return (w.dtype == dtype || w.dtype == dm_compute_dtype(dtype)) &&
         runs_of(w.data, V * (int64_t)dm_dtype_sizes[w.dtype]);
}

/* Elements of a row that a thread keeps in registers, of float64 an eighth. */
enum { KEPT = 32 };

/* Runs the statements with the constants V, elements per load, and R, loads that a thread
   keeps: rows of up to 32 * KEPT elements get a warp, longer ones a block, and those beyond
   DM_THREADS * KEPT are not kept. */
#define ROW_WAYS(S, PACKS, ...)                                  \
  do {                                                           \
    const int wide = dm_run_size<T>();                           \
    const int most = wide > 1 ? KEPT / wide : KEPT / 8;          \
    const int64_t n_load = (PACKS) ? (S).len / wide : INT64_MAX; \
    (S).lanes = n_load <= 32 * most ? 32 : DM_THREADS;           \
    if (n_load <= (S).lanes * most) {                            \
      const int V = wide, R = most;                              \
      __VA_ARGS__                                                \
    } else if (PACKS) {                                          \
      const int V = wide, R = 0;                                 \
      __VA_ARGS__                                                \
    } else {                                                     \
      const int V = 1, R = 0;                                    \
      __VA_ARGS__                                                \
    }                                                            \
  } while (0)

/* The forward of both ops: x dense, weight and bias in any float dtype or missing. */
static dm_status rows_forward(dm_Call *c, const dm_RowNormBackwardAttr &a) {
  dm_Tensor *own[3] = {NULL}, *out = c->out[0];
  dm_Vector w, b;
  RowShape s;
  dm_status st = DM_OK;
  if (out->numel == 0) return DM_OK;
  const dm_DType dtype = (dm_DType)out->dtype;
  DM_GO(dm_dense_new(c->in[0], &own[0]));
  DM_GO(affine_new(c->in[1], dtype, a.inner, &own[1], &w));
  DM_GO(affine_new(c->in[2], dtype, a.inner, &own[2], &b));
  s = row_shape(own[0], a);
  DM_STORED_TYPES(out->dtype, {
    const dm_From<T> x = from_of<T>(own[0]);
    const dm_To<T> y = to_of<T>(out);
    const int run = dm_run_size<T>();
    const bool packs = s.len % run == 0 && runs_of(x, 16) && runs_of(y, 16) &&
                       affine_runs(w, s, dtype, run) && affine_runs(b, s, dtype, run);
    ROW_WAYS(s, packs, {
      st = dm_launch((rows_kernel<C, T, V, R>), dm_blocks(s.n_rows * s.lanes), DM_THREADS, 0, x,
                     y, w, b, s, (C)a.eps);
    });
  });
done:
  for (int i = 0; i < 3; i++) dm_tensor_unref(&own[i]);
  return st;
}

/* Rows of the last dims, which are normalised together; weight and bias have a row's shape. */
DM_CUDA_KERNEL(layer_norm_cuda) {
  const dm_Meta m = dm_meta_of(c->in[0]);
  return rows_forward(c, dm_layer_rows(&m, DM_ATTR(dm_LayerNormAttr, c)));
}
/* Rows of one group of channels of one image; weight and bias have an element per channel. */
DM_CUDA_KERNEL(group_norm_cuda) {
  const dm_Meta m = dm_meta_of(c->in[0]);
  return rows_forward(c, dm_group_rows(&m, DM_ATTR(dm_GroupNormAttr, c)));
}

/* gx by rows, then gw and gb by channels with the stored statistics. */
template <class C, class T>
static dm_status rows_backward(dm_Call *c, const dm_RowNormBackwardAttr &a, const dm_Tensor *gy,
                               const dm_Tensor *x, const dm_Vector &w, C *stats) {
  const int run = dm_run_size<T>();
  const Channels ch = {a.outer, c->out[1]->numel, a.inner, 1, 0};
  RowShape s = row_shape(x, a);
  GradSums<C, T> sums;
  dm_status st;
  const dm_To<T> gx = to_of<T>(c->out[0]);
  sums.gy = from_of<T>(gy);
  sums.x = from_of<T>(x);
  sums.mean = stats;
  sums.rstd = stats + 1;
  sums.step = 2;
  sums.groups = a.groups;
  sums.per = s.per;
  sums.gw = (C *)dm_tensor_data(c->out[1]);
  sums.gb = (C *)dm_tensor_data(c->out[2]);
  sums.at = 0;
  const bool packs = s.len % run == 0 && runs_of(sums.x, 16) && runs_of(sums.gy, 16) &&
                     runs_of(gx, 16) && affine_runs(w, s, (dm_DType)x->dtype, run);
  ROW_WAYS(s, packs, {
    st = dm_launch((rows_backward_kernel<C, T, V, R>), dm_blocks(s.n_rows * s.lanes),
                   DM_THREADS, 0, sums.gy, sums.x, gx, w, s, (C)a.eps, stats);
  });
  return st == DM_OK ? reduce_runs(sums, ch) : st;
}

/* in: gy, x, weight; out: gx, and gw and gb in the compute type. Scratch: mean and rstd of
   each row. */
DM_CUDA_KERNEL(row_norm_backward_cuda) {
  const dm_RowNormBackwardAttr *a = DM_ATTR(dm_RowNormBackwardAttr, c);
  dm_Tensor *gy = NULL, *x = NULL, *own_w = NULL;
  const dm_DType dtype = (dm_DType)c->in[1]->dtype, compute = dm_compute_dtype(dtype);
  const int64_t bytes = 2 * a->outer * a->groups * dm_dtype_size(compute);
  void *stats = NULL;
  dm_Vector w;
  dm_status st = DM_OK;
  if (c->out[0]->numel == 0) return clear_vectors(c);
  DM_GO(dm_dense_cast(c->in[0], dtype, &gy));
  DM_GO(dm_dense_new(c->in[1], &x));
  DM_GO(affine_new(c->in[2], dtype, a->inner, &own_w, &w));
  DM_GO(dm_cuda_scratch(bytes, &stats));
  DM_STORED_TYPES(dtype, { st = rows_backward<C, T>(c, *a, gy, x, w, (C *)stats); });
done:
  if (stats) dm_cuda_scratch_free(stats, bytes);
  dm_tensor_unref(&own_w);
  dm_tensor_unref(&x);
  dm_tensor_unref(&gy);
  return st;
}

/* ---- add_layer_norm: a sum of float32 and its norm, in float32 or 16 bits (L) ---- */

/* sum = x + delta and y = (sum - mean) rstd weight + bias, s.lanes threads per row. Without
   delta x is the sum, and sum the same memory, which is not written. Of a row that is too long
   to keep a thread reads back the runs of the sum that it wrote. */
template <class L, int V, int R>
static __global__ void __launch_bounds__(DM_THREADS, dm_same_type<L, float> ? 2 : 3)
    add_rows_kernel(const float *x, dm_From<L> delta, float *sum, dm_To<L> y, dm_Vector w,
                    dm_Vector b, RowShape s, float eps) {
  for (int64_t row = dm_thread() / s.lanes; row < s.n_rows; row += dm_threads() / s.lanes) {
    const int64_t first = row * s.len;
    float kept[R > 0 ? R : 1][V], mean, rstd;
    each_run<R>(s.len / V, s.lanes, [&](int64_t j, int k) {
      float d[V];
      load_run<float, float, V>(x + first, j * V, kept[k]);
      if (!delta) return;
      load_run<float, L, V>(delta + first, j * V, d);
      for (int i = 0; i < V; i++) kept[k][i] += d[i];
      store_run<float, float, V>(sum + first, j * V, kept[k]);
    });
    row_moments<float, float, V, R>(sum + first, s, eps, kept, &mean, &rstd);
    each_run<R>(s.len / V, s.lanes, [&](int64_t j, int k) {
      float scale[V], shift[V];
      affine_run<float, L, V>(w, s, 0, j * V, 1.0f, scale);
      affine_run<float, L, V>(b, s, 0, j * V, 0.0f, shift);
      if (R == 0) load_run<float, float, V>(sum + first, j * V, kept[k]);
      for (int i = 0; i < V; i++) kept[k][i] = (kept[k][i] - mean) * rstd * scale[i] + shift[i];
      store_run<float, L, V>(y + first, j * V, kept[k]);
    });
  }
}

/* gx = gsum + rstd (gh - mean(gh) - xhat mean(gh xhat)), as rows_backward_kernel has it;
   rounded to glow too, the gradient of a 16-bit delta. gsum and glow may be NULL. */
template <class L, int V, int R>
static __global__ void __launch_bounds__(DM_THREADS, 2)
    add_rows_backward_kernel(const float *gsum, dm_From<L> gy, const float *sum, float *gx,
                             dm_To<L> glow, dm_Vector w, RowShape s, float eps, float *stats) {
  for (int64_t row = dm_thread() / s.lanes; row < s.n_rows; row += dm_threads() / s.lanes) {
    const int64_t first = row * s.len, n_run = s.len / V;
    float kx[R > 0 ? R : 1][V], kg[R > 0 ? R : 1][V], mean, rstd, s1 = 0, s2 = 0;
    keep_row<float, float, V, R>(sum + first, s, kx);
    keep_row<float, L, V, R>(gy + first, s, kg);
    row_moments<float, float, V, R>(sum + first, s, eps, kx, &mean, &rstd);
    if ((threadIdx.x & (s.lanes - 1)) == 0) {
      stats[2 * row] = mean;
      stats[2 * row + 1] = rstd;
    }
    const auto read = [&](int64_t j, int k) {
      float scale[V];
      if (R == 0) {
        load_run<float, float, V>(sum + first, j * V, kx[k]);
        load_run<float, L, V>(gy + first, j * V, kg[k]);
      }
      affine_run<float, L, V>(w, s, 0, j * V, 1.0f, scale);
      for (int i = 0; i < V; i++) {
        kx[k][i] = (kx[k][i] - mean) * rstd;
        kg[k][i] *= scale[i];
      }
    };
    each_run<R>(n_run, s.lanes, [&](int64_t j, int k) {
      read(j, k);
      for (int i = 0; i < V; i++) {
        s1 += kg[k][i];
        s2 += kg[k][i] * kx[k][i];
      }
    });
    s1 = lane_sum(s1, s.lanes) / (float)s.len;
    s2 = lane_sum(s2, s.lanes) / (float)s.len;
    each_run<R>(n_run, s.lanes, [&](int64_t j, int k) {
      float more[V] = {};
      if (R == 0) read(j, k);
      if (gsum) load_run<float, float, V>(gsum + first, j * V, more);
      for (int i = 0; i < V; i++) kg[k][i] = more[i] + rstd * (kg[k][i] - s1 - kx[k][i] * s2);
      store_run<float, float, V>(gx + first, j * V, kg[k]);
      if (glow) store_run<float, L, V>(glow + first, j * V, kg[k]);
    });
  }
}

/* The gradients of weight and bias, from the statistics of rows. */
template <class L>
static dm_status add_sums(dm_Call *c, const dm_Tensor *gy, const dm_Tensor *sum,
                          const RowShape &s, const float *stats) {
  const Channels ch = {s.n_rows, s.len, 1, 1, 0};
  GradSums<float, float, L> sums = {};
  sums.gy = from_of<L>(gy);
  sums.x = from_of<float>(sum);
  sums.mean = stats;
  sums.rstd = stats + 1;
  sums.step = 2;
  sums.groups = 1;
  sums.per = s.per;
  sums.gw = (float *)dm_tensor_data(c->out[2]);
  sums.gb = (float *)dm_tensor_data(c->out[3]);
  if (s.len % 4 == 0 && runs_of(sums.x, 16) && runs_of(sums.gy, 16))
    return reduce_channels<GradSums<float, float, L>, 4, true>(sums, ch);
  return reduce_channels<GradSums<float, float, L>, 1, true>(sums, ch);
}

/* Whether rows may go in words of four elements: all of them aligned to 16 bytes, or NULL. */
static bool add_packs(const RowShape &s, const dm_Vector &w, const dm_Vector &b,
                      const dm_Tensor *const *t, int n) {
  const dm_DType dtype = (dm_DType)t[t[1] ? 1 : n - 1]->dtype; /* L's */
  bool packs = s.len % 4 == 0 && affine_runs(w, s, dtype, 4) && affine_runs(b, s, dtype, 4);
  for (int i = 0; i < n; i++) packs = packs && (!t[i] || runs_of(dm_tensor_data(t[i]), 16));
  return packs;
}

/* Launches add_rows_kernel; own: x and delta or NULL, dense. */
template <class L>
static dm_status add_rows(dm_Call *c, dm_Tensor *const *own, const dm_Vector &w,
                          const dm_Vector &b, RowShape s, float eps) {
  typedef float T; /* of the rows that ROW_WAYS measures */
  const dm_Tensor *const all[] = {own[0], own[1], c->out[0], c->out[1]};
  const bool packs = add_packs(s, w, b, all, 4);
  float *const sum = to_of<float>(own[1] ? c->out[0] : own[0]);
  dm_status st = DM_OK;
  ROW_WAYS(s, packs, {
    st = dm_launch((add_rows_kernel<L, V, R>), dm_blocks(s.n_rows * s.lanes), DM_THREADS, 0,
                   from_of<float>(own[0]), from_of<L>(own[1]), sum, to_of<L>(c->out[1]), w, b,
                   s, eps);
  });
  return st;
}

/* Launches add_rows_backward_kernel, then the sums; own: gsum or NULL, gy and sum, dense. stats
   (n_rows, 2) is for the mean and rstd of each row. */
template <class L>
static dm_status add_rows_backward(dm_Call *c, dm_Tensor *const *own, const dm_Vector &w,
                                   RowShape s, float eps, float *stats) {
  typedef float T;
  const dm_Tensor *const all[] = {own[0], own[1], own[2], c->out[0], c->out[1]};
  const bool packs = add_packs(s, w, w, all, c->out[1]->numel > 0 ? 5 : 4);
  dm_status st = DM_OK;
  ROW_WAYS(s, packs, {
    st = dm_launch((add_rows_backward_kernel<L, V, R>), dm_blocks(s.n_rows * s.lanes),
                   DM_THREADS, 0, from_of<float>(own[0]), from_of<L>(own[1]),
                   from_of<float>(own[2]), to_of<float>(c->out[0]), to_of<L>(c->out[1]), w, s,
                   eps, stats);
  });
  return st == DM_OK ? add_sums<L>(c, own[1], own[2], s, stats) : st;
}

/* in: x (float32), delta (float32 or 16 bits) or NULL, weight, bias; out: the sum (float32),
   empty without delta, and its norm in delta's dtype. There are elements. */
DM_CUDA_KERNEL(add_norm_cuda) {
  const dm_AddNormAttr *a = DM_ATTR(dm_AddNormAttr, c);
  const dm_LayerNormAttr layer = {a->normalized_shape, a->eps};
  const dm_Meta m = dm_meta_of(c->in[0]);
  dm_Tensor *own[4] = {NULL};
  dm_Vector w, b;
  dm_status st = DM_OK;
  for (int i = 0; i < 2 && c->in[i]; i++) DM_GO(dm_dense_new(c->in[i], &own[i]));
  DM_GO(dm_vector_new(c->in[2], DM_F32, &own[2], &w));
  DM_GO(dm_vector_new(c->in[3], DM_F32, &own[3], &b));
  DM_STORED_TYPES(c->out[1]->dtype, {
    if constexpr (sizeof(T) <= sizeof(float))
      st = add_rows<T>(c, own, w, b, row_shape(c->out[1], dm_layer_rows(&m, &layer)),
                       (float)a->eps);
  });
done:
  for (int i = 0; i < 4; i++) dm_tensor_unref(&own[i]);
  return st;
}

/* in: gsum or NULL, gy, sum, weight; out: gx, glow or nothing, gw, gb. */
DM_CUDA_KERNEL(add_norm_backward_cuda) {
  const dm_AddNormBackwardAttr *a = DM_ATTR(dm_AddNormBackwardAttr, c);
  const int64_t n_rows = c->in[2]->numel / a->len, bytes = 2 * n_rows * (int64_t)sizeof(float);
  const dm_RowNormBackwardAttr rows = {n_rows, 1, 1, a->eps};
  dm_Tensor *own[4] = {NULL};
  dm_Vector w;
  void *stats = NULL;
  dm_status st = DM_OK;
  if (c->in[0]) DM_GO(dm_dense_cast(c->in[0], DM_F32, &own[0]));
  for (int i = 1; i < 3; i++) DM_GO(dm_dense_new(c->in[i], &own[i]));
  DM_GO(dm_vector_new(c->in[3], DM_F32, &own[3], &w));
  DM_GO(dm_cuda_scratch(bytes, &stats));
  DM_STORED_TYPES(c->in[1]->dtype, {
    if constexpr (sizeof(T) <= sizeof(float))
      st = add_rows_backward<T>(c, own, w, row_shape(own[2], rows), (float)a->eps,
                                (float *)stats);
  });
done:
  if (stats) dm_cuda_scratch_free(stats, bytes);
  for (int i = 0; i < 4; i++) dm_tensor_unref(&own[i]);
  return st;
}
