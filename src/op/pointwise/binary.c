/* The pointwise ops of two operands. The formulas of base/pair.inc, by way of
   loops.h, tell what result a row has: the promoted dtype, a float, a bool.

   Operands broadcast together: sizes are equal or 1, counted from the last dim. The dtypes
   promote as PyTorch's do (dm_result_dtype): the higher kind of bool, integer and float
   decides, and a number changes a tensor's dtype only when its kind is higher.

   A gradient is computed for the broadcast shape, with no regard to which operand was
   repeated; the tape sums it to the operand's own shape. One of several steps is a formula of
   base/triple.inc, in one pass; create_graph composes the steps of ops, of 16 bits in float32,
   so that both round once. */
#include "op/pointwise/binary.h"
#include "op/pointwise/unary.h"

#include "base/constants.h"
#include "base/error.h"
#include "base/triple.h"
#include "cpu/loops/loops.h"
#include "cpu/vec.h"
#include "op/pointwise/pointwise.h"

/* See base/pair.inc. */
typedef enum Result { SAME, FLOAT, BOOL, QUOTIENT } Result;

static const uint8_t results[DM_N_PAIR] = {
#define PAIR(NAME, RESULT, ...) [DM_OP_##NAME] = RESULT,
#include "base/pair.inc"
};

/* Formulas that floats do not have, or neither floats nor bools. */
enum { BITS = 1, WHOLE };
static const uint8_t of_integers[DM_N_PAIR] = {[DM_OP_bitwise_and] = BITS,
                                               [DM_OP_bitwise_or] = BITS,
                                               [DM_OP_bitwise_xor] = BITS,
                                               [DM_OP_bitwise_left_shift] = WHOLE,
                                               [DM_OP_bitwise_right_shift] = WHOLE,
                                               [DM_OP_gcd] = WHOLE,
                                               [DM_OP_lcm] = WHOLE};

/* Whether any element is 0; reads the data, so for tensors of the CPU only. */
static bool has_zero(dm_Tensor *t) {
  dm_X x = DM_X_INIT;
  dm_Tensor *zero = dm_x(&x, DM_OP_eq, NULL, 2, t, dm_x_number(&x, 0));
  dm_Tensor *any = zero ? dm_x(&x, DM_OP_any, NULL, 1, zero) : NULL;
  const bool yes = any && *(const uint8_t *)dm_tensor_data(any);
  dm_x_free(&x);
  return yes;
}

/* Shape: what both broadcast to. Dtype: by the formula's result and the promoted dtype. */
dm_status binary_rule(dm_Call *c) {
  const Result result = (Result)results[dm_pair_of(c)];
  dm_Tensor *x = c->in[0], *y = c->in[1];
  dm_Meta *m = &c->out_meta[0];
  int ndim;
  if (dm_same_shape(x, y)) {
    dm_meta_set(m, x);
  } else {
    DM_TRY(dm_broadcast(c->op->name, x, y, &ndim, m->shape));
    m->ndim = (uint8_t)ndim;
  }
  m->device = x->device;
  const dm_DType t = dm_result_dtype(2, c->in);
  const dm_OpId id = dm_op_id(c->op);
  if (t == DM_BOOL && id == DM_OP_sub)
    return dm_fail(DM_EARG, "sub: bool minus bool; hint: x:logical_xor(y)");
  const int kind = of_integers[id];
  if (kind && (dm_is_float(t) || (kind == WHOLE && t == DM_BOOL)))
    return dm_fail(DM_EARG, "%s: the operands are %s, wanted integers%s; hint: x:long()",
                   c->op->name, dm_dtype_name(t), kind == BITS ? " or bool" : "");
  if (!dm_is_float(t)) {
    /* on other devices the kernel notes the fault */
    if (result == QUOTIENT && y->device.type == DM_CPU && has_zero(y))
      return dm_fail(DM_EARG, "%s: integer division by zero", c->op->name);
    if (id == DM_OP_pow && (y->flags & DM_T_NUMBER) && y->dtype == DM_I64 &&
        *(const int64_t *)dm_tensor_data(y) < 0)
      return dm_fail(DM_EARG, "pow: integers to a negative power; hint: x:float()");
  }
  m->dtype = (uint8_t)(result == BOOL                       ? DM_BOOL
                       : result == FLOAT && !dm_is_float(t) ? dm_default_dtype()
                                                            : t);
  return DM_OK;
}

/* The power 1 as a loop of one operand. */
static void itself_f32(const float *const *in, float *out, int64_t n, const double *pq) {
  DM_UNUSED(pq);
  for (int64_t i = 0; i < n; i++) out[i] = in[0][i];
}
static void itself_f64(const double *const *in, double *out, int64_t n, const double *pq) {
  DM_UNUSED(pq);
  for (int64_t i = 0; i < n; i++) out[i] = in[0][i];
}
static const dm_Pointwise itself = {.f32 = itself_f32, .f64 = itself_f64};

/* The loop of an exponent that needs no pow, or NULL. The exponent is one number and the base a
   float. PyTorch chooses 2, 3 and the negative ones likewise; 1 comes from the gradient of a
   square. */
static __attribute__((noinline)) const dm_Pointwise *simple_power(dm_Tensor *exponent,
                                                                  dm_DType t) {
  const dm_Pointwise *const unary = dm_loops()->unary, *const triple = dm_loops()->triple;
  if (exponent->ndim != 0 || !dm_is_float(t)) return NULL;
  double p;
  dm_load_f64((dm_DType)exponent->dtype, dm_tensor_data(exponent), 1, 1, &p);
  return p == 1      ? &itself
         : p == 2    ? &unary[DM_OP_square]
         : p == 3    ? &triple[DM_TRIPLE_cube]
         : p == 0.5  ? &unary[DM_OP_sqrt]
         : p == -0.5 ? &unary[DM_OP_rsqrt]
         : p == -1   ? &unary[DM_OP_reciprocal]
         : p == -2   ? &triple[DM_TRIPLE_inverse_square]
                     : NULL;
}

/* A comparison happens in the promoted dtype t: operands of another one are rounded to 16 bits
   first, as PyTorch does on the CPU. */
static dm_status compare_16bit(dm_Call *c, int pair, dm_DType t) {
  dm_X x = DM_X_INIT;
  const double pq[2] = {0, 0};
  dm_Tensor *const in[2] = {x_cast(&x, c->in[0], t), x_cast(&x, c->in[1], t)};
  dm_status st = x.st;
  if (st == DM_OK) st = dm_pointwise(c->out[0], 2, in, t, &dm_loops()->pair[pair], pq);
  dm_x_free(&x);
  return st;
}

/* t: the dtype of the arithmetic; the output's may differ (bool). */
dm_status binary_cpu(dm_Call *c) {
  const int pair = dm_pair_of(c);
  const bool compares = results[pair] == BOOL;
  const dm_DType t = compares ? dm_result_dtype(2, c->in) : (dm_DType)c->out_meta[0].dtype;
  if (compares && dm_is_low(t)) return compare_16bit(c, pair, t);
  const double pq[2] = {dm_pair_param(c), 0};
  if (t == DM_BOOL && results[pair] != QUOTIENT) {
    dm_pointwise_bools(c->out[0], c->in[0], c->in[1], &dm_loops()->pair[pair], pq);
    return DM_OK;
  }
  const dm_Pointwise *const power = pair == DM_OP_pow ? simple_power(c->in[1], t) : NULL;
  if (power) return dm_pointwise(c->out[0], 1, c->in, t, power, pq);
  return dm_pointwise(c->out[0], 2, c->in, t, &dm_loops()->pair[pair], pq);
}

/* ---- gradients; the tape sums broadcast dims ---- */

/* y = a + alpha b: gy, and alpha gy. */
void add_grad(dm_Grad *g) {
  const double alpha = DM_ATTR(dm_AlphaAttr, g)->alpha;
  if (g->need[0]) g->gx[0] = g->gy[0];
  if (g->need[1]) g->gx[1] = alpha == 1 ? g->gy[0] : x_scale(g->x, g->gy[0], alpha);
}

/* y = relu(a + b): what of gy passes relu, to both. */
void add_relu_grad(dm_Grad *g) {
  const double none[2] = {0, 0};
  dm_Tensor *passes =
      x_unary_back(g->x, DM_OP_relu, none, g->gy[0], g->out[0], g->create_graph);
  for (int i = 0; i < 2; i++)
    if (g->need[i]) g->gx[i] = passes;
}

/* y = a - alpha b: gy, and -alpha gy. */
void sub_grad(dm_Grad *g) {
  const double alpha = DM_ATTR(dm_AlphaAttr, g)->alpha;
  if (g->need[0]) g->gx[0] = g->gy[0];
  if (g->need[1]) g->gx[1] = x_scale(g->x, g->gy[0], -alpha);
}

static bool is_column(int ndim, const int64_t *shape, int64_t n) {
  return ndim == 2 && shape[0] == n && shape[1] == 1;
}
static bool is_row(int ndim, const int64_t *shape, int64_t n) {
  return ndim > 0 && shape[ndim - 1] == n && (ndim == 1 || (ndim == 2 && shape[0] == 1));
}

/* The gradient of operand i of a product of a column and a row, which is a matrix times the
   other one; NULL where it is none. */
static dm_Tensor *vector_grad(dm_Grad *g, int i) {
  dm_X *x = g->x;
  dm_Tensor *gy = g->gy[0], *other = g->in[1 - i];
  const dm_Meta *m = dm_in_meta(g, i);
  if (gy->ndim != 2 || gy->dtype != other->dtype) return NULL;
  const int64_t rows = gy->shape[0], columns = gy->shape[1];
  const bool column =
      is_column(m->ndim, m->shape, rows) && is_row(other->ndim, other->shape, columns);
  const bool row =
      is_row(m->ndim, m->shape, columns) && is_column(other->ndim, other->shape, rows);
  if (!column && !row) return NULL;
  dm_Tensor *v = x_reshape(x, other, 1, &other->numel);
  dm_Tensor *y = x_matmul(x, column ? gy : x_transpose(x, gy, 0, 1), v);
  return x_reshape(x, y, m->ndim, m->shape);
}

/* y = a b: gy b, and gy a. */
void mul_grad(dm_Grad *g) {
  dm_X *x = g->x;
  for (int i = 0; i < 2; i++) {
    if (!g->need[i]) continue;
    if (g->create_graph || !dm_was_broadcast(g, i)) g->gx[i] = x_mul(x, g->gy[0], g->in[1 - i]);
    else if (!(g->gx[i] = vector_grad(g, i)))
      g->gx[i] = x_partial_for(g, i, DM_TRIPLE_product_back, 1, g->in[1 - i], NULL);
  }
}

/* y = a / b: gy / b, and -gy (a / b) / b, which does not square b. A rounded quotient is
   constant almost everywhere. */
void div_grad(dm_Grad *g) {
  dm_X *x = g->x;
  dm_Tensor *gy = g->gy[0], *a = g->in[0], *b = g->in[1];
  if (DM_ATTR(dm_DivAttr, g)->rounding_mode != DM_ROUND_NONE) {
    for (int i = 0; i < 2; i++)
      if (g->need[i]) g->gx[i] = x_zeros_like(x, gy);
    return;
  }
  if (g->need[0])
    g->gx[0] = !g->create_graph && dm_was_broadcast(g, 0)
                   ? x_partial_for(g, 0, DM_TRIPLE_quotient_back, 1, b, NULL)
                   : x_div(x, gy, b);
  if (!g->need[1]) return;
  if (!g->create_graph) {
    g->gx[1] = x_partial_for(g, 1, DM_TRIPLE_div_back, 0, a, b);
    return;
  }
  b = dm_x_widen(x, b);
  a = x_div(x, x_div(x, dm_x_widen(x, a), b), b);
  g->gx[1] = x_mul(x, x_scale(x, dm_x_widen(x, gy), -1), a);
}

/* A bool tensor: a == v. */
static dm_Tensor *equals(dm_X *x, dm_Tensor *a, double v) {
  return dm_x(x, DM_OP_eq, NULL, 2, a, dm_x_number(x, v));
}

/* The gradient of a square and of a cube, in one pass. */
static bool simple_power_grad(dm_Grad *g) {
  dm_Tensor *a = g->in[0], *b = g->in[1];
  double p;
  if (g->create_graph || !dm_is_number(b, &p) || (p != 2 && p != 3)) return false;
  g->gx[0] = x_partial(g->x, p == 2 ? DM_TRIPLE_square_back : DM_TRIPLE_cube_back, p, g->gy[0],
                       a, NULL);
  return true;
}

/* The result serves the exponent's gradient, which a number has not. */
dm_status pow_rule(dm_Call *c) {
  double p;
  if (dm_is_number(c->in[1], &p)) c->save &= ~(uint32_t)O0;
  return binary_rule(c);
}

/* d a^b: b a^(b-1), and a^b log a; 0 where the exponent or the value is 0, whatever gy is. */
void pow_grad(dm_Grad *g) {
  if (simple_power_grad(g)) return;
  dm_X *x = g->x;
  dm_Tensor *gy = dm_x_widen(x, g->gy[0]), *y = dm_x_widen(x, g->out[0]);
  dm_Tensor *a = dm_x_widen(x, g->in[0]), *b = dm_x_widen(x, g->in[1]);
  dm_Tensor *zero = dm_x_number(x, 0);
  if (g->need[0]) {
    double p; /* arithmetic between two numbers would round to float32 */
    dm_Tensor *less = dm_is_number(b, &p) ? dm_x_number(x, p - 1) : x_shift(x, b, -1);
    dm_Tensor *d = x_mul(x, b, dm_x(x, DM_OP_pow, NULL, 2, a, less));
    g->gx[0] = x_where(x, equals(x, b, 0), zero, x_mul(x, gy, d));
  }
  if (g->need[1]) {
    dm_Tensor *flat = dm_x(x, DM_OP_logical_and, NULL, 2, equals(x, a, 0),
                           dm_x(x, DM_OP_ge, NULL, 2, b, zero));
    dm_Tensor *d = x_mul(x, y, x_unary(x, DM_OP_log, a));
    g->gx[1] = x_where(x, flat, zero, x_mul(x, gy, d));
  }
}

/* The larger one gets the gradient; equal ones share it; both get it of NaN, as in PyTorch. */
static void choose_grad(dm_Grad *g, int loses) {
  dm_X *x = g->x;
  dm_Tensor *gy = g->gy[0], *zero = dm_x_number(x, 0);
  dm_Tensor *tie = dm_x(x, DM_OP_eq, NULL, 2, g->in[0], g->in[1]);
  /* Both halves add up to gy, as a subgradient of max(a, b) at a = b must. */
  dm_Tensor *half = x_scale(x, gy, 0.5);
  for (int i = 0; i < 2; i++) {
    if (!g->need[i]) continue;
    dm_Tensor *other = dm_x(x, loses, NULL, 2, g->in[i], g->in[1 - i]);
    g->gx[i] = x_where(x, tie, half, x_where(x, other, zero, gy));
  }
}

/* The loser is less; a comparison with NaN is false both ways, so NaN and its partner both get
   the gradient. */
void maximum_grad(dm_Grad *g) { choose_grad(g, DM_OP_lt); }
/* The loser is greater. */
void minimum_grad(dm_Grad *g) { choose_grad(g, DM_OP_gt); }

/* a - b q with q the rounded quotient, which is constant almost everywhere. */
static void modulo_grad(dm_Grad *g, int64_t mode) {
  dm_X *x = g->x;
  if (g->need[0]) g->gx[0] = g->gy[0];
  if (!g->need[1]) return;
  if (mode == DM_ROUND_TRUNC && !g->create_graph) {
    g->gx[1] = x_partial_for(g, 1, DM_TRIPLE_trunc_back, 0, g->in[0], g->in[1]);
    return;
  }
  dm_Tensor *a = dm_x_widen(x, g->in[0]), *b = dm_x_widen(x, g->in[1]);
  dm_Tensor *q = dm_x(x, DM_OP_div, &mode, 2, a, b);
  g->gx[1] = x_scale(x, x_mul(x, dm_x_widen(x, g->gy[0]), q), -1);
}
/* fmod truncates the quotient, remainder rounds it down. */
void fmod_grad(dm_Grad *g) { modulo_grad(g, DM_ROUND_TRUNC); }
void remainder_grad(dm_Grad *g) { modulo_grad(g, DM_ROUND_FLOOR); }

/* y = atan2(a, b): gy b / (a^2 + b^2), and -gy a / (a^2 + b^2); 0 at the origin. */
void atan2_grad(dm_Grad *g) {
  dm_X *x = g->x;
  dm_Tensor *gy = g->gy[0], *a = g->in[0], *b = g->in[1];
  if (!g->create_graph) {
    if (g->need[0]) g->gx[0] = x_partial_for(g, 0, DM_TRIPLE_atan2_back, 1, a, b);
    if (g->need[1]) g->gx[1] = x_partial_for(g, 1, DM_TRIPLE_atan2_back, -1, b, a);
    return;
  }
  a = dm_x_widen(x, a);
  b = dm_x_widen(x, b);
  double p; /* arithmetic between two numbers would round to float32 */
  dm_Tensor *b2 = dm_is_number(b, &p) ? dm_x_number(x, p * p) : x_mul(x, b, b);
  dm_Tensor *r2 = x_add(x, x_mul(x, a, a), b2);
  dm_Tensor *origin = equals(x, r2, 0), *zero = dm_x_number(x, 0);
  dm_Tensor *safe = x_where(x, origin, dm_x_number(x, 1), r2);
  dm_Tensor *w = x_where(x, origin, zero, x_div(x, dm_x_widen(x, gy), safe));
  if (g->need[0]) g->gx[0] = x_mul(x, w, b);
  if (g->need[1]) g->gx[1] = x_scale(x, x_mul(x, w, a), -1);
}

/* The slope is 1 or -1 where x is not 0; other's size does not count. */
void copysign_grad(dm_Grad *g) {
  dm_X *x = g->x;
  dm_Tensor *gy = g->gy[0], *a = g->in[0];
  if (g->need[0]) {
    dm_Tensor *slope = x_where(x, equals(x, a, 0), dm_x_number(x, 0), x_div(x, g->out[0], a));
    g->gx[0] = x_mul(x, gy, slope);
  }
  if (g->need[1]) g->gx[1] = x_zeros_like(x, gy);
}

/* y = sqrt(a^2 + b^2): gy a / y, and gy b / y, with y that is not rounded to 16 bits. */
void hypot_grad(dm_Grad *g) {
  dm_X *x = g->x;
  for (int i = 0; i < 2; i++) {
    dm_Tensor *gy = g->gy[0], *a = g->in[i], *b = g->in[1 - i];
    if (!g->need[i]) continue;
    if (!g->create_graph) {
      g->gx[i] = x_partial_for(g, i, DM_TRIPLE_hypot_back, 0, a, b);
    } else {
      a = dm_x_widen(x, a);
      dm_Tensor *y = dm_x(x, DM_OP_hypot, NULL, 2, a, dm_x_widen(x, b));
      g->gx[i] = x_mul(x, dm_x_widen(x, gy), x_div(x, a, y));
    }
  }
}

/* y = a log(b), or a log1p(b): the logarithm, 0 where a is 0 and it is none, and a / b, or a /
   (1 + b). The formulas are those of the two gradients. */
static void log_product_grad(dm_Grad *g, int logarithm, int of_a, int of_b) {
  dm_X *x = g->x;
  dm_Tensor *gy = g->gy[0], *a = g->in[0], *b = g->in[1];
  const bool shifted = logarithm == DM_OP_log1p;
  if (!g->create_graph) {
    if (g->need[0]) g->gx[0] = x_partial_for(g, 0, of_a, 0, a, b);
    if (g->need[1]) g->gx[1] = x_partial_for(g, 1, of_b, 0, a, b);
    return;
  }
  gy = dm_x_widen(x, gy);
  a = dm_x_widen(x, a);
  b = dm_x_widen(x, b);
  if (g->need[0]) {
    dm_Tensor *none = x_test(x, DM_OP_le, b, shifted ? -1 : 0);
    dm_Tensor *flat = dm_x(x, DM_OP_logical_and, NULL, 2, equals(x, a, 0), none);
    dm_Tensor *log = x_unary(x, logarithm, b);
    g->gx[0] = x_where(x, flat, dm_x_number(x, 0), x_mul(x, gy, log));
  }
  if (g->need[1]) g->gx[1] = x_div(x, x_mul(x, gy, a), shifted ? x_shift(x, b, 1) : b);
}
void xlogy_grad(dm_Grad *g) {
  log_product_grad(g, DM_OP_log, DM_TRIPLE_xlogy_back, DM_TRIPLE_xlogy_other_back);
}
void special_xlog1py_grad(dm_Grad *g) {
  log_product_grad(g, DM_OP_log1p, DM_TRIPLE_xlog1py_back, DM_TRIPLE_xlog1py_other_back);
}

/* The step to the next number counts as a constant; where x is other already, PyTorch has 0. */
void nextafter_grad(dm_Grad *g) {
  dm_X *x = g->x;
  dm_Tensor *same = dm_x(x, DM_OP_eq, NULL, 2, g->in[0], g->in[1]);
  if (g->need[0]) g->gx[0] = x_where(x, same, dm_x_number(x, 0), g->gy[0]);
  if (g->need[1]) g->gx[1] = x_zeros_like(x, g->gy[0]);
}

/* The share of each: sigmoid of how much larger it is, in powers of 2 times ln 2. */
void logaddexp_grad(dm_Grad *g) {
  dm_X *x = g->x;
  const double base = g->op == &dm_ops[DM_OP_logaddexp2] ? DM_LN_2 : 1;
  for (int i = 0; i < 2; i++) {
    dm_Tensor *gy = g->gy[0], *a = g->in[i], *b = g->in[1 - i];
    if (!g->need[i]) continue;
    if (!g->create_graph) {
      g->gx[i] = x_partial_for(g, i, DM_TRIPLE_logaddexp_back, base, a, b);
    } else {
      dm_Tensor *lead = x_scale(x, x_sub(x, dm_x_widen(x, a), dm_x_widen(x, b)), base);
      g->gx[i] = x_mul(x, dm_x_widen(x, gy), x_unary(x, DM_OP_sigmoid, lead));
    }
  }
}
