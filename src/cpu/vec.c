/* Loads, stores and conversions over arrays: one typed loop per dtype, and
   the dense forms of low floats through a table that is filled once. */
#include "cpu/vec.h"

#include "cpu/variant.h"
#include "cpu/vec_table.h"

#include <stdatomic.h>
#include <string.h>

/* ---- the table --------------------------------------------------------- */

/* One element at a time, for processors without vector conversions. */
DM_LOW_DTYPES(DM_VEC_PLAIN, )
/* These give the same bits as the vector forms: round to nearest even, NaN stays NaN. */
DM_LOW_DTYPES(DM_VEC_ROWS, )
DM_VEC_BOOLS
static const dm_VecTable plain = {DM_LOW_DTYPES(DM_VEC_ENTRY, ) DM_VEC_BOOL_ENTRIES};

/* The conversions of a variant; NULL where it is not built. */
static const dm_VecTable *table_of(dm_Variant v) {
  switch (v) {
  case DM_NEON: return dm_vec_neon();
  case DM_AVX2: return dm_vec_avx2();
  case DM_AVX512: return dm_vec_avx512();
  case DM_AVX512BF16:
  case DM_AMX: return dm_vec_avx512bf16();
  default: return &plain;
  }
}

/* Rows of a few elements come here: it is looked up once. */
static inline const dm_VecTable *table(void) {
  static _Atomic(const dm_VecTable *) known;
  const dm_VecTable *widest = atomic_load_explicit(&known, memory_order_relaxed);
  if (DM_LIKELY(widest != NULL)) return widest;
  DM_WIDEST(table_of, widest);
  atomic_store_explicit(&known, widest, memory_order_relaxed);
  return widest;
}

/* ---- conversions that C leaves undefined ------------------------------- */

/* Truncates; what int64 cannot hold (and NaN) becomes its lowest value. */
static inline int64_t f64_to_i64(double v) {
  return v >= -0x1p63 && v < 0x1p63 ? (int64_t)v : INT64_MIN;
}
static inline int64_t f32_to_i64(float v) {
  return v >= -0x1p63f && v < 0x1p63f ? (int64_t)v : INT64_MIN;
}

/* ---- typed loops ------------------------------------------------------- */

/* A function that dm_convert calls: copies of these switches for a stride of 1 are 20 KiB. */
#define APART __attribute__((noinline))

/* Row of a load: READ is an expression in v, an element of type SRC. */
#define LOAD_CASE(DTYPE, SRC, READ)   \
  case DTYPE: {                       \
    const SRC *p = src;               \
    for (int64_t i = 0; i < n; i++) { \
      const SRC v = p[i * stride];    \
      dst[i] = READ;                  \
    }                                 \
    return;                           \
  }

/* Row of a store: WRITE is an expression in v, an element of src. */
#define STORE_CASE(DTYPE, DST, WRITE) \
  case DTYPE: {                       \
    DST *p = dst;                     \
    for (int64_t i = 0; i < n; i++) { \
      const REAL v = src[i];          \
      p[i * stride] = WRITE;          \
    }                                 \
    return;                           \
  }

/* One element n times: it is read once, and filling is what vector units do. */
#define LOAD_ONE(NAME)                               \
  if (stride == 0 && n > 1) {                        \
    NAME(from, src, 1, 1, dst);                      \
    for (int64_t i = 1; i < n; i++) dst[i] = dst[0]; \
    return;                                          \
  }

/* The rows of integer dtypes; any byte but 0 is a true bool. */
#define LOAD_INTS(REAL)                       \
  LOAD_CASE(DM_BOOL, uint8_t, (REAL)(v != 0)) \
  LOAD_CASE(DM_U8, uint8_t, (REAL)v)          \
  LOAD_CASE(DM_I8, int8_t, (REAL)v)           \
  LOAD_CASE(DM_I16, int16_t, (REAL)v)         \
  LOAD_CASE(DM_I32, int32_t, (REAL)v)         \
  LOAD_CASE(DM_I64, int64_t, (REAL)v)

#define STORE_INTS(TO_I64)                        \
  STORE_CASE(DM_BOOL, uint8_t, v != 0)            \
  STORE_CASE(DM_U8, uint8_t, (uint8_t)TO_I64(v))  \
  STORE_CASE(DM_I8, int8_t, (int8_t)TO_I64(v))    \
  STORE_CASE(DM_I16, int16_t, (int16_t)TO_I64(v)) \
  STORE_CASE(DM_I32, int32_t, (int32_t)TO_I64(v)) \
  STORE_CASE(DM_I64, int64_t, TO_I64(v))

/* Rows of low floats: WIDEN goes on from float32, and a store rounds once more from there. */
#define LOAD_LOW(WIDEN, E, S, BITS, ...) LOAD_CASE(DM_##E, BITS, WIDEN(dm_##S##_to_f32(v)))
#define STORE_LOW(X, E, S, BITS, ...) STORE_CASE(DM_##E, BITS, dm_f32_to_##S((float)v))
#define STORE_FLOATS                  \
  DM_LOW_DTYPES(STORE_LOW, )          \
  STORE_CASE(DM_F32, float, (float)v) \
  STORE_CASE(DM_F64, double, (double)v)

#define LOAD_DENSE(X, E, S, ...)      \
  case DM_##E:                        \
    table()->S##_to_f32(src, n, dst); \
    return;
#define STORE_DENSE(X, E, S, ...) \
  case DM_##E: table()->f32_to_##S(src, n, dst); return;

/* Any dtype to float32: dense rows of low floats by the vector forms, the rest element by
   element. */
void dm_load_f32(dm_DType from, const void *src, int64_t stride, int64_t n, float *dst) {
  LOAD_ONE(dm_load_f32)
  if (stride == 1 && n > 0) {
    switch (from) {
    case DM_F32:
      memcpy(dst, src, (size_t)n * 4);
      return;
      DM_LOW_DTYPES(LOAD_DENSE, )
    default: break;
    }
  }
  switch (from) {
    LOAD_INTS(float)
    DM_LOW_DTYPES(LOAD_LOW, (float))
    LOAD_CASE(DM_F32, float, v)
    LOAD_CASE(DM_F64, double, (float)v)
  default: return;
  }
}

/* Any dtype to float64, exactly but for large int64, which are rounded. */
APART void dm_load_f64(dm_DType from, const void *src, int64_t stride, int64_t n, double *dst) {
  LOAD_ONE(dm_load_f64)
  switch (from) {
    LOAD_INTS(double)
    DM_LOW_DTYPES(LOAD_LOW, (double))
    LOAD_CASE(DM_F32, float, (double)v)
    LOAD_CASE(DM_F64, double, v)
  default: return;
  }
}

/* Any dtype to int64; floats are truncated. */
APART void dm_load_i64(dm_DType from, const void *src, int64_t stride, int64_t n,
                       int64_t *dst) {
  LOAD_ONE(dm_load_i64)
  switch (from) {
    LOAD_INTS(int64_t)
    DM_LOW_DTYPES(LOAD_LOW, f32_to_i64)
    LOAD_CASE(DM_F32, float, f32_to_i64(v))
    LOAD_CASE(DM_F64, double, f64_to_i64(v))
  default: return;
  }
}

#define ROWS_CASE(X, E, S, ...) \
  case DM_##E: table()->f32_rows_to_##S(rows, dst, dst_step); return;
void dm_store_rows_f32(dm_DType to, void *dst, int64_t dst_step, const dm_Rows *rows) {
  switch (to) {
    DM_LOW_DTYPES(ROWS_CASE, )
  default: return;
  }
}

#define REAL float
/* Dense rows of float32 and of low floats take the vector forms, all others the typed loops. */
void dm_store_f32(dm_DType to, void *dst, int64_t stride, int64_t n, const float *src) {
  if (stride == 1 && n > 0) {
    switch (to) {
    case DM_F32:
      memcpy(dst, src, (size_t)n * 4);
      return;
      DM_LOW_DTYPES(STORE_DENSE, )
    case DM_BOOL: table()->f32_to_bool(src, n, dst); return;
    default: break;
    }
  }
  switch (to) {
    STORE_INTS(f32_to_i64)
    STORE_FLOATS
  default: return;
  }
}
#undef REAL

#define REAL double
/* Float64 to any dtype. 16 bits are rounded twice, by way of float32, as PyTorch
   does. */
APART void dm_store_f64(dm_DType to, void *dst, int64_t stride, int64_t n, const double *src) {
  if (to == DM_BOOL && stride == 1) {
    table()->f64_to_bool(src, n, dst);
    return;
  }
  switch (to) {
    STORE_INTS(f64_to_i64)
    STORE_FLOATS
  default: return;
  }
}
#undef REAL

#define REAL int64_t
/* Integers are cut to their low bits, which is how C and PyTorch narrow them. */
APART void dm_store_i64(dm_DType to, void *dst, int64_t stride, int64_t n, const int64_t *src) {
  if (to == DM_BOOL && stride == 1) {
    table()->i64_to_bool(src, n, dst);
    return;
  }
  switch (to) {
    STORE_INTS()
    STORE_FLOATS
  default: return;
  }
}
#undef REAL
#undef LOAD_CASE
#undef STORE_CASE
#undef LOAD_INTS
#undef STORE_INTS
#undef LOAD_LOW
#undef STORE_LOW
#undef STORE_FLOATS
#undef LOAD_DENSE
#undef STORE_DENSE

/* ---- any to any --------------------------------------------------------- */

enum { BLOCK = 512 }; /* elements that pass through the stack at a time */

/* Between two types that are not float32: by way of the compute type of `from`. */
static void convert_block(dm_DType from, const void *src, dm_DType to, void *dst, int64_t n) {
  union {
    float f32[BLOCK];
    double f64[BLOCK];
    int64_t i64[BLOCK];
  } mid;
  switch (dm_compute_dtype(from)) {
  case DM_F32:
    dm_load_f32(from, src, 1, n, mid.f32);
    dm_store_f32(to, dst, 1, n, mid.f32);
    return;
  case DM_F64:
    dm_load_f64(from, src, 1, n, mid.f64);
    dm_store_f64(to, dst, 1, n, mid.f64);
    return;
  default: dm_load_i64(from, src, 1, n, mid.i64); dm_store_i64(to, dst, 1, n, mid.i64);
  }
}

/* Equal types are copied, a type to compute in on either side needs one pass, and other pairs
   go through a block on the stack. */
void dm_convert(dm_DType from, const void *src, dm_DType to, void *dst, int64_t n) {
  if (n <= 0) return;
  const int64_t in = dm_dtype_size(from), out = dm_dtype_size(to);
  if (from == to) {
    memcpy(dst, src, (size_t)(n * in));
  } else if (to == DM_F32) {
    dm_load_f32(from, src, 1, n, dst);
  } else if (from == DM_F32) {
    dm_store_f32(to, dst, 1, n, src);
  } else if (from == DM_F64) {
    dm_store_f64(to, dst, 1, n, src);
  } else if (from == DM_I64) {
    dm_store_i64(to, dst, 1, n, src);
  } else if (to == DM_F64) {
    dm_load_f64(from, src, 1, n, dst);
  } else if (to == DM_I64) {
    dm_load_i64(from, src, 1, n, dst);
  } else {
    for (int64_t i = 0; i < n; i += BLOCK)
      convert_block(from, (const char *)src + i * in, to, (char *)dst + i * out,
                    dm_min_i64(BLOCK, n - i));
  }
}
