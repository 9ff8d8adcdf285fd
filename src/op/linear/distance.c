/* cosine_similarity, pairwise_distance, cdist, pdist, dist, trace and renorm,
   composed of norms and products, and the distances of all pairs of rows, by kernels of their
   own: no tensor of all differences is made. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/sizes.h"
#include "base/triple.h"
#include "cpu/loops/loops.h"
#include "op/index/index.h"
#include "op/linear/row_products.h"
#include "op/loss/loss.h"
#include "op/pointwise/pointwise.h"

/* A length, not below eps. The clamp is a constant for the gradient, as in PyTorch. */
static dm_Tensor *held(dm_X *x, dm_Tensor *length, double eps) {
  return x_add(x, length, x_constant_sub(x, x_floor(x, length, eps), length));
}
/* t / max(|t|, eps) along dim. */
static dm_Tensor *unit(dm_X *x, dm_Tensor *t, int64_t dim, double eps) {
  return x_div(x, t, held(x, x_norm(x, t, 2, dim, true), eps));
}
/* The root of a sum of squares, whose gradient is 0 where it is 0. */
static dm_Tensor *root(dm_X *x, dm_Tensor *squares) {
  dm_Tensor *none = x_test(x, DM_OP_eq, squares, 0);
  dm_Tensor *some = x_where(x, none, dm_x_number(x, 1), squares);
  return x_where(x, none, dm_x_number(x, 0), x_unary(x, DM_OP_sqrt, some));
}
/* Along the last dim, of 16 bits, whose squares float32 holds. */
static dm_Tensor *row_cosines(dm_X *x, dm_Tensor *u, dm_Tensor *v, double eps) {
  dm_Tensor *product[3];
  if (!x_row_products(x, u, v, product)) return NULL;
  dm_Tensor *lengths =
      x_mul(x, held(x, root(x, product[1]), eps), held(x, root(x, product[2]), eps));
  return x_div(x, product[0], lengths);
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
  /* the gradient of a repeated operand is a sum, rounded once */
  if (!dm_same_shape(u, v)) {
    u = x_expand(x, dm_x_widen(x, u), ndim, shape);
    v = x_expand(x, dm_x_widen(x, v), ndim, shape);
  }
  DM_TRY(x->st);
  DM_TRY(dm_check_dim(c, u, a->dim, &dim));
  const dm_DType to = dm_result_dtype(2, c->in);
  if (dm_is_low(to) && dim == u->ndim - 1) {
    c->out[0] = x_cast(x, row_cosines(x, u, v, a->eps), to);
    return x->st;
  }
  u = dm_x_widen(x, u);
  v = dm_x_widen(x, v);
  dm_Tensor *product = x_mul(x, unit(x, u, dim, a->eps), unit(x, v, dim, a->eps));
  dm_Tensor *y = x_sum(x, product, (dm_Ints){1, {dim}}, false);
  c->out[0] = dm_is_low(to) ? x_cast(x, y, to) : y;
  return x->st;
}

dm_Tensor *x_distance(dm_X *x, dm_Tensor *u, dm_Tensor *v, double p, double eps, bool keepdim) {
  const dm_LossTermAttr apart = {DM_TRIPLE_shifted_difference, eps, 0};
  dm_Tensor *const in[2] = {u, v};
  const bool square = p == 2 && x->st == DM_OK && dm_is_float(dm_result_dtype(2, in));
  if (!square) {
    dm_Tensor *d = x_sub(x, dm_x_widen(x, u), dm_x_widen(x, v));
    return x_norm(x, x_shift(x, d, eps), p, -1, keepdim);
  }
  dm_Tensor *y = x_formula(x, &apart, DM_LOSS_NORM, true, 2, in);
  return keepdim ? x_unsqueeze(x, y, -1) : y;
}

dm_status pairwise_distance_compose(dm_Call *c, dm_X *x) {
  const dm_PairwiseDistanceAttr *a = DM_ATTR(dm_PairwiseDistanceAttr, c);
  dm_Tensor *u = c->in[0], *v = c->in[1];
  const dm_DType to = dm_result_dtype(2, c->in);
  int64_t shape[DM_MAX_DIM];
  int ndim;
  DM_TRY(dm_broadcast(c->op->name, u, v, &ndim, shape));
  dm_Tensor *y = x_distance(x, u, v, a->p, a->eps, a->keepdim);
  c->out[0] = dm_is_low(to) ? x_cast(x, y, to) : y;
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

/* t with the dims `batch` before its last two, as (B, rows, features) in one dtype. */
static dm_Tensor *images_of(dm_X *x, dm_Tensor *t, int n_batch, const int64_t *batch,
                            dm_DType dtype) {
  int64_t shape[DM_MAX_DIM], image[3] = {1, 0, 0};
  if (x->st != DM_OK) return NULL;
  for (int d = 0; d < n_batch; d++) {
    shape[d] = batch[d];
    image[0] = dm_mul_sizes(image[0], batch[d]);
  }
  for (int d = 0; d < 2; d++) shape[n_batch + d] = image[1 + d] = t->shape[t->ndim - 2 + d];
  t = x_expand(x, x_cast(x, t, dtype), n_batch + 2, shape);
  return x_unary(x, DM_OP_contiguous, x_reshape(x, t, 3, image));
}

/* The p-norms of the differences of all rows, (..., P, R); batch dims are broadcast. */
static dm_Tensor *direct(const dm_Call *c, dm_X *x, dm_Tensor *u, dm_Tensor *v, double p) {
  int64_t shape[DM_MAX_DIM];
  int ndim;
  dm_Tensor *rows = x_unsqueeze(x, u, -2), *columns = x_unsqueeze(x, v, -3);
  if (x->st != DM_OK) return NULL;
  x->st = dm_broadcast(c->op->name, rows, columns, &ndim, shape);
  if (x->st != DM_OK) return NULL;
  const dm_DType dtype = dm_result_dtype(c->n_in, (dm_Tensor *const[]){u, v});
  u = images_of(x, u, ndim - 3, shape, dtype);
  v = images_of(x, v, ndim - 3, shape, dtype);
  return x_reshape(x, dm_x(x, DM_OP_distances, &p, 2, u, v), ndim - 1, shape);
}

/* Distances between all rows of u (..., P, M) and v (..., R, M). For p = 2 and more
   than 25 rows the product formula is used; otherwise the differences are taken. */
dm_status cdist_compose(dm_Call *c, dm_X *x) {
  enum { IF_NECESSARY, BY_PRODUCT, DIRECT, FEW = 25 }; /* compute_mode; rows */
  const dm_CdistAttr *a = DM_ATTR(dm_CdistAttr, c);
  dm_Tensor *u = c->in[0], *v = c->in[1];
  DM_TRY(dm_check_float(c, u, "x1"));
  DM_TRY(dm_check_float(c, v, "x2"));
  if (u->ndim < 2 || v->ndim < 2 || u->shape[u->ndim - 1] != v->shape[v->ndim - 1])
    return dm_fail(DM_EARG, "cdist: x1 has shape %s, x2 %s, wanted rows of one length",
                   DM_SHAPE(u), DM_SHAPE(v));
  if (!(a->p >= 0)) return dm_fail(DM_EARG, "cdist: p is %g, wanted 0 or more", a->p);
  const int64_t p = u->shape[u->ndim - 2], r = v->shape[v->ndim - 2];
  if (a->p == 2 && (a->compute_mode == BY_PRODUCT ||
                    (a->compute_mode == IF_NECESSARY && (p > FEW || r > FEW)))) {
    c->out[0] = euclidean(x, u, v);
    return x->st;
  }
  c->out[0] = direct(c, x, u, v, a->p);
  return x->st;
}

/* The sum of the main diagonal of a matrix. */
dm_status trace_compose(dm_Call *c, dm_X *x) {
  if (c->in[0]->ndim != 2)
    return dm_fail(DM_EARG, "trace: x has shape %s, wanted a matrix", DM_SHAPE(c->in[0]));
  c->out[0] = x_sum(x, x_unary(x, DM_OP_diagonal, c->in[0]), (dm_Ints){-1, {0}}, false);
  return x->st;
}

/* ---- distances ---- */

/* x1 (B, P, M) and x2 (B, R, M) are contiguous and of one dtype, float32 or float64, as cdist
   makes them, for (B, P, R); or x1 (N, M) alone for the N (N - 1) / 2 pairs of its rows. */
dm_status distances_rule(dm_Call *c) {
  const dm_Tensor *u = c->in[0], *v = c->n_in > 1 ? c->in[1] : NULL;
  dm_Meta *m = &c->out_meta[0];
  dm_out_like(c, 0, u, (dm_DType)u->dtype);
  m->ndim--;
  if (v) {
    m->shape[2] = v->shape[1];
    m->ndim = 3;
  } else {
    const int64_t n = u->shape[0], odd = n % 2 ? n : n - 1, even = n % 2 ? n - 1 : n;
    m->shape[0] = n > 0 ? dm_mul_sizes(odd, even / 2) : 0;
  }
  return DM_OK;
}

/* The job of distances y between the rows of own and of other; in y an own row lies `row`
   elements from the next, an other one `lane`. */
static dm_DistanceJob job_of(double p, const dm_Tensor *own, const dm_Tensor *other,
                             const dm_Tensor *y, int64_t row, int64_t lane) {
  const int at = own->ndim - 2;
  dm_DistanceJob j = {
      .kind = dm_distance_kind(p), .triangle = at == 0, .p = p, .y_row = row, .y_lane = lane};
  j.batch = at ? own->shape[0] : 1;
  j.n_row = own->shape[at], j.n_lane = other->shape[at], j.len = own->shape[at + 1];
  j.row_side = dm_tensor_data(own), j.lane_side = dm_tensor_data(other);
  j.y_batch = y->numel / j.batch;
  return j;
}

/* Runs `units` units, each of about `work` differences. */
static dm_status run_job(dm_DistanceJob *j, dm_RangeFn *loop, int64_t units, int64_t work) {
  enum { GRAIN = 1 << 15 }; /* differences that are worth a thread */
  dm_parallel_for(units, dm_max_i64(1, GRAIN / dm_max_i64(1, work)), loop, j);
  return j->failed ? dm_fail(DM_EMEM, "distances: out of memory") : DM_OK;
}

/* Distances are symmetric, so that the larger side has the lanes. */
dm_status distances_cpu(dm_Call *c) {
  const dm_Tensor *u = c->in[0], *v = c->n_in > 1 && c->in[1] ? c->in[1] : u, *y = c->out[0];
  if (y->numel == 0) return DM_OK;
  const int at = u->ndim - 2;
  const int64_t p = u->shape[at], r = v->shape[at];
  const dm_RealLoops *l = u->dtype == DM_F64 ? &dm_loops()->f64 : &dm_loops()->f32;
  const double power = DM_ATTR(dm_DistancesAttr, c)->p;
  dm_DistanceJob j =
      p > r ? job_of(power, v, u, y, 1, r) : job_of(power, u, v, y, at ? r : 0, 1);
  const int64_t lanes = l->distance_lanes, blocks = (j.n_lane + lanes - 1) / lanes;
  j.y = dm_tensor_data(c->out[0]);
  return run_job(&j, l->distances, j.batch * blocks,
                 dm_mul_sizes(dm_mul_sizes(lanes, j.n_row), j.len));
}

/* in: gy and y as distances gives it, x1, x2; out: the gradient of one side. */
dm_status distances_backward_rule(dm_Call *c) {
  const dm_Tensor *own = c->in[2 + DM_ATTR(dm_DistancesBackwardAttr, c)->side];
  dm_out_like(c, 0, own, (dm_DType)own->dtype);
  return DM_OK;
}
dm_status distances_backward_cpu(dm_Call *c) {
  const dm_DistancesBackwardAttr *a = DM_ATTR(dm_DistancesBackwardAttr, c);
  const dm_Tensor *y = c->in[1], *u = c->in[2], *v = c->n_in > 3 && c->in[3] ? c->in[3] : u;
  dm_Tensor *gx = c->out[0];
  if (gx->numel == 0) return DM_OK;
  if (a->p == 0 || y->numel == 0) {
    memset(dm_tensor_data(gx), 0, (size_t)dm_tensor_bytes(gx));
    return DM_OK;
  }
  const dm_RealLoops *l = u->dtype == DM_F64 ? &dm_loops()->f64 : &dm_loops()->f32;
  const int64_t r = v->shape[v->ndim - 2];
  dm_DistanceJob j = a->side ? job_of(a->p, v, u, y, 1, r) : job_of(a->p, u, v, y, r, 1);
  j.gy = dm_tensor_data(c->in[0]), j.distance = dm_tensor_data(y);
  j.y = dm_tensor_data(gx);
  const int64_t blocks = (j.n_row + DM_DISTANCE_UNIT - 1) / DM_DISTANCE_UNIT;
  return run_job(&j, l->distances_back, j.batch * blocks,
                 dm_mul_sizes(dm_mul_sizes(DM_DISTANCE_UNIT, j.n_lane), j.len));
}

/* The gradient of distances y by the differences d (..., M), for create_graph: y, d and gy have
   the same dims, of which y and gy have 1 in the last one. */
static dm_Tensor *slope_of(dm_X *x, dm_Tensor *gy, dm_Tensor *y, dm_Tensor *d, double p) {
  dm_Tensor *zero = dm_x_number(x, 0), *sign = x_unary(x, DM_OP_sign, d);
  if (p == 0) return x_scale(x, x_mul(x, sign, gy), 0);
  if (p == 1) return x_mul(x, sign, gy);
  if (isinf(p)) {
    dm_Tensor *hit = dm_x(x, DM_OP_eq, NULL, 2, x_unary(x, DM_OP_abs, d), y);
    gy = x_where(x, x_unary(x, DM_OP_isnan, y), y, gy);
    return x_mul(x, x_mul(x, sign, x_like(x, hit, d)), gy);
  }
  /* where y is 0 it is not divided by, for the gradient of this would be NaN */
  dm_Tensor *none = x_test(x, DM_OP_eq, y, 0);
  y = x_where(x, none, dm_x_number(x, 1), y);
  gy = x_where(x, none, zero, gy);
  if (p == 2) return x_mul(x, d, x_div(x, gy, y));
  /* nor is a power of a difference of 0 taken, whose own slope is infinite for p < 2 */
  dm_Tensor *flat = x_test(x, DM_OP_eq, d, 0);
  dm_Tensor *size = x_where(x, flat, dm_x_number(x, 1), x_unary(x, DM_OP_abs, d));
  dm_Tensor *power = dm_x(x, DM_OP_pow, NULL, 2, x_div(x, size, y), dm_x_number(x, p - 1));
  return x_mul(x, x_where(x, flat, zero, x_mul(x, sign, power)), gy);
}

/* The gradient as a composition over the tensor of all differences. */
static void distances_composed(dm_Grad *g, double p) {
  dm_X *x = g->x;
  dm_Tensor *u = g->in[0], *v = g->in[1], *gy = g->gy[0], *y = g->out[0];
  if (v) {
    dm_Tensor *d = x_sub(x, x_unsqueeze(x, u, -2), x_unsqueeze(x, v, -3));
    dm_Tensor *s = slope_of(x, x_unsqueeze(x, gy, -1), x_unsqueeze(x, y, -1), d, p);
    if (g->need[0]) g->gx[0] = x_sum(x, s, (dm_Ints){1, {2}}, false);
    if (g->need[1]) g->gx[1] = x_unary(x, DM_OP_neg, x_sum(x, s, (dm_Ints){1, {1}}, false));
    return;
  }
  /* the pairs of rows, selected */
  const int64_t n = u->shape[0], pairs = y->numel, base = dm_thread_state()->base;
  int64_t *left, *right;
  dm_Tensor *first = dm_x_positions(x, pairs, &left),
            *second = dm_x_positions(x, pairs, &right);
  if (x->st != DM_OK) return;
  for (int64_t i = 0; i < n; i++)
    for (int64_t k = i + 1; k < n; k++) {
      *left++ = i + base;
      *right++ = k + base;
    }
  first = dm_x_there(x, first, u->device);
  second = dm_x_there(x, second, u->device);
  dm_Tensor *d = x_sub(x, dm_x_select(x, u, 0, first), dm_x_select(x, u, 0, second));
  dm_Tensor *s = slope_of(x, x_unsqueeze(x, gy, -1), x_unsqueeze(x, y, -1), d, p);
  dm_Tensor *gx =
      dm_x(x, DM_OP_index_add, &(dm_IndexAddAttr){0, 1}, 3, x_zeros_like(x, u), first, s);
  g->gx[0] = dm_x(x, DM_OP_index_add, &(dm_IndexAddAttr){0, -1}, 3, gx, second, s);
}

/* By one kernel a side, or composed under create_graph. */
void distances_grad(dm_Grad *g) {
  const double p = DM_ATTR(dm_DistancesAttr, g)->p;
  if (g->create_graph) {
    distances_composed(g, p);
    return;
  }
  dm_Tensor *gy = x_unary(g->x, DM_OP_contiguous, g->gy[0]);
  for (int side = 0; side < (g->in[1] ? 2 : 1); side++)
    if (g->need[side])
      g->gx[side] = dm_x(g->x, DM_OP_distances_backward, &(dm_DistancesBackwardAttr){p, side},
                         4, gy, g->out[0], g->in[0], g->in[1]);
}

/* ---- dist, pdist, renorm ---- */

static dm_Tensor *norm_of(dm_X *x, dm_Tensor *t, double p, dm_Ints dims, bool keepdim) {
  const dm_NormAttr attr = {p, dims, keepdim, DM_NO_DTYPE};
  return dm_x(x, DM_OP_norm, &attr, 1, t);
}

/* The p-norm of a - b over all elements. */
dm_status dist_compose(dm_Call *c, dm_X *x) {
  const double p = DM_ATTR(dm_PNormAttr, c)->p;
  const dm_LossTermAttr apart = {DM_TRIPLE_shifted_difference, 0, 0};
  const dm_DType to = dm_result_dtype(2, c->in);
  int64_t shape[DM_MAX_DIM];
  int ndim;
  DM_TRY(dm_broadcast(c->op->name, c->in[0], c->in[1], &ndim, shape));
  dm_Tensor *y;
  if (p == 2 && dm_is_float(to)) {
    y = x_formula(x, &apart, DM_LOSS_NORM, false, 2, c->in);
  } else {
    dm_Tensor *d = x_sub(x, dm_x_widen(x, c->in[0]), dm_x_widen(x, c->in[1]));
    y = norm_of(x, d, p, (dm_Ints){-1, {0}}, false);
  }
  c->out[0] = dm_is_low(to) ? x_cast(x, y, to) : y;
  return x->st;
}

/* Distances of all pairs i < j of the N rows of x (N, M), in the order (0,1), (0,2), ... */
dm_status pdist_compose(dm_Call *c, dm_X *x) {
  const double p = DM_ATTR(dm_PNormAttr, c)->p;
  dm_Tensor *t = c->in[0];
  DM_TRY(dm_check_float(c, t, "x"));
  DM_TRY(dm_check_ndim(c, 0, "x", 2));
  if (!(p >= 0)) return dm_fail(DM_EARG, "pdist: p is %g, wanted 0 or more", p);
  c->out[0] = dm_x(x, DM_OP_distances, &p, 1, x_unary(x, DM_OP_contiguous, t));
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
