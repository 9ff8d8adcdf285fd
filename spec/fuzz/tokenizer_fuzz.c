/* Fuzzes GPT-2's tokenizer: a NUL ends the vocabulary, another one the merges, and a text
   follows. A tokenizer that loads encodes the text, where it has the tokens, and must decode
   it again. The mutator joins tokens to new ones with their merges, adds the alphabet of bytes,
   damages single values, and mostly numbers the tokens anew without gaps. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"
#include "mutate.h"

static const char reader[] =
    "local dm = require 'demilune'\n"
    "return function(folder, text)\n"
    "  local tokens, why = dm.text.GPT2Tokenizer(folder)\n"
    "  if not tokens then return assert(type(why) == 'string') end\n"
    "  local file <close> = io.open(text, 'rb')\n"
    "  local texts = {'ab a b ab', file:read 'a'}\n"
    "  for _, t in ipairs(texts) do\n"
    "    local ok, ids = pcall(tokens.encode, tokens, t, {special = true})\n"
    "    if ok then assert(tokens:decode(ids) == t) end\n"
    "    if not ok and utf8.len(t) then assert(ids:find('has no token', 1, true), ids) end\n"
    "  end\n"
    "end";

enum { PARTS = 3, NAME = 64 };
static const char *const files[PARTS] = {"vocab.json", "merges.txt", "text"};
static char folder[] = "/tmp/tokenizer_fuzz-XXXXXX";
static char links[PARTS][NAME], contents[PARTS][NAME];

static void remove_folder(void) {
  for (int i = 0; i < PARTS; i++) unlink(links[i]);
  rmdir(folder);
}

/* A folder whose files are links to those in memory; it goes when the program ends. */
static void make_folder(void) {
  if (links[0][0]) return;
  if (!mkdtemp(folder)) abort();
  for (int i = 0; i < PARTS; i++) {
    snprintf(links[i], NAME, "%s/%s", folder, files[i]);
    if (symlink(contents[i], links[i]) != 0) abort();
  }
  atexit(remove_folder);
}

/* Where the parts of an input begin, and its end. */
static void divide(const uint8_t *data, size_t n, size_t begin[PARTS], size_t size[PARTS]) {
  size_t at = 0;
  for (int i = 0; i < PARTS; i++) {
    const uint8_t *cut = i + 1 < PARTS && at < n ? memchr(data + at, 0, n - at) : NULL;
    begin[i] = at;
    size[i] = (cut ? (size_t)(cut - data) : n) - at;
    at = cut ? at + size[i] + 1 : n;
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  size_t begin[PARTS], size[PARTS];
  divide(data, n, begin, size);
  for (int i = 0; i < PARTS; i++)
    snprintf(contents[i], NAME, "%s", fuzz_file(i, n ? data + begin[i] : data, size[i]));
  make_folder();
  const char *args[] = {folder, links[PARTS - 1]};
  fuzz_lua(reader, 2, args);
  return 0;
}

/* ---- the mutator ---- */

enum { ALPHABET = 256, TEXT = 1 << 15 };

static const char *const words[] = {
    "a",        "b", "ab", "\xc4\xa0", "\xc4\xa0\x61\x62", "1", "!", "'s", "<|endoftext|>",
    "\xc3\xa9", "",  " ",  "a b",      "\xe2\x82\xac",
};
static const char *const texts[] = {
    "ab",       " ab",  "  ",       "\n",           "it's",          "we'll",
    " 12",      "!?",   "\xc3\xa9", "\xe2\x82\xac", "<|endoftext|>", "\t ",
    "\xcc\x81", "\xff", "a",
};
enum { N_WORDS = sizeof words / sizeof *words, N_TEXTS = sizeof texts / sizeof *texts };

/* A text that grows up to a limit. */
typedef struct Text {
  char bytes[TEXT];
  size_t n;
} Text;

static void append(Text *t, const char *bytes, size_t n) {
  if (t->n + n > TEXT) return;
  memcpy(t->bytes + t->n, bytes, n);
  t->n += n;
}

/* Gives each byte's character an id, as every real vocabulary does. */
static void add_alphabet(cJSON *vocabulary) {
  int spare = ALPHABET;
  for (int byte = 0; byte < ALPHABET; byte++) {
    const int is_plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    const int code = is_plain ? byte : spare++;
    char name[3] = {(char)code};
    if (code >= 128) {
      name[0] = (char)(0xc0 | code >> 6);
      name[1] = (char)(0x80 | (code & 0x3f));
    }
    fuzz_set_number(vocabulary, name, byte);
  }
}

/* Adds the token that two others make, and the line that says so. */
static void join_tokens(cJSON *vocabulary, Text *merges, uint64_t *state) {
  const int n = cJSON_GetArraySize(vocabulary);
  if (n == 0) return;
  const cJSON *left = cJSON_GetArrayItem(vocabulary, (int)fuzz_random(state, (uint32_t)n));
  const cJSON *right = cJSON_GetArrayItem(vocabulary, (int)fuzz_random(state, (uint32_t)n));
  char name[NAME], line[NAME];
  snprintf(name, NAME, "%s%s", left->string, right->string);
  const int length = snprintf(line, NAME, "%s %s\n", left->string, right->string);
  if (length >= NAME) return;
  fuzz_set_number(vocabulary, name, n);
  append(merges, line, (size_t)length);
}

static void number_tokens(cJSON *vocabulary) {
  int id = 0;
  cJSON *v;
  cJSON_ArrayForEach(v, vocabulary) {
    if (cJSON_IsNumber(v)) cJSON_SetNumberValue(v, id++);
  }
}

static void change(cJSON *vocabulary, Text *merges, Text *text, uint64_t *state) {
  const char *word = fuzz_word(state, words, N_WORDS);
  switch (fuzz_random(state, 12)) {
  case 0: add_alphabet(vocabulary); break;
  case 1: fuzz_set_number(vocabulary, word, cJSON_GetArraySize(vocabulary)); break;
  case 2:
  case 3: fuzz_mutate_json(vocabulary, state, words, N_WORDS); break;
  case 4: append(merges, word, strlen(word)); break;
  case 5: append(merges, "#version: 0.2\n", 14); break;
  case 6:
  case 7:
  case 8: join_tokens(vocabulary, merges, state); break;
  default: word = fuzz_word(state, texts, N_TEXTS); append(text, word, strlen(word));
  }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t capacity, unsigned seed) {
  static Text merges, text;
  uint64_t state = seed;
  size_t begin[PARTS], size[PARTS];
  if (fuzz_random(&state, 4) == 0) return LLVMFuzzerMutate(data, n, capacity);
  divide(data, n, begin, size);
  merges.n = text.n = 0;
  append(&merges, (const char *)data + begin[1], size[1]);
  append(&text, (const char *)data + begin[2], size[2]);
  cJSON *vocabulary = fuzz_parse_object(data, size[0]);
  for (uint32_t i = 1 + fuzz_random(&state, 4); i > 0; i--)
    change(vocabulary, &merges, &text, &state);
  if (fuzz_random(&state, 8)) number_tokens(vocabulary);
  char *json = cJSON_PrintUnformatted(vocabulary);
  const size_t length = strlen(json), whole = length + merges.n + text.n + 2;
  if (whole <= capacity) {
    memcpy(data, json, length + 1);
    memcpy(data + length + 1, merges.bytes, merges.n);
    data[length + 1 + merges.n] = 0;
    memcpy(data + length + merges.n + 2, text.bytes, text.n);
  }
  cJSON_free(json);
  cJSON_Delete(vocabulary);
  return whole <= capacity ? whole : LLVMFuzzerMutate(data, n, capacity);
}
