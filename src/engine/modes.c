/* The current modes of a thread; its own default ones until a host sets some. */
#include "engine/modes.h"

_Thread_local dm_Modes *dm_modes_current;
static _Thread_local dm_Modes own;
static _Thread_local dm_Generator own_generator;
static _Thread_local struct dm_Observer *own_observers;

void dm_modes_init(dm_Modes *m, dm_Generator *gen, struct dm_Observer **observers) {
  *m = (dm_Modes){.grad = true,
                  .cache_enabled = true,
                  .generator = gen,
                  .observers = observers,
                  .check_nan = true};
  m->autocast[DM_CPU].dtype = DM_BF16;
  m->autocast[DM_CUDA].dtype = DM_F16;
}

dm_Modes *dm_modes_own(void) {
  dm_modes_init(&own, &own_generator, &own_observers);
  return dm_modes_current = &own;
}

void dm_modes_adopt(const dm_Modes *from) {
  if (from == &own) return;
  dm_modes_clear(&own);
  dm_modes_inherit(&own, from);
  own.base = 0;
  dm_modes_current = &own;
}

void dm_modes_forget(void) {
  dm_modes_clear(&own);
  dm_modes_current = NULL;
}

void dm_manual_seed(uint64_t seed) { *dm_modes()->generator = (dm_Generator){seed, 0}; }
