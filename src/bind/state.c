/* Handles, garbage, errors and coroutines: the functions that every file of the binding uses.

   Coroutines. Each has a dm_ThreadState of its own, so that no_grad or autocast in one does
   not reach another that runs while it is suspended. A new coroutine inherits the state of
   the one that resumed it first. Lua does not record who resumed a coroutine, so push_starter
   reconstructs it from the order of calls. States are userdata in a table with weak keys: a
   dead coroutine takes its state with it.

   Garbage. A handle is a userdata of a few bytes in front of megabytes, so Lua's collector
   does not feel memory pressure. dm_handle_fill therefore checks dm_live_bytes: above a limit
   it runs a full collection, with a budget of time, and sets the limit a little above the
   bytes that remain. It also runs one after some thousand new handles, which keeps small
   tensors in cache. PyTorch needs none of this: CPython frees by reference counts.

   Errors. dm_raise puts the user's file and line in front of dm_error(). The user's line is
   that of the first Lua function on the stack whose source is outside the library's folder,
   so an error in nn.Linear names the script that called it. */
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "bind/bind.h"

const char dm_handle_magic = 0, dm_state_key = 0; /* only their addresses count */

enum {
  GC_FLOOR = 32 << 20,    /* the least limit of live bytes */
  HANDLE_FLOOR = 1 << 11, /* new handles after which a collection runs, */
  HANDLE_SELDOM = 1 << 19 /* and where a collection is expensive */
};

/* ---- coroutines ---- */

/* Keys of the registry: the thread states by coroutine, the starter of each coroutine, and
   the coroutine of the last call, which is held so that its address stays its own. */
static const char states_key = 0, starters_key = 0, anchor_key = 0;

static const char thread_state_name[] = "demilune.ThreadState";

/* __gc of a coroutine's thread state. It drops the references that the state holds. */
static int free_state(lua_State *L) {
  dm_thread_state_clear(luaL_checkudata(L, 1, thread_state_name));
  return 0;
}

/* Pushes the registry's table at key; the first call makes it, weak by that __mode. */
static void push_weak(lua_State *L, const char *key, const char *mode) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, key) == LUA_TTABLE) return;
  lua_pop(L, 1);
  lua_newtable(L);
  lua_createtable(L, 0, 1);
  lua_pushstring(L, mode);
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
  lua_pushvalue(L, -1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, key);
}

/* Whether T runs, or waits for a coroutine that it has resumed. */
static bool is_active(lua_State *T) {
  lua_Debug ar;
  return lua_status(T) == LUA_OK && lua_getstack(T, 0, &ar);
}

/* Pushes the coroutine that resumed L, among those that have called the library: the last
   caller, or, if that one is not active any more, the one that resumed it, and so on. It
   pushes nil for the main one. */
static void push_starter(lua_State *L, const State *S) {
  lua_State *T = S->current_thread;
  push_weak(L, &starters_key, "kv");
  if (!T) lua_pushnil(L);
  else lua_rawgetp(L, LUA_REGISTRYINDEX, &anchor_key);
  /* coroutines nest at most 200 deep; old records may form a cycle */
  for (int hops = 0; T && (T == L || !is_active(T)); hops++) {
    if (hops < 200) lua_rawget(L, -2);
    else lua_pop(L, 1), lua_pushnil(L);
    T = lua_tothread(L, -1);
  }
  lua_remove(L, -2);
}

/* The thread state of the coroutine at i; NULL when it has none yet. The main coroutine's is
   in S. Pushes nothing. */
static dm_ThreadState *find_state(lua_State *L, State *S, int i) {
  lua_State *T = lua_tothread(L, i);
  if (!T || T == S->main) return &S->thread;
  lua_pushvalue(L, i);
  push_weak(L, &states_key, "k");
  lua_insert(L, -2);
  lua_rawget(L, -2);
  dm_ThreadState *ts = lua_touserdata(L, -1);
  lua_pop(L, 2);
  return ts;
}

/* Makes the thread state of the running coroutine, a copy of the settings of `from`, and
   stores it in the weak table under the coroutine. The metatable is set after the state is
   complete, so __gc never sees a half-made one. */
static dm_ThreadState *make_state(lua_State *L, const dm_ThreadState *from) {
  push_weak(L, &states_key, "k");
  lua_pushthread(L);
  dm_ThreadState *ts = lua_newuserdatauv(L, sizeof *ts, 0);
  dm_thread_state_inherit(ts, from);
  dm_ended_by(L, thread_state_name, "__gc", free_state);
  lua_rawset(L, -3);
  lua_pop(L, 1);
  return ts;
}

/* Finds or makes the thread state of coroutine L. The current coroutine is anchored in the
   registry: a new one cannot get its address, by which dm_enter recognizes it. */
void dm_enter_slow(lua_State *L, State *S) {
  luaL_checkstack(L, 12, "demilune");
  if (lua_pushthread(L)) S->main = L;
  const int self = lua_gettop(L);
  /* Pushes the starter above self. It is recorded below, for coroutines whose own search for
     a starter passes through this one. */
  push_starter(L, S);
  dm_ThreadState *ts = find_state(L, S, self);
  if (!ts) {
    const dm_ThreadState *from = find_state(L, S, self + 1);
    ts = make_state(L, from ? from : &S->thread);
  }
  push_weak(L, &starters_key, "kv");
  lua_pushvalue(L, self);
  lua_pushvalue(L, self + 1);
  lua_rawset(L, -3);
  lua_pushvalue(L, self);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &anchor_key);
  lua_settop(L, self - 1);
  S->current = ts;
  S->current_thread = L;
}

/* Makes L, which ran before a finalizer entered another coroutine, the current one again. The
   registry has the key already, so nothing is allocated. */
static void come_back(lua_State *L, State *S, dm_ThreadState *here) {
  S->current_thread = L;
  S->current = dm_thread_state_current = here;
  lua_pushthread(L);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &anchor_key);
}

/* ---- errors ---- */

/* Level 0 is the C function that asks. A function without a current line, such as a C
   function, is skipped. */
bool dm_where(lua_State *L, const State *S, lua_Debug *ar) {
  for (int level = 1; lua_getstack(L, level, ar); level++) {
    lua_getinfo(L, "Sl", ar);
    if (ar->currentline <= 0) continue;
    if (!S->library[0] || strncmp(ar->source, S->library, strlen(S->library)) != 0) return true;
  }
  return false;
}

/* Pushes "file:line: " of the user's line, or "" when no such function is on the stack. It
   takes the State from the registry, for a function without upvalues may raise too. */
static void push_line(lua_State *L) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &dm_state_key);
  const State *S = lua_touserdata(L, -1);
  lua_pop(L, 1); /* the registry keeps it */
  lua_Debug ar;
  if (dm_where(L, S, &ar)) lua_pushfstring(L, "%s:%d: ", ar.short_src, ar.currentline);
  else lua_pushliteral(L, "");
}

bool dm_push_caller(lua_State *L, const char *name) {
  luaL_checkstack(L, 8, NULL);
  lua_getfield(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  const bool loaded = lua_getfield(L, -1, "demilune.caller") == LUA_TTABLE;
  if (loaded) lua_getfield(L, -1, name);
  else lua_pushnil(L);
  lua_replace(L, -3);
  lua_pop(L, 1);
  return loaded;
}

/* Pushes "file:line: " and "in model.layers[1] Linear(3 -> 4): " where modules are on the
   stack. The text names what an error needs; one that prevents it is dropped. */
static void push_where(lua_State *L) {
  push_line(L);
  dm_push_caller(L, "inside");
  if (lua_pcall(L, 0, 1, 0) == LUA_OK && lua_type(L, -1) == LUA_TSTRING) {
    lua_concat(L, 2);
    return;
  }
  lua_pop(L, 1);
}

/* The message is pushed on the coroutine that failed; lua_error never returns, and `return
   dm_raise(L)` only tells the compiler so. */
int dm_raise(lua_State *L) {
  luaL_checkstack(L, 3, NULL);
  lua_pushstring(L, dm_error());
  push_where(L);
  lua_insert(L, -2);
  lua_concat(L, 2);
  return lua_error(L);
}

int dm_raise_text(lua_State *L, const char *fmt, ...) {
  va_list ap;
  luaL_checkstack(L, 3, NULL);
  va_start(ap, fmt);
  lua_pushvfstring(L, fmt, ap);
  va_end(ap);
  push_where(L);
  lua_insert(L, -2);
  lua_concat(L, 2);
  return lua_error(L);
}

/* ---- handles ---- */

/* Unlinks the handle from its scope's ring, if it is in one. */
static void ring_out(Handle *b) {
  if (!b->next) return;
  b->prev->next = b->next;
  b->next->prev = b->prev;
  b->prev = b->next = NULL;
}

void dm_handle_keep(Handle *b) { ring_out(b); }

/* The handle leaves its ring first, so a scope's end does not meet it again. */
void dm_handle_release(Handle *b) {
  ring_out(b);
  dm_tensor_unref(&b->t);
}

/* A freed handle and one that a scope released have messages of their own. */
dm_Tensor *dm_check_tensor(lua_State *L, int i) {
  const Handle *b = dm_handle(L, i);
  if (DM_LIKELY(b && b->t)) return b->t;
  if (!b) {
    dm_raise_text(L, "argument %d: tensor expected, got %s%s", i, luaL_typename(L, i),
                  i == 1 && lua_isnone(L, 1) ? "; hint: a method takes a colon, x:name()" : "");
  }
  dm_raise_text(L, b->by_scope
                       ? "tensor was released when its scope closed; hint: dm.keep(t), or "
                         "return it from the scope's function"
                       : "tensor was freed");
  return NULL;
}

/* The time of the clock in seconds. */
static double seconds_of(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The monotonic time, by which the budget of collections is measured. */
static double seconds(void) { return seconds_of(CLOCK_MONOTONIC); }

/* Runs a full collection and notes its cost, which budgets the next one. The cost is counted
   in processor time of this thread: other programs do not count. */
void dm_collect(lua_State *L, State *S) {
  const double start = seconds_of(CLOCK_THREAD_CPUTIME_ID);
  dm_ThreadState *const here = S->current;
  /* One full cycle runs the finalizers of all handles that it finds unreachable. */
  lua_gc(L, LUA_GCCOLLECT);
  if (S->current_thread != L) come_back(L, S, here);
  S->n_handle = 0;
  S->gc_end = seconds();
  S->gc_last = seconds_of(CLOCK_THREAD_CPUTIME_ID) - start;
  S->gc_count++;
  S->gc_seconds += S->gc_last;
}

/* The collection frees tensors into the allocator's cache, so the cache is emptied after
   it. */
void dm_reclaim_memory(lua_State *L, State *S) {
  const dm_Device cpu = {DM_CPU, 0};
  dm_collect(L, S);
  dm_device_ops(cpu)->empty_cache(cpu);
}

/* Collects, and sets the limit a little above the bytes that are left. The limit falls by at
   most a tenth: a collection between two steps leaves less than the next step needs. */
static __attribute__((noinline)) void collect_and_learn(lua_State *L, State *S) {
  dm_collect(L, S);
  const int64_t left = dm_live_bytes();
  S->gc_limit = dm_max_i64(GC_FLOOR, dm_max_i64(left + left / 64, S->gc_limit / 10 * 9));
}

/* Whether a collection may run now, if collections get 1/parts of the time: the time since
   the last one must be parts - 1 times its cost. */
static bool may_collect(const State *S, int parts) {
  return seconds() - S->gc_end >= (parts - 1) * S->gc_last;
}

/* Runs a full collection when live bytes exceed the limit, whatever the collector's mode. The
   more they exceed it, the larger is the share of time that collections get: 1 %, one sixth
   above 125 %, no bound above 200 %. */
static void check_memory(lua_State *L, State *S) {
  const int64_t live = dm_live_bytes(), limit = S->gc_limit;
  if (DM_LIKELY(live <= limit)) return;
  if (live > 2 * limit || may_collect(S, live > limit + limit / 4 ? 6 : 100))
    collect_and_learn(L, S);
}

/* Runs a full collection after HANDLE_FLOOR new handles. A handle has a finalizer, so it lives
   through two cycles of Lua's collector, which counts a few bytes for each: left alone it lets
   handles pile up until no cache holds their tensors, and a sum of numbers takes three times
   as long. A collection may cost at most 1 us for each handle; where the host's own data make
   it costlier, it waits for HANDLE_SELDOM. None runs while the host has stopped the collector.
 */
static void check_handles(lua_State *L, State *S) {
  if (DM_LIKELY(++S->n_handle < HANDLE_FLOOR)) return;
  if (S->gc_last > HANDLE_FLOOR * 1e-6 && S->n_handle < HANDLE_SELDOM) return;
  if (lua_gc(L, LUA_GCISRUNNING)) dm_collect(L, S);
  S->n_handle = 0;
}

void dm_collect_before_backward(lua_State *L, State *S) {
  if (dm_live_bytes() > GC_FLOOR && may_collect(S, 100)) collect_and_learn(L, S);
}

Handle *dm_push_handle(lua_State *L, State *S) {
  Handle *b = lua_newuserdatauv(L, sizeof *b, 0);
  *b = (Handle){.magic = &dm_handle_magic};
  if (DM_UNLIKELY(S->current_thread != L)) (void)dm_enter(L); /* a finalizer was elsewhere */
  if (S->scope) {
    b->next = S->scope->next;
    b->prev = S->scope;
    b->next->prev = b;
    S->scope->next = b;
  }
  lua_pushvalue(L, lua_upvalueindex(UP_META));
  lua_setmetatable(L, -2);
  return b;
}

Handle *dm_push_own(lua_State *L, State *S) {
  Handle *b = dm_push_handle(L, S);
  ring_out(b);
  return b;
}

/* The handle owns the tensor before a collection may run. */
void dm_handle_fill(lua_State *L, State *S, Handle *b, dm_Tensor *t) {
  b->t = t;
  check_memory(L, S);
  check_handles(L, S);
}

/* Raises without Lua memory for the handle, and then t's reference is lost: see the
   header. */
void dm_push_tensor(lua_State *L, State *S, dm_Tensor *t) {
  dm_handle_fill(L, S, dm_push_handle(L, S), t);
}

/* The handle is pushed first: once the engine has made the tensor, nothing may raise before a
   handle owns it. */
int dm_push_call(lua_State *L, State *S, int op, int n_in, const int *at, const void *attr) {
  Handle *b = dm_push_handle(L, S);
  dm_Tensor *out = NULL, *in[2 + DM_MAX_DIM];
  for (int i = 0; i < n_in; i++) in[i] = dm_check_tensor(L, at[i]);
  DM_CHECK_HELD(L, S, n_in, in, dm_call(op, n_in, in, attr, &out));
  dm_handle_fill(L, S, b, out);
  return 1;
}

void dm_hold_all(int64_t n, dm_Tensor *const *in) {
  for (int64_t i = 0; i < n; i++)
    if (in[i]) dm_tensor_ref(in[i]);
}

void dm_let_go_all(int64_t n, dm_Tensor *const *in) {
  for (int64_t i = 0; i < n; i++) {
    dm_Tensor *t = in[i];
    dm_tensor_unref(&t);
  }
}

/* ---- arguments ---- */

/* luaL_setfuncs gives each function a copy of the two upvalues and pops them. */
void dm_set_functions(lua_State *L, const luaL_Reg *f, State *S) {
  lua_pushlightuserdata(L, S);
  luaL_getmetatable(L, "demilune.Tensor");
  luaL_setfuncs(L, f, 2);
}

void dm_close_metatable(lua_State *L, const char *name) {
  lua_pushstring(L, name);
  lua_setfield(L, -2, "__metatable");
}

/* luaL_newmetatable says whether the class is new in this state. */
void dm_register_class(lua_State *L, const char *name, const luaL_Reg *methods, State *S) {
  if (luaL_newmetatable(L, name)) {
    lua_newtable(L);
    for (; methods->name; methods++) {
      const luaL_Reg one[] = {*methods, {NULL, NULL}};
      const bool event = strncmp(methods->name, "__", 2) == 0;
      lua_pushvalue(L, event ? -2 : -1);
      dm_set_functions(L, one, S);
      lua_pop(L, 1);
    }
    lua_setfield(L, -2, "__index");
    dm_close_metatable(L, name);
  }
  lua_pop(L, 1);
}

void dm_ended_by(lua_State *L, const char *name, const char *event, lua_CFunction f) {
  if (luaL_newmetatable(L, name)) {
    lua_pushcfunction(L, f);
    lua_setfield(L, -2, event);
    dm_close_metatable(L, name);
  }
  lua_setmetatable(L, -2);
}

const char *dm_word(lua_State *L, int i) {
  size_t n;
  const char *word = lua_tolstring(L, i, &n);
  return strlen(word) == n ? word : "(a string with NUL)";
}

/* dm_nearest suggests a name for a misspelt one. */
dm_DType dm_check_dtype(lua_State *L, int i) {
  const char *name = lua_type(L, i) == LUA_TSTRING ? dm_word(L, i) : NULL;
  const dm_DType d = name ? dm_dtype_find(name) : DM_NO_DTYPE;
  if (d != DM_NO_DTYPE) return d;
#define LISTED(X, E, S, BITS, NAME, ...) NAME,
#define JOINED(X, E, S, BITS, NAME, ...) " " NAME
  static const char *const names[] = {DM_DTYPES(LISTED, )};
  const char *near = name ? dm_nearest(name, DM_COUNT(names), names) : NULL;
  if (near) dm_raise_text(L, "unknown dtype '%s'; did you mean '%s'?", name, near);
  dm_raise_text(L, "unknown dtype %s: wanted one of" DM_DTYPES(JOINED, ),
                name ? name : luaL_typename(L, i));
#undef LISTED
#undef JOINED
  return d;
}

dm_Device dm_check_device(lua_State *L, int i) {
  dm_Device d = {DM_CPU, 0};
  const char *name = lua_type(L, i) == LUA_TSTRING ? dm_word(L, i) : NULL;
  if (!name) dm_raise_text(L, "device: string expected, got %s", luaL_typename(L, i));
  else if (dm_device_parse(name, &d) != DM_OK || dm_device_check(d) != DM_OK) dm_raise(L);
  return d;
}

/* No error for a missing table: options are optional as a whole. */
int dm_option(lua_State *L, int i, const char *key) {
  if (lua_istable(L, i)) return lua_getfield(L, i, key);
  lua_pushnil(L);
  return LUA_TNIL;
}

/* Pushes "\n  what(a, b, c)". */
static const char *push_names(lua_State *L, const char *what, int n, const char *const *names) {
  lua_pushfstring(L, "\n  %s(", what);
  for (int k = 0; k < n; k++) {
    lua_pushfstring(L, "%s%s", k ? ", " : "", names[k]);
    lua_concat(L, 2);
  }
  lua_pushliteral(L, ")");
  lua_concat(L, 2);
  return lua_tostring(L, -1);
}

/* The position of the key at i among the n names; raises where it is none of them, as keys do
   that are no strings. */
static int position_of(lua_State *L, int i, const char *what, int n, const char *const *names) {
  const char *key = lua_type(L, i) == LUA_TSTRING ? dm_word(L, i) : "?";
  for (int k = 0; k < n; k++)
    if (strcmp(names[k], key) == 0) return k;
  const char *near = dm_nearest(key, n, names);
  const char *all = push_names(L, what, n, names);
  if (near)
    return dm_raise_text(L, "%s: unknown option '%s'; did you mean '%s'?%s", what, key, near,
                         all);
  return dm_raise_text(L, "%s: unknown option '%s'%s", what, key, all);
}

void dm_check_options(lua_State *L, const char *what, int i, int n, const char *const *names) {
  for (lua_pushnil(L); lua_next(L, i); lua_pop(L, 1)) position_of(L, -2, what, n, names);
}

void dm_position_options(lua_State *L, const char *what, int n, const char *const *names) {
  const int top = lua_gettop(L);
  const bool named = top > 0 && lua_istable(L, top) && lua_rawlen(L, top) == 0 &&
                     !luaL_getmetafield(L, top, "__index");
  lua_settop(L, top);
  if (top - named > n)
    dm_raise_text(L, "%s: argument %d is one too many%s", what, n + 1,
                  push_names(L, what, n, names));
  if (!named) {
    lua_settop(L, n);
    return;
  }
  const int options = n + 1;
  lua_settop(L, top > options ? top : options);
  if (top < options) {
    lua_pushvalue(L, top);
    lua_replace(L, options);
    lua_pushnil(L);
    lua_replace(L, top);
  }
  for (lua_pushnil(L); lua_next(L, options);) {
    const int k = position_of(L, -2, what, n, names);
    if (!lua_isnil(L, k + 1)) dm_raise_text(L, "%s: %s is given twice", what, names[k]);
    lua_replace(L, k + 1);
  }
  lua_settop(L, n);
}

bool dm_option_bool(lua_State *L, int i, const char *key, bool def) {
  const bool v = dm_option(L, i, key) == LUA_TNIL ? def : lua_toboolean(L, -1);
  lua_pop(L, 1);
  return v;
}

/* The edits that turn a into b: letters added, dropped, changed, or two neighbours exchanged.
   Row by row of Wagner and Fischer's table, of which an exchange needs the row before the last.
   Of a long word it is the bound max(n, m), which is near to nothing. */
static int distance(const char *a, const char *b) {
  enum { MAX = 32 };
  int rows[3][MAX + 1];
  const int n = (int)strlen(a), m = (int)strlen(b);
  if (n > MAX || m > MAX) return n > m ? n : m;
  for (int j = 0; j <= m; j++) rows[0][j] = j;
  for (int i = 1; i <= n; i++) {
    int *const row = rows[i % 3], *const up = rows[(i + 2) % 3],
               *const above = rows[(i + 1) % 3];
    row[0] = i;
    for (int j = 1; j <= m; j++) {
      int best = up[j - 1] + (a[i - 1] != b[j - 1]);
      if (up[j] + 1 < best) best = up[j] + 1;
      if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
          above[j - 2] + 1 < best)
        best = above[j - 2] + 1;
      row[j] = best;
    }
  }
  return rows[n % 3][m];
}

/* How far from a word a name is near: a third of the word's letters, or half of them where one
   begins with the other, as `evaluate` with `eval`. Beyond, names have nothing to do with it.
 */
static int reach(const char *word, const char *name) {
  const size_t n = strlen(word), m = strlen(name), both = n < m ? n : m;
  return (int)(both > 2 && memcmp(word, name, both) == 0 ? n / 2 : n / 3);
}

/* The first of the near names with the least distance. */
const char *dm_nearest(const char *word, int n, const char *const *names) {
  const char *best = NULL;
  int least = INT_MAX;
  for (int i = 0; i < n; i++) {
    const int d = distance(word, names[i]);
    if (d >= least || d > reach(word, names[i])) continue;
    least = d;
    best = names[i];
  }
  return best;
}

/* The order of strcmp, for qsort of an array of strings. */
static int by_bytes(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* _nearest(word, {[name] = anything}) -> the name nearest to word, or nil when none is near.
   The first in the
   alphabet wins a tie. */
static int nearest(lua_State *L) {
  const char *word = luaL_checkstring(L, 1);
  int n = 0;
  luaL_checktype(L, 2, LUA_TTABLE);
  for (lua_pushnil(L); lua_next(L, 2); lua_pop(L, 1)) n++;
  const char **names = lua_newuserdatauv(L, sizeof *names * (size_t)(n + 1), 0);
  const int most_names = n;
  n = 0;
  for (lua_pushnil(L); lua_next(L, 2) && n < most_names; lua_pop(L, 1))
    if (lua_type(L, -2) == LUA_TSTRING) names[n++] = lua_tostring(L, -2);
  qsort(names, (size_t)n, sizeof *names, by_bytes);
  lua_pushstring(L, dm_nearest(word, n, names));
  return 1;
}

const luaL_Reg dm_state_functions[] = {{"_nearest", nearest}, {NULL, NULL}};
