/* See replay.h. Invariant: made[i] is what the last run saved i-th, until it is
   taken; a walk takes each once, so memory falls as the walk goes on. It has no
   history, so r holds none of the nodes that hold r. */
#include "engine/replay.h"

#include "base/alloc.h"
#include "base/error.h"

typedef struct Made {
  dm_Tensor *t; /* owned; NULL once taken */
  uint32_t version;
} Made;

typedef struct Input {
  dm_Saved saved;
  bool requires_grad;
} Input;

struct dm_Replay {
  atomic_int refs;
  bool again; /* in a second run */
  bool ended; /* the first run is over */
  int n_left_out;
  int n, room; /* of made */
  Made *made;
  dm_ReplayFn *run;
  void (*drop)(void *ctx);
  void *ctx;
  int n_in;
  Input in[];
};

static void forget(dm_Replay *r) {
  while (r->n > 0) dm_tensor_unref(&r->made[--r->n].t);
}

void dm_replay_unref(dm_Replay **rp) {
  dm_Replay *r = *rp;
  *rp = NULL;
  if (!r || !dm_let_go(&r->refs)) return;
  forget(r);
  dm_free(r->made);
  for (int i = 0; i < r->n_in; i++) dm_saved_drop(&r->in[i].saved);
  if (r->drop) r->drop(r->ctx);
  dm_free(r);
}

dm_status dm_replay_new(int n, dm_Tensor *const *in, dm_ReplayFn *run, void (*drop)(void *ctx),
                        void *ctx, dm_Replay **out) {
  dm_Replay *r = dm_alloc_zero((int64_t)(sizeof *r + sizeof r->in[0] * (size_t)n));
  if (!r) return dm_fail(DM_EMEM, "checkpoint: out of memory");
  atomic_init(&r->refs, 1);
  r->run = run;
  r->n_in = n;
  for (int i = 0; i < n; i++) {
    r->in[i].requires_grad = dm_tensor_requires_grad(in[i]);
    const dm_status st = dm_save(&r->in[i].saved, in[i], in[i]->storage->version, -1, -1);
    if (st == DM_OK) continue;
    dm_replay_unref(&r);
    return st;
  }
  r->drop = drop;
  r->ctx = ctx;
  *out = r;
  return DM_OK;
}

void dm_replay_end(dm_Replay *r) { r->ended = true; }

static dm_status add(dm_Replay *r, const dm_Tensor *t, uint32_t version) {
  if (r->n == r->room) {
    const int room = r->room ? 2 * r->room : 32;
    Made *m = dm_alloc((int64_t)sizeof *m * room);
    if (!m) return dm_fail(DM_EMEM, "checkpoint: out of memory");
    if (r->n) memcpy(m, r->made, sizeof *m * (size_t)r->n);
    dm_free(r->made);
    r->made = m;
    r->room = room;
  }
  DM_TRY(dm_tensor_alias(t, &r->made[r->n].t));
  r->made[r->n++].version = version;
  return DM_OK;
}

dm_status dm_replay_save(dm_Replay *r, const dm_Tensor *t, uint32_t version, uint32_t *number) {
  *number = (uint32_t)(r->again ? r->n : r->n_left_out++);
  if (r->again) DM_TRY(add(r, t, version));
  dm_hold(&r->refs);
  return DM_OK;
}

/* The inputs, as leaves of their own. */
static dm_status leaves(const dm_Replay *r, dm_Tensor **in) {
  for (int i = 0; i < r->n_in; i++) {
    dm_Tensor *kept = NULL;
    DM_TRY(dm_saved_get(&r->in[i].saved, "a checkpoint", &kept));
    const dm_status st = dm_tensor_alias(kept, &in[i]);
    dm_tensor_unref(&kept);
    DM_TRY(st);
    if (r->in[i].requires_grad) in[i]->flags |= DM_T_REQUIRES_GRAD;
  }
  return DM_OK;
}

static dm_status run_again(dm_Replay *r) {
  dm_Modes *m = dm_modes();
  dm_Tensor **in = dm_alloc_zero((int64_t)sizeof *in * dm_max_i64(r->n_in, 1));
  if (!in) return dm_fail(DM_EMEM, "checkpoint: out of memory");
  forget(r);
  dm_status st = leaves(r, in);
  if (st == DM_OK) {
    dm_Replay *outer = m->replay;
    m->replay = r;
    r->again = true;
    st = r->run(r->ctx, r->n_in, in);
    r->again = false;
    m->replay = outer;
  }
  for (int i = 0; i < r->n_in; i++) dm_tensor_unref(&in[i]);
  dm_free(in);
  if (st == DM_OK && r->ended && r->n != r->n_left_out)
    st = dm_fail(DM_ESTATE,
                 "checkpoint: run again, the function saved %d tensors for its gradients, at "
                 "first %d; hint: it must do the same both times",
                 r->n, r->n_left_out);
  if (st != DM_OK) forget(r);
  return st;
}

dm_status dm_replay_take(dm_Replay *r, uint32_t number, dm_Tensor **to, uint32_t *version) {
  const int i = (int)number;
  if (r->again && i < r->n) { /* the function itself asks for gradients: not yet ours */
    *version = r->made[i].version;
    return dm_tensor_alias(r->made[i].t, to);
  }
  if (r->again)
    return dm_fail(DM_ESTATE,
                   "checkpoint: the function's gradients were asked for while it ran "
                   "again");
  if (i >= r->n || !r->made[i].t) DM_TRY(run_again(r));
  if (i >= r->n)
    return dm_fail(DM_ESTATE, "checkpoint: run again, the function saved too few tensors");
  *to = r->made[i].t;
  *version = r->made[i].version;
  r->made[i].t = NULL;
  return DM_OK;
}

int dm_replay_mark(void) {
  const dm_Replay *r = dm_modes()->replay;
  return !r ? 0 : r->again ? r->n : r->n_left_out;
}

void dm_replay_rewind(int mark) {
  dm_Replay *r = dm_modes()->replay;
  if (!r) return;
  if (!r->again) r->n_left_out = mark;
  while (r->again && r->n > mark) dm_tensor_unref(&r->made[--r->n].t);
}
