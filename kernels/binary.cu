/* The pointwise ops of two operands, from the formulas that the CPU uses too. */
#include "kernels/pointwise.cuh"

#include "kernels/fill.h"
#include "op/pointwise/binary.h"

/* Of each formula, one for floats and one for integers. */
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
#include "base/pair.inc"
#undef U
template <> constexpr bool dm_unpacked<pow_pair> = true;
template <> constexpr bool dm_unpacked<fmod_pair> = true;
template <> constexpr bool dm_unpacked<remainder_pair> = true;
template <> constexpr bool dm_unpacked<div_floor_pair> = true;
template <> constexpr bool dm_unpacked<atan2_pair> = true;
template <> constexpr bool dm_unpacked<hypot_pair> = true;
template <> constexpr bool dm_unpacked<xlogy_pair> = true;
template <> constexpr bool dm_unpacked<logaddexp_pair> = true;
template <> constexpr bool dm_unpacked<logaddexp2_pair> = true;
template <> constexpr bool dm_unpacked<special_xlog1py_pair> = true;
template <> constexpr bool dm_unpacked<nextafter_pair> = true;
template <> constexpr bool dm_unpacked<nextafter_f16_pair> = true;
template <> constexpr bool dm_unpacked<nextafter_bf16_pair> = true;

/* A division: 0 where the divisor is, and the fault noted. */
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

template <class Fn> static dm_status whole(dm_Call *c, Fn fn) {
  return dm_strided<int64_t, 2>(c->out[0], c->in, fn);
}
template <class Fn> static dm_status divide(dm_Call *c, Fn fn) {
  const Divide<Fn> checked = {fn, dm_cuda_faults(), (int)dm_op_id(c->op), c->base};
  return dm_strided<int64_t, 2>(c->out[0], c->in, checked);
}

static dm_status integers(dm_Call *c, int pair, int64_t p) {
  switch (pair) {
  case DM_OP_div_trunc: return divide(c, div_trunc_whole{p});
  case DM_OP_div_floor: return divide(c, div_floor_whole{p});
  case DM_OP_fmod: return divide(c, fmod_whole{p});
  case DM_OP_remainder: return divide(c, remainder_whole{p});
#define WHOLE(NAME) \
  case DM_OP_##NAME: return whole(c, NAME##_whole{p});
    WHOLE(add)
    WHOLE(add_scaled)
    WHOLE(sub)
    WHOLE(sub_scaled)
    WHOLE(mul)
    WHOLE(pow)
    WHOLE(maximum)
    WHOLE(minimum)
    WHOLE(eq)
    WHOLE(ne)
    WHOLE(lt)
    WHOLE(le)
    WHOLE(gt)
    WHOLE(ge)
    WHOLE(logical_and)
    WHOLE(logical_or)
    WHOLE(logical_xor)
    WHOLE(bitwise_and)
    WHOLE(bitwise_or)
    WHOLE(bitwise_xor)
#undef WHOLE
  default: return dm_fail(DM_EDEV, "%s: no formula on cuda", c->op->name);
  }
}

extern "C" dm_status dm_cuda_add(dm_Tensor *out, dm_Tensor *a, dm_Tensor *b) {
  dm_Tensor *in[2] = {a, b};
  return dm_pointwise_float<add_pair, 2>(out, in, (dm_DType)out->dtype, 0, 0);
}

DM_CUDA_KERNEL(binary_cuda) {
  const int pair = dm_pair_of(c);
  const double p = dm_pair_param(c);
  dm_DType t = dm_result_dtype(2, c->in);
  if (dm_is_float((dm_DType)c->out[0]->dtype) && !dm_is_float(t)) t = DM_F32;
  if (!dm_is_float(t)) return integers(c, pair, (int64_t)p);
  switch (pair) {
#define PAIR(NAME, ...) \
  case DM_OP_##NAME:    \
    return dm_pointwise_float<NAME##_pair, 2>(c->out[0], c->in, t, p, 0);
#include "base/pair.inc"
  default: return dm_fail(DM_EDEV, "%s: no formula on cuda", c->op->name);
  }
}
