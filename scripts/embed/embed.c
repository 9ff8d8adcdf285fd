/* demilune inside a C program: opens a Lua state with the module linked in,
   runs a training script, and reads and searches the weights through the C API.
   With the library installed:
     cc embed.c -o embed $(pkg-config --cflags --libs demilune-lua lua5.4)
   Usage: embed SCRIPT.lua; the script returns the model's weight and bias. */
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdio.h>

#include "demilune.h"

static int fail(lua_State *L, const char *what) {
  fprintf(stderr, "embed: %s: %s\n", what, lua_tostring(L, -1));
  lua_close(L);
  return 1;
}

int main(int argc, char **argv) {
  if (argc != 2) return fprintf(stderr, "usage: embed SCRIPT.lua\n"), 2;
  lua_State *L = luaL_newstate();
  if (!L) return 1;
  luaL_openlibs(L);
  /* require "demilune" finds its Lua files on LUA_PATH, and the engine here */
  luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_PRELOAD_TABLE);
  lua_pushcfunction(L, luaopen_demilune_core);
  lua_setfield(L, -2, "demilune.core");
  lua_pop(L, 1);
  if (luaL_loadfile(L, argv[1]) || lua_pcall(L, 0, 2, 0)) return fail(L, argv[1]);

  const char *names[] = {"weight", "bias"};
  for (int i = 0; i < 2; i++) {
    const dm_Tensor *t = dm_lua_tensor(L, i - 2);
    if (!t || dm_tensor_dtype(t) != DM_F32) return fail(L, "no float32 tensor came back");
    const float *v = dm_tensor_data(t);
    printf("%s:", names[i]);
    for (int64_t k = 0; k < dm_tensor_numel(t); k++) printf(" %.4f", (double)v[k]);
    printf("\n");
  }
  dm_Tensor *weight = dm_lua_tensor(L, -2), *at = NULL; /* and the engine, from C */
  if (dm_call(dm_op_find("argmax"), 1, &weight, NULL, &at)) {
    fprintf(stderr, "embed: %s\n", dm_error());
    return lua_close(L), 1;
  }
  printf("largest weight: %d\n", (int)*(const int64_t *)dm_tensor_data(at));
  dm_tensor_unref(&at);
  lua_close(L);
  return 0;
}
