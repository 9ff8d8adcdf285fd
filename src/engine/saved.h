/* The tensors that a node saves for its gradient, and checkpoints, which save none.

   A checkpoint (torch.utils.checkpoint, non-reentrant; T. Chen et al. 2016) trades time for
   memory. While its function runs for the first time, each tensor that the tape would save
   gets only a number, in the order of saving. When the backward pass asks for the first of
   them, the host runs the function again, and what the second run saves is handed out by
   those numbers. The graph is the ordinary one, made by the first run. Checkpoints may nest:
   the inputs of an inner one are saved like any tensor, so the outer one makes them again. */
#ifndef DM_SAVED_H
#define DM_SAVED_H

#include "core/tensor.h"

typedef struct dm_Replay dm_Replay;

/* A saved tensor, and its version when it was saved. Of an output an alias is saved: the
   tensor itself holds the node, which must not hold it. Inside a checkpoint only the number
   is saved, and of a result that is cheap to compute again (remake.h) nothing. The count gen
   tells whether a leaf's data were exchanged since: storage, shape, strides and dtype of a
   handle change in no other way. */
typedef struct dm_Saved {
  dm_Tensor *t;      /* owned */
  dm_Replay *replay; /* owned; makes the tensor again */
  uint32_t version, index, gen;
  int16_t from, out; /* which input or output of the node it is, or -1 */
  bool remade;       /* to be computed again */
} dm_Saved;

/* Saves t, which is input `from` or output `out` of the node (-1: it is not). */
dm_status dm_save(dm_Saved *s, dm_Tensor *t, uint32_t version, int from, int out);
/* A new reference to the saved tensor, made again if need be. Fails when the tensor was
   changed in place after it was saved, or its data were exchanged. The message names the
   tensor by its role in n, the node that saved it; NULL: a checkpoint did. */
dm_status dm_saved_get(const dm_Saved *s, const struct dm_Node *n, dm_Tensor **to);
/* Makes the bytes of a leaf that are away (dm_Lent) lent again; NULL: nobody lends any. The
   host sets it. */
extern dm_status (*dm_bring_bytes)(dm_Tensor *t);
/* Whether t, a tensor that was saved as s, is as it was then. */
static inline bool dm_saved_is_same(const dm_Saved *s, const dm_Tensor *t) {
  return t->storage->version == s->version && t->gen == s->gen;
}
/* Fails for t, which is not as it was when it was saved as s. */
dm_status dm_saved_refuse(const dm_Saved *s, const struct dm_Node *n, const dm_Tensor *t);
/* Drops the saved tensor, which is not one that is remade. */
void dm_saved_drop(dm_Saved *s);

/* Runs the checkpoint's function again, on leaves that require a gradient where the inputs
   did. The host switches recording on, and restores all other state of the first run. */
typedef dm_status dm_ReplayFn(void *ctx, int n, dm_Tensor **in);

/* The caller gets one reference. drop(ctx) is called when the last reference goes; on
   failure ctx stays the caller's. */
dm_status dm_replay_new(int n, dm_Tensor *const *in, dm_ReplayFn *run, void (*drop)(void *ctx),
                        void *ctx, dm_Replay **out);
void dm_replay_unref(dm_Replay **r);
/* Ends the first run: from now on a run that saves another number of tensors fails. */
void dm_replay_end(dm_Replay *r);

/* How many tensors the current checkpoint's run has saved (0 outside one); and a return to
   that count, for a call that failed half way and is tried once more. */
int dm_replay_mark(void);
void dm_replay_rewind(int mark);

#endif
