/* Reductions.

   The first part is for every kernel: sums and maxima over a warp and a block.

     dm_warp_sum(v) dm_warp_max(v)    over the 32 lanes; every lane gets it
     dm_block_sum(v) dm_block_max(v)  over the block (256 threads at most, a
                                      multiple of 32); every thread gets it
     dm_warp_reduce(reducer, s, lanes)     the same with any reducer, over groups of
     dm_block_reduce(reducer, s)           `lanes` neighbours (a power of two)

   All threads of the block have to call them. A warp reduces by a butterfly of shuffles
   (__shfl_xor_sync), without shared memory; a block stores one state per warp and joins them
   (M. Harris 2007, "Optimizing Parallel Reduction in CUDA"). The order of the additions is
   fixed.

   The second part reduces a tensor over dims: dm_cuda_reduce(x, mask, reducer, out). A reducer
   is

     struct Reducer {
       typedef float In;               what elements are read as
       typedef .. State;               of one output; 4-byte words
       static const bool positional;   needs element numbers: dims keep their order
       State start() const;
       void add(State &s, In v, int64_t at) const;     element number `at`
       void join(State &s, const State &other) const;  commutes
       void put(const State &s, const dm_Reduced &out, int64_t i) const;
     };

   The dims of x are split into kept and reduced ones. Threads go along the reduced elements
   (rows) or, where the kept ones are closer together in memory, along those (columns, as for
   bias gradients), so that a warp's loads are contiguous. With few outputs the GPU would be
   mostly idle: each reduction is then cut into chunks, which are blocks of their own, and a
   second launch joins their states. This two-level sum needs no atomics. How it is cut depends
   on sizes alone, so that every run on every GPU gives the same bits. */
#ifndef DM_CUDA_REDUCE_CUH
#define DM_CUDA_REDUCE_CUH

#include "kernels/cuda.cuh"

/* ---- warps and blocks ---- */

/* Exchanges a state with the lane whose number differs in the bits `with`, 4 bytes at a
   time. */
template <class S> static __device__ inline S dm_shuffle_xor(const S &v, int with) {
  const int n = (int)(sizeof(S) / 4);
  static_assert(sizeof(S) % 4 == 0, "a state is made of 4-byte words");
  unsigned word[n];
  S other;
  memcpy(word, &v, sizeof v);
  for (int i = 0; i < n; i++) word[i] = __shfl_xor_sync(0xffffffffu, word[i], with);
  memcpy(&other, word, sizeof v);
  return other;
}

/* After log2(lanes) butterfly steps every lane holds the group's joined state. */
template <class Reducer, class S>
static __device__ inline S dm_warp_reduce(const Reducer &reducer, S s, int lanes) {
  for (int w = lanes / 2; w > 0; w /= 2) {
    const S other = dm_shuffle_xor(s, w);
    reducer.join(s, other);
  }
  return s;
}

/* Reduces over the block: warps first, then every thread joins the warps' states in the same
   order. */
template <class Reducer, class S>
static __device__ inline S dm_block_reduce(const Reducer &reducer, S s) {
  DM_SHARED(S, part, 32);
  const int warp = threadIdx.x / 32, n_warp = blockDim.x / 32;
  s = dm_warp_reduce(reducer, s, 32);
  __syncthreads(); /* earlier reads of `part` are done */
  if (threadIdx.x % 32 == 0) part[warp] = s;
  __syncthreads();
  s = part[0];
  for (int w = 1; w < n_warp; w++) {
    const S other = part[w];
    reducer.join(s, other);
  }
  return s;
}

/* Reduces over groups of up to 32 lanes or, for lanes > 32, over the block. */
template <class Reducer, class S>
static __device__ inline S dm_join_lanes(const Reducer &reducer, const S &s, int lanes) {
  return lanes > 32 ? dm_block_reduce(reducer, s) : dm_warp_reduce(reducer, s, lanes);
}

/* Addition; integers wrap. */
template <class C> static __device__ inline C dm_plus(C a, C b) { return a + b; }
template <> __device__ inline int64_t dm_plus<int64_t>(int64_t a, int64_t b) {
  return (int64_t)((uint64_t)a + (uint64_t)b);
}
struct dm_Plus {
  template <class C> __device__ void join(C &s, const C &other) const { s = dm_plus(s, other); }
};
/* Maximum; a NaN counts as the largest. */
struct dm_Larger {
  template <class C> __device__ void join(C &s, const C &other) const {
    s = other > s || other != other ? other : s;
  }
};
template <class C> static __device__ inline C dm_warp_sum(C v) {
  return dm_warp_reduce(dm_Plus(), v, 32);
}
template <class C> static __device__ inline C dm_warp_max(C v) {
  return dm_warp_reduce(dm_Larger(), v, 32);
}
template <class C> static __device__ inline C dm_block_sum(C v) {
  return dm_block_reduce(dm_Plus(), v);
}
template <class C> static __device__ inline C dm_block_max(C v) {
  return dm_block_reduce(dm_Larger(), v);
}

/* ---- functions of float and double ---- */

static __device__ inline float dm_exp(float v) { return expf(v); }
static __device__ inline double dm_exp(double v) { return exp(v); }
static __device__ inline float dm_log(float v) { return logf(v); }
static __device__ inline double dm_log(double v) { return log(v); }
static __device__ inline float dm_sqrt(float v) { return sqrtf(v); }
static __device__ inline double dm_sqrt(double v) { return sqrt(v); }
static __device__ inline float dm_abs(float v) { return fabsf(v); }
static __device__ inline double dm_abs(double v) { return fabs(v); }
static __device__ inline float dm_power(float v, float p) { return powf(v, p); }
static __device__ inline double dm_power(double v, double p) { return pow(v, p); }

/* The sum of exp(v) held as sum * exp(top), where top is the largest v so far: no exp
   overflows (the online softmax, M. Milakov & N. Gimelshein 2018). */
template <class C> struct dm_LogSum {
  struct State {
    C top, sum;
  };
  __device__ State start() const { return {-(C)INFINITY, 0}; }
  __device__ void join(State &s, const State &other) const {
    if (other.sum == 0) return;
    if (other.top > s.top) {
      s.sum = (s.sum == 0 ? 0 : s.sum * dm_exp(s.top - other.top)) + other.sum;
      s.top = other.top;
    } else {
      s.sum += other.top == s.top ? other.sum : other.sum * dm_exp(other.top - s.top);
    }
  }
  __device__ void add(State &s, C v, int64_t) const {
    if (v != -(C)INFINITY) join(s, {v, 1});
  }
};

/* ---- reductions over dims ---- */

/* The outputs: values of `dtype`, or positions counted from base, or both. */
struct dm_Reduced {
  void *value;
  int64_t *index;
  int dtype, base;
};

enum {
  DM_CHAIN = 1024, /* loads that one thread reduces, at most: bounds the rounding */
  DM_SHORT = 8,    /* and at least, before a reduction is cut */
  DM_WIDTH = 1024  /* blocks worth having */
};

/* How a reduction is divided among threads. */
struct dm_Division {
  int lanes;              /* threads that share an output, or columns of a block */
  int64_t n_chunk, chunk; /* chunks of a reduction, and loads in one */
  dm_Walk<1> kept, red; /* offsets of loads: of the kept dims and of the reduced ones; one side
                           counts V elements a load */
};

/* The parameters of one reduction, passed to its kernels by value. */
template <class Reducer> struct dm_Plan : dm_Division {
  Reducer reducer;
  dm_Reduced out;
  const void *x;
  int64_t dtype; /* as wide as x: captured launches compare their arguments' bytes */
  typename Reducer::State *partial; /* (outputs, n_chunk) when there are several */
};

/* Stands for an element type that is known at run time only. */
struct dm_AnyType {};

/* A reducer for which dm_visits is true has a method `visit<T, V>(v, at)`. It is called once
   for each load of V elements of type T, from element `at` of x on, before they are added: it
   may change them and write elsewhere. Specialised beside the reducer. */
template <class Reducer> static constexpr bool dm_visits = false;

/* One load: V neighbouring elements, converted to the compute type. */
template <class C, class T, int V> struct dm_Loads {
  C v[V];
  __device__ dm_Loads(const void *x, int dtype, int64_t at) {
    const dm_Run<T, V> run = *(const dm_Run<T, V> *)((const T *)x + at);
    if constexpr (dm_same_type<T, dm_Low>) dm_widen_all(dtype, run, v);
    else
      for (int k = 0; k < V; k++) v[k] = dm_get<C, T>(run.v[k]);
  }
};
template <class C> struct dm_Loads<C, dm_AnyType, 1> {
  C v[1];
  __device__ dm_Loads(const void *x, int dtype, int64_t at) { v[0] = dm_load<C>(dtype, x, at); }
};

/* Stores the state of output i: as the result, or as a chunk's state for the second launch. */
template <class Reducer>
static __device__ inline void dm_emit(const dm_Plan<Reducer> &p,
                                      const typename Reducer::State &s, int64_t i) {
  if (p.n_chunk > 1) p.partial[i * p.n_chunk + blockIdx.y] = s;
  else p.reducer.put(s, p.out, i);
}

/* Rows: p.lanes threads share output o = thread / p.lanes and stride along its reduced
   elements; blockIdx.y is the chunk. */
template <class Reducer, class T, int V>
static __global__ void __launch_bounds__(DM_THREADS) dm_rows_kernel(dm_Plan<Reducer> p) {
  const int64_t o = dm_thread() / p.lanes;
  const int lane = threadIdx.x & (p.lanes - 1);
  const bool mine = o < p.kept.numel;
  typename Reducer::State s = p.reducer.start();
  if (mine) {
    const int64_t lo = blockIdx.y * p.chunk;
    const int64_t hi = lo + p.chunk < p.red.numel ? lo + p.chunk : p.red.numel;
    int64_t first, off;
    p.kept.at(o, &first);
    /* Element numbers count from the beginning of the whole reduction, not of the chunk. */
    for (int64_t i = lo + lane; i < hi; i += p.lanes) {
      p.red.at(i, &off);
      dm_Loads<typename Reducer::In, T, V> x(p.x, p.dtype, first + off);
      if constexpr (dm_visits<Reducer>) p.reducer.template visit<T, V>(x.v, first + off);
      for (int k = 0; k < V; k++) p.reducer.add(s, x.v[k], i * V + k);
    }
  }
  s = dm_join_lanes(p.reducer, s, p.lanes);
  if (mine && lane == 0) dm_emit(p, s, o);
}

/* Columns: neighbouring threads have neighbouring outputs. A block is `lanes` loads wide, each
   of V outputs, and DM_THREADS / lanes threads high; the threads of a column stride over the
   reduced elements, and a tree in shared memory joins their states. */
template <class Reducer, class T, int V>
static __global__ void __launch_bounds__(DM_THREADS) dm_columns_kernel(dm_Plan<Reducer> p) {
  typedef typename Reducer::State State;
  DM_SHARED(State, tile, DM_THREADS * V);
  const int t = threadIdx.x, rows = DM_THREADS / p.lanes, y = t / p.lanes;
  const int64_t o = (int64_t)blockIdx.x * p.lanes + (t & (p.lanes - 1));
  const bool mine = o < p.kept.numel;
  State s[V];
  for (int k = 0; k < V; k++) s[k] = p.reducer.start();
  if (mine) {
    const int64_t lo = blockIdx.y * p.chunk;
    const int64_t hi = lo + p.chunk < p.red.numel ? lo + p.chunk : p.red.numel;
    int64_t first, off;
    p.kept.at(o, &first);
    for (int64_t i = lo + y; i < hi; i += rows) {
      p.red.at(i, &off);
      dm_Loads<typename Reducer::In, T, V> x(p.x, p.dtype, first + off);
      if constexpr (dm_visits<Reducer>) p.reducer.template visit<T, V>(x.v, first + off);
      for (int k = 0; k < V; k++) p.reducer.add(s[k], x.v[k], i);
    }
  }
  /* The tree halves the rows of threads; V states per thread, one after another. */
  for (int k = 0; k < V; k++) tile[k * DM_THREADS + t] = s[k];
  for (int h = rows / 2; h > 0; h /= 2) {
    __syncthreads();
    for (int k = 0; k < V && y < h; k++) {
      const State other = tile[k * DM_THREADS + t + h * p.lanes];
      p.reducer.join(s[k], other);
      tile[k * DM_THREADS + t] = s[k];
    }
  }
  for (int k = 0; k < V && mine && y == 0; k++) dm_emit(p, s[k], o * V + k);
}

/* The second launch: p.lanes threads per output join its chunks' states in a fixed order. */
template <class Reducer>
static __global__ void __launch_bounds__(DM_THREADS)
    dm_join_kernel(dm_Plan<Reducer> p, int64_t n_out) {
  const int64_t o = dm_thread() / p.lanes;
  const int lane = threadIdx.x & (p.lanes - 1);
  typename Reducer::State s = p.reducer.start();
  for (int64_t i = lane; o < n_out && i < p.n_chunk; i += p.lanes) {
    const typename Reducer::State other = p.partial[o * p.n_chunk + i];
    p.reducer.join(s, other);
  }
  s = dm_join_lanes(p.reducer, s, p.lanes);
  if (o < n_out && lane == 0) p.reducer.put(s, p.out, o);
}

/* ---- how it is divided among threads ---- */

/* Whether elements of both walks may be loaded V at a time along `along`: contiguous there,
   and every offset a multiple of V. */
static inline bool dm_walks_in(const dm_Walk<1> &along, const dm_Walk<1> &other, const void *x,
                               int64_t V, int64_t size) {
  const int last = along.ndim - 1;
  bool ok = along.stride[0][last] == 1 && along.shape[last] % V == 0 &&
            (uintptr_t)x % (uint64_t)(V * size) == 0;
  for (int d = 0; d < last; d++) ok = ok && along.stride[0][d] % V == 0;
  for (int d = 0; d < other.ndim; d++) ok = ok && other.stride[0][d] % V == 0;
  return ok;
}
/* Makes the walk count loads of V elements. */
static inline void dm_walk_in(dm_Walk<1> *along, int64_t V) {
  along->shape[along->ndim - 1] /= V;
  along->stride[0][along->ndim - 1] = V;
  along->numel /= V;
}

/* The smallest power of two that is n or more, but at most `most`. */
static inline int dm_lanes(int64_t n, int most) {
  int lanes = 1;
  while (lanes < n && lanes < most) lanes *= 2;
  return lanes;
}

/* Cuts a reduction of n loads into chunks, given the threads that share one and the blocks
   that all outputs make: up to DM_WIDTH blocks, with DM_SHORT to DM_CHAIN loads per thread. */
static inline void dm_cut(dm_Division *p, int64_t n, int64_t threads, int64_t blocks) {
  /* At least as many chunks as bound a thread's chain, at most as many as leave it DM_SHORT
     loads. */
  const int64_t most = dm_ceil_div(n, threads * DM_SHORT);
  int64_t chunks = dm_ceil_div(DM_WIDTH, blocks);
  if (chunks > most) chunks = most;
  if (chunks < dm_ceil_div(n, threads * DM_CHAIN)) chunks = dm_ceil_div(n, threads * DM_CHAIN);
  if (chunks > 65535) chunks = 65535; /* the grid's height */
  p->chunk = chunks > 1 ? dm_ceil_div(n, chunks) : n;
  p->n_chunk = chunks > 1 ? dm_ceil_div(n, p->chunk) : 1;
}

/* Chooses the threads per output and cuts; returns the grid. */
static inline dim3 dm_divide_work(dm_Division *p, bool rows, int64_t n_out) {
  int64_t blocks;
  if (rows) {
    const int64_t n = p->red.numel;
    /* Long rows take a block, and so do those of middle length if there are few of them. */
    p->lanes = n > 512 || (n > 64 && n_out < 512) ? DM_THREADS : dm_lanes(n, 32);
    blocks = dm_ceil_div(n_out * p->lanes, DM_THREADS);
    dm_cut(p, n, p->lanes, blocks);
  } else {
    p->lanes = dm_lanes(p->kept.numel, 32);
    blocks = dm_ceil_div(p->kept.numel, p->lanes);
    dm_cut(p, p->red.numel, DM_THREADS / p->lanes, blocks);
  }
  dm_walk_ready(&p->kept);
  dm_walk_ready(&p->red);
  return dim3((unsigned)blocks, (unsigned)p->n_chunk);
}

/* Divides the work and launches `kernel`, which reduces rows or columns, V elements a load, and
   where a reduction was cut the one that joins its chunks. */
template <class Reducer>
static dm_status dm_launch_reduction(dm_Plan<Reducer> p, bool rows, int V,
                                     void (*kernel)(dm_Plan<Reducer>)) {
  typedef typename Reducer::State State;
  const int64_t n_out = rows ? p.kept.numel : p.kept.numel * V;
  const dim3 grid = dm_divide_work(&p, rows, n_out);
  const int64_t bytes = p.n_chunk > 1 ? n_out * p.n_chunk * (int64_t)sizeof(State) : 0;
  void *scratch = NULL;
  if (bytes > 0) DM_TRY(dm_cuda_scratch(bytes, &scratch));
  p.partial = (State *)scratch;
  dm_status st = dm_launch_on(dm_cuda_stream(), rows ? "dm_rows_kernel" : "dm_columns_kernel",
                              kernel, grid, DM_THREADS, 0, p);
  if (st == DM_OK && bytes > 0) {
    p.lanes = p.n_chunk > 128 ? DM_THREADS : dm_lanes(p.n_chunk, 32);
    const unsigned blocks = (unsigned)dm_ceil_div(n_out * p.lanes, DM_THREADS);
    st = dm_launch((dm_join_kernel<Reducer>), dim3(blocks), DM_THREADS, 0, p, n_out);
  }
  if (bytes > 0) dm_cuda_scratch_free(scratch, bytes);
  return st;
}

/* Tries the kernel for contiguous elements of type T: loads of 16 bytes along rows, of up to
   four outputs along columns. */
template <class Reducer, class T>
static bool dm_try_dense(const dm_Plan<Reducer> &plan, bool rows, dm_status *st) {
  const int across = 16 / (int)sizeof(T), down = sizeof(T) == 8 ? 2 : 4;
  dm_Plan<Reducer> p = plan;
  if (!dm_walks_in(rows ? p.red : p.kept, rows ? p.kept : p.red, p.x, rows ? across : down,
                   sizeof(T)))
    return false;
  dm_walk_in(rows ? &p.red : &p.kept, rows ? across : down);
  *st = rows ? dm_launch_reduction(p, true, across, dm_rows_kernel<Reducer, T, across>)
             : dm_launch_reduction(p, false, down, dm_columns_kernel<Reducer, T, down>);
  return true;
}

/* The contiguous kernels exist only where `fast` asks for them, which keeps the binary small:
   for float32 and low floats, and for bytes when bools are counted or searched. */
template <bool fast, class Reducer>
static bool dm_try_fast(const dm_Plan<Reducer> &p, bool rows, dm_status *st) {
  if constexpr (fast && sizeof(typename Reducer::In) == 4) {
    if (dm_is_low((dm_DType)p.dtype)) return dm_try_dense<Reducer, dm_Low>(p, rows, st);
    return p.dtype == DM_F32 && dm_try_dense<Reducer, float>(p, rows, st);
  }
  if constexpr (fast && (typename Reducer::In)0.5 == 0) /* int64 */
    if (p.dtype == DM_BOOL || p.dtype == DM_U8)
      return dm_try_dense<Reducer, uint8_t>(p, rows, st);
  (void)p, (void)rows, (void)st;
  return false;
}

/* Reduces x over the dims in mask. fast: also compile the kernels for contiguous data. */
template <bool fast, class Reducer>
static dm_status dm_cuda_reduce(const dm_Tensor *x, unsigned mask, const Reducer &reducer,
                                const dm_Reduced &out) {
  dm_Plan<Reducer> p = {};
  dm_status st;
  p.reducer = reducer;
  p.out = out;
  p.x = dm_tensor_data(x);
  p.dtype = x->dtype;
  dm_walk_dims(&p.kept, p.kept.stride, x, ~mask, true);
  dm_walk_dims(&p.red, p.red.stride, x, mask, Reducer::positional);
  if (p.kept.numel == 0) return DM_OK;
  /* The strides of the innermost kept and reduced dims decide: threads go along the smaller
     one. */
  const int64_t down = p.kept.stride[0][p.kept.ndim - 1];
  const int64_t along = p.red.stride[0][p.red.ndim - 1];
  const bool rows =
      p.kept.shape[p.kept.ndim - 1] < 4 || p.red.numel <= 1 || llabs(down) >= llabs(along);
  if (dm_try_fast<fast>(p, rows, &st)) return st;
  return dm_launch_reduction(p, rows, 1,
                             rows ? dm_rows_kernel<Reducer, dm_AnyType, 1>
                                  : dm_columns_kernel<Reducer, dm_AnyType, 1>);
}

/* The outputs of a reduction without positions. */
static inline dm_Reduced dm_reduced(const dm_Tensor *value) {
  const dm_Reduced r = {dm_tensor_data(value), NULL, (int)value->dtype, 0};
  return r;
}

#endif
