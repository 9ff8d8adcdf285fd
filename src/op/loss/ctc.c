/* The loss of connectionist temporal classification (Graves et al. 2006); ctc.h
   describes the states.

   log_probs (T, N, C); targets (N, S) padded, or all labels of the batch
   concatenated; input_lengths and target_lengths (N). A target of u labels has 2 u +
   1 states. alpha (N, T, 2 S + 1) holds, for each time and state s, the
   log-probability of all paths that are in s at that time, this time's emission
   included: alpha_t(s) = logsumexp(alpha_(t-1)(s), alpha_(t-1)(s-1), and
   alpha_(t-1)(s-2) where a label may follow another label directly) +
   log_probs_t(class of s). The loss is -logsumexp of the last two states at the last
   time. The backward pass computes beta, the same from the end and without the
   time's own emission; exp(alpha + beta + loss) is the posterior probability of a
   state, and the gradient of log_probs_t(k) is minus the sum of that over the states
   of class k. Everything is in log space and float64 per sequence; sequences are
   divided among threads. */
#include "op/loss/ctc.h"

#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "core/copy.h"
#include "cpu/threads.h"
#include "cpu/vec.h"
#include "op/loss/loss.h"
#include "op/pointwise/pointwise.h"

/* ---- rule ---- */

static dm_status check_lengths(const dm_Tensor *t, const char *what, int64_t batch) {
  if (!dm_is_int((dm_DType)t->dtype))
    return dm_fail(DM_EARG, "ctc_loss: %s is %s, wanted int64; hint: %s:long()", what,
                   dm_dtype_name((dm_DType)t->dtype), what);
  if (t->ndim != 1 || t->shape[0] != batch)
    return dm_fail(DM_EARG, "ctc_loss: %s has shape %s, wanted one for each of %lld sequences",
                   what, DM_SHAPE(t), (long long)batch);
  return DM_OK;
}

/* *out: the elements of an integer tensor from any device, which the caller frees. */
static dm_status read_ints(dm_Tensor *t, int64_t **out) {
  dm_Tensor *host, *dense = NULL;
  DM_TRY(dm_tensor_on_host(t, &host));
  dm_status st = dm_dense_new(host, &dense);
  if (st == DM_OK && !(*out = dm_alloc((int64_t)sizeof(int64_t) * dm_max_i64(t->numel, 1))))
    st = dm_fail(DM_EMEM, "ctc_loss: out of memory");
  if (st == DM_OK && t->numel)
    dm_load_i64((dm_DType)dense->dtype, dm_tensor_data(dense), 1, t->numel, *out);
  dm_tensor_unref(&dense);
  dm_tensor_unref(&host);
  return st;
}

/* The number of labels per row that alpha must hold: S for padded targets, the
   longest target for concatenated ones. */
static dm_status label_capacity(const dm_Call *c, int64_t *capacity) {
  const dm_Tensor *targets = c->in[1], *lengths = c->in[3];
  if (targets->ndim == 2) {
    *capacity = targets->shape[1];
    return DM_OK;
  }
  int64_t *n = NULL;
  *capacity = 0;
  DM_TRY(read_ints(c->in[3], &n));
  for (int64_t i = 0; i < lengths->numel; i++) *capacity = dm_max_i64(*capacity, n[i]);
  *capacity = dm_min_i64(*capacity, targets->numel);
  dm_free(n);
  return DM_OK;
}

/* out: the loss (N) and alpha (N, T, 2 S + 1) in the compute type, which the
   gradient reads. */
dm_status ctc_rule(dm_Call *c) {
  const dm_Tensor *lp = c->in[0], *targets = c->in[1];
  const int64_t blank = DM_ATTR(dm_CtcAttr, c)->blank;
  if (lp->ndim != 3 || !dm_is_float((dm_DType)lp->dtype))
    return dm_fail(DM_EARG, "ctc_loss: log_probs is %s of shape %s, wanted {time, N, classes}",
                   dm_dtype_name((dm_DType)lp->dtype), DM_SHAPE(lp));
  const int64_t steps = lp->shape[0], batch = lp->shape[1], classes = lp->shape[2];
  const bool fits = targets->ndim == 1 || (targets->ndim == 2 && targets->shape[0] == batch);
  if (!fits || !dm_is_int((dm_DType)targets->dtype))
    return dm_fail(DM_EARG,
                   "ctc_loss: targets is %s of shape %s, wanted int64 of shape {%lld, labels}, "
                   "or all labels one after another",
                   dm_dtype_name((dm_DType)targets->dtype), DM_SHAPE(targets),
                   (long long)batch);
  DM_TRY(check_lengths(c->in[2], "input_lengths", batch));
  DM_TRY(check_lengths(c->in[3], "target_lengths", batch));
  if (blank < 0 || blank >= classes)
    return dm_fail(DM_EARG, "ctc_loss: blank is %lld, wanted a class, %d to %lld",
                   (long long)(blank + c->base), c->base, (long long)(classes - 1 + c->base));
  int64_t capacity;
  DM_TRY(label_capacity(c, &capacity));
  c->out_meta[0] =
      (dm_Meta){.dtype = lp->dtype, .ndim = 1, .shape = {batch}, .device = lp->device};
  c->out_meta[1] = (dm_Meta){.dtype = (uint8_t)dm_compute_dtype((dm_DType)lp->dtype),
                             .ndim = 3,
                             .shape = {batch, steps, 2 * capacity + 1},
                             .device = lp->device};
  return DM_OK;
}

/* ---- the state of both kernels ---- */

/* One call, for both directions. */
typedef struct Ctc {
  int64_t steps, batch, classes, capacity, blank; /* capacity: S */
  dm_DType dtype, wide;                           /* dtypes of log_probs and of alpha */
  dm_Tensor *x;                                   /* log_probs, contiguous */
  int64_t *label;                                 /* classes from 0 */
  int64_t *steps_of, *labels_of,
      *start; /* per sequence: its length, number of labels, first label */
  char *alpha;
  double *nll, *gy; /* per sequence: its loss, or the upstream gradient */
  char *gx;
  atomic_bool failed; /* out of memory */
} Ctc;

static void ctc_free(Ctc *j) {
  dm_tensor_unref(&j->x);
  dm_free(j->label);
  dm_free(j->steps_of);
  dm_free(j->labels_of);
  dm_free(j->start);
  dm_free(j->nll);
}

/* Checks the lengths and labels of sequence n and shifts its labels to count from 0. */
static dm_status check_sequence(const Ctc *j, int64_t n, int64_t n_label, int base) {
  const int64_t steps = j->steps_of[n], labels = j->labels_of[n];
  if (steps < 0 || steps > j->steps)
    return dm_fail(DM_EARG, "ctc_loss: input_lengths: %lld at position %lld, wanted 0 to %lld",
                   (long long)steps, (long long)(n + base), (long long)j->steps);
  if (labels < 0 || labels > j->capacity || j->start[n] + labels > n_label)
    return dm_fail(
        DM_EARG, "ctc_loss: target_lengths: %lld at position %lld, more labels than there are",
        (long long)labels, (long long)(n + base));
  for (int64_t i = j->start[n]; i < j->start[n] + labels; i++) {
    j->label[i] -= base;
    if (j->label[i] < 0 || j->label[i] >= j->classes)
      return dm_fail(DM_EARG,
                     "ctc_loss: label %lld at position %lld is out of range %d to %lld",
                     (long long)(j->label[i] + base), (long long)(i + base), base,
                     (long long)(j->classes - 1 + base));
  }
  return DM_OK;
}

/* Fills *j from in: log_probs, targets, input_lengths, target_lengths, and alpha. */
static dm_status ctc_new(const dm_Call *c, dm_Tensor *const *in, const dm_Tensor *alpha,
                         Ctc *j) {
  const dm_Tensor *lp = in[0], *targets = in[1];
  *j = (Ctc){.steps = lp->shape[0],
             .batch = lp->shape[1],
             .classes = lp->shape[2],
             .capacity = alpha->shape[2] / 2,
             .blank = DM_ATTR(dm_CtcAttr, c)->blank,
             .dtype = (dm_DType)lp->dtype,
             .wide = (dm_DType)alpha->dtype,
             .alpha = dm_tensor_data(alpha)};
  DM_TRY(dm_dense_new(in[0], &j->x));
  DM_TRY(read_ints(in[1], &j->label));
  DM_TRY(read_ints(in[2], &j->steps_of));
  DM_TRY(read_ints(in[3], &j->labels_of));
  j->start = dm_alloc((int64_t)sizeof(int64_t) * dm_max_i64(j->batch, 1));
  j->nll = j->gy = dm_alloc((int64_t)sizeof(double) * dm_max_i64(j->batch, 1));
  if (!j->start || !j->nll) return dm_fail(DM_EMEM, "ctc_loss: out of memory");
  for (int64_t n = 0, at = 0; n < j->batch; n++) {
    j->start[n] = targets->ndim == 2 ? n * j->capacity : at;
    DM_TRY(check_sequence(j, n, targets->numel, c->base));
    at += j->labels_of[n];
  }
  return DM_OK;
}

/* The class of state s of sequence n: odd states are labels, even states the blank. */
static int64_t class_of(const Ctc *j, int64_t n, int64_t s) {
  return s % 2 ? j->label[j->start[n] + s / 2] : j->blank;
}
/* True when a path may enter state s from s - 2, skipping the blank: between two
   different labels. */
static bool skips_to(const Ctc *j, int64_t n, int64_t s) {
  return s % 2 && s > 1 && class_of(j, n, s) != class_of(j, n, s - 2);
}

/* lp (C) = log_probs of sequence n at time t. */
static void load_probs(const Ctc *j, int64_t t, int64_t n, double *lp) {
  const int64_t at = (t * j->batch + n) * j->classes;
  dm_load_f64(j->dtype, (char *)dm_tensor_data(j->x) + at * dm_dtype_size(j->dtype), 1,
              j->classes, lp);
}
/* The row of alpha of sequence n at time t. */
static char *alpha_at(const Ctc *j, int64_t t, int64_t n) {
  return j->alpha + (n * j->steps + t) * (2 * j->capacity + 1) * dm_dtype_size(j->wide);
}

/* The buffers of a thread: two rows of states, two rows of classes. */
typedef struct Rows {
  double *now, *before, *lp, *sum;
} Rows;

static bool rows_new(const Ctc *j, Rows *r) {
  const int64_t states = 2 * j->capacity + 1;
  r->now = dm_alloc((int64_t)sizeof(double) * 2 * (states + j->classes));
  if (!r->now) return false;
  r->before = r->now + states;
  r->lp = r->before + states;
  r->sum = r->lp + j->classes;
  return true;
}

/* row[s], or log 0 outside the states. */
static double entry(const double *row, int64_t s, int64_t states) {
  return s >= 0 && s < states ? row[s] : -HUGE_VAL;
}

/* The loss of a sequence from its last alpha: -log of the paths that end in the last
   label or in the blank after it. */
static double ended(const double *alpha, int64_t states) {
  return -dm_log_add3(alpha[states - 1], entry(alpha, states - 2, states), -HUGE_VAL);
}

/* ---- forward ---- */

/* alpha and the loss of sequence n. At time 0 a path is in state 0 or 1. */
static void forward(Ctc *j, int64_t n, Rows r) {
  const int64_t states = 2 * j->labels_of[n] + 1, steps = j->steps_of[n];
  for (int64_t t = 0; t < steps; t++) {
    load_probs(j, t, n, r.lp);
    for (int64_t s = 0; s < states; s++) {
      double way = s < 2 ? 0 : -HUGE_VAL;
      if (t > 0)
        way = dm_log_add3(r.before[s], entry(r.before, s - 1, states),
                          skips_to(j, n, s) ? r.before[s - 2] : -HUGE_VAL);
      r.now[s] = way + r.lp[class_of(j, n, s)];
    }
    dm_store_f64(j->wide, alpha_at(j, t, n), 1, states, r.now);
    double *const row = r.now;
    r.now = r.before;
    r.before = row;
  }
  j->nll[n] = steps > 0 ? ended(r.before, states) : states == 1 ? 0 : HUGE_VAL;
}

/* Thread body: sequences [begin, end). */
static void forward_range(void *ctx, int64_t begin, int64_t end) {
  Ctc *j = ctx;
  Rows r;
  if (!rows_new(j, &r)) {
    atomic_store(&j->failed, true);
    return;
  }
  for (int64_t n = begin; n < end; n++) forward(j, n, r);
  dm_free(r.now);
}

/* in: log_probs, targets, input_lengths, target_lengths; out: the loss (N) and
   alpha. */
dm_status ctc_cpu(dm_Call *c) {
  Ctc j;
  dm_status st;
  DM_GO(ctc_new(c, c->in, c->out[1], &j));
  dm_parallel_for(j.batch, 1, forward_range, &j);
  if (j.failed) st = dm_fail(DM_EMEM, "ctc_loss: out of memory");
  else if (j.batch) dm_store_f64(j.dtype, dm_tensor_data(c->out[0]), 1, j.batch, j.nll);
done:
  ctc_free(&j);
  return st;
}

/* ---- backward ---- */

void ctc_grad(dm_Grad *g) {
  if (!g->need[0]) return;
  g->gx[0] = dm_x(g->x, DM_OP_ctc_backward, g->attr, 6, g->gy[0], g->in[0], g->in[1], g->in[2],
                  g->in[3], g->out[1]);
}

dm_status ctc_backward_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[1], (dm_DType)c->in[1]->dtype);
  return DM_OK;
}

/* beta of all states at time t; `next` holds beta + the emission of time t + 1. The
   recursion mirrors forward's: from s to s, s + 1, and s + 2 where the blank may be
   skipped. */
static void step_back(const Ctc *j, int64_t n, bool last, const double *next, double *beta) {
  const int64_t states = 2 * j->labels_of[n] + 1;
  for (int64_t s = 0; s < states; s++) {
    if (last) beta[s] = s >= states - 2 ? 0 : -HUGE_VAL;
    else
      beta[s] = dm_log_add3(next[s], entry(next, s + 1, states),
                            s + 2 < states && skips_to(j, n, s + 2) ? next[s + 2] : -HUGE_VAL);
  }
}

/* The gradient of sequence n: gx_t(k) = -gy * sum over the states s of class k of
   exp(alpha + beta + loss). */
static void backward(Ctc *j, int64_t n, Rows r) {
  const int64_t states = 2 * j->labels_of[n] + 1, steps = j->steps_of[n];
  const double g = j->gy[n];
  double nll = 0;
  for (int64_t t = steps - 1; t >= 0 && g != 0; t--) {
    const bool last = t == steps - 1;
    load_probs(j, t, n, r.lp);
    step_back(j, n, last, r.before, r.now); /* r.before holds time t + 1 */
    dm_load_f64(j->wide, alpha_at(j, t, n), 1, states, r.before);
    if (last) nll = ended(r.before, states);
    for (int64_t k = 0; k < j->classes; k++) r.sum[k] = 0;
    for (int64_t s = 0; s < states; s++) {
      const int64_t k = class_of(j, n, s);
      r.sum[k] -= g * exp(r.before[s] + r.now[s] + nll);
      r.before[s] = r.now[s] + r.lp[k];
    }
    dm_store_f64(j->dtype, j->gx + (t * j->batch + n) * j->classes * dm_dtype_size(j->dtype), 1,
                 j->classes, r.sum);
  }
}

static void backward_range(void *ctx, int64_t begin, int64_t end) {
  Ctc *j = ctx;
  Rows r;
  if (!rows_new(j, &r)) {
    atomic_store(&j->failed, true);
    return;
  }
  for (int64_t n = begin; n < end; n++) backward(j, n, r);
  dm_free(r.now);
}

/* in: gy (N), the four inputs of ctc, alpha; out: the gradient of log_probs (T, N,
   C). */
dm_status ctc_backward_cpu(dm_Call *c) {
  dm_Tensor *gy = c->in[0], *gx = c->out[0];
  Ctc j;
  dm_status st;
  DM_GO(ctc_new(c, c->in + 1, c->in[5], &j));
  j.gx = dm_tensor_data(gx);
  if (gx->numel) memset(j.gx, 0, (size_t)dm_tensor_bytes(gx));
  if (j.batch)
    dm_load_f64((dm_DType)gy->dtype, dm_tensor_data(gy), gy->stride[0], j.batch, j.gy);
  dm_parallel_for(j.batch, 1, backward_range, &j);
  if (j.failed) st = dm_fail(DM_EMEM, "ctc_loss: out of memory");
done:
  ctc_free(&j);
  return st;
}

/* ---- the loss ---- */

static dm_Tensor *unsqueezed(dm_X *x, dm_Tensor *t, int64_t dim) {
  return dm_x(x, DM_OP_unsqueeze, &dim, 1, t);
}

/* ctc_loss: mean divides each sequence's loss by its number of labels first, as in
   PyTorch. zero_infinity replaces infinite losses, of targets longer than their
   input, by 0. */
dm_status ctc_loss_compose(dm_Call *c, dm_X *x) {
  const dm_CtcLossAttr *a = DM_ATTR(dm_CtcLossAttr, c);
  dm_Tensor *lp = c->in[0], *targets = c->in[1], *steps = c->in[2], *labels = c->in[3];
  const bool alone = lp->ndim == 2; /* a single sequence without a batch */
  if (alone) {
    lp = unsqueezed(x, lp, 1);
    if (targets->ndim == 1) targets = unsqueezed(x, targets, 0);
    if (steps->ndim == 0) steps = unsqueezed(x, steps, 0);
    if (labels->ndim == 0) labels = unsqueezed(x, labels, 0);
  }
  dm_Tensor *loss = dm_x(x, DM_OP_ctc, &a->blank, 4, lp, targets, steps, labels);
  if (a->zero_infinity)
    loss = x_where(x, x_unary(x, DM_OP_isinf, loss), dm_x_number(x, 0), loss);
  if (a->reduction == DM_LOSS_MEAN)
    loss = x_div(x, loss, x_like(x, x_floor(x, labels, 1), loss));
  if (a->reduction != DM_LOSS_NONE)
    loss = dm_x(x, a->reduction == DM_LOSS_MEAN ? DM_OP_mean : DM_OP_sum, NULL, 1, loss);
  else if (alone) loss = x_reshape(x, loss, 0, NULL);
  c->out[0] = loss;
  return x->st;
}
