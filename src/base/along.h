/* How kernels cut a dense tensor along one dim, on every device. */
#ifndef DM_BASE_ALONG_H
#define DM_BASE_ALONG_H

#include "base/base.h"

/* A tensor (outer, n, inner). A slice is the n elements that differ in the middle dim only;
   they lie `inner` elements apart. */
typedef struct dm_Along {
  int64_t outer, n, inner;
} dm_Along;

static inline dm_Along dm_along_shape(int ndim, const int64_t *shape, int dim) {
  dm_Along a = {1, 1, 1};
  for (int d = 0; d < ndim; d++) *(d < dim ? &a.outer : d == dim ? &a.n : &a.inner) *= shape[d];
  return a;
}
static inline int64_t dm_along_slices(const dm_Along *a) { return a->outer * a->inner; }
/* The first element of slice i. */
static inline int64_t dm_along_at(const dm_Along *a, int64_t i) {
  return i / a->inner * a->n * a->inner + i % a->inner;
}

/* The class scores of a loss, (C), (N,C) or (N,C,d1,...): n = N * inner rows of c scores.
   Row i begins at element i / inner * c * inner + i % inner; its scores lie `inner` apart. */
typedef struct dm_LossRows {
  int64_t n, c, inner;
} dm_LossRows;

static inline dm_LossRows dm_loss_rows(int ndim, const int64_t *shape) {
  dm_LossRows r = {1, shape[0], 1};
  if (ndim == 1) return r;
  r.c = shape[1];
  for (int d = 2; d < ndim; d++) r.inner *= shape[d];
  r.n = shape[0] * r.inner;
  return r;
}

#endif
