/* Adjusts the colours of images in dense planes in place, with Pillow's arithmetic
   (ImageEnhance, ImageOps). Images have 1 channel, grey, or 3: red, green, blue. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "data/image.h"

enum { LEVELS = 256 };

static int64_t pixels_of(const dm_Image *p) { return p->height * p->width; }

/* v cut to 0 .. 255 and truncated, as Pillow's blend does. */
static uint8_t clipped(float v) { return v <= 0 ? 0 : v >= 255 ? 255 : (uint8_t)v; }

/* Pillow's ImageEnhance blends two images: from + much * (v - from). much is 0 for `from`, 1
   for v, and larger values extrapolate. */
static uint8_t away(uint8_t from, uint8_t v, float much) {
  return clipped((float)from + much * (float)(v - from));
}

/* Pillow's conversion to "L": the luma of ITU-R 601-2 in fixed point with 16 fraction
   bits. */
static uint8_t luma(int r, int g, int b) {
  return (uint8_t)((r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16);
}

/* Replaces each sample by the table's entry. */
static void look_up(uint8_t *plane, int64_t n, const uint8_t table[LEVELS]) {
  for (int64_t i = 0; i < n; i++) plane[i] = table[plane[i]];
}

void dm_image_grey(const dm_Image *p, uint8_t *grey) {
  const int64_t n = pixels_of(p);
  const uint8_t *r = p->data, *g = r + p->c_step, *b = g + p->c_step;
  if (p->channels == 1) memcpy(grey, r, (size_t)n);
  else
    for (int64_t i = 0; i < n; i++) grey[i] = luma(r[i], g[i], b[i]);
}

/* ImageEnhance.Brightness: a blend with black, the same for each sample, so one table does
   it. */
static void brightness(const dm_Image *p, float much) {
  uint8_t table[LEVELS];
  for (int v = 0; v < LEVELS; v++) table[v] = away(0, (uint8_t)v, much);
  look_up(p->data, p->channels * pixels_of(p), table);
}

/* ImageEnhance.Contrast: a blend with the mean grey level of the image, rounded to an
   integer. */
static void contrast(const dm_Image *p, float much) {
  const int64_t n = pixels_of(p);
  const uint8_t *r = p->data, *g = r + p->c_step, *b = g + p->c_step;
  int64_t sum = 0;
  for (int64_t i = 0; i < n; i++) sum += p->channels == 1 ? r[i] : luma(r[i], g[i], b[i]);
  const uint8_t mean = (uint8_t)((double)sum / (double)n + 0.5);
  uint8_t table[LEVELS];
  for (int v = 0; v < LEVELS; v++) table[v] = away(mean, (uint8_t)v, much);
  look_up(p->data, p->channels * n, table);
}

/* ImageEnhance.Color: a blend of each pixel with its own grey. */
static void saturation(const dm_Image *p, float much) {
  if (p->channels == 1) return;
  uint8_t *r = p->data, *g = r + p->c_step, *b = g + p->c_step;
  for (int64_t i = 0, n = pixels_of(p); i < n; i++) {
    const uint8_t grey = luma(r[i], g[i], b[i]);
    r[i] = away(grey, r[i], much);
    g[i] = away(grey, g[i], much);
    b[i] = away(grey, b[i], much);
  }
}

/* ---- hue: to hue, saturation and value of 8 bits each, and back ---- */

/* Pillow's RGB to HSV (Convert.c), with its float and double steps, for equal bits. */
static void to_hsv(const uint8_t rgb[3], uint8_t hsv[3]) {
  const uint8_t r = rgb[0], g = rgb[1], b = rgb[2];
  const uint8_t most = r > g ? (r > b ? r : b) : (g > b ? g : b);
  const uint8_t least = r < g ? (r < b ? r : b) : (g < b ? g : b);
  hsv[0] = hsv[1] = 0;
  hsv[2] = most;
  if (most == least) return;
  const float range = (float)(most - least), s = range / (float)most;
  const float rc = (float)(most - r) / range, gc = (float)(most - g) / range,
              bc = (float)(most - b) / range;
  const double turn = r == most   ? (double)(bc - gc)
                      : g == most ? 2.0 + (double)rc - (double)bc
                                  : 4.0 + (double)gc - (double)rc;
  const float h = (float)fmod((double)(float)turn / 6.0 + 1.0, 1.0);
  hsv[0] = (uint8_t)(int)((double)h * 255.0);
  hsv[1] = (uint8_t)(int)((double)s * 255.0);
}

/* Pillow's HSV to RGB: hue in sixths of the circle, each with its order of the four
   levels. */
static void to_rgb(const uint8_t hsv[3], uint8_t rgb[3]) {
  const float v = hsv[2];
  rgb[0] = rgb[1] = rgb[2] = hsv[2];
  if (hsv[1] == 0) return;
  const float sixth = (float)hsv[0] * 6.0f / 255.0f, s = (float)hsv[1] / 255.0f;
  const int i = (int)floorf(sixth);
  const float f = sixth - (float)i;
  const uint8_t p = clipped(roundf(v * (1.0f - s)));
  const uint8_t q = clipped(roundf(v * (1.0f - s * f)));
  const uint8_t t = clipped(roundf(v * (1.0f - s * (1.0f - f))));
  const uint8_t turns[6][3] = {{hsv[2], t, p}, {q, hsv[2], p}, {p, hsv[2], t},
                               {p, q, hsv[2]}, {t, p, hsv[2]}, {hsv[2], p, q}};
  memcpy(rgb, turns[i % 6], 3);
}

/* torchvision's adjust_hue: adds part of the circle to the 8-bit hue, which wraps around. */
static void hue(const dm_Image *p, double part) {
  if (p->channels == 1) return;
  uint8_t *r = p->data, *g = r + p->c_step, *b = g + p->c_step;
  const uint8_t turn = (uint8_t)(int)(part * 255);
  for (int64_t i = 0, n = pixels_of(p); i < n; i++) {
    uint8_t rgb[3] = {r[i], g[i], b[i]}, hsv[3];
    to_hsv(rgb, hsv);
    hsv[0] = (uint8_t)(hsv[0] + turn);
    to_rgb(hsv, rgb);
    r[i] = rgb[0], g[i] = rgb[1], b[i] = rgb[2];
  }
}

/* ---- tables from a channel's own histogram ---- */

/* The histogram of a plane. */
static void count_levels(const uint8_t *plane, int64_t n, int64_t counts[LEVELS]) {
  memset(counts, 0, LEVELS * sizeof *counts);
  for (int64_t i = 0; i < n; i++) counts[plane[i]]++;
}

/* ImageOps.autocontrast of one channel: a linear map under which the darkest level becomes 0
   and the brightest 255. A plane of one level stays. */
static void stretch(uint8_t *plane, int64_t n) {
  int64_t counts[LEVELS];
  int low = 0, high = LEVELS - 1;
  count_levels(plane, n, counts);
  while (low < LEVELS - 1 && counts[low] == 0) low++;
  while (high > 0 && counts[high] == 0) high--;
  if (high <= low) return;
  uint8_t table[LEVELS];
  const double scale = 255.0 / (high - low), offset = -low * scale;
  for (int v = 0; v < LEVELS; v++) {
    const int to = (int)(v * scale + offset);
    table[v] = (uint8_t)(to < 0 ? 0 : to > 255 ? 255 : to);
  }
  look_up(plane, n, table);
}

/* ImageOps.equalize of one channel: the table is the cumulative histogram, scaled so that
   levels are about equally frequent. Too few pixels leave the plane as it is. */
static void equalize(uint8_t *plane, int64_t n) {
  int64_t counts[LEVELS];
  int last = LEVELS - 1;
  count_levels(plane, n, counts);
  while (last > 0 && counts[last] == 0) last--;
  const int64_t step = (n - counts[last]) / 255;
  if (step == 0) return;
  uint8_t table[LEVELS];
  int64_t at = step / 2;
  for (int v = 0; v < LEVELS; v++) {
    table[v] = (uint8_t)dm_min_i64(at / step, 255);
    at += counts[v];
  }
  look_up(plane, n, table);
}

/* ---- sharpness ---- */

/* ImageEnhance.Sharpness: a blend with the image smoothed by {1 1 1; 1 5 1; 1 1 1} / 13; the
   edge pixels stay. Two rows are saved, because the plane is changed in place while the rows
   above are still needed. */
static dm_status sharpness(const dm_Image *p, float much) {
  const int64_t n = p->width;
  uint8_t *rows = dm_alloc(2 * n);
  if (!rows) return dm_fail(DM_EMEM, "sharpness: out of memory");
  for (int64_t c = 0; c < p->channels; c++) {
    uint8_t *above = rows, *here = rows + n, *line = p->data + c * p->c_step;
    memcpy(above, line, (size_t)n);
    for (int64_t y = 1; y + 1 < p->height; y++) {
      line += n;
      const uint8_t *below = line + n;
      memcpy(here, line, (size_t)n);
      for (int64_t x = 1; x + 1 < n; x++) {
        int sum = 4 * here[x];
        for (int64_t k = x - 1; k <= x + 1; k++) sum += above[k] + here[k] + below[k];
        line[x] = away((uint8_t)((2 * sum + 13) / 26), here[x], much);
      }
      uint8_t *const next = above;
      above = here;
      here = next;
    }
  }
  dm_free(rows);
  return DM_OK;
}

/* ---- by name ---- */

/* ImageOps.posterize, solarize and invert, which map each level by itself. */
static void levels(const dm_Image *p, dm_Adjust what, double much) {
  uint8_t table[LEVELS];
  const unsigned kept = what == DM_ADJUST_POSTERIZE ? 0xff00u >> (int)much : 0; /* bits */
  for (unsigned v = 0; v < LEVELS; v++) {
    const bool stays = what == DM_ADJUST_SOLARIZE && v < much;
    table[v] = (uint8_t)(what == DM_ADJUST_POSTERIZE ? v & kept : stays ? v : LEVELS - 1 - v);
  }
  look_up(p->data, p->channels * pixels_of(p), table);
}

/* The operations by number; autocontrast and equalize treat each channel alone, as Pillow
   does. */
dm_status dm_image_adjust(const dm_Image *p, dm_Adjust what, double much) {
  const int64_t n = pixels_of(p);
  switch (what) {
  case DM_ADJUST_BRIGHTNESS: brightness(p, (float)much); break;
  case DM_ADJUST_CONTRAST: contrast(p, (float)much); break;
  case DM_ADJUST_SATURATION: saturation(p, (float)much); break;
  case DM_ADJUST_HUE: hue(p, much); break;
  case DM_ADJUST_SHARPNESS: return sharpness(p, (float)much);
  case DM_ADJUST_POSTERIZE:
  case DM_ADJUST_SOLARIZE:
  case DM_ADJUST_INVERT: levels(p, what, much); break;
  case DM_ADJUST_AUTOCONTRAST:
    for (int64_t c = 0; c < p->channels; c++) stretch(p->data + c * n, n);
    break;
  case DM_ADJUST_EQUALIZE:
    for (int64_t c = 0; c < p->channels; c++) equalize(p->data + c * n, n);
    break;
  case DM_ADJUST_N: break;
  }
  return DM_OK;
}
