/* Opens regular files and reads them by pread, which threads may do at the same time. */
#define _POSIX_C_SOURCE 200809L
#include "data/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

enum { MAX_TRANSFER = 1 << 30 }; /* bytes of one call */

/* O_NONBLOCK makes the opening of a pipe return at once; a pipe is then refused by its
   type. */
dm_status dm_file_open(const char *what, const char *path, int *fd, int64_t *n_bytes) {
  struct stat info;
  *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (*fd < 0) return dm_fail(DM_EIO, "%s: cannot open '%s': %s", what, path, strerror(errno));
  dm_status st = DM_OK;
  if (fstat(*fd, &info) != 0)
    st = dm_fail(DM_EIO, "%s: cannot open '%s': %s", what, path, strerror(errno));
  else if (!S_ISREG(info.st_mode))
    st = dm_fail(DM_EIO, "%s: '%s' is not a regular file", what, path);
  if (st == DM_OK) {
    *n_bytes = info.st_size;
  } else {
    close(*fd);
    *fd = -1;
  }
  return st;
}

/* A read may give fewer bytes than wanted, so it is repeated; 0 bytes mean the end of the
   file. */
dm_status dm_file_read(const char *what, const char *path, int fd, void *dst, int64_t n,
                       int64_t offset) {
  for (int64_t have = 0; have < n;) {
    const size_t want = (size_t)dm_min_i64(n - have, MAX_TRANSFER);
    const ssize_t got = pread(fd, (char *)dst + have, want, (off_t)(offset + have));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return dm_fail(DM_EIO, "%s: cannot read '%s': %s", what, path, strerror(errno));
    if (got == 0)
      return dm_fail(DM_EIO, "%s: '%s' became shorter while it was read", what, path);
    have += got;
  }
  return DM_OK;
}
