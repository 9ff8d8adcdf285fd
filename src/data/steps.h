/* What one step of a list does to a picture on its way. */
#ifndef DM_STEPS_H
#define DM_STEPS_H

#include "data/crop.h"

enum { DM_MAX_STEPS = 256, DM_MAX_SIDE = 1 << 24 };

typedef struct dm_Step {
  dm_AugmentStep how;
  int nth;             /* of its kind, from 0 */
  const float *values; /* a copy of the step's own; NULL: nothing given */
  const float *deviations;
} dm_Step;

/* A step on 8 bits. The picture fits it: dm_augment_shape was asked. */
dm_status dm_step_run(const dm_Step *s, uint64_t draw, dm_Crop *w);

/* A step on float32, behind the tables of NORMALIZE: x (C,H,W) in place. */
void dm_step_run_floats(const dm_Step *s, uint64_t draw, const int64_t shape[3], float *x);

/* What CROP adds to a picture: pad, and what is still lacking on both sides of it. */
void dm_step_border(const dm_AugmentStep *s, int64_t height, int64_t width, int64_t pad[4]);

/* RESIZE with one number: the shorter side becomes it, the longer one keeps the aspect. */
dm_status dm_step_short_side(const dm_AugmentStep *s, int64_t *height, int64_t *width);

#endif
