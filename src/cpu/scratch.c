/* See scratch.h. A buffer belongs to its thread (_Thread_local), so no lock is needed; a key of
   POSIX threads frees it when the thread ends. */
#include "cpu/scratch.h"

#include <pthread.h>
#include <stdbool.h>

#include "base/alloc.h"

typedef struct Scratch {
  void *data[DM_N_SCRATCH];
  int64_t n_bytes[DM_N_SCRATCH];
  bool known; /* the key holds this thread */
} Scratch;

enum { SCRATCH_KEEP = 32 << 20 }; /* bytes a thread keeps for next time */

static _Thread_local Scratch scratch;
static pthread_key_t scratch_key;
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;
static bool scratch_has_key;

/* Frees a thread's buffers when it ends. */
static void free_scratch(void *arg) {
  Scratch *const s = arg;
  for (int i = 0; i < DM_N_SCRATCH; i++) dm_free(s->data[i]);
  *s = (Scratch){0};
}

/* Makes the key whose destructor runs in each thread that has set it. */
static void make_scratch_key(void) {
  scratch_has_key = pthread_key_create(&scratch_key, free_scratch) == 0;
}

/* The contents are not kept: a buffer is freed before a larger one is asked for, so that both
   never exist at once. */
static void *grow_scratch(dm_ScratchSlot slot, int64_t n_bytes) {
  if (!scratch.known) {
    pthread_once(&scratch_once, make_scratch_key);
    if (!scratch_has_key || pthread_setspecific(scratch_key, &scratch) != 0) return NULL;
    scratch.known = true;
  }
  dm_free(scratch.data[slot]);
  scratch.n_bytes[slot] = 0;
  scratch.data[slot] = dm_alloc(n_bytes);
  if (scratch.data[slot]) scratch.n_bytes[slot] = n_bytes;
  return scratch.data[slot];
}

/* Returns the slot's buffer where it is large enough; only growth allocates. */
void *dm_scratch(dm_ScratchSlot slot, int64_t n_bytes) {
  if (DM_LIKELY(n_bytes <= scratch.n_bytes[slot])) return scratch.data[slot];
  return grow_scratch(slot, n_bytes);
}

void dm_scratch_trim(dm_ScratchSlot slot) {
  if (scratch.n_bytes[slot] <= SCRATCH_KEEP) return;
  dm_free(scratch.data[slot]);
  scratch.data[slot] = NULL;
  scratch.n_bytes[slot] = 0;
}

/* The first run measures with base NULL, the second stores the addresses. */
bool dm_scratch_carve(dm_ScratchSlot slot, dm_CarveFn *carve, const void *job, void *parts) {
  dm_Arena a = {NULL, 0};
  carve(job, &a, parts);
  a = (dm_Arena){dm_scratch(slot, a.used), 0};
  if (!a.base) return false;
  carve(job, &a, parts);
  return true;
}

/* When the library goes, its key must not call into it any more. */
__attribute__((destructor)) static void drop_scratch_key(void) {
  if (scratch_has_key) pthread_key_delete(scratch_key);
  scratch_has_key = false;
  free_scratch(&scratch);
}
