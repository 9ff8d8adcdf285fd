/* Ops that rearrange elements or sum over several dims, composed of views, scatters
   and one product: diag, diag_embed, diagflat, fliplr, flipud, rot90,
   take_along_dim, masked_scatter, tensordot and unflatten.

   tensordot sums products over pairs of dims. Each operand is permuted and reshaped
   to a matrix, (free, summed) and (summed, free), so that the sum over all pairs is
   one matrix product, whose result is reshaped to the free dims of both. */
#include "base/error.h"
#include "base/sizes.h"
#include "op/index/index.h"
#include "op/pointwise/pointwise.h"

/* ---- diagonals ---- */

/* t (..., n) -> (..., s, s) with s = n + |offset| and t's last dim on the diagonal
   of the new dims d1 and d2, zeros elsewhere. The diagonal is a strided region of
   the result (stride[d1] + stride[d2]), into which t is written. */
static dm_Tensor *embedded(dm_X *x, dm_Tensor *t, int64_t offset, int d1, int d2) {
  if (x->st != DM_OK) return NULL;
  const int64_t side = dm_add_sizes(t->shape[t->ndim - 1], offset < 0 ? -offset : offset);
  int64_t shape[DM_MAX_DIM], stride[DM_MAX_DIM];
  dm_AsStridedAttr region = {{t->ndim, {0}}, {t->ndim, {0}}, 0};
  for (int d = 0, k = 0; d <= t->ndim; d++)
    shape[d] = d == d1 || d == d2 ? side : t->shape[k++];
  dm_contiguous_strides(t->ndim + 1, shape, stride);
  for (int d = 0, k = 0; d <= t->ndim; d++)
    if (d != d1 && d != d2) region.stride.v[k++] = stride[d];
  for (int d = 0; d < t->ndim; d++) region.size.v[d] = t->shape[d];
  region.stride.v[t->ndim - 1] = dm_add_sizes(stride[d1], stride[d2]);
  region.storage_offset =
      offset < 0 ? dm_mul_sizes(-offset, stride[d1]) : dm_mul_sizes(offset, stride[d2]);
  dm_Tensor *zeros = x_repeated(x, 0, t->ndim + 1, shape, t);
  return dm_x(x, DM_OP_as_strided_scatter, &region, 2, zeros, t);
}

/* A diagonal at most 2^30 away from the main one, so that sizes do not overflow. */
static dm_status check_offset(const dm_Call *c, int64_t offset) {
  const int64_t most = 1 << 30;
  if (offset >= -most && offset <= most) return DM_OK;
  return dm_fail(DM_EARG, "%s: a diagonal %lld away from the main one, wanted at most 2^30",
                 c->op->name, (long long)offset);
}

/* x (..., n) -> matrices with x on the diagonal, in the dims dim1 and dim2 of the
   result. */
dm_status diag_embed_compose(dm_Call *c, dm_X *x) {
  const dm_DiagEmbedAttr *a = DM_ATTR(dm_DiagEmbedAttr, c);
  dm_Tensor *t = c->in[0];
  const int n = t->ndim + 1;
  const int64_t d1 = a->dim1 < 0 ? a->dim1 + n : a->dim1,
                d2 = a->dim2 < 0 ? a->dim2 + n : a->dim2;
  if (t->ndim < 1 || n > DM_MAX_DIM)
    return dm_fail(DM_EARG, "diag_embed: x has shape %s, wanted 1 to %d dims", DM_SHAPE(t),
                   DM_MAX_DIM - 1);
  if (d1 < 0 || d2 < 0 || d1 >= n || d2 >= n || d1 == d2)
    return dm_fail(DM_EARG,
                   "diag_embed: dim1 %lld and dim2 %lld, wanted two of the result's %d",
                   (long long)(a->dim1 < 0 ? a->dim1 : a->dim1 + c->base),
                   (long long)(a->dim2 < 0 ? a->dim2 : a->dim2 + c->base), n);
  DM_TRY(check_offset(c, a->offset));
  c->out[0] = embedded(x, t, a->offset, (int)d1, (int)d2);
  return x->st;
}

/* A vector becomes a diagonal matrix; of a matrix the diagonal is copied. */
dm_status diag_compose(dm_Call *c, dm_X *x) {
  const int64_t offset = DM_ATTR(dm_DiagAttr, c)->diagonal;
  dm_Tensor *t = c->in[0];
  if (t->ndim != 1 && t->ndim != 2)
    return dm_fail(DM_EARG,
                   "diag: x has shape %s, wanted a vector or a matrix; hint: diag_embed or "
                   "diagonal for batches",
                   DM_SHAPE(t));
  DM_TRY(check_offset(c, offset));
  c->out[0] =
      t->ndim == 1
          ? embedded(x, t, offset, 0, 1)
          : x_unary(x, DM_OP_clone, dm_x(x, DM_OP_diagonal, &(int64_t[3]){offset, 0, 1}, 1, t));
  return x->st;
}

/* The elements of x in row-major order on a diagonal of a new square matrix. */
dm_status diagflat_compose(dm_Call *c, dm_X *x) {
  const int64_t offset = DM_ATTR(dm_DiagflatAttr, c)->offset;
  DM_TRY(check_offset(c, offset));
  c->out[0] = embedded(x, x_reshape(x, c->in[0], 1, &c->in[0]->numel), offset, 0, 1);
  return x->st;
}

/* ---- flips and rotations ---- */

/* t reversed along one dim. */
static dm_Tensor *x_flip(dm_X *x, dm_Tensor *t, int64_t dim) {
  return dm_x(x, DM_OP_flip, &(dm_Ints){1, {dim}}, 1, t);
}

/* x flipped along one dim, for fliplr and flipud. */
static dm_status flipped(dm_Call *c, dm_X *x, int dim) {
  if (c->in[0]->ndim <= dim)
    return dm_fail(DM_EARG, "%s: x has shape %s, wanted %d dims or more", c->op->name,
                   DM_SHAPE(c->in[0]), dim + 1);
  c->out[0] = x_flip(x, c->in[0], dim);
  return x->st;
}

/* Columns in reverse order: dim 1, as in PyTorch, also with more than two dims. */
dm_status fliplr_compose(dm_Call *c, dm_X *x) { return flipped(c, x, 1); }
/* Rows in reverse order: dim 0. */
dm_status flipud_compose(dm_Call *c, dm_X *x) { return flipped(c, x, 0); }

/* k quarter turns from the first dim towards the second: a flip of one dim and a
   transpose for one or three quarters, two flips for a half turn. */
dm_status rot90_compose(dm_Call *c, dm_X *x) {
  const dm_Rot90Attr *a = c->attr;
  dm_Tensor *t = c->in[0];
  const dm_Ints plane = a->dims.n < 0 ? (dm_Ints){2, {0, 1}} : a->dims;
  int from, to;
  if (t->ndim < 2 || plane.n != 2)
    return dm_fail(DM_EARG, "rot90: %lld dims of shape %s, wanted two of two or more",
                   (long long)plane.n, DM_SHAPE(t));
  DM_TRY(dm_check_dim(c, t, plane.v[0], &from));
  DM_TRY(dm_check_dim(c, t, plane.v[1], &to));
  if (from == to)
    return dm_fail(DM_EARG, "rot90: dim %d is given twice, wanted two", from + c->base);
  /* k counts modulo 4, also negative. */
  const int turns = (int)(a->k % 4 + 4) % 4;
  if (turns == 1 || turns == 2) t = x_flip(x, t, to);
  if (turns == 3 || turns == 2) t = x_flip(x, t, from);
  if (turns % 2) t = dm_x(x, DM_OP_transpose, &(int64_t[2]){from, to}, 1, t);
  c->out[0] = turns ? t : x_unary(x, DM_OP_clone, t);
  return x->st;
}

/* ---- elements chosen by positions or a mask ---- */

/* Negative positions among n, which count from the end, as positions from the beginning. */
static dm_Tensor *from_start(const dm_Call *c, dm_X *x, dm_Tensor *at, int64_t n) {
  dm_Tensor *wrapped = x_add(x, at, x_whole(x, n + c->base));
  return x_where(x, x_test(x, DM_OP_lt, at, 0), wrapped, at);
}

/* gather after x and index were broadcast against each other in all dims but `dim`;
   without a dim both are flattened. */
dm_status take_along_dim_compose(dm_Call *c, dm_X *x) {
  const dm_OptInt *a = &DM_ATTR(dm_TakeAlongDimAttr, c)->dim;
  dm_Tensor *t = c->in[0], *at = c->in[1];
  int dim = 0;
  if (!a->set) {
    t = x_reshape(x, t, 1, &t->numel);
    at = from_start(c, x, x_reshape(x, at, 1, &at->numel), c->in[0]->numel);
    c->out[0] = dm_x(x, DM_OP_gather, &(int64_t){0}, 2, t, at);
    return x->st;
  }
  DM_TRY(dm_check_dim(c, t, a->v, &dim));
  int64_t from[DM_MAX_DIM], to[DM_MAX_DIM];
  for (int d = 0; d < t->ndim && t->ndim == at->ndim; d++) {
    const int64_t n = t->shape[d], m = at->shape[d];
    if (d != dim && n != m && n != 1 && m != 1)
      return dm_fail(DM_EARG,
                     "take_along_dim: x has shape %s, index %s: sizes %lld and %lld of "
                     "dim %d do not fit",
                     DM_SHAPE(t), DM_SHAPE(at), (long long)n, (long long)m, d + c->base);
    /* Along dim both keep their own size; elsewhere both take the larger one, which
       the other has or broadcasts to. */
    from[d] = d == dim || m == 1 ? n : m;
    to[d] = d == dim ? m : from[d];
  }
  if (t->ndim != at->ndim)
    return dm_fail(DM_EARG, "take_along_dim: x has shape %s, index %s, wanted as many dims",
                   DM_SHAPE(t), DM_SHAPE(at));
  c->out[0] = dm_x(x, DM_OP_gather, &(int64_t){dim}, 2, x_expand(x, t, t->ndim, from),
                   x_expand(x, from_start(c, x, at, t->shape[dim]), at->ndim, to));
  return x->st;
}

/* x with its masked elements replaced by source's first elements, in row-major
   order. The number of masked elements is read from the device, to check the source
   and to cut it. */
dm_status masked_scatter_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *source = c->in[2];
  int64_t n, shape[DM_MAX_DIM];
  int ndim;
  if (c->in[1]->dtype != DM_BOOL)
    return dm_fail(DM_EARG, "masked_scatter: the mask is %s, wanted bool",
                   dm_dtype_name((dm_DType)c->in[1]->dtype));
  DM_TRY(dm_broadcast(c->op->name, c->in[0], c->in[1], &ndim, shape));
  dm_Tensor *t = x_expand(x, c->in[0], ndim, shape), *mask = x_expand(x, c->in[1], ndim, shape);
  dm_Tensor *count = x_sum(x, mask, (dm_Ints){-1, {0}}, false); /* the sum of bools is int64 */
  DM_TRY(x->st);
  DM_TRY(dm_tensor_read(count, sizeof n, &n));
  if (source->numel < n)
    return dm_fail(DM_EARG, "masked_scatter: %lld elements for the %lld that the mask holds",
                   (long long)source->numel, (long long)n);
  source = x_reshape(x, source, 1, &source->numel);
  source = dm_x(x, DM_OP_narrow, &(int64_t[3]){0, 0, n}, 1, source);
  c->out[0] = dm_x(x, DM_OP_masked_put, NULL, 3, t, mask, source);
  return x->st;
}

/* ---- tensordot ---- */

/* t as a matrix whose columns (in_rows: rows) are its n summed dims, in the order
   given, and whose other side are the remaining dims. */
static dm_Tensor *as_matrix(dm_X *x, dm_Tensor *t, const int *summed, int n, bool in_rows) {
  dm_Ints order = {t->ndim, {0}};
  int64_t free = 1, sum = 1;
  unsigned seen = 0;
  for (int i = 0; i < n; i++) {
    seen |= 1u << summed[i];
    sum *= t->shape[summed[i]];
    order.v[in_rows ? i : t->ndim - n + i] = summed[i];
  }
  for (int d = 0, k = in_rows ? n : 0; d < t->ndim; d++)
    if (!(seen >> d & 1u)) {
      order.v[k++] = d;
      free *= t->shape[d];
    }
  const int64_t shape[2] = {in_rows ? sum : free, in_rows ? free : sum};
  return x_reshape(x, dm_x(x, DM_OP_permute, &order, 1, t), 2, shape);
}

/* Appends the sizes of t's dims that are not summed to `shape`, which holds n sizes;
   returns the new number. */
static int left_over(const dm_Tensor *t, const int *summed, int n_summed, int64_t *shape,
                     int n) {
  unsigned seen = 0;
  for (int i = 0; i < n_summed; i++) seen |= 1u << summed[i];
  for (int d = 0; d < t->ndim; d++)
    if (!(seen >> d & 1u)) shape[n++] = t->shape[d];
  return n;
}

/* The dims to sum over: the named ones, or the last `dims` of x with the first of
   other. */
static dm_status check_summed(const dm_Call *c, const dm_TensordotAttr *a, int *own,
                              int *others, int *n) {
  const dm_Tensor *t = c->in[0], *o = c->in[1];
  /* Without names the last `dims` dims of x pair with the first of other, in order. */
  const bool named = a->dims_self.n >= 0 || a->dims_other.n >= 0;
  if (named && a->dims_self.n != a->dims_other.n)
    return dm_fail(
        DM_EARG, "tensordot: dims_self names %lld dims, dims_other %lld, wanted as many",
        (long long)dm_max_i64(a->dims_self.n, 0), (long long)dm_max_i64(a->dims_other.n, 0));
  const int64_t count = named ? a->dims_self.n : a->dims;
  if (count < 0 || count > t->ndim || count > o->ndim)
    return dm_fail(DM_EARG, "tensordot: sums over %lld dims of shapes %s and %s",
                   (long long)count, DM_SHAPE(t), DM_SHAPE(o));
  unsigned seen[2] = {0, 0};
  *n = (int)count;
  for (int i = 0; i < *n; i++) {
    DM_TRY(dm_check_dim(c, t, named ? a->dims_self.v[i] : t->ndim - count + i, &own[i]));
    DM_TRY(dm_check_dim(c, o, named ? a->dims_other.v[i] : i, &others[i]));
    if (seen[0] >> own[i] & 1u || seen[1] >> others[i] & 1u)
      return dm_fail(DM_EARG, "tensordot: a dim is given twice");
    seen[0] |= 1u << own[i];
    seen[1] |= 1u << others[i];
    const int64_t left = t->shape[own[i]], right = o->shape[others[i]];
    if (left != right && left != 1 && right != 1)
      return dm_fail(DM_EARG,
                     "tensordot: dim %d of shape %s and dim %d of shape %s differ in size",
                     own[i] + c->base, DM_SHAPE(t), others[i] + c->base, DM_SHAPE(o));
  }
  if (t->ndim + o->ndim - 2 * *n <= DM_MAX_DIM) return DM_OK;
  return dm_fail(DM_EARG, "tensordot: the result would have %d dims, wanted at most %d",
                 t->ndim + o->ndim - 2 * *n, DM_MAX_DIM);
}

/* t summed over those of its n dims that meet a dim of size 1 of o: a broadcast one. */
static dm_Tensor *narrowed(dm_X *x, dm_Tensor *t, const int *own, const dm_Tensor *o,
                           const int *others, int n) {
  dm_Ints wide = {0, {0}};
  for (int i = 0; i < n; i++)
    if (o->shape[others[i]] == 1 && t->shape[own[i]] != 1) wide.v[wide.n++] = own[i];
  return wide.n ? x_sum(x, t, wide, true) : t;
}

/* Sums of products over n dims as one matmul of (free, summed) and (summed, free), or as the
   dot product of two vectors where no dim is left, which autocast keeps in float32 on the
   CPU. */
dm_status tensordot_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *t = c->in[0], *o = c->in[1];
  int own[DM_MAX_DIM], others[DM_MAX_DIM], n = 0;
  int64_t shape[DM_MAX_DIM];
  DM_TRY(check_summed(c, DM_ATTR(dm_TensordotAttr, c), own, others, &n));
  int ndim = left_over(t, own, n, shape, 0);
  ndim = left_over(o, others, n, shape, ndim);
  dm_Tensor *wide = narrowed(x, t, own, o, others, n);
  o = narrowed(x, o, others, t, own, n);
  if (x->st != DM_OK) return x->st;
  dm_Tensor *a = as_matrix(x, wide, own, n, false), *b = as_matrix(x, o, others, n, true);
  const int64_t all = -1;
  const bool one = dm_numel(ndim, shape) == 1;
  dm_Tensor *y =
      one ? dm_x(x, DM_OP_dot, NULL, 2, x_reshape(x, a, 1, &all), x_reshape(x, b, 1, &all))
          : dm_x(x, DM_OP_mm, NULL, 2, a, b);
  c->out[0] = x_reshape(x, y, ndim, shape);
  return x->st;
}

/* A dim of size s becomes several whose product is s; one of them may be -1. */
dm_status unflatten_compose(dm_Call *c, dm_X *x) {
  const dm_UnflattenAttr *a = c->attr;
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
  /* `known` is -1 after a bad or overflowing size and 0 after a size of 0; with
     either no size can be derived. */
  const bool fits = open < 0 ? known == whole : known > 0 && whole % known == 0;
  if (!fits)
    return dm_fail(DM_EARG, "unflatten: dim %d of size %lld as %s", dim + c->base,
                   (long long)whole, DM_DIMS((int)a->sizes.n, a->sizes.v));
  if (open >= 0) shape[open] = whole / known;
  for (int d = dim + 1; d < t->ndim; d++) shape[n++] = t->shape[d];
  c->out[0] = x_reshape(x, t, n, shape);
  return x->st;
}
