/* Generators of random numbers: the state's own, and those that a script makes for itself and
   names in a call, {generator = g}. A generator is a seed and an offset, from which Philox
   computes each number (base/rng.h), so its state is saved and restored as a table of two
   integers. */
#include "base/error.h"
#include "bind/bind.h"

static const char generator_name[] = "demilune.Generator";

/* A generator that a call names must stay referenced by Lua during the call. */
dm_Generator *dm_to_generator(lua_State *L, int i) {
  return luaL_testudata(L, i, generator_name);
}

/* A generator with the seed at i, at offset 0. */
static dm_Generator seeded(lua_State *L, int i) {
  return (dm_Generator){(uint64_t)luaL_checkinteger(L, i), 0};
}

/* Pushes {seed =, offset =}. */
static void push_state_of(lua_State *L, const dm_Generator *g) {
  lua_createtable(L, 0, 2);
  lua_pushinteger(L, (lua_Integer)g->seed);
  lua_setfield(L, -2, "seed");
  lua_pushinteger(L, (lua_Integer)g->offset);
  lua_setfield(L, -2, "offset");
}

/* The generator that the table {seed =, offset =} at i describes. Leaves both fields on the
   stack. */
static dm_Generator state_at(lua_State *L, int i) {
  luaL_checktype(L, i, LUA_TTABLE);
  lua_getfield(L, i, "seed");
  lua_getfield(L, i, "offset");
  return (dm_Generator){(uint64_t)luaL_checkinteger(L, -2), (uint64_t)luaL_checkinteger(L, -1)};
}

/* ---- the state's own ---- */

/* manual_seed(seed), initial_seed() -> seed, get_rng_state() -> table, set_rng_state(table):
   those of PyTorch, for the generator that ops use when a call names none. */
static int manual_seed(lua_State *L) {
  State *S = dm_enter(L);
  S->generator = seeded(L, 1);
  return 0;
}
static int initial_seed(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)dm_enter(L)->generator.seed);
  return 1;
}
static int get_rng_state(lua_State *L) {
  push_state_of(L, &dm_enter(L)->generator);
  return 1;
}
static int set_rng_state(lua_State *L) {
  State *S = dm_enter(L);
  S->generator = state_at(L, 1);
  return 0;
}

/* ---- a script's ---- */

/* The generator at 1; raises on other values. */
static dm_Generator *check_generator(lua_State *L) {
  return luaL_checkudata(L, 1, generator_name);
}

/* dm.Generator{device = } -> a generator with PyTorch's default seed. It serves every device,
   with the same numbers; the device's name is checked, no more. */
static int generator_new(lua_State *L) {
  static const char *const names[] = {"device"};
  if (lua_istable(L, 1)) {
    dm_check_options(L, "Generator", 1, DM_COUNT(names), names);
    if (dm_option(L, 1, "device") != LUA_TNIL) dm_check_device(L, -1);
  } else if (!lua_isnoneornil(L, 1)) {
    dm_check_device(L, 1);
  }
  dm_Generator *g = lua_newuserdatauv(L, sizeof *g, 0);
  *g = (dm_Generator){67280421310721u, 0};
  luaL_setmetatable(L, generator_name);
  return 1;
}
/* g:manual_seed(seed) -> g. */
static int generator_manual_seed(lua_State *L) {
  *check_generator(L) = seeded(L, 2);
  lua_settop(L, 1);
  return 1;
}
/* g:initial_seed() -> seed; g:get_state() -> {seed =, offset =}. */
static int generator_initial_seed(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)check_generator(L)->seed);
  return 1;
}
static int generator_get_state(lua_State *L) {
  push_state_of(L, check_generator(L));
  return 1;
}
/* g:set_state(table) -> g, where table came from g:get_state(). */
static int generator_set_state(lua_State *L) {
  dm_Generator *g = check_generator(L);
  *g = state_at(L, 2);
  lua_settop(L, 1);
  return 1;
}
static int generator_tostring(lua_State *L) {
  const dm_Generator *g = check_generator(L);
  lua_pushfstring(L, "Generator(seed = %I, offset = %I)", (lua_Integer)g->seed,
                  (lua_Integer)g->offset);
  return 1;
}

void dm_register_random(lua_State *L, State *S) {
  static const luaL_Reg methods[] = {
      {"manual_seed", generator_manual_seed}, {"initial_seed", generator_initial_seed},
      {"get_state", generator_get_state},     {"set_state", generator_set_state},
      {"__tostring", generator_tostring},     {NULL, NULL}};
  dm_register_class(L, generator_name, methods, S);
}

const luaL_Reg dm_random_functions[] = {
    {"manual_seed", manual_seed},     {"initial_seed", initial_seed},
    {"get_rng_state", get_rng_state}, {"set_rng_state", set_rng_state},
    {"Generator", generator_new},     {NULL, NULL}};
