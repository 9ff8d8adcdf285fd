/* What the files of the CUDA back end share, on the host's side. C and C++.

   The back end is a library of its own (cuda.so). It reaches the engine through
   the table that dm_backend was given; host.c defines the engine's functions as
   calls through it, so that files here read like files of src/. */
#ifndef DM_CUDA_H
#define DM_CUDA_H

#include <cuda_runtime.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "base/alloc.h"
#include "base/error.h"
#include "base/rng.h"
#include "core/iter.h"
#include "engine/op.h"

/* Fails with what was tried and CUDA's own words; DM_OK for cudaSuccess. */
dm_status dm_cuda_fail(cudaError_t e, const char *what);
#define DM_CUDA_TRY(call)                                                \
  do {                                                                   \
    const cudaError_t cuda_try_ = (call);                                \
    if (cuda_try_ != cudaSuccess) return dm_cuda_fail(cuda_try_, #call); \
  } while (0)

/* The current stream of the device that the running kernel was called for. */
cudaStream_t dm_cuda_stream(void);
/* That device's ordinal. */
int dm_cuda_device(void);
/* Its multiprocessors: how wide a launch is worth being. */
int dm_cuda_processors(void);
/* Its last cache, in bytes. */
int dm_cuda_cache(void);

/* Scratch memory on the device for the length of one kernel's function: given back to the
   stream's order, so that later work may have it at once. */
dm_status dm_cuda_scratch(int64_t n_bytes, void **out);
void dm_cuda_scratch_free(void *p, int64_t n_bytes);

/* Gives the scratch memory back by hand, of whichever device. */
void dm_cuda_give_back(int device, void *p);

/* dst, on the device, becomes these bytes of the host, in the current stream's order.
   They may change as soon as this returns; it waits for nothing. */
dm_status dm_cuda_send(void *dst, const void *bytes, int64_t n_bytes);

/* *out, on the device: the generator as this work of the current stream finds it. It moves
   on by the counters of n elements, there and on the host. */
dm_status dm_cuda_take_counters(int64_t n, int64_t per_counter, dm_Generator *out);

/* ---- faults: what only the device can find wrong ----
   The first one is noted in memory that the host reads when it waits anyway. */
typedef enum dm_FaultKind {
  DM_FAULT_NONE,
  DM_FAULT_INDEX,      /* value is no position in `size` */
  DM_FAULT_LABEL,      /* value is no class out of `size` */
  DM_FAULT_ZERO,       /* integer division by zero */
  DM_FAULT_WEIGHTS,    /* multinomial: weights of a row that cannot be drawn from */
  DM_FAULT_PROBABILITY /* bernoulli: a probability outside 0 and 1 */
} dm_FaultKind;

typedef struct dm_Fault {
  unsigned taken;
  int32_t kind, op;
  int32_t base;     /* positions count from here */
  int64_t position; /* which element of the operand */
  int64_t value, size;
} dm_Fault;

/* The current device's record, as kernels see it. */
dm_Fault *dm_cuda_faults(void);
/* Fails when work that has been waited for noted one; the record is free again. */
dm_status dm_cuda_check_faults(int device);

/* The value of a host number, or of any 0-dim tensor on the CPU. */
static inline bool dm_is_host(const dm_Tensor *t) { return t->device.type == DM_CPU; }
double dm_host_f64(const dm_Tensor *t);
int64_t dm_host_i64(const dm_Tensor *t);

#ifdef __cplusplus
}
#endif
#endif
