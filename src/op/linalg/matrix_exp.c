/* The exponential of square matrices by scaling and squaring, on the host in
   float64: A is divided by 2^s until its norm is at most 1/2, e^A is a Taylor
   polynomial of degree 16, evaluated with four matrix powers (Paterson & Stockmeyer
   1973), and the result is squared s times. */
#include <math.h>

#include "base/alloc.h"
#include "base/error.h"
#include "cpu/gemm.h"
#include "cpu/vec.h"
#include "op/index/index.h"
#include "op/linalg/linalg.h"
#include "op/pointwise/pointwise.h"

/* For norms up to 1/2 the remainder of degree 16 is 0.5^17 / 17!, about 2e-20. */
enum { DEGREE = 16, STEP = 4, N_SCRATCH = 5 };

/* y = a b for (n, n) float64 matrices. */
static dm_status multiply(const double *a, const double *b, double *y, int64_t n) {
  return dm_gemm(n, n, n, 1, (dm_Mat){a, DM_F64, n, 1}, (dm_Mat){b, DM_F64, n, 1}, 0, y, DM_F64,
                 n, NULL, DM_F64, DM_BIAS_NONE);
}

/* The inf-norm: the largest row sum of |a|; NaN if a holds one. */
static double norm_of(const double *a, int64_t n) {
  double norm = 0;
  for (int64_t i = 0; i < n; i++) {
    double sum = 0;
    for (int64_t j = 0; j < n; j++) sum += fabs(a[i * n + j]);
    if (!(sum <= norm)) norm = sum;
  }
  return norm;
}

/* y += sum over p < 4 of A^p / (k + p)!; power[i] is A^i, i from 1. */
static void add_terms(double *y, double *const *power, int k, int64_t n) {
  double by = 1;
  for (int i = 2; i <= k; i++) by /= i;
  for (int64_t i = 0; i < n; i++) y[i * n + i] += by;
  for (int p = 1; p < STEP; p++) {
    by /= k + p;
    for (int64_t i = 0; i < n * n; i++) y[i] += by * power[p][i];
  }
}

/* Replaces a (n, n) by e^a; scratch holds N_SCRATCH matrices. A norm that is not
   finite gives NaN. The polynomial is a Horner scheme in A^4 with four terms per
   step. */
static dm_status exponentiate(double *a, double *scratch, int64_t n) {
  const int64_t count = n * n;
  const double norm = norm_of(a, n);
  if (!isfinite(norm)) {
    for (int64_t i = 0; i < count; i++) a[i] = (double)NAN;
    return DM_OK;
  }
  const int halved = norm > 0.5 ? ilogb(norm) + 2 : 0;
  for (int64_t i = 0; i < count; i++) a[i] = ldexp(a[i], -halved);
  double *power[STEP + 1] = {NULL, a}, *y = scratch, *other = scratch + count, by = 1;
  for (int p = 2; p <= STEP; p++) {
    power[p] = scratch + p * count;
    DM_TRY(multiply(power[p - 1], a, power[p], n));
  }
  for (int i = 2; i <= DEGREE; i++) by /= i;
  for (int64_t i = 0; i < count; i++) y[i] = by * power[STEP][i];
  for (int k = DEGREE - STEP; k >= 0; k -= STEP) {
    add_terms(y, power, k, n);
    if (k > 0) DM_TRY(multiply(y, power[STEP], other, n));
    double *next = k > 0 ? other : y;
    other = k > 0 ? y : other;
    y = next;
  }
  for (int i = 0; i < halved; i++) {
    DM_TRY(multiply(y, y, other, n));
    double *next = other;
    other = y;
    y = next;
  }
  for (int64_t i = 0; i < count; i++) a[i] = y[i];
  return DM_OK;
}

/* e^x for every matrix of the contiguous x. */
static dm_status run(const dm_Call *c, const dm_Tensor *x, dm_Tensor *y) {
  DM_UNUSED(c);
  const int64_t n = dm_columns(x), count = n * n;
  double *scratch = dm_alloc((int64_t)sizeof *scratch * dm_max_i64((N_SCRATCH + 1) * count, 1));
  dm_status st = scratch ? DM_OK : dm_fail(DM_EMEM, "linalg.matrix_exp: out of memory");
  for (int64_t at = 0; at < x->numel && st == DM_OK; at += count) {
    double *a = scratch + N_SCRATCH * count;
    const int64_t bytes = at * dm_dtype_size((dm_DType)x->dtype);
    dm_load_f64((dm_DType)x->dtype, (const char *)dm_tensor_data(x) + bytes, 1, count, a);
    st = exponentiate(a, scratch, n);
    dm_store_f64((dm_DType)y->dtype, (char *)dm_tensor_data(y) + bytes, 1, count, a);
  }
  dm_free(scratch);
  return st;
}

dm_status linalg_matrix_exp_any(dm_Call *c) {
  return dm_run_on_host(c, (dm_DType)c->in[0]->dtype, run);
}

/* gA is the upper right block of exp([A^T, gY; 0, A^T]) (Van Loan 1978). */
void linalg_matrix_exp_grad(dm_Grad *g) {
  dm_X *x = g->x;
  const int64_t n = dm_columns(g->in[0]), columns = -1, rows = -2;
  dm_Tensor *a = x_turned(x, g->in[0]);
  if (!a) return;
  dm_Tensor *above = dm_x(x, DM_OP_cat, &columns, 2, a, g->gy[0]);
  dm_Tensor *below = dm_x(x, DM_OP_cat, &columns, 2, x_zeros_like(x, a), a);
  dm_Tensor *both = dm_x(x, DM_OP_cat, &rows, 2, above, below);
  dm_Tensor *y = dm_x(x, DM_OP_linalg_matrix_exp, NULL, 1, both);
  y = dm_x(x, DM_OP_narrow, &(int64_t[3]){-2, 0, n}, 1, y);
  g->gx[0] = dm_x(x, DM_OP_narrow, &(int64_t[3]){-1, n, n}, 1, y);
}

dm_status matrix_exp_compose(dm_Call *c, dm_X *x) {
  c->out[0] = dm_x(x, DM_OP_linalg_matrix_exp, NULL, 1, c->in[0]);
  return x->st;
}
