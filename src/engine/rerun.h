/* Runs an op of the forward pass again, for a result that the tape did not keep: remake.h. */
#ifndef DM_RERUN_H
#define DM_RERUN_H

#include "engine/node.h"

/* A new reference to n's output 0, without history. n keeps it for its other users. */
dm_status dm_rerun(dm_Node *n, dm_Tensor **out);

#endif
