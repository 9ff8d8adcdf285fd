/* The caching allocator, on the model of PyTorch's CUDACachingAllocator and with its sizes:
   cudaFree waits for the device, so memory is kept and reused instead.

   Segments come from the device and are cut into blocks. Requests of up to 1 MiB are cut from
   segments of 2 MiB (the small pool), larger ones from segments of 20 MiB (the large pool),
   and requests from 10 MiB up get a segment of their own size. A freed block is merged with
   its free neighbours.

   Free blocks are in one tree for each stream and pool, ordered by size and address (a treap,
   R. Seidel & C. Aragon 1996). A request takes the smallest block that holds it, and among
   equals the one at the lowest address (best fit). So the choice depends only on which blocks
   are in use, not on the order in which others were freed: a training step that starts with
   the same blocks in use gets the same addresses each time, which the replay of a graph needs.

   Stream rules, as in PyTorch: a block belongs to the stream that it was allocated on. Freed,
   it serves later requests of that stream at once, since the stream's order protects it. If
   other streams have used it (record_stream), an event is recorded in each of them when it is
   freed, and it becomes free once all have completed.

   Invariants: the blocks of a segment are linked by address and cover it; two neighbours are
   never both free. A block is in use (asked > 0: it is in the table), or waits for events or on
   a list (n_pending > 0), or is free (it is in its tree). Records are allocated on the host
   before anything changes, and are reused. */
#include "allocator.h"

#include <pthread.h>

#include "base/alloc.h"

#ifdef DM_EMULATED
#define POISON DM_ASAN /* the emulated device's memory is the host's */
#else
#define POISON 0
#endif

#define MIB ((int64_t)1 << 20)
#define GRAIN ((int64_t)512)
#define SMALL_REQUEST (1 * MIB) /* the largest request of the small pool */
#define SMALL_SEGMENT (2 * MIB)
#define MEDIUM_REQUEST (10 * MIB) /* from here on a segment has the size of its request */
#define LARGE_SEGMENT (20 * MIB)
#define SEGMENT_GRAIN (2 * MIB)
#define LARGEST ((int64_t)1 << 44)

enum {
  SLAB = 64, /* block records are allocated from the host in slabs */
  FIRST_SLOTS = 1024
};

typedef struct Block Block;
typedef struct Stream Stream;

/* A use of a block by a stream other than its own. When the block is freed its event is
   recorded in that stream, and the use waits in the stream's queue, in the order of
   recording. */
typedef struct Use {
  struct Use *next; /* of the block, then of the stream's queue */
  Stream *stream;
  Block *block;
  void *event;
} Use;

struct Block {
  char *p;
  int64_t n, asked; /* bytes; asked > 0 while in use */
  Stream *stream;
  dm_MemPool pool;
  int n_pending;         /* events that have to complete before it is free */
  bool held;             /* a graph may use it: see dm_allocator_hold */
  Use *uses;             /* while in use */
  Block *before, *after; /* the neighbours in its segment */
  Block *left, *right;   /* its children in the tree; left also links spare records */
};

struct Stream {
  Stream *next;
  void *handle;
  Block *free[2]; /* the roots of DM_POOL_SMALL and DM_POOL_LARGE */
  Stream *home;   /* of a graph's pool, whose free blocks launches use: the stream; or NULL */
  Use *first_pending, *last_pending;
};

typedef struct Slab {
  struct Slab *next;
  Block blocks[SLAB];
} Slab;

/* `table` finds a block in use by its address, since callers free by address. */
struct dm_Allocator {
  pthread_mutex_t lock;
  dm_RawMemory raw;
  dm_MemStats stats;
  int64_t n_raw_allocations;
  Stream *streams; /* few */
  Slab *slabs;
  Block *spare_blocks;
  int64_t n_spare_blocks;
  Use *spare_uses;
  int n_holds, n_pauses;
  Block *limbo;            /* freed while they were held, linked by left; n_pending is 1 */
  Block *later;            /* freed in a pause, with uses; likewise */
  Block **table;           /* blocks in use by address: open addressing, linear probing */
  int64_t n_slots, n_live; /* n_slots: 0 or a power of two, at least twice n_live */
};

static int64_t round_up(int64_t n, int64_t grain) { return (n + grain - 1) / grain * grain; }

/* The segment size for a request of n bytes. */
static int64_t segment_bytes(int64_t n) {
  return n <= SMALL_REQUEST   ? SMALL_SEGMENT
         : n < MEDIUM_REQUEST ? LARGE_SEGMENT
                              : round_up(n, SEGMENT_GRAIN);
}

/* ---- addresses that are forbidden -------------------------------------------- */

/* Poisons free blocks, and the rest of a block beyond the bytes asked for: raw.life does so in
   the stream's order, or else the address sanitizer, at once, which is right for the host's
   memory. Overruns within a segment are reported then. */
static void *order_of(const Stream *s) { return s->home ? s->home->handle : s->handle; }
static void forbid(const dm_Allocator *a, const Stream *s, void *p, int64_t n) {
  if (a->raw.life) a->raw.life(a->raw.ctx, order_of(s), p, n, false);
  else if (POISON) dm_forbid(p, n);
}
static void permit(const dm_Allocator *a, const Stream *s, void *p, int64_t n) {
  if (a->raw.life) a->raw.life(a->raw.ctx, order_of(s), p, n, true);
  else if (POISON) dm_permit(p, n);
}

/* ---- counters ---------------------------------------------------------------- */

/* Adds n to a counter and keeps its peak. */
static void add(dm_MemStat *s, int64_t n) {
  s->current += n;
  s->peak = dm_max_i64(s->peak, s->current);
  if (n > 0) s->allocated += n;
  else s->freed -= n;
}
static void count(dm_Allocator *a, dm_MemCounter what, dm_MemPool pool, int64_t n) {
  add(&a->stats.of[what][pool], n);
  add(&a->stats.of[what][DM_POOL_ALL], n);
}
/* Counts a block that is handed out (sign 1) or returned (sign -1). */
static void count_block(dm_Allocator *a, const Block *b, int sign) {
  count(a, DM_MEM_ALLOCATION, b->pool, sign);
  count(a, DM_MEM_REQUESTED_BYTES, b->pool, sign * b->asked);
  count(a, DM_MEM_ALLOCATED_BYTES, b->pool, sign * round_up(b->asked, GRAIN));
}
static void count_segment(dm_Allocator *a, const Block *b, int sign) {
  count(a, DM_MEM_SEGMENT, b->pool, sign);
  count(a, DM_MEM_RESERVED_BYTES, b->pool, sign * b->n);
}

/* ---- blocks in use, by address ------------------------------------------------ */

/* A hash of an address; it is the slot in the table, and the priority in the treap. */
static uint64_t mixed(const void *p) {
  uint64_t h = (uint64_t)((uintptr_t)p / GRAIN) * 0x9e3779b97f4a7c15u;
  h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
  return h ^ h >> 32;
}
/* Linear probing: the hash gives the first slot, and the next ones follow. */
static int64_t home_slot(const dm_Allocator *a, const void *p) {
  return (int64_t)(mixed(p) >> 32) & (a->n_slots - 1);
}
static int64_t next_slot(const dm_Allocator *a, int64_t i) {
  return (i + 1) & (a->n_slots - 1);
}

/* The slot of p, or the empty slot where it belongs. */
static int64_t slot_of(const dm_Allocator *a, const void *p) {
  int64_t i = home_slot(a, p);
  while (a->table[i] && a->table[i]->p != p) i = next_slot(a, i);
  return i;
}
static Block *block_at(const dm_Allocator *a, const void *p) {
  return a->table ? a->table[slot_of(a, p)] : NULL;
}

static void put_in_table(dm_Allocator *a, Block *b) {
  a->table[slot_of(a, b->p)] = b;
  a->n_live++;
}

/* Removes a block: linear probing without tombstones moves later entries back into the gap
   (Knuth 1973, volume 3, algorithm 6.4R). */
static void take_from_table(dm_Allocator *a, const Block *b) {
  int64_t gap = slot_of(a, b->p);
  for (int64_t i = next_slot(a, gap); a->table[i]; i = next_slot(a, i)) {
    const int64_t mask = a->n_slots - 1, home = home_slot(a, a->table[i]->p);
    /* An entry stays where its probe would not pass the gap. */
    if (((i - home) & mask) < ((i - gap) & mask)) continue;
    a->table[gap] = a->table[i];
    gap = i;
  }
  a->table[gap] = NULL;
  a->n_live--;
}

/* Doubles the table. */
static bool grow_table(dm_Allocator *a) {
  const int64_t n_old = a->n_slots, n = n_old ? 2 * n_old : FIRST_SLOTS;
  Block **old = a->table, **table = dm_alloc_zero(n * (int64_t)sizeof *table);
  if (!table) return false;
  a->table = table;
  a->n_slots = n;
  for (int64_t i = 0; i < n_old; i++)
    if (old[i]) table[slot_of(a, old[i]->p)] = old[i];
  dm_free(old);
  return true;
}

/* ---- records ------------------------------------------------------------------ */

/* Keeps a block's record for reuse. */
static void recycle(dm_Allocator *a, Block *b) {
  b->left = a->spare_blocks;
  a->spare_blocks = b;
  a->n_spare_blocks++;
}

/* Takes a spare record; reserve has made sure that there is one. */
static Block *new_block(dm_Allocator *a, Block value) {
  Block *b = a->spare_blocks;
  a->spare_blocks = b->left;
  a->n_spare_blocks--;
  *b = value;
  return b;
}

/* Prepares for a request: it needs at most two records, for a segment and for what is left of
   it, and one slot. */
static bool reserve(dm_Allocator *a) {
  if (2 * (a->n_live + 1) > a->n_slots && !grow_table(a)) return false;
  if (a->n_spare_blocks >= 2) return true;
  Slab *slab = dm_alloc((int64_t)sizeof *slab);
  if (!slab) return false;
  slab->next = a->slabs;
  a->slabs = slab;
  for (int i = 0; i < SLAB; i++) recycle(a, &slab->blocks[i]);
  return true;
}

/* Finds or makes the record of a stream; NULL if the host has no memory. */
static Stream *stream_of(dm_Allocator *a, void *handle) {
  for (Stream *s = a->streams; s; s = s->next)
    if (s->handle == handle) return s;
  Stream *s = dm_alloc_zero((int64_t)sizeof *s);
  if (!s) return NULL;
  s->handle = handle;
  s->next = a->streams;
  a->streams = s;
  return s;
}

/* A use with an event, reused or new; NULL if there is no memory for it. */
static Use *new_use(dm_Allocator *a) {
  Use *u = a->spare_uses;
  if (u) {
    a->spare_uses = u->next;
    return u;
  }
  u = dm_alloc_zero((int64_t)sizeof *u);
  if (!u || a->raw.event_new(a->raw.ctx, &u->event)) return u;
  dm_free(u);
  return NULL;
}

/* ---- free blocks -------------------------------------------------------------- */

/* The order of the trees: by size, then by address. */
static bool precedes(const Block *a, const Block *b) {
  return a->n != b->n ? a->n < b->n : a->p < b->p;
}

/* The heap order of the treap: a block's hash is larger than those below it. */
static bool is_above(const Block *a, const Block *b) { return mixed(a->p) > mixed(b->p); }

/* A block's tree, and the child on whose side b belongs. */
static Block **tree_of(const Block *b) { return &b->stream->free[b->pool]; }
static Block **side_of(Block *at, const Block *b) {
  return precedes(b, at) ? &at->left : &at->right;
}

/* Inserts b where its hash puts it, and splits the subtree that was there around it. */
static void put_in_tree(Block *b) {
  Block **at = tree_of(b), **less = &b->left, **more = &b->right;
  while (*at && is_above(*at, b)) at = side_of(*at, b);
  Block *below = *at;
  *at = b;
  while (below) { /* it is split in two */
    if (precedes(below, b)) {
      *less = below;
      less = &below->right;
      below = *less;
    } else {
      *more = below;
      more = &below->left;
      below = *more;
    }
  }
  *less = *more = NULL;
}

/* Removes b and merges its two subtrees. */
static void take_from_tree(Block *b) {
  Block **at = tree_of(b), *less = b->left, *more = b->right;
  while (*at != b) at = side_of(*at, b);
  while (less && more) { /* they are merged into one */
    if (is_above(less, more)) {
      *at = less;
      at = &less->right;
      less = *at;
    } else {
      *at = more;
      at = &more->left;
      more = *at;
    }
  }
  *at = less ? less : more;
}

/* The smallest block of n bytes or more, at the lowest address; or NULL. */
static Block *find(Block *tree, int64_t n) {
  Block *best = NULL;
  while (tree) {
    if (tree->n >= n) best = tree;
    tree = tree->n >= n ? tree->left : tree->right;
  }
  return best;
}

/* The block after b in the tree's order, or the first one for b NULL; NULL at the end. */
static Block *next_in(Block *tree, const Block *b) {
  Block *next = NULL;
  while (tree) {
    const bool later = !b || precedes(b, tree);
    if (later) next = tree;
    tree = later ? tree->left : tree->right;
  }
  return next;
}

/* In use and waiting blocks are not merged. */
static bool is_free(const Block *b) { return b && b->asked == 0 && b->n_pending == 0; }

/* Merges b with the block after it, whose record becomes spare. */
static void join_next(dm_Allocator *a, Block *b) {
  Block *gone = b->after;
  b->n += gone->n;
  b->after = gone->after;
  if (b->after) b->after->before = b;
  recycle(a, gone);
}

/* Merges a block that nothing uses any more with its free neighbours and inserts it in its
   tree. */
static void make_free(dm_Allocator *a, Block *b) {
  if (!b->stream->home) forbid(a, b->stream, b->p, b->n);
  if (is_free(b->after)) {
    take_from_tree(b->after);
    join_next(a, b);
  }
  if (is_free(b->before)) {
    b = b->before;
    take_from_tree(b);
    join_next(a, b);
  }
  put_in_tree(b);
}

/* Cuts what b has beyond n bytes off as a free block, unless it is too small to be useful in
   its pool. */
static void split(dm_Allocator *a, Block *b, int64_t n) {
  const int64_t rest = b->n - n;
  if (rest < GRAIN || (b->pool == DM_POOL_LARGE && rest <= SMALL_REQUEST)) return;
  /* The rest belongs to the same segment, right after b. */
  Block *r = new_block(a, (Block){.p = b->p + n,
                                  .n = rest,
                                  .stream = b->stream,
                                  .pool = b->pool,
                                  .before = b,
                                  .after = b->after});
  if (r->after) r->after->before = r;
  b->after = r;
  b->n = n;
  put_in_tree(r);
}

/* ---- segments ----------------------------------------------------------------- */

/* Allocates a segment as one free block; NULL if the device has no memory. */
static Block *new_segment(dm_Allocator *a, Stream *s, dm_MemPool pool, int64_t n) {
  void *p = NULL;
  if (!a->raw.alloc(a->raw.ctx, n, &p)) return NULL;
  Block *b = new_block(a, (Block){.p = p, .n = n, .stream = s, .pool = pool});
  a->n_raw_allocations++;
  count_segment(a, b, 1);
  make_free(a, b);
  return b;
}

/* Returns a free block that is a whole segment to the device. */
static void free_segment(dm_Allocator *a, Block *b) {
  take_from_tree(b);
  count_segment(a, b, -1);
  permit(a, b->stream, b->p, b->n);
  a->raw.free(a->raw.ctx, b->p, b->n);
  recycle(a, b);
}

/* Returns all segments of a tree that have no block in use. */
static void free_segments_of(dm_Allocator *a, Block *const *tree) {
  for (Block *b = next_in(*tree, NULL), *next; b; b = next) {
    next = next_in(*tree, b);
    if (!b->before && !b->after) free_segment(a, b);
  }
}

/* Frees the blocks whose last event has completed. Events of one stream complete in the order
   of its queue, so that the first pending one ends the search. */
static void finish_uses(dm_Allocator *a, bool wait) {
  if (a->n_pauses > 0) return;
  for (Stream *s = a->streams; s; s = s->next) {
    /* The events of a stream are waited for, or asked, from the oldest on. */
    while (s->first_pending) {
      Use *u = s->first_pending;
      if (wait) a->raw.event_wait(a->raw.ctx, u->event);
      else if (!a->raw.event_done(a->raw.ctx, u->event)) break;
      s->first_pending = u->next;
      u->next = a->spare_uses;
      a->spare_uses = u;
      if (--u->block->n_pending == 0) make_free(a, u->block);
    }
  }
}

/* Returns all memory that is not in use, nor a graph's. */
static void release_cached(dm_Allocator *a) {
  if (a->n_pauses > 0) return;
  finish_uses(a, true);
  for (Stream *s = a->streams; s; s = s->next) {
    if (s->home) continue;
    free_segments_of(a, &s->free[DM_POOL_SMALL]);
    free_segments_of(a, &s->free[DM_POOL_LARGE]);
  }
}

/* ---- requests ----------------------------------------------------------------- */

/* Finds a block when the device has no memory left: waits for pending events, then returns all
   unused segments and allocates one no larger than needed. */
static Block *scrape(dm_Allocator *a, Stream *s, dm_MemPool pool, int64_t n) {
  finish_uses(a, true);
  Block *b = find(s->free[pool], n);
  if (b) return b;
  release_cached(a);
  return new_segment(a, s, pool, round_up(n, SEGMENT_GRAIN));
}

/* Calls raw.pressure, which may free blocks of its own; the lock is released meanwhile. */
static bool relieved(dm_Allocator *a) {
  if (!a->raw.pressure) return false;
  pthread_mutex_unlock(&a->lock);
  const bool yes = a->raw.pressure(a->raw.ctx);
  pthread_mutex_lock(&a->lock);
  return yes;
}

/* Moves a segment that is free as a whole from the pool's stream to the pool; NULL if there is
   none of n bytes or more. */
static Block *borrow(const dm_Allocator *a, Stream *s, dm_MemPool pool, int64_t n) {
  Block *b = find(s->home->free[pool], n);
  while (b && (b->before || b->after)) b = next_in(s->home->free[pool], b);
  if (!b) return NULL;
  take_from_tree(b);
  b->stream = s;
  permit(a, s, b->p, b->n);
  put_in_tree(b);
  return b;
}

/* Finds or makes a free block of n bytes or more; NULL if there is none. The lock is held. */
static Block *obtain(dm_Allocator *a, void *stream, int64_t n) {
  const dm_MemPool pool = n > SMALL_REQUEST ? DM_POOL_LARGE : DM_POOL_SMALL;
  Stream *s = stream_of(a, stream);
  if (!s || !reserve(a)) return NULL;
  finish_uses(a, false);
  /* The cache first, then the device, then whatever frees memory. */
  Block *b = find(s->free[pool], n);
  if (!b && s->home) b = borrow(a, s, pool, n);
  if (!b) b = new_segment(a, s, pool, segment_bytes(n));
  if (b) return b;
  a->stats.num_alloc_retries++;
  b = scrape(a, s, pool, n);
  if (!b && relieved(a) && reserve(a)) b = scrape(a, s, pool, n);
  return b;
}

/* Rounds up to GRAIN, finds a block, cuts off the rest, and enters it in the table. */
dm_status dm_allocator_alloc(dm_Allocator *a, void *stream, int64_t n_bytes, void **out) {
  const bool possible = n_bytes > 0 && n_bytes <= LARGEST && !dm_alloc_should_fail();
  const int64_t n = possible ? round_up(n_bytes, GRAIN) : 0;
  pthread_mutex_lock(&a->lock);
  Block *b = possible ? obtain(a, stream, n) : NULL;
  if (b) {
    take_from_tree(b);
    split(a, b, n);
    b->asked = n_bytes;
    b->held = false;
    put_in_table(a, b);
    count_block(a, b, 1);
    permit(a, b->stream, b->p, n_bytes);
    *out = b->p;
  } else {
    a->stats.num_ooms++;
  }
  pthread_mutex_unlock(&a->lock);
  return b ? DM_OK : DM_EMEM;
}

/* Records an event in every other stream that used the block, and queues it. */
static void queue_uses(dm_Allocator *a, Block *b) {
  for (Use *u = b->uses, *next; u; u = next) {
    next = u->next;
    a->raw.event_record(a->raw.ctx, u->event, u->stream->handle);
    u->next = NULL;
    if (u->stream->first_pending) u->stream->last_pending->next = u;
    else u->stream->first_pending = u;
    u->stream->last_pending = u;
    b->n_pending++;
  }
  b->uses = NULL;
}

/* Puts a block that is in use no more on a list, where nothing is merged with it. */
static void set_aside(Block **list, Block *b) {
  b->n_pending = 1;
  b->left = *list;
  *list = b;
}

/* A block that is in use no more becomes free, or waits for the events of other streams. */
static void let_go(dm_Allocator *a, Block *b) {
  if (!b->uses) make_free(a, b);
  else if (a->n_pauses > 0) set_aside(&a->later, b);
  else queue_uses(a, b);
}

static void empty_list(dm_Allocator *a, Block **list) {
  while (*list) {
    Block *b = *list;
    *list = b->left;
    b->n_pending = 0;
    let_go(a, b);
  }
}

static void free_block(dm_Allocator *a, Block *b) {
  take_from_table(a, b);
  count_block(a, b, -1);
  b->asked = 0;
  if (b->held && a->n_holds > 0) set_aside(&a->limbo, b);
  else let_go(a, b);
}

/* False if p is no block in use. */
bool dm_allocator_free(dm_Allocator *a, void *p) {
  pthread_mutex_lock(&a->lock);
  Block *b = block_at(a, p);
  if (b) free_block(a, b);
  pthread_mutex_unlock(&a->lock);
  return b != NULL;
}

/* The block's own stream needs no event. */
static bool is_used_on(const Block *b, const Stream *s) {
  if (b->stream == s) return true;
  for (const Use *u = b->uses; u; u = u->next)
    if (u->stream == s) return true;
  return false;
}

/* Notes that `stream` uses b, once per stream. */
static dm_status record_use(dm_Allocator *a, Block *b, void *stream) {
  if (!b) return DM_EARG;
  Stream *s = stream_of(a, stream);
  if (!s) return DM_EMEM;
  if (is_used_on(b, s)) return DM_OK;
  Use *u = new_use(a);
  if (!u) return DM_EMEM;
  *u = (Use){.next = b->uses, .stream = s, .block = b, .event = u->event};
  b->uses = u;
  return DM_OK;
}

dm_status dm_allocator_record_stream(dm_Allocator *a, void *p, void *stream) {
  pthread_mutex_lock(&a->lock);
  const dm_status st = record_use(a, block_at(a, p), stream);
  pthread_mutex_unlock(&a->lock);
  return st;
}

void dm_allocator_empty_cache(dm_Allocator *a) {
  pthread_mutex_lock(&a->lock);
  release_cached(a);
  pthread_mutex_unlock(&a->lock);
}

/* ---- graphs ------------------------------------------------------------------- */

bool dm_allocator_pool_new(dm_Allocator *a, void *key, void *stream) {
  pthread_mutex_lock(&a->lock);
  Stream *home = stream_of(a, stream), *s = home ? stream_of(a, key) : NULL;
  if (s) s->home = home;
  pthread_mutex_unlock(&a->lock);
  return s != NULL;
}

/* Moves free blocks from a tree to that of the stream. */
static void give_tree(const dm_Allocator *a, Block **tree, Stream *to) {
  while (*tree) {
    Block *b = *tree;
    take_from_tree(b);
    b->stream = to;
    forbid(a, to, b->p, b->n);
    put_in_tree(b);
  }
}

/* Blocks that are in use, wait or are set aside keep their record and change its stream. */
static void give_list(Block *list, const Stream *from, Stream *to) {
  for (Block *b = list; b; b = b->left)
    if (b->stream == from) b->stream = to;
}

void dm_allocator_pool_free(dm_Allocator *a, void *key) {
  pthread_mutex_lock(&a->lock);
  Stream *from = stream_of(a, key), *to = from ? from->home : NULL;
  if (to) {
    give_tree(a, &from->free[DM_POOL_SMALL], to);
    give_tree(a, &from->free[DM_POOL_LARGE], to);
    give_list(a->limbo, from, to);
    give_list(a->later, from, to);
    for (int64_t i = 0; i < a->n_slots; i++)
      if (a->table[i] && a->table[i]->stream == from) a->table[i]->stream = to;
    for (const Stream *s = a->streams; s; s = s->next)
      for (const Use *u = s->first_pending; u; u = u->next)
        if (u->block->stream == from) u->block->stream = to;
    from->home = NULL;
  }
  pthread_mutex_unlock(&a->lock);
}

void dm_allocator_hold(dm_Allocator *a, void *key) {
  pthread_mutex_lock(&a->lock);
  for (int64_t i = 0; i < a->n_slots; i++)
    if (a->table[i] && a->table[i]->stream->handle != key) a->table[i]->held = true;
  a->n_holds++;
  pthread_mutex_unlock(&a->lock);
}

void dm_allocator_let_go(dm_Allocator *a) {
  pthread_mutex_lock(&a->lock);
  if (--a->n_holds == 0) {
    for (int64_t i = 0; i < a->n_slots; i++)
      if (a->table[i]) a->table[i]->held = false;
    empty_list(a, &a->limbo);
  }
  pthread_mutex_unlock(&a->lock);
}

void dm_allocator_pause(dm_Allocator *a, bool pause) {
  pthread_mutex_lock(&a->lock);
  a->n_pauses += pause ? 1 : -1;
  if (a->n_pauses == 0) empty_list(a, &a->later);
  pthread_mutex_unlock(&a->lock);
}

/* ---- statistics --------------------------------------------------------------- */

void dm_allocator_stats(dm_Allocator *a, dm_MemStats *out) {
  pthread_mutex_lock(&a->lock);
  *out = a->stats;
  pthread_mutex_unlock(&a->lock);
}

int64_t dm_allocator_allocated_bytes(dm_Allocator *a) {
  pthread_mutex_lock(&a->lock);
  const int64_t n = a->stats.of[DM_MEM_ALLOCATED_BYTES][DM_POOL_ALL].current;
  pthread_mutex_unlock(&a->lock);
  return n;
}

int64_t dm_allocator_raw_allocations(dm_Allocator *a) {
  pthread_mutex_lock(&a->lock);
  const int64_t n = a->n_raw_allocations;
  pthread_mutex_unlock(&a->lock);
  return n;
}

void dm_allocator_reset_peaks(dm_Allocator *a) {
  pthread_mutex_lock(&a->lock);
  for (int i = 0; i < DM_N_MEM; i++)
    for (int pool = 0; pool < DM_N_POOL; pool++)
      a->stats.of[i][pool].peak = a->stats.of[i][pool].current;
  pthread_mutex_unlock(&a->lock);
}

void dm_allocator_reset_totals(dm_Allocator *a) {
  pthread_mutex_lock(&a->lock);
  for (int i = 0; i < DM_N_MEM; i++)
    for (int pool = 0; pool < DM_N_POOL; pool++)
      a->stats.of[i][pool].allocated = a->stats.of[i][pool].freed = 0;
  a->stats.num_alloc_retries = a->stats.num_ooms = 0;
  pthread_mutex_unlock(&a->lock);
}

/* The largest block of a tree is the rightmost one. */
static int64_t largest_in(const Block *tree) {
  while (tree && tree->right) tree = tree->right;
  return tree ? tree->n : 0;
}

dm_AllocatorUsage dm_allocator_usage(dm_Allocator *a) {
  pthread_mutex_lock(&a->lock);
  dm_AllocatorUsage usage = {
      .allocated = a->stats.of[DM_MEM_ALLOCATED_BYTES][DM_POOL_ALL].current,
      .reserved = a->stats.of[DM_MEM_RESERVED_BYTES][DM_POOL_ALL].current};
  for (const Stream *s = a->streams; s; s = s->next)
    for (int pool = DM_POOL_SMALL; pool <= DM_POOL_LARGE; pool++)
      usage.largest_free = dm_max_i64(usage.largest_free, largest_in(s->free[pool]));
  pthread_mutex_unlock(&a->lock);
  return usage;
}

void dm_allocator_each_live(dm_Allocator *a, dm_LiveBlockFn *fn, void *ctx) {
  pthread_mutex_lock(&a->lock);
  for (int64_t i = 0; i < a->n_slots; i++)
    if (a->table[i]) fn(ctx, a->table[i]->p, a->table[i]->asked);
  pthread_mutex_unlock(&a->lock);
}

/* ---- from first to last ------------------------------------------------------- */

dm_Allocator *dm_allocator_new(const dm_RawMemory *raw) {
  dm_Allocator *a = dm_alloc_zero((int64_t)sizeof *a);
  if (!a) return NULL;
  if (pthread_mutex_init(&a->lock, NULL) != 0) {
    dm_free(a);
    return NULL;
  }
  a->raw = *raw;
  return a;
}

#define FREE_EACH(TYPE, LIST)                           \
  for (TYPE *each = (LIST), *next; each; each = next) { \
    next = each->next;                                  \
    dm_free(each);                                      \
  }

/* Frees blocks in use too, then all segments, events and records. */
void dm_allocator_delete(dm_Allocator *a) {
  if (!a) return;
  a->n_holds = a->n_pauses = 0;
  empty_list(a, &a->limbo);
  empty_list(a, &a->later);
  for (int64_t i = 0; i < a->n_slots; i++)
    while (a->table[i]) free_block(a, a->table[i]); /* another block may move to the slot */
  release_cached(a);
  for (Use *u = a->spare_uses; u; u = u->next) a->raw.event_free(a->raw.ctx, u->event);
  FREE_EACH(Use, a->spare_uses)
  FREE_EACH(Stream, a->streams)
  FREE_EACH(Slab, a->slabs)
  dm_free(a->table);
  pthread_mutex_destroy(&a->lock);
  dm_free(a);
}
