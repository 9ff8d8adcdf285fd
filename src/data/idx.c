/* Reads IDX files. A file is a stream of bytes, plain or gzip, told apart by the first two
   bytes. The header is not trusted: memory grows with the data that really arrives, so that a
   false header ends in an error and not in an exhausted machine. zlib's inflate is used and
   not gzread, because gzread accepts garbage after the last member silently. */
#include "data/idx.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "base/alloc.h"
#include "base/error.h"
#include "data/file.h"
#include "data/zmem.h"

enum {
  IN_BYTES = 1 << 16,    /* read from the file at a time */
  FIRST_BYTES = 1 << 20, /* the first block of data; doubles from there */
  GZIP_WINDOW = 15 + 16  /* inflateInit2: largest window, gzip wrapper only */
};

typedef struct Stream {
  const char *path;
  FILE *file;
  bool gzip;
  bool inflating; /* z holds memory */
  bool at_member; /* gzip: between members, where the file may end */
  z_stream z;     /* next_in, avail_in: what is read and not yet used */
  uint8_t in[IN_BYTES];
} Stream;

/* Refills the input; avail_in stays 0 at the end of the file. */
static dm_status stream_fill(Stream *s) {
  errno = 0;
  const size_t n = fread(s->in, 1, IN_BYTES, s->file);
  if (n == 0 && ferror(s->file))
    return dm_fail(DM_EIO, "idx: cannot read '%s': %s", s->path, strerror(errno));
  s->z.next_in = s->in;
  s->z.avail_in = (unsigned)n;
  return DM_OK;
}

static void stream_close(Stream *s) {
  if (s->inflating) inflateEnd(&s->z);
  if (s->file) fclose(s->file);
  dm_free(s);
}

/* Opens the file and reads its first block, which decides between plain and gzip. */
static dm_status stream_open(Stream **out, const char *path) {
  dm_status st = DM_OK;
  int fd;
  int64_t n_bytes;
  Stream *s = dm_alloc_zero(sizeof *s);
  if (!s) return dm_fail(DM_EMEM, "idx: out of memory reading '%s'", path);
  s->path = path;
  DM_GO(dm_file_open("idx", path, &fd, &n_bytes));
  s->file = fdopen(fd, "rb");
  if (!s->file) {
    close(fd);
    st = dm_fail(DM_EIO, "idx: cannot open '%s': %s", path, strerror(errno));
    goto done;
  }
  DM_GO(stream_fill(s));
  s->gzip = s->z.avail_in >= 2 && s->in[0] == 0x1f && s->in[1] == 0x8b;
  if (s->gzip) {
    s->z.zalloc = dm_z_alloc;
    s->z.zfree = dm_z_free;
    if (inflateInit2(&s->z, GZIP_WINDOW) != Z_OK) {
      st = dm_fail(DM_EMEM, "idx: out of memory decompressing '%s'", path);
      goto done;
    }
    s->inflating = true;
  }
  *out = s;
done:
  if (st != DM_OK) stream_close(s);
  return st;
}

/* Records zlib's failure, as the end of memory or as a damaged file. */
static dm_status gzip_fault(const Stream *s, int code) {
  if (code == Z_MEM_ERROR)
    return dm_fail(DM_EMEM, "idx: out of memory decompressing '%s'", s->path);
  return dm_fail(DM_EIO, "idx: '%s' is damaged: gzip says %s", s->path,
                 s->z.msg ? s->z.msg : zError(code));
}

/* Decompresses up to n bytes. zlib checks the sum and the length of each member, of which a
   gzip file may have several in a row; *got < n only after the last one. */
static dm_status gzip_read(Stream *s, uint8_t *dst, unsigned n, unsigned *got) {
  s->z.next_out = dst;
  s->z.avail_out = n;
  while (s->z.avail_out > 0) {
    if (s->z.avail_in == 0) DM_TRY(stream_fill(s));
    if (s->z.avail_in == 0) {
      if (s->at_member) break;
      return dm_fail(DM_EIO, "idx: '%s' is cut short: gzip data ends early", s->path);
    }
    if (s->at_member) inflateReset(&s->z);
    const int code = inflate(&s->z, Z_NO_FLUSH);
    if (code != Z_OK && code != Z_STREAM_END) return gzip_fault(s, code);
    s->at_member = code == Z_STREAM_END;
  }
  *got = n - s->z.avail_out;
  return DM_OK;
}

/* Copies up to n bytes from the file's buffer. */
static dm_status plain_read(Stream *s, uint8_t *dst, unsigned n, unsigned *got) {
  *got = 0;
  while (*got < n) {
    if (s->z.avail_in == 0) DM_TRY(stream_fill(s));
    if (s->z.avail_in == 0) break;
    const unsigned k = s->z.avail_in < n - *got ? s->z.avail_in : n - *got;
    memcpy(dst + *got, s->z.next_in, k);
    s->z.next_in += k;
    s->z.avail_in -= k;
    *got += k;
  }
  return DM_OK;
}

/* Reads up to n bytes; fewer only at the end of the stream. */
static dm_status stream_read(Stream *s, uint8_t *dst, int64_t n, int64_t *got) {
  *got = 0;
  while (*got < n) {
    const unsigned want = (unsigned)dm_min_i64(n - *got, 1 << 30);
    unsigned k = 0;
    DM_TRY(s->gzip ? gzip_read(s, dst + *got, want, &k) : plain_read(s, dst + *got, want, &k));
    *got += k;
    if (k < want) break;
  }
  return DM_OK;
}

/* The dtype of IDX's code, the third byte of a file. */
static dm_DType dtype_of_code(int code) {
  switch (code) {
  case 0x08: return DM_U8;
  case 0x09: return DM_I8;
  case 0x0b: return DM_I16;
  case 0x0c: return DM_I32;
  case 0x0d: return DM_F32;
  case 0x0e: return DM_F64;
  default: return DM_NO_DTYPE;
  }
}

/* Reads the header: 0, 0, element type, number of dims; then each dim in 4 bytes, most
   significant first. Sizes whose product overflows are refused. */
static dm_status read_header(Stream *s, dm_Idx *x) {
  uint8_t magic[4], dim[4];
  int64_t got;
  DM_TRY(stream_read(s, magic, 4, &got));
  if (got < 4)
    return dm_fail(DM_EIO, "idx: '%s' is cut short: %d bytes, a header has 4 and more", s->path,
                   (int)got);
  x->dtype = dtype_of_code(magic[2]);
  x->n_dim = magic[3];
  if (magic[0] || magic[1] || x->dtype == DM_NO_DTYPE)
    return dm_fail(DM_EIO, "idx: '%s' is no IDX file: it begins %02x %02x %02x %02x", s->path,
                   magic[0], magic[1], magic[2], magic[3]);
  if (x->n_dim < 1 || x->n_dim > DM_MAX_DIM)
    return dm_fail(DM_EIO, "idx: '%s' has %d dims, 1 to %d can be read", s->path, x->n_dim,
                   DM_MAX_DIM);
  x->n_bytes = dm_dtype_size(x->dtype);
  for (int d = 0; d < x->n_dim; d++) {
    DM_TRY(stream_read(s, dim, 4, &got));
    if (got < 4) return dm_fail(DM_EIO, "idx: '%s' is cut short inside its header", s->path);
    const int64_t n = (int64_t)dim[0] << 24 | dim[1] << 16 | dim[2] << 8 | dim[3];
    if (n != 0 && x->n_bytes > INT64_MAX / n)
      return dm_fail(DM_EIO, "idx: '%s': the sizes in its header overflow", s->path);
    x->shape[d] = n;
    x->n_bytes *= n;
  }
  return DM_OK;
}

/* Reads x->n_bytes and checks that the stream ends there. The block begins with FIRST_BYTES
   at most and doubles as it fills, so its size follows the bytes that arrived. */
static dm_status read_data(Stream *s, dm_Idx *x) {
  dm_status st = DM_OK;
  int64_t capacity = dm_min_i64(x->n_bytes, FIRST_BYTES), have = 0, got;
  uint8_t *block = dm_alloc(capacity), beyond;
  if (!block) goto no_memory;
  for (;;) {
    DM_GO(stream_read(s, block + have, capacity - have, &got));
    have += got;
    if (have < capacity) {
      st = dm_fail(
          DM_EIO, "idx: '%s' is cut short: %" PRId64 " bytes of data, its header says %" PRId64,
          s->path, have, x->n_bytes);
      goto done;
    }
    if (have == x->n_bytes) break;
    capacity = x->n_bytes - capacity > capacity ? 2 * capacity : x->n_bytes;
    uint8_t *larger = dm_alloc(capacity);
    if (!larger) goto no_memory;
    memcpy(larger, block, (size_t)have);
    dm_free(block);
    block = larger;
  }
  DM_GO(stream_read(s, &beyond, 1, &got));
  if (got > 0)
    st = dm_fail(DM_EIO,
                 "idx: '%s' holds more than the %" PRId64 " bytes of data that its header says",
                 s->path, x->n_bytes);
  goto done;
no_memory:
  st = dm_fail(DM_EMEM, "idx: out of memory for '%s': %" PRId64 " bytes of %" PRId64, s->path,
               capacity, x->n_bytes);
done:
  if (st != DM_OK) {
    dm_free(block);
    return st;
  }
  x->data = block;
  return DM_OK;
}

static bool is_little_endian(void) {
  const uint16_t one = 1;
  uint8_t first;
  memcpy(&first, &one, 1);
  return first == 1;
}

/* Reverses the bytes of each element of `size` bytes, from the file's order to the host's. */
static void reverse_bytes(uint8_t *p, int64_t n_bytes, int64_t size) {
  for (uint8_t *end = p + n_bytes; p < end; p += size)
    for (int64_t i = 0; i < size / 2; i++) {
      const uint8_t t = p[i];
      p[i] = p[size - 1 - i];
      p[size - 1 - i] = t;
    }
}

dm_status dm_idx_read(dm_Idx *out, const char *path) {
  Stream *s = NULL;
  dm_Idx x = {.dtype = DM_NO_DTYPE};
  DM_TRY(stream_open(&s, path));
  dm_status st = read_header(s, &x);
  if (st == DM_OK) st = read_data(s, &x);
  stream_close(s);
  DM_TRY(st);
  const int64_t size = dm_dtype_size(x.dtype);
  if (size > 1 && is_little_endian()) reverse_bytes(x.data, x.n_bytes, size);
  *out = x;
  return DM_OK;
}
