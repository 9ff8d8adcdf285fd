/* The matrix products. Operands go in by their strides, as on the CPU. */
#include "kernels/fill.h"
#include "kernels/gemm.h"

static dm_status multiply(dm_Product *p) {
  bool done;
  dm_product_fold(p);
  DM_TRY(dm_lt_multiply(p, &done));
  return done ? DM_OK : dm_cuda_gemm(p);
}

dm_status matmul_cuda(dm_Call *c) {
  if (c->out[0]->numel == 0) return DM_OK;
  dm_Product p = dm_product_of(c->in[0], c->in[1], c->out[0]);
  return multiply(&p);
}

dm_status addmm_cuda(dm_Call *c) {
  if (c->out[0]->numel == 0) return DM_OK;
  dm_Product p = dm_addmm_product(c);
  if (p.beta != 0) DM_TRY(dm_cuda_copy(c->out[0], c->in[0]));
  return multiply(&p);
}

/* Where cuBLASLt does not take the activation with the product, it may take the product
   alone: then gelu sees it rounded. Our own kernel does both. */
static dm_status multiply_activated(dm_Product *p, dm_Call *c) {
  const dm_Activation a = (dm_Activation)*DM_ATTR(int64_t, c);
  dm_Tensor *before = c->out[c->n_out - 1];
  bool done;
  if (a == DM_ACTIVATION_NONE) return multiply(p);
  dm_product_fold(p);
  p->activation = a;
  if (c->n_out > 1) p->before = dm_tensor_data(before);
  DM_TRY(dm_lt_multiply(p, &done));
  if (done) return DM_OK;
  dm_Product plain = *p;
  plain.activation = DM_ACTIVATION_NONE;
  plain.before = NULL;
  plain.c = dm_tensor_data(before);
  DM_TRY(dm_lt_multiply(&plain, &done));
  return done ? dm_cuda_activate(c->out[0], a, before) : dm_cuda_gemm(p);
}

dm_status linear_cuda(dm_Call *c) { return dm_linear_by(multiply_activated, c, c->out[0]); }
