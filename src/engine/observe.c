/* Calls the observers of the current thread state; see observe.h. */
#include "engine/observe.h"

void dm_observe_begin(const dm_Event *e) {
  for (dm_Observer *o = *dm_thread_state()->observers; o; o = o->next) o->begin(o->ctx, e);
}

void dm_observe_end(const dm_Event *e) {
  for (dm_Observer *o = *dm_thread_state()->observers; o; o = o->next) o->end(o->ctx, e);
}

void dm_observe_work(dm_Device dev, bool begins) {
  for (dm_Observer *o = *dm_thread_state()->observers; o; o = o->next)
    if (o->work) o->work(o->ctx, dev, begins);
}

void dm_observer_add(dm_Observer *o) {
  dm_Observer **head = dm_thread_state()->observers;
  o->next = *head;
  *head = o;
}

void dm_observer_remove(dm_Observer *o) {
  dm_Observer **at = dm_thread_state()->observers;
  while (*at && *at != o) at = &(*at)->next;
  if (*at) *at = o->next;
}
