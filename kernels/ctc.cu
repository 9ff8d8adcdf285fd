/* CTC loss, forward and backward (A. Graves et al. 2006).

   One block per sequence. A target of u labels has 2 u + 1 states (op/loss/ctc.h); the threads
   of the block share the states, and the block goes through time with a barrier per step. The
   forward stores alpha (batch, steps, states), the log-probability of reaching each state; the
   backward computes beta from the end and combines both. A label that is no class is noted as
   a fault and replaced by the first class; lengths that do not fit are noted and cut. */
#include "kernels/own.cuh"
#include "kernels/vector.cuh"

extern "C" {
#include "core/copy.h"
}
#include "op/loss/ctc.h"

/* The batch: log_probs (steps, batch, classes), labels in one row or padded (batch, capacity),
   and the lengths of inputs and targets. */
struct Sequences {
  int64_t steps, batch, classes, capacity, blank, n_label; /* capacity: labels */
  const int64_t *label, *steps_of, *labels_of;
  bool padded;
  int base, op;
  dm_Fault *fault;
};

/* One sequence of the batch, as its block sees it. */
struct Sequence {
  Sequences all;
  int64_t n, steps, labels, start;

  /* Checks a length; thread 0 notes one that does not fit. */
  __device__ int64_t fit(int64_t given, int64_t most) const {
    if (given >= 0 && given <= most) return given;
    if (threadIdx.x == 0)
      dm_device_fault(all.fault, DM_FAULT_INDEX, all.op, 0, n, given, most + 1);
    return given < 0 ? 0 : most;
  }
  __device__ Sequence(const Sequences &s, int64_t i) : all(s), n(i), start(i * s.capacity) {
    steps = fit(s.steps_of[i], s.steps);
    labels = fit(s.labels_of[i], s.capacity);
    if (s.padded) return;
    start = 0;
    for (int64_t k = 0; k < i; k++) start += s.labels_of[k];
    labels = fit(labels, start < 0 || start > s.n_label ? 0 : s.n_label - start);
  }
  /* State s is blank where s is even, else label s / 2. */
  __device__ int64_t states(void) const { return 2 * labels + 1; }
  __device__ int64_t class_of(int64_t s) const {
    if (s % 2 == 0) return all.blank;
    const int64_t given = all.label[start + s / 2];
    const int64_t k = (int64_t)((uint64_t)given - (uint64_t)all.base);
    if (k >= 0 && k < all.classes) return k;
    dm_device_fault(all.fault, DM_FAULT_LABEL, all.op, all.base, start + s / 2, given,
                    all.classes);
    return 0;
  }
  /* Whether state s may be reached from s - 2: two different labels with a blank between. */
  __device__ bool skips_to(int64_t s) const {
    return s % 2 && s > 1 && s < states() && class_of(s) != class_of(s - 2);
  }
  /* The offset of log_probs (t, n, :). */
  __device__ int64_t row(int64_t t) const { return (t * all.batch + n) * all.classes; }
  /* The offset of alpha (n, t, :). */
  __device__ int64_t states_at(int64_t t) const {
    return (n * all.steps + t) * (2 * all.capacity + 1);
  }
};

/* An element of a row of states; -inf outside. */
template <class C> static __device__ inline C entry(const C *row, int64_t s, int64_t states) {
  return s >= 0 && s < states ? row[s] : -(C)INFINITY;
}
/* The loss from the last alphas: a path ends in the last label or the blank after it. */
template <class C> static __device__ inline C ended(const C *alpha, int64_t states) {
  return -dm_log_add3(alpha[states - 1], entry(alpha, states - 2, states), -(C)INFINITY);
}

/* Computes alpha step by step, and the loss of each sequence into nll (batch). */
template <class C, class T>
static __global__ void __launch_bounds__(DM_THREADS)
    forward_kernel(Sequences all, const T *lp, C *alpha, T *nll) {
  const Sequence q(all, blockIdx.x);
  const int64_t states = q.states();
  const C none = -(C)INFINITY;
  for (int64_t t = 0; t < q.steps; t++) {
    /* The rows of states of this step and of the one before. */
    C *now = alpha + q.states_at(t);
    const C *before = t > 0 ? alpha + q.states_at(t - 1) : NULL;
    for (int64_t s = threadIdx.x; s < states; s += DM_THREADS) {
      C way = s < 2 ? C(0) : none;
      if (t > 0)
        way = dm_log_add3(before[s], entry(before, s - 1, states),
                          q.skips_to(s) ? before[s - 2] : none);
      now[s] = way + dm_get<C, T>(lp[q.row(t) + q.class_of(s)]);
    }
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  /* Without steps only the empty target has a path. */
  const C end = q.steps > 0   ? ended((const C *)alpha + q.states_at(q.steps - 1), states)
                : states == 1 ? C(0)
                              : (C)INFINITY;
  dm_put(nll + q.n, end);
}

/* Links the states of one class: the next state with the same class (0 for none), and whether
   a state is the first of its class. */
struct Chain {
  int64_t *next, *first;
};
static __device__ inline void link_states(const Sequence &q, Chain chain) {
  for (int64_t s = threadIdx.x; s < q.states(); s += DM_THREADS) {
    const int64_t k = q.class_of(s);
    int64_t after = s + 1, before = s - 1;
    while (after < q.states() && q.class_of(after) != k) after++;
    while (before >= 0 && q.class_of(before) != k) before--;
    chain.next[s] = after < q.states() ? after : 0;
    chain.first[s] = before < 0;
  }
}

/* Computes the gradient with respect to log_probs; gx is zeroed before. Each block has three
   rows of states in `rows`: two hold beta with the current step's log-probability, in turns,
   and the third the states' shares. The first state of each class sums the shares of its class
   along the links, so that no two threads add to one element. */
template <class C, class T>
static __global__ void __launch_bounds__(DM_THREADS)
    backward_kernel(Sequences all, const T *gy, const T *lp, const C *alpha, C *rows,
                    int64_t *links, T *gx) {
  const Sequence q(all, blockIdx.x);
  const int64_t states = q.states(), width = 2 * all.capacity + 1;
  const C g = dm_get<C, T>(gy[q.n]), none = -(C)INFINITY;
  if (g == 0 || q.steps == 0) return;
  C *const own = rows + 3 * q.n * width, *const share = own + 2 * width;
  const Chain chain = {links + 2 * q.n * width, links + (2 * q.n + 1) * width};
  const C nll = ended(alpha + q.states_at(q.steps - 1), states);
  link_states(q, chain);
  for (int64_t t = q.steps - 1; t >= 0; t--) {
    /* The rows of step t and t + 1, by turns. */
    const C *next = own + (t + 1) % 2 * width, *a = alpha + q.states_at(t);
    C *now = own + t % 2 * width;
    for (int64_t s = threadIdx.x; s < states; s += DM_THREADS) {
      C beta = s >= states - 2 ? C(0) : none;
      if (t < q.steps - 1)
        beta = dm_log_add3(next[s], entry(next, s + 1, states),
                           q.skips_to(s + 2) ? next[s + 2] : none);
      share[s] = exp(a[s] + beta + nll);
      now[s] = beta + dm_get<C, T>(lp[q.row(t) + q.class_of(s)]);
    }
    __syncthreads();
    /* The shares of a class are added by its first state, in the order of the states. */
    for (int64_t s = threadIdx.x; s < states; s += DM_THREADS) {
      if (!chain.first[s]) continue;
      C sum = share[s];
      for (int64_t o = chain.next[s]; o; o = chain.next[o]) sum += share[o];
      dm_put(gx + q.row(t) + q.class_of(s), -g * sum);
    }
    __syncthreads();
  }
}

/* ---- on the host ---- */

/* Owns the inputs, converted to the types that the kernels read. */
struct PathHeld {
  dm_Own lp, label, steps_of, labels_of;
};

/* Brings the inputs into the kernels' types, and describes the batch. */
static dm_status hold(const dm_Call *c, dm_Tensor *const *in, const dm_Tensor *alpha,
                      PathHeld *h, Sequences *all) {
  const dm_Tensor *lp = in[0];
  DM_TRY(dm_dense_new(in[0], &h->lp.t));
  DM_TRY(dm_dense_cast(in[1], DM_I64, &h->label.t));
  DM_TRY(dm_dense_cast(in[2], DM_I64, &h->steps_of.t));
  DM_TRY(dm_dense_cast(in[3], DM_I64, &h->labels_of.t));
  *all = {lp->shape[0],
          lp->shape[1],
          lp->shape[2],
          alpha->shape[2] / 2,
          DM_ATTR(dm_CtcAttr, c)->blank,
          in[1]->numel,
          (const int64_t *)dm_tensor_data(h->label.t),
          (const int64_t *)dm_tensor_data(h->steps_of.t),
          (const int64_t *)dm_tensor_data(h->labels_of.t),
          in[1]->ndim == 2,
          c->base,
          (int)DM_OP_ctc_loss,
          dm_cuda_faults()};
  return DM_OK;
}

/* in: log_probs (T, N, C), targets, and the lengths of inputs and targets (N); out: the loss
   of each sequence (N), and alpha for the backward. */
DM_CUDA_KERNEL(ctc_cuda) {
  dm_Tensor *nll = c->out[0], *alpha = c->out[1];
  PathHeld h;
  Sequences all;
  DM_TRY(hold(c, c->in, alpha, &h, &all));
  DM_FLOAT_TYPES(nll->dtype, {
    return dm_launch((forward_kernel<C, T>), dim3((unsigned)all.batch), DM_THREADS, 0, all,
                     (const T *)dm_tensor_data(h.lp.t), (C *)dm_tensor_data(alpha),
                     (T *)dm_tensor_data(nll));
  });
  return DM_OK;
}

/* in: gy (N), the forward's four inputs, and alpha; out: gx (T, N, C), 0 where no path
   passes. */
DM_CUDA_KERNEL(ctc_backward_cuda) {
  dm_Tensor *gx = c->out[0], *alpha = c->in[5];
  const dm_DType dtype = (dm_DType)gx->dtype;
  PathHeld h;
  dm_Own gy;
  dm_Scratch<int64_t> links;
  Sequences all;
  if (gx->numel == 0) return DM_OK;
  DM_CUDA_TRY(
      cudaMemsetAsync(dm_tensor_data(gx), 0, (size_t)dm_tensor_bytes(gx), dm_cuda_stream()));
  DM_TRY(hold(c, c->in + 1, alpha, &h, &all));
  DM_TRY(dm_dense_cast(c->in[0], dtype, &gy.t));
  const int64_t width = all.batch * (2 * all.capacity + 1);
  DM_TRY(links.get(2 * width));
  DM_FLOAT_TYPES(dtype, {
    dm_Scratch<C> rows;
    DM_TRY(rows.get(3 * width));
    return dm_launch((backward_kernel<C, T>), dim3((unsigned)all.batch), DM_THREADS, 0, all,
                     (const T *)dm_tensor_data(gy.t), (const T *)dm_tensor_data(h.lp.t),
                     (const C *)dm_tensor_data(alpha), rows.p, links.p,
                     (T *)dm_tensor_data(gx));
  });
  return DM_OK;
}
