/* fractional_max_pool2d (Graham 2014): max pooling with windows at pseudo-random
   positions, so that the output size need not divide the input size. With alpha =
   (in - k) / (n - 1) window i starts at floor(alpha (i + u)) - floor(alpha u), where
   u in [0, 1) is drawn per plane and axis; the last window ends at the border.
   Windows are gathered into (planes, cells, k h * k w) and reduced by max. */
#include "base/error.h"
#include "op/shape/create.h"
#include "op/index/index.h"
#include "op/pointwise/pointwise.h"
#include "op/reduce/reduce.h"

/* x (N, C, H, W) or (C, H, W); given samples have at least (N, C, 2) numbers. */
static dm_status check(const dm_Call *c, const dm_FractionalMaxPool2dAttr *a) {
  const dm_Tensor *t = c->in[0], *u = c->in[1];
  DM_TRY(dm_check_spatial(c, 2));
  DM_TRY(dm_check_float(c, t, "x"));
  for (int i = 0; i < 2; i++) {
    const int64_t in = t->shape[t->ndim - 2 + i], k = a->kernel_size[i], n = a->output_size[i];
    if (k < 1 || n < 1 || k > in || n > in - k + 1)
      return dm_fail(
          DM_EARG,
          "fractional_max_pool2d: dim %d from %lld to %lld by windows of %lld, wanted "
          "1 or more that fit",
          t->ndim - 2 + i + c->base, (long long)in, (long long)n, (long long)k);
  }
  if (!u) return DM_OK;
  DM_TRY(dm_check_float(c, u, "_random_samples"));
  const int64_t planes = t->shape[t->ndim - 3], batch = t->ndim == 4 ? t->shape[0] : 1;
  if (u->ndim == 3 && u->shape[0] >= batch && u->shape[1] >= planes && u->shape[2] == 2)
    return DM_OK;
  return dm_fail(DM_EARG,
                 "fractional_max_pool2d: _random_samples have shape %s, wanted {%lld, %lld, 2}",
                 DM_SHAPE(u), (long long)batch, (long long)planes);
}

/* 0, 1, ... n - 1 in like's dtype and on its device. */
static dm_Tensor *numbers(dm_X *x, int64_t n, const dm_Tensor *like) {
  const dm_LinspaceAttr a = {0, (double)(n - 1), n, like->dtype, dm_device_code(like->device)};
  return dm_x(x, DM_OP_linspace, &a, 0);
}

/* u (planes) -> the starts of the n windows along an axis of size `in`, (planes, n),
   from 0. The last window of size k ends at the axis's end. */
static dm_Tensor *starts_of(dm_X *x, dm_Tensor *u, int64_t in, int64_t n, int64_t k) {
  if (x->st != DM_OK) return NULL;
  dm_Tensor *column = x_reshape(x, u, 2, (int64_t[]){u->numel, 1});
  const double alpha = n > 1 ? (double)(in - k) / (double)(n - 1) : 0;
  dm_Tensor *i = numbers(x, n, u);
  dm_Tensor *end = x_unary(x, DM_OP_floor, x_scale(x, x_add(x, i, column), alpha));
  dm_Tensor *start = x_unary(x, DM_OP_floor, x_scale(x, column, alpha));
  dm_Tensor *last = x_test(x, DM_OP_eq, i, (double)(n - 1));
  return x_where(x, last, dm_x_number(x, (double)(in - k)), x_sub(x, end, start));
}

/* u (planes) -> the position in the axis of each element of each window, (planes, n,
   k), int64. */
static dm_Tensor *positions_along(dm_X *x, dm_Tensor *u, int64_t in, int64_t n, int64_t k) {
  dm_Tensor *starts = starts_of(x, u, in, n, k);
  starts = dm_x(x, DM_OP_unsqueeze, &(int64_t){-1}, 1, starts);
  return x->st == DM_OK ? x_cast(x, x_add(x, starts, numbers(x, k, u)), DM_I64) : NULL;
}

/* y (N, C, P, Q) and, with return_indices, the flat positions in each plane. */
dm_status fractional_max_pool2d_compose(dm_Call *c, dm_X *x) {
  const dm_FractionalMaxPool2dAttr *a = DM_ATTR(dm_FractionalMaxPool2dAttr, c);
  dm_Tensor *t = c->in[0], *u = c->in[1];
  c->n_out = a->return_indices ? 2 : 1;
  DM_TRY(check(c, a));
  const int64_t h = t->shape[t->ndim - 2], w = t->shape[t->ndim - 1];
  const int64_t planes = t->shape[t->ndim - 3], batch = t->ndim == 4 ? t->shape[0] : 1;
  const int64_t n = batch * planes, cells = a->output_size[0] * a->output_size[1];
  const int64_t elements = a->kernel_size[0] * a->kernel_size[1];
  const dm_DType wide = t->dtype == DM_F64 ? DM_F64 : DM_F32;
  if (!u) {
    const dm_SizedAttr drawn = {{3, {batch, planes, 2}}, wide, dm_device_code(t->device)};
    u = dm_x(x, DM_OP_rand, &drawn, 0);
  } else {
    u = dm_x(x, DM_OP_narrow, &(int64_t[3]){0, 0, batch}, 1, u);
    u = dm_x(x, DM_OP_narrow, &(int64_t[3]){1, 0, planes}, 1, u);
    u = dm_x_there(x, x->st == DM_OK ? x_cast(x, u, wide) : NULL, t->device);
  }
  u = x_reshape(x, u, 2, (int64_t[]){n, 2});
  dm_Tensor *of_x = dm_x(x, DM_OP_select, &(int64_t[2]){1, 0}, 1, u);
  dm_Tensor *of_y = dm_x(x, DM_OP_select, &(int64_t[2]){1, 1}, 1, u);
  dm_Tensor *row = positions_along(x, of_y, h, a->output_size[0], a->kernel_size[0]);
  dm_Tensor *column = positions_along(x, of_x, w, a->output_size[1], a->kernel_size[1]);
  row = x_reshape(x, row, 5, (int64_t[]){n, a->output_size[0], 1, a->kernel_size[0], 1});
  column = x_reshape(x, column, 5, (int64_t[]){n, 1, a->output_size[1], 1, a->kernel_size[1]});
  dm_Tensor *at = x_add(x, x_mul(x, row, x_whole(x, w)), column);
  at = x_reshape(x, x_add(x, at, x_whole(x, c->base)), 2, (int64_t[]){n, cells * elements});
  const int64_t along = 1, last = 2;
  dm_Tensor *flat = x_reshape(x, t, 2, (int64_t[]){n, h * w});
  dm_Tensor *windows = dm_x(x, DM_OP_gather, &along, 2, flat, at), *out[2] = {NULL, NULL};
  windows = x_reshape(x, windows, 3, (int64_t[]){n, cells, elements});
  if (!x_call(x, DM_OP_max, &(dm_DimAttr){{1, last}, true}, 1, &windows, out)) return x->st;
  int64_t shape[4] = {batch, planes, a->output_size[0], a->output_size[1]};
  c->out[0] = x_reshape(x, out[0], t->ndim, shape + 4 - t->ndim);
  if (!a->return_indices) return x->st;
  at = x_reshape(x, at, 3, (int64_t[]){n, cells, elements});
  at = dm_x(x, DM_OP_gather, &last, 2, at, out[1]);
  c->out[1] = x_reshape(x, at, t->ndim, shape + 4 - t->ndim);
  return x->st;
}
