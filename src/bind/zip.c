/* Zip archives for Lua, which reads NumPy's and PyTorch's files out of them. */
#include "data/zip.h"

#include "bind/bind.h"

static const char CLASS[] = "demilune.Zip";

/* The open archive at 1. */
static dm_Zip *check_zip(lua_State *L) {
  dm_Zip *z = *(dm_Zip **)luaL_checkudata(L, 1, CLASS);
  luaL_argcheck(L, z != NULL, 1, "the archive is closed");
  return z;
}

/* The entry whose number, from 1, is at 2. */
static const dm_ZipEntry *check_entry(lua_State *L, const dm_Zip *z) {
  int64_t n;
  const dm_ZipEntry *entries = dm_zip_get_entries(z, &n);
  const lua_Integer i = luaL_checkinteger(L, 2);
  luaL_argcheck(L, i >= 1 && i <= n, 2, "no such entry");
  return &entries[i - 1];
}

/* __gc and __close: closes the file. */
static int zip_close(lua_State *L) {
  dm_zip_close(luaL_checkudata(L, 1, CLASS));
  return 0;
}

/* _zip_open(path) -> archive; nil and a message. The userdata exists before the file is
   opened, so that an error loses no descriptor. */
static int zip_open(lua_State *L) {
  State *S = dm_enter(L);
  const char *path = dm_check_path(L, 1);
  dm_Zip **z = lua_newuserdatauv(L, sizeof *z, 0);
  *z = NULL;
  luaL_setmetatable(L, CLASS);
  dm_status st = dm_zip_open(z, path);
  if (st == DM_EMEM) {
    dm_collect(L, S);
    st = dm_zip_open(z, path);
  }
  return st == DM_OK ? 1 : dm_world_failed(L, st);
}

/* archive:names() -> the names of its entries, in their order. */
static int zip_names(lua_State *L) {
  dm_enter(L);
  int64_t n;
  const dm_ZipEntry *e = dm_zip_get_entries(check_zip(L), &n);
  lua_newtable(L);
  for (int64_t i = 0; i < n; i++) {
    lua_pushstring(L, e[i].name);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* archive:size(i) -> bytes of the entry i. */
static int zip_size(lua_State *L) {
  dm_enter(L);
  lua_pushinteger(L, check_entry(L, check_zip(L))->n_bytes);
  return 1;
}

/* archive:read(i) -> the bytes of the entry i as a string; nil and a message. */
static int zip_read(lua_State *L) {
  dm_enter(L);
  const dm_Zip *z = check_zip(L);
  const dm_ZipEntry *e = check_entry(L, z);
  luaL_Buffer b;
  char *to = luaL_buffinitsize(L, &b, (size_t)e->n_bytes);
  const dm_status st = dm_zip_read(z, e, to);
  if (st != DM_OK) return dm_world_failed(L, st);
  luaL_pushresultsize(&b, (size_t)e->n_bytes);
  return 1;
}

/* archive:tensor(i, dtype) -> (n): the bytes of the entry i as elements; nil and a message.
   Its size must be a multiple of the dtype's. */
static int zip_tensor(lua_State *L) {
  State *S = dm_enter(L);
  const dm_Zip *z = check_zip(L);
  const dm_ZipEntry *e = check_entry(L, z);
  const dm_DType dtype = dm_check_dtype(L, 3);
  const int64_t n = e->n_bytes / dm_dtype_size(dtype);
  luaL_argcheck(L, n * dm_dtype_size(dtype) == e->n_bytes, 3, "cuts the last element");
  Handle *handle = dm_push_handle(L, S);
  DM_CHECK_TWICE(L, S, dm_tensor_new(dtype, 1, &n, (dm_Device){.type = DM_CPU}, &handle->t));
  uint8_t *to = n > 0 ? dm_tensor_data(handle->t) : (uint8_t *)&n;
  const dm_status st = dm_zip_read(z, e, to);
  if (st != DM_OK) return dm_world_failed(L, st);
  if (dtype == DM_BOOL) dm_make_bools(to, n);
  return 1;
}

void dm_register_zip(lua_State *L, State *S) {
  static const luaL_Reg methods[] = {
      {"names", zip_names},   {"size", zip_size},  {"read", zip_read}, {"tensor", zip_tensor},
      {"__close", zip_close}, {"__gc", zip_close}, {NULL, NULL}};
  dm_register_class(L, CLASS, methods, S);
}

const luaL_Reg dm_zip_functions[] = {{"_zip_open", zip_open}, {NULL, NULL}};
