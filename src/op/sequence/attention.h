/* What attention's kernels are told, on every device. */
#ifndef DM_ATTENTION_H
#define DM_ATTENTION_H

#include "op/random/random.h"

/* drop.p is 0 without dropout; the draw's elements are those of (batch, L, S). On other
   devices than the CPU it comes with counters: input 4, in the backward 7. */
typedef struct dm_AttentionAttr {
  int64_t is_causal;
  double scale;
  dm_DropAttr drop;
} dm_AttentionAttr;

#endif
