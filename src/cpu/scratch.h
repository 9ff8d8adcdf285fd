/* Room for a kernel's own use, kept by its thread from one call to the next: fresh pages
   cost more than most of what is computed in them. */
#ifndef DM_SCRATCH_H
#define DM_SCRATCH_H

#include "base/base.h"

/* A buffer of this thread that lives until the thread ends or the next call
   with the same slot; NULL when nothing is left. */
typedef enum dm_ScratchSlot {
  DM_SCRATCH_JOB,    /* of a product or convolution */
  DM_SCRATCH_TASK,   /* of one of its tasks */
  DM_SCRATCH_MATRIX, /* of what calls products: a convolution, attention, an RNN */
  DM_N_SCRATCH
} dm_ScratchSlot;
void *dm_scratch(dm_ScratchSlot slot, int64_t n_bytes);
void dm_scratch_trim(dm_ScratchSlot slot); /* gives an outsized one back */

#endif
