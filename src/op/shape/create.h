/* Attributes and rules that constant and random tensors share, and the formula of a
   range's elements; for the kernels of every device. */
#ifndef DM_CREATE_H
#define DM_CREATE_H

#include "engine/op.h"

/* Equally spaced numbers: start + i step, and from element `mirror` on stop - (n - 1
   - i) step. */
typedef struct dm_Ramp {
  double start, step, stop;
  int64_t mirror;
} dm_Ramp;

/* Element i of the n elements of r. */
static inline DM_HD double dm_ramp_at(dm_Ramp r, int64_t i, int64_t n) {
  return i < r.mirror ? r.start + (double)i * r.step : r.stop - (double)(n - 1 - i) * r.step;
}

/* The first element of arange. The one argument of arange(n) is a count, so the
   range starts at the base. With two arguments the last number is included when
   positions count from 1, as in Lua's for, and excluded when they count from 0, as
   in PyTorch. */
static inline double dm_arange_first(int base, const dm_ArangeAttr *a) {
  return a->last.set ? a->first : base;
}
static inline dm_Ramp dm_arange_ramp(int base, const dm_ArangeAttr *a) {
  const dm_Ramp r = {dm_arange_first(base, a), a->step, 0, INT64_MAX};
  return r;
}
/* linspace: each half is computed from its own end, so that both ends are exact, as
   in PyTorch. */
static inline dm_Ramp dm_linspace_ramp(const dm_LinspaceAttr *a) {
  const double step = a->steps > 1 ? (a->stop - a->start) / (double)(a->steps - 1) : 0;
  const dm_Ramp r = {a->start, step, a->stop, a->steps > 1 ? a->steps / 2 : 1};
  return r;
}

/* Sets the meta of output 0: this size, dtype (`standard` when none is given) and
   device. */
void dm_out_sized(dm_Call *c, dm_Ints size, int64_t dtype, dm_DType standard, int64_t device);

/* Writes the number into each element of t, which is dense, in its dtype, whose bool is true
   for all numbers but 0. On the CPU. */
void dm_fill_dense(dm_Tensor *t, double value);

#endif
