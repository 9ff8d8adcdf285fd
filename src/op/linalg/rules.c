/* The rules of dm.linalg's factorizations: checks of the operands and shapes of the
   results. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "op/linalg/linalg.h"

const char *dm_linalg_name(const dm_OpInfo *op, char buf[40]) {
  const bool hidden = op->flags & F_HIDDEN, own = strncmp(op->name, "linalg_", 7) == 0;
  if (hidden) /* NAME_matrices is the inner op of linalg.NAME */
    snprintf(buf, 40, "linalg.%.*s", (int)(strlen(op->name) - strlen("_matrices")), op->name);
  else if (own) snprintf(buf, 40, "linalg.%s", op->name + sizeof "linalg");
  else snprintf(buf, 40, "%s", op->name);
  return buf;
}

/* ---- rules ---- */

dm_status dm_check_matrix(const dm_Call *c, const char *what, const dm_Tensor *t, bool square) {
  if (t->dtype != DM_F32 && t->dtype != DM_F64)
    return dm_fail(DM_EARG, "%s: %s is %s, wanted float32 or float64; hint: x:to(\"float32\")",
                   DM_LINALG(c), what, dm_dtype_name((dm_DType)t->dtype));
  if (t->ndim >= 2 && (!square || dm_rows(t) == dm_columns(t))) return DM_OK;
  return dm_fail(DM_EARG, "%s: %s has shape %s, wanted %s", DM_LINALG(c), what, DM_SHAPE(t),
                 square ? "square matrices {..., n, n}" : "matrices {..., m, n}");
}

void dm_out_matrix(dm_Call *c, int i, const dm_Tensor *t, int drop, int64_t rows, int64_t cols,
                   dm_DType dtype) {
  dm_Meta *m = &c->out_meta[i];
  dm_out_like(c, i, t, dtype);
  m->ndim = (uint8_t)(t->ndim - drop);
  if (rows >= 0) m->shape[m->ndim++] = rows;
  if (cols >= 0) m->shape[m->ndim++] = cols;
}

static dm_status square_rule(dm_Call *c) { return dm_check_matrix(c, "A", c->in[0], true); }

dm_status linalg_inv_rule(dm_Call *c) {
  DM_TRY(square_rule(c));
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  return DM_OK;
}

/* The same with a second output: LAPACK's info as int32 for each matrix. */
dm_status linalg_inv_ex_rule(dm_Call *c) {
  DM_TRY(linalg_inv_rule(c));
  dm_out_matrix(c, 1, c->in[0], 2, -1, -1, DM_I32);
  return DM_OK;
}

/* A (..., N, N) -> one number per matrix; slogdet gives two. */
dm_status linalg_det_rule(dm_Call *c) {
  DM_TRY(square_rule(c));
  for (int i = 0; i < c->n_out; i++)
    dm_out_matrix(c, i, c->in[0], 2, -1, -1, (dm_DType)c->in[0]->dtype);
  return DM_OK;
}

/* A (..., N, N) -> w (..., N) and, for eigh, V (..., N, N). */
dm_status linalg_eigh_rule(dm_Call *c) {
  const dm_Tensor *t = c->in[0];
  DM_TRY(square_rule(c));
  dm_out_matrix(c, 0, t, 2, dm_rows(t), -1, (dm_DType)t->dtype);
  if (c->n_out > 1) dm_out_like(c, 1, t, (dm_DType)t->dtype);
  return DM_OK;
}

/* A (..., M, N) -> LU (..., M, N), pivots (..., min(M, N)) as int32. */
dm_status linalg_lu_factor_rule(dm_Call *c) {
  const dm_Tensor *t = c->in[0];
  if (!DM_ATTR(dm_LuAttr, c)->pivot)
    return dm_fail(DM_EARG, "linalg.lu_factor: without pivots there is none on the CPU; hint: "
                            "leave pivot out");
  DM_TRY(dm_check_matrix(c, "A", t, false));
  dm_out_like(c, 0, t, (dm_DType)t->dtype);
  dm_out_matrix(c, 1, t, 2, dm_min_i64(dm_rows(t), dm_columns(t)), -1, DM_I32);
  return DM_OK;
}

/* A (..., M, N) -> (..., M, N), tau (..., min(M, N)). */
dm_status geqrf_rule(dm_Call *c) {
  const dm_Tensor *t = c->in[0];
  DM_TRY(dm_check_matrix(c, "A", t, false));
  dm_out_like(c, 0, t, (dm_DType)t->dtype);
  dm_out_matrix(c, 1, t, 2, dm_min_i64(dm_rows(t), dm_columns(t)), -1, (dm_DType)t->dtype);
  return DM_OK;
}

/* A (..., N, N) -> LD (..., N, N), pivots (..., N) and info (...) as int32. */
dm_status linalg_ldl_factor_ex_rule(dm_Call *c) {
  const dm_Tensor *t = c->in[0];
  DM_TRY(dm_check_matrix(c, "A", t, true));
  dm_out_like(c, 0, t, (dm_DType)t->dtype);
  dm_out_matrix(c, 1, t, 2, dm_rows(t), -1, DM_I32);
  dm_out_matrix(c, 2, t, 2, -1, -1, DM_I32);
  return DM_OK;
}

/* A (..., M, N) -> Q (..., M, k), R (..., k, N) with k = min(M, N), or M for mode
   "complete"; mode "r" gives an empty Q. */
dm_status linalg_qr_rule(dm_Call *c) {
  const dm_Tensor *t = c->in[0];
  DM_TRY(dm_check_matrix(c, "A", t, false));
  const int64_t m = dm_rows(t), n = dm_columns(t), mode = DM_ATTR(dm_LinalgQrAttr, c)->mode;
  const int64_t k = mode == DM_QR_COMPLETE ? m : dm_min_i64(m, n);
  dm_out_matrix(c, 0, t, mode == DM_QR_R ? t->ndim : 2, mode == DM_QR_R ? 0 : m,
                mode == DM_QR_R ? -1 : k, (dm_DType)t->dtype);
  dm_out_matrix(c, 1, t, 2, k, n, (dm_DType)t->dtype);
  return DM_OK;
}

/* A (..., M, N) -> U (..., M, k), s (..., min(M, N)), V^T (..., k, N) with k =
   min(M, N), or all vectors with full_matrices. */
dm_status linalg_svd_rule(dm_Call *c) {
  const dm_Tensor *t = c->in[0];
  DM_TRY(dm_check_matrix(c, "A", t, false));
  const int64_t m = dm_rows(t), n = dm_columns(t), k = dm_min_i64(m, n);
  const bool full = DM_ATTR(dm_LinalgSvdAttr, c)->full_matrices;
  dm_out_matrix(c, 0, t, 2, m, full ? m : k, (dm_DType)t->dtype);
  dm_out_matrix(c, 1, t, 2, k, -1, (dm_DType)t->dtype);
  dm_out_matrix(c, 2, t, 2, full ? n : k, n, (dm_DType)t->dtype);
  return DM_OK;
}

/* A (..., M, N) -> s (..., min(M, N)). */
dm_status linalg_svdvals_rule(dm_Call *c) {
  const dm_Tensor *t = c->in[0];
  DM_TRY(dm_check_matrix(c, "A", t, false));
  dm_out_matrix(c, 0, t, 2, dm_min_i64(dm_rows(t), dm_columns(t)), -1, (dm_DType)t->dtype);
  return DM_OK;
}

/* A (..., M, N), and two tolerances of shape (...) or that of one matrix -> (..., N, M). */
dm_status pinv_matrices_rule(dm_Call *c) {
  const dm_Tensor *t = c->in[0];
  DM_TRY(dm_check_matrix(c, "A", t, false));
  for (int i = 1; i < 3; i++) {
    const dm_Tensor *tol = c->in[i];
    const int lead = t->ndim - 2 - tol->ndim;
    bool fits = lead >= 0;
    for (int d = 0; fits && d < tol->ndim; d++)
      fits = tol->shape[d] == 1 || tol->shape[d] == t->shape[lead + d];
    if (!fits)
      return dm_fail(DM_EARG, "linalg.pinv: %s has shape %s, A %s, wanted a number a matrix",
                     i == 1 ? "atol" : "rtol", DM_SHAPE(tol), DM_SHAPE(t));
  }
  dm_out_matrix(c, 0, t, 2, dm_columns(t), dm_rows(t), (dm_DType)t->dtype);
  return DM_OK;
}

/* A system with A, square or not, and B: B's rows (left) or columns fit A, and the leading
   dims broadcast. */
static dm_status system_rule(dm_Call *c, bool square, bool left) {
  dm_Tensor *a = c->in[0], *b = c->in[1];
  DM_TRY(dm_check_matrix(c, "A", a, square));
  DM_TRY(dm_check_matrix(c, "B", b, false));
  if (a->dtype != b->dtype)
    return dm_fail(DM_EARG, "%s: A is %s and B is %s, wanted one dtype", DM_LINALG(c),
                   dm_dtype_name((dm_DType)a->dtype), dm_dtype_name((dm_DType)b->dtype));
  if (dm_rows(a) != (left ? dm_rows(b) : dm_columns(b)))
    return dm_fail(DM_EARG, "%s: A has shape %s and B %s, wanted as many %s as A has rows",
                   DM_LINALG(c), DM_SHAPE(a), DM_SHAPE(b), left ? "rows" : "columns");
  dm_Tensor lead[2] = {*a, *b};
  lead[0].ndim -= 2;
  lead[1].ndim -= 2;
  dm_Meta *m = &c->out_meta[0];
  int ndim;
  dm_meta_set(m, b);
  DM_TRY(dm_broadcast(DM_LINALG(c), &lead[0], &lead[1], &ndim, m->shape));
  m->ndim = (uint8_t)ndim;
  m->shape[m->ndim++] = left ? dm_columns(a) : dm_rows(b);
  m->shape[m->ndim++] = dm_columns(b);
  return DM_OK;
}

dm_status solve_matrices_rule(dm_Call *c) { return system_rule(c, true, true); }
dm_status linalg_solve_triangular_rule(dm_Call *c) {
  return system_rule(c, true, DM_ATTR(dm_TriangularAttr, c)->left);
}

/* A (..., M, N), B (..., M, K) -> X (..., N, K), and of each of A's matrices its rank and its
   min(M, N) singular values. */
dm_status lstsq_matrices_rule(dm_Call *c) {
  const dm_Tensor *a = c->in[0];
  DM_TRY(system_rule(c, false, true));
  dm_out_matrix(c, 1, a, 2, -1, -1, DM_I32);
  dm_out_matrix(c, 2, a, 2, dm_min_i64(dm_rows(a), dm_columns(a)), -1, (dm_DType)a->dtype);
  return DM_OK;
}

/* pivots (..., k) int32 -> the order of n rows (..., n) int64. */
dm_status lu_order_rule(dm_Call *c) {
  const int64_t n = DM_ATTR(dm_LuOrderAttr, c)->n;
  const dm_Tensor *t = c->in[0];
  if (t->dtype != DM_I32 || t->ndim < 1 || dm_columns(t) > n)
    return dm_fail(DM_EARG,
                   "linalg.lu_solve: pivots are %s of shape %s, wanted int32 as lu_factor "
                   "gives them",
                   dm_dtype_name((dm_DType)t->dtype), DM_SHAPE(t));
  dm_out_matrix(c, 0, t, 1, n, -1, DM_I64);
  return DM_OK;
}
