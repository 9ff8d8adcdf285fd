/* Lua's side of op/optim.h. Lists are Lua arrays of tensors; a step reads the parameters of
   a group and the optimizer's state, a table from parameter to its named buffers, and makes
   no table itself. Options come as values, which Lua reads faster than this side would. */
#include <string.h>

#include "bind/bind.h"
#include "engine/observe.h"
#include "engine/tape.h"
#include "op/optim/optim.h"

/* DM_CHECK of work that is no op: observers are told of it by this name. Nothing
   in the call may raise, for the end would go untold. */
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

static bool flag_at(lua_State *L, int i, const char *name) {
  return number_at(L, i, name) != 0;
}

/* Where it is wanted, *out = the buffer of the state on top whose name is upvalue `key`.
   False: it is not there. */
static bool take(lua_State *L, bool wanted, int key, dm_Tensor **out) {
  if (!wanted) return true;
  if (!lua_istable(L, -1)) return false;
  lua_pushvalue(L, lua_upvalueindex(key));
  if (lua_gettable(L, -2) != LUA_TNIL) *out = dm_check_tensor(L, -1);
  lua_pop(L, 1);
  return *out != NULL;
}

static dm_Tensor *found_inf_of(lua_State *L, int i) {
  return lua_isnoneornil(L, i) ? NULL : dm_check_tensor(L, i);
}

enum { LOCAL_SLOTS = 16 };

/* An array for the slots of the parameters at 1, *n of them: `local`, or one that is pushed. */
static void *slots_of(lua_State *L, void *local, size_t size, lua_Integer *n) {
  luaL_checktype(L, 1, LUA_TTABLE);
  luaL_checktype(L, 2, LUA_TTABLE);
  *n = (lua_Integer)lua_rawlen(L, 1);
  void *slots = *n > LOCAL_SLOTS ? lua_newuserdatauv(L, size * (size_t)*n, 0) : local;
  memset(slots, 0, size * (size_t)*n);
  return slots;
}

/* Of parameter i: pushes it and state[it]. */
static dm_Tensor *push_state_of(lua_State *L, lua_Integer i) {
  lua_rawgeti(L, 1, i);
  dm_Tensor *param = dm_check_tensor(L, -1);
  lua_pushvalue(L, -1);
  lua_rawget(L, 2);
  return param;
}

/* Upvalues with the names of buffers. */
enum { UP_MASTER = UP_META + 1, UP_MOMENTUM, UP_STEP = UP_MOMENTUM, UP_AVG, UP_AVG_SQ, UP_MAX };

/* sgd_step(params, state, found_inf, first, lr, momentum, dampening, weight_decay, nesterov,
   maximize, stochastic_rounding, master_weights): `first` has a true for each parameter
   whose momentum_buffer is new. With master_weights a 16-bit parameter has a buffer `master`.
   Returns nil, or, with nothing done, the number of a parameter that wants a buffer and has
   none. */
static int sgd_step(lua_State *L) {
  dm_enter(L);
  lua_settop(L, 12);
  dm_Tensor *const found_inf = found_inf_of(L, 3);
  const dm_SgdOptions o = {
      .lr = number_at(L, 5, "lr"),
      .momentum = number_at(L, 6, "momentum"),
      .dampening = number_at(L, 7, "dampening"),
      .weight_decay = number_at(L, 8, "weight_decay"),
      .nesterov = flag_at(L, 9, "nesterov"),
      .maximize = flag_at(L, 10, "maximize"),
      .stochastic = flag_at(L, 11, "stochastic_rounding"),
  };
  const bool masters = flag_at(L, 12, "master_weights");
  lua_Integer n;
  dm_SgdSlot local[LOCAL_SLOTS], *slots = slots_of(L, local, sizeof *slots, &n);
  for (lua_Integer i = 1; i <= n; i++) {
    dm_SgdSlot *s = &slots[i - 1];
    s->param = push_state_of(L, i);
    s->grad = s->param->grad;
    const bool mastered = masters && dm_is_16bit((dm_DType)s->param->dtype);
    if (s->grad && !(take(L, o.momentum != 0, UP_MOMENTUM, &s->momentum) &&
                     take(L, mastered, UP_MASTER, &s->master))) {
      lua_pushinteger(L, i);
      return 1;
    }
    if (lua_istable(L, 4)) {
      lua_pushvalue(L, -2);
      lua_rawget(L, 4);
      s->first = lua_toboolean(L, -1);
      lua_pop(L, 1);
    }
    lua_pop(L, 2);
  }
  CHECK_AS("SGD.step", L, dm_sgd_step(n, slots, &o, found_inf));
  return 0;
}

/* adam_step(params, state, found_inf, first, lr, beta1, beta2, eps, weight_decay, amsgrad,
   decoupled_weight_decay, maximize, stochastic_rounding, master_weights): as sgd_step.
   decoupled: AdamW. */
static int adam_step(lua_State *L) {
  dm_enter(L);
  lua_settop(L, 14);
  dm_Tensor *const found_inf = found_inf_of(L, 3);
  const dm_AdamOptions o = {
      .lr = number_at(L, 5, "lr"),
      .beta1 = number_at(L, 6, "betas"),
      .beta2 = number_at(L, 7, "betas"),
      .eps = number_at(L, 8, "eps"),
      .weight_decay = number_at(L, 9, "weight_decay"),
      .amsgrad = flag_at(L, 10, "amsgrad"),
      .decoupled = flag_at(L, 11, "decoupled_weight_decay"),
      .maximize = flag_at(L, 12, "maximize"),
      .stochastic = flag_at(L, 13, "stochastic_rounding"),
  };
  const bool masters = flag_at(L, 14, "master_weights");
  lua_Integer n;
  dm_AdamSlot local[LOCAL_SLOTS], *slots = slots_of(L, local, sizeof *slots, &n);
  for (lua_Integer i = 1; i <= n; i++) {
    dm_AdamSlot *s = &slots[i - 1];
    s->param = push_state_of(L, i);
    s->grad = s->param->grad;
    const bool mastered = masters && dm_is_16bit((dm_DType)s->param->dtype);
    if (s->grad && !(take(L, true, UP_STEP, &s->step) && take(L, true, UP_AVG, &s->exp_avg) &&
                     take(L, true, UP_AVG_SQ, &s->exp_avg_sq) &&
                     take(L, o.amsgrad, UP_MAX, &s->max_exp_avg_sq) &&
                     take(L, mastered, UP_MASTER, &s->master))) {
      lua_pushinteger(L, i);
      return 1;
    }
    lua_pop(L, 2);
  }
  CHECK_AS(o.decoupled ? "AdamW.step" : "Adam.step", L, dm_adam_step(n, slots, &o, found_inf));
  return 0;
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
    if (grads) t = t->grad;
    if (t) list[(*n)++] = t;
  }
  return list;
}

/* on_one_device(tensors, grads?) -> do they, or their gradients, all lie on one? */
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

/* drop_grads(params) */
static int drop_grads(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  const lua_Integer n = (lua_Integer)lua_rawlen(L, 1);
  for (lua_Integer i = 1; i <= n; i++) {
    lua_rawgeti(L, 1, i);
    dm_tensor_unref(&dm_check_tensor(L, -1)->grad);
    lua_pop(L, 1);
  }
  return 0;
}

/* How many parameters the groups {params = } of the array at i have. */
static int64_t count_params(lua_State *L, int i) {
  int64_t n = 0;
  luaL_checktype(L, i, LUA_TTABLE);
  for (lua_Integer g = 1; lua_rawgeti(L, i, g) == LUA_TTABLE; g++) {
    if (lua_getfield(L, -1, "params") != LUA_TTABLE)
      dm_raise_text(L, "optimizer: a group without params");
    n += (int64_t)lua_rawlen(L, -1);
    lua_pop(L, 2);
  }
  lua_pop(L, 1);
  return n;
}

/* amp_unscale_(param_groups, scale, found_inf, where) -> how many gradients
   there were on scale's device, how many elsewhere: those are passed over; see
   dm_amp_unscale */
static int amp_unscale(lua_State *L) {
  dm_enter(L);
  lua_settop(L, 4);
  const int64_t n = count_params(L, 1);
  const dm_Tensor *scale = dm_check_tensor(L, 2);
  int64_t i = 0, n_grad = 0, elsewhere = 0;
  dm_Tensor **grads = lua_newuserdatauv(L, sizeof *grads * (size_t)(n ? n : 1), 0);
  for (lua_Integer g = 1; lua_rawgeti(L, 1, g) == LUA_TTABLE; g++) {
    lua_getfield(L, -1, "params");
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

/* amp_note_(history, found_inf, where, updates) */
static int amp_note(lua_State *L) {
  dm_enter(L);
  DM_CHECK(L, dm_amp_note(dm_check_tensor(L, 1), dm_check_tensor(L, 2), dm_check_tensor(L, 3),
                          dm_check_tensor(L, 4)));
  return 0;
}

/* amp_update_scale_(scale, growth_tracker, floored, updates, found_infs, growth, backoff,
   interval, floor, ceiling) -> updates in a row that the floor held */
static int amp_update_scale(lua_State *L) {
  dm_enter(L);
  int64_t n, held = 0;
  dm_Tensor *scale = dm_check_tensor(L, 1), *tracker = dm_check_tensor(L, 2);
  dm_Tensor *floored = dm_check_tensor(L, 3), *updates = dm_check_tensor(L, 4);
  const dm_ScalePolicy how = {
      .growth = luaL_checknumber(L, 6),
      .backoff = luaL_checknumber(L, 7),
      .interval = luaL_checkinteger(L, 8),
      .floor = luaL_checknumber(L, 9),
      .ceiling = luaL_checknumber(L, 10),
  };
  dm_Tensor **found = push_list(L, 5, false, &n);
  CHECK_AS("GradScaler.update", L,
           dm_amp_update_scale(scale, tracker, floored, updates, n, found, &how, &held));
  lua_pushinteger(L, held);
  return 1;
}

/* amp_mark_scaled_(t): what backward sends through the node that made t counts
   as scaled from there on */
static int amp_mark_scaled(lua_State *L) {
  dm_Tensor *t = dm_check_tensor(L, 1);
  if (t->node) t->node->scales = true;
  return 0;
}

/* amp_any_scaled(params) -> has one of them a gradient that is still scaled */
static int amp_any_scaled(lua_State *L) {
  int64_t n;
  bool any = false;
  dm_Tensor **grads = push_list(L, 1, true, &n);
  for (int64_t i = 0; i < n; i++) any |= (grads[i]->flags & DM_T_SCALED) != 0;
  lua_pushboolean(L, any);
  return 1;
}

/* total_norm(tensors, p, grads?) -> 0-dim tensor, number of tensors in it */
static int total_norm(lua_State *L) {
  State *S = dm_enter(L);
  int64_t n;
  lua_settop(L, 3);
  dm_Tensor **list = push_list(L, 1, lua_toboolean(L, 3), &n);
  const double p = luaL_checknumber(L, 2);
  Handle *handle = dm_push_handle(L, S);
  CHECK_AS("total_norm", L, dm_total_norm(n, list, p, &handle->t));
  lua_pushinteger(L, n);
  return 2;
}

/* clip_norm_(tensors, max_norm, total_norm, grads?) */
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

/* clamp_all_(tensors, limit, grads?) */
static int clamp_all(lua_State *L) {
  dm_enter(L);
  int64_t n;
  lua_settop(L, 3);
  dm_Tensor **list = push_list(L, 1, lua_toboolean(L, 3), &n);
  const double limit = luaL_checknumber(L, 2);
  CHECK_AS("clamp_all_", L, dm_clamp_all(n, list, limit));
  return 0;
}

/* A step's closure: its further upvalues are the names of the buffers it asks for. */
static void push_step(lua_State *L, State *S, lua_CFunction f, int n,
                      const char *const *names) {
  lua_pushlightuserdata(L, S);
  luaL_getmetatable(L, "demilune.Tensor");
  for (int i = 0; i < n; i++) lua_pushstring(L, names[i]);
  lua_pushcclosure(L, f, UP_META + n);
}

void dm_register_optim(lua_State *L, State *S, int module) {
  static const char *const sgd[] = {"master", "momentum_buffer"};
  static const char *const adam[] = {"master", "step", "exp_avg", "exp_avg_sq",
                                     "max_exp_avg_sq"};
  push_step(L, S, sgd_step, DM_COUNT(sgd), sgd);
  lua_setfield(L, module, "sgd_step");
  push_step(L, S, adam_step, DM_COUNT(adam), adam);
  lua_setfield(L, module, "adam_step");
}

const luaL_Reg dm_optim_functions[] = {{"drop_grads", drop_grads},
                                       {"amp_unscale_", amp_unscale},
                                       {"amp_note_", amp_note},
                                       {"amp_update_scale_", amp_update_scale},
                                       {"amp_mark_scaled_", amp_mark_scaled},
                                       {"amp_any_scaled", amp_any_scaled},
                                       {"on_one_device", on_one_device},
                                       {"total_norm", total_norm},
                                       {"clip_norm_", clip_norm},
                                       {"clamp_all_", clamp_all},
                                       {NULL, NULL}};
