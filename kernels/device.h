/* The functions of device.c that graph.c calls. */
#ifndef DM_KERNELS_DEVICE_H
#define DM_KERNELS_DEVICE_H

#include "kernels/cuda.h"

/* Makes the device current in this thread, and gives the stream of its work there. */
dm_status dm_cuda_current(int device, cudaStream_t *stream);

/* Makes a graph's pool of memory on the current stream, which it gives; dm_cuda_pool_free gives
   the pool to that stream. */
dm_status dm_cuda_pool_new(int device, void *graph, cudaStream_t *stream);
void dm_cuda_pool_free(int device, void *graph);

/* Memory outside of the pool that is in use now is held for the graph, until it is let go. */
void dm_cuda_hold_memory(int device, void *graph);
void dm_cuda_let_go(int device);

/* During a capture the allocators of device and pinned memory ask for no events. */
void dm_cuda_pause_memory(int device, bool pause);

#endif
