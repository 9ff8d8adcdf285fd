/* Finds and opens libraries of ours, cuda.so and mpi.so: in the directory of the library that
   holds this code (the Lua module, or libdemilune), in demilune/ below it, or at the path in a
   variable, DEMILUNE_CUDA or DEMILUNE_MPI ("0": do not open any). */
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
static bool find_library(const char *file, const char *given, char buf[PATH_BYTES]) {
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
    snprintf(buf, PATH_BYTES, "%.*s/%s%s", n, folder, below[i], file);
    if (access(buf, R_OK) == 0) return true;
  }
  return false;
}

/* Keeps the text "AB", whose parts may lie in a library. */
static const char *because(const char *a, const char *b) {
  snprintf(reason, sizeof reason, "%s%s", a, b);
  return reason;
}

const char *dm_open_library(const char *file, const char *variable, const char *absent,
                            const char *symbol, void **found) {
  char path[PATH_BYTES];
  const char *given = getenv(variable);
  if (given && strcmp(given, "0") == 0) return because(variable, "=0 switches it off");
  if (!find_library(file, given, path)) return absent;
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return because(dlerror(), "");
  *found = dlsym(library, symbol);
  if (*found) return NULL;
  dlclose(library);
  return because(file, " is no part of demilune");
}

const char *dm_backend_open(dm_DeviceType type) {
  if (type != DM_CUDA) return "there is no such back end";
  void *symbol = NULL;
  const char *why =
      dm_open_library("cuda.so", "DEMILUNE_CUDA", "this build has no CUDA part (cuda.so)",
                      DM_BACKEND_SYMBOL, &symbol);
  if (why) return why;
  /* POSIX lets a symbol be a function; ISO C wants the detour */
  dm_BackendOpenFn *open;
  memcpy(&open, &symbol, sizeof open);
  why = open(&engine);
  return why ? because(why, "") : NULL;
}
