/* bilinear: y_o = u^T W_o v + b_o for u (..., I), v (..., J), weight (O, I, J), bias
   (O), y (..., O). It is computed as two matrix products, so that no tensor of size
   B O I J is made. */
#include "base/error.h"
#include "engine/state.h"
#include "op/pointwise/pointwise.h"

/* One float dtype for all; u and v share their leading dims, which the weight's I
   and J fit. */
static dm_status check_operands(const dm_Call *c) {
  static const char *const names[] = {"x1", "x2", "weight", "bias"};
  const dm_Tensor *u = c->in[0], *v = c->in[1], *w = c->in[2], *b = c->in[3];
  for (int i = 0; i < 4; i++) {
    if (!c->in[i]) continue;
    DM_TRY(dm_check_float(c, c->in[i], names[i]));
    if (c->in[i]->dtype != u->dtype)
      return dm_fail(DM_EARG, "bilinear: x1 is %s, %s %s: all must have one dtype",
                     dm_dtype_name((dm_DType)u->dtype), names[i],
                     dm_dtype_name((dm_DType)c->in[i]->dtype));
  }
  bool ok = w->ndim == 3 && u->ndim > 0 && u->ndim == v->ndim;
  for (int d = 0; ok && d < u->ndim - 1; d++) ok = u->shape[d] == v->shape[d];
  ok = ok && w->shape[1] == u->shape[u->ndim - 1] && w->shape[2] == v->shape[v->ndim - 1];
  if (!ok)
    return dm_fail(DM_EARG,
                   "bilinear: x1 has shape %s, x2 %s, weight %s, wanted {..., I}, "
                   "{..., J}, {O, I, J}",
                   DM_SHAPE(u), DM_SHAPE(v), DM_SHAPE(w));
  if (b && (b->ndim != 1 || b->shape[0] != w->shape[0]))
    return dm_fail(DM_EARG, "bilinear: bias has shape %s, wanted {%lld}", DM_SHAPE(b),
                   (long long)w->shape[0]);
  return DM_OK;
}

/* (B, I) times W as (I, O J) gives (B, O, J); its product with v (B, J, 1) gives (B,
   O, 1). */
static dm_Tensor *products(dm_X *x, dm_Tensor *u, dm_Tensor *v, dm_Tensor *w) {
  const int64_t o = w->shape[0], i = w->shape[1], j = w->shape[2];
  const int64_t n = dm_numel(u->ndim - 1, u->shape);
  dm_Tensor *flat = x_reshape(x, x_transpose(x, w, 0, 1), 2, (int64_t[]){i, o * j});
  dm_Tensor *half = x_matmul(x, x_reshape(x, u, 2, (int64_t[]){n, i}), flat);
  half = x_reshape(x, half, 3, (int64_t[]){n, o, j});
  return x_matmul(x, half, x_reshape(x, v, 3, (int64_t[]){n, j, 1}));
}

/* It is one op for autocast, as in PyTorch: `masked` keeps autocast from the
   products inside. */
dm_status bilinear_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *u = c->in[0], *v = c->in[1], *w = c->in[2], *b = c->in[3];
  int64_t shape[DM_MAX_DIM];
  DM_TRY(check_operands(c));
  for (int d = 0; d < u->ndim - 1; d++) shape[d] = u->shape[d];
  shape[u->ndim - 1] = w->shape[0];
  dm_ThreadState *ts = dm_thread_state();
  const bool masked = ts->autocast.masked;
  ts->autocast.masked = true;
  dm_Tensor *y = x_reshape(x, products(x, u, v, w), u->ndim, shape);
  ts->autocast.masked = masked;
  c->out[0] = b ? x_add(x, y, b) : y;
  return x->st;
}
