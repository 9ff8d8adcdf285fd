/* cross_entropy and nll_loss, forward and backward.

   The logits are (N, C, ...), and a row is the C logits of one target. Where they are
   contiguous a warp reads a row, or a block for C > 4096; in images, where rows are
   interleaved, a thread does, so that neighbouring threads read neighbouring elements. The
   forward computes logsumexp of a row in one read (online softmax, M. Milakov & N. Gimelshein
   2018) and never stores the probabilities; the backward computes it again and writes gx in
   the same launch.

   The rows' losses and weights go to scratch memory and are summed there by a fixed tree: of
   few rows by the last block of the launch that writes them, else by one or two launches more.
   A label that is no class is noted as a fault and counts as an ignored one, with weight 0. */
#include "kernels/last_block.cuh"
#include "kernels/own.cuh"
#include "kernels/reduce.cuh"
#include "kernels/vector.cuh"

extern "C" {
#include "op/loss/loss.h"
}

static __device__ inline float power(float v) { return expf(v); }
static __device__ inline double power(double v) { return exp(v); }
static __device__ inline float logarithm(float v) { return logf(v); }
static __device__ inline double logarithm(double v) { return log(v); }

/* The labels of all rows, of any integer dtype, as the caller counts classes (from `base`). */
struct Labels {
  const void *data;
  int dtype, base, op;
  int64_t classes, ignored;
  bool ignores;
  dm_Fault *fault;

  /* A switch of its own instead of dm_load, so that float32 kernels hold no float64
     instructions. */
  __device__ int64_t load(int64_t i) const {
    switch (dtype) {
    case DM_I8: return ((const int8_t *)data)[i];
    case DM_I16: return ((const int16_t *)data)[i];
    case DM_I32: return ((const int32_t *)data)[i];
    case DM_I64: return ((const int64_t *)data)[i];
    default: return ((const uint8_t *)data)[i];
    }
  }
  /* The class of row i, counted from 0, or -1 where it does not count. */
  __device__ int64_t at(int64_t i) const {
    const int64_t given = load(i);
    if (ignores && given == ignored) return -1;
    /* Subtracted unsigned: the smallest int64 wraps, and is out of range still. */
    const int64_t k = (int64_t)((uint64_t)given - (uint64_t)base);
    if (k >= 0 && k < classes) return k;
    dm_device_fault(fault, DM_FAULT_LABEL, op, base, i, given, classes);
    return -1;
  }
};

/* The kernels of a call read this besides the logits: row shapes, labels, and the weights (C)
   of the classes. */
struct LabelRows {
  dm_LossRows r;
  Labels label;
  dm_Vector weight;
  /* The offset of row i's first logit. */
  __device__ int64_t first(int64_t i) const {
    const int64_t outer = r.inner == 1 ? i : dm_quotient(i, r.inner);
    return outer * r.c * r.inner + (i - outer * r.inner);
  }
  /* The weight of a row, that of its class; 0 for an ignored one. */
  template <class C> __device__ C weight_of(int64_t label) const {
    return label < 0 ? C(0) : weight.at(label, C(1));
  }
};

/* Losses in memory: of float64, or of float32 or 16 bits, as `dtype` says. */
template <class C> struct Result {
  void *data;    /* NULL: none */
  int64_t dtype; /* as wide as data: captured launches compare their arguments' bytes */

  __device__ void put(int64_t i, C v) const {
    if constexpr (sizeof(C) == 4)
      if (dtype != DM_F32) {
        dm_Run<dm_Low, 1> run;
        dm_narrow_all((int)dtype, &v, &run);
        ((dm_Low *)data)[i] = run.v[0];
        return;
      }
    ((C *)data)[i] = v;
  }
};
template <class C> static Result<C> result_of(dm_Tensor *out) {
  return {dm_tensor_data(out), out->dtype};
}

/* ---- the rows' losses as one ---- */

/* A row's loss, already weighted, and its weight: the mean is sum(loss) / sum(weight), as in
   PyTorch. */
template <class C> struct Share { C loss, weight; };
struct JoinShares {
  template <class C> __device__ void join(Share<C> &s, const Share<C> &o) const {
    s.loss += o.loss;
    s.weight += o.weight;
  }
};

enum { PER_THREAD = 16 }; /* shares that a thread sums before there are more blocks */

/* The sum of slice `which` of `slices` of n shares, of which share(i) is one; by one block. */
template <class C, class Fn>
static __device__ inline Share<C> sum_slice(const Fn &share, int64_t n, int64_t which,
                                            int64_t slices) {
  const int64_t slice = (n + slices - 1) / slices, lo = which * slice;
  const int64_t hi = lo + slice < n ? lo + slice : n;
  Share<C> s = {0, 0};
  for (int64_t i = lo + threadIdx.x; i < hi; i += DM_THREADS) JoinShares().join(s, share(i));
  return dm_block_reduce(JoinShares(), s);
}
/* A share in memory. */
template <class C> struct Kept {
  const Share<C> *in;
  __device__ Share<C> operator()(int64_t i) const { return in[i]; }
};
/* A row's weight alone. */
template <class C> struct WeightOf {
  const LabelRows &rows;
  __device__ Share<C> operator()(int64_t i) const {
    return {C(0), rows.template weight_of<C>(rows.label.at(i))};
  }
};
/* The first launch: each block stores its slice's sum. */
template <class C>
static __global__ void __launch_bounds__(DM_THREADS)
    reduce_kernel(const Share<C> *in, int64_t n, Share<C> *out) {
  const Share<C> s = sum_slice<C>(Kept<C>{in}, n, blockIdx.x, gridDim.x);
  if (threadIdx.x == 0) out[blockIdx.x] = s;
}
/* The last launch, of one block: the sum or the mean of all rows as one element of `out`. */
template <class C>
static __global__ void __launch_bounds__(DM_THREADS)
    finish_kernel(const Share<C> *in, int64_t n, bool mean, Result<C> out) {
  const Share<C> s = sum_slice<C>(Kept<C>{in}, n, 0, 1);
  if (threadIdx.x == 0) out.put(0, mean ? s.loss / s.weight : s.loss);
}
/* The rows' weights: each block stores its slice's sum. */
template <class C>
static __global__ void __launch_bounds__(DM_THREADS)
    weights_kernel(LabelRows rows, Share<C> *out) {
  const Share<C> s = sum_slice<C>(WeightOf<C>{rows}, rows.r.n, blockIdx.x, gridDim.x);
  if (threadIdx.x == 0) out[blockIdx.x] = s;
}

/* Scratch memory: a share for each of the n rows, then for each of the blocks that reduce
   them, then the total. */
enum { MOST_BLOCKS = 1024 };
static int64_t share_bytes(int64_t n, dm_DType dtype) {
  return 2 * (n + MOST_BLOCKS + 1) * dm_dtype_size(dm_compute_dtype(dtype));
}

/* The blocks that sum n shares: one for few. */
static int64_t blocks_for(int64_t n) {
  const int64_t blocks = dm_ceil_div(n, DM_THREADS * PER_THREAD);
  return dm_max_i64(1, dm_min_i64(blocks, MOST_BLOCKS));
}

/* Reduces many shares to few. *shares and *n become what is left for one block to sum. */
template <class C> static dm_status reduce_shares(Share<C> **shares, int64_t *n) {
  const int64_t blocks = blocks_for(*n);
  if (blocks == 1) return DM_OK;
  Share<C> *to = *shares + *n;
  DM_TRY(dm_launch(reduce_kernel<C>, dim3((unsigned)blocks), DM_THREADS, 0, *shares, *n, to));
  *shares = to;
  *n = blocks;
  return DM_OK;
}
/* Writes the sum or the mean of n rows' losses to `out`. With reduction none the rows have
   written their losses there already. */
template <class C>
static dm_status finish(Share<C> *shares, int64_t n, int64_t reduction, dm_Tensor *out) {
  if (reduction == DM_LOSS_NONE) return DM_OK;
  DM_TRY(reduce_shares(&shares, &n));
  return dm_launch(finish_kernel<C>, dim3(1), DM_THREADS, 0, shares, n,
                   reduction == DM_LOSS_MEAN, result_of<C>(out));
}

/* ---- cross entropy ---- */

/* The online softmax state: the largest logit so far, and the sum of exp(z - max). */
template <class C> struct Soft { C max, sum; };
template <class C> struct JoinSoft {
  __device__ Soft<C> start() const { return {-INFINITY, 0}; }
  __device__ void add(Soft<C> &s, C z) const {
    /* A larger logit rescales the sum so far. */
    if (z > s.max) {
      s.sum = s.sum * power(s.max - z) + (1 + (z - z)); /* of an infinity: NaN */
      s.max = z;
    } else if (z != -INFINITY) {
      s.sum += power(z - s.max);
    }
  }
  /* V logits at once. */
  template <int V> __device__ void add_run(Soft<C> &s, const C *z) const {
    C top = z[0];
    for (int i = 1; i < V; i++) top = z[i] > top ? z[i] : top;
    if (top > s.max) {
      s.sum *= power(s.max - top);
      s.max = top;
    }
    /* Of an infinity: NaN. Of a run of nothing but -infinity: 0. */
    const C shift = s.max == -INFINITY ? C(0) : s.max;
    for (int i = 0; i < V; i++) s.sum += power(z[i] - shift);
  }
  __device__ void join(Soft<C> &s, const Soft<C> &o) const {
    if (o.max > s.max) {
      s.sum = s.sum * power(s.max - o.max) + o.sum;
      s.max = o.max;
    } else {
      s.sum += o.max == -INFINITY ? o.sum : o.sum * power(o.max - s.max);
    }
  }
};

/* A row of n logits, `step` elements apart, and the threads that share it: 1, 32 or a
   block. */
template <class C, class T> struct Row {
  dm_From<T> z;
  int64_t n, step;
  int lane, lanes;

  template <class Reducer, class S>
  __device__ S reduced(const Reducer &reducer, const S &s) const {
    return lanes == 1    ? s
           : lanes == 32 ? dm_warp_reduce(reducer, s, 32)
                         : dm_block_reduce(reducer, s);
  }
  __device__ C sum(C v) const { return reduced(dm_Plus(), v); }
  __device__ C at(int64_t k) const {
    C v;
    load_run<C, T, 1>(z, k * step, &v);
    return v;
  }
  /* Calls f(k, v) for each of this thread's runs: V logits v, from class k on. Several loads
     are on their way at once. */
  template <int V, class F> __device__ void each(const F &f) const {
    const int many = V > 1 ? 64 / (V * (int)sizeof(T)) : 1, stride = lanes * V;
    for (int64_t first = lane * V; first < n; first += many * stride) {
      dm_Run<T, V> run[many];
      DM_UNROLLED
      for (int j = 0; j < many; j++) {
        const int64_t k = first + j * stride;
        if (k < n) run[j] = run_at<T, V>(z, V > 1 ? k : k * step);
      }
      DM_UNROLLED
      for (int j = 0; j < many; j++) {
        const int64_t k = first + j * stride;
        C v[V];
        if (k >= n) break;
        widen_run<C, T, V>(z, run[j], v);
        f(k, v);
      }
    }
  }
  /* log(sum(exp(z))) of the row, V contiguous elements per load. */
  template <int V> __device__ C log_sum_exp(void) const {
    const JoinSoft<C> reducer;
    Soft<C> s = reducer.start();
    each<V>([&](int64_t, const C *v) {
      if constexpr (V > 1) reducer.template add_run<V>(s, v);
      else reducer.add(s, v[0]);
    });
    s = reduced(reducer, s);
    return s.max + logarithm(s.sum);
  }
  /* The sum of all classes' weights, which label smoothing needs. */
  __device__ C total_weight(const dm_Vector &weight) const {
    C w = 0;
    if (!weight.data) return (C)n;
    for (int64_t k = lane; k < n; k += lanes) w += weight.at(k, C(1));
    return sum(w);
  }
};

/* Row i as this thread sees it. */
template <class C, class T>
static __device__ inline Row<C, T> row_of(const LabelRows &rows, dm_From<T> x, int64_t i,
                                          int lanes) {
  const Row<C, T> row = {x + rows.first(i), rows.r.c, rows.r.inner,
                         (int)(threadIdx.x & (unsigned)(lanes - 1)), lanes};
  return row;
}

/* What the last block of the forward writes. */
template <class C> struct One {
  unsigned *arrived; /* dm_is_last_block's; NULL: nothing, as later launches sum, or nobody */
  Result<C> out;
  bool mean;
};

/* The forward: `lanes` threads per row. With label smoothing e, the loss of a row is (1 - e)
   weight (lse - z[label]) + e / C sum over k of weight_k (lse - z_k). Lane 0 writes it to
   `each`, or its share to shares; with `one` the last block writes their sum or mean. */
template <class C, class T, int V>
static __global__ void __launch_bounds__(DM_THREADS, sizeof(C) == 4 ? 3 : 2)
    cross_kernel(LabelRows rows, dm_From<T> x, C smoothing, int lanes, Result<C> each,
                 Share<C> *shares, One<C> one) {
  const C soft = smoothing / (C)rows.r.c;
  for (int64_t i = dm_thread() / lanes; i < rows.r.n; i += dm_threads() / lanes) {
    const Row<C, T> row = row_of<C, T>(rows, x, i, lanes);
    const int64_t label = rows.label.at(i);
    C loss = 0, weight = rows.template weight_of<C>(label);
    if (label >= 0) {
      const C lse = row.template log_sum_exp<V>();
      C smooth = 0;
      for (int64_t k = row.lane; smoothing > 0 && k < row.n; k += lanes)
        smooth += rows.weight.at(k, C(1)) * (lse - row.at(k));
      if (smoothing > 0) smooth = row.sum(smooth);
      loss = (1 - smoothing) * weight * (lse - row.at(label)) + soft * smooth;
    }
    if (row.lane != 0) continue;
    if (each.data) each.put(i, loss);
    else shares[i] = {loss, weight};
  }
  if (!one.arrived || !dm_is_last_block(one.arrived, gridDim.x)) return;
  const Share<C> s = sum_slice<C>(Kept<C>{shares}, rows.r.n, 0, 1);
  if (threadIdx.x == 0) one.out.put(0, one.mean ? s.loss / s.weight : s.loss);
}

/* By what the gradient of a row's loss is divided: for a mean the sum of all rows' weights. */
template <class C> struct Total {
  const Share<C> *sum; /* or NULL */
  bool is_own;         /* each block sums the weights itself */

  /* By all threads of a block. 0: there is no mean. */
  __device__ C of(const LabelRows &rows) const {
    if (is_own) return sum_slice<C>(WeightOf<C>{rows}, rows.r.n, 0, 1).weight;
    return sum ? sum->weight : C(0);
  }
};
/* The gradient of row i's loss. */
template <class C>
static __device__ inline C upstream(const C *gy, bool scalar, bool mean, C total, int64_t i) {
  const C g = gy[scalar ? 0 : i];
  return mean ? g / total : g;
}

/* The backward: gx = g (p softmax(z) - e / C weight_k - [k = label] (1 - e) weight). lse is
   computed again; rows are read a second time for gx, V elements per load. */
template <class C, class T, int V>
static __global__ void __launch_bounds__(DM_THREADS, 2)
    cross_backward_kernel(LabelRows rows, dm_From<T> x, const C *gy, bool scalar, C smoothing,
                          int lanes, Total<C> mean, dm_To<T> gx) {
  const C total = mean.of(rows);
  for (int64_t i = dm_thread() / lanes; i < rows.r.n; i += dm_threads() / lanes) {
    const Row<C, T> row = row_of<C, T>(rows, x, i, lanes);
    const dm_To<T> to = gx + rows.first(i);
    const int64_t label = rows.label.at(i);
    C lse = 0, g = 0, hard = 0, soft = 0, p_scale = 0;
    if (label >= 0) {
      lse = row.template log_sum_exp<V>();
      g = upstream(gy, scalar, mean.sum || mean.is_own, total, i);
      hard = (1 - smoothing) * rows.template weight_of<C>(label);
      soft = smoothing / (C)row.n;
      p_scale = smoothing > 0 ? hard + soft * row.total_weight(rows.weight) : hard;
    }
    const C scale = g * p_scale;
    row.template each<V>([&](int64_t k, C *z) {
      for (int e = 0; e < V; e++) z[e] = label < 0 ? C(0) : scale * power(z[e] - lse);
      for (int e = 0; label >= 0 && smoothing > 0 && e < V; e++)
        z[e] -= g * (soft * rows.weight.at(k + e, C(1)));
      if (label >= k && label < k + V)
        for (int e = 0; e < V; e++) z[e] -= k + e == label ? g * hard : C(0);
      store_run<C, T, V, true>(to, V > 1 ? k : k * row.step, z);
    });
  }
}

/* ---- negative log-likelihood ---- */

/* The forward: x holds log-probabilities; one thread per row picks the one of its label. */
template <class C>
static __global__ void __launch_bounds__(DM_THREADS)
    nll_kernel(LabelRows rows, dm_Vector x, Result<C> each, Share<C> *shares) {
  for (int64_t i = dm_thread(); i < rows.r.n; i += dm_threads()) {
    const int64_t label = rows.label.at(i);
    Share<C> s = {0, rows.template weight_of<C>(label)};
    if (label >= 0) s.loss = -s.weight * x.at(rows.first(i) + label * rows.r.inner, C(0));
    if (each.data) each.put(i, s.loss);
    else shares[i] = s;
  }
}

/* The backward: gx is zeroed before; one thread per row writes its label's element. */
template <class C>
static __global__ void __launch_bounds__(DM_THREADS)
    nll_backward_kernel(LabelRows rows, const C *gy, bool scalar, Total<C> mean, Result<C> gx) {
  const C total = mean.of(rows);
  for (int64_t i = dm_thread(); i < rows.r.n; i += dm_threads()) {
    const int64_t label = rows.label.at(i);
    if (label >= 0)
      gx.put(rows.first(i) + label * rows.r.inner,
             -rows.template weight_of<C>(label) *
                 upstream(gy, scalar, mean.sum || mean.is_own, total, i));
  }
}

/* ---- on the host ---- */

/* Owns the tensors and scratch memory of a call until its kernels are launched. */
struct Held {
  dm_Own x, gy, target, weight;
  dm_Scratch<char> shares;
};

/* Describes the rows of logits of x's shape and dtype. Input `label` has the labels, the one
   after it the classes' weights. An ignore_index that is no whole number matches no label. */
static dm_status rows_new(const dm_Call *c, const dm_Tensor *x, int label, double ignored,
                          Held *h, LabelRows *rows) {
  const dm_DType dtype = (dm_DType)x->dtype;
  const dm_LossRows r = dm_loss_rows(x->ndim, x->shape);
  DM_TRY(dm_dense_new(c->in[label], &h->target.t));
  DM_TRY(dm_vector_new(c->in[label + 1], dm_compute_dtype(dtype), &h->weight.t, &rows->weight));
  DM_TRY(h->shares.get(share_bytes(r.n, dtype)));
  const dm_Tensor *target = h->target.t;
  rows->r = r;
  rows->label = {
      dm_tensor_data(target), target->dtype, c->base, (int)dm_op_id(c->op), r.c, 0, false,
      dm_cuda_faults()};
  if (ignored == floor(ignored) && ignored >= -0x1p63 && ignored < 0x1p63) {
    rows->label.ignores = true;
    rows->label.ignored = (int64_t)ignored;
  }
  return DM_OK;
}

/* Where the rows' losses are written; nowhere if losses are summed. */
template <class C> static Result<C> each_of(dm_Tensor *out, int64_t reduction) {
  return reduction == DM_LOSS_NONE ? result_of<C>(out) : Result<C>{NULL, DM_F32};
}

/* The threads that share a row. */
static int lanes_of(const dm_LossRows &r) {
  return r.inner > 1 ? 1 : r.c <= 4096 ? 32 : (int)DM_THREADS;
}
/* Logits per load: as many for 16 bits as for float32, so that both add in one order and the
   loss of 16-bit logits has the bits of float32's. */
template <class T> static constexpr int row_run() {
  return dm_run_size<T>() < 4 ? dm_run_size<T>() : 4;
}
/* Whether rows may be read so many logits at a time. */
template <class T> static bool row_runs(const dm_LossRows &r, const void *x, const void *y) {
  return r.inner == 1 && r.c % row_run<T>() == 0 && (((uintptr_t)x | (uintptr_t)y) & 15) == 0;
}

/* Launches the forward of cross_entropy. */
template <class C, class T>
static dm_status cross(const LabelRows &rows, const Held &h, double smoothing, Result<C> each,
                       const One<C> &one) {
  const int lanes = lanes_of(rows.r), V = row_run<T>();
  const unsigned blocks = dm_blocks(rows.r.n * lanes);
  const dm_From<T> x = from_of<T>(h.x.t);
  Share<C> *shares = (Share<C> *)(void *)h.shares.p;
  return row_runs<T>(rows.r, dm_tensor_data(h.x.t), NULL)
             ? dm_launch((cross_kernel<C, T, V>), blocks, DM_THREADS, 0, rows, x, (C)smoothing,
                         lanes, each, shares, one)
             : dm_launch((cross_kernel<C, T, 1>), blocks, DM_THREADS, 0, rows, x, (C)smoothing,
                         lanes, each, shares, one);
}

/* The same, and the loss of all rows from few of them in the same launch; *done says so. */
template <class C, class T>
static dm_status cross_and_sum(const LabelRows &rows, const Held &h, double smoothing,
                               bool mean, dm_Tensor *out, bool *done) {
  One<C> one = {NULL, result_of<C>(out), mean};
  const Result<C> none = {NULL, DM_F32};
  *done = rows.r.n > 0 && blocks_for(rows.r.n) == 1;
  if (!*done) return cross<C, T>(rows, h, smoothing, none, one);
  dm_cuda_keep_begin();
  dm_status st = dm_arrivals(dm_site(9, 0), &one.arrived);
  if (st == DM_OK) st = cross<C, T>(rows, h, smoothing, none, one);
  dm_cuda_keep_end();
  return st;
}

/* in: logits (N, C, ...), labels (N, ...), and maybe weights (C); out: one loss, or (N, ...),
   of the logits' dtype or of the one that it is computed in. */
DM_CUDA_KERNEL(cross_entropy_cuda) {
  const dm_CrossEntropyAttr *a = DM_ATTR(dm_CrossEntropyAttr, c);
  dm_Tensor *x = c->in[0], *out = c->out[0];
  Held h;
  LabelRows rows;
  DM_TRY(rows_new(c, x, 1, a->ignore_index, &h, &rows));
  DM_TRY(dm_dense_new(x, &h.x.t));
  DM_STORED_TYPES(x->dtype, {
    bool done = true;
    if (a->reduction == DM_LOSS_NONE)
      return cross<C, T>(rows, h, a->label_smoothing, result_of<C>(out), One<C>{});
    DM_TRY((cross_and_sum<C, T>(rows, h, a->label_smoothing, a->reduction == DM_LOSS_MEAN, out,
                                &done)));
    if (done) return DM_OK;
    return finish<C>((Share<C> *)(void *)h.shares.p, rows.r.n, a->reduction, out);
  });
  return DM_OK;
}

/* The sum of the rows' weights for the mean: of few rows each block makes it, of others
   launches make it first. */
template <class C>
static dm_status total_of(const LabelRows &rows, const Held &h, int64_t reduction,
                          Total<C> *total) {
  enum { FEW = 4 * DM_THREADS };
  Share<C> *sums = (Share<C> *)(void *)h.shares.p;
  const int64_t n = blocks_for(rows.r.n);
  *total = {NULL, reduction == DM_LOSS_MEAN && rows.r.n <= FEW};
  if (reduction != DM_LOSS_MEAN || total->is_own) return DM_OK;
  DM_TRY(dm_launch(weights_kernel<C>, (unsigned)n, DM_THREADS, 0, rows, sums));
  total->sum = n == 1 ? sums : sums + n;
  return n == 1 ? DM_OK
                : dm_launch(reduce_kernel<C>, dim3(1), DM_THREADS, 0, sums, n, sums + n);
}

/* Launches the backward of cross_entropy. */
template <class C, class T>
static dm_status cross_backward(const LabelRows &rows, const Held &h,
                                const dm_CrossEntropyAttr *a, dm_Tensor *out) {
  const int lanes = lanes_of(rows.r), V = row_run<T>();
  const unsigned blocks = dm_blocks(rows.r.n * lanes);
  const dm_From<T> x = from_of<T>(h.x.t);
  const dm_To<T> gx = to_of<T>(out);
  const C *gy = (const C *)dm_tensor_data(h.gy.t);
  const bool scalar = a->reduction != DM_LOSS_NONE;
  Total<C> total;
  DM_TRY(total_of<C>(rows, h, a->reduction, &total));
  return row_runs<T>(rows.r, dm_tensor_data(h.x.t), dm_tensor_data(out))
             ? dm_launch((cross_backward_kernel<C, T, V>), blocks, DM_THREADS, 0, rows, x, gy,
                         scalar, (C)a->label_smoothing, lanes, total, gx)
             : dm_launch((cross_backward_kernel<C, T, 1>), blocks, DM_THREADS, 0, rows, x, gy,
                         scalar, (C)a->label_smoothing, lanes, total, gx);
}

/* gx of the logits x, over which it may be written: a thread reads an element for the last time
   before it writes it. Input `label` has the labels. */
static dm_status cross_gradient(const dm_Call *c, dm_Tensor *x, dm_Tensor *gy, int label,
                                dm_Tensor *gx) {
  const dm_CrossEntropyAttr *a = DM_ATTR(dm_CrossEntropyAttr, c);
  const dm_DType dtype = (dm_DType)x->dtype;
  Held h;
  LabelRows rows;
  if (gx->numel == 0) return DM_OK;
  DM_TRY(rows_new(c, x, label, a->ignore_index, &h, &rows));
  DM_TRY(dm_dense_new(x, &h.x.t));
  DM_TRY(dm_dense_cast(gy, dm_compute_dtype(dtype), &h.gy.t));
  DM_STORED_TYPES(dtype, { return cross_backward<C, T>(rows, h, a, gx); });
}

/* in: gy, then the forward's inputs; out: gx of the logits' shape. */
DM_CUDA_KERNEL(cross_entropy_backward_cuda) {
  return cross_gradient(c, c->in[1], c->in[0], 2, c->out[0]);
}

/* in: x, which becomes gx, gy, labels, and maybe weights. */
DM_CUDA_KERNEL(cross_entropy_overwrite_cuda) {
  return cross_gradient(c, c->in[0], c->in[1], 2, c->out[0]);
}

/* Launches the forward of nll_loss. */
template <class C>
static dm_status nll(const LabelRows &rows, const Held &h, int64_t reduction, dm_Tensor *out) {
  Share<C> *shares = (Share<C> *)(void *)h.shares.p;
  const dm_Vector x = {dm_tensor_data(h.x.t), h.x.t->dtype};
  DM_TRY(dm_launch(nll_kernel<C>, dm_blocks(rows.r.n), DM_THREADS, 0, rows, x,
                   each_of<C>(out, reduction), shares));
  return finish<C>(shares, rows.r.n, reduction, out);
}

/* in: log-probabilities (N, C, ...), labels, and maybe weights (C). */
DM_CUDA_KERNEL(nll_loss_cuda) {
  const dm_NllLossAttr *a = DM_ATTR(dm_NllLossAttr, c);
  dm_Tensor *x = c->in[0], *out = c->out[0];
  Held h;
  LabelRows rows;
  DM_TRY(rows_new(c, x, 1, a->ignore_index, &h, &rows));
  DM_TRY(dm_dense_new(x, &h.x.t));
  const bool f64 = x->dtype == DM_F64;
  return f64 ? nll<double>(rows, h, a->reduction, out) : nll<float>(rows, h, a->reduction, out);
}

/* Launches the backward of nll_loss. */
template <class C>
static dm_status nll_backward(const LabelRows &rows, const Held &h, int64_t reduction,
                              dm_Tensor *gx) {
  Total<C> total;
  DM_TRY(total_of<C>(rows, h, reduction, &total));
  return dm_launch(nll_backward_kernel<C>, dm_blocks(rows.r.n), DM_THREADS, 0, rows,
                   (const C *)dm_tensor_data(h.gy.t), reduction != DM_LOSS_NONE, total,
                   result_of<C>(gx));
}

/* in: gy, labels, and maybe weights; log-probabilities are not needed. */
DM_CUDA_KERNEL(nll_loss_backward_cuda) {
  const dm_NllLossBackwardAttr *a = DM_ATTR(dm_NllLossBackwardAttr, c);
  dm_Tensor *gx = c->out[0];
  const dm_DType dtype = (dm_DType)gx->dtype;
  Held h;
  LabelRows rows;
  if (gx->numel == 0) return DM_OK;
  DM_CUDA_TRY(
      cudaMemsetAsync(dm_tensor_data(gx), 0, (size_t)dm_tensor_bytes(gx), dm_cuda_stream()));
  DM_TRY(rows_new(c, gx, 1, a->ignore_index, &h, &rows));
  DM_TRY(dm_dense_cast(c->in[0], dm_compute_dtype(dtype), &h.gy.t));
  return dtype == DM_F64 ? nll_backward<double>(rows, h, a->reduction, gx)
                         : nll_backward<float>(rows, h, a->reduction, gx);
}
