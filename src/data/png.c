/* Reads and writes PNG files by libpng, which only this file includes. libpng reports a
   failure by longjmp: each of its calls is made below guarded(), which holds the setjmp; the
   resources that the jump may skip are in the Codec, and the code outside frees them.
   libpng's memory comes from dm_alloc. */
#include "data/png.h"

#include "base/error.h"

#if !DM_HAVE_PNG

static dm_status no_png(const char *name) {
  return dm_fail(DM_EIO,
                 "png: '%s': this build knows no PNG files; hint: install libpng (Debian: "
                 "libpng-dev) and build again",
                 name);
}
dm_status dm_png_decode(dm_Image *out, int *orientation, const uint8_t *bytes, int64_t n_bytes,
                        const char *name) {
  DM_UNUSED(out);
  DM_UNUSED(orientation);
  DM_UNUSED(bytes);
  DM_UNUSED(n_bytes);
  return no_png(name);
}
dm_status dm_png_write(const char *path, const dm_Image *image) {
  DM_UNUSED(image);
  return no_png(path);
}

#else

#include <inttypes.h>
#include <png.h>
#include <setjmp.h>
#include <string.h>

#include "base/alloc.h"
#include "data/atomic_file.h"
#include "data/exif.h"

enum {
  SIGNATURE_BYTES = 8,
  DEFLATE_MOST = 1032, /* bytes that one byte of deflate can stand for */
  MAX_SIDE = 1 << 20
};

typedef struct Codec {
  const char *name; /* or path */
  dm_status st;     /* of the first failure, whose message is recorded */
  bool no_memory;   /* an allocation failed: the failure that follows is that */
  png_structp png;
  png_infop info;
  png_bytepp rows; /* into the image */
  dm_Image image;
  const uint8_t *bytes; /* reading */
  int64_t n_bytes, n_read;
  int orientation;
  dm_AtomicFile file; /* writing */
} Codec;

/* ---- callbacks of libpng ---- */

/* libpng's allocator: notes the end of memory, which libpng reports only as a failure. */
static png_voidp codec_alloc(png_structp png, png_alloc_size_t n) {
  Codec *c = png_get_mem_ptr(png);
  void *p = n > PTRDIFF_MAX ? NULL : dm_alloc((int64_t)n);
  if (!p) c->no_memory = true;
  return p;
}
static void codec_free(png_structp png, png_voidp p) {
  DM_UNUSED(png);
  dm_free(p);
}

/* libpng's error callback: records the failure, unless one is recorded, and jumps to
   guarded(). */
PNG_NORETURN static void codec_failed(png_structp png, png_const_charp text) {
  Codec *c = png_get_error_ptr(png);
  if (c->st == DM_OK && c->no_memory)
    c->st = dm_fail(DM_EMEM, "png: out of memory for '%s'", c->name);
  else if (c->st == DM_OK) c->st = dm_fail(DM_EIO, "png: '%s' is damaged: %s", c->name, text);
  png_longjmp(png, 1);
}
static void codec_warned(png_structp png, png_const_charp text) {
  DM_UNUSED(png);
  DM_UNUSED(text);
}

/* Ends the guarded call with a failure that is recorded already. */
PNG_NORETURN static void give_up(Codec *c, dm_status st) {
  c->st = st;
  png_error(c->png, "");
}

/* libpng's reader over the bytes in memory; it fails at their end instead of returning
   fewer. */
static void codec_read(png_structp png, png_bytep dst, size_t n) {
  Codec *c = png_get_io_ptr(png);
  if ((int64_t)n > c->n_bytes - c->n_read)
    give_up(c, dm_fail(DM_EIO, "png: '%s' is cut short", c->name));
  memcpy(dst, c->bytes + c->n_read, n);
  c->n_read += (int64_t)n;
}
/* libpng's writer into the atomic file. */
static void codec_write(png_structp png, png_bytep src, size_t n) {
  Codec *c = png_get_io_ptr(png);
  const dm_status st = dm_atomic_file_write(&c->file, src, (int64_t)n);
  if (st != DM_OK) give_up(c, st);
}
static void codec_flush(png_structp png) { DM_UNUSED(png); }

/* Calls body(c), and returns its failure when libpng jumps out of it. Nothing of this frame
   changes after setjmp, so no variable needs volatile. */
static dm_status guarded(Codec *c, void (*body)(Codec *)) {
  if (setjmp(png_jmpbuf(c->png)) == 0) body(c);
  return c->st;
}

/* ---- both ways ---- */

static dm_status no_memory(const Codec *c) {
  return dm_fail(DM_EMEM, "png: out of memory for '%s'", c->name);
}

/* Makes libpng's two structs for reading or writing with the callbacks above. */
static dm_status codec_open(Codec *c, bool reading) {
  c->png = reading ? png_create_read_struct_2(PNG_LIBPNG_VER_STRING, c, codec_failed,
                                              codec_warned, c, codec_alloc, codec_free)
                   : png_create_write_struct_2(PNG_LIBPNG_VER_STRING, c, codec_failed,
                                               codec_warned, c, codec_alloc, codec_free);
  if (c->png) c->info = png_create_info_struct(c->png);
  if (c->info) return DM_OK;
  return c->st != DM_OK ? c->st : no_memory(c);
}

/* libpng takes an array of pointers to rows. */
static dm_status point_at_rows(Codec *c) {
  const dm_Image *p = &c->image;
  c->rows = dm_alloc(p->height * (int64_t)sizeof *c->rows);
  if (!c->rows) return no_memory(c);
  for (int64_t y = 0; y < p->height; y++) c->rows[y] = p->data + y * p->h_step;
  return DM_OK;
}

/* ---- reading ---- */

/* Checks the eight bytes that every PNG begins with. */
static dm_status check_signature(const Codec *c) {
  const uint8_t *head = c->bytes;
  if (c->n_bytes < SIGNATURE_BYTES)
    return dm_fail(DM_EIO, "png: '%s' is cut short: %" PRId64 " bytes", c->name, c->n_bytes);
  if (png_sig_cmp(head, 0, SIGNATURE_BYTES) != 0)
    return dm_fail(DM_EIO, "png: '%s' is no PNG file: it begins %02x %02x %02x %02x", c->name,
                   head[0], head[1], head[2], head[3]);
  return DM_OK;
}

/* Reads the header and sets libpng's conversions to 8 bits a sample: palettes and small
   depths expand, 16 bits are scaled. Two bounds are checked before the pixels are allocated:
   deflate shrinks at most 1032 times, and the image has at most DM_IMAGE_MAX_PIXELS. */
static void read_header(Codec *c) {
  png_set_read_fn(c->png, c, codec_read);
  png_set_user_limits(c->png, MAX_SIDE, MAX_SIDE);
  png_read_info(c->png, c->info);
  png_set_expand(c->png);
  png_set_scale_16(c->png);
  png_set_interlace_handling(c->png);
  const int64_t raw = (int64_t)png_get_rowbytes(c->png, c->info); /* in the file */
  png_read_update_info(c->png, c->info);
  dm_Image *p = &c->image;
  p->channels = png_get_channels(c->png, c->info);
  p->height = png_get_image_height(c->png, c->info);
  p->width = png_get_image_width(c->png, c->info);
  p->c_step = 1;
  p->w_step = p->channels;
  p->h_step = p->width * p->channels;
  if (raw * p->height / DEFLATE_MOST > c->n_bytes) /* before memory is asked for */
    give_up(c, dm_fail(DM_EIO,
                       "png: '%s' is damaged: its %" PRId64 " bytes cannot hold the %" PRId64
                       " x %" PRId64 " image of its header",
                       c->name, c->n_bytes, p->width, p->height));
  if (p->height > DM_IMAGE_MAX_PIXELS / p->width)
    give_up(c, dm_fail(DM_EIO,
                       "png: '%s' is %" PRId64 " x %" PRId64 ", at most %d pixels are read",
                       c->name, p->width, p->height, DM_IMAGE_MAX_PIXELS));
}

/* Reads all rows (libpng undoes interlacing), the end of the file with its checksums, and
   Exif. */
static void read_image(Codec *c) {
  png_bytep exif = NULL;
  png_uint_32 n_exif = 0;
  png_read_image(c->png, c->rows);
  png_read_end(c->png, c->info);
  png_get_eXIf_1(c->png, c->info, &n_exif, &exif);
  c->orientation = exif ? dm_exif_orientation(exif, n_exif) : 1;
}

dm_status dm_png_decode(dm_Image *out, int *orientation, const uint8_t *bytes, int64_t n_bytes,
                        const char *name) {
  Codec c = {.name = name, .bytes = bytes, .n_bytes = n_bytes};
  dm_Image *p = &c.image;
  dm_status st = DM_OK;
  DM_GO(check_signature(&c));
  DM_GO(codec_open(&c, true));
  DM_GO(guarded(&c, read_header));
  p->data = dm_alloc(p->height * p->h_step);
  if (!p->data) {
    st = no_memory(&c);
    goto done;
  }
  DM_GO(point_at_rows(&c));
  DM_GO(guarded(&c, read_image));
  *orientation = c.orientation;
  *out = *p;
  p->data = NULL;
done:
  png_destroy_read_struct(&c.png, &c.info, NULL);
  dm_free(c.rows);
  dm_free(p->data);
  return st;
}

/* ---- writing ---- */

/* Writes header, rows and end with libpng's default filters and compression. */
static void write_image(Codec *c) {
  static const int kind[] = {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB,
                             PNG_COLOR_TYPE_RGB_ALPHA};
  const dm_Image *p = &c->image;
  png_set_write_fn(c->png, c, codec_write, codec_flush);
  png_set_IHDR(c->png, c->info, (png_uint_32)p->width, (png_uint_32)p->height, 8,
               kind[p->channels - 1], PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  png_write_info(c->png, c->info);
  png_write_image(c->png, c->rows);
  png_write_end(c->png, c->info);
}

dm_status dm_png_write(const char *path, const dm_Image *p) {
  Codec c = {.name = path, .image = *p, .file = DM_ATOMIC_FILE("png", path)};
  dm_status st = DM_OK;
  if (p->channels < 1 || p->channels > 4 || p->height < 1 || p->width < 1 ||
      p->height > MAX_SIDE || p->width > MAX_SIDE)
    return dm_fail(DM_EARG,
                   "png: an image of %" PRId64 " channels, %" PRId64 " x %" PRId64
                   ", wanted 1 to 4, and sides of 1 to %d",
                   p->channels, p->width, p->height, MAX_SIDE);
  DM_GO(codec_open(&c, false));
  DM_GO(point_at_rows(&c));
  DM_GO(dm_atomic_file_open(&c.file));
  DM_GO(guarded(&c, write_image));
  DM_GO(dm_atomic_file_finish(&c.file));
done:
  png_destroy_write_struct(&c.png, &c.info);
  dm_free(c.rows);
  dm_atomic_file_close(&c.file);
  return st;
}

#endif
