/* PNG files, in each mode; their chunks get the checksums that they need, which a guess
   never finds. */
#include <zlib.h>

#include "image.h"

enum { SIGNATURE = 8, HEAD = 8, CHECKSUM = 4 };

static size_t number_at(const uint8_t *p) {
  return (size_t)p[0] << 24 | (size_t)p[1] << 16 | (size_t)p[2] << 8 | p[3];
}

static void seal(uint8_t *bytes, size_t size) {
  size_t at = SIGNATURE;
  while (size - at >= HEAD + CHECKSUM) {
    const size_t n = number_at(bytes + at);
    if (n > size - at - HEAD - CHECKSUM) return;
    const uLong crc = crc32(0, bytes + at + 4, (uInt)n + 4);
    for (int i = 0; i < CHECKSUM; i++)
      bytes[at + HEAD + n + (size_t)i] = (uint8_t)(crc >> (24 - 8 * i));
    at += HEAD + n + CHECKSUM;
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  if (size < SIGNATURE || bytes[0] != 0x89 || bytes[1] != 'P') return 0;
  uint8_t *sealed = malloc(size);
  if (!sealed) abort();
  memcpy(sealed, bytes, size);
  seal(sealed, size);
  try_decode(sealed, size, (dm_ImageMode)(bytes[size - 1] % 3));
  free(sealed);
  return 0;
}
