/* The sums of u v, u u and v v of two rows, of which their cosine is made, in one pass over
   both, and the gradient in another: the rows are widened block by block. */
#include "op/linear/row_products.h"

#include "cpu/loops/loops.h"
#include "cpu/threads.h"
#include "op/part.h"
#include "op/pointwise/pointwise.h"
#include "op/reduce/reduce.h"

enum { BLOCK = 2 * DM_BLOCK, GRAIN = 1 << 15 };

/* One value for each row, in the compute type of x1 and x2. */
dm_status row_products_rule(dm_Call *c) {
  const dm_Tensor *u = c->in[0];
  const dm_DType to = dm_compute_dtype(dm_result_dtype(2, c->in));
  for (int i = 0; i < 3; i++) dm_out_reduced(c, i, u, 1u << (u->ndim - 1), false, to);
  return DM_OK;
}
dm_status row_products_backward_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  return DM_OK;
}

typedef struct Job {
  const dm_Tensor *u, *v;    /* (R, n), contiguous */
  const dm_Tensor *own, *by; /* backward: (R), the factors of u and v */
  dm_Tensor *const *out;
  int64_t n;
} Job;

static const char *element(const dm_Tensor *t, int64_t i) {
  return (const char *)dm_tensor_data(t) + i * dm_dtype_size((dm_DType)t->dtype);
}

#define PRODUCTS(SUFFIX, TYPE, DTYPE)                                                       \
  static void products_##SUFFIX(void *ctx, int64_t begin, int64_t end) {                    \
    const Job *j = ctx;                                                                     \
    const dm_DType ut = (dm_DType)j->u->dtype, vt = (dm_DType)j->v->dtype;                  \
    for (int64_t r = begin; r < end; r++) {                                                 \
      double sum[3] = {0};                                                                  \
      for (int64_t at = 0, m; at < j->n; at += m) {                                         \
        m = dm_min_i64(BLOCK, j->n - at);                                                   \
        const char *u = element(j->u, r * j->n + at), *v = element(j->v, r * j->n + at);    \
        sum[0] += dm_loops()->SUFFIX.dot(ut, u, vt, v, m);                                  \
        sum[1] += dm_loops()->SUFFIX.dot(ut, u, ut, u, m);                                  \
        sum[2] += dm_loops()->SUFFIX.dot(vt, v, vt, v, m);                                  \
      }                                                                                     \
      for (int i = 0; i < 3; i++) ((TYPE *)dm_tensor_data(j->out[i]))[r] = (TYPE)sum[i];    \
    }                                                                                       \
  }                                                                                         \
  static void gradients_##SUFFIX(void *ctx, int64_t begin, int64_t end) {                   \
    const Job *j = ctx;                                                                     \
    const dm_Pointwise *add = &dm_loops()->pair[DM_OP_add_scaled];                          \
    const int64_t size = dm_dtype_size((dm_DType)j->u->dtype);                              \
    const TYPE zero[BLOCK] = {0};                                                           \
    TYPE ub[BLOCK], vb[BLOCK], y[BLOCK];                                                    \
    for (int64_t r = begin; r < end; r++) {                                                 \
      const double own = (double)((const TYPE *)dm_tensor_data(j->own))[r];                 \
      const double by = (double)((const TYPE *)dm_tensor_data(j->by))[r];                   \
      for (int64_t at = 0, m; at < j->n; at += m) {                                         \
        m = dm_min_i64(BLOCK, j->n - at);                                                   \
        const TYPE *u = dm_part_##SUFFIX(j->u, r * j->n + at, m, ub);                       \
        const TYPE *v = dm_part_##SUFFIX(j->v, r * j->n + at, m, vb);                       \
        add->SUFFIX((const TYPE *[]){zero, u}, y, m, &own);                                 \
        add->SUFFIX((const TYPE *[]){y, v}, y, m, &by);                                     \
        dm_store_##SUFFIX((dm_DType)j->u->dtype,                                            \
                          (char *)dm_tensor_data(j->out[0]) + (r * j->n + at) * size, 1, m, \
                          y);                                                               \
      }                                                                                     \
    }                                                                                       \
  }
PRODUCTS(f32, float, DM_F32)
PRODUCTS(f64, double, DM_F64)
#undef PRODUCTS

static dm_status each_row(Job j, dm_RangeFn *fn) {
  dm_parallel_for(j.u->numel / j.n, dm_max_i64(1, GRAIN / j.n), fn, &j);
  return DM_OK;
}

dm_status row_products_cpu(dm_Call *c) {
  const dm_Tensor *u = c->in[0];
  const Job j = {.u = u, .v = c->in[1], .out = c->out, .n = u->shape[u->ndim - 1]};
  return each_row(j, c->out[0]->dtype == DM_F64 ? products_f64 : products_f32);
}

dm_status row_products_backward_cpu(dm_Call *c) {
  const dm_Tensor *u = c->in[0];
  const Job j = {u, c->in[1], c->in[2], c->in[3], c->out, u->shape[u->ndim - 1]};
  return each_row(j, c->in[2]->dtype == DM_F64 ? gradients_f64 : gradients_f32);
}

/* The gradient in u of the products, given those of u v and u u, NULL for 0: 2 own u + by v. */
static dm_Tensor *in_one(dm_Grad *g, int i, dm_Tensor *by, dm_Tensor *own) {
  dm_X *x = g->x;
  dm_Tensor *u = g->in[i], *v = g->in[1 - i];
  if (!by || !own) {
    dm_Tensor *none = x_zeros_like(x, by ? by : own);
    by = by ? by : none;
    own = own ? own : none;
  }
  own = x_scale(x, own, 2);
  if (!g->create_graph)
    return dm_x(x, DM_OP_row_products_backward, NULL, 4, u, v,
                x_unary(x, DM_OP_contiguous, own), x_unary(x, DM_OP_contiguous, by));
  dm_Tensor *of_own = x_mul(x, x_unsqueeze(x, own, -1), dm_x_widen(x, u));
  return x_add(x, of_own, x_mul(x, x_unsqueeze(x, by, -1), dm_x_widen(x, v)));
}
void row_products_grad(dm_Grad *g) {
  for (int i = 0; i < 2; i++)
    if (g->need[i] && (g->gy[0] || g->gy[1 + i]))
      g->gx[i] = in_one(g, i, g->gy[0], g->gy[1 + i]);
}

bool x_row_products(dm_X *x, dm_Tensor *u, dm_Tensor *v, dm_Tensor *out[3]) {
  const dm_Ints last = {1, {-1}};
  if (x->st != DM_OK) return false;
  if (u->numel > 0 && dm_same_shape(u, v) && dm_tensor_is_contiguous(u) &&
      dm_tensor_is_contiguous(v) && dm_op_has_kernel(DM_OP_row_products, u->device))
    return x_call(x, DM_OP_row_products, NULL, 2, (dm_Tensor *[]){u, v}, out);
  u = dm_x_widen(x, u);
  v = dm_x_widen(x, v);
  out[0] = x_sum(x, x_mul(x, u, v), last, false);
  out[1] = x_sum(x, x_mul(x, u, u), last, false);
  out[2] = x_sum(x, x_mul(x, v, v), last, false);
  return x->st == DM_OK;
}
