/* The pointwise ops of one operand, from the formulas that the CPU uses too. */
#include "kernels/own.cuh"
#include "kernels/pointwise.cuh"
#include "kernels/reduce.cuh"
#include "kernels/trig.cuh"

#include "kernels/gemm.h"
#include "op/pointwise/unary.h"

#ifdef __GNUC__
#pragma GCC diagnostic ignored "-Wunused-parameter"
#endif
#define real float
#define F(NAME) NAME##32
#define sin dm_sin
#define cos dm_cos
#define tan dm_tan
#include "base/scalar.inc"
#undef sin
#undef cos
#undef tan
#undef real
#undef F
#define real double
#define F(NAME) NAME##64
#include "base/scalar.inc"
#undef real
#undef F

/* Of each row, forward over x and backward over (gy, saved). */
#define FUNCTORS(NAME)                                                                \
  static __device__ inline float NAME##_v(float x, float p, float q) {                \
    return NAME##_f32(x, p, q);                                                       \
  }                                                                                   \
  static __device__ inline double NAME##_v(double x, double p, double q) {            \
    return NAME##_f64(x, p, q);                                                       \
  }                                                                                   \
  static __device__ inline float NAME##_d(float s, float p, float q) {                \
    return NAME##_b32(s, p, q);                                                       \
  }                                                                                   \
  static __device__ inline double NAME##_d(double s, double p, double q) {            \
    return NAME##_b64(s, p, q);                                                       \
  }                                                                                   \
  template <class C> struct NAME##_forward {                                          \
    C p, q;                                                                           \
    __device__ C operator()(const C *x) const { return NAME##_v(x[0], p, q); }        \
  };                                                                                  \
  template <class C> struct NAME##_backward {                                         \
    C p, q;                                                                           \
    __device__ C operator()(const C *x) const { return x[0] * NAME##_d(x[1], p, q); } \
  };
#define UNARY(NAME, ...) FUNCTORS(NAME)
#define BINARY(...)
#define KERNEL(...)
#define VIEW(...)
#define COMPOSED(...)
#include "ops.def"
#undef UNARY
#undef FUNCTORS
#define UNPACKED(NAME)                                           \
  template <> constexpr bool dm_unpacked<NAME##_forward> = true; \
  template <> constexpr bool dm_unpacked<NAME##_backward> = true;
UNPACKED(expm1)
UNPACKED(exp2)
UNPACKED(erfc)
UNPACKED(log1p)
UNPACKED(log2)
UNPACKED(log10)
UNPACKED(tan)
UNPACKED(asin)
UNPACKED(acos)
UNPACKED(atan)
UNPACKED(sinh)
UNPACKED(cosh)
UNPACKED(erfinv)
UNPACKED(logsigmoid)
UNPACKED(lgamma)
UNPACKED(digamma)
UNPACKED(polygamma)
UNPACKED(i0)
UNPACKED(special_i0e)
UNPACKED(special_i1)
UNPACKED(special_i1e)
UNPACKED(special_erfcx)
UNPACKED(special_ndtri)
UNPACKED(special_log_ndtr)
UNPACKED(special_entr)
#undef UNPACKED

/* Integers: what stays one. */
#define WHOLE(NAME, EXPR)                                    \
  struct NAME##_whole {                                      \
    int64_t p, q;                                            \
    __device__ int64_t operator()(const int64_t *in) const { \
      const int64_t x = in[0];                               \
      return EXPR;                                           \
    }                                                        \
  };
WHOLE(neg, (int64_t)(0 - (uint64_t)x))
WHOLE(abs, x < 0 ? (int64_t)(0 - (uint64_t)x) : x)
WHOLE(sign, (x > 0) - (x < 0))
WHOLE(square, (int64_t)((uint64_t)x *(uint64_t)x))
WHOLE(relu, x < 0 ? 0 : x)
WHOLE(clip, x<p ? p : x> q ? q : x)
WHOLE(same, x)
#undef WHOLE

static dm_status whole(dm_Call *c, double p, double q) {
  const int64_t lo = (int64_t)p, hi = (int64_t)q;
  dm_Tensor *out = c->out[0];
  switch (dm_op_id(c->op)) {
  case DM_OP_neg: return dm_strided<int64_t, 1>(out, c->in, neg_whole{lo, hi});
  case DM_OP_abs: return dm_strided<int64_t, 1>(out, c->in, abs_whole{lo, hi});
  case DM_OP_sign: return dm_strided<int64_t, 1>(out, c->in, sign_whole{lo, hi});
  case DM_OP_square: return dm_strided<int64_t, 1>(out, c->in, square_whole{lo, hi});
  case DM_OP_relu: return dm_strided<int64_t, 1>(out, c->in, relu_whole{lo, hi});
  case DM_OP_hardtanh: return dm_strided<int64_t, 1>(out, c->in, clip_whole{lo, hi});
  default: return dm_strided<int64_t, 1>(out, c->in, same_whole{lo, hi});
  }
}

DM_CUDA_KERNEL(unary_cuda) {
  dm_Tensor *out = c->out[0];
  const dm_DType dtype = (dm_DType)out->dtype;
  double pq[2];
  dm_unary_params(c->op->signature, c->attr, pq);
  if (!dm_is_float(dtype)) return whole(c, pq[0], pq[1]);
  switch (dm_op_id(c->op)) {
#define UNARY(NAME, ...) \
  case DM_OP_##NAME:     \
    return dm_pointwise_float<NAME##_forward, 1>(out, c->in, dtype, pq[0], pq[1]);
#include "ops.def"
#undef UNARY
  default: return dm_fail(DM_EDEV, "%s: no formula on cuda", c->op->name);
  }
}

extern "C" dm_status dm_cuda_activate(dm_Tensor *out, dm_Activation a, dm_Tensor *in) {
  const dm_DType dtype = (dm_DType)out->dtype;
  if (a == DM_RELU) return dm_pointwise_float<relu_forward, 1>(out, &in, dtype, 0, 0);
  return dm_pointwise_float<gelu_forward, 1>(out, &in, dtype, dm_activation_param(a), 0);
}

/* A column's sum of gy times the derivative, which goes to `before`. gy, saved and before
   are dense, of one dtype. */
template <class Fn, class C> struct ActivationSum : dm_Plus {
  typedef C In;
  typedef C State;
  static const bool positional = false;
  Fn fn;
  const void *saved;
  void *before;
  int dtype;
  __device__ C start() const { return 0; }
  __device__ void add(C &s, C v, int64_t) const { s += v; }
  __device__ void put(C s, const dm_Reduced &out, int64_t i) const {
    dm_store<C>(out.dtype, out.value, i, s);
  }
  template <class T, int V> __device__ void visit(C *v, int64_t at) const {
    C by[V];
    if constexpr (V > 1) dm_widen_run<C, T, V>((const T *)saved + at, V, by);
    else by[0] = dm_load<C>(dtype, saved, at);
    for (int k = 0; k < V; k++) {
      const C x[2] = {v[k], by[k]};
      v[k] = fn(x);
    }
    if constexpr (V > 1) dm_narrow_run<C, T, V>((T *)before + at, V, v);
    else dm_store<C>(dtype, before, at, v[0]);
  }
};
template <class Fn, class C> static constexpr bool dm_visits<ActivationSum<Fn, C>> = true;

template <template <class> class Fn, class C>
static dm_status activate_backward(dm_Tensor *before, dm_Tensor *sums, double p,
                                   const dm_Tensor *gy, const dm_Tensor *saved) {
  ActivationSum<Fn<C>, C> reducer;
  reducer.fn = {(C)p, C(0)};
  reducer.saved = dm_tensor_data(saved);
  reducer.before = dm_tensor_data(before);
  reducer.dtype = gy->dtype;
  return dm_aligned(reducer.saved) ? dm_cuda_reduce<true>(gy, 1, reducer, dm_reduced(sums))
                                   : dm_cuda_reduce<false>(gy, 1, reducer, dm_reduced(sums));
}
template <template <class> class Fn>
static dm_status activate_backward(dm_Tensor *before, dm_Tensor *sums, double p, dm_Tensor *gy,
                                   dm_Tensor *saved) {
  dm_Own dense_gy, dense_saved;
  DM_TRY(dm_dense_new(gy, &dense_gy.t));
  DM_TRY(dm_dense_new(saved, &dense_saved.t));
  return gy->dtype == DM_F64
             ? activate_backward<Fn, double>(before, sums, p, dense_gy.t, dense_saved.t)
             : activate_backward<Fn, float>(before, sums, p, dense_gy.t, dense_saved.t);
}

extern "C" dm_status dm_cuda_activate_backward(dm_Tensor *before, dm_Tensor *sums,
                                               dm_Activation a, dm_Tensor *gy,
                                               dm_Tensor *saved) {
  const double p = dm_activation_param(a);
  return a == DM_RELU ? activate_backward<relu_backward>(before, sums, p, gy, saved)
                      : activate_backward<gelu_backward>(before, sums, p, gy, saved);
}

DM_CUDA_KERNEL(unary_backward_cuda) {
  const dm_UnaryBackwardAttr *a = DM_ATTR(dm_UnaryBackwardAttr, c);
  dm_Tensor *out = c->out[0];
  const dm_DType dtype = (dm_DType)out->dtype;
  switch ((dm_OpId)a->op) {
#define UNARY(NAME, ...) \
  case DM_OP_##NAME:     \
    return dm_pointwise_float<NAME##_backward, 2>(out, c->in, dtype, a->p, a->q);
#include "ops.def"
#undef UNARY
  default: return dm_fail(DM_EDEV, "%s: no formula on cuda", c->op->name);
  }
}

/* ---- predicates: bool out of any dtype ---- */

template <class C> struct Truth { /* 0: x == 0, 1: NaN, 2: infinite, 3: finite */
  C which, unused;
  __device__ C operator()(const C *in) const {
    const C x = in[0], size = x < 0 ? -x : x;
    if (which == C(0)) return x == C(0);
    if (which == C(1)) return x != x;
    const bool infinite = size > C(0) && size == size * C(2);
    return which == C(2) ? infinite : !infinite && x == x;
  }
};

static dm_status predicate(dm_Call *c, int which) {
  const dm_DType dtype = dm_compute_dtype((dm_DType)c->in[0]->dtype);
  if (dtype == DM_I64)
    return dm_strided<int64_t, 1>(c->out[0], c->in, Truth<int64_t>{which == 3 ? 3 : which, 0});
  return dm_pointwise_float<Truth, 1>(c->out[0], c->in, dtype, which, 0);
}
DM_CUDA_KERNEL(logical_not_cuda) { return predicate(c, 0); }
DM_CUDA_KERNEL(isnan_cuda) { return predicate(c, 1); }
DM_CUDA_KERNEL(isinf_cuda) { return predicate(c, 2); }
DM_CUDA_KERNEL(isfinite_cuda) { return predicate(c, 3); }
