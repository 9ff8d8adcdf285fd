/* mpi.so: the transport by MPI. It is the only file that knows mpi.h, calls what MPI 3.1 has,
   and links to nothing of the engine. Bytes travel as MPI_BYTE: the engine itself adds numbers,
   so that results do not depend on the order that a library prefers. */
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "demilune.h"
#include "dist/transport.h"

struct dm_Request {
  MPI_Request of;
  int counts[]; /* of MPI_Ialltoallv: counts and offsets, sent and received */
};
struct dm_Comm {
  MPI_Comm of;
};

static dm_Comm world, notices;
static int own_rank; /* in MPI's world */
static char failure[MPI_MAX_ERROR_STRING + 64];

/* Whether a call of MPI went well; else its name and the error's text become the failure. */
static bool went_well(const char *name, int code) {
  char text[MPI_MAX_ERROR_STRING];
  int n = 0;
  if (code == MPI_SUCCESS) return true;
  if (MPI_Error_string(code, text, &n) != MPI_SUCCESS) n = 0;
  snprintf(failure, sizeof failure, "%s: %.*s", name, n, text);
  return false;
}

/* Calls a function of MPI: whether it went well. */
#define GOOD(NAME, ...) went_well(#NAME, NAME(__VA_ARGS__))

/* The failure's text. */
static const char *mpi_text(void) { return failure; }

/* The rank among the processes of this machine. */
static bool find_node_rank(int *node_rank) {
  MPI_Comm node;
  if (!GOOD(MPI_Comm_split_type, MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node))
    return false;
  const bool found = GOOD(MPI_Comm_rank, node, node_rank);
  return GOOD(MPI_Comm_free, &node) && found;
}

/* The largest tag that MPI takes. */
static bool find_most_tag(int *most_tag) {
  enum { LEAST = 32767 }; /* what MPI promises */
  void *at = NULL;
  int has = 0;
  if (!GOOD(MPI_Comm_get_attr, MPI_COMM_WORLD, MPI_TAG_UB, &at, &has)) return false;
  *most_tag = has ? *(int *)at : LEAST;
  return true;
}

/* Begins MPI, whose errors come back to us then; MPI's default is to end the job. The calls
   that make types know no communicator but MPI's world. */
static bool begin(void) {
  int level = 0;
  return GOOD(MPI_Init_thread, NULL, NULL, MPI_THREAD_FUNNELED, &level) &&
         GOOD(MPI_Comm_set_errhandler, MPI_COMM_WORLD, MPI_ERRORS_RETURN);
}

/* Where another library has begun MPI, its world stays as it is: ours are copies, which return
   their errors. */
static bool mpi_open(int *rank, int *n_rank, int *node_rank, int *most_tag) {
  int is_open = 0, has_ended = 0;
  MPI_Finalized(&has_ended);
  if (has_ended) {
    snprintf(failure, sizeof failure, "MPI has ended in this process and cannot begin again");
    return false;
  }
  MPI_Initialized(&is_open);
  const bool opened = (is_open || begin()) && GOOD(MPI_Comm_dup, MPI_COMM_WORLD, &world.of) &&
                      GOOD(MPI_Comm_dup, MPI_COMM_WORLD, &notices.of) &&
                      GOOD(MPI_Comm_set_errhandler, world.of, MPI_ERRORS_RETURN) &&
                      GOOD(MPI_Comm_set_errhandler, notices.of, MPI_ERRORS_RETURN) &&
                      GOOD(MPI_Comm_rank, world.of, &own_rank) &&
                      GOOD(MPI_Comm_size, world.of, n_rank) && find_node_rank(node_rank) &&
                      find_most_tag(most_tag);
  *rank = own_rank;
  return opened;
}

static bool mpi_close(void) { return GOOD(MPI_Finalize); }

static dm_Comm *mpi_world(void) { return &world; }

static dm_Comm *mpi_notices(void) { return &notices; }

static dm_Comm *mpi_split(dm_Comm *parent, bool member, bool *failed) {
  dm_Comm *comm = malloc(sizeof *comm);
  MPI_Comm of = MPI_COMM_NULL;
  if (!comm) snprintf(failure, sizeof failure, "out of memory");
  *failed = !GOOD(MPI_Comm_split, parent->of, member ? 0 : MPI_UNDEFINED, own_rank, &of) ||
            (of != MPI_COMM_NULL && !GOOD(MPI_Comm_set_errhandler, of, MPI_ERRORS_RETURN)) ||
            !comm;
  if (*failed || of == MPI_COMM_NULL) {
    free(comm);
    return NULL;
  }
  comm->of = of;
  return comm;
}

/* A type of n bytes, for n beyond an int, which MPI counts by: blocks of 1 MiB and the rest. */
static bool large_type(int64_t n, MPI_Datatype *type) {
  enum { BLOCK = 1 << 20 };
  const int n_block = (int)(n / BLOCK), rest = (int)(n % BLOCK);
  const int lengths[2] = {n_block, rest};
  const MPI_Aint offsets[2] = {0, (MPI_Aint)n_block * BLOCK};
  MPI_Datatype block;
  if (n / BLOCK > INT_MAX || !GOOD(MPI_Type_contiguous, BLOCK, MPI_BYTE, &block)) return false;
  const MPI_Datatype types[2] = {block, MPI_BYTE};
  const bool made = GOOD(MPI_Type_create_struct, 2, lengths, offsets, types, type);
  const bool is_ready = made && GOOD(MPI_Type_commit, type);
  if (made && !is_ready) MPI_Type_free(type);
  MPI_Type_free(&block);
  return is_ready;
}

/* The names of what start() calls, by the kind of transfer. */
static const char *const names[] = {[DM_TRANSFER_MIN] = "MPI_Iallreduce",
                                    [DM_TRANSFER_BROADCAST] = "MPI_Ibcast",
                                    [DM_TRANSFER_ALL_GATHER] = "MPI_Iallgather",
                                    [DM_TRANSFER_ALL_TO_ALL] = "MPI_Ialltoall",
                                    [DM_TRANSFER_GATHER] = "MPI_Igather",
                                    [DM_TRANSFER_SCATTER] = "MPI_Iscatter",
                                    [DM_TRANSFER_SEND] = "MPI_Isend",
                                    [DM_TRANSFER_RECEIVE] = "MPI_Irecv"};

/* Calls the function of MPI for that kind of transfer. */
static int start(MPI_Comm comm, dm_Transfer transfer, const void *in, void *out, int n,
                 MPI_Datatype type, int peer, int tag, MPI_Request *r) {
  switch (transfer) {
  case DM_TRANSFER_MIN: return MPI_Iallreduce(in, out, 2, MPI_UINT64_T, MPI_MIN, comm, r);
  case DM_TRANSFER_BROADCAST: return MPI_Ibcast(out, n, type, peer, comm, r);
  case DM_TRANSFER_ALL_GATHER: return MPI_Iallgather(in, n, type, out, n, type, comm, r);
  case DM_TRANSFER_ALL_TO_ALL: return MPI_Ialltoall(in, n, type, out, n, type, comm, r);
  case DM_TRANSFER_GATHER: return MPI_Igather(in, n, type, out, n, type, peer, comm, r);
  case DM_TRANSFER_SCATTER: return MPI_Iscatter(in, n, type, out, n, type, peer, comm, r);
  case DM_TRANSFER_SEND: return MPI_Isend(in, n, type, peer, tag, comm, r);
  case DM_TRANSFER_RECEIVE:
    return MPI_Irecv(out, n, type, peer < 0 ? MPI_ANY_SOURCE : peer, tag, comm, r);
  }
  return MPI_ERR_ARG;
}

static dm_Request *mpi_post(dm_Comm *comm, dm_Transfer transfer, const void *in, void *out,
                            int64_t n_bytes, int peer, int tag) {
  MPI_Datatype type = MPI_BYTE;
  const bool large = n_bytes > INT_MAX;
  if (large && !large_type(n_bytes, &type)) return NULL;
  dm_Request *r = malloc(sizeof *r);
  if (!r) snprintf(failure, sizeof failure, "out of memory");
  if (r &&
      !went_well(names[transfer], start(comm->of, transfer, in, out, large ? 1 : (int)n_bytes,
                                        type, peer, tag, &r->of))) {
    free(r);
    r = NULL;
  }
  if (large) MPI_Type_free(&type); /* MPI keeps it as long as the message needs it */
  return r;
}

/* Counts and offsets of n parts, in units of `unit` rows each; false: beyond what an int
 * counts.
 */
static bool count_parts(int *counts, const int64_t *sizes, int n, int64_t unit) {
  int64_t at = 0;
  for (int i = 0; i < n; i++) {
    if (at + sizes[i] * unit > INT_MAX) return false;
    counts[i] = (int)(sizes[i] * unit);
    counts[n + i] = (int)at;
    at += counts[i];
  }
  return true;
}

/* Counts bytes, or rows where there are more bytes than an int counts. */
static dm_Request *mpi_post_uneven(dm_Comm *comm, const void *in, void *out,
                                   const int64_t *sizes, int n, int64_t row) {
  MPI_Datatype type = MPI_BYTE;
  dm_Request *r = calloc(1, sizeof *r + 4 * sizeof(int) * (size_t)n);
  if (!r) {
    snprintf(failure, sizeof failure, "out of memory");
    return NULL;
  }
  int *go = r->counts, *come = go + 2 * n;
  const bool by_row = !count_parts(go, sizes, n, row) || !count_parts(come, sizes + n, n, row);
  bool well = true;
  if (by_row) {
    well = count_parts(go, sizes, n, 1) && count_parts(come, sizes + n, n, 1);
    if (!well) snprintf(failure, sizeof failure, "more than %d rows to exchange", INT_MAX);
    well = well && large_type(row, &type);
  }
  if (well) {
    well =
        GOOD(MPI_Ialltoallv, in, go, go + n, type, out, come, come + n, type, comm->of, &r->of);
    if (by_row) MPI_Type_free(&type); /* MPI keeps it as long as the message needs it */
  }
  if (!well) {
    free(r);
    r = NULL;
  }
  return r;
}

/* Open MPI reads its sockets at every eighth look at a request alone (opal_progress, in its
   opal/runtime), and the thread naps between two tests: so many looks at each, two of them at
   the sockets. */
enum { LOOKS = 16 };

/* A request whose test fails is over where MPI has freed it; else it may still be under way. */
static int mpi_test(dm_Request **r) {
  int done = 0;
  bool well = true;
  for (int i = 0; well && !done && i < LOOKS; i++)
    well = GOOD(MPI_Test, &(*r)->of, &done, MPI_STATUS_IGNORE);
  if (well && !done) return 0;
  if (well || (*r)->of == MPI_REQUEST_NULL) {
    free(*r);
    *r = NULL;
  }
  return well ? 1 : -1;
}

static bool mpi_cancel(dm_Request **r) {
  const bool well = GOOD(MPI_Cancel, &(*r)->of) && GOOD(MPI_Wait, &(*r)->of, MPI_STATUS_IGNORE);
  if (well || (*r)->of == MPI_REQUEST_NULL) {
    free(*r);
    *r = NULL;
  }
  return well;
}

DM_API extern const dm_Transport dm_transport;
const dm_Transport dm_transport = {
    .version = DM_VERSION,
    .open = mpi_open,
    .close = mpi_close,
    .text = mpi_text,
    .world = mpi_world,
    .notices = mpi_notices,
    .split = mpi_split,
    .post = mpi_post,
    .post_uneven = mpi_post_uneven,
    .test = mpi_test,
    .cancel = mpi_cancel,
};
