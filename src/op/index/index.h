/* Attributes and helpers of the ops that read or write selected elements of a
   tensor. */
#ifndef DM_INDEX_H
#define DM_INDEX_H

#include "engine/op.h"

typedef enum dm_ScatterReduction {
  DM_SCATTER_PROD,
  DM_SCATTER_AMAX,
  DM_SCATTER_AMIN
} dm_ScatterReduction;
/* The dim of a checked call as 0 .. ndim - 1. */
static inline int dm_dim_of(const dm_Tensor *t, int64_t dim) {
  return (int)(dim < 0 ? dim + (t->ndim > 0 ? t->ndim : 1) : dim);
}

/* Fails unless values of src may be written into x without losing their kind; a
   whole number may be written into integers. */
dm_status dm_check_source(const dm_Call *c, const dm_Tensor *x, const dm_Tensor *src);
/* Counts the nonzero elements of a tensor on another device than the CPU; it waits
   for the result. */
dm_status dm_count_far(dm_Tensor *t, int64_t *count);
/* Fails unless index is of an integer dtype. */
dm_status dm_check_index(const dm_Call *c, const dm_Tensor *index);
/* Fails unless the mask has the sizes of t's dims from `dim` on; `base` counts dims in the
   message. */
dm_status dm_check_mask(const char *what, int base, const dm_Tensor *t, const dm_Tensor *mask,
                        int64_t dim);
/* scatter's rule for x, index and a source tensor; the call's first attribute is the dim. */
dm_status dm_check_scatter(dm_Call *c);
/* *out: index as a contiguous int64 tensor of positions in 0 .. n - 1. wrap:
   negative positions count from the end. */
dm_status dm_positions_new(const dm_Call *c, dm_Tensor *index, int64_t n, bool wrap,
                           dm_Tensor **out);
/* *sums: the tensor that sums into out are kept in, which is out itself or a tensor
   of its compute type. It starts as a copy of x, or as zeros when x is NULL.
   dm_sums_store rounds the sums into out. */
dm_status dm_sums_new(dm_Tensor *out, dm_Tensor *x, dm_Tensor **sums);
dm_status dm_sums_store(dm_Tensor *out, dm_Tensor *sums);
/* index_add's source: alpha * t in `dtype`. */
dm_status dm_scaled_new(dm_Tensor *t, dm_DType dtype, double alpha, dm_Tensor **out);
/* *out: t broadcast to shape, as a contiguous tensor of dtype; t itself when it is
   one. For the CPU, never recorded. *out is to be unreffed after a failure as well. */
dm_status dm_dense_as_new(dm_Tensor *t, dm_DType dtype, int ndim, const int64_t *shape,
                          dm_Tensor **out);
/* Runs an op of one operand on the host, whatever its device: `run` gets x contiguous in
   `dtype` and y, which is contiguous too and then becomes output 0. Waits for another device.
 */
typedef dm_status dm_HostFn(const dm_Call *c, const dm_Tensor *x, dm_Tensor *y);
dm_status dm_run_on_host(dm_Call *c, dm_DType dtype, dm_HostFn *run);
/* Zeros of this shape with the dtype and device of `like`. */
dm_Tensor *x_zeros(dm_X *x, int ndim, const int64_t *shape, const dm_Tensor *like);
/* A number of like's dtype and device in all elements of a shape, which takes no memory: for
   the first operand of an op that writes a copy of it. */
dm_Tensor *x_repeated(dm_X *x, double value, int ndim, const int64_t *shape,
                      const dm_Tensor *like);
/* Fails unless operand 0 has shape (N, C, ...) or (C, ...) with `dims` spatial dims, 1 to 3. */
dm_status dm_check_spatial(const dm_Call *c, int dims);
/* Fails where a sample, without the batch's dim, has no elements: it has no maximum. */
dm_status dm_check_samples(const dm_Call *c, int dims);
/* A CPU tensor of n int64 positions whose elements *to the composition fills in;
   both are NULL after a failure. */
dm_Tensor *dm_x_positions(dm_X *x, int64_t n, int64_t **to);
/* t copied to a device, or t itself when that is the CPU. */
dm_Tensor *dm_x_there(dm_X *x, dm_Tensor *t, dm_Device dev);
/* index_select along dim, at positions from any device. */
dm_Tensor *dm_x_select(dm_X *x, dm_Tensor *t, int64_t dim, dm_Tensor *at);
/* The gradient of values that were taken along dim of input 0: zeros with gy added
   at the positions the values came from. */
dm_Tensor *x_put_back(dm_Grad *g, int64_t dim, dm_Tensor *gy, dm_Tensor *index);

#endif
