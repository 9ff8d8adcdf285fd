/* What constant and random tensors share: their sizes, their rule, and how a count
   runs; for the kernels of every device. */
#ifndef DM_CREATE_H
#define DM_CREATE_H

#include "engine/op.h"

typedef struct dm_SizedAttr {
  dm_Ints size;
  int64_t dtype, device;
} dm_SizedAttr;

typedef struct dm_FullAttr {
  dm_Ints size;
  double value;
  int64_t dtype, device;
} dm_FullAttr;

typedef struct dm_LikeAttr {
  int64_t dtype, device; /* negative: x's */
} dm_LikeAttr;

typedef struct dm_FullLikeAttr {
  double value;
  dm_LikeAttr like;
} dm_FullLikeAttr;

typedef struct dm_ArangeAttr {
  double first;
  dm_OptNum last;
  double step;
  int64_t dtype, device;
} dm_ArangeAttr;

typedef struct dm_LinspaceAttr {
  double start, stop;
  int64_t steps, dtype, device;
} dm_LinspaceAttr;

typedef struct dm_EyeAttr {
  int64_t n, m, dtype, device;
} dm_EyeAttr;

/* Numbers at equal distances; from element `mirror` on counted back from stop. */
typedef struct dm_Ramp {
  double start, step, stop;
  int64_t mirror;
} dm_Ramp;

/* Element i of n. */
static inline DM_HD double dm_ramp_at(dm_Ramp r, int64_t i, int64_t n) {
  return i < r.mirror ? r.start + (double)i * r.step : r.stop - (double)(n - 1 - i) * r.step;
}

/* The one argument of arange(n) is a count; with two, the last belongs to the
   row when positions count from 1, as in Lua's for, and not when from 0. */
static inline double dm_arange_first(int base, const dm_ArangeAttr *a) {
  return a->last.set ? a->first : base;
}
static inline dm_Ramp dm_arange_ramp(int base, const dm_ArangeAttr *a) {
  const dm_Ramp r = {dm_arange_first(base, a), a->step, 0, INT64_MAX};
  return r;
}
/* Each half counts from its own end: both ends are met exactly. */
static inline dm_Ramp dm_linspace_ramp(const dm_LinspaceAttr *a) {
  const double step = a->steps > 1 ? (a->stop - a->start) / (double)(a->steps - 1) : 0;
  const dm_Ramp r = {a->start, step, a->stop, a->steps > 1 ? a->steps / 2 : 1};
  return r;
}

/* Output 0: `size`, of dtype (or `standard` when none is given), on device. */
void dm_out_sized(dm_Call *c, dm_Ints size, int64_t dtype, dm_DType standard, int64_t device);

#endif
