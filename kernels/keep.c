/* Kept copies, by site and stream. What a site gave is remembered on the host. When
   it differs, it is sent in the stream's order: earlier launches have read the old
   bytes by then. */
#include "kernels/keep.h"

#include <pthread.h>

enum { N_KEPT = 128, LEAST = 4096 };

typedef struct Kept {
  uint64_t site, used; /* used: when, by the clock */
  int device;
  cudaStream_t stream;
  int64_t n, capacity; /* n 0: nothing that could be trusted */
  void *mirror, *p;
} Kept;

static Kept kept[N_KEPT];
static uint64_t now;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all of these */

void dm_cuda_keep_begin(void) { pthread_mutex_lock(&lock); }
void dm_cuda_keep_end(void) { pthread_mutex_unlock(&lock); }

static int64_t capacity_for(int64_t n) {
  int64_t capacity = LEAST;
  while (capacity < n) capacity *= 2;
  return capacity;
}

/* This site's, or the one that nobody has asked for the longest. */
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

/* Its memory goes back to the stream whose launches read it. */
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

/* k belongs to the site and has capacity for n bytes. Memory of another stream or
   device is not taken over: its launches may be under way. */
static dm_status own(Kept *k, uint64_t site, int64_t n) {
  if (k->capacity < n || k->device != dm_cuda_device() || k->stream != dm_cuda_stream()) {
    drop(k);
    const int64_t capacity = capacity_for(n);
    DM_TRY(dm_cuda_scratch(capacity, &k->p));
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

dm_status dm_cuda_keep(uint64_t site, const void *bytes, int64_t n, void **out) {
  Kept *k = find(site);
  DM_TRY(own(k, site, n));
  k->used = ++now;
  *out = k->p;
  if (n == 0 || (k->n == n && memcmp(k->mirror, bytes, (size_t)n) == 0)) return DM_OK;
  k->n = 0;
  DM_TRY(dm_cuda_send(k->p, bytes, n));
  memcpy(k->mirror, bytes, (size_t)n);
  k->n = n;
  return DM_OK;
}

void dm_cuda_kept_is(const void *p, const void *bytes, int64_t n) {
  for (Kept *k = kept; k < kept + N_KEPT; k++)
    if (k->p == p) memcpy(k->mirror, bytes, (size_t)n);
}
