/* roll as copies of views, for every device: along each rolled dim, the last elements come to
   the front and the others move behind them. */
#ifndef DM_ROLL_H
#define DM_ROLL_H

#include "core/copy.h"
#include "op/strided.h"

/* Fills in the sizes of the dims that roll sees, t's or the one of its flattened elements, and
   how far each is shifted, 0 to size - 1. Returns how many dims these are. */
static inline int dm_roll_shifts(const dm_RollAttr *a, const dm_Tensor *t, int64_t *shape,
                                 int64_t *shift) {
  const bool flat = a->dims.n <= 0;
  const int ndim = flat ? 1 : t->ndim;
  for (int d = 0; d < ndim; d++) {
    shape[d] = flat ? t->numel : t->shape[d];
    shift[d] = 0;
  }
  for (int i = 0; i < a->shifts.n; i++) { /* a dim may be given more than once */
    const int64_t dim = flat ? 0 : a->dims.v[i], d = dim < 0 ? dim + ndim : dim;
    const int64_t n = shape[d] > 0 ? shape[d] : 1, k = a->shifts.v[i] % n;
    shift[d] = (shift[d] + k + n) % n;
  }
  return ndim;
}

/* Output 0 = input 0 rolled, by `copy` of one or two parts a dim. */
static inline dm_status dm_roll_views(dm_Call *c,
                                      dm_status (*copy)(dm_Tensor *to, dm_Tensor *from)) {
  const dm_RollAttr *a = DM_ATTR(dm_RollAttr, c);
  dm_Tensor *out = c->out[0], *t = c->in[0], *dense = NULL;
  int64_t shape[DM_MAX_DIM], shift[DM_MAX_DIM], flat = 1;
  const int ndim = dm_roll_shifts(a, t, shape, shift);
  if (t->numel == 0) return DM_OK;
  if (a->dims.n <= 0) {
    DM_TRY(dm_dense_new(t, &dense));
    t = dense;
  }
  const int64_t *from_step = dense ? &flat : t->stride, *to_step = dense ? &flat : out->stride;
  dm_status st = DM_OK;
  /* Bit d of `front` is set for the part that comes to the front along dim d. */
  for (unsigned front = 0; front < 1u << ndim && st == DM_OK; front++) {
    int64_t part[DM_MAX_DIM], to_at = out->offset, from_at = t->offset;
    bool any = true;
    for (int d = 0; d < ndim; d++) {
      const int64_t k = shift[d], n = shape[d];
      const bool first = front & 1u << d;
      any = any && (!first || k > 0);
      part[d] = first ? k : n - k;
      to_at += first ? 0 : k * to_step[d];
      from_at += first ? (n - k) * from_step[d] : 0;
    }
    if (!any) continue;
    dm_Tensor to = dm_view_of(out, ndim, part, to_step, to_at);
    dm_Tensor from = dm_view_of(t, ndim, part, from_step, from_at);
    st = copy(&to, &from);
  }
  if (dense) dm_tensor_unref(&dense);
  return st;
}

#endif
