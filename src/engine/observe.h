/* Observers see every call begin and end: the profiler and amp.report are two. A host links
   them into the list that its thread states point to. A call without observers costs one test
   of an empty list. PyTorch's counterpart is RecordFunction. */
#ifndef DM_OBSERVE_H
#define DM_OBSERVE_H

#include "engine/op.h"

/* Tensors are borrowed for the time of the call. */
typedef struct dm_Event {
  /* NULL for a gradient that the host wrote (then `backward` is set), and for work without
     tensors: an optimizer's step, a range that the program named */
  const dm_OpInfo *op;
  const char *name;
  bool backward;   /* a node's turn in the backward pass; the ops it calls are events within it.
                      in: the gradients of its outputs, out: those of its inputs */
  bool autocast;   /* a cast that autocast makes */
  bool inplace;    /* in[0] is out[0] */
  int n_in, n_out; /* n_out is 0 at the beginning, and after a failure */
  uint64_t node;   /* of a node's turn: its number (seq) */
  dm_Tensor *const *in, *const *out; /* single ones may be NULL */
} dm_Event;

typedef struct dm_Observer {
  struct dm_Observer *next;
  void *ctx;
  void (*begin)(void *ctx, const dm_Event *e);
  /* In reverse order of the beginnings, except for ranges of several coroutines. */
  void (*end)(void *ctx, const dm_Event *e);
  /* Or NULL. Called before and after a kernel is queued on a device other than the CPU; not
     after, if the kernel failed. */
  void (*work)(void *ctx, dm_Device dev, bool begins);
} dm_Observer;

static inline bool dm_observed(void) {
  return DM_UNLIKELY(*dm_thread_state()->observers != NULL);
}
void dm_observe_begin(const dm_Event *e);
void dm_observe_end(const dm_Event *e);
void dm_observe_work(dm_Device dev, bool begins);

/* Not to be called from within begin or end. An observer that is added or removed while an op
   runs sees only its end, or only its beginning. */
void dm_observer_add(dm_Observer *o);
void dm_observer_remove(dm_Observer *o);

#endif
