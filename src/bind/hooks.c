/* The hooks of the tests: core._test. These functions refuse memory on purpose, count its
   blocks, trace the thread pool, hide the GPU and send a signal, so that no name of the public
   module leads to them. */
#include <signal.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "bind/bind.h"
#include "cpu/threads.h"

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

/* What traced jobs took, and would take with 1, 2, 4 ... threads that share their chunks
 * evenly. */
enum { MOST = 7 /* up to 64 threads */ };
static double shared_by[MOST];
static lua_Integer n_jobs;

static void note_job(int64_t n_chunks, double seconds) {
  n_jobs++;
  for (int i = 0; i < MOST; i++) {
    const int64_t turns = ((n_chunks - 1) >> i) + 1;
    shared_by[i] += seconds * (double)turns / (double)n_chunks;
  }
}

/* trace_jobs(on) -> the number of jobs of the thread pool since it was switched on, and the
   seconds that they would take with 1, 2, 4 ... 64 threads. While it is on, no job has more
   than one. */
static int trace_jobs(lua_State *L) {
  const bool on = lua_toboolean(L, 1);
  dm_trace_jobs(on ? note_job : NULL);
  lua_pushinteger(L, n_jobs);
  lua_createtable(L, MOST, 0);
  for (int i = 0; i < MOST; i++) {
    lua_pushnumber(L, shared_by[i]);
    lua_rawseti(L, -2, i + 1);
    shared_by[i] = 0;
  }
  n_jobs = 0;
  return 2;
}

/* interrupt(...) -> ...: sends SIGINT before it returns. */
static int interrupt(lua_State *L) {
  raise(SIGINT);
  return lua_gettop(L);
}

const luaL_Reg dm_test_functions[] = {{"alloc_fail_at", alloc_fail_at},
                                      {"alloc_requests", alloc_requests},
                                      {"alloc_live", alloc_live},
                                      {"trace_jobs", trace_jobs},
                                      {"without_cuda", without_cuda},
                                      {"interrupt", interrupt},
                                      {NULL, NULL}};
