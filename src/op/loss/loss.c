/* cross_entropy and nll_loss with class labels.

   x is (N, C, d...) or (C), target (N, d...) or (). A row is the C logits of one
   target; they lie d apart. Labels count from the call's base. Cross entropy reads
   each row once per pass and saves nothing but its inputs (16-bit ones under autocast, too,
   whose loss is float32): with lse = logsumexp(x), label y, weights w and smoothing s, a row's
   loss is (1 - s) w_y (lse - x_y) + s / C * sum over k of w_k (lse - x_k), and its gradient,
   computed again from x in one more pass, is g (A softmax(x) - (1 - s) w_y onehot(y) - s / C w)
   with A = (1 - s) w_y + s / C sum(w). There is no tensor of log-probabilities. Row losses and
   weights are float64; mean divides their sum by the sum of the targets' weights, as
   in PyTorch. The row loops are in cpu/loops/cross.inc. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "core/copy.h"
#include "cpu/loops/loops.h"
#include "cpu/threads.h"
#include "cpu/vec.h"
#include "op/loss/loss.h"
#include "op/pointwise/pointwise.h"

/* x has a class dim, target one integer label per row, weight one number per class. */
static dm_status check_loss(const dm_Call *c, int ndim, const int64_t *x,
                            const dm_Tensor *target, const dm_Tensor *weight) {
  const char *op = c->op->name;
  if (ndim < 1) return dm_fail(DM_EARG, "%s: x has shape {}, wanted {N, classes, ...}", op);
  if (!dm_is_int((dm_DType)target->dtype))
    return dm_fail(DM_EARG, "%s: the target is %s, wanted labels as int64; hint: y:long()", op,
                   dm_dtype_name((dm_DType)target->dtype));
  bool fits = target->ndim == (ndim == 1 ? 0 : ndim - 1);
  for (int d = 0; fits && d < target->ndim; d++) fits = target->shape[d] == x[d ? d + 1 : 0];
  if (!fits)
    return dm_fail(DM_EARG, "%s: x has shape %s, the target %s; wanted one label for each row",
                   op, DM_DIMS(ndim, x), DM_SHAPE(target));
  const int64_t classes = x[ndim == 1 ? 0 : 1];
  if (weight && (weight->ndim != 1 || weight->shape[0] != classes))
    return dm_fail(DM_EARG, "%s: weight has shape %s, wanted one for each of %lld classes", op,
                   DM_SHAPE(weight), (long long)classes);
  return DM_OK;
}

/* label[i]: the targets as classes from 0, with -1 for an ignored one. A label out
   of range is an error that names its position. */
static dm_status read_labels(const dm_Call *c, const dm_Tensor *target, double ignore,
                             int64_t classes, int64_t *label) {
  dm_Tensor *dense;
  DM_TRY(dm_dense_new((dm_Tensor *)(uintptr_t)target, &dense));
  if (target->numel)
    dm_load_i64((dm_DType)dense->dtype, dm_tensor_data(dense), 1, dense->numel, label);
  dm_tensor_unref(&dense);
  /* Whether all labels are in range is asked in one loop without branches, and which one is
     not only where one is not. Unsigned: INT64_MIN wraps and is still out of range. */
  const bool ignores = ignore >= -0x1p63 && ignore < 0x1p63 && ignore == floor(ignore);
  const int64_t n = target->numel, ignored = ignores ? (int64_t)ignore : 0;
  const uint64_t base = (uint64_t)c->base, end = (uint64_t)classes;
  bool bad = false;
  for (int64_t i = 0; i < n; i++)
    bad |= !(ignores & (label[i] == ignored)) & ((uint64_t)label[i] - base >= end);
  for (int64_t i = 0; bad && i < n; i++)
    if (!(ignores && label[i] == ignored) && (uint64_t)label[i] - base >= end)
      return dm_fail(DM_EARG, "%s: label %lld at position %lld is out of range %d to %lld%s",
                     c->op->name, (long long)label[i], (long long)(i + c->base), c->base,
                     (long long)(classes - 1 + c->base),
                     c->base == 1 && label[i] == 0 ? "; hint: labels count from 1" : "");
  for (int64_t i = 0; i < n; i++)
    label[i] = (ignores & (label[i] == ignored)) ? -1 : label[i] - c->base;
  return DM_OK;
}

/* The state of one call and what it owns; a few rows need no allocation. */
enum { FEW_ROWS = 32 };
typedef struct Work {
  dm_CrossJob j;
  dm_Tensor *x; /* contiguous */
  int64_t *label, few_labels[FEW_ROWS];
  double *weight, few_rows[FEW_ROWS];
} Work;

/* Releases what work_new allocated, and nothing of what it found. */
static void work_free(Work *w) {
  dm_tensor_unref(&w->x);
  dm_free(w->weight);
  if (w->label != w->few_labels) dm_free(w->label);
  if (w->j.row != w->few_rows) dm_free(w->j.row);
}

/* Prepares a call over rows r: labels, weights as float64, x contiguous if it is
   given. The caller calls work_free even after a failure. */
static dm_status work_new(const dm_Call *c, dm_LossRows r, dm_Tensor *x, dm_Tensor *target,
                          dm_Tensor *weight, double ignore, Work *w) {
  const bool few = r.n <= FEW_ROWS;
  w->j = (dm_CrossJob){.r = r, .weight_sum = (double)r.c};
  w->x = NULL;
  w->weight = NULL;
  w->label = few ? w->few_labels : dm_alloc((int64_t)sizeof(int64_t) * r.n);
  w->j.label = w->label;
  w->j.row = few ? w->few_rows : dm_alloc((int64_t)sizeof(double) * r.n);
  if (weight) w->j.weight = w->weight = dm_alloc((int64_t)sizeof(double) * r.c);
  if (!w->label || !w->j.row || (weight && !w->weight))
    return dm_fail(DM_EMEM, "%s: out of memory", c->op->name);
  if (x) {
    DM_TRY(dm_dense_new(x, &w->x));
    w->j.dtype = (dm_DType)w->x->dtype;
    w->j.x = dm_tensor_data(w->x);
  }
  if (weight) {
    dm_load_f64((dm_DType)weight->dtype, dm_tensor_data(weight), weight->stride[0], r.c,
                w->weight);
    w->j.weight_sum = 0;
    for (int64_t k = 0; k < r.c; k++) w->j.weight_sum += w->weight[k];
  }
  return read_labels(c, target, ignore, r.c, w->label);
}

/* The weight of a label: 0 for an ignored one, 1 without weights. */
static double weight_at(const Work *w, int64_t label) {
  return label < 0 ? 0 : w->weight ? w->weight[label] : 1;
}

/* The sum of the targets' weights, by which mean divides. */
static double total_weight(const Work *w) {
  double s = 0;
  int64_t counted = 0;
  for (int64_t i = 0; !w->weight && i < w->j.r.n; i++) counted += w->label[i] >= 0;
  for (int64_t i = 0; w->weight && i < w->j.r.n; i++) s += weight_at(w, w->label[i]);
  return w->weight ? s : (double)counted;
}

/* Writes the rows' losses to the output: each of them, their sum, or their weighted
   mean. */
static void reduce_rows(const Work *w, int64_t reduction, dm_Tensor *out) {
  if (reduction == DM_LOSS_NONE) {
    if (w->j.r.n)
      dm_store_f64((dm_DType)out->dtype, dm_tensor_data(out), 1, w->j.r.n, w->j.row);
    return;
  }
  enum { LANES = 4 }; /* sums that do not wait for one another */
  double lane[LANES] = {0};
  int64_t i = 0;
  for (; i + LANES <= w->j.r.n; i += LANES)
    for (int k = 0; k < LANES; k++) lane[k] += w->j.row[i + k];
  for (; i < w->j.r.n; i++) lane[0] += w->j.row[i];
  double s = (lane[0] + lane[1]) + (lane[2] + lane[3]);
  if (reduction == DM_LOSS_MEAN) s /= total_weight(w);
  dm_store_f64((dm_DType)out->dtype, dm_tensor_data(out), 1, 1, &s);
}

/* Sets row[i] to the gradient of row i's loss from gy: gy[i], gy, or gy / total
   weight. */
static dm_status spread_gradient(Work *w, int64_t reduction, dm_Tensor *gy) {
  dm_Tensor *dense;
  DM_TRY(dm_dense_new(gy, &dense));
  if (reduction == DM_LOSS_NONE) {
    if (w->j.r.n)
      dm_load_f64((dm_DType)dense->dtype, dm_tensor_data(dense), 1, w->j.r.n, w->j.row);
  } else {
    double g;
    dm_load_f64((dm_DType)dense->dtype, dm_tensor_data(dense), 1, 1, &g);
    if (reduction == DM_LOSS_MEAN) g /= total_weight(w);
    for (int64_t i = 0; i < w->j.r.n; i++) w->j.row[i] = g;
  }
  dm_tensor_unref(&dense);
  return DM_OK;
}

/* Output: the target's shape, or a scalar, in x's dtype, or its compute type if `wide`. */
static dm_status loss_meta(dm_Call *c, const dm_Tensor *x, const dm_Tensor *target,
                           int64_t reduction, bool wide) {
  const dm_DType dtype = (dm_DType)x->dtype;
  dm_out_like(c, 0, target, wide ? dm_compute_dtype(dtype) : dtype);
  if (reduction != DM_LOSS_NONE) c->out_meta[0].ndim = 0;
  return DM_OK;
}

/* The address of the first element of row i; the row's elements lie r.inner apart. */
static char *row_at(const Work *w, char *data, int64_t i) {
  const int64_t inner = w->j.r.inner, c = w->j.r.c;
  const int64_t first = inner == 1 ? i * c : i / inner * c * inner + i % inner;
  return data + first * dm_dtype_size(w->j.dtype);
}

/* The address of row i's element at its label. */
static char *label_at(const Work *w, char *data, int64_t i) {
  return row_at(w, data, i) + w->label[i] * w->j.r.inner * dm_dtype_size(w->j.dtype);
}

/* ---- cross entropy ---- */

/* x (N, C, d...) of logits, target (N, d...) of labels. */
dm_status cross_entropy_rule(dm_Call *c) {
  const dm_Tensor *x = c->in[0];
  const dm_CrossEntropyAttr *a = DM_ATTR(dm_CrossEntropyAttr, c);
  DM_TRY(dm_check_float(c, x, "x"));
  DM_TRY(check_loss(c, x->ndim, x->shape, c->in[1], c->in[2]));
  if (!(a->label_smoothing >= 0 && a->label_smoothing <= 1))
    return dm_fail(DM_EARG, "cross_entropy: label_smoothing is %g, wanted 0 to 1",
                   a->label_smoothing);
  return loss_meta(c, x, c->in[1], a->reduction, dm_thread_state()->autocast.widens);
}

/* in: x, target, weight. Without gy it computes the loss, with gy the gradient of x. */
static dm_status cross_entropy(dm_Call *c, dm_Tensor *const *in, dm_Tensor *gy) {
  const dm_CrossEntropyAttr *a = DM_ATTR(dm_CrossEntropyAttr, c);
  Work w;
  dm_status st;
  DM_GO(work_new(c, dm_loss_rows(in[0]->ndim, in[0]->shape), in[0], in[1], in[2],
                 a->ignore_index, &w));
  w.j.smoothing = a->label_smoothing;
  if (gy) {
    DM_GO(spread_gradient(&w, a->reduction, gy));
    w.j.out = dm_tensor_data(c->out[0]);
  }
  dm_parallel_for(w.j.r.n, dm_max_i64(1, 16384 / dm_max_i64(w.j.r.c, 1)),
                  w.j.dtype == DM_F64 ? dm_loops()->f64.cross_rows : dm_loops()->f32.cross_rows,
                  &w.j);
  if (w.j.failed) st = dm_fail(DM_EMEM, "%s: out of memory", c->op->name);
  else if (!gy) reduce_rows(&w, a->reduction, c->out[0]);
done:
  work_free(&w);
  return st;
}

/* One pass over each row for its logsumexp and its label's logit. */
dm_status cross_entropy_cpu(dm_Call *c) { return cross_entropy(c, c->in, NULL); }

/* in: gy, x, target, weight; out: dx like x. */
dm_status cross_entropy_backward_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[1], (dm_DType)c->in[1]->dtype);
  return DM_OK;
}

/* The softmax of each row is computed again from x, which costs less than storing it. */
dm_status cross_entropy_backward_cpu(dm_Call *c) {
  return cross_entropy(c, c->in + 1, c->in[0]);
}

/* in: x, which becomes its gradient, gy, target, weight. A row is read before it is written. */
dm_status cross_entropy_overwrite_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  return DM_OK;
}

dm_status cross_entropy_overwrite_cpu(dm_Call *c) {
  dm_Tensor *const in[3] = {c->in[0], c->in[2], c->n_in > 3 ? c->in[3] : NULL};
  return cross_entropy(c, in, c->in[1]);
}

/* The gradient as a composition: g (A (p - 1/C) + K) with p = softmax(x), A the
   total weight of a row's targets and K the gradient at x = 0. A and K do not depend
   on x, so the result can be differentiated again. */
static void cross_entropy_composed(dm_Grad *g) {
  dm_X *x = g->x;
  const dm_CrossEntropyAttr *a = g->attr;
  dm_Tensor *logits = x_cast(x, g->in[0], dm_compute_dtype((dm_DType)g->in[0]->dtype));
  dm_Tensor *target = g->in[1], *gy = g->gy[0];
  if (!logits) return;
  dm_Tensor *weight = g->in[2] ? x_cast(x, g->in[2], (dm_DType)logits->dtype) : NULL;
  const int dim = logits->ndim == 1 ? 0 : 1;
  const double classes = (double)logits->shape[dim];
  dm_CrossEntropyAttr each = *a;
  each.reduction = DM_LOSS_NONE;
  const dm_NllLossAttr pick = {a->ignore_index, DM_LOSS_NONE};
  dm_Tensor *zeros = x_zeros_like(x, logits), *minus = x_shift(x, zeros, -1);
  /* nll_loss of -1 everywhere picks 1 times the weight of each target, and 0 for
     ignored ones. */
  dm_Tensor *weigh = dm_x(x, DM_OP_nll_loss, &pick, 3, minus, target, weight);
  dm_Tensor *mask = dm_x(x, DM_OP_nll_loss, &pick, 3, minus, target, NULL);
  dm_Tensor *total = weight ? x_sum(x, weight, (dm_Ints){-1, {0}}, false) : NULL;
  dm_Tensor *soft = total ? x_mul(x, mask, total) : x_scale(x, mask, classes);
  dm_Tensor *A = x_add(x, x_scale(x, weigh, 1 - a->label_smoothing),
                       x_scale(x, soft, a->label_smoothing / classes));
  dm_Tensor *ones = x_unary(x, DM_OP_ones_like, weigh);
  dm_Tensor *K = dm_x(x, DM_OP_cross_entropy_backward, &each, 4, ones, zeros, target, weight);
  const dm_SoftmaxAttr softmax = {dim, DM_NO_DTYPE};
  dm_Tensor *p = dm_x(x, DM_OP_softmax, &softmax, 1, logits);
  const int64_t at = dim;
  if (a->reduction == DM_LOSS_MEAN)
    gy = x_div(x, gy, x_sum(x, weigh, (dm_Ints){-1, {0}}, false));
  if (a->reduction == DM_LOSS_NONE) gy = dm_x(x, DM_OP_unsqueeze, &at, 1, gy);
  A = dm_x(x, DM_OP_unsqueeze, &at, 1, A);
  g->gx[0] = x_mul(x, gy, x_add(x, x_mul(x, A, x_shift(x, p, -1 / classes)), K));
}

/* May a gradient be written over saved input i? It is dense, an intermediate result, and only
   its node and the turn that runs hold it. */
static bool may_overwrite(const dm_Grad *g, int i) {
  const dm_Tensor *t = g->in[i];
  return g->last && t->node && !t->base && t->offset == 0 && dm_tensor_is_contiguous(t) &&
         atomic_load(&t->refs) == 2 && atomic_load(&t->storage->refs) == 1;
}

/* The gradient in the memory of the logits, under a handle without their history. */
static void overwrite_logits(dm_Grad *g) {
  dm_Tensor *gx = NULL;
  if (g->x->st == DM_OK) g->x->st = dm_tensor_alias(g->in[0], &gx);
  if (!dm_x_own(g->x, gx)) return;
  dm_Tensor *in[4] = {gx, g->gy[0], g->in[1], g->in[2]};
  g->x->st = dm_call_inplace(DM_OP_cross_entropy_overwrite, 4, in, g->attr);
  g->gx[0] = gx;
}

/* One fused call, or the composition under create_graph. Nobody else may read what the logits
   were: they are often the largest tensor of a language model. */
void cross_entropy_grad(dm_Grad *g) {
  if (!g->need[0]) return;
  if (g->create_graph) cross_entropy_composed(g);
  else if (may_overwrite(g, 0)) overwrite_logits(g);
  else
    g->gx[0] = dm_x(g->x, DM_OP_cross_entropy_backward, g->attr, 4, g->gy[0], g->in[0],
                    g->in[1], g->in[2]);
}

/* ---- negative log-likelihood ---- */

/* x (N, C, d...) of log-probabilities, target (N, d...). */
dm_status nll_loss_rule(dm_Call *c) {
  const dm_Tensor *x = c->in[0];
  DM_TRY(dm_check_float(c, x, "x"));
  DM_TRY(check_loss(c, x->ndim, x->shape, c->in[1], c->in[2]));
  return loss_meta(c, x, c->in[1], DM_ATTR(dm_NllLossAttr, c)->reduction, false);
}

/* v[i] = the element at the label of row first + i, for n <= PICKED rows; 0 where it is
 * ignored. */
enum { PICKED = 256 };
static void pick(const Work *w, int64_t first, int64_t n, double *v) {
  union {
    uint8_t s1[PICKED];
    uint16_t s2[PICKED];
    uint32_t s4[PICKED];
    uint64_t s8[PICKED];
  } raw;
  char *const x = dm_tensor_data(w->x);
#define PICK(SIZE, TYPE)                                                             \
  case SIZE:                                                                         \
    for (int64_t i = 0; i < n; i++)                                                  \
      raw.s##SIZE[i] = w->label[first + i] < 0                                       \
                           ? 0                                                       \
                           : *(const TYPE *)(const void *)label_at(w, x, first + i); \
    break;
  switch (dm_dtype_size(w->j.dtype)) {
    PICK(1, uint8_t)
    PICK(2, uint16_t)
    PICK(4, uint32_t)
    PICK(8, uint64_t)
  default: return;
  }
#undef PICK
  dm_load_f64(w->j.dtype, &raw, 1, n, v);
}

/* A row's loss is -w_y x_y, and 0 for ignored labels. */
dm_status nll_loss_cpu(dm_Call *c) {
  const dm_NllLossAttr *a = DM_ATTR(dm_NllLossAttr, c);
  dm_Tensor *x = c->in[0];
  Work w;
  dm_status st;
  DM_GO(
      work_new(c, dm_loss_rows(x->ndim, x->shape), x, c->in[1], c->in[2], a->ignore_index, &w));
  for (int64_t i = 0, n; i < w.j.r.n; i += n) {
    double *const row = w.j.row + i;
    n = dm_min_i64(PICKED, w.j.r.n - i);
    pick(&w, i, n, row);
    for (int64_t k = 0; k < n; k++)
      row[k] = w.label[i + k] < 0 ? 0 : -weight_at(&w, w.label[i + k]) * row[k];
  }
  reduce_rows(&w, a->reduction, c->out[0]);
done:
  work_free(&w);
  return st;
}

/* dx needs only x's shape, so x is not saved. */
void nll_loss_grad(dm_Grad *g) {
  const dm_NllLossAttr *a = g->attr;
  dm_NllLossBackwardAttr b = {a->ignore_index, a->reduction, {dm_in_meta(g, 0)->ndim, {0}}};
  memcpy(b.shape.v, dm_in_meta(g, 0)->shape, sizeof b.shape.v[0] * (size_t)b.shape.n);
  if (g->need[0])
    g->gx[0] = dm_x(g->x, DM_OP_nll_loss_backward, &b, 3, g->gy[0], g->in[1], g->in[2]);
}

/* in: gy, target, weight; out: dx of the shape in the attributes, in gy's dtype. */
dm_status nll_loss_backward_rule(dm_Call *c) {
  const dm_Ints *shape = &DM_ATTR(dm_NllLossBackwardAttr, c)->shape;
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  c->out_meta[0].ndim = (uint8_t)shape->n;
  memcpy(c->out_meta[0].shape, shape->v, sizeof shape->v[0] * (size_t)shape->n);
  return DM_OK;
}

/* dx is zeros with -w_y g at each row's label. */
dm_status nll_loss_backward_cpu(dm_Call *c) {
  const dm_NllLossBackwardAttr *a = DM_ATTR(dm_NllLossBackwardAttr, c);
  dm_Tensor *out = c->out[0];
  Work w;
  dm_status st;
  DM_GO(work_new(c, dm_loss_rows(out->ndim, out->shape), NULL, c->in[1], c->in[2],
                 a->ignore_index, &w));
  w.j.dtype = (dm_DType)out->dtype;
  DM_GO(spread_gradient(&w, a->reduction, c->in[0]));
  if (out->numel) memset(dm_tensor_data(out), 0, (size_t)dm_tensor_bytes(out));
  for (int64_t i = 0; i < w.j.r.n; i++) {
    if (w.label[i] < 0) continue;
    const double v = -weight_at(&w, w.label[i]) * w.j.row[i];
    dm_store_f64(w.j.dtype, label_at(&w, dm_tensor_data(out), i), 1, 1, &v);
  }
done:
  work_free(&w);
  return st;
}

/* The op is linear in gy, and its adjoint is nll_loss itself. */
void nll_loss_backward_grad(dm_Grad *g) {
  const dm_NllLossBackwardAttr *b = g->attr;
  const dm_NllLossAttr a = {b->ignore_index, b->reduction};
  if (g->need[0]) g->gx[0] = dm_x(g->x, DM_OP_nll_loss, &a, 3, g->gy[0], g->in[1], g->in[2]);
}
