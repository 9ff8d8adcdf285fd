/* Reads JPEG files by libjpeg (libjpeg-turbo), which only this file includes. libjpeg reports
   a failure by a callback that must not return: each of its calls is made below guarded(),
   which holds the setjmp; the resources that the jump may skip are in the Codec, and the code
   outside frees them. libjpeg allocates its own working memory; the image's comes from
   dm_alloc. */
#include "data/jpeg.h"

#include <string.h>

#include "base/error.h"

bool dm_is_jpeg(const uint8_t *bytes, int64_t n_bytes) {
  static const uint8_t begins[] = {0xff, 0xd8, 0xff};
  return n_bytes > 0 && memcmp(bytes, begins, (size_t)dm_min_i64(n_bytes, sizeof begins)) == 0;
}

#if !DM_HAVE_JPEG

dm_status dm_jpeg_decode(dm_Image *out, int *orientation, const uint8_t *bytes, int64_t n_bytes,
                         const char *name) {
  DM_UNUSED(out);
  DM_UNUSED(orientation);
  DM_UNUSED(bytes);
  DM_UNUSED(n_bytes);
  return dm_fail(DM_EIO,
                 "jpeg: '%s': this build knows no JPEG files; hint: install libjpeg-turbo "
                 "(Debian: libjpeg-dev) and build again",
                 name);
}

#else

#include <inttypes.h>
#include <setjmp.h>
#include <stdio.h>
/* libjpeg's headers want size_t and FILE before them */
#include <jpeglib.h>

#include <jerror.h>

#include "base/alloc.h"
#include "data/exif.h"

enum {
  MAX_SCANS = 100,       /* of a progressive file; encoders make some 10 */
  PIXELS_OF_BYTE = 1024, /* most that a byte of Huffman codes stands for: 8 codes, each of
                            a block of 64 pixels, and half the blocks left out */
  ARITHMETIC_MOST = 64,  /* times that for arithmetic codes, which know no bound */
  EXIF_INTRO = 6,        /* "Exif", 0, 0 */
  ALL_OF_IT = 0xffff
};

typedef struct Codec {
  struct jpeg_decompress_struct jpeg;
  struct jpeg_error_mgr errors;
  struct jpeg_progress_mgr progress;
  jmp_buf jump;
  const char *name;
  const uint8_t *bytes;
  int64_t n_bytes;
  dm_status st; /* of the failure, whose message is recorded */
  int orientation;
  dm_Image image;
} Codec;

/* ---- callbacks of libjpeg ---- */

/* The Codec behind libjpeg's struct. */
static Codec *codec_of(j_common_ptr jpeg) { return jpeg->client_data; }

/* Ends the guarded call with a failure that is recorded already. */
_Noreturn static void give_up(Codec *c, dm_status st) {
  c->st = st;
  longjmp(c->jump, 1);
}

/* libjpeg's error_exit: translates its code to a status and message, and jumps to
   guarded(). */
_Noreturn static void codec_failed(j_common_ptr jpeg) {
  Codec *c = codec_of(jpeg);
  char text[JMSG_LENGTH_MAX];
  switch (jpeg->err->msg_code) {
  case JERR_OUT_OF_MEMORY:
    give_up(c, dm_fail(DM_EMEM, "jpeg: out of memory for '%s'", c->name));
  case JWRN_JPEG_EOF:
  case JERR_INPUT_EOF:
  case JERR_INPUT_EMPTY: give_up(c, dm_fail(DM_EIO, "jpeg: '%s' is cut short", c->name));
  default:
    jpeg->err->format_message(jpeg, text);
    give_up(c, dm_fail(DM_EIO, "jpeg: cannot decode '%s': %s", c->name, text));
  }
}

/* libjpeg's emit_message. A warning usually means that pixels were guessed, and then the
   decode fails; the warnings listed here only say that a file has extra data or an unusual
   header. */
static void codec_warned(j_common_ptr jpeg, int level) {
  if (level >= 0) return; /* a trace */
  switch (jpeg->err->msg_code) {
  case JWRN_EXTRANEOUS_DATA:
  case JWRN_JFIF_MAJOR:
  case JWRN_ADOBE_XFORM:
  case JWRN_BOGUS_ICC:
  case JWRN_NOT_SEQUENTIAL: return;
  default: codec_failed(jpeg);
  }
}

/* libjpeg's output_message: nothing is printed. */
static void codec_quiet(j_common_ptr jpeg) { DM_UNUSED(jpeg); }

/* libjpeg's progress callback. Each scan of a progressive file decodes the whole image, so a
   small file with many tiny scans would take hours: their number is bounded. */
static void codec_progressed(j_common_ptr jpeg) {
  Codec *c = codec_of(jpeg);
  if (c->jpeg.input_scan_number > MAX_SCANS)
    give_up(
        c, dm_fail(DM_EIO, "jpeg: cannot decode '%s': more than %d scans", c->name, MAX_SCANS));
}

/* Calls body(c), and returns its failure when libjpeg jumps out of it. Nothing of this frame
   changes after setjmp, so no variable needs volatile. */
static dm_status guarded(Codec *c, void (*body)(Codec *)) {
  if (setjmp(c->jump) == 0) body(c);
  return c->st;
}

/* ---- the header ---- */

/* Refuses images that are too large, and headers that promise more pixels than so many bytes
   can encode, before memory is allocated. */
static void check_size(Codec *c) {
  const int64_t pixels = (int64_t)c->jpeg.image_width * c->jpeg.image_height;
  if (pixels > DM_IMAGE_MAX_PIXELS)
    give_up(c, dm_fail(DM_EIO, "jpeg: '%s' is %u x %u, at most %d pixels are read", c->name,
                       c->jpeg.image_width, c->jpeg.image_height, DM_IMAGE_MAX_PIXELS));
  const int64_t of_byte = PIXELS_OF_BYTE * (c->jpeg.arith_code ? ARITHMETIC_MOST : 1);
  if (pixels / of_byte > c->n_bytes) /* before memory is asked for */
    give_up(c, dm_fail(DM_EIO,
                       "jpeg: '%s' is cut short: its %" PRId64
                       " bytes cannot hold the %u x %u image of its header",
                       c->name, c->n_bytes, c->jpeg.image_width, c->jpeg.image_height));
}

/* The orientation in the first APP1 marker that begins with "Exif". */
static int orientation_of(const Codec *c) {
  for (jpeg_saved_marker_ptr m = c->jpeg.marker_list; m; m = m->next)
    if (m->data_length > EXIF_INTRO && memcmp(m->data, "Exif\0", EXIF_INTRO) == 0)
      return dm_exif_orientation(m->data + EXIF_INTRO, m->data_length - EXIF_INTRO);
  return 1;
}

/* Reads the header and chooses the output: grey, RGB, or CMYK, which paint() converts. */
static void read_header(Codec *c) {
  struct jpeg_decompress_struct *j = &c->jpeg;
  jpeg_create_decompress(j);
  c->progress.progress_monitor = codec_progressed;
  j->progress = &c->progress;
  jpeg_mem_src(j, c->bytes, (unsigned long)c->n_bytes);
  jpeg_save_markers(j, JPEG_APP0 + 1, ALL_OF_IT);
  jpeg_read_header(j, TRUE);
  check_size(c);
  c->orientation = orientation_of(c);
  switch (j->jpeg_color_space) {
  case JCS_GRAYSCALE: j->out_color_space = JCS_GRAYSCALE; break;
  case JCS_RGB:
  case JCS_YCbCr: j->out_color_space = JCS_RGB; break;
  case JCS_CMYK:
  case JCS_YCCK: j->out_color_space = JCS_CMYK; break;
  default:
    give_up(c, dm_fail(DM_EIO, "jpeg: cannot decode '%s': an image of %d components", c->name,
                       j->num_components));
  }
}

/* ---- the pixels ---- */

/* x / 255, rounded, without a division; exact for products of two bytes. */
static uint32_t by_255(uint32_t x) { return (x + 128 + ((x + 128) >> 8)) >> 8; }

/* Converts n pixels of inverted CMYK (255 is no ink), as Adobe's programs write it: white
   paper under ink c and black k shows white * (255 - c) * (255 - k) / 255^2. */
static void paint(uint8_t *rgb, const uint8_t *cmyk, int64_t n) {
  for (int64_t i = 0; i < n; i++, rgb += 3, cmyk += 4)
    for (int k = 0; k < 3; k++)
      rgb[k] = (uint8_t)(cmyk[3] - by_255((uint32_t)(255 - cmyk[k]) * cmyk[3]));
}

/* Decodes row by row, straight into the image unless CMYK needs a line of its own. */
static void read_image(Codec *c) {
  struct jpeg_decompress_struct *j = &c->jpeg;
  const dm_Image *p = &c->image;
  jpeg_start_decompress(j);
  const bool ink = j->out_color_space == JCS_CMYK;
  JSAMPARRAY line =
      ink ? j->mem->alloc_sarray((j_common_ptr)j, JPOOL_IMAGE, j->output_width * 4, 1) : NULL;
  while (j->output_scanline < j->output_height) {
    uint8_t *to = p->data + j->output_scanline * p->h_step;
    jpeg_read_scanlines(j, ink ? line : &to, 1);
    if (ink) paint(to, line[0], p->width);
  }
  jpeg_finish_decompress(j);
}

dm_status dm_jpeg_decode(dm_Image *out, int *orientation, const uint8_t *bytes, int64_t n_bytes,
                         const char *name) {
  Codec c = {.name = name, .bytes = bytes, .n_bytes = n_bytes};
  dm_Image *p = &c.image;
  dm_status st = DM_OK;
  c.jpeg.err = jpeg_std_error(&c.errors);
  c.jpeg.client_data = &c;
  c.errors.error_exit = codec_failed;
  c.errors.emit_message = codec_warned;
  c.errors.output_message = codec_quiet;
  DM_GO(guarded(&c, read_header));
  p->channels = c.jpeg.out_color_space == JCS_GRAYSCALE ? 1 : 3;
  p->height = c.jpeg.image_height;
  p->width = c.jpeg.image_width;
  p->c_step = 1;
  p->w_step = p->channels;
  p->h_step = p->width * p->channels;
  p->data = dm_alloc(p->height * p->h_step);
  if (!p->data) {
    st = dm_fail(DM_EMEM, "jpeg: out of memory for '%s'", name);
    goto done;
  }
  DM_GO(guarded(&c, read_image));
  *orientation = c.orientation;
  *out = *p;
  p->data = NULL;
done:
  jpeg_destroy_decompress(&c.jpeg);
  dm_free(p->data);
  return st;
}

#endif
