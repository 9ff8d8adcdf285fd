/* Recording: see tape.h.

   dm_record makes a node for a call and gives it to the float outputs. The node stores an edge
   for each input (to the node that made it, or to the leaf), the meta of inputs and outputs
   (the backward pass brings gradients to an input's shape, dtype and device), a copy of the
   attributes, and the inputs and outputs that the row's gradient reads (column saves of
   src/ops). PyTorch builds the same as grad_fn, next_edges and SavedVariable.

   In-place changes. A view and its base share bytes, so a change of one changes the other's
   history too: dm_rebase records base' = as_strided_scatter(base, view), and the view becomes
   strided_window(base') (PyTorch's CopySlices). Other views of the base notice by a counter
   (gen) that their history is old, and rebuild it when they are used next.

   Invariants: edges lead to older nodes (smaller seq), so histories have no cycles; a saved
   output is an alias without history, for the same reason. */
#include "engine/tape.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/remake.h"

static atomic_ullong next_seq = 1;

/* The attributes of strided_window and as_strided_scatter. */
typedef struct AsStrided {
  dm_Ints size, stride;
  int64_t offset;
} AsStrided;

void dm_hook_unref(dm_Hook *h) {
  if (--h->refs > 0) return;
  if (h->drop) h->drop(h->ctx);
  dm_free(h);
}

/* Takes all hooks off a list. */
static void free_hooks(dm_Hook *h) {
  while (h) {
    dm_Hook *next = h->next;
    h->removed = true;
    dm_hook_unref(h);
    h = next;
  }
}

/* A long chain of nodes is freed by a loop, not by recursion, which would overflow the stack:
   a node whose last reference goes while another one is being freed waits in this list. */
static _Thread_local dm_Node *doomed;
static _Thread_local bool draining;

void dm_node_release_saved(dm_Node *n) {
  if (n->released) return;
  n->released = dm_remake_drop(n);
  if (!n->op && n->custom.drop) {
    n->released = true;
    n->custom.drop(n->custom.ctx);
    n->custom.ctx = NULL;
  }
}

static void node_free(dm_Node *n) {
  dm_node_release_saved(n);
  if (DM_UNLIKELY(dm_any_home()) && !n->walked) dm_home_leave(n);
  for (int i = 0; i < n->n_in; i++) {
    dm_node_unref(&n->in[i].node);
    dm_tensor_unref(&n->in[i].leaf);
  }
  for (int i = 0; i < n->n_out; i++) dm_tensor_unref(&n->gy[i]);
  dm_remake_forget(n);
  free_hooks(n->hooks);
  dm_cast_state_drop(&n->cast);
  dm_free(n->retain);
  dm_free(n->where);
  dm_free(n->name);
  dm_record_free(n, n->n_bytes);
}

void dm_node_unref(dm_Node **np) {
  dm_Node *n = *np;
  *np = NULL;
  if (!n || !dm_let_go(&n->refs)) return;
  if (draining) {
    n->next_doomed = doomed;
    doomed = n;
    return;
  }
  draining = true;
  node_free(n);
  while (doomed) {
    dm_Node *d = doomed;
    doomed = d->next_doomed;
    node_free(d);
  }
  draining = false;
}

/* t's node, if it has one, retains no gradient for t any more. */
static void forget_retained(const dm_Tensor *t) {
  if (t->flags & DM_T_RETAIN_GRAD && t->node && t->node->retain)
    t->node->retain[t->out_index] = NULL;
}

/* The hook dm_tensor_drop_history: t is being freed, or detached. */
static void drop_history(dm_Tensor *t) {
  forget_retained(t);
  dm_node_unref(&t->node);
  free_hooks(t->hooks);
  t->hooks = NULL;
}

/* The edge of an input of node seq; integers and tensors that require no gradient get an empty
   one. */
static dm_Edge edge_of(dm_Tensor *t, uint64_t seq) {
  dm_Edge e = {NULL, NULL, 0};
  if (!t || !dm_is_float((dm_DType)t->dtype)) return e;
  if (t->node) {
    dm_hold(&t->node->refs);
    e.node = t->node;
    e.out = t->out_index;
  } else if (t->flags & DM_T_REQUIRES_GRAD) {
    e.leaf = dm_tensor_ref(t);
    if (DM_UNLIKELY(t->grad_home != NULL)) dm_home_note(t->grad_home, seq);
  }
  return e;
}

uint64_t dm_next_seq(void) { return atomic_load(&next_seq); }

static int64_t up8(int64_t n) { return (n + 7) & ~(int64_t)7; }

/* How many sizes each meta of a node has. */
static int dims_of_metas(int n_in, dm_Tensor *const *in, int n_out, dm_Tensor *const *out) {
  bool few = true;
  for (int i = 0; i < n_in; i++) few &= !in[i] || in[i]->ndim <= DM_FEW_DIM;
  for (int i = 0; i < n_out; i++) few &= out[i]->ndim <= DM_FEW_DIM;
  return few ? DM_FEW_DIM : DM_MAX_DIM;
}

/* A new node with all of its arrays in one block; edges and metas are filled in. n_saved: the
   length of saved_in; saved_out has n_out entries when save_out. */
static dm_Node *node_new(const dm_OpInfo *op, int n_in, dm_Tensor *const *in, int n_out,
                         dm_Tensor *const *out, int n_saved, bool save_out,
                         int64_t attr_bytes) {
  const dm_ThreadState *ts = dm_thread_state();
  const dm_Anomaly *a = &ts->anomaly;
  char *where = NULL;
  if (DM_UNLIKELY(a->enabled) && a->where && a->where(a->where_ctx, &where) != DM_OK)
    return NULL;
  const int64_t edges = up8((int64_t)sizeof(dm_Edge) * n_in);
  const int n_dim = dims_of_metas(n_in, in, n_out, out);
  const int64_t metas = up8(dm_meta_bytes(n_dim) * (n_in + n_out));
  const int64_t saved = up8((int64_t)sizeof(dm_Saved) * (n_saved + (save_out ? n_out : 0)));
  const int64_t grads = up8((int64_t)sizeof(dm_Tensor *) * n_out);
  const int64_t head = up8((int64_t)sizeof(dm_Node));
  const int64_t n_bytes = head + edges + metas + saved + grads + attr_bytes;
  char *p = dm_record_new(n_bytes);
  if (!p) {
    dm_free(where);
    return NULL;
  }
  dm_Node *n = (dm_Node *)(void *)p;
  memset(p, 0, (size_t)head);
  atomic_init(&n->refs, 1);
  n->op = op;
  n->seq = DM_ADD(&next_seq, 1);
  n->n_in = n_in;
  n->n_saved = n_saved;
  n->n_out = (uint8_t)n_out;
  n->base = ts->base;
  n->where = where;
  n->n_bytes = n_bytes;
  p += head;
  n->in = (dm_Edge *)(void *)p;
  p += edges;
  n->metas = (dm_Metas){p, n_dim};
  p += metas;
  if (n_saved) n->saved_in = (dm_Saved *)(void *)p;
  if (save_out) n->saved_out = (dm_Saved *)(void *)p + n_saved;
  if (saved) memset(p, 0, (size_t)saved);
  p += saved;
  n->gy = (dm_Tensor **)(void *)p;
  n->attr = p + grads;
  for (int i = 0; i < n_in; i++) {
    n->in[i] = edge_of(in[i], n->seq);
    if (in[i] && i < 8) n->given |= (uint8_t)(1 << i);
    if (in[i]) dm_meta_set(dm_meta(n->metas, i), in[i]);
    else memset(dm_meta(n->metas, i), 0, (size_t)dm_meta_bytes(n_dim));
  }
  for (int i = 0; i < n_out; i++) {
    n->gy[i] = NULL;
    dm_meta_set(dm_meta(n->metas, n_in + i), out[i]);
  }
  return n;
}

/* n retains the gradients of those of its outputs that have been a node's output before, and
   want them: what changes in place gets the gradient of its new value, as in PyTorch. */
static dm_status retain_again(dm_Node *n, int n_out, dm_Tensor *const *out) {
  for (int i = 0; i < n_out; i++) {
    if (DM_LIKELY(!(out[i]->flags & DM_T_RETAIN_GRAD))) continue;
    if (!n->retain) n->retain = dm_alloc_zero((int64_t)sizeof(dm_Tensor *) * n_out);
    if (!n->retain) return dm_fail(DM_EMEM, "retain_grad: out of memory");
    n->retain[i] = out[i];
  }
  return DM_OK;
}

/* Gives n to the float outputs. The first one takes over the caller's reference. */
static void give_history(dm_Node *n, int n_out, dm_Tensor *const *out) {
  bool given = false;
  for (int i = 0; i < n_out; i++) {
    if (!dm_is_float((dm_DType)out[i]->dtype)) continue;
    if (given) dm_hold(&n->refs);
    given = true;
    forget_retained(out[i]);
    if (out[i]->node) dm_node_unref(&out[i]->node);
    out[i]->node = n;
    out[i]->out_index = (uint8_t)i;
    out[i]->flags |= DM_T_REQUIRES_GRAD;
  }
  if (!given) dm_node_unref(&n);
}

bool dm_saves_input(uint32_t save, int i, int n_in, dm_Tensor *const *in) {
  if (!in[i]) return false;
  if (save & ((uint32_t)I0 << i)) return true;
  if (!(save & ((uint32_t)C0 << i))) return false;
  for (int j = 0; j < n_in; j++)
    if (j != i && in[j] && dm_tensor_requires_grad(in[j])) return true;
  return false;
}

dm_status dm_record(const dm_Call *c, dm_Tensor *save_in) {
  const dm_OpInfo *op = c->op;
  const int64_t attr_bytes = op->signature->attr_bytes;
  const uint32_t outputs = O0 | O1 | O2;
  const bool inputs = c->save & ~outputs;
  dm_Node *n = node_new(op, c->n_in, c->in, c->n_out, c->out, inputs ? c->n_in : 0,
                        c->save & outputs, attr_bytes);
  if (!n) return DM_EMEM;
  if (attr_bytes) memcpy(n->attr, c->attr, (size_t)attr_bytes);
  dm_status st = DM_OK;
  const bool inplace = c->n_out == 1 && c->n_in > 0 && c->in[0] == c->out[0];
  for (int i = 0; i < c->n_in && i < 8 && n->saved_in; i++) {
    if (!dm_saves_input(c->save, i, c->n_in, c->in)) continue;
    dm_Tensor *t = i == 0 && save_in ? save_in : c->in[i];
    if (t == c->in[i] && dm_remake_can(t)) {
      dm_remake_save(n, &n->saved_in[i], i, -1);
      continue;
    }
    /* in place: tensors that share the output's bytes have changed already */
    const bool lost = inplace && t->storage == c->out[0]->storage;
    DM_GO(dm_save(&n->saved_in[i], t, t->storage->version - lost, i, -1));
  }
  dm_remake_note(n, c->in, c->out[dm_remake_output(n)]);
  if (dm_remake_can_sum(n, c->in, c->out)) {
    DM_GO(dm_save(&n->saved_in[1], c->in[1], c->in[1]->storage->version, 1, -1));
    n->sums_again = true;
  }
  for (int i = 0; i < c->n_out && n->saved_out; i++) {
    if (!(c->save >> (8 + i) & 1)) continue;
    if (i == 0 && (n->sums_again || dm_remake_can_own(n, c->out[0]))) {
      dm_remake_save(n, &n->saved_out[0], -1, 0);
      continue;
    }
    DM_GO(dm_save(&n->saved_out[i], c->out[i], c->out[i]->storage->version, -1, i));
  }
  DM_GO(retain_again(n, c->n_out, c->out));
  give_history(n, c->n_out, c->out);
  return DM_OK;
done:
  dm_node_unref(&n);
  return st;
}

dm_status dm_record_op(const dm_OpInfo *op, int n_in, dm_Tensor *const *in, const void *attr,
                       dm_Tensor **out, dm_Tensor *save_in) {
  dm_Call c = {.op = op, .n_in = n_in, .n_out = 1, .in = in, .attr = attr, .save = op->save};
  c.out[0] = *out;
  return dm_record(&c, save_in);
}

static int index_of(const dm_Tensor *t, int n, dm_Tensor *const *list) {
  for (int i = 0; i < n; i++)
    if (list[i] == t) return i;
  return -1;
}

dm_status dm_record_custom(const char *name, dm_Custom custom, int n_in, dm_Tensor *const *in,
                           int n_out, dm_Tensor **out, int n_saved, dm_Tensor *const *saved) {
  dm_Node *n = node_new(NULL, n_in, in, n_out, out, n_saved, false, 0);
  if (!n) return DM_EMEM;
  dm_status st = DM_OK;
  const int64_t name_bytes = (int64_t)strlen(name) + 1;
  if (!(n->name = dm_alloc(name_bytes))) {
    st = dm_fail(DM_EMEM, "%s: out of memory", name);
    goto done;
  }
  memcpy(n->name, name, (size_t)name_bytes);
  n->cast = dm_autocast_copy(&dm_thread_state()->autocast);
  for (int i = 0; i < n_saved; i++) {
    if (!saved[i]) continue;
    const int from = index_of(saved[i], n_in, in), to = index_of(saved[i], n_out, out);
    DM_GO(dm_save(&n->saved_in[i], saved[i], saved[i]->storage->version, from, to));
  }
  DM_GO(retain_again(n, n_out, out));
  n->custom = custom; /* from here on the node drops it */
  give_history(n, n_out, out);
  return DM_OK;
done:
  dm_node_unref(&n);
  return st;
}

/* ---- views and in-place changes ---- */

/* Shape, strides and offset of a view of b, as the attributes of strided_window. */
static AsStrided geometry(const dm_Tensor *v, const dm_Tensor *b) {
  AsStrided a = {{v->ndim, {0}}, {v->ndim, {0}}, v->offset - b->offset};
  memcpy(a.size.v, v->shape, sizeof v->shape[0] * v->ndim);
  memcpy(a.stride.v, v->stride, sizeof v->stride[0] * v->ndim);
  return a;
}

/* *u = b as its elements lie in memory, for the ops above, which count them so: b itself, or a
   view of it with its dims in this order. */
static dm_status in_memory_order(dm_Tensor *b, dm_Ints *order, dm_Tensor **u) {
  int64_t shape[DM_MAX_DIM], stride[DM_MAX_DIM];
  *order = (dm_Ints){0, {0}};
  *u = NULL;
  if (dm_tensor_is_contiguous(b)) {
    *u = dm_tensor_ref(b);
    return DM_OK;
  }
  if (!dm_tensor_is_dense(b))
    return dm_fail(
        DM_ESTATE,
        "x of shape %s has gaps between its elements: its views are not changed in place "
        "with gradients; hint: x:contiguous() before the view",
        DM_SHAPE(b));
  order->n = b->ndim;
  dm_tensor_memory_order(b, order->v);
  for (int d = 0; d < b->ndim; d++) {
    shape[d] = b->shape[order->v[d]];
    stride[d] = b->stride[order->v[d]];
  }
  DM_TRY(dm_tensor_view(b, b->ndim, shape, stride, b->offset, u));
  return DM_OK;
}

/* The same, recorded. */
static dm_status seen_in_memory_order(dm_Tensor *b, dm_Ints *order, dm_Tensor **u) {
  DM_TRY(in_memory_order(b, order, u));
  if (order->n == 0) return DM_OK;
  const dm_status st = dm_record_op(&dm_ops[DM_OP_permute], 1, &b, order, u, NULL);
  if (st != DM_OK) dm_tensor_unref(u);
  return st;
}

dm_status dm_refresh_view(dm_Tensor *v) {
  dm_Tensor *b = v->base;
  if (!b || v->gen == b->gen) return DM_OK;
  if (v->storage != b->storage) { /* b's data were exchanged: v keeps the old ones */
    dm_tensor_unref(&v->base);
    return DM_OK;
  }
  if (!dm_tensor_requires_grad(b)) {
    v->gen = b->gen;
    return DM_OK;
  }
  const AsStrided a = geometry(v, b);
  dm_Ints order;
  dm_Tensor *u;
  DM_TRY(seen_in_memory_order(b, &order, &u));
  const dm_status st = dm_record_op(&dm_ops[DM_OP_strided_window], 1, &u, &a, &v, NULL);
  if (st == DM_OK) v->gen = b->gen;
  dm_tensor_unref(&u);
  return st;
}

/* base' = base with the elements of v replaced by v; then v becomes a view of base'. */
dm_status dm_rebase(dm_Tensor *v) {
  dm_Tensor *b = v->base, *in[2] = {NULL, v}, *out = NULL;
  const AsStrided a = geometry(v, b);
  const dm_OpInfo *const scatter = &dm_ops[DM_OP_as_strided_scatter];
  dm_Ints order, back = {0, {0}};
  dm_status st = DM_OK;
  DM_GO(seen_in_memory_order(b, &order, &in[0]));
  if (order.n == 0) {
    DM_GO(dm_record_op(scatter, 2, in, &a, &b, NULL));
  } else {
    DM_GO(in_memory_order(b, &order, &out));
    DM_GO(dm_record_op(scatter, 2, in, &a, &out, NULL));
    back.n = order.n;
    for (int d = 0; d < order.n; d++) back.v[order.v[d]] = d;
    DM_GO(dm_record_op(&dm_ops[DM_OP_permute], 1, &out, &back, &b, NULL));
  }
  b->gen++;
  st = dm_refresh_view(v);
done:
  dm_tensor_unref(&in[0]);
  dm_tensor_unref(&out);
  return st;
}

void dm_detach_(dm_Tensor *t) {
  if (t->node || t->hooks) drop_history(t);
  if (t->base) dm_tensor_unref(&t->base);
  t->flags &= (uint8_t) ~(DM_T_REQUIRES_GRAD | DM_T_RETAIN_GRAD);
}

dm_status dm_set_requires_grad(dm_Tensor *t, bool on) {
  if (on && !dm_is_float((dm_DType)t->dtype))
    return dm_fail(DM_EARG, "requires_grad: only float tensors have gradients, this one is %s",
                   dm_dtype_name((dm_DType)t->dtype));
  if (!on && t->node)
    return dm_fail(DM_ESTATE,
                   "requires_grad: only a leaf can be switched off; hint: x:detach()");
  if (on) t->flags |= DM_T_REQUIRES_GRAD;
  else t->flags &= (uint8_t)~DM_T_REQUIRES_GRAD;
  return DM_OK;
}

dm_status dm_retain_grad(dm_Tensor *t) {
  if (t->base) DM_TRY(dm_refresh_view(t));
  if (!dm_tensor_requires_grad(t))
    return dm_fail(DM_ESTATE, "retain_grad: the tensor does not require grad");
  if (!t->node) return DM_OK; /* a leaf gets .grad anyway */
  if (!t->node->retain) {
    t->node->retain = dm_alloc_zero((int64_t)sizeof(dm_Tensor *) * t->node->n_out);
    if (!t->node->retain) return dm_fail(DM_EMEM, "retain_grad: out of memory");
  }
  t->node->retain[t->out_index] = t;
  t->flags |= DM_T_RETAIN_GRAD;
  return DM_OK;
}

static dm_status add_hook(dm_Tensor *t, dm_Hook *hook, int out) {
  dm_Hook **at = t->node ? &t->node->hooks : &t->hooks;
  while (*at) at = &(*at)->next; /* hooks run in the order of their registration */
  hook->out = out;
  hook->next = NULL;
  hook->refs = 1;
  *at = hook;
  return DM_OK;
}

dm_status dm_add_hook(dm_Tensor *t, dm_Hook *hook) {
  if (t->base) DM_TRY(dm_refresh_view(t));
  if (!dm_tensor_requires_grad(t))
    return dm_fail(DM_ESTATE, "register_hook: the tensor does not require grad");
  return add_hook(t, hook, t->node ? t->out_index : 0);
}

dm_status dm_add_after_hook(dm_Tensor *t, dm_Hook *hook) {
  static const char NAME[] = "register_post_accumulate_grad_hook";
  if (t->base) DM_TRY(dm_refresh_view(t));
  if (!dm_tensor_requires_grad(t))
    return dm_fail(DM_ESTATE, "%s: the tensor does not require grad", NAME);
  if (t->node)
    return dm_fail(DM_ESTATE,
                   "%s: the tensor is the result of an op, and only leaves accumulate "
                   "gradients; hint: register_hook",
                   NAME);
  return add_hook(t, hook, DM_AFTER);
}

void dm_remove_hook(dm_Node *n, dm_Tensor *leaf, int64_t id) {
  for (dm_Hook **at = n ? &n->hooks : &leaf->hooks; *at; at = &(*at)->next) {
    if ((*at)->id != id) continue;
    dm_Hook *h = *at;
    *at = h->next;
    h->next = NULL;
    free_hooks(h);
    return;
  }
}

__attribute__((constructor)) static void install(void) {
  dm_tensor_drop_history = drop_history;
}
