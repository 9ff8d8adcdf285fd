/* Files that are replaced as a whole: a new file in the target's folder is written, synced and
   given the target's name, then the folder is synced.

   Where the file system has O_TMPFILE the new file has no name until it is whole, so that a
   killed process leaves nothing. linkat() names it; it replaces no file, so that an old one is
   replaced by way of a temporary name and rename(). Elsewhere the file has a temporary name
   from the start. Temporary names are random: process ids repeat in containers. Their file is
   locked by flock() while its process lives, and the first file that a process writes to a
   folder removes those that nobody locks. */
#define _GNU_SOURCE /* O_TMPFILE, realpath, flock */
#include "data/atomic_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/rng.h"

enum {
  MAX_TRANSFER = 1 << 30, /* bytes of one write call */
  TRIES = 100,            /* names that may be taken */
  FD_PATH = 32            /* bytes of "/proc/self/fd/N" */
};

static const char PREFIX[] = ".demilune-", SUFFIX[] = ".tmp";
enum { DIGITS = 16, NAME_LENGTH = sizeof PREFIX - 1 + DIGITS + sizeof SUFFIX - 1 };
_Static_assert(NAME_LENGTH < sizeof((dm_AtomicFile *)0)->temp, "a temporary name fits");

/* Records the failure of a system call, with errno's text. */
static dm_status write_fault(const dm_AtomicFile *d, const char *what) {
  return dm_fail(DM_EIO, "%s: cannot write '%s': %s%s", d->what, d->path, what,
                 strerror(errno));
}

/* ---- temporary names ---- */

/* Writes a name that no other writer is likely to have; O_EXCL and linkat() refuse one that is
   taken. */
static void make_name(char *name, size_t size) {
  static atomic_uint_least64_t count;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  uint64_t state = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
  state = dm_splitmix64(&state) ^ (uint64_t)getpid();
  state = dm_splitmix64(&state) ^ atomic_fetch_add(&count, 1);
  snprintf(name, size, "%s%016" PRIx64 "%s", PREFIX, dm_splitmix64(&state), SUFFIX);
}

static bool is_our_name(const char *name) {
  const size_t n = sizeof PREFIX - 1;
  return strlen(name) == NAME_LENGTH && memcmp(name, PREFIX, n) == 0 &&
         strspn(name + n, "0123456789abcdef") == DIGITS &&
         strcmp(name + n + DIGITS, SUFFIX) == 0;
}

/* Removes a temporary file unless its writer lives. Should the name have passed to another
   file in between, that one stays. */
static void remove_dead(int dir, const char *name) {
  struct stat locked, named;
  const int fd = openat(dir, name, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return;
  if (fstat(fd, &locked) == 0 && S_ISREG(locked.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0 &&
      fstatat(dir, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && named.st_ino == locked.st_ino &&
      named.st_dev == locked.st_dev)
    unlinkat(dir, name, 0);
  close(fd);
}

/* Whether this process wrote to another folder last, or to none. A loop that writes many files
   to one folder lists it once. */
static bool is_new_folder(int dir) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static struct stat last;
  static bool any;
  struct stat info;
  if (fstat(dir, &info) != 0) return false;
  pthread_mutex_lock(&lock);
  const bool is_new = !any || info.st_ino != last.st_ino || info.st_dev != last.st_dev;
  last = info;
  any = true;
  pthread_mutex_unlock(&lock);
  return is_new;
}

/* Removes what killed processes left in the folder. It fails silently: the file that is to be
   written needs none of it. */
static void remove_leftovers(int dir) {
  if (!is_new_folder(dir)) return;
  const int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *list = fd < 0 ? NULL : fdopendir(fd);
  if (!list) {
    if (fd >= 0) close(fd);
    return;
  }
  for (const struct dirent *e; (e = readdir(list));)
    if (is_our_name(e->d_name)) remove_dead(dir, e->d_name);
  closedir(list);
}

/* ---- the new file ---- */

/* Locks the new file, as a sign of life; false where another process removes it just now. A
   file system without locks is fine: nobody can lock a leftover there either. */
static bool lock_file(int fd) {
  struct stat info;
  if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
  return fstat(fd, &info) == 0 && info.st_nlink > 0;
}

/* The path under which linkat() finds an open file without a name. */
static void path_of(int fd, char *path) { snprintf(path, FD_PATH, "/proc/self/fd/%d", fd); }

/* Opens a file without a name; false where the file system or /proc are not for it. */
static bool open_unnamed(dm_AtomicFile *d, const char *folder) {
#ifdef O_TMPFILE
  char path[FD_PATH];
  d->fd = open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  if (d->fd < 0) return false;
  path_of(d->fd, path);
  if (access(path, F_OK) == 0) {
    flock(d->fd, LOCK_EX | LOCK_NB);
    return true;
  }
  close(d->fd);
  d->fd = -1;
#else
  DM_UNUSED(d);
  DM_UNUSED(folder);
#endif
  return false;
}

/* Opens a file under a temporary name. */
static dm_status open_named(dm_AtomicFile *d) {
  for (int i = 0; i < TRIES; i++) {
    make_name(d->temp, sizeof d->temp);
    d->fd = openat(d->dir, d->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (d->fd < 0 && errno == EEXIST) continue;
    if (d->fd < 0) break;
    if (lock_file(d->fd)) return DM_OK;
    close(d->fd);
    d->fd = -1;
    unlinkat(d->dir, d->temp, 0);
  }
  d->temp[0] = '\0';
  return write_fault(d, "a temporary file beside it: ");
}

/* Finds the target, and opens its folder. Links are resolved first, so that the file behind a
   link is replaced and not the link. *old: the file that is there, where *exists. */
static dm_status open_folder(dm_AtomicFile *d, char *folder, struct stat *old, bool *exists) {
  *exists = stat(d->path, old) == 0;
  if (*exists && !S_ISREG(old->st_mode))
    return dm_fail(DM_EIO, "%s: cannot write '%s': it is not a regular file", d->what, d->path);
  if (strlen(d->path) >= sizeof d->target) {
    errno = ENAMETOOLONG;
    return write_fault(d, "");
  }
  if (!*exists || !realpath(d->path, d->target)) strcpy(d->target, d->path);
  char *slash = strrchr(d->target, '/');
  d->base = slash ? slash + 1 : d->target;
  if (*d->base == '\0')
    return dm_fail(DM_EIO, "%s: cannot write '%s': it names a folder or nothing", d->what,
                   d->path);
  strcpy(folder, ".");
  if (slash) {
    const size_t n = slash == d->target ? 1 : (size_t)(slash - d->target);
    memcpy(folder, d->target, n);
    folder[n] = '\0';
  }
  d->dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return d->dir < 0 ? write_fault(d, "its folder: ") : DM_OK;
}

/* Opens the new file; named: under a temporary name in any case. */
static dm_status open_new(dm_AtomicFile *d, bool named) {
  struct stat old;
  bool exists;
  char folder[PATH_MAX];
  DM_TRY(open_folder(d, folder, &old, &exists));
  remove_leftovers(d->dir);
  if (named || !open_unnamed(d, folder)) DM_TRY(open_named(d));
  if (exists && fchmod(d->fd, old.st_mode & 0777) != 0) return write_fault(d, "");
  return DM_OK;
}

dm_status dm_atomic_file_open(dm_AtomicFile *d) { return open_new(d, false); }
dm_status dm_atomic_file_open_named(dm_AtomicFile *d) { return open_new(d, true); }

/* d->temp stays empty: the process that made the file removes it. */
dm_status dm_atomic_file_join(dm_AtomicFile *d, const char *temp) {
  struct stat old;
  bool exists;
  char folder[PATH_MAX];
  if (!is_our_name(temp))
    return dm_fail(DM_EARG, "%s: '%s' is no temporary name", d->what, temp);
  DM_TRY(open_folder(d, folder, &old, &exists));
  d->fd = openat(d->dir, temp, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
  return d->fd < 0 ? write_fault(d, "a temporary file of another process: ") : DM_OK;
}

dm_status dm_atomic_file_write_at(const dm_AtomicFile *d, const void *src, int64_t n,
                                  int64_t at) {
  for (int64_t done = 0; done < n;) {
    const size_t want = (size_t)dm_min_i64(n - done, MAX_TRANSFER);
    errno = ENOSPC; /* should the system take nothing and name no cause */
    const ssize_t put = pwrite(d->fd, (const char *)src + done, want, (off_t)(at + done));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return write_fault(d, "");
    done += put;
  }
  return DM_OK;
}

dm_status dm_atomic_file_sync(const dm_AtomicFile *d) {
  return fsync(d->fd) != 0 ? write_fault(d, "") : DM_OK;
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

/* Gives the file without a name the target's, or a temporary one where the target exists. */
static dm_status name_file(dm_AtomicFile *d) {
  char path[FD_PATH];
  path_of(d->fd, path);
  if (linkat(AT_FDCWD, path, d->dir, d->base, AT_SYMLINK_FOLLOW) == 0) return DM_OK;
  for (int i = 0; i < TRIES && errno == EEXIST; i++) {
    make_name(d->temp, sizeof d->temp);
    if (linkat(AT_FDCWD, path, d->dir, d->temp, AT_SYMLINK_FOLLOW) == 0) return DM_OK;
  }
  d->temp[0] = '\0';
  return write_fault(d, "");
}

/* The order that survives a power cut: bytes to the disk, then the name, then the folder. File
   systems that cannot sync a folder answer EINVAL. The file stays open, and its lock held,
   until it has its last name. */
dm_status dm_atomic_file_finish(dm_AtomicFile *d) {
  if (fsync(d->fd) != 0) return write_fault(d, "");
  if (!d->temp[0]) DM_TRY(name_file(d));
  if (d->temp[0] && renameat(d->dir, d->temp, d->dir, d->base) != 0) return write_fault(d, "");
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
  if (d->temp[0]) unlinkat(d->dir, d->temp, 0);
  if (d->fd >= 0) close(d->fd);
  if (d->dir >= 0) close(d->dir);
}
