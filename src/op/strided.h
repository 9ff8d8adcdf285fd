/* Borrowed views: another shape and other strides on a tensor's storage, for the
   duration of one kernel. Such a view lives on the stack, holds no reference to the
   storage and is never recorded on the tape. */
#ifndef DM_STRIDED_H
#define DM_STRIDED_H

#include <string.h>

#include "engine/op.h"

/* A view of t's storage with this shape, these strides and this offset, all in
   elements. Strides of 0 (broadcasting) and negative strides (flip) are allowed. */
static inline dm_Tensor dm_view_of(const dm_Tensor *t, int ndim, const int64_t *shape,
                                   const int64_t *stride, int64_t offset) {
  dm_Tensor w;
  memset(&w, 0, sizeof w);
  w.dtype = t->dtype;
  w.ndim = (uint8_t)ndim;
  w.device = t->device;
  w.offset = offset;
  w.storage = t->storage;
  w.shape[0] = w.stride[0] = 1;
  for (int d = 0; d < ndim; d++) {
    w.shape[d] = shape[d];
    w.stride[d] = stride[d];
  }
  w.numel = dm_numel(ndim, shape);
  return w;
}

/* A view of t broadcast to `shape`: dims that t lacks, or has with size 1, get stride
   0. */
static inline dm_Tensor dm_view_expanded(const dm_Tensor *t, int ndim, const int64_t *shape) {
  int64_t stride[DM_MAX_DIM];
  for (int d = 0; d < ndim; d++) {
    const int dd = d - (ndim - t->ndim);
    stride[d] = dd < 0 || t->shape[dd] == 1 ? 0 : t->stride[dd];
  }
  return dm_view_of(t, ndim, shape, stride, t->offset);
}

#ifndef __cplusplus
/* Copies src into dst with broadcasting and dtype conversion. Both are CPU tensors or
   borrowed views. */
static inline dm_status dm_copy_to(dm_Tensor *dst, dm_Tensor *src) {
  dm_Tensor *in[2] = {dst, src};
  dm_Call c = {.op = &dm_ops[DM_OP_copy], .n_in = 2, .n_out = 1, .in = in};
  c.out[0] = dst;
  return copy_cpu(&c);
}
#endif

#endif
