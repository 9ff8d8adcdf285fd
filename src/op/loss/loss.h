/* Attributes of the losses with labels and the geometry of their rows, for the
   kernels of every device. */
#ifndef DM_LOSS_H
#define DM_LOSS_H

#include "op/along.h"
#include "engine/op.h"

/* The values of `reduction`; batchmean is kl_div's. */
enum { DM_LOSS_NONE, DM_LOSS_MEAN, DM_LOSS_SUM, DM_LOSS_BATCHMEAN };

/* ignore: the label whose rows count nothing, as the caller counts labels. */
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

#endif
