/* max, min, amax, amin, argmax and argmin over dims. NaN counts as larger and smaller than
   everything, as in PyTorch; of equal elements the first position is returned. */
#include "kernels/reduce.cuh"

extern "C" {
#include "op/reduce/reduce.h"
}

/* The reducer: the best element so far and its position. Comparing positions on ties makes
   join commute, so that the order of reduction does not matter. A NaN beats every number, and
   of several NaN the first one stays. */
template <class C> struct Extreme {
  struct State {
    C best;
    int64_t at; /* -1: none yet */
  };
  typedef C In;
  static const bool positional = true;
  bool least;
  __device__ State start() const { return {0, -1}; }
  __device__ void add(State &s, C v, int64_t at) const {
    const bool nan = v != v, had_nan = s.best != s.best;
    const bool better = nan ? !had_nan : !had_nan && (least ? v < s.best : v > s.best);
    const bool equal = nan ? had_nan : v == s.best;
    if (s.at < 0 || better || (equal && at < s.at)) {
      s.best = v;
      s.at = at;
    }
  }
  __device__ void join(State &s, const State &other) const {
    if (other.at >= 0) add(s, other.best, other.at);
  }
  __device__ void put(const State &s, const dm_Reduced &out, int64_t i) const {
    if (out.value) dm_store<C>(out.dtype, out.value, i, s.best);
    if (out.index) out.index[i] = s.at + out.base;
  }
};

/* Reduces over the dims in mask; value or index may be NULL. */
static dm_status choose(dm_Call *c, dm_Tensor *value, dm_Tensor *index, unsigned mask) {
  const dm_Tensor *x = c->in[0];
  const dm_OpId id = dm_op_id(c->op);
  const bool least = id == DM_OP_min || id == DM_OP_amin || id == DM_OP_argmin;
  const dm_Reduced out = {value ? dm_tensor_data(value) : NULL,
                          index ? (int64_t *)dm_tensor_data(index) : NULL, (int)x->dtype,
                          c->base};
  const Extreme<float> f32 = {least};
  const Extreme<double> f64 = {least};
  const Extreme<int64_t> i64 = {least};
  switch (dm_compute_dtype((dm_DType)x->dtype)) {
  case DM_F32: return dm_cuda_reduce<true>(x, mask, f32, out);
  case DM_F64: return dm_cuda_reduce<false>(x, mask, f64, out);
  default: return dm_cuda_reduce<false>(x, mask, i64, out);
  }
}

/* The dim of the attribute as a mask; no dim means all of them. */
static unsigned dim_mask(dm_Call *c) {
  const dm_OptInt dim = DM_ATTR(dm_DimAttr, c)->dim;
  const dm_Ints dims = {dim.set ? 1 : -1, {dim.v}};
  return dm_dims_bits(c->in[0]->ndim, dims);
}

DM_CUDA_KERNEL(max_cuda) {
  return choose(c, c->out[0], c->n_out == 2 ? c->out[1] : NULL, dim_mask(c));
}
DM_CUDA_KERNEL(argmax_cuda) { return choose(c, NULL, c->out[0], dim_mask(c)); }
DM_CUDA_KERNEL(amax_cuda) {
  const unsigned mask = dm_dims_bits(c->in[0]->ndim, DM_ATTR(dm_DimsAttr, c)->dim);
  return choose(c, c->out[0], NULL, mask);
}
