/* Whoever watches ops go by: the profiler, the report on mixed precision. A
   host links its observers into the list that its modes point to. Without any
   a call pays for one look at an empty list. */
#ifndef DM_OBSERVE_H
#define DM_OBSERVE_H

#include "engine/op.h"

/* Tensors are borrowed for the time of the call. */
typedef struct dm_Event {
  /* NULL: a gradient that the host wrote (backward), or other work, without
     tensors: an optimizer's step, a range of the program */
  const dm_OpInfo *op;
  const char *name;
  bool backward;   /* a node's turn in the walk back; the ops it calls are events within it.
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
  /* in reverse order of the beginnings, but for ranges of several coroutines */
  void (*end)(void *ctx, const dm_Event *e);
  /* Or NULL. Around what is queued on a device other than the CPU; a failure in between
     leaves out the second one. */
  void (*work)(void *ctx, dm_Device dev, bool begins);
} dm_Observer;

static inline bool dm_observed(void) { return DM_UNLIKELY(*dm_modes()->observers != NULL); }
void dm_observe_begin(const dm_Event *e);
void dm_observe_end(const dm_Event *e);
void dm_observe_work(dm_Device dev, bool begins);

/* Not from within begin or end. An observer that comes or goes while an op is
   under way is told of only one of the two. */
void dm_observer_add(dm_Observer *o);
void dm_observer_remove(dm_Observer *o);

#endif
