/* Scratch memory: buffers that a kernel uses during one call and that its thread keeps for the
   next one. A fresh buffer would cost a page fault for each 4 KB, more than most of what is
   computed in it. A thread keeps at most 32 MB a slot (dm_scratch_trim gives back more) and
   frees its buffers when it ends. A slot has one user at a time: the three slots are the three
   levels of nesting, a kernel that calls products, the product, and its tasks. */
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

/* One buffer cut into parts, each on a cache line of its own. */
typedef struct dm_Arena {
  char *base; /* NULL: the parts are only measured */
  int64_t used;
} dm_Arena;
static inline void *dm_arena_take(dm_Arena *a, int64_t n_bytes) {
  void *const p = a->base ? a->base + a->used : NULL;
  a->used += (n_bytes + 63) / 64 * 64;
  return p;
}

/* Cuts the buffer of a slot into the parts that `carve` takes: carve runs twice, first to
   measure, then to store the addresses in `parts`. False when nothing is left. */
typedef void dm_CarveFn(const void *job, dm_Arena *a, void *parts);
bool dm_scratch_carve(dm_ScratchSlot slot, dm_CarveFn *carve, const void *job, void *parts);

#endif
