/* Fuzzes the reader of torch.save's files: whole files, of both formats, and on inputs that
   begin like neither the pickle in an archive, whose storages all have 64 bytes. */
#include "fuzz.h"

static const char reader[] =
    "local dm = require 'demilune'\n"
    "local core, torch_file = require 'demilune.core', require 'demilune.torch_file'\n"
    "local names = {'a/data.pkl', 'a/data/0', 'a/data/1'}\n"
    "local zeros = ('\\0'):rep(64)\n"
    "local function open(bytes)\n"
    "  return {read = function(_, i) return i == 1 and bytes or zeros end,\n"
    "    size = function() return 64 end,\n"
    "    tensor = function(_, _, dtype) return core._from_bytes(zeros, dtype) end}\n"
    "end\n"
    "return function(path)\n"
    "  local file <close> = io.open(path, 'rb')\n"
    "  local bytes = file:read 'a'\n"
    "  local got, why\n"
    "  if bytes:sub(1, 2) == 'PK' or bytes:sub(1, 15) == torch_file.MAGIC then\n"
    "    got, why = dm.load(path)\n"
    "  else\n"
    "    got, why = torch_file.read_zip(open(bytes), names, 'cpu')\n"
    "  end\n"
    "  assert(got ~= nil or type(why) == 'string')\n"
    "end";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  const char *path = fuzz_file(0, data, n);
  fuzz_lua(reader, 1, &path);
  return 0;
}
