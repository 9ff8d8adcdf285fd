/* Fuzzes read_csv, with each of two separators. */
#include "fuzz.h"

static const char reader[] =
    "local dm = require 'demilune'\n"
    "return function(path)\n"
    "  for _, separator in ipairs{',', ';'} do\n"
    "    local t, why = dm.data.read_csv(path, {separator = separator})\n"
    "    assert(t and #t.names >= 0 or type(why) == 'string')\n"
    "    if t then local _ = tostring(t) end\n"
    "  end\n"
    "end";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  const char *path = fuzz_file(0, data, n);
  fuzz_lua(reader, 1, &path);
  return 0;
}
