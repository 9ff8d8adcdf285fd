/* The optimizers: their methods, and the arithmetic of a step that does not depend on the type
   of the elements (methods.inc has the rest), for the kernels of every device. */
#ifndef DM_STEP_H
#define DM_STEP_H

#include <float.h>
#include <math.h>

#include "base/dtype.h"
#include "base/half.h"
#include "base/rng.h"

/* ---- methods: the rows of methods.inc ---- */

typedef enum dm_Method {
#define METHOD(NAME, ...) DM_METHOD_##NAME,
#include "base/methods.inc"
  DM_N_METHOD
} dm_Method;

/* dm_SGDOptions, dm_AdamOptions, ...: a method's options, doubles in the row's order. */
#define OPTION(NAME) double NAME;
#define METHOD(NAME, KINDS, COUNTS, OPTIONS, ...) \
  typedef struct dm_##NAME##Options {             \
    OPTIONS                                       \
  } dm_##NAME##Options;
#include "base/methods.inc"

enum { DM_MAX_BUFFERS = 3, DM_MAX_NUMBERS = 2, DM_MAX_OPTIONS = 8 };

/* ---- gradient scaling ---- */

/* The history of an optimizer's steps, as int64 elements of one tensor. */
enum {
  DM_AMP_SKIPPED, /* steps skipped so far */
  DM_AMP_RUN,     /* of these the last ones in a row; 0: the last step was done */
  DM_AMP_FIRST,   /* the step that the last run of skipped ones began with */
  DM_AMP_STEP,    /* the last skipped step */
  DM_AMP_WHICH,   /* where, in that step */
  DM_AMP_COUNT,
  DM_AMP_FIELDS
};

typedef struct dm_ScalePolicy {
  double growth, backoff;
  double floor, ceiling; /* the scale is not moved past these; 0 and infinity: none */
  int64_t interval;      /* clean updates to a growth; 0: no growth */
} dm_ScalePolicy;

static inline DM_HD bool dm_is_set(const float *found_inf) {
  const float v = found_inf ? *found_inf : 0;
  return v < 0 || v > 0 || v != v;
}

/* v rounded stochastically to one of its two neighbours in a low float of so many digits, to
   the nearer one more often, so that the mean is v: a random number below the last kept bit is
   added, and the bits below that one are cut. Below `tiny`, unless float32's subnormals are the
   same, numbers are multiples of one step. Overflows where rounding to nearest does. */
static inline DM_HD float dm_round_to_digits(float v, uint32_t word, int digits, float tiny,
                                             float max) {
  const float step = tiny / (float)(1 << digits);
  if (!(fabsf(v) <= max)) return v;
  if (tiny > FLT_MIN && fabsf(v) < tiny) {
    const float q = fabsf(v) / step, low = floorf(q);
    return copysignf((q - low > dm_uniform_f32(word) ? low + 1 : low) * step, v);
  }
  const uint32_t cut = (1u << (23 - digits)) - 1;
  const float r = dm_bits_to_f32((dm_f32_to_bits(v) + (word & cut)) & ~cut);
  return fabsf(r) <= max ? r : v;
}
/* The same by dtype, a low float. */
static inline DM_HD float dm_round_stochastic(dm_DType to, float v, uint32_t word) {
#define ROW(X, E, S, BITS, NAME, METHOD, RANK, NPY, ST, AT, DIGITS, TINY, MAX, ...) \
  case DM_##E: return dm_round_to_digits(v, word, DIGITS, (float)TINY, (float)MAX);
  switch (to) {
    DM_LOW_DTYPES(ROW, )
  default: return v;
  }
#undef ROW
}

/* ---- gradient scaling ---- */

/* The largest magnitude that is rounded to a finite number of the dtype: the last float32 below
   the middle between the largest number and the next one, which would be. */
static inline DM_HD float dm_top_of(dm_DType dtype) {
#define ROW(X, E, S, BITS, NAME, METHOD, RANK, NPY, ST, AT, DIGITS, TINY, MAX, ...) \
  case DM_##E: return dm_bits_to_f32(dm_f32_to_bits((float)MAX) + (1u << (22 - DIGITS)) - 1);
  switch (dtype) {
    DM_LOW_DTYPES(ROW, )
  default: return FLT_MAX;
  }
#undef ROW
}

/* dm_amp_note's h, with `where` w. */
static inline DM_HD void dm_note_step(int64_t *h, bool found, const int64_t *w, int64_t step) {
  if (!found) {
    h[DM_AMP_RUN] = 0;
    return;
  }
  if (h[DM_AMP_RUN]++ == 0) h[DM_AMP_FIRST] = step;
  h[DM_AMP_SKIPPED]++;
  h[DM_AMP_STEP] = step;
  h[DM_AMP_WHICH] = w[0];
  h[DM_AMP_COUNT] = w[1];
}

static inline DM_HD float dm_grown(float scale, const dm_ScalePolicy *how) {
  const float more = (float)((double)scale * how->growth), top = (float)how->ceiling;
  if (!(more <= FLT_MAX)) return scale;
  return more <= top ? more : scale > top ? scale : top;
}

/* Backs off, to the floor at most: a scale below the floor stays. */
static inline DM_HD void dm_move_scale(float *scale, int32_t *tracker, int32_t *floored,
                                       bool found, const dm_ScalePolicy *how) {
  if (found) {
    const float less = (float)((double)*scale * how->backoff), floor_ = (float)how->floor;
    *floored = less >= floor_ ? 0 : *floored < INT32_MAX ? *floored + 1 : *floored;
    *scale = less >= floor_ ? less : *scale < floor_ ? *scale : floor_;
    *tracker = 0;
  } else {
    *floored = 0;
    if (++*tracker == how->interval) {
      *scale = dm_grown(*scale, how);
      *tracker = 0;
    }
  }
}

/* ---- clipping ---- */

/* The factor of each element, in total_norm's dtype. The division multiplies by the reciprocal,
   as PyTorch's of a number by a tensor does. NaN stays. */
static inline DM_HD float dm_clip_factor_f32(float max_norm, float total) {
  const float f = max_norm * (1 / (total + 1e-6f));
  return f > 1 ? 1 : f;
}
static inline DM_HD double dm_clip_factor_f64(double max_norm, double total) {
  const double f = max_norm * (1 / (total + 1e-6));
  return f > 1 ? 1 : f;
}

#endif
