/* sum, mean, sum_to_size, prod, var, std, norm and logsumexp: the arithmetic, the
   rule and the gradient of each. run.c traverses the elements; the float loops are
   in cpu/loops/reals.inc.

   An op describes its arithmetic as a dm_Reduction: how n elements join the running
   state (dm_Acc), how the states of two parts are merged, and how the final state
   becomes a value. Sums are two-level: blocks of the compute type are added up in
   float64, so that the rounding error does not grow with the number of elements as
   in a plain float32 loop. Variances use the two-pass formula inside a block and the
   pairwise update of Chan, Golub & LeVeque 1979 between blocks, which does not
   cancel as E[x^2] - E[x]^2 does. logsumexp keeps the maximum and the scaled sum of
   exponentials, so nothing overflows. */
#include "op/reduce/reduce.h"

#include "base/error.h"
#include "base/triple.h"
#include "cpu/loops/loops.h"
#include "cpu/vec.h"
#include "op/pointwise/pointwise.h"
#include "op/reduction.h"

/* ---- helpers of rules and gradients ---- */

/* Bit d of *mask is set when dim d is reduced. A dim that is named twice, also once
   as a negative number, is an error. */
dm_status dm_dims_mask(const dm_Call *c, const dm_Tensor *t, const dm_Ints *dims,
                       unsigned *mask) {
  unsigned seen = *mask = 0;
  for (int64_t i = 0; i < dims->n; i++) {
    int d;
    DM_TRY(dm_check_dim(c, t, dims->v[i], &d));
    if (seen >> d & 1u)
      return dm_fail(DM_EARG, "%s: dim %d is named twice", c->op->name, d + c->base);
    seen |= 1u << d;
  }
  *mask = dims->n > 0 ? seen : (1u << dm_max_i64(1, t->ndim)) - 1u;
  return DM_OK;
}

/* x (A, B, C) over dim 1 gives (A, C), or (A, 1, C) with keepdim. */
void dm_out_reduced(dm_Call *c, int i, const dm_Tensor *t, unsigned mask, bool keepdim,
                    dm_DType dtype) {
  dm_Meta *m = &c->out_meta[i];
  dm_out_like(c, i, t, dtype);
  m->ndim = 0;
  for (int d = 0; d < t->ndim; d++) {
    const bool gone = mask >> d & 1u;
    if (gone && !keepdim) continue;
    m->shape[m->ndim++] = gone ? 1 : t->shape[d];
  }
}

/* A gradient must be broadcast against x in the backward pass, whatever keepdim was. */
dm_Tensor *x_keepdim(dm_X *x, dm_Tensor *r, const dm_Meta *m, unsigned mask) {
  if (x->st != DM_OK || !r || r->ndim == m->ndim) return r;
  int64_t shape[DM_MAX_DIM];
  for (int d = 0; d < m->ndim; d++) shape[d] = mask >> d & 1u ? 1 : m->shape[d];
  return x_reshape(x, r, m->ndim, shape);
}

/* dm_x returns the first output only; ops with several are called here. */
bool x_call(dm_X *x, int op, const void *attr, int n_in, dm_Tensor *const *in,
            dm_Tensor **out) {
  int n_out = 0;
  if (x->st != DM_OK) return false;
  x->st = dm_call_n(op, n_in, in, attr, out, &n_out);
  if (x->st != DM_OK) return false;
  for (int i = 0; i < n_out; i++)
    (void)dm_x_own(
        x, out[i]); /* every output is owned, even after a failure: otherwise it would leak */
  return x->st == DM_OK;
}

/* ---- sum, mean: s->a the sum of floats, s->i the sum of integers ---- */

/* Adds the sums of a later part; one of a and i is not used and stays 0. */
static void sum_merge(dm_Acc *s, const dm_Acc *later) {
  s->a += later->a;
  s->i = (int64_t)((uint64_t)s->i + (uint64_t)later->i);
}

/* The sum is the value. */
static double sum_value(const dm_Acc *s, double param, int64_t n) {
  DM_UNUSED(param), DM_UNUSED(n);
  return s->a;
}
/* mean = sum / n; NaN for n = 0. */
static double mean_value(const dm_Acc *s, double param, int64_t n) {
  DM_UNUSED(param);
  return s->a / (double)n;
}

static const dm_Reduction sum_reduction = {
    .loop = DM_REDUCE_SUM, .merge = sum_merge, .value = sum_value, .plain = true};
static const dm_Reduction mean_reduction = {
    .loop = DM_REDUCE_SUM, .merge = sum_merge, .value = mean_value};

static const dm_Reduction nansum_reduction = {
    .loop = DM_REDUCE_NANSUM, .merge = sum_merge, .value = sum_value, .plain = true};

/* Reduces input 0 over dims, in the compute type of the output's dtype, so that
   sum(dtype = ...) converts before it adds. */
static dm_status reduce_in_out_dtype(dm_Call *c, dm_Ints dims, const dm_Reduction *reduction) {
  dm_Tensor *out[2] = {c->out[0], NULL};
  return dm_reduce(out, c->in[0], dm_dims_bits(c->in[0]->ndim, dims),
                   dm_compute_dtype((dm_DType)c->out[0]->dtype), reduction, 0, 0);
}

/* Floats keep their dtype, integers and bool give int64 unless a dtype is asked for. */
dm_status sum_rule(dm_Call *c) {
  const dm_SumAttr *a = DM_ATTR(dm_SumAttr, c);
  const dm_Tensor *x = c->in[0];
  const dm_DType own = (dm_DType)x->dtype;
  unsigned mask;
  DM_TRY(dm_dims_mask(c, x, &a->dim, &mask));
  dm_out_reduced(c, 0, x, mask, a->keepdim,
                 a->dtype >= 0      ? (dm_DType)a->dtype
                 : dm_is_float(own) ? own
                                    : DM_I64);
  return DM_OK;
}

/* Sums x (N, C) over dim 0 for a contiguous x with few rows and columns, as the bias
   gradient of a small layer. It adds the rows in the same order and type as the general
   traversal and gives the same bits, without its setup. */
bool dm_sum_few_rows(const dm_Tensor *x, dm_Tensor *out) {
  enum { MOST = 256 };
  const dm_DType from = (dm_DType)x->dtype, to = (dm_DType)out->dtype;
  if (x->ndim != 2 || x->shape[0] > DM_REDUCE_ROWS || x->shape[1] > MOST || x->numel == 0 ||
      dm_compute_dtype(from) != DM_F32 || dm_compute_dtype(to) != DM_F32 ||
      !dm_tensor_is_contiguous(x))
    return false;
  const int64_t n = x->shape[1], row_bytes = n * dm_dtype_size(from);
  const char *row = dm_tensor_data(x);
  float sum[MOST], wide[MOST];
  for (int64_t k = 0; k < n; k++) sum[k] = 0;
  for (int64_t i = 0; i < x->shape[0]; i++, row += row_bytes) {
    const float *v = (const float *)(const void *)row;
    if (from != DM_F32) dm_load_f32(from, row, 1, n, wide), v = wide;
    for (int64_t k = 0; k < n; k++) sum[k] += v[k];
  }
  dm_store_f32(to, dm_tensor_data(out), 1, n, sum);
  return true;
}

/* float16 and bfloat16 are added in float32 and rounded once. */
dm_status sum_cpu(dm_Call *c) {
  const dm_Tensor *x = c->in[0];
  const dm_Ints *dims = &DM_ATTR(dm_SumAttr, c)->dim;
  const bool rows = x->ndim == 2 && dims->n == 1 && (dims->v[0] == 0 || dims->v[0] == -2);
  if (rows && dm_sum_few_rows(x, c->out[0])) return DM_OK;
  return reduce_in_out_dtype(c, DM_ATTR(dm_SumAttr, c)->dim, &sum_reduction);
}

/* Of floats, to a float dtype. */
dm_status sum_numbers_cpu(dm_Call *c) {
  return reduce_in_out_dtype(c, DM_ATTR(dm_SumAttr, c)->dim, &nansum_reduction);
}

/* gy reshaped to keep the reduced dims with size 1 and broadcast to x's shape: the
   gradient of a sum. */
static dm_Tensor *spread(dm_Grad *g, dm_Ints dims) {
  const dm_Meta *m = dm_in_meta(g, 0);
  dm_Tensor *gy = x_keepdim(g->x, g->gy[0], m, dm_dims_bits(m->ndim, dims));
  return x_expand(g->x, gy, m->ndim, m->shape);
}

/* Each element of x entered one sum with the factor 1. */
void sum_grad(dm_Grad *g) { g->gx[0] = spread(g, DM_ATTR(dm_SumAttr, g)->dim); }
/* A NaN entered no sum. */
void sum_numbers_grad(dm_Grad *g) {
  dm_Tensor *gy = spread(g, DM_ATTR(dm_SumAttr, g)->dim);
  g->gx[0] = x_where(g->x, x_unary(g->x, DM_OP_isnan, g->in[0]), dm_x_number(g->x, 0), gy);
}

/* The mean of integers is refused unless a float dtype is asked for, as in PyTorch. */
dm_status mean_rule(dm_Call *c) {
  const dm_SumAttr *a = DM_ATTR(dm_SumAttr, c);
  const dm_Tensor *x = c->in[0];
  const dm_DType to = a->dtype >= 0 ? (dm_DType)a->dtype : (dm_DType)x->dtype;
  unsigned mask;
  if (!dm_is_float(to))
    return dm_fail(
        DM_EARG,
        "mean: the result would be %s, wanted a float dtype; hint: dtype = \"float32\"",
        dm_dtype_name(to));
  DM_TRY(dm_dims_mask(c, x, &a->dim, &mask));
  dm_out_reduced(c, 0, x, mask, a->keepdim, to);
  return DM_OK;
}

/* The sum is divided in float64 before it is rounded to the dtype. */
dm_status mean_cpu(dm_Call *c) {
  return reduce_in_out_dtype(c, DM_ATTR(dm_SumAttr, c)->dim, &mean_reduction);
}
/* The number of elements that one output is reduced from. */
static int64_t n_reduced(const dm_Meta *m, unsigned mask) {
  int64_t n = 1;
  for (int d = 0; d < m->ndim; d++)
    if (mask >> d & 1u) n *= m->shape[d];
  return n;
}
/* dx = gy / n, broadcast to x's shape. */
dm_status dm_mean(dm_Tensor *out, const dm_Tensor *x, unsigned mask) {
  return dm_reduce((dm_Tensor *[]){out, NULL}, x, mask, dm_compute_dtype((dm_DType)x->dtype),
                   &mean_reduction, 0, 0);
}

void mean_grad(dm_Grad *g) {
  const dm_Meta *m = dm_in_meta(g, 0);
  const dm_Ints dims = DM_ATTR(dm_SumAttr, g)->dim;
  const unsigned mask = dm_dims_bits(m->ndim, dims);
  dm_Tensor *gy = x_scale(g->x, g->gy[0], 1.0 / (double)n_reduced(m, mask));
  gy = x_keepdim(g->x, gy, m, mask);
  g->gx[0] = x_expand(g->x, gy, m->ndim, m->shape);
}

/* ---- sum_to_size: the adjoint of broadcasting ---- */

/* The output has the shape `size`. */
static void out_of_size(dm_Call *c, const dm_Tensor *x, const dm_Ints *size, dm_DType dtype) {
  dm_out_like(c, 0, x, dtype);
  c->out_meta[0].ndim = (uint8_t)size->n;
  for (int64_t d = 0; d < size->n; d++) c->out_meta[0].shape[d] = size->v[d];
}

/* x broadcasts to its shape from `size`: every size is equal or 1, counted from the
   last dim. Sums of integers and of bool are int64, as those of sum; x's own size sums nothing.
 */
dm_status sum_to_size_rule(dm_Call *c) {
  const dm_Ints *size = &DM_ATTR(dm_SumToSizeAttr, c)->size;
  const dm_Tensor *x = c->in[0];
  const int64_t lead = x->ndim - size->n;
  bool ok = lead >= 0, same = lead == 0;
  for (int64_t d = 0; ok && d < size->n; d++) {
    ok = size->v[d] == 1 || size->v[d] == x->shape[d + lead];
    same &= size->v[d] == x->shape[d + lead];
  }
  if (!ok)
    return dm_fail(DM_EARG, "sum_to_size: %s does not broadcast to %s",
                   DM_DIMS((int)size->n, size->v), DM_SHAPE(x));
  const dm_DType dtype = (dm_DType)x->dtype;
  out_of_size(c, x, size, same || dm_is_float(dtype) ? dtype : DM_I64);
  return DM_OK;
}

/* Sums over the dims along which `size` would be repeated; leading dims disappear. */
dm_status sum_to_size_cpu(dm_Call *c) {
  dm_Tensor *out[2] = {c->out[0], NULL};
  return dm_reduce(out, c->in[0],
                   dm_repeated_bits(c->in[0], &DM_ATTR(dm_SumToSizeAttr, c)->size),
                   dm_compute_dtype((dm_DType)c->out[0]->dtype), &sum_reduction, 0, 0);
}

/* The adjoint of the adjoint: gy broadcast to x's shape. */
void sum_to_size_grad(dm_Grad *g) {
  const dm_Meta *m = dm_in_meta(g, 0);
  g->gx[0] = x_expand(g->x, g->gy[0], m->ndim, m->shape);
}

/* ---- prod ---- */

/* Products of floats are kept in float64 in s->a, of integers (modulo 2^64) in s->i. */
/* Multiplies with the product of a later part. */
static void prod_merge(dm_Acc *s, const dm_Acc *later) {
  s->a *= later->a;
  s->i = (int64_t)((uint64_t)s->i * (uint64_t)later->i);
}
static const dm_Reduction prod_reduction = {
    .start = {1, 0, 1, 0}, .loop = DM_REDUCE_PROD, .merge = prod_merge, .value = sum_value};

/* Products run in float64, whose range delays overflow; the value is rounded once. */
dm_status prod_cpu(dm_Call *c) {
  return reduce_in_out_dtype(c, DM_ATTR(dm_SumAttr, c)->dim, &prod_reduction);
}

/* For each element the product of the elements before it along the last dim. */
static dm_Tensor *before_each(dm_X *x, dm_Tensor *t) {
  const int64_t last = -1, n = x->st == DM_OK ? t->shape[t->ndim - 1] : 1;
  const int64_t one[3] = {-1, 0, 1}, rest[3] = {-1, 0, n - 1};
  const dm_CumsumAttr along = {-1, DM_NO_DTYPE};
  dm_Tensor *ones = x_unary(x, DM_OP_ones_like, dm_x(x, DM_OP_narrow, one, 1, t));
  dm_Tensor *products = dm_x(x, DM_OP_cumprod, &along, 1, t);
  return dm_x(x, DM_OP_cat, &last, 2, ones, dm_x(x, DM_OP_narrow, rest, 1, products));
}

/* For each element the product of the others over the dims of the mask, without a division: it
   has the right gradient at zeros. */
static dm_Tensor *others(dm_X *x, dm_Tensor *v, unsigned mask) {
  dm_Ints order = {v->ndim, {0}}, back = {v->ndim, {0}};
  int64_t shape[DM_MAX_DIM + 1];
  int n = 0;
  for (int reduced = 0; reduced < 2; reduced++)
    for (int d = 0; d < v->ndim; d++)
      if ((mask >> d & 1) == (unsigned)reduced) order.v[n++] = d;
  for (int d = 0; d < n; d++) back.v[order.v[d]] = d;
  dm_Tensor *t = dm_x(x, DM_OP_permute, &order, 1, v);
  if (x->st != DM_OK) return NULL;
  int kept = 0;
  while (kept < n && !(mask >> order.v[kept] & 1)) kept++;
  for (int d = 0; d < kept; d++) shape[d] = t->shape[d];
  shape[kept] = dm_numel(n - kept, t->shape + kept);
  dm_Tensor *lines = x_reshape(x, t, kept + 1, shape);
  const dm_Ints turn = {1, {-1}};
  dm_Tensor *after = before_each(x, dm_x(x, DM_OP_flip, &turn, 1, lines));
  lines = x_mul(x, before_each(x, lines), dm_x(x, DM_OP_flip, &turn, 1, after));
  return dm_x(x, DM_OP_permute, &back, 1, x_reshape(x, lines, n, t->shape));
}

/* dx_i = gy * product of all other elements. With no zero in the slice that is prod /
   x_i; with exactly one zero only its own element has a gradient, the product of the
   rest; with more zeros none has. `rest` is x with its zeros replaced by 1, so that no
   division by zero occurs. That has no second gradient at a zero, and so another way is taken
   where one is asked for. Data of the CPU are read once to see whether there is a zero at all.
 */
static bool has_no_zero(dm_X *x, dm_Tensor *v) {
  if (x->st != DM_OK || v->device.type != DM_CPU) return false;
  dm_Tensor *all = dm_x(x, DM_OP_all, NULL, 1, v);
  return all && *(const uint8_t *)dm_tensor_data(all);
}
void prod_grad(dm_Grad *g) {
  dm_X *x = g->x;
  const dm_SumAttr *a = DM_ATTR(dm_SumAttr, g);
  const dm_Meta *m = dm_in_meta(g, 0);
  const unsigned mask = dm_dims_bits(m->ndim, a->dim);
  dm_Tensor *v =
      x->st == DM_OK && a->dtype >= 0 ? x_cast(x, g->in[0], (dm_DType)a->dtype) : g->in[0];
  dm_Tensor *gy = x_keepdim(x, g->gy[0], m, mask);
  if (g->create_graph && x->st == DM_OK && v->numel > 0) {
    g->gx[0] = x_mul(x, gy, others(x, v, mask));
    return;
  }
  const dm_SumAttr keep = {a->dim, 1, DM_NO_DTYPE};
  if (has_no_zero(x, v)) {
    g->gx[0] = x_div(x, x_mul(x, dm_x(x, DM_OP_prod, &keep, 1, v), gy), v);
    return;
  }
  dm_Tensor *zero = dm_x_number(x, 0), *one = dm_x_number(x, 1);
  dm_Tensor *is_zero = dm_x(x, DM_OP_eq, NULL, 2, v, zero);
  dm_Tensor *n_zero = x_sum(x, is_zero, a->dim, true);
  dm_Tensor *rest = x_where(x, is_zero, one, v);
  dm_Tensor *p = x_mul(x, dm_x(x, DM_OP_prod, &keep, 1, rest), gy);
  dm_Tensor *none = dm_x(x, DM_OP_eq, NULL, 2, n_zero, zero);
  dm_Tensor *single = dm_x(x, DM_OP_eq, NULL, 2, n_zero, one);
  dm_Tensor *at_zero = x_where(x, single, p, zero);
  dm_Tensor *elsewhere = x_where(x, none, x_div(x, p, rest), zero);
  g->gx[0] = x_where(x, is_zero, at_zero, elsewhere);
}

/* ---- var, std: s->a the mean, s->b the sum of squared differences from it, s->k the
   count; parts are merged as in Chan, Golub & LeVeque 1979 ---- */

/* Joins two sets of elements given by mean, squared differences and count. */
static void var_merge(dm_Acc *s, const dm_Acc *later) {
  dm_var_join(s, later->a, later->b, later->k);
}
/* var = m2 / (n - correction); the divisor is held at 0 or above, so that one element
   with correction 1 gives NaN as in PyTorch. */
static double var_value(const dm_Acc *s, double correction, int64_t n) {
  const double by = (double)n - correction;
  return s->b / (by > 0 ? by : 0);
}

/* The root of the variance, taken before the value is rounded. */
static double std_value(const dm_Acc *s, double correction, int64_t n) {
  return sqrt(var_value(s, correction, n));
}
static const dm_Reduction var_reduction = {
    .loop = DM_REDUCE_VAR, .merge = var_merge, .value = var_value};
static const dm_Reduction std_reduction = {
    .loop = DM_REDUCE_VAR, .merge = var_merge, .value = std_value};

/* A float x; the result has its dtype. */
dm_status var_rule(dm_Call *c) {
  const dm_VarAttr *a = DM_ATTR(dm_VarAttr, c);
  unsigned mask;
  DM_TRY(dm_check_float(c, c->in[0], "x"));
  DM_TRY(dm_dims_mask(c, c->in[0], &a->dim, &mask));
  dm_out_reduced(c, 0, c->in[0], mask, a->keepdim, (dm_DType)c->in[0]->dtype);
  return DM_OK;
}
/* var and std share the traversal; std takes the root at the end. */
dm_status var_cpu(dm_Call *c) {
  const dm_VarAttr *a = DM_ATTR(dm_VarAttr, c);
  const dm_Tensor *x = c->in[0];
  dm_Tensor *out[2] = {c->out[0], NULL};
  return dm_reduce(out, x, dm_dims_bits(x->ndim, a->dim), dm_compute_dtype((dm_DType)x->dtype),
                   c->op == &dm_ops[DM_OP_std] ? &std_reduction : &var_reduction,
                   dm_correction(a), 0);
}

/* The gradient of var: dx = gy * 2 (x - mean) / (n - correction). */
static dm_Tensor *var_slope(dm_Grad *g, dm_Tensor *gy) {
  dm_X *x = g->x;
  const dm_VarAttr *a = DM_ATTR(dm_VarAttr, g);
  const dm_Meta *m = dm_in_meta(g, 0);
  const unsigned mask = dm_dims_bits(m->ndim, a->dim);
  const dm_SumAttr keep = {a->dim, 1, DM_NO_DTYPE};
  const double by = (double)n_reduced(m, mask) - dm_correction(a);
  dm_Tensor *d = x_sub(x, g->in[0], dm_x(x, DM_OP_mean, &keep, 1, g->in[0]));
  return x_mul(x, x_keepdim(x, x_scale(x, gy, 2 / (by > 0 ? by : 0)), m, mask), d);
}

/* The mean's own dependence on x adds nothing: the differences from it sum to 0. */
void var_grad(dm_Grad *g) { g->gx[0] = var_slope(g, g->gy[0]); }
/* std = sqrt(var): gy becomes gy / (2 std), and 0 where std is 0. */
void std_grad(dm_Grad *g) {
  dm_X *x = g->x;
  dm_Tensor *zero = dm_x_number(x, 0);
  dm_Tensor *gy = x_div(x, g->gy[0], x_scale(x, g->out[0], 2));
  gy = x_where(x, dm_x(x, DM_OP_eq, NULL, 2, g->out[0], zero), zero, gy);
  g->gx[0] = var_slope(g, gy);
}

/* ---- norm ---- */

/* s->a is the sum of |x|^p (of x != 0 for p = 0); the norm is its p-th root. */
static double norm_value(const dm_Acc *s, double p, int64_t n) {
  DM_UNUSED(n);
  return p == 2.0 ? sqrt(s->a) : p == 1.0 || p == 0.0 ? s->a : pow(s->a, 1 / p);
}
/* The norms for p = inf and p = -inf: the largest and the smallest |x|; NaN wins. */
static void largest_merge(dm_Acc *s, const dm_Acc *later) {
  if (s->a == s->a && (later->a > s->a || later->a != later->a)) s->a = later->a;
}
static void least_merge(dm_Acc *s, const dm_Acc *later) {
  if (s->a == s->a && (later->a < s->a || later->a != later->a)) s->a = later->a;
}
static const dm_Reduction norm_reduction = {
    .loop = DM_REDUCE_NORM, .merge = sum_merge, .value = norm_value};
static const dm_Reduction largest_reduction = {
    .loop = DM_REDUCE_LARGEST, .merge = largest_merge, .value = sum_value};
static const dm_Reduction least_reduction = {
    .loop = DM_REDUCE_LARGEST, .merge = least_merge, .value = sum_value};

/* Norms with p < 0 and p = +-inf of no elements are not defined; the others are 0. */
dm_status norm_rule(dm_Call *c) {
  const dm_NormAttr *a = DM_ATTR(dm_NormAttr, c);
  const dm_Tensor *x = c->in[0];
  unsigned mask;
  DM_TRY(dm_check_float(c, x, "x"));
  if (a->dtype >= 0 && !dm_is_float((dm_DType)a->dtype))
    return dm_fail(DM_EARG, "norm: dtype = %s, wanted a float dtype",
                   dm_dtype_name((dm_DType)a->dtype));
  DM_TRY(dm_dims_mask(c, x, &a->dim, &mask));
  dm_out_reduced(c, 0, x, mask, a->keepdim, (dm_DType)(a->dtype >= 0 ? a->dtype : x->dtype));
  if ((a->p < 0 || isinf(a->p)) && x->numel == 0 &&
      dm_numel(c->out_meta[0].ndim, c->out_meta[0].shape) > 0)
    return dm_fail(DM_EARG, "norm: the norm with p = %g of no elements is not defined; x is %s",
                   a->p, DM_SHAPE(x));
  return DM_OK;
}

/* The reduction that belongs to p; x is read in the compute type of the output's
   dtype. */
dm_status norm_cpu(dm_Call *c) {
  const dm_NormAttr *a = DM_ATTR(dm_NormAttr, c);
  const dm_Reduction *reduction = !isinf(a->p) ? &norm_reduction
                                  : a->p > 0   ? &largest_reduction
                                               : &least_reduction;
  dm_Tensor *out[2] = {c->out[0], NULL};
  return dm_reduce(out, c->in[0], dm_dims_bits(c->in[0]->ndim, a->dim),
                   dm_compute_dtype((dm_DType)c->out[0]->dtype), reduction, a->p, 0);
}

/* ---- formulas of several operands, whose gradients op/loss has ---- */

/* x's shape without its last dim, or none, in the dtype of loss_term. */
dm_status reduce_formula_rule(dm_Call *c) {
  const dm_Tensor *x = c->in[0];
  const dm_DType r = dm_result_dtype(c->n_in, c->in);
  const bool last = DM_ATTR(dm_ReduceFormulaAttr, c)->last;
  const dm_Ints dims = {last ? 1 : -1, {-1}};
  dm_out_reduced(c, 0, x, dm_dims_bits(x->ndim, dims), false,
                 dm_is_float(r) ? dm_compute_dtype(r) : dm_default_dtype());
  return DM_OK;
}

dm_status reduce_formula_cpu(dm_Call *c) {
  const dm_ReduceFormulaAttr *a = DM_ATTR(dm_ReduceFormulaAttr, c);
  const dm_Source source = {&dm_loops()->triple[a->formula], c->n_in, c->in, {a->p, a->q}};
  const dm_Reduction *reduction = a->reduction == DM_LOSS_NORM   ? &norm_reduction
                                  : a->reduction == DM_LOSS_MEAN ? &mean_reduction
                                                                 : &sum_reduction;
  const dm_Ints dims = {a->last ? 1 : -1, {-1}};
  return dm_reduce_source((dm_Tensor *[]){c->out[0], NULL}, &source,
                          dm_dims_bits(c->in[0]->ndim, dims), (dm_DType)c->out[0]->dtype,
                          reduction, a->reduction == DM_LOSS_NORM ? 2 : 0);
}

/* Sums of 16 bits are float32, and rounded by who knows the operand's dtype. */
dm_status triple_backward_sums_rule(dm_Call *c) {
  const dm_Tensor *gy = c->in[0];
  out_of_size(c, gy, &DM_ATTR(dm_TripleBackwardSumsAttr, c)->size,
              dm_compute_dtype((dm_DType)gy->dtype));
  return DM_OK;
}
dm_status triple_backward_sums_cpu(dm_Call *c) {
  const dm_TripleBackwardSumsAttr *a = DM_ATTR(dm_TripleBackwardSumsAttr, c);
  const dm_Source source = {&dm_loops()->triple[a->formula], c->n_in, c->in, {a->p, 0}};
  return dm_reduce_source((dm_Tensor *[]){c->out[0], NULL}, &source,
                          dm_repeated_bits(c->in[0], &a->size), (dm_DType)c->out[0]->dtype,
                          &sum_reduction, 0);
}

/* a^p for a number p. */
static dm_Tensor *x_pow(dm_X *x, dm_Tensor *a, double p) {
  return dm_x(x, DM_OP_pow, NULL, 2, a, dm_x_number(x, p));
}

/* A bool tensor: a == b. */
static dm_Tensor *x_same(dm_X *x, dm_Tensor *a, dm_Tensor *b) {
  return dm_x(x, DM_OP_eq, NULL, 2, a, b);
}

/* dx = gy sign(x) |x|^(p-1) / y^(p-1) for y the norm, and 0 where y is 0. p = 0 has no
   gradient, p = 1 gives gy sign(x), p = 2 gives gy x / y. For p = +-inf gy is divided
   equally among the elements with |x| = y. */
void norm_grad(dm_Grad *g) {
  dm_X *x = g->x;
  const dm_NormAttr *a = DM_ATTR(dm_NormAttr, g);
  const dm_Meta *m = dm_in_meta(g, 0);
  const unsigned mask = dm_dims_bits(m->ndim, a->dim);
  dm_Tensor *v = a->dtype >= 0 ? x_cast(x, g->in[0], (dm_DType)a->dtype) : g->in[0];
  dm_Tensor *gy = dm_x_widen(x, x_keepdim(x, g->gy[0], m, mask));
  dm_Tensor *y = dm_x_widen(x, x_keepdim(x, g->out[0], m, mask));
  dm_Tensor *zero = dm_x_number(x, 0);
  const bool scales = a->p == 2.0 && !g->create_graph; /* in one pass */
  if (!scales) v = dm_x_widen(x, v);
  if (a->p == 0.0) {
    g->gx[0] = x_zeros_like(x, v);
    return;
  }
  if (a->p == 1.0) {
    g->gx[0] = x_mul(x, x_unary(x, DM_OP_sign, v), gy);
    return;
  }
  if (isinf(a->p)) {
    dm_Tensor *hit = x_like(x, x_same(x, x_unary(x, DM_OP_abs, v), y), v);
    gy = x_div(x, gy, x_sum(x, hit, a->dim, true));
    g->gx[0] = x_mul(x, x_mul(x, x_unary(x, DM_OP_sign, v), hit), gy);
    return;
  }
  /* where y is 0 it is not divided by, for the gradient of this would be NaN */
  dm_Tensor *none = x_same(x, y, zero);
  y = x_where(x, none, dm_x_number(x, 1), y);
  dm_Tensor *top = v, *scale = x_div(x, gy, y);
  if (a->p != 2.0) {
    top = x_mul(x, x_unary(x, DM_OP_sign, v), x_pow(x, x_unary(x, DM_OP_abs, v), a->p - 1));
    if (a->p < 1) top = x_where(x, x_same(x, v, zero), zero, top);
    scale = x_div(x, gy, x_pow(x, y, a->p - 1));
  }
  scale = x_where(x, none, zero, scale);
  g->gx[0] =
      scales ? x_partial(x, DM_TRIPLE_product_back, 1, v, scale, NULL) : x_mul(x, top, scale);
}

/* ---- logsumexp: s->a the maximum m, s->b the sum of e^(x - m), see dm_lse_join; y = m
   + log(s->b) ---- */

/* Rescales the sum with the smaller maximum to the larger one and adds it. */
static void lse_merge(dm_Acc *s, const dm_Acc *later) { dm_lse_join(s, later->a, later->b); }
/* log(sum of e^(x - m)) + m; -inf for no elements. */
static double lse_value(const dm_Acc *s, double param, int64_t n) {
  DM_UNUSED(param), DM_UNUSED(n);
  return s->a + log(s->b);
}
static const dm_Reduction lse_reduction = {.start = {(double)-INFINITY, 0, 0, 0},
                                           .loop = DM_REDUCE_LSE,
                                           .merge = lse_merge,
                                           .value = lse_value};

/* Integers give float32. */
dm_status logsumexp_rule(dm_Call *c) {
  const dm_DimsAttr *a = DM_ATTR(dm_DimsAttr, c);
  const dm_Tensor *x = c->in[0];
  unsigned mask;
  DM_TRY(dm_dims_mask(c, x, &a->dim, &mask));
  dm_out_reduced(c, 0, x, mask, a->keepdim,
                 dm_is_float((dm_DType)x->dtype) ? (dm_DType)x->dtype : dm_default_dtype());
  return DM_OK;
}

/* One pass: the running sum is rescaled whenever a larger maximum appears. */
dm_status logsumexp_cpu(dm_Call *c) {
  const dm_Tensor *x = c->in[0];
  const unsigned mask = dm_dims_bits(x->ndim, DM_ATTR(dm_DimsAttr, c)->dim);
  dm_status st;
  for (int d = 0; d < x->ndim; d++)
    if (mask == 1u << d && dm_log_sums(c, d, &st)) return st;
  return reduce_in_out_dtype(c, DM_ATTR(dm_DimsAttr, c)->dim, &lse_reduction);
}
/* dx = gy softmax(x) = gy e^(x - y). */
void logsumexp_grad(dm_Grad *g) {
  dm_X *x = g->x;
  const dm_Meta *m = dm_in_meta(g, 0);
  const unsigned mask = dm_dims_bits(m->ndim, DM_ATTR(dm_DimsAttr, g)->dim);
  dm_Tensor *y = x_keepdim(x, g->out[0], m, mask), *gy = x_keepdim(x, g->gy[0], m, mask);
  if (!g->create_graph) {
    gy = x_expand(x, gy, m->ndim, m->shape);
    g->gx[0] = x_partial(x, DM_TRIPLE_lse_back, 0, gy, g->in[0], y);
    return;
  }
  dm_Tensor *off = x_sub(x, dm_x_widen(x, g->in[0]), dm_x_widen(x, y));
  g->gx[0] = x_mul(x, dm_x_widen(x, gy), x_unary(x, DM_OP_exp, off));
}
