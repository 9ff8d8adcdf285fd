/* Fuzzes files of tokens. Byte 0 of the input chooses their width, the rest is the file. The
   mutator gives a file a head of llm.c whose magic number and count fit, but for one field at
   times, and makes ids of 32 bits mostly positive. */
#include "data/tokens.h"

#include <string.h>

#include "base/alloc.h"
#include "fuzz.h"
#include "mutate.h"

/* Windows at both ends, in the middle and past the ends; those inside hold what the whole file
   holds. */
static void read_windows(const dm_Tokens *t, const int64_t *ids, int64_t n) {
  const int64_t firsts[] = {-1, 0, n / 2, n - 2, n - 1};
  int64_t window[2];
  for (int i = 0; i < DM_COUNT(firsts); i++) {
    const int64_t first = firsts[i];
    const bool is_inside = first >= 0 && first + 2 <= n;
    if ((dm_tokens_read(t, first, 2, 1, window) == DM_OK) != is_inside) __builtin_trap();
    if (is_inside && memcmp(window, ids + first, sizeof window) != 0) __builtin_trap();
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  dm_Tokens *t = NULL;
  if (n == 0) return 0;
  if (dm_tokens_open(&t, fuzz_file(0, data + 1, n - 1), data[0] % 4 * 16) == DM_OK) {
    const int64_t count = dm_tokens_count(t);
    int64_t *ids = dm_alloc(count * (int64_t)sizeof *ids);
    if (ids && dm_tokens_read(t, 0, count, 1, ids) == DM_OK) {
      for (int64_t i = 0; i < count; i++)
        if (ids[i] < 1) __builtin_trap();
      read_windows(t, ids, count);
    }
    dm_free(ids);
  }
  dm_tokens_close(&t);
  fuzz_check_live();
  return 0;
}

/* ---- the mutator ---- */

enum { WIDTH = 1, HEAD = 1024 };

/* Makes the ids of 32 bits not negative. */
static void make_positive(uint8_t *body, size_t n) {
  for (size_t i = 3; i < n; i += 4) body[i] &= 0x7f;
}

/* Puts a head before n_body bytes of tokens, of which it keeps whole ones: -> the new size. */
static size_t add_head(uint8_t *data, const uint8_t *body, size_t n_body, uint64_t *state) {
  static const int32_t magics[] = {20240520, 20240801};
  const uint32_t kind = fuzz_random(state, 2);
  const size_t size = kind ? 4 : 2, count = n_body / size;
  int32_t head[HEAD / 4] = {magics[kind], 1, (int32_t)count};
  if (fuzz_random(state, 8) == 0) head[fuzz_random(state, 3)]++;
  data[0] = (uint8_t)fuzz_random(state, 4);
  memmove(data + WIDTH + HEAD, body, count * size);
  memcpy(data + WIDTH, head, HEAD);
  return WIDTH + HEAD + count * size;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t capacity, unsigned seed) {
  uint64_t state = seed;
  int32_t magic = 0;
  if (n < WIDTH + 4 || fuzz_random(&state, 4) == 0) return LLVMFuzzerMutate(data, n, capacity);
  memcpy(&magic, data + WIDTH, sizeof magic);
  const size_t begin =
      n >= WIDTH + HEAD && magic >> 16 == 20240520 >> 16 ? WIDTH + HEAD : WIDTH;
  size_t n_body = n - begin;
  if (WIDTH + HEAD + n_body > capacity) return LLVMFuzzerMutate(data, n, capacity);
  n_body = LLVMFuzzerMutate(data + begin, n_body, capacity - WIDTH - HEAD);
  if (fuzz_random(&state, 4)) make_positive(data + begin, n_body);
  if (fuzz_random(&state, 4) == 0) return begin + n_body;
  return add_head(data, data + begin, n_body, &state);
}
