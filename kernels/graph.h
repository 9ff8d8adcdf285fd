/* Graphs of CUDA: what the other host files ask about the capture of this thread. */
#ifndef DM_KERNELS_GRAPH_H
#define DM_KERNELS_GRAPH_H

#include "kernels/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether this thread records a graph. */
bool dm_graph_is_capturing(void);

/* DM_OK, or during a capture a failure that says what was asked for. */
dm_status dm_graph_refuse(const char *what);

/* Fails during a capture for work on another device or stream. */
dm_status dm_graph_check_stream(int device, cudaStream_t stream);

/* Gives the stream's key in requests of memory: the pool of the graph that is captured or
   warmed up there, or the stream itself. */
void *dm_graph_pool(int device, cudaStream_t stream);

/* dm_cuda_scratch, but never from a graph's pool: for what outlives the graph. */
dm_status dm_graph_lasting(int64_t n, void **out);

/* dm_cuda_keep (keep.h) during a capture: the copy is the graph's own, and gets its bytes
   before the first launch. */
dm_status dm_graph_keep(uint64_t site, const void *bytes, int64_t n, void **out);

/* The same for the options of an optimizer's step, which each launch may find changed. */
dm_status dm_graph_keep_step(uint64_t site, const void *bytes, int64_t n, void **out);

/* The same for a generator, which was `was` before a draw and is *host now. */
dm_status dm_graph_keep_generator(const dm_Generator *host, const dm_Generator *was,
                                  void **out);

extern const dm_GraphOps dm_cuda_graph_ops;

#ifdef __cplusplus
}
#endif
#endif
