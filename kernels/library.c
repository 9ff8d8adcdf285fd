/* See library.h. A library is tried where the user says it is, then as the loader finds it,
   then in the toolkit's folders, then where Python keeps NVIDIA's packages: those of the first
   python3 in PATH, as a virtual environment's is, and those that pip has installed for the user
   alone. The first file that loads is taken. Of files that are there and do not load the last
   one's error is kept, for it tells more than that nothing was found. */
#include "kernels/library.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 1024 };

/* The names of a library, and the outcome of the search. */
typedef struct Search {
  const char *const *names;
  char *why;
  size_t size;
  void *found;
} Search;

/* Tries one file. An error is reported only for a file that exists and does not load. */
static bool try_file(Search *s, const char *file) {
  const bool by_path = strchr(file, '/') != NULL;
  if (by_path && access(file, R_OK) != 0) return false;
  s->found = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  const char *error = s->found ? NULL : dlerror();
  if (by_path && error) snprintf(s->why, s->size, "%s", error);
  return s->found != NULL;
}

/* Tries each name in a folder. */
static bool try_folder(Search *s, const char *folder, int length) {
  char file[PATH_BYTES];
  for (int i = 0; s->names[i]; i++) {
    const int n = snprintf(file, sizeof file, "%.*s/%s", length, folder, s->names[i]);
    if (n < (int)sizeof file && try_file(s, file)) return true;
  }
  return false;
}

/* Tries each name as the loader finds it (LD_LIBRARY_PATH, the system's cache). */
static bool try_loader(Search *s) {
  for (int i = 0; s->names[i]; i++)
    if (try_file(s, s->names[i])) return true;
  return false;
}

/* Tries the folders of a list "a:b". */
static bool try_list(Search *s, const char *list) {
  while (list && *list) {
    const size_t n = strcspn(list, ":");
    if (n > 0 && try_folder(s, list, (int)n)) return true;
    list += n + (list[n] == ':');
  }
  return false;
}
/* Tries the folders of NVIDIA's Python packages below root. */
static bool try_pattern(Search *s, const char *root, int length) {
  char pattern[PATH_BYTES];
  glob_t found;
  bool ok = false;
  const int n = snprintf(pattern, sizeof pattern, "%.*s/lib/python3*/*-packages/nvidia/*/lib",
                         length, root);
  if (n >= (int)sizeof pattern || glob(pattern, 0, NULL, &found) != 0) return false;
  for (size_t i = 0; i < found.gl_pathc && !ok; i++)
    ok = try_folder(s, found.gl_pathv[i], (int)strlen(found.gl_pathv[i]));
  globfree(&found);
  return ok;
}

/* The first python3 in PATH, as ROOT/bin/python3, has its packages in ROOT/lib; so has a
   virtual environment's. */
static bool try_python(Search *s) {
  char file[PATH_BYTES];
  for (const char *path = getenv("PATH"); path && *path;) {
    const int n = (int)strcspn(path, ":");
    const int length = snprintf(file, sizeof file, "%.*s/python3", n, path);
    if (n > 4 && length < (int)sizeof file && strncmp(path + n - 4, "/bin", 4) == 0 &&
        access(file, X_OK) == 0)
      return try_pattern(s, path, n - 4);
    path += n + (path[n] == ':');
  }
  return false;
}
/* Packages that pip has installed for the user alone, below ~/.local. */
static bool try_home(Search *s) {
  char root[PATH_BYTES];
  const char *home = getenv("HOME");
  const int n = home ? snprintf(root, sizeof root, "%s/.local", home) : PATH_BYTES;
  return n < PATH_BYTES && try_pattern(s, root, n);
}

/* Tries the CUDA toolkit's folders. */
static bool try_toolkit(Search *s) {
  char folder[PATH_BYTES];
  const char *home = getenv("CUDA_HOME");
  const int n = home ? snprintf(folder, sizeof folder, "%s/lib64", home) : PATH_BYTES;
  if (n < PATH_BYTES && try_folder(s, folder, n)) return true;
  return try_list(s, "/usr/local/cuda/lib64");
}

void *dm_cuda_library(const char *const *names, char *why, size_t size) {
  Search s = {names, why, size, NULL};
  snprintf(why, size, "no %s; hint: DEMILUNE_CUDA_LIBS=folder", names[0]);
  (void)(try_list(&s, getenv("DEMILUNE_CUDA_LIBS")) || try_loader(&s) || try_toolkit(&s) ||
         try_python(&s) || try_home(&s));
  return s.found;
}

#ifdef DM_EMULATED
void *dm_emulated_library(const char *const *names, char *why, size_t size) {
  static char one; /* a library that is linked in has no handle; any pointer will do */
  const char *missing = getenv("DEMILUNE_EMULATED_MISSING");
  if (!missing || strcmp(missing, names[0]) != 0) return &one;
  snprintf(why, size, "no %s; hint: DEMILUNE_CUDA_LIBS=folder", names[0]);
  return NULL;
}
#endif

/* dlsym returns an object pointer; memcpy makes a function pointer of it, which ISO C does not
   convert. */
bool dm_cuda_symbol(void *library, const char *name, void *out) {
  void *const symbol = dlsym(library, name);
  memcpy(out, &symbol, sizeof symbol);
  return symbol != NULL;
}

/* "0" switches a library off. */
bool dm_cuda_is_off(const char *variable) {
  const char *s = getenv(variable);
  return s && strcmp(s, "0") == 0;
}
