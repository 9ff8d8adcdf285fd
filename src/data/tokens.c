/* Reads files of tokens. A window is read into the end of its own int64 destination and
   widened from its front on, so it needs no second buffer: an element of 2 or 4 bytes is read
   before the 8 bytes that replace it reach its position. */
#define _POSIX_C_SOURCE 200809L
#include "data/tokens.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "data/file.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "tokens lie in the file least significant byte first");

enum { HEAD_BYTES = 1024 }; /* 256 int32: a magic number, a version, the count, zeros */
static const struct {
  int32_t magic;
  int size; /* bytes of a token */
} heads[] = {{20240520, 2}, {20240801, 4}};

struct dm_Tokens {
  char *path;
  int fd, size;
  int64_t begin, n; /* byte of the first token; tokens */
};

/* Reads llm.c's head when the file has one, and sets the size of a token and their number. A
   plain file has no head and no magic number. */
static dm_status read_head(dm_Tokens *t, int64_t n_bytes) {
  int32_t head[3] = {0};
  int size = 0;
  if (n_bytes >= HEAD_BYTES)
    DM_TRY(dm_file_read("tokens", t->path, t->fd, head, sizeof head, 0));
  for (int i = 0; i < DM_COUNT(heads); i++)
    if (head[0] == heads[i].magic) size = heads[i].size;
  if (size && t->size && t->size != size)
    return dm_fail(DM_EIO, "tokens: '%s' says that a token has %d bits, not %d", t->path,
                   8 * size, 8 * t->size);
  t->begin = size ? HEAD_BYTES : 0;
  if (!t->size) t->size = size ? size : 2;
  const int64_t left = n_bytes - t->begin;
  if (left % t->size != 0)
    return dm_fail(DM_EIO, "tokens: '%s' has %" PRId64 " bytes of tokens, wanted %d for each",
                   t->path, left, t->size);
  t->n = left / t->size;
  if (size && head[2] != t->n)
    return dm_fail(DM_EIO, "tokens: '%s' has %" PRId64 " tokens, its head says %d", t->path,
                   t->n, (int)head[2]);
  return DM_OK;
}

/* The path is stored behind the struct, for messages. */
dm_status dm_tokens_open(dm_Tokens **out, const char *path, int n_bits) {
  dm_status st = DM_OK;
  int64_t n_bytes;
  if (n_bits != 0 && n_bits != 16 && n_bits != 32)
    return dm_fail(DM_EARG, "tokens: %d bits a token, wanted 16 or 32", n_bits);
  const size_t n_path = strlen(path) + 1;
  dm_Tokens *t = dm_alloc((int64_t)(sizeof *t + n_path));
  if (!t) return dm_fail(DM_EMEM, "tokens: out of memory for '%s'", path);
  *t = (dm_Tokens){.path = (char *)(t + 1), .fd = -1, .size = n_bits / 8};
  memcpy(t->path, path, n_path);
  DM_GO(dm_file_open("tokens", path, &t->fd, &n_bytes));
  DM_GO(read_head(t, n_bytes));
  *out = t;
done:
  if (st != DM_OK) dm_tokens_close(&t);
  return st;
}

void dm_tokens_close(dm_Tokens **t) {
  if (*t && (*t)->fd >= 0) close((*t)->fd);
  dm_free(*t);
  *t = NULL;
}

int64_t dm_tokens_count(const dm_Tokens *t) { return t->n; }

/* Records a token id below 0, as 32-bit files may have. */
static dm_status negative(const dm_Tokens *t, int64_t at, int32_t v) {
  return dm_fail(DM_EIO, "tokens: '%s': token %" PRId64 " is %d, they count from 0", t->path,
                 at + 1, (int)v);
}

dm_status dm_tokens_read(const dm_Tokens *t, int64_t first, int64_t n, int64_t base,
                         int64_t *dst) {
  if (first < 0 || n < 0 || n > t->n - first)
    return dm_fail(DM_EARG, "tokens: %" PRId64 " tokens from %" PRId64 " on, '%s' has %" PRId64,
                   n, first + 1, t->path, t->n);
  const uint8_t *raw = (const uint8_t *)(dst + n) - n * t->size;
  DM_TRY(dm_file_read("tokens", t->path, t->fd, (void *)(uintptr_t)raw, n * t->size,
                      t->begin + first * t->size));
  for (int64_t i = 0; i < n; i++, raw += t->size) {
    uint16_t narrow;
    int32_t wide;
    if (t->size == 2) {
      memcpy(&narrow, raw, sizeof narrow);
      wide = narrow;
    } else {
      memcpy(&wide, raw, sizeof wide);
    }
    if (wide < 0) return negative(t, first + i, wide);
    dst[i] = base + wide;
  }
  return DM_OK;
}

dm_status dm_tokens_window(const void *windows, int64_t row, uint64_t draw, void *dst) {
  DM_UNUSED(draw);
  const dm_TokenWindows *w = windows;
  return dm_tokens_read(w->tokens, w->first + row * w->step, w->length, w->base, dst);
}
