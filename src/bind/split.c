/* split, chunk, unbind, tensor_split, hsplit, vsplit, dsplit: each returns a list of views,
   the chunks of x along a dim in their order, as PyTorch returns a tuple. They are not rows
   of the op table, whose ops have a fixed number of outputs. Each chunk is a call of `narrow`
   (`select` in unbind), so each is differentiable on its own and shares x's memory. All are
   functions of dm and methods of tensors. */
#include "base/error.h"
#include "bind/bind.h"

/* The integer at i; raises, naming the call and the argument, for anything else. */
static lua_Integer integer_arg(lua_State *L, const char *what, const char *name, int i) {
  if (!lua_isinteger(L, i) && (lua_type(L, i) != LUA_TNUMBER || !lua_tointegerx(L, i, NULL)))
    dm_raise_text(L, "%s: %s is a %s, wanted an integer", what, name, luaL_typename(L, i));
  return lua_tointeger(L, i);
}

/* The dim at i, default 1, counted from 0. Raises for 0 and for a dim that t does not
   have. */
static int tensor_dim_arg(lua_State *L, const char *what, const dm_Tensor *t, int i) {
  const lua_Integer d = lua_isnil(L, i) ? 1 : integer_arg(L, what, "dim", i);
  const lua_Integer k = d > 0 ? d - 1 : d + t->ndim;
  if (d == 0 || k < 0 || k >= t->ndim)
    dm_raise_text(L, "%s: dim %d is out of range for shape %s (dims count from 1)", what,
                  (int)d, DM_SHAPE(t));
  return (int)k;
}

/* Pushes the view of n elements of dim d of the tensor at 1, from element `at` on, counted from
   0. */
static void push_chunk(lua_State *L, State *S, int d, int64_t at, int64_t n) {
  const int64_t attr[3] = {d, at, n};
  dm_push_call(L, S, DM_OP_narrow, 1, &(int){1}, attr);
}

/* Pushes a list of chunks of `each` elements of dim d, which has `size`; the last may be
   shorter. An empty dim gives one empty chunk, as in PyTorch. */
static int split_by_size(lua_State *L, State *S, int d, int64_t size, int64_t each) {
  lua_newtable(L);
  lua_Integer k = 1;
  for (int64_t at = 0; at < size || k == 1; at += each) {
    push_chunk(L, S, d, at, dm_min_i64(each, size - at));
    lua_rawseti(L, -2, k++);
    if (each == 0) break;
  }
  return 1;
}

/* dm.split(x, size or {sizes}, dim or {dim = 1}) -> list of views. A size below 1 raises, but
   for 0 of an empty dim, and so do sizes whose sum is not the size of the dim. */
static int split(lua_State *L) {
  static const char *const names[] = {"input", "split_size", "dim"};
  State *S = dm_enter(L);
  dm_position_options(L, "split", DM_COUNT(names), names);
  dm_Tensor *t = dm_check_tensor(L, 1);
  const int d = tensor_dim_arg(L, "split", t, 3);
  if (!lua_istable(L, 2)) {
    const lua_Integer each = integer_arg(L, "split", "split_size", 2);
    if (each < 0 || (each == 0 && t->shape[d] > 0))
      return dm_raise_text(L, "split: chunks of %I elements, wanted 1 or more",
                           (LUAI_UACINT)each);
    return split_by_size(L, S, d, t->shape[d], each);
  }
  const lua_Integer n = (lua_Integer)lua_rawlen(L, 2);
  int64_t sum = 0;
  for (lua_Integer k = 1; k <= n; k++) {
    lua_rawgeti(L, 2, k);
    const lua_Integer each = integer_arg(L, "split", "a size", -1);
    if (each < 0) return dm_raise_text(L, "split: a chunk of %I elements", (LUAI_UACINT)each);
    lua_pop(L, 1);
    if (each > t->shape[d] - sum)
      return dm_raise_text(L,
                           "split: the chunks have more elements together than dim %d of "
                           "shape %s",
                           d + 1, DM_SHAPE(t));
    sum += each;
  }
  if (sum != t->shape[d])
    return dm_raise_text(L, "split: chunks of %d elements together, dim %d has %d", (int)sum,
                         d + 1, (int)t->shape[d]);
  lua_createtable(L, (int)n, 0);
  int64_t at = 0;
  for (lua_Integer k = 1; k <= n; k++) {
    lua_rawgeti(L, 2, k);
    const int64_t each = integer_arg(L, "split", "a size", -1);
    lua_pop(L, 1);
    push_chunk(L, S, d, at, each);
    lua_rawseti(L, -2, k);
    at += each;
  }
  return 1;
}

/* dm.unbind(x, dim = 1) -> list of the views x:select(dim, i), one dim less than x. Raises on
   a 0-dim tensor. */
static int unbind(lua_State *L) {
  static const char *const names[] = {"input", "dim"};
  State *S = dm_enter(L);
  dm_position_options(L, "unbind", DM_COUNT(names), names);
  dm_Tensor *t = dm_check_tensor(L, 1);
  if (t->ndim == 0) return dm_raise_text(L, "unbind: a 0-dim tensor has no rows");
  const int d = tensor_dim_arg(L, "unbind", t, 2);
  const int64_t n = t->shape[d];
  lua_createtable(L, (int)n, 0);
  for (int64_t i = 0; i < n; i++) {
    const int64_t attr[2] = {d, i};
    dm_push_call(L, S, DM_OP_select, 1, &(int){1}, attr);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* nonzero(x, {as_tuple = true}) -> list of vectors, the positions in each dim; a 0-dim x counts
   as a vector of one element. */
int dm_nonzero_columns(lua_State *L) {
  State *S = dm_enter(L);
  if (dm_option(L, 1, "input") == LUA_TNIL) lua_pushvalue(L, 1);
  int at = lua_gettop(L);
  if (dm_check_tensor(L, at)->ndim == 0) {
    const int64_t first = 0;
    dm_push_call(L, S, DM_OP_unsqueeze, 1, &at, &first);
    at++;
  }
  dm_push_call(L, S, DM_OP_nonzero, 1, &at, &(int64_t){1});
  lua_replace(L, 1);
  lua_settop(L, 1);
  lua_pushinteger(L, 2);
  return unbind(L);
}

/* ---- at given positions, or into a number of chunks ---- */

/* The size of dim d of the tensor at 1, which a script may have changed since d was read. */
static int64_t size_of(lua_State *L, int d) {
  const dm_Tensor *t = dm_check_tensor(L, 1);
  if (d >= t->ndim)
    dm_raise_text(L, "tensor_split: shape %s has no dim %d", DM_SHAPE(t), d + 1);
  return t->shape[d];
}

enum { MOST_EMPTY = 1 << 16 }; /* a call that asks for more empty chunks is a mistake */

/* Pushes a list of n chunks; when n does not divide the size, the first ones have one element
   more. Chunks beyond the size are empty. */
static int split_evenly(lua_State *L, State *S, const char *name, int d, lua_Integer n) {
  const int64_t all = size_of(L, d);
  if (n < 1) return dm_raise_text(L, "%s: %I chunks, wanted 1 or more", name, (LUAI_UACINT)n);
  if (n > all + MOST_EMPTY)
    return dm_raise_text(L, "%s: %I chunks of dim %d of shape %s, most of them empty", name,
                         (LUAI_UACINT)n, d + 1, DM_SHAPE(dm_check_tensor(L, 1)));
  const int64_t each = all / n, longer = all % n;
  lua_newtable(L);
  int64_t at = 0;
  for (lua_Integer k = 1; k <= n; k++) {
    const int64_t size = each + (k <= longer);
    push_chunk(L, S, d, at, size);
    lua_rawseti(L, -2, k);
    at += size;
  }
  return 1;
}

/* dm.chunk(x, n, dim or {dim = 1}) -> list of at most n views of ceil(size / n) elements
   each, the last shorter; PyTorch too returns fewer than n where they fill the dim, and n empty
   ones of an empty dim. Raises for n < 1. */
static int chunk(lua_State *L) {
  static const char *const names[] = {"input", "chunks", "dim"};
  State *S = dm_enter(L);
  dm_position_options(L, "chunk", DM_COUNT(names), names);
  dm_Tensor *t = dm_check_tensor(L, 1);
  const int d = tensor_dim_arg(L, "chunk", t, 3);
  const lua_Integer n = integer_arg(L, "chunk", "chunks", 2);
  if (n < 1) return dm_raise_text(L, "chunk: %I chunks, wanted 1 or more", (LUAI_UACINT)n);
  const int64_t size = t->shape[d];
  if (size == 0) return split_evenly(L, S, "chunk", d, n);
  return split_by_size(L, S, d, size, size / n + (size % n != 0));
}

/* Returns element k of the table at 2: the position, from 0 and clamped to the dim, where
   chunk k + 1 begins. Raises for 0 and for values that are no integers. */
static int64_t split_position(lua_State *L, lua_Integer k, int64_t size) {
  lua_rawgeti(L, 2, k);
  const lua_Integer v = integer_arg(L, "tensor_split", "a position", -1);
  lua_pop(L, 1);
  if (v == 0) dm_raise_text(L, "tensor_split: a cut at 0: positions count from 1");
  const int64_t at = v > 0 ? v - 1 : v + size;
  return dm_max_i64(0, dm_min_i64(at, size));
}

static const char ARGUMENT[] = "indices_or_sections";

/* Pushes the chunks of dim d that the number or the table of positions at 2 asks for.
   Positions that do not rise give empty chunks, as Python's slices do. */
static int split_at(lua_State *L, State *S, int d) {
  if (dm_to_tensor(L, 2)) { /* its numbers stand in its place */
    lua_getfield(L, 2, "totable");
    lua_pushvalue(L, 2);
    lua_call(L, 1, 1);
    lua_replace(L, 2);
  }
  if (!lua_istable(L, 2))
    return split_evenly(L, S, "tensor_split", d, integer_arg(L, "tensor_split", ARGUMENT, 2));
  const lua_Integer n = (lua_Integer)lua_rawlen(L, 2);
  const int64_t size = size_of(L, d);
  lua_createtable(L, (int)n + 1, 0);
  int64_t at = 0;
  for (lua_Integer k = 1; k <= n + 1; k++) {
    const int64_t end = k <= n ? split_position(L, k, size) : size;
    push_chunk(L, S, d, dm_min_i64(at, size), dm_max_i64(0, end - at));
    lua_rawseti(L, -2, k);
    at = end;
  }
  return 1;
}

/* x:tensor_split(n, dim): n chunks whose sizes differ by at most 1; x:tensor_split({3, 5},
   dim): chunks that begin at 1, 3 and 5. */
static int tensor_split(lua_State *L) {
  static const char *const names[] = {"input", ARGUMENT, "dim"};
  State *S = dm_enter(L);
  dm_position_options(L, "tensor_split", DM_COUNT(names), names);
  dm_Tensor *t = dm_check_tensor(L, 1);
  return split_at(L, S, tensor_dim_arg(L, "tensor_split", t, 3));
}

/* tensor_split along a fixed dim, counted from 0; `least` is the least number of dims of x. A
   number must divide the size, otherwise it raises. */
static int split_along(lua_State *L, const char *name, int dim, int least) {
  static const char *const names[] = {"input", ARGUMENT};
  State *S = dm_enter(L);
  dm_position_options(L, name, DM_COUNT(names), names);
  dm_Tensor *t = dm_check_tensor(L, 1);
  if (t->ndim < least)
    return dm_raise_text(L, "%s: x has shape %s, wanted %d dims or more", name, DM_SHAPE(t),
                         least);
  if (t->ndim <= dim) dim = 0; /* hsplit of a vector */
  const lua_Integer n = lua_istable(L, 2) ? 1 : integer_arg(L, name, ARGUMENT, 2);
  if (n < 1 || t->shape[dim] % n)
    return dm_raise_text(L, "%s: dim %d of shape %s in %I equal chunks", name, dim + 1,
                         DM_SHAPE(t), (LUAI_UACINT)n);
  return split_at(L, S, dim);
}
/* dm.hsplit(x, n or {positions}), dm.vsplit, dm.dsplit -> list of views along dim 2 (dim 1 of
   a vector), dim 1 and dim 3. */
static int hsplit(lua_State *L) { return split_along(L, "hsplit", 1, 1); }
static int vsplit(lua_State *L) { return split_along(L, "vsplit", 0, 2); }
static int dsplit(lua_State *L) { return split_along(L, "dsplit", 2, 3); }

const luaL_Reg dm_split_functions[] = {
    {"split", split},   {"chunk", chunk},   {"unbind", unbind}, {"tensor_split", tensor_split},
    {"hsplit", hsplit}, {"vsplit", vsplit}, {"dsplit", dsplit}, {NULL, NULL}};
