/* The world: the processes of a job, and the one thread of this process that speaks with the
   others.

   That thread opens the transport, calls all its functions and ends it. It tests what is under
   transfer and naps in between, since a library that waits by itself spins, takes the core from
   the computation, and cannot be interrupted. The script's thread hands it works and waits at a
   condition.

   Besides the works there are notices (notice.h): a rank that waits too long asks the others
   where they are, and one that leaves says goodbye, so that nobody waits for it. After the
   first failure of that kind nothing works any more: messages may be half under way. Where a
   work was beyond its timeout every process ends itself, some time after its script has been
   told. */
#ifndef DM_WORLD_H
#define DM_WORLD_H

#include "dist/work.h"

typedef struct dm_WorldStats {
  int64_t n_call;
  int64_t n_sent, n_direct; /* bytes; of these, from memory to memory (near.h) */
  double waited;            /* seconds of the script's thread */
} dm_WorldStats;

/* Starts to open the world: by MPI, or as a world of this process alone. The reason why it
   cannot; or NULL. timeout: in seconds, of each work; warn_after: seconds of waiting after
   which the first of the ranks that wait says on stderr which ones are not there. */
const char *dm_world_open(bool by_mpi, double timeout, double warn_after);
/* Whether it is open, after at most so many milliseconds; *why: the reason why it will never
   be, or NULL. */
bool dm_world_opened(int ms, const char **why);
/* The path and the reason: whether mpi.so can be opened. NULL: it can. */
const char *dm_world_lacks(void);
int dm_world_rank(void);
int dm_world_node_rank(void);
/* The largest tag of a message. */
int dm_world_most_tag(void);
/* Whether it is open in this process (and not in the one that forked it). */
bool dm_world_is_open(void);

/* The group of that index; NULL: there is none. */
dm_Group *dm_world_group(int index);
/* A new group of these n ranks, in rising order; it can be used when a work DM_WORK_SPLIT has
   made it. NULL: there are too many, or no memory (dm_error). */
dm_Group *dm_world_new_group(int n, const int *ranks);

/* A second group of the same ranks, whose works pass those of the first; its index is the same
   on all of them. They make it together by a work DM_WORK_SPLIT. NULL: there is no memory
   (dm_error). */
dm_Group *dm_world_new_aside(dm_Group *of);

/* A new work with one reference; NULL without memory. */
dm_Work *dm_work_new(void);
/* Hands the work over. */
dm_status dm_world_post(dm_Work *w);
/* Waits for the work; false: not done after so many milliseconds. One that goes over a link is
   waited for until it is queued: dm_link_follow lets the device wait for the rest. */
bool dm_world_wait(const dm_Work *w, int ms);
/* The same until it is done, on the device too. */
bool dm_world_wait_done(const dm_Work *w, int ms);
/* The work fails if it is not done so many seconds from now. */
void dm_world_limit(dm_Work *w, double seconds);

/* Begins to leave. orderly: after the works under way, and after the others have come as far;
   else at once. */
void dm_world_leave(bool orderly);
/* Whether this process has left, after at most so many milliseconds; frees everything then. It
   sets `why` to a failure of the library of which no work has told, or NULL. */
bool dm_world_left(int ms, const char **why);

dm_WorldStats dm_world_stats(void);

#endif
