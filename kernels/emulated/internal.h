/* The emulation's own files share this. */
#ifndef DM_EMULATED_INTERNAL_H
#define DM_EMULATED_INTERNAL_H

#include <string.h>
#include <time.h>

#include "cuda_runtime.h"

/* TF32: float32 with 10 bits after the point, ties to even. */
static inline float dm_emulated_tf32(float v) {
  uint32_t bits;
  memcpy(&bits, &v, sizeof bits);
  bits = (bits + 0xfff + ((bits >> 13) & 1)) & ~(uint32_t)0x1fff;
  memcpy(&v, &bits, sizeof v);
  return v;
}

enum {
  MAX_DEVICES = 8,
  MAX_THREADS = 1024,       /* of a block */
  STATIC_SHARED = 48 << 10, /* bytes of shared memory that every kernel may use */
  MAX_SHARED = 227 << 10    /* after cudaFuncSetAttribute */
};

enum dm_Counter {
  LAUNCHES,
  COPIES,
  SYNCS,
  MALLOCS,
  FREES,
  HOST_MALLOCS,
  HOST_FREES,
  SWITCHES,
  WORK,
  NODES,
  READ,
  WRITTEN,
  N_COUNTERS
};
void dm_emulated_add(dm_Counter what, int64_t n = 1);

/* Records the calling thread's last error. */
cudaError_t dm_emulated_result(cudaError_t e);

/* Whether the current device may run work of stream s. */
cudaError_t dm_emulated_check_stream(cudaStream_t s);

/* One thread at a time launches, copies or allocates; meanwhile the memory of
   the devices in `devices` (a bit each) can be read and written. dm_emulated_open changes
   which. */
void dm_emulated_enter(unsigned devices);
void dm_emulated_open(unsigned devices);
void dm_emulated_leave(void);
/* The current device and the peers that it may reach. */
unsigned dm_emulated_reach(void);

/* Whether a kernel of the current device may follow p. */
bool dm_emulated_reachable(const void *p);

/* Says on stderr who touched an address that cannot be: a kernel's thread or,
   in a device's range, the host. */
void dm_emulated_tell_fault(const void *at, bool device);

/* At the end: gives the fibers' stacks back. */
void dm_emulated_drop_stacks(void);

void dm_emulated_poison(void *p, size_t n);

/* Allows or forbids n bytes to the address sanitizer, where that is built in. */
void dm_emulated_allow(void *p, size_t n, bool allowed);

/* The device in whose live memory n bytes at p lie; negative: in none. Between enter and leave.
 */
int dm_emulated_memory(const void *p, size_t n);

/* Whether s has waited for an event since this was last asked. */
bool dm_emulated_took_event(cudaStream_t s);

/* Where it is set (nccl.cpp): called with the stream of an event (NULL: all streams) that is
   waited for, or asked for; false: what is before the event is not done. */
extern bool (*dm_emulated_on_event)(cudaStream_t s, bool waits);

/* ---- capture: graph.cpp ---- */

/* Work as a graph records it. go runs it between enter and leave, with a copy of its n_arg
   bytes of argument; what a kernel needs besides is here. */
struct dm_EmulatedWork {
  void (*go)(const dm_EmulatedWork *work, void *arg);
  size_t n_arg;
  const char *name;
  void (*call)(void *arg);
  dim3 grid, block;
  size_t shared;
};

/* Whether s is captured: then the work is recorded and *e is the result. */
bool dm_emulated_record(cudaStream_t s, const dm_EmulatedWork &work, const void *arg,
                        cudaError_t *e);
bool dm_emulated_is_captured(cudaStream_t s);

/* The results of calls that a capture may forbid; a forbidden one spoils it.
   dm_emulated_unsafe: a call that is not queued. dm_emulated_waits: one that waits for s, or
   for all if s is NULL. dm_emulated_spoil: one that s does not take, which fails with e. */
cudaError_t dm_emulated_unsafe(void);
cudaError_t dm_emulated_waits(cudaStream_t s);
cudaError_t dm_emulated_spoil(cudaStream_t s, cudaError_t e);

/* ---- work that runs late: queue.cpp ---- */

/* The seeds of the environment: of moments and streams, of the order of blocks and threads. */
void dm_emulated_start_queue(int seed);
void dm_emulated_start_order(int seed);

bool dm_emulated_is_late(void);
/* Whether work that is given to s now is queued. If not, what goes before it has run. Outside
   of enter and leave. */
bool dm_emulated_runs_late(cudaStream_t s);
/* Runs a launch's work, or queues it with a copy of its argument; counts and notes it. Outside
   of enter and leave, as dm_emulated_life is: n bytes at p of the allocator are somebody's
   from here on in the stream's order, or nobody's. */
void dm_emulated_submit(cudaStream_t s, const dm_EmulatedWork &work, void *arg, uint64_t given);
/* Runs all that is queued. Outside of enter and leave. */
void dm_emulated_settle(void);

/* The rest between enter and leave. Without `arg` the caller fills the bytes that it gets. */
void *dm_emulated_queue(cudaStream_t s, const dm_EmulatedWork &work, const void *arg,
                        unsigned open);
/* The task that was queued last reads, or fills, n bytes of pinned memory at p. */
void dm_emulated_guard(void *p, size_t n, bool fills);
/* Aborts if a queued copy has still to use some of it. */
void dm_emulated_check_unguarded(const void *p, size_t n);

/* A point of a stream's queue, which is passed when all before it has run. */
struct dm_EmulatedMark;
dm_EmulatedMark *dm_emulated_mark(cudaStream_t s); /* for dm_emulated_mark_drop */
void dm_emulated_mark_drop(dm_EmulatedMark *m);
bool dm_emulated_mark_passed(const dm_EmulatedMark *m);
struct timespec dm_emulated_mark_time(const dm_EmulatedMark *m);
void dm_emulated_await(cudaStream_t s, dm_EmulatedMark *m);
/* Whether to answer "not ready", of s if m is NULL. */
bool dm_emulated_is_pending(cudaStream_t s, const dm_EmulatedMark *m);

/* Run what is queued: on a stream, before a mark, for a device, on its blocking streams, all.
 */
void dm_emulated_finish_stream(cudaStream_t s);
void dm_emulated_finish_mark(const dm_EmulatedMark *m);
void dm_emulated_finish_device(int device);
void dm_emulated_finish_blocking(int device);
void dm_emulated_finish_all(void);

/* Whether s waits for the legacy stream, and its device. */
bool dm_emulated_is_blocking(cudaStream_t s, int *device);
/* The device of an address, as a bit. */
unsigned dm_emulated_owner_bit(const void *p);

/* Counts a launch and the kernel's or function's name, and keeps the most threads of a block.
   Between enter and leave. */
void dm_emulated_count_launch(const char *name, unsigned threads = 0);

/* Notes work that is queued on stream s; see dm_emulated_work. Between enter and leave. */
void dm_emulated_note(const char *name, cudaStream_t s, uint64_t given);

#endif
