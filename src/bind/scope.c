/* Scopes: no_grad, enable_grad, inference_mode, dm.device, dm.cuda.stream, dm.scope. A scope
   is a to-be-closed value that switches when it is made and restores the old setting once, on
   every way out: `local _ <close> = dm.no_grad()`, scope:close(), or its collection, which
   warns with the line that forgot it. Given a function it runs the function inside and returns
   its results; an error in it closes the scope as it passes, so that a traceback has all
   frames.

   dm.scope frees memory without the collector: each handle made inside enters a ring, and the
   end of the scope, but not its collection, releases every handle still in it. dm.keep, and
   being a result of the scope's function, take a handle out of the ring. The scopes form a
   stack through `outer`, which coroutines may close in another order than they opened it. */
#include "base/error.h"
#include "bind/bind.h"

/* The settings that a scope changes: grad mode off or on, inference mode, the device of new
   tensors, the stream of a device's work, or the ring that new handles enter. */
typedef enum Kind { OFF, ON, INFERENCE, DEVICE, STREAM, MEMORY } Kind;

static const char scope_key = 0; /* its address marks a scope */

typedef struct Scope {
  const void *mark;
  Kind kind;
  bool open, old_grad, old_inference;
  dm_Device device, old_device; /* DEVICE: where tensors are made; STREAM: the stream's */
  dm_Stream stream, old_stream; /* STREAM: where its device's work goes */
  dm_ThreadState *thread;       /* of the coroutine that opened it */
  State *S;
  Handle ring;   /* MEMORY: handles made inside */
  Handle *outer; /* the scope around */
  int line;      /* that opened it, in the function that user value 3 is; or -1 */
} Scope;

enum { OPENER = 3 };

/* Saves the thread state's settings in c and switches those of its kind. enable_grad inside
   inference_mode leaves inference; no_grad stays in it. */
static void scope_open(lua_State *L, State *S, Scope *c) {
  DM_UNUSED(L);
  c->thread = S->current;
  c->open = true;
  c->old_grad = c->thread->grad;
  c->old_inference = c->thread->inference;
  c->old_device = c->thread->device;
  c->old_stream = c->thread->stream;
  if (c->kind == DEVICE) {
    c->thread->device = c->device;
    return;
  }
  if (c->kind == STREAM) {
    c->thread->stream = c->stream;
    return;
  }
  if (c->kind == MEMORY) {
    c->ring.next = c->ring.prev = &c->ring;
    c->outer = S->scope;
    S->scope = &c->ring;
    return;
  }
  c->thread->grad = c->kind == ON;
  c->thread->inference = c->kind == INFERENCE || (c->kind == OFF && c->old_inference);
}

/* Takes c out of the stack of scopes, of which it need not be the top. */
static void unstack(const Scope *c) {
  Handle **at = &c->S->scope;
  while (*at && *at != &c->ring)
    at = &((Scope *)(void *)((char *)*at - offsetof(Scope, ring)))->outer;
  if (*at) *at = c->outer;
}

/* Restores what the scope switched; the second call does nothing. A memory scope releases the
   handles left in its ring, and each notes that for its error message. */
static void scope_shut(Scope *c) {
  if (!c->open) return;
  c->open = false;
  if (c->kind == DEVICE) {
    c->thread->device = c->old_device;
    return;
  }
  if (c->kind == STREAM) {
    c->thread->stream = c->old_stream;
    return;
  }
  if (c->kind != MEMORY) {
    c->thread->grad = c->old_grad;
    c->thread->inference = c->old_inference;
    return;
  }
  /* Handles that the collector took meanwhile have left the ring themselves. */
  while (c->ring.next != &c->ring) {
    Handle *b = c->ring.next;
    b->by_scope = true;
    dm_handle_release(b);
  }
  unstack(c);
}

static Scope *check_scope(lua_State *L) {
  Scope *c = dm_marked(L, 1, sizeof *c, &scope_key);
  if (!c) luaL_typeerror(L, 1, "demilune.Scope");
  return c;
}

/* __close and scope:close(). */
static int scope_close(lua_State *L) {
  scope_shut(check_scope(L));
  return 0;
}

/* Does a coroutine wait inside the scope at 1? Nobody resumes it when both are collected. */
static bool waits_inside(lua_State *L) {
  lua_getiuservalue(L, 1, 1);
  lua_State *T = lua_tothread(L, -1);
  return T && lua_status(T) == LUA_YIELD;
}

/* What opens a scope of a kind that has no arguments. */
static const char *const calls[] = {[OFF] = "no_grad",
                                    [ON] = "enable_grad",
                                    [INFERENCE] = "inference_mode",
                                    [MEMORY] = "scope"};

/* __gc: shuts a forgotten scope, and warns: it was in force longer than anybody meant. One of
   a device or a stream may be meant for the rest of the program. A forgotten dm.scope releases
   nothing: what it caught until the collector came is still in use. */
static int scope_gc(lua_State *L) {
  Scope *c = check_scope(L);
  const char *call = c->kind == DEVICE || c->kind == STREAM ? NULL : calls[c->kind];
  const bool forgotten = c->open && c->line > 0 && call && !waits_inside(L);
  if (c->open && c->kind == MEMORY)
    while (c->ring.next != &c->ring) dm_handle_keep(c->ring.next);
  scope_shut(c);
  if (!forgotten) return 0;
  lua_pushfstring(L,
                  "%s: this scope was never closed; hint: local _ <close> = dm.%s(), or "
                  "dm.%s(fn)",
                  call, call, call);
  dm_warn_forgotten(L, c->line, OPENER, lua_tostring(L, -1));
  return 0;
}

/* Takes every tensor among the values i .. last out of its scope, also those inside tables,
   down to the fourth level. */
static void keep_values(lua_State *L, int i, int last, int depth) {
  for (; i <= last; i++) {
    Handle *b = dm_handle(L, i);
    if (b) {
      dm_handle_keep(b);
    } else if (lua_istable(L, i) && depth < 4) {
      luaL_checkstack(L, 4, NULL);
      lua_pushnil(L);
      while (lua_next(L, i)) {
        const int top = lua_gettop(L);
        keep_values(L, top, top, depth + 1);
        lua_pop(L, 1);
      }
    }
  }
}

/* dm.keep(...) -> the same values: their tensors, also those in tables, outlive the scope. */
static int keep(lua_State *L) {
  keep_values(L, 1, lua_gettop(L), 0);
  return lua_gettop(L);
}

/* Calls the function that lies below its n_args arguments on top, closes the scope at 1 and
   returns the number of results. Tensors among the results of a memory scope are kept. */
static int run_inside(lua_State *L, Scope *c, int n_args) {
  const int base = lua_gettop(L) - n_args; /* function below its arguments */
  lua_toclose(L, 1);
  lua_call(L, n_args, LUA_MULTRET);
  const int last = lua_gettop(L);
  if (c->kind == MEMORY) keep_values(L, base, last, 0);
  scope_shut(c);
  return last - base + 1;
}

/* Makes the userdata on top hold the coroutine, whose thread state it points to. */
static void keep_coroutine(lua_State *L) {
  lua_pushthread(L);
  lua_setiuservalue(L, -2, 1);
}

/* Pushes the scope and opens it; `how` says what to switch. User value 1 holds the coroutine,
   2 the stream at 1 (STREAM), so that neither is collected while the scope points to it, 3 the
   function that calls. */
static Scope *push_scope(lua_State *L, State *S, Scope how) {
  Scope *c = lua_newuserdatauv(L, sizeof *c, 3);
  *c = how;
  c->mark = &scope_key;
  c->S = S;
  c->line = dm_note_line(L, 1, OPENER);
  if (how.kind == STREAM) {
    lua_pushvalue(L, 1);
    lua_setiuservalue(L, -2, 2);
  }
  (void)dm_enter(L); /* a finalizer may have entered another coroutine */
  keep_coroutine(L);
  luaL_setmetatable(L, "demilune.Scope");
  scope_open(L, S, c);
  return c;
}

/* Opens the scope and returns it, or the results of the function at 1 (at 2 for a stream,
   which is at 1) when there is one. */
static int scope_on(lua_State *L, Scope how) {
  State *S = dm_enter(L);
  Scope *c;
  if (how.kind == STREAM) {
    c = push_scope(L, S, how);
    lua_replace(L, 1);
    if (!lua_isfunction(L, 2)) {
      lua_settop(L, 1);
      return 1;
    }
    return run_inside(L, c, lua_gettop(L) - 2);
  }
  c = push_scope(L, S, how);
  if (!lua_isfunction(L, 1)) return 1;
  lua_insert(L, 1); /* scope below, anchored; the function and its arguments above */
  return run_inside(L, c, lua_gettop(L) - 2);
}

/* A scope of a kind that has no arguments. Another value than a function at 1 was meant for
   something, and is refused. */
static int scope_of(lua_State *L, Kind kind) {
  if (!lua_isnoneornil(L, 1) && !lua_isfunction(L, 1))
    return dm_raise_text(L, "%s: %s given, wanted a function or nothing", calls[kind],
                         luaL_typename(L, 1));
  return scope_on(L, (Scope){.kind = kind});
}

/* device(name), device(name, fn, ...): tensors are made there unless a call names
   a device: creation ops, dm.tensor, the parameters of modules. */
static int device(lua_State *L) {
  dm_enter(L);
  const dm_Device d = dm_check_device(L, 1);
  lua_remove(L, 1);
  return scope_on(L, (Scope){.kind = DEVICE, .device = d});
}

/* dm.get_default_device() -> "cpu", "cuda:0": the device of the innermost dm.device. */
static int get_default_device(lua_State *L) {
  char name[16];
  lua_pushstring(L, dm_device_name(dm_enter(L)->current->device, name));
  return 1;
}

/* dm.set_default_dtype(dtype): that of floats which are made without one, at first float32;
   raises for a dtype that is no float. Coroutines made later inherit it. */
static int set_default_dtype(lua_State *L) {
  const dm_DType t = dm_check_dtype(L, 1);
  if (!dm_is_float(t))
    return dm_raise_text(L, "set_default_dtype: %s given, wanted a float", dm_dtype_name(t));
  dm_enter(L)->current->dtype = (uint8_t)t;
  return 0;
}

/* dm.get_default_dtype() -> "float32" */
static int get_default_dtype(lua_State *L) {
  lua_pushstring(L, dm_dtype_name((dm_DType)dm_enter(L)->current->dtype));
  return 1;
}

/* dm.use_deterministic_algorithms(mode): whether ops may only run algorithms that give the same
   bits in every run; at first false. Coroutines made later inherit it. */
static int use_deterministic_algorithms(lua_State *L) {
  if (!lua_isboolean(L, 1))
    return dm_raise_text(L, "use_deterministic_algorithms: %s given, wanted true or false",
                         luaL_typename(L, 1));
  dm_enter(L)->current->deterministic = lua_toboolean(L, 1);
  return 0;
}

/* dm.are_deterministic_algorithms_enabled() -> boolean */
static int are_deterministic_algorithms_enabled(lua_State *L) {
  lua_pushboolean(L, dm_enter(L)->current->deterministic);
  return 1;
}

/* The stream's userdata is at 1, where scope_on expects it. */
int dm_stream_scope(lua_State *L, dm_Stream stream) {
  return scope_on(L, (Scope){.kind = STREAM, .stream = stream});
}

/* dm.no_grad(), dm.enable_grad(), dm.inference_mode(), dm.scope() -> scope; with (fn, ...) ->
   fn's results. As in PyTorch, inference_mode(false, ...) leaves inference and records. */
static int no_grad(lua_State *L) { return scope_of(L, OFF); }
static int enable_grad(lua_State *L) { return scope_of(L, ON); }
static int inference_mode(lua_State *L) {
  const bool leaves = lua_isboolean(L, 1) && !lua_toboolean(L, 1);
  if (lua_isboolean(L, 1)) lua_remove(L, 1);
  return scope_of(L, leaves ? ON : INFERENCE);
}
static int memory_scope(lua_State *L) { return scope_of(L, MEMORY); }

/* The function that scope:wrap returns: it opens a new scope around each call. Its upvalues
   are state, meta, function, kind, device. */
static int wrapped(lua_State *L) {
  lua_pushvalue(L, lua_upvalueindex(3));
  lua_insert(L, 1);
  return scope_on(L, (Scope){.kind = (Kind)lua_tointeger(L, lua_upvalueindex(4)),
                             .device = dm_device_of(lua_tointeger(L, lua_upvalueindex(5)))});
}

/* scope:wrap(fn) -> function that runs fn in a scope of this kind at each call, as PyTorch's
   decorator @torch.no_grad() does. It closes this scope. Raises for a stream's scope. */
static int scope_wrap(lua_State *L) {
  Scope *c = check_scope(L);
  luaL_checktype(L, 2, LUA_TFUNCTION);
  if (c->kind == STREAM)
    return dm_raise_text(L, "wrap: a stream's scope has no wrapper; hint: stream(s, fn)");
  scope_shut(c);
  lua_pushlightuserdata(L, c->S);
  luaL_getmetatable(L, "demilune.Tensor");
  lua_pushvalue(L, 2);
  lua_pushinteger(L, c->kind);
  lua_pushinteger(L, dm_device_code(c->device));
  lua_pushcclosure(L, wrapped, 5);
  return 1;
}

/* dm.set_grad_enabled(flag): switches this coroutine's grad mode without a scope. */
static int set_grad_enabled(lua_State *L) {
  dm_enter(L)->current->grad = lua_toboolean(L, 1);
  return 0;
}
/* dm.is_grad_enabled() -> boolean; dm.is_inference_mode_enabled() -> boolean. */
static int is_grad_enabled(lua_State *L) {
  lua_pushboolean(L, dm_enter(L)->current->grad);
  return 1;
}
static int is_inference_mode_enabled(lua_State *L) {
  lua_pushboolean(L, dm_enter(L)->current->inference);
  return 1;
}

/* The methods wrap and close need no upvalues: a scope holds the State itself. */
void dm_register_scopes(lua_State *L, State *S) {
  static const luaL_Reg meta[] = {{"__close", scope_close}, {"__gc", scope_gc}, {NULL, NULL}};
  DM_UNUSED(S);
  if (luaL_newmetatable(L, "demilune.Scope")) {
    luaL_setfuncs(L, meta, 0);
    lua_newtable(L);
    lua_pushcfunction(L, scope_wrap);
    lua_setfield(L, -2, "wrap");
    lua_pushcfunction(L, scope_close);
    lua_setfield(L, -2, "close");
    lua_setfield(L, -2, "__index");
    dm_close_metatable(L, "demilune.Scope");
  }
  lua_pop(L, 1);
}

const luaL_Reg dm_scope_functions[] = {
    {"no_grad", no_grad},
    {"enable_grad", enable_grad},
    {"inference_mode", inference_mode},
    {"device", device},
    {"get_default_device", get_default_device},
    {"set_default_dtype", set_default_dtype},
    {"get_default_dtype", get_default_dtype},
    {"use_deterministic_algorithms", use_deterministic_algorithms},
    {"are_deterministic_algorithms_enabled", are_deterministic_algorithms_enabled},
    {"scope", memory_scope},
    {"keep", keep},
    {"set_grad_enabled", set_grad_enabled},
    {"is_grad_enabled", is_grad_enabled},
    {"is_inference_mode_enabled", is_inference_mode_enabled},
    {NULL, NULL}};
