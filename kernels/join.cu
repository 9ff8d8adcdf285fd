/* cat, stack, flip and roll as strided copies into or out of views of a tensor. Each input of
   cat and stack is one launch of the copy kernel, into the part of the output that it fills;
   flip reads through a view whose strides are negative; a dim that roll shifts has two parts.
   No thread searches for the input that its element comes from. */
#include "kernels/cuda.cuh"
#include "kernels/fill.h"

extern "C" {
#include "op/shape/roll.h"
}

/* Copies each input to its part of out along dim. */
DM_CUDA_KERNEL(cat_cuda) {
  dm_Tensor *out = c->out[0];
  const int64_t attr = DM_ATTR(dm_JoinAttr, c)->dim;
  const int dim = (int)(attr < 0 ? attr + out->ndim : attr);
  int64_t at = out->offset;
  for (int i = 0; i < c->n_in; i++) {
    dm_Tensor *t = c->in[i];
    if (t->numel == 0) continue; /* an empty tensor of one dim may be joined with any others */
    dm_Tensor to = dm_view_of(out, t->ndim, t->shape, out->stride, at);
    DM_TRY(dm_cuda_copy(&to, t));
    at += t->shape[dim] * out->stride[dim];
  }
  return DM_OK;
}

/* Each input becomes one index of the new dim. */
DM_CUDA_KERNEL(stack_cuda) {
  dm_Tensor *out = c->out[0];
  const int64_t attr = DM_ATTR(dm_JoinAttr, c)->dim;
  const int dim = (int)(attr < 0 ? attr + out->ndim : attr);
  int64_t stride[DM_MAX_DIM];
  for (int d = 0; d < out->ndim - 1; d++) stride[d] = out->stride[d < dim ? d : d + 1];
  for (int i = 0; i < c->n_in; i++) {
    dm_Tensor *t = c->in[i];
    dm_Tensor to =
        dm_view_of(out, t->ndim, t->shape, stride, out->offset + i * out->stride[dim]);
    DM_TRY(dm_cuda_copy(&to, t));
  }
  return DM_OK;
}

/* A copy from a view with negative strides along the flipped dims. */
DM_CUDA_KERNEL(flip_cuda) {
  const dm_Ints *dims = &DM_ATTR(dm_FlipAttr, c)->dims;
  const dm_Tensor *t = c->in[0];
  if (t->numel == 0) return DM_OK;
  dm_Tensor back = dm_view_of(t, t->ndim, t->shape, t->stride, t->offset);
  for (int i = 0; i < dims->n && t->ndim > 0; i++) {
    const int64_t d = dims->v[i] < 0 ? dims->v[i] + t->ndim : dims->v[i];
    back.offset += (t->shape[d] - 1) * t->stride[d];
    back.stride[d] = -t->stride[d];
  }
  return dm_cuda_copy(c->out[0], &back);
}

DM_CUDA_KERNEL(roll_cuda) { return dm_roll_views(c, dm_cuda_copy); }
