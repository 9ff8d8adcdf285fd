/* The pointwise ops of one operand. Their formulas are the CPU's: base/scalar.inc for floats,
   base/single.inc for integers and predicates.

   The text of scalar.inc is compiled twice, as functions over float (NAME_f32, NAME_b32) and
   over double; a functor picks by the compute type, in which 16-bit elements are float. The op
   is a template argument of the packed kernel, so that no thread branches over ops. A strided
   kernel holds many formulas and branches. There are four, as the slowest formula of a kernel
   settles its registers: of those that are often called, of those that seldom are, of
   trigonometry and of special functions. Predicates are cheap, and one kernel holds all of
   them. */
#include "kernels/own.cuh"
#include "kernels/pointwise.cuh"
#include "kernels/reduce.cuh"
#include "kernels/trig.cuh"

#include "kernels/gemm.h"
#include "op/pointwise/unary.h"

#ifdef __GNUC__
#pragma GCC diagnostic ignored "-Wunused-parameter"
#endif
/* The formulas that share a strided kernel; scripts/kernel_report.lua knows their names. */
struct often_formulas;
struct seldom_formulas;
struct trig_formulas;
struct special_formulas;
template <bool unpacked> struct UsualGroup { typedef often_formulas type; };
template <> struct UsualGroup<true> { typedef seldom_formulas type; };
template <template <class> class Fn> struct Group : UsualGroup<dm_unpacked<Fn>> {};

/* Marks formulas that are only compiled for the strided kernel; see dm_unpacked. */
#define RARE(NAME)                                               \
  template <class C> struct NAME##_forward;                      \
  template <class C> struct NAME##_backward;                     \
  template <> constexpr bool dm_unpacked<NAME##_forward> = true; \
  template <> constexpr bool dm_unpacked<NAME##_backward> = true;
#define GROUP(NAME, GROUP)                                          \
  template <class C> struct NAME##_forward;                         \
  template <class C> struct NAME##_backward;                        \
  template <> struct Group<NAME##_forward> { typedef GROUP type; }; \
  template <> struct Group<NAME##_backward> { typedef GROUP type; };
/* Formulas that are long, or keep tables on the stack. */
#define SPECIAL(NAME) RARE(NAME) GROUP(NAME, special_formulas)
#ifdef __CUDA_ARCH__
static __device__ inline float power_of_2(float v) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(v));
  return y;
}
#endif
#define real float
#define F(NAME) NAME##32
#define sin dm_sin
#define cos dm_cos
#define tan dm_tan
#ifdef __CUDA_ARCH__
/* The GPU's own power of 2 and its reciprocal, each within 2 units in the last place: with the
   library's gelu would be bound by arithmetic, not by memory. */
#define GELU_EXP(x) power_of_2((x)*1.44269504088896340736f)
#define GELU_QUOTIENT(x, y) __fdividef(x, y)
#endif
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

/* Two functors for each UNARY row: NAME_forward(x), and NAME_backward(gy, saved), gy times the
   derivative at the saved input or output. The compute type selects the float or double
   formula. */
#define FUNCTORS(NAME)                                                                  \
  static __device__ inline float NAME##_v(float x, float p, float q) {                  \
    return NAME##_f32(x, p, q);                                                         \
  }                                                                                     \
  static __device__ inline double NAME##_v(double x, double p, double q) {              \
    return NAME##_f64(x, p, q);                                                         \
  }                                                                                     \
  static __device__ inline float NAME##_back(float g, float s, float p, float q) {      \
    return NAME##_g32(g, s, p, q);                                                      \
  }                                                                                     \
  static __device__ inline double NAME##_back(double g, double s, double p, double q) { \
    return NAME##_g64(g, s, p, q);                                                      \
  }                                                                                     \
  template <class C> struct NAME##_forward {                                            \
    C p, q;                                                                             \
    __device__ C operator()(const C *x) const { return NAME##_v(x[0], p, q); }          \
  };                                                                                    \
  template <class C> struct NAME##_backward {                                           \
    C p, q;                                                                             \
    __device__ C operator()(const C *x) const { return NAME##_back(x[0], x[1], p, q); } \
  };
#define UNARY(NAME, SAVE) FUNCTORS(NAME)
#include "unary.gen.def"
#undef UNARY
#undef FUNCTORS
GROUP(sin, trig_formulas)
GROUP(cos, trig_formulas)
GROUP(tan, trig_formulas)
GROUP(sinc, trig_formulas)
#undef GROUP

/* Formulas that every network runs have a packed kernel of their own, all others share one. */
template <template <class> class Fn> static constexpr bool alone = false;
#define ALONE(NAME)                                        \
  template <> constexpr bool alone<NAME##_forward> = true; \
  template <> constexpr bool alone<NAME##_backward> = true;
ALONE(relu)
ALONE(gelu)
ALONE(silu)
#undef ALONE

/* The formulas of a group in one functor, of N = 1 operand forward and of 2 backward; `op`
   selects. Formulas that only the strided kernel has are left out of packs. */
template <class G, int N, class C> struct Shared {
  C p, q, op;
  template <int V> __device__ void all(const C (*x)[V], C *y) const {
    switch ((int)op) {
#define UNARY(NAME, SAVE)                                                                 \
  case DM_OP_##NAME:                                                                      \
    if constexpr (dm_same_type<typename Group<NAME##_forward>::type, G> &&                \
                  (V == 1 || (!dm_unpacked<NAME##_forward> && !alone<NAME##_forward>))) { \
      for (int i = 0; i < V; i++)                                                         \
        if constexpr (N == 1) y[i] = NAME##_v(x[0][i], p, q);                             \
        else y[i] = NAME##_back(x[0][i], x[1][i], p, q);                                  \
      return;                                                                             \
    }                                                                                     \
    break;
#include "unary.gen.def"
#undef UNARY
    }
    for (int i = 0; i < V; i++) y[i] = 0;
  }
};
template <class G, int N, class C> static constexpr bool dm_switches<Shared<G, N, C>> = true;

template <class G, int N> struct Sharing {
  template <class C> using Functor = Shared<G, N, C>;
};

/* Launches Fn, a formula of N operands. */
template <template <class> class Fn, int N>
static dm_status formula(dm_Tensor *out, dm_Tensor *const *in, double p, double q, int op) {
  typedef Sharing<typename Group<Fn>::type, N> S;
  const dm_DType dtype = (dm_DType)out->dtype;
  if constexpr (alone<Fn> || dm_unpacked<Fn>)
    return dm_pointwise_any<Fn, S::template Functor, N>(out, in, dtype, p, q, op);
  else
    return dm_pointwise_any<S::template Functor, S::template Functor, N>(out, in, dtype, p, q,
                                                                         op);
}

/* ---- integers ---- */

/* The formulas of integers in one functor over int64; p and q are hardtanh's bounds. */
#define U(x) ((uint64_t)(x))
struct Integer {
  int64_t p, q, op;
  __device__ int64_t operator()(const int64_t *in) const {
    const int64_t x = in[0];
#define INTEGER(NAME, EXPR) \
  if ((int)op == DM_OP_##NAME) return (int64_t)(EXPR);
#include "base/single.inc"
    return x;
  }
};
#undef U

/* Launches an integer formula; p and q are truncated. */
static dm_status integers(dm_Call *c, double p, double q) {
  const Integer fn = {(int64_t)p, (int64_t)q, (int64_t)dm_op_id(c->op)};
  switch (fn.op) {
#define INTEGER(NAME, EXPR) \
  case DM_OP_##NAME:        \
    return dm_strided<int64_t, 1>(c->out[0], c->in, fn);
#include "base/single.inc"
  default: return dm_fail(DM_EDEV, "%s: no formula on cuda", c->op->name);
  }
}

/* All ops of the UNARY rows, by a switch that is generated from the table. */
DM_CUDA_KERNEL(unary_cuda) {
  dm_Tensor *out = c->out[0];
  const dm_DType dtype = (dm_DType)out->dtype;
  double pq[2];
  dm_unary_params(c->op->signature, c->attr, pq);
  if (!dm_is_float(dtype)) return integers(c, pq[0], pq[1]);
  switch (dm_op_id(c->op)) {
#define UNARY(NAME, SAVE) \
  case DM_OP_##NAME:      \
    return formula<NAME##_forward, 1>(out, c->in, pq[0], pq[1], DM_OP_##NAME);
#include "unary.gen.def"
#undef UNARY
  default: return dm_fail(DM_EDEV, "%s: no formula on cuda", c->op->name);
  }
}

/* Applies the activation to a matrix product's result, where no library fuses it. */
extern "C" dm_status dm_cuda_activate(dm_Tensor *out, dm_Activation a, dm_Tensor *in) {
  if (a == DM_RELU) return formula<relu_forward, 1>(out, &in, 0, 0, DM_OP_relu);
  return formula<gelu_forward, 1>(out, &in, dm_activation_param(a), 0, DM_OP_gelu);
}

/* The reducer of linear's backward with an activation: while it sums the columns of gy (rows,
   columns) for the bias gradient, it multiplies each element by the activation's derivative
   and writes that to `before`. One read of gy serves both. gy, saved and before are dense, of
   one dtype. */
template <class C> struct ActivationSum : dm_Plus {
  typedef C In;
  typedef C State;
  static const bool positional = false;
  dm_Activation activation;
  C p; /* of gelu */
  const void *saved;
  void *before;
  int dtype;
  __device__ C start() const { return 0; }
  __device__ void add(C &s, C v, int64_t) const { s += v; }
  __device__ void put(C s, const dm_Reduced &out, int64_t i) const {
    dm_store<C>(out.dtype, out.value, i, s);
  }
  template <class T, int V> __device__ void visit(C *v, int64_t at) const {
    dm_Run<T, V> run;
    C by[V];
    if constexpr (V > 1) {
      run = *(const dm_Run<T, V> *)((const T *)saved + at);
      dm_widen_all(dtype, run, by);
    } else {
      by[0] = dm_load<C>(dtype, saved, at);
    }
    const C none = 0;
    if (activation == DM_RELU)
      for (int k = 0; k < V; k++) v[k] = relu_back(v[k], by[k], none, none);
    else
      for (int k = 0; k < V; k++) v[k] = gelu_back(v[k], by[k], p, none);
    if constexpr (V > 1) {
      dm_narrow_all(dtype, v, &run);
      *(dm_Run<T, V> *)((T *)before + at) = run;
    } else {
      dm_store<C>(dtype, before, at, v[0]);
    }
  }
};
template <class C> static constexpr bool dm_visits<ActivationSum<C>> = true;

/* Launches it in the compute type C. */
template <class C>
static dm_status activate_backward(dm_Tensor *before, dm_Tensor *sums, dm_Activation a,
                                   const dm_Tensor *gy, const dm_Tensor *saved) {
  ActivationSum<C> reducer;
  reducer.activation = a;
  reducer.p = (C)dm_activation_param(a);
  reducer.saved = dm_tensor_data(saved);
  reducer.before = dm_tensor_data(before);
  reducer.dtype = gy->dtype;
  return dm_aligned(reducer.saved) ? dm_cuda_reduce<true>(gy, 1, reducer, dm_reduced(sums))
                                   : dm_cuda_reduce<false>(gy, 1, reducer, dm_reduced(sums));
}

/* before (rows, columns) = gy times the activation's derivative, and sums (columns), the bias
   gradient, in one pass. */
extern "C" dm_status dm_cuda_activate_backward(dm_Tensor *before, dm_Tensor *sums,
                                               dm_Activation a, dm_Tensor *gy,
                                               dm_Tensor *saved) {
  dm_Own dense_gy, dense_saved;
  DM_TRY(dm_dense_new(gy, &dense_gy.t));
  DM_TRY(dm_dense_new(saved, &dense_saved.t));
  return gy->dtype == DM_F64
             ? activate_backward<double>(before, sums, a, dense_gy.t, dense_saved.t)
             : activate_backward<float>(before, sums, a, dense_gy.t, dense_saved.t);
}

/* gy times the derivative of the op that the attribute names. */
DM_CUDA_KERNEL(unary_backward_cuda) {
  const dm_UnaryBackwardAttr *a = DM_ATTR(dm_UnaryBackwardAttr, c);
  dm_Tensor *out = c->out[0];
  switch ((dm_OpId)a->op) {
#define UNARY(NAME, SAVE) \
  case DM_OP_##NAME:      \
    return formula<NAME##_backward, 2>(out, c->in, a->p, a->q, DM_OP_##NAME);
#include "unary.gen.def"
#undef UNARY
  default: return dm_fail(DM_EDEV, "%s: no formula on cuda", c->op->name);
  }
}

/* ---- predicates: bool out of any dtype ---- */

/* All predicates in one functor; `op` selects the formula. */
template <class C> struct Predicate {
  typedef C real;
  C op, unused;
  __device__ C operator()(const C *in) const {
    const C x = in[0];
#define PREDICATE(NAME, FLOAT_EXPR, INT_EXPR) \
  if ((int)op == DM_OP_##NAME) return FLOAT_EXPR;
#include "base/single.inc"
    return 0;
  }
};
template <> struct Predicate<int64_t> {
  int64_t op, unused;
  __device__ int64_t operator()(const int64_t *in) const {
    const int64_t x = in[0];
#define PREDICATE(NAME, FLOAT_EXPR, INT_EXPR) \
  if ((int)op == DM_OP_##NAME) return INT_EXPR;
#include "base/single.inc"
    return 0;
  }
};

/* Integers and bool are read as int64. */
static dm_status predicate(dm_Call *c) {
  const dm_DType dtype = dm_compute_dtype((dm_DType)c->in[0]->dtype);
  const int op = (int)dm_op_id(c->op);
  if (dtype == DM_I64)
    return dm_strided<int64_t, 1>(c->out[0], c->in, Predicate<int64_t>{op, 0});
  return dm_pointwise_float<Predicate, 1>(c->out[0], c->in, dtype, op, 0);
}
#define PREDICATE(NAME, ...) \
  DM_CUDA_KERNEL(NAME##_cuda) { return predicate(c); }
#include "base/single.inc"
