/* Attention on the device. */
#ifndef DM_KERNELS_ATTENTION_H
#define DM_KERNELS_ATTENTION_H

#include "kernels/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* By cuDNN (dnn_attention.c): what a call of attention or attention_backward wants.
   false: it is not there, or not for this one, and nothing is written that our own
   kernels do not write again. */
bool dm_dnn_attention(const dm_Call *c);
bool dm_dnn_attention_backward(const dm_Call *c);

#ifdef __cplusplus
}
#endif
#endif
