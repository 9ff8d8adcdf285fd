/* Stream capture and graphs of the emulation; see cuda_runtime.h. While a stream is captured,
   what is queued there is recorded instead of run: the work, its arguments by value, and
   nothing of what pointers point to. A graph runs its records in their order. Calls that CUDA
   forbids during a capture fail with its codes and spoil the capture. */
#include "internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A piece of work; it owns its argument. */
struct Node {
  dm_EmulatedWork work;
  void *arg;
};
struct CUgraph_st {
  Node *nodes;
  int n, capacity;
  int device;
};
/* An executable graph: records of its own. */
struct CUgraphExec_st {
  CUgraph_st g;
  int refs; /* the caller's, and launches that have still to run; atomic */
};

/* One capture is under way at a time, which is all that the back end asks for. */
struct Capture {
  bool on, broken;
  cudaStream_t stream;
  pthread_t thread;
  cudaStreamCaptureMode mode;
  CUgraph_st *graph;
};
static Capture capture;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards capture */
static thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

/* ---- records --------------------------------------------------------------------- */

static void clear(CUgraph_st *g) {
  for (int i = 0; i < g->n; i++) free(g->nodes[i].arg);
  free(g->nodes);
  *g = CUgraph_st{};
}

static bool append(CUgraph_st *g, const dm_EmulatedWork &work, const void *arg) {
  if (g->n == g->capacity) {
    const int capacity = g->capacity ? 2 * g->capacity : 64;
    Node *more = (Node *)realloc(g->nodes, (size_t)capacity * sizeof *more);
    if (!more) return false;
    g->nodes = more;
    g->capacity = capacity;
  }
  void *copy = malloc(work.n_arg ? work.n_arg : 1);
  if (!copy) return false;
  memcpy(copy, arg, work.n_arg);
  g->nodes[g->n++] = Node{work, copy};
  return true;
}

/* Whether s is captured; then *e is the result of queueing work there, which is recorded. */
bool dm_emulated_record(cudaStream_t s, const dm_EmulatedWork &work, const void *arg,
                        cudaError_t *e) {
  pthread_mutex_lock(&lock);
  const bool is_captured = capture.on && capture.stream == s;
  if (is_captured) {
    *e = capture.broken ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    if (!capture.broken && !append(capture.graph, work, arg)) *e = cudaErrorMemoryAllocation;
  }
  pthread_mutex_unlock(&lock);
  return is_captured;
}

bool dm_emulated_is_captured(cudaStream_t s) {
  pthread_mutex_lock(&lock);
  const bool is = capture.on && capture.stream == s;
  pthread_mutex_unlock(&lock);
  return is;
}

/* ---- forbidden calls ---------------------------------------------------------------- */

static cudaError_t refuse_if(bool forbidden, cudaError_t e) {
  if (!forbidden) return cudaSuccess;
  capture.broken = true;
  return e;
}

/* Calls that are not queued and may wait for the device: forbidden to a thread that captures,
   and to all others while a capture of the mode Global is under way, unless the thread or the
   capture is Relaxed. */
cudaError_t dm_emulated_unsafe(void) {
  pthread_mutex_lock(&lock);
  const bool own = pthread_equal(capture.thread, pthread_self());
  const bool held = own ? capture.mode != cudaStreamCaptureModeRelaxed
                        : capture.mode == cudaStreamCaptureModeGlobal &&
                              thread_mode == cudaStreamCaptureModeGlobal;
  const cudaError_t e =
      refuse_if(capture.on && held && thread_mode != cudaStreamCaptureModeRelaxed,
                cudaErrorStreamCaptureUnsupported);
  pthread_mutex_unlock(&lock);
  return e;
}

/* Waiting for a captured stream: what would be waited for has not begun. s NULL: for all. */
cudaError_t dm_emulated_waits(cudaStream_t s) {
  pthread_mutex_lock(&lock);
  const cudaError_t e =
      refuse_if(capture.on && (!s || capture.stream == s), cudaErrorStreamCaptureUnsupported);
  pthread_mutex_unlock(&lock);
  return e == cudaSuccess ? dm_emulated_unsafe() : e;
}

cudaError_t dm_emulated_spoil(cudaStream_t s, cudaError_t e) {
  pthread_mutex_lock(&lock);
  if (capture.on && capture.stream == s) capture.broken = true;
  pthread_mutex_unlock(&lock);
  return e;
}

/* ---- CUDA's functions ------------------------------------------------------------------ */

static cudaError_t begin(cudaStream_t s, cudaStreamCaptureMode mode) {
  if (capture.on) return cudaErrorIllegalState;
  CUgraph_st *g = (CUgraph_st *)calloc(1, sizeof *g);
  if (!g) return cudaErrorMemoryAllocation;
  cudaGetDevice(&g->device);
  capture = Capture{true, false, s, pthread_self(), mode, g};
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode) {
  cudaError_t e = dm_emulated_check_stream(s);
  if (e == cudaSuccess && (!s || s == cudaStreamLegacy)) e = cudaErrorStreamCaptureUnsupported;
  if (e != cudaSuccess) return dm_emulated_result(e);
  pthread_mutex_lock(&lock);
  e = begin(s, mode);
  pthread_mutex_unlock(&lock);
  return dm_emulated_result(e);
}

/* A capture that was begun Relaxed may be ended by any thread. */
static cudaError_t finish(cudaStream_t s, cudaGraph_t *out) {
  if (!capture.on || capture.stream != s) return cudaErrorStreamCaptureUnmatched;
  if (capture.mode != cudaStreamCaptureModeRelaxed &&
      !pthread_equal(capture.thread, pthread_self()))
    return cudaErrorStreamCaptureWrongThread;
  capture.on = false;
  if (capture.broken) {
    clear(capture.graph);
    free(capture.graph);
    return cudaErrorStreamCaptureInvalidated;
  }
  *out = capture.graph;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out) {
  if (!out) return dm_emulated_result(cudaErrorInvalidValue);
  *out = nullptr;
  pthread_mutex_lock(&lock);
  const cudaError_t e = finish(s, out);
  pthread_mutex_unlock(&lock);
  return dm_emulated_result(e);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode) {
  const cudaStreamCaptureMode before = thread_mode;
  thread_mode = *mode;
  *mode = before;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g,
                                 unsigned long long flags) {
  if (!out || !g || flags) return dm_emulated_result(cudaErrorInvalidValue);
  CUgraphExec_st *exec = (CUgraphExec_st *)calloc(1, sizeof *exec);
  bool ok = exec != nullptr;
  if (ok) exec->g.device = g->device;
  if (ok) exec->refs = 1;
  for (int i = 0; i < g->n && ok; i++) ok = append(&exec->g, g->nodes[i].work, g->nodes[i].arg);
  if (!ok) {
    if (exec) clear(&exec->g);
    free(exec);
    return dm_emulated_result(cudaErrorMemoryAllocation);
  }
  *out = exec;
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *n) {
  if (!g || !n || nodes) return dm_emulated_result(cudaErrorInvalidValue);
  *n = (size_t)g->n;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g) {
  if (!g) return dm_emulated_result(cudaErrorInvalidValue);
  clear(g);
  free(g);
  return cudaSuccess;
}
static void drop(CUgraphExec_st *exec) {
  if (__atomic_sub_fetch(&exec->refs, 1, __ATOMIC_ACQ_REL) > 0) return;
  clear(&exec->g);
  free(exec);
}
/* Launches that wait go on. */
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  if (!exec) return dm_emulated_result(cudaErrorInvalidValue);
  drop(exec);
  return cudaSuccess;
}

/* Each record runs on a fresh copy of its argument, which the work may change. */
static void run_graph(const dm_EmulatedWork *, void *arg) {
  CUgraphExec_st *exec = *(CUgraphExec_st **)arg;
  for (int i = 0; i < exec->g.n; i++) {
    const Node *node = &exec->g.nodes[i];
    void *copy = malloc(node->work.n_arg ? node->work.n_arg : 1);
    if (!copy) abort();
    memcpy(copy, node->arg, node->work.n_arg);
    node->work.go(&node->work, copy);
    free(copy);
  }
  drop(exec);
}

/* One launch, whatever the graph holds. */
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s) {
  const cudaError_t e = dm_emulated_check_stream(s);
  if (e != cudaSuccess) return dm_emulated_result(e);
  if (!exec || dm_emulated_is_captured(s)) return dm_emulated_result(cudaErrorInvalidValue);
  dm_EmulatedWork w = {};
  w.go = run_graph;
  w.n_arg = sizeof exec;
  w.name = "cudaGraphLaunch";
  __atomic_add_fetch(&exec->refs, 1, __ATOMIC_RELAXED);
  for (int i = 0; i < exec->g.n; i++) dm_emulated_add(NODES);
  dm_emulated_submit(s, w, &exec, dm_emulated_hash(0, &exec, sizeof exec));
  return cudaSuccess;
}
