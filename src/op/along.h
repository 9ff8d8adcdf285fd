/* The dim of a call that a kernel runs along, for ops that treat every slice along a dim
   by itself (softmax, sort, cumsum). */
#ifndef DM_ALONG_H
#define DM_ALONG_H

#include "base/along.h"
#include "engine/op.h"

/* t as (outer, n, inner) for a dim that the op's rule has checked; a negative dim counts
   from the end. */
static inline dm_Along dm_along(const dm_Tensor *t, int64_t dim) {
  return dm_along_shape(t->ndim, t->shape, (int)(dim < 0 ? dim + t->ndim : dim));
}

#endif
