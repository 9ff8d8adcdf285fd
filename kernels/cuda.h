/* Shared by the host files of the CUDA back end; C and C++.

   The back end is a library of its own (cuda.so). It calls the engine through the table that
   dm_backend was given; host.c defines the engine's functions as calls through it, so that
   files here read like those of src/. */
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

/* Fails with the call and CUDA's own message; DM_OK for cudaSuccess. */
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
/* Its number of multiprocessors. */
int dm_cuda_processors(void);
/* The size of its L2 cache in bytes. */
int dm_cuda_cache(void);

/* Scratch memory on the device for the duration of one host function. It is returned in stream
   order: later work of the stream may get it at once. */
dm_status dm_cuda_scratch(int64_t n_bytes, void **out);
void dm_cuda_scratch_free(void *p, int64_t n_bytes);

/* Returns scratch memory of any device. */
void dm_cuda_give_back(int device, void *p);

/* Copies bytes of the host to dst on the device in the current stream's order. The caller may
   change them as soon as this returns; nothing is waited for. */
dm_status dm_cuda_send(void *dst, const void *bytes, int64_t n_bytes);

/* Copies the generator as this point of the current stream finds it to *out, on the device. It
   then advances by the counters of n elements, there and on the host. */
dm_status dm_cuda_take_counters(int64_t n, int64_t per_counter, dm_Generator *out);

/* ---- faults: errors that only the device can see ----
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

/* The current device's fault record. */
dm_Fault *dm_cuda_faults(void);
/* Fails if finished work has noted a fault, and clears the record. */
dm_status dm_cuda_check_faults(int device);

/* Host numbers: 0-dim tensors on the CPU, and their value. */
static inline bool dm_is_host(const dm_Tensor *t) { return t->device.type == DM_CPU; }
double dm_host_f64(const dm_Tensor *t);
int64_t dm_host_i64(const dm_Tensor *t);

#ifdef __cplusplus
}
#endif
#endif
