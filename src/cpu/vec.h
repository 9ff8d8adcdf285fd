/* Vector functions over arrays: plain C first, then whatever this processor
   has. One struct of pointers, filled once. */
#ifndef DM_VEC_H
#define DM_VEC_H

#include "base/dtype.h"
#include "cpu/rows.h"

/* Reads n elements of dtype, `stride` elements apart, into a dense array of
   the compute type, and back (rounding to nearest even; float to integer
   truncates and saturates nothing; bool becomes != 0). */
void dm_load_f32(dm_DType from, const void *src, int64_t stride, int64_t n, float *dst);
void dm_load_f64(dm_DType from, const void *src, int64_t stride, int64_t n, double *dst);
void dm_load_i64(dm_DType from, const void *src, int64_t stride, int64_t n, int64_t *dst);
void dm_store_f32(dm_DType to, void *dst, int64_t stride, int64_t n, const float *src);
void dm_store_f64(dm_DType to, void *dst, int64_t stride, int64_t n, const double *src);
void dm_store_i64(dm_DType to, void *dst, int64_t stride, int64_t n, const int64_t *src);

/* Rounds the rows to `to`, a low float, at rows of dst that lie dst_step elements apart. The
   floats have `more` added then. */
void dm_store_rows_f32(dm_DType to, void *dst, int64_t dst_step, const dm_Rows *rows);

/* Dense copies with conversion between any two dtypes. A float64 reaches
   16 bits by way of float32, as in PyTorch; int64 keeps its bits. */
void dm_convert(dm_DType from, const void *src, dm_DType to, void *dst, int64_t n);

#endif
