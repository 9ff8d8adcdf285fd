/* A ring of batches with two producers, one of memory and one of rows: batch b is in slot b %
   depth. The calling thread allocates the memory of slots and takes batches out; workers fill
   slots, each a whole batch. Batches come out in order, whichever worker is done first.

   Invariants, under `lock`: taken <= started <= taken + depth; slot b % depth of each b in
   [taken, taken + depth) has memory; it is ready once filled. A worker touches a slot only
   between start and ready, the calling thread only outside of that, so that the rows
   themselves need no lock. */
#define _POSIX_C_SOURCE 200809L
#include "data/loader.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/rng.h"
#include "cpu/threads.h"
#include "data/column.h"

enum {
  MAX_WORKERS = 256,
  MAX_PREFETCH = 64,
  DEFAULT_PREFETCH = 2,
  ROW_GRAIN_BYTES = 1 << 16, /* per range of dm_parallel_for: some microseconds */
  FAULT_BYTES = 512          /* of a message */
};

/* The failure of the first row of a batch that could not be read. */
typedef struct Fault {
  dm_status st; /* DM_OK: nothing */
  int64_t row;
  char text[FAULT_BYTES];
} Fault;

typedef struct Slot {
  dm_LoaderBuffer *buffers; /* n_columns; owned while `filled` */
  bool filled, ready;       /* has memory; has its batch */
  Fault fault;              /* of that batch */
} Slot;

struct dm_Loader {
  dm_LoaderSpec spec;
  dm_Column *columns;
  Slot *slots;
  dm_LoaderBuffer *all_buffers; /* depth * n_columns, the slots' */
  dm_LoaderBuffer *spare;       /* n_columns: the next memory of a taken slot */
  pthread_t *workers;
  int n_running, depth;
  unsigned forks; /* of the process when the workers started */

  /* The epoch. Constant while workers run. */
  uint64_t epoch;
  int64_t *order, *ends; /* ends[b]: of batch b in order; NULL: batch_size each */
  int64_t n_order, n_batches;

  pthread_mutex_t lock;
  pthread_cond_t batch_ready, slot_free;
  int64_t started, taken; /* batches begun by workers, handed to the caller */
  atomic_bool stopping;
};

/* ---- one batch ---- */

typedef struct Batch {
  dm_Loader *loader;
  const int64_t *samples;
  dm_LoaderBuffer *buffers;
  Fault *fault;
} Batch;

/* Keeps the fault of the lowest row, whichever thread met it first, so that the message does
   not depend on the number of threads. */
static void record_fault(const Batch *b, dm_status st, int64_t row) {
  Fault *f = b->fault;
  pthread_mutex_lock(&b->loader->lock);
  if (f->st == DM_OK || row < f->row) {
    f->st = st;
    f->row = row;
    snprintf(f->text, sizeof f->text, "%s", dm_error());
  }
  pthread_mutex_unlock(&b->loader->lock);
}

/* The seed of a sample's random numbers in this epoch; the same for each of its columns. */
static uint64_t draw_of(const dm_Loader *l, int64_t sample) {
  uint64_t state = l->spec.seed;
  state = dm_splitmix64(&state) ^ l->epoch;
  return dm_splitmix64(&state) ^ (uint64_t)sample;
}

/* Writes row i of the batch in each column. */
static dm_status make_row(const Batch *b, int64_t i) {
  const dm_Loader *l = b->loader;
  const int64_t sample = b->samples[i];
  const uint64_t draw = draw_of(l, sample);
  for (int c = 0; c < l->spec.n_columns; c++) {
    const dm_Column *k = &l->columns[c];
    DM_TRY(dm_column_row(k, sample, draw, (uint8_t *)b->buffers[c].data + i * k->out_bytes));
  }
  return DM_OK;
}

/* Writes rows [begin, end) until one fails or the epoch is stopped. */
static void make_rows(void *ctx, int64_t begin, int64_t end) {
  const Batch *b = ctx;
  for (int64_t i = begin; i < end; i++) {
    if (atomic_load_explicit(&b->loader->stopping, memory_order_relaxed)) return;
    const dm_status st = make_row(b, i);
    if (st == DM_OK) continue;
    record_fault(b, st, i);
    return;
  }
}

/* The index in the order at which a batch begins. */
static int64_t begin_of(const dm_Loader *l, int64_t batch) {
  if (!l->ends) return batch * l->spec.batch_size;
  return batch > 0 ? l->ends[batch - 1] : 0;
}

static int64_t rows_of(const dm_Loader *l, int64_t batch) {
  if (l->ends) return l->ends[batch] - begin_of(l, batch);
  return dm_min_i64(l->spec.batch_size, l->n_order - begin_of(l, batch));
}

static Batch batch_at(dm_Loader *l, int64_t batch, dm_LoaderBuffer *buffers, Fault *fault) {
  return (Batch){l, l->order + begin_of(l, batch), buffers, fault};
}

/* Rows per range of dm_parallel_for. */
static int64_t row_grain(int64_t row_bytes) {
  return dm_max_i64(1, ROW_GRAIN_BYTES / dm_max_i64(row_bytes, 1));
}

/* ---- memory ---- */

/* The allocator of callers that give none. */
static dm_status plain_alloc(void *ctx, int k, int64_t n_rows, int64_t n_bytes,
                             dm_LoaderBuffer *out) {
  DM_UNUSED(ctx);
  out->owner = out->data = dm_alloc(n_bytes);
  if (!out->data)
    return dm_fail(DM_EMEM,
                   "loader: out of memory for a batch of %" PRId64 " rows (column %d, %" PRId64
                   " bytes)",
                   n_rows, k + 1, n_bytes);
  return DM_OK;
}

static void plain_free(void *ctx, dm_LoaderBuffer *buffer) {
  DM_UNUSED(ctx);
  dm_free(buffer->data);
}

static void free_buffers(dm_Loader *l, dm_LoaderBuffer *buffers, int n) {
  while (n-- > 0) l->spec.free(l->spec.ctx, &buffers[n]);
}

/* Memory for all columns of a batch, or none of it. */
static dm_status alloc_buffers(dm_Loader *l, int64_t batch, dm_LoaderBuffer *buffers) {
  const int64_t n_rows = rows_of(l, batch);
  for (int c = 0; c < l->spec.n_columns; c++) {
    const int64_t n_bytes = n_rows * l->columns[c].out_bytes;
    const dm_status st = l->spec.alloc(l->spec.ctx, c, n_rows, n_bytes, &buffers[c]);
    if (st != DM_OK) {
      free_buffers(l, buffers, c);
      return st;
    }
  }
  return DM_OK;
}

/* ---- workers ---- */

/* A worker: claims the next batch as soon as the ring has a slot for it, fills the slot
   without the lock, and marks it ready. */
static void *worker_main(void *arg) {
  dm_Loader *l = arg;
  pthread_mutex_lock(&l->lock);
  for (;;) {
    while (!atomic_load(&l->stopping) && l->started < l->n_batches &&
           l->started >= l->taken + l->depth)
      pthread_cond_wait(&l->slot_free, &l->lock);
    if (atomic_load(&l->stopping) || l->started >= l->n_batches) break;
    const int64_t batch = l->started++;
    Slot *slot = &l->slots[batch % l->depth];
    pthread_mutex_unlock(&l->lock);
    Batch b = batch_at(l, batch, slot->buffers, &slot->fault);
    make_rows(&b, 0, rows_of(l, batch));
    pthread_mutex_lock(&l->lock);
    slot->ready = true;
    pthread_cond_signal(&l->batch_ready);
  }
  pthread_mutex_unlock(&l->lock);
  return NULL;
}

/* Whether the loader's workers run in the process that this one was forked from. */
static bool is_orphan(const dm_Loader *l) {
  return l->n_running > 0 && l->forks != dm_fork_count();
}

/* Starts the workers with all signals blocked: signals go to the program's own threads, so
   that Ctrl-C interrupts it. */
static dm_status start_workers(dm_Loader *l) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int fault = 0;
  l->forks = dm_fork_count();
  while (l->n_running < l->spec.num_workers && !fault) {
    fault = pthread_create(&l->workers[l->n_running], NULL, worker_main, l);
    if (!fault) l->n_running++;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (fault)
    return dm_fail(DM_EMEM, "loader: cannot start worker %d of %d: %s", l->n_running + 1,
                   l->spec.num_workers, strerror(fault));
  return DM_OK;
}

/* Makes the lock and its conditions; timed waits use the monotonic clock, which nobody
   sets. */
static dm_status init_locks(dm_Loader *l) {
  pthread_condattr_t steady;
  if (pthread_condattr_init(&steady) != 0) goto fail;
  const int fault = pthread_condattr_setclock(&steady, CLOCK_MONOTONIC) ||
                    pthread_cond_init(&l->batch_ready, &steady);
  pthread_condattr_destroy(&steady);
  if (fault) goto fail;
  if (pthread_cond_init(&l->slot_free, NULL) != 0) goto no_free;
  if (pthread_mutex_init(&l->lock, NULL) != 0) goto no_lock;
  return DM_OK;
no_lock:
  pthread_cond_destroy(&l->slot_free);
no_free:
  pthread_cond_destroy(&l->batch_ready);
fail:
  return dm_fail(DM_EMEM, "loader: the system gave no lock");
}

/* Makes the workers leave after the row at hand, and waits for them. After a fork there are
   none, and one of them may have held the lock: it is made anew. */
static void join_workers(dm_Loader *l) {
  if (is_orphan(l)) {
    l->n_running = 0;
    atomic_store(&l->stopping, false);
    (void)init_locks(l); /* it made them before */
    return;
  }
  pthread_mutex_lock(&l->lock);
  atomic_store(&l->stopping, true);
  pthread_cond_broadcast(&l->slot_free);
  pthread_mutex_unlock(&l->lock);
  while (l->n_running > 0) pthread_join(l->workers[--l->n_running], NULL);
  atomic_store(&l->stopping, false);
}

/* ---- new and free ---- */

static dm_status check_spec(const dm_LoaderSpec *s) {
  if (s->n_columns < 1) return dm_fail(DM_EARG, "loader: no columns");
  if (s->n_samples < 0 || s->batch_size < 1)
    return dm_fail(
        DM_EARG, "loader: %" PRId64 " samples in batches of %" PRId64 ", at least 1 is wanted",
        s->n_samples, s->batch_size);
  if (s->num_workers < 0 || s->num_workers > MAX_WORKERS)
    return dm_fail(DM_EARG, "loader: num_workers is %d, 0 to %d are possible", s->num_workers,
                   MAX_WORKERS);
  if (s->prefetch < 0 || s->prefetch > MAX_PREFETCH)
    return dm_fail(DM_EARG, "loader: prefetch is %d, 0 to %d are possible", s->prefetch,
                   MAX_PREFETCH);
  return DM_OK;
}

/* Allocates the slots once; epochs reuse them. With no workers the ring is empty. */
static dm_status alloc_ring(dm_Loader *l) {
  const int64_t n_columns = l->spec.n_columns;
  l->slots = dm_alloc_zero(l->depth * (int64_t)sizeof *l->slots);
  l->all_buffers = dm_alloc_zero(l->depth * n_columns * (int64_t)sizeof *l->all_buffers);
  l->spare = dm_alloc_zero(n_columns * (int64_t)sizeof *l->spare);
  l->workers = dm_alloc_zero(l->spec.num_workers * (int64_t)sizeof *l->workers);
  if (!l->slots || !l->all_buffers || !l->spare || !l->workers)
    return dm_fail(DM_EMEM, "loader: out of memory for a ring of %d batches", l->depth);
  for (int i = 0; i < l->depth; i++) l->slots[i].buffers = l->all_buffers + i * n_columns;
  return DM_OK;
}

static void free_parts(dm_Loader *l) {
  dm_free(l->columns);
  dm_free(l->slots);
  dm_free(l->all_buffers);
  dm_free(l->spare);
  dm_free(l->workers);
  dm_free(l);
}

dm_status dm_loader_new(dm_Loader **out, const dm_LoaderSpec *spec) {
  dm_status st = DM_OK;
  DM_TRY(check_spec(spec));
  dm_Loader *l = dm_alloc_zero(sizeof *l);
  if (!l) return dm_fail(DM_EMEM, "loader: out of memory");
  l->spec = *spec;
  if (!spec->alloc) {
    l->spec.alloc = plain_alloc;
    l->spec.free = plain_free;
  }
  l->depth = spec->num_workers * (spec->prefetch ? spec->prefetch : DEFAULT_PREFETCH);
  l->columns = dm_alloc_zero(spec->n_columns * (int64_t)sizeof *l->columns);
  if (!l->columns) {
    st = dm_fail(DM_EMEM, "loader: out of memory for %d columns", spec->n_columns);
    goto done;
  }
  for (int c = 0; c < spec->n_columns; c++) {
    DM_GO(dm_column_new(&l->columns[c], &spec->columns[c], spec->n_samples, c));
    if (spec->batch_size > INT64_MAX / dm_max_i64(l->columns[c].out_bytes, 1)) {
      st = dm_fail(DM_EARG, "loader: column %d: a batch of it overflows", c + 1);
      goto done;
    }
  }
  DM_GO(alloc_ring(l));
  DM_GO(init_locks(l));
  *out = l;
done:
  if (st != DM_OK) free_parts(l);
  return st;
}

void dm_loader_free(dm_Loader **loader) {
  dm_Loader *l = *loader;
  *loader = NULL;
  if (!l) return;
  dm_loader_stop(l);
  pthread_mutex_destroy(&l->lock);
  pthread_cond_destroy(&l->slot_free);
  pthread_cond_destroy(&l->batch_ready);
  free_parts(l);
}

dm_DType dm_loader_dtype(const dm_Loader *l, int k) { return l->columns[k].dtype; }
int64_t dm_loader_row_numel(const dm_Loader *l, int k) { return l->columns[k].out_numel; }

int64_t dm_loader_num_batches(const dm_Loader *l, int64_t n) {
  const int64_t size = l->spec.batch_size;
  return n / size + (!l->spec.drop_last && n % size != 0);
}

/* ---- an epoch ---- */

/* Checks samples before an epoch, so that workers need not. */
static dm_status check_index(const char *op, const int64_t *index, int64_t n, int64_t limit) {
  for (int64_t i = 0; i < n; i++)
    if (index[i] < 0 || index[i] >= limit)
      return dm_fail(DM_EARG,
                     "%s: index %" PRId64 " at position %" PRId64 ", there are %" PRId64
                     " samples",
                     op, index[i] + 1, i + 1, limit);
  return DM_OK;
}

static dm_status no_memory(int64_t n) {
  return dm_fail(DM_EMEM, "loader: out of memory for an order of %" PRId64, n);
}

static int64_t *copy_of(const int64_t *from, int64_t n) {
  int64_t *copy = n <= INT64_MAX / 8 ? dm_alloc(n * (int64_t)sizeof *copy) : NULL;
  if (copy && n > 0) memcpy(copy, from, (size_t)n * sizeof *copy);
  return copy;
}

/* Starts an epoch over a copy of the order: stops the one before, allocates the memory of the
   first `depth` batches, and starts the workers. Takes the ends. */
static dm_status start_epoch(dm_Loader *l, uint64_t epoch, const int64_t *order, int64_t n,
                             int64_t *ends, int64_t n_batches) {
  dm_status st = DM_OK;
  int64_t *copy = copy_of(order, n);
  if (!copy) {
    dm_free(ends);
    return no_memory(n);
  }
  dm_loader_stop(l);
  l->order = copy;
  l->ends = ends;
  l->epoch = epoch;
  l->n_order = n;
  l->n_batches = n_batches;
  for (int64_t b = 0; b < dm_min_i64(l->depth, l->n_batches); b++) {
    DM_GO(alloc_buffers(l, b, l->slots[b].buffers));
    l->slots[b].filled = true;
  }
  if (l->n_batches > 0) DM_GO(start_workers(l));
done:
  if (st != DM_OK) dm_loader_stop(l);
  return st;
}

dm_status dm_loader_epoch(dm_Loader *l, uint64_t epoch, const int64_t *order, int64_t n) {
  if (n < 0) return dm_fail(DM_EARG, "loader: an order of %" PRId64 " samples", n);
  DM_TRY(check_index("loader", order, n, l->spec.n_samples));
  return start_epoch(l, epoch, order, n, NULL, dm_loader_num_batches(l, n));
}

/* Turns sizes of batches into their ends and checks that they cover the order. */
static dm_status sum_up(const dm_Loader *l, int64_t *sizes, int64_t n_batches, int64_t n) {
  int64_t end = 0, largest = 1;
  for (int c = 0; c < l->spec.n_columns; c++)
    largest = dm_max_i64(largest, l->columns[c].out_bytes);
  for (int64_t b = 0; b < n_batches; b++) {
    if (sizes[b] < 1 || sizes[b] > dm_min_i64(n - end, INT64_MAX / largest))
      return dm_fail(DM_EARG, "loader: batch %" PRId64 " has %" PRId64 " samples of %" PRId64,
                     b + 1, sizes[b], n - end);
    sizes[b] = end += sizes[b];
  }
  if (end != n)
    return dm_fail(DM_EARG, "loader: batches of %" PRId64 " samples in all, there are %" PRId64,
                   end, n);
  return DM_OK;
}

dm_status dm_loader_epoch_of(dm_Loader *l, uint64_t epoch, const int64_t *order, int64_t n,
                             const int64_t *sizes, int64_t n_batches) {
  if (n < 0 || n_batches < 0)
    return dm_fail(DM_EARG, "loader: an order of %" PRId64 " samples, %" PRId64 " batches", n,
                   n_batches);
  DM_TRY(check_index("loader", order, n, l->spec.n_samples));
  int64_t *ends = copy_of(sizes, n_batches);
  if (!ends) return no_memory(n_batches);
  const dm_status st = sum_up(l, ends, n_batches, n);
  if (st == DM_OK) return start_epoch(l, epoch, order, n, ends, n_batches);
  dm_free(ends);
  return st;
}

/* Workers are joined first, so that nobody writes to the buffers that are freed then. */
void dm_loader_stop(dm_Loader *l) {
  join_workers(l);
  for (int i = 0; i < l->depth; i++) {
    Slot *slot = &l->slots[i];
    if (slot->filled) free_buffers(l, slot->buffers, l->spec.n_columns);
    slot->filled = slot->ready = false;
    slot->fault.st = DM_OK;
  }
  dm_free(l->order);
  dm_free(l->ends);
  l->order = l->ends = NULL;
  l->n_order = l->n_batches = l->started = l->taken = 0;
}

/* The time on the monotonic clock that is ms from now. */
static struct timespec deadline_after(int64_t ms) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  ms = dm_min_i64(ms, INT32_MAX); /* 24 days */
  t.tv_sec += (time_t)(ms / 1000);
  t.tv_nsec += (long)(ms % 1000) * 1000000;
  if (t.tv_nsec >= 1000000000) {
    t.tv_sec++;
    t.tv_nsec -= 1000000000;
  }
  return t;
}

/* Whether the slot has its batch, after waiting up to timeout_ms for it. */
static bool wait_ready(dm_Loader *l, const Slot *slot, int64_t timeout_ms) {
  const struct timespec end = deadline_after(dm_max_i64(timeout_ms, 0));
  int late = 0;
  pthread_mutex_lock(&l->lock);
  while (!slot->ready && late != ETIMEDOUT)
    late = timeout_ms < 0 ? pthread_cond_wait(&l->batch_ready, &l->lock)
                          : pthread_cond_timedwait(&l->batch_ready, &l->lock, &end);
  const bool ready = slot->ready;
  pthread_mutex_unlock(&l->lock);
  return ready;
}

/* Fills the batch that is next in turn on this thread and the engine's pool. */
static void fill_batch(dm_Loader *l, dm_LoaderBuffer *buffers, Fault *fault) {
  int64_t row_bytes = 0;
  for (int c = 0; c < l->spec.n_columns; c++) row_bytes += l->columns[c].out_bytes;
  Batch b = batch_at(l, l->taken, buffers, fault);
  fault->st = DM_OK;
  dm_parallel_for(rows_of(l, l->taken), row_grain(row_bytes), make_rows, &b);
}

/* Records the fault of a batch as the failure of this call. */
static dm_status tell(const Fault *f) { return dm_fail(f->st, "%s", f->text); }

/* Returns a ready batch, or skips one at fault, and gives its slot new memory for the
   workers. The memory comes first: when there is none, the batch stays in its slot. A batch
   whose worker lacked memory is filled again here. */
static dm_status take_batch(dm_Loader *l, Slot *slot, dm_LoaderBuffer *out) {
  const size_t bytes = (size_t)l->spec.n_columns * sizeof *out;
  if (slot->fault.st == DM_EMEM) fill_batch(l, slot->buffers, &slot->fault);
  const Fault fault = slot->fault;
  if (fault.st == DM_EMEM) return tell(&fault);
  const int64_t next = l->taken + l->depth;
  const bool refill = next < l->n_batches;
  if (refill) DM_TRY(alloc_buffers(l, next, l->spare));
  if (fault.st == DM_OK) memcpy(out, slot->buffers, bytes);
  else free_buffers(l, slot->buffers, l->spec.n_columns);
  if (refill) memcpy(slot->buffers, l->spare, bytes);
  pthread_mutex_lock(&l->lock);
  slot->filled = refill;
  slot->ready = false;
  slot->fault.st = DM_OK;
  l->taken++;
  pthread_cond_signal(&l->slot_free);
  pthread_mutex_unlock(&l->lock);
  return fault.st == DM_OK ? DM_OK : tell(&fault);
}

/* Makes the next batch in this call, for num_workers = 0. */
static dm_status make_batch(dm_Loader *l, dm_LoaderBuffer *out) {
  DM_TRY(alloc_buffers(l, l->taken, out));
  Fault fault;
  fill_batch(l, out, &fault);
  if (fault.st != DM_OK) free_buffers(l, out, l->spec.n_columns);
  if (fault.st != DM_EMEM) l->taken++;
  return fault.st == DM_OK ? DM_OK : tell(&fault);
}

dm_status dm_loader_next_timed(dm_Loader *l, dm_LoaderBuffer *out, int64_t *n_rows,
                               int64_t timeout_ms, dm_LoaderState *state) {
  *n_rows = 0;
  *state = DM_LOADER_END;
  if (l->taken >= l->n_batches) return DM_OK;
  if (is_orphan(l)) {
    dm_loader_stop(l);
    return dm_fail(DM_ESTATE,
                   "loader: its workers stayed behind when this process was forked, and "
                   "so did the epoch; hint: begin an epoch in the process that uses it");
  }
  const int64_t rows = rows_of(l, l->taken);
  if (l->depth == 0) {
    DM_TRY(make_batch(l, out));
  } else {
    Slot *slot = &l->slots[l->taken % l->depth];
    *state = DM_LOADER_WAIT;
    if (!wait_ready(l, slot, timeout_ms)) return DM_OK;
    DM_TRY(take_batch(l, slot, out));
  }
  *n_rows = rows;
  *state = DM_LOADER_BATCH;
  return DM_OK;
}

dm_status dm_loader_next(dm_Loader *l, dm_LoaderBuffer *out, int64_t *n_rows,
                         dm_LoaderState *state) {
  return dm_loader_next_timed(l, out, n_rows, -1, state);
}

int64_t dm_loader_passed(const dm_Loader *l) { return l->taken; }

/* ---- gather ---- */

typedef struct Gather {
  uint8_t *dst;
  const uint8_t *src;
  int64_t row_bytes;
  const int64_t *index;
} Gather;

/* Copies rows [begin, end). */
static void gather_rows(void *ctx, int64_t begin, int64_t end) {
  const Gather *g = ctx;
  for (int64_t i = begin; i < end; i++)
    memcpy(g->dst + i * g->row_bytes, g->src + g->index[i] * g->row_bytes,
           (size_t)g->row_bytes);
}

dm_status dm_sample_gather(void *dst, const void *src, int64_t n_rows, int64_t row_bytes,
                           const int64_t *index, int64_t n) {
  DM_TRY(check_index("gather", index, n, n_rows));
  Gather g = {dst, src, row_bytes, index};
  if (row_bytes > 0) dm_parallel_for(n, row_grain(row_bytes), gather_rows, &g);
  return DM_OK;
}
