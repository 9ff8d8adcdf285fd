/* Order, for kernels that need it themselves. */
#ifndef DM_KERNELS_SORT_H
#define DM_KERNELS_SORT_H

#include "kernels/cuda.h"

#ifdef __cplusplus
extern "C"
#endif
    /* sorted: the n keys, rising; at: where each was (from 0). Equal keys stay in
       their order. All on the device. */
    dm_status
    dm_cuda_order(const int64_t *keys, int64_t n, int64_t *sorted, int64_t *at);

#endif
