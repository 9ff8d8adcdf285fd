/* backward, autograd.grad, hooks, and gradients written in Lua. */
#include "base/alloc.h"
#include "base/error.h"
#include "bind/bind.h"

/* The coroutine that runs backward, for the functions it calls back. A Lua
   error in one is kept in the registry and raised again at the end. */
static _Thread_local lua_State *running;
static const char error_key = 0;

static int finish_walk(lua_State *L, lua_State *outer, dm_status st) {
  running = outer;
  if (st == DM_OK) return 0;
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &error_key) != LUA_TNIL) {
    lua_pushnil(L);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &error_key);
    return lua_error(L);
  }
  return dm_raise(L);
}

static int walk_flags(lua_State *L, int i, bool for_grad) {
  int flags = 0;
  const bool create = dm_option_bool(L, i, "create_graph", false);
  if (create) flags |= DM_CREATE_GRAPH;
  if (dm_option_bool(L, i, "retain_graph", create)) flags |= DM_RETAIN_GRAPH;
  if (for_grad && dm_option_bool(L, i, "allow_unused", false)) flags |= DM_ALLOW_UNUSED;
  return flags;
}

static void check_names(lua_State *L, int i, const char *what, int n,
                        const char *const *names) {
  if (!lua_istable(L, i)) return;
  lua_pushnil(L);
  while (lua_next(L, i)) {
    const char *k = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "?";
    bool known = false;
    for (int j = 0; j < n; j++) {
      const char *a = names[j], *b = k;
      while (*a && *a == *b) a++, b++;
      known |= *a == *b;
    }
    if (!known) {
      const char *near = dm_nearest(k, n, names);
      dm_raise_text(
          L, near ? "%s: unknown option '%s'; did you mean '%s'?" : "%s: unknown option '%s'",
          what, k, near);
    }
    lua_pop(L, 1);
  }
}

/* x:backward{gradient =, retain_graph =, create_graph =}; also x:backward(g) */
static int tensor_backward(lua_State *L) {
  static const char *const names[] = {"gradient", "retain_graph", "create_graph"};
  dm_enter(L);
  dm_Tensor *root = dm_check_tensor(L, 1), *seed = dm_to_tensor(L, 2);
  if (!seed) {
    check_names(L, 2, "backward", DM_COUNT(names), names);
    if (dm_option(L, 2, "gradient") != LUA_TNIL) seed = dm_check_tensor(L, -1);
  }
  const int flags = walk_flags(L, seed && dm_to_tensor(L, 2) ? 3 : 2, false);
  lua_State *outer = running;
  running = L;
  return finish_walk(L, outer, dm_backward(1, &root, &seed, flags));
}

/* Reads the tensors of a table (or the one tensor) at i into an array that
   lies in a userdata, pushed. */
static dm_Tensor **tensor_array(lua_State *L, int i, const char *what, int *n) {
  const bool one = dm_box(L, i) != NULL;
  if (!one && !lua_istable(L, i))
    dm_raise_text(L, "%s: tensor or table of tensors expected, got %s", what,
                  luaL_typename(L, i));
  *n = one ? 1 : (int)lua_rawlen(L, i);
  dm_Tensor **a = lua_newuserdatauv(L, sizeof *a * (size_t)(*n ? *n : 1), 0);
  for (int k = 0; k < *n; k++) {
    if (one) {
      a[k] = dm_check_tensor(L, i);
      continue;
    }
    lua_rawgeti(L, i, k + 1);
    a[k] = dm_to_tensor(L, -1);
    if (!a[k] && !lua_isnil(L, -1))
      dm_raise_text(L, "%s: item %d: tensor expected, got %s", what, k + 1,
                    luaL_typename(L, -1));
    lua_pop(L, 1);
  }
  return a;
}

/* autograd_grad(outputs, inputs, opts) -> gradients, as values */
static int autograd_grad(lua_State *L) {
  static const char *const names[] = {"grad_outputs", "retain_graph", "create_graph",
                                      "allow_unused"};
  State *S = dm_enter(L);
  lua_settop(L, 3);
  check_names(L, 3, "autograd.grad", DM_COUNT(names), names);
  int n_out, n_in, n_seed = 0;
  dm_Tensor **roots = tensor_array(L, 1, "autograd.grad: outputs", &n_out);
  dm_Tensor **inputs = tensor_array(L, 2, "autograd.grad: inputs", &n_in);
  dm_Tensor **seeds = NULL;
  if (dm_option(L, 3, "grad_outputs") != LUA_TNIL) {
    seeds = tensor_array(L, lua_gettop(L), "autograd.grad: grad_outputs", &n_seed);
    if (n_seed != n_out)
      return dm_raise_text(L, "autograd.grad: %d grad_outputs for %d outputs", n_seed, n_out);
  }
  for (int k = 0; k < n_out; k++)
    if (!roots[k]) return dm_raise_text(L, "autograd.grad: output %d is nil", k + 1);
  for (int k = 0; k < n_in; k++)
    if (!inputs[k]) return dm_raise_text(L, "autograd.grad: input %d is nil", k + 1);
  dm_Tensor **got = lua_newuserdatauv(L, sizeof *got * (size_t)(n_in ? n_in : 1), 0);
  luaL_checkstack(L, n_in + 4, NULL);
  const int flags = walk_flags(L, 3, true);
  lua_State *outer = running;
  running = L;
  const dm_status st = dm_grad(n_out, roots, seeds, n_in, inputs, flags, got);
  (void)finish_walk(L, outer, st);
  for (int k = 0; k < n_in; k++) {
    if (got[k]) dm_push_tensor(L, S, got[k]);
    else lua_pushnil(L);
  }
  return n_in;
}

/* ---- Lua functions that the engine calls ---- */

typedef struct Callback {
  lua_State *main; /* for the release, which has no coroutine at hand */
  State *S;
  int ref; /* the function, in the registry */
  int n_out, n_in;
  char name[48];
} Callback;

/* A closure with the binding's two upvalues around fn's registry entry makes
   dm_push_box work: it needs them. */
static int trampoline(lua_State *L);

static Callback *callback_new(lua_State *L, int fn) {
  Callback *c = dm_alloc_zero(sizeof *c);
  if (!c) {
    dm_raise_text(L, "out of memory");
    return NULL;
  }
  lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_MAINTHREAD);
  c->main = lua_tothread(L, -1);
  lua_pop(L, 1);
  c->S = state_of(L);
  lua_pushvalue(L, lua_upvalueindex(UP_STATE));
  lua_pushvalue(L, lua_upvalueindex(UP_META));
  lua_pushvalue(L, fn);
  lua_pushcclosure(L, trampoline, 3);
  c->ref = luaL_ref(L, LUA_REGISTRYINDEX);
  return c;
}

static void callback_drop(void *ctx) {
  Callback *c = ctx;
  if (!c) return;
  luaL_unref(running ? running : c->main, LUA_REGISTRYINDEX, c->ref);
  dm_free(c);
}

/* Gradients in, gradients out, across the border. */
typedef struct Crossing {
  int n_in, n_out;
  dm_Tensor **in, **out; /* out: new references */
  const char *name;
} Crossing;

/* Upvalue 3: the function; argument 1: the crossing. Pushes each gradient (or
   nil), calls, and takes the results. */
static int trampoline(lua_State *L) {
  State *S = dm_enter(L);
  Crossing *x = lua_touserdata(L, 1);
  luaL_checkstack(L, x->n_in + x->n_out + 4, NULL);
  lua_pushvalue(L, lua_upvalueindex(3));
  for (int i = 0; i < x->n_in; i++) {
    if (x->in[i]) dm_push_tensor(L, S, dm_tensor_ref(x->in[i]));
    else lua_pushnil(L);
  }
  lua_call(L, x->n_in, x->n_out);
  for (int i = 0; i < x->n_out; i++) {
    const int at = i - x->n_out;
    dm_Tensor *t = dm_to_tensor(L, at);
    if (!t && !lua_isnil(L, at))
      return luaL_error(L, "%s: gradient %d: tensor or nil expected, got %s", x->name, i + 1,
                        luaL_typename(L, at));
    x->out[i] = t ? dm_tensor_ref(t) : NULL;
  }
  return 0;
}

static dm_status cross(Callback *c, Crossing *x) {
  lua_State *L = running;
  if (!L) return dm_fail(DM_ESTATE, "%s: no Lua state runs this backward", x->name);
  dm_Modes *modes = dm_modes_current;
  if (!lua_checkstack(L, 6)) return dm_fail(DM_EMEM, "%s: Lua stack overflow", x->name);
  for (int i = 0; i < x->n_out; i++) x->out[i] = NULL;
  lua_rawgeti(L, LUA_REGISTRYINDEX, c->ref);
  lua_pushlightuserdata(L, x);
  const int st = lua_pcall(L, 1, 0, 0);
  dm_modes_current = modes;
  if (st == LUA_OK) return DM_OK;
  lua_rawsetp(L, LUA_REGISTRYINDEX, &error_key);
  for (int i = 0; i < x->n_out; i++) dm_tensor_unref(&x->out[i]);
  return dm_fail(DM_ESTATE, "%s: error in a Lua function", x->name);
}

static dm_status custom_backward(void *ctx, int n_out, dm_Tensor **gy, int n_in,
                                 dm_Tensor **gx) {
  Callback *c = ctx;
  Crossing x = {n_out, n_in, gy, gx, c->name};
  return cross(c, &x);
}

/* custom_record(name, inputs, outputs, backward_fn) */
static int custom_record(lua_State *L) {
  dm_enter(L);
  const char *name = luaL_checkstring(L, 1);
  luaL_checktype(L, 4, LUA_TFUNCTION);
  int n_in, n_out;
  dm_Tensor **in = tensor_array(L, 2, name, &n_in);
  dm_Tensor **out = tensor_array(L, 3, name, &n_out);
  if (n_out > 255) return dm_raise_text(L, "%s: more than 255 outputs", name);
  Callback *c = callback_new(L, 4);
  c->n_in = n_in;
  c->n_out = n_out;
  for (int i = 0; i < (int)sizeof c->name - 1 && name[i]; i++) c->name[i] = name[i];
  const dm_Custom custom = {c->name, custom_backward, callback_drop, c};
  const dm_status st = dm_record_custom(custom, n_in, in, n_out, out);
  if (st != DM_OK) callback_drop(c);
  DM_CHECK(L, st);
  return 0;
}

static dm_status hook_call(void *ctx, dm_Tensor **g) {
  Callback *c = ctx;
  dm_Tensor *out = NULL;
  Crossing x = {1, 1, g, &out, "hook"};
  DM_TRY(cross(c, &x));
  if (!out) return DM_OK;
  if (!dm_same_shape(out, *g)) {
    dm_tensor_unref(&out);
    return dm_fail(DM_EARG, "hook: the gradient it returned has another shape");
  }
  dm_tensor_unref(g);
  *g = out;
  return DM_OK;
}

/* ---- handles of hooks ---- */

static int hook_remove(lua_State *L) {
  const int64_t *id = luaL_checkudata(L, 1, "demilune.Hook");
  lua_getiuservalue(L, 1, 1);
  dm_Tensor *t = dm_to_tensor(L, -1);
  if (t) dm_remove_hook(t, *id);
  return 0;
}

static int register_hook(lua_State *L) {
  State *S = dm_enter(L);
  dm_Tensor *t = dm_check_tensor(L, 1);
  luaL_checktype(L, 2, LUA_TFUNCTION);
  int64_t *id = lua_newuserdatauv(L, sizeof *id, 1);
  *id = ++S->next_id;
  lua_pushvalue(L, 1);
  lua_setiuservalue(L, -2, 1);
  if (luaL_newmetatable(L, "demilune.Hook")) {
    lua_newtable(L);
    lua_pushcfunction(L, hook_remove);
    lua_setfield(L, -2, "remove");
    lua_setfield(L, -2, "__index");
  }
  lua_setmetatable(L, -2);
  Callback *c = callback_new(L, 2);
  dm_Hook *h = dm_alloc(sizeof *h);
  if (h) *h = (dm_Hook){.id = *id, .call = hook_call, .drop = callback_drop, .ctx = c};
  const dm_status st = h ? dm_add_hook(t, h) : dm_fail(DM_EMEM, "register_hook: out of memory");
  if (st != DM_OK) {
    dm_free(h);
    callback_drop(c);
    return dm_raise(L);
  }
  return 1;
}

static int retain_grad(lua_State *L) {
  dm_enter(L);
  DM_CHECK(L, dm_retain_grad(dm_check_tensor(L, 1)));
  lua_settop(L, 1);
  return 1;
}

const luaL_Reg dm_grad_functions[] = {
    {"autograd_grad", autograd_grad}, {"custom_record", custom_record}, {NULL, NULL}};
const luaL_Reg dm_grad_methods[] = {{"backward", tensor_backward},
                                    {"register_hook", register_hook},
                                    {"retain_grad", retain_grad},
                                    {NULL, NULL}};
