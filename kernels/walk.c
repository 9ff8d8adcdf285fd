/* The host's half of walks: shapes, strides and divisors; see walk.h. */
#include "kernels/walk.h"

dm_Divisor dm_divisor(int64_t d) {
  dm_Divisor v = {(uint32_t)d, 0, 0};
  while ((INT64_C(1) << v.shift) < d) v.shift++;
  const uint64_t one = 1;
  v.magic = (uint32_t)(((one << 32) * ((one << v.shift) - (uint64_t)d)) / (uint64_t)d + 1);
  return v;
}

void dm_walk_ready(dm_WalkShape *w) {
  w->wide = w->numel >= INT64_C(1) << 31;
  for (int d = 0; d < w->ndim && !w->wide && w->numel > 0; d++)
    w->div[d] = dm_divisor(w->shape[d]);
}

/* ---- of all operands ---- */

/* Exchanges dims d and d + 1 of an iteration. */
static void swap(dm_Iter *it, int d) {
  const int64_t size = it->shape[d];
  it->shape[d] = it->shape[d + 1];
  it->shape[d + 1] = size;
  for (int i = 0; i < it->n_op; i++) {
    const int64_t step = it->stride[i][d];
    it->stride[i][d] = it->stride[i][d + 1];
    it->stride[i][d + 1] = step;
  }
}

static void sort_by_memory(dm_Iter *it) {
  /* Insertion sort: there are few dims. */
  for (int n = 1; n < it->ndim; n++)
    for (int d = n; d > 0 && it->stride[0][d - 1] < it->stride[0][d]; d--) swap(it, d - 1);
  int k = 0; /* the last dim kept */
  for (int d = 1; d < it->ndim; d++) {
    bool merge = true;
    for (int i = 0; i < it->n_op; i++)
      merge &= it->stride[i][k] == it->stride[i][d] * it->shape[d];
    if (!merge) k++;
    it->shape[k] = merge ? it->shape[k] * it->shape[d] : it->shape[d];
    for (int i = 0; i < it->n_op; i++) it->stride[i][k] = it->stride[i][d];
  }
  it->ndim = k + 1;
}

void dm_walk_fill(dm_WalkShape *w, dm_WalkStride *stride, int n, dm_Tensor *const *t,
                  void **data, bool by_memory) {
  dm_Iter it;
  dm_iter_init(&it, n, t);
  if (by_memory) sort_by_memory(&it);
  w->ndim = it.ndim;
  w->numel = it.numel;
  w->wide = it.numel >= INT64_C(1) << 31;
  for (int d = 0; d < it.ndim; d++) {
    w->shape[d] = it.shape[d];
    if (!w->wide) w->div[d] = dm_divisor(it.shape[d]);
    for (int k = 0; k < n; k++) stride[k][d] = it.stride[k][d];
  }
  for (int k = 0; k < n; k++) data[k] = it.data[k];
}

bool dm_walk_pack(dm_WalkShape *w, dm_WalkStride *stride, int n, void *const *data,
                  const int *bytes, int V) {
  const int last = w->ndim - 1;
  if (last < 0 || stride[0][last] != 1 || (last > 0 && w->shape[last] % V != 0)) return false;
  for (int k = 0; k < n; k++) {
    if (!data[k] || stride[k][last] == 0) continue;
    if (stride[k][last] != 1) return false;
    if ((uintptr_t)data[k] % (uintptr_t)(V * bytes[k]) != 0) return false;
    for (int d = 0; d < last; d++)
      if (stride[k][d] % V != 0) return false;
  }
  for (int k = 0; k < n; k++) stride[k][last] *= V;
  w->shape[last] = (w->shape[last] + V - 1) / V;
  w->numel = (w->numel + V - 1) / V;
  dm_walk_ready(w);
  return true;
}

/* ---- of reductions ---- */

void dm_walk_dims(dm_WalkShape *w, dm_WalkStride *stride, const dm_Tensor *x, unsigned mask,
                  bool ordered) {
  int dim[DM_MAX_DIM], n = 0;
  w->ndim = 0;
  w->numel = 1;
  for (int d = 0; d < x->ndim; d++) {
    if (!(mask >> d & 1u) || x->shape[d] == 1) continue;
    int k = n++;
    for (; k > 0 && !ordered && x->stride[dim[k - 1]] < x->stride[d]; k--) dim[k] = dim[k - 1];
    dim[k] = d;
  }
  for (int i = 0; i < n; i++) {
    const int64_t size = x->shape[dim[i]], step = x->stride[dim[i]];
    w->numel *= size;
    if (w->ndim > 0 && (*stride)[w->ndim - 1] == step * size) w->shape[w->ndim - 1] *= size;
    else w->shape[w->ndim++] = size;
    (*stride)[w->ndim - 1] = step;
  }
  if (w->ndim == 0 || w->numel == 0) {
    w->ndim = 1;
    w->shape[0] = w->numel;
    (*stride)[0] = 0;
  }
}
