/* Sums by channel: batch_norm's moments, and the gradients of weight and bias of all three
   norms.

   x is (outer, channels, inner). The sum of a channel is over outer * inner elements; its
   blocks are (channel, chunk). With several chunks each block stores a state, and join_kernel
   joins them in a fixed order: the two-level sum of reduce.cuh, without atomics. Three kernels
   do the first level: channel_kernel, a block per channel, for inner > 1; column_kernel, for
   inner == 1, where threads go along the channels; and column_runs_kernel, the same with V
   neighbouring channels per thread. A channels-last image has inner == 1, as each of its
   positions is a row of channels. */
#ifndef DM_CHANNELS_CUH
#define DM_CHANNELS_CUH

#include "kernels/norm.cuh"

/* x is seen as (outer, channels, inner). A reducer has State and join as in reduce.cuh, and
     enter(c)               prepares for channel c
     add<V>(s, n, i)        adds the V elements from element i on, of outer index n
     enter_run<V>(c, k)     stores in k what add_run needs of V channels from c on
     add_run<V>(s, k, n, i) adds an element to each of V channels, from element i of row n on
     finish(c, s)           stores the results of channel c */
struct Channels {
  int64_t outer, channels, inner;
  int64_t n_chunk, chunk; /* chunks of a channel, and loads in one */
};

/* Stores the state of a channel: as the result, or as a chunk's state. */
template <class Reducer>
static __device__ inline void emit(const Reducer &reducer, const Channels &ch, int64_t c,
                                   const typename Reducer::State &s,
                                   typename Reducer::State *partial) {
  if (ch.n_chunk > 1) partial[c * ch.n_chunk + blockIdx.y] = s;
  else reducer.finish(c, s);
}

/* inner > 1: a block sums one chunk of channel blockIdx.x, V elements per load. Loads are
   numbered (outer, inner / V). */
template <class Reducer, int V>
static __global__ void __launch_bounds__(DM_THREADS)
    channel_kernel(Reducer reducer, Channels ch, typename Reducer::State *partial) {
  const int64_t c = blockIdx.x, n_run = ch.inner / V, end = ch.outer * n_run;
  const int64_t lo = blockIdx.y * ch.chunk, hi = lo + ch.chunk < end ? lo + ch.chunk : end;
  typename Reducer::State s = {};
  reducer.enter(c);
  for (int64_t e = lo + threadIdx.x; e < hi; e += DM_THREADS) {
    const int64_t n = dm_quotient(e, n_run);
    reducer.template add<V>(s, n, (n * ch.channels + c) * ch.inner + (e - n * n_run) * V);
  }
  s = dm_block_reduce(reducer, s);
  if (threadIdx.x == 0) emit(reducer, ch, c, s, partial);
}

/* inner == 1: a block has `lanes` neighbouring channels and DM_THREADS / lanes rows of
   threads, which stride along outer; a tree in shared memory joins them. */
template <class Reducer>
static __global__ void __launch_bounds__(DM_THREADS)
    column_kernel(Reducer reducer, Channels ch, int lanes, typename Reducer::State *partial) {
  typedef typename Reducer::State State;
  DM_SHARED(State, tile, DM_THREADS);
  const int t = threadIdx.x, rows = DM_THREADS / lanes, y = t / lanes;
  const int64_t c = (int64_t)blockIdx.x * lanes + (t & (lanes - 1));
  const int64_t lo = blockIdx.y * ch.chunk;
  const int64_t hi = lo + ch.chunk < ch.outer ? lo + ch.chunk : ch.outer;
  State s = {};
  if (c < ch.channels) {
    reducer.enter(c);
    for (int64_t n = lo + y; n < hi; n += rows)
      reducer.template add<1>(s, n, n * ch.channels + c);
  }
  tile[t] = s;
  for (int h = rows / 2; h > 0; h /= 2) {
    __syncthreads();
    if (y >= h) continue;
    const State other = tile[t + h * lanes];
    reducer.join(s, other);
    tile[t] = s;
  }
  if (y == 0 && c < ch.channels) emit(reducer, ch, c, s, partial);
}

/* The same with V neighbouring channels per thread, read as one word. A thread sums its V
   channels in registers; then the block joins them one after another in the same shared
   memory. */
template <class Reducer, int V>
static __global__ void __launch_bounds__(DM_THREADS)
    column_runs_kernel(Reducer reducer, Channels ch, int lanes,
                       typename Reducer::State *partial) {
  typedef typename Reducer::State State;
  DM_SHARED(State, tile, DM_THREADS);
  const int t = threadIdx.x, rows = DM_THREADS / lanes, y = t / lanes;
  const int64_t c = ((int64_t)blockIdx.x * lanes + (t & (lanes - 1))) * V;
  const int64_t lo = blockIdx.y * ch.chunk;
  const int64_t hi = lo + ch.chunk < ch.outer ? lo + ch.chunk : ch.outer;
  State s[V] = {};
  if (c < ch.channels) {
    typename Reducer::template Known<V> known;
    reducer.template enter_run<V>(c, known);
    for (int64_t n = lo + y; n < hi; n += rows)
      reducer.template add_run<V>(s, known, n, n * ch.channels + c);
  }
  UNROLL
  for (int k = 0; k < V; k++) {
    __syncthreads();
    tile[t] = s[k];
    for (int h = rows / 2; h > 0; h /= 2) {
      __syncthreads();
      if (y >= h) continue;
      const State other = tile[t + h * lanes];
      reducer.join(s[k], other);
      tile[t] = s[k];
    }
    if (y == 0 && c < ch.channels) emit(reducer, ch, c + k, s[k], partial);
  }
}

/* The second level: one warp per channel joins its chunks. */
template <class Reducer>
static __global__ void __launch_bounds__(DM_THREADS)
    join_kernel(Reducer reducer, Channels ch, const typename Reducer::State *partial) {
  const int64_t c = dm_thread() / 32;
  typename Reducer::State s = {};
  for (int64_t i = threadIdx.x % 32; c < ch.channels && i < ch.n_chunk; i += 32) {
    const typename Reducer::State other = partial[c * ch.n_chunk + i];
    reducer.join(s, other);
  }
  s = dm_warp_reduce(reducer, s, 32);
  if (c >= ch.channels || threadIdx.x % 32 != 0) return;
  reducer.enter(c);
  reducer.finish(c, s);
}

/* Cuts channels of n loads into chunks, given the threads that share one and the blocks that
   all channels make. It depends on sizes alone. */
static inline void cut_channels(Channels *ch, int64_t n, int64_t threads, int64_t blocks) {
  const int64_t most = dm_ceil_div(n, threads * DM_SHORT);
  int64_t chunks = dm_ceil_div(DM_WIDTH, blocks);
  if (chunks > most) chunks = most;
  if (chunks < dm_ceil_div(n, threads * DM_CHAIN)) chunks = dm_ceil_div(n, threads * DM_CHAIN);
  if (chunks > 65535) chunks = 65535; /* the grid's height */
  ch->chunk = dm_ceil_div(n, chunks);
  ch->n_chunk = dm_ceil_div(n, ch->chunk);
}

/* Runs a reducer over every channel. V is the number of elements per load: of one channel, or
   of V channels where inner == 1. only_flat: inner is always 1. */
template <class Reducer, int V, bool only_flat = false>
static dm_status reduce_channels(const Reducer &reducer, Channels ch) {
  typedef typename Reducer::State State;
  const bool flat = only_flat || ch.inner == 1;
  const int64_t n_run = dm_ceil_div(ch.channels, V);
  int lanes = 64 / V > 8 ? 64 / V : 8;
  void *scratch = NULL;
  if (flat) {
    while (lanes > 8 && lanes / 2 >= n_run) lanes /= 2;
    cut_channels(&ch, ch.outer, DM_THREADS / lanes, dm_ceil_div(n_run, lanes));
  } else {
    cut_channels(&ch, ch.outer * ch.inner / V, DM_THREADS, ch.channels);
  }
  const int64_t bytes = ch.n_chunk > 1 ? ch.channels * ch.n_chunk * (int64_t)sizeof(State) : 0;
  if (bytes > 0) DM_TRY(dm_cuda_scratch(bytes, &scratch));
  State *partial = (State *)scratch;
  const unsigned width = (unsigned)(flat ? dm_ceil_div(n_run, lanes) : ch.channels);
  const dim3 grid(width, (unsigned)ch.n_chunk);
  dm_status st = DM_OK;
  if (!flat) {
    if constexpr (!only_flat)
      st = dm_launch((channel_kernel<Reducer, V>), grid, DM_THREADS, 0, reducer, ch, partial);
  } else if constexpr (V > 1) {
    st = dm_launch((column_runs_kernel<Reducer, V>), grid, DM_THREADS, 0, reducer, ch, lanes,
                   partial);
  } else {
    st = dm_launch((column_kernel<Reducer>), grid, DM_THREADS, 0, reducer, ch, lanes, partial);
  }
  if (st == DM_OK && bytes > 0)
    st = dm_launch((join_kernel<Reducer>), dm_blocks(ch.channels * 32), DM_THREADS, 0, reducer,
                   ch, partial);
  if (bytes > 0) dm_cuda_scratch_free(scratch, bytes);
  return st;
}

/* Whether V neighbours are always of one channel, or of one position with its channels last. */
static inline bool has_runs(const Channels &ch, int V) {
  return (ch.inner == 1 ? ch.channels : ch.inner) % V == 0;
}

/* ---- the gradients of weight and bias ---- */

/* The gradients of weight and bias, gw = sum(gy xhat) and gb = sum(gy), with xhat = (x - mean)
   rstd. mean and rstd are read `step` apart: one per channel (batch_norm), or, where per > 0,
   one per row of `per` channels (layer_norm, group_norm). */
template <class C> struct Pair { C gw, gb; };
template <class C, class T, class G = T> struct GradSums {
  typedef Pair<C> State;
  dm_From<G> gy;
  dm_From<T> x;
  const C *mean, *rstd;
  int64_t step, groups, per;
  C *gw, *gb;
  int64_t at;
  __device__ void enter(int64_t c) { at = per > 0 ? (groups > 1 ? c / per : 0) : c; }
  template <int V> __device__ void add(State &s, int64_t n, int64_t i) const {
    const int64_t k = (per > 0 ? n * groups + at : at) * step;
    const C mu = mean[k], r = rstd[k];
    const dm_Run<G, V> g_run = run_at<G, V>(gy, i);
    const dm_Run<T, V> x_run = run_at<T, V>(x, i);
    C g[V], v[V];
    widen_run<C, G, V>(gy, g_run, g);
    widen_run<C, T, V>(x, x_run, v);
    for (int e = 0; e < V; e++) {
      s.gw += g[e] * ((v[e] - mu) * r);
      s.gb += g[e];
    }
  }
  /* V channels at once: of batch_norm, whose statistics are per channel, or of layer_norm,
     which has one row of channels per n. */
  template <int V> struct Known { C mu[V], r[V]; };
  template <int V> __device__ void enter_run(int64_t c, Known<V> &known) const {
    for (int k = 0; k < V && per == 0; k++) {
      known.mu[k] = mean[(c + k) * step];
      known.r[k] = rstd[(c + k) * step];
    }
  }
  template <int V>
  __device__ void add_run(State *s, Known<V> &known, int64_t n, int64_t i) const {
    if (per > 0) {
      const C mu = mean[n * step], r = rstd[n * step];
      for (int k = 0; k < V; k++) known.mu[k] = mu, known.r[k] = r;
    }
    const dm_Run<G, V> g_run = run_at<G, V>(gy, i);
    const dm_Run<T, V> x_run = run_at<T, V>(x, i);
    C g[V], v[V];
    widen_run<C, G, V>(gy, g_run, g);
    widen_run<C, T, V>(x, x_run, v);
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

template <class C, class T>
static dm_status reduce_runs(GradSums<C, T> reducer, const Channels &ch) {
  const int V = dm_run_size<T>();
  const bool by_group = ch.inner == 1 && reducer.groups > 1; /* statistics are per group */
  if (!by_group && has_runs(ch, V) && runs_of(reducer.x, 16) && runs_of(reducer.gy, 16))
    return reduce_channels<GradSums<C, T>, V>(reducer, ch);
  return reduce_channels<GradSums<C, T>, 1>(reducer, ch);
}

/* Without samples the gradients of weight and bias are 0. */
static inline dm_status clear(const dm_Tensor *t) {
  if (t->numel > 0)
    DM_CUDA_TRY(
        cudaMemsetAsync(dm_tensor_data(t), 0, (size_t)dm_tensor_bytes(t), dm_cuda_stream()));
  return DM_OK;
}
static inline dm_status clear_vectors(dm_Call *c) {
  DM_TRY(clear(c->out[1]));
  return clear(c->out[2]);
}

#endif
