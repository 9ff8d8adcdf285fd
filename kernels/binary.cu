/* The pointwise ops of two operands. Their formulas are the CPU's, base/pair.inc, one row per
   op; floats compute in float32 or float64, integers and bool in int64. */
#include "kernels/pointwise.cuh"

#include "base/pair_floats.h"
#include "kernels/fill.h"
#include "kernels/own.cuh"
#include "op/pointwise/binary.h"

/* Functions of CUDA that are off by a bit or two where the host's are exact. A power of 1 is
   its base, of which the gradient of a square is made, and a power of 2 a product. */
template <class C> static __device__ inline C exact_pow(C a, C b) {
  return b == 1 ? a : b == 2 ? a * a : (C)pow(a, b);
}

/* Each row becomes a functor over a float type, NAME_pair. Few are compiled alone: most share a
   functor with their group (group_of), for packs and for strided elements. */
enum { TRUTHS, OFTEN, SELDOM, ALONE };
template <template <class> class Fn>
static constexpr int group_of = dm_unpacked<Fn> ? SELDOM : OFTEN;
#define GROUP_SAME(NAME)
#define GROUP_FLOAT(NAME)
#define GROUP_QUOTIENT(NAME)
#define GROUP_BOOL(NAME) template <> constexpr int group_of<NAME##_pair> = TRUTHS;
#define PAIR(NAME, RESULT, FLOAT_EXPR, INT_EXPR) \
  template <class C> struct NAME##_pair {        \
    C p, q;                                      \
    __device__ C operator()(const C *x) const {  \
      const C a = x[0], b = x[1];                \
      (void)b;                                   \
      return (C)(FLOAT_EXPR);                    \
    }                                            \
  };                                             \
  GROUP_##RESULT(NAME)
#define RARE(NAME) template <> constexpr bool dm_unpacked<NAME##_pair> = true;
#define pow exact_pow
#define hypot exact_hypot
#include "base/pair.inc"
#undef pow
#undef hypot
#undef GROUP_SAME
#undef GROUP_FLOAT
#undef GROUP_QUOTIENT
#undef GROUP_BOOL
template <> constexpr int group_of<gamma_f64_slope_pair> = ALONE; /* has tables on the stack */

/* Those whose packs have a kernel of their own, since every network runs them. */
template <template <class> class Fn> static constexpr bool packed_alone = false;
template <> constexpr bool packed_alone<add_pair> = true;
template <> constexpr bool packed_alone<mul_pair> = true;

/* The formulas of a group in one functor; `op` selects. */
template <int group, class C> struct Pairs {
  C p, q, op;
  template <int V> __device__ void all(const C (*x)[V], C *y) const {
    switch ((int)op) {
#define PAIR(NAME, ...)                             \
  case DM_OP_##NAME:                                \
    if constexpr (group_of<NAME##_pair> == group) { \
      dm_each<2, V>(NAME##_pair<C>{p, q}, x, y);    \
      return;                                       \
    }                                               \
    break;
#include "base/pair.inc"
    }
    for (int i = 0; i < V; i++) y[i] = 0;
  }
};
template <int group, class C> static constexpr bool dm_switches<Pairs<group, C>> = true;
template <class C> using Truths = Pairs<TRUTHS, C>;
template <class C> using Often = Pairs<OFTEN, C>;
template <class C> using Seldom = Pairs<SELDOM, C>;

/* Launches Fn, or the functor that it shares. */
template <template <class> class Fn>
static dm_status floats(dm_Tensor *out, dm_Tensor *const *in, dm_DType t, double p, int op) {
  if constexpr (group_of<Fn> == TRUTHS)
    return dm_pointwise_any<Truths, Truths, 2>(out, in, t, p, 0, op);
  else if constexpr (packed_alone<Fn>)
    return dm_pointwise_any<Fn, Often, 2>(out, in, t, p, 0, op);
  else if constexpr (group_of<Fn> == OFTEN)
    return dm_pointwise_any<Often, Often, 2>(out, in, t, p, 0, op);
  else if constexpr (group_of<Fn> == SELDOM)
    return dm_pointwise_any<Fn, Seldom, 2>(out, in, t, p, 0, op);
  else return dm_pointwise_float<Fn, 2>(out, in, t, p, 0);
}

/* ---- integers ---- */

/* All formulas of int64 in one functor, and the quotients in another. Those note a divisor of 0
   as a fault, which the host raises when it next waits for the device, and give 0. Rows whose
   result is always FLOAT have none. */
#define U(x) ((uint64_t)(x))
#define WHOLE(NAME, INT_EXPR) \
  if ((int)op == DM_OP_##NAME) return (int64_t)(INT_EXPR);
#define NONE(NAME, INT_EXPR)
struct Whole {
  int64_t p, op;
  __device__ int64_t operator()(const int64_t *x) const {
    const int64_t a = x[0], b = x[1];
#define WHOLE_SAME WHOLE
#define WHOLE_BOOL WHOLE
#define WHOLE_QUOTIENT NONE
#define WHOLE_FLOAT NONE
#define PAIR(NAME, RESULT, FLOAT_EXPR, INT_EXPR) WHOLE_##RESULT(NAME, INT_EXPR)
#include "base/pair.inc"
    return 0;
  }
};
#undef WHOLE_SAME
#undef WHOLE_BOOL
#undef WHOLE_QUOTIENT
struct Divide {
  int64_t op;
  dm_Fault *fault;
  int id, base;
  __device__ int64_t operator()(const int64_t *x) const {
    const int64_t a = x[0], b = x[1];
    if (b == 0) return dm_device_fault(fault, DM_FAULT_ZERO, id, base, 0, 0, 0), 0;
#define WHOLE_SAME NONE
#define WHOLE_BOOL NONE
#define WHOLE_QUOTIENT WHOLE
#define PAIR(NAME, RESULT, FLOAT_EXPR, INT_EXPR) WHOLE_##RESULT(NAME, INT_EXPR)
#include "base/pair.inc"
    return 0;
  }
};
#undef WHOLE_SAME
#undef WHOLE_BOOL
#undef WHOLE_QUOTIENT
#undef WHOLE_FLOAT
#undef WHOLE
#undef NONE
#undef U

/* Launches the integer formula. */
static dm_status integers(dm_Call *c, int pair, int64_t p) {
  switch (pair) {
#define INTEGERS_SAME(NAME) \
  case DM_OP_##NAME:        \
    return dm_strided<int64_t, 2>(c->out[0], c->in, Whole{p, pair});
#define INTEGERS_BOOL(NAME) INTEGERS_SAME(NAME)
#define INTEGERS_QUOTIENT(NAME)    \
  case DM_OP_##NAME:               \
    return dm_strided<int64_t, 2>( \
        c->out[0], c->in, Divide{pair, dm_cuda_faults(), (int)dm_op_id(c->op), c->base});
#define INTEGERS_FLOAT(NAME)
#define PAIR(NAME, RESULT, ...) INTEGERS_##RESULT(NAME)
#include "base/pair.inc"
#undef INTEGERS_SAME
#undef INTEGERS_BOOL
#undef INTEGERS_QUOTIENT
#undef INTEGERS_FLOAT
  default: return dm_fail(DM_EDEV, "%s: no formula on cuda", c->op->name);
  }
}

/* out = a + b in a float dtype, for other kernels. */
extern "C" dm_status dm_cuda_add(dm_Tensor *out, dm_Tensor *a, dm_Tensor *b) {
  dm_Tensor *in[2] = {a, b};
  return floats<add_pair>(out, in, (dm_DType)out->dtype, 0, DM_OP_add);
}

/* v as the 16-bit dtype t holds it. */
static float rounded(dm_DType t, float v) {
#define ROW(X, E, S, BITS, ...) \
  if (t == DM_##E) return dm_##S##_to_f32(dm_f32_to_##S(v));
  DM_LOW_DTYPES(ROW, )
#undef ROW
  return v;
}

/* Gives in in[0 .. 1] the operands of a comparison in 16 bits, which happens in the promoted
   dtype t: an operand of another dtype is rounded to it first. A host number becomes another
   one, of float32. */
static dm_status round_operands(const dm_Call *c, dm_DType t, dm_Own *own, dm_Tensor **in) {
  for (int i = 0; i < 2; i++) {
    dm_Tensor *x = c->in[i];
    if (x->dtype == t) continue;
    const bool host = dm_is_host(x);
    DM_TRY(dm_tensor_new(host ? DM_F32 : t, x->ndim, x->shape, x->device, &own[i].t));
    in[i] = own[i].t;
    if (host) *(float *)dm_tensor_data(in[i]) = rounded(t, (float)dm_host_f64(x));
    else DM_TRY(dm_cuda_copy(in[i], x));
  }
  return DM_OK;
}

/* t is the dtype of the arithmetic; ops that make floats of integers use float32. */
DM_CUDA_KERNEL(binary_cuda) {
  const int pair = dm_pair_of(c);
  const double p = dm_pair_param(c);
  dm_DType t = dm_result_dtype(2, c->in);
  if (dm_is_float((dm_DType)c->out[0]->dtype) && !dm_is_float(t)) t = DM_F32;
  if (!dm_is_float(t)) return integers(c, pair, (int64_t)p);
  dm_Own own[2];
  dm_Tensor *in[2] = {c->in[0], c->in[1]};
  if (c->out[0]->dtype == DM_BOOL && dm_is_low(t)) DM_TRY(round_operands(c, t, own, in));
  switch (pair) {
#define PAIR(NAME, ...) \
  case DM_OP_##NAME:    \
    return floats<NAME##_pair>(c->out[0], in, t, p, DM_OP_##NAME);
#include "base/pair.inc"
  default: return dm_fail(DM_EDEV, "%s: no formula on cuda", c->op->name);
  }
}
