/* NCCL's entry points between processes of one machine, or between devices of one process, for
   a build without a GPU. Ranks exchange what they send through shared memory that is named by
   the unique id: a channel of CHUNK bytes for each pair of ranks and direction.

   Communicators have to be non-blocking: a call notes what is to be done, and
   ncclCommGetAsyncError does it, bit by bit, and says ncclInProgress until it is done. What a
   call gives is not written before somebody waits for an event behind it, or some time has
   passed; meanwhile the memory holds no numbers, so that a program that reads too early shows.

   Calls are held to what NCCL asks of them, and to more: live device memory of the
   communicator's device, buffers that overlap only where NCCL lets them, the same kind, count,
   type, operator and root on all ranks, groups that end, no call before the last one is queued,
   and a stream that has waited for an event before each. Ranks that do not come within
   DEMILUNE_EMULATED_NCCL_WAIT seconds (20), or have aborted, are a remote error.

   DEMILUNE_EMULATED_NCCL_VERSION is the version that it claims to be, and
   DEMILUNE_EMULATED_NCCL_FAILS=NAME makes one entry point fail. With
   DEMILUNE_EMULATED_NCCL_HANGS=1 what was queued is never seen to be done. */
#include "internal.h"
#include "kernels/nccl_api.h"

#include <atomic>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

extern "C" {
#include "base/half.h"
}

enum { MAX_RANKS = 8, CHUNK = 64 << 10, MAX_TRANSFERS = 4 * MAX_RANKS, NAME = 64 };
static const double UNREAD = 0.02; /* seconds that a result is held back where nobody waits */

/* ---- shared memory ----------------------------------------------------------------- */

enum Kind {
  ALL_REDUCE,
  REDUCE,
  REDUCE_SCATTER,
  BROADCAST,
  ALL_GATHER,
  EXCHANGE, /* of a group: sends and receives */
  SPLIT
};

/* What both sides of a message have to agree on. */
struct Header {
  int kind, op, type, root;
  uint64_t count;
};

/* Of one direction between two ranks: full while `sent` is ahead of `taken`. */
struct Channel {
  std::atomic<uint64_t> sent, taken;
  Header header;
  uint64_t n;
  char data[CHUNK];
};

struct Shared {
  std::atomic<int> attached, aborted;
  int gpu[MAX_RANKS];  /* device + 1 */
  Channel channels[1]; /* (n, n): from, to */
};

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double most_wait(void) {
  const char *s = getenv("DEMILUNE_EMULATED_NCCL_WAIT");
  return s && *s ? atof(s) : 20.0;
}

/* ---- communicators --------------------------------------------------------------- */

struct Transfer {
  int peer;
  bool sends;
  char *at; /* in the host's memory */
  size_t n, done;
  bool ended;
  Header header;
  void *dst; /* of a receive of a group: on the device; or NULL */
  bool owns; /* `at` is of this transfer alone */
};

/* A call that is under way. */
struct Op {
  Header header;
  cudaStream_t stream;
  char *in, *parts; /* owned, on the host: what this rank gives; what comes, a part a rank */
  size_t n_in, n_part;
  void *out; /* on the device, or NULL: this rank gets nothing */
  Transfer transfers[MAX_TRANSFERS];
  int n_transfer;
  ncclComm_t made; /* of a split */
};

struct ncclComm {
  int n, rank, device;
  Shared *shared;
  char name[NAME];
  bool linked; /* all ranks are there */
  ncclResult_t state;
  char why[256];
  double moved_at;
  int n_split;
  Op *op;
};

static thread_local int depth; /* of groups */
static thread_local Op *group; /* what the group has collected */
static thread_local ncclComm_t group_comm;

static size_t shared_size(int n) {
  return sizeof(Shared) + sizeof(Channel) * (size_t)(n * n - 1);
}
static Channel *channel(ncclComm_t c, int from, int to) {
  return &c->shared->channels[from * c->n + to];
}

static bool is_made_to_fail(const char *name) {
  const char *s = getenv("DEMILUNE_EMULATED_NCCL_FAILS");
  return s && strcmp(s, name) == 0;
}

/* Records why, and gives the result; a communicator that failed stays so. */
__attribute__((format(printf, 3, 4))) static ncclResult_t tell(ncclComm_t c, ncclResult_t e,
                                                               const char *format, ...) {
  va_list ap;
  va_start(ap, format);
  vsnprintf(c->why, sizeof c->why, format, ap);
  va_end(ap);
  return c->state = e;
}

static void free_op(Op *op) {
  if (!op) return;
  for (int i = 0; i < op->n_transfer; i++)
    if (op->transfers[i].owns) free(op->transfers[i].at);
  free(op->in);
  free(op->parts);
  free(op);
}

/* Opens the memory that is named so; the first rank makes it. */
static bool attach(ncclComm_t c, const char *name, int n, int rank) {
  snprintf(c->name, sizeof c->name, "%s", name);
  c->n = n;
  c->rank = rank;
  const int fd = shm_open(name, O_RDWR | O_CREAT, 0600);
  if (fd < 0) return false;
  void *p = MAP_FAILED;
  if (ftruncate(fd, (off_t)shared_size(n)) == 0)
    p = mmap(nullptr, shared_size(n), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (p == MAP_FAILED) return false;
  c->shared = (Shared *)p;
  c->shared->gpu[rank] = c->device + 1;
  c->shared->attached.fetch_add(1);
  c->moved_at = now();
  return true;
}

/* Whether all ranks are there; then nobody needs the name any more. */
static void look_for_ranks(ncclComm_t c) {
  if (c->linked || !c->shared || c->shared->attached.load() < c->n) return;
  shm_unlink(c->name);
  for (int i = 0; i < c->n; i++)
    if (i != c->rank && c->shared->gpu[i] == c->device + 1)
      tell(c, ncclInvalidUsage,
           "Duplicate GPU detected : rank %d and rank %d both on CUDA device", c->rank, i);
  c->linked = true;
  c->moved_at = now();
}

/* ---- results that nobody has waited for -------------------------------------------- */

struct Pending {
  Pending *next;
  cudaStream_t stream;
  int device;
  void *dst;
  char *data; /* owned */
  size_t n;
  double at;
};
static Pending *pending;
static pthread_mutex_t pending_lock = PTHREAD_MUTEX_INITIALIZER;

/* Writes the results of a stream (NULL: of all); those of `age` seconds only. */
static void deliver(cudaStream_t s, double age) {
  pthread_mutex_lock(&pending_lock);
  Pending **at = &pending;
  while (Pending *p = *at) {
    if ((s && p->stream != s) || now() - p->at < age) {
      at = &p->next;
      continue;
    }
    *at = p->next;
    dm_emulated_enter(1u << p->device);
    if (dm_emulated_memory(p->dst, p->n) == p->device) memcpy(p->dst, p->data, p->n);
    dm_emulated_leave();
    free(p->data);
    free(p);
  }
  pthread_mutex_unlock(&pending_lock);
}

/* Whether the stream has none left. */
static bool all_delivered(cudaStream_t s) {
  pthread_mutex_lock(&pending_lock);
  const Pending *p = pending;
  while (p && p->stream != s) p = p->next;
  pthread_mutex_unlock(&pending_lock);
  return !p;
}

/* The streams of calls, the last ones; see DEMILUNE_EMULATED_NCCL_HANGS. */
static cudaStream_t used[16];
static std::atomic<unsigned> n_used;

static void note_stream(cudaStream_t s) { used[n_used.fetch_add(1) % 16] = s; }

static bool hangs(cudaStream_t s) {
  bool is_used = false;
  for (cudaStream_t u : used) is_used = is_used || u == s;
  return s && is_used && getenv("DEMILUNE_EMULATED_NCCL_HANGS");
}

/* What the runtime asks: a wait for an event of s, or a question whether it has happened. */
static bool on_event(cudaStream_t s, bool waits) {
  if (!waits && hangs(s)) return false;
  deliver(s, waits ? 0 : UNREAD);
  return all_delivered(s);
}
__attribute__((constructor)) static void begin(void) { dm_emulated_on_event = on_event; }

/* Holds n bytes of `data` back; until then there are no numbers at dst. */
static void hold_back(ncclComm_t c, cudaStream_t s, void *dst, const char *data, size_t n) {
  Pending *p = (Pending *)malloc(sizeof *p);
  char *copy = (char *)malloc(n ? n : 1);
  if (!p || !copy) abort();
  memcpy(copy, data, n);
  dm_emulated_enter(1u << c->device);
  dm_emulated_poison(dst, n);
  dm_emulated_leave();
  pthread_mutex_lock(&pending_lock);
  *p = Pending{nullptr, s, c->device, dst, copy, n, now()};
  Pending **at = &pending;
  while (*at) at = &(*at)->next;
  *at = p;
  pthread_mutex_unlock(&pending_lock);
}

/* ---- sums -------------------------------------------------------------------------- */

static size_t size_of(int type) {
  switch (type) {
  case ncclInt8:
  case ncclUint8: return 1;
  case ncclFloat16:
  case ncclBfloat16: return 2;
  case ncclInt32:
  case ncclFloat32: return 4;
  default: return 8;
  }
}

template <class T> static T combined(int op, T a, T b) {
  switch (op) {
  case ncclProd: return a * b;
  case ncclMax: return a > b ? a : b;
  case ncclMin: return a < b ? a : b;
  default: return a + b;
  }
}
/* Integers wrap. */
static int64_t combined(int op, int64_t a, int64_t b) {
  switch (op) {
  case ncclProd: return (int64_t)((uint64_t)a * (uint64_t)b);
  case ncclMax: return a > b ? a : b;
  case ncclMin: return a < b ? a : b;
  default: return (int64_t)((uint64_t)a + (uint64_t)b);
  }
}

/* Combines the parts from the last rank to the first one, another order than the engine's, and
   rounds after each, as a ring does. */
template <class T, class W>
static void reduce_as(int op, char *parts, size_t n, int n_part, W (*load)(T), T (*store)(W)) {
  T *const all = (T *)(void *)parts;
  for (size_t i = 0; i < n; i++) {
    T acc = all[(size_t)(n_part - 1) * n + i];
    for (int r = n_part - 2; r >= 0; r--)
      acc = store(combined(op, load(acc), load(all[(size_t)r * n + i])));
    all[i] = op == ncclAvg ? store(load(acc) / (W)n_part) : acc;
  }
}
template <class T, class W> static W widen(T x) { return (W)x; }
template <class T, class W> static T narrow(W x) { return (T)x; }

/* The result lies where the first part was. */
static void reduce(const Header &h, char *parts, int n_part) {
  const size_t n = h.count;
#define CASE(TYPE, T, W) \
  case TYPE: return reduce_as<T, W>(h.op, parts, n, n_part, widen<T, W>, narrow<T, W>)
  switch (h.type) {
    CASE(ncclInt8, int8_t, int64_t);
    CASE(ncclUint8, uint8_t, int64_t);
    CASE(ncclInt32, int32_t, int64_t);
    CASE(ncclInt64, int64_t, int64_t);
    CASE(ncclFloat32, float, float);
    CASE(ncclFloat64, double, double);
  case ncclFloat16:
    return reduce_as<uint16_t, float>(h.op, parts, n, n_part, dm_f16_to_f32, dm_f32_to_f16);
  case ncclBfloat16:
    return reduce_as<uint16_t, float>(h.op, parts, n, n_part, dm_bf16_to_f32, dm_f32_to_bf16);
  }
#undef CASE
}

/* ---- messages ------------------------------------------------------------------------ */

static bool same(const Header &a, const Header &b) {
  return a.kind == b.kind && a.op == b.op && a.type == b.type && a.root == b.root &&
         a.count == b.count;
}

/* Moves a chunk of a transfer, where the channel lets it: whether it did. */
static bool move(ncclComm_t c, Transfer *t) {
  Channel *ch = t->sends ? channel(c, c->rank, t->peer) : channel(c, t->peer, c->rank);
  const uint64_t sent = ch->sent.load(std::memory_order_acquire),
                 taken = ch->taken.load(std::memory_order_acquire);
  if (t->sends ? sent != taken : sent == taken) return false;
  if (t->sends) {
    const size_t most = CHUNK, left = t->n - t->done, n = left < most ? left : most;
    ch->header = t->header;
    ch->n = n;
    if (n) memcpy(ch->data, t->at + t->done, n);
    t->done += n;
    ch->sent.store(sent + 1, std::memory_order_release);
  } else {
    if (!same(ch->header, t->header) || ch->n > t->n - t->done) {
      tell(c, ncclInvalidUsage,
           "the emulation: rank %d gives call %d of %llu elements, rank %d call %d of %llu",
           t->peer, ch->header.kind, (unsigned long long)ch->header.count, c->rank,
           t->header.kind, (unsigned long long)t->header.count);
      return false;
    }
    if (ch->n) memcpy(t->at + t->done, ch->data, ch->n);
    t->done += ch->n;
    ch->taken.store(taken + 1, std::memory_order_release);
  }
  t->ended = t->done == t->n;
  return true;
}

/* Whether an earlier transfer of the same channel has to end first. */
static bool waits_for_turn(const Op *op, int i) {
  for (int k = 0; k < i; k++) {
    const Transfer *before = &op->transfers[k], *t = &op->transfers[i];
    if (!before->ended && before->peer == t->peer && before->sends == t->sends) return true;
  }
  return false;
}

/* Makes the communicator of a split, of the ranks that gave this rank's colour. */
static void make_split(ncclComm_t c, Op *op) {
  int colors[MAX_RANKS], n = 0, rank = 0;
  char name[NAME];
  memcpy(colors, op->parts, sizeof(int) * (size_t)c->n);
  c->n_split++;
  if (!op->made) return;
  for (int i = 0; i < c->n; i++) {
    if (colors[i] != colors[c->rank]) continue;
    if (i == c->rank) rank = n;
    n++;
  }
  snprintf(name, sizeof name, "%.40s.%d.%d", c->name, c->n_split, colors[c->rank]);
  op->made->device = c->device;
  if (!attach(op->made, name, n, rank)) tell(op->made, ncclSystemError, "no shared memory");
}

/* What follows when all has come. */
static void end(ncclComm_t c, Op *op) {
  const Header &h = op->header;
  const size_t bytes = h.count * size_of(h.type);
  if (h.kind == SPLIT) make_split(c, op);
  if (h.kind == ALL_REDUCE || h.kind == REDUCE || h.kind == REDUCE_SCATTER) {
    if (op->out) reduce(h, op->parts, c->n);
    if (op->out) hold_back(c, op->stream, op->out, op->parts, bytes);
  } else if (h.kind == BROADCAST && op->out) {
    hold_back(c, op->stream, op->out, op->parts, bytes);
  } else if (h.kind == ALL_GATHER) {
    hold_back(c, op->stream, op->out, op->parts, bytes * (size_t)c->n);
  }
  for (int i = 0; i < op->n_transfer; i++) {
    const Transfer *t = &op->transfers[i];
    if (t->dst) hold_back(c, op->stream, t->dst, t->at, t->n);
  }
}

/* Goes on with what is under way, as far as the others let it. */
static void advance(ncclComm_t c) {
  bool moved = true;
  if (c->shared && c->shared->aborted.load() && (c->op || !c->linked))
    tell(c, ncclRemoteError, "a remote rank has aborted");
  look_for_ranks(c);
  while (c->linked && c->op && moved && c->state == ncclSuccess) {
    Op *op = c->op;
    int n_ended = 0;
    moved = false;
    for (int i = 0; i < op->n_transfer && c->state == ncclSuccess; i++) {
      Transfer *t = &op->transfers[i];
      if (!t->ended && !waits_for_turn(op, i) && move(c, t)) moved = true;
      n_ended += t->ended;
    }
    if (moved) c->moved_at = now();
    if (n_ended < op->n_transfer) continue;
    end(c, op);
    c->op = nullptr;
    free_op(op);
  }
  if (c->state == ncclSuccess && (c->op || !c->linked) && now() - c->moved_at > most_wait())
    tell(c, ncclRemoteError, "a remote rank has not come within %g s", most_wait());
}

/* ---- calls --------------------------------------------------------------------------- */

static void add_transfer(Op *op, int peer, bool sends, char *at, size_t n) {
  if (op->n_transfer == MAX_TRANSFERS) abort();
  op->transfers[op->n_transfer++] =
      Transfer{peer, sends, at, n, 0, false, op->header, nullptr, false};
}

/* Copies n bytes of the device; false: they are not all in live memory of the communicator's.
 */
static bool read_device(ncclComm_t c, char *to, const void *p, size_t n) {
  dm_emulated_enter(1u << c->device);
  const bool ok = n == 0 || dm_emulated_memory(p, n) == c->device;
  if (ok && n) memcpy(to, p, n);
  dm_emulated_leave();
  return ok;
}
static bool is_live(ncclComm_t c, const void *p, size_t n) {
  dm_emulated_enter(0);
  const bool ok = n == 0 || dm_emulated_memory(p, n) == c->device;
  dm_emulated_leave();
  return ok;
}

/* Whether two ranges share a byte, without being allowed to: at + `same_at` is. */
static bool overlap(const void *a, size_t n_a, const void *b, size_t n_b) {
  const char *x = (const char *)a, *y = (const char *)b;
  return n_a && n_b && x < y + n_b && y < x + n_a;
}

/* What every call on a communicator has to hold to. */
static ncclResult_t check_call(ncclComm_t c, const char *name, cudaStream_t s) {
  if (!c) return ncclInvalidArgument;
  if (is_made_to_fail(name))
    return tell(c, ncclInternalError, "the emulation refuses %s", name);
  if (c->state != ncclSuccess) return c->state;
  if (c->op || !c->linked) return tell(c, ncclInvalidUsage, "%s amid another call", name);
  int device;
  if (cudaGetDevice(&device) != cudaSuccess || device != c->device)
    return tell(c, ncclInvalidUsage, "%s on another device", name);
  if (dm_emulated_check_stream(s) != cudaSuccess || dm_emulated_is_captured(s))
    return tell(c, ncclInvalidUsage, "%s on a stream that does not take it", name);
  return ncclSuccess;
}

static void count(const char *name) {
  dm_emulated_enter(0);
  dm_emulated_count_launch(name, 1);
  dm_emulated_leave();
}

/* A new call of `n_part` bytes a part; NULL: *e says why not. */
static Op *new_op(ncclComm_t c, const char *name, const Header &h, cudaStream_t s,
                  size_t n_part, ncclResult_t *e) {
  *e = check_call(c, name, s);
  if (*e != ncclSuccess) return nullptr;
  if (!dm_emulated_took_event(s)) {
    *e = tell(c, ncclInvalidUsage, "the emulation: the stream of %s has waited for no event",
              name);
    return nullptr;
  }
  Op *op = (Op *)calloc(1, sizeof *op);
  if (!op) abort();
  op->header = h;
  op->stream = s;
  op->n_part = n_part;
  op->parts = (char *)malloc(n_part * (size_t)c->n + 1);
  if (!op->parts) abort();
  dm_emulated_enter(0);
  dm_emulated_finish_stream(s); /* what the stream has waited for, too */
  dm_emulated_leave();
  deliver(s, 0); /* earlier work of the stream is done */
  note_stream(s);
  count(name);
  return op;
}

/* Reads what this rank gives. */
static ncclResult_t take_input(ncclComm_t c, Op *op, const void *in, size_t n) {
  op->n_in = n;
  op->in = (char *)malloc(n + 1);
  if (!op->in) abort();
  if (read_device(c, op->in, in, n)) return ncclSuccess;
  return tell(c, ncclInvalidArgument, "a send buffer is no live memory of the device");
}

static ncclResult_t take_output(ncclComm_t c, Op *op, void *out, size_t n) {
  op->out = out;
  if (is_live(c, out, n)) return ncclSuccess;
  return tell(c, ncclInvalidArgument, "a receive buffer is no live memory of the device");
}

/* Begins a call whose transfers are set: it goes on when the communicator is asked. */
static ncclResult_t queue(ncclComm_t c, Op *op, ncclResult_t e) {
  if (e != ncclSuccess) {
    free_op(op);
    return e;
  }
  c->op = op;
  c->moved_at = now();
  return ncclInProgress;
}

/* A message of the whole input to each of the others, and a part from each of them; this rank's
   own part is `own`. */
static void exchange_all(ncclComm_t c, Op *op, bool sends_parts, const char *own) {
  for (int i = 0; i < c->n; i++) {
    char *const part = op->parts + (size_t)i * op->n_part;
    if (i == c->rank) {
      if (op->n_part) memcpy(part, own, op->n_part);
      continue;
    }
    add_transfer(op, i, true, op->in + (sends_parts ? (size_t)i * op->n_part : 0), op->n_part);
    add_transfer(op, i, false, part, op->n_part);
  }
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t n, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t c, cudaStream_t s) {
  ncclResult_t e;
  const size_t bytes = n * size_of(type);
  Op *o = new_op(c, __func__, Header{ALL_REDUCE, op, type, 0, n}, s, bytes, &e);
  if (!o) return e;
  if (in != out && overlap(in, bytes, out, bytes))
    e = tell(c, ncclInvalidArgument, "the buffers of ncclAllReduce overlap");
  if (e == ncclSuccess) e = take_input(c, o, in, bytes);
  if (e == ncclSuccess) e = take_output(c, o, out, bytes);
  if (e == ncclSuccess) exchange_all(c, o, false, o->in);
  return queue(c, o, e);
}

ncclResult_t ncclReduceScatter(const void *in, void *out, size_t n, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t c, cudaStream_t s) {
  ncclResult_t e;
  const size_t bytes = n * size_of(type);
  Op *o = new_op(c, __func__, Header{REDUCE_SCATTER, op, type, 0, n}, s, bytes, &e);
  if (!o) return e;
  if ((const char *)in + (size_t)c->rank * bytes != out &&
      overlap(in, bytes * (size_t)c->n, out, bytes))
    e = tell(c, ncclInvalidArgument, "the buffers of ncclReduceScatter overlap");
  if (e == ncclSuccess) e = take_input(c, o, in, bytes * (size_t)c->n);
  if (e == ncclSuccess) e = take_output(c, o, out, bytes);
  if (e == ncclSuccess) exchange_all(c, o, true, o->in + (size_t)c->rank * bytes);
  return queue(c, o, e);
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t n, ncclDataType_t type,
                           ncclComm_t c, cudaStream_t s) {
  ncclResult_t e;
  const size_t bytes = n * size_of(type);
  Op *o = new_op(c, __func__, Header{ALL_GATHER, 0, type, 0, n}, s, bytes, &e);
  if (!o) return e;
  if ((const char *)out + (size_t)c->rank * bytes != in &&
      overlap(in, bytes, out, bytes * (size_t)c->n))
    e = tell(c, ncclInvalidArgument, "the buffers of ncclAllGather overlap");
  if (e == ncclSuccess) e = take_input(c, o, in, bytes);
  if (e == ncclSuccess) e = take_output(c, o, out, bytes * (size_t)c->n);
  if (e == ncclSuccess) exchange_all(c, o, false, o->in);
  return queue(c, o, e);
}

ncclResult_t ncclReduce(const void *in, void *out, size_t n, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t c, cudaStream_t s) {
  ncclResult_t e;
  const size_t bytes = n * size_of(type);
  Op *o = new_op(c, __func__, Header{REDUCE, op, type, root, n}, s, bytes, &e);
  if (!o) return e;
  if (root < 0 || root >= c->n) e = tell(c, ncclInvalidArgument, "no such root");
  if (e == ncclSuccess) e = take_input(c, o, in, bytes);
  if (e == ncclSuccess && c->rank == root) e = take_output(c, o, out, bytes);
  if (e == ncclSuccess && c->rank != root) add_transfer(o, root, true, o->in, bytes);
  for (int i = 0; i < c->n && e == ncclSuccess && c->rank == root; i++) {
    if (i == root) memcpy(o->parts + (size_t)i * bytes, o->in, bytes);
    else add_transfer(o, i, false, o->parts + (size_t)i * bytes, bytes);
  }
  return queue(c, o, e);
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t n, ncclDataType_t type, int root,
                           ncclComm_t c, cudaStream_t s) {
  ncclResult_t e;
  const size_t bytes = n * size_of(type);
  Op *o = new_op(c, __func__, Header{BROADCAST, 0, type, root, n}, s, bytes, &e);
  if (!o) return e;
  if (root < 0 || root >= c->n) e = tell(c, ncclInvalidArgument, "no such root");
  if (e == ncclSuccess && c->rank == root) e = take_input(c, o, in, bytes);
  if (e == ncclSuccess) e = take_output(c, o, out, bytes);
  if (e == ncclSuccess && c->rank != root) add_transfer(o, root, false, o->parts, bytes);
  for (int i = 0; i < c->n && e == ncclSuccess && c->rank == root; i++)
    if (i != root) add_transfer(o, i, true, o->in, bytes);
  if (e == ncclSuccess && c->rank == root) memcpy(o->parts, o->in, bytes);
  return queue(c, o, e);
}

/* ---- groups --------------------------------------------------------------------------- */

/* Adds a message to the group; alone it is a group of one. */
static ncclResult_t add_message(const char *name, void *p, size_t n, ncclDataType_t type,
                                int peer, bool sends, ncclComm_t c, cudaStream_t s) {
  ncclResult_t e = ncclSuccess;
  const size_t bytes = n * size_of(type);
  const Header h = {EXCHANGE, 0, type, 0, n};
  if (!c) return ncclInvalidArgument;
  if (depth == 0) {
    ncclGroupStart();
    e = add_message(name, p, n, type, peer, sends, c, s);
    const ncclResult_t ended = ncclGroupEnd();
    return e == ncclSuccess || e == ncclInProgress ? ended : e;
  }
  if (peer < 0 || peer >= c->n) return tell(c, ncclInvalidArgument, "%s: no such peer", name);
  if (!group) {
    group = new_op(c, name, h, s, 0, &e);
    group_comm = c;
  }
  if (!group) return e;
  if (group_comm != c || group->stream != s)
    return tell(c, ncclInvalidUsage, "the emulation: a group of several communicators");
  char *at = (char *)malloc(bytes + 1); /* given back with the group */
  if (!at) abort();
  if (sends ? !read_device(c, at, p, bytes) : !is_live(c, p, bytes)) {
    free(at);
    return tell(c, ncclInvalidArgument, "the buffer of %s is no live memory", name);
  }
  add_transfer(group, peer, sends, at, bytes);
  group->transfers[group->n_transfer - 1].header = h;
  group->transfers[group->n_transfer - 1].owns = true;
  if (!sends) group->transfers[group->n_transfer - 1].dst = p;
  return ncclSuccess;
}

ncclResult_t ncclSend(const void *in, size_t n, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t s) {
  return add_message(__func__, (void *)in, n, type, peer, true, c, s);
}
ncclResult_t ncclRecv(void *out, size_t n, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t s) {
  return add_message(__func__, out, n, type, peer, false, c, s);
}
ncclResult_t ncclGroupStart(void) {
  depth++;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd(void) {
  if (depth == 0) return ncclInvalidUsage;
  if (--depth > 0 || !group) return ncclSuccess;
  Op *op = group;
  group = nullptr;
  if (group_comm->state != ncclSuccess) {
    free_op(op);
    return group_comm->state;
  }
  return queue(group_comm, op, ncclSuccess);
}

/* ---- making and ending ------------------------------------------------------------------ */

ncclResult_t ncclGetVersion(int *version) {
  const char *s = getenv("DEMILUNE_EMULATED_NCCL_VERSION");
  *version = s && *s ? atoi(s) : 22809;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  static std::atomic<int> n;
  memset(id, 0, sizeof *id);
  if (is_made_to_fail("ncclGetUniqueId")) return ncclSystemError;
  snprintf(id->internal, sizeof id->internal, "/demilune.%d.%d.%lld", (int)getpid(),
           n.fetch_add(1), (long long)time(nullptr));
  return ncclSuccess;
}

static ncclComm_t new_comm(void) {
  ncclComm_t c = (ncclComm_t)calloc(1, sizeof *c);
  if (!c || cudaGetDevice(&c->device) != cudaSuccess) abort();
  return c;
}

static bool is_sound(const ncclConfig_t *config) {
  return config && config->size >= sizeof *config && config->magic == NCCL_CONFIG_MAGIC &&
         config->blocking == 0;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int n, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
  *out = nullptr;
  if (n < 1 || n > MAX_RANKS || rank < 0 || rank >= n || !is_sound(config))
    return ncclInvalidArgument;
  if (is_made_to_fail("ncclCommInitRankConfig")) return ncclSystemError;
  ncclComm_t c = *out = new_comm();
  id.internal[NAME - 1] = 0;
  if (attach(c, id.internal, n, rank)) return ncclInProgress;
  return tell(c, ncclSystemError, "no shared memory for the emulation");
}

ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *out,
                           ncclConfig_t *config) {
  *out = nullptr;
  (void)key; /* the order of the ranks is kept */
  if (!c || !is_sound(config) || c->op || !c->linked) return ncclInvalidUsage;
  Op *op = (Op *)calloc(1, sizeof *op);
  if (!op) abort();
  op->header = Header{SPLIT, 0, ncclInt32, 0, 1};
  op->n_part = sizeof color;
  op->in = (char *)malloc(sizeof color);
  op->parts = (char *)malloc(sizeof color * (size_t)c->n);
  if (!op->in || !op->parts) abort();
  memcpy(op->in, &color, sizeof color);
  if (color != NCCL_SPLIT_NOCOLOR) op->made = *out = new_comm();
  exchange_all(c, op, false, op->in);
  return queue(c, op, ncclSuccess);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *error) {
  if (!c || !error) return ncclInvalidArgument;
  advance(c);
  *error = c->state != ncclSuccess ? c->state
           : c->op || !c->linked   ? ncclInProgress
                                   : ncclSuccess;
  return ncclSuccess;
}

static void free_comm(ncclComm_t c) {
  if (c->shared) munmap(c->shared, shared_size(c->n));
  free_op(c->op);
  free(c);
}
ncclResult_t ncclCommFinalize(ncclComm_t c) {
  return !c || c->op || !c->linked ? ncclInvalidUsage : ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t c) {
  if (!c) return ncclInvalidArgument;
  free_comm(c);
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t c) {
  if (!c) return ncclInvalidArgument;
  if (c->shared) c->shared->aborted.store(1);
  if (!c->linked && c->shared) shm_unlink(c->name);
  free_comm(c);
  return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t e) {
  switch (e) {
  case ncclSuccess: return "no error";
  case ncclUnhandledCudaError: return "unhandled cuda error";
  case ncclSystemError: return "unhandled system error";
  case ncclInternalError: return "internal error";
  case ncclInvalidArgument: return "invalid argument";
  case ncclInvalidUsage: return "invalid usage";
  case ncclRemoteError: return "remote process exited or there was a network error";
  case ncclInProgress: return "NCCL operation in progress";
  }
  return "unknown result code";
}
const char *ncclGetLastError(ncclComm_t c) { return c ? c->why : ""; }
