#include "engine/home.h"

#include "base/error.h"
#include "engine/state.h"

atomic_int dm_n_home;

void dm_home_give(dm_Tensor *leaf, dm_GradHome *home, uint64_t since) {
  home->oldest = 0;
  home->n_reader = 0;
  home->since = since;
  leaf->grad_home = home;
  atomic_fetch_add(&dm_n_home, 1);
}

void dm_home_take(dm_Tensor *leaf) {
  leaf->grad_home = NULL;
  atomic_fetch_sub(&dm_n_home, 1);
}

/* What a pass records, as a function that runs a part of the model again, is not counted by the
   number of its node: the same may come again, further down. */
void dm_home_note(dm_GradHome *home, uint64_t seq) {
  home->n_reader++;
  if (dm_thread_state()->in_backward) home->oldest = 1;
  else if (home->oldest == 0) home->oldest = seq;
}

void dm_home_leave(const dm_Node *n) {
  for (int i = 0; i < n->n_in; i++) {
    dm_GradHome *home = n->in[i].leaf ? n->in[i].leaf->grad_home : NULL;
    if (!home || n->seq < home->since) continue;
    if (--home->n_reader == 0) home->oldest = 0;
  }
}

/* Whether t lies in the home itself. */
static bool is_at(const dm_Tensor *t, const dm_GradHome *home) {
  return t->storage == home->at->storage && t->offset == home->at->offset &&
         t->dtype == home->at->dtype;
}

static dm_status copy_into(dm_Tensor *to, dm_Tensor *from) {
  enum { FEW = 1 << 14 }; /* elements, which an op would take longer to call than to copy */
  dm_Tensor *in[2] = {to, from};
  if (to->numel <= FEW && to->device.type == DM_CPU && from->device.type == DM_CPU &&
      to->dtype == from->dtype && dm_tensor_is_contiguous(from)) {
    to->storage->version++;
    return dm_tensor_copy_bytes(to, from, false);
  }
  return dm_call_inplace(DM_OP_copy, 2, in, NULL);
}

dm_status dm_home_show(dm_Tensor *leaf, const dm_GradHome *home) {
  dm_Tensor *shown;
  DM_TRY(dm_tensor_alias(home->at, &shown));
  dm_tensor_unref(&leaf->grad);
  leaf->grad = shown;
  return DM_OK;
}

dm_status dm_home_bring(dm_Tensor *leaf, const dm_GradHome *home) {
  if (is_at(leaf->grad, home)) return DM_OK;
  const uint8_t scaled = leaf->grad->flags & DM_T_SCALED;
  DM_TRY(copy_into(home->at, leaf->grad));
  DM_TRY(dm_home_show(leaf, home));
  leaf->grad->flags |= scaled;
  return DM_OK;
}

/* A leaf's dtype, shape and device change when its data are exchanged. */
static dm_status check_home(const dm_Tensor *leaf, const dm_Tensor *at) {
  char a[16], b[16];
  if (DM_LIKELY(at->dtype == leaf->dtype && dm_same_shape(at, leaf) &&
                dm_device_eq(at->device, leaf->device)))
    return DM_OK;
  return dm_fail(
      DM_ESTATE,
      "backward: a parameter is %s %s on %s, and was %s %s on %s when the memory for "
      "its gradient was made; hint: model:to(...) before DistributedDataParallel",
      DM_SHAPE(leaf), dm_dtype_name((dm_DType)leaf->dtype), dm_device_name(leaf->device, a),
      DM_SHAPE(at), dm_dtype_name((dm_DType)at->dtype), dm_device_name(at->device, b));
}

dm_status dm_home_add(dm_Tensor *leaf, dm_GradHome *home, dm_Tensor *g) {
  if (home->at) DM_TRY(check_home(leaf, home->at));
  if (home->sent)
    return dm_fail(DM_ESTATE,
                   "backward: a gradient of shape %s comes after those of its parameter have "
                   "been sent to the other processes: a part of the graph is walked again; "
                   "hint: {retain_graph = true} in the pass before",
                   DM_SHAPE(g));
  if (!home->at) DM_TRY(home->homes->supply(home->homes, home));
  if (!leaf->grad) {
    DM_TRY(copy_into(home->at, g));
    return dm_home_show(leaf, home);
  }
  DM_TRY(dm_home_bring(leaf, home));
  dm_Tensor *in[2] = {leaf->grad, g};
  return dm_call_inplace(DM_OP_add, 2, in, NULL);
}

void dm_homes_unref(dm_GradHomes *h) {
  if (--h->refs == 0) h->drop(h);
}
