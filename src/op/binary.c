/* The pointwise ops of two operands. Formulas per compute type; what result a
   row has (the promoted dtype, a float, a bool) follows from its function set. */
#include <tgmath.h>

#include "base/error.h"
#include "op/pointwise.h"

typedef enum Result { SAME, FLOAT, BOOL } Result;

typedef struct Binary {
  Result result;
  dm_Pointwise fn;
} Binary;

/* a, b: operands; p: the row's first attribute; n / N: float form; int form */
#define BLOCK(NAME, TYPE, SUFFIX, EXPR)                                                        \
  static void NAME##_##SUFFIX(const TYPE *const *in, TYPE *out, int64_t n, const double *pq) { \
    const TYPE *x = in[0], *y = in[1], p = (TYPE)pq[0];                                        \
    DM_UNUSED(p);                                                                              \
    for (int64_t i = 0; i < n; i++) {                                                          \
      const TYPE a = x[i], b = y[i];                                                           \
      DM_UNUSED(b);                                                                            \
      out[i] = (TYPE)(EXPR);                                                                   \
    }                                                                                          \
  }
#define BLOCKS(NAME, FLOAT_EXPR, INT_EXPR) \
  BLOCK(NAME, float, f32, FLOAT_EXPR)      \
  BLOCK(NAME, double, f64, FLOAT_EXPR)     \
  BLOCK(NAME, int64_t, i64, INT_EXPR)

/* Integers wrap around, as PyTorch's do; unsigned arithmetic keeps that defined. */
#define U(x) ((uint64_t)(x))

static int64_t int_pow(int64_t a, int64_t e) {
  if (e < 0) return a == 1 ? 1 : a == -1 ? (e % 2 ? -1 : 1) : 0;
  uint64_t r = 1, base = U(a);
  for (; e; e >>= 1, base *= base)
    if (e & 1) r *= base;
  return (int64_t)r;
}
/* The rules refuse a zero divisor before the kernel; -1 would overflow. */
static int64_t int_fmod(int64_t a, int64_t b) { return b == -1 ? 0 : a % b; }
static int64_t int_remainder(int64_t a, int64_t b) {
  const int64_t r = int_fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
static int64_t int_trunc_div(int64_t a, int64_t b) {
  return b == -1 ? (int64_t)(0 - U(a)) : a / b;
}
static int64_t int_floor_div(int64_t a, int64_t b) {
  const int64_t q = int_trunc_div(a, b);
  return int_fmod(a, b) != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}
#define MODULO(TYPE, S)                                                            \
  static inline TYPE modulo_##S(TYPE a, TYPE b) {                                  \
    const TYPE r = fmod(a, b);                                                     \
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;                               \
  }                                                                                \
  static inline TYPE floor_div_##S(TYPE a, TYPE b) { /* Python's floor division */ \
    if (b == 0) return a / b;                                                      \
    const TYPE r = fmod(a, b);                                                     \
    TYPE d = (a - r) / b;                                                          \
    if (r != 0 && (b < 0) != (r < 0)) d -= 1;                                      \
    if (d == 0) return copysign((TYPE)0, a / b);                                   \
    const TYPE f = floor(d);                                                       \
    return d - f > (TYPE)0.5 ? f + 1 : f;                                          \
  }
MODULO(float, f32)
MODULO(double, f64)
#undef MODULO

BLOCKS(add, a + b, U(a) + U(b))
BLOCKS(add_scaled, a + p * b, U(a) + U(p) * U(b))
BLOCKS(sub, a - b, U(a) - U(b))
BLOCKS(sub_scaled, a - p * b, U(a) - U(p) * U(b))
BLOCKS(mul, a *b, U(a) * U(b))
BLOCKS(div, a / b, a)
BLOCKS(div_trunc, trunc(a / b), int_trunc_div(a, b))
BLOCK(div_floor, float, f32, floor_div_f32(a, b))
BLOCK(div_floor, double, f64, floor_div_f64(a, b))
BLOCK(div_floor, int64_t, i64, int_floor_div(a, b))
BLOCKS(pow, pow(a, b), int_pow(a, b))
BLOCKS(maximum, a != a || a > b ? a : b, a > b ? a : b)
BLOCKS(minimum, a != a || a < b ? a : b, a < b ? a : b)
BLOCKS(fmod, fmod(a, b), int_fmod(a, b))
BLOCK(remainder, float, f32, modulo_f32(a, b))
BLOCK(remainder, double, f64, modulo_f64(a, b))
BLOCK(remainder, int64_t, i64, int_remainder(a, b))
BLOCKS(atan2, atan2(a, b), a)
BLOCKS(eq, a == b, a == b)
BLOCKS(ne, a != b, a != b)
BLOCKS(lt, a < b, a < b)
BLOCKS(le, a <= b, a <= b)
BLOCKS(gt, a > b, a > b)
BLOCKS(ge, a >= b, a >= b)
BLOCKS(logical_and, a != 0 && b != 0, a &&b)
BLOCKS(logical_or, a != 0 || b != 0, a || b)
BLOCKS(logical_xor, (a != 0) != (b != 0), !a != !b)
#undef BLOCKS
#undef BLOCK
#undef U

#define SET(RESULT, NAME)                          \
  {                                                \
    RESULT, { NAME##_f32, NAME##_f64, NAME##_i64 } \
  }
static const Binary table[DM_N_OP] = {
    [DM_OP_add] = SET(SAME, add),
    [DM_OP_sub] = SET(SAME, sub),
    [DM_OP_mul] = SET(SAME, mul),
    [DM_OP_div] = SET(FLOAT, div),
    [DM_OP_pow] = SET(SAME, pow),
    [DM_OP_maximum] = SET(SAME, maximum),
    [DM_OP_minimum] = SET(SAME, minimum),
    [DM_OP_fmod] = SET(SAME, fmod),
    [DM_OP_remainder] = SET(SAME, remainder),
    [DM_OP_atan2] = SET(FLOAT, atan2),
    [DM_OP_eq] = SET(BOOL, eq),
    [DM_OP_ne] = SET(BOOL, ne),
    [DM_OP_lt] = SET(BOOL, lt),
    [DM_OP_le] = SET(BOOL, le),
    [DM_OP_gt] = SET(BOOL, gt),
    [DM_OP_ge] = SET(BOOL, ge),
    [DM_OP_logical_and] = SET(BOOL, logical_and),
    [DM_OP_logical_or] = SET(BOOL, logical_or),
    [DM_OP_logical_xor] = SET(BOOL, logical_xor),
};
static const Binary scaled_add = SET(SAME, add_scaled), scaled_sub = SET(SAME, sub_scaled);
static const Binary trunc_div = SET(SAME, div_trunc), floor_div = SET(SAME, div_floor);
#undef SET

enum { ROUND_NONE, ROUND_TRUNC, ROUND_FLOOR };

/* The function set of this call: add, sub and div have a second form. */
static const Binary *form_of(const dm_Call *c) {
  switch (dm_op_id(c->op)) {
  case DM_OP_add: return *DM_ATTR(double, c) == 1.0 ? &table[DM_OP_add] : &scaled_add;
  case DM_OP_sub: return *DM_ATTR(double, c) == 1.0 ? &table[DM_OP_sub] : &scaled_sub;
  case DM_OP_div: {
    const int64_t mode = *DM_ATTR(int64_t, c);
    return mode == ROUND_NONE    ? &table[DM_OP_div]
           : mode == ROUND_TRUNC ? &trunc_div
                                 : &floor_div;
  }
  default: return &table[dm_op_id(c->op)];
  }
}

static bool has_zero(dm_Tensor *t) {
  dm_X x = DM_X_INIT;
  dm_Tensor *zero = dm_x(&x, DM_OP_eq, NULL, 2, t, dm_x_number(&x, 0));
  dm_Tensor *any = zero ? dm_x(&x, DM_OP_any, NULL, 1, zero) : NULL;
  const bool yes = any && *(const uint8_t *)dm_tensor_data(any);
  dm_x_free(&x);
  return yes;
}

dm_status binary_rule(dm_Call *c) {
  const Binary *b = form_of(c);
  dm_Tensor *x = c->in[0], *y = c->in[1];
  dm_Meta *m = &c->out_meta[0];
  int ndim;
  if (dm_same_shape(x, y)) {
    *m = dm_meta_of(x);
  } else {
    DM_TRY(dm_broadcast(c->op->name, x, y, &ndim, m->shape));
    m->ndim = (uint8_t)ndim;
  }
  m->device = x->device;
  const dm_DType t = dm_result_dtype(2, c->in);
  const dm_OpId id = dm_op_id(c->op);
  if (t == DM_BOOL && id == DM_OP_sub)
    return dm_fail(DM_EARG, "sub: bool minus bool; hint: x:logical_xor(y)");
  if (!dm_is_float(t) && b->result == SAME) {
    const bool divides = id == DM_OP_fmod || id == DM_OP_remainder || id == DM_OP_div;
    if (divides && y->device.type == DM_CPU && has_zero(y)) /* else the kernel tells */
      return dm_fail(DM_EARG, "%s: integer division by zero", c->op->name);
    if (id == DM_OP_pow && (y->flags & DM_T_NUMBER) && y->dtype == DM_I64 &&
        *(const int64_t *)dm_tensor_data(y) < 0)
      return dm_fail(DM_EARG, "pow: integers to a negative power; hint: x:float()");
  }
  m->dtype = (uint8_t)(b->result == BOOL                       ? DM_BOOL
                       : b->result == FLOAT && !dm_is_float(t) ? DM_F32
                                                               : t);
  return DM_OK;
}

dm_status binary_cpu(dm_Call *c) {
  const Binary *b = form_of(c);
  dm_DType t = dm_result_dtype(2, c->in);
  if (b->result == FLOAT && !dm_is_float(t)) t = DM_F32;
  const double pq[2] = {
      dm_op_id(c->op) == DM_OP_add || dm_op_id(c->op) == DM_OP_sub ? *DM_ATTR(double, c) : 0,
      0};
  return dm_pointwise(c->out[0], 2, c->in, t, &b->fn, pq);
}

/* ---- gradients; the tape sums broadcast dims ---- */

void add_grad(dm_Grad *g) {
  const double alpha = *(const double *)g->attr;
  if (g->need[0]) g->gx[0] = g->gy[0];
  if (g->need[1]) g->gx[1] = alpha == 1 ? g->gy[0] : x_scale(g->x, g->gy[0], alpha);
}

void sub_grad(dm_Grad *g) {
  const double alpha = *(const double *)g->attr;
  if (g->need[0]) g->gx[0] = g->gy[0];
  if (g->need[1]) g->gx[1] = x_scale(g->x, g->gy[0], -alpha);
}

void mul_grad(dm_Grad *g) {
  if (g->need[0]) g->gx[0] = x_mul(g->x, g->gy[0], g->in[1]);
  if (g->need[1]) g->gx[1] = x_mul(g->x, g->gy[0], g->in[0]);
}

void div_grad(dm_Grad *g) {
  dm_X *x = g->x;
  dm_Tensor *gy = g->gy[0], *a = g->in[0], *b = g->in[1];
  if (*(const int64_t *)g->attr != ROUND_NONE) {
    for (int i = 0; i < 2; i++)
      if (g->need[i]) g->gx[i] = x_zeros_like(x, gy);
    return;
  }
  dm_Tensor *ga = x_div(x, gy, b);
  if (g->need[0]) g->gx[0] = ga;
  if (g->need[1]) g->gx[1] = x_scale(x, x_mul(x, ga, x_div(x, a, b)), -1);
}

static dm_Tensor *equals(dm_X *x, dm_Tensor *a, double v) {
  return dm_x(x, DM_OP_eq, NULL, 2, a, dm_x_number(x, v));
}

/* d a^b: b a^(b-1), and a^b log a; 0 where the exponent or the value is 0. */
void pow_grad(dm_Grad *g) {
  dm_X *x = g->x;
  dm_Tensor *gy = g->gy[0], *a = g->in[0], *b = g->in[1], *y = g->out[0];
  dm_Tensor *zero = dm_x_number(x, 0);
  if (g->need[0]) {
    dm_Tensor *d = x_mul(x, b, dm_x(x, DM_OP_pow, NULL, 2, a, x_shift(x, b, -1)));
    g->gx[0] = x_mul(x, gy, x_where(x, equals(x, b, 0), zero, d));
  }
  if (g->need[1]) {
    dm_Tensor *flat = dm_x(x, DM_OP_logical_and, NULL, 2, equals(x, a, 0),
                           dm_x(x, DM_OP_ge, NULL, 2, b, zero));
    dm_Tensor *d = x_mul(x, y, x_unary(x, DM_OP_log, a));
    g->gx[1] = x_mul(x, gy, x_where(x, flat, zero, d));
  }
}

/* The larger one gets the gradient; equal ones share it. */
static void choose_grad(dm_Grad *g, int wins) {
  dm_X *x = g->x;
  dm_Tensor *gy = g->gy[0], *zero = dm_x_number(x, 0);
  dm_Tensor *tie = dm_x(x, DM_OP_eq, NULL, 2, g->in[0], g->in[1]);
  dm_Tensor *half = x_scale(x, gy, 0.5);
  for (int i = 0; i < 2; i++) {
    if (!g->need[i]) continue;
    dm_Tensor *mine = dm_x(x, wins, NULL, 2, g->in[i], g->in[1 - i]);
    g->gx[i] = x_where(x, tie, half, x_where(x, mine, gy, zero));
  }
}
void maximum_grad(dm_Grad *g) { choose_grad(g, DM_OP_gt); }
void minimum_grad(dm_Grad *g) { choose_grad(g, DM_OP_lt); }

/* a - b q with q the rounded quotient, which is constant almost everywhere. */
static void modulo_grad(dm_Grad *g, int64_t mode) {
  dm_X *x = g->x;
  if (g->need[0]) g->gx[0] = g->gy[0];
  if (g->need[1]) {
    dm_Tensor *q = dm_x(x, DM_OP_div, &mode, 2, g->in[0], g->in[1]);
    g->gx[1] = x_scale(x, x_mul(x, g->gy[0], q), -1);
  }
}
void fmod_grad(dm_Grad *g) { modulo_grad(g, ROUND_TRUNC); }
void remainder_grad(dm_Grad *g) { modulo_grad(g, ROUND_FLOOR); }

void atan2_grad(dm_Grad *g) {
  dm_X *x = g->x;
  dm_Tensor *a = g->in[0], *b = g->in[1];
  dm_Tensor *r2 = x_add(x, x_mul(x, a, a), x_mul(x, b, b));
  dm_Tensor *w = x_div(x, g->gy[0], r2);
  if (g->need[0]) g->gx[0] = x_mul(x, w, b);
  if (g->need[1]) g->gx[1] = x_scale(x, x_mul(x, w, a), -1);
}
