/* The dense conversions that a processor may do faster; vec.c and
   vec_avx2.c fill it. Bit-equal to base/half.h for every input. */
#ifndef DM_VEC_TABLE_H
#define DM_VEC_TABLE_H

#include "base/base.h"

typedef struct dm_VecTable {
  void (*f16_to_f32)(const uint16_t *src, int64_t n, float *dst);
  void (*bf16_to_f32)(const uint16_t *src, int64_t n, float *dst);
  void (*f32_to_f16)(const float *src, int64_t n, uint16_t *dst);
  void (*f32_to_bf16)(const float *src, int64_t n, uint16_t *dst);
} dm_VecTable;

bool dm_cpu_has_avx2(void);           /* and FMA and F16C; DEMILUNE_AVX2=0 denies it */
const dm_VecTable *dm_vec_avx2(void); /* NULL where it is not built */

#endif
