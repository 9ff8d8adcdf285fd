/* The pointwise ops of up to three operands (where, clamp, lerp, addcmul, Huber losses). Their
   formulas are the CPU's, base/triple.inc. p and q are bounds or a factor; for integers they
   saturate in int64. */
#include "kernels/own.cuh"
#include "kernels/pointwise.cuh"
#include "kernels/vector.cuh"

extern "C" {
#include "op/pointwise/ternary.h"
}

/* Each row becomes a functor over a float type and one over int64. */
#define U(x) ((uint64_t)(x))
#define hypot exact_hypot
#define TRIPLE(NAME, N, FLOAT_EXPR, INT_EXPR)                             \
  template <class real> struct NAME##_triple {                            \
    real p, q;                                                            \
    __device__ real operator()(const real *x) const {                     \
      const real a = x[0], b = x[N > 1 ? 1 : 0], c = x[N > 2 ? 2 : 0];    \
      (void)b, (void)c;                                                   \
      return (real)(FLOAT_EXPR);                                          \
    }                                                                     \
  };                                                                      \
  template <> struct NAME##_triple<int64_t> {                             \
    int64_t p, q;                                                         \
    __device__ int64_t operator()(const int64_t *x) const {               \
      const int64_t a = x[0], b = x[N > 1 ? 1 : 0], c = x[N > 2 ? 2 : 0]; \
      (void)b, (void)c;                                                   \
      return (int64_t)(INT_EXPR);                                         \
    }                                                                     \
  };
#include "base/triple.inc"
#undef U
#undef hypot

/* The formulas of N operands in one functor, and the gradients in another, whose logarithms
   take registers; `op` selects. */
enum Triple {
#define TRIPLE(NAME, N, ...) NAME##_id,
#include "base/triple.inc"
};
static constexpr DM_HD bool is_gradient(Triple id) { return id >= product_back_id; }
template <int N, bool gradient, class C> struct Triples {
  C p, q, op;
  template <int V> __device__ void all(const C (*x)[V], C *y) const {
    switch ((int)op) {
#define TRIPLE(NAME, OPERANDS, ...)                                    \
  case NAME##_id:                                                      \
    if constexpr (N == OPERANDS && is_gradient(NAME##_id) == gradient) \
      return dm_each<N, V>(NAME##_triple<C>{p, q}, x, y);              \
    break;
#include "base/triple.inc"
    }
    for (int i = 0; i < V; i++) y[i] = 0;
  }
};
template <int N, bool gradient, class C>
static constexpr bool dm_switches<Triples<N, gradient, C>> = true;

/* Computes in the output's dtype, integers in int64. A mask is the first operand, read as a
   number of that dtype. */
template <int N, bool gradient> struct TriplesOf {
  template <class C> using Functor = Triples<N, gradient, C>;
};
template <int N, bool gradient = false>
static dm_status run(Triple op, dm_Tensor *out, dm_Tensor *const *in, double p, double q) {
  typedef TriplesOf<N, gradient> F;
  const dm_DType dtype = (dm_DType)out->dtype;
  if (dm_is_float(dtype))
    return dm_pointwise_any<F::template Functor, F::template Functor, N>(out, in, dtype, p, q,
                                                                         op);
  const Triples<N, gradient, int64_t> whole = {dm_saturate_i64(p), dm_saturate_i64(q), op};
  return dm_strided<int64_t, N>(out, in, whole);
}

DM_CUDA_KERNEL(where_cuda) { return run<3>(choose_id, c->out[0], c->in, 0, 0); }
DM_CUDA_KERNEL(masked_fill_cuda) {
  dm_Tensor *in[3] = {c->in[1], c->in[2], c->in[0]};
  dm_Own truth;
  if (c->out[0]->dtype == DM_BOOL && dm_is_float((dm_DType)in[1]->dtype)) {
    DM_TRY(dm_cast_new(in[1], DM_BOOL, &truth.t));
    in[1] = truth.t; /* a number on the host, as before */
    in[1]->flags |= DM_T_NUMBER;
  }
  return run<3>(choose_id, c->out[0], in, 0, 0);
}
DM_CUDA_KERNEL(clamp_cuda) {
  const dm_ClampAttr *a = DM_ATTR(dm_ClampAttr, c);
  return run<1>(clamp_id, c->out[0], c->in, dm_clamp_low(a), dm_clamp_high(a));
}
DM_CUDA_KERNEL(clamp_backward_cuda) {
  const dm_ClampAttr *a = DM_ATTR(dm_ClampAttr, c);
  return run<2>(clamp_backward_id, c->out[0], c->in, dm_clamp_low(a), dm_clamp_high(a));
}
DM_CUDA_KERNEL(nan_to_number_cuda) {
  const double nan = DM_ATTR(dm_NanToNumberAttr, c)->nan;
  return run<3>(nan_to_number_id, c->out[0], c->in, nan, 0);
}
DM_CUDA_KERNEL(lerp_cuda) { return run<3>(lerp_id, c->out[0], c->in, 0, 0); }
DM_CUDA_KERNEL(addcmul_cuda) {
  return run<3>(addcmul_id, c->out[0], c->in, DM_ATTR(dm_ValueAttr, c)->value, 0);
}
DM_CUDA_KERNEL(addcdiv_cuda) {
  return run<3>(addcdiv_id, c->out[0], c->in, DM_ATTR(dm_ValueAttr, c)->value, 0);
}

/* The Huber loss of each element, of a prediction and a target at the distance d: d^2 / 2 up to
   `bound` and a line beyond it, both divided by `unit`. smooth_l1_loss has unit = bound = beta,
   huber_loss has unit = 1 and bound = delta, and mse_loss unit = 1 / 2 and no bound. The second
   kernel multiplies gy by the derivative in the prediction, d / unit, which ends at +-bound /
   unit. */
DM_CUDA_KERNEL(huber_term_cuda) {
  const dm_HuberTermAttr *a = DM_ATTR(dm_HuberTermAttr, c);
  const Triple formula = isinf(a->bound) ? square_difference_id : huber_term_id;
  return run<2>(formula, c->out[0], c->in, a->bound, a->unit);
}
DM_CUDA_KERNEL(huber_backward_cuda) {
  const dm_HuberTermAttr *a = DM_ATTR(dm_HuberTermAttr, c);
  return run<3>(huber_backward_id, c->out[0], c->in, a->bound, a->unit);
}

/* gy times a partial derivative. */
DM_CUDA_KERNEL(triple_backward_cuda) {
  const dm_TripleBackwardAttr *a = DM_ATTR(dm_TripleBackwardAttr, c);
  const Triple formula = (Triple)a->formula;
  return c->n_in == 2 ? run<2, true>(formula, c->out[0], c->in, a->p, 0)
                      : run<3, true>(formula, c->out[0], c->in, a->p, 0);
}
