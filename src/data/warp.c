/* Affine maps of images: rotation, shear, scale and translation. Each output pixel is looked
   up at its position under the inverse map, as torchvision's affine and Pillow's
   Image.transform(AFFINE) do, so that every output gets exactly one value. Coordinates are
   those of pixel centres, half a pixel from the corner. */
#include <math.h>

#include "data/image.h"

/* torchvision's _get_inverse_affine_matrix: the map is T(move) C R(degrees) shear scale C^-1
   with C the centre, and m is its inverse, written out. */
void dm_affine_inverse(const dm_Affine *a, int64_t height, int64_t width, double m[6]) {
  const double radian = 3.14159265358979323846 / 180;
  const double turn = a->degrees * radian, x = a->shear[0] * radian, y = a->shear[1] * radian;
  const double cx = a->at_corner ? 0 : (double)width * 0.5,
               cy = a->at_corner ? 0 : (double)height * 0.5;
  /* turn * scale * shear y * shear x; its determinant is scale^2 */
  const double p = cos(turn - y) / cos(y), r = sin(turn - y) / cos(y);
  const double q = -p * tan(x) - sin(turn), s = -r * tan(x) + cos(turn);
  m[0] = s / a->scale;
  m[1] = -q / a->scale;
  m[2] = 0;
  m[3] = -r / a->scale;
  m[4] = p / a->scale;
  if (a->scale == 1) /* right angles are right */
    for (int i = 0; i < 5; i++) m[i] = round(m[i] * 1e15) / 1e15;
  m[2] = m[0] * (-cx - a->move[0]) + m[1] * (-cy - a->move[1]) + cx;
  m[5] = m[3] * (-cx - a->move[0]) + m[4] * (-cy - a->move[1]) + cy;
}

/* Copies the pixel of src at (x, y), or fill. */
static void put(const dm_Image *dst, const dm_Image *src, int64_t to, int64_t x, int64_t y,
                const uint8_t *fill) {
  const bool inside = x >= 0 && x < src->width && y >= 0 && y < src->height;
  const uint8_t *from = inside ? src->data + y * src->h_step + x * src->w_step : NULL;
  for (int64_t c = 0; c < dst->channels; c++)
    dst->data[c * dst->c_step + to] = inside ? from[c * src->c_step] : fill[c];
}

/* Truncates; a coordinate below 0 becomes -1, which is outside, where a cast would give 0. */
static int64_t whole(double v) { return v < 0 ? -1 : (int64_t)v; }

/* The nearest pixel. As in Pillow, coordinates accumulate in double where axes stay axes,
   else they are in fixed point with 16 fraction bits. */
static void nearest(const dm_Image *dst, const dm_Image *src, const double m[6],
                    const uint8_t *fill) {
  if (m[1] == 0 && m[3] == 0) {
    double at_y = m[5] + m[4] * 0.5;
    for (int64_t y = 0; y < dst->height; y++, at_y += m[4]) {
      double at_x = m[2] + m[0] * 0.5;
      for (int64_t x = 0; x < dst->width; x++, at_x += m[0])
        put(dst, src, y * dst->h_step + x, whole(at_x), whole(at_y), fill);
    }
    return;
  }
  int64_t fixed[6];
  const double start[6] = {m[0], m[1], m[2] + m[0] * 0.5 + m[1] * 0.5,
                           m[3], m[4], m[5] + m[3] * 0.5 + m[4] * 0.5};
  for (int i = 0; i < 6; i++) fixed[i] = (int64_t)floor(start[i] * 65536.0 + 0.5);
  for (int64_t y = 0; y < dst->height; y++)
    for (int64_t x = 0; x < dst->width; x++)
      put(dst, src, y * dst->h_step + x, (fixed[2] + y * fixed[1] + x * fixed[0]) >> 16,
          (fixed[5] + y * fixed[4] + x * fixed[3]) >> 16, fill);
}

/* Linear interpolation. */
static double between(double a, double b, double part) { return a + (b - a) * part; }

static int64_t clamped(int64_t i, int64_t n) { return dm_min_i64(dm_max_i64(i, 0), n - 1); }

/* Interpolates the four pixels around the point; neighbours beyond the edge repeat it, and
   points outside the image are fill. Truncates like Pillow. */
static void bilinear(const dm_Image *dst, const dm_Image *src, const double m[6],
                     const uint8_t *fill) {
  for (int64_t y = 0; y < dst->height; y++)
    for (int64_t x = 0; x < dst->width; x++) {
      const double at_x = m[0] * ((double)x + 0.5) + m[1] * ((double)y + 0.5) + m[2];
      const double at_y = m[3] * ((double)x + 0.5) + m[4] * ((double)y + 0.5) + m[5];
      const int64_t to = y * dst->h_step + x;
      if (!(at_x >= 0 && at_x < (double)src->width && at_y >= 0 &&
            at_y < (double)src->height)) {
        put(dst, src, to, -1, -1, fill);
        continue;
      }
      const int64_t left = (int64_t)floor(at_x - 0.5), top = (int64_t)floor(at_y - 0.5);
      const double dx = at_x - 0.5 - (double)left, dy = at_y - 0.5 - (double)top;
      const int64_t x0 = clamped(left, src->width) * src->w_step,
                    x1 = clamped(left + 1, src->width) * src->w_step,
                    y0 = clamped(top, src->height) * src->h_step,
                    y1 = clamped(top + 1, src->height) * src->h_step;
      for (int64_t c = 0; c < dst->channels; c++) {
        const uint8_t *s = src->data + c * src->c_step;
        dst->data[c * dst->c_step + to] = (uint8_t)between(
            between(s[y0 + x0], s[y0 + x1], dx), between(s[y1 + x0], s[y1 + x1], dx), dy);
      }
    }
}

void dm_image_warp(const dm_Image *dst, const dm_Image *src, const double m[6],
                   dm_Filter filter, const uint8_t *fill) {
  if (filter == DM_FILTER_NEAREST) nearest(dst, src, m, fill);
  else bilinear(dst, src, m, fill);
}
