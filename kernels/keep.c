/* Kept copies, by site and stream. What a site gave is remembered on the host. When
   it differs, it goes through a pinned buffer that no earlier copy still reads, in
   the stream's order: earlier launches have read the old bytes by then. */
#include "kernels/keep.h"

#include <pthread.h>

enum { N_KEPT = 128, LEAST = 4096 };

typedef struct Kept {
  uint64_t site, used; /* used: when, by the clock */
  int device;
  cudaStream_t stream;
  int64_t n, room; /* n 0: nothing that could be trusted */
  void *mirror, *p;
} Kept;

typedef struct Stage {
  struct Stage *next;
  int device;
  int64_t room;
  void *p;
  cudaEvent_t read; /* the last copy out of it is done */
} Stage;

static Kept kept[N_KEPT];
static Stage *stages;
static uint64_t now;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all of these */

void dm_cuda_keep_begin(void) { pthread_mutex_lock(&lock); }
void dm_cuda_keep_end(void) { pthread_mutex_unlock(&lock); }

static int64_t room_for(int64_t n) {
  int64_t room = LEAST;
  while (room < n) room *= 2;
  return room;
}

/* ---- pinned buffers ---- */

static dm_status stage_new(int64_t room, Stage **out) {
  Stage *s = dm_alloc_zero((int64_t)sizeof *s);
  if (!s) return dm_fail(DM_EMEM, "cuda: out of memory for a buffer's name");
  cudaError_t e = cudaHostAlloc(&s->p, (size_t)room, cudaHostAllocPortable);
  if (e == cudaSuccess) e = cudaEventCreateWithFlags(&s->read, cudaEventDisableTiming);
  if (e != cudaSuccess) {
    if (s->p) cudaFreeHost(s->p);
    dm_free(s);
    return dm_cuda_fail(e, "cudaHostAlloc");
  }
  s->room = room;
  s->device = dm_cuda_device();
  s->next = stages;
  stages = s;
  *out = s;
  return DM_OK;
}

/* One that is free: it never waits for one. */
static dm_status stage_take(int64_t n, Stage **out) {
  for (Stage *s = stages; s; s = s->next) {
    if (s->room < n || s->device != dm_cuda_device()) continue;
    if (cudaEventQuery(s->read) == cudaSuccess) {
      *out = s;
      return DM_OK;
    }
  }
  (void)cudaGetLastError(); /* "not ready" is no failure */
  return stage_new(room_for(n), out);
}

/* ---- copies ---- */

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

static void drop(Kept *k) {
  if (k->p) cudaFree(k->p); /* waits for who reads it */
  dm_free(k->mirror);
  memset(k, 0, sizeof *k);
}

/* k belongs to the site and has room for n bytes. Memory of another stream or
   device is not taken over: its launches may be under way. */
static dm_status own(Kept *k, uint64_t site, int64_t n) {
  if (k->room < n || k->device != dm_cuda_device() || k->stream != dm_cuda_stream()) {
    drop(k);
    const int64_t room = room_for(n);
    DM_TRY(dm_cuda_raw_alloc(room, &k->p));
    k->mirror = dm_alloc(room);
    if (!k->mirror) {
      drop(k);
      return dm_fail(DM_EMEM, "cuda: out of memory for %lld bytes", (long long)room);
    }
    k->room = room;
    k->device = dm_cuda_device();
    k->stream = dm_cuda_stream();
  }
  if (k->site != site) k->n = 0;
  k->site = site;
  return DM_OK;
}

static dm_status upload(Kept *k, const void *bytes, int64_t n) {
  Stage *s = NULL;
  DM_TRY(stage_take(n, &s));
  memcpy(s->p, bytes, (size_t)n);
  k->n = 0;
  DM_CUDA_TRY(cudaMemcpyAsync(k->p, s->p, (size_t)n, cudaMemcpyHostToDevice, k->stream));
  DM_CUDA_TRY(cudaEventRecord(s->read, k->stream));
  memcpy(k->mirror, bytes, (size_t)n);
  k->n = n;
  return DM_OK;
}

dm_status dm_cuda_keep(uint64_t site, const void *bytes, int64_t n, const void **out) {
  Kept *k = find(site);
  DM_TRY(own(k, site, n));
  k->used = ++now;
  *out = k->p;
  if (n == 0 || (k->n == n && memcmp(k->mirror, bytes, (size_t)n) == 0)) return DM_OK;
  return upload(k, bytes, n);
}
