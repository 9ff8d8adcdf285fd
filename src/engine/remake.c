/* Which results are computed again, and who needs whom for that: see remake.h. */
#include "engine/remake.h"

/* The ops between a result and the tensors that are kept may cost so much together: a view 1,
   the others 2. A longer chain would be computed again and again for the members of it that are
   saved. */
enum { MAX_CHAIN = 8 };

atomic_llong dm_remake_bytes = 1 << 20;

/* ---- results that can be computed again ---- */

/* Were t's elements those that its node computed, `ago` in-place changes of its storage ago?
   Nothing else has changed or exchanged them. */
static bool is_pristine(const dm_Tensor *t, uint32_t ago) {
  const dm_Node *n = t->node;
  return n && t->storage->version - ago == n->version && t->gen == n->gen;
}

/* Inputs that no gradient reads reach the op again through the graph's edges, so that they must
   be what their nodes computed. strided_window's result depends on more than its input's
   elements. An op that works in place runs again with a result of its own. A GPU's library
   computes batch norm in training by other roundings than in evaluation, as which it would run
   again. */
void dm_remake_note(dm_Node *n, dm_Tensor *const *in, const dm_Tensor *out) {
  const bool inplace = n->n_in > 0 && in[0] == out;
  n->version = out->storage->version;
  n->gen = out->gen + inplace; /* which rises after the recording */
  if (!(n->op->flags & (F_CHEAP | F_VIEW)) || n->op == &dm_ops[DM_OP_strided_window]) return;
  const bool norms =
      n->op == &dm_ops[DM_OP_batch_norm_train] || n->op == &dm_ops[DM_OP_batch_norm_relu];
  if (norms && out->device.type != DM_CPU) return;
  if (n->n_in > DM_MAX_IN || (inplace && out->base)) return;
  for (int i = 0; i < n->n_in; i++) {
    if (!in[i] || !dm_remake_reads(n, i) || (n->saved_in && n->saved_in[i].t)) continue;
    if (!is_pristine(in[i], inplace && in[i]->storage == out->storage)) return;
  }
  n->pure = true;
}

static bool can(const dm_Node *n, int left);

/* Is input i at hand when n's op runs again? */
static bool has_input(const dm_Node *n, int i, int left) {
  const dm_Saved *s = n->saved_in ? &n->saved_in[i] : NULL;
  const dm_Edge *e = &n->in[i];
  if (s && s->t) return true;
  if (s && s->remade) return can(e->node, left);
  if (!e->node || e->node->released || (s && s->replay)) return false;
  return dm_remake_end_keeps(e) || (e->out == dm_remake_output(e->node) && can(e->node, left));
}

/* Can n's op compute its output 0 again from tensors that are kept, at that cost? */
static bool can(const dm_Node *n, int left) {
  left -= n->op && n->op->flags & F_VIEW ? 1 : 2;
  if (!n->pure || n->released || left < 0) return false;
  for (int i = 0; i < n->n_in; i++)
    if (dm_remake_reads(n, i) && !has_input(n, i, left)) return false;
  return true;
}

/* A view of a tensor that is kept costs nothing to save. */
static bool is_only_view(const dm_Node *n) {
  while (n && n->op && n->op->flags & F_VIEW) n = n->in[0].node;
  return !n || !n->op || !(n->op->flags & F_CHEAP);
}

static bool is_large(const dm_Tensor *t) {
  return dm_tensor_bytes(t) >= atomic_load_explicit(&dm_remake_bytes, memory_order_relaxed);
}

bool dm_remake_can(const dm_Tensor *t) {
  return is_large(t) && t->node && t->out_index == dm_remake_output(t->node) &&
         !dm_thread_state()->replay && is_pristine(t, 0) && !is_only_view(t->node) &&
         can(t->node, MAX_CHAIN);
}

bool dm_remake_can_own(const dm_Node *n, const dm_Tensor *t) {
  return is_large(t) && n->op->flags & F_CHEAP && dm_remake_output(n) == 0 &&
         !dm_thread_state()->replay && can(n, MAX_CHAIN);
}

bool dm_remake_can_sum(const dm_Node *n, dm_Tensor *const *in, dm_Tensor *const *out) {
  if (n->op != &dm_ops[DM_OP_add_norm] || !in[1] || !is_large(out[1]) || !n->pure) return false;
  return n->saved_out && dm_tensor_bytes(in[1]) < dm_tensor_bytes(out[0]) &&
         !dm_thread_state()->replay && is_pristine(in[0], 0) && n->in[0].node &&
         dm_remake_end_keeps(&n->in[0]);
}

/* ---- users ---- */

/* From now on somebody relies on n to compute its output 0. */
static void hold(dm_Node *n) {
  dm_hold(&n->n_user);
  for (int i = 0; i < n->n_in; i++) {
    if (!dm_remake_reads(n, i) || dm_remake_is_saved(n, i)) continue;
    if (dm_remake_end_keeps(&n->in[i])) dm_hold(&n->in[i].node->n_user);
    else hold(n->in[i].node);
  }
}

void dm_remake_save(dm_Node *n, dm_Saved *s, int from, int out) {
  s->from = (int16_t)from;
  s->out = (int16_t)out;
  s->remade = true;
  hold(dm_remake_maker(n, s));
}

static void drop_all(dm_Node *n);

/* One user of n's less. The last one takes along what only the users needed. */
static void leave(dm_Node *n) {
  if (!dm_let_go(&n->n_user)) return;
  atomic_store(&n->n_user, 0);
  dm_remake_forget(n);
  if (n->released) drop_all(n);
}

/* Nobody relies on n any more. The inputs first: which of them are saved tells the way. */
static void let_go(dm_Node *n) {
  for (int i = 0; i < n->n_in; i++) {
    if (!dm_remake_reads(n, i) || dm_remake_is_saved(n, i)) continue;
    if (dm_remake_end_keeps(&n->in[i])) leave(n->in[i].node);
    else let_go(n->in[i].node);
  }
  leave(n);
}

static void drop(dm_Node *n, dm_Saved *s) {
  const bool remade = s->remade;
  s->remade = false;
  if (remade) let_go(dm_remake_maker(n, s));
  else dm_saved_drop(s);
}

static void drop_all(dm_Node *n) {
  for (int i = 0; i < n->n_saved; i++) drop(n, &n->saved_in[i]);
  for (int i = 0; n->saved_out && i < n->n_out; i++) drop(n, &n->saved_out[i]);
}

static bool is_any(const dm_Saved *s) { return s->t || s->replay || s->remade; }

/* A node that relies on itself is its own user. */
bool dm_remake_drop(dm_Node *n) {
  bool any = false;
  for (int i = 0; i < n->n_saved; i++) any |= is_any(&n->saved_in[i]);
  for (int i = 0; n->saved_out && i < n->n_out; i++) any |= is_any(&n->saved_out[i]);
  if (n->saved_out && n->saved_out[0].remade) drop(n, &n->saved_out[0]);
  if (atomic_load(&n->n_user) == 0) drop_all(n);
  return any;
}
