/* Runs kernels: the threads of a block on fibers, one after another, blocks one
   after another.

   A fiber runs thread after thread; when one has to wait, at a barrier or in a
   shuffle, its fiber is kept with it and another fiber goes on. A kernel
   without barriers so needs one fiber. The scheduler is the host thread that
   launched. What would hang or race on a GPU is told on stderr, and aborts. */
#include "internal.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define DM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define DM_ASAN 1
#endif
#endif
#ifdef DM_ASAN
#include <sanitizer/asan_interface.h>
#endif

/* ---- switching between stacks ------------------------------------------------------ */

enum { STACK = 256 << 10 }; /* bytes; taken as they are touched */

#if defined(__x86_64__)

/* Keeps what a call must keep and the stack pointer in *from, goes on at `to`.
   A jump, as a ret would go where the processor does not expect it. */
extern "C" void dm_emulated_switch(void **from, void *to);
asm(R"(
.text
.hidden dm_emulated_switch
.globl dm_emulated_switch
.type dm_emulated_switch, @function
dm_emulated_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmpq *%rcx
.size dm_emulated_switch, . - dm_emulated_switch
)");
typedef void *Context;
static void context_make(Context *c, char *stack, void (*entry)(void)) {
  void **top = (void **)(stack + STACK);
  *--top = nullptr; /* entry's return address, to no one; aligns as a call does */
  *--top = (void *)entry;
  top -= 6; /* the registers */
  memset(top, 0, 6 * sizeof *top);
  *c = top;
}
static void context_switch(Context *from, Context *to) { dm_emulated_switch(from, *to); }

#elif defined(__aarch64__)

extern "C" void dm_emulated_switch(void **from, void *to);
asm(R"(
.text
.hidden dm_emulated_switch
.globl dm_emulated_switch
.type dm_emulated_switch, %function
dm_emulated_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size dm_emulated_switch, . - dm_emulated_switch
)");
typedef void *Context;
static void context_make(Context *c, char *stack, void (*entry)(void)) {
  void **top = (void **)(stack + STACK) - 20;
  memset(top, 0, 20 * sizeof *top);
  top[11] = (void *)entry; /* x30 */
  *c = top;
}
static void context_switch(Context *from, Context *to) { dm_emulated_switch(from, *to); }

#else

#include <ucontext.h>
typedef ucontext_t Context;
static void context_make(Context *c, char *stack, void (*entry)(void)) {
  getcontext(c);
  c->uc_stack.ss_sp = stack;
  c->uc_stack.ss_size = STACK;
  c->uc_link = nullptr;
  makecontext(c, entry, 0);
}
static void context_switch(Context *from, Context *to) { swapcontext(from, to); }

#endif

/* ---- the state of the launch that runs ---------------------------------------------- */

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

struct Fiber {
  Context context;
  char *stack;
  void *shadow; /* what the address sanitizer keeps for a stack */
  Fiber *next_free;
};

enum State { NEW, RUNNING, AT_BARRIER, IN_WARP, EXITED };

struct Thread {
  State state;
  uint3 index;
  Fiber *fiber;
  const char *file; /* where it waits */
  int line;
  dm_EmulatedWarpOp op; /* what it waits for in its warp, and what it gets */
  unsigned mask;
  int from;
  uint64_t value, result;
};

/* All of this belongs to the thread inside dm_emulated_launch, which holds the
   runtime's lock; the fibers stay for the next launch. */
static struct {
  const char *kernel; /* NULL: none runs */
  pthread_t host;     /* which thread launched it */
  void (*call)(void *arg);
  void *arg;
  size_t dynamic_shared;

  int starts[MAX_THREADS]; /* the order in which threads start */
  int n_threads, n_started, n_exited, n_at_barrier;
  int now;               /* the thread that runs */
  const Thread *barrier; /* the first of those at the barrier */
  Thread threads[MAX_THREADS];
  int ready[MAX_THREADS], first_ready, n_ready; /* a ring of those that may go on */

  uint64_t block_epoch;
  uint32_t warp_epoch[MAX_THREADS / 32];

  Fiber fibers[MAX_THREADS], *free_fibers;
  int n_fibers;
  Context scheduler;
  void *scheduler_shadow;
  const void *scheduler_stack;
  size_t scheduler_stack_size;
} run;

/* ---- the order of blocks and threads -------------------------------------------------- */

/* DEMILUNE_EMULATED_ORDER: 0 the usual order, 1 the reverse, above 1 any, drawn from it as a
   seed. A GPU promises none. */
static int order;
static uint64_t chance;

void dm_emulated_start_order(int seed) {
  order = seed;
  chance = (uint64_t)seed;
}

/* A number below n. */
static int draw(int n) {
  chance = chance * 6364136223846793005u + 1442695040888963407u;
  return (int)((chance >> 33) % (uint64_t)n);
}

/* An order of n things: at(i) is the i-th of them. */
struct Walk {
  uint64_t n, step, first;

  explicit Walk(uint64_t n_) : n(n_), step(1), first(0) {
    if (order == 0 || n < 2) return;
    step = n - 1;
    first = n - 1;
    if (order == 1) return;
    first = (uint64_t)draw(1 << 30) % n;
    do step = 1 + (uint64_t)draw(1 << 30) % (n - 1);
    while (common_divisor(step, n) != 1);
  }
  uint64_t at(uint64_t i) const { return (first + i * step) % n; }

  static uint64_t common_divisor(uint64_t a, uint64_t b) {
    while (b) {
      const uint64_t rest = a % b;
      a = b;
      b = rest;
    }
    return a;
  }
};

/* ---- faults -------------------------------------------------------------------------- */

static void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  vfprintf(stderr, fmt, args);
  va_end(args);
}
static void say_thread(const Thread *t) {
  say("thread (%u, %u, %u)", t->index.x, t->index.y, t->index.z);
}
static void say_launch(void) {
  say("demilune emulation: kernel %s, block (%u, %u, %u): ", run.kernel, blockIdx.x, blockIdx.y,
      blockIdx.z);
}
[[noreturn]] static void give_up(void) {
  say("\n");
  fflush(stderr);
  abort();
}
/* The thread that runs did what the words say. */
[[noreturn]] static void blame(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void blame(const char *fmt, ...) {
  say_launch();
  say_thread(&run.threads[run.now]);
  say(" ");
  va_list args;
  va_start(args, fmt);
  vfprintf(stderr, fmt, args);
  va_end(args);
  give_up();
}

static const char *const op_names[] = {"__syncwarp", "a shuffle", "a vote"};

static bool same_location(const Thread *t, const char *file, int line) {
  return t->line == line && (t->file == file || strcmp(t->file, file) == 0);
}
static bool wait_alike(const Thread *a, const Thread *b) {
  return a->state == b->state && same_location(a, b->file, b->line) &&
         (a->state != IN_WARP || (a->op == b->op && a->mask == b->mask));
}
/* One line for each source line where threads wait, with the first thread there. */
[[noreturn]] static void tell_deadlock(void) {
  say_launch();
  say("threads wait for one another: %d of %d returned", run.n_exited, run.n_threads);
  for (int i = 0; i < run.n_threads; i++) {
    const Thread *t = &run.threads[i];
    if (t->state == EXITED) continue;
    int n = 0, first = -1;
    for (int j = 0; j < run.n_threads; j++) {
      if (!wait_alike(t, &run.threads[j])) continue;
      if (first < 0) first = j;
      n++;
    }
    if (first < i) continue; /* told already */
    say("\n  %d at %s (%s:%d", n, t->state == AT_BARRIER ? "__syncthreads" : op_names[t->op],
        t->file, t->line);
    if (t->state == IN_WARP) say(", mask 0x%08x", t->mask);
    say("), first ");
    say_thread(t);
  }
  give_up();
}

/* ---- fibers ----------------------------------------------------------------------------- */

/* To the scheduler; `last`: this fiber's stack holds nothing that is needed. */
static void leave_fiber(Fiber *f, bool last) {
#ifdef DM_ASAN
  __sanitizer_start_switch_fiber(last ? nullptr : &f->shadow, run.scheduler_stack,
                                 run.scheduler_stack_size);
#else
  (void)last;
#endif
  context_switch(&f->context, &run.scheduler);
#ifdef DM_ASAN
  __sanitizer_finish_switch_fiber(f->shadow, &run.scheduler_stack, &run.scheduler_stack_size);
#endif
}

static void enter_fiber(Fiber *f) {
#ifdef DM_ASAN
  __sanitizer_start_switch_fiber(&run.scheduler_shadow, f->stack, STACK);
#endif
  context_switch(&run.scheduler, &f->context);
#ifdef DM_ASAN
  __sanitizer_finish_switch_fiber(run.scheduler_shadow, nullptr, nullptr);
#endif
}

static void wake(int t) {
  run.threads[t].state = RUNNING;
  run.ready[(run.first_ready + run.n_ready++) % MAX_THREADS] = t;
}

/* The block's barrier opens when every thread that has not returned is there. */
static void open_barrier_when_full(void) {
  if (run.n_at_barrier == 0 || run.n_at_barrier < run.n_threads - run.n_exited) return;
  run.block_epoch++;
  run.n_at_barrier = 0;
  for (int i = 0; i < run.n_threads; i++)
    if (run.threads[i].state == AT_BARRIER) wake(i);
}

/* The next thread's or block's index: x runs fastest. */
static uint3 index_after(uint3 i, dim3 of) {
  if (++i.x < of.x) return i;
  i.x = 0;
  if (++i.y < of.y) return i;
  i.y = 0;
  i.z++;
  return i;
}

static Fiber *own_fiber; /* the fiber that runs */

/* A fiber's life: new threads, as long as there are any. */
static void live(void) {
#ifdef DM_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &run.scheduler_stack, &run.scheduler_stack_size);
#endif
  Fiber *const self = own_fiber;
  while (run.n_started < run.n_threads) {
    const int i = run.starts[run.n_started++];
    Thread *t = &run.threads[i];
    t->state = RUNNING;
    t->fiber = self;
    run.now = i;
    threadIdx = t->index;
    run.call(run.arg);
    t->state = EXITED;
    run.n_exited++;
    open_barrier_when_full();
    /* Those who can go on do, before new threads start: warps stay together. */
    if (run.n_ready > 0) break;
  }
  self->next_free = run.free_fibers;
  run.free_fibers = self;
  leave_fiber(self, true);
}

static Fiber *fresh_fiber(void) {
  Fiber *f = run.free_fibers;
  if (f) {
    run.free_fibers = f->next_free;
  } else {
    f = &run.fibers[run.n_fibers++];
    const size_t guard = (size_t)sysconf(_SC_PAGESIZE);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK;
    char *p = (char *)mmap(nullptr, guard + STACK, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (p == (char *)MAP_FAILED || mprotect(p, guard, PROT_NONE) != 0) {
      perror("demilune emulation: no memory for a thread's stack");
      abort();
    }
    f->stack = p + guard;
  }
#ifdef DM_ASAN
  /* The frames that the last life left behind. */
  __asan_unpoison_memory_region(f->stack + STACK - 4096, 4096);
#endif
  context_make(&f->context, f->stack, live);
  return f;
}

void dm_emulated_allow(void *p, size_t n, bool allowed) {
#ifdef DM_ASAN
  if (allowed) __asan_unpoison_memory_region(p, n);
  else __asan_poison_memory_region(p, n);
#else
  (void)p, (void)n, (void)allowed;
#endif
}

void dm_emulated_drop_stacks(void) {
  const size_t guard = (size_t)sysconf(_SC_PAGESIZE);
  for (int i = 0; i < run.n_fibers; i++) munmap(run.fibers[i].stack - guard, guard + STACK);
  run.n_fibers = 0;
  run.free_fibers = nullptr;
}

/* A thread that may go on leaves the ring: the one that has waited longest, the last, or any.
 */
static int next_ready(void) {
  const int skipped = order == 0 ? 0 : order == 1 ? run.n_ready - 1 : draw(run.n_ready);
  int *const at = &run.ready[(run.first_ready + skipped) % MAX_THREADS], t = *at;
  *at = run.ready[run.first_ready];
  run.first_ready = (run.first_ready + 1) % MAX_THREADS;
  run.n_ready--;
  return t;
}

static void run_block(void) {
  run.n_started = run.n_exited = run.n_at_barrier = 0;
  run.block_epoch++;
  for (int i = 0; i < run.n_threads; i++) run.threads[i].state = NEW;
  for (;;) {
    if (run.n_ready > 0) {
      run.now = next_ready();
      threadIdx = run.threads[run.now].index;
      own_fiber = run.threads[run.now].fiber;
    } else if (run.n_started < run.n_threads) {
      own_fiber = fresh_fiber();
    } else {
      break;
    }
    enter_fiber(own_fiber);
  }
  if (run.n_exited < run.n_threads) tell_deadlock();
}

/* ---- barriers ------------------------------------------------------------------------------
 */

static void arrive(Thread *t, State at, const char *file, int line) {
  t->state = at;
  t->file = file;
  t->line = line;
}

void dm_emulated_block_barrier(const char *file, int line) {
  Thread *const t = &run.threads[run.now];
  arrive(t, AT_BARRIER, file, line);
  if (run.n_at_barrier++ == 0) run.barrier = t;
  if (!same_location(run.barrier, file, line))
    blame("reached __syncthreads at %s:%d while others wait at %s:%d", file, line,
          run.barrier->file, run.barrier->line);
  open_barrier_when_full();
  leave_fiber(t->fiber, false);
}

int dm_emulated_lane(void) { return run.now % 32; }

/* All lanes of the mask have come: gives each its result. Every lane has given
   its value, so none can be overwritten before it is read. */
static void finish_warp(Thread *warp, int first, unsigned mask) {
  unsigned votes = 0, living = 0;
  for (int l = 0; l < 32; l++) {
    if (first + l < run.n_threads && warp[l].state != EXITED) living |= 1u << l;
    if (mask >> l & 1 && warp[l].value) votes |= 1u << l;
  }
  for (int l = 0; l < 32; l++) {
    if (!(mask >> l & 1)) continue;
    Thread *t = &warp[l];
    t->result = t->op == DM_WARP_SHUFFLE ? warp[t->from].value : votes;
    wake(first + l);
  }
  /* Votes and shuffles do not order memory; __syncwarp does, for its lanes. */
  if (warp[__builtin_ctz(mask)].op == DM_WARP_SYNC && mask == living)
    run.warp_epoch[first / 32]++;
}

uint64_t dm_emulated_warp(dm_EmulatedWarpOp op, unsigned mask, uint64_t value, int from,
                          const char *file, int line) {
  const int lane = run.now % 32, first = run.now - lane;
  Thread *const warp = &run.threads[first], *const t = &warp[lane];
  if (!(mask >> lane & 1))
    blame("is not in the mask 0x%08x of %s at %s:%d", mask, op_names[op], file, line);
  if (op == DM_WARP_SHUFFLE && !(mask >> from & 1))
    blame("reads lane %d, which is not in the mask 0x%08x, at %s:%d", from, mask, file, line);
  t->op = op;
  t->mask = mask;
  t->value = value;
  t->from = from;
  arrive(t, IN_WARP, file, line);
  bool all = true;
  for (int l = 31; l >= 0 && all; l--) /* the last lane comes last, most often */
    if (mask >> l & 1) all = first + l < run.n_threads && wait_alike(t, &warp[l]);
  if (all) finish_warp(warp, first, mask);
  leave_fiber(t->fiber, false);
  return t->result;
}

/* ---- shared memory
 * ---------------------------------------------------------------------------- */

enum { MAX_TILES = 64 };
enum { ONE_THREAD, ONE_WARP, MANY_WARPS };

static struct {
  struct {
    const void *key;
    size_t size;
    dm_EmulatedTile tile;
  } of[MAX_TILES];
  int n;
  size_t bytes, static_bytes, elements;
} tiles; /* of the block that runs */

alignas(128) static unsigned char shared_bytes[MAX_SHARED];
/* Every access's mark; a mark of an older epoch counts as none. */
static dm_EmulatedTouch touches[MAX_SHARED][3];

static void no_tiles(void) {
  tiles.n = 0, tiles.bytes = tiles.static_bytes = tiles.elements = 0;
}

static void *take_shared(size_t n) {
  void *p = shared_bytes + tiles.bytes;
  tiles.bytes += (n + 15) / 16 * 16;
  if (tiles.bytes > sizeof shared_bytes)
    blame("wants more than the %zu bytes of shared memory that a block has",
          sizeof shared_bytes);
  dm_emulated_poison(p, n);
  return p;
}

dm_EmulatedTile dm_emulated_tile(const void *key, const char *name, size_t size,
                                 int64_t count) {
  for (int i = 0; i < tiles.n; i++) {
    if (tiles.of[i].key != key) continue;
    if (tiles.of[i].size != size) blame("declares %s with two sizes of element", name);
    return tiles.of[i].tile;
  }
  if (tiles.n == MAX_TILES) blame("declares too many shared arrays");
  const bool dynamic = count < 0;
  if (dynamic) count = (int64_t)(run.dynamic_shared / size);
  const size_t bytes = (size_t)count * size;
  if (!dynamic) tiles.static_bytes += bytes;
  if (tiles.static_bytes > STATIC_SHARED)
    blame("declares more than %d bytes of static shared memory with %s", STATIC_SHARED, name);
  if (run.dynamic_shared <= STATIC_SHARED &&
      tiles.static_bytes + run.dynamic_shared > STATIC_SHARED)
    blame("wants more than %d bytes of shared memory with %s, %zu of them dynamic",
          STATIC_SHARED, name, run.dynamic_shared);
  auto *t = &tiles.of[tiles.n++];
  t->key = key;
  t->size = size;
  t->tile = dm_EmulatedTile{take_shared(bytes), touches + tiles.elements, count, name};
  tiles.elements += (size_t)count;
  return t->tile;
}

/* Whether the thread that runs may have met the accesses of m without a barrier
   in between. */
static bool unordered(const dm_EmulatedTouch *m) {
  if (m->block_epoch != run.block_epoch) return false;
  if (m->several == MANY_WARPS || m->thread / 32 != run.now / 32) return true;
  if (m->warp_epoch != run.warp_epoch[run.now / 32]) return false;
  return m->several == ONE_WARP || m->thread != run.now;
}
static void mark(dm_EmulatedTouch *m) {
  const uint32_t warp_epoch = run.warp_epoch[run.now / 32];
  if (m->block_epoch == run.block_epoch) {
    if (m->several == MANY_WARPS) return;
    if (m->thread / 32 != run.now / 32) {
      m->several = MANY_WARPS;
      return;
    }
    if (m->warp_epoch == warp_epoch) {
      if (m->thread != run.now) m->several = ONE_WARP;
      return;
    }
  }
  *m = dm_EmulatedTouch{run.block_epoch, warp_epoch, (uint16_t)run.now, ONE_THREAD};
}

void dm_emulated_touch(const dm_EmulatedTile *tile, int64_t i, dm_EmulatedAccess how) {
  static const char *const now[] = {"reads", "writes", "atomically changes"};
  static const char *const before[] = {"read", "wrote", "atomically changed"};
  if (i < 0 || i >= tile->count)
    blame("%s %s[%lld], which has %lld elements", now[how], tile->name, (long long)i,
          (long long)tile->count);
  dm_EmulatedTouch *marks = tile->touch[i];
  for (int other = DM_READ; other <= DM_ATOMIC; other++) {
    if (other == how && how != DM_WRITE) continue; /* reads agree, and so do atomics */
    if (!unordered(&marks[other])) continue;
    const uint3 o = run.threads[marks[other].thread].index;
    char who[64] = "several threads";
    if (marks[other].several == ONE_THREAD)
      snprintf(who, sizeof who, "thread (%u, %u, %u)", o.x, o.y, o.z);
    blame("%s %s[%lld], which %s %s since the last barrier between them", now[how], tile->name,
          (long long)i, who, before[other]);
  }
  mark(&marks[how]);
}

/* ---- launches
 * -------------------------------------------------------------------------------------- */

/* Kernels that may use more shared memory than all may. Guarded by the runtime's lock. */
static struct {
  const void *kernel;
  int bytes;
} allowed[256];
static int n_allowed;

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attr, int value) {
  if (!kernel) return dm_emulated_result(cudaErrorInvalidDeviceFunction);
  if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || value > MAX_SHARED)
    return dm_emulated_result(cudaErrorInvalidValue);
  dm_emulated_enter(0);
  int i = 0;
  while (i < n_allowed && allowed[i].kernel != kernel) i++;
  const bool ok = i < (int)(sizeof allowed / sizeof *allowed);
  if (ok) {
    allowed[i] = {kernel, value};
    if (i == n_allowed) n_allowed++;
  }
  dm_emulated_leave();
  return dm_emulated_result(ok ? cudaSuccess : cudaErrorUnknown);
}

static bool shared_fits(const void *kernel, size_t bytes) {
  bool fits = bytes <= STATIC_SHARED;
  dm_emulated_enter(0);
  for (int i = 0; i < n_allowed; i++)
    fits |= allowed[i].kernel == kernel && bytes <= (size_t)allowed[i].bytes;
  dm_emulated_leave();
  return fits;
}
static bool shape_fits(dim3 grid, dim3 block) {
  const uint64_t threads = (uint64_t)block.x * block.y * block.z;
  return grid.x >= 1 && grid.x <= 0x7fffffffu && grid.y >= 1 && grid.y <= 65535 &&
         grid.z >= 1 && grid.z <= 65535 && block.x <= 1024 && block.y <= 1024 &&
         block.z <= 64 && threads >= 1 && threads <= MAX_THREADS;
}

void dm_emulated_tell_fault(const void *at, bool device) {
  if (run.kernel && pthread_equal(run.host, pthread_self())) {
    say_launch();
    say_thread(&run.threads[run.now]);
    say(" touches address %p\n", at);
  } else if (device) {
    say("demilune emulation: host code touches address %p, which is a device's memory\n", at);
  }
}

/* The compiler's alignment checks (-fsanitize=alignment) call this, in libubsan's words: where,
   as what, and the address. A GPU ends a kernel whose access is not aligned to its size. */
#ifndef DM_ASAN
struct SourceLine {
  const char *file;
  uint32_t line, column;
};
struct TypeName {
  uint16_t kind, info;
  char name[1]; /* and what follows, up to a 0 */
};
struct Mismatch {
  SourceLine at;
  const TypeName *type;
  unsigned char log_alignment, access;
};
extern "C" __attribute__((visibility("hidden"))) [[noreturn]] void
__ubsan_handle_type_mismatch_v1_abort(const Mismatch *m, uintptr_t at) {
  if (run.kernel)
    blame("touches address %p as %s, which wants a multiple of %d (%s:%u)", (void *)at,
          m->type->name, 1 << m->log_alignment, m->at.file, m->at.line);
  say("demilune emulation: %s:%u touches address %p as %s, which wants a multiple of %d",
      m->at.file, m->at.line, (void *)at, m->type->name, 1 << m->log_alignment);
  give_up();
}
#endif

void dm_emulated_check_pointer(const char *name, const void *p) {
  if (dm_emulated_reachable(p)) return;
  say("demilune emulation: kernel %s is given %p, which is not memory of its device", name, p);
  give_up();
}

/* Indices of threads, and the order in which they start: warp by warp, so that few wait at a
   shuffle for lanes that have not begun. */
static void order_threads(void) {
  static dim3 before = dim3(0, 0, 0);
  const int n = run.n_threads, n_warp = (n + 31) / 32;
  const bool known = before.x == blockDim.x && before.y == blockDim.y && before.z == blockDim.z;
  if (known && order < 2) return;
  before = blockDim;
  const Walk warps(n_warp);
  uint3 index = {0, 0, 0};
  for (int i = 0; i < n; i++) {
    run.threads[i].index = index;
    index = index_after(index, blockDim);
  }
  for (int w = 0, at = 0; w < n_warp; w++) {
    const int from = 32 * (int)warps.at((uint64_t)w), n_lane = n - from < 32 ? n - from : 32;
    const Walk lanes((uint64_t)n_lane);
    for (int l = 0; l < n_lane; l++) run.starts[at++] = from + (int)lanes.at((uint64_t)l);
  }
}

static void run_grid(dim3 grid, dim3 block) {
  const uint64_t n = (uint64_t)grid.x * grid.y * grid.z;
  const Walk blocks(n);
  run.n_threads = (int)(block.x * block.y * block.z);
  blockDim = block;
  gridDim = grid;
  order_threads();
  for (uint64_t i = 0; i < n; i++) {
    const uint64_t k = blocks.at(i), row = k / grid.x;
    blockIdx =
        uint3{(unsigned)(k % grid.x), (unsigned)(row % grid.y), (unsigned)(row / grid.y)};
    no_tiles();
    run_block();
  }
}

/* Between enter and leave. */
static void run_kernel(const dm_EmulatedWork *w, void *arg) {
  run.kernel = w->name;
  run.host = pthread_self();
  run.call = w->call;
  run.arg = arg;
  run.dynamic_shared = w->shared;
  run_grid(w->grid, w->block);
  run.kernel = nullptr;
}

cudaError_t dm_emulated_launch(const char *name, const void *kernel, dim3 grid, dim3 block,
                               size_t shared, cudaStream_t s, uint64_t given,
                               void (*call)(void *arg), void *arg, size_t n_arg) {
  const dm_EmulatedWork w = {run_kernel, n_arg, name, call, grid, block, shared};
  cudaError_t e = dm_emulated_check_stream(s);
  if (e == cudaSuccess && !shape_fits(grid, block)) e = cudaErrorInvalidConfiguration;
  if (e == cudaSuccess && !shared_fits(kernel, shared)) e = cudaErrorInvalidValue;
  if (e != cudaSuccess || dm_emulated_record(s, w, arg, &e)) return dm_emulated_result(e);
  const unsigned shape[] = {grid.x,  grid.y,  grid.z,          block.x,
                            block.y, block.z, (unsigned)shared};
  dm_emulated_submit(s, w, arg, dm_emulated_hash(given, shape, sizeof shape));
  return cudaSuccess;
}
