/* Fuzzes the reader of IDX files, plain and gzip. An input that begins with Z is compressed
   first, because a mutated gzip file almost never has the right checksum. */
#include "data/idx.h"

#include <stdlib.h>
#include <zlib.h>

#include "base/alloc.h"
#include "fuzz.h"

static void read_bytes(const void *bytes, size_t n) {
  dm_Idx x = {.data = NULL};
  if (dm_idx_read(&x, fuzz_file(0, bytes, n)) == DM_OK) dm_free(x.data);
}

static void read_packed(const uint8_t *data, size_t n) {
  z_stream z = {.next_in = (void *)(uintptr_t)data, .avail_in = (unsigned)n};
  const size_t capacity = n + n / 1000 + 64;
  uint8_t *out = malloc(capacity);
  if (!out || deflateInit2(&z, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) abort();
  z.next_out = out;
  z.avail_out = (unsigned)capacity;
  if (deflate(&z, Z_FINISH) != Z_STREAM_END) abort();
  read_bytes(out, capacity - z.avail_out);
  deflateEnd(&z);
  free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  if (n > 0 && data[0] == 'Z') read_packed(data + 1, n - 1);
  else read_bytes(data, n);
  fuzz_check_live();
  return 0;
}
