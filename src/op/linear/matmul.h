/* The description of a matrix product, shared by the kernels of every device. C and
   C++. */
#ifndef DM_MATMUL_H
#define DM_MATMUL_H

#include "core/copy.h"
#include "cpu/gemm.h"
#include "engine/op.h"

/* The activations that linear fuses, in the order of the op's attribute. */
typedef enum dm_Activation { DM_ACTIVATION_NONE, DM_RELU, DM_GELU, DM_GELU_TANH } dm_Activation;
/* The op that the activation is, and below that op's first attribute (gelu: whether
   it is the tanh approximation). */
static inline dm_OpId dm_activation_op(dm_Activation a) {
  return a == DM_RELU ? DM_OP_relu : DM_OP_gelu;
}
static inline double dm_activation_param(dm_Activation a) { return a == DM_GELU_TANH; }

/* c (batch..., m, n) = activation(beta c + alpha a (batch..., m, k) b (batch..., k,
   n) + bias (n)). Where `before` is not NULL, the value before the activation is
   stored there. Where row_sums (m) is not NULL, it receives the sum of each row of a,
   and column_sums (n) that of each column of b (one product only, one of the two). c,
   bias, before and the sums are contiguous; a and b have any strides. Steps are in
   elements, and 0 where an operand is broadcast along the
   batch dim. */
typedef struct dm_Product {
  int64_t m, n, k;
  dm_Mat a, b;
  void *c;
  dm_DType c_dtype; /* a's dtype; on the CPU also float32 for 16-bit operands */
  double alpha, beta;
  const void *bias; /* contiguous, or NULL */
  dm_Activation activation;
  void *before;
  void *row_sums, *column_sums;
  int n_batch;
  int64_t size[DM_MAX_DIM], a_step[DM_MAX_DIM], b_step[DM_MAX_DIM];
} dm_Product;

/* The size and, below, the step of batch dim d of t; a dim that t lacks (d < 0) has
   size 1 and step 0. */
static inline int64_t dm_batch_size(const dm_Tensor *t, int d) {
  return d < 0 ? 1 : t->shape[d];
}
static inline int64_t dm_batch_step(const dm_Tensor *t, int d) {
  return d < 0 || t->shape[d] == 1 ? 0 : t->stride[d];
}

/* t's data as a matrix with these strides. */
static inline dm_Mat dm_mat(const dm_Tensor *t, int64_t row_stride, int64_t column_stride) {
  dm_Mat m;
  m.data = dm_tensor_data(t);
  m.dtype = (dm_DType)t->dtype;
  m.rs = row_stride;
  m.cs = column_stride;
  return m;
}

/* p = a b -> out, with a (m, k) and b (k, n), or the first of a batch of them. Its sizes and
   steps stay unset: a product is made for each call of a layer, and they are most of its bytes.
 */
static inline void dm_product_set(dm_Product *p, int64_t m, int64_t n, int64_t k, dm_Mat a,
                                  dm_Mat b, const dm_Tensor *out) {
  p->m = m;
  p->n = n;
  p->k = k;
  p->a = a;
  p->b = b;
  p->c = dm_tensor_data(out);
  p->c_dtype = (dm_DType)out->dtype;
  p->alpha = 1;
  p->beta = 0;
  p->bias = NULL;
  p->activation = DM_ACTIVATION_NONE;
  p->before = NULL;
  p->row_sums = p->column_sums = NULL;
  p->n_batch = 0;
}

/* t as the left matrix of a product: a vector is one row. */
static inline dm_Mat dm_left(const dm_Tensor *t) {
  const int n = t->ndim;
  return dm_mat(t, n > 1 ? t->stride[n - 2] : t->shape[0], t->stride[n - 1]);
}
static inline int64_t dm_left_rows(const dm_Tensor *t) {
  return t->ndim > 1 ? t->shape[t->ndim - 2] : 1;
}

/* The product a b -> out as matmul defines it: a vector on the left is a row (1, K),
   on the right a column (K, 1), and batch dims broadcast. */
static inline void dm_product_of(dm_Product *p, const dm_Tensor *a, const dm_Tensor *b,
                                 const dm_Tensor *out) {
  const int na = a->ndim, nb = b->ndim;
  const dm_Mat right =
      dm_mat(b, b->stride[nb > 1 ? nb - 2 : 0], nb > 1 ? b->stride[nb - 1] : 1);
  dm_product_set(p, dm_left_rows(a), nb > 1 ? b->shape[nb - 1] : 1, a->shape[na - 1],
                 dm_left(a), right, out);
  p->n_batch = (na > nb ? na : nb) - 2;
  for (int d = 0; d < p->n_batch; d++) {
    const int da = d - (p->n_batch - (na - 2)), db = d - (p->n_batch - (nb - 2));
    p->size[d] = dm_batch_size(a, da) == 1 ? dm_batch_size(b, db) : dm_batch_size(a, da);
    p->a_step[d] = dm_batch_step(a, da);
    p->b_step[d] = dm_batch_step(b, db);
  }
}

/* x (..., K) times the transpose of weight (N, K). */
static inline void dm_linear_product(dm_Product *p, const dm_Tensor *x, const dm_Tensor *w,
                                     const dm_Tensor *out) {
  dm_product_set(p, dm_left_rows(x), w->shape[0], x->shape[x->ndim - 1], dm_left(x),
                 dm_mat(w, w->stride[1], w->stride[0]), out);
  for (; p->n_batch < x->ndim - 2; p->n_batch++) {
    p->size[p->n_batch] = x->shape[p->n_batch];
    p->a_step[p->n_batch] = dm_batch_step(x, p->n_batch);
    p->b_step[p->n_batch] = 0;
  }
}

/* The transpose of gy (R, M) times x (R, N): the gradient of linear's weight. */
static inline void dm_weight_product(dm_Product *p, const dm_Tensor *gy, const dm_Tensor *x,
                                     const dm_Tensor *out) {
  dm_product_set(p, gy->shape[1], x->shape[1], gy->shape[0],
                 dm_mat(gy, gy->stride[1], gy->stride[0]),
                 dm_mat(x, x->stride[0], x->stride[1]), out);
}

/* addmm and baddbmm. An input that is one contiguous row (N) with beta 1 becomes the
   product's bias; otherwise the product gets beta, and the kernel copies the input
   to the output first unless beta is 0, in which case the input is not read (as in
   PyTorch, where NaN in it are then ignored). */
static inline void dm_addmm_product(dm_Product *p, const dm_Call *c) {
  const dm_Tensor *in = c->in[0];
  const dm_AddmmAttr *a = DM_ATTR(dm_AddmmAttr, c);
  dm_product_of(p, c->in[1], c->in[2], c->out[0]);
  p->alpha = a->alpha;
  if (a->beta == 1 && in->ndim == 1 && in->shape[0] == p->n && dm_tensor_is_contiguous(in))
    p->bias = dm_tensor_data(in);
  else p->beta = a->beta;
}

/* Computes linear's product into `out` by the device's `multiply`, with the bias
   made contiguous. */
static inline dm_status dm_linear_by(dm_status (*multiply)(dm_Product *, dm_Call *), dm_Call *c,
                                     const dm_Tensor *out) {
  dm_Tensor *bias = NULL;
  if (out->numel == 0) return DM_OK;
  dm_Product p;
  dm_linear_product(&p, c->in[0], c->in[1], out);
  if (c->n_in > 2 && c->in[2]) {
    DM_TRY(dm_dense_new(c->in[2], &bias));
    p.bias = dm_tensor_data(bias);
  }
  const dm_status st = multiply(&p, c);
  dm_tensor_unref(&bias);
  return st;
}

/* Merges batch dims. First, innermost dims that share b (step 0) and continue a's
   rows become rows of the product; then neighbouring dims whose steps are contiguous
   to each other become one dim. */
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
