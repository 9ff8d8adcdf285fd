/* Random tensors. They have the values that the CPU's kernels give, from the same words of the
   same generator (Philox4x32-10, J. Salmon et al. 2011; op/random/random.h).

   Seed and counter are in device memory. A draw copies them and advances the counter in stream
   order, so that the launches of a training step are the same each time and can be captured;
   the host keeps the same count without asking. A thread computes one counter: four elements,
   or two of float64. */
#include "kernels/graph.h"
#include "kernels/keep.h"
#include "kernels/own.cuh"
#include "kernels/pointwise.cuh"

extern "C" {
#include "base/gamma.h"
#include "op/random/random.h"
}

/* ---- the generator ---- */

enum { GENERATOR_SITE = 8 };

/* *out gets the generator before the draw, and the generator advances by n counters. words:
   where its offset goes in words, four a counter; or NULL. One thread works; a warp is the
   smallest launch. */
static __global__ void advance_kernel(dm_Generator *generator, uint64_t n, dm_Generator *out,
                                      uint64_t *words) {
  if (threadIdx.x != 0) return;
  *out = *generator;
  if (words) *words = 4 * generator->offset;
  generator->offset += n;
}

/* Each stream keeps its own copy of the generator (keep.c). The host sends it again only where
   something else has moved its own: a new seed or state, the CPU, or another stream. */
static dm_status take_counters(int64_t n, int64_t per_counter, dm_Generator *out,
                               uint64_t *words) {
  const dm_Generator *host = dm_thread_state()->generator,
                     was = dm_take_counters(n, per_counter);
  const uint64_t site = dm_site(GENERATOR_SITE, (uint64_t)(uintptr_t)host);
  void *kept;
  dm_cuda_keep_begin();
  dm_status st = dm_graph_is_capturing() ? dm_graph_keep_generator(host, &was, &kept)
                                         : dm_cuda_keep(site, &was, sizeof was, &kept);
  if (st == DM_OK)
    st = dm_launch(advance_kernel, 1, 32, 0, (dm_Generator *)kept, host->offset - was.offset,
                   out, words);
  if (st == DM_OK && !dm_graph_is_capturing()) dm_cuda_kept_is(kept, host, sizeof *host);
  dm_cuda_keep_end();
  return st;
}
dm_status dm_cuda_take_counters(int64_t n, int64_t per_counter, dm_Generator *out) {
  return take_counters(n, per_counter, out, NULL);
}

/* The generator at the start of a draw, in scratch memory until the launches that read it are
   queued. */
typedef dm_Scratch<dm_Generator> Start;

static dm_status take(int64_t n, int64_t per_counter, Start *start) {
  if (n == 0) return DM_OK;
  DM_TRY(start->get(1));
  return dm_cuda_take_counters(n, per_counter, start->p);
}

/* ---- a draw over a tensor: one counter a thread ---- */

/* shift + scale v with both roundings, as on the CPU; the intrinsics are never fused. */
static __device__ inline float affine(float shift, float scale, float v) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(shift, __fmul_rn(scale, v));
#else
  return shift + scale * v;
#endif
}
static __device__ inline double affine(double shift, double scale, double v) {
#ifdef __CUDA_ARCH__
  return __dadd_rn(shift, __dmul_rn(scale, v));
#else
  return shift + scale * v;
#endif
}

/* Functors make a result's element of a random number u and the input's element x. `reads`: x
   is used; `normal`: u is normal rather than uniform. */
template <bool NORMAL> struct Affine {
  static const bool reads = false, normal = NORMAL;
  float shift, scale;
  uint32_t bits; /* of u that are kept */
  __device__ float operator()(float u, float, int64_t) const {
    return affine(shift, scale, dm_uniform_cut(u, bits));
  }
};
template <class C> struct Below { /* bernoulli with one p */
  static const bool reads = false, normal = false;
  float p;
  __device__ C operator()(float u, C, int64_t) const { return u < p ? C(1) : C(0); }
};
/* Bernoulli with a probability per element; one outside [0, 1] is noted as a fault. */
template <class C> struct BelowEach {
  static const bool reads = true, normal = false;
  dm_Fault *fault;
  int op, base;
  __device__ C operator()(float u, C x, int64_t i) const {
    if (!(x >= C(0) && x <= C(1)))
      dm_device_fault(fault, DM_FAULT_PROBABILITY, op, base, i, 0, 0);
    return u < (float)x ? C(1) : C(0);
  }
};
/* Dropout: the scaled element, or 0 where u < p. */
template <class C> struct Drop {
  static const bool reads = true, normal = false;
  float p;
  C scale;
  __device__ C operator()(float u, C x, int64_t) const { return u < p ? C(0) : x * scale; }
};

/* The four numbers of a counter; normal ones are made in pairs (Box & Muller 1958). */
template <bool NORMAL>
static __device__ inline void draw4(const dm_Generator &g, int64_t counter, float u[4]) {
  const dm_Philox w = dm_philox(g.seed, g.offset + (uint64_t)counter);
  for (int i = 0; i < 4; i += 2) {
    if (NORMAL) {
      dm_normal_f32(w.v[i], w.v[i + 1], &u[i], &u[i + 1]);
    } else {
      u[i] = dm_uniform_f32(w.v[i]);
      u[i + 1] = dm_uniform_f32(w.v[i + 1]);
    }
  }
}

/* Dense elements of one float dtype: one counter per thread and step, four elements as one
   word. */
template <class Fn, class C, class T>
static __global__ void __launch_bounds__(DM_THREADS)
    dense_draw_kernel(Fn fn, T *out, const T *in, const dm_Generator *start, int64_t n) {
  const dm_Generator g = *start;
  /* Thread k computes counter k, whatever the launch: the values depend on nothing else. */
  for (int64_t k = dm_thread(); k * 4 < n; k += dm_threads()) {
    const int m = n - k * 4 < 4 ? (int)(n - k * 4) : 4;
    float u[4];
    C x[4] = {C(0), C(0), C(0), C(0)}, y[4];
    draw4<Fn::normal>(g, k, u);
    if (Fn::reads) dm_widen_run<C, T, 4>(in + k * 4, m, x);
    for (int i = 0; i < 4; i++) y[i] = i < m ? fn(u[i], x[i], k * 4 + i) : C(0);
    dm_narrow_run<C, T, 4>(out + k * 4, m, y);
  }
}

/* The same for any strides and dtypes. */
template <class Fn, class C>
static __global__ void __launch_bounds__(DM_THREADS)
    strided_draw_kernel(Fn fn, void *out, int dtype, const void *in, int in_dtype,
                        const dm_Generator *start, dm_Walk<2> walk) {
  const dm_Generator g = *start;
  for (int64_t k = dm_thread(); k * 4 < walk.numel; k += dm_threads()) {
    float u[4];
    draw4<Fn::normal>(g, k, u);
    for (int i = 0; i < 4; i++) {
      int64_t off[2];
      if (k * 4 + i >= walk.numel) break;
      walk.at(k * 4 + i, off);
      const C x = Fn::reads ? dm_load<C>(in_dtype, in, off[1]) : C(0);
      dm_store<C>(dtype, out, off[0], fn(u[i], x, k * 4 + i));
    }
  }
}

template <class C, class T, class Fn>
static dm_status dense_draw(dm_Tensor *out, dm_Tensor *in, Fn fn, const dm_Generator *g) {
  return dm_launch((dense_draw_kernel<Fn, C, T>), dm_blocks(dm_ceil_div(out->numel, 4)),
                   DM_THREADS, 0, fn, (T *)dm_tensor_data(out), (const T *)dm_tensor_data(in),
                   g, out->numel);
}

/* out = fn(u, in). For a functor that reads nothing `in` may be out. */
template <class C, class Fn>
static dm_status draw(dm_Tensor *out, dm_Tensor *in, Fn fn, const dm_Generator *g) {
  dm_Tensor *both[2] = {out, in};
  void *data[2];
  if (out->numel == 0) return DM_OK;
  if (out->dtype == in->dtype && dm_tensor_is_contiguous(out) && dm_tensor_is_contiguous(in) &&
      dm_aligned(dm_tensor_data(out)) && dm_aligned(dm_tensor_data(in))) {
    if constexpr (sizeof(C) == 8) {
      if (out->dtype == DM_F64) return dense_draw<C, double>(out, in, fn, g);
    } else {
#define ROW(X, E, S, ...) \
  case DM_##E: return dense_draw<C, dm_##S>(out, in, fn, g);
      switch ((dm_DType)out->dtype) {
        DM_LOW_DTYPES(ROW, )
      case DM_F32: return dense_draw<C, float>(out, in, fn, g);
      default: break;
      }
#undef ROW
    }
  }
  const dm_Walk<2> walk = dm_walk<2>(both, data);
  return dm_launch((strided_draw_kernel<Fn, C>), dm_blocks(dm_ceil_div(out->numel, 4)),
                   DM_THREADS, 0, fn, data[0], (int)out->dtype, data[1], (int)in->dtype, g,
                   walk);
}

/* float64: one counter per thread and step, two words for each of two elements. */
static __global__ void __launch_bounds__(DM_THREADS)
    draw_f64_kernel(double *out, double shift, double scale, const dm_Generator *start,
                    bool normal, dm_Walk<1> walk) {
  const dm_Generator g = *start;
  for (int64_t k = dm_thread(); k * 2 < walk.numel; k += dm_threads()) {
    const dm_Philox w = dm_philox(g.seed, g.offset + (uint64_t)k);
    double u[2] = {dm_uniform_f64(w.v[0], w.v[1]), dm_uniform_f64(w.v[2], w.v[3])};
    if (normal) dm_normal_f64(&u[0], &u[1]);
    for (int i = 0; i < 2; i++) {
      int64_t off[1];
      if (k * 2 + i >= walk.numel) break;
      walk.at(k * 2 + i, off);
      out[off[0]] = affine(shift, scale, u[i]);
    }
  }
}

/* t = shift + scale u with u uniform or normal, in any float dtype and strides. */
static dm_status draw_affine(dm_Tensor *t, bool normal, double shift, double scale) {
  const float a = (float)shift, b = (float)scale;
  Start g;
  DM_TRY(take(t->numel, t->dtype == DM_F64 ? 2 : 4, &g));
  if (t->dtype != DM_F64)
    return normal ? draw<float>(t, t, Affine<true>{a, b, ~0u}, g.p)
                  : draw<float>(t, t, Affine<false>{a, b, dm_uniform_bits(t->dtype)}, g.p);
  if (t->numel == 0) return DM_OK;
  void *data[1];
  const dm_Walk<1> walk = dm_walk<1>(&t, data);
  return dm_launch(draw_f64_kernel, dm_blocks(dm_ceil_div(t->numel, 2)), DM_THREADS, 0,
                   (double *)data[0], shift, scale, g.p, normal, walk);
}

/* Uniform on [0, 1), standard normal, uniform on [from, to), and normal with mean and std. */
DM_CUDA_KERNEL(rand_cuda) { return draw_affine(c->out[0], false, 0, 1); }
DM_CUDA_KERNEL(randn_cuda) { return draw_affine(c->out[0], true, 0, 1); }
DM_CUDA_KERNEL(uniform_cuda) {
  const dm_UniformAttr *a = DM_ATTR(dm_UniformAttr, c);
  return draw_affine(c->out[0], false, a->from, a->to - a->from);
}
DM_CUDA_KERNEL(normal_cuda) {
  const dm_NormalAttr *a = DM_ATTR(dm_NormalAttr, c);
  return draw_affine(c->out[0], true, a->mean, a->std);
}

/* If the attribute p is set, x only gives shape and dtype; otherwise x holds the
   probabilities. */
DM_CUDA_KERNEL(bernoulli_cuda) {
  const dm_OptNum p = DM_ATTR(dm_BernoulliAttr, c)->p;
  dm_Tensor *out = c->out[0], *x = c->in[0];
  Start g;
  DM_TRY(take(x->numel, 4, &g));
  const int op = (int)dm_op_id(c->op);
  if (p.set && out->dtype == DM_F64)
    return draw<double>(out, out, Below<double>{(float)p.v}, g.p);
  if (p.set) return draw<float>(out, out, Below<float>{(float)p.v}, g.p);
  if (x->dtype == DM_F64)
    return draw<double>(out, x, BelowEach<double>{dm_cuda_faults(), op, c->base}, g.p);
  return draw<float>(out, x, BelowEach<float>{dm_cuda_faults(), op, c->base}, g.p);
}

/* Gamma numbers of the shapes in the second tensor, a counter an element, in float64. */
static __global__ void __launch_bounds__(DM_THREADS)
    gamma_f64_kernel(void *out, int dtype, const void *in, int in_dtype,
                     const dm_Generator *start, dm_Walk<2> walk) {
  const dm_Generator g = *start;
  for (int64_t i = dm_thread(); i < walk.numel; i += dm_threads()) {
    int64_t off[2];
    walk.at(i, off);
    dm_store<double>(dtype, out, off[0],
                     dm_gamma_draw(g, i, dm_load<double>(in_dtype, in, off[1])));
  }
}

DM_CUDA_KERNEL(standard_gamma_cuda) {
  dm_Tensor *both[2] = {c->out[0], c->in[0]};
  void *data[2];
  Start g;
  if (both[0]->numel == 0) return DM_OK;
  DM_TRY(take(both[0]->numel, 1, &g));
  const dm_Walk<2> walk = dm_walk<2>(both, data);
  return dm_launch(gamma_f64_kernel, dm_blocks(walk.numel), DM_THREADS, 0, data[0],
                   (int)both[0]->dtype, data[1], (int)both[1]->dtype, g.p, walk);
}

/* Dropout by a generator as it was when the mask was first drawn: forward and gradient compute
   the same mask instead of storing it. */
DM_CUDA_KERNEL(drop_cuda) {
  const dm_DropAttr *a = DM_ATTR(dm_DropAttr, c);
  dm_Tensor *out = c->out[0], *x = c->in[0];
  const dm_Tensor *counters = c->n_in > 1 ? c->in[1] : NULL;
  const dm_Generator given = {(uint64_t)a->seed, (uint64_t)a->offset}, *g;
  Start sent;
  if (counters) {
    g = (const dm_Generator *)dm_tensor_data(counters);
  } else {
    DM_TRY(sent.get(1));
    DM_TRY(dm_cuda_send(sent.p, &given, sizeof given));
    g = sent.p;
  }
  const double scale = dm_drop_scale(a->p);
  if (out->dtype == DM_F64) return draw<double>(out, x, Drop<double>{(float)a->p, scale}, g);
  return draw<float>(out, x, Drop<float>{(float)a->p, (float)scale}, g);
}

/* Takes a draw's seed and counter as a tensor, without the host reading them. */
DM_CUDA_KERNEL(counters_cuda) {
  uint64_t *const out = (uint64_t *)dm_tensor_data(c->out[0]);
  return take_counters(DM_ATTR(dm_CountersAttr, c)->n, 4, (dm_Generator *)out, out + 2);
}

/* ---- integers ---- */

/* Two words per element, scaled to low .. low + count - 1, as on the CPU; count 0: 2^64. */
static __global__ void __launch_bounds__(DM_THREADS)
    randint_kernel(void *out, int dtype, const dm_Generator *start, int64_t low, uint64_t count,
                   int64_t n) {
  const dm_Generator g = *start;
  for (int64_t i = dm_thread(); i < n; i += dm_threads()) {
    const uint64_t word = dm_draw_u64(g, i), u = count ? dm_scale_u64(word, count) : word;
    dm_store<int64_t>(dtype, out, i, (int64_t)((uint64_t)low + u));
  }
}

/* Integers from low to high, both included. */
DM_CUDA_KERNEL(randint_cuda) {
  const dm_RandintAttr *a = DM_ATTR(dm_RandintAttr, c);
  dm_Tensor *t = c->out[0];
  Start g;
  DM_TRY(take(t->numel, 2, &g));
  return dm_launch(randint_kernel, dm_blocks(t->numel), DM_THREADS, 0, dm_tensor_data(t),
                   (int)t->dtype, g.p, a->low, (uint64_t)a->high - (uint64_t)a->low + 1,
                   t->numel);
}

/* Each swap of a shuffle depends on the one before, so the host does it. The copy is from
   pageable memory: CUDA has read it when the call returns, and waits for no other work. */
DM_CUDA_KERNEL(randperm_cuda) {
  dm_RandpermAttr a = *DM_ATTR(dm_RandpermAttr, c);
  const dm_Device cpu = {DM_CPU, 0};
  dm_Tensor *t = NULL;
  DM_TRY(dm_graph_refuse("the order of a shuffle, which the host makes,"));
  a.dtype = c->out[0]->dtype;
  a.device = dm_device_code(cpu);
  DM_TRY(dm_call(DM_OP_randperm, 0, NULL, &a, &t));
  const cudaError_t e =
      cudaMemcpyAsync(dm_tensor_data(c->out[0]), dm_tensor_data(t), (size_t)dm_tensor_bytes(t),
                      cudaMemcpyHostToDevice, dm_cuda_stream());
  dm_tensor_unref(&t);
  return dm_cuda_fail(e, "cudaMemcpyAsync");
}

/* ---- multinomial: in double, row by row as on the CPU ---- */

/* Weights (rows, n) of any strides and float dtype, and where a row with bad weights is
   noted. */
struct Weights {
  const void *data;
  int dtype;
  int64_t rows, n, row_stride, stride, k; /* k samples per row */
  dm_Fault *fault;
  int op, base;

  __device__ double at(int64_t row, int64_t i) const {
    return dm_load<double>(dtype, data, row * row_stride + i * stride);
  }
  __device__ bool bad(double w) const { return !(w >= 0) || w == (double)INFINITY; }
  __device__ void note(int64_t row) const {
    dm_device_fault(fault, DM_FAULT_WEIGHTS, op, base, row, 0, 0);
  }
};

/* One block per row: the running sums of its weights, and the index of the last weight above
   0. The first thread adds one weight after another, as on the CPU; the others load and store
   tiles. */
static __global__ void __launch_bounds__(DM_THREADS)
    sums_kernel(Weights w, double *sums, int64_t *last) {
  DM_SHARED(double, tile, DM_THREADS);
  const int64_t row = blockIdx.x;
  const int t = (int)threadIdx.x;
  double sum = 0;
  int64_t above = 0;
  bool bad = false;
  /* Tiles of DM_THREADS weights, so that the serial sum reads shared memory. */
  for (int64_t from = 0; from < w.n; from += DM_THREADS) {
    const int m = w.n - from < DM_THREADS ? (int)(w.n - from) : (int)DM_THREADS;
    if (t < m) tile[t] = w.at(row, from + t);
    __syncthreads();
    if (t == 0) {
      for (int i = 0; i < m; i++) {
        const double v = tile[i];
        bad = bad || w.bad(v);
        if (v > 0) above = from + i;
        sum += v;
        tile[i] = sum;
      }
    }
    __syncthreads();
    if (t < m) sums[row * w.n + from + t] = tile[t];
    __syncthreads();
  }
  if (t != 0) return;
  last[row] = above;
  if (bad || !(sum > 0) || sum == (double)INFINITY) w.note(row);
}

/* With replacement: one thread per sample draws a number below the row's total and finds it in
   the running sums by binary search. */
static __global__ void __launch_bounds__(DM_THREADS)
    sample_again_kernel(Weights w, const double *sums, const int64_t *last,
                        const dm_Generator *start, int64_t *out) {
  const dm_Generator g = *start;
  for (int64_t s = dm_thread(); s < w.rows * w.k; s += dm_threads()) {
    const int64_t row = s / w.k;
    const double *sum = sums + row * w.n;
    out[s] = dm_find_sum(sum, last[row], dm_draw_f64(g, s) * sum[w.n - 1]) + w.base;
  }
}

/* Without replacement, first launch: one block per row computes for each item the time at
   which it arrives, exponentially distributed with its weight as the rate. */
static __global__ void __launch_bounds__(DM_THREADS)
    race_kernel(Weights w, const dm_Generator *start, double *times) {
  const dm_Generator g = *start;
  DM_SHARED(int, above, DM_THREADS);
  const int64_t row = blockIdx.x;
  const int t = (int)threadIdx.x;
  int mine = 0;
  bool bad = false;
  for (int64_t i = t; i < w.n; i += DM_THREADS) {
    const double v = w.at(row, i);
    bad = bad || w.bad(v);
    mine += v > 0;
    times[row * w.n + i] = dm_race_time(v, dm_draw_f64(g, row * w.n + i));
  }
  above[t] = mine;
  __syncthreads();
  if (bad) w.note(row);
  if (t != 0) return;
  int64_t n_above = 0;
  for (int i = 0; i < DM_THREADS; i++) n_above += above[i];
  if (n_above < w.k) w.note(row);
}

/* Second launch: the k items that arrive first are the samples, in order of arrival
   (Efraimidis & Spirakis 2006). A thread counts the items that arrive before its own;
   blockIdx.y counts the blocks of a row. */
static __global__ void __launch_bounds__(DM_THREADS)
    sample_once_kernel(Weights w, const double *times, int64_t *out) {
  DM_SHARED(double, tile, DM_THREADS);
  const int t = (int)threadIdx.x;
  const int64_t row = blockIdx.x, i = (int64_t)blockIdx.y * DM_THREADS + t;
  const double *time = times + row * w.n, mine = i < w.n ? time[i] : 0;
  int64_t rank = 0;
  /* Every item is compared with all of the row, a tile at a time. */
  for (int64_t from = 0; from < w.n; from += DM_THREADS) {
    const int m = w.n - from < DM_THREADS ? (int)(w.n - from) : (int)DM_THREADS;
    if (t < m) tile[t] = time[from + t];
    __syncthreads();
    for (int j = 0; j < m; j++) {
      const double other = tile[j];
      rank += other < mine || (other == mine && from + j < i);
    }
    __syncthreads();
  }
  if (i < w.n && rank < w.k) out[row * w.k + rank] = i + w.base;
}

/* Samples with replacement; sums is a buffer of (rows, n). */
static dm_status sample_again(Weights w, double *sums, const dm_Generator *g, int64_t *out) {
  void *last;
  const int64_t bytes = w.rows * (int64_t)sizeof(int64_t);
  DM_TRY(dm_cuda_scratch(bytes, &last));
  dm_status st =
      dm_launch(sums_kernel, (unsigned)w.rows, DM_THREADS, 0, w, sums, (int64_t *)last);
  if (st == DM_OK)
    st = dm_launch(sample_again_kernel, dm_blocks(w.rows * w.k), DM_THREADS, 0, w, sums,
                   (const int64_t *)last, g, out);
  dm_cuda_scratch_free(last, bytes);
  return st;
}

/* Samples without replacement; times is a buffer of (rows, n). It makes n^2 comparisons per
   row, in parallel. */
static dm_status sample_once(Weights w, double *times, const dm_Generator *g, int64_t *out) {
  const dim3 grid((unsigned)w.rows, (unsigned)dm_ceil_div(w.n, DM_THREADS));
  DM_TRY(dm_launch(race_kernel, (unsigned)w.rows, DM_THREADS, 0, w, g, times));
  return dm_launch(sample_once_kernel, grid, DM_THREADS, 0, w, times, out);
}

/* A vector x (n) is one row. */
DM_CUDA_KERNEL(multinomial_cuda) {
  const dm_MultinomialAttr *a = DM_ATTR(dm_MultinomialAttr, c);
  const dm_Tensor *x = c->in[0];
  const int last = x->ndim - 1;
  const Weights w = {dm_tensor_data(x),
                     (int)x->dtype,
                     last > 0 ? x->shape[0] : 1,
                     x->shape[last],
                     last > 0 ? x->stride[0] : 0,
                     x->stride[last],
                     a->num_samples,
                     dm_cuda_faults(),
                     (int)dm_op_id(c->op),
                     c->base};
  const int64_t bytes = w.rows * w.n * (int64_t)sizeof(double);
  void *scratch;
  if (w.rows == 0) return DM_OK;
  if (w.n == 0)
    return dm_fail(DM_EARG, "multinomial: the weights sum to 0, wanted more than 0");
  Start g;
  DM_TRY(take(w.rows * (a->replacement ? w.k : w.n), 2, &g));
  int64_t *out = (int64_t *)dm_tensor_data(c->out[0]);
  DM_TRY(dm_cuda_scratch(bytes, &scratch));
  const dm_status st = a->replacement ? sample_again(w, (double *)scratch, g.p, out)
                                      : sample_once(w, (double *)scratch, g.p, out);
  dm_cuda_scratch_free(scratch, bytes);
  return st;
}
