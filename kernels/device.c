/* The device table of CUDA (dm_DeviceOps): memory, copies, streams, events, and the record of
   faults that kernels note.

   A device is opened on first use. It has a default stream of its own, made with
   cudaStreamNonBlocking; CUDA's legacy stream would synchronise with all others. A thread's
   launches go to its current stream (dm_ThreadState.stream), and memory is ordered by streams
   (allocator.c). Nothing here waits for the device unless the caller asks for a value or for
   the wait itself. */
#include "kernels/cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/allocator.h"
#include "kernels/device.h"
#include "kernels/fill.h"
#include "kernels/graph.h"
#include "kernels/keep.h"
#include "kernels/module.h"
#include "kernels/nccl.h"
#include "kernels/optim.h"
#include "kernels/plans.h"

enum { MAX_DEVICE = 64, LISTED = 5, SIDE_STREAMS = 32 };

typedef struct Device {
  bool open;
  int processors, cache;         /* multiprocessors; bytes of the L2 cache */
  dm_Allocator *memory, *pinned; /* allocators of device memory and of pinned host memory */
  cudaStream_t stream;
  cudaStream_t side[SIDE_STREAMS]; /* handed out in turn; NULL: not made yet */
  unsigned next_side;
  dm_Fault *fault; /* pinned and mapped: kernels write it, the host reads it */
} Device;

static Device devices[MAX_DEVICE];
static int n_device;
static bool sync_always; /* DEMILUNE_SYNC=1: wait after each op */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The device that CUDA's calls of this thread refer to; -1: none yet. */
static _Thread_local int current = -1;

/* Turns CUDA's error into the engine's, with the call that failed. */
dm_status dm_cuda_fail(cudaError_t e, const char *what) {
  if (DM_LIKELY(e == cudaSuccess)) return DM_OK;
  return dm_fail(e == cudaErrorMemoryAllocation ? DM_EMEM : DM_EDEV, "cuda: %s (%s, in %s)%s",
                 cudaGetErrorString(e), cudaGetErrorName(e), what,
                 sync_always ? "" : "; hint: DEMILUNE_SYNC=1 names the op");
}

/* ---- raw memory for the allocator ---- */

/* The allocator's ctx is a Device; its index is CUDA's ordinal. */
static int ordinal(void *ctx) { return (int)((Device *)ctx - devices); }

/* Functions for the allocator: memory of this device, pinned memory, and events without
   timing, which are cheaper. */
static bool raw_alloc(void *ctx, int64_t n, void **out) {
  /* A capture allows it to threads that say that they mean it. */
  enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaError_t e = cudaSetDevice(current = ordinal(ctx));
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
  if (e == cudaSuccess) e = cudaMalloc(out, (size_t)n);
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
  if (e == cudaSuccess) return true;
  (void)cudaGetLastError(); /* the result reports it; clear it for later calls */
  return false;
}
static void raw_free(void *ctx, void *p, int64_t n) {
  DM_UNUSED(n);
  cudaSetDevice(current = ordinal(ctx));
  cudaFree(p);
}
static bool raw_pinned_alloc(void *ctx, int64_t n, void **out) {
  const cudaError_t e = cudaSetDevice(current = ordinal(ctx));
  if (e == cudaSuccess && cudaHostAlloc(out, (size_t)n, cudaHostAllocPortable) == cudaSuccess)
    return true;
  (void)cudaGetLastError();
  return false;
}
static void raw_pinned_free(void *ctx, void *p, int64_t n) {
  DM_UNUSED(n);
  cudaSetDevice(current = ordinal(ctx));
  cudaFreeHost(p);
}
static bool raw_event_new(void *ctx, void **event) {
  cudaEvent_t e = NULL;
  cudaSetDevice(current = ordinal(ctx));
  if (cudaEventCreateWithFlags(&e, cudaEventDisableTiming) != cudaSuccess) return false;
  *event = e;
  return true;
}
static void raw_event_record(void *ctx, void *event, void *stream) {
  DM_UNUSED(ctx);
  cudaEventRecord(event, stream);
}
static bool raw_event_done(void *ctx, void *event) {
  DM_UNUSED(ctx);
  return cudaEventQuery(event) == cudaSuccess;
}
static void raw_event_wait(void *ctx, void *event) {
  DM_UNUSED(ctx);
  cudaEventSynchronize(event);
}
static void raw_event_free(void *ctx, void *event) {
  DM_UNUSED(ctx);
  cudaEventDestroy(event);
}
#ifdef DM_EMULATED
static void raw_life(void *ctx, void *stream, void *p, int64_t n, bool begins) {
  DM_UNUSED(ctx);
  dm_emulated_life(stream, p, (size_t)n, begins);
}
#endif

/* ---- opening ---- */

/* Makes what a device needs. It may be called again after a failure, and then makes what is
   missing. */
static dm_status open_parts(Device *d) {
  dm_RawMemory raw = {d,
                      raw_alloc,
                      raw_free,
                      raw_event_new,
                      raw_event_record,
                      raw_event_done,
                      raw_event_wait,
                      raw_event_free,
                      NULL,
                      NULL};
  /* The pinned allocator differs in where its memory comes from. */
  dm_RawMemory raw_pinned = raw;
  raw_pinned.alloc = raw_pinned_alloc;
  raw_pinned.free = raw_pinned_free;
#ifdef DM_EMULATED
  raw.life = raw_life;
#endif
  void *fault = NULL;
  DM_CUDA_TRY(
      cudaDeviceGetAttribute(&d->processors, cudaDevAttrMultiProcessorCount, ordinal(d)));
  DM_CUDA_TRY(cudaDeviceGetAttribute(&d->cache, cudaDevAttrL2CacheSize, ordinal(d)));
  if (!d->stream) DM_CUDA_TRY(cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking));
  if (!d->fault) {
    DM_CUDA_TRY(
        cudaHostAlloc(&fault, sizeof(dm_Fault), cudaHostAllocPortable | cudaHostAllocMapped));
    memset(fault, 0, sizeof(dm_Fault));
    d->fault = fault;
  }
  if (!d->memory) d->memory = dm_allocator_new(&raw);
  if (!d->pinned) d->pinned = dm_allocator_new(&raw_pinned);
  if (!d->memory || !d->pinned)
    return dm_fail(DM_EMEM, "cuda: out of memory for a device's bookkeeping");
  d->open = true;
  return DM_OK;
}

/* Under the lock, so that two threads do not open a device twice. */
static dm_status open_device(int i) {
  Device *d = &devices[i];
  pthread_mutex_lock(&lock);
  const dm_status st = d->open ? DM_OK : open_parts(d);
  pthread_mutex_unlock(&lock);
  return st;
}

/* The stream of this thread's work on device i: its current one if that is of device i, else
   the device's default. */
static cudaStream_t stream_of(int i) {
  const dm_Stream *s = &dm_thread_state()->stream;
  return DM_UNLIKELY(s->handle != NULL) && s->device.index == i ? s->handle : devices[i].stream;
}

/* Makes device i the one that this thread's CUDA calls refer to, and opens it. */
static dm_status use(int i) {
  if (DM_UNLIKELY(dm_graph_is_capturing())) DM_TRY(dm_graph_check_stream(i, stream_of(i)));
  if (DM_LIKELY(current == i && devices[i].open)) return DM_OK;
  if (i >= n_device)
    return dm_fail(DM_EDEV, "no device cuda:%d: there are %d (ordinals count from 0)", i,
                   n_device);
  DM_CUDA_TRY(cudaSetDevice(i));
  current = i;
  return devices[i].open ? DM_OK : open_device(i);
}

cudaStream_t dm_cuda_stream(void) { return stream_of(current); }
int dm_cuda_device(void) { return current; }
int dm_cuda_processors(void) { return devices[current].processors; }
int dm_cuda_cache(void) { return devices[current].cache; }
dm_Fault *dm_cuda_faults(void) { return devices[current].fault; }

/* ---- faults ---- */

/* Raises a fault as an error message with the op, the element and the value, counted as the
   caller counts. */
static dm_status tell(const dm_Fault *f) {
  const char *op = f->op >= 0 && f->op < DM_N_OP ? dm_ops[f->op].name : "?";
  /* an op without a name in Lua is a step of x[key] or index_put */
  if (f->kind == DM_FAULT_INDEX && *op != '?' && dm_ops[f->op].flags & F_HIDDEN) op = "index";
  const long long position = (long long)f->position + 1, value = (long long)f->value;
  const long long first = f->base, last = (long long)f->size - 1 + f->base;
  switch ((dm_FaultKind)f->kind) {
  case DM_FAULT_INDEX:
    return dm_fail(DM_EARG,
                   "%s: index %lld (element %lld) is out of range, wanted %lld to %lld", op,
                   value, position, first, last);
  case DM_FAULT_LABEL:
    return dm_fail(DM_EARG, "%s: label %lld at position %lld is out of range %lld to %lld", op,
                   value, position, first, last);
  case DM_FAULT_ZERO: return dm_fail(DM_EARG, "%s: integer division by zero", op);
  case DM_FAULT_WEIGHTS:
    return dm_fail(DM_EARG, "%s: row %lld has weights that cannot be drawn from", op, position);
  case DM_FAULT_PROBABILITY:
    return dm_fail(DM_EARG, "%s: element %lld is no probability, wanted 0 to 1", op, position);
  default: return dm_fail(DM_EDEV, "%s: a fault of kind %d", op, (int)f->kind);
  }
}

/* Raises the fault that finished work has noted, if any, and clears the record. */
dm_status dm_cuda_check_faults(int i) {
  dm_Fault *f = devices[i].fault;
  if (DM_LIKELY(!f->taken)) return DM_OK;
  const dm_Fault seen = *f;
  memset(f, 0, sizeof *f);
  return tell(&seen);
}

/* Waiting is when faults are raised. */
static dm_status wait_for(int i, cudaStream_t stream) {
  DM_TRY(dm_graph_refuse("waiting for the device"));
  DM_CUDA_TRY(cudaStreamSynchronize(stream));
  return dm_cuda_check_faults(i);
}

/* ---- the engine's table ---- */

static int count(void) { return n_device; }

/* `begin` comes before an op's kernel function; `end` waits if DEMILUNE_SYNC asks for it. */
static dm_status begin(dm_Device dev) { return use(dev.index); }
static dm_status end(dm_Device dev) {
  return DM_UNLIKELY(sync_always) && !dm_graph_is_capturing()
             ? wait_for(dev.index, stream_of(dev.index))
             : DM_OK;
}

/* The sizes of the largest blocks in use, for the message below. */
typedef struct Largest {
  int64_t n[LISTED];
} Largest;

static void note_block(void *ctx, void *p, int64_t n) {
  Largest *l = ctx;
  DM_UNUSED(p);
  for (int k = 0; k < LISTED; k++) {
    if (n <= l->n[k]) continue;
    const int64_t smaller = l->n[k];
    l->n[k] = n;
    n = smaller;
  }
}

static double mib(int64_t n) { return (double)n / 1048576.0; }

/* Fails with what is in use, what the allocator holds, and the largest tensors. */
static dm_status no_memory(int i, int64_t n) {
  Largest l = {{0}};
  char list[160] = "";
  const dm_AllocatorUsage usage = dm_allocator_usage(devices[i].memory);
  dm_allocator_each_live(devices[i].memory, note_block, &l);
  /* Writes the sizes as a list. */
  for (int k = 0, at = 0; k < LISTED && l.n[k] > 0; k++)
    at += snprintf(list + at, sizeof list - (size_t)at, "%s%.1f", k ? ", " : "", mib(l.n[k]));
  return dm_fail(DM_EMEM,
                 "cuda:%d: out of memory: %.1f MiB asked for, %.1f MiB in use, %.1f MiB held; "
                 "the largest tensors have %s MiB; hint: a smaller batch, amp.autocast, or "
                 "dm.scope() to free what a step leaves",
                 i, mib(n), mib(usage.allocated), mib(usage.reserved), list[0] ? list : "0");
}

/* Tensors' memory, from the current stream's pool. */
static dm_status cuda_alloc(dm_Device dev, int64_t n, void **out) {
  DM_TRY(use(dev.index));
  const dm_status st = dm_allocator_alloc(
      devices[dev.index].memory, dm_graph_pool(dev.index, stream_of(dev.index)), n, out);
  return DM_LIKELY(st == DM_OK) ? DM_OK : no_memory(dev.index, n);
}

static void cuda_free(dm_Device dev, void *p, int64_t n) {
  DM_UNUSED(n);
  dm_allocator_free(devices[dev.index].memory, p);
}

/* Scratch memory comes from the same allocator; freed, it serves later launches of the stream
   at once. */
dm_status dm_cuda_scratch(int64_t n_bytes, void **out) {
  const dm_Device dev = {DM_CUDA, (uint8_t)current};
  return cuda_alloc(dev, n_bytes > 0 ? n_bytes : 1, out);
}
void dm_cuda_scratch_free(void *p, int64_t n_bytes) {
  const dm_Device dev = {DM_CUDA, (uint8_t)current};
  if (p) cuda_free(dev, p, n_bytes);
}

void dm_cuda_give_back(int device, void *p) { dm_allocator_free(devices[device].memory, p); }

static dm_status no_pinned(int i, int64_t n) {
  return dm_fail(DM_EMEM, "cuda:%d: no %.1f MiB of the host's memory to pin", i, mib(n));
}

/* Copies through a pinned block, so that the call neither waits nor keeps the caller's bytes.
   The block is freed at once, but record_stream keeps it until the copy is done. */
dm_status dm_cuda_send(void *dst, const void *bytes, int64_t n_bytes) {
  dm_Allocator *pinned = devices[current].pinned;
  const cudaStream_t stream = stream_of(current);
  void *p;
  DM_TRY(dm_graph_refuse("a copy of the host's numbers"));
  if (dm_allocator_alloc(pinned, NULL, n_bytes, &p) != DM_OK)
    return no_pinned(current, n_bytes);
  cudaError_t e = cudaErrorMemoryAllocation;
  if (dm_allocator_record_stream(pinned, p, stream) == DM_OK) {
    memcpy(p, bytes, (size_t)n_bytes);
    e = cudaMemcpyAsync(dst, p, (size_t)n_bytes, cudaMemcpyHostToDevice, stream);
  }
  dm_allocator_free(pinned, p);
  return dm_cuda_fail(e, "cudaMemcpyAsync");
}

/* Device `after`'s stream waits for what is queued on that of `before` now. */
static dm_status wait_across(int after, int before) {
  cudaEvent_t passed = NULL;
  DM_TRY(use(before)); /* opened, so that it has a stream */
  DM_CUDA_TRY(cudaEventCreateWithFlags(&passed, cudaEventDisableTiming));
  dm_status st = dm_cuda_fail(cudaEventRecord(passed, stream_of(before)), "cudaEventRecord");
  if (st == DM_OK) st = use(after);
  if (st == DM_OK)
    st = dm_cuda_fail(cudaStreamWaitEvent(stream_of(after), passed, 0), "cudaStreamWaitEvent");
  cudaEventDestroy(passed);
  return st;
}

/* Copies between devices in the source's stream. It waits for the destination's stream, whose
   queued work may still use what was in dst before; that stream waits for the copy in turn, so
   that later work there sees the data. */
static dm_status copy_across(int to, void *dst, int from, const void *src, int64_t n) {
  DM_TRY(dm_graph_refuse("a copy between devices"));
  DM_TRY(wait_across(from, to));
  DM_CUDA_TRY(cudaMemcpyPeerAsync(dst, to, src, from, (size_t)n, stream_of(from)));
  return wait_across(to, from);
}

/* Notes that `stream` reads or writes the pinned block at p, so that it is not reused before
   the copy is done, even if it is freed. False if p is no such block: then the caller has to
   wait. */
static bool hold_pinned(int i, const void *p, cudaStream_t stream) {
  return dm_allocator_record_stream(devices[i].pinned, (void *)(intptr_t)p, stream) == DM_OK;
}

/* Copies n bytes between devices or with the host. `later`: the caller does not need the data
   now. Only copies with pinned memory of our own allocator can do without waiting; from
   pageable memory CUDA has read everything when cudaMemcpyAsync returns. */
static dm_status cuda_copy(dm_Device to, void *dst, dm_Device from, const void *src, int64_t n,
                           bool later) {
  if (n == 0) return DM_OK;
  /* From the device: pinned memory may be filled later, everything else is waited for. */
  if (to.type == DM_CPU) {
    DM_TRY(dm_graph_refuse("reading a tensor on the host"));
    DM_TRY(use(from.index));
    const cudaStream_t stream = stream_of(from.index);
    DM_CUDA_TRY(cudaMemcpyAsync(dst, src, (size_t)n, cudaMemcpyDeviceToHost, stream));
    return later && hold_pinned(from.index, dst, stream) ? DM_OK : wait_for(from.index, stream);
  }
  /* To the device. */
  if (from.type == DM_CPU) {
    DM_TRY(dm_graph_refuse("a copy from the host"));
    DM_TRY(use(to.index));
    const cudaStream_t stream = stream_of(to.index);
    struct cudaPointerAttributes where;
    /* The device reads pinned memory after the call returns, so the copy has to be waited for
       or the block held. */
    const bool pinned = cudaPointerGetAttributes(&where, src) == cudaSuccess &&
                        where.type == cudaMemoryTypeHost;
    (void)cudaGetLastError();
    DM_CUDA_TRY(cudaMemcpyAsync(dst, src, (size_t)n, cudaMemcpyHostToDevice, stream));
    if (!pinned || (later && hold_pinned(to.index, src, stream))) return DM_OK;
    return wait_for(to.index, stream);
  }
  if (to.index != from.index) return copy_across(to.index, dst, from.index, src, n);
  DM_TRY(use(to.index));
  DM_CUDA_TRY(
      cudaMemcpyAsync(dst, src, (size_t)n, cudaMemcpyDeviceToDevice, stream_of(to.index)));
  return DM_OK;
}

/* Copies between dtypes and strides are kernels (cast.cu). */
static dm_status cuda_copy_elements(dm_Tensor *out, dm_Tensor *in) {
  DM_TRY(begin(out->device));
  DM_TRY(dm_cuda_copy(out, in));
  return end(out->device);
}

static dm_status cuda_zero(dm_Device dev, void *dst, int64_t n) {
  DM_TRY(use(dev.index));
  DM_CUDA_TRY(cudaMemsetAsync(dst, 0, (size_t)n, stream_of(dev.index)));
  return DM_OK;
}

/* Waits for all streams of the device. */
static dm_status cuda_synchronize(dm_Device dev) {
  DM_TRY(dm_graph_refuse("waiting for the device"));
  DM_TRY(use(dev.index));
  DM_CUDA_TRY(cudaDeviceSynchronize());
  return dm_cuda_check_faults(dev.index);
}

/* NULL for a device that has not been opened: it has no memory to report. */
static dm_Allocator *memory_of(dm_Device dev) {
  return dev.index < n_device && devices[dev.index].open ? devices[dev.index].memory : NULL;
}
/* Kept tables go back to the allocator first. */
static void cuda_empty_cache(dm_Device dev) {
  if (!memory_of(dev) || dm_graph_is_capturing()) return;
  dm_cuda_keep_drop(dev.index);
  dm_allocator_empty_cache(memory_of(dev));
  dm_allocator_empty_cache(devices[dev.index].pinned);
}
static int64_t cuda_allocated_bytes(dm_Device dev) {
  return memory_of(dev) ? dm_allocator_allocated_bytes(memory_of(dev)) : 0;
}
static void cuda_stats(dm_Device dev, dm_MemStats *out) {
  memset(out, 0, sizeof *out);
  if (memory_of(dev)) dm_allocator_stats(memory_of(dev), out);
}
static void cuda_reset_peaks(dm_Device dev) {
  if (memory_of(dev)) dm_allocator_reset_peaks(memory_of(dev));
}
static void cuda_reset_totals(dm_Device dev) {
  if (memory_of(dev)) dm_allocator_reset_totals(memory_of(dev));
}

/* The name and memory of a device, as the driver reports them. */
static dm_status cuda_info(dm_Device dev, dm_DeviceInfo *out) {
  struct cudaDeviceProp p;
  size_t free_bytes, total;
  DM_TRY(use(dev.index));
  DM_CUDA_TRY(cudaGetDeviceProperties(&p, dev.index));
  DM_CUDA_TRY(cudaMemGetInfo(&free_bytes, &total));
  *out = (dm_DeviceInfo){.total_bytes = (int64_t)total,
                         .free_bytes = (int64_t)free_bytes,
                         .major = p.major,
                         .minor = p.minor,
                         .processors = p.multiProcessorCount};
  snprintf(out->name, sizeof out->name, "%.63s", p.name);
  return DM_OK;
}

/* ---- streams and events ---- */

/* Streams are handed out in turn, and reused rather than destroyed, because blocks of memory
   belong to them or wait for them. PyTorch also has a pool of 32 per device. */
static dm_status stream_new(dm_Device dev, void **out) {
  cudaError_t e = cudaSuccess;
  DM_TRY(use(dev.index));
  pthread_mutex_lock(&lock);
  Device *d = &devices[dev.index];
  cudaStream_t *s = &d->side[d->next_side++ % SIDE_STREAMS];
  if (!*s) e = cudaStreamCreateWithFlags(s, cudaStreamNonBlocking);
  *out = *s;
  pthread_mutex_unlock(&lock);
  return e == cudaSuccess ? DM_OK : dm_cuda_fail(e, "cudaStreamCreateWithFlags");
}
static void stream_free(dm_Device dev, void *stream) {
  DM_UNUSED(dev);
  DM_UNUSED(stream);
}
/* The default stream's handle is NULL outside this file. */
static cudaStream_t resolved(dm_Device dev, void *stream) {
  return stream ? stream : devices[dev.index].stream;
}
static dm_status stream_wait(dm_Device dev, void *stream, void *event) {
  DM_TRY(dm_graph_refuse("a wait of a stream"));
  DM_TRY(use(dev.index));
  DM_CUDA_TRY(cudaStreamWaitEvent(resolved(dev, stream), event, 0));
  return DM_OK;
}
static dm_status stream_synchronize(dm_Device dev, void *stream) {
  DM_TRY(use(dev.index));
  return wait_for(dev.index, resolved(dev, stream));
}
static bool stream_idle(dm_Device dev, void *stream) {
  return use(dev.index) == DM_OK && !dm_graph_is_capturing() &&
         cudaStreamQuery(resolved(dev, stream)) == cudaSuccess;
}
static dm_status event_new(dm_Device dev, bool timing, void **out) {
  cudaEvent_t e = NULL;
  DM_TRY(use(dev.index));
  DM_CUDA_TRY(cudaEventCreateWithFlags(&e, timing ? cudaEventDefault : cudaEventDisableTiming));
  *out = e;
  return DM_OK;
}
static void event_free(dm_Device dev, void *event) {
  DM_UNUSED(dev);
  cudaEventDestroy(event);
}
static dm_status event_record(dm_Device dev, void *event, void *stream) {
  DM_TRY(dm_graph_refuse("an event"));
  DM_TRY(use(dev.index));
  DM_CUDA_TRY(cudaEventRecord(event, resolved(dev, stream)));
  return DM_OK;
}
static dm_status event_synchronize(dm_Device dev, void *event) {
  DM_TRY(dm_graph_refuse("waiting for an event"));
  DM_CUDA_TRY(cudaEventSynchronize(event));
  return dm_cuda_check_faults(dev.index);
}
static bool event_done(dm_Device dev, void *event) {
  DM_UNUSED(dev);
  return !dm_graph_is_capturing() && cudaEventQuery(event) == cudaSuccess;
}
static dm_status event_elapsed(void *from, void *to, double *milliseconds) {
  float ms;
  DM_CUDA_TRY(cudaEventElapsedTime(&ms, from, to));
  *milliseconds = (double)ms;
  return DM_OK;
}
/* Pinned memory for the loader and for copies, from a caching allocator too. */
static dm_status pinned_alloc(dm_Device dev, int64_t n, void **out) {
  DM_TRY(use(dev.index));
  const dm_status st = dm_allocator_alloc(devices[dev.index].pinned, NULL, n, out);
  return st == DM_OK ? DM_OK : no_pinned(dev.index, n);
}
static void pinned_free(void *p) {
  for (int i = 0; i < n_device; i++)
    if (devices[i].open && dm_allocator_free(devices[i].pinned, p)) return;
}
static int64_t pinned_bytes(dm_Device dev) {
  return memory_of(dev) ? dm_allocator_allocated_bytes(devices[dev.index].pinned) : 0;
}
/* A tensor's memory is used on another stream (PyTorch's record_stream). */
static dm_status record_use(dm_Device dev, void *p, void *stream) {
  const dm_status st =
      dm_allocator_record_stream(devices[dev.index].memory, p, resolved(dev, stream));
  return st == DM_OK
             ? DM_OK
             : dm_fail(st,
                       "record_stream: not a tensor's memory, or the host is out of memory");
}

/* ---- for graph.c ---- */

dm_status dm_cuda_current(int device, cudaStream_t *stream) {
  DM_TRY(use(device));
  *stream = stream_of(device); /* which use has opened */
  return DM_OK;
}
dm_status dm_cuda_pool_new(int device, void *graph, cudaStream_t *stream) {
  DM_TRY(dm_cuda_current(device, stream));
  if (dm_allocator_pool_new(devices[device].memory, graph, *stream)) return DM_OK;
  return dm_fail(DM_EMEM, "cuda: out of memory for a graph's pool");
}
void dm_cuda_pool_free(int device, void *graph) {
  dm_allocator_pool_free(devices[device].memory, graph);
}
void dm_cuda_hold_memory(int device, void *graph) {
  dm_allocator_hold(devices[device].memory, graph);
}
void dm_cuda_let_go(int device) { dm_allocator_let_go(devices[device].memory); }
void dm_cuda_pause_memory(int device, bool pause) {
  dm_allocator_pause(devices[device].memory, pause);
  dm_allocator_pause(devices[device].pinned, pause);
}

static const dm_StreamOps stream_ops = {
    .stream_new = stream_new,
    .stream_free = stream_free,
    .stream_wait = stream_wait,
    .stream_synchronize = stream_synchronize,
    .stream_idle = stream_idle,
    .event_new = event_new,
    .event_free = event_free,
    .event_record = event_record,
    .event_synchronize = event_synchronize,
    .event_done = event_done,
    .event_elapsed = event_elapsed,
    .pinned_alloc = pinned_alloc,
    .pinned_free = pinned_free,
    .pinned_bytes = pinned_bytes,
    .record_use = record_use,
};

static const dm_DeviceOps cuda_ops = {
    .count = count,
    .begin = begin,
    .end = end,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .copy = cuda_copy,
    .zero = cuda_zero,
    .copy_elements = cuda_copy_elements,
    .widen_all = dm_cuda_widen_all,
    .synchronize = cuda_synchronize,
    .empty_cache = cuda_empty_cache,
    .allocated_bytes = cuda_allocated_bytes,
    .stats = cuda_stats,
    .reset_peaks = cuda_reset_peaks,
    .reset_totals = cuda_reset_totals,
    .info = cuda_info,
#ifdef DM_EMULATED
    .count_of = dm_emulated_count,
    .work_of = dm_emulated_work,
#endif
    .plans = dm_plan_counts,
    .streams = &stream_ops,
    .graphs = &dm_cuda_graph_ops,
    .collectives = &dm_nccl_ops,
};

/* Finds the devices and registers them; returns why none can be used, or NULL. */
const char *dm_cuda_device_open(void) {
  const char *sync = getenv("DEMILUNE_SYNC");
  sync_always = sync && strcmp(sync, "0") != 0;
  const cudaError_t e = cudaGetDeviceCount(&n_device);
  if (e == cudaErrorInsufficientDriver)
    return "there is no NVIDIA driver, or it is older than this build's CUDA";
  if (e == cudaErrorNoDevice || (e == cudaSuccess && n_device == 0))
    return "the driver finds no NVIDIA GPU (CUDA_VISIBLE_DEVICES may hide it)";
  if (e != cudaSuccess) return cudaGetErrorString(e);
  if (n_device > MAX_DEVICE) n_device = MAX_DEVICE;
  dm_device_register(DM_CUDA, &cuda_ops);
  return NULL;
}
