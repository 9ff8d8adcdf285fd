/* Mixed precision at the door: which inputs of a call are converted, to what,
   and the casts of weights that a region shares. The rules are PyTorch's, the
   classes stand in the op table. */
#ifndef DM_AUTOCAST_H
#define DM_AUTOCAST_H

#include "engine/op.h"

static inline bool dm_autocast_on(const dm_Modes *m) {
  return (m->autocast[DM_CPU].enabled || m->autocast[DM_CUDA].enabled) && !m->masked;
}

/* Converts the inputs of a call into cast[] (new references for every entry
   that is not NULL) and may complete attr's dtype. *listed: the op has a
   class, so its inner calls are not converted again. */
dm_status dm_autocast_inputs(const dm_OpInfo *op, int n_in, dm_Tensor *const *in,
                             dm_Tensor **cast, void *attr, bool *listed);

/* Opens a region: the caller keeps *old and gives it back to leave. */
typedef struct dm_Region {
  dm_Autocast old;
  bool old_cache;
  uint8_t device_type;
} dm_Region;

dm_Region dm_autocast_enter(dm_DeviceType type, bool enabled, dm_DType dtype, bool cache);
void dm_autocast_leave(dm_Region r);

/* The whole state: as it is now, with one device type or (-1) all switched off;
   put in force, giving the one to go back to; and gone back to. Between the two
   lies a region: casts that it caches go with the outermost. */
dm_CastState dm_autocast_state(void);
dm_CastState dm_autocast_off(int type);
dm_CastState dm_autocast_resume(dm_CastState s);
void dm_autocast_go_back(dm_CastState old);
void dm_autocast_clear_cache(void);
DM_API int64_t dm_autocast_cast_count(void); /* casts made by autocast in this thread */

#endif
