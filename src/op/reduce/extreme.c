/* max, min, amax, amin, argmax, argmin, any and all: reductions that select an
   element (see reduce.h). The state of one output is the best value so far and its
   index among the reduced elements. NaN counts as larger and as smaller than every
   number, as in PyTorch, so that a NaN anywhere in the input reaches the result.
   Among equal elements the first index wins, whatever the number of threads, because
   partial results are merged in the order of the elements.

   The gradient of max and min over one dim goes to the selected index alone. amax,
   amin and the full max and min have no single index: their gradient is divided
   equally among all elements that equal the result, as PyTorch does for amax. */
#include <math.h>

#include "base/error.h"
#include "op/index/index.h"
#include "op/pointwise/pointwise.h"
#include "op/reduce/reduce.h"

/* ---- reductions: s->a (floats) or s->i (integers) is the best value so far, s->k its
   index or -1 when there is none; sign is 1 for the largest, -1 for the smallest. For
   floats s->a holds sign * x, so that both search for a maximum ---- */

/* Merges a later part of the elements into s. A NaN in s stays, a NaN in the later part
   wins over numbers, and ties keep s, which holds the smaller index. */
static void max_merge(dm_Acc *s, const dm_Acc *later) {
  if (s->a != s->a) return;
  if (later->a > s->a || later->a != later->a || later->i > s->i) *s = *later;
}
static void min_merge(dm_Acc *s, const dm_Acc *later) {
  if (s->a != s->a) return; /* s->a holds -x */
  if (later->a > s->a || later->a != later->a || later->i < s->i) *s = *later;
}
/* Undoes the sign that the smallest was searched with. */
static double extreme_value(const dm_Acc *s, double sign, int64_t n) {
  DM_UNUSED(n);
  return s->a * sign;
}
static const dm_Reduction max_reduction = {.start = {0, 0, 0, -1},
                                           .loop = DM_REDUCE_EXTREME,
                                           .merge = max_merge,
                                           .value = extreme_value};
static const dm_Reduction min_reduction = {.start = {0, 0, 0, -1},
                                           .loop = DM_REDUCE_EXTREME,
                                           .merge = min_merge,
                                           .value = extreme_value};

/* True for the ops that select the smallest element. */
static bool wants_least(const dm_Call *c) {
  const dm_OpId id = dm_op_id(c->op);
  return id == DM_OP_min || id == DM_OP_amin || id == DM_OP_argmin;
}

/* The same without an index, for amax and amin: the loops compare values only, which
   vectorizes. */
static const dm_Reduction top_reduction = {.start = {(double)-INFINITY, 0, 0, -1},
                                           .loop = DM_REDUCE_TOP,
                                           .merge = max_merge,
                                           .value = extreme_value};
static const dm_Reduction bottom_reduction = {.start = {(double)-INFINITY, 0, 0, -1},
                                              .loop = DM_REDUCE_TOP,
                                              .merge = min_merge,
                                              .value = extreme_value};

/* Fails when an output would have no element to select from: max over an empty dim is
   not defined. A result without outputs is fine. */
static dm_status check_some(const dm_Call *c, const dm_Tensor *x, unsigned mask) {
  int64_t n_red = 1, n_out = 1;
  for (int d = 0; d < x->ndim; d++) *(mask >> d & 1u ? &n_red : &n_out) *= x->shape[d];
  if (n_red > 0 || (n_out == 0 && x->ndim > 0)) return DM_OK;
  return dm_fail(DM_EARG, "%s: no elements to choose from in %s", c->op->name, DM_SHAPE(x));
}

/* Reduces input 0 over the dims in mask into value and index; either may be NULL. An
   index counts from the caller's base. */
static dm_status choose(dm_Call *c, dm_Tensor *value, dm_Tensor *index, unsigned mask) {
  dm_Tensor *out[2] = {value, index};
  const bool least = wants_least(c);
  const dm_Reduction *reduction = index ? (least ? &min_reduction : &max_reduction)
                                        : (least ? &bottom_reduction : &top_reduction);
  return dm_reduce(out, c->in[0], mask, dm_compute_dtype((dm_DType)c->in[0]->dtype), reduction,
                   least ? -1 : 1, c->base);
}

/* ---- amax, amin ---- */

/* Output: x's shape without the reduced dims (or with size 1, keepdim), in x's
   dtype. */
dm_status amax_rule(dm_Call *c) {
  const dm_DimsAttr *a = DM_ATTR(dm_DimsAttr, c);
  unsigned mask;
  DM_TRY(dm_dims_mask(c, c->in[0], &a->dim, &mask));
  DM_TRY(check_some(c, c->in[0], mask));
  dm_out_reduced(c, 0, c->in[0], mask, a->keepdim, (dm_DType)c->in[0]->dtype);
  return DM_OK;
}
dm_status amax_cpu(dm_Call *c) {
  return choose(c, c->out[0], NULL, dm_dims_bits(c->in[0]->ndim, DM_ATTR(dm_DimsAttr, c)->dim));
}

/* dx = gy * [x == y] / count, where count is the number of elements of the reduced
   slice that equal y. nan: NaN equals NaN, as in PyTorch's max of all elements, but not in
   its amax. */
static dm_Tensor *to_equals(dm_Grad *g, dm_Ints dims, bool nan) {
  dm_X *x = g->x;
  const dm_Meta *m = dm_in_meta(g, 0);
  const unsigned mask = dm_dims_bits(m->ndim, dims);
  dm_Tensor *y = x_keepdim(x, g->out[0], m, mask), *gy = x_keepdim(x, g->gy[0], m, mask);
  dm_Tensor *equal = dm_x(x, DM_OP_eq, NULL, 2, g->in[0], y);
  if (nan) equal = dm_x(x, DM_OP_logical_or, NULL, 2, equal, x_unary(x, DM_OP_isnan, g->in[0]));
  dm_Tensor *hit = x_like(x, equal, g->in[0]);
  return x_mul(x, hit, x_div(x, gy, x_sum(x, hit, dims, true)));
}
void amax_grad(dm_Grad *g) { g->gx[0] = to_equals(g, DM_ATTR(dm_DimsAttr, g)->dim, false); }

/* ---- max, min, argmax, argmin ---- */

/* The dims to reduce as bits: one dim, or all of them when none is given. */
static unsigned dim_mask(const dm_Tensor *x, dm_OptInt dim) {
  const dm_Ints dims = {dim.set ? 1 : -1, {dim.v}};
  return dm_dims_bits(x->ndim, dims);
}
/* Checks `dim` and that there is an element to select for every output. */
static dm_status check_choice(dm_Call *c, unsigned *mask) {
  const dm_DimAttr *a = DM_ATTR(dm_DimAttr, c);
  int d;
  if (a->dim.set) DM_TRY(dm_check_dim(c, c->in[0], a->dim.v, &d));
  *mask = dim_mask(c->in[0], a->dim);
  return check_some(c, c->in[0], *mask);
}

/* With a dim the op gives values and int64 indices, as torch.max(x, dim); without a dim
   the value alone. */
dm_status max_rule(dm_Call *c) {
  const dm_DimAttr *a = DM_ATTR(dm_DimAttr, c);
  unsigned mask;
  DM_TRY(check_choice(c, &mask));
  const bool keep = a->dim.set && a->keepdim;
  dm_out_reduced(c, 0, c->in[0], mask, keep, (dm_DType)c->in[0]->dtype);
  dm_out_reduced(c, 1, c->in[0], mask, keep, DM_I64);
  c->n_out = a->dim.set ? 2 : 1;
  if (a->dim.set) c->save &= O1; /* the gradient reads positions alone */
  return DM_OK;
}
dm_status max_cpu(dm_Call *c) {
  return choose(c, c->out[0], c->n_out == 2 ? c->out[1] : NULL,
                dim_mask(c->in[0], DM_ATTR(dm_DimAttr, c)->dim));
}
/* With a dim, dx is zeros with gy scattered to the selected indices; without a dim, gy
   is shared by equal elements. */
void max_grad(dm_Grad *g) {
  dm_X *x = g->x;
  const dm_DimAttr *a = DM_ATTR(dm_DimAttr, g);
  const dm_Meta *m = dm_in_meta(g, 0);
  if (!g->gy[0]) return;
  if (!a->dim.set) {
    g->gx[0] = to_equals(g, (dm_Ints){-1, {0}}, true);
    return;
  }
  const int64_t d = a->dim.v < 0 && m->ndim > 0 ? a->dim.v + m->ndim : a->dim.v;
  const unsigned mask = m->ndim > 0 ? 1u << d : 0;
  g->gx[0] = x_put_back(g, a->dim.v, x_keepdim(x, g->gy[0], m, mask),
                        x_keepdim(x, g->out[1], m, mask));
}

dm_status argmax_rule(dm_Call *c) {
  unsigned mask;
  DM_TRY(check_choice(c, &mask));
  dm_out_reduced(c, 0, c->in[0], mask, DM_ATTR(dm_DimAttr, c)->keepdim, DM_I64);
  return DM_OK;
}
dm_status argmax_cpu(dm_Call *c) {
  return choose(c, NULL, c->out[0], dim_mask(c->in[0], DM_ATTR(dm_DimAttr, c)->dim));
}

/* ---- any, all ---- */

/* any: s->i, or of floats s->a, becomes 1 at the first nonzero element; all: it becomes 0 at
   the first zero. NaN is nonzero. */
static void any_merge(dm_Acc *s, const dm_Acc *later) {
  s->a += later->a;
  s->i |= later->i;
}
static void all_merge(dm_Acc *s, const dm_Acc *later) {
  s->a *= later->a;
  s->i &= later->i;
}
static double all_value(const dm_Acc *s, double param, int64_t n) {
  DM_UNUSED(param);
  return s->a == (double)n;
}
static double truth_value(const dm_Acc *s, double param, int64_t n) {
  DM_UNUSED(param), DM_UNUSED(n);
  return s->a != 0;
}
static const dm_Reduction any_reduction = {
    .loop = DM_REDUCE_ANY, .merge = any_merge, .value = truth_value};
static const dm_Reduction all_reduction = {
    .start = {1, 0, 1, 0}, .loop = DM_REDUCE_ALL, .merge = all_merge, .value = truth_value};

/* Of bools, which are counted. */
static const dm_Reduction any_of_bools = {
    .loop = DM_REDUCE_SUM, .merge = any_merge, .value = truth_value};
static const dm_Reduction all_of_bools = {
    .loop = DM_REDUCE_SUM, .merge = any_merge, .value = all_value};

/* The result is bool, except that a uint8 input gives uint8, as in PyTorch. */
dm_status any_rule(dm_Call *c) {
  const dm_DimsAttr *a = DM_ATTR(dm_DimsAttr, c);
  unsigned mask;
  DM_TRY(dm_dims_mask(c, c->in[0], &a->dim, &mask));
  dm_out_reduced(c, 0, c->in[0], mask, a->keepdim, c->in[0]->dtype == DM_U8 ? DM_U8 : DM_BOOL);
  return DM_OK;
}
dm_status any_cpu(dm_Call *c) {
  dm_Tensor *const x = c->in[0], *out[2] = {c->out[0], NULL};
  const bool bools = x->dtype == DM_BOOL, all = c->op == &dm_ops[DM_OP_all];
  return dm_reduce(out, x, dm_dims_bits(x->ndim, DM_ATTR(dm_DimsAttr, c)->dim),
                   dm_compute_dtype((dm_DType)x->dtype),
                   all     ? bools ? &all_of_bools : &all_reduction
                   : bools ? &any_of_bools
                           : &any_reduction,
                   0, 0);
}
