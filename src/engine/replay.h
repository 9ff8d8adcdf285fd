/* Work that keeps nothing for its gradients and is run again when they ask:
   memory for time. While the stretch runs first, the tape notes for each tensor
   that it would keep only its number in the order; at the first question the
   host runs the stretch a second time, and what is then saved is handed out by
   those numbers. The graph itself is the ordinary one. Stretches may nest: the
   inputs of an inner one are kept like any tensor, so the outer makes them. */
#ifndef DM_REPLAY_H
#define DM_REPLAY_H

#include "engine/tape.h"

typedef struct dm_Replay dm_Replay;

/* Runs the stretch again on tensors without history that require what the inputs
   did; recording is the host's to switch on, and all else to be as it was. */
typedef dm_status dm_ReplayFn(void *ctx, int n, dm_Tensor **in);

/* The caller gets one reference, and ctx goes (drop) with the last; on failure
   ctx stays the caller's. */
dm_status dm_replay_new(int n, dm_Tensor *const *in, dm_ReplayFn *run, void (*drop)(void *ctx),
                        void *ctx, dm_Replay **out);
void dm_replay_unref(dm_Replay **r);
/* The first run is over: from now on a second one must save as many. */
void dm_replay_end(dm_Replay *r);

/* Gives t the next number, and the caller a reference to r; only in a second run
   is t kept. */
dm_status dm_replay_save(dm_Replay *r, const dm_Tensor *t, uint32_t version, uint32_t *number);
/* The tensor of that number, a handle of the caller's alone. */
dm_status dm_replay_take(dm_Replay *r, uint32_t number, dm_Tensor **to, uint32_t *version);

/* How far the current stretch has come; and back there, after a call that failed
   half way and will be tried once more. */
int dm_replay_mark(void);
void dm_replay_rewind(int mark);

#endif
