/* An index for each of several dims: x[i, j, ...] and index_put, x[i, j, ...] = values.

   The indices broadcast with each other. The dims from the first indexed one to the last are
   flattened to one, a view where x is dense, and the positions p = (i_0 n_1 + i_1) n_2 + ...
   in it reduce the call to an index_get or index_put along that dim, which has the order of
   writes and the gradient. A dim between two indexed ones takes part with all of its
   positions, in a dim of its own behind those of the indices. As in NumPy and PyTorch, the
   dims of the indices come first in x[i, :, j], and stand at the indexed dims when these are
   adjacent. A bool mask stands for the positions of its true elements. */
#include <string.h>

#include "base/error.h"
#include "op/index/index.h"
#include "op/sort/order.h"
#include "op/strided.h"

/* The indices of a call and the geometry that they give it. */
typedef struct Chosen {
  const char *what; /* the call's name in messages */
  int n;
  dm_Tensor *index[DM_MAX_DIM]; /* positions along dim[i] */
  int dim[DM_MAX_DIM];          /* ascending */
  int first, between, behind;   /* dims before, between and behind the indexed ones */
  int ndim;                     /* of the broadcast indices */
  int64_t shape[DM_MAX_DIM];
} Chosen;

/* Adds an index for dim; dims must ascend and exist. */
static dm_status add_index(const dm_Call *c, Chosen *ch, dm_Tensor *index, int64_t dim) {
  if (ch->n == DM_MAX_DIM || dim < 0 || dim >= c->in[0]->ndim ||
      (ch->n && dim <= ch->dim[ch->n - 1]))
    return dm_fail(DM_EARG, "%s: too many indices for shape %s", ch->what, DM_SHAPE(c->in[0]));
  ch->index[ch->n] = index;
  ch->dim[ch->n++] = (int)dim;
  return DM_OK;
}

/* A mask of k dims becomes k indices, the columns of its nonzero positions. */
static dm_status add_mask(const dm_Call *c, dm_X *x, Chosen *ch, dm_Tensor *mask, int64_t dim) {
  DM_TRY(dm_check_mask(ch->what, c->base, c->in[0], mask, dim));
  if (mask->ndim == 0)
    return dm_fail(DM_EARG, "%s: a 0-dim mask given, wanted 1 dim or more", ch->what);
  dm_Tensor *positions = x_unary(x, DM_OP_nonzero, mask);
  for (int d = 0; d < mask->ndim; d++)
    DM_TRY(add_index(c, ch, dm_x(x, DM_OP_select, &(int64_t[2]){1, d}, 1, positions), dim + d));
  return x->st;
}

/* Broadcasts the shapes of the indices. */
static dm_status broadcast_indices(Chosen *ch) {
  ch->ndim = 0;
  for (int i = 0; i < ch->n; i++) {
    const dm_Tensor so_far = dm_view_of(ch->index[i], ch->ndim, ch->shape, ch->shape, 0);
    DM_TRY(dm_broadcast(ch->what, &so_far, ch->index[i], &ch->ndim, ch->shape));
  }
  return DM_OK;
}

/* Collects the indices in[from], in[from + 1] ... for those dims. */
static dm_status choose(const dm_Call *c, dm_X *x, const dm_Ints *dims, int from, Chosen *ch) {
  const dm_Tensor *t = c->in[0];
  if (c->n_in <= from || dims->n != c->n_in - from)
    return dm_fail(DM_EARG, "%s: wanted a dim for each index", ch->what);
  for (int i = from; i < c->n_in; i++) {
    dm_Tensor *index = c->in[i];
    const int64_t dim = dims->v[i - from];
    if (index->dtype == DM_BOOL) {
      DM_TRY(add_mask(c, x, ch, index, dim));
    } else {
      DM_TRY(dm_check_index(c, index));
      DM_TRY(add_index(c, ch, index, dim));
    }
  }
  DM_TRY(broadcast_indices(ch));
  ch->first = ch->dim[0];
  ch->between = ch->dim[ch->n - 1] - ch->first + 1 - ch->n;
  ch->behind = t->ndim - ch->first - ch->between - ch->n;
  const int n = ch->ndim + t->ndim - ch->n;
  if (n <= DM_MAX_DIM) return DM_OK;
  return dm_fail(DM_EARG, "%s: indices of shape %s in shape %s give %d dims, the most is %d",
                 ch->what, DM_DIMS(ch->ndim, ch->shape), DM_SHAPE(t), n, DM_MAX_DIM);
}

/* The positions along dim `d`, counted from 0, with `ones` dims of size 1 behind them: those of
   the index, or all of a dim that has none. */
static dm_Tensor *positions_along(dm_X *x, const dm_Tensor *t, dm_Tensor *index, int d,
                                  int ones) {
  dm_Tensor *at;
  if (index) {
    at = dm_x(x, DM_OP_index_check, &t->shape[d], 1, index);
  } else {
    int64_t *to;
    at = dm_x_positions(x, t->shape[d], &to);
    for (int64_t k = 0; at && k < t->shape[d]; k++) to[k] = k;
    at = dm_x_there(x, at, t->device);
  }
  if (!at || ones == 0) return at;
  int64_t shape[DM_MAX_DIM];
  for (int k = 0; k < at->ndim + ones; k++) shape[k] = k < at->ndim ? at->shape[k] : 1;
  return x_reshape(x, at, at->ndim + ones, shape);
}

/* The positions in the flattened dim, counted from the call's base: the indices' dims, then
   those between. */
static dm_Tensor *flat_positions(const dm_Call *c, dm_X *x, const Chosen *ch) {
  const dm_Tensor *t = c->in[0];
  dm_Tensor *sum = NULL;
  int i = 0, ones = ch->between;
  for (int d = ch->first; x->st == DM_OK && i < ch->n; d++) {
    dm_Tensor *index = ch->dim[i] == d ? ch->index[i++] : NULL;
    if (!index) ones--;
    dm_Tensor *at = positions_along(x, t, index, d, index ? ch->between : ones);
    sum = sum ? x_add(x, x_mul(x, sum, x_whole(x, t->shape[d])), at) : at;
  }
  return x_moved(x, sum, c->base);
}

/* t with the dims from first to last indexed as one. */
static dm_Tensor *flatten_indexed(dm_X *x, dm_Tensor *t, const Chosen *ch) {
  const int n = ch->n + ch->between;
  int64_t shape[DM_MAX_DIM];
  for (int d = 0; d < t->ndim - n + 1; d++) shape[d] = t->shape[d <= ch->first ? d : d + n - 1];
  for (int d = 1; d < n; d++) shape[ch->first] *= t->shape[ch->first + d];
  return x_reshape(x, t, t->ndim - n + 1, shape);
}

/* Moves n dims of t at `from` to the position `to`. */
static dm_Tensor *move_dims(dm_X *x, dm_Tensor *t, int n, int from, int to) {
  if (!t || from == to || n == 0) return t;
  dm_Ints order = {t->ndim, {0}};
  for (int d = 0, rest = 0; d < t->ndim; d++) {
    if (d >= to && d < to + n) {
      order.v[d] = from + d - to;
    } else {
      if (rest == from) rest += n;
      order.v[d] = rest++;
    }
  }
  return dm_x(x, DM_OP_permute, &order, 1, t);
}

/* Where the indices' dims stand in x[i, j]. */
static int position_of(const Chosen *ch) { return ch->between ? 0 : ch->first; }

dm_status index_many_compose(dm_Call *c, dm_X *x) {
  Chosen ch = {.what = "index"};
  DM_TRY(choose(c, x, &DM_ATTR(dm_IndexManyAttr, c)->dims, 1, &ch));
  dm_Tensor *at = flat_positions(c, x, &ch);
  const int64_t dim = ch.first;
  dm_Tensor *y = dm_x(x, DM_OP_index_get, &dim, 2, flatten_indexed(x, c->in[0], &ch), at);
  c->out[0] = move_dims(x, y, ch.ndim, ch.first, position_of(&ch));
  return x->st;
}

/* Broadcasts *values to the shape of x[i, j] and moves the indices' dims to the first indexed
   one. */
static dm_status spread(const dm_Call *c, dm_X *x, const Chosen *ch, dm_Tensor **values) {
  const dm_Tensor *t = c->in[0];
  const int n = ch->ndim + t->ndim - ch->n, to = position_of(ch);
  int64_t shape[DM_MAX_DIM], wide[DM_MAX_DIM];
  int both, k = 0;
  for (int d = 0, i = 0; d <= t->ndim; d++) {
    if (k == to)
      for (int p = 0; p < ch->ndim; p++) shape[k++] = ch->shape[p];
    if (i < ch->n && ch->dim[i] == d) i++;
    else if (d < t->ndim) shape[k++] = t->shape[d];
  }
  const dm_Tensor region = dm_view_of(t, n, shape, shape, 0);
  if (dm_broadcast(ch->what, &region, *values, &both, wide) != DM_OK || both != n ||
      memcmp(shape, wide, sizeof *shape * (size_t)n) != 0)
    return dm_fail(DM_EARG, "%s: values of shape %s do not broadcast to %s", ch->what,
                   DM_SHAPE(*values), DM_SHAPE(&region));
  dm_Tensor *v = x_expand(x, dm_x_there(x, *values, t->device), n, shape);
  *values = move_dims(x, v, ch->ndim, to, ch->first);
  return x->st;
}

dm_status index_put_many_compose(dm_Call *c, dm_X *x) {
  const dm_IndexPutManyAttr *a = DM_ATTR(dm_IndexPutManyAttr, c);
  dm_Tensor *t = c->in[0], *values = c->n_in > 1 ? c->in[1] : NULL;
  Chosen ch = {.what = "index_put"};
  dm_Call named = *c;
  named.op = &dm_ops[DM_OP_index_put]; /* the name that messages give */
  DM_TRY(choose(&named, x, &a->dims, 2, &ch));
  DM_TRY(dm_check_source(&named, t, values));
  if (values->flags & DM_T_NUMBER) values = x_cast(x, values, (dm_DType)t->dtype);
  if (!values) return x->st;
  DM_TRY(spread(c, x, &ch, &values));
  dm_Tensor *at = flat_positions(c, x, &ch);
  const dm_IndexPutAttr put = {ch.first, a->accumulate};
  dm_Tensor *y = dm_x(x, DM_OP_index_put, &put, 3, flatten_indexed(x, t, &ch), at, values);
  c->out[0] = x_reshape(x, y, t->ndim, t->shape);
  return x->st;
}
