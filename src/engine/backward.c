/* The backward pass: dm_backward, dm_backward_into and dm_grad, as torch.autograd.backward,
   the same with inputs, and grad.

   A pass starts with the roots' nodes. Nodes wait in a heap ordered by creation number (seq);
   the largest is next. A node's consumers were created after it, so they all have larger
   numbers: when the node is taken, every gradient that can reach it has arrived and has been
   added to its gy. PyTorch's engine orders its queue by sequence_nr in the same way, but also
   counts dependencies, because it runs several threads; here one thread runs the whole pass.

   A node's turn:
   1. hooks and retain_grad of its outputs see the complete gradients gy;
   2. saved tensors are checked (unchanged since forward?) and given to the row's gradient,
      which composes ops. Autocast is off, and positions count from the forward's base. A
      gradient that the host wrote runs under its forward's autocast settings;
   3. each result is brought to its input's shape (broadcast dims are summed), device and
      dtype, so a float32 weight gets a float32 gradient from 16-bit products;
   4. it is added to the gy of the node that made the input, or to the .grad of a leaf. 16-bit
      gradients that meet at a cast of a float32 tensor are added in float32: the uses of one
      weight lose nothing in their sum.
   Then the node drops its saved tensors, unless the graph is retained.

   Invariant: between two turns, a node is in the heap exactly when one of its gy is set or
   gradients of its regions wait (regions.h), but for the root of "a root that is a scaled
   loss" below. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/call.h"
#include "engine/leaves.h"
#include "engine/observe.h"
#include "engine/regions.h"
#include "engine/remake.h"
#include "engine/rerun.h"
#include "engine/tape.h"

typedef struct Pass {
  dm_Node **heap; /* owned references; heap[0] has the largest seq */
  int n, capacity;
  dm_Node *local[16]; /* the heap while it is small */
  int flags;
  bool scaled;            /* a node that multiplies by a loss scale has had its turn */
  dm_Node *implied;       /* the root's node, whose gradient of 1 is not written; or NULL */
  const dm_Storage *lent; /* of the loss scale, which is a gradient of this pass; or NULL */
  int n_want;
  dm_Tensor *const *want;  /* the tensors whose gradients are wanted; NULL: all leaves */
  dm_Tensor **got;         /* dm_grad: the results; NULL: the gradients go to .grad */
  uint32_t mark;           /* on nodes behind which a wanted tensor lies; mark + 1: on others */
  bool strays;             /* a leaf that is not wanted lies behind a root */
  dm_GradHomes *homes;     /* that this pass, or one inside it, has written */
  struct Waiting *waiting; /* gradients of leaves that wait to be widened */
  int n_waiting, most_waiting;
  int64_t waiting_bytes;
  struct Gathered *gathered; /* gradients of leaves with hooks */
  int n_gathered, most_gathered;
} Pass;

static atomic_uint next_mark = 2;

/* The pass of dm_backward around all others of this thread; or NULL. */
static _Thread_local Pass *outermost;

/* Adds n to the heap, with a reference of the heap's. */
static dm_status push(Pass *p, dm_Node *n) {
  if (p->n == p->capacity) {
    const int capacity = p->capacity ? 4 * p->capacity : DM_COUNT(p->local);
    dm_Node **h = p->capacity ? dm_alloc((int64_t)sizeof *h * capacity) : p->local;
    if (!h) return dm_fail(DM_EMEM, "backward: out of memory");
    if (p->n) memcpy(h, p->heap, sizeof *h * (size_t)p->n);
    if (p->heap != p->local) dm_free(p->heap);
    p->heap = h;
    p->capacity = capacity;
  }
  int i = p->n++;
  for (; i > 0 && p->heap[(i - 1) / 2]->seq < n->seq; i = (i - 1) / 2)
    p->heap[i] = p->heap[(i - 1) / 2];
  p->heap[i] = n;
  dm_hold(&n->refs);
  return DM_OK;
}

/* Removes the newest node; the caller gets the heap's reference. */
static dm_Node *pop(Pass *p) {
  dm_Node *top = p->heap[0], *last = p->heap[--p->n];
  int i = 0;
  for (int c; (c = 2 * i + 1) < p->n; i = c) {
    if (c + 1 < p->n && p->heap[c + 1]->seq > p->heap[c]->seq) c++;
    if (p->heap[c]->seq <= last->seq) break;
    p->heap[i] = p->heap[c];
  }
  p->heap[i] = last;
  return top;
}

/* May t be changed in place? Nothing else holds it or its bytes, and it is dense. */
static bool owned_alone(const dm_Tensor *t) {
  return atomic_load(&t->refs) == 1 && atomic_load(&t->storage->refs) == 1 && !t->node &&
         !t->base && dm_tensor_is_dense(t);
}

/* *sum += g; *sum may be NULL, g stays the caller's. wide: 16-bit gradients are added in
   float32. */
static dm_status accumulate(dm_Tensor **sum, dm_Tensor *g, bool create_graph, bool wide) {
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

/* Calls the hooks of one output. A hook may take itself or others off the list, so the list is
   copied, with references, before the first call. */
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

/* ---- a root that is a scaled loss ---- */

/* GradScaler.scale gives loss * scale, both of no dims: from a gradient of 1 the loss gets the
   scale itself, with the same bits, and the pass begins there. A GPU so has neither the fill
   nor the product. The scale is the scaler's own tensor, which changes in place: whoever looks
   at a gradient gets a copy (own_gradient), all that wait become copies before the host's code
   runs, and the pass adds to none that others hold. */

/* The scale that n, a product, has saved; or NULL. */
static const dm_Saved *scale_of(const dm_Node *n) {
  for (int i = 0; i < n->n_saved; i++)
    if (n->saved_in[i].from == 1) return &n->saved_in[i];
  return NULL;
}

/* Is root one, and does nothing see the steps that are left out? */
static bool is_scaled(const Pass *p, const dm_Tensor *root, const dm_Tensor *given) {
  const dm_Node *n = root->node;
  if (!n || !n->scales || n->op != &dm_ops[DM_OP_mul] || n->hooks || n->retain || n->released)
    return false;
  if (given || p->want || p->flags & DM_CREATE_GRAPH || n->in[1].node || n->in[1].leaf)
    return false;
  return root->ndim == 0 && dm_meta(n->metas, 0)->ndim == 0 && scale_of(n) && !dm_observed() &&
         !dm_thread_state()->anomaly.enabled;
}

/* Replaces *g by a copy if it is the scaler's scale. */
static dm_status own_gradient(const Pass *p, dm_Tensor **g) {
  dm_Tensor *copy;
  if (DM_LIKELY(!p->lent || (*g)->storage != p->lent)) return DM_OK;
  DM_TRY(dm_call(DM_OP_clone, 1, g, NULL, &copy));
  dm_tensor_unref(g);
  *g = copy;
  return DM_OK;
}

/* The same for the gradients of n's outputs, and of all nodes that wait for their turns. */
static dm_status own_all(const Pass *p, dm_Node *n) {
  if (DM_LIKELY(!p->lent)) return DM_OK;
  for (int i = -1; i < p->n; i++) {
    dm_Node *at = i < 0 ? n : p->heap[i];
    for (int o = 0; at && o < at->n_out; o++)
      if (at->gy[o]) DM_TRY(own_gradient(p, &at->gy[o]));
  }
  return DM_OK;
}

/* A gradient of a leaf must have the leaf's shape and device, which change when its data are
   exchanged; a hook may miss them, too. */
static dm_status check_fit(const dm_Tensor *leaf, const char *what, const dm_Tensor *g) {
  char a[16], b[16];
  if (DM_LIKELY(dm_same_shape(g, leaf) && dm_device_eq(g->device, leaf->device))) return DM_OK;
  return dm_fail(DM_ESTATE,
                 "backward: %s has shape %s on %s, its leaf has shape %s on %s; hint: backward "
                 "before x.data = y, and x.grad = nil after it",
                 what, DM_SHAPE(g), dm_device_name(g->device, a), DM_SHAPE(leaf),
                 dm_device_name(leaf->device, b));
}

/* Adds g to the gradient of a leaf that has a home. */
static dm_status into_home(const Pass *p, dm_Tensor *leaf, dm_Tensor *g) {
  dm_GradHome *home = leaf->grad_home;
  dm_GradHomes *homes = home->homes;
  if (p->flags & DM_CREATE_GRAPH)
    return dm_fail(DM_ESTATE,
                   "backward: create_graph for a parameter whose gradient is shared between "
                   "processes, which has no history; hint: autograd.grad(loss, parameters, "
                   "{create_graph = true})");
  if (!homes->in_pass) {
    homes->refs++;
    homes->in_pass = true;
    homes->scaled = false;
    homes->next = outermost->homes;
    outermost->homes = homes;
    DM_TRY(homes->begin(homes));
  }
  homes->scaled |= p->scaled;
  return dm_home_add(leaf, home, g);
}

/* Tells the homes that this pass has written how far it has come; next: the number of the node
   whose turn is next, 0 after the last one. */
static dm_status tell_homes(const Pass *p, uint64_t next) {
  for (dm_GradHomes *h = p->homes; h; h = h->next)
    if (h->until > next) DM_TRY(h->passed(h, next));
  return DM_OK;
}

/* The end of the outermost pass, for the homes that it has written. */
static dm_status end_homes(Pass *p, dm_status st) {
  while (p->homes) {
    dm_GradHomes *h = p->homes;
    p->homes = h->next;
    h->in_pass = false;
    const dm_status ended = h->end(h, st == DM_OK);
    if (st == DM_OK) st = ended;
    dm_homes_unref(h);
  }
  return st;
}

/* ---- gradients that wait to be widened ---- */

/* Under autocast most weights are leaves of float32 behind a cast to 16 bits, whose gradient is
   a cast back. A device that widens many tensors by one piece of work (widen_all) gets these
   together: at the end of the pass, when they hold MOST_BYTES, and before the host's code (a
   hook, a gradient that it wrote) or another gradient of the same leaf may meet them. A GPU so
   has one launch in place of one for each weight. */
typedef struct Waiting {
  dm_Tensor *leaf, *g;
  bool scaled;
} Waiting;

static void drop_waiting(Pass *p) {
  for (int i = 0; i < p->n_waiting; i++) {
    dm_tensor_unref(&p->waiting[i].leaf);
    dm_tensor_unref(&p->waiting[i].g);
  }
  p->n_waiting = 0;
  p->waiting_bytes = 0;
}

/* out[i] becomes leaf i's gradient, or is added to one that came meanwhile. */
static dm_status hand_out(const Waiting *w, dm_Tensor *wide) {
  dm_leaves_touch(w->leaf);
  if (w->leaf->grad) DM_TRY(accumulate(&w->leaf->grad, wide, false, false));
  else w->leaf->grad = dm_tensor_ref(wide);
  if (w->scaled) w->leaf->grad->flags |= DM_T_SCALED;
  return DM_OK;
}

/* Widens all that wait, which are on one device. */
static dm_status widen_waiting(Pass *p) {
  const int n = p->n_waiting;
  if (n == 0) return DM_OK;
  const dm_Device dev = p->waiting[0].leaf->device;
  const dm_DeviceOps *ops = dm_device_ops(dev);
  dm_status st = DM_OK;
  dm_Tensor **wide = dm_alloc_zero(2 * n * (int64_t)sizeof *wide), **narrow = wide + n;
  if (!wide) return dm_fail(DM_EMEM, "backward: out of memory");
  for (int i = 0; i < n; i++) {
    const dm_Tensor *leaf = p->waiting[i].leaf;
    narrow[i] = p->waiting[i].g;
    DM_GO(dm_tensor_new(DM_F32, leaf->ndim, leaf->shape, dev, &wide[i]));
  }
  DM_GO(ops->begin(dev));
  DM_GO(ops->widen_all(p->waiting[0].leaf, n, wide, narrow));
  DM_GO(ops->end(dev));
  for (int i = 0; i < n; i++) DM_GO(hand_out(&p->waiting[i], wide[i]));
done:
  for (int i = 0; i < n; i++) dm_tensor_unref(&wide[i]);
  dm_free(wide);
  drop_waiting(p);
  return st;
}

static bool is_waiting(const Pass *p, const dm_Tensor *leaf) {
  for (int i = 0; i < p->n_waiting; i++)
    if (p->waiting[i].leaf == leaf) return true;
  return false;
}

/* May the gradient of n, a cast of a float32 leaf, wait? Only where nothing looks at it. */
static bool may_wait(const Pass *p, const dm_Node *n) {
  if (n->op != &dm_ops[DM_OP_cast] || p->want || p->flags & DM_CREATE_GRAPH) return false;
  const dm_Tensor *leaf = n->in[0].leaf, *g = n->gy[0];
  if (!leaf || leaf->dtype != DM_F32 || leaf->hooks || leaf->grad_home || leaf->grad)
    return false;
  if (dm_observed() || dm_thread_state()->anomaly.enabled || is_waiting(p, leaf)) return false;
  if (!(leaf->flags & DM_T_REQUIRES_GRAD)) return false;
  return dm_is_low((dm_DType)g->dtype) && dm_same_shape(g, leaf) && g->numel > 0 &&
         dm_device_eq(g->device, leaf->device) && dm_device_ops(g->device)->widen_all &&
         (dm_tensor_is_contiguous(g) || dm_tensor_is_channels_last(g));
}

/* The gradient of n waits. */
static dm_status let_wait(Pass *p, dm_Node *n) {
  enum { MOST_BYTES = 64 << 20 };
  dm_Tensor *leaf = n->in[0].leaf, *g = n->gy[0];
  if (p->n_waiting > 0 && (!dm_device_eq(p->waiting[0].leaf->device, leaf->device) ||
                           p->waiting_bytes > MOST_BYTES))
    DM_TRY(widen_waiting(p));
  if (p->n_waiting == p->most_waiting) {
    const int most = p->most_waiting ? 2 * p->most_waiting : 64;
    Waiting *w = dm_alloc((int64_t)sizeof *w * most);
    if (!w) return dm_fail(DM_EMEM, "backward: out of memory");
    if (p->n_waiting) memcpy(w, p->waiting, sizeof *w * (size_t)p->n_waiting);
    dm_free(p->waiting);
    p->waiting = w;
    p->most_waiting = most;
  }
  p->waiting[p->n_waiting++] = (Waiting){dm_tensor_ref(leaf), dm_tensor_ref(g), p->scaled};
  p->waiting_bytes += dm_tensor_bytes(g);
  return DM_OK;
}

/* Does the leaf want its gradient in its own order of dims? */
static bool is_permuted(const dm_Tensor *leaf) {
  return leaf->device.type == DM_CPU && !dm_tensor_is_contiguous(leaf) &&
         dm_tensor_is_dense(leaf);
}

/* Is g stored as the leaf's gradient shall be? */
static bool fits_leaf(const dm_Tensor *g, const dm_Tensor *leaf) {
  return is_permuted(leaf) ? dm_tensor_same_order(g, leaf) : dm_tensor_is_contiguous(g);
}

/* A copy of g for the leaf; with history it is contiguous. */
static dm_status copy_for(dm_Tensor *leaf, dm_Tensor *g, bool create_graph, dm_Tensor **out) {
  if (create_graph || !is_permuted(leaf))
    return dm_call(DM_OP_contiguous_copy, 1, &g, NULL, out);
  const dm_LikeAttr as_leaf = {-1, -1};
  dm_Tensor *in[2] = {NULL, g};
  DM_TRY(dm_call(DM_OP_empty_like, 1, &leaf, &as_leaf, &in[0]));
  const dm_status st = dm_call_inplace(DM_OP_copy, 2, in, NULL);
  if (st == DM_OK) *out = in[0];
  else dm_tensor_unref(&in[0]);
  return st;
}

/* Adds g to leaf.grad, or to the wanted result (dm_grad). A leaf that was switched
   off since the graph was recorded keeps the gradient that it has. */
static dm_status give_leaf(Pass *p, dm_Tensor *leaf, dm_Tensor *g) {
  if (!p->got && !(leaf->flags & DM_T_REQUIRES_GRAD)) return DM_OK;
  dm_Tensor *mine = dm_tensor_ref(g);
  dm_status st = DM_OK;
  const bool create = p->flags & DM_CREATE_GRAPH;
  if (is_waiting(p, leaf)) DM_GO(widen_waiting(p));
  if (!p->got) dm_leaves_touch(leaf);
  DM_GO(check_fit(leaf, "a new gradient", mine));
  if (p->got) {
    for (int i = 0; i < p->n_want; i++)
      if (p->want[i] == leaf) DM_GO(accumulate(&p->got[i], mine, create, false));
  } else if (DM_UNLIKELY(leaf->grad_home != NULL)) {
    DM_GO(into_home(p, leaf, mine));
  } else if (leaf->grad) {
    DM_GO(check_fit(leaf, "x.grad", leaf->grad));
    DM_GO(accumulate(&leaf->grad, mine, create, false));
  } else if (atomic_load(&mine->refs) <= 2 && g == mine &&
             atomic_load(&mine->storage->refs) == 1 && !mine->base && fits_leaf(mine, leaf)) {
    leaf->grad = dm_tensor_ref(mine);
  } else {
    DM_GO(copy_for(leaf, mine, create, &leaf->grad));
  }
  if (p->scaled && leaf->grad) leaf->grad->flags |= DM_T_SCALED;
done:
  dm_tensor_unref(&mine);
  return st;
}

/* ---- leaves with hooks, which see the sum of all gradients of the pass, as in PyTorch ---- */

typedef struct Gathered {
  dm_Tensor *leaf, *g; /* owned; NULL once the leaf has got it */
} Gathered;

static dm_status gather(Pass *p, dm_Tensor *leaf, dm_Tensor *g) {
  for (int i = 0; i < p->n_gathered; i++)
    if (p->gathered[i].leaf == leaf)
      return accumulate(&p->gathered[i].g, g, p->flags & DM_CREATE_GRAPH, false);
  if (p->n_gathered == p->most_gathered) {
    const int most = p->most_gathered ? 2 * p->most_gathered : 16;
    Gathered *const all = dm_alloc((int64_t)sizeof *all * most);
    if (!all) return dm_fail(DM_EMEM, "backward: out of memory");
    if (p->n_gathered) memcpy(all, p->gathered, sizeof *all * (size_t)p->n_gathered);
    dm_free(p->gathered);
    p->gathered = all;
    p->most_gathered = most;
  }
  dm_Tensor *mine = dm_tensor_ref(g);
  const dm_status st = own_gradient(p, &mine);
  if (st == DM_OK) p->gathered[p->n_gathered++] = (Gathered){dm_tensor_ref(leaf), mine};
  else dm_tensor_unref(&mine);
  return st;
}

/* Calls the hooks of a leaf that come after its gradient was added to x.grad. Processes that
   share the gradient have not summed it by then. */
static dm_status run_after_hooks(const Pass *p, dm_Tensor *leaf) {
  bool any = false;
  for (const dm_Hook *h = leaf->hooks; h; h = h->next) any |= h->out == DM_AFTER;
  if (!any || p->got || !(leaf->flags & DM_T_REQUIRES_GRAD)) return DM_OK;
  if (leaf->grad_home)
    return dm_fail(DM_ESTATE,
                   "backward: a parameter with register_post_accumulate_grad_hook, whose "
                   "gradient is shared between processes, has not got the sum of theirs yet; "
                   "hint: what reads it comes after backward()");
  return run_hooks(leaf->hooks, DM_AFTER, &leaf);
}

/* Calls the hooks of the leaves whose sums are complete when the node of number `next` comes
   next, and gives them what the hooks make of these: at the end of the pass, next = 0, of all,
   before of those that have a home, whose oldest reader is known. */
static dm_status give_gathered(Pass *p, uint64_t next) {
  for (int i = 0; i < p->n_gathered; i++) {
    Gathered *const one = &p->gathered[i];
    const dm_GradHome *const home = one->leaf ? one->leaf->grad_home : NULL;
    if (!one->leaf || (next > 0 && !(home && home->oldest > next))) continue;
    dm_Tensor *leaf = one->leaf, *g = one->g;
    *one = (Gathered){NULL, NULL};
    dm_status st = widen_waiting(p);
    if (st == DM_OK) st = own_all(p, NULL);
    if (st == DM_OK) st = run_hooks(leaf->hooks, 0, &g);
    if (st == DM_OK) st = give_leaf(p, leaf, g);
    dm_tensor_unref(&g); /* x.grad alone holds it when a hook drops that */
    if (st == DM_OK) st = run_after_hooks(p, leaf);
    dm_tensor_unref(&leaf);
    DM_TRY(st);
  }
  return DM_OK;
}

static void drop_gathered(Pass *p) {
  for (int i = 0; i < p->n_gathered; i++) {
    dm_tensor_unref(&p->gathered[i].leaf);
    dm_tensor_unref(&p->gathered[i].g);
  }
  dm_free(p->gathered);
  p->gathered = NULL;
  p->n_gathered = p->most_gathered = 0;
}

static dm_status into_leaf(Pass *p, dm_Tensor *leaf, dm_Tensor *g) {
  return DM_UNLIKELY(leaf->hooks != NULL) ? gather(p, leaf, g) : give_leaf(p, leaf, g);
}

/* After n's turn, while there are leaves that have homes. */
static dm_status after_turn(Pass *p, dm_Node *n) {
  const uint64_t next = p->n > 0 ? p->heap[0]->seq : 0;
  if (p->n_gathered > 0) DM_TRY(give_gathered(p, next));
  if (!n->walked && !(p->flags & (DM_RETAIN_GRAPH | DM_CREATE_GRAPH))) {
    n->walked = true;
    dm_home_leave(n);
  }
  return p == outermost ? tell_homes(p, next) : DM_OK;
}

/* Has a gradient come to n already? */
static bool is_in_heap(const Pass *p, const dm_Node *n) {
  for (int i = 0; i < n->n_out; i++)
    if (n->gy[i]) return true;
  return dm_regions_wait(n, p, -1);
}

/* Adds g at the destination of an edge. */
static dm_status add_at(Pass *p, const dm_Edge *e, dm_Tensor *g) {
  if (e->leaf) return into_leaf(p, e->leaf, g);
  dm_Node *n = e->node;
  const bool waiting = is_in_heap(p, n);
  const bool wide = n->op == &dm_ops[DM_OP_cast] && dm_meta(n->metas, 0)->dtype == DM_F32;
  if (dm_regions_wait(n, p, e->out)) DM_TRY(dm_regions_join(n));
  DM_TRY(accumulate(&n->gy[e->out], g, p->flags & DM_CREATE_GRAPH, wide));
  return waiting ? DM_OK : push(p, n);
}

/* Lets the gradient of n, a region, wait for those of other regions: *waits, unless something
   looks at it, or others have come to the same tensor. */
static dm_status wait_for_regions(Pass *p, dm_Node *n, bool *waits) {
  dm_Node *to = n->in[0].node;
  const int out = n->in[0].out;
  *waits = false;
  if (!to || !n->gy[0] || (p->flags & DM_CREATE_GRAPH) || n->gy[0]->storage == p->lent ||
      dm_observed() || dm_thread_state()->anomaly.enabled)
    return DM_OK;
  const bool waiting = is_in_heap(p, to);
  if (!to->gy[out]) DM_TRY(dm_regions_add(n, p, waits));
  if (!*waits && dm_regions_wait(to, p, out)) return dm_regions_join(to);
  return *waits && !waiting ? push(p, to) : DM_OK;
}

/* *g = op(*g) */
static dm_status replace(dm_Tensor **g, int op, const void *attr) {
  dm_Tensor *out;
  DM_TRY(dm_call(op, 1, g, attr, &out));
  dm_tensor_unref(g);
  *g = out;
  return DM_OK;
}

/* A 0-dim CPU tensor may have met tensors of another device: its gradient moves to the CPU. */
static dm_status move_to_input(dm_Tensor **g, const dm_Meta *m) {
  if (m->ndim == 0) {
    const int64_t attr[3] = {m->dtype, dm_device_code(m->device), 0};
    return replace(g, DM_OP_to, attr);
  }
  char a[16], b[16];
  return dm_fail(DM_EARG, "backward: a gradient on %s for a tensor on %s",
                 dm_device_name((*g)->device, a), dm_device_name(m->device, b));
}

/* Brings a gradient to its input's shape (sums broadcast dims), device and dtype. */
static dm_status fit(dm_Tensor **g, const dm_Meta *m) {
  bool same = (*g)->ndim == m->ndim;
  for (int d = 0; same && d < m->ndim; d++) same = (*g)->shape[d] == m->shape[d];
  if (!same) {
    dm_Ints size = {m->ndim, {0}};
    memcpy(size.v, m->shape, sizeof m->shape[0] * m->ndim);
    DM_TRY(replace(g, DM_OP_sum_to_size, &size));
  }
  if (DM_UNLIKELY(!dm_device_eq((*g)->device, m->device))) DM_TRY(move_to_input(g, m));
  if ((*g)->dtype == m->dtype) return DM_OK;
  const int64_t dtype = m->dtype;
  return replace(g, DM_OP_cast, &dtype);
}

/* Does the pass need a gradient for this edge? */
static bool wanted(const Pass *p, const dm_Edge *e) {
  if (!p->want) return e->node || e->leaf;
  if (e->node) return e->node->mark == p->mark;
  for (int i = 0; e->leaf && i < p->n_want; i++)
    if (p->want[i] == e->leaf) return true;
  return false;
}

/* Makes t output `out` of n. */
static void set_history(dm_Tensor *t, dm_Node *n, int out) {
  dm_hold(&n->refs);
  t->node = n;
  t->out_index = (uint8_t)out;
  t->flags |= DM_T_REQUIRES_GRAD;
}

/* A tensor that a checkpoint made again must have the shape and dtype of the first run's, which
   the node's metas tell; and a leaf must have the version that it had then. */
static dm_status check_remade(const dm_Node *n, const dm_Saved *s, const dm_Tensor *t) {
  const dm_Meta *m = s->out >= 0    ? dm_meta(n->metas, n->n_in + s->out)
                     : s->from >= 0 ? dm_meta(n->metas, s->from)
                                    : NULL;
  if (m && (m->dtype != t->dtype || m->ndim != t->ndim ||
            memcmp(m->shape, t->shape, sizeof m->shape[0] * m->ndim) != 0))
    return dm_fail(DM_ESTATE,
                   "checkpoint: run again, the function gave %s a tensor of shape %s and dtype "
                   "%s, at first %s %s; hint: it must do the same both times",
                   dm_node_name(n), DM_SHAPE(t), dm_dtype_name((dm_DType)t->dtype),
                   DM_DIMS(m->ndim, m->shape), dm_dtype_name((dm_DType)m->dtype));
  const dm_Tensor *leaf = s->from >= 0 ? n->in[s->from].leaf : NULL;
  const bool is_lent = leaf && leaf->storage->lent; /* its bytes may be away: t has them */
  if (is_lent ? t->storage->version == s->version : !leaf || dm_saved_is_same(s, leaf))
    return DM_OK;
  return dm_saved_refuse(s, n, is_lent ? t : leaf);
}

/* The saved tensor, checked. Under create_graph it needs its history: a saved output gets this
   node, a tensor that a checkpoint made again gets the edge's node or leaf. */
static dm_status unpack(dm_Node *n, const dm_Saved *s, bool create, dm_Tensor **to) {
  if (DM_LIKELY(s->t && dm_saved_is_same(s, s->t) && !create && !s->t->storage->lent)) {
    *to = dm_tensor_ref(s->t);
    return DM_OK;
  }
  dm_status st = s->remade ? dm_rerun_for(n, s, to) : dm_saved_get(s, n, to);
  if (st != DM_OK || !*to) return st;
  if (s->replay) DM_GO(check_remade(n, s, *to));
  if (!create || (s->out < 0 && !s->replay && !s->remade)) return DM_OK;
  if (!s->replay) { /* the node's own handle stays without history */
    dm_Tensor *own = *to;
    st = dm_tensor_alias(own, to);
    if (st != DM_OK) *to = NULL;
    dm_tensor_unref(&own);
    DM_GO(st);
  }
  if (s->out >= 0) {
    set_history(*to, n, s->out);
  } else if (s->from >= 0 && n->in[s->from].node) {
    set_history(*to, n->in[s->from].node, n->in[s->from].out);
  } else if (s->from >= 0 && n->in[s->from].leaf) {
    dm_tensor_unref(to);
    *to = dm_tensor_ref(n->in[s->from].leaf);
  }
done:
  if (st != DM_OK) dm_tensor_unref(to);
  return st;
}

/* The sum of the gradients that have arrived for input 0 of n so far, for a gradient function
   that can add its own in place; NULL unless only the pass holds it. Observers and anomaly
   detection must see each gradient by itself. */
static dm_Tensor *sum_so_far(const dm_Node *n, bool create) {
  const dm_Edge *e = &n->in[0];
  dm_Tensor *sum = e->node && !create ? e->node->gy[e->out] : NULL;
  const bool ours = sum && owned_alone(sum) && sum->offset == 0 &&
                    sum->dtype == dm_meta(n->metas, 0)->dtype && !dm_observed() &&
                    !dm_thread_state()->anomaly.enabled;
  return ours ? sum : NULL;
}

/* Must a 16-bit gradient be widened, because that of the node sums over a dim along which its
   input was broadcast? Only nodes that saved something count: the gradient of the others is gy
   itself. */
static bool sums_products(const dm_Node *n, const bool *need, bool create) {
  const dm_Tensor *gy = n->gy[0];
  if (!gy || !dm_is_low(gy->dtype) || !(n->op->flags & F_POINTWISE) || n->n_saved == 0 ||
      (n->op->flags & F_SUMS && !create))
    return false;
  for (int i = 0; i < n->n_in; i++) {
    const dm_Meta *m = dm_meta(n->metas, i);
    if (need[i] && dm_numel(m->ndim, m->shape) < gy->numel) return true;
  }
  return false;
}

/* Replaces *t, a reference of its own, by t in float32. */
static void widen(dm_X *x, dm_Tensor **t) {
  dm_Tensor *wide = dm_x_widen(x, *t);
  if (!wide || wide == *t) return;
  dm_tensor_ref(wide);
  dm_tensor_unref(t);
  *t = wide;
}

/* Calls the row's gradient with the saved tensors. A gradient of several steps (F_WIDEN), or
   one whose products are then summed, is computed in float32; fit rounds it to 16 bits once. */
static dm_status call_grad(dm_Node *n, const bool *need, dm_Tensor **gx, int flags, dm_X *x) {
  const bool create = flags & DM_CREATE_GRAPH;
  dm_Tensor *in[DM_MAX_IN] = {NULL}, *out[DM_MAX_OUT] = {NULL}, *gy[DM_MAX_OUT];
  dm_status st = DM_OK;
  for (int i = 0; i < n->n_saved && i < DM_MAX_IN; i++)
    DM_GO(unpack(n, &n->saved_in[i], create, &in[i]));
  for (int i = 0; n->saved_out && i < n->n_out; i++)
    DM_GO(unpack(n, &n->saved_out[i], create, &out[i]));
  const bool wide = n->op->flags & F_WIDEN, wide_gy = wide || sums_products(n, need, create);
  for (int i = 0; i < n->n_out; i++) gy[i] = wide_gy ? dm_x_widen(x, n->gy[i]) : n->gy[i];
  for (int i = 0; i < DM_MAX_IN && wide; i++) widen(x, &in[i]);
  for (int i = 0; i < DM_MAX_OUT && wide; i++) widen(x, &out[i]);
  DM_GO(x->st);
  if (create && (n->op->flags & F_NO_DOUBLE)) {
    st =
        dm_fail(DM_ESTATE, "backward: %s has no second derivative (create_graph)", n->op->name);
    goto done;
  }
  dm_Grad g = {.op = n->op,
               .attr = n->attr,
               .n_in = n->n_in,
               .n_out = n->n_out,
               .gy = gy,
               .gx = gx,
               .need = need,
               .in = in,
               .out = out,
               .metas = n->metas,
               .sum = n->n_in == 1 && gy[0] == n->gy[0] ? sum_so_far(n, create) : NULL,
               .create_graph = create,
               .last = !(flags & (DM_CREATE_GRAPH | DM_RETAIN_GRAPH)) && !dm_observed() &&
                       !dm_thread_state()->anomaly.enabled,
               .x = x};
  n->op->grad(&g);
  st = x->st;
done:
  for (int i = 0; i < n->n_saved && i < DM_MAX_IN; i++) dm_tensor_unref(&in[i]);
  for (int i = 0; n->saved_out && i < n->n_out; i++) dm_tensor_unref(&out[i]);
  return st;
}

/* Calls the host's gradient under the autocast settings of its forward. PyTorch does so only
   for functions that are decorated with custom_bwd. */
static dm_status call_custom(dm_Node *n, dm_Tensor **gx, bool create) {
  enum { LOCAL = 8 };
  dm_Tensor *local[LOCAL] = {NULL}, **saved = local;
  if (n->n_saved > LOCAL && !(saved = dm_alloc_zero((int64_t)sizeof *saved * n->n_saved)))
    return dm_fail(DM_EMEM, "backward: out of memory");
  dm_status st = DM_OK;
  for (int i = 0; i < n->n_saved; i++) DM_GO(unpack(n, &n->saved_in[i], create, &saved[i]));
  dm_AutocastState *const a = &dm_thread_state()->autocast;
  const dm_CastState old = dm_autocast_resume(a, n->cast);
  st = n->custom.backward(n->custom.ctx, n->n_saved, saved, n->n_out, n->gy, n->n_in, gx);
  dm_autocast_restore(a, old);
done:
  for (int i = 0; i < n->n_saved; i++) dm_tensor_unref(&saved[i]);
  if (saved != local) dm_free(saved);
  return st;
}

/* The gradient of the loss from that of the scaled loss, which is 1. */
static dm_status scale_gradient(Pass *p, dm_Node *n, dm_Tensor **gx) {
  DM_TRY(unpack(n, scale_of(n), false, gx));
  p->lent = (*gx)->storage;
  return fit(gx, dm_meta(n->metas, 0));
}

/* Computes gx[] of one node from its gy, each brought to its input; the caller unrefs them. */
static dm_status gradients_unobserved(Pass *p, dm_Node *n, const bool *need, dm_Tensor **gx) {
  dm_X x = DM_X_INIT;
  dm_ThreadState *ts = dm_thread_state();
  const uint8_t base = ts->base;
  ts->base = n->base;
  const bool create = p->flags & DM_CREATE_GRAPH;
  dm_status st;
  if (n->op) {
    st = call_grad(n, need, gx, p->flags, &x);
    for (int i = 0; i < n->n_in; i++) {
      if (st == DM_OK && gx[i]) dm_tensor_ref(gx[i]);
      else gx[i] = NULL;
    }
  } else {
    st = call_custom(n, gx, create);
  }
  dm_x_free(&x);
  for (int i = 0; i < n->n_in && st == DM_OK; i++)
    if (gx[i] && need[i]) st = fit(&gx[i], dm_meta(n->metas, i));
  ts->base = base;
  return st;
}

/* The same as an event for the observers, if there are any. */
static dm_status node_gradients(Pass *p, dm_Node *n, const bool *need, dm_Tensor **gx) {
  if (!dm_observed()) return gradients_unobserved(p, n, need, gx);
  dm_Event e = {.op = n->op,
                .name = dm_node_name(n),
                .backward = true,
                .n_in = n->n_out,
                .node = n->seq,
                .in = n->gy,
                .out = gx};
  dm_observe_begin(&e);
  const dm_status st = gradients_unobserved(p, n, need, gx);
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

/* Anomaly detection: fails when a gradient that n computed has a NaN. An infinity is no
   anomaly: a GradScaler provokes it on purpose and skips the step. */
static dm_status check_nan(const dm_Node *n, const bool *need, dm_Tensor *const *gx) {
  for (int i = 0; i < n->n_in; i++) {
    bool found = false;
    if (!gx[i] || !need[i]) continue;
    DM_TRY(has_nan(gx[i], &found));
    const int position = i + dm_thread_state()->base;
    if (found)
      return dm_fail(DM_ESTATE,
                     "backward of %s: its output %d, the gradient of input %d, is NaN",
                     dm_node_name(n), position, position);
  }
  return DM_OK;
}

/* Adds to the message of a failure in n's turn where forward made n, if that was noted. */
static dm_status tell_where(const dm_Node *n, dm_status st) {
  return n->where ? dm_fail(st, "%s\nforward of %s: %s", dm_error(), dm_node_name(n), n->where)
                  : st;
}

/* The gradients of n's outputs are complete: runs its hooks, and stores those that retain_grad
   or dm_grad asked for. */
static dm_status finish_gy(Pass *p, dm_Node *n) {
  if (dm_regions_wait(n, p, -1)) DM_TRY(dm_regions_join(n));
  if (n->hooks || n->retain || !n->op) DM_TRY(own_all(p, n));
  for (int o = 0; o < n->n_out; o++) {
    if (!n->gy[o]) continue;
    if (n->hooks) {
      DM_TRY(widen_waiting(p));
      DM_TRY(run_hooks(n->hooks, o, &n->gy[o]));
    }
    if (n->retain && n->retain[o] && !p->got) {
      dm_Tensor *t = n->retain[o];
      /* a copy, for others hold the gradient, too: the caller, a hook, an op behind it */
      if (t->grad) DM_TRY(accumulate(&t->grad, n->gy[o], p->flags & DM_CREATE_GRAPH, false));
      else DM_TRY(copy_for(t, n->gy[o], p->flags & DM_CREATE_GRAPH, &t->grad));
    }
    for (int i = 0; p->got && i < p->n_want; i++)
      if (p->want[i]->node == n && p->want[i]->out_index == o)
        p->got[i] = dm_tensor_ref(n->gy[o]);
  }
  return DM_OK;
}

/* One node's turn: steps 1 to 4 of the head of this file. */
static dm_status take_turn(Pass *p, dm_Node *n) {
  enum { LOCAL = 16 };
  bool need_local[LOCAL];
  dm_Tensor *gx_local[LOCAL];
  bool *need = need_local;
  dm_Tensor **gx = gx_local;
  dm_status st = DM_OK;
  bool any = false;
  DM_TRY(finish_gy(p, n));
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
    any |= need[i] = wanted(p, &n->in[i]);
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
    p->scaled |= n->scales;
    bool waits = false;
    if (n->op && n->op->flags & F_REGION) st = wait_for_regions(p, n, &waits);
    if (st == DM_OK && may_wait(p, n)) {
      st = let_wait(p, n);
      need[0] = false;
    } else if (st == DM_OK && !waits) {
      if (!n->op) st = widen_waiting(p);
      if (st == DM_OK)
        st = n == p->implied ? scale_gradient(p, n, gx) : node_gradients(p, n, need, gx);
    }
    const dm_Anomaly *a = &dm_thread_state()->anomaly;
    if (DM_UNLIKELY(a->enabled) && a->check_nan && st == DM_OK) st = check_nan(n, need, gx);
    for (int i = 0; i < n->n_in && st == DM_OK; i++)
      if (gx[i] && need[i]) st = add_at(p, &n->in[i], gx[i]);
    for (int i = 0; i < n->n_in; i++) dm_tensor_unref(&gx[i]);
  }
  /* dm_grad only looks at the gradient of a wanted tensor: its node may have its turn later. */
  if (st == DM_OK && any && !(p->flags & (DM_RETAIN_GRAPH | DM_CREATE_GRAPH)))
    dm_node_release_saved(n);
  dm_remake_forget(n); /* those who rely on n have had their turns */
done:
  if (need != need_local) dm_free(need);
  if (gx != gx_local) dm_free(gx);
  return st;
}

/* Where not all leaves are wanted: marks the nodes behind which a wanted tensor lies; the pass
   skips all others. Depth first, in post-order, with a stack of its own: graphs are deeper than
   C's stack. */
typedef struct Frame {
  dm_Node *n;
  int next;
  bool reaches;
} Frame;

static bool is_wanted(const Pass *p, const dm_Node *n) {
  for (int i = 0; i < p->n_want; i++)
    if (p->want[i]->node == n) return true;
  return false;
}

static bool leaf_wanted(const Pass *p, const dm_Tensor *leaf) {
  for (int i = 0; leaf && i < p->n_want; i++)
    if (p->want[i] == leaf) return true;
  return false;
}

/* Marks all nodes that root leads to. */
static dm_status mark_from(Pass *p, dm_Node *root) {
  int n = 0, capacity = 64;
  Frame *stack = dm_alloc((int64_t)sizeof *stack * capacity);
  if (!stack) return dm_fail(DM_EMEM, "autograd.grad: out of memory");
  stack[n++] = (Frame){root, 0, is_wanted(p, root)};
  while (n > 0) {
    Frame *f = &stack[n - 1];
    if (f->next == f->n->n_in) {
      f->n->mark = f->reaches ? p->mark : p->mark + 1;
      if (--n > 0 && f->reaches) stack[n - 1].reaches = true;
      continue;
    }
    const dm_Edge *e = &f->n->in[f->next++];
    if (leaf_wanted(p, e->leaf)) f->reaches = true;
    else if (e->leaf) p->strays = true;
    if (!e->node) continue;
    if (e->node->mark == p->mark) f->reaches = true;
    if (e->node->mark == p->mark || e->node->mark == p->mark + 1) continue;
    if (n == capacity) {
      Frame *more = dm_alloc((int64_t)sizeof *stack * 2 * capacity);
      if (!more) {
        dm_free(stack);
        return dm_fail(DM_EMEM, "autograd.grad: out of memory");
      }
      memcpy(more, stack, sizeof *stack * (size_t)n);
      dm_free(stack);
      stack = more;
      capacity *= 2;
    }
    stack[n++] = (Frame){e->node, 0, is_wanted(p, e->node)};
  }
  dm_free(stack);
  return DM_OK;
}

/* The gradient of a root: the given one in the root's shape, dtype and device, or 1. */
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

/* Drops the gradients of n's outputs. */
static void drop_gradients(const Pass *p, dm_Node *n) {
  for (int i = 0; i < n->n_out; i++) dm_tensor_unref(&n->gy[i]);
  if (dm_regions_wait(n, p, -1)) dm_regions_drop(n);
}

/* The pass itself: the roots' nodes into the heap, then turn after turn until it is empty. */
static dm_status run_pass(Pass *p, int n, dm_Tensor *const *roots, dm_Tensor *const *seeds) {
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
    if (n == 1 && is_scaled(p, root, seeds ? seeds[i] : NULL)) {
      p->implied = root->node;
      DM_GO(push(p, root->node));
      continue;
    }
    DM_GO(seed_of(root, seeds ? seeds[i] : NULL, &g));
    const dm_Edge e = {root->node, root->node ? NULL : root, root->out_index};
    if (p->want && root->node && root->node->mark != p->mark && root->node->mark != p->mark + 1)
      st = mark_from(p, root->node);
    if (st == DM_OK && wanted(p, &e)) st = add_at(p, &e, g);
    dm_tensor_unref(&g);
    if (st != DM_OK) goto done;
  }
  while (p->n > 0) {
    dm_Node *node = pop(p);
    st = take_turn(p, node);
    if (DM_UNLIKELY(dm_any_home()) && st == DM_OK) st = after_turn(p, node);
    if (DM_UNLIKELY(st != DM_OK)) st = tell_where(node, st);
    drop_gradients(p, node);
    dm_node_unref(&node);
    if (st != DM_OK) goto done;
  }
  st = give_gathered(p, 0);
  if (st == DM_OK) st = widen_waiting(p);
done:
  drop_gathered(p);
  drop_waiting(p);
  dm_free(p->waiting);
  p->waiting = NULL;
  while (p->n > 0) { /* after a failure: drop the gradients that wait */
    dm_Node *node = pop(p);
    drop_gradients(p, node);
    dm_node_unref(&node);
  }
  if (p->heap != p->local) dm_free(p->heap);
  return st;
}

/* Runs the pass in a thread state of its own: recording only for create_graph, and no autocast
   (a hook may open a region). The pass is no region itself: casts that a custom function's
   backward makes are dropped when it returns, as PyTorch's are. */
static dm_status pass_in_state(Pass *p, int n, dm_Tensor *const *roots,
                               dm_Tensor *const *seeds) {
  dm_ThreadState *ts = dm_thread_state();
  const bool grad = ts->grad, inference = ts->inference, in_backward = ts->in_backward;
  struct dm_Replay *const replay = ts->replay;
  const dm_CastState cast = ts->autocast.now;
  ts->autocast.now = dm_autocast_off(&ts->autocast, -1);
  ts->grad = p->flags & DM_CREATE_GRAPH;
  ts->inference = false;
  ts->in_backward = true;
  ts->replay = NULL;
  dm_status st = run_pass(p, n, roots, seeds);
  if (DM_UNLIKELY(p->homes != NULL)) st = end_homes(p, st);
  ts->grad = grad;
  ts->inference = inference;
  ts->in_backward = in_backward;
  ts->replay = replay;
  dm_cast_state_drop(&ts->autocast.now);
  ts->autocast.now = cast;
  return st;
}

dm_status dm_other_leaves(dm_Tensor *root, int n, dm_Tensor *const *known, bool *out) {
  Pass pass = {.n_want = n, .want = known, .mark = atomic_fetch_add(&next_mark, 2)};
  if (root->base) DM_TRY(dm_refresh_view(root));
  if (root->node) DM_TRY(mark_from(&pass, root->node));
  *out = pass.strays ||
         (!root->node && dm_tensor_requires_grad(root) && !leaf_wanted(&pass, root));
  return DM_OK;
}

static dm_status backward(Pass *pass, int n, dm_Tensor *const *roots, dm_Tensor *const *seeds) {
  Pass *const outer = outermost;
  if (!outer) outermost = pass;
  const dm_status st = pass_in_state(pass, n, roots, seeds);
  outermost = outer;
  return st;
}

dm_status dm_backward(int n, dm_Tensor *const *roots, dm_Tensor *const *seeds, int flags) {
  Pass pass = {.flags = flags};
  return backward(&pass, n, roots, seeds);
}

dm_status dm_backward_into(int n, dm_Tensor *const *roots, dm_Tensor *const *seeds, int n_in,
                           dm_Tensor *const *inputs, int flags) {
  Pass pass = {.flags = flags, .n_want = n_in, .want = inputs};
  pass.mark = atomic_fetch_add(&next_mark, 2);
  for (int i = 0; i < n_in; i++) {
    if (inputs[i]->base) DM_TRY(dm_refresh_view(inputs[i]));
    if (!dm_tensor_requires_grad(inputs[i]))
      return dm_fail(
          DM_ESTATE,
          "backward: input %d does not require grad; hint: x:requires_grad_() before "
          "the loss is made from it",
          i + dm_thread_state()->base);
  }
  for (int i = 0; i < n_in; i++) DM_TRY(dm_retain_grad(inputs[i]));
  return backward(&pass, n, roots, seeds);
}

dm_status dm_grad(int n, dm_Tensor *const *roots, dm_Tensor *const *seeds, int n_in,
                  dm_Tensor *const *inputs, int flags, dm_Tensor **out) {
  Pass pass = {.flags = flags, .n_want = n_in, .want = inputs, .got = out};
  pass.mark = atomic_fetch_add(&next_mark, 2);
  for (int i = 0; i < n_in; i++) {
    out[i] = NULL;
    if (inputs[i]->base) DM_TRY(dm_refresh_view(inputs[i]));
    if (!dm_tensor_requires_grad(inputs[i]))
      return dm_fail(DM_ESTATE, "autograd.grad: input %d does not require grad",
                     i + dm_thread_state()->base);
  }
  dm_status st = pass_in_state(&pass, n, roots, seeds);
  for (int i = 0; i < n_in && st == DM_OK; i++)
    if (!out[i] && !(flags & DM_ALLOW_UNUSED))
      st = dm_fail(DM_ESTATE,
                   "autograd.grad: input %d was not used to make the outputs; hint: "
                   "{allow_unused = true}",
                   i + dm_thread_state()->base);
  if (st != DM_OK)
    for (int i = 0; i < n_in; i++) dm_tensor_unref(&out[i]);
  return st;
}
