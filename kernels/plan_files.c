/* See plan_files.h. One file holds one plan, whose name is a hash of what the plan is for, so
   that two programs need no lock: each reads a whole file or none, and who writes last wins.

   A file is data that anyone may have written, and it ends up in a library that runs it. So it
   counts only if it is an ordinary file of this user that others cannot write, has the length
   that its head says, the key of this very plan (a name may collide) and the right sum. What
   the text means is for the library to check; a file that it refuses is removed by the caller.

   The folder is bounded by its bytes. The file that was written longest ago goes first: reading
   a plan does not make it younger, for that would be a write for each plan of each program. */
#include "kernels/plan_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* $XDG_CACHE_HOME/demilune or ~/.cache/demilune. */
bool dm_plan_cache(char *out, bool make_it) {
  const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  const bool given = base && base[0] == '/';
  const int n = given  ? snprintf(out, DM_PATH_BYTES, "%s", base)
                : home ? snprintf(out, DM_PATH_BYTES, "%s/.cache", home)
                       : -1;
  if (n < 0 || n + 16 > DM_PATH_BYTES) return false;
  if (make_it) (void)mkdir(out, 0777);
  memcpy(out + n, "/demilune", sizeof "/demilune");
  return !make_it || mkdir(out, 0777) == 0 || errno == EEXIST;
}

/* A file starts with this; the key and the text follow. */
typedef struct Header {
  char magic[8];
  int64_t key_bytes, text_bytes;
  uint64_t sum; /* of the key and the text */
} Header;
static const char MAGIC[8] = "dmplan1";

/* FNV-1a of 64 bits, going on from h (G. Fowler, L. C. Noll & K.-P. Vo 1991). */
static uint64_t sum_of(uint64_t h, const void *bytes, int64_t n) {
  const unsigned char *p = bytes;
  for (int64_t i = 0; i < n; i++) h = (h ^ p[i]) * UINT64_C(0x100000001b3);
  return h;
}
/* It finds files that a full disk or a crash has cut, and flipped bits; it is no signature. */
static uint64_t check_sum(const dm_PlanFile *f, const char *text, int64_t n) {
  return sum_of(sum_of(UINT64_C(0xcbf29ce484222325), f->key, f->key_bytes), text, n);
}

/* The file's path, or that of a temporary one (mkstemp) beside it. */
static bool path_of(const dm_PlanFile *f, const char *ending, bool make_it, char *out) {
  char cache[DM_PATH_BYTES];
  if (!dm_plan_cache(cache, make_it)) return false;
  int n = snprintf(out, DM_PATH_BYTES, "%s/%s", cache, f->folder);
  if (n < 0 || n >= DM_PATH_BYTES) return false;
  if (make_it && mkdir(out, 0700) != 0 && errno != EEXIST) return false;
  const int m =
      snprintf(out + n, (size_t)(DM_PATH_BYTES - n), "/%016" PRIx64 "%s", f->name, ending);
  return m > 0 && m < DM_PATH_BYTES - n;
}

/* Reads exactly n bytes. */
static bool read_all(int file, void *out, int64_t n) {
  char *p = out;
  while (n > 0) {
    const ssize_t got = read(file, p, (size_t)n);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    p += got;
    n -= got;
  }
  return true;
}
/* Writes exactly n bytes. */
static bool write_all(int file, const void *bytes, int64_t n) {
  const char *p = bytes;
  while (n > 0) {
    const ssize_t put = write(file, p, (size_t)n);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    p += put;
    n -= put;
  }
  return true;
}

/* The text of an open file, if the file is what it should be. */
static char *read_text(int file, const dm_PlanFile *f, int64_t *n) {
  struct stat s;
  Header h;
  if (fstat(file, &s) != 0 || !S_ISREG(s.st_mode) || s.st_uid != geteuid() ||
      (s.st_mode & (S_IWGRP | S_IWOTH)) || !read_all(file, &h, sizeof h) ||
      memcmp(h.magic, MAGIC, sizeof MAGIC) != 0 || h.key_bytes != f->key_bytes ||
      h.text_bytes <= 0 || h.text_bytes > DM_PLAN_FILE_BYTES ||
      s.st_size != (int64_t)sizeof h + h.key_bytes + h.text_bytes)
    return NULL;
  const int64_t bytes = h.key_bytes + h.text_bytes;
  char *all = malloc((size_t)bytes);
  if (all && read_all(file, all, bytes) && memcmp(all, f->key, (size_t)h.key_bytes) == 0 &&
      check_sum(f, all + h.key_bytes, h.text_bytes) == h.sum) {
    memmove(all, all + h.key_bytes, (size_t)h.text_bytes);
    *n = h.text_bytes;
    return all;
  }
  free(all);
  return NULL;
}

/* A link in the file's position is not followed, and a FIFO does not make us wait. */
char *dm_plan_read(const dm_PlanFile *f, int64_t *n) {
  char path[DM_PATH_BYTES];
  const int file = path_of(f, "", false, path)
                       ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)
                       : -1;
  if (file < 0) return NULL;
  char *text = read_text(file, f, n);
  close(file);
  return text;
}

bool dm_plan_exists(const dm_PlanFile *f) {
  char path[DM_PATH_BYTES];
  return path_of(f, "", false, path) && access(path, F_OK) == 0;
}

void dm_plan_remove(const dm_PlanFile *f) {
  char path[DM_PATH_BYTES];
  if (path_of(f, "", false, path)) (void)unlink(path);
}

/* ---- the folder's size ---- */

/* The bytes of all files in the folder; the oldest one's name goes to oldest[NAME_BYTES]. Files
   that a writer left unfinished count and age like the others. */
enum { NAME_BYTES = 64 };
static int64_t bytes_in(int folder, char *oldest) {
  const int again = dup(folder);
  DIR *list = again < 0 ? NULL : fdopendir(again);
  if (!list) {
    if (again >= 0) close(again);
    return 0;
  }
  rewinddir(list);
  int64_t bytes = 0;
  struct timespec least = {0};
  oldest[0] = '\0';
  for (struct dirent *e; (e = readdir(list));) {
    struct stat s;
    if (strlen(e->d_name) >= NAME_BYTES ||
        fstatat(folder, e->d_name, &s, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(s.st_mode))
      continue;
    bytes += s.st_size;
    if (*oldest && (s.st_mtim.tv_sec > least.tv_sec ||
                    (s.st_mtim.tv_sec == least.tv_sec && s.st_mtim.tv_nsec >= least.tv_nsec)))
      continue;
    least = s.st_mtim;
    memcpy(oldest, e->d_name, strlen(e->d_name) + 1);
  }
  closedir(list);
  return bytes;
}

/* Removes the oldest files until `more` bytes fit. */
static void drop_oldest(const char *path, int64_t more) {
  char folder[DM_PATH_BYTES], oldest[NAME_BYTES];
  memcpy(folder, path, strlen(path) + 1);
  *strrchr(folder, '/') = '\0';
  const int file = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;
  while (bytes_in(file, oldest) + more > DM_PLAN_FOLDER_BYTES && *oldest &&
         unlinkat(file, oldest, 0) == 0)
    continue;
  close(file);
}

/* The file appears whole or not at all: it gets its name by rename(). A failure, such as a full
   or read-only disk, costs the next program the time to make the plan, and is not told. */
void dm_plan_write(const dm_PlanFile *f, const char *text, int64_t n) {
  char path[DM_PATH_BYTES], temporary[DM_PATH_BYTES];
  if (n <= 0 || n > DM_PLAN_FILE_BYTES || !path_of(f, "", true, path) ||
      !path_of(f, ".XXXXXX", true, temporary))
    return;
  Header h = {.key_bytes = f->key_bytes, .text_bytes = n, .sum = check_sum(f, text, n)};
  memcpy(h.magic, MAGIC, sizeof MAGIC);
  drop_oldest(path, (int64_t)sizeof h + f->key_bytes + n);
  const int file = mkstemp(temporary);
  if (file < 0) return;
  bool ok = write_all(file, &h, sizeof h) && write_all(file, f->key, f->key_bytes) &&
            write_all(file, text, n);
  ok = close(file) == 0 && ok;
  if (!ok || rename(temporary, path) != 0) (void)unlink(temporary);
}
