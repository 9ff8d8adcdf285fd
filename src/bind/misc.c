/* Threads, JSON, calls of modules, and the tables of ops and dtypes as Lua data. The Lua side
   has no copy of that table: help, autocast's policies and amp.report read it through core.ops.
 */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "bind/bind.h"
#include "cpu/loops/loops.h"
#include "cpu/threads.h"
#include "cpu/variant.h"
#include "engine/policy.h"

/* _library(folder): errors name the first line outside it. */
static int set_library(lua_State *L) {
  State *S = dm_enter(L);
  snprintf(S->library, sizeof S->library, "%s", luaL_checkstring(L, 1));
  return 0;
}

/* set_num_threads(n): threads of the CPU's kernels. Raises unless n is 1 to 1024. */
static int set_num_threads(lua_State *L) {
  const lua_Integer n = luaL_checkinteger(L, 1);
  if (n < 1 || n > 1024)
    return dm_raise_text(L, "set_num_threads: %d, wanted 1 to 1024", (int)n);
  dm_set_num_threads((int)n);
  return 0;
}

/* get_num_threads() -> the number of threads that the CPU's kernels use, the caller's
   included. */
static int get_num_threads(lua_State *L) {
  lua_pushinteger(L, dm_get_num_threads());
  return 1;
}

/* cpu_info() -> {variant, loops}: the processor ("plain", "neon", "avx2", "avx512",
   "avx512bf16", "amx"), and the vectors of the loops over elements that run here. */
static int cpu_info(lua_State *L) {
  lua_createtable(L, 0, 2);
  lua_pushstring(L, dm_variant_name(dm_cpu_variant()));
  lua_setfield(L, -2, "variant");
  lua_pushstring(L, dm_loops_name());
  lua_setfield(L, -2, "loops");
  return 1;
}

/* now() -> seconds on a clock that only goes forward. */
static int now(lua_State *L) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  lua_pushnumber(L, (double)t.tv_sec + 1e-9 * (double)t.tv_nsec);
  return 1;
}

/* isatty(file): whether an open Lua file is a terminal. */
static int is_terminal(lua_State *L) {
  const luaL_Stream *s = luaL_checkudata(L, 1, LUA_FILEHANDLE);
  lua_pushboolean(L, s->closef && isatty(fileno(s->f)));
  return 1;
}

/* terminal_size(file) -> rows and columns of the terminal that an open Lua file is; nothing
   where it is none or does not tell. */
static int terminal_size(lua_State *L) {
  const luaL_Stream *s = luaL_checkudata(L, 1, LUA_FILEHANDLE);
  struct winsize size;
  if (!s->closef || ioctl(fileno(s->f), TIOCGWINSZ, &size) != 0) return 0;
  lua_pushinteger(L, size.ws_row);
  lua_pushinteger(L, size.ws_col);
  return 2;
}

/* ---- JSON, by libcjson: plain data to text and back ---- */

/* Whether the value at i is a string without NUL, where a string of cJSON would end. */
static bool is_c_string(lua_State *L, int i) {
  return lua_type(L, i) == LUA_TSTRING && strlen(lua_tostring(L, i)) == lua_rawlen(L, i);
}

/* Any plain value as a tree that the caller owns; table_to_json calls it for
   elements. */
static cJSON *to_json(lua_State *L, int i, int depth);

/* Sorts the first n members of a list by name, by merging; returns the first and ends the list
   there. It allocates nothing, so that it cannot fail. */
static cJSON *sorted(cJSON *first, int64_t n) {
  cJSON *second = first, *whole = NULL, **end = &whole;
  if (n < 2) {
    if (first) first->next = NULL;
    return first;
  }
  for (int64_t i = 0; i < n / 2; i++) second = second->next;
  second = sorted(second, n - n / 2);
  first = sorted(first, n / 2);
  while (first && second) {
    cJSON **least = strcmp(first->string, second->string) <= 0 ? &first : &second;
    *end = *least;
    end = &(*end)->next;
    *least = *end;
  }
  *end = first ? first : second;
  return whole;
}

/* Sorts the n members of an object by name, so that equal tables make equal text: Lua's order
   differs from one process to the next. */
static void sort_members(cJSON *o, int64_t n) {
  o->child = sorted(o->child, n);
  cJSON *before = NULL;
  for (cJSON *v = o->child; v; v = v->next) {
    v->prev = before;
    before = v;
  }
  if (o->child) o->child->prev = before; /* cJSON finds the last member there */
}

/* The JSON of the table at i, an array where it has a list part; an empty table is an object.
   NULL for keys that are no strings and values that JSON lacks. The caller owns the tree. Of
   the calls here only luaL_checkstack can raise. */
static cJSON *table_to_json(lua_State *L, int i, int depth) {
  const lua_Integer n = (lua_Integer)lua_rawlen(L, i);
  luaL_checkstack(L, 6, NULL);
  lua_pushnil(L);
  const bool empty = !lua_next(L, i);
  if (!empty) lua_pop(L, 2);
  if (n > 0 || empty) {
    cJSON *a = empty ? cJSON_CreateObject() : cJSON_CreateArray();
    for (lua_Integer k = 1; a && k <= n; k++) {
      lua_rawgeti(L, i, k);
      cJSON *v = to_json(L, lua_gettop(L), depth + 1);
      lua_pop(L, 1);
      if (!v) {
        cJSON_Delete(a);
        return NULL;
      }
      cJSON_AddItemToArray(a, v);
    }
    return a;
  }
  cJSON *o = cJSON_CreateObject();
  int64_t n_members = 0;
  lua_pushnil(L);
  while (o && lua_next(L, i)) {
    cJSON *v = is_c_string(L, -2) ? to_json(L, lua_gettop(L), depth + 1) : NULL;
    if (!v) {
      lua_pop(L, 2);
      cJSON_Delete(o);
      return NULL;
    }
    cJSON_AddItemToObject(o, lua_tostring(L, -2), v);
    lua_pop(L, 1);
    n_members++;
  }
  if (o) sort_members(o, n_members);
  return o;
}

/* The JSON of the value at i, or NULL; depth bounds the recursion, which a cyclic table would
   not end. */
static cJSON *to_json(lua_State *L, int i, int depth) {
  char text[40];
  if (depth > 100) return NULL;
  switch (lua_type(L, i)) {
  case LUA_TBOOLEAN: return cJSON_CreateBool(lua_toboolean(L, i));
  case LUA_TSTRING: return is_c_string(L, i) ? cJSON_CreateString(lua_tostring(L, i)) : NULL;
  case LUA_TNUMBER:
    if (lua_isinteger(L, i))
      snprintf(text, sizeof text, "%lld", (long long)lua_tointeger(L, i));
    else if (!isfinite(lua_tonumber(L, i))) return NULL;
    else snprintf(text, sizeof text, "%.17g", lua_tonumber(L, i));
    /* a float keeps its point, so that it comes back as one */
    if (!lua_isinteger(L, i) && !strpbrk(text, ".e")) strcat(text, ".0");
    return cJSON_CreateRaw(text);
  case LUA_TTABLE: return table_to_json(L, i, depth);
  default: return NULL;
  }
}

/* json_encode(value) -> string. Raises for values that JSON lacks. */
static int json_encode(lua_State *L) {
  lua_settop(L, 1);
  cJSON *j = to_json(L, 1, 0);
  if (!j)
    return dm_raise_text(L,
                         "json_encode: wanted nested tables of finite numbers, strings without "
                         "NUL and booleans, each with string keys or as a list");
  char *text = cJSON_PrintUnformatted(j);
  cJSON_Delete(j);
  if (!text) return dm_raise_text(L, "json_encode: out of memory");
  lua_pushstring(L, text);
  cJSON_free(text);
  return 1;
}

/* Pushes the value of a parsed tree. cJSON holds every number as a double: a whole one below
   2^53 becomes an integer, whether or not the text wrote it with a point. */
static void from_json(lua_State *L, const cJSON *j) {
  luaL_checkstack(L, 4, NULL);
  if (cJSON_IsBool(j)) {
    lua_pushboolean(L, cJSON_IsTrue(j));
  } else if (cJSON_IsNumber(j)) {
    const double v = j->valuedouble;
    if (v == floor(v) && fabs(v) < 9007199254740992.0) lua_pushinteger(L, (lua_Integer)v);
    else lua_pushnumber(L, v);
  } else if (cJSON_IsString(j)) {
    lua_pushstring(L, j->valuestring);
  } else if (cJSON_IsArray(j) || cJSON_IsObject(j)) {
    lua_newtable(L);
    lua_Integer k = 1;
    for (const cJSON *c = j->child; c; c = c->next) {
      from_json(L, c);
      if (cJSON_IsArray(j)) lua_rawseti(L, -2, k++);
      else lua_setfield(L, -2, c->string);
    }
  } else {
    lua_pushnil(L);
  }
}

/* __gc of the userdata that owns a parsed tree, for a Lua error in from_json. */
static int free_json(lua_State *L) {
  cJSON **j = luaL_checkudata(L, 1, "demilune.JSON");
  cJSON_Delete(*j);
  *j = NULL;
  return 0;
}

/* json_decode(text) -> value; nil and "not JSON". */
static int json_decode(lua_State *L) {
  size_t n;
  const char *text = luaL_checklstring(L, 1, &n);
  cJSON **j = lua_newuserdatauv(L, sizeof *j, 0);
  *j = NULL;
  dm_ended_by(L, "demilune.JSON", "__gc", free_json);
  *j = cJSON_ParseWithLength(text, n);
  if (!*j) {
    lua_pushnil(L);
    lua_pushliteral(L, "not JSON");
    return 2;
  }
  from_json(L, *j);
  cJSON_Delete(*j);
  *j = NULL;
  return 1;
}

/* ---- the op table as data ---- */

/* Names of dm_AttrKind for Lua, in its order. */
static const char *const kind_names[] = {"int",  "number", "bool", "dtype",   "device", "enum",
                                         "dim",  "pos",    "str",  "number?", "dim?",   "one",
                                         "pair", "triple", "nums", "dims",    "sizes"};

/* Whether the option is one to three numbers, of which a single one stands for all. */
static bool is_tuple(const dm_AttrSpec *s) { return s->kind >= A_ONE && s->kind <= A_TRIPLE; }

bool dm_push_default(lua_State *L, const dm_AttrSpec *s) {
  const lua_Integer number = (lua_Integer)s->def;
  const char *word = s->choices;
  switch ((dm_AttrKind)s->kind) {
  case A_NUM: lua_pushnumber(L, s->def); return true;
  case A_BOOL: lua_pushboolean(L, s->def != 0); return true;
  case A_DIM:
  case A_POS: lua_pushinteger(L, number < 0 ? number : number + 1); return true;
  case A_ENUM:
    for (lua_Integer k = 0; k < number; k++) word = strchr(word, '|') + 1;
    lua_pushlstring(L, word, strcspn(word, "|"));
    return true;
  case A_INT:
  case A_ONE:
  case A_PAIR:
  case A_TRIPLE: lua_pushinteger(L, number); return true;
  default: return false;
  }
}

/* Pushes {name, kind, required[, choices][, default]} of one attribute. */
static void push_attr_spec(lua_State *L, const dm_AttrSpec *s) {
  lua_createtable(L, 0, 5);
  lua_pushstring(L, s->name);
  lua_setfield(L, -2, "name");
  lua_pushstring(L, kind_names[s->kind]);
  lua_setfield(L, -2, "kind");
  lua_pushboolean(L, s->required);
  lua_setfield(L, -2, "required");
  if (s->choices[0]) {
    lua_pushstring(L, s->choices);
    lua_setfield(L, -2, "choices");
  }
  if ((s->kind <= A_BOOL || is_tuple(s)) && dm_push_default(L, s))
    lua_setfield(L, -2, "default");
}

/* A field of the table on top. */
#define STR(KEY, V) (lua_pushstring(L, V), lua_setfield(L, -2, KEY))
#define BOOL(KEY, V) (lua_pushboolean(L, V), lua_setfield(L, -2, KEY))
#define INT(KEY, V) (lua_pushinteger(L, V), lua_setfield(L, -2, KEY))
#define NUM(KEY, V) (lua_pushnumber(L, V), lua_setfield(L, -2, KEY))

/* Pushes the table of one op: its name, signature, flags, autocast policies, tensors and
   attributes. */
static void push_row(lua_State *L, const dm_OpInfo *op) {
  const dm_Signature *g = op->signature;
  lua_createtable(L, 0, 14);
  STR("name", op->name);
  STR("signature", op->sig);
  STR("doc", op->doc);
  STR("cpu", dm_cast_names[op->cast[DM_CPU]]);
  STR("cuda", dm_cast_names[op->cast[DM_CUDA]]);
  BOOL("inplace", op->flags & F_INPLACE);
  BOOL("only_inplace", op->flags & F_ONLY_INPLACE);
  BOOL("view", op->flags & F_VIEW);
  BOOL("hidden", op->flags & F_HIDDEN);
  BOOL("creates", op->flags & F_CREATE);
  BOOL("pointwise", op->flags & F_POINTWISE);
  BOOL("composed", op->compose != NULL);
  BOOL("differentiable", op->grad || (op->compose && !(op->flags & F_CREATE)));
  BOOL("no_double", op->flags & F_NO_DOUBLE);
  INT("outputs", dm_op_results(op));
  lua_createtable(L, g->n_tensor, 0);
  for (int i = 0; i < g->n_tensor; i++) {
    lua_pushfstring(L, "%s%s", g->tensor[i], g->list ? "..." : i >= g->n_required ? "?" : "");
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "tensors");
  lua_createtable(L, g->n_attr, 0);
  for (int i = 0; i < g->n_attr; i++) {
    push_attr_spec(L, &g->attr[i]);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "attrs");
}

/* ops() -> list of the tables of all ops, in the order of their ids. */
static int ops(lua_State *L) {
  lua_createtable(L, DM_N_OP, 0);
  for (int i = 0; i < DM_N_OP; i++) {
    push_row(L, &dm_ops[i]);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* _op_row(op) -> the op's row of ops(), with defaults = {option = default} of the options that
   have one. Raises for an unknown op. */
static int op_row(lua_State *L) {
  const char *name = luaL_checkstring(L, 1);
  const int id = dm_op_find(name);
  if (id < 0) return dm_raise_text(L, "no op '%s'", name);
  const dm_Signature *g = dm_ops[id].signature;
  push_row(L, &dm_ops[id]);
  lua_createtable(L, 0, g->n_attr);
  for (int i = 0; i < g->n_attr; i++) {
    const dm_AttrSpec *s = &g->attr[i];
    if (!s->required && dm_push_default(L, s)) lua_setfield(L, -2, s->name);
  }
  lua_setfield(L, -2, "defaults");
  return 1;
}

/* Pushes the table of one dtype; lua/demilune/dtypes.lua documents it. */
static void push_dtype(lua_State *L, dm_DType d) {
  static const char *const kinds[] = {"bool", "int", "float"};
  const dm_DTypeInfo *info = &dm_dtypes[d];
  lua_createtable(L, 0, 10);
  STR("name", info->name);
  STR("kind", kinds[dm_kind(d)]);
  STR("method", info->method); /* nil for NULL */
  STR("npy", info->npy);
  INT("size", dm_dtype_size(d));
  if (!dm_is_float(d)) return;
  BOOL("low", dm_is_low(d));
  STR("brief", info->brief);
  NUM("eps", info->eps);
  NUM("tiny", info->tiny);
  NUM("max", info->max);
}
#undef STR
#undef BOOL
#undef INT
#undef NUM

/* _dtypes() -> list of the tables of all dtypes. */
static int dtypes(lua_State *L) {
  lua_createtable(L, DM_N_DTYPE, 0);
  for (int d = 0; d < DM_N_DTYPE; d++) {
    push_dtype(L, (dm_DType)d);
    lua_rawseti(L, -2, d + 1);
  }
  return 1;
}

/* ---- calls of modules ---- */

/* Upvalues of module_call. */
enum { UP_FORWARD = 1, UP_HAS_HOOKS, UP_OBSERVER, UP_CALL_OBSERVED };

/* The continuation of forward and of call_observed: returns their results, which lie above the
   module. Continuations let the module's code yield. */
static int call_done(lua_State *L, int status, lua_KContext context) {
  DM_UNUSED(status), DM_UNUSED(context);
  return lua_gettop(L) - 1;
}

/* Notes the module at 1 in the table on top, if it is one. */
static void note_module(lua_State *L) {
  if (!lua_istable(L, -1)) return;
  lua_pushvalue(L, 1);
  lua_pushboolean(L, true);
  lua_rawset(L, -3);
}

/* module(...) -> results of forward, or of call_observed for a module with hooks or under an
   observer. The module stays at 1, where an error's message finds it (see nn/module.lua); no
   error is caught, so that a traceback has all frames. */
static int module_call(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  const int n = lua_gettop(L);
  lua_pushvalue(L, lua_upvalueindex(UP_HAS_HOOKS));
  lua_rawget(L, 1);
  lua_rawgeti(L, lua_upvalueindex(UP_OBSERVER), 1);
  const bool observed = lua_toboolean(L, -1) || lua_toboolean(L, -2);
  lua_rawgeti(L, lua_upvalueindex(UP_OBSERVER), 2);
  note_module(L);
  lua_settop(L, n);
  lua_pushvalue(L, lua_upvalueindex(observed ? UP_CALL_OBSERVED : UP_FORWARD));
  if (!observed) lua_gettable(L, 1);
  lua_pushvalue(L, 1);
  lua_rotate(L, 2, 2); /* module, function, module, arguments */
  lua_callk(L, n, LUA_MULTRET, 0, call_done);
  return call_done(L, LUA_OK, 0);
}

/* _module_caller(observer, call_observed) -> __call of modules. call_observed serves modules
   whose field _has_hooks is true, and all modules while observer[1] is set. While observer[2]
   is a table, it gets [module] = true. */
static int module_caller(lua_State *L) {
  lua_settop(L, 2);
  lua_pushliteral(L, "forward");
  lua_insert(L, 1);
  lua_pushliteral(L, "_has_hooks");
  lua_insert(L, 2);
  lua_pushcclosure(L, module_call, 4);
  return 1;
}

/* Names with an underscore are for demilune's own Lua files. */
const luaL_Reg dm_misc_functions[] = {{"_module_caller", module_caller},
                                      {"_library", set_library},
                                      {"set_num_threads", set_num_threads},
                                      {"get_num_threads", get_num_threads},
                                      {"cpu_info", cpu_info},
                                      {"now", now},
                                      {"isatty", is_terminal},
                                      {"terminal_size", terminal_size},
                                      {"json_encode", json_encode},
                                      {"json_decode", json_decode},
                                      {"ops", ops},
                                      {"_op_row", op_row},
                                      {"_dtypes", dtypes},
                                      {NULL, NULL}};
