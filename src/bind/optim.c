/* The binding of op/optim/optim.h: one call does a step, a norm or a clip over a list of
   parameters, as PyTorch's foreach functions do. Lists are Lua arrays of tensors; a step
   reads the parameters of a group and the optimizer's state, a table from parameter to its
   named buffers, and makes no table itself. Options come as values, which Lua reads from a
   group faster than C does. References to the tensors stay in those Lua tables; the arrays
   here borrow them. */
#include <string.h>

#include "bind/bind.h"
#include "engine/leaves.h"
#include "engine/observe.h"
#include "engine/tape.h"
#include "op/optim/optim.h"

/* DM_CHECK of work that is no op: observers are told of its begin and end by this name.
   Nothing in the call may raise, because longjmp would skip the end. */
#define CHECK_AS(NAME, L, call)            \
  do {                                     \
    const dm_Event event = {.name = NAME}; \
    dm_observe_begin(&event);              \
    const dm_status st = (call);           \
    dm_observe_end(&event);                \
    DM_CHECK(L, st);                       \
  } while (0)

/* The number at i (a boolean counts as 0 or 1; nil as 0), which is option `name`. */
static double number_at(lua_State *L, int i, const char *name) {
  const int type = lua_type(L, i);
  if (DM_LIKELY(type == LUA_TNUMBER)) return lua_tonumber(L, i);
  if (type != LUA_TBOOLEAN && type != LUA_TNIL)
    dm_raise_text(L, "optimizer: %s is a %s, wanted a number", name, lua_typename(L, type));
  return lua_toboolean(L, i);
}

/* The truth of the number or boolean at i. */
static bool flag_at(lua_State *L, int i, const char *name) {
  return number_at(L, i, name) != 0;
}

/* The tensor at i that GradScaler passes, or NULL: then the step is never skipped. */
static dm_Tensor *found_inf_of(lua_State *L, int i) {
  return lua_isnoneornil(L, i) ? NULL : dm_check_tensor(L, i);
}

/* ---- steps ---- */

enum { LOCAL_SLOTS = 16 };

/* Returns an array, set to zero, for the slots of the parameters at 1, *n of them: `local`,
   or a userdata that it pushes. Raises unless tables are at 1 and 2. */
static dm_StepSlot *slots_of(lua_State *L, dm_StepSlot *local, lua_Integer *n) {
  luaL_checktype(L, 1, LUA_TTABLE);
  luaL_checktype(L, 2, LUA_TTABLE);
  *n = (lua_Integer)lua_rawlen(L, 1);
  const size_t size = sizeof *local * (size_t)*n;
  dm_StepSlot *slots = *n > LOCAL_SLOTS ? lua_newuserdatauv(L, size, 0) : local;
  memset(slots, 0, size);
  return slots;
}

/* Pushes parameter i and state[it]. */
static dm_Tensor *push_state_of(lua_State *L, lua_Integer i) {
  lua_rawgeti(L, 1, i);
  dm_Tensor *param = dm_check_tensor(L, -1);
  lua_pushvalue(L, -1);
  lua_rawget(L, 2);
  return param;
}

/* A step's upvalues: the method, its name for observers, and the names of the state: `master`,
   `step`, numbers, buffers. */
enum { UP_METHOD = UP_META + 1, UP_EVENT, UP_MASTER, UP_STEP, UP_NUMBER };
enum { UP_BUFFER = UP_NUMBER + DM_MAX_NUMBERS };

/* *out = the tensor of the state at `state`, a table or nil, whose name is upvalue `key`;
   pushes the name where there is none. */
static void take(lua_State *L, int state, bool has_state, int key, dm_Tensor **out) {
  if (has_state) {
    lua_pushvalue(L, lua_upvalueindex(key));
    const bool is_there = lua_rawget(L, state) != LUA_TNIL;
    if (DM_LIKELY(is_there)) *out = dm_check_tensor(L, -1);
    lua_pop(L, 1);
    if (DM_LIKELY(is_there)) return;
  }
  lua_pushvalue(L, lua_upvalueindex(key));
}

/* Reads the state of the slot's parameter from the table at `state`; pushes the names of the
   tensors that are missing there. */
static void take_all(lua_State *L, int state, const dm_MethodRow *row, unsigned wanted,
                     bool master, dm_StepSlot *s) {
  const bool has = lua_istable(L, state);
  if (master) take(L, state, has, UP_MASTER, &s->master);
  if (row->counts) take(L, state, has, UP_STEP, &s->step);
  for (int k = 0; row->number[k]; k++) take(L, state, has, UP_NUMBER + k, &s->number[k]);
  for (int k = 0; row->buffer[k]; k++)
    if (wanted >> k & 1u) take(L, state, has, UP_BUFFER + k, &s->buffer[k]);
}

/* Pushes an array of the values from i to the top. */
static void push_array_from(lua_State *L, int i) {
  const int n = lua_gettop(L) - i + 1;
  lua_createtable(L, n, 0);
  for (int k = 0; k < n; k++) {
    lua_pushvalue(L, i + k);
    lua_rawseti(L, -2, k + 1);
  }
}

/* Whether the table at 4 has a true value for the key at `key`. */
static bool is_first(lua_State *L, int key) {
  if (!lua_istable(L, 4)) return false;
  lua_pushvalue(L, key);
  lua_rawget(L, 4);
  const bool is = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return is;
}

/* A method's step(params, state, found_inf, first, stochastic_rounding, master_weights,
   options in the row's order ...): `first` has a true for each parameter of which a buffer is
   new. With master_weights a 16-bit parameter has a buffer `master`. One option less than the
   row has, or one more, would shift the others unnoticed: it raises. It returns nothing; or,
   with nothing done, the number of a parameter and an array with the names of state it lacks.
   The caller makes those tensors and calls again. */
static int optim_step(lua_State *L) {
  /* Arguments 1 .. 6 are fixed, the options begin at 7. State tensors that are missing are
     pushed as names: the stack is higher than before where any is. */
  enum { FIRST_OPTION = 7 };
  double options[DM_MAX_OPTIONS];
  dm_Step step = {.method = (dm_Method)lua_tointeger(L, lua_upvalueindex(UP_METHOD)),
                  .options = options};
  const dm_MethodRow *row = &dm_method_rows[step.method];
  const int given = lua_gettop(L) - FIRST_OPTION + 1;
  if (given != row->n_option)
    dm_raise_text(L, "optimizer: %d options given for the %d of the method's row", given,
                  row->n_option);
  step.found_inf = found_inf_of(L, 3);
  step.stochastic = flag_at(L, 5, "stochastic_rounding");
  const bool masters = flag_at(L, 6, "master_weights");
  for (int k = 0; k < row->n_option; k++)
    options[k] = number_at(L, FIRST_OPTION + k, row->option[k]);
  const unsigned wanted = row->wanted(options);
  lua_Integer n;
  dm_StepSlot local[LOCAL_SLOTS], *slots = slots_of(L, local, &n);
  for (lua_Integer i = 1; i <= n; i++) {
    dm_StepSlot *s = &slots[i - 1];
    s->param = push_state_of(L, i);
    s->grad = s->param->grad;
    const int state = lua_gettop(L);
    const bool master = masters && dm_is_low((dm_DType)s->param->dtype);
    if (s->grad) take_all(L, state, row, wanted, master, s);
    if (lua_gettop(L) > state) {
      push_array_from(L, state + 1);
      lua_pushinteger(L, i);
      lua_insert(L, -2);
      return 2;
    }
    s->first = !row->counts && is_first(L, state - 1);
    lua_pop(L, 2);
  }
  (void)dm_enter(L);
  CHECK_AS(lua_tostring(L, lua_upvalueindex(UP_EVENT)), L, dm_optim_step(&step, n, slots));
  return 0;
}

/* optimizer_step(method, class) -> the step function of the row of that name; observers are
   told of "class.step". The names of the state are upvalues, so that a step makes no strings.
   Raises on an unknown method. */
static int optimizer_step(lua_State *L) {
  const char *name = luaL_checkstring(L, 1), *class_name = luaL_checkstring(L, 2);
  int m = 0;
  while (m < DM_N_METHOD && strcmp(dm_method_rows[m].name, name) != 0) m++;
  if (m == DM_N_METHOD) dm_raise_text(L, "optimizer: no method '%s'", name);
  const dm_MethodRow *row = &dm_method_rows[m];
  luaL_checkstack(L, UP_BUFFER + DM_MAX_BUFFERS, NULL);
  lua_pushvalue(L, lua_upvalueindex(UP_STATE));
  lua_pushvalue(L, lua_upvalueindex(UP_META));
  lua_pushinteger(L, m);
  lua_pushfstring(L, "%s.step", class_name);
  lua_pushliteral(L, "master");
  lua_pushliteral(L, "step");
  for (int k = 0; k < DM_MAX_NUMBERS; k++) lua_pushstring(L, row->number[k]);
  for (int k = 0; k < DM_MAX_BUFFERS; k++) lua_pushstring(L, row->buffer[k]);
  lua_pushcclosure(L, optim_step, UP_BUFFER + DM_MAX_BUFFERS - 1);
  return 1;
}

/* The tensors of the array at i, or their gradients where they have one.
   Pushes the userdata that holds the list. */
static dm_Tensor **push_list(lua_State *L, int i, bool grads, int64_t *n) {
  luaL_checktype(L, i, LUA_TTABLE);
  const lua_Integer len = (lua_Integer)lua_rawlen(L, i);
  dm_Tensor **list = lua_newuserdatauv(L, sizeof *list * (size_t)(len ? len : 1), 0);
  *n = 0;
  for (lua_Integer k = 1; k <= len; k++) {
    lua_rawgeti(L, i, k);
    dm_Tensor *t = dm_check_tensor(L, -1);
    lua_pop(L, 1);
    if (grads) {
      dm_leaves_touch(t);
      t = t->grad;
    }
    if (t) list[(*n)++] = t;
  }
  return list;
}

/* on_one_device(tensors, grads?) -> whether all of them, or their gradients, are on one
   device. */
static int on_one_device(lua_State *L) {
  const bool grads = lua_toboolean(L, 2);
  const dm_Tensor *first = NULL;
  bool one = true;
  if (!dm_device_opened(DM_CUDA)) { /* all are on the CPU */
    lua_pushboolean(L, true);
    return 1;
  }
  luaL_checktype(L, 1, LUA_TTABLE);
  const lua_Integer n = (lua_Integer)lua_rawlen(L, 1);
  for (lua_Integer i = 1; i <= n && one; i++) {
    lua_rawgeti(L, 1, i);
    const dm_Tensor *t = dm_check_tensor(L, -1);
    lua_pop(L, 1);
    if (grads) t = t->grad;
    if (!t) continue;
    if (!first) first = t;
    one = dm_device_eq(t->device, first->device);
  }
  lua_pushboolean(L, one);
  return 1;
}

/* drop_grads(params): every x.grad becomes nil, as zero_grad does. */
static int drop_grads(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  const lua_Integer n = (lua_Integer)lua_rawlen(L, 1);
  for (lua_Integer i = 1; i <= n; i++) {
    lua_rawgeti(L, 1, i);
    dm_Tensor *t = dm_check_tensor(L, -1);
    dm_leaves_drop(t);
    dm_tensor_unref(&t->grad);
    lua_pop(L, 1);
  }
  return 0;
}

/* Pushes params of the group on top and gives its type. The key is at KEY, and no metamethod is
   asked: nothing collects. */
enum { KEY = 5 };
static int push_params(lua_State *L) {
  lua_pushvalue(L, KEY);
  return lua_rawget(L, -2);
}

/* The number of parameters in the groups {params = } of the array at i. Raises on a group
   without params. */
static int64_t count_params(lua_State *L, int i) {
  int64_t n = 0;
  luaL_checktype(L, i, LUA_TTABLE);
  for (lua_Integer g = 1; lua_rawgeti(L, i, g) == LUA_TTABLE; g++) {
    if (push_params(L) != LUA_TTABLE) dm_raise_text(L, "optimizer: a group without params");
    n += (int64_t)lua_rawlen(L, -1);
    lua_pop(L, 2);
  }
  lua_pop(L, 1);
  return n;
}

/* amp_unscale_(param_groups, scale, found_inf, where) -> the number of gradients on scale's
   device, and the number elsewhere, which are skipped. See dm_amp_unscale. */
static int amp_unscale(lua_State *L) {
  lua_settop(L, KEY - 1);
  lua_pushliteral(L, "params");
  const int64_t n = count_params(L, 1);
  int64_t i = 0, n_grad = 0, elsewhere = 0;
  dm_Tensor **grads = lua_newuserdatauv(L, sizeof *grads * (size_t)(n ? n : 1), 0);
  (void)dm_enter(L);
  const dm_Tensor *scale = dm_check_tensor(L, 2);
  /* One pass fills the array in the order of groups and parameters; a gradient that is
     missing or on another device leaves NULL, so that positions still name parameters. */
  for (lua_Integer g = 1; lua_rawgeti(L, 1, g) == LUA_TTABLE; g++) {
    if (push_params(L) != LUA_TTABLE) dm_raise_text(L, "optimizer: a group without params");
    for (lua_Integer k = 1; k <= (lua_Integer)lua_rawlen(L, -1) && i < n; k++) {
      lua_rawgeti(L, -1, k);
      grads[i] = dm_check_tensor(L, -1)->grad;
      if (grads[i] && !dm_device_eq(grads[i]->device, scale->device)) {
        grads[i] = NULL;
        elsewhere++;
      }
      n_grad += grads[i++] != NULL;
      lua_pop(L, 1);
    }
    lua_pop(L, 2);
  }
  if (n_grad > 0) {
    dm_Tensor *found_inf = dm_check_tensor(L, 3), *where = dm_check_tensor(L, 4);
    CHECK_AS("GradScaler.unscale_", L, dm_amp_unscale(i, grads, scale, found_inf, where));
  }
  lua_pushinteger(L, n_grad);
  lua_pushinteger(L, elsewhere);
  return 2;
}

/* amp_note_(history, found_inf, where, updates): notes in GradScaler's history on the device
   how a step went, see dm_amp_note. */
static int amp_note(lua_State *L) {
  dm_enter(L);
  DM_CHECK(L, dm_amp_note(dm_check_tensor(L, 1), dm_check_tensor(L, 2), dm_check_tensor(L, 3),
                          dm_check_tensor(L, 4)));
  return 0;
}

/* amp_update_scale_(scale, growth_tracker, floored, updates, found_infs, histories, wheres,
   growth, backoff, interval, floor, ceiling) -> number of updates in a row in which the floor
   held the scale. histories, wheres: of the first of the optimizers, whose steps are to be
   noted. */
static int amp_update_scale(lua_State *L) {
  dm_enter(L);
  int64_t held = 0, n_where;
  dm_ScaleUpdate u = {
      .scale = dm_check_tensor(L, 1),
      .growth_tracker = dm_check_tensor(L, 2),
      .floored = dm_check_tensor(L, 3),
      .updates = dm_check_tensor(L, 4),
      .how = {.growth = luaL_checknumber(L, 8),
              .backoff = luaL_checknumber(L, 9),
              .interval = luaL_checkinteger(L, 10),
              .floor = luaL_checknumber(L, 11),
              .ceiling = luaL_checknumber(L, 12)},
  };
  u.found_inf = push_list(L, 5, false, &u.n);
  u.history = push_list(L, 6, false, &u.n_note);
  u.where = push_list(L, 7, false, &n_where);
  luaL_argcheck(L, u.n_note <= u.n && u.n_note == n_where, 6, "a list of another length");
  CHECK_AS("GradScaler.update", L, dm_amp_update_scale(&u, &held));
  lua_pushinteger(L, held);
  return 1;
}

/* amp_held(floored) -> amp_update_scale_'s result after an update that a graph has done. */
static int amp_held(lua_State *L) {
  dm_enter(L);
  int64_t held;
  DM_CHECK(L, dm_amp_held(dm_check_tensor(L, 1), &held));
  lua_pushinteger(L, held);
  return 1;
}

/* amp_mark_scaled_(t): marks the node that made t, so that gradients which backward sends
   through it count as scaled from there on. */
static int amp_mark_scaled(lua_State *L) {
  dm_Tensor *t = dm_check_tensor(L, 1);
  if (t->node) t->node->scales = true;
  return 0;
}

/* amp_any_scaled(params) -> whether one of them has a gradient that is still scaled. */
static int amp_any_scaled(lua_State *L) {
  int64_t n;
  bool any = false;
  dm_Tensor **grads = push_list(L, 1, true, &n);
  for (int64_t i = 0; i < n; i++) any |= (grads[i]->flags & DM_T_SCALED) != 0;
  lua_pushboolean(L, any);
  return 1;
}

/* total_norm(tensors, p, grads?) -> 0-dim tensor with the p-norm over all elements, number of
   tensors in it. */
static int total_norm(lua_State *L) {
  State *S = dm_enter(L);
  int64_t n;
  lua_settop(L, 3);
  const double p = luaL_checknumber(L, 2);
  Handle *handle = dm_push_handle(L, S);
  lua_insert(L, 2); /* the result is at 2, below the list; the flag is at 4 */
  dm_Tensor **list = push_list(L, 1, lua_toboolean(L, 4), &n);
  CHECK_AS("total_norm", L, dm_total_norm(n, list, p, &handle->t));
  lua_settop(L, 2);
  lua_pushinteger(L, n);
  return 2;
}

/* clip_norm_(tensors, max_norm, total_norm, grads?): scales them in place so that the norm is
   at most max_norm (clip_grad_norm_). The norm stays on the device. */
static int clip_norm(lua_State *L) {
  dm_enter(L);
  int64_t n;
  lua_settop(L, 4);
  dm_Tensor **list = push_list(L, 1, lua_toboolean(L, 4), &n);
  const double max_norm = luaL_checknumber(L, 2);
  dm_Tensor *norm = dm_check_tensor(L, 3);
  CHECK_AS("clip_norm_", L, dm_clip_norm(n, list, max_norm, norm));
  return 0;
}

/* clamp_all_(tensors, limit, grads?): clamps every element to -limit .. limit in place
   (clip_grad_value_). */
static int clamp_all(lua_State *L) {
  dm_enter(L);
  int64_t n;
  lua_settop(L, 3);
  dm_Tensor **list = push_list(L, 1, lua_toboolean(L, 3), &n);
  const double limit = luaL_checknumber(L, 2);
  CHECK_AS("clamp_all_", L, dm_clamp_all(n, list, limit));
  return 0;
}

const luaL_Reg dm_optim_functions[] = {{"optimizer_step", optimizer_step},
                                       {"drop_grads", drop_grads},
                                       {"amp_unscale_", amp_unscale},
                                       {"amp_note_", amp_note},
                                       {"amp_update_scale_", amp_update_scale},
                                       {"amp_held", amp_held},
                                       {"amp_mark_scaled_", amp_mark_scaled},
                                       {"amp_any_scaled", amp_any_scaled},
                                       {"on_one_device", on_one_device},
                                       {"total_norm", total_norm},
                                       {"clip_norm_", clip_norm},
                                       {"clamp_all_", clamp_all},
                                       {NULL, NULL}};
