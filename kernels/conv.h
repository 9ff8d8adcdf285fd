/* 2-d convolutions on the device. */
#ifndef DM_KERNELS_CONV_H
#define DM_KERNELS_CONV_H

#include "kernels/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "op/conv/conv.h"

/* An operand: its elements, and the step between neighbours along each dim, in elements. */
typedef struct dm_ConvOperand {
  void *data;
  int64_t step[4]; /* x: n c h w; w: o c r s; y: n o p q */
} dm_ConvOperand;

typedef enum dm_ConvKind { DM_CONV_FORWARD, DM_CONV_INPUT, DM_CONV_WEIGHT } dm_ConvKind;

/* y = conv(x, w) + bias, or the gradient of x or of w given that of y. The result is dense: y
   and x in rows or channels last, w in rows. */
typedef struct dm_Conv {
  dm_ConvKind kind;
  dm_DType dtype;
  dm_ConvDims d;
  dm_ConvOperand x, w, y;
  const void *bias;        /* (O) or NULL */
  bool wants_gx, wants_gw; /* a forward: a backward pass will ask for these gradients */
  int64_t bias_step;
} dm_Conv;

/* Runs our own kernels (conv.cu), which take every case. */
dm_status dm_cuda_conv(const dm_Conv *c);

/* Asks cuDNN (dnn.c), without the bias. Returns false if it is missing or refuses; whatever
   was written then, dm_cuda_conv writes again. Operands must not overlap themselves nor have
   steps below 1; the gradient of w may be channels last. */
bool dm_dnn_conv(const dm_Conv *c);
/* The same with the bias, in one launch, where an engine takes both. */
bool dm_dnn_conv_bias(const dm_Conv *c);

#ifdef __cplusplus
}
#endif
#endif
