/* Policies as in PyTorch's autocast_mode: see autocast.h.

   The cache holds casts of float32 leaves that require a gradient, keyed by
   tensor, version and dtype: an in-place change makes a new key, so an entry
   is never stale, and it owns its source, so an address is never reused. */
#include "engine/autocast.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/tape.h"

typedef struct Entry {
  dm_Tensor *source, *cast;
  uint32_t version;
} Entry;

typedef struct dm_CastCache {
  int n, room;
  Entry *entries;
} dm_CastCache;

static _Thread_local int64_t n_casts;

int64_t dm_autocast_cast_count(void) { return n_casts; }

static void cache_clear(dm_Modes *m) {
  dm_CastCache *c = m->cache;
  if (!c) return;
  m->cache = NULL;
  for (int i = 0; i < c->n; i++) {
    dm_tensor_unref(&c->entries[i].source);
    dm_tensor_unref(&c->entries[i].cast);
  }
  dm_free(c->entries);
  dm_free(c);
}

void dm_autocast_clear_cache(void) { cache_clear(dm_modes()); }
void dm_modes_clear(dm_Modes *m) { cache_clear(m); }

static dm_Tensor *cache_find(const dm_Modes *m, const dm_Tensor *t, dm_DType to) {
  const dm_CastCache *c = m->cache;
  for (int i = 0; c && i < c->n; i++) {
    const Entry *e = &c->entries[i];
    if (e->source == t && e->version == t->storage->version && e->cast->dtype == to)
      return e->cast;
  }
  return NULL;
}

/* Failing to remember a cast only costs time. */
static void cache_add(dm_Modes *m, dm_Tensor *t, dm_Tensor *cast) {
  if (!m->cache && !(m->cache = dm_alloc_zero(sizeof *m->cache))) return;
  dm_CastCache *c = m->cache;
  if (c->n == c->room) {
    const int room = c->room ? 2 * c->room : 32;
    Entry *e = dm_alloc((int64_t)sizeof *e * room);
    if (!e) return;
    if (c->n) memcpy(e, c->entries, sizeof *e * (size_t)c->n);
    dm_free(c->entries);
    c->entries = e;
    c->room = room;
  }
  c->entries[c->n++] = (Entry){dm_tensor_ref(t), dm_tensor_ref(cast), t->storage->version};
}

static bool eligible(const dm_Tensor *t, int type) {
  return t && t->device.type == type && dm_is_float((dm_DType)t->dtype) && t->dtype != DM_F64 &&
         !(t->flags & DM_T_NUMBER);
}

/* A leaf that is cast is marked (low_dtype); the optimizer that steps it then
   leaves a 16-bit copy with it (low), written together with the weight, and the
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
  const dm_status st = dm_record(&dm_ops[DM_OP_cast], 1, &t, &dtype, 1, out, NULL);
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
  const bool cached = weight && m->cache_enabled;
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

static dm_status widest(const dm_OpInfo *op, const dm_Modes *m, int type, int n_in,
                        dm_Tensor *const *in, dm_DType *out) {
  dm_DType best = (dm_DType)m->autocast[type].dtype;
  for (int i = 0; i < n_in; i++)
    if (eligible(in[i], type) && in[i]->dtype == DM_F32) best = DM_F32;
  for (int i = 0; i < n_in && best != DM_F32; i++)
    if (eligible(in[i], type) && in[i]->dtype != best)
      return dm_fail(DM_EARG, "%s: unexpected floating type %s under %s autocast", op->name,
                     dm_dtype_name((dm_DType)in[i]->dtype), dm_dtype_name(best));
  *out = best;
  return DM_OK;
}

dm_status dm_autocast_inputs(const dm_OpInfo *op, int n_in, dm_Tensor *const *in,
                             dm_Tensor **cast, void *attr, bool *listed) {
  dm_Modes *m = dm_modes();
  const int type = ruling_type(n_in, in);
  dm_Cast policy = m->autocast[type].enabled ? (dm_Cast)op->cast[type] : ASIS;
  dm_DType to = DM_NO_DTYPE;
  *listed = policy != ASIS;
  switch (policy) {
  case ASIS: break;
  case LOW: to = (dm_DType)m->autocast[type].dtype; break;
  case F32: to = DM_F32; break;
  case F32OUT: {
    const dm_Signature *g = dm_op_signature(op);
    if (n_in > 0 && eligible(in[0], type) && g->dtype_attr >= 0) {
      int64_t *dtype = (int64_t *)(void *)((char *)attr + g->attr[g->dtype_attr].offset);
      if (*dtype < 0) *dtype = DM_F32;
    }
    break;
  }
  case WIDE: DM_TRY(widest(op, m, type, n_in, in, &to)); break;
  case BAN:
    return dm_fail(DM_EARG,
                   "%s: unsafe under autocast: its gradient can leave float16's range; hint: "
                   "use %s_with_logits, or an inner region with enabled = false",
                   op->name, op->name);
  }
  for (int i = 0; i < n_in; i++) cast[i] = NULL;
  for (int i = 0; i < n_in; i++) {
    if (!in[i]) continue;
    if (to == DM_NO_DTYPE || !eligible(in[i], type)) {
      cast[i] = dm_tensor_ref(in[i]);
      continue;
    }
    const dm_status st = cast_one(m, in[i], to, &cast[i]);
    if (st != DM_OK) {
      while (i-- > 0) dm_tensor_unref(&cast[i]);
      return st;
    }
  }
  return DM_OK;
}

dm_Region dm_autocast_enter(dm_DeviceType type, bool enabled, dm_DType dtype, bool cache) {
  dm_Modes *m = dm_modes();
  const dm_Region r = {m->autocast[type], m->cache_enabled, (uint8_t)type};
  m->autocast[type] = (dm_Autocast){enabled, (uint8_t)dtype};
  m->cache_enabled = cache;
  m->depth++;
  return r;
}

void dm_autocast_leave(dm_Region r) {
  dm_Modes *m = dm_modes();
  if (--m->depth == 0) cache_clear(m);
  m->autocast[r.device_type] = r.old;
  m->cache_enabled = r.old_cache;
}

dm_CastState dm_autocast_state(void) {
  const dm_Modes *m = dm_modes();
  dm_CastState s = {.cache_enabled = m->cache_enabled};
  memcpy(s.autocast, m->autocast, sizeof s.autocast);
  return s;
}

dm_CastState dm_autocast_off(int type) {
  dm_CastState s = dm_autocast_state();
  for (int i = 0; i < DM_N_DEVICE_TYPE; i++)
    if (type < 0 || type == i) s.autocast[i].enabled = false;
  return s;
}

static void put_in_force(dm_Modes *m, dm_CastState s) {
  memcpy(m->autocast, s.autocast, sizeof m->autocast);
  m->cache_enabled = s.cache_enabled;
}

dm_CastState dm_autocast_resume(dm_CastState s) {
  dm_Modes *m = dm_modes();
  const dm_CastState old = dm_autocast_state();
  put_in_force(m, s);
  m->depth++;
  return old;
}

void dm_autocast_go_back(dm_CastState old) {
  dm_Modes *m = dm_modes();
  if (--m->depth == 0) cache_clear(m);
  put_in_force(m, old);
}
