/* Preloaded into a program by the kill tests: SIGKILL at the n-th of the calls by which a file
   is replaced, before it (KILL_AT=n) or after it (KILL_AFTER=n). A write that is to be killed
   after stops halfway. KILL_NO_TMPFILE makes the file system one without O_TMPFILE. While there
   is a file FULL_FILE.R, the disk is full for rank R of a job. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static int count;

static int number(const char *name) {
  const char *text = getenv(name);
  return text ? atoi(text) : -1;
}

/* Counts only while the program has said that it saves, by the environment variable. */
static int before(void) {
  if (!getenv("KILL_NOW")) return -2;
  count++;
  if (count == number("KILL_AT")) kill(getpid(), SIGKILL);
  return count;
}
static void after(int n) {
  if (n == number("KILL_AFTER")) kill(getpid(), SIGKILL);
}

#define REAL(NAME) ((__typeof__(&NAME))dlsym(RTLD_NEXT, #NAME))
#define WRAP(NAME, PARAMETERS, ...)             \
  int NAME PARAMETERS {                         \
    const int n = before();                     \
    const int result = REAL(NAME)(__VA_ARGS__); \
    after(n);                                   \
    return result;                              \
  }

WRAP(fsync, (int fd), fd)
WRAP(fchmod, (int fd, mode_t mode), fd, mode)
WRAP(flock, (int fd, int how), fd, how)
WRAP(linkat, (int a, const char *from, int b, const char *to, int flags), a, from, b, to, flags)
WRAP(renameat, (int a, const char *from, int b, const char *to), a, from, b, to)
WRAP(unlinkat, (int dir, const char *name, int flags), dir, name, flags)

ssize_t write(int fd, const void *bytes, size_t size) {
  const int n = before();
  if (n == number("KILL_AFTER")) size /= 2;
  const ssize_t result = REAL(write)(fd, bytes, size);
  after(n);
  return result;
}

/* Whether the disk is full for this rank. */
static int is_full(void) {
  char path[4096];
  const char *file = getenv("FULL_FILE"), *rank = getenv("OMPI_COMM_WORLD_RANK");
  if (!rank) rank = getenv("PMI_RANK");
  if (!file || !rank) return 0;
  snprintf(path, sizeof path, "%s.%s", file, rank);
  return access(path, F_OK) == 0;
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t at) {
  const int n = before();
  if (is_full()) {
    errno = ENOSPC;
    return -1;
  }
  if (n == number("KILL_AFTER")) size /= 2;
  const ssize_t result = REAL(pwrite)(fd, bytes, size, at);
  after(n);
  return result;
}

int openat(int dir, const char *name, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  const int n = before();
  const int result = REAL(openat)(dir, name, flags, mode);
  after(n);
  return result;
}

int open(const char *name, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const int unnamed = (flags & O_TMPFILE) == O_TMPFILE;
  const mode_t mode = flags & O_CREAT || unnamed ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  if (unnamed && getenv("KILL_NO_TMPFILE")) {
    errno = EOPNOTSUPP;
    return -1;
  }
  const int n = before();
  const int result = REAL(open)(name, flags, mode);
  after(n);
  return result;
}
