/* Assembles the batches of an epoch in order, by threads of its own and before they are asked
   for. No thread ever calls Lua, since what they do is declared: column k of a batch holds rows
   of array k as they are, or after the transforms of augment.h, or as a reader writes them.
   Random numbers depend on (seed, epoch, sample) alone and are the same for every column, so
   that batches are the same bytes for every number of workers.

     dm_loader_new -> [dm_loader_epoch -> dm_loader_next ... -> dm_loader_stop]*
                   -> dm_loader_free

   One thread calls these functions; the workers stay inside. */
#ifndef DM_LOADER_H
#define DM_LOADER_H

#include "data/column.h"

/* The memory of one column of one batch. `owner` is the allocator's business: a tensor, say,
   whose bytes are `data`. */
typedef struct dm_LoaderBuffer {
  void *data, *owner;
} dm_LoaderBuffer;

typedef struct dm_LoaderSpec {
  const dm_LoaderColumn *columns; /* copied */
  int n_columns;
  int64_t n_samples, batch_size;
  bool drop_last;  /* no last batch that is short */
  int num_workers; /* 0: dm_loader_next assembles, with dm_parallel_for */
  int prefetch;    /* batches per worker that wait to be taken; 0: 2 */
  uint64_t seed;
  /* Allocates column k of a batch of n_rows (n_bytes in all), and frees it
     when it never reached the caller. Called only from the thread that
     calls the loader. Both NULL: dm_alloc and dm_free, owner == data. */
  dm_status (*alloc)(void *ctx, int k, int64_t n_rows, int64_t n_bytes, dm_LoaderBuffer *out);
  void (*free)(void *ctx, dm_LoaderBuffer *buffer);
  void *ctx;
} dm_LoaderSpec;

typedef struct dm_Loader dm_Loader;

typedef enum dm_LoaderState {
  DM_LOADER_BATCH, /* a batch was handed out */
  DM_LOADER_WAIT,  /* none became ready in time: ask again */
  DM_LOADER_END    /* the epoch is over */
} dm_LoaderState;

DM_API dm_status dm_loader_new(dm_Loader **out, const dm_LoaderSpec *spec);
DM_API void dm_loader_free(dm_Loader **loader); /* stops first; NULL is fine */

/* The dtype of column k in a batch, and the elements of a row there. */
DM_API dm_DType dm_loader_dtype(const dm_Loader *loader, int k);
DM_API int64_t dm_loader_row_numel(const dm_Loader *loader, int k);
/* Batches of an epoch over n samples. */
DM_API int64_t dm_loader_num_batches(const dm_Loader *loader, int64_t n);

/* Starts an epoch over samples order[0..n), copied and checked; stops the one
   before. `epoch` enters the random draws. */
DM_API dm_status dm_loader_epoch(dm_Loader *loader, uint64_t epoch, const int64_t *order,
                                 int64_t n);

/* Starts an epoch whose n_batches batches have the given sizes, at least 1 each, which sum to
   n. */
DM_API dm_status dm_loader_epoch_of(dm_Loader *loader, uint64_t epoch, const int64_t *order,
                                    int64_t n, const int64_t *sizes, int64_t n_batches);

/* Waits for the next batch in order and gives out[n_columns], which now belong
   to the caller, and its rows. When memory runs out nothing is lost: the same call may be
   made again. Another failure is that of a row, which cannot be read: the batch is passed
   over, and the next call gives the one after it. */
DM_API dm_status dm_loader_next(dm_Loader *loader, dm_LoaderBuffer *out, int64_t *n_rows,
                                dm_LoaderState *state);
/* dm_loader_next that waits at most timeout_ms; without limit below 0. */
DM_API dm_status dm_loader_next_timed(dm_Loader *loader, dm_LoaderBuffer *out, int64_t *n_rows,
                                      int64_t timeout_ms, dm_LoaderState *state);

/* Batches of the epoch that were handed out or passed over. */
DM_API int64_t dm_loader_passed(const dm_Loader *loader);

/* Ends the epoch at any moment: joins the workers, frees batches that were not taken. The
   arrays are not read after it. Fine when nothing runs. */
DM_API void dm_loader_stop(dm_Loader *loader);

/* dst (n, row_bytes) = src[index[i]], src (n_rows, row_bytes). An index out of
   range is refused before anything is written. */
DM_API dm_status dm_sample_gather(void *dst, const void *src, int64_t n_rows, int64_t row_bytes,
                                  const int64_t *index, int64_t n);

#endif
