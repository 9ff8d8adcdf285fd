/* Mixed precision at the door: which inputs of a call are converted, to what,
   and the casts of weights that a region shares. The rules are PyTorch's, the
   classes stand in the op table. */
#ifndef DM_AUTOCAST_H
#define DM_AUTOCAST_H

#include <stdatomic.h>

#include "engine/op.h"

static inline bool dm_autocast_on(const dm_Modes *m) {
  return (m->autocast[DM_CPU].enabled || m->autocast[DM_CUDA].enabled) && !m->masked;
}

/* May autocast, which is on, have to do with the op at all? A quick answer for
   the many that are unlisted everywhere; a division may count as a reciprocal. */
static inline bool dm_autocast_knows(const dm_Modes *m, const dm_OpInfo *op) {
  return op->cast[DM_CPU] || op->cast[DM_CUDA] || m->autocast[DM_CPU].policies ||
         m->autocast[DM_CUDA].policies || op == &dm_ops[DM_OP_div];
}

/* What autocast does to one call. */
typedef struct dm_CastPlan {
  bool listed;     /* the op has a class: its inner calls are not converted again */
  bool f32_result; /* the caller gave no dtype, and float32 it will be */
  uint8_t type;    /* the device type whose table rules */
  dm_DType to;     /* what eligible inputs become; DM_NO_DTYPE: none has to change */
} dm_CastPlan;

/* Fails for a banned op. The op may be a row that the caller made up. */
dm_status dm_autocast_plan(const dm_OpInfo *op, int n_in, dm_Tensor *const *in,
                           const void *attr, dm_CastPlan *plan);
/* Fills cast[] with a new reference for every input that is not NULL. */
dm_status dm_autocast_inputs(const dm_CastPlan *plan, int n_in, dm_Tensor *const *in,
                             dm_Tensor **cast);

/* Policies of a region's own, in place of a column of the op table. */
typedef struct dm_Policies {
  atomic_int refs;
  uint8_t of[DM_N_OP]; /* dm_Cast */
} dm_Policies;

extern const char *const dm_cast_names[]; /* by dm_Cast: "unlisted", "fp32", ... */
/* A copy of `from`, or of the device type's column when that is NULL. NULL:
   out of memory. */
dm_Policies *dm_policies_new(dm_DeviceType type, const dm_Policies *from);
dm_Policies *dm_policies_ref(dm_Policies *p);
void dm_policies_unref(dm_Policies **p);

/* An open region, in the caller's memory; what leave puts back. */
typedef struct dm_Region {
  struct dm_Region *outer;
  dm_Autocast old;
  bool old_cache;
  uint8_t device_type;
} dm_Region;

/* Enter takes a reference to now's policies. Regions of one thread of control
   may be left in any order: what an inner one would put back, it takes over. */
void dm_autocast_enter(dm_Region *r, dm_DeviceType type, dm_Autocast now, bool cache);
void dm_autocast_leave(dm_Modes *m, dm_Region *r);

/* The whole state: as it is now, with one device type or (-1) all switched off;
   put in force, giving the one to go back to; and gone back to. Between the two
   lies a region: casts that it caches go with the outermost. The first two hold
   references, which dm_cast_state_drop lets go. */
dm_CastState dm_autocast_state(void);
dm_CastState dm_autocast_off(int type);
void dm_cast_state_drop(dm_CastState *s);
dm_CastState dm_autocast_resume(dm_CastState s);
void dm_autocast_go_back(dm_CastState old);

void dm_autocast_clear_cache(void);
DM_API int64_t dm_autocast_cast_count(void); /* casts made by autocast in this thread */

#endif
