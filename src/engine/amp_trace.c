/* See amp_trace.h. A call of the host counts once, however many ops it is composed of; casts,
   saved tensors and values that are not finite are counted at every depth. */
#include "engine/amp_trace.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/error.h"
#include "core/stats.h"
#include "engine/tape.h"

enum { N_BIRTHS = 1 << 13 }; /* a power of two */

/* ---- the tables ---- */

/* The key as one word; bit 0 is set, so that no key is 0, which marks a free slot. */
static uint64_t pack(dm_TallyKey k) {
  return (uint64_t)(uint32_t)k.module << 32 | (uint64_t)k.op << 16 | (uint64_t)k.kind << 12 |
         (uint64_t)k.dtype << 8 | (uint64_t)k.region << 4 | (uint64_t)k.device << 2 |
         (uint64_t)k.mixed << 1 | 1;
}

dm_TallyKey dm_tally_key(const dm_Tally *t) {
  const uint64_t u = t->key;
  return (dm_TallyKey){.module = (int)(uint32_t)(u >> 32),
                       .op = (uint16_t)(u >> 16),
                       .kind = u >> 12 & 15,
                       .dtype = u >> 8 & 15,
                       .region = u >> 4 & 15,
                       .device = u >> 2 & 3,
                       .mixed = u >> 1 & 1};
}

/* The slot of a key, or the free slot where it belongs: open addressing with linear
   probing from Fibonacci hashing of the key (D. Knuth, volume 3, 6.4). */
static dm_Tally *slot_of(const dm_TallyTable *t, uint64_t key) {
  uint64_t at = key * 0x9e3779b97f4a7c15u >> 32;
  for (;; at++) {
    dm_Tally *s = &t->slot[at & (uint64_t)(t->capacity - 1)];
    if (s->key == key || s->key == 0) return s;
  }
}

/* Doubles the table and enters what it held; false, with the table as it was, without
   memory. */
static bool grow(dm_TallyTable *t) {
  dm_TallyTable more = {t->n, t->capacity ? 2 * t->capacity : 256, NULL};
  more.slot = dm_alloc_zero((int64_t)sizeof *more.slot * more.capacity);
  if (!more.slot) return false;
  for (int i = 0; i < t->capacity; i++)
    if (t->slot[i].key) *slot_of(&more, t->slot[i].key) = t->slot[i];
  dm_free(t->slot);
  *t = more;
  return true;
}

/* The entry with that key (not 0), new or old; NULL: no memory. */
static dm_Tally *entry(dm_TallyTable *t, uint64_t key) {
  if (2 * t->n >= t->capacity && !grow(t)) return NULL;
  dm_Tally *s = slot_of(t, key);
  t->n += s->key == 0;
  s->key = key;
  return s;
}

static void clear(dm_TallyTable *t) {
  if (t->n) memset(t->slot, 0, sizeof *t->slot * (size_t)t->capacity);
  t->n = 0;
}

/* Adds one call and its bytes to a tally. Without memory the loss is counted instead,
   because an observer has no way to fail. */
static void tally(dm_AmpTrace *tr, dm_TallyKey k, int64_t bytes) {
  dm_Tally *t = entry(&tr->tallies, pack(k));
  if (!t) {
    tr->missed++;
    return;
  }
  t->calls++;
  t->bytes += bytes;
}

/* ---- modules ---- */

/* The module whose forward pass recorded the node; the ring of births holds the
   newest N_BIRTHS nodes. */
static int module_of_node(const dm_AmpTrace *tr, uint64_t seq) {
  const dm_Birth *b = &tr->births[seq & (N_BIRTHS - 1)];
  return b->seq == seq ? b->module : DM_MODULE_LOST;
}

/* ---- reading an event ---- */

/* Whether a tensor says something about precision: a float that is no plain number. */
static bool counts(const dm_Tensor *t) {
  return t && dm_is_float((dm_DType)t->dtype) && !(t->flags & DM_T_NUMBER);
}

/* The dtype of the first float among the tensors, or DM_N_DTYPE. */
static uint8_t dtype_of(int n, dm_Tensor *const *t) {
  for (int i = 0; i < n; i++)
    if (counts(t[i])) return t[i]->dtype;
  return DM_N_DTYPE;
}

/* The key under which an event is counted: its module, op, dtype (of the results, else of the
   inputs), device and region. */
static dm_TallyKey key_of(const dm_AmpTrace *tr, const dm_Event *e, dm_TallyKind kind) {
  const dm_ThreadState *ts = dm_thread_state();
  dm_TallyKey k = {.module = tr->module, .kind = (uint8_t)kind, .region = DM_N_DTYPE};
  k.op = e->op ? (uint16_t)dm_op_id(e->op) : DM_N_OP;
  k.dtype = dtype_of(e->n_out, e->out);
  if (k.dtype == DM_N_DTYPE) k.dtype = dtype_of(e->n_in, e->in);
  for (int i = 0; i < e->n_in; i++) {
    if (!e->in[i]) continue;
    if (e->in[i]->device.type != DM_CPU) k.device = e->in[i]->device.type;
    k.mixed |= dm_is_low((dm_DType)e->in[i]->dtype);
  }
  const dm_Autocast *a = &ts->autocast.now.autocast[k.device];
  if (!ts->in_backward && a->enabled) k.region = a->dtype;
  return k;
}

static int64_t bytes_out(const dm_Event *e) {
  int64_t sum = 0;
  for (int i = 0; i < e->n_out; i++)
    if (e->out[i]) sum += dm_tensor_bytes(e->out[i]);
  return sum;
}

/* A parameter of a module, or any leaf that a gradient is asked for. */
static bool is_weight(const dm_Tensor *t) {
  return (t->flags & DM_T_PARAMETER) || (!t->node && (t->flags & DM_T_REQUIRES_GRAD));
}

/* Is t a weight, or a cast or view of one? The tape saves those without extra memory, or
   autocast has counted them already. */
static bool stems_from_weight(const dm_Tensor *t) {
  const dm_Node *n = t->node;
  while (n && n->op && (n->op == &dm_ops[DM_OP_cast] || (n->op->flags & F_VIEW))) {
    if (n->in[0].leaf) return true;
    n = n->in[0].node;
  }
  return is_weight(t->base ? t->base : t);
}

static void tally_saved(dm_AmpTrace *tr, const dm_Event *e, const dm_Saved *s, int n) {
  for (int i = 0; s && i < n; i++) {
    const dm_Tensor *t = s[i].t;
    if (!t || (t->flags & DM_T_NUMBER) || stems_from_weight(t)) continue;
    dm_Tally *seen = entry(&tr->kept, (uint64_t)(uintptr_t)t->storage);
    if (!seen) tr->missed++;
    if (!seen || seen->calls++) continue;
    dm_TallyKey k = key_of(tr, e, DM_TALLY_KEPT);
    k.dtype = t->dtype;
    tally(tr, k, dm_tensor_bytes(t));
  }
}

/* Notes the module of a call's node and the tensors that it saved. A composed op has no node of
   its own: the ops that it calls have. */
static void look_at_tape(dm_AmpTrace *tr, const dm_Event *e) {
  for (int i = 0; i < e->n_out && e->op; i++) {
    const dm_Node *n = e->out[i] ? e->out[i]->node : NULL;
    if (!n || n->op != e->op) continue;
    tr->births[n->seq & (N_BIRTHS - 1)] = (dm_Birth){n->seq, tr->module};
    tally_saved(tr, e, n->saved_in, n->n_in);
    tally_saved(tr, e, n->saved_out, n->n_out);
    return;
  }
}

/* ---- inf and NaN ---- */

static void blame(dm_AmpTrace *tr, const dm_Event *e, const dm_Tensor *out, uint32_t finite,
                  bool nan, bool backward) {
  dm_Blame *b = &tr->first[backward];
  if (b->found) return;
  *b = (dm_Blame){.found = true,
                  .autocast = e->autocast,
                  .nan = nan,
                  .dtype = out->dtype,
                  .ndim = out->ndim,
                  .module = tr->module,
                  .n_in = e->n_in,
                  .finite = finite,
                  .step = tr->steps + !backward};
  memcpy(b->shape, out->shape, sizeof b->shape);
  for (int i = e->inplace; i < e->n_in; i++) {
    dm_FloatStats c = {0};
    if (e->in[i]) dm_float_stats(e->in[i], 1, 1, &c);
    if (c.largest > b->largest) b->largest = c.largest;
  }
  snprintf(b->op, sizeof b->op, "%s", e->name);
  snprintf(b->within, sizeof b->within, "%s", tr->outer);
  if (tr->where) tr->where(tr->ctx, b->where, sizeof b->where);
}

/* Looks for inf and NaN in a kernel's outputs. Composed ops and nodes are left out, for the
   kernels that they call are events themselves. A call counts as bad when all of its inputs
   were finite; an inf that was there before, such as a mask's, counts against no op. */
static void look_at_numbers(dm_AmpTrace *tr, const dm_Event *e, bool backward) {
  if (!e->op || e->backward || e->op->compose || (e->op->flags & (F_VIEW | F_CREATE))) return;
  const dm_Tensor *out = NULL;
  for (int i = 0; i < e->n_out && !out; i++)
    if (e->out[i] && !dm_all_finite(e->out[i])) out = e->out[i];
  if (!out) return;
  dm_FloatStats c = {0};
  dm_float_stats(out, 1, 1, &c);
  uint32_t finite = 0;
  bool all = true;
  for (int i = 0; i < e->n_in && i < 32; i++) {
    const bool known = !(e->inplace && i == 0); /* the old value is gone */
    const bool ok = !e->in[i] || !known || dm_all_finite(e->in[i]);
    finite |= (uint32_t)ok << i;
    all &= ok;
  }
  if (all) tally(tr, key_of(tr, e, backward ? DM_TALLY_BAD_BACK : DM_TALLY_BAD), 0);
  if (all || c.nan) blame(tr, e, out, finite, c.nan > 0, backward);
}

/* ---- the observer ---- */

/* A range that the program named or an optimizer's step: no call of an op. */
static bool is_aside(const dm_Event *e) { return !e->op && !e->backward; }

static void begin(void *ctx, const dm_Event *e) {
  dm_AmpTrace *tr = ctx;
  if (is_aside(e) || tr->depth++ > 0) return;
  const dm_ThreadState *ts = dm_thread_state();
  if (ts->in_backward && !tr->was_backward) tr->steps++;
  if (!ts->in_backward && tr->was_backward) clear(&tr->kept);
  tr->was_backward = ts->in_backward;
  tr->module = e->node           ? module_of_node(tr, e->node)
               : ts->in_backward ? DM_MODULE_LOST
                                 : ts->module;
  snprintf(tr->outer, sizeof tr->outer, "%s", e->name);
}

static void end(void *ctx, const dm_Event *e) {
  dm_AmpTrace *tr = ctx;
  if (is_aside(e) || tr->depth == 0)
    return; /* depth 0: the call began before the observer was added */
  tr->depth--;
  if (e->n_out == 0) return;
  const bool backward = dm_thread_state()->in_backward;
  if (e->autocast)
    tally(tr, key_of(tr, e, is_weight(e->in[0]) ? DM_TALLY_WEIGHT : DM_TALLY_INPUT),
          bytes_out(e));
  else if (tr->depth == 0 && (e->backward || !e->op || !(e->op->flags & (F_VIEW | F_CREATE))))
    tally(tr, key_of(tr, e, backward ? DM_TALLY_BACKWARD : DM_TALLY_FORWARD), bytes_out(e));
  if (!backward) look_at_tape(tr, e);
  if (tr->check) look_at_numbers(tr, e, backward);
}

dm_status dm_amp_trace_init(dm_AmpTrace *tr, bool check) {
  *tr = (dm_AmpTrace){.check = check};
  tr->observer = (dm_Observer){.ctx = tr, .begin = begin, .end = end};
  tr->births = dm_alloc_zero((int64_t)sizeof *tr->births * N_BIRTHS);
  return tr->births ? DM_OK : dm_fail(DM_EMEM, "report: out of memory");
}

void dm_amp_trace_free(dm_AmpTrace *tr) {
  dm_free(tr->tallies.slot);
  dm_free(tr->kept.slot);
  dm_free(tr->births);
  tr->tallies = tr->kept = (dm_TallyTable){0};
  tr->births = NULL;
}
