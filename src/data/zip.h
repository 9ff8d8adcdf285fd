/* Zip archives, as NumPy's .npz and PyTorch's .pt are: entries that are stored or deflated.
   Format: PKWARE, "APPNOTE.TXT - .ZIP file format specification", version 6.3.10. */
#ifndef DM_ZIP_H
#define DM_ZIP_H

#include "demilune.h"

typedef struct dm_ZipEntry {
  const char *name;           /* ends with NUL; holds none */
  int64_t n_bytes;            /* of the entry when it is unpacked */
  int64_t head, at, n_packed; /* in the file: its head, its data */
  uint32_t crc;
  bool deflated;
} dm_ZipEntry;

typedef struct dm_Zip dm_Zip;

/* Opens an archive and checks all of it but the data: once this is DM_OK, every entry lies
   inside the file, beside the others, under a name of its own, and all of them unpacked are at
   most 1 GiB or 100 times the file. Close with dm_zip_close. A bad file gives DM_EIO. */
DM_API dm_status dm_zip_open(dm_Zip **out, const char *path);
DM_API void dm_zip_close(dm_Zip **zip); /* sets *zip to NULL; NULL is fine */

/* Borrowed, valid until dm_zip_close: the entries in the order of the directory. */
DM_API const dm_ZipEntry *dm_zip_get_entries(const dm_Zip *zip, int64_t *n);

/* dst (e->n_bytes) = the bytes of one of zip's own entries, whose checksum must be right; one
   of 0 means that the writer took none, as PyTorch can be told. Threads may share zip. */
DM_API dm_status dm_zip_read(const dm_Zip *zip, const dm_ZipEntry *e, void *dst);

#endif
