/* Fuzzes read_npz on inputs that begin like an archive, and read_npy on all others. */
#include "fuzz.h"

static const char reader[] =
    "local dm = require 'demilune'\n"
    "return function(path)\n"
    "  local file <close> = io.open(path, 'rb')\n"
    "  local is_archive = file:read(2) == 'PK'\n"
    "  local what, why = dm.data[is_archive and 'read_npz' or 'read_npy'](path)\n"
    "  if what and is_archive then _, what = next(what) end\n"
    "  if what then local _ = tostring(what) end\n"
    "end";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  const char *path = fuzz_file(0, data, n);
  fuzz_lua(reader, 1, &path);
  return 0;
}
