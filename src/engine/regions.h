/* Gradients of regions of one tensor (narrow, select) that wait for one another in a backward
   pass, so that together they become the tensor's gradient by one copy each: queries, keys and
   values in the output of one linear, the chunks of a split. One after the other they would
   take a tensor of zeros, a copy and sums.

   Those that wait for one output of a node are of one op and dim, and share no element. What
   they leave out is 0. Whatever else comes for that output is added to what they make
   together, so that the order of sums stays that of the pass. */
#ifndef DM_REGIONS_H
#define DM_REGIONS_H

#include "engine/node.h"

/* Lets gy[0] of n, a node with the flag F_REGION, wait at the node that made its input: *waits,
   unless it shares elements with one that waits, or differs in kind. pass: whose gradients they
   are. */
dm_status dm_regions_add(const dm_Node *n, const void *pass, bool *waits);
/* Do gradients of that pass wait at n, for output `out` (-1: any)? */
bool dm_regions_wait(const dm_Node *n, const void *pass, int out);
/* Makes the gradient of those that wait at n, which becomes gy of their output; there is none
   so far. They wait no more, also after a failure. */
dm_status dm_regions_join(dm_Node *n);
/* Drops those that wait at n, if any do. */
void dm_regions_drop(dm_Node *n);

#endif
