/* Lines from a terminal for the prompt of the demilune command, by GNU readline, or libedit
   with the same names. The library is opened when the prompt is: the module links neither, so
   that it stays MIT, and Debian's lua5.4 brings the first. */
#define _POSIX_C_SOURCE 200809L

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bind/bind.h"

typedef void LineHandler(char *line);
typedef char **Completer(const char *word, int from, int to);
typedef char *Generator(const char *word, int state);

/* The names of readline that are used, as its manual declares them. */
static struct {
  void *opened; /* by dlopen */
  void (*install)(const char *prompt, LineHandler *f);
  void (*read_char)(void);
  void (*remove)(void);
  char **(*matches)(const char *word, Generator *f);
  void (*add_history)(const char *line);
  int (*read_history)(const char *path);
  int (*append_history)(int n, const char *path);
  int (*truncate_history)(const char *path, int n);
  char **buffer;         /* what was typed of the line */
  Completer **completer; /* what Tab calls */
  int *over, *append;  /* whether file names are no candidates; what follows a completed word */
  int *catches;        /* whether readline handles signals itself */
  const char **breaks; /* what ends a word */
} rl;

/* The line that is being read: its state of Lua, whose index 2 holds complete(text), and the
   line once it is whole. */
static lua_State *reading;
static char *whole;
static bool done;
static int remembered; /* lines that the file of the history does not have */

/* Finds a name in the library; false where it lacks. */
static bool find(const char *name, void *into) {
  void *const at = dlsym(rl.opened, name);
  memcpy(into, &at, sizeof at);
  return at != NULL;
}

static bool find_all(void) {
  return find("rl_callback_handler_install", &rl.install) &&
         find("rl_callback_read_char", &rl.read_char) &&
         find("rl_callback_handler_remove", &rl.remove) &&
         find("rl_completion_matches", &rl.matches) && find("add_history", &rl.add_history) &&
         find("read_history", &rl.read_history) && find("append_history", &rl.append_history) &&
         find("history_truncate_file", &rl.truncate_history) &&
         find("rl_line_buffer", &rl.buffer) &&
         find("rl_attempted_completion_function", &rl.completer) &&
         find("rl_attempted_completion_over", &rl.over) &&
         find("rl_completion_append_character", &rl.append) &&
         find("rl_catch_signals", &rl.catches) &&
         find("rl_completer_word_break_characters", &rl.breaks);
}

/* The next candidate of the list on top of the stack, which readline frees; NULL at its end. It
   allocates nothing in Lua, so it cannot raise through readline. */
static char *next_candidate(const char *word, int state) {
  static lua_Integer at;
  DM_UNUSED(word);
  at = state == 0 ? 1 : at + 1;
  lua_rawgeti(reading, -1, at);
  const char *name = lua_tostring(reading, -1);
  char *copy = name ? strdup(name) : NULL;
  lua_pop(reading, 1);
  return copy;
}

/* Tab: the candidates that complete(text up to the cursor) lists. An error there gives none. */
static char **candidates(const char *word, int from, int to) {
  DM_UNUSED(from);
  *rl.over = 1;
  *rl.append = '\0';
  if (!lua_checkstack(reading, 8)) return NULL;
  lua_pushvalue(reading, 2);
  lua_pushlightuserdata(reading, &to);
  char **list = NULL;
  if (lua_pcall(reading, 1, 1, 0) == LUA_OK && lua_istable(reading, -1))
    list = rl.matches(word, next_candidate);
  lua_pop(reading, 1);
  return list;
}

/* A line is whole, or NULL: the input ended. The handler goes before the next prompt is drawn.
 */
static void take(char *line) {
  whole = line;
  done = true;
  rl.remove();
}

/* line_open() -> true, or nil and why lines cannot be edited here. */
static int line_open(lua_State *L) {
  static const char *const files[] = {"libreadline.so.8", "libreadline.so.7", "libreadline.so",
                                      "libedit.so.2"};
  if (!isatty(0) || !isatty(1)) {
    lua_pushnil(L);
    lua_pushliteral(L, "input or output is no terminal");
    return 2;
  }
  for (int i = 0; i < DM_COUNT(files) && !rl.opened; i++) {
    rl.opened = dlopen(files[i], RTLD_LAZY | RTLD_LOCAL);
    if (!rl.opened || find_all()) continue;
    dlclose(rl.opened);
    rl.opened = NULL;
  }
  if (!rl.opened) {
    lua_pushnil(L);
    lua_pushliteral(L, "no libreadline.so.8; hint: apt install libreadline8");
    return 2;
  }
  *rl.completer = candidates;
  *rl.catches = 0; /* interrupt.c does */
  *rl.breaks = " \t\n\"\\'`@$><=;|&{}().:[],*/+-^%#~";
  lua_pushboolean(L, true);
  return 1;
}

/* line_buffer(cursor): the text of the line up to the cursor, for complete(). */
static int line_buffer(lua_State *L) {
  const int *to = lua_touserdata(L, 1);
  if (!reading || !to) return luaL_error(L, "no line is being read");
  const size_t n = strlen(*rl.buffer);
  lua_pushlstring(L, *rl.buffer, (size_t)*to < n ? (size_t)*to : n);
  return 1;
}

/* line_read(prompt, complete) -> the line; nil at the end of the input; false after Ctrl-C, and
   whether something had been typed. complete(cursor) gives a list of strings. */
static int line_read(lua_State *L) {
  const char *prompt = luaL_checkstring(L, 1);
  luaL_checktype(L, 2, LUA_TFUNCTION);
  if (!rl.opened || reading) return luaL_error(L, "no terminal is open, or a line is read");
  luaL_checkstack(L, 8, "line");
  reading = L;
  whole = NULL;
  done = false;
  rl.install(prompt, take);
  while (!done && dm_wait_input()) rl.read_char();
  reading = NULL;
  if (!done) { /* Ctrl-C */
    const bool typed = **rl.buffer != '\0';
    rl.remove();
    lua_pushboolean(L, false);
    lua_pushboolean(L, typed);
    return 2;
  }
  /* a line that Lua has no memory for is lost, 1 in a session */
  if (whole) lua_pushstring(L, whole);
  else lua_pushnil(L);
  free(whole);
  whole = NULL;
  return 1;
}

/* line_remember(text): adds a line to the history. */
static int line_remember(lua_State *L) {
  const char *text = luaL_checkstring(L, 1);
  if (!rl.opened) return 0;
  rl.add_history(text);
  remembered++;
  return 0;
}

/* line_history(path, kept): the history begins with that of the file. With kept, the file gets
   what was remembered since, and keeps that many lines. */
static int line_history(lua_State *L) {
  const char *path = dm_check_path(L, 1);
  const lua_Integer kept = luaL_optinteger(L, 2, 0);
  luaL_argcheck(L, kept >= 0 && kept <= 1000000, 2, "wanted 0 to 1000000 lines");
  if (!rl.opened) return 0;
  if (kept == 0) {
    (void)rl.read_history(path);
  } else if (remembered > 0) {
    if (rl.append_history(remembered, path) == 0) (void)rl.truncate_history(path, (int)kept);
    remembered = 0;
  }
  return 0;
}

const luaL_Reg dm_line_functions[] = {
    {"_line_open", line_open},       {"_line_read", line_read},
    {"_line_buffer", line_buffer},   {"_line_remember", line_remember},
    {"_line_history", line_history}, {NULL, NULL}};
