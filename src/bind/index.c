/* x[i], x[{...}], x[mask], x[ids], read and assigned. A position counts from 1, a negative
   one from the end.

   An integer or a table becomes a chain of views (select, slice), one op for each item; only
   a tensor of ids copies (index_get). Reading returns the view, assigning copies the value
   into it, so gradients pass through both. A mask selects rows with masked_select and assigns
   with masked_fill or masked_put. */
#include <string.h>

#include "base/error.h"
#include "bind/bind.h"
#include "op/pointwise/pointwise.h"

/* The integer at i as a position from 0; a negative one stays. Raises for 0. */
static int64_t position(lua_State *L, int i) {
  const lua_Integer v = lua_tointeger(L, i);
  if (v == 0) dm_raise_text(L, "index 0: positions count from 1 (or from the end: -1)");
  return v > 0 ? v - 1 : v;
}

/* The index tensor at i, copied to t's device when it is on the CPU: the copy then replaces
   it on the stack. NULL when there is none. */
static dm_Tensor *index_on_device_of(lua_State *L, State *S, int i, const dm_Tensor *t) {
  dm_Tensor *index = dm_to_tensor(L, i);
  if (!index || index->device.type != DM_CPU || t->device.type == DM_CPU) return index;
  const int64_t to[2] = {dm_device_code(t->device), 0};
  dm_push_call(L, S, DM_OP_to_device, 1, &index, to);
  lua_replace(L, i);
  return dm_to_tensor(L, i);
}

/* Replaces the handle on top by the result of the op on its tensor. */
static void narrow_top(lua_State *L, State *S, int op, const void *attr) {
  dm_Tensor *t = dm_to_tensor(L, -1);
  dm_push_call(L, S, op, 1, &t, attr);
  lua_replace(L, -2);
}

/* Narrows dim `dim` of the handle on top by the range table at `at`: {} all, {i} one, {i, j}
   from i to j, {i, j, step}. The dim stays, also at size 1. Raises outside the dim. */
static void take_range(lua_State *L, State *S, int at, int64_t dim) {
  const lua_Unsigned n = lua_rawlen(L, at);
  if (n == 0) return;
  if (n > 3) dm_raise_text(L, "index: a range is {first, last} or {first, last, step}");
  int64_t attr[4] = {dim, 0, -1, 1};
  for (lua_Unsigned k = 1; k <= n; k++) {
    lua_rawgeti(L, at, (lua_Integer)k);
    if (!lua_isinteger(L, -1))
      dm_raise_text(L, "index: a range holds integers, got %s", luaL_typename(L, -1));
    attr[k] = k < 3 ? position(L, -1) : lua_tointeger(L, -1);
    lua_pop(L, 1);
  }
  if (n == 1) attr[2] = attr[1];
  const dm_Tensor *t = dm_to_tensor(L, -1);
  const int64_t size = dim < t->ndim ? t->shape[dim] : 0;
  for (int k = 1; k < 3; k++)
    if (attr[k] >= size || attr[k] < -size)
      dm_raise_text(L, "index %d is out of range for dim %d of shape %s",
                    (int)(attr[k] >= 0 ? attr[k] + 1 : attr[k]), (int)dim + 1, DM_SHAPE(t));
  narrow_top(L, S, DM_OP_slice, attr);
}

/* Pushes the view that the table at `at` asks for: item k indexes the next dim; an integer
   removes the dim, a range keeps it, a tensor of ids puts its own dims there. Raises on a
   mask among them and on more items than dims. */
static void push_view(lua_State *L, State *S, int at) {
  lua_pushvalue(L, 1);
  const lua_Integer n = (lua_Integer)lua_rawlen(L, at);
  int64_t dim = 0;
  for (lua_Integer k = 1; k <= n; k++) {
    const int type = lua_rawgeti(L, at, k);
    lua_insert(L, -2); /* item below, tensor on top */
    const int item = lua_gettop(L) - 1;
    const dm_Tensor *t = dm_to_tensor(L, -1);
    if (dim >= t->ndim && type != LUA_TNIL)
      dm_raise_text(L, "index: %d indices for a tensor of shape %s", (int)n,
                    DM_SHAPE(dm_to_tensor(L, 1)));
    if (lua_isinteger(L, item)) {
      const int64_t attr[2] = {dim, position(L, item)};
      narrow_top(L, S, DM_OP_select, attr);
    } else if (type == LUA_TTABLE) {
      take_range(L, S, item, dim++);
    } else if (dm_to_tensor(L, item)) {
      dm_Tensor *in[2] = {dm_to_tensor(L, -1), NULL};
      in[1] = index_on_device_of(L, S, item, in[0]);
      const int64_t attr = dim;
      const int ids = in[1]->ndim;
      if (in[1]->dtype == DM_BOOL) dm_raise_text(L, "index: a mask stands alone: x[mask]");
      dm_push_call(L, S, DM_OP_index_get, 2, in, &attr);
      lua_replace(L, -2);
      dim += ids;
    } else {
      dm_raise_text(L, "index: integer, range or tensor expected, got %s",
                    luaL_typename(L, item));
    }
    lua_remove(L, -2);
  }
}

/* Returns a mask of x's leading dims with dims of size 1 behind them, so that it broadcasts
   to x. */
static dm_Tensor *widen_mask(dm_X *x, const dm_Tensor *t, dm_Tensor *mask) {
  if (mask->ndim >= t->ndim) return mask;
  dm_Ints shape = {t->ndim, {0}};
  for (int d = 0; d < t->ndim; d++) shape.v[d] = d < mask->ndim ? mask->shape[d] : 1;
  return dm_x(x, DM_OP_reshape, &shape, 1, mask);
}

/* *out = x[mask]: the selected rows; elements when the mask has x's rank. The op picks
   elements, and a reshape makes rows of them. */
static dm_status select_masked(dm_Tensor *t, dm_Tensor *mask, dm_Tensor **out) {
  if (t->ndim - mask->ndim + 1 > DM_MAX_DIM)
    return dm_fail(DM_EARG, "index: a 0-dim mask cannot take another dim in shape %s",
                   DM_SHAPE(t));
  dm_X x = DM_X_INIT;
  dm_Tensor *picked = dm_x(&x, DM_OP_masked_select, NULL, 2, t, widen_mask(&x, t, mask));
  if (mask->ndim < t->ndim) {
    dm_Ints shape = {t->ndim - mask->ndim + 1, {0}};
    int64_t row = 1;
    for (int d = mask->ndim; d < t->ndim; d++) row *= shape.v[d - mask->ndim + 1] = t->shape[d];
    if (picked) shape.v[0] = row ? picked->numel / row : 0;
    picked = dm_x(&x, DM_OP_reshape, &shape, 1, picked);
  }
  if (x.st == DM_OK) *out = dm_tensor_ref(picked);
  dm_x_free(&x);
  return x.st;
}

/* Returns value broadcast to x[mask], whose shape is there's, without leading dims of size 1
   that are too many. Any other shape is an error, as in NumPy. */
static dm_Tensor *fit_value(dm_X *x, dm_Tensor *value, const dm_Tensor *there) {
  int ndim, drop = 0;
  int64_t shape[DM_MAX_DIM];
  while (value->ndim - drop > there->ndim && value->shape[drop] == 1) drop++;
  dm_Tensor *v = value;
  if (drop) v = x_reshape(x, value, value->ndim - drop, value->shape + drop);
  if (x->st != DM_OK) return NULL;
  if (dm_broadcast("index", v, there, &ndim, shape) == DM_OK && ndim == there->ndim &&
      memcmp(shape, there->shape, sizeof *shape * (size_t)ndim) == 0)
    return x_expand(x, v, ndim, shape);
  x->st = dm_fail(DM_EARG,
                  "index: a value of shape %s does not broadcast to %s, what the mask chooses",
                  DM_SHAPE(value), DM_SHAPE(there));
  return NULL;
}

/* x[mask] = value. A 0-dim value fills; any other is broadcast to the selected rows, which
   must be selected once for their number. */
static dm_status assign_masked(dm_Tensor *t, dm_Tensor *mask, dm_Tensor *value) {
  dm_X x = DM_X_INIT;
  dm_Tensor *in[3] = {t, widen_mask(&x, t, mask), value}, *there = NULL;
  int op = DM_OP_masked_fill;
  if (value->ndim > 0 && x.st == DM_OK) {
    op = DM_OP_masked_put;
    x.st = select_masked(t, mask, &there);
    if (x.st == DM_OK) in[2] = fit_value(&x, value, there);
  }
  if (x.st == DM_OK) x.st = dm_call_inplace(op, 3, in, NULL);
  dm_tensor_unref(&there);
  dm_x_free(&x);
  return x.st;
}

/* x[key] -> tensor for an integer, a table, a mask or a tensor of ids. Raises on other
   keys. */
int dm_index_get(lua_State *L) {
  State *S = dm_enter(L);
  dm_Tensor *t = dm_check_tensor(L, 1);
  if (lua_isinteger(L, 2)) {
    const int64_t attr[2] = {0, position(L, 2)};
    return dm_push_call(L, S, DM_OP_select, 1, &t, attr);
  }
  if (lua_istable(L, 2)) {
    push_view(L, S, 2);
    return 1;
  }
  dm_Tensor *in[2] = {t, index_on_device_of(L, S, 2, t)};
  if (!in[1])
    return dm_raise_text(L, "index: integer, table or tensor expected, got %s",
                         luaL_typename(L, 2));
  if (in[1]->dtype != DM_BOOL) {
    const int64_t dim = 0;
    return dm_push_call(L, S, DM_OP_index_get, 2, in, &dim);
  }
  Handle *b = dm_push_handle(L, S);
  dm_Tensor *out = NULL;
  DM_CHECK_TWICE(L, S, select_masked(t, in[1], &out));
  dm_handle_fill(L, S, b, out);
  return 1;
}

/* Replaces a number or boolean at 3 by a 0-dim tensor; raises on other values but a
   tensor. */
static int value_to_tensor(lua_State *L, State *S) {
  if (dm_to_tensor(L, 3)) return 0;
  const int type = lua_type(L, 3);
  if (type != LUA_TNUMBER && type != LUA_TBOOLEAN)
    dm_raise_text(L, "index: number or tensor expected as the value, got %s",
                  luaL_typename(L, 3));
  Handle *b = dm_push_handle(L, S);
  const bool is_bool = type == LUA_TBOOLEAN, is_int = is_bool || lua_isinteger(L, 3);
  const int64_t i = is_bool ? lua_toboolean(L, 3) : lua_tointeger(L, 3);
  DM_CHECK_TWICE(L, S, dm_tensor_number(is_int, lua_tonumber(L, 3), i, &b->t));
  lua_replace(L, 3);
  return 0;
}

/* x[key] = value. A mask and ids have ops of their own; any other key makes a view, and the
   value is copied into it with broadcasting. */
int dm_index_set(lua_State *L) {
  State *S = dm_enter(L);
  dm_Tensor *t = dm_check_tensor(L, 1);
  lua_settop(L, 3);
  dm_Tensor *index = index_on_device_of(L, S, 2, t);
  value_to_tensor(L, S);
  dm_Tensor *value = dm_to_tensor(L, 3);
  if (index && index->dtype == DM_BOOL) {
    DM_CHECK_TWICE(L, S, assign_masked(t, index, value));
    return 0;
  }
  if (index) {
    dm_Tensor *in[3] = {t, index, value};
    const int64_t attr[2] = {0, 0};
    DM_CHECK_TWICE(L, S, dm_call_inplace(DM_OP_index_put, 3, in, attr));
    return 0;
  }
  if (lua_istable(L, 2)) {
    push_view(L, S, 2);
  } else if (lua_isinteger(L, 2)) {
    lua_pushvalue(L, 1);
    const int64_t attr[2] = {0, position(L, 2)};
    narrow_top(L, S, DM_OP_select, attr);
  } else {
    return dm_raise_text(L, "index: integer, table or tensor expected, got %s",
                         luaL_typename(L, 2));
  }
  dm_Tensor *in[2] = {dm_to_tensor(L, -1), value};
  DM_CHECK_TWICE(L, S, dm_call_inplace(DM_OP_copy, 2, in, NULL));
  return 0;
}

/* ---- x:index_put({i, j}, values, {accumulate = false}) ---- */

/* Fills index with the tensors of the table at 2 and dims with the dim at which each begins:
   {} stands for a whole dim, a mask for as many dims as it has. Returns the number of
   tensors; raises when it is 0. */
static int read_indices(lua_State *L, dm_Tensor **index, dm_Ints *dims) {
  if (!lua_istable(L, 2))
    dm_raise_text(L, "index_put: a table of indices expected, got %s", luaL_typename(L, 2));
  const lua_Integer n = (lua_Integer)lua_rawlen(L, 2);
  int64_t dim = 0;
  dims->n = 0;
  for (lua_Integer k = 1; k <= n; k++) {
    const int type = lua_rawgeti(L, 2, k);
    dm_Tensor *t = dm_to_tensor(L, -1);
    const bool all = type == LUA_TTABLE && lua_rawlen(L, -1) == 0;
    if (!t && !all)
      dm_raise_text(L, "index_put: index %d: tensor or {} expected, got %s", (int)k,
                    luaL_typename(L, -1));
    lua_pop(L, 1); /* the table keeps it */
    if (t && dims->n == DM_MAX_DIM)
      dm_raise_text(L, "index_put: more indices than a tensor has dims");
    if (t) {
      index[dims->n] = t;
      dims->v[dims->n++] = dim;
    }
    dim += t && t->dtype == DM_BOOL ? t->ndim : 1;
  }
  if (dims->n == 0) dm_raise_text(L, "index_put: no index given");
  return (int)dims->n;
}

/* Pushes a copy of x (1) with the values (3) written at the indices (2). With accumulate they
   are added, so repeated indices sum. */
static void push_put(lua_State *L, State *S) {
  static const char *const names[] = {"accumulate"};
  dm_Tensor *in[2 + DM_MAX_DIM] = {dm_check_tensor(L, 1), NULL};
  struct {
    dm_Ints dims;
    int64_t accumulate;
  } attr;
  lua_settop(L, 4);
  value_to_tensor(L, S);
  in[1] = dm_to_tensor(L, 3);
  if (lua_istable(L, 4)) dm_check_options(L, "index_put", 4, 1, names);
  attr.accumulate =
      lua_istable(L, 4) ? dm_option_bool(L, 4, "accumulate", false) : lua_toboolean(L, 4);
  const int n = read_indices(L, in + 2, &attr.dims);
  dm_push_call(L, S, DM_OP_index_put_many, 2 + n, in, &attr);
}

/* x:index_put({i, j}, values, {accumulate = false}) -> tensor. */
int dm_index_put(lua_State *L) {
  push_put(L, dm_enter(L));
  return 1;
}

/* x:index_put_(...) -> x. It copies the result of index_put into x. */
int dm_index_put_(lua_State *L) {
  State *S = dm_enter(L);
  push_put(L, S);
  dm_Tensor *in[2] = {dm_to_tensor(L, 1), dm_to_tensor(L, -1)};
  DM_CHECK_TWICE(L, S, dm_call_inplace(DM_OP_copy, 2, in, NULL));
  lua_settop(L, 1);
  return 1;
}
