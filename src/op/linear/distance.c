/* cosine_similarity, pairwise_distance, cdist, pdist, dist, trace and renorm,
   composed of norms and products. */
#include "base/error.h"
#include "base/sizes.h"
#include "op/index/index.h"
#include "op/pointwise/pointwise.h"

/* t / max(|t|, eps) along dim. The clamp is a constant for the gradient, as in
   PyTorch. */
static dm_Tensor *unit(dm_X *x, dm_Tensor *t, int64_t dim, double eps) {
  dm_Tensor *length = x_norm(x, t, 2, dim, true);
  dm_Tensor *lacking = x_constant_sub(x, x_floor(x, length, eps), length);
  return x_div(x, t, x_add(x, length, lacking));
}

/* u . v / (max(|u|, eps) max(|v|, eps)) along dim, after u and v are broadcast. */
dm_status cosine_similarity_compose(dm_Call *c, dm_X *x) {
  const dm_CosineSimilarityAttr *a = DM_ATTR(dm_CosineSimilarityAttr, c);
  dm_Tensor *u = c->in[0], *v = c->in[1];
  int64_t shape[DM_MAX_DIM];
  int ndim, dim;
  DM_TRY(dm_check_float(c, u, "x1"));
  DM_TRY(dm_check_float(c, v, "x2"));
  DM_TRY(dm_broadcast(c->op->name, u, v, &ndim, shape));
  u = x_expand(x, u, ndim, shape);
  v = x_expand(x, v, ndim, shape);
  DM_TRY(x->st);
  DM_TRY(dm_check_dim(c, u, a->dim, &dim));
  dm_Tensor *product = x_mul(x, unit(x, u, dim, a->eps), unit(x, v, dim, a->eps));
  c->out[0] = x_sum(x, product, (dm_Ints){1, {dim}}, false);
  return x->st;
}

/* The p-norm of u - v + eps over the last dim; eps keeps the gradient finite where u
   equals v. */
dm_status pairwise_distance_compose(dm_Call *c, dm_X *x) {
  const dm_PairwiseDistanceAttr *a = DM_ATTR(dm_PairwiseDistanceAttr, c);
  dm_Tensor *d = x_shift(x, x_sub(x, c->in[0], c->in[1]), a->eps);
  c->out[0] = x_norm(x, d, a->p, -1, a->keepdim);
  return x->st;
}

/* Euclidean distances of u (..., P, M) and v (..., R, M) as sqrt(|u|^2 + |v|^2 - 2 u
   v^T), (..., P, R): one matrix product and no tensor of all P R M differences.
   Rounding can leave a result slightly below 0, which counts as 0. */
static dm_Tensor *euclidean(dm_X *x, dm_Tensor *u, dm_Tensor *v) {
  const dm_Ints last = {1, {-1}};
  dm_Tensor *uu = x_sum(x, x_unary(x, DM_OP_square, u), last, true);
  dm_Tensor *vv = x_sum(x, x_unary(x, DM_OP_square, v), last, true);
  dm_Tensor *uv = x_matmul(x, u, x_transpose(x, v, -1, -2));
  dm_Tensor *sum = x_add(x, uu, x_transpose(x, vv, -1, -2));
  return x_unary(x, DM_OP_sqrt, x_floor(x, x_sub(x, sum, x_scale(x, uv, 2)), 0));
}

/* Distances between all rows of u (..., P, M) and v (..., R, M). For p = 2 and more
   than 25 rows the product formula is used; otherwise the differences (..., P, R, M)
   are made and their p-norm taken. */
dm_status cdist_compose(dm_Call *c, dm_X *x) {
  enum { IF_NECESSARY, BY_PRODUCT, DIRECT, FEW = 25 }; /* compute_mode; rows */
  const dm_CdistAttr *a = DM_ATTR(dm_CdistAttr, c);
  const double p = a->p;
  dm_Tensor *u = c->in[0], *v = c->in[1];
  DM_TRY(dm_check_float(c, u, "x1"));
  DM_TRY(dm_check_float(c, v, "x2"));
  if (u->ndim < 2 || v->ndim < 2 || u->shape[u->ndim - 1] != v->shape[v->ndim - 1])
    return dm_fail(DM_EARG, "cdist: x1 has shape %s, x2 %s, wanted rows of one length",
                   DM_SHAPE(u), DM_SHAPE(v));
  if (!(p >= 0)) return dm_fail(DM_EARG, "cdist: p is %g, wanted 0 or more", p);
  const bool many = u->shape[u->ndim - 2] > FEW || v->shape[v->ndim - 2] > FEW;
  if (p == 2 && (a->compute_mode == BY_PRODUCT || (a->compute_mode == IF_NECESSARY && many))) {
    c->out[0] = euclidean(x, u, v);
    return x->st;
  }
  const int64_t row = -2, column = -3;
  u = dm_x(x, DM_OP_unsqueeze, &row, 1, u);
  v = dm_x(x, DM_OP_unsqueeze, &column, 1, v);
  c->out[0] = x_norm(x, x_sub(x, u, v), p, -1, false);
  return x->st;
}

/* The sum of the main diagonal of a matrix. */
dm_status trace_compose(dm_Call *c, dm_X *x) {
  if (c->in[0]->ndim != 2)
    return dm_fail(DM_EARG, "trace: x has shape %s, wanted a matrix", DM_SHAPE(c->in[0]));
  c->out[0] = x_sum(x, x_unary(x, DM_OP_diagonal, c->in[0]), (dm_Ints){-1, {0}}, false);
  return x->st;
}

/* ---- dist, pdist, renorm ---- */

static dm_Tensor *norm_of(dm_X *x, dm_Tensor *t, double p, dm_Ints dims, bool keepdim) {
  const dm_NormAttr attr = {p, dims, keepdim, DM_NO_DTYPE};
  return dm_x(x, DM_OP_norm, &attr, 1, t);
}

/* The p-norm of a - b over all elements. */
dm_status dist_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *apart = x_sub(x, c->in[0], c->in[1]);
  c->out[0] = norm_of(x, apart, DM_ATTR(dm_PNormAttr, c)->p, (dm_Ints){-1, {0}}, false);
  return x->st;
}

/* Distances of all pairs i < j of the N rows of x (N, M), in the order (0,1), (0,2),
   ...: the N (N - 1) / 2 pairs of rows are selected and subtracted. */
dm_status pdist_compose(dm_Call *c, dm_X *x) {
  const double p = DM_ATTR(dm_PNormAttr, c)->p;
  dm_Tensor *t = c->in[0];
  DM_TRY(dm_check_float(c, t, "x"));
  DM_TRY(dm_check_ndim(c, 0, "x", 2));
  if (!(p >= 0)) return dm_fail(DM_EARG, "pdist: p is %g, wanted 0 or more", p);
  const int64_t n = t->shape[0], pairs = dm_mul_sizes(n, n - 1) / 2;
  int64_t *left, *right;
  dm_Tensor *first = dm_x_positions(x, pairs, &left);
  dm_Tensor *second = dm_x_positions(x, pairs, &right);
  DM_TRY(x->st);
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = i + 1; j < n; j++) {
      *left++ = i + c->base;
      *right++ = j + c->base;
    }
  dm_Tensor *apart = x_sub(x, dm_x_select(x, t, 0, first), dm_x_select(x, t, 0, second));
  c->out[0] = norm_of(x, apart, p, (dm_Ints){1, {1}}, false);
  return x->st;
}

/* Slices along dim whose norm exceeds maxnorm are scaled to it, by maxnorm / (norm +
   1e-7) as in PyTorch. */
dm_status renorm_compose(dm_Call *c, dm_X *x) {
  const dm_RenormAttr *a = c->attr;
  dm_Tensor *t = c->in[0];
  int dim;
  DM_TRY(dm_check_float(c, t, "x"));
  if (t->ndim < 2)
    return dm_fail(DM_EARG, "renorm: x has shape %s, wanted 2 dims or more", DM_SHAPE(t));
  DM_TRY(dm_check_dim(c, t, a->dim, &dim));
  if (!(a->p > 0) || !(a->maxnorm >= 0))
    return dm_fail(DM_EARG, "renorm: p is %g and maxnorm %g, wanted p > 0, maxnorm >= 0", a->p,
                   a->maxnorm);
  dm_Ints others = {0, {0}};
  for (int d = 0; d < t->ndim; d++)
    if (d != dim) others.v[others.n++] = d;
  dm_Tensor *norm = norm_of(x, t, a->p, others, true);
  dm_Tensor *scale =
      x_scale(x, x_unary(x, DM_OP_reciprocal, x_shift(x, norm, 1e-7)), a->maxnorm);
  dm_Tensor *one = dm_x_number(x, 1);
  c->out[0] = x_mul(x, t, x_where(x, x_test(x, DM_OP_gt, norm, a->maxnorm), scale, one));
  return x->st;
}
