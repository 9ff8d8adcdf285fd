/* Finished plans of a library on disk, one file each, so that the next process need not compile
   them: $XDG_CACHE_HOME/demilune (or ~/.cache/demilune), and in it a folder for each version of
   the library and model of GPU.

   A file only saves time. It is read if it is a regular file of the user that nobody else may
   write, and holds what it says: its length, the key that is asked for, and the check sum. It
   is written under another name first, so that a reader sees all of it or nothing. Where the
   folder cannot be written, nothing is. */
#ifndef DM_KERNELS_PLAN_FILES_H
#define DM_KERNELS_PLAN_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DM_PATH_BYTES = 1024 };

/* Bytes of a plan's text, and of all files in a folder: where they are more, the oldest go. */
enum { DM_PLAN_FILE_BYTES = 4 << 20, DM_PLAN_FOLDER_BYTES = 256 << 20 };

/* The cache's folder in out[DM_PATH_BYTES], made if make_it; false if there is none. */
bool dm_plan_cache(char *out, bool make_it);

/* Names a plan: the folder within the cache, the key's hash, and the key itself. */
typedef struct dm_PlanFile {
  const char *folder;
  uint64_t name;
  const void *key;
  int64_t key_bytes;
} dm_PlanFile;

/* Returns the plan's text of *n bytes, which free() frees; NULL if there is none. */
char *dm_plan_read(const dm_PlanFile *f, int64_t *n);
/* Whether there is such a file, whatever it holds. */
bool dm_plan_exists(const dm_PlanFile *f);
/* Keeps a plan's text. Failures are ignored. */
void dm_plan_write(const dm_PlanFile *f, const char *text, int64_t n);
/* Removes a plan that turned out not to work. */
void dm_plan_remove(const dm_PlanFile *f);

#endif
