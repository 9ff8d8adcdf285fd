/* The optimizers' kernels over lists of tensors (PyTorch's foreach and fused optimizers;
   NVIDIA Apex's multi_tensor_apply).

   One launch serves a whole list: the tensors are cut into chunks of DM_CHUNK elements, a
   table in device memory names tensor and part for each chunk, and each block takes one chunk.
   Float64 tensors, if any, have a second launch. The arithmetic is base/methods.inc, as on the
   CPU. This file is compiled without fused multiply-adds: the kernels are bound by memory
   anyway, and results have the CPU's bits.

   found_inf, the scale, norms and step counters stay on the device, and so does what changes
   from step to step (learning rates and so on). The host never waits to learn whether a step
   was skipped, and a step can be captured as a graph. */
#include "kernels/keep.h"
#include "kernels/last_block.cuh"
#include "kernels/optim.h"
#include "kernels/own.cuh"
#include "kernels/reduce.cuh"

extern "C" {
#include "base/step.h"
}

/* ---- the methods, for a compute type ---- */

template <class C> struct Formulas;
#define F(name) name
#define real float
#define SQRT sqrtf
template <> struct Formulas<float> {
#include "base/methods.inc"
};
#undef real
#undef SQRT
#define real double
#define SQRT sqrt
template <> struct Formulas<double> {
#include "base/methods.inc"
};
#undef real
#undef SQRT
#undef F

/* A row of methods.inc as a type: Constants<C> is what READY computes once per tensor, one()
   is ELEMENT, the update of an element. */
#define METHOD(NAME, KINDS, COUNTS, OPTIONS, BUFFERS, ...)                                  \
  struct NAME##Method {                                                                     \
    typedef dm_##NAME##Options Options;                                                     \
    template <class C> using Constants = typename Formulas<C>::dm_##NAME;                   \
    static const bool counts = COUNTS;                                                      \
    static const int kinds = KINDS, lanes = 2 BUFFERS;                                      \
                                                                                            \
    template <class C>                                                                      \
    static __host__ __device__ void ready(const Options *o, double t, bool first,           \
                                          double *number, Constants<C> *h) {                \
      Formulas<C>::dm_##NAME##_ready(o, t, first, number, h);                               \
    }                                                                                       \
    template <class C>                                                                      \
    static __device__ void one(const Constants<C> *h, int kind, C (*x)[4], int i) {         \
      const int last = lanes - 1;                                                           \
      Formulas<C>::dm_##NAME##_one(h, kind, &x[0][i], x[1][i], &x[2][i],                    \
                                   &x[last < 3 ? last : 3][i], &x[last < 4 ? last : 4][i]); \
    }                                                                                       \
  };
#define BUFFER(NAME, WANTED) +1
#include "base/methods.inc"

/* The constants of a step, on the device. Methods that count steps have one record per item,
   written by ready_kernel just before the update; of a short list each block computes its own
   (Counting). Others have two, computed by the host: for items whose buffers exist, and for
   those whose buffers are new. */
template <class M> struct Record {
  typename M::template Constants<float> f32;
  typename M::template Constants<double> f64;
};
template <class M>
static __device__ inline const typename M::template Constants<float> &of(const Record<M> &r,
                                                                         float) {
  return r.f32;
}
template <class M>
static __device__ inline const typename M::template Constants<double> &of(const Record<M> &r,
                                                                          double) {
  return r.f64;
}

/* ---- four elements of a lane ---- */

/* Loads m of four elements from i on, as one word if `wide` and m == 4. */
template <class C, class T>
static __device__ inline void get4(const void *p, int64_t i, int m, bool wide, C *v) {
  const T *from = (const T *)p + i;
  dm_Run<T, 4> x;
  if (wide && m == 4) x = *(const dm_Run<T, 4> *)from;
  else
    for (int k = 0; k < 4; k++) x.v[k] = from[k < m ? k : 0];
  for (int k = 0; k < 4; k++) v[k] = dm_get<C, T>(x.v[k]);
}
/* Stores a run in words of 8 or 16 bytes. Inline assembly, because the compiler splits the
   store where the other branch stores the same elements one by one. */
template <class Run> static __device__ inline void put_words(void *to, const Run &y) {
#ifdef __CUDA_ARCH__
  unsigned w[sizeof(Run) / 4];
  memcpy(w, &y, sizeof y);
  if constexpr (sizeof y == 8)
    asm volatile("st.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(w[0]), "r"(w[1]) : "memory");
  else
    for (int k = 0; k < (int)(sizeof y / 4); k += 4)
      asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"((char *)to + k * 4), "r"(w[k]),
                   "r"(w[k + 1]), "r"(w[k + 2]), "r"(w[k + 3])
                   : "memory");
#else
  *(Run *)to = y;
#endif
}
template <class C, class T>
static __device__ inline void put4(void *p, int64_t i, int m, bool wide, const C *v) {
  T *to = (T *)p + i;
  dm_Run<T, 4> y;
  for (int k = 0; k < 4; k++) dm_put(&y.v[k], v[k]);
  if (wide && m == 4) put_words(to, y);
  else
    for (int k = 0; k < 4; k++)
      if (k < m) to[k] = y.v[k];
}

/* Chooses by dtype, which is the same for all threads of a block. */
template <class C>
static __device__ inline void load4(int dtype, const void *p, int64_t i, int m, bool wide,
                                    C *v) {
#define ROW(X, E, S, ...)                                 \
  if (dtype == DM_##E) get4<C, dm_##S>(p, i, m, wide, v); \
  else
  DM_LOW_DTYPES(ROW, )
#undef ROW
  if (sizeof(C) == 4 || dtype == DM_F32) get4<C, float>(p, i, m, wide, v);
  else if constexpr (sizeof(C) == 8) get4<C, double>(p, i, m, wide, v);
}
template <class C>
static __device__ inline void store4(int dtype, void *p, int64_t i, int m, bool wide,
                                     const C *v) {
#define ROW(X, E, S, ...)                                 \
  if (dtype == DM_##E) put4<C, dm_##S>(p, i, m, wide, v); \
  else
  DM_LOW_DTYPES(ROW, )
#undef ROW
  if (sizeof(C) == 4 || dtype == DM_F32) put4<C, float>(p, i, m, wide, v);
  else if constexpr (sizeof(C) == 8) put4<C, double>(p, i, m, wide, v);
}

/* This block's chunk of an item, whose elements end before `end`: four per thread and step,
   this thread's from `begin` on. */
struct Part {
  const dm_Item &item;
  const int which;
  int64_t begin, end;

  __device__ Part(const dm_Item *items, dm_Chunk c) : item(items[c.item]), which(c.item) {
    begin = (int64_t)c.at * DM_CHUNK + threadIdx.x * 4;
    end = (int64_t)(c.at + 1) * DM_CHUNK;
    if (end > item.numel) end = item.numel;
  }
  __device__ int left(int64_t i) const { return end - i < 4 ? (int)(end - i) : 4; }
};

/* Loops over the chunk's elements of this thread: m of them from i on. */
#define FOR_FOUR(part, i, m)                                            \
  for (int64_t i = (part).begin, m; m = (part).left(i), i < (part).end; \
       i += (int64_t)blockDim.x * 4)

/* The threads of a block that has n things to do: a multiple of 32 up to DM_THREADS. */
static unsigned few(int64_t n) {
  return (unsigned)dm_min_i64(DM_THREADS, dm_max_i64(32, dm_ceil_div(n, 32) * 32));
}

/* ---- steps ---- */

/* Master weights: a float32 master is replaced by its 16-bit parameter wherever, rounded, it
   differs from it, since then the caller has changed the parameter (loaded or clamped it). */
template <class T>
static __device__ inline void follow(const void *param, int64_t i, int m, float *v) {
  for (int k = 0; k < 4; k++) {
    const T now = ((const T *)param)[i + (k < m ? k : 0)];
    T rounded;
    dm_put(&rounded, v[k]);
    if (k < m && rounded.bits != now.bits) v[k] = dm_widen(now);
  }
}

/* Stochastic rounding of four elements to 16 bits: element i uses word i % 4 of counter i / 4
   of the draw; i is a multiple of 4. */
static __device__ inline void round_stochastic(const dm_Item &item, dm_Generator g, int64_t i,
                                               float *v) {
  const dm_Philox word = dm_philox(g.seed, g.offset + (uint64_t)(item.counter + i / 4));
  for (int k = 0; k < 4; k++)
    v[k] = dm_round_stochastic((dm_DType)item.dtype[0], v[k], word.v[k]);
}

/* Applies the formula of kind h.kind to four elements; each kind is an instance of its own. */
template <class M, class C, int kind = 0>
static __device__ inline void update4(const typename M::template Constants<C> &h, C (*x)[4]) {
  if (kind + 1 < M::kinds && h.kind != kind) {
    update4<M, C, (kind + 1 < M::kinds ? kind + 1 : kind)>(h, x);
  } else {
    for (int k = 0; k < 4; k++) M::template one<C>(&h, kind, x, k);
  }
}

/* A chunk's rounded elements, as 16 bits, which the block gathers before it writes them
   channels last: neighbours there lie `plane` elements apart in rows. */
typedef DM_SHARED_PTR(uint16_t) Gathered;

static __device__ inline void gather4(int dtype, Gathered to, int at, int m, const float *v) {
#define ROW(X, E, S, ...)                   \
  if (dtype == DM_##E)                      \
    for (int k = 0; k < 4; k++) {           \
      dm_##S rounded;                       \
      dm_put(&rounded, v[k]);               \
      if (k < m) to[at + k] = rounded.bits; \
    }
  DM_LOW_DTYPES(ROW, )
#undef ROW
}

/* A warp writes one run of channels, the elements (o, c, p) of all c: in rows they lie at
   (o channels + c) plane + p, channels last at (o plane + p) channels + c. Positions fit 32
   bits (dm_fresh_copy). */
static __device__ inline void put_turned(const Part &part, Gathered from) {
  const unsigned channels = (unsigned)part.item.channels, plane = (unsigned)part.item.plane;
  const unsigned row = channels * plane, end = (unsigned)part.end;
  const unsigned first = (unsigned)part.begin - threadIdx.x * 4;
  const unsigned lines = (end - 1) / row * plane + plane;
  uint16_t *to = (uint16_t *)part.item.low_copy;
  for (unsigned line = first / row * plane + threadIdx.x / 32; line < lines;
       line += blockDim.x / 32) {
    const unsigned at = line / plane * row + line % plane;
    const unsigned skip = at < first ? (first - at + plane - 1) / plane : 0;
    for (unsigned c = skip + threadIdx.x % 32; c < channels && at + c * plane < end; c += 32)
      to[(int64_t)line * channels + c] = from[at + c * plane - first];
  }
}

/* Writes m of four rounded elements to the item's 16-bit copy, or gathers them for it. */
template <class C>
static __device__ inline void put_low(const Part &part, Gathered gathered, int64_t i, int m,
                                      const C *v) {
  const dm_Item &item = part.item;
  if (!item.low_copy) return;
  if constexpr (sizeof(C) == 4)
    if (item.plane > 0)
      return gather4(item.low_copy_dtype, gathered, (int)i & (DM_CHUNK - 1), m, v);
  store4<C>(item.low_copy_dtype, item.low_copy, i, m, item.wide, v);
}

/* Updates m of four elements: loads all lanes (weight, gradient, buffers), computes, rounds,
   and stores all but the gradient, with the 16-bit copy if there is one. */
template <class M, class C>
static __device__ inline void
step4(const Part &part, const typename M::template Constants<C> &h, const dm_Generator *g,
      Gathered gathered, int64_t i, int m) {
  const dm_Item &item = part.item;
  C x[M::lanes][4];
  /* Lanes that the method does not use for this item are NULL. */
  for (int k = 0; k < M::lanes; k++)
    if (item.lane[k]) load4<C>(item.dtype[k], item.lane[k], i, m, item.wide, x[k]);
  /* The parameter may have been changed since the last step. */
  if constexpr (sizeof(C) == 4) {
#define ROW(X, E, S, ...) \
  if (item.master && item.low_copy_dtype == DM_##E) follow<dm_##S>(item.low_copy, i, m, x[0]);
    DM_LOW_DTYPES(ROW, )
#undef ROW
  }
  update4<M, C>(h, x);
  if constexpr (sizeof(C) == 4)
    if (item.stochastic) round_stochastic(item, *g, i, x[0]);
  put_low<C>(part, gathered, i, m, x[0]);
  /* Lane 1 is the gradient, which is only read. */
  for (int k = 0; k < M::lanes; k++)
    if (k != 1 && item.lane[k]) store4<C>(item.dtype[k], item.lane[k], i, m, item.wide, x[k]);
}

/* The constants of an item's next step, such as Adam's bias corrections; `keep`: its counter
   and its numbers go on. */
template <class M, class C>
static __device__ inline void next_step(const dm_Item &item, const typename M::Options *o,
                                        bool keep, typename M::template Constants<C> *h) {
  double number[DM_MAX_NUMBERS] = {0};
  for (int k = 0; k < DM_MAX_NUMBERS; k++)
    if (item.number[k]) number[k] = *item.number[k];
  const float t = *item.step + 1;
  M::template ready<C>(o, t, item.first, number, h);
  if (!keep) return;
  *item.step = t;
  for (int k = 0; k < DM_MAX_NUMBERS; k++)
    if (item.number[k]) *item.number[k] = number[k];
}

/* A step that counts in the launch which updates: each block computes the constants of its
   item, and the last one, when all have read the counters, moves these. */
template <class M> struct Counting {
  const typename M::Options *o;
  unsigned *arrived; /* dm_is_last_block's */
  int n;             /* items */

  template <class C>
  __device__ typename M::template Constants<C> constants(const dm_Item &item, int) const {
    typedef typename M::template Constants<C> Constants;
    DM_SHARED(Constants, own, 1);
    Constants h;
    if (threadIdx.x == 0) {
      next_step<M, C>(item, o, false, &h);
      own[0] = h;
    }
    __syncthreads();
    return own[0];
  }
  template <class C> __device__ void count(const dm_Item *items) const {
    typename M::template Constants<C> unused;
    if (!dm_is_last_block(arrived, gridDim.x)) return;
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
      next_step<M, C>(items[i], o, true, &unused);
  }
};

/* Records made before. */
template <class M> struct Recorded {
  const Record<M> *records;

  template <class C>
  __device__ typename M::template Constants<C> constants(const dm_Item &item, int which) const {
    return of(records[M::counts ? which : item.first], C());
  }
  template <class C> __device__ void count(const dm_Item *) const {}
};

/* The update of all items, one chunk per block. If *found_inf is set nothing is updated; only
   16-bit copies are still written, as the host counts on them. `from` gives the constants. */
template <class M, class C, class From>
static __global__ void __launch_bounds__(DM_THREADS)
    step_kernel(const dm_Item *items, const dm_Chunk *chunks, From from, const dm_Generator *g,
                const float *found_inf) {
  DM_DYNAMIC_SHARED(uint16_t, gathered);
  const Part part(items, chunks[blockIdx.x]);
  const dm_Item &item = part.item;
  /* found_inf is read here, on the device: the host launches the step in any case. */
  const bool skip = dm_is_set(found_inf);
  if (!skip) {
    const typename M::template Constants<C> h = from.template constants<C>(item, part.which);
    FOR_FOUR(part, i, m) step4<M, C>(part, h, g, gathered, i, (int)m);
  } else if (item.low_copy && !item.master) {
    FOR_FOUR(part, i, m) {
      C x[4];
      load4<C>(item.dtype[0], item.lane[0], i, (int)m, item.wide, x);
      put_low<C>(part, gathered, i, (int)m, x);
    }
  }
  if (sizeof(C) == 4 && item.plane > 0) {
    __syncthreads();
    put_turned(part, gathered);
  }
  if (!skip) from.template count<C>(items);
}

/* One thread per item: its constants, and its counter goes on. */
template <class M>
static __global__ void __launch_bounds__(DM_THREADS)
    ready_kernel(const dm_Item *items, int n, const typename M::Options *o,
                 const float *found_inf, Record<M> *records) {
  const int64_t i = dm_thread();
  if (i >= n || dm_is_set(found_inf)) return;
  if (items[i].dtype[0] == DM_F64) next_step<M, double>(items[i], o, true, &records[i].f64);
  else next_step<M, float>(items[i], o, true, &records[i].f32);
}

/* What the device gets of a step's options: the options of a method that counts steps, or the
   two records of one that does not. The number of bytes. */
template <class M>
static int64_t bytes_of(const typename M::Options *o, char bytes[DM_STEP_BYTES]) {
  static_assert(sizeof(Record<M>[2]) <= DM_STEP_BYTES && sizeof *o <= DM_STEP_BYTES,
                "DM_STEP_BYTES is too small");
  if constexpr (M::counts) {
    memcpy(bytes, o, sizeof *o);
    return (int64_t)sizeof *o;
  } else {
    Record<M> r[2];
    memset((void *)r, 0, sizeof r); /* padding is compared too */
    for (int first = 0; first < 2; first++) {
      M::template ready<float>(o, 0, first != 0, NULL, &r[first].f32);
      M::template ready<double>(o, 0, first != 0, NULL, &r[first].f64);
    }
    memcpy(bytes, (const void *)r, sizeof r);
    return (int64_t)sizeof r;
  }
}

/* Launches the step of a short list without float64 by a method that counts. */
template <class M>
static dm_status step_counting(const dm_List *l, uint64_t site, const void *options,
                               const dm_Generator *g, const float *found_inf) {
  Counting<M> from = {(const typename M::Options *)options, NULL, l->n_item};
  DM_TRY(dm_arrivals(dm_site(site, 1), &from.arrived));
  return dm_launch((step_kernel<M, float, Counting<M>>), (unsigned)l->n_f32,
                   (unsigned)l->threads, l->turned ? DM_CHUNK * sizeof(uint16_t) : 0, l->item,
                   l->chunk, from, g, found_inf);
}

/* Has this list at most 64 million elements, so that the launch counts? Only for Adam, as each
 * method is a kernel more.
 */
template <class A, class B> struct is_same { static const bool yes = false; };
template <class A> struct is_same<A, A> { static const bool yes = true; };
static bool is_short(const dm_List *l) {
  return l->n_f64 == 0 && l->n_f32 > 0 && l->n_f32 <= 4096;
}

/* Launches a step: constants, float32 and 16-bit items, float64 items. */
template <class M>
static dm_status step_all(const dm_List *l, uint64_t site, const dm_Step *s,
                          const dm_Generator *g) {
  const typename M::Options *const o = (const typename M::Options *)s->options;
  const float *const found_inf =
      s->found_inf ? (const float *)dm_tensor_data(s->found_inf) : NULL;
  dm_Scratch<Record<M>> each;
  void *kept;
  char bytes[DM_STEP_BYTES];
  const int64_t n_bytes = bytes_of<M>(o, bytes);
  DM_TRY(dm_cuda_keep_step(site, bytes, n_bytes, &kept)); /* a copy only where they change */
  if constexpr (is_same<M, AdamMethod>::yes)
    if (is_short(l)) return step_counting<M>(l, site, kept, g, found_inf);
  if constexpr (M::counts) {
    DM_TRY(each.get(l->n_item));
    DM_TRY(dm_launch(ready_kernel<M>, dm_blocks(l->n_item), few(l->n_item), 0, l->item,
                     l->n_item, (const typename M::Options *)kept, found_inf, each.p));
  }
  const Recorded<M> from = {M::counts ? each.p : (const Record<M> *)kept};
  const size_t shared = l->turned ? DM_CHUNK * sizeof(uint16_t) : 0;
  DM_TRY(dm_launch((step_kernel<M, float, Recorded<M>>), (unsigned)l->n_f32,
                   (unsigned)l->threads, shared, l->item, l->chunk, from, g, found_inf));
  return dm_launch((step_kernel<M, double, Recorded<M>>), (unsigned)l->n_f64,
                   (unsigned)l->threads, 0, l->item, l->chunk + l->n_f32, from, g, found_inf);
}

int64_t dm_step_bytes(dm_Method method, const double *options, char bytes[DM_STEP_BYTES]) {
  switch (method) {
#define METHOD(NAME, ...) \
  case DM_METHOD_##NAME:  \
    return bytes_of<NAME##Method>((const NAME##Method::Options *)(const void *)options, bytes);
#include "base/methods.inc"
  default: return 0;
  }
}

dm_status dm_step_launch(const dm_List *l, uint64_t site, const dm_Step *s,
                         const dm_Generator *g) {
  switch (s->method) {
#define METHOD(NAME, ...) \
  case DM_METHOD_##NAME:  \
    return step_all<NAME##Method>(l, site, s, g);
#include "base/methods.inc"
  default: return DM_OK;
  }
}

/* ---- 16 bits to float32 ---- */

/* The position of element i of a tensor in rows, (outer, channels, plane), within its
   channels-last form (outer, plane, channels). */
static __device__ inline int64_t turned(const dm_Item &item, int64_t i) {
  const int64_t line = i / item.plane, c = line % item.channels, at = i - line * item.plane;
  return (line - c) * item.plane + at * item.channels + c;
}

/* Lane 0 = lane 1. Neighbouring threads of a tensor that is turned read `channels` elements
   apart; the elements between are read by their neighbours, from the cache. */
static __global__ void __launch_bounds__(DM_THREADS)
    widen_kernel(const dm_Item *items, const dm_Chunk *chunks) {
  const Part part(items, chunks[blockIdx.x]);
  const dm_Item &item = part.item;
  FOR_FOUR(part, i, m) {
    float x[4], one[4];
    if (item.plane == 0) {
      load4<float>(item.dtype[1], item.lane[1], i, (int)m, item.wide, x);
    } else {
      for (int k = 0; k < 4; k++) {
        const int64_t at = turned(item, k < m ? i + k : i);
        load4<float>(item.dtype[1], item.lane[1], at, 1, false, one);
        x[k] = one[0];
      }
    }
    store4<float>(DM_F32, item.lane[0], i, (int)m, item.wide, x);
  }
}

dm_status dm_widen_launch(const dm_List *l) {
  return dm_launch(widen_kernel, (unsigned)l->n_f32, (unsigned)l->threads, 0, l->item,
                   l->chunk);
}

/* ---- gradient scaling ---- */

/* The minimum. */
struct Smaller {
  __device__ void join(int &s, const int &other) const { s = other < s ? other : s; }
};

/* What a check of gradients finds, on the device: found_inf is set to 1 or 0; where gets the
   first gradient in the list with elements that are not finite, and how many it has. */
struct Finding {
  int *bad;          /* chunks: the number of such elements of each */
  unsigned *arrived; /* dm_is_last_block's */
  int n;             /* chunks of both types */
  float *found_inf;
  int64_t *where;
};

/* One block: joins the chunks, in two fixed passes over them. */
static __device__ inline void join_chunks(const dm_Item *items, const dm_Chunk *chunks,
                                          const Finding &f) {
  int first = INT32_MAX;
  long long count = 0;
  /* First pass: the smallest index of a gradient with bad elements. */
  for (int i = (int)threadIdx.x; i < f.n; i += (int)blockDim.x)
    if (f.bad[i] && items[chunks[i].item].index < first) first = items[chunks[i].item].index;
  first = dm_block_reduce(Smaller(), first);
  /* Second pass: how many bad elements that gradient has. */
  for (int i = (int)threadIdx.x; i < f.n; i += (int)blockDim.x)
    if (f.bad[i] && items[chunks[i].item].index == first) count += f.bad[i];
  count = dm_block_sum(count);
  if (threadIdx.x != 0) return;
  *f.found_inf = first == INT32_MAX ? 0 : 1;
  f.where[0] = first == INT32_MAX ? 0 : first;
  f.where[1] = count;
}

/* Divides the gradients of chunks `from`, `from` + 1, ... by the scale and counts the elements
   that are infinite or NaN afterwards, or exceed the dtype's range. The last block of all
   launches joins the counts. */
template <class C>
static __global__ void __launch_bounds__(DM_THREADS)
    unscale_kernel(const dm_Item *items, const dm_Chunk *chunks, int from, const float *scale,
                   Finding f) {
  const int at = from + (int)blockIdx.x;
  int n = 0;
  if (at < f.n) { /* else the list has no elements at all */
    const Part part(items, chunks[at]);
    const dm_Item &item = part.item;
    const C factor = (C)(1 / *scale),
            top = sizeof(C) == 8 ? (C)DBL_MAX : (C)dm_top_of((dm_DType)item.dtype[0]);
    FOR_FOUR(part, i, m) {
      C x[4];
      load4<C>(item.dtype[0], item.lane[0], i, (int)m, item.wide, x);
      for (int k = 0; k < 4; k++) {
        x[k] *= factor;
        n += k < m && !(dm_abs(x[k]) <= top);
      }
      store4<C>(item.dtype[0], item.lane[0], i, (int)m, item.wide, x);
    }
  }
  n = dm_block_sum(n);
  if (threadIdx.x == 0 && at < f.n) f.bad[at] = n;
  if (dm_is_last_block(f.arrived, f.n > 0 ? (unsigned)f.n : 1u)) join_chunks(items, chunks, f);
}

dm_status dm_unscale_launch(const dm_List *l, uint64_t site, const float *scale,
                            float *found_inf, int64_t *where) {
  dm_Scratch<int> bad;
  unsigned *arrived;
  const int n = l->n_f32 + l->n_f64;
  DM_TRY(bad.get(n));
  DM_TRY(dm_arrivals(site, &arrived));
  const Finding f = {bad.p, arrived, n, found_inf, where};
  DM_TRY(dm_launch(unscale_kernel<float>, (unsigned)(n > 0 ? l->n_f32 : 1),
                   (unsigned)l->threads, 0, l->item, l->chunk, 0, scale, f));
  return dm_launch(unscale_kernel<double>, (unsigned)l->n_f64, (unsigned)l->threads, 0, l->item,
                   l->chunk, l->n_f32, scale, f);
}

/* Notes the step in the scaler's history, one thread. */
static __global__ void note_kernel(int64_t *history, const float *found_inf,
                                   const int64_t *where, const int64_t *updates) {
  if (threadIdx.x == 0) dm_note_step(history, dm_is_set(found_inf), where, *updates + 1);
}

dm_status dm_note_launch(int64_t *history, const float *found_inf, const int64_t *where,
                         const int64_t *updates) {
  return dm_launch(note_kernel, 1, 32, 0, history, found_inf, where, updates);
}

/* Notes the optimizers' steps and moves the scale, one thread: the rules are
   base/step.h's, the same as on the CPU. */
static __global__ void scale_kernel(dm_ScaleWork w, dm_ScalePolicy how) {
  bool found = false;
  if (threadIdx.x != 0) return;
  for (int64_t i = 0; i < w.n; i++) {
    const bool is_set = dm_is_set(w.each[i].found_inf);
    if (w.each[i].history)
      dm_note_step(w.each[i].history, is_set, w.each[i].where, *w.updates + 1);
    found |= is_set;
  }
  dm_move_scale(w.scale, w.tracker, w.floored, found, &how);
  ++*w.updates;
  if (w.seen) *w.seen = *w.floored;
}

dm_status dm_scale_launch(const dm_ScaleWork *w, const dm_ScalePolicy *how) {
  return dm_launch(scale_kernel, 1, 32, 0, *w, *how);
}

/* ---- norms and clipping ---- */

/* How the terms of a p-norm are made and joined; a NaN stays. */
template <class C> struct Norm {
  enum { TWO, ONE, ZERO, TOP, ANY };
  int kind;
  C p;

  __device__ C term(C v) const {
    const C a = dm_abs(v);
    switch (kind) {
    case TWO: return v * v;
    case ZERO: return a > 0 || a != a ? C(1) : C(0);
    case ANY: return dm_power(a, p);
    default: return a;
    }
  }
  __device__ void join(C &s, const C &other) const {
    if (kind == TOP) s = other > s || other != other ? other : s;
    else s += other;
  }
  __device__ C root(C s) const {
    return kind == TWO ? dm_sqrt(s) : kind == ANY ? dm_power(s, 1 / p) : s;
  }
};

template <class C> static Norm<C> norm_of(double p) {
  typedef Norm<C> N;
  Norm<C> n;
  n.kind = p == 2 ? N::TWO : p == 1 ? N::ONE : p == 0 ? N::ZERO : isinf(p) ? N::TOP : N::ANY;
  n.p = (C)p;
  return n;
}

/* The joined terms of this block's chunk, in its first thread. */
template <class C>
static __device__ inline C norm_of_chunk(const dm_Item *items, dm_Chunk chunk,
                                         const Norm<C> &norm) {
  const Part part(items, chunk);
  const dm_Item &item = part.item;
  C sum = 0;
  FOR_FOUR(part, i, m) {
    C x[4];
    load4<C>(item.dtype[0], item.lane[0], i, (int)m, item.wide, x);
    for (int k = 0; k < 4; k++)
      if (k < m) norm.join(sum, norm.term(x[k]));
  }
  return dm_block_reduce(norm, sum);
}

/* The norm of each chunk: part_out (chunks). */
template <class C>
static __global__ void __launch_bounds__(DM_THREADS)
    norm_kernel(const dm_Item *items, const dm_Chunk *chunks, Norm<C> norm, C *part_out) {
  const C sum = norm_of_chunk(items, chunks[blockIdx.x], norm);
  if (threadIdx.x == 0) part_out[blockIdx.x] = sum;
}

/* One block joins the chunks: a warp per item joins its parts to the item's norm (each,
   rounded to the item's compute type), then the norm of these norms goes to total. Joining per
   tensor first is what PyTorch's clip_grad_norm_ does. */
static __device__ inline void join_norms(const dm_Item *items, int n, const Norm<double> &norm,
                                         const Norm<float> &single, const float *part32,
                                         const double *part64, int n_f32, double *each,
                                         bool wide, void *total) {
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  /* A warp joins the parts of one item at a time. */
  for (int i = (int)threadIdx.x / 32; i < n; i += warps) {
    const dm_Item &item = items[i];
    const bool f64 = item.dtype[0] == DM_F64;
    const int parts = (int)((item.numel + DM_CHUNK - 1) / DM_CHUNK);
    double sum = 0;
    for (int k = lane; k < parts; k += 32)
      norm.join(sum, f64 ? part64[item.chunk - n_f32 + k] : (double)part32[item.chunk + k]);
    sum = norm.root(dm_warp_reduce(norm, sum, 32));
    if (lane == 0) each[i] = f64 ? sum : (double)(float)sum;
  }
  /* After this barrier all norms are in `each`. */
  __syncthreads();
  double sum = 0;
  for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
    norm.join(sum, wide ? norm.term(each[i]) : (double)single.term((float)each[i]));
  sum = norm.root(dm_block_reduce(norm, sum));
  if (threadIdx.x != 0) return;
  if (wide) *(double *)total = sum;
  else *(float *)total = (float)sum;
}

static __global__ void __launch_bounds__(DM_THREADS)
    total_kernel(const dm_Item *items, int n, Norm<double> norm, Norm<float> single,
                 const float *part32, const double *part64, int n_f32, double *each, bool wide,
                 void *total) {
  join_norms(items, n, norm, single, part32, part64, n_f32, each, wide, total);
}

/* Both for the 2-norm of a list without float64: the last block joins. */
static __global__ void __launch_bounds__(DM_THREADS)
    norm_two_kernel(const dm_Item *items, const dm_Chunk *chunks, int n, float *part_out,
                    double *each, unsigned *arrived, float *total) {
  const Norm<float> single = {Norm<float>::TWO, 2};
  const Norm<double> norm = {Norm<double>::TWO, 2};
  const float sum = norm_of_chunk(items, chunks[blockIdx.x], single);
  if (threadIdx.x == 0) part_out[blockIdx.x] = sum;
  if (dm_is_last_block(arrived, gridDim.x))
    join_norms(items, n, norm, single, part_out, NULL, 0, each, false, total);
}

dm_status dm_norm_launch(const dm_List *l, uint64_t site, double p, dm_DType dtype,
                         void *total) {
  dm_Scratch<float> part32;
  dm_Scratch<double> part64, each;
  unsigned *arrived;
  DM_TRY(part32.get(l->n_f32));
  DM_TRY(part64.get(l->n_f64));
  DM_TRY(each.get(l->n_item));
  if (p == 2 && dtype == DM_F32 && l->n_f32 > 0) {
    DM_TRY(dm_arrivals(site, &arrived));
    return dm_launch(norm_two_kernel, (unsigned)l->n_f32, (unsigned)l->threads, 0, l->item,
                     l->chunk, l->n_item, part32.p, each.p, arrived, (float *)total);
  }
  DM_TRY(dm_launch(norm_kernel<float>, (unsigned)l->n_f32, (unsigned)l->threads, 0, l->item,
                   l->chunk, norm_of<float>(p), part32.p));
  DM_TRY(dm_launch(norm_kernel<double>, (unsigned)l->n_f64, (unsigned)l->threads, 0, l->item,
                   l->chunk + l->n_f32, norm_of<double>(p), part64.p));
  return dm_launch(total_kernel, 1, few(32 * (int64_t)l->n_item), 0, l->item, l->n_item,
                   norm_of<double>(p), norm_of<float>(p), part32.p, part64.p, l->n_f32, each.p,
                   dtype == DM_F64, total);
}

/* Multiplies elements by min(1, max_norm / (total + 1e-6)), computed in the type T of
   total. */
template <class C, class T> struct Clip {
  const T *total;
  T max_norm;
  struct Ready {
    C factor;
    __device__ C operator()(C v) const { return v * factor; }
  };
  __device__ Ready ready() const { return {(C)factor(max_norm, *total)}; }
  static __device__ float factor(float most, float norm) {
    return dm_clip_factor_f32(most, norm);
  }
  static __device__ double factor(double most, double norm) {
    return dm_clip_factor_f64(most, norm);
  }
};

/* Clamps elements to [-limit, limit]. */
template <class C> struct Clamp {
  C limit;
  __device__ Clamp ready() const { return *this; }
  __device__ C operator()(C v) const { return Formulas<C>::dm_clamp_one(v, limit); }
};

/* Applies Clip or Clamp to every element, one chunk per block. */
template <class Fn, class C>
static __global__ void __launch_bounds__(DM_THREADS)
    map_kernel(const dm_Item *items, const dm_Chunk *chunks, Fn fn) {
  const Part part(items, chunks[blockIdx.x]);
  const dm_Item &item = part.item;
  const auto ready = fn.ready();
  FOR_FOUR(part, i, m) {
    C x[4];
    load4<C>(item.dtype[0], item.lane[0], i, (int)m, item.wide, x);
    for (int k = 0; k < 4; k++) x[k] = ready(x[k]);
    store4<C>(item.dtype[0], item.lane[0], i, (int)m, item.wide, x);
  }
}

template <class F32, class F64> static dm_status map_all(const dm_List *l, F32 f32, F64 f64) {
  DM_TRY(dm_launch((map_kernel<F32, float>), (unsigned)l->n_f32, (unsigned)l->threads, 0,
                   l->item, l->chunk, f32));
  return dm_launch((map_kernel<F64, double>), (unsigned)l->n_f64, (unsigned)l->threads, 0,
                   l->item, l->chunk + l->n_f32, f64);
}

template <class T> static dm_status clip(const dm_List *l, double max_norm, const void *total) {
  const Clip<float, T> f32 = {(const T *)total, (T)max_norm};
  const Clip<double, T> f64 = {(const T *)total, (T)max_norm};
  return map_all(l, f32, f64);
}

dm_status dm_clip_launch(const dm_List *l, double max_norm, dm_DType dtype, const void *total) {
  return dtype == DM_F64 ? clip<double>(l, max_norm, total) : clip<float>(l, max_norm, total);
}

dm_status dm_clamp_launch(const dm_List *l, double limit) {
  const Clamp<float> f32 = {(float)limit};
  const Clamp<double> f64 = {limit};
  return map_all(l, f32, f64);
}
