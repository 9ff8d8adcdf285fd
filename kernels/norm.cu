/* layer_norm, group_norm and batch_norm.

   A row of the first two belongs to a warp, or to a block when it is long. It is kept
   in registers where it fits: moments come from there, by two passes. Longer rows are
   read again.

   What is summed by channel (batch_norm's moments; every weight's and bias's gradient)
   goes through channel_kernel or, for channels of one element, column_kernel or, V
   channels a thread, column_runs_kernel: blocks by channel and chunk, then the chunks'
   states in a fixed order. Channels that lie last are such: each pixel is a row of them. */
#include "kernels/layout.h"
#include "kernels/norm.h"
#include "kernels/reduce.cuh"
#include "kernels/vector.cuh"

extern "C" {
#include "op/norm.h"
}

static __device__ inline float root(float v) { return sqrtf(v); }
static __device__ inline double root(double v) { return sqrt(v); }

#ifdef __CUDACC__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL
#endif

/* V neighbours from element i on. */
template <class C, class T, int V>
static __device__ inline void load_run(const T *p, int64_t i, C *v) {
  const dm_Run<T, V> run = *(const dm_Run<T, V> *)(p + i);
  for (int k = 0; k < V; k++) v[k] = dm_get<C, T>(run.v[k]);
}
template <class C, class T, int V>
static __device__ inline void store_run(T *p, int64_t i, const C *v) {
  dm_Run<T, V> run;
  for (int k = 0; k < V; k++) dm_put(&run.v[k], v[k]);
  *(dm_Run<T, V> *)(p + i) = run;
}

/* ---- moments ---- */

template <class C> struct Moments {
  C n, mean, m2; /* m2: squared distances from the mean, summed */
};

/* Chan, Golub & LeVeque 1979 */
struct JoinMoments {
  template <class C> __device__ void join(Moments<C> &s, const Moments<C> &o) const {
    if (o.n == 0) return;
    const C n = s.n + o.n, d = o.mean - s.mean, share = o.n / n;
    s.m2 += o.m2 + d * d * s.n * share;
    s.mean += d * share;
    s.n = n;
  }
  template <class C, int V> __device__ void add(Moments<C> &s, const C *v) const {
    Moments<C> run = {(C)V, 0, 0};
    for (int k = 0; k < V; k++) run.mean += v[k];
    run.mean *= C(1) / (C)V;
    for (int k = 0; k < V; k++) run.m2 += (v[k] - run.mean) * (v[k] - run.mean);
    join(s, run);
  }
};

/* ---- layer_norm, group_norm ---- */

struct RowShape {
  int64_t n_rows, len;
  int64_t groups, per, inner; /* channels of a row; elements of a channel */
  int lanes;                  /* threads of a row: 32, or a block */
};

template <class C> static __device__ inline C lane_sum(C v, int lanes) {
  return lanes == 32 ? dm_warp_sum(v) : dm_block_sum(v);
}

/* f(j, k) for each of a thread's runs j of a row: its k-th, below R; R == 0: as many
   as there are, k being 0. */
template <int R, class F>
static __device__ inline void each_run(int64_t n_run, int lanes, const F &f) {
  const int lane = threadIdx.x & (lanes - 1);
  if constexpr (R > 0) {
    UNROLL
    for (int k = 0; k < R; k++) { /* unrolled, or what is kept would not be in registers */
      const int64_t j = lane + (int64_t)k * lanes;
      if (j < n_run) f(j, k);
    }
  } else {
    for (int64_t j = lane; j < n_run; j += lanes) f(j, 0);
  }
}

/* The mean of row p and 1 / sqrt(variance + eps); keeps the row in `kept` if R > 0. */
template <class C, class T, int V, int R>
static __device__ inline void row_moments(const T *p, const RowShape &s, C eps, C (*kept)[V],
                                          C *mean, C *rstd) {
  const int64_t n_run = s.len / V;
  const C n = (C)s.len;
  C m2 = 0;
  if constexpr (R > 0) {
    C sum = 0;
    each_run<R>(n_run, s.lanes, [&](int64_t j, int k) {
      load_run<C, T, V>(p, j * V, kept[k]);
      for (int i = 0; i < V; i++) sum += kept[k][i];
    });
    *mean = lane_sum(sum, s.lanes) / n;
    const C mu = *mean;
    each_run<R>(n_run, s.lanes, [&](int64_t, int k) {
      for (int i = 0; i < V; i++) m2 += (kept[k][i] - mu) * (kept[k][i] - mu);
    });
    m2 = lane_sum(m2, s.lanes);
  } else {
    Moments<C> all = {0, 0, 0};
    each_run<R>(n_run, s.lanes, [&](int64_t j, int) {
      load_run<C, T, V>(p, j * V, kept[0]);
      JoinMoments().add<C, V>(all, kept[0]);
    });
    all = dm_block_fold(JoinMoments(), all);
    *mean = all.mean;
    m2 = all.m2;
  }
  *rstd = C(1) / root(m2 / n + eps);
}

/* The weights of the run at element i of a row whose first channel is c0. */
template <class C, class T, int V>
static __device__ inline void affine_run(const dm_Vector &w, const RowShape &s, int64_t c0,
                                         int64_t i, C otherwise, C *v) {
  if (!w.data) {
    for (int k = 0; k < V; k++) v[k] = otherwise;
  } else if (s.inner > 1) {
    int64_t c = dm_quotient(i, s.inner), left = s.inner - (i - c * s.inner);
    C a = w.at(c0 + c, otherwise);
    for (int k = 0; k < V; k++, left--) {
      if (left == 0) {
        a = w.at(c0 + ++c, otherwise);
        left = s.inner;
      }
      v[k] = a;
    }
  } else if (dm_dtype_is<T>(w.dtype)) {
    load_run<C, T, V>((const T *)w.data, c0 + i, v);
  } else if (dm_dtype_is<C>(w.dtype)) {
    load_run<C, C, V>((const C *)w.data, c0 + i, v);
  } else {
    for (int k = 0; k < V; k++) v[k] = w.at(c0 + i + k, otherwise);
  }
}

/* y = (x - mean) * rstd, times weight plus bias */
template <class C, class T, int V, int R>
static __global__ void __launch_bounds__(DM_THREADS, 2)
    rows_kernel(const T *x, T *y, dm_Vector w, dm_Vector b, RowShape s, C eps) {
  for (int64_t row = dm_thread() / s.lanes; row < s.n_rows; row += dm_threads() / s.lanes) {
    const T *from = x + row * s.len;
    const int64_t c0 = row % s.groups * s.per;
    C kept[R > 0 ? R : 1][V], mean, rstd;
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

/* gx = rstd (gh - mean(gh) - xhat mean(gh xhat)), gh = gy * weight. Each row's mean
   and rstd go to stats, for the sums by channel. */
template <class C, class T, int V, int R>
static __global__ void __launch_bounds__(DM_THREADS, 2)
    rows_backward_kernel(const T *gy, const T *x, T *gx, dm_Vector w, RowShape s, C eps,
                         C *stats) {
  for (int64_t row = dm_thread() / s.lanes; row < s.n_rows; row += dm_threads() / s.lanes) {
    const int64_t first = row * s.len, n_run = s.len / V, c0 = row % s.groups * s.per;
    C kx[R > 0 ? R : 1][V], kg[R > 0 ? R : 1][V], mean, rstd, s1 = 0, s2 = 0;
    row_moments<C, T, V, R>(x + first, s, eps, kx, &mean, &rstd);
    if ((threadIdx.x & (s.lanes - 1)) == 0) {
      stats[2 * row] = mean;
      stats[2 * row + 1] = rstd;
    }
    /* run j as xhat and gh, in slot k */
    const auto read = [&](int64_t j, int k) {
      C scale[V];
      if (R == 0) load_run<C, T, V>(x + first, j * V, kx[k]);
      load_run<C, T, V>(gy + first, j * V, kg[k]);
      affine_run<C, T, V>(w, s, c0, j * V, C(1), scale);
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
    s1 = lane_sum(s1, s.lanes) / (C)s.len;
    s2 = lane_sum(s2, s.lanes) / (C)s.len;
    each_run<R>(n_run, s.lanes, [&](int64_t j, int k) {
      if (R == 0) read(j, k);
      for (int i = 0; i < V; i++) kg[k][i] = rstd * (kg[k][i] - s1 - kx[k][i] * s2);
      store_run<C, T, V>(gx + first, j * V, kg[k]);
    });
  }
}

/* ---- sums by channel ---- */

/* x as (outer, channels, inner). A fold is one of reduce.cuh's, but that
     enter(c)                  has it look at channel c
     add<V>(s, n, i)           adds the run at element i, of outer n
     enter_run<V>(c, k)        k: what it wants to know of V channels from c on
     add_run<V>(s, k, i)       adds an element to each of them, from element i on
     finish(c, s)              stores the channel's results */
struct Channels {
  int64_t outer, channels, inner;
  int64_t n_chunk, chunk; /* pieces of a channel; loads in one */
};

template <class Fold>
static __device__ inline void emit(const Fold &fold, const Channels &ch, int64_t c,
                                   const typename Fold::State &s,
                                   typename Fold::State *partial) {
  if (ch.n_chunk > 1) partial[c * ch.n_chunk + blockIdx.y] = s;
  else fold.finish(c, s);
}

template <class Fold, int V>
static __global__ void __launch_bounds__(DM_THREADS)
    channel_kernel(Fold fold, Channels ch, typename Fold::State *partial) {
  const int64_t c = blockIdx.x, n_run = ch.inner / V, end = ch.outer * n_run;
  const int64_t lo = blockIdx.y * ch.chunk, hi = lo + ch.chunk < end ? lo + ch.chunk : end;
  typename Fold::State s = {};
  fold.enter(c);
  for (int64_t e = lo + threadIdx.x; e < hi; e += DM_THREADS) {
    const int64_t n = dm_quotient(e, n_run);
    fold.template add<V>(s, n, (n * ch.channels + c) * ch.inner + (e - n * n_run) * V);
  }
  s = dm_block_fold(fold, s);
  if (threadIdx.x == 0) emit(fold, ch, c, s, partial);
}

/* inner == 1: a block is `lanes` channels wide. */
template <class Fold>
static __global__ void __launch_bounds__(DM_THREADS)
    column_kernel(Fold fold, Channels ch, int lanes, typename Fold::State *partial) {
  typedef typename Fold::State State;
  DM_SHARED(State, tile, DM_THREADS);
  const int t = threadIdx.x, rows = DM_THREADS / lanes, y = t / lanes;
  const int64_t c = (int64_t)blockIdx.x * lanes + (t & (lanes - 1));
  const int64_t lo = blockIdx.y * ch.chunk;
  const int64_t hi = lo + ch.chunk < ch.outer ? lo + ch.chunk : ch.outer;
  State s = {};
  if (c < ch.channels) {
    fold.enter(c);
    for (int64_t n = lo + y; n < hi; n += rows) fold.template add<1>(s, n, n * ch.channels + c);
  }
  tile[t] = s;
  for (int h = rows / 2; h > 0; h /= 2) {
    __syncthreads();
    if (y >= h) continue;
    const State other = tile[t + h * lanes];
    fold.join(s, other);
    tile[t] = s;
  }
  if (y == 0 && c < ch.channels) emit(fold, ch, c, s, partial);
}

/* inner == 1: a block is `lanes` runs of V channels wide. A thread adds up V channels; one
   after another they are joined over the block. */
template <class Fold, int V>
static __global__ void __launch_bounds__(DM_THREADS)
    column_runs_kernel(Fold fold, Channels ch, int lanes, typename Fold::State *partial) {
  typedef typename Fold::State State;
  DM_SHARED(State, tile, DM_THREADS);
  const int t = threadIdx.x, rows = DM_THREADS / lanes, y = t / lanes;
  const int64_t c = ((int64_t)blockIdx.x * lanes + (t & (lanes - 1))) * V;
  const int64_t lo = blockIdx.y * ch.chunk;
  const int64_t hi = lo + ch.chunk < ch.outer ? lo + ch.chunk : ch.outer;
  State s[V] = {};
  if (c < ch.channels) {
    typename Fold::template Known<V> known;
    fold.template enter_run<V>(c, known);
    for (int64_t n = lo + y; n < hi; n += rows)
      fold.template add_run<V>(s, known, n * ch.channels + c);
  }
  UNROLL
  for (int k = 0; k < V; k++) {
    __syncthreads();
    tile[t] = s[k];
    for (int h = rows / 2; h > 0; h /= 2) {
      __syncthreads();
      if (y >= h) continue;
      const State other = tile[t + h * lanes];
      fold.join(s[k], other);
      tile[t] = s[k];
    }
    if (y == 0 && c < ch.channels) emit(fold, ch, c + k, s[k], partial);
  }
}

/* A warp a channel joins its chunks. */
template <class Fold>
static __global__ void __launch_bounds__(DM_THREADS)
    join_kernel(Fold fold, Channels ch, const typename Fold::State *partial) {
  const int64_t c = dm_thread() / 32;
  typename Fold::State s = {};
  for (int64_t i = threadIdx.x % 32; c < ch.channels && i < ch.n_chunk; i += 32) {
    const typename Fold::State other = partial[c * ch.n_chunk + i];
    fold.join(s, other);
  }
  s = dm_warp_fold(fold, s, 32);
  if (c >= ch.channels || threadIdx.x % 32 != 0) return;
  fold.enter(c);
  fold.finish(c, s);
}

/* Cuts channels of n loads, `threads` at a time, done by `blocks` blocks; by sizes
   alone. */
static void cut_channels(Channels *ch, int64_t n, int64_t threads, int64_t blocks) {
  const int64_t most = dm_ceil_div(n, threads * DM_SHORT);
  int64_t pieces = dm_ceil_div(DM_WIDTH, blocks);
  if (pieces > most) pieces = most;
  if (pieces < dm_ceil_div(n, threads * DM_CHAIN)) pieces = dm_ceil_div(n, threads * DM_CHAIN);
  if (pieces > 65535) pieces = 65535; /* the grid's height */
  ch->chunk = dm_ceil_div(n, pieces);
  ch->n_chunk = dm_ceil_div(n, ch->chunk);
}

/* The fold over every channel; V: elements a load, of one channel, or of V where each has
   one. */
template <class Fold, int V> static dm_status fold_channels(const Fold &fold, Channels ch) {
  typedef typename Fold::State State;
  const bool flat = ch.inner == 1;
  const int64_t n_run = dm_ceil_div(ch.channels, V);
  int lanes = 64 / V > 8 ? 64 / V : 8;
  void *room = NULL;
  if (flat) {
    while (lanes > 8 && lanes / 2 >= n_run) lanes /= 2;
    cut_channels(&ch, ch.outer, DM_THREADS / lanes, dm_ceil_div(n_run, lanes));
  } else {
    cut_channels(&ch, ch.outer * ch.inner / V, DM_THREADS, ch.channels);
  }
  const int64_t bytes = ch.n_chunk > 1 ? ch.channels * ch.n_chunk * (int64_t)sizeof(State) : 0;
  if (bytes > 0) DM_TRY(dm_cuda_scratch(bytes, &room));
  State *partial = (State *)room;
  const unsigned width = (unsigned)(flat ? dm_ceil_div(n_run, lanes) : ch.channels);
  const dim3 grid(width, (unsigned)ch.n_chunk);
  dm_status st;
  if (!flat) st = dm_launch((channel_kernel<Fold, V>), grid, DM_THREADS, 0, fold, ch, partial);
  else if constexpr (V > 1)
    st =
        dm_launch((column_runs_kernel<Fold, V>), grid, DM_THREADS, 0, fold, ch, lanes, partial);
  else st = dm_launch((column_kernel<Fold>), grid, DM_THREADS, 0, fold, ch, lanes, partial);
  if (st == DM_OK && bytes > 0)
    st = dm_launch((join_kernel<Fold>), dm_blocks(ch.channels * 32), DM_THREADS, 0, fold, ch,
                   partial);
  if (bytes > 0) dm_cuda_scratch_free(room, bytes);
  return st;
}

template <class C, class T> struct BatchMoments : JoinMoments {
  typedef Moments<C> State;
  const T *x;
  C *mean, *var;
  __device__ void enter(int64_t) {}
  template <int V> __device__ void add(State &s, int64_t, int64_t i) const {
    C v[V];
    load_run<C, T, V>(x, i, v);
    JoinMoments::add<C, V>(s, v);
  }
  template <int V> struct Known {};
  template <int V> __device__ void enter_run(int64_t, Known<V> &) const {}
  template <int V> __device__ void add_run(State *s, const Known<V> &, int64_t i) const {
    C v[V];
    load_run<C, T, V>(x, i, v);
    const C n = s[0].n + 1, share = C(1) / n;
    for (int k = 0; k < V; k++) { /* Welford 1962 */
      const C d = v[k] - s[k].mean;
      s[k].n = n;
      s[k].mean += d * share;
      s[k].m2 += d * (v[k] - s[k].mean);
    }
  }
  __device__ void finish(int64_t c, const State &s) const {
    mean[c] = s.mean;
    var[c] = s.m2 / s.n;
  }
};

/* gw = sum(gy xhat), gb = sum(gy). mean, rstd: `step` apart, of each channel, or (per
   > 0) of each row of `per` channels. */
template <class C> struct Pair { C gw, gb; };
template <class C, class T> struct GradSums {
  typedef Pair<C> State;
  const T *gy, *x;
  const C *mean, *rstd;
  int64_t step, groups, per;
  C *gw, *gb;
  int64_t at;
  __device__ void enter(int64_t c) { at = per > 0 ? (groups > 1 ? c / per : 0) : c; }
  template <int V> __device__ void add(State &s, int64_t n, int64_t i) const {
    const int64_t k = (per > 0 ? n * groups + at : at) * step;
    const C mu = mean[k], r = rstd[k];
    C g[V], v[V];
    load_run<C, T, V>(gy, i, g);
    load_run<C, T, V>(x, i, v);
    for (int e = 0; e < V; e++) {
      s.gw += g[e] * ((v[e] - mu) * r);
      s.gb += g[e];
    }
  }
  /* of batch norm: each channel's own */
  template <int V> struct Known { C mu[V], r[V]; };
  template <int V> __device__ void enter_run(int64_t c, Known<V> &known) const {
    for (int k = 0; k < V; k++) {
      known.mu[k] = mean[(c + k) * step];
      known.r[k] = rstd[(c + k) * step];
    }
  }
  template <int V> __device__ void add_run(State *s, const Known<V> &known, int64_t i) const {
    C g[V], v[V];
    load_run<C, T, V>(gy, i, g);
    load_run<C, T, V>(x, i, v);
    for (int k = 0; k < V; k++) {
      s[k].gw += g[k] * ((v[k] - known.mu[k]) * known.r[k]);
      s[k].gb += g[k];
    }
  }
  __device__ void join(State &s, const State &o) const {
    s.gw += o.gw;
    s.gb += o.gb;
  }
  __device__ void finish(int64_t c, const State &s) const {
    gw[c] = s.gw;
    gb[c] = s.gb;
  }
};

static bool runs_of(const void *p, int64_t bytes) {
  return (uintptr_t)p % (uint64_t)bytes == 0;
}

/* May runs of V elements, of one channel or of one pixel, be read? */
static bool has_runs(const Channels &ch, int V) {
  return (ch.inner == 1 ? ch.channels : ch.inner) % V == 0;
}

template <class C, class T>
static dm_status fold_runs(BatchMoments<C, T> fold, const Channels &ch) {
  const int V = 16 / (int)sizeof(T);
  if (has_runs(ch, V) && runs_of(fold.x, 16))
    return fold_channels<BatchMoments<C, T>, V>(fold, ch);
  return fold_channels<BatchMoments<C, T>, 1>(fold, ch);
}
template <class C, class T>
static dm_status fold_runs(GradSums<C, T> fold, const Channels &ch) {
  const int V = 16 / (int)sizeof(T);
  const bool by_row = ch.inner == 1 && fold.per > 0; /* the statistics are not the channel's */
  if (!by_row && has_runs(ch, V) && runs_of(fold.x, 16) && runs_of(fold.gy, 16))
    return fold_channels<GradSums<C, T>, V>(fold, ch);
  return fold_channels<GradSums<C, T>, 1>(fold, ch);
}

/* ---- the row ops on the host ---- */

static RowShape row_shape(const dm_Tensor *x, const dm_RowNormAttr &a) {
  RowShape s;
  s.n_rows = a.outer * a.groups;
  s.len = x->numel / s.n_rows;
  s.groups = a.groups;
  s.inner = a.inner;
  s.per = s.len / a.inner;
  s.lanes = DM_THREADS;
  return s;
}

/* May runs of V weights be read? */
static bool affine_runs(const dm_Vector &w, const RowShape &s, int V) {
  return !w.data || s.inner > 1 || runs_of(w.data, V * (int64_t)dm_dtype_sizes[w.dtype]);
}

enum { KEPT = 4 }; /* runs of a row that a thread keeps in registers */

/* Runs the statements with V and R: how many elements a load, how many loads kept. */
#define ROW_WAYS(S, PACKS, ...)                                  \
  do {                                                           \
    const int wide = 16 / (int)sizeof(T);                        \
    const int64_t n_load = (PACKS) ? (S).len / wide : INT64_MAX; \
    (S).lanes = n_load <= 32 * KEPT ? 32 : DM_THREADS;           \
    if (n_load <= (S).lanes * KEPT) {                            \
      const int V = wide, R = KEPT;                              \
      __VA_ARGS__                                                \
    } else if (PACKS) {                                          \
      const int V = wide, R = 0;                                 \
      __VA_ARGS__                                                \
    } else {                                                     \
      const int V = 1, R = 0;                                    \
      __VA_ARGS__                                                \
    }                                                            \
  } while (0)

static dm_status rows_forward(dm_Call *c, const dm_RowNormAttr &a) {
  dm_Tensor *own[3] = {NULL}, *out = c->out[0];
  dm_Vector w, b;
  RowShape s;
  dm_status st = DM_OK;
  if (out->numel == 0) return DM_OK;
  const dm_DType compute = dm_compute_dtype((dm_DType)out->dtype);
  DM_GO(dm_dense_new(c->in[0], &own[0]));
  DM_GO(dm_vector_new(c->in[1], compute, &own[1], &w));
  DM_GO(dm_vector_new(c->in[2], compute, &own[2], &b));
  s = row_shape(own[0], a);
  DM_FLOAT_TYPES(out->dtype, {
    const T *x = (const T *)dm_tensor_data(own[0]);
    T *y = (T *)dm_tensor_data(out);
    const int most = 16 / (int)sizeof(T);
    const bool packs = s.len % most == 0 && runs_of(x, 16) && runs_of(y, 16) &&
                       affine_runs(w, s, most) && affine_runs(b, s, most);
    ROW_WAYS(s, packs, {
      st = dm_launch((rows_kernel<C, T, V, R>), dm_blocks(s.n_rows * s.lanes), DM_THREADS, 0, x,
                     y, w, b, s, (C)a.eps);
    });
  });
done:
  for (int i = 0; i < 3; i++) dm_tensor_unref(&own[i]);
  return st;
}

DM_CUDA_KERNEL(layer_norm_cuda) {
  const dm_Meta m = dm_meta_of(c->in[0]);
  return rows_forward(c, dm_layer_rows(&m, DM_ATTR(dm_LayerNormAttr, c)));
}
DM_CUDA_KERNEL(group_norm_cuda) {
  const dm_Meta m = dm_meta_of(c->in[0]);
  return rows_forward(c, dm_group_rows(&m, DM_ATTR(dm_GroupNormAttr, c)));
}

static dm_status clear(const dm_Tensor *t) {
  if (t->numel > 0)
    DM_CUDA_TRY(
        cudaMemsetAsync(dm_tensor_data(t), 0, (size_t)dm_tensor_bytes(t), dm_cuda_stream()));
  return DM_OK;
}
static dm_status clear_vectors(dm_Call *c) {
  DM_TRY(clear(c->out[1]));
  return clear(c->out[2]);
}

template <class C, class T>
static dm_status rows_backward(dm_Call *c, const dm_RowNormAttr &a, const dm_Tensor *gy,
                               const dm_Tensor *x, const dm_Vector &w, C *stats) {
  const int most = 16 / (int)sizeof(T);
  const Channels ch = {a.outer, c->out[1]->numel, a.inner, 1, 0};
  RowShape s = row_shape(x, a);
  GradSums<C, T> sums;
  dm_status st;
  T *gx = (T *)dm_tensor_data(c->out[0]);
  sums.gy = (const T *)dm_tensor_data(gy);
  sums.x = (const T *)dm_tensor_data(x);
  sums.mean = stats;
  sums.rstd = stats + 1;
  sums.step = 2;
  sums.groups = a.groups;
  sums.per = s.per;
  sums.gw = (C *)dm_tensor_data(c->out[1]);
  sums.gb = (C *)dm_tensor_data(c->out[2]);
  sums.at = 0;
  const bool packs = s.len % most == 0 && runs_of(sums.x, 16) && runs_of(sums.gy, 16) &&
                     runs_of(gx, 16) && affine_runs(w, s, most);
  ROW_WAYS(s, packs, {
    st = dm_launch((rows_backward_kernel<C, T, V, R>), dm_blocks(s.n_rows * s.lanes),
                   DM_THREADS, 0, sums.gy, sums.x, gx, w, s, (C)a.eps, stats);
  });
  return st == DM_OK ? fold_runs(sums, ch) : st;
}

DM_CUDA_KERNEL(row_norm_backward_cuda) {
  const dm_RowNormAttr *a = DM_ATTR(dm_RowNormAttr, c);
  dm_Tensor *gy = NULL, *x = NULL, *own_w = NULL;
  const dm_DType dtype = (dm_DType)c->in[1]->dtype, compute = dm_compute_dtype(dtype);
  const int64_t bytes = 2 * a->outer * a->groups * dm_dtype_size(compute);
  void *stats = NULL;
  dm_Vector w;
  dm_status st = DM_OK;
  if (c->out[0]->numel == 0) return clear_vectors(c);
  DM_GO(dm_dense_cast(c->in[0], dtype, &gy));
  DM_GO(dm_dense_new(c->in[1], &x));
  DM_GO(dm_vector_new(c->in[2], compute, &own_w, &w));
  DM_GO(dm_cuda_scratch(bytes, &stats));
  DM_FLOAT_TYPES(dtype, { st = rows_backward<C, T>(c, *a, gy, x, w, (C *)stats); });
done:
  if (stats) dm_cuda_scratch_free(stats, bytes);
  dm_tensor_unref(&own_w);
  dm_tensor_unref(&x);
  dm_tensor_unref(&gy);
  return st;
}

/* ---- batch_norm ---- */

/* y = (x - mean) * scale + shift */
template <class C> struct Forward {
  dm_Vector w, b, mean, var;
  C eps;
  struct At {
    C mu, scale, shift;
    __device__ C value(C x, C) const { return (x - mu) * scale + shift; }
  };
  __device__ At at(int64_t c) const {
    const C invstd = C(1) / root(var.at(c, C(1)) + eps);
    return {mean.at(c, C(0)), invstd * w.at(c, C(1)), b.at(c, C(0))};
  }
};

/* training: gx = w invstd (gy - gb / n - xhat gw / n); else gx = w invstd gy */
template <class C> struct Backward {
  dm_Vector w, mean, invstd;
  const C *gw, *gb;
  C over; /* 1 / n; 0: not training */
  struct At {
    C mu, a, k1, k2;
    __device__ C value(C x, C gy) const { return a * (gy - k1 - (x - mu) * k2); }
  };
  __device__ At at(int64_t c) const {
    const C r = invstd.at(c, C(1)), mu = mean.at(c, C(0)), a = r * w.at(c, C(1));
    if (over == 0) return {mu, a, C(0), C(0)};
    return {mu, a, gb[c] * over, gw[c] * over * r};
  }
};

/* gy: NULL where the formula does not look at it. */
template <class Fn, class C, class T, int V>
static __global__ void __launch_bounds__(DM_THREADS)
    apply_kernel(Fn fn, const T *x, const T *gy, T *y, Channels ch, int64_t numel) {
  for (int64_t i = dm_thread() * V; i < numel; i += dm_threads() * V) {
    const int64_t line = dm_quotient(i, ch.inner);
    const typename Fn::At at = fn.at(line - dm_quotient(line, ch.channels) * ch.channels);
    C v[V], g[V] = {};
    load_run<C, T, V>(x, i, v);
    if (gy) load_run<C, T, V>(gy, i, g);
    for (int k = 0; k < V; k++) v[k] = at.value(v[k], g[k]);
    store_run<C, T, V>(y, i, v);
  }
}

/* inner == 1: a block is `lanes` runs of V channels wide; a thread keeps what it knows of
   its channels, row after row. */
template <class Fn, class C, class T, int V>
static __global__ void __launch_bounds__(DM_THREADS)
    apply_columns_kernel(Fn fn, const T *x, const T *gy, T *y, Channels ch, int lanes) {
  const int t = threadIdx.x, rows = DM_THREADS / lanes;
  const int64_t c = ((int64_t)blockIdx.x * lanes + (t & (lanes - 1))) * V;
  const int64_t lo = blockIdx.y * ch.chunk;
  const int64_t hi = lo + ch.chunk < ch.outer ? lo + ch.chunk : ch.outer;
  typename Fn::At at[V];
  if (c >= ch.channels) return;
  for (int k = 0; k < V; k++) at[k] = fn.at(c + k);
  for (int64_t n = lo + t / lanes; n < hi; n += rows) {
    C v[V], g[V] = {};
    load_run<C, T, V>(x, n * ch.channels + c, v);
    if (gy) load_run<C, T, V>(gy, n * ch.channels + c, g);
    for (int k = 0; k < V; k++) v[k] = at[k].value(v[k], g[k]);
    store_run<C, T, V>(y, n * ch.channels + c, v);
  }
}

template <class Fn, class C, class T, int V>
static dm_status apply_columns(const Fn &fn, const T *x, const T *gy, T *y, Channels ch) {
  enum { ROWS = 16 }; /* of a thread, where there are enough */
  const int64_t n_run = ch.channels / V;
  int lanes = 32;
  while (lanes > 1 && lanes / 2 >= n_run) lanes /= 2;
  const int64_t pieces = dm_ceil_div(ch.outer, ROWS * (DM_THREADS / lanes));
  ch.chunk = dm_ceil_div(ch.outer, pieces < 65535 ? pieces : 65535);
  const dim3 grid((unsigned)dm_ceil_div(n_run, lanes),
                  (unsigned)dm_ceil_div(ch.outer, ch.chunk));
  return dm_launch((apply_columns_kernel<Fn, C, T, V>), grid, DM_THREADS, 0, fn, x, gy, y, ch,
                   lanes);
}

template <class C, class T, class Fn>
static dm_status apply(const Fn &fn, const dm_Tensor *x, const dm_Tensor *gy,
                       const dm_Tensor *y, const Channels &ch) {
  const int V = 16 / (int)sizeof(T);
  const T *from = (const T *)dm_tensor_data(x);
  const T *g = gy ? (const T *)dm_tensor_data(gy) : NULL;
  T *to = (T *)dm_tensor_data(y);
  const bool packs = has_runs(ch, V) && runs_of(from, 16) && runs_of(g, 16) && runs_of(to, 16);
  if (packs && ch.inner == 1) return apply_columns<Fn, C, T, V>(fn, from, g, to, ch);
  if (packs)
    return dm_launch((apply_kernel<Fn, C, T, V>), dm_blocks(x->numel / V), DM_THREADS, 0, fn,
                     from, g, to, ch, x->numel);
  return dm_launch((apply_kernel<Fn, C, T, 1>), dm_blocks(x->numel), DM_THREADS, 0, fn, from, g,
                   to, ch, x->numel);
}

/* Channels last: each pixel is a row of channels. */
static Channels channels_of(const dm_Tensor *x) {
  const int64_t inner = dm_numel(x->ndim - 2, x->shape + 2);
  const Channels rows = {x->shape[0], x->shape[1], inner, 1, 0};
  const Channels last = {x->shape[0] * inner, x->shape[1], 1, 1, 0};
  return dm_lies_last(x) ? last : rows;
}

/* ---- batch_norm by cuDNN, which wants float32 weights ---- */

static bool is_library_s(const dm_Call *c, dm_DType dtype, const dm_Tensor *weight) {
  return dtype != DM_F64 && weight && c->out[0]->numel <= INT32_MAX;
}

static dm_BatchNorm batch_norm_of(dm_Tensor *x, const dm_Tensor *y, const dm_Tensor *weight) {
  dm_BatchNorm b;
  memset(&b, 0, sizeof b);
  b.dtype = (dm_DType)x->dtype;
  b.n = x->shape[0];
  b.channels = x->shape[1];
  b.height = x->ndim == 4 ? x->shape[2] : 1;
  b.width = dm_numel(x->ndim - 2, x->shape + 2) / b.height;
  b.last = dm_lies_last(x);
  b.x = dm_tensor_data(x);
  b.y = dm_tensor_data(y);
  b.weight = dm_tensor_data(weight);
  return b;
}

/* v: 1 / sqrt(variance + eps) -> variance. What is lost of one that is small beside eps
   is small beside eps. */
static __global__ void variance_kernel(float *v, int64_t n, float eps) {
  for (int64_t i = dm_thread(); i < n; i += dm_threads()) {
    const float var = 1.0f / (v[i] * v[i]) - eps;
    v[i] = var < 0 ? 0.0f : var;
  }
}

/* batch_norm_train on x, dense as y is. */
static dm_status train_by_library(dm_Call *c, dm_Tensor *x, bool *taken) {
  dm_Tensor *own[2] = {NULL}, *var = c->out[2];
  dm_BatchNorm b;
  dm_status st = DM_OK;
  *taken = false;
  if (!c->in[2] || !is_library_s(c, (dm_DType)x->dtype, c->in[1])) return DM_OK;
  for (int i = 0; i < 2; i++) DM_GO(dm_dense_cast(c->in[1 + i], DM_F32, &own[i]));
  b = batch_norm_of(x, c->out[0], own[0]);
  b.bias = dm_tensor_data(own[1]);
  b.mean = dm_tensor_data(c->out[1]);
  b.root = dm_tensor_data(var);
  b.eps = *DM_ATTR(double, c);
  *taken = dm_dnn_batch_norm(&b);
  if (*taken)
    st = dm_launch(variance_kernel, dm_blocks(var->numel), DM_THREADS, 0, (float *)b.root,
                   var->numel, (float)b.eps);
done:
  for (int i = 0; i < 2; i++) dm_tensor_unref(&own[i]);
  return st;
}

/* batch_norm_backward, in: gy, x, -, mean, root, all dense, as gx is. */
static dm_status backward_by_library(dm_Call *c, dm_Tensor *const *in, bool *taken) {
  dm_Tensor *own = NULL;
  *taken = false;
  if (!is_library_s(c, (dm_DType)in[1]->dtype, c->in[2])) return DM_OK;
  DM_TRY(dm_dense_cast(c->in[2], DM_F32, &own));
  dm_BatchNorm b = batch_norm_of(in[1], c->out[0], own);
  b.gy = dm_tensor_data(in[0]);
  b.mean = dm_tensor_data(in[3]);
  b.root = dm_tensor_data(in[4]);
  b.gw = dm_tensor_data(c->out[1]);
  b.gb = dm_tensor_data(c->out[2]);
  *taken = dm_dnn_batch_norm_backward(&b);
  dm_tensor_unref(&own);
  return DM_OK;
}

DM_CUDA_KERNEL(batch_norm_train_cuda) {
  dm_Tensor *own[3] = {NULL}, *y = c->out[0], *mean = c->out[1], *var = c->out[2];
  dm_Vector w, b;
  dm_status st = DM_OK;
  if (y->numel == 0) return clear_vectors(c);
  const dm_DType compute = (dm_DType)mean->dtype;
  bool taken = false;
  DM_GO(dm_laid_new(c->in[0], dm_lies_last(y), &own[0]));
  DM_GO(train_by_library(c, own[0], &taken));
  if (taken) goto done;
  DM_GO(dm_vector_new(c->in[1], compute, &own[1], &w));
  DM_GO(dm_vector_new(c->in[2], compute, &own[2], &b));
  DM_FLOAT_TYPES(y->dtype, {
    const Channels ch = channels_of(own[0]);
    BatchMoments<C, T> fold;
    fold.x = (const T *)dm_tensor_data(own[0]);
    fold.mean = (C *)dm_tensor_data(mean);
    fold.var = (C *)dm_tensor_data(var);
    const Forward<C> fn = {
        w, b, {fold.mean, compute}, {fold.var, compute}, (C)*DM_ATTR(double, c)};
    st = fold_runs(fold, ch);
    if (st == DM_OK) st = apply<C, T>(fn, own[0], NULL, y, ch);
  });
done:
  for (int i = 0; i < 3; i++) dm_tensor_unref(&own[i]);
  return st;
}

DM_CUDA_KERNEL(batch_norm_eval_cuda) {
  dm_Tensor *own[5] = {NULL}, *y = c->out[0];
  dm_Vector v[5] = {};
  dm_status st = DM_OK;
  if (y->numel == 0) return DM_OK;
  const dm_DType compute = dm_compute_dtype((dm_DType)y->dtype);
  DM_GO(dm_laid_new(c->in[0], dm_lies_last(y), &own[0]));
  for (int i = 1; i < 5; i++) DM_GO(dm_vector_new(c->in[i], compute, &own[i], &v[i]));
  DM_FLOAT_TYPES(y->dtype, {
    const Forward<C> fn = {v[1], v[2], v[3], v[4], (C)*DM_ATTR(double, c)};
    st = apply<C, T>(fn, own[0], NULL, y, channels_of(own[0]));
  });
done:
  for (int i = 0; i < 5; i++) dm_tensor_unref(&own[i]);
  return st;
}

/* t of that dtype, dense in that order. */
static dm_status laid_cast(dm_Tensor *t, dm_DType dtype, bool last, dm_Tensor **own) {
  dm_Tensor *cast = NULL;
  if (t->dtype == dtype) return dm_laid_new(t, last, own);
  DM_TRY(dm_cast_new(t, dtype, &cast));
  const dm_status st = dm_laid_new(cast, last, own);
  dm_tensor_unref(&cast);
  return st;
}

DM_CUDA_KERNEL(batch_norm_backward_cuda) {
  dm_Tensor *own[5] = {NULL}, *gx = c->out[0];
  dm_Vector w;
  const dm_DType dtype = (dm_DType)gx->dtype, compute = dm_compute_dtype(dtype);
  const bool training = *DM_ATTR(int64_t, c), last = dm_lies_last(gx);
  bool taken = false;
  dm_status st = DM_OK;
  if (gx->numel == 0) return clear_vectors(c);
  DM_GO(laid_cast(c->in[0], dtype, last, &own[0]));
  DM_GO(dm_laid_new(c->in[1], last, &own[1]));
  DM_GO(dm_vector_new(c->in[2], compute, &own[2], &w));
  for (int i = 3; i < 5; i++) DM_GO(dm_dense_cast(c->in[i], compute, &own[i]));
  if (training) DM_GO(backward_by_library(c, own, &taken));
  if (taken) goto done;
  DM_FLOAT_TYPES(dtype, {
    const Channels ch = channels_of(own[1]);
    GradSums<C, T> sums;
    sums.gy = (const T *)dm_tensor_data(own[0]);
    sums.x = (const T *)dm_tensor_data(own[1]);
    sums.mean = (const C *)dm_tensor_data(own[3]);
    sums.rstd = (const C *)dm_tensor_data(own[4]);
    sums.step = 1;
    sums.groups = sums.per = sums.at = 0;
    sums.gw = (C *)dm_tensor_data(c->out[1]);
    sums.gb = (C *)dm_tensor_data(c->out[2]);
    const Backward<C> fn = {w,
                            {sums.mean, compute},
                            {sums.rstd, compute},
                            sums.gw,
                            sums.gb,
                            training ? C(1) / (C)(ch.outer * ch.inner) : C(0)};
    st = fold_runs(sums, ch);
    if (st == DM_OK) st = apply<C, T>(fn, own[1], own[0], gx, ch);
  });
done:
  for (int i = 0; i < 5; i++) dm_tensor_unref(&own[i]);
  return st;
}
