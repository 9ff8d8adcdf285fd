/* Leaves of a recorded step: leaves.h. */
#include "engine/leaves.h"

#include <string.h>

#include "base/alloc.h"

atomic_int dm_leaves_noting;
static _Thread_local dm_Leaves *noting; /* this thread's; or NULL */

static const void *data_of(const dm_Tensor *t) { return t ? dm_tensor_data(t) : NULL; }

static bool is_valid(const dm_Tensor *t, const dm_Tensor *copy) {
  return copy && copy->storage->version == t->storage->version;
}

static bool grow(dm_Leaves *l) {
  if (l->n < l->capacity) return true;
  const int64_t capacity = l->capacity ? 2 * l->capacity : 64;
  dm_Leaf *list = dm_alloc(capacity * (int64_t)sizeof *list);
  if (!list) return false;
  if (l->n > 0) memcpy(list, l->list, (size_t)l->n * sizeof *list);
  dm_free(l->list);
  l->list = list;
  l->capacity = capacity;
  return true;
}

/* The record of t, as it was before the step where this is the first time that it is seen; or
   NULL. */
static dm_Leaf *record_of(dm_Tensor *t) {
  dm_Leaves *l = noting;
  for (int64_t i = 0; i < l->n; i++)
    if (l->list[i].t == t) return &l->list[i];
  if (!grow(l)) {
    l->has_failed = true;
    return NULL;
  }
  dm_Leaf *leaf = &l->list[l->n++];
  *leaf = (dm_Leaf){.t = dm_tensor_ref(t),
                    .data = data_of(t),
                    .gen = t->gen,
                    .version = t->storage->version,
                    .requires_grad = t->flags & DM_T_REQUIRES_GRAD,
                    .grad_data = data_of(t->grad)};
  if (is_valid(t, t->low)) leaf->low.data = data_of(t->low);
  if (is_valid(t, t->last)) leaf->last.data = data_of(t->last);
  return leaf;
}

void dm_leaves_note_inputs(int n, dm_Tensor *const *in) {
  if (!noting) return;
  for (int i = 0; i < n; i++) {
    dm_Tensor *t = in[i];
    if (t && !t->node && !t->base && t->flags & (DM_T_REQUIRES_GRAD | DM_T_PARAMETER))
      (void)record_of(t);
  }
}

void dm_leaves_note_grad(dm_Tensor *t, bool drops) {
  if (!noting || t->node) return;
  dm_Leaf *leaf = record_of(t);
  if (!leaf) return;
  leaf->is_dropped |= drops && !leaf->is_touched;
  leaf->is_touched = true;
}

void dm_leaves_begin(dm_Leaves *l) {
  noting = l;
  atomic_fetch_add(&dm_leaves_noting, 1);
}

/* The step's marks, as they are at its end. */
static void settle(dm_Leaf *leaf) {
  dm_Tensor *t = leaf->t;
  leaf->rise = t->storage->version - leaf->version;
  leaf->low_dtype = t->low_dtype;
  if (data_of(t->low) != leaf->low.data) leaf->low.data = NULL; /* not read, since it went */
  if (data_of(t->last) != leaf->last.data) leaf->last.data = NULL;
  leaf->low.is_valid = is_valid(t, t->low);
  leaf->last.is_valid = is_valid(t, t->last);
  leaf->is_replaced = leaf->is_touched && data_of(t->grad) != leaf->grad_data;
  if (leaf->is_touched && leaf->is_dropped) leaf->is_replaced = true;
  if (leaf->is_replaced && t->grad) leaf->grad = dm_tensor_ref(t->grad);
  if (t->grad) leaf->grad_flags = t->grad->flags & DM_T_SCALED;
}

/* The step was not done: a copy that it has marked as valid is not. */
static void take_back(const dm_Leaf *leaf) {
  dm_Tensor *t = leaf->t;
  if (data_of(t->low) != leaf->low.data) dm_tensor_unref(&t->low);
  if (data_of(t->last) != leaf->last.data) dm_tensor_unref(&t->last);
  if (leaf->is_touched && data_of(t->grad) != leaf->grad_data) dm_tensor_unref(&t->grad);
}

void dm_leaves_end(dm_Leaves *l, bool keep) {
  if (noting != l) return;
  noting = NULL;
  atomic_fetch_sub(&dm_leaves_noting, 1);
  for (int64_t i = 0; i < l->n; i++) {
    if (keep) settle(&l->list[i]);
    else take_back(&l->list[i]);
  }
  if (!keep) dm_leaves_clear(l);
}

/* Writes t's copy anew in its place, which launches read. */
static dm_status renew(dm_Tensor *t, dm_Tensor *copy) {
  dm_ThreadState *ts = dm_thread_state();
  dm_Tensor *in[2] = {copy, t};
  const bool grad = ts->grad;
  ts->grad = false;
  const dm_status st = dm_call_inplace(DM_OP_copy, 2, in, NULL);
  ts->grad = grad;
  if (st == DM_OK) copy->storage->version = t->storage->version;
  return st;
}

static dm_status check_copy(const dm_LeafCopy *c, dm_Tensor *t, dm_Tensor *copy, bool *ready) {
  if (!c->data) return DM_OK;
  if (data_of(copy) != c->data) *ready = false;
  else if (!is_valid(t, copy)) return renew(t, copy);
  return DM_OK;
}

static dm_status check(const dm_Leaf *leaf, bool *ready) {
  dm_Tensor *t = leaf->t;
  if (t->gen != leaf->gen || data_of(t) != leaf->data ||
      leaf->requires_grad != !!(t->flags & DM_T_REQUIRES_GRAD))
    *ready = false;
  if (leaf->is_touched && !leaf->is_dropped && data_of(t->grad) != leaf->grad_data)
    *ready = false;
  if (!*ready) return DM_OK;
  DM_TRY(check_copy(&leaf->low, t, t->low, ready));
  return check_copy(&leaf->last, t, t->last, ready);
}

dm_status dm_leaves_ready(const dm_Leaves *l, bool *ready) {
  *ready = true;
  for (int64_t i = 0; i < l->n && *ready; i++) DM_TRY(check(&l->list[i], ready));
  return DM_OK;
}

void dm_leaves_launched(const dm_Leaves *l) {
  for (int64_t i = 0; i < l->n; i++) {
    const dm_Leaf *leaf = &l->list[i];
    dm_Tensor *t = leaf->t;
    t->storage->version += leaf->rise;
    t->low_dtype = leaf->low_dtype;
    if (t->low && leaf->low.is_valid) t->low->storage->version = t->storage->version;
    if (t->last && leaf->last.is_valid) t->last->storage->version = t->storage->version;
    if (leaf->is_replaced && t->grad != leaf->grad) {
      dm_tensor_unref(&t->grad);
      if (leaf->grad) t->grad = dm_tensor_ref(leaf->grad);
    }
    if (leaf->is_touched && t->grad)
      t->grad->flags = (uint8_t)((t->grad->flags & ~DM_T_SCALED) | leaf->grad_flags);
  }
}

void dm_leaves_clear(dm_Leaves *l) {
  for (int64_t i = 0; i < l->n; i++) {
    dm_tensor_unref(&l->list[i].t);
    dm_tensor_unref(&l->list[i].grad);
  }
  dm_free(l->list);
  *l = (dm_Leaves){0};
}
