/* batch_norm, in training by the batch's statistics and in evaluation by the running ones.

   x is (N, C, ...), in rows or channels last. Training takes two passes: one over x for the
   moments of each channel (channels.cuh; Welford 1962 or runs joined by Chan et al. 1979), and
   one that applies y = (x - mean) * scale + shift, with scale and shift computed per channel.
   The backward has the same two passes: sums gw and gb first, then gx. cuDNN is asked first in
   training (dnn_norm.c). */
#include "kernels/channels.cuh"
#include "kernels/layout.h"
#include "kernels/norm.h"
#include "kernels/plans.h"

/* ---- the moments of each channel ---- */

/* The reducer of the moments. mean and var (C) are in the compute type; the variance is the
   biased one. */
template <class C, class T> struct BatchMoments : JoinMoments {
  typedef Moments<C> State;
  dm_From<T> x;
  C *mean, *var;
  __device__ void enter(int64_t) {}
  template <int V> __device__ void add(State &s, int64_t, int64_t i) const {
    C v[V];
    load_run<C, T, V>(x, i, v);
    JoinMoments::add<C, V>(s, v);
  }
  template <int V> struct Known {};
  template <int V> __device__ void enter_run(int64_t, Known<V> &) const {}
  template <int V>
  __device__ void add_run(State *s, const Known<V> &, int64_t, int64_t i) const {
    C v[V];
    load_run<C, T, V>(x, i, v);
    const C n = s[0].n + 1, share = C(1) / n;
    for (int k = 0; k < V; k++) { /* Welford 1962; the channels of a run have the same count */
      const C d = v[k] - s[k].mean;
      s[k].n = n;
      s[k].mean += d * share;
      s[k].m2 += d * (v[k] - s[k].mean);
    }
  }
  __device__ void finish(int64_t c, const State &s) const {
    mean[c] = s.mean;
    var[c] = s.m2 / s.n;
  }
};

/* 16-byte loads where shape and address allow them. */
template <class C, class T>
static dm_status reduce_runs(BatchMoments<C, T> reducer, const Channels &ch) {
  const int V = dm_run_size<T>();
  if (has_runs(ch, V) && runs_of(reducer.x, 16))
    return reduce_channels<BatchMoments<C, T>, V>(reducer, ch);
  return reduce_channels<BatchMoments<C, T>, 1>(reducer, ch);
}

/* ---- the formula of each element ---- */

/* The forward's formula, y = (x - mean) * scale + shift with scale = weight / sqrt(var +
   eps); or relu of that, where a NaN stays. */
template <class C> struct Forward {
  dm_Vector w, b, mean, var;
  C eps;
  bool relu;
  struct At {
    C mu, scale, shift, least;
    __device__ C value(C x, C) const {
      const C y = (x - mu) * scale + shift;
      return y < least ? least : y;
    }
  };
  __device__ At at(int64_t c) const {
    const C invstd = C(1) / root(var.at(c, C(1)) + eps);
    return {mean.at(c, C(0)), invstd * w.at(c, C(1)), b.at(c, C(0)),
            relu ? C(0) : -(C)INFINITY};
  }
};

/* The backward's formula. In training gx = w invstd (gy - gb / n - xhat gw / n), as mean and
   variance depend on x; in evaluation gx = w invstd gy. */
template <class C> struct Backward {
  dm_Vector w, mean, invstd;
  const C *gw, *gb;
  C over; /* 1 / n, n elements per channel; 0: not training */
  struct At {
    C mu, a, k1, k2;
    __device__ C value(C x, C gy) const { return a * (gy - k1 - (x - mu) * k2); }
  };
  __device__ At at(int64_t c) const {
    const C r = invstd.at(c, C(1)), mu = mean.at(c, C(0)), a = r * w.at(c, C(1));
    if (over == 0) return {mu, a, C(0), C(0)};
    return {mu, a, gb[c] * over, gw[c] * over * r};
  }
};

/* Applies a formula to every element, V neighbours of one channel per thread. gy is NULL for
   the forward. */
template <class Fn, class C, class T, int V>
static __global__ void __launch_bounds__(DM_THREADS)
    apply_kernel(Fn fn, dm_From<T> x, dm_From<T> gy, dm_To<T> y, Channels ch, int64_t numel) {
  for (int64_t i = dm_thread() * V; i < numel; i += dm_threads() * V) {
    /* `line` counts (outer, channels). */
    const int64_t line = dm_quotient(i, ch.inner);
    const typename Fn::At at = fn.at(line - dm_quotient(line, ch.channels) * ch.channels);
    C v[V], g[V] = {};
    load_run<C, T, V>(x, i, v);
    if (gy) load_run<C, T, V>(gy, i, g);
    for (int k = 0; k < V; k++) v[k] = at.value(v[k], g[k]);
    store_run<C, T, V>(y, i, v);
  }
}

/* The same for inner == 1: a block is `lanes` runs of V channels wide. A thread computes its
   channels' constants once and applies them to all rows of its chunk. */
template <class Fn, class C, class T, int V>
static __global__ void __launch_bounds__(DM_THREADS)
    apply_columns_kernel(Fn fn, dm_From<T> x, dm_From<T> gy, dm_To<T> y, Channels ch,
                         int lanes) {
  const int t = threadIdx.x, rows = DM_THREADS / lanes;
  const int64_t c = ((int64_t)blockIdx.x * lanes + (t & (lanes - 1))) * V;
  const int64_t lo = blockIdx.y * ch.chunk;
  const int64_t hi = lo + ch.chunk < ch.outer ? lo + ch.chunk : ch.outer;
  typename Fn::At at[V];
  if (c >= ch.channels) return;
  for (int k = 0; k < V; k++) at[k] = fn.at(c + k);
  for (int64_t n = lo + t / lanes; n < hi; n += rows) {
    C v[V], g[V] = {};
    load_run<C, T, V>(x, n * ch.channels + c, v);
    if (gy) load_run<C, T, V>(gy, n * ch.channels + c, g);
    for (int k = 0; k < V; k++) v[k] = at[k].value(v[k], g[k]);
    store_run<C, T, V>(y, n * ch.channels + c, v);
  }
}

template <class Fn, class C, class T, int V>
static dm_status apply_columns(const Fn &fn, dm_From<T> x, dm_From<T> gy, dm_To<T> y,
                               Channels ch) {
  enum { ROWS = 16 }; /* rows that a thread does, where there are enough */
  const int64_t n_run = ch.channels / V;
  int lanes = 32;
  while (lanes > 1 && lanes / 2 >= n_run) lanes /= 2;
  const int64_t chunks = dm_ceil_div(ch.outer, ROWS * (DM_THREADS / lanes));
  ch.chunk = dm_ceil_div(ch.outer, chunks < 65535 ? chunks : 65535);
  const dim3 grid((unsigned)dm_ceil_div(n_run, lanes),
                  (unsigned)dm_ceil_div(ch.outer, ch.chunk));
  return dm_launch((apply_columns_kernel<Fn, C, T, V>), grid, DM_THREADS, 0, fn, x, gy, y, ch,
                   lanes);
}

template <class C, class T, class Fn>
static dm_status apply(const Fn &fn, const dm_Tensor *x, const dm_Tensor *gy,
                       const dm_Tensor *y, const Channels &ch) {
  const int V = dm_run_size<T>();
  const dm_From<T> from = from_of<T>(x), g = from_of<T>(gy);
  const dm_To<T> to = to_of<T>(y);
  const bool packs = has_runs(ch, V) && runs_of(from, 16) && runs_of(g, 16) && runs_of(to, 16);
  if (packs && ch.inner == 1) return apply_columns<Fn, C, T, V>(fn, from, g, to, ch);
  if (packs)
    return dm_launch((apply_kernel<Fn, C, T, V>), dm_blocks(x->numel / V), DM_THREADS, 0, fn,
                     from, g, to, ch, x->numel);
  return dm_launch((apply_kernel<Fn, C, T, 1>), dm_blocks(x->numel), DM_THREADS, 0, fn, from, g,
                   to, ch, x->numel);
}

/* x as (outer, channels, inner). With channels last each position is a row, so that inner is
   1. */
static Channels channels_of(const dm_Tensor *x) {
  const int64_t inner = dm_numel(x->ndim - 2, x->shape + 2);
  const Channels rows = {x->shape[0], x->shape[1], inner, 1, 0};
  const Channels last = {x->shape[0] * inner, x->shape[1], 1, 1, 0};
  return dm_lies_last(x) ? last : rows;
}

/* ---- the running statistics ---- */

/* A running statistic (C), of any float dtype and step; or none. */
struct Running {
  void *data;
  int64_t step;
  int dtype;

  /* PyTorch's lerp, computed in R and rounded once. */
  template <class R> __device__ void move(int64_t c, R share, R to) const {
    if (!data) return;
    const R v = dm_load<R>(dtype, data, c * step);
    dm_store<R>(dtype, data, c * step,
                share < R(0.5) && share > R(-0.5) ? v + share * (to - v)
                                                  : to - (to - v) * (1 - share));
  }
};

/* The running statistics, which are computed in R, move by `share` to the mean and to `unbias`
   times the variance, taken from root = 1 / sqrt(variance + eps). Digits are lost for a
   variance much smaller than eps, but such a variance does not matter beside eps. One thread
   counts the batch. */
template <class R, class C>
static __global__ void __launch_bounds__(DM_THREADS)
    track_kernel(const C *mean, const C *root, int64_t n, C eps, R share, C unbias,
                 Running running_mean, Running running_var, int64_t *count) {
  if (count && dm_thread() == 0) ++*count;
  for (int64_t c = dm_thread(); c < n; c += dm_threads()) {
    const C from = C(1) / (root[c] * root[c]) - eps, var = from < 0 ? C(0) : from;
    running_mean.move<R>(c, share, (R)mean[c]);
    running_var.move<R>(c, share, (R)(var * unbias));
  }
}

static Running running_of(const dm_Tensor *t) {
  if (!t) return {NULL, 0, DM_F32};
  return {dm_tensor_data(t), t->stride[0], t->dtype};
}

template <class R, class C> static dm_status track(const dm_Running *r) {
  const int64_t n = r->root->numel;
  return dm_launch((track_kernel<R, C>), dm_blocks(n > 0 ? n : 1), DM_THREADS, 0,
                   (const C *)dm_tensor_data(r->batch_mean), (const C *)dm_tensor_data(r->root),
                   n, (C)r->eps, (R)r->momentum, (C)r->unbias, running_of(r->mean),
                   running_of(r->var), r->count ? (int64_t *)dm_tensor_data(r->count) : NULL);
}

extern "C" dm_status dm_cuda_move_running(const dm_Running *r) {
  const bool wide =
      (r->mean && r->mean->dtype == DM_F64) || (r->var && r->var->dtype == DM_F64);
  if (r->root->dtype == DM_F64) return track<double, double>(r);
  return wide ? track<double, float>(r) : track<float, float>(r);
}

/* v, variances, becomes 1 / sqrt(v + eps). */
template <class C>
static __global__ void __launch_bounds__(DM_THREADS) root_kernel(C *v, int64_t n, C eps) {
  for (int64_t c = dm_thread(); c < n; c += dm_threads()) v[c] = C(1) / root(v[c] + eps);
}

/* ---- batch_norm by cuDNN, which wants float32 weights ---- */

/* Whether cuDNN may be asked: float32 or 16 bits, with weights, of sizes that fit 31 bits. */
static bool is_library_s(const dm_Call *c, dm_DType dtype, const dm_Tensor *weight) {
  return dtype != DM_F64 && weight && c->out[0]->numel <= INT32_MAX;
}

static dm_BatchNorm batch_norm_of(dm_Tensor *x, const dm_Tensor *y, const dm_Tensor *weight) {
  dm_BatchNorm b;
  memset(&b, 0, sizeof b);
  b.dtype = (dm_DType)x->dtype;
  b.n = x->shape[0];
  b.channels = x->shape[1];
  b.height = x->ndim == 4 ? x->shape[2] : 1;
  b.width = dm_numel(x->ndim - 2, x->shape + 2) / b.height;
  b.last = dm_lies_last(x);
  b.x = dm_tensor_data(x);
  b.y = dm_tensor_data(y);
  b.weight = dm_tensor_data(weight);
  return b;
}

/* Of batch_norm_train, or of batch_norm_relu, whose top is infinite here. */
static double eps_of(const dm_Call *c, bool relu) {
  return relu ? DM_ATTR(dm_BatchNormReluAttr, c)->eps : DM_ATTR(dm_EpsAttr, c)->eps;
}

/* batch_norm_train, or batch_norm_relu, by cuDNN; x is dense in y's layout. *taken says whether
   it ran. */
static dm_status train_by_library(dm_Call *c, dm_Tensor *x, bool relu, bool *taken) {
  dm_Tensor *own[2] = {NULL};
  dm_BatchNorm b;
  dm_status st = DM_OK;
  *taken = false;
  if (!c->in[2] || !is_library_s(c, (dm_DType)x->dtype, c->in[1])) return DM_OK;
  for (int i = 0; i < 2; i++) DM_GO(dm_dense_cast(c->in[1 + i], DM_F32, &own[i]));
  b = batch_norm_of(x, c->out[0], own[0]);
  b.bias = dm_tensor_data(own[1]);
  b.mean = dm_tensor_data(c->out[1]);
  b.root = dm_tensor_data(c->out[2]);
  b.eps = eps_of(c, relu);
  b.recorded = c->recorded;
  *taken = relu ? dm_dnn_batch_norm_relu(&b) : dm_dnn_batch_norm(&b);
done:
  for (int i = 0; i < 2; i++) dm_tensor_unref(&own[i]);
  return st;
}

/* batch_norm_backward by cuDNN. in: gy, x, (unused), mean and 1 / sqrt(variance + eps), all
   dense in gx's layout. */
static dm_status backward_by_library(dm_Call *c, dm_Tensor *weight, dm_Tensor *const *in,
                                     bool *taken) {
  dm_Tensor *own = NULL;
  *taken = false;
  if (!is_library_s(c, (dm_DType)in[1]->dtype, weight)) return DM_OK;
  DM_TRY(dm_dense_cast(weight, DM_F32, &own));
  dm_BatchNorm b = batch_norm_of(in[1], c->out[0], own);
  b.gy = dm_tensor_data(in[0]);
  b.mean = dm_tensor_data(in[3]);
  b.root = dm_tensor_data(in[4]);
  b.gw = dm_tensor_data(c->out[1]);
  b.gb = dm_tensor_data(c->out[2]);
  *taken = dm_dnn_batch_norm_backward(&b);
  dm_tensor_unref(&own);
  return DM_OK;
}

/* in: x, weight (C) and bias (C) or none; out: y, the batch's mean (C) and 1 / sqrt(biased
   variance + eps) (C), as cuDNN gives it. */
static dm_status train(dm_Call *c, bool relu) {
  dm_Tensor *own[3] = {NULL}, *y = c->out[0], *mean = c->out[1], *var = c->out[2];
  dm_Vector w, b;
  dm_status st = DM_OK;
  if (y->numel == 0) return clear_vectors(c);
  const dm_DType compute = (dm_DType)mean->dtype;
  bool taken = false;
  DM_GO(dm_layout_new(c->in[0], dm_lies_last(y), &own[0]));
  DM_GO(train_by_library(c, own[0], relu, &taken));
  if (taken) goto done;
  DM_GO(dm_plan_fallback(c->op->name));
  DM_GO(dm_vector_new(c->in[1], compute, &own[1], &w));
  DM_GO(dm_vector_new(c->in[2], compute, &own[2], &b));
  DM_STORED_TYPES(y->dtype, {
    const Channels ch = channels_of(own[0]);
    BatchMoments<C, T> reducer;
    reducer.x = from_of<T>(own[0]);
    reducer.mean = (C *)dm_tensor_data(mean);
    reducer.var = (C *)dm_tensor_data(var);
    const Forward<C> fn = {
        w, b, {reducer.mean, compute}, {reducer.var, compute}, (C)eps_of(c, relu), relu};
    st = reduce_runs(reducer, ch);
    if (st == DM_OK) st = apply<C, T>(fn, own[0], NULL, y, ch);
    if (st == DM_OK)
      st = dm_launch(root_kernel<C>, dm_blocks(ch.channels), DM_THREADS, 0, reducer.var,
                     ch.channels, fn.eps);
  });
done:
  for (int i = 0; i < 3; i++) dm_tensor_unref(&own[i]);
  return st;
}

DM_CUDA_KERNEL(batch_norm_train_cuda) { return train(c, false); }
DM_CUDA_KERNEL(batch_norm_relu_cuda) { return train(c, true); }

/* in: x, weight, bias, and the running mean and variance (C), so there are no moments to
   compute. */
DM_CUDA_KERNEL(batch_norm_eval_cuda) {
  dm_Tensor *own[5] = {NULL}, *y = c->out[0];
  dm_Vector v[5] = {};
  dm_status st = DM_OK;
  if (y->numel == 0) return DM_OK;
  const dm_DType compute = dm_compute_dtype((dm_DType)y->dtype);
  DM_GO(dm_layout_new(c->in[0], dm_lies_last(y), &own[0]));
  for (int i = 1; i < 5; i++) DM_GO(dm_vector_new(c->in[i], compute, &own[i], &v[i]));
  DM_STORED_TYPES(y->dtype, {
    const Forward<C> fn = {v[1], v[2], v[3], v[4], (C)DM_ATTR(dm_EpsAttr, c)->eps, false};
    st = apply<C, T>(fn, own[0], NULL, y, channels_of(own[0]));
  });
done:
  for (int i = 0; i < 5; i++) dm_tensor_unref(&own[i]);
  return st;
}

/* Returns t in that dtype, dense in rows or channels last. */
static dm_status layout_cast(dm_Tensor *t, dm_DType dtype, bool last, dm_Tensor **own) {
  dm_Tensor *cast = NULL;
  if (t->dtype == dtype) return dm_layout_new(t, last, own);
  DM_TRY(dm_cast_new(t, dtype, &cast));
  const dm_status st = dm_layout_new(cast, last, own);
  dm_tensor_unref(&cast);
  return st;
}

/* in: gy, x, weight, mean and rstd (C); out: gx, gw (C), gb (C). The sums run first, as gx
   needs them in training; in evaluation gx is gy times a constant per channel. */
static dm_status backward(dm_Call *c, dm_Tensor *const *in, bool training) {
  dm_Tensor *own[5] = {NULL}, *gx = c->out[0];
  dm_Vector w;
  const dm_DType dtype = (dm_DType)gx->dtype, compute = dm_compute_dtype(dtype);
  const bool last = dm_lies_last(gx);
  bool taken = false;
  dm_status st = DM_OK;
  DM_GO(layout_cast(in[0], dtype, last, &own[0]));
  DM_GO(dm_layout_new(in[1], last, &own[1]));
  DM_GO(dm_vector_new(in[2], compute, &own[2], &w));
  for (int i = 3; i < 5; i++) DM_GO(dm_dense_cast(in[i], compute, &own[i]));
  if (training) DM_GO(backward_by_library(c, in[2], own, &taken));
  if (taken) goto done;
  if (training) DM_GO(dm_plan_fallback(c->op->name));
  DM_STORED_TYPES(dtype, {
    const Channels ch = channels_of(own[1]);
    GradSums<C, T> sums;
    sums.gy = from_of<T>(own[0]);
    sums.x = from_of<T>(own[1]);
    sums.mean = (const C *)dm_tensor_data(own[3]);
    sums.rstd = (const C *)dm_tensor_data(own[4]);
    sums.step = 1;
    sums.groups = sums.per = sums.at = 0;
    sums.gw = (C *)dm_tensor_data(c->out[1]);
    sums.gb = (C *)dm_tensor_data(c->out[2]);
    const Backward<C> fn = {w,
                            {sums.mean, compute},
                            {sums.rstd, compute},
                            sums.gw,
                            sums.gb,
                            training ? C(1) / (C)(ch.outer * ch.inner) : C(0)};
    st = reduce_runs(sums, ch);
    if (st == DM_OK) st = apply<C, T>(fn, own[1], own[0], gx, ch);
  });
done:
  for (int i = 0; i < 5; i++) dm_tensor_unref(&own[i]);
  return st;
}

DM_CUDA_KERNEL(batch_norm_backward_cuda) {
  if (c->out[0]->numel == 0) return clear_vectors(c);
  return backward(c, c->in, DM_ATTR(dm_BatchNormBackwardAttr, c)->training);
}
