/* The autocast state: see autocast.h.

   The cache holds 16-bit casts of float32 leaves that require a gradient, so that a weight
   which several ops of a region use is converted once. Its key is the tensor, the tensor's
   version, the count of its exchanges (gen) and the dtype: an in-place change of the weight,
   or other data for it, makes the entry invalid. The cache owns the source as well as the
   cast, so the address of a freed tensor cannot match a new one. An entry stays until the
   last region closes; there is one for each weight and dtype. PyTorch's `cached_casts` works
   the same way. */
#include "engine/autocast.h"

#include "base/alloc.h"

/* ---- the cache: open addressing, a power of two of slots, half of them free ---- */

typedef struct Entry {
  dm_Tensor *source, *cast; /* NULL: a free slot */
  uint32_t version, gen;
} Entry;

typedef struct dm_CastCache {
  int n, capacity;
  Entry *entries;
} dm_CastCache;

static void drop_entries(dm_CastCache *c) {
  for (int i = 0; i < c->capacity; i++) {
    if (!c->entries[i].source) continue;
    dm_tensor_unref(&c->entries[i].source);
    dm_tensor_unref(&c->entries[i].cast);
  }
  dm_free(c->entries);
}

void dm_autocast_clear_cache(dm_AutocastState *a) {
  dm_CastCache *c = a->cache;
  if (!c) return;
  a->cache = NULL;
  drop_entries(c);
  dm_free(c);
}

/* The slot of that cast, of any version; or the free slot that it would take. */
static Entry *cache_slot(const dm_CastCache *c, const dm_Tensor *t, dm_DType to) {
  const uint64_t hash = ((uint64_t)(uintptr_t)t ^ (uint64_t)to) * 0x9E3779B97F4A7C15u;
  for (uint32_t i = (uint32_t)(hash >> 32);; i++) {
    Entry *e = &c->entries[i & (uint32_t)(c->capacity - 1)];
    if (!e->source || (e->source == t && e->cast->dtype == to)) return e;
  }
}

dm_Tensor *dm_autocast_find(const dm_AutocastState *a, const dm_Tensor *t, dm_DType to) {
  if (!a->cache || a->cache->capacity == 0) return NULL; /* 0: an allocation failed */
  const Entry *e = cache_slot(a->cache, t, to);
  return e->source && e->version == t->storage->version && e->gen == t->gen ? e->cast : NULL;
}

/* Has everybody else dropped the weight? This entry and its cast's history hold the last two
   references then. */
static bool is_unused(const Entry *e) {
  return atomic_load(&e->source->refs) <= 2 && atomic_load(&e->cast->refs) == 1;
}

/* Moves the entries that are still in use to a table of at least four times their number. */
static bool cache_grow(dm_CastCache *c) {
  dm_CastCache next = {.capacity = 16};
  for (int i = 0; i < c->capacity; i++)
    if (c->entries[i].source && !is_unused(&c->entries[i])) next.n++;
  while (next.capacity < 4 * next.n) next.capacity *= 2;
  next.entries = dm_alloc_zero((int64_t)sizeof(Entry) * next.capacity);
  if (!next.entries) return false;
  for (int i = 0; i < c->capacity; i++) {
    Entry *e = &c->entries[i];
    if (!e->source || is_unused(e)) continue;
    *cache_slot(&next, e->source, (dm_DType)e->cast->dtype) = *e;
    *e = (Entry){NULL, NULL, 0, 0};
  }
  drop_entries(c);
  *c = next;
  return true;
}

void dm_autocast_add(dm_AutocastState *a, dm_Tensor *t, dm_Tensor *cast) {
  if (!a->cache && !(a->cache = dm_alloc_zero(sizeof *a->cache))) return;
  dm_CastCache *c = a->cache;
  if (2 * c->n >= c->capacity && !cache_grow(c)) return;
  Entry *e = cache_slot(c, t, (dm_DType)cast->dtype);
  if (e->source) dm_tensor_unref(&e->cast); /* of an older version */
  else c->n++, e->source = dm_tensor_ref(t);
  e->cast = dm_tensor_ref(cast);
  if (t->storage->lent == DM_LENT) cast->storage->lent = DM_LENT; /* it can be made again */
  e->version = t->storage->version;
  e->gen = t->gen;
}

/* ---- policies and settings: counted references ---- */

dm_Policies *dm_policies_ref(dm_Policies *p) {
  if (p) dm_hold(&p->refs);
  return p;
}

void dm_policies_unref(dm_Policies **p) {
  if (*p && dm_let_go(&(*p)->refs)) dm_free(*p);
  *p = NULL;
}

static void ref_policies(const dm_CastState *s) {
  for (int i = 0; i < DM_N_DEVICE_TYPE; i++) dm_policies_ref(s->autocast[i].policies);
}

void dm_cast_state_drop(dm_CastState *s) {
  for (int i = 0; i < DM_N_DEVICE_TYPE; i++) dm_policies_unref(&s->autocast[i].policies);
}

void dm_autocast_init(dm_AutocastState *a) {
  *a = (dm_AutocastState){.now.cache_enabled = true};
  a->now.autocast[DM_CPU].dtype = DM_BF16;
  a->now.autocast[DM_CUDA].dtype = DM_F16;
}

void dm_autocast_inherit(dm_AutocastState *a, const dm_AutocastState *from) {
  *a = (dm_AutocastState){.now = from->now, .masked = from->masked, .casting = from->casting};
  ref_policies(&a->now);
}

void dm_autocast_clear(dm_AutocastState *a) {
  a->regions = NULL;
  dm_autocast_clear_cache(a);
  dm_cast_state_drop(&a->now);
}

/* ---- regions ---- */

void dm_autocast_enter(dm_AutocastState *a, dm_Region *r, dm_DeviceType type, dm_Autocast now,
                       bool cache) {
  *r = (dm_Region){a->regions, a->now.autocast[type], a->now.cache_enabled, (uint8_t)type};
  dm_policies_ref(now.policies);
  a->now.autocast[type] = now;
  a->now.cache_enabled = cache;
  a->regions = r;
}

static void clear_at_end(dm_AutocastState *a) {
  if (!a->regions && a->resumed == 0) dm_autocast_clear_cache(a);
}

/* The settings from before r are stored where those of r were: in a->now, or in the region
   that was opened after r and would have restored them. */
void dm_autocast_leave(dm_AutocastState *a, dm_Region *r) {
  dm_Autocast *state = &a->now.autocast[r->device_type];
  bool *cache = &a->now.cache_enabled;
  dm_Region **at = &a->regions;
  for (; *at && *at != r; at = &(*at)->outer) {
    if ((*at)->device_type == r->device_type) state = &(*at)->old;
    cache = &(*at)->old_cache;
  }
  if (!*at) { /* dm_autocast_clear came first */
    dm_policies_unref(&r->old.policies);
    return;
  }
  dm_policies_unref(&state->policies);
  *state = r->old;
  *cache = r->old_cache;
  *at = r->outer;
  clear_at_end(a);
}

/* ---- the settings as a value ---- */

dm_CastState dm_autocast_copy(const dm_AutocastState *a) {
  ref_policies(&a->now);
  return a->now;
}

dm_CastState dm_autocast_off(const dm_AutocastState *a, int type) {
  dm_CastState s = dm_autocast_copy(a);
  for (int i = 0; i < DM_N_DEVICE_TYPE; i++)
    if (type < 0 || type == i) s.autocast[i].enabled = false;
  return s;
}

dm_CastState dm_autocast_resume(dm_AutocastState *a, dm_CastState s) {
  const dm_CastState old = a->now; /* the caller gets its references */
  ref_policies(&s);
  a->now = s;
  a->resumed++;
  return old;
}

void dm_autocast_restore(dm_AutocastState *a, dm_CastState old) {
  dm_cast_state_drop(&a->now);
  a->now = old;
  a->resumed--;
  clear_at_end(a);
}
