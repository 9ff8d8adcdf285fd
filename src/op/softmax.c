/* softmax and log_softmax, forward and backward, a line at a time: loaded into
   the compute type, worked on in cache, rounded once at the store. */
#include <stdatomic.h>

#include "base/alloc.h"
#include "base/error.h"
#include "cpu/threads.h"
#include "cpu/vec.h"
#include "op/along.h"
#include "op/dense.h"
#include "op/pointwise.h"
#include "op/reduce.h"
#include "op/rowmath.h"
#include "op/softmax.h"

typedef struct Job {
  dm_Along at;
  dm_DType from, to;
  const char *x, *gy; /* x: the input, or in backward the forward's result */
  char *y;
  bool log;
  atomic_bool failed; /* out of memory */
} Job;

/* x and y may be the same row. */
#define ROWS(SUFFIX, TYPE)                                                                    \
  static void forward_##SUFFIX(const TYPE *x, TYPE *y, TYPE *work, int64_t n, bool logs) {    \
    const TYPE top = dm_row_max_##SUFFIX(x, n);                                               \
    TYPE *e = logs ? work : y;                                                                \
    const double sum = dm_row_exp_##SUFFIX(x, top, n, e);                                     \
    const TYPE scale = (TYPE)(1 / sum), shift = (TYPE)log(sum);                               \
    if (logs)                                                                                 \
      for (int64_t i = 0; i < n; i++) y[i] = (x[i] - top) - shift;                            \
    else                                                                                      \
      for (int64_t i = 0; i < n; i++) y[i] *= scale;                                          \
  }                                                                                           \
  static void backward_##SUFFIX(const TYPE *y, const TYPE *gy, TYPE *gx, int64_t n,           \
                                bool logs) {                                                  \
    if (logs) {                                                                               \
      const TYPE sum = (TYPE)dm_row_sum_##SUFFIX(gy, n);                                      \
      for (int64_t i = 0; i < n; i++) gx[i] = gy[i] - dm_exp_##SUFFIX(y[i]) * sum;            \
    } else {                                                                                  \
      const TYPE dot = (TYPE)dm_row_dot_##SUFFIX(gy, y, n);                                   \
      for (int64_t i = 0; i < n; i++) gx[i] = y[i] * (gy[i] - dot);                           \
    }                                                                                         \
  }                                                                                           \
  static const TYPE *read_##SUFFIX(const Job *j, const char *base, dm_DType from, int64_t at, \
                                   TYPE *room) {                                              \
    const char *p = base + at * dm_dtype_size(from);                                          \
    if (from == dm_compute_dtype(j->to) && j->at.inner == 1)                                  \
      return (const TYPE *)(const void *)p;                                                   \
    dm_load_##SUFFIX(from, p, j->at.inner, j->at.n, room);                                    \
    return room;                                                                              \
  }                                                                                           \
  static void lines_##SUFFIX(void *ctx, int64_t begin, int64_t end) {                         \
    Job *j = ctx;                                                                             \
    const int64_t n = j->at.n, size = dm_dtype_size(j->to);                                   \
    TYPE *room = dm_alloc(3 * n * (int64_t)sizeof *room);                                     \
    if (!room) {                                                                              \
      atomic_store(&j->failed, true);                                                         \
      return;                                                                                 \
    }                                                                                         \
    const bool direct = j->to == dm_compute_dtype(j->to) && j->at.inner == 1;                 \
    for (int64_t i = begin; i < end; i++) {                                                   \
      const int64_t at = dm_along_at(&j->at, i);                                              \
      const TYPE *x = read_##SUFFIX(j, j->x, j->from, at, room);                              \
      TYPE *y = direct ? (TYPE *)(void *)(j->y + at * size) : room + n;                       \
      if (j->gy)                                                                              \
        backward_##SUFFIX(x, read_##SUFFIX(j, j->gy, j->to, at, room + 2 * n), y, n, j->log); \
      else forward_##SUFFIX(x, y, room + 2 * n, n, j->log);                                   \
      if (!direct) dm_store_##SUFFIX(j->to, j->y + at * size, j->at.inner, n, y);             \
    }                                                                                         \
    dm_free(room);                                                                            \
  }
ROWS(f32, float)
ROWS(f64, double)
#undef ROWS

static dm_status run(dm_Call *c, Job *j) {
  j->to = (dm_DType)c->out[0]->dtype;
  j->y = dm_tensor_data(c->out[0]);
  atomic_init(&j->failed, false);
  dm_parallel_for(dm_along_lines(&j->at), dm_max_i64(1, DM_POINT_GRAIN / 4 / j->at.n),
                  j->to == DM_F64 ? lines_f64 : lines_f32, j);
  return atomic_load(&j->failed) ? dm_fail(DM_EMEM, "%s: out of memory", c->op->name) : DM_OK;
}

dm_status softmax_rule(dm_Call *c) {
  const dm_SoftmaxAttr *a = DM_ATTR(dm_SoftmaxAttr, c);
  const dm_DType to = a->dtype >= 0 ? (dm_DType)a->dtype : (dm_DType)c->in[0]->dtype;
  int d;
  DM_TRY(dm_check_dim(c, c->in[0], a->dim, &d));
  if (!dm_is_float(to))
    return dm_fail(DM_EARG,
                   "%s: the result would be %s, wanted a float dtype; hint: dtype = "
                   "\"float32\"",
                   c->op->name, dm_dtype_name(to));
  dm_out_like(c, 0, c->in[0], to);
  return DM_OK;
}
dm_status softmax_cpu(dm_Call *c) {
  dm_Tensor *x = NULL;
  if (c->out[0]->numel == 0) return DM_OK;
  DM_TRY(dm_dense_new(c->in[0], &x));
  Job j = {.from = (dm_DType)x->dtype, .x = dm_tensor_data(x)};
  j.at = dm_along(x, DM_ATTR(dm_SoftmaxAttr, c)->dim);
  j.log = c->op == &dm_ops[DM_OP_log_softmax];
  const dm_status st = run(c, &j);
  dm_tensor_unref(&x);
  return st;
}

/* y (gy - sum(gy y)) */
void softmax_grad(dm_Grad *g) {
  dm_X *x = g->x;
  const dm_SoftmaxBackAttr back = {DM_ATTR(dm_SoftmaxAttr, g)->dim, 0};
  dm_Tensor *y = g->out[0], *gy = g->gy[0];
  if (!g->create_graph) {
    g->gx[0] = dm_x(x, DM_OP_softmax_backward, &back, 2, gy, y);
    return;
  }
  const dm_Ints dims = {1, {back.dim}};
  g->gx[0] = x_mul(x, y, x_sub(x, gy, x_sum(x, x_mul(x, gy, y), dims, true)));
}
/* gy - exp(y) sum(gy) */
void log_softmax_grad(dm_Grad *g) {
  dm_X *x = g->x;
  const dm_SoftmaxBackAttr back = {DM_ATTR(dm_SoftmaxAttr, g)->dim, 1};
  dm_Tensor *y = g->out[0], *gy = g->gy[0];
  if (!g->create_graph) {
    g->gx[0] = dm_x(x, DM_OP_softmax_backward, &back, 2, gy, y);
    return;
  }
  const dm_Ints dims = {1, {back.dim}};
  g->gx[0] = x_sub(x, gy, x_mul(x, x_unary(x, DM_OP_exp, y), x_sum(x, gy, dims, true)));
}

dm_status softmax_backward_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[1], (dm_DType)c->in[1]->dtype);
  return DM_OK;
}
dm_status softmax_backward_cpu(dm_Call *c) {
  const dm_SoftmaxBackAttr *a = DM_ATTR(dm_SoftmaxBackAttr, c);
  dm_Tensor *gy = NULL, *y = NULL;
  dm_status st = DM_OK;
  if (c->out[0]->numel == 0) return DM_OK;
  DM_GO(dm_dense_new(c->in[0], &gy));
  DM_GO(dm_dense_new(c->in[1], &y));
  Job j = {.from = (dm_DType)y->dtype, .x = dm_tensor_data(y), .gy = dm_tensor_data(gy)};
  j.at = dm_along(y, a->dim);
  j.log = a->log;
  st = run(c, &j);
done:
  dm_tensor_unref(&gy);
  dm_tensor_unref(&y);
  return st;
}
