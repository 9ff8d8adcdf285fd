/* Factorizations of matrices by LAPACK: the kernels of inv, solve, lu_factor, det,
   slogdet, cholesky, solve_triangular, qr, svd, pinv and eigh. They run on the host;
   matrices of another device are copied there and the results are copied back.

   LAPACK's matrices are column-major, tensors are row-major: a contiguous tensor (M,
   N) is, to LAPACK, its transpose. Kernels either transpose on the way in and out
   (turn), or choose the call so that the transpose is what they need: Cholesky and
   eigh of a symmetric matrix swap 'U' and 'L', det(A^T) is det(A), and the SVD of
   A^T gives V and U already in the layout of V^T and U.

   Batches are a loop over matrices with shared buffers. Numeric failures (a singular
   matrix, no convergence) name the matrix; the _ex ops return LAPACK's info and NaN
   instead. */
#include "op/linalg/linalg.h"

#include <math.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/error.h"
#include "cpu/gemm.h"
#include "cpu/lapack.h"
#include "op/index/index.h"

/* ---- the working state of a kernel ---- */

enum { MAX_BUFFERS = 5 };

/* The operands and results of one call, contiguous and on the host, and the buffers
   that LAPACK works in. After a failure (st) every step does nothing. */
typedef struct Work {
  dm_Call *c;
  dm_status st;
  dm_DType t;
  int64_t size, batch; /* bytes of an element; matrices */
  dm_Tensor *in[2], *out[3];
  void *buffer[MAX_BUFFERS];
  int n_buffer;
} Work;

/* *out: t on the host, contiguous, its leading dims broadcast to batch (lead). */
static dm_status bring(dm_Tensor *t, int lead, const int64_t *batch, dm_Tensor **out) {
  dm_Tensor *near = NULL;
  int64_t shape[DM_MAX_DIM];
  for (int d = 0; d < lead; d++) shape[d] = batch[d];
  for (int d = 0; d < 2; d++) shape[lead + d] = t->shape[t->ndim - 2 + d];
  DM_TRY(dm_tensor_on_host(t, &near));
  const dm_status st = dm_dense_as_new(near, (dm_DType)t->dtype, lead + 2, shape, out);
  dm_tensor_unref(&near);
  return st;
}

/* Opens the work of a call whose first n operands are matrices that broadcast to `lead`
   leading dims of sizes `batch`. */
static void open_work(Work *w, dm_Call *c, int n, int lead, const int64_t *batch) {
  const dm_Tensor *a = c->in[0];
  *w = (Work){.c = c, .t = (dm_DType)a->dtype, .batch = dm_numel(lead, batch)};
  w->size = dm_dtype_size(w->t);
  w->st = dm_lapack_open(DM_LINALG(c));
  for (int i = 0; i < n && w->st == DM_OK; i++) {
    w->st = bring(c->in[i], lead, batch, &w->in[i]);
    for (int d = 1; d <= 2 && w->st == DM_OK; d++)
      w->st = dm_lapack_fits(DM_LINALG(c), c->in[i]->shape[c->in[i]->ndim - d]);
  }
  for (int i = 0; i < c->n_out && w->st == DM_OK; i++) {
    dm_Meta m = c->out_meta[i];
    m.device = (dm_Device){DM_CPU, 0};
    if (c->out[i]->device.type == DM_CPU) w->out[i] = dm_tensor_ref(c->out[i]);
    else w->st = dm_tensor_new_meta(&m, &w->out[i]);
    const bool info = w->st == DM_OK && m.dtype == DM_I32 && w->out[i]->numel > 0;
    if (info) memset(dm_tensor_data(w->out[i]), 0, (size_t)dm_tensor_bytes(w->out[i]));
  }
  /* A tensor without elements may hold more empty matrices than a loop can count. */
  bool any = false;
  for (int i = 0; i < c->n_out && w->st == DM_OK; i++) any |= w->out[i]->numel > 0;
  if (!any) w->batch = 0;
}

/* Opens the work with operand 0 and its own leading dims. */
static void open_own(Work *w, dm_Call *c) {
  open_work(w, c, 1, c->in[0]->ndim - 2, c->in[0]->shape);
}

/* Copies results to their device and frees everything; returns the status of the
   call. */
static dm_status close_work(Work *w) {
  for (int i = 0; i < w->c->n_out; i++) {
    dm_Tensor *to = w->c->out[i];
    if (w->st == DM_OK && w->out[i] != to) w->st = dm_tensor_copy_bytes(to, w->out[i], false);
    dm_tensor_unref(&w->out[i]);
  }
  for (int i = 0; i < 2; i++) dm_tensor_unref(&w->in[i]);
  for (int i = 0; i < w->n_buffer; i++) dm_free(w->buffer[i]);
  return w->st;
}

/* A buffer of count elements of `size` bytes, freed by close_work; fails when
   LAPACK's int cannot count them. */
static void *buffer_of(Work *w, int64_t count, int64_t size) {
  if (w->st != DM_OK) return NULL;
  w->st = dm_lapack_fits(DM_LINALG(w->c), count);
  void *p = w->st == DM_OK ? dm_alloc(dm_max_i64(count * size, 1)) : NULL;
  if (w->st == DM_OK && !p)
    w->st = dm_fail(DM_EMEM, "%s: out of memory: %lld bytes for LAPACK", DM_LINALG(w->c),
                    (long long)(count * size));
  if (p) w->buffer[w->n_buffer++] = p;
  return p;
}
static void *elements(Work *w, int64_t count) { return buffer_of(w, count, w->size); }
/* A buffer for a matrix; LAPACK counts its sides, not its elements. */
static void *matrix_buffer(Work *w, int64_t rows, int64_t cols) {
  return buffer_of(w, rows, cols * w->size);
}
static int *ints(Work *w, int64_t count) { return buffer_of(w, count, sizeof(int)); }

/* True while matrix b is to be processed. */
static bool going(const Work *w, int64_t b) { return w->st == DM_OK && b < w->batch; }

/* The data of matrix (or vector) b of a tensor in which each has n elements. */
static char *nth(const Work *w, const dm_Tensor *t, int64_t n, int64_t b) {
  return (char *)dm_tensor_data(t) + b * n * w->size;
}
static int rows_of(const Work *w) { return w->st == DM_OK ? (int)dm_rows(w->in[0]) : 0; }
static int columns_of(const Work *w) { return w->st == DM_OK ? (int)dm_columns(w->in[0]) : 0; }

/* Copies count elements without transposing. */
static void copy_matrix(const Work *w, void *dst, const void *src, int64_t count) {
  if (count > 0) memcpy(dst, src, (size_t)(count * w->size));
}

/* Writes rows x cols elements of src, whose rows begin `from` elements apart, to dst as
   columns that begin `to` elements apart. */
static void turn_part(const Work *w, void *dst, int64_t to, const void *src, int64_t from,
                      int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < cols; j++) {
      if (w->t == DM_F64) ((double *)dst)[j * to + i] = ((const double *)src)[i * from + j];
      else ((float *)dst)[j * to + i] = ((const float *)src)[i * from + j];
    }
}

/* Writes the row-major (rows, cols) matrix src to dst in column-major order, which
   is the same as transposing it. Called with the sides exchanged it converts
   LAPACK's result back. */
static void turn(const Work *w, void *dst, const void *src, int64_t rows, int64_t cols) {
  turn_part(w, dst, rows, src, cols, rows, cols);
}

/* Element i of an array of the call's dtype, and below its store. */
static double value(const Work *w, const void *p, int64_t i) {
  return w->t == DM_F64 ? ((const double *)p)[i] : (double)((const float *)p)[i];
}
static void set(const Work *w, void *p, int64_t i, double v) {
  if (w->t == DM_F64) ((double *)p)[i] = v;
  else ((float *)p)[i] = (float)v;
}

/* A name for messages: "matrix 2", or "the matrix" where there is only one. */
static const char *which(const Work *w, int64_t b, char buf[32]) {
  if (w->c->in[0]->ndim == 2 && w->batch == 1) return "the matrix";
  snprintf(buf, 32, "matrix %lld", (long long)(b + w->c->base));
  return buf;
}
#define WHICH(w, b) which(w, b, (char[32]){0})

/* Fails the call when LAPACK's info is positive: pivot or diagonal element `info` is
   0. */
static bool singular(Work *w, int64_t b, int info, const char *what) {
  if (info > 0)
    w->st = dm_fail(DM_EARG, "%s: %s is singular: %s %d is 0", DM_LINALG(w->c), WHICH(w, b),
                    what, info - 1 + w->c->base);
  return info > 0;
}

/* For ops that return info (a second output): stores matrix b's info and, when it is
   not 0, fills its result with NaN. True when the caller should go on to the next
   matrix. */
static bool noted(const Work *w, int64_t b, int info, int64_t count) {
  if (w->c->n_out < 2) return false;
  ((int32_t *)dm_tensor_data(w->out[1]))[b] = info;
  char *y = nth(w, w->out[0], count, b);
  for (int64_t i = 0; info > 0 && i < count; i++) set(w, y, i, (double)NAN);
  return info > 0;
}

/* Fails unless all elements are finite: with NaN or infinities some LAPACKs iterate
   forever or end the program. */
static bool all_finite(Work *w, int64_t b, const void *a, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    if (!isfinite(value(w, a, i))) {
      w->st = dm_fail(DM_EARG, "%s: %s holds NaN or an infinity", DM_LINALG(w->c), WHICH(w, b));
      return false;
    }
  return true;
}

/* Fails the call when an iteration did not converge (info > 0). */
static void must_converge(Work *w, int64_t b, int info, const char *what) {
  if (info > 0)
    w->st = dm_fail(DM_EARG, "%s: the %s values of %s did not converge (LAPACK's info %d)",
                    DM_LINALG(w->c), what, WHICH(w, b), info);
}

/* ---- LU: inv, solve, lu_factor, det ---- */

/* A^-1 by getrf and getri. */
dm_status linalg_inv_any(dm_Call *c) {
  Work w;
  open_own(&w, c);
  const int n = rows_of(&w);
  const int64_t count = (int64_t)n * n, n_work = (int64_t)n * DM_LAPACK_BLOCK;
  void *a = matrix_buffer(&w, n, n), *work = elements(&w, n_work);
  int *pivots = ints(&w, n);
  for (int64_t b = 0; going(&w, b); b++) {
    turn(&w, a, nth(&w, w.in[0], count, b), n, n);
    const int info = n > 0 ? dm_lapack_getrf(w.t, n, n, a, pivots) : 0;
    if (noted(&w, b, info, count) || n == 0) continue;
    if (singular(&w, b, info, "pivot")) break;
    dm_lapack_getri(w.t, n, a, pivots, work, (int)n_work);
    turn(&w, nth(&w, w.out[0], count, b), a, n, n);
  }
  return close_work(&w);
}

/* A X = B by getrf and getrs, for B (..., N, K) with broadcast leading dims. */
dm_status solve_matrices_any(dm_Call *c) {
  Work w;
  open_work(&w, c, 2, c->out[0]->ndim - 2, c->out[0]->shape);
  const int n = rows_of(&w), k = w.st == DM_OK ? (int)dm_columns(w.in[1]) : 0;
  void *a = matrix_buffer(&w, n, n), *x = matrix_buffer(&w, n, k);
  int *pivots = ints(&w, n);
  for (int64_t b = 0; going(&w, b) && n > 0; b++) {
    turn(&w, a, nth(&w, w.in[0], (int64_t)n * n, b), n, n);
    turn(&w, x, nth(&w, w.in[1], (int64_t)n * k, b), n, k);
    if (singular(&w, b, dm_lapack_getrf(w.t, n, n, a, pivots), "pivot")) break;
    if (k > 0) dm_lapack_getrs(w.t, n, k, a, pivots, x);
    turn(&w, nth(&w, w.out[0], (int64_t)n * k, b), x, k, n);
  }
  return close_work(&w);
}

/* Compact LU (M, N) and pivots (min(M, N)), which count from 1 as in LAPACK and
   PyTorch. */
dm_status linalg_lu_factor_any(dm_Call *c) {
  Work w;
  open_own(&w, c);
  const int m = rows_of(&w), n = columns_of(&w), k = m < n ? m : n;
  void *a = matrix_buffer(&w, m, n);
  for (int64_t b = 0; going(&w, b) && k > 0; b++) {
    turn(&w, a, nth(&w, w.in[0], (int64_t)m * n, b), m, n);
    dm_lapack_getrf(w.t, m, n, a, (int *)dm_tensor_data(w.out[1]) + b * k);
    turn(&w, nth(&w, w.out[0], (int64_t)m * n, b), a, n, m);
  }
  return close_work(&w);
}

/* L D L^T by sytrf, which packs L and D into the lower triangle; the upper one stays as it is,
   as in PyTorch. */
dm_status linalg_ldl_factor_ex_any(dm_Call *c) {
  Work w;
  open_own(&w, c);
  const int n = rows_of(&w);
  const int64_t count = (int64_t)n * n, n_work = (int64_t)n * DM_LAPACK_BLOCK;
  void *a = matrix_buffer(&w, n, n), *work = elements(&w, n_work);
  for (int64_t b = 0; going(&w, b); b++) {
    int *const pivots = (int *)dm_tensor_data(w.out[1]) + b * n;
    turn(&w, a, nth(&w, w.in[0], count, b), n, n);
    ((int32_t *)dm_tensor_data(w.out[2]))[b] =
        n > 0 ? dm_lapack_sytrf(w.t, 'L', n, a, pivots, work, (int)n_work) : 0;
    for (int64_t j = 0; j < n; j++)
      for (int64_t i = 0; i < j; i++) set(&w, a, j * n + i, 0);
    turn(&w, nth(&w, w.out[0], count, b), a, n, n);
  }
  return close_work(&w);
}
/* in[2]: LAPACK's pivots (..., n), dense and for as many matrices as the result has; each is
   the number of a row, from 1, or less than 0 for a block of two. */
dm_status ldl_solve_matrices_any(dm_Call *c) {
  Work w;
  open_work(&w, c, 2, c->out[0]->ndim - 2, c->out[0]->shape);
  const int n = rows_of(&w), k = w.st == DM_OK ? (int)dm_columns(w.in[1]) : 0;
  void *a = matrix_buffer(&w, n, n), *x = matrix_buffer(&w, n, k);
  dm_Tensor *host = NULL;
  if (w.st == DM_OK) w.st = dm_tensor_on_host(c->in[2], &host);
  const int32_t *p = host ? dm_tensor_data(host) : NULL;
  for (int64_t i = 0; w.st == DM_OK && i < host->numel; i++)
    if (p[i] == 0 || p[i] > n || p[i] < -n)
      w.st = dm_fail(DM_EARG, "linalg.ldl_solve: a pivot is %d, wanted 1 to %d or -%d to -1",
                     (int)p[i], n, n);
  for (int64_t b = 0; going(&w, b) && n > 0 && k > 0; b++) {
    turn(&w, a, nth(&w, w.in[0], (int64_t)n * n, b), n, n);
    turn(&w, x, nth(&w, w.in[1], (int64_t)n * k, b), n, k);
    dm_lapack_sytrs(w.t, 'L', n, k, a, p + b * n, x);
    turn(&w, nth(&w, w.out[0], (int64_t)n * k, b), x, k, n);
  }
  dm_tensor_unref(&host);
  return close_work(&w);
}

/* det or slogdet from the LU factors: the product of U's diagonal, negated for every
   row exchange. The matrix is not transposed, because det(A^T) = det(A). */
dm_status linalg_det_any(dm_Call *c) {
  Work w;
  open_own(&w, c);
  const int n = rows_of(&w);
  void *a = matrix_buffer(&w, n, n);
  int *pivots = ints(&w, n);
  for (int64_t b = 0; going(&w, b); b++) {
    double sign = 1, product = 1, sum = 0;
    copy_matrix(&w, a, nth(&w, w.in[0], (int64_t)n * n, b), (int64_t)n * n);
    if (n > 0) dm_lapack_getrf(w.t, n, n, a, pivots);
    for (int i = 0; i < n; i++) {
      const double u = value(&w, a, (int64_t)i * n + i);
      const bool swapped = pivots[i] != i + 1;
      product *= swapped ? -u : u;
      sum += log(fabs(u));
      sign *= u == 0 ? 0 : u != u ? u : (u < 0) != swapped ? -1 : 1;
    }
    set(&w, dm_tensor_data(w.out[0]), b, c->n_out > 1 ? sign : product);
    if (c->n_out > 1) set(&w, dm_tensor_data(w.out[1]), b, sum);
  }
  return close_work(&w);
}

/* Turns pivots (k) into an order of rows (n): row i of P A is row order[i] of A;
   with `back` row i of A is row order[i] of P A, up to the base. Pivots are row
   exchanges, applied one after another, or in reverse order for `back`. */
static dm_status order_rows(const dm_Call *c, const dm_Tensor *pivots, dm_Tensor *order) {
  const dm_LuOrderAttr *a = DM_ATTR(dm_LuOrderAttr, c);
  const int64_t k = dm_columns(pivots), n = a->n;
  const int64_t n_batch = order->numel > 0 ? dm_numel(pivots->ndim - 1, pivots->shape) : 0;
  for (int64_t b = 0; b < n_batch; b++) {
    const int32_t *p = (const int32_t *)dm_tensor_data(pivots) + b * k;
    int64_t *o = (int64_t *)dm_tensor_data(order) + b * n;
    for (int64_t i = 0; i < n; i++) o[i] = i + c->base;
    for (int64_t s = 0; s < k; s++) {
      const int64_t i = a->back ? k - 1 - s : s, j = p[i] - 1;
      if (j < 0 || j >= n)
        return dm_fail(DM_EARG, "linalg.lu_solve: a pivot is %d, wanted 1 to %lld", (int)p[i],
                       (long long)n);
      const int64_t o_i = o[i];
      o[i] = o[j];
      o[j] = o_i;
    }
  }
  return DM_OK;
}
dm_status lu_order_any(dm_Call *c) { return dm_run_on_host(c, DM_I32, order_rows); }

/* ---- triangles ---- */

/* A = L L^T by potrf. The row-major lower triangle is LAPACK's upper one, and its
   factor U = L^T is L in row-major order, so nothing is transposed. The other
   triangle is set to 0. */
dm_status linalg_cholesky_any(dm_Call *c) {
  const bool upper = DM_ATTR(dm_CholeskyAttr, c)->upper;
  Work w;
  open_own(&w, c);
  const int n = rows_of(&w);
  for (int64_t b = 0; going(&w, b); b++) {
    char *a = nth(&w, w.out[0], (int64_t)n * n, b);
    copy_matrix(&w, a, nth(&w, w.in[0], (int64_t)n * n, b), (int64_t)n * n);
    const int info = n > 0 ? dm_lapack_potrf(w.t, upper ? 'L' : 'U', n, a) : 0;
    if (noted(&w, b, info, (int64_t)n * n)) continue;
    if (info > 0)
      w.st = dm_fail(DM_EARG, "%s: %s is not positive definite: pivot %d is not above 0",
                     DM_LINALG(c), WHICH(&w, b), info - 1 + c->base);
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = upper ? 0 : i + 1; j < (upper ? i : n); j++) set(&w, a, i * n + j, 0);
  }
  return close_work(&w);
}

/* A X = B for `cols` columns, X in B's stead and row-major; element (i, j) of A, of which one
   triangle is read, is a[i * down + j * right]. */
typedef struct Triangle {
  int64_t n, down, right;
  bool upper, unit;
} Triangle;

/* Rows lo .. hi - 1 of X once the others that they depend on are subtracted. */
#define SOLVE_ROWS(NAME, TYPE)                                                             \
  static void NAME(const Triangle *t, const TYPE *a, int64_t lo, int64_t hi, int64_t cols, \
                   TYPE *x) {                                                              \
    for (int64_t i = 0; i < hi - lo; i++) {                                                \
      const int64_t r = t->upper ? hi - 1 - i : lo + i;                                    \
      const TYPE *of = a + r * t->down, by = of[r * t->right];                             \
      TYPE *DM_RESTRICT row = x + r * cols;                                                \
      for (int64_t k = 0; k < i; k++) {                                                    \
        const int64_t s = t->upper ? hi - 1 - k : lo + k;                                  \
        const TYPE *DM_RESTRICT done = x + s * cols, f = of[s * t->right];                 \
        for (int64_t c = 0; c < cols; c++) row[c] -= f * done[c];                          \
      }                                                                                    \
      for (int64_t c = 0; c < cols && !t->unit; c++) row[c] /= by;                         \
    }                                                                                      \
  }
SOLVE_ROWS(solve_rows_f32, float)
SOLVE_ROWS(solve_rows_f64, double)
#undef SOLVE_ROWS

/* Blocks of rows, from those that depend on no others on; products subtract the rows that are
   done. A k in info says that the k-th diagonal element is 0. */
static dm_status solve_triangle(dm_DType t, const Triangle *at, const void *a, int64_t cols,
                                void *x, int *info) {
  enum { BLOCK = 32 };
  const int64_t n = at->n, size = dm_dtype_size(t), diagonal = at->down + at->right;
  *info = 0;
  for (int64_t i = 0; i < n && !at->unit && *info == 0; i++)
    if (t == DM_F64 ? ((const double *)a)[i * diagonal] == 0
                    : ((const float *)a)[i * diagonal] == 0)
      *info = (int)i + 1;
  for (int64_t done = 0, m; done < n && *info == 0; done += m) {
    m = dm_min_i64(BLOCK, n - done);
    const int64_t lo = at->upper ? n - done - m : done, from = at->upper ? lo + m : 0;
    const dm_Mat known = {(char *)x + from * cols * size, t, cols, 1};
    const dm_Mat factor = {(const char *)a + (lo * at->down + from * at->right) * size, t,
                           at->down, at->right};
    if (done > 0)
      DM_TRY(dm_gemm(m, cols, done, -1, factor, known, 1, (char *)x + lo * cols * size, t, cols,
                     NULL, t, DM_BIAS_NONE));
    if (t == DM_F64) solve_rows_f64(at, a, lo, lo + m, cols, x);
    else solve_rows_f32(at, a, lo, lo + m, cols, x);
  }
  return DM_OK;
}

/* A X = B or X A = B. From the right, X A = B is A^T X^T = B^T. Few columns go to trtrs, which
   sees A^T with the other triangle and solves with its transpose ('T'), and sees B^T for B; a
   reference LAPACK takes many times as long as a product for many columns. */
dm_status linalg_solve_triangular_any(dm_Call *c) {
  enum { FEW = 8 };
  const dm_TriangularAttr *at = DM_ATTR(dm_TriangularAttr, c);
  Work w;
  open_work(&w, c, 2, c->out[0]->ndim - 2, c->out[0]->shape);
  const int n = rows_of(&w);
  const int64_t count = w.st == DM_OK ? dm_rows(w.in[1]) * dm_columns(w.in[1]) : 0;
  const int k = n > 0 ? (int)(count / n) : 0;
  const bool few = k < FEW, turned = few == at->left;
  const Triangle own = {n, at->left ? n : 1, at->left ? 1 : n, at->upper == at->left,
                        at->unitriangular};
  void *x = turned ? matrix_buffer(&w, n, k) : NULL;
  for (int64_t b = 0; going(&w, b) && count > 0; b++) {
    const char *from = nth(&w, w.in[1], count, b), *a = nth(&w, w.in[0], (int64_t)n * n, b);
    char *to = nth(&w, w.out[0], count, b);
    void *const v = turned ? x : to;
    int info = 0;
    if (!turned) copy_matrix(&w, v, from, count);
    else if (at->left) turn(&w, v, from, n, k);
    else turn(&w, v, from, k, n);
    if (few)
      info = dm_lapack_trtrs(w.t, at->upper ? 'L' : 'U', at->left ? 'T' : 'N',
                             at->unitriangular ? 'U' : 'N', n, k, a, v);
    else w.st = solve_triangle(w.t, &own, a, k, v, &info);
    if (w.st != DM_OK || singular(&w, b, info, "diagonal element")) break;
    if (turned && at->left) turn(&w, to, v, k, n);
    else if (turned) turn(&w, to, v, n, k);
  }
  return close_work(&w);
}

/* ---- orthogonal factors ---- */

/* Writes R (rows, n), row-major, from the upper triangle of the column-major a (m,
   n); the rest is 0. */
static void take_r(const Work *w, char *r, const void *a, int64_t m, int64_t rows, int64_t n) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < n; j++)
      set(w, r, i * n + j, i <= j && i < m ? value(w, a, j * m + i) : 0);
}

dm_status geqrf_any(dm_Call *c) {
  Work w;
  open_own(&w, c);
  const int m = rows_of(&w), n = columns_of(&w), k = m < n ? m : n;
  const int64_t n_work = (int64_t)DM_LAPACK_BLOCK * (n + 1);
  void *a = matrix_buffer(&w, m, n), *work = elements(&w, n_work);
  for (int64_t b = 0; going(&w, b) && k > 0; b++) {
    turn(&w, a, nth(&w, w.in[0], (int64_t)m * n, b), m, n);
    dm_lapack_geqrf(w.t, m, n, a, nth(&w, w.out[1], k, b), work, (int)n_work);
    turn(&w, nth(&w, w.out[0], (int64_t)m * n, b), a, n, m);
  }
  return close_work(&w);
}
/* geqrf, then R from its upper triangle and, unless mode is "r", Q (M, q) by orgqr. */
dm_status linalg_qr_any(dm_Call *c) {
  const int64_t mode = DM_ATTR(dm_LinalgQrAttr, c)->mode;
  Work w;
  open_own(&w, c);
  const int m = rows_of(&w), n = columns_of(&w), k = m < n ? m : n;
  const int q = mode == DM_QR_COMPLETE ? m : k, wide = q > n ? q : n;
  const int64_t n_work = (int64_t)DM_LAPACK_BLOCK * (wide + 1);
  void *a = matrix_buffer(&w, m, wide), *tau = elements(&w, k), *work = elements(&w, n_work);
  for (int64_t b = 0; going(&w, b) && m > 0; b++) {
    turn(&w, a, nth(&w, w.in[0], (int64_t)m * n, b), m, n);
    if (k > 0) dm_lapack_geqrf(w.t, m, n, a, tau, work, (int)n_work);
    take_r(&w, nth(&w, w.out[1], (int64_t)q * n, b), a, m, q, n);
    if (mode == DM_QR_R || q == 0) continue;
    dm_lapack_orgqr(w.t, m, q, k, a, tau, work, (int)n_work);
    turn(&w, nth(&w, w.out[0], (int64_t)m * q, b), a, q, m);
  }
  return close_work(&w);
}

/* ---- singular values ---- */

/* The identity (n, n): U and V of an empty matrix with full_matrices. */
static void set_eye(const Work *w, char *p, int64_t n) {
  for (int64_t i = 0; i < n * n; i++) set(w, p, i, i % (n + 1) == 0);
}

/* Buffers for gesdd of the transposes of (m, n) matrices; k = min(m, n). job: 'N'
   values only, 'S' the first k vectors, 'A' all. */
typedef struct Svd {
  int m, n, k, n_work;
  void *a, *work;
  int *ints;
  char job;
} Svd;

/* Allocates the buffers of gesdd for operand 0. */
static Svd open_svd(Work *w, char job) {
  Svd s = {.m = rows_of(w), .n = columns_of(w), .job = job};
  s.k = s.m < s.n ? s.m : s.n;
  const int64_t n_work = dm_lapack_gesdd_work_size(job, s.m, s.n);
  s.a = matrix_buffer(w, s.m, s.n);
  s.work = elements(w, n_work);
  s.ints = ints(w, dm_lapack_gesdd_ints(s.m, s.n));
  s.n_work = (int)n_work;
  return s;
}

/* gesdd of A^T = V S U^T: its left factor V, column-major, is V^T row-major, and its
   right factor U^T, column-major, is U row-major. Nothing is transposed. */
static void run_svd(Work *w, Svd *s, int64_t b, void *u, void *values, void *vh) {
  const char *a = nth(w, w->in[0], (int64_t)s->m * s->n, b);
  if (!all_finite(w, b, a, (int64_t)s->m * s->n)) return;
  copy_matrix(w, s->a, a, (int64_t)s->m * s->n);
  const int lead = s->job == 'A' ? s->m : s->k;
  const int info = dm_lapack_gesdd(w->t, s->job, s->n, s->m, s->a, values, vh, s->n, u, lead,
                                   s->work, s->n_work, s->ints);
  must_converge(w, b, info, "singular");
}

/* A (..., M, N) -> U, s, V^T. A matrix without elements has identities as U and V
   with full_matrices. */
dm_status linalg_svd_any(dm_Call *c) {
  const bool full = DM_ATTR(dm_LinalgSvdAttr, c)->full_matrices;
  Work w;
  open_own(&w, c);
  Svd s = open_svd(&w, full ? 'A' : 'S');
  const int64_t n_u = (int64_t)s.m * (full ? s.m : s.k),
                n_v = (int64_t)s.n * (full ? s.n : s.k);
  for (int64_t b = 0; going(&w, b); b++) {
    char *u = nth(&w, w.out[0], n_u, b), *vh = nth(&w, w.out[2], n_v, b);
    if (s.k > 0) run_svd(&w, &s, b, u, nth(&w, w.out[1], s.k, b), vh);
    else if (full) {
      set_eye(&w, u, s.m);
      set_eye(&w, vh, s.n);
    }
  }
  return close_work(&w);
}

dm_status linalg_svdvals_any(dm_Call *c) {
  Work w;
  open_own(&w, c);
  Svd s = open_svd(&w, 'N');
  for (int64_t b = 0; going(&w, b) && s.k > 0; b++)
    run_svd(&w, &s, b, s.a, nth(&w, w.out[0], s.k, b), s.a);
  return close_work(&w);
}

/* The tolerance t on the host, float64, one number for each matrix. */
static dm_Tensor *tolerance(Work *w, dm_Tensor *t) {
  dm_Tensor *near = NULL, *out = NULL;
  const dm_Tensor *a = w->c->in[0];
  if (w->st == DM_OK) w->st = dm_tensor_on_host(t, &near);
  if (w->st == DM_OK) w->st = dm_dense_as_new(near, DM_F64, a->ndim - 2, a->shape, &out);
  dm_tensor_unref(&near);
  return out;
}

/* pinv(A) = V S^+ U^T by SVD and gemm; singular values at or below the tolerance
   max(atol, rtol max(s)) count as 0. */
dm_status pinv_matrices_any(dm_Call *c) {
  Work w;
  open_own(&w, c);
  dm_Tensor *atol = tolerance(&w, c->in[1]), *rtol = tolerance(&w, c->in[2]);
  Svd s = open_svd(&w, 'S');
  void *u = matrix_buffer(&w, s.m, s.k), *vh = matrix_buffer(&w, s.k, s.n + 1);
  for (int64_t b = 0; going(&w, b) && s.k > 0; b++) {
    char *values = (char *)vh + (int64_t)s.k * s.n * w.size;
    run_svd(&w, &s, b, u, values, vh);
    if (w.st != DM_OK) break;
    const double least = fmax(((const double *)dm_tensor_data(atol))[b],
                              ((const double *)dm_tensor_data(rtol))[b] * value(&w, values, 0));
    for (int64_t i = 0; i < s.k; i++) {
      const double v = value(&w, values, i);
      for (int64_t j = i * s.n; j < (i + 1) * s.n; j++)
        set(&w, vh, j, v > least ? value(&w, vh, j) / v : 0);
    }
    w.st = dm_gemm(s.n, s.m, s.k, 1, (dm_Mat){vh, w.t, 1, s.n}, (dm_Mat){u, w.t, 1, s.k}, 0,
                   nth(&w, w.out[0], (int64_t)s.n * s.m, b), w.t, s.m, NULL, w.t, DM_BIAS_NONE);
  }
  dm_tensor_unref(&atol);
  dm_tensor_unref(&rtol);
  return close_work(&w);
}

/* ---- least squares ---- */

/* The number of A's matrix that matrix b of the result has, where A's batch was broadcast. */
static int64_t own_matrix(const dm_Call *c, int64_t b) {
  const dm_Tensor *a = c->in[0], *y = c->out[0];
  int64_t at = 0, step = 1;
  for (int d = y->ndim - 3, k = a->ndim - 3; k >= 0; d--, k--) {
    if (a->shape[k] > 1) at += b % y->shape[d] * step;
    b /= y->shape[d];
    step *= a->shape[k];
  }
  return at;
}

/* A (..., M, N), B (..., M, K) -> X (..., N, K), and of each of A's matrices its rank (int32;
   0 of gels, which assumes a full one) and gelsd's singular values; zeros where a routine finds
   none. LAPACK asks for a right side: there is one of zeros where K is 0. */
dm_status lstsq_matrices_any(dm_Call *c) {
  const dm_LstsqMatricesAttr *at = DM_ATTR(dm_LstsqMatricesAttr, c);
  Work w;
  open_work(&w, c, 2, c->out[0]->ndim - 2, c->out[0]->shape);
  const int m = rows_of(&w), n = columns_of(&w), least = m < n ? m : n, most = m > n ? m : n;
  const int k = w.st == DM_OK ? (int)dm_columns(w.in[1]) : 0, sides = k > 1 ? k : 1;
  const int64_t n_work = dm_lapack_lstsq_work_size(m, n, sides),
                n_ints = dm_lapack_lstsq_ints(m, n);
  void *a = matrix_buffer(&w, m, n), *x = matrix_buffer(&w, most, sides);
  void *s = elements(&w, least), *work = elements(&w, n_work);
  int *iwork = ints(&w, n_ints);
  for (int i = 0; i < 3 && w.st == DM_OK; i += 2)
    if (w.out[i]->numel > 0)
      memset(dm_tensor_data(w.out[i]), 0, (size_t)dm_tensor_bytes(w.out[i]));
  for (int64_t b = 0; going(&w, b) && least > 0; b++) {
    const char *given = nth(&w, w.in[0], (int64_t)m * n, b);
    const char *right = nth(&w, w.in[1], (int64_t)m * k, b);
    if (!all_finite(&w, b, given, (int64_t)m * n) || !all_finite(&w, b, right, (int64_t)m * k))
      break;
    int rank = 0, info = 0;
    turn(&w, a, given, m, n);
    memset(x, 0, (size_t)((int64_t)most * sides * w.size));
    turn_part(&w, x, most, right, k, m, k);
    switch (at->driver) {
    case DM_LSTSQ_GELS:
      info = dm_lapack_gels(w.t, m, n, sides, a, x, work, (int)n_work);
      if (info > 0)
        w.st = dm_fail(DM_EARG, "%s: %s has not full rank; hint: driver = \"gelsd\"",
                       DM_LINALG(c), WHICH(&w, b));
      break;
    case DM_LSTSQ_GELSY:
      memset(iwork, 0, (size_t)n * sizeof *iwork);
      dm_lapack_gelsy(w.t, m, n, sides, a, x, iwork, at->rcond, &rank, work, (int)n_work);
      break;
    default:
      info = dm_lapack_gelsd(w.t, m, n, sides, a, x, s, at->rcond, &rank, work, (int)n_work,
                             iwork);
      must_converge(&w, b, info, "singular");
      copy_matrix(&w, nth(&w, w.out[2], least, own_matrix(c, b)), s, least);
    }
    ((int32_t *)dm_tensor_data(w.out[1]))[own_matrix(c, b)] = rank;
    turn_part(&w, nth(&w, w.out[0], (int64_t)n * k, b), k, x, most, k, n);
  }
  return close_work(&w);
}

/* ---- eigenvalues ---- */

/* Eigenvalues w (ascending) and, for job 'V', eigenvectors of symmetric matrices by
   syevd. The triangle that is read is, row-major, LAPACK's other one; the vectors
   are transposed to columns. */
static dm_status eigen(dm_Call *c, char job) {
  const bool upper = DM_ATTR(dm_UploAttr, c)->UPLO;
  Work w;
  open_own(&w, c);
  const int n = rows_of(&w);
  const int64_t n_work = dm_lapack_syevd_work_size(job, n),
                n_ints = dm_lapack_syevd_ints(job, n);
  void *a = matrix_buffer(&w, n, n), *work = elements(&w, n_work);
  int *iwork = ints(&w, n_ints);
  for (int64_t b = 0; going(&w, b) && n > 0; b++) {
    copy_matrix(&w, a, nth(&w, w.in[0], (int64_t)n * n, b), (int64_t)n * n);
    if (!all_finite(&w, b, a, (int64_t)n * n)) break;
    const int info = dm_lapack_syevd(w.t, job, upper ? 'L' : 'U', n, a, nth(&w, w.out[0], n, b),
                                     work, (int)n_work, iwork, (int)n_ints);
    must_converge(&w, b, info, "eigen");
    if (job == 'V') turn(&w, nth(&w, w.out[1], (int64_t)n * n, b), a, n, n);
  }
  return close_work(&w);
}
dm_status linalg_eigh_any(dm_Call *c) { return eigen(c, 'V'); }
dm_status linalg_eigvalsh_any(dm_Call *c) { return eigen(c, 'N'); }
