#include "op/norm/norm_cpu.h"

#include "base/alloc.h"
#include "base/error.h"
#include "core/copy.h"
#include "cpu/vec.h"
#include "op/pointwise/pointwise.h"

dm_status dm_norm_affine(dm_Tensor *t, int64_t n, dm_DType compute, double otherwise,
                         void **own, const void **out) {
  dm_Tensor *dense = NULL;
  *own = NULL;
  *out = NULL;
  if (t) DM_TRY(dm_dense_new(t, &dense));
  if (dense && dense->dtype == compute && dense == t) {
    *out = dm_tensor_data(t);
    dm_tensor_unref(&dense);
    return DM_OK;
  }
  *own = dm_alloc(dm_max_i64(1, n) * dm_dtype_size(compute));
  if (*own && dense)
    dm_convert((dm_DType)dense->dtype, dm_tensor_data(dense), compute, *own, n);
  for (int64_t i = 0; *own && !dense && i < n; i++)
    dm_store_f64(compute, (char *)*own + i * dm_dtype_size(compute), 1, 1, &otherwise);
  dm_tensor_unref(&dense);
  *out = *own;
  return *own ? DM_OK : dm_fail(DM_EMEM, "normalization: out of memory");
}

dm_status dm_norm_metas(dm_Call *c, const dm_Tensor *x, int64_t n) {
  dm_out_like(c, 0, x, (dm_DType)x->dtype);
  for (int i = 1; i < c->n_out; i++) {
    dm_out_like(c, i, x, dm_compute_dtype((dm_DType)x->dtype));
    c->out_meta[i].ndim = 1;
    c->out_meta[i].shape[0] = n;
  }
  return DM_OK;
}

dm_Tensor *x_norm_back(dm_X *x, dm_Tensor *gh, dm_Tensor *v, dm_Ints dims, double eps,
                       dm_Tensor **xhat) {
  const dm_SumAttr keep = {dims, 1, DM_NO_DTYPE};
#define MEAN(T) dm_x(x, DM_OP_mean, &keep, 1, T)
  dm_Tensor *d = x_sub(x, v, MEAN(v));
  dm_Tensor *r = x_unary(x, DM_OP_rsqrt, x_shift(x, MEAN(x_mul(x, d, d)), eps));
  *xhat = x_mul(x, d, r);
  dm_Tensor *rest = x_add(x, MEAN(gh), x_mul(x, *xhat, MEAN(x_mul(x, gh, *xhat))));
#undef MEAN
  return x_mul(x, r, x_sub(x, gh, rest));
}
