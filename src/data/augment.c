/* A list of transforms: which orders are possible, the shape of the result, and one
   application of it. The list falls into two parts. The early transforms work on 8 bits, or
   move pixels only; ToTensor and Normalize among them become a table of 256 floats a channel,
   which the last copy of the pixels reads. Transforms from the first erasing one on work on
   floats. */
#include "data/augment.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "data/transforms.h"

struct dm_Augment {
  dm_Transform *transforms;
  int n, n_early; /* the first n_early work on 8 bits or in the tables, the others on floats */
  bool to_float, normalizes;
  float *numbers; /* the transforms' values and deviations */
  int n_tables;   /* 1, or one a channel */
  float *tables;  /* (n_tables, DM_LEVELS): a sample as float32, normalised */
};

/* The name of a kind in torchvision and the arguments it has, which says which checks it
   gets. */
static const struct {
  const char *name;
  bool size, filter, border, fill, box, random;
  bool moves;  /* only moves pixels: may stand behind TO_FLOAT */
  bool floats; /* must */
} kinds[DM_TRANSFORM_N_KINDS] = {
    [DM_TRANSFORM_CROP] = {"RandomCrop", .size = true, .border = true, .moves = true},
    [DM_TRANSFORM_CENTER_CROP] = {"CenterCrop", .size = true, .moves = true},
    [DM_TRANSFORM_PAD] = {"Pad", .border = true, .moves = true},
    [DM_TRANSFORM_RESIZE] = {"Resize", .size = true, .filter = true},
    [DM_TRANSFORM_RESIZED_CROP] = {"RandomResizedCrop", .size = true, .filter = true,
                                   .box = true},
    [DM_TRANSFORM_HFLIP] = {"RandomHorizontalFlip", .random = true, .moves = true},
    [DM_TRANSFORM_VFLIP] = {"RandomVerticalFlip", .random = true, .moves = true},
    [DM_TRANSFORM_GREYSCALE] = {.name = "Grayscale"},
    [DM_TRANSFORM_RANDOM_GREY] = {"RandomGrayscale", .random = true},
    [DM_TRANSFORM_ADJUST] = {"RandomAdjust", .random = true},
    [DM_TRANSFORM_JITTER] = {.name = "ColorJitter"},
    [DM_TRANSFORM_AFFINE] = {"RandomAffine", .random = true, .filter = true, .fill = true},
    [DM_TRANSFORM_RAND] = {"RandAugment", .filter = true, .fill = true},
    [DM_TRANSFORM_TO_FLOAT] = {.name = "ToTensor"},
    [DM_TRANSFORM_NORMALIZE] = {"Normalize", .floats = true},
    [DM_TRANSFORM_ERASE] = {"RandomErasing", .box = true, .random = true, .floats = true},
    [DM_TRANSFORM_CUTOUT] = {"Cutout", .floats = true},
};

const char *dm_transform_name(dm_TransformKind kind) { return kinds[kind].name; }

/* Records a fault of the caller's arguments, with the transform's name. */
static dm_status fault(const dm_Transform *s, const char *what) {
  return dm_fail(DM_EARG, "%s: %s", kinds[s->kind].name, what);
}

/* ---- shapes ---- */

/* Whether a kind needs images that are grey or red, green and blue. */
static bool wants_colours(dm_TransformKind kind) {
  return kind == DM_TRANSFORM_GREYSCALE || kind == DM_TRANSFORM_RANDOM_GREY ||
         kind == DM_TRANSFORM_ADJUST || kind == DM_TRANSFORM_JITTER ||
         kind == DM_TRANSFORM_RAND;
}

/* Checks the images' channels against the kind and its numbers; -1 is not known yet. */
static dm_status check_channels(const dm_Transform *s, int64_t channels) {
  if (channels < 0) return DM_OK;
  if (s->n_values > 1 && channels != s->n_values)
    return dm_fail(DM_EARG, "%s: %d numbers, the images have %" PRId64 " channels",
                   kinds[s->kind].name, s->n_values, channels);
  if (wants_colours(s->kind) && channels != 1 && channels != 3)
    return dm_fail(
        DM_EARG, "%s: images of %" PRId64 " channels, wanted 1 (grey) or 3 (red, green, blue)",
        kinds[s->kind].name, channels);
  return DM_OK;
}

/* Refuses a crop that is larger than the image with its border. */
static dm_status check_crop(const dm_Transform *s, int64_t height, int64_t width) {
  int64_t pad[4];
  dm_transform_border(s, height, width, pad);
  if ((height >= 0 && height + pad[1] + pad[3] < s->height) ||
      (width >= 0 && width + pad[0] + pad[2] < s->width))
    return dm_fail(DM_EARG,
                   "RandomCrop: a crop of %" PRId64 " x %" PRId64
                   " is larger than the image, %" PRId64 " x %" PRId64
                   " with its border; hint: pad_if_needed = true",
                   s->height, s->width, height + pad[1] + pad[3], width + pad[0] + pad[2]);
  return DM_OK;
}

/* Changes the shape from the transform's input to its output; -1 passes through where the
   transform does not fix a size. */
static dm_status transform_shape(const dm_Transform *s, int64_t shape[3]) {
  DM_TRY(check_channels(s, shape[0]));
  if (s->kind == DM_TRANSFORM_CROP) DM_TRY(check_crop(s, shape[1], shape[2]));
  if (s->kind == DM_TRANSFORM_GREYSCALE) shape[0] = s->channels;
  if (s->kind == DM_TRANSFORM_PAD) {
    if (shape[1] >= 0) shape[1] += s->pad[1] + s->pad[3];
    if (shape[2] >= 0) shape[2] += s->pad[0] + s->pad[2];
  } else if (s->kind == DM_TRANSFORM_RESIZE && s->width == 0) {
    return dm_transform_short_side(s, &shape[1], &shape[2]);
  } else if (kinds[s->kind].size) {
    shape[1] = s->height;
    shape[2] = s->width;
  }
  return DM_OK;
}

dm_DType dm_augment_dtype(const dm_Augment *a) { return a->to_float ? DM_F32 : DM_U8; }

dm_status dm_augment_shape(const dm_Augment *a, int64_t shape[3]) {
  for (int d = 0; d < 3; d++)
    if (shape[d] == 0 || shape[d] > (d ? DM_MAX_SIDE : DM_TRANSFORM_MAX_CHANNELS))
      return dm_fail(DM_EARG,
                     "transforms: an image of %" PRId64 " channels, %" PRId64 " x %" PRId64
                     "; channels are 1 to %d, sides 1 to %d",
                     shape[0], shape[1], shape[2], DM_TRANSFORM_MAX_CHANNELS, DM_MAX_SIDE);
  for (int i = 0; i < a->n; i++) {
    DM_TRY(transform_shape(&a->transforms[i], shape));
    if (shape[1] > DM_MAX_SIDE || shape[2] > DM_MAX_SIDE)
      return fault(&a->transforms[i], "the image would become larger than 2^24 on a side");
  }
  return DM_OK;
}

/* ---- a run ---- */

/* The crop collects the early transforms; its pixels are written to out once, as bytes or
   through the tables. */
dm_status dm_augment_apply(const dm_Augment *a, const dm_Image *in, uint64_t draw, void *out) {
  dm_status st = DM_OK;
  int64_t shape[3] = {in->channels, in->height, in->width};
  DM_TRY(dm_augment_shape(a, shape));
  dm_Crop w = dm_crop_on(in);
  for (int i = 0; i < a->n_early; i++) DM_GO(dm_transform_run(&a->transforms[i], draw, &w));
  if (a->to_float) dm_crop_floats(&w, a->tables, a->n_tables, out);
  else dm_crop_bytes(&w, out);
  for (int i = a->n_early; i < a->n; i++)
    dm_transform_run_floats(&a->transforms[i], draw, shape, out);
done:
  dm_crop_free(&w);
  return st;
}

dm_status dm_augment_plan(const dm_Augment *a, uint64_t draw, int64_t height, int64_t width,
                          dm_TransformPlan *plan) {
  const dm_Transform *last = a->n > 0 ? &a->transforms[a->n - 1] : NULL;
  int64_t shape[3] = {-1, height, width};
  if (!last || last->kind == DM_TRANSFORM_AFFINE || last->kind == DM_TRANSFORM_RAND ||
      kinds[last->kind].floats)
    return dm_fail(DM_EARG, "transforms: this one has no plan");
  DM_TRY(dm_augment_shape(a, shape));
  return dm_transform_plan(last, draw, height, width, plan);
}

int dm_augment_boxes(const dm_Augment *a, uint64_t draw, int64_t height, int64_t width,
                     int64_t (*boxes)[4], int most) {
  const dm_Transform *last = a->n > 0 ? &a->transforms[a->n - 1] : NULL;
  if (!last || (last->kind != DM_TRANSFORM_ERASE && last->kind != DM_TRANSFORM_CUTOUT))
    return 0;
  return dm_transform_boxes(last, draw, height, width, boxes, most);
}

/* ---- which transforms are possible ---- */

static bool is_size(int64_t n) { return n >= 1 && n <= DM_MAX_SIDE; }

/* Whether least <= r[0] <= r[1] <= most; false for NaN. */
static bool is_range(const double r[2], double least, double most) {
  return r[0] >= least && r[0] <= r[1] && r[1] <= most;
}

/* One check for each group of arguments follows; each names the argument as torchvision
   does. */
static dm_status check_size(const dm_Transform *s) {
  const bool one_side = s->kind == DM_TRANSFORM_RESIZE && s->width == 0;
  if (!is_size(s->height) || !(one_side || is_size(s->width)))
    return fault(s, "a side is 1 to 2^24");
  if (s->kind == DM_TRANSFORM_RESIZE && s->max_size != 0 &&
      (!one_side || s->max_size <= s->height || s->max_size > DM_MAX_SIDE))
    return fault(s, "max_size goes with one number for size, and is larger than it");
  return DM_OK;
}

static dm_status check_border(const dm_Transform *s) {
  for (int i = 0; i < 4; i++)
    if (s->pad[i] < 0 || s->pad[i] > DM_MAX_SIDE) return fault(s, "a border is 0 to 2^24 wide");
  if ((int)s->pad_mode < 0 || s->pad_mode > DM_PAD_SYMMETRIC)
    return fault(s, "no such padding_mode");
  return DM_OK;
}

static dm_status check_fill(const dm_Transform *s) {
  for (int i = 0; i < s->n_values; i++)
    if (!(s->values[i] >= 0 && s->values[i] <= 255)) return fault(s, "fill is 0 to 255");
  return DM_OK;
}

static dm_status check_box(const dm_Transform *s) {
  if (!is_range(s->area, 0, 1)) return fault(s, "scale is a range of parts, 0 to 1");
  if (!is_range(s->ratio, 1e-6, 1e6)) return fault(s, "ratio is a range of numbers above 0");
  return DM_OK;
}

static dm_status check_normalize(const dm_Transform *s) {
  for (int i = 0; i < s->n_values; i++)
    if (!isfinite(s->values[i]) || !isfinite(s->deviations[i]) || s->deviations[i] == 0)
      return fault(s, "mean and std are finite, and std is not 0");
  return DM_OK;
}

static dm_status check_jitter(const dm_Transform *s) {
  for (int i = 0; i < DM_TRANSFORM_N_JITTER; i++) {
    const bool is_hue = i == DM_ADJUST_HUE;
    if (!is_range(s->jitter[i], is_hue ? -0.5 : 0, is_hue ? 0.5 : 1e6))
      return fault(s, "factors are ranges of numbers from 0 on; hue's lie in -0.5 to 0.5");
  }
  return DM_OK;
}

static dm_status check_adjust(const dm_Transform *s) {
  const bool is_hue = s->adjust == DM_ADJUST_HUE;
  const double most = is_hue ? 0.5 : s->adjust == DM_ADJUST_POSTERIZE ? 8 : 1e6;
  if ((int)s->adjust < 0 || s->adjust >= DM_ADJUST_N) return fault(s, "no such adjustment");
  if (!(s->much >= (is_hue ? -0.5 : 0) && s->much <= most))
    return fault(s, "a factor is 0 or more, hue's -0.5 to 0.5, bits 0 to 8");
  return DM_OK;
}

static dm_status check_affine(const dm_Transform *s) {
  if (!is_range(s->degrees, -1e6, 1e6) || !is_range(s->shear, -89, 89) ||
      !is_range(s->shear + 2, -89, 89))
    return fault(s, "degrees are ranges, shear's within -89 to 89");
  if (!is_range(s->zoom, 1e-3, 1e3)) return fault(s, "scale is a range of numbers above 0");
  if (!(s->move[0] >= 0 && s->move[0] <= 1 && s->move[1] >= 0 && s->move[1] <= 1))
    return fault(s, "translate is two parts of the sides, 0 to 1");
  return DM_OK;
}

/* The arguments that only one kind has. */
static dm_status check_own(const dm_Transform *s) {
  switch (s->kind) {
  case DM_TRANSFORM_GREYSCALE:
    if (s->channels != 1 && s->channels != 3) return fault(s, "num_output_channels is 1 or 3");
    return DM_OK;
  case DM_TRANSFORM_ADJUST: return check_adjust(s);
  case DM_TRANSFORM_JITTER: return check_jitter(s);
  case DM_TRANSFORM_AFFINE: return check_affine(s);
  case DM_TRANSFORM_RAND:
    if (s->count < 0 || s->bins < 2 || s->magnitude < 0 || s->magnitude >= s->bins)
      return fault(s, "num_ops from 0 on, magnitude 0 to num_magnitude_bins - 1");
    return DM_OK;
  case DM_TRANSFORM_NORMALIZE: return check_normalize(s);
  case DM_TRANSFORM_CUTOUT:
    if (s->count < 0 || !is_size(s->width)) return fault(s, "holes from 0 on, length 1 on");
    return DM_OK;
  default: return DM_OK;
  }
}

/* Checks that s may follow the transforms of a: kinds for floats after ToTensor, others
   before it. Transforms that only move pixels may follow ToTensor as long as a black border
   stays 0. */
static dm_status check_order(const dm_Transform *s, const dm_Augment *a) {
  if (kinds[s->kind].floats != a->to_float && !kinds[s->kind].moves)
    return fault(s, s->kind == DM_TRANSFORM_TO_FLOAT ? "a second one"
                    : a->to_float                    ? "wanted before ToTensor"
                                                     : "wanted ToTensor before it");
  if (!a->to_float || kinds[s->kind].floats) return DM_OK;
  if (a->n_early < a->n) return fault(s, "wanted before what erases");
  const bool black = s->n_values == 0 || (s->n_values == 1 && s->values[0] == 0);
  const bool adds = s->kind == DM_TRANSFORM_CENTER_CROP || kinds[s->kind].border;
  if (adds && (a->normalizes || !black))
    return fault(s, "wanted before Normalize, and with a fill before ToTensor");
  return DM_OK;
}

/* All checks of one transform, in the order kind, arguments, position in the list. */
static dm_status check_transform(const dm_Transform *s, const dm_Augment *a) {
  if ((int)s->kind < 0 || s->kind >= DM_TRANSFORM_N_KINDS)
    return dm_fail(DM_EARG, "transforms: no kind has the number %d", (int)s->kind);
  if (s->n_values < 0 || s->n_values > DM_TRANSFORM_MAX_CHANNELS)
    return fault(s, "numbers for 1 to 64 channels");
  if (kinds[s->kind].size) DM_TRY(check_size(s));
  if (kinds[s->kind].filter && ((int)s->filter < 0 || s->filter > DM_FILTER_BICUBIC))
    return fault(s, "no such interpolation");
  if (kinds[s->kind].filter && !kinds[s->kind].size && s->filter == DM_FILTER_BICUBIC)
    return fault(s, "interpolation is nearest or bilinear");
  if (kinds[s->kind].border) DM_TRY(check_border(s));
  if (kinds[s->kind].border || kinds[s->kind].fill) DM_TRY(check_fill(s));
  if (kinds[s->kind].box) DM_TRY(check_box(s));
  if (kinds[s->kind].random && !(s->p >= 0 && s->p <= 1))
    return fault(s, "p is a probability, 0 to 1");
  DM_TRY(check_own(s));
  return s->kind == DM_TRANSFORM_TO_FLOAT && !a->to_float ? DM_OK : check_order(s, a);
}

/* ---- new and free ---- */

/* Makes tables[c][v]: the float32 that a sample v of channel c becomes after TO_FLOAT and
   each early NORMALIZE, computed with the operations of a tensor, so with its bits. */
static dm_status make_tables(dm_Augment *a) {
  a->tables = dm_alloc(a->n_tables * DM_LEVELS * (int64_t)sizeof *a->tables);
  if (!a->tables) return dm_fail(DM_EMEM, "transforms: out of memory for its tables");
  for (int c = 0; c < a->n_tables; c++)
    for (int v = 0; v < DM_LEVELS; v++) {
      float x = (float)v / 255.0f;
      for (int i = 0; i < a->n_early; i++) {
        const dm_Transform *s = &a->transforms[i];
        if (s->kind != DM_TRANSFORM_NORMALIZE || s->n_values == 0) continue;
        const int at = s->n_values == 1 ? 0 : c;
        x = (x - s->values[at]) / s->deviations[at];
      }
      a->tables[c * DM_LEVELS + v] = x;
    }
  return DM_OK;
}

/* Copies the numbers of all transforms into one block, which the list owns. */
static dm_status copy_numbers(dm_Augment *a) {
  int64_t n = 0;
  for (int i = 0; i < a->n; i++) n += 2 * a->transforms[i].n_values;
  float *at = a->numbers = dm_alloc(n * (int64_t)sizeof *at);
  if (!at) return dm_fail(DM_EMEM, "transforms: out of memory for its numbers");
  for (int i = 0; i < a->n; i++) {
    dm_Transform *s = &a->transforms[i];
    const size_t bytes = (size_t)s->n_values * sizeof *at;
    if (bytes == 0) continue;
    s->values = memcpy(at, s->values, bytes);
    at += s->n_values;
    if (s->kind != DM_TRANSFORM_NORMALIZE) continue;
    s->deviations = memcpy(at, s->deviations, bytes);
    at += s->n_values;
  }
  return DM_OK;
}

/* Checks and appends a transform, and counts those of its kind before it, which selects its
   random numbers. */
static dm_status add_transform(dm_Augment *a, const dm_Transform *how) {
  DM_TRY(check_transform(how, a));
  dm_Transform *s = &a->transforms[a->n];
  *s = *how;
  s->nth = 0;
  for (int i = 0; i < a->n; i++) s->nth += a->transforms[i].kind == how->kind;
  if (how->kind == DM_TRANSFORM_TO_FLOAT) a->to_float = true;
  if (how->kind == DM_TRANSFORM_NORMALIZE) a->normalizes = true;
  const bool early =
      a->n_early == a->n && how->kind != DM_TRANSFORM_ERASE && how->kind != DM_TRANSFORM_CUTOUT;
  a->n++;
  if (!early) return DM_OK;
  a->n_early++;
  if (how->kind != DM_TRANSFORM_NORMALIZE || how->n_values <= 1) return DM_OK;
  if (a->n_tables > 1 && how->n_values != a->n_tables)
    return dm_fail(DM_EARG, "Normalize: %d numbers, the one before it has %d", how->n_values,
                   a->n_tables);
  a->n_tables = how->n_values;
  return DM_OK;
}

dm_status dm_augment_new(dm_Augment **out, const dm_Transform *transforms, int n) {
  dm_status st = DM_OK;
  if (n < 0 || n > DM_MAX_TRANSFORMS)
    return dm_fail(DM_EARG, "transforms: %d of them, 0 to %d are possible", n,
                   DM_MAX_TRANSFORMS);
  dm_Augment *a = dm_alloc_zero(sizeof *a);
  if (!a) return dm_fail(DM_EMEM, "transforms: out of memory");
  a->n_tables = 1;
  a->transforms = dm_alloc_zero(n * (int64_t)sizeof *a->transforms);
  if (!a->transforms) {
    st = dm_fail(DM_EMEM, "transforms: out of memory for %d of them", n);
    goto done;
  }
  for (int i = 0; i < n; i++) DM_GO(add_transform(a, &transforms[i]));
  DM_GO(copy_numbers(a));
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
  dm_free(a->transforms);
  dm_free(a->numbers);
  dm_free(a->tables);
  dm_free(a);
}
