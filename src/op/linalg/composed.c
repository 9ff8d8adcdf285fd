/* Ops of dm.linalg that are composed of the factorizations and of products: solve,
   lu_solve, cholesky_solve, cholesky_inverse, matrix_rank, lstsq, norms, cond,
   logdet, matrix_power, multi_dot, cross, vander, tensorinv, tensorsolve, lu,
   householder_product. Their gradients are those of the ops they call. */
#include <float.h>
#include <math.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/policy.h"
#include "engine/tape.h"
#include "op/index/index.h"
#include "op/linalg/linalg.h"
#include "op/linear/cross.h"
#include "op/pointwise/pointwise.h"
#include "op/reduce/reduce.h"
#include "op/shape/create.h"

/* Removes the last dim of size 1: a solution that was computed as a column. */
static dm_Tensor *vectors_only(dm_X *x, dm_Tensor *t) {
  return dm_x(x, DM_OP_squeeze, &(dm_Ints){1, {-1}}, 1, t);
}

/* True when b is one vector for each matrix of a: b has one dim, or a's shape
   without the last dim. */
static bool is_vectors(const dm_Tensor *a, const dm_Tensor *b) {
  if (b->ndim == 1) return true;
  bool same = a->ndim == b->ndim + 1;
  for (int d = 0; same && d < b->ndim; d++) same = a->shape[d] == b->shape[d];
  return same;
}

/* ---- systems of equations ---- */

/* A X = B, or X A = B (left false) solved as A^T X^T = B^T. */
dm_status linalg_solve_compose(dm_Call *c, dm_X *x) {
  const bool left = DM_ATTR(dm_LinalgSolveAttr, c)->left;
  dm_Tensor *a = c->in[0], *b = c->in[1];
  DM_TRY(dm_check_matrix(c, "A", a, true));
  const bool vectors = is_vectors(a, b);
  if (vectors) b = x_wider(x, b, -1);
  else if (!left) b = x_turned(x, b);
  if (!left && !vectors) a = x_turned(x, a);
  dm_Tensor *y = dm_x(x, DM_OP_solve_matrices, NULL, 2, a, b);
  c->out[0] = vectors ? vectors_only(x, y) : left ? y : x_turned(x, y);
  return x->st;
}

/* With P A = L U: A X = B is X = U^-1 L^-1 P B; A^T X = B (adjoint) is X = P^T L^-T
   U^-T B; X A = B is the transpose of A^T X^T = B^T. */
dm_status linalg_lu_solve_compose(dm_Call *c, dm_X *x) {
  const dm_LinalgLuSolveAttr *at = c->attr;
  dm_Tensor *lu = c->in[0], *pivots = c->in[1], *b = c->in[2];
  DM_TRY(dm_check_matrix(c, "LU", lu, true));
  DM_TRY(dm_check_matrix(c, "B", b, false));
  const bool adjoint = at->adjoint != !at->left;
  if (!at->left) b = x_turned(x, b);
  DM_TRY(x->st);
  if (pivots->ndim != lu->ndim - 1 || b->ndim < lu->ndim || dm_rows(b) != dm_rows(lu))
    return dm_fail(DM_EARG,
                   "linalg.lu_solve: LU has shape %s, pivots %s, B %s: they do not fit",
                   DM_SHAPE(lu), DM_SHAPE(pivots), DM_SHAPE(c->in[2]));
  if (adjoint) {
    dm_Tensor *t = x_turned(x, lu);
    b = x_triangular(x, t, b, false, true, false);
    b = x_pivoted(x, x_triangular(x, t, b, true, true, true), pivots, true);
  } else {
    b = x_triangular(x, lu, x_pivoted(x, b, pivots, false), false, true, true);
    b = x_triangular(x, lu, b, true, true, false);
  }
  c->out[0] = at->left ? b : x_turned(x, b);
  return x->st;
}

/* A^-1 b for A = L L^T, or A = U^T U (upper): two triangular solves. */
static dm_Tensor *by_cholesky(dm_X *x, dm_Tensor *b, dm_Tensor *l, bool upper) {
  dm_Tensor *t = x_turned(x, l);
  b = x_triangular(x, upper ? t : l, b, false, true, false);
  return x_triangular(x, upper ? l : t, b, true, true, false);
}

dm_status cholesky_solve_compose(dm_Call *c, dm_X *x) {
  c->out[0] = by_cholesky(x, c->in[0], c->in[1], DM_ATTR(dm_CholeskyAttr, c)->upper);
  return x->st;
}

/* A^-1 from its Cholesky factor: the solution for the identity. */
dm_status cholesky_inverse_compose(dm_Call *c, dm_X *x) {
  if (c->in[0]->ndim < 2)
    return dm_fail(DM_EARG, "cholesky_inverse: x has shape %s, wanted square matrices",
                   DM_SHAPE(c->in[0]));
  dm_Tensor *eye = x_eye(x, dm_rows(c->in[0]), c->in[0]);
  c->out[0] = by_cholesky(x, eye, c->in[0], DM_ATTR(dm_CholeskyAttr, c)->upper);
  return x->st;
}

/* ---- rank, least squares ---- */

/* s (..., min(M, N)) in descending order. */
static dm_Tensor *singular_values(dm_X *x, dm_Tensor *t) {
  return dm_x(x, DM_OP_linalg_svdvals, NULL, 1, t);
}

/* The smallest or largest element of t along dim. */
static dm_Tensor *extreme(dm_X *x, dm_Tensor *t, int64_t dim, bool least) {
  return dm_x(x, least ? DM_OP_amin : DM_OP_amax, &(dm_DimsAttr){{1, {dim}}, false}, 1, t);
}

/* The part of the largest singular value up to which others are rounding errors. */
static double least_rcond(const dm_Tensor *t) {
  const double gap = t->dtype == DM_F64 ? DBL_EPSILON : (double)FLT_EPSILON;
  return gap * (double)dm_max_i64(dm_rows(t), dm_columns(t));
}

/* tol[0], tol[1]: atol and rtol of each of t's matrices, singular values up to max(atol, rtol *
   the largest) being 0: as given, or as in PyTorch atol 0, and rtol max(M, N) eps where atol is
   0 too. */
static void tolerances(dm_X *x, const dm_Tensor *t, dm_Tensor *const *given, dm_Tensor **tol) {
  dm_Tensor *zero = dm_x_number(x, 0), *own = dm_x_number(x, least_rcond(t));
  tol[0] = given[0] ? given[0] : zero;
  if (given[1]) tol[1] = given[1];
  else tol[1] = given[0] ? x_where(x, x_test(x, DM_OP_gt, given[0], 0), zero, own) : own;
  for (int i = 0; i < 2; i++) tol[i] = dm_x_there(x, tol[i], t->device);
}

static dm_Tensor *pseudoinverse(dm_X *x, dm_Tensor *t, dm_Tensor *const *given) {
  dm_Tensor *tol[2];
  tolerances(x, t, given, tol);
  return dm_x(x, DM_OP_pinv_matrices, NULL, 3, t, tol[0], tol[1]);
}

/* The number of the singular values s of t above both atol and rtol * max(s), int64. */
static dm_Tensor *rank_of(dm_X *x, const dm_Tensor *t, dm_Tensor *s, dm_Tensor *const *given) {
  dm_Tensor *tol[2];
  if (!s) return NULL;
  tolerances(x, t, given, tol);
  dm_Tensor *most = dm_columns(s) > 0 ? extreme(x, s, -1, false) : dm_x_number(x, 0);
  dm_Tensor *least = dm_x(x, DM_OP_maximum, NULL, 2, tol[0], x_mul(x, most, tol[1]));
  dm_Tensor *above = dm_x(x, DM_OP_gt, NULL, 2, s, x_wider(x, least, -1));
  return x_sum(x, above, (dm_Ints){1, {-1}}, false);
}

dm_status linalg_matrix_rank_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *t = c->in[0];
  DM_TRY(dm_check_matrix(c, "A", t, DM_ATTR(dm_RankAttr, c)->hermitian));
  c->out[0] = rank_of(x, t, singular_values(x, t), c->in + 1);
  return x->st;
}

dm_status pinverse_compose(dm_Call *c, dm_X *x) {
  DM_TRY(dm_check_matrix(c, "A", c->in[0], DM_ATTR(dm_RankAttr, c)->hermitian));
  c->out[0] = pseudoinverse(x, c->in[0], c->in + 1);
  return x->st;
}

/* PyTorch ends in a product of the factors, which autocast runs in the region's dtype: so the
   result is converted as that product's operands would be. */
dm_status linalg_pinv_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *y = dm_x(x, DM_OP_pinverse, c->attr, 3, c->in[0], c->in[1], c->in[2]);
  dm_CastPlan plan;
  if (!y) return x->st;
  c->out[0] = y;
  const dm_AutocastState *a = &dm_thread_state()->autocast;
  if (!dm_autocast_on(a)) return DM_OK;
  DM_TRY(dm_autocast_plan(&dm_ops[DM_OP_matmul], 1, &y, NULL, &plan));
  if (plan.to != DM_NO_DTYPE) c->out[0] = x_cast(x, y, plan.to);
  return x->st;
}

/* True when all matrices have rank n; waits for the rank's device. */
static bool is_full(dm_X *x, dm_Tensor *rank, int64_t n) {
  const dm_DimsAttr all = {{-1, {0}}, false};
  dm_Tensor *full =
      dm_x(x, DM_OP_all, &all, 1, rank ? x_test(x, DM_OP_eq, rank, (double)n) : NULL);
  uint8_t found = 0;
  if (x->st == DM_OK) x->st = dm_tensor_read(full, 1, &found);
  return found;
}

/* torch.linalg.lstsq: the least-squares solution, of least norm where there are many. The
   driver tells by which of LAPACK's routines (gelsy where none is given, and gelsd for gelss,
   which finds the same by a slower SVD), and what else there is: the residuals sum((A X - B)^2)
   when A (M, N) has M > N and full rank N, which gels assumes; A's rank; its singular values.
   What is missing is an empty tensor. */
dm_status linalg_lstsq_compose(dm_Call *c, dm_X *x) {
  const dm_LinalgLstsqAttr *at = c->attr;
  dm_Tensor *a = c->in[0], *b = c->in[1], *y[3];
  DM_TRY(dm_check_matrix(c, "A", a, false));
  const bool by_values = at->driver == DM_LSTSQ_GELSD || at->driver == DM_LSTSQ_GELSS;
  const bool by_qr = at->driver == DM_LSTSQ_GELS;
  const int64_t m = dm_rows(a), n = dm_columns(a);
  const bool vectors = is_vectors(a, b);
  if (vectors) b = x_wider(x, b, -1);
  const dm_LstsqMatricesAttr how = {at->rcond.set ? at->rcond.v : least_rcond(a),
                                    by_values ? DM_LSTSQ_GELSD
                                    : by_qr   ? DM_LSTSQ_GELS
                                              : DM_LSTSQ_GELSY};
  if (!x_call(x, DM_OP_lstsq_matrices, &how, 2, (dm_Tensor *[]){a, b}, y)) return x->st;
  dm_Tensor *none = x_zeros(x, 1, &(int64_t){0}, a), *left = none;
  dm_Tensor *rank = x_cast(x, by_qr ? none : y[1], DM_I64);
  if (m > n && (by_qr || (by_values && is_full(x, rank, n)))) {
    left = x_sub(x, x_matmul(x, a, y[0]), b);
    left = x_sum(x, x_mul(x, left, left), (dm_Ints){1, {-2}}, false);
  }
  c->out[0] = vectors ? vectors_only(x, y[0]) : y[0];
  c->out[1] = left;
  c->out[2] = rank;
  if (by_values) dm_detach_(y[2]); /* PyTorch's have no gradients either */
  c->out[3] = by_values ? y[2] : none;
  return x->st;
}

/* ---- norms ---- */

enum { BY_FRO, BY_NUC, BY_1, BY_MINUS_1, BY_2, BY_MINUS_2, BY_INF, BY_MINUS_INF };

/* The largest or smallest of t (..., N) along its last dim; the largest of none is 0. */
static dm_Tensor *extreme_or_0(dm_X *x, dm_Tensor *t, bool least) {
  if (x->st == DM_OK && !least && t->shape[t->ndim - 1] == 0)
    return x_sum(x, t, (dm_Ints){1, {-1}}, false);
  return extreme(x, t, -1, least);
}

/* The norm of the matrices (..., M, N) in the last two dims: fro is sqrt(sum of
   squares), nuc the sum of the singular values, +-2 their largest or smallest, +-1
   the largest or smallest column sum of |A|, +-inf the same of row sums. */
static dm_Tensor *matrix_norm(dm_X *x, dm_Tensor *t, int64_t ord) {
  const dm_Ints last = {1, {-1}}, both = {2, {-2, -1}}, rows = {1, {-2}};
  const bool least = ord == BY_MINUS_1 || ord == BY_MINUS_2 || ord == BY_MINUS_INF;
  switch (ord) {
  case BY_FRO: return dm_x(x, DM_OP_norm, &(dm_NormAttr){2, both, false, -1}, 1, t);
  case BY_NUC: return x_sum(x, singular_values(x, t), last, false);
  case BY_2:
  case BY_MINUS_2: return extreme_or_0(x, singular_values(x, t), least);
  }
  const bool columns = ord == BY_1 || ord == BY_MINUS_1;
  t = x_sum(x, x_unary(x, DM_OP_abs, t), columns ? rows : last, false);
  return extreme_or_0(x, t, least);
}

/* Moves the two dims to the end, takes the norm of the matrices, and restores dims
   of size 1 for keepdim. */
dm_status linalg_matrix_norm_compose(dm_Call *c, dm_X *x) {
  const dm_LinalgMatrixNormAttr *a = DM_ATTR(dm_LinalgMatrixNormAttr, c);
  dm_Tensor *t = c->in[0];
  const dm_Ints dims = a->dim.n < 0 ? (dm_Ints){2, {-2, -1}} : a->dim;
  int at[2];
  DM_TRY(dm_check_float(c, t, "A"));
  if (t->ndim < 2 || dims.n != 2)
    return dm_fail(DM_EARG, "linalg.matrix_norm: %lld dims of shape %s, wanted two",
                   (long long)dims.n, DM_SHAPE(t));
  for (int i = 0; i < 2; i++) DM_TRY(dm_check_dim(c, t, dims.v[i], &at[i]));
  if (at[0] == at[1])
    return dm_fail(DM_EARG, "linalg.matrix_norm: dim %d is given twice", at[0] + c->base);
  if (a->dtype >= 0) t = x_cast(x, t, (dm_DType)a->dtype);
  const dm_MovedimAttr move = {{2, {at[0], at[1]}}, {2, {-2, -1}}};
  dm_Tensor *y = matrix_norm(x, dm_x(x, DM_OP_movedim, &move, 1, t), a->ord);
  for (int d = 0; a->keepdim && d < c->in[0]->ndim; d++)
    if (d == at[0] || d == at[1]) y = x_wider(x, y, d);
  c->out[0] = y;
  return x->st;
}

/* The pivots are repeated as the matrices are. */
dm_status linalg_ldl_solve_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *ld = c->in[0], *pivots = c->in[1], *b = c->in[2];
  DM_TRY(dm_check_matrix(c, "LD", ld, true));
  DM_TRY(dm_check_matrix(c, "B", b, false));
  if (pivots->dtype != DM_I32 || pivots->ndim != ld->ndim - 1 ||
      pivots->shape[pivots->ndim - 1] != dm_rows(ld))
    return dm_fail(
        DM_EARG,
        "linalg.ldl_solve: LD has shape %s, pivots are %s of shape %s, wanted int32, "
        "one for each row",
        DM_SHAPE(ld), dm_dtype_name((dm_DType)pivots->dtype), DM_SHAPE(pivots));
  dm_Tensor lead[2] = {*ld, *b};
  int64_t shape[DM_MAX_DIM];
  int ndim;
  lead[0].ndim -= 2;
  lead[1].ndim -= 2;
  DM_TRY(dm_broadcast("linalg.ldl_solve", &lead[0], &lead[1], &ndim, shape));
  shape[ndim] = dm_rows(ld);
  pivots = dm_x(x, DM_OP_contiguous, NULL, 1, x_expand(x, pivots, ndim + 1, shape));
  c->out[0] = dm_x(x, DM_OP_ldl_solve_matrices, NULL, 3, ld, b, pivots);
  return x->st;
}

/* a b in the operands' own dtype, also inside a region of autocast. */
static dm_Tensor *own_product(dm_X *x, dm_Tensor *a, dm_Tensor *b) {
  bool *const masked = &dm_thread_state()->autocast.masked, was = *masked;
  *masked = true;
  dm_Tensor *y = x_matmul(x, a, b);
  *masked = was;
  return y;
}

/* A = U S V^T: U V^T and V S V^T. */
dm_status linalg_polar_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *t = c->in[0], *out[3];
  DM_TRY(dm_check_matrix(c, "A", t, false));
  if (dm_rows(t) < dm_columns(t))
    return dm_fail(DM_EARG, "linalg.polar: A has shape %s, wanted no fewer rows than columns",
                   DM_SHAPE(t));
  if (!x_call(x, DM_OP_linalg_svd, &(dm_LinalgSvdAttr){false}, 1, &t, out)) return x->st;
  dm_Tensor *scaled = x_mul(x, x_wider(x, out[1], -1), out[2]);
  c->out[0] = own_product(x, out[0], out[2]);
  c->out[1] = own_product(x, x_transpose(x, out[2], -1, -2), scaled);
  return x->st;
}

/* The eigenvectors of A with the roots of its eigenvalues. */
dm_status linalg_matrix_sqrth_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *t = c->in[0], *out[2];
  if (!x_call(x, DM_OP_linalg_eigh, &(dm_UploAttr){0}, 1, &t, out)) return x->st;
  dm_Tensor *root = x_wider(x, x_unary(x, DM_OP_sqrt, out[0]), -2);
  c->out[0] = own_product(x, x_mul(x, out[1], root), x_transpose(x, out[1], -1, -2));
  return x->st;
}

/* norm whose p is a word: of all elements, or of the dims given. */
dm_status norm_by_name_compose(dm_Call *c, dm_X *x) {
  const dm_NormByNameAttr *a = DM_ATTR(dm_NormByNameAttr, c);
  enum { FRO, NUC, INF };
  static const dm_Ints whole = {2, {0, 1}};
  if (a->p == NUC) {
    const dm_LinalgMatrixNormAttr nuclear = {BY_NUC, a->dim.n < 0 ? whole : a->dim, a->keepdim,
                                             a->dtype};
    c->out[0] = dm_x(x, DM_OP_linalg_matrix_norm, &nuclear, 1, c->in[0]);
  } else {
    const double p = a->p == FRO ? 2 : a->p == INF ? (double)INFINITY : -(double)INFINITY;
    const dm_NormAttr norm = {p, a->dim, a->keepdim, a->dtype};
    c->out[0] = dm_x(x, DM_OP_norm, &norm, 1, c->in[0]);
  }
  return x->st;
}

/* Of 16 bits norm gives float32, by which its gradient divides, and that is rounded. */
dm_status linalg_vector_norm_compose(dm_Call *c, dm_X *x) {
  const dm_LinalgVectorNormAttr *a = DM_ATTR(dm_LinalgVectorNormAttr, c);
  const dm_DType dtype = (dm_DType)c->in[0]->dtype;
  const bool low = a->dtype < 0 && dm_is_low(dtype);
  const dm_NormAttr norm = {a->ord, a->dim, a->keepdim, low ? DM_F32 : a->dtype};
  c->out[0] = dm_x(x, DM_OP_norm, &norm, 1, c->in[0]);
  if (low) c->out[0] = x_cast(x, c->out[0], dtype);
  return x->st;
}

/* The condition number |A| |A^-1|, for p = +-2 the ratio of the extreme singular
   values. That of a matrix without elements is 0. */
dm_status linalg_cond_compose(dm_Call *c, dm_X *x) {
  const int64_t p = DM_ATTR(dm_LinalgCondAttr, c)->p; /* 0: none given, which means 2 */
  const int64_t ord = p == 0 ? BY_2 : p - 1;
  dm_Tensor *t = c->in[0];
  const bool by_values = ord == BY_2 || ord == BY_MINUS_2;
  DM_TRY(dm_check_matrix(c, "A", t, false));
  if (dm_rows(t) == 0 || t->shape[t->ndim - 1] == 0) {
    c->out[0] = x_sum(x, t, (dm_Ints){2, {-2, -1}}, false);
    return x->st;
  }
  DM_TRY(dm_check_matrix(c, "A", t, !by_values));
  if (by_values) {
    dm_Tensor *s = singular_values(x, t);
    dm_Tensor *most = extreme(x, s, -1, false), *least = extreme(x, s, -1, true);
    c->out[0] = ord == BY_2 ? x_div(x, most, least) : x_div(x, least, most);
    return x->st;
  }
  dm_Tensor *inverse = dm_x(x, DM_OP_linalg_inv, NULL, 1, t);
  c->out[0] = x_mul(x, matrix_norm(x, t, ord), matrix_norm(x, inverse, ord));
  return x->st;
}

/* log det A = log|det A| + log(sign): NaN where the determinant is negative. */
dm_status logdet_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *pair[2];
  if (!x_call(x, DM_OP_linalg_slogdet, NULL, 1, c->in, pair)) return x->st;
  c->out[0] = x_add(x, pair[1], x_unary(x, DM_OP_log, pair[0]));
  return x->st;
}

/* ---- products ---- */

/* A^n by repeated squaring; a negative n starts from A^-1. */
dm_status linalg_matrix_power_compose(dm_Call *c, dm_X *x) {
  const int64_t n = DM_ATTR(dm_LinalgMatrixPowerAttr, c)->n;
  dm_Tensor *t = c->in[0], *y = NULL;
  if (t->ndim < 2 || dm_rows(t) != dm_columns(t))
    return dm_fail(DM_EARG, "linalg.matrix_power: A has shape %s, wanted square matrices",
                   DM_SHAPE(t));
  if (n < 0) t = dm_x(x, DM_OP_linalg_inv, NULL, 1, t);
  for (uint64_t k = n < 0 ? -(uint64_t)n : (uint64_t)n; k > 0 && x->st == DM_OK; k /= 2) {
    if (k % 2) y = y ? x_matmul(x, y, t) : t;
    if (k > 1) t = x_matmul(x, t, t);
  }
  if (n == 0) { /* chosen instead of A, whose gradient is 0 */
    dm_Tensor *never = x_test(x, DM_OP_ne, dm_x_number(x, 0), 0);
    y = x_where(x, never, t, x_eye(x, dm_rows(t), t));
  }
  c->out[0] = n == 0 || n == 1 ? x_unary(x, DM_OP_clone, y) : y;
  return x->st;
}

/* The cheapest order to multiply a chain of n matrices of shape (sizes[i], sizes[i +
   1]): cut[i * n + j] is the last matrix of the left part of the chain i .. j.
   Dynamic programming over chain lengths, O(n^3); Cormen et al., Introduction to
   Algorithms, 15.2. */
static dm_status cut_chain(int n, const int64_t *sizes, int *cut) {
  double *cost = dm_alloc_zero((int64_t)sizeof *cost * n * n);
  if (!cost) return dm_fail(DM_EMEM, "linalg.multi_dot: out of memory");
  for (int length = 2; length <= n; length++)
    for (int i = 0, j = length - 1; j < n; i++, j++) {
      cost[i * n + j] = (double)INFINITY;
      for (int k = i; k < j; k++) {
        const double own = (double)sizes[i] * (double)sizes[k + 1] * (double)sizes[j + 1];
        const double total = cost[i * n + k] + cost[(k + 1) * n + j] + own;
        if (!(total < cost[i * n + j])) continue;
        cost[i * n + j] = total;
        cut[i * n + j] = k;
      }
    }
  dm_free(cost);
  return DM_OK;
}

/* The product of matrices i .. j in the order of `cut`. */
static dm_Tensor *multiply(dm_X *x, dm_Tensor *const *in, int n, const int *cut, int i, int j) {
  if (i == j) return in[i];
  const int k = cut[i * n + j];
  dm_Tensor *left = multiply(x, in, n, cut, i, k), *right = multiply(x, in, n, cut, k + 1, j);
  return x_matmul(x, left, right);
}

/* Checks the chain and fills `sizes`. A vector at the start is a row, at the end a
   column; matmul removes its dim from the result. */
static dm_status check_chain(dm_Call *c, int64_t *sizes) {
  const int n = c->n_in;
  for (int i = 0; i < n; i++) {
    const dm_Tensor *t = c->in[i];
    const bool end = i == 0 || i == n - 1;
    if (t->ndim != 2 && !(end && t->ndim == 1))
      return dm_fail(DM_EARG, "linalg.multi_dot: tensor %d has shape %s, wanted a matrix%s",
                     i + c->base, DM_SHAPE(t), end ? " or a vector" : "");
    const bool row = i == 0 && t->ndim == 1;
    const int64_t rows = row ? 1 : t->shape[0];
    if (i > 0 && rows != sizes[i])
      return dm_fail(DM_EARG,
                     "linalg.multi_dot: tensors %d and %d have shapes %s and %s, "
                     "which do not multiply",
                     i - 1 + c->base, i + c->base, DM_SHAPE(c->in[i - 1]), DM_SHAPE(t));
    sizes[i] = rows;
    sizes[i + 1] = row ? t->shape[0] : t->ndim == 1 ? 1 : t->shape[1];
  }
  return DM_OK;
}

/* The product of a chain of matrices in the order with the fewest multiplications. */
dm_status linalg_multi_dot_compose(dm_Call *c, dm_X *x) {
  const int n = c->n_in;
  if (n < 2 || n > 1024)
    return dm_fail(DM_EARG, "linalg.multi_dot: %d tensors, wanted 2 to 1024", n);
  int64_t *sizes = dm_alloc_zero((int64_t)sizeof *sizes * (n + 1));
  int *cut = dm_alloc_zero((int64_t)sizeof *cut * n * n);
  dm_status st = sizes && cut ? check_chain(c, sizes)
                              : dm_fail(DM_EMEM, "linalg.multi_dot: out of memory");
  if (st == DM_OK) st = cut_chain(n, sizes, cut);
  if (st == DM_OK) c->out[0] = multiply(x, c->in, n, cut, 0, n - 1);
  dm_free(sizes);
  dm_free(cut);
  return st == DM_OK ? x->st : st;
}

static dm_Tensor *x_roll(dm_X *x, dm_Tensor *t, int64_t shift, int64_t dim) {
  const dm_RollAttr a = {{1, {shift}}, {1, {dim}}};
  return dm_x(x, DM_OP_roll, &a, 1, t);
}

/* The cross product c_i = a_(i+1) b_(i+2) - a_(i+2) b_(i+1) along a dim of size 3,
   by rolls, so that the other dims may broadcast, unless rows of one shape lie side by side. */
static dm_status cross_along(dm_Call *c, dm_X *x, int64_t dim) {
  dm_Tensor *a = c->in[0], *b = c->in[1];
  int own, other;
  DM_TRY(dm_check_dim(c, a, dim, &own));
  DM_TRY(dm_check_dim(c, b, dim, &other));
  if (a->ndim != b->ndim || a->ndim == 0 || a->shape[own] != 3 || b->shape[other] != 3)
    return dm_fail(DM_EARG,
                   "%s: shapes %s and %s, wanted as many dims and 3 elements in dim %d",
                   c->op->name, DM_SHAPE(a), DM_SHAPE(b), own + c->base);
  if (own == a->ndim - 1 && dm_are_cross_rows(a, b)) {
    c->out[0] = x_cross_rows(x, a, b);
    return x->st;
  }
  dm_Tensor *forward = x_mul(x, x_roll(x, a, -1, own), x_roll(x, b, -2, own));
  c->out[0] = x_sub(x, forward, x_mul(x, x_roll(x, a, -2, own), x_roll(x, b, -1, own)));
  return x->st;
}
dm_status linalg_cross_compose(dm_Call *c, dm_X *x) {
  return cross_along(c, x, DM_ATTR(dm_LinalgCrossAttr, c)->dim);
}
/* Without a dim the first one of size 3 is used, as torch.cross. */
dm_status cross_compose(dm_Call *c, dm_X *x) {
  const dm_OptInt *a = &DM_ATTR(dm_CrossAttr, c)->dim;
  int64_t dim = 0;
  while (!a->set && dim + 1 < c->in[0]->ndim && c->in[0]->shape[dim] != 3) dim++;
  return cross_along(c, x, a->set ? a->v : dim);
}

/* sum(a * b) along dim. */
dm_status linalg_vecdot_compose(dm_Call *c, dm_X *x) {
  const int64_t dim = DM_ATTR(dm_LinalgVecdotAttr, c)->dim;
  c->out[0] = x_sum(x, x_mul(x, c->in[0], c->in[1]), (dm_Ints){1, {dim}}, false);
  return x->st;
}

/* x (..., M), or () as (1) -> (..., M, n) with the powers x^0 .. x^(n - 1), as a running
   product of 1, x, x, ..., whose gradient is finite at x = 0 too. */
dm_status linalg_vander_compose(dm_Call *c, dm_X *x) {
  const int64_t given = DM_ATTR(dm_LinalgVanderAttr, c)->N;
  dm_Tensor *t = c->in[0];
  if (t->ndim < 1 && given < 0)
    return dm_fail(DM_EARG, "linalg.vander: x has no dims, wanted one or more, or N");
  const int64_t n = given < 0 ? t->shape[t->ndim - 1] : given;
  int64_t shape[DM_MAX_DIM];
  if (t->ndim == 0) t = x_reshape(x, t, 1, &t->numel);
  DM_TRY(x->st);
  if (t->ndim == DM_MAX_DIM)
    return dm_fail(DM_EARG, "linalg.vander: x has %d dims, wanted fewer", t->ndim);
  for (int d = 0; d < t->ndim; d++) shape[d] = t->shape[d];
  shape[t->ndim] = n;
  dm_Tensor *each = x_expand(x, x_wider(x, t, -1), t->ndim + 1, shape);
  if (n > 0) {
    dm_Tensor *rest = dm_x(x, DM_OP_narrow, &(int64_t[3]){-1, 0, n - 1}, 1, each);
    dm_Tensor *one = dm_x(x, DM_OP_ones_like, &(int64_t[2]){-1, -1}, 1, x_wider(x, t, -1));
    each = dm_x(x, DM_OP_cat, &(int64_t){-1}, 2, one, rest);
  }
  c->out[0] = dm_x(x, DM_OP_cumprod, &(int64_t[2]){-1, -1}, 1, each);
  return x->st;
}

/* The Vandermonde matrix of a vector, with descending powers unless `increasing` is
   set. */
dm_status vander_compose(dm_Call *c, dm_X *x) {
  const dm_VanderAttr *a = c->attr;
  DM_TRY(dm_check_ndim(c, 0, "x", 1));
  if (a->N < -1)
    return dm_fail(DM_EARG, "vander: N is %lld, wanted 0 or more", (long long)a->N);
  c->out[0] = dm_x(x, DM_OP_linalg_vander, &a->N, 1, c->in[0]);
  if (!a->increasing) c->out[0] = x_unary(x, DM_OP_fliplr, c->out[0]);
  return x->st;
}

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

/* t as a matrix whose rows are its first `lead` dims and whose columns are the
   others. */
static dm_Tensor *as_matrix(dm_X *x, dm_Tensor *t, int lead) {
  if (x->st != DM_OK) return NULL;
  const int64_t rows = dm_numel(lead, t->shape),
                cols = dm_numel(t->ndim - lead, t->shape + lead);
  return x_reshape(x, t, 2, (int64_t[]){rows, cols});
}

/* A with its first `ind` dims as rows is inverted as a matrix; the inverse has the
   dims in the other order. */
dm_status linalg_tensorinv_compose(dm_Call *c, dm_X *x) {
  const int64_t ind = DM_ATTR(dm_LinalgTensorinvAttr, c)->ind;
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

/* Solves tensordot(A, X, X.ndim) = B: A as a square matrix with B's dims as its
   rows, after `dims` were moved to the end. */
dm_status linalg_tensorsolve_compose(dm_Call *c, dm_X *x) {
  const dm_Ints *dims = &DM_ATTR(dm_LinalgTensorsolveAttr, c)->dims;
  dm_Tensor *t = c->in[0], *b = c->in[1];
  if (dims->n > 0) {
    dm_MovedimAttr move = {*dims, {dims->n, {0}}};
    for (int64_t i = 0; i < dims->n; i++) move.destination.v[i] = i - dims->n;
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

/* A = P L U from lu_factor's compact LU and pivots: L is the strict lower triangle
   plus the identity, U the upper triangle, and P one-hot rows of where the pivots
   moved each row of A. */
dm_status linalg_lu_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *t = c->in[0], *out[2];
  if (!x_call(x, DM_OP_linalg_lu_factor, c->attr, 1, &t, out)) return x->st;
  const int64_t m = dm_rows(t), n = dm_columns(t), k = dm_min_i64(m, n);
  dm_Tensor *went = dm_x(x, DM_OP_lu_order, &(int64_t[2]){m, true}, 1, out[1]);
  c->out[0] = x_like(x, dm_x(x, DM_OP_one_hot, &m, 1, went), t);
  c->out[1] = x_add(x, x_below(x, x_part(x, out[0], -1, 0, k), -1), x_eye_of(x, m, k, t));
  c->out[2] = x_above(x, x_part(x, out[0], -2, 0, k), 0);
  return x->st;
}

/* The first N columns of Q = H_1 H_2 ... H_k for A (M, N) and tau (k), applied from
   the last reflector: H_i = 1 - tau_i v_i v_i^T, where v_i is column i of A below
   the diagonal, with 1 on it (LAPACK's orgqr). */
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
