/* The emulation's devices, memory, streams and counters; see cuda_runtime.h.

   A device's memory is one reserved range of addresses that can be neither
   read nor written but while a launch or a copy runs: host code that follows a
   device pointer crashes here as it would with a GPU. */
#include "internal.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

/* ---- errors and counters ------------------------------------------------------- */

static thread_local cudaError_t last_error = cudaSuccess;

cudaError_t dm_emulated_result(cudaError_t e) {
  if (e != cudaSuccess) last_error = e;
  return e;
}

const char *cudaGetErrorName(cudaError_t e) {
  switch (e) {
#define CASE(name, value, text) \
  case name: return #name;
    DM_EMULATED_ERRORS(CASE)
#undef CASE
  }
  return "unrecognized error code";
}
const char *cudaGetErrorString(cudaError_t e) {
  switch (e) {
#define CASE(name, value, text) \
  case name: return text;
    DM_EMULATED_ERRORS(CASE)
#undef CASE
  }
  return "unrecognized error code";
}
cudaError_t cudaPeekAtLastError(void) { return last_error; }
cudaError_t cudaGetLastError(void) {
  const cudaError_t e = last_error;
  last_error = cudaSuccess;
  return e;
}

static int64_t counters[N_COUNTERS];

void dm_emulated_add(dm_Counter what, int64_t n) {
  __atomic_fetch_add(&counters[what], n, __ATOMIC_RELAXED);
}
int64_t dm_emulated_count(const char *what) {
  static const char *const names[N_COUNTERS] = {
      "launch",    "copy",   "sync", "malloc", "free", "host_malloc",
      "host_free", "switch", "work", "node",   "read", "written"};
  for (int i = 0; i < N_COUNTERS; i++)
    if (strcmp(what, names[i]) == 0) return __atomic_load_n(&counters[i], __ATOMIC_RELAXED);
  return -1;
}

struct Piece {
  const char *name;
  uint64_t given;
  int64_t traffic[2]; /* bytes read, and written */
};
/* Guarded by enter and leave. */
static Piece work[8192]; /* piece i at i % 8192 */
static Piece *noted;     /* since the memory was opened */

void dm_emulated_note(const char *name, cudaStream_t s, uint64_t given) {
  static cudaStream_t last;
  if (s != last) dm_emulated_add(SWITCHES);
  last = s;
  dm_emulated_add(WORK);
  noted = &work[counters[WORK] % 8192];
  *noted = Piece{name, dm_emulated_hash(given, &s, sizeof s), {0, 0}};
}
const char *dm_emulated_work(int64_t i, int64_t seen[3]) {
  dm_emulated_enter(0);
  const Piece piece = work[(uint64_t)i % 8192];
  const bool known = i > 0 && i <= counters[WORK] && i > counters[WORK] - 8192;
  dm_emulated_leave();
  seen[0] = (int64_t)piece.given;
  seen[1] = piece.traffic[0];
  seen[2] = piece.traffic[1];
  return known ? piece.name : nullptr;
}

/* ---- devices ------------------------------------------------------------------- */

struct Block {
  size_t offset, size; /* pages taken */
  size_t asked;        /* bytes asked for */
};
struct Device {
  char *base;    /* the reserved range, `limit` bytes */
  Block *blocks; /* by falling address, so that the last one is cheap to reach */
  int n_blocks, capacity;
  size_t used;
  unsigned peers; /* whose memory its kernels may touch: a bit each; atomic */
};
/* Guarded by `lock`; `base` is fixed at the start. */
static Device devices[MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Fixed at the start. */
static int n_devices;      /* negative: the driver is said to be too old */
static size_t limit, page; /* bytes of a device; bytes of a page */
static bool always_open, counts_traffic;
static pthread_once_t started = PTHREAD_ONCE_INIT;

static thread_local int current;

static long long setting(const char *name, long long otherwise) {
  const char *s = getenv(name);
  return s && *s ? atoll(s) : otherwise;
}

static int owner(const void *p);
static unsigned opened;    /* the devices whose memory is open, a bit each; guarded by `lock` */
static int64_t traffic[2]; /* bytes of the pages that were read, and written, since then */

/* Where traffic is counted, opened memory stays closed until it is touched: then its page opens
   for what the instruction does, and is counted. */
static bool count_page(void *at, void *context) {
  const int device = owner(at);
  if (!counts_traffic || device < 0 || !(opened >> device & 1)) return false;
#ifdef __x86_64__
  const bool writes = ((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2;
#else
  const bool writes = true; /* not told */
  (void)context;
#endif
  char *const first = (char *)((uintptr_t)at / page * page);
  if (mprotect(first, page, writes ? PROT_READ | PROT_WRITE : PROT_READ) != 0) {
    perror("demilune emulation: mprotect"); /* vm.max_map_count limits the pieces */
    abort();
  }
  traffic[writes] += (int64_t)page;
  return true;
}

/* Says who it was, and leaves the rest to whoever was asked before: the
   instruction runs again. */
static struct sigaction before_fault;
static void on_fault(int, siginfo_t *info, void *context) {
  if (count_page(info->si_addr, context)) return;
  sigaction(SIGSEGV, &before_fault, nullptr);
  dm_emulated_tell_fault(info->si_addr, owner(info->si_addr) >= 0);
}

static void start(void) {
  n_devices = (int)setting("DEMILUNE_EMULATED_DEVICES", 2);
  if (n_devices > MAX_DEVICES) n_devices = MAX_DEVICES;
  page = (size_t)sysconf(_SC_PAGESIZE);
  limit = (size_t)setting("DEMILUNE_EMULATED_MEMORY", 4ll << 30) / page * page;
  counts_traffic = setting("DEMILUNE_EMULATED_TRAFFIC", 0) != 0;
  always_open = setting("DEMILUNE_EMULATED_OPEN", 0) != 0 && !counts_traffic;
  dm_emulated_start_queue((int)setting("DEMILUNE_EMULATED_LATE", 0));
  dm_emulated_start_order((int)setting("DEMILUNE_EMULATED_ORDER", 0));
  const int access = always_open ? PROT_READ | PROT_WRITE : PROT_NONE;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  for (int i = 0; i < n_devices && limit > 0; i++) {
    void *p = mmap(nullptr, limit, access, flags, -1, 0);
    if (p == MAP_FAILED) {
      fprintf(stderr, "demilune emulation: no memory for %zu bytes of a device\n", limit);
      abort();
    }
    /* Pages of 2 MiB: opening and closing takes time by the page. */
    madvise(p, limit, counts_traffic ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
    devices[i].base = (char *)p;
  }
  struct sigaction act = {};
  act.sa_sigaction = on_fault;
  act.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &act, &before_fault);
}

static cudaError_t ready(void) {
  pthread_once(&started, start);
  return n_devices > 0    ? cudaSuccess
         : n_devices == 0 ? cudaErrorNoDevice
                          : cudaErrorInsufficientDriver;
}
static cudaError_t ready_device(int device) {
  const cudaError_t e = ready();
  if (e != cudaSuccess) return e;
  return device >= 0 && device < n_devices ? cudaSuccess : cudaErrorInvalidDevice;
}

static void protect(unsigned mask, int access) {
  if (always_open) return;
  for (int i = 0; i < n_devices; i++) {
    const Device *d = &devices[i];
    if (!(mask >> i & 1) || d->n_blocks == 0) continue;
    const size_t end = d->blocks[0].offset + d->blocks[0].size;
    if (mprotect(d->base, end, access) != 0) {
      perror("demilune emulation: mprotect");
      abort();
    }
  }
}
void dm_emulated_open(unsigned mask) {
  protect(opened & ~mask, PROT_NONE);
  if (!counts_traffic) protect(mask & ~opened, PROT_READ | PROT_WRITE);
  opened = mask;
}
void dm_emulated_enter(unsigned mask) {
  pthread_mutex_lock(&lock);
  dm_emulated_open(mask);
}
void dm_emulated_leave(void) {
  dm_emulated_open(0);
  for (int i = 0; i < 2; i++) {
    dm_emulated_add(i ? WRITTEN : READ, traffic[i]);
    if (noted) noted->traffic[i] = traffic[i];
    traffic[i] = 0;
  }
  noted = nullptr;
  pthread_mutex_unlock(&lock);
}
unsigned dm_emulated_reach(void) {
  return 1u << current | __atomic_load_n(&devices[current].peers, __ATOMIC_RELAXED);
}

cudaError_t cudaDriverGetVersion(int *version) {
  const cudaError_t e = ready();
  /* Without a driver the version is 0. */
  *version = e == cudaSuccess ? CUDART_VERSION : e == cudaErrorNoDevice ? 0 : 11000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *count) {
  const cudaError_t e = ready();
  *count = e == cudaSuccess ? n_devices : 0;
  return dm_emulated_result(e);
}
cudaError_t cudaSetDevice(int device) {
  const cudaError_t e = ready_device(device);
  if (e == cudaSuccess) current = device;
  return dm_emulated_result(e);
}
cudaError_t cudaGetDevice(int *device) {
  const cudaError_t e = ready();
  if (e == cudaSuccess) *device = current;
  return dm_emulated_result(e);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device) {
  const cudaError_t e = ready_device(device);
  if (e != cudaSuccess) return dm_emulated_result(e);
  memset(prop, 0, sizeof *prop);
  snprintf(prop->name, sizeof prop->name, "Emulated CUDA device");
  prop->totalGlobalMem = limit;
  prop->sharedMemPerBlock = STATIC_SHARED;
  prop->sharedMemPerBlockOptin = MAX_SHARED;
  prop->sharedMemPerMultiprocessor = 228 << 10;
  prop->warpSize = 32;
  prop->maxThreadsPerBlock = MAX_THREADS;
  prop->maxThreadsPerMultiProcessor = 2048;
  prop->multiProcessorCount = 4; /* few: a grid sized by it has little to do */
  prop->major = 9;
  prop->minor = 0;
  prop->l2CacheSize = 1 << 20; /* little: it is easily outgrown */
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device) {
  cudaDeviceProp p;
  const cudaError_t e = cudaGetDeviceProperties(&p, device);
  if (e != cudaSuccess) return e;
  switch (attr) {
  case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
  case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)p.sharedMemPerBlock; break;
  case cudaDevAttrWarpSize: *value = p.warpSize; break;
  case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
  case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
  case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
  case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
  case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
  case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
    *value = (int)p.sharedMemPerMultiprocessor;
    break;
  case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)p.sharedMemPerBlockOptin; break;
  default: return dm_emulated_result(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  cudaError_t e = ready_device(device);
  if (e == cudaSuccess) e = ready_device(peer);
  if (e == cudaSuccess) *can = device != peer;
  return dm_emulated_result(e);
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  cudaError_t e = ready_device(peer);
  if (e == cudaSuccess && flags != 0) e = cudaErrorInvalidValue;
  if (e == cudaSuccess && peer == current) e = cudaErrorInvalidDevice;
  if (e != cudaSuccess) return dm_emulated_result(e);
  const unsigned bit = 1u << peer;
  if (__atomic_fetch_or(&devices[current].peers, bit, __ATOMIC_RELAXED) & bit)
    e = cudaErrorPeerAccessAlreadyEnabled;
  return dm_emulated_result(e);
}

cudaError_t cudaDeviceGetPCIBusId(char *out, int n, int device) {
  const cudaError_t e = ready_device(device);
  if (e == cudaSuccess) snprintf(out, (size_t)n, "0000:%02x:00.0", device + 1);
  return dm_emulated_result(e);
}

bool (*dm_emulated_on_event)(cudaStream_t s, bool waits);

/* Whether what is before an event of s (NULL: in all streams) is done; waits: it has to be. */
static bool is_done(cudaStream_t s, bool waits) {
  return !dm_emulated_on_event || dm_emulated_on_event(s, waits);
}

cudaError_t cudaDeviceSynchronize(void) {
  cudaError_t e = ready();
  dm_emulated_add(SYNCS);
  if (e == cudaSuccess) is_done(nullptr, true);
  if (e == cudaSuccess) e = dm_emulated_waits(nullptr);
  if (e == cudaSuccess) {
    dm_emulated_enter(0);
    dm_emulated_finish_device(current);
    dm_emulated_leave();
  }
  return dm_emulated_result(e);
}

/* ---- device memory ---------------------------------------------------------------- */

/* Half words 0xfffd: NaN in every float type, far below zero in wide integers,
   so that reading what nothing wrote shows. */
void dm_emulated_poison(void *p, size_t n) {
  static const unsigned char pattern[2] = {0xfd, 0xff};
  unsigned char *b = (unsigned char *)p;
  if (n >= 2) memcpy(b, pattern, 2);
  if (n % 2) b[n - 1] = pattern[0];
  for (size_t done = 2; done + 1 < n;) { /* doubling */
    const size_t part = done < n / 2 * 2 - done ? done : n / 2 * 2 - done;
    memcpy(b + done, b, part);
    done += part;
  }
}

/* The lowest gap of n bytes, as an index into `blocks` (they fall) and an offset. */
static bool find_gap(const Device *d, size_t n, int *index, size_t *offset) {
  size_t end = 0; /* of the blocks below */
  for (int i = d->n_blocks; i >= 0; i--) {
    const size_t next = i > 0 ? d->blocks[i - 1].offset : limit;
    if (next - end >= n) {
      *index = i;
      *offset = end;
      return true;
    }
    if (i > 0) end = next + d->blocks[i - 1].size;
  }
  return false;
}

static bool add_block(Device *d, int index, Block b) {
  if (d->n_blocks == d->capacity) {
    const int capacity = d->capacity ? 2 * d->capacity : 64;
    Block *more = (Block *)realloc(d->blocks, (size_t)capacity * sizeof *more);
    if (!more) return false;
    d->blocks = more;
    d->capacity = capacity;
  }
  Block *at = d->blocks + index;
  memmove(at + 1, at, (size_t)(d->n_blocks - index) * sizeof b);
  *at = b;
  d->n_blocks++;
  d->used += b.size;
  return true;
}

cudaError_t cudaMalloc(void **out, size_t n) {
  cudaError_t e = ready();
  if (e == cudaSuccess) e = dm_emulated_unsafe();
  if (e != cudaSuccess) return dm_emulated_result(e);
  if (!out) return dm_emulated_result(cudaErrorInvalidValue);
  dm_emulated_add(MALLOCS);
  *out = nullptr;
  if (n == 0) return cudaSuccess;
  if (n > limit) return dm_emulated_result(cudaErrorMemoryAllocation);
  Device *d = &devices[current];
  const size_t size = (n + page - 1) / page * page;
  int index;
  size_t offset;
  pthread_mutex_lock(&lock);
  const bool ok =
      find_gap(d, size, &index, &offset) && add_block(d, index, Block{offset, size, n});
  if (ok) {
    *out = d->base + offset;
    protect(1u << current, PROT_READ | PROT_WRITE);
    dm_emulated_poison(*out, size);
    protect(1u << current, PROT_NONE);
  }
  pthread_mutex_unlock(&lock);
  return dm_emulated_result(ok ? cudaSuccess : cudaErrorMemoryAllocation);
}

/* The device whose range holds p, or -1. */
static int owner(const void *p) {
  const char *c = (const char *)p;
  for (int i = 0; i < n_devices; i++)
    if (devices[i].base && c >= devices[i].base && c < devices[i].base + limit) return i;
  return -1;
}
/* The block of a device's address, or -1. */
static int block_of(const Device *d, const void *p) {
  const size_t at = (size_t)((const char *)p - d->base);
  for (int i = 0; i < d->n_blocks; i++)
    if (at >= d->blocks[i].offset)
      return at - d->blocks[i].offset < d->blocks[i].asked ? i : -1;
  return -1;
}

static cudaError_t release(void *p) {
  const int device = owner(p);
  if (device < 0) return cudaErrorInvalidValue;
  Device *d = &devices[device];
  const int i = block_of(d, p);
  if (i < 0 || d->base + d->blocks[i].offset != p) return cudaErrorInvalidValue;
  d->used -= d->blocks[i].size;
  d->n_blocks--;
  memmove(d->blocks + i, d->blocks + i + 1, (size_t)(d->n_blocks - i) * sizeof(Block));
  return cudaSuccess;
}
cudaError_t cudaFree(void *p) {
  cudaError_t e = ready();
  if (e == cudaSuccess) e = dm_emulated_unsafe();
  if (e != cudaSuccess) return dm_emulated_result(e);
  dm_emulated_add(FREES);
  if (!p) return cudaSuccess;
  pthread_mutex_lock(&lock);
  dm_emulated_finish_all(); /* cudaFree waits for the device */
  e = release(p);
  pthread_mutex_unlock(&lock);
  return dm_emulated_result(e);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
  const cudaError_t e = ready();
  if (e != cudaSuccess) return dm_emulated_result(e);
  pthread_mutex_lock(&lock);
  *total = limit;
  *free_bytes = limit - devices[current].used;
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}

/* ---- pinned memory ------------------------------------------------------------------ */

struct Pinned {
  Pinned *next;
  size_t size;
  int device;
  char *data;
};
static Pinned *pinned; /* guarded by `lock` */

static Pinned **find_pinned(const void *p) {
  Pinned **at = &pinned;
  while (*at &&
         !((const char *)p >= (*at)->data && (const char *)p < (*at)->data + (*at)->size))
    at = &(*at)->next;
  return at;
}

cudaError_t cudaHostAlloc(void **out, size_t n, unsigned flags) {
  cudaError_t e = ready();
  if (e == cudaSuccess) e = dm_emulated_unsafe();
  if (e != cudaSuccess) return dm_emulated_result(e);
  if (!out || flags > 7) return dm_emulated_result(cudaErrorInvalidValue);
  dm_emulated_add(HOST_MALLOCS);
  *out = nullptr;
  if (n == 0) return cudaSuccess;
  Pinned *b = (Pinned *)malloc(sizeof *b);
  void *data = aligned_alloc(512, (n + 511) / 512 * 512);
  if (!b || !data) {
    free(b);
    free(data);
    return dm_emulated_result(cudaErrorMemoryAllocation);
  }
  dm_emulated_poison(data, n);
  pthread_mutex_lock(&lock);
  *b = Pinned{pinned, n, current, (char *)data};
  pinned = b;
  pthread_mutex_unlock(&lock);
  *out = data;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void *p) {
  cudaError_t e = ready();
  if (e == cudaSuccess) e = dm_emulated_unsafe();
  if (e != cudaSuccess) return dm_emulated_result(e);
  dm_emulated_add(HOST_FREES);
  if (!p) return cudaSuccess;
  pthread_mutex_lock(&lock);
  Pinned **at = find_pinned(p), *b = *at;
  const bool ok = b && b->data == p;
  if (ok) dm_emulated_check_unguarded(p, b->size);
  if (ok) *at = b->next;
  pthread_mutex_unlock(&lock);
  if (!ok) return dm_emulated_result(cudaErrorInvalidValue);
  free(b->data);
  free(b);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *p) {
  const cudaError_t e = ready();
  if (e != cudaSuccess) return dm_emulated_result(e);
  *out = cudaPointerAttributes{cudaMemoryTypeUnregistered, -2, nullptr, (void *)p};
  const int device = owner(p);
  pthread_mutex_lock(&lock);
  if (device >= 0 && block_of(&devices[device], p) >= 0) {
    *out = cudaPointerAttributes{cudaMemoryTypeDevice, device, (void *)p, nullptr};
  } else if (Pinned *b = device < 0 ? *find_pinned(p) : nullptr) {
    *out = cudaPointerAttributes{cudaMemoryTypeHost, b->device, (void *)p, (void *)p};
  }
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}

/* A kernel of the current device may follow NULL (which it must not), its own
   memory, its peers' and pinned memory. */
bool dm_emulated_reachable(const void *p) {
  if (!p || ready() != cudaSuccess) return true;
  const int device = owner(p);
  if (device >= 0) return dm_emulated_reach() >> device & 1;
  pthread_mutex_lock(&lock);
  const bool ok = *find_pinned(p) != nullptr;
  pthread_mutex_unlock(&lock);
  return ok;
}

/* ---- streams and events -------------------------------------------------------------- */

/* Live handles, so that a stale one is refused. */
struct Handle {
  Handle *next;
  int device;
};
struct CUstream_st : Handle {
  bool blocking;   /* waits for the legacy stream */
  bool took_event; /* has waited for one since that was asked */
};
struct CUevent_st : Handle {
  cudaStream_t stream;            /* in which it was last recorded */
  bool timed, recorded, captured; /* captured: last recorded in a stream that was captured */
  dm_EmulatedMark *mark;          /* of a queue where it was recorded; or NULL, and then: */
  struct timespec at;
};
static Handle *streams, *events; /* guarded by `lock` */

static void enlist(Handle **list, Handle *h) {
  pthread_mutex_lock(&lock);
  h->device = current;
  h->next = *list;
  *list = h;
  pthread_mutex_unlock(&lock);
}
static bool lives(Handle *list, const Handle *h) {
  pthread_mutex_lock(&lock);
  while (list && list != h) list = list->next;
  pthread_mutex_unlock(&lock);
  return list != nullptr;
}
static bool strike(Handle **list, const Handle *h) {
  pthread_mutex_lock(&lock);
  while (*list && *list != h) list = &(*list)->next;
  const bool found = *list != nullptr;
  if (found) *list = h->next;
  pthread_mutex_unlock(&lock);
  return found;
}

static bool is_default(cudaStream_t s) {
  return !s || s == cudaStreamLegacy || s == cudaStreamPerThread;
}
static int device_of(cudaStream_t s) { return is_default(s) ? current : s->device; }
bool dm_emulated_is_blocking(cudaStream_t s, int *device) {
  *device = device_of(s);
  return is_default(s) || s->blocking;
}
unsigned dm_emulated_owner_bit(const void *p) {
  const int device = owner(p);
  return device >= 0 ? 1u << device : 0;
}
bool dm_emulated_runs_late(cudaStream_t s) {
  if (!dm_emulated_is_late() || !is_default(s)) return dm_emulated_is_late();
  dm_emulated_enter(0);
  dm_emulated_finish_blocking(current);
  dm_emulated_leave();
  return false;
}
/* The stream's queue; the legacy stream has none, but waits for those of blocking ones. */
static void finish(cudaStream_t s) {
  if (dm_emulated_runs_late(s)) {
    dm_emulated_enter(0);
    dm_emulated_finish_stream(s);
    dm_emulated_leave();
  }
}
/* Drops the event's mark and gives it another one. */
static void set_mark(cudaEvent_t ev, dm_EmulatedMark *mark) {
  dm_emulated_mark_drop(ev->mark);
  ev->mark = mark;
}
/* Of a question about s, or about the mark. */
static cudaError_t readiness(cudaStream_t s, const dm_EmulatedMark *m) {
  dm_emulated_enter(0);
  const bool pending = dm_emulated_is_pending(s, m);
  dm_emulated_leave();
  return pending ? cudaErrorNotReady : cudaSuccess;
}
static cudaError_t ready_stream(cudaStream_t s) {
  const cudaError_t e = ready();
  if (e != cudaSuccess || is_default(s) || lives(streams, s)) return e;
  return cudaErrorInvalidResourceHandle;
}
static cudaError_t ready_event(cudaEvent_t ev) {
  const cudaError_t e = ready();
  if (e != cudaSuccess || (ev && lives(events, ev))) return e;
  return cudaErrorInvalidResourceHandle;
}
cudaError_t dm_emulated_check_stream(cudaStream_t s) {
  const cudaError_t e = ready_stream(s);
  if (e != cudaSuccess) return e;
  return device_of(s) == current ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
  const cudaError_t e = ready();
  if (e != cudaSuccess) return dm_emulated_result(e);
  if (!out || flags > cudaStreamNonBlocking) return dm_emulated_result(cudaErrorInvalidValue);
  cudaStream_t s = (cudaStream_t)calloc(1, sizeof *s);
  if (!s) return dm_emulated_result(cudaErrorMemoryAllocation);
  s->blocking = !(flags & cudaStreamNonBlocking);
  enlist(&streams, s);
  *out = s;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  const cudaError_t e = ready();
  if (e != cudaSuccess) return dm_emulated_result(e);
  if (is_default(s)) return dm_emulated_result(cudaErrorInvalidResourceHandle);
  if (ready_stream(s) == cudaSuccess) finish(s);
  if (!strike(&streams, s)) return dm_emulated_result(cudaErrorInvalidResourceHandle);
  free(s);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  cudaError_t e = ready_stream(s);
  dm_emulated_add(SYNCS);
  if (e == cudaSuccess && !is_default(s)) is_done(s, true);
  if (e == cudaSuccess) e = dm_emulated_waits(s);
  if (e == cudaSuccess) finish(s);
  return dm_emulated_result(e);
}
/* That work is not ready is no error for cudaGetLastError. */
cudaError_t cudaStreamQuery(cudaStream_t s) {
  cudaError_t e = ready_stream(s);
  if (e == cudaSuccess) e = dm_emulated_waits(s);
  if (e == cudaSuccess && dm_emulated_runs_late(s)) return readiness(s, nullptr);
  return dm_emulated_result(e);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t ev, unsigned flags) {
  cudaError_t e = ready_stream(s);
  if (e == cudaSuccess) e = ready_event(ev);
  if (e == cudaSuccess && flags > 1) e = cudaErrorInvalidValue;
  /* work from outside, or out of the capture: one stream at a time is captured */
  if (e == cudaSuccess && (ev->captured || dm_emulated_is_captured(s)))
    e = dm_emulated_spoil(s, cudaErrorStreamCaptureUnsupported);
  if (e != cudaSuccess) return dm_emulated_result(e);
  if (!is_default(s)) s->took_event = true;
  if (ev->stream) is_done(ev->stream, true);
  if (ev->mark) {
    const bool late = dm_emulated_runs_late(s);
    dm_emulated_enter(0);
    if (late) dm_emulated_await(s, ev->mark);
    else dm_emulated_finish_mark(ev->mark);
    dm_emulated_leave();
  }
  return cudaSuccess;
}
bool dm_emulated_took_event(cudaStream_t s) {
  if (is_default(s)) return true;
  const bool took = s->took_event;
  s->took_event = false;
  return took;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
  const cudaError_t e = ready();
  if (e != cudaSuccess) return dm_emulated_result(e);
  if (!out || flags > 3) return dm_emulated_result(cudaErrorInvalidValue);
  cudaEvent_t ev = (cudaEvent_t)calloc(1, sizeof *ev);
  if (!ev) return dm_emulated_result(cudaErrorMemoryAllocation);
  ev->timed = !(flags & cudaEventDisableTiming);
  enlist(&events, ev);
  *out = ev;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *out) {
  return cudaEventCreateWithFlags(out, cudaEventDefault);
}
cudaError_t cudaEventDestroy(cudaEvent_t ev) {
  const cudaError_t e = ready();
  if (e != cudaSuccess) return dm_emulated_result(e);
  if (!strike(&events, ev)) return dm_emulated_result(cudaErrorInvalidResourceHandle);
  dm_emulated_enter(0);
  set_mark(ev, nullptr);
  dm_emulated_leave();
  free(ev);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t ev, cudaStream_t s) {
  cudaError_t e = ready_stream(s);
  if (e == cudaSuccess) e = ready_event(ev);
  if (e == cudaSuccess && ev->device != device_of(s)) e = cudaErrorInvalidResourceHandle;
  if (e != cudaSuccess) return dm_emulated_result(e);
  ev->recorded = true;
  ev->stream = is_default(s) ? nullptr : s;
  ev->captured = dm_emulated_is_captured(s);
  clock_gettime(CLOCK_MONOTONIC, &ev->at);
  const bool late = !ev->captured && dm_emulated_runs_late(s);
  dm_emulated_enter(0);
  set_mark(ev, late ? dm_emulated_mark(s) : nullptr);
  dm_emulated_leave();
  return cudaSuccess;
}
/* An event that marks a point of a capture never happens. */
static cudaError_t askable(cudaEvent_t ev) {
  const cudaError_t e = ready_event(ev);
  if (e != cudaSuccess) return e;
  return ev->captured ? cudaErrorCapturedEvent : dm_emulated_unsafe();
}
cudaError_t cudaEventSynchronize(cudaEvent_t ev) {
  const cudaError_t e = askable(ev);
  dm_emulated_add(SYNCS);
  if (e == cudaSuccess && ev->stream) is_done(ev->stream, true);
  if (e == cudaSuccess && ev->mark) {
    dm_emulated_enter(0);
    dm_emulated_finish_mark(ev->mark);
    dm_emulated_leave();
  }
  return dm_emulated_result(e);
}
cudaError_t cudaEventQuery(cudaEvent_t ev) {
  const cudaError_t e = askable(ev);
  if (e != cudaSuccess) return dm_emulated_result(e);
  if (ev->stream && !is_done(ev->stream, false)) return cudaErrorNotReady;
  return ev->mark ? readiness(nullptr, ev->mark) : cudaSuccess;
}
static bool has_happened(cudaEvent_t ev) {
  return !ev->mark || dm_emulated_mark_passed(ev->mark);
}
static struct timespec time_of(cudaEvent_t ev) {
  return ev->mark ? dm_emulated_mark_time(ev->mark) : ev->at;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
  cudaError_t e = ready_event(from);
  if (e == cudaSuccess) e = ready_event(to);
  if (e != cudaSuccess) return dm_emulated_result(e);
  if (!from->timed || !to->timed || !from->recorded || !to->recorded ||
      from->device != to->device)
    return dm_emulated_result(cudaErrorInvalidResourceHandle);
  if (!has_happened(from) || !has_happened(to)) return cudaErrorNotReady;
  const struct timespec a = time_of(from), b = time_of(to);
  *ms = (float)((double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) * 1e-6);
  return cudaSuccess;
}

/* ---- copies ------------------------------------------------------------------------------ */

/* Where n bytes at p lie: HOST, PINNED or a device's number; BAD when they are
   a device's but not all in one live block. Between enter and leave. */
enum { BAD = -3, HOST = -2, PINNED = -1 };
static int memory_kind(const void *p, size_t n) {
  const int device = owner(p);
  if (device < 0) return *find_pinned(p) ? PINNED : HOST;
  const Device *d = &devices[device];
  const int i = block_of(d, p);
  if (i < 0) return BAD;
  const size_t at = (size_t)((const char *)p - d->base) - d->blocks[i].offset;
  return n <= d->blocks[i].asked - at ? device : BAD;
}

int dm_emulated_memory(const void *p, size_t n) {
  const int kind = memory_kind(p, n);
  return kind >= 0 ? kind : BAD;
}

static bool direction_fits(enum cudaMemcpyKind kind, bool from_device, bool to_device) {
  switch (kind) {
  case cudaMemcpyHostToHost: return !from_device && !to_device;
  case cudaMemcpyHostToDevice: return !from_device && to_device;
  case cudaMemcpyDeviceToHost: return from_device && !to_device;
  case cudaMemcpyDeviceToDevice: return from_device && to_device;
  case cudaMemcpyDefault: return true;
  }
  return false;
}

static unsigned bit_of(int index) { return index >= 0 ? 1u << index : 0; }

static void note_copy(const char *name, const void *dst, const void *src, size_t n,
                      cudaStream_t s) {
  const void *const given[] = {dst, src, (const void *)n};
  dm_emulated_note(name, s, dm_emulated_hash(0, given, sizeof given));
}

/* A copy or a fill as a graph or a queue keeps it. A queue also keeps the bytes of pageable
   memory, which follow the record (src is then NULL). */
enum CopyKind { COPY, FILL, COPY_OF_BYTES };
struct Copy {
  void *dst;
  const void *src;
  int byte;
  size_t n;
  CopyKind kind;
};

/* The work of a copy, between enter and leave: with memory that is there no more it is what a
   GPU would call an illegal access. */
static void run_copy(const dm_EmulatedWork *w, void *arg) {
  const Copy *c = (const Copy *)arg;
  const int from = c->src ? memory_kind(c->src, c->n) : HOST, to = memory_kind(c->dst, c->n);
  if (from == BAD || to == BAD) {
    fprintf(stderr, "demilune emulation: %s touches memory that was freed\n", w->name);
    abort();
  }
  if (c->kind == FILL) memset(c->dst, c->byte, c->n);
  else memmove(c->dst, c->kind == COPY ? c->src : c + 1, c->n);
}

/* Whether the stream is captured: then the copy or fill is recorded, with *e. What pageable
   memory of the host holds then is not known when the graph runs. */
static bool recorded(const char *name, const Copy &c, bool pageable, cudaStream_t s,
                     cudaError_t *e) {
  if (!dm_emulated_is_captured(s)) return false;
  const dm_EmulatedWork w = {run_copy, sizeof c, name, nullptr, dim3(), dim3(), 0};
  *e = pageable ? dm_emulated_spoil(s, cudaErrorStreamCaptureUnsupported) : cudaSuccess;
  return pageable || dm_emulated_record(s, w, &c, e);
}

/* Pageable memory has been read when the call returns; pinned memory is guarded. */
static void queue_copy(const Copy &c, int from, int to, cudaStream_t s) {
  dm_EmulatedWork w = {};
  w.go = run_copy;
  w.name = c.kind == FILL ? "cudaMemsetAsync" : "cudaMemcpyAsync";
  w.n_arg = sizeof c + (from == HOST ? c.n : 0);
  Copy *mine = (Copy *)dm_emulated_queue(s, w, nullptr, bit_of(from) | bit_of(to));
  *mine = c;
  if (from == PINNED) dm_emulated_guard(const_cast<void *>(c.src), c.n, false);
  if (to == PINNED) dm_emulated_guard(c.dst, c.n, true);
  if (from != HOST || c.kind == FILL) return;
  mine->kind = COPY_OF_BYTES;
  mine->src = nullptr;
  memcpy(mine + 1, c.src, c.n);
}
static void do_copy(const Copy &c, int from, int to) {
  dm_EmulatedWork w = {};
  dm_emulated_open(bit_of(from) | bit_of(to));
  run_copy(&w, const_cast<Copy *>(&c));
  dm_emulated_open(0);
}

/* `waits`: the call is one that returns only when the copy is done. */
static cudaError_t copy(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind,
                        cudaStream_t s, bool waits) {
  cudaError_t e = cudaSuccess;
  if (n == 0) return cudaSuccess;
  if (!dst || !src) return cudaErrorInvalidValue;
  const Copy c = {dst, src, 0, n, COPY};
  const bool late = dm_emulated_runs_late(s);
  dm_emulated_enter(0);
  const int from = memory_kind(src, n), to = memory_kind(dst, n);
  const bool ok = from != BAD && to != BAD && direction_fits(kind, from >= 0, to >= 0);
  const bool later = ok && recorded("cudaMemcpyAsync", c, from == HOST || to == HOST, s, &e);
  if (ok && !later) {
    const bool queued = late && to != HOST && (from >= 0 || to >= 0);
    if (late && !queued) dm_emulated_finish_stream(s);
    if (!waits) note_copy("cudaMemcpyAsync", dst, from == HOST ? nullptr : src, n, s);
    if (queued) queue_copy(c, from, to, s);
    else do_copy(c, from, to);
  }
  dm_emulated_leave();
  if (!ok) return cudaErrorInvalidValue;
  if (later) return e;
  dm_emulated_add(COPIES);
  if (waits || (from >= 0 && to == HOST)) dm_emulated_add(SYNCS);
  return cudaSuccess;
}

/* A call that waits uses the legacy stream, which waits for blocking ones. */
static cudaError_t legacy(void) {
  const cudaError_t e = ready();
  return e == cudaSuccess && dm_emulated_unsafe() != cudaSuccess
             ? cudaErrorStreamCaptureImplicit
             : e;
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind) {
  const cudaError_t e = legacy();
  return dm_emulated_result(e == cudaSuccess ? copy(dst, src, n, kind, nullptr, true) : e);
}
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind,
                            cudaStream_t s) {
  const cudaError_t e = ready_stream(s);
  return dm_emulated_result(e == cudaSuccess ? copy(dst, src, n, kind, s, false) : e);
}
cudaError_t cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src, int src_device,
                                size_t n, cudaStream_t s) {
  cudaError_t e = ready_stream(s);
  if (e == cudaSuccess) e = ready_device(dst_device);
  if (e == cudaSuccess) e = ready_device(src_device);
  if (e == cudaSuccess && n > 0 && (owner(dst) != dst_device || owner(src) != src_device))
    e = cudaErrorInvalidValue;
  if (e == cudaSuccess) e = copy(dst, src, n, cudaMemcpyDeviceToDevice, s, false);
  return dm_emulated_result(e);
}

static cudaError_t fill(void *dst, int byte, size_t n, cudaStream_t s) {
  cudaError_t e = cudaSuccess;
  if (n == 0) return cudaSuccess;
  const Copy c = {dst, nullptr, byte, n, FILL};
  const bool late = dm_emulated_runs_late(s);
  dm_emulated_enter(0);
  const int to = memory_kind(dst, n);
  const bool later = to >= 0 && recorded("cudaMemsetAsync", c, false, s, &e);
  if (to >= 0 && !later) {
    note_copy("cudaMemsetAsync", dst, (const void *)(intptr_t)byte, n, s);
    if (late) queue_copy(c, to, to, s);
    else do_copy(c, to, to);
  }
  dm_emulated_leave();
  if (to < 0) return cudaErrorInvalidValue;
  if (later) return e;
  dm_emulated_add(COPIES);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *dst, int byte, size_t n, cudaStream_t s) {
  const cudaError_t e = ready_stream(s);
  return dm_emulated_result(e == cudaSuccess ? fill(dst, byte, n, s) : e);
}
cudaError_t cudaMemset(void *dst, int byte, size_t n) {
  const cudaError_t e = legacy();
  dm_emulated_add(SYNCS);
  if (e != cudaSuccess) return dm_emulated_result(e);
  return cudaMemsetAsync(dst, byte, n, nullptr);
}

/* ---- launches: what was run ---------------------------------------------------------------
 */

struct Named {
  const char *name;
  int64_t n;
  unsigned threads; /* of the largest block */
};
static Named names[1024]; /* by the name's address; guarded by `lock` */

void dm_emulated_count_launch(const char *name, unsigned threads) {
  dm_emulated_add(LAUNCHES);
  const int n = (int)(sizeof names / sizeof *names);
  const int first = (int)(((uintptr_t)name >> 2) * 2654435761u % (unsigned)n);
  for (int i = 0; i < n; i++) {
    Named *at = &names[(first + i) % n];
    if (at->name && at->name != name) continue;
    at->name = name;
    at->n++;
    if (threads > at->threads) at->threads = threads;
    return;
  }
}

/* Appends what was run to the file that collects it, under a lock, as many
   processes do: "scale<float, 4> 3", how often; "threads scale<float, 4> 256", at most.
   "(scale<float, 4>)" loses its parentheses. */
static void write_names(void) {
  const char *path = getenv("DEMILUNE_EMULATED_COVERAGE");
  FILE *f = path && *path ? fopen(path, "a") : nullptr;
  if (!f) return;
  flock(fileno(f), LOCK_EX);
  for (const Named &k : names) {
    if (!k.name) continue;
    const bool wrapped = k.name[0] == '(';
    const int length = (int)strlen(k.name) - 2 * wrapped;
    fprintf(f, "%.*s %lld\n", length, k.name + wrapped, (long long)k.n);
    fprintf(f, "threads %.*s %u\n", length, k.name + wrapped, k.threads);
  }
  fclose(f);
}

static void run_call(const dm_EmulatedWork *w, void *arg) { w->call(arg); }

cudaError_t dm_emulated_run(const char *name, cudaStream_t s, uint64_t given,
                            void (*f)(void *arg), void *arg, size_t n_arg) {
  cudaError_t e = dm_emulated_check_stream(s);
  const dm_EmulatedWork w = {run_call, n_arg, name, f, dim3(), dim3(), 0};
  if (e != cudaSuccess || dm_emulated_record(s, w, arg, &e)) return dm_emulated_result(e);
  dm_emulated_submit(s, w, arg, given);
  return cudaSuccess;
}

/* ---- the end: of the process, or of the module in it ----------------------------------------
 */

template <class T> static void free_list(T **list) {
  while (T *first = *list) {
    *list = first->next;
    free(first);
  }
}

/* Whoever calls later finds no block and no handle, and is refused. */
__attribute__((destructor)) static void stop(void) {
  write_names();
  if (n_devices <= 0) return;
  sigaction(SIGSEGV, &before_fault, nullptr);
  dm_emulated_drop_stacks();
  for (int i = 0; i < n_devices; i++) {
    if (devices[i].base) munmap(devices[i].base, limit);
    free(devices[i].blocks);
    devices[i] = Device{};
  }
  for (Pinned *b = pinned; b; b = b->next) free(b->data);
  free_list(&pinned);
  free_list(&streams);
  free_list(&events);
}
