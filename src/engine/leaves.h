/* What a step that a graph records does to leaves: parameters and other tensors that require a
   gradient. Launches repeat the device's work alone, at the addresses of the capture. These
   records say whether a launch would find there what the step would, and do to the handles what
   the step does: gradients, versions, and the marks of copies in other layouts. */
#ifndef DM_LEAVES_H
#define DM_LEAVES_H

#include <stdatomic.h>

#include "engine/op.h"

/* A copy that a tensor keeps (dm_Tensor.low, .last). */
typedef struct dm_LeafCopy {
  const void *data; /* of one that was valid before the step, so that it may be read; or NULL */
  bool is_valid;    /* after the step */
} dm_LeafCopy;

typedef struct dm_Leaf {
  dm_Tensor *t; /* owned */
  const void *data;
  uint32_t gen, version, rise; /* rise: of the version, in the step */
  bool requires_grad;
  uint8_t low_dtype; /* after the step */
  dm_LeafCopy low, last;
  /* The gradient: whether the step reads or writes it, and whether it drops it before. */
  bool is_touched, is_dropped;
  const void *grad_data; /* before the step; NULL: there was none */
  dm_Tensor *grad;       /* owned; after the step, where it is another one; or NULL */
  bool is_replaced;
  uint8_t grad_flags;
} dm_Leaf;

typedef struct dm_Leaves {
  dm_Leaf *list;
  int64_t n, capacity;
  bool has_failed; /* memory lacked for a record */
} dm_Leaves;

/* Notes leaves of this thread in l, until the end. */
void dm_leaves_begin(dm_Leaves *l);
/* keep: the step is as it was recorded; else gradients and copies that it never computed go. */
void dm_leaves_end(dm_Leaves *l, bool keep);

/* Whether launches find what the capture found. Copies of weights that were written since are
   brought up to date. */
dm_status dm_leaves_ready(const dm_Leaves *l, bool *ready);
/* After a launch. */
void dm_leaves_launched(const dm_Leaves *l);
void dm_leaves_clear(dm_Leaves *l);

extern atomic_int dm_leaves_noting; /* how many threads note leaves */
void dm_leaves_note_inputs(int n, dm_Tensor *const *in);
void dm_leaves_note_grad(dm_Tensor *t, bool drops);

static inline bool dm_leaves_on(void) {
  return DM_UNLIKELY(atomic_load_explicit(&dm_leaves_noting, memory_order_relaxed) > 0);
}
/* Inputs of a call. */
static inline void dm_leaves_see(int n, dm_Tensor *const *in) {
  if (dm_leaves_on()) dm_leaves_note_inputs(n, in);
}
/* t.grad is about to be read or written, or to be dropped. */
static inline void dm_leaves_touch(dm_Tensor *t) {
  if (dm_leaves_on()) dm_leaves_note_grad(t, false);
}
static inline void dm_leaves_drop(dm_Tensor *t) {
  if (dm_leaves_on()) dm_leaves_note_grad(t, true);
}

#endif
