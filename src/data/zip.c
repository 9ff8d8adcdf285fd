/* Reads zip archives. An archive is described twice, by a directory at its end and by a head
   before each entry, and what reads one of them can be shown other data than what reads the
   other. So the directory is believed only where each head says the same, no two entries may
   share a byte, and none may have the name of another. Sizes are compared with the file before
   memory is asked for, and a deflated entry with what deflate can make of its bytes. */
#define _POSIX_C_SOURCE 200809L
#include "data/zip.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "data/file.h"
#include "data/inflate.h"

enum {
  HEAD_SIGN = 0x04034b50, /* before an entry */
  ENTRY_SIGN = 0x02014b50,
  END_SIGN = 0x06054b50,
  END64_SIGN = 0x06064b50,
  LOCATOR_SIGN = 0x07064b50, /* says where END64 is */
  HEAD_BYTES = 30,
  ENTRY_BYTES = 46,
  END_BYTES = 22,
  END64_BYTES = 56,
  LOCATOR_BYTES = 20,
  MAX_TEXT = 0xffff, /* of a name, a comment or an extra field */
  ENCRYPTED = 1 | 1 << 6 | 1 << 13,
  SIZES_FOLLOW = 1 << 3, /* a flag: the head has no sizes, they stand behind the data */
  STORED = 0,
  DEFLATED = 8,
  EXTRA64 = 1,         /* the extra field of numbers that do not fit into 32 bits */
  MOST_OF_BYTE = 1032, /* bytes that deflate makes of one, at most */
  MOST_GROWTH = 100    /* of an archive above FREE_BYTES */
};
static const uint32_t FULL32 = 0xffffffff;
static const int64_t FREE_BYTES = INT64_C(1) << 30;

struct dm_Zip {
  char *path;
  int fd;
  int64_t n_file, n_entries;
  dm_ZipEntry *entries;
  char *names;
};

/* The facts that the directory and the head of an entry both tell. */
typedef struct Facts {
  unsigned flags, method, n_name, n_extra;
  uint32_t crc;
  int64_t n_packed, n_bytes, head; /* head: where the entry's head begins */
} Facts;

/* ---- numbers ---- */

static uint64_t number(const uint8_t *p, int n) {
  uint64_t v = 0;
  while (n-- > 0) v = v << 8 | p[n];
  return v;
}
static unsigned u16(const uint8_t *p) { return (unsigned)number(p, 2); }
static uint32_t u32(const uint8_t *p) { return (uint32_t)number(p, 4); }

static dm_status bad(const dm_Zip *z, const char *fault) {
  return dm_fail(DM_EIO, "zip: '%s' is no sound archive: %s", z->path, fault);
}
static dm_status bad_entry(const dm_Zip *z, const char *name, const char *fault) {
  return dm_fail(DM_EIO, "zip: '%s': the entry '%s' %s", z->path, name, fault);
}
static dm_status no_memory(const dm_Zip *z) {
  return dm_fail(DM_EMEM, "zip: out of memory reading '%s'", z->path);
}
static dm_status read_at(const dm_Zip *z, void *dst, int64_t n, int64_t at) {
  return dm_file_read("zip", z->path, z->fd, dst, n, at);
}

/* ---- the directory ---- */

/* Finds the archive's end: behind it is a comment, whose length it says. *end is where the
   directory must have ended. */
static dm_status find_end(const dm_Zip *z, uint8_t *scratch, int64_t *end) {
  const int64_t n = dm_min_i64(z->n_file, END_BYTES + MAX_TEXT);
  DM_TRY(read_at(z, scratch, n, z->n_file - n));
  for (int64_t i = n - END_BYTES; i >= 0; i--)
    if (u32(scratch + i) == END_SIGN && i + END_BYTES + u16(scratch + i + 20) == n) {
      *end = z->n_file - n + i;
      memmove(scratch, scratch + i, END_BYTES);
      return DM_OK;
    }
  return bad(z, "it has no directory, as of a file that was cut");
}

/* Sets where the directory lies and how many entries it has. Archives with large numbers have
   them in a record of its own, before the end; *end then moves there. */
static dm_status read_end(const dm_Zip *z, uint8_t *scratch, int64_t *begin, int64_t *end,
                          int64_t *n) {
  DM_TRY(find_end(z, scratch, end));
  uint64_t disks = number(scratch + 4, 4), here = u16(scratch + 8), count = u16(scratch + 10);
  uint64_t size = u32(scratch + 12), at = u32(scratch + 16);
  uint8_t locator[LOCATOR_BYTES] = {0}, big[END64_BYTES];
  if (*end >= LOCATOR_BYTES) DM_TRY(read_at(z, locator, LOCATOR_BYTES, *end - LOCATOR_BYTES));
  if (u32(locator) == LOCATOR_SIGN) {
    const uint64_t big_at = number(locator + 8, 8);
    if (big_at > (uint64_t)*end || *end - (int64_t)big_at != END64_BYTES + LOCATOR_BYTES)
      return bad(z, "the end of its directory is not where it is said to be");
    DM_TRY(read_at(z, big, END64_BYTES, (int64_t)big_at));
    if (u32(big) != END64_SIGN) return bad(z, "the end of its directory is broken");
    *end = (int64_t)big_at;
    const uint64_t big_size = number(big + 40, 8), begins = number(big + 48, 8);
    if ((size != FULL32 && size != big_size) || (at != FULL32 && at != begins))
      return bad(z, "it has two directories");
    disks = number(big + 16, 8), here = number(big + 24, 8), count = number(big + 32, 8);
    size = big_size, at = begins;
  }
  if (disks != 0 || here != count) return bad(z, "it is one part of several");
  if (at > (uint64_t)*end || size != (uint64_t)*end - at || count > size / ENTRY_BYTES)
    return bad(z, "its directory is not as long as it says");
  *begin = (int64_t)at;
  *n = (int64_t)count;
  return DM_OK;
}

/* Replaces the numbers that are full by those of the extra field. False where they lack or are
   negative. */
static bool read_extra(Facts *f, const uint8_t *extra) {
  int64_t *const wide[] = {&f->n_bytes, &f->n_packed, &f->head};
  const uint8_t *end = extra + f->n_extra, *at = NULL, *at_end = NULL;
  while (end - extra >= 4 && !at) {
    const uint8_t *next = extra + 4 + u16(extra + 2);
    if (next > end) return false;
    if (u16(extra) == EXTRA64) at = extra + 4, at_end = next;
    extra = next;
  }
  for (int i = 0; i < DM_COUNT(wide); i++) {
    if (*wide[i] != FULL32) continue;
    if (!at || at_end - at < 8) return false;
    *wide[i] = (int64_t)number(at, 8);
    at += 8;
    if (*wide[i] < 0) return false;
  }
  return true;
}

/* Where the head of an entry disagrees with the directory; NULL for nowhere. */
static const char *contradiction(const Facts *own, const Facts *head) {
  if (own->flags != head->flags || own->method != head->method)
    return "is packed in one way by the directory, in another by its head";
  if (head->flags & SIZES_FOLLOW) return NULL;
  if (own->n_bytes != head->n_bytes || own->n_packed != head->n_packed)
    return "has one size in the directory, another in its head";
  return own->crc == head->crc ? NULL : "has two checksums";
}

/* Checks the entry's head and sets where its data begins. scratch has space for a head and its
   texts. */
static dm_status check_head(const dm_Zip *z, dm_ZipEntry *e, const Facts *own,
                            uint8_t *scratch) {
  const char *outside = "lies outside the archive";
  if (e->head > z->n_file - HEAD_BYTES) return bad_entry(z, e->name, outside);
  DM_TRY(read_at(z, scratch, HEAD_BYTES, e->head));
  if (u32(scratch) != HEAD_SIGN)
    return bad_entry(z, e->name, "is not where the directory says");
  Facts head = {.flags = u16(scratch + 6),
                .method = u16(scratch + 8),
                .crc = u32(scratch + 14),
                .n_packed = u32(scratch + 18),
                .n_bytes = u32(scratch + 22),
                .n_name = u16(scratch + 26),
                .n_extra = u16(scratch + 28)};
  const int64_t n_texts = (int64_t)head.n_name + head.n_extra;
  e->at = e->head + HEAD_BYTES + n_texts;
  if (e->at > z->n_file || own->n_packed > z->n_file - e->at)
    return bad_entry(z, e->name, outside);
  DM_TRY(read_at(z, scratch, n_texts, e->head + HEAD_BYTES));
  if (head.n_name != own->n_name || memcmp(scratch, e->name, own->n_name) != 0)
    return bad_entry(z, e->name, "has another name in its head");
  if (!read_extra(&head, scratch + head.n_name))
    return bad_entry(z, e->name, "has a broken head");
  const char *fault = contradiction(own, &head);
  return fault ? bad_entry(z, e->name, fault) : DM_OK;
}

/* Checks what the directory says of an entry by itself. */
static dm_status check_facts(const dm_Zip *z, const char *name, const Facts *f) {
  if (strlen(name) != f->n_name) return bad_entry(z, name, "has NUL in its name");
  if (f->flags & ENCRYPTED) return bad_entry(z, name, "is encrypted");
  if (f->method != STORED && f->method != DEFLATED)
    return dm_fail(DM_EIO,
                   "zip: '%s': the entry '%s' is packed by method %u, which is not read",
                   z->path, name, f->method);
  if (f->n_packed > z->n_file) return bad_entry(z, name, "is larger than the archive");
  if (f->method == STORED ? f->n_bytes != f->n_packed : f->n_bytes / MOST_OF_BYTE > f->n_packed)
    return dm_fail(DM_EIO,
                   "zip: '%s': the entry '%s' says that %" PRId64 " bytes unpack to %" PRId64
                   ", which they cannot",
                   z->path, name, f->n_packed, f->n_bytes);
  return DM_OK;
}

/* Reads the directory's n entries; *names gets their names, one after another. */
static dm_status read_entries(dm_Zip *z, const uint8_t *p, const uint8_t *end,
                              uint8_t *scratch) {
  char *name = z->names;
  int64_t left = dm_max_i64(FREE_BYTES, MOST_GROWTH * z->n_file);
  for (int64_t i = 0; i < z->n_entries; i++) {
    if (end - p < ENTRY_BYTES || u32(p) != ENTRY_SIGN) return bad(z, "its directory is broken");
    Facts f = {.flags = u16(p + 8),
               .method = u16(p + 10),
               .crc = u32(p + 16),
               .n_packed = u32(p + 20),
               .n_bytes = u32(p + 24),
               .n_name = u16(p + 28),
               .n_extra = u16(p + 30),
               .head = u32(p + 42)};
    const unsigned n_comment = u16(p + 32);
    p += ENTRY_BYTES;
    if (end - p < (int64_t)f.n_name + f.n_extra + n_comment || !read_extra(&f, p + f.n_name))
      return bad(z, "its directory is broken");
    memcpy(name, p, f.n_name);
    name[f.n_name] = '\0';
    dm_ZipEntry *e = &z->entries[i];
    *e = (dm_ZipEntry){.name = name,
                       .n_bytes = f.n_bytes,
                       .head = f.head,
                       .n_packed = f.n_packed,
                       .crc = f.crc,
                       .deflated = f.method == DEFLATED};
    DM_TRY(check_facts(z, name, &f));
    DM_TRY(check_head(z, e, &f, scratch));
    if (f.n_bytes > left)
      return dm_fail(DM_EIO,
                     "zip: '%s' of %" PRId64 " bytes would unpack to more than %d times that, "
                     "as a zip bomb does",
                     z->path, z->n_file, MOST_GROWTH);
    left -= f.n_bytes;
    name += f.n_name + 1;
    p += f.n_name + f.n_extra + n_comment;
  }
  return p == end ? DM_OK : bad(z, "its directory holds more than its entries");
}

/* ---- entries beside each other ---- */

static int by_head(const void *a, const void *b) {
  const dm_ZipEntry *x = *(dm_ZipEntry *const *)a, *y = *(dm_ZipEntry *const *)b;
  return (x->head > y->head) - (x->head < y->head);
}
static int by_name(const void *a, const void *b) {
  return strcmp((*(dm_ZipEntry *const *)a)->name, (*(dm_ZipEntry *const *)b)->name);
}

/* No two entries share a byte or a name, and all lie before the directory. */
static dm_status check_apart(const dm_Zip *z, int64_t directory) {
  dm_status st = DM_OK;
  const int64_t n = z->n_entries;
  const dm_ZipEntry **order = dm_alloc((n + 1) * (int64_t)sizeof *order);
  if (!order) return no_memory(z);
  for (int64_t i = 0; i < n; i++) order[i] = &z->entries[i];
  qsort(order, (size_t)n, sizeof *order, by_head);
  for (int64_t i = 0; i < n && st == DM_OK; i++) {
    const dm_ZipEntry *e = order[i], *next = i + 1 < n ? order[i + 1] : NULL;
    if (e->at + e->n_packed > (next ? next->head : directory))
      st = dm_fail(DM_EIO, "zip: '%s': the entry '%s' overlaps %s%s%s", z->path, e->name,
                   next ? "'" : "the ", next ? next->name : "directory", next ? "'" : "");
  }
  qsort(order, (size_t)n, sizeof *order, by_name);
  for (int64_t i = 1; i < n && st == DM_OK; i++)
    if (strcmp(order[i - 1]->name, order[i]->name) == 0)
      st = bad_entry(z, order[i]->name, "is there twice");
  dm_free(order);
  return st;
}

/* ---- archives ---- */

static dm_status read_directory(dm_Zip *z) {
  dm_status st = DM_OK;
  int64_t begin = 0, end = 0;
  uint8_t *directory = NULL, *scratch = dm_alloc(HEAD_BYTES + 2 * MAX_TEXT);
  if (!scratch) return no_memory(z);
  DM_GO(read_end(z, scratch, &begin, &end, &z->n_entries));
  directory = dm_alloc(end - begin + 1);
  z->names = dm_alloc(end - begin + 1); /* a name and NUL take less than an entry */
  z->entries = dm_alloc_zero((z->n_entries + 1) * (int64_t)sizeof *z->entries);
  if (!directory || !z->names || !z->entries) {
    st = no_memory(z);
    goto done;
  }
  DM_GO(read_at(z, directory, end - begin, begin));
  DM_GO(read_entries(z, directory, directory + (end - begin), scratch));
  DM_GO(check_apart(z, begin));
done:
  dm_free(directory);
  dm_free(scratch);
  return st;
}

/* The path is stored behind the struct, for messages. */
dm_status dm_zip_open(dm_Zip **out, const char *path) {
  dm_status st = DM_OK;
  const size_t n_path = strlen(path) + 1;
  dm_Zip *z = dm_alloc((int64_t)(sizeof *z + n_path));
  if (!z) return dm_fail(DM_EMEM, "zip: out of memory for '%s'", path);
  *z = (dm_Zip){.path = (char *)(z + 1), .fd = -1};
  memcpy(z->path, path, n_path);
  DM_GO(dm_file_open("zip", path, &z->fd, &z->n_file));
  DM_GO(read_directory(z));
  *out = z;
done:
  if (st != DM_OK) dm_zip_close(&z);
  return st;
}

void dm_zip_close(dm_Zip **zip) {
  dm_Zip *z = *zip;
  *zip = NULL;
  if (!z) return;
  if (z->fd >= 0) close(z->fd);
  dm_free(z->entries);
  dm_free(z->names);
  dm_free(z);
}

const dm_ZipEntry *dm_zip_get_entries(const dm_Zip *z, int64_t *n) {
  *n = z->n_entries;
  return z->entries;
}

/* dst = what the entry's deflated bytes stand for. */
static dm_status read_deflated(const dm_Zip *z, const dm_ZipEntry *e, void *dst) {
  dm_status st = DM_OK;
  uint8_t *packed = dm_alloc(e->n_packed);
  if (!packed) return no_memory(z);
  DM_GO(read_at(z, packed, e->n_packed, e->at));
  st = dm_inflate(packed, e->n_packed, dst, e->n_bytes);
  if (st == DM_EIO) st = bad_entry(z, e->name, "holds deflated bytes that are broken");
done:
  dm_free(packed);
  return st;
}

dm_status dm_zip_read(const dm_Zip *z, const dm_ZipEntry *e, void *dst) {
  assert(e >= z->entries && e < z->entries + z->n_entries);
  if (e->deflated) DM_TRY(read_deflated(z, e, dst));
  else DM_TRY(read_at(z, dst, e->n_bytes, e->at));
  if (e->crc != 0 && dm_crc32(dst, e->n_bytes) != e->crc)
    return bad_entry(z, e->name, "has a wrong checksum");
  return DM_OK;
}
