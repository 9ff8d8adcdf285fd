/* x[key], read and assigned. A position counts from 1, a negative one from the end.

   The integers, ranges, newaxis and "..." of a key become a chain of views, one op for each
   item; a 0-dim tensor of an integer is read and counts as one. What is left are masks and
   tensors of ids, each for a dim of that view. Without them reading returns the view, and
   assigning copies the value into it. Ids for one dim read by index_get and write by
   index_put; a lone mask reads by masked_select and writes by masked_fill or masked_put; more
   of them are paired by index_many and index_put_many. So gradients pass through all. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "bind/bind.h"
#include "cpu/vec.h"
#include "op/index/index.h"
#include "op/pointwise/pointwise.h"

/* A key, read: the view of x that its plain items choose, and its index tensors. Tensors are
   known by their positions on the stack, for each step may run the collector. */
typedef struct Key {
  int slot;               /* of the view's handle on the stack */
  int64_t dim;            /* the view's dim that the next item indexes */
  int64_t own;            /* the same dim of x, for errors */
  dm_Ints dims;           /* the dim at which each index tensor begins */
  int at[2 + DM_MAX_DIM]; /* where on the stack operands are: view, value, index tensors */
} Key;

/* Raises the engine's message under the name that the script used, x[key] or index_put: the op
   that failed is one of the steps, and may have no name in Lua. */
static int raise_as(lua_State *L, const char *what) {
  char op[32];
  const char *const text = dm_error(), *end = strstr(text, ": ");
  size_t n = end ? (size_t)(end - text) : 0;
  if (n == 0 || n >= sizeof op) return dm_raise(L);
  memcpy(op, text, n);
  op[op[n - 1] == '_' ? n - 1 : n] = 0;
  if (dm_op_find(op) < 0) return dm_raise(L);
  end += 2;
  if (strncmp(end, "index ", 6) == 0) return dm_raise_text(L, "%s", end);
  return dm_raise_text(L, "%s: %s", what, end);
}

/* dm_push_call whose errors have the name that the script used. */
static int push_as(lua_State *L, State *S, const char *what, int op, int n_in, const int *at,
                   const void *attr) {
  Handle *b = dm_push_handle(L, S);
  dm_Tensor *out = NULL, *in[2 + DM_MAX_DIM];
  for (int i = 0; i < n_in; i++) in[i] = dm_check_tensor(L, at[i]);
  DM_HELD_ELSE(L, S, n_in, in, dm_call(op, n_in, in, attr, &out), raise_as(L, what));
  dm_handle_fill(L, S, b, out);
  return 1;
}
static int push_index(lua_State *L, State *S, int op, int n_in, const int *at,
                      const void *attr) {
  return push_as(L, S, "index", op, n_in, at, attr);
}

static dm_Tensor *view_of(lua_State *L, const Key *k) { return dm_check_tensor(L, k->slot); }

/* The number at i, which must be whole; 3.0 is. */
static int64_t whole_number(lua_State *L, int i) {
  int whole;
  const lua_Integer v = lua_tointegerx(L, i, &whole);
  if (!whole)
    dm_raise_text(L, "index %f: a position is a whole number; hint: n // 2",
                  lua_tonumber(L, i));
  return v;
}

/* The number at i as a position from 0; a negative one stays. Raises for 0. */
static int64_t position(lua_State *L, int i) {
  const int64_t v = whole_number(L, i);
  if (v == 0) dm_raise_text(L, "index 0: positions count from 1 (or from the end: -1)");
  return v > 0 ? v - 1 : v;
}

/* Replaces the tensor at i by the result of the op on it. */
static void replace_by(lua_State *L, State *S, int i, int op, const void *attr) {
  push_index(L, S, op, 1, &i, attr);
  lua_replace(L, i);
}

/* Replaces the view by the result of the op on it. */
static void narrow(lua_State *L, State *S, const Key *k, int op, const void *attr) {
  replace_by(L, S, k->slot, op, attr);
}

/* Raises unless the view has n more dims to index. */
static void need_dims(lua_State *L, const Key *k, int64_t n) {
  if (k->dim + n > view_of(L, k)->ndim)
    dm_raise_text(L, "index: too many indices for a tensor of shape %s",
                  DM_SHAPE(dm_check_tensor(L, 1)));
}

/* Raises unless the position, from 0, is one of the view's dim. */
static void check_position(lua_State *L, const Key *k, int64_t at) {
  const int64_t size = view_of(L, k)->shape[k->dim];
  if (at < -size || at >= size)
    dm_raise_text(L, "index %I is out of range for dim %d of shape %s",
                  (LUAI_UACINT)(at >= 0 ? at + 1 : at), (int)k->own + 1,
                  DM_SHAPE(dm_check_tensor(L, 1)));
}

static void take_position(lua_State *L, State *S, Key *k, int64_t at) {
  const int64_t attr[2] = {k->dim, at};
  need_dims(L, k, 1);
  check_position(L, k, at);
  k->own++;
  narrow(L, S, k, DM_OP_select, attr);
}

/* Raises when the table at i has names. */
static void refuse_names(lua_State *L, int i) {
  lua_pushnil(L);
  if (!lua_next(L, i)) return;
  dm_raise_text(L, "index: a key is a list, given a table with the name '%s'",
                luaL_tolstring(L, -2, NULL));
}

/* Narrows the dim by the range table at `at`: {} all, {i} one, {i, j} from i to j, {i, j,
   step}. The dim stays, also at size 1. Raises outside the dim. */
static void take_range(lua_State *L, State *S, Key *k, int at) {
  const lua_Unsigned n = lua_rawlen(L, at);
  need_dims(L, k, 1);
  int64_t attr[4] = {k->dim, 0, -1, 1};
  if (n == 0) {
    refuse_names(L, at);
    k->dim++;
    k->own++;
    return;
  }
  if (n > 3)
    dm_raise_text(L, "index: a range is {first, last} or {first, last, step}; hint: "
                     "dm.tensor{...} takes a list of positions");
  for (lua_Unsigned i = 1; i <= n; i++) {
    if (lua_rawgeti(L, at, (lua_Integer)i) != LUA_TNUMBER)
      dm_raise_text(L, "index: a range holds integers, got %s", luaL_typename(L, -1));
    attr[i] = i < 3 ? position(L, -1) : whole_number(L, -1);
    lua_pop(L, 1);
  }
  if (n == 1) attr[2] = attr[1];
  for (int i = 1; i < 3; i++) check_position(L, k, attr[i]);
  k->dim++;
  k->own++;
  narrow(L, S, k, DM_OP_slice, attr);
}

static bool is_newaxis(const char *word) { return strcmp(word, "newaxis") == 0; }
static bool is_ellipsis(const char *word) { return strcmp(word, "...") == 0; }
bool dm_index_word(const char *word) { return is_newaxis(word) || is_ellipsis(word); }

/* How many dims the items of the table at `key` index, from item `from` on. */
static int64_t dims_of_items(lua_State *L, int key, lua_Integer from) {
  int64_t n = 0;
  for (; lua_rawgeti(L, key, from) != LUA_TNIL; from++) {
    const dm_Tensor *t = dm_to_tensor(L, -1);
    const char *word = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
    if (is_ellipsis(word)) dm_raise_text(L, "index: \"...\" may stand once in a key");
    n += t && t->dtype == DM_BOOL ? t->ndim : !is_newaxis(word);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return n;
}

/* "newaxis" adds a dim of size 1; "..." passes the dims that the items from `next` on do not
   index. */
static void take_word(lua_State *L, State *S, Key *k, const char *word, lua_Integer next) {
  if (is_newaxis(word)) {
    narrow(L, S, k, DM_OP_unsqueeze, &k->dim);
    k->dim++;
  } else if (is_ellipsis(word)) {
    const int64_t rest = next ? dims_of_items(L, 2, next) : 0;
    need_dims(L, k, rest);
    k->dim = view_of(L, k)->ndim - rest;
    k->own = dm_check_tensor(L, 1)->ndim - rest;
  } else {
    dm_raise_text(L, "index: '%s' is none of \"...\", dm.newaxis", word);
  }
}

/* Takes the tensor at i, copied to the view's device when it is on the CPU: the copy then
   replaces it on the stack. */
static void take_tensor(lua_State *L, State *S, Key *k, int i) {
  const dm_Tensor *index = dm_check_tensor(L, i);
  const bool mask = index->dtype == DM_BOOL;
  if (index->ndim == 0 && dm_is_int((dm_DType)index->dtype)) {
    char element[8];
    int64_t at;
    if (dm_tensor_read(index, dm_dtype_size((dm_DType)index->dtype), element) != DM_OK)
      dm_raise(L);
    dm_load_i64((dm_DType)index->dtype, element, 1, 1, &at);
    lua_pushinteger(L, at);
    take_position(L, S, k, position(L, -1));
    lua_pop(L, 1);
    return;
  }
  if (index->ndim == 0 && mask) { /* one element of a dim made for it, or none */
    narrow(L, S, k, DM_OP_unsqueeze, &k->dim);
    k->own--; /* x has no such dim */
    replace_by(L, S, i, DM_OP_unsqueeze, &(int64_t){0});
  }
  const dm_Device dev = view_of(L, k)->device;
  index = dm_check_tensor(L, i);
  if (index->device.type == DM_CPU && dev.type != DM_CPU) {
    const int64_t to[2] = {dm_device_code(dev), 0};
    replace_by(L, S, i, DM_OP_to_device, to);
    index = dm_check_tensor(L, i);
  }
  need_dims(L, k, mask ? index->ndim : 1);
  if (k->dims.n == DM_MAX_DIM) dm_raise_text(L, "index: too many indices");
  k->at[2 + k->dims.n] = i;
  k->dims.v[k->dims.n++] = k->dim;
  k->dim += mask ? index->ndim : 1;
  k->own += mask ? index->ndim : 1;
}

/* Takes the item at i of the stack; `next` is the number of the item behind it in the table at
   2, or 0. Returns whether it is a tensor, which must stay on the stack. */
static bool take_item(lua_State *L, State *S, Key *k, int i, lua_Integer next) {
  if (dm_handle(L, i)) {
    take_tensor(L, S, k, i);
    return true;
  }
  switch (lua_type(L, i)) {
  case LUA_TNUMBER: take_position(L, S, k, position(L, i)); return false;
  case LUA_TTABLE: take_range(L, S, k, i); return false;
  case LUA_TSTRING: take_word(L, S, k, dm_word(L, i), next); return false;
  default:
    dm_raise_text(L, "index: integer, range or tensor expected, got %s%s", luaL_typename(L, i),
                  lua_isboolean(L, i) ? "; hint: x:eq(y), x:gt(y) make masks" : "");
    return false;
  }
}

/* Reads the key at 2 for the tensor at 1: one item, or a table of items. The view and the
   index tensors stay on the stack. */
static void read_key(lua_State *L, State *S, Key *k) {
  lua_pushvalue(L, 1);
  k->slot = k->at[0] = k->at[1] = lua_gettop(L);
  k->dim = k->own = k->dims.n = 0;
  if (!lua_istable(L, 2)) {
    take_item(L, S, k, 2, 0);
    return;
  }
  const lua_Integer n = (lua_Integer)lua_rawlen(L, 2);
  if (n == 0) refuse_names(L, 2);
  luaL_checkstack(L, DM_MAX_DIM + 8, "too many indices");
  for (lua_Integer i = 1; i <= n; i++) {
    lua_rawgeti(L, 2, i);
    if (!take_item(L, S, k, lua_gettop(L), i + 1)) lua_pop(L, 1);
  }
}

/* Returns a mask of t's dims from `dim` on with dims of size 1 behind them, so that it
   broadcasts to t. */
static dm_Tensor *widen_mask(dm_X *x, const dm_Tensor *t, dm_Tensor *mask, int64_t dim) {
  const int64_t n = t->ndim - dim;
  x->st = dm_check_mask("index", 1, t, mask, dim);
  if (x->st != DM_OK || mask->ndim == n) return mask;
  int64_t shape[DM_MAX_DIM];
  for (int d = 0; d < n; d++) shape[d] = d < mask->ndim ? mask->shape[d] : 1;
  return x_reshape(x, mask, (int)n, shape);
}

/* *out = t with the dims of the mask, from `dim` on, replaced by one of what it selects. The op
   picks elements, and a reshape makes slices of them. */
static dm_status select_masked(dm_Tensor *t, dm_Tensor *mask, int64_t dim, dm_Tensor **out) {
  dm_X x = DM_X_INIT;
  dm_Tensor *picked = dm_x(&x, DM_OP_masked_select, NULL, 2, t, widen_mask(&x, t, mask, dim));
  if (mask->ndim < t->ndim) {
    const int n = t->ndim - mask->ndim + 1;
    int64_t shape[DM_MAX_DIM], rest = 1;
    for (int d = 0; d < n; d++) {
      shape[d] = d <= dim ? t->shape[d] : t->shape[d + mask->ndim - 1];
      if (d != dim) rest *= shape[d];
    }
    dm_Tensor *counted = rest ? picked : x_unary(&x, DM_OP_nonzero, mask);
    if (counted) shape[dim] = rest ? picked->numel / rest : counted->shape[0];
    picked = x_reshape(&x, picked, n, shape);
  }
  if (x.st == DM_OK) *out = dm_tensor_ref(picked);
  dm_x_free(&x);
  return x.st;
}

/* Returns value broadcast to what the mask selects, which has the shape of `there`. Any other
   shape is an error, as in NumPy. */
static dm_Tensor *fit_value(dm_X *x, dm_Tensor *value, const dm_Tensor *there) {
  int ndim;
  int64_t shape[DM_MAX_DIM];
  if (dm_broadcast("index", value, there, &ndim, shape) == DM_OK && ndim == there->ndim &&
      memcmp(shape, there->shape, sizeof *shape * (size_t)ndim) == 0)
    return x_expand(x, value, ndim, shape);
  x->st = dm_fail(DM_EARG,
                  "index: a value of shape %s does not broadcast to %s, what the mask chooses",
                  DM_SHAPE(value), DM_SHAPE(there));
  return NULL;
}

/* t[mask] = value. A 0-dim value fills; any other is broadcast to the selected slices, which
   must be selected once for their number. */
static dm_status assign_masked(dm_Tensor *t, dm_Tensor *mask, int64_t dim, dm_Tensor *value) {
  dm_X x = DM_X_INIT;
  dm_Tensor *in[3] = {t, widen_mask(&x, t, mask, dim), value}, *there = NULL;
  int op = DM_OP_masked_fill;
  if (value->ndim > 0 && x.st == DM_OK) {
    op = DM_OP_masked_put;
    x.st = select_masked(t, mask, dim, &there);
    if (x.st == DM_OK) in[2] = fit_value(&x, value, there);
  }
  if (x.st == DM_OK) x.st = dm_call_inplace(op, 3, in, NULL);
  dm_tensor_unref(&there);
  dm_x_free(&x);
  return x.st;
}

/* Does ipairs ask? Its loop ends where an element is nil. */
static bool asked_by_ipairs(lua_State *L, const State *S) {
  lua_Debug ar;
  if (!lua_getstack(L, 1, &ar) || !lua_getinfo(L, "f", &ar)) return false;
  return S->ipairs_next && lua_tocfunction(L, -1) == S->ipairs_next;
}

/* x[key] -> tensor; nil where ipairs asks for the row behind the last. Raises on other keys. */
int dm_index_get(lua_State *L) {
  State *S = dm_enter(L);
  const dm_Tensor *t = dm_check_tensor(L, 1);
  if (lua_isinteger(L, 2)) {
    const int64_t attr[2] = {0, position(L, 2)};
    if (t->ndim > 0 && DM_UNLIKELY(attr[1] == t->shape[0]) && asked_by_ipairs(L, S)) return 0;
    return push_index(L, S, DM_OP_select, 1, &(int){1}, attr);
  }
  Key k;
  read_key(L, S, &k);
  const int n = (int)k.dims.n;
  if (n == 0) {
    lua_pushvalue(L, k.slot);
    return 1;
  }
  if (n > 1) return push_index(L, S, DM_OP_index_many, 1 + n, k.at + 1, &k.dims);
  if (dm_check_tensor(L, k.at[2])->dtype != DM_BOOL)
    return push_index(L, S, DM_OP_index_get, 2, k.at + 1, k.dims.v);
  Handle *b = dm_push_handle(L, S);
  dm_Tensor *out = NULL, *in[2] = {view_of(L, &k), dm_check_tensor(L, k.at[2])};
  DM_HELD_ELSE(L, S, 2, in, select_masked(in[0], in[1], k.dims.v[0], &out),
               raise_as(L, "index"));
  dm_handle_fill(L, S, b, out);
  return 1;
}

/* Makes the value at 3 a tensor: a number or boolean is replaced by a 0-dim one. Raises on any
   other. */
static void value_to_tensor(lua_State *L, State *S) {
  if (dm_to_tensor(L, 3)) return;
  const int type = lua_type(L, 3);
  if (type != LUA_TNUMBER && type != LUA_TBOOLEAN)
    dm_raise_text(L, "index: number or tensor expected as the value, got %s",
                  luaL_typename(L, 3));
  Handle *b = dm_push_handle(L, S);
  const bool is_bool = type == LUA_TBOOLEAN, is_int = is_bool || lua_isinteger(L, 3);
  const int64_t i = is_bool ? lua_toboolean(L, 3) : lua_tointeger(L, 3);
  const double v = lua_tonumber(L, 3);
  if (dm_tensor_number(is_int, v, i, &b->t) != DM_OK) {
    dm_reclaim_memory(L, S);
    if (dm_tensor_number(is_int, v, i, &b->t) != DM_OK) dm_raise(L);
  }
  lua_replace(L, 3);
}

/* Replaces the tensor at 3 by one without leading dims of size 1, which broadcasting adds
   again where they are wanted. */
static void strip_value(lua_State *L, State *S) {
  const dm_Tensor *v = dm_check_tensor(L, 3);
  int n = 0;
  while (n < v->ndim && v->shape[n] == 1) n++;
  if (n == 0) return;
  dm_Ints shape = {v->ndim - n, {0}};
  for (int d = n; d < v->ndim; d++) shape.v[d - n] = v->shape[d];
  replace_by(L, S, 3, DM_OP_reshape, &shape);
}

/* Cuts the number at 3 to a whole one where x, at 1, has integers, as PyTorch does whatever the
   key. Raises where the dtype does not hold it. */
static void cut_value(lua_State *L) {
  const dm_Tensor *t = dm_check_tensor(L, 1);
  if (lua_type(L, 3) != LUA_TNUMBER || !dm_is_int((dm_DType)t->dtype) || t->dtype == DM_BOOL)
    return;
  if (lua_isinteger(L, 3)) return;
  const double v = lua_tonumber(L, 3);
  if (dm_check_holds("index", (dm_DType)t->dtype, v) != DM_OK) dm_raise(L);
  lua_pushnumber(L, trunc(v));
  lua_replace(L, 3);
}

/* x[key] = value. */
int dm_index_set(lua_State *L) {
  State *S = dm_enter(L);
  Key k;
  lua_settop(L, 3);
  cut_value(L);
  lua_settop(L, 3);
  value_to_tensor(L, S);
  strip_value(L, S);
  read_key(L, S, &k);
  const int n = (int)k.dims.n;
  k.at[1] = 3;
  if (n > 1) {
    const dm_IndexPutManyAttr attr = {k.dims, false};
    push_index(L, S, DM_OP_index_put_many, 2 + n, k.at, &attr);
    k.at[1] = lua_gettop(L);
  }
  (void)dm_enter(L);
  dm_Tensor *const in[3] = {view_of(L, &k), n == 1 ? dm_check_tensor(L, k.at[2]) : NULL,
                            dm_check_tensor(L, k.at[1])};
  if (n == 1 && in[1]->dtype == DM_BOOL) {
    DM_HELD_ELSE(L, S, 3, in, assign_masked(in[0], in[1], k.dims.v[0], in[2]),
                 raise_as(L, "index"));
  } else if (n == 1) {
    const int64_t attr[2] = {k.dims.v[0], 0};
    DM_HELD_ELSE(L, S, 3, in, dm_call_inplace(DM_OP_index_put, 3, in, attr),
                 raise_as(L, "index"));
  } else {
    dm_Tensor *const copy[2] = {in[0], in[2]};
    DM_HELD_ELSE(L, S, 2, copy, dm_call_inplace(DM_OP_copy, 2, copy, NULL),
                 raise_as(L, "index"));
  }
  return 0;
}

/* ---- x:index_put({i, j}, values, {accumulate = false}) ---- */

/* Pushes the tensors of the table at 2; sets `at` to their positions on the stack and dims to
   the dim at which each begins: {} stands for a whole dim, a mask for as many dims as it has.
   Returns the number of tensors; raises when it is 0. */
static int read_indices(lua_State *L, int *at, dm_Ints *dims) {
  if (!lua_istable(L, 2))
    dm_raise_text(L, "index_put: a table of indices expected, got %s", luaL_typename(L, 2));
  const lua_Integer n = (lua_Integer)lua_rawlen(L, 2);
  int64_t dim = 0;
  dims->n = 0;
  luaL_checkstack(L, DM_MAX_DIM + 4, NULL);
  for (lua_Integer k = 1; k <= n; k++) {
    const int type = lua_rawgeti(L, 2, k);
    const dm_Tensor *t = dm_to_tensor(L, -1);
    const bool all = type == LUA_TTABLE && lua_rawlen(L, -1) == 0;
    if (!t && !all)
      dm_raise_text(L, "index_put: index %d: tensor or {} expected, got %s", (int)k,
                    luaL_typename(L, -1));
    if (t && dims->n == DM_MAX_DIM)
      dm_raise_text(L, "index_put: more indices than a tensor has dims");
    if (t) {
      at[dims->n] = lua_gettop(L);
      dims->v[dims->n++] = dim;
    } else {
      lua_pop(L, 1);
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
  int at[2 + DM_MAX_DIM] = {1, 3};
  struct {
    dm_Ints dims;
    int64_t accumulate;
  } attr;
  dm_check_tensor(L, 1);
  lua_settop(L, 4);
  value_to_tensor(L, S);
  if (lua_istable(L, 4)) dm_check_options(L, "index_put", 4, 1, names);
  attr.accumulate =
      lua_istable(L, 4) ? dm_option_bool(L, 4, "accumulate", false) : lua_toboolean(L, 4);
  const int n = read_indices(L, at + 2, &attr.dims);
  push_as(L, S, "index_put", DM_OP_index_put_many, 2 + n, at, &attr);
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
  dm_Tensor *in[2] = {dm_check_tensor(L, 1), dm_check_tensor(L, -1)};
  DM_HELD_ELSE(L, S, 2, in, dm_call_inplace(DM_OP_copy, 2, in, NULL), raise_as(L, "index_put"));
  lua_settop(L, 1);
  return 1;
}
