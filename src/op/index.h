/* What ops that read or write some elements of a tensor share. */
#ifndef DM_INDEX_H
#define DM_INDEX_H

#include "engine/op.h"

/* May values of src be written among x's? A number may when it is whole. */
dm_status dm_check_source(const dm_Call *c, const dm_Tensor *x, const dm_Tensor *src);
/* t broadcast to shape, as a dense tensor of dtype; t itself when it is one.
   CPU; never recorded. *out is to be unreffed after a failure as well. */
dm_status dm_dense_as_new(dm_Tensor *t, dm_DType dtype, int ndim, const int64_t *shape,
                          dm_Tensor **out);
/* Zeros of a shape, with the dtype and device of another tensor. */
dm_Tensor *x_zeros(dm_X *x, int ndim, const int64_t *shape, const dm_Tensor *like);
/* The gradient of values taken along dim of input 0: each gy goes back to where
   its value came from. */
dm_Tensor *x_put_back(dm_Grad *g, int64_t dim, dm_Tensor *gy, dm_Tensor *index);

#endif
