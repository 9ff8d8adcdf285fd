/* The binding of engine/amp_trace.h and core/stats.h for demilune.amp.report. A trace is an
   observer of every op, in a userdata that leaves the list of observers before it is freed.
   It counts in C, so that a step makes no Lua values. */
#include <stdio.h>

#include "base/error.h"
#include "bind/bind.h"
#include "core/stats.h"
#include "engine/amp_trace.h"

/* A trace as a userdata; it is in the State's list of observers while it is open. */
typedef struct Trace {
  dm_AmpTrace trace;
  State *S;
  bool open;
} Trace;

/* Writes the user's line to out. It is called inside an op, so it allocates nothing and
   raises nothing. */
static void write_line(void *ctx, char *out, size_t n) {
  const Trace *tr = ctx;
  lua_Debug ar;
  if (tr->S->current_thread && dm_where(tr->S->current_thread, tr->S, &ar))
    snprintf(out, n, "%s:%d", ar.short_src, ar.currentline);
}

/* The trace at 1; raises for any other value. */
static Trace *check_trace(lua_State *L) { return luaL_checkudata(L, 1, "demilune.AmpTrace"); }

/* Adds the trace to its Lua state's observers, or removes it. */
static void set_open(Trace *tr, bool open) {
  if (tr->open == open) return;
  tr->open = open;
  /* dm_observer_add changes the list of the current thread state, so this makes the trace's
     State the current one for the call: __gc may run in any coroutine. */
  dm_ThreadState *here = dm_thread_state_current;
  dm_thread_state_current = &tr->S->thread;
  if (open) dm_observer_add(&tr->trace.observer);
  else dm_observer_remove(&tr->trace.observer);
  dm_thread_state_current = here;
  tr->trace.depth = 0;
}

/* trace:open(), trace:close(): begin and end to observe; further calls do nothing. A trace
   that was finalized has no memory to count in, so it opens no more. */
static int trace_open(lua_State *L) {
  Trace *tr = check_trace(L);
  if (!tr->trace.births) return luaL_error(L, "trace.open: this trace was finalized");
  set_open(tr, true);
  return 0;
}

/* Closing keeps what was counted, so that a report can be made afterwards. */
static int trace_close(lua_State *L) {
  set_open(check_trace(L), false);
  return 0;
}
/* __gc: leaves the observers before the memory goes. */
static int trace_gc(lua_State *L) {
  Trace *tr = check_trace(L);
  set_open(tr, false);
  dm_amp_trace_free(&tr->trace);
  return 0;
}

/* These set key = v in the table on top. */
static void set_integer(lua_State *L, const char *key, int64_t v) {
  lua_pushinteger(L, v);
  lua_setfield(L, -2, key);
}

/* A NULL string sets nil, which leaves the key out. */
static void set_string(lua_State *L, const char *key, const char *v) {
  lua_pushstring(L, v);
  lua_setfield(L, -2, key);
}
static void set_boolean(lua_State *L, const char *key, bool v) {
  lua_pushboolean(L, v);
  lua_setfield(L, -2, key);
}

/* The name of a dtype, NULL (nil in Lua) where a tally has none. */
static const char *dtype_name(uint8_t dtype) {
  return dtype == DM_N_DTYPE ? NULL : dm_dtype_name((dm_DType)dtype);
}

/* trace:tallies() -> array of {module, op, kind, dtype, region, device, mixed, calls,
   bytes}. */
static int trace_tallies(lua_State *L) {
  static const char *const kinds[DM_N_TALLY] = {"forward", "backward", "weight",  "input",
                                                "kept",    "bad",      "bad_back"};
  const dm_TallyTable *t = &check_trace(L)->trace.tallies;
  lua_createtable(L, t->n, 0);
  lua_Integer n = 0;
  for (int i = 0; i < t->capacity; i++) {
    if (!t->slot[i].key) continue;
    const dm_TallyKey k = dm_tally_key(&t->slot[i]);
    lua_createtable(L, 0, 9);
    set_integer(L, "module", k.module);
    set_string(L, "op", k.op == DM_N_OP ? "(function)" : dm_ops[k.op].name);
    set_string(L, "kind", kinds[k.kind]);
    set_string(L, "dtype", dtype_name(k.dtype));
    set_string(L, "region", dtype_name(k.region));
    set_string(L, "device", k.device == DM_CUDA ? "cuda" : "cpu");
    set_boolean(L, "mixed", k.mixed);
    set_integer(L, "calls", t->slot[i].calls);
    set_integer(L, "bytes", t->slot[i].bytes);
    lua_rawseti(L, -2, ++n);
  }
  return 1;
}

/* trace:first(backward?) -> table about the first call in that direction whose result had inf
   or NaN; nothing when there is none. */
static int trace_first(lua_State *L) {
  const dm_Blame *b = &check_trace(L)->trace.first[lua_toboolean(L, 2)];
  if (!b->found) return 0;
  lua_createtable(L, 0, 12);
  set_string(L, "op", b->op);
  set_string(L, "within", b->within);
  set_string(L, "where", b->where);
  set_string(L, "phase", lua_toboolean(L, 2) ? "backward" : "forward");
  set_string(L, "value", b->nan ? "NaN" : "inf");
  set_string(L, "dtype", dtype_name(b->dtype));
  set_string(L, "shape", DM_DIMS(b->ndim, b->shape));
  set_boolean(L, "autocast", b->autocast);
  set_integer(L, "module", b->module);
  set_integer(L, "step", b->step);
  lua_pushnumber(L, b->largest);
  lua_setfield(L, -2, "largest");
  lua_createtable(L, b->n_in, 0);
  for (int i = 0; i < b->n_in && i < 32; i++) {
    lua_pushboolean(L, b->finite >> i & 1);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "inputs_finite");
  return 1;
}

/* trace:steps() -> number of backward passes, number of tallies lost because memory ran
   out. */
static int trace_steps(lua_State *L) {
  const Trace *tr = check_trace(L);
  lua_pushinteger(L, tr->trace.steps);
  lua_pushinteger(L, tr->trace.missed);
  return 2;
}

/* _amp_trace(check) -> a trace that does not observe yet; with check it looks for inf and
   NaN. */
static int new_trace(lua_State *L) {
  static const luaL_Reg methods[] = {{"open", trace_open},
                                     {"close", trace_close},
                                     {"tallies", trace_tallies},
                                     {"first", trace_first},
                                     {"steps", trace_steps},
                                     {"__gc", trace_gc},
                                     {NULL, NULL}};
  State *S = dm_enter(L);
  Trace *tr = lua_newuserdatauv(L, sizeof *tr, 0);
  *tr = (Trace){.S = S};
  dm_register_class(L, "demilune.AmpTrace", methods, S);
  luaL_setmetatable(L, "demilune.AmpTrace");
  DM_CHECK(L, dm_amp_trace_init(&tr->trace, lua_toboolean(L, 1)));
  tr->trace.where = write_line;
  tr->trace.ctx = tr;
  return 1;
}

/* _module_number() -> the number of the running module path; _module_number(n) sets it and
 * returns the old one
 */
static int module_number(lua_State *L) {
  dm_ThreadState *ts = dm_enter(L)->current;
  const int old = ts->module;
  if (!lua_isnoneornil(L, 1)) ts->module = (int)luaL_checkinteger(L, 1);
  lua_pushinteger(L, old);
  return 1;
}

/* Adds v to table[key], where the table is at i; nil counts as 0. */
static void add_count(lua_State *L, int i, const char *key, int64_t v) {
  lua_getfield(L, i, key);
  lua_pushinteger(L, lua_tointeger(L, -1) + v);
  lua_setfield(L, i, key);
  lua_pop(L, 1);
}

/* Adds the counts to the table t[key], which it makes when it is missing. */
static void add_fit(lua_State *L, int i, const char *key, const dm_HalfFit *f) {
  if (lua_getfield(L, i, key) != LUA_TTABLE) {
    lua_pop(L, 1);
    lua_createtable(L, 0, 3);
    lua_pushvalue(L, -1);
    lua_setfield(L, i, key);
  }
  const int t = lua_gettop(L);
  add_count(L, t, "underflow", f->lost);
  add_count(L, t, "subnormal", f->subnormal);
  add_count(L, t, "overflow", f->overflow);
  lua_pop(L, 1);
}

/* _float_stats(t, sums, factor, scale): adds the statistics of t's elements, times the factor,
   to the table sums: n, zero, inf, nan, largest, exponents = {[e] = n}, float16 = {underflow,
   subnormal, overflow}; and, unless scale is nil, scaled, which is float16 of the elements
   times the scale. */
static int float_stats(lua_State *L) {
  dm_enter(L);
  lua_settop(L, 4);
  const dm_Tensor *t = dm_check_tensor(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  dm_FloatStats c = {0};
  dm_float_stats(t, luaL_optnumber(L, 3, 1), luaL_optnumber(L, 4, 1), &c);
  add_count(L, 2, "n", c.n);
  add_count(L, 2, "zero", c.zero);
  add_count(L, 2, "inf", c.inf);
  add_count(L, 2, "nan", c.nan);
  lua_getfield(L, 2, "largest");
  if (c.largest > lua_tonumber(L, -1) || lua_isnil(L, -1)) {
    lua_pushnumber(L, c.largest);
    lua_setfield(L, 2, "largest");
  }
  add_fit(L, 2, "float16", &c.plain);
  if (!lua_isnil(L, 4)) add_fit(L, 2, "scaled", &c.scaled);
  if (lua_getfield(L, 2, "exponents") != LUA_TTABLE) {
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_setfield(L, 2, "exponents");
  }
  const int exponents = lua_gettop(L);
  for (int i = 0; i < DM_N_EXP; i++) {
    if (c.exponent[i] == 0) continue;
    const lua_Integer e = i + DM_EXP_MIN;
    lua_rawgeti(L, exponents, e);
    lua_pushinteger(L, lua_tointeger(L, -1) + c.exponent[i]);
    lua_rawseti(L, exponents, e);
    lua_pop(L, 1);
  }
  return 0;
}

const luaL_Reg dm_report_functions[] = {{"_amp_trace", new_trace},
                                        {"_module_number", module_number},
                                        {"_float_stats", float_stats},
                                        {NULL, NULL}};
