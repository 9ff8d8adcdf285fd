/* The recorder: see profile.h. Events lie in chunks that never move; names,
   shapes and stacks in blocks beside them. All is freed with the profile. */
#include "engine/profile.h"

#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/error.h"

enum { CHUNK = 512, BLOCK_WORDS = 4096 };

typedef struct Block {
  struct Block *next;
  int64_t used, room, words[]; /* used, room: words */
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
  int64_t n, n_chunks, room;
  Block *blocks;
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

/* ---- room ---- */

static void *words(dm_Profile *p, int64_t n) {
  Block *b = p->blocks;
  if (!b || b->room - b->used < n) {
    const int64_t room = dm_max_i64(n, BLOCK_WORDS);
    b = dm_alloc((int64_t)sizeof *b + room * (int64_t)sizeof b->words[0]);
    if (!b) return NULL;
    *b = (Block){.next = p->blocks, .room = room};
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
  if (p->n_chunks == p->room) {
    const int64_t room = p->room ? 2 * p->room : 64;
    dm_ProfileEvent **more = dm_alloc((int64_t)sizeof *more * room);
    if (!more) return false;
    if (p->n_chunks) memcpy(more, p->chunks, sizeof *more * (size_t)p->n_chunks);
    dm_free(p->chunks);
    p->chunks = more;
    p->room = room;
  }
  dm_ProfileEvent *chunk = dm_alloc(sizeof *chunk * CHUNK);
  if (!chunk) return false;
  p->chunks[p->n_chunks++] = chunk;
  return true;
}

/* ---- what is known of a call ---- */

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

/* A product or convolution: a multiplication and an addition each. A gradient's
   own are those of the ops it calls. */
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
  case DM_OP_addmm:
  case DM_OP_baddbmm: return 2 * out * last_size(e->in[1]);
  case DM_OP_conv2d: return 2 * out * per_channel(e->in[1]);
  case DM_OP_conv2d_dx: return 2 * (double)e->in[0]->numel * per_channel(e->in[1]);
  case DM_OP_conv2d_dw: return 2 * (double)e->in[0]->numel * per_channel(e->out[0]);
  default: return 0;
  }
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
                         .thread = dm_modes(),
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

static void finish(dm_Profile *p, dm_ProfileEvent *r) {
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
  charge(p);
  finish(p, r);
  *at = r->below;
  if (p->flags & DM_PROFILE_FLOPS) r->flops = flops_of(e);
}

/* ---- the whole ---- */

dm_status dm_profile_new(int flags, const char *(*where)(void *ctx), void *ctx,
                         dm_Profile **out) {
  dm_Profile *p = dm_alloc_zero(sizeof *p);
  if (!p) return dm_fail(DM_EMEM, "profile: out of memory");
  p->observer = (dm_Observer){.ctx = p, .begin = on_begin, .end = on_end};
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
  for (; p->top; p->top = p->top->below) finish(p, p->top);
  if (!p->out_of_memory) return DM_OK;
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
  for (Block *b = p->blocks, *next; b; b = next) {
    next = b->next;
    dm_free(b);
  }
  dm_free(p);
}

int64_t dm_profile_count(const dm_Profile *p) { return p->n; }

const dm_ProfileEvent *dm_profile_event(const dm_Profile *p, int64_t i) {
  return &p->chunks[i / CHUNK][i % CHUNK];
}
