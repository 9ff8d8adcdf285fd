/* How attention's results lie in memory. */
#ifndef DM_OP_ATTENTION_H
#define DM_OP_ATTENTION_H

#include "core/tensor.h"

/* Does x (N, H, L, E) have the order N, L, H, E in memory, as heads have that were split by a
   view? What attention makes with its shape then has that order, too, and the view that joins
   the heads again takes no copy, forward or backward. */
static inline bool dm_heads_follow(const dm_Tensor *x) {
  return x->ndim == 4 && x->stride[3] == 1 && x->stride[1] >= x->shape[3] &&
         x->stride[1] < x->stride[2];
}

#endif
