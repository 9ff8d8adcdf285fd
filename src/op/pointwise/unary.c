/* The pointwise ops of one operand. Values come from the formulas of base/scalar.inc (floats)
   and base/single.inc (integers and predicates), which cpu/loops compiles for each processor.

   A derivative is one row of base/scalar.inc, read twice. Without create_graph the gradient is
   unary_backward, one pass over gy and the saved tensor that computes the row in numbers; with
   create_graph it is gy times the same row composed of ops, which has a gradient itself. */
#include <tgmath.h>

#include "base/error.h"
#include "cpu/loops/loops.h"
#include "op/pointwise/pointwise.h"
#include "op/pointwise/unary.h"

/* The ops that make integers of integers; the others make floats of them. */
static const bool keeps_integers[DM_N_OP] = {
#define INTEGER(NAME, EXPR) [DM_OP_##NAME] = true,
#include "base/single.inc"
};

/* ---- values ---- */

/* Floats keep their dtype, integers too where the op has an integer formula; else the result is
   float32. A bool becomes an int64 square, keeps its sign as a bool, and has no negative. */
dm_status unary_rule(dm_Call *c) {
  const dm_DType d = (dm_DType)c->in[0]->dtype;
  const dm_OpId id = dm_op_id(c->op);
  if (d == DM_BOOL && (id == DM_OP_sign || id == DM_OP_square)) {
    dm_out_like(c, 0, c->in[0], id == DM_OP_sign ? DM_BOOL : DM_I64);
    return DM_OK;
  }
  const int64_t most = 1000; /* polygamma's time grows with n */
  const int64_t n = id == DM_OP_polygamma ? DM_ATTR(dm_PolygammaAttr, c)->n : 0;
  if (n < 0 || n > most)
    return dm_fail(DM_EARG, "polygamma: n is %lld, wanted 0 to %lld", (long long)n,
                   (long long)most);
  if (id == DM_OP_softshrink && !(DM_ATTR(dm_ShrinkAttr, c)->lambd >= 0))
    return dm_fail(DM_EARG, "softshrink: lambd is %g, wanted 0 or more",
                   DM_ATTR(dm_ShrinkAttr, c)->lambd);
  const bool keeps = dm_is_float(d) || (d != DM_BOOL && keeps_integers[id]);
  if (d == DM_BOOL && id == DM_OP_neg)
    return dm_fail(DM_EARG, "neg: bool has no negative; hint: x:logical_not()");
  dm_out_like(c, 0, c->in[0], keeps ? d : dm_default_dtype());
  return DM_OK;
}

dm_status hardtanh_rule(dm_Call *c) {
  const dm_HardtanhAttr *a = DM_ATTR(dm_HardtanhAttr, c);
  if (a->min_val > a->max_val)
    return dm_fail(DM_EARG, "hardtanh: min_val is %g and max_val %g, wanted it not above",
                   a->min_val, a->max_val);
  return unary_rule(c);
}

dm_status frac_rule(dm_Call *c) {
  DM_TRY(dm_check_float(c, c->in[0], "x"));
  return unary_rule(c);
}

dm_status celu_rule(dm_Call *c) {
  if (DM_ATTR(dm_CeluAttr, c)->alpha == 0)
    return dm_fail(DM_EARG, "celu: alpha is 0, wanted another number");
  return unary_rule(c);
}

/* By the loops of the instruction set in use. */
dm_status unary_cpu(dm_Call *c) {
  const dm_OpId id = dm_op_id(c->op);
  double pq[2];
  dm_unary_params(c->op->signature, c->attr, pq);
  return dm_pointwise(c->out[0], 1, c->in, (dm_DType)c->out_meta[0].dtype,
                      &dm_loops()->unary[id], pq);
}

/* out = the op of `in` with one parameter, for kernels that end in an activation. */
dm_status dm_unary_into(dm_Tensor *out, dm_OpId id, double p, dm_Tensor *in) {
  const double pq[2] = {p, 0};
  return dm_pointwise(out, 1, &in, (dm_DType)out->dtype, &dm_loops()->unary[id], pq);
}

/* (gy, saved) of one shape and dtype to the gradient of x; the attribute names the op. */
dm_status unary_backward_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[1], (dm_DType)c->in[1]->dtype);
  return DM_OK;
}

/* One pass over gy and the saved tensor, without a tensor for the derivative itself. */
dm_status unary_backward_cpu(dm_Call *c) {
  const dm_UnaryBackwardAttr *a = DM_ATTR(dm_UnaryBackwardAttr, c);
  return dm_pointwise(c->out[0], 2, c->in, (dm_DType)c->out[0]->dtype,
                      &dm_loops()->unary_back[a->op], &a->p);
}

/* ---- derivatives composed of ops ---- */

/* The composition that a row's words add ops to, and the dtype of the saved tensor. */
typedef struct Graph {
  dm_X *x;
  dm_DType dtype;
} Graph;
typedef dm_Tensor *Term;

/* a / b, and k where b is 0; there the division is by 1, so that no gradient divides by 0. */
static Term div_or(const Graph *g, Term a, Term b, double k) {
  Term zero = x_test(g->x, DM_OP_eq, b, 0);
  Term quotient = x_div(g->x, a, x_where(g->x, zero, dm_x_number(g->x, 1), b));
  return x_where(g->x, zero, dm_x_number(g->x, k), quotient);
}

/* j where the mask is set, else k, in the graph's dtype: (j - k) mask + k. */
static Term choose(const Graph *g, Term mask, double j, double k) {
  Term t = x_cast(g->x, mask, g->dtype);
  if (j - k != 1) t = x_scale(g->x, t, j - k);
  return k == 0 ? t : x_shift(g->x, t, k);
}

/* The n-th derivative of digamma; its own derivative is polygamma of n + 1. */
static Term polygamma(const Graph *g, int64_t n, Term a) {
  return dm_x(g->x, DM_OP_polygamma, &n, 1, a);
}

/* The words of base/scalar.inc as ops. Its values are compiled here too, and not used. */
#define SLOPE(NAME, S, IS_GATE)                                \
  enum { NAME##_reads = READS_##S, NAME##_is_gate = IS_GATE }; \
  static Term NAME##_derivative(const Graph *g, Term S, double p, double q)
#define DERIVATIVE(NAME, S) SLOPE(NAME, S, false)
#define GATE(NAME, S) SLOPE(NAME, S, true)
#define DERIVATIVE_OF(NAME, a) NAME##_derivative(g, a, p, q)
#define READS_x I0
#define READS_y O0
#define READS_none 0
#define CALL(NAME, a) x_unary(g->x, DM_OP_##NAME, a)
#define POLYGAMMA(n, a) polygamma(g, (int64_t)(n), a)
#define NUMBER(k) dm_x_number(g->x, k)
#define FLAT NULL
#define ADD(a, b) x_add(g->x, a, b)
#define SUB(a, b) x_sub(g->x, a, b)
#define MUL(a, b) x_mul(g->x, a, b)
#define DIV(a, b) x_div(g->x, a, b)
#define DIV_OR(a, b, k) div_or(g, a, b, k)
#define NEG(a) x_scale(g->x, a, -1)
#define RECIPROCAL(a) x_unary(g->x, DM_OP_reciprocal, a)
#define SCALE(a, k) x_scale(g->x, a, k)
#define SHIFT(a, k) x_shift(g->x, a, k)
#define REST(k, a) x_shift(g->x, x_scale(g->x, a, -1), k)
#define OVER(k, a) x_scale(g->x, x_unary(g->x, DM_OP_reciprocal, a), k)
#define GT(a, k) x_test(g->x, DM_OP_gt, a, k)
#define GE(a, k) x_test(g->x, DM_OP_ge, a, k)
#define LT(a, k) x_test(g->x, DM_OP_lt, a, k)
#define LE(a, k) x_test(g->x, DM_OP_le, a, k)
#define AND(m, n) dm_x(g->x, DM_OP_logical_and, NULL, 2, m, n)
#define OR(m, n) dm_x(g->x, DM_OP_logical_or, NULL, 2, m, n)
#define WHERE(m, a, b) x_where(g->x, m, a, b)
#define CHOOSE(m, j, k) choose(g, m, j, k)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define real double
#define F(NAME) NAME##_unused
#include "base/scalar.inc"
#undef real
#undef F
#pragma GCC diagnostic pop

/* A UNARY row of the op table must have a derivative, from the tensor that the row saves. */
#define UNARY(NAME, SAVE) \
  _Static_assert((int)(SAVE) == (int)NAME##_reads, #NAME ": its row saves another tensor");
#include "unary.gen.def"
#undef UNARY
static const struct Slope {
  Term (*at)(const Graph *g, Term s, double p, double q);
  bool is_gate;
} slopes[DM_N_OP] = {
#define UNARY(NAME, ...) [DM_OP_##NAME] = {NAME##_derivative, NAME##_is_gate},
#include "unary.gen.def"
#undef UNARY
};

/* gy times dy/dx; zeros where the derivative is 0 everywhere. */
dm_Tensor *x_unary_back(dm_X *x, dm_OpId id, const double pq[2], dm_Tensor *gy,
                        dm_Tensor *saved, bool create_graph) {
  if (create_graph || !saved) { /* constant derivatives save nothing */
    const Graph g = {x, saved ? (dm_DType)saved->dtype : DM_F32};
    Term d = slopes[id].at(&g, saved, pq[0], pq[1]);
    if (!d) return x->st == DM_OK ? x_zeros_like(x, gy) : NULL;
    Term gx = x_mul(x, gy, d);
    return slopes[id].is_gate ? x_where(x, x_test(x, DM_OP_eq, d, 0), dm_x_number(x, 0), gx)
                              : gx;
  }
  const dm_UnaryBackwardAttr a = {id, pq[0], pq[1]};
  return dm_x(x, DM_OP_unary_backward, &a, 2, gy, saved);
}

/* Does nobody but the holder of t, which may be a view of a tensor that went, read its bytes?
 */
static bool is_alone(const dm_Tensor *t) {
  const dm_Tensor *b = t->base;
  const bool base_alone = !b || (atomic_load(&b->refs) == 1 && !b->base && !b->node);
  return atomic_load(&t->refs) == 1 && base_alone &&
         atomic_load(&t->storage->refs) == (b ? 2 : 1);
}

/* May gx be written over gy, which is as large? Only the pass holds it. */
static bool may_overwrite(const dm_Grad *g, const dm_Tensor *saved) {
  const dm_Tensor *gy = g->gy[0];
  return g->last && saved && gy->dtype == saved->dtype && !gy->node &&
         dm_tensor_same_order(gy, saved) && is_alone(gy);
}

/* The row says whether the derivative reads x or y, so only one of them was saved. */
void unary_grad(dm_Grad *g) {
  dm_Tensor *saved = g->in[0] ? g->in[0] : g->out[0];
  double pq[2];
  dm_unary_params(g->op->signature, g->attr, pq);
  if (may_overwrite(g, saved)) {
    dm_Tensor *in[2] = {g->gy[0], saved};
    const dm_UnaryBackwardAttr a = {dm_op_id(g->op), pq[0], pq[1]};
    g->x->st = dm_call_inplace(DM_OP_unary_backward, 2, in, &a);
    g->gx[0] = dm_x_own(g->x, dm_tensor_ref(in[0]));
    return;
  }
  g->gx[0] = x_unary_back(g->x, dm_op_id(g->op), pq, g->gy[0], saved, g->create_graph);
}

/* -gy, by an op that has nothing to widen. */
void neg_grad(dm_Grad *g) { g->gx[0] = x_unary(g->x, DM_OP_neg, g->gy[0]); }

/* ---- predicates: a bool for every element ---- */

/* A bool for each element of x. */
dm_status predicate_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[0], DM_BOOL);
  return DM_OK;
}

/* Out 0 by a formula of single.inc: 1 or 0 in the compute type, of which the store makes a
 * bool. */
dm_status predicate_cpu(dm_Call *c) {
  dm_Tensor *const x = c->in[0];
  const dm_Pointwise *const fn = &dm_loops()->unary[dm_op_id(c->op)];
  if (x->dtype != DM_BOOL)
    return dm_pointwise(c->out[0], 1, c->in, (dm_DType)x->dtype, fn, NULL);
  dm_pointwise_bools(c->out[0], x, x, fn, NULL);
  return DM_OK;
}
