/* Special functions composed of others, whose formulas are in base/special.inc: they inherit
   the others' gradients. */
#include "base/constants.h"
#include "base/error.h"
#include "op/shape/create.h"
#include "op/pointwise/pointwise.h"

/* 16-bit numbers as float32 and the result back, so that it is rounded once. */
static dm_Tensor *widened(dm_X *x, dm_Tensor *t) {
  return dm_is_16bit(t->dtype) ? x_cast(x, t, DM_F32) : t;
}
static dm_status give(dm_Call *c, dm_X *x, dm_Tensor *y) {
  const dm_DType own = (dm_DType)c->in[0]->dtype;
  c->out[0] = dm_is_16bit(own) ? x_cast(x, y, own) : y;
  return x->st;
}

/* The normal distribution's integral up to x: erfc(-x / sqrt(2)) / 2, exact in the lower tail.
 */
dm_status special_ndtr_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *t = x_scale(x, widened(x, c->in[0]), -DM_SQRT_HALF);
  return give(c, x, x_scale(x, x_unary(x, DM_OP_erfc, t), 0.5));
}

/* log(x / (1 - x)), the inverse of sigmoid; eps keeps x off 0 and 1, where it is infinite. */
dm_status logit_compose(dm_Call *c, dm_X *x) {
  const dm_OptNum *eps = &DM_ATTR(dm_LogitAttr, c)->eps;
  dm_Tensor *t = widened(x, c->in[0]);
  if (eps->set) {
    const dm_ClampAttr bounds = {{1, eps->v}, {1, 1 - eps->v}};
    t = dm_x(x, DM_OP_clamp, &bounds, 1, t);
  }
  dm_Tensor *rest = x_shift(x, x_scale(x, t, -1), 1);
  return give(c, x, x_unary(x, DM_OP_log, x_div(x, t, rest)));
}

/* The multivariate gamma function's logarithm, of dimension p:
   p (p - 1) / 4 log pi + the sum of log Gamma(x - j / 2) for j = 0 .. p - 1 */
dm_status mvlgamma_compose(dm_Call *c, dm_X *x) {
  const int64_t p = DM_ATTR(dm_MvlgammaAttr, c)->p;
  dm_Tensor *t = widened(x, c->in[0]);
  if (p < 1) return dm_fail(DM_EARG, "mvlgamma: p is %lld, wanted 1 or more", (long long)p);
  DM_TRY(x->st);
  const int64_t dtype = t->dtype == DM_F64 ? DM_F64 : DM_F32;
  const dm_LinspaceAttr steps = {0, -(double)(p - 1) / 2, p, dtype, dm_device_code(t->device)};
  t = x_add(x, dm_x(x, DM_OP_unsqueeze, &(int64_t){-1}, 1, t),
            dm_x(x, DM_OP_linspace, &steps, 0));
  t = x_sum(x, x_unary(x, DM_OP_lgamma, t), (dm_Ints){1, {-1}}, false);
  return give(c, x, x_shift(x, t, (double)p * (double)(p - 1) / 4 * DM_LOG_PI));
}
