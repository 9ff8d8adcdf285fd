/* Ranks of one machine that read and write one another's memory, as Linux lets processes of one
   user do (process_vm_readv(2)). A reduction then takes one pass: each rank combines its slice
   of the others' tensors where they lie, and puts the result there. A library of messages
   copies each slice to the other side first, and the result back.

   A group finds out at its first reduction that is not small, which all ranks reach in the same
   order: each gives the others a card, reads a token from the memory of each of them, and all
   must have succeeded. From then on the group's agreements (work.h) tell the others where a
   rank's tensor lies. DEMILUNE_NEAR=0 keeps all of it to messages.

   A rank copies a small tensor before it says where, and the others read the copy: then the
   agreement is the only message. It has two copies in turns: who makes the next one but one has
   seen all ranks agree to the next collective, so that they have read this one. */
#ifndef DM_NEAR_H
#define DM_NEAR_H

#include "dist/reduce.h"

enum { DM_SMALL_BYTES = 32 << 10 }; /* of all ranks; then one step is faster than two */

/* Who a rank is, and where its token lies. */
typedef struct dm_NearCard {
  uint64_t machine; /* a hash; 0: it lets none read its memory */
  uint64_t token, at;
  int64_t pid;
} dm_NearCard;

/* What a rank says of a collective: the hash of the call, and where its tensor lies; 0: nowhere
   that others can read. */
typedef struct dm_NearWord {
  uint64_t hash, at;
} dm_NearWord;

typedef struct dm_Near {
  int n, me;
  bool works; /* for all ranks of the group */
  uint64_t token;
  dm_NearCard card, *cards;  /* own; (n) of all ranks */
  uint64_t found[2], all[2]; /* 1 where this rank has read all tokens; the least of all ranks */
  dm_NearWord word, *words;  /* own; (n) of all ranks */
  char *scratch;             /* (n + 1) chunks */
  char copies[2][DM_SMALL_BYTES];
  int n_copied;
} dm_Near;

/* Of one reduction: the tensor has n elements, of which the rank of index k combines those from
   k * slice on. */
typedef struct dm_NearSum {
  dm_RankOp op;
  dm_DType dtype;
  int64_t n, slice;
  void *in;  /* this rank's tensor; its word has told where it lies */
  void *out; /* this rank's result, of `slice` elements; NULL: it goes to the tensors */
  int to;    /* the rank whose tensor it goes to; -1: to all */
} dm_NearSum;

/* The card of the rank of index me among n; NULL without memory. */
dm_Near *dm_near_new(int n, int me);
/* Reads the others' tokens, as their cards say: found. */
void dm_near_meet(dm_Near *near);
/* Where that memory lies for the others; 0 where Linux does not let them read it, as that of a
   device's driver. */
uint64_t dm_near_shows(const void *at);
/* Copies n bytes, DM_SMALL_BYTES at most; where the copy lies. */
uint64_t dm_near_copy(dm_Near *near, const void *from, int64_t n);
/* Whether the words of all ranks say where their tensors lie. */
bool dm_near_all_show(const dm_Near *near);
/* Whether the words of all ranks have the same hash. */
bool dm_near_agrees(const dm_Near *near);
/* The next three return -1, or the index of a rank whose memory cannot be read or written;
   errno is then ESRCH where its process has ended, or 0 where its tensor is shorter. */
/* Combines the copies of n elements of each rank. */
int dm_near_reduce_copies(const dm_Near *near, dm_RankOp op, dm_DType dtype, int64_t n,
                          void *out);
/* Reads n bytes of the copy of the rank of index `of`. */
int dm_near_read_copy(const dm_Near *near, int of, void *to, int64_t n);
/* Combines this rank's slice in the order of the ranks. Until all ranks have done so, none may
   use its tensor. */
int dm_near_reduce(const dm_Near *near, const dm_NearSum *sum);

#endif
