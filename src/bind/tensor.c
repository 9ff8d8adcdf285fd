/* Tensors as Lua values: properties, indexing, to and from Lua's own values. The metatable's
   __index looks a name up among the methods first, then among the properties (x.shape,
   x.grad); any other key indexes elements, see index.c. A property is computed at each
   access: x.grad makes a new handle each time, and __eq compares the tensors behind two
   handles.

   A function that calls the engine enters the coroutine's state first (dm_enter) and
   pushes its handles before it makes a tensor, so that an error of Lua, which jumps,
   leaves nothing unowned. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "bind/bind.h"
#include "cpu/vec.h"
#include "core/copy.h"
#include "engine/leaves.h"

/* ---- one element to and from Lua ---- */

/* Pushes the element at p: a boolean, a float or an integer, by dtype. */
static void push_element(lua_State *L, dm_DType t, const void *p) {
  if (t == DM_BOOL) {
    lua_pushboolean(L, *(const uint8_t *)p);
  } else if (dm_is_float(t)) {
    double v;
    dm_load_f64(t, p, 1, 1, &v);
    lua_pushnumber(L, isnan(v) ? (double)NAN : v); /* Lua prints one with a sign as -nan */
  } else {
    int64_t v;
    dm_load_i64(t, p, 1, 1, &v);
    lua_pushinteger(L, v);
  }
}

/* x:item() -> number or boolean. Raises unless x has one element. Waits for the device. */
static int tensor_item(lua_State *L) {
  dm_enter(L);
  dm_push_item(L, dm_check_tensor(L, 1));
  return 1;
}

void dm_push_item(lua_State *L, const dm_Tensor *t) {
  if (t->numel != 1)
    dm_raise_text(L, "item: wanted one element, given shape %s; hint: x:totable()",
                  DM_SHAPE(t));
  char element[8];
  if (dm_tensor_read(t, dm_dtype_size((dm_DType)t->dtype), element) != DM_OK) dm_raise(L);
  push_element(L, (dm_DType)t->dtype, element);
}

/* Pushes the elements from dim d on as nested tables; p points to the first, in host
   memory. */
static void push_nested(lua_State *L, const dm_Tensor *t, int d, const char *p) {
  if (d == t->ndim) {
    push_element(L, (dm_DType)t->dtype, p);
    return;
  }
  luaL_checkstack(L, 3, NULL);
  lua_createtable(L, (int)t->shape[d], 0);
  for (int64_t i = 0; i < t->shape[d]; i++) {
    push_nested(L, t, d + 1, p + i * t->stride[d] * dm_dtype_size((dm_DType)t->dtype));
    lua_rawseti(L, -2, i + 1);
  }
}

/* x:totable() -> nested tables; a number for a 0-dim tensor. A tensor on a device is copied
   to the host first. */
static int tensor_totable(lua_State *L) {
  State *S = dm_enter(L);
  Handle *host = dm_push_own(L, S); /* below the result, which may end Lua's memory */
  dm_Tensor *t = dm_check_tensor(L, 1);
  for (int d = 0; d < t->ndim; d++)
    if (t->shape[d] > INT32_MAX)
      dm_raise_text(L, "totable: shape %s is more than a table can hold", DM_SHAPE(t));
  DM_CHECK_HELD(L, S, 1, &t, dm_tensor_on_host(t, &host->t));
  push_nested(L, host->t, 0, dm_tensor_data(host->t));
  dm_handle_release(host);
  return 1;
}

/* ---- dm.tensor(data, opts) ---- */

/* The measure of a nested table: ndim is -1 until the first number, or empty row, fixes
   it. */
typedef struct Nested {
  int ndim;
  int64_t shape[DM_MAX_DIM];
  bool any_float, any_int, any_bool;
} Nested;

/* Measures the nested table (or number) at i: shape and kinds of numbers go to n, whose shape
   is -1 where no row was seen yet. Raises when rows differ in length or depth, or an element
   is neither number nor boolean. Nothing is allocated before this pass ends. */
static void measure(lua_State *L, int i, int depth, Nested *n) {
  const int type = lua_type(L, i);
  if (type == LUA_TTABLE) {
    if (depth == DM_MAX_DIM) dm_raise_text(L, "tensor: nested deeper than %d", DM_MAX_DIM);
    const int64_t len = (int64_t)lua_rawlen(L, i);
    if (n->ndim >= 0 && depth >= n->ndim) dm_raise_text(L, "tensor: rows are not of one depth");
    if (n->shape[depth] < 0) n->shape[depth] = len;
    else if (n->shape[depth] != len)
      dm_raise_text(L, "tensor: a row has %d elements, another %d", (int)len,
                    (int)n->shape[depth]);
    luaL_checkstack(L, 3, NULL);
    if (len == 0 && n->ndim < 0) n->ndim = depth + 1;
    for (int64_t k = 1; k <= len; k++) {
      lua_rawgeti(L, i, k);
      measure(L, lua_gettop(L), depth + 1, n);
      lua_pop(L, 1);
    }
    return;
  }
  if (n->ndim < 0) n->ndim = depth;
  if (n->ndim != depth) dm_raise_text(L, "tensor: rows are not of one depth");
  if (type == LUA_TBOOLEAN) n->any_bool = true;
  else if (type != LUA_TNUMBER)
    dm_raise_text(L, "tensor: number expected, got %s", luaL_typename(L, i));
  else if (lua_isinteger(L, i)) n->any_int = true;
  else n->any_float = true;
}

/* Writes the elements of the nested table at i, from dim `depth` of the measure n on, to *p,
   row by row, and moves *p behind them. Raises where a table has changed since it was measured.
 */
static void fill_from(lua_State *L, int i, int depth, const Nested *n, dm_DType t, char **p) {
  const int type = lua_type(L, i);
  if (depth < n->ndim ? type != LUA_TTABLE : type != LUA_TNUMBER && type != LUA_TBOOLEAN)
    dm_raise_text(L, "tensor: the data changed while they were read");
  if (depth < n->ndim) {
    for (int64_t k = 1; k <= n->shape[depth]; k++) {
      lua_rawgeti(L, i, k);
      fill_from(L, lua_gettop(L), depth + 1, n, t, p);
      lua_pop(L, 1);
    }
    return;
  }
  if (dm_is_float(t) || !lua_isinteger(L, i)) {
    const double v = lua_isboolean(L, i) ? lua_toboolean(L, i) : lua_tonumber(L, i);
    if (dm_check_holds("tensor", t, v) != DM_OK) dm_raise(L);
    dm_store_f64(t, *p, 1, 1, &v);
  } else {
    const int64_t v = lua_tointeger(L, i);
    if (t != DM_I64 && dm_check_holds("tensor", t, (double)v) != DM_OK) dm_raise(L);
    dm_store_i64(t, *p, 1, 1, &v);
  }
  *p += dm_dtype_size(t);
}

/* The option `device`, or -1. */
static int64_t device_option(lua_State *L, int i) {
  const bool given = dm_option(L, i, "device") != LUA_TNIL;
  const int64_t code = given ? dm_device_code(dm_check_device(L, -1)) : -1;
  lua_pop(L, 1);
  return code;
}

/* Pushes a copy of the tensor at 1, without history, in dtype t and on the device (DM_NO_DTYPE,
   -1: as given). It may leave the handle of an alias below the result. */
static int push_copy(lua_State *L, State *S, dm_DType t, int64_t device) {
  Handle *hold = dm_push_own(L, S);
  const int at = lua_gettop(L);
  dm_Tensor *given = dm_check_tensor(L, 1);
  const int64_t dtype = t == DM_NO_DTYPE ? given->dtype : (int64_t)t;
  const int64_t to[3] = {dtype, device, 0};
  const bool stays = device < 0 || device == dm_device_code(given->device);
  DM_CHECK_HELD(L, S, 1, &given, dm_tensor_alias(given, &hold->t));
  return dm_push_call(L, S, stays ? DM_OP_cast : DM_OP_to, 1, &at, stays ? &dtype : to);
}

/* Pushes a tensor of the nested table (or number) at 1. Without a dtype it is of the default
   one where any number is a float, else int64 or bool; an empty table too. */
static int push_values(lua_State *L, State *S, dm_DType t, int64_t device) {
  Nested n = {.ndim = -1};
  for (int d = 0; d < DM_MAX_DIM; d++) n.shape[d] = -1;
  measure(L, 1, 0, &n);
  for (int d = 0; d < n.ndim; d++)
    if (n.shape[d] < 0) n.shape[d] = 0;
  if (t == DM_NO_DTYPE)
    t = !n.any_float && n.any_int    ? DM_I64
        : !n.any_float && n.any_bool ? DM_BOOL
                                     : dm_default_dtype();
  Handle *b = dm_push_handle(L, S);
  const int at = lua_gettop(L);
  DM_CHECK_TWICE(L, S, dm_tensor_new(t, n.ndim, n.shape, (dm_Device){DM_CPU, 0}, &b->t));
  char *p = dm_tensor_data(b->t);
  if (b->t->numel > 0) fill_from(L, 1, 0, &n, t, &p);
  const int64_t attr[2] = {dm_device_code(dm_device_of(device)), 0};
  if (DM_LIKELY(attr[0] == dm_device_code(b->t->device))) return 1;
  return dm_push_call(L, S, DM_OP_to_device, 1, &at, attr);
}

/* Leaves the value and a table of options, or nil, of dm.tensor's arguments; the dtype may be
   given by position between them, as zeros and randn take it. Raises on others. */
static dm_DType new_arguments(lua_State *L) {
  dm_DType t = DM_NO_DTYPE;
  const int top = lua_gettop(L);
  lua_settop(L, top > 3 ? top : 3);
  if (lua_type(L, 2) == LUA_TSTRING) {
    t = dm_check_dtype(L, 2);
    lua_remove(L, 2);
  }
  for (int i = 2; i <= lua_gettop(L); i++)
    if (!lua_isnil(L, i) && !(i == 2 && lua_istable(L, i)))
      dm_raise_text(L, "tensor: argument %d is one too many; hint: dm.tensor{1, 2, 3}",
                    t == DM_NO_DTYPE ? i : i + 1);
  lua_settop(L, 2);
  return t;
}

/* dm.tensor(table, number or tensor, dtype, {dtype =, device =, requires_grad =}) -> a new
   leaf. Raises on an unknown option, a ragged table, or requires_grad for a dtype that is not
   float. */
static int tensor_new(lua_State *L) {
  State *S = dm_enter(L);
  static const char *const names[] = {"dtype", "device", "requires_grad"};
  dm_DType t = new_arguments(L);
  if (lua_istable(L, 2)) dm_check_options(L, "tensor", 2, DM_COUNT(names), names);
  if (dm_option(L, 2, "dtype") != LUA_TNIL) t = dm_check_dtype(L, -1);
  const int64_t device = device_option(L, 2);
  const bool grad = dm_option_bool(L, 2, "requires_grad", false);
  lua_settop(L, 2);
  if (dm_handle(L, 1)) push_copy(L, S, t, device);
  else push_values(L, S, t, device);
  if (grad) DM_CHECK(L, dm_set_requires_grad(dm_check_tensor(L, -1), true));
  return 1;
}

/* ---- properties ---- */

/* __tostring of shapes: "{2, 3}". */
static int shape_tostring(lua_State *L) {
  luaL_Buffer b;
  luaL_checktype(L, 1, LUA_TTABLE);
  const lua_Integer n = (lua_Integer)lua_rawlen(L, 1);
  luaL_buffinit(L, &b);
  luaL_addchar(&b, '{');
  for (lua_Integer i = 1; i <= n; i++) {
    if (i > 1) luaL_addstring(&b, ", ");
    lua_rawgeti(L, 1, i);
    luaL_tolstring(L, -1, NULL);
    lua_remove(L, -2);
    luaL_addvalue(&b);
  }
  luaL_addchar(&b, '}');
  luaL_pushresult(&b);
  return 1;
}

/* __eq of shapes: the same length and integers. */
static int shape_eq(lua_State *L) {
  bool same = lua_istable(L, 1) && lua_istable(L, 2) && lua_rawlen(L, 1) == lua_rawlen(L, 2);
  for (lua_Integer i = 1; same && i <= (lua_Integer)lua_rawlen(L, 1); i++) {
    lua_rawgeti(L, 1, i);
    lua_rawgeti(L, 2, i);
    same = lua_rawequal(L, -1, -2);
    lua_pop(L, 2);
  }
  lua_pushboolean(L, same);
  return 1;
}

/* Pushes a list of n integers with the metatable of shapes. They are copied first: they may lie
   in a tensor that the collector frees. */
static void push_ints(lua_State *L, int n, const int64_t *from) {
  int64_t v[DM_MAX_DIM];
  memcpy(v, from, sizeof *v * (size_t)n);
  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    lua_pushinteger(L, v[i]);
    lua_rawseti(L, -2, i + 1);
  }
  if (luaL_newmetatable(L, "demilune.Shape")) {
    lua_pushcfunction(L, shape_tostring);
    lua_setfield(L, -2, "__tostring");
    lua_pushcfunction(L, shape_eq);
    lua_setfield(L, -2, "__eq");
    dm_close_metatable(L, "demilune.Shape");
  }
  lua_setmetatable(L, -2);
}

/* x:size() -> shape; x:size(dim) -> integer. Raises for a dim that x does not have. */
static int tensor_size(lua_State *L) {
  dm_enter(L);
  const dm_Tensor *t = dm_check_tensor(L, 1);
  if (lua_isnoneornil(L, 2)) {
    push_ints(L, t->ndim, t->shape);
    return 1;
  }
  const lua_Integer d = luaL_checkinteger(L, 2);
  const lua_Integer k = d > 0 ? d - 1 : d + t->ndim;
  if (d == 0 || k < 0 || k >= t->ndim)
    return dm_raise_text(L, "size: dim %d is out of range for shape %s (dims count from 1)",
                         (int)d, DM_SHAPE(t));
  lua_pushinteger(L, t->shape[k]);
  return 1;
}

/* x:stride() -> list of strides in elements. */
static int tensor_stride(lua_State *L) {
  const dm_Tensor *t = dm_check_tensor(L, 1);
  push_ints(L, t->ndim, t->stride);
  return 1;
}
/* x:storage_offset() -> elements before x's first one in its memory. */
static int tensor_storage_offset(lua_State *L) {
  lua_pushinteger(L, dm_check_tensor(L, 1)->offset);
  return 1;
}
/* x:dim() -> integer; x:numel() -> number of elements; x:is_contiguous() -> boolean. */
static int tensor_dim(lua_State *L) {
  lua_pushinteger(L, dm_check_tensor(L, 1)->ndim);
  return 1;
}

/* The product of the sizes; 1 for a 0-dim tensor. */
static int tensor_numel(lua_State *L) {
  lua_pushinteger(L, dm_check_tensor(L, 1)->numel);
  return 1;
}

/* Whether elements lie in row-major order without gaps. */
static int tensor_is_contiguous(lua_State *L) {
  lua_pushboolean(L, dm_tensor_is_contiguous(dm_check_tensor(L, 1)));
  return 1;
}
/* x:data_ptr() -> address of the first element as an integer, in the device's memory. */
static int tensor_data_ptr(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)(intptr_t)dm_tensor_data(dm_check_tensor(L, 1)));
  return 1;
}
/* x:_version() -> how many in-place changes x's storage has had, which backward compares. */
static int tensor_version(lua_State *L) {
  lua_pushinteger(L, dm_check_tensor(L, 1)->storage->version);
  return 1;
}
/* x:element_size() -> bytes of an element; x:is_floating_point() -> boolean. */
static int tensor_element_size(lua_State *L) {
  lua_pushinteger(L, dm_dtype_size((dm_DType)dm_check_tensor(L, 1)->dtype));
  return 1;
}

/* True for float16, bfloat16, float32 and float64. */
static int tensor_is_floating_point(lua_State *L) {
  lua_pushboolean(L, dm_is_float((dm_DType)dm_check_tensor(L, 1)->dtype));
  return 1;
}

/* True but for uint8 and bool. */
static int tensor_is_signed(lua_State *L) {
  const dm_DType t = (dm_DType)dm_check_tensor(L, 1)->dtype;
  lua_pushboolean(L, t != DM_U8 && t != DM_BOOL);
  return 1;
}

/* Pushes the tensor t, which is at 1, with its last two dims swapped: of a matrix for T and H,
   of matrices in the last two dims for mT and mH. T and H of fewer dims are x itself. */
static int push_transposed(lua_State *L, State *S, const dm_Tensor *t, const char *key) {
  const bool batch = key[0] == 'm';
  if (t->ndim < 2 && !batch) {
    Handle *b = dm_push_handle(L, S);
    dm_handle_fill(L, S, b, dm_tensor_ref(dm_check_tensor(L, 1)));
    return 1;
  }
  if (t->ndim < 2 || (t->ndim > 2 && !batch))
    return dm_raise_text(L, "%s: x has shape %s, wanted a matrix%s", key, DM_SHAPE(t),
                         batch ? " or several" : "; hint: x.mT, x:permute(...)");
  return dm_push_call(L, S, DM_OP_transpose, 1, &(int){1}, &(dm_TransposeAttr){-2, -1});
}

/* Pushes a tensor on the storage of the one at 1, without history. */
static int push_alias(lua_State *L, State *S) {
  Handle *b = dm_push_handle(L, S);
  dm_Tensor *t = dm_check_tensor(L, 1);
  DM_CHECK_HELD(L, S, 1, &t, dm_tensor_alias(t, &b->t));
  return 1;
}

/* Pushes the property `key` of the tensor t, which is at 1, and returns 1, or returns 0 when
 * there is none of that name. */
static int push_property(lua_State *L, State *S, dm_Tensor *t, const char *key) {
  char name[16];
  if (strcmp(key, "shape") == 0) {
    push_ints(L, t->ndim, t->shape);
  } else if (strcmp(key, "dtype") == 0) {
    lua_pushstring(L, dm_dtype_name((dm_DType)t->dtype));
  } else if (strcmp(key, "device") == 0) {
    lua_pushstring(L, dm_device_name(t->device, name));
  } else if (strcmp(key, "is_cuda") == 0) {
    lua_pushboolean(L, t->device.type == DM_CUDA);
  } else if (strcmp(key, "grad") == 0) {
    dm_leaves_touch(t);
    if (t->grad) dm_push_tensor(L, S, dm_tensor_ref(t->grad));
    else lua_pushnil(L);
  } else if (strcmp(key, "requires_grad") == 0) {
    lua_pushboolean(L, dm_tensor_requires_grad(t));
  } else if (strcmp(key, "is_leaf") == 0) {
    if (t->base) DM_CHECK(L, dm_refresh_view(t));
    lua_pushboolean(L, !t->node);
  } else if (strcmp(key, "is_parameter") == 0) {
    lua_pushboolean(L, t->flags & DM_T_PARAMETER);
  } else if (strcmp(key, "ndim") == 0) {
    lua_pushinteger(L, t->ndim);
  } else if (strcmp(key, "itemsize") == 0) {
    lua_pushinteger(L, dm_dtype_size((dm_DType)t->dtype));
  } else if (strcmp(key, "nbytes") == 0) {
    lua_pushinteger(L, t->numel * dm_dtype_size((dm_DType)t->dtype));
  } else if (strcmp(key, "T") == 0 || strcmp(key, "mT") == 0 || strcmp(key, "H") == 0 ||
             strcmp(key, "mH") == 0) {
    return push_transposed(L, S, t, key);
  } else if (strcmp(key, "data") == 0) {
    push_alias(L, S);
  } else if (strcmp(key, "grad_fn") == 0) {
    if (t->base) DM_CHECK(L, dm_refresh_view(t));
    if (t->node) lua_pushstring(L, dm_node_name(t->node));
    else lua_pushnil(L);
  } else {
    return 0;
  }
  return 1;
}

/* Raises for a name that is neither method nor property, and names the nearest one. */
static int no_such_name(lua_State *L, const char *key) {
  enum { MANY = 1024 };
  const char *best = NULL;
  const char *names[MANY] = {"shape",   "dtype", "device", "grad", "requires_grad",
                             "is_leaf", "data",  "T",      "mT"};
  int n = 9;
  lua_pushnil(L);
  while (lua_next(L, lua_upvalueindex(3)) && n < MANY) {
    names[n++] = lua_tostring(L, -2);
    lua_pop(L, 1);
  }
  if (strcmp(key, "indices") == 0 || strcmp(key, "values") == 0)
    return dm_raise_text(
        L,
        "a tensor has no '%s'; hint: max(dim) and its like return two tensors, "
        "as in local values, indices = x:max(1)",
        key);
  if (strcmp(key, "numpy") == 0)
    return dm_raise_text(L,
                         "a tensor has no 'numpy'; hint: x:totable(), or demilune convert for "
                         "a file that NumPy reads");
  best = dm_nearest(key, n, names);
  if (best) return dm_raise_text(L, "a tensor has no '%s'; did you mean '%s'?", key, best);
  return dm_raise_text(L, "a tensor has no '%s'", key);
}

/* x[key]. Upvalue 3 is the table of methods, which is read raw before anything else. Its own
   __index, where it has one, brings the methods that are written in Lua at the first name that
   is none of those in C. */
static int tensor_index(lua_State *L) {
  /* A method is the most frequent key, so it is looked up before the coroutine is entered. */
  if (lua_type(L, 2) == LUA_TSTRING) {
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(3)) != LUA_TNIL) return 1;
    State *S = dm_enter(L);
    const char *key = dm_word(L, 2);
    if (push_property(L, S, dm_check_tensor(L, 1), key)) return 1;
    if (dm_index_word(key)) return dm_index_get(L);
    if (lua_getfield(L, lua_upvalueindex(3), key) != LUA_TNIL) return 1;
    lua_pop(L, 1);
    return no_such_name(L, key);
  }
  return dm_index_get(L);
}

/* x.grad = tensor or nil. Raises unless the gradient is a float tensor of x's shape on x's
   device. x takes a reference of its own; the old gradient's is given back. */
static int set_grad(lua_State *L, dm_Tensor *t) {
  if (lua_isnil(L, 3)) {
    dm_leaves_drop(t);
    dm_tensor_unref(&t->grad);
    return 0;
  }
  dm_Tensor *g = dm_check_tensor(L, 3);
  if (g == t) return dm_raise_text(L, "grad: a tensor cannot be its own gradient");
  if (!dm_same_shape(g, t))
    return dm_raise_text(L, "grad: a gradient of shape %s for a tensor of shape %s",
                         DM_SHAPE(g), DM_SHAPE(t));
  char a[16], b[16];
  if (!dm_device_eq(g->device, t->device))
    return dm_raise_text(L, "grad: a gradient on %s for a tensor on %s",
                         dm_device_name(g->device, a), dm_device_name(t->device, b));
  if (!dm_is_float((dm_DType)g->dtype))
    return dm_raise_text(L, "grad: a gradient is a float tensor, given %s",
                         dm_dtype_name((dm_DType)g->dtype));
  /* A gradient is a value here: with a history that leads to t (p.grad = p * 2)
     t would hold itself. Only backward{create_graph = true} gives it one. */
  dm_Tensor *mine = NULL;
  if (dm_tensor_requires_grad(g)) DM_CHECK(L, dm_tensor_alias(g, &mine));
  else mine = dm_tensor_ref(g);
  mine->flags |= g->flags & DM_T_SCALED;
  dm_leaves_drop(t);
  dm_tensor_unref(&t->grad);
  t->grad = mine;
  return 0;
}

/* x.data = y: x's storage, shape and dtype become y's; the handle and the gradient stay. A view
   parts from its base. Raises for a tensor that is no leaf. */
static int set_data(lua_State *L, dm_Tensor *t) {
  if (t->base) DM_CHECK(L, dm_refresh_view(t));
  if (t->node) return dm_raise_text(L, "data: only a leaf takes other data");
  const dm_Tensor *from = dm_check_tensor(L, 3);
  if (dm_tensor_requires_grad(t) && !dm_is_float((dm_DType)from->dtype))
    return dm_raise_text(L,
                         "data: a tensor that requires a gradient takes float data, given %s",
                         dm_dtype_name((dm_DType)from->dtype));
  dm_tensor_swap_storage(t, from);
  if (t->base) dm_tensor_unref(&t->base);
  return 0;
}

/* x[key] = value: grad, data and requires_grad by name, elements by any other key. Raises for
   other names. */
static int tensor_newindex(lua_State *L) {
  dm_enter(L);
  if (lua_type(L, 2) != LUA_TSTRING) return dm_index_set(L);
  dm_Tensor *t = dm_check_tensor(L, 1);
  const char *key = dm_word(L, 2);
  if (strcmp(key, "grad") == 0) return set_grad(L, t);
  if (strcmp(key, "data") == 0) return set_data(L, t);
  if (strcmp(key, "requires_grad") == 0) {
    DM_CHECK(L, dm_set_requires_grad(t, lua_toboolean(L, 3)));
    return 0;
  }
  if (dm_index_word(key)) return dm_index_set(L);
  return dm_raise_text(L, "a tensor has no field '%s' to assign (grad, data, requires_grad)",
                       key);
}

/* ---- handles ---- */

/* __gc: gives the reference back where free or a scope has not. */
static int tensor_gc(lua_State *L) {
  Handle *b = dm_handle(L, 1);
  if (b) dm_handle_release(b);
  return 0;
}

/* x:free() and __close: give the memory back at once. Later use of x raises; a second free
   does nothing. */
static int tensor_free(lua_State *L) {
  Handle *b = dm_handle(L, 1);
  if (!b) dm_check_tensor(L, 1);
  else dm_handle_release(b);
  return 0;
}

/* #x -> size of dim 1. Raises on a 0-dim tensor. */
static int tensor_len(lua_State *L) {
  const dm_Tensor *t = dm_check_tensor(L, 1);
  if (t->ndim == 0) return dm_raise_text(L, "#: a 0-dim tensor has no length");
  lua_pushinteger(L, t->shape[0]);
  return 1;
}

/* x == y: whether both handles have the same tensor. Elements are compared by dm.eq. */
static int tensor_eq(lua_State *L) {
  const dm_Tensor *a = dm_to_tensor(L, 1), *b = dm_to_tensor(L, 2);
  lua_pushboolean(L, a && a == b);
  return 1;
}

/* Raises for x < y, as Lua would make one boolean of the result. `0 < x` is how Lua writes
   x > 0; names: the methods for both orders. */
static int no_order(lua_State *L, const char *forward, const char *turned) {
  const bool first = dm_handle(L, 1) != NULL;
  const bool both = first && dm_handle(L, 2);
  luaL_tolstring(L, first ? 2 : 1, NULL);
  return dm_raise_text(L,
                       "a comparison of tensors has no single truth value; hint: x:%s(%s), or "
                       "x:item() for one number",
                       first ? forward : turned, both ? "y" : lua_tostring(L, -1));
}
static int tensor_lt(lua_State *L) { return no_order(L, "lt", "gt"); }
static int tensor_le(lua_State *L) { return no_order(L, "le", "ge"); }

/* x .. text -> string. Two tensors raise, with a hint at dm.cat. */
static int tensor_concat(lua_State *L) {
  if (dm_handle(L, 1) && dm_handle(L, 2))
    return dm_raise_text(L, "..: joins text; hint: dm.cat({x, y})");
  luaL_tolstring(L, 1, NULL);
  luaL_tolstring(L, 2, NULL);
  lua_concat(L, 2);
  return 1;
}

/* The iterator of pairs(x): (x, i) -> i + 1, x[i + 1]; nothing after the last row. */
static int next_row(lua_State *L) {
  State *S = dm_enter(L);
  const dm_Tensor *t = dm_check_tensor(L, 1);
  const lua_Integer i = lua_tointeger(L, 2);
  if (t->ndim == 0 || i < 0 || i >= t->shape[0]) return 0;
  const int64_t attr[2] = {0, i};
  lua_pushinteger(L, i + 1);
  dm_push_call(L, S, DM_OP_select, 1, &(int){1}, attr);
  return 2;
}

/* pairs(x) -> iterator over i, x[i] along dim 1. */
static int tensor_pairs(lua_State *L) {
  dm_check_tensor(L, 1);
  lua_pushvalue(L, lua_upvalueindex(UP_STATE));
  lua_pushvalue(L, lua_upvalueindex(UP_META));
  lua_pushcclosure(L, next_row, 2);
  lua_pushvalue(L, 1);
  lua_pushinteger(L, 0);
  return 3;
}

/* Off the CPU channels last is a layout of the engine's choice, which the caller does not see:
   where its strides do not allow the view, it is one of a copy, as in other sizes. */
static dm_status view_dtype(dm_Tensor *t, dm_DType dtype, dm_Tensor **out) {
  const bool scales = dm_dtype_size((dm_DType)t->dtype) != dm_dtype_size(dtype);
  if (t->device.type == DM_CPU || !scales || !dm_tensor_is_channels_last(t))
    return dm_tensor_view_dtype(t, dtype, out);
  dm_Tensor *dense;
  DM_TRY(dm_dense_new(t, &dense));
  const dm_status st = dm_tensor_view_dtype(dense, dtype, out);
  dm_tensor_unref(&dense);
  return st;
}

/* x:view(dtype) or x:view{dtype =} -> a tensor that reads x's bytes as elements of that dtype,
   on x's storage, without history. Raises where sizes or strides do not allow it. */
int dm_view_dtype(lua_State *L) {
  static const char *const names[] = {"input", "dtype"};
  State *S = dm_enter(L);
  dm_position_options(L, "view", DM_COUNT(names), names);
  dm_Tensor *t = dm_check_tensor(L, 1);
  const dm_DType dtype = dm_check_dtype(L, 2);
  Handle *h = dm_push_handle(L, S);
  t = dm_check_tensor(L, 1);
  DM_CHECK_HELD(L, S, 1, &t, view_dtype(t, dtype, &h->t));
  return 1;
}

/* x:detach() -> a tensor on x's storage without history. */
static int tensor_detach(lua_State *L) { return push_alias(L, dm_enter(L)); }

/* x:detach_() -> x, which loses its history. */
static int tensor_detach_(lua_State *L) {
  dm_enter(L);
  dm_detach_(dm_check_tensor(L, 1));
  lua_settop(L, 1);
  return 1;
}

/* x:requires_grad_(flag = true) -> x. Raises where the engine refuses, as for integers. */
static int tensor_requires_grad_(lua_State *L) {
  dm_enter(L);
  DM_CHECK(L, dm_set_requires_grad(dm_check_tensor(L, 1),
                                   lua_isnone(L, 2) ? true : lua_toboolean(L, 2)));
  lua_settop(L, 1);
  return 1;
}

/* The arguments of x:to. */
typedef struct Target {
  int64_t dtype, device, non_blocking; /* as the op `to` takes them */
  bool copy;                           /* even when nothing changes */
} Target;

/* Changes `to` by the options table at i of x:to. Raises on unknown options. */
static void read_target_options(lua_State *L, int i, Target *to) {
  static const char *const names[] = {"dtype", "device", "non_blocking", "copy"};
  dm_check_options(L, "to", i, DM_COUNT(names), names);
  if (dm_option(L, i, "dtype") != LUA_TNIL) to->dtype = dm_check_dtype(L, -1);
  lua_pop(L, 1);
  const int64_t device = device_option(L, i);
  if (device >= 0) to->device = device;
  to->non_blocking = dm_option_bool(L, i, "non_blocking", to->non_blocking);
  to->copy = dm_option_bool(L, i, "copy", to->copy);
}

/* x:to("float16"), x:to("cuda"), x:to(other), x:to{dtype=, device=, non_blocking=, copy=}: x
   itself where that changes nothing, unless `copy`. Differentiable. A copy to the host always
   waits; one to a device runs while the script goes on where memory is pinned and
   non_blocking is set. */
int dm_tensor_to(lua_State *L) {
  State *S = dm_enter(L);
  const dm_Tensor *t = dm_check_tensor(L, 1);
  Target to = {t->dtype, dm_device_code(t->device), false, false};
  for (int i = 2; i <= lua_gettop(L); i++) {
    const dm_Tensor *like = dm_to_tensor(L, i);
    if (like) {
      to.dtype = like->dtype;
      to.device = dm_device_code(like->device);
    } else if (lua_type(L, i) == LUA_TSTRING) {
      const dm_DType d = dm_dtype_find(dm_word(L, i));
      if (d != DM_NO_DTYPE) to.dtype = d;
      else to.device = dm_device_code(dm_check_device(L, i));
    } else if (lua_istable(L, i)) {
      read_target_options(L, i, &to);
    } else if (!lua_isnil(L, i)) {
      return dm_raise_text(
          L, "to: dtype, device or tensor expected, got %s%s", luaL_typename(L, i),
          luaL_testudata(L, i, "demilune.Scope")
              ? "; hint: a device is a string, \"cuda\"; dm.device opens a scope"
              : "");
    }
  }
  t = dm_check_tensor(L, 1); /* a table of options may have a metatable, and so call Lua */
  const int x = 1;
  if (to.device != dm_device_code(t->device)) return dm_push_call(L, S, DM_OP_to, 1, &x, &to);
  if (to.dtype != t->dtype) return dm_push_call(L, S, DM_OP_cast, 1, &x, &to.dtype);
  if (to.copy) return dm_push_call(L, S, DM_OP_clone, 1, &x, NULL);
  lua_settop(L, 1);
  return 1;
}

/* x:float(), x:half() and the like: x:to(name), where the name is upvalue 3. Each gives x
   itself where nothing changes, and is differentiable between floats. */
static int tensor_to_dtype(lua_State *L) {
  lua_settop(L, 1);
  lua_pushvalue(L, lua_upvalueindex(3));
  return dm_tensor_to(L);
}
static int tensor_cpu(lua_State *L) {
  lua_settop(L, 1);
  lua_pushliteral(L, "cpu");
  return dm_tensor_to(L);
}
/* x:cuda(), x:cuda("cuda:1"), x:cuda{non_blocking = true} */
static int tensor_cuda(lua_State *L) {
  dm_check_tensor(L, 1); /* lua_insert wants something below */
  if (lua_type(L, 2) != LUA_TSTRING) {
    lua_pushliteral(L, "cuda");
    lua_insert(L, 2);
  }
  return dm_tensor_to(L);
}
/* x:type_as(other): x in other's dtype and on its device. */
static int tensor_type_as(lua_State *L) {
  dm_check_tensor(L, 2);
  lua_settop(L, 2);
  return dm_tensor_to(L);
}

/* x:equal(y) -> boolean: same shape and all elements equal. The handles of the two steps are
   released before it returns. */
static int tensor_equal(lua_State *L) {
  State *S = dm_enter(L);
  Handle *eq = dm_push_own(L, S), *all = dm_push_own(L, S);
  dm_Tensor *in[2] = {dm_check_tensor(L, 1), dm_check_tensor(L, 2)};
  if (!dm_same_shape(in[0], in[1])) {
    lua_pushboolean(L, false);
    return 1;
  }
  DM_CHECK_HELD(L, S, 2, in, dm_call(DM_OP_eq, 2, in, NULL, &eq->t));
  DM_CHECK_TWICE(L, S, dm_call(DM_OP_all, 1, &eq->t, NULL, &all->t));
  char truth;
  DM_CHECK(L, dm_tensor_read(all->t, 1, &truth));
  push_element(L, DM_BOOL, &truth);
  dm_handle_release(eq);
  dm_handle_release(all);
  return 1;
}

/* x:allclose(y, {rtol =, atol =, equal_nan =}) -> boolean: isclose holds for every
   element. */
static int tensor_allclose(lua_State *L) {
  State *S = dm_enter(L);
  luaL_checkany(L, 1);
  dm_push_form(L, S, dm_op_closure, DM_OP_isclose, false);
  lua_insert(L, 1);
  lua_call(L, lua_gettop(L) - 1, 1);
  Handle *all = dm_push_own(L, S);
  dm_Tensor *close = dm_check_tensor(L, 1);
  DM_CHECK_HELD(L, S, 1, &close, dm_call(DM_OP_all, 1, &close, NULL, &all->t));
  char truth;
  DM_CHECK(L, dm_tensor_read(all->t, 1, &truth));
  push_element(L, DM_BOOL, &truth);
  dm_handle_release(dm_handle(L, 1));
  dm_handle_release(all);
  return 1;
}

/* dm.is_tensor(value) -> boolean; true also for a freed tensor. */
static int is_tensor(lua_State *L) {
  lua_pushboolean(L, dm_handle(L, 1) != NULL);
  return 1;
}

/* parameter(t, requires_grad = true) -> t, marked as a parameter of a module; it leaves its
   scope. A parameter is a leaf: of a tensor that is none, one without history on its memory. */
static int make_parameter(lua_State *L) {
  State *const S = dm_enter(L);
  dm_Tensor *t = dm_check_tensor(L, 1);
  const bool on = lua_isnoneornil(L, 2) ? true : lua_toboolean(L, 2);
  if (t->base) DM_CHECK(L, dm_refresh_view(t));
  if (t->node) {
    push_alias(L, S);
    lua_replace(L, 1);
    t = dm_check_tensor(L, 1);
  }
  DM_CHECK(L, dm_set_requires_grad(t, on));
  t->flags |= DM_T_PARAMETER;
  dm_handle_keep(dm_handle(L, 1));
  lua_settop(L, 1);
  return 1;
}

/* Functions of the module, next to those that the op table gives. */
const luaL_Reg dm_tensor_functions[] = {
    {"detach", tensor_detach},     {"tensor", tensor_new},      {"is_tensor", is_tensor},
    {"parameter", make_parameter}, {"equal", tensor_equal},     {"numel", tensor_numel},
    {"allclose", tensor_allclose}, {"index_put", dm_index_put}, {NULL, NULL}};

/* Methods of tensors, next to those of the op table. */
const luaL_Reg dm_tensor_methods[] = {{"item", tensor_item},
                                      {"totable", tensor_totable},
                                      {"size", tensor_size},
                                      {"stride", tensor_stride},
                                      {"storage_offset", tensor_storage_offset},
                                      {"dim", tensor_dim},
                                      {"ndimension", tensor_dim},
                                      {"numel", tensor_numel},
                                      {"nelement", tensor_numel},
                                      {"is_contiguous", tensor_is_contiguous},
                                      {"data_ptr", tensor_data_ptr},
                                      {"element_size", tensor_element_size},
                                      {"is_floating_point", tensor_is_floating_point},
                                      {"is_signed", tensor_is_signed},
                                      {"_version", tensor_version},
                                      {"free", tensor_free},
                                      {"detach", tensor_detach},
                                      {"detach_", tensor_detach_},
                                      {"requires_grad_", tensor_requires_grad_},
                                      {"to", dm_tensor_to},
                                      {"cpu", tensor_cpu},
                                      {"cuda", tensor_cuda},
                                      {"type_as", tensor_type_as},
                                      {"equal", tensor_equal},
                                      {"allclose", tensor_allclose},
                                      {"index_put", dm_index_put},
                                      {"index_put_", dm_index_put_},
                                      {NULL, NULL}};

/* Arithmetic is not here: __add and its like are ops too, see module.c. */
const luaL_Reg dm_tensor_metamethods[] = {{"__newindex", tensor_newindex},
                                          {"__gc", tensor_gc},
                                          {"__close", tensor_free},
                                          {"__len", tensor_len},
                                          {"__eq", tensor_eq},
                                          {"__lt", tensor_lt},
                                          {"__le", tensor_le},
                                          {"__concat", tensor_concat},
                                          {"__pairs", tensor_pairs},
                                          {"__tostring", dm_tensor_tostring},
                                          {"__index", tensor_index},
                                          {NULL, NULL}};

/* The first two upvalues are those of dm_set_functions. */
void dm_set_casts(lua_State *L, State *S) {
  for (int d = 0; d < DM_N_DTYPE; d++) {
    if (!dm_dtypes[d].method) continue;
    lua_pushlightuserdata(L, S);
    luaL_getmetatable(L, "demilune.Tensor");
    lua_pushstring(L, dm_dtypes[d].name);
    lua_pushcclosure(L, tensor_to_dtype, 3);
    lua_setfield(L, -2, dm_dtypes[d].method);
  }
}
