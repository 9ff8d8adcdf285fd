/* NVIDIA's libraries are opened when they are first wanted; nothing is linked to
   them, so that the back end loads where they are missing. */
#ifndef DM_KERNELS_LIBRARY_H
#define DM_KERNELS_LIBRARY_H

#include <stddef.h>

/* dlopen of the first of `names` (ends with NULL) that can be opened, looked for in
     the folders of DEMILUNE_CUDA_LIBS ("a:b"),
     where the loader looks,
     $CUDA_HOME/lib64 and /usr/local/cuda/lib64,
     the folders that pip installs into, of the python3 in force.
   NULL, with the reason in why[size], when there is none. It is never closed. */
void *dm_cuda_library(const char *const *names, char *why, size_t size);

#endif
