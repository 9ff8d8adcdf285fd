/* The pointwise ops of up to three operands (where, clamp, lerp, addcmul, losses). Their
   formulas are the CPU's, base/triple.inc. p and q are bounds or a factor; for integers they
   saturate in int64. */
#include "base/pair_floats.h"
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

/* The formulas of N operands in one functor, and the gradients and the losses in two others,
   whose logarithms take registers; `op` selects. */
enum Triple {
#define TRIPLE(NAME, N, ...) NAME##_id,
#include "base/triple.inc"
};
enum Group { PLAIN, GRADIENT, LOSS };
static constexpr DM_HD Group group_of(Triple id) {
  return id >= shifted_difference_id ? LOSS : id >= product_back_id ? GRADIENT : PLAIN;
}
template <int N, Group group, class C> struct Triples {
  C p, q, op;
  template <int V> __device__ void all(const C (*x)[V], C *y) const {
    switch ((int)op) {
#define TRIPLE(NAME, OPERANDS, ...)                              \
  case NAME##_id:                                                \
    if constexpr (N == OPERANDS && group_of(NAME##_id) == group) \
      return dm_each<N, V>(NAME##_triple<C>{p, q}, x, y);        \
    break;
#include "base/triple.inc"
    }
    for (int i = 0; i < V; i++) y[i] = 0;
  }
};
template <int N, Group group, class C>
static constexpr bool dm_switches<Triples<N, group, C>> = true;

/* Computes in the output's dtype, integers in int64. A mask is the first operand, read as a
   number of that dtype. */
template <int N, Group group> struct TriplesOf {
  template <class C> using Functor = Triples<N, group, C>;
};
template <int N, Group group = PLAIN>
static dm_status run(Triple op, dm_Tensor *out, dm_Tensor *const *in, double p, double q) {
  typedef TriplesOf<N, group> F;
  const dm_DType dtype = (dm_DType)out->dtype;
  if (dm_is_float(dtype))
    return dm_pointwise_any<F::template Functor, F::template Functor, N>(out, in, dtype, p, q,
                                                                         op);
  const Triples<N, group, int64_t> whole = {dm_saturate_i64(p), dm_saturate_i64(q), op};
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

/* The loss of each element, of 2 or 3 operands, and gy times its derivative. */
static dm_status loss_term(dm_Call *c) {
  const dm_LossTermAttr *a = DM_ATTR(dm_LossTermAttr, c);
  const Triple formula = (Triple)a->formula;
  return c->n_in == 2 ? run<2, LOSS>(formula, c->out[0], c->in, a->p, a->q)
                      : run<3, LOSS>(formula, c->out[0], c->in, a->p, a->q);
}
DM_CUDA_KERNEL(loss_term_cuda) { return loss_term(c); }
DM_CUDA_KERNEL(loss_backward_cuda) { return loss_term(c); }

/* gy times a partial derivative. */
DM_CUDA_KERNEL(triple_backward_cuda) {
  const dm_TripleBackwardAttr *a = DM_ATTR(dm_TripleBackwardAttr, c);
  const Triple formula = (Triple)a->formula;
  return c->n_in == 2 ? run<2, GRADIENT>(formula, c->out[0], c->in, a->p, 0)
                      : run<3, GRADIENT>(formula, c->out[0], c->in, a->p, 0);
}
