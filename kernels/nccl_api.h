/* The part of NVIDIA's nccl.h that nccl.c uses, declared here since few machines have that
   header: the same names, types and values, which NCCL keeps from version to version
   (github.com/NVIDIA/nccl, src/nccl.h.in). The library is opened at run time, and the emulation
   defines these functions (emulated/nccl.cpp). C and C++. */
#ifndef DM_KERNELS_NCCL_API_H
#define DM_KERNELS_NCCL_API_H

#include <cuda_runtime.h>
#include <limits.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A communicator: this process's end of a group of ranks, which belongs to one device. */
typedef struct ncclComm *ncclComm_t;

/* The number by which the ranks of a new communicator find one another. One rank makes it, and
   the others get it by other means (here MPI). */
enum { NCCL_UNIQUE_ID_BYTES = 128 };
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

/* What a call gives. A communicator that does not block also says ncclInProgress: the call goes
   on in the background, and no other may begin before ncclCommGetAsyncError says ncclSuccess.
   ncclRemoteError is a peer that is gone or a network that failed. */
typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
} ncclResult_t;

/* As of version 2.18: later ones read as many members as `size` and `version` tell. */
typedef struct {
  size_t size;
  unsigned magic, version;
  int blocking, cgaClusterSize, minCTAs, maxCTAs;
  const char *netName;
  int splitShare;
} ncclConfig_t;
enum { NCCL_CONFIG_UNDEF_INT = INT_MIN, NCCL_SPLIT_NOCOLOR = -1 };
#define NCCL_CONFIG_MAGIC 0xcafebeefu
#define NCCL_CONFIG_VERSION 21800u

/* ncclAvg divides by the number of ranks after the sum. */
typedef enum { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4 } ncclRedOp_t;

/* The types of elements; NCCL knows neither bool nor int16. */
typedef enum {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt64 = 4,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9
} ncclDataType_t;

/* Before there is a communicator. The version is 10000 major + 100 minor + patch from 2.9 on.
 */
ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
/* Making communicators. All n ranks call it with one id; ncclCommSplit is a call of all ranks
   of `comm`, of which those with equal colors get a new one, in the order of their keys. */
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int n, ncclUniqueId id, int rank,
                                    ncclConfig_t *config);
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out,
                           ncclConfig_t *config);
/* Ending them: Finalize lets what is queued end, behind which Destroy frees; Abort frees at
   once and ends kernels that wait for a peer. */
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
/* What became of the last call, and of what runs since; NCCL's words on the last failure. */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error);
const char *ncclGetErrorString(ncclResult_t result);
const char *ncclGetLastError(ncclComm_t comm);

/* Collectives, queued on `stream` of the communicator's device. n counts elements of one part:
   of the whole tensor in AllReduce, Broadcast and Reduce, of what a rank gives in AllGather, of
   what it gets in ReduceScatter. `in` and `out` may be one buffer. */
ncclResult_t ncclAllReduce(const void *in, void *out, size_t n, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void *in, void *out, size_t n, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduce(const void *in, void *out, size_t n, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllGather(const void *in, void *out, size_t n, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void *in, void *out, size_t n, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
/* Messages. Between GroupStart and GroupEnd several of them are one operation, in which none
   waits for another: without that two ranks that send first would wait for ever. */
ncclResult_t ncclSend(const void *in, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void *out, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

#ifdef __cplusplus
}
#endif
#endif
