/* Cross products of rows of three elements, which lie side by side, in one pass. */
#include "op/linear/cross.h"

#include "cpu/threads.h"
#include "op/pointwise/pointwise.h"

enum { GRAIN = 1 << 13 }; /* rows */

dm_status cross_rows_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  return DM_OK;
}

typedef struct Job {
  const void *a, *b;
  void *y;
} Job;

/* Rows [begin, end): y_i = a_(i+1) b_(i+2) - a_(i+2) b_(i+1). */
#define CROSS(SUFFIX, TYPE)                                           \
  static void cross_##SUFFIX(void *ctx, int64_t begin, int64_t end) { \
    const Job *j = ctx;                                               \
    const TYPE *a = j->a, *b = j->b;                                  \
    TYPE *y = j->y;                                                   \
    for (int64_t i = 3 * begin; i < 3 * end; i += 3) {                \
      const TYPE a0 = a[i], a1 = a[i + 1], a2 = a[i + 2];             \
      const TYPE b0 = b[i], b1 = b[i + 1], b2 = b[i + 2];             \
      y[i] = a1 * b2 - a2 * b1;                                       \
      y[i + 1] = a2 * b0 - a0 * b2;                                   \
      y[i + 2] = a0 * b1 - a1 * b0;                                   \
    }                                                                 \
  }
CROSS(f32, float)
CROSS(f64, double)
#undef CROSS

dm_status cross_rows_cpu(dm_Call *c) {
  Job j = {dm_tensor_data(c->in[0]), dm_tensor_data(c->in[1]), dm_tensor_data(c->out[0])};
  dm_parallel_for(c->out[0]->numel / 3, GRAIN,
                  c->out[0]->dtype == DM_F64 ? cross_f64 : cross_f32, &j);
  return DM_OK;
}

/* a x b has the gradients b x gy and gy x a. */
void cross_rows_grad(dm_Grad *g) {
  dm_X *x = g->x;
  if (g->need[0]) g->gx[0] = x_cross_rows(x, g->in[1], g->gy[0]);
  if (g->need[1]) g->gx[1] = x_cross_rows(x, g->gy[0], g->in[0]);
}

dm_Tensor *x_cross_rows(dm_X *x, dm_Tensor *a, dm_Tensor *b) {
  return dm_x(x, DM_OP_cross_rows, NULL, 2, x_unary(x, DM_OP_contiguous, a),
              x_unary(x, DM_OP_contiguous, b));
}

bool dm_are_cross_rows(const dm_Tensor *a, const dm_Tensor *b) {
  return a->dtype == b->dtype && (a->dtype == DM_F32 || a->dtype == DM_F64) && a->ndim > 0 &&
         a->shape[a->ndim - 1] == 3 && dm_same_shape(a, b) &&
         dm_op_has_kernel(DM_OP_cross_rows, a->device);
}
