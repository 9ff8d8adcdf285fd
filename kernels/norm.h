/* Batch norm on the device. */
#ifndef DM_KERNELS_NORM_H
#define DM_KERNELS_NORM_H

#include "kernels/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "op/optim/optim.h"

/* x (n, channels, height, width), gy and y are dense in rows or channels last; the others are
   dense float32 vectors (channels). root is 1 / sqrt(variance + eps). */
typedef struct dm_BatchNorm {
  dm_DType dtype; /* 16-bit or float32 */
  int64_t n, channels, height, width;
  bool last;     /* channels last */
  bool recorded; /* a backward pass will ask for the gradients */
  double eps;
  void *x, *weight, *bias, *mean, *root;
  void *y;            /* or x's gradient */
  void *gy, *gw, *gb; /* backward only */
} dm_BatchNorm;

/* Asks cuDNN (dnn_norm.c) for y, mean and root from the batch's own statistics, or the
   gradients y (of x), gw and gb. Returns false if it is missing or refuses; whatever was
   written then, our own kernels write again. */
bool dm_dnn_batch_norm(const dm_BatchNorm *b);
bool dm_dnn_batch_norm_backward(const dm_BatchNorm *b);
/* The same with relu behind it, where engines take both: y is its result. */
bool dm_dnn_batch_norm_relu(const dm_BatchNorm *b);

/* dm_OptimOps.move_running (batch_norm.cu). */
dm_status dm_cuda_move_running(const dm_Running *r);

#ifdef __cplusplus
}
#endif
#endif
