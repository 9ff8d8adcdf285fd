/* Lists of torchvision's transforms, which prepare an image for a model. A list is made once
   and then applied by any number of threads at the same time; where torchvision calls Pillow,
   results are Pillow's, bit for bit.

     dm_augment_new -> dm_augment_shape / dm_augment_apply ... -> dm_augment_free

   A transform's random numbers depend on `draw`, its kind and how many of its kind stand in
   front of it, and on nothing else: an image and its mask, cropped by lists that begin alike,
   stay a pair. */
#ifndef DM_TRANSFORM_H
#define DM_TRANSFORM_H

#include "base/dtype.h"
#include "data/image.h"

typedef enum dm_TransformKind {
  /* 8 bits -> 8 bits. Flips and crops may also stand behind TO_FLOAT; a crop that pads,
     with black only and in front of NORMALIZE. */
  DM_TRANSFORM_CROP,         /* height x width at a random position, once pad was added */
  DM_TRANSFORM_CENTER_CROP,  /* height x width; a smaller image gets a black border */
  DM_TRANSFORM_PAD,          /* pad */
  DM_TRANSFORM_RESIZE,       /* to height x width; width 0: the shorter side to height, the
                              longer one to at most max_size, 0: any */
  DM_TRANSFORM_RESIZED_CROP, /* a crop of a random area and ratio, to height x width */
  DM_TRANSFORM_HFLIP,        /* p */
  DM_TRANSFORM_VFLIP,        /* p */
  DM_TRANSFORM_GREYSCALE,    /* channels, 1 or 3 */
  DM_TRANSFORM_RANDOM_GREY,  /* p; as many channels as before */
  DM_TRANSFORM_ADJUST,       /* p, adjust, much */
  DM_TRANSFORM_JITTER,       /* jitter: four adjustments in a random order */
  DM_TRANSFORM_AFFINE,       /* p, degrees, move, zoom, shear, at_corner, filter, values */
  DM_TRANSFORM_RAND,         /* RandAugment: count, magnitude, bins, filter, values */
  /* 8 bits -> float32, 0 to 1; at most once */
  DM_TRANSFORM_TO_FLOAT,
  /* float32 -> float32 */
  DM_TRANSFORM_NORMALIZE, /* (x - values[c]) / deviations[c] */
  DM_TRANSFORM_ERASE,     /* p; a box of a random area and ratio becomes values, or noise */
  DM_TRANSFORM_CUTOUT,    /* count squares of this width become 0, as far as they lie inside */
  DM_TRANSFORM_N_KINDS
} dm_TransformKind;

typedef enum dm_PadMode {
  DM_PAD_CONSTANT, /* values, as fill */
  DM_PAD_EDGE,
  DM_PAD_REFLECT,  /* 3 2 | 1 2 3 */
  DM_PAD_SYMMETRIC /* 2 1 | 1 2 3 */
} dm_PadMode;

enum { DM_TRANSFORM_MAX_CHANNELS = 64, DM_TRANSFORM_N_JITTER = 4 };

/* A transform and its arguments; those that its kind does not name are not read. Ranges hold
   both ends. */
typedef struct dm_Transform {
  dm_TransformKind kind;
  double p; /* probability, 0 to 1 */
  int64_t height, width, max_size;
  int64_t pad[4]; /* left, top, right, bottom */
  dm_PadMode pad_mode;
  bool pad_if_needed; /* CROP: as much as a smaller image lacks, on both sides */
  dm_Filter filter;
  double area[2], ratio[2]; /* of the whole; width to height (ERASE: height to width) */
  int64_t channels;
  dm_Adjust adjust;
  double much;
  double jitter[DM_TRANSFORM_N_JITTER][2]; /* brightness, contrast, saturation, hue; {1, 1}
                                            and {0, 0}: not at all */
  double degrees[2], zoom[2], shear[4];    /* shear: a range along x, and one along y */
  double move[2];                          /* at most, as parts of width and height */
  bool at_corner;                          /* AFFINE: about the upper left corner */
  int count, magnitude, bins;
  bool noise;
  const float *values, *deviations;
  int n_values; /* 1, or one a channel; 0: nothing given, which is 0 and 1 */
  int nth;      /* how many of its kind stand in front of it; dm_augment_new counts */
} dm_Transform;

typedef struct dm_Augment dm_Augment;

/* The effect of a transform on an image: a border, then a crop, then a new size, then a
   mirror image, then colours. All that is random has been drawn. */
typedef struct dm_TransformPlan {
  int64_t pad[4];                   /* left, top, right, bottom */
  int64_t top, left, height, width; /* of the crop of the padded image, from 0 */
  int64_t to_height, to_width;      /* height, width: no other size */
  bool mirror, reverse;             /* left and right, top and bottom are exchanged */
  bool grey;
  int n_adjust;
  dm_Adjust adjust[DM_TRANSFORM_N_JITTER];
  double much[DM_TRANSFORM_N_JITTER];
} dm_TransformPlan;

/* Torchvision's name of a kind. */
DM_API const char *dm_transform_name(dm_TransformKind kind);

/* Checks and copies the transforms. DM_EARG says which one is at fault. */
DM_API dm_status dm_augment_new(dm_Augment **out, const dm_Transform *transforms, int n);
DM_API void dm_augment_free(dm_Augment **augment); /* NULL is fine */

/* float32 with TO_FLOAT in the list, else uint8. */
DM_API dm_DType dm_augment_dtype(const dm_Augment *a);

/* Replaces channels, height, width of an image, -1 for a size that is not known, by those of
   the result. An image that a transform cannot take (one smaller than a crop, say) is
   refused. */
DM_API dm_status dm_augment_shape(const dm_Augment *a, int64_t shape[3]);

/* out (C,H,W), dense, as dm_augment_shape and dm_augment_dtype say. `in` is only read.
   Failures are those of dm_augment_shape, and DM_EMEM. */
DM_API dm_status dm_augment_apply(const dm_Augment *a, const dm_Image *in, uint64_t draw,
                                  void *out);

/* Gives the effect of the list's last transform with this draw on an image of height x width,
   for callers that work on something else than 8 bits on the host; none of AFFINE and RAND.
   dm_augment_boxes is for ERASE and CUTOUT, the other is for all others: the boxes {top,
   left, bottom, right} that are covered, of which `most` at most are written. It returns how
   many there are. */
DM_API dm_status dm_augment_plan(const dm_Augment *a, uint64_t draw, int64_t height,
                                 int64_t width, dm_TransformPlan *plan);
DM_API int dm_augment_boxes(const dm_Augment *a, uint64_t draw, int64_t height, int64_t width,
                            int64_t (*boxes)[4], int most);

#endif
