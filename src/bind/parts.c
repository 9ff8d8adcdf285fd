/* safetensors files for Lua, part by part: those that several processes write together, and
   those of which one reads some tensors, or some elements of them. Entries and elements count
   from 1. */
#include <string.h>

#include "bind/bind.h"
#include "data/safetensors.h"

static const char PARTS[] = "demilune.FileParts", STORED[] = "demilune.StoredFile";

/* ---- writing ---- */

static dm_StParts *check_parts(lua_State *L) {
  dm_StParts *p = *(dm_StParts **)luaL_checkudata(L, 1, PARTS);
  luaL_argcheck(L, p != NULL, 1, "the file is closed");
  return p;
}

static int parts_close(lua_State *L) {
  dm_st_parts_close(luaL_checkudata(L, 1, PARTS));
  return 0;
}

/* Pushes a field of the table on top, without metamethods: the table holds it. */
static int push_field(lua_State *L, const char *key) {
  lua_pushstring(L, key);
  return lua_rawget(L, -2);
}

/* The string field of the table on top. */
static const char *string_field(lua_State *L, const char *key) {
  if (push_field(L, key) != LUA_TSTRING)
    dm_raise_text(L, "_parts_open: %s of an entry is no string", key);
  const char *text = lua_tostring(L, -1);
  if (strlen(text) != lua_rawlen(L, -1)) dm_raise_text(L, "_parts_open: %s holds NUL", key);
  lua_pop(L, 1);
  return text;
}

/* *e = the entry {name =, dtype =, shape =} on top. */
static void read_entry(lua_State *L, dm_StEntry *e) {
  luaL_checktype(L, -1, LUA_TTABLE);
  *e = (dm_StEntry){.name = string_field(L, "name")};
  e->dtype = dm_dtype_find(string_field(L, "dtype"));
  if (e->dtype == DM_NO_DTYPE) dm_raise_text(L, "_parts_open: no dtype");
  if (push_field(L, "shape") != LUA_TTABLE) dm_raise_text(L, "_parts_open: no shape");
  const lua_Integer n = (lua_Integer)lua_rawlen(L, -1);
  if (n > DM_MAX_DIM) dm_raise_text(L, "_parts_open: too many dims");
  e->n_dim = (int)n;
  for (int d = 0; d < e->n_dim; d++) {
    lua_rawgeti(L, -1, d + 1);
    e->shape[d] = luaL_checkinteger(L, -1);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

/* Fills pairs with the strings of the table at i, which holds them; -> how many. */
static int64_t read_pairs(lua_State *L, int i, dm_StPair *pairs, size_t most) {
  size_t n = 0;
  for (lua_pushnil(L); lua_next(L, i); lua_pop(L, 1), n++) {
    if (n == most || lua_type(L, -2) != LUA_TSTRING || lua_type(L, -1) != LUA_TSTRING)
      dm_raise_text(L, "_parts_open: metadata wants strings for keys and values");
    pairs[n] = (dm_StPair){lua_tostring(L, -2), lua_tostring(L, -1)};
    if (strlen(pairs[n].key) != lua_rawlen(L, -2) ||
        strlen(pairs[n].value) != lua_rawlen(L, -1))
      dm_raise_text(L, "_parts_open: metadata '%s' holds NUL", pairs[n].key);
  }
  return (int64_t)n;
}

/* _parts_open(path, temporary name or nil, {{name =, dtype =, shape =}, ...}, {key = string})
   -> file; nil and a message where the disk fails. */
static int parts_open(lua_State *L) {
  enum { MOST_PAIRS = 64, MOST = 1 << 21 };
  dm_enter(L);
  const char *path = dm_check_path(L, 1);
  const char *temp = lua_isnoneornil(L, 2) ? NULL : dm_check_path(L, 2);
  luaL_checktype(L, 3, LUA_TTABLE);
  luaL_checktype(L, 4, LUA_TTABLE);
  lua_settop(L, 4);
  const size_t n = (size_t)lua_rawlen(L, 3);
  luaL_argcheck(L, n < MOST, 3, "too many entries");
  dm_StEntry *entries = lua_newuserdatauv(L, sizeof *entries * (n + 1), 0);
  dm_StPair *pairs = lua_newuserdatauv(L, sizeof *pairs * MOST_PAIRS, 0);
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, 3, (lua_Integer)i + 1);
    read_entry(L, &entries[i]);
    lua_pop(L, 1);
  }
  const int64_t n_pairs = read_pairs(L, 4, pairs, MOST_PAIRS);
  dm_StParts **p = lua_newuserdatauv(L, sizeof *p, 0);
  *p = NULL;
  luaL_setmetatable(L, PARTS);
  const dm_status st = dm_st_parts_open(p, path, temp, entries, (int64_t)n, pairs, n_pairs);
  return st == DM_OK ? 1 : dm_world_failed(L, st);
}

/* file:temp() -> the temporary name. */
static int parts_temp(lua_State *L) {
  lua_pushstring(L, dm_st_parts_temp(check_parts(L)));
  return 1;
}

/* The entry whose number is at 2, from 0. */
static int64_t check_entry(lua_State *L, const dm_StParts *p) {
  const lua_Integer i = luaL_checkinteger(L, 2);
  luaL_argcheck(L, i >= 1 && i <= dm_st_parts_count(p), 2, "no such entry");
  return i - 1;
}

static int push_sum(lua_State *L, const dm_RunningSum *sum) {
  lua_pushlstring(L, (const char *)sum, sizeof *sum);
  return 1;
}

/* file:begin(entry) -> its running checksum before the first byte. */
static int parts_begin(lua_State *L) {
  const dm_StParts *p = check_parts(L);
  const dm_RunningSum sum = dm_st_parts_begin(p, check_entry(L, p));
  return push_sum(L, &sum);
}

/* *sum = the running checksum in the string at i. */
static void check_sum(lua_State *L, int i, dm_RunningSum *sum) {
  size_t n;
  const char *bytes = luaL_checklstring(L, i, &n);
  luaL_argcheck(L, n == sizeof *sum, i, "no running checksum");
  memcpy(sum, bytes, sizeof *sum);
  luaL_argcheck(L, sum->n_rest < DM_CHECKSUM_BLOCK, i, "no running checksum");
}

/* file:write(entry, elements before, tensor, running checksum) -> running checksum; nil and a
   message where the disk fails. */
static int parts_write(lua_State *L) {
  State *S = dm_enter(L);
  const dm_StParts *p = check_parts(L);
  const int64_t i = check_entry(L, p), from = luaL_checkinteger(L, 3);
  const dm_Tensor *t = dm_check_tensor(L, 4);
  const int64_t n_bytes = dm_tensor_bytes(t), size = dm_dtype_size((dm_DType)t->dtype);
  luaL_argcheck(L,
                from >= 0 && from <= dm_st_parts_bytes(p, i) / size &&
                    n_bytes <= dm_st_parts_bytes(p, i) - from * size,
                3, "beyond the entry");
  dm_RunningSum sum;
  check_sum(L, 5, &sum);
  Handle *dense = dm_push_own(L, S);
  DM_CHECK(L, dm_dense_of(t, &dense->t));
  const dm_status st =
      dm_st_parts_write(p, i, from * size, dm_tensor_data(dense->t), n_bytes, &sum);
  dm_handle_release(dense);
  return st == DM_OK ? push_sum(L, &sum) : dm_world_failed(L, st);
}

/* True; or nil and a message. */
static int result_of(lua_State *L, dm_status st) {
  if (st != DM_OK) return dm_world_failed(L, st);
  lua_pushboolean(L, true);
  return 1;
}

static int parts_sync(lua_State *L) { return result_of(L, dm_st_parts_sync(check_parts(L))); }

/* file:finish({running checksum of each entry}) -> true; nil and a message. */
static int parts_finish(lua_State *L) {
  dm_StParts *p = check_parts(L);
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_settop(L, 2);
  luaL_argcheck(L, *dm_st_parts_temp(p), 1, "another process finishes this file");
  const int64_t n = dm_st_parts_count(p);
  uint64_t *sums = lua_newuserdatauv(L, sizeof *sums * (size_t)(n + 1), 0);
  for (int64_t i = 0; i < n; i++) {
    dm_RunningSum sum;
    lua_rawgeti(L, 2, i + 1);
    check_sum(L, lua_gettop(L), &sum);
    sums[i] = dm_running_end(&sum);
    lua_pop(L, 1);
  }
  return result_of(L, dm_st_parts_finish(p, sums));
}

/* ---- reading ---- */

static dm_StFile *check_stored(lua_State *L) {
  dm_StFile *f = *(dm_StFile **)luaL_checkudata(L, 1, STORED);
  luaL_argcheck(L, f != NULL, 1, "the file is closed");
  return f;
}

static int stored_close(lua_State *L) {
  dm_st_close(luaL_checkudata(L, 1, STORED));
  return 0;
}

/* _stored_open(path) -> file; nil and a message. */
static int stored_open(lua_State *L) {
  dm_enter(L);
  const char *path = dm_check_path(L, 1);
  dm_StFile **f = lua_newuserdatauv(L, sizeof *f, 0);
  *f = NULL;
  luaL_setmetatable(L, STORED);
  const dm_status st = dm_st_open(f, path);
  return st == DM_OK ? 1 : dm_world_failed(L, st);
}

/* file:entries() -> {{name =, dtype =, shape =}, ...} in the order of the file. */
static int stored_entries(lua_State *L) {
  int64_t n;
  const dm_StEntry *e = dm_st_get_entries(check_stored(L), &n);
  lua_newtable(L);
  for (int64_t i = 0; i < n; i++, e++) {
    lua_createtable(L, 0, 3);
    lua_pushstring(L, e->name);
    lua_setfield(L, -2, "name");
    lua_pushstring(L, dm_dtype_name(e->dtype));
    lua_setfield(L, -2, "dtype");
    lua_createtable(L, e->n_dim, 0);
    for (int d = 0; d < e->n_dim; d++) {
      lua_pushinteger(L, e->shape[d]);
      lua_rawseti(L, -2, d + 1);
    }
    lua_setfield(L, -2, "shape");
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* file:metadata() -> {key = string}. */
static int stored_metadata(lua_State *L) {
  int64_t n;
  const dm_StPair *p = dm_st_get_pairs(check_stored(L), &n);
  lua_newtable(L);
  for (int64_t i = 0; i < n; i++, p++) {
    lua_pushstring(L, p->value);
    lua_setfield(L, -2, p->key);
  }
  return 1;
}

/* file:read(entry) -> the tensor, which is compared with its checksum; file:read(entry,
   elements before, n) -> (n) of its elements. Nil and a message for a bad file. */
static int stored_read(lua_State *L) {
  State *S = dm_enter(L);
  int64_t n_entry;
  const dm_StFile *f = check_stored(L);
  const dm_StEntry *e = dm_st_get_entries(f, &n_entry);
  const lua_Integer i = luaL_checkinteger(L, 2);
  luaL_argcheck(L, i >= 1 && i <= n_entry, 2, "no such entry");
  e += i - 1;
  const bool whole = lua_isnoneornil(L, 3);
  const int64_t size = dm_dtype_size(e->dtype), most = e->n_bytes / size;
  const int64_t from = luaL_optinteger(L, 3, 0), n = luaL_optinteger(L, 4, most);
  luaL_argcheck(L, from >= 0 && n >= 0 && from <= most && n <= most - from, 3,
                "beyond the entry");
  Handle *handle = dm_push_handle(L, S);
  const dm_Device cpu = {.type = DM_CPU};
  DM_CHECK_TWICE(
      L, S,
      dm_tensor_new(e->dtype, whole ? e->n_dim : 1, whole ? e->shape : &n, cpu, &handle->t));
  dm_status st = DM_OK;
  if (n > 0)
    st = whole ? dm_st_read(f, e, dm_tensor_data(handle->t))
               : dm_st_read_part(f, e, from * size, n * size, dm_tensor_data(handle->t));
  return st == DM_OK ? 1 : dm_world_failed(L, st);
}

void dm_register_parts(lua_State *L, State *S) {
  static const luaL_Reg parts[] = {
      {"temp", parts_temp},  {"begin", parts_begin},   {"write", parts_write},
      {"sync", parts_sync},  {"finish", parts_finish}, {"close", parts_close},
      {"__gc", parts_close}, {"__close", parts_close}, {NULL, NULL}};
  static const luaL_Reg stored[] = {{"entries", stored_entries},
                                    {"metadata", stored_metadata},
                                    {"read", stored_read},
                                    {"close", stored_close},
                                    {"__gc", stored_close},
                                    {"__close", stored_close},
                                    {NULL, NULL}};
  dm_register_class(L, PARTS, parts, S);
  dm_register_class(L, STORED, stored, S);
}

const luaL_Reg dm_parts_functions[] = {
    {"_parts_open", parts_open}, {"_stored_open", stored_open}, {NULL, NULL}};
