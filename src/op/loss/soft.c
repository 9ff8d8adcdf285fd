/* cross_entropy whose targets are probabilities t, in the shape of the logits x: the sum of
   t (lse(x) - x) over the classes. Where the classes lie side by side a row is read once, in
   blocks that stay in the first-level cache; other layouts, and other devices, compose
   log_softmax. */
#include <math.h>

#include "base/error.h"
#include "base/triple.h"
#include "cpu/loops/loops.h"
#include "cpu/threads.h"
#include "op/loss/loss.h"
#include "op/part.h"
#include "op/pointwise/pointwise.h"
#include "op/reduce/reduce.h"

enum { BLOCK = 2 * DM_BLOCK, GRAIN = 1 << 14 };

/* Each row's loss; its largest logit and the logarithm of the sum of exp(x - largest); the sum
   of its probabilities. All are of the compute type. */
dm_status soft_labels_rule(dm_Call *c) {
  const dm_Tensor *x = c->in[0];
  const dm_DType to = dm_compute_dtype(dm_result_dtype(2, c->in));
  for (int i = 0; i < 3; i++) dm_out_reduced(c, i, x, 1u << (x->ndim - 1), false, to);
  return DM_OK;
}
/* in: gy, x, t, largest, log_sum; the gradient in x. */
dm_status soft_labels_backward_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[1], (dm_DType)c->in[1]->dtype);
  return DM_OK;
}

typedef struct Job {
  const dm_Tensor *x, *t; /* (R, n), contiguous */
  const dm_Tensor *gy, *largest, *log_sum;
  dm_Tensor *const *out;
  int64_t n;
} Job;

#define ROWS(SUFFIX, TYPE, DTYPE)                                                              \
  static double value_##SUFFIX(const dm_Tensor *t, int64_t r) {                                \
    return (double)((const TYPE *)dm_tensor_data(t))[r];                                       \
  }                                                                                            \
  /* y = (x - top) - log_sum, the logarithm of softmax */                                      \
  static void logs_##SUFFIX(const TYPE *x, TYPE *top, int64_t m, double log_sum, TYPE *y) {    \
    const double by[2] = {-log_sum, 0};                                                        \
    dm_loops()->triple[DM_TRIPLE_shifted_difference].SUFFIX((const TYPE *[]){x, top}, y, m,    \
                                                            by);                               \
  }                                                                                            \
  static void fill_##SUFFIX(TYPE *to, double v) {                                              \
    for (int i = 0; i < BLOCK; i++) to[i] = (TYPE)v;                                           \
  }                                                                                            \
  static void forward_##SUFFIX(void *ctx, int64_t begin, int64_t end) {                        \
    const Job *j = ctx;                                                                        \
    const dm_Loops *loops = dm_loops();                                                        \
    TYPE xb[BLOCK], tb[BLOCK], y[BLOCK], top[BLOCK];                                           \
    for (int64_t r = begin; r < end; r++) {                                                    \
      dm_Acc lse = {.a = (double)-INFINITY};                                                   \
      double loss = 0;                                                                         \
      const TYPE *x = NULL, *t;                                                                \
      for (int64_t at = 0, m; at < j->n; at += m) {                                            \
        m = dm_min_i64(BLOCK, j->n - at);                                                      \
        x = dm_part_##SUFFIX(j->x, r * j->n + at, m, xb);                                      \
        loops->REDUCE_##SUFFIX[DM_REDUCE_LSE](&lse, x, m, at, 0);                              \
      }                                                                                        \
      const double log_sum = log(lse.b);                                                       \
      fill_##SUFFIX(top, lse.a);                                                               \
      for (int64_t at = 0, m; at < j->n; at += m) {                                            \
        m = dm_min_i64(BLOCK, j->n - at);                                                      \
        if (j->n > BLOCK) x = dm_part_##SUFFIX(j->x, r * j->n + at, m, xb);                    \
        t = dm_part_##SUFFIX(j->t, r * j->n + at, m, tb);                                      \
        logs_##SUFFIX(x, top, m, log_sum, y);                                                  \
        loss -= loops->SUFFIX.dot(DTYPE, t, DTYPE, y, m);                                      \
      }                                                                                        \
      const double value[3] = {loss, lse.a, log_sum};                                          \
      for (int i = 0; i < 3; i++) ((TYPE *)dm_tensor_data(j->out[i]))[r] = (TYPE)value[i];     \
    }                                                                                          \
  }                                                                                            \
  /* gy (total softmax(x) - t) */                                                              \
  static void backward_##SUFFIX(void *ctx, int64_t begin, int64_t end) {                       \
    const Job *j = ctx;                                                                        \
    const dm_Pointwise *add = &dm_loops()->pair[DM_OP_add_scaled];                             \
    const dm_Pointwise *exponential = &dm_loops()->unary[DM_OP_exp];                           \
    const dm_DType to = (dm_DType)j->x->dtype;                                                 \
    const double none[2] = {0, 0};                                                             \
    const TYPE zero[BLOCK] = {0};                                                              \
    TYPE xb[BLOCK], tb[BLOCK], y[BLOCK], top[BLOCK];                                           \
    for (int64_t r = begin; r < end; r++) {                                                    \
      const double gy = value_##SUFFIX(j->gy, r);                                              \
      dm_Acc total = {0};                                                                      \
      for (int64_t at = 0, m; at < j->n; at += m) {                                            \
        m = dm_min_i64(BLOCK, j->n - at);                                                      \
        const TYPE *t = dm_part_##SUFFIX(j->t, r * j->n + at, m, tb);                          \
        dm_loops()->REDUCE_##SUFFIX[DM_REDUCE_SUM](&total, t, m, at, 0);                       \
      }                                                                                        \
      const double of_p[2] = {gy * total.a, 0}, of_t[2] = {-gy, 0};                            \
      fill_##SUFFIX(top, value_##SUFFIX(j->largest, r));                                       \
      for (int64_t at = 0, m; at < j->n; at += m) {                                            \
        m = dm_min_i64(BLOCK, j->n - at);                                                      \
        const TYPE *x = dm_part_##SUFFIX(j->x, r * j->n + at, m, xb);                          \
        const TYPE *t = dm_part_##SUFFIX(j->t, r * j->n + at, m, tb);                          \
        logs_##SUFFIX(x, top, m, value_##SUFFIX(j->log_sum, r), y);                            \
        exponential->SUFFIX((const TYPE *[]){y}, y, m, none);                                  \
        add->SUFFIX((const TYPE *[]){zero, y}, y, m, of_p);                                    \
        add->SUFFIX((const TYPE *[]){y, t}, y, m, of_t);                                       \
        dm_store_##SUFFIX(                                                                     \
            to, (char *)dm_tensor_data(j->out[0]) + (r * j->n + at) * dm_dtype_size(to), 1, m, \
            y);                                                                                \
      }                                                                                        \
    }                                                                                          \
  }
#define REDUCE_f32 reduce32
#define REDUCE_f64 reduce64
ROWS(f32, float, DM_F32)
ROWS(f64, double, DM_F64)
#undef REDUCE_f32
#undef REDUCE_f64
#undef ROWS

static dm_status each_row(Job j, dm_RangeFn *fn) {
  dm_parallel_for(j.x->numel / j.n, dm_max_i64(1, GRAIN / j.n), fn, &j);
  return DM_OK;
}
dm_status soft_labels_cpu(dm_Call *c) {
  const dm_Tensor *x = c->in[0];
  const Job j = {.x = x, .t = c->in[1], .out = c->out, .n = x->shape[x->ndim - 1]};
  return each_row(j, c->out[0]->dtype == DM_F64 ? forward_f64 : forward_f32);
}
dm_status soft_labels_backward_cpu(dm_Call *c) {
  const dm_Tensor *x = c->in[1];
  dm_Tensor *const *in = c->in;
  const Job j = {x, in[2], in[0], in[3], in[4], c->out, x->shape[x->ndim - 1]};
  return each_row(j, in[0]->dtype == DM_F64 ? backward_f64 : backward_f32);
}

/* gy (total softmax(x) - t), where total is the sum of t, and -gy log_softmax(x). */
void soft_labels_grad(dm_Grad *g) {
  dm_X *x = g->x;
  dm_Tensor *z = g->in[0], *t = g->in[1], *gy = g->gy[0];
  if (!gy) return;
  if (g->need[0] && !g->create_graph)
    g->gx[0] = dm_x(x, DM_OP_soft_labels_backward, NULL, 5, x_unary(x, DM_OP_contiguous, gy), z,
                    t, g->out[1], g->out[2]);
  if (!g->create_graph && !g->need[1]) return;
  const int64_t last[2] = {-1, DM_NO_DTYPE};
  dm_Tensor *logs = dm_x(x, DM_OP_log_softmax, last, 1, dm_x_widen(x, z));
  gy = x_unsqueeze(x, gy, -1);
  if (g->need[1]) g->gx[1] = x_scale(x, x_mul(x, gy, logs), -1);
  if (!g->need[0] || !g->create_graph) return;
  t = dm_x_widen(x, t);
  dm_Tensor *total = x_sum(x, t, (dm_Ints){1, {-1}}, true);
  g->gx[0] = x_mul(x, gy, x_sub(x, x_mul(x, total, x_unary(x, DM_OP_exp, logs)), t));
}

/* The losses of the rows, in float32 of 16 bits. */
static dm_Tensor *row_losses(dm_X *x, dm_Tensor *z, dm_Tensor *t, dm_Tensor *weight, int dim) {
  const int64_t along[2] = {dim, DM_NO_DTYPE};
  if (x->st != DM_OK) return NULL;
  if (!weight && dim == z->ndim - 1 && z->numel > 0 && dm_tensor_is_contiguous(z) &&
      dm_tensor_is_contiguous(t) && dm_op_has_kernel(DM_OP_soft_labels, z->device))
    return dm_x(x, DM_OP_soft_labels, NULL, 2, z, t);
  z = dm_x_widen(x, z);
  dm_Tensor *loss = x_mul(x, dm_x_widen(x, t), dm_x(x, DM_OP_log_softmax, along, 1, z));
  if (weight) {
    int64_t shape[DM_MAX_DIM];
    for (int d = 0; x->st == DM_OK && d < z->ndim; d++) shape[d] = d == dim ? z->shape[d] : 1;
    if (x->st == DM_OK)
      loss = x_mul(x, loss, x_reshape(x, dm_x_widen(x, weight), z->ndim, shape));
  }
  return x_scale(x, x_sum(x, loss, (dm_Ints){1, {dim}}, false), -1);
}

/* cross_entropy with class probabilities as targets, in x's shape (N, C, ...): -sum
   over classes of weight * t * log_softmax(x), with label smoothing t (1 - s) + s /
   C. mean divides by the batch and the other dims, as in PyTorch. */
dm_status cross_entropy_soft_compose(dm_Call *c, dm_X *x) {
  const dm_CrossEntropyAttr *a = DM_ATTR(dm_CrossEntropyAttr, c);
  const dm_DType to = dm_result_dtype(c->n_in, c->in);
  dm_Tensor *z = c->in[0], *t = c->in[1], *weight = c->in[2];
  if (!dm_same_shape(z, t) || z->ndim < 1)
    return dm_fail(DM_EARG,
                   "cross_entropy: x has shape %s, the target is %s of shape %s, wanted labels "
                   "as int64, or probabilities in x's shape; hint: y:long()",
                   DM_SHAPE(z), dm_dtype_name((dm_DType)t->dtype), DM_SHAPE(t));
  if (a->ignore_index != -100)
    return dm_fail(DM_EARG, "cross_entropy: ignore_index is for labels, the target has "
                            "probabilities");
  if (!(a->label_smoothing >= 0 && a->label_smoothing <= 1))
    return dm_fail(DM_EARG, "cross_entropy: label_smoothing is %g, wanted 0 to 1",
                   a->label_smoothing);
  const int dim = z->ndim == 1 ? 0 : 1;
  const int64_t classes = z->shape[dim];
  if (weight && (weight->ndim != 1 || weight->shape[0] != classes))
    return dm_fail(DM_EARG,
                   "cross_entropy: weight has shape %s, wanted one for each of %lld classes",
                   DM_SHAPE(weight), (long long)classes);
  if (a->label_smoothing > 0)
    t = x_shift(x, x_scale(x, dm_x_widen(x, t), 1 - a->label_smoothing),
                a->label_smoothing / (double)classes);
  dm_Tensor *loss = row_losses(x, z, t, weight, dim);
  if (a->reduction != DM_LOSS_NONE)
    loss = dm_x(x, a->reduction == DM_LOSS_MEAN ? DM_OP_mean : DM_OP_sum, NULL, 1, loss);
  c->out[0] = dm_is_low(to) ? x_cast(x, loss, to) : loss;
  return x->st;
}
