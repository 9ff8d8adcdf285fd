/* Decodes images: the first bytes of a file select JPEG or PNG, and the pixels are then
   brought to the channels and the orientation that the caller wants. */
#define _POSIX_C_SOURCE 200809L
#include "data/decode.h"

#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "data/exif.h"
#include "data/file.h"
#include "data/jpeg.h"
#include "data/png.h"

static const uint8_t png_begins[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

/* The weights of ITU-R BT.601 as fractions of 2^16, whose sum is 1. */
static uint8_t luma(const uint8_t *rgb) {
  return (uint8_t)((19595u * rgb[0] + 38470u * rgb[1] + 7471u * rgb[2] + 0x8000u) >> 16);
}

/* Converts one pixel of `from` contiguous channels to `to` channels. */
static void convert(uint8_t *dst, int64_t to, const uint8_t *src, int64_t from) {
  if (to == from) memcpy(dst, src, (size_t)to);
  else if (to == 1) dst[0] = from < 3 ? src[0] : luma(src);
  else
    for (int64_t c = 0; c < 3; c++) dst[c] = src[from < 3 ? 0 : c];
}

/* Copies the image with its orientation applied and with that many channels, pixels
   (H,W,C). */
static dm_status arrange(dm_Image *out, const dm_Image *stored, int64_t channels,
                         int orientation, const char *name) {
  const dm_Image from = dm_exif_upright(stored, orientation);
  dm_Image to = {.channels = channels, .height = from.height, .width = from.width};
  to.c_step = 1;
  to.w_step = channels;
  to.h_step = channels * to.width;
  to.data = dm_alloc(to.height * to.h_step);
  if (!to.data) return dm_fail(DM_EMEM, "image: out of memory for '%s'", name);
  for (int64_t y = 0; y < to.height; y++)
    for (int64_t x = 0; x < to.width; x++)
      convert(to.data + y * to.h_step + x * to.w_step, channels,
              from.data + y * from.h_step + x * from.w_step, from.channels);
  *out = to;
  return DM_OK;
}

/* The decoder's own memory is handed on when neither channels nor orientation change. */
dm_status dm_image_decode(dm_Image *out, const dm_ImageHow *how, const uint8_t *bytes,
                          int64_t n_bytes, const char *name) {
  dm_Image stored;
  int orientation = 1;
  if (dm_is_jpeg(bytes, n_bytes)) {
    DM_TRY(dm_jpeg_decode(&stored, &orientation, bytes, n_bytes, name));
  } else if (memcmp(bytes, png_begins, (size_t)dm_min_i64(n_bytes, sizeof png_begins)) == 0) {
    DM_TRY(dm_png_decode(&stored, &orientation, bytes, n_bytes, name));
  } else {
    return dm_fail(DM_EIO, "image: '%s' is neither PNG nor JPEG: it begins %02x %02x %02x %02x",
                   name, bytes[0], n_bytes > 1 ? bytes[1] : 0, n_bytes > 2 ? bytes[2] : 0,
                   n_bytes > 3 ? bytes[3] : 0);
  }
  if (!how->exif) orientation = 1;
  const int64_t channels = how->mode == DM_IMAGE_RGB    ? 3
                           : how->mode == DM_IMAGE_GRAY ? 1
                                                        : stored.channels;
  if (channels == stored.channels && orientation == 1) {
    *out = stored;
    return DM_OK;
  }
  const dm_status st = arrange(out, &stored, channels, orientation, name);
  dm_free(stored.data);
  return st;
}

dm_status dm_image_read(dm_Image *out, const dm_ImageHow *how, const char *path) {
  int fd;
  int64_t n;
  DM_TRY(dm_file_open("image", path, &fd, &n));
  uint8_t *bytes = dm_alloc(dm_max_i64(n, 1));
  dm_status st = bytes ? dm_file_read("image", path, fd, bytes, n, 0)
                       : dm_fail(DM_EMEM, "image: out of memory for '%s'", path);
  close(fd);
  if (st == DM_OK) st = dm_image_decode(out, how, bytes, n, path);
  dm_free(bytes);
  return st;
}
