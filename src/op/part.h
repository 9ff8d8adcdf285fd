/* Blocks of a tensor's elements in the compute type, for kernels of rows on the CPU. */
#ifndef DM_PART_H
#define DM_PART_H

#include "core/tensor.h"
#include "cpu/vec.h"

/* m elements of t, which is contiguous, from `at` on: where they lie if they have the type, or
   converted into buf. */
#define DM_PART(SUFFIX, TYPE, DTYPE)                                                          \
  static inline const TYPE *dm_part_##SUFFIX(const dm_Tensor *t, int64_t at, int64_t m,       \
                                             TYPE *buf) {                                     \
    const char *p = (const char *)dm_tensor_data(t) + at * dm_dtype_size((dm_DType)t->dtype); \
    if (t->dtype == DTYPE) return (const TYPE *)(const void *)p;                              \
    dm_load_##SUFFIX((dm_DType)t->dtype, p, 1, m, buf);                                       \
    return buf;                                                                               \
  }
DM_PART(f32, float, DM_F32)
DM_PART(f64, double, DM_F64)
#undef DM_PART

#endif
