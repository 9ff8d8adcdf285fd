/* Torchvision's transforms, each in two parts: a plan, which holds all that is random, and
   its execution on 8 bits. The split exists because demilune.transforms executes the same
   plans on tensors of other dtypes and devices, with equal random numbers. A plan always runs
   in one order: border, crop, size, mirror, colours. */
#include "data/transforms.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/rng.h"

/* ---- random draws ---- */

/* Returns the state of a random stream of t's own: the draws of one transform change nothing
   for the others. SplitMix64: G. Steele et al., "Fast splittable pseudorandom number
   generators", 2014. */
static uint64_t stream_of(const dm_Transform *t, uint64_t draw) {
  uint64_t state = draw;
  state = dm_splitmix64(&state) ^ ((uint64_t)t->kind * DM_MAX_TRANSFORMS + (uint64_t)t->nth);
  return dm_splitmix64(&state);
}

/* A random integer of 0 .. n-1, n < 2^32, by a multiplication (D. Lemire's method without
   rejection); the bias is below n / 2^32. */
static int64_t draw_below(uint64_t *state, int64_t n) {
  return (int64_t)(((dm_splitmix64(state) >> 32) * (uint64_t)n) >> 32);
}

static double draw_unit(uint64_t *state) { /* 0 to 1, without 1 */
  return (double)(dm_splitmix64(state) >> 11) * 0x1p-53;
}

static double draw_between(uint64_t *state, const double range[2]) {
  return range[0] + (range[1] - range[0]) * draw_unit(state);
}

/* A normal number: one of the two of Box and Muller's method, 1958. */
static double draw_normal(uint64_t *state) {
  const double r = sqrt(-2 * log(1 - draw_unit(state)));
  return r * cos(6.28318530717958647693 * draw_unit(state));
}

/* ---- sizes ---- */

void dm_transform_border(const dm_Transform *t, int64_t height, int64_t width, int64_t pad[4]) {
  memcpy(pad, t->pad, sizeof t->pad);
  if (!t->pad_if_needed) return;
  const int64_t x = dm_max_i64(t->width - width - pad[0] - pad[2], 0);
  const int64_t y = dm_max_i64(t->height - height - pad[1] - pad[3], 0);
  pad[0] += x, pad[1] += y, pad[2] += x, pad[3] += y;
}

dm_status dm_transform_short_side(const dm_Transform *t, int64_t *height, int64_t *width) {
  int64_t *shorter = *width <= *height ? width : height;
  int64_t *longer = *width <= *height ? height : width;
  int64_t to = t->height, other = -1;
  if (*height > 0 && *width > 0) {
    other = (int64_t)((double)(to * *longer) / (double)*shorter);
    if (t->max_size > 0 && other > t->max_size) {
      to = (int64_t)((double)(t->max_size * to) / (double)other);
      other = t->max_size;
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

/* ---- plans ---- */

/* Sets the crop of the plan; the size stays that of the crop until a resize changes it. */
static void set_crop(dm_TransformPlan *p, int64_t top, int64_t left, int64_t height,
                     int64_t width) {
  p->top = top;
  p->left = left;
  p->height = p->to_height = height;
  p->width = p->to_width = width;
}

/* Adds a border to the plan; its crop then covers the padded image. */
static void add_border(dm_TransformPlan *p, const int64_t pad[4]) {
  memcpy(p->pad, pad, sizeof p->pad);
  set_crop(p, 0, 0, p->height + pad[1] + pad[3], p->width + pad[0] + pad[2]);
}

/* A crop at a random position. */
static void draw_crop(dm_TransformPlan *p, int64_t height, int64_t width, uint64_t *state) {
  const int64_t top = draw_below(state, p->height - height + 1);
  const int64_t left = draw_below(state, p->width - width + 1);
  set_crop(p, top, left, height, width);
}

static void plan_crop(const dm_Transform *t, uint64_t *state, dm_TransformPlan *p) {
  int64_t pad[4];
  dm_transform_border(t, p->height, p->width, pad);
  add_border(p, pad);
  draw_crop(p, t->height, t->width, state);
}

/* CenterCrop: the middle, with half pixels to the even neighbour as Python's round does; a
   smaller image gets a border first. */
static void plan_center_crop(const dm_Transform *t, dm_TransformPlan *p) {
  const int64_t x = dm_max_i64(t->width - p->width, 0),
                y = dm_max_i64(t->height - p->height, 0);
  add_border(p, (const int64_t[4]){x / 2, y / 2, (x + 1) / 2, (y + 1) / 2});
  set_crop(p, (int64_t)rint((double)(p->height - t->height) / 2),
           (int64_t)rint((double)(p->width - t->width) / 2), t->height, t->width);
}

/* Sets the size after the crop, from two sides or from the shorter one. */
static dm_status plan_resize(const dm_Transform *t, dm_TransformPlan *p) {
  if (t->width == 0) return dm_transform_short_side(t, &p->to_height, &p->to_width);
  p->to_height = t->height;
  p->to_width = t->width;
  return DM_OK;
}

/* Draws the sides of a box: its area is uniform in t->area (parts of the whole), its ratio a
   / b log-uniform in t->ratio, so that a ratio and its inverse are equally likely. */
static void draw_box(const dm_Transform *t, int64_t whole, uint64_t *state, int64_t *a,
                     int64_t *b) {
  const double log_ratio[2] = {log(t->ratio[0]), log(t->ratio[1])};
  const double area = (double)whole * draw_between(state, t->area);
  const double ratio = exp(draw_between(state, log_ratio));
  *a = (int64_t)rint(sqrt(area * ratio));
  *b = (int64_t)rint(sqrt(area / ratio));
}

enum { TRIES = 10 }; /* for a box that fits */

/* RandomResizedCrop: the first of TRIES boxes that fits, at a random position; else the
   largest centred crop of an allowed aspect. C. Szegedy et al., "Going deeper with
   convolutions", 2015. */
static void crop_area(const dm_Transform *t, uint64_t *state, dm_TransformPlan *p) {
  int64_t width, height;
  for (int i = 0; i < TRIES; i++) {
    draw_box(t, p->height * p->width, state, &width, &height);
    if (width < 1 || width > p->width || height < 1 || height > p->height) continue;
    draw_crop(p, height, width, state);
    return;
  }
  const double aspect = (double)p->width / (double)p->height;
  width = p->width, height = p->height;
  if (aspect < t->ratio[0]) height = (int64_t)rint((double)width / t->ratio[0]);
  else if (aspect > t->ratio[1]) width = (int64_t)rint((double)height * t->ratio[1]);
  height = dm_max_i64(height, 1);
  width = dm_max_i64(width, 1);
  set_crop(p, (p->height - height) / 2, (p->width - width) / 2, height, width);
}

/* ColorJitter. The order and all four factors are drawn even where some are switched off, so
   that the draws do not depend on the settings. */
static void plan_jitter(const dm_Transform *t, uint64_t *state, dm_TransformPlan *p) {
  dm_Adjust order[DM_TRANSFORM_N_JITTER] = {DM_ADJUST_BRIGHTNESS, DM_ADJUST_CONTRAST,
                                            DM_ADJUST_SATURATION, DM_ADJUST_HUE};
  double much[DM_TRANSFORM_N_JITTER];
  for (int i = DM_TRANSFORM_N_JITTER - 1; i > 0; i--) { /* Fisher and Yates' shuffle */
    const int64_t k = draw_below(state, i + 1);
    const dm_Adjust other = order[k];
    order[k] = order[i];
    order[i] = other;
  }
  for (int i = 0; i < DM_TRANSFORM_N_JITTER; i++) much[i] = draw_between(state, t->jitter[i]);
  for (int i = 0; i < DM_TRANSFORM_N_JITTER; i++) {
    const double *range = t->jitter[order[i]], neutral = order[i] == DM_ADJUST_HUE ? 0 : 1;
    if (range[0] == neutral && range[1] == neutral) continue;
    p->adjust[p->n_adjust] = order[i];
    p->much[p->n_adjust++] = much[order[i]];
  }
}

dm_status dm_transform_plan(const dm_Transform *t, uint64_t draw, int64_t height, int64_t width,
                            dm_TransformPlan *plan) {
  uint64_t state = stream_of(t, draw);
  *plan = (dm_TransformPlan){0};
  set_crop(plan, 0, 0, height, width);
  switch (t->kind) {
  case DM_TRANSFORM_CROP: plan_crop(t, &state, plan); return DM_OK;
  case DM_TRANSFORM_CENTER_CROP: plan_center_crop(t, plan); return DM_OK;
  case DM_TRANSFORM_PAD: add_border(plan, t->pad); return DM_OK;
  case DM_TRANSFORM_RESIZE: return plan_resize(t, plan);
  case DM_TRANSFORM_RESIZED_CROP: crop_area(t, &state, plan); return plan_resize(t, plan);
  case DM_TRANSFORM_GREYSCALE: plan->grey = true; return DM_OK;
  case DM_TRANSFORM_JITTER: plan_jitter(t, &state, plan); return DM_OK;
  default: break;
  }
  const bool drawn = draw_unit(&state) < t->p;
  plan->mirror = drawn && t->kind == DM_TRANSFORM_HFLIP;
  plan->reverse = drawn && t->kind == DM_TRANSFORM_VFLIP;
  plan->grey = drawn && t->kind == DM_TRANSFORM_RANDOM_GREY;
  plan->n_adjust = drawn && t->kind == DM_TRANSFORM_ADJUST;
  plan->adjust[0] = t->adjust;
  plan->much[0] = t->much;
  return DM_OK;
}

/* ---- the execution of a plan ---- */

/* Replaces the crop by a resized copy, unless it has the size already. */
static dm_status resize(dm_Crop *w, int64_t height, int64_t width, dm_Filter filter) {
  dm_Image to;
  if (w->height == height && w->width == width) return DM_OK;
  DM_TRY(dm_crop_whole(w));
  DM_TRY(dm_crop_make(&to, w->image.channels, height, width));
  const dm_status st = dm_image_resize(&to, &w->image, filter);
  if (st == DM_OK) dm_crop_put(w, &to);
  else dm_free(to.data);
  return st;
}

/* ---- colours ---- */

/* Replaces the crop by its grey levels, repeated for each channel. */
static dm_status grey(dm_Crop *w, int64_t channels) {
  dm_Image to;
  DM_TRY(dm_crop_own(w));
  if (w->image.channels == 1 && channels == 1) return DM_OK;
  DM_TRY(dm_crop_make(&to, channels, w->height, w->width));
  dm_image_grey(&w->image, to.data);
  for (int64_t c = 1; c < channels; c++)
    memcpy(to.data + c * to.c_step, to.data, (size_t)to.c_step);
  dm_crop_put(w, &to);
  return DM_OK;
}

/* Adjusts the colours in place, on a copy that the crop owns. */
static dm_status adjust(dm_Crop *w, dm_Adjust what, double much) {
  DM_TRY(dm_crop_own(w));
  return dm_image_adjust(&w->image, what, much);
}

/* Executes a plan. The first steps only move the crop; pixels are copied when a resize or a
   colour needs them. */
static dm_status run_plan(dm_Crop *w, const dm_Transform *t, const dm_TransformPlan *p) {
  const bool filled = t->kind != DM_TRANSFORM_CENTER_CROP; /* whose border is black */
  DM_TRY(dm_crop_pad(w, p->pad, filled ? t->pad_mode : DM_PAD_CONSTANT,
                     filled ? t->values : NULL, filled ? t->n_values : 0));
  dm_crop_narrow(w, p->top, p->left, p->height, p->width);
  DM_TRY(resize(w, p->to_height, p->to_width, t->filter));
  if (p->mirror) dm_crop_mirror(w);
  if (p->reverse) dm_crop_reverse(w);
  if (p->grey)
    DM_TRY(grey(w, t->kind == DM_TRANSFORM_GREYSCALE ? t->channels : w->image.channels));
  for (int i = 0; i < p->n_adjust; i++) DM_TRY(adjust(w, p->adjust[i], p->much[i]));
  return DM_OK;
}

/* ---- affine maps ---- */

/* Replaces the crop by its image under the affine map. */
static dm_status warp(dm_Crop *w, const dm_Transform *t, const dm_Affine *a) {
  dm_Image to;
  uint8_t fill[DM_TRANSFORM_MAX_CHANNELS];
  double m[6];
  DM_TRY(dm_crop_whole(w));
  DM_TRY(dm_crop_make(&to, w->image.channels, w->height, w->width));
  for (int64_t c = 0; c < to.channels; c++)
    fill[c] = t->n_values ? (uint8_t)t->values[t->n_values == 1 ? 0 : c] : 0;
  dm_affine_inverse(a, w->height, w->width, m);
  dm_image_warp(&to, &w->image, m, t->filter, fill);
  dm_crop_put(w, &to);
  return DM_OK;
}

/* RandomAffine: draws angle, translation in whole pixels, scale and shears, in torchvision's
   order. */
static dm_status affine(dm_Crop *w, const dm_Transform *t, uint64_t *state) {
  dm_Affine a = {.degrees = draw_between(state, t->degrees), .at_corner = t->at_corner};
  const double x = t->move[0] * (double)w->width, y = t->move[1] * (double)w->height;
  a.move[0] = rint(draw_between(state, (const double[2]){-x, x}));
  a.move[1] = rint(draw_between(state, (const double[2]){-y, y}));
  a.scale = draw_between(state, t->zoom);
  a.shear[0] = draw_between(state, t->shear);
  a.shear[1] = draw_between(state, t->shear + 2);
  return warp(w, t, &a);
}

/* ---- RandAugment: E. Cubuk et al., 2019, with torchvision's ranges ---- */

enum { SHEAR_X, SHEAR_Y, MOVE_X, MOVE_Y, TURN, N_WARPS };

static const struct {
  int warp, adjust; /* -1: not one; neither: the image stays */
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

/* One geometric operation of RandAugment. Shears are about the corner, as torchvision's are
   here. */
static dm_status warp_by(dm_Crop *w, const dm_Transform *t, int kind, double much) {
  dm_Affine a = {.scale = 1, .at_corner = kind == SHEAR_X || kind == SHEAR_Y};
  const double slope = atan(much) * 180 / 3.14159265358979323846;
  switch (kind) {
  case SHEAR_X: a.shear[0] = slope; break;
  case SHEAR_Y: a.shear[1] = slope; break;
  case MOVE_X: a.move[0] = trunc(much * (double)w->width); break;
  case MOVE_Y: a.move[1] = trunc(much * (double)w->height); break;
  default: a.degrees = -much; /* counter-clockwise */
  }
  return warp(w, t, &a);
}

/* Draws and applies `count` operations; all have the strength of the one magnitude, and the
   sign is random where an operation has one. */
static dm_status rand_augment(dm_Crop *w, const dm_Transform *t, uint64_t *state) {
  const double part = (double)t->magnitude / (double)dm_max_i64(t->bins - 1, 1);
  for (int i = 0; i < t->count; i++) {
    const int64_t k = draw_below(state, DM_COUNT(choices));
    double much = choices[k].from + (choices[k].to - choices[k].from) * part;
    if (draw_below(state, 2) && choices[k].either) much = -much;
    if (choices[k].warp >= 0) {
      DM_TRY(warp_by(w, t, choices[k].warp, much));
    } else if (choices[k].adjust >= 0) {
      const bool is_factor = choices[k].adjust <= DM_ADJUST_SHARPNESS;
      if (choices[k].adjust == DM_ADJUST_POSTERIZE) much = rint(much);
      DM_TRY(adjust(w, (dm_Adjust)choices[k].adjust, is_factor ? 1 + much : much));
    }
  }
  return DM_OK;
}

/* ---- a transform of 8 bits ---- */

dm_status dm_transform_run(const dm_Transform *t, uint64_t draw, dm_Crop *w) {
  uint64_t state = stream_of(t, draw);
  dm_TransformPlan plan;
  switch (t->kind) {
  case DM_TRANSFORM_TO_FLOAT:
  case DM_TRANSFORM_NORMALIZE: return DM_OK; /* the tables' work */
  case DM_TRANSFORM_RAND: return rand_augment(w, t, &state);
  case DM_TRANSFORM_AFFINE: return draw_unit(&state) < t->p ? affine(w, t, &state) : DM_OK;
  default: break;
  }
  DM_TRY(dm_transform_plan(t, draw, w->height, w->width, &plan));
  return run_plan(w, t, &plan);
}

/* ---- transforms of float32 ---- */

/* Draws the next box that t covers, {top, left, bottom, right}, which may be empty; false
   when none that fits was drawn. CUTOUT: squares whose centre is anywhere in the image, T.
   DeVries, G. Taylor, 2017. ERASE: Z. Zhong et al., "Random erasing data augmentation",
   2017. */
static bool next_box(const dm_Transform *t, uint64_t *state, int64_t height, int64_t width,
                     int64_t box[4]) {
  if (t->kind == DM_TRANSFORM_CUTOUT) {
    const int64_t top = draw_below(state, height) - t->width / 2;
    const int64_t left = draw_below(state, width) - t->width / 2;
    box[0] = dm_max_i64(top, 0);
    box[1] = dm_max_i64(left, 0);
    box[2] = dm_min_i64(top + t->width, height);
    box[3] = dm_min_i64(left + t->width, width);
    return true;
  }
  for (int i = 0; i < TRIES; i++) {
    int64_t h, w;
    draw_box(t, height * width, state, &h, &w);
    if (h >= height || w >= width) continue;
    box[0] = draw_below(state, height - h + 1);
    box[1] = draw_below(state, width - w + 1);
    box[2] = box[0] + h;
    box[3] = box[1] + w;
    return true;
  }
  return false;
}

/* The number of boxes: `count` for CUTOUT, 1 with probability p for ERASE. */
static int count_boxes(const dm_Transform *t, uint64_t *state) {
  if (t->kind == DM_TRANSFORM_CUTOUT) return t->count;
  return draw_unit(state) < t->p;
}

int dm_transform_boxes(const dm_Transform *t, uint64_t draw, int64_t height, int64_t width,
                       int64_t (*boxes)[4], int most) {
  uint64_t state = stream_of(t, draw);
  const int n = count_boxes(t, &state);
  for (int i = 0; i < n && i < most; i++)
    if (!next_box(t, &state, height, width, boxes[i])) return i;
  return n;
}

/* Fills the box in each channel with its value, or with normal noise. */
static void fill_box(const dm_Transform *t, uint64_t *state, const int64_t shape[3],
                     const int64_t box[4], float *x) {
  for (int64_t c = 0; c < shape[0]; c++) {
    const float value = t->n_values ? t->values[t->n_values == 1 ? 0 : c] : 0;
    for (int64_t i = box[0]; i < box[2]; i++)
      for (int64_t k = box[1]; k < box[3]; k++)
        x[(c * shape[1] + i) * shape[2] + k] = t->noise ? (float)draw_normal(state) : value;
  }
}

/* Normalize of images that were erased before; otherwise the tables have done it. */
static void normalize(const dm_Transform *t, const int64_t shape[3], float *x) {
  const int64_t n = shape[1] * shape[2];
  for (int64_t c = 0; t->n_values && c < shape[0]; c++) {
    const int64_t at = t->n_values == 1 ? 0 : c;
    for (int64_t i = c * n; i < (c + 1) * n; i++)
      x[i] = (x[i] - t->values[at]) / t->deviations[at];
  }
}

void dm_transform_run_floats(const dm_Transform *t, uint64_t draw, const int64_t shape[3],
                             float *x) {
  uint64_t state = stream_of(t, draw);
  int64_t box[4];
  if (t->kind == DM_TRANSFORM_NORMALIZE) {
    normalize(t, shape, x);
    return;
  }
  for (int i = count_boxes(t, &state); i > 0; i--)
    if (next_box(t, &state, shape[1], shape[2], box)) fill_box(t, &state, shape, box, x);
}
