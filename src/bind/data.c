/* Files for Lua. An error of the outside world (a missing or damaged file, a full disk) comes
   back as nil and a message; a mistake of the caller raises, and so does the end of memory,
   after a collection and a second try. Each open file or buffer is in a userdata whose __gc
   frees it, so a Lua error between two calls loses nothing. */
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "bind/bind.h"
#include "data/atomic_file.h"
#include "data/file.h"
#include "data/idx.h"
#include "data/inflate.h"
#include "data/safetensors.h"

static const dm_Device cpu = {.type = DM_CPU};
static const char DESCRIPTOR[] = "demilune.Descriptor";

/* The one rule for failures of files, see the head of this file. */
int dm_world_failed(lua_State *L, dm_status st) {
  if (st != DM_EIO) return dm_raise(L);
  lua_pushnil(L);
  lua_pushstring(L, dm_error());
  return 2;
}

/* ---- open files ---- */

static void close_descriptor(int *fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

/* __gc of a descriptor. */
static int descriptor_gc(lua_State *L) {
  close_descriptor(luaL_checkudata(L, 1, DESCRIPTOR));
  return 0;
}

/* Pushes a userdata that closes the descriptor in it when it is collected. */
static int *push_descriptor(lua_State *L) {
  int *fd = lua_newuserdatauv(L, sizeof *fd, 0);
  *fd = -1;
  dm_ended_by(L, DESCRIPTOR, "__gc", descriptor_gc);
  return fd;
}

/* A C function would cut the name at the NUL and reach another file. */
const char *dm_check_path(lua_State *L, int i) {
  size_t n;
  const char *path = luaL_checklstring(L, i, &n);
  if (strlen(path) != n)
    dm_raise_text(L, "the file's name holds NUL after '%s', which no file's name can", path);
  return path;
}

/* _read_file(what, path, n = all) -> its first n bytes, or all where it has fewer; nil and a
   message. Only a regular file is read: a pipe or a device has no end. Memory is taken once,
   by the file's size. */
static int read_file(lua_State *L) {
  dm_enter(L);
  const char *what = luaL_checkstring(L, 1), *path = dm_check_path(L, 2);
  const int64_t most = luaL_optinteger(L, 3, INT64_MAX);
  int64_t n;
  luaL_Buffer b;
  lua_settop(L, 2);
  int *fd = push_descriptor(L);
  dm_status st = dm_file_open(what, path, fd, &n);
  if (st != DM_OK) return dm_world_failed(L, st);
  n = dm_max_i64(0, dm_min_i64(n, most));
  char *to = luaL_buffinitsize(L, &b, (size_t)n);
  st = dm_file_read(what, path, *fd, to, n, 0);
  if (st != DM_OK) return dm_world_failed(L, st);
  luaL_pushresultsize(&b, (size_t)n);
  close_descriptor(fd);
  return 1;
}

/* read_idx(path) -> tensor, which takes the reader's memory without a copy; nil and a
   message. */
static int read_idx(lua_State *L) {
  State *S = dm_enter(L);
  const char *path = dm_check_path(L, 1);
  dm_Idx idx = {0};
  Handle *handle = dm_push_handle(L, S);
  dm_status st = dm_idx_read(&idx, path);
  if (st == DM_EMEM) {
    dm_collect(L, S);
    st = dm_idx_read(&idx, path);
  }
  if (st != DM_OK) return dm_world_failed(L, st);
  st = dm_tensor_wrap(idx.data, idx.dtype, idx.n_dim, idx.shape, dm_free, idx.data, &handle->t);
  if (st != DM_OK) {
    dm_free(idx.data);
    return dm_raise(L);
  }
  return 1;
}

/* _from_bytes(string, dtype = "uint8", first = 1, n = all from there) -> (n): a copy of n
   elements of the host's byte order, from the string's byte `first` on. Raises when they are
   not there, or when n is all and the last one is cut. */
static int from_bytes(lua_State *L) {
  State *S = dm_enter(L);
  size_t n_bytes;
  const char *bytes = luaL_checklstring(L, 1, &n_bytes);
  const dm_DType dtype = lua_isnoneornil(L, 2) ? DM_U8 : dm_check_dtype(L, 2);
  const int64_t size = dm_dtype_size(dtype), first = luaL_optinteger(L, 3, 1);
  const int64_t left = (int64_t)n_bytes - first + 1, n = luaL_optinteger(L, 4, left / size);
  if (first < 1 || n < 0 || n > left / size || (lua_isnoneornil(L, 4) && n * size != left))
    return dm_raise_text(L, "_from_bytes: %I bytes of %s", (LUAI_UACINT)left,
                         dm_dtype_name(dtype));
  Handle *handle = dm_push_handle(L, S);
  DM_CHECK_TWICE(L, S, dm_tensor_new(dtype, 1, &n, cpu, &handle->t));
  if (n == 0) return 1;
  void *to = dm_tensor_data(handle->t);
  memcpy(to, bytes + first - 1, (size_t)(n * size));
  if (dtype == DM_BOOL) dm_make_bools(to, n);
  return 1;
}

/* _to_bytes(tensor) -> string: its elements in row-major order, each in the host's byte
   order. */
static int to_bytes(lua_State *L) {
  State *S = dm_enter(L);
  Handle *dense = dm_push_own(L, S);
  DM_CHECK(L, dm_dense_of(dm_check_tensor(L, 1), &dense->t));
  lua_pushlstring(L, dm_tensor_data(dense->t), (size_t)dm_tensor_bytes(dense->t));
  return 1;
}

/* Writes n bytes to the path as one atomic replacement, see data/atomic_file.h. */
static dm_status write_atomic(const char *what, const char *path, const char *bytes, size_t n) {
  dm_AtomicFile file = DM_ATOMIC_FILE(what, path);
  dm_status st = DM_OK;
  DM_GO(dm_atomic_file_open(&file));
  DM_GO(dm_atomic_file_write(&file, bytes, (int64_t)n));
  DM_GO(dm_atomic_file_finish(&file));
done:
  dm_atomic_file_close(&file);
  return st;
}

/* _write_file(what, path, string) -> true; nil and a message after a failure, which leaves
   the old file as it was. */
static int write_file(lua_State *L) {
  dm_enter(L);
  size_t n;
  const char *what = luaL_checkstring(L, 1), *path = dm_check_path(L, 2);
  const char *bytes = luaL_checklstring(L, 3, &n);
  const dm_status st = write_atomic(what, path, bytes, n);
  if (st != DM_OK) return dm_world_failed(L, st);
  lua_pushboolean(L, true);
  return 1;
}

/* _crc32(string) -> integer: the CRC-32 of zip archives. */
static int checksum(lua_State *L) {
  size_t n;
  const char *bytes = luaL_checklstring(L, 1, &n);
  lua_pushinteger(L, dm_crc32(bytes, (int64_t)n));
  return 1;
}

/* Makes a tensor on the CPU of the entry's dtype and shape in the handle; tries twice, with a
   collection between, when memory is short. */
static dm_status new_tensor(lua_State *L, State *S, Handle *handle, const dm_StEntry *e) {
  dm_status st = dm_tensor_new(e->dtype, e->n_dim, e->shape, cpu, &handle->t);
  if (st != DM_EMEM) return st;
  dm_collect(L, S);
  return dm_tensor_new(e->dtype, e->n_dim, e->shape, cpu, &handle->t);
}

/* The alias drops the history, so that the copy is not recorded. */
dm_status dm_dense_of(const dm_Tensor *t, dm_Tensor **out) {
  dm_Tensor *alias = NULL;
  DM_TRY(dm_tensor_alias(t, &alias));
  const int64_t to_cpu[2] = {dm_device_code(cpu), 0};
  const dm_status st = t->device.type == DM_CPU
                           ? dm_call(DM_OP_contiguous, 1, &alias, NULL, out)
                           : dm_call(DM_OP_to_device, 1, &alias, to_cpu, out);
  dm_tensor_unref(&alias);
  return st;
}

/* ---- safetensors ---- */

/* __gc of an open safetensors file. */
static int close_file(lua_State *L) {
  dm_st_close(luaL_checkudata(L, 1, "demilune.SafetensorsFile"));
  return 0;
}

/* Pushes a userdata that closes the file when it is collected. */
static dm_StFile **push_file(lua_State *L) {
  dm_StFile **f = lua_newuserdatauv(L, sizeof *f, 0);
  *f = NULL;
  dm_ended_by(L, "demilune.SafetensorsFile", "__gc", close_file);
  return f;
}

/* safetensors_read(path) -> {tensors = {name = tensor}, metadata = {k = v}}; nil and a
   message for a bad file. The file is closed at the end, or by its userdata's __gc after an
   error. */
static int safetensors_read(lua_State *L) {
  State *S = dm_enter(L);
  const char *path = dm_check_path(L, 1);
  dm_StFile **f = push_file(L);
  dm_status st = dm_st_open(f, path);
  if (st != DM_OK) return dm_world_failed(L, st);
  int64_t n;
  lua_createtable(L, 0, 2);
  lua_newtable(L);
  const dm_StEntry *e = dm_st_get_entries(*f, &n);
  for (int64_t i = 0; i < n; i++, e++) {
    Handle *handle = dm_push_handle(L, S);
    DM_CHECK(L, new_tensor(L, S, handle, e));
    if (e->n_bytes > 0 && (st = dm_st_read(*f, e, dm_tensor_data(handle->t))) != DM_OK)
      return dm_world_failed(L, st);
    lua_setfield(L, -2, e->name);
  }
  lua_setfield(L, -2, "tensors");
  lua_newtable(L);
  const dm_StPair *p = dm_st_get_pairs(*f, &n);
  for (int64_t i = 0; i < n; i++, p++) {
    lua_pushstring(L, p->value);
    lua_setfield(L, -2, p->key);
  }
  lua_setfield(L, -2, "metadata");
  dm_st_close(f);
  return 1;
}

/* The number of pairs in the table. */
static lua_Integer count_pairs(lua_State *L, int table) {
  lua_Integer n = 0;
  for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) n++;
  return n;
}

/* safetensors_write(path, {name = tensor}, {key = string}, checked) -> true; nil and a message
   when the disk fails. `checked` adds checksums. Raises on names and metadata that are no
   strings. A Lua table holds the contiguous copies until the file is written; the arrays
   borrow from it. */
static int safetensors_write(lua_State *L) {
  State *S = dm_enter(L);
  const char *path = dm_check_path(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  luaL_checktype(L, 3, LUA_TTABLE);
  const bool checked = lua_toboolean(L, 4);
  lua_settop(L, 3);
  const size_t n = (size_t)count_pairs(L, 2), n_pairs = (size_t)count_pairs(L, 3);
  dm_StEntry *entries = lua_newuserdatauv(L, sizeof *entries * (n + 1), 0);
  const void **data = lua_newuserdatauv(L, sizeof *data * (n + 1), 0);
  dm_StPair *pairs = lua_newuserdatauv(L, sizeof *pairs * (n_pairs + 1), 0);
  lua_createtable(L, (int)n, (int)n); /* holds dense copies and names until the end */
  const int held = lua_gettop(L);
  size_t i = 0;
  for (lua_pushnil(L); lua_next(L, 2); lua_pop(L, 1), i++) {
    if (lua_type(L, -2) != LUA_TSTRING)
      return dm_raise_text(L, "safetensors_write: the name of a tensor is no string");
    if (strlen(lua_tostring(L, -2)) != lua_rawlen(L, -2))
      return dm_raise_text(L, "safetensors_write: the name of a tensor holds NUL, after '%s'",
                           lua_tostring(L, -2));
    if (i == n) return dm_raise_text(L, "safetensors_write: the table grew while it was read");
    Handle *dense = dm_push_own(L, S);
    const dm_Tensor *t = dm_check_tensor(L, -2);
    lua_rawseti(L, held, (lua_Integer)i + 1);
    lua_pushvalue(L, -2); /* the names are held too: the table may lose them */
    lua_rawseti(L, held, -(lua_Integer)i - 1);
    DM_CHECK(L, dm_dense_of(t, &dense->t));
    t = dense->t;
    entries[i] = (dm_StEntry){.name = lua_tostring(L, -2), .dtype = t->dtype, .n_dim = t->ndim};
    memcpy(entries[i].shape, t->shape, sizeof t->shape);
    data[i] = dm_tensor_data(dense->t);
  }
  const size_t n_written = i;
  i = 0;
  for (lua_pushnil(L); lua_next(L, 3); lua_pop(L, 1), i++) {
    if (i == n_pairs)
      return dm_raise_text(L, "safetensors_write: the metadata grew while they were read");
    if (lua_type(L, -2) != LUA_TSTRING || lua_type(L, -1) != LUA_TSTRING)
      return dm_raise_text(L, "safetensors_write: metadata wants strings for keys and values");
    pairs[i] = (dm_StPair){lua_tostring(L, -2), lua_tostring(L, -1)};
    if (strlen(pairs[i].key) != lua_rawlen(L, -2) ||
        strlen(pairs[i].value) != lua_rawlen(L, -1))
      return dm_raise_text(L, "safetensors_write: metadata '%s' holds a NUL", pairs[i].key);
  }
  /* The copies are released here and not by the collector, which may let them live for
     long. */
  const dm_status st =
      dm_st_write(path, entries, data, (int64_t)n_written, pairs, (int64_t)i, checked);
  for (size_t k = 1; k <= n_written; k++) {
    lua_rawgeti(L, held, (lua_Integer)k);
    dm_handle_release(dm_handle(L, -1));
    lua_pop(L, 1);
  }
  if (st != DM_OK) return dm_world_failed(L, st);
  lua_pushboolean(L, true);
  return 1;
}

const luaL_Reg dm_data_functions[] = {{"read_idx", read_idx},
                                      {"_from_bytes", from_bytes},
                                      {"_to_bytes", to_bytes},
                                      {"_read_file", read_file},
                                      {"_write_file", write_file},
                                      {"_crc32", checksum},
                                      {"safetensors_read", safetensors_read},
                                      {"safetensors_write", safetensors_write},
                                      {NULL, NULL}};
