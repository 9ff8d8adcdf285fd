/* The hooks of the tests: core._test. These functions refuse memory on purpose, count its
   blocks and hide the GPU, so that no name of the public module leads to them. */
#include <stdlib.h>

#include "base/alloc.h"
#include "bind/bind.h"

/* alloc_fail_at(n[, sticky]): refuses request n from now, and all after it when sticky; 0
   refuses none. See base/alloc.h. */
static int alloc_fail_at(lua_State *L) {
  dm_alloc_fail_at(luaL_checkinteger(L, 1), lua_toboolean(L, 2));
  return 0;
}

/* alloc_requests() -> the number of requests since alloc_fail_at, from which a test chooses the
   one that is to fail. */
static int alloc_requests(lua_State *L) {
  lua_pushinteger(L, dm_alloc_requests());
  return 1;
}

/* alloc_live() -> the number of blocks in use: a test compares it before and after to find a
   leak. */
static int alloc_live(lua_State *L) {
  lua_pushinteger(L, dm_alloc_live());
  return 1;
}

/* without_cuda(): makes this process and those it starts behave as on a machine without
   CUDA. It has an effect only before the first use of CUDA. */
static int without_cuda(lua_State *L) {
  DM_UNUSED(L);
  setenv("DEMILUNE_CUDA", "0", 1);
  return 0;
}

const luaL_Reg dm_test_functions[] = {{"alloc_fail_at", alloc_fail_at},
                                      {"alloc_requests", alloc_requests},
                                      {"alloc_live", alloc_live},
                                      {"without_cuda", without_cuda},
                                      {NULL, NULL}};
