/* Works whose tensors lie on a device, and go over its vendor's library (NCCL) from there.

   Before the first such work of a group its ranks tell one another by MPI which device each has
   and what its library lacks. Where one of them cannot, or two of them share a device, the
   group goes through the host for good, as works on the CPU do; else it is linked. The ranks
   still agree on each work by MPI before the library gets it.

   The script's thread goes on when a work is queued on the device: what it queues later waits
   there. The communication thread observes the work until it is done. */
#ifndef DM_DIST_LINK_H
#define DM_DIST_LINK_H

#include "dist/work.h"

/* Whether a work of that kind goes over the group's link; op counts for reductions alone. */
bool dm_link_takes(const dm_Group *g, dm_WorkKind kind, dm_RankOp op, const dm_Tensor *t);
/* Whether reductions are to be in the order of the ranks, which a link does not promise. */
void dm_link_set_ordered(bool ordered);

/* The script's thread: sets up a work DM_WORK_CONNECT for the tensor's device. */
dm_status dm_link_prepare(dm_Work *w, dm_Device dev);
/* The script's thread: notes how far its queue is, before the work is posted. */
dm_status dm_link_mark(dm_Work *w);
/* The script's thread, when the work is queued or done: what it queues later waits for it. */
dm_status dm_link_follow(const dm_Work *w);

/* The communication thread: a step of a work DM_WORK_CONNECT after its agreement, of one that
   splits a linked group, or of one that the link takes; false: nothing has moved. */
bool dm_link_advance(dm_Work *w, const dm_Transport *t);
/* Ends the group's link; well: all ranks have done all that they asked for. */
void dm_link_end(dm_Group *g, bool well);

#endif
