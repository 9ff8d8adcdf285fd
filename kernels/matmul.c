/* The matrix products. Operands go in by their strides, as on the CPU. */
#include "kernels/fill.h"
#include "kernels/gemm.h"

#include "op/dense.h"

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

/* addmm and baddbmm. input as one dense row is a bias; else it is laid into the
   output first. beta 0 does not read it. */
dm_status addmm_cuda(dm_Call *c) {
  dm_Tensor *in = c->in[0], *out = c->out[0];
  const dm_AddmmAttr *a = DM_ATTR(dm_AddmmAttr, c);
  if (out->numel == 0) return DM_OK;
  dm_Product p = dm_product_of(c->in[1], c->in[2], out);
  p.alpha = a->alpha;
  if (a->beta == 1 && in->ndim == 1 && in->shape[0] == p.n && dm_tensor_is_contiguous(in)) {
    p.bias = dm_tensor_data(in);
  } else if (a->beta != 0) {
    DM_TRY(dm_cuda_copy(out, in));
    p.beta = a->beta;
  }
  return multiply(&p);
}

dm_status linear_cuda(dm_Call *c) {
  dm_Tensor *bias = c->n_in > 2 ? c->in[2] : NULL, *dense = NULL;
  if (c->out[0]->numel == 0) return DM_OK;
  dm_Product p = dm_linear_product(c->in[0], c->in[1], c->out[0]);
  if (bias) {
    DM_TRY(dm_dense_new(bias, &dense));
    p.bias = dm_tensor_data(dense);
  }
  const dm_status st = multiply(&p);
  dm_tensor_unref(&dense);
  return st;
}
