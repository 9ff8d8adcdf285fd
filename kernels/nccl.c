/* Collectives between processes by NCCL, where it is found; see core/collectives.h.

   Each link is a communicator and a stream of its own. Communicators do not block: a call
   returns at once, ncclInProgress or not, and no other is made before ncclCommGetAsyncError
   says that it is queued. A collective waits on its stream for the event that its caller gives,
   and the caller's stream for the one behind it, so that the host waits for neither. Gathers,
   scatters and exchanges are groups of sends and receives.

   What only moves bytes moves as uint8, whatever its dtype. */
#include "kernels/nccl.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cuda.h"
#include "kernels/device.h"
#include "kernels/graph.h"
#include "kernels/library.h"
#include "kernels/nccl_api.h"
#include "kernels/plans.h"

/* Of 2.18 are ncclCommSplit and this form of the configuration. */
enum { OLDEST = 21800 };
/* Seconds that a communicator may take to end before it is given up. */
static const double END = 5.0;

#define ENTRIES(X)          \
  X(ncclGetVersion)         \
  X(ncclGetUniqueId)        \
  X(ncclCommInitRankConfig) \
  X(ncclCommFinalize)       \
  X(ncclCommDestroy)        \
  X(ncclCommAbort)          \
  X(ncclCommGetAsyncError)  \
  X(ncclGetErrorString)     \
  X(ncclGetLastError)       \
  X(ncclAllReduce)          \
  X(ncclBroadcast)          \
  X(ncclReduce)             \
  X(ncclAllGather)          \
  X(ncclReduceScatter)      \
  X(ncclSend)               \
  X(ncclRecv)               \
  X(ncclGroupStart)         \
  X(ncclGroupEnd)           \
  X(ncclCommSplit)

DM_LIBRARY(nccl, ENTRIES, "libnccl.so.2", "libnccl.so")

struct dm_Link {
  ncclComm_t comm;
  dm_Device dev;
  cudaStream_t stream;
  int n, rank;
};

/* ---- the library ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the three */
static dm_PlanState state;
static char missing[DM_PLAN_TEXT];

/* Notes what became of the library. */
static void set_state(dm_PlanState how) {
  state = how;
  dm_plan_state(DM_NCCL, how, missing);
}

/* Opens the library, and asks for its version: major * 10000 + minor * 100 + patch. */
static void open_library(void) {
  int version = 0;
  if (dm_cuda_is_off("DEMILUNE_NCCL")) {
    snprintf(missing, sizeof missing, "DEMILUNE_NCCL=0");
    set_state(DM_PLAN_OFF);
    return;
  }
  const bool is_open = nccl_open(missing, sizeof missing);
  if (nccl.ncclGetVersion && nccl.ncclGetVersion(&version) == ncclSuccess && version < OLDEST)
    snprintf(missing, sizeof missing, "libnccl.so.2 is version %d.%d.%d, wanted 2.18 or newer",
             version >= 10000 ? version / 10000 : version / 1000,
             version >= 10000 ? version / 100 % 100 : version / 100 % 10, version % 100);
  else if (is_open) *missing = 0;
  set_state(*missing ? DM_PLAN_MISSING : DM_PLAN_OPEN);
}

/* Why this process cannot link its device, or NULL. The library is tried once. */
static const char *lacks(dm_Device dev) {
  DM_UNUSED(dev);
  pthread_mutex_lock(&lock);
  if (state == DM_PLAN_UNTRIED) open_library();
  pthread_mutex_unlock(&lock);
  return state == DM_PLAN_OPEN ? NULL : missing;
}

/* Fails with the call and NCCL's own message. */
static dm_status fail(const dm_Link *link, ncclResult_t e, const char *what) {
  const char *more = link && link->comm ? nccl.ncclGetLastError(link->comm) : NULL;
  return dm_fail(DM_EDEV, "nccl: %s (in %s)%s%s", nccl.ncclGetErrorString(e), what,
                 more && *more ? ": " : "", more ? more : "");
}

/* Whether a call was taken: done, or going on in the background. */
static bool is_well(ncclResult_t e) { return e == ncclSuccess || e == ncclInProgress; }

/* ---- links ---- */

/* NCCL refuses a GPU twice by its bus and its machine, and so do these words: the name of the
   host, the boot of its kernel (containers may share the name), the PCI bus. */
static dm_status identity(dm_Device dev, char out[DM_GPU_TEXT]) {
  char host[64] = "", boot[40] = "", bus[24] = "";
  gethostname(host, sizeof host - 1);
  FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
  if (f && !fgets(boot, sizeof boot, f)) *boot = 0;
  if (f) fclose(f);
  boot[strcspn(boot, "\n")] = 0;
  DM_CUDA_TRY(cudaDeviceGetPCIBusId(bus, sizeof bus, dev.index));
  snprintf(out, DM_GPU_TEXT, "%s %s %s", host, boot, bus);
  return DM_OK;
}

/* The number by which the ranks of a link find one another; the first rank makes it. */
static dm_status new_id(char out[DM_LINK_ID_BYTES]) {
  ncclUniqueId id;
  _Static_assert(sizeof id == DM_LINK_ID_BYTES, "NCCL's number has another size");
  const ncclResult_t e = nccl.ncclGetUniqueId(&id);
  if (e != ncclSuccess) return fail(NULL, e, "ncclGetUniqueId");
  memcpy(out, &id, sizeof id);
  return DM_OK;
}

/* A communicator whose calls return at once; all else as NCCL or its environment chooses. */
static ncclConfig_t configuration(void) {
  const int as_ever = NCCL_CONFIG_UNDEF_INT;
  return (ncclConfig_t){.size = sizeof(ncclConfig_t),
                        .magic = NCCL_CONFIG_MAGIC,
                        .version = NCCL_CONFIG_VERSION,
                        .blocking = 0,
                        .cgaClusterSize = as_ever,
                        .minCTAs = as_ever,
                        .maxCTAs = as_ever,
                        .netName = NULL,
                        .splitShare = as_ever};
}

/* Makes the device current in this thread, and opens it. */
static dm_status use(dm_Device dev) {
  cudaStream_t stream;
  return dm_cuda_current(dev.index, &stream);
}

/* A link whose communicator is still missing. */
static dm_status new_link(dm_Device dev, int n, int rank, dm_Link **out) {
  DM_TRY(use(dev));
  dm_Link *link = dm_alloc_zero(sizeof *link);
  if (!link) return dm_fail(DM_EMEM, "nccl: out of memory");
  *link = (dm_Link){.dev = dev, .n = n, .rank = rank};
  const cudaError_t e = cudaStreamCreateWithFlags(&link->stream, cudaStreamNonBlocking);
  if (e != cudaSuccess) {
    dm_free(link);
    return dm_cuda_fail(e, "cudaStreamCreateWithFlags");
  }
  *out = link;
  return DM_OK;
}

/* Waits until the communicator has ended what is under way, for END at most. */
static bool has_ended(const dm_Link *link) {
  const struct timespec nap = {.tv_nsec = 1000000};
  ncclResult_t e = ncclInProgress;
  for (double waited = 0; waited < END; waited += 1e-9 * (double)nap.tv_nsec) {
    if (nccl.ncclCommGetAsyncError(link->comm, &e) != ncclSuccess) return false;
    if (e != ncclInProgress) return e == ncclSuccess;
    nanosleep(&nap, NULL);
  }
  return false;
}

/* Ends a link. well: all ranks end it, so that what is queued may end first; else, and where
   that takes longer than END, its kernels are stopped. */
static void unlink_ranks(dm_Link **at, bool well) {
  dm_Link *link = *at;
  *at = NULL;
  if (!link) return;
  if (use(link->dev) == DM_OK && link->comm) {
    if (well && is_well(nccl.ncclCommFinalize(link->comm)) && has_ended(link))
      nccl.ncclCommDestroy(link->comm);
    else nccl.ncclCommAbort(link->comm);
  }
  cudaStreamDestroy(link->stream);
  dm_free(link);
}

/* Begins to link n ranks by the number `id`; ready() tells when all have come. */
static dm_status link_ranks(dm_Device dev, const char id[DM_LINK_ID_BYTES], int n, int rank,
                            dm_Link **out) {
  ncclUniqueId number;
  ncclConfig_t config = configuration();
  DM_TRY(new_link(dev, n, rank, out));
  memcpy(&number, id, sizeof number);
  const ncclResult_t e = nccl.ncclCommInitRankConfig(&(*out)->comm, n, number, rank, &config);
  if (is_well(e)) return DM_OK;
  unlink_ranks(out, false);
  return fail(NULL, e, "ncclCommInitRankConfig");
}

/* 1: the last call on the link is queued; 0: not yet; -1: it failed, and dm_error() says why.
 */
static int ready(dm_Link *link) {
  ncclResult_t e = ncclSuccess, asked = nccl.ncclCommGetAsyncError(link->comm, &e);
  if (asked == ncclSuccess && e == ncclInProgress) return 0;
  if (asked == ncclSuccess && e == ncclSuccess) return 1;
  fail(link, asked == ncclSuccess ? e : asked, "ncclCommGetAsyncError");
  return -1;
}

/* ---- events ---- */

/* A new event behind what is queued on the stream. */
static dm_status record(cudaStream_t stream, void **event) {
  cudaEvent_t e = NULL;
  DM_CUDA_TRY(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
  const cudaError_t failed = cudaEventRecord(e, stream);
  if (failed != cudaSuccess) {
    cudaEventDestroy(e);
    return dm_cuda_fail(failed, "cudaEventRecord");
  }
  *event = e;
  return DM_OK;
}

/* An event behind all that the link's stream has got. */
static dm_status mark_link(dm_Link *link, void **event) {
  DM_TRY(use(link->dev));
  return record(link->stream, event);
}

/* An event behind all that the caller's stream has got, which a collective waits for. */
static dm_status mark(dm_Device dev, void **event) {
  cudaStream_t stream;
  DM_TRY(dm_graph_refuse("a collective of several processes"));
  DM_TRY(dm_cuda_current(dev.index, &stream));
  return record(stream, event);
}

/* Lets the caller's stream wait for the event of a collective; the host goes on. */
static dm_status follow(dm_Device dev, void *event) {
  cudaStream_t stream;
  DM_TRY(dm_graph_refuse("waiting for a collective of several processes"));
  DM_TRY(dm_cuda_current(dev.index, &stream));
  DM_CUDA_TRY(cudaStreamWaitEvent(stream, event, 0));
  return DM_OK;
}

/* 1: the event has happened; 0: not yet; -1: it or the link failed. */
static int passed(dm_Link *link, void *event) {
  const int state_of_link = ready(link);
  if (state_of_link < 0 || use(link->dev) != DM_OK) return -1;
  const cudaError_t e = cudaEventQuery(event);
  if (e == cudaSuccess) return 1;
  (void)cudaGetLastError();
  if (e == cudaErrorNotReady) return 0;
  dm_cuda_fail(e, "cudaEventQuery");
  return -1;
}

/* ---- collectives ---- */

/* NCCL's numbers of the floats of base/dtypes.def. */
enum { TYPE_f16 = ncclFloat16, TYPE_bf16 = ncclBfloat16 };

/* NCCL's number of a dtype that it adds up, or -1: it knows no bool and no int16. */
static int type_of(dm_DType dtype) {
#define ROW(X, E, S, ...) \
  case DM_##E: return TYPE_##S;
  switch (dtype) {
    DM_LOW_DTYPES(ROW, )
  case DM_U8: return ncclUint8;
  case DM_I8: return ncclInt8;
  case DM_I32: return ncclInt32;
  case DM_I64: return ncclInt64;
  case DM_F32: return ncclFloat32;
  case DM_F64: return ncclFloat64;
  default: return -1;
  }
#undef ROW
}

/* NCCL's number of an operator. */
static ncclRedOp_t op_of(dm_CollectiveOp op) {
  static const ncclRedOp_t ops[DM_N_COLLECTIVE_OP] = {[DM_COLLECTIVE_SUM] = ncclSum,
                                                      [DM_COLLECTIVE_AVG] = ncclAvg,
                                                      [DM_COLLECTIVE_MIN] = ncclMin,
                                                      [DM_COLLECTIVE_MAX] = ncclMax,
                                                      [DM_COLLECTIVE_PRODUCT] = ncclProd};
  return ops[op];
}

/* Whether the elements are combined, so that their dtype counts. */
static bool is_reduction(dm_CollectiveKind kind) {
  return kind == DM_COLLECTIVE_ALL_REDUCE || kind == DM_COLLECTIVE_REDUCE ||
         kind == DM_COLLECTIVE_REDUCE_SCATTER;
}

/* NCCL's min and max drop NaN, which ours keep: those of floats are not for it. */
static bool takes(dm_CollectiveKind kind, dm_CollectiveOp op, dm_DType dtype) {
  const bool is_extreme = op == DM_COLLECTIVE_MIN || op == DM_COLLECTIVE_MAX;
  if (!is_reduction(kind)) return true;
  return op < DM_N_COLLECTIVE_OP && type_of(dtype) >= 0 && !(is_extreme && dm_is_float(dtype));
}

/* Sends and receives within one group, n_bytes a part; a NULL side has none. */
typedef struct Exchange {
  const char *in;
  char *out;
  bool sends_parts, gets_parts; /* one for each rank; else one in all */
  size_t n_bytes;
} Exchange;

/* What this rank exchanges with another one. */
static ncclResult_t exchange_with(const dm_Link *link, const Exchange *x, int peer) {
  const size_t at = (size_t)peer * x->n_bytes;
  ncclResult_t e = ncclSuccess;
  if (x->in)
    e = nccl.ncclSend(x->in + (x->sends_parts ? at : 0), x->n_bytes, ncclUint8, peer,
                      link->comm, link->stream);
  if (x->out && is_well(e))
    e = nccl.ncclRecv(x->out + (x->gets_parts ? at : 0), x->n_bytes, ncclUint8, peer,
                      link->comm, link->stream);
  return e;
}

/* Queues a gather, a scatter or an exchange: the root of the first two speaks with all, itself
   too, the others with it alone. */
static ncclResult_t exchange(const dm_Link *link, const dm_Collective *c, size_t n_bytes) {
  const bool is_root = link->rank == c->peer, is_gather = c->kind == DM_COLLECTIVE_GATHER,
             to_all = c->kind == DM_COLLECTIVE_ALL_TO_ALL;
  const Exchange all = {.in = c->in,
                        .out = c->out,
                        .sends_parts = !is_gather,
                        .gets_parts = c->kind != DM_COLLECTIVE_SCATTER,
                        .n_bytes = n_bytes};
  /* the root's own part, and its parts for and of the others */
  Exchange own = all, others = all;
  if (!to_all && is_gather) others.in = NULL;
  if (!to_all && !is_gather) others.out = NULL;
  ncclResult_t e = nccl.ncclGroupStart();
  if (to_all || is_root) {
    for (int i = 0; i < link->n && is_well(e); i++)
      e = exchange_with(link, i == link->rank ? &own : &others, i);
  } else if (is_well(e)) {
    e = exchange_with(link, &all, c->peer);
  }
  const ncclResult_t ended = nccl.ncclGroupEnd();
  return is_well(e) ? ended : e;
}

/* Queues an exchange of parts whose sizes differ, in rows of so many bytes. */
static ncclResult_t exchange_uneven(const dm_Link *link, const dm_Collective *c, size_t row) {
  const int64_t *go = c->sizes, *come = go + link->n;
  const char *in = c->in;
  char *out = c->out;
  ncclResult_t e = nccl.ncclGroupStart();
  for (int i = 0; i < link->n && is_well(e); i++) {
    const size_t gives = (size_t)go[i] * row, gets = (size_t)come[i] * row;
    if (gives) e = nccl.ncclSend(in, gives, ncclUint8, i, link->comm, link->stream);
    if (gets && is_well(e))
      e = nccl.ncclRecv(out, gets, ncclUint8, i, link->comm, link->stream);
    if (gives) in += gives; /* a tensor without elements has no memory */
    if (gets) out += gets;
  }
  const ncclResult_t ended = nccl.ncclGroupEnd();
  return is_well(e) ? ended : e;
}

/* Gives a collective to NCCL. c->n counts elements of one part, as NCCL does. */
static ncclResult_t queue(const dm_Link *link, const dm_Collective *c) {
  const ncclDataType_t type = (ncclDataType_t)type_of(c->dtype);
  const size_t n = (size_t)c->n, n_bytes = n * (size_t)dm_dtype_size(c->dtype);
  const ncclRedOp_t op = op_of(c->op);
  switch (c->kind) {
  case DM_COLLECTIVE_ALL_REDUCE:
    return nccl.ncclAllReduce(c->in, c->out, n, type, op, link->comm, link->stream);
  case DM_COLLECTIVE_REDUCE:
    return nccl.ncclReduce(c->in, c->out, n, type, op, c->peer, link->comm, link->stream);
  case DM_COLLECTIVE_REDUCE_SCATTER:
    return nccl.ncclReduceScatter(c->in, c->out, n, type, op, link->comm, link->stream);
  case DM_COLLECTIVE_BROADCAST:
    return nccl.ncclBroadcast(c->in, c->out, n_bytes, ncclUint8, c->peer, link->comm,
                              link->stream);
  case DM_COLLECTIVE_ALL_GATHER:
    return nccl.ncclAllGather(c->in, c->out, n_bytes, ncclUint8, link->comm, link->stream);
  default: return c->sizes ? exchange_uneven(link, c, n_bytes) : exchange(link, c, n_bytes);
  }
}

/* Begins a collective behind the event c->before. It goes on by itself; ready() tells when it
   is queued, mark_link() gives the event behind it. */
static dm_status post(dm_Link *link, const dm_Collective *c) {
  static const char *const names[] = {[DM_COLLECTIVE_ALL_REDUCE] = "ncclAllReduce",
                                      [DM_COLLECTIVE_BROADCAST] = "ncclBroadcast",
                                      [DM_COLLECTIVE_REDUCE] = "ncclReduce",
                                      [DM_COLLECTIVE_ALL_GATHER] = "ncclAllGather",
                                      [DM_COLLECTIVE_GATHER] = "a gather",
                                      [DM_COLLECTIVE_SCATTER] = "a scatter",
                                      [DM_COLLECTIVE_ALL_TO_ALL] = "an exchange",
                                      [DM_COLLECTIVE_REDUCE_SCATTER] = "ncclReduceScatter"};
  DM_TRY(use(link->dev));
  DM_CUDA_TRY(cudaStreamWaitEvent(link->stream, c->before, 0));
  const ncclResult_t e = queue(link, c);
  return is_well(e) ? DM_OK : fail(link, e, names[c->kind]);
}

/* Splits a link: its ranks of colour 0 make the new one, in their order. */
static dm_status split(dm_Link *link, int n, int rank, dm_Link **out) {
  ncclConfig_t config = configuration();
  ncclComm_t none = NULL;
  const bool is_member = rank >= 0;
  *out = NULL;
  if (is_member) DM_TRY(new_link(link->dev, n, rank, out));
  else DM_TRY(use(link->dev));
  const ncclResult_t e =
      nccl.ncclCommSplit(link->comm, is_member ? 0 : NCCL_SPLIT_NOCOLOR, link->rank,
                         is_member ? &(*out)->comm : &none, &config);
  if (is_well(e)) return DM_OK;
  unlink_ranks(out, false);
  return fail(link, e, "ncclCommSplit");
}

const dm_CollectiveOps dm_nccl_ops = {.name = "NCCL",
                                      .lacks = lacks,
                                      .identity = identity,
                                      .takes = takes,
                                      .new_id = new_id,
                                      .link = link_ranks,
                                      .split = split,
                                      .unlink = unlink_ranks,
                                      .post = post,
                                      .ready = ready,
                                      .mark_link = mark_link,
                                      .mark = mark,
                                      .follow = follow,
                                      .passed = passed};
