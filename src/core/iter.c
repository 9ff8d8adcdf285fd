/* The strided iterator: see iter.h.

   Example: x (8,3,32,32) contiguous, plus a bias (1,3,1,1), into y like x. Dims 0 and 1 cannot
   be merged (the bias has stride 0 and 1 there), dims 2 and 3 can: the iterator has shape
   (8,3,1024), strides y (3072,1024,1), x the same, bias (0,1,0), and gives 24 runs of 1024
   elements. Contiguous operands of one shape become one dim, whatever their rank.

   Invariant after init: dims of size 1 are gone, unless that leaves none, and no two
   neighbours can be merged. */
#include "core/iter.h"

/* Dims of t[0] in the order `order`. */
static void init(dm_Iter *it, int n, dm_Tensor *const *t, const int *order) {
  it->n_op = n;
  it->numel = t[0]->numel;
  for (int i = 0; i < n; i++) {
    it->data[i] = dm_tensor_data(t[i]);
    it->size[i] = dm_dtype_sizes[t[i]->dtype];
  }
  int k = 0; /* dims of the iterator so far; k - 1 is the last one */
  const int ndim = t[0]->ndim;
  for (int o = 0; o < ndim; o++) {
    const int d = order ? order[o] : o;
    const int64_t size = t[0]->shape[d];
    if (size == 1) continue;
    int64_t s[DM_ITER_OPERANDS];
    bool merge = k > 0;
    for (int i = 0; i < n; i++) {
      const int dd = d - (ndim - t[i]->ndim);
      s[i] = dd < 0 || t[i]->shape[dd] == 1 ? 0 : t[i]->stride[dd];
      if (merge && it->stride[i][k - 1] != s[i] * size) merge = false;
    }
    if (merge) it->shape[k - 1] *= size;
    else it->shape[k++] = size;
    for (int i = 0; i < n; i++) it->stride[i][k - 1] = s[i];
  }
  if (k == 0) {
    it->shape[0] = 1;
    for (int i = 0; i < n; i++) it->stride[i][0] = 1;
    k = 1;
  }
  it->ndim = k;
}

void dm_iter_init(dm_Iter *it, int n, dm_Tensor *const *t) { init(it, n, t, NULL); }

/* Dims from the largest stride of t[0] to the least, equal ones as they are. */
void dm_iter_init_by_memory(dm_Iter *it, int n, dm_Tensor *const *t) {
  const dm_Tensor *const out = t[0];
  int order[DM_MAX_DIM];
  for (int d = 0; d < out->ndim; d++) {
    int at = d;
    for (; at > 0 && out->stride[order[at - 1]] < out->stride[d]; at--)
      order[at] = order[at - 1];
    order[at] = d;
  }
  init(it, n, t, order);
}

/* Where the operands' elements at an index lie. */
static void locate(const dm_Iter *it, const int64_t *at, char **ptr) {
  for (int i = 0; i < it->n_op; i++) {
    int64_t off = 0;
    for (int d = 0; d < it->ndim; d++) off += at[d] * it->stride[i][d];
    ptr[i] = it->data[i] + off * it->size[i];
  }
}

/* Only the first run can begin inside the last dim. Of the runs at one position of the dims
   before the last two each is a step away from the one before it. */
void dm_iter_range(const dm_Iter *it, int64_t begin, int64_t end, dm_RunFn *fn, void *ctx) {
  const int last = it->ndim - 1;
  const int64_t length = it->shape[last];
  /* at: the index of the next element, a number for each dim */
  int64_t at[DM_MAX_DIM], inner[DM_ITER_OPERANDS], step[DM_ITER_OPERANDS], rest = begin;
  char *ptr[DM_ITER_OPERANDS];
  for (int d = last; d >= 0; d--) {
    at[d] = rest % it->shape[d];
    rest /= it->shape[d];
  }
  for (int i = 0; i < it->n_op; i++) {
    inner[i] = it->stride[i][last];
    step[i] = last > 0 ? it->stride[i][last - 1] * it->size[i] : 0;
  }
  while (begin < end) {
    int64_t n = dm_min_i64(length - at[last], end - begin);
    locate(it, at, ptr);
    fn(ctx, ptr, inner, n);
    begin += n;
    if (begin == end) return;
    for (int i = 0; i < it->n_op; i++) ptr[i] -= at[last] * inner[i] * it->size[i];
    at[last] = 0;
    for (at[last - 1]++; begin < end && at[last - 1] < it->shape[last - 1]; begin += n) {
      for (int i = 0; i < it->n_op; i++) ptr[i] += step[i];
      n = dm_min_i64(length, end - begin);
      fn(ctx, ptr, inner, n);
      at[last - 1]++;
    }
    for (int d = last - 1; d > 0 && at[d] == it->shape[d]; d--) {
      at[d] = 0;
      at[d - 1]++;
    }
  }
}
