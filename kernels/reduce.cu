/* Reductions over dims; how they run is in reduce.cuh. float32 and 16-bit data are
   added up in float32, in trees. */
#include "kernels/reduce.cuh"

extern "C" {
#include "op/reduce.h"
}

/* What x is read as for a result of that dtype; double wherever there is one. */
static dm_DType compute_dtype(const dm_Tensor *x, dm_DType out) {
  const dm_DType compute = dm_compute_dtype(out);
  return compute == DM_F32 && x->dtype == DM_F64 ? DM_F64 : compute;
}

/* ---- sum, mean, sum_to_size ---- */

static __device__ inline void dm_wrap_add(float &s, float v) { s += v; }
static __device__ inline void dm_wrap_add(double &s, double v) { s += v; }
static __device__ inline void dm_wrap_add(int64_t &s, int64_t v) {
  s = (int64_t)((uint64_t)s + (uint64_t)v);
}

template <class C> struct Sum {
  typedef C In;
  typedef C State;
  static const bool positional = false;
  C by;
  __device__ C start() const { return 0; }
  __device__ void add(C &s, C v, int64_t) const { dm_wrap_add(s, v); }
  __device__ void join(C &s, C other) const { dm_wrap_add(s, other); }
  __device__ void put(C s, const dm_Reduced &out, int64_t i) const {
    dm_store<C>(out.dtype, out.value, i, s / by);
  }
};

static dm_status sum_over(dm_Call *c, unsigned mask, bool mean) {
  const dm_Tensor *x = c->in[0], *out = c->out[0];
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

DM_CUDA_KERNEL(sum_cuda) {
  return sum_over(c, dm_dims_bits(c->in[0]->ndim, DM_ATTR(dm_SumAttr, c)->dims), false);
}
DM_CUDA_KERNEL(mean_cuda) {
  return sum_over(c, dm_dims_bits(c->in[0]->ndim, DM_ATTR(dm_SumAttr, c)->dims), true);
}
DM_CUDA_KERNEL(sum_to_size_cuda) {
  return sum_over(c, dm_repeated_bits(c->in[0], DM_ATTR(dm_Ints, c)), false);
}

/* ---- any, all ---- */

/* Is there an element whose truth is `sought`? */
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

static dm_status seek(dm_Call *c, bool sought) {
  const dm_Tensor *x = c->in[0];
  const unsigned mask = dm_dims_bits(x->ndim, DM_ATTR(dm_DimsAttr, c)->dims);
  const dm_Reduced out = dm_reduced(c->out[0]); /* bool or uint8: 0 or 1 */
  const Seek<float> f32 = {sought};
  const Seek<double> f64 = {sought};
  const Seek<int64_t> i64 = {sought};
  switch (dm_compute_dtype((dm_DType)x->dtype)) {
  case DM_F32: return dm_cuda_reduce<false>(x, mask, f32, out);
  case DM_F64: return dm_cuda_reduce<false>(x, mask, f64, out);
  default: return dm_cuda_reduce<false>(x, mask, i64, out);
  }
}
DM_CUDA_KERNEL(any_cuda) { return seek(c, true); }
DM_CUDA_KERNEL(all_cuda) { return seek(c, false); }
