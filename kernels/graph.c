/* A training step as a CUDA graph: the stream is captured while the step's functions queue
   their work, and one launch does that work again.

   Arguments of launches are fixed by the capture. What moves from step to step is in device
   memory. Tables that launches read (keep.h) belong to the graph; the host writes those of an
   optimizer's options anew before a launch where a learning rate has changed, and the
   generator's where something else has drawn from it. A launch advances the host's generator as
   the draws in it do.

   Memory comes from a pool of the graph's own, which the eager runs before the capture have
   filled: addresses in it are used by nothing else while the graph lives. Memory from outside
   that was in use when the capture began is held, so that a tensor that the graph reads is not
   replaced unnoticed by another. */
#include "kernels/graph.h"

#include "kernels/device.h"
#include "kernels/optim.h"

/* Bytes on the device that launches of the graph read. */
typedef struct Kept {
  uint64_t site;
  int64_t n;
  void *bytes, *p; /* the host's, the device's */
  bool is_step, is_sent;
} Kept;

typedef struct Graph {
  int device;
  cudaStream_t stream;
  cudaGraphExec_t exec; /* NULL before the end of the capture */
  int64_t n_node;
  bool holds; /* the allocator holds memory for it */
  Kept *kept;
  int64_t n_kept, capacity;
  /* The generator: the host's, the device's copy of it, as that copy is now, and the counters
     that a launch takes. */
  dm_Generator *host, *on_device, start, now; /* start: of the capture */
  bool is_begun;                              /* on_device has been sent */
  uint64_t drawn;
} Graph;

/* This thread's: the graph whose pool serves it, and the one that it records. */
static _Thread_local Graph *pooled, *captured;

bool dm_graph_is_capturing(void) { return captured != NULL; }

dm_status dm_graph_refuse(const char *what) {
  if (DM_LIKELY(!captured)) return DM_OK;
  return dm_fail(DM_EARG, "cuda.graph: %s cannot be captured", what);
}

dm_status dm_graph_check_stream(int device, cudaStream_t stream) {
  if (captured->device == device && captured->stream == stream) return DM_OK;
  return dm_graph_refuse(captured->device == device ? "work on another stream"
                                                    : "work on another device");
}

void *dm_graph_pool(int device, cudaStream_t stream) {
  return DM_UNLIKELY(pooled != NULL) && pooled->device == device && pooled->stream == stream
             ? (void *)pooled
             : (void *)stream;
}

/* ---- tables ---- */

static dm_status no_records(void) {
  return dm_fail(DM_EMEM, "cuda.graph: out of memory for a graph's records");
}

/* Makes space for one more table. */
static dm_status grow(Graph *g) {
  if (g->n_kept < g->capacity) return DM_OK;
  const int64_t capacity = g->capacity ? 2 * g->capacity : 16;
  Kept *kept = dm_alloc(capacity * (int64_t)sizeof *kept);
  if (!kept) return no_records();
  if (g->n_kept > 0) memcpy(kept, g->kept, (size_t)g->n_kept * sizeof *kept);
  dm_free(g->kept);
  g->kept = kept;
  g->capacity = capacity;
  return DM_OK;
}

/* In the pool an earlier launch of the graph may have written: what the host sends before a
   launch has to outlast all of it. */
dm_status dm_graph_lasting(int64_t n, void **out) {
  Graph *pool = pooled;
  pooled = NULL;
  const dm_status st = dm_cuda_scratch(n, out);
  pooled = pool;
  return st;
}

/* Adds a copy of n bytes. */
static dm_status add(Graph *g, uint64_t site, const void *bytes, int64_t n, bool is_step,
                     void **out) {
  DM_TRY(grow(g));
  Kept k = {.site = site, .n = n, .is_step = is_step};
  k.bytes = dm_alloc(n ? n : 1);
  if (!k.bytes) return no_records();
  const dm_status st = dm_graph_lasting(n, &k.p);
  if (st != DM_OK) {
    dm_free(k.bytes);
    return st;
  }
  if (n > 0) memcpy(k.bytes, bytes, (size_t)n);
  g->kept[g->n_kept++] = k;
  *out = k.p;
  return DM_OK;
}

/* Two calls from one site share a copy where they give the same bytes. */
dm_status dm_graph_keep(uint64_t site, const void *bytes, int64_t n, void **out) {
  Graph *g = captured;
  for (int64_t i = 0; i < g->n_kept; i++) {
    const Kept *k = &g->kept[i];
    if (k->is_step || k->site != site || k->n != n) continue;
    if (n > 0 && memcmp(k->bytes, bytes, (size_t)n) != 0) continue;
    *out = k->p;
    return DM_OK;
  }
  return add(g, site, bytes, n, false, out);
}

/* Each step has a copy of its own: two of one optimizer class may have other options later. */
dm_status dm_graph_keep_step(uint64_t site, const void *bytes, int64_t n, void **out) {
  return add(captured, site, bytes, n, true, out);
}

static bool same(const dm_Generator *a, const dm_Generator *b) {
  return a->seed == b->seed && a->offset == b->offset;
}

/* The draws of a step follow each other: the device advances the generator by itself, so that
   the host's may not move in between for another reason. */
dm_status dm_graph_keep_generator(const dm_Generator *host, const dm_Generator *was,
                                  void **out) {
  Graph *g = captured;
  if (host != g->host) return dm_graph_refuse("a draw from a generator of its own");
  if (!same(was, &g->now))
    return dm_graph_refuse("a seed, a generator's state or a draw on the CPU");
  if (!g->on_device) {
    void *p;
    DM_TRY(dm_graph_lasting(sizeof *was, &p));
    g->on_device = p;
  }
  g->drawn += host->offset - was->offset;
  g->now = *host;
  *out = g->on_device;
  return DM_OK;
}

/* ---- capture ---- */

/* A graph belongs to the stream that is current now. */
static dm_status graph_new(dm_Device dev, void **out) {
  Graph *g = dm_alloc_zero((int64_t)sizeof *g);
  if (!g) return no_records();
  g->device = dev.index;
  const dm_status st = dm_cuda_pool_new(dev.index, g, &g->stream);
  if (st != DM_OK) dm_free(g);
  else *out = g;
  return st;
}

/* The eager runs before the capture take their memory from the pool, too, which has then all
   that the capture asks for: cudaMalloc is forbidden during it. */
static void use_pool(void *graph, bool yes) { pooled = yes ? graph : NULL; }

/* Nothing of the step has run: the generator goes back. False if the host has moved it. */
static bool leave(Graph *g) {
  const bool ok = same(g->host, &g->now);
  captured = NULL;
  pooled = NULL;
  dm_cuda_pause_memory(g->device, false);
  *g->host = g->start;
  return ok;
}

/* Forgets what the graph has kept. */
static void forget(Graph *g) {
  for (int64_t i = 0; i < g->n_kept; i++) {
    dm_cuda_give_back(g->device, g->kept[i].p);
    dm_free(g->kept[i].bytes);
  }
  if (g->on_device) dm_cuda_give_back(g->device, g->on_device);
  dm_free(g->kept);
  if (g->holds) dm_cuda_let_go(g->device);
  *g = (Graph){.device = g->device, .stream = g->stream};
}

/* The mode thread-local leaves other threads, such as a loader's copies, their calls. */
static dm_status capture_begin(void *graph) {
  Graph *g = graph;
  cudaStream_t stream;
  DM_TRY(dm_cuda_current(g->device, &stream));
  DM_TRY(dm_graph_refuse("a graph within a graph"));
  if (g->host) return dm_fail(DM_EARG, "cuda.graph: the graph was captured before");
  if (stream != g->stream)
    return dm_fail(DM_EARG, "cuda.graph: the graph belongs to another stream");
  g->host = dm_thread_state()->generator;
  g->start = g->now = *g->host;
  dm_cuda_hold_memory(g->device, g);
  g->holds = true;
  dm_cuda_pause_memory(g->device, true);
  captured = pooled = g;
  const cudaError_t e = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  if (e != cudaSuccess) {
    (void)leave(g);
    forget(g);
  }
  return dm_cuda_fail(e, "cudaStreamBeginCapture");
}

/* Makes the executable graph. */
static dm_status instantiate(Graph *g, cudaGraph_t graph) {
  size_t n = 0;
  DM_CUDA_TRY(cudaGraphGetNodes(graph, NULL, &n));
  DM_CUDA_TRY(cudaGraphInstantiate(&g->exec, graph, 0));
  g->n_node = (int64_t)n;
  return DM_OK;
}

/* Without `keep`, or where that fails, the graph can be captured anew. */
static dm_status capture_end(void *graph, bool keep) {
  Graph *g = graph;
  cudaGraph_t recorded = NULL;
  if (captured != g) return DM_OK;
  const cudaError_t e = cudaStreamEndCapture(g->stream, &recorded);
  const bool drew = leave(g);
  dm_status st = keep ? dm_cuda_fail(e, "cudaStreamEndCapture") : DM_OK;
  if (keep && st == DM_OK && !drew)
    st = dm_fail(DM_EARG, "cuda.graph: a seed or a draw on the CPU cannot be captured");
  if (keep && st == DM_OK) st = instantiate(g, recorded);
  if (recorded) cudaGraphDestroy(recorded);
  (void)cudaGetLastError();
  if (!g->exec) forget(g);
  return st;
}

/* Blocks of the pool go to the stream, whose order protects what still runs. */
static void graph_free(void *graph) {
  Graph *g = graph;
  (void)capture_end(g, false);
  if (pooled == g) pooled = NULL;
  if (g->exec) cudaGraphExecDestroy(g->exec);
  dm_cuda_pool_free(g->device, g);
  forget(g);
  dm_free(g);
}

/* ---- launch ---- */

/* Sends what the host has changed since the last launch, in the stream's order. */
static dm_status refresh(Graph *g) {
  const dm_Generator now = *g->host;
  for (int64_t i = 0; i < g->n_kept; i++) {
    Kept *k = &g->kept[i];
    if (k->is_sent || k->n == 0) continue;
    DM_TRY(dm_cuda_send(k->p, k->bytes, k->n));
    k->is_sent = true;
  }
  if (!g->on_device || (g->is_begun && same(&g->now, &now))) return DM_OK;
  DM_TRY(dm_cuda_send(g->on_device, &now, sizeof now));
  g->now = now;
  g->is_begun = true;
  return DM_OK;
}

/* Queues the step once more. The host's generator moves on as the device's does. */
static dm_status launch(void *graph) {
  Graph *g = graph;
  cudaStream_t stream;
  DM_TRY(dm_cuda_current(g->device, &stream));
  DM_TRY(dm_graph_refuse("a graph within a graph"));
  if (!g->exec) return dm_fail(DM_EARG, "cuda.graph: the graph was not captured");
  if (stream != g->stream)
    return dm_fail(DM_EARG, "cuda.graph: the graph belongs to another stream");
  DM_TRY(refresh(g));
  DM_CUDA_TRY(cudaGraphLaunch(g->exec, stream));
  g->host->offset += g->drawn;
  g->now = *g->host;
  return DM_OK;
}

/* ---- optimizers ---- */

/* How many steps of optimizers the capture holds. */
static int64_t n_step(const void *graph) {
  const Graph *g = graph;
  int64_t n = 0;
  for (int64_t i = 0; i < g->n_kept; i++) n += g->kept[i].is_step;
  return n;
}

/* The i-th recorded step, from 0, or NULL. */
static Kept *step_at(Graph *g, int64_t i) {
  for (int64_t k = 0; k < g->n_kept; k++)
    if (g->kept[k].is_step && i-- == 0) return &g->kept[k];
  return NULL;
}

/* Gives a step the options that its next launch is to have, such as another learning rate. */
static dm_status set_step(void *graph, int64_t i, int method, const double *options) {
  char bytes[DM_STEP_BYTES];
  Kept *k = step_at(graph, i);
  const int64_t n = dm_step_bytes((dm_Method)method, options, bytes);
  if (!k || k->n != n)
    return dm_fail(DM_EARG, "cuda.graph: no step %lld of that method", (long long)i + 1);
  if (memcmp(k->bytes, bytes, (size_t)n) == 0) return DM_OK;
  memcpy(k->bytes, bytes, (size_t)n);
  k->is_sent = false;
  return DM_OK;
}

static int64_t n_node(const void *graph) { return ((const Graph *)graph)->n_node; }

const dm_GraphOps dm_cuda_graph_ops = {
    .graph_new = graph_new,
    .graph_free = graph_free,
    .use_pool = use_pool,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .launch = launch,
    .n_step = n_step,
    .set_step = set_step,
    .n_node = n_node,
};
