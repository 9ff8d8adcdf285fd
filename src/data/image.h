/* An image between a decoder and a tensor: 8 bits a sample,
   planes (C,H,W) as tensors have them or pixels (H,W,C) as files do. */
#ifndef DM_IMAGE_H
#define DM_IMAGE_H

#include "base/base.h"

typedef struct dm_Image {
  int64_t channels, height, width;
  int64_t c_step, h_step, w_step; /* bytes from a sample to the next in that dim; of a
                                     mirror image below 0 */
  uint8_t *data;
} dm_Image;

/* Decoders refuse more: some bytes of a file could ask for all memory. */
enum { DM_IMAGE_MAX_PIXELS = 1 << 28 };
typedef enum dm_Filter { DM_FILTER_NEAREST, DM_FILTER_BILINEAR, DM_FILTER_BICUBIC } dm_Filter;

/* Dense planes (C,H,W) at data. */
static inline dm_Image dm_image_dense(uint8_t *data, int64_t channels, int64_t height,
                                      int64_t width) {
  return (dm_Image){channels, height, width, height * width, width, 1, data};
}

/* Resizes src to the size of dst, of the same channels; sides are 1 at least. */
dm_status dm_image_resize(const dm_Image *dst, const dm_Image *src, dm_Filter filter);

/* The arithmetic of one axis, for callers that resize something else than 8 bits. Output i is
   the sum of weights[i, k] * input k, weights (n_out, n_in); nearest: it is input at[i], from
   0. */
DM_API void dm_resize_weights(double *weights, int64_t n_out, int64_t n_in, dm_Filter filter);
DM_API void dm_resize_nearest(int64_t *at, int64_t n_out, int64_t n_in);

/* ---- colours of dense planes, in place; 1 channel, grey, or 3: red, green, blue ---- */

typedef enum dm_Adjust {
  DM_ADJUST_BRIGHTNESS, /* 0 black, 1 as it is, and on */
  DM_ADJUST_CONTRAST,   /* 0 grey */
  DM_ADJUST_SATURATION, /* 0 without colour */
  DM_ADJUST_HUE,        /* turns of the wheel of colours, -0.5 to 0.5 */
  DM_ADJUST_SHARPNESS,  /* 0 smooth */
  DM_ADJUST_POSTERIZE,  /* so many bits stay, 0 to 8 */
  DM_ADJUST_SOLARIZE,   /* from this level on inverted */
  DM_ADJUST_INVERT,
  DM_ADJUST_AUTOCONTRAST,
  DM_ADJUST_EQUALIZE,
  DM_ADJUST_N
} dm_Adjust;

dm_status dm_image_adjust(const dm_Image *p, dm_Adjust what, double much);
void dm_image_grey(const dm_Image *p, uint8_t *grey); /* (height, width) */

/* ---- turned, sheared, scaled and moved ---- */

typedef struct dm_Affine {
  double degrees;  /* clockwise */
  double move[2];  /* pixels to the right, down */
  double scale;    /* above 0 */
  double shear[2]; /* degrees along x, y */
  bool at_corner;  /* the corner stays where it is, not the middle */
} dm_Affine;

/* The inverse map: pixel position (x, y) of the result shows the source at column
   m[0] x + m[1] y + m[2], row m[3] x + m[4] y + m[5]. */
void dm_affine_inverse(const dm_Affine *a, int64_t height, int64_t width, double m[6]);

/* Fills dst, dense and as large as src, with src through such a map; pixels from outside of
   it are fill, one a channel. Nearest or bilinear. */
void dm_image_warp(const dm_Image *dst, const dm_Image *src, const double m[6],
                   dm_Filter filter, const uint8_t *fill);

#endif
