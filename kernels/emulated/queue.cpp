/* Work that runs late. With DEMILUNE_EMULATED_LATE=N, N above 0, a launch or an asynchronous
   copy on a stream that was made is queued, and runs when something waits for it:

   - 1: at the last moment, and of other streams nothing but what events demand;
   - N above 1: at moments drawn from the seed N as well, from streams drawn alike.

   So a stream overtakes another wherever no event forbids it, an event is not ready until its
   work has run, and a host that reads too early or writes too early has done so before the
   copy. Pinned memory that a queued copy reads or fills is guarded: the host may not change it
   before the copy has run. Work on the legacy stream runs at once, after that of all blocking
   streams.

   All of this is guarded by the runtime's lock (dm_emulated_enter). */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LONGEST = 1024, SHORTENED = 512 }; /* tasks: a launch into a full queue runs some */
enum { PATIENCE = 4 }; /* questions that are answered by "not ready" in turn */

enum Kind { WORK_TASK, RECORD_TASK, WAIT_TASK };

/* A task of a stream's queue. */
struct Task {
  Task *before, *after;
  cudaStream_t stream;
  int device;
  bool blocks; /* the stream is a blocking one */
  Kind kind;
  dm_EmulatedWork work;
  void *arg; /* owned if the work has bytes of argument */
  unsigned open;
  dm_EmulatedMark *mark; /* to set, or to wait for */
  char *guarded;         /* pinned memory that a copy reads or fills, n_guarded bytes */
  size_t n_guarded;
  uint64_t sum;
  bool fills;
};

/* A point of a stream's queue. */
struct dm_EmulatedMark {
  int refs;
  Task *task; /* NULL: it has been passed */
  struct timespec at;
};

static Task *first, *last;
static int n_tasks;
static int seed;        /* DEMILUNE_EMULATED_LATE */
static uint64_t chance; /* the state of the generator of moments */

void dm_emulated_start_queue(int given) {
  seed = given;
  chance = (uint64_t)given;
}
bool dm_emulated_is_late(void) { return seed > 0; }

/* A number below n. */
static int draw(int n) {
  chance = chance * 6364136223846793005u + 1442695040888963407u;
  return (int)((chance >> 33) % (uint64_t)n);
}

/* ---- marks ---- */

void dm_emulated_mark_drop(dm_EmulatedMark *m) {
  if (m && --m->refs == 0) free(m);
}
bool dm_emulated_mark_passed(const dm_EmulatedMark *m) { return !m->task; }
struct timespec dm_emulated_mark_time(const dm_EmulatedMark *m) {
  return m->at;
}

/* ---- guarded memory ---- */

static uint64_t sum_of(const Task *p) {
  return dm_emulated_hash((uint64_t)p->n_guarded, p->guarded, p->n_guarded);
}
static bool overlaps(const Task *p, const char *at, size_t n) {
  return p->guarded && p->guarded < at + n && at < p->guarded + p->n_guarded;
}

/* What a copy wrote to pinned memory is what later tasks find there. */
static void adopt(const char *at, size_t n) {
  for (Task *p = first; p; p = p->after)
    if (overlaps(p, at, n)) p->sum = sum_of(p);
}

static void check_guarded(const Task *p) {
  if (!p->guarded || sum_of(p) == p->sum) return;
  fprintf(stderr,
          "demilune emulation: the host changed the pinned memory at %p, of %zu bytes, before "
          "%s had %s it\n",
          (void *)p->guarded, p->n_guarded, p->work.name, p->fills ? "filled" : "read");
  abort();
}

/* Guards n bytes at p for the task that was queued last. What a copy will fill is
   poisoned, unless an earlier copy has still to read it. */
void dm_emulated_guard(void *p, size_t n, bool fills) {
  bool is_read = false;
  for (const Task *q = first; q; q = q->after)
    is_read = is_read || (!q->fills && overlaps(q, (const char *)p, n));
  if (fills && !is_read) {
    dm_emulated_poison(p, n);
    adopt((const char *)p, n);
  }
  last->guarded = (char *)p;
  last->n_guarded = n;
  last->fills = fills;
  last->sum = sum_of(last);
}

void dm_emulated_check_unguarded(const void *p, size_t n) {
  for (const Task *q = first; q; q = q->after) {
    if (!overlaps(q, (const char *)p, n)) continue;
    fprintf(stderr, "demilune emulation: cudaFreeHost of %p before %s had %s it\n", p,
            q->work.name, q->fills ? "filled" : "read");
    abort();
  }
}

/* ---- running ---- */

static void unlink_task(Task *p) {
  *(p->before ? &p->before->after : &first) = p->after;
  *(p->after ? &p->after->before : &last) = p->before;
  n_tasks--;
}

static Task *first_of(cudaStream_t s) {
  Task *p = first;
  while (p && p->stream != s) p = p->after;
  return p;
}

static void run_until(cudaStream_t s, const Task *end);

static void run_task(Task *p) {
  unlink_task(p);
  if (p->kind == WAIT_TASK) {
    if (p->mark->task) run_until(p->mark->task->stream, p->mark->task);
  } else if (p->kind == RECORD_TASK) {
    clock_gettime(CLOCK_MONOTONIC, &p->mark->at);
    p->mark->task = nullptr;
  } else {
    check_guarded(p);
    dm_emulated_open(p->open);
    p->work.go(&p->work, p->arg);
    if (p->fills) adopt(p->guarded, p->n_guarded);
    if (p->work.n_arg) free(p->arg);
  }
  dm_emulated_mark_drop(p->mark);
  free(p);
}

/* Runs the tasks of s up to `end`, which is run too; all of them where it is NULL. */
static void run_until(cudaStream_t s, const Task *end) {
  for (Task *p = first_of(s); p; p = first_of(s)) {
    const bool is_end = p == end;
    run_task(p);
    if (is_end) return;
  }
}

/* A task's stream, drawn; at the last moment that of the youngest task. */
static cudaStream_t any_stream(void) {
  if (seed == 1) return last->stream;
  Task *p = first;
  for (int n = draw(n_tasks); n > 0; n--) p = p->after;
  return p->stream;
}

/* Runs the tasks for which which(task) holds, streams in turn as they are drawn. */
template <class F> static void run_all(const F &which) {
  for (;;) {
    Task *p = first;
    while (p && !which(p)) p = p->after;
    if (!p) break;
    const cudaStream_t s = any_stream();
    Task *of_s = first_of(s);
    run_task(which(of_s) ? of_s : first_of(p->stream));
  }
  dm_emulated_open(0);
}

void dm_emulated_finish_stream(cudaStream_t s) {
  run_until(s, nullptr);
  dm_emulated_open(0);
}
void dm_emulated_finish_mark(const dm_EmulatedMark *m) {
  if (m->task) run_until(m->task->stream, m->task);
  dm_emulated_open(0);
}
void dm_emulated_finish_device(int device) {
  run_all([=](const Task *p) { return p->device == device; });
}
void dm_emulated_finish_blocking(int device) {
  run_all([=](const Task *p) { return p->device == device && p->blocks; });
}
void dm_emulated_finish_all(void) {
  run_all([](const Task *) { return true; });
}

/* Whether a question about s or a mark (NULL: about all of s) is to be answered by "not ready":
   at most some times in turn, as a GPU comes to an end as well. */
bool dm_emulated_is_pending(cudaStream_t s, const dm_EmulatedMark *m) {
  static int asked;
  if (m ? !m->task : !first_of(s)) return false;
  if (++asked % PATIENCE != 0) return true;
  if (m) dm_emulated_finish_mark(m);
  else dm_emulated_finish_stream(s);
  return false;
}

/* ---- queueing ---- */

/* Some tasks run in between, and the oldest ones of a long queue. */
static void make_headway(void) {
  if (seed > 1 && n_tasks > 0 && draw(4) == 0)
    for (int n = 1 + draw(8); n > 0 && n_tasks > 0; n--) run_task(first_of(any_stream()));
  if (n_tasks > LONGEST)
    while (n_tasks > SHORTENED) run_task(first_of(first->stream));
  dm_emulated_open(0);
}

static Task *append(cudaStream_t s, Kind kind) {
  make_headway();
  Task *p = (Task *)calloc(1, sizeof *p);
  if (!p) abort();
  p->stream = s;
  p->kind = kind;
  p->blocks = dm_emulated_is_blocking(s, &p->device);
  p->before = last;
  *(last ? &last->after : &first) = p;
  last = p;
  n_tasks++;
  return p;
}

/* arg NULL: the caller fills the work.n_arg bytes that it gets. */
void *dm_emulated_queue(cudaStream_t s, const dm_EmulatedWork &work, const void *arg,
                        unsigned open) {
  Task *p = append(s, WORK_TASK);
  p->work = work;
  p->open = open;
  p->arg = const_cast<void *>(arg);
  if (work.n_arg) {
    p->arg = malloc(work.n_arg);
    if (!p->arg) abort();
    if (arg) memcpy(p->arg, arg, work.n_arg);
  }
  return p->arg;
}

dm_EmulatedMark *dm_emulated_mark(cudaStream_t s) {
  dm_EmulatedMark *m = (dm_EmulatedMark *)calloc(1, sizeof *m);
  if (!m) abort();
  m->task = append(s, RECORD_TASK);
  m->task->mark = m;
  m->refs = 2; /* the task's, the caller's */
  return m;
}

void dm_emulated_await(cudaStream_t s, dm_EmulatedMark *m) {
  if (!m->task) return;
  append(s, WAIT_TASK)->mark = m;
  m->refs++;
}

/* Runs the work of a launch now or queues it. given: a hash of what it was given. */
void dm_emulated_submit(cudaStream_t s, const dm_EmulatedWork &work, void *arg,
                        uint64_t given) {
  const unsigned open = dm_emulated_reach();
  const bool late = dm_emulated_runs_late(s);
  dm_emulated_enter(late ? 0 : open);
  dm_emulated_count_launch(work.name, work.block.x * work.block.y * work.block.z);
  dm_emulated_note(work.name, s, given);
  if (late) dm_emulated_queue(s, work, arg, open);
  else work.go(&work, arg);
  dm_emulated_leave();
}

void dm_emulated_settle(void) {
  if (!dm_emulated_is_late()) return;
  dm_emulated_enter(0);
  dm_emulated_finish_all();
  dm_emulated_leave();
}

/* ---- memory of the caching allocator ---- */

struct Life {
  void *p;
  size_t n;
};
static void begin_life(const dm_EmulatedWork *, void *arg) {
  const Life *l = (const Life *)arg;
  dm_emulated_allow(l->p, l->n, true);
}
static void end_life(const dm_EmulatedWork *, void *arg) {
  const Life *l = (const Life *)arg;
  dm_emulated_allow(l->p, l->n, true);
  dm_emulated_poison(l->p, l->n);
  dm_emulated_allow(l->p, l->n, false);
}

void dm_emulated_life(cudaStream_t s, void *p, size_t n, bool begins) {
  if (!dm_emulated_is_late()) {
    dm_emulated_allow(p, n, begins);
    return;
  }
  if (dm_emulated_is_captured(s)) return;
  dm_EmulatedWork w = {};
  w.go = begins ? begin_life : end_life;
  w.n_arg = sizeof(Life);
  w.name = "the allocator";
  const Life life = {p, n};
  const unsigned open = dm_emulated_owner_bit(p);
  dm_emulated_enter(0);
  dm_emulated_queue(s, w, &life, open);
  dm_emulated_leave();
}
