/* The CPU as a device: its memory is a caching allocator, as CUDA's is in PyTorch. The kernel
   zeroes the pages of fresh memory at the first touch, which costs about ten times what a
   block costs that is used again, so freed blocks are kept.

   Size classes. A request is rounded up to its class; there are 4 classes to each power of
   two, so at most a quarter of a block is unused. Each class has a list of free blocks, last
   in first out: the block that was freed last is the likeliest to be in cache. Blocks are
   neither split nor merged. The counters round to 512 bytes instead, as PyTorch's do.

   Where blocks come from. Classes below 256 KiB are cut from segments of 1 MiB, aligned to
   their size, so that the segment of a block is its address with the low bits cleared.
   Larger ones are mapped one by one, with huge pages (MADV_HUGEPAGE) from 2 MiB on.

   Where they go. Large blocks, and segments without a block in use, return to the system when
   dm.cpu.empty_cache is called, or when the system refuses memory; the request is then tried
   once more.

   Under AddressSanitizer free blocks and the rest of a block beyond the bytes asked for are
   forbidden, and so is a red zone after each block (and before each that is mapped), so that it
   reports overruns and the use of freed blocks. The functions that follow the links in free
   blocks are left out of its checks.

   Invariant: a free block is in the list of its own class and in no other; a segment's `live`
   counts its blocks in use. All of it is guarded by one spin lock, which is not taken while
   the process has one thread. */
#include "core/device.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/refs.h"

enum { GRAIN_BITS = 9, GRAIN = 1 << GRAIN_BITS, SEGMENT = 1 << 20, N_CLASS = 160 };
enum { SMALL_CLASS = 36 };     /* the first that is mapped by itself: 256 KiB */
enum { SMALL_POOL = 1 << 20 }; /* the largest block of the small pool, as in PyTorch */

enum { UNCOUNTED = -1 }; /* for `counted`: the block is no tensor's */

enum { RED_ZONE = DM_ASAN ? 64 : 0 };   /* bytes after a small block */
enum { RED_PAGE = DM_ASAN ? 4096 : 0 }; /* before and after a mapped block */
#if DM_ASAN
#define READS_FREE_BLOCKS __attribute__((no_sanitize_address))
#else
#define READS_FREE_BLOCKS
#endif

/* A free block; its own memory stores the link. */
typedef struct Block {
  struct Block *next;
} Block;

/* A spin lock: it is held for about twenty instructions for each block, and for a system call
   when memory is mapped or unmapped. It costs a third of a mutex. */
static atomic_flag taken = ATOMIC_FLAG_INIT;

static void unlock(void) { atomic_flag_clear_explicit(&taken, memory_order_release); }
static inline void lock(void) {
  if (dm_alone()) return;
  while (DM_UNLIKELY(atomic_flag_test_and_set_explicit(&taken, memory_order_acquire)))
    sched_yield();
}

/* Holds the lock during fork(), so that the child gets whole lists. */
__attribute__((constructor)) static void guard_forks(void) {
  pthread_atfork(lock, unlock, unlock);
}

static Block *free_blocks[N_CLASS];
/* The head of a segment, which starts at a multiple of its size. */
typedef struct Segment {
  struct Segment *next;
  int64_t live;
} Segment;
static Segment *segments;
static char *segment_at, *segment_end; /* the unused rest of the newest segment */

/* One counter, by pool. Only these numbers are updated for each block; the others follow from
   them: all = small + large, freed = allocated + start - current. `current` changes under the
   lock, and is read without it by Lua states of other threads. */
typedef struct Counter {
  _Atomic int64_t current[2];
  int64_t allocated[2], peak[DM_N_POOL];
  int64_t start[2]; /* current when `allocated` was set to 0 */
} Counter;
static Counter counters[DM_N_MEM];
static int64_t num_alloc_retries, num_ooms;

/* Class k = 4e + f holds blocks of GRAIN * 2^e * (1 + f/4) bytes. */
static int64_t class_bytes(int k) { return ((int64_t)GRAIN << (k / 4)) / 4 * (4 + k % 4); }

/* The smallest class that holds n bytes: the power of two e below the last byte from its
   leading bit, then the quarter above it from the next two bits. */
static inline int class_of(int64_t n_bytes) {
  if (n_bytes <= GRAIN) return 0;
  const uint64_t last = (uint64_t)n_bytes - 1;
  const int e = 63 - __builtin_clzll(last / GRAIN);
  const int quarter = (int)(last >> (e + GRAIN_BITS - 2)) & 3;
  return 4 * e + quarter + 1;
}

/* The pool of a block or of a request: the same, for 1 MiB is a size class. */
static bool is_large(int64_t n_bytes) { return n_bytes > SMALL_POOL; }

static inline int64_t current_of(const Counter *c, dm_MemPool pool) {
  return atomic_load_explicit(&c->current[pool], memory_order_relaxed);
}

/* Adds n to the counter's current value, and returns that. */
static inline int64_t change(Counter *c, dm_MemPool pool, int64_t n) {
  const int64_t now = current_of(c, pool) + n;
  atomic_store_explicit(&c->current[pool], now, memory_order_relaxed);
  return now;
}

/* Raises a counter by n, and its peaks. */
static inline void count(dm_MemCounter what, dm_MemPool pool, int64_t n) {
  Counter *c = &counters[what];
  const int64_t now = change(c, pool, n), all = now + current_of(c, !pool);
  c->allocated[pool] += n;
  if (now > c->peak[pool]) c->peak[pool] = now;
  if (all > c->peak[DM_POOL_ALL]) c->peak[DM_POOL_ALL] = all;
}

static inline void uncount(dm_MemCounter what, dm_MemPool pool, int64_t n) {
  change(&counters[what], pool, -n);
}

/* PyTorch's counters of allocated bytes round each block up to 512. */
static int64_t rounded(int64_t n_bytes) { return (n_bytes + GRAIN - 1) & -(int64_t)GRAIN; }

/* The three counters of one block. */
static inline void count_in(dm_MemPool pool, int64_t n_bytes) {
  count(DM_MEM_ALLOCATION, pool, 1);
  count(DM_MEM_REQUESTED_BYTES, pool, n_bytes);
  count(DM_MEM_ALLOCATED_BYTES, pool, rounded(n_bytes));
}
static inline void uncount_in(dm_MemPool pool, int64_t n_bytes) {
  uncount(DM_MEM_ALLOCATION, pool, 1);
  uncount(DM_MEM_REQUESTED_BYTES, pool, n_bytes);
  uncount(DM_MEM_ALLOCATED_BYTES, pool, rounded(n_bytes));
}

/* Two calls, so that the pool is a constant in each. */
static inline void count_block(int64_t n_bytes) {
  if (DM_UNLIKELY(is_large(n_bytes))) count_in(DM_POOL_LARGE, n_bytes);
  else count_in(DM_POOL_SMALL, n_bytes);
}
static inline void uncount_block(int64_t n_bytes) {
  if (DM_UNLIKELY(is_large(n_bytes))) uncount_in(DM_POOL_LARGE, n_bytes);
  else uncount_in(DM_POOL_SMALL, n_bytes);
}

/* Counts memory that came from the system. */
static void count_reserved(int64_t n_bytes) {
  const dm_MemPool pool = is_large(n_bytes) ? DM_POOL_LARGE : DM_POOL_SMALL;
  count(DM_MEM_SEGMENT, pool, 1);
  count(DM_MEM_RESERVED_BYTES, pool, n_bytes);
}

static void uncount_reserved(int64_t n_bytes) {
  const dm_MemPool pool = is_large(n_bytes) ? DM_POOL_LARGE : DM_POOL_SMALL;
  uncount(DM_MEM_SEGMENT, pool, 1);
  uncount(DM_MEM_RESERVED_BYTES, pool, n_bytes);
}

/* n fresh bytes from the system, zero. */
static void *map_pages(int64_t n) {
  char *p = mmap(NULL, (size_t)(n + 2 * RED_PAGE), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return NULL;
  dm_forbid(p, n + 2 * RED_PAGE);
  p += RED_PAGE;
#ifdef MADV_HUGEPAGE
  if (n >= (2 << 20)) (void)madvise(p, (size_t)n, MADV_HUGEPAGE);
#endif
  count_reserved(n);
  return p;
}

/* Returns n bytes of map_pages to the system. */
static void unmap_pages(void *p, int64_t n) {
  char *from = (char *)p - RED_PAGE;
  dm_permit(from, n + 2 * RED_PAGE);
  munmap(from, (size_t)(n + 2 * RED_PAGE));
  uncount_reserved(n);
}

/* The head of the segment that p, a small block, was cut from. */
static Segment *segment_of(const void *p) {
  return (Segment *)((uintptr_t)p & ~(uintptr_t)(SEGMENT - 1));
}

static bool is_small(int k) { return k < SMALL_CLASS; }

/* Maps twice the size and unmaps all but an aligned segment of it. */
static Segment *map_segment(void) {
  char *p = mmap(NULL, 2 * SEGMENT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return NULL;
  Segment *s = segment_of(p + SEGMENT - 1);
  char *begin = (char *)s, *end = begin + SEGMENT;
  if (begin > p) munmap(p, (size_t)(begin - p));
  if (p + 2 * SEGMENT > end) munmap(end, (size_t)(p + 2 * SEGMENT - end));
  *s = (Segment){segments, 0};
  dm_forbid(s + 1, SEGMENT - (int64_t)sizeof *s);
  segments = s;
  count_reserved(SEGMENT);
  return s;
}

/* Takes the free blocks of unused segments off the lists, then the segments. */
READS_FREE_BLOCKS static void release_segments(void) {
  if (segment_end && segment_of(segment_end - 1)->live == 0) segment_at = segment_end = NULL;
  for (int k = 0; is_small(k); k++) {
    for (Block **at = &free_blocks[k]; *at;) {
      if (segment_of(*at)->live == 0) *at = (*at)->next;
      else at = &(*at)->next;
    }
  }
  for (Segment **at = &segments; *at;) {
    Segment *s = *at;
    if (s->live > 0) {
      at = &s->next;
      continue;
    }
    *at = s->next;
    dm_permit(s, SEGMENT);
    munmap(s, SEGMENT);
    uncount_reserved(SEGMENT);
  }
}

/* Returns all unused memory to the system. The caller holds the lock. */
READS_FREE_BLOCKS static void release_cached(void) {
  release_segments();
  for (int k = SMALL_CLASS; k < N_CLASS; k++) {
    while (free_blocks[k]) {
      Block *b = free_blocks[k];
      free_blocks[k] = b->next;
      unmap_pages(b, class_bytes(k));
    }
  }
}

/* A new block of class k. The caller holds the lock. */
__attribute__((noinline)) READS_FREE_BLOCKS static void *fresh_block(int k) {
  const int64_t n = class_bytes(k);
  if (!is_small(k)) {
    void *p = map_pages(n);
    if (!p) {
      num_alloc_retries++;
      release_cached();
      p = map_pages(n);
    }
    return p;
  }
  if (segment_end - segment_at < n + RED_ZONE) {
    /* the rest of the old segment is cut into the largest classes that fit */
    for (int64_t rest; (rest = segment_end - segment_at - RED_ZONE) >= GRAIN;) {
      int j = class_of(rest);
      if (class_bytes(j) > rest) j--;
      Block *b = (Block *)(void *)segment_at;
      segment_at += class_bytes(j) + RED_ZONE;
      b->next = free_blocks[j];
      free_blocks[j] = b;
    }
    segment_at = segment_end = NULL;
    Segment *s = map_segment();
    if (!s) {
      num_alloc_retries++;
      release_cached();
      s = map_segment();
    }
    if (!s) return NULL;
    segment_at = (char *)s + GRAIN;
    segment_end = (char *)s + SEGMENT;
  }
  void *p = segment_at;
  segment_at += n + RED_ZONE;
  return p;
}

/* Bytes in use, in blocks rounded to 512; what dm.cpu.memory_allocated shows. */
static int64_t cpu_allocated_bytes(dm_Device dev) {
  DM_UNUSED(dev);
  const Counter *c = &counters[DM_MEM_ALLOCATED_BYTES];
  return current_of(c, DM_POOL_SMALL) + current_of(c, DM_POOL_LARGE);
}

/* Says that a block of n bytes cannot be had. */
__attribute__((cold, noinline)) static dm_status refuse_block(int64_t n_bytes) {
  lock();
  num_ooms++;
  unlock();
  return dm_fail(DM_EMEM, "cpu: out of memory: %.1f MiB asked for, %.1f MiB in use",
                 (double)n_bytes / 1048576.0,
                 (double)cpu_allocated_bytes((dm_Device){DM_CPU, 0}) / 1048576.0);
}

/* A block from its class's list, else from a segment or the system. One attempt after
   the cache was released decides whether memory is short. */
READS_FREE_BLOCKS static inline dm_status take_block(int64_t n_bytes, int64_t counted,
                                                     void **out) {
  if (DM_UNLIKELY(n_bytes <= 0 || n_bytes > (int64_t)1 << 44 || dm_alloc_should_fail()))
    return refuse_block(n_bytes);
  const int k = class_of(n_bytes);
  lock();
  Block *b = free_blocks[k];
  void *p = b;
  if (DM_LIKELY(b != NULL)) free_blocks[k] = b->next;
  else p = fresh_block(k);
  if (DM_LIKELY(p != NULL)) {
    if (is_small(k)) segment_of(p)->live++;
    if (counted >= 0) count_block(counted);
  }
  unlock();
  if (DM_UNLIKELY(!p)) return refuse_block(n_bytes);
  dm_permit(p, n_bytes);
  dm_noise(p, n_bytes);
  *out = p;
  return DM_OK;
}

/* n_bytes is what was asked for, from which the class follows, so that blocks need no
   head. */
READS_FREE_BLOCKS static inline void give_block(void *p, int64_t n_bytes, int64_t counted) {
  const int k = class_of(n_bytes);
  Block *b = p;
  dm_forbid(p, class_bytes(k));
  lock();
  b->next = free_blocks[k];
  free_blocks[k] = b;
  if (is_small(k)) segment_of(p)->live--;
  if (counted >= 0) uncount_block(counted);
  unlock();
}

static dm_status cpu_alloc(dm_Device dev, int64_t n_bytes, void **out) {
  DM_UNUSED(dev);
  return take_block(n_bytes, n_bytes, out);
}
static void cpu_free(dm_Device dev, void *p, int64_t n_bytes) {
  DM_UNUSED(dev);
  give_block(p, n_bytes, n_bytes);
}

void *dm_small_block_new(void) {
  void *p = NULL;
  (void)take_block(DM_SMALL_BLOCK, GRAIN, &p);
  return p;
}
void dm_small_block_free(void *p) { give_block(p, DM_SMALL_BLOCK, GRAIN); }

void *dm_record_new(int64_t n_bytes) {
  void *p = NULL;
  if (take_block(n_bytes, UNCOUNTED, &p) != DM_OK) return NULL;
  (void)DM_ADD(&dm_live_blocks, 1);
  return p;
}
void dm_record_free(void *p, int64_t n_bytes) {
  (void)DM_ADD(&dm_live_blocks, -1);
  give_block(p, n_bytes, UNCOUNTED);
}

static dm_status cpu_copy(dm_Device to, void *dst, dm_Device from, const void *src, int64_t n,
                          bool later) {
  DM_UNUSED(to);
  DM_UNUSED(from);
  DM_UNUSED(later);
  memcpy(dst, src, (size_t)n);
  return DM_OK;
}

static dm_status cpu_zero(dm_Device dev, void *dst, int64_t n) {
  DM_UNUSED(dev);
  memset(dst, 0, (size_t)n);
  return DM_OK;
}

static dm_status cpu_synchronize(dm_Device dev) {
  DM_UNUSED(dev);
  return DM_OK;
}

static int cpu_count(void) { return 1; }

static void cpu_empty_cache(dm_Device dev) {
  DM_UNUSED(dev);
  lock();
  release_cached();
  unlock();
}

static void cpu_stats(dm_Device dev, dm_MemStats *out) {
  DM_UNUSED(dev);
  lock();
  *out = (dm_MemStats){.num_alloc_retries = num_alloc_retries, .num_ooms = num_ooms};
  for (int i = 0; i < DM_N_MEM; i++) {
    const Counter *c = &counters[i];
    dm_MemStat *all = &out->of[i][DM_POOL_ALL];
    for (dm_MemPool pool = DM_POOL_SMALL; pool <= DM_POOL_LARGE; pool++) {
      const dm_MemStat s = {.current = current_of(c, pool),
                            .peak = c->peak[pool],
                            .allocated = c->allocated[pool],
                            .freed = c->allocated[pool] + c->start[pool] - current_of(c, pool)};
      out->of[i][pool] = s;
      all->current += s.current;
      all->allocated += s.allocated;
      all->freed += s.freed;
    }
    all->peak = c->peak[DM_POOL_ALL];
  }
  unlock();
}

static void cpu_reset_peaks(dm_Device dev) {
  DM_UNUSED(dev);
  lock();
  for (Counter *c = counters; c < counters + DM_N_MEM; c++) {
    memcpy(c->peak, c->current, sizeof c->current);
    c->peak[DM_POOL_ALL] = current_of(c, DM_POOL_SMALL) + current_of(c, DM_POOL_LARGE);
  }
  unlock();
}

static void cpu_reset_totals(dm_Device dev) {
  DM_UNUSED(dev);
  lock();
  for (Counter *c = counters; c < counters + DM_N_MEM; c++) {
    memcpy(c->start, c->current, sizeof c->current);
    memset(c->allocated, 0, sizeof c->allocated);
  }
  num_alloc_retries = num_ooms = 0;
  unlock();
}

static const dm_DeviceOps cpu_ops = {.count = cpu_count,
                                     .alloc = cpu_alloc,
                                     .free = cpu_free,
                                     .copy = cpu_copy,
                                     .zero = cpu_zero,
                                     .synchronize = cpu_synchronize,
                                     .empty_cache = cpu_empty_cache,
                                     .allocated_bytes = cpu_allocated_bytes,
                                     .stats = cpu_stats,
                                     .reset_peaks = cpu_reset_peaks,
                                     .reset_totals = cpu_reset_totals};

/* ---- the device table ---- */

static const dm_DeviceOps *_Atomic device_ops[DM_N_DEVICE_TYPE] = {&cpu_ops, NULL};
static const char *missing[DM_N_DEVICE_TYPE]; /* why a type is not there */
static pthread_once_t cuda_opened = PTHREAD_ONCE_INIT;

static void open_cuda(void) {
  if (!device_ops[DM_CUDA]) missing[DM_CUDA] = dm_backend_open(DM_CUDA);
}

const dm_DeviceOps *dm_device_ops(dm_Device dev) {
  const dm_DeviceOps *ops = device_ops[dev.type];
  if (DM_LIKELY(ops != NULL)) return ops;
  pthread_once(&cuda_opened, open_cuda);
  return device_ops[dev.type];
}

/* Reads the table itself, not dm_device_ops, which would open CUDA. */
dm_status dm_synchronize(void) {
  const dm_DeviceOps *cuda = device_ops[DM_CUDA];
  for (int i = 0; cuda && i < cuda->count(); i++)
    DM_TRY(cuda->synchronize((dm_Device){DM_CUDA, (uint8_t)i}));
  return DM_OK;
}

int64_t dm_live_device_bytes(void) {
  int64_t sum = 0;
  const dm_DeviceOps *cuda = device_ops[DM_CUDA];
  for (int i = 0; DM_UNLIKELY(cuda != NULL) && i < cuda->count(); i++)
    sum += cuda->allocated_bytes((dm_Device){DM_CUDA, (uint8_t)i});
  return sum;
}

int64_t dm_live_bytes(void) {
  int64_t sum = cpu_allocated_bytes((dm_Device){DM_CPU, 0});
  const dm_DeviceOps *cuda = device_ops[DM_CUDA];
  if (DM_LIKELY(!cuda)) return sum;
  sum += dm_live_device_bytes();
  for (int i = 0; cuda->streams && i < cuda->count(); i++)
    sum += cuda->streams->pinned_bytes((dm_Device){DM_CUDA, (uint8_t)i});
  return sum;
}

void dm_device_register(dm_DeviceType type, const dm_DeviceOps *ops) { device_ops[type] = ops; }

bool dm_device_opened(dm_DeviceType type) { return device_ops[type] != NULL; }
const char *dm_device_missing(dm_DeviceType type) { return missing[type]; }

dm_status dm_device_check(dm_Device dev) {
  const dm_DeviceOps *ops = dm_device_ops(dev);
  if (!ops) return dm_fail(DM_EDEV, "no CUDA device: %s", missing[dev.type]);
  if (dev.index < ops->count()) return DM_OK;
  char name[16];
  return dm_fail(DM_EDEV, "no device %s: there are %d (ordinals count from 0)",
                 dm_device_name(dev, name), ops->count());
}

dm_status dm_device_parse(const char *name, dm_Device *out) {
  unsigned index = 0;
  char rest = 0;
  if (strcmp(name, "cpu") == 0) {
    *out = (dm_Device){DM_CPU, 0};
    return DM_OK;
  }
  if (strcmp(name, "cuda") == 0 ||
      (sscanf(name, "cuda:%3u%c", &index, &rest) == 1 && index < 64)) {
    *out = (dm_Device){DM_CUDA, (uint8_t)index};
    return DM_OK;
  }
  return dm_fail(DM_EARG, "unknown device '%s': wanted \"cpu\", \"cuda\" or \"cuda:N\"", name);
}

const char *dm_device_name(dm_Device dev, char buf[16]) {
  if (dev.type == DM_CPU) return "cpu";
  snprintf(buf, 16, "cuda:%d", dev.index);
  return buf;
}
