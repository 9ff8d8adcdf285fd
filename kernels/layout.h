/* Layouts of (N, C, H, W): rows, as all tensors have, or channels last, which convolutions and
   the ops between them use. */
#ifndef DM_KERNELS_LAYOUT_H
#define DM_KERNELS_LAYOUT_H

#include "kernels/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "core/copy.h"

/* Returns t itself, with one reference more, if it is channels last; else a channels-last
   copy. */
dm_status dm_last_new(dm_Tensor *t, dm_Tensor **out);

/* Whether t is channels last and not contiguous as well. */
static inline bool dm_lies_last(const dm_Tensor *t) {
  return dm_tensor_is_channels_last(t) && !dm_tensor_is_contiguous(t);
}

/* Returns t dense in rows or channels last. */
static inline dm_status dm_layout_new(dm_Tensor *t, bool last, dm_Tensor **out) {
  return last ? dm_last_new(t, out) : dm_dense_new(t, out);
}

/* Whether both are dense in the same layout. */
static inline bool dm_lie_alike(const dm_Tensor *a, const dm_Tensor *b) {
  return (dm_tensor_is_contiguous(a) && dm_tensor_is_contiguous(b)) ||
         (dm_tensor_is_channels_last(a) && dm_tensor_is_channels_last(b));
}

#ifdef __cplusplus
}
#endif
#endif
