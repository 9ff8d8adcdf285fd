/* The one door to memory. Small bookkeeping (handles, nodes, tables) comes
   from dm_alloc; tensor bytes come from the device's allocator, which asks here
   whether a request is to fail. The test build can make the n-th one fail, so
   that every failure path is walked. */
#ifndef DM_ALLOC_H
#define DM_ALLOC_H

#include <string.h>

#include "base/base.h"

#ifndef __has_feature /* clang's test; gcc defines a macro instead */
#define __has_feature(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define DM_ASAN 1
#include <sanitizer/asan_interface.h>
#else
#define DM_ASAN 0
#endif

/* A test build fills fresh memory with a byte (CMake's DM_NOISE), so that a result shows that
   it was made of memory that nobody wrote. -1: it does not. */
#ifndef DM_NOISE
#define DM_NOISE (-1)
#endif
static inline void dm_noise(void *p, int64_t n_bytes) {
  if (DM_NOISE >= 0) memset(p, DM_NOISE, (size_t)n_bytes);
}

/* Memory that AddressSanitizer took for one block is cut into smaller ones by an allocator,
   which forbids the bytes between them; in other builds these two do nothing. */
static inline void dm_forbid(const void *p, int64_t n_bytes) {
#if DM_ASAN
  ASAN_POISON_MEMORY_REGION(p, (size_t)n_bytes);
#else
  DM_UNUSED(p), DM_UNUSED(n_bytes);
#endif
}
static inline void dm_permit(const void *p, int64_t n_bytes) {
#if DM_ASAN
  ASAN_UNPOISON_MEMORY_REGION(p, (size_t)n_bytes);
#else
  DM_UNUSED(p), DM_UNUSED(n_bytes);
#endif
}

/* 64-byte aligned from 2 KiB up, 16 below; not zeroed; NULL when nothing is left or n < 0. */
void *dm_alloc(int64_t n_bytes);
void *dm_alloc_zero(int64_t n_bytes);
void dm_free(void *p);

/* Failure injection: the request number n from now (1 = the next) fails, and
   all after it when `sticky`. n = 0 switches it off. Counts either way. */
DM_API void dm_alloc_fail_at(int64_t n, bool sticky);
DM_API int64_t dm_alloc_requests(void); /* requests since dm_alloc_fail_at */
DM_API int64_t dm_alloc_live(void);     /* blocks not yet freed */

/* Whether the request is to fail. Each one asks exactly once, here or in a device's allocator:
   requests are counted by that. With nothing injected the cost is one relaxed load. */
#ifdef DM_BACK_END /* a library of its own: see engine/backend.h */
bool dm_alloc_should_fail(void);
#else
#include <stdatomic.h>
extern atomic_llong dm_live_blocks; /* what dm_alloc_live tells */
extern atomic_llong dm_alloc_fails_at;
bool dm_alloc_count_request(void);
static inline bool dm_alloc_should_fail(void) {
  return DM_UNLIKELY(atomic_load_explicit(&dm_alloc_fails_at, memory_order_relaxed) != 0) &&
         dm_alloc_count_request();
}
#endif

#endif
