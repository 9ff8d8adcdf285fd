/* Lists the names of the files and folders in a folder. */
#ifndef DM_FOLDER_H
#define DM_FOLDER_H

#include "base/base.h"

typedef struct dm_FolderEntry {
  char *name;
  bool is_folder;         /* or else a regular file; links are followed */
  uint64_t device, inode; /* of a folder: two names may lead to one */
} dm_FolderEntry;

typedef struct dm_Folder {
  dm_FolderEntry *entries; /* by name, in the order of bytes */
  int64_t n, capacity;
} dm_Folder;

/* Folders and regular files in a folder, but for "." and "..". `what` begins the message
   of a failure, DM_EIO or DM_EMEM; dm_folder_free comes after it, too. */
DM_API dm_status dm_folder_read(dm_Folder *out, const char *what, const char *path);
DM_API void dm_folder_free(dm_Folder *folder);

#endif
