/* The autocast state of one thread of control: whether each device type converts inputs,
   and to which dtype; the open regions; and the cache of the weights' casts. It knows
   neither ops nor the thread: policy.h says what autocast does to a call, call.c does it.
   PyTorch keeps the same in autocast_mode.cpp and in torch.autocast's __enter__/__exit__. */
#ifndef DM_AUTOCAST_H
#define DM_AUTOCAST_H

#include <stdatomic.h>

#include "core/tensor.h"

/* A region's own policies, which replace a column of the op table. Counted: regions inside
   share them. policy.h makes one. */
typedef struct dm_Policies {
  atomic_int refs;
  uint8_t of[]; /* dm_Cast of each op, by its number */
} dm_Policies;

dm_Policies *dm_policies_ref(dm_Policies *p); /* NULL is fine */
void dm_policies_unref(dm_Policies **p);

/* The setting of one device type. */
typedef struct dm_Autocast {
  bool enabled;
  uint8_t dtype;         /* of LOW ops: float16 or bfloat16 */
  dm_Policies *policies; /* owned; NULL: the op table's */
} dm_Autocast;

/* The settings of all device types. A custom gradient's node and a checkpoint keep a copy,
   so that their code runs later under the settings of its forward. */
typedef struct dm_CastState {
  dm_Autocast autocast[DM_N_DEVICE_TYPE];
  bool cache_enabled;
} dm_CastState;

/* An open region, in the caller's memory: what leaving it restores. */
typedef struct dm_Region {
  struct dm_Region *outer;
  dm_Autocast old;
  bool old_cache;
  uint8_t device_type;
} dm_Region;

struct dm_CastCache;

typedef struct dm_AutocastState {
  dm_CastState now;
  bool masked;        /* inside a listed op, whose inner calls are not converted */
  bool casting;       /* a conversion is running; observers tell it from a script's */
  bool widens;        /* the call that runs reads 16 bits and gives float32 */
  dm_Region *regions; /* the innermost first */
  int resumed;        /* calls of dm_autocast_resume without their dm_autocast_restore */
  struct dm_CastCache *cache; /* owned; freed when no region is open and resumed is 0 */
} dm_AutocastState;

/* Off; bfloat16 on the CPU and float16 on CUDA once it is on; the cache allowed. */
void dm_autocast_init(dm_AutocastState *a);
/* a gets the settings of `from`, but none of its regions and casts. */
void dm_autocast_inherit(dm_AutocastState *a, const dm_AutocastState *from);
/* Drops the cache and the policies. Regions that are still open are forgotten: they are in
   the host's memory, which may be gone. */
void dm_autocast_clear(dm_AutocastState *a);

static inline bool dm_autocast_on(const dm_AutocastState *a) {
  return (a->now.autocast[DM_CPU].enabled || a->now.autocast[DM_CUDA].enabled) && !a->masked;
}

/* Enter takes a reference to now's policies. Regions may be left in any order: an inner one
   takes over the settings that an outer one, left first, would have restored. */
void dm_autocast_enter(dm_AutocastState *a, dm_Region *r, dm_DeviceType type, dm_Autocast now,
                       bool cache);
void dm_autocast_leave(dm_AutocastState *a, dm_Region *r);

/* A copy of the settings; and one with a device type, or (-1) all of them, switched off.
   Both hold references, which dm_cast_state_drop releases. */
dm_CastState dm_autocast_copy(const dm_AutocastState *a);
dm_CastState dm_autocast_off(const dm_AutocastState *a, int type);
void dm_cast_state_drop(dm_CastState *s);
/* Makes s the settings and returns the old ones, which dm_autocast_restore brings back.
   The two enclose a region: casts cached in between live until the outermost one ends. */
dm_CastState dm_autocast_resume(dm_AutocastState *a, dm_CastState s);
void dm_autocast_restore(dm_AutocastState *a, dm_CastState old);

/* Is a cast of a weight to be cached now? */
static inline bool dm_autocast_caches(const dm_AutocastState *a) {
  return a->now.cache_enabled && (a->regions || a->resumed > 0);
}
/* The cached cast of t, borrowed; NULL: none, or t has changed since. */
dm_Tensor *dm_autocast_find(const dm_AutocastState *a, const dm_Tensor *t, dm_DType to);
/* Adds it. Failure is silent: without the entry the next call converts again. */
void dm_autocast_add(dm_AutocastState *a, dm_Tensor *t, dm_Tensor *cast);
void dm_autocast_clear_cache(dm_AutocastState *a);

#endif
