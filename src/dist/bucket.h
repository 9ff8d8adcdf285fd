/* Buckets: gradients of parameters that processes average, in a few long tensors.

   A reducer gives each parameter a home (engine/home.h) in a bucket, so that gradients lie in
   buckets from the start. While a backward pass goes on, the buckets whose gradients are
   complete are handed to the communication thread, always in the same order: the sums of the
   first ones move while the pass computes the last ones. At its end the rest follows; then the
   script waits, and `settle` brings the gradients to the parameters.

   The last bucket ends in a trailer, which tells for each parameter which share of the ranks
   has used it, which share of them had data at all, and whether one was asked to stop (stop.h).
   A parameter that no rank has used keeps no gradient; one that some rank has used gets the
   mean, to which the others add zeros.

   Buckets may be shared out (ZeRO's second stage): a rank gets the average of its share alone,
   an n-th of the elements or all of the parameters that it owns. The memory of such a bucket is
   taken with the first gradient of a pass, and given back when it has travelled; the script
   takes this rank's share, which is then a gradient of a tensor of its own.

   With shards the whole batch is a fixed number of parts, of which each rank computes the same
   number, one after the other. Their gradients meet in one tree over the shards, whatever the
   number of ranks: a rank adds up the subtree of its own, and the ranks' sums travel once. The
   tree halves the shards until a half has an odd number of them, which are added in a row; so
   a number of ranks fits that is a power of two and divides the shards. */
#ifndef DM_BUCKET_H
#define DM_BUCKET_H

#include "dist/world.h"
#include "engine/home.h"

typedef struct dm_Reducer dm_Reducer;

enum { DM_PARAM_TEXT = 48 }; /* bytes of a parameter's name in messages */

typedef struct dm_ReducerOptions {
  dm_Group *group;
  int64_t first_bytes, bytes; /* that a bucket holds; the first one, the others */
  const char *const *names;   /* of the parameters, for messages */
  int shards;                 /* of the whole batch; 0: none */
  const char *where;          /* the line of the script, for messages */
} dm_ReducerOptions;

/* Gives n parameters homes, in buckets from the last parameter to the first one; in a world of
   one rank only once a wire is set. */
dm_status dm_reducer_new(int n, dm_Tensor *const *params, const dm_ReducerOptions *o,
                         dm_Reducer **out);
/* Takes the homes away; a pass that is under way goes on without. */
void dm_reducer_close(dm_Reducer **r);

/* The dtype in which gradients travel: of 16 bits, or DM_NO_DTYPE for their own. */
dm_status dm_reducer_set_wire(dm_Reducer *r, dm_DType wire);
/* Whether passes only add to the gradients and send nothing: of one reducer, or of all. */
void dm_reducer_pause(dm_Reducer *r, bool paused);
void dm_reducers_pause(int more); /* counted: 1 begins, -1 ends */
/* The line of the script whose backward pass begins, for messages. */
void dm_reducers_at(const char *where);

/* Whether a pass has handed over what is not settled yet: of one reducer, or of any. */
bool dm_reducer_is_open(const dm_Reducer *r);
bool dm_reducers_are_open(void);
/* Waits so many milliseconds for what was handed over: 1: done; 0: not yet; -1: failed, *why.
 */
int dm_reducer_wait(const dm_Reducer *r, int ms, const char **why);
/* After dm_reducer_wait: the averages are the parameters' gradients. by_active: divides by the
   ranks that had data. *active: which share of the ranks had. After a failure it only forgets
   what was handed over. */
dm_status dm_reducer_settle(dm_Reducer *r, bool by_active, double *active);

/* Whether so many ranks can share the shards; true for none. */
bool dm_shards_fit(int shards, int n_rank);
/* Begins the first shard of this rank, or ends what is begun: a pass is an error outside. */
void dm_reducer_shards(dm_Reducer *r, bool on);
/* Whether it has shards, and whether one of them was begun. */
bool dm_reducer_has_shards(const dm_Reducer *r);
bool dm_reducer_in_shard(const dm_Reducer *r);
/* Takes the gradients that the passes of a shard have left, and begins the next one. Those of
   the last shard of this rank are handed over with the others'. */
dm_status dm_reducer_end_shard(dm_Reducer *r);

/* Takes part in a pass of the other ranks, without data of its own. */
dm_status dm_reducer_shadow(dm_Reducer *r);

/* share[i] of each parameter: 0: all ranks get its gradient; k + 1, k + 1 + (n + 1), ...: the
   rank of index k; n + 1, 2 (n + 1), ...: each rank gets an n-th of the elements of its bucket.
   Parameters of different numbers lie in different buckets. Makes the buckets anew. Not with
   shards. */
dm_status dm_reducer_share(dm_Reducer *r, const int64_t *share);
/* Where a parameter lies that is shared out: `at` elements behind the begin of its bucket, of
   which the rank of index k, from 0, gets the elements from k * slice on, or all of it. */
typedef struct dm_Span {
  int bucket;
  int64_t at, slice;
} dm_Span;
dm_Span dm_reducer_span(const dm_Reducer *r, int param);
/* Whether any rank has used the parameter in the last pass that was settled. */
bool dm_reducer_used(const dm_Reducer *r, int param);
/* After dm_reducer_settle: adds what begins `at` elements behind the begin of this rank's share
   of a bucket to the gradient of a tensor; `to` says how many elements. */
dm_status dm_reducer_take(const dm_Reducer *r, int bucket, int64_t at, dm_Tensor *to);
/* Forgets the shares: all are taken that are wanted. */
void dm_reducer_taken(dm_Reducer *r);

/* order[i]: the number of the parameter, from 0, whose gradient was the i-th to be complete in
   the last pass that sent. */
void dm_reducer_order(const dm_Reducer *r, int64_t *order);
/* Makes the buckets anew, in this order of the parameters. */
dm_status dm_reducer_arrange(dm_Reducer *r, const int64_t *order);

int dm_reducer_params(const dm_Reducer *r);
int dm_reducer_buckets(const dm_Reducer *r);
/* Passes that sent, so far. */
int64_t dm_reducer_passes(const dm_Reducer *r);
/* Buckets of the last pass that were handed over before its end. */
int dm_reducer_early(const dm_Reducer *r);

#endif
