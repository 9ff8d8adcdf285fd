/* Dropout of whole channels (J. Tompson et al. 2015), and alpha dropout, which keeps mean and
   variance for selu (G. Klambauer et al. 2017): composed of one draw and products. */
#include <math.h>

#include "base/error.h"
#include "op/shape/create.h"
#include "op/pointwise/pointwise.h"

/* Checks p and x. *drops tells whether anything is to be dropped; otherwise the
   result is x. */
static dm_status begin(dm_Call *c, bool *drops) {
  const dm_DropoutAttr *a = DM_ATTR(dm_DropoutAttr, c);
  if (!(a->p >= 0 && a->p <= 1))
    return dm_fail(DM_EARG, "%s: p = %g given, wanted 0 to 1", c->op->name, a->p);
  *drops = a->training && a->p > 0 && c->in[0]->numel > 0;
  if (*drops) DM_TRY(dm_check_float(c, c->in[0], "x"));
  c->out[0] = c->in[0];
  return DM_OK;
}

/* A mask of 1 with probability 1 - p, else 0: one number for each index of t's first
   `own` dims, with size 1 in the others. */
static dm_Tensor *kept(dm_X *x, double p, const dm_Tensor *t, int own) {
  const dm_OptNum keep = {1, 1 - p};
  dm_SizedAttr each = {{t->ndim, {0}}, t->dtype, dm_device_code(t->device)};
  for (int d = 0; d < t->ndim; d++) each.size.v[d] = d < own ? t->shape[d] : 1;
  return dm_x(x, DM_OP_bernoulli, &keep, 1, dm_x(x, DM_OP_empty, &each, 0));
}

/* ---- whole channels ---- */

/* x (N, C, ...) or (C, ...), with `dims` spatial dims: one draw for each n and c.
   batched: x of any other number of dims is (N, C, ...) too. */
static dm_status drop_channels(dm_Call *c, dm_X *x, int dims, bool batched) {
  const dm_DropoutAttr *a = DM_ATTR(dm_DropoutAttr, c);
  dm_Tensor *t = c->in[0];
  bool drops;
  const bool known = t->ndim == dims + 2 || t->ndim == dims + 1;
  if (!known && !(batched && t->ndim >= 2))
    return dm_fail(DM_EARG, "%s: x is %s, wanted %s%d or %d dims", c->op->name, DM_SHAPE(t),
                   batched ? "(N, C, ...), best " : "", dims + 1, dims + 2);
  DM_TRY(begin(c, &drops));
  if (!drops) return DM_OK;
  dm_Tensor *scale = kept(x, a->p, t, batched || t->ndim == dims + 2 ? 2 : 1);
  if (a->p < 1) scale = x_scale(x, scale, 1 / (1 - a->p));
  c->out[0] = x_mul(x, t, scale);
  return x->st;
}

dm_status dropout1d_compose(dm_Call *c, dm_X *x) { return drop_channels(c, x, 1, false); }
/* A tensor of three dims is (N, C, L), as in PyTorch. */
dm_status dropout2d_compose(dm_Call *c, dm_X *x) { return drop_channels(c, x, 2, true); }
dm_status dropout3d_compose(dm_Call *c, dm_X *x) { return drop_channels(c, x, 3, false); }

/* ---- alpha dropout ---- */

/* A dropped element becomes selu's limit, -alpha; a scale and a shift then bring mean 0 and
   variance 1 back. p = 1 leaves zeros. */
static dm_status to_limit(dm_Call *c, dm_X *x, bool channels) {
  const double alpha = 1.7580993408473766; /* selu's alpha times its scale */
  const double p = DM_ATTR(dm_DropoutAttr, c)->p;
  dm_Tensor *t = c->in[0];
  bool drops;
  DM_TRY(begin(c, &drops));
  if (!drops) return DM_OK;
  if (channels && t->ndim < 2)
    return dm_fail(DM_EARG, "%s: x is %s, wanted at least 2 dims (batch, channels)",
                   c->op->name, DM_SHAPE(t));
  const double scale = p < 1 ? 1 / sqrt((alpha * alpha * p + 1) * (1 - p)) : 0;
  dm_Tensor *keep = kept(x, p, t, channels ? 2 : t->ndim);
  dm_Tensor *shift = x_shift(x, x_scale(x, keep, alpha * scale), alpha * scale * (p - 1));
  c->out[0] = x_add(x, x_mul(x, t, x_scale(x, keep, scale)), shift);
  return x->st;
}

dm_status alpha_dropout_compose(dm_Call *c, dm_X *x) { return to_limit(c, x, false); }
dm_status feature_alpha_dropout_compose(dm_Call *c, dm_X *x) { return to_limit(c, x, true); }
