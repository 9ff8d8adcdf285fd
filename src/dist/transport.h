/* What a library that carries bytes between processes fills for us: a table of functions, of
   which the thread that opened it calls each. MPI's is in mpi/mpi.c, a library of its own; the
   one of a world of one process is in self.c. All calls but open, split and close return at
   once. */
#ifndef DM_TRANSPORT_H
#define DM_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

/* A message that is under way. */
typedef struct dm_Request dm_Request;
/* A set of ranks that communicate among themselves. */
typedef struct dm_Comm dm_Comm;

/* How bytes move. Each is a call that all ranks of the group make, but for the last two;
   n_bytes is the size of one part. */
typedef enum dm_Transfer {
  DM_TRANSFER_MIN,        /* two uint64 each: the smallest of all ranks, to all */
  DM_TRANSFER_BROADCAST,  /* `out` of rank `peer` to all */
  DM_TRANSFER_ALL_GATHER, /* `in` of all ranks, one after the other, to all */
  DM_TRANSFER_ALL_TO_ALL, /* part j of `in` of rank i becomes part i of `out` of rank j */
  DM_TRANSFER_GATHER,     /* `in` of all ranks to rank `peer` */
  DM_TRANSFER_SCATTER,    /* part j of `in` of rank `peer` to rank j */
  DM_TRANSFER_SEND,       /* `in` to rank `peer` */
  DM_TRANSFER_RECEIVE     /* `out` from rank `peer`; -1: from any */
} dm_Transfer;

typedef struct dm_Transport {
  const char *version; /* DM_VERSION: both sides are of one build */
  /* Joins the job's processes; false: text() says why not. node_rank counts the ranks of this
     machine; most_tag is the largest tag of a message. */
  bool (*open)(int *rank, int *n_rank, int *node_rank, int *most_tag);
  /* Ends the library; only after all ranks have come so far. false: it failed. */
  bool (*close)(void);
  /* The last failure: the call of the library, and why. */
  const char *(*text)(void);
  dm_Comm *(*world)(void);
  dm_Comm *(*notices)(void); /* the same ranks, whose messages meet no others */
  /* The ranks that call it with `member`, in the world's order; NULL for the others, or on
     failure with *failed. All ranks of `comm` call it, after they have agreed to. */
  dm_Comm *(*split)(dm_Comm *comm, bool member, bool *failed);
  /* Starts it; `in` and `out` stay untouched until test() gives 1. A message meets one that is
     received by the same tag; tags of other transfers do not count. NULL: text() says why not.
   */
  dm_Request *(*post)(dm_Comm *comm, dm_Transfer transfer, const void *in, void *out,
                      int64_t n_bytes, int peer, int tag);
  /* As ALL_TO_ALL with parts of any sizes: of n ranks, rank j gets sizes[j] rows of `row`
     bytes, and gives sizes[n + j]. */
  dm_Request *(*post_uneven)(dm_Comm *comm, const void *in, void *out, const int64_t *sizes,
                             int n, int64_t row);
  /* 1: done, and *r is freed and NULL; 0: not yet; -1: failed: `in` and `out` may still be read
     and written unless *r is NULL. */
  int (*test)(dm_Request **r);
  /* Gives up a message that is to be received from any rank. false: it failed, and the message
     may still come. */
  bool (*cancel)(dm_Request **r);
} dm_Transport;

/* The symbol of the library: a dm_Transport. */
#define DM_TRANSPORT_SYMBOL "dm_transport"

extern const dm_Transport dm_self_transport;

#endif
