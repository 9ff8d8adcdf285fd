/* LAPACK, through its Fortran interface: the library is opened when the first call asks
   for it, so that nothing is linked and no header is wanted. Matrices lie column after
   column, and each routine works in place on one of them. dtype: DM_F32 or DM_F64, of
   every array but those of int. A routine gives LAPACK's info: 0 when all went well;
   what more than 0 says stands beside it. */
#ifndef DM_LAPACK_H
#define DM_LAPACK_H

#include "base/dtype.h"

/* Opens the library; fails where there is none, and names the package. `op` asks. */
dm_status dm_lapack_open(const char *op);

/* Fails when a count of `op` outgrows LAPACK's 32 bits. */
dm_status dm_lapack_fits(const char *op, int64_t count);

/* Elements of work memory that the routines want for blocks of columns. */
enum { DM_LAPACK_BLOCK = 64 };

/* P A = L U of an (m,n) matrix. info k: the k-th pivot is 0. */
int dm_lapack_getrf(dm_DType t, int m, int n, void *a, int *pivots);
/* The inverse, from what getrf left; work: n DM_LAPACK_BLOCK elements. */
int dm_lapack_getri(dm_DType t, int n, void *a, const int *pivots, void *work, int lwork);
/* A X = B for k columns, from what getrf left. */
int dm_lapack_getrs(dm_DType t, int n, int k, const void *a, const int *pivots, void *b);
/* A = L L^T ('L') or U^T U ('U'). info k: the first k rows and columns are not positive. */
int dm_lapack_potrf(dm_DType t, char uplo, int n, void *a);
/* A X = B ('N') or A^T X = B ('T') for a triangle of A. info k: the k-th diagonal element
   is 0. */
int dm_lapack_trtrs(dm_DType t, char uplo, char trans, char diag, int n, int k, const void *a,
                    void *b);
/* A = L D L^T ('L') of a symmetric matrix, D of blocks of 1 or 2. info k: the k-th of D is 0.
 */
int dm_lapack_sytrf(dm_DType t, char uplo, int n, void *a, int *pivots, void *work, int lwork);
/* A X = B for k columns, from what sytrf left. */
int dm_lapack_sytrs(dm_DType t, char uplo, int n, int k, const void *a, const int *pivots,
                    void *b);
/* A = Q R: R in the upper triangle, Q as k = min(m, n) reflectors with factors tau. */
int dm_lapack_geqrf(dm_DType t, int m, int n, void *a, void *tau, void *work, int lwork);
/* The first n columns of the Q of k reflectors. */
int dm_lapack_orgqr(dm_DType t, int m, int n, int k, void *a, const void *tau, void *work,
                    int lwork);
/* A = U diag(s) V^T: job 'A' all of U and V, 'S' min(m, n) columns, 'N' s alone. info more
   than 0: it did not converge. */
int dm_lapack_gesdd(dm_DType t, char job, int m, int n, void *a, void *s, void *u, int ldu,
                    void *vt, int ldvt, void *work, int lwork, int *iwork);
/* Least squares of an (m,n) matrix and k right sides in the max(m,n) rows of b, which become
   the solution's n rows; sizes are 1 and more. gels: A has full rank; info more than 0: it has
   not. gelsy and gelsd find the rank: gelsy by a QR with exchanges of columns, which are noted
   in columns[n] (0 when it is called), gelsd by the singular values s, of which those up to
   rcond times the largest count as 0. info of gelsd more than 0: it did not converge. */
int dm_lapack_gels(dm_DType t, int m, int n, int k, void *a, void *b, void *work, int lwork);
int dm_lapack_gelsy(dm_DType t, int m, int n, int k, void *a, void *b, int *columns,
                    double rcond, int *rank, void *work, int lwork);
int dm_lapack_gelsd(dm_DType t, int m, int n, int k, void *a, void *b, void *s, double rcond,
                    int *rank, void *work, int lwork, int *iwork);
/* A V = V diag(w) of a symmetric matrix: job 'V' leaves V in a, 'N' gives w alone. info more
   than 0: it did not converge. */
int dm_lapack_syevd(dm_DType t, char job, char uplo, int n, void *a, void *w, void *work,
                    int lwork, int *iwork, int liwork);

/* The buffers of gesdd, syevd, and least squares by any of its routines, in elements and in
   ints. */
int64_t dm_lapack_gesdd_work_size(char job, int64_t m, int64_t n);
int64_t dm_lapack_gesdd_ints(int64_t m, int64_t n);
int64_t dm_lapack_syevd_work_size(char job, int64_t n);
int64_t dm_lapack_syevd_ints(char job, int64_t n);
int64_t dm_lapack_lstsq_work_size(int64_t m, int64_t n, int64_t k);
int64_t dm_lapack_lstsq_ints(int64_t m, int64_t n);

#endif
