/* Attributes of the losses with labels and the geometry of their rows, for the
   kernels of every device. */
#ifndef DM_LOSS_H
#define DM_LOSS_H

#include "op/along.h"
#include "engine/op.h"

/* The values of `reduction`; batchmean is kl_div's. */
enum { DM_LOSS_NONE, DM_LOSS_MEAN, DM_LOSS_SUM, DM_LOSS_BATCHMEAN };

#endif
