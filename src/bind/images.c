/* Folders, and many files of images as one column of a loader, for Lua. */
#include "bind/images.h"

#include "base/error.h"
#include "data/folder.h"

/* ---- folders ---- */

/* __gc of a listing. */
static int close_folder(lua_State *L) {
  dm_folder_free(luaL_checkudata(L, 1, "demilune.Folder"));
  return 0;
}

/* Pushes a folder that is freed when it is collected. */
static dm_Folder *push_folder(lua_State *L) {
  dm_Folder *f = lua_newuserdatauv(L, sizeof *f, 0);
  *f = (dm_Folder){0};
  dm_ended_by(L, "demilune.Folder", "__gc", close_folder);
  return f;
}

/* _list(what, path) -> names of files, names of folders, {[name of a folder] = its identity};
   both lists are sorted by bytes. Two names with one identity lead to the same folder, as
   links do. nil and a message when it cannot be read. */
static int list_folder(lua_State *L) {
  State *S = dm_enter(L);
  const char *what = luaL_checkstring(L, 1), *path = dm_check_path(L, 2);
  dm_Folder *f = push_folder(L);
  dm_status st = dm_folder_read(f, what, path);
  if (st == DM_EMEM) {
    dm_folder_free(f);
    dm_collect(L, S);
    st = dm_folder_read(f, what, path);
  }
  if (st != DM_OK) return dm_world_failed(L, st);
  lua_newtable(L);
  lua_newtable(L);
  lua_newtable(L);
  /* The three results, in their order on the stack. */
  const int files = lua_gettop(L) - 2, folders = files + 1, which = files + 2;
  lua_Integer n_files = 0, n_folders = 0;
  for (int64_t i = 0; i < f->n; i++) {
    const dm_FolderEntry *e = &f->entries[i];
    lua_pushstring(L, e->name);
    if (e->is_folder) {
      lua_pushvalue(L, -1);
      lua_rawseti(L, folders, ++n_folders);
      lua_pushfstring(L, "%I:%I", (LUAI_UACINT)e->device, (LUAI_UACINT)e->inode);
      lua_rawset(L, which);
    } else {
      lua_rawseti(L, files, ++n_files);
    }
  }
  dm_folder_free(f);
  return 3;
}

/* ---- many images ---- */

static const char images_name[] = "demilune.Images";

/* Borrowed: the userdata must stay in a Lua value while a loader reads it. */
const dm_Images *dm_to_images(lua_State *L, int i) {
  dm_Images **p = luaL_testudata(L, i, images_name);
  return p ? *p : NULL;
}

/* __gc of the list of images. */
static int free_images(lua_State *L) {
  dm_images_free(luaL_checkudata(L, 1, images_name));
  return 0;
}

/* Reads the n strings of the table at 1, which holds them. */
static void read_paths(lua_State *L, lua_Integer n, const char **paths) {
  for (lua_Integer i = 0; i < n; i++) {
    if (lua_rawgeti(L, 1, i + 1) != LUA_TSTRING)
      dm_raise_text(L, "_images: path %d is no string", (int)i + 1);
    paths[i] = lua_tostring(L, -1);
    lua_pop(L, 1);
  }
}

/* _images({path, ...}, mode, exif) -> a column for loader_new. No file is opened yet. The
   paths are copied, so the Lua strings may go. */
static int new_images(lua_State *L) {
  State *S = dm_enter(L);
  luaL_checktype(L, 1, LUA_TTABLE);
  const dm_ImageHow how = dm_check_how(L, 2);
  const lua_Integer n = (lua_Integer)lua_rawlen(L, 1);
  const char **paths = lua_newuserdatauv(L, sizeof *paths * (size_t)(n + 1), 0);
  dm_Images **p = lua_newuserdatauv(L, sizeof *p, 0);
  *p = NULL;
  luaL_setmetatable(L, images_name);
  read_paths(L, n, paths);
  dm_status st = dm_images_new(p, paths, n, &how);
  if (st == DM_EMEM) {
    dm_reclaim_memory(L, S);
    read_paths(L, n, paths);
    st = dm_images_new(p, paths, n, &how);
  }
  DM_CHECK(L, st);
  return 1;
}

void dm_register_images(lua_State *L) {
  luaL_newmetatable(L, images_name);
  lua_pushcfunction(L, free_images);
  lua_setfield(L, -2, "__gc");
  dm_close_metatable(L, images_name);
  lua_pop(L, 1);
}

const luaL_Reg dm_images_functions[] = {
    {"_list", list_folder}, {"_images", new_images}, {NULL, NULL}};
