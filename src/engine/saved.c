/* Saved tensors and checkpoints: see saved.h.

   Invariant of a checkpoint: made[i] is the i-th tensor that the last run saved, until it is
   taken. A backward pass takes each once, so memory falls as the pass goes on. A made tensor
   has no history, so the checkpoint holds none of the nodes that hold it. */
#include "engine/saved.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/node.h"

/* ---- checkpoints ---- */

/* A tensor that the second run saved. */
typedef struct Made {
  dm_Tensor *t; /* owned; NULL once taken */
  uint32_t version;
} Made;

/* An input of the checkpoint, saved like a node's. */
typedef struct Input {
  dm_Saved saved;
  bool requires_grad;
} Input;

/* One checkpoint. The nodes of its first run hold it, through their saved tensors. */
struct dm_Replay {
  atomic_int refs;
  bool again;      /* a second run is under way */
  bool ended;      /* the first run is over */
  int n_left_out;  /* tensors that the first run numbered */
  int n, capacity; /* of made */
  Made *made;
  dm_ReplayFn *run;
  void (*drop)(void *ctx);
  void *ctx;
  int n_in;
  Input in[];
};

/* Drops what the last run saved. */
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

/* Appends an alias of t to made. */
static dm_status add_made(dm_Replay *r, const dm_Tensor *t, uint32_t version) {
  if (r->n == r->capacity) {
    const int capacity = r->capacity ? 2 * r->capacity : 32;
    Made *m = dm_alloc((int64_t)sizeof *m * capacity);
    if (!m) return dm_fail(DM_EMEM, "checkpoint: out of memory");
    if (r->n) memcpy(m, r->made, sizeof *m * (size_t)r->n);
    dm_free(r->made);
    r->made = m;
    r->capacity = capacity;
  }
  DM_TRY(dm_tensor_alias(t, &r->made[r->n].t));
  r->made[r->n++].version = version;
  return DM_OK;
}

/* Gives t the next number, and the caller a reference to r. Only a second run stores t. */
static dm_status number_tensor(dm_Replay *r, const dm_Tensor *t, uint32_t version,
                               uint32_t *number) {
  *number = (uint32_t)(r->again ? r->n : r->n_left_out++);
  if (r->again) DM_TRY(add_made(r, t, version));
  dm_hold(&r->refs);
  return DM_OK;
}

/* The inputs as new leaves, so that the second run's graph ends at them. */
static dm_status make_leaves(const dm_Replay *r, dm_Tensor **in) {
  for (int i = 0; i < r->n_in; i++) {
    dm_Tensor *kept = NULL;
    DM_TRY(dm_saved_get(&r->in[i].saved, NULL, &kept));
    const dm_status st = dm_tensor_alias(kept, &in[i]);
    dm_tensor_unref(&kept);
    DM_TRY(st);
    if (r->in[i].requires_grad) in[i]->flags |= DM_T_REQUIRES_GRAD;
  }
  return DM_OK;
}

/* The second run: fills made, and checks that it saved as many tensors as the first. */
static dm_status run_again(dm_Replay *r) {
  dm_ThreadState *ts = dm_thread_state();
  dm_Tensor **in = dm_alloc_zero((int64_t)sizeof *in * dm_max_i64(r->n_in, 1));
  if (!in) return dm_fail(DM_EMEM, "checkpoint: out of memory");
  forget(r);
  dm_status st = make_leaves(r, in);
  if (st == DM_OK) {
    dm_Replay *outer = ts->replay;
    ts->replay = r;
    r->again = true;
    st = r->run(r->ctx, r->n_in, in);
    r->again = false;
    ts->replay = outer;
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

/* The tensor of that number, as a handle that only the caller has. */
static dm_status take_tensor(dm_Replay *r, uint32_t number, dm_Tensor **to, uint32_t *version) {
  const int i = (int)number;
  if (r->again && i < r->n) { /* the function itself asks for gradients */
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
  const dm_Replay *r = dm_thread_state()->replay;
  return !r ? 0 : r->again ? r->n : r->n_left_out;
}

void dm_replay_rewind(int mark) {
  dm_Replay *r = dm_thread_state()->replay;
  if (!r) return;
  if (!r->again) r->n_left_out = mark;
  while (r->again && r->n > mark) dm_tensor_unref(&r->made[--r->n].t);
}

/* ---- saved tensors ---- */

/* A leaf that requires a gradient is saved itself: nothing recorded may change it in place. So
   is what has lent bytes, a parameter or autocast's cast of one, for the bytes may then go. Of
   another tensor a second handle is saved, with the history that the tensor has now: a later
   in-place change gives the script's handle a node that depends on this one, and saving that
   handle would close a cycle. */
static dm_status save_input(dm_Tensor *t, dm_Tensor **out) {
  if ((!t->node && dm_tensor_requires_grad(t)) || (t->storage->lent && !t->base)) {
    *out = dm_tensor_ref(t);
    return DM_OK;
  }
  DM_TRY(dm_tensor_alias(t, out));
  if (t->last) (*out)->last = dm_tensor_ref(t->last);
  if (!t->node) return DM_OK;
  dm_hold(&t->node->refs);
  (*out)->node = t->node;
  (*out)->out_index = t->out_index;
  (*out)->flags |= DM_T_REQUIRES_GRAD;
  return DM_OK;
}

dm_status dm_save(dm_Saved *s, dm_Tensor *t, uint32_t version, int from, int out) {
  s->version = version;
  s->from = (int16_t)from;
  s->out = (int16_t)out;
  dm_Replay *r = dm_thread_state()->replay;
  if (DM_UNLIKELY(r != NULL)) {
    s->gen = t->gen;
    DM_TRY(number_tensor(r, t, version, &s->index));
    s->replay = r;
    return DM_OK;
  }
  DM_TRY(out >= 0 ? dm_tensor_alias(t, &s->t) : save_input(t, &s->t));
  s->gen = s->t->gen;
  return DM_OK;
}

void dm_saved_drop(dm_Saved *s) {
  if (s->t) dm_tensor_unref(&s->t);
  if (s->replay) dm_replay_unref(&s->replay);
}

/* "input 2 (weight) of linear", in buf. */
static const char *role_of(const dm_Saved *s, const dm_Node *n, char *buf, size_t size) {
  const dm_Signature *g = n && n->op ? n->op->signature : NULL;
  if (!n) {
    snprintf(buf, size, "an input of a checkpoint");
  } else if (s->from >= 0) {
    const char *name = g && !g->list && s->from < DM_MAX_IN ? g->tensor[s->from] : NULL;
    snprintf(buf, size, "input %d%s%s%s of %s", s->from + n->base, name ? " (" : "",
             name ? name : "", name ? ")" : "", dm_node_name(n));
  } else {
    snprintf(buf, size, "%s of %s",
             s->out >= 0 ? "the result" : "a tensor saved in the forward", dm_node_name(n));
  }
  return buf;
}

dm_status dm_saved_refuse(const dm_Saved *s, const dm_Node *n, const dm_Tensor *t) {
  char role[96];
  role_of(s, n, role, sizeof role);
  /* A recorded change of a view rewrites its base's history, too: the base has a node then. */
  if (t->gen != s->gen && !t->node)
    return dm_fail(
        DM_ESTATE,
        "backward: the data of %s, which its gradient needs, were exchanged afterwards "
        "for a %s tensor of shape %s; hint: backward before x.data = y, or x:clone()",
        role, dm_dtype_name((dm_DType)t->dtype), DM_SHAPE(t));
  return dm_fail(DM_ESTATE,
                 "backward: %s, of shape %s, which its gradient needs, was changed in place "
                 "afterwards (version %u, wanted %u); hint: x:clone() before the change",
                 role, DM_SHAPE(t), t->storage->version, s->version);
}

dm_status (*dm_bring_bytes)(dm_Tensor *t);

/* The saved tensor, whose bytes were lent. Where no history is wanted of it, another handle:
   its bytes stay for as long as a gradient is computed of them. */
static dm_status get_lent(const dm_Saved *s, dm_Tensor **to) {
  if (s->t->storage->lent == DM_AWAY) {
    if (!dm_bring_bytes) return dm_fail(DM_ESTATE, "backward: a parameter's data are away");
    DM_TRY(dm_bring_bytes(s->t));
  }
  if (!dm_thread_state()->grad && dm_saved_is_same(s, s->t)) {
    DM_TRY(dm_tensor_alias(s->t, to));
    (*to)->gen = s->gen;
    return DM_OK;
  }
  *to = dm_tensor_ref(s->t);
  return DM_OK;
}

dm_status dm_saved_get(const dm_Saved *s, const dm_Node *n, dm_Tensor **to) {
  dm_Saved now = *s;
  *to = NULL;
  if (s->replay) {
    DM_TRY(take_tensor(s->replay, s->index, to, &now.version));
    now.gen = (*to)->gen; /* a handle that nobody else has */
  } else if (s->t && DM_UNLIKELY(s->t->storage->lent != DM_OWN)) {
    DM_TRY(get_lent(s, to));
  } else if (s->t) {
    *to = dm_tensor_ref(s->t);
  }
  if (!*to || dm_saved_is_same(&now, *to)) return DM_OK;
  const dm_status st = dm_saved_refuse(&now, n, *to);
  dm_tensor_unref(to);
  return st;
}
