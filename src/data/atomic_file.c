/* Files that are replaced as a whole: a temporary file in the target's folder is written,
   synced and renamed, then the folder is synced. */
#define _POSIX_C_SOURCE 200809L
#define _XOPEN_SOURCE 700 /* realpath */
#include "data/atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

enum { MAX_TRANSFER = 1 << 30 /* bytes of one write call */ };

/* Records the failure of a system call, with errno's text. */
static dm_status write_fault(const dm_AtomicFile *d, const char *what) {
  return dm_fail(DM_EIO, "%s: cannot write '%s': %s%s", d->what, d->path, what,
                 strerror(errno));
}

/* Resolves links first, so that the file behind a link is replaced and not the link. O_EXCL
   with a number in the name keeps two writers apart. */
dm_status dm_atomic_file_open(dm_AtomicFile *d) {
  enum { TRIES = 100 };
  struct stat old;
  const bool exists = stat(d->path, &old) == 0;
  if (exists && !S_ISREG(old.st_mode))
    return dm_fail(DM_EIO, "%s: cannot write '%s': it is not a regular file", d->what, d->path);
  if (strlen(d->path) >= sizeof d->target) {
    errno = ENAMETOOLONG;
    return write_fault(d, "");
  }
  if (!exists || !realpath(d->path, d->target)) strcpy(d->target, d->path);
  char *slash = strrchr(d->target, '/');
  d->base = slash ? slash + 1 : d->target;
  if (*d->base == '\0')
    return dm_fail(DM_EIO, "%s: cannot write '%s': it names a folder or nothing", d->what,
                   d->path);
  char folder[PATH_MAX] = ".";
  if (slash) {
    const size_t n = slash == d->target ? 1 : (size_t)(slash - d->target);
    memcpy(folder, d->target, n);
    folder[n] = '\0';
  }
  d->dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (d->dir < 0) return write_fault(d, "its folder: ");
  for (int i = 0; i < TRIES && d->fd < 0; i++) {
    snprintf(d->temp, sizeof d->temp, ".%s-%ld-%d.tmp", d->what, (long)getpid(), i);
    d->fd = openat(d->dir, d->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (d->fd < 0 && errno != EEXIST) break;
  }
  if (d->fd < 0) {
    d->temp[0] = '\0';
    return write_fault(d, "a temporary file beside it: ");
  }
  if (exists && fchmod(d->fd, old.st_mode & 0777) != 0) return write_fault(d, "");
  return DM_OK;
}

/* A write may take fewer bytes than given, so it is repeated. */
dm_status dm_atomic_file_write(dm_AtomicFile *d, const void *src, int64_t n) {
  for (int64_t done = 0; done < n;) {
    const size_t want = (size_t)dm_min_i64(n - done, MAX_TRANSFER);
    errno = ENOSPC; /* should the system take nothing and name no cause */
    const ssize_t put = write(d->fd, (const char *)src + done, want);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return write_fault(d, "");
    done += put;
  }
  return DM_OK;
}

/* The order that survives a power cut: bytes to the disk, then the name, then
   the folder. File systems that cannot sync a folder answer EINVAL. */
dm_status dm_atomic_file_finish(dm_AtomicFile *d) {
  if (fsync(d->fd) != 0) return write_fault(d, "");
  const int fd = d->fd;
  d->fd = -1;
  if (close(fd) != 0) return write_fault(d, "");
  if (renameat(d->dir, d->temp, d->dir, d->base) != 0) return write_fault(d, "");
  d->temp[0] = '\0';
  if (fsync(d->dir) != 0 && errno != EINVAL)
    return dm_fail(DM_EIO,
                   "%s: '%s' is written, but its folder may not have reached the "
                   "disk: %s",
                   d->what, d->path, strerror(errno));
  return DM_OK;
}

/* After dm_atomic_file_finish nothing is left to remove: `temp` is empty then. */
void dm_atomic_file_close(dm_AtomicFile *d) {
  if (d->fd >= 0) close(d->fd);
  if (d->temp[0]) unlinkat(d->dir, d->temp, 0);
  if (d->dir >= 0) close(d->dir);
}
