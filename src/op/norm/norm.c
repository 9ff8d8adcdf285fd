/* layer_norm, group_norm and rms_norm, forward and backward, alone and of a sum.

   With mean and var over a group of elements, rstd = 1 / sqrt(var + eps) and xhat =
   (x - mean) rstd, all three give y = xhat * weight + bias. They differ in the
   group: layer_norm (Ba et al. 2016) normalizes the last dims of each sample,
   group_norm (Wu & He 2018) the elements of C / G channels of a sample, batch_norm
   (Ioffe & Szegedy 2015) the N L elements of each channel of x (N, C, L). rms_norm (Zhang &
   Sennrich 2019) is layer_norm with 0 for the mean, and without bias. Backward,
   with gh = gy * weight and means over the same group: dx = rstd (gh - mean(gh) -
   xhat mean(gh xhat)), dweight = sum(gy xhat), dbias = sum(gy).

   16-bit inputs are read and written as such; means, variances and the affine
   arithmetic are in the compute type, with block sums in float64. layer_norm and
   group_norm compute their moments again in the backward pass, where the row is in
   cache anyway; batch_norm saves them. With create_graph the gradients are composed
   of differentiable ops. The loops are in cpu/loops/norm.inc.

   dx follows from xhat's derivative: rstd and the mean depend on every element of the
   group, and with d xhat / dx = rstd (I - J / n - xhat xhat^T / n), J all ones, the two
   subtracted means are the projections of gh on the constant vector and on xhat. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "core/copy.h"
#include "cpu/scratch.h"
#include "cpu/vec.h"
#include "op/norm/norm.h"
#include "op/norm/norm_cpu.h"
#include "op/pointwise/pointwise.h"
#include "op/reduce/reduce.h"

/* ---- layer_norm, group_norm ---- */

/* weight and bias have the elements of normalized_shape; the output is like x. */
dm_status layer_norm_rule(dm_Call *c) {
  const dm_LayerNormAttr *a = DM_ATTR(dm_LayerNormAttr, c);
  const dm_Tensor *x = c->in[0];
  DM_TRY(dm_check_ends_in(c, x, &a->normalized_shape));
  const int64_t n = dm_numel((int)a->normalized_shape.n, a->normalized_shape.v);
  DM_TRY(dm_check_affine(c, "weight", c->in[1], n));
  DM_TRY(dm_check_affine(c, "bias", c->in[2], n));
  dm_out_like(c, 0, x, (dm_DType)x->dtype);
  return DM_OK;
}
/* weight and bias have C elements; the groups divide the C channels. */
dm_status group_norm_rule(dm_Call *c) {
  const dm_GroupNormAttr *a = DM_ATTR(dm_GroupNormAttr, c);
  const dm_Tensor *x = c->in[0];
  DM_TRY(dm_check_float(c, x, "x"));
  if (x->ndim < 2)
    return dm_fail(DM_EARG, "group_norm: x is %s, wanted at least 2 dims (batch, channels)",
                   DM_SHAPE(x));
  if (a->num_groups < 1 || a->num_groups > dm_max_i64(1, x->shape[1]) ||
      x->shape[1] % a->num_groups != 0)
    return dm_fail(DM_EARG, "group_norm: %lld channels do not part into %lld groups",
                   (long long)x->shape[1], (long long)a->num_groups);
  int64_t each = x->shape[1] / a->num_groups; /* elements of a group */
  for (int d = 2; d < x->ndim; d++) each *= x->shape[d];
  if (x->shape[0] > 0 && x->shape[0] * each <= 1)
    return dm_fail(DM_EARG, "group_norm: x is %s, wanted more than one element in its groups",
                   DM_SHAPE(x));
  DM_TRY(dm_check_affine(c, "weight", c->in[1], x->shape[1]));
  DM_TRY(dm_check_affine(c, "bias", c->in[2], x->shape[1]));
  dm_out_like(c, 0, x, (dm_DType)x->dtype);
  return DM_OK;
}

/* Fills the row job of layer_norm and group_norm: n_rows rows of len contiguous
   elements, whose weight and bias change every `inner` elements. */
static void describe_rows(dm_RowJob *j, const dm_Tensor *x, const dm_RowNormBackwardAttr *a) {
  j->n_rows = a->outer * a->groups;
  j->len = x->numel / dm_max_i64(1, j->n_rows);
  j->groups = a->groups;
  j->inner = a->inner;
  j->eps = a->eps;
  j->n_affine = j->groups * j->len / dm_max_i64(1, j->inner);
  j->dtype = (dm_DType)x->dtype;
  j->x = dm_tensor_data(x);
  atomic_init(&j->failed, false);
}

/* Forward of layer_norm, group_norm and rms_norm. */
static dm_status rows_cpu(dm_Call *c, dm_RowNormBackwardAttr a, bool about_zero) {
  dm_Tensor *x = NULL, *const bias = about_zero ? NULL : c->in[2];
  void *own_w = NULL, *own_b = NULL;
  dm_RowJob j = {.y = dm_tensor_data(c->out[0]), .about_zero = about_zero};
  dm_status st = DM_OK;
  if (c->out[0]->numel == 0) return DM_OK;
  DM_GO(dm_dense_new(c->in[0], &x));
  describe_rows(&j, x, &a);
  const dm_DType compute = dm_compute_dtype(j.dtype);
  if (c->in[1] || bias) DM_GO(dm_norm_affine(c->in[1], j.n_affine, compute, 1, &own_w, &j.w));
  if (j.w && !about_zero) DM_GO(dm_norm_affine(bias, j.n_affine, compute, 0, &own_b, &j.b));
  dm_parallel_for(j.n_rows, dm_max_i64(1, DM_POINT_GRAIN / j.len),
                  dm_norm_loops(compute)->rows_forward, &j);
  if (atomic_load(&j.failed)) st = dm_fail(DM_EMEM, "%s: out of memory", c->op->name);
done:
  dm_free(own_w);
  dm_free(own_b);
  dm_tensor_unref(&x);
  return st;
}

/* Rows are the elements of normalized_shape; every sample is one group. */
dm_status layer_norm_cpu(dm_Call *c) {
  const dm_Meta m = dm_meta_of(c->in[0]);
  return rows_cpu(c, dm_layer_rows(&m, DM_ATTR(dm_LayerNormAttr, c)), false);
}

/* Rows are the elements of one group of channels; weight and bias change per channel. */
dm_status group_norm_cpu(dm_Call *c) {
  const dm_Meta m = dm_meta_of(c->in[0]);
  return rows_cpu(c, dm_group_rows(&m, DM_ATTR(dm_GroupNormAttr, c)), false);
}

/* in: gy, x, weight; out: dx, and the gradients of weight and bias in the compute
   type. */
dm_status row_norm_backward_rule(dm_Call *c) {
  const dm_RowNormBackwardAttr *a = DM_ATTR(dm_RowNormBackwardAttr, c);
  const dm_Tensor *x = c->in[1];
  return dm_norm_metas(c, x, x->numel / dm_max_i64(1, a->outer * a->inner));
}

/* Adds the partial sums (n_unit, numel) of all units, in order, into t (numel). */
static void join_units(const double *sums, int64_t n_unit, dm_Tensor *t) {
  const dm_DType to = (dm_DType)t->dtype;
  char *p = dm_tensor_data(t);
  for (int64_t i = 0; i < t->numel; i++) {
    double s = 0;
    for (int64_t u = 0; u < n_unit; u++) s += sums[u * t->numel + i];
    dm_store_f64(to, p + i * dm_dtype_size(to), 1, 1, &s);
  }
}
/* At most 16 units of consecutive rows collect the gradients of weight and bias in
   their own float64 sums; their number depends on the shape alone, so that the result
   is the same for any number of threads. */
static dm_status rows_back_cpu(dm_Call *c, dm_RowNormBackwardAttr a, bool about_zero) {
  enum { MOST_UNITS = 16 };
  dm_Tensor *x = NULL, *gy = NULL;
  void *own_w = NULL;
  double *sums = NULL;
  dm_RowJob j = {.y = dm_tensor_data(c->out[0]), .about_zero = about_zero};
  dm_status st = DM_OK;
  DM_GO(dm_dense_new(c->in[0], &gy));
  DM_GO(dm_dense_new(c->in[1], &x));
  describe_rows(&j, x, &a);
  j.n_affine = c->out[1]->numel;
  j.gy = dm_tensor_data(gy);
  j.gy_dtype = (dm_DType)gy->dtype;
  const dm_DType compute = dm_compute_dtype(j.dtype);
  if (c->in[2]) DM_GO(dm_norm_affine(c->in[2], j.n_affine, compute, 1, &own_w, &j.w));
  j.rows_per = dm_max_i64(dm_max_i64(1, DM_POINT_GRAIN / dm_max_i64(1, j.len)),
                          (j.n_rows + MOST_UNITS - 1) / MOST_UNITS);
  const int64_t n_unit = x->numel == 0 ? 0 : (j.n_rows + j.rows_per - 1) / j.rows_per;
  const int64_t n_bytes = 2 * n_unit * j.n_affine * (int64_t)sizeof *sums;
  sums = dm_scratch(DM_SCRATCH_JOB, dm_max_i64(1, n_bytes));
  if (!sums) {
    st = dm_fail(DM_EMEM, "%s: out of memory", c->op->name);
    goto done;
  }
  memset(sums, 0, (size_t)n_bytes);
  j.gw = sums;
  j.gb = sums + n_unit * j.n_affine;
  dm_parallel_for(n_unit, 1, dm_norm_loops(compute)->rows_backward, &j);
  join_units(j.gw, n_unit, c->out[1]);
  if (!about_zero) join_units(j.gb, n_unit, c->out[2]);
  if (atomic_load(&j.failed)) st = dm_fail(DM_EMEM, "%s: out of memory", c->op->name);
done:
  dm_scratch_trim(DM_SCRATCH_JOB);
  dm_free(own_w);
  dm_tensor_unref(&x);
  dm_tensor_unref(&gy);
  return st;
}

dm_status row_norm_backward_cpu(dm_Call *c) {
  return rows_back_cpu(c, *DM_ATTR(dm_RowNormBackwardAttr, c), false);
}

/* The gradients of layer_norm and group_norm as a composition. x is reshaped to (outer,
   groups, row) for the moments and to (outer, channels, inner) for the weight. */
static void rows_grad_composed(dm_Grad *g, const dm_RowNormBackwardAttr *a) {
  dm_X *x = g->x;
  const dm_Meta *m = dm_in_meta(g, 0);
  const dm_DType compute = dm_compute_of(m);
  const int64_t n = dm_numel(m->ndim, m->shape);
  const dm_Meta *w = dm_in_meta(g, 1), *b = dm_in_meta(g, 2);
  /* the shape of no elements does not tell: then weight or bias do */
  const int64_t channels = g->in[1]     ? dm_numel(w->ndim, w->shape)
                           : g->need[2] ? dm_numel(b->ndim, b->shape)
                                        : n / dm_max_i64(1, a->outer * a->inner);
  const int64_t by_row[3] = {a->outer, a->groups, n / dm_max_i64(1, a->outer * a->groups)};
  const int64_t by_channel[3] = {a->outer, channels, a->inner}, weight[3] = {1, channels, 1};
  const dm_Ints last = {1, {2}}, others = {2, {0, 2}};
  dm_Tensor *gy = x_reshape(x, x_cast(x, g->gy[0], compute), 3, by_channel), *gh = gy, *xhat;
  dm_Tensor *v = x_reshape(x, x_cast(x, g->in[0], compute), 3, by_row);
  if (g->in[1]) gh = x_mul(x, gy, x_reshape(x, x_cast(x, g->in[1], compute), 3, weight));
  dm_Tensor *gx = x_norm_back(x, x_reshape(x, gh, 3, by_row), v, last, a->eps, &xhat);
  g->gx[0] = x_reshape(x, gx, m->ndim, m->shape);
  if (g->need[1])
    g->gx[1] =
        x_reshape(x, x_sum(x, x_mul(x, gy, x_reshape(x, xhat, 3, by_channel)), others, false),
                  w->ndim, w->shape);
  if (g->need[2]) g->gx[2] = x_reshape(x, x_sum(x, gy, others, false), b->ndim, b->shape);
}
/* The gradients by one fused call, or composed with create_graph and where x has no elements.
 */
static void rows_grad(dm_Grad *g, dm_RowNormBackwardAttr a) {
  dm_Tensor *in[3] = {g->gy[0], g->in[0], g->in[1]}, *out[3] = {NULL};
  if (g->create_graph || dm_numel(dm_in_meta(g, 0)->ndim, dm_in_meta(g, 0)->shape) == 0) {
    rows_grad_composed(g, &a);
    return;
  }
  if (!x_call(g->x, DM_OP_row_norm_backward, &a, 3, in, out)) return;
  g->gx[0] = out[0];
  for (int i = 1; i < 3; i++) {
    const dm_Meta *m = dm_in_meta(g, i);
    /* a vector stays what it is: a leaf takes a gradient that is no view without a copy */
    if (g->need[i])
      g->gx[i] = m->ndim == 1 ? out[i] : x_reshape(g->x, out[i], m->ndim, m->shape);
  }
}

/* dweight and dbias come back as vectors and are reshaped to normalized_shape. */
void layer_norm_grad(dm_Grad *g) {
  rows_grad(g, dm_layer_rows(dm_in_meta(g, 0), DM_ATTR(dm_LayerNormAttr, g)));
}

/* The same with rows of a group of channels. */
void group_norm_grad(dm_Grad *g) {
  rows_grad(g, dm_group_rows(dm_in_meta(g, 0), DM_ATTR(dm_GroupNormAttr, g)));
}

/* ---- rms_norm on the CPU ---- */

static dm_RowNormBackwardAttr rms_rows(int64_t outer, double eps) {
  return (dm_RowNormBackwardAttr){outer, 1, 1, eps};
}

/* As checked by rms_norm. */
dm_status rms_rows_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  return DM_OK;
}
dm_status rms_rows_cpu(dm_Call *c) {
  const dm_RmsRowsAttr *a = DM_ATTR(dm_RmsRowsAttr, c);
  const int outer = c->in[0]->ndim - (int)a->normalized_shape.n;
  return rows_cpu(c, rms_rows(dm_numel(outer, c->in[0]->shape), a->eps), true);
}

/* in: gy, x, weight; out: dx, and the gradient of weight in the compute type. */
dm_status rms_rows_backward_rule(dm_Call *c) {
  const int64_t outer = DM_ATTR(dm_RmsRowsBackwardAttr, c)->outer;
  return dm_norm_metas(c, c->in[1], c->in[1]->numel / dm_max_i64(1, outer));
}
dm_status rms_rows_backward_cpu(dm_Call *c) {
  const dm_RmsRowsBackwardAttr *a = DM_ATTR(dm_RmsRowsBackwardAttr, c);
  return rows_back_cpu(c, rms_rows(a->outer, a->eps), true);
}

/* With create_graph, and of no elements, a composition. */
void rms_rows_grad(dm_Grad *g) {
  const dm_RmsRowsAttr *a = DM_ATTR(dm_RmsRowsAttr, g);
  dm_X *x = g->x;
  const dm_Meta *const m = dm_in_meta(g, 0), *const w = dm_in_meta(g, 1);
  const int inner = (int)a->normalized_shape.n, outer = m->ndim - inner;
  dm_Tensor *in[3] = {g->gy[0], g->in[0], g->in[1]}, *out[2] = {NULL};
  if (!g->create_graph && dm_numel(m->ndim, m->shape) > 0) {
    const dm_RmsRowsBackwardAttr attr = {dm_numel(outer, m->shape), a->eps};
    if (!x_call(x, DM_OP_rms_rows_backward, &attr, 3, in, out)) return;
    g->gx[0] = out[0];
    if (g->need[1]) g->gx[1] = w->ndim == 1 ? out[1] : x_reshape(x, out[1], w->ndim, w->shape);
    return;
  }
  const dm_DType compute = dm_compute_of(m);
  dm_SumAttr last = {{inner, {0}}, 1, DM_NO_DTYPE};
  dm_Ints others = {outer, {0}};
  for (int d = 0; d < inner; d++) last.dim.v[d] = d - inner;
  for (int d = 0; d < outer; d++) others.v[d] = d;
  dm_Tensor *v = x_cast(x, g->in[0], compute), *gy = x_cast(x, g->gy[0], compute), *gh = gy;
  dm_Tensor *power = dm_x(x, DM_OP_mean, &last, 1, x_mul(x, v, v));
  dm_Tensor *r = x_unary(x, DM_OP_rsqrt, x_shift(x, power, a->eps)), *xhat = x_mul(x, v, r);
  if (g->in[1])
    gh = x_mul(x, gy, x_reshape(x, x_cast(x, g->in[1], compute), inner, a->normalized_shape.v));
  dm_Tensor *along = dm_x(x, DM_OP_mean, &last, 1, x_mul(x, gh, xhat));
  g->gx[0] = x_mul(x, r, x_sub(x, gh, x_mul(x, xhat, along)));
  dm_Tensor *gw = x_mul(x, gy, xhat);
  if (g->need[1])
    g->gx[1] = x_reshape(x, outer > 0 ? x_sum(x, gw, others, false) : gw, w->ndim, w->shape);
}

/* ---- add_layer_norm ---- */

/* The 16-bit dtype of the autocast region that t is in; or none. */
static dm_DType region_dtype(const dm_Tensor *t) {
  const dm_AutocastState *a = &dm_thread_state()->autocast;
  const dm_Autocast *now = &a->now.autocast[t->device.type];
  const bool on = !a->masked && now->enabled && dm_is_low((dm_DType)now->dtype);
  return on ? (dm_DType)now->dtype : DM_NO_DTYPE;
}

/* Whether one kernel does it: float32 + float32 -> float32, or float32 + 16 bits -> the same 16
   bits. */
static bool adds_at_once(const dm_Tensor *x, const dm_Tensor *delta, dm_DType to) {
  const dm_DType wanted = to == DM_NO_DTYPE ? DM_F32 : to;
  return x->dtype == DM_F32 && delta->dtype == wanted && dm_same_shape(x, delta) &&
         x->numel > 0 && dm_op_has_kernel(DM_OP_add_norm, x->device);
}

dm_status add_layer_norm_compose(dm_Call *c, dm_X *x) {
  const dm_AddLayerNormAttr *a = DM_ATTR(dm_AddLayerNormAttr, c);
  dm_Tensor *v = c->in[0], *delta = c->in[1], *out[2] = {NULL};
  const dm_DType to = region_dtype(v);
  if (adds_at_once(v, delta, to)) {
    const dm_AddNormAttr attr = {a->normalized_shape, a->eps, to == DM_NO_DTYPE ? DM_F32 : to};
    const int64_t n = dm_numel((int)a->normalized_shape.n, a->normalized_shape.v);
    DM_TRY(dm_check_ends_in(c, v, &a->normalized_shape));
    DM_TRY(dm_check_affine(c, "weight", c->in[2], n));
    DM_TRY(dm_check_affine(c, "bias", c->in[3], n));
    if (!x_call(x, DM_OP_add_norm, &attr, 4, c->in, out)) return x->st;
  } else {
    const dm_LayerNormAttr attr = {a->normalized_shape, a->eps};
    out[0] = x_add(x, v, delta);
    out[1] = dm_x(x, DM_OP_layer_norm, &attr, 3, out[0], c->in[2], c->in[3]);
    if (x->st == DM_OK && to != DM_NO_DTYPE && out[1]->dtype == DM_F32)
      out[1] = x_cast(x, out[1], to);
  }
  c->out[0] = out[0];
  c->out[1] = out[1];
  return x->st;
}

/* The sum is like x, or empty where x is it; the norm in the wanted dtype. */
dm_status add_norm_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[0], DM_F32);
  if (!c->in[1]) {
    c->out_meta[0].ndim = 1;
    c->out_meta[0].shape[0] = 0;
  }
  dm_out_like(c, 1, c->in[0], (dm_DType)DM_ATTR(dm_AddNormAttr, c)->dtype);
  return DM_OK;
}

/* in: gsum, gy, sum, weight. Where delta is float32, its gradient is x's: output 1 is empty. */
dm_status add_norm_backward_rule(dm_Call *c) {
  const dm_AddNormBackwardAttr *a = DM_ATTR(dm_AddNormBackwardAttr, c);
  const dm_Tensor *sum = c->in[2];
  dm_out_like(c, 0, sum, DM_F32);
  dm_out_like(c, 1, sum, (dm_DType)c->in[1]->dtype);
  if (!a->low) {
    c->out_meta[1].ndim = 1;
    c->out_meta[1].shape[0] = 0;
  }
  for (int i = 2; i < 4; i++) {
    dm_out_like(c, i, sum, DM_F32);
    c->out_meta[i].ndim = 1;
    c->out_meta[i].shape[0] = a->len;
  }
  return DM_OK;
}

/* The gradients as a composition, of the sum as rows (outer, len). */
static void add_norm_grad_composed(dm_Grad *g, int64_t len) {
  dm_X *x = g->x;
  const dm_Meta *m = dm_in_meta(g, 0);
  const int64_t rows[2] = {dm_numel(m->ndim, m->shape) / len, len}, one[2] = {1, len};
  const dm_Ints along = {1, {1}}, down = {1, {0}};
  dm_Tensor *gy = x_reshape(x, x_cast(x, g->gy[1], DM_F32), 2, rows), *gh = gy, *xhat;
  if (g->in[2]) gh = x_mul(x, gy, x_reshape(x, x_cast(x, g->in[2], DM_F32), 2, one));
  dm_Tensor *gx = x_norm_back(x, gh, x_reshape(x, g->out[0], 2, rows), along,
                              DM_ATTR(dm_AddNormAttr, g)->eps, &xhat);
  gx = x_reshape(x, gx, m->ndim, m->shape);
  g->gx[0] = g->gx[1] = g->gy[0] ? x_add(x, g->gy[0], gx) : gx;
  for (int i = 2; i < 4; i++)
    if (g->need[i])
      g->gx[i] = x_reshape(x, x_sum(x, i == 2 ? x_mul(x, gy, xhat) : gy, down, false),
                           dm_in_meta(g, i)->ndim, dm_in_meta(g, i)->shape);
}

/* gsum and what comes through the norm are added by the kernel that makes the latter. */
void add_norm_grad(dm_Grad *g) {
  const dm_AddNormAttr *a = DM_ATTR(dm_AddNormAttr, g);
  const int64_t len = dm_numel((int)a->normalized_shape.n, a->normalized_shape.v);
  dm_Tensor *out[DM_MAX_OUT] = {NULL};
  if (!g->gy[1]) {
    g->gx[0] = g->gx[1] = g->gy[0];
    return;
  }
  if (g->create_graph) {
    add_norm_grad_composed(g, len);
    return;
  }
  dm_Tensor *in[4] = {g->gy[0], g->gy[1], g->out[0], g->in[2]};
  const bool low = dm_in_meta(g, 1)->dtype != DM_F32;
  const dm_AddNormBackwardAttr attr = {len, a->eps, low};
  if (!x_call(g->x, DM_OP_add_norm_backward, &attr, 4, in, out)) return;
  g->gx[0] = out[0];
  g->gx[1] = out[low];
  for (int i = 2; i < 4; i++) {
    const dm_Meta *m = dm_in_meta(g, i);
    if (g->need[i])
      g->gx[i] = m->ndim == 1 ? out[i] : x_reshape(g->x, out[i], m->ndim, m->shape);
  }
}
