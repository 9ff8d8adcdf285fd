/* Layouts: (N,C,H,W) lies in rows, as everything, or channels last, as convolutions and
   what stands between them have it. */
#ifndef DM_KERNELS_LAYOUT_H
#define DM_KERNELS_LAYOUT_H

#include "kernels/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "core/copy.h"

/* t itself, one reference more, when its channels lie last; else a copy that has them so. */
dm_status dm_last_new(dm_Tensor *t, dm_Tensor **out);

/* Do its channels lie last, and not in rows as well? */
static inline bool dm_lies_last(const dm_Tensor *t) {
  return dm_tensor_is_channels_last(t) && !dm_tensor_is_contiguous(t);
}

/* t dense in that order. */
static inline dm_status dm_layout_new(dm_Tensor *t, bool last, dm_Tensor **out) {
  return last ? dm_last_new(t, out) : dm_dense_new(t, out);
}

/* Dense both, in one order? */
static inline bool dm_lie_alike(const dm_Tensor *a, const dm_Tensor *b) {
  return (dm_tensor_is_contiguous(a) && dm_tensor_is_contiguous(b)) ||
         (dm_tensor_is_channels_last(a) && dm_tensor_is_channels_last(b));
}

#ifdef __cplusplus
}
#endif
#endif
