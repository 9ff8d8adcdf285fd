/* Matrix products by cuBLASLt, where it is found.

   The library is column-major. A row-major matrix read in columns is its transpose, so c = a b
   is computed as c' = b' a': b goes in first, and the library's A is our b.

   For each key (shapes, leading dimensions, dtype, alignments, epilogue)
   cublasLtMatmulAlgoGetHeuristic is asked once for the best algorithm within a workspace of
   WORKSPACE bytes; the answer, with the descriptors, is kept as a plan. Bias, activation and
   the bias gradient run as the product's epilogue, which saves a read and a write of c. A key
   that the library refuses is remembered, and left to gemm.cu. */
#include <cublasLt.h>
#include <pthread.h>

#include "kernels/gemm.h"
#include "kernels/library.h"
#include "kernels/plans.h"

enum { MAX_DEVICE = 64, WORKSPACE = 32 << 20, ALIGNED = 256, BIAS_ALIGNED = 16 };

/* ---- the library ---- */

#define ENTRIES(X)                        \
  X(cublasLtCreate)                       \
  X(cublasLtMatmulDescCreate)             \
  X(cublasLtMatmulDescDestroy)            \
  X(cublasLtMatmulDescSetAttribute)       \
  X(cublasLtMatrixLayoutCreate)           \
  X(cublasLtMatrixLayoutDestroy)          \
  X(cublasLtMatrixLayoutSetAttribute)     \
  X(cublasLtMatmulPreferenceCreate)       \
  X(cublasLtMatmulPreferenceDestroy)      \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatmulAlgoGetHeuristic)       \
  X(cublasLtMatmul)

DM_LIBRARY(lt, ENTRIES, "libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so")

/* `lock` guards it, as it guards everything below: descriptors are changed and read by each
   product. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static enum { UNTRIED, OPEN, MISSING } state;
static cublasLtHandle_t handles[MAX_DEVICE];

static bool is_good(cublasStatus_t s) { return s == CUBLAS_STATUS_SUCCESS; }

static void set_missing(dm_PlanState how, const char *why) {
  state = MISSING;
  dm_plan_state(DM_CUBLASLT, how, why);
}

/* Opens the library when it is first needed. */
static void open_library(void) {
  char why[DM_PLAN_TEXT] = "";
  if (dm_cuda_is_off("DEMILUNE_CUBLASLT")) {
    set_missing(DM_PLAN_OFF, "DEMILUNE_CUBLASLT=0");
  } else if (!lt_open(why, sizeof why)) {
    set_missing(DM_PLAN_MISSING, why);
  } else {
    state = OPEN;
    dm_plan_state(DM_CUBLASLT, DM_PLAN_OPEN, "");
  }
}

/* The device's handle; NULL where the library is missing or switched off. */
static cublasLtHandle_t handle_of(int device) {
  if (state == UNTRIED) open_library();
  if (state == MISSING || device >= MAX_DEVICE) return NULL;
  if (!handles[device] && !is_good(lt.cublasLtCreate(&handles[device]))) {
    handles[device] = NULL;
    set_missing(DM_PLAN_MISSING, "cublasLtCreate failed: it does not serve this GPU or driver");
  }
  return handles[device];
}

/* ---- the request ---- */

/* The key holds all that the choice of an algorithm may depend on. Its members are int64_t,
   without padding, since keys are compared as bytes. */
typedef struct Key {
  int64_t device, dtype, m, n, k, n_batch;
  int64_t flip_a, flip_b; /* whether memory holds rows where the library expects columns */
  int64_t ld_a, ld_b, step_a, step_b, step_c;
  int64_t align_a, align_b, align_c, bias; /* bytes; bias 0: none */
  /* before and the sums: alignments in bytes, as bias */
  int64_t activation, before, row_sums, column_sums;
  int64_t tf32; /* of float32: operands may be rounded to TF32 */
} Key;

/* Whether the library takes a rows x columns matrix with these steps as columns: contiguous
   columns that do not overlap. *ld is the leading dimension. */
static bool lies_in_columns(int64_t rows, int64_t columns, int64_t row_step,
                            int64_t column_step, int64_t *ld) {
  if (rows > 1 && row_step != 1) return false;
  *ld = columns > 1 ? column_step : rows;
  return *ld >= rows && *ld <= INT32_MAX;
}
/* As columns, or else flipped as rows. */
static bool lies(int64_t rows, int64_t columns, int64_t row_step, int64_t column_step,
                 int64_t *flip, int64_t *ld) {
  *flip = !lies_in_columns(rows, columns, row_step, column_step, ld);
  return !*flip || lies_in_columns(columns, rows, column_step, row_step, ld);
}

/* The longest batch dim becomes the library's strided batch; the others are a loop of calls.
   c_step: elements of c from one product of a dim to the next. */
typedef struct Batches {
  int along; /* -1: one product */
  int64_t n_loop, c_step[DM_MAX_DIM];
} Batches;

static Batches batches_of(const dm_Product *p) {
  Batches b = {-1, 1, {0}};
  int64_t step = p->m * p->n;
  for (int d = p->n_batch - 1; d >= 0; d--) {
    b.c_step[d] = step;
    step *= p->size[d];
    /* The longest dim, the innermost among equals. */
    if (b.along < 0 || p->size[d] > p->size[b.along]) b.along = d;
  }
  for (int d = 0; d < p->n_batch; d++)
    if (d != b.along) b.n_loop *= p->size[d];
  return b;
}

/* The largest power of two, up to ALIGNED, that divides the address of every product of the
   batch. */
static int64_t alignment(const void *data, const int64_t *step, int n, int64_t size) {
  uintptr_t bits = (uintptr_t)data | ALIGNED;
  for (int d = 0; d < n; d++) bits |= (uintptr_t)(step[d] * size);
  return (int64_t)(bits & (~bits + 1));
}

/* Sizes that the library takes: positive, of 31 bits. */
static bool fits(int64_t n) { return n > 0 && n <= INT32_MAX; }

/* The library's relu loses NaN in some of its kernels, so that an overflow would not be seen; a
   kernel of ours follows the product. Its gelu is the tanh form, of float32's accuracy in
   float64 too. It stores the epilogue's input (`before`) for a single product only, with rows
   that are a multiple of 8 elements. */
static bool key_of_activation(const dm_Product *p, const Batches *b, Key *key) {
  if (p->activation && (p->activation != DM_GELU_TANH || p->a.dtype == DM_F64)) return false;
  key->activation = (int64_t)p->activation;
  if (!p->before) return true;
  key->before = alignment(p->before, NULL, 0, dm_dtype_size(p->a.dtype));
  return b->n_loop == 1 && key->n_batch == 1 && p->n % 8 == 0 && key->before >= BIAS_ALIGNED;
}

/* The bias gradient as an epilogue (BGRADB): sums over k of the library's B, our a, for a
   single product, where that is transposed and has more than one element per sum. */
static bool key_of_row_sums(const dm_Product *p, Key *key) {
  if (!p->row_sums) return true;
  key->row_sums = alignment(p->row_sums, NULL, 0, dm_dtype_size(p->a.dtype));
  return p->n_batch == 0 && p->k > 1 && key->flip_a && !p->bias && !p->activation &&
         key->row_sums >= BIAS_ALIGNED;
}

/* The same of our b, the library's A (BGRADA), which goes in as it lies. */
static bool key_of_column_sums(const dm_Product *p, Key *key) {
  if (!p->column_sums) return true;
  key->column_sums = alignment(p->column_sums, NULL, 0, dm_dtype_size(p->a.dtype));
  return p->n_batch == 0 && p->k > 1 && !key->flip_b && !p->bias && !p->activation &&
         key->column_sums >= BIAS_ALIGNED;
}

/* Builds the key; false where the product is not for the library. */
static bool key_of(const dm_Product *p, const Batches *b, Key *key) {
  const int64_t size = dm_dtype_size(p->a.dtype);
  const int d = b->along;
  memset(key, 0, sizeof *key);
  key->device = dm_cuda_device();
  key->dtype = (int64_t)p->a.dtype;
  key->tf32 = p->a.dtype == DM_F32 && dm_thread_state()->tf32_matmul;
  key->m = p->m;
  key->n = p->n;
  key->k = p->k;
  key->n_batch = d < 0 ? 1 : p->size[d];
  if (!fits(key->m) || !fits(key->n) || !fits(key->k) || !fits(key->n_batch)) return false;
  if (!lies(p->n, p->k, p->b.cs, p->b.rs, &key->flip_b, &key->ld_b)) return false;
  if (!lies(p->k, p->m, p->a.cs, p->a.rs, &key->flip_a, &key->ld_a)) return false;
  if (d >= 0) {
    key->step_a = p->a_step[d];
    key->step_b = p->b_step[d];
    key->step_c = b->c_step[d];
    if (key->step_a < 0 || key->step_b < 0) return false;
  }
  key->align_a = alignment(p->a.data, p->a_step, p->n_batch, size);
  key->align_b = alignment(p->b.data, p->b_step, p->n_batch, size);
  key->align_c = alignment(p->c, b->c_step, p->n_batch, size);
  if (p->bias) key->bias = alignment(p->bias, NULL, 0, size);
  if (!key_of_activation(p, b, key) || !key_of_row_sums(p, key) || !key_of_column_sums(p, key))
    return false;
  /* A bias must be aligned to BIAS_ALIGNED: the library cannot be told of less, and reads
     whole words. */
  return !p->bias || key->bias >= BIAS_ALIGNED;
}

/* ---- plans ---- */

typedef struct Plan {
  Key key;
  bool used, refused;
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t a, b, c;
  cublasLtMatmulAlgo_t algo;
  size_t workspace; /* bytes */
} Plan;

/* A hash table of plans: a key's row holds up to PER_ROW plans, the newest first, and drops
   the oldest. */
enum { ROWS = 256, PER_ROW = 4 };
static Plan plans[ROWS][PER_ROW];

/* Destroys a plan's descriptors. */
static void plan_free(Plan *p) {
  if (p->desc) lt.cublasLtMatmulDescDestroy(p->desc);
  if (p->a) lt.cublasLtMatrixLayoutDestroy(p->a);
  if (p->b) lt.cublasLtMatrixLayoutDestroy(p->b);
  if (p->c) lt.cublasLtMatrixLayoutDestroy(p->c);
  p->desc = NULL;
  p->a = p->b = p->c = NULL;
}

static cudaDataType type_of(const Key *key) {
#define ROW(X, E, S, BITS, NAME, METHOD, RANK, NPY, ST, AT, DIGITS, TINY, MAX, BRIEF, CUBLAS, \
            ...)                                                                              \
  case DM_##E: return CUBLAS;
  switch ((dm_DType)key->dtype) {
    DM_LOW_DTYPES(ROW, )
  case DM_F64: return CUDA_R_64F;
  default: return CUDA_R_32F;
  }
#undef ROW
}

/* A matrix layout with its strided batch. */
static bool make_layout(const Key *key, int64_t rows, int64_t columns, int64_t ld, int64_t step,
                        cublasLtMatrixLayout_t *out) {
  const int32_t n_batch = (int32_t)key->n_batch;
  if (!is_good(lt.cublasLtMatrixLayoutCreate(out, type_of(key), (uint64_t)rows,
                                             (uint64_t)columns, ld)))
    return false;
  return is_good(lt.cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                     &n_batch, sizeof n_batch)) &&
         is_good(lt.cublasLtMatrixLayoutSetAttribute(
             *out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step));
}

/* Attributes of the descriptor. */
static bool set_desc(Plan *p, cublasLtMatmulDescAttributes_t what, const void *v, size_t n) {
  return is_good(lt.cublasLtMatmulDescSetAttribute(p->desc, what, v, n));
}
static bool set_bias(Plan *p, const void *bias) {
  return set_desc(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
}
static bool set_before(Plan *p, const void *before) {
  return set_desc(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &before, sizeof before);
}

/* The epilogue of the key. CUBLASLT_EPILOGUE_BIAS, _RELU_BIAS, _GELU_AUX_BIAS and so on are
   combinations of bits, and DEFAULT stands for none. BGRADA and BGRADB are not combined with
   others. */
static uint32_t epilogue_of(const Key *key) {
  if (key->row_sums) return CUBLASLT_EPILOGUE_BGRADB;
  if (key->column_sums) return CUBLASLT_EPILOGUE_BGRADA;
  const uint32_t bias = key->bias ? CUBLASLT_EPILOGUE_BIAS : 0;
  const uint32_t gelu = key->before ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_GELU;
  const uint32_t activation = key->activation == DM_GELU_TANH ? gelu : 0;
  return bias | activation ? bias | activation : CUBLASLT_EPILOGUE_DEFAULT;
}

/* Sums are in float32 for float32 and 16 bits; float32 is reduced to TF32 only where that is
   allowed. */
static bool make_desc(Plan *p) {
  const bool wide = p->key.dtype == DM_F64;
  const cublasComputeType_t compute = wide          ? CUBLAS_COMPUTE_64F
                                      : p->key.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                    : CUBLAS_COMPUTE_32F;
  const int32_t flip_a = p->key.flip_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  const int32_t flip_b = p->key.flip_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const uint32_t epilogue = epilogue_of(&p->key);
  return is_good(
             lt.cublasLtMatmulDescCreate(&p->desc, compute, wide ? CUDA_R_64F : CUDA_R_32F)) &&
         set_desc(p, CUBLASLT_MATMUL_DESC_TRANSA, &flip_b, sizeof flip_b) &&
         set_desc(p, CUBLASLT_MATMUL_DESC_TRANSB, &flip_a, sizeof flip_a) &&
         set_desc(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue) &&
         (!p->key.before ||
          set_desc(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &p->key.n, sizeof p->key.n));
}

/* The epilogue's addresses, which change from call to call. */
static bool set_pointers(Plan *p, const dm_Product *product) {
  return (!product->bias || set_bias(p, product->bias)) &&
         (!product->row_sums || set_bias(p, product->row_sums)) &&
         (!product->column_sums || set_bias(p, product->column_sums)) &&
         (!product->before || set_before(p, product->before));
}

/* Split-k may add partial sums in the compute type, but not in a 16-bit output, which is
   rounded once. */
static bool make_preference(const Key *key, cublasLtMatmulPreference_t *out) {
  const uint64_t workspace = WORKSPACE;
  const uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  const struct {
    cublasLtMatmulPreferenceAttributes_t what;
    uint32_t bytes;
  } align[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)key->align_b},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)key->align_a},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)key->align_c},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)key->align_c}};
  if (!is_good(lt.cublasLtMatmulPreferenceCreate(out))) return false;
  bool ok =
      is_good(lt.cublasLtMatmulPreferenceSetAttribute(
          *out, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace)) &&
      is_good(lt.cublasLtMatmulPreferenceSetAttribute(
          *out, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme, sizeof scheme));
  for (int i = 0; i < DM_COUNT(align) && ok; i++)
    ok = is_good(lt.cublasLtMatmulPreferenceSetAttribute(*out, align[i].what, &align[i].bytes,
                                                         sizeof align[i].bytes));
  return ok;
}

/* Asks the heuristic for one algorithm; our b is the library's A, and c is both C and D. */
static bool choose(Plan *p, cublasLtHandle_t handle) {
  cublasLtMatmulPreference_t preference = NULL;
  cublasLtMatmulHeuristicResult_t best;
  int n = 0;
  memset(&best, 0, sizeof best);
  const bool ok = make_preference(&p->key, &preference) &&
                  is_good(lt.cublasLtMatmulAlgoGetHeuristic(handle, p->desc, p->b, p->a, p->c,
                                                            p->c, preference, 1, &best, &n)) &&
                  n == 1 && is_good(best.state);
  if (preference) lt.cublasLtMatmulPreferenceDestroy(preference);
  p->algo = best.algo;
  p->workspace = best.workspaceSize;
  return ok;
}

/* Makes descriptor, layouts and algorithm. */
static bool plan_make(Plan *p, cublasLtHandle_t handle, const dm_Product *product) {
  const Key *k = &p->key;
  return make_desc(p) && set_pointers(p, product) &&
         (k->flip_b ? make_layout(k, k->k, k->n, k->ld_b, k->step_b, &p->b)
                    : make_layout(k, k->n, k->k, k->ld_b, k->step_b, &p->b)) &&
         (k->flip_a ? make_layout(k, k->m, k->k, k->ld_a, k->step_a, &p->a)
                    : make_layout(k, k->k, k->m, k->ld_a, k->step_a, &p->a)) &&
         make_layout(k, k->n, k->m, k->n, k->step_c, &p->c) && choose(p, handle);
}

/* Frees the plan's descriptors but remembers that the library refused. */
static void plan_refuse(Plan *p) {
  plan_free(p);
  p->refused = true;
}

/* Finds or makes the plan of a key. */
static Plan *plan_of(const Key *key, cublasLtHandle_t handle, const dm_Product *product) {
  Plan *row = plans[dm_key_hash(key, sizeof *key) % ROWS];
  for (int i = 0; i < PER_ROW; i++) {
    if (!row[i].used || memcmp(&row[i].key, key, sizeof *key) != 0) continue;
    dm_plan_count(DM_CUBLASLT, DM_PLAN_MEMORY);
    return &row[i];
  }
  dm_plan_count(DM_CUBLASLT, DM_PLAN_ASKED);
  plan_free(&row[PER_ROW - 1]);
  memmove(row + 1, row, (PER_ROW - 1) * sizeof *row);
  memset(row, 0, sizeof *row);
  row->key = *key;
  row->used = true;
  if (!plan_make(row, handle, product)) plan_refuse(row);
  return row;
}

/* ---- multiplying ---- */

/* The address of an element. */
static const void *at(const dm_Product *p, const void *data, int64_t elements) {
  return (const char *)data + elements * dm_dtype_size(p->a.dtype);
}

/* Runs product o of the loop over the other batch dims. */
static bool launch(const dm_Product *p, const Batches *b, Plan *plan, int64_t o,
                   void *workspace) {
  const float alpha32 = (float)p->alpha, beta32 = (float)p->beta;
  const bool wide = p->a.dtype == DM_F64;
  int64_t i = 0, j = 0, l = 0;
  for (int d = p->n_batch - 1; d >= 0; d--) {
    if (d == b->along) continue;
    const int64_t index = o % p->size[d];
    o /= p->size[d];
    i += index * p->a_step[d];
    j += index * p->b_step[d];
    l += index * b->c_step[d];
  }
  void *const c = (char *)p->c + l * dm_dtype_size(p->a.dtype);
  /* alpha and beta have the type that the product computes in. */
  return is_good(lt.cublasLtMatmul(
      handles[plan->key.device], plan->desc, wide ? (const void *)&p->alpha : &alpha32,
      at(p, p->b.data, j), plan->b, at(p, p->a.data, i), plan->a,
      wide ? (const void *)&p->beta : &beta32, c, plan->c, c, plan->c, &plan->algo, workspace,
      plan->workspace, dm_cuda_stream()));
}

/* Runs all products. If the first is refused our own kernel takes over; a later failure is an
   error, as part of c has been written. */
static dm_status multiply(const dm_Product *p, const Batches *b, Plan *plan, bool *done) {
  void *workspace = NULL;
  const int64_t n = (int64_t)plan->workspace;
  dm_status st = DM_OK;
  if (n > 0) DM_TRY(dm_cuda_scratch(n, &workspace));
  for (int64_t o = 0; o < b->n_loop && st == DM_OK; o++) {
    *done = launch(p, b, plan, o, workspace);
    if (*done) continue;
    plan_refuse(plan);
    if (o > 0) st = dm_fail(DM_EDEV, "cuda: cuBLASLt failed amid a batch of products");
    break;
  }
  dm_cuda_scratch_free(workspace, n);
  return st;
}

/* The entry for matmul.c: *done says whether the product was computed. */
dm_status dm_lt_multiply(const dm_Product *p, bool *done) {
  Key key;
  *done = false;
  if (!dm_is_float(p->a.dtype)) return DM_OK;
  const Batches b = batches_of(p);
  if (!key_of(p, &b, &key)) return DM_OK;
  dm_status st = DM_OK;
  pthread_mutex_lock(&lock);
  const cublasLtHandle_t handle = handle_of(dm_cuda_device());
  Plan *plan = handle ? plan_of(&key, handle, p) : NULL;
  if (plan && !plan->refused && set_pointers(plan, p)) st = multiply(p, &b, plan, done);
  if (plan && !*done)
    dm_plan_refuse(DM_CUBLASLT, "no algorithm was found, or its launch failed");
  else if (!plan) dm_plan_miss(DM_CUBLASLT);
  pthread_mutex_unlock(&lock);
  return st;
}
