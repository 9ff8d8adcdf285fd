/* safetensors files: named dense tensors and string metadata.
   Layout: 8 bytes length of the header (least significant first), the header
   {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]},
    ..., "__metadata__": {"key": "value", ...}} in JSON, then the data.
   Format: https://github.com/huggingface/safetensors */
#ifndef DM_SAFETENSORS_H
#define DM_SAFETENSORS_H

#include "base/dtype.h"

typedef struct dm_StEntry {
  const char *name; /* UTF-8 */
  dm_DType dtype;
  int n_dim;
  int64_t shape[DM_MAX_DIM];
  int64_t offset, n_bytes; /* in the data; set by the reader, not asked by
                              the writer */
} dm_StEntry;

typedef struct dm_StPair {
  const char *key, *value; /* UTF-8 */
} dm_StPair;

typedef struct dm_StFile dm_StFile;

/* Opens a file and checks all of it but the data: once this is DM_OK, every
   entry is sound and lies inside the file. Close with dm_st_close. */
DM_API dm_status dm_st_open(dm_StFile **out, const char *path);
DM_API void dm_st_close(dm_StFile **f); /* sets *f to NULL; NULL is fine */

/* Borrowed, valid until dm_st_close: the tensors by rising offset, and the
   metadata in the order of the file, without checksums. */
DM_API const dm_StEntry *dm_st_get_entries(const dm_StFile *f, int64_t *n);
DM_API const dm_StPair *dm_st_get_pairs(const dm_StFile *f, int64_t *n);

/* dst (e->n_bytes) = the data of one of f's own entries, compared with its checksum where the
   file has one: DM_EIO names a damaged tensor. Threads may share f. */
DM_API dm_status dm_st_read(const dm_StFile *f, const dm_StEntry *e, void *dst);

/* Writes n tensors (data[i]: dense bytes of entries[i]) and n_pairs of
   metadata. All or nothing: after a failure the file that was there is still
   there, and after DM_OK the new one has reached the disk. Tensors are laid
   out by falling element size, then by name, so that each is aligned, metadata by its keys.
   `checked` adds checksums to the metadata, which other programs pass over. */
DM_API dm_status dm_st_write(const char *path, const dm_StEntry *entries,
                             const void *const *data, int64_t n, const dm_StPair *pairs,
                             int64_t n_pairs, bool checked);

#endif
