/* Small tables that launches read are kept in device memory from call to call: tables of
   tensors, options, generators. Each has a site (who asks) and a stream.

   The host keeps a mirror of the bytes last sent. The same bytes again need no copy, so that a
   training step sends nothing once it has run; different bytes are sent in stream order,
   through pinned memory (dm_cuda_send), when earlier launches have read the old ones. The
   address stays the same either way, as captured launches need. */
#include "kernels/keep.h"

#include <pthread.h>

#include "kernels/graph.h"

enum { N_KEPT = 128, LEAST = 4096 };

typedef struct Kept {
  uint64_t site, used; /* used: the time of the last use, by `now` */
  int device;
  cudaStream_t stream;
  int64_t n, capacity; /* n 0: the copy's bytes are not known */
  void *mirror, *p;
} Kept;

static Kept kept[N_KEPT];
static uint64_t now;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards kept and now */

void dm_cuda_keep_begin(void) { pthread_mutex_lock(&lock); }
void dm_cuda_keep_end(void) { pthread_mutex_unlock(&lock); }

/* Capacities are powers of two, so that a growing table moves rarely. */
static int64_t capacity_for(int64_t n) {
  int64_t capacity = LEAST;
  while (capacity < n) capacity *= 2;
  return capacity;
}

/* The site's copy on the current device and stream, or the one that was used least
   recently. */
static Kept *find(uint64_t site) {
  Kept *oldest = kept;
  for (Kept *k = kept; k < kept + N_KEPT; k++) {
    if (k->p && k->site == site && k->device == dm_cuda_device() &&
        k->stream == dm_cuda_stream())
      return k;
    if (k->used < oldest->used) oldest = k;
  }
  return oldest;
}

/* Frees a copy, in the order of the stream whose launches read it. */
static void drop(Kept *k) {
  if (k->p) dm_cuda_give_back(k->device, k->p);
  dm_free(k->mirror);
  memset(k, 0, sizeof *k);
}

void dm_cuda_keep_drop(int device) {
  dm_cuda_keep_begin();
  for (Kept *k = kept; k < kept + N_KEPT; k++)
    if (k->device == device) drop(k);
  dm_cuda_keep_end();
}

/* Gives k to the site, with capacity for n bytes. Memory of another stream or device is not
   reused, since launches that read it may still run. */
static dm_status own(Kept *k, uint64_t site, int64_t n) {
  if (k->capacity < n || k->device != dm_cuda_device() || k->stream != dm_cuda_stream()) {
    drop(k);
    const int64_t capacity = capacity_for(n);
    DM_TRY(dm_graph_lasting(capacity, &k->p));
    k->device = dm_cuda_device();
    k->mirror = dm_alloc(capacity);
    if (!k->mirror) {
      drop(k);
      return dm_fail(DM_EMEM, "cuda: out of memory for %lld bytes", (long long)capacity);
    }
    k->capacity = capacity;
    k->stream = dm_cuda_stream();
  }
  if (k->site != site) k->n = 0;
  k->site = site;
  return DM_OK;
}

/* Until the copy has been queued, n is 0: after an error the bytes are not trusted. */
dm_status dm_cuda_keep(uint64_t site, const void *bytes, int64_t n, void **out) {
  if (DM_UNLIKELY(dm_graph_is_capturing())) return dm_graph_keep(site, bytes, n, out);
  Kept *k = find(site);
  DM_TRY(own(k, site, n));
  k->used = ++now;
  *out = k->p;
  if (n == 0 || (k->n == n && memcmp(k->mirror, bytes, (size_t)n) == 0)) return DM_OK;
  k->n = 0;
  /* The bytes are sent in the stream's order, and the mirror follows. */
  DM_TRY(dm_cuda_send(k->p, bytes, n));
  memcpy(k->mirror, bytes, (size_t)n);
  k->n = n;
  return DM_OK;
}

dm_status dm_cuda_keep_step(uint64_t site, const void *bytes, int64_t n, void **out) {
  return DM_UNLIKELY(dm_graph_is_capturing()) ? dm_graph_keep_step(site, bytes, n, out)
                                              : dm_cuda_keep(site, bytes, n, out);
}

/* The mirror follows what a launch wrote. */
void dm_cuda_kept_is(const void *p, const void *bytes, int64_t n) {
  for (Kept *k = kept; k < kept + N_KEPT; k++)
    if (k->p == p) memcpy(k->mirror, bytes, (size_t)n);
}
