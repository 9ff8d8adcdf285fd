/* The inner loops of reductions: which there are, and their types. */
#ifndef DM_LOOPS_REDUCE_H
#define DM_LOOPS_REDUCE_H

#include "base/accumulator.h"

/* Folds n elements, of which the first has index `at` among the reduced. */
typedef void dm_ReduceF32(dm_Acc *s, const float *v, int64_t n, int64_t at, double param);
typedef void dm_ReduceF64(dm_Acc *s, const double *v, int64_t n, int64_t at, double param);
typedef void dm_ReduceI64(dm_Acc *s, const int64_t *v, int64_t n, int64_t at, double param);

/* Folds of floats that are loops.h's. */
enum {
  DM_FOLD_OWN,
  DM_FOLD_SUM,
  DM_FOLD_NORM,
  DM_FOLD_LARGEST,
  DM_FOLD_VAR,
  DM_FOLD_EXTREME,
  DM_FOLD_TOP,
  DM_FOLD_LSE,
  DM_N_FOLD
};

/* A row of outputs at once: v (n) joins what each has so far. */
typedef void dm_BesideF32(float *so_far, const float *v, int64_t n, float param);

#endif
