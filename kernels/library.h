/* NVIDIA's libraries are opened with dlopen when they are first needed. Nothing is linked to
   them, so that the back end loads where they are missing. */
#ifndef DM_KERNELS_LIBRARY_H
#define DM_KERNELS_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Opens the first of `names` (ends with NULL) that can be opened, looking in
     the folders of DEMILUNE_CUDA_LIBS ("a:b"),
     where the loader looks,
     $CUDA_HOME/lib64 and /usr/local/cuda/lib64,
     the folders that pip installs into, of the first python3 in PATH and of ~/.local.
   Returns NULL if there is none, with the reason in why[size]. It is never closed. */
void *dm_cuda_library(const char *const *names, char *why, size_t size);

/* Looks up the function `name` and stores it in *out (a pointer to a function); false if the
   library has none. */
bool dm_cuda_symbol(void *library, const char *name, void *out);

/* Whether the environment variable is "0", by which a user switches a library off. */
bool dm_cuda_is_off(const char *variable);

/* DM_LIBRARY(TABLE, ENTRIES, names...) defines a static TABLE with a member for each
   X(function) of the list ENTRIES(X), and TABLE_open(why, size), which fills it; false if the
   library is missing or lacks one of them, with the reason in why[size]. The emulation links
   them in; for tests it has none where DEMILUNE_EMULATED_MISSING is a library's first name. */
#ifdef DM_EMULATED
#define DM_LIBRARY_OPEN(NAMES, WHY, SIZE) dm_emulated_library(NAMES, WHY, SIZE)
#define DM_LIBRARY_TAKE(NAME) table->NAME = NAME;
void *dm_emulated_library(const char *const *names, char *why, size_t size);
#else
#define DM_LIBRARY_OPEN(NAMES, WHY, SIZE) dm_cuda_library(NAMES, WHY, SIZE)
#define DM_LIBRARY_TAKE(NAME)                                      \
  if (ok && !dm_cuda_symbol(library, #NAME, &table->NAME)) {       \
    snprintf(why, size, "%s has no function %s", names[0], #NAME); \
    ok = false;                                                    \
  }
#endif
#define DM_LIBRARY_ENTRY(NAME) __typeof__(&NAME) NAME;
#define DM_LIBRARY(TABLE, ENTRIES, ...)                      \
  static struct { ENTRIES(DM_LIBRARY_ENTRY) } TABLE;         \
  static bool TABLE##_open(char *why, size_t size) {         \
    static const char *const names[] = {__VA_ARGS__, NULL};  \
    __typeof__(TABLE) *const table = &TABLE;                 \
    void *const library = DM_LIBRARY_OPEN(names, why, size); \
    bool ok = library != NULL;                               \
    ENTRIES(DM_LIBRARY_TAKE)                                 \
    return ok;                                               \
  }

#endif
