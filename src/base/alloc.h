/* The one door to memory. Small bookkeeping (handles, nodes, tables) comes
   from dm_alloc; tensor bytes come from the device's allocator, which asks here
   whether a request is to fail. The test build can make the n-th one fail, so
   that every failure path is walked. */
#ifndef DM_ALLOC_H
#define DM_ALLOC_H

#include "base/base.h"

/* 64-byte aligned from 1 KiB up, 16 below; not zeroed; NULL when nothing is left or n < 0. */
void *dm_alloc(int64_t n_bytes);
void *dm_alloc_zero(int64_t n_bytes);
void dm_free(void *p);

/* Failure injection: the request number n from now (1 = the next) fails, and
   all after it when `sticky`. n = 0 switches it off. Counts either way. */
DM_API void dm_alloc_fail_at(int64_t n, bool sticky);
DM_API int64_t dm_alloc_requests(void); /* requests since dm_alloc_fail_at */
DM_API int64_t dm_alloc_live(void);     /* blocks not yet freed */
bool dm_alloc_should_fail(void);        /* asked by the device allocators */

#endif
