/* The recorder: see profile.h. Events are stored in chunks that never move; names, shapes and
   stacks in separate blocks. Everything is freed with the profile. */
#include "engine/profile.h"

#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/error.h"

enum { CHUNK = 512, BLOCK_WORDS = 4096, MOST_DEVICES = 64 };

typedef struct Block {
  struct Block *next;
  int64_t used, capacity, words[]; /* used, capacity: in words */
} Block;

struct dm_Profile {
  dm_Observer observer;
  bool recording;
  int flags;
  const char *(*where)(void *ctx);
  void *ctx;
  bool out_of_memory;
  int64_t origin; /* ns of the clock at time 0 */
  int64_t last;   /* when time and bytes were charged last */
  dm_ProfileBytes last_bytes;
  dm_ProfileEvent *top; /* innermost event under way */
  dm_ProfileEvent **chunks;
  int64_t n, n_chunks, capacity;
  Block *blocks;
  dm_ProfileSpan *spans;
  int64_t n_span, n_read, span_capacity;
  int span_depth;           /* 0: the last one has ended */
  void *base[MOST_DEVICES]; /* of each device that was met: its event at time base_time */
  int64_t base_time[MOST_DEVICES];
};

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static dm_ProfileBytes live_bytes(void) {
  const dm_Device cpu = {DM_CPU, 0};
  return (dm_ProfileBytes){dm_device_ops(cpu)->allocated_bytes(cpu), dm_live_device_bytes()};
}

static void add_bytes(dm_ProfileBytes *to, dm_ProfileBytes b, int sign) {
  to->cpu += sign * b.cpu;
  to->device += sign * b.device;
}

/* ---- storage ---- */

static void *words(dm_Profile *p, int64_t n) {
  Block *b = p->blocks;
  if (!b || b->capacity - b->used < n) {
    const int64_t capacity = dm_max_i64(n, BLOCK_WORDS);
    b = dm_alloc((int64_t)sizeof *b + capacity * (int64_t)sizeof b->words[0]);
    if (!b) return NULL;
    *b = (Block){.next = p->blocks, .capacity = capacity};
    p->blocks = b;
  }
  void *at = b->words + b->used;
  b->used += n;
  return at;
}

static const char *copy_text(dm_Profile *p, const char *text) {
  const size_t n = strlen(text) + 1;
  char *to = words(p, (int64_t)(n + 7) / 8);
  return to ? memcpy(to, text, n) : NULL;
}

static bool add_chunk(dm_Profile *p) {
  if (p->n_chunks == p->capacity) {
    const int64_t capacity = p->capacity ? 2 * p->capacity : 64;
    dm_ProfileEvent **more = dm_alloc((int64_t)sizeof *more * capacity);
    if (!more) return false;
    if (p->n_chunks) memcpy(more, p->chunks, sizeof *more * (size_t)p->n_chunks);
    dm_free(p->chunks);
    p->chunks = more;
    p->capacity = capacity;
  }
  dm_ProfileEvent *chunk = dm_alloc(sizeof *chunk * CHUNK);
  if (!chunk) return false;
  p->chunks[p->n_chunks++] = chunk;
  return true;
}

/* ---- reading an event ---- */

static const char *suffix_of(const dm_Event *e) {
  if (e->backward) return " backward";
  if (e->autocast) return " (autocast)";
  return e->inplace ? "_" : "";
}

static bool note_shapes(dm_Profile *p, dm_ProfileEvent *r, const dm_Event *e) {
  int64_t n = 1 + e->n_in;
  for (int i = 0; i < e->n_in; i++) n += e->in[i] ? e->in[i]->ndim : 0;
  int64_t *at = words(p, n);
  if (!at) return false;
  r->shapes = at;
  *at++ = e->n_in;
  for (int i = 0; i < e->n_in; i++) {
    const dm_Tensor *t = e->in[i];
    *at++ = t ? t->ndim : 0;
    for (int d = 0; t && d < t->ndim; d++) *at++ = t->shape[d];
  }
  return true;
}

static double last_size(const dm_Tensor *t) {
  return t->ndim ? (double)t->shape[t->ndim - 1] : 1;
}
/* Multiplications for one output channel: input channels of a group times taps. */
static double per_channel(const dm_Tensor *weight) {
  return (double)weight->numel / (double)dm_max_i64(weight->shape[0], 1);
}

/* The operations of a matrix product or convolution: a multiplication and an addition for each
   term. A node's turn counts none: the ops that it calls are events with their own. */
static double flops_of(const dm_Event *e) {
  if (!e->op || e->backward || e->n_out < 1 || !e->out[0]) return 0;
  const double out = (double)e->out[0]->numel;
  switch (dm_op_id(e->op)) {
  case DM_OP_mm:
  case DM_OP_bmm:
  case DM_OP_mv:
  case DM_OP_dot:
  case DM_OP_matmul:
  case DM_OP_linear: return 2 * out * last_size(e->in[0]);
  case DM_OP_linear_backward: return 2 * out * (double)e->in[0]->shape[0];
  case DM_OP_addmm:
  case DM_OP_baddbmm: return 2 * out * last_size(e->in[1]);
  case DM_OP_conv2d: return 2 * out * per_channel(e->in[1]);
  case DM_OP_conv2d_dx: return 2 * (double)e->in[0]->numel * per_channel(e->in[1]);
  case DM_OP_conv2d_dw: return 2 * (double)e->in[0]->numel * per_channel(e->out[0]);
  default: return 0;
  }
}

/* ---- times of devices ---- */

static void *stream_on(dm_Device dev) {
  const dm_Stream *s = &dm_thread_state()->stream;
  return s->handle && dm_device_eq(s->device, dev) ? s->handle : NULL;
}

static void *record(dm_Device dev) {
  const dm_StreamOps *ops = dm_device_ops(dev)->streams;
  void *event;
  if (ops->event_new(dev, true, &event) != DM_OK) return NULL;
  if (ops->event_record(dev, event, stream_on(dev)) == DM_OK) return event;
  ops->event_free(dev, event);
  return NULL;
}

/* Relates the device's clock to the host's; the first call waits for the device. */
static bool set_base(dm_Profile *p, dm_Device dev) {
  if (p->base[dev.index]) return true;
  void *event = record(dev);
  if (!event) return false;
  p->base[dev.index] = event;
  (void)dm_device_ops(dev)->streams->event_synchronize(dev, event);
  p->base_time[dev.index] = now_ns() - p->origin;
  return true;
}

static bool more_spans(dm_Profile *p) {
  if (p->n_span < p->span_capacity) return true;
  const int64_t capacity = p->span_capacity ? 2 * p->span_capacity : CHUNK;
  dm_ProfileSpan *more = dm_alloc((int64_t)sizeof *more * capacity);
  if (!more) return false;
  if (p->n_span) memcpy(more, p->spans, sizeof *more * (size_t)p->n_span);
  dm_free(p->spans);
  p->spans = more;
  p->span_capacity = capacity;
  return true;
}

static void drop_span(dm_Profile *p) {
  dm_ProfileSpan *s = &p->spans[--p->n_span];
  const dm_StreamOps *ops = dm_device_ops(s->device)->streams;
  if (s->from) ops->event_free(s->device, s->from);
  if (s->to) ops->event_free(s->device, s->to);
}

/* Work within other work belongs to the outer one. */
static void on_work(void *ctx, dm_Device dev, bool begins) {
  dm_Profile *p = ctx;
  if (p->out_of_memory || !p->top || dev.index >= MOST_DEVICES) return;
  if (!dm_device_ops(dev)->streams) return;
  if (p->span_depth > 0 || !begins) {
    p->span_depth += begins ? 1 : p->span_depth > 0 ? -1 : 0;
    if (p->span_depth > 0 || begins || p->n_span == p->n_read) return;
    dm_ProfileSpan *s = &p->spans[p->n_span - 1];
    if (!s->to && !(s->to = record(s->device))) drop_span(p);
    return;
  }
  if (!more_spans(p) || !set_base(p, dev)) {
    p->out_of_memory = true;
    return;
  }
  dm_ProfileSpan *s = &p->spans[p->n_span];
  *s = (dm_ProfileSpan){.event = p->top->index, .device = dev, .from = record(dev)};
  if (!s->from) return;
  p->n_span++;
  p->span_depth = 1;
}

/* Work of event r that has not ended has failed. */
static void end_span(dm_Profile *p, const dm_ProfileEvent *r) {
  if (p->span_depth == 0 || (r && p->spans[p->n_span - 1].event != r->index)) return;
  drop_span(p);
  p->span_depth = 0;
}

/* ---- events ---- */

/* Time and bytes since the last charge go to the innermost event. */
static void charge(dm_Profile *p) {
  const int64_t now = now_ns() - p->origin;
  const dm_ProfileBytes bytes =
      p->flags & DM_PROFILE_MEMORY ? live_bytes() : (dm_ProfileBytes){0, 0};
  if (p->top) {
    p->top->self += now - p->last;
    add_bytes(&p->top->self_bytes, bytes, 1);
    add_bytes(&p->top->self_bytes, p->last_bytes, -1);
  }
  p->last = now;
  p->last_bytes = bytes;
}

static void on_begin(void *ctx, const dm_Event *e) {
  dm_Profile *p = ctx;
  if (p->out_of_memory) return;
  if (p->n == p->n_chunks * CHUNK && !add_chunk(p)) {
    p->out_of_memory = true;
    return;
  }
  dm_ProfileEvent *r = &p->chunks[p->n / CHUNK][p->n % CHUNK];
  *r = (dm_ProfileEvent){.name = e->op ? e->name : copy_text(p, e->name),
                         .suffix = suffix_of(e),
                         .end = -1,
                         .index = p->n,
                         .parent = p->top ? p->top->index : -1,
                         .thread = dm_thread_state(),
                         .is_op = e->op || e->backward,
                         .key = e,
                         .below = p->top};
  bool whole = r->name != NULL;
  if (whole && p->flags & DM_PROFILE_SHAPES) whole = note_shapes(p, r, e);
  if (whole && p->where) whole = (r->stack = copy_text(p, p->where(p->ctx))) != NULL;
  if (!whole) {
    p->out_of_memory = true;
    return;
  }
  p->n++;
  charge(p); /* last: making the record is the outer event's time */
  r->start = p->last;
  add_bytes(&r->bytes, p->last_bytes, -1);
  p->top = r;
}

static void end_event(dm_Profile *p, dm_ProfileEvent *r) {
  r->end = p->last;
  add_bytes(&r->bytes, p->last_bytes, 1);
  r->key = NULL;
}

static void on_end(void *ctx, const dm_Event *e) {
  dm_Profile *p = ctx;
  dm_ProfileEvent **at = &p->top;
  while (*at && (*at)->key != e) at = &(*at)->below;
  dm_ProfileEvent *r = *at;
  if (!r) return; /* it began before recording did */
  end_span(p, r);
  charge(p);
  end_event(p, r);
  *at = r->below;
  if (p->flags & DM_PROFILE_FLOPS) r->flops = flops_of(e);
}

/* ---- times of devices, read ---- */

static dm_status read_span(dm_Profile *p, dm_ProfileSpan *s) {
  const dm_StreamOps *ops = dm_device_ops(s->device)->streams;
  double start, length;
  DM_TRY(ops->event_synchronize(s->device, s->to));
  DM_TRY(ops->event_elapsed(p->base[s->device.index], s->from, &start));
  DM_TRY(ops->event_elapsed(s->from, s->to, &length));
  s->start = p->base_time[s->device.index] + (int64_t)(start * 1e6);
  s->length = (int64_t)(length * 1e6);
  dm_ProfileEvent *e = &p->chunks[s->event / CHUNK][s->event % CHUNK];
  e->self_device += s->length;
  for (;; e = &p->chunks[e->parent / CHUNK][e->parent % CHUNK]) {
    e->device += s->length;
    if (e->parent < 0) return DM_OK;
  }
}

/* The first failure; what cannot be read is left out. */
static dm_status read_spans(dm_Profile *p) {
  dm_status st = DM_OK;
  end_span(p, NULL);
  for (int64_t i = p->n_read; i < p->n_span; i++) {
    dm_ProfileSpan *s = &p->spans[i];
    const dm_StreamOps *ops = dm_device_ops(s->device)->streams;
    const dm_status read = read_span(p, s);
    if (st == DM_OK) st = read;
    ops->event_free(s->device, s->from);
    ops->event_free(s->device, s->to);
    s->from = s->to = NULL;
    if (read == DM_OK) p->spans[p->n_read++] = *s;
  }
  p->n_span = p->n_read;
  return st;
}

/* ---- the whole ---- */

dm_status dm_profile_new(int flags, const char *(*where)(void *ctx), void *ctx,
                         dm_Profile **out) {
  dm_Profile *p = dm_alloc_zero(sizeof *p);
  if (!p) return dm_fail(DM_EMEM, "profile: out of memory");
  p->observer = (dm_Observer){.ctx = p, .begin = on_begin, .end = on_end};
  if (flags & DM_PROFILE_DEVICE) p->observer.work = on_work;
  p->flags = flags;
  p->where = where;
  p->ctx = ctx;
  p->origin = now_ns();
  *out = p;
  return DM_OK;
}

void dm_profile_start(dm_Profile *p) {
  if (p->recording) return;
  p->recording = true;
  dm_observer_add(&p->observer);
}

dm_status dm_profile_stop(dm_Profile *p) {
  if (!p->recording) return DM_OK;
  dm_observer_remove(&p->observer);
  p->recording = false;
  charge(p);
  for (; p->top; p->top = p->top->below) end_event(p, p->top);
  const dm_status st = read_spans(p);
  if (!p->out_of_memory) return st;
  p->out_of_memory = false;
  return dm_fail(
      DM_EMEM, "profile: out of memory after %lld events; what was recorded until then is kept",
      (long long)p->n);
}

void dm_profile_free(dm_Profile *p) {
  if (!p) return;
  (void)dm_profile_stop(p);
  for (int64_t i = 0; i < p->n_chunks; i++) dm_free(p->chunks[i]);
  dm_free(p->chunks);
  dm_free(p->spans);
  for (int i = 0; i < MOST_DEVICES; i++) {
    const dm_Device dev = {DM_CUDA, (uint8_t)i};
    if (p->base[i]) dm_device_ops(dev)->streams->event_free(dev, p->base[i]);
  }
  for (Block *b = p->blocks, *next; b; b = next) {
    next = b->next;
    dm_free(b);
  }
  dm_free(p);
}

int64_t dm_profile_count(const dm_Profile *p) { return p->n; }

int64_t dm_profile_span_count(const dm_Profile *p) { return p->n_read; }

const dm_ProfileSpan *dm_profile_span(const dm_Profile *p, int64_t i) { return &p->spans[i]; }

const dm_ProfileEvent *dm_profile_event(const dm_Profile *p, int64_t i) {
  return &p->chunks[i / CHUNK][i % CHUNK];
}
