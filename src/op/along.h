/* A dense tensor cut along one dim: outer x n x inner. A line is the n
   elements that differ in that dim only; they lie `inner` elements apart. */
#ifndef DM_ALONG_H
#define DM_ALONG_H

#include "engine/op.h"

typedef struct dm_CumsumAttr {
  int64_t dim, dtype;
} dm_CumsumAttr;

typedef struct dm_Along {
  int64_t outer, n, inner;
} dm_Along;

static inline dm_Along dm_along_shape(int ndim, const int64_t *shape, int dim) {
  dm_Along a = {1, 1, 1};
  for (int d = 0; d < ndim; d++) *(d < dim ? &a.outer : d == dim ? &a.n : &a.inner) *= shape[d];
  return a;
}
/* dim as a rule has checked it; negative from the end. */
static inline dm_Along dm_along(const dm_Tensor *t, int64_t dim) {
  return dm_along_shape(t->ndim, t->shape, (int)(dim < 0 ? dim + t->ndim : dim));
}
static inline int64_t dm_along_lines(const dm_Along *a) { return a->outer * a->inner; }
/* The first element of line i. */
static inline int64_t dm_along_at(const dm_Along *a, int64_t i) {
  return i / a->inner * a->n * a->inner + i % a->inner;
}

#endif
