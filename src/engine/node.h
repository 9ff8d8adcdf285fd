/* The nodes of the autograd graph: types only. tape.c makes and frees them, saved.c holds the
   tensors that they saved, backward.c walks them. In PyTorch's words: dm_Node is a Node
   (grad_fn), dm_Edge an Edge, dm_Saved a SavedVariable.

   A node's number (seq) grows with creation, and edges lead from a node to nodes that are
   older. So the graph has no cycles, and an order by falling number is a topological one. */
#ifndef DM_NODE_H
#define DM_NODE_H

#include "engine/op.h"

struct dm_Regions;
struct dm_Saved;

/* The destination of an input's gradient: output `out` of a node, or a leaf; or neither,
   when the input needs no gradient. */
typedef struct dm_Edge {
  struct dm_Node *node; /* owned */
  dm_Tensor *leaf;      /* owned */
  uint8_t out;
} dm_Edge;

/* Of a hook that is called with a leaf itself, after its gradient was added to x.grad. */
enum { DM_AFTER = -1 };

/* A function that is called with the gradient of a tensor when it is complete. It may
   replace the gradient: *g is owned by the caller, and the hook unrefs the old one when it
   gives a new reference. */
typedef struct dm_Hook {
  struct dm_Hook *next;
  int refs;     /* the list's, and that of a pass which is about to call it */
  bool removed; /* another hook took it off the list: it is not called any more */
  int out;      /* which output of the node, or DM_AFTER */
  int64_t id;
  dm_status (*call)(void *ctx, dm_Tensor **g);
  void (*drop)(void *ctx);
  void *ctx;
} dm_Hook;

/* A gradient that the host wrote (torch.autograd.Function). It gets the saved tensors and
   gy, the outputs' gradients (NULL where none arrived), and sets gx, the inputs' gradients.
   It runs under the autocast settings of its forward. */
typedef struct dm_Custom {
  dm_status (*backward)(void *ctx, int n_saved, dm_Tensor **saved, int n_out, dm_Tensor **gy,
                        int n_in, dm_Tensor **gx);
  void (*drop)(void *ctx);
  void *ctx;
} dm_Custom;

/* One recorded call. The struct and its arrays in, metas, saved_in, saved_out, gy and attr are
   one block. */
typedef struct dm_Node {
  atomic_int refs;
  const dm_OpInfo *op; /* NULL for a custom one */
  uint64_t seq;
  uint32_t mark;         /* set by dm_grad: does a wanted tensor lie behind it? */
  int32_t n_in, n_saved; /* n_saved: of saved_in */
  uint8_t n_out, base;   /* base: the forward's, in which attr and positions are meant */
  uint8_t given;         /* bit i: input i is there; the first 8 */
  bool pure;             /* its op can run again: see remake.h */
  bool sums_again;       /* of add_norm: its operands are kept, not their sum */
  uint32_t version, gen; /* what output 0 and its storage had when it was computed */
  atomic_int n_user;     /* saved tensors, of other nodes too, that need it to run again */
  dm_Tensor *again[2];   /* owned; its outputs, computed again, for the next user; or NULL */
  dm_CastState cast;     /* of a custom one: the autocast settings of its forward */
  int64_t n_bytes;       /* of the block */
  bool released;         /* a backward pass has dropped the saved tensors */
  bool scales;           /* multiplies by a loss scale: the leaves below get scaled gradients */
  bool walked;           /* a pass that does not retain the graph has been here: see home.h */
  dm_Edge *in;
  dm_Metas metas; /* of the inputs, then of the outputs */
  struct dm_Saved *saved_in, *saved_out;
  dm_Tensor **gy;             /* the outputs' gradients so far, during a backward pass */
  struct dm_Regions *regions; /* owned; of gradients that wait at it, in a pass: regions.h */
  dm_Tensor **retain;         /* outputs with retain_grad, borrowed; or NULL */
  void *attr;
  dm_Hook *hooks;
  char *where;                 /* owned; under anomaly detection, where it was made */
  char *name;                  /* owned; of a custom one: it outlives custom.ctx */
  struct dm_Node *next_doomed; /* in the list of nodes that wait to be freed */
  dm_Custom custom;
} dm_Node;

/* The op's name, or the one that a custom function was given. */
static inline const char *dm_node_name(const dm_Node *n) {
  return n->op ? n->op->name : n->name;
}

#endif
