/* cuBLASLt's entry points by plain loops over the operands' memory, for a build
   without a GPU. Calls are held to what the library asks of them: kinds of one
   sort, lines that do not overlap, a workspace and pointers as the algorithm was
   told of.

   DEMILUNE_EMULATED_CUBLASLT_REFUSES=NAME makes one entry point fail, as a library
   that does not know the GPU would. Each heuristic and each product is counted
   under its name. */
#include "cublasLt.h"
#include "internal.h"

#include <stdlib.h>
#include <string.h>

extern "C" {
#include "base/half.h"
}

struct cublasLtContext {
  int device;
};
struct dm_EmulatedDesc {
  int32_t compute, scale, flip_a, flip_b;
  uint32_t epilogue;
  void *bias; /* written by BGRADA and BGRADB, else read */
  int64_t bias_step;
  void *aux;
  int64_t aux_ld;
};
struct dm_EmulatedLayout {
  uint32_t type;
  int32_t order, n_batch;
  uint64_t rows, columns;
  int64_t ld, step;
};
struct dm_EmulatedPreference {
  uint64_t workspace;
  uint32_t scheme, align[4];
};

/* ---- handles ------------------------------------------------------------------ */

static bool is_refused(const char *name) {
  const char *s = getenv("DEMILUNE_EMULATED_CUBLASLT_REFUSES");
  return s && strcmp(s, name) == 0;
}

template <class T> static cublasStatus_t make(T **out, const T &value) {
  *out = (T *)malloc(sizeof value);
  if (!*out) return CUBLAS_STATUS_ALLOC_FAILED;
  **out = value;
  return CUBLAS_STATUS_SUCCESS;
}
template <class T> static cublasStatus_t destroy(T *p) {
  free(p);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
  int device;
  if (is_refused("cublasLtCreate") || cudaGetDevice(&device) != cudaSuccess)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  return make(handle, cublasLtContext{device});
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType scale) {
  return make(desc, dm_EmulatedDesc{compute, scale, CUBLAS_OP_N, CUBLAS_OP_N,
                                    CUBLASLT_EPILOGUE_DEFAULT, nullptr, 0, nullptr, 0});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return destroy(desc); }
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  return make(layout,
              dm_EmulatedLayout{(uint32_t)type, CUBLASLT_ORDER_COL, 1, rows, columns, ld, 0});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return destroy(layout);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
  return make(preference,
              dm_EmulatedPreference{0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy(preference);
}

/* An attribute has one size. */
template <class T> static cublasStatus_t set(T *out, const void *value, size_t n) {
  if (!value || n != sizeof *out) return CUBLAS_STATUS_INVALID_VALUE;
  memcpy(out, value, n);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t what,
                                              const void *value, size_t n) {
  switch (what) {
  case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE: return set(&d->compute, value, n);
  case CUBLASLT_MATMUL_DESC_SCALE_TYPE: return set(&d->scale, value, n);
  case CUBLASLT_MATMUL_DESC_TRANSA: return set(&d->flip_a, value, n);
  case CUBLASLT_MATMUL_DESC_TRANSB: return set(&d->flip_b, value, n);
  case CUBLASLT_MATMUL_DESC_EPILOGUE: return set(&d->epilogue, value, n);
  case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return set(&d->bias, value, n);
  case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE: return set(&d->bias_step, value, n);
  case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return set(&d->aux, value, n);
  case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return set(&d->aux_ld, value, n);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
                                                cublasLtMatrixLayoutAttribute_t what,
                                                const void *value, size_t n) {
  switch (what) {
  case CUBLASLT_MATRIX_LAYOUT_TYPE: return set(&l->type, value, n);
  case CUBLASLT_MATRIX_LAYOUT_ORDER: return set(&l->order, value, n);
  case CUBLASLT_MATRIX_LAYOUT_ROWS: return set(&l->rows, value, n);
  case CUBLASLT_MATRIX_LAYOUT_COLS: return set(&l->columns, value, n);
  case CUBLASLT_MATRIX_LAYOUT_LD: return set(&l->ld, value, n);
  case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return set(&l->n_batch, value, n);
  case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return set(&l->step, value, n);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void *value, size_t n) {
  switch (what) {
  case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return set(&p->workspace, value, n);
  case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return set(&p->scheme, value, n);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return set(&p->align[0], value, n);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return set(&p->align[1], value, n);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return set(&p->align[2], value, n);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return set(&p->align[3], value, n);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

/* ---- supported requests ------------------------------------------------------- */

static size_t size_of(uint32_t type) {
  return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
}
static bool is_half(uint32_t type) { return type == CUDA_R_16F || type == CUDA_R_16BF; }

/* The operands of one call, and its sizes. */
struct LtCall {
  const dm_EmulatedDesc *desc;
  const dm_EmulatedLayout *a, *b, *c, *d;
  uint64_t m, n, k;
  const void *alpha, *beta, *a_data, *b_data, *c_data;
  void *d_data, *workspace;
  uint64_t part; /* bytes of the workspace: the sums of the first half of k; or 0 */
};

static bool lies_well(const dm_EmulatedLayout *l) {
  const uint64_t line = l->order == CUBLASLT_ORDER_COL ? l->rows : l->columns;
  const bool known = l->order == CUBLASLT_ORDER_COL || l->order == CUBLASLT_ORDER_ROW;
  return known && l->rows > 0 && l->columns > 0 && l->ld > 0 && (uint64_t)l->ld >= line &&
         l->n_batch > 0 && l->rows <= INT32_MAX && l->columns <= INT32_MAX;
}

static bool sums_a(const dm_EmulatedDesc *d) { return d->epilogue == CUBLASLT_EPILOGUE_BGRADA; }
static bool sums_b(const dm_EmulatedDesc *d) { return d->epilogue == CUBLASLT_EPILOGUE_BGRADB; }
static bool keeps_before(const dm_EmulatedDesc *d) {
  return (d->epilogue & CUBLASLT_EPILOGUE_GELU_AUX) == CUBLASLT_EPILOGUE_GELU_AUX;
}
/* float64 knows no gelu and no sums */
static bool is_known(uint32_t epilogue, bool wide) {
  switch (epilogue) {
  case CUBLASLT_EPILOGUE_DEFAULT:
  case CUBLASLT_EPILOGUE_BIAS:
  case CUBLASLT_EPILOGUE_RELU:
  case CUBLASLT_EPILOGUE_RELU_BIAS: return true;
  case CUBLASLT_EPILOGUE_GELU:
  case CUBLASLT_EPILOGUE_GELU_BIAS:
  case CUBLASLT_EPILOGUE_GELU_AUX:
  case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
  case CUBLASLT_EPILOGUE_BGRADA:
  case CUBLASLT_EPILOGUE_BGRADB: return !wide && !is_refused("epilogue");
  default: return false;
  }
}

/* A's rows are added up where it goes in as it is, B's columns where it goes in
   transposed, those of more than one element, into results by columns. */
static bool sums_well(const LtCall *x) {
  if (!sums_a(x->desc) && !sums_b(x->desc)) return true;
  const bool right_way =
      sums_a(x->desc) ? x->desc->flip_a == CUBLAS_OP_N : x->desc->flip_b == CUBLAS_OP_T;
  return right_way && x->k > 1 && x->d->order == CUBLASLT_ORDER_COL;
}

static cublasStatus_t check(LtCall *x) {
  const dm_EmulatedLayout *a = x->a, *b = x->b, *c = x->c, *d = x->d;
  if (!lies_well(a) || !lies_well(b) || !lies_well(c) || !lies_well(d))
    return CUBLAS_STATUS_INVALID_VALUE;
  const bool flip_a = x->desc->flip_a != CUBLAS_OP_N, flip_b = x->desc->flip_b != CUBLAS_OP_N;
  x->m = flip_a ? a->columns : a->rows;
  x->k = flip_a ? a->rows : a->columns;
  x->n = flip_b ? b->rows : b->columns;
  if (x->k != (flip_b ? b->columns : b->rows) || d->rows != x->m || d->columns != x->n ||
      c->rows != x->m || c->columns != x->n)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (a->n_batch != d->n_batch || b->n_batch != d->n_batch || c->n_batch != d->n_batch)
    return CUBLAS_STATUS_INVALID_VALUE;
  const bool wide = x->desc->compute == CUBLAS_COMPUTE_64F;
  const uint32_t scale = wide ? CUDA_R_64F : CUDA_R_32F;
  const bool kinds = a->type == b->type && c->type == d->type &&
                     (d->type == a->type || (is_half(a->type) && d->type == CUDA_R_32F)) &&
                     (a->type == CUDA_R_64F) == wide && x->desc->scale == (int32_t)scale;
  if (keeps_before(x->desc) &&
      (x->desc->aux_ld < (int64_t)x->m || x->desc->aux_ld % 8 != 0 || !x->desc->aux))
    return CUBLAS_STATUS_INVALID_VALUE;
  return kinds && is_known(x->desc->epilogue, wide) && sums_well(x)
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_NOT_SUPPORTED;
}

enum { ALIGN_A, ALIGN_B, ALIGN_C, ALIGN_D, ROWS_OF_D, COLUMNS_OF_D, DEPTH, SCRATCH };

static void count(const char *name) {
  dm_emulated_enter(0);
  dm_emulated_count_launch(name);
  dm_emulated_leave();
}

cublasStatus_t
cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                               cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                               cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                               cublasLtMatmulPreference_t p, int wanted,
                               cublasLtMatmulHeuristicResult_t results[], int *n_result) {
  count("cublasLtMatmulAlgoGetHeuristic");
  *n_result = 0;
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  if (is_refused("cublasLtMatmulAlgoGetHeuristic")) return CUBLAS_STATUS_NOT_SUPPORTED;
  LtCall x = {};
  x.desc = desc;
  x.a = a;
  x.b = b;
  x.c = c;
  x.d = d;
  const cublasStatus_t st = check(&x);
  if (st != CUBLAS_STATUS_SUCCESS) return st;
  cublasLtMatmulHeuristicResult_t r = {};
  for (int i = 0; i < 4; i++) r.algo.data[ALIGN_A + i] = p->align[i];
  r.algo.data[ROWS_OF_D] = x.m;
  r.algo.data[COLUMNS_OF_D] = x.n;
  r.algo.data[DEPTH] = x.k;
  const uint64_t sums =
      x.m * x.n * (uint64_t)d->n_batch * (desc->compute == CUBLAS_COMPUTE_64F ? 8 : 4);
  if (x.k >= 32 && sums <= p->workspace && p->scheme & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
    r.algo.data[SCRATCH] = r.workspaceSize = (size_t)sums;
  r.wavesCount = 1;
  results[0] = r;
  *n_result = 1;
  return CUBLAS_STATUS_SUCCESS;
}

/* ---- products ------------------------------------------------------------------ */

static uint64_t offset_of(const dm_EmulatedLayout *l, uint64_t batch, uint64_t row,
                          uint64_t column) {
  const uint64_t ld = (uint64_t)l->ld;
  return batch * (uint64_t)l->step +
         (l->order == CUBLASLT_ORDER_COL ? column * ld + row : row * ld + column);
}

template <class C> static C load(uint32_t type, const void *p, uint64_t i) {
  switch (type) {
  case CUDA_R_64F: return (C)((const double *)p)[i];
  case CUDA_R_16F: return (C)dm_f16_to_f32(((const uint16_t *)p)[i]);
  case CUDA_R_16BF: return (C)dm_bf16_to_f32(((const uint16_t *)p)[i]);
  default: return (C)((const float *)p)[i];
  }
}
template <class C> static void store(uint32_t type, void *p, uint64_t i, C v) {
  switch (type) {
  case CUDA_R_64F: ((double *)p)[i] = (double)v; return;
  case CUDA_R_16F: ((uint16_t *)p)[i] = dm_f32_to_f16((float)v); return;
  case CUDA_R_16BF: ((uint16_t *)p)[i] = dm_f32_to_bf16((float)v); return;
  default: ((float *)p)[i] = (float)v;
  }
}

/* Of op(A) and op(B), the matrices that are multiplied. */
template <class C> static C operand(const LtCall &x, uint32_t type, const void *p, uint64_t i) {
  const C v = load<C>(type, p, i);
  return x.desc->compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? (C)dm_emulated_tf32((float)v) : v;
}
template <class C> static C a_at(const LtCall &x, uint64_t z, uint64_t i, uint64_t l) {
  const bool flip = x.desc->flip_a != CUBLAS_OP_N;
  return operand<C>(x, x.a->type, x.a_data,
                    flip ? offset_of(x.a, z, l, i) : offset_of(x.a, z, i, l));
}
template <class C> static C b_at(const LtCall &x, uint64_t z, uint64_t l, uint64_t j) {
  const bool flip = x.desc->flip_b != CUBLAS_OP_N;
  return operand<C>(x, x.b->type, x.b_data,
                    flip ? offset_of(x.b, z, j, l) : offset_of(x.b, z, l, j));
}
template <class C>
static C sum(const LtCall &x, uint64_t z, uint64_t i, uint64_t j, uint64_t from, uint64_t to) {
  C s = 0;
  for (uint64_t l = from; l < to; l++) s += a_at<C>(x, z, i, l) * b_at<C>(x, z, l, j);
  return s;
}

/* BGRADA and BGRADB: each row of A, each column of B, added up. */
template <class C> static void add_up(const LtCall &x, uint64_t z) {
  const uint64_t n = sums_a(x.desc) ? x.m : sums_b(x.desc) ? x.n : 0;
  for (uint64_t i = 0; i < n; i++) {
    C s = 0;
    for (uint64_t l = 0; l < x.k; l++)
      s += sums_a(x.desc) ? a_at<C>(x, z, i, l) : b_at<C>(x, z, l, i);
    store(x.d->type, x.desc->bias, z * (uint64_t)x.desc->bias_step + i, s);
  }
}

template <class C> static C finished(const LtCall &x, uint64_t z, uint64_t i, uint64_t j, C v) {
  const uint32_t e = x.desc->epilogue;
  if (e & CUBLASLT_EPILOGUE_BIAS)
    v += load<C>(x.d->type, x.desc->bias, z * (uint64_t)x.desc->bias_step + i);
  if (keeps_before(x.desc))
    store(x.d->type, x.desc->aux, (z * x.n + j) * (uint64_t)x.desc->aux_ld + i, v);
  if (e & CUBLASLT_EPILOGUE_RELU) v = v > 0 ? v : C(0); /* loses NaN, as some kernels do */
  if (e & CUBLASLT_EPILOGUE_GELU) {
    const double y = (double)v, inner = 0.7978845608028654 * (y + 0.044715 * y * y * y);
    v = (C)(float)(0.5 * y * (1 + tanh(inner))); /* in float64 no better than in float32 */
  }
  return v;
}

template <class C> static void multiply(void *arg) {
  const LtCall &x = *(const LtCall *)arg;
  const C alpha = *(const C *)x.alpha, beta = *(const C *)x.beta;
  const uint64_t half = x.part ? x.k / 2 : 0, n_batch = (uint64_t)x.d->n_batch;
  C *const part = (C *)x.workspace;
  for (uint64_t z = 0, at = 0; z < n_batch && half; z++)
    for (uint64_t j = 0; j < x.n; j++)
      for (uint64_t i = 0; i < x.m; i++) part[at++] = sum<C>(x, z, i, j, 0, half);
  for (uint64_t z = 0; z < n_batch; z++) add_up<C>(x, z);
  for (uint64_t z = 0, at = 0; z < n_batch; z++)
    for (uint64_t j = 0; j < x.n; j++)
      for (uint64_t i = 0; i < x.m; i++, at++) {
        C v = sum<C>(x, z, i, j, half, x.k);
        if (half) v += part[at];
        v *= alpha;
        if (beta != 0) v += beta * load<C>(x.c->type, x.c_data, offset_of(x.c, z, i, j));
        store(x.d->type, x.d_data, offset_of(x.d, z, i, j), finished(x, z, i, j, v));
      }
}

/* A call by value, since a graph makes it when the caller's descriptors may be gone. */
struct Called {
  LtCall x;
  dm_EmulatedDesc desc;
  dm_EmulatedLayout a, b, c, d;
  double alpha, beta; /* the bytes of a float where that is computed */
};
template <class C> static void call_multiply(void *arg) {
  Called *call = (Called *)arg;
  LtCall x = call->x;
  x.desc = &call->desc;
  x.a = &call->a, x.b = &call->b, x.c = &call->c, x.d = &call->d;
  x.alpha = &call->alpha, x.beta = &call->beta;
  multiply<C>(&x);
}

static bool is_aligned(const void *p, uint64_t n) { return (uintptr_t)p % n == 0; }

/* What was promised when the algorithm was chosen. */
static bool keeps_promises(const LtCall &x, const cublasLtMatmulAlgo_t *algo,
                           size_t workspace) {
  const uint64_t *v = algo->data;
  const bool biased =
      x.desc->epilogue & CUBLASLT_EPILOGUE_BIAS || sums_a(x.desc) || sums_b(x.desc);
  return v[ROWS_OF_D] == x.m && v[COLUMNS_OF_D] == x.n && v[DEPTH] == x.k &&
         v[SCRATCH] <= workspace && is_aligned(x.a_data, v[ALIGN_A]) &&
         is_aligned(x.b_data, v[ALIGN_B]) && is_aligned(x.c_data, v[ALIGN_C]) &&
         is_aligned(x.d_data, v[ALIGN_D]) && is_aligned(x.workspace, 256) &&
         (!biased || (x.desc->bias && is_aligned(x.desc->bias, size_of(x.d->type)))) &&
         (!keeps_before(x.desc) || is_aligned(x.desc->aux, 16));
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                              const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout,
                              const void *b, cublasLtMatrixLayout_t b_layout, const void *beta,
                              const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t n_workspace, cudaStream_t stream) {
  int device;
  if (!handle || cudaGetDevice(&device) != cudaSuccess || device != handle->device)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (is_refused("cublasLtMatmul")) return CUBLAS_STATUS_NOT_SUPPORTED;
  LtCall x = {desc,  a_layout, b_layout, c_layout, d_layout, 0, 0,         0,
              alpha, beta,     a,        b,        c,        d, workspace, 0};
  const cublasStatus_t st = check(&x);
  if (st != CUBLAS_STATUS_SUCCESS) return st;
  if (!algo || !keeps_promises(x, algo, n_workspace)) return CUBLAS_STATUS_INVALID_VALUE;
  x.part = algo->data[SCRATCH];
  const void *const pointers[] = {a, b, c, d, workspace, desc->bias, desc->aux};
  for (const void *p : pointers) dm_emulated_check_pointer("cublasLtMatmul", p);
  const bool wide = desc->compute == CUBLAS_COMPUTE_64F;
  uint64_t given = dm_emulated_hash(0, pointers, sizeof pointers);
  given = dm_emulated_hash(given, alpha, wide ? sizeof(double) : sizeof(float));
  given = dm_emulated_hash(given, beta, wide ? sizeof(double) : sizeof(float));
  Called call = {x, *desc, *a_layout, *b_layout, *c_layout, *d_layout, 0, 0};
  memcpy(&call.alpha, alpha, wide ? sizeof(double) : sizeof(float));
  memcpy(&call.beta, beta, wide ? sizeof(double) : sizeof(float));
  const cudaError_t e =
      dm_emulated_run("cublasLtMatmul", stream, given,
                      wide ? call_multiply<double> : call_multiply<float>, &call, sizeof call);
  return e == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
