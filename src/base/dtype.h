/* The element types of demilune.h: size, kind, and how they combine. Promotion is PyTorch's. */
#ifndef DM_DTYPE_H
#define DM_DTYPE_H

#include "base/base.h"

/* The kinds of arithmetic. 16-bit floats compute in float32. */
typedef enum dm_Kind { DM_KIND_BOOL, DM_KIND_INT, DM_KIND_FLOAT } dm_Kind;

extern const uint8_t dm_dtype_sizes[DM_N_DTYPE];

static inline int64_t dm_dtype_size(dm_DType d) { return dm_dtype_sizes[d]; }
static inline DM_HD bool dm_is_float(dm_DType d) { return d >= DM_F16; }
static inline DM_HD bool dm_is_int(dm_DType d) { return d > DM_BOOL && d < DM_F16; }
static inline DM_HD bool dm_is_16bit(dm_DType d) { return d == DM_F16 || d == DM_BF16; }
static inline DM_HD dm_Kind dm_kind(dm_DType d) {
  return d >= DM_F16 ? DM_KIND_FLOAT : d == DM_BOOL ? DM_KIND_BOOL : DM_KIND_INT;
}
/* float32 for 16-bit floats, else the type itself; int64 for every integer. */
static inline DM_HD dm_DType dm_compute_dtype(dm_DType d) {
  return d == DM_F64 ? DM_F64 : d >= DM_F16 ? DM_F32 : DM_I64;
}

dm_DType dm_promote(dm_DType a, dm_DType b); /* two operands of equal rank class */

#endif
