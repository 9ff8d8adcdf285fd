/* The profiler's recorder, an observer: it notes each call's name, times, parent, and the bytes
   that it allocated and freed, as torch.profiler does.

   Events nest as they run: the parent of an event is the innermost one that is running when
   it begins. The time and bytes between two neighbouring beginnings or ends belong to the
   innermost running event; so the self times of all events add up to the time spent in any of
   them, even where ranges of two coroutines overlap.

   Device times are measured by events of the device before and after the work that each op
   queues on its stream, and read when recording stops. Where the device waits for the host,
   they contain the waiting. */
#ifndef DM_PROFILE_H
#define DM_PROFILE_H

#include "engine/observe.h"

enum {
  DM_PROFILE_MEMORY = 1,
  DM_PROFILE_SHAPES = 2,
  DM_PROFILE_FLOPS = 4,
  DM_PROFILE_DEVICE = 8
};

/* Allocated less freed. */
typedef struct dm_ProfileBytes {
  int64_t cpu, device; /* device: all others together */
} dm_ProfileBytes;

typedef struct dm_ProfileEvent {
  const char *name, *suffix; /* "mm" and " backward"; a name's copy lives in the profile */
  int64_t start, end, self;  /* ns since the profile was made; end -1: under way */
  dm_ProfileBytes bytes, self_bytes;
  int64_t device, self_device;   /* ns on devices; known after the stop */
  double flops;                  /* of products and convolutions, else 0 */
  int64_t index, parent;         /* from 0; parent -1: none */
  const void *thread;            /* tells coroutines apart */
  const int64_t *shapes;         /* NULL, or: n inputs, then ndim and sizes of each */
  const char *stack;             /* NULL, or what `where` gave */
  bool is_op;                    /* else a range, a step: work the host named */
  const dm_Event *key;           /* while under way */
  struct dm_ProfileEvent *below; /* while under way: the next innermost */
} dm_ProfileEvent;

/* The time on a device of the work that one op queued. */
typedef struct dm_ProfileSpan {
  int64_t event; /* its number */
  dm_Device device;
  int64_t start,
      length;      /* ns; start: as an event's, by a clock read when the device was first met */
  void *from, *to; /* the device's events, until they are read */
} dm_ProfileSpan;

typedef struct dm_Profile dm_Profile;

/* where (or NULL) returns the host program's current line, in text that is valid until its
   next call. */
dm_status dm_profile_new(int flags, const char *(*where)(void *ctx), void *ctx,
                         dm_Profile **out);
void dm_profile_free(dm_Profile *p); /* NULL is fine; stops it first */

/* Recording may start and stop more than once, also while events are running: those that began
   before the start are not recorded, those that run at the stop end there. stop waits for the
   devices whose times it reads, and returns the first failure of their work. It fails with
   DM_EMEM once when memory ran out: recording ended at that point, and the events until then
   are kept. */
void dm_profile_start(dm_Profile *p);
dm_status dm_profile_stop(dm_Profile *p);
int64_t dm_profile_count(const dm_Profile *p);
const dm_ProfileEvent *dm_profile_event(const dm_Profile *p, int64_t i);
/* The spans that have been read; dm_profile_stop reads them. */
int64_t dm_profile_span_count(const dm_Profile *p);
const dm_ProfileSpan *dm_profile_span(const dm_Profile *p, int64_t i);

#endif
