/* What a thread of control has switched on: recording, autocast, where
   positions count from. A host language gives each of its states (and
   coroutines) a dm_Modes of its own and makes it current before it calls. */
#ifndef DM_MODES_H
#define DM_MODES_H

#include "base/rng.h"
#include "core/tensor.h"

struct dm_CastCache;
struct dm_Observer;
struct dm_Replay;
struct dm_Policies;
struct dm_Region;

typedef struct dm_Autocast {
  bool enabled;
  uint8_t dtype;
  struct dm_Policies *policies; /* NULL: the op table's; a counted reference */
} dm_Autocast;

/* All that autocast goes by: it travels with a node that the host wrote, and
   with work that is to be run again. */
typedef struct dm_CastState {
  dm_Autocast autocast[DM_N_DEVICE_TYPE];
  bool cache_enabled;
} dm_CastState;

/* A queue of work that a host has made, and its device. */
typedef struct dm_Stream {
  dm_Device device;
  void *handle; /* the back end's; NULL: none, each device has its default one */
} dm_Stream;

typedef struct dm_Modes {
  bool grad;      /* record what could need a gradient */
  bool inference; /* neither record nor ever be recorded */
  bool cache_enabled;
  bool masked;      /* inside a listed op: its inner calls are not converted */
  bool casting;     /* autocast is converting an input */
  bool walking;     /* in the walk back */
  uint8_t base;     /* positions count from 0 (C) or 1 (Lua) */
  dm_Device device; /* where tensors are made that name no other */
  dm_Stream stream; /* where work of its device goes; not inherited */
  int place;        /* where the host is, by a number of its own, for observers; 0: nowhere */
  dm_Autocast autocast[DM_N_DEVICE_TYPE];
  struct dm_Region *regions;      /* open autocast regions, the innermost first */
  int resumed;                    /* states put in force, and not gone back from */
  struct dm_CastCache *cache;     /* casts of weights, dropped with the last of both */
  dm_Generator *generator;        /* the default one of every device */
  struct dm_Observer **observers; /* head of the host's list */
  struct dm_Replay *replay;       /* the stretch of work that is to be run again; or NULL */
  bool anomaly;                   /* nodes note where they are made, and backward tells */
  bool check_nan;                 /* with anomaly: a NaN gradient is an error */
  /* The host's place in words, in a block of dm_alloc that the caller frees. */
  dm_status (*where)(void *ctx, char **text);
  void *where_ctx;
} dm_Modes;

/* The thread's current modes; its own until a host sets some. */
#ifdef DM_BACK_END /* a library of its own: see engine/backend.h */
dm_Modes *dm_modes(void);
#else
/* Read at every call; one pointer fits the room that the loader keeps for the
   fast kind of thread-local variables. */
extern _Thread_local dm_Modes *dm_modes_current __attribute__((tls_model("initial-exec")));

dm_Modes *dm_modes_own(void); /* sets and gives the thread's own default ones */
static inline dm_Modes *dm_modes(void) {
  return DM_LIKELY(dm_modes_current != NULL) ? dm_modes_current : dm_modes_own();
}
#endif
/* Both belong to the host, and serve all of its modes. */
void dm_modes_init(dm_Modes *m, dm_Generator *gen, struct dm_Observer **observers);
/* For a new thread of control: what `from` has switched on, without its regions
   and casts, which end with it. */
void dm_modes_inherit(dm_Modes *m, const dm_Modes *from);
/* For C code that a host hands over to: the thread's own modes become what `from`
   has switched on, but positions count from 0; `from`'s host must outlive them,
   or call dm_modes_forget, after which they are the default ones. */
void dm_modes_adopt(const dm_Modes *from);
void dm_modes_forget(void);
/* Drops what m holds. */
void dm_modes_clear(dm_Modes *m);

#endif
