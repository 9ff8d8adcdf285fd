/* The ops of matrix products: matmul, addmm, linear and its backward. cuBLASLt is asked first
   (lt.c), then gemm.cu runs. Operands are passed with their strides, so that transposed views
   need no copy. */
#include "kernels/fill.h"
#include "kernels/gemm.h"
#include "kernels/plans.h"
#include "op/strided.h"

/* dm_product_reduce merges batch dims where strides allow it. */
static dm_status by_own_kernel(const dm_Product *p) {
  DM_TRY(dm_plan_fallback("a matrix product"));
  return dm_cuda_gemm(p);
}
dm_status dm_cuda_multiply(dm_Product *p) {
  bool done;
  dm_product_reduce(p);
  DM_TRY(dm_lt_multiply(p, &done));
  return done ? DM_OK : by_own_kernel(p);
}

/* c = a b, in batches that broadcast. */
dm_status matmul_cuda(dm_Call *c) {
  if (c->out[0]->numel == 0) return DM_OK;
  dm_Product p;
  dm_product_of(&p, c->in[0], c->in[1], c->out[0]);
  return dm_cuda_multiply(&p);
}

/* c = beta input + alpha a b; the input, if it counts, is copied to c first. */
dm_status addmm_cuda(dm_Call *c) {
  if (c->out[0]->numel == 0) return DM_OK;
  dm_Product p;
  dm_addmm_product(&p, c);
  if (p.beta != 0) DM_TRY(dm_cuda_copy(c->out[0], c->in[0]));
  return dm_cuda_multiply(&p);
}

/* c = activation(a b + bias). If cuBLASLt refuses the activation it may take the product
   alone; the activation then sees it rounded. gemm.cu does both in one kernel. */
static dm_status multiply_activated(dm_Product *p, dm_Call *c) {
  const dm_Activation a = (dm_Activation)DM_ATTR(dm_ActivationAttr, c)->activation;
  dm_Tensor *before = c->out[c->n_out - 1];
  bool done;
  if (a == DM_ACTIVATION_NONE) return dm_cuda_multiply(p);
  dm_product_reduce(p);
  p->activation = a;
  if (c->n_out > 1) p->before = dm_tensor_data(before);
  DM_TRY(dm_lt_multiply(p, &done));
  if (done) return DM_OK;
  /* The product alone, then the activation from what it gave. */
  dm_Product plain = *p;
  plain.activation = DM_ACTIVATION_NONE;
  plain.before = NULL;
  plain.c = dm_tensor_data(before);
  DM_TRY(dm_lt_multiply(&plain, &done));
  return done ? dm_cuda_activate(c->out[0], a, before) : by_own_kernel(p);
}

/* in: x, weight, maybe a bias; a second output, if there is one, receives the activation's
   input for the backward. */
dm_status linear_cuda(dm_Call *c) { return dm_linear_by(multiply_activated, c, c->out[0]); }

/* With BGRADA or BGRADB cuBLASLt may read gy a second time. That is cheap from the L2 cache;
   for a gy that does not fit there, a kernel of our own sums the columns. */
static bool lies_in_cache(const dm_Tensor *t) {
  return t->numel * dm_dtype_size((dm_DType)t->dtype) <= dm_cuda_cache();
}

/* gw (K, N) = a^T gy, and gb (N), the sum of gy's rows, which comes with the product. */
dm_status addmm_backward_cuda(dm_Call *c) {
  dm_Tensor *gy = c->in[0], *a = c->in[1], *gw = c->out[0], *gb = c->out[1];
  const int64_t shape[2] = {a->shape[1], a->shape[0]}, step[2] = {a->stride[1], a->stride[0]};
  const dm_Tensor turned = dm_view_of(a, 2, shape, step, a->offset);
  dm_Product p;
  dm_product_of(&p, &turned, gy, gw);
  if (lies_in_cache(gy) && gw->numel > 0) {
    bool done;
    p.column_sums = dm_tensor_data(gb);
    DM_TRY(dm_lt_multiply(&p, &done));
    if (done) return DM_OK;
    p.column_sums = NULL;
  }
  DM_TRY(dm_cuda_sum(gb, gy, 1));
  return gw->numel > 0 ? dm_cuda_multiply(&p) : DM_OK;
}

/* The gradients of linear: gw = gy^T x, and gb, the sum of gy's rows. Without an activation gb
   comes with the product; with one, a kernel multiplies gy by the derivative and sums it in
   the same pass. */
dm_status linear_backward_cuda(dm_Call *c) {
  const dm_Activation a = (dm_Activation)DM_ATTR(dm_ActivationAttr, c)->activation;
  dm_Tensor *gy = c->in[0], *gw = c->out[0], *gb = c->out[1];
  const bool plain = a == DM_ACTIVATION_NONE;
  if (!plain) {
    DM_TRY(dm_cuda_activate_backward(c->out[2], gb, a, gy, c->in[2]));
    gy = c->out[2];
  }
  dm_Product p;
  dm_weight_product(&p, gy, c->in[1], gw);
  /* The product gives both gradients. */
  if (plain && lies_in_cache(gy)) {
    bool done;
    p.row_sums = dm_tensor_data(gb);
    DM_TRY(dm_lt_multiply(&p, &done));
    if (done) return DM_OK;
    p.row_sums = NULL;
  }
  if (plain) DM_TRY(dm_cuda_sum(gb, gy, 1));
  return gw->numel > 0 ? dm_cuda_multiply(&p) : DM_OK;
}
