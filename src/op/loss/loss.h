/* What the losses with labels are told, for the kernels of every device. */
#ifndef DM_LOSS_H
#define DM_LOSS_H

#include "engine/op.h"

enum { DM_LOSS_NONE, DM_LOSS_MEAN, DM_LOSS_SUM, DM_LOSS_BATCHMEAN };

typedef struct dm_NllAttr {
  dm_OptNum ignore;
  int64_t reduction;
} dm_NllAttr;

typedef struct dm_CrossAttr {
  dm_OptNum ignore;
  int64_t reduction;
  double smoothing;
} dm_CrossAttr;

typedef struct dm_NllBackwardAttr {
  dm_OptNum ignore;
  int64_t reduction;
  dm_Ints shape;
} dm_NllBackwardAttr;

typedef struct dm_LossRows {
  int64_t n, c, inner; /* rows n = N * inner; x[i / inner][class][i % inner] */
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
