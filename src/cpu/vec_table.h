/* The dense conversions that a processor may do faster; vec.c, vec_avx2.c,
   vec_avx512.c and vec_neon.c fill it. Bit-equal to base/half.h for every input. */
#ifndef DM_VEC_TABLE_H
#define DM_VEC_TABLE_H

#include "base/base.h"

typedef struct dm_VecTable {
  void (*f16_to_f32)(const uint16_t *src, int64_t n, float *dst);
  void (*bf16_to_f32)(const uint16_t *src, int64_t n, float *dst);
  void (*f32_to_f16)(const float *src, int64_t n, uint16_t *dst);
  void (*f32_to_bf16)(const float *src, int64_t n, uint16_t *dst);
} dm_VecTable;

/* NULL where they are not built. */
const dm_VecTable *dm_vec_neon(void);
const dm_VecTable *dm_vec_avx2(void);
const dm_VecTable *dm_vec_avx512(void);

#endif
