/* Dense inputs for the kernels that want them. */
#ifndef DM_DENSE_H
#define DM_DENSE_H

#include "engine/op.h"

/* t itself, one reference more, when its elements lie densely in row-major
   order; else a copy that has them so. Never recorded: kernels call it. */
static inline dm_status dm_dense_new(dm_Tensor *t, dm_Tensor **out) {
  if (dm_tensor_is_contiguous(t)) {
    *out = dm_tensor_ref(t);
    return DM_OK;
  }
  dm_Modes *m = dm_modes();
  const bool grad = m->grad;
  m->grad = false;
  const dm_status st = dm_call(DM_OP_clone, 1, &t, NULL, out);
  m->grad = grad;
  return st;
}

#endif
