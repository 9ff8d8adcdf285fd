/* Files of tokens: 16-bit or 32-bit numbers from 0, least significant byte first, plain
   or behind the head of llm.c's files. They are read in pieces where they lie and never
   held in memory: a file may be larger than that.
   Format: https://github.com/karpathy/llm.c, dev/data/data_common.py */
#ifndef DM_TOKENS_H
#define DM_TOKENS_H

#include "base/base.h"

typedef struct dm_Tokens dm_Tokens;

/* n_bits: 16 or 32, of a token; 0: as the head says, 16 without one. A file that is
   missing, is cut amid a token, or is not as its head says gives DM_EIO. Its length is
   that at the opening. */
DM_API dm_status dm_tokens_open(dm_Tokens **out, const char *path, int n_bits);
DM_API void dm_tokens_close(dm_Tokens **t); /* sets *t to NULL; NULL is fine */
DM_API int64_t dm_tokens_count(const dm_Tokens *t);

/* dst (n) = base + the tokens from `first` on, which counts from 0. DM_EIO when the
   file has become shorter, or one of 32 bits is below 0. Threads may share t. */
DM_API dm_status dm_tokens_read(const dm_Tokens *t, int64_t first, int64_t n, int64_t base,
                                int64_t *dst);

/* Windows of a file, rows of a loader's column (dm_LoaderColumn.read). */
typedef struct dm_TokenWindows {
  const dm_Tokens *tokens;
  int64_t first, length, step; /* row i: `length` tokens from first + i * step on */
  int64_t base;
} dm_TokenWindows;
DM_API dm_status dm_tokens_window(const void *windows, int64_t row, uint64_t draw, void *dst);

#endif
