/* What Lua lacks, for specs of processes: setenv(name, value), fork() -> 0 in the child or its
   number, wait(child) -> its exit status or, after a signal, the number negated. */
#define _GNU_SOURCE
#include <lauxlib.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int set_variable(lua_State *L) {
  setenv(luaL_checkstring(L, 1), luaL_checkstring(L, 2), 1);
  return 0;
}

static int fork_process(lua_State *L) {
  lua_pushinteger(L, fork());
  return 1;
}

static int wait_process(lua_State *L) {
  int status = 0;
  waitpid((pid_t)luaL_checkinteger(L, 1), &status, 0);
  lua_pushinteger(L, WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status));
  return 1;
}

int luaopen_process(lua_State *L) {
  const luaL_Reg functions[] = {
      {"setenv", set_variable}, {"fork", fork_process}, {"wait", wait_process}, {NULL, NULL}};
  luaL_newlib(L, functions);
  return 1;
}
