/* Views: view, reshape, flatten, transpose, t, permute, movedim, squeeze, unsqueeze,
   expand, narrow, select, slice, diagonal, strided_window. The rule computes shape,
   strides and offset of a tensor that shares x's storage; no element moves.

   Gradients are views of gy: the inverse permutation, a reshape, or, for expand, the
   sum that the tape takes over broadcast dims. The gradient of a region (narrow,
   select, slice, diagonal) is zeros of x's shape with gy added in that region.

   A view of a view refers to the same storage and is described from the storage's
   first element, so chains of views cost no more than one. A rule makes its output
   itself; there is no kernel to run, on any device. */
#include <string.h>

#include "base/error.h"
#include "core/copy.h"
#include "op/index/index.h"
#include "op/pointwise/pointwise.h"

/* Makes the output: a view of input 0. */
static dm_status make(dm_Call *c, int ndim, const int64_t *shape, const int64_t *stride,
                      int64_t offset) {
  return dm_tensor_view(c->in[0], ndim, shape, stride, offset, &c->out[0]);
}

/* Resolves the sizes asked for: one -1 is computed, and the number of elements must
   be x's. */
static dm_status resolve_shape(const char *op, const dm_Tensor *x, const dm_Ints *want,
                               int64_t *shape, int *ndim) {
  const int64_t MAX_NUMEL = (int64_t)1 << 58;
  int64_t known = 1;
  bool huge = false, empty = false;
  int unknown = -1;
  if (want->n > DM_MAX_DIM) return dm_fail(DM_EARG, "%s: more than %d sizes", op, DM_MAX_DIM);
  for (int d = 0; d < want->n; d++) {
    shape[d] = want->v[d];
    if (shape[d] == -1 && unknown < 0) unknown = d;
    else if (shape[d] < 0)
      return dm_fail(DM_EARG, "%s: size %lld in %s; one size may be -1, the others count", op,
                     (long long)shape[d], DM_DIMS((int)want->n, want->v));
    else if (shape[d] > 0 && known > MAX_NUMEL / shape[d]) huge = true;
    else if (shape[d] > 0) known *= shape[d];
    else empty = true;
  }
  if (huge)
    known = MAX_NUMEL + 1; /* the product must not overflow even when another size is 0 */
  else if (empty) known = 0;
  if (unknown >= 0 && known > 0 && !huge && x->numel % known == 0)
    shape[unknown] = x->numel / known;
  else if (unknown >= 0 || known != x->numel)
    return dm_fail(DM_EARG, "%s: shape %s with %lld elements does not fit into %s", op,
                   DM_SHAPE(x), (long long)x->numel, DM_DIMS((int)want->n, want->v));
  *ndim = (int)want->n;
  return DM_OK;
}

/* Finds strides with which x's storage has `shape`; returns false when a copy is
   needed. Neighbouring dims of x that are contiguous to each other form chunks, and
   each new dim must lie inside one chunk (PyTorch's computeStride). */
static bool view_strides(const dm_Tensor *x, int ndim, const int64_t *shape, int64_t *stride) {
  if (x->numel == 0) {
    dm_contiguous_strides(ndim, shape, stride);
    return true;
  }
  int d = ndim - 1;
  /* Walks x's dims from the last one: a chunk ends where the next dim's stride is not
     the size of the chunk, and the new dims must then fill the chunk exactly. */
  int64_t chunk = 1, base = x->ndim ? x->stride[x->ndim - 1] : 1;
  for (int k = x->ndim - 1; k >= 0; k--) {
    chunk *= x->shape[k];
    const bool ends = k == 0 || (x->shape[k - 1] != 1 && x->stride[k - 1] != chunk * base);
    if (!ends) continue;
    int64_t covered = 1;
    while (d >= 0 && (covered < chunk || shape[d] == 1)) {
      stride[d] = covered * base;
      covered *= shape[d--];
    }
    if (covered != chunk) return false;
    if (k > 0) {
      base = x->stride[k - 1];
      chunk = 1;
    }
  }
  while (d >= 0) {
    stride[d] = 1;
    if (shape[d--] != 1) return false;
  }
  return true;
}

/* A view of a channels-last tensor that has no such strides: the layout is the
   engine's choice and not the caller's, so the op returns a contiguous tensor of its
   own instead of failing. */
static dm_status make_apart(dm_Call *c, int ndim, const int64_t *shape) {
  DM_TRY(dm_dense_new(c->in[0], &c->out[0]));
  dm_Tensor *t = c->out[0];
  t->ndim = (uint8_t)ndim;
  memcpy(t->shape, shape, sizeof *shape * (size_t)ndim);
  dm_contiguous_strides(ndim, shape, t->stride);
  return DM_OK;
}

/* A view in another shape; fails where strides do not allow it. */
dm_status view_rule(dm_Call *c) {
  int ndim;
  int64_t shape[DM_MAX_DIM], stride[DM_MAX_DIM];
  const dm_Tensor *x = c->in[0];
  DM_TRY(resolve_shape("view", x, &DM_ATTR(dm_SizeAttr, c)->size, shape, &ndim));
  const bool ok = view_strides(x, ndim, shape, stride);
  if (!ok && x->device.type != DM_CPU && dm_tensor_is_channels_last(x))
    return make_apart(c, ndim, shape);
  if (!ok)
    return dm_fail(DM_EARG,
                   "view: shape %s with these strides cannot be seen as %s; hint: "
                   "x:reshape(...) copies where it must",
                   DM_SHAPE(c->in[0]), DM_DIMS(ndim, shape));
  return make(c, ndim, shape, stride, c->in[0]->offset);
}

/* A view where strides allow it, else a view of a copy. */
dm_status reshape_compose(dm_Call *c, dm_X *x) {
  int ndim;
  int64_t shape[DM_MAX_DIM], stride[DM_MAX_DIM];
  dm_Tensor *t = c->in[0];
  DM_TRY(resolve_shape("reshape", t, &DM_ATTR(dm_ShapeAttr, c)->shape, shape, &ndim));
  if (!view_strides(t, ndim, shape, stride)) t = x_unary(x, DM_OP_contiguous_copy, t);
  c->out[0] = dm_x(x, DM_OP_view, c->attr, 1, t);
  return x->st;
}

/* The gradient of views that keep the order of elements: gy in the input's shape. */
void view_grad(dm_Grad *g) {
  g->gx[0] = x_reshape(g->x, g->gy[0], dm_in_meta(g, 0)->ndim, dm_in_meta(g, 0)->shape);
}

/* Dims from .. to become one; a 0-dim tensor becomes a vector. */
dm_status flatten_compose(dm_Call *c, dm_X *x) {
  const dm_FlattenAttr *a = DM_ATTR(dm_FlattenAttr, c);
  dm_Tensor *t = c->in[0];
  int from, to;
  DM_TRY(dm_check_dim(c, t, a->start_dim, &from));
  DM_TRY(dm_check_dim(c, t, a->end_dim, &to));
  if (from > to)
    return dm_fail(DM_EARG, "flatten: start_dim %d comes after end_dim %d", from + c->base,
                   to + c->base);
  int64_t shape[DM_MAX_DIM] = {1};
  int n = 0;
  for (int d = 0; d < t->ndim; d++) {
    if (d > from && d <= to) shape[n - 1] *= t->shape[d];
    else shape[n++] = t->shape[d];
  }
  const bool same = t->ndim > 0 && n == t->ndim; /* x itself, as in PyTorch */
  c->out[0] = same ? t : x_reshape(x, t, t->ndim ? n : 1, shape);
  return x->st;
}

/* A view of input 0 with two dims exchanged. */
static dm_status swapped(dm_Call *c, int a, int b) {
  const dm_Tensor *t = c->in[0];
  int64_t shape[DM_MAX_DIM], stride[DM_MAX_DIM];
  memcpy(shape, t->shape, sizeof shape);
  memcpy(stride, t->stride, sizeof stride);
  if (t->ndim > 0) {
    shape[a] = t->shape[b];
    shape[b] = t->shape[a];
    stride[a] = t->stride[b];
    stride[b] = t->stride[a];
  }
  return make(c, t->ndim, shape, stride, t->offset);
}

/* (..., A, ..., B, ...) -> (..., B, ..., A, ...): shape and stride of two dims are
   exchanged. */
dm_status transpose_rule(dm_Call *c) {
  const dm_TransposeAttr *a = DM_ATTR(dm_TransposeAttr, c);
  int d0, d1;
  DM_TRY(dm_check_dim(c, c->in[0], a->dim0, &d0));
  DM_TRY(dm_check_dim(c, c->in[0], a->dim1, &d1));
  return swapped(c, d0, d1);
}

/* The exchange is its own inverse: gy with the same dims exchanged. */
void transpose_grad(dm_Grad *g) {
  g->gx[0] = dm_x(g->x, DM_OP_transpose, g->attr, 1, g->gy[0]);
}

/* (M, N) -> (N, M); a vector or a 0-dim tensor stays as it is, as in PyTorch. */
dm_status t_rule(dm_Call *c) {
  const dm_Tensor *t = c->in[0];
  if (t->ndim > 2)
    return dm_fail(DM_EARG, "t: at most 2 dims, given shape %s; hint: x:transpose(a, b)",
                   DM_SHAPE(t));
  if (t->ndim == 2) return swapped(c, 0, 1);
  return make(c, t->ndim, t->shape, t->stride, t->offset);
}

/* The transpose of gy. */
void t_grad(dm_Grad *g) { g->gx[0] = dm_x(g->x, DM_OP_t, NULL, 1, g->gy[0]); }

/* Checks that dims names each dim of t once and writes them to `order`. */
static dm_status permutation(const dm_Call *c, const dm_Tensor *t, const dm_Ints *dims,
                             int *order) {
  bool seen[DM_MAX_DIM] = {false};
  if (dims->n != t->ndim)
    return dm_fail(DM_EARG, "permute: %lld dims given for shape %s", (long long)dims->n,
                   DM_SHAPE(t));
  for (int i = 0; i < t->ndim; i++) {
    DM_TRY(dm_check_dim(c, t, dims->v[i], &order[i]));
    if (seen[order[i]])
      return dm_fail(DM_EARG, "permute: dim %d is given twice", order[i] + c->base);
    seen[order[i]] = true;
  }
  return DM_OK;
}

/* A view of input 0 whose dim i is its dim order[i]. */
static dm_status permuted(dm_Call *c, const int *order) {
  const dm_Tensor *t = c->in[0];
  int64_t shape[DM_MAX_DIM], stride[DM_MAX_DIM];
  for (int i = 0; i < t->ndim; i++) {
    shape[i] = t->shape[order[i]];
    stride[i] = t->stride[order[i]];
  }
  return make(c, t->ndim, shape, stride, t->offset);
}

/* dx is gy with the inverse permutation. */
static void unpermute(dm_Grad *g, const int *order) {
  dm_Ints back = {dm_in_meta(g, 0)->ndim, {0}};
  for (int i = 0; i < back.n; i++) back.v[order[i]] = i;
  g->gx[0] = dm_x(g->x, DM_OP_permute, &back, 1, g->gy[0]);
}

/* Dim i of the result is dim dims[i] of x. */
dm_status permute_rule(dm_Call *c) {
  int order[DM_MAX_DIM];
  DM_TRY(permutation(c, c->in[0], &DM_ATTR(dm_PermuteAttr, c)->dims, order));
  return permuted(c, order);
}

/* dx permutes gy back. */
void permute_grad(dm_Grad *g) {
  const dm_Ints *dims = g->attr;
  int order[DM_MAX_DIM];
  for (int i = 0; i < dims->n; i++)
    order[i] = (int)(dims->v[i] < 0 ? dims->v[i] + dims->n : dims->v[i]);
  unpermute(g, order);
}

/* The permutation of movedim: dim from[i] goes to position to[i], the others keep
   their order. */
static void move_order(int ndim, int n, const int *from, const int *to, int *order) {
  bool placed[DM_MAX_DIM] = {false};
  int at[DM_MAX_DIM];
  memset(at, -1, sizeof at);
  for (int i = 0; i < n; i++) {
    at[to[i]] = from[i];
    placed[from[i]] = true;
  }
  for (int d = 0, next = 0; d < ndim; d++) {
    if (at[d] >= 0) {
      order[d] = at[d];
      continue;
    }
    while (placed[next]) next++;
    order[d] = next++;
  }
}

/* Checks dims and that none is named twice. */
static dm_status each_dim_once(const dm_Call *c, const dm_Ints *dims, int *out) {
  for (int i = 0; i < dims->n; i++) {
    DM_TRY(dm_check_dim(c, c->in[0], dims->v[i], &out[i]));
    for (int j = 0; j < i; j++)
      if (out[j] == out[i])
        return dm_fail(DM_EARG, "%s: dim %d is given twice", c->op->name, out[i] + c->base);
  }
  return DM_OK;
}

/* Dim source[i] becomes dim destination[i]; the others fill the remaining positions
   in their order. */
dm_status movedim_rule(dm_Call *c) {
  const dm_MovedimAttr *a = DM_ATTR(dm_MovedimAttr, c);
  int from[DM_MAX_DIM], to[DM_MAX_DIM], order[DM_MAX_DIM];
  if (a->source.n != a->destination.n)
    return dm_fail(DM_EARG, "movedim: %lld dims to move to %lld positions",
                   (long long)a->source.n, (long long)a->destination.n);
  DM_TRY(each_dim_once(c, &a->source, from));
  DM_TRY(each_dim_once(c, &a->destination, to));
  move_order(c->in[0]->ndim, (int)a->source.n, from, to, order);
  return permuted(c, order);
}

/* dx moves the dims of gy back: the permutation is computed again and inverted. */
void movedim_grad(dm_Grad *g) {
  const dm_MovedimAttr *a = g->attr;
  const int ndim = dm_in_meta(g, 0)->ndim;
  int from[DM_MAX_DIM], to[DM_MAX_DIM], order[DM_MAX_DIM];
  for (int i = 0; i < a->source.n; i++) {
    from[i] = (int)((a->source.v[i] + ndim) % ndim);
    to[i] = (int)((a->destination.v[i] + ndim) % ndim);
  }
  move_order(ndim, (int)a->source.n, from, to, order);
  unpermute(g, order);
}

/* Removes dims of size 1: all of them, or the named ones that have it. */
dm_status squeeze_rule(dm_Call *c) {
  const dm_Ints *dims = &DM_ATTR(dm_SqueezeAttr, c)->dim;
  const dm_Tensor *t = c->in[0];
  bool drop[DM_MAX_DIM];
  for (int d = 0; d < t->ndim; d++) drop[d] = dims->n < 0 && t->shape[d] == 1;
  for (int i = 0; i < dims->n; i++) {
    int d;
    DM_TRY(dm_check_dim(c, t, dims->v[i], &d));
    if (t->ndim > 0) drop[d] = t->shape[d] == 1;
  }
  int64_t shape[DM_MAX_DIM], stride[DM_MAX_DIM];
  int n = 0;
  for (int d = 0; d < t->ndim; d++) {
    if (drop[d]) continue;
    shape[n] = t->shape[d];
    stride[n++] = t->stride[d];
  }
  return make(c, n, shape, stride, t->offset);
}

/* Inserts a dim of size 1 at position `at`; its stride is that of a contiguous
   tensor. */
dm_status unsqueeze_rule(dm_Call *c) {
  const dm_Tensor *t = c->in[0];
  int64_t at = DM_ATTR(dm_UnsqueezeAttr, c)->dim, shape[DM_MAX_DIM], stride[DM_MAX_DIM];
  const int64_t n = t->ndim + 1;
  if (n > DM_MAX_DIM) return dm_fail(DM_EARG, "unsqueeze: more than %d dims", DM_MAX_DIM);
  if (at < -n || at >= n)
    return dm_fail(DM_EARG, "unsqueeze: dim %lld is out of range for shape %s",
                   (long long)(at >= 0 ? at + c->base : at), DM_SHAPE(t));
  if (at < 0) at += n;
  for (int d = 0, k = 0; d < n; d++) {
    if (d == at) {
      shape[d] = 1;
      stride[d] = k < t->ndim ? t->shape[k] * t->stride[k] : 1;
    } else {
      shape[d] = t->shape[k];
      stride[d] = t->stride[k++];
    }
  }
  return make(c, (int)n, shape, stride, t->offset);
}

/* Dims of size 1, and new leading dims, are repeated by stride 0; -1 keeps a size. */
dm_status expand_rule(dm_Call *c) {
  const dm_Ints *want = &DM_ATTR(dm_SizeAttr, c)->size;
  const dm_Tensor *t = c->in[0];
  int64_t shape[DM_MAX_DIM], stride[DM_MAX_DIM];
  const char *to = DM_DIMS((int)dm_max_i64(want->n, 0), want->v);
  if (want->n < t->ndim)
    return dm_fail(DM_EARG, "expand: shape %s to fewer dims %s", DM_SHAPE(t), to);
  for (int d = 0; d < want->n; d++) {
    const int k = d - (int)(want->n - t->ndim);
    const int64_t have = k < 0 ? 1 : t->shape[k];
    shape[d] = want->v[d] == -1 && k >= 0 ? have : want->v[d];
    if (shape[d] != have && have != 1)
      return dm_fail(DM_EARG,
                     "expand: shape %s to %s: dim %d is %lld, only a size of 1 expands",
                     DM_SHAPE(t), to, d + c->base, (long long)have);
    /* A size of 1 that stays 1 keeps its stride, so that a contiguous tensor stays
       contiguous. */
    stride[d] = k < 0 || have == 1 ? 0 : t->stride[k];
    if (k >= 0 && have == shape[d]) stride[d] = t->stride[k];
  }
  return make(c, (int)want->n, shape, stride, t->offset);
}

void expand_grad(dm_Grad *g) { g->gx[0] = g->gy[0]; } /* the tape sums over broadcast dims */

/* ---- regions ---- */

/* A view of `length` elements of dim d from `start` on, every step-th. */
static dm_status cut(dm_Call *c, int d, int64_t start, int64_t step, int64_t length) {
  const dm_Tensor *t = c->in[0];
  int64_t shape[DM_MAX_DIM], stride[DM_MAX_DIM];
  memcpy(shape, t->shape, sizeof shape);
  memcpy(stride, t->stride, sizeof stride);
  shape[d] = length;
  if (length > 1) stride[d] *= step; /* a single element needs no step, which could overflow */
  return make(c, t->ndim, shape, stride, t->offset + (length ? start * t->stride[d] : 0));
}

/* Checks index i of dim d; a negative one counts from the end. */
static dm_status position(const dm_Call *c, const dm_Tensor *t, int d, int64_t i,
                          int64_t *out) {
  const int64_t n = t->shape[d];
  if (i < -n || i >= n)
    return dm_fail(DM_EARG, "%s: index %lld is out of range for dim %d of shape %s",
                   c->op->name, (long long)(i >= 0 ? i + c->base : i), d + c->base,
                   DM_SHAPE(t));
  *out = i < 0 ? i + n : i;
  return DM_OK;
}

/* Fails for a 0-dim tensor. */
static dm_status need_dims(const dm_Call *c) {
  return c->in[0]->ndim ? DM_OK
                        : dm_fail(DM_EARG,
                                  "%s: a 0-dim tensor has nothing to index; hint: "
                                  "x:item()",
                                  c->op->name);
}

/* `length` elements of dim d from `start` on. */
dm_status narrow_rule(dm_Call *c) {
  const dm_NarrowAttr *a = DM_ATTR(dm_NarrowAttr, c);
  const dm_Tensor *t = c->in[0];
  int d;
  DM_TRY(need_dims(c));
  DM_TRY(dm_check_dim(c, t, a->dim, &d));
  const int64_t n = t->shape[d], start = a->start < 0 ? a->start + n : a->start;
  if (a->length < 0 || start < 0 || start > n || a->length > n - start)
    return dm_fail(DM_EARG,
                   "narrow: %lld elements from %lld on do not lie in dim %d of shape %s",
                   (long long)a->length, (long long)(a->start + (a->start >= 0 ? c->base : 0)),
                   d + c->base, DM_SHAPE(t));
  return cut(c, d, start, 1, a->length);
}

/* Index b of dim a; the dim is removed. */
dm_status select_rule(dm_Call *c) {
  const dm_SelectAttr *a = DM_ATTR(dm_SelectAttr, c);
  const dm_Tensor *t = c->in[0];
  int d;
  int64_t i = 0, shape[DM_MAX_DIM], stride[DM_MAX_DIM];
  DM_TRY(need_dims(c));
  DM_TRY(dm_check_dim(c, t, a->dim, &d));
  DM_TRY(position(c, t, d, a->index, &i));
  int n = 0;
  for (int k = 0; k < t->ndim; k++) {
    if (k == d) continue;
    shape[n] = t->shape[k];
    stride[n++] = t->stride[k];
  }
  return make(c, n, shape, stride, t->offset + i * t->stride[d]);
}

/* A slice from start to stop, both included, by a positive step. Ends outside are
   clamped, as in Lua's string.sub. */
dm_status slice_rule(dm_Call *c) {
  const dm_SliceAttr *a = DM_ATTR(dm_SliceAttr, c);
  const dm_Tensor *t = c->in[0];
  int d;
  DM_TRY(need_dims(c));
  DM_TRY(dm_check_dim(c, t, a->dim, &d));
  if (a->step < 1)
    return dm_fail(DM_EARG, "slice: step %lld, wanted 1 or more; hint: x:flip(dim)",
                   (long long)a->step);
  const int64_t n = t->shape[d];
  const int64_t first = dm_max_i64(a->start < 0 ? a->start + n : a->start, 0);
  const int64_t last = dm_min_i64(a->stop < 0 ? a->stop + n : a->stop, n - 1);
  return cut(c, d, first, a->step, last < first ? 0 : (last - first) / a->step + 1);
}

/* The diagonal of dims d1 and d2 as the last dim: its stride is the sum of theirs. */
dm_status diagonal_rule(dm_Call *c) {
  const dm_DiagonalAttr *a = c->attr;
  const dm_Tensor *t = c->in[0];
  const int64_t k = a->offset;
  int d1, d2, n_dim = 0;
  int64_t shape[DM_MAX_DIM], stride[DM_MAX_DIM];
  if (t->ndim < 2)
    return dm_fail(DM_EARG, "diagonal: x has shape %s, wanted two dims or more", DM_SHAPE(t));
  DM_TRY(dm_check_dim(c, t, a->dim1, &d1));
  DM_TRY(dm_check_dim(c, t, a->dim2, &d2));
  if (d1 == d2) return dm_fail(DM_EARG, "diagonal: dim %d is given twice", d1 + c->base);
  for (int d = 0; d < t->ndim; d++) {
    if (d == d1 || d == d2) continue;
    shape[n_dim] = t->shape[d];
    stride[n_dim++] = t->stride[d];
  }

  /* A positive offset k starts k columns to the right, a negative one -k rows down;
     the sum is clamped before it is negated, because -INT64_MIN does not exist. */
  const int64_t row = k < 0 ? dm_min_i64(-(k + 1), t->shape[d1]) + 1 : 0, col = k > 0 ? k : 0;
  const int64_t n = dm_max_i64(dm_min_i64(t->shape[d1] - row, t->shape[d2] - col), 0);
  shape[n_dim] = n;
  stride[n_dim++] = t->stride[d1] + t->stride[d2];
  const int64_t skipped = n ? row * t->stride[d1] + col * t->stride[d2] : 0;
  return make(c, n_dim, shape, stride, t->offset + skipped);
}

/* The gradient of a region. Where the tape already has a gradient sum for x, gy is
   added to the region of that sum, without a tensor of zeros for each region. */
void as_region_grad(dm_Grad *g) {
  /* the region is the same view of the gradient so far, or of a new tensor of zeros */
  const dm_Meta *m = dm_in_meta(g, 0);
  dm_X *x = g->x;
  dm_Tensor *whole = g->sum ? g->sum : x_zeros(x, m->ndim, m->shape, g->gy[0]);
  if (x->st != DM_OK) return;
  dm_Tensor *region = dm_x(x, (int)dm_op_id(g->op), g->attr, 1, whole);
  dm_Tensor *in[2] = {region, g->gy[0]};
  if (x->st == DM_OK) x->st = dm_call_inplace(g->sum ? DM_OP_add : DM_OP_copy, 2, in, NULL);
  if (!g->sum) g->gx[0] = whole;
}

/* ---- as_strided ---- */

enum { OWN = -1 };

/* The offset at which the window begins in a storage of so many elements, in which x begins at
   `own`: 0 where it is empty. Any sizes and non-negative strides will do that stay inside the
   storage. */
static dm_status check_window(const dm_Call *c, const char *name, int64_t capacity, int64_t own,
                              int64_t *first) {
  const dm_AsStridedAttr *a = DM_ATTR(dm_AsStridedAttr, c);
  if (a->size.n != a->stride.n || a->size.n > DM_MAX_DIM)
    return dm_fail(DM_EARG, "%s: %lld sizes and %lld strides", name, (long long)a->size.n,
                   (long long)a->stride.n);
  *first = own + a->storage_offset;
  int64_t last = *first;
  /* `last` is the largest offset that is reached; every factor is bounded by the
     storage before it is multiplied, so that nothing overflows. */
  bool empty = false;
  for (int d = 0; d < a->size.n; d++) empty |= a->size.v[d] == 0;
  bool fits = last >= 0 && (empty || last < capacity);
  for (int d = 0; fits && d < a->size.n; d++) {
    const int64_t size = a->size.v[d], stride = a->stride.v[d];
    const bool steps = size > 1 && !empty; /* where nothing steps, any stride will do */
    fits = size >= 0 && size <= INT64_MAX / 2 / dm_max_i64(capacity, 1) && stride >= 0 &&
           (!steps || stride <= capacity);
    if (fits && steps) last += (size - 1) * stride;
    fits &= empty || last < capacity;
  }
  if (!fits || (!empty && last >= capacity))
    return dm_fail(DM_EARG, "%s: the window leaves the storage of %lld elements", name,
                   (long long)capacity);
  if (empty) *first = 0;
  return DM_OK;
}

/* The gradient of a window is laid out as a contiguous x is. So where there is one, the window
   is one of x's base, in which any elements may be named, and of a permuted tensor as it lies
   in memory. */
dm_status as_strided_compose(dm_Call *c, dm_X *x) {
  dm_AsStridedAttr a = *DM_ATTR(dm_AsStridedAttr, c);
  dm_Tensor *t = c->in[0], *const base = t->base;
  const bool own = a.storage_offset == OWN;
  const int64_t first = own ? t->offset : a.storage_offset;
  if (dm_tensor_requires_grad(t) && dm_thread_state()->grad) {
    const bool plain = own && dm_tensor_is_contiguous(t);
    if (!plain && base && dm_tensor_requires_grad(base) && dm_tensor_is_dense(base)) t = base;
    if (!dm_tensor_is_dense(t))
      return dm_fail(
          DM_EARG,
          "as_strided: x of shape %s has gaps between its elements, and would have no "
          "gradient; hint: x:contiguous()",
          DM_SHAPE(t));
    if (!dm_tensor_is_contiguous(t)) {
      dm_Ints order = {t->ndim, {0}};
      dm_tensor_memory_order(t, order.v);
      t = dm_x(x, DM_OP_permute, &order, 1, t);
      if (!t) return x->st;
    }
  }
  a.storage_offset = first < 0 ? INT64_MIN : first - t->offset;
  c->out[0] = dm_x(x, DM_OP_strided_window, &a, 1, t);
  return x->st;
}

dm_status strided_window_rule(dm_Call *c) {
  const dm_AsStridedAttr *a = DM_ATTR(dm_AsStridedAttr, c);
  const dm_Tensor *t = c->in[0];
  int64_t first;
  DM_TRY(check_window(c, "as_strided", t->storage->n_bytes / dm_dtype_size((dm_DType)t->dtype),
                      t->offset, &first));
  return make(c, (int)a->size.n, a->size.v, a->stride.v, first);
}

/* True when two elements of the view may be the same element of the storage. They
   cannot when each dim's stride exceeds what all dims with smaller strides reach
   together. */
static bool window_overlaps(const dm_AsStridedAttr *a) {
  int64_t reach = 0; /* reach of the dims taken so far, in the order of their strides */
  bool taken[DM_MAX_DIM] = {false};
  for (int k = 0; k < a->size.n; k++) {
    int d = -1;
    for (int j = 0; j < a->size.n; j++)
      if (!taken[j] && (d < 0 || a->stride.v[j] < a->stride.v[d])) d = j;
    taken[d] = true;
    if (a->size.v[d] <= 1) continue;
    if (a->stride.v[d] <= reach) return true;
    reach += (a->size.v[d] - 1) * a->stride.v[d];
  }
  return false;
}

/* The positions of the view's elements in the flat storage, counted from base, on a
   device. */
static dm_Tensor *window_positions(dm_X *x, const dm_AsStridedAttr *a, dm_Device dev,
                                   int base) {
  const int64_t n = dm_numel((int)a->size.n, a->size.v);
  dm_Tensor *t = NULL;
  if (x->st == DM_OK) x->st = dm_tensor_new(DM_I64, 1, &n, (dm_Device){DM_CPU, 0}, &t);
  if (x->st != DM_OK) return NULL;
  int64_t *p = dm_tensor_data(t), at[DM_MAX_DIM] = {0};
  for (int64_t i = 0; i < n; i++) {
    p[i] = a->storage_offset + base;
    for (int d = 0; d < a->size.n; d++) p[i] += at[d] * a->stride.v[d];
    for (int d = (int)a->size.n - 1; d >= 0 && ++at[d] == a->size.v[d]; d--) at[d] = 0;
  }
  t = dm_x_own(x, t);
  const int64_t move[2] = {dm_device_code(dev), 0};
  return t && dev.type != DM_CPU ? dm_x(x, DM_OP_to_device, move, 1, t) : t;
}

/* The gradient of a window: gy at its positions in a contiguous tensor of x's shape. An element
   that the window shows twice gets the sum of its gradients, by index_add. */
void strided_window_grad(dm_Grad *g) {
  const dm_AsStridedAttr *a = g->attr;
  const dm_Meta *m = dm_in_meta(g, 0);
  dm_X *x = g->x;
  if (!window_overlaps(a)) {
    as_region_grad(g);
    return;
  }
  const int64_t whole = dm_numel(m->ndim, m->shape), all = -1;
  const dm_IndexAddAttr attr = {0, 1};
  dm_Tensor *flat = x_repeated(x, 0, 1, &whole, g->gy[0]);
  dm_Tensor *gy = x_reshape(x, g->gy[0], 1, &all);
  dm_Tensor *at = window_positions(x, a, g->gy[0]->device, dm_thread_state()->base);
  flat = dm_x(x, DM_OP_index_add, &attr, 3, flat, at, gy);
  g->gx[0] = x_reshape(x, flat, m->ndim, m->shape);
}

/* x, source -> a tensor of x's shape and dtype, dense, in whose elements the region lies. */
dm_status as_strided_scatter_rule(dm_Call *c) {
  int64_t first;
  DM_TRY(check_window(c, c->op->name, c->in[0]->numel, 0, &first));
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  return DM_OK;
}

/* Writes source into the strided region of `whole`, which the rule has checked. */
static dm_status write_window(dm_Tensor *whole, const dm_AsStridedAttr *a, dm_Tensor *source) {
  dm_Tensor *window;
  DM_TRY(dm_tensor_view(whole, (int)a->size.n, a->size.v, a->stride.v,
                        whole->offset + a->storage_offset, &window));
  dm_Tensor *in[2] = {window, source};
  const dm_status st = dm_call_inplace(DM_OP_copy, 2, in, NULL);
  dm_tensor_unref(&window);
  return st;
}

/* x with source written into a strided region; it is made of calls, for every
   device. */
dm_status as_strided_scatter_any(dm_Call *c) {
  const dm_AsStridedAttr *a = DM_ATTR(dm_AsStridedAttr, c);
  dm_Tensor *in[2] = {c->out[0], c->in[0]};
  DM_TRY(dm_call_inplace(DM_OP_copy, 2, in, NULL));
  return write_window(c->out[0], a, c->in[1]);
}

/* dsource is gy's region; dx is gy with that region set to 0. */
void as_strided_scatter_grad(dm_Grad *g) {
  dm_X *x = g->x;
  dm_Tensor *gy = x_unary(x, DM_OP_contiguous, g->gy[0]);
  if (x->st != DM_OK) return;
  if (g->need[1]) g->gx[1] = dm_x(x, DM_OP_strided_window, g->attr, 1, gy);
  if (g->need[0]) {
    dm_Tensor *none = x_cast(x, dm_x_number(x, 0), (dm_DType)gy->dtype);
    g->gx[0] = dm_x(x, DM_OP_as_strided_scatter, g->attr, 2, gy, none);
  }
}
