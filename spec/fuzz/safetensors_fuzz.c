/* Fuzzes the safetensors reader: header, entries, metadata, checksums, and the data of every
   tensor. The mutator changes tensors and metadata of the header and then, mostly, puts the
   header's length, the tensors' offsets and the size of the data right; at times the engine's
   own writer adds the checksums, which later changes of single bytes break. */
#include "data/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "fuzz.h"
#include "mutate.h"

/* The bytes of all tensors; every entry was checked, so only a checksum may be wrong. */
static void read_all(const dm_StFile *f) {
  int64_t n;
  const dm_StEntry *e = dm_st_get_entries(f, &n);
  for (int64_t i = 0; i < n; i++) {
    void *dst = dm_alloc(e[i].n_bytes);
    if (dst && dm_st_read(f, &e[i], dst) != DM_OK && !strstr(dm_error(), "is damaged"))
      __builtin_trap();
    dm_free(dst);
  }
  const dm_StPair *pairs = dm_st_get_pairs(f, &n);
  for (int64_t i = 0; i < n; i++)
    if (strcmp(pairs[i].key, "demilune.checksums") == 0 || !pairs[i].value) __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  dm_StFile *f = NULL;
  if (dm_st_open(&f, fuzz_file(0, data, n)) == DM_OK) read_all(f);
  dm_st_close(&f);
  fuzz_check_live();
  return 0;
}

/* ---- the mutator ---- */

enum { LENGTH_BYTES = 8 };

static const char *const words[] = {
#define ROW(X, E, S, BITS, NAME, METHOD, RANK, NPY, CODE, ...) [DM_##E] = CODE,
    DM_DTYPES(ROW, )
#undef ROW
        [DM_N_DTYPE] = "F4",
    "a",
    "b",
    "x.weight",
    "\xc3\xa9",
    "",
    "dtype",
    "shape",
    "data_offsets",
    "__metadata__",
    "demilune.checksums",
};
enum { N_WORDS = sizeof words / sizeof *words };

/* Adds a small tensor of any dtype, without offsets. */
static void add_tensor(cJSON *root, uint64_t *state) {
  char name[16];
  snprintf(name, sizeof name, "t%u", fuzz_random(state, 1000));
  cJSON *tensor = cJSON_AddObjectToObject(root, name);
  cJSON_AddStringToObject(tensor, "dtype", words[fuzz_random(state, DM_N_DTYPE)]);
  cJSON *shape = cJSON_AddArrayToObject(tensor, "shape");
  for (uint32_t d = fuzz_random(state, 4); d > 0; d--)
    cJSON_AddItemToArray(shape, cJSON_CreateNumber(fuzz_random(state, 5)));
  cJSON_AddArrayToObject(tensor, "data_offsets");
}

/* Adds a pair of metadata. */
static void add_pair(cJSON *root, uint64_t *state) {
  cJSON *pairs = cJSON_GetObjectItemCaseSensitive(root, "__metadata__");
  if (!pairs) pairs = cJSON_AddObjectToObject(root, "__metadata__");
  cJSON_AddStringToObject(pairs, fuzz_word(state, words, N_WORDS),
                          fuzz_word(state, words, N_WORDS));
}

/* The bytes that a member of the header takes; 0 of what is no tensor. */
static double bytes_of(const cJSON *tensor) {
  const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(tensor, "dtype");
  const cJSON *shape = cJSON_GetObjectItemCaseSensitive(tensor, "shape"), *v;
  double n = 0;
  for (int d = 0; d < DM_N_DTYPE && cJSON_IsString(dtype); d++)
    if (strcmp(words[d], dtype->valuestring) == 0) n = (double)dm_dtype_size((dm_DType)d);
  cJSON_ArrayForEach(v, shape) n *= v->valuedouble;
  return n;
}

/* Gives each tensor offsets that follow the one before: -> the bytes of all of them. */
static double fit_offsets(cJSON *root) {
  double at = 0;
  cJSON *v;
  cJSON_ArrayForEach(v, root) {
    cJSON *span = cJSON_GetObjectItemCaseSensitive(v, "data_offsets");
    if (!cJSON_IsArray(span)) continue;
    while (cJSON_GetArraySize(span)) cJSON_DeleteItemFromArray(span, 0);
    cJSON_AddItemToArray(span, cJSON_CreateNumber(at));
    at += bytes_of(v);
    cJSON_AddItemToArray(span, cJSON_CreateNumber(at));
  }
  return at;
}

static uint64_t length_at(const uint8_t *data) {
  uint64_t n = 0;
  memcpy(&n, data, LENGTH_BYTES);
  return n;
}

/* Writes the header before the n_data bytes of `old`, padded with zeros: -> the size of the
   file, or 0 where it does not fit. */
static size_t assemble(uint8_t *data, size_t capacity, const char *header, const uint8_t *old,
                       size_t n_old, size_t n_data) {
  const uint64_t length = strlen(header);
  if (length + LENGTH_BYTES + n_data > capacity) return 0;
  uint8_t *to = data + LENGTH_BYTES + length;
  memmove(to, old, n_old < n_data ? n_old : n_data);
  if (n_old < n_data) memset(to + n_old, 0, n_data - n_old);
  memcpy(data, &length, LENGTH_BYTES);
  memcpy(data + LENGTH_BYTES, header, length);
  return LENGTH_BYTES + length + n_data;
}

/* Writes a file that opens anew, with checksums: -> its size, or 0. */
static size_t add_checksums(uint8_t *data, size_t n, size_t capacity) {
  static char path[] = "/tmp/safetensors_fuzz-XXXXXX";
  static int is_made;
  if (!is_made) close(mkstemp(path));
  is_made = 1;
  dm_StFile *f = NULL;
  size_t written = 0;
  if (dm_st_open(&f, fuzz_file(0, data, n)) == DM_OK) {
    int64_t n_entries, n_pairs;
    const dm_StEntry *e = dm_st_get_entries(f, &n_entries);
    const dm_StPair *pairs = dm_st_get_pairs(f, &n_pairs);
    const void **tensors = calloc((size_t)n_entries + 1, sizeof *tensors);
    const uint8_t *begin = data + LENGTH_BYTES + length_at(data);
    for (int64_t i = 0; i < n_entries; i++) tensors[i] = begin + e[i].offset;
    if (dm_st_write(path, e, tensors, n_entries, pairs, n_pairs, true) == DM_OK) {
      FILE *file = fopen(path, "rb");
      written = fread(data, 1, capacity, file);
      if (fgetc(file) != EOF) written = 0;
      fclose(file);
    }
    free(tensors);
  }
  dm_st_close(&f);
  unlink(path);
  return written;
}

/* The header that follows from a few changes, and the size of its data. */
static char *change_header(const uint8_t *text, size_t n, uint64_t *state, size_t *n_data) {
  cJSON *root = fuzz_parse_object(text, n);
  for (uint32_t i = 1 + fuzz_random(state, 3); i > 0; i--) {
    switch (fuzz_random(state, 4)) {
    case 0: add_tensor(root, state); break;
    case 1: add_pair(root, state); break;
    default: fuzz_mutate_json(root, state, words, N_WORDS);
    }
  }
  if (fuzz_random(state, 8)) {
    const double size = fit_offsets(root);
    *n_data = size >= 0 && size < 1 << 20 ? (size_t)size : 0;
  }
  char *header = cJSON_PrintUnformatted(root);
  cJSON_Delete(root);
  return header;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t capacity, unsigned seed) {
  uint64_t state = seed;
  if (n < LENGTH_BYTES || length_at(data) > n - LENGTH_BYTES || fuzz_random(&state, 4) == 0)
    return LLVMFuzzerMutate(data, n, capacity);
  const size_t length = (size_t)length_at(data), n_old = n - LENGTH_BYTES - length;
  size_t n_data = n_old, size = 0;
  if (fuzz_random(&state, 16) == 0) {
    uint8_t *copy = malloc(capacity);
    memcpy(copy, data, n);
    size = add_checksums(copy, n, capacity);
    memcpy(data, copy, size);
    free(copy);
  } else {
    char *header = change_header(data + LENGTH_BYTES, length, &state, &n_data);
    size = assemble(data, capacity, header, data + LENGTH_BYTES + length, n_old, n_data);
    cJSON_free(header);
  }
  return size ? size : LLVMFuzzerMutate(data, n, capacity);
}
