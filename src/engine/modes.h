/* What a thread of control has switched on: recording, autocast, where
   positions count from. A host language gives each of its states (and
   coroutines) a dm_Modes of its own and makes it current before it calls. */
#ifndef DM_MODES_H
#define DM_MODES_H

#include "base/rng.h"
#include "core/tensor.h"

struct dm_CastCache;

typedef struct dm_Autocast {
  bool enabled;
  uint8_t dtype;
} dm_Autocast;

typedef struct dm_Modes {
  bool grad;      /* record what could need a gradient */
  bool inference; /* neither record nor ever be recorded */
  bool cache_enabled;
  bool masked;  /* inside a listed op: its inner calls are not converted */
  uint8_t base; /* positions count from 0 (C) or 1 (Lua) */
  int depth;    /* open autocast regions of all device types */
  dm_Autocast autocast[DM_N_DEVICE_TYPE];
  struct dm_CastCache *cache; /* casts of weights, dropped when depth is 0 */
  dm_Generator *generator;    /* the default one of every device */
} dm_Modes;

extern _Thread_local dm_Modes *dm_modes_current;

/* The thread's current modes; the thread's own default ones until set. */
dm_Modes *dm_modes(void);
void dm_modes_init(dm_Modes *m, dm_Generator *gen);
/* Drops what m holds (its cast cache). */
void dm_modes_clear(dm_Modes *m);

#endif
