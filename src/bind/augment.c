/* The engine's transforms of images for Lua: demilune.transforms makes the tables with
   options, this file turns them into dm_Transform rows once, and the threads of a loader
   apply the list without Lua. The numbers of a transform (means, fills) are in userdata on
   the stack until dm_augment_new has copied them.

   A userdata "demilune.Augment" owns a dm_Augment. The tables of transforms, which
   the classes of demilune.transforms make, are read once; after that an image is
   transformed without Lua, which is what lets the loader's threads do it. */
#include <string.h>

#include "base/error.h"
#include "bind/bind.h"
#include "data/crop.h"

static const dm_Device cpu = {.type = DM_CPU};

static const char *const filters[] = {"nearest", "bilinear", "bicubic", NULL};
static const char *const adjusts[DM_ADJUST_N] = {
    "brightness", "contrast", "saturation", "hue",          "sharpness",
    "posterize",  "solarize", "invert",     "autocontrast", "equalize"};
static const char *const pad_modes[] = {"constant", "edge", "reflect", "symmetric", NULL};

/* The position of t[key] among n names; 0 when it is nil. */
static int read_name(lua_State *L, int t, const char *key, int n, const char *const *names) {
  int at = 0;
  if (lua_getfield(L, t, key) != LUA_TNIL) {
    const char *name = luaL_checkstring(L, -1);
    while (at < n && strcmp(name, names[at]) != 0) at++;
    if (at == n) dm_raise_text(L, "transforms: %s is '%s'", key, name);
  }
  lua_pop(L, 1);
  return at;
}

/* The number t[key], 0 for nil; read_integer and read_int likewise read integers. Raise on
   other types. */
static double read_number(lua_State *L, int t, const char *key) {
  const double v = lua_getfield(L, t, key) == LUA_TNIL ? 0 : luaL_checknumber(L, -1);
  lua_pop(L, 1);
  return v;
}

static int64_t read_integer(lua_State *L, int t, const char *key) {
  const int64_t v = lua_getfield(L, t, key) == LUA_TNIL ? 0 : luaL_checkinteger(L, -1);
  lua_pop(L, 1);
  return v;
}

static int read_int(lua_State *L, int t, const char *key) { /* too large stays too large */
  return (int)dm_max_i64(-1, dm_min_i64(read_integer(L, t, key), INT32_MAX));
}

/* Copies the first numbers of the list t[key] to dst, at most `most`, and returns how
   many. */
static int read_list(lua_State *L, int t, const char *key, double *dst, int most) {
  int n = 0;
  if (lua_getfield(L, t, key) == LUA_TTABLE)
    for (; n < most && lua_rawgeti(L, -1, n + 1) != LUA_TNIL; n++) {
      dst[n] = luaL_checknumber(L, -1);
      lua_pop(L, 1);
    }
  lua_settop(L, t);
  return n;
}

/* The list t[key] as float32, in a userdata that is left on the stack. */
static const float *push_floats(lua_State *L, int t, const char *key, int *n) {
  double numbers[DM_TRANSFORM_MAX_CHANNELS + 1];
  const int count = read_list(L, t, key, numbers, DM_COUNT(numbers));
  float *to = lua_newuserdatauv(L, sizeof *to * DM_COUNT(numbers), 0);
  for (int i = 0; i < DM_COUNT(numbers); i++) to[i] = i < count ? (float)numbers[i] : 0;
  if (n) *n = count;
  return to;
}

/* Reads the transform in the table on top, which the two userdata of its numbers replace.
   Raises on an unknown kind or word. */
static void read_transform(lua_State *L, dm_Transform *s) {
  const int t = lua_gettop(L);
  double pad[4] = {0};
  const char *kind = lua_getfield(L, t, "kind") == LUA_TSTRING ? lua_tostring(L, -1) : "?";
  int k = 0;
  while (k < DM_TRANSFORM_N_KINDS && strcmp(kind, dm_transform_name((dm_TransformKind)k)) != 0)
    k++;
  if (k == DM_TRANSFORM_N_KINDS)
    dm_raise_text(L, "transforms: no transform is called '%s'", kind);
  lua_pop(L, 1);
  *s = (dm_Transform){
      .kind = (dm_TransformKind)k,
      .p = read_number(L, t, "p"),
      .height = read_integer(L, t, "height"),
      .width = read_integer(L, t, "width"),
      .max_size = read_integer(L, t, "max_size"),
      .pad_mode =
          (dm_PadMode)read_name(L, t, "padding_mode", DM_COUNT(pad_modes) - 1, pad_modes),
      .channels = read_integer(L, t, "channels"),
      .adjust = (dm_Adjust)read_name(L, t, "adjust", DM_ADJUST_N, adjusts),
      .much = read_number(L, t, "much"),
      .count = read_int(L, t, "count"),
      .magnitude = read_int(L, t, "magnitude"),
      .bins = read_int(L, t, "bins"),
      .at_corner = dm_option_bool(L, t, "at_corner", false),
      .noise = dm_option_bool(L, t, "noise", false),
      .pad_if_needed = dm_option_bool(L, t, "pad_if_needed", false),
      .filter = (dm_Filter)read_name(L, t, "interpolation", DM_COUNT(filters) - 1, filters),
  };
  read_list(L, t, "pad", pad, 4);
  for (int i = 0; i < 4; i++) s->pad[i] = (int64_t)pad[i];
  read_list(L, t, "area", s->area, 2);
  read_list(L, t, "ratio", s->ratio, 2);
  read_list(L, t, "degrees", s->degrees, 2);
  read_list(L, t, "zoom", s->zoom, 2);
  read_list(L, t, "shear", s->shear, 4);
  read_list(L, t, "move", s->move, 2);
  read_list(L, t, "jitter", s->jitter[0], 2 * DM_TRANSFORM_N_JITTER);
  s->values = push_floats(L, t, "values", &s->n_values);
  lua_insert(L, t);
  s->deviations = push_floats(L, t + 1, "deviations", NULL);
  lua_replace(L, t + 1);
}

/* The pointer lives as long as the userdata, which the caller must keep. */
const dm_Augment *dm_check_augment(lua_State *L, int i) {
  const dm_Augment *a = *(dm_Augment **)luaL_checkudata(L, i, "demilune.Augment");
  luaL_argcheck(L, a != NULL, i, "the list was freed");
  return a;
}

/* __gc: frees the list. A loader that uses it holds the userdata. */
static int augment_gc(lua_State *L) {
  dm_augment_free(luaL_checkudata(L, 1, "demilune.Augment"));
  return 0;
}

/* augment({{kind = "Resize", height = 8, ...}, ...}) -> the list; nil and a message when
   these transforms are not possible, or not in this order. */
static int augment_new(lua_State *L) {
  dm_enter(L);
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  const lua_Integer n = (lua_Integer)luaL_len(L, 1);
  /* Each transform leaves two userdata on the stack, its numbers, until all are copied. */
  luaL_checkstack(L, (int)dm_min_i64(n, 4096) * 2 + 8, "transforms: too many of them");
  dm_Augment **a = lua_newuserdatauv(L, sizeof *a, 0);
  *a = NULL;
  luaL_setmetatable(L, "demilune.Augment");
  dm_Transform *list = lua_newuserdatauv(L, sizeof *list * (size_t)(n + 1), 0);
  for (lua_Integer i = 0; i < n; i++) {
    lua_rawgeti(L, 1, i + 1);
    luaL_checktype(L, -1, LUA_TTABLE);
    read_transform(L, &list[i]);
  }
  const dm_status st = dm_augment_new(a, list, (int)n);
  if (st == DM_EARG) {
    lua_pushnil(L);
    lua_pushstring(L, dm_error());
    return 2;
  }
  DM_CHECK(L, st);
  lua_settop(L, 2);
  return 1;
}

/* list:dtype() -> dtype of its results: "uint8" or "float32". */
static int augment_dtype(lua_State *L) {
  lua_pushstring(L, dm_dtype_name(dm_augment_dtype(dm_check_augment(L, 1))));
  return 1;
}

/* list:shape(channels, height, width) -> the shape of the result; -1 stands for a size that
   is not known. Raises for an image that a transform refuses. */
static int augment_shape(lua_State *L) {
  dm_enter(L);
  int64_t shape[3];
  for (int d = 0; d < 3; d++) shape[d] = luaL_checkinteger(L, 2 + d);
  DM_CHECK(L, dm_augment_shape(dm_check_augment(L, 1), shape));
  for (int d = 0; d < 3; d++) lua_pushinteger(L, shape[d]);
  return 3;
}

/* Applies the list to every image of a batch with the same draw. */
static dm_status apply_all(const dm_Augment *a, const dm_Tensor *in, uint64_t draw,
                           dm_Tensor *out) {
  const int d = in->ndim - 3;
  const int64_t *size = in->shape + d, *step = in->stride + d;
  const int64_t n = d ? in->shape[0] : 1;
  const int64_t bytes = n ? dm_tensor_bytes(out) / n : 0;
  for (int64_t i = 0; i < n; i++) {
    const dm_Image image = {size[0],
                            size[1],
                            size[2],
                            step[0],
                            step[1],
                            step[2],
                            (uint8_t *)dm_tensor_data(in) + (d ? i * in->stride[0] : 0)};
    DM_TRY(dm_augment_apply(a, &image, draw, (uint8_t *)dm_tensor_data(out) + i * bytes));
  }
  return DM_OK;
}

/* *out = a new tensor of that shape with the results of apply_all. */
static dm_status apply_new(const dm_Augment *a, const dm_Tensor *in, const int64_t *shape,
                           uint64_t draw, dm_Tensor **out) {
  DM_TRY(dm_tensor_new(dm_augment_dtype(a), in->ndim, shape, cpu, out));
  const dm_status st = apply_all(a, in, draw, *out);
  if (st != DM_OK) dm_tensor_unref(out);
  return st;
}

/* list:apply(uint8 tensor (C,H,W) or (N,C,H,W), draw) -> the result, (C,H,W) or (N,C,H,W).
   draw is an integer that all random numbers follow from. */
static int augment_apply(lua_State *L) {
  State *S = dm_enter(L);
  const dm_Augment *a = dm_check_augment(L, 1);
  const uint64_t draw = (uint64_t)luaL_checkinteger(L, 3);
  Handle *handle = dm_push_handle(L, S);
  dm_Tensor *in = dm_check_tensor(L, 2);
  if (in->dtype != DM_U8 || in->device.type != DM_CPU || in->ndim < 3 || in->ndim > 4)
    return dm_raise_text(L, "transforms: got %s %s, wanted uint8 {C, H, W} on the CPU",
                         dm_dtype_name((dm_DType)in->dtype), DM_SHAPE(in));
  const int d = in->ndim - 3;
  int64_t shape[4] = {in->shape[0]};
  memcpy(shape + d, in->shape + d, 3 * sizeof *shape);
  DM_CHECK(L, dm_augment_shape(a, shape + d));
  /* References: the attempts may collect, and a finalizer may free what is read or written. */
  dm_Tensor *out = NULL;
  DM_CHECK_HELD(L, S, 1, &in, apply_new(a, in, shape, draw, &out));
  handle->t = out;
  return 1;
}

/* Sets key of the table on top to a list of n integers. */
static void set_integers(lua_State *L, const char *key, const int64_t *list, int n) {
  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    lua_pushinteger(L, list[i]);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, key);
}

/* Sets key of the table on top to a boolean. */
static void set_flag(lua_State *L, const char *key, bool flag) {
  lua_pushboolean(L, flag);
  lua_setfield(L, -2, key);
}

/* list:plan(height, width, draw) -> the effect of its last transform on such an image, for
   tensors of other dtypes and devices: {pad = {left, top, right, bottom}, box = {top, left,
   height, width} of the padded image, top and left from 1, size = {height, width}, mirror =,
   reverse =, grey = booleans, {name, factor}, ...} */
static int augment_plan(lua_State *L) {
  dm_enter(L);
  const dm_Augment *a = dm_check_augment(L, 1);
  const int64_t height = luaL_checkinteger(L, 2), width = luaL_checkinteger(L, 3);
  dm_TransformPlan p;
  DM_CHECK(L, dm_augment_plan(a, (uint64_t)luaL_checkinteger(L, 4), height, width, &p));
  lua_newtable(L);
  set_integers(L, "pad", p.pad, 4);
  set_integers(L, "box", (const int64_t[4]){p.top + 1, p.left + 1, p.height, p.width}, 4);
  set_integers(L, "size", (const int64_t[2]){p.to_height, p.to_width}, 2);
  set_flag(L, "mirror", p.mirror);
  set_flag(L, "reverse", p.reverse);
  set_flag(L, "grey", p.grey);
  for (int i = 0; i < p.n_adjust; i++) {
    lua_createtable(L, 2, 0);
    lua_pushstring(L, adjusts[p.adjust[i]]);
    lua_rawseti(L, -2, 1);
    lua_pushnumber(L, p.much[i]);
    lua_rawseti(L, -2, 2);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* list:boxes(height, width, draw) -> {{top, left, height, width}, ...}, top and left from 1:
   the boxes that its last transform covers in such an image, empty ones aside */
static int augment_boxes(lua_State *L) {
  const dm_Augment *a = dm_check_augment(L, 1);
  const int64_t height = luaL_checkinteger(L, 2), width = luaL_checkinteger(L, 3);
  const uint64_t draw = (uint64_t)luaL_checkinteger(L, 4);
  const int most = dm_augment_boxes(a, draw, height, width, NULL, 0);
  int64_t(*boxes)[4] = lua_newuserdatauv(L, sizeof *boxes * (size_t)(most + 1), 0);
  const int n = dm_augment_boxes(a, draw, height, width, boxes, most);
  lua_Integer shown = 0;
  lua_newtable(L);
  for (int i = 0; i < n; i++) {
    const int64_t *b = boxes[i];
    if (b[2] <= b[0] || b[3] <= b[1]) continue;
    lua_createtable(L, 4, 0);
    const int64_t box[4] = {b[0] + 1, b[1] + 1, b[2] - b[0], b[3] - b[1]};
    for (int k = 0; k < 4; k++) {
      lua_pushinteger(L, box[k]);
      lua_rawseti(L, -2, k + 1);
    }
    lua_rawseti(L, -2, ++shown);
  }
  return 1;
}

/* ---- the arithmetic of one axis ---- */

/* The integer at i, the side of an image; raises unless it is 1 to 2^31 - 1. */
static int64_t check_side(lua_State *L, int i) {
  const lua_Integer n = luaL_checkinteger(L, i);
  if (n < 1 || n > INT32_MAX) dm_raise_text(L, "transforms: a side of %I", (LUAI_UACINT)n);
  return n;
}

/* _resize_weights(n_out, n_in, "bilinear" or "bicubic") -> float64 (n_out, n_in) */
static int resize_weights(lua_State *L) {
  State *S = dm_enter(L);
  const int64_t shape[2] = {check_side(L, 1), check_side(L, 2)};
  const int filter = luaL_checkoption(L, 3, NULL, filters);
  Handle *handle = dm_push_handle(L, S);
  DM_CHECK_TWICE(L, S, dm_tensor_new(DM_F64, 2, shape, cpu, &handle->t));
  double *weights = dm_tensor_data(handle->t);
  dm_resize_weights(weights, shape[0], shape[1], (dm_Filter)filter);
  return 1;
}

/* _resize_nearest(n_out, n_in) -> int64 (n_out): positions from 1 */
static int resize_nearest(lua_State *L) {
  State *S = dm_enter(L);
  const int64_t n_out = check_side(L, 1), n_in = check_side(L, 2);
  Handle *handle = dm_push_handle(L, S);
  DM_CHECK_TWICE(L, S, dm_tensor_new(DM_I64, 1, &n_out, cpu, &handle->t));
  int64_t *at = dm_tensor_data(handle->t);
  dm_resize_nearest(at, n_out, n_in);
  for (int64_t i = 0; i < n_out; i++) at[i]++;
  return 1;
}

/* _pad_positions(n, before, after, mode) -> int64 (before + n + after): positions from 1 */
static int pad_positions(lua_State *L) {
  State *S = dm_enter(L);
  const int64_t n = check_side(L, 1), before = luaL_checkinteger(L, 2);
  const int64_t n_out = before + n + luaL_checkinteger(L, 3);
  const int mode = luaL_checkoption(L, 4, NULL, pad_modes);
  Handle *handle = dm_push_handle(L, S);
  DM_CHECK_TWICE(L, S, dm_tensor_new(DM_I64, 1, &n_out, cpu, &handle->t));
  int64_t *at = dm_tensor_data(handle->t);
  for (int64_t i = 0; i < n_out; i++)
    at[i] = dm_pad_source(i - before, n, (dm_PadMode)mode) + 1;
  return 1;
}

/* Makes the metatable of the userdata; the registry keeps it. */
void dm_register_augment(lua_State *L, State *S) {
  static const luaL_Reg methods[] = {{"dtype", augment_dtype},
                                     {"shape", augment_shape},
                                     {"apply", augment_apply},
                                     {"plan", augment_plan},
                                     {"boxes", augment_boxes},
                                     {"__gc", augment_gc},
                                     {NULL, NULL}};
  dm_register_class(L, "demilune.Augment", methods, S);
}

/* The names with an underscore serve demilune.transforms, for tensors that the C code
   does not transform. */
const luaL_Reg dm_augment_functions[] = {{"augment", augment_new},
                                         {"_resize_weights", resize_weights},
                                         {"_resize_nearest", resize_nearest},
                                         {"_pad_positions", pad_positions},
                                         {NULL, NULL}};
