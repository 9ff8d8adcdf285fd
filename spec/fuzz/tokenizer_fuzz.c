/* Fuzzes GPT-2's tokenizer: a NUL divides the input into vocabulary and merges. A tokenizer
   that loads then encodes a text and decodes it again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"

static const char reader[] =
    "local dm = require 'demilune'\n"
    "return function(folder)\n"
    "  local tokens, why = dm.text.GPT2Tokenizer(folder)\n"
    "  if not tokens then return assert(type(why) == 'string') end\n"
    "  local ok, ids = pcall(tokens.encode, tokens, 'ab a b ab', {special = true})\n"
    "  if ok then assert(tokens:decode(ids) == 'ab a b ab') end\n"
    "end";

/* A folder whose two files are links to those in memory. */
static const char *folder_of(const char *vocabulary, const char *merges) {
  static char folder[] = "/tmp/tokenizer_fuzz-XXXXXX";
  static int is_made;
  if (is_made) return folder;
  char path[sizeof folder + 32];
  if (!mkdtemp(folder)) abort();
  snprintf(path, sizeof path, "%s/vocab.json", folder);
  if (symlink(vocabulary, path) != 0) abort();
  snprintf(path, sizeof path, "%s/merges.txt", folder);
  if (symlink(merges, path) != 0) abort();
  is_made = 1;
  return folder;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  const uint8_t *cut = n ? memchr(data, 0, n) : NULL;
  const size_t n_first = cut ? (size_t)(cut - data) : n;
  const char *vocabulary = fuzz_file(0, data, n_first);
  const char *merges = cut ? fuzz_file(1, cut + 1, n - n_first - 1) : fuzz_file(1, "", 0);
  const char *folder = folder_of(vocabulary, merges);
  fuzz_lua(reader, 1, &folder);
  return 0;
}
