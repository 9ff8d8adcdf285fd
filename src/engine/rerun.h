/* Runs an op of the forward pass again, for a result that the tape did not keep: remake.h. */
#ifndef DM_RERUN_H
#define DM_RERUN_H

#include "engine/node.h"

/* What n saved as s, which is remade: a new reference, without history. The node that it came
   from keeps it for its other users. */
dm_status dm_rerun_for(dm_Node *n, const struct dm_Saved *s, dm_Tensor **to);

#endif
