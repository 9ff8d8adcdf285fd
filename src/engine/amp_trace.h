/* The observer behind demilune.amp.report. For each module it counts in which dtype ops ran,
   what autocast converted and which bytes the tape saved; and it finds the first op that made
   inf or NaN. */
#ifndef DM_AMP_TRACE_H
#define DM_AMP_TRACE_H

#include "engine/observe.h"

typedef enum dm_TallyKind {
  DM_TALLY_FORWARD,  /* ops that the host called, by the dtype they ran in; bytes of outputs */
  DM_TALLY_BACKWARD, /* gradients of ops, likewise; and the sums between them */
  DM_TALLY_WEIGHT,   /* autocast's casts of leaves that require a gradient; bytes written */
  DM_TALLY_INPUT,    /* its casts of other tensors */
  DM_TALLY_KEPT,     /* tensors that the tape saved, by dtype; each storage counts once a step,
                        weights do not count */
  DM_TALLY_BAD,      /* kernels that made inf or NaN out of finite numbers, in forward */
  DM_TALLY_BAD_BACK, /* and in backward */
  DM_N_TALLY
} dm_TallyKind;

typedef struct dm_TallyKey {
  int module;          /* dm_ThreadState.module of the forward; DM_MODULE_LOST: forgotten */
  uint16_t op;         /* DM_N_OP: a gradient that the host wrote */
  uint8_t kind, dtype; /* DM_N_DTYPE: no float took part */
  uint8_t region;      /* autocast's dtype where the op ran; DM_N_DTYPE: off */
  uint8_t device;      /* type */
  bool mixed;          /* some of the inputs had 16 bits */
} dm_TallyKey;

enum { DM_MODULE_LOST = -1 };

typedef struct dm_Tally {
  uint64_t key; /* 0: a free slot; see dm_tally_key */
  int64_t calls, bytes;
} dm_Tally;

/* Open addressing, at most half full. */
typedef struct dm_TallyTable {
  int n, capacity;
  dm_Tally *slot;
} dm_TallyTable;

/* The first call that gave inf or NaN. */
typedef struct dm_Blame {
  bool found, autocast, nan; /* nan: the output holds a NaN */
  uint8_t dtype, ndim;       /* of that output */
  int64_t shape[DM_MAX_DIM];
  int module, n_in;
  uint32_t finite; /* bit i: input i is all finite */
  double largest;  /* finite magnitude among the inputs */
  int64_t step;    /* of training, from 1 */
  char op[32], within[32], where[128];
} dm_Blame;

/* The module in which a node was made. */
typedef struct dm_Birth {
  uint64_t seq;
  int module;
} dm_Birth;

typedef struct dm_AmpTrace {
  dm_Observer observer; /* for dm_observer_add */
  bool check;           /* look at every output */
  bool was_backward;    /* the last op belonged to a backward pass */
  int depth;            /* calls under way */
  int module;           /* of the outermost one */
  char outer[32];       /* its name */
  int64_t steps;        /* backward passes so far: one a step of training */
  int64_t missed;       /* tallies for which there was no memory */
  dm_TallyTable tallies, kept;
  dm_Birth *births;  /* the modules of the last N_BIRTHS nodes, by seq modulo N_BIRTHS */
  dm_Blame first[2]; /* in forward, in backward */
  void (*where)(void *ctx, char *out, size_t n); /* the host's line; or NULL */
  void *ctx;
} dm_AmpTrace;

dm_status dm_amp_trace_init(dm_AmpTrace *tr, bool check);
void dm_amp_trace_free(dm_AmpTrace *tr); /* after the observer came off */
dm_TallyKey dm_tally_key(const dm_Tally *t);

#endif
