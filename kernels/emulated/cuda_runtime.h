/* The part of NVIDIA's cuda_runtime.h that the back end uses, for a build
   without a GPU: same names, same values, C and C++. runtime.cpp answers the
   calls, block.cpp runs the kernels; what a kernel may say is in device.h.

   Everything is done before the call returns, unless DEMILUNE_EMULATED_LATE asks
   for work that runs late (queue.cpp); streams and events keep the rules of use
   (which device, which handle lives). Work on a stream that is captured is recorded,
   and done when the graph is launched. */
#ifndef DM_EMULATED_CUDA_RUNTIME_H
#define DM_EMULATED_CUDA_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CUDART_VERSION 13000

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/* ---- errors ------------------------------------------------------------------ */

/* name, value, what cudaGetErrorString says */
#define DM_EMULATED_ERRORS(X)                                                      \
  X(cudaSuccess, 0, "no error")                                                    \
  X(cudaErrorInvalidValue, 1, "invalid argument")                                  \
  X(cudaErrorMemoryAllocation, 2, "out of memory")                                 \
  X(cudaErrorInitializationError, 3, "initialization error")                       \
  X(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")            \
  X(cudaErrorInvalidDevicePointer, 17, "invalid device pointer")                   \
  X(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy")      \
  X(cudaErrorInsufficientDriver, 35,                                               \
    "CUDA driver version is insufficient for CUDA runtime "                        \
    "version")                                                                     \
  X(cudaErrorInvalidDeviceFunction, 98, "invalid device function")                 \
  X(cudaErrorNoDevice, 100, "no CUDA-capable device is detected")                  \
  X(cudaErrorInvalidDevice, 101, "invalid device ordinal")                         \
  X(cudaErrorNoKernelImageForDevice, 209,                                          \
    "no kernel image is available for execution on "                               \
    "the device")                                                                  \
  X(cudaErrorPeerAccessUnsupported, 217,                                           \
    "peer access is not supported between these two "                              \
    "devices")                                                                     \
  X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")                \
  X(cudaErrorIllegalState, 401,                                                    \
    "the operation cannot be performed in the "                                    \
    "present state")                                                               \
  X(cudaErrorNotReady, 600, "device not ready")                                    \
  X(cudaErrorIllegalAddress, 700, "an illegal memory access was encountered")      \
  X(cudaErrorLaunchOutOfResources, 701, "too many resources requested for launch") \
  X(cudaErrorPeerAccessAlreadyEnabled, 704, "peer access is already enabled")      \
  X(cudaErrorPeerAccessNotEnabled, 705, "peer access has not been enabled")        \
  X(cudaErrorAssert, 710, "device-side assert triggered")                          \
  X(cudaErrorLaunchFailure, 719, "unspecified launch failure")                     \
  X(cudaErrorNotSupported, 801, "operation not supported")                         \
  X(cudaErrorStreamCaptureUnsupported, 900,                                        \
    "operation not permitted when stream is capturing")                            \
  X(cudaErrorStreamCaptureInvalidated, 901,                                        \
    "operation failed due to a previous error during capture")                     \
  X(cudaErrorStreamCaptureUnmatched, 903,                                          \
    "capture was not "                                                             \
    "initiated in this stream")                                                    \
  X(cudaErrorStreamCaptureImplicit, 906,                                           \
    "operation would make the legacy stream depend on a capturing "                \
    "blocking stream")                                                             \
  X(cudaErrorCapturedEvent, 907,                                                   \
    "operation not permitted on an event last recorded in a "                      \
    "capturing stream")                                                            \
  X(cudaErrorStreamCaptureWrongThread, 908,                                        \
    "attempt to terminate a thread-local capture sequence from "                   \
    "another thread")                                                              \
  X(cudaErrorUnknown, 999, "unknown error")

typedef enum cudaError {
#define DM_EMULATED_CODE(name, value, text) name = value,
  DM_EMULATED_ERRORS(DM_EMULATED_CODE)
#undef DM_EMULATED_CODE
} cudaError_t;

const char *cudaGetErrorName(cudaError_t e);
const char *cudaGetErrorString(cudaError_t e);
cudaError_t cudaGetLastError(void); /* and forgets it */
cudaError_t cudaPeekAtLastError(void);

/* ---- devices ----------------------------------------------------------------- */

struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin, sharedMemPerMultiprocessor;
  int warpSize, maxThreadsPerBlock, maxThreadsPerMultiProcessor, multiProcessorCount;
  int major, minor, l2CacheSize;
};

enum cudaDeviceAttr {
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrWarpSize = 10,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrL2CacheSize = 38,
  cudaDevAttrMaxThreadsPerMultiProcessor = 39,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};

cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device); /* this host thread's */
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device);
cudaError_t cudaDeviceGetPCIBusId(char *out, int n, int device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags);

/* ---- streams and events ------------------------------------------------------ */

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;

#define cudaStreamDefault 0x00
#define cudaStreamNonBlocking 0x01
#define cudaStreamLegacy ((cudaStream_t)0x1)
#define cudaStreamPerThread ((cudaStream_t)0x2)
#define cudaEventDefault 0x00
#define cudaEventBlockingSync 0x01
#define cudaEventDisableTiming 0x02

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamQuery(cudaStream_t s);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags);
cudaError_t cudaEventCreate(cudaEvent_t *out);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventQuery(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaEventDestroy(cudaEvent_t e);

/* ---- graphs: graph.cpp ------------------------------------------------------- */

typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
typedef struct CUgraphNode_st *cudaGraphNode_t;

/* The calls, of those not queued, that a capture forbids: of all threads, of its own, none. */
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed
};

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out);
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long flags);
cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *n);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s);
cudaError_t cudaGraphDestroy(cudaGraph_t g);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

/* ---- memory ------------------------------------------------------------------ */

enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};

enum cudaMemoryType {
  cudaMemoryTypeUnregistered,
  cudaMemoryTypeHost,
  cudaMemoryTypeDevice,
  cudaMemoryTypeManaged
};

struct cudaPointerAttributes {
  enum cudaMemoryType type;
  int device;
  void *devicePointer, *hostPointer;
};

#define cudaHostAllocDefault 0x00
#define cudaHostAllocPortable 0x01
#define cudaHostAllocMapped 0x02
#define cudaHostAllocWriteCombined 0x04

cudaError_t cudaMalloc(void **out, size_t n);
cudaError_t cudaFree(void *p);
cudaError_t cudaHostAlloc(void **out, size_t n, unsigned flags);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total);
cudaError_t cudaMemcpy(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind,
                            cudaStream_t s);
cudaError_t cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src, int src_device,
                                size_t n, cudaStream_t s);
cudaError_t cudaMemset(void *dst, int byte, size_t n);
cudaError_t cudaMemsetAsync(void *dst, int byte, size_t n, cudaStream_t s);
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *p);

/* Element types, as the libraries name them. */
typedef enum cudaDataType_t {
  CUDA_R_32F = 0,
  CUDA_R_64F = 1,
  CUDA_R_16F = 2,
  CUDA_R_16BF = 14
} cudaDataType;

/* ---- kernels ----------------------------------------------------------------- */

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attr, int value);

/* ---- the emulation alone ------------------------------------------------------ */

/* How often since the start, in all host threads:
     "launch"       kernels run, and the calls of dm_emulated_run
     "copy"         copies and fills of n > 0 bytes
     "sync"         calls that make the host wait: Device-, Stream- and
                    EventSynchronize, cudaMemcpy, cudaMemset, asynchronous copies from
                    a device to pageable memory
     "malloc" "free"            cudaMalloc, cudaFree (which wait as well)
     "host_malloc" "host_free"  cudaHostAlloc, cudaFreeHost
     "switch"       work on another stream than the one before
     "work"         what was queued: launches, and asynchronous copies and fills
     "node"         what launched graphs hold; a graph is one launch and one piece of work
     "read" "written"  bytes of device memory that work has read and written, by the page, each
                    page once for a piece of work: with DEMILUNE_EMULATED_TRAFFIC=1, where work
                    does not run late, on x86-64; else 0
   -1 for another word. */
int64_t dm_emulated_count(const char *what);

/* Of piece i of that work, from 1: its kernel's or function's name, a hash of all that it was
   given (stream, grid, arguments; not what pointers point to), and the bytes that it has read
   and written. NULL: there is none, or it is too long ago. */
const char *dm_emulated_work(int64_t i, int64_t seen[3]);

/* Runs f(arg) on the host with the memory of the current device open to it and
   counts it as a launch of `name`: how a library's entry points (cuBLASLt,
   cuDNN) are answered. given: a hash of what they were given. A stream of another
   device fails. f may not launch, copy or allocate. A captured stream records the
   n_arg bytes of arg, which point to nothing that ends with the call. */
cudaError_t dm_emulated_run(const char *name, cudaStream_t s, uint64_t given,
                            void (*f)(void *arg), void *arg, size_t n_arg);

/* n bytes at p, which a caching allocator cuts from its memory, are somebody's from here on
   in the stream's order (begins), or nobody's. Where work runs late, memory that nobody has is
   filled with NaN; the address sanitizer forbids it. */
void dm_emulated_life(cudaStream_t s, void *p, size_t n, bool begins);

#pragma GCC visibility pop

#ifdef __cplusplus
}

#include "device.h"
#endif

#endif
