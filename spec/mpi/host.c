/* The Lua module that runs ranks as threads, each with a Lua state of its own, on the stand-in
   for MPI. begin(folder, n, seed, script, argument): rank i runs script(argument) with the copy
   of the engine in folder/i wait(seconds) -> whether all have ended by then result(i) -> what
   rank i's script has returned, or its error; whether it has ended well; its last words of
   progress counts(i) -> calls, live requests, live types, bytes sent, the call that was made to
   fail breaches() -> those of MPI's rules; or "" fail(rank, at, keeps): see standin_fail In a
   rank's state the global `standin` has rank, progress(text), counts and fail, too. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <lauxlib.h>
#include <lualib.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "mpi.h"

enum { TEXT = 4096 };

typedef struct Rank {
  pthread_t thread;
  bool has_ended, is_well;
  char result[TEXT], progress[TEXT];
} Rank;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended;
static Rank ranks[STANDIN_MAX];
static int n_rank;
static char folder[TEXT], script[TEXT], argument[TEXT];

static int set_progress(lua_State *L) {
  const char *text = luaL_checkstring(L, 1);
  pthread_mutex_lock(&lock);
  snprintf(ranks[standin_me()].progress, TEXT, "%s", text);
  pthread_mutex_unlock(&lock);
  return 0;
}

static int get_counts(lua_State *L) {
  const StandinCounts c = standin_counts((int)luaL_checkinteger(L, 1));
  lua_pushinteger(L, c.n_call);
  lua_pushinteger(L, c.n_request);
  lua_pushinteger(L, c.n_type);
  lua_pushinteger(L, c.n_sent);
  lua_pushstring(L, c.failed);
  return 5;
}

static int set_fail(lua_State *L) {
  standin_fail((int)luaL_checkinteger(L, 1), (long)luaL_checkinteger(L, 2),
               lua_toboolean(L, 3));
  return 0;
}

static int get_breaches(lua_State *L) {
  char text[STANDIN_TEXT];
  standin_breaches(text);
  lua_pushstring(L, text);
  return 1;
}

static void open_state(lua_State *L, int rank) {
  luaL_openlibs(L);
  lua_getglobal(L, "package");
  lua_pushfstring(L, "%s/%d/?.so", folder, rank);
  lua_setfield(L, -2, "cpath");
  lua_pushstring(L, "./lua/?.lua;./lua/?/init.lua;./?.lua");
  lua_setfield(L, -2, "path");
  lua_pop(L, 1);
  const luaL_Reg functions[] = {
      {"progress", set_progress}, {"counts", get_counts}, {"fail", set_fail}, {NULL, NULL}};
  luaL_newlib(L, functions);
  lua_pushinteger(L, rank);
  lua_setfield(L, -2, "rank");
  lua_setglobal(L, "standin");
}

/* The error with a traceback. */
static int explain(lua_State *L) {
  luaL_traceback(L, L, luaL_tolstring(L, 1, NULL), 1);
  return 1;
}

static void *run(void *at) {
  Rank *self = at;
  const int rank = (int)(self - ranks);
  char name[16], text[TEXT];
  snprintf(name, sizeof name, "rank %d", rank);
  pthread_setname_np(pthread_self(), name);
  lua_State *L = luaL_newstate();
  open_state(L, rank);
  lua_pushcfunction(L, explain);
  bool well = luaL_loadfile(L, script) == LUA_OK;
  if (well) {
    lua_pushstring(L, argument);
    well = lua_pcall(L, 1, 1, 1) == LUA_OK;
  }
  snprintf(text, sizeof text, "%s", luaL_tolstring(L, -1, NULL));
  lua_close(L); /* leaves the world where the script has not */
  pthread_mutex_lock(&lock);
  memcpy(self->result, text, sizeof text);
  self->is_well = well;
  self->has_ended = true;
  pthread_cond_broadcast(&ended);
  pthread_mutex_unlock(&lock);
  return NULL;
}

static int begin(lua_State *L) {
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&ended, &attr);
  snprintf(folder, sizeof folder, "%s", luaL_checkstring(L, 1));
  n_rank = (int)luaL_checkinteger(L, 2);
  luaL_argcheck(L, n_rank > 0 && n_rank <= STANDIN_MAX, 2, "too many ranks");
  standin_begin(n_rank, (unsigned long)luaL_checkinteger(L, 3));
  snprintf(script, sizeof script, "%s", luaL_checkstring(L, 4));
  snprintf(argument, sizeof argument, "%s", luaL_checkstring(L, 5));
  for (int i = 0; i < n_rank; i++) { /* one after the other, and for good */
    char path[TEXT + 32];
    snprintf(path, sizeof path, "%s/%d/demilune/core.so", folder, i);
    if (!dlopen(path, RTLD_NOW | RTLD_LOCAL)) return luaL_error(L, "%s", dlerror());
  }
  for (int i = 0; i < n_rank; i++)
    if (pthread_create(&ranks[i].thread, NULL, run, &ranks[i]))
      return luaL_error(L, "no thread");
  return 0;
}

static int wait_for(lua_State *L) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += (time_t)luaL_checkinteger(L, 1);
  pthread_mutex_lock(&lock);
  int n = 0, why = 0;
  while (why != ETIMEDOUT) {
    for (n = 0; n < n_rank && ranks[n].has_ended;) n++;
    if (n == n_rank) break;
    why = pthread_cond_timedwait(&ended, &lock, &until);
  }
  pthread_mutex_unlock(&lock);
  for (int i = 0; i < n_rank && n == n_rank; i++) pthread_join(ranks[i].thread, NULL);
  lua_pushboolean(L, n == n_rank);
  return 1;
}

static int result(lua_State *L) {
  const Rank *r = &ranks[luaL_checkinteger(L, 1)];
  pthread_mutex_lock(&lock);
  lua_pushstring(L, r->has_ended ? r->result : "has not ended");
  lua_pushboolean(L, r->is_well);
  lua_pushstring(L, r->progress);
  pthread_mutex_unlock(&lock);
  return 3;
}

int luaopen_host(lua_State *L) {
  const luaL_Reg functions[] = {{"begin", begin},   {"wait", wait_for},
                                {"result", result}, {"counts", get_counts},
                                {"fail", set_fail}, {"breaches", get_breaches},
                                {NULL, NULL}};
  luaL_newlib(L, functions);
  return 1;
}
