/* The caching allocator of one CUDA device. It calls no CUDA function: raw memory and events
   come through a table of functions, so that it is tested on the host.

   A block belongs to the stream that it was allocated on. Once freed it serves that stream at
   once: what is launched there later runs after what used the block before. If another stream
   has used it too (record_stream), it waits until that stream has passed the point where it
   was freed.

   Every function may be called by any thread. */
#ifndef DM_KERNELS_ALLOCATOR_H
#define DM_KERNELS_ALLOCATOR_H

#include "base/base.h"
#include "core/device.h"

/* The allocator calls these functions with its lock held, except pressure: they must not call
   the allocator. Streams and events are handles that only they interpret. */
typedef struct dm_RawMemory {
  void *ctx;
  /* Allocates a segment at a multiple of 512 bytes; false if there is no memory for it. */
  bool (*alloc)(void *ctx, int64_t n_bytes, void **out);
  /* Frees a segment that launched work may still use: waits for that, as cudaFree does. */
  void (*free)(void *ctx, void *p, int64_t n_bytes);
  /* Events are made early and reused, so that freeing a block cannot fail. */
  bool (*event_new)(void *ctx, void **event);
  void (*event_record)(void *ctx, void *event, void *stream);
  bool (*event_done)(void *ctx, void *event); /* never waits */
  void (*event_wait)(void *ctx, void *event);
  void (*event_free)(void *ctx, void *event);
  /* May be NULL. Called without the lock, once per request, when no memory is left: frees what
     it can, also by dm_allocator_free, and says whether another try is worth it. */
  bool (*pressure)(void *ctx);
  /* May be NULL. Told of each block, or part of one, that is handed out (begins) or free again,
     from this point of the stream's order on. */
  void (*life)(void *ctx, void *stream, void *p, int64_t n_bytes, bool begins);
} dm_RawMemory;

typedef struct dm_Allocator dm_Allocator;

/* NULL if the host has no memory. */
dm_Allocator *dm_allocator_new(const dm_RawMemory *raw);
/* Returns all memory, including blocks in use; waits for pending events. */
void dm_allocator_delete(dm_Allocator *a);

/* Allocates n_bytes at a multiple of 512, for work on the stream. DM_EMEM if even an emptied
   cache cannot serve it or the host has no memory for records; no message is recorded
   (dm_allocator_usage has what one needs). */
dm_status dm_allocator_alloc(dm_Allocator *a, void *stream, int64_t n_bytes, void **out);
/* False if p is no block in use; then nothing happens. */
bool dm_allocator_free(dm_Allocator *a, void *p);

/* Says that work on `stream` uses the block at p too. DM_EARG if p is no block in use, or
   DM_EMEM; no message is recorded. */
dm_status dm_allocator_record_stream(dm_Allocator *a, void *p, void *stream);

/* Returns segments without a block in use to the device; waits for pending events. */
void dm_allocator_empty_cache(dm_Allocator *a);

/* ---- graphs: launches that are run again later, on the same memory ---- */

/* Makes a pool for a graph of the stream: requests with this key for a stream take from
   it, and its blocks are reused within it alone. It takes whole segments that the stream does
   not use. False if the host has no memory. */
bool dm_allocator_pool_new(dm_Allocator *a, void *key, void *stream);
/* The blocks of the pool, those in use too, belong to the stream from now on. */
void dm_allocator_pool_free(dm_Allocator *a, void *key);

/* Holds the blocks that are in use now, but those of the pool: freed, they serve no request
   until dm_allocator_let_go has been called as often as dm_allocator_hold. */
void dm_allocator_hold(dm_Allocator *a, void *key);
void dm_allocator_let_go(dm_Allocator *a);

/* While it is paused it calls no function of raw memory but alloc: blocks that would have to
   wait for events stay with it, and nothing is given back. */
void dm_allocator_pause(dm_Allocator *a, bool pause);

int64_t dm_allocator_allocated_bytes(dm_Allocator *a);
void dm_allocator_stats(dm_Allocator *a, dm_MemStats *out);
void dm_allocator_reset_peaks(dm_Allocator *a);
void dm_allocator_reset_totals(dm_Allocator *a);

/* The number of raw allocations since the start. A training step makes none once one like it
   has run. */
int64_t dm_allocator_raw_allocations(dm_Allocator *a);

/* For an error message. largest_free: the largest cached block of any stream. */
typedef struct dm_AllocatorUsage {
  int64_t allocated, reserved, largest_free; /* bytes */
} dm_AllocatorUsage;
dm_AllocatorUsage dm_allocator_usage(dm_Allocator *a);

/* Calls fn for every block in use, in no particular order, with the bytes asked for. The lock
   is held: fn must not call the allocator. */
typedef void dm_LiveBlockFn(void *ctx, void *p, int64_t n_bytes);
void dm_allocator_each_live(dm_Allocator *a, dm_LiveBlockFn *fn, void *ctx);

#endif
