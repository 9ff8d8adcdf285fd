/* The walk back. Nodes wait in a heap by number; the largest is next, and all
   that could still feed it have been. Gradients meet at gy. Work per node: the
   hooks, the row's gradient (autocast off, positions counted as in forward; one
   that the host wrote runs in its forward's autocast state), then each result is
   brought to its input's shape and dtype and handed on. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/autocast.h"
#include "engine/observe.h"
#include "engine/tape.h"

typedef struct Walk {
  dm_Node **heap; /* owned references; heap[0] has the largest seq */
  int n, room;
  dm_Node *local[16]; /* the heap while it is small */
  int flags;
  bool scaled; /* a node that multiplies by a loss scale has been passed */
  /* autograd.grad: where to stop and what to bring back; NULL for backward */
  int n_want;
  dm_Tensor *const *want;
  dm_Tensor **got;
  uint32_t mark; /* mark: reaches a wanted tensor; mark + 1: does not */
} Walk;

static atomic_uint next_mark = 2;

static dm_status push(Walk *w, dm_Node *n) {
  if (w->n == w->room) {
    const int room = w->room ? 4 * w->room : DM_COUNT(w->local);
    dm_Node **h = w->room ? dm_alloc((int64_t)sizeof *h * room) : w->local;
    if (!h) return dm_fail(DM_EMEM, "backward: out of memory");
    if (w->n) memcpy(h, w->heap, sizeof *h * (size_t)w->n);
    if (w->heap != w->local) dm_free(w->heap);
    w->heap = h;
    w->room = room;
  }
  int i = w->n++;
  for (; i > 0 && w->heap[(i - 1) / 2]->seq < n->seq; i = (i - 1) / 2)
    w->heap[i] = w->heap[(i - 1) / 2];
  w->heap[i] = n;
  dm_hold(&n->refs);
  return DM_OK;
}

static dm_Node *pop(Walk *w) {
  dm_Node *top = w->heap[0], *last = w->heap[--w->n];
  int i = 0;
  for (int c; (c = 2 * i + 1) < w->n; i = c) {
    if (c + 1 < w->n && w->heap[c + 1]->seq > w->heap[c]->seq) c++;
    if (w->heap[c]->seq <= last->seq) break;
    w->heap[i] = w->heap[c];
  }
  w->heap[i] = last;
  return top;
}

static bool owned_alone(const dm_Tensor *t) {
  return atomic_load(&t->refs) == 1 && atomic_load(&t->storage->refs) == 1 && !t->node &&
         !t->base && (dm_tensor_is_contiguous(t) || dm_tensor_is_channels_last(t));
}

/* *sum += g; *sum may be NULL. Takes neither. `wide`: 16-bit gradients meet in
   float32, so that the uses of one weight lose nothing in their sum. */
static dm_status meet(dm_Tensor **sum, dm_Tensor *g, bool create_graph, bool wide) {
  if (!*sum) {
    *sum = dm_tensor_ref(g);
    return DM_OK;
  }
  dm_Tensor *out = NULL, *in[2] = {*sum, g};
  if (!create_graph && !wide && owned_alone(*sum) && (*sum)->dtype == g->dtype)
    return dm_call_inplace(DM_OP_add, 2, in, NULL);
  dm_Tensor *up[2] = {NULL, NULL};
  dm_status st = DM_OK;
  if (wide) {
    const int64_t f32 = DM_F32;
    for (int i = 0; i < 2; i++) {
      DM_GO(dm_call(DM_OP_cast, 1, &in[i], &f32, &up[i]));
      in[i] = up[i];
    }
  }
  DM_GO(dm_call(DM_OP_add, 2, in, NULL, &out));
  dm_tensor_unref(sum);
  *sum = out;
done:
  dm_tensor_unref(&up[0]);
  dm_tensor_unref(&up[1]);
  return st;
}

/* A hook may take itself or others off the list: the ones to call are noted
   and held first. */
static dm_status run_hooks(dm_Hook *hooks, int out, dm_Tensor **g) {
  enum { LOCAL = 8 };
  dm_Hook *local[LOCAL], **list = local;
  int n = 0, k = 0;
  for (const dm_Hook *h = hooks; h; h = h->next) n += h->out == out;
  if (n > LOCAL && !(list = dm_alloc((int64_t)sizeof *list * n)))
    return dm_fail(DM_EMEM, "backward: out of memory");
  for (dm_Hook *h = hooks; h; h = h->next) {
    if (h->out != out) continue;
    h->refs++;
    list[k++] = h;
  }
  dm_status st = DM_OK;
  for (k = 0; k < n; k++) {
    if (st == DM_OK && !list[k]->removed) st = list[k]->call(list[k]->ctx, g);
    dm_hook_unref(list[k]);
  }
  if (list != local) dm_free(list);
  return st;
}

/* Adds g into leaf.grad (backward) or into what was asked for (grad). */
static dm_status into_leaf(Walk *w, dm_Tensor *leaf, dm_Tensor *g) {
  dm_Tensor *mine = dm_tensor_ref(g);
  dm_status st = DM_OK;
  const bool create = w->flags & DM_CREATE_GRAPH;
  if (leaf->hooks) DM_GO(run_hooks(leaf->hooks, 0, &mine));
  if (w->want) {
    for (int i = 0; i < w->n_want; i++)
      if (w->want[i] == leaf) DM_GO(meet(&w->got[i], mine, create, false));
  } else if (leaf->grad) {
    DM_GO(meet(&leaf->grad, mine, create, false));
  } else if (atomic_load(&mine->refs) <= 2 && g == mine &&
             atomic_load(&mine->storage->refs) == 1 && !mine->base &&
             dm_tensor_is_contiguous(mine)) {
    leaf->grad = dm_tensor_ref(mine);
  } else {
    DM_GO(dm_call(DM_OP_clone, 1, &mine, NULL, &leaf->grad));
  }
  if (w->scaled && leaf->grad) leaf->grad->flags |= DM_T_SCALED;
done:
  dm_tensor_unref(&mine);
  return st;
}

/* Hands g to where an edge points. */
static dm_status hand_on(Walk *w, const dm_Edge *e, dm_Tensor *g) {
  if (e->leaf) return into_leaf(w, e->leaf, g);
  dm_Node *n = e->node;
  bool waiting = false;
  for (int i = 0; i < n->n_out && !waiting; i++) waiting = n->gy[i] != NULL;
  const bool wide = n->op == &dm_ops[DM_OP_cast] && n->in_meta[0].dtype == DM_F32;
  DM_TRY(meet(&n->gy[e->out], g, w->flags & DM_CREATE_GRAPH, wide));
  return waiting ? DM_OK : push(w, n);
}

/* *g = op(*g) */
static dm_status replace(dm_Tensor **g, int op, const void *attr) {
  dm_Tensor *out;
  DM_TRY(dm_call(op, 1, g, attr, &out));
  dm_tensor_unref(g);
  *g = out;
  return DM_OK;
}

/* A 0-dim tensor of the CPU may meet those of any device; its gradient comes home. */
static dm_status bring_home(dm_Tensor **g, const dm_Meta *m) {
  if (m->ndim == 0) {
    const int64_t attr[3] = {m->dtype, dm_device_code(m->device), 0};
    return replace(g, DM_OP_to, attr);
  }
  char a[16], b[16];
  return dm_fail(DM_EARG, "backward: a gradient on %s for a tensor on %s",
                 dm_device_name((*g)->device, a), dm_device_name(m->device, b));
}

/* Gradient of the input's own shape, dtype and device, from one that broadcast gave. */
static dm_status fit(dm_Tensor **g, const dm_Meta *m) {
  bool same = (*g)->ndim == m->ndim;
  for (int d = 0; same && d < m->ndim; d++) same = (*g)->shape[d] == m->shape[d];
  if (!same) {
    dm_Ints size = {m->ndim, {0}};
    memcpy(size.v, m->shape, sizeof m->shape[0] * m->ndim);
    DM_TRY(replace(g, DM_OP_sum_to_size, &size));
  }
  if (DM_UNLIKELY(!dm_device_eq((*g)->device, m->device))) DM_TRY(bring_home(g, m));
  if ((*g)->dtype == m->dtype) return DM_OK;
  const int64_t dtype = m->dtype;
  return replace(g, DM_OP_cast, &dtype);
}

static bool wanted(const Walk *w, const dm_Edge *e) {
  if (!w->want) return e->node || e->leaf;
  if (e->node) return e->node->mark == w->mark;
  for (int i = 0; e->leaf && i < w->n_want; i++)
    if (w->want[i] == e->leaf) return true;
  return false;
}

static void join(dm_Tensor *t, dm_Node *n, int out) {
  dm_hold(&n->refs);
  t->node = n;
  t->out_index = (uint8_t)out;
  t->flags |= DM_T_REQUIRES_GRAD;
}

/* What was made again must look like what was left out, of which the node has
   the shape, and the edge the version of a leaf. */
static dm_status check_again(const dm_Node *n, const dm_Saved *s, const dm_Tensor *t) {
  const dm_Meta *m = s->out >= 0    ? &n->out_meta[s->out]
                     : s->from >= 0 ? &n->in_meta[s->from]
                                    : NULL;
  if (m && (m->dtype != t->dtype || m->ndim != t->ndim ||
            memcmp(m->shape, t->shape, sizeof m->shape[0] * m->ndim) != 0))
    return dm_fail(DM_ESTATE,
                   "checkpoint: run again, the function gave %s a tensor of shape %s and dtype "
                   "%s, at first %s %s; hint: it must do the same both times",
                   dm_node_name(n), DM_SHAPE(t), dm_dtype_name((dm_DType)t->dtype),
                   dm_shape_str(m->ndim, m->shape, (char[96]){0}),
                   dm_dtype_name((dm_DType)m->dtype));
  const dm_Tensor *leaf = s->from >= 0 ? n->in[s->from].leaf : NULL;
  if (leaf && leaf->storage->version != s->version)
    return dm_fail(DM_ESTATE,
                   "backward: a leaf of shape %s that %s needs for its gradient was changed in "
                   "place since the checkpoint's forward (version %u, wanted %u)",
                   DM_SHAPE(leaf), dm_node_name(n), leaf->storage->version, s->version);
  return DM_OK;
}

/* The saved tensor, checked; under create_graph with its history: that of an
   output is this node, and what was made again takes up the edge's. */
static dm_status unpack(dm_Node *n, const dm_Saved *s, bool create, dm_Tensor **to) {
  if (DM_LIKELY(s->t && s->t->storage->version == s->version && !create)) {
    *to = dm_tensor_ref(s->t);
    return DM_OK;
  }
  dm_status st = dm_saved_get(s, dm_node_name(n), to);
  if (st != DM_OK || !*to) return st;
  if (s->replay) DM_GO(check_again(n, s, *to));
  if (!create || (s->out < 0 && !s->replay)) return DM_OK;
  if (!s->replay) { /* the tape's own handle, which stays without */
    dm_tensor_unref(to);
    DM_GO(dm_tensor_alias(s->t, to));
  }
  if (s->out >= 0) {
    join(*to, n, s->out);
  } else if (s->from >= 0 && n->in[s->from].node) {
    join(*to, n->in[s->from].node, n->in[s->from].out);
  } else if (s->from >= 0 && n->in[s->from].leaf) {
    dm_tensor_unref(to);
    *to = dm_tensor_ref(n->in[s->from].leaf);
  }
done:
  if (st != DM_OK) dm_tensor_unref(to);
  return st;
}

/* The gradient that has arrived for input 0 of n, if it is the walk's alone. Who watches
   gradients, or looks for NaN in them, sees each by itself. */
static dm_Tensor *sum_so_far(const dm_Node *n, bool create) {
  const dm_Edge *e = &n->in[0];
  dm_Tensor *sum = e->node && !create ? e->node->gy[e->out] : NULL;
  const bool ours = sum && owned_alone(sum) && sum->offset == 0 &&
                    sum->dtype == n->in_meta[0].dtype && !dm_observed() && !dm_modes()->anomaly;
  return ours ? sum : NULL;
}

/* The row's gradient, with its inputs unpacked. */
static dm_status call_grad(dm_Node *n, const bool *need, dm_Tensor **gx, bool create, dm_X *x) {
  dm_Tensor *in[DM_MAX_IN] = {NULL}, *out[DM_MAX_OUT] = {NULL};
  dm_status st = DM_OK;
  for (int i = 0; i < n->n_saved && i < DM_MAX_IN; i++)
    DM_GO(unpack(n, &n->saved_in[i], create, &in[i]));
  for (int i = 0; n->saved_out && i < n->n_out; i++)
    DM_GO(unpack(n, &n->saved_out[i], create, &out[i]));
  if (create && (n->op->flags & F_NO_DOUBLE)) {
    st =
        dm_fail(DM_ESTATE, "backward: %s has no second derivative (create_graph)", n->op->name);
    goto done;
  }
  dm_Grad g = {.op = n->op,
               .attr = n->attr,
               .n_in = n->n_in,
               .n_out = n->n_out,
               .gy = n->gy,
               .gx = gx,
               .need = need,
               .in = in,
               .out = out,
               .in_meta = n->in_meta,
               .sum = n->n_in == 1 ? sum_so_far(n, create) : NULL,
               .create_graph = create,
               .x = x};
  n->op->grad(&g);
  st = x->st;
done:
  for (int i = 0; i < n->n_saved && i < DM_MAX_IN; i++) dm_tensor_unref(&in[i]);
  for (int i = 0; n->saved_out && i < n->n_out; i++) dm_tensor_unref(&out[i]);
  return st;
}

/* The host's gradient, in the autocast state of its forward. PyTorch runs it
   without autocast unless it is decorated (custom_bwd). */
static dm_status call_custom(dm_Node *n, dm_Tensor **gx, bool create) {
  enum { LOCAL = 8 };
  dm_Tensor *local[LOCAL] = {NULL}, **saved = local;
  if (n->n_saved > LOCAL && !(saved = dm_alloc_zero((int64_t)sizeof *saved * n->n_saved)))
    return dm_fail(DM_EMEM, "backward: out of memory");
  dm_status st = DM_OK;
  for (int i = 0; i < n->n_saved; i++) DM_GO(unpack(n, &n->saved_in[i], create, &saved[i]));
  const dm_CastState old = dm_autocast_resume(n->cast);
  st = n->custom.backward(n->custom.ctx, n->n_saved, saved, n->n_out, n->gy, n->n_in, gx);
  dm_autocast_go_back(old);
done:
  for (int i = 0; i < n->n_saved; i++) dm_tensor_unref(&saved[i]);
  if (saved != local) dm_free(saved);
  return st;
}

static dm_status gradients_unobserved(Walk *w, dm_Node *n, const bool *need, dm_Tensor **gx) {
  dm_X x = DM_X_INIT;
  dm_Modes *m = dm_modes();
  const uint8_t base = m->base;
  m->base = n->base;
  const bool create = w->flags & DM_CREATE_GRAPH;
  dm_status st;
  if (n->op) {
    st = call_grad(n, need, gx, create, &x);
    for (int i = 0; i < n->n_in; i++) {
      if (st == DM_OK && gx[i]) dm_tensor_ref(gx[i]);
      else gx[i] = NULL;
    }
  } else {
    st = call_custom(n, gx, create);
  }
  dm_x_free(&x);
  for (int i = 0; i < n->n_in && st == DM_OK; i++)
    if (gx[i] && need[i]) st = fit(&gx[i], &n->in_meta[i]);
  m->base = base;
  return st;
}

static dm_status node_gradients(Walk *w, dm_Node *n, const bool *need, dm_Tensor **gx) {
  if (!dm_observed()) return gradients_unobserved(w, n, need, gx);
  dm_Event e = {.op = n->op,
                .name = dm_node_name(n),
                .backward = true,
                .n_in = n->n_out,
                .node = n->seq,
                .in = n->gy,
                .out = gx};
  dm_observe_begin(&e);
  const dm_status st = gradients_unobserved(w, n, need, gx);
  if (st == DM_OK) e.n_out = n->n_in;
  dm_observe_end(&e);
  return st;
}

static dm_status has_nan(dm_Tensor *t, bool *found) {
  dm_Tensor *nan = NULL, *any = NULL;
  dm_status st = DM_OK;
  DM_GO(dm_call(DM_OP_isnan, 1, &t, NULL, &nan));
  DM_GO(dm_call(DM_OP_any, 1, &nan, NULL, &any));
  st = dm_tensor_read(any, sizeof *found, found);
done:
  dm_tensor_unref(&nan);
  dm_tensor_unref(&any);
  return st;
}

/* Under anomaly detection: fails when a gradient that n gave has a NaN. An
   infinity passes: under a GradScaler it is part of the game. */
static dm_status check_nan(const dm_Node *n, const bool *need, dm_Tensor *const *gx) {
  for (int i = 0; i < n->n_in; i++) {
    bool found = false;
    if (!gx[i] || !need[i]) continue;
    DM_TRY(has_nan(gx[i], &found));
    const int place = i + dm_modes()->base;
    if (found)
      return dm_fail(DM_ESTATE,
                     "backward of %s: its output %d, the gradient of input %d, is NaN",
                     dm_node_name(n), place, place);
  }
  return DM_OK;
}

/* A failure in n's turn also says where forward made n, if that was noted. */
static dm_status tell_where(const dm_Node *n, dm_status st) {
  return n->where ? dm_fail(st, "%s\nforward of %s: %s", dm_error(), dm_node_name(n), n->where)
                  : st;
}

/* Keeps what was asked for of this node's outputs, and runs its hooks. */
static dm_status arrive(Walk *w, dm_Node *n) {
  for (int o = 0; o < n->n_out; o++) {
    if (!n->gy[o]) continue;
    if (n->hooks) DM_TRY(run_hooks(n->hooks, o, &n->gy[o]));
    if (n->retain && n->retain[o] && !w->want) {
      dm_Tensor *t = n->retain[o];
      if (t->grad) DM_TRY(meet(&t->grad, n->gy[o], w->flags & DM_CREATE_GRAPH, false));
      else t->grad = dm_tensor_ref(n->gy[o]);
    }
    for (int i = 0; i < w->n_want; i++)
      if (w->want[i]->node == n && w->want[i]->out_index == o)
        w->got[i] = dm_tensor_ref(n->gy[o]);
  }
  return DM_OK;
}

static dm_status step(Walk *w, dm_Node *n) {
  enum { LOCAL = 16 };
  bool need_local[LOCAL];
  dm_Tensor *gx_local[LOCAL];
  bool *need = need_local;
  dm_Tensor **gx = gx_local;
  dm_status st = DM_OK;
  bool any = false;
  DM_TRY(arrive(w, n));
  if (n->n_in > LOCAL) {
    need = dm_alloc(n->n_in);
    gx = dm_alloc((int64_t)sizeof *gx * n->n_in);
    if (!need || !gx) {
      st = dm_fail(DM_EMEM, "backward: out of memory");
      goto done;
    }
  }
  for (int i = 0; i < n->n_in; i++) {
    gx[i] = NULL;
    any |= need[i] = wanted(w, &n->in[i]);
  }
  if (any) {
    if (n->released) {
      st = dm_fail(
          DM_ESTATE,
          "backward: %s's saved tensors are gone: backward has already been through this "
          "graph; hint: {retain_graph = true} the first time",
          dm_node_name(n));
      goto done;
    }
    w->scaled |= n->scales;
    st = node_gradients(w, n, need, gx);
    const dm_Modes *m = dm_modes();
    if (DM_UNLIKELY(m->anomaly) && m->check_nan && st == DM_OK) st = check_nan(n, need, gx);
    for (int i = 0; i < n->n_in && st == DM_OK; i++)
      if (gx[i] && need[i]) st = hand_on(w, &n->in[i], gx[i]);
    for (int i = 0; i < n->n_in; i++) dm_tensor_unref(&gx[i]);
  }
  if (st == DM_OK && !(w->flags & (DM_RETAIN_GRAPH | DM_CREATE_GRAPH)))
    dm_node_release_saved(n);
done:
  if (need != need_local) dm_free(need);
  if (gx != gx_local) dm_free(gx);
  return st;
}

/* Marks which nodes lead to a wanted tensor: post-order, with its own stack. */
typedef struct Frame {
  dm_Node *n;
  int next;
  bool reaches;
} Frame;

static bool is_wanted(const Walk *w, const dm_Node *n) {
  for (int i = 0; i < w->n_want; i++)
    if (w->want[i]->node == n) return true;
  return false;
}

static bool leaf_wanted(const Walk *w, const dm_Tensor *leaf) {
  for (int i = 0; leaf && i < w->n_want; i++)
    if (w->want[i] == leaf) return true;
  return false;
}

static dm_status mark_from(Walk *w, dm_Node *root) {
  int n = 0, room = 64;
  Frame *stack = dm_alloc((int64_t)sizeof *stack * room);
  if (!stack) return dm_fail(DM_EMEM, "autograd.grad: out of memory");
  stack[n++] = (Frame){root, 0, is_wanted(w, root)};
  while (n > 0) {
    Frame *f = &stack[n - 1];
    if (f->next == f->n->n_in) {
      f->n->mark = f->reaches ? w->mark : w->mark + 1;
      if (--n > 0 && f->reaches) stack[n - 1].reaches = true;
      continue;
    }
    const dm_Edge *e = &f->n->in[f->next++];
    if (leaf_wanted(w, e->leaf)) f->reaches = true;
    if (!e->node) continue;
    if (e->node->mark == w->mark) f->reaches = true;
    if (e->node->mark == w->mark || e->node->mark == w->mark + 1) continue;
    if (n == room) {
      Frame *more = dm_alloc((int64_t)sizeof *stack * 2 * room);
      if (!more) {
        dm_free(stack);
        return dm_fail(DM_EMEM, "autograd.grad: out of memory");
      }
      memcpy(more, stack, sizeof *stack * (size_t)n);
      dm_free(stack);
      stack = more;
      room *= 2;
    }
    stack[n++] = (Frame){e->node, 0, is_wanted(w, e->node)};
  }
  dm_free(stack);
  return DM_OK;
}

static dm_status seed_of(dm_Tensor *root, dm_Tensor *given, dm_Tensor **out) {
  if (given) {
    if (!dm_same_shape(root, given))
      return dm_fail(DM_EARG, "backward: the gradient has shape %s, the tensor %s",
                     DM_SHAPE(given), DM_SHAPE(root));
    *out = dm_tensor_ref(given);
    const dm_Meta m = dm_meta_of(root);
    const dm_status st = fit(out, &m);
    if (st != DM_OK) dm_tensor_unref(out);
    return st;
  }
  if (root->numel != 1)
    return dm_fail(
        DM_EARG,
        "backward: only a tensor with one element has an implied gradient of 1, this "
        "one has shape %s; hint: y:sum():backward(), or {gradient = g}",
        DM_SHAPE(root));
  return dm_call(DM_OP_ones_like, 1, &root, NULL, out);
}

static dm_status walk(Walk *w, int n, dm_Tensor *const *roots, dm_Tensor *const *seeds) {
  dm_status st = DM_OK;
  for (int i = 0; i < n; i++) {
    dm_Tensor *root = roots[i];
    if (root->base) DM_GO(dm_refresh_view(root));
    if (!dm_tensor_requires_grad(root)) {
      st =
          dm_fail(DM_ESTATE, "backward: the tensor neither requires grad nor was made from one "
                             "that does");
      goto done;
    }
    dm_Tensor *g = NULL;
    DM_GO(seed_of(root, seeds ? seeds[i] : NULL, &g));
    const dm_Edge e = {root->node, root->node ? NULL : root, root->out_index};
    if (w->want && root->node && root->node->mark != w->mark && root->node->mark != w->mark + 1)
      st = mark_from(w, root->node);
    if (st == DM_OK && wanted(w, &e)) st = hand_on(w, &e, g);
    dm_tensor_unref(&g);
    if (st != DM_OK) goto done;
  }
  while (w->n > 0) {
    dm_Node *node = pop(w);
    st = step(w, node);
    if (DM_UNLIKELY(st != DM_OK)) st = tell_where(node, st);
    for (int i = 0; i < node->n_out; i++) dm_tensor_unref(&node->gy[i]);
    dm_node_unref(&node);
    if (st != DM_OK) goto done;
  }
done:
  while (w->n > 0) { /* after a failure: forget the gradients under way */
    dm_Node *node = pop(w);
    for (int i = 0; i < node->n_out; i++) dm_tensor_unref(&node->gy[i]);
    dm_node_unref(&node);
  }
  if (w->heap != w->local) dm_free(w->heap);
  return st;
}

/* Runs the walk in its own modes: recording only for create_graph, no autocast
   (a hook may open a region of its own). */
static dm_status walk_in_modes(Walk *w, int n, dm_Tensor *const *roots,
                               dm_Tensor *const *seeds) {
  dm_Modes *m = dm_modes();
  const dm_Modes old = *m;
  dm_CastState off = dm_autocast_off(-1);
  const dm_CastState cast = dm_autocast_resume(off);
  dm_cast_state_drop(&off);
  m->grad = w->flags & DM_CREATE_GRAPH;
  m->inference = false;
  m->walking = true;
  m->replay = NULL;
  const dm_status st = walk(w, n, roots, seeds);
  m->grad = old.grad;
  m->inference = old.inference;
  m->walking = old.walking;
  m->replay = old.replay;
  dm_autocast_go_back(cast);
  return st;
}

dm_status dm_backward(int n, dm_Tensor *const *roots, dm_Tensor *const *seeds, int flags) {
  Walk w = {.flags = flags};
  return walk_in_modes(&w, n, roots, seeds);
}

dm_status dm_grad(int n, dm_Tensor *const *roots, dm_Tensor *const *seeds, int n_in,
                  dm_Tensor *const *inputs, int flags, dm_Tensor **out) {
  Walk w = {.flags = flags, .n_want = n_in, .want = inputs, .got = out};
  w.mark = atomic_fetch_add(&next_mark, 2);
  for (int i = 0; i < n_in; i++) {
    out[i] = NULL;
    if (inputs[i]->base) DM_TRY(dm_refresh_view(inputs[i]));
    if (!dm_tensor_requires_grad(inputs[i]))
      return dm_fail(DM_ESTATE, "autograd.grad: input %d does not require grad",
                     i + dm_modes()->base);
  }
  dm_status st = walk_in_modes(&w, n, roots, seeds);
  for (int i = 0; i < n_in && st == DM_OK; i++)
    if (!out[i] && !(flags & DM_ALLOW_UNUSED))
      st = dm_fail(DM_ESTATE,
                   "autograd.grad: input %d was not used to make the outputs; hint: "
                   "{allow_unused = true}",
                   i + dm_modes()->base);
  if (st != DM_OK)
    for (int i = 0; i < n_in; i++) dm_tensor_unref(&out[i]);
  return st;
}
