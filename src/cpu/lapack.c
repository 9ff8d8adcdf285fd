/* See lapack.h. The Fortran interface is an ABI of its own: names in lower case with an
   underscore, every argument by address, matrices in columns, and at the end the length of each
   character argument. The reference LAPACK and OpenBLAS share it, so one table of pointers
   serves whichever is installed. OpenBLAS without threads is the one to install: with the
   reference's BLAS, matrices of 1024 rows take 10 to 27 times as long.

   Arguments of the functions below are LAPACK's, in its order, without leading
   dimensions, which are the numbers of rows, and without info, which is the result:
   0, -i for a bad argument i, or what the routine says about the matrix. t chooses
   float32 (s...) or float64 (d...). */
#include "cpu/lapack.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum {
  GETRF,
  GETRI,
  GETRS,
  POTRF,
  TRTRS,
  GEQRF,
  ORGQR,
  GESDD,
  SYEVD,
  SYTRF,
  SYTRS,
  GELS,
  GELSY,
  GELSD,
  N_ROUTINE
};
static const char *const names[N_ROUTINE] = {"getrf", "getri", "getrs", "potrf", "trtrs",
                                             "geqrf", "orgqr", "gesdd", "syevd", "sytrf",
                                             "sytrs", "gels",  "gelsy", "gelsd"};

/* The routines of float32 and of float64; all are there when `complete`. Written once, in
   open_library. */
typedef void Routine(void);
static Routine *routines[2][N_ROUTINE];
static bool complete;
static pthread_once_t opened = PTHREAD_ONCE_INIT;

/* POSIX lets a symbol be a function; ISO C wants the detour. */
static Routine *symbol(void *library, const char *name) {
  Routine *f;
  void *const p = dlsym(library, name);
  memcpy(&f, &p, sizeof f);
  return f;
}

/* OpenBLAS brings threads of its own: they would fight with the engine's for the same
   cores, and its sums depend on their number. */
static void keep_single(void *library) {
  Routine *f = symbol(library, "openblas_set_num_threads");
  if (f) ((void (*)(int))f)(1);
}

/* DEMILUNE_LAPACK names another file. */
static void open_library(void) {
  static const char *const files[] = {"liblapack.so.3", "libopenblas.so.0", "liblapack.so"};
  const char *own = getenv("DEMILUNE_LAPACK");
  void *library = own ? dlopen(own, RTLD_NOW | RTLD_LOCAL) : NULL;
  for (int i = 0; i < DM_COUNT(files) && !library && !own; i++)
    library = dlopen(files[i], RTLD_NOW | RTLD_LOCAL);
  if (!library) return;
  keep_single(library);
  complete = true;
  for (int wide = 0; wide < 2; wide++)
    for (int i = 0; i < N_ROUTINE; i++) {
      char name[16];
      snprintf(name, sizeof name, "%c%s_", wide ? 'd' : 's', names[i]);
      routines[wide][i] = symbol(library, name);
      complete = complete && routines[wide][i];
    }
}

dm_status dm_lapack_open(const char *op) {
  pthread_once(&opened, open_library);
  if (complete) return DM_OK;
  return dm_fail(DM_ESTATE,
                 "%s: LAPACK (liblapack.so.3) was not found; hint: apt install "
                 "libopenblas0-serial, or DEMILUNE_LAPACK=/path/to/it",
                 op);
}

/* The integers of the interface have 32 bits. */
dm_status dm_lapack_fits(const char *op, int64_t count) {
  if (count <= INT32_MAX) return DM_OK;
  return dm_fail(DM_EARG, "%s: matrices too large: LAPACK would count to %lld, beyond 2^31", op,
                 (long long)count);
}

/* Fortran takes every argument by its address, and the length of each word (1) at the end. */
#define CALL(ROUTINE, TYPES, ...) \
  ((void(*) TYPES)routines[t == DM_F64][ROUTINE])(__VA_ARGS__, &info)
#define CALL_WORDS(ROUTINE, TYPES, ...) \
  ((void(*) TYPES)routines[t == DM_F64][ROUTINE])(__VA_ARGS__)
typedef const int *In;
typedef const char *Word;

/* A = P L U (m, n) in place, pivots from 1; info i: U[i][i] is 0. */
int dm_lapack_getrf(dm_DType t, int m, int n, void *a, int *pivots) {
  int info = 0;
  CALL(GETRF, (In, In, void *, In, int *, int *), &m, &n, a, &m, pivots);
  return info;
}

/* A^-1 in place from getrf's factors. */
int dm_lapack_getri(dm_DType t, int n, void *a, const int *pivots, void *work, int lwork) {
  int info = 0;
  CALL(GETRI, (In, void *, In, In, void *, In, int *), &n, a, &n, pivots, work, &lwork);
  return info;
}

/* B (n, k) becomes A^-1 B, from getrf's factors. */
int dm_lapack_getrs(dm_DType t, int n, int k, const void *a, const int *pivots, void *b) {
  int info = 0;
  CALL_WORDS(GETRS, (Word, In, In, const void *, In, In, void *, In, int *, size_t), "N", &n,
             &k, a, &n, pivots, b, &n, &info, 1);
  return info;
}

/* The Cholesky factor of A in its upper or lower triangle; info i: the leading minor
   of order i is not positive. */
int dm_lapack_potrf(dm_DType t, char uplo, int n, void *a) {
  int info = 0;
  CALL_WORDS(POTRF, (Word, In, void *, In, int *, size_t), &uplo, &n, a, &n, &info, 1);
  return info;
}

/* B (n, k) becomes the solution of a triangular system. */
int dm_lapack_trtrs(dm_DType t, char uplo, char trans, char diag, int n, int k, const void *a,
                    void *b) {
  int info = 0;
  CALL_WORDS(
      TRTRS,
      (Word, Word, Word, In, In, const void *, In, void *, In, int *, size_t, size_t, size_t),
      &uplo, &trans, &diag, &n, &k, a, &n, b, &n, &info, 1, 1, 1);
  return info;
}

int dm_lapack_sytrf(dm_DType t, char uplo, int n, void *a, int *pivots, void *work, int lwork) {
  int info = 0;
  CALL_WORDS(SYTRF, (Word, In, void *, In, int *, void *, In, int *, size_t), &uplo, &n, a, &n,
             pivots, work, &lwork, &info, 1);
  return info;
}

int dm_lapack_sytrs(dm_DType t, char uplo, int n, int k, const void *a, const int *pivots,
                    void *b) {
  int info = 0;
  CALL_WORDS(SYTRS, (Word, In, In, const void *, In, In, void *, In, int *, size_t), &uplo, &n,
             &k, a, &n, pivots, b, &n, &info, 1);
  return info;
}

/* A = Q R (m, n): R in the upper triangle, Householder vectors below it, their
   factors in tau. */
int dm_lapack_geqrf(dm_DType t, int m, int n, void *a, void *tau, void *work, int lwork) {
  int info = 0;
  CALL(GEQRF, (In, In, void *, In, void *, void *, In, int *), &m, &n, a, &m, tau, work,
       &lwork);
  return info;
}

/* The first n columns of Q from geqrf's vectors. */
int dm_lapack_orgqr(dm_DType t, int m, int n, int k, void *a, const void *tau, void *work,
                    int lwork) {
  int info = 0;
  CALL(ORGQR, (In, In, In, void *, In, const void *, void *, In, int *), &m, &n, &k, a, &m, tau,
       work, &lwork);
  return info;
}

/* Singular values and vectors by divide and conquer. */
int dm_lapack_gesdd(dm_DType t, char job, int m, int n, void *a, void *s, void *u, int ldu,
                    void *vt, int ldvt, void *work, int lwork, int *iwork) {
  int info = 0;
  CALL_WORDS(GESDD,
             (Word, In, In, void *, In, void *, void *, In, void *, In, void *, In, int *,
              int *, size_t),
             &job, &m, &n, a, &m, s, u, &ldu, vt, &ldvt, work, &lwork, iwork, &info, 1);
  return info;
}

/* Eigenvalues in ascending order and vectors of a symmetric matrix, by divide and
   conquer. */
int dm_lapack_syevd(dm_DType t, char job, char uplo, int n, void *a, void *w, void *work,
                    int lwork, int *iwork, int liwork) {
  int info = 0;
  CALL_WORDS(SYEVD,
             (Word, Word, In, void *, In, void *, void *, In, int *, In, int *, size_t, size_t),
             &job, &uplo, &n, a, &n, w, work, &lwork, iwork, &liwork, &info, 1, 1);
  return info;
}

/* The least squares of a matrix of full rank by QR or LQ. */
int dm_lapack_gels(dm_DType t, int m, int n, int k, void *a, void *b, void *work, int lwork) {
  int info = 0;
  const int rows = m > n ? m : n;
  CALL_WORDS(GELS, (Word, In, In, In, void *, In, void *, In, void *, In, int *, size_t), "N",
             &m, &n, &k, a, &m, b, &rows, work, &lwork, &info, 1);
  return info;
}

/* rcond as the routine of a dtype reads it. */
typedef struct Rcond {
  float narrow;
  double wide;
} Rcond;
static const void *read_as(dm_DType t, Rcond *r) {
  r->narrow = (float)r->wide;
  return t == DM_F64 ? (const void *)&r->wide : &r->narrow;
}

/* By a complete orthogonal factorization. */
int dm_lapack_gelsy(dm_DType t, int m, int n, int k, void *a, void *b, int *columns,
                    double rcond, int *rank, void *work, int lwork) {
  int info = 0;
  const int rows = m > n ? m : n;
  CALL(GELSY,
       (In, In, In, void *, In, void *, In, int *, const void *, int *, void *, In, int *), &m,
       &n, &k, a, &m, b, &rows, columns, read_as(t, &(Rcond){.wide = rcond}), rank, work,
       &lwork);
  return info;
}

/* By singular values, divide and conquer. */
int dm_lapack_gelsd(dm_DType t, int m, int n, int k, void *a, void *b, void *s, double rcond,
                    int *rank, void *work, int lwork, int *iwork) {
  int info = 0;
  const int rows = m > n ? m : n;
  CALL(GELSD,
       (In, In, In, void *, In, void *, In, void *, const void *, int *, void *, In, int *,
        int *),
       &m, &n, &k, a, &m, b, &rows, s, read_as(t, &(Rcond){.wide = rcond}), rank, work, &lwork,
       iwork);
  return info;
}

/* The work sizes in LAPACK's documentation, with DM_LAPACK_BLOCK columns for blocked
   algorithms. */
int64_t dm_lapack_gesdd_work_size(char job, int64_t m, int64_t n) {
  const int64_t least = dm_min_i64(m, n), most = dm_max_i64(m, n);
  const int64_t blocks = DM_LAPACK_BLOCK * most + 7 * least;
  return blocks + (job == 'N' ? 3 * least : 4 * least * least);
}
int64_t dm_lapack_gesdd_ints(int64_t m, int64_t n) { return 8 * dm_min_i64(m, n); }
int64_t dm_lapack_syevd_work_size(char job, int64_t n) {
  return 1 + (6 + DM_LAPACK_BLOCK) * n + (job == 'V' ? 2 * n * n : 0);
}
int64_t dm_lapack_syevd_ints(char job, int64_t n) { return job == 'V' ? 3 + 5 * n : 1; }

/* Levels of gelsd's divide and conquer, which leaves blocks of LEAF singular values. */
enum { LEAF = 25 };
static int64_t lstsq_levels(int64_t least) {
  int64_t levels = 0;
  while (((LEAF + 1) << levels) <= least) levels++;
  return levels;
}
/* gelsd's, which is the largest. */
int64_t dm_lapack_lstsq_work_size(int64_t m, int64_t n, int64_t k) {
  const int64_t least = dm_min_i64(m, n), sides = m + n + k;
  return DM_LAPACK_BLOCK * (sides + 1) + (LEAF + 1) * (LEAF + 1) +
         least * (12 + 2 * LEAF + 8 * lstsq_levels(least) + k);
}
/* At least n of them, for gelsy. */
int64_t dm_lapack_lstsq_ints(int64_t m, int64_t n) {
  const int64_t least = dm_min_i64(m, n);
  return dm_max_i64(n, least * (11 + 3 * lstsq_levels(least)));
}
