/* Finds and opens cuda.so: in the directory of the library that holds this code (the Lua
   module, or libdemilune), in demilune/ below it, or at the path in DEMILUNE_CUDA ("0": do not
   open any). */
#include "engine/backend.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"

static const dm_Engine engine = {
    .version = DM_VERSION,
    .layout = DM_LAYOUT,
    .ops = dm_ops,
#define FN(RESULT, NAME, PARAMETERS, ARGUMENTS) .NAME = NAME,
#include "engine/backend.def"
#undef FN
};

enum { PATH_BYTES = 1024 };
static char reason[PATH_BYTES + 256];

/* The library's path into buf, `given` or found; false when there is none. */
static bool find_library(const char *given, char buf[PATH_BYTES]) {
  if (given && *given) {
    snprintf(buf, PATH_BYTES, "%s", given);
    return access(buf, R_OK) == 0;
  }
  Dl_info self;
  if (!dladdr((const void *)&engine, &self) || !self.dli_fname) return false;
  const char *slash = strrchr(self.dli_fname, '/');
  const int n = slash ? (int)(slash - self.dli_fname) : 1;
  const char *folder = slash ? self.dli_fname : ".";
  static const char *const below[] = {"", "demilune/"};
  for (int i = 0; i < DM_COUNT(below); i++) {
    snprintf(buf, PATH_BYTES, "%.*s/%scuda.so", n, folder, below[i]);
    if (access(buf, R_OK) == 0) return true;
  }
  return false;
}

const char *dm_backend_open(dm_DeviceType type) {
  char path[PATH_BYTES];
  if (type != DM_CUDA) return "there is no such back end";
  const char *given = getenv("DEMILUNE_CUDA");
  if (given && strcmp(given, "0") == 0) return "DEMILUNE_CUDA=0 switches it off";
  if (!find_library(given, path)) return "this build has no CUDA part (cuda.so)";
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(reason, sizeof reason, "%s", dlerror());
    return reason;
  }
  /* POSIX lets a symbol be a function; ISO C wants the detour */
  dm_BackendOpenFn *open;
  void *symbol = dlsym(library, DM_BACKEND_SYMBOL);
  memcpy(&open, &symbol, sizeof open);
  const char *why = open ? open(&engine) : "it is no back end of demilune";
  if (!why) return NULL;
  snprintf(reason, sizeof reason, "%s", why); /* it may lie in the library */
  dlclose(library);
  return reason;
}
