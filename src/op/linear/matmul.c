/* Matrix products: matmul, mm, bmm, mv, dot, addmm, baddbmm, addbmm and linear.

   All of them are one dm_Product (matmul.h), a (batched) c = beta c + alpha a b +
   bias with a (..., M, K), b (..., K, N) and c (..., M, N). Operands reach gemm by
   their strides, so that a transposed or sliced matrix is never copied. Batch dims
   are merged first (dm_product_reduce): batches that share b and only continue a's
   rows become more rows of one large product, which is how (B, T, C) x (C, D) is a
   single gemm.

   Gradients: for y = a b, da = dy b^T and db = a^T dy, both matmuls again; gradients
   of operands that were broadcast over batches are summed by the tape. linear fuses
   the bias and an activation into the product on devices that can. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "cpu/loops/loops.h"
#include "cpu/scratch.h"
#include "cpu/threads.h"
#include "cpu/vec.h"
#include "op/linear/matmul.h"
#include "op/pointwise/pointwise.h"
#include "op/pointwise/unary.h"
#include "op/reduce/reduce.h"

/* ---- products on the CPU ---- */

/* m with its data moved by a number of elements. */
static dm_Mat at(dm_Mat m, int64_t elements) {
  m.data = (const char *)m.data + elements * dm_dtype_size(m.dtype);
  return m;
}

/* Integer arithmetic modulo 2^64: signed overflow is not defined in C, so it is done
   unsigned. */
static int64_t mul_wrap(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }
static int64_t add_wrap(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }

/* One integer product, computed in int64 modulo 2^64 by plain loops. It is there for
   completeness and is not tuned. */
static dm_status int_product(const dm_Product *p, dm_Mat a, dm_Mat b, char *c) {
  const int64_t size = dm_dtype_size(a.dtype), n = p->n, k = p->k;
  const int64_t alpha = (int64_t)p->alpha, beta = (int64_t)p->beta;
  int64_t *const wide = dm_alloc((k * n + k + 2 * n) * (int64_t)sizeof *wide);
  if (!wide) return dm_fail(DM_EMEM, "matmul: out of memory");
  int64_t *const row = wide + k * n, *const sum = row + k, *const old = sum + n;
  for (int64_t l = 0; l < k; l++)
    dm_load_i64(b.dtype, at(b, l * b.rs).data, b.cs, n, wide + l * n);
  for (int64_t i = 0; i < p->m; i++, c += n * size) {
    dm_load_i64(a.dtype, at(a, i * a.rs).data, a.cs, k, row);
    memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t l = 0; l < k; l++)
      for (int64_t j = 0; j < n; j++)
        sum[j] = add_wrap(sum[j], mul_wrap(row[l], wide[l * n + j]));
    if (p->bias) dm_load_i64(a.dtype, p->bias, 1, n, old);
    else if (beta != 0) dm_load_i64(a.dtype, c, 1, n, old);
    else memset(old, 0, (size_t)n * sizeof *old);
    for (int64_t j = 0; j < n; j++)
      sum[j] = add_wrap(mul_wrap(alpha, sum[j]), mul_wrap(p->bias ? 1 : beta, old[j]));
    dm_store_i64(a.dtype, c, 1, n, sum);
  }
  dm_free(wide);
  return DM_OK;
}

/* c (M, N) of one pair of matrices, by gemm or, for integers, by int_product. */
static dm_status one_product(const dm_Product *p, dm_Mat a, dm_Mat b, char *c) {
  const dm_DType t = a.dtype;
  if (!dm_is_float(t)) return int_product(p, a, b, c);
  return dm_gemm(p->m, p->n, p->k, p->alpha, a, b, p->beta, c, p->c_dtype, p->n, p->bias, t,
                 p->bias ? DM_BIAS_PER_COL : DM_BIAS_NONE);
}

/* All products along the innermost batch dim, by one batched gemm where there is no bias. */
static dm_status inner_products(const dm_Product *p, dm_Mat a, dm_Mat b, char *c) {
  if (p->n_batch == 0) return one_product(p, a, b, c);
  const int d = p->n_batch - 1;
  const int64_t step = p->m * p->n;
  if (!p->bias && dm_is_float(a.dtype))
    return dm_gemm_batched(p->size[d], p->m, p->n, p->k, p->alpha, a, p->a_step[d], b,
                           p->b_step[d], p->beta, c, p->c_dtype, p->n, step);
  for (int64_t i = 0; i < p->size[d]; i++)
    DM_TRY(one_product(p, at(a, i * p->a_step[d]), at(b, i * p->b_step[d]),
                       c + i * step * dm_dtype_size(p->c_dtype)));
  return DM_OK;
}

/* Merges the batch dims of p and iterates over those that are left. */
static dm_status multiply(dm_Product *p) {
  dm_product_reduce(p);
  int64_t outer = 1, c_step = p->m * p->n * dm_dtype_size(p->c_dtype);
  for (int d = 0; d < p->n_batch - 1; d++) outer *= p->size[d];
  if (p->n_batch > 0) c_step *= p->size[p->n_batch - 1];
  for (int64_t o = 0; o < outer; o++) {
    int64_t rest = o, a = 0, b = 0;
    for (int d = p->n_batch - 2; d >= 0; d--) {
      a += rest % p->size[d] * p->a_step[d];
      b += rest % p->size[d] * p->b_step[d];
      rest /= p->size[d];
    }
    DM_TRY(inner_products(p, at(p->a, a), at(p->b, b), (char *)p->c + o * c_step));
  }
  return DM_OK;
}

/* ---- rules ---- */

/* All operands have one dtype, and it is not bool: PyTorch does not promote in
   products either. */
static dm_status one_dtype(const dm_Call *c) {
  const dm_DType t = (dm_DType)c->in[0]->dtype;
  for (int i = 1; i < c->n_in; i++) {
    if (!c->in[i] || c->in[i]->dtype == t) continue;
    const char *other = dm_dtype_name((dm_DType)c->in[i]->dtype);
    return dm_fail(DM_EARG,
                   "%s: %s and %s: %s must have one dtype; hint: x:to(\"%s\") or autocast",
                   c->op->name, dm_dtype_name(t), other, c->n_in == 2 ? "both" : "all", other);
  }
  if (t == DM_BOOL)
    return dm_fail(DM_EARG,
                   "%s: bool, wanted a float or integer dtype; hint: x:to(\"float32\")",
                   c->op->name);
  return DM_OK;
}

static dm_status check_ranks(const dm_Call *c, const dm_Tensor *a, int na, const dm_Tensor *b,
                             int nb) {
  if (a->ndim == na && b->ndim == nb) return DM_OK;
  return dm_fail(DM_EARG, "%s: %s x %s: wanted %d dim%s and %d", c->op->name, DM_SHAPE(a),
                 DM_SHAPE(b), na, na == 1 ? "" : "s", nb);
}

/* Sets the output's meta for a (..., M, K) times b (..., K, N): the batch dims
   broadcast, and a vector on the left or on the right loses its dim. Both operands
   have at least one dim. */
static dm_status product_rule(dm_Call *c, const dm_Tensor *a, const dm_Tensor *b) {
  const int na = a->ndim, nb = b->ndim, b_row = nb > 1 ? nb - 2 : 0;
  if (a->shape[na - 1] != b->shape[b_row])
    return dm_fail(DM_EARG,
                   "%s: %s x %s: dim %d of the left is %lld, dim %d of the right is %lld",
                   c->op->name, DM_SHAPE(a), DM_SHAPE(b), na - 1 + c->base,
                   (long long)a->shape[na - 1], b_row + c->base, (long long)b->shape[b_row]);
  DM_TRY(one_dtype(c));
  dm_Meta *m = &c->out_meta[0];
  *m = (dm_Meta){.dtype = a->dtype, .device = a->device};
  const int n_batch = (na > nb ? na : nb) - 2;
  for (int d = 0; d < n_batch; d++) {
    const int da = d - (n_batch - (na - 2)), db = d - (n_batch - (nb - 2));
    const int64_t sa = dm_batch_size(a, da), sb = dm_batch_size(b, db);
    if (sa != sb && sa != 1 && sb != 1)
      return dm_fail(DM_EARG,
                     "%s: %s x %s: batch dim %d of the left is %lld, dim %d of the right "
                     "is %lld",
                     c->op->name, DM_SHAPE(a), DM_SHAPE(b), da + c->base, (long long)sa,
                     db + c->base, (long long)sb);
    m->shape[m->ndim++] = sa == 1 ? sb : sa;
  }
  if (na > 1) m->shape[m->ndim++] = a->shape[na - 2];
  if (nb > 1) m->shape[m->ndim++] = b->shape[nb - 1];
  return DM_OK;
}

/* (..., M, K) x (..., K, N) -> (..., M, N), leading dims broadcast; a vector on the
   left is a row, on the right a column, and its dim is absent from the result. */
dm_status matmul_rule(dm_Call *c) {
  const dm_Tensor *a = c->in[0], *b = c->in[1];
  if (a->ndim == 0 || b->ndim == 0)
    return dm_fail(DM_EARG, "%s: %s x %s: both want at least 1 dim; hint: x * y", c->op->name,
                   DM_SHAPE(a), DM_SHAPE(b));
  return product_rule(c, a, b);
}

/* (M, K) x (K, N) -> (M, N). */
dm_status mm_rule(dm_Call *c) {
  DM_TRY(check_ranks(c, c->in[0], 2, c->in[1], 2));
  return product_rule(c, c->in[0], c->in[1]);
}

/* (B, M, K) x (B, K, N) -> (B, M, N); the batches are equal, nothing broadcasts. */
static dm_status batched_rule(dm_Call *c, const dm_Tensor *a, const dm_Tensor *b) {
  DM_TRY(check_ranks(c, a, 3, b, 3));
  if (a->shape[0] != b->shape[0])
    return dm_fail(DM_EARG, "%s: %s x %s: %lld and %lld matrices; hint: matmul broadcasts",
                   c->op->name, DM_SHAPE(a), DM_SHAPE(b), (long long)a->shape[0],
                   (long long)b->shape[0]);
  return product_rule(c, a, b);
}

dm_status bmm_rule(dm_Call *c) { return batched_rule(c, c->in[0], c->in[1]); }

/* (M, K) x (K) -> (M). */
dm_status mv_rule(dm_Call *c) {
  DM_TRY(check_ranks(c, c->in[0], 2, c->in[1], 1));
  return product_rule(c, c->in[0], c->in[1]);
}

/* (K) x (K) -> a number. */
dm_status dot_rule(dm_Call *c) {
  DM_TRY(check_ranks(c, c->in[0], 1, c->in[1], 1));
  return product_rule(c, c->in[0], c->in[1]);
}

/* The operand that addmm and baddbmm add broadcasts to the product; alpha and beta
   are whole numbers for integer tensors. */
static dm_status check_added(const dm_Call *c) {
  const dm_AddmmAttr *a = DM_ATTR(dm_AddmmAttr, c);
  const dm_Tensor *x = c->in[0];
  const dm_Meta *m = &c->out_meta[0];
  bool fits = x->ndim <= m->ndim;
  for (int d = 1; fits && d <= x->ndim; d++) {
    const int64_t s = x->shape[x->ndim - d];
    fits = s == 1 || s == m->shape[m->ndim - d];
  }
  if (!fits)
    return dm_fail(DM_EARG, "%s: input of shape %s does not broadcast to the product's %s",
                   c->op->name, DM_SHAPE(x), DM_DIMS(m->ndim, m->shape));
  const bool whole =
      a->beta == (double)(int64_t)a->beta && a->alpha == (double)(int64_t)a->alpha;
  if (!dm_is_float((dm_DType)x->dtype) && !whole)
    return dm_fail(DM_EARG, "%s: beta %g and alpha %g, wanted integers for %s tensors",
                   c->op->name, a->beta, a->alpha, dm_dtype_name((dm_DType)x->dtype));
  return DM_OK;
}

/* input, (M, K), (K, N) -> (M, N) = beta input + alpha a b. */
dm_status addmm_rule(dm_Call *c) {
  DM_TRY(check_ranks(c, c->in[1], 2, c->in[2], 2));
  DM_TRY(product_rule(c, c->in[1], c->in[2]));
  return check_added(c);
}

/* input, (B, M, K), (B, K, N) -> (B, M, N), the same for each of the batch. */
dm_status baddbmm_rule(dm_Call *c) {
  DM_TRY(batched_rule(c, c->in[1], c->in[2]));
  return check_added(c);
}

static dm_Tensor *bias_of(const dm_Call *c) { return c->n_in > 2 ? c->in[2] : NULL; }

/* Decides what linear saves for the gradient of its activation: relu's gradient
   reads the result, gelu's reads the sum before the activation, which is then a
   second output. */
static dm_status linear_keeps(dm_Call *c) {
  const dm_Activation a = (dm_Activation)DM_ATTR(dm_ActivationAttr, c)->activation;
  const bool before = c->recorded && (a == DM_GELU || a == DM_GELU_TANH);
  c->save &= ~(uint32_t)((a == DM_RELU ? 0 : O0) | (before ? 0 : O1));
  c->n_out = before ? 2 : 1;
  c->out_meta[1] = c->out_meta[0];
  return a == DM_ACTIVATION_NONE ? DM_OK : dm_check_float(c, c->in[0], "x");
}

/* x (..., in), weight (out, in), bias (out) -> y (..., out). */
dm_status linear_rule(dm_Call *c) {
  const dm_Tensor *x = c->in[0], *w = c->in[1], *bias = bias_of(c);
  if (w->ndim != 2)
    return dm_fail(DM_EARG, "linear: weight has shape %s, wanted {out, in}", DM_SHAPE(w));
  if (x->ndim == 0 || x->shape[x->ndim - 1] != w->shape[1])
    return dm_fail(DM_EARG,
                   "linear: input %s, weight %s: the input's last dim is %lld, wanted %lld",
                   DM_SHAPE(x), DM_SHAPE(w), (long long)(x->ndim ? x->shape[x->ndim - 1] : 1),
                   (long long)w->shape[1]);
  if (bias && (bias->ndim != 1 || bias->shape[0] != w->shape[0]))
    return dm_fail(DM_EARG, "linear: bias has shape %s, wanted {%lld}", DM_SHAPE(bias),
                   (long long)w->shape[0]);
  DM_TRY(one_dtype(c));
  dm_out_like(c, 0, x, (dm_DType)x->dtype);
  c->out_meta[0].shape[x->ndim - 1] = w->shape[0];
  return linear_keeps(c);
}

/* in: gy (R, out), x (R, in), and the saved output (R, out); out: the gradients of
   weight (out, in) and bias (out), and with an activation also of the sum before it
   (R, out). */
dm_status linear_backward_rule(dm_Call *c) {
  const dm_Tensor *gy = c->in[0], *x = c->in[1];
  const dm_DType dtype = (dm_DType)gy->dtype;
  for (int i = 0; i < 3; i++) dm_out_like(c, i, gy, dtype);
  c->out_meta[0].shape[0] = gy->shape[1];
  c->out_meta[0].shape[1] = x->shape[1];
  c->out_meta[1].ndim = 1;
  c->out_meta[1].shape[0] = gy->shape[1];
  c->n_out = DM_ATTR(dm_ActivationAttr, c)->activation == DM_ACTIVATION_NONE ? 2 : 3;
  return DM_OK;
}

/* in: gy (R, N), mat1 (R, K); out: (K, N) and (N). */
dm_status addmm_backward_rule(dm_Call *c) {
  const dm_Tensor *gy = c->in[0];
  for (int i = 0; i < 2; i++) dm_out_like(c, i, gy, (dm_DType)gy->dtype);
  c->out_meta[0].shape[0] = c->in[1]->shape[1];
  c->out_meta[1].ndim = 1;
  c->out_meta[1].shape[0] = gy->shape[1];
  return DM_OK;
}

/* ---- CPU kernels ---- */

/* An output with K = 0 is a sum of nothing; gemm writes zeros. */
dm_status matmul_cpu(dm_Call *c) {
  if (c->out[0]->numel == 0) return DM_OK;
  dm_Product p;
  dm_product_of(&p, c->in[0], c->in[1], c->out[0]);
  return multiply(&p);
}

/* ---- dot ---- */

/* Two vectors of n elements in chunks, each with a sum of its own; a chunk goes in blocks,
   which are added in the compute type, and their sums in float64. */
enum { DOT_BLOCK = 2 * DM_BLOCK, DOT_CHUNK = 1 << 15 };
typedef struct Dot {
  dm_DType type[2];
  int64_t stride[2], n;
  const char *data[2];
  double *sum;
} Dot;

/* m elements of an operand from `at` on, of dtype *t: in the compute type in buf, or where they
   lie if they are contiguous. */
#define DOT(SUFFIX, TYPE, DTYPE)                                                          \
  static const void *part_##SUFFIX(const Dot *d, int i, int64_t at, int64_t m, TYPE *buf, \
                                   dm_DType *t) {                                         \
    const char *p = d->data[i] + at * d->stride[i] * dm_dtype_size(d->type[i]);           \
    *t = d->stride[i] == 1 ? d->type[i] : DTYPE;                                          \
    if (d->stride[i] == 1) return p;                                                      \
    dm_load_##SUFFIX(d->type[i], p, d->stride[i], m, buf);                                \
    return buf;                                                                           \
  }                                                                                       \
  static void dot_##SUFFIX(void *ctx, int64_t begin, int64_t end) {                       \
    const Dot *d = ctx;                                                                   \
    TYPE x[DOT_BLOCK], y[DOT_BLOCK];                                                      \
    for (int64_t u = begin; u < end; u++) {                                               \
      const int64_t last = dm_min_i64(d->n, (u + 1) * DOT_CHUNK);                         \
      d->sum[u] = 0;                                                                      \
      for (int64_t at = u * DOT_CHUNK, m; at < last; at += m) {                           \
        m = dm_min_i64(DOT_BLOCK, last - at);                                             \
        dm_DType type[2];                                                                 \
        const void *const left = part_##SUFFIX(d, 0, at, m, x, &type[0]);                 \
        const void *const right = part_##SUFFIX(d, 1, at, m, y, &type[1]);                \
        d->sum[u] += dm_loops()->SUFFIX.dot(type[0], left, type[1], right, m);            \
      }                                                                                   \
    }                                                                                     \
  }
DOT(f32, float, DM_F32)
DOT(f64, double, DM_F64)
#undef DOT

/* The sums of the chunks are added in order, so that threads change nothing. Integers are a
   product of matrices. */
dm_status dot_cpu(dm_Call *c) {
  const dm_DType to = (dm_DType)c->out[0]->dtype;
  if (!dm_is_float(to)) return matmul_cpu(c);
  Dot d = {.n = c->in[0]->numel};
  const int64_t chunks = (d.n + DOT_CHUNK - 1) / DOT_CHUNK;
  double few[64], all = 0;
  d.sum = chunks <= DM_COUNT(few) ? few
                                  : dm_scratch(DM_SCRATCH_JOB, chunks * (int64_t)sizeof *d.sum);
  if (!d.sum) return dm_fail(DM_EMEM, "dot: out of memory");
  for (int i = 0; i < 2; i++) {
    d.type[i] = (dm_DType)c->in[i]->dtype;
    d.stride[i] = c->in[i]->stride[0];
    d.data[i] = dm_tensor_data(c->in[i]);
  }
  dm_parallel_for(chunks, 1, dm_compute_dtype(to) == DM_F64 ? dot_f64 : dot_f32, &d);
  for (int64_t u = 0; u < chunks; u++) all += d.sum[u];
  dm_store_f64(to, dm_tensor_data(c->out[0]), 1, 1, &all);
  dm_scratch_trim(DM_SCRATCH_JOB);
  return DM_OK;
}

/* The identity of one operand, by which addmm broadcasts its input into the output. */
static void same_f32(const float *const *in, float *out, int64_t n, const double *param) {
  DM_UNUSED(param);
  memcpy(out, in[0], (size_t)n * sizeof *out);
}
static void same_f64(const double *const *in, double *out, int64_t n, const double *param) {
  DM_UNUSED(param);
  memcpy(out, in[0], (size_t)n * sizeof *out);
}
static void same_i64(const int64_t *const *in, int64_t *out, int64_t n, const double *param) {
  DM_UNUSED(param);
  memcpy(out, in[0], (size_t)n * sizeof *out);
}

static const dm_Pointwise same = {.f32 = same_f32, .f64 = same_f64, .i64 = same_i64};

/* beta input + alpha a b: where beta is not 0 the input is broadcast into the output
   first, unless it is a row that gemm adds as a bias. A column times a row, as addr's, needs no
   product of matrices: it is one walk over all. */
dm_status addmm_cpu(dm_Call *c) {
  dm_Tensor *in = c->in[0], *out = c->out[0];
  if (out->numel == 0) return DM_OK;
  dm_Product p;
  dm_addmm_product(&p, c);
  if (p.k == 1 && p.beta == 1 && dm_is_float((dm_DType)out->dtype)) {
    const double alpha[2] = {p.alpha, 0};
    return dm_pointwise(out, 3, c->in, (dm_DType)out->dtype,
                        &dm_loops()->triple[DM_TRIPLE_addcmul], alpha);
  }
  if (p.beta != 0) DM_TRY(dm_pointwise(out, 1, &in, (dm_DType)in->dtype, &same, NULL));
  return multiply(&p);
}

/* multiply in the form that dm_linear_by wants. */
static dm_status multiply_for(dm_Product *p, dm_Call *c) {
  DM_UNUSED(c);
  return multiply(p);
}

/* y = activation(x W^T + b). For 16-bit dtypes gelu is applied to float32 sums that
   are not rounded yet; relu commutes with rounding and is applied in place. */
dm_status linear_cpu(dm_Call *c) {
  const dm_Activation a = (dm_Activation)DM_ATTR(dm_ActivationAttr, c)->activation;
  if (a == DM_ACTIVATION_NONE) return dm_linear_by(multiply_for, c, c->out[0]);
  const bool rounds = a != DM_RELU && dm_dtype_size((dm_DType)c->out[0]->dtype) == 2;
  dm_Tensor *sums = c->n_out > 1 ? c->out[1] : c->out[0], *wide = NULL;
  if (rounds) {
    dm_Meta m = c->out_meta[0];
    m.dtype = DM_F32;
    DM_TRY(dm_tensor_new_meta(&m, &wide));
    sums = wide;
  }
  dm_status st = dm_linear_by(multiply_for, c, sums);
  if (st == DM_OK)
    st = dm_unary_into(c->out[0], dm_activation_op(a), dm_activation_param(a), sums);
  if (st == DM_OK && wide && c->n_out > 1)
    st = dm_pointwise(c->out[1], 1, &wide, DM_F32, &same, NULL);
  dm_tensor_unref(&wide);
  return st;
}

/* out (C) = the sum of x (R, C) over its rows, by the kernel of op sum. */
static dm_status sum_rows(dm_Tensor *x, dm_Tensor *out) {
  if (dm_sum_few_rows(x, out)) return DM_OK;
  const dm_SumAttr rows = {{1, {0}}, 0, DM_NO_DTYPE};
  dm_Call c = {.op = &dm_ops[DM_OP_sum], .n_in = 1, .n_out = 1, .in = &x, .attr = &rows};
  c.out[0] = out;
  return out->numel ? sum_cpu(&c) : DM_OK;
}

/* dW = gy'^T x and db = sum of gy' over its rows, with gy' = gy times the
   activation's slope. */
dm_status linear_backward_cpu(dm_Call *c) {
  const dm_Activation a = (dm_Activation)DM_ATTR(dm_ActivationAttr, c)->activation;
  dm_Tensor *gy = c->in[0];
  if (a != DM_ACTIVATION_NONE) {
    dm_Tensor *const in[] = {gy, c->in[2]};
    const double pq[2] = {dm_activation_param(a), 0};
    gy = c->out[2];
    DM_TRY(dm_pointwise(gy, 2, in, (dm_DType)gy->dtype,
                        &dm_loops()->unary_back[dm_activation_op(a)], pq));
  }
  if (c->out[0]->numel) {
    dm_Product p;
    dm_weight_product(&p, gy, c->in[1], c->out[0]);
    DM_TRY(multiply(&p));
  }
  return sum_rows(gy, c->out[1]);
}

/* ---- gradients ---- */

/* t^T of the last two dims, a view. */
static dm_Tensor *x_mt(dm_X *x, dm_Tensor *t) { return x_transpose(x, t, -2, -1); }

/* t (..., C) as (R, C). */
static dm_Tensor *x_rows(dm_X *x, dm_Tensor *t) {
  if (x->st != DM_OK || t->ndim == 2) return t;
  const int last = t->ndim - 1;
  const int64_t shape[2] = {dm_numel(last, t->shape), t->shape[last]};
  return x_reshape(x, t, 2, shape);
}

/* a^T b, the gradient of a weight; of the `rows` of both, or batch by batch. No view is left,
   which would hold a or b. */
static dm_Tensor *weight_gradient(dm_X *x, dm_Tensor *a, dm_Tensor *b, bool rows) {
  dm_X own = {.st = x->st};
  if (rows) a = x_rows(&own, a), b = x_rows(&own, b);
  dm_Tensor *y = own.st == DM_OK ? x_matmul(&own, x_mt(&own, a), b) : NULL;
  if (y) dm_tensor_ref(y);
  x->st = own.st;
  dm_x_free(&own);
  return dm_x_own(x, y);
}

/* a b, the gradient of an operand m. If the tape sums it over batches along which m was
   broadcast, the products are float32, so that 16 bits are rounded once. */
static dm_Tensor *summed_product(dm_X *x, dm_Tensor *a, dm_Tensor *b, const dm_Meta *m) {
  if (x->st != DM_OK) return NULL;
  const int batches = m->ndim > 2 ? m->ndim - 2 : 0;
  const dm_Tensor *most = a->ndim > b->ndim ? a : b;
  if (dm_numel(most->ndim - 2, most->shape) > dm_numel(batches, m->shape)) {
    a = dm_x_widen(x, a);
    b = dm_x_widen(x, b);
  }
  return x_matmul(x, a, b);
}

/* db = a^T gy. Where b has no batch dims the sum over all batches is one product of
   the flattened rows. */
static dm_Tensor *right_gradient(dm_X *x, dm_Tensor *a, const dm_Meta *b, dm_Tensor *gy) {
  if (b->ndim > 2) return summed_product(x, x_mt(x, a), gy, b);
  return weight_gradient(x, a, gy, true);
}

/* y = a b: da = gy b^T, db = a^T gy; the tape sums over broadcast batches. A vector
   a takes part as a row, a vector b as a column. */
void matmul_grad(dm_Grad *g) {
  dm_X *x = g->x;
  dm_Tensor *a = g->in[0], *b = g->in[1], *gy = g->gy[0];
  const bool a_vec = dm_in_meta(g, 0)->ndim == 1, b_vec = dm_in_meta(g, 1)->ndim == 1;
  if (a_vec && b_vec) { /* no sum: a product of each element with gy, which is a number */
    if (g->need[0]) g->gx[0] = x_mul(x, b, gy);
    if (g->need[1]) g->gx[1] = x_mul(x, a, gy);
    return;
  }
  if (b_vec) {
    gy = x_unsqueeze(x, gy, gy->ndim);
    if (b) b = x_unsqueeze(x, b, 1); /* each is kept only for the other's gradient */
  }
  if (a_vec && x->st == DM_OK) {
    gy = x_unsqueeze(x, gy, gy->ndim - 1);
    if (a) a = x_unsqueeze(x, a, 0);
  }
  if (x->st != DM_OK) return;
  if (g->need[0]) g->gx[0] = summed_product(x, gy, x_mt(x, b), dm_in_meta(g, 0));
  if (g->need[1]) g->gx[1] = right_gradient(x, a, dm_in_meta(g, 1), gy);
  if (b_vec && g->gx[1]) g->gx[1] = x_reshape(x, g->gx[1], 1, dm_in_meta(g, 1)->shape);
}

/* t, or t times s where s is not 1: most calls have alpha = beta = 1. */
static dm_Tensor *scaled(dm_X *x, dm_Tensor *t, double s) {
  return s == 1 ? t : x_scale(x, t, s);
}

/* Whether one op of the device gives the gradients of a bias, c (N), and of b (K, N). */
static bool is_bias_gradient(const dm_Grad *g) {
  const dm_AddmmAttr *a = DM_ATTR(dm_AddmmAttr, g);
  const dm_Meta *bias = dm_in_meta(g, 0);
  const dm_Tensor *gy = g->gy[0];
  return !g->create_graph && g->need[0] && g->need[2] && a->beta == 1 && a->alpha == 1 &&
         gy->ndim == 2 && bias->ndim == 1 && bias->shape[0] == gy->shape[1] &&
         bias->dtype == gy->dtype && dm_is_float((dm_DType)gy->dtype) &&
         dm_op_has_kernel(DM_OP_addmm_backward, gy->device);
}

/* y = beta c + alpha a b: dc = beta gy, da = alpha gy b^T, db = alpha a^T gy. */
void addmm_grad(dm_Grad *g) {
  dm_X *x = g->x;
  const dm_AddmmAttr *a = DM_ATTR(dm_AddmmAttr, g);
  dm_Tensor *gy = g->gy[0];
  if (is_bias_gradient(g)) {
    dm_Tensor *const in[] = {gy, g->in[1]};
    dm_Tensor *out[DM_MAX_OUT] = {NULL};
    if (!x_call(x, DM_OP_addmm_backward, NULL, 2, in, out)) return;
    g->gx[0] = out[1];
    g->gx[2] = out[0];
  } else {
    if (g->need[0]) g->gx[0] = scaled(x, gy, a->beta);
    if (g->need[2]) g->gx[2] = scaled(x, weight_gradient(x, g->in[1], gy, false), a->alpha);
  }
  dm_done_with(g, 1);
  if (g->need[1]) g->gx[1] = scaled(x, x_matmul(x, gy, x_mt(x, g->in[2])), a->alpha);
}

/* The activation that linear applied. */
static dm_Activation activation_of(const dm_Grad *g) {
  return (dm_Activation)DM_ATTR(dm_ActivationAttr, g)->activation;
}
/* The saved output that the activation's gradient reads: the result for relu, the
   sum before it for gelu. */
static dm_Tensor *saved_of(const dm_Grad *g) {
  return g->out[activation_of(g) == DM_RELU ? 0 : 1];
}
/* The sum before the activation is an output of the op, so that under create_graph a
   second gradient may flow into it; NULL when there is none. */
static dm_Tensor *second_gradient(const dm_Grad *g) { return g->n_out > 1 ? g->gy[1] : NULL; }

/* The gradient of the sum before the activation: gy times the activation's slope,
   plus the second gradient. */
static dm_Tensor *before_activation(dm_Grad *g) {
  const dm_Activation a = activation_of(g);
  dm_Tensor *gy = g->gy[0], *more = second_gradient(g);
  if (gy && a != DM_ACTIVATION_NONE) {
    const double pq[2] = {dm_activation_param(a), 0};
    gy = x_unary_back(g->x, dm_activation_op(a), pq, gy, saved_of(g), g->create_graph);
  }
  return !more ? gy : gy ? x_add(g->x, gy, more) : more;
}

/* True when the device has a kernel for the gradients of weight and bias together
   and nothing needs them as a composition. */
static bool is_fused(const dm_Grad *g) {
  return g->n_in > 2 && g->need[1] && g->need[2] && !g->create_graph && !second_gradient(g) &&
         dm_op_has_kernel(DM_OP_linear_backward, dm_in_meta(g, 1)->device);
}
/* The same with one fused call, which also sets the gradients of weight and bias. */
static dm_Tensor *fused_backward(dm_Grad *g) {
  dm_X *x = g->x;
  const bool plain = activation_of(g) == DM_ACTIVATION_NONE;
  dm_Tensor *gy = g->gy[0], *out[DM_MAX_OUT] = {NULL};
  dm_X views = {.st = x->st}; /* which go at once, for they hold what was computed again */
  dm_Tensor *const in[] = {x_rows(&views, gy), x_rows(&views, g->in[0]),
                           plain ? NULL : x_rows(&views, saved_of(g))};
  x->st = views.st;
  const bool ok = x->st == DM_OK && x_call(x, DM_OP_linear_backward, g->attr, 3, in, out);
  dm_x_free(&views);
  if (!ok) return NULL;
  g->gx[1] = out[0];
  g->gx[2] = out[1];
  if (plain) return gy;
  return gy->ndim == 2 ? out[2] : x_reshape(x, out[2], gy->ndim, gy->shape);
}

/* y = x W^T + b with the leading dims flattened to rows: dx = gy W, dW = gy^T x, db
   = sum of gy over its rows. */
void linear_grad(dm_Grad *g) {
  dm_X *x = g->x;
  const bool fused = is_fused(g);
  dm_Tensor *gy = fused ? fused_backward(g) : before_activation(g);
  if (!fused) {
    if (g->need[1]) g->gx[1] = weight_gradient(x, gy, g->in[0], true);
    if (g->n_in > 2 && g->need[2]) g->gx[2] = x_sum(x, x_rows(x, gy), (dm_Ints){1, {0}}, false);
  }
  dm_done_with(g, 0);
  if (g->need[0]) g->gx[0] = x_matmul(x, gy, g->in[1]);
}

/* ---- outer ---- */

/* u (M), v (N) -> u v^T (M, N) by broadcasting. */
dm_status outer_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *a = c->in[0], *b = c->in[1];
  DM_TRY(check_ranks(c, a, 1, b, 1));
  c->out[0] = x_mul(x, x_unsqueeze(x, a, 1), b);
  return x->st;
}

/* x (..., in), weight (in), bias () or (1) -> (...): linear without the dim of its outputs. */
dm_status linear_vector_compose(dm_Call *c, dm_X *x) {
  const int64_t one = 1;
  dm_Tensor *row = x_unsqueeze(x, c->in[1], 0), *bias = bias_of(c), *y;
  if (bias && bias->ndim == 0) bias = x_reshape(x, bias, 1, &one);
  y = bias ? dm_x(x, DM_OP_linear, c->attr, 3, c->in[0], row, bias)
           : dm_x(x, DM_OP_linear, c->attr, 2, c->in[0], row);
  c->out[0] = x_squeeze(x, y, -1);
  return x->st;
}

/* ---- addmv, addr, addbmm, vdot: compositions of addmm and dot ---- */

/* beta c + alpha A v: addmm with v as a column, and c as a column too. */
dm_status addmv_compose(dm_Call *c, dm_X *x) {
  DM_TRY(dm_check_ndim(c, 1, "mat", 2));
  DM_TRY(dm_check_ndim(c, 2, "vec", 1));
  dm_Tensor *start = c->in[0]->ndim ? x_unsqueeze(x, c->in[0], -1) : c->in[0];
  dm_Tensor *column = x_unsqueeze(x, c->in[2], -1);
  c->out[0] = x_squeeze(x, dm_x(x, DM_OP_addmm, c->attr, 3, start, c->in[1], column), -1);
  return x->st;
}

/* beta c + alpha u v^T: addmm of a column and a row; dtypes are promoted. */
dm_status addr_compose(dm_Call *c, dm_X *x) {
  DM_TRY(dm_check_ndim(c, 1, "vec1", 1));
  DM_TRY(dm_check_ndim(c, 2, "vec2", 1));
  const dm_DType t = dm_result_dtype(3, c->in);
  dm_Tensor *start = x_cast(x, c->in[0], t), *u = x_cast(x, c->in[1], t);
  dm_Tensor *v = x_cast(x, c->in[2], t);
  c->out[0] =
      dm_x(x, DM_OP_addmm, c->attr, 3, start, x_unsqueeze(x, u, -1), x_unsqueeze(x, v, 0));
  return x->st;
}

/* beta c + alpha sum_b A_b B_b. The sum over the batch is one product of
   concatenated matrices: (N, B M) times (B M, P). */
dm_status addbmm_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *a = c->in[1], *b = c->in[2];
  DM_TRY(dm_check_ndim(c, 1, "batch1", 3));
  DM_TRY(dm_check_ndim(c, 2, "batch2", 3));
  if (a->shape[0] != b->shape[0] || a->shape[2] != b->shape[1])
    return dm_fail(DM_EARG,
                   "addbmm: batch1 has shape %s, batch2 %s, wanted {b, n, m}, {b, m, p}",
                   DM_SHAPE(a), DM_SHAPE(b));
  const int64_t depth = a->shape[0] * a->shape[2];
  a = x_reshape(x, x_transpose(x, a, 0, 1), 2, (int64_t[]){a->shape[1], depth});
  b = x_reshape(x, b, 2, (int64_t[]){depth, b->shape[2]});
  c->out[0] = dm_x(x, DM_OP_addmm, c->attr, 3, c->in[0], a, b);
  return x->st;
}

/* dot; there are no complex numbers to conjugate. */
dm_status vdot_compose(dm_Call *c, dm_X *x) {
  c->out[0] = dm_x(x, DM_OP_dot, NULL, 2, c->in[0], c->in[1]);
  return x->st;
}
