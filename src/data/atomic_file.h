/* Replaces a file as a whole or not at all: the new bytes are written to a file in the same
   folder, which has no name where the file system can do that, flushed to the disk by fsync,
   and linked or renamed to the target, either of which is one step. Until then, and after any
   failure, the file that was there is as it was. What a killed process may leave, a file named
   .demilune-*.tmp, goes with the next file that another process writes to the folder. */
#ifndef DM_ATOMIC_FILE_H
#define DM_ATOMIC_FILE_H

#include <limits.h>

#include "base/base.h"

typedef struct dm_AtomicFile {
  const char *what;      /* first word of the messages */
  const char *path;      /* as the caller gave it, for messages; borrowed */
  char target[PATH_MAX]; /* the same with links followed */
  const char *base;      /* its last part */
  char temp[64];         /* its temporary name in dir; empty when there is none */
  int dir, fd;
} dm_AtomicFile;

#define DM_ATOMIC_FILE(WHAT, PATH) \
  { .what = (WHAT), .path = (PATH), .dir = -1, .fd = -1 }

/* Opens the folder and a new file in it, with the rights of the old file.
   Failures of this and the next two are DM_EIO. */
dm_status dm_atomic_file_open(dm_AtomicFile *d);
dm_status dm_atomic_file_write(dm_AtomicFile *d, const void *src, int64_t n_bytes);

/* A file that several processes write: the first one opens it under a temporary name, the
   others open it by that name, each writes at positions of its own and syncs, and the first one
   finishes it. */
dm_status dm_atomic_file_open_named(dm_AtomicFile *d);
dm_status dm_atomic_file_join(dm_AtomicFile *d, const char *temp);
dm_status dm_atomic_file_write_at(const dm_AtomicFile *d, const void *src, int64_t n_bytes,
                                  int64_t at);
dm_status dm_atomic_file_sync(const dm_AtomicFile *d);

/* Renames the temporary file to path: after DM_OK it has reached the disk. */
dm_status dm_atomic_file_finish(dm_AtomicFile *d);
/* Closes what is open, and removes a temporary file that was not renamed. */
void dm_atomic_file_close(dm_AtomicFile *d);

#endif
