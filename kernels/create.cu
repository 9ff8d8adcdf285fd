/* Tensors that are made from sizes alone: zeros, ones, full, arange, linspace and eye. */
#include "kernels/cuda.cuh"
#include "kernels/fill.h"

extern "C" {
#include "op/shape/create.h"
}

DM_CUDA_KERNEL(zeros_cuda) { return dm_cuda_fill(c->out[0], 0); }
DM_CUDA_KERNEL(ones_cuda) { return dm_cuda_fill(c->out[0], 1); }
DM_CUDA_KERNEL(full_cuda) {
  return dm_cuda_fill(c->out[0], DM_ATTR(dm_FullAttr, c)->fill_value);
}
DM_CUDA_KERNEL(full_like_cuda) {
  return dm_cuda_fill(c->out[0], DM_ATTR(dm_FullLikeAttr, c)->fill_value);
}
DM_CUDA_KERNEL(empty_cuda) {
  (void)c; /* the values are whatever the memory holds */
  return DM_OK;
}

/* Element i of arange or linspace, computed in float64 as on the CPU, so that both give the
   same values. */
static __global__ void __launch_bounds__(DM_THREADS)
    ramp_f64_kernel(void *out, int dtype, dm_Ramp r, int64_t n) {
  for (int64_t i = dm_thread(); i < n; i += dm_threads())
    dm_store<double>(dtype, out, i, dm_ramp_at(r, i, n));
}

/* Fills t with start + i step, rounded once to t's dtype. */
static dm_status ramp(dm_Tensor *t, dm_Ramp r) {
  return dm_launch(ramp_f64_kernel, dm_blocks(t->numel), DM_THREADS, 0, dm_tensor_data(t),
                   (int)t->dtype, r, t->numel);
}
DM_CUDA_KERNEL(arange_cuda) {
  return ramp(c->out[0], dm_arange_ramp(c->base, DM_ATTR(dm_ArangeAttr, c)));
}
DM_CUDA_KERNEL(linspace_cuda) {
  return ramp(c->out[0], dm_linspace_ramp(DM_ATTR(dm_LinspaceAttr, c)));
}

/* The identity as (rows, n_column), dense: 1 where row and column are equal. */
static __global__ void __launch_bounds__(DM_THREADS)
    eye_kernel(void *out, int dtype, int64_t n_column, int64_t n) {
  for (int64_t i = dm_thread(); i < n; i += dm_threads())
    dm_store<int64_t>(dtype, out, i, i / n_column == i % n_column);
}

DM_CUDA_KERNEL(eye_cuda) {
  dm_Tensor *t = c->out[0];
  return dm_launch(eye_kernel, dm_blocks(t->numel), DM_THREADS, 0, dm_tensor_data(t),
                   (int)t->dtype, t->shape[1], t->numel);
}
