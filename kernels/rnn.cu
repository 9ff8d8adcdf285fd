/* One layer of a recurrent network in one direction, all steps (op/sequence/rnn.c). A step is
   two launches: the product of the state with the weights, and one kernel for the gates, a
   thread per hidden unit of a sequence. The formulas are those of cpu/loops/rnn.inc:

     LSTM  i, f, o = sigmoid, g = tanh;  c = f c + i g;  h = o tanh(c)
     GRU   r, z = sigmoid;  n = tanh(x + r u);  h = n + z (h' - n), u the state's share of n

   Gates are computed in float32 for 16-bit tensors, and an LSTM's cell and a GRU's state are
   carried in it; products are rounded to the tensors' dtype. */
#include "kernels/gemm.h"
#include "kernels/own.cuh"
#include "kernels/reduce.cuh"

enum { CELL_TANH, CELL_RELU, CELL_LSTM, CELL_GRU };

/* A step's rows of all sequences; absent ones are NULL. C is the compute type. */
template <class C> struct RnnStep {
  int kind, dtype;
  int64_t batch, hidden, gates, width; /* numbers that a unit's memory has */
  const void *x, *bias;                /* the input's share (batch, gates, hidden) */
  const void *product;                 /* forward: the state's share; backward: gradient of h */
  const void *before;                  /* backward: a GRU's state or an LSTM's cell */
  int64_t before_apart;                /* elements from one sequence of it to the next */
  C *carry;                            /* (batch, hidden) from step to step; see the kernels */
  void *y, *memory;                    /* h (batch, hidden); (batch, width, hidden) */
  const void *gy, *gm;                 /* their gradients */
  void *gx, *gz; /* of the input's share, and of the state's, where a GRU has another */
};

static __device__ inline float rnn_tanh(float v) { return tanhf(v); }
static __device__ inline double rnn_tanh(double v) { return tanh(v); }
template <class C> static __device__ inline C logistic(C v) { return 1 / (1 + dm_exp(-v)); }

/* Element i of a tensor that may not be there. */
template <class C> static __device__ inline C element(int dtype, const void *p, int64_t i) {
  return p ? dm_load<C>(dtype, p, i) : C(0);
}

/* One step forward. carry: an LSTM's cell, a GRU's state; before this step, and then behind it.
 */
template <class C>
static __global__ void __launch_bounds__(DM_THREADS) rnn_kernel(RnnStep<C> s) {
  for (int64_t at = dm_thread(); at < s.batch * s.hidden; at += dm_threads()) {
    const int64_t b = at / s.hidden, k = at - b * s.hidden;
    C in[4] = {}, state[4] = {}, keep[5], h;
    for (int g = 0; g < 4 && g < s.gates; g++) {
      const int64_t i = (b * s.gates + g) * s.hidden + k;
      in[g] = dm_load<C>(s.dtype, s.x, i);
      state[g] =
          element<C>(s.dtype, s.bias, g * s.hidden + k) + element<C>(s.dtype, s.product, i);
    }
    if (s.kind == CELL_LSTM) {
      keep[0] = logistic(in[0] + state[0]);
      keep[1] = logistic(in[1] + state[1]);
      keep[2] = rnn_tanh(in[2] + state[2]);
      keep[3] = logistic(in[3] + state[3]);
      s.carry[at] = keep[4] = keep[1] * s.carry[at] + keep[0] * keep[2];
      h = keep[3] * rnn_tanh(keep[4]);
    } else if (s.kind == CELL_GRU) {
      keep[0] = logistic(in[0] + state[0]);
      keep[1] = logistic(in[1] + state[1]);
      keep[2] = state[2];
      keep[3] = rnn_tanh(in[2] + keep[0] * state[2]);
      s.carry[at] = h = keep[3] + keep[1] * (s.carry[at] - keep[3]);
    } else {
      h = in[0] + state[0];
      h = s.kind == CELL_TANH ? rnn_tanh(h) : h < 0 ? C(0) : h;
    }
    dm_store<C>(s.dtype, s.y, at, h);
    for (int g = 0; g < 5 && g < s.width && s.memory; g++)
      dm_store<C>(s.dtype, s.memory, (b * s.width + g) * s.hidden + k, keep[g]);
  }
}

/* One step back, whose h has the gradient product + gy, and of a GRU carry too. carry: the
   gradient of an LSTM's cell, or what a GRU's z hands on to the state before. */
template <class C>
static __global__ void __launch_bounds__(DM_THREADS) rnn_backward_kernel(RnnStep<C> s) {
  for (int64_t at = dm_thread(); at < s.batch * s.hidden; at += dm_threads()) {
    const int64_t b = at / s.hidden, k = at - b * s.hidden;
    C m[5] = {}, more[5] = {}, gx[4] = {}, gz[4] = {};
    for (int g = 0; g < 5 && g < s.width; g++) {
      const int64_t i = (b * s.width + g) * s.hidden + k;
      m[g] = element<C>(s.dtype, s.memory, i);
      more[g] = element<C>(s.dtype, s.gm, i);
    }
    const C before = element<C>(s.dtype, s.before, b * s.before_apart + k);
    C gh = element<C>(s.dtype, s.product, at) + element<C>(s.dtype, s.gy, at);
    if (s.kind == CELL_LSTM) {
      const C t = rnn_tanh(m[4]), gc = s.carry[at] + gh * m[3] * (1 - t * t) + more[4];
      gx[0] = (gc * m[2] + more[0]) * m[0] * (1 - m[0]);
      gx[1] = (gc * before + more[1]) * m[1] * (1 - m[1]);
      gx[2] = (gc * m[0] + more[2]) * (1 - m[2] * m[2]);
      gx[3] = (gh * t + more[3]) * m[3] * (1 - m[3]);
      s.carry[at] = gc * m[1];
    } else if (s.kind == CELL_GRU) {
      gh += s.carry[at];
      const C sum = (gh * (1 - m[1]) + more[3]) * (1 - m[3] * m[3]);
      gx[0] = gz[0] = (sum * m[2] + more[0]) * m[0] * (1 - m[0]);
      gx[1] = gz[1] = (gh * (before - m[3]) + more[1]) * m[1] * (1 - m[1]);
      gx[2] = sum;
      gz[2] = sum * m[0] + more[2];
      s.carry[at] = gh * m[1];
    } else {
      const C h = dm_load<C>(s.dtype, s.y, at);
      gx[0] = s.kind == CELL_TANH ? gh * (1 - h * h) : h <= 0 ? C(0) : gh;
    }
    for (int g = 0; g < 4 && g < s.gates; g++) {
      const int64_t i = (b * s.gates + g) * s.hidden + k;
      dm_store<C>(s.dtype, s.gx, i, gx[g]);
      if (s.gz) dm_store<C>(s.dtype, s.gz, i, gz[g]);
    }
  }
}

/* y = a tensor (or nothing) + carry (or nothing), n elements. */
template <class C>
static __global__ void __launch_bounds__(DM_THREADS)
    rnn_end_kernel(int dtype, const void *x, const C *carry, void *y, int64_t n) {
  for (int64_t i = dm_thread(); i < n; i += dm_threads())
    dm_store<C>(dtype, y, i, element<C>(dtype, x, i) + (carry ? carry[i] : C(0)));
}
/* carry = a tensor, or zeros. */
template <class C>
static __global__ void __launch_bounds__(DM_THREADS)
    rnn_begin_kernel(int dtype, const void *x, C *carry, int64_t n) {
  for (int64_t i = dm_thread(); i < n; i += dm_threads()) carry[i] = element<C>(dtype, x, i);
}

/* ---- on the host ---- */

/* The layer's sizes, and the addresses of its steps. */
struct Layer {
  int kind;
  bool reverse;
  dm_DType dtype;
  int64_t steps, batch, hidden, gates, width;
  const void *w; /* (gates hidden, hidden) */

  const char *at(const void *p, int64_t step, int64_t per_unit) const {
    const int64_t t = reverse ? steps - 1 - step : step;
    return p ? (const char *)p + t * batch * per_unit * hidden * dm_dtype_sizes[dtype] : NULL;
  }
};

static Layer layer_of(const dm_RnnAttr *a, const dm_Tensor *y, const void *w) {
  static const int64_t gates[] = {1, 1, 4, 3}, width[] = {0, 0, 5, 4};
  const Layer l = {(int)a->mode,   a->reverse != 0, (dm_DType)y->dtype,
                   y->shape[0],    y->shape[1],     y->shape[2],
                   gates[a->mode], width[a->mode],  w};
  return l;
}

/* The inputs, dense, and their elements; NULL for those that are not given. */
struct Given {
  dm_Own own[7];
  void *data[7] = {};
  dm_status take(const dm_Call *c) {
    for (int i = 0; i < c->n_in; i++) {
      if (!c->in[i]) continue;
      DM_TRY(dm_dense_new(c->in[i], &own[i].t));
      data[i] = dm_tensor_data(own[i].t);
    }
    return DM_OK;
  }
};

/* c (m, n) = a (m, k) b, in the layer's dtype; b is (n, k) turned round, or (k, n). */
static dm_status product(const Layer &l, int64_t m, int64_t n, int64_t k, const void *a,
                         const void *b, bool turned, void *c) {
  dm_Product p = {};
  p.m = m;
  p.n = n;
  p.k = k;
  p.a = {a, l.dtype, k, 1};
  p.b = {b, l.dtype, turned ? 1 : n, turned ? k : 1};
  p.c = c;
  p.c_dtype = l.dtype;
  p.alpha = 1;
  return dm_cuda_multiply(&p);
}

template <class C> static RnnStep<C> step_of(const Layer &l, C *carry) {
  RnnStep<C> s = {};
  s.kind = l.kind;
  s.dtype = l.dtype;
  s.batch = l.batch;
  s.hidden = l.hidden;
  s.gates = l.gates;
  s.width = l.width;
  s.carry = carry;
  return s;
}

/* in: the input's share, (w), the bias of the state's, h0, c0; out: y and memory. */
template <class C>
static dm_status forward(const Layer &l, void *const *in, void *y, void *memory) {
  const int64_t n = l.batch * l.hidden;
  const unsigned blocks = dm_blocks(n);
  dm_Scratch<C> carry;
  dm_Scratch<char> share;
  DM_TRY(carry.get(n));
  DM_TRY(share.get(n * l.gates * dm_dtype_sizes[l.dtype]));
  RnnStep<C> s = step_of<C>(l, carry.p);
  s.bias = in[2];
  const void *state = in[3];
  if (l.width > 0)
    DM_TRY(dm_launch((rnn_begin_kernel<C>), blocks, DM_THREADS, 0, (int)l.dtype,
                     (const void *)(l.kind == CELL_LSTM ? in[4] : in[3]), carry.p, n));
  for (int64_t i = 0; i < l.steps; i++) {
    s.x = l.at(in[0], i, l.gates);
    s.y = (void *)l.at(y, i, 1);
    s.memory = (void *)l.at(memory, i, l.width);
    s.product = state ? share.p : NULL;
    if (state)
      DM_TRY(product(l, l.batch, l.gates * l.hidden, l.hidden, state, l.w, true, share.p));
    DM_TRY(dm_launch((rnn_kernel<C>), blocks, DM_THREADS, 0, s));
    state = s.y;
  }
  return DM_OK;
}

/* in: gy, gm, y, memory, (w), h0, c0; out: the gradients of the input's share, of h0, and of c0
   or a GRU's share of the state. */
template <class C>
static dm_status backward(const Layer &l, void *const *in, void *const *out) {
  const int64_t n = l.batch * l.hidden, all = l.gates * l.hidden;
  const unsigned blocks = dm_blocks(n);
  const bool lstm = l.kind == CELL_LSTM, gru = l.kind == CELL_GRU;
  dm_Scratch<C> carry;
  dm_Scratch<char> gh;
  DM_TRY(carry.get(n));
  DM_TRY(gh.get(n * dm_dtype_sizes[l.dtype]));
  RnnStep<C> s = step_of<C>(l, carry.p);
  DM_TRY(dm_launch((rnn_begin_kernel<C>), blocks, DM_THREADS, 0, (int)l.dtype,
                   (const void *)NULL, carry.p, n));
  for (int64_t i = l.steps - 1; i >= 0; i--) {
    s.y = (void *)l.at(in[2], i, 1);
    s.memory = (void *)l.at(in[3], i, l.width);
    s.gy = l.at(in[0], i, 1);
    s.gm = l.at(in[1], i, l.width);
    s.gx = (void *)l.at(out[0], i, l.gates);
    s.gz = gru ? (void *)l.at(out[2], i, l.gates) : NULL;
    s.before_apart = lstm && i > 0 ? l.width * l.hidden : l.hidden;
    if (i == 0) s.before = lstm ? in[6] : in[5];
    else if (lstm)
      s.before = l.at(in[3], i - 1, l.width) + 4 * l.hidden * dm_dtype_sizes[l.dtype];
    else s.before = l.at(in[2], i - 1, 1);
    DM_TRY(dm_launch((rnn_backward_kernel<C>), blocks, DM_THREADS, 0, s));
    DM_TRY(product(l, l.batch, l.hidden, all, gru ? s.gz : s.gx, l.w, false, gh.p));
    s.product = gh.p;
  }
  DM_TRY(dm_launch((rnn_end_kernel<C>), blocks, DM_THREADS, 0, (int)l.dtype, (const void *)gh.p,
                   (const C *)(gru ? carry.p : NULL), out[1], n));
  if (!lstm) return DM_OK;
  return dm_launch((rnn_end_kernel<C>), blocks, DM_THREADS, 0, (int)l.dtype, (const void *)NULL,
                   (const C *)carry.p, out[2], n);
}

DM_CUDA_KERNEL(rnn_steps_cuda) {
  if (c->out[0]->numel == 0) return DM_OK;
  Given in;
  DM_TRY(in.take(c));
  const Layer l = layer_of(DM_ATTR(dm_RnnAttr, c), c->out[0], in.data[1]);
  void *const y = dm_tensor_data(c->out[0]);
  void *const memory = c->n_out > 1 ? dm_tensor_data(c->out[1]) : NULL;
  return l.dtype == DM_F64 ? forward<double>(l, in.data, y, memory)
                           : forward<float>(l, in.data, y, memory);
}

DM_CUDA_KERNEL(rnn_steps_backward_cuda) {
  if (c->in[2]->numel == 0) return DM_OK;
  Given in;
  DM_TRY(in.take(c));
  const Layer l = layer_of(DM_ATTR(dm_RnnAttr, c), c->in[2], in.data[4]);
  void *out[3] = {};
  for (int i = 0; i < c->n_out; i++) out[i] = dm_tensor_data(c->out[i]);
  return l.dtype == DM_F64 ? backward<double>(l, in.data, out)
                           : backward<float>(l, in.data, out);
}
