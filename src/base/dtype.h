/* The element types of demilune.h: size, kind, limits, and how they combine. Promotion is
   PyTorch's. */
#ifndef DM_DTYPE_H
#define DM_DTYPE_H

#include "base/base.h"
#include "base/dtypes.def"

/* Sets of dtypes: bit d stands for dtype d. */
#define DM_BIT_(X, E, ...) | 1u << DM_##E
enum {
  DM_INTS = (0u DM_INT_DTYPES(DM_BIT_, )) & ~(1u << DM_BOOL),
  DM_LOW_FLOATS = 0u DM_LOW_DTYPES(DM_BIT_, ),
  DM_FLOATS = 0u DM_FLOAT_DTYPES(DM_BIT_, )
};
#undef DM_BIT_

/* The kinds of arithmetic. Low floats compute in float32. */
typedef enum dm_Kind { DM_KIND_BOOL, DM_KIND_INT, DM_KIND_FLOAT } dm_Kind;

/* A row of dtypes.def as data. */
typedef struct dm_DTypeInfo {
  const char *name, *method, *npy, *brief; /* method, npy, brief: or NULL */
  int rank;
  double eps, tiny, max; /* of a float: the gap after 1, smallest normal and largest number */
} dm_DTypeInfo;

extern const dm_DTypeInfo dm_dtypes[DM_N_DTYPE];

/* Bytes of an element. A back end, which is a library of its own, defines the array, too. */
extern const uint8_t dm_dtype_sizes[DM_N_DTYPE];

static inline int64_t dm_dtype_size(dm_DType d) { return dm_dtype_sizes[d]; }

/* Whether the set has d; none has DM_NO_DTYPE. */
static inline DM_HD bool dm_dtype_in(dm_DType d, unsigned set) { return set >> (d & 31) & 1; }
static inline DM_HD bool dm_is_float(dm_DType d) { return dm_dtype_in(d, DM_FLOATS); }
static inline DM_HD bool dm_is_int(dm_DType d) { return dm_dtype_in(d, DM_INTS); }
static inline DM_HD bool dm_is_low(dm_DType d) { return dm_dtype_in(d, DM_LOW_FLOATS); }
static inline DM_HD dm_Kind dm_kind(dm_DType d) {
  return dm_is_float(d) ? DM_KIND_FLOAT : d == DM_BOOL ? DM_KIND_BOOL : DM_KIND_INT;
}
/* float32 for low floats, else the type itself; int64 for every integer. */
static inline DM_HD dm_DType dm_compute_dtype(dm_DType d) {
  return d == DM_F64 ? DM_F64 : dm_is_float(d) ? DM_F32 : DM_I64;
}

dm_DType dm_promote(dm_DType a, dm_DType b); /* two operands of equal rank class */

/* Whether a number can be written into the dtype: an integer holds what lies between its
   bounds, which go to `bounds`, all others everything. As in PyTorch an unsigned one also takes
   the negative numbers that wrap to one of its own once. */
bool dm_holds(dm_DType d, double v, double bounds[2]);

/* Makes n bytes that a file gave bools: 0 stays, all else becomes 1. */
void dm_make_bools(void *bytes, int64_t n);

#endif
