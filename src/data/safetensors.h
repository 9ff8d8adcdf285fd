/* safetensors files: named dense tensors and string metadata.
   Layout: 8 bytes length of the header (least significant first), the header
   {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]},
    ..., "__metadata__": {"key": "value", ...}} in JSON, then the data.
   Format: https://github.com/huggingface/safetensors */
#ifndef DM_SAFETENSORS_H
#define DM_SAFETENSORS_H

#include "base/dtype.h"
#include "data/checksum.h"

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

/* dst (n) = bytes of the entry's data from byte `at` on, which are not compared with its
   checksum. */
DM_API dm_status dm_st_read_part(const dm_StFile *f, const dm_StEntry *e, int64_t at, int64_t n,
                                 void *dst);

/* Writes n tensors (data[i]: dense bytes of entries[i]) and n_pairs of
   metadata. All or nothing: after a failure the file that was there is still
   there, and after DM_OK the new one has reached the disk. Tensors are laid
   out by falling element size, then by name, so that each is aligned, metadata by its keys.
   `checked` adds checksums to the metadata, which other programs pass over. */
DM_API dm_status dm_st_write(const char *path, const dm_StEntry *entries,
                             const void *const *data, int64_t n, const dm_StPair *pairs,
                             int64_t n_pairs, bool checked);

/* The same file, written by several processes, each of which has some of the data. All of them
   open it with the same entries and pairs: the first one, whose `temp` is NULL, makes it, and
   the others join by its temporary name. The old file stays until the first one finishes. */
typedef struct dm_StParts dm_StParts;

DM_API dm_status dm_st_parts_open(dm_StParts **out, const char *path, const char *temp,
                                  const dm_StEntry *entries, int64_t n, const dm_StPair *pairs,
                                  int64_t n_pairs);
/* Closes it; what is not finished is removed by the first process. Sets *p to NULL. */
DM_API void dm_st_parts_close(dm_StParts **p);
/* The temporary name, valid until it is closed. */
DM_API const char *dm_st_parts_temp(const dm_StParts *p);
/* Bytes of the data of entry i (from 0, as they were given). */
DM_API int64_t dm_st_parts_bytes(const dm_StParts *p, int64_t i);
DM_API int64_t dm_st_parts_count(const dm_StParts *p);
/* The checksum of entry i before its first byte. */
DM_API dm_RunningSum dm_st_parts_begin(const dm_StParts *p, int64_t i);
/* Writes n bytes of entry i from its byte `at` on, which dm_RunningSum *sum takes in: a
   checksum needs all bytes of an entry in their order, over all processes. */
DM_API dm_status dm_st_parts_write(const dm_StParts *p, int64_t i, int64_t at, const void *src,
                                   int64_t n, dm_RunningSum *sum);
/* What this process has written reaches the disk. */
DM_API dm_status dm_st_parts_sync(const dm_StParts *p);
/* The first process, after the others have synced: writes the header with the checksums, one of
   each entry, and gives the file its name. */
DM_API dm_status dm_st_parts_finish(dm_StParts *p, const uint64_t *sums);

#endif
