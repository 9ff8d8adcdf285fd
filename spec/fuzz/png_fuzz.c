/* PNG files, in each mode. Seeds: spec/golden/pictures/ *.png. */
#include "picture.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  if (size < 8 || bytes[0] != 0x89 || bytes[1] != 'P') return 0;
  try_decode(bytes, size, (dm_PictureMode)(bytes[size - 1] % 3));
  return 0;
}
