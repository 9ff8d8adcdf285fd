/* Pictures in files for Lua, as uint8 tensors (H,W,C); demilune.image makes of
   them what scripts see. */
#include "base/alloc.h"
#include "base/error.h"
#include "bind/bind.h"
#include "data/png.h"

/* png_read(path) -> tensor; nil and a message when the file is at fault */
static int png_read(lua_State *L) {
  State *S = dm_enter(L);
  const char *path = luaL_checkstring(L, 1);
  dm_Png image;
  Box *box = dm_push_box(L, S);
  dm_status st = dm_png_read(&image, path);
  if (st == DM_EMEM) {
    dm_collect(L, S);
    st = dm_png_read(&image, path);
  }
  if (st != DM_OK) return dm_world_failed(L, st);
  const int64_t shape[3] = {image.height, image.width, image.channels};
  st = dm_tensor_wrap(image.data, DM_U8, 3, shape, dm_free, image.data, &box->t);
  if (st != DM_OK) {
    dm_free(image.data);
    return dm_raise(L);
  }
  return 1;
}

/* png_write(path, tensor) -> true; nil and a message when the disk is at fault */
static int png_write(lua_State *L) {
  State *S = dm_enter(L);
  const char *path = luaL_checkstring(L, 1);
  const dm_Tensor *t = dm_check_tensor(L, 2);
  if (t->dtype != DM_U8 || t->ndim != 3)
    return dm_raise_text(L, "png_write: got %s %s, wanted uint8 {H, W, C}",
                         dm_dtype_name((dm_DType)t->dtype), DM_SHAPE(t));
  Box *dense = dm_push_box(L, S);
  DM_CHECK(L, dm_dense_of(t, &dense->t));
  const dm_Png image = {.channels = t->shape[2] > 4 ? 5 : (int)t->shape[2],
                        .height = t->shape[0],
                        .width = t->shape[1],
                        .data = dm_tensor_data(dense->t)};
  const dm_status st = dm_png_write(path, &image);
  if (st != DM_OK) return dm_world_failed(L, st);
  lua_pushboolean(L, true);
  return 1;
}

const luaL_Reg dm_image_functions[] = {
    {"png_read", png_read}, {"png_write", png_write}, {NULL, NULL}};
