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

dm_status linear_cuda(dm_Call *c) { return dm_linear_by(multiply, c); }
