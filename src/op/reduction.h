/* How the losses of elements become one. */
#ifndef DM_REDUCTION_H
#define DM_REDUCTION_H

/* The values of `reduction`; batchmean is kl_div's, and norm, the 2-norm, reduce_formula's. */
enum { DM_LOSS_NONE, DM_LOSS_MEAN, DM_LOSS_SUM, DM_LOSS_BATCHMEAN, DM_LOSS_NORM };

#endif
