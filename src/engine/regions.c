#include "engine/regions.h"

#include "base/alloc.h"
#include "base/error.h"
#include "engine/call.h"

/* Elements from .. from + n - 1 along the dim. */
typedef struct Region {
  int64_t from, n;
  dm_Tensor *gy; /* owned */
} Region;

typedef struct dm_Regions {
  const void *pass;
  const dm_OpInfo *op;
  int out, dim, n, capacity;
  int64_t low, high, covered; /* the bounds of all, and how many of dim's elements they have */
  Region *list;
} dm_Regions;

/* The dim and the elements that n's view takes of its input, which has that meta. */
static void read_view(const dm_Node *n, const dm_Meta *m, int *dim, Region *r) {
  int64_t d;
  if (n->op == &dm_ops[DM_OP_select]) {
    const dm_SelectAttr *a = n->attr;
    d = a->dim;
    r->from = a->index;
    r->n = 1;
  } else {
    const dm_NarrowAttr *a = n->attr;
    d = a->dim;
    r->from = a->start;
    r->n = a->length;
  }
  *dim = (int)(d < 0 ? d + m->ndim : d);
  if (r->from < 0) r->from += m->shape[*dim];
}

static bool overlaps(const dm_Regions *all, const Region *r) {
  if (r->from >= all->high || r->from + r->n <= all->low) return false;
  for (int i = 0; i < all->n; i++) {
    const Region *other = &all->list[i];
    if (r->from < other->from + other->n && other->from < r->from + r->n) return true;
  }
  return false;
}

/* Can r wait with the others? */
static bool fits(const dm_Regions *all, const dm_Node *n, const void *pass, int dim,
                 const Region *r) {
  return all->pass == pass && all->op == n->op && all->out == n->in[0].out && all->dim == dim &&
         all->list[0].gy->dtype == r->gy->dtype && !overlaps(all, r);
}

static dm_status append(dm_Regions *all, Region r) {
  if (all->n == all->capacity) {
    const int capacity = all->capacity ? 2 * all->capacity : 4;
    Region *more = dm_alloc((int64_t)sizeof *more * capacity);
    if (!more) return dm_fail(DM_EMEM, "backward: out of memory");
    for (int i = 0; i < all->n; i++) more[i] = all->list[i];
    dm_free(all->list);
    all->list = more;
    all->capacity = capacity;
  }
  all->low = all->n ? dm_min_i64(all->low, r.from) : r.from;
  all->high = all->n ? dm_max_i64(all->high, r.from + r.n) : r.from + r.n;
  all->covered += r.n;
  all->list[all->n++] = r;
  return DM_OK;
}

dm_status dm_regions_add(const dm_Node *n, const void *pass, bool *waits) {
  dm_Node *to = n->in[0].node;
  dm_Tensor *gy = n->gy[0];
  const dm_Meta *m = dm_meta(n->metas, 0);
  Region r = {.gy = gy};
  int dim;
  *waits = false;
  if (gy->dtype != m->dtype || !dm_device_eq(gy->device, m->device)) return DM_OK;
  read_view(n, m, &dim, &r);
  if (to->regions && !fits(to->regions, n, pass, dim, &r)) return DM_OK;
  if (!to->regions) {
    to->regions = dm_alloc_zero(sizeof *to->regions);
    if (!to->regions) return dm_fail(DM_EMEM, "backward: out of memory");
    to->regions->pass = pass;
    to->regions->op = n->op;
    to->regions->out = n->in[0].out;
    to->regions->dim = dim;
  }
  const dm_status st = append(to->regions, r);
  if (st == DM_OK) dm_tensor_ref(gy);
  else if (to->regions->n == 0) dm_regions_drop(to);
  *waits = st == DM_OK;
  return st;
}

bool dm_regions_wait(const dm_Node *n, const void *pass, int out) {
  const dm_Regions *all = n->regions;
  return all && all->n > 0 && all->pass == pass && (out < 0 || all->out == out);
}

/* Copies a gradient to its region of `whole`. */
static dm_status put(const dm_Regions *all, const Region *r, dm_Tensor *whole) {
  const dm_SelectAttr index = {all->dim, r->from};
  const dm_NarrowAttr range = {all->dim, r->from, r->n};
  const bool selects = all->op == &dm_ops[DM_OP_select];
  dm_Tensor *region;
  DM_TRY(dm_call((int)dm_op_id(all->op), 1, &whole,
                 selects ? (const void *)&index : (const void *)&range, &region));
  dm_Tensor *in[2] = {region, r->gy};
  const dm_status st = dm_call_inplace(DM_OP_copy, 2, in, NULL);
  dm_tensor_unref(&region);
  return st;
}

dm_status dm_regions_join(dm_Node *n) {
  const dm_Regions *all = n->regions;
  const dm_Meta *m = dm_meta(n->metas, n->n_in + all->out);
  dm_Tensor *whole = NULL;
  dm_status st = dm_tensor_new((dm_DType)m->dtype, m->ndim, m->shape, m->device, &whole);
  if (st == DM_OK && all->covered < m->shape[all->dim])
    st = dm_call_inplace(DM_OP_zero, 1, &whole, NULL);
  for (int i = 0; i < all->n && st == DM_OK; i++) st = put(all, &all->list[i], whole);
  if (st == DM_OK) n->gy[all->out] = whole;
  else dm_tensor_unref(&whole);
  dm_regions_drop(n);
  return st;
}

void dm_regions_drop(dm_Node *n) {
  dm_Regions *all = n->regions;
  if (!all) return;
  for (int i = 0; i < all->n; i++) dm_tensor_unref(&all->list[i].gy);
  dm_free(all->list);
  dm_free(all);
  n->regions = NULL;
}
