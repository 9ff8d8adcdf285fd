/* Attributes of softmax and log_softmax (dim, dtype of the result or -1) and of their
   backward op (dim, whether it is log_softmax's), for the kernels of every device. */
#ifndef DM_SOFTMAX_H
#define DM_SOFTMAX_H

#include <stdint.h>

typedef struct dm_SoftmaxAttr {
  int64_t dim, dtype;
} dm_SoftmaxAttr;
typedef struct dm_SoftmaxBackAttr {
  int64_t dim, log;
} dm_SoftmaxBackAttr;

#endif
