/* One transform of a list: the decisions that its draw makes, and their execution on an
   image. */
#ifndef DM_TRANSFORMS_H
#define DM_TRANSFORMS_H

#include "data/crop.h"

enum { DM_MAX_TRANSFORMS = 256, DM_MAX_SIDE = 1 << 24 };

/* *plan = the effect of t on an image of this height and width with this draw; t is none of
   AFFINE, RAND, ERASE and CUTOUT. The image fits it: dm_augment_shape was asked. */
dm_status dm_transform_plan(const dm_Transform *t, uint64_t draw, int64_t height, int64_t width,
                            dm_TransformPlan *plan);

/* The boxes that ERASE or CUTOUT covers, {top, left, bottom, right}; `most` of them at most are
   written. Returns how many there are. */
int dm_transform_boxes(const dm_Transform *t, uint64_t draw, int64_t height, int64_t width,
                       int64_t (*boxes)[4], int most);

/* Applies t to 8 bits. */
dm_status dm_transform_run(const dm_Transform *t, uint64_t draw, dm_Crop *w);

/* Applies t, which stands behind the tables of NORMALIZE, to x float32 (C,H,W) in place. */
void dm_transform_run_floats(const dm_Transform *t, uint64_t draw, const int64_t shape[3],
                             float *x);

/* The border that CROP adds to an image: pad, and what is still lacking on both sides. */
void dm_transform_border(const dm_Transform *t, int64_t height, int64_t width, int64_t pad[4]);

/* RESIZE with one number: the shorter side becomes it, the longer one keeps the aspect. */
dm_status dm_transform_short_side(const dm_Transform *t, int64_t *height, int64_t *width);

#endif
