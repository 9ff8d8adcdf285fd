/* Attributes of attention's kernels, on every device. */
#ifndef DM_ATTENTION_H
#define DM_ATTENTION_H

#include "op/random/random.h"

/* drop.p is 0 without dropout; the elements of the draw are those of (batch, L, S).
   On devices other than the CPU the generator's state is a tensor, counters: input
   4, and input 7 of the backward op. */
typedef struct dm_AttentionAttr {
  int64_t is_causal;
  double scale;
  dm_DropAttr drop;
} dm_AttentionAttr;

#endif
