/* backward, autograd.grad, hooks, gradients written in Lua, checkpoints, anomaly detection,
   and autocast's state as a value.

   The engine calls a Lua function through a Callback: its closure is in the registry, with
   the binding's two upvalues, which the making of handles needs. `cross` calls it under
   lua_pcall, so that a Lua error never jumps over engine frames; the error value is kept in
   the registry, the engine unwinds with a status, and end_backward raises the value again. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "bind/bind.h"
#include "engine/kept.h"
#include "engine/policy.h"
#include "engine/remake.h"

/* The coroutine that runs backward, for the functions it calls back; NULL outside backward. A
   Lua error in one of them is kept in the registry and raised again at the end, with the part
   of the engine's message that names the node's origin (from its second line on). */
static _Thread_local lua_State *running;
static const char error_key = 0, where_key = 0; /* only their addresses count */

/* Ends a backward pass that began with `outer` running: restores it, and raises the kept Lua
   error or the engine's message unless st is DM_OK. The kept error is removed from the
   registry. */
static int end_backward(lua_State *L, lua_State *outer, dm_status st) {
  running = outer;
  if (st == DM_OK) return 0;
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &error_key) != LUA_TNIL) {
    lua_pushnil(L);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &error_key);
    const char *origin = strchr(dm_error(), '\n');
    if (origin && lua_type(L, -1) == LUA_TSTRING) {
      lua_pushstring(L, origin);
      lua_concat(L, 2);
    }
    return lua_error(L);
  }
  return dm_raise(L);
}

/* The engine's flags from the options table at i. retain_graph defaults to create_graph, as
   in PyTorch. */
static int pass_flags(lua_State *L, int i, bool for_grad) {
  int flags = 0;
  const bool create = dm_option_bool(L, i, "create_graph", false);
  if (create) flags |= DM_CREATE_GRAPH;
  if (dm_option_bool(L, i, "retain_graph", create)) flags |= DM_RETAIN_GRAPH;
  if (for_grad && dm_option_bool(L, i, "allow_unused", false)) flags |= DM_ALLOW_UNUSED;
  return flags;
}

enum { MAX_ARRAY = 1 << 24 };

/* Pushes a userdata for the tensors of the table at i, or for the one tensor there. *n is the
   length of a table with holes, or -1; then it is set. */
static dm_Tensor **array_for(lua_State *L, int i, const char *what, int *n) {
  const bool one = dm_handle(L, i) != NULL;
  if (!one && !lua_istable(L, i))
    dm_raise_text(L, "%s: tensor or table of tensors expected, got %s", what,
                  luaL_typename(L, i));
  if (one) *n = 1;
  else if (*n < 0) *n = (int)lua_rawlen(L, i);
  if (*n < 0 || *n > MAX_ARRAY) dm_raise_text(L, "%s: %d tensors", what, *n);
  return lua_newuserdatauv(L, sizeof(dm_Tensor *) * (size_t)(*n ? *n : 1), 0);
}

/* Reads n tensors into the array; they are borrowed from the table at i, where a hole becomes
   NULL. */
static void fill_array(lua_State *L, int i, const char *what, int n, dm_Tensor **a) {
  const bool one = dm_handle(L, i) != NULL;
  for (int k = 0; k < n; k++) {
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
}

/* array_for and fill_array. The tensors are good until the next call that may collect. */
static dm_Tensor **tensor_array(lua_State *L, int i, const char *what, int *n) {
  dm_Tensor **a = array_for(L, i, what, n);
  fill_array(L, i, what, *n, a);
  return a;
}

/* Before a backward pass: warnings, a collection, a note for other ranks. They may run Lua. */
static void begin_backward(lua_State *L, State *S) {
  if (!running) {
    dm_warn_autocast(L, S, "backward");
    dm_collect_before_backward(L, S);
    dm_tell_ranks_line(L, S);
  }
  (void)dm_enter(L);
}

/* The pass from n roots, whose seeds may be NULL, to the inputs, or to all leaves where inputs
   is NULL. Raises its errors. */
static void run_backward(lua_State *L, int n, dm_Tensor **roots, dm_Tensor **seeds, int n_in,
                         dm_Tensor **inputs, int flags) {
  lua_State *outer = running;
  dm_hold_all(n, roots); /* hooks and functions in Lua may free them */
  dm_hold_all(seeds ? n : 0, seeds);
  dm_hold_all(n_in, inputs);
  running = L;
  const dm_status st = inputs ? dm_backward_into(n, roots, seeds, n_in, inputs, flags)
                              : dm_backward(n, roots, seeds, flags);
  dm_let_go_all(n, roots);
  dm_let_go_all(seeds ? n : 0, seeds);
  dm_let_go_all(n_in, inputs);
  (void)end_backward(L, outer, st);
  if (!outer) dm_wait_for_ranks(L);
}

static const char INPUTS_OF_BACKWARD[] = "backward: inputs";

/* Pushes the option inputs of the table at `options` and an array for it; NULL where it is nil.
 */
static dm_Tensor **inputs_for(lua_State *L, int options, int *n) {
  *n = -1;
  if (dm_option(L, options, "inputs") == LUA_TNIL) {
    *n = 0;
    return NULL;
  }
  dm_Tensor **inputs = array_for(L, lua_gettop(L), INPUTS_OF_BACKWARD, n);
  if (*n == 0)
    dm_raise_text(L, "backward: inputs is empty, wanted a tensor or more; hint: without inputs "
                     "all leaves get gradients");
  return inputs;
}

/* Fills the array of inputs_for, which is on top, from the value at i. */
static void fill_inputs(lua_State *L, int i, int n, dm_Tensor **inputs) {
  if (n > 0) fill_array(L, i, INPUTS_OF_BACKWARD, n, inputs);
  for (int k = 0; k < n; k++)
    if (!inputs[k]) dm_raise_text(L, "backward: input %d is nil", k + 1);
}

/* x:backward{gradient =, retain_graph =, create_graph =, inputs =} or x:backward(g, {...}):
   adds to the gradients of the leaves, or of the inputs. Raises on unknown options and the
   engine's errors, whose message names the origin of the node at fault. With create_graph
   x.grad has a history that holds x, as in PyTorch: memory that comes back when x.grad = nil
   (zero_grad). autograd.grad makes no such cycle. */
static int tensor_backward(lua_State *L) {
  static const char *const names[] = {"gradient", "retain_graph", "create_graph", "inputs"};
  State *S = dm_enter(L);
  dm_check_tensor(L, 1);
  const bool given = dm_handle(L, 2) != NULL;
  const int options = given ? 3 : 2;
  lua_settop(L, 3);
  if (lua_istable(L, options)) dm_check_options(L, "backward", options, DM_COUNT(names), names);
  if (given) lua_pushvalue(L, 2);
  else dm_option(L, 2, "gradient");
  const int seed = lua_gettop(L);
  const int flags = pass_flags(L, options, false);
  int n_in;
  dm_Tensor **inputs = inputs_for(L, options, &n_in);
  begin_backward(L, S);
  fill_inputs(L, lua_gettop(L) - 1, n_in, inputs);
  dm_Tensor *in[2] = {dm_check_tensor(L, 1),
                      lua_isnil(L, seed) ? NULL : dm_check_tensor(L, seed)};
  run_backward(L, 1, in, in + 1, n_in, inputs, flags);
  return 0;
}

/* autograd_backward(tensors, opts): x:backward for several tensors in one pass. */
static int autograd_backward(lua_State *L) {
  static const char *const names[] = {"grad_tensors", "retain_graph", "create_graph", "inputs"};
  static const char TENSORS[] = "autograd.backward: tensors",
                    SEEDS[] = "autograd.backward: grad_tensors";
  State *S = dm_enter(L);
  lua_settop(L, 2);
  if (lua_istable(L, 2)) dm_check_options(L, "autograd.backward", 2, DM_COUNT(names), names);
  const int flags = pass_flags(L, 2, false);
  int n = -1, n_in;
  dm_Tensor **roots = array_for(L, 1, TENSORS, &n), **seeds = NULL;
  if (n == 0)
    return dm_raise_text(L, "autograd.backward: tensors is empty, wanted one or more");
  const int seed = lua_gettop(L) + 1;
  if (dm_option(L, 2, "grad_tensors") != LUA_TNIL) {
    int n_seed = dm_handle(L, seed) ? 1 : n;
    if (n_seed != n || (lua_istable(L, seed) && lua_rawlen(L, seed) > (size_t)n))
      return dm_raise_text(L, "autograd.backward: %d grad_tensors for %d tensors",
                           lua_istable(L, seed) ? (int)lua_rawlen(L, seed) : 1, n);
    seeds = array_for(L, seed, SEEDS, &n_seed);
  }
  dm_Tensor **inputs = inputs_for(L, 2, &n_in);
  begin_backward(L, S);
  fill_inputs(L, lua_gettop(L) - 1, n_in, inputs);
  fill_array(L, 1, TENSORS, n, roots);
  for (int k = 0; k < n; k++)
    if (!roots[k]) return dm_raise_text(L, "autograd.backward: tensor %d is nil", k + 1);
  if (seeds) fill_array(L, seed, SEEDS, n, seeds);
  run_backward(L, n, roots, seeds, n_in, inputs, flags);
  return 0;
}

/* The field n of a table that table.pack made, at i. */
static int packed_length(lua_State *L, int i) {
  luaL_checktype(L, i, LUA_TTABLE);
  lua_getfield(L, i, "n");
  const int n = (int)luaL_checkinteger(L, -1);
  lua_pop(L, 1);
  return n;
}

/* autograd_grad(outputs, inputs, opts) -> one gradient for each input, as values of one
   return; nil for an unused one with allow_unused. x.grad stays as it is. */
static int autograd_grad(lua_State *L) {
  static const char *const names[] = {"grad_outputs", "retain_graph", "create_graph",
                                      "allow_unused"};
  State *S = dm_enter(L);
  lua_settop(L, 3);
  if (lua_istable(L, 3)) dm_check_options(L, "autograd.grad", 3, DM_COUNT(names), names);
  int n_out = -1, n_in = -1, n_seed = -1;
  static const char OUTPUTS[] = "autograd.grad: outputs", INPUTS[] = "autograd.grad: inputs",
                    SEEDS[] = "autograd.grad: grad_outputs";
  const int flags = pass_flags(L, 3, true);
  dm_Tensor **roots = array_for(L, 1, OUTPUTS, &n_out);
  dm_Tensor **inputs = array_for(L, 2, INPUTS, &n_in);
  dm_Tensor **seeds = NULL;
  if (dm_option(L, 3, "grad_outputs") != LUA_TNIL) {
    seeds = array_for(L, lua_gettop(L), SEEDS, &n_seed);
    if (n_seed != n_out)
      return dm_raise_text(L, "autograd.grad: %d grad_outputs for %d outputs", n_seed, n_out);
  }
  dm_Tensor **got = lua_newuserdatauv(L, sizeof *got * (size_t)(n_in ? n_in : 1), 0);
  luaL_checkstack(L, n_in + 4, NULL);
  (void)dm_enter(L);
  if (seeds) fill_array(L, lua_gettop(L) - 2, SEEDS, n_seed, seeds);
  fill_array(L, 1, OUTPUTS, n_out, roots);
  fill_array(L, 2, INPUTS, n_in, inputs);
  for (int k = 0; k < n_out; k++)
    if (!roots[k]) return dm_raise_text(L, "autograd.grad: output %d is nil", k + 1);
  for (int k = 0; k < n_in; k++)
    if (!inputs[k]) return dm_raise_text(L, "autograd.grad: input %d is nil", k + 1);
  lua_State *outer = running;
  dm_hold_all(n_out, roots); /* hooks and functions in Lua may free them */
  dm_hold_all(n_in, inputs);
  dm_hold_all(seeds ? n_seed : 0, seeds);
  running = L;
  const dm_status st = dm_grad(n_out, roots, seeds, n_in, inputs, flags, got);
  dm_let_go_all(n_out, roots);
  dm_let_go_all(n_in, inputs);
  dm_let_go_all(seeds ? n_seed : 0, seeds);
  (void)end_backward(L, outer, st);
  for (int k = 0; k < n_in; k++) {
    if (got[k]) dm_push_tensor(L, S, got[k]);
    else lua_pushnil(L);
  }
  if (!outer) dm_wait_for_ranks(L); /* for those of a backward pass inside */
  return n_in;
}

/* other_leaves(x, known) -> whether x's gradient flows to a leaf that is not in the table. */
static int other_leaves(lua_State *L) {
  dm_enter(L);
  int n = -1;
  dm_Tensor **known = tensor_array(L, 2, "other_leaves: known", &n);
  bool out;
  DM_CHECK(L, dm_other_leaves(dm_check_tensor(L, 1), n, known, &out));
  lua_pushboolean(L, out);
  return 1;
}

/* ---- Lua functions that the engine calls ---- */

/* A Lua function that the engine holds. Its owner is the node, hook or checkpoint, which ends
   it with callback_drop. */
typedef struct Callback {
  lua_State *main; /* for the release, which has no coroutine at hand */
  State *S;
  int ref; /* the function, in the registry */
  char name[48];
} Callback;

/* The closure around fn with the binding's two upvalues, which dm_push_handle needs. */
static int trampoline(lua_State *L);

/* Pushes the closure that a Callback of the function at fn calls. */
static void push_callback_function(lua_State *L, int fn) {
  lua_pushvalue(L, lua_upvalueindex(UP_STATE));
  lua_pushvalue(L, lua_upvalueindex(UP_META));
  lua_pushvalue(L, fn);
  lua_pushcclosure(L, trampoline, 3);
}

/* Makes a Callback of the closure on top, which it pops; the registry then holds it. Raises
   without memory, and does not collect. */
static Callback *callback_of_top(lua_State *L) {
  Callback *c = dm_alloc_zero(sizeof *c);
  if (!c) {
    dm_raise_text(L, "out of memory");
    return NULL;
  }
  lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_MAINTHREAD);
  c->main = lua_tothread(L, -1);
  lua_pop(L, 1);
  c->S = state_of(L);
  c->ref = luaL_ref(L, LUA_REGISTRYINDEX);
  return c;
}

/* Gives the function back to the collector. It may run while no coroutine is known, so it
   uses the main one then. */
static void callback_drop(void *ctx) {
  Callback *c = ctx;
  if (!c) return;
  luaL_unref(running ? running : c->main, LUA_REGISTRYINDEX, c->ref);
  dm_free(c);
}

/* The arguments and results of one call from the engine into Lua. */
typedef struct Crossing {
  const char *name;
  int n_in, n_out;
  dm_Tensor **in, **out; /* out: new references */
  bool custom;           /* a gradient: what was saved comes first, as a table */
  int n_saved;
  dm_Tensor **saved;
} Crossing;

/* The call from the engine under way, for the trampoline to take; NULL: a script called it. */
static _Thread_local Crossing *crossing;

/* Pushes a handle with a new reference to t, or nil. */
static void push_or_nil(lua_State *L, State *S, dm_Tensor *t) {
  if (t) dm_push_tensor(L, S, dm_tensor_ref(t));
  else lua_pushnil(L);
}

/* The C function that lua_pcall runs for the engine. Upvalue 3 is the Lua function. It pushes
   the tensors (or nils), calls, and stores new references to the results. It raises on results
   that are no tensors and on too many. */
static int trampoline(lua_State *L) {
  State *S = dm_enter(L);
  Crossing *x = crossing;
  crossing = NULL;
  if (!x) return luaL_error(L, "a function of the engine's was called outside backward");
  lua_settop(L, 0);
  luaL_checkstack(L, x->n_in + x->n_out + 6, NULL);
  lua_pushvalue(L, lua_upvalueindex(3));
  if (x->custom) {
    lua_createtable(L, x->n_saved, 1);
    for (int i = 0; i < x->n_saved; i++) {
      push_or_nil(L, S, x->saved[i]);
      lua_rawseti(L, -2, i + 1);
    }
    lua_pushinteger(L, x->n_saved);
    lua_setfield(L, -2, "n");
  }
  for (int i = 0; i < x->n_in; i++) push_or_nil(L, S, x->in[i]);
  lua_call(L, x->n_in + x->custom, LUA_MULTRET);
  enum { FIRST = 1 };
  const int given = lua_gettop(L);
  lua_settop(L, given > x->n_out ? given : x->n_out);
  for (int i = x->n_out; i < given && x->custom; i++)
    if (!lua_isnil(L, FIRST + i))
      return luaL_error(L, "%s: backward gave %d gradients for %d arguments of forward",
                        x->name, given, x->n_out);
  for (int i = 0; i < x->n_out; i++) {
    dm_Tensor *t = dm_to_tensor(L, FIRST + i);
    if (!t && !lua_isnil(L, FIRST + i))
      return luaL_error(L, "%s: gradient %d: tensor or nil expected, got %s", x->name, i + 1,
                        luaL_typename(L, FIRST + i));
    x->out[i] = t ? dm_tensor_ref(t) : NULL;
  }
  return 0;
}

/* Runs the closure on top of the stack of L, the coroutine that runs backward, with x. On an
   error it keeps the value, gives back the results, and returns DM_ESTATE. The thread state is
   restored, for the function may have entered another coroutine. */
static dm_status cross_top(lua_State *L, Crossing *x) {
  dm_ThreadState *const ts = dm_thread_state_current;
  for (int i = 0; i < x->n_out; i++) x->out[i] = NULL;
  crossing = x;
  /* The error value, if any, is stored in the registry by the call below, which pops it. */
  const int st = lua_pcall(L, 0, 0, 0);
  crossing = NULL;
  dm_thread_state_current = ts;
  if (st == LUA_OK) return DM_OK;
  lua_rawsetp(L, LUA_REGISTRYINDEX, &error_key);
  for (int i = 0; i < x->n_out; i++) dm_tensor_unref(&x->out[i]);
  return dm_fail(DM_ESTATE, "%s: error in a Lua function", x->name);
}

/* Fails unless a coroutine runs backward that has space for a call. */
static dm_status check_running(const char *name) {
  if (!running) return dm_fail(DM_ESTATE, "%s: no Lua state runs this backward", name);
  if (!lua_checkstack(running, 6)) return dm_fail(DM_EMEM, "%s: Lua stack overflow", name);
  return DM_OK;
}

/* Runs the callback with x. */
static dm_status cross(const Callback *c, Crossing *x) {
  DM_TRY(check_running(x->name));
  lua_rawgeti(running, LUA_REGISTRYINDEX, c->ref);
  return cross_top(running, x);
}

/* The engine's entry to a gradient written in Lua: gy are the gradients of the outputs, gx
   those of the inputs. */
static dm_status custom_backward(void *ctx, int n_saved, dm_Tensor **saved, int n_out,
                                 dm_Tensor **gy, int n_in, dm_Tensor **gx) {
  Callback *c = ctx;
  char name[sizeof c->name]; /* a copy: a backward inside this one may end the callback */
  memcpy(name, c->name, sizeof name);
  Crossing x = {name, n_out, n_in, gy, gx, true, n_saved, saved};
  return cross(c, &x);
}

/* custom_record(name, inputs, outputs, saved, backward_fn): records the outputs as results of
   a function of the inputs (torch.autograd.Function). inputs has holes where forward's
   arguments are no tensors; backward_fn(saved, gradient of each output) returns one gradient
   for each argument. */
static int custom_record(lua_State *L) {
  static const char SAVED[] = "save_for_backward";
  const char *name = luaL_checkstring(L, 1);
  luaL_checktype(L, 5, LUA_TFUNCTION);
  int n_in = packed_length(L, 2), n_out = -1, n_saved = packed_length(L, 4);
  dm_Tensor **in = array_for(L, 2, name, &n_in);
  dm_Tensor **out = array_for(L, 3, name, &n_out);
  dm_Tensor **saved = array_for(L, 4, SAVED, &n_saved);
  if (n_out > 255) return dm_raise_text(L, "%s: more than 255 outputs", name);
  push_callback_function(L, 5);
  (void)dm_enter(L);
  fill_array(L, 2, name, n_in, in);
  fill_array(L, 3, name, n_out, out);
  fill_array(L, 4, SAVED, n_saved, saved);
  for (int k = 0; k < n_out; k++)
    if (!out[k]) return dm_raise_text(L, "%s: output %d is nil", name, k + 1);
  Callback *c = callback_of_top(L);
  snprintf(c->name, sizeof c->name, "%s", name);
  const dm_Custom custom = {custom_backward, callback_drop, c};
  /* Anomaly detection calls Lua at each record. */
  dm_hold_all(n_in, in);
  dm_hold_all(n_out, out);
  dm_hold_all(n_saved, saved);
  const dm_status st = dm_record_custom(name, custom, n_in, in, n_out, out, n_saved, saved);
  dm_let_go_all(n_in, in);
  dm_let_go_all(n_out, out);
  dm_let_go_all(n_saved, saved);
  if (st != DM_OK) callback_drop(c);
  DM_CHECK(L, st);
  return 0;
}

/* Calls a hook with the gradient *g, and replaces it by the hook's result unless that is nil.
   Another shape is an error. */
static dm_status hook_call(void *ctx, dm_Tensor **g) {
  Callback *c = ctx;
  dm_Tensor *out = NULL;
  Crossing x = {.name = "hook", .n_in = 1, .n_out = 1, .in = g, .out = &out};
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

/* What register_hook gives. The hook stays with the value that the tensor had then, whose node
   this is; a leaf, which has none, is in user value 1. */
typedef struct HookHandle {
  int64_t id;
  dm_Node *node; /* owned */
} HookHandle;

/* hook:remove(): the tensor's value forgets the hook. It may be called again. */
static int hook_remove(lua_State *L) {
  HookHandle *h = luaL_checkudata(L, 1, "demilune.Hook");
  lua_getiuservalue(L, 1, 1);
  dm_Tensor *leaf = dm_to_tensor(L, -1);
  if (h->node || leaf) dm_remove_hook(h->node, leaf, h->id);
  dm_node_unref(&h->node);
  return 0;
}

static int hook_gc(lua_State *L) {
  HookHandle *h = luaL_checkudata(L, 1, "demilune.Hook");
  dm_node_unref(&h->node);
  return 0;
}

/* Calls a hook with the leaf whose gradient was added to x.grad, and drops its result. */
static dm_status after_hook_call(void *ctx, dm_Tensor **leaf) {
  Crossing x = {.name = "hook", .n_in = 1, .in = leaf};
  return cross(ctx, &x);
}

/* x:name(fn) -> handle with remove(). The node or the leaf owns the hook; the handle holds it.
 */
static int push_hook(lua_State *L, const char *name,
                     dm_status (*call)(void *ctx, dm_Tensor **g),
                     dm_status (*add)(dm_Tensor *t, dm_Hook *hook)) {
  State *S = dm_enter(L);
  dm_check_tensor(L, 1);
  luaL_checktype(L, 2, LUA_TFUNCTION);
  HookHandle *handle = lua_newuserdatauv(L, sizeof *handle, 1);
  *handle = (HookHandle){.id = ++S->next_id};
  lua_pushvalue(L, 1);
  lua_setiuservalue(L, -2, 1);
  if (luaL_newmetatable(L, "demilune.Hook")) {
    lua_newtable(L);
    lua_pushcfunction(L, hook_remove);
    lua_setfield(L, -2, "remove");
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, hook_gc);
    lua_setfield(L, -2, "__gc");
    dm_close_metatable(L, "demilune.Hook");
  }
  lua_setmetatable(L, -2);
  push_callback_function(L, 2);
  dm_Tensor *t = dm_check_tensor(L, 1);
  Callback *c = callback_of_top(L);
  dm_Hook *h = dm_alloc(sizeof *h);
  if (h) *h = (dm_Hook){.id = handle->id, .call = call, .drop = callback_drop, .ctx = c};
  const dm_status st = h ? add(t, h) : dm_fail(DM_EMEM, "%s: out of memory", name);
  if (st != DM_OK) {
    dm_free(h);
    callback_drop(c);
    return dm_raise(L);
  }
  if (t->node) {
    dm_hold(&t->node->refs);
    handle->node = t->node;
    lua_pushnil(L);
    lua_setiuservalue(L, -2, 1);
  }
  return 1;
}

/* x:register_hook(fn): fn(gradient) may return another gradient of the same shape. Raises
   unless x requires grad. */
static int register_hook(lua_State *L) {
  return push_hook(L, "register_hook", hook_call, dm_add_hook);
}

/* x:register_post_accumulate_grad_hook(fn): fn(x) is called after each pass that has added to
   x.grad. Raises unless x is a leaf that requires grad. */
static int register_after_hook(lua_State *L) {
  return push_hook(L, "register_post_accumulate_grad_hook", after_hook_call, dm_add_after_hook);
}

/* x:retain_grad() -> x: backward fills x.grad also of a tensor that is no leaf. */
static int retain_grad(lua_State *L) {
  dm_enter(L);
  DM_CHECK(L, dm_retain_grad(dm_check_tensor(L, 1)));
  lua_settop(L, 1);
  return 1;
}

/* ---- work that is run again ---- */

/* The engine's entry to a checkpoint's function. Its results are what the ops inside save, so
   it returns none. */
static dm_status run_again(void *ctx, int n, dm_Tensor **in) {
  Crossing x = {.name = "checkpoint", .n_in = n, .in = in};
  return cross(ctx, &x);
}

/* __gc of the record of checkpoint_run, for an error before its end. */
static int replay_gc(lua_State *L) {
  dm_replay_unref(luaL_checkudata(L, 1, "demilune.Replay"));
  return 0;
}

/* checkpoint_run(again, tensors, fn, ...) -> fn(...), recorded so that again(tensors...)
   makes the saved tensors once more in the backward pass (torch.utils.checkpoint). A userdata
   below fn holds the record, and an error of fn is raised again after the state is
   restored. */
static int checkpoint_run(lua_State *L) {
  /* The stack from the bottom: again, tensors, the userdata of the record, the array of
     tensors, fn, fn's arguments. lua_pcall replaces fn and its arguments by the results. */
  enum { AGAIN = 1, TENSORS, HELD, ARRAY, FN };
  luaL_checktype(L, AGAIN, LUA_TFUNCTION);
  luaL_checkany(L, 3); /* fn, which the record and the array push up to FN */
  int n = -1;
  dm_Replay **held = lua_newuserdatauv(L, sizeof *held, 0);
  *held = NULL;
  dm_ended_by(L, "demilune.Replay", "__gc", replay_gc);
  lua_insert(L, HELD);
  dm_Tensor **in = array_for(L, TENSORS, "checkpoint", &n);
  lua_insert(L, ARRAY);
  push_callback_function(L, AGAIN);
  const State *S = dm_enter(L);
  fill_array(L, TENSORS, "checkpoint", n, in);
  for (int k = 0; k < n; k++)
    if (!in[k]) return dm_raise_text(L, "checkpoint: tensor %d is nil", k + 1);
  Callback *c = callback_of_top(L);
  if (dm_replay_new(n, in, run_again, callback_drop, c, held) != DM_OK) {
    callback_drop(c);
    return dm_raise(L);
  }
  dm_ThreadState *ts = S->current;
  dm_Replay *outer = ts->replay;
  ts->replay = *held;
  const int st = lua_pcall(L, lua_gettop(L) - FN, LUA_MULTRET, 0);
  ts->replay = outer;
  dm_replay_end(*held);
  dm_replay_unref(held);
  return st == LUA_OK ? lua_gettop(L) - FN + 1 : lua_error(L);
}

/* ---- parameters whose data come and go ---- */

static const char lender_key = 0; /* only its address counts */

/* The engine's entry to the function that makes the data of a parameter lent again. */
static dm_status bring_bytes(dm_Tensor *t) {
  Crossing x = {.name = "fully_shard", .n_in = 1, .in = &t};
  DM_TRY(check_running(x.name));
  if (lua_rawgetp(running, LUA_REGISTRYINDEX, &lender_key) == LUA_TFUNCTION)
    return cross_top(running, &x);
  lua_pop(running, 1);
  return dm_fail(DM_ESTATE, "backward: nobody of this Lua state lends a parameter its data");
}

/* Lets the engine ask, when the library is loaded: threads with Lua states of their own share
   the hook. */
__attribute__((constructor)) static void install(void) { dm_bring_bytes = bring_bytes; }

/* _lender(f): f(p) makes the data of a parameter lent again, which a gradient needs. */
static int lender(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  push_callback_function(L, 1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &lender_key);
  return 0;
}

/* _lend(p, from, at, version): the parameter, or a cast of one that is lent, has the elements
   of `from` from the at-th on, from 0, which are lent; at < 0: they are away, and the first
   element of `from` stands for them. */
static int lend(lua_State *L) {
  dm_enter(L);
  dm_Tensor *p = dm_check_tensor(L, 1), *from = dm_check_tensor(L, 2);
  const lua_Integer at = luaL_checkinteger(L, 3);
  luaL_argcheck(L, (!p->node || p->storage->lent) && !p->base, 1, "no leaf");
  luaL_argcheck(L,
                from->dtype == p->dtype && dm_device_eq(from->device, p->device) &&
                    from->numel > 0 && dm_tensor_is_contiguous(from),
                2, "other elements");
  luaL_argcheck(L, at < 0 || at <= from->numel - p->numel, 3, "beyond the elements");
  DM_CHECK(L, dm_tensor_lend(p, from, at < 0 ? -1 : from->offset + at,
                             (uint32_t)luaL_checkinteger(L, 4)));
  return 0;
}

/* _handle(p) -> another handle of the tensor, which may be freed by itself. */
static int another_handle(lua_State *L) {
  State *S = dm_enter(L);
  dm_push_tensor(L, S, dm_tensor_ref(dm_check_tensor(L, 1)));
  return 1;
}

/* _casts_of(p) -> the casts of a parameter that autocast keeps. */
static int casts_of(lua_State *L) {
  State *S = dm_enter(L);
  const dm_Tensor *p = dm_check_tensor(L, 1);
  int n = 0;
  for (int d = 0; d < DM_N_DTYPE; d++) {
    dm_Tensor *cast =
        dm_is_low((dm_DType)d) ? dm_autocast_find(&S->current->autocast, p, (dm_DType)d) : NULL;
    if (!cast) continue;
    dm_push_tensor(L, S, dm_tensor_ref(cast));
    n++;
  }
  return n;
}

/* _is_alone(x) -> whether nobody but this handle has the tensor. */
static int is_alone(lua_State *L) {
  lua_pushboolean(L, atomic_load(&dm_check_tensor(L, 1)->refs) == 1);
  return 1;
}

/* _in_backward() -> whether a backward pass runs. */
static int in_backward(lua_State *L) {
  lua_pushboolean(L, running != NULL);
  return 1;
}

/* ---- settings that are restored when a value closes ---- */

/* A to-be-closed value with the old settings of anomaly detection or autocast, and the thread
   state they belong to. */
typedef struct Past {
  dm_ThreadState *thread;
  bool open, is_autocast;
  dm_Anomaly anomaly;
  dm_CastState cast;
} Past;

/* __close: restores the settings; only the first call counts. */
static int past_close(lua_State *L) {
  Past *p = luaL_checkudata(L, 1, "demilune.Past");
  if (!p->open) return 0;
  p->open = false;
  if (p->is_autocast) dm_autocast_restore(&p->thread->autocast, p->cast);
  else p->thread->anomaly = p->anomaly;
  return 0;
}

/* Pushes the current settings as a value that is not open yet. User value 1 keeps the
   coroutine, and so its thread state, alive. */
static Past *push_past(lua_State *L, State *S) {
  Past *p = lua_newuserdatauv(L, sizeof *p, 1);
  *p = (Past){0};
  dm_ended_by(L, "demilune.Past", "__close", past_close);
  lua_pushthread(L); /* the coroutine, and so its thread state, live on */
  lua_setiuservalue(L, -2, 1);
  (void)dm_enter(L); /* a finalizer may have entered another coroutine */
  p->thread = S->current;
  p->anomaly = S->current->anomaly;
  return p;
}

/* __gc: drops the references of a saved autocast state. */
static int cast_state_gc(lua_State *L) {
  dm_cast_state_drop(luaL_checkudata(L, 1, "demilune.AutocastState"));
  return 0;
}

/* autocast_state([off]) -> the coroutine's autocast state as a value, with autocast switched
   off for the device type `off`, or for all of them where off is true. */
static int autocast_state(lua_State *L) {
  lua_settop(L, 1);
  dm_CastState *s = lua_newuserdatauv(L, sizeof *s, 0);
  *s = (dm_CastState){.cache_enabled = true};
  dm_ended_by(L, "demilune.AutocastState", "__gc", cast_state_gc);
  const dm_AutocastState *a = &dm_enter(L)->current->autocast;
  dm_Device d;
  if (lua_isstring(L, 1)) DM_CHECK(L, dm_device_parse(dm_word(L, 1), &d));
  if (lua_isstring(L, 1)) *s = dm_autocast_off(a, d.type);
  else *s = lua_toboolean(L, 1) ? dm_autocast_off(a, -1) : dm_autocast_copy(a);
  return 1;
}

/* autocast_resume(state) -> a to-be-closed value: autocast is as the state says until it
   closes. */
static int autocast_resume(lua_State *L) {
  State *S = dm_enter(L);
  const dm_CastState *s = luaL_checkudata(L, 1, "demilune.AutocastState");
  Past *p = push_past(L, S);
  p->cast = dm_autocast_resume(&p->thread->autocast, *s);
  p->open = p->is_autocast = true;
  return 1;
}

/* autocast_convert(name, {device type = policy} or a row's name, values) -> whether a policy is
   listed for the name, or for that row in the region; nothing while autocast is off. Replaces
   the tensors among values, a table with n, by the casts that an op of that policy would get.
 */
static int autocast_convert(lua_State *L) {
  static const char *const names[] = {"unlisted", "lower_precision_fp", "fp32", "promote",
                                      NULL};
  static const uint8_t policies[] = {ASIS, LOW, F32, WIDE};
  State *S = dm_enter(L);
  lua_settop(L, 3);
  if (!dm_autocast_on(&S->current->autocast)) return 0;
  dm_OpInfo op = {.name = luaL_checkstring(L, 1)};
  const int row = lua_type(L, 2) == LUA_TSTRING ? dm_op_find(lua_tostring(L, 2)) : -1;
  if (row < 0) luaL_checktype(L, 2, LUA_TTABLE);
  for (int type = 0; row < 0 && type < DM_N_DEVICE_TYPE; type++) {
    lua_getfield(L, 2, type == DM_CPU ? "cpu" : "cuda");
    op.cast[type] = policies[luaL_checkoption(L, -1, "unlisted", names)];
    lua_pop(L, 1);
  }
  int n = packed_length(L, 3);
  dm_Tensor **in = array_for(L, 3, op.name, &n);
  dm_Tensor **cast = lua_newuserdatauv(L, sizeof *cast * (size_t)(n ? n : 1), 0);
  luaL_checkstack(L, n + 4, NULL);
  const int first = lua_gettop(L) + 1;
  for (int i = 0; i < n; i++) (void)dm_push_own(L, S); /* nothing may raise later */
  dm_CastPlan plan;
  fill_array(L, 3, op.name, n, in);
  DM_CHECK(L, dm_autocast_plan(row < 0 ? &op : &dm_ops[row], n, in, NULL, &plan));
  dm_hold_all(n, in); /* anomaly detection calls Lua at each record */
  const dm_status st = dm_cast_inputs(&plan, n, in, cast);
  dm_let_go_all(n, in);
  DM_CHECK(L, st);
  for (int i = n - 1; i >= 0; i--) {
    if (cast[i] == in[i]) {
      dm_tensor_unref(&cast[i]);
      lua_pop(L, 1);
    } else {
      dm_handle(L, first + i)->t = cast[i];
      lua_rawseti(L, 3, i + 1);
    }
  }
  lua_pushboolean(L, plan.listed);
  return 1;
}

/* ---- anomaly detection ---- */

/* Sets *text to the result of the Lua function behind where_key, or to its error, for a
   module's own describe function may raise. ctx is the State; the caller frees *text. */
static dm_status host_where(void *ctx, char **text) {
  const State *S = ctx;
  lua_State *L = S->current_thread;
  if (!lua_checkstack(L, 4)) return dm_fail(DM_EMEM, "out of memory: the Lua stack is full");
  dm_ThreadState *const ts = dm_thread_state_current;
  lua_rawgetp(L, LUA_REGISTRYINDEX, &where_key);
  const bool enough = lua_pcall(L, 0, 1, 0) != LUA_ERRMEM;
  dm_thread_state_current = ts;
  size_t n = 0;
  const char *s = lua_tolstring(L, -1, &n);
  dm_status st = DM_OK;
  if (!enough || !(*text = dm_alloc((int64_t)n + 1)))
    st = dm_fail(DM_EMEM, "out of memory: cannot note a call's line");
  else memcpy(*text, s ? s : "", n + 1);
  lua_pop(L, 1);
  return st;
}

/* anomaly_switch(on, check_nan, where_fn) -> a value that restores the old setting when it
   closes. where_fn() -> text names the line of a call while detection is on. */
static int anomaly_switch(lua_State *L) {
  State *S = dm_enter(L);
  luaL_checktype(L, 3, LUA_TFUNCTION);
  lua_settop(L, 3);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &where_key);
  push_past(L, S)->open = true;
  S->current->anomaly = (dm_Anomaly){.enabled = lua_toboolean(L, 1),
                                     .check_nan = lua_toboolean(L, 2),
                                     .where = host_where,
                                     .where_ctx = S};
  return 1;
}

/* is_anomaly_enabled() -> boolean; is_anomaly_check_nan_enabled() -> boolean. */
static int is_anomaly_enabled(lua_State *L) {
  lua_pushboolean(L, dm_enter(L)->current->anomaly.enabled);
  return 1;
}

/* Whether anomaly detection also looks for NaN in gradients. */
static int is_anomaly_check_nan_enabled(lua_State *L) {
  lua_pushboolean(L, dm_enter(L)->current->anomaly.check_nan);
  return 1;
}

/* ---- memory of a graph ---- */

static void set_count(lua_State *L, const char *name, int64_t n) {
  lua_pushinteger(L, n);
  lua_setfield(L, -2, name);
}

/* saved_memory(t) -> the rows of dm_kept as tables. The graph is counted twice: once for the
   number of rows. A finalizer that Lua's memory calls may change it in between; then rows that
   are new are left out. */
static int saved_memory(lua_State *L) {
  dm_enter(L);
  int most = 0, n = 0;
  DM_CHECK(L, dm_kept(dm_check_tensor(L, 1), 0, NULL, &most));
  dm_KeptRow *rows = lua_newuserdatauv(L, sizeof *rows * (size_t)(most ? most : 1), 0);
  (void)dm_enter(L);
  DM_CHECK(L, dm_kept(dm_check_tensor(L, 1), most, rows, &n));
  if (n > most) n = most;
  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    lua_createtable(L, 0, 8);
    lua_pushstring(L, rows[i].op);
    lua_setfield(L, -2, "op");
    lua_pushstring(L, rows[i].operand);
    lua_setfield(L, -2, "operand");
    lua_pushstring(L, dm_dtype_name(rows[i].dtype));
    lua_setfield(L, -2, "dtype");
    set_count(L, "n", rows[i].n);
    set_count(L, "bytes", rows[i].bytes);
    set_count(L, "n_recomputed", rows[i].n_again);
    set_count(L, "bytes_recomputed", rows[i].bytes_again);
    set_count(L, "n_checkpointed", rows[i].n_checkpoint);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* recompute_bytes(n) sets, and recompute_bytes() gives, from how many bytes on the tape
   computes a cheap result again instead of keeping it; math.maxinteger: none. */
static int recompute_bytes(lua_State *L) {
  if (lua_isnoneornil(L, 1)) {
    lua_pushinteger(L, atomic_load(&dm_remake_bytes));
    return 1;
  }
  atomic_store(&dm_remake_bytes, luaL_checkinteger(L, 1));
  return 0;
}

const luaL_Reg dm_grad_functions[] = {
    {"saved_memory", saved_memory},
    {"recompute_bytes", recompute_bytes},
    {"autograd_backward", autograd_backward},
    {"autograd_grad", autograd_grad},
    {"other_leaves", other_leaves},
    {"custom_record", custom_record},
    {"checkpoint_run", checkpoint_run},
    {"autocast_state", autocast_state},
    {"autocast_resume", autocast_resume},
    {"autocast_convert", autocast_convert},
    {"anomaly_switch", anomaly_switch},
    {"_lender", lender},
    {"_lend", lend},
    {"_handle", another_handle},
    {"_casts_of", casts_of},
    {"_is_alone", is_alone},
    {"_in_backward", in_backward},
    {"is_anomaly_enabled", is_anomaly_enabled},
    {"is_anomaly_check_nan_enabled", is_anomaly_check_nan_enabled},
    {NULL, NULL}};
const luaL_Reg dm_grad_methods[] = {{"backward", tensor_backward},
                                    {"register_hook", register_hook},
                                    {"register_post_accumulate_grad_hook", register_after_hook},
                                    {"retain_grad", retain_grad},
                                    {NULL, NULL}};
