/* Autocast's regions as Lua values, and its state. A region is open when it is made and
   closes once: as a to-be-closed value, by close(), or, forgotten, when it is collected; then
   a warning names the line that opened it. amp/autocast.lua checks options and writes the
   messages about them.

   A region is a userdata with two user values: 1 is the coroutine that opened it, whose
   thread state it changes, and 2 is the function whose line opened it. Opening one happens at
   each training step, so autocast_plain reads the common options without a Lua table. */
#include <string.h>

#include "base/error.h"
#include "bind/bind.h"
#include "engine/policy.h"

static const char region_key = 0; /* its address names the metatable and marks a region */

/* A region as a userdata. `region` is linked into the engine's stack of open regions, so the
   userdata must leave that before it is freed; __gc sees to it. */
typedef struct Region {
  const void *mark;
  dm_Region region;
  dm_Autocast now;        /* what it sets; holds a reference to its policies */
  dm_ThreadState *thread; /* of the coroutine that opened it, which user value 1 holds */
  int line;               /* that opened it, in the function that user value 2 is; or -1 */
  uint8_t type;
  bool cache, open;
} Region;

/* The region at 1; raises on any other value. */
static Region *check_region(lua_State *L) {
  Region *r = dm_marked(L, 1, sizeof *r, &region_key);
  if (!r) dm_raise_text(L, "autocast: region expected, got %s", luaL_typename(L, 1));
  return r;
}

/* Calls warn_at of demilune.caller. A line or nil and a text are on top; both are popped.
   Without that module, which the core alone does not load, it says nothing. */
static void call_warning(lua_State *L) {
  if (!dm_push_caller(L, "warn_at")) {
    lua_pop(L, 3);
    return;
  }
  lua_insert(L, -3);
  lua_call(L, 2, 0);
}

/* nil as the line makes warn_at find the line of the script. */
void dm_warn_autocast(lua_State *L, const State *S, const char *what) {
  if (DM_LIKELY(!dm_autocast_on(&S->current->autocast))) return;
  luaL_checkstack(L, 6, NULL);
  lua_pushnil(L);
  lua_pushfstring(L,
                  "%s: called while autocast is on, which covers forward and loss only; hint: "
                  "close the region first",
                  what);
  call_warning(L);
}

/* warn_autocast(name): see dm_warn_autocast. */
static int warn_autocast(lua_State *L) {
  const State *S = dm_enter(L);
  dm_warn_autocast(L, S, luaL_checkstring(L, 1));
  return 0;
}

/* ---- regions ---- */

/* Pushes a region that is not open yet. */
static Region *push_region(lua_State *L, dm_DeviceType type) {
  Region *r = lua_newuserdatauv(L, sizeof *r, 2);
  (void)dm_enter(L); /* a finalizer may have entered another coroutine */
  *r = (Region){.mark = &region_key, .type = (uint8_t)type, .line = -1};
  lua_rawgetp(L, LUA_REGISTRYINDEX, &region_key);
  lua_setmetatable(L, -2);
  return r;
}

/* Opens the region on top of the stack in the current coroutine. Nothing raises between the
   switch and `open`. */
static void open_region(lua_State *L, const State *S, Region *r) {
  lua_pushthread(L);
  lua_setiuservalue(L, -2, 1);
  r->thread = S->current;
  dm_autocast_enter(&r->thread->autocast, &r->region, (dm_DeviceType)r->type, r->now, r->cache);
  r->open = true;
}

int dm_note_line(lua_State *L, int level, int value) {
  lua_Debug ar;
  if (!lua_getstack(L, level, &ar)) return -1;
  lua_getinfo(L, "fl", &ar);
  lua_setiuservalue(L, -2, value);
  return ar.currentline;
}

void dm_warn_forgotten(lua_State *L, int line, int value, const char *text) {
  lua_Debug ar;
  if (lua_getiuservalue(L, 1, value) != LUA_TFUNCTION) return;
  lua_getinfo(L, ">S", &ar);
  lua_pushfstring(L, "%s:%d: ", ar.short_src, line);
  lua_pushstring(L, text);
  call_warning(L);
}

/* Leaves the region, in whatever order regions close; only the first call counts. */
static void shut_region(Region *r) {
  if (!r->open) return;
  r->open = false;
  dm_autocast_leave(&r->thread->autocast, &r->region);
}

/* region:close() and __close. */
static int region_close(lua_State *L) {
  shut_region(check_region(L));
  return 0;
}

/* __gc: leaves a forgotten region, gives back its policies, and warns with the line that
   opened it. */
static int region_gc(lua_State *L) {
  Region *r = check_region(L);
  const bool forgotten = r->open && r->line > 0;
  shut_region(r);
  dm_policies_unref(&r->now.policies);
  if (forgotten)
    dm_warn_forgotten(L, r->line, 2,
                      "autocast: this region was never closed; hint: local _ <close> = "
                      "amp.autocast{...}, or amp.autocast(options, fn)");
  return 0;
}

/* region:reopen() -> a new region with the settings of this one, open. This is how a
   decorator opens one at each call. */
static int region_reopen(lua_State *L) {
  const State *S = dm_enter(L);
  const Region *from = check_region(L);
  Region *r = push_region(L, (dm_DeviceType)from->type);
  r->now = from->now;
  r->cache = from->cache;
  dm_policies_ref(r->now.policies);
  open_region(L, S, r);
  return 1;
}

/* tostring(region) -> "autocast(cuda, float16, on)". */
static int region_tostring(lua_State *L) {
  const Region *r = check_region(L);
  lua_pushfstring(L, "autocast(%s, %s, %s)", r->type == DM_CUDA ? "cuda" : "cpu",
                  dm_dtype_name((dm_DType)r->now.dtype), r->now.enabled ? "on" : "off");
  return 1;
}

/* ---- settings ---- */

/* The device type named at i; by default cuda where there is a device of that type, else cpu.
   Raises on other words. */
static dm_DeviceType check_type(lua_State *L, int i) {
  dm_Device d = {DM_CUDA, 0};
  if (lua_isnoneornil(L, i)) return dm_device_ops(d) ? DM_CUDA : DM_CPU;
  if (lua_type(L, i) != LUA_TSTRING)
    dm_raise_text(L, "autocast: device_type is a %s, wanted a string such as \"cpu\"",
                  luaL_typename(L, i));
  if (dm_device_parse(dm_word(L, i), &d) != DM_OK) dm_raise(L);
  return (dm_DeviceType)d.type;
}

/* The class of casts that the policy word at the top names. Raises on an unknown word, with
   the nearest one. */
static uint8_t check_word(lua_State *L, const dm_OpInfo *op) {
  static const char *const names[] = {"unlisted", "lower_precision", "lower_precision_fp",
                                      "fp32",     "float32",         "fp32_set_opt_dtype",
                                      "promote",  "banned"};
  static const uint8_t classes[] = {ASIS, LOW, LOW, F32, F32, F32OUT, WIDE, BAN};
  const char *word = lua_type(L, -1) == LUA_TSTRING ? dm_word(L, -1) : NULL;
  if (!word)
    dm_raise_text(L, "autocast: policy of %s is a %s, wanted a word such as \"fp32\"", op->name,
                  luaL_typename(L, -1));
  int k = 0;
  while (word && k < DM_COUNT(names) && strcmp(names[k], word) != 0) k++;
  if (k == DM_COUNT(names)) {
    const char *near = dm_nearest(word, DM_COUNT(names), names);
    if (near)
      dm_raise_text(L, "autocast: unknown policy '%s' of %s; did you mean '%s'?", word,
                    op->name, near);
    dm_raise_text(L,
                  "autocast: unknown policy '%s' of %s, wanted lower_precision, fp32, "
                  "fp32_set_opt_dtype, promote, unlisted or banned",
                  word, op->name);
  }
  if (classes[k] == F32OUT && op->signature->dtype_attr < 0)
    dm_raise_text(L, "autocast: %s has no option dtype for fp32_set_opt_dtype; hint: \"fp32\"",
                  op->name);
  return classes[k];
}

/* The id of the op named at i. Raises on ops that autocast never meets: those without a
   tensor argument, those only in place, and hidden ones. */
static int check_op(lua_State *L, int i) {
  const char *name = lua_type(L, i) == LUA_TSTRING ? dm_word(L, i) : luaL_typename(L, i);
  const int id = dm_op_find(name);
  const uint32_t flags = id < 0 ? 0 : dm_ops[id].flags;
  if (flags & (F_CREATE | F_ONLY_INPLACE))
    dm_raise_text(L, "autocast: policy: %s %s, so nothing of it is converted", name,
                  flags & F_CREATE ? "takes no tensor" : "works in place");
  if (id >= 0 && !(flags & F_HIDDEN)) return id;
  const char *names[DM_N_OP];
  int n = 0;
  for (int k = 0; k < DM_N_OP; k++)
    if (!(dm_ops[k].flags & F_HIDDEN)) names[n++] = dm_ops[k].name;
  const char *near = dm_nearest(name, n, names);
  if (near) dm_raise_text(L, "autocast: policy: no op '%s'; did you mean '%s'?", name, near);
  dm_raise_text(L, "autocast: policy: no op '%s'", name);
  return -1;
}

/* The rows that calls by a public op's name reach when their arguments say so (overload in
   call.c). They have no name of their own that a script could give. */
static const uint16_t OVERLOADS[][2] = {
    {DM_OP_clamp, DM_OP_clamp_tensor},
    {DM_OP_cross_entropy, DM_OP_cross_entropy_soft},
    {DM_OP_scatter, DM_OP_scatter_with},
    {DM_OP_repeat_interleave, DM_OP_repeat_interleave_each},
    {DM_OP_linear, DM_OP_linear_vector},
    {DM_OP_norm, DM_OP_norm_by_name},
};

/* Sets the policy of an op, in each of its forms. */
static void set_policy(dm_Policies *p, int id, uint8_t policy) {
  p->of[id] = policy;
  for (size_t i = 0; i < sizeof OVERLOADS / sizeof *OVERLOADS; i++)
    if (OVERLOADS[i][0] == id) p->of[OVERLOADS[i][1]] = policy;
}

/* Makes the policies of a region: a copy of those around it, or of the column named at
   `rules`, changed by the table at `words`. The region owns them at once, so that an error in
   the table loses nothing. */
static void read_policies(lua_State *L, Region *r, int rules, int words) {
  const bool fresh = !lua_isnil(L, rules);
  const dm_DeviceType column = fresh ? check_type(L, rules) : (dm_DeviceType)r->type;
  r->now.policies = dm_policies_new(column, fresh ? NULL : r->now.policies);
  if (!r->now.policies) {
    dm_fail(DM_EMEM, "autocast: out of memory");
    dm_raise(L);
  }
  if (lua_isnil(L, words)) return;
  if (!lua_istable(L, words))
    dm_raise_text(L, "autocast: policy is a %s, wanted a table such as {softmax = \"fp32\"}",
                  luaL_typename(L, words));
  lua_pushnil(L);
  while (lua_next(L, words)) {
    const int id = check_op(L, lua_gettop(L) - 1);
    set_policy(r->now.policies, id, check_word(L, &dm_ops[id]));
    lua_pop(L, 1);
  }
}

/* autocast_open(device_type, enabled, dtype, cache, rules, policy, named) -> an open region.
   nil keeps the setting around it; `named` lets a warning name the line. Raises on words that
   mean nothing. */
static int autocast_open(lua_State *L) {
  const State *S = dm_enter(L);
  lua_settop(L, 7);
  const dm_DeviceType type = check_type(L, 1);
  Region *r = push_region(L, type);
  r->now = S->current->autocast.now.autocast[type];
  r->now.enabled = lua_toboolean(L, 2);
  if (lua_isnil(L, 5) && lua_isnil(L, 6)) dm_policies_ref(r->now.policies);
  else read_policies(L, r, 5, 6);
  if (!lua_isnil(L, 3)) r->now.dtype = (uint8_t)dm_check_dtype(L, 3);
  r->cache = lua_isnil(L, 4) ? S->current->autocast.now.cache_enabled : lua_toboolean(L, 4);
  /* The seven arguments and the region remain: the region is on top, where note_line and
     open_region expect it. */
  lua_settop(L, 8);
  if (lua_toboolean(L, 7)) r->line = dm_note_line(L, 2, 2);
  open_region(L, S, r);
  return 1;
}

/* The options of a region that need no check in Lua; -1 keeps the setting around it. */
typedef struct Plain {
  int type, enabled, dtype, cache;
} Plain;

/* Stores the option whose name and value are on top; false when it is not one of the plain
   ones. */
static bool take_option(lua_State *L, Plain *o) {
  if (lua_type(L, -2) != LUA_TSTRING) return false;
  const char *name = dm_word(L, -2);
  const bool flag = lua_isboolean(L, -1);
  const char *word = lua_type(L, -1) == LUA_TSTRING ? dm_word(L, -1) : "";
  if (strcmp(name, "dtype") == 0) {
#define ROW(X, E, S, BITS, NAME, ...)             \
  if (strcmp(word, NAME) == 0) o->dtype = DM_##E; \
  else
    DM_LOW_DTYPES(ROW, )
#undef ROW
    return false;
  } else if (strcmp(name, "device_type") == 0) {
    if (strcmp(word, "cpu") == 0) o->type = DM_CPU;
    else if (strcmp(word, "cuda") == 0) o->type = DM_CUDA;
    else return false;
  } else if (strcmp(name, "enabled") == 0 && flag) o->enabled = lua_toboolean(L, -1);
  else if (strcmp(name, "cache_enabled") == 0 && flag) o->cache = lua_toboolean(L, -1);
  else return false;
  return true;
}

/* autocast_plain(options, named) -> an open region; nothing when an option needs a check or a
   message, and the caller then uses autocast_open. */
static int autocast_plain(lua_State *L) {
  const State *S = dm_enter(L);
  Plain o = {-1, true, -1, -1};
  lua_settop(L, 2);
  if (lua_istable(L, 1)) {
    if (lua_getmetatable(L, 1)) return 0;
    for (lua_pushnil(L); lua_next(L, 1); lua_pop(L, 1))
      if (!take_option(L, &o)) return 0;
  } else if (!lua_isnil(L, 1)) return 0;
  if (o.type != DM_CPU) { /* to ask for CUDA opens it */
    const bool cuda = dm_device_ops((dm_Device){DM_CUDA, 0}) != NULL;
    if (o.type == DM_CUDA && !cuda) return 0;
    o.type = cuda ? DM_CUDA : DM_CPU;
  }
  Region *r = push_region(L, (dm_DeviceType)o.type);
  r->now = S->current->autocast.now.autocast[o.type];
  r->now.enabled = o.enabled;
  if (o.dtype >= 0) r->now.dtype = (uint8_t)o.dtype;
  r->cache = o.cache < 0 ? S->current->autocast.now.cache_enabled : o.cache;
  dm_policies_ref(r->now.policies);
  if (lua_toboolean(L, 2)) r->line = dm_note_line(L, 2, 2);
  open_region(L, S, r);
  return 1;
}

/* is_autocast_enabled([device_type]) -> boolean. */
static int is_autocast_enabled(lua_State *L) {
  const State *S = dm_enter(L);
  lua_pushboolean(L, S->current->autocast.now.autocast[check_type(L, 1)].enabled);
  return 1;
}
/* set_autocast_enabled([device_type,] flag) */
static int set_autocast_enabled(lua_State *L) {
  const State *S = dm_enter(L);
  const int flag = lua_gettop(L) > 1 ? 2 : 1;
  luaL_argexpected(L, lua_isboolean(L, flag), flag, "boolean");
  lua_settop(L, 3);
  S->current->autocast.now.autocast[check_type(L, flag == 2 ? 1 : 3)].enabled =
      lua_toboolean(L, flag);
  return 0;
}
/* get_autocast_dtype([device_type]) -> name of the dtype. */
static int get_autocast_dtype(lua_State *L) {
  const State *S = dm_enter(L);
  lua_pushstring(
      L, dm_dtype_name((dm_DType)S->current->autocast.now.autocast[check_type(L, 1)].dtype));
  return 1;
}
/* set_autocast_dtype(device_type, dtype). Raises unless it is a low float, or float32 on
   CUDA. */
static int set_autocast_dtype(lua_State *L) {
  const State *S = dm_enter(L);
  const dm_DeviceType type = check_type(L, 1);
  const dm_DType dtype = dm_check_dtype(L, 2);
  if (!dm_is_low(dtype) && !(type == DM_CUDA && dtype == DM_F32))
    return dm_raise_text(L, "set_autocast_dtype: dtype is %s, wanted float16 or bfloat16",
                         dm_dtype_name(dtype));
  S->current->autocast.now.autocast[type].dtype = (uint8_t)dtype;
  return 0;
}
/* is_autocast_cache_enabled() -> boolean; set_autocast_cache_enabled(flag). */
static int is_cache_enabled(lua_State *L) {
  lua_pushboolean(L, dm_enter(L)->current->autocast.now.cache_enabled);
  return 1;
}

/* While it is set a region casts a weight once and keeps the copy until it ends. */
static int set_cache_enabled(lua_State *L) {
  const State *S = dm_enter(L);
  luaL_checktype(L, 1, LUA_TBOOLEAN);
  S->current->autocast.now.cache_enabled = lua_toboolean(L, 1);
  return 0;
}
/* clear_autocast_cache(): frees the cached casts of weights. */
static int clear_cache(lua_State *L) {
  dm_autocast_clear_cache(&dm_enter(L)->current->autocast);
  return 0;
}
/* autocast_cast_count() -> how many conversions autocast has made in this thread. */
static int cast_count(lua_State *L) {
  lua_pushinteger(L, dm_autocast_cast_count());
  return 1;
}

/* The metatable is in the registry under the address of region_key, which push_region uses
   too; the first call makes it. */
void dm_push_region_methods(lua_State *L, State *S) {
  static const luaL_Reg meta[] = {{"__close", region_close},
                                  {"__gc", region_gc},
                                  {"__tostring", region_tostring},
                                  {NULL, NULL}};
  static const luaL_Reg methods[] = {
      {"close", region_close}, {"reopen", region_reopen}, {NULL, NULL}};
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &region_key) == LUA_TNIL) {
    lua_pop(L, 1);
    luaL_newmetatable(L, "demilune.autocast");
    luaL_setfuncs(L, meta, 0);
    lua_newtable(L);
    dm_set_functions(L, methods, S);
    lua_setfield(L, -2, "__index");
    dm_close_metatable(L, "demilune.autocast");
    lua_pushvalue(L, -1);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &region_key);
  }
  lua_getfield(L, -1, "__index");
  lua_remove(L, -2);
}

const luaL_Reg dm_autocast_functions[] = {{"autocast_open", autocast_open},
                                          {"autocast_plain", autocast_plain},
                                          {"warn_autocast", warn_autocast},
                                          {"is_autocast_enabled", is_autocast_enabled},
                                          {"set_autocast_enabled", set_autocast_enabled},
                                          {"get_autocast_dtype", get_autocast_dtype},
                                          {"set_autocast_dtype", set_autocast_dtype},
                                          {"is_autocast_cache_enabled", is_cache_enabled},
                                          {"set_autocast_cache_enabled", set_cache_enabled},
                                          {"clear_autocast_cache", clear_cache},
                                          {"autocast_cast_count", cast_count},
                                          {NULL, NULL}};
