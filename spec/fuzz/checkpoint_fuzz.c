/* Fuzzes dm.load: files of tensors with a tree of plain values in JSON. */
#include "fuzz.h"

static const char reader[] = "local dm = require 'demilune'\n"
                             "return function(path)\n"
                             "  local tree, why = dm.load(path)\n"
                             "  assert(tree ~= nil or type(why) == 'string')\n"
                             "end";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  const char *path = fuzz_file(0, data, n);
  fuzz_lua(reader, 1, &path);
  return 0;
}
