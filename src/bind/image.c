/* Images in files for Lua, as uint8 tensors (H,W,C); lua/demilune/image turns them into what
   scripts see. A decoder allocates the pixels, and the tensor takes that memory without a
   copy. */
#include "base/alloc.h"
#include "base/error.h"
#include "bind/bind.h"
#include "bind/images.h"
#include "data/png.h"

/* Raises on a mode that is none of "unchanged", "gray" and "rgb". */
dm_ImageHow dm_check_how(lua_State *L, int i) {
  static const char *const modes[] = {[DM_IMAGE_UNCHANGED] = "unchanged",
                                      [DM_IMAGE_GRAY] = "gray",
                                      [DM_IMAGE_RGB] = "rgb",
                                      NULL};
  const int mode = luaL_checkoption(L, i, "unchanged", modes);
  return (dm_ImageHow){.mode = (dm_ImageMode)mode, .exif = lua_toboolean(L, i + 1)};
}

/* Gives the image's memory to the handle's tensor and returns the number of results; for a
   failed st it returns nil and the message, or raises. The memory is freed on a failure. */
static int give(lua_State *L, Handle *handle, dm_status st, dm_Image *p) {
  if (st != DM_OK) return dm_world_failed(L, st);
  const int64_t shape[3] = {p->height, p->width, p->channels};
  st = dm_tensor_wrap(p->data, DM_U8, 3, shape, dm_free, p->data, &handle->t);
  if (st == DM_OK) return 1;
  dm_free(p->data);
  return dm_raise(L);
}

/* _read_image(path, mode, exif) -> uint8 tensor (H,W,C); nil and a message when the file is
   at fault. */
static int read_image(lua_State *L) {
  State *S = dm_enter(L);
  const char *path = dm_check_path(L, 1);
  const dm_ImageHow how = dm_check_how(L, 2);
  dm_Image p;
  Handle *handle = dm_push_handle(L, S);
  dm_status st = dm_image_read(&p, &how, path);
  if (st == DM_EMEM) {
    dm_collect(L, S);
    st = dm_image_read(&p, &how, path);
  }
  return give(L, handle, st, &p);
}

/* _decode_image(string, mode, exif) -> the same of a file's bytes in a string. */
static int decode_image(lua_State *L) {
  State *S = dm_enter(L);
  size_t n;
  const uint8_t *bytes = (const uint8_t *)luaL_checklstring(L, 1, &n);
  const dm_ImageHow how = dm_check_how(L, 2);
  dm_Image p;
  Handle *handle = dm_push_handle(L, S);
  dm_status st = dm_image_decode(&p, &how, bytes, (int64_t)n, "a string");
  if (st == DM_EMEM) {
    dm_collect(L, S);
    st = dm_image_decode(&p, &how, bytes, (int64_t)n, "a string");
  }
  return give(L, handle, st, &p);
}

/* png_write(path, tensor) -> true; nil and a message when the disk is at fault. Raises unless
   the tensor is uint8 (H,W,C). */
static int png_write(lua_State *L) {
  State *S = dm_enter(L);
  const char *path = dm_check_path(L, 1);
  Handle *dense = dm_push_own(L, S);
  const dm_Tensor *t = dm_check_tensor(L, 2);
  if (t->dtype != DM_U8 || t->ndim != 3)
    return dm_raise_text(L, "png_write: got %s %s, wanted uint8 {H, W, C}",
                         dm_dtype_name((dm_DType)t->dtype), DM_SHAPE(t));
  /* The pixels must be contiguous for libpng; the handle owns the copy until the collector
     frees it. */
  DM_CHECK(L, dm_dense_of(t, &dense->t));
  t = dense->t;
  const dm_Image p = {.channels = t->shape[2],
                      .height = t->shape[0],
                      .width = t->shape[1],
                      .c_step = 1,
                      .h_step = t->shape[1] * t->shape[2],
                      .w_step = t->shape[2],
                      .data = dm_tensor_data(dense->t)};
  const dm_status st = dm_png_write(path, &p);
  if (st != DM_OK) return dm_world_failed(L, st);
  lua_pushboolean(L, true);
  return 1;
}

const luaL_Reg dm_image_functions[] = {{"_read_image", read_image},
                                       {"_decode_image", decode_image},
                                       {"png_write", png_write},
                                       {NULL, NULL}};
