/* NVIDIA's libraries are opened when they are first wanted; nothing is linked to
   them, so that the back end loads where they are missing. */
#ifndef DM_KERNELS_LIBRARY_H
#define DM_KERNELS_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

/* dlopen of the first of `names` (ends with NULL) that can be opened, looked for in
     the folders of DEMILUNE_CUDA_LIBS ("a:b"),
     where the loader looks,
     $CUDA_HOME/lib64 and /usr/local/cuda/lib64,
     the folders that pip installs into, of the python3 in force.
   NULL, with the reason in why[size], when there is none. It is never closed. */
void *dm_cuda_library(const char *const *names, char *why, size_t size);

/* The function `name` of a library, in *out (a pointer to a function); false when it
   has none. */
bool dm_cuda_symbol(void *library, const char *name, void *out);

/* Is the variable "0" in the environment? So a user leaves a library out. */
bool dm_cuda_is_off(const char *variable);

/* DM_LIBRARY(TABLE, ENTRIES, names...): the functions of a library, from a list
   ENTRIES(X) of X(function), as members of a static TABLE; TABLE_open() fills it,
   false where the library is missing or too old to have them all. In the emulation
   they are linked in. */
#ifdef DM_EMULATED
#define DM_LIBRARY_OPEN(NAMES) ((void)(NAMES), (void *)table)
#define DM_LIBRARY_TAKE(NAME) table->NAME = NAME;
#else
#define DM_LIBRARY_OPEN(NAMES) dm_cuda_library(NAMES, (char[256]){0}, 256)
#define DM_LIBRARY_TAKE(NAME) ok = ok && dm_cuda_symbol(library, #NAME, &table->NAME);
#endif
#define DM_LIBRARY_ENTRY(NAME) __typeof__(&NAME) NAME;
#define DM_LIBRARY(TABLE, ENTRIES, ...)                     \
  static struct { ENTRIES(DM_LIBRARY_ENTRY) } TABLE;        \
  static bool TABLE##_open(void) {                          \
    static const char *const names[] = {__VA_ARGS__, NULL}; \
    __typeof__(TABLE) *const table = &TABLE;                \
    void *const library = DM_LIBRARY_OPEN(names);           \
    bool ok = library != NULL;                              \
    ENTRIES(DM_LIBRARY_TAKE)                                \
    return ok;                                              \
  }

#endif
