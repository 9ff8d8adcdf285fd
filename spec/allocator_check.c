/* Checks kernels/allocator.c, the caching allocator of a CUDA device, with a mock device: its
   segments come from malloc up to a limit, and the checks decide the progress of its streams.
   is_sound() verifies the allocator's invariants after each step. Under AddressSanitizer the
   bytes outside of live blocks are poisoned. Prints "N passed, N failed". */
#define DM_EMULATED 1 /* the device's memory is the host's */
#include "../kernels/allocator.c"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int n_passed, n_failed;

static void check_at(bool ok, const char *what, int line) {
  if (ok) {
    n_passed++;
    return;
  }
  n_failed++;
  printf("allocator_check.c:%d: %s\n", line, what);
}
#define CHECK(cond) check_at((cond), #cond, __LINE__)

/* ---- random numbers: xorshift (Marsaglia 2003) -------------------------------- */

static uint64_t next_u64(uint64_t *seed) {
  *seed ^= *seed << 13;
  *seed ^= *seed >> 7;
  *seed ^= *seed << 17;
  return *seed;
}
static int64_t below(uint64_t *seed, int64_t n) {
  return (int64_t)(next_u64(seed) % (uint64_t)n);
}

/* ---- a device ------------------------------------------------------------------ */

enum { N_STREAM = 4, MAX_SEGMENT = 1024 };

/* Work is numbered in the order of launching; `done` of it has run. */
typedef struct Queue {
  atomic_llong launched, done;
} Queue;

typedef struct Event {
  Queue *q; /* NULL: not recorded yet */
  int64_t at;
} Event;

typedef struct Device {
  int64_t limit, used; /* bytes */
  struct {
    void *p;
    int64_t n;
  } segments[MAX_SEGMENT];
  int n_segments, n_events, n_waits, n_pressure;
  bool wrong, no_events; /* asked for something senseless; event_new fails */
  Queue queues[N_STREAM];
  dm_Allocator *a;
  void *ballast; /* what pressure frees */
} Device;

static bool device_alloc(void *ctx, int64_t n, void **out) {
  Device *d = ctx;
  d->wrong |= n <= 0 || n % SEGMENT_GRAIN != 0;
  if (d->used + n > d->limit || d->n_segments == MAX_SEGMENT) return false;
  void *p = aligned_alloc(GRAIN, (size_t)n);
  if (!p) return false;
  d->segments[d->n_segments].p = p;
  d->segments[d->n_segments++].n = n;
  d->used += n;
  *out = p;
  return true;
}
static void device_free(void *ctx, void *p, int64_t n) {
  Device *d = ctx;
  int i = 0;
  while (i < d->n_segments && d->segments[i].p != p) i++;
  if (i == d->n_segments || d->segments[i].n != n) {
    d->wrong = true;
    return;
  }
  d->segments[i] = d->segments[--d->n_segments];
  d->used -= n;
  free(p);
}

static bool event_new(void *ctx, void **out) {
  Device *d = ctx;
  Event *e = d->no_events ? NULL : dm_alloc_zero((int64_t)sizeof *e);
  if (e) d->n_events++;
  *out = e;
  return e != NULL;
}
static void event_record(void *ctx, void *event, void *stream) {
  DM_UNUSED(ctx);
  Queue *q = stream;
  *(Event *)event = (Event){q, atomic_load(&q->launched)};
}
static bool event_done(void *ctx, void *event) {
  Device *d = ctx;
  const Event *e = event;
  d->wrong |= !e->q;
  return e->q && atomic_load(&e->q->done) >= e->at;
}
static void event_wait(void *ctx, void *event) {
  Device *d = ctx;
  const Event *e = event;
  d->n_waits++;
  d->wrong |= !e->q;
  long long done = atomic_load(&e->q->done);
  while (done < e->at && !atomic_compare_exchange_weak(&e->q->done, &done, e->at)) {}
}
static void event_free(void *ctx, void *event) {
  ((Device *)ctx)->n_events--;
  dm_free(event);
}

static bool free_ballast(void *ctx) {
  Device *d = ctx;
  d->n_pressure++;
  if (!d->ballast) return false;
  dm_allocator_free(d->a, d->ballast);
  d->ballast = NULL;
  return true;
}

static const dm_RawMemory raw_functions = {.alloc = device_alloc,
                                           .free = device_free,
                                           .event_new = event_new,
                                           .event_record = event_record,
                                           .event_done = event_done,
                                           .event_wait = event_wait,
                                           .event_free = event_free,
                                           .pressure = free_ballast};

static dm_Allocator *open_device(Device *d, int64_t limit) {
  memset(d, 0, sizeof *d);
  d->limit = limit;
  dm_RawMemory raw = raw_functions;
  raw.ctx = d;
  return d->a = dm_allocator_new(&raw);
}
static bool close_device(Device *d) {
  dm_allocator_delete(d->a);
  return !d->wrong && d->used == 0 && d->n_segments == 0 && d->n_events == 0;
}

/* Work launched on stream i, and all that was launched there done. */
static void launch(Device *d, int i) { atomic_fetch_add(&d->queues[i].launched, 1); }
static void catch_up(Device *d, int i) {
  atomic_store(&d->queues[i].done, atomic_load(&d->queues[i].launched));
}

/* NULL when refused. */
static void *get(Device *d, int stream, int64_t n) {
  void *p = NULL;
  const dm_status st = dm_allocator_alloc(d->a, &d->queues[stream], n, &p);
  return st == DM_OK ? p : NULL;
}
static void give(Device *d, void *p) { CHECK(dm_allocator_free(d->a, p)); }
static dm_status record(Device *d, void *p, int stream) {
  return dm_allocator_record_stream(d->a, p, &d->queues[stream]);
}

static dm_MemStat stat_of(Device *d, dm_MemCounter what, dm_MemPool pool) {
  dm_MemStats m;
  dm_allocator_stats(d->a, &m);
  return m.of[what][pool];
}
static int64_t reserved(Device *d) {
  return stat_of(d, DM_MEM_RESERVED_BYTES, DM_POOL_ALL).current;
}

/* ---- the invariants ------------------------------------------------------------ */

static bool linked(const Block *b) {
  const Block *after = b->after;
  if (!after) return true;
  return after->before == b && after->p == b->p + b->n && after->stream == b->stream &&
         after->pool == b->pool && !(is_free(b) && is_free(after));
}

/* A tree holds free blocks of its stream and pool in order; none is above its parent. */
static bool tree_holds(const Stream *s, dm_MemPool pool, int64_t *n_bytes, int *n_free) {
  Block *tree = s->free[pool];
  for (const Block *b = next_in(tree, NULL); b; b = next_in(tree, b)) {
    if (!is_free(b) || b->stream != s || b->pool != pool || !linked(b)) return false;
    if ((b->left && is_above(b->left, b)) || (b->right && is_above(b->right, b))) return false;
    *n_bytes += b->n;
    *n_free += 1;
  }
  return true;
}

/* All blocks cover all segments. *n_free: how many blocks are free. */
static bool sound(Device *d, int *n_free) {
  const dm_Allocator *a = d->a;
  int64_t cover = 0, n_live = 0, waiting_12 = 0; /* bytes; 12 times the bytes that wait */
  *n_free = 0;
  for (int64_t i = 0; i < a->n_slots; i++) {
    const Block *b = a->table[i];
    if (!b) continue;
    if (b->asked <= 0 || b->asked > b->n || !linked(b) || block_at(a, b->p) != b) return false;
    cover += b->n;
    n_live++;
  }
  for (const Stream *s = a->streams; s; s = s->next) {
    for (int pool = DM_POOL_SMALL; pool <= DM_POOL_LARGE; pool++)
      if (!tree_holds(s, (dm_MemPool)pool, &cover, n_free)) return false;
    for (const Use *u = s->first_pending; u; u = u->next) {
      const Block *b = u->block; /* met once a pending use: 1 to 3 times */
      if (b->asked != 0 || b->n_pending < 1 || !linked(b)) return false;
      waiting_12 += b->n * (12 / b->n_pending);
    }
  }
  for (const Block *b = a->limbo; b; b = b->left) cover += linked(b) ? b->n : -1;
  for (const Block *b = a->later; b; b = b->left) cover += linked(b) ? b->n : -1;
  return !d->wrong && n_live == a->n_live && 2 * n_live <= a->n_slots &&
         cover + waiting_12 / 12 == d->used && reserved(d) == d->used;
}
static bool is_sound(Device *d) {
  int n_free;
  return sound(d, &n_free);
}
static int free_blocks(Device *d) {
  int n_free;
  return sound(d, &n_free) ? n_free : -1;
}

/* ---- sizes ----------------------------------------------------------------------- */

static void check_sizes(void) {
  static const struct {
    int64_t n_bytes, segment;
    dm_MemPool pool;
  } sizes[] = {{1, 2 * MIB, DM_POOL_SMALL},
               {512, 2 * MIB, DM_POOL_SMALL},
               {MIB, 2 * MIB, DM_POOL_SMALL},
               {MIB + 1, 20 * MIB, DM_POOL_LARGE},
               {10 * MIB - 512, 20 * MIB, DM_POOL_LARGE},
               {10 * MIB, 10 * MIB, DM_POOL_LARGE},
               {11 * MIB, 12 * MIB, DM_POOL_LARGE},
               {40 * MIB + 1, 42 * MIB, DM_POOL_LARGE}};
  for (int i = 0; i < DM_COUNT(sizes); i++) {
    Device d;
    open_device(&d, 64 * MIB);
    void *p = get(&d, 0, sizes[i].n_bytes);
    CHECK(p && (uintptr_t)p % 512 == 0 && d.used == sizes[i].segment);
    CHECK(stat_of(&d, DM_MEM_SEGMENT, sizes[i].pool).current == 1);
    CHECK(stat_of(&d, DM_MEM_SEGMENT, DM_POOL_ALL).current == 1);
    CHECK(stat_of(&d, DM_MEM_ALLOCATED_BYTES, sizes[i].pool).current ==
          (sizes[i].n_bytes + 511) / 512 * 512);
    CHECK(stat_of(&d, DM_MEM_REQUESTED_BYTES, sizes[i].pool).current == sizes[i].n_bytes);
    CHECK(is_sound(&d));
    CHECK(close_device(&d)); /* the block is still in use */
  }
  Device d;
  open_device(&d, 64 * MIB);
  CHECK(!get(&d, 0, 0) && !get(&d, 0, -1) && !get(&d, 0, INT64_MAX) && !get(&d, 0, LARGEST));
  dm_MemStats m;
  dm_allocator_stats(d.a, &m);
  CHECK(m.num_ooms == 4 && m.num_alloc_retries == 1 && d.used == 0);
  CHECK(close_device(&d));
}

/* ---- reuse, splitting, joining ------------------------------------------------- */

static void check_reuse(void) {
  Device d;
  open_device(&d, 64 * MIB);
  void *p = get(&d, 0, 5000);
  give(&d, p);
  CHECK(get(&d, 1, 5000) != p); /* another stream's */
  CHECK(get(&d, 0, 4900) == p);
  CHECK(!dm_allocator_free(d.a, (char *)p + 512) && !dm_allocator_free(d.a, &d));
  give(&d, p);
  CHECK(!dm_allocator_free(d.a, p)); /* twice */
  CHECK(is_sound(&d) && dm_allocator_raw_allocations(d.a) == 2);

  /* what is left of a large block becomes a block of its own above 1 MiB */
  p = get(&d, 0, 19 * MIB + 512);
  CHECK(stat_of(&d, DM_MEM_SEGMENT, DM_POOL_LARGE).current == 1 && d.used == 24 * MIB);
  give(&d, p);
  CHECK(get(&d, 0, 19 * MIB) == p);
  CHECK(!block_at(d.a, p)->after);
  give(&d, p);
  CHECK(get(&d, 0, 19 * MIB - 512) == p);
  CHECK(block_at(d.a, p)->after && block_at(d.a, p)->n == 19 * MIB - 512);
  CHECK(close_device(&d));
}

/* A graph's pool serves it alone, and afterwards its stream. What was in use at the capture is
   held; in a pause nothing is asked of the device. */
static void check_graphs(void) {
  Device d;
  int key;
  void *in = NULL, *other = NULL;
  open_device(&d, 64 * MIB);
  char *p = get(&d, 0, MIB);
  CHECK(dm_allocator_pool_new(d.a, &key, &d.queues[0]));
  CHECK(dm_allocator_alloc(d.a, &key, MIB, &in) == DM_OK && in != p);
  CHECK(dm_allocator_alloc(d.a, &key, 2 * MIB, &other) == DM_OK);
  give(&d, other);
  dm_allocator_hold(d.a, &key);
  dm_allocator_pause(d.a, true);
  give(&d, p);
  CHECK(get(&d, 0, MIB) == p + MIB && is_sound(&d)); /* p is held */
  void *used = get(&d, 0, 512);
  CHECK(record(&d, used, 1) == DM_OK);
  launch(&d, 1);
  give(&d, used);
  CHECK(get(&d, 0, 512) != used && d.n_waits == 0); /* its event is recorded later */
  dm_allocator_pause(d.a, false);
  catch_up(&d, 1);
  CHECK(get(&d, 0, 512) == used && is_sound(&d));
  /* an emptied cache keeps the pool, whose free memory a launch writes */
  const int64_t before = d.used;
  dm_allocator_empty_cache(d.a);
  CHECK(d.used == before && is_sound(&d));
  dm_allocator_pool_free(d.a, &key);
  dm_allocator_let_go(d.a);
  /* both halves of free segments, in the order of their addresses */
  void *one = get(&d, 0, MIB), *two = get(&d, 0, MIB);
  CHECK((one == p && two == (char *)in + MIB) || (two == p && one == (char *)in + MIB));
  CHECK(get(&d, 0, 2 * MIB) == other && is_sound(&d));
  give(&d, in);
  CHECK(get(&d, 0, MIB) == in && is_sound(&d));

  /* the next pool takes a segment that is free as a whole */
  give(&d, other);
  CHECK(dm_allocator_pool_new(d.a, &key, &d.queues[0]));
  CHECK(dm_allocator_alloc(d.a, &key, 2 * MIB, &used) == DM_OK && used == other);
  CHECK(d.used == before && is_sound(&d));
  dm_allocator_pool_free(d.a, &key);
  CHECK(close_device(&d));
}

/* Four blocks of one segment, freed in each of 24 orders, end as one. */
static void check_joining(void) {
  static const int64_t sizes[] = {512, 700 << 10, 3000, MIB};
  bool cut = true, joined = true;
  for (int order = 0; order < 256; order++) {
    int who[4] = {order & 3, order >> 2 & 3, order >> 4 & 3, order >> 6};
    if ((1 << who[0] | 1 << who[1] | 1 << who[2] | 1 << who[3]) != 15) continue;
    Device d;
    char *p[4];
    open_device(&d, 2 * MIB);
    for (int i = 0; i < 4; i++) p[i] = get(&d, 0, sizes[i]);
    for (int i = 0; i < 3; i++) cut = cut && p[i + 1] == p[i] + (sizes[i] + 511) / 512 * 512;
    for (int i = 0; i < 4; i++) {
      give(&d, p[who[i]]);
      joined = joined && is_sound(&d);
    }
    joined = joined && free_blocks(&d) == 1;
    CHECK(close_device(&d));
  }
  CHECK(cut);
  CHECK(joined);
}

/* Of the free blocks that hold a request the smallest, of equal ones the first by
   address, in whatever order they were freed. A grain in use between them keeps them
   apart, and nothing else is free. */
static void check_best_fit(void) {
  enum { N = 32 };
  Device d;
  open_device(&d, 64 * MIB);
  void *p[N];
  for (int i = 0; i < N; i++) {
    p[i] = get(&d, 0, 512 * (98 + i % 4));
    CHECK(get(&d, 0, 512));
  }
  CHECK(get(&d, 0, dm_allocator_usage(d.a).largest_free) && free_blocks(&d) == 0);
  for (int i = 0; i < N; i++) give(&d, p[i * 5 % N]);
  CHECK(free_blocks(&d) == N && dm_allocator_usage(d.a).largest_free == 101 * 512);
  for (int i = 1; i < N; i += 4) CHECK(get(&d, 0, 99 * 512) == p[i]);
  CHECK(get(&d, 0, 99 * 512) == p[2]); /* those of 99 grains are all in use */
  CHECK(get(&d, 0, 101 * 512 - 1) == p[3] && d.n_segments == 1);
  CHECK(is_sound(&d) && close_device(&d));
}

static int depth(const Block *tree) {
  if (!tree) return 0;
  const int left = depth(tree->left), right = depth(tree->right);
  return 1 + (left > right ? left : right);
}

/* However many are free and however they lie, a block is found in a few steps: also
   where their distance is a small multiple of a Fibonacci number of grains. */
static void check_depth(void) {
  enum { N = 1000 };
  Device d;
  open_device(&d, 64 * MIB);
  void *p[2 * N];
  for (int i = 0; i < 2 * N; i++) p[i] = get(&d, 0, 512 * 34);
  for (int i = 0; i < N; i++) give(&d, p[2 * i]);
  CHECK(free_blocks(&d) >= N && depth(d.a->streams->free[DM_POOL_SMALL]) < 40);
  CHECK(is_sound(&d) && close_device(&d));
}

/* A new segment that is cut takes two records, however many are left. */
static void check_records(void) {
  bool right = true;
  for (int n = 0; n <= SLAB; n++) {
    Device d;
    open_device(&d, 4 * MIB);
    for (int i = 0; i < n; i++) right = right && get(&d, 0, 512);
    right = right && get(&d, 1, 512) && is_sound(&d);
    right = close_device(&d) && right;
  }
  CHECK(right);
}

/* After its first run a step takes no raw memory, gets its blocks where they were,
   though they are freed in another order each time, and all joins up in the end. */
static void check_steps(void) {
  enum { N = 400 };
  Device d;
  void *first[N];
  bool again = true;
  open_device(&d, 4096 * MIB);
  int64_t after_first = 0;
  for (int step = 0; step < 5; step++) {
    uint64_t seed = 42;
    void *p[N];
    for (int i = 0; i < N; i++) {
      p[i] = get(&d, 0, 1 + below(&seed, i % 5 ? 100 << 10 : 6 * MIB));
      if (step == 1) first[i] = p[i];
      again = again && (step < 2 || p[i] == first[i]);
      if (i % 3 == 2) {
        give(&d, p[i - 1]);
        p[i - 1] = NULL;
      }
    }
    for (int i = 0; i < N; i++) {
      void *const next = p[(i * 7 + step * 13) % N];
      if (next) give(&d, next);
    }
    if (step == 0) after_first = dm_allocator_raw_allocations(d.a);
  }
  CHECK(again);
  CHECK(after_first > 10 && dm_allocator_raw_allocations(d.a) == after_first);
  CHECK(free_blocks(&d) == d.n_segments);
  dm_allocator_empty_cache(d.a);
  CHECK(d.used == 0 && reserved(&d) == 0 && free_blocks(&d) == 0);
  CHECK(close_device(&d));
}

/* ---- streams ------------------------------------------------------------------------ */

static void check_streams(void) {
  Device d;
  open_device(&d, 2 * MIB);
  char *p = get(&d, 0, MIB);
  launch(&d, 1);
  launch(&d, 2);
  CHECK(record(&d, p, 1) == DM_OK && record(&d, p, 2) == DM_OK);
  CHECK(record(&d, p, 1) == DM_OK && record(&d, p, 0) == DM_OK && d.n_events == 2);
  CHECK(record(&d, p + 512, 1) == DM_EARG && !dm_allocator_free(d.a, p + 512));
  give(&d, p);
  CHECK(record(&d, p, 1) == DM_EARG && !dm_allocator_free(d.a, p));
  CHECK(dm_allocator_allocated_bytes(d.a) == 0 && is_sound(&d));

  char *q = get(&d, 0, 512); /* the other half of the segment */
  CHECK(q == p + MIB && is_sound(&d));
  catch_up(&d, 1);
  CHECK(get(&d, 0, 512) == q + 512 && is_sound(&d)); /* stream 2 has not */
  catch_up(&d, 2);
  char *r = get(&d, 0, MIB);
  CHECK(r == p && d.n_waits == 0 && is_sound(&d));

  /* events are used again; what is launched after the block was freed does not matter */
  launch(&d, 3);
  CHECK(record(&d, r, 3) == DM_OK && d.n_events == 2);
  give(&d, r);
  catch_up(&d, 3);
  launch(&d, 3);
  CHECK(get(&d, 0, MIB) == p && d.n_waits == 0);

  /* nothing but what waits is left: then it is waited for */
  launch(&d, 1);
  CHECK(record(&d, p, 1) == DM_OK);
  give(&d, p);
  CHECK(get(&d, 0, MIB) == p && d.n_waits == 1);
  d.no_events = true;
  CHECK(record(&d, q, 1) == DM_OK && record(&d, q, 2) == DM_OK);
  CHECK(record(&d, q, 3) == DM_EMEM && d.n_events == 2 && is_sound(&d));
  CHECK(close_device(&d));

  open_device(&d, 2 * MIB); /* closed, or emptied, while a block waits */
  for (int i = 0; i < 2; i++) {
    p = get(&d, 0, 512);
    launch(&d, 1);
    CHECK(record(&d, p, 1) == DM_OK);
    if (i == 0) {
      give(&d, p);
      dm_allocator_empty_cache(d.a);
      CHECK(d.used == 0 && d.n_waits == 1);
    }
  }
  CHECK(close_device(&d) && d.n_waits == 2);
}

/* ---- memory ends ----------------------------------------------------------------- */

/* Requests until no record is left: one each, the last a new segment's two. */
static bool spend_records(void *ctx) {
  Device *d = ctx;
  while (d->a->n_spare_blocks != 2) CHECK(get(d, 3, 512));
  CHECK(get(d, 2, 512) && d->a->n_spare_blocks == 0);
  return free_ballast(d);
}

static void check_out_of_memory(void) {
  Device d;
  dm_MemStats m;
  open_device(&d, 32 * MIB);
  void *keep = get(&d, 0, 512), *p = get(&d, 0, 12 * MIB), *q = get(&d, 1, 12 * MIB);
  CHECK(keep && p && q && d.used == 26 * MIB);
  give(&d, p);
  give(&d, q);
  CHECK((p = get(&d, 2, 14 * MIB)) && d.used == 16 * MIB); /* both were given back */
  dm_allocator_stats(d.a, &m);
  CHECK(m.num_alloc_retries == 1 && m.num_ooms == 0 && d.n_pressure == 0);

  /* less than a whole segment of 20 MiB is left */
  CHECK((q = get(&d, 2, 5 * MIB)) && d.used == 22 * MIB && is_sound(&d));
  dm_allocator_stats(d.a, &m);
  CHECK(m.num_alloc_retries == 2 && d.n_pressure == 0);

  /* pressure is asked once: nothing first, then something, then too little */
  CHECK(!get(&d, 2, 12 * MIB) && d.n_pressure == 1);
  d.ballast = p;
  CHECK((p = get(&d, 2, 16 * MIB)) && d.n_pressure == 2 && d.used == 24 * MIB);
  d.ballast = q;
  CHECK(!get(&d, 2, 30 * MIB) && d.n_pressure == 3 && d.used == 18 * MIB);
  dm_allocator_stats(d.a, &m);
  CHECK(m.num_alloc_retries == 5 && m.num_ooms == 2);
  const dm_AllocatorUsage usage = dm_allocator_usage(d.a);
  CHECK(usage.allocated == 16 * MIB + 512 && usage.reserved == 18 * MIB);
  CHECK(usage.largest_free == 2 * MIB - 512 && is_sound(&d));
  dm_allocator_reset_totals(d.a);
  dm_allocator_stats(d.a, &m);
  CHECK(m.num_alloc_retries == 0 && m.num_ooms == 0 && dm_allocator_raw_allocations(d.a) == 6);
  CHECK(close_device(&d));

  open_device(&d, 32 * MIB); /* while the lock is open others use up the records */
  d.a->raw.pressure = spend_records;
  d.ballast = get(&d, 0, 20 * MIB);
  CHECK(d.ballast && get(&d, 1, 24 * MIB + 512) && is_sound(&d) && close_device(&d));

  open_device(&d, MIB); /* without a hook */
  d.a->raw.pressure = NULL;
  CHECK(!get(&d, 0, 1) && is_sound(&d) && close_device(&d));
}

/* ---- a storm against a model ------------------------------------------------------ */

enum { MAX_LIVE = 600, N_STORM = 100000 };

typedef struct Piece { /* in use, or freed and waited for */
  char *p;
  int64_t asked;
  bool in_use;
  unsigned others;      /* bit i: used on stream i as well */
  int64_t at[N_STREAM]; /* freed after so much work there */
} Piece;

typedef struct Model {
  Piece pieces[2 * MAX_LIVE]; /* by address */
  int n, n_live;
  dm_MemStats stats; /* of blocks; segments are the device's matter */
} Model;

static int64_t rounded(int64_t n) { return (n + 511) / 512 * 512; }

static void model_count(Model *m, int64_t asked, int sign) {
  const int64_t n[] = {1, rounded(asked), asked};
  const int pools[] = {asked > MIB ? DM_POOL_LARGE : DM_POOL_SMALL, DM_POOL_ALL};
  for (int i = 0; i < 3; i++) {
    for (int j = 0; j < 2; j++) {
      dm_MemStat *s = &m->stats.of[i][pools[j]];
      s->current += sign * n[i];
      if (sign > 0) s->allocated += n[i];
      if (sign < 0) s->freed += n[i];
      if (s->current > s->peak) s->peak = s->current;
    }
  }
}

/* Blocks are counted as the model does; segments as the device has them. */
static bool stats_agree(Device *d, const Model *m) {
  dm_MemStats s;
  dm_allocator_stats(d->a, &s);
  const dm_MemStat *segments = s.of[DM_MEM_SEGMENT], *bytes = s.of[DM_MEM_RESERVED_BYTES];
  bool ok = segments[DM_POOL_ALL].current == d->n_segments;
  ok = ok && bytes[DM_POOL_ALL].current == d->used;
  for (int i = 0; i < 3; i++)
    ok = ok && bytes[i].peak >= bytes[i].current && segments[i].peak >= segments[i].current;
  const dm_MemStat *parts[] = {segments, bytes};
  for (int i = 0; i < 2; i++) {
    const dm_MemStat *c = parts[i], *small = &c[DM_POOL_SMALL], *large = &c[DM_POOL_LARGE];
    ok = ok && c[DM_POOL_ALL].current == small->current + large->current;
    ok = ok && c[DM_POOL_ALL].allocated == small->allocated + large->allocated;
    ok = ok && c[DM_POOL_ALL].freed == small->freed + large->freed;
  }
  return ok && memcmp(s.of, m->stats.of, 3 * sizeof s.of[0]) == 0 &&
         dm_allocator_allocated_bytes(d->a) ==
             m->stats.of[DM_MEM_ALLOCATED_BYTES][DM_POOL_ALL].current;
}

static bool still_waits(Device *d, const Piece *x) {
  for (int i = 0; i < N_STREAM; i++)
    if ((x->others >> i & 1) && atomic_load(&d->queues[i].done) < x->at[i]) return true;
  return false;
}

/* Forgets what no longer waits. */
static void settle(Device *d, Model *m) {
  int n = 0;
  for (int i = 0; i < m->n; i++)
    if (m->pieces[i].in_use || still_waits(d, &m->pieces[i])) m->pieces[n++] = m->pieces[i];
  m->n = n;
}

/* False when it overlaps one that is in use or waits. */
static bool model_add(Device *d, Model *m, char *p, int64_t asked) {
  int i = m->n;
  settle(d, m);
  for (i = m->n; i > 0 && m->pieces[i - 1].p > p; i--) m->pieces[i] = m->pieces[i - 1];
  m->pieces[i] = (Piece){.p = p, .asked = asked, .in_use = true};
  m->n++;
  m->n_live++;
  model_count(m, asked, 1);
  if (i > 0 && m->pieces[i - 1].p + rounded(m->pieces[i - 1].asked) > p) return false;
  return i + 1 == m->n || p + rounded(asked) <= m->pieces[i + 1].p;
}

static int some_live(Model *m, uint64_t *seed) {
  int i = (int)below(seed, m->n);
  while (!m->pieces[i].in_use) i = (i + 1) % m->n;
  return i;
}

static bool storm_alloc(Device *d, Model *m, uint64_t *seed) {
  static const int64_t most[] = {600, 5000, 5000, 60000, 60000, 300000, 2 << 20, 24 << 20};
  const int64_t n = 1 + below(seed, most[below(seed, DM_COUNT(most))]);
  const int stream = (int)below(seed, N_STREAM);
  char *p = get(d, stream, n);
  /* a refusal needs: no memory for a segment, and no block that waits for a stream */
  if (!p) {
    m->stats.num_ooms++;
    settle(d, m);
    return m->n == m->n_live && d->used + (n + 2 * MIB - 1) / (2 * MIB) * 2 * MIB > d->limit;
  }
  if ((uintptr_t)p % 512 || block_at(d->a, p)->stream->handle != &d->queues[stream])
    return false;
  p[0] = p[n - 1] = 1; /* the sanitizer looks on */
  return model_add(d, m, p, n);
}

static bool storm_free(Device *d, Model *m, uint64_t *seed) {
  Piece *x = &m->pieces[some_live(m, seed)];
  for (int i = 0; i < N_STREAM; i++) x->at[i] = atomic_load(&d->queues[i].launched);
  x->in_use = false;
  m->n_live--;
  model_count(m, x->asked, -1);
  return dm_allocator_free(d->a, x->p);
}

static bool storm_record(Device *d, Model *m, uint64_t *seed) {
  Piece *x = &m->pieces[some_live(m, seed)];
  const int i = (int)below(seed, N_STREAM);
  if (block_at(d->a, x->p)->stream->handle != &d->queues[i]) x->others |= 1u << i;
  launch(d, i);
  return record(d, x->p, i) == DM_OK;
}

static void storm_reset(Device *d, Model *m, bool peaks) {
  if (peaks) dm_allocator_reset_peaks(d->a);
  else dm_allocator_reset_totals(d->a);
  for (int i = 0; i < 3; i++) {
    for (int j = 0; j < DM_N_POOL; j++) {
      dm_MemStat *s = &m->stats.of[i][j];
      if (peaks) s->peak = s->current;
      else s->allocated = s->freed = 0;
    }
  }
  if (!peaks) m->stats.num_ooms = 0;
}

static void count_live(void *ctx, void *p, int64_t n_bytes) {
  int64_t *sums = ctx;
  sums[0]++;
  sums[1] += n_bytes;
  ((char *)p)[n_bytes - 1] = 2;
}

static bool live_agree(Device *d, const Model *m) {
  int64_t sums[2] = {0, 0};
  dm_allocator_each_live(d->a, count_live, sums);
  return sums[0] == m->n_live &&
         sums[1] == m->stats.of[DM_MEM_REQUESTED_BYTES][DM_POOL_ALL].current;
}

static void check_storm(void) {
  static Model m;
  uint64_t seed = 88172645463325252u;
  Device d;
  int n_refused = 0;
  bool right = true, is_ok = true;
  open_device(&d, 512 * MIB);
  for (int op = 0; op < N_STORM && right; op++) {
    const int64_t what = below(&seed, 100);
    const int64_t rising = op / 2000 % 2 ? 55 : 40; /* in waves */
    if (what < rising || m.n_live == 0) {
      const int64_t ooms = m.stats.num_ooms;
      if (m.n_live < MAX_LIVE && m.n < 2 * MAX_LIVE) right = storm_alloc(&d, &m, &seed);
      n_refused += m.stats.num_ooms > ooms;
    } else if (what < 85) {
      right = storm_free(&d, &m, &seed);
    } else if (what < 92) {
      right = storm_record(&d, &m, &seed);
    } else {
      catch_up(&d, (int)below(&seed, N_STREAM));
      settle(&d, &m);
    }
    if (op % 997 == 0)
      is_ok = is_ok && is_sound(&d) && stats_agree(&d, &m) && live_agree(&d, &m);
    if (op % 5003 == 5002) storm_reset(&d, &m, op % 2);
    if (op % 20011 == 20010) dm_allocator_empty_cache(d.a);
  }
  CHECK(right);
  CHECK(is_ok && is_sound(&d) && stats_agree(&d, &m));
  CHECK(n_refused > 100 && n_refused < N_STORM / 10);
  while (m.n_live > 0) storm_free(&d, &m, &seed);
  for (int i = 0; i < N_STREAM; i++) catch_up(&d, i);
  CHECK(get(&d, 0, 512) && is_sound(&d));
  CHECK(free_blocks(&d) <= d.n_segments); /* one each, but for that block's */
  for (int i = 0; i < MAX_LIVE; i++) storm_alloc(&d, &m, &seed); /* closed with them */
  CHECK(close_device(&d));
}

/* ---- threads --------------------------------------------------------------------- */

enum { N_THREAD = 4, N_HELD = 40, N_HAMMER = 20000 };

typedef struct Worker {
  Device *d;
  int id, n_bad, n_done;
} Worker;

static bool yield(void *ctx) {
  DM_UNUSED(ctx);
  sched_yield();
  return true;
}

/* Every thread marks both ends of its blocks and finds the marks again. */
static void *hammer(void *arg) {
  Worker *w = arg;
  uint64_t seed = 1000 + (uint64_t)w->id;
  struct {
    char *p;
    int64_t n;
  } held[N_HELD] = {{NULL, 0}};
  for (int op = 0; op < N_HAMMER + N_HELD; op++) {
    const int i = op < N_HAMMER ? (int)below(&seed, N_HELD) : op - N_HAMMER;
    Queue *q = &w->d->queues[below(&seed, N_STREAM)];
    char *p = held[i].p;
    if (p) {
      w->n_bad += p[0] != (char)w->id || p[held[i].n - 1] != (char)w->id;
      if (below(&seed, 8) == 0) {
        atomic_fetch_add(&q->launched, 1);
        w->n_bad += dm_allocator_record_stream(w->d->a, p, q) != DM_OK;
      }
      w->n_bad += !dm_allocator_free(w->d->a, p);
      held[i].p = NULL;
      w->n_done++;
    } else if (op < N_HAMMER) {
      void *got = NULL;
      held[i].n = 1 + below(&seed, below(&seed, 20) ? 9000 : 3 * MIB);
      if (dm_allocator_alloc(w->d->a, q, held[i].n, &got) != DM_OK) continue;
      held[i].p = p = got;
      p[0] = p[held[i].n - 1] = (char)w->id;
    }
    if (op % 16 == 0) atomic_store(&q->done, atomic_load(&q->launched));
    if (op % 4096 == 4095) dm_allocator_empty_cache(w->d->a);
  }
  return NULL;
}

static void check_threads(void) {
  Device d;
  Worker w[N_THREAD];
  pthread_t t[N_THREAD];
  open_device(&d, 200 * MIB);
  d.a->raw.pressure = yield;
  for (int i = 0; i < N_THREAD; i++) {
    w[i] = (Worker){.d = &d, .id = i + 1};
    if (pthread_create(&t[i], NULL, hammer, &w[i]) != 0) exit(2);
  }
  int n_bad = 0, n_done = 0;
  for (int i = 0; i < N_THREAD; i++) {
    pthread_join(t[i], NULL);
    n_bad += w[i].n_bad;
    n_done += w[i].n_done;
  }
  CHECK(n_bad == 0 && n_done > N_THREAD * N_HAMMER / 4);
  const dm_MemStat s = stat_of(&d, DM_MEM_ALLOCATION, DM_POOL_ALL);
  CHECK(s.current == 0 && s.allocated == n_done && s.freed == n_done);
  CHECK(is_sound(&d));
  dm_allocator_empty_cache(d.a);
  CHECK(d.used == 0 && close_device(&d));
}

/* ---- the host has no memory ------------------------------------------------------ */

enum { N_SCENE = 700 }; /* the table grows once, slabs are added */

/* Each request twice when refused: the first leaves all as it was. Returns how many were. */
static int play(Device *d, int64_t fail_at, bool sticky, bool *right) {
  static void *p[N_SCENE];
  int n_refused = 0;
  dm_MemStats before, after;
  dm_alloc_fail_at(fail_at, sticky);
  for (int i = 0; i < N_SCENE; i++) {
    const int64_t n = i == 9 ? 3 * MIB : 512;
    const int stream = i % 50 == 49;
    dm_allocator_stats(d->a, &before);
    if (!(p[i] = get(d, stream, n))) {
      n_refused++;
      dm_alloc_fail_at(0, false);
      dm_allocator_stats(d->a, &after);
      after.num_ooms--;
      *right = *right && memcmp(&before, &after, sizeof after) == 0 && is_sound(d);
      *right = *right && (p[i] = get(d, stream, n)) != NULL;
    }
    if (i % 100 == 0 && record(d, p[i], 2) != DM_OK) {
      n_refused++;
      dm_alloc_fail_at(0, false);
      *right = *right && is_sound(d) && record(d, p[i], 2) == DM_OK;
    }
  }
  for (int i = 0; i < N_SCENE; i++) *right = *right && dm_allocator_free(d->a, p[i]);
  dm_alloc_fail_at(0, false);
  *right = *right && is_sound(d);
  return n_refused;
}

static void check_host_failures(void) {
  const int64_t live = dm_alloc_live();
  for (int sticky = 0; sticky < 2; sticky++) {
    bool right = true;
    int n = 0;
    for (int n_refused = 1; n_refused > 0 && right; n++) {
      Device d;
      open_device(&d, 64 * MIB);
      n_refused = play(&d, n + 1, sticky, &right);
      right = right && n_refused <= 1 && close_device(&d) && dm_alloc_live() == live;
    }
    CHECK(right);
    CHECK(n > N_SCENE + 10 && n < N_SCENE + 60);
  }
  Device d;
  dm_alloc_fail_at(1, false);
  CHECK(!open_device(&d, MIB));
  dm_alloc_fail_at(0, false);
  CHECK(dm_alloc_live() == live);
}

/* ---- forbidden bytes --------------------------------------------------------------- */

#if POISON
static void check_forbidden(void) {
  Device d;
  open_device(&d, 2 * MIB);
  char *p = get(&d, 0, 1000), *q = get(&d, 0, 512);
  CHECK(!__asan_region_is_poisoned(p, 1000) && !__asan_region_is_poisoned(q, 512));
  CHECK(__asan_address_is_poisoned(p + 1000) && __asan_address_is_poisoned(p + 1023));
  CHECK(__asan_address_is_poisoned(q + 512));
  give(&d, p);
  CHECK(__asan_address_is_poisoned(p) && !__asan_address_is_poisoned(q));
  launch(&d, 1);
  CHECK(record(&d, q, 1) == DM_OK);
  give(&d, q);
  CHECK(!__asan_address_is_poisoned(q)); /* stream 1 still uses it */
  catch_up(&d, 1);
  CHECK(get(&d, 0, 1) == p);
  CHECK(__asan_address_is_poisoned(q) && __asan_address_is_poisoned(p + 1));
  CHECK(close_device(&d));
}
#else
static void check_forbidden(void) {}
#endif

int main(void) {
  check_sizes();
  check_reuse();
  check_graphs();
  check_joining();
  check_best_fit();
  check_depth();
  check_records();
  check_steps();
  check_streams();
  check_out_of_memory();
  check_storm();
  check_threads();
  check_host_failures();
  check_forbidden();
  printf("%d passed, %d failed\n", n_passed, n_failed);
  return n_failed > 0;
}
