/* Short names for the calls of compositions that sort, count and gather. */
#ifndef DM_ORDER_H
#define DM_ORDER_H

#include "op/along.h"
#include "op/shape/create.h"
#include "op/index/index.h"
#include "op/pointwise/pointwise.h"
#include "op/reduce/reduce.h"
#include "op/sort/sort.h"

static inline dm_Tensor *x_narrow(dm_X *x, dm_Tensor *t, int64_t dim, int64_t start,
                                  int64_t n) {
  return dm_x(x, DM_OP_narrow, &(int64_t[3]){dim, start, n}, 1, t);
}
static inline dm_Tensor *x_cat(dm_X *x, dm_Tensor *a, dm_Tensor *b, int64_t dim) {
  return dm_x(x, DM_OP_cat, &dim, 2, a, b);
}
static inline dm_Tensor *x_gather(dm_X *x, dm_Tensor *t, dm_Tensor *at, int64_t dim) {
  return dm_x(x, DM_OP_gather, &dim, 2, t, at);
}
static inline dm_Tensor *x_cumsum(dm_X *x, dm_Tensor *t, int64_t dim) {
  return dm_x(x, DM_OP_cumsum, &(dm_CumsumAttr){dim, -1}, 1, t);
}
/* t + n for integer tensors. */
static inline dm_Tensor *x_moved(dm_X *x, dm_Tensor *t, int64_t n) {
  return n ? x_add(x, t, x_whole(x, n)) : t;
}
/* n elements of value v on like's device. */
static inline dm_Tensor *x_full(dm_X *x, int64_t n, double v, dm_DType dtype,
                                const dm_Tensor *like) {
  const dm_FullAttr a = {{1, {n}}, v, dtype, dm_device_code(like->device)};
  return dm_x(x, DM_OP_full, &a, 0);
}
static inline dm_Tensor *x_zeros_of(dm_X *x, dm_Tensor *like, dm_DType dtype) {
  return dm_x(x, DM_OP_zeros_like, &(dm_LikeAttr){dtype, -1}, 1, like);
}
static inline dm_Tensor *x_ones_of(dm_X *x, dm_Tensor *like, dm_DType dtype) {
  return dm_x(x, DM_OP_ones_like, &(dm_LikeAttr){dtype, -1}, 1, like);
}
/* `to` with 1 added at the positions `at` along dim. */
static inline dm_Tensor *x_count(dm_X *x, dm_Tensor *to, dm_Tensor *at, int64_t dim) {
  return dm_x(x, DM_OP_scatter_add, &dim, 3, to, at, x_ones_of(x, at, DM_I64));
}
/* out[0]: t sorted along dim in ascending order, stably; out[1]: the positions the
   elements came from. */
static inline bool x_sort(dm_X *x, dm_Tensor *t, int64_t dim, dm_Tensor **out) {
  return x_call(x, DM_OP_sort, &(dm_SortAttr){dim, false, true}, 1, &t, out);
}
static inline dm_Tensor *x_flat(dm_X *x, dm_Tensor *t) { return x_reshape(x, t, 1, &t->numel); }
/* float32 for low floats, else t's own dtype. */
static inline dm_DType wide_of(const dm_Tensor *t) {
  return dm_is_low((dm_DType)t->dtype) ? DM_F32 : (dm_DType)t->dtype;
}

/* bool, true where a sorted element differs from the one before it and at the first of
   each slice. */
dm_Tensor *x_run_starts(dm_X *x, dm_Tensor *sorted, int64_t dim);

#endif
