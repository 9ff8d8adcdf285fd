/* softmax and log_softmax along a dim, forward and backward, one slice or one block of
   neighbouring slices at a time. It is loaded into the compute type (float32 for 16-bit
   dtypes), processed while it is in cache and rounded once when it is stored; the loops are
   in cpu/loops/softmax.inc.

   softmax: y_i = e^(x_i - m) / sum_k e^(x_k - m) with m the maximum, so that no
   exponential overflows; log_softmax: y_i = x_i - m - log sum_k e^(x_k - m). The
   gradients need the result alone, not x. With create_graph they are composed of
   differentiable ops, else one fused kernel computes them. */
#include "base/error.h"
#include "core/copy.h"
#include "cpu/loops/loops.h"
#include "cpu/threads.h"
#include "op/along.h"
#include "op/pointwise/pointwise.h"
#include "op/reduce/reduce.h"

/* Runs the loop over all slices in parallel; fails when a thread could not allocate its
   buffers. */
static dm_status run(dm_Call *c, dm_SliceJob *j) {
  j->to = (dm_DType)c->out[0]->dtype;
  j->y = dm_tensor_data(c->out[0]);
  atomic_init(&j->failed, false);
  const int64_t unit = dm_side_by_side(&j->at) ? DM_COLUMNS : 1;
  const int64_t grain = unit * dm_max_i64(1, DM_POINT_GRAIN / 4 / j->at.n / unit);
  dm_parallel_for(dm_along_slices(&j->at), grain,
                  j->to == DM_F64 ? dm_loops()->f64.slices : dm_loops()->f32.slices, j);
  return atomic_load(&j->failed) ? dm_fail(DM_EMEM, "%s: out of memory", c->op->name) : DM_OK;
}

/* Whether dim d of x, which is contiguous or a matrix whose transpose is, lies as slices side
   by side: those. */
static bool lies_side_by_side(const dm_Tensor *x, int d, dm_Along *at) {
  if (dm_tensor_is_contiguous(x)) {
    *at = dm_along_shape(x->ndim, x->shape, d);
  } else {
    if (x->ndim != 2 || x->stride[0] != 1 || x->stride[1] != x->shape[0]) return false;
    const int64_t turned[2] = {x->shape[1], x->shape[0]};
    *at = dm_along_shape(2, turned, 1 - d);
  }
  return at->n > 0 && dm_side_by_side(at);
}
bool dm_log_sums(dm_Call *c, int d, dm_status *st) {
  const dm_Tensor *x = c->in[0];
  dm_SliceJob j = {.from = (dm_DType)x->dtype, .x = dm_tensor_data(x), .log_sums = true};
  if (x->dtype != c->out[0]->dtype || !lies_side_by_side(x, d, &j.at)) return false;
  *st = run(c, &j);
  return true;
}

/* Output: x's shape in `dtype` or x's own dtype, which must be a float. */
dm_status softmax_rule(dm_Call *c) {
  const dm_SoftmaxAttr *a = DM_ATTR(dm_SoftmaxAttr, c);
  const dm_DType to = a->dtype >= 0 ? (dm_DType)a->dtype : (dm_DType)c->in[0]->dtype;
  int d;
  DM_TRY(dm_check_dim(c, c->in[0], a->dim, &d));
  if (!dm_is_float(to))
    return dm_fail(DM_EARG,
                   "%s: the result would be %s, wanted a float dtype; hint: dtype = "
                   "\"float32\"",
                   c->op->name, dm_dtype_name(to));
  dm_out_like(c, 0, c->in[0], to);
  return DM_OK;
}
dm_status softmax_cpu(dm_Call *c) {
  dm_Tensor *x = NULL;
  if (c->out[0]->numel == 0) return DM_OK;
  DM_TRY(dm_dense_new(c->in[0], &x));
  dm_SliceJob j = {.from = (dm_DType)x->dtype, .x = dm_tensor_data(x)};
  j.at = dm_along(x, DM_ATTR(dm_SoftmaxAttr, c)->dim);
  j.log = c->op == &dm_ops[DM_OP_log_softmax];
  const dm_status st = run(c, &j);
  dm_tensor_unref(&x);
  return st;
}

/* dx = y (gy - sum(gy y)), the sum taken along dim. */
void softmax_grad(dm_Grad *g) {
  dm_X *x = g->x;
  const dm_SoftmaxBackwardAttr back = {DM_ATTR(dm_SoftmaxAttr, g)->dim, 0};
  dm_Tensor *y = g->out[0], *gy = g->gy[0];
  if (!g->create_graph) {
    g->gx[0] = dm_x(x, DM_OP_softmax_backward, &back, 2, gy, y);
    return;
  }
  const dm_Ints dims = {1, {back.dim}};
  g->gx[0] = x_mul(x, y, x_sub(x, gy, x_sum(x, x_mul(x, gy, y), dims, true)));
}
/* dx = gy - e^y sum(gy), the sum taken along dim. */
void log_softmax_grad(dm_Grad *g) {
  dm_X *x = g->x;
  const dm_SoftmaxBackwardAttr back = {DM_ATTR(dm_SoftmaxAttr, g)->dim, 1};
  dm_Tensor *y = g->out[0], *gy = g->gy[0];
  if (!g->create_graph) {
    g->gx[0] = dm_x(x, DM_OP_softmax_backward, &back, 2, gy, y);
    return;
  }
  const dm_Ints dims = {1, {back.dim}};
  g->gx[0] = x_sub(x, gy, x_mul(x, x_unary(x, DM_OP_exp, y), x_sum(x, gy, dims, true)));
}

dm_status softmax_backward_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[1], (dm_DType)c->in[1]->dtype);
  return DM_OK;
}
/* in: gy, y; out: dx for softmax or, with `log` set, for log_softmax. */
dm_status softmax_backward_cpu(dm_Call *c) {
  const dm_SoftmaxBackwardAttr *a = DM_ATTR(dm_SoftmaxBackwardAttr, c);
  dm_Tensor *gy = NULL, *y = NULL;
  dm_status st = DM_OK;
  if (c->out[0]->numel == 0) return DM_OK;
  DM_GO(dm_dense_new(c->in[0], &gy));
  DM_GO(dm_dense_new(c->in[1], &y));
  dm_SliceJob j = {
      .from = (dm_DType)y->dtype, .x = dm_tensor_data(y), .gy = dm_tensor_data(gy)};
  j.at = dm_along(y, a->dim);
  j.log = a->log;
  st = run(c, &j);
done:
  dm_tensor_unref(&gy);
  dm_tensor_unref(&y);
  return st;
}
