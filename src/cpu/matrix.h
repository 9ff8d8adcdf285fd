/* A matrix operand of the products. */
#ifndef DM_MATRIX_H
#define DM_MATRIX_H

#include "base/dtype.h"

/* A matrix in memory: element (i, j) lies at data + (i*rs + j*cs) elements. */
typedef struct dm_Mat {
  const void *data;
  dm_DType dtype; /* f16 bf16 f32 f64 (a and b may differ only within 16/32 bit) */
  int64_t rs, cs; /* strides in elements, any sign or order; 0 broadcasts */
} dm_Mat;

#endif
