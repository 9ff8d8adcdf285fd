/* Refuses Lua's own memory on purpose: fail_at(n) refuses request n and all after it,
   fail_at(0) none. spec/bad_input_spec.lua builds this module. */
#include <lauxlib.h>
#include <lua.h>

static lua_Alloc given;
static long left; /* requests until the first refusal */

static void *refuse(void *ctx, void *block, size_t old_size, size_t size) {
  const int grows = size > 0 && (!block || size > old_size);
  if (grows && left > 0) left--;
  return grows && left == 0 ? NULL : given(ctx, block, old_size, size);
}

static int fail_at(lua_State *L) {
  void *ctx;
  const lua_Alloc now = lua_getallocf(L, &ctx);
  if (now != refuse) given = now;
  left = (long)luaL_checkinteger(L, 1);
  lua_setallocf(L, left > 0 ? refuse : given, ctx);
  return 0;
}

int luaopen_lua_alloc(lua_State *L);
int luaopen_lua_alloc(lua_State *L) {
  lua_pushcfunction(L, fail_at);
  return 1;
}
