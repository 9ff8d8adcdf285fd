/* Attention on the device. */
#ifndef DM_KERNELS_ATTENTION_H
#define DM_KERNELS_ATTENTION_H

#include "kernels/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* attention and attention_backward by cuDNN (dnn_attention.c). They return false if it is
   missing or refuses the call; whatever was written then, our own kernels write again. */
bool dm_dnn_attention(const dm_Call *c);
bool dm_dnn_attention_backward(const dm_Call *c);

#ifdef __cplusplus
}
#endif
#endif
