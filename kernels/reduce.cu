/* Reductions over dims: sum, mean, prod, var, std, norm, logsumexp, any and all. reduce.cuh
   has the kernels, this file the reducers. float32 and 16-bit data are summed in float32, by a
   fixed tree. */
#include "kernels/gemm.h"
#include "kernels/reduce.cuh"

extern "C" {
#include "op/reduce/reduce.h"
}

/* The type that x is read as for a result of dtype `out`: where that is float32 and x is
   float64, it is double. */
static dm_DType compute_dtype(const dm_Tensor *x, dm_DType out) {
  const dm_DType compute = dm_compute_dtype(out);
  return compute == DM_F32 && x->dtype == DM_F64 ? DM_F64 : compute;
}

/* ---- sum, mean, sum_to_size ---- */

/* sum and mean: `by` is 1, or the number of elements. */
template <class C> struct Sum {
  typedef C In;
  typedef C State;
  static const bool positional = false;
  C by;
  __device__ C start() const { return 0; }
  __device__ void add(C &s, C v, int64_t) const { s = dm_plus(s, v); }
  __device__ void join(C &s, C other) const { s = dm_plus(s, other); }
  __device__ void put(C s, const dm_Reduced &out, int64_t i) const {
    dm_store<C>(out.dtype, out.value, i, s / by);
  }
};

/* The sum over the dims in mask, or the mean, in out's dtype. */
static dm_status sum_over(const dm_Tensor *out, const dm_Tensor *x, unsigned mask, bool mean) {
  const int64_t n = !mean ? 1 : out->numel > 0 ? x->numel / out->numel : 0;
  const Sum<float> f32 = {(float)n};
  const Sum<double> f64 = {(double)n};
  const Sum<int64_t> i64 = {1};
  switch (compute_dtype(x, (dm_DType)out->dtype)) {
  case DM_F32: return dm_cuda_reduce<true>(x, mask, f32, dm_reduced(out));
  case DM_F64: return dm_cuda_reduce<true>(x, mask, f64, dm_reduced(out));
  default: return dm_cuda_reduce<true>(x, mask, i64, dm_reduced(out));
  }
}

extern "C" dm_status dm_cuda_sum(dm_Tensor *out, const dm_Tensor *x, unsigned mask) {
  return sum_over(out, x, mask, false);
}
static dm_status sum_dims(dm_Call *c, bool mean) {
  const dm_Tensor *x = c->in[0];
  return sum_over(c->out[0], x, dm_dims_bits(x->ndim, DM_ATTR(dm_SumAttr, c)->dim), mean);
}
DM_CUDA_KERNEL(sum_cuda) { return sum_dims(c, false); }
DM_CUDA_KERNEL(mean_cuda) { return sum_dims(c, true); }
/* Sums the dims along which a gradient was broadcast, down to `size`. */
DM_CUDA_KERNEL(sum_to_size_cuda) {
  const dm_Tensor *x = c->in[0];
  return sum_over(c->out[0], x, dm_repeated_bits(x, &DM_ATTR(dm_SumToSizeAttr, c)->size),
                  false);
}

/* ---- prod ---- */

static __device__ inline float product(float a, float b) { return a * b; }
static __device__ inline double product(double a, double b) { return a * b; }
static __device__ inline int64_t product(int64_t a, int64_t b) {
  return (int64_t)((uint64_t)a * (uint64_t)b);
}
/* The product; integers wrap modulo 2^64. */
template <class C> struct Prod {
  typedef C In;
  typedef C State;
  static const bool positional = false;
  __device__ C start() const { return 1; }
  __device__ void add(C &s, C v, int64_t) const { s = product(s, v); }
  __device__ void join(C &s, C other) const { s = product(s, other); }
  __device__ void put(C s, const dm_Reduced &out, int64_t i) const {
    dm_store<C>(out.dtype, out.value, i, s);
  }
};

DM_CUDA_KERNEL(prod_cuda) {
  const dm_Tensor *x = c->in[0];
  const unsigned mask = dm_dims_bits(x->ndim, DM_ATTR(dm_SumAttr, c)->dim);
  const dm_Reduced out = dm_reduced(c->out[0]);
  switch (compute_dtype(x, (dm_DType)out.dtype)) {
  case DM_F32: return dm_cuda_reduce<false>(x, mask, Prod<float>(), out);
  case DM_F64: return dm_cuda_reduce<false>(x, mask, Prod<double>(), out);
  default: return dm_cuda_reduce<false>(x, mask, Prod<int64_t>(), out);
  }
}

/* ---- var, std: Welford 1962 along a thread, joined as in Chan et al. 1979 ---- */

/* The moments of one output: Welford's update (1962) along a thread, the pairwise formula of
   Chan, Golub & LeVeque (1979) to join threads. Both avoid the cancellation of sum(x^2) - n
   mean^2. */
template <class C> struct Var {
  struct State {
    C mean, m2, n;
  };
  typedef C In;
  static const bool positional = false;
  C by; /* n - correction, not below 0 */
  bool root;
  __device__ State start() const { return {0, 0, 0}; }
  __device__ void add(State &s, C v, int64_t) const {
    const C d = v - s.mean;
    s.n += 1;
    s.mean += d / s.n;
    s.m2 += d * (v - s.mean);
  }
  __device__ void join(State &s, const State &other) const {
    if (other.n == 0) return;
    const C d = other.mean - s.mean, n = s.n + other.n, part = other.n / n;
    s.m2 += other.m2 + d * d * (s.n * part);
    s.mean += d * part;
    s.n = n;
  }
  __device__ void put(const State &s, const dm_Reduced &out, int64_t i) const {
    const C var = s.m2 / by;
    dm_store<C>(out.dtype, out.value, i, root ? dm_sqrt(var) : var);
  }
};

/* The variance, or its root, with PyTorch's `correction`. */
template <class C> static dm_status var_of(dm_Call *c, bool root) {
  const dm_VarAttr *a = DM_ATTR(dm_VarAttr, c);
  const dm_Tensor *x = c->in[0], *out = c->out[0];
  const double n = out->numel > 0 ? (double)(x->numel / out->numel) : 0;
  const Var<C> reducer = {(C)(n > dm_correction(a) ? n - dm_correction(a) : 0), root};
  return dm_cuda_reduce<true>(x, dm_dims_bits(x->ndim, a->dim), reducer, dm_reduced(out));
}
DM_CUDA_KERNEL(var_cuda) {
  const bool root = c->op == &dm_ops[DM_OP_std];
  return c->in[0]->dtype == DM_F64 ? var_of<double>(c, root) : var_of<float>(c, root);
}

/* ---- norm ---- */

/* The 2-norm in float32. Squares may overflow or underflow where their root does not: very
   large and very small elements are scaled by powers of two and summed on their own (J. Blue
   1978). */
struct Norm2 {
  struct State {
    float big, mid, small;
  };
  typedef float In;
  static const bool positional = false;
  __device__ State start() const { return {0, 0, 0}; }
  __device__ void add(State &s, float v, int64_t) const {
    const float a = fabsf(v), big = a * 0x1p-80f, small = a * 0x1p90f;
    if (a > 0x1p48f) s.big += big * big;
    else if (a < 0x1p-48f) s.small += small * small;
    else s.mid += a * a;
  }
  __device__ void join(State &s, const State &other) const {
    s.big += other.big;
    s.mid += other.mid;
    s.small += other.small;
  }
  __device__ void put(const State &s, const dm_Reduced &out, int64_t i) const {
    float norm;
    if (s.big != 0) norm = sqrtf(s.big + s.mid * 0x1p-80f * 0x1p-80f) * 0x1p80f;
    else if (s.mid != 0) norm = sqrtf(s.mid + s.small * 0x1p-90f * 0x1p-90f);
    else norm = sqrtf(s.small) * 0x1p-90f;
    dm_store<float>(out.dtype, out.value, i, norm);
  }
};

/* The p-norm for any finite p: sum(|x|^p)^(1/p), where 0 counts the elements that are not
   0. */
template <class C> struct NormP {
  typedef C In;
  typedef C State;
  static const bool positional = false;
  C p;
  __device__ C start() const { return 0; }
  __device__ void add(C &s, C v, int64_t) const {
    const C a = dm_abs(v);
    s += p == 1 ? a : p == 2 ? a * a : p == 0 ? (C)(a != 0) : dm_power(a, p);
  }
  __device__ void join(C &s, C other) const { s += other; }
  __device__ void put(C s, const dm_Reduced &out, int64_t i) const {
    const C norm = p == 1 || p == 0 ? s : p == 2 ? dm_sqrt(s) : dm_power(s, 1 / p);
    dm_store<C>(out.dtype, out.value, i, norm);
  }
};

/* The norm for p = inf or -inf: the largest or smallest absolute value; a NaN stays. */
template <class C> struct NormInf {
  typedef C In;
  typedef C State;
  static const bool positional = false;
  bool least;
  __device__ C start() const { return least ? (C)INFINITY : 0; }
  __device__ void join(C &s, C other) const {
    if (s == s && ((least ? other < s : other > s) || other != other)) s = other;
  }
  __device__ void add(C &s, C v, int64_t) const { join(s, dm_abs(v)); }
  __device__ void put(C s, const dm_Reduced &out, int64_t i) const {
    dm_store<C>(out.dtype, out.value, i, s);
  }
};

template <class C> static dm_status norm_of(dm_Call *c, unsigned mask, double p) {
  const NormInf<C> extent = {p < 0};
  const NormP<C> sum = {(C)p};
  if (isinf(p)) return dm_cuda_reduce<false>(c->in[0], mask, extent, dm_reduced(c->out[0]));
  return dm_cuda_reduce<false>(c->in[0], mask, sum, dm_reduced(c->out[0]));
}
/* float32 and 16 bits take Blue's sums for p = 2. */
DM_CUDA_KERNEL(norm_cuda) {
  const dm_NormAttr *a = DM_ATTR(dm_NormAttr, c);
  const unsigned mask = dm_dims_bits(c->in[0]->ndim, a->dim);
  if (compute_dtype(c->in[0], (dm_DType)c->out[0]->dtype) == DM_F64)
    return norm_of<double>(c, mask, a->p);
  if (a->p != 2) return norm_of<float>(c, mask, a->p);
  return dm_cuda_reduce<true>(c->in[0], mask, Norm2(), dm_reduced(c->out[0]));
}

/* ---- logsumexp ---- */

/* logsumexp: the online sum of reduce.cuh, whose result is top + log(sum). */
template <class C> struct LogSumExp : dm_LogSum<C> {
  typedef C In;
  static const bool positional = false;
  __device__ void put(const typename dm_LogSum<C>::State &s, const dm_Reduced &out,
                      int64_t i) const {
    dm_store<C>(out.dtype, out.value, i, s.top + dm_log(s.sum));
  }
};
DM_CUDA_KERNEL(logsumexp_cuda) {
  const dm_Tensor *x = c->in[0];
  const unsigned mask = dm_dims_bits(x->ndim, DM_ATTR(dm_DimsAttr, c)->dim);
  if (x->dtype == DM_F64)
    return dm_cuda_reduce<false>(x, mask, LogSumExp<double>(), dm_reduced(c->out[0]));
  return dm_cuda_reduce<false>(x, mask, LogSumExp<float>(), dm_reduced(c->out[0]));
}

/* ---- any, all ---- */

/* any and all as one reducer: looks for an element whose truth is `sought`. any seeks true;
   all seeks false and is true where none is found. */
template <class C> struct Seek {
  typedef C In;
  typedef unsigned State;
  static const bool positional = false;
  bool sought;
  __device__ unsigned start() const { return 0; }
  __device__ void add(unsigned &s, C v, int64_t) const { s |= (v != 0) == sought; }
  __device__ void join(unsigned &s, unsigned other) const { s |= other; }
  __device__ void put(unsigned s, const dm_Reduced &out, int64_t i) const {
    ((uint8_t *)out.value)[i] = (s != 0) == sought;
  }
};

/* any looks for a true element, all for a false one. */
DM_CUDA_KERNEL(any_cuda) {
  const dm_Tensor *x = c->in[0];
  const unsigned mask = dm_dims_bits(x->ndim, DM_ATTR(dm_DimsAttr, c)->dim);
  const dm_Reduced out = dm_reduced(c->out[0]);    /* bool or uint8: 0 or 1 */
  const bool sought = c->op == &dm_ops[DM_OP_any]; /* all: is there a 0? */
  const Seek<float> f32 = {sought};
  const Seek<double> f64 = {sought};
  const Seek<int64_t> i64 = {sought};
  switch (dm_compute_dtype((dm_DType)x->dtype)) {
  case DM_F32: return dm_cuda_reduce<false>(x, mask, f32, out);
  case DM_F64: return dm_cuda_reduce<false>(x, mask, f64, out);
  default: return dm_cuda_reduce<true>(x, mask, i64, out);
  }
}
