/* The pool: one job at a time, its chunks claimed through counters.

   Results do not depend on the number of threads, because the chunks do not: [0, n) is cut at
   multiples of `grain`, which the caller derives from shapes, and each chunk is computed
   whole, by one thread, in one order. A thread begins with the same share of neighbouring
   chunks in each job, for one op's result is the next one's operand, and lies in the cache of
   the thread that wrote it. Who is done takes chunks of the others' shares, so that uneven ones
   balance. A body that sums over chunks gives each chunk its own partial sum and adds those in
   order afterwards. A call inside a body runs serially, with the same chunks.

   Workers start with the first parallel call and live until the library is unloaded or the
   process exits; then they are joined, so that no thread runs in unmapped code. A child after
   fork() has no workers and starts its own. An idle worker spins for some 50 microseconds
   before it sleeps, because the next op of a training step usually comes sooner.

   The gate is one word: OPEN while a job may be entered, plus the number of workers inside.
   The owner writes the job only while the gate is shut and empty; a worker reads it only
   after it found the gate open on its way in. */
#if defined(__linux__)
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "cpu/threads.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <sched.h>
#endif

enum {
  MAX_THREADS = 256,
  OPEN = 1 << 30,
  SPINS = 3000 /* pauses, some 50 microseconds, before a thread sleeps */
};

/* Marks a field that begins a cache line of its own: fields that different threads write must
   not share one. */
#define LINE _Alignas(64)

static struct {
  atomic_int n_threads; /* 0: not chosen yet */
  atomic_bool busy;     /* held by the owner of the current job */
  atomic_bool stop;
  /* the job */
  LINE dm_RangeFn *fn;
  void *ctx;
  int64_t n, grain;
  int n_helpers; /* workers 0 .. n_helpers-1 take part, as threads 1 .. n_helpers */
  struct Share {
    LINE atomic_llong next;
    int64_t end;
  } share[MAX_THREADS]; /* the chunks that each thread begins with */
  LINE atomic_int gate;
  LINE atomic_uint round; /* counts jobs; idle workers poll it */
  atomic_int sleepers;
  LINE atomic_bool owner_sleeps;
  /* the workers, started and joined under `busy` or at exit */
  int n_workers;
  pthread_t workers[MAX_THREADS];
  pthread_mutex_t lock;
  pthread_cond_t wake, done;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .wake = PTHREAD_COND_INITIALIZER,
          .done = PTHREAD_COND_INITIALIZER};

static _Thread_local bool inside; /* this thread runs a body, or computes alone: stay inline */

/* Tells the processor that this is a loop that waits. */
static inline void cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

/* Cores that this process may run on. */
static int count_cores(void) {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  const long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n < 1 ? 1 : (int)n;
}

/* The cores' time that a container's control group may use, rounded up. The file
   reads "200000 100000", microseconds in each period, or "max 100000". */
static int count_quota(void) {
  long long quota = 0, period = 0;
  FILE *f = fopen("/sys/fs/cgroup/cpu.max", "r");
  if (!f) return MAX_THREADS;
  const bool limited = fscanf(f, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0;
  fclose(f);
  return limited ? (int)dm_min_i64((quota + period - 1) / period, MAX_THREADS) : MAX_THREADS;
}

/* The number of threads that the user's environment asks for, or 0. OpenMP's variable may be
   a list, by depth of nesting, of which the first number counts. */
static int count_asked_for(void) {
  static const char *const names[] = {"DEMILUNE_NUM_THREADS", "OMP_NUM_THREADS"};
  for (int i = 0; i < DM_COUNT(names); i++) {
    const char *text = getenv(names[i]);
    const long n = text ? strtol(text, NULL, 10) : 0;
    if (n > 0) return (int)dm_min_i64(n, MAX_THREADS);
  }
  return 0;
}

/* The environment's number, else the cores that the process may use. */
static int default_threads(void) {
  const int asked_for = count_asked_for();
  return asked_for ? asked_for : (int)dm_min_i64(count_cores(), count_quota());
}

void dm_set_num_threads(int n) {
  if (n < 1) n = default_threads();
  atomic_store(&pool.n_threads, n > MAX_THREADS ? MAX_THREADS : n);
}

int dm_get_num_threads(void) {
  const int n = atomic_load_explicit(&pool.n_threads, memory_order_relaxed);
  if (DM_LIKELY(n > 0)) return n;
  dm_set_num_threads(0);
  return atomic_load(&pool.n_threads);
}

void dm_stay_serial(void) { inside = true; }

int dm_threads_here(void) { return inside ? 1 : dm_get_num_threads(); }

/* Runs the same chunks one after the other on this thread. */
static void run_serial(int64_t n, int64_t grain, dm_RangeFn *fn, void *ctx) {
  for (int64_t i = 0; i < n; i += grain) {
    if (n - i <= grain) {
      fn(ctx, i, n);
      return;
    }
    fn(ctx, i, i + grain);
  }
}

static dm_JobFn *_Atomic tracer; /* dm_trace_jobs; NULL: none */

void dm_trace_jobs(dm_JobFn *f) { atomic_store(&tracer, f); }

static void run_traced(int64_t n, int64_t grain, dm_RangeFn *fn, void *ctx, dm_JobFn *tell) {
  struct timespec from, to;
  clock_gettime(CLOCK_MONOTONIC, &from);
  inside = true;
  run_serial(n, grain, fn, ctx);
  inside = false;
  clock_gettime(CLOCK_MONOTONIC, &to);
  tell((n - 1) / grain + 1,
       (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec));
}

/* Claims the chunks of a share until none is left. */
static void run_share(struct Share *s) {
  while (atomic_load_explicit(&s->next, memory_order_relaxed) < s->end) {
    const int64_t i = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed);
    if (i >= s->end) return;
    const int64_t begin = i * pool.grain;
    pool.fn(pool.ctx, begin, dm_min_i64(pool.n - begin, pool.grain) + begin);
  }
}

/* This thread's own share, then the rest of the others'. */
static void run_chunks(int thread) {
  const int n = pool.n_helpers + 1;
  for (int i = 0; i < n; i++) run_share(&pool.share[(thread + i) % n]);
}

/* Cuts the chunks into even shares, one a thread. */
static void set_shares(int64_t n_chunks, int n_threads) {
  int64_t begin = 0;
  for (int i = 0; i < n_threads; i++) {
    const int64_t left = n_threads - i, end = begin + (n_chunks - begin + left - 1) / left;
    atomic_store_explicit(&pool.share[i].next, begin, memory_order_relaxed);
    pool.share[i].end = end;
    begin = end;
  }
}

/* Waits until a job is published: spins SPINS times, then sleeps. The count of sleepers is
   raised before the round is looked at again, so no wake-up is lost. */
static void wait_for_round(unsigned seen) {
  for (int i = 0; i < SPINS; i++) {
    if (atomic_load_explicit(&pool.round, memory_order_acquire) != seen) return;
    cpu_relax();
  }
  pthread_mutex_lock(&pool.lock);
  atomic_fetch_add(&pool.sleepers, 1);
  while (atomic_load(&pool.round) == seen) pthread_cond_wait(&pool.wake, &pool.lock);
  atomic_fetch_sub(&pool.sleepers, 1);
  pthread_mutex_unlock(&pool.lock);
}

/* A worker's part in a job: it enters the gate, and takes chunks if the gate was open. */
static void enter_job(int index) {
  if ((atomic_fetch_add(&pool.gate, 1) & OPEN) && index < pool.n_helpers) run_chunks(index + 1);
  /* The last one out of a shut gate wakes an owner that went to sleep. */
  if (atomic_fetch_sub(&pool.gate, 1) == 1 && atomic_load(&pool.owner_sleeps)) {
    pthread_mutex_lock(&pool.lock);
    pthread_cond_signal(&pool.done);
    pthread_mutex_unlock(&pool.lock);
  }
}

/* A worker looks once into each round; it may find that the job is over. */
static void *worker_main(void *arg) {
  const int index = (int)(intptr_t)arg;
  unsigned seen = 0;
  inside = true;
  while (!atomic_load(&pool.stop)) {
    const unsigned now = atomic_load(&pool.round);
    if (now == seen) {
      wait_for_round(seen);
      continue;
    }
    seen = now;
    enter_job(index);
  }
  return NULL;
}

/* Publishes a job to spinning workers, and wakes sleeping ones, if there are any. */
static void next_round(void) {
  atomic_fetch_add(&pool.round, 1);
  if (atomic_load(&pool.sleepers) == 0) return;
  pthread_mutex_lock(&pool.lock);
  pthread_cond_broadcast(&pool.wake);
  pthread_mutex_unlock(&pool.lock);
}

/* Shuts the gate, then spins, then sleeps until it is empty. */
static void wait_for_helpers(void) {
  atomic_fetch_and(&pool.gate, ~OPEN);
  for (int i = 0; i < SPINS; i++) {
    if (atomic_load_explicit(&pool.gate, memory_order_acquire) == 0) return;
    cpu_relax();
  }
  pthread_mutex_lock(&pool.lock);
  atomic_store(&pool.owner_sleeps, true);
  while (atomic_load(&pool.gate) != 0) pthread_cond_wait(&pool.done, &pool.lock);
  atomic_store(&pool.owner_sleeps, false);
  pthread_mutex_unlock(&pool.lock);
}

static atomic_uint forks;

/* After fork() only the calling thread exists; locks may have been held. */
static void forget_workers(void) {
  atomic_fetch_add(&forks, 1);
  pool.n_workers = 0;
  atomic_store(&pool.gate, 0);
  atomic_store(&pool.sleepers, 0);
  atomic_store(&pool.owner_sleeps, false);
  atomic_store(&pool.busy, false);
  pthread_mutex_init(&pool.lock, NULL);
  pthread_cond_init(&pool.wake, NULL);
  pthread_cond_init(&pool.done, NULL);
}

static void register_fork_handler(void) { pthread_atfork(NULL, NULL, forget_workers); }
static void notice_forks(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, register_fork_handler);
}

unsigned dm_fork_count(void) {
  notice_forks();
  return atomic_load(&forks);
}

/* Brings the pool to `want` workers, or as many as the system gives. They
   take no signals: those belong to the program's own threads. */
static void start_workers(int want) {
  if (pool.n_workers >= want) return;
  notice_forks();
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (pool.n_workers < want) {
    pthread_t *const slot = &pool.workers[pool.n_workers];
    void *const index = (void *)(intptr_t)pool.n_workers;
    if (pthread_create(slot, NULL, worker_main, index) != 0) break;
    pool.n_workers++;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Publishes a job, takes part in it, and returns when the last worker has left it. */
static void run_shared(int64_t n, int64_t grain, int64_t n_chunks, int n_threads,
                       dm_RangeFn *fn, void *ctx) {
  while (atomic_load_explicit(&pool.gate, memory_order_acquire) != 0)
    cpu_relax(); /* a late worker is looking in; it leaves at once */
  start_workers(n_threads - 1);
  pool.fn = fn;
  pool.ctx = ctx;
  pool.n = n;
  pool.grain = grain;
  pool.n_helpers = n_threads - 1;
  set_shares(n_chunks, n_threads);
  atomic_fetch_or(&pool.gate, OPEN);
  next_round();
  inside = true;
  run_chunks(0);
  inside = false;
  wait_for_helpers();
}

/* A second job, while one runs, is run here: `busy` is taken without waiting. */
void dm_parallel_for(int64_t n, int64_t grain, dm_RangeFn *fn, void *ctx) {
  if (n <= 0) return;
  if (grain < 1) grain = 1;
  const int n_threads = dm_get_num_threads();
  bool idle = false;
  dm_JobFn *const tell = atomic_load_explicit(&tracer, memory_order_relaxed);
  if (DM_UNLIKELY(tell) && !inside) {
    run_traced(n, grain, fn, ctx, tell);
    return;
  }
  if (n <= grain || n_threads == 1 || inside || atomic_load(&pool.stop) ||
      !atomic_compare_exchange_strong(&pool.busy, &idle, true)) {
    run_serial(n, grain, fn, ctx);
    return;
  }
  run_shared(n, grain, (n - 1) / grain + 1, n_threads, fn, ctx);
  atomic_store(&pool.busy, false);
}

/* Runs when the library is unloaded and when the process exits. */
__attribute__((destructor)) static void stop_workers(void) {
  atomic_store(&pool.stop, true);
  next_round();
  for (int i = 0; i < pool.n_workers; i++)
    if (!pthread_equal(pool.workers[i], pthread_self())) pthread_join(pool.workers[i], NULL);
  pool.n_workers = 0;
}
