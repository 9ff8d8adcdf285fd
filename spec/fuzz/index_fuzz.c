/* Fuzzes the index of a model in several files: each input lies beside one file of tensors,
   x and y, by the name of a. */
#include "fuzz.h"

static const char reader[] =
    "local dm = require 'demilune'\n"
    "local folder = os.tmpname()\n"
    "os.remove(folder)\n"
    "assert(os.execute('mkdir ' .. folder))\n"
    "assert(dm.safetensors_write(folder .. '/a', {x = dm.ones(2), y = dm.zeros(1)}, {}))\n"
    "return function(path)\n"
    "  local from <close> = io.open(path, 'rb')\n"
    "  local to = io.open(folder .. '/index.json', 'wb')\n"
    "  to:write(from:read 'a')\n"
    "  to:close()\n"
    "  local got, why = dm.load(folder .. '/index.json')\n"
    "  assert(got ~= nil or type(why) == 'string')\n"
    "end";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  const char *path = fuzz_file(0, data, n);
  fuzz_lua(reader, 1, &path);
  return 0;
}
