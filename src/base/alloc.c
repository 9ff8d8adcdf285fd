/* malloc with alignment, a count of live blocks, and failure injection.
   Invariant: live counts what dm_alloc gave and dm_free has not taken. */
#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

#include "base/refs.h"

enum { ALIGN = 64, ALIGN_FROM = 2048 };
atomic_llong dm_live_blocks, dm_alloc_fails_at;
static atomic_llong requests;
static atomic_bool fail_sticky;

/* The count restarts at 0, so that n = 1 is the next request. */
void dm_alloc_fail_at(int64_t n, bool sticky) {
  atomic_store(&fail_sticky, sticky);
  atomic_store(&requests, 0);
  atomic_store(&dm_alloc_fails_at, n);
}

int64_t dm_alloc_requests(void) { return atomic_load(&requests); }
int64_t dm_alloc_live(void) { return atomic_load(&dm_live_blocks); }

bool dm_alloc_count_request(void) {
  const int64_t at = atomic_load(&dm_alloc_fails_at);
  const int64_t n = atomic_fetch_add(&requests, 1) + 1;
  return atomic_load(&fail_sticky) ? n >= at : n == at;
}

/* Sizes are rounded up to 64 bytes, a cache line and the widest vector; aligned_alloc wants a
   multiple of the alignment. */
void *dm_alloc(int64_t n_bytes) {
  if (DM_UNLIKELY(n_bytes < 0 || dm_alloc_should_fail())) return NULL;
  if (n_bytes > INT64_MAX - ALIGN) return NULL;
  const size_t n = ((size_t)n_bytes + ALIGN - 1) / ALIGN * ALIGN;
  /* malloc serves a small block in a few nanoseconds, aligned_alloc in a hundred */
  void *p = n < ALIGN_FROM ? malloc(n ? n : 1) : aligned_alloc(ALIGN, n);
  if (!p) return NULL;
  (void)DM_ADD(&dm_live_blocks, 1);
  dm_noise(p, n_bytes);
  return p;
}

void *dm_alloc_zero(int64_t n_bytes) {
  void *p = dm_alloc(n_bytes);
  if (p) memset(p, 0, (size_t)n_bytes);
  return p;
}

void dm_free(void *p) {
  if (!p) return;
  (void)DM_ADD(&dm_live_blocks, -1);
  free(p);
}
