/* Homes of gradients: memory of the host's in which the gradient of a leaf lies, such as a part
   of a buffer that processes reduce together (dist/bucket.c). The backward pass writes a leaf's
   first gradient there and adds the next ones in place; `x.grad` is another handle of it, and
   an ordinary tensor for whoever reads it. zero_grad drops that handle and leaves the home.

   The host is told while the pass goes on how far it has come. The pass takes nodes by falling
   number, so a leaf's gradient is complete once the pass is behind the oldest node that reads
   the leaf, however many nodes do (tied weights, loops, checkpoints). Recording notes that
   number; it is forgotten when each of the readers has been walked, by a pass that does not
   retain the graph, or freed. As long as one has not, the number is too small rather than too
   large, and the gradient counts as complete later, at the end of the pass at the latest. */
#ifndef DM_HOME_H
#define DM_HOME_H

#include "engine/node.h"

typedef struct dm_GradHomes dm_GradHomes;

/* The home of one leaf's gradient; leaf->grad_home points to it. */
typedef struct dm_GradHome {
  /* owned by the host: of the leaf's shape and dtype, without history; NULL: `supply` gives it
     before the first gradient is written */
  dm_Tensor *at;
  dm_GradHomes *homes; /* to which it belongs */
  uint64_t oldest;     /* the number of the oldest reader; 0: there is none */
  uint64_t since;      /* older nodes do not count */
  int64_t n_reader;    /* nodes that read the leaf and may still be walked */
  bool sent;           /* complete in this pass: nothing may be added any more */
} dm_GradHome;

/* Homes that a pass tells of together. A pass that writes one of them calls begin before,
   passed in between and end after it; passes inside the pass count as a part of it. */
struct dm_GradHomes {
  int refs;
  uint64_t until; /* passed is wanted once the pass is behind this number; 0: never */
  bool in_pass;
  bool scaled;        /* the gradients of this pass carry a loss scale */
  dm_GradHomes *next; /* in the list of the pass */
  dm_status (*begin)(dm_GradHomes *h);
  /* All nodes whose numbers are larger than `next` have been walked; 0: all. */
  dm_status (*passed)(dm_GradHomes *h, uint64_t next);
  /* well: the pass has not failed. */
  dm_status (*end)(dm_GradHomes *h, bool well);
  /* Takes memory for a gradient; NULL where all homes have some. */
  dm_status (*supply)(dm_GradHomes *h, dm_GradHome *home);
  void (*drop)(dm_GradHomes *h); /* with the last reference */
};

/* Gives a leaf a home, and takes it away. since: the number of the next node (dm_next_seq). */
void dm_home_give(dm_Tensor *leaf, dm_GradHome *home, uint64_t since);
void dm_home_take(dm_Tensor *leaf);
/* The number of leaves that have one, and whether there are any. */
extern atomic_int dm_n_home;
static inline bool dm_any_home(void) {
  return atomic_load_explicit(&dm_n_home, memory_order_relaxed) > 0;
}

/* Node n reads the leaf: noted when it is recorded. */
void dm_home_note(dm_GradHome *home, uint64_t seq);
/* n will not be walked any more: it has been, or it is freed. */
void dm_home_leave(const dm_Node *n);

/* Adds g to the gradient of a leaf that has this home. */
dm_status dm_home_add(dm_Tensor *leaf, dm_GradHome *home, dm_Tensor *g);
/* Brings a gradient that lies elsewhere (the script has set it) home. */
dm_status dm_home_bring(dm_Tensor *leaf, const dm_GradHome *home);
/* Makes what lies at home the leaf's gradient. */
dm_status dm_home_show(dm_Tensor *leaf, const dm_GradHome *home);

void dm_homes_unref(dm_GradHomes *h);

#endif
