/* Reads and writes safetensors. The reader trusts nothing, because such files come from
   anywhere: all of the header is checked before a tensor is given out, in the order text,
   JSON, entries, cover of the data. The last check, that the tensors cover the data without
   overlap or hole, is the reference implementation's too: no bytes can hide in a file. The
   writer works on a temporary file in the target's folder, which takes the target's name when
   all of it is on the disk.

   A file of dm.save carries checksums (data/checksum.h) as one more pair of metadata: of the
   other pairs, and of each tensor in the order of the data, with its name, dtype and shape.
   A file whose list is of another length was written anew by another program, which kept the
   pair and not the tensors: it is read without them.

   Names and metadata point into the parsed JSON, which lives as long as the file. cJSON
   allocates for itself; its hooks belong to the host program. */
#define _POSIX_C_SOURCE 200809L
#include "data/safetensors.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "data/atomic_file.h"
#include "data/checksum.h"
#include "data/file.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "data is copied as it lies in the file: least significant first");
_Static_assert(DM_MAX_DIM == 16, "MAX_COMMAS and a message below say 16");

enum {
  LENGTH_BYTES = 8,
  MAX_HEADER = 100000000, /* the reference implementation's limit */
  MAX_TENSORS = 1 << 20,
  MAX_DEPTH = 3,                 /* {name: {shape: [ ] } } */
  MAX_COMMAS = 20 * MAX_TENSORS, /* 19 a tensor of 16 dims: bounds the parser */
  SUM_DIGITS = 16,               /* of a checksum, in hex */
  READ_BYTES = 1 << 18           /* at a time: still in the cache for the checksum */
};
static const char SUMS_KEY[] = "demilune.checksums";
static const double INTEGER_LIMIT = 9007199254740992.0; /* 2^53 */

/* For each dm_DType its name in the file and its rank in the reference's order of layout
   (falling, so that larger elements come first and each tensor is aligned). */
static const struct {
  const char *name;
  int rank;
} types[DM_N_DTYPE] = {
#define ROW(X, E, S, BITS, NAME, METHOD, RANK, NPY, CODE, LAYOUT, ...) \
  [DM_##E] = {CODE, LAYOUT},
    DM_DTYPES(ROW, )
#undef ROW
};

struct dm_StFile {
  char *path;
  int fd;
  int64_t data_begin, data_bytes;
  cJSON *root;
  dm_StEntry *entries;
  dm_StPair *pairs;
  int64_t n_entries, n_pairs;
  const char *sums; /* SUM_DIGITS of the metadata, then of each entry; NULL: without */
};

static dm_status no_memory(const char *path) {
  return dm_fail(DM_EMEM, "safetensors: out of memory for the header of '%s'", path);
}

/* ---- text ---- */

/* Whether s is UTF-8 as Unicode 15, table 3-7 has it: shortest forms only, no
   surrogates, nothing above U+10FFFF. */
static bool is_utf8(const char *text, int64_t n) {
  const uint8_t *s = (const uint8_t *)text, *end = s + n;
  while (s < end) {
    const uint8_t c = *s++;
    if (c < 0x80) continue;
    const int more = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : 1;
    if (c < 0xc2 || c > 0xf4 || end - s < more) return false;
    const uint8_t low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
    const uint8_t high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    if (s[0] < low || s[0] > high) return false;
    for (int i = 1; i < more; i++)
      if ((s[i] & 0xc0) != 0x80) return false;
    s += more;
  }
  return true;
}

/* Returns the fault of the header as text, or NULL. It guards the parser, before which it
   runs: C strings cannot hold NUL, and the parser's memory and recursion grow with values and
   depth. */
static const char *text_fault(const char *s, int64_t n) {
  if (!is_utf8(s, n)) return "it is not UTF-8";
  int depth = 0;
  int64_t n_commas = 0;
  bool in_string = false;
  for (int64_t i = 0; i < n; i++) {
    const char c = s[i];
    if (in_string) {
      if ((uint8_t)c < 0x20) return "a string holds a control character";
      if (c == '"') in_string = false;
      if (c != '\\') continue;
      if (n - i >= 6 && memcmp(s + i, "\\u0000", 6) == 0) return "a string holds NUL";
      i++;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > MAX_DEPTH) return "it nests deeper than the format does";
    } else if (c == '}' || c == ']') {
      depth--;
    } else if (c == ',') {
      if (++n_commas > MAX_COMMAS) return "it has too many values";
    } else if (c == '\0') {
      return "it holds NUL";
    }
  }
  return NULL;
}

/* ---- checksums ---- */

/* That of an entry's name, dtype and shape, which that of its data begins with. */
static uint64_t entry_seed(const dm_StEntry *e) {
  const int64_t kind[2] = {(int64_t)e->dtype, e->n_dim};
  dm_Checksum s = dm_checksum_begin(0);
  dm_checksum_add(&s, e->name, (int64_t)strlen(e->name));
  s = dm_checksum_begin(dm_checksum_end(&s));
  dm_checksum_add(&s, kind, sizeof kind);
  s = dm_checksum_begin(dm_checksum_end(&s));
  dm_checksum_add(&s, e->shape, e->n_dim * (int64_t)sizeof *e->shape);
  return dm_checksum_end(&s);
}

/* That of the pairs in their order, without the checksums' own. */
static uint64_t sum_pairs(const dm_StPair *pairs, int64_t n) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; i++) {
    const char *const texts[2] = {pairs[i].key, pairs[i].value};
    for (int k = 0; k < 2; k++) {
      dm_Checksum s = dm_checksum_begin(sum);
      dm_checksum_add(&s, texts[k], (int64_t)strlen(texts[k]));
      sum = dm_checksum_end(&s);
    }
  }
  return sum;
}

/* Whether `sum` stands at position i of the file's list. */
static bool sum_is(const dm_StFile *f, int64_t i, uint64_t sum) {
  char text[SUM_DIGITS + 1];
  snprintf(text, sizeof text, "%016" PRIx64, sum);
  return memcmp(f->sums + i * SUM_DIGITS, text, SUM_DIGITS) == 0;
}

/* ---- reading ---- */

static dm_status read_at(const dm_StFile *f, void *dst, int64_t n, int64_t offset) {
  return dm_file_read("safetensors", f->path, f->fd, dst, n, offset);
}

/* Opens the file and computes from its first 8 bytes where header and data are. */
static dm_status open_file(dm_StFile *f, int64_t *header_bytes) {
  uint8_t raw[LENGTH_BYTES];
  int64_t size;
  DM_TRY(dm_file_open("safetensors", f->path, &f->fd, &size));
  if (size < LENGTH_BYTES)
    return dm_fail(DM_EIO, "safetensors: '%s' is cut short: %" PRId64 " bytes, 8 come first",
                   f->path, size);
  DM_TRY(read_at(f, raw, LENGTH_BYTES, 0));
  uint64_t n = 0;
  for (int i = LENGTH_BYTES; i-- > 0;) n = n << 8 | raw[i];
  if (n > MAX_HEADER)
    return dm_fail(DM_EIO,
                   "safetensors: '%s' is no safetensors file: header of %" PRIu64
                   " bytes, the limit is %d",
                   f->path, n, MAX_HEADER);
  if ((int64_t)n > size - LENGTH_BYTES)
    return dm_fail(DM_EIO,
                   "safetensors: '%s' is cut short: header of %" PRIu64
                   " bytes in a file of %" PRId64,
                   f->path, n, size);
  *header_bytes = (int64_t)n;
  f->data_begin = LENGTH_BYTES + (int64_t)n;
  f->data_bytes = size - f->data_begin;
  return DM_OK;
}

/* Reads the header and parses it; it must be one JSON object and nothing after it. */
static dm_status parse_header(dm_StFile *f, int64_t n) {
  dm_status st = DM_OK;
  char *text = dm_alloc(n + 1);
  if (!text) return no_memory(f->path);
  DM_GO(read_at(f, text, n, LENGTH_BYTES));
  text[n] = '\0';
  const char *fault = text_fault(text, n);
  if (!fault) {
    f->root = cJSON_ParseWithLengthOpts(text, (size_t)n + 1, NULL, true);
    if (!cJSON_IsObject(f->root)) fault = "it is not a JSON object";
  }
  if (fault) st = dm_fail(DM_EIO, "safetensors: '%s' has a bad header: %s", f->path, fault);
done:
  dm_free(text);
  return st;
}

/* The order of strcmp for arrays of strings. */
static int by_text(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Sets *key to a key that occurs twice in an object of n members, or to NULL. cJSON keeps
   both members and finds only the first. Sorting takes O(n log n), where comparing all pairs
   of a hostile file would take O(n^2). */
static dm_status find_duplicate(const dm_StFile *f, const cJSON *object, int64_t n,
                                const char **key) {
  *key = NULL;
  const char **keys = dm_alloc(n * (int64_t)sizeof *keys);
  if (!keys) return no_memory(f->path);
  int64_t i = 0;
  for (const cJSON *v = object->child; v; v = v->next) keys[i++] = v->string;
  qsort(keys, (size_t)n, sizeof *keys, by_text);
  for (i = 1; i < n && !*key; i++)
    if (strcmp(keys[i - 1], keys[i]) == 0) *key = keys[i];
  dm_free(keys);
  return DM_OK;
}

/* Reads a count or an offset. 2^53 and above are refused: the parser holds numbers as
   doubles, which do not tell neighbours apart there. */
static bool read_integer(int64_t *out, const cJSON *v) {
  if (!cJSON_IsNumber(v)) return false;
  const double x = v->valuedouble;
  if (!(x >= 0 && x < INTEGER_LIMIT)) return false;
  *out = (int64_t)x;
  return (double)*out == x;
}

/* The dtype of a name in the file; DM_NO_DTYPE for others, such as F8_E4M3. */
static dm_DType read_dtype(const cJSON *v) {
  if (!cJSON_IsString(v)) return DM_NO_DTYPE;
  for (int d = 0; d < DM_N_DTYPE; d++)
    if (strcmp(types[d].name, v->valuestring) == 0) return (dm_DType)d;
  return DM_NO_DTYPE;
}

/* Reads a list of up to DM_MAX_DIM sizes. */
static bool read_shape(dm_StEntry *e, const cJSON *list) {
  if (!cJSON_IsArray(list)) return false;
  e->n_dim = 0;
  for (const cJSON *v = list->child; v; v = v->next) {
    if (e->n_dim == DM_MAX_DIM) return false;
    if (!read_integer(&e->shape[e->n_dim++], v)) return false;
  }
  return true;
}

/* Bytes of a dense tensor; false when a size is negative or they overflow. */
static bool dense_bytes(int64_t *out, const dm_StEntry *e) {
  int64_t n = dm_dtype_size(e->dtype);
  for (int d = 0; d < e->n_dim; d++) {
    const int64_t k = e->shape[d];
    if (k < 0 || (k > 0 && n > INT64_MAX / k)) return false;
    n *= k;
  }
  *out = n;
  return true;
}

/* Fills *e from one tensor of the header and returns NULL, or returns its fault. */
static const char *read_entry(dm_StEntry *e, const cJSON *v) {
  const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(v, "dtype");
  const cJSON *shape = cJSON_GetObjectItemCaseSensitive(v, "shape");
  const cJSON *span = cJSON_GetObjectItemCaseSensitive(v, "data_offsets");
  int64_t begin, end, n_bytes;
  if (!cJSON_IsObject(v) || cJSON_GetArraySize(v) != 3 || !dtype || !shape || !span)
    return "wanted dtype, shape and data_offsets, once each and nothing else";
  *e = (dm_StEntry){.name = v->string, .dtype = read_dtype(dtype)};
  if (e->dtype == DM_NO_DTYPE)
#define ROW(X, E, S, BITS, NAME, METHOD, RANK, NPY, CODE, ...) " " CODE
    return "its dtype is none of" DM_DTYPES(ROW, );
#undef ROW
  if (!read_shape(e, shape)) return "its shape is not a list of up to 16 sizes";
  if (!cJSON_IsArray(span) || cJSON_GetArraySize(span) != 2 ||
      !read_integer(&begin, span->child) || !read_integer(&end, span->child->next))
    return "its data_offsets are not two offsets below 2^53";
  if (!dense_bytes(&n_bytes, e)) return "its shape overflows";
  if (end < begin || end - begin != n_bytes)
    return "its data_offsets do not fit its dtype and shape";
  e->offset = begin;
  e->n_bytes = n_bytes;
  return NULL;
}

/* Reads __metadata__, an object of strings, or null. */
static dm_status read_pairs(dm_StFile *f, const cJSON *object) {
  if (cJSON_IsNull(object)) return DM_OK;
  if (!cJSON_IsObject(object))
    return dm_fail(DM_EIO, "safetensors: '%s': __metadata__ is not an object", f->path);
  const int64_t n = cJSON_GetArraySize(object);
  const char *duplicate;
  DM_TRY(find_duplicate(f, object, n, &duplicate));
  if (duplicate)
    return dm_fail(DM_EIO, "safetensors: '%s': metadata key '%s' occurs twice", f->path,
                   duplicate);
  f->pairs = dm_alloc(n * (int64_t)sizeof *f->pairs);
  if (!f->pairs) return no_memory(f->path);
  for (const cJSON *v = object->child; v; v = v->next) {
    if (!cJSON_IsString(v))
      return dm_fail(DM_EIO, "safetensors: '%s': metadata '%s' is not a string", f->path,
                     v->string);
    f->pairs[f->n_pairs++] = (dm_StPair){v->string, v->valuestring};
  }
  return DM_OK;
}

/* Reads all members of the header but __metadata__ as tensors. */
static dm_status read_entries(dm_StFile *f) {
  const int64_t n = cJSON_GetArraySize(f->root);
  const char *duplicate;
  if (n > MAX_TENSORS + 1)
    return dm_fail(DM_EIO, "safetensors: '%s' has %" PRId64 " tensors, the limit is %d",
                   f->path, n, MAX_TENSORS);
  DM_TRY(find_duplicate(f, f->root, n, &duplicate));
  if (duplicate)
    return dm_fail(DM_EIO, "safetensors: '%s': name '%s' occurs twice", f->path, duplicate);
  f->entries = dm_alloc(n * (int64_t)sizeof *f->entries);
  if (!f->entries) return no_memory(f->path);
  for (const cJSON *v = f->root->child; v; v = v->next) {
    if (strcmp(v->string, "__metadata__") == 0) {
      DM_TRY(read_pairs(f, v));
      continue;
    }
    const char *fault = read_entry(&f->entries[f->n_entries], v);
    if (fault)
      return dm_fail(DM_EIO, "safetensors: '%s': tensor '%s': %s", f->path, v->string, fault);
    f->n_entries++;
  }
  return DM_OK;
}

/* By offset, then by size, so that empty tensors come before the one that shares their
   offset. */
static int by_offset(const void *a, const void *b) {
  const dm_StEntry *x = a, *y = b;
  if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
  if (x->n_bytes != y->n_bytes) return x->n_bytes < y->n_bytes ? -1 : 1;
  return strcmp(x->name, y->name);
}

/* The tensors must cover the data from its first to its last byte, with no
   overlap and no hole. */
static dm_status check_cover(dm_StFile *f) {
  int64_t at = 0;
  qsort(f->entries, (size_t)f->n_entries, sizeof *f->entries, by_offset);
  for (int64_t i = 0; i < f->n_entries; i++) {
    const dm_StEntry *e = &f->entries[i];
    if (e->offset != at)
      return dm_fail(DM_EIO,
                     "safetensors: '%s': tensor '%s' begins at byte %" PRId64
                     " of the data, the one before it ends at %" PRId64,
                     f->path, e->name, e->offset, at);
    at += e->n_bytes; /* each is below 2^53 and at most 2^20 are there: no overflow */
    if (at > f->data_bytes)
      return dm_fail(DM_EIO,
                     "safetensors: '%s' is cut short: tensor '%s' ends at byte %" PRId64
                     " of the data, which has %" PRId64,
                     f->path, e->name, at, f->data_bytes);
  }
  if (at != f->data_bytes)
    return dm_fail(DM_EIO,
                   "safetensors: '%s' holds %" PRId64 " bytes of data, its tensors %" PRId64,
                   f->path, f->data_bytes, at);
  return DM_OK;
}

/* Takes the checksums out of the metadata, and compares that of the metadata. */
static dm_status check_pair_sums(dm_StFile *f) {
  int64_t n = 0;
  for (int64_t i = 0; i < f->n_pairs; i++) {
    if (strcmp(f->pairs[i].key, SUMS_KEY) == 0) f->sums = f->pairs[i].value;
    else f->pairs[n++] = f->pairs[i];
  }
  f->n_pairs = n;
  if (f->sums && strlen(f->sums) != (size_t)(f->n_entries + 1) * SUM_DIGITS) f->sums = NULL;
  if (f->sums && !sum_is(f, 0, sum_pairs(f->pairs, n)))
    return dm_fail(DM_EIO,
                   "safetensors: '%s' is damaged: its metadata does not have the checksum "
                   "that it was saved with",
                   f->path);
  return DM_OK;
}

dm_status dm_st_open(dm_StFile **out, const char *path) {
  dm_status st = DM_OK;
  int64_t header_bytes = 0;
  dm_StFile *f = dm_alloc_zero(sizeof *f);
  if (!f) return no_memory(path);
  f->fd = -1;
  const size_t path_bytes = strlen(path) + 1;
  f->path = dm_alloc((int64_t)path_bytes);
  if (!f->path) {
    st = no_memory(path);
    goto done;
  }
  memcpy(f->path, path, path_bytes);
  DM_GO(open_file(f, &header_bytes));
  DM_GO(parse_header(f, header_bytes));
  DM_GO(read_entries(f));
  DM_GO(check_cover(f));
  DM_GO(check_pair_sums(f));
  *out = f;
done:
  if (st != DM_OK) dm_st_close(&f);
  return st;
}

void dm_st_close(dm_StFile **file) {
  dm_StFile *f = *file;
  *file = NULL;
  if (!f) return;
  if (f->fd >= 0) close(f->fd);
  cJSON_Delete(f->root);
  dm_free(f->entries);
  dm_free(f->pairs);
  dm_free(f->path);
  dm_free(f);
}

const dm_StEntry *dm_st_get_entries(const dm_StFile *f, int64_t *n) {
  *n = f->n_entries;
  return f->entries;
}

const dm_StPair *dm_st_get_pairs(const dm_StFile *f, int64_t *n) {
  *n = f->n_pairs;
  return f->pairs;
}

dm_status dm_st_read(const dm_StFile *f, const dm_StEntry *e, void *dst) {
  assert(e >= f->entries && e < f->entries + f->n_entries);
  dm_Checksum sum = dm_checksum_begin(f->sums ? entry_seed(e) : 0);
  for (int64_t at = 0; at < e->n_bytes; at += READ_BYTES) {
    const int64_t n = dm_min_i64(e->n_bytes - at, READ_BYTES);
    uint8_t *to = (uint8_t *)dst + at;
    DM_TRY(read_at(f, to, n, f->data_begin + e->offset + at));
    if (f->sums) dm_checksum_add(&sum, to, n);
  }
  if (f->sums && !sum_is(f, e - f->entries + 1, dm_checksum_end(&sum)))
    return dm_fail(DM_EIO,
                   "safetensors: '%s' is damaged: tensor '%s' does not have the checksum that "
                   "it was saved with",
                   f->path, e->name);
  if (e->dtype == DM_BOOL) dm_make_bools(dst, e->n_bytes);
  return DM_OK;
}

dm_status dm_st_read_part(const dm_StFile *f, const dm_StEntry *e, int64_t at, int64_t n,
                          void *dst) {
  assert(at >= 0 && n >= 0 && at + n <= e->n_bytes);
  DM_TRY(read_at(f, dst, n, f->data_begin + e->offset + at));
  if (e->dtype == DM_BOOL) dm_make_bools(dst, n);
  return DM_OK;
}

/* ---- writing: the header ---- */

/* The order of tensors in a file: larger elements first, then by name. */
static int by_layout(const void *a, const void *b) {
  const dm_StEntry *x = *(const dm_StEntry *const *)a;
  const dm_StEntry *y = *(const dm_StEntry *const *)b;
  const int ranks = types[y->dtype].rank - types[x->dtype].rank;
  return ranks ? ranks : strcmp(x->name, y->name);
}

/* Checks names, dtypes, shapes and the number of tensors before a file is opened. */
static dm_status check_entries(const dm_StEntry *entries, int64_t n) {
  if (n > MAX_TENSORS)
    return dm_fail(DM_EARG, "safetensors: %" PRId64 " tensors, a file takes %d", n,
                   MAX_TENSORS);
  int64_t total = 0;
  for (int64_t i = 0; i < n; i++) {
    const dm_StEntry *e = &entries[i];
    int64_t n_bytes;
    if (strcmp(e->name, "__metadata__") == 0)
      return dm_fail(DM_EARG, "safetensors: no tensor may be named '__metadata__'");
    if (!is_utf8(e->name, (int64_t)strlen(e->name)))
      return dm_fail(DM_EARG, "safetensors: name of tensor %" PRId64 " is not UTF-8", i + 1);
    if (e->dtype < 0 || e->dtype >= DM_N_DTYPE || e->n_dim < 0 || e->n_dim > DM_MAX_DIM ||
        !dense_bytes(&n_bytes, e) || n_bytes > (int64_t)INTEGER_LIMIT - total)
      return dm_fail(DM_EARG, "safetensors: tensor '%s' has no sound dtype and shape", e->name);
    total += n_bytes;
  }
  return DM_OK;
}

/* Fills order[n] with the entries in the file's order; refuses duplicate names. */
static dm_status order_entries(const dm_StEntry **order, const dm_StEntry *entries, int64_t n) {
  dm_status st = DM_OK;
  const char **names = dm_alloc(n * (int64_t)sizeof *names);
  if (!names)
    return dm_fail(DM_EMEM, "safetensors: out of memory writing %" PRId64 " tensors", n);
  for (int64_t i = 0; i < n; i++) {
    order[i] = &entries[i];
    names[i] = entries[i].name;
  }
  if (n > 0) {
    qsort(order, (size_t)n, sizeof *order, by_layout);
    qsort(names, (size_t)n, sizeof *names, by_text);
  }
  for (int64_t i = 1; i < n && st == DM_OK; i++)
    if (strcmp(names[i - 1], names[i]) == 0)
      st = dm_fail(DM_EARG, "safetensors: two tensors are named '%s'", names[i]);
  dm_free(names);
  return st;
}

/* Checks that metadata is UTF-8 and has no key twice. */
static dm_status check_pairs(const dm_StPair *pairs, int64_t n) {
  dm_status st = DM_OK;
  const char **keys = dm_alloc(n * (int64_t)sizeof *keys);
  if (!keys) return dm_fail(DM_EMEM, "safetensors: out of memory writing the metadata");
  for (int64_t i = 0; i < n; i++) {
    keys[i] = pairs[i].key;
    if (strcmp(pairs[i].key, SUMS_KEY) == 0) {
      st = dm_fail(DM_EARG, "safetensors: metadata key '%s' is taken by the checksums",
                   SUMS_KEY);
      goto done;
    }
    if (!is_utf8(pairs[i].key, (int64_t)strlen(pairs[i].key)) ||
        !is_utf8(pairs[i].value, (int64_t)strlen(pairs[i].value))) {
      st = dm_fail(DM_EARG, "safetensors: metadata pair %" PRId64 " is not UTF-8", i + 1);
      goto done;
    }
  }
  if (n > 0) qsort(keys, (size_t)n, sizeof *keys, by_text);
  for (int64_t i = 1; i < n && st == DM_OK; i++)
    if (strcmp(keys[i - 1], keys[i]) == 0)
      st = dm_fail(DM_EARG, "safetensors: metadata key '%s' occurs twice", keys[i]);
done:
  dm_free(keys);
  return st;
}

/* By key, so that equal metadata makes equal files. */
static int by_key(const void *a, const void *b) {
  return strcmp(((const dm_StPair *)a)->key, ((const dm_StPair *)b)->key);
}

/* *out = the pairs by their keys, and a last one without a value for the checksums. */
static dm_status order_pairs(dm_StPair **out, const dm_StPair *pairs, int64_t n) {
  dm_StPair *copy = dm_alloc((n + 1) * (int64_t)sizeof *copy);
  if (!copy) return dm_fail(DM_EMEM, "safetensors: out of memory writing the metadata");
  if (n > 0) {
    memcpy(copy, pairs, (size_t)n * sizeof *copy);
    qsort(copy, (size_t)n, sizeof *copy, by_key);
  }
  copy[n] = (dm_StPair){SUMS_KEY, NULL};
  *out = copy;
  return DM_OK;
}

/* *out = the checksums of the pairs, then of the tensors in the file's order, as hex. */
static dm_status make_sums(char **out, const dm_StEntry *const *order,
                           const dm_StEntry *entries, const void *const *data, int64_t n,
                           const dm_StPair *pairs, int64_t n_pairs) {
  char *text = dm_alloc((n + 1) * SUM_DIGITS + 1);
  if (!text) return dm_fail(DM_EMEM, "safetensors: out of memory writing the checksums");
  snprintf(text, SUM_DIGITS + 1, "%016" PRIx64, sum_pairs(pairs, n_pairs));
  for (int64_t i = 0; i < n; i++) {
    int64_t n_bytes = 0;
    dense_bytes(&n_bytes, order[i]);
    dm_Checksum sum = dm_checksum_begin(entry_seed(order[i]));
    if (n_bytes > 0) dm_checksum_add(&sum, data[order[i] - entries], n_bytes);
    snprintf(text + (i + 1) * SUM_DIGITS, SUM_DIGITS + 1, "%016" PRIx64, dm_checksum_end(&sum));
  }
  *out = text;
  return DM_OK;
}

/* Adds __metadata__ to the header; false without memory. */
static bool add_pairs(cJSON *root, const dm_StPair *pairs, int64_t n) {
  cJSON *object = cJSON_AddObjectToObject(root, "__metadata__");
  for (int64_t i = 0; i < n && object; i++)
    if (!cJSON_AddStringToObject(object, pairs[i].key, pairs[i].value)) return false;
  return object != NULL;
}

/* Adds one tensor to the header. Numbers are added as text: cJSON would print large ones as
   2e+15. */
static bool add_entry(cJSON *root, const dm_StEntry *e, int64_t begin, int64_t end) {
  char shape[DM_MAX_DIM * 21 + 3] = "[", span[2 * 21 + 3];
  int k = 1;
  for (int d = 0; d < e->n_dim; d++)
    k += snprintf(shape + k, sizeof shape - (size_t)k, "%s%" PRId64, d ? "," : "", e->shape[d]);
  snprintf(shape + k, sizeof shape - (size_t)k, "]");
  snprintf(span, sizeof span, "[%" PRId64 ",%" PRId64 "]", begin, end);
  cJSON *object = cJSON_AddObjectToObject(root, e->name);
  return object && cJSON_AddStringToObject(object, "dtype", types[e->dtype].name) &&
         cJSON_AddRawToObject(object, "shape", shape) &&
         cJSON_AddRawToObject(object, "data_offsets", span);
}

/* *out = the length and the header, *n_bytes in all. The header is padded with spaces to a
   multiple of 8, so that the data begins aligned. */
static dm_status make_header(char **out, int64_t *n_bytes, const dm_StEntry *const *order,
                             int64_t n, const dm_StPair *pairs, int64_t n_pairs) {
  dm_status st = DM_OK;
  char *text = NULL;
  cJSON *root = cJSON_CreateObject();
  bool ok = root && (n_pairs == 0 || add_pairs(root, pairs, n_pairs));
  int64_t at = 0;
  for (int64_t i = 0; i < n && ok; i++) {
    int64_t size = 0;
    dense_bytes(&size, order[i]);
    ok = add_entry(root, order[i], at, at + size);
    at += size;
  }
  if (ok) text = cJSON_PrintUnformatted(root);
  if (!text) {
    st = dm_fail(DM_EMEM, "safetensors: out of memory writing the header");
    goto done;
  }
  const int64_t used = (int64_t)strlen(text), padded = (used + 7) / 8 * 8;
  if (padded > MAX_HEADER) {
    st = dm_fail(DM_EARG,
                 "safetensors: names and metadata take %" PRId64 " bytes, the limit is %d",
                 padded, MAX_HEADER);
    goto done;
  }
  char *header = dm_alloc(LENGTH_BYTES + padded);
  if (!header) {
    st = dm_fail(DM_EMEM, "safetensors: out of memory writing the header");
    goto done;
  }
  for (int i = 0; i < LENGTH_BYTES; i++)
    header[i] = (char)(uint8_t)((uint64_t)padded >> (8 * i));
  memcpy(header + LENGTH_BYTES, text, (size_t)used);
  memset(header + LENGTH_BYTES + used, ' ', (size_t)(padded - used));
  *out = header;
  *n_bytes = LENGTH_BYTES + padded;
done:
  cJSON_free(text);
  cJSON_Delete(root);
  return st;
}

/* ---- writing: the file ---- */

/* All checks precede the file; after a failure the temporary file is removed. */
dm_status dm_st_write(const char *path, const dm_StEntry *entries, const void *const *data,
                      int64_t n, const dm_StPair *given, int64_t n_pairs, bool checked) {
  dm_status st = DM_OK;
  dm_AtomicFile file = DM_ATOMIC_FILE("safetensors", path);
  char *header = NULL, *sums = NULL;
  dm_StPair *pairs = NULL;
  int64_t header_bytes = 0;
  DM_TRY(check_entries(entries, n));
  DM_TRY(check_pairs(given, n_pairs));
  const dm_StEntry **order = dm_alloc(n * (int64_t)sizeof *order);
  if (!order)
    return dm_fail(DM_EMEM, "safetensors: out of memory writing %" PRId64 " tensors", n);
  DM_GO(order_entries(order, entries, n));
  DM_GO(order_pairs(&pairs, given, n_pairs));
  if (checked) {
    DM_GO(make_sums(&sums, order, entries, data, n, pairs, n_pairs));
    pairs[n_pairs++].value = sums;
  }
  DM_GO(make_header(&header, &header_bytes, order, n, pairs, n_pairs));
  DM_GO(dm_atomic_file_open(&file));
  DM_GO(dm_atomic_file_write(&file, header, header_bytes));
  for (int64_t i = 0; i < n; i++) {
    int64_t n_bytes = 0;
    dense_bytes(&n_bytes, order[i]);
    DM_GO(dm_atomic_file_write(&file, data[order[i] - entries], n_bytes));
  }
  DM_GO(dm_atomic_file_finish(&file));
done:
  dm_atomic_file_close(&file);
  dm_free(header);
  dm_free(sums);
  dm_free(pairs);
  dm_free(order);
  return st;
}

/* ---- writing: by several processes ---- */

typedef struct Part {
  int64_t begin, n_bytes; /* in the file */
  int64_t position;       /* in the order of the file */
  uint64_t seed;          /* of its checksum */
} Part;

struct dm_StParts {
  dm_AtomicFile file;
  char *path, *header; /* owned; in the header are no checksums yet */
  char *sums;          /* the digits in the header */
  int64_t header_bytes, n;
  uint64_t pairs_sum;
  Part *parts; /* (n) as the entries were given */
};

/* Finds the digits of the checksums in the header. Quotes within a JSON string have a backslash
   in front, so that no other text has this form. */
static char *find_sums(char *header, int64_t n) {
  char text[sizeof SUMS_KEY + 8];
  const int k = snprintf(text, sizeof text, "\"%s\":\"", SUMS_KEY);
  for (int64_t i = LENGTH_BYTES; i + k <= n; i++)
    if (memcmp(header + i, text, (size_t)k) == 0) return header + i + k;
  return NULL;
}

/* Makes the header with zeros for the checksums, and notes where each entry's data begins. */
static dm_status plan_parts(dm_StParts *p, const dm_StEntry *entries, const dm_StPair *given,
                            int64_t n_pairs) {
  dm_status st = DM_OK;
  dm_StPair *pairs = NULL;
  char *sums = NULL;
  const dm_StEntry **order = dm_alloc((p->n + 1) * (int64_t)sizeof *order);
  if (!order) return no_memory(p->path);
  DM_GO(order_entries(order, entries, p->n));
  DM_GO(order_pairs(&pairs, given, n_pairs));
  const int64_t n_digits = (p->n + 1) * SUM_DIGITS;
  sums = dm_alloc(n_digits + 1);
  if (!sums) {
    st = no_memory(p->path);
    goto done;
  }
  memset(sums, '0', (size_t)n_digits);
  sums[n_digits] = '\0';
  p->pairs_sum = sum_pairs(pairs, n_pairs);
  pairs[n_pairs].value = sums;
  DM_GO(make_header(&p->header, &p->header_bytes, order, p->n, pairs, n_pairs + 1));
  p->sums = find_sums(p->header, p->header_bytes);
  int64_t at = p->header_bytes;
  for (int64_t i = 0; i < p->n; i++) {
    Part *part = &p->parts[order[i] - entries];
    *part = (Part){.begin = at, .position = i, .seed = entry_seed(order[i])};
    dense_bytes(&part->n_bytes, order[i]);
    at += part->n_bytes;
  }
done:
  dm_free(sums);
  dm_free(pairs);
  dm_free(order);
  return st;
}

dm_status dm_st_parts_open(dm_StParts **out, const char *path, const char *temp,
                           const dm_StEntry *entries, int64_t n, const dm_StPair *pairs,
                           int64_t n_pairs) {
  dm_status st = DM_OK;
  DM_TRY(check_entries(entries, n));
  DM_TRY(check_pairs(pairs, n_pairs));
  dm_StParts *p = dm_alloc_zero(sizeof *p);
  if (!p) return no_memory(path);
  const size_t path_bytes = strlen(path) + 1;
  p->n = n;
  p->path = dm_alloc((int64_t)path_bytes);
  p->parts = dm_alloc_zero((n + 1) * (int64_t)sizeof *p->parts);
  p->file = (dm_AtomicFile)DM_ATOMIC_FILE("safetensors", p->path);
  if (!p->path || !p->parts) {
    st = no_memory(path);
    goto done;
  }
  memcpy(p->path, path, path_bytes);
  DM_GO(plan_parts(p, entries, pairs, n_pairs));
  DM_GO(temp ? dm_atomic_file_join(&p->file, temp) : dm_atomic_file_open_named(&p->file));
  *out = p;
done:
  if (st != DM_OK) dm_st_parts_close(&p);
  return st;
}

void dm_st_parts_close(dm_StParts **parts) {
  dm_StParts *p = *parts;
  *parts = NULL;
  if (!p) return;
  dm_atomic_file_close(&p->file);
  dm_free(p->path);
  dm_free(p->header);
  dm_free(p->parts);
  dm_free(p);
}

const char *dm_st_parts_temp(const dm_StParts *p) { return p->file.temp; }
int64_t dm_st_parts_count(const dm_StParts *p) { return p->n; }
int64_t dm_st_parts_bytes(const dm_StParts *p, int64_t i) { return p->parts[i].n_bytes; }

dm_RunningSum dm_st_parts_begin(const dm_StParts *p, int64_t i) {
  return (dm_RunningSum){.sum = dm_checksum_begin(p->parts[i].seed)};
}

dm_status dm_st_parts_write(const dm_StParts *p, int64_t i, int64_t at, const void *src,
                            int64_t n, dm_RunningSum *sum) {
  const Part *part = &p->parts[i];
  assert(at >= 0 && n >= 0 && at + n <= part->n_bytes);
  if (n > 0) dm_running_add(sum, src, n);
  return dm_atomic_file_write_at(&p->file, src, n, part->begin + at);
}

dm_status dm_st_parts_sync(const dm_StParts *p) { return dm_atomic_file_sync(&p->file); }

static void put_sum(char *digits, uint64_t sum) {
  char text[SUM_DIGITS + 1];
  snprintf(text, sizeof text, "%016" PRIx64, sum);
  memcpy(digits, text, SUM_DIGITS);
}

dm_status dm_st_parts_finish(dm_StParts *p, const uint64_t *sums) {
  put_sum(p->sums, p->pairs_sum);
  for (int64_t i = 0; i < p->n; i++)
    put_sum(p->sums + (p->parts[i].position + 1) * SUM_DIGITS, sums[i]);
  DM_TRY(dm_atomic_file_write_at(&p->file, p->header, p->header_bytes, 0));
  return dm_atomic_file_finish(&p->file);
}
