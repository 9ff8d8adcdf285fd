/* Fuzzes files of tokens. Byte 0 of the input chooses their width, the rest is the file. */
#include "data/tokens.h"

#include "base/alloc.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  dm_Tokens *t = NULL;
  if (n == 0) return 0;
  if (dm_tokens_open(&t, fuzz_file(0, data + 1, n - 1), data[0] % 3 * 16) == DM_OK) {
    const int64_t count = dm_tokens_count(t);
    int64_t *ids = dm_alloc(count * (int64_t)sizeof *ids);
    if (ids && dm_tokens_read(t, 0, count, 1, ids) == DM_OK)
      for (int64_t i = 0; i < count; i++)
        if (ids[i] < 1) __builtin_trap();
    dm_free(ids);
  }
  dm_tokens_close(&t);
  fuzz_check_live();
  return 0;
}
