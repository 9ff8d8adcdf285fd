/* Pooling's attributes, the geometry of its windows along an axis, and the meaning
   of a code; for the kernels of every device. */
#ifndef DM_POOL_H
#define DM_POOL_H

#include "base/quotient.h"
#include "engine/op.h"

/* One axis of windows: element k of output o reads input o * stride - pad + k * dil.
   kernel 0 stands for adaptive windows, see dm_pool_adaptive_span. */
typedef struct dm_PoolAxis {
  int64_t in, out, kernel, stride, pad, dil;
} dm_PoolAxis;

/* Checks one axis (`name` for messages) and fills *a; `out` is floor or, in ceil
   mode, ceil of (in + 2 pad - dil (kernel - 1) - 1) / stride, plus 1. Fails where no
   window fits. */
dm_status dm_pool_axis_of(const dm_Call *c, const char *name, int64_t in, int64_t kernel,
                          int64_t stride, int64_t pad, int64_t dil, bool ceil_mode,
                          dm_PoolAxis *a);

/* The stride along axis i: none given (the kernel's size), one number for both axes,
   or two. */
static inline int64_t dm_pool_stride(const dm_Ints *stride, const int64_t kernel[2], int i) {
  return stride->n < 1 ? kernel[i] : stride->v[stride->n == 1 ? 0 : i];
}

/* The last two sizes of t, (H, W). */
static inline const int64_t *dm_plane_size(const dm_Tensor *t) {
  return t->shape + t->ndim - 2;
}

/* The first element of output o's window that lies inside the axis. */
static inline DM_HD int64_t dm_pool_first_inside(const dm_PoolAxis *a, int64_t o) {
  const int64_t before = a->pad - o * a->stride;
  return before > 0 ? (before + a->dil - 1) / a->dil : 0;
}

/* The flat position in the plane at which window (p, q) begins; with padding it may
   be negative. */
static inline DM_HD int64_t dm_pool_corner(const dm_PoolAxis *h, const dm_PoolAxis *w,
                                           int64_t p, int64_t q) {
  return (p * h->stride - h->pad) * w->in + q * w->stride - w->pad;
}
/* The distance of a code's element from the corner of its window, in the flat plane. */
static inline DM_HD int64_t dm_pool_position(const dm_PoolAxis *h, const dm_PoolAxis *w,
                                             int32_t code) {
  const int32_t across = (int32_t)w->kernel;
  return code / across * h->dil * w->in + code % across * w->dil;
}

/* The elements that a window of an average covers along one axis. */
typedef struct dm_PoolSpan {
  int64_t lo, hi, count; /* input elements [lo, hi); the axis's factor of the divisor */
} dm_PoolSpan;

/* The span of a window of fixed size. With include_pad the divisor counts the
   padding, but not what ceil_mode adds beyond it. */
static inline DM_HD dm_PoolSpan dm_pool_fixed_span(const dm_PoolAxis *a, bool include_pad,
                                                   int64_t o) {
  const int64_t lo = o * a->stride - a->pad, end = a->in + a->pad;
  const int64_t hi = lo + a->kernel < end ? lo + a->kernel : end;
  dm_PoolSpan s = {lo > 0 ? lo : 0, hi < a->in ? hi : a->in, hi - lo};
  if (!include_pad) s.count = s.hi - s.lo;
  return s;
}

/* The span of adaptive output o: [floor(o in / out), ceil((o + 1) in / out)), as in
   PyTorch. The outputs that cover input i are given by the same formula with in and
   out exchanged. */
static inline DM_HD dm_PoolSpan dm_pool_adaptive_span(int64_t in, int64_t out, int64_t o) {
  const int64_t lo = dm_quotient(o * in, out);
  const int64_t hi = dm_quotient((o + 1) * in + out - 1, out);
  const dm_PoolSpan s = {lo, hi, hi - lo};
  return s;
}

#endif
