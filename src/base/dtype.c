/* The rows of dtypes.def as data, and what they say of names and promotion. Source of
   promotion: PyTorch's type promotion lattice. */
#include "base/dtype.h"

#include <math.h>
#include <string.h>

#define ONE(...) +1
_Static_assert(DM_DTYPES(ONE, ) == DM_N_DTYPE, "dtypes.def has one row for each dm_DType");
#undef ONE

const uint8_t dm_dtype_sizes[DM_N_DTYPE] = DM_DTYPE_SIZES;

#define INT(X, E, S, BITS, NAME, METHOD, RANK, NPY, ...) \
  [DM_##E] = {.name = NAME, .method = METHOD, .npy = NPY, .rank = RANK},
#define FLOAT(X, E, S, BITS, NAME, METHOD, RANK, NPY, ST, AT, DIGITS, TINY, MAX, BRIEF, ...) \
  [DM_##E] = {NAME, METHOD, NPY, BRIEF, RANK, 1.0 / (double)(INT64_C(1) << DIGITS), TINY, MAX},
const dm_DTypeInfo dm_dtypes[DM_N_DTYPE] = {DM_INT_DTYPES(INT, ) DM_FLOAT_DTYPES(FLOAT, )};
#undef INT
#undef FLOAT

const char *dm_dtype_name(dm_DType d) {
  return d >= 0 && d < DM_N_DTYPE ? dm_dtypes[d].name : "none";
}

/* The dtype of that name ("float32") or of the method that casts to it ("float"), or
   DM_NO_DTYPE. A name is found by search: ten are few. */
dm_DType dm_dtype_find(const char *name) {
  for (int d = 0; d < DM_N_DTYPE; d++)
    if (strcmp(dm_dtypes[d].name, name) == 0) return (dm_DType)d;
  for (int d = 0; d < DM_N_DTYPE; d++)
    if (strcmp(dm_dtypes[d].method, name) == 0) return (dm_DType)d;
  return DM_NO_DTYPE;
}

/* The higher rank wins. Two types of one rank have no order: uint8 with int8 needs int16,
   float16 with bfloat16 float32, the lowest type above both. */
dm_DType dm_promote(dm_DType a, dm_DType b) {
  if (a == b) return a;
  const int rank_a = dm_dtypes[a].rank, rank_b = dm_dtypes[b].rank;
  if (rank_a != rank_b) return rank_a > rank_b ? a : b;
  int d = 0;
  while (dm_dtypes[d].rank != rank_a + 1) d++;
  return (dm_DType)d;
}

bool dm_holds(dm_DType d, double v, double bounds[2]) {
  if (!dm_is_int(d)) return true;
  const double half = ldexp(1, 8 * (int)dm_dtype_size(d) - 1); /* of the numbers it has */
  bounds[0] = d == DM_U8 ? 0 : -half;
  bounds[1] = d == DM_U8 ? 2 * half - 1 : half - 1;
  return v >= (d == DM_U8 ? -bounds[1] : bounds[0]) &&
         (d == DM_I64 ? v < half : v <= bounds[1]);
}

void dm_make_bools(void *bytes, int64_t n) {
  uint8_t *b = bytes;
  for (int64_t i = 0; i < n; i++) b[i] = b[i] != 0;
}
