/* Sorting for other kernels. */
#ifndef DM_KERNELS_SORT_H
#define DM_KERNELS_SORT_H

#include "kernels/cuda.h"

#ifdef __cplusplus
extern "C"
#endif
    /* sorted gets the n keys in rising order and `at` the position, from 0, that each had.
       Equal keys keep their order. All are on the device. */
    dm_status
    dm_cuda_order(const int64_t *keys, int64_t n, int64_t *sorted, int64_t *at);

#endif
