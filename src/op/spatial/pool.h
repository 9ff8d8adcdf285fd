/* Pooling's windows: what they are asked to be, where they lie along an axis, and
   what a code means; for the kernels of every device. */
#ifndef DM_POOL_H
#define DM_POOL_H

#include "base/quotient.h"
#include "engine/op.h"

typedef struct dm_MaxPoolAttr {
  int64_t kernel[2];
  dm_Ints stride;
  int64_t padding[2], dilation[2], ceil_mode;
} dm_MaxPoolAttr;
typedef struct dm_MaxPoolSizedAttr {
  dm_MaxPoolAttr max;
  int64_t size[2]; /* of the input plane */
} dm_MaxPoolSizedAttr;

typedef struct dm_AvgPoolAttr {
  int64_t kernel[2];
  dm_Ints stride;
  int64_t padding[2], ceil_mode, count_include_pad;
  dm_OptNum divisor;
} dm_AvgPoolAttr;
typedef struct dm_AvgPoolSizedAttr {
  dm_AvgPoolAttr avg;
  int64_t size[2]; /* of the input plane */
} dm_AvgPoolSizedAttr;

typedef struct dm_PoolSizeAttr {
  int64_t size[2];
} dm_PoolSizeAttr;

/* One axis of windows: output o, element k looks at o * stride - pad + k * dil.
   kernel == 0: adaptive windows, see dm_pool_adaptive_span. */
typedef struct dm_PoolAxis {
  int64_t in, out, kernel, stride, pad, dil;
} dm_PoolAxis;

/* Fails, by the call's name and the axis's, where no window fits. */
dm_status dm_pool_axis_of(const dm_Call *c, const char *name, int64_t in, int64_t kernel,
                          int64_t stride, int64_t pad, int64_t dil, bool ceil_mode,
                          dm_PoolAxis *a);

/* stride: none given (the kernel's size), one number, or two */
static inline int64_t dm_pool_stride(const dm_Ints *stride, const int64_t kernel[2], int i) {
  return stride->n < 1 ? kernel[i] : stride->v[stride->n == 1 ? 0 : i];
}

static inline const int64_t *dm_plane_size(const dm_Tensor *t) {
  return t->shape + t->ndim - 2;
}

/* The first window element inside the axis, for output o. */
static inline DM_HD int64_t dm_pool_first_inside(const dm_PoolAxis *a, int64_t o) {
  const int64_t before = a->pad - o * a->stride;
  return before > 0 ? (before + a->dil - 1) / a->dil : 0;
}

/* Where in its flat plane the window (p,q) begins; may lie before it. */
static inline DM_HD int64_t dm_pool_corner(const dm_PoolAxis *h, const dm_PoolAxis *w,
                                           int64_t p, int64_t q) {
  return (p * h->stride - h->pad) * w->in + q * w->stride - w->pad;
}
/* And how far from there the element of a code is. */
static inline DM_HD int64_t dm_pool_position(const dm_PoolAxis *h, const dm_PoolAxis *w,
                                             int32_t code) {
  const int32_t across = (int32_t)w->kernel;
  return code / across * h->dil * w->in + code % across * w->dil;
}

/* What a window of a mean covers of one axis. */
typedef struct dm_PoolSpan {
  int64_t lo, hi, count; /* input elements [lo, hi); what the axis gives the divisor */
} dm_PoolSpan;

/* A window counts its padding, but not what ceil_mode adds beyond it. */
static inline DM_HD dm_PoolSpan dm_pool_fixed_span(const dm_PoolAxis *a, bool include_pad,
                                                   int64_t o) {
  const int64_t lo = o * a->stride - a->pad, end = a->in + a->pad;
  const int64_t hi = lo + a->kernel < end ? lo + a->kernel : end;
  dm_PoolSpan s = {lo > 0 ? lo : 0, hi < a->in ? hi : a->in, hi - lo};
  if (!include_pad) s.count = s.hi - s.lo;
  return s;
}

/* Output o covers [floor(o in / out), ceil((o + 1) in / out)). The outputs that
   cover input i are the same with in and out exchanged. */
static inline DM_HD dm_PoolSpan dm_pool_adaptive_span(int64_t in, int64_t out, int64_t o) {
  const int64_t lo = dm_quotient(o * in, out);
  const int64_t hi = dm_quotient((o + 1) * in + out - 1, out);
  const dm_PoolSpan s = {lo, hi, hi - lo};
  return s;
}

#endif
