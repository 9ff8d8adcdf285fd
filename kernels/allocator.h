/* The caching allocator of one CUDA device. It knows no CUDA: raw memory and
   events come through a table of functions, so that it is tested on the host.

   Order by streams. A block belongs to the stream that it was allocated on. Freed,
   it serves that stream at once: what is launched there later runs after what used
   the block before. Where another stream used it too (record_stream), it waits until
   that stream has passed the point where it was freed.

   Every function may be called by any thread. */
#ifndef DM_KERNELS_ALLOCATOR_H
#define DM_KERNELS_ALLOCATOR_H

#include "base/base.h"
#include "core/device.h"

/* Called with the allocator's lock held, all but pressure: they must not call the
   allocator. Streams and events are handles that only these functions look into. */
typedef struct dm_RawMemory {
  void *ctx;
  /* A segment, at a multiple of 512; false when there is no memory for it. */
  bool (*alloc)(void *ctx, int64_t n_bytes, void **out);
  /* Launched work may still use it: waits for that, as cudaFree does. */
  void (*free)(void *ctx, void *p, int64_t n_bytes);
  /* Events are made early and used again, so that freeing a block cannot fail. */
  bool (*event_new)(void *ctx, void **event);
  void (*event_record)(void *ctx, void *event, void *stream);
  bool (*event_done)(void *ctx, void *event); /* never waits */
  void (*event_wait)(void *ctx, void *event);
  void (*event_free)(void *ctx, void *event);
  /* Or NULL. No memory is left: frees what it can, by dm_allocator_free too, and says
     whether a further try is worth it. Called without the lock, once a request. */
  bool (*pressure)(void *ctx);
} dm_RawMemory;

typedef struct dm_Allocator dm_Allocator;

/* NULL when the host has no memory. */
dm_Allocator *dm_allocator_new(const dm_RawMemory *raw);
/* Gives everything back, blocks in use too; waits for pending events. */
void dm_allocator_delete(dm_Allocator *a);

/* A block of n_bytes at a multiple of 512, for work launched on the stream. DM_EMEM
   when even an emptied cache cannot serve it, or the host lacks memory for the bookkeeping; no
   message is recorded (dm_allocator_usage has what one needs). */
dm_status dm_allocator_alloc(dm_Allocator *a, void *stream, int64_t n_bytes, void **out);
/* False when p is no block in use; nothing happens then. */
bool dm_allocator_free(dm_Allocator *a, void *p);

/* Work on `stream`, too, uses the block at p. DM_EARG when p is no block in use, DM_EMEM;
   neither records a message. */
dm_status dm_allocator_record_stream(dm_Allocator *a, void *p, void *stream);

/* Gives segments without a block in use back to the device; waits for pending events. */
void dm_allocator_empty_cache(dm_Allocator *a);

int64_t dm_allocator_allocated_bytes(dm_Allocator *a);
void dm_allocator_stats(dm_Allocator *a, dm_MemStats *out);
void dm_allocator_reset_peaks(dm_Allocator *a);
void dm_allocator_reset_totals(dm_Allocator *a);

/* How often raw memory was taken since the start. A training step takes none once
   a step like it has run. */
int64_t dm_allocator_raw_allocations(dm_Allocator *a);

/* For a message. largest_free: of the cached blocks, whichever stream they belong to. */
typedef struct dm_AllocatorUsage {
  int64_t allocated, reserved, largest_free; /* bytes */
} dm_AllocatorUsage;
dm_AllocatorUsage dm_allocator_usage(dm_Allocator *a);

/* Calls fn for every block in use, in no order, with the bytes asked for. fn runs
   under the lock: it must not call the allocator. */
typedef void dm_LiveBlockFn(void *ctx, void *p, int64_t n_bytes);
void dm_allocator_each_live(dm_Allocator *a, dm_LiveBlockFn *fn, void *ctx);

#endif
