#include "data/steps.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/rng.h"

/* ---- chance ---- */

/* The stream of one step: what one of them draws changes nothing for the others. */
static uint64_t stream_of(const dm_Step *s, uint64_t draw) {
  uint64_t state = draw;
  state = dm_splitmix64(&state) ^ ((uint64_t)s->how.kind * DM_MAX_STEPS + (uint64_t)s->nth);
  return dm_splitmix64(&state);
}

/* 0 .. n-1, n < 2^32; the bias of n / 2^32 is beyond notice */
static int64_t draw_below(uint64_t *state, int64_t n) {
  return (int64_t)(((dm_splitmix64(state) >> 32) * (uint64_t)n) >> 32);
}

static double draw_unit(uint64_t *state) { /* 0 to 1, without 1 */
  return (double)(dm_splitmix64(state) >> 11) * 0x1p-53;
}

static double draw_between(uint64_t *state, const double range[2]) {
  return range[0] + (range[1] - range[0]) * draw_unit(state);
}

/* Handle and Muller's method, one of its two numbers. */
static double draw_normal(uint64_t *state) {
  const double r = sqrt(-2 * log(1 - draw_unit(state)));
  return r * cos(6.28318530717958647693 * draw_unit(state));
}

/* ---- sizes ---- */

void dm_step_border(const dm_AugmentStep *s, int64_t height, int64_t width, int64_t pad[4]) {
  memcpy(pad, s->pad, sizeof s->pad);
  if (!s->pad_if_needed) return;
  const int64_t x = dm_max_i64(s->width - width - pad[0] - pad[2], 0);
  const int64_t y = dm_max_i64(s->height - height - pad[1] - pad[3], 0);
  pad[0] += x, pad[1] += y, pad[2] += x, pad[3] += y;
}

dm_status dm_step_short_side(const dm_AugmentStep *s, int64_t *height, int64_t *width) {
  int64_t *shorter = *width <= *height ? width : height;
  int64_t *longer = *width <= *height ? height : width;
  int64_t to = s->height, other = -1;
  if (*height > 0 && *width > 0) {
    other = (int64_t)((double)(to * *longer) / (double)*shorter);
    if (s->max_size > 0 && other > s->max_size) {
      to = (int64_t)((double)(s->max_size * to) / (double)other);
      other = s->max_size;
    }
    if (to < 1 || other > DM_MAX_SIDE)
      return dm_fail(DM_EARG,
                     "Resize: %" PRId64 " x %" PRId64 " would become a side of %" PRId64,
                     *height, *width, to < 1 ? to : other);
  }
  *shorter = other < 0 ? -1 : to;
  *longer = other;
  return DM_OK;
}

/* ---- windows ---- */

static dm_status resize(dm_Crop *w, int64_t height, int64_t width, dm_Filter filter) {
  dm_Image to;
  if (w->height == height && w->width == width) return DM_OK;
  DM_TRY(dm_crop_whole(w));
  DM_TRY(dm_crop_make(&to, w->picture.channels, height, width));
  const dm_status st = dm_image_resize(&to, &w->picture, filter);
  if (st == DM_OK) dm_crop_put(w, &to);
  else dm_free(to.data);
  return st;
}

static dm_status resize_as_told(dm_Crop *w, const dm_AugmentStep *s) {
  int64_t height = w->height, width = w->width;
  if (s->width > 0) return resize(w, s->height, s->width, s->filter);
  DM_TRY(dm_step_short_side(s, &height, &width));
  return resize(w, height, width, s->filter);
}

static dm_status crop(dm_Crop *w, const dm_Step *s, uint64_t *state) {
  const dm_AugmentStep *how = &s->how;
  int64_t pad[4];
  dm_step_border(how, w->height, w->width, pad);
  DM_TRY(dm_crop_pad(w, pad, how->pad_mode, s->values, how->n_values));
  const int64_t top = draw_below(state, w->height - how->height + 1);
  const int64_t left = draw_below(state, w->width - how->width + 1);
  dm_crop_cut(w, top, left, how->height, how->width);
  return DM_OK;
}

static dm_status center_crop(dm_Crop *w, int64_t height, int64_t width) {
  const int64_t x = dm_max_i64(width - w->width, 0), y = dm_max_i64(height - w->height, 0);
  DM_TRY(dm_crop_pad(w, (const int64_t[4]){x / 2, y / 2, (x + 1) / 2, (y + 1) / 2},
                     DM_PAD_CONSTANT, NULL, 0));
  /* halves go to the even neighbour */
  dm_crop_cut(w, (int64_t)rint((double)(w->height - height) / 2),
              (int64_t)rint((double)(w->width - width) / 2), height, width);
  return DM_OK;
}

/* Height and width of a box of an area and a ratio (of a to b) drawn from the step's ranges. */
static void draw_box(const dm_AugmentStep *s, int64_t whole, uint64_t *state, int64_t *a,
                     int64_t *b) {
  const double log_ratio[2] = {log(s->ratio[0]), log(s->ratio[1])};
  const double area = (double)whole * draw_between(state, s->area);
  const double ratio = exp(draw_between(state, log_ratio));
  *a = (int64_t)rint(sqrt(area * ratio));
  *b = (int64_t)rint(sqrt(area / ratio));
}

enum { TRIES = 10 }; /* for a box that fits */

/* A window that fits; else the largest in the middle whose aspect is allowed. */
static void cut_area(dm_Crop *w, const dm_AugmentStep *s, uint64_t *state) {
  int64_t width, height;
  for (int i = 0; i < TRIES; i++) {
    draw_box(s, w->height * w->width, state, &width, &height);
    if (width < 1 || width > w->width || height < 1 || height > w->height) continue;
    const int64_t top = draw_below(state, w->height - height + 1);
    const int64_t left = draw_below(state, w->width - width + 1);
    dm_crop_cut(w, top, left, height, width);
    return;
  }
  const double is = (double)w->width / (double)w->height;
  width = w->width, height = w->height;
  if (is < s->ratio[0]) height = (int64_t)rint((double)width / s->ratio[0]);
  else if (is > s->ratio[1]) width = (int64_t)rint((double)height * s->ratio[1]);
  height = dm_max_i64(height, 1);
  width = dm_max_i64(width, 1);
  dm_crop_cut(w, (w->height - height) / 2, (w->width - width) / 2, height, width);
}

/* ---- colours ---- */

static dm_status grey(dm_Crop *w, int64_t channels) {
  dm_Image to;
  DM_TRY(dm_crop_own(w));
  if (w->picture.channels == 1 && channels == 1) return DM_OK;
  DM_TRY(dm_crop_make(&to, channels, w->height, w->width));
  dm_image_grey(&w->picture, to.data);
  for (int64_t c = 1; c < channels; c++)
    memcpy(to.data + c * to.c_step, to.data, (size_t)to.c_step);
  dm_crop_put(w, &to);
  return DM_OK;
}

static dm_status adjust(dm_Crop *w, dm_Adjust what, double much) {
  DM_TRY(dm_crop_own(w));
  return dm_image_adjust(&w->picture, what, much);
}

/* Four draws and an order, whatever is switched off. */
static dm_status jitter(dm_Crop *w, const dm_AugmentStep *s, uint64_t *state) {
  dm_Adjust order[DM_AUGMENT_N_JITTER] = {DM_ADJUST_BRIGHTNESS, DM_ADJUST_CONTRAST,
                                          DM_ADJUST_SATURATION, DM_ADJUST_HUE};
  double much[DM_AUGMENT_N_JITTER];
  for (int i = DM_AUGMENT_N_JITTER - 1; i > 0; i--) { /* Fisher and Yates' shuffle */
    const int64_t k = draw_below(state, i + 1);
    const dm_Adjust other = order[k];
    order[k] = order[i];
    order[i] = other;
  }
  for (int i = 0; i < DM_AUGMENT_N_JITTER; i++) much[i] = draw_between(state, s->jitter[i]);
  for (int i = 0; i < DM_AUGMENT_N_JITTER; i++) {
    const double *range = s->jitter[order[i]], neutral = order[i] == DM_ADJUST_HUE ? 0 : 1;
    if (range[0] != neutral || range[1] != neutral) DM_TRY(adjust(w, order[i], much[order[i]]));
  }
  return DM_OK;
}

/* ---- affine maps ---- */

static dm_status warp(dm_Crop *w, const dm_Step *s, const dm_Affine *a) {
  dm_Image to;
  uint8_t fill[DM_AUGMENT_MAX_CHANNELS];
  double m[6];
  DM_TRY(dm_crop_whole(w));
  DM_TRY(dm_crop_make(&to, w->picture.channels, w->height, w->width));
  for (int64_t c = 0; c < to.channels; c++)
    fill[c] = s->values ? (uint8_t)s->values[s->how.n_values == 1 ? 0 : c] : 0;
  dm_affine_inverse(a, w->height, w->width, m);
  dm_image_warp(&to, &w->picture, m, s->how.filter, fill);
  dm_crop_put(w, &to);
  return DM_OK;
}

static dm_status affine(dm_Crop *w, const dm_Step *s, uint64_t *state) {
  const dm_AugmentStep *how = &s->how;
  dm_Affine a = {.degrees = draw_between(state, how->degrees)};
  const double x = how->move[0] * (double)w->width, y = how->move[1] * (double)w->height;
  a.move[0] = rint(draw_between(state, (const double[2]){-x, x}));
  a.move[1] = rint(draw_between(state, (const double[2]){-y, y}));
  a.scale = draw_between(state, how->zoom);
  a.shear[0] = draw_between(state, how->shear);
  a.shear[1] = draw_between(state, how->shear + 2);
  return warp(w, s, &a);
}

/* ---- RandAugment: E. Cubuk et al., 2019, with torchvision's ranges ---- */

enum { SHEAR_X, SHEAR_Y, MOVE_X, MOVE_Y, TURN, N_WARPS };

static const struct {
  int warp, adjust; /* -1: not one; neither: the picture stays */
  double from, to;  /* over the magnitudes; MOVE: parts of the side */
  bool either;      /* from 0 to both sides */
} choices[] = {
    {-1, -1, 0, 0, false},
    {SHEAR_X, -1, 0, 0.3, true},
    {SHEAR_Y, -1, 0, 0.3, true},
    {MOVE_X, -1, 0, 150.0 / 331.0, true},
    {MOVE_Y, -1, 0, 150.0 / 331.0, true},
    {TURN, -1, 0, 30, true},
    {-1, DM_ADJUST_BRIGHTNESS, 0, 0.9, true},
    {-1, DM_ADJUST_SATURATION, 0, 0.9, true},
    {-1, DM_ADJUST_CONTRAST, 0, 0.9, true},
    {-1, DM_ADJUST_SHARPNESS, 0, 0.9, true},
    {-1, DM_ADJUST_POSTERIZE, 8, 4, false},
    {-1, DM_ADJUST_SOLARIZE, 255, 0, false},
    {-1, DM_ADJUST_AUTOCONTRAST, 0, 0, false},
    {-1, DM_ADJUST_EQUALIZE, 0, 0, false},
};

static dm_status warp_by(dm_Crop *w, const dm_Step *s, int kind, double much) {
  dm_Affine a = {.scale = 1, .at_corner = kind == SHEAR_X || kind == SHEAR_Y};
  const double slope = atan(much) * 180 / 3.14159265358979323846;
  switch (kind) {
  case SHEAR_X: a.shear[0] = slope; break;
  case SHEAR_Y: a.shear[1] = slope; break;
  case MOVE_X: a.move[0] = trunc(much * (double)w->width); break;
  case MOVE_Y: a.move[1] = trunc(much * (double)w->height); break;
  default: a.degrees = -much; /* counter-clockwise */
  }
  return warp(w, s, &a);
}

static dm_status rand_augment(dm_Crop *w, const dm_Step *s, uint64_t *state) {
  const dm_AugmentStep *how = &s->how;
  const double part = (double)how->magnitude / (double)dm_max_i64(how->bins - 1, 1);
  for (int i = 0; i < how->count; i++) {
    const int64_t k = draw_below(state, DM_COUNT(choices));
    double much = choices[k].from + (choices[k].to - choices[k].from) * part;
    if (draw_below(state, 2) && choices[k].either) much = -much;
    if (choices[k].warp >= 0) {
      DM_TRY(warp_by(w, s, choices[k].warp, much));
    } else if (choices[k].adjust >= 0) {
      const bool is_factor = choices[k].adjust <= DM_ADJUST_SHARPNESS;
      if (choices[k].adjust == DM_ADJUST_POSTERIZE) much = rint(much);
      DM_TRY(adjust(w, (dm_Adjust)choices[k].adjust, is_factor ? 1 + much : much));
    }
  }
  return DM_OK;
}

/* ---- a step ---- */

dm_status dm_step_run(const dm_Step *s, uint64_t draw, dm_Crop *w) {
  const dm_AugmentStep *how = &s->how;
  uint64_t state = stream_of(s, draw);
  switch (how->kind) {
  case DM_AUGMENT_CROP: return crop(w, s, &state);
  case DM_AUGMENT_CENTER_CROP: return center_crop(w, how->height, how->width);
  case DM_AUGMENT_PAD: return dm_crop_pad(w, how->pad, how->pad_mode, s->values, how->n_values);
  case DM_AUGMENT_RESIZE: return resize_as_told(w, how);
  case DM_AUGMENT_RESIZED_CROP:
    cut_area(w, how, &state);
    return resize(w, how->height, how->width, how->filter);
  case DM_AUGMENT_GREYSCALE: return grey(w, how->channels);
  case DM_AUGMENT_JITTER: return jitter(w, how, &state);
  case DM_AUGMENT_RAND: return rand_augment(w, s, &state);
  default: break;
  }
  if (draw_unit(&state) >= how->p) return DM_OK;
  switch (how->kind) {
  case DM_AUGMENT_HFLIP: dm_crop_mirror(w); break;
  case DM_AUGMENT_VFLIP: dm_crop_reverse(w); break;
  case DM_AUGMENT_RANDOM_GREY: return grey(w, w->picture.channels);
  case DM_AUGMENT_ADJUST: return adjust(w, how->adjust, how->much);
  case DM_AUGMENT_AFFINE: return affine(w, s, &state);
  default: break; /* the tables' work */
  }
  return DM_OK;
}

/* ---- steps on float32 ---- */

static void fill_box(const dm_Step *s, uint64_t *state, const int64_t shape[3],
                     const int64_t box[4], float *x) {
  for (int64_t c = 0; c < shape[0]; c++) {
    const float value = s->values ? s->values[s->how.n_values == 1 ? 0 : c] : 0;
    for (int64_t i = box[0]; i < box[2]; i++)
      for (int64_t k = box[1]; k < box[3]; k++)
        x[(c * shape[1] + i) * shape[2] + k] = s->how.noise ? (float)draw_normal(state) : value;
  }
}

static void erase(const dm_Step *s, uint64_t *state, const int64_t shape[3], float *x) {
  for (int i = 0; i < TRIES; i++) {
    int64_t height, width;
    draw_box(&s->how, shape[1] * shape[2], state, &height, &width);
    if (height >= shape[1] || width >= shape[2]) continue;
    const int64_t top = draw_below(state, shape[1] - height + 1);
    const int64_t left = draw_below(state, shape[2] - width + 1);
    fill_box(s, state, shape, (const int64_t[4]){top, left, top + height, left + width}, x);
    return;
  }
}

/* Squares whose middle lies anywhere in the picture: T. DeVries, G. Taylor, 2017. */
static void cut_out(const dm_Step *s, uint64_t *state, const int64_t shape[3], float *x) {
  const int64_t side = s->how.width;
  for (int i = 0; i < s->how.count; i++) {
    const int64_t top = draw_below(state, shape[1]) - side / 2;
    const int64_t left = draw_below(state, shape[2]) - side / 2;
    const int64_t box[4] = {dm_max_i64(top, 0), dm_max_i64(left, 0),
                            dm_min_i64(top + side, shape[1]),
                            dm_min_i64(left + side, shape[2])};
    fill_box(s, state, shape, box, x);
  }
}

static void normalize(const dm_Step *s, const int64_t shape[3], float *x) {
  const int64_t n = shape[1] * shape[2];
  for (int64_t c = 0; s->values && c < shape[0]; c++) {
    const int64_t at = s->how.n_values == 1 ? 0 : c;
    for (int64_t i = c * n; i < (c + 1) * n; i++)
      x[i] = (x[i] - s->values[at]) / s->deviations[at];
  }
}

void dm_step_run_floats(const dm_Step *s, uint64_t draw, const int64_t shape[3], float *x) {
  uint64_t state = stream_of(s, draw);
  if (s->how.kind == DM_AUGMENT_NORMALIZE) normalize(s, shape, x);
  else if (s->how.kind == DM_AUGMENT_CUTOUT) cut_out(s, &state, shape, x);
  else if (draw_unit(&state) < s->how.p) erase(s, &state, shape, x);
}
