/* Policies as in PyTorch's autocast_mode: see autocast.h.

   The cache holds casts of float32 leaves that require a gradient, keyed by
   tensor, version and dtype, so an entry is never stale; it owns its source, so
   an address is never reused. It lives as long as a region is open, and holds
   one entry a live weight and dtype. */
#include "engine/autocast.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/tape.h"

const char *const dm_cast_names[] = {
    "unlisted", "lower_precision_fp", "fp32", "fp32_set_opt_dtype", "promote", "banned"};

/* ---- the cache: open addressing, a power of two of slots, half of them free ---- */

typedef struct Entry {
  dm_Tensor *source, *cast; /* NULL: a free slot */
  uint32_t version;
} Entry;

typedef struct dm_CastCache {
  int n, room;
  Entry *entries;
} dm_CastCache;

static _Thread_local int64_t n_casts;

int64_t dm_autocast_cast_count(void) { return n_casts; }

static void drop_entries(dm_CastCache *c) {
  for (int i = 0; i < c->room; i++) {
    if (!c->entries[i].source) continue;
    dm_tensor_unref(&c->entries[i].source);
    dm_tensor_unref(&c->entries[i].cast);
  }
  dm_free(c->entries);
}

static void cache_clear(dm_Modes *m) {
  dm_CastCache *c = m->cache;
  if (!c) return;
  m->cache = NULL;
  drop_entries(c);
  dm_free(c);
}

void dm_autocast_clear_cache(void) { cache_clear(dm_modes()); }

/* The slot of a cast, whatever its version, or the free slot where it belongs. */
static Entry *cache_slot(const dm_CastCache *c, const dm_Tensor *t, dm_DType to) {
  const uint64_t hash = ((uint64_t)(uintptr_t)t ^ (uint64_t)to) * 0x9E3779B97F4A7C15u;
  for (uint32_t i = (uint32_t)(hash >> 32);; i++) {
    Entry *e = &c->entries[i & (uint32_t)(c->room - 1)];
    if (!e->source || (e->source == t && e->cast->dtype == to)) return e;
  }
}

static dm_Tensor *cache_find(const dm_Modes *m, const dm_Tensor *t, dm_DType to) {
  if (!m->cache || m->cache->room == 0) return NULL; /* 0: there was no memory */
  const Entry *e = cache_slot(m->cache, t, to);
  return e->source && e->version == t->storage->version ? e->cast : NULL;
}

/* Only the cache still knows the source: this entry, and its cast's history. */
static bool forgotten(const Entry *e) {
  return atomic_load(&e->source->refs) <= 2 && atomic_load(&e->cast->refs) == 1;
}

/* A table for twice the entries that are still of use. */
static bool cache_grow(dm_CastCache *c) {
  dm_CastCache next = {.room = 16};
  for (int i = 0; i < c->room; i++)
    if (c->entries[i].source && !forgotten(&c->entries[i])) next.n++;
  while (next.room < 4 * next.n) next.room *= 2;
  next.entries = dm_alloc_zero((int64_t)sizeof(Entry) * next.room);
  if (!next.entries) return false;
  for (int i = 0; i < c->room; i++) {
    Entry *e = &c->entries[i];
    if (!e->source || forgotten(e)) continue;
    *cache_slot(&next, e->source, (dm_DType)e->cast->dtype) = *e;
    *e = (Entry){NULL, NULL, 0};
  }
  drop_entries(c);
  *c = next;
  return true;
}

/* Failing to remember a cast only costs time. */
static void cache_add(dm_Modes *m, dm_Tensor *t, dm_Tensor *cast) {
  if (!m->cache && !(m->cache = dm_alloc_zero(sizeof *m->cache))) return;
  dm_CastCache *c = m->cache;
  if (2 * c->n >= c->room && !cache_grow(c)) return;
  Entry *e = cache_slot(c, t, (dm_DType)cast->dtype);
  if (e->source) dm_tensor_unref(&e->cast); /* of an older version */
  else c->n++, e->source = dm_tensor_ref(t);
  e->cast = dm_tensor_ref(cast);
  e->version = t->storage->version;
}

/* ---- one call ---- */

/* Floating tensors of the device type, but no float64 and no host numbers. */
static inline bool eligible(const dm_Tensor *t, int type) {
  const uint32_t floats = 1u << DM_F32 | 1u << DM_F16 | 1u << DM_BF16;
  return t && floats >> t->dtype & 1 && t->device.type == type && !(t->flags & DM_T_NUMBER);
}

/* A leaf that is cast is marked (low_dtype); the optimizer that steps it then may
   leave a 16-bit copy with it (low), written together with the weight, and the
   next region shows that copy instead of casting. */

/* The kernel's cast of t; with a history when `record`. */
static dm_status cast_now(dm_Modes *m, dm_Tensor *t, dm_DType to, bool record,
                          dm_Tensor **out) {
  const bool grad = m->grad, masked = m->masked;
  const int64_t dtype = to;
  m->grad = record;
  m->masked = m->casting = true;
  const dm_status st = dm_call(DM_OP_cast, 1, &t, &dtype, out);
  m->grad = grad;
  m->masked = masked;
  m->casting = false;
  if (st == DM_OK) n_casts++;
  return st;
}

/* t's copy as if it had been cast just now: another handle, with a cast for a
   history when `record`. */
static dm_status show_copy(const dm_Modes *m, dm_Tensor *t, bool record, dm_Tensor **out) {
  const int64_t dtype = t->low->dtype;
  DM_TRY(dm_tensor_alias(t->low, out));
  if (m->inference) (*out)->flags |= DM_T_INFERENCE;
  if (!record || !dm_tensor_requires_grad(t)) return DM_OK;
  const dm_status st = dm_record_op(&dm_ops[DM_OP_cast], 1, &t, &dtype, out, NULL);
  if (st != DM_OK) dm_tensor_unref(out);
  return st;
}

static dm_status cast_one(dm_Modes *m, dm_Tensor *t, dm_DType to, dm_Tensor **out) {
  if (t->dtype == to) {
    *out = dm_tensor_ref(t);
    return DM_OK;
  }
  const bool weight = t->dtype == DM_F32 && dm_is_16bit(to) &&
                      (t->flags & DM_T_REQUIRES_GRAD) && !t->node && !t->base && !m->inference;
  const bool cached = weight && m->cache_enabled && (m->regions || m->resumed > 0);
  dm_Tensor *hit = cached ? cache_find(m, t, to) : NULL;
  if (hit) {
    *out = dm_tensor_ref(hit);
    return DM_OK;
  }
  /* a cached cast always has a history: it may be used with gradients later */
  const bool record = cached || m->grad;
  const bool fresh =
      t->low && t->low->dtype == to && t->low->storage->version == t->storage->version;
  DM_TRY(fresh ? show_copy(m, t, record, out) : cast_now(m, t, to, record, out));
  if (weight) t->low_dtype = (uint8_t)to;
  if (cached) cache_add(m, t, *out);
  return DM_OK;
}

/* The device type whose table rules this call: cuda when one of its tensors
   lives there, else cpu. */
static int ruling_type(int n_in, dm_Tensor *const *in) {
  for (int i = 0; i < n_in; i++)
    if (in[i] && in[i]->device.type == DM_CUDA) return DM_CUDA;
  return DM_CPU;
}

/* A region's own policies know the ops of the table only. */
static dm_Cast policy_of(const dm_Autocast *a, int type, const dm_OpInfo *op) {
  const bool listed = op >= dm_ops && op < dm_ops + DM_N_OP;
  return (dm_Cast)(a->policies && listed ? a->policies->of[dm_op_id(op)] : op->cast[type]);
}

/* A number over a tensor is a reciprocal, as in PyTorch. */
static bool is_reciprocal(const dm_OpInfo *op, dm_Tensor *const *in, const void *attr) {
  return op == &dm_ops[DM_OP_div] && (in[0]->flags & DM_T_NUMBER) &&
         *(const int64_t *)attr == 0;
}

/* float32 when eligible inputs differ, whatever their order. PyTorch does the
   same, but refuses float16 beside bfloat16, and either under the other's region. */
static dm_DType promoted(int type, int n_in, dm_Tensor *const *in) {
  dm_DType seen = DM_NO_DTYPE;
  for (int i = 0; i < n_in; i++) {
    if (!eligible(in[i], type)) continue;
    if (seen != DM_NO_DTYPE && in[i]->dtype != seen) return DM_F32;
    seen = (dm_DType)in[i]->dtype;
  }
  return DM_NO_DTYPE;
}

static dm_status refuse(const dm_OpInfo *op) {
  if (op == &dm_ops[DM_OP_binary_cross_entropy])
    return dm_fail(DM_EARG,
                   "%s: unsafe under autocast: its gradient can leave float16's range; hint: "
                   "%s_with_logits, or an inner region with enabled = false",
                   op->name, op->name);
  return dm_fail(DM_EARG,
                 "%s: banned by this autocast region; hint: an inner region with enabled = "
                 "false",
                 op->name);
}

static bool lacks_dtype(const dm_OpInfo *op, const void *attr) {
  const dm_Signature *g = op->signature;
  if (g->dtype_attr < 0) return false;
  return *(const int64_t *)(const void *)((const char *)attr + g->attr[g->dtype_attr].offset) <
         0;
}

dm_status dm_autocast_plan(const dm_OpInfo *op, int n_in, dm_Tensor *const *in,
                           const void *attr, dm_CastPlan *plan) {
  const int type = ruling_type(n_in, in);
  const dm_Autocast *a = &dm_modes()->autocast[type];
  dm_Cast policy = a->enabled ? policy_of(a, type, op) : ASIS;
  if (policy == ASIS && a->enabled && is_reciprocal(op, in, attr))
    policy = policy_of(a, type, &dm_ops[DM_OP_reciprocal]);
  *plan = (dm_CastPlan){.listed = policy != ASIS, .type = (uint8_t)type, .to = DM_NO_DTYPE};
  switch (policy) {
  case ASIS: return DM_OK;
  case LOW: plan->to = (dm_DType)a->dtype; break;
  case F32: plan->to = DM_F32; break;
  case F32OUT:
    plan->f32_result =
        n_in > 0 && eligible(in[0], type) && in[0]->dtype != DM_F32 && lacks_dtype(op, attr);
    return DM_OK;
  case WIDE: plan->to = promoted(type, n_in, in); return DM_OK;
  case BAN: return refuse(op);
  }
  for (int i = 0; i < n_in; i++)
    if (eligible(in[i], type) && in[i]->dtype != plan->to) return DM_OK;
  plan->to = DM_NO_DTYPE;
  return DM_OK;
}

dm_status dm_autocast_inputs(const dm_CastPlan *plan, int n_in, dm_Tensor *const *in,
                             dm_Tensor **cast) {
  dm_Modes *m = dm_modes();
  for (int i = 0; i < n_in; i++) {
    cast[i] = NULL;
    if (!in[i]) continue;
    if (plan->to == DM_NO_DTYPE || !eligible(in[i], plan->type)) {
      cast[i] = dm_tensor_ref(in[i]);
      continue;
    }
    const dm_status st = cast_one(m, in[i], plan->to, &cast[i]);
    if (st != DM_OK) {
      while (i-- > 0) dm_tensor_unref(&cast[i]);
      return st;
    }
  }
  return DM_OK;
}

/* ---- regions ---- */

dm_Policies *dm_policies_new(dm_DeviceType type, const dm_Policies *from) {
  dm_Policies *p = dm_alloc(sizeof *p);
  if (!p) return NULL;
  atomic_init(&p->refs, 1);
  for (int i = 0; i < DM_N_OP; i++) p->of[i] = from ? from->of[i] : dm_ops[i].cast[type];
  return p;
}

dm_Policies *dm_policies_ref(dm_Policies *p) {
  if (p) dm_hold(&p->refs);
  return p;
}

void dm_policies_unref(dm_Policies **p) {
  if (*p && dm_let_go(&(*p)->refs)) dm_free(*p);
  *p = NULL;
}

void dm_autocast_enter(dm_Region *r, dm_DeviceType type, dm_Autocast now, bool cache) {
  dm_Modes *m = dm_modes();
  *r = (dm_Region){m->regions, m->autocast[type], m->cache_enabled, (uint8_t)type};
  dm_policies_ref(now.policies);
  m->autocast[type] = now;
  m->cache_enabled = cache;
  m->regions = r;
}

static void clear_at_end(dm_Modes *m) {
  if (!m->regions && m->resumed == 0) cache_clear(m);
}

/* What r set is put back where it stands: in the modes, or in the region that
   was opened next and remembers it. */
void dm_autocast_leave(dm_Modes *m, dm_Region *r) {
  dm_Autocast *state = &m->autocast[r->device_type];
  bool *cache = &m->cache_enabled;
  dm_Region **at = &m->regions;
  for (; *at && *at != r; at = &(*at)->outer) {
    if ((*at)->device_type == r->device_type) state = &(*at)->old;
    cache = &(*at)->old_cache;
  }
  if (!*at) { /* m was cleared */
    dm_policies_unref(&r->old.policies);
    return;
  }
  dm_policies_unref(&state->policies);
  *state = r->old;
  *cache = r->old_cache;
  *at = r->outer;
  clear_at_end(m);
}

void dm_modes_inherit(dm_Modes *m, const dm_Modes *from) {
  *m = *from;
  m->regions = NULL;
  m->resumed = 0;
  m->cache = NULL;
  m->replay = NULL; /* the new one may outlive the stretch */
  for (int i = 0; i < DM_N_DEVICE_TYPE; i++) dm_policies_ref(m->autocast[i].policies);
}

/* Regions that are still open lie in the host's memory, which may be gone. */
void dm_modes_clear(dm_Modes *m) {
  m->regions = NULL;
  cache_clear(m);
  for (int i = 0; i < DM_N_DEVICE_TYPE; i++) dm_policies_unref(&m->autocast[i].policies);
}

/* ---- the whole state ---- */

dm_CastState dm_autocast_state(void) {
  const dm_Modes *m = dm_modes();
  dm_CastState s = {.cache_enabled = m->cache_enabled};
  memcpy(s.autocast, m->autocast, sizeof s.autocast);
  for (int i = 0; i < DM_N_DEVICE_TYPE; i++) dm_policies_ref(s.autocast[i].policies);
  return s;
}

dm_CastState dm_autocast_off(int type) {
  dm_CastState s = dm_autocast_state();
  for (int i = 0; i < DM_N_DEVICE_TYPE; i++)
    if (type < 0 || type == i) s.autocast[i].enabled = false;
  return s;
}

void dm_cast_state_drop(dm_CastState *s) {
  for (int i = 0; i < DM_N_DEVICE_TYPE; i++) dm_policies_unref(&s->autocast[i].policies);
}

static void put_in_force(dm_Modes *m, dm_CastState s) {
  memcpy(m->autocast, s.autocast, sizeof m->autocast);
  m->cache_enabled = s.cache_enabled;
}

dm_CastState dm_autocast_resume(dm_CastState s) {
  dm_Modes *m = dm_modes();
  dm_CastState old = {.cache_enabled = m->cache_enabled}; /* takes the references over */
  memcpy(old.autocast, m->autocast, sizeof old.autocast);
  for (int i = 0; i < DM_N_DEVICE_TYPE; i++) dm_policies_ref(s.autocast[i].policies);
  put_in_force(m, s);
  m->resumed++;
  return old;
}

void dm_autocast_go_back(dm_CastState old) {
  dm_Modes *m = dm_modes();
  for (int i = 0; i < DM_N_DEVICE_TYPE; i++) dm_policies_unref(&m->autocast[i].policies);
  put_in_force(m, old);
  m->resumed--;
  clear_at_end(m);
}
