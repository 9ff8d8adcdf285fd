/* Checks src/data: IDX, safetensors, the loader and gather; with damaged
   files, a disk that is full, memory that runs out, and every number of
   workers. Meant to run under the sanitizers too: a wrong read or a race is a
   failure there. Works in a folder of its own under TMPDIR. */
#define _POSIX_C_SOURCE 200809L
#define _XOPEN_SOURCE 700
#include <dirent.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/rng.h"
#include "data/idx.h"
#include "data/inflate.h"
#include "data/loader.h"
#include "data/safetensors.h"
#include "data/zip.h"
#include "data/tokens.h"

enum { N_FUZZ = 2000, FILE_MAX = 1 << 16 };

static int n_passed, n_failed;
static char dir[256];

static void check_at(bool ok, const char *what, int line) {
  if (ok) {
    n_passed++;
    return;
  }
  n_failed++;
  printf("data_check.c:%d: %s (last error: %s)\n", line, what, dm_error());
}
#define CHECK(cond) check_at((cond), #cond, __LINE__)
/* st is what was expected, and the message says why. */
#define CHECK_FAIL(call, code, text)           \
  do {                                         \
    CHECK((call) == (code));                   \
    CHECK(strstr(dm_error(), (text)) != NULL); \
  } while (0)

static uint64_t rng = 1;

static const char *path_of(const char *name) {
  static char path[512];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  return path;
}

static const char *put_file(const char *name, const void *bytes, size_t n) {
  const char *path = path_of(name);
  FILE *f = fopen(path, "wb");
  if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) abort();
  return path;
}

static size_t get_file(const char *name, uint8_t *bytes) {
  FILE *f = fopen(path_of(name), "rb");
  if (!f) return 0;
  const size_t n = fread(bytes, 1, FILE_MAX, f);
  fclose(f);
  return n;
}

static int count_files(void) {
  DIR *d = opendir(dir);
  int n = 0;
  while (readdir(d)) n++;
  closedir(d);
  return n - 2;
}

/* Changes 1 to 4 bytes; sometimes cuts the end off. */
static size_t damage(uint8_t *b, size_t n) {
  const int k = 1 + (int)(dm_splitmix64(&rng) % 4);
  for (int i = 0; i < k; i++)
    b[dm_splitmix64(&rng) % n] ^= (uint8_t)(1 + dm_splitmix64(&rng) % 255);
  return dm_splitmix64(&rng) % 8 ? n : dm_splitmix64(&rng) % n;
}

/* ---- IDX ---- */

static size_t gzip_bytes(uint8_t *dst, const void *src, size_t n) {
  enum { SPACE = FILE_MAX / 2 };
  z_stream z = {.next_in = (void *)(uintptr_t)src,
                .avail_in = (unsigned)n,
                .next_out = dst,
                .avail_out = SPACE};
  if (deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) abort();
  if (deflate(&z, Z_FINISH) != Z_STREAM_END) abort();
  deflateEnd(&z);
  return SPACE - z.avail_out;
}

static void check_idx_types(void) {
  static const struct {
    uint8_t code;
    dm_DType dtype;
    uint8_t raw[16];
    size_t n_raw;
  } cases[] = {{0x08, DM_U8, {200, 3}, 2},
               {0x09, DM_I8, {0xfe, 3}, 2},
               {0x0b, DM_I16, {0xff, 0xfe, 0, 3}, 4},
               {0x0c, DM_I32, {0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 3}, 8},
               {0x0d, DM_F32, {0x3f, 0xc0, 0, 0, 0xc0, 0, 0, 0}, 8},
               {0x0e, DM_F64, {0x3f, 0xf8, 0, 0, 0, 0, 0, 0, 0xc0, 0, 0, 0, 0, 0, 0, 0}, 16}};
  const double want[][2] = {{200, 3}, {-2, 3}, {-2, 3}, {-2, 3}, {1.5, -2}, {1.5, -2}};
  for (int i = 0; i < DM_COUNT(cases); i++) {
    uint8_t file[64] = {0, 0, cases[i].code, 2, 0, 0, 0, 2, 0, 0, 0, 1};
    memcpy(file + 12, cases[i].raw, cases[i].n_raw);
    dm_Idx x = {0};
    CHECK(dm_idx_read(&x, put_file("t.idx", file, 12 + cases[i].n_raw)) == DM_OK);
    CHECK(x.dtype == cases[i].dtype && x.n_dim == 2 && x.shape[0] == 2 && x.shape[1] == 1);
    CHECK(x.n_bytes == (int64_t)cases[i].n_raw);
    double got[2] = {0, 0};
    for (int k = 0; k < 2; k++)
      got[k] = x.dtype == DM_U8    ? (double)((uint8_t *)x.data)[k]
               : x.dtype == DM_I8  ? (double)((int8_t *)x.data)[k]
               : x.dtype == DM_I16 ? (double)((int16_t *)x.data)[k]
               : x.dtype == DM_I32 ? (double)((int32_t *)x.data)[k]
               : x.dtype == DM_F32 ? (double)((float *)x.data)[k]
                                   : ((double *)x.data)[k];
    CHECK(got[0] == want[i][0] && got[1] == want[i][1]);
    dm_free(x.data);
  }
}

static void check_idx_faults(void) {
  static uint8_t gz[FILE_MAX];
  dm_Idx x = {0};
  uint8_t file[4096] = {0, 0, 8, 2, 0, 0, 0, 60, 0, 0, 0, 60};
  const size_t n = 12 + 3600;
  for (size_t i = 12; i < n; i++) file[i] = (uint8_t)(i * i >> 3);

  CHECK_FAIL(dm_idx_read(&x, path_of("none")), DM_EIO, "No such file");
  CHECK_FAIL(dm_idx_read(&x, dir), DM_EIO, "regular file");
  CHECK_FAIL(dm_idx_read(&x, put_file("b", "", 0)), DM_EIO, "cut short");
  CHECK_FAIL(dm_idx_read(&x, put_file("b", "PNG!abc", 7)), DM_EIO, "no IDX file");
  CHECK_FAIL(dm_idx_read(&x, put_file("b", file, 9)), DM_EIO, "inside its header");
  CHECK_FAIL(dm_idx_read(&x, put_file("b", file, n - 1)), DM_EIO, "cut short");
  CHECK_FAIL(dm_idx_read(&x, put_file("b", file, n + 1)), DM_EIO, "holds more");
  CHECK_FAIL(dm_idx_read(&x, put_file("b", "\0\0\10\21", 4)), DM_EIO, "17 dims");

  size_t m = gzip_bytes(gz, file, n);
  CHECK(dm_idx_read(&x, put_file("b", gz, m)) == DM_OK);
  CHECK(x.n_bytes == 3600 && memcmp(x.data, file + 12, 3600) == 0);
  dm_free(x.data);
  CHECK_FAIL(dm_idx_read(&x, put_file("b", gz, m - 5)), DM_EIO, "gzip data ends early");
  memcpy(gz + m, "garbage", 7);
  CHECK_FAIL(dm_idx_read(&x, put_file("b", gz, m + 7)), DM_EIO, "damaged");
  gz[m - 6] ^= 1; /* inside the CRC */
  CHECK_FAIL(dm_idx_read(&x, put_file("b", gz, m)), DM_EIO, "incorrect data check");
  gz[m - 6] ^= 1;

  /* two members, as cat a.gz b.gz makes them, are one stream */
  const size_t first = gzip_bytes(gz, file, 100);
  const size_t both = first + gzip_bytes(gz + first, file + 100, n - 100);
  CHECK(dm_idx_read(&x, put_file("b", gz, both)) == DM_OK);
  CHECK(x.n_bytes == 3600 && memcmp(x.data, file + 12, 3600) == 0);
  dm_free(x.data);

  /* a header that lies: 2^32-1 squared overflows, 255 GiB of data are not there */
  const uint8_t vast[] = {0,   0,   14,  3,   255, 255, 255, 255,
                          255, 255, 255, 255, 255, 255, 255, 255};
  const uint8_t large[] = {0, 0, 8, 2, 0, 255, 255, 255, 0, 0, 64, 0, 1, 2, 3};
  CHECK_FAIL(dm_idx_read(&x, put_file("b", vast, sizeof vast)), DM_EIO, "overflow");
  CHECK_FAIL(dm_idx_read(&x, put_file("b", large, sizeof large)), DM_EIO, "3 bytes of data");
}

/* Any damage ends in DM_OK or a refusal, never in a crash, and leaks nothing. */
static void check_idx_fuzz(void) {
  static uint8_t good[FILE_MAX], bad[FILE_MAX];
  uint8_t file[4096] = {0, 0, 12, 2, 0, 0, 0, 30, 0, 0, 0, 30};
  for (size_t i = 12; i < 12 + 3600; i++) file[i] = (uint8_t)(i * 7 >> 2);
  const size_t n = gzip_bytes(good, file, 12 + 3600);
  const int64_t live = dm_alloc_live();
  int refused = 0;
  for (int i = 0; i < N_FUZZ; i++) {
    const bool plain = i % 4 == 0;
    const size_t size = plain ? 600 : n;
    memcpy(bad, plain ? file : good, size);
    dm_Idx x = {0};
    if (dm_idx_read(&x, put_file("f", bad, damage(bad, size))) == DM_OK) dm_free(x.data);
    else refused++;
  }
  CHECK(refused > N_FUZZ * 9 / 10);
  CHECK(dm_alloc_live() == live);
}

/* ---- safetensors ---- */

/* What the reference implementation (version 0.8.0) writes for `sample`. */
static const char golden[] =
    "P\2\0\0\0\0\0\0{\"__metadata__\":{\"k\":\"v\\n\\\"x\\\"\"},"
    "\"n\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
    "\"d\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[8,16]},"
    "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[16,24]},"
    "\"i\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[24,28]},"
    "\"bf\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[28,30]},"
    "\"half\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[30,34]},"
    "\"a\":{\"dtype\":\"I16\",\"shape\":[1,3],\"data_offsets\":[34,40]},"
    "\"c\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[40,41]},"
    "\"u\":{\"dtype\":\"U8\",\"shape\":[0,4],\"data_offsets\":[41,41]},"
    "\"h\xc3\xa9\\\"\":{\"dtype\":\"BOOL\",\"shape\":[],\"data_offsets\":[41,42]}}  "
    "\7\0\0\0\0\0\0\0"
    "\0\0\0\0\0\0\xd0\x3f"
    "\0\0\xc0\x3f\0\0\0\xc0"
    "\xff\xff\xff\xff"
    "\x80\x3f"
    "\0\x3c\0\x40"
    "\1\0\2\0\3\0"
    "\xfb"
    "\1";
enum { GOLDEN_BYTES = sizeof golden - 1, N_SAMPLE = 10 };

static const dm_StEntry sample[N_SAMPLE] = {
    {.name = "b", .dtype = DM_F32, .n_dim = 1, .shape = {2}},
    {.name = "a", .dtype = DM_I16, .n_dim = 2, .shape = {1, 3}},
    {.name = "h\xc3\xa9\"", .dtype = DM_BOOL},
    {.name = "half", .dtype = DM_F16, .n_dim = 1, .shape = {2}},
    {.name = "bf", .dtype = DM_BF16, .n_dim = 1, .shape = {1}},
    {.name = "n", .dtype = DM_I64},
    {.name = "d", .dtype = DM_F64, .n_dim = 1, .shape = {1}},
    {.name = "i", .dtype = DM_I32, .n_dim = 1, .shape = {1}},
    {.name = "u", .dtype = DM_U8, .n_dim = 2, .shape = {0, 4}},
    {.name = "c", .dtype = DM_I8, .n_dim = 1, .shape = {1}}};
static const void *const sample_data[N_SAMPLE] = {"\0\0\xc0\x3f\0\0\0\xc0",
                                                  "\1\0\2\0\3\0",
                                                  "\1",
                                                  "\0\x3c\0\x40",
                                                  "\x80\x3f",
                                                  "\7\0\0\0\0\0\0\0",
                                                  "\0\0\0\0\0\0\xd0\x3f",
                                                  "\xff\xff\xff\xff",
                                                  NULL,
                                                  "\xfb"};
static const dm_StPair sample_pair = {"k", "v\n\"x\""};

static dm_status write_sample(const char *name) {
  return dm_st_write(path_of(name), sample, sample_data, N_SAMPLE, &sample_pair, 1, false);
}

static void check_st_round_trip(void) {
  static uint8_t bytes[FILE_MAX];
  CHECK(write_sample("s.st") == DM_OK);
  CHECK(get_file("s.st", bytes) == GOLDEN_BYTES);
  CHECK(memcmp(bytes, golden, GOLDEN_BYTES) == 0);
  dm_StFile *f = NULL;
  int64_t n, n_pairs;
  CHECK(dm_st_open(&f, path_of("s.st")) == DM_OK);
  if (!f) return;
  const dm_StEntry *e = dm_st_get_entries(f, &n);
  const dm_StPair *pair = dm_st_get_pairs(f, &n_pairs);
  CHECK(n == N_SAMPLE && n_pairs == 1);
  CHECK(strcmp(pair->key, "k") == 0 && strcmp(pair->value, sample_pair.value) == 0);
  for (int64_t i = 0; i < n; i++)
    for (int k = 0; k < N_SAMPLE; k++) {
      if (strcmp(e[i].name, sample[k].name) != 0) continue;
      char dst[16];
      CHECK(e[i].dtype == sample[k].dtype && e[i].n_dim == sample[k].n_dim);
      CHECK(memcmp(e[i].shape, sample[k].shape, sizeof e[i].shape) == 0);
      CHECK(dm_st_read(f, &e[i], dst) == DM_OK);
      CHECK(e[i].n_bytes == 0 || memcmp(dst, sample_data[k], (size_t)e[i].n_bytes) == 0);
    }
  dm_st_close(&f);
  CHECK(f == NULL);
  CHECK(dm_st_write(path_of("e.st"), NULL, NULL, 0, NULL, 0, false) == DM_OK);
  CHECK(dm_st_open(&f, path_of("e.st")) == DM_OK);
  dm_st_close(&f);
}

/* A file of this header text and n_data zero bytes. */
static const char *put_header(const char *text, size_t n_data) {
  static uint8_t bytes[FILE_MAX];
  const size_t n = strlen(text);
  memset(bytes, 0, 8 + n + n_data);
  bytes[0] = (uint8_t)n;
  bytes[1] = (uint8_t)(n >> 8);
  memcpy(bytes + 8, text, n);
  return put_file("h.st", bytes, 8 + n + n_data);
}

#define T(dtype, shape, span) \
  "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" span "}"

static void check_st_faults(void) {
  static const struct {
    const char *header;
    size_t n_data;
    const char *says;
  } cases[] = {
      {"", 0, "not a JSON object"},
      {"[]", 0, "not a JSON object"},
      {"{} x", 0, "not a JSON object"},
      {"{", 0, "not a JSON object"},
      {"{\"a\xff\":1}", 0, "not UTF-8"},
      {"{\"a\\u0000b\":1}", 0, "holds NUL"},
      {"{\"a\nb\":1}", 0, "control character"},
      {"{\"a\":[[[1]]]}", 0, "nests deeper"},
      {"{}", 1, "its tensors 0"},
      {"{\"a\":7}", 0, "wanted dtype"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "wanted dtype"},
      {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
       "wanted dtype"},
      {"{\"a\":" T("F8", "[1]", "[0,1]") "}", 1, "its dtype"},
      {"{\"a\":" T("U8", "[-1]", "[0,1]") "}", 1, "its shape"},
      {"{\"a\":" T("U8", "[1.5]", "[0,1]") "}", 1, "its shape"},
      {"{\"a\":" T("U8", "[\"1\"]", "[0,1]") "}", 1, "its shape"},
      {"{\"a\":" T("U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, "up to 16"},
      {"{\"a\":" T("U8", "[9007199254740993]", "[0,1]") "}", 1, "its shape"},
      {"{\"a\":" T("F64", "[4294967296,4294967296]", "[0,0]") "}", 0, "overflows"},
      {"{\"a\":" T("F32", "[2]", "[0,7]") "}", 7, "do not fit"},
      {"{\"a\":" T("U8", "[1]", "[1,0]") "}", 1, "do not fit"},
      {"{\"a\":" T("U8", "[1]", "[0]") "}", 1, "not two offsets"},
      {"{\"a\":" T("U8", "[1]", "[-1,0]") "}", 1, "not two offsets"},
      {"{\"a\":" T("U8", "[9]", "[0,9]") "}", 4, "cut short"},
      {"{\"a\":" T("U8", "[1]", "[1,2]") "}", 2, "begins at byte 1"},
      {"{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[2]", "[1,3]") "}", 3, "begins at"},
      {"{\"a\":" T("U8", "[1]", "[0,1]") ",\"b\":" T("U8", "[1]", "[2,3]") "}", 3, "begins at"},
      {"{\"a\":" T("U8", "[1]", "[0,1]") "}", 2, "holds 2 bytes"},
      {"{\"a\":" T("U8", "[1]", "[0,1]") ",\"a\":" T("U8", "[1]", "[1,2]") "}", 2, "twice"},
      {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "twice"},
      {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "twice"},
      {"{\"__metadata__\":{\"k\":1}}", 0, "not a string"},
      {"{\"__metadata__\":[]}", 0, "not an object"}};
  const int64_t live = dm_alloc_live();
  dm_StFile *f = NULL;
  for (int i = 0; i < DM_COUNT(cases); i++)
    CHECK_FAIL(dm_st_open(&f, put_header(cases[i].header, cases[i].n_data)), DM_EIO,
               cases[i].says);
  CHECK_FAIL(dm_st_open(&f, path_of("none")), DM_EIO, "No such file");
  CHECK_FAIL(dm_st_open(&f, dir), DM_EIO, "not a regular file");
  CHECK_FAIL(dm_st_open(&f, put_file("h.st", "abc", 3)), DM_EIO, "cut short");
  CHECK_FAIL(dm_st_open(&f, put_file("h.st", "\377\377\0\0\0\0\0\0{}", 10)), DM_EIO,
             "cut short");
  CHECK_FAIL(dm_st_open(&f, put_file("h.st", "PK\3\4abcdefgh", 12)), DM_EIO, "limit");
  CHECK_FAIL(dm_st_open(&f, put_file("h.st", "\4\0\0\0\0\0\0\0{}\0 ", 12)), DM_EIO, "NUL");
  mkfifo(path_of("pipe"), 0600);
  CHECK_FAIL(dm_st_open(&f, path_of("pipe")), DM_EIO, "not a regular file");
  CHECK(dm_st_open(&f, put_header("{\"__metadata__\":null}  ", 0)) == DM_OK);
  dm_st_close(&f);
  uint8_t b = 7;
  CHECK(dm_st_open(&f, put_header("{\"a\":" T("BOOL", "[1]", "[0,1]") "}", 1)) == DM_OK);
  int64_t n;
  CHECK(truncate(path_of("h.st"), 60) == 0);
  CHECK_FAIL(dm_st_read(f, dm_st_get_entries(f, &n), &b), DM_EIO, "became shorter");
  dm_st_close(&f);
  CHECK(dm_alloc_live() == live && f == NULL);
}

static void check_st_fuzz(void) {
  uint8_t bad[GOLDEN_BYTES], dst[GOLDEN_BYTES];
  const int64_t live = dm_alloc_live();
  int refused = 0;
  for (int i = 0; i < N_FUZZ; i++) {
    memcpy(bad, golden, GOLDEN_BYTES);
    dm_StFile *f = NULL;
    int64_t n;
    if (dm_st_open(&f, put_file("f", bad, damage(bad, GOLDEN_BYTES))) != DM_OK) {
      refused++;
      continue;
    }
    const dm_StEntry *e = dm_st_get_entries(f, &n);
    for (int64_t k = 0; k < n; k++)
      if (e[k].n_bytes > GOLDEN_BYTES || dm_st_read(f, &e[k], dst) != DM_OK) CHECK(false);
    dm_st_close(&f);
  }
  CHECK(refused > N_FUZZ / 2);
  CHECK(dm_alloc_live() == live);
}

static void check_st_writer(void) {
  static uint8_t bytes[FILE_MAX];
  const int n_files = count_files();
  dm_StEntry duplicates[2] = {{.name = "x", .dtype = DM_U8, .n_dim = 1, .shape = {1}},
                              {.name = "x", .dtype = DM_U8, .n_dim = 1, .shape = {1}}};
  const void *data[2] = {"a", "b"};
  const dm_StPair pairs[2] = {{"k", "1"}, {"k", "2"}};
  const char *out = path_of("s.st");
  CHECK_FAIL(dm_st_write(out, duplicates, data, 2, NULL, 0, false), DM_EARG, "two tensors");
  CHECK_FAIL(dm_st_write(out, duplicates, data, 1, pairs, 2, false), DM_EARG, "twice");
  CHECK_FAIL(dm_st_write(out, duplicates, data, (1 << 20) + 1, NULL, 0, false), DM_EARG,
             "1048577 tensors, a file takes 1048576");
  CHECK_FAIL(dm_st_write(out, duplicates, data, 1, &(dm_StPair){"k", "\xff"}, 1, false),
             DM_EARG, "metadata pair 1 is not UTF-8");
  duplicates[0].name = "\xff";
  CHECK_FAIL(dm_st_write(out, duplicates, data, 1, NULL, 0, false), DM_EARG, "UTF-8");
  duplicates[0].name = "__metadata__";
  CHECK_FAIL(dm_st_write(out, duplicates, data, 1, NULL, 0, false), DM_EARG, "__metadata__");
  duplicates[0].name = "x";
  duplicates[0].shape[0] = -1;
  CHECK_FAIL(dm_st_write(out, duplicates, data, 1, NULL, 0, false), DM_EARG, "shape");
  duplicates[0].shape[0] = 1;
  CHECK_FAIL(dm_st_write("/dev/full", duplicates, data, 1, NULL, 0, false), DM_EIO, "regular");
  CHECK_FAIL(dm_st_write(path_of("no/such"), duplicates, data, 1, NULL, 0, false), DM_EIO,
             "folder");
  CHECK_FAIL(dm_st_write(dir, duplicates, data, 1, NULL, 0, false), DM_EIO, "regular");
  CHECK_FAIL(dm_st_write("", duplicates, data, 1, NULL, 0, false), DM_EIO, "nothing");
  CHECK(get_file("s.st", bytes) == GOLDEN_BYTES && memcmp(bytes, golden, GOLDEN_BYTES) == 0);
  CHECK(count_files() == n_files);

  /* rights and links of the old file stay */
  struct stat info;
  chmod(path_of("s.st"), 0640);
  CHECK(symlink("s.st", path_of("link.st")) == 0);
  CHECK(write_sample("link.st") == DM_OK);
  CHECK(lstat(path_of("link.st"), &info) == 0 && S_ISLNK(info.st_mode));
  CHECK(stat(path_of("s.st"), &info) == 0 && (info.st_mode & 0777) == 0640);
  CHECK(count_files() == n_files + 1);
}

/* A limit on file size stands for a disk that is full: write() fails midway. */
static void check_st_disk_full(void) {
  static uint8_t bytes[FILE_MAX];
  static const char large[1 << 18];
  const dm_StEntry e = {.name = "x", .dtype = DM_U8, .n_dim = 1, .shape = {sizeof large}};
  const void *data = large;
  struct rlimit old, small;
  const int n_files = count_files();
  signal(SIGXFSZ, SIG_IGN);
  getrlimit(RLIMIT_FSIZE, &old);
  small = old;
  small.rlim_cur = 100000;
  CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
  CHECK_FAIL(dm_st_write(path_of("s.st"), &e, &data, 1, NULL, 0, false), DM_EIO, "too large");
  CHECK_FAIL(dm_st_write(path_of("new.st"), &e, &data, 1, NULL, 0, false), DM_EIO, "too large");
  setrlimit(RLIMIT_FSIZE, &old);
  CHECK(get_file("s.st", bytes) == GOLDEN_BYTES && memcmp(bytes, golden, GOLDEN_BYTES) == 0);
  CHECK(count_files() == n_files);
  CHECK(dm_st_write(path_of("s.st"), &e, &data, 1, NULL, 0, false) == DM_OK);
}

/* ---- loader ---- */

enum { N = 103, H = 6, W = 5, C = 2, BATCH = 8 };
static uint8_t pixels[N * C * H * W];
static float points[N * 3];
static int64_t labels[N], order[N];
static const float mean[C] = {0.25f, 0.5f}, std[C] = {0.5f, 2.0f};
static const dm_Transform transforms[] = {
    {.kind = DM_TRANSFORM_CROP, .height = H, .width = W, .pad = {2, 2, 2, 2}},
    {.kind = DM_TRANSFORM_HFLIP, .p = 0.5},
    {.kind = DM_TRANSFORM_TO_FLOAT},
    {.kind = DM_TRANSFORM_NORMALIZE, .values = mean, .deviations = std, .n_values = C}};
static dm_Augment *augment;

static void make_data(void) {
  CHECK(dm_augment_new(&augment, transforms, DM_COUNT(transforms)) == DM_OK);
  for (int i = 0; i < DM_COUNT(pixels); i++) pixels[i] = (uint8_t)dm_splitmix64(&rng);
  for (int i = 0; i < DM_COUNT(points); i++) points[i] = (float)i;
  for (int i = 0; i < N; i++) {
    labels[i] = i * 10;
    order[i] = (i * 37) % N;
  }
}

static void fill_spec(dm_LoaderSpec *s, dm_LoaderColumn col[3], int num_workers) {
  col[0] = (dm_LoaderColumn){.data = pixels,
                             .dtype = DM_U8,
                             .row_numel = C * H * W,
                             .augment = augment,
                             .shape = {C, H, W}};
  col[1] = (dm_LoaderColumn){.data = points, .dtype = DM_F32, .row_numel = 3};
  col[2] = (dm_LoaderColumn){.data = labels, .dtype = DM_I64, .row_numel = 1};
  *s = (dm_LoaderSpec){.columns = col,
                       .n_columns = 3,
                       .n_samples = N,
                       .batch_size = BATCH,
                       .num_workers = num_workers,
                       .seed = 42};
}

static dm_Loader *make_loader(int num_workers) {
  dm_LoaderColumn col[3];
  dm_LoaderSpec s;
  dm_Loader *l = NULL;
  fill_spec(&s, col, num_workers);
  CHECK(dm_loader_new(&l, &s) == DM_OK);
  return l;
}

static void free_batch(dm_LoaderBuffer *b) {
  for (int k = 0; k < 3; k++) dm_free(b[k].data);
}

/* The transform once more, pixel by pixel, for a given crop and mirror. */
static float pixel_at(int64_t s, int c, int64_t y, int64_t x, int64_t top, int64_t left,
                      bool mirror) {
  const int64_t sy = y + top - 2, sx = (mirror ? W - 1 - x : x) + left - 2;
  const bool inside = sy >= 0 && sy < H && sx >= 0 && sx < W;
  const float v = inside ? (float)pixels[((s * C + c) * H + sy) * W + sx] / 255.0f : 0.0f;
  return (v - mean[c]) / std[c];
}

/* Whether y (C,H,W) is sample s under some crop and mirror: 50 candidates. */
static bool is_augmented(const float *y, int64_t s, bool *mirrored) {
  for (int t = 0; t < 5 * 5 * 2; t++) {
    bool same = true;
    for (int i = 0; i < C * H * W && same; i++)
      same = y[i] == pixel_at(s, i / (H * W), i / W % H, i % W, t / 10, t / 2 % 5, t % 2);
    *mirrored = t % 2;
    if (same) return true;
  }
  return false;
}

/* Runs an epoch into x (N,C,H,W), checking order and plain columns. */
static void run_epoch(int num_workers, uint64_t epoch, float *x) {
  dm_Loader *l = make_loader(num_workers);
  dm_LoaderBuffer b[3];
  dm_LoaderState state;
  int64_t n_rows, at = 0, n_batches = 0, wrong = 0;
  CHECK(dm_loader_epoch(l, epoch, order, N) == DM_OK);
  for (;;) {
    if (dm_loader_next(l, b, &n_rows, &state) != DM_OK || state != DM_LOADER_BATCH) break;
    memcpy(x + at * C * H * W, b[0].data, (size_t)n_rows * C * H * W * sizeof *x);
    for (int64_t i = 0; i < n_rows; i++) {
      const int64_t s = order[at + i];
      wrong += memcmp((float *)b[1].data + i * 3, points + s * 3, 12) != 0;
      wrong += ((int64_t *)b[2].data)[i] != labels[s];
    }
    at += n_rows;
    n_batches++;
    free_batch(b);
  }
  CHECK(state == DM_LOADER_END && at == N && wrong == 0);
  CHECK(n_batches == dm_loader_num_batches(l, N) && n_batches == 13);
  CHECK(dm_loader_next(l, b, &n_rows, &state) == DM_OK && state == DM_LOADER_END);
  dm_loader_free(&l);
}

static void check_loader_batches(void) {
  static float a[N * C * H * W], b[N * C * H * W];
  const int64_t live = dm_alloc_live();
  run_epoch(0, 1, a);
  int64_t wrong = 0, n_mirrored = 0;
  for (int i = 0; i < N; i++) {
    bool mirrored;
    wrong += !is_augmented(a + i * C * H * W, order[i], &mirrored);
    n_mirrored += mirrored;
  }
  CHECK(wrong == 0);
  CHECK(n_mirrored > N / 4 && n_mirrored < 3 * N / 4);
  for (int w = 1; w <= 5; w += 2) {
    run_epoch(w, 1, b);
    CHECK(memcmp(a, b, sizeof a) == 0);
  }
  run_epoch(2, 2, b);
  CHECK(memcmp(a, b, sizeof a) != 0);
  CHECK(dm_alloc_live() == live);
}

static void check_loader_images(void) {
  const uint8_t x[] = {0, 51, 102, 153, 204, 255};
  const float zero = 0, three = 3;
  const dm_Transform mirror[] = {
      {.kind = DM_TRANSFORM_HFLIP, .p = 1},
      {.kind = DM_TRANSFORM_TO_FLOAT},
      {.kind = DM_TRANSFORM_NORMALIZE, .values = &zero, .deviations = &three, .n_values = 1}};
  const dm_Transform wide = {.kind = DM_TRANSFORM_CROP, .height = 2, .width = 4};
  dm_Augment *mirrored = NULL, *bytes = NULL, *wider = NULL;
  CHECK(dm_augment_new(&mirrored, mirror, 3) == DM_OK);
  CHECK(dm_augment_new(&bytes, mirror, 1) == DM_OK);
  CHECK(dm_augment_new(&wider, &wide, 1) == DM_OK);
  dm_LoaderColumn col[2] = {
      {.data = x, .dtype = DM_U8, .row_numel = 6, .augment = mirrored, .shape = {1, 2, 3}},
      {.data = x, .dtype = DM_U8, .row_numel = 6, .augment = bytes, .shape = {2, 1, 3}}};
  dm_LoaderSpec s = {.columns = col, .n_columns = 2, .n_samples = 1, .batch_size = 1};
  dm_Loader *l = NULL;
  dm_LoaderBuffer b[2];
  dm_LoaderState state;
  int64_t n_rows, first = 0;
  CHECK(dm_loader_new(&l, &s) == DM_OK && dm_loader_epoch(l, 0, &first, 1) == DM_OK);
  CHECK(dm_loader_dtype(l, 0) == DM_F32 && dm_loader_row_numel(l, 0) == 6);
  CHECK(dm_loader_dtype(l, 1) == DM_U8 && dm_loader_row_numel(l, 1) == 6);
  CHECK(dm_loader_next(l, b, &n_rows, &state) == DM_OK && n_rows == 1);
  const int from[] = {2, 1, 0, 5, 4, 3};
  for (int i = 0; i < 6; i++) {
    CHECK(((float *)b[0].data)[i] == (float)x[from[i]] / 255.0f / 3.0f);
    CHECK(((uint8_t *)b[1].data)[i] == x[from[i]]);
  }
  dm_free(b[0].data);
  dm_free(b[1].data);
  dm_loader_free(&l);

  col[0].augment = wider;
  CHECK_FAIL(dm_loader_new(&l, &s), DM_EARG, "2 x 4 is larger than the image, 2 x 3");
  col[0].shape[1] = 3;
  CHECK_FAIL(dm_loader_new(&l, &s), DM_EARG, "{1, 3, 3}");
  col[0].shape[1] = 2, col[0].dtype = DM_I64;
  CHECK_FAIL(dm_loader_new(&l, &s), DM_EARG, "int64");
  col[0].dtype = DM_U8, s.batch_size = 0;
  CHECK_FAIL(dm_loader_new(&l, &s), DM_EARG, "batches of 0");
  col[0].augment = NULL, s.batch_size = INT64_MAX;
  CHECK_FAIL(dm_loader_new(&l, &s), DM_EARG, "a batch of it overflows");
  s.batch_size = 1, s.num_workers = -1;
  CHECK_FAIL(dm_loader_new(&l, &s), DM_EARG, "num_workers is -1");
  s.num_workers = 1, s.prefetch = -1;
  CHECK_FAIL(dm_loader_new(&l, &s), DM_EARG, "prefetch is -1");
  dm_augment_free(&mirrored);
  dm_augment_free(&bytes);
  dm_augment_free(&wider);
}

/* Stopped after k batches, at any k, and then used again; or just freed. */
/* Batches of sizes of their own over windows of a file, which ends amid the last one. */
static void check_loader_windows(void) {
  enum { LENGTH = 3, STEP = 2, WINDOWS = 7 };
  static const int64_t rows[] = {6, 0, 2, 2, 5}, sizes[] = {1, 3, 1}, short_of[] = {1, 3};
  uint16_t tokens[LENGTH + STEP * (WINDOWS - 1)];
  for (int i = 0; i < DM_COUNT(tokens); i++) tokens[i] = (uint16_t)(65535 - i);
  const int64_t live = dm_alloc_live();
  for (int workers = 0; workers < 3; workers++) {
    const char *path = put_file("w.bin", tokens, sizeof tokens);
    dm_Tokens *t = NULL;
    CHECK(dm_tokens_open(&t, path, 16) == DM_OK && dm_tokens_count(t) == DM_COUNT(tokens));
    int64_t beyond[2];
    CHECK_FAIL(dm_tokens_read(t, DM_COUNT(tokens) - 1, 2, 1, beyond), DM_EARG,
               "2 tokens from 15 on");
    const dm_TokenWindows windows = {t, 0, LENGTH, STEP, 1};
    const dm_LoaderColumn col = {
        .dtype = DM_I64, .row_numel = LENGTH, .read = dm_tokens_window, .source = &windows};
    const dm_LoaderSpec s = {.columns = &col,
                             .n_columns = 1,
                             .n_samples = WINDOWS,
                             .batch_size = 1,
                             .num_workers = workers};
    dm_Loader *l = NULL;
    dm_LoaderBuffer b;
    dm_LoaderState state;
    int64_t n_rows, at = 0;
    CHECK(dm_loader_new(&l, &s) == DM_OK);
    CHECK_FAIL(dm_loader_epoch_of(l, 0, rows, 5, short_of, 2), DM_EARG, "4 samples in all");
    CHECK_FAIL(dm_loader_epoch_of(l, 0, rows, 3, short_of, 2), DM_EARG, "3 samples of 2");
    CHECK(dm_loader_epoch_of(l, 0, rows, 5, sizes, 3) == DM_OK);
    for (int k = 0; k < 3; k++) {
      CHECK(dm_loader_next(l, &b, &n_rows, &state) == DM_OK && n_rows == sizes[k]);
      for (int64_t i = 0; i < n_rows * LENGTH; i++)
        CHECK(((int64_t *)b.data)[i] == 65536 - (rows[at + i / LENGTH] * STEP + i % LENGTH));
      at += n_rows;
      dm_free(b.data);
    }
    CHECK(dm_loader_next(l, &b, &n_rows, &state) == DM_OK && state == DM_LOADER_END);
    put_file("w.bin", tokens, 8); /* window 6 is gone, window 0 is not */
    CHECK(dm_loader_epoch_of(l, 0, rows, 5, sizes, 3) == DM_OK);
    for (int k = 0; k < 2; k++)
      CHECK_FAIL(dm_loader_next(l, &b, &n_rows, &state), DM_EIO, "became shorter");
    dm_loader_free(&l);
    dm_tokens_close(&t);
  }
  CHECK(dm_alloc_live() == live);
}

static void check_loader_stop(void) {
  const int64_t live = dm_alloc_live();
  dm_LoaderBuffer b[3];
  dm_LoaderState state;
  int64_t n_rows;
  for (int w = 0; w <= 3; w++) {
    dm_Loader *l = make_loader(w);
    dm_loader_stop(l);
    CHECK(dm_loader_next(l, b, &n_rows, &state) == DM_OK && state == DM_LOADER_END);
    for (int k = 0; k < 13; k++) {
      CHECK(dm_loader_epoch(l, 1, order, N) == DM_OK);
      for (int i = 0; i <= k; i++) {
        state = DM_LOADER_WAIT;
        while (state == DM_LOADER_WAIT)
          CHECK(dm_loader_next_timed(l, b, &n_rows, 5, &state) == DM_OK);
        CHECK(state == DM_LOADER_BATCH &&
              ((int64_t *)b[2].data)[0] == labels[order[i * BATCH]]);
        free_batch(b);
      }
      if (k % 2) dm_loader_stop(l); /* else the next epoch stops it */
    }
    const int64_t bad[] = {0, N};
    CHECK_FAIL(dm_loader_epoch(l, 1, bad, 2), DM_EARG, "index 104 at position 2");
    CHECK(dm_loader_epoch(l, 1, order, 0) == DM_OK);
    CHECK(dm_loader_next(l, b, &n_rows, &state) == DM_OK && state == DM_LOADER_END);
    CHECK(dm_loader_epoch(l, 1, order, N) == DM_OK);
    dm_loader_free(&l);
  }
  CHECK(dm_alloc_live() == live);
}

/* A client's memory: must be asked for on the calling thread alone. */
typedef struct Client {
  pthread_t self;
  int n_alloc, n_free, n_foreign;
  bool refuse;
} Client;

static dm_status client_alloc(void *ctx, int k, int64_t n_rows, int64_t n_bytes,
                              dm_LoaderBuffer *out) {
  Client *c = ctx;
  DM_UNUSED(k);
  DM_UNUSED(n_rows);
  c->n_foreign += !pthread_equal(c->self, pthread_self());
  if (c->refuse) return dm_fail(DM_EMEM, "client: no");
  c->n_alloc++;
  out->data = dm_alloc(n_bytes);
  out->owner = c;
  return DM_OK;
}

static void client_free(void *ctx, dm_LoaderBuffer *b) {
  Client *c = ctx;
  c->n_foreign += !pthread_equal(c->self, pthread_self()) || b->owner != c;
  c->n_free++;
  dm_free(b->data);
}

static void check_loader_client(void) {
  dm_LoaderColumn col[3];
  dm_LoaderSpec s;
  dm_LoaderBuffer b[3];
  dm_LoaderState state;
  int64_t n_rows;
  for (int w = 0; w <= 2; w++) {
    Client c = {.self = pthread_self()};
    dm_Loader *l = NULL;
    fill_spec(&s, col, w);
    s.alloc = client_alloc, s.free = client_free, s.ctx = &c;
    s.drop_last = true;
    CHECK(dm_loader_new(&l, &s) == DM_OK && dm_loader_num_batches(l, N) == 12);
    CHECK(dm_loader_epoch(l, 1, order, N) == DM_OK);
    c.refuse = true; /* a batch that cannot be replaced stays for a second try */
    CHECK_FAIL(dm_loader_next(l, b, &n_rows, &state), DM_EMEM, "client: no");
    c.refuse = false;
    CHECK(dm_loader_next(l, b, &n_rows, &state) == DM_OK && n_rows == BATCH);
    CHECK(((int64_t *)b[2].data)[0] == labels[order[0]]);
    free_batch(b);
    dm_loader_free(&l);
    CHECK(c.n_foreign == 0 && c.n_alloc == c.n_free + 3);
  }
}

static void check_gather(void) {
  float dst[4 * 3] = {0};
  const int64_t index[] = {5, 0, 102, 5}, bad[] = {5, -1, 102, 5};
  CHECK(dm_sample_gather(dst, points, N, 12, index, 4) == DM_OK);
  CHECK(dst[0] == 15 && dst[5] == 2 && dst[6] == 306 && dst[11] == 17);
  memset(dst, 0, sizeof dst);
  CHECK_FAIL(dm_sample_gather(dst, points, N, 12, bad, 4), DM_EARG, "position 2");
  CHECK(dst[0] == 0);
  static uint8_t many[5000 * 60];
  static int64_t which[5000];
  int wrong = 0;
  for (int i = 0; i < 5000; i++) which[i] = i * 7 % N;
  CHECK(dm_sample_gather(many, pixels, N, 60, which, 5000) == DM_OK);
  for (int i = 0; i < 5000; i++)
    wrong += memcmp(many + i * 60, pixels + which[i] * 60, 60) != 0;
  CHECK(wrong == 0);
}

/* ---- memory that runs out: each request fails once ---- */

static dm_status use_idx(void) {
  dm_Idx x = {0};
  DM_TRY(dm_idx_read(&x, path_of("walk.idx")));
  dm_free(x.data);
  return DM_OK;
}

static dm_status use_st(void) {
  dm_StFile *f = NULL;
  DM_TRY(write_sample("walk.st"));
  DM_TRY(dm_st_open(&f, path_of("walk.st")));
  dm_st_close(&f);
  return DM_OK;
}

/* Rows that overlap, as windows over one text do: row i begins at element 2 i. */
static void check_loader_overlap(void) {
  const int64_t text[] = {10, 11, 12, 13, 14, 15, 16}, picked[] = {2, 0};
  dm_LoaderColumn col = {.data = text, .dtype = DM_I64, .row_numel = 3, .row_step = 2};
  const dm_LoaderSpec s = {.columns = &col, .n_columns = 1, .n_samples = 3, .batch_size = 2};
  dm_Loader *l = NULL;
  dm_LoaderBuffer b;
  dm_LoaderState state;
  int64_t n_rows;
  CHECK(dm_loader_new(&l, &s) == DM_OK && dm_loader_epoch(l, 0, picked, 2) == DM_OK);
  CHECK(dm_loader_next(l, &b, &n_rows, &state) == DM_OK && n_rows == 2);
  CHECK(memcmp(b.data, (int64_t[]){14, 15, 16, 10, 11, 12}, 48) == 0);
  dm_free(b.data);
  dm_loader_free(&l);
  col.row_step = -1;
  CHECK_FAIL(dm_loader_new(&l, &s), DM_EARG, "row size");
}

/* ---- deflated bytes ---- */

static const uint8_t deflated[] = {0x4b, 0x4c, 0x4a, 0x4e, 0x4c,
                                   0x4a, 0x04, 0x11, 0x00}; /* by zlib */

static dm_status use_inflate(void) {
  char out[10];
  return dm_inflate(deflated, sizeof deflated, out, sizeof out);
}

static void check_inflate(void) {
  char out[11] = "..........!";
  CHECK(dm_inflate(deflated, sizeof deflated, out, 10) == DM_OK);
  CHECK(memcmp(out, "abcababcab!", 11) == 0);
  CHECK(dm_crc32("123456789", 9) == 0xcbf43926u && dm_crc32("", 0) == 0);
  for (int n = 0; n < (int)sizeof deflated; n++)
    CHECK(dm_inflate(deflated, n, out, 10) == DM_EIO); /* cut */
  CHECK(dm_inflate(deflated, sizeof deflated, out, 9) == DM_EIO);
  CHECK(dm_inflate(deflated, sizeof deflated, out, 11) == DM_EIO);
  uint8_t more[sizeof deflated + 1];
  memcpy(more, deflated, sizeof deflated);
  more[sizeof deflated] = 0;
  CHECK(dm_inflate(more, sizeof more, out, 10) == DM_EIO);
  CHECK(dm_inflate((uint8_t[]){3, 0}, 2, out, 0) == DM_OK); /* nothing, deflated */
}

/* ---- zip archives ---- */

static const uint8_t
    zipped[] = {0x50, 0x4b, 0x03, 0x04, 0x14, 0x00, 0x00, 0x00, 0x08, 0x00, 0x00, 0x00, 0x21,
                0x00, 0xdc, 0xae, 0x15, 0x39, 0x09, 0x00, 0x00, 0x00, 0x0a, 0x00, 0x00, 0x00,
                0x01, 0x00, 0x00, 0x00, 0x61, 0x4b, 0x4c, 0x4a, 0x4e, 0x4c, 0x4a, 0x04, 0x11,
                0x00, 0x50, 0x4b, 0x01, 0x02, 0x14, 0x00, 0x14, 0x00, 0x00, 0x00, 0x08, 0x00,
                0x00, 0x00, 0x21, 0x00, 0xdc, 0xae, 0x15, 0x39, 0x09, 0x00, 0x00, 0x00, 0x0a,
                0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
                0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x61, 0x50, 0x4b, 0x05, 0x06,
                0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x01, 0x00, 0x2f, 0x00, 0x00, 0x00, 0x28,
                0x00, 0x00, 0x00, 0x00, 0x00}; /* `deflated` under the name of a */

/* Reads the archive's entries into buffer; *n is their number. */
static dm_status read_zip(const char *path, char *buffer, int64_t n_buffer, int64_t *n) {
  dm_Zip *zip = NULL;
  dm_status st = dm_zip_open(&zip, path);
  const dm_ZipEntry *e = st == DM_OK ? dm_zip_get_entries(zip, n) : NULL;
  for (int64_t i = 0; st == DM_OK && i < *n; i++)
    if (e[i].n_bytes <= n_buffer) st = dm_zip_read(zip, &e[i], buffer);
  dm_zip_close(&zip);
  return st;
}

static dm_status use_zip(void) {
  char buffer[10];
  int64_t n;
  return read_zip(path_of("walk.zip"), buffer, sizeof buffer, &n);
}

static void check_zip(void) {
  enum { SIZE = sizeof zipped };
  char buffer[1032 * SIZE];
  int64_t n = 0;
  CHECK(read_zip(put_file("walk.zip", zipped, SIZE), buffer, sizeof buffer, &n) == DM_OK &&
        n == 1);
  CHECK(memcmp(buffer, "abcababcab", 10) == 0);
  for (size_t cut = 0; cut < SIZE; cut++)
    CHECK(read_zip(put_file("z", zipped, cut), buffer, sizeof buffer, &n) == DM_EIO);
  for (int i = 0; i < 2000; i++) {
    uint8_t bytes[SIZE];
    memcpy(bytes, zipped, SIZE);
    const size_t size = damage(bytes, SIZE);
    const dm_status st = read_zip(put_file("z", bytes, size), buffer, sizeof buffer, &n);
    CHECK(st == DM_OK || st == DM_EIO);
  }
}

static dm_status use_loader(void) {
  dm_LoaderColumn col[3];
  dm_LoaderSpec s;
  dm_Loader *l = NULL;
  dm_LoaderBuffer b[3];
  dm_LoaderState state = DM_LOADER_BATCH;
  int64_t n_rows;
  fill_spec(&s, col, 2);
  DM_TRY(dm_loader_new(&l, &s));
  dm_status st = dm_loader_epoch(l, 1, order, N);
  while (st == DM_OK && state == DM_LOADER_BATCH) {
    st = dm_loader_next(l, b, &n_rows, &state);
    if (st == DM_OK && state == DM_LOADER_BATCH) free_batch(b);
  }
  dm_loader_free(&l);
  return st;
}

static void check_memory_walk(dm_status (*use)(void), int at_least) {
  const int64_t live = dm_alloc_live();
  int n = 0;
  for (dm_status st = DM_EMEM; st != DM_OK && n < 1000; n++) {
    dm_alloc_fail_at(n + 1, false);
    st = use();
    dm_alloc_fail_at(0, false);
    CHECK(st == DM_OK || st == DM_EMEM);
    CHECK(dm_alloc_live() == live);
  }
  CHECK(n > at_least && n < 1000);
}

int main(void) {
  static uint8_t gz[FILE_MAX];
  const char *tmp = getenv("TMPDIR");
  snprintf(dir, sizeof dir, "%.200s/data_check-XXXXXX", tmp ? tmp : "/tmp");
  if (!mkdtemp(dir)) return 2;
  make_data();
  check_idx_types();
  check_idx_faults();
  check_idx_fuzz();
  check_st_round_trip();
  check_st_faults();
  check_st_fuzz();
  check_st_writer();
  check_st_disk_full();
  check_loader_batches();
  check_loader_images();
  check_loader_windows();
  check_loader_stop();
  check_loader_client();
  check_loader_overlap();
  check_inflate();
  check_zip();
  check_gather();
  put_file("walk.idx", gz, gzip_bytes(gz, "\0\0\10\1\0\0\0\3abc", 11));
  check_memory_walk(use_idx, 3);
  check_memory_walk(use_st, 8);
  check_memory_walk(use_loader, 30);
  check_memory_walk(use_inflate, 1);
  check_memory_walk(use_zip, 6);

  DIR *d = opendir(dir);
  for (struct dirent *e; (e = readdir(d)) != NULL;)
    if (e->d_name[0] != '.') unlink(path_of(e->d_name));
  closedir(d);
  CHECK(rmdir(dir) == 0); /* nothing else was left in it */
  dm_augment_free(&augment);
  printf("%d passed, %d failed\n", n_passed, n_failed);
  return n_failed != 0;
}
