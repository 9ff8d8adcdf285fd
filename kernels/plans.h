/* Plans of NVIDIA's libraries: the hash of their keys, and counters of where plans came from
   (dm.cuda.plans). */
#ifndef DM_KERNELS_PLANS_H
#define DM_KERNELS_PLANS_H

#include "kernels/cuda.h"

typedef enum dm_PlanLibrary { DM_CUBLASLT, DM_CUDNN, DM_N_PLAN_LIBRARY } dm_PlanLibrary;

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
/* Reads the counters, for dm_DeviceOps. */
int dm_plan_counts(dm_PlanCounts out[DM_MAX_PLAN_LIBRARY]);

#endif
