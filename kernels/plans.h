/* Plans of NVIDIA's libraries: the hash of their keys, counters of where plans came from, and
   what became of each library (dm.cuda.plans). */
#ifndef DM_KERNELS_PLANS_H
#define DM_KERNELS_PLANS_H

#include "kernels/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dm_PlanLibrary {
  DM_CUBLASLT,
  DM_CUDNN,
  DM_NCCL,
  DM_N_PLAN_LIBRARY
} dm_PlanLibrary;

/* Hashes a key made of 8-byte numbers. */
static inline uint64_t dm_key_hash(const void *key, size_t n) {
  uint64_t h = 0, word;
  for (size_t i = 0; i < n; i += sizeof word) {
    memcpy(&word, (const char *)key + i, sizeof word);
    h = (h ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    h ^= h >> 29;
  }
  return h;
}

/* Counts an event; any thread may call it. */
void dm_plan_count(dm_PlanLibrary library, dm_PlanCounter what);
/* Notes what became of a library when it was first needed. why: the reason, unless it is open.
 */
void dm_plan_state(dm_PlanLibrary library, dm_PlanState state, const char *why);
/* Counts a call that the library did not take, and keeps why, or "". */
void dm_plan_refuse(dm_PlanLibrary library, const char *why);
/* Warns on stderr that a library is not used; effect: what follows from it. */
void dm_plan_warn(const char *name, const char *why, const char *effect);
/* The library is missing, and would have been asked: warns about it once. */
void dm_plan_miss(dm_PlanLibrary library);
/* Called where our own kernel is about to run in place of a library: DM_OK; or, with
   DEMILUNE_NO_FALLBACK=1, a failure that tells why this thread's last call was not taken. */
dm_status dm_plan_fallback(const char *op);
/* Reads counters and states, for dm_DeviceOps. */
int dm_plan_counts(dm_PlanCounts out[DM_MAX_PLAN_LIBRARY]);

#ifdef __cplusplus
}
#endif
#endif
