/* index_put with an index for each of several dims, x[i, j, ...] = values. The
   indices broadcast with each other. The indexed dims are moved to the front and
   flattened to one dim; positions p = (i_0 n_1 + i_1) n_2 + i_2 ... in it reduce the
   call to an index_put along a single dim, which has the order of writes and the
   gradient. As in NumPy and PyTorch, the dims of the indices come first in `values`
   when the indexed dims are separated, else at the position of the first indexed
   dim. A bool mask stands for the positions of its true elements. */
#include <string.h>

#include "base/error.h"
#include "op/index/index.h"
#include "op/sort/order.h"
#include "op/strided.h"

/* The indexed dims in ascending order, and x's dims in the order indexed, then
   others. */
typedef struct Chosen {
  int n;
  dm_Tensor *index[DM_MAX_DIM]; /* positions along dim[i] */
  int dim[DM_MAX_DIM];
  int order[DM_MAX_DIM];
  bool adjacent; /* no other dim is between the indexed ones */
} Chosen;

/* Adds an index for dim; dims must ascend and exist. */
static dm_status add_index(const dm_Call *c, Chosen *ch, dm_Tensor *index, int64_t dim) {
  if (ch->n == DM_MAX_DIM || dim < 0 || dim >= c->in[0]->ndim ||
      (ch->n && dim <= ch->dim[ch->n - 1]))
    return dm_fail(DM_EARG, "index_put: too many indices for shape %s", DM_SHAPE(c->in[0]));
  ch->index[ch->n] = index;
  ch->dim[ch->n++] = (int)dim;
  return DM_OK;
}

/* A mask of k dims becomes k indices, the columns of its nonzero positions. */
static dm_status add_mask(const dm_Call *c, dm_X *x, Chosen *ch, dm_Tensor *mask, int64_t dim) {
  const dm_Tensor *t = c->in[0];
  bool fits = mask->ndim >= 1 && dim + mask->ndim <= t->ndim;
  for (int d = 0; fits && d < mask->ndim; d++) fits = mask->shape[d] == t->shape[dim + d];
  if (!fits)
    return dm_fail(DM_EARG, "index_put: a mask of shape %s for dim %lld of shape %s",
                   DM_SHAPE(mask), (long long)dim + c->base, DM_SHAPE(t));
  dm_Tensor *positions = x_unary(x, DM_OP_nonzero, mask);
  for (int d = 0; d < mask->ndim; d++)
    DM_TRY(add_index(c, ch, dm_x(x, DM_OP_select, &(int64_t[2]){1, d}, 1, positions), dim + d));
  return x->st;
}

/* Collects the indices of the call and the order of dims. */
static dm_status choose(const dm_Call *c, dm_X *x, Chosen *ch) {
  const dm_IndexPutManyAttr *a = DM_ATTR(dm_IndexPutManyAttr, c);
  if (c->n_in < 3 || a->dims.n != c->n_in - 2)
    return dm_fail(DM_EARG, "index_put: wanted x, values and one index or more");
  for (int i = 2; i < c->n_in; i++) {
    dm_Tensor *index = c->in[i];
    const int64_t dim = a->dims.v[i - 2];
    if (index->dtype == DM_BOOL) {
      DM_TRY(add_mask(c, x, ch, index, dim));
    } else {
      DM_TRY(dm_check_index(c, index));
      DM_TRY(add_index(c, ch, index, dim));
    }
  }
  int k = 0, at = 0;
  for (int i = 0; i < ch->n; i++) ch->order[k++] = ch->dim[i];
  for (int d = 0; d < c->in[0]->ndim; d++) {
    if (at < ch->n && ch->dim[at] == d) at++;
    else ch->order[k++] = d;
  }
  ch->adjacent = ch->dim[ch->n - 1] - ch->dim[0] == ch->n - 1;
  return DM_OK;
}

/* The positions in the flattened dim, from 0. Each index is looked up in the vector
   0, 1, ..., n - 1, which checks it and resolves negative positions on its device. */
static dm_Tensor *flat_positions(dm_X *x, const dm_Tensor *t, const Chosen *ch) {
  dm_Tensor *sum = NULL;
  for (int i = 0; i < ch->n && x->st == DM_OK; i++) {
    const int64_t size = t->shape[ch->dim[i]];
    int64_t *to;
    dm_Tensor *from_zero = dm_x_positions(x, size, &to);
    for (int64_t k = 0; from_zero && k < size; k++) to[k] = k;
    dm_Tensor *at = dm_x(x, DM_OP_index_get, &(int64_t){0}, 2,
                         dm_x_there(x, from_zero, t->device), ch->index[i]);
    sum = sum ? x_add(x, x_mul(x, sum, x_whole(x, size)), at) : at;
  }
  return sum;
}

static dm_Tensor *x_permute(dm_X *x, dm_Tensor *t, int n, const int *order) {
  dm_Ints dims = {n, {0}};
  for (int d = 0; d < n; d++) dims.v[d] = order[d];
  return dm_x(x, DM_OP_permute, &dims, 1, t);
}

/* Broadcasts *values to the region that is written, and permutes it so that the
   positions' dims come first. In the region they come first, or where the indexed
   dims are if these are adjacent. */
static dm_status spread(const dm_Call *c, dm_X *x, const Chosen *ch, const dm_Tensor *positions,
                        dm_Tensor **values) {
  const dm_Tensor *t = c->in[0];
  const int rest = t->ndim - ch->n, n = positions->ndim + rest;
  const int before = ch->adjacent ? ch->dim[0] : 0;
  int64_t shape[DM_MAX_DIM];
  int order[DM_MAX_DIM], both, k = 0;
  if (n > DM_MAX_DIM)
    return dm_fail(DM_EARG, "index_put: what is written would have %d dims", n);
  for (int d = 0; d < before; d++) shape[k++] = t->shape[ch->order[ch->n + d]];
  for (int d = 0; d < positions->ndim; d++) shape[k++] = positions->shape[d];
  for (int d = before; d < rest; d++) shape[k++] = t->shape[ch->order[ch->n + d]];
  const dm_Tensor region = dm_view_of(t, n, shape, shape, 0);
  int64_t wide[DM_MAX_DIM];
  DM_TRY(dm_broadcast("index_put", &region, *values, &both, wide));
  if (both != n || memcmp(shape, wide, sizeof *shape * (size_t)n) != 0)
    return dm_fail(DM_EARG, "index_put: values of shape %s do not broadcast to %s",
                   DM_SHAPE(*values), DM_SHAPE(&region));
  k = 0;
  for (int d = 0; d < positions->ndim; d++) order[k++] = before + d;
  for (int d = 0; d < n; d++)
    if (d < before || d >= before + positions->ndim) order[k++] = d;
  *values = x_permute(x, x_expand(x, dm_x_there(x, *values, t->device), n, shape), n, order);
  return x->st;
}

/* Permutes and flattens the indexed dims, calls index_put, and reverses both. */
dm_status index_put_many_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *t = c->in[0], *values = c->n_in > 1 ? c->in[1] : NULL;
  Chosen ch = {.n = 0};
  DM_TRY(choose(c, x, &ch));
  DM_TRY(dm_check_source(c, t, values));
  dm_Tensor *positions = flat_positions(x, t, &ch);
  DM_TRY(x->st);
  DM_TRY(spread(c, x, &ch, positions, &values));
  int64_t shape[DM_MAX_DIM], flat[DM_MAX_DIM] = {1};
  int back[DM_MAX_DIM];
  for (int d = 0; d < t->ndim; d++) {
    shape[d] = t->shape[ch.order[d]];
    back[ch.order[d]] = d;
    if (d < ch.n) flat[0] *= shape[d];
    else flat[d - ch.n + 1] = shape[d];
  }
  dm_Tensor *one = x_reshape(x, x_permute(x, t, t->ndim, ch.order), t->ndim - ch.n + 1, flat);
  const dm_IndexPutAttr put = {0, DM_ATTR(dm_IndexPutManyAttr, c)->accumulate};
  dm_Tensor *y = dm_x(x, DM_OP_index_put, &put, 3, one, x_moved(x, positions, c->base), values);
  y = x_permute(x, x_reshape(x, y, t->ndim, shape), t->ndim, back);
  c->out[0] = x_unary(x, DM_OP_contiguous, y);
  return x->st;
}
