/* Batch norm on the device. */
#ifndef DM_KERNELS_NORM_H
#define DM_KERNELS_NORM_H

#include "kernels/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x (n, channels, height, width), dense in rows or channels last, as gy and y; the rest
   are dense vectors of a float32 for each channel. root: 1 / sqrt(variance + eps). */
typedef struct dm_BatchNorm {
  dm_DType dtype; /* 16-bit or float32 */
  int64_t n, channels, height, width;
  bool last; /* channels last */
  double eps;
  void *x, *weight, *bias, *mean, *root;
  void *y;            /* or x's gradient */
  void *gy, *gw, *gb; /* backward only */
} dm_BatchNorm;

/* By cuDNN (dnn_norm.c): y, mean and root by the batch's own statistics; or the
   gradients y, gw and gb by those. false: it is not there, or not for this one, and
   nothing is written that our own kernels do not write again. */
bool dm_dnn_batch_norm(const dm_BatchNorm *b);
bool dm_dnn_batch_norm_backward(const dm_BatchNorm *b);

#ifdef __cplusplus
}
#endif
#endif
