/* Files and loaders for Lua. What the outside world gets wrong comes back as
   nil and a message; a mistake of the caller raises, and so does the end of
   memory, after a collection and a second try. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/rng.h"
#include "bind/bind.h"
#include "bind/pictures.h"
#include "data/draft.h"
#include "data/idx.h"
#include "data/inflate.h"
#include "data/loader.h"
#include "data/safetensors.h"
#include "data/tokens.h"
#include "engine/observe.h"

static const dm_Device cpu = {.type = DM_CPU};

int dm_world_failed(lua_State *L, dm_status st) {
  if (st != DM_EIO) return dm_raise(L);
  lua_pushnil(L);
  lua_pushstring(L, dm_error());
  return 2;
}

/* read_idx(path) -> tensor */
static int read_idx(lua_State *L) {
  State *S = dm_enter(L);
  const char *path = luaL_checkstring(L, 1);
  dm_Idx idx = {0};
  Box *box = dm_push_box(L, S);
  dm_status st = dm_idx_read(&idx, path);
  if (st == DM_EMEM) {
    dm_collect(L, S);
    st = dm_idx_read(&idx, path);
  }
  if (st != DM_OK) return dm_world_failed(L, st);
  st = dm_tensor_wrap(idx.data, idx.dtype, idx.n_dim, idx.shape, dm_free, idx.data, &box->t);
  if (st != DM_OK) {
    dm_free(idx.data);
    return dm_raise(L);
  }
  return 1;
}

/* _from_bytes(string, dtype = "uint8") -> (n): a copy of its bytes, as elements of the
   host's byte order */
static int from_bytes(lua_State *L) {
  State *S = dm_enter(L);
  size_t n_bytes;
  const char *bytes = luaL_checklstring(L, 1, &n_bytes);
  const dm_DType dtype = lua_isnoneornil(L, 2) ? DM_U8 : dm_check_dtype(L, 2);
  const int64_t size = dm_dtype_size(dtype), n = (int64_t)n_bytes / size;
  if (n * size != (int64_t)n_bytes)
    return dm_raise_text(L, "_from_bytes: %d bytes of %s", (int)n_bytes, dm_dtype_name(dtype));
  Box *box = dm_push_box(L, S);
  DM_CHECK_TWICE(L, S, dm_tensor_new(dtype, 1, &n, cpu, &box->t));
  if (n == 0) return 1;
  uint8_t *to = dm_tensor_data(box->t);
  memcpy(to, bytes, n_bytes);
  for (int64_t i = 0; dtype == DM_BOOL && i < n; i++) to[i] = to[i] != 0;
  return 1;
}

/* _to_bytes(tensor) -> string: its elements row by row, in the host's byte order */
static int to_bytes(lua_State *L) {
  State *S = dm_enter(L);
  const dm_Tensor *t = dm_check_tensor(L, 1);
  Box *dense = dm_push_box(L, S);
  DM_CHECK(L, dm_dense_of(t, &dense->t));
  lua_pushlstring(L, dm_tensor_data(dense->t), (size_t)dm_tensor_bytes(t));
  return 1;
}

static dm_status write_draft(const char *what, const char *path, const char *bytes, size_t n) {
  dm_Draft draft = DM_DRAFT(what, path);
  dm_status st = DM_OK;
  DM_GO(dm_draft_open(&draft));
  DM_GO(dm_draft_write(&draft, bytes, (int64_t)n));
  DM_GO(dm_draft_finish(&draft));
done:
  dm_draft_close(&draft);
  return st;
}

/* _write_file(what, path, string) -> true; or nil and why, and the old file is as it was */
static int write_file(lua_State *L) {
  dm_enter(L);
  size_t n;
  const char *what = luaL_checkstring(L, 1), *path = luaL_checkstring(L, 2);
  const char *bytes = luaL_checklstring(L, 3, &n);
  const dm_status st = write_draft(what, path, bytes, n);
  if (st != DM_OK) return dm_world_failed(L, st);
  lua_pushboolean(L, true);
  return 1;
}

/* _inflate(string, n) -> string of n bytes; or nil and why */
static int inflated(lua_State *L) {
  dm_enter(L);
  size_t n_in;
  const char *in = luaL_checklstring(L, 1, &n_in);
  const lua_Integer n = luaL_checkinteger(L, 2);
  luaL_argcheck(L, n >= 0, 2, "not a size");
  luaL_Buffer b;
  char *out = luaL_buffinitsize(L, &b, (size_t)n);
  const dm_status st = dm_inflate(in, (int64_t)n_in, out, (int64_t)n);
  if (st != DM_OK) return dm_world_failed(L, st);
  luaL_pushresultsize(&b, (size_t)n);
  return 1;
}

/* _crc32(string) -> integer, as zip archives have it */
static int checksum(lua_State *L) {
  size_t n;
  const char *bytes = luaL_checklstring(L, 1, &n);
  lua_pushinteger(L, dm_crc32(bytes, (int64_t)n));
  return 1;
}

/* A new tensor on the CPU in the box; collects garbage when memory is short. */
static dm_status new_tensor(lua_State *L, State *S, Box *box, const dm_StEntry *e) {
  dm_status st = dm_tensor_new(e->dtype, e->n_dim, e->shape, cpu, &box->t);
  if (st != DM_EMEM) return st;
  dm_collect(L, S);
  return dm_tensor_new(e->dtype, e->n_dim, e->shape, cpu, &box->t);
}

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

static int close_file(lua_State *L) {
  dm_st_close(lua_touserdata(L, 1));
  return 0;
}

/* Pushes a userdata that closes the file when it is collected. */
static dm_StFile **push_file(lua_State *L) {
  dm_StFile **f = lua_newuserdatauv(L, sizeof *f, 0);
  *f = NULL;
  if (luaL_newmetatable(L, "demilune.SafetensorsFile")) {
    lua_pushcfunction(L, close_file);
    lua_setfield(L, -2, "__gc");
  }
  lua_setmetatable(L, -2);
  return f;
}

/* safetensors_read(path) -> {tensors = {name = tensor}, metadata = {k = v}} */
static int safetensors_read(lua_State *L) {
  State *S = dm_enter(L);
  const char *path = luaL_checkstring(L, 1);
  dm_StFile **f = push_file(L);
  dm_status st = dm_st_open(f, path);
  if (st != DM_OK) return dm_world_failed(L, st);
  int64_t n;
  lua_createtable(L, 0, 2);
  lua_newtable(L);
  const dm_StEntry *e = dm_st_get_entries(*f, &n);
  for (int64_t i = 0; i < n; i++, e++) {
    Box *box = dm_push_box(L, S);
    DM_CHECK(L, new_tensor(L, S, box, e));
    if (e->n_bytes > 0 && (st = dm_st_read(*f, e, dm_tensor_data(box->t))) != DM_OK)
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

static lua_Integer count_pairs(lua_State *L, int table) {
  lua_Integer n = 0;
  for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) n++;
  return n;
}

/* safetensors_write(path, {name = tensor}, {key = string}) -> true */
static int safetensors_write(lua_State *L) {
  State *S = dm_enter(L);
  const char *path = luaL_checkstring(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  luaL_checktype(L, 3, LUA_TTABLE);
  lua_settop(L, 3);
  const size_t n = (size_t)count_pairs(L, 2), n_pairs = (size_t)count_pairs(L, 3);
  dm_StEntry *entries = lua_newuserdatauv(L, sizeof *entries * (n + 1), 0);
  const void **data = lua_newuserdatauv(L, sizeof *data * (n + 1), 0);
  dm_StPair *pairs = lua_newuserdatauv(L, sizeof *pairs * (n_pairs + 1), 0);
  lua_createtable(L, (int)n, 0); /* holds dense copies until the end */
  const int held = lua_gettop(L);
  size_t i = 0;
  for (lua_pushnil(L); lua_next(L, 2); lua_pop(L, 1), i++) {
    if (lua_type(L, -2) != LUA_TSTRING)
      return dm_raise_text(L, "safetensors_write: the name of a tensor is no string");
    dm_Tensor *t = dm_check_tensor(L, -1);
    Box *dense = dm_push_box(L, S);
    lua_rawseti(L, held, (lua_Integer)i + 1);
    DM_CHECK(L, dm_dense_of(t, &dense->t));
    entries[i] = (dm_StEntry){.name = lua_tostring(L, -2), .dtype = t->dtype, .n_dim = t->ndim};
    memcpy(entries[i].shape, t->shape, sizeof t->shape);
    data[i] = dm_tensor_data(dense->t);
  }
  i = 0;
  for (lua_pushnil(L); lua_next(L, 3); lua_pop(L, 1), i++) {
    if (lua_type(L, -2) != LUA_TSTRING || lua_type(L, -1) != LUA_TSTRING)
      return dm_raise_text(L, "safetensors_write: metadata wants strings for keys and values");
    pairs[i] = (dm_StPair){lua_tostring(L, -2), lua_tostring(L, -1)};
    if (strlen(pairs[i].key) != lua_rawlen(L, -2) ||
        strlen(pairs[i].value) != lua_rawlen(L, -1))
      return dm_raise_text(L, "safetensors_write: metadata '%s' holds a NUL", pairs[i].key);
  }
  const dm_status st = dm_st_write(path, entries, data, (int64_t)n, pairs, (int64_t)n_pairs);
  for (lua_pushnil(L); lua_next(L, held); lua_pop(L, 1)) dm_box_release(dm_box(L, -1));
  if (st != DM_OK) return dm_world_failed(L, st);
  lua_pushboolean(L, true);
  return 1;
}

/* ---- the loader ---- */

enum { MAX_COLUMN = 8, WAIT_MS = 50 };

typedef struct LoaderBox {
  dm_Loader *loader;
  dm_Device pin; /* batches lie in memory pinned for it; the CPU: in plain memory */
  int n;
  dm_Tensor *column[MAX_COLUMN];         /* owned; has_dense_rows; NULL: windows */
  dm_TokenWindows windows[MAX_COLUMN];   /* of files that the user value holds */
  dm_PictureRows pictures[MAX_COLUMN];   /* likewise */
  int n_dim[MAX_COLUMN];                 /* of a batch */
  int64_t shape[MAX_COLUMN][DM_MAX_DIM]; /* [k][0] is the batch's own */
} LoaderBox;

static dm_status new_batch(void *ctx, int k, int64_t n_rows, int64_t n_bytes,
                           dm_LoaderBuffer *out) {
  const LoaderBox *l = ctx;
  int64_t shape[DM_MAX_DIM];
  dm_Tensor *t = NULL;
  DM_UNUSED(n_bytes);
  memcpy(shape, l->shape[k], sizeof shape);
  shape[0] = n_rows;
  const dm_DType dtype = dm_loader_dtype(l->loader, k);
  DM_TRY(l->pin.type == DM_CPU ? dm_tensor_new(dtype, l->n_dim[k], shape, cpu, &t)
                               : dm_pinned_new(l->pin, dtype, l->n_dim[k], shape, &t));
  *out = (dm_LoaderBuffer){dm_tensor_data(t), t};
  return DM_OK;
}

static void free_batch(void *ctx, dm_LoaderBuffer *buffer) {
  dm_Tensor *t = buffer->owner;
  DM_UNUSED(ctx);
  dm_tensor_unref(&t);
  *buffer = (dm_LoaderBuffer){NULL, NULL};
}

static LoaderBox *check_loader(lua_State *L) {
  LoaderBox *l = luaL_checkudata(L, 1, "demilune.Loader");
  if (!l->loader) dm_raise_text(L, "DataLoader: used after its end");
  return l;
}

static int loader_gc(lua_State *L) {
  LoaderBox *l = luaL_checkudata(L, 1, "demilune.Loader");
  dm_loader_free(&l->loader);
  for (int k = 0; k < l->n; k++) dm_tensor_unref(&l->column[k]);
  return 0;
}

static int64_t option_integer(lua_State *L, int i, const char *key, int64_t def) {
  const int64_t v = dm_option(L, i, key) == LUA_TNIL ? def : luaL_checkinteger(L, -1);
  lua_pop(L, 1);
  return v;
}

/* A count, default 0; what does not fit an int stays out of its range. */
static int option_int(lua_State *L, int i, const char *key) {
  return (int)dm_max_i64(-1, dm_min_i64(option_integer(L, i, key, 0), INT32_MAX));
}

/* The steps in the userdata at i, for pictures (N,H,W) or (N,C,H,W), into their column. */
static dm_status read_augment(lua_State *L, int i, LoaderBox *l, int k,
                              dm_LoaderColumn *column) {
  const dm_Tensor *t = l->column[k];
  if (t->ndim != 3 && t->ndim != 4)
    dm_raise_text(L, "DataLoader: pictures want shape {N, H, W} or {N, C, H, W}, got %s",
                  DM_SHAPE(t));
  column->augment = dm_check_augment(L, i);
  column->shape[0] = t->ndim == 4 ? t->shape[1] : 1;
  column->shape[1] = t->shape[t->ndim - 2];
  column->shape[2] = t->shape[t->ndim - 1];
  l->n_dim[k] = 4;
  memcpy(l->shape[k] + 1, column->shape, sizeof column->shape);
  return dm_augment_shape(column->augment, l->shape[k] + 1);
}

/* Whether threads can copy rows of t as they lie: on the host, each row dense; rows may
   overlap, as windows over one text do. */
static bool has_dense_rows(const dm_Tensor *t) {
  int64_t dense = 1;
  for (int d = t->ndim - 1; d > 0; d--) {
    if (t->shape[d] != 1 && t->stride[d] != dense) return false;
    dense *= t->shape[d];
  }
  return t->device.type == DM_CPU && t->stride[0] > 0;
}

/* The tensor at the top as column k. */
static dm_LoaderColumn tensor_column(lua_State *L, LoaderBox *l, int k) {
  dm_Tensor *t = dm_check_tensor(L, -1);
  if (t->ndim < 1) dm_raise_text(L, "DataLoader: tensor %d has no dim", k + 1);
  const dm_status st =
      has_dense_rows(t) ? dm_tensor_alias(t, &l->column[k]) : dm_dense_of(t, &l->column[k]);
  if (st != DM_OK) dm_raise(L);
  l->n = k + 1;
  t = l->column[k];
  l->n_dim[k] = t->ndim;
  memcpy(l->shape[k], t->shape, sizeof t->shape);
  dm_LoaderColumn c = {
      .data = dm_tensor_data(t), .dtype = t->dtype, .row_numel = 1, .row_step = t->stride[0]};
  for (int d = 1; d < t->ndim; d++) c.row_numel *= t->shape[d];
  return c;
}

/* The table at the top, {tokens = file, first = , length = , step = , count = windows},
   as column k. */
static dm_LoaderColumn windows_column(lua_State *L, LoaderBox *l, int k) {
  const int at = lua_gettop(L);
  lua_getfield(L, at, "tokens");
  const dm_Tokens *tokens = dm_check_tokens(L, -1);
  const int64_t first = option_integer(L, at, "first", 1) - 1,
                length = option_integer(L, at, "length", 1),
                step = option_integer(L, at, "step", 1),
                count = option_integer(L, at, "count", 0);
  const int64_t n = dm_tokens_count(tokens);
  if (first < 0 || first > n || length < 1 || length > n - first || step < 1 || count < 0 ||
      count > (n - first - length) / step + 1)
    dm_raise_text(L, "DataLoader: column %d: windows beyond the file", k + 1);
  l->n = k + 1;
  l->n_dim[k] = 2;
  l->shape[k][0] = count;
  l->shape[k][1] = length;
  l->windows[k] = (dm_TokenWindows){tokens, first, length, step, 1};
  return (dm_LoaderColumn){
      .dtype = DM_I64, .row_numel = length, .read = dm_tokens_window, .source = &l->windows[k]};
}

/* The table at the top, {pictures = files, augment = steps}, as column k. */
static dm_LoaderColumn pictures_column(lua_State *L, LoaderBox *l, int k) {
  const int at = lua_gettop(L);
  lua_getfield(L, at, "pictures");
  lua_getfield(L, at, "augment");
  const dm_Pictures *pictures = dm_to_pictures(L, at + 1);
  dm_PictureRows *rows = &l->pictures[k];
  if (!pictures) dm_raise_text(L, "DataLoader: column %d: no list of pictures", k + 1);
  if (dm_pictures_rows(rows, pictures, dm_check_augment(L, at + 2)) != DM_OK) dm_raise(L);
  l->n = k + 1;
  l->n_dim[k] = 4;
  l->shape[k][0] = dm_pictures_count(pictures);
  memcpy(l->shape[k] + 1, rows->shape, sizeof rows->shape);
  return (dm_LoaderColumn){.dtype = dm_augment_dtype(rows->augment),
                           .row_numel = rows->shape[0] * rows->shape[1] * rows->shape[2],
                           .read = dm_pictures_row,
                           .source = rows};
}

/* The table at the top as column k: files that threads read. */
static dm_LoaderColumn files_column(lua_State *L, LoaderBox *l, int k) {
  const bool is_pictures = lua_getfield(L, -1, "pictures") != LUA_TNIL;
  lua_pop(L, 1);
  return is_pictures ? pictures_column(L, l, k) : windows_column(L, l, k);
}

/* loader_new{columns = {tensor or files, ...}, transforms = {[k] = augment{...} or false},
   batch_size = , drop_last = , num_workers = , prefetch = , seed = , pin = device or nil} */
static int loader_new(lua_State *L) {
  dm_enter(L);
  lua_settop(L, 1);
  luaL_checktype(L, 1, LUA_TTABLE);
  LoaderBox *l = lua_newuserdatauv(L, sizeof *l, 1); /* which keeps columns and transforms */
  *l = (LoaderBox){0};
  luaL_setmetatable(L, "demilune.Loader");
  l->pin = cpu;
  if (dm_option(L, 1, "pin") != LUA_TNIL) l->pin = dm_check_device(L, -1);
  lua_pop(L, 1);
  dm_LoaderColumn columns[MAX_COLUMN];
  lua_getfield(L, 1, "columns");
  const int given = lua_gettop(L);
  lua_pushvalue(L, 1);
  lua_setiuservalue(L, 2, 1);
  lua_getfield(L, 1, "transforms");
  const int transforms = lua_gettop(L);
  const lua_Integer n = (lua_Integer)luaL_len(L, given);
  if (n < 1 || n > MAX_COLUMN)
    return dm_raise_text(L, "DataLoader: %d tensors, wanted 1 to %d", (int)n, MAX_COLUMN);
  for (int k = 0; k < (int)n; k++) {
    const bool is_file = lua_rawgeti(L, given, k + 1) == LUA_TTABLE;
    columns[k] = is_file ? files_column(L, l, k) : tensor_column(L, l, k);
    if (l->shape[k][0] != l->shape[0][0])
      return dm_raise_text(L, "DataLoader: tensor %d has %d rows, tensor 1 has %d", k + 1,
                           (int)l->shape[k][0], (int)l->shape[0][0]);
    if (!is_file && lua_rawgeti(L, transforms, k + 1) == LUA_TUSERDATA)
      DM_CHECK(L, read_augment(L, lua_gettop(L), l, k, &columns[k]));
    lua_settop(L, transforms);
  }
  const dm_LoaderSpec spec = {
      .columns = columns,
      .n_columns = (int)n,
      .n_samples = l->shape[0][0],
      .batch_size = option_integer(L, 1, "batch_size", 1),
      .drop_last = dm_option_bool(L, 1, "drop_last", false),
      .num_workers = option_int(L, 1, "num_workers"),
      .prefetch = option_int(L, 1, "prefetch"),
      .seed = (uint64_t)option_integer(L, 1, "seed", 0),
      .alloc = new_batch,
      .free = free_batch,
      .ctx = l,
  };
  DM_CHECK(L, dm_loader_new(&l->loader, &spec));
  lua_settop(L, 2);
  return 1;
}

/* The integers of the int64 tensor at i, dense on the CPU, in a box of its own. */
static const int64_t *check_integers(lua_State *L, State *S, int i, const char *what,
                                     int64_t *n) {
  const dm_Tensor *t = dm_check_tensor(L, i);
  if (t->dtype != DM_I64 || t->ndim != 1)
    dm_raise_text(L, "DataLoader: %s is %s %s, wanted int64 of one dim", what,
                  dm_dtype_name(t->dtype), DM_SHAPE(t));
  Box *dense = dm_push_box(L, S);
  if (dm_dense_of(t, &dense->t) != DM_OK) dm_raise(L);
  *n = t->numel;
  return dm_tensor_data(dense->t);
}

/* loader:epoch(number, order, sizes or nil): order counts from 1; sizes: of the batches,
   int64. */
static int loader_epoch(lua_State *L) {
  State *S = dm_enter(L);
  LoaderBox *l = check_loader(L);
  const uint64_t epoch = (uint64_t)luaL_checkinteger(L, 2);
  int64_t n, n_batches;
  lua_settop(L, 4);
  const int64_t *from = check_integers(L, S, 3, "order", &n);
  int64_t *rows = lua_newuserdatauv(L, sizeof *rows * (size_t)(n ? n : 1), 0);
  for (int64_t i = 0; i < n; i++) rows[i] = from[i] - 1;
  if (lua_isnil(L, 4)) {
    DM_CHECK(L, dm_loader_epoch(l->loader, epoch, rows, n));
  } else {
    const int64_t *sizes = check_integers(L, S, 4, "sizes", &n_batches);
    DM_CHECK(L, dm_loader_epoch_of(l->loader, epoch, rows, n, sizes, n_batches));
  }
  return 0;
}

/* loader:next(ms) -> tensors of a batch; nil at the end; false: not ready within ms
   milliseconds, ask again (so that a signal is seen). */
static int loader_next(lua_State *L) {
  State *S = dm_enter(L);
  LoaderBox *l = check_loader(L);
  const lua_Integer ms = luaL_optinteger(L, 2, WAIT_MS);
  Box *box[MAX_COLUMN];
  dm_LoaderBuffer out[MAX_COLUMN];
  dm_LoaderState state;
  int64_t n_rows;
  luaL_checkstack(L, l->n + 2, NULL);
  for (int k = 0; k < l->n; k++) {
    dm_push_tensor(L, S, NULL); /* the handle first, and a look at memory */
    box[k] = dm_box(L, -1);
  }
  const dm_Event wait = {.name = "DataLoader.next"};
  dm_observe_begin(&wait);
  dm_status st = dm_loader_next_timed(l->loader, out, &n_rows, ms, &state);
  if (st == DM_EMEM) {
    dm_collect(L, S);
    st = dm_loader_next_timed(l->loader, out, &n_rows, ms, &state);
  }
  dm_observe_end(&wait);
  DM_CHECK(L, st);
  if (state != DM_LOADER_BATCH) {
    if (state == DM_LOADER_END) lua_pushnil(L);
    else lua_pushboolean(L, false);
    return 1;
  }
  for (int k = 0; k < l->n; k++) box[k]->t = out[k].owner;
  return l->n;
}

/* loader:passed() -> how many batches of the epoch were given or passed over */
static int loader_passed(lua_State *L) {
  lua_pushinteger(L, dm_loader_passed(check_loader(L)->loader));
  return 1;
}

/* Frees the workers and what they made ahead; fine more than once. */
static int loader_stop(lua_State *L) {
  const LoaderBox *l = luaL_checkudata(L, 1, "demilune.Loader");
  if (l->loader) dm_loader_stop(l->loader);
  return 0;
}

/* permutation(n, seed, epoch) -> int64 (n): the positions 1..n in an order that
   depends on nothing else. Fisher and Yates' shuffle. */
static int permutation(lua_State *L) {
  State *S = dm_enter(L);
  const int64_t n = luaL_checkinteger(L, 1);
  uint64_t state = (uint64_t)luaL_checkinteger(L, 2);
  state = dm_splitmix64(&state) ^ (uint64_t)luaL_checkinteger(L, 3);
  if (n < 0) return dm_raise_text(L, "permutation: of %d", (int)n);
  Box *box = dm_push_box(L, S);
  DM_CHECK(L, dm_tensor_new(DM_I64, 1, &n, cpu, &box->t));
  int64_t *p = dm_tensor_data(box->t);
  for (int64_t i = 0; i < n; i++) {
    const uint64_t sides = (uint64_t)i + 1, uneven = (0 - sides) % sides; /* 2^64 mod sides */
    uint64_t r;
    do r = dm_splitmix64(&state);
    while (r < uneven); /* so that each side is as likely */
    const int64_t j = (int64_t)(r % sides);
    if (j != i) p[i] = p[j];
    p[j] = i + 1;
  }
  return 1;
}

void dm_register_data(lua_State *L, State *S) {
  static const luaL_Reg methods[] = {{"epoch", loader_epoch},
                                     {"next", loader_next},
                                     {"passed", loader_passed},
                                     {"stop", loader_stop},
                                     {"__gc", loader_gc},
                                     {"__close", loader_stop},
                                     {NULL, NULL}};
  if (luaL_newmetatable(L, "demilune.Loader")) {
    dm_set_functions(L, methods, S);
    lua_pushvalue(L, -1);
    lua_setfield(L, -2, "__index");
  }
  lua_pop(L, 1);
}

const luaL_Reg dm_data_functions[] = {{"read_idx", read_idx},
                                      {"_from_bytes", from_bytes},
                                      {"_to_bytes", to_bytes},
                                      {"_write_file", write_file},
                                      {"_inflate", inflated},
                                      {"_crc32", checksum},
                                      {"safetensors_read", safetensors_read},
                                      {"safetensors_write", safetensors_write},
                                      {"loader_new", loader_new},
                                      {"permutation", permutation},
                                      {NULL, NULL}};
