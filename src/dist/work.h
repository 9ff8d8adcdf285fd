/* A piece of communication: what a call of a collective asks for, and the steps by which it
   comes about.

   Each collective begins with an agreement: the ranks compare a hash of the call's name, dtype
   and shape, before any data moves. Where it differs they exchange the descriptions themselves,
   and all of them fail with the same text. A message between two ranks carries its description
   before the data, under a tag of its own, so that one of any rank takes no data for it.

   Where ranks exchange parts of any sizes each tells the others what it gives and wants, and
   all of them fail where these differ.

   A reduction sends slice j of each rank to rank j, which combines the slices in the order of
   the ranks (reduce.h), and gathers the results; a rank then sends 2 (n - 1) / n of the
   tensor's bytes, as by a ring. A small one gathers everything everywhere, in one step, and
   combines it in the same order. Ranks of one machine that can (near.h) combine the slices
   where they lie. */
#ifndef DM_WORK_H
#define DM_WORK_H

#include <stdatomic.h>

#include "core/tensor.h"
#include "dist/near.h"
#include "dist/reduce.h"
#include "dist/transport.h"

enum {
  DM_MAX_GROUP = 64,               /* groups of a process, the world among them */
  DM_MAX_INDEX = 2 * DM_MAX_GROUP, /* with one aside of each */
  DM_NAME_TEXT = 32,
  DM_KEY_TEXT = 224,
  DM_LINE_TEXT = 128,
  DM_LINK_TEXT = 256,
  DM_FAILURE_TEXT = 2048
};

typedef enum dm_WorkKind {
  DM_WORK_BARRIER,
  DM_WORK_ALL_REDUCE,     /* in: reduced in place */
  DM_WORK_BROADCAST,      /* in: of rank `peer`; written on the others */
  DM_WORK_REDUCE,         /* in: written on rank `peer` */
  DM_WORK_ALL_GATHER,     /* in; out: n times as large */
  DM_WORK_REDUCE_SCATTER, /* in: n times as large as out */
  DM_WORK_GATHER,         /* in; out: on rank `peer` only */
  DM_WORK_SCATTER,        /* in: on rank `peer` only; out */
  DM_WORK_ALL_TO_ALL,     /* in, out */
  DM_WORK_EXCHANGE,       /* in, out: parts of sizes that the ranks tell one another first */
  DM_WORK_SEND,           /* in, to rank `peer` */
  DM_WORK_RECEIVE,        /* in: written */
  DM_WORK_SPLIT,          /* makes the group */
  DM_WORK_CONNECT         /* links the devices of the group's ranks (link.h) */
} dm_WorkKind;

/* How works of a group go whose tensors lie on a device. */
typedef enum dm_Way { DM_WAY_UNKNOWN, DM_WAY_HOST, DM_WAY_LINK } dm_Way;

/* Ranks that communicate, in the order of the world's. */
typedef struct dm_Group {
  int index;              /* 0: the world; DM_MAX_GROUP more than `of`: aside of that group */
  struct dm_Group *of;    /* whose ranks make it: of a new group the world */
  int n, me;              /* me: this process among them; -1: it is no member */
  int *ranks;             /* (n) in the world */
  dm_Comm *comm;          /* used by the thread alone */
  int64_t n_post;         /* collectives that were asked for */
  atomic_llong n_done;    /* of these ended, well or not */
  atomic_int way;         /* dm_Way */
  dm_Device device;       /* of this rank; set with the way */
  char why[DM_LINK_TEXT]; /* why it is through the host */
  struct dm_Link *link;   /* owned; used by the thread alone */
  dm_Near *near;          /* owned; used by the thread alone; NULL: not known yet */
} dm_Group;

/* How the ranks know a call: what has to agree, and where it stands in the script. */
typedef struct dm_Header {
  int64_t n_bytes; /* of a message's data */
  int64_t from;    /* the sender of a message, among the ranks of the group */
  char name[DM_NAME_TEXT], key[DM_KEY_TEXT], line[DM_LINE_TEXT];
} dm_Header;

typedef struct dm_Work {
  atomic_int refs;
  dm_WorkKind kind;
  dm_RankOp op;
  dm_Group *group; /* of the collective; the new one of DM_WORK_SPLIT agrees in the world */
  dm_Group *agree;
  int peer; /* among the ranks of the group; -1: a message of any, until it has come */
  int tag;  /* of a message */
  dm_Tensor *in,
      *out; /* owned; contiguous; on the CPU, or where the link takes them; or NULL */
  dm_Header header, other;
  dm_Header *headers; /* (n), owned, where the ranks do not agree */
  uint64_t hash[2], least[2];
  dm_Tensor *a, *b; /* owned: bytes of slices that go and come; or NULL */
  int64_t slice;    /* elements of a slice */
  /* of DM_WORK_EXCHANGE, owned: (2n) rows that go to each rank, and that come from each; (n,
     2n) those of all ranks; elements of a row */
  int64_t *sizes, *all_sizes, row;
  int64_t number; /* of the collective in its group, from 1; 0: a message */
  double posted;  /* seconds */
  _Atomic double deadline;
  double warn_at; /* then a report says who is missing; infinite: no more. The thread's own */
  int64_t n_sent, n_direct; /* bytes; of these, that went from memory to memory */
  bool is_shown;            /* its agreement has told where the ranks' tensors lie */
  int step;
  int64_t n_moving; /* bytes of the message that is under way */
  dm_Request *request;
  /* over a link: where its tensors lie; events before and after it, owned; whether the thread
     has handed it over, and whether the script's queue can wait for `after` */
  bool by_link, is_queued;
  dm_Device device;
  void *before, *after;
  atomic_bool queued;
  struct dm_Connection *connection; /* of DM_WORK_CONNECT, owned */
  void (*drop)(struct dm_Work *w);  /* frees these; or NULL */
  atomic_bool done;
  bool failed;
  bool is_broken; /* failed on this rank alone: the others may be in the middle of it */
  char failure[DM_FAILURE_TEXT];
  struct dm_Work *next;
} dm_Work;

typedef struct dm_Connection dm_Connection;

/* Sets up the hash and the size of slices of a work whose other fields are set. */
void dm_work_prepare(dm_Work *w);
/* One step, if the last one is over; false: it is not. The work has ended where w->step is
   DM_WORK_ENDED; where it is DM_WORK_LINKING, and no request is under way, link.h goes on. */
enum { DM_WORK_ENDED = 100, DM_WORK_LINKING };
bool dm_work_advance(dm_Work *w, const dm_Transport *t);
/* Posts a transfer of the work, to go on with that step when it is done. */
void dm_work_post(dm_Work *w, const dm_Transport *t, int next, dm_Transfer transfer,
                  const void *in, void *out, int64_t n_bytes);
/* Bytes that this rank gives to others by a work DM_WORK_EXCHANGE. */
int64_t dm_work_uneven_sent(const dm_Work *w);
/* Ends it with that failure, of which the other ranks do not know. */
void dm_work_break(dm_Work *w, const char *text);
/* True where `later` may not go on yet because of w, which was asked for before it: their order
   has to be the same on all ranks. */
bool dm_work_blocks(const dm_Work *w, const dm_Work *later);
static inline bool dm_work_is_message(const dm_Work *w) {
  return w->kind == DM_WORK_SEND || w->kind == DM_WORK_RECEIVE;
}
void dm_work_ref(dm_Work *w);
void dm_work_unref(dm_Work **w);

#endif
