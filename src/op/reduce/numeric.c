/* diff, trapezoid, kron, heaviside and count_nonzero, composed of other ops, which also
   give them their gradients. */
#include "base/error.h"
#include "op/index/index.h"
#include "op/pointwise/pointwise.h"

/* t narrowed along dim to n elements from `start` on. */
static dm_Tensor *part(dm_X *x, dm_Tensor *t, int64_t dim, int64_t start, int64_t n) {
  return dm_x(x, DM_OP_narrow, &(int64_t[3]){dim, start, n}, 1, t);
}
/* t without its first element along dim (later) and without its last (earlier); both
   have one element fewer, so that later - earlier is the difference of neighbours. NULL
   passes a failed step on. */
static dm_Tensor *later(dm_X *x, dm_Tensor *t, int dim) {
  return t ? part(x, t, dim, 1, t->shape[dim] - 1) : NULL;
}
static dm_Tensor *earlier(dm_X *x, dm_Tensor *t, int dim) {
  return t ? part(x, t, dim, 0, t->shape[dim] - 1) : NULL;
}

/* torch.diff: n times y_i = x_(i+1) - x_i along dim, after `prepend` and `append` are
   joined to x; x itself where n is 0. The difference of bools is their exclusive or. */
dm_status diff_compose(dm_Call *c, dm_X *x) {
  const dm_DiffAttr *a = DM_ATTR(dm_DiffAttr, c);
  dm_Tensor *t = c->in[0];
  int dim;
  if (t->ndim < 1 || a->n < 0)
    return dm_fail(DM_EARG,
                   "diff: x has shape %s, n is %lld, wanted one dim or more and 0 or more",
                   DM_SHAPE(t), (long long)a->n);
  DM_TRY(dm_check_dim(c, t, a->dim, &dim));
  const int64_t at = dim;
  if (c->in[1] && a->n > 0) t = dm_x(x, DM_OP_cat, &at, 2, c->in[1], t);
  if (c->in[2] && a->n > 0) t = dm_x(x, DM_OP_cat, &at, 2, t, c->in[2]);
  const bool is_bool = t && t->dtype == DM_BOOL;
  const dm_DType dtype = t ? (dm_DType)t->dtype : DM_F32;
  int64_t n = t ? dm_min_i64(a->n, t->shape[dim]) : 0;
  if (n > 1) t = dm_x_widen(x, t); /* one difference rounds once by itself */
  for (; n > 0 && t && t->shape[dim] > 0; n--)
    t = is_bool ? dm_x(x, DM_OP_ne, NULL, 2, later(x, t, dim), earlier(x, t, dim))
                : x_sub(x, later(x, t, dim), earlier(x, t, dim));
  if (x->st != DM_OK) return x->st;
  c->out[0] = t == c->in[0] ? x_unary(x, DM_OP_clone, t) : t;
  if (dm_is_low(dtype)) c->out[0] = x_cast(x, c->out[0], dtype);
  return x->st;
}

/* The trapezoidal rule for a constant step, whose half is h: 2 h times the sum of y along dim
   without half of its two ends, as in PyTorch; of 16 bits in float32. */
static dm_Tensor *even_trapezoid(dm_X *x, dm_Tensor *y, int64_t dim, double h) {
  const int64_t sums = dm_is_low(y->dtype) ? DM_F32 : DM_NO_DTYPE;
  const dm_SumAttr along = {{1, {dim}}, false, sums};
  dm_Tensor *first = dm_x(x, DM_OP_select, &(int64_t[2]){dim, 0}, 1, y);
  dm_Tensor *last = dm_x(x, DM_OP_select, &(int64_t[2]){dim, -1}, 1, y);
  dm_Tensor *ends = x_scale(x, x_add(x, dm_x_widen(x, first), dm_x_widen(x, last)), h);
  return x_sub(x, x_scale(x, dm_x(x, DM_OP_sum, &along, 1, y), 2 * h), ends);
}

/* The trapezoidal rule along dim: sum over i of (y_i + y_(i+1)) / 2 * (x_(i+1) - x_i),
   with a constant step dx where no x is given. x is the vector of y's points, or has dims
   of its own; its steps broadcast with y. No points give 0. */
dm_status trapezoid_compose(dm_Call *c, dm_X *x) {
  const dm_TrapezoidAttr *a = c->attr;
  dm_Tensor *y = c->in[0], *at = c->in[1];
  int dim;
  if (y->ndim < 1) return dm_fail(DM_EARG, "trapezoid: y has no dims, wanted one or more");
  DM_TRY(dm_check_dim(c, y, a->dim, &dim));
  const int64_t n = y->shape[dim], from_end = dim - y->ndim;
  const dm_Ints along = {1, {from_end}};
  if (n == 0) {
    c->out[0] = x_sum(x, y, along, false);
    return x->st;
  }
  const dm_DType to = dm_result_dtype(c->n_in, c->in);
  if (!at) {
    c->out[0] = even_trapezoid(x, y, dim, a->dx / 2);
    if (dm_is_low(to)) c->out[0] = x_cast(x, c->out[0], to);
    return x->st;
  }
  y = dm_x_widen(x, y);
  at = dm_x_widen(x, at);
  DM_TRY(x->st);
  dm_Tensor *sum = x_add(x, later(x, y, dim), earlier(x, y, dim));
  if (at->ndim <= y->ndim) {
    int64_t shape[DM_MAX_DIM];
    for (int d = 0, lead = y->ndim - at->ndim; d < y->ndim; d++)
      shape[d] = at->ndim == 1 ? (d == dim ? at->numel : 1)
                 : d < lead    ? 1
                               : at->shape[d - lead];
    at = x_reshape(x, at, y->ndim, shape);
  }
  DM_TRY(x->st);
  const int own = (int)from_end + at->ndim; /* the dim of x */
  if (at->shape[own] != n)
    return dm_fail(DM_EARG, "trapezoid: y has shape %s, x %s, wanted %lld points along the dim",
                   DM_SHAPE(y), DM_SHAPE(c->in[1]), (long long)n);
  sum = x_mul(x, sum, x_sub(x, later(x, at, own), earlier(x, at, own)));
  c->out[0] = x_scale(x, x_sum(x, sum, along, false), 0.5);
  if (dm_is_low(to)) c->out[0] = x_cast(x, c->out[0], to);
  return x->st;
}

/* t of ndim dims with the last two, of which each may have size 1, repeated to (a, b) and
   made one. */
static dm_Tensor *along_rows(dm_X *x, dm_Tensor *t, int ndim, const int64_t *shape, int64_t a,
                             int64_t b) {
  int64_t to[DM_MAX_DIM];
  for (int d = 0; d < ndim; d++) to[d] = shape[d];
  to[ndim - 2] = a;
  to[ndim - 1] = b;
  t = x_expand(x, t, ndim, to);
  to[ndim - 2] = a * b;
  return x_reshape(x, t, ndim - 1, to);
}

/* Kronecker product. Reshaping A (a1, a2) to (a1, 1, a2, 1) and B (b1, b2) to (1, b1,
   1, b2) makes their broadcast product hold all pairs in the order of the result (a1
   b1, a2 b2): each element of A becomes a block A_ij B. The operand with fewer dims
   gets leading dims of size 1. */
dm_status kron_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *t = c->in[0], *o = c->in[1];
  const int n = t->ndim > o->ndim ? t->ndim : o->ndim;
  int64_t mine[DM_MAX_DIM] = {0}, others[DM_MAX_DIM] = {0}, whole[DM_MAX_DIM];
  enum { SHORT = 16 };
  if (2 * n > DM_MAX_DIM)
    return dm_fail(DM_EARG, "kron: shapes %s and %s, wanted at most %d dims", DM_SHAPE(t),
                   DM_SHAPE(o), DM_MAX_DIM / 2);
  for (int d = 0; d < n; d++) {
    const int p = d - n + t->ndim, q = d - n + o->ndim;
    mine[2 * d] = p < 0 ? 1 : t->shape[p];
    others[2 * d + 1] = q < 0 ? 1 : o->shape[q];
    mine[2 * d + 1] = others[2 * d] = 1;
    whole[d] = mine[2 * d] * others[2 * d + 1];
  }
  t = x_reshape(x, t, 2 * n, mine);
  o = x_reshape(x, o, 2 * n, others);
  if (n > 0 && others[2 * n - 1] < SHORT) {
    t = along_rows(x, t, 2 * n, mine, mine[2 * n - 2], others[2 * n - 1]);
    o = along_rows(x, o, 2 * n, others, mine[2 * n - 2], others[2 * n - 1]);
  }
  c->out[0] = x_reshape(x, x_mul(x, t, o), n, whole);
  return x->st;
}

/* 0 for x < 0, `values` for x = 0, 1 for x > 0. A bool becomes a number where it is chosen,
   which tells the result's dtype where both operands have it. */
dm_status heaviside_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *t = c->in[0], *step = x_test(x, DM_OP_gt, t, 0);
  if (t->dtype != c->in[1]->dtype) step = x_like(x, step, t);
  c->out[0] = x_where(x, x_test(x, DM_OP_eq, t, 0), c->in[1], step);
  return x->st;
}

dm_status count_nonzero_compose(dm_Call *c, dm_X *x) {
  const dm_Ints *dims = &DM_ATTR(dm_CountNonzeroAttr, c)->dim;
  dm_Tensor *const t = c->in[0];
  c->out[0] = x_sum(x, x_cast(x, t, DM_BOOL), *dims, false); /* as in C, a NaN is true */
  return x->st;
}
