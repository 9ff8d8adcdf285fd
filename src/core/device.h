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

typedef struct dm_DeviceOps {
  /* n > 0 bytes; DM_EMEM when even an emptied cache has no room */
  dm_status (*alloc)(dm_Device dev, int64_t n_bytes, void **out);
  void (*free)(dm_Device dev, void *p, int64_t n_bytes);
  dm_status (*copy)(dm_Device to, void *dst, dm_Device from, const void *src, int64_t n);
  dm_status (*zero)(dm_Device dev, void *dst, int64_t n);
  void (*synchronize)(dm_Device dev);
  void (*empty_cache)(dm_Device dev);
  int64_t (*allocated_bytes)(dm_Device dev); /* now; cheap */
  void (*stats)(dm_Device dev, dm_MemStats *out);
  void (*reset_peaks)(dm_Device dev);
  void (*reset_totals)(dm_Device dev);
} dm_DeviceOps;

/* NULL when that kind of device is not there. */
const dm_DeviceOps *dm_device_ops(dm_Device dev);
void dm_device_register(dm_DeviceType type, const dm_DeviceOps *ops);

/* The device's name, in buf when it needs one. */
const char *dm_device_name(dm_Device dev, char buf[16]);

#endif
