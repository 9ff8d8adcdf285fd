/* What is done to a picture before a model sees it: a list of steps, made once and then
   run by any number of threads at the same time. torchvision's transforms; where Pillow
   does the work there, with Pillow's numbers.

     dm_augment_new -> dm_augment_shape / dm_augment_apply ... -> dm_augment_free

   What chance decides follows from `draw` and from which step of its kind a step is, and
   from nothing else: a picture and its mask, cut by lists that begin alike, stay a pair. */
#ifndef DM_AUGMENT_H
#define DM_AUGMENT_H

#include "base/dtype.h"
#include "data/image.h"

typedef enum dm_AugmentKind {
  /* 8 bits -> 8 bits. Flips and crops may also stand behind TO_FLOAT; a crop that pads,
     with black only and in front of NORMALIZE. */
  DM_AUGMENT_CROP,         /* a window of height x width at a place drawn, once pad was added */
  DM_AUGMENT_CENTER_CROP,  /* height x width; a smaller picture gets a black border */
  DM_AUGMENT_PAD,          /* pad */
  DM_AUGMENT_RESIZE,       /* to height x width; width 0: the shorter side to height, the
                              longer one to at most max_size, 0: any */
  DM_AUGMENT_RESIZED_CROP, /* a window of an area and a ratio drawn, to height x width */
  DM_AUGMENT_HFLIP,        /* p */
  DM_AUGMENT_VFLIP,        /* p */
  DM_AUGMENT_GREYSCALE,    /* channels, 1 or 3 */
  DM_AUGMENT_RANDOM_GREY,  /* p; as many channels as before */
  DM_AUGMENT_ADJUST,       /* p, adjust, much */
  DM_AUGMENT_JITTER,       /* jitter: four adjustments in an order drawn */
  DM_AUGMENT_AFFINE,       /* p, degrees, move, zoom, shear, filter, values */
  DM_AUGMENT_RAND,         /* RandAugment: count, magnitude, bins, filter, values */
  /* 8 bits -> float32, 0 to 1; at most once */
  DM_AUGMENT_TO_FLOAT,
  /* float32 -> float32 */
  DM_AUGMENT_NORMALIZE, /* (x - values[c]) / deviations[c] */
  DM_AUGMENT_ERASE,     /* p; a box of an area and a ratio drawn becomes values, or noise */
  DM_AUGMENT_CUTOUT,    /* count squares of this width become 0, as far as they lie inside */
  DM_AUGMENT_N_KINDS
} dm_AugmentKind;

typedef enum dm_PadMode {
  DM_PAD_CONSTANT, /* values, as fill */
  DM_PAD_EDGE,
  DM_PAD_REFLECT,  /* 3 2 | 1 2 3 */
  DM_PAD_SYMMETRIC /* 2 1 | 1 2 3 */
} dm_PadMode;

enum { DM_AUGMENT_MAX_CHANNELS = 64, DM_AUGMENT_N_JITTER = 4 };

/* What a kind does not name is not looked at. Ranges hold both ends. */
typedef struct dm_AugmentStep {
  dm_AugmentKind kind;
  double p; /* probability, 0 to 1 */
  int64_t height, width, max_size;
  int64_t pad[4]; /* left, top, right, bottom */
  dm_PadMode pad_mode;
  bool pad_if_needed; /* CROP: as much as a smaller picture lacks, on both sides */
  dm_Filter filter;
  double area[2], ratio[2]; /* of the whole; width to height (ERASE: height to width) */
  int64_t channels;
  dm_Adjust adjust;
  double much;
  double jitter[DM_AUGMENT_N_JITTER][2]; /* brightness, contrast, saturation, hue; {1, 1}
                                            and {0, 0}: not at all */
  double degrees[2], zoom[2], shear[4];  /* shear: a range along x, and one along y */
  double move[2];                        /* at most, as parts of width and height */
  int count, magnitude, bins;
  bool noise;
  const float *values, *deviations;
  int n_values; /* 1, or one a channel; 0: nothing given, which is 0 and 1 */
} dm_AugmentStep;

typedef struct dm_Augment dm_Augment;

/* What torchvision calls a step of this kind. */
DM_API const char *dm_augment_name(dm_AugmentKind kind);

/* Checks and copies the steps. DM_EARG says which one is at fault. */
DM_API dm_status dm_augment_new(dm_Augment **out, const dm_AugmentStep *steps, int n);
DM_API void dm_augment_free(dm_Augment **augment); /* NULL is fine */

/* float32 with TO_FLOAT among the steps, else uint8. */
DM_API dm_DType dm_augment_dtype(const dm_Augment *a);

/* In: channels, height, width of a picture, -1 what is not known. Out: of what is made of
   it. A picture that a step cannot take (smaller than its window, say) is refused. */
DM_API dm_status dm_augment_shape(const dm_Augment *a, int64_t shape[3]);

/* out (C,H,W), dense, as dm_augment_shape and dm_augment_dtype say. `in` is only read.
   Failures are those of dm_augment_shape, and DM_EMEM. */
DM_API dm_status dm_augment_apply(const dm_Augment *a, const dm_Image *in, uint64_t draw,
                                  void *out);

#endif
