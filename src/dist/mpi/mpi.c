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
};
struct dm_Comm {
  MPI_Comm of;
};

static dm_Comm world, notices;
static char failure[MPI_MAX_ERROR_STRING + 64];

/* Whether a call of MPI went well; else its text becomes the failure. */
static bool good(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int n = 0;
  if (code == MPI_SUCCESS) return true;
  if (MPI_Error_string(code, text, &n) != MPI_SUCCESS) n = 0;
  snprintf(failure, sizeof failure, "MPI: %.*s", n, text);
  return false;
}

/* The failure's text. */
static const char *mpi_text(void) { return failure; }

/* The rank among the processes of this machine. */
static bool find_node_rank(int *node_rank) {
  MPI_Comm node;
  return good(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL,
                                  &node)) &&
         good(MPI_Comm_rank(node, node_rank)) && good(MPI_Comm_free(&node));
}

/* MPI's world stays as it is: ours are copies, which return their errors. */
static bool mpi_open(int *rank, int *n_rank, int *node_rank) {
  int is_open = 0, has_ended = 0, level = 0;
  MPI_Finalized(&has_ended);
  if (has_ended) {
    snprintf(failure, sizeof failure, "MPI has ended in this process and cannot begin again");
    return false;
  }
  MPI_Initialized(&is_open);
  if (!is_open && !good(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level))) return false;
  if (!good(MPI_Comm_dup(MPI_COMM_WORLD, &world.of)) ||
      !good(MPI_Comm_dup(MPI_COMM_WORLD, &notices.of)))
    return false;
  MPI_Comm_set_errhandler(world.of, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(notices.of, MPI_ERRORS_RETURN);
  return good(MPI_Comm_rank(world.of, rank)) && good(MPI_Comm_size(world.of, n_rank)) &&
         find_node_rank(node_rank);
}

static void mpi_close(void) { MPI_Finalize(); }

static dm_Comm *mpi_world(void) { return &world; }

static dm_Comm *mpi_notices(void) { return &notices; }

static dm_Comm *mpi_split(bool member, bool *failed) {
  dm_Comm *comm = malloc(sizeof *comm);
  int rank = 0;
  MPI_Comm_rank(world.of, &rank);
  MPI_Comm of = MPI_COMM_NULL;
  *failed = !good(MPI_Comm_split(world.of, member ? 0 : MPI_UNDEFINED, rank, &of)) || !comm;
  if (*failed || of == MPI_COMM_NULL) {
    free(comm);
    return NULL;
  }
  MPI_Comm_set_errhandler(of, MPI_ERRORS_RETURN);
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
  if (n / BLOCK > INT_MAX || !good(MPI_Type_contiguous(BLOCK, MPI_BYTE, &block))) return false;
  const MPI_Datatype types[2] = {block, MPI_BYTE};
  const bool made = good(MPI_Type_create_struct(2, lengths, offsets, types, type)) &&
                    good(MPI_Type_commit(type));
  MPI_Type_free(&block);
  return made;
}

/* Calls the function of MPI for that kind of transfer. */
static int start(MPI_Comm comm, dm_Transfer transfer, const void *in, void *out, int n,
                 MPI_Datatype type, int peer, MPI_Request *r) {
  switch (transfer) {
  case DM_TRANSFER_MIN: return MPI_Iallreduce(in, out, 2, MPI_UINT64_T, MPI_MIN, comm, r);
  case DM_TRANSFER_BROADCAST: return MPI_Ibcast(out, n, type, peer, comm, r);
  case DM_TRANSFER_ALL_GATHER: return MPI_Iallgather(in, n, type, out, n, type, comm, r);
  case DM_TRANSFER_ALL_TO_ALL: return MPI_Ialltoall(in, n, type, out, n, type, comm, r);
  case DM_TRANSFER_GATHER: return MPI_Igather(in, n, type, out, n, type, peer, comm, r);
  case DM_TRANSFER_SCATTER: return MPI_Iscatter(in, n, type, out, n, type, peer, comm, r);
  case DM_TRANSFER_SEND: return MPI_Isend(in, n, type, peer, 0, comm, r);
  case DM_TRANSFER_RECEIVE:
    return MPI_Irecv(out, n, type, peer < 0 ? MPI_ANY_SOURCE : peer, 0, comm, r);
  }
  return MPI_ERR_ARG;
}

static dm_Request *mpi_post(dm_Comm *comm, dm_Transfer transfer, const void *in, void *out,
                            int64_t n_bytes, int peer) {
  MPI_Datatype type = MPI_BYTE;
  const bool large = n_bytes > INT_MAX;
  if (large && !large_type(n_bytes, &type)) return NULL;
  dm_Request *r = malloc(sizeof *r);
  if (!r) snprintf(failure, sizeof failure, "out of memory");
  if (r &&
      !good(start(comm->of, transfer, in, out, large ? 1 : (int)n_bytes, type, peer, &r->of))) {
    free(r);
    r = NULL;
  }
  if (large) MPI_Type_free(&type); /* MPI keeps it as long as the message needs it */
  return r;
}

static int mpi_test(dm_Request **r) {
  int done = 0;
  if (!good(MPI_Test(&(*r)->of, &done, MPI_STATUS_IGNORE))) return -1;
  if (!done) return 0;
  free(*r);
  *r = NULL;
  return 1;
}

static void mpi_cancel(dm_Request **r) {
  MPI_Cancel(&(*r)->of);
  MPI_Wait(&(*r)->of, MPI_STATUS_IGNORE);
  free(*r);
  *r = NULL;
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
    .test = mpi_test,
    .cancel = mpi_cancel,
};
