/* Files of tokens for Lua, whose positions count from 1; classes of characters for the
   tokenizer. A file stays open as long as its userdata, and loaders hold that while they read
   windows of it. */
#include "data/tokens.h"

#include "bind/bind.h"
#include "data/unicode.h"

static const char CLASS[] = "demilune.Tokens";

/* Raises on values that are no file of tokens. */
const dm_Tokens *dm_check_tokens(lua_State *L, int i) {
  const dm_Tokens *t = *(dm_Tokens **)luaL_checkudata(L, i, CLASS);
  luaL_argcheck(L, t != NULL, i, "the file is closed");
  return t;
}

/* __gc: closes the file. */
static int tokens_gc(lua_State *L) {
  dm_tokens_close(luaL_checkudata(L, 1, CLASS));
  return 0;
}

/* tokens_open(path, bits of a token or 0) -> file; nil and a message. 0 means that the file's
   head says it. */
static int tokens_open(lua_State *L) {
  State *S = dm_enter(L);
  const char *path = dm_check_path(L, 1);
  const lua_Integer bits = luaL_checkinteger(L, 2);
  /* The userdata exists before the file is opened, so that an error loses no descriptor. */
  dm_Tokens **t = lua_newuserdatauv(L, sizeof *t, 0);
  *t = NULL;
  luaL_setmetatable(L, CLASS);
  dm_status st = dm_tokens_open(t, path, (int)bits);
  if (st == DM_EMEM) {
    dm_collect(L, S);
    st = dm_tokens_open(t, path, (int)bits);
  }
  return st == DM_OK ? 1 : dm_world_failed(L, st);
}

/* file:count() -> number of tokens. */
static int tokens_count(lua_State *L) {
  lua_pushinteger(L, dm_tokens_count(dm_check_tokens(L, 1)));
  return 1;
}

/* file:read(first, n) -> int64 (n) on the CPU, token ids plus 1; nil and a message. Raises
   for tokens beyond the file. */
static int tokens_read(lua_State *L) {
  State *S = dm_enter(L);
  const dm_Tokens *t = dm_check_tokens(L, 1);
  const int64_t first = luaL_checkinteger(L, 2), n = luaL_checkinteger(L, 3);
  if (first < 1 || n < 0 || n > dm_tokens_count(t) - first + 1)
    return dm_raise_text(L, "read: %I tokens from %I on, there are %I", (LUAI_UACINT)n,
                         (LUAI_UACINT)first, (LUAI_UACINT)dm_tokens_count(t));
  Handle *handle = dm_push_handle(L, S);
  DM_CHECK_TWICE(L, S, dm_tensor_new(DM_I64, 1, &n, (dm_Device){.type = DM_CPU}, &handle->t));
  const dm_status st = dm_tokens_read(t, first - 1, n, 1, dm_tensor_data(handle->t));
  return st == DM_OK ? 1 : dm_world_failed(L, st);
}

void dm_register_tokens(lua_State *L, State *S) {
  static const luaL_Reg methods[] = {
      {"count", tokens_count}, {"read", tokens_read}, {"__gc", tokens_gc}, {NULL, NULL}};
  dm_register_class(L, CLASS, methods, S);
}

/* _char_class(code point) -> 1 for a letter, 2 for a number, 3 for white space, 4 for another
   character; nil and a message in a build without utf8proc. */
static int char_class(lua_State *L) {
  const lua_Integer code = luaL_checkinteger(L, 1);
  dm_CharClass class = DM_CHAR_OTHER;
  const dm_status st =
      dm_char_class(&class, (int32_t)dm_max_i64(-1, dm_min_i64(code, INT32_MAX)));
  if (st != DM_OK) return dm_world_failed(L, st);
  lua_pushinteger(L, class);
  return 1;
}

const luaL_Reg dm_tokens_functions[] = {
    {"tokens_open", tokens_open}, {"_char_class", char_class}, {NULL, NULL}};
