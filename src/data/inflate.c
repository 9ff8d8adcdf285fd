/* Inflates by zlib, whose memory comes from dm_alloc. */
#include "data/inflate.h"

#include <limits.h>
#include <zlib.h>

#include "base/alloc.h"
#include "base/error.h"
#include "data/zmem.h"

/* The part of n bytes that one call of zlib gets: its counters are unsigned ints. */
static unsigned part_of(int64_t n) { return (unsigned)dm_min_i64(n, INT_MAX); }

/* A call that uses no input and writes no output cannot go on, so it ends the loop; nothing
   may be left over on either side. */
dm_status dm_inflate(const void *in, int64_t n_in, void *out, int64_t n_out) {
  z_stream z = {.zalloc = dm_z_alloc, .zfree = dm_z_free};
  if (inflateInit2(&z, -15) != Z_OK) /* the largest window, no wrapper */
    return dm_fail(DM_EMEM, "inflate: out of memory");
  const uint8_t *from = in;
  uint8_t *to = out, nothing;
  int64_t left_in = n_in, left_out = n_out;
  int state = Z_OK;
  while (state == Z_OK) {
    const unsigned got = part_of(left_in), space = part_of(left_out);
    z.next_in = (Bytef *)from; /* zlib only reads there */
    z.avail_in = got;
    z.next_out = space ? to : &nothing; /* an end without data still wants a look */
    z.avail_out = space;
    state = inflate(&z, Z_NO_FLUSH);
    from += got - z.avail_in;
    left_in -= got - z.avail_in;
    to += space - z.avail_out;
    left_out -= space - z.avail_out;
    if (state == Z_OK && z.avail_in == got && z.avail_out == space) state = Z_BUF_ERROR;
  }
  inflateEnd(&z);
  if (state == Z_MEM_ERROR) return dm_fail(DM_EMEM, "inflate: out of memory");
  if (state == Z_STREAM_END && left_in == 0 && left_out == 0) return DM_OK;
  return dm_fail(DM_EIO, "the deflated bytes are broken, or not as many as said");
}

uint32_t dm_crc32(const void *bytes, int64_t n) {
  const uint8_t *at = bytes;
  uLong crc = crc32(0, NULL, 0);
  for (; n > 0; n -= INT_MAX, at += INT_MAX) crc = crc32(crc, at, part_of(n));
  return (uint32_t)crc;
}
