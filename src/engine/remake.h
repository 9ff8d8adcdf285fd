/* Large results that the tape does not keep, because they are cheap to compute again.

   A row with the flag F_CHEAP (activations, norms, casts, copies, products of elements) reads
   tensors that its node keeps for its own gradient anyway. Where another node would save such
   a result, from dm_remake_bytes bytes on, it saves nothing; when the backward pass comes to
   it, the op of the maker, the node that the result came from, runs again (rerun.h) on what
   was kept. The bits are those of the forward pass, and an input that was changed in place is
   found by its version, as for any gradient. A change of the result itself is no error, since
   nobody reads it again. The result may pass through views, casts and copies before it is
   saved, which then run again, too. T. Chen et al. 2016 ("drop the results of low cost
   operations"); llm.c recomputes GELU and layer norms in this way, PyTorch keeps all of them.

   The sum that add_norm's own gradient reads is computed again as well, with the norm, where x
   is kept by the node that it came from and delta takes less memory than the sum: every other
   sum of a residual stream of float32 with branches of 16 bits.

   Invariants: a maker keeps its saved tensors while n_user > 0, also when its own turn in a
   backward pass is over; in a pass the users come before their makers. */
#ifndef DM_REMAKE_H
#define DM_REMAKE_H

#include "engine/node.h"
#include "engine/saved.h"

/* The output of n that can be computed again: the norm, of a sum and its norm. */
static inline int dm_remake_output(const dm_Node *n) {
  return n->op == &dm_ops[DM_OP_add_norm];
}
/* Does n's op read input i when it runs again? A sum and its norm run again on the sum if that
   is kept. */
static inline bool dm_remake_reads(const dm_Node *n, int i) {
  return n->given >> i & 1 && (i > 1 || n->sums_again || n->op != &dm_ops[DM_OP_add_norm]);
}

/* From how many bytes on a result is not kept; INT64_MAX: every result is. */
extern atomic_llong dm_remake_bytes;

/* At n's recording, before its outputs get it: notes whether n's op, run again on the same
   inputs, gives `out`, the output that dm_remake_output names, and how to tell whether that has
   changed since. */
void dm_remake_note(dm_Node *n, dm_Tensor *const *in, const dm_Tensor *out);
/* Can t, which a node is about to save, be computed again from what older nodes keep? */
bool dm_remake_can(const dm_Tensor *t);
/* The same for output 0 of n, t, which n's own gradient reads; not of a sum and its norm. */
bool dm_remake_can_own(const dm_Node *n, const dm_Tensor *t);
/* The same for the sum of add_norm's x and delta: is x kept anyway, and delta smaller? */
bool dm_remake_can_sum(const dm_Node *n, dm_Tensor *const *in, dm_Tensor *const *out);
/* Notes that n's input `from`, or its output `out`, is computed again (the other is -1). */
void dm_remake_save(dm_Node *n, dm_Saved *s, int from, int out);
/* The node whose output is what n saved as s, which is to be computed again. */
static inline dm_Node *dm_remake_maker(dm_Node *n, const dm_Saved *s) {
  return s->from >= 0 ? n->in[s->from].node : n;
}
/* Does n keep that input, or a way to it? */
static inline bool dm_remake_is_saved(const dm_Node *n, int i) {
  return n->saved_in && (n->saved_in[i].t || n->saved_in[i].remade);
}
/* Does the node at the edge's end keep the tensor itself, as softmax keeps its result? */
static inline bool dm_remake_end_keeps(const dm_Edge *e) {
  const dm_Saved *s = e->node->saved_out;
  return s && s[e->out].t;
}
/* Frees what n computed again. */
static inline void dm_remake_forget(dm_Node *n) {
  for (int i = 0; i < 2; i++) dm_tensor_unref(&n->again[i]);
}
/* Drops what n saved, or leaves that to the last node that needs it. Was there anything? */
bool dm_remake_drop(dm_Node *n);

#endif
