/* One counter for each library and event. They are atomic, since any thread may count while
   another reads, and relaxed, since they order nothing else. */
#include "kernels/plans.h"

#include <stdatomic.h>

static atomic_llong counts[DM_N_PLAN_LIBRARY][DM_N_PLAN];

void dm_plan_count(dm_PlanLibrary library, dm_PlanCounter what) {
  atomic_fetch_add_explicit(&counts[library][what], 1, memory_order_relaxed);
}

int dm_plan_counts(dm_PlanCounts out[DM_MAX_PLAN_LIBRARY]) {
  static const char *const names[] = {[DM_CUBLASLT] = "cublaslt", [DM_CUDNN] = "cudnn"};
  for (int i = 0; i < DM_N_PLAN_LIBRARY; i++) {
    out[i].name = names[i];
    for (int k = 0; k < DM_N_PLAN; k++)
      out[i].n[k] = atomic_load_explicit(&counts[i][k], memory_order_relaxed);
  }
  return DM_N_PLAN_LIBRARY;
}
