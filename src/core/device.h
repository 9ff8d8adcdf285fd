/* Devices: where bytes live. A table of pointers each; the CPU's is always
   there, another back end registers its own. */
#ifndef DM_DEVICE_H
#define DM_DEVICE_H

#include "base/dtype.h"

static inline bool dm_device_eq(dm_Device a, dm_Device b) {
  return a.type == b.type && a.index == b.index;
}

/* What an allocator counts, and for which of its pools, by the names of
   PyTorch's memory_stats. The small pool holds blocks of up to 1 MiB. */
typedef enum dm_MemCounter {
  DM_MEM_ALLOCATION, /* blocks handed out: their number, bytes rounded to 512, bytes asked for
                      */
  DM_MEM_ALLOCATED_BYTES,
  DM_MEM_REQUESTED_BYTES,
  DM_MEM_SEGMENT, /* blocks taken from the system */
  DM_MEM_RESERVED_BYTES,
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

/* What dm.cuda tells of a device. */
typedef struct dm_DeviceInfo {
  char name[64];
  int64_t total_bytes, free_bytes;
  int major, minor, processors; /* compute capability; multiprocessors */
} dm_DeviceInfo;

/* How calls of a vendor's library came by the plan that they ran by: the library was
   asked for it, it lay in memory, it was made from a choice kept on disk. Of all these,
   how many were refused: done by our own kernels. */
typedef enum dm_PlanCounter {
  DM_PLAN_ASKED,
  DM_PLAN_MEMORY,
  DM_PLAN_DISK,
  DM_PLAN_REFUSED,
  DM_N_PLAN
} dm_PlanCounter;
typedef struct dm_PlanCounts {
  const char *name; /* of the library */
  int64_t n[DM_N_PLAN];
} dm_PlanCounts;
enum { DM_MAX_PLAN_LIBRARY = 4 };

/* Queues of work of a device other than the CPU. Streams and events are handles
   of the back end. */
typedef struct dm_StreamOps {
  dm_status (*stream_new)(dm_Device dev, void **out);
  void (*stream_free)(dm_Device dev, void *stream);
  dm_status (*stream_wait)(dm_Device dev, void *stream, void *event); /* later work waits */
  dm_status (*stream_synchronize)(dm_Device dev, void *stream);
  bool (*stream_idle)(dm_Device dev, void *stream);
  dm_status (*event_new)(dm_Device dev, bool timing, void **out);
  void (*event_free)(dm_Device dev, void *event);
  dm_status (*event_record)(dm_Device dev, void *event, void *stream);
  dm_status (*event_synchronize)(dm_Device dev, void *event);
  bool (*event_done)(dm_Device dev, void *event);
  dm_status (*event_elapsed)(void *from, void *to, double *milliseconds);
  /* Memory of the host that the device copies from and to by itself; kept for the next
     who asks. What it has been copied to or from `later` is waited for before that. */
  dm_status (*pinned_alloc)(dm_Device dev, int64_t n_bytes, void **out);
  void (*pinned_free)(void *p);
  int64_t (*pinned_bytes)(dm_Device dev); /* handed out now; cheap */
  /* p, freed later, is not handed out again before `stream` has done what it has now */
  dm_status (*record_use)(dm_Device dev, void *p, void *stream);
} dm_StreamOps;

typedef struct dm_DeviceOps {
  int (*count)(void); /* devices of this type; ordinals count from 0 */
  /* around each kernel of a device other than the CPU, which has none of them */
  dm_status (*begin)(dm_Device dev);
  dm_status (*end)(dm_Device dev);
  /* n > 0 bytes; DM_EMEM when even an emptied cache has no room */
  dm_status (*alloc)(dm_Device dev, int64_t n_bytes, void **out);
  void (*free)(dm_Device dev, void *p, int64_t n_bytes);
  /* Into the CPU's memory: waits until it is there; out of it: src may change as soon
     as this returns; both unless that is a whole pinned block and later != 0. */
  dm_status (*copy)(dm_Device to, void *dst, dm_Device from, const void *src, int64_t n,
                    bool later);
  dm_status (*zero)(dm_Device dev, void *dst, int64_t n);
  /* waits for all work; tells of what went wrong in it */
  dm_status (*synchronize)(dm_Device dev);
  void (*empty_cache)(dm_Device dev);
  int64_t (*allocated_bytes)(dm_Device dev); /* now; cheap */
  void (*stats)(dm_Device dev, dm_MemStats *out);
  void (*reset_peaks)(dm_Device dev);
  void (*reset_totals)(dm_Device dev);
  dm_status (*info)(dm_Device dev, dm_DeviceInfo *out);
  /* what a back end for tests has counted by that name ("launch", "sync"), -1 for no
     name; NULL: counts nothing */
  int64_t (*count_of)(const char *what);
  /* one entry a library; gives how many; NULL: there are none */
  int (*plans)(dm_PlanCounts out[DM_MAX_PLAN_LIBRARY]);
  /* of the i-th piece of work that was queued, from 1: its name, and a hash of what it was
     given; NULL: not known. As count_of. */
  const char *(*work_of)(int64_t i, int64_t *given);
  const dm_StreamOps *streams; /* NULL for the CPU */
} dm_DeviceOps;

/* NULL when that kind of device is not there. A back end is opened when it is
   first asked for. */
const dm_DeviceOps *dm_device_ops(dm_Device dev);
/* Bytes handed out on all devices that are open, pinned ones of the host too; cheap. */
int64_t dm_live_bytes(void);
/* Those that devices other than the CPU hold themselves; cheap. */
int64_t dm_live_device_bytes(void);
/* Waits for all devices that are open; fails as their synchronize does. */
dm_status dm_synchronize(void);
/* Fails, with the reason, unless dev is there. */
dm_status dm_device_check(dm_Device dev);
/* Has the type's back end been opened? If not, no tensor lies there. Does not open it. */
bool dm_device_opened(dm_DeviceType type);
/* Why a type is not there, once it was asked for. */
const char *dm_device_missing(dm_DeviceType type);
void dm_device_register(dm_DeviceType type, const dm_DeviceOps *ops);

/* Opens the back end of a type, which registers itself; NULL, or why it could
   not. Called once a type; defined in engine/backend.c. */
const char *dm_backend_open(dm_DeviceType type);

/* The device's name, in buf when it needs one. */
const char *dm_device_name(dm_Device dev, char buf[16]);

#endif
