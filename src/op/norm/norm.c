/* layer_norm, group_norm and batch_norm, forward and backward.

   With mean and var over a group of elements, rstd = 1 / sqrt(var + eps) and xhat =
   (x - mean) rstd, all three give y = xhat * weight + bias. They differ in the
   group: layer_norm (Ba et al. 2016) normalizes the last dims of each sample,
   group_norm (Wu & He 2018) the elements of C / G channels of a sample, batch_norm
   (Ioffe & Szegedy 2015) the N L elements of each channel of x (N, C, L). Backward,
   with gh = gy * weight and means over the same group: dx = rstd (gh - mean(gh) -
   xhat mean(gh xhat)), dweight = sum(gy xhat), dbias = sum(gy).

   16-bit inputs are read and written as such; means, variances and the affine
   arithmetic are in the compute type, with block sums in float64. layer_norm and
   group_norm compute their moments again in the backward pass, where the row is in
   cache anyway; batch_norm saves them. With create_graph the gradients are composed
   of differentiable ops. The loops are in cpu/loops/norm.inc.

   dx follows from xhat's derivative: rstd and the mean depend on every element of the
   group, and with d xhat / dx = rstd (I - J / n - xhat xhat^T / n), J all ones, the two
   subtracted means are the projections of gh on the constant vector and on xhat. Statistics
   that are given (batch_norm in evaluation) do not depend on x, and both terms drop out. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "core/copy.h"
#include "cpu/loops/loops.h"
#include "cpu/scratch.h"
#include "cpu/threads.h"
#include "cpu/vec.h"
#include "op/norm/norm.h"
#include "op/optim/optim.h"
#include "op/pointwise/pointwise.h"
#include "op/pointwise/unary.h"
#include "op/reduce/reduce.h"

/* The loops of a compute type, float32 or float64. */
static const dm_RealLoops *loops_of(dm_DType compute) {
  return compute == DM_F64 ? &dm_loops()->f64 : &dm_loops()->f32;
}

/* *out: t's n elements as a contiguous array of the compute type. *own is that array
   when it had to be allocated, else NULL; without t all elements are `otherwise`. */
static dm_status affine(dm_Tensor *t, int64_t n, dm_DType compute, double otherwise, void **own,
                        const void **out) {
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

/* Metas of three outputs: one like x and two vectors (n) of the compute type. */
static dm_status out_and_vectors(dm_Call *c, const dm_Tensor *x, int64_t n) {
  dm_out_like(c, 0, x, (dm_DType)x->dtype);
  for (int i = 1; i < 3; i++) {
    dm_out_like(c, i, x, dm_compute_dtype((dm_DType)x->dtype));
    c->out_meta[i].ndim = 1;
    c->out_meta[i].shape[0] = n;
  }
  return DM_OK;
}

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

/* Forward of layer_norm and group_norm. */
static dm_status rows_cpu(dm_Call *c, dm_RowNormBackwardAttr a) {
  dm_Tensor *x = NULL;
  void *own_w = NULL, *own_b = NULL;
  dm_RowJob j = {.y = dm_tensor_data(c->out[0])};
  dm_status st = DM_OK;
  if (c->out[0]->numel == 0) return DM_OK;
  DM_GO(dm_dense_new(c->in[0], &x));
  describe_rows(&j, x, &a);
  const dm_DType compute = dm_compute_dtype(j.dtype);
  if (c->in[1] || c->in[2]) {
    DM_GO(affine(c->in[1], j.n_affine, compute, 1, &own_w, &j.w));
    DM_GO(affine(c->in[2], j.n_affine, compute, 0, &own_b, &j.b));
  }
  dm_parallel_for(j.n_rows, dm_max_i64(1, DM_POINT_GRAIN / j.len),
                  loops_of(compute)->rows_forward, &j);
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
  return rows_cpu(c, dm_layer_rows(&m, DM_ATTR(dm_LayerNormAttr, c)));
}

/* Rows are the elements of one group of channels; weight and bias change per channel. */
dm_status group_norm_cpu(dm_Call *c) {
  const dm_Meta m = dm_meta_of(c->in[0]);
  return rows_cpu(c, dm_group_rows(&m, DM_ATTR(dm_GroupNormAttr, c)));
}

/* in: gy, x, weight; out: dx, and the gradients of weight and bias in the compute
   type. */
dm_status row_norm_backward_rule(dm_Call *c) {
  const dm_RowNormBackwardAttr *a = DM_ATTR(dm_RowNormBackwardAttr, c);
  const dm_Tensor *x = c->in[1];
  return out_and_vectors(c, x, x->numel / dm_max_i64(1, a->outer * a->inner));
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
dm_status row_norm_backward_cpu(dm_Call *c) {
  enum { MOST_UNITS = 16 };
  dm_Tensor *x = NULL, *gy = NULL;
  void *own_w = NULL;
  double *sums = NULL;
  dm_RowJob j = {.y = dm_tensor_data(c->out[0])};
  dm_status st = DM_OK;
  DM_GO(dm_dense_new(c->in[0], &gy));
  DM_GO(dm_dense_new(c->in[1], &x));
  describe_rows(&j, x, DM_ATTR(dm_RowNormBackwardAttr, c));
  j.n_affine = c->out[1]->numel;
  j.gy = dm_tensor_data(gy);
  j.gy_dtype = (dm_DType)gy->dtype;
  const dm_DType compute = dm_compute_dtype(j.dtype);
  if (c->in[2]) DM_GO(affine(c->in[2], j.n_affine, compute, 1, &own_w, &j.w));
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
  dm_parallel_for(n_unit, 1, loops_of(compute)->rows_backward, &j);
  join_units(j.gw, n_unit, c->out[1]);
  join_units(j.gb, n_unit, c->out[2]);
  if (atomic_load(&j.failed)) st = dm_fail(DM_EMEM, "%s: out of memory", c->op->name);
done:
  dm_scratch_trim(DM_SCRATCH_JOB);
  dm_free(own_w);
  dm_tensor_unref(&x);
  dm_tensor_unref(&gy);
  return st;
}

/* dx as a composition, for v whose moments are taken over `dims`: rstd (gh - mean(gh) -
   xhat mean(gh xhat)). *xhat receives the normalized v. */
static dm_Tensor *x_norm_back(dm_X *x, dm_Tensor *gh, dm_Tensor *v, dm_Ints dims, double eps,
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

/* The dtype of means and variances of an x of this meta: float32, or float64. */
static dm_DType compute_of(const dm_Meta *m) { return dm_compute_dtype((dm_DType)m->dtype); }

/* The gradients of layer_norm and group_norm as a composition. x is reshaped to (outer,
   groups, row) for the moments and to (outer, channels, inner) for the weight. */
static void rows_grad_composed(dm_Grad *g, const dm_RowNormBackwardAttr *a) {
  dm_X *x = g->x;
  const dm_Meta *m = dm_in_meta(g, 0);
  const dm_DType compute = compute_of(m);
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

/* The sum is like x, the norm in the wanted dtype. */
dm_status add_norm_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[0], DM_F32);
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

/* ---- batch_norm ---- */

/* running = (1 - momentum) running + momentum * scale * batch, on the CPU, for running
   (C) of any float dtype. It cannot fail. */
static void track(dm_Tensor *running, double momentum, const dm_Tensor *batch, double scale) {
  if (!running) return;
  const int64_t step = running->stride[0] * dm_dtype_sizes[running->dtype];
  const int64_t size = dm_dtype_sizes[batch->dtype];
  char *p = dm_tensor_data(running);
  const char *from = dm_tensor_data(batch);
  for (int64_t k = 0; k < running->numel; k++, p += step, from += size) {
    double v, b;
    dm_load_f64((dm_DType)running->dtype, p, 1, 1, &v);
    dm_load_f64((dm_DType)batch->dtype, from, 1, 1, &b);
    v = (1 - momentum) * v + momentum * (b * scale);
    dm_store_f64((dm_DType)running->dtype, p, 1, 1, &v);
  }
  running->storage->version++;
}

/* num_batches_tracked: one int64 on x's device, or NULL. */
static dm_status check_count(const dm_Call *c, const dm_Tensor *count) {
  if (!count || (count->numel == 1 && count->dtype == DM_I64 &&
                 dm_device_eq(count->device, c->in[0]->device)))
    return DM_OK;
  char at[16];
  return dm_fail(DM_EARG,
                 "%s: num_batches_tracked is %s %s on %s, wanted one element of int64 on x's "
                 "device",
                 c->op->name, dm_dtype_name((dm_DType)count->dtype), DM_SHAPE(count),
                 dm_device_name(count->device, at));
}

/* Moves the statistics and counts the batch. It cannot fail on the CPU. */
static dm_status move_running(const dm_Running *r) {
  if (!r->mean && !r->var && !r->count) return DM_OK;
  if (r->root->device.type != DM_CPU) return dm_move_running(r);
  track(r->mean, r->momentum, r->batch_mean, 1);
  track(r->var, r->momentum, r->root, r->unbias);
  if (!r->count) return DM_OK;
  ++*(int64_t *)dm_tensor_data(r->count);
  r->count->storage->version++;
  return DM_OK;
}

/* batch_norm in training. The running statistics are updated last, when nothing can
   fail any more, so that a call that failed can be repeated. running_var takes the
   unbiased variance, var * n / (n - 1), as in PyTorch. */
static dm_status batch_norm_training(dm_Call *c, dm_X *x) {
  const dm_BatchNormAttr *a = DM_ATTR(dm_BatchNormAttr, c);
  dm_Tensor *v = c->in[0], *mean = c->in[1], *var = c->in[2];
  dm_Tensor *in[3] = {v, c->in[3], c->in[4]}, *count = c->n_in > 5 ? c->in[5] : NULL, *out[3];
  DM_TRY(dm_check_running(c, "running_mean", mean));
  DM_TRY(dm_check_running(c, "running_var", var));
  DM_TRY(check_count(c, count));
  /* The variance of a single value is 0 and its unbiased variance 0 / 0; PyTorch
     refuses it too. */
  const double n = v->shape[1] ? (double)(v->numel / v->shape[1]) : 0;
  if (n == 1)
    return dm_fail(DM_EARG, "batch_norm: one value per channel in %s, wanted more to train on",
                   DM_SHAPE(v));
  const int op = a->activation ? DM_OP_batch_norm_relu : DM_OP_batch_norm_train;
  if (!x_call(x, op, &a->eps, 3, in, out)) return x->st;
  c->out[0] = out[0];
  const bool any = n > 0; /* a batch without values is counted alone */
  const dm_Running r = {any ? mean : NULL, any ? var : NULL, count,      out[1], out[2],
                        a->momentum,       a->eps,           n / (n - 1)};
  return move_running(&r);
}

/* The public op: training normalizes with the batch's statistics and updates the
   running ones, evaluation normalizes with the running ones. */
dm_status batch_norm_compose(dm_Call *c, dm_X *x) {
  static const char *const names[] = {"x", "running_mean", "running_var", "weight", "bias"};
  const dm_BatchNormAttr *a = DM_ATTR(dm_BatchNormAttr, c);
  dm_Tensor *v = c->in[0], *mean = c->in[1], *var = c->in[2], *w = c->in[3], *b = c->in[4];
  DM_TRY(dm_check_channels(c, v));
  for (int i = 1; i < 5; i++) DM_TRY(dm_check_affine(c, names[i], c->in[i], v->shape[1]));
  if (a->training) return batch_norm_training(c, x);
  if (!mean || !var)
    return dm_fail(DM_EARG,
                   "batch_norm: running_mean and running_var are wanted when not training");
  dm_Tensor *y = dm_x(x, DM_OP_batch_norm_eval, &a->eps, 5, v, w, b, mean, var);
  c->out[0] = a->activation ? x_unary(x, DM_OP_relu, y) : y;
  return x->st;
}

/* Fills the channel job for x (N, C, L): a channel is N runs of L contiguous elements, or, for
   L = 1, one run of N elements that lie C apart. */
static void describe_channels(dm_ChannelJob *j, const dm_Tensor *x) {
  const int64_t n = x->shape[0], ch = x->shape[1], inner = dm_numel(x->ndim - 2, x->shape + 2);
  const bool flat = inner == 1;
  j->n_run = flat ? 1 : n;
  j->run = flat ? n : inner;
  j->n_channel = ch;
  j->run_step = ch * inner;
  j->channel_step = inner;
  j->dtype = (dm_DType)x->dtype;
  j->x = dm_tensor_data(x);
}
/* Runs fn over all channels in parallel. */
static void for_channels(dm_RangeFn *fn, dm_ChannelJob *j) {
  const int64_t per = j->n_run * j->run;
  if (j->n_channel * per > 0)
    dm_parallel_for(j->n_channel, dm_max_i64(1, DM_POINT_GRAIN / per), fn, j);
}

/* invstd = 1 / sqrt(var + eps) of n channels in the compute type, by float64; they may be the
   same. The gradient that works relu's sign out again relies on these bits. */
static void fill_invstd(dm_DType compute, const void *var, int64_t n, double eps,
                        void *invstd) {
  const int64_t size = dm_dtype_size(compute);
  for (int64_t k = 0; k < n; k++) {
    double v;
    dm_load_f64(compute, (const char *)var + k * size, 1, 1, &v);
    v = 1 / sqrt(v + eps);
    dm_store_f64(compute, (char *)invstd + k * size, 1, 1, &v);
  }
}

/* ---- batch_norm of vectors, whose channels lie side by side ---- */

/* Whether a row of x is a vector of channels. */
static bool has_vectors(const dm_ChannelJob *j) {
  return j->n_run == 1 && j->channel_step == 1 && j->n_channel > 1;
}

/* Runs fn over all rows in parallel. */
static void for_rows(dm_RangeFn *fn, dm_ChannelJob *j) {
  dm_parallel_for(j->run, dm_max_i64(1, DM_POINT_GRAIN / j->n_channel), fn, j);
}

/* Runs fn over parts of the rows, which depend on the shape alone, and gives how many there
   are: j->parts has memory for their sums. */
static dm_status sum_parts(dm_ChannelJob *j, dm_RangeFn *fn, int64_t *n_part) {
  enum { PART = 1 << 14, MOST = 32 }; /* elements worth a part; parts */
  const int64_t n = j->n_channel * j->run;
  const int64_t parts = dm_max_i64(1, dm_min_i64(dm_min_i64(n / PART, MOST), j->run));
  j->rows_per = (j->run + parts - 1) / parts;
  *n_part = (j->run + j->rows_per - 1) / j->rows_per;
  j->parts = dm_scratch(DM_SCRATCH_JOB, *n_part * 2 * j->n_channel * (int64_t)sizeof *j->parts);
  if (!j->parts) return dm_fail(DM_EMEM, "batch_norm: out of memory");
  dm_parallel_for(*n_part, dm_max_i64(1, DM_POINT_GRAIN / (j->rows_per * j->n_channel)), fn, j);
  return DM_OK;
}

/* Mean and biased variance of each channel, in the compute type, by those of the parts. */
static dm_status vectors_moments(dm_ChannelJob *j, dm_DType compute) {
  int64_t n_part;
  DM_TRY(sum_parts(j, loops_of(compute)->vectors_moments, &n_part));
  double *const mean = j->parts, *const m2 = mean + j->n_channel;
  for (int64_t p = 1; p < n_part; p++) {
    const double *const mu = j->parts + 2 * p * j->n_channel, *const sq = mu + j->n_channel;
    const double n = (double)(p * j->rows_per);
    const double k = (double)(dm_min_i64((p + 1) * j->rows_per, j->run)) - n;
    for (int64_t c = 0; c < j->n_channel; c++) {
      const double d = mu[c] - mean[c];
      m2[c] += sq[c] + d * d * (n * k / (n + k));
      mean[c] += d * (k / (n + k));
    }
  }
  for (int64_t c = 0; c < j->n_channel; c++) m2[c] /= (double)j->run;
  dm_convert(DM_F64, mean, compute, j->mean, j->n_channel);
  dm_convert(DM_F64, m2, compute, j->var, j->n_channel);
  dm_scratch_trim(DM_SCRATCH_JOB);
  return DM_OK;
}

/* All gradients of vectors. */
static dm_status vectors_backward(dm_ChannelJob *j, dm_DType compute) {
  int64_t n_part;
  const int64_t size = dm_dtype_size(compute);
  DM_TRY(sum_parts(j, loops_of(compute)->vectors_sums, &n_part));
  double *const s1 = j->parts, *const s2 = s1 + j->n_channel;
  for (int64_t p = 1; p < n_part; p++)
    for (int64_t i = 0; i < 2 * j->n_channel; i++) s1[i] += s1[2 * p * j->n_channel + i];
  dm_convert(DM_F64, s1, compute, j->gb, j->n_channel);
  for (int64_t c = 0; c < j->n_channel; c++) {
    double inv, gw;
    dm_load_f64(compute, (const char *)j->invstd + c * size, 1, 1, &inv);
    gw = s2[c] * inv;
    dm_store_f64(compute, (char *)j->gw + c * size, 1, 1, &gw);
  }
  for_rows(loops_of(compute)->vectors_backward, j);
  dm_scratch_trim(DM_SCRATCH_JOB);
  return DM_OK;
}

/* out: y, and mean and biased variance (C) in the compute type, which the gradient
   uses; outside the CPU 1 / sqrt(var + eps) in place of the variance. */
dm_status batch_norm_train_rule(dm_Call *c) {
  return out_and_vectors(c, c->in[0], c->in[0]->shape[1]);
}

/* Mean and variance of every channel in one pass of merged blocks (Chan, Golub &
   LeVeque 1979), then the normalization in a second pass over the channel. A channel
   without elements has mean and variance 0. */
static dm_status train_cpu(dm_Call *c, bool relu) {
  dm_Tensor *x = NULL;
  void *own_w = NULL, *own_b = NULL, *invstd = NULL;
  dm_ChannelJob j = {.eps = DM_ATTR(dm_EpsAttr, c)->eps,
                     .relu = relu,
                     .y = dm_tensor_data(c->out[0]),
                     .mean = dm_tensor_data(c->out[1]),
                     .var = dm_tensor_data(c->out[2])};
  dm_status st = DM_OK;
  if (c->out[0]->numel == 0) {
    if (c->out[1]->numel == 0) return DM_OK;
    memset(j.mean, 0, (size_t)dm_tensor_bytes(c->out[1]));
    memset(j.var, 0, (size_t)dm_tensor_bytes(c->out[2]));
    return DM_OK;
  }
  DM_GO(dm_dense_new(c->in[0], &x));
  describe_channels(&j, x);
  const dm_DType compute = dm_compute_dtype(j.dtype);
  const int64_t channels = x->shape[1];
  if (c->in[1]) DM_GO(affine(c->in[1], channels, compute, 1, &own_w, &j.w));
  if (c->in[2]) DM_GO(affine(c->in[2], channels, compute, 0, &own_b, &j.b));
  if (!has_vectors(&j)) {
    for_channels(loops_of(compute)->channels_train, &j);
  } else {
    DM_GO(vectors_moments(&j, compute));
    if (!(j.invstd = invstd = dm_alloc(channels * dm_dtype_size(compute)))) {
      st = dm_fail(DM_EMEM, "batch_norm: out of memory");
      goto done;
    }
    fill_invstd(compute, j.var, channels, j.eps, invstd);
    for_rows(loops_of(compute)->vectors_forward, &j);
  }
done:
  dm_free(invstd);
  dm_free(own_w);
  dm_free(own_b);
  dm_tensor_unref(&x);
  return st;
}

dm_status batch_norm_train_cpu(dm_Call *c) { return train_cpu(c, false); }

/* The outputs of batch_norm_train, and relu over the first, which the CPU's gradient can do
   without. */
dm_status batch_norm_relu_rule(dm_Call *c) {
  if (c->in[0]->device.type == DM_CPU) c->save &= ~(uint32_t)O0;
  return batch_norm_train_rule(c);
}
dm_status batch_norm_relu_cpu(dm_Call *c) { return train_cpu(c, true); }

/* x (N, C, ...), weight, bias, mean, var (C) -> x's shape and dtype. */
dm_status batch_norm_eval_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  return DM_OK;
}
/* y = (x - mean) * invstd * weight + bias with given statistics. */
static dm_status eval_cpu(dm_Call *c, bool relu) {
  dm_Tensor *x = NULL;
  void *own[3] = {NULL}, *invstd = NULL;
  const void *mean, *var;
  dm_ChannelJob j = {.y = dm_tensor_data(c->out[0]), .relu = relu};
  dm_status st = DM_OK;
  if (c->out[0]->numel == 0) return DM_OK;
  DM_GO(dm_dense_new(c->in[0], &x));
  describe_channels(&j, x);
  const dm_DType compute = dm_compute_dtype(j.dtype);
  const int64_t channels = x->shape[1];
  if (c->in[1]) DM_GO(affine(c->in[1], channels, compute, 1, &own[0], &j.w));
  if (c->in[2]) DM_GO(affine(c->in[2], channels, compute, 0, &own[1], &j.b));
  DM_GO(affine(c->in[3], channels, compute, 0, &own[2], &mean));
  DM_GO(affine(c->in[4], channels, compute, 1, &invstd, &var));
  if (!invstd && !(invstd = dm_alloc(channels * dm_dtype_size(compute)))) {
    st = dm_fail(DM_EMEM, "batch_norm: out of memory");
    goto done;
  }
  fill_invstd(compute, var, channels, DM_ATTR(dm_EpsAttr, c)->eps, invstd);
  j.mean = (void *)(uintptr_t)mean; /* only read by channels_eval */
  j.invstd = invstd;
  if (has_vectors(&j)) for_rows(loops_of(compute)->vectors_forward, &j);
  else for_channels(loops_of(compute)->channels_eval, &j);
done:
  for (int i = 0; i < 3; i++) dm_free(own[i]);
  dm_free(invstd);
  dm_tensor_unref(&x);
  return st;
}

dm_status batch_norm_eval_cpu(dm_Call *c) { return eval_cpu(c, false); }
dm_status batch_norm_relu_eval_cpu(dm_Call *c) { return eval_cpu(c, true); }

/* in: gy, x, weight, mean, invstd, and relu's bias; out: dx, dweight, dbias. */
dm_status batch_norm_backward_rule(dm_Call *c) {
  return out_and_vectors(c, c->in[1], c->in[1]->shape[1]);
}
/* The largest number that becomes 0 when it is rounded to the dtype: half of the least one. */
static double largest_zero(dm_DType dtype) {
  const dm_DTypeInfo *const of = &dm_dtypes[dtype];
  return dm_is_low(dtype) ? of->tiny * of->eps / 2 : 0;
}
/* training: dx = w invstd (gy - dbias / n - xhat dweight / n), else dx = w invstd
   gy. */
static dm_status backward_cpu(dm_Call *c, bool relu) {
  dm_Tensor *x = NULL, *gy = NULL;
  void *own[4] = {NULL};
  const void *mean, *invstd;
  dm_ChannelJob j = {.y = dm_tensor_data(c->out[0]),
                     .gw = dm_tensor_data(c->out[1]),
                     .gb = dm_tensor_data(c->out[2]),
                     .training = DM_ATTR(dm_BatchNormBackwardAttr, c)->training,
                     .relu = relu};
  dm_status st = DM_OK;
  DM_GO(dm_dense_new(c->in[0], &gy));
  DM_GO(dm_dense_new(c->in[1], &x));
  describe_channels(&j, x);
  j.gy = dm_tensor_data(gy);
  j.gy_dtype = (dm_DType)gy->dtype;
  j.floor = largest_zero(j.dtype);
  const dm_DType compute = dm_compute_dtype(j.dtype);
  const int64_t channels = x->shape[1];
  if (c->in[2]) DM_GO(affine(c->in[2], channels, compute, 1, &own[0], &j.w));
  DM_GO(affine(c->in[3], channels, compute, 0, &own[1], &mean));
  DM_GO(affine(c->in[4], channels, compute, 0, &own[2], &invstd));
  if (relu && c->in[5]) DM_GO(affine(c->in[5], channels, compute, 0, &own[3], &j.b));
  j.mean = (void *)(uintptr_t)mean; /* only read by channels_backward */
  j.invstd = (void *)(uintptr_t)invstd;
  if (x->numel == 0 && channels > 0) {
    memset(j.gw, 0, (size_t)dm_tensor_bytes(c->out[1]));
    memset(j.gb, 0, (size_t)dm_tensor_bytes(c->out[2]));
  }
  if (x->numel > 0 && has_vectors(&j)) DM_GO(vectors_backward(&j, compute));
  else for_channels(loops_of(compute)->channels_backward, &j);
done:
  for (int i = 0; i < 4; i++) dm_free(own[i]);
  dm_tensor_unref(&x);
  dm_tensor_unref(&gy);
  return st;
}
dm_status batch_norm_backward_cpu(dm_Call *c) { return backward_cpu(c, false); }
dm_status batch_norm_relu_backward_cpu(dm_Call *c) { return backward_cpu(c, true); }

/* t (C) in the compute type, reshaped to (1, C, 1, ...) to broadcast over x. */
static dm_Tensor *by_channel(dm_X *x, dm_Tensor *t, const dm_Meta *m) {
  int64_t shape[DM_MAX_DIM];
  for (int d = 0; d < m->ndim; d++) shape[d] = d == 1 ? m->shape[1] : 1;
  return x_reshape(x, x_cast(x, t, compute_of(m)), m->ndim, shape);
}
/* The dims 0, 2, 3, ... that batch_norm's sums are taken over. */
static dm_Ints all_but_channel(const dm_Meta *m) {
  dm_Ints dims = {m->ndim - 1, {0}};
  for (int d = 2; d < m->ndim; d++) dims.v[d - 1] = d;
  return dims;
}

/* 1 / sqrt(var + eps) in the compute type. */
static dm_Tensor *invstd_of(dm_Grad *g, dm_Tensor *var) {
  const double eps = DM_ATTR(dm_EpsAttr, g)->eps;
  dm_Tensor *v = x_cast(g->x, var, compute_of(dm_in_meta(g, 0)));
  if (g->create_graph || dm_in_meta(g, 0)->device.type != DM_CPU)
    return x_unary(g->x, DM_OP_rsqrt, x_shift(g->x, v, eps));
  v = x_unary(g->x, DM_OP_clone, v);
  if (v) fill_invstd((dm_DType)v->dtype, dm_tensor_data(v), v->numel, eps, dm_tensor_data(v));
  return v;
}
/* All gradients of batch_norm by the fused op; `training` says whether mean and invstd
   depend on x or are constants. */
static void channels_grad(dm_Grad *g, int op, dm_Tensor *mean, dm_Tensor *invstd,
                          int64_t training) {
  dm_Tensor *in[6] = {g->gy[0], g->in[0], g->in[1], mean, invstd, g->in[2]};
  (void)x_call(g->x, op, &training, op == DM_OP_batch_norm_backward ? 5 : 6, in, g->gx);
}

/* mean and var depend on x here, which gives the two mean terms of dx. */
void batch_norm_train_grad(dm_Grad *g) {
  dm_X *x = g->x;
  const dm_Meta *m = dm_in_meta(g, 0);
  if (!g->gy[0]) return;
  if (!g->create_graph) {
    const bool is_cpu = m->device.type == DM_CPU;
    channels_grad(g, DM_OP_batch_norm_backward, g->out[1],
                  is_cpu ? invstd_of(g, g->out[2]) : g->out[2], true);
    return;
  }
  const dm_Ints dims = all_but_channel(m);
  dm_Tensor *gy = x_cast(x, g->gy[0], compute_of(m)), *gh = gy, *xhat;
  if (g->in[1]) gh = x_mul(x, gy, by_channel(x, g->in[1], m));
  g->gx[0] = x_norm_back(x, gh, x_cast(x, g->in[0], compute_of(m)), dims,
                         DM_ATTR(dm_EpsAttr, g)->eps, &xhat);
  if (g->need[1]) g->gx[1] = x_sum(x, x_mul(x, gy, xhat), dims, false);
  if (g->need[2]) g->gx[2] = x_sum(x, gy, dims, false);
}

/* On the CPU one pass masks and sums. Elsewhere, and with create_graph, relu's own gradient
   comes first, which may overwrite gy and reads y; the CPU, which has not kept y, computes it
   again. */
void batch_norm_relu_grad(dm_Grad *g) {
  const bool is_cpu = dm_in_meta(g, 0)->device.type == DM_CPU;
  dm_Tensor *none[1] = {NULL}, *passes[3] = {NULL}, *y = g->out[0];
  if (!g->gy[0]) return;
  if (is_cpu && !g->create_graph) {
    channels_grad(g, DM_OP_batch_norm_relu_backward, g->out[1], invstd_of(g, g->out[2]), true);
    return;
  }
  if (is_cpu)
    y = dm_x(g->x, DM_OP_batch_norm_eval, g->attr, 5, g->in[0], g->in[1], g->in[2], g->out[1],
             g->out[2]);
  dm_Grad relu = *g, norm = *g;
  relu.op = &dm_ops[DM_OP_relu];
  relu.attr = NULL;
  relu.in = none;
  relu.out = &y;
  relu.gx = passes;
  unary_grad(&relu);
  norm.gy = passes;
  if (passes[0]) batch_norm_train_grad(&norm);
}

/* mean and var are constants: dx = gy weight invstd, dweight = sum(gy xhat), dbias =
   sum(gy). */
void batch_norm_eval_grad(dm_Grad *g) {
  dm_X *x = g->x;
  const dm_Meta *m = dm_in_meta(g, 0);
  const dm_Ints dims = all_but_channel(m);
  dm_Tensor *invstd = invstd_of(g, g->in[4]);
  if (!g->create_graph) {
    channels_grad(g, DM_OP_batch_norm_backward, g->in[3], invstd, false);
    return;
  }
  dm_Tensor *gy = x_cast(x, g->gy[0], compute_of(m)), *r = by_channel(x, invstd, m), *gh = gy;
  if (g->in[1]) gh = x_mul(x, gy, by_channel(x, g->in[1], m));
  g->gx[0] = x_mul(x, gh, r);
  dm_Tensor *d = x_sub(x, x_cast(x, g->in[0], compute_of(m)), by_channel(x, g->in[3], m));
  if (g->need[1]) g->gx[1] = x_sum(x, x_mul(x, gy, x_mul(x, d, r)), dims, false);
  if (g->need[2]) g->gx[2] = x_sum(x, gy, dims, false);
}
