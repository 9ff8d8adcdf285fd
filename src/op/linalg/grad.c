/* Gradients of factorizations, as compositions of ops, so that they have gradients
   themselves. In the formulas A is the input, gX the gradient of a result X, X^T the
   transpose, tril/triu the lower/upper triangle with an optional diagonal, and
   skew(X) = X - X^T.

   Sources: Giles 2008 (inverse, determinant, SVD, eigenvalues), Murray 2016
   (Cholesky), Walter & Lehmann 2012 (QR), Townsend 2016 (SVD of rectangular
   matrices), Seeger et al. 2017 (SVD, symmetric eigenvalues), Golub & Pereyra
   1973 (pseudoinverse).

   Gradients of vectors belonging to singular or eigenvalues divide by differences of
   these values: they are infinite where two values coincide, as in PyTorch, because
   the vectors are not unique there. */
#include "base/error.h"
#include "op/index/index.h"
#include "op/linalg/linalg.h"
#include "op/pointwise/pointwise.h"
#include "op/reduce/reduce.h"
#include "op/shape/create.h"
#include "op/sort/order.h"

/* ---- helpers ---- */

dm_Tensor *x_turned(dm_X *x, dm_Tensor *t) { return x_transpose(x, t, -2, -1); }
dm_Tensor *x_wider(dm_X *x, dm_Tensor *t, int64_t dim) {
  return dm_x(x, DM_OP_unsqueeze, &dim, 1, t);
}
dm_Tensor *x_eye(dm_X *x, int64_t n, const dm_Tensor *like) {
  const dm_EyeAttr a = {n, -1, like->dtype, dm_device_code(like->device)};
  return dm_x(x, DM_OP_eye, &a, 0);
}
dm_Tensor *x_below(dm_X *x, dm_Tensor *t, int64_t diagonal) {
  return dm_x(x, DM_OP_tril, &diagonal, 1, t);
}
dm_Tensor *x_above(dm_X *x, dm_Tensor *t, int64_t diagonal) {
  return dm_x(x, DM_OP_triu, &diagonal, 1, t);
}
dm_Tensor *x_triangular(dm_X *x, dm_Tensor *a, dm_Tensor *b, bool upper, bool left, bool unit) {
  const dm_TriangularAttr attr = {upper, left, unit};
  return dm_x(x, DM_OP_linalg_solve_triangular, &attr, 2, a, b);
}

/* The pivots become an order of rows by op lu_order, and the rows of t are gathered
   by it. */
dm_Tensor *x_pivoted(dm_X *x, dm_Tensor *t, dm_Tensor *pivots, bool back) {
  if (x->st != DM_OK) return NULL;
  const int64_t attr[2] = {dm_rows(t), back};
  dm_Tensor *order = dm_x(x, DM_OP_lu_order, attr, 1, pivots);
  int64_t shape[DM_MAX_DIM];
  if (!order) return NULL;
  for (int d = 0; d < order->ndim; d++) shape[d] = order->shape[d];
  for (int d = 0; d < t->ndim - 2 && order->ndim <= t->ndim; d++) shape[d] = t->shape[d];
  shape[t->ndim - 2] = dm_rows(t);
  shape[t->ndim - 1] = dm_columns(t);
  order = x_expand(x, x_wider(x, order, -1), t->ndim, shape);
  return dm_x(x, DM_OP_gather, &(int64_t){-2}, 2, t, order);
}

static dm_Tensor *negative(dm_X *x, dm_Tensor *t) { return x_unary(x, DM_OP_neg, t); }
/* a + b and a - b; NULL stands for a gradient that is 0. */
static dm_Tensor *plus(dm_X *x, dm_Tensor *a, dm_Tensor *b) {
  return !a ? b : !b ? a : x_add(x, a, b);
}
static dm_Tensor *minus(dm_X *x, dm_Tensor *a, dm_Tensor *b) {
  return !b ? a : !a ? negative(x, b) : x_sub(x, a, b);
}
static dm_Tensor *skew(dm_X *x, dm_Tensor *t) { return x_sub(x, t, x_turned(x, t)); }
/* u diag(s) v: the columns of u (..., M, K) are scaled by s (..., K) before the
   product with v (..., K, N). */
static dm_Tensor *sandwich(dm_X *x, dm_Tensor *u, dm_Tensor *s, dm_Tensor *v) {
  return x_matmul(x, x_mul(x, u, x_wider(x, s, -2)), v);
}
/* d_ij = s_j - s_i for i != j and 1 for i = j, so that dividing by d is defined on
   the diagonal. */
static dm_Tensor *gaps(dm_X *x, dm_Tensor *s) {
  dm_Tensor *d = x_sub(x, x_wider(x, s, -2), x_wider(x, s, -1));
  return d ? x_add(x, d, x_eye(x, dm_columns(s), s)) : NULL;
}
static dm_Tensor *inverse(dm_X *x, dm_Tensor *t) {
  return dm_x(x, DM_OP_linalg_inv, NULL, 1, t);
}
/* t (...) as (..., 1, 1), to broadcast over matrices. */
static dm_Tensor *as_matrices(dm_X *x, dm_Tensor *t) {
  return x_wider(x, x_wider(x, t, -1), -1);
}

/* ---- by LU ---- */

/* Y = A^-1: gA = -Y^T gY Y^T (Giles 2008). */
void linalg_inv_grad(dm_Grad *g) {
  dm_Tensor *y = x_turned(g->x, g->out[0]);
  g->gx[0] = negative(g->x, x_matmul(g->x, x_matmul(g->x, y, g->gy[0]), y));
}

/* A X = B: gB = A^-T gX, gA = -gB X^T (Giles 2008). */
void solve_matrices_grad(dm_Grad *g) {
  dm_X *x = g->x;
  dm_Tensor *gb = dm_x(x, DM_OP_solve_matrices, NULL, 2, x_turned(x, g->in[0]), g->gy[0]);
  if (g->need[0]) g->gx[0] = negative(x, x_matmul(x, gb, x_turned(x, g->out[0])));
  if (g->need[1]) g->gx[1] = gb;
}

/* True when an element of t is 0. It waits for t's device. */
static bool holds_zero(dm_X *x, dm_Tensor *t) {
  dm_Tensor *any = dm_x(x, DM_OP_any, NULL, 1, x_test(x, DM_OP_eq, t, 0));
  uint8_t found = 0;
  if (x->st == DM_OK) x->st = dm_tensor_read(any, 1, &found);
  return found;
}

/* The cofactor matrix, which singular matrices have as well: with A = U S V^T and
   p_i the product of all singular values but the i-th it is det(U V^T) U diag(p)
   V^T. */
static dm_Tensor *cofactors(dm_X *x, dm_Tensor *t) {
  dm_Tensor *svd[3];
  if (!x_call(x, DM_OP_linalg_svd, &(int64_t){false}, 1, &t, svd)) return NULL;
  dm_Tensor *eye = x_cast(x, x_eye(x, dm_rows(t), t), DM_BOOL);
  dm_Tensor *others = x_where(x, eye, dm_x_number(x, 1), x_wider(x, svd[1], -2));
  const dm_SumAttr last = {{1, {-1}}, false, -1};
  dm_Tensor *p = dm_x(x, DM_OP_prod, &last, 1, others);
  dm_Tensor *sign = dm_x(x, DM_OP_linalg_det, NULL, 1, x_matmul(x, svd[0], svd[2]));
  return x_mul(x, sandwich(x, svd[0], p, svd[2]), as_matrices(x, sign));
}

/* gA = gy det(A) A^-T; where a determinant is 0, gA = gy times the cofactors. */
void linalg_det_grad(dm_Grad *g) {
  dm_X *x = g->x;
  dm_Tensor *gy = as_matrices(x, g->gy[0]);
  if (holds_zero(x, g->out[0])) g->gx[0] = x_mul(x, gy, cofactors(x, g->in[0]));
  else
    g->gx[0] =
        x_mul(x, x_mul(x, gy, as_matrices(x, g->out[0])), x_turned(x, inverse(x, g->in[0])));
}

/* gA = g A^-T for the gradient g of log|det A|; the sign is piecewise constant. */
void linalg_slogdet_grad(dm_Grad *g) {
  dm_X *x = g->x;
  if (!g->gy[1]) g->gx[0] = x_zeros_like(x, g->in[0]);
  else g->gx[0] = x_mul(x, as_matrices(x, g->gy[1]), x_turned(x, inverse(x, g->in[0])));
}

/* P A = L U, of square parts L1, U1 and, of one of them, a rest: B = P A has L1 U1 at its
   beginning and L2 U1 below it, or L1 U2 beside it. gy holds gL below its diagonal and gU above
   and on it. From L2 = B2 U1^-1: gB2 = gL2 U1^-T, and gU1 gets -L2^T gB2; likewise of U2. So
   gB1 = L1^-T (tril(L1^T gL1 - gU2 U2^T, -1) + triu(gU1 U1^T - L2^T gL2)) U1^-T. */
void linalg_lu_factor_grad(dm_Grad *g) {
  enum { ROWS = -2, COLUMNS = -1 };
  dm_X *x = g->x;
  dm_Tensor *lu = g->out[0], *gy = g->gy[0], *rest = NULL;
  const int64_t m = dm_rows(lu), n = dm_columns(lu), k = dm_min_i64(m, n);
  const int64_t dim = m > n ? ROWS : COLUMNS, more = dm_max_i64(m, n) - k;
  dm_Tensor *first = x_narrow(x, x_narrow(x, lu, ROWS, 0, k), COLUMNS, 0, k);
  dm_Tensor *g1 = x_narrow(x, x_narrow(x, gy, ROWS, 0, k), COLUMNS, 0, k);
  dm_Tensor *lower = x_turned(x, x_add(x, x_below(x, first, -1), x_eye(x, k, lu)));
  dm_Tensor *upper = x_turned(x, x_above(x, first, 0));
  dm_Tensor *gl = x_matmul(x, lower, x_below(x, g1, -1));
  dm_Tensor *gu = x_matmul(x, x_above(x, g1, 0), upper);
  if (more > 0) {
    dm_Tensor *t = x_narrow(x, lu, dim, k, more);
    rest = x_narrow(x, gy, dim, k, more);
    if (m > n) gu = x_sub(x, gu, x_matmul(x, x_turned(x, t), rest));
    else gl = x_sub(x, gl, x_matmul(x, rest, x_turned(x, t)));
    rest = m > n ? x_triangular(x, upper, rest, false, false, false)
                 : x_triangular(x, lower, rest, true, true, true);
  }
  dm_Tensor *s = x_add(x, x_below(x, gl, -1), x_above(x, gu, 0));
  s = x_triangular(x, lower, s, true, true, true);
  s = x_triangular(x, upper, s, false, false, false);
  if (rest) s = x_cat(x, s, rest, dim);
  g->gx[0] = x_pivoted(x, s, g->out[1], true);
}

/* ---- Cholesky and triangular systems ---- */

/* A = L L^T: gA = L^-T (Phi + Phi^T) L^-1 / 2, with Phi = tril(L^T gL) and its
   diagonal halved (Murray 2016). The upper factor is handled as its
   transpose. */
void linalg_cholesky_grad(dm_Grad *g) {
  dm_X *x = g->x;
  const bool upper = DM_ATTR(dm_CholeskyAttr, g)->upper;
  dm_Tensor *l = upper ? x_turned(x, g->out[0]) : g->out[0];
  dm_Tensor *gl = upper ? x_turned(x, g->gy[0]) : g->gy[0];
  dm_Tensor *lt = x_turned(x, l), *p = x_matmul(x, lt, gl);
  dm_Tensor *both = x_add(x, x_below(x, p, 0), x_turned(x, x_below(x, p, -1)));
  both = x_triangular(x, lt, both, true, true, false);
  g->gx[0] = x_scale(x, x_triangular(x, l, both, false, false, false), 0.5);
}

/* A X = B: gB = A^-T gX, gA = -gB X^T. X A = B: gB = gX A^-T, gA = -X^T gB. Only the
   triangle of gA that the op read is kept. */
void linalg_solve_triangular_grad(dm_Grad *g) {
  dm_X *x = g->x;
  const dm_TriangularAttr *a = g->attr;
  dm_Tensor *y = x_turned(x, g->out[0]);
  dm_Tensor *gb =
      x_triangular(x, x_turned(x, g->in[0]), g->gy[0], !a->upper, a->left, a->unitriangular);
  if (g->need[1]) g->gx[1] = gb;
  if (!g->need[0]) return;
  dm_Tensor *ga = negative(x, a->left ? x_matmul(x, gb, y) : x_matmul(x, y, gb));
  g->gx[0] = a->upper ? x_above(x, ga, a->unitriangular) : x_below(x, ga, -a->unitriangular);
}

/* ---- QR ---- */

/* A = Q R (Walter & Lehmann 2012): with M = Q^T gQ - gR R^T and T = tril(M - M^T,
   -1), a tall A (M >= N) has gA = (gQ + Q (T - M)) R^-T; a wide one gA = Q (gR + [T
   R1^-T, 0]) with R1 the leading square block of R. */
void linalg_qr_grad(dm_Grad *g) {
  dm_X *x = g->x;
  dm_Tensor *q = g->out[0], *r = g->out[1], *gq = g->gy[0], *gr = g->gy[1];
  /* Mode "r" has no Q: a vector of no elements. */
  const bool only_r = DM_ATTR(dm_LinalgQrAttr, g)->mode == DM_QR_R;
  const int64_t k = dm_rows(r), n = dm_columns(r), m = only_r ? k : dm_rows(q);
  if (only_r || k > n) {
    x->st = dm_fail(DM_EARG,
                    "linalg.qr: mode \"%s\" has no gradient here; hint: "
                    "mode = \"reduced\"",
                    only_r ? "r" : "complete");
    return;
  }
  dm_Tensor *product = gq ? x_matmul(x, x_turned(x, q), gq) : NULL;
  product = minus(x, product, gr ? x_matmul(x, gr, x_turned(x, r)) : NULL);
  dm_Tensor *t = x_below(x, skew(x, product), -1);
  if (m >= n) {
    dm_Tensor *inner = x_matmul(x, q, x_sub(x, t, product));
    g->gx[0] = x_triangular(x, x_turned(x, r), plus(x, gq, inner), false, false, false);
    return;
  }
  dm_Tensor *r1 = dm_x(x, DM_OP_narrow, &(int64_t[3]){-1, 0, k}, 1, r);
  t = x_triangular(x, x_turned(x, r1), t, false, false, false);
  const dm_PadAttr right = {{2, {0, n - k}}, 0, 0};
  t = dm_x(x, DM_OP_pad, &right, 1, t);
  g->gx[0] = x_matmul(x, q, plus(x, gr, t));
}

/* ---- singular values and eigenvalues ---- */

/* g - U U^T g: the part of g outside the space that the columns of U span. */
static dm_Tensor *outside(dm_X *x, dm_Tensor *u, dm_Tensor *g) {
  return x_sub(x, g, x_matmul(x, u, x_matmul(x, x_turned(x, u), g)));
}

/* The first n elements of t along dim; NULL stays NULL. */
static dm_Tensor *first(dm_X *x, dm_Tensor *t, int64_t dim, int64_t n) {
  return t ? dm_x(x, DM_OP_narrow, &(int64_t[3]){dim, 0, n}, 1, t) : NULL;
}

/* A = U diag(s) V^T: with E_ij = s_j^2 - s_i^2 gA = U ((skew(U^T gU) / E) S + S
   (skew(V^T gV) / E) + diag(gs)) V^T, plus the parts of gU and gV outside the spaces
   of U and V for rectangular A (Townsend 2016). With full_matrices only the vectors
   that belong to a singular value count: the others are an arbitrary basis. */
void linalg_svd_grad(dm_Grad *g) {
  dm_X *x = g->x;
  dm_Tensor *s = g->out[1], *gs = g->gy[1];
  const int64_t k = dm_columns(s), m = dm_rows(g->out[0]), n = dm_columns(g->out[2]);
  dm_Tensor *u = first(x, g->out[0], -1, k), *gu = first(x, g->gy[0], -1, k);
  dm_Tensor *vh = first(x, g->out[2], -2, k), *gvh = first(x, g->gy[2], -2, k);
  if (!gu && !gvh) {
    g->gx[0] = gs ? sandwich(x, u, gs, vh) : NULL;
    return;
  }
  dm_Tensor *e = gaps(x, x_mul(x, s, s)), *inner = NULL, *sum;
  if (gu) {
    dm_Tensor *turn = x_div(x, skew(x, x_matmul(x, x_turned(x, u), gu)), e);
    inner = x_mul(x, turn, x_wider(x, s, -2));
  }
  if (gvh) {
    dm_Tensor *turn = x_div(x, skew(x, x_matmul(x, vh, x_turned(x, gvh))), e);
    inner = plus(x, inner, x_mul(x, turn, x_wider(x, s, -1)));
  }
  sum = x_matmul(x, x_matmul(x, u, inner), vh);
  if (gs) sum = plus(x, sum, sandwich(x, u, gs, vh));
  if (gu && m > k)
    sum = plus(x, sum, x_matmul(x, outside(x, u, x_div(x, gu, x_wider(x, s, -2))), vh));
  if (gvh && n > k) {
    dm_Tensor *v = x_turned(x, vh), *gv = x_div(x, x_turned(x, gvh), x_wider(x, s, -2));
    sum = plus(x, sum, x_matmul(x, u, x_turned(x, outside(x, v, gv))));
  }
  g->gx[0] = sum;
}

/* gA = U diag(gs) V^T. The SVD is computed again here, because most callers who want
   the values alone need no gradient. */
void linalg_svdvals_grad(dm_Grad *g) {
  dm_Tensor *svd[3];
  if (x_call(g->x, DM_OP_linalg_svd, &(int64_t){false}, 1, &g->in[0], svd))
    g->gx[0] = sandwich(g->x, svd[0], g->gy[0], svd[2]);
}

/* A = V diag(w) V^T: gA = V (diag(gw) + offdiag(V^T gV) / E) V^T with E_ij = w_j -
   w_i, made symmetric because A is. */
void linalg_eigh_grad(dm_Grad *g) {
  dm_X *x = g->x;
  dm_Tensor *w = g->out[0], *v = g->out[1], *vt = x_turned(x, v), *gw = g->gy[0];
  dm_Tensor *sum = gw ? sandwich(x, v, gw, vt) : NULL;
  if (g->gy[1]) {
    dm_Tensor *turn = x_div(x, x_matmul(x, vt, g->gy[1]), gaps(x, w));
    dm_Tensor *eye = x_cast(x, x_eye(x, dm_columns(w), w), DM_BOOL);
    turn = x_where(x, eye, dm_x_number(x, 0), turn);
    turn = x_scale(x, x_add(x, turn, x_turned(x, turn)), 0.5);
    sum = plus(x, sum, x_matmul(x, x_matmul(x, v, turn), vt));
  }
  g->gx[0] = sum;
}

/* gA = V diag(gw) V^T, with V computed again. */
void linalg_eigvalsh_grad(dm_Grad *g) {
  dm_Tensor *pair[2];
  if (x_call(g->x, DM_OP_linalg_eigh, g->attr, 1, &g->in[0], pair))
    g->gx[0] = sandwich(g->x, pair[1], g->gy[0], x_turned(g->x, pair[1]));
}

/* P = pinv(A), H = gP^T: gA = -(P H P)^T + P^T P (H - H P A) + (1 - A P) H P P^T,
   from the differential of Golub & Pereyra 1973. Two orders of the products, so that
   no intermediate is larger than (longer side, shorter side). */
static dm_Tensor *pinv_gradient(dm_X *x, dm_Tensor *a, dm_Tensor *p, dm_Tensor *h) {
  dm_Tensor *pt = x_turned(x, p);
  if (dm_rows(a) <= dm_columns(a)) {
    dm_Tensor *k = x_matmul(x, h, p), *kpt = x_matmul(x, k, pt);
    dm_Tensor *sum = x_sub(x, kpt, x_turned(x, x_matmul(x, p, k)));
    sum = x_sub(x, sum, x_matmul(x, x_matmul(x, a, p), kpt));
    dm_Tensor *rest = x_sub(x, h, x_matmul(x, k, a));
    return x_add(x, sum, x_matmul(x, x_matmul(x, pt, p), rest));
  }
  dm_Tensor *k = x_matmul(x, p, h), *ptk = x_matmul(x, pt, k);
  dm_Tensor *sum = x_sub(x, ptk, x_turned(x, x_matmul(x, k, p)));
  dm_Tensor *rest = x_sub(x, h, x_matmul(x, a, k));
  sum = x_add(x, sum, x_matmul(x, x_matmul(x, rest, p), pt));
  return x_sub(x, sum, x_matmul(x, x_matmul(x, ptk, p), a));
}
void pinv_matrices_grad(dm_Grad *g) {
  g->gx[0] = pinv_gradient(g->x, g->in[0], g->out[0], x_turned(g->x, g->gy[0]));
}

/* X = P B with P = pinv(A), computed here: gB = P^T gX, and gA is that of P for gP = gX B^T. */
void lstsq_matrices_grad(dm_Grad *g) {
  dm_X *x = g->x;
  const dm_LstsqMatricesAttr *at = g->attr;
  dm_Tensor *a = g->in[0], *b = g->in[1], *gy = g->gy[0];
  if (!gy) return;
  dm_Tensor *atol = dm_x_there(x, dm_x_number(x, 0), a->device);
  dm_Tensor *rtol = dm_x_there(x, dm_x_number(x, at->rcond), a->device);
  dm_Tensor *p = dm_x(x, DM_OP_pinv_matrices, NULL, 3, a, atol, rtol);
  if (g->need[0]) g->gx[0] = pinv_gradient(x, a, p, x_matmul(x, b, x_turned(x, gy)));
  if (g->need[1]) g->gx[1] = x_matmul(x, x_turned(x, p), gy);
}
