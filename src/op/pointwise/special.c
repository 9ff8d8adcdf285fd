/* Special functions composed of others, whose formulas are in base/special.inc: they inherit
   the others' gradients. */
#include "base/constants.h"
#include "base/error.h"
#include "op/shape/create.h"
#include "op/pointwise/pointwise.h"

static dm_status give(dm_Call *c, const dm_X *x, dm_Tensor *y) {
  c->out[0] = y;
  return x->st;
}

/* sin(x) / x by sinc, whose x is in units of pi. */
dm_status special_spherical_bessel_j0_compose(dm_Call *c, dm_X *x) {
  return give(c, x, x_unary(x, DM_OP_sinc, x_scale(x, c->in[0], 1 / DM_PI)));
}

/* The multivariate gamma function's logarithm, of dimension p:
   p (p - 1) / 4 log pi + the sum of log Gamma(x - j / 2) for j = 0 .. p - 1 */
dm_status mvlgamma_compose(dm_Call *c, dm_X *x) {
  const int64_t p = DM_ATTR(dm_MvlgammaAttr, c)->p;
  dm_Tensor *t = c->in[0];
  if (p < 1) return dm_fail(DM_EARG, "mvlgamma: p is %lld, wanted 1 or more", (long long)p);
  DM_TRY(x->st);
  const int64_t dtype = t->dtype == DM_F64 ? DM_F64 : DM_F32;
  const dm_LinspaceAttr steps = {0, -(double)(p - 1) / 2, p, dtype, dm_device_code(t->device)};
  t = x_unsqueeze(x, t, 0); /* in front, so that rows are added */
  DM_TRY(x->st);
  int64_t shape[DM_MAX_DIM] = {p};
  for (int d = 1; d < t->ndim; d++) shape[d] = 1;
  dm_Tensor *less = x_reshape(x, dm_x(x, DM_OP_linspace, &steps, 0), t->ndim, shape);
  t = x_sum(x, x_unary(x, DM_OP_lgamma, x_add(x, t, less)), (dm_Ints){1, {0}}, false);
  return give(c, x, x_shift(x, t, (double)p * (double)(p - 1) / 4 * DM_LOG_PI));
}
