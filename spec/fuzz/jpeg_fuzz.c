/* JPEG files, in each mode. */
#include "image.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  if (size < 3 || bytes[0] != 0xff || bytes[1] != 0xd8) return 0;
  try_decode(bytes, size, (dm_ImageMode)(bytes[size - 1] % 3));
  return 0;
}
