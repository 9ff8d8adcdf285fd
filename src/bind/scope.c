/* Scopes: no_grad, enable_grad, inference_mode, dm.device, dm.cuda.stream, dm.scope. A scope is
   a to-be-closed value that switches when it is made and switches back once, on every way out;
   given a function it runs it inside and returns its results. */
#include "base/error.h"
#include "bind/bind.h"

typedef enum Kind { OFF, ON, INFERENCE, DEVICE, STREAM, MEMORY } Kind;

typedef struct Scope {
  Kind kind;
  bool open, old_grad, old_inference;
  dm_Device device, old_device; /* DEVICE: where tensors are made; STREAM: the stream's */
  dm_Stream stream, old_stream; /* STREAM: where its device's work goes */
  dm_ThreadState *thread;       /* of the coroutine that opened it */
  State *S;
  Handle ring;   /* MEMORY: handles made inside */
  Handle *outer; /* the scope around */
} Scope;

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
  while (c->ring.next != &c->ring) {
    Handle *b = c->ring.next;
    b->by_scope = true;
    dm_handle_release(b);
  }
  unstack(c);
}

static int scope_close(lua_State *L) {
  scope_shut(lua_touserdata(L, 1));
  return 0;
}

/* Takes every tensor among the values from i on (and in tables, one level
   deep) out of the scope. */
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

static int keep(lua_State *L) {
  keep_values(L, 1, lua_gettop(L), 0);
  return lua_gettop(L);
}

/* Runs the function at 1 in the scope at 2; the results are kept. */
static int run_inside(lua_State *L, Scope *c, int n_args) {
  const int base = lua_gettop(L) - n_args; /* function below its arguments */
  const int st = lua_pcall(L, n_args, LUA_MULTRET, 0);
  const int last = lua_gettop(L);
  if (st == LUA_OK && c->kind == MEMORY) keep_values(L, base, last, 0);
  scope_shut(c);
  if (st != LUA_OK) return lua_error(L);
  return last - base + 1;
}

/* Makes the userdata on top hold the coroutine, whose thread state it points to. */
static void keep_coroutine(lua_State *L) {
  lua_pushthread(L);
  lua_setiuservalue(L, -2, 1);
}

/* `how` says what to switch; a stream is at 1, and the scope keeps it alive. */
static Scope *push_scope(lua_State *L, State *S, Scope how) {
  Scope *c = lua_newuserdatauv(L, sizeof *c, 2);
  *c = how;
  c->S = S;
  keep_coroutine(L);
  if (how.kind == STREAM) {
    lua_pushvalue(L, 1);
    lua_setiuservalue(L, -2, 2);
  }
  luaL_setmetatable(L, "demilune.Scope");
  scope_open(L, S, c);
  return c;
}

/* The function, if any, is at 1; for a stream at 2. */
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

static int scope_of(lua_State *L, Kind kind) { return scope_on(L, (Scope){.kind = kind}); }

/* device(name), device(name, fn, ...): tensors are made there unless a call names
   a device: creation ops, dm.tensor, the parameters of modules. */
static int device(lua_State *L) {
  dm_enter(L);
  const dm_Device d = dm_check_device(L, 1);
  lua_remove(L, 1);
  return scope_on(L, (Scope){.kind = DEVICE, .device = d});
}

static int get_default_device(lua_State *L) {
  char name[16];
  lua_pushstring(L, dm_device_name(dm_enter(L)->current->device, name));
  return 1;
}

int dm_stream_scope(lua_State *L, dm_Stream stream) {
  return scope_on(L, (Scope){.kind = STREAM, .stream = stream});
}

static int no_grad(lua_State *L) { return scope_of(L, OFF); }
static int enable_grad(lua_State *L) { return scope_of(L, ON); }
static int inference_mode(lua_State *L) { return scope_of(L, INFERENCE); }
static int memory_scope(lua_State *L) { return scope_of(L, MEMORY); }

/* The wrapped function; upvalues: state, meta, function, kind, device. */
static int wrapped(lua_State *L) {
  lua_pushvalue(L, lua_upvalueindex(3));
  lua_insert(L, 1);
  return scope_on(L, (Scope){.kind = (Kind)lua_tointeger(L, lua_upvalueindex(4)),
                             .device = dm_device_of(lua_tointeger(L, lua_upvalueindex(5)))});
}

/* scope:wrap(fn): closes this one, and opens one at each call of the result. */
static int scope_wrap(lua_State *L) {
  Scope *c = luaL_checkudata(L, 1, "demilune.Scope");
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

static int set_grad_enabled(lua_State *L) {
  dm_enter(L)->current->grad = lua_toboolean(L, 1);
  return 0;
}
static int is_grad_enabled(lua_State *L) {
  lua_pushboolean(L, dm_enter(L)->current->grad);
  return 1;
}
static int is_inference_mode_enabled(lua_State *L) {
  lua_pushboolean(L, dm_enter(L)->current->inference);
  return 1;
}

void dm_register_scopes(lua_State *L, State *S) {
  static const luaL_Reg meta[] = {
      {"__close", scope_close}, {"__gc", scope_close}, {NULL, NULL}};
  DM_UNUSED(S);
  if (luaL_newmetatable(L, "demilune.Scope")) {
    luaL_setfuncs(L, meta, 0);
    lua_newtable(L);
    lua_pushcfunction(L, scope_wrap);
    lua_setfield(L, -2, "wrap");
    lua_pushcfunction(L, scope_close);
    lua_setfield(L, -2, "close");
    lua_setfield(L, -2, "__index");
  }
  lua_pop(L, 1);
}

const luaL_Reg dm_scope_functions[] = {{"no_grad", no_grad},
                                       {"enable_grad", enable_grad},
                                       {"inference_mode", inference_mode},
                                       {"device", device},
                                       {"get_default_device", get_default_device},
                                       {"scope", memory_scope},
                                       {"keep", keep},
                                       {"set_grad_enabled", set_grad_enabled},
                                       {"is_grad_enabled", is_grad_enabled},
                                       {"is_inference_mode_enabled", is_inference_mode_enabled},
                                       {NULL, NULL}};
