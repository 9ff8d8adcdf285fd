/* Finds the orientation in Exif metadata, which is a TIFF structure: a header with the byte
   order and the offset of the first directory, then entries of 12 bytes (tag, type, count,
   value). Every offset comes from the file, so each read is checked against its end. */
#include "data/exif.h"

enum { TIFF_HEADER = 8, ENTRY = 12, ORIENTATION = 274, SHORT = 3 };

typedef struct Tiff {
  const uint8_t *bytes;
  int64_t n;
  bool big_endian;
} Tiff;

/* Returns the number of 2 or 4 bytes at offset `at`; 0, which no tag has, for an offset
   outside of the bytes. */
static int64_t number_at(const Tiff *t, int64_t at, int size) {
  int64_t v = 0;
  if (at < 0 || at > t->n - size) return 0;
  for (int i = 0; i < size; i++) v = v << 8 | t->bytes[at + (t->big_endian ? i : size - 1 - i)];
  return v;
}

int dm_exif_orientation(const uint8_t *bytes, int64_t n) {
  Tiff t = {bytes, n, false};
  if (n < TIFF_HEADER || bytes[0] != bytes[1] || (bytes[0] != 'I' && bytes[0] != 'M')) return 1;
  t.big_endian = bytes[0] == 'M';
  if (number_at(&t, 2, 2) != 42) return 1;
  const int64_t folder = number_at(&t, 4, 4), n_entries = number_at(&t, folder, 2);
  for (int64_t i = 0; i < n_entries; i++) {
    const int64_t at = folder + 2 + i * ENTRY;
    if (number_at(&t, at, 2) != ORIENTATION) continue;
    const int64_t v = number_at(&t, at + 8, 2);
    const bool sound = number_at(&t, at + 2, 2) == SHORT && number_at(&t, at + 4, 4) == 1;
    return sound && v >= 1 && v <= 8 ? (int)v : 1;
  }
  return 1;
}

/* Only the strides change: the eight orientations are two mirrors and a transposition (5 to
   8), and no pixel is copied. */
dm_Image dm_exif_upright(const dm_Image *stored, int orientation) {
  /* Bit o: orientation o has its columns from right to left, its rows from below. */
  enum {
    COLUMNS = 1 << 2 | 1 << 3 | 1 << 7 | 1 << 8,
    ROWS = 1 << 3 | 1 << 4 | 1 << 6 | 1 << 7
  };
  dm_Image p = *stored;
  if (COLUMNS >> orientation & 1) {
    p.data += (p.width - 1) * p.w_step;
    p.w_step = -p.w_step;
  }
  if (ROWS >> orientation & 1) {
    p.data += (p.height - 1) * p.h_step;
    p.h_step = -p.h_step;
  }
  if (orientation < 5) return p;
  return (dm_Image){p.channels, p.width, p.height, p.c_step, p.w_step, p.h_step, p.data};
}
