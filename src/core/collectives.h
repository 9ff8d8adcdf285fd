/* Collectives between processes by a library of a device's vendor (NCCL): the table that a back
   end fills, and what a call of it asks for.

   The host's thread of communication makes all calls but lacks, identity, mark and follow,
   which belong to the thread that queues the device's work. Nothing here waits: what is asked
   for is queued on a stream of the link's own, between two events. */
#ifndef DM_COLLECTIVES_H
#define DM_COLLECTIVES_H

#include "base/dtype.h"

enum { DM_LINK_ID_BYTES = 128, DM_GPU_TEXT = 160 };

typedef enum dm_CollectiveKind {
  DM_COLLECTIVE_ALL_REDUCE,
  DM_COLLECTIVE_BROADCAST, /* from rank `peer` */
  DM_COLLECTIVE_REDUCE,    /* to rank `peer` */
  DM_COLLECTIVE_ALL_GATHER,
  DM_COLLECTIVE_REDUCE_SCATTER,
  DM_COLLECTIVE_GATHER,  /* to rank `peer` */
  DM_COLLECTIVE_SCATTER, /* from rank `peer` */
  DM_COLLECTIVE_ALL_TO_ALL,
  DM_N_COLLECTIVE
} dm_CollectiveKind;

/* The first ones of dm_RankOp (dist/reduce.h), with its numbers. */
typedef enum dm_CollectiveOp {
  DM_COLLECTIVE_SUM,
  DM_COLLECTIVE_AVG, /* floats only */
  DM_COLLECTIVE_MIN,
  DM_COLLECTIVE_MAX,
  DM_COLLECTIVE_PRODUCT,
  DM_N_COLLECTIVE_OP
} dm_CollectiveOp;

typedef struct dm_Collective {
  dm_CollectiveKind kind;
  dm_CollectiveOp op; /* of a reduction */
  dm_DType dtype;
  int64_t n; /* elements of one part; of a row, where there are sizes */
  /* of ALL_TO_ALL whose parts differ: of n ranks, rank j gets sizes[j] rows, and gives
     sizes[n + j]; else NULL */
  const int64_t *sizes;
  const void
      *in;   /* on the device: one part, or one for each rank; NULL: this rank gives none */
  void *out; /* the same; may be `in` where both are one part */
  int peer;
  void *before; /* an event: the stream waits for it first */
} dm_Collective;

/* Ranks that are linked by the library, each with one device. */
typedef struct dm_Link dm_Link;

typedef struct dm_CollectiveOps {
  const char *name; /* of the library, in messages */
  /* NULL, or the reason why the library cannot serve; the first call opens it. */
  const char *(*lacks)(dm_Device dev);
  /* Writes what no other device has, on this machine and on others. */
  dm_status (*identity)(dm_Device dev, char out[DM_GPU_TEXT]);
  /* Whether the library takes such a collective; op counts for reductions alone. */
  bool (*takes)(dm_CollectiveKind kind, dm_CollectiveOp op, dm_DType dtype);
  /* Makes the number by which ranks find one another: one rank makes it for all. */
  dm_status (*new_id)(char out[DM_LINK_ID_BYTES]);
  /* Begins to link n ranks; ready() tells when that is done. */
  dm_status (*link)(dm_Device dev, const char id[DM_LINK_ID_BYTES], int n, int rank,
                    dm_Link **out);
  /* Begins to link n ranks of a link, in the same order; all ranks of the link call this, those
     that are left out with rank -1, which get NULL. It is done when both links are ready. */
  dm_status (*split)(dm_Link *link, int n, int rank, dm_Link **out);
  /* Frees a link. well: all ranks have done all that they asked for; else what is under way is
     given up, and work that waits for it goes on. */
  void (*unlink)(dm_Link **link, bool well);
  /* Queues a collective; no other one before ready() says so. */
  dm_status (*post)(dm_Link *link, const dm_Collective *c);
  /* 1: what was asked for is queued; 0: not yet; -1: it failed, and dm_error() says how. */
  int (*ready)(dm_Link *link);
  /* A new event behind all that is queued: of the link, or of this thread's stream. */
  dm_status (*mark_link)(dm_Link *link, void **event);
  dm_status (*mark)(dm_Device dev, void **event);
  /* This thread's stream waits for the event. */
  dm_status (*follow)(dm_Device dev, void *event);
  /* 1: all before the event is done; 0: not yet; -1: it failed, and dm_error() says how. */
  int (*passed)(dm_Link *link, void *event);
} dm_CollectiveOps;

#endif
