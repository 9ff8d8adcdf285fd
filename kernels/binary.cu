/* The pointwise ops of two operands. Their formulas are the CPU's, base/pair.inc, one row per
   op; floats compute in float32 or float64, integers and bool in int64. */
#include "kernels/pointwise.cuh"

#include "base/pair_floats.h"
#include "kernels/fill.h"
#include "kernels/own.cuh"
#include "op/pointwise/binary.h"

/* Each row becomes two functors: NAME_pair over a float type, and NAME_whole over int64. */
#define U(x) ((uint64_t)(x))
#define PAIR(NAME, RESULT, FLOAT_EXPR, INT_EXPR)            \
  template <class C> struct NAME##_pair {                   \
    C p, q;                                                 \
    __device__ C operator()(const C *x) const {             \
      const C a = x[0], b = x[1];                           \
      (void)b;                                              \
      return (C)(FLOAT_EXPR);                               \
    }                                                       \
  };                                                        \
  struct NAME##_whole {                                     \
    int64_t p;                                              \
    __device__ int64_t operator()(const int64_t *x) const { \
      const int64_t a = x[0], b = x[1];                     \
      (void)b;                                              \
      return (int64_t)(INT_EXPR);                           \
    }                                                       \
  };
#define RARE(NAME) template <> constexpr bool dm_unpacked<NAME##_pair> = true;
#include "base/pair.inc"
#undef U

/* A division of integers with a check: a divisor of 0 gives 0 and is noted as a fault, which
   the host raises when it next waits for the device. */
template <class Fn> struct Divide {
  Fn fn;
  dm_Fault *fault;
  int op, base;
  __device__ int64_t operator()(const int64_t *x) const {
    if (x[1] != 0) return fn(x);
    dm_device_fault(fault, DM_FAULT_ZERO, op, base, 0, 0, 0);
    return 0;
  }
};

/* Launches an integer formula, unchecked or checked for a divisor of 0. */
template <class Fn> static dm_status whole(dm_Call *c, Fn fn) {
  return dm_strided<int64_t, 2>(c->out[0], c->in, fn);
}
template <class Fn> static dm_status divide(dm_Call *c, Fn fn) {
  const Divide<Fn> checked = {fn, dm_cuda_faults(), (int)dm_op_id(c->op), c->base};
  return dm_strided<int64_t, 2>(c->out[0], c->in, checked);
}

/* Chooses the integer formula. Rows whose result is always FLOAT have none here. */
static dm_status integers(dm_Call *c, int pair, int64_t p) {
  switch (pair) {
#define INTEGERS_SAME(NAME) \
  case DM_OP_##NAME:        \
    return whole(c, NAME##_whole{p});
#define INTEGERS_BOOL(NAME) INTEGERS_SAME(NAME)
#define INTEGERS_QUOTIENT(NAME) \
  case DM_OP_##NAME:            \
    return divide(c, NAME##_whole{p});
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
  return dm_pointwise_float<add_pair, 2>(out, in, (dm_DType)out->dtype, 0, 0);
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
    return dm_pointwise_float<NAME##_pair, 2>(c->out[0], in, t, p, 0);
#include "base/pair.inc"
  default: return dm_fail(DM_EDEV, "%s: no formula on cuda", c->op->name);
  }
}
