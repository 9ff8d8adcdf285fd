/* Lists a folder with readdir and sorts it by name, because the order of readdir depends on
   the file system. fstatat is called for all entries that readdir does not call regular
   files. */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE /* d_type */
#include "data/folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/error.h"

static dm_status no_memory(const char *what, const char *path) {
  return dm_fail(DM_EMEM, "%s: out of memory for the names in '%s'", what, path);
}

/* Doubles the array when it is full; false without memory. */
static bool grow(dm_Folder *f) {
  if (f->n < f->capacity) return true;
  const int64_t capacity = dm_max_i64(2 * f->capacity, 64);
  dm_FolderEntry *entries = dm_alloc(capacity * (int64_t)sizeof *entries);
  if (!entries) return false;
  if (f->n > 0) memcpy(entries, f->entries, (size_t)f->n * sizeof *entries);
  dm_free(f->entries);
  f->entries = entries;
  f->capacity = capacity;
  return true;
}

/* Appends a copy of the name with its type and identity. */
static dm_status add(dm_Folder *f, const char *name, const struct stat *info) {
  const int64_t size = (int64_t)strlen(name) + 1;
  if (!grow(f)) return DM_EMEM;
  char *copy = dm_alloc(size);
  if (!copy) return DM_EMEM;
  memcpy(copy, name, (size_t)size);
  f->entries[f->n++] = (dm_FolderEntry){.name = copy,
                                        .is_folder = S_ISDIR(info->st_mode),
                                        .device = (uint64_t)info->st_dev,
                                        .inode = (uint64_t)info->st_ino};
  return DM_OK;
}

/* Fills info->st_mode and, for a folder, the rest; false when the entry is not to be listed.
   A regular file costs no system call: its d_type is enough. */
static bool look_at(int folder, const struct dirent *e, struct stat *info) {
  if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) return false;
  *info = (struct stat){.st_mode = S_IFREG};
  if (e->d_type == DT_REG) return true;
  return fstatat(folder, e->d_name, info, 0) == 0 &&
         (S_ISDIR(info->st_mode) || S_ISREG(info->st_mode));
}

/* The order of strcmp, so that a list is the same under every locale. */
static int by_name(const void *a, const void *b) {
  return strcmp(((const dm_FolderEntry *)a)->name, ((const dm_FolderEntry *)b)->name);
}

dm_status dm_folder_read(dm_Folder *out, const char *what, const char *path) {
  dm_status st = DM_OK;
  struct stat info;
  *out = (dm_Folder){0};
  DIR *d = opendir(path);
  if (!d) return dm_fail(DM_EIO, "%s: cannot open '%s': %s", what, path, strerror(errno));
  for (;;) {
    errno = 0;
    const struct dirent *e = readdir(d);
    if (!e) break;
    if (!look_at(dirfd(d), e, &info)) continue;
    if ((st = add(out, e->d_name, &info)) != DM_OK) {
      st = no_memory(what, path);
      goto done;
    }
  }
  if (errno != 0) st = dm_fail(DM_EIO, "%s: cannot read '%s': %s", what, path, strerror(errno));
  if (out->n > 0) qsort(out->entries, (size_t)out->n, sizeof *out->entries, by_name);
done:
  closedir(d);
  return st;
}

void dm_folder_free(dm_Folder *f) {
  while (f->n > 0) dm_free(f->entries[--f->n].name);
  dm_free(f->entries);
  *f = (dm_Folder){0};
}
