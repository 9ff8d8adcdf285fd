/* The state of one thread of control: what no_grad, autocast, dm.device, a stream or the
   profiler have switched on, and how positions are counted. A host language gives each of its
   states (and coroutines) a dm_ThreadState and makes it current before it calls; a C program
   uses the thread's own. PyTorch's is at::ThreadLocalState.

   Each concern has its owner, which alone changes its part: autocast.h, observe.h, saved.h
   (checkpoints). */
#ifndef DM_STATE_H
#define DM_STATE_H

#include "base/rng.h"
#include "engine/autocast.h"

struct dm_Observer;
struct dm_Replay;

/* A queue of work that a host has made, and its device. */
typedef struct dm_Stream {
  dm_Device device;
  void *handle; /* the back end's; NULL: every device uses its default stream */
} dm_Stream;

/* Anomaly detection (torch.autograd.set_detect_anomaly). */
typedef struct dm_Anomaly {
  bool enabled;   /* nodes note where they are made; a failing backward pass reports it */
  bool check_nan; /* and a NaN gradient is an error */
  /* Describes the host's current line, in a block of dm_alloc that the caller frees. */
  dm_status (*where)(void *ctx, char **text);
  void *where_ctx;
} dm_Anomaly;

typedef struct dm_ThreadState {
  bool grad;          /* record calls whose inputs require a gradient */
  bool inference;     /* results are never recorded, now or later */
  bool in_backward;   /* a backward pass is running */
  bool deterministic; /* only algorithms that give the same bits in every run */
  uint8_t base;       /* positions count from 0 (C) or 1 (Lua) */
  uint8_t dtype;      /* of floats that are made without a dtype of their own */
  dm_Device device;   /* of tensors that are made without a device of their own */
  dm_Stream stream;   /* takes the work of its device; the host keeps the handle alive */
  int module;         /* number of the module path that is running, for observers; 0: none */
  dm_AutocastState autocast;
  dm_Anomaly anomaly;
  dm_Generator *generator;        /* the default one of every device */
  struct dm_Observer **observers; /* head of the host's list */
  struct dm_Replay *replay;       /* the checkpoint whose function is running; or NULL */
  /* On a GPU: whether matrix products and convolutions of float32 may round their operands to
     TF32, and whether plans are chosen by their measured time. */
  bool tf32_matmul, tf32_conv, benchmark;
} dm_ThreadState;

/* The current state; the thread's own until a host sets another. */
#ifdef DM_BACK_END /* a library of its own: see engine/backend.h */
dm_ThreadState *dm_thread_state(void);
#else
/* Read at every call. One pointer fits the space that the loader reserves for thread-local
   variables of the initial-exec model, which need no function call. */
extern _Thread_local dm_ThreadState *dm_thread_state_current
    __attribute__((tls_model("initial-exec")));

/* Makes the thread's own state current, with the defaults, and returns it. */
dm_ThreadState *dm_thread_state_own(void);
static inline dm_ThreadState *dm_thread_state(void) {
  dm_ThreadState *ts = dm_thread_state_current;
  return DM_LIKELY(ts != NULL) ? ts : dm_thread_state_own();
}
#endif

/* The generator and the list of observers belong to the host; all of its states share them. */
void dm_thread_state_init(dm_ThreadState *ts, dm_Generator *gen,
                          struct dm_Observer **observers);
/* For a new thread of control: a copy of `from` without its autocast regions, cached casts
   and checkpoint, which end with it. */
void dm_thread_state_inherit(dm_ThreadState *ts, const dm_ThreadState *from);
/* For C code that a host calls: the thread's own state becomes a copy of `from` in which
   positions count from 0. The host of `from` must outlive it, or call
   dm_thread_state_forget, after which the defaults hold again. */
void dm_thread_state_adopt(const dm_ThreadState *from);
void dm_thread_state_forget(void);
/* Drops the references that ts holds. */
void dm_thread_state_clear(dm_ThreadState *ts);

#endif
