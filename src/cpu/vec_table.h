/* The dense conversions that a processor may do faster; vec.c, vec_avx2.c,
   vec_avx512.c, vec_avx512bf16.c and vec_neon.c fill it. Bit-equal to base/half.h for every
   input. */
#ifndef DM_VEC_TABLE_H
#define DM_VEC_TABLE_H

#include "base/dtype.h"
#include "base/half.h"
#include "cpu/rows.h"

/* f16_to_f32, f32_to_f16 and so on for each low float. */
typedef struct dm_VecTable {
#define MEMBERS(X, E, S, BITS, ...)                           \
  void (*S##_to_f32)(const BITS *src, int64_t n, float *dst); \
  void (*f32_to_##S)(const float *src, int64_t n, BITS *dst); \
  void (*f32_rows_to_##S)(const dm_Rows *rows, BITS *dst, int64_t dst_step);
  DM_LOW_DTYPES(MEMBERS, )
#undef MEMBERS
  /* whether each number is not 0 */
  void (*f32_to_bool)(const float *src, int64_t n, uint8_t *dst);
  void (*f64_to_bool)(const double *src, int64_t n, uint8_t *dst);
  void (*i64_to_bool)(const int64_t *src, int64_t n, uint8_t *dst);
} dm_VecTable;

/* A low float's entries in a table, functions of its members' names; and such functions as
   plain loops, for a type that has no faster ones. */
#define DM_VEC_ENTRY(X, E, S, ...) \
  .S##_to_f32 = S##_to_f32, .f32_to_##S = f32_to_##S, .f32_rows_to_##S = f32_rows_to_##S,
#define DM_VEC_PLAIN(X, E, S, BITS, ...)                              \
  static void S##_to_f32(const BITS *src, int64_t n, float *dst) {    \
    for (int64_t i = 0; i < n; i++) dst[i] = dm_##S##_to_f32(src[i]); \
  }                                                                   \
  static void f32_to_##S(const float *src, int64_t n, BITS *dst) {    \
    for (int64_t i = 0; i < n; i++) dst[i] = dm_f32_to_##S(src[i]);   \
  }
/* Rows by f32_to_S, which becomes part of the loop. */
#define DM_VEC_ROWS(X, E, S, BITS, ...)                                              \
  static void f32_rows_to_##S(const dm_Rows *rows, BITS *dst, int64_t dst_step) {    \
    float *v = rows->at;                                                             \
    for (int64_t i = 0; i < rows->m; i++, v += rows->step, dst += dst_step) {        \
      const float *const more = rows->more ? rows->more + i * rows->more_row : NULL; \
      if (more && rows->more_col)                                                    \
        for (int64_t j = 0; j < rows->n; j++) v[j] += more[j];                       \
      else if (more)                                                                 \
        for (int64_t j = 0; j < rows->n; j++) v[j] += *more;                         \
      f32_to_##S(v, rows->n, dst);                                                   \
    }                                                                                \
  }

/* The conversions to bool, which the compiler makes vectors of. */
#define DM_VEC_TO_BOOL(TYPE, SUFFIX)                                   \
  static void SUFFIX##_to_bool(const TYPE *DM_RESTRICT src, int64_t n, \
                               uint8_t *DM_RESTRICT dst) {             \
    for (int64_t i = 0; i < n; i++) dst[i] = src[i] != 0;              \
  }
#define DM_VEC_BOOLS          \
  DM_VEC_TO_BOOL(float, f32)  \
  DM_VEC_TO_BOOL(double, f64) \
  DM_VEC_TO_BOOL(int64_t, i64)
#define DM_VEC_BOOL_ENTRIES \
  .f32_to_bool = f32_to_bool, .f64_to_bool = f64_to_bool, .i64_to_bool = i64_to_bool

/* NULL where they are not built. */
const dm_VecTable *dm_vec_neon(void);
const dm_VecTable *dm_vec_avx2(void);
const dm_VecTable *dm_vec_avx512(void);
const dm_VecTable *dm_vec_avx512bf16(void);

#endif
