/* One counter for each library and event. They are atomic, since any thread may count while
   another reads, and relaxed, since they order nothing else. The texts have a lock. */
#include "kernels/plans.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* As dm.cuda.plans() and the warnings name them. */
static const char *const names[] = {
    [DM_CUBLASLT] = "cublaslt", [DM_CUDNN] = "cudnn", [DM_NCCL] = "nccl"};
static atomic_llong counts[DM_N_PLAN_LIBRARY][DM_N_PLAN];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* The state of a library since it was opened, and why it last refused a plan. */
typedef struct Fate {
  dm_PlanState state;
  char reason[DM_PLAN_TEXT], refusal[DM_PLAN_TEXT];
  bool warned; /* that it is missing: said once a process */
} Fate;
static Fate fates[DM_N_PLAN_LIBRARY] = {
#if !__has_include(<cudnn.h>)
    [DM_CUDNN] = {DM_PLAN_MISSING, "this build found no cudnn.h", "", false},
#endif
};

/* The library that did not take this thread's last call, or -1. Kernels of our own ask by it
   whether they run in a library's stead, or because no library has such an op. */
static _Thread_local int not_taken = -1;

void dm_plan_count(dm_PlanLibrary library, dm_PlanCounter what) {
  atomic_fetch_add_explicit(&counts[library][what], 1, memory_order_relaxed);
  not_taken = -1;
}

void dm_plan_state(dm_PlanLibrary library, dm_PlanState state, const char *why) {
  pthread_mutex_lock(&lock);
  fates[library].state = state;
  snprintf(fates[library].reason, DM_PLAN_TEXT, "%s", why);
  pthread_mutex_unlock(&lock);
}

/* A refusal is a call that was asked of the library and not taken: our own kernels run it, or
   it raises under DEMILUNE_NO_FALLBACK. */
void dm_plan_refuse(dm_PlanLibrary library, const char *why) {
  dm_plan_count(library, DM_PLAN_REFUSED);
  pthread_mutex_lock(&lock);
  snprintf(fates[library].refusal, DM_PLAN_TEXT, "%s", why);
  pthread_mutex_unlock(&lock);
  not_taken = (int)library;
}

void dm_plan_warn(const char *name, const char *why, const char *effect) {
  fprintf(stderr, "demilune: warning: %s is not used: %s; %s\n", name, why, effect);
}

/* The warning comes with the first call that the library would have taken, not when it is
   looked for: a script that multiplies no matrices does not hear of cuBLASLt. */
void dm_plan_miss(dm_PlanLibrary library) {
  pthread_mutex_lock(&lock);
  Fate *const fate = &fates[library];
  if (fate->state == DM_PLAN_MISSING && !fate->warned) {
    fate->warned = true;
    dm_plan_warn(names[library], fate->reason, "our own, slower kernels do its work");
  }
  pthread_mutex_unlock(&lock);
  not_taken = (int)library;
}

/* The variable is read each time: a test sets it for a part of a run. */
static bool forbids_fallback(void) {
  const char *s = getenv("DEMILUNE_NO_FALLBACK");
  return s && *s && strcmp(s, "0") != 0;
}

dm_status dm_plan_fallback(const char *op) {
  const int library = not_taken;
  not_taken = -1;
  if (library < 0 || !forbids_fallback()) return DM_OK;
  pthread_mutex_lock(&lock);
  const Fate fate = fates[library];
  pthread_mutex_unlock(&lock);
  if (fate.state != DM_PLAN_OPEN)
    return dm_fail(DM_ESTATE, "%s: %s is not there (%s), and DEMILUNE_NO_FALLBACK is set", op,
                   names[library], fate.reason);
  return dm_fail(DM_ESTATE, "%s: %s refuses it%s%s, and DEMILUNE_NO_FALLBACK is set", op,
                 names[library], *fate.refusal ? ": " : "", fate.refusal);
}

/* A copy, since another thread may change a text while the caller reads it. */
int dm_plan_counts(dm_PlanCounts out[DM_MAX_PLAN_LIBRARY]) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < DM_N_PLAN_LIBRARY; i++) {
    out[i].name = names[i];
    out[i].state = fates[i].state;
    memcpy(out[i].reason, fates[i].reason, DM_PLAN_TEXT);
    memcpy(out[i].refusal, fates[i].refusal, DM_PLAN_TEXT);
    for (int k = 0; k < DM_N_PLAN; k++)
      out[i].n[k] = atomic_load_explicit(&counts[i][k], memory_order_relaxed);
  }
  pthread_mutex_unlock(&lock);
  return DM_N_PLAN_LIBRARY;
}
