/* Crops of images. Padding, cropping and mirroring only change top, left, the strides and the
   sign of strides: a list of such transforms costs one copy at its end, not one each. A
   border of a constant colour is never stored; positions outside the image show `fill`. */
#include "data/crop.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

dm_Crop dm_crop_on(const dm_Image *image) {
  dm_Crop w;
  w.image = *image;
  w.top = w.left = 0;
  w.height = image->height;
  w.width = image->width;
  w.owned = NULL;
  return w; /* no fill: nothing lies outside */
}

void dm_crop_free(dm_Crop *w) {
  dm_free(w->owned);
  w->owned = NULL;
}

void dm_crop_narrow(dm_Crop *w, int64_t top, int64_t left, int64_t height, int64_t width) {
  w->top += top;
  w->left += left;
  w->height = height;
  w->width = width;
}

/* The strides turn negative and the data pointer moves to the last column; left counts from
   there. */
void dm_crop_mirror(dm_Crop *w) {
  dm_Image *p = &w->image;
  p->data += (p->width - 1) * p->w_step;
  p->w_step = -p->w_step;
  w->left = p->width - w->left - w->width;
}

void dm_crop_reverse(dm_Crop *w) {
  dm_Image *p = &w->image;
  p->data += (p->height - 1) * p->h_step;
  p->h_step = -p->h_step;
  w->top = p->height - w->top - w->height;
}

/* ---- its pixels ---- */

/* Columns [lo, hi) of the crop that lie in the image; none in rows that do not. */
typedef struct Span {
  const uint8_t *from; /* column lo */
  int64_t lo, hi;
} Span;

/* The span of row y of the crop in channel c. */
static Span span_of(const dm_Crop *w, int64_t c, int64_t y) {
  const dm_Image *p = &w->image;
  const int64_t row = y + w->top;
  Span s = {NULL, w->width, w->width};
  if (row < 0 || row >= p->height) return s;
  s.lo = dm_min_i64(dm_max_i64(-w->left, 0), w->width);
  s.hi = dm_max_i64(dm_min_i64(p->width - w->left, w->width), s.lo);
  if (s.hi > s.lo)
    s.from = p->data + c * p->c_step + row * p->h_step + (s.lo + w->left) * p->w_step;
  return s;
}

/* Row y of channel c: fill, pixels of the image, fill. */
static void row_bytes(const dm_Crop *w, int64_t c, int64_t y, uint8_t *out) {
  const Span s = span_of(w, c, y);
  const int64_t step = w->image.w_step, n = s.hi - s.lo;
  if (s.lo > 0) memset(out, w->fill[c], (size_t)s.lo);
  if (step == 1 && n > 0) memcpy(out + s.lo, s.from, (size_t)n);
  else
    for (int64_t x = 0; x < n; x++) out[s.lo + x] = s.from[x * step];
  if (s.hi < w->width) memset(out + s.hi, w->fill[c], (size_t)(w->width - s.hi));
}

void dm_crop_bytes(const dm_Crop *w, uint8_t *out) {
  for (int64_t c = 0; c < w->image.channels; c++)
    for (int64_t y = 0; y < w->height; y++, out += w->width) row_bytes(w, c, y, out);
}

/* Row y of channel c through the table, which converts and normalises in one look-up. */
static void row_floats(const dm_Crop *w, int64_t c, int64_t y, const float *table, float *out) {
  const Span s = span_of(w, c, y);
  const int64_t step = w->image.w_step;
  const uint8_t *from = s.from;
  for (int64_t x = 0; x < s.lo; x++) out[x] = table[w->fill[c]];
  for (int64_t x = s.lo; x < s.hi; x++, from += step) out[x] = table[*from];
  for (int64_t x = s.hi; x < w->width; x++) out[x] = table[w->fill[c]];
}

void dm_crop_floats(const dm_Crop *w, const float *tables, int n_tables, float *out) {
  for (int64_t c = 0; c < w->image.channels; c++) {
    const float *table = tables + (n_tables == 1 ? 0 : c) * DM_LEVELS;
    for (int64_t y = 0; y < w->height; y++, out += w->width) row_floats(w, c, y, table, out);
  }
}

/* ---- images of its own ---- */

dm_status dm_crop_make(dm_Image *out, int64_t channels, int64_t height, int64_t width) {
  uint8_t *data = dm_alloc(channels * height * width);
  if (!data)
    return dm_fail(DM_EMEM, "transforms: out of memory for an image of %lld x %lld x %lld",
                   (long long)channels, (long long)height, (long long)width);
  *out = dm_image_dense(data, channels, height, width);
  return DM_OK;
}

void dm_crop_put(dm_Crop *w, const dm_Image *image) {
  dm_free(w->owned);
  w->image = *image;
  w->owned = image->data;
  w->top = w->left = 0;
  w->height = image->height;
  w->width = image->width;
}

/* Whether the crop shows positions outside its image. */
static bool has_border(const dm_Crop *w) {
  return w->top < 0 || w->left < 0 || w->top + w->height > w->image.height ||
         w->left + w->width > w->image.width;
}

/* Replaces the crop's image by a dense copy of what it shows, which it owns. */
static dm_status copy(dm_Crop *w) {
  dm_Image p;
  DM_TRY(dm_crop_make(&p, w->image.channels, w->height, w->width));
  dm_crop_bytes(w, p.data);
  dm_crop_put(w, &p);
  return DM_OK;
}

dm_status dm_crop_whole(dm_Crop *w) {
  dm_Image *p = &w->image;
  if (has_border(w)) return copy(w);
  p->data += w->top * p->h_step + w->left * p->w_step;
  p->height = w->height;
  p->width = w->width;
  w->top = w->left = 0;
  return DM_OK;
}

dm_status dm_crop_own(dm_Crop *w) {
  const dm_Image *p = &w->image;
  const bool dense = p->w_step == 1 && p->h_step == p->width &&
                     p->c_step == p->width * p->height && w->width == p->width &&
                     w->height == p->height && w->top == 0 && w->left == 0;
  return w->owned && dense ? DM_OK : copy(w);
}

/* ---- borders ---- */

/* Reflections are periodic: the position modulo a period of 2 n (2 n - 2 without the edge),
   whose second half runs backwards. */
int64_t dm_pad_source(int64_t i, int64_t n, dm_PadMode mode) {
  if (mode == DM_PAD_EDGE || n == 1) return dm_min_i64(dm_max_i64(i, 0), n - 1);
  const int64_t twice = mode == DM_PAD_REFLECT ? 1 : 0; /* the edge is not shown twice */
  const int64_t period = 2 * (n - twice), at = (i % period + period) % period;
  return at < n ? at : 2 * n - 1 - twice - at;
}

/* Borders that repeat the image's own pixels are stored, unlike those of one colour. */
static dm_status pad_by_copies(dm_Crop *w, const int64_t pad[4], dm_PadMode mode) {
  dm_Image to, *from = &w->image;
  DM_TRY(dm_crop_make(&to, from->channels, from->height + pad[1] + pad[3],
                      from->width + pad[0] + pad[2]));
  for (int64_t c = 0; c < to.channels; c++)
    for (int64_t y = 0; y < to.height; y++) {
      const uint8_t *s = from->data + c * from->c_step +
                         dm_pad_source(y - pad[1], from->height, mode) * from->h_step;
      uint8_t *d = to.data + c * to.c_step + y * to.h_step;
      for (int64_t x = 0; x < to.width; x++)
        d[x] = s[dm_pad_source(x - pad[0], from->width, mode) * from->w_step];
    }
  dm_crop_put(w, &to);
  return DM_OK;
}

dm_status dm_crop_pad(dm_Crop *w, const int64_t pad[4], dm_PadMode mode, const float *fill,
                      int n_fill) {
  if (pad[0] + pad[1] + pad[2] + pad[3] == 0) return DM_OK;
  DM_TRY(dm_crop_whole(w)); /* an older border may have another colour */
  if (mode != DM_PAD_CONSTANT) return pad_by_copies(w, pad, mode);
  for (int64_t c = 0; c < w->image.channels; c++)
    w->fill[c] = n_fill == 0 ? 0 : (uint8_t)fill[n_fill == 1 ? 0 : c];
  dm_crop_narrow(w, -pad[1], -pad[0], w->height + pad[1] + pad[3], w->width + pad[0] + pad[2]);
  return DM_OK;
}
