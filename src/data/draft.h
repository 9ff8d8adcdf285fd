/* A file in the making: written beside its target, whose name it takes when
   all of it is on the disk. Until then, and after any failure, the file that
   was there is as it was. */
#ifndef DM_DRAFT_H
#define DM_DRAFT_H

#include <limits.h>

#include "base/base.h"

typedef struct dm_Draft {
  const char *what;      /* first word of the messages */
  const char *path;      /* as the caller gave it, for messages; borrowed */
  char target[PATH_MAX]; /* the same with links followed */
  const char *base;      /* its last part */
  char temp[64];         /* name of the draft in dir; empty when there is none */
  int dir, fd;
} dm_Draft;

#define DM_DRAFT(WHAT, PATH) \
  { .what = (WHAT), .path = (PATH), .dir = -1, .fd = -1 }

/* Opens the folder and a new file in it, with the rights of the old file.
   Failures of this and the next two are DM_EIO. */
dm_status dm_draft_open(dm_Draft *d);
dm_status dm_draft_write(dm_Draft *d, const void *src, int64_t n_bytes);
/* Makes the draft the file: after DM_OK it has reached the disk. */
dm_status dm_draft_finish(dm_Draft *d);
/* Closes what is open; a draft that did not become the file is removed. */
void dm_draft_close(dm_Draft *d);

#endif
