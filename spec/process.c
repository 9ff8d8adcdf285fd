/* What Lua lacks, for specs of processes. Numbers of signals are Linux's.
     setenv(name, value)
     fork() -> 0 in the child, or its number
     wait(child) -> its exit status or, after a signal, the number negated
     pid(), parent() -> the numbers of this process and of its parent
     kill(process, signal) -> whether there was such a process
     sleep(seconds)
     catch(signal): a handler counts it, caught() -> how many came
     interrupt(signal): a handler raises the error "interrupted!" in Lua, as lua5.4 does for
   Ctrl-C, while allow(true) lets it; otherwise it is counted only limit_files(bytes): longer
   files fail to be written; without bytes: no limit pin(process, first, n): all its threads run
   on so many processors from that one (0 is the first) entries(folder) -> how many entries a
   folder has, such as /proc/self/task or /proc/self/fd */
#define _GNU_SOURCE
#include <dirent.h>
#include <lauxlib.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t n_caught, allowed, instructions;
static lua_State *main_state;

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

static int this_process(lua_State *L) {
  lua_pushinteger(L, getpid());
  return 1;
}

static int parent_process(lua_State *L) {
  lua_pushinteger(L, getppid());
  return 1;
}

static int kill_process(lua_State *L) {
  lua_pushboolean(L, kill((pid_t)luaL_checkinteger(L, 1), (int)luaL_checkinteger(L, 2)) == 0);
  return 1;
}

static int sleep_process(lua_State *L) {
  const double seconds = luaL_checknumber(L, 1);
  struct timespec t = {.tv_sec = (time_t)seconds};
  t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
  nanosleep(&t, NULL);
  return 0;
}

static void count_signal(int number) {
  (void)number;
  n_caught++;
}

/* Without SA_RESTART, so that calls of the system that wait are interrupted. */
static int catch_signal(lua_State *L) {
  const struct sigaction action = {.sa_handler = count_signal};
  sigaction((int)luaL_checkinteger(L, 1), &action, NULL);
  return 0;
}

/* At the second instruction in a row: the one behind a call may make its result a to-be-closed
   variable (bind/interrupt.c). */
static void raise_interrupted(lua_State *L, lua_Debug *ar) {
  instructions = ar->event == LUA_HOOKCOUNT ? instructions + 1 : 0;
  if (allowed && instructions < 2) return;
  lua_sethook(L, NULL, 0, 0);
  if (allowed) luaL_error(L, "interrupted!");
}

/* Lua allows a hook to be set by a handler. */
static void interrupt_lua(int number) {
  const int events = LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT;
  count_signal(number);
  instructions = 0;
  if (allowed) lua_sethook(main_state, raise_interrupted, events, 1);
}

static int interrupt_by(lua_State *L) {
  const struct sigaction action = {.sa_handler = interrupt_lua};
  lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_MAINTHREAD);
  main_state = lua_tothread(L, -1);
  sigaction((int)luaL_checkinteger(L, 1), &action, NULL);
  return 0;
}

static int allow_interrupts(lua_State *L) {
  allowed = lua_toboolean(L, 1);
  return 0;
}

static int caught_signals(lua_State *L) {
  lua_pushinteger(L, n_caught);
  return 1;
}

/* A write beyond the limit fails with EFBIG where its signal is ignored. */
static int limit_files(lua_State *L) {
  struct rlimit limit;
  signal(SIGXFSZ, SIG_IGN);
  getrlimit(RLIMIT_FSIZE, &limit);
  limit.rlim_cur = lua_isnoneornil(L, 1) ? limit.rlim_max : (rlim_t)luaL_checkinteger(L, 1);
  lua_pushboolean(L, setrlimit(RLIMIT_FSIZE, &limit) == 0);
  return 1;
}

static int pin_process(lua_State *L) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (lua_Integer i = 0; i < luaL_checkinteger(L, 3); i++)
    CPU_SET((size_t)(luaL_checkinteger(L, 2) + i), &set);
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/task", (int)luaL_checkinteger(L, 1));
  DIR *tasks = opendir(path);
  for (const struct dirent *e; tasks && (e = readdir(tasks));)
    if (e->d_name[0] != '.') sched_setaffinity(atoi(e->d_name), sizeof set, &set);
  if (tasks) closedir(tasks);
  return 0;
}

/* The folder is open itself while its entries are counted: /proc/self/fd has one more. */
static int count_entries(lua_State *L) {
  DIR *folder = opendir(luaL_checkstring(L, 1));
  lua_Integer n = 0;
  for (const struct dirent *e; folder && (e = readdir(folder));)
    if (e->d_name[0] != '.') n++;
  if (folder) closedir(folder);
  lua_pushinteger(L, n);
  return 1;
}

int luaopen_process(lua_State *L) {
  const luaL_Reg functions[] = {
      {"setenv", set_variable},    {"fork", fork_process},      {"wait", wait_process},
      {"pid", this_process},       {"parent", parent_process},  {"kill", kill_process},
      {"sleep", sleep_process},    {"catch", catch_signal},     {"caught", caught_signals},
      {"interrupt", interrupt_by}, {"allow", allow_interrupts}, {"limit_files", limit_files},
      {"pin", pin_process},        {"entries", count_entries},  {NULL, NULL}};
  luaL_newlib(L, functions);
  return 1;
}
