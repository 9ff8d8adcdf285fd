/* Opens a regular file, which any thread then reads at any offset. `what` is the first word
   of the messages, `path` as the caller gave it. Failures are DM_EIO. */
#ifndef DM_FILE_H
#define DM_FILE_H

#include "base/base.h"

/* The caller closes *fd. A pipe is refused and not waited for. */
dm_status dm_file_open(const char *what, const char *path, int *fd, int64_t *n_bytes);
/* Reads n bytes at `offset`, all of them: a file that became shorter is a failure. */
dm_status dm_file_read(const char *what, const char *path, int fd, void *dst, int64_t n,
                       int64_t offset);

#endif
