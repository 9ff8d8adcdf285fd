/* The current state of each thread: see state.h. */
#include "engine/state.h"

_Thread_local dm_ThreadState *dm_thread_state_current;
static _Thread_local dm_ThreadState own;
static _Thread_local dm_Generator own_generator;
static _Thread_local struct dm_Observer *own_observers;

void dm_thread_state_init(dm_ThreadState *ts, dm_Generator *gen,
                          struct dm_Observer **observers) {
  *ts = (dm_ThreadState){.grad = true,
                         .dtype = DM_F32,
                         .anomaly.check_nan = true,
                         .generator = gen,
                         .observers = observers};
  dm_autocast_init(&ts->autocast);
}

void dm_thread_state_inherit(dm_ThreadState *ts, const dm_ThreadState *from) {
  *ts = *from;
  dm_autocast_inherit(&ts->autocast, &from->autocast);
  ts->replay = NULL; /* the new state may outlive the checkpoint's function */
}

void dm_thread_state_clear(dm_ThreadState *ts) { dm_autocast_clear(&ts->autocast); }

dm_ThreadState *dm_thread_state_own(void) {
  dm_thread_state_init(&own, &own_generator, &own_observers);
  return dm_thread_state_current = &own;
}

void dm_thread_state_adopt(const dm_ThreadState *from) {
  if (from == &own) return;
  dm_thread_state_clear(&own);
  dm_thread_state_inherit(&own, from);
  own.base = 0;
  dm_thread_state_current = &own;
}

void dm_thread_state_forget(void) {
  dm_thread_state_clear(&own);
  dm_thread_state_current = NULL;
}

void dm_manual_seed(uint64_t seed) { *dm_thread_state()->generator = (dm_Generator){seed, 0}; }

dm_DType dm_default_dtype(void) { return (dm_DType)dm_thread_state()->dtype; }
