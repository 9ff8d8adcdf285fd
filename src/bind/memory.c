/* The allocators' counters and caches, under PyTorch's names (torch.cuda.memory_allocated).
   Each function takes a device, the CPU by default, and raises for one that is not there. No
   counter is kept in Lua: each call asks the device's allocator. */
#include "bind/bind.h"

/* The functions of the device at i, which goes to *d. */
static const dm_DeviceOps *device_at(lua_State *L, int i, dm_Device *d) {
  *d = (dm_Device){DM_CPU, 0};
  if (!lua_isnoneornil(L, i)) *d = dm_check_device(L, i);
  return dm_device_ops(*d);
}

/* The counters of the device at i. */
static dm_MemStats stats_at(lua_State *L, int i) {
  dm_Device d;
  dm_MemStats m;
  device_at(L, i, &d)->stats(d, &m);
  return m;
}

/* memory_allocated(device) -> bytes of live tensors; memory_reserved(device) -> bytes that
   the allocator holds, with its cache; max_... -> the peaks of both. */
static int memory_allocated(lua_State *L) {
  dm_Device d;
  const dm_DeviceOps *ops = device_at(L, 1, &d);
  lua_pushinteger(L, ops->allocated_bytes(d));
  return 1;
}

/* The largest value of that counter since the start or the last reset of peaks. */
static int max_memory_allocated(lua_State *L) {
  lua_pushinteger(L, stats_at(L, 1).of[DM_MEM_ALLOCATED_BYTES][DM_POOL_ALL].peak);
  return 1;
}

/* Memory that came from the system and was not given back: live blocks and cached ones. */
static int memory_reserved(lua_State *L) {
  lua_pushinteger(L, stats_at(L, 1).of[DM_MEM_RESERVED_BYTES][DM_POOL_ALL].current);
  return 1;
}

/* The largest value of what the allocator held; a gap to the live bytes is cache. */
static int max_memory_reserved(lua_State *L) {
  lua_pushinteger(L, stats_at(L, 1).of[DM_MEM_RESERVED_BYTES][DM_POOL_ALL].peak);
  return 1;
}

/* Sets "what.pool.field" = v in the table on top. */
static void put(lua_State *L, const char *what, const char *pool, const char *field,
                int64_t v) {
  lua_pushfstring(L, "%s%s.%s", what, pool, field);
  lua_pushinteger(L, v);
  lua_rawset(L, -3);
}

/* Sets the four fields of one counter. */
static void put_stat(lua_State *L, const char *what, const char *pool, const dm_MemStat *s) {
  put(L, what, pool, "current", s->current);
  put(L, what, pool, "peak", s->peak);
  put(L, what, pool, "allocated", s->allocated);
  put(L, what, pool, "freed", s->freed);
}

/* memory_stats(device) -> table with PyTorch's flat names. `active` counts the same as
   `allocation`, because nothing waits for a stream here. inactive_split, oversize (no block
   is split) and num_sync_all_streams are always 0; max_split_size is absent.
   forced_collections counts the full collections of Lua's garbage that the library ran. */
static int memory_stats(lua_State *L) {
  static const char *const pools[DM_N_POOL] = {".small_pool", ".large_pool", ".all"};
  static const struct {
    const char *name;
    int counter;
  } names[] = {{"allocation", DM_MEM_ALLOCATION},
               {"allocated_bytes", DM_MEM_ALLOCATED_BYTES},
               {"requested_bytes", DM_MEM_REQUESTED_BYTES},
               {"segment", DM_MEM_SEGMENT},
               {"reserved_bytes", DM_MEM_RESERVED_BYTES},
               {"active", DM_MEM_ALLOCATION},
               {"active_bytes", DM_MEM_ALLOCATED_BYTES},
               {"inactive_split", -1},
               {"inactive_split_bytes", -1}};
  const State *S = dm_enter(L);
  const dm_MemStats m = stats_at(L, 1);
  const dm_MemStat none = {0, 0, 0, 0};
  lua_createtable(L, 0, 128);
  for (int i = 0; i < DM_COUNT(names); i++)
    for (int pool = 0; pool < DM_N_POOL; pool++)
      put_stat(L, names[i].name, pools[pool],
               names[i].counter < 0 ? &none : &m.of[names[i].counter][pool]);
  put_stat(L, "oversize_allocations", "", &none);
  put_stat(L, "oversize_segments", "", &none);
#define COUNT(NAME, V) (lua_pushinteger(L, V), lua_setfield(L, -2, NAME))
  COUNT("num_alloc_retries", m.num_alloc_retries);
  COUNT("num_ooms", m.num_ooms);
  COUNT("num_sync_all_streams", 0);
  COUNT("num_device_alloc", m.of[DM_MEM_SEGMENT][DM_POOL_ALL].allocated);
  COUNT("num_device_free", m.of[DM_MEM_SEGMENT][DM_POOL_ALL].freed);
  COUNT("forced_collections", S->gc_count);
#undef COUNT
  lua_pushnumber(L, S->gc_seconds);
  lua_setfield(L, -2, "forced_collection_seconds");
  return 1;
}

/* reset_peak_memory_stats(device), reset_accumulated_memory_stats(device),
   empty_cache(device). */
static int reset_peaks(lua_State *L) {
  dm_Device d;
  const dm_DeviceOps *ops = device_at(L, 1, &d);
  ops->reset_peaks(d);
  return 0;
}

/* Sets the running sums of allocated and freed bytes to 0; what is live stays
   counted. */
static int reset_totals(lua_State *L) {
  dm_Device d;
  const dm_DeviceOps *ops = device_at(L, 1, &d);
  ops->reset_totals(d);
  return 0;
}
/* empty_cache(device): returns cached memory to the system; live tensors stay. */
static int empty_cache(lua_State *L) {
  dm_Device d;
  const dm_DeviceOps *ops = device_at(L, 1, &d);
  ops->empty_cache(d);
  return 0;
}
/* synchronize([device]): waits for the device, without one for all that are open. */
static int synchronize(lua_State *L) {
  if (lua_isnoneornil(L, 1)) {
    DM_CHECK(L, dm_synchronize());
    return 0;
  }
  dm_Device d;
  const dm_DeviceOps *ops = device_at(L, 1, &d);
  DM_CHECK(L, ops->synchronize(d));
  return 0;
}

/* _device_bytes(device) -> free bytes, total bytes; nothing for the CPU. */
static int device_bytes(lua_State *L) {
  dm_Device d;
  dm_DeviceInfo info;
  const dm_DeviceOps *ops = device_at(L, 1, &d);
  if (!ops->info) return 0;
  DM_CHECK(L, ops->info(d, &info));
  lua_pushinteger(L, info.free_bytes);
  lua_pushinteger(L, info.total_bytes);
  return 2;
}

const luaL_Reg dm_memory_functions[] = {{"memory_allocated", memory_allocated},
                                        {"max_memory_allocated", max_memory_allocated},
                                        {"memory_reserved", memory_reserved},
                                        {"max_memory_reserved", max_memory_reserved},
                                        {"memory_stats", memory_stats},
                                        {"reset_peak_memory_stats", reset_peaks},
                                        {"reset_accumulated_memory_stats", reset_totals},
                                        {"empty_cache", empty_cache},
                                        {"synchronize", synchronize},
                                        {"_device_bytes", device_bytes},
                                        {NULL, NULL}};
