/* The tape: nodes that remember how a tensor was made, and the walk back.
   A node's number grows with creation, and its inputs are older than it is;
   so the walk takes nodes by falling number and needs no other order. */
#ifndef DM_TAPE_H
#define DM_TAPE_H

#include "engine/op.h"

/* Where the gradient of an input goes: to output `out` of a node, or into a
   leaf; to neither when the input needs none. */
typedef struct dm_Edge {
  struct dm_Node *node; /* owned */
  dm_Tensor *leaf;      /* owned */
  uint8_t out;
} dm_Edge;

/* A tensor kept for the gradient, and its version when it was kept. For an
   output an alias is kept: it may not hold the node that holds it. In a stretch
   that is to be run again nothing is kept but a place in the order of what was. */
typedef struct dm_Saved {
  dm_Tensor *t;             /* owned */
  struct dm_Replay *replay; /* owned; makes the tensor again */
  uint32_t version, index;
  int16_t from, out; /* which input or output of the node it is, or -1 */
} dm_Saved;

/* Called with the gradient that arrives; may replace it (*g owned by the
   caller; the hook unrefs the old one and gives a new reference). */
typedef struct dm_Hook {
  struct dm_Hook *next;
  int refs;     /* its list, and a walk that is about to call it */
  bool removed; /* by another hook of that walk: not called any more */
  int out;      /* which output of the node */
  int64_t id;
  dm_status (*call)(void *ctx, dm_Tensor **g);
  void (*drop)(void *ctx);
  void *ctx;
} dm_Hook;

/* A gradient written by the host: gets what was saved, and gy (NULL where none
   came); gives gx. It runs in the autocast state in which it was recorded. */
typedef struct dm_Custom {
  const char *name; /* borrowed from ctx */
  dm_status (*backward)(void *ctx, int n_saved, dm_Tensor **saved, int n_out, dm_Tensor **gy,
                        int n_in, dm_Tensor **gx);
  void (*drop)(void *ctx);
  void *ctx;
} dm_Custom;

typedef struct dm_Node {
  atomic_int refs;
  const dm_OpInfo *op; /* NULL for a custom one */
  uint64_t seq;
  uint32_t mark;         /* of the walk that is going on */
  int32_t n_in, n_saved; /* n_saved: of saved_in */
  uint8_t n_out, base;
  dm_CastState cast; /* of a custom one: autocast as it was */
  bool released;     /* saved tensors are gone: backward has been here */
  bool scales;       /* multiplies by a loss scale: the leaves below get scaled gradients */
  dm_Edge *in;
  dm_Meta *in_meta, *out_meta;
  dm_Saved *saved_in, *saved_out;
  dm_Tensor **gy;     /* arriving gradients, during a walk */
  dm_Tensor **retain; /* outputs with retain_grad, borrowed; or NULL */
  void *attr;
  dm_Hook *hooks;
  char *where;                 /* owned; under anomaly detection, where it was made */
  struct dm_Node *next_doomed; /* waiting to be freed */
  dm_Custom custom;
} dm_Node;

/* Records one call; outputs get the node. save_in overrides what is kept of
   input 0 of an in-place op (its old value), or is NULL. */
dm_status dm_record(const dm_Call *c, dm_Tensor *save_in);
/* Likewise, of an op that has made *out. */
dm_status dm_record_op(const dm_OpInfo *op, int n_in, dm_Tensor *const *in, const void *attr,
                       dm_Tensor **out, dm_Tensor *save_in);
dm_status dm_record_custom(dm_Custom custom, int n_in, dm_Tensor *const *in, int n_out,
                           dm_Tensor **out, int n_saved, dm_Tensor *const *saved);
/* Keeps t, which is that input or output (or -1), for a gradient. */
dm_status dm_save(dm_Saved *s, dm_Tensor *t, uint32_t version, int from, int out);
/* A new reference to what was kept, made again if need be; fails when it was
   changed in place. `who` needs it. */
dm_status dm_saved_get(const dm_Saved *s, const char *who, dm_Tensor **to);
void dm_saved_drop(dm_Saved *s);
/* After op changed the view v in place and recorded it: rewrites the history
   of v's base, and v's own. */
dm_status dm_rebase(dm_Tensor *v);
/* Brings a view's history up to date with its base. */
dm_status dm_refresh_view(dm_Tensor *v);
void dm_node_unref(dm_Node **n);
void dm_node_release_saved(dm_Node *n);
const char *dm_node_name(const dm_Node *n);

dm_status dm_add_hook(dm_Tensor *t, dm_Hook *hook); /* takes hook on success */
void dm_remove_hook(dm_Tensor *t, int64_t id);
void dm_hook_unref(dm_Hook *hook);
dm_status dm_retain_grad(dm_Tensor *t);
void dm_detach_(dm_Tensor *t);

#endif
