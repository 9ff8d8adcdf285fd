/* A fixed pool of threads and one way to use it. Results must not depend on
   the number of threads: a body may only write what its range owns. */
#ifndef DM_THREADS_H
#define DM_THREADS_H

#include "base/base.h"

typedef void dm_RangeFn(void *ctx, int64_t begin, int64_t end);

/* Calls fn on disjoint ranges that cover [0, n), each of at most `grain` units
   (the last may be shorter), starting at multiples of grain. Runs here at once
   when n <= grain, when the pool has one thread, or inside another
   dm_parallel_for. The ranges are the same for every thread count. */
void dm_parallel_for(int64_t n, int64_t grain, dm_RangeFn *fn, void *ctx);

/* How many forks lie between this process and the first one that asked: threads that began
   at another count stayed in another process. */
unsigned dm_fork_count(void);

/* Threads that would share a dm_parallel_for called here: 1 inside another one. */
int dm_threads_here(void);

/* From now on dm_parallel_for runs on this thread alone, when this thread calls it: for
   threads that themselves are one of many. */
void dm_stay_serial(void);

/* From now on dm_parallel_for runs a job's chunks on the thread that calls it, one after the
   other, and tells f their number and the seconds that they took together; NULL: no longer. For
   tests, which count how much of a program several threads could share. */
typedef void dm_JobFn(int64_t n_chunks, double seconds);
void dm_trace_jobs(dm_JobFn *f);

/* The size of the pool: dm_set_num_threads, demilune.h. */

#endif
