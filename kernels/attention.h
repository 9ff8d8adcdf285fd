/* Attention on the device. */
#ifndef DM_KERNELS_ATTENTION_H
#define DM_KERNELS_ATTENTION_H

#include "kernels/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* attention and attention_backward by cuDNN (dnn_attention.c). *done is false where it is
   missing or refuses the call; whatever was written then, our own kernels write again. A
   failure: the call may not be done by them any more. */
dm_status dm_dnn_attention(const dm_Call *c, bool *done);
dm_status dm_dnn_attention_backward(const dm_Call *c, bool *done);

/* The bias adds this to the score of a key that is not seen. Finite numbers of a mask are
   limited to half of it, and a row whose lse is beyond three quarters of it saw no key. */
#define DM_ATTENTION_HIDDEN -1e30f

/* Writes the mask (..., L, S), of which `heads` matrices belong to one batch, as a bias in
   float32 of these sizes and steps (batch, heads, L, S); a dim of size 1 stands for all. */
dm_status dm_attention_bias(const dm_Tensor *mask, int64_t heads, const int64_t size[4],
                            const int64_t step[4], float *out);
/* Rows of y (..., L, D) whose lse tells that they saw no key become 0, and their lse inf. */
dm_status dm_attention_unseen(dm_Tensor *y, dm_Tensor *lse);

#ifdef __cplusplus
}
#endif
#endif
