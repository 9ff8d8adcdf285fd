/* The tape: it records calls as nodes (node.h) while they run, so that backward.c can compute
   their gradients. It also owns what else belongs to a tensor's history: hooks, retain_grad,
   and the histories of views. */
#ifndef DM_TAPE_H
#define DM_TAPE_H

#include "engine/home.h"
#include "engine/node.h"
#include "engine/saved.h"

/* Does the gradient of this call read input i? A row's C0 counts only when another input
   requires a gradient. */
bool dm_saves_input(uint32_t save, int i, int n_in, dm_Tensor *const *in);
/* Records one call; its float outputs get the node. save_in, unless NULL, is saved in place
   of input 0: the old value of a tensor that the call changes in place. */
dm_status dm_record(const dm_Call *c, dm_Tensor *save_in);
/* The same for an op of one output, *out, which is already computed. */
dm_status dm_record_op(const dm_OpInfo *op, int n_in, dm_Tensor *const *in, const void *attr,
                       dm_Tensor **out, dm_Tensor *save_in);
/* The same for a gradient that the host wrote; saved[i] may be NULL. `name` is copied. */
dm_status dm_record_custom(const char *name, dm_Custom custom, int n_in, dm_Tensor *const *in,
                           int n_out, dm_Tensor **out, int n_saved, dm_Tensor *const *saved);

/* Rewrites the history of v's base, and v's own, after a recorded op changed the view v
   in place. */
dm_status dm_rebase(dm_Tensor *v);
/* Brings a view's history up to date with its base. */
dm_status dm_refresh_view(dm_Tensor *v);

/* The number that the next node gets. */
uint64_t dm_next_seq(void);
void dm_node_unref(dm_Node **n);
/* Drops the saved tensors: a second backward pass through n then fails. A node that saved none
   may be walked again. */
void dm_node_release_saved(dm_Node *n);

dm_status dm_add_hook(dm_Tensor *t, dm_Hook *hook);       /* takes hook on success */
dm_status dm_add_after_hook(dm_Tensor *t, dm_Hook *hook); /* of a leaf, likewise */
/* Takes off a hook of the node that the tensor had when it was added, or of a leaf (n NULL). */
void dm_remove_hook(dm_Node *n, dm_Tensor *leaf, int64_t id);
void dm_hook_unref(dm_Hook *hook);
dm_status dm_retain_grad(dm_Tensor *t);
/* Takes t's history, base and hooks away. */
void dm_detach_(dm_Tensor *t);

#endif
