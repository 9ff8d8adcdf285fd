/* Files for the readers, a Lua state, the count of leaks, and the coverage of Lua code. */
#include "fuzz.h"

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "demilune.h"

enum { N_FILES = 3 };

const char *fuzz_file(int slot, const void *bytes, size_t n) {
  static int fds[N_FILES] = {-1, -1, -1};
  static char paths[N_FILES][32];
  if (fds[slot] < 0) {
    fds[slot] = memfd_create("fuzz", 0);
    snprintf(paths[slot], sizeof paths[slot], "/proc/self/fd/%d", fds[slot]);
  }
  if (fds[slot] < 0 || ftruncate(fds[slot], 0) != 0 ||
      pwrite(fds[slot], bytes, n, 0) != (ssize_t)n) {
    perror("fuzz_file");
    exit(1);
  }
  return paths[slot];
}

void fuzz_check_live(void) {
  static int64_t live = -1;
  if (live < 0) live = dm_alloc_live();
  if (dm_alloc_live() == live) return;
  fprintf(stderr, "fuzz: %lld blocks of the engine are left behind\n",
          (long long)(dm_alloc_live() - live));
  abort();
}

static void failed(lua_State *L) {
  fprintf(stderr, "fuzz: %s\n", lua_tostring(L, -1));
  abort();
}

/* Every line of Lua that ran, for scripts/coverage --fuzz: they are written at the end to the
   file that FUZZ_LINES names, a line "source:number" each. */
enum { MAX_SOURCES = 64, MAX_LINE = 2048 };
static const char *sources[MAX_SOURCES];
static uint8_t reached[MAX_SOURCES][MAX_LINE];

static void write_lines(void) {
  FILE *file = fopen(getenv("FUZZ_LINES"), "w");
  if (!file) return;
  for (int i = 0; i < MAX_SOURCES && sources[i]; i++)
    for (int line = 1; line < MAX_LINE; line++)
      if (reached[i][line]) fprintf(file, "%s:%d\n", sources[i], line);
  fclose(file);
}

static void keep_line(const lua_Debug *ar) {
  if (ar->source[0] != '@' || ar->currentline >= MAX_LINE) return;
  for (int i = 0; i < MAX_SOURCES; i++) {
    if (!sources[i]) sources[i] = strdup(ar->source + 1);
    if (strcmp(sources[i], ar->source + 1) != 0) continue;
    reached[i][ar->currentline] = 1;
    return;
  }
}

/* The fuzzer seeks inputs that reach new code; of Lua code it knows by these counters, one
   or more lines each. */
enum { N_LINES = 1 << 13 };
__attribute__((section("__libfuzzer_extra_counters"))) static uint8_t lines[N_LINES];

static int keeps_lines;

static void count_line(lua_State *L, lua_Debug *ar) {
  lua_getinfo(L, "S", ar);
  if (keeps_lines) keep_line(ar);
  size_t n = ar->srclen; /* tells most files apart */
  n = (n * 1009 + (size_t)(unsigned char)ar->source[n > 7 ? n - 7 : 0]) * 257;
  lines[(n + (size_t)ar->currentline) % N_LINES]++;
}

/* A state with the module linked in, and the chunk's function at 1. */
static lua_State *open_state(const char *chunk) {
  lua_State *L = luaL_newstate();
  if (!L) exit(1);
  luaL_openlibs(L);
  luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_PRELOAD_TABLE);
  lua_pushcfunction(L, luaopen_demilune_core);
  lua_setfield(L, -2, "demilune.core");
  lua_settop(L, 0);
  if (luaL_dostring(L, "package.path = '" FUZZ_LUA "/?.lua;" FUZZ_LUA "/?/init.lua'"))
    failed(L);
  if (luaL_loadstring(L, chunk) || lua_pcall(L, 0, 1, 0)) failed(L);
  keeps_lines = getenv("FUZZ_LINES") != NULL;
  if (keeps_lines) atexit(write_lines);
  lua_sethook(L, count_line, LUA_MASKLINE, 0);
  return L;
}

void fuzz_lua(const char *chunk, int n_args, const char *const *args) {
  enum { CALLS = 16 }; /* from one look at memory to the next: a collection takes longer */
  static lua_State *L;
  static unsigned n_calls;
  if (!L) L = open_state(chunk);
  lua_pushvalue(L, 1);
  for (int i = 0; i < n_args; i++) lua_pushstring(L, args[i]);
  if (lua_pcall(L, n_args, 0, 0)) {
    const char *why = lua_tostring(L, -1);
    if (!why || !strstr(why, "memory")) failed(L);
  }
  lua_settop(L, 1);
  if (++n_calls % CALLS) return;
  lua_gc(L, LUA_GCCOLLECT);
  lua_gc(L, LUA_GCCOLLECT); /* what finalizers let go of */
  fuzz_check_live();
}
