/* The steps that C does to pictures, for Lua: demilune.transforms makes the lists. */
#include <string.h>

#include "base/error.h"
#include "bind/bind.h"
#include "data/augment.h"

static const char *const filters[] = {"nearest", "bilinear", "bicubic"};
static const char *const adjusts[DM_ADJUST_N] = {
    "brightness", "contrast", "saturation", "hue",          "sharpness",
    "posterize",  "solarize", "invert",     "autocontrast", "equalize"};
static const char *const pad_modes[] = {"constant", "edge", "reflect", "symmetric"};

/* The place of t[key] among n names; 0 when it is nil. */
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

/* The first of the numbers of the list t[key] into dst, at most `most`; how many. */
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
  double numbers[DM_AUGMENT_MAX_CHANNELS + 1];
  const int count = read_list(L, t, key, numbers, DM_COUNT(numbers));
  float *to = lua_newuserdatauv(L, sizeof *to * DM_COUNT(numbers), 0);
  for (int i = 0; i < DM_COUNT(numbers); i++) to[i] = i < count ? (float)numbers[i] : 0;
  if (n) *n = count;
  return to;
}

/* The step in the table on top; its numbers' userdata take the table's place. */
static void read_step(lua_State *L, dm_AugmentStep *s) {
  const int t = lua_gettop(L);
  double pad[4] = {0};
  const char *kind = lua_getfield(L, t, "kind") == LUA_TSTRING ? lua_tostring(L, -1) : "?";
  int k = 0;
  while (k < DM_AUGMENT_N_KINDS && strcmp(kind, dm_augment_name((dm_AugmentKind)k)) != 0) k++;
  if (k == DM_AUGMENT_N_KINDS) dm_raise_text(L, "transforms: no step is called '%s'", kind);
  lua_pop(L, 1);
  *s = (dm_AugmentStep){
      .kind = (dm_AugmentKind)k,
      .p = read_number(L, t, "p"),
      .height = read_integer(L, t, "height"),
      .width = read_integer(L, t, "width"),
      .max_size = read_integer(L, t, "max_size"),
      .pad_mode = (dm_PadMode)read_name(L, t, "padding_mode", DM_COUNT(pad_modes), pad_modes),
      .channels = read_integer(L, t, "channels"),
      .adjust = (dm_Adjust)read_name(L, t, "adjust", DM_ADJUST_N, adjusts),
      .much = read_number(L, t, "much"),
      .count = read_int(L, t, "count"),
      .magnitude = read_int(L, t, "magnitude"),
      .bins = read_int(L, t, "bins"),
      .noise = dm_option_bool(L, t, "noise", false),
      .pad_if_needed = dm_option_bool(L, t, "pad_if_needed", false),
      .filter = (dm_Filter)read_name(L, t, "interpolation", DM_COUNT(filters), filters),
  };
  read_list(L, t, "pad", pad, 4);
  for (int i = 0; i < 4; i++) s->pad[i] = (int64_t)pad[i];
  read_list(L, t, "area", s->area, 2);
  read_list(L, t, "ratio", s->ratio, 2);
  read_list(L, t, "degrees", s->degrees, 2);
  read_list(L, t, "zoom", s->zoom, 2);
  read_list(L, t, "shear", s->shear, 4);
  read_list(L, t, "move", s->move, 2);
  read_list(L, t, "jitter", s->jitter[0], 2 * DM_AUGMENT_N_JITTER);
  s->values = push_floats(L, t, "values", &s->n_values);
  lua_insert(L, t);
  s->deviations = push_floats(L, t + 1, "deviations", NULL);
  lua_replace(L, t + 1);
}

const dm_Augment *dm_check_augment(lua_State *L, int i) {
  dm_Augment **a = luaL_checkudata(L, i, "demilune.Augment");
  return *a;
}

static int augment_gc(lua_State *L) {
  dm_augment_free(luaL_checkudata(L, 1, "demilune.Augment"));
  return 0;
}

/* augment({{kind = "Resize", height = 8, ...}, ...}) -> the steps, to be run; nil and why
   when C does not do them, or not in this order */
static int augment_new(lua_State *L) {
  dm_enter(L);
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  const lua_Integer n = (lua_Integer)luaL_len(L, 1);
  luaL_checkstack(L, (int)dm_min_i64(n, 4096) * 2 + 8, "transforms: too many steps");
  dm_Augment **a = lua_newuserdatauv(L, sizeof *a, 0);
  *a = NULL;
  luaL_setmetatable(L, "demilune.Augment");
  dm_AugmentStep *steps = lua_newuserdatauv(L, sizeof *steps * (size_t)(n + 1), 0);
  for (lua_Integer i = 0; i < n; i++) {
    lua_rawgeti(L, 1, i + 1);
    luaL_checktype(L, -1, LUA_TTABLE);
    read_step(L, &steps[i]);
  }
  const dm_status st = dm_augment_new(a, steps, (int)n);
  if (st == DM_EARG) {
    lua_pushnil(L);
    lua_pushstring(L, dm_error());
    return 2;
  }
  DM_CHECK(L, st);
  lua_settop(L, 2);
  return 1;
}

/* steps:dtype() -> of what they make */
static int augment_dtype(lua_State *L) {
  lua_pushstring(L, dm_dtype_name(dm_augment_dtype(dm_check_augment(L, 1))));
  return 1;
}

/* steps:shape(channels, height, width), -1 what is not known -> the same of what they make */
static int augment_shape(lua_State *L) {
  dm_enter(L);
  int64_t shape[3];
  for (int d = 0; d < 3; d++) shape[d] = luaL_checkinteger(L, 2 + d);
  DM_CHECK(L, dm_augment_shape(dm_check_augment(L, 1), shape));
  for (int d = 0; d < 3; d++) lua_pushinteger(L, shape[d]);
  return 3;
}

/* Every picture of a batch with the same draw. */
static dm_status apply_all(const dm_Augment *a, const dm_Tensor *in, uint64_t draw,
                           dm_Tensor *out) {
  const int d = in->ndim - 3;
  const int64_t *size = in->shape + d, *step = in->stride + d;
  const int64_t n = d ? in->shape[0] : 1;
  const int64_t bytes = n ? dm_tensor_bytes(out) / n : 0;
  for (int64_t i = 0; i < n; i++) {
    const dm_Image picture = {size[0],
                              size[1],
                              size[2],
                              step[0],
                              step[1],
                              step[2],
                              (uint8_t *)dm_tensor_data(in) + (d ? i * in->stride[0] : 0)};
    DM_TRY(dm_augment_apply(a, &picture, draw, (uint8_t *)dm_tensor_data(out) + i * bytes));
  }
  return DM_OK;
}

/* steps:apply(uint8 tensor (C,H,W) or (N,C,H,W), draw) -> what they make of it */
static int augment_apply(lua_State *L) {
  State *S = dm_enter(L);
  const dm_Augment *a = dm_check_augment(L, 1);
  const dm_Tensor *in = dm_check_tensor(L, 2);
  const uint64_t draw = (uint64_t)luaL_checkinteger(L, 3);
  if (in->dtype != DM_U8 || in->device.type != DM_CPU || in->ndim < 3 || in->ndim > 4)
    return dm_raise_text(L, "transforms: got %s %s, wanted uint8 {C, H, W} on the CPU",
                         dm_dtype_name((dm_DType)in->dtype), DM_SHAPE(in));
  const int d = in->ndim - 3;
  int64_t shape[4] = {in->shape[0]};
  memcpy(shape + d, in->shape + d, 3 * sizeof *shape);
  DM_CHECK(L, dm_augment_shape(a, shape + d));
  Handle *handle = dm_push_handle(L, S);
  const dm_Device cpu = {.type = DM_CPU};
  DM_CHECK_TWICE(L, S, dm_tensor_new(dm_augment_dtype(a), in->ndim, shape, cpu, &handle->t));
  DM_CHECK_TWICE(L, S, apply_all(a, in, draw, handle->t));
  return 1;
}

void dm_register_augment(lua_State *L, State *S) {
  static const luaL_Reg methods[] = {{"dtype", augment_dtype},
                                     {"shape", augment_shape},
                                     {"apply", augment_apply},
                                     {"__gc", augment_gc},
                                     {NULL, NULL}};
  dm_register_class(L, "demilune.Augment", methods, S);
}

const luaL_Reg dm_augment_functions[] = {{"augment", augment_new}, {NULL, NULL}};
