/* The inner loops of reductions: which there are, and their types. */
#ifndef DM_LOOPS_REDUCE_H
#define DM_LOOPS_REDUCE_H

#include "base/accumulator.h"
#include "base/dtype.h"

/* Reduces n elements, of which the first has index `at` among the reduced. */
typedef void dm_ReduceF32(dm_Acc *s, const float *v, int64_t n, int64_t at, double param);
typedef void dm_ReduceF64(dm_Acc *s, const double *v, int64_t n, int64_t at, double param);
typedef void dm_ReduceI64(dm_Acc *s, const int64_t *v, int64_t n, int64_t at, double param);

/* Reductions of floats whose loops are in loops.h; DM_REDUCE_OWN: the reduction brings its own.
 */
enum {
  DM_REDUCE_OWN,
  DM_REDUCE_SUM,
  DM_REDUCE_NORM,
  DM_REDUCE_LARGEST,
  DM_REDUCE_VAR,
  DM_REDUCE_EXTREME,
  DM_REDUCE_TOP,
  DM_REDUCE_LSE,
  DM_REDUCE_PROD,
  DM_REDUCE_NANSUM,
  DM_REDUCE_ANY,
  DM_REDUCE_ALL,
  DM_N_REDUCE
};

/* A row of outputs at once: v (rows, n), whose rows lie `step` apart, joins what each has so
   far, row after row: floats, and doubles for products. */
typedef void dm_ReduceColumnsF32(void *so_far, const float *v, int64_t step, int64_t rows,
                                 int64_t n, float param);

typedef void dm_ReduceColumnsI64(int64_t *so_far, const int64_t *v, int64_t step, int64_t rows,
                                 int64_t n, double param);

/* Adds rows of n neighbouring elements of a dtype, or the numbers among them, to as many
   floats, row after row; the rows lie `step` bytes apart. False: there is no such loop, and
   nothing is done. */
typedef bool dm_SumRows(int loop, dm_DType from, const char *v, int64_t step, int64_t rows,
                        int64_t n, float *sum);

/* Joins n neighbouring elements of a low float to s->a. False: there is no such loop, and
   nothing is done. */
typedef bool dm_RowLow(int loop, dm_DType from, dm_Acc *s, const void *v, int64_t n,
                       double param);

#endif
