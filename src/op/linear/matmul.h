/* What a matrix product multiplies, as kernels of every device see it. C and C++. */
#ifndef DM_MATMUL_H
#define DM_MATMUL_H

#include "core/copy.h"
#include "cpu/gemm.h"
#include "engine/op.h"

typedef struct dm_AddmmAttr {
  double beta, alpha;
} dm_AddmmAttr;

/* In the order of linear's row. */
typedef enum dm_Activation { DM_ACTIVATION_NONE, DM_RELU, DM_GELU, DM_GELU_TANH } dm_Activation;
/* The op that it is, and that op's first attribute. */
static inline dm_OpId dm_activation_op(dm_Activation a) {
  return a == DM_RELU ? DM_OP_relu : DM_OP_gelu;
}
static inline double dm_activation_param(dm_Activation a) { return a == DM_GELU_TANH; }

/* c (batch..., m, n) = beta c + alpha a (batch..., m, k) b (batch..., k, n) + bias (n),
   or the activation of that, which itself goes to `before` then, where that is not NULL;
   and a's rows (of one product), each added up, to row_sums (m), where that is not NULL;
   all of these are dense; steps in elements, 0 where an operand is the same for all. */
typedef struct dm_Product {
  int64_t m, n, k;
  dm_Mat a, b;
  void *c;
  dm_DType c_dtype; /* a's; on the CPU float32 will do for 16-bit operands */
  double alpha, beta;
  const void *bias; /* dense, or NULL */
  dm_Activation activation;
  void *before;
  void *row_sums;
  int n_batch;
  int64_t size[DM_MAX_DIM], a_step[DM_MAX_DIM], b_step[DM_MAX_DIM];
} dm_Product;

static inline int64_t dm_batch_size(const dm_Tensor *t, int d) {
  return d < 0 ? 1 : t->shape[d];
}
static inline int64_t dm_batch_step(const dm_Tensor *t, int d) {
  return d < 0 || t->shape[d] == 1 ? 0 : t->stride[d];
}

static inline dm_Mat dm_mat(const dm_Tensor *t, int64_t row_stride, int64_t column_stride) {
  dm_Mat m;
  m.data = dm_tensor_data(t);
  m.dtype = (dm_DType)t->dtype;
  m.rs = row_stride;
  m.cs = column_stride;
  return m;
}

/* A vector on the left is one row, on the right one column. */
static inline dm_Product dm_product_of(const dm_Tensor *a, const dm_Tensor *b,
                                       const dm_Tensor *out) {
  const int na = a->ndim, nb = b->ndim;
  dm_Product p;
  memset(&p, 0, sizeof p);
  p.alpha = 1;
  p.c = dm_tensor_data(out);
  p.c_dtype = (dm_DType)out->dtype;
  p.m = na > 1 ? a->shape[na - 2] : 1;
  p.k = a->shape[na - 1];
  p.n = nb > 1 ? b->shape[nb - 1] : 1;
  p.a = dm_mat(a, na > 1 ? a->stride[na - 2] : p.k, a->stride[na - 1]);
  p.b = dm_mat(b, b->stride[nb > 1 ? nb - 2 : 0], nb > 1 ? b->stride[nb - 1] : 1);
  p.n_batch = (na > nb ? na : nb) - 2;
  for (int d = 0; d < p.n_batch; d++) {
    const int da = d - (p.n_batch - (na - 2)), db = d - (p.n_batch - (nb - 2));
    p.size[d] = dm_batch_size(a, da) == 1 ? dm_batch_size(b, db) : dm_batch_size(a, da);
    p.a_step[d] = dm_batch_step(a, da);
    p.b_step[d] = dm_batch_step(b, db);
  }
  return p;
}

/* A borrowed handle of a matrix, with its dims swapped. */
static inline dm_Tensor dm_transposed(const dm_Tensor *t) {
  dm_Tensor other = *t;
  other.shape[0] = t->shape[1];
  other.shape[1] = t->shape[0];
  other.stride[0] = t->stride[1];
  other.stride[1] = t->stride[0];
  return other;
}

/* x (..., k) times the transpose of weight (n, k). */
static inline dm_Product dm_linear_product(const dm_Tensor *x, const dm_Tensor *w,
                                           const dm_Tensor *out) {
  const dm_Tensor wt = dm_transposed(w);
  return dm_product_of(x, &wt, out);
}

/* addmm and baddbmm. input as one dense row is a bias; else, where the product's
   beta is not 0, the kernel copies it to the output first. beta 0 does not read it. */
static inline dm_Product dm_addmm_product(const dm_Call *c) {
  const dm_Tensor *in = c->in[0];
  const dm_AddmmAttr *a = DM_ATTR(dm_AddmmAttr, c);
  dm_Product p = dm_product_of(c->in[1], c->in[2], c->out[0]);
  p.alpha = a->alpha;
  if (a->beta == 1 && in->ndim == 1 && in->shape[0] == p.n && dm_tensor_is_contiguous(in))
    p.bias = dm_tensor_data(in);
  else p.beta = a->beta;
  return p;
}

/* linear's product, into out, by the device's way to multiply. */
static inline dm_status dm_linear_by(dm_status (*multiply)(dm_Product *, dm_Call *), dm_Call *c,
                                     const dm_Tensor *out) {
  dm_Tensor *bias = NULL;
  if (out->numel == 0) return DM_OK;
  dm_Product p = dm_linear_product(c->in[0], c->in[1], out);
  if (c->n_in > 2 && c->in[2]) {
    DM_TRY(dm_dense_new(c->in[2], &bias));
    p.bias = dm_tensor_data(bias);
  }
  const dm_status st = multiply(&p, c);
  dm_tensor_unref(&bias);
  return st;
}

/* As few batch dims as it takes: inner ones that share b and continue a's rows
   become rows; neighbours with one step between all their products become one. */
static inline void dm_product_reduce(dm_Product *p) {
  for (; p->n_batch > 0; p->n_batch--) {
    const int d = p->n_batch - 1;
    if (p->size[d] == 1) continue;
    if (p->b_step[d] != 0 || (p->m > 1 && p->a_step[d] != p->m * p->a.rs)) break;
    if (p->m == 1) p->a.rs = p->a_step[d];
    p->m *= p->size[d];
  }
  int kept = 0;
  for (int d = 0; d < p->n_batch; d++) {
    const int64_t size = p->size[d], sa = p->a_step[d], sb = p->b_step[d];
    if (size == 1) continue;
    const int last = kept - 1;
    if (kept && p->a_step[last] == sa * size && p->b_step[last] == sb * size) {
      p->size[last] *= size;
    } else {
      p->size[kept++] = size;
    }
    p->a_step[kept - 1] = sa;
    p->b_step[kept - 1] = sb;
  }
  p->n_batch = kept;
}

#endif
