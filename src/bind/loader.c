/* The loader for Lua, and the order of an epoch. data/loader.h assembles batches in threads
   that never call Lua; this file turns columns, which are tensors, files of tokens or files
   of images, into its description, and its batches into tensors. The userdata owns a
   reference to each column's tensor, and its user value holds the Lua table with files and
   transforms that the threads read. */
#include "data/loader.h"

#include <string.h>

#include "base/rng.h"
#include "bind/bind.h"
#include "bind/images.h"
#include "data/tokens.h"
#include "engine/observe.h"

static const dm_Device cpu = {.type = DM_CPU};

enum { MAX_COLUMN = 8, WAIT_MS = 50 };

/* A loader as a userdata. The arrays here are read by worker threads while an epoch runs, so
   they change only in loader_new. */
typedef struct LoaderHandle {
  dm_Loader *loader;
  dm_Device pin; /* batches lie in memory pinned for it; the CPU: in plain memory */
  int n;
  dm_Tensor *column[MAX_COLUMN];         /* owned; has_dense_rows; NULL: windows */
  dm_TokenWindows windows[MAX_COLUMN];   /* of files that the user value holds */
  dm_ImageRows images[MAX_COLUMN];       /* likewise */
  int n_dim[MAX_COLUMN];                 /* of a batch */
  int64_t shape[MAX_COLUMN][DM_MAX_DIM]; /* [k][0] is the batch's own */
} LoaderHandle;

/* dm_LoaderSpec.alloc: makes the tensor of column k of a batch, in pinned memory when asked
   for. */
static dm_status new_batch(void *ctx, int k, int64_t n_rows, int64_t n_bytes,
                           dm_LoaderBuffer *out) {
  const LoaderHandle *l = ctx;
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

/* dm_LoaderSpec.free: drops a batch's tensor that was never taken. */
static void free_batch(void *ctx, dm_LoaderBuffer *buffer) {
  dm_Tensor *t = buffer->owner;
  DM_UNUSED(ctx);
  dm_tensor_unref(&t);
  *buffer = (dm_LoaderBuffer){NULL, NULL};
}

/* The loader at 1; raises on other values and on a loader that has been freed. */
static LoaderHandle *check_loader(lua_State *L) {
  LoaderHandle *l = luaL_checkudata(L, 1, "demilune.Loader");
  if (!l->loader) dm_raise_text(L, "DataLoader: used after its end");
  return l;
}

/* __gc: stops the threads first, then drops the columns they read. */
static int loader_gc(lua_State *L) {
  LoaderHandle *l = luaL_checkudata(L, 1, "demilune.Loader");
  dm_loader_free(&l->loader);
  for (int k = 0; k < l->n; k++) dm_tensor_unref(&l->column[k]);
  return 0;
}

/* The integer t[key] of the options at i, or def; raises on other values. */
static int64_t option_integer(lua_State *L, int i, const char *key, int64_t def) {
  const int64_t v = dm_option(L, i, key) == LUA_TNIL ? def : luaL_checkinteger(L, -1);
  lua_pop(L, 1);
  return v;
}

/* A count, default 0. A number beyond int is clamped to -1 or INT32_MAX, which stay out of
   the range that is checked later. */
static int option_int(lua_State *L, int i, const char *key) {
  return (int)dm_max_i64(-1, dm_min_i64(option_integer(L, i, key, 0), INT32_MAX));
}

/* Gives the column of images (N,H,W) or (N,C,H,W) the transforms in the userdata at i, and
   computes the shape of its batches. */
static dm_status read_augment(lua_State *L, int i, LoaderHandle *l, int k,
                              dm_LoaderColumn *column) {
  const dm_Tensor *t = l->column[k];
  if (t->ndim != 3 && t->ndim != 4)
    dm_raise_text(L, "DataLoader: images want shape {N, H, W} or {N, C, H, W}, got %s",
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

/* Returns the tensor on top as column k. The loader takes a reference to it, or to a
   contiguous copy on the host where threads cannot copy its rows. */
static dm_LoaderColumn tensor_column(lua_State *L, LoaderHandle *l, int k) {
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

/* Returns the table on top, {tokens = file, first =, length =, step =, count = windows}, as
   column k of int64 rows of `length` tokens. Raises for windows beyond the file. */
static dm_LoaderColumn windows_column(lua_State *L, LoaderHandle *l, int k) {
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

/* Returns the table on top, {images = files, augment = list}, as column k, whose rows are the
   transformed images. */
static dm_LoaderColumn images_column(lua_State *L, LoaderHandle *l, int k) {
  const int at = lua_gettop(L);
  lua_getfield(L, at, "images");
  lua_getfield(L, at, "augment");
  const dm_Images *images = dm_to_images(L, at + 1);
  dm_ImageRows *rows = &l->images[k];
  if (!images) dm_raise_text(L, "DataLoader: column %d: no list of images", k + 1);
  if (dm_images_rows(rows, images, dm_check_augment(L, at + 2)) != DM_OK) dm_raise(L);
  l->n = k + 1;
  l->n_dim[k] = 4;
  l->shape[k][0] = dm_images_count(images);
  memcpy(l->shape[k] + 1, rows->shape, sizeof rows->shape);
  return (dm_LoaderColumn){.dtype = dm_augment_dtype(rows->augment),
                           .row_numel = rows->shape[0] * rows->shape[1] * rows->shape[2],
                           .read = dm_images_row,
                           .source = rows};
}

/* Returns the table on top as column k: files of images or of tokens, which threads read. */
static dm_LoaderColumn files_column(lua_State *L, LoaderHandle *l, int k) {
  const bool is_images = lua_getfield(L, -1, "images") != LUA_TNIL;
  lua_pop(L, 1);
  return is_images ? images_column(L, l, k) : windows_column(L, l, k);
}

/* loader_new{columns = {tensor or files, ...}, transforms = {[k] = augment{...} or false},
   batch_size =, drop_last =, num_workers =, prefetch =, seed =, pin = device or nil} ->
   loader. Raises when columns differ in their number of rows. */
static int loader_new(lua_State *L) {
  dm_enter(L);
  lua_settop(L, 1);
  luaL_checktype(L, 1, LUA_TTABLE);
  LoaderHandle *l = lua_newuserdatauv(L, sizeof *l, 1); /* which keeps columns and transforms */
  *l = (LoaderHandle){0};
  luaL_setmetatable(L, "demilune.Loader");
  l->pin = cpu;
  if (dm_option(L, 1, "pin") != LUA_TNIL) l->pin = dm_check_device(L, -1);
  lua_pop(L, 1);
  dm_LoaderColumn columns[MAX_COLUMN];
  lua_getfield(L, 1, "columns");
  /* The options table becomes the user value: it holds the files and transforms that workers
     read. */
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

/* Pushes a handle with the int64 tensor at i, contiguous on the CPU, and returns its *n
   elements. Raises on other dtypes and on more than one dim. */
static const int64_t *check_integers(lua_State *L, State *S, int i, const char *what,
                                     int64_t *n) {
  Handle *dense = dm_push_own(L, S);
  const dm_Tensor *t = dm_check_tensor(L, i);
  if (t->dtype != DM_I64 || t->ndim != 1)
    dm_raise_text(L, "DataLoader: %s is %s %s, wanted int64 of one dim", what,
                  dm_dtype_name(t->dtype), DM_SHAPE(t));
  if (dm_dense_of(t, &dense->t) != DM_OK) dm_raise(L);
  *n = t->numel;
  return dm_tensor_data(dense->t);
}

/* loader:epoch(number, order, sizes or nil): starts an epoch over the samples in `order`,
   which count from 1; sizes (int64) are those of the batches. It stops the epoch before. */
static int loader_epoch(lua_State *L) {
  State *S = dm_enter(L);
  LoaderHandle *l = check_loader(L);
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

/* loader:next(ms) -> tensors of a batch; nil at the end of the epoch; false when none was
   ready within ms milliseconds, and the caller asks again (so that a signal is handled by Lua
   in between). */
static int loader_next(lua_State *L) {
  State *S = dm_enter(L);
  LoaderHandle *l = check_loader(L);
  const lua_Integer ms = luaL_optinteger(L, 2, WAIT_MS);
  Handle *handle[MAX_COLUMN];
  dm_LoaderBuffer out[MAX_COLUMN];
  dm_LoaderState state;
  int64_t n_rows;
  luaL_checkstack(L, l->n + 2, NULL);
  for (int k = 0; k < l->n; k++) {
    dm_push_tensor(L, S, NULL); /* the handle first, and a look at memory */
    handle[k] = dm_handle(L, -1);
  }
  /* Observers see the wait as an event of its own, so a profile shows a loader that is too
     slow. Nothing in between may raise. */
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
  /* The batch's references move to the handles. */
  for (int k = 0; k < l->n; k++) handle[k]->t = out[k].owner;
  return l->n;
}

/* loader:passed() -> number of batches of the epoch that were returned or skipped after a
   failure. */
static int loader_passed(lua_State *L) {
  lua_pushinteger(L, dm_loader_passed(check_loader(L)->loader));
  return 1;
}

/* loader:stop(), __close: ends the workers and frees the batches that were not taken. It may
   be called more than once. */
static int loader_stop(lua_State *L) {
  const LoaderHandle *l = luaL_checkudata(L, 1, "demilune.Loader");
  if (l->loader) dm_loader_stop(l->loader);
  return 0;
}

/* permutation(n, seed, epoch) -> int64 (n): the numbers 1..n in an order that depends on
   nothing else. Fisher and Yates' shuffle, from the inside out. */
static int permutation(lua_State *L) {
  State *S = dm_enter(L);
  const int64_t n = luaL_checkinteger(L, 1);
  uint64_t state = (uint64_t)luaL_checkinteger(L, 2);
  state = dm_splitmix64(&state) ^ (uint64_t)luaL_checkinteger(L, 3);
  if (n < 0) return dm_raise_text(L, "permutation: of %d", (int)n);
  Handle *handle = dm_push_handle(L, S);
  DM_CHECK(L, dm_tensor_new(DM_I64, 1, &n, cpu, &handle->t));
  int64_t *p = dm_tensor_data(handle->t);
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

/* __close is stop and not __gc: a loader whose epoch was left by break serves the next
   one. */
void dm_register_loader(lua_State *L, State *S) {
  static const luaL_Reg methods[] = {{"epoch", loader_epoch},
                                     {"next", loader_next},
                                     {"passed", loader_passed},
                                     {"stop", loader_stop},
                                     {"__gc", loader_gc},
                                     {"__close", loader_stop},
                                     {NULL, NULL}};
  dm_register_class(L, "demilune.Loader", methods, S);
}

const luaL_Reg dm_loader_functions[] = {
    {"loader_new", loader_new}, {"permutation", permutation}, {NULL, NULL}};
