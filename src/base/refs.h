/* Counters that threads share: references, numbers, blocks. While the process has one
   thread, as the C library knows, nobody needs to be locked out, and a locked instruction
   costs as much as twenty plain ones. C only. */
#ifndef DM_REFS_H
#define DM_REFS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/base.h"

#if defined(__has_include)
#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
#define DM_KNOWS_THREADS 1
#endif
#endif

/* Is this the process's only thread? False where nobody knows. */
static inline bool dm_alone(void) {
#ifdef DM_KNOWS_THREADS
  return DM_LIKELY(__libc_single_threaded);
#else
  return false;
#endif
}

/* Adds n to an atomic counter, in no order with anything else. Gives the value before. */
#define DM_ADD(counter, n)               \
  (dm_alone() ? dm_add_alone(counter, n) \
              : atomic_fetch_add_explicit(counter, n, memory_order_relaxed))
#define dm_add_alone(counter, n)                                                             \
  (atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + (n), \
                         memory_order_relaxed),                                              \
   atomic_load_explicit(counter, memory_order_relaxed) - (n))

/* One reference more. */
static inline void dm_hold(atomic_int *refs) { (void)DM_ADD(refs, 1); }

/* One less; true when it was the last. A sole owner needs no locked instruction either:
   nobody else is left who could take a reference. */
static inline bool dm_let_go(atomic_int *refs) {
  const int n = atomic_load_explicit(refs, memory_order_acquire);
  if (n == 1) return true;
  if (!dm_alone()) return atomic_fetch_sub_explicit(refs, 1, memory_order_acq_rel) == 1;
  atomic_store_explicit(refs, n - 1, memory_order_relaxed);
  return false;
}

#endif
