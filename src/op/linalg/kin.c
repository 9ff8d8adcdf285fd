/* Ops of dm.linalg that are others with their dims turned, or a few steps of others. */
#include "base/error.h"
#include "op/shape/create.h"
#include "op/linalg/linalg.h"
#include "op/pointwise/pointwise.h"
#include "op/reduce/reduce.h"

static dm_Tensor *x_part(dm_X *x, dm_Tensor *t, int64_t dim, int64_t start, int64_t n) {
  return dm_x(x, DM_OP_narrow, &(int64_t[3]){dim, start, n}, 1, t);
}
static dm_Tensor *x_eye_of(dm_X *x, int64_t rows, int64_t cols, const dm_Tensor *like) {
  const dm_EyeAttr a = {rows, cols, like->dtype, dm_device_code(like->device)};
  return dm_x(x, DM_OP_eye, &a, 0);
}

dm_status linalg_diagonal_compose(dm_Call *c, dm_X *x) {
  c->out[0] = dm_x(x, DM_OP_diagonal, c->attr, 1, c->in[0]);
  return x->st;
}

/* A as a matrix of its first `lead` dims and the others. */
static dm_Tensor *as_matrix(dm_X *x, dm_Tensor *t, int lead) {
  if (x->st != DM_OK) return NULL;
  const int64_t rows = dm_numel(lead, t->shape),
                cols = dm_numel(t->ndim - lead, t->shape + lead);
  return x_reshape(x, t, 2, (int64_t[]){rows, cols});
}

dm_status linalg_tensorinv_compose(dm_Call *c, dm_X *x) {
  const int64_t ind = *DM_ATTR(int64_t, c);
  dm_Tensor *t = c->in[0];
  const bool fits =
      ind > 0 && ind < t->ndim &&
      dm_numel((int)ind, t->shape) == dm_numel(t->ndim - (int)ind, t->shape + (int)ind);
  if (!fits)
    return dm_fail(
        DM_EARG,
        "linalg.tensorinv: A has shape %s, wanted as many elements in its first %lld "
        "dims as in the others",
        DM_SHAPE(t), (long long)ind);
  int64_t shape[DM_MAX_DIM];
  for (int d = 0; d < t->ndim; d++) shape[d] = t->shape[(d + (int)ind) % t->ndim];
  dm_Tensor *inverse = dm_x(x, DM_OP_linalg_inv, NULL, 1, as_matrix(x, t, (int)ind));
  c->out[0] = x_reshape(x, inverse, t->ndim, shape);
  return x->st;
}

dm_status linalg_tensorsolve_compose(dm_Call *c, dm_X *x) {
  const dm_Ints *dims = DM_ATTR(dm_Ints, c);
  dm_Tensor *t = c->in[0], *b = c->in[1];
  if (dims->n > 0) {
    struct {
      dm_Ints from, to;
    } move = {*dims, {dims->n, {0}}};
    for (int64_t i = 0; i < dims->n; i++) move.to.v[i] = i - dims->n;
    t = dm_x(x, DM_OP_movedim, &move, 1, t);
  }
  DM_TRY(x->st);
  if (t->ndim <= b->ndim || dm_numel(t->ndim - b->ndim, t->shape + b->ndim) != b->numel ||
      t->numel != b->numel * b->numel)
    return dm_fail(
        DM_EARG,
        "linalg.tensorsolve: A has shape %s and B %s, wanted as many elements in A's "
        "first %d dims, and in the others, as in B",
        DM_SHAPE(t), DM_SHAPE(b), b->ndim);
  dm_Tensor *flat = x_reshape(x, b, 1, &b->numel);
  dm_Tensor *y =
      dm_x(x, DM_OP_linalg_solve, &(int64_t){true}, 2, as_matrix(x, t, b->ndim), flat);
  c->out[0] = x_reshape(x, y, t->ndim - b->ndim, t->shape + b->ndim);
  return x->st;
}

/* A = P L U from lu_factor's P^T A = L U: row i of P has its 1 where row i of A went. */
dm_status linalg_lu_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *t = c->in[0], *out[2];
  if (!x_call(x, DM_OP_linalg_lu_factor, NULL, 1, &t, out)) return x->st;
  const int64_t m = dm_rows(t), n = dm_columns(t), k = dm_min_i64(m, n);
  dm_Tensor *went = dm_x(x, DM_OP_lu_order, &(int64_t[2]){m, true}, 1, out[1]);
  c->out[0] = x_like(x, dm_x(x, DM_OP_one_hot, &m, 1, went), t);
  c->out[1] = x_add(x, x_below(x, x_part(x, out[0], -1, 0, k), -1), x_eye_of(x, m, k, t));
  c->out[2] = x_above(x, x_part(x, out[0], -2, 0, k), 0);
  return x->st;
}

/* The first n columns of H_1 ... H_k, the last reflector first: H = 1 - tau v v^T, where v is
   A's column below the diagonal, with 1 on it. */
dm_status linalg_householder_product_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *t = c->in[0], *tau = c->in[1];
  DM_TRY(dm_check_matrix(c, "A", t, false));
  const int64_t m = dm_rows(t), n = dm_columns(t), k = tau->ndim ? dm_columns(tau) : -1;
  bool fits = tau->ndim == t->ndim - 1 && k <= n && n <= m && tau->dtype == t->dtype;
  for (int d = 0; fits && d < t->ndim - 2; d++) fits = tau->shape[d] == t->shape[d];
  if (!fits)
    return dm_fail(DM_EARG,
                   "linalg.householder_product: A has shape %s, tau %s, wanted {..., m, n} and "
                   "{..., k} of one dtype, with m >= n >= k",
                   DM_SHAPE(t), DM_SHAPE(tau));
  dm_Tensor *eye = x_eye_of(x, m, n, t), *v = x_add(x, x_below(x, t, -1), eye);
  dm_Tensor *q = x_unary(x, DM_OP_clone, x_expand(x, eye, t->ndim, t->shape));
  for (int64_t i = k - 1; i >= 0 && x->st == DM_OK; i--) {
    dm_Tensor *column = x_part(x, v, -1, i, 1);
    dm_Tensor *along = x_sum(x, x_mul(x, column, q), (dm_Ints){1, {-2}}, true);
    along = x_mul(x, along, x_wider(x, x_part(x, tau, -1, i, 1), -1));
    q = x_sub(x, q, x_mul(x, column, along));
  }
  c->out[0] = q;
  return x->st;
}
