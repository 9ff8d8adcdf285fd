/* A stand-in for MPI, whose ranks are threads of one process; each has opened a copy of the
   engine and of mpi.so, since both hold one world in their globals.

   It moves bytes by the rules of MPI 3.1 and looks for breaches of them: collectives of a
   communicator that differ between ranks, another thread than the one that began MPI, buffers
   that change while they travel, errors where the handler would end the job. A request ends
   after a number of tests that a seed gives, so that requests overtake one another; its data is
   taken when it is posted, or as late as MPI may do so; where data is to come lies noise until
   then. Any call can be made to fail. One lock guards everything. */
#define _GNU_SOURCE
#include "mpi.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum Kind {
  ALL_REDUCE,
  BCAST,
  ALL_GATHER,
  ALL_TO_ALL,
  GATHER,
  SCATTER,
  ALL_TO_ALL_V
} Kind;
static const char *const kinds[] = {"Iallreduce", "Ibcast",   "Iallgather", "Ialltoall",
                                    "Igather",    "Iscatter", "Ialltoallv"};

/* What a rank gives to a collective. */
typedef struct Part {
  bool is_here, has_copied, has_ended;
  const char *in;
  char *taken, *out; /* taken: the data, where it is taken early; or NULL */
  uint64_t hash;     /* of `in` as it was posted */
  /* of ALL_TO_ALL_V: bytes to each rank and from each; the caller's four arrays of counts and
     offsets, and a hash of each */
  size_t go[STANDIN_MAX], come[STANDIN_MAX];
  const int *counts[4];
  uint64_t counts_hash[4];
} Part;

/* A collective: the number-th of its communicator. */
typedef struct Collective {
  long number;
  Kind kind;
  int root, n_ended;
  size_t bytes; /* of one part; 0 where parts differ */
  Part parts[STANDIN_MAX];
  struct Collective *next;
} Collective;

/* A message from its sender's side; it lives until both sides have ended. */
typedef struct Message {
  int from, to, tag;
  size_t bytes;
  const char *in;
  char *taken;
  uint64_t hash;
  bool is_matched, has_arrived, has_left;
  struct Message *next;
} Message;

/* A blocking call of all ranks of a communicator: the number-th. */
typedef struct Meeting {
  int n_here, n_gone;
  bool has_failed;
  int color[STANDIN_MAX];
  MPI_Comm made[STANDIN_MAX]; /* by color's first rank */
} Meeting;

struct StandinComm {
  int n, of_world[STANDIN_MAX]; /* ranks of the world */
  int id;                       /* the order of making; 2: that of the notices */
  MPI_Errhandler handler[STANDIN_MAX];
  long n_posted[STANDIN_MAX];
  Collective *collectives;
  Message *messages;
  struct StandinRequest *receives;
  Meeting *meeting;
};

struct StandinType {
  size_t bytes;
  bool is_committed;
};

struct StandinRequest {
  int rank, n_test; /* of the world; tests that still find it under way */
  MPI_Comm comm;
  Collective *collective;
  Message *message;
  bool receives, is_cancelled;
  int from, tag; /* of a receive; from may be MPI_ANY_SOURCE */
  char *out;
  size_t bytes;
  struct StandinRequest *next; /* receives without a message */
};

struct StandinComm standin_world;
struct StandinType standin_byte = {1, true}, standin_uint64 = {8, true};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t met = PTHREAD_COND_INITIALIZER;
static int n_comm;
static unsigned long seed;
static StandinCounts counts[STANDIN_MAX];
static long fails_at[STANDIN_MAX], n_drawn[STANDIN_MAX];
static bool keeps[STANDIN_MAX], has_begun[STANDIN_MAX], has_ended[STANDIN_MAX];
static pthread_t thread_of[STANDIN_MAX];
static char breaches[STANDIN_TEXT];

/* ---- settings and counts ---- */

int standin_me(void) {
  static __thread int me = -1;
  char name[16] = "";
  if (me < 0 && !pthread_getname_np(pthread_self(), name, sizeof name))
    sscanf(name, "rank %d", &me);
  return me;
}

void standin_begin(int n, unsigned long with_seed) {
  standin_world.n = n;
  for (int i = 0; i < n; i++) standin_world.of_world[i] = i;
  seed = with_seed;
}

void standin_fail(int rank, long at, int keep) {
  pthread_mutex_lock(&lock);
  fails_at[rank] = at;
  keeps[rank] = keep;
  pthread_mutex_unlock(&lock);
}

StandinCounts standin_counts(int rank) {
  pthread_mutex_lock(&lock);
  const StandinCounts c = counts[rank];
  pthread_mutex_unlock(&lock);
  return c;
}

void standin_breaches(char text[STANDIN_TEXT]) {
  pthread_mutex_lock(&lock);
  memcpy(text, breaches, STANDIN_TEXT);
  pthread_mutex_unlock(&lock);
}

/* ---- rules ---- */

__attribute__((format(printf, 1, 2))) static void breach(const char *format, ...) {
  const size_t n = strlen(breaches);
  va_list args;
  va_start(args, format);
  vsnprintf(breaches + n, sizeof breaches - n, format, args);
  va_end(args);
  strncat(breaches, "\n", sizeof breaches - strlen(breaches) - 1);
}

/* A number that follows from the seed, the rank and how many it has drawn. */
static uint64_t draw(int rank) {
  uint64_t x = seed * 0x9E3779B97F4A7C15u + (uint64_t)rank * 0xBF58476D1CE4E5B9u +
               (uint64_t)++n_drawn[rank] * 0x94D049BB133111EBu;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

static uint64_t hash_of(const char *bytes, size_t n) {
  uint64_t h = 0xcbf29ce484222325u;
  for (size_t i = 0; i < n; i++) h = (h ^ (uint8_t)bytes[i]) * 0x100000001b3u;
  return h;
}

/* The error, by the handler of the communicator. */
static int error_on(MPI_Comm comm, int rank, const char *name, int code) {
  if (comm->handler[rank] == MPI_ERRORS_ARE_FATAL)
    breach("rank %d: %s fails where errors are fatal", rank, name);
  return code;
}

/* Counts a call, with the lock held. True: it is to fail. */
static bool is_to_fail(const char *name) {
  const int me = standin_me();
  StandinCounts *c = &counts[me];
  if (has_begun[me] && !pthread_equal(thread_of[me], pthread_self()))
    breach("rank %d: %s in another thread than MPI_Init_thread", me, name);
  if (++c->n_call != fails_at[me]) return false;
  snprintf(c->failed, sizeof c->failed, "%s", name);
  return true;
}

/* Counts a call without a communicator, whose errors go to the world's handler. */
static int plain_call(const char *name) {
  pthread_mutex_lock(&lock);
  int code = is_to_fail(name) ? MPI_ERR_OTHER : MPI_SUCCESS;
  if (code) code = error_on(&standin_world, standin_me(), name, code);
  pthread_mutex_unlock(&lock);
  return code;
}

static int rank_in(MPI_Comm comm, int of_world) {
  for (int i = 0; i < comm->n; i++)
    if (comm->of_world[i] == of_world) return i;
  return -1;
}

/* ---- calls that wait for all ---- */

/* Waits until all ranks of the communicator are here; the last to go frees the meeting. Makes
   a communicator of the ranks of each color, if colors are given. The lock is held. */
static int meet(const char *name, MPI_Comm comm, int color, MPI_Comm *out) {
  const int me = standin_me(), index = rank_in(comm, me);
  const bool fails = is_to_fail(name);
  while (comm->meeting && comm->meeting->n_gone > 0) pthread_cond_wait(&met, &lock);
  if (!comm->meeting) comm->meeting = calloc(1, sizeof *comm->meeting);
  Meeting *m = comm->meeting;
  m->color[index] = color;
  m->has_failed |= fails;
  m->n_here++;
  pthread_cond_broadcast(&met);
  while (m->n_here < comm->n) pthread_cond_wait(&met, &lock);
  const bool has_failed = m->has_failed;
  if (out) *out = MPI_COMM_NULL;
  if (out && !has_failed && color != MPI_UNDEFINED) {
    int first = 0;
    while (m->color[first] != color) first++;
    if (!m->made[first]) {
      MPI_Comm made = m->made[first] = calloc(1, sizeof *made);
      made->id = ++n_comm;
      for (int i = 0; i < comm->n; i++)
        if (m->color[i] == color) made->of_world[made->n++] = comm->of_world[i];
    }
    m->made[first]->handler[me] = comm->handler[me];
    *out = m->made[first];
  }
  if (++m->n_gone == comm->n) {
    free(m);
    comm->meeting = NULL;
  }
  pthread_cond_broadcast(&met);
  if (!has_failed) return MPI_SUCCESS;
  return error_on(comm, me, name, fails ? MPI_ERR_OTHER : MPI_ERR_ANOTHER_RANK);
}

static int meeting(const char *name, MPI_Comm comm, int color, MPI_Comm *out) {
  pthread_mutex_lock(&lock);
  const int code = meet(name, comm, color, out);
  pthread_mutex_unlock(&lock);
  return code;
}

int MPI_Initialized(int *flag) {
  *flag = has_begun[standin_me()];
  return MPI_SUCCESS;
}

int MPI_Finalized(int *flag) {
  *flag = has_ended[standin_me()];
  return MPI_SUCCESS;
}

/* Before it no handler can be set: it returns its error. */
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
  (void)argc, (void)argv;
  const int me = standin_me();
  *provided = required;
  pthread_mutex_lock(&lock);
  standin_world.handler[me] = MPI_ERRORS_RETURN;
  const int code = meet("MPI_Init_thread", &standin_world, 0, NULL);
  standin_world.handler[me] = MPI_ERRORS_ARE_FATAL;
  has_begun[me] = !code;
  thread_of[me] = pthread_self();
  pthread_mutex_unlock(&lock);
  return code;
}

int MPI_Finalize(void) {
  const int me = standin_me();
  while (keeps[me] && fails_at[me] == counts[me].n_call + 1) pause();
  const int code = meeting("MPI_Finalize", &standin_world, 0, NULL);
  pthread_mutex_lock(&lock);
  has_ended[me] = true;
  const bool may_leave = *counts[me].failed;
  if (counts[me].n_request && !may_leave)
    breach("rank %d: %ld requests are left", me, counts[me].n_request);
  if (counts[me].n_type && !may_leave)
    breach("rank %d: %ld types are left", me, counts[me].n_type);
  pthread_mutex_unlock(&lock);
  return code;
}

int MPI_Error_string(int code, char *text, int *n) {
  *n = snprintf(text, MPI_MAX_ERROR_STRING, "%s",
                code == MPI_ERR_OTHER          ? "a fault that was asked for"
                : code == MPI_ERR_ANOTHER_RANK ? "a fault of another rank"
                                               : "an error of the call");
  return MPI_SUCCESS;
}

int MPI_Comm_rank(MPI_Comm comm, int *rank) {
  *rank = rank_in(comm, standin_me());
  pthread_mutex_lock(&lock);
  int code = is_to_fail("MPI_Comm_rank") ? MPI_ERR_OTHER : MPI_SUCCESS;
  if (code) code = error_on(comm, standin_me(), "MPI_Comm_rank", code);
  pthread_mutex_unlock(&lock);
  return code;
}

int MPI_Comm_size(MPI_Comm comm, int *n) {
  *n = comm->n;
  pthread_mutex_lock(&lock);
  int code = is_to_fail("MPI_Comm_size") ? MPI_ERR_OTHER : MPI_SUCCESS;
  if (code) code = error_on(comm, standin_me(), "MPI_Comm_size", code);
  pthread_mutex_unlock(&lock);
  return code;
}

static int most_tag = 32767;

int MPI_Comm_get_attr(MPI_Comm comm, int key, void *value, int *found) {
  (void)comm, (void)key;
  *(int **)value = &most_tag;
  *found = 1;
  return plain_call("MPI_Comm_get_attr");
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *out) { return meeting("MPI_Comm_dup", comm, 0, out); }

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm *out) {
  (void)key; /* as the ranks of the world */
  return meeting("MPI_Comm_split", comm, color, out);
}

int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *out) {
  (void)type, (void)key, (void)info;
  return meeting("MPI_Comm_split_type", comm, 0, out);
}

/* Its memory stays: the other ranks may still read it. */
int MPI_Comm_free(MPI_Comm *comm) {
  MPI_Comm of = *comm;
  *comm = MPI_COMM_NULL;
  return meeting("MPI_Comm_free", of, 0, NULL);
}

int MPI_Comm_set_errhandler(MPI_Comm comm, MPI_Errhandler handler) {
  pthread_mutex_lock(&lock);
  int code = is_to_fail("MPI_Comm_set_errhandler") ? MPI_ERR_OTHER : MPI_SUCCESS;
  if (code) comm->handler[standin_me()] = MPI_ERRORS_RETURN; /* what it would do else is open */
  else comm->handler[standin_me()] = handler;
  pthread_mutex_unlock(&lock);
  return code;
}

/* ---- types ---- */

static int new_type(size_t bytes, MPI_Datatype *out) {
  *out = calloc(1, sizeof **out);
  (*out)->bytes = bytes;
  pthread_mutex_lock(&lock);
  counts[standin_me()].n_type++;
  pthread_mutex_unlock(&lock);
  return MPI_SUCCESS;
}

int MPI_Type_contiguous(int n, MPI_Datatype of, MPI_Datatype *out) {
  const int code = plain_call("MPI_Type_contiguous");
  return code ? code : new_type((size_t)n * of->bytes, out);
}

int MPI_Type_create_struct(int n, const int *lengths, const MPI_Aint *offsets,
                           const MPI_Datatype *types, MPI_Datatype *out) {
  const int code = plain_call("MPI_Type_create_struct");
  size_t bytes = 0;
  if (code) return code;
  for (int i = 0; i < n; i++) {
    pthread_mutex_lock(&lock);
    if ((size_t)offsets[i] != bytes) breach("a type with gaps");
    pthread_mutex_unlock(&lock);
    bytes += (size_t)lengths[i] * types[i]->bytes;
  }
  return new_type(bytes, out);
}

int MPI_Type_commit(MPI_Datatype *type) {
  (*type)->is_committed = true;
  return plain_call("MPI_Type_commit");
}

int MPI_Type_free(MPI_Datatype *type) {
  const int code = plain_call("MPI_Type_free");
  free(*type);
  *type = NULL;
  pthread_mutex_lock(&lock);
  counts[standin_me()].n_type--;
  pthread_mutex_unlock(&lock);
  return code;
}

/* ---- requests ---- */

static MPI_Request new_request(MPI_Comm comm, int me) {
  MPI_Request r = calloc(1, sizeof *r);
  const uint64_t x = draw(me);
  r->rank = me;
  r->comm = comm;
  r->n_test = x % 8 < 4 ? 0 : x % 8 < 7 ? (int)(x >> 8) & 3 : (int)(x >> 8) & 31;
  counts[me].n_request++;
  return r;
}

static void free_request(MPI_Request *r) {
  counts[(*r)->rank].n_request--;
  free(*r);
  *r = MPI_REQUEST_NULL;
}

/* A copy of the data; or NULL, where it is to be taken late. */
static char *taken_early(int me, const char *in, size_t n) {
  if (draw(me) & 1 || !n) return NULL;
  char *copy = malloc(n);
  memcpy(copy, in, n);
  return copy;
}

static void check_unchanged(int rank, const char *in, size_t n, uint64_t hash) {
  if (hash_of(in, n) != hash) breach("rank %d: data has changed while it travels", rank);
}

/* Bytes that a rank gives to a collective, and takes from it, as multiples of a part. */
static size_t parts_in(const Collective *c, int n, int index) {
  if (c->kind == BCAST) return index == c->root;
  if (c->kind == ALL_TO_ALL) return (size_t)n;
  return c->kind == SCATTER ? index == c->root ? (size_t)n : 0 : 1;
}
static size_t parts_out(const Collective *c, int n, int index) {
  if (c->kind == BCAST) return index != c->root;
  if (c->kind == GATHER) return index == c->root ? (size_t)n : 0;
  return c->kind == ALL_GATHER || c->kind == ALL_TO_ALL ? (size_t)n : 1;
}

static size_t sum_of(const size_t *sizes, int n) {
  size_t sum = 0;
  for (int i = 0; i < n; i++) sum += sizes[i];
  return sum;
}
static size_t bytes_in(const Collective *c, int n, int index) {
  if (c->kind == ALL_TO_ALL_V) return sum_of(c->parts[index].go, n);
  return parts_in(c, n, index) * c->bytes;
}
static size_t bytes_out(const Collective *c, int n, int index) {
  if (c->kind == ALL_TO_ALL_V) return sum_of(c->parts[index].come, n);
  return parts_out(c, n, index) * c->bytes;
}

/* Whether a rank needs what another one gives. */
static bool needs(const Collective *c, int index, int other) {
  if (c->kind == BCAST || c->kind == SCATTER) return other == c->root;
  return c->kind != GATHER || index == c->root;
}

static long long sent_by(const Collective *c, int n, int index) {
  const long long bytes = (long long)c->bytes;
  if (n == 1) return 0;
  if (c->kind == ALL_TO_ALL_V)
    return (long long)(bytes_in(c, n, index) - c->parts[index].go[index]);
  if (c->kind == ALL_REDUCE) return bytes;
  if (c->kind == BCAST || c->kind == SCATTER) return index == c->root ? bytes * (n - 1) : 0;
  if (c->kind == GATHER) return index == c->root ? 0 : bytes;
  return bytes * (n - 1);
}

/* The collective in which the rank takes part next. */
static Collective *next_collective(MPI_Comm comm, int index, Kind kind, int root,
                                   size_t bytes) {
  const long number = ++comm->n_posted[index];
  Collective **at = &comm->collectives;
  while (*at && (*at)->number != number) at = &(*at)->next;
  if (!*at) {
    *at = calloc(1, sizeof **at);
    **at = (Collective){.number = number, .kind = kind, .root = root, .bytes = bytes};
  }
  const Collective *c = *at;
  if (c->kind != kind || c->root != root || c->bytes != bytes)
    breach("rank %d of %d: %s of %zu bytes meets %s of %zu", index, comm->n, kinds[kind], bytes,
           kinds[c->kind], c->bytes);
  return *at;
}

/* Takes the counts and offsets, in units of the type, of parts that lie one after the other. */
static void take_counts(Part *p, int n, size_t unit, const int *const lists[4]) {
  for (int k = 0; k < 4; k++) {
    p->counts[k] = lists[k];
    p->counts_hash[k] = hash_of((const char *)lists[k], sizeof(int) * (size_t)n);
  }
  for (int side = 0; side < 2; side++) {
    int at = 0;
    for (int i = 0; i < n; i++) {
      if (lists[2 * side + 1][i] != at) breach("parts with gaps");
      at += lists[2 * side][i];
      (side ? p->come : p->go)[i] = (size_t)lists[2 * side][i] * unit;
    }
  }
}

/* lists: the counts and offsets of ALL_TO_ALL_V; else NULL. */
static int post(Kind kind, const void *in, void *out, int n, const int *const lists[4],
                MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *r) {
  char name[32];
  const size_t bytes = (size_t)n * type->bytes;
  snprintf(name, sizeof name, "MPI_%s", kinds[kind]);
  pthread_mutex_lock(&lock);
  const int me = standin_me(), index = rank_in(comm, me);
  if (is_to_fail(name)) {
    const int code = error_on(comm, me, name, MPI_ERR_OTHER);
    pthread_mutex_unlock(&lock);
    return code;
  }
  if (!type->is_committed) breach("%s: a type that is not committed", name);
  Collective *c = next_collective(comm, index, kind, root, bytes);
  Part *p = &c->parts[index];
  if (lists) take_counts(p, comm->n, type->bytes, lists);
  const size_t n_in = bytes_in(c, comm->n, index), n_out = bytes_out(c, comm->n, index);
  if (n_in && n_out && (const char *)in < (char *)out + n_out &&
      (char *)out < (const char *)in + n_in)
    breach("rank %d: %s with buffers that overlap", me, name);
  p->in = kind == BCAST ? out : in;
  p->out = out;
  p->hash = hash_of(p->in, n_in);
  p->taken = taken_early(me, p->in, n_in);
  if (n_out) memset(out, 0xa5, n_out);
  p->is_here = true;
  counts[me].n_sent += comm->id == 2 ? 0 : sent_by(c, comm->n, index);
  *r = new_request(comm, me);
  (*r)->collective = c;
  pthread_mutex_unlock(&lock);
  return MPI_SUCCESS;
}

/* The same of ALL_TO_ALL_V. */
static void bring_uneven(const Collective *c, int n, int index) {
  const Part *p = &c->parts[index];
  char *to = p->out;
  for (int i = 0; i < n; i++) {
    const Part *other = &c->parts[i];
    const char *from = other->taken ? other->taken : other->in;
    if (other->go[index] != p->come[i])
      breach("rank %d gives rank %d %zu bytes, which wants %zu", i, index, other->go[index],
             p->come[i]);
    else if (p->come[i]) memcpy(to, from + sum_of(other->go, index), p->come[i]);
    if (p->come[i]) to += p->come[i];
  }
}

/* Brings to a rank what the others give. */
static void bring(const Collective *c, int n, int index) {
  const Part *p = &c->parts[index];
  if (c->kind == ALL_TO_ALL_V) {
    bring_uneven(c, n, index);
    return;
  }
  if (!parts_out(c, n, index)) return;
  for (int i = 0; i < n; i++) {
    const Part *other = &c->parts[i];
    const char *from = other->taken ? other->taken : other->in;
    if (!needs(c, index, i) || !c->bytes) continue;
    if (c->kind == ALL_TO_ALL || c->kind == SCATTER) from += c->bytes * (size_t)index;
    if (c->kind == ALL_REDUCE) {
      for (size_t k = 0; k < c->bytes / 8; k++) {
        uint64_t x, least;
        memcpy(&x, from + 8 * k, 8);
        memcpy(&least, p->out + 8 * k, 8);
        if (i == 0 || x < least) memcpy(p->out + 8 * k, &x, 8);
      }
    } else {
      const bool is_one = c->kind == BCAST || c->kind == SCATTER;
      memcpy(p->out + (is_one ? 0 : c->bytes * (size_t)i), from, c->bytes);
    }
  }
}

/* Whether the rank's part of the collective has ended. */
static bool collective_ends(MPI_Comm comm, Collective *c, int index) {
  Part *p = &c->parts[index];
  for (int i = 0; i < comm->n; i++)
    if (needs(c, index, i) && !c->parts[i].is_here) return false;
  if (!p->has_copied) bring(c, comm->n, index);
  p->has_copied = true;
  for (int i = 0; i < comm->n && !p->taken; i++)
    if (needs(c, i, index) && !c->parts[i].has_copied) return false;
  check_unchanged(index, p->in, bytes_in(c, comm->n, index), p->hash);
  for (int k = 0; k < 4 && p->counts[k]; k++)
    check_unchanged(index, (const char *)p->counts[k], sizeof(int) * (size_t)comm->n,
                    p->counts_hash[k]);
  p->has_ended = true;
  if (++c->n_ended < comm->n) return true;
  for (int i = 0; i < comm->n; i++) free(c->parts[i].taken);
  Collective **at = &comm->collectives;
  while (*at != c) at = &(*at)->next;
  *at = c->next;
  free(c);
  return true;
}

int MPI_Iallreduce(const void *in, void *out, int n, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, MPI_Request *r) {
  (void)op;
  return post(ALL_REDUCE, in, out, n, NULL, type, 0, comm, r);
}
int MPI_Ibcast(void *buffer, int n, MPI_Datatype type, int root, MPI_Comm comm,
               MPI_Request *r) {
  return post(BCAST, NULL, buffer, n, NULL, type, root, comm, r);
}
int MPI_Iallgather(const void *in, int n, MPI_Datatype type, void *out, int n_out,
                   MPI_Datatype type_out, MPI_Comm comm, MPI_Request *r) {
  (void)n_out, (void)type_out;
  return post(ALL_GATHER, in, out, n, NULL, type, 0, comm, r);
}
int MPI_Ialltoall(const void *in, int n, MPI_Datatype type, void *out, int n_out,
                  MPI_Datatype type_out, MPI_Comm comm, MPI_Request *r) {
  (void)n_out, (void)type_out;
  return post(ALL_TO_ALL, in, out, n, NULL, type, 0, comm, r);
}
int MPI_Ialltoallv(const void *in, const int *n, const int *offsets, MPI_Datatype type,
                   void *out, const int *n_out, const int *offsets_out, MPI_Datatype type_out,
                   MPI_Comm comm, MPI_Request *r) {
  const int *const lists[4] = {n, offsets, n_out, offsets_out};
  (void)type_out;
  return post(ALL_TO_ALL_V, in, out, 0, lists, type, 0, comm, r);
}
int MPI_Igather(const void *in, int n, MPI_Datatype type, void *out, int n_out,
                MPI_Datatype type_out, int root, MPI_Comm comm, MPI_Request *r) {
  (void)n_out, (void)type_out;
  return post(GATHER, in, out, n, NULL, type, root, comm, r);
}
int MPI_Iscatter(const void *in, int n, MPI_Datatype type, void *out, int n_out,
                 MPI_Datatype type_out, int root, MPI_Comm comm, MPI_Request *r) {
  (void)n_out, (void)type_out;
  return post(SCATTER, in, out, n, NULL, type, root, comm, r);
}

/* ---- messages ---- */

int MPI_Isend(const void *in, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *r) {
  pthread_mutex_lock(&lock);
  const int me = standin_me();
  if (tag < 0 || tag > most_tag) breach("rank %d: tag %d", me, tag);
  int code = is_to_fail("MPI_Isend") ? MPI_ERR_OTHER : MPI_SUCCESS;
  if (code) code = error_on(comm, me, "MPI_Isend", code);
  else {
    Message *m = calloc(1, sizeof *m), **at = &comm->messages;
    *m = (Message){.from = rank_in(comm, me),
                   .to = to,
                   .tag = tag,
                   .bytes = (size_t)n * type->bytes,
                   .in = in};
    m->taken = taken_early(me, in, m->bytes);
    m->hash = hash_of(in, m->bytes);
    while (*at) at = &(*at)->next;
    *at = m;
    counts[me].n_sent += comm->id == 2 ? 0 : (long long)m->bytes;
    *r = new_request(comm, me);
    (*r)->message = m;
  }
  pthread_mutex_unlock(&lock);
  return code;
}

int MPI_Irecv(void *out, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request *r) {
  pthread_mutex_lock(&lock);
  const int me = standin_me();
  if (tag < 0 || tag > most_tag) breach("rank %d: tag %d", me, tag);
  int code = is_to_fail("MPI_Irecv") ? MPI_ERR_OTHER : MPI_SUCCESS;
  if (code) code = error_on(comm, me, "MPI_Irecv", code);
  else {
    MPI_Request *at = &comm->receives;
    MPI_Request own = *r = new_request(comm, me);
    own->receives = true;
    own->from = from;
    own->tag = tag;
    own->out = out;
    own->bytes = (size_t)n * type->bytes;
    if (own->bytes) memset(out, 0xa5, own->bytes);
    while (*at) at = &(*at)->next;
    *at = own;
  }
  pthread_mutex_unlock(&lock);
  return code;
}

static void free_message(MPI_Comm comm, Message *m) {
  if (!m->has_arrived || !m->has_left) return;
  Message **at = &comm->messages;
  while (*at != m) at = &(*at)->next;
  *at = m->next;
  free(m->taken);
  free(m);
}

/* Whether a message of that rank and tag that is not matched comes before m. */
static bool is_overtaking(MPI_Comm comm, const Message *m) {
  for (const Message *b = comm->messages; b != m; b = b->next)
    if (b->from == m->from && b->to == m->to && b->tag == m->tag && !b->is_matched) return true;
  return false;
}

/* Gives the receives of a communicator their messages, in the order in which both were posted.
 */
static void match(MPI_Comm comm) {
  for (MPI_Request *at = &comm->receives; *at;) {
    MPI_Request r = *at;
    Message *found = NULL;
    for (Message *m = comm->messages; m; m = m->next) {
      if (m->is_matched || m->to != rank_in(comm, r->rank) || is_overtaking(comm, m)) continue;
      if (r->tag != m->tag || (r->from != MPI_ANY_SOURCE && r->from != m->from)) continue;
      if (!found || draw(r->rank) & 1) found = m;
    }
    if (!found) {
      at = &r->next;
      continue;
    }
    found->is_matched = true;
    r->message = found;
    *at = r->next;
  }
}

/* Whether the message has ended on this side. *code: MPI_ERR_TRUNCATE. */
static bool message_ends(MPI_Request r, int *code) {
  Message *m = r->message;
  if (!r->receives) {
    if (!m->taken && !m->has_arrived) return false;
    check_unchanged(r->rank, m->in, m->bytes, m->hash);
    m->has_left = true;
  } else {
    if (!m) return false;
    if (m->bytes > r->bytes) {
      *code = MPI_ERR_TRUNCATE;
      breach("rank %d: %zu bytes come for %zu", r->rank, m->bytes, r->bytes);
    } else if (m->bytes) {
      memcpy(r->out, m->taken ? m->taken : m->in, m->bytes);
    }
    m->has_arrived = true;
  }
  free_message(r->comm, m);
  return true;
}

/* One test, with the lock held: an error, or whether it is done. */
static int test(const char *name, MPI_Request *r, bool *done) {
  MPI_Request own = *r;
  int code = MPI_SUCCESS;
  *done = true;
  if (own == MPI_REQUEST_NULL) {
    breach("rank %d: MPI_Test of no request", standin_me());
    return MPI_SUCCESS;
  }
  const int me = own->rank;
  if (!own->is_cancelled) {
    *done = false;
    match(own->comm);
    if (own->n_test > 0) {
      own->n_test--;
      return MPI_SUCCESS;
    }
    if (own->collective)
      *done = collective_ends(own->comm, own->collective, rank_in(own->comm, me));
    else *done = message_ends(own, &code);
    if (!*done) return MPI_SUCCESS;
  }
  if (is_to_fail(name)) code = MPI_ERR_OTHER;
  MPI_Comm comm = own->comm;
  if (code && keeps[me]) own->is_cancelled = true; /* a further test finds it ended */
  else free_request(r);
  return code ? error_on(comm, me, name, code) : code;
}

static int test_once(const char *name, MPI_Request *r, int *done) {
  bool is_done;
  pthread_mutex_lock(&lock);
  const int code = test(name, r, &is_done);
  pthread_mutex_unlock(&lock);
  *done = is_done;
  return code;
}

int MPI_Test(MPI_Request *r, int *done, MPI_Status *status) {
  (void)status;
  return test_once("MPI_Test", r, done);
}

int MPI_Cancel(MPI_Request *r) {
  const int code = plain_call("MPI_Cancel");
  MPI_Request own = *r;
  pthread_mutex_lock(&lock);
  match(own->comm);
  if (!own->message) {
    MPI_Request *at = &own->comm->receives;
    while (*at != own) at = &(*at)->next;
    *at = own->next;
    own->is_cancelled = true;
  }
  pthread_mutex_unlock(&lock);
  return code;
}

int MPI_Wait(MPI_Request *r, MPI_Status *status) {
  int done = 0, code = MPI_SUCCESS;
  (void)status;
  while (!done && !code) code = test_once("MPI_Wait", r, &done);
  return code;
}
