/* Devices. Each device type is a table of functions (dm_DeviceOps): the CPU's is built in,
   device_cpu.c; a back end registers its own when it is opened. */
#ifndef DM_DEVICE_H
#define DM_DEVICE_H

#include "base/dtype.h"

static inline bool dm_device_eq(dm_Device a, dm_Device b) {
  return a.type == b.type && a.index == b.index;
}

/* The counters of an allocator, by the names of torch.cuda.memory_stats. Each is counted for
   the small pool (blocks of up to 1 MiB), the large one, and both. */
typedef enum dm_MemCounter {
  DM_MEM_ALLOCATION,      /* blocks in use */
  DM_MEM_ALLOCATED_BYTES, /* their bytes, rounded up to 512 */
  DM_MEM_REQUESTED_BYTES, /* their bytes as requested */
  DM_MEM_SEGMENT,         /* regions taken from the system */
  DM_MEM_RESERVED_BYTES,  /* their bytes */
  DM_N_MEM
} dm_MemCounter;
typedef enum dm_MemPool { DM_POOL_SMALL, DM_POOL_LARGE, DM_POOL_ALL, DM_N_POOL } dm_MemPool;

typedef struct dm_MemStat {
  int64_t current, peak, allocated, freed; /* the last two: totals */
} dm_MemStat;

typedef struct dm_MemStats {
  dm_MemStat of[DM_N_MEM][DM_N_POOL];
  int64_t num_alloc_retries, num_ooms;
} dm_MemStats;

/* A device's properties, as dm.cuda returns them. */
typedef struct dm_DeviceInfo {
  char name[64];
  int64_t total_bytes, free_bytes;
  int major, minor, processors; /* compute capability; multiprocessors */
} dm_DeviceInfo;

/* How calls of a vendor's library (cuDNN, cuBLASLt) found the plan that they ran by. */
typedef enum dm_PlanCounter {
  DM_PLAN_ASKED,      /* the library was asked for one */
  DM_PLAN_MEMORY,     /* it was cached in memory */
  DM_PLAN_DISK,       /* it was made from a choice cached on disk */
  DM_PLAN_REFUSED,    /* the library had none: the back end's own kernel ran */
  DM_PLAN_PREFETCHED, /* of those asked for: another thread did so before the call came */
  DM_N_PLAN
} dm_PlanCounter;
typedef enum dm_PlanState {
  DM_PLAN_UNTRIED, /* nothing has asked for it so far */
  DM_PLAN_OPEN,
  DM_PLAN_OFF,    /* the environment switches it off */
  DM_PLAN_MISSING /* it cannot be opened, or does not serve */
} dm_PlanState;
enum { DM_PLAN_TEXT = 256 };
typedef struct dm_PlanCounts {
  const char *name; /* of the library */
  int64_t n[DM_N_PLAN];
  dm_PlanState state;
  char reason[DM_PLAN_TEXT];  /* why it is off or missing; or empty */
  char refusal[DM_PLAN_TEXT]; /* why it refused the last call that it did; or empty */
} dm_PlanCounts;
enum { DM_MAX_PLAN_LIBRARY = 4 };

/* Streams (queues of work) and events of a device other than the CPU; both are handles of the
   back end. */
typedef struct dm_StreamOps {
  dm_status (*stream_new)(dm_Device dev, void **out);
  void (*stream_free)(dm_Device dev, void *stream);
  dm_status (*stream_wait)(dm_Device dev, void *stream,
                           void *event); /* work queued later waits */
  dm_status (*stream_synchronize)(dm_Device dev, void *stream);
  bool (*stream_idle)(dm_Device dev, void *stream);
  dm_status (*event_new)(dm_Device dev, bool timing, void **out);
  void (*event_free)(dm_Device dev, void *event);
  dm_status (*event_record)(dm_Device dev, void *event, void *stream);
  dm_status (*event_synchronize)(dm_Device dev, void *event);
  bool (*event_done)(dm_Device dev, void *event);
  dm_status (*event_elapsed)(void *from, void *to, double *milliseconds);
  /* Pinned memory of the host, which the device reads and writes by itself. Freed blocks are
     cached; one is handed out again only after the copies that used it with `later` ended. */
  dm_status (*pinned_alloc)(dm_Device dev, int64_t n_bytes, void **out);
  void (*pinned_free)(void *p);
  int64_t (*pinned_bytes)(dm_Device dev); /* in use; cheap */
  /* p, once freed, is not handed out again before `stream` has done its current work */
  dm_status (*record_use)(dm_Device dev, void *p, void *stream);
} dm_StreamOps;

/* Graphs: a step's work, recorded once and run again by one launch. The functions belong to the
   thread that made the graph; a stream is captured by one graph at a time. */
typedef struct dm_GraphOps {
  dm_status (*graph_new)(dm_Device dev, void **out);
  void (*graph_free)(void *graph); /* ends its capture; the memory of its pool stays in use */
  /* Whether this thread's memory on the current stream comes from the graph's pool. */
  void (*use_pool)(void *graph, bool yes);
  /* Between these, work on the current stream is recorded instead of run. What cannot be
     recorded fails. `keep` false: the record is dropped, and nothing fails. */
  dm_status (*capture_begin)(void *graph);
  dm_status (*capture_end)(void *graph, bool keep);
  dm_status (*launch)(void *graph);
  /* The number of optimizer steps that were recorded, and their options for later launches. */
  int64_t (*n_step)(const void *graph);
  dm_status (*set_step)(void *graph, int64_t i, int method, const double *options);
  int64_t (*n_node)(const void *graph); /* pieces of work; 0 before the end of the capture */
} dm_GraphOps;

/* The block of a small CPU tensor: its storage, handle and data. It counts as 512 bytes, as the
   smallest block of PyTorch does: the handle is no data. */
enum { DM_SMALL_BLOCK = 640 };
void *dm_small_block_new(void); /* NULL: as dm_record_new */
void dm_small_block_free(void *p);
/* The block of a handle or a node, from the same lists: each op takes and gives some, at a
   quarter of malloc's cost. The counters of tensors' memory leave it out. NULL: out of memory,
   and the error says so. */
void *dm_record_new(int64_t n_bytes);
void dm_record_free(void *p, int64_t n_bytes);

typedef struct dm_DeviceOps {
  int (*count)(void); /* devices of this type; ordinals count from 0 */
  /* Called before and after each kernel; NULL for the CPU. */
  dm_status (*begin)(dm_Device dev);
  dm_status (*end)(dm_Device dev);
  /* n > 0 bytes; DM_EMEM when memory does not suffice even with the cache emptied */
  dm_status (*alloc)(dm_Device dev, int64_t n_bytes, void **out);
  void (*free)(dm_Device dev, void *p, int64_t n_bytes);
  /* A copy into the CPU's memory is complete when this returns; after a copy out of it src may
     change at once. Neither holds when the CPU's side is a pinned block and `later` is set. */
  dm_status (*copy)(dm_Device to, void *dst, dm_Device from, const void *src, int64_t n,
                    bool later);
  dm_status (*zero)(dm_Device dev, void *dst, int64_t n);
  /* The elements of `in` into `out`, both on one device, of one shape and dtype and of any
     strides; NULL for the CPU, whose copies are core/copy.c. */
  dm_status (*copy_elements)(dm_Tensor *out, dm_Tensor *in);
  /* The elements of in[i], 16-bit floats in rows or channels last, into out[i], float32 in
     rows, for n tensors by one piece of work; NULL: it cannot. site: an address that tells this
     list from others, in each of its calls. */
  dm_status (*widen_all)(const void *site, int64_t n, dm_Tensor *const *out,
                         dm_Tensor *const *in);
  /* waits for all work, and returns a failure of it */
  dm_status (*synchronize)(dm_Device dev);
  void (*empty_cache)(dm_Device dev);
  int64_t (*allocated_bytes)(dm_Device dev); /* now; cheap */
  void (*stats)(dm_Device dev, dm_MemStats *out);
  void (*reset_peaks)(dm_Device dev);
  void (*reset_totals)(dm_Device dev);
  dm_status (*info)(dm_Device dev, dm_DeviceInfo *out);
  /* A test back end's counter of that name ("launch", "sync"), -1 for an unknown name; NULL:
     there are no counters. */
  int64_t (*count_of)(const char *what);
  /* Fills one entry for each library and returns their number; NULL: there are none. */
  int (*plans)(dm_PlanCounts out[DM_MAX_PLAN_LIBRARY]);
  /* A test back end's record of the i-th queued work, from 1: its name, a hash of its
     arguments, and the bytes of memory that it has read and written; NULL: unknown. */
  const char *(*work_of)(int64_t i, int64_t seen[3]);
  const dm_StreamOps *streams;                /* NULL for the CPU */
  const dm_GraphOps *graphs;                  /* NULL: it has none */
  const struct dm_CollectiveOps *collectives; /* collectives.h; NULL: it has none */
} dm_DeviceOps;

/* NULL when there is no such device type. The first call for a type opens its back end. */
const dm_DeviceOps *dm_device_ops(dm_Device dev);
/* Bytes in use on all opened devices, including the host's pinned memory; cheap. */
int64_t dm_live_bytes(void);
/* Bytes in use on devices other than the CPU; cheap. */
int64_t dm_live_device_bytes(void);
/* Waits for all opened devices; fails as their synchronize does. */
dm_status dm_synchronize(void);
/* Fails, with the reason, unless dev is there. */
dm_status dm_device_check(dm_Device dev);
/* Has the type's back end been opened? If not, no tensor is there. Does not open it. */
bool dm_device_opened(dm_DeviceType type);
/* Why the back end of a type could not be opened; NULL before the first attempt. */
const char *dm_device_missing(dm_DeviceType type);
void dm_device_register(dm_DeviceType type, const dm_DeviceOps *ops);

/* Opens the back end of a type, which registers itself; returns NULL, or the reason why not.
   Called once for each type. A hook: engine/backend.c, a layer above, defines it. */
const char *dm_backend_open(dm_DeviceType type);

/* "cpu" or "cuda:0"; the text may be stored in buf. */
const char *dm_device_name(dm_Device dev, char buf[16]);

#endif
