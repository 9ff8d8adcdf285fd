/* Shared by the binding's files on images. */
#ifndef DM_BIND_IMAGES_H
#define DM_BIND_IMAGES_H

#include "bind/bind.h"
#include "data/images.h"

/* The mode's name and whether exif, at i and i + 1. */
dm_ImageHow dm_check_how(lua_State *L, int i);

/* The images that _images made at i, or NULL. */
const dm_Images *dm_to_images(lua_State *L, int i);

#endif
