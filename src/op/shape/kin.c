/* Ops that are others with their operands turned, one or two steps away from them. */
#include "base/error.h"
#include "op/index/index.h"
#include "op/pointwise/pointwise.h"
#include "op/reduce/reduce.h"
#include "op/sort/sort.h"

static dm_Tensor *x_unsqueeze(dm_X *x, dm_Tensor *t, int64_t dim) {
  return dm_x(x, DM_OP_unsqueeze, &dim, 1, t);
}
static dm_Tensor *x_squeeze(dm_X *x, dm_Tensor *t, int64_t dim) {
  return dm_x(x, DM_OP_squeeze, &(dm_Ints){1, {dim}}, 1, t);
}

/* ---- degrees and radians ---- */

static const double PI = 3.14159265358979323846;

static dm_status scaled(dm_Call *c, dm_X *x, double by) {
  c->out[0] = x_scale(x, c->in[0], by);
  return x->st;
}
dm_status deg2rad_compose(dm_Call *c, dm_X *x) { return scaled(c, x, PI / 180); }
dm_status rad2deg_compose(dm_Call *c, dm_X *x) { return scaled(c, x, 180 / PI); }

/* ---- products that addmm does ---- */

static dm_status check_dims(const dm_Call *c, int i, const char *name, int ndim) {
  if (c->in[i]->ndim == ndim) return DM_OK;
  return dm_fail(DM_EARG, "%s: %s has shape %s, wanted %d dim%s", c->op->name, name,
                 DM_SHAPE(c->in[i]), ndim, ndim == 1 ? "" : "s");
}

dm_status addmv_compose(dm_Call *c, dm_X *x) {
  DM_TRY(check_dims(c, 1, "mat", 2));
  DM_TRY(check_dims(c, 2, "vec", 1));
  dm_Tensor *start = c->in[0]->ndim ? x_unsqueeze(x, c->in[0], -1) : c->in[0];
  dm_Tensor *column = x_unsqueeze(x, c->in[2], -1);
  c->out[0] = x_squeeze(x, dm_x(x, DM_OP_addmm, c->attr, 3, start, c->in[1], column), -1);
  return x->st;
}

dm_status addr_compose(dm_Call *c, dm_X *x) {
  DM_TRY(check_dims(c, 1, "vec1", 1));
  DM_TRY(check_dims(c, 2, "vec2", 1));
  c->out[0] = dm_x(x, DM_OP_addmm, c->attr, 3, c->in[0], x_unsqueeze(x, c->in[1], -1),
                   x_unsqueeze(x, c->in[2], 0));
  return x->st;
}

/* The sum over a batch of products is one product of the matrices side by side. */
dm_status addbmm_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *a = c->in[1], *b = c->in[2];
  DM_TRY(check_dims(c, 1, "batch1", 3));
  DM_TRY(check_dims(c, 2, "batch2", 3));
  if (a->shape[0] != b->shape[0] || a->shape[2] != b->shape[1])
    return dm_fail(DM_EARG,
                   "addbmm: batch1 has shape %s, batch2 %s, wanted {b, n, m}, {b, m, p}",
                   DM_SHAPE(a), DM_SHAPE(b));
  const int64_t depth = a->shape[0] * a->shape[2];
  a = x_reshape(x, x_transpose(x, a, 0, 1), 2, (int64_t[]){a->shape[1], depth});
  b = x_reshape(x, b, 2, (int64_t[]){depth, b->shape[2]});
  c->out[0] = dm_x(x, DM_OP_addmm, c->attr, 3, c->in[0], a, b);
  return x->st;
}

dm_status vdot_compose(dm_Call *c, dm_X *x) {
  c->out[0] = dm_x(x, DM_OP_dot, NULL, 2, c->in[0], c->in[1]);
  return x->st;
}

/* ---- distances ---- */

static dm_Tensor *norm_of(dm_X *x, dm_Tensor *t, double p, dm_Ints dims, bool keepdim) {
  const struct {
    double p;
    dm_Ints dims;
    int64_t keepdim, dtype;
  } attr = {p, dims, keepdim, DM_NO_DTYPE};
  return dm_x(x, DM_OP_norm, &attr, 1, t);
}

dm_status dist_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *apart = x_sub(x, c->in[0], c->in[1]);
  c->out[0] = norm_of(x, apart, *DM_ATTR(double, c), (dm_Ints){-1, {0}}, false);
  return x->st;
}

dm_status pdist_compose(dm_Call *c, dm_X *x) {
  const double p = *DM_ATTR(double, c);
  dm_Tensor *t = c->in[0];
  DM_TRY(dm_check_float(c, t, "x"));
  DM_TRY(check_dims(c, 0, "x", 2));
  if (!(p >= 0)) return dm_fail(DM_EARG, "pdist: p is %g, wanted 0 or more", p);
  const int64_t n = t->shape[0], pairs = n * (n - 1) / 2;
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

/* Slices along dim with a norm above maxnorm are scaled down to it; as PyTorch's, by
   maxnorm / (norm + 1e-7). */
dm_status renorm_compose(dm_Call *c, dm_X *x) {
  const struct {
    double p;
    int64_t dim;
    double maxnorm;
  } *a = c->attr;
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

/* ---- order and places ---- */

dm_status argsort_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *out[2] = {NULL, NULL};
  if (!x_call(x, DM_OP_sort, c->attr, 1, c->in, out)) return x->st;
  c->out[0] = out[1];
  return x->st;
}

/* Among the sorted test elements x lies where some of them begin and others end. */
dm_status isin_compose(dm_Call *c, dm_X *x) {
  const bool invert = *DM_ATTR(int64_t, c);
  dm_Tensor *test = x_reshape(x, c->in[1], 1, &c->in[1]->numel), *sorted[2] = {NULL, NULL};
  const dm_SortAttr rising = {0, false, false};
  DM_TRY(x->st);
  if (!x_call(x, DM_OP_sort, &rising, 1, &test, sorted)) return x->st;
  const dm_BucketAttr left = {false, false}, right = {true, false};
  dm_Tensor *begin = dm_x(x, DM_OP_bucketize, &left, 2, c->in[0], sorted[0]);
  dm_Tensor *end = dm_x(x, DM_OP_bucketize, &right, 2, c->in[0], sorted[0]);
  c->out[0] = dm_x(x, invert ? DM_OP_eq : DM_OP_ne, NULL, 2, begin, end);
  return x->st;
}

dm_status take_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *flat = x_reshape(x, c->in[0], 1, &c->in[0]->numel), *at = c->in[1];
  dm_Tensor *taken = dm_x_select(x, flat, 0, x_reshape(x, at, 1, &at->numel));
  c->out[0] = x_reshape(x, taken, at->ndim, at->shape);
  return x->st;
}

dm_status index_fill_compose(dm_Call *c, dm_X *x) {
  const int64_t at = *DM_ATTR(int64_t, c);
  dm_Tensor *t = c->in[0], *value = c->in[2];
  int dim;
  DM_TRY(dm_check_dim(c, t, at, &dim));
  DM_TRY(check_dims(c, 1, "index", 1));
  if (value->ndim != 0)
    return dm_fail(DM_EARG, "index_fill: the value has shape %s, wanted a number",
                   DM_SHAPE(value));
  int64_t shape[DM_MAX_DIM];
  for (int d = 0; d < t->ndim; d++) shape[d] = d == dim ? c->in[1]->numel : t->shape[d];
  value = dm_x_there(x, x_cast(x, value, (dm_DType)t->dtype), t->device);
  const int64_t along = dim;
  c->out[0] =
      dm_x(x, DM_OP_index_copy, &along, 3, t, c->in[1], x_expand(x, value, t->ndim, shape));
  return x->st;
}

dm_status unflatten_compose(dm_Call *c, dm_X *x) {
  const struct {
    int64_t dim;
    dm_Ints sizes;
  } *a = c->attr;
  dm_Tensor *t = c->in[0];
  int dim;
  DM_TRY(dm_check_dim(c, t, a->dim, &dim));
  if (a->sizes.n < 1 || t->ndim - 1 + a->sizes.n > DM_MAX_DIM)
    return dm_fail(DM_EARG, "unflatten: dim %d as %lld, wanted 1 to %d", dim + c->base,
                   (long long)a->sizes.n, DM_MAX_DIM + 1 - t->ndim);
  int64_t shape[DM_MAX_DIM], known = 1, open = -1;
  int n = 0;
  for (int d = 0; d < dim; d++) shape[n++] = t->shape[d];
  for (int64_t i = 0; i < a->sizes.n; i++) {
    const int64_t size = a->sizes.v[i];
    if (size == -1 && open < 0) open = n;
    else if (size < 0 || (size && known > INT64_MAX / size)) known = -1;
    else if (known >= 0) known *= size;
    shape[n++] = size;
  }
  const int64_t whole = t->shape[dim];
  const bool fits = open < 0 ? known == whole : known > 0 && whole % known == 0;
  if (!fits)
    return dm_fail(DM_EARG, "unflatten: dim %d of size %lld as %s", dim + c->base,
                   (long long)whole, dm_shape_str((int)a->sizes.n, a->sizes.v, (char[96]){0}));
  if (open >= 0) shape[open] = whole / known;
  for (int d = dim + 1; d < t->ndim; d++) shape[n++] = t->shape[d];
  c->out[0] = x_reshape(x, t, n, shape);
  return x->st;
}

/* ---- powers ---- */

dm_status vander_compose(dm_Call *c, dm_X *x) {
  const struct { int64_t n, increasing; } *a = c->attr;
  DM_TRY(check_dims(c, 0, "x", 1));
  if (a->n < -1)
    return dm_fail(DM_EARG, "vander: N is %lld, wanted 0 or more", (long long)a->n);
  c->out[0] = dm_x(x, DM_OP_linalg_vander, &a->n, 1, c->in[0]);
  if (!a->increasing) c->out[0] = x_unary(x, DM_OP_fliplr, c->out[0]);
  return x->st;
}
