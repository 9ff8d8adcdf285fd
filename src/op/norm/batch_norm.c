/* batch_norm (Ioffe & Szegedy 2015), forward and backward, with a ReLU too: it normalizes the N
   L elements of each channel of x (N, C, L), as norm.c says. A channel's runs are worked on one
   after another (cpu/loops/norm.inc); vectors x (N, C) row after row (norm_vectors.inc).

   The moments are saved for the backward pass. Statistics that are given, in evaluation, do not
   depend on x, so that the two subtracted means of dx drop out. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "core/copy.h"
#include "cpu/scratch.h"
#include "cpu/vec.h"
#include "op/norm/norm.h"
#include "op/norm/norm_cpu.h"
#include "op/optim/optim.h"
#include "op/pointwise/pointwise.h"
#include "op/reduce/reduce.h"

/* ---- running statistics ---- */

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
enum { RELU6 = 2 }; /* of the option activation */
static const double SIX = 6;
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
  /* The CPU's kernel cuts at 6, too; elsewhere relu6 follows. */
  const bool is_six = a->activation == RELU6, is_cpu = v->device.type == DM_CPU;
  const int op =
      a->activation && (is_cpu || !is_six) ? DM_OP_batch_norm_relu : DM_OP_batch_norm_train;
  const dm_BatchNormReluAttr how = {a->eps, is_six ? SIX : (double)INFINITY};
  if (!x_call(x, op, &how, 3, in, out)) return x->st;
  c->out[0] = is_six && !is_cpu ? x_unary(x, DM_OP_relu6, out[0]) : out[0];
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
  c->out[0] =
      a->activation ? x_unary(x, a->activation == RELU6 ? DM_OP_relu6 : DM_OP_relu, y) : y;
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

/* Runs fn over all channels in parallel, in chunks of DM_POINT_GRAIN elements, or of a quarter
   where threads would have none: fn reads its channels several times. */
static void for_channels(dm_RangeFn *fn, dm_ChannelJob *j) {
  const int64_t per = j->n_run * j->run, share = j->n_channel / dm_threads_here();
  if (j->n_channel * per > 0)
    dm_parallel_for(j->n_channel,
                    dm_max_i64(dm_max_i64(1, DM_POINT_GRAIN / 4 / per),
                               dm_min_i64(share, DM_POINT_GRAIN / per)),
                    fn, j);
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

/* Runs fn over all rows in parallel, in chunks of DM_POINT_GRAIN elements or of MOST rows: fn
   works out the numbers of all channels first, which takes as long as a few rows. */
static void for_rows(dm_RangeFn *fn, dm_ChannelJob *j) {
  enum { MOST = 64 };
  const int64_t share = dm_min_i64(MOST, j->run / (2 * dm_threads_here()));
  dm_parallel_for(j->run, dm_max_i64(dm_max_i64(1, DM_POINT_GRAIN / j->n_channel), share), fn,
                  j);
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
  DM_TRY(sum_parts(j, dm_norm_loops(compute)->vectors_moments, &n_part));
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
  DM_TRY(sum_parts(j, dm_norm_loops(compute)->vectors_sums, &n_part));
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
  if (j->training) for_rows(dm_norm_loops(compute)->vectors_backward, j);
  dm_scratch_trim(DM_SCRATCH_JOB);
  return DM_OK;
}

/* out: y, and mean and biased variance (C) in the compute type, which the gradient
   uses; outside the CPU 1 / sqrt(var + eps) in place of the variance. */
dm_status batch_norm_train_rule(dm_Call *c) {
  return dm_norm_metas(c, c->in[0], c->in[0]->shape[1]);
}

/* Mean and variance of every channel in one pass of merged blocks (Chan, Golub &
   LeVeque 1979), then the normalization in a second pass over the channel. A channel
   without elements has mean and variance 0. */
static dm_status train_cpu(dm_Call *c, double eps, const double *top) {
  dm_Tensor *x = NULL;
  void *own_w = NULL, *own_b = NULL, *invstd = NULL;
  dm_ChannelJob j = {.eps = eps,
                     .relu = top != NULL,
                     .top = top ? *top : 0,
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
  if (c->in[1]) DM_GO(dm_norm_affine(c->in[1], channels, compute, 1, &own_w, &j.w));
  if (c->in[2]) DM_GO(dm_norm_affine(c->in[2], channels, compute, 0, &own_b, &j.b));
  if (!has_vectors(&j)) {
    for_channels(dm_norm_loops(compute)->channels_train, &j);
  } else {
    DM_GO(vectors_moments(&j, compute));
    if (!(j.invstd = invstd = dm_alloc(channels * dm_dtype_size(compute)))) {
      st = dm_fail(DM_EMEM, "batch_norm: out of memory");
      goto done;
    }
    fill_invstd(compute, j.var, channels, j.eps, invstd);
    for_rows(dm_norm_loops(compute)->vectors_forward, &j);
  }
done:
  dm_free(invstd);
  dm_free(own_w);
  dm_free(own_b);
  dm_tensor_unref(&x);
  return st;
}

dm_status batch_norm_train_cpu(dm_Call *c) {
  return train_cpu(c, DM_ATTR(dm_EpsAttr, c)->eps, NULL);
}

/* The outputs of batch_norm_train, and relu over the first, which the CPU's gradient can do
   without. */
dm_status batch_norm_relu_rule(dm_Call *c) {
  if (c->in[0]->device.type == DM_CPU) c->save &= ~(uint32_t)O0;
  return batch_norm_train_rule(c);
}
dm_status batch_norm_relu_cpu(dm_Call *c) {
  const dm_BatchNormReluAttr *a = DM_ATTR(dm_BatchNormReluAttr, c);
  return train_cpu(c, a->eps, &a->top);
}

/* x (N, C, ...), weight, bias, mean, var (C) -> x's shape and dtype. */
dm_status batch_norm_eval_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  return DM_OK;
}
/* y = (x - mean) * invstd * weight + bias with given statistics. */
static dm_status eval_cpu(dm_Call *c, double eps, const double *top) {
  dm_Tensor *x = NULL;
  void *own[3] = {NULL}, *invstd = NULL;
  const void *mean, *var;
  dm_ChannelJob j = {
      .y = dm_tensor_data(c->out[0]), .relu = top != NULL, .top = top ? *top : 0};
  dm_status st = DM_OK;
  if (c->out[0]->numel == 0) return DM_OK;
  DM_GO(dm_dense_new(c->in[0], &x));
  describe_channels(&j, x);
  const dm_DType compute = dm_compute_dtype(j.dtype);
  const int64_t channels = x->shape[1];
  if (c->in[1]) DM_GO(dm_norm_affine(c->in[1], channels, compute, 1, &own[0], &j.w));
  if (c->in[2]) DM_GO(dm_norm_affine(c->in[2], channels, compute, 0, &own[1], &j.b));
  DM_GO(dm_norm_affine(c->in[3], channels, compute, 0, &own[2], &mean));
  DM_GO(dm_norm_affine(c->in[4], channels, compute, 1, &invstd, &var));
  if (!invstd && !(invstd = dm_alloc(channels * dm_dtype_size(compute)))) {
    st = dm_fail(DM_EMEM, "batch_norm: out of memory");
    goto done;
  }
  fill_invstd(compute, var, channels, eps, invstd);
  j.mean = (void *)(uintptr_t)mean; /* only read by channels_eval */
  j.invstd = invstd;
  if (has_vectors(&j)) for_rows(dm_norm_loops(compute)->vectors_forward, &j);
  else for_channels(dm_norm_loops(compute)->channels_eval, &j);
done:
  for (int i = 0; i < 3; i++) dm_free(own[i]);
  dm_free(invstd);
  dm_tensor_unref(&x);
  return st;
}

dm_status batch_norm_eval_cpu(dm_Call *c) {
  return eval_cpu(c, DM_ATTR(dm_EpsAttr, c)->eps, NULL);
}
dm_status batch_norm_relu_eval_cpu(dm_Call *c) {
  const dm_BatchNormReluAttr *a = DM_ATTR(dm_BatchNormReluAttr, c);
  return eval_cpu(c, a->eps, &a->top);
}

/* in: gy, x, weight, mean, invstd, and relu's bias; out: dx, dweight, dbias. */
dm_status batch_norm_backward_rule(dm_Call *c) {
  return dm_norm_metas(c, c->in[1], c->in[1]->shape[1]);
}
/* The largest number that becomes 0 when it is rounded to the dtype: half of the least one. */
static double largest_zero(dm_DType dtype) {
  const dm_DTypeInfo *const of = &dm_dtypes[dtype];
  return dm_is_low(dtype) ? of->tiny * of->eps / 2 : 0;
}
/* The least number that becomes `top`, 6 or infinity, when it is rounded to the dtype: the
   middle of 6 and the number below it, which is odd. Numbers from 4 to 8 are 4 eps apart. */
static double least_top(dm_DType dtype, double top) {
  return dm_is_low(dtype) ? top - 2 * dm_dtypes[dtype].eps : top;
}
/* training: dx = w invstd (gy - dbias / n - xhat dweight / n), else dx = w invstd
   gy. */
static dm_status backward_cpu(dm_Call *c, bool training, const double *top) {
  dm_Tensor *x = NULL, *gy = NULL;
  void *own[4] = {NULL};
  const void *mean, *invstd;
  dm_ChannelJob j = {.y = dm_tensor_data(c->out[0]),
                     .gw = dm_tensor_data(c->out[1]),
                     .gb = dm_tensor_data(c->out[2]),
                     .training = training,
                     .relu = top != NULL};
  dm_status st = DM_OK;
  DM_GO(dm_dense_new(c->in[0], &gy));
  DM_GO(dm_dense_new(c->in[1], &x));
  describe_channels(&j, x);
  j.gy = dm_tensor_data(gy);
  j.gy_dtype = (dm_DType)gy->dtype;
  j.floor = largest_zero(j.dtype);
  if (top) j.top = least_top(j.dtype, *top);
  const dm_DType compute = dm_compute_dtype(j.dtype);
  const int64_t channels = x->shape[1];
  if (c->in[2]) DM_GO(dm_norm_affine(c->in[2], channels, compute, 1, &own[0], &j.w));
  DM_GO(dm_norm_affine(c->in[3], channels, compute, 0, &own[1], &mean));
  DM_GO(dm_norm_affine(c->in[4], channels, compute, 0, &own[2], &invstd));
  if (top && c->in[5]) DM_GO(dm_norm_affine(c->in[5], channels, compute, 0, &own[3], &j.b));
  j.mean = (void *)(uintptr_t)mean; /* only read by channels_backward */
  j.invstd = (void *)(uintptr_t)invstd;
  if (x->numel == 0 && channels > 0) {
    memset(j.gw, 0, (size_t)dm_tensor_bytes(c->out[1]));
    memset(j.gb, 0, (size_t)dm_tensor_bytes(c->out[2]));
  }
  if (x->numel > 0 && has_vectors(&j)) DM_GO(vectors_backward(&j, compute));
  else for_channels(dm_norm_loops(compute)->channels_backward, &j);
done:
  for (int i = 0; i < 4; i++) dm_free(own[i]);
  dm_tensor_unref(&x);
  dm_tensor_unref(&gy);
  return st;
}
dm_status batch_norm_backward_cpu(dm_Call *c) {
  return backward_cpu(c, DM_ATTR(dm_BatchNormBackwardAttr, c)->training, NULL);
}
dm_status batch_norm_relu_backward_cpu(dm_Call *c) {
  const dm_BatchNormReluBackwardAttr *a = DM_ATTR(dm_BatchNormReluBackwardAttr, c);
  return backward_cpu(c, a->training, &a->top);
}

/* t (C) in the compute type, reshaped to (1, C, 1, ...) to broadcast over x. */
static dm_Tensor *by_channel(dm_X *x, dm_Tensor *t, const dm_Meta *m) {
  int64_t shape[DM_MAX_DIM];
  for (int d = 0; d < m->ndim; d++) shape[d] = d == 1 ? m->shape[1] : 1;
  return x_reshape(x, x_cast(x, t, dm_compute_of(m)), m->ndim, shape);
}
/* The dims 0, 2, 3, ... that batch_norm's sums are taken over. */
static dm_Ints all_but_channel(const dm_Meta *m) {
  dm_Ints dims = {m->ndim - 1, {0}};
  for (int d = 2; d < m->ndim; d++) dims.v[d - 1] = d;
  return dims;
}

/* 1 / sqrt(var + eps) in the compute type. */
static dm_Tensor *invstd_of(dm_Grad *g, double eps, dm_Tensor *var) {
  dm_Tensor *v = x_cast(g->x, var, dm_compute_of(dm_in_meta(g, 0)));
  if (g->create_graph || dm_in_meta(g, 0)->device.type != DM_CPU)
    return x_unary(g->x, DM_OP_rsqrt, x_shift(g->x, v, eps));
  v = x_unary(g->x, DM_OP_clone, v);
  if (v) fill_invstd((dm_DType)v->dtype, dm_tensor_data(v), v->numel, eps, dm_tensor_data(v));
  return v;
}
/* All gradients of batch_norm by the fused op; `training` says whether mean and invstd
   depend on x or are constants. */
static void channels_grad(dm_Grad *g, dm_Tensor *mean, dm_Tensor *invstd, bool training) {
  const dm_BatchNormBackwardAttr how = {training};
  dm_Tensor *in[5] = {g->gy[0], g->in[0], g->in[1], mean, invstd};
  (void)x_call(g->x, DM_OP_batch_norm_backward, &how, 5, in, g->gx);
}

/* mean and var depend on x here, which gives the two mean terms of dx. */
static void train_grad(dm_Grad *g, double eps) {
  dm_X *x = g->x;
  const dm_Meta *m = dm_in_meta(g, 0);
  if (!g->gy[0]) return;
  if (!g->create_graph) {
    const bool is_cpu = m->device.type == DM_CPU;
    channels_grad(g, g->out[1], is_cpu ? invstd_of(g, eps, g->out[2]) : g->out[2], true);
    return;
  }
  const dm_Ints dims = all_but_channel(m);
  dm_Tensor *gy = x_cast(x, g->gy[0], dm_compute_of(m)), *gh = gy, *xhat;
  if (g->in[1]) gh = x_mul(x, gy, by_channel(x, g->in[1], m));
  g->gx[0] = x_norm_back(x, gh, x_cast(x, g->in[0], dm_compute_of(m)), dims, eps, &xhat);
  if (g->need[1]) g->gx[1] = x_sum(x, x_mul(x, gy, xhat), dims, false);
  if (g->need[2]) g->gx[2] = x_sum(x, gy, dims, false);
}
void batch_norm_train_grad(dm_Grad *g) { train_grad(g, DM_ATTR(dm_EpsAttr, g)->eps); }

/* On the CPU one pass masks and sums. Elsewhere, and with create_graph, the gradient of relu,
   or of relu6, comes first, which may overwrite gy and reads y, or the norm; the CPU, which has
   not kept either, computes the norm again. */
void batch_norm_relu_grad(dm_Grad *g) {
  const dm_BatchNormReluAttr *a = DM_ATTR(dm_BatchNormReluAttr, g);
  const bool is_cpu = dm_in_meta(g, 0)->device.type == DM_CPU;
  dm_Tensor *none[1] = {NULL}, *passes[3] = {NULL}, *y = g->out[0];
  if (!g->gy[0]) return;
  if (is_cpu && !g->create_graph) {
    const dm_BatchNormReluBackwardAttr how = {true, a->top};
    dm_Tensor *in[6] = {
        g->gy[0], g->in[0], g->in[1], g->out[1], invstd_of(g, a->eps, g->out[2]), g->in[2]};
    (void)x_call(g->x, DM_OP_batch_norm_relu_backward, &how, 6, in, g->gx);
    return;
  }
  if (is_cpu) {
    const dm_EpsAttr eps = {a->eps};
    y = dm_x(g->x, DM_OP_batch_norm_eval, &eps, 5, g->in[0], g->in[1], g->in[2], g->out[1],
             g->out[2]);
  }
  const bool is_six = a->top < (double)INFINITY;
  const dm_HardtanhAttr to_six = {0, a->top};
  dm_Grad relu = *g, norm = *g;
  relu.op = &dm_ops[is_six ? DM_OP_hardtanh : DM_OP_relu];
  relu.attr = is_six ? &to_six : NULL;
  relu.in = is_six ? &y : none;
  relu.out = is_six ? none : &y;
  relu.gx = passes;
  unary_grad(&relu);
  norm.gy = passes;
  if (passes[0]) train_grad(&norm, a->eps);
}

/* mean and var are constants: dx = gy weight invstd, dweight = sum(gy xhat), dbias =
   sum(gy). */
void batch_norm_eval_grad(dm_Grad *g) {
  dm_X *x = g->x;
  const dm_Meta *m = dm_in_meta(g, 0);
  const dm_Ints dims = all_but_channel(m);
  dm_Tensor *invstd = invstd_of(g, DM_ATTR(dm_EpsAttr, g)->eps, g->in[4]);
  if (!g->create_graph) {
    channels_grad(g, g->in[3], invstd, false);
    return;
  }
  dm_Tensor *gy = x_cast(x, g->gy[0], dm_compute_of(m)), *r = by_channel(x, invstd, m),
            *gh = gy;
  if (g->in[1]) gh = x_mul(x, gy, by_channel(x, g->in[1], m));
  g->gx[0] = x_mul(x, gh, r);
  dm_Tensor *d = x_sub(x, x_cast(x, g->in[0], dm_compute_of(m)), by_channel(x, g->in[3], m));
  if (g->need[1]) g->gx[1] = x_sum(x, x_mul(x, gy, x_mul(x, d, r)), dims, false);
  if (g->need[2]) g->gx[2] = x_sum(x, gy, dims, false);
}
