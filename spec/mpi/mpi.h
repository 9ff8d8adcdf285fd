/* The header of a stand-in for MPI, in which the ranks are threads of one process: what
   src/dist/mpi/mpi.c calls, and what the tests set and read. See mpi.c. */
#ifndef STANDIN_MPI_H
#define STANDIN_MPI_H

#include <limits.h>
#include <stddef.h>

/* So that messages beyond 4095 bytes travel as those beyond an int do. */
#undef INT_MAX
#define INT_MAX 4095

typedef struct StandinComm *MPI_Comm;
typedef struct StandinRequest *MPI_Request;
typedef struct StandinType *MPI_Datatype;
typedef ptrdiff_t MPI_Aint;
typedef int MPI_Info, MPI_Op, MPI_Errhandler;
typedef struct MPI_Status MPI_Status;

extern struct StandinComm standin_world;
extern struct StandinType standin_byte, standin_uint64;

#define MPI_COMM_WORLD (&standin_world)
#define MPI_COMM_NULL ((MPI_Comm)NULL)
#define MPI_REQUEST_NULL ((MPI_Request)NULL)
#define MPI_BYTE (&standin_byte)
#define MPI_UINT64_T (&standin_uint64)
#define MPI_STATUS_IGNORE ((MPI_Status *)NULL)
enum {
  MPI_SUCCESS = 0,
  MPI_ERR_ARG = 12,
  MPI_ERR_TRUNCATE = 15,
  MPI_ERR_OTHER = 16,
  MPI_ERR_ANOTHER_RANK = 17,
  MPI_MAX_ERROR_STRING = 256,
  MPI_UNDEFINED = -3,
  MPI_ANY_SOURCE = -1,
  MPI_TAG_UB = 1,
  MPI_THREAD_FUNNELED = 1,
  MPI_COMM_TYPE_SHARED = 1,
  MPI_INFO_NULL = 0,
  MPI_MIN = 1,
  MPI_ERRORS_ARE_FATAL = 0,
  MPI_ERRORS_RETURN = 1
};

int MPI_Initialized(int *flag);
int MPI_Finalized(int *flag);
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided);
int MPI_Finalize(void);
int MPI_Error_string(int code, char *text, int *n);
int MPI_Comm_rank(MPI_Comm comm, int *rank);
int MPI_Comm_size(MPI_Comm comm, int *n);
int MPI_Comm_get_attr(MPI_Comm comm, int key, void *value, int *found);
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *out);
int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm *out);
int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *out);
int MPI_Comm_free(MPI_Comm *comm);
int MPI_Comm_set_errhandler(MPI_Comm comm, MPI_Errhandler handler);
int MPI_Type_contiguous(int n, MPI_Datatype of, MPI_Datatype *out);
int MPI_Type_create_struct(int n, const int *lengths, const MPI_Aint *offsets,
                           const MPI_Datatype *types, MPI_Datatype *out);
int MPI_Type_commit(MPI_Datatype *type);
int MPI_Type_free(MPI_Datatype *type);
int MPI_Iallreduce(const void *in, void *out, int n, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, MPI_Request *r);
int MPI_Ibcast(void *buffer, int n, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *r);
int MPI_Iallgather(const void *in, int n, MPI_Datatype type, void *out, int n_out,
                   MPI_Datatype type_out, MPI_Comm comm, MPI_Request *r);
int MPI_Ialltoall(const void *in, int n, MPI_Datatype type, void *out, int n_out,
                  MPI_Datatype type_out, MPI_Comm comm, MPI_Request *r);
int MPI_Ialltoallv(const void *in, const int *n, const int *offsets, MPI_Datatype type,
                   void *out, const int *n_out, const int *offsets_out, MPI_Datatype type_out,
                   MPI_Comm comm, MPI_Request *r);
int MPI_Igather(const void *in, int n, MPI_Datatype type, void *out, int n_out,
                MPI_Datatype type_out, int root, MPI_Comm comm, MPI_Request *r);
int MPI_Iscatter(const void *in, int n, MPI_Datatype type, void *out, int n_out,
                 MPI_Datatype type_out, int root, MPI_Comm comm, MPI_Request *r);
int MPI_Isend(const void *in, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *r);
int MPI_Irecv(void *out, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request *r);
int MPI_Test(MPI_Request *r, int *done, MPI_Status *status);
int MPI_Wait(MPI_Request *r, MPI_Status *status);
int MPI_Cancel(MPI_Request *r);

/* ---- settings and counts ---- */

enum { STANDIN_MAX = 8, STANDIN_TEXT = 400 };

/* Of a rank. */
typedef struct StandinCounts {
  long n_call;               /* calls that may fail; of MPI_Test those that end a request */
  long n_request, n_type;    /* that are live */
  long long n_sent;          /* bytes to other ranks, but for those of notices */
  char failed[STANDIN_TEXT]; /* the name of the call that was made to fail; or "" */
} StandinCounts;

/* n ranks, whose requests end after a number of tests that follows from the seed. */
void standin_begin(int n, unsigned long seed);
/* Call `at` of a rank fails, counted from 1. keeps: a request whose test fails stays, as Open
   MPI leaves it, and MPI_Finalize never comes back; else it is freed, as MPICH does. */
void standin_fail(int rank, long at, int keeps);
/* The rank of this thread, by the name of the thread, "rank 2", which threads inherit. */
int standin_me(void);
StandinCounts standin_counts(int rank);
/* Breaches of MPI's rules, a line each; or "". */
void standin_breaches(char text[STANDIN_TEXT]);

#endif
