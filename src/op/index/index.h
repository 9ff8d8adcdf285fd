/* What ops that read or write some elements of a tensor share. */
#ifndef DM_INDEX_H
#define DM_INDEX_H

#include "engine/op.h"

typedef struct dm_AlongAttr {
  int64_t dim;
} dm_AlongAttr;
typedef enum dm_ReduceKind { DM_FOLD_PROD, DM_FOLD_AMAX, DM_FOLD_AMIN } dm_ReduceKind;
typedef struct dm_FoldAttr {
  int64_t dim, fold;
} dm_FoldAttr;
typedef struct dm_PutAttr {
  int64_t dim, accumulate;
} dm_PutAttr;
typedef struct dm_AddAttr {
  int64_t dim;
  double alpha;
} dm_AddAttr;
typedef struct dm_EmbeddingAttr {
  dm_OptInt padding_idx;
} dm_EmbeddingAttr;
typedef struct dm_EmbeddingBackwardAttr {
  int64_t n;
  dm_OptInt padding_idx;
} dm_EmbeddingBackwardAttr;

/* The dim of a checked call. */
static inline int dm_dim_of(const dm_Tensor *t, int64_t dim) {
  return (int)(dim < 0 ? dim + (t->ndim > 0 ? t->ndim : 1) : dim);
}

/* May values of src be written among x's? A number may when it is whole. */
dm_status dm_check_source(const dm_Call *c, const dm_Tensor *x, const dm_Tensor *src);
/* How many elements of a tensor of another device than the CPU are not 0; waits. */
dm_status dm_count_far(dm_Tensor *t, int64_t *count);
/* Fails unless index is of an integer dtype. */
dm_status dm_check_index(const dm_Call *c, const dm_Tensor *index);
/* scatter's rule for x, index and a source tensor; the call's first attribute is the dim. */
dm_status dm_check_scatter(dm_Call *c);
/* index as a dense int64 tensor of positions in 0..n-1; wrap: negative ones
   count from the end. */
dm_status dm_positions_new(const dm_Call *c, dm_Tensor *index, int64_t n, bool wrap,
                           dm_Tensor **out);
/* Where sums into out are kept: out, or a tensor of its compute type. Starts
   as x, or as zeros when there is none. */
dm_status dm_sums_new(dm_Tensor *out, dm_Tensor *x, dm_Tensor **sums);
dm_status dm_sums_store(dm_Tensor *out, dm_Tensor *sums);
/* index_add's sources: t in `dtype`, times alpha. */
dm_status dm_scaled_new(dm_Tensor *t, dm_DType dtype, double alpha, dm_Tensor **out);
/* t broadcast to shape, as a dense tensor of dtype; t itself when it is one.
   CPU; never recorded. *out is to be unreffed after a failure as well. */
dm_status dm_dense_as_new(dm_Tensor *t, dm_DType dtype, int ndim, const int64_t *shape,
                          dm_Tensor **out);
/* Zeros of a shape, with the dtype and device of another tensor. */
dm_Tensor *x_zeros(dm_X *x, int ndim, const int64_t *shape, const dm_Tensor *like);
/* Fails unless operand 0 has shape (N, C, ...) or (C, ...) with `dims` spatial dims, 1 to 3. */
dm_status dm_check_spatial(const dm_Call *c, int dims);
/* n positions for a composition to fill in, on the CPU; NULL and *to NULL after a failure. */
dm_Tensor *dm_x_positions(dm_X *x, int64_t n, int64_t **to);
/* t on that device. */
dm_Tensor *dm_x_there(dm_X *x, dm_Tensor *t, dm_Device dev);
/* index_select along dim, at positions of any device. */
dm_Tensor *dm_x_select(dm_X *x, dm_Tensor *t, int64_t dim, dm_Tensor *at);
/* The gradient of values taken along dim of input 0: each gy goes back to where
   its value came from. */
dm_Tensor *x_put_back(dm_Grad *g, int64_t dim, dm_Tensor *gy, dm_Tensor *index);

#endif
