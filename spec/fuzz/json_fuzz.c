/* Fuzzes json_decode; values that json_encode takes must survive a round trip. */
#include "fuzz.h"

static const char reader[] =
    "local core = require 'demilune.core'\n"
    "return function(path)\n"
    "  local file <close> = io.open(path, 'rb')\n"
    "  local value = core.json_decode(file:read 'a')\n"
    "  local ok, text = pcall(core.json_encode, value)\n" /* not what nests too deep */
    "  if ok then assert(#core.json_encode(core.json_decode(text)) == #text) end\n"
    "end";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  const char *path = fuzz_file(0, data, n);
  fuzz_lua(reader, 1, &path);
  return 0;
}
