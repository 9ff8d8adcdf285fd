/* The list of steps: what may stand in it, what shape comes out, and one run of it. */
#include "data/augment.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/rng.h"
#include "data/window.h"

enum { MAX_STEPS = 256, MAX_SIDE = 1 << 24 };

typedef struct Step {
  dm_AugmentStep how;
  int nth;             /* of its kind, from 0 */
  const float *values; /* a copy, in dm_Augment.numbers; NULL: nothing given */
  const float *deviations;
} Step;

struct dm_Augment {
  Step *steps;
  int n;
  bool to_float;
  float *numbers; /* the steps' values and deviations */
  int n_tables;   /* to_float: 1, or one a channel */
  float *tables;  /* (n_tables, DM_LEVELS): a sample as float32, normalised */
};

static const char *const names[DM_AUGMENT_N_KINDS] = {
    [DM_AUGMENT_CROP] = "RandomCrop",
    [DM_AUGMENT_CENTER_CROP] = "CenterCrop",
    [DM_AUGMENT_PAD] = "Pad",
    [DM_AUGMENT_RESIZE] = "Resize",
    [DM_AUGMENT_RESIZED_CROP] = "RandomResizedCrop",
    [DM_AUGMENT_HFLIP] = "RandomHorizontalFlip",
    [DM_AUGMENT_VFLIP] = "RandomVerticalFlip",
    [DM_AUGMENT_TO_FLOAT] = "ToTensor",
    [DM_AUGMENT_NORMALIZE] = "Normalize",
};

const char *dm_augment_name(dm_AugmentKind kind) { return names[kind]; }

static dm_status fault(const dm_AugmentStep *s, const char *what) {
  return dm_fail(DM_EARG, "%s: %s", names[s->kind], what);
}

/* ---- chance ---- */

/* The stream of one step: what one of them draws changes nothing for the others. */
static uint64_t stream_of(const Step *s, uint64_t draw) {
  uint64_t state = draw;
  state = dm_splitmix64(&state) ^ ((uint64_t)s->how.kind * MAX_STEPS + (uint64_t)s->nth);
  return dm_splitmix64(&state);
}

/* 0 .. n-1, n < 2^32; the bias of n / 2^32 is beyond notice */
static int64_t draw_below(uint64_t *state, int64_t n) {
  return (int64_t)(((dm_splitmix64(state) >> 32) * (uint64_t)n) >> 32);
}

static double draw_between(uint64_t *state, const double range[2]) {
  return range[0] + (range[1] - range[0]) * (double)(dm_splitmix64(state) >> 11) * 0x1p-53;
}

static bool draw_chance(uint64_t *state, double p) {
  return draw_between(state, (const double[2]){0, 1}) < p;
}

/* ---- shapes ---- */

static dm_status check_channels(const Step *s, int64_t channels) {
  if (s->how.n_values > 1 && channels >= 0 && channels != s->how.n_values)
    return dm_fail(DM_EARG, "%s: %d numbers, the pictures have %" PRId64 " channels",
                   names[s->how.kind], s->how.n_values, channels);
  return DM_OK;
}

/* What CROP adds to a picture: pad, and what is still lacking on both sides of it. */
static void crop_border(const dm_AugmentStep *s, int64_t height, int64_t width,
                        int64_t pad[4]) {
  memcpy(pad, s->pad, sizeof s->pad);
  if (!s->pad_if_needed) return;
  const int64_t x = dm_max_i64(s->width - width - pad[0] - pad[2], 0);
  const int64_t y = dm_max_i64(s->height - height - pad[1] - pad[3], 0);
  pad[0] += x, pad[1] += y, pad[2] += x, pad[3] += y;
}

static dm_status check_crop(const dm_AugmentStep *s, int64_t height, int64_t width) {
  int64_t pad[4];
  crop_border(s, height, width, pad);
  if ((height >= 0 && height + pad[1] + pad[3] < s->height) ||
      (width >= 0 && width + pad[0] + pad[2] < s->width))
    return dm_fail(DM_EARG,
                   "RandomCrop: a window of %" PRId64 " x %" PRId64
                   " is larger than the picture, %" PRId64 " x %" PRId64
                   " with its border; hint: pad_if_needed = true",
                   s->height, s->width, height + pad[1] + pad[3], width + pad[0] + pad[2]);
  return DM_OK;
}

/* RESIZE with one number: the shorter side becomes it, the longer one keeps the aspect. */
static dm_status short_side(const dm_AugmentStep *s, int64_t *height, int64_t *width) {
  int64_t *shorter = *width <= *height ? width : height;
  int64_t *longer = *width <= *height ? height : width;
  if (*height < 0 || *width < 0) {
    *height = *width = -1;
    return DM_OK;
  }
  int64_t to = s->height;
  int64_t other = (int64_t)((double)(to * *longer) / (double)*shorter);
  if (s->max_size > 0 && other > s->max_size) {
    to = (int64_t)((double)(s->max_size * to) / (double)other);
    other = s->max_size;
  }
  if (to < 1 || other > MAX_SIDE)
    return dm_fail(DM_EARG, "Resize: %" PRId64 " x %" PRId64 " would become a side of %" PRId64,
                   *height, *width, to < 1 ? to : other);
  *shorter = to;
  *longer = other;
  return DM_OK;
}

static dm_status step_shape(const Step *s, int64_t shape[3]) {
  const dm_AugmentStep *how = &s->how;
  DM_TRY(check_channels(s, shape[0]));
  switch (how->kind) {
  case DM_AUGMENT_CROP: DM_TRY(check_crop(how, shape[1], shape[2])); break;
  case DM_AUGMENT_PAD:
    if (shape[1] >= 0) shape[1] += how->pad[1] + how->pad[3];
    if (shape[2] >= 0) shape[2] += how->pad[0] + how->pad[2];
    return DM_OK;
  case DM_AUGMENT_RESIZE:
    if (how->width == 0) return short_side(how, &shape[1], &shape[2]);
    break;
  case DM_AUGMENT_CENTER_CROP:
  case DM_AUGMENT_RESIZED_CROP: break;
  default: return DM_OK;
  }
  shape[1] = how->height;
  shape[2] = how->width;
  return DM_OK;
}

dm_DType dm_augment_dtype(const dm_Augment *a) { return a->to_float ? DM_F32 : DM_U8; }

dm_status dm_augment_shape(const dm_Augment *a, int64_t shape[3]) {
  for (int d = 0; d < 3; d++)
    if (shape[d] == 0 || shape[d] > (d ? MAX_SIDE : DM_AUGMENT_MAX_CHANNELS))
      return dm_fail(DM_EARG,
                     "transforms: a picture of %" PRId64 " channels, %" PRId64 " x %" PRId64
                     ": sides are 1 to %d, channels 1 to %d",
                     shape[0], shape[1], shape[2], MAX_SIDE, DM_AUGMENT_MAX_CHANNELS);
  for (int i = 0; i < a->n; i++) {
    DM_TRY(step_shape(&a->steps[i], shape));
    if (shape[1] > MAX_SIDE || shape[2] > MAX_SIDE)
      return fault(&a->steps[i].how, "the picture would become larger than 2^24 on a side");
  }
  return DM_OK;
}

/* ---- a run ---- */

static dm_status resize(dm_Window *w, int64_t height, int64_t width, dm_Filter filter) {
  dm_Picture to;
  if (w->height == height && w->width == width) return DM_OK;
  DM_TRY(dm_window_whole(w));
  DM_TRY(dm_window_make(&to, w->picture.channels, height, width));
  const dm_status st = dm_picture_resize(&to, &w->picture, filter);
  if (st == DM_OK) dm_window_put(w, &to);
  else dm_free(to.data);
  return st;
}

static dm_status crop(dm_Window *w, const Step *s, uint64_t *state) {
  const dm_AugmentStep *how = &s->how;
  int64_t pad[4];
  crop_border(how, w->height, w->width, pad);
  DM_TRY(dm_window_pad(w, pad, how->pad_mode, s->values, how->n_values));
  const int64_t top = draw_below(state, w->height - how->height + 1);
  const int64_t left = draw_below(state, w->width - how->width + 1);
  dm_window_cut(w, top, left, how->height, how->width);
  return DM_OK;
}

static dm_status center_crop(dm_Window *w, int64_t height, int64_t width) {
  const int64_t x = dm_max_i64(width - w->width, 0), y = dm_max_i64(height - w->height, 0);
  DM_TRY(dm_window_pad(w, (const int64_t[4]){x / 2, y / 2, (x + 1) / 2, (y + 1) / 2},
                       DM_PAD_CONSTANT, NULL, 0));
  /* halves go to the even neighbour */
  dm_window_cut(w, (int64_t)rint((double)(w->height - height) / 2),
                (int64_t)rint((double)(w->width - width) / 2), height, width);
  return DM_OK;
}

/* A window of an area and an aspect drawn; after ten that do not fit, the largest in the
   middle whose aspect is allowed. */
static void cut_area(dm_Window *w, const dm_AugmentStep *s, uint64_t *state) {
  const double area = (double)(w->height * w->width);
  const double log_ratio[2] = {log(s->ratio[0]), log(s->ratio[1])};
  for (int i = 0; i < 10; i++) {
    const double target = area * draw_between(state, s->area);
    const double ratio = exp(draw_between(state, log_ratio));
    const int64_t width = (int64_t)rint(sqrt(target * ratio));
    const int64_t height = (int64_t)rint(sqrt(target / ratio));
    if (width < 1 || width > w->width || height < 1 || height > w->height) continue;
    const int64_t top = draw_below(state, w->height - height + 1);
    const int64_t left = draw_below(state, w->width - width + 1);
    dm_window_cut(w, top, left, height, width);
    return;
  }
  const double is = (double)w->width / (double)w->height;
  int64_t width = w->width, height = w->height;
  if (is < s->ratio[0]) height = (int64_t)rint((double)width / s->ratio[0]);
  else if (is > s->ratio[1]) width = (int64_t)rint((double)height * s->ratio[1]);
  height = dm_max_i64(height, 1);
  width = dm_max_i64(width, 1);
  dm_window_cut(w, (w->height - height) / 2, (w->width - width) / 2, height, width);
}

static dm_status run_step(dm_Window *w, const Step *s, uint64_t draw) {
  const dm_AugmentStep *how = &s->how;
  uint64_t state = stream_of(s, draw);
  switch (how->kind) {
  case DM_AUGMENT_CROP: return crop(w, s, &state);
  case DM_AUGMENT_CENTER_CROP: return center_crop(w, how->height, how->width);
  case DM_AUGMENT_PAD:
    return dm_window_pad(w, how->pad, how->pad_mode, s->values, how->n_values);
  case DM_AUGMENT_RESIZE: {
    int64_t height = how->height, width = how->width;
    if (width == 0) {
      height = w->height;
      width = w->width;
      DM_TRY(short_side(how, &height, &width));
    }
    return resize(w, height, width, how->filter);
  }
  case DM_AUGMENT_RESIZED_CROP:
    cut_area(w, how, &state);
    return resize(w, how->height, how->width, how->filter);
  case DM_AUGMENT_HFLIP:
    if (draw_chance(&state, how->p)) dm_window_mirror(w);
    return DM_OK;
  case DM_AUGMENT_VFLIP:
    if (draw_chance(&state, how->p)) dm_window_reverse(w);
    return DM_OK;
  case DM_AUGMENT_TO_FLOAT:
  case DM_AUGMENT_NORMALIZE: /* the tables' work */
  case DM_AUGMENT_N_KINDS: break;
  }
  return DM_OK;
}

dm_status dm_augment_apply(const dm_Augment *a, const dm_Picture *in, uint64_t draw,
                           void *out) {
  dm_status st = DM_OK;
  int64_t shape[3] = {in->channels, in->height, in->width};
  DM_TRY(dm_augment_shape(a, shape));
  dm_Window w = dm_window_on(in);
  for (int i = 0; i < a->n; i++) DM_GO(run_step(&w, &a->steps[i], draw));
  if (a->to_float) dm_window_floats(&w, a->tables, a->n_tables, out);
  else dm_window_bytes(&w, out);
done:
  dm_window_free(&w);
  return st;
}

/* ---- new and free ---- */

static bool is_size(int64_t n) { return n >= 1 && n <= MAX_SIDE; }

static bool is_range(const double r[2], double least, double most) {
  return r[0] >= least && r[0] <= r[1] && r[1] <= most;
}

static dm_status check_pad(const dm_AugmentStep *s) {
  for (int i = 0; i < 4; i++)
    if (s->pad[i] < 0 || s->pad[i] > MAX_SIDE) return fault(s, "a border is 0 to 2^24 wide");
  if (s->pad_mode < DM_PAD_CONSTANT || s->pad_mode > DM_PAD_SYMMETRIC)
    return fault(s, "no such padding_mode");
  for (int i = 0; i < s->n_values; i++)
    if (!(s->values[i] >= 0 && s->values[i] <= 255)) return fault(s, "fill is 0 to 255");
  return DM_OK;
}

static dm_status check_normalize(const dm_AugmentStep *s) {
  for (int i = 0; i < s->n_values; i++)
    if (!isfinite(s->values[i]) || !isfinite(s->deviations[i]) || s->deviations[i] == 0)
      return fault(s, "mean and std are finite, and std is not 0");
  return DM_OK;
}

static dm_status check_step(const dm_AugmentStep *s, const dm_Augment *a) {
  if ((int)s->kind < 0 || s->kind >= DM_AUGMENT_N_KINDS)
    return dm_fail(DM_EARG, "transforms: no step has the number %d", (int)s->kind);
  if (s->n_values < 0 || s->n_values > DM_AUGMENT_MAX_CHANNELS)
    return fault(s, "numbers for 1 to 64 channels");
  const bool sized = s->kind == DM_AUGMENT_CROP || s->kind == DM_AUGMENT_CENTER_CROP ||
                     s->kind == DM_AUGMENT_RESIZE || s->kind == DM_AUGMENT_RESIZED_CROP;
  const bool one_side = s->kind == DM_AUGMENT_RESIZE && s->width == 0;
  if (sized && (!is_size(s->height) || !(one_side || is_size(s->width))))
    return fault(s, "a side is 1 to 2^24");
  if (sized && (s->filter < DM_FILTER_NEAREST || s->filter > DM_FILTER_BICUBIC))
    return fault(s, "no such interpolation");
  const bool adds_black = s->kind == DM_AUGMENT_CENTER_CROP;
  const bool pads = s->kind == DM_AUGMENT_CROP || s->kind == DM_AUGMENT_PAD;
  if (pads) DM_TRY(check_pad(s));
  const bool moves =
      adds_black || pads || s->kind == DM_AUGMENT_HFLIP || s->kind == DM_AUGMENT_VFLIP;
  if (s->kind == DM_AUGMENT_RESIZE && s->max_size != 0 &&
      (!one_side || s->max_size <= s->height || s->max_size > MAX_SIDE))
    return fault(s, "max_size goes with one number for size, and is larger than it");
  if (s->kind == DM_AUGMENT_RESIZED_CROP && (!is_range(s->area, 0, 1) || s->area[1] <= 0))
    return fault(s, "scale is a range of parts of the area, 0 to 1");
  if (s->kind == DM_AUGMENT_RESIZED_CROP && (!is_range(s->ratio, 1e-6, 1e6)))
    return fault(s, "ratio is a range of numbers above 0");
  if ((s->kind == DM_AUGMENT_HFLIP || s->kind == DM_AUGMENT_VFLIP) && !(s->p >= 0 && s->p <= 1))
    return fault(s, "p is a probability, 0 to 1");
  if (s->kind == DM_AUGMENT_NORMALIZE) {
    if (!a->to_float) return fault(s, "wanted ToTensor before it");
    return check_normalize(s);
  }
  if (!a->to_float) return DM_OK;
  if (s->kind == DM_AUGMENT_TO_FLOAT) return fault(s, "a second time");
  if (!moves) return fault(s, "wanted it before ToTensor");
  const bool black = s->n_values == 0 || (s->n_values == 1 && s->values[0] == 0);
  if ((adds_black && a->n_tables > 0) || (pads && (!black || a->n_tables > 0)))
    return fault(s, "wanted it before Normalize, and fill before ToTensor");
  return DM_OK;
}

/* tables[c][v] = what the steps from TO_FLOAT on make of v. */
static dm_status make_tables(dm_Augment *a) {
  a->tables = dm_alloc(a->n_tables * DM_LEVELS * (int64_t)sizeof *a->tables);
  if (!a->tables) return dm_fail(DM_EMEM, "transforms: out of memory for its tables");
  for (int c = 0; c < a->n_tables; c++)
    for (int v = 0; v < DM_LEVELS; v++) {
      float x = (float)v / 255.0f;
      for (int i = 0; i < a->n; i++) {
        const Step *s = &a->steps[i];
        if (s->how.kind != DM_AUGMENT_NORMALIZE || s->how.n_values == 0) continue;
        const int at = s->how.n_values == 1 ? 0 : c;
        x = (x - s->values[at]) / s->deviations[at];
      }
      a->tables[c * DM_LEVELS + v] = x;
    }
  return DM_OK;
}

/* Room for the numbers of all steps, and the numbers. */
static dm_status copy_numbers(dm_Augment *a) {
  int64_t n = 0;
  for (int i = 0; i < a->n; i++) n += 2 * a->steps[i].how.n_values;
  float *at = a->numbers = dm_alloc(n * (int64_t)sizeof *at);
  if (!at) return dm_fail(DM_EMEM, "transforms: out of memory for its numbers");
  for (int i = 0; i < a->n; i++) {
    Step *s = &a->steps[i];
    const size_t bytes = (size_t)s->how.n_values * sizeof *at;
    if (bytes == 0) continue;
    s->values = memcpy(at, s->how.values, bytes);
    at += s->how.n_values;
    if (s->how.kind != DM_AUGMENT_NORMALIZE) continue;
    s->deviations = memcpy(at, s->how.deviations, bytes);
    at += s->how.n_values;
  }
  return DM_OK;
}

static dm_status add_step(dm_Augment *a, const dm_AugmentStep *how) {
  DM_TRY(check_step(how, a));
  Step *s = &a->steps[a->n];
  s->how = *how;
  for (int i = 0; i < a->n; i++) s->nth += a->steps[i].how.kind == how->kind;
  if (how->kind == DM_AUGMENT_TO_FLOAT) a->to_float = true;
  if (how->kind == DM_AUGMENT_NORMALIZE) {
    if (how->n_values > 1 && a->n_tables > 1 && how->n_values != a->n_tables)
      return dm_fail(DM_EARG, "Normalize: %d numbers, the one before it has %d", how->n_values,
                     a->n_tables);
    if (how->n_values > a->n_tables) a->n_tables = how->n_values;
  }
  a->n++;
  return DM_OK;
}

dm_status dm_augment_new(dm_Augment **out, const dm_AugmentStep *steps, int n) {
  dm_status st = DM_OK;
  if (n < 0 || n > MAX_STEPS)
    return dm_fail(DM_EARG, "transforms: %d steps, 0 to %d are possible", n, MAX_STEPS);
  dm_Augment *a = dm_alloc_zero(sizeof *a);
  if (!a) return dm_fail(DM_EMEM, "transforms: out of memory");
  a->steps = dm_alloc_zero(n * (int64_t)sizeof *a->steps);
  if (!a->steps) {
    st = dm_fail(DM_EMEM, "transforms: out of memory for %d steps", n);
    goto done;
  }
  for (int i = 0; i < n; i++) DM_GO(add_step(a, &steps[i]));
  DM_GO(copy_numbers(a));
  if (a->n_tables == 0) a->n_tables = 1;
  DM_GO(make_tables(a));
  *out = a;
done:
  if (st != DM_OK) dm_augment_free(&a);
  return st;
}

void dm_augment_free(dm_Augment **augment) {
  dm_Augment *a = *augment;
  *augment = NULL;
  if (!a) return;
  dm_free(a->steps);
  dm_free(a->numbers);
  dm_free(a->tables);
  dm_free(a);
}
