/* What follows from the order of elements, composed of sorts, gathers and running sums:
   running products, medians and modes, counts, places among sorted elements. */
#include "op/sort/order.h"

#include "base/error.h"
#include "op/reduce/reduce.h"

/* The least and the largest of t, which are waited for. */
static dm_status read_range(dm_X *x, dm_Tensor *t, dm_DType as, void *low, void *high) {
  const dm_DimsAttr all = {{-1, {0}}, 0};
  dm_Tensor *least = x_cast(x, dm_x(x, DM_OP_amin, &all, 1, t), as);
  dm_Tensor *most = x_cast(x, dm_x(x, DM_OP_amax, &all, 1, t), as);
  DM_TRY(x->st);
  DM_TRY(dm_tensor_read(least, 8, low));
  return dm_tensor_read(most, 8, high);
}

/* ---- running products ---- */

/* Each element joined with all before it: after step s with those less than s away;
   Hillis & Steele 1986. Products need no division, so zeros have their gradient. */
static dm_Tensor *scan(dm_X *x, dm_Tensor *t, int dim, int op) {
  const int64_t n = t && t->ndim ? t->shape[dim] : 1;
  for (int64_t s = 1; s < n; s *= 2) {
    dm_Tensor *behind = x_narrow(x, t, dim, s, n - s), *before = x_narrow(x, t, dim, 0, n - s);
    t = x_cat(x, x_narrow(x, t, dim, 0, s), dm_x(x, op, NULL, 2, behind, before), dim);
  }
  return t;
}

static dm_status scanned(dm_Call *c, dm_X *x, int64_t dim, dm_DType to, int op) {
  dm_Tensor *t = c->in[0];
  int d;
  DM_TRY(dm_check_dim(c, t, dim, &d));
  dm_Tensor *y = x_cast(x, t, to);
  y = y ? scan(x, x_cast(x, y, wide_of(y)), d, op) : NULL;
  y = x_cast(x, y, to);
  c->out[0] = y == t ? x_unary(x, DM_OP_clone, t) : y;
  return x->st;
}

dm_status cumprod_compose(dm_Call *c, dm_X *x) {
  const dm_CumsumAttr *a = DM_ATTR(dm_CumsumAttr, c);
  const dm_DType own = (dm_DType)c->in[0]->dtype;
  const dm_DType to = a->dtype >= 0 ? (dm_DType)a->dtype : dm_is_float(own) ? own : DM_I64;
  return scanned(c, x, a->dim, to, DM_OP_mul);
}

dm_status logcumsumexp_compose(dm_Call *c, dm_X *x) {
  DM_TRY(dm_check_float(c, c->in[0], "x"));
  return scanned(c, x, *DM_ATTR(int64_t, c), (dm_DType)c->in[0]->dtype, DM_OP_logaddexp);
}

/* ---- the k-th, the middle one, the most frequent one ---- */

/* t, or a vector of all elements: what is chosen from lines along dim. */
typedef struct Lines {
  dm_Tensor *t;
  int dim;
  bool whole;
} Lines;

static dm_status open_lines(dm_Call *c, dm_X *x, dm_OptInt dim, Lines *l) {
  dm_Tensor *t = c->in[0];
  l->dim = 0;
  if (dim.set) DM_TRY(dm_check_dim(c, t, dim.v, &l->dim));
  l->whole = !dim.set || t->ndim == 0;
  l->t = l->whole ? x_flat(x, t) : t;
  DM_TRY(x->st);
  if (l->t->shape[l->dim] > 0) return DM_OK;
  return dm_fail(DM_EARG, "%s: x has shape %s: there is nothing to choose from", c->op->name,
                 DM_SHAPE(t));
}

/* The elements of the lines at those positions (one a line), and the positions. */
static dm_status give_chosen(dm_Call *c, dm_X *x, const Lines *l, dm_Tensor *at, bool keepdim) {
  dm_Tensor *both[2] = {x_gather(x, l->t, at, l->dim), at};
  for (int i = 0; i < c->n_out; i++) {
    if (l->whole) both[i] = x_reshape(x, both[i], 0, NULL);
    else if (!keepdim) both[i] = dm_x(x, DM_OP_squeeze, &(dm_Ints){1, {l->dim}}, 1, both[i]);
    c->out[i] = both[i];
  }
  return x->st;
}

dm_status kthvalue_compose(dm_Call *c, dm_X *x) {
  const int64_t *a = DM_ATTR(int64_t, c); /* k, dim, keepdim */
  dm_Tensor *sorted[2];
  Lines l;
  DM_TRY(open_lines(c, x, (dm_OptInt){1, a[1]}, &l));
  if (a[0] < 1 || a[0] > l.t->shape[l.dim])
    return dm_fail(DM_EARG, "kthvalue: k is %lld, wanted 1 to %lld, the size of dim %d",
                   (long long)a[0], (long long)l.t->shape[l.dim], l.dim + c->base);
  if (!x_sort(x, l.t, l.dim, sorted)) return x->st;
  return give_chosen(c, x, &l, x_narrow(x, sorted[1], l.dim, a[0] - 1, 1), a[2]);
}

/* at, or where a line holds NaN the first one's position. */
static dm_Tensor *or_nan(dm_X *x, const Lines *l, dm_Tensor *at) {
  if (!dm_is_float((dm_DType)l->t->dtype)) return at;
  dm_Tensor *nan = x_unary(x, DM_OP_isnan, l->t);
  dm_Tensor *some = dm_x(x, DM_OP_any, &(dm_DimsAttr){{1, {l->dim}}, true}, 1, nan);
  dm_Tensor *first =
      dm_x(x, DM_OP_argmax, &(dm_DimAttr){{1, l->dim}, true}, 1, x_cast(x, nan, DM_I64));
  return x_where(x, some, first, at);
}

/* Elements of each line that are no NaN: one number a line. */
static dm_Tensor *count_numbers(dm_X *x, const Lines *l) {
  dm_Tensor *number = x_unary(x, DM_OP_logical_not, x_unary(x, DM_OP_isnan, l->t));
  return x_sum(x, x_cast(x, number, DM_I64), (dm_Ints){1, {l->dim}}, true);
}

/* Where the middle one of the others stands: NaN lie last in order. */
static dm_Tensor *middle_number(dm_X *x, const Lines *l, dm_Tensor *order, int base) {
  const struct { int64_t rounding; } floored = {2};
  dm_Tensor *last = x_floor(x, x_moved(x, count_numbers(x, l), -1), 0);
  dm_Tensor *middle = dm_x(x, DM_OP_div, &floored, 2, last, x_whole(x, 2));
  return x_gather(x, order, x_moved(x, middle, base), l->dim);
}

static dm_status median(dm_Call *c, dm_X *x, bool skip_nan) {
  const dm_DimAttr *a = DM_ATTR(dm_DimAttr, c);
  dm_Tensor *sorted[2], *at;
  Lines l;
  c->n_out = a->dim.set ? 2 : 1;
  DM_TRY(open_lines(c, x, a->dim, &l));
  if (!x_sort(x, l.t, l.dim, sorted)) return x->st;
  if (skip_nan) at = middle_number(x, &l, sorted[1], c->base);
  else at = or_nan(x, &l, x_narrow(x, sorted[1], l.dim, (l.t->shape[l.dim] - 1) / 2, 1));
  return give_chosen(c, x, &l, at, a->keepdim);
}
dm_status median_compose(dm_Call *c, dm_X *x) { return median(c, x, false); }
dm_status nanmedian_compose(dm_Call *c, dm_X *x) { return median(c, x, true); }

/* ---- quantiles ---- */

typedef struct QuantileAttr {
  dm_OptInt dim;
  int64_t keepdim, interpolation;
} QuantileAttr;

static dm_status check_quantiles(const dm_Call *c, dm_X *x) {
  const dm_Tensor *t = c->in[0];
  dm_Tensor *q = c->in[1];
  double low = 0, high = 0;
  if (t->dtype != DM_F32 && t->dtype != DM_F64)
    return dm_fail(DM_EARG, "%s: x is %s, wanted float32 or float64", c->op->name,
                   dm_dtype_name((dm_DType)t->dtype));
  if (q->ndim > 1 || q->numel == 0)
    return dm_fail(DM_EARG, "%s: q has shape %s, wanted a number or some in one dim",
                   c->op->name, DM_SHAPE(q));
  if (q->device.type != DM_CPU) return DM_OK; /* nobody waits: gather refuses its places */
  DM_TRY(read_range(x, q, DM_F64, &low, &high));
  if (low >= 0 && high <= 1) return DM_OK;
  return dm_fail(DM_EARG, "%s: q is %g, wanted 0 to 1", c->op->name, low >= 0 ? high : low);
}

/* q's place among the sorted numbers of each line, from 0; the last, a NaN, of a line that
   holds one where those count. */
static dm_Tensor *ranks_of(dm_X *x, const Lines *l, dm_Tensor *q, bool skip_nan) {
  const dm_DType dtype = (dm_DType)l->t->dtype;
  int64_t shape[DM_MAX_DIM];
  for (int d = 0; d < l->t->ndim; d++) shape[d] = d == l->dim ? q->numel : 1;
  q = x_cast(x, dm_x_there(x, q, l->t->device), dtype);
  q = x_reshape(x, q, l->t->ndim, shape);
  dm_Tensor *numbers = count_numbers(x, l);
  const int64_t last = l->t->shape[l->dim] - 1;
  if (skip_nan) return x_mul(x, q, x_floor(x, x_shift(x, x_cast(x, numbers, dtype), -1), 0));
  dm_Tensor *whole = x_test(x, DM_OP_gt, numbers, (double)last);
  return x_where(x, whole, x_scale(x, q, (double)last), dm_x_number(x, (double)last));
}

/* (lines, Q) with Q in l's dim becomes (Q, lines) without it, or with size 1 in its place;
   Q itself goes where q is one number. */
static dm_Tensor *quantiles_shape(dm_X *x, dm_Tensor *y, const Lines *l, const dm_Tensor *of,
                                  const dm_Tensor *q, bool keepdim) {
  const struct { dm_Ints from, to; } front = {{1, {l->dim}}, {1, {0}}};
  int64_t shape[DM_MAX_DIM];
  int n = 0;
  y = dm_x(x, DM_OP_movedim, &front, 1, y);
  if (q->ndim) shape[n++] = q->numel;
  for (int d = 0; d < of->ndim; d++) {
    const bool gone = l->whole || d == l->dim;
    if (!gone || keepdim) shape[n++] = gone ? 1 : of->shape[d];
  }
  return x_reshape(x, y, n, shape);
}

static dm_status quantile(dm_Call *c, dm_X *x, bool skip_nan) {
  enum { LINEAR, LOWER, HIGHER, MIDPOINT, NEAREST };
  const QuantileAttr *a = DM_ATTR(QuantileAttr, c);
  dm_Tensor *sorted[2], *q = c->in[1];
  Lines l;
  DM_TRY(check_quantiles(c, x));
  DM_TRY(open_lines(c, x, a->dim, &l));
  if (c->in[0]->ndim == DM_MAX_DIM && q->ndim && a->keepdim)
    return dm_fail(DM_EARG, "%s: the result would have more than %d dims", c->op->name,
                   DM_MAX_DIM);
  if (!x_sort(x, l.t, l.dim, sorted)) return x->st;
  dm_Tensor *rank = ranks_of(x, &l, q, skip_nan);
  if (a->interpolation == LOWER) rank = x_unary(x, DM_OP_floor, rank);
  if (a->interpolation == HIGHER) rank = x_unary(x, DM_OP_ceil, rank);
  if (a->interpolation == NEAREST) rank = x_unary(x, DM_OP_round, rank);
  dm_Tensor *low = x_unary(x, DM_OP_floor, rank), *high = x_unary(x, DM_OP_ceil, rank);
  dm_Tensor *below = x_gather(x, sorted[0], x_moved(x, x_cast(x, low, DM_I64), c->base), l.dim);
  dm_Tensor *above =
      x_gather(x, sorted[0], x_moved(x, x_cast(x, high, DM_I64), c->base), l.dim);
  dm_Tensor *weight = a->interpolation == MIDPOINT ? dm_x_number(x, 0.5) : x_sub(x, rank, low);
  dm_Tensor *y = below;
  if (a->interpolation == LINEAR || a->interpolation == MIDPOINT)
    y = dm_x(x, DM_OP_lerp, NULL, 3, below, above, weight);
  c->out[0] = quantiles_shape(x, y, &l, c->in[0], q, a->keepdim != 0);
  return x->st;
}
dm_status quantile_compose(dm_Call *c, dm_X *x) { return quantile(c, x, false); }
dm_status nanquantile_compose(dm_Call *c, dm_X *x) { return quantile(c, x, true); }

/* ---- running extremes ---- */

/* Steps as scan's, of values and places together: the earlier one stays where it is better,
   or NaN where the later one is not; of equals the later. `better`: gt or lt. */
static dm_status running(dm_Call *c, dm_X *x, int better) {
  dm_Tensor *t = c->in[0];
  int dim;
  DM_TRY(dm_check_dim(c, t, *DM_ATTR(int64_t, c), &dim));
  dm_Tensor *line = t->ndim ? t : x_flat(x, t);
  DM_TRY(x->st);
  const int64_t n = line->shape[dim];
  int64_t *to, shape[DM_MAX_DIM];
  dm_Tensor *at = dm_x_positions(x, n, &to), *v = line;
  for (int64_t i = 0; at && i < n; i++) to[i] = i + c->base;
  for (int d = 0; d < line->ndim; d++) shape[d] = d == dim ? n : 1;
  at = x_reshape(x, dm_x_there(x, at, t->device), line->ndim, shape);
  at = x_expand(x, at, line->ndim, line->shape);
  for (int64_t s = 1; s < n && x->st == DM_OK; s *= 2) {
    dm_Tensor *a = x_narrow(x, v, dim, 0, n - s), *b = x_narrow(x, v, dim, s, n - s);
    dm_Tensor *a_only = dm_x(x, DM_OP_logical_and, NULL, 2, x_unary(x, DM_OP_isnan, a),
                             x_unary(x, DM_OP_logical_not, x_unary(x, DM_OP_isnan, b)));
    dm_Tensor *stays =
        dm_x(x, DM_OP_logical_or, NULL, 2, dm_x(x, better, NULL, 2, a, b), a_only);
    dm_Tensor *places =
        x_where(x, stays, x_narrow(x, at, dim, 0, n - s), x_narrow(x, at, dim, s, n - s));
    at = x_cat(x, x_narrow(x, at, dim, 0, s), places, dim);
    v = x_gather(x, line, at, dim);
  }
  c->out[0] = x_reshape(x, x_gather(x, line, at, dim), t->ndim, t->shape);
  c->out[1] = x_reshape(x, at, t->ndim, t->shape);
  return x->st;
}
dm_status cummax_compose(dm_Call *c, dm_X *x) { return running(c, x, DM_OP_gt); }
dm_status cummin_compose(dm_Call *c, dm_X *x) { return running(c, x, DM_OP_lt); }

/* Runs of equals are counted; the last of the first longest one is where the mode was. */
dm_status mode_compose(dm_Call *c, dm_X *x) {
  const int64_t *a = DM_ATTR(int64_t, c); /* dim, keepdim */
  dm_Tensor *sorted[2];
  Lines l;
  DM_TRY(open_lines(c, x, (dm_OptInt){1, a[0]}, &l));
  if (!x_sort(x, l.t, l.dim, sorted)) return x->st;
  dm_Tensor *run =
      x_moved(x, x_cumsum(x, x_run_starts(x, sorted[0], l.dim), l.dim), c->base - 1);
  dm_Tensor *counts = x_count(x, x_zeros_of(x, run, DM_I64), run, l.dim);
  dm_Tensor *most = dm_x(x, DM_OP_argmax, &(dm_DimAttr){{1, l.dim}, true}, 1, counts);
  dm_Tensor *ends = x_moved(x, x_cumsum(x, counts, l.dim), c->base - 1);
  dm_Tensor *last = x_gather(x, ends, most, l.dim);
  return give_chosen(c, x, &l, x_gather(x, sorted[1], last, l.dim), a[1]);
}

/* ---- places among sorted elements ---- */

/* Rows of equally many dims: both are sorted together, and of what then lies before a
   value those of the sequence are counted. Of equals a value comes first (last: right). */
static dm_Tensor *merged(dm_X *x, dm_Tensor *sequence, dm_Tensor *values, bool right,
                         int base) {
  const int64_t last = values->ndim - 1, n = sequence->shape[last], m = values->shape[last];
  dm_Tensor *sorted[2], *all, *from;
  dm_Tensor *one = x_ones_of(x, sequence, DM_I64), *zero = x_zeros_of(x, values, DM_I64);
  all = right ? x_cat(x, sequence, values, last) : x_cat(x, values, sequence, last);
  from = right ? x_cat(x, one, zero, last) : x_cat(x, zero, one, last);
  if (x->st != DM_OK || !x_sort(x, all, last, sorted)) return NULL;
  dm_Tensor *before = x_cumsum(x, x_gather(x, from, sorted[1], last), last);
  dm_Tensor *there = dm_x(x, DM_OP_scatter, &last, 3, from, sorted[1], before);
  return x_moved(x, x_narrow(x, there, last, right ? n : 0, m), base);
}

dm_status searchsorted_compose(dm_Call *c, dm_X *x) {
  enum { NONE, LEFT, RIGHT };
  const struct { int64_t right, side, out_int32; } *a = c->attr;
  dm_Tensor *sequence = c->in[0], *values = c->in[1];
  const bool right = a->right || a->side == RIGHT;
  if (a->right && a->side == LEFT)
    return dm_fail(DM_EARG,
                   "searchsorted: side is left, right is true; hint: give one of them");
  bool fits = sequence->ndim >= 1 && (sequence->ndim == 1 || sequence->ndim == values->ndim);
  for (int d = 0; fits && sequence->ndim > 1 && d < sequence->ndim - 1; d++)
    fits = sequence->shape[d] == values->shape[d];
  if (!fits)
    return dm_fail(
        DM_EARG,
        "searchsorted: a sequence of shape %s and values of shape %s, wanted one dim "
        "or the values' leading dims",
        DM_SHAPE(sequence), DM_SHAPE(values));
  if (c->in[2]) sequence = x_gather(x, sequence, c->in[2], sequence->ndim - 1);
  DM_TRY(x->st);
  if (values->flags & DM_T_NUMBER) values = dm_x_there(x, values, sequence->device);
  DM_TRY(x->st);
  if (sequence->ndim > 1) c->out[0] = merged(x, sequence, values, right, c->base);
  else
    c->out[0] = dm_x(x, DM_OP_bucketize, &(dm_BucketAttr){right, false}, 2, values, sequence);
  if (a->out_int32) c->out[0] = x_cast(x, c->out[0], DM_I32);
  return x->st;
}

/* ---- counts ---- */

dm_status bincount_compose(dm_Call *c, dm_X *x) {
  const int64_t minlength = *DM_ATTR(int64_t, c);
  dm_Tensor *t = c->in[0], *weights = c->in[1];
  int64_t low = c->base, high = c->base - 1;
  DM_TRY(dm_check_index(c, t));
  if (t->ndim != 1 || minlength < 0)
    return dm_fail(DM_EARG,
                   "bincount: shape %s and minlength %lld, wanted one dim and 0 or more",
                   DM_SHAPE(t), (long long)minlength);
  if (weights && (weights->ndim != 1 || weights->shape[0] != t->shape[0]))
    return dm_fail(DM_EARG, "bincount: weights have shape %s, wanted x's, %s",
                   DM_SHAPE(weights), DM_SHAPE(t));
  if (t->numel > 0) DM_TRY(read_range(x, t, DM_I64, &low, &high));
  if (low < c->base)
    return dm_fail(DM_EARG, "bincount: x holds %lld, wanted positions, which count from %d",
                   (long long)low, c->base);
  const int64_t n = dm_max_i64(minlength, dm_min_i64(high, INT64_MAX - 1) - c->base + 1);
  const dm_DType to = !weights ? DM_I64 : weights->dtype == DM_F32 ? DM_F32 : DM_F64;
  dm_Tensor *each = weights ? x_cast(x, weights, to) : x_ones_of(x, t, to);
  c->out[0] = dm_x(x, DM_OP_index_add, &(dm_AddAttr){0, 1}, 3, x_full(x, n, 0, to, t),
                   x_cast(x, t, DM_I64), each);
  return x->st;
}

dm_status histc_compose(dm_Call *c, dm_X *x) {
  const struct {
    int64_t bins;
    double min, max;
  } *a = c->attr;
  double low = a->min, high = a->max;
  dm_Tensor *t = c->in[0];
  DM_TRY(dm_check_float(c, t, "x"));
  if (a->bins < 1)
    return dm_fail(DM_EARG, "histc: %lld bins, wanted 1 or more", (long long)a->bins);
  if (low == high && t->numel > 0) DM_TRY(read_range(x, t, DM_F64, &low, &high));
  if (!(low <= high) || !isfinite(low) || !isfinite(high))
    return dm_fail(DM_EARG, "histc: from %g to %g, wanted a range of numbers", low, high);
  if (low == high) {
    low -= 1;
    high += 1;
  }
  t = x_cast(x, x_flat(x, t), wide_of(t));
  dm_Tensor *inside = dm_x(x, DM_OP_logical_and, NULL, 2, x_test(x, DM_OP_ge, t, low),
                           x_test(x, DM_OP_le, t, high));
  dm_Tensor *bin = x_scale(x, x_shift(x, t, -low), (double)a->bins);
  bin = x_where(x, inside, x_div(x, bin, dm_x_number(x, high - low)), dm_x_number(x, 0));
  const struct { dm_OptNum min, max; } held = {{1, 0}, {1, (double)(a->bins - 1)}};
  bin = x_cast(x, dm_x(x, DM_OP_clamp, &held, 1, bin), DM_I64); /* drops the fraction */
  if (x->st != DM_OK) return x->st;
  dm_Tensor *counts =
      dm_x(x, DM_OP_index_add, &(dm_AddAttr){0, 1}, 3, x_full(x, a->bins, 0, DM_I64, t),
           x_moved(x, bin, c->base), x_cast(x, inside, DM_I64));
  c->out[0] = x_cast(x, counts, (dm_DType)c->in[0]->dtype);
  return x->st;
}

/* ---- reductions of two kinds at once, or without NaN ---- */

dm_status nansum_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *t = c->in[0];
  if (dm_is_float((dm_DType)t->dtype))
    t = x_where(x, x_unary(x, DM_OP_isnan, t), x_zeros_like(x, t), t);
  c->out[0] = dm_x(x, DM_OP_sum, c->attr, 1, t);
  return x->st;
}

dm_status nanmean_compose(dm_Call *c, dm_X *x) {
  const dm_SumAttr *a = DM_ATTR(dm_SumAttr, c);
  dm_Tensor *t = c->in[0];
  DM_TRY(dm_check_float(c, t, "x"));
  dm_Tensor *number = x_unary(x, DM_OP_logical_not, x_unary(x, DM_OP_isnan, t));
  dm_Tensor *count = x_sum(x, number, a->dims, a->keepdim);
  c->out[0] = x_div(x, dm_x(x, DM_OP_nansum, a, 1, t), count);
  return x->st;
}

static dm_status with_mean(dm_Call *c, dm_X *x, int op) {
  const dm_VarAttr *a = DM_ATTR(dm_VarAttr, c);
  c->out[0] = dm_x(x, op, a, 1, c->in[0]);
  c->out[1] = dm_x(x, DM_OP_mean, &(dm_SumAttr){a->dims, a->keepdim, -1}, 1, c->in[0]);
  return x->st;
}
dm_status var_mean_compose(dm_Call *c, dm_X *x) { return with_mean(c, x, DM_OP_var); }
dm_status std_mean_compose(dm_Call *c, dm_X *x) { return with_mean(c, x, DM_OP_std); }

dm_status argsort_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *out[2] = {NULL, NULL};
  if (!x_call(x, DM_OP_sort, c->attr, 1, c->in, out)) return x->st;
  c->out[0] = out[1];
  return x->st;
}

/* Among the sorted test elements x lies where some of them begin and others end. */
dm_status isin_compose(dm_Call *c, dm_X *x) {
  const bool invert = *DM_ATTR(int64_t, c);
  dm_Tensor *test = x_reshape(x, c->in[1], 1, &c->in[1]->numel), *sorted[2] = {NULL, NULL};
  const dm_SortAttr rising = {0, false, false};
  DM_TRY(x->st);
  if (!x_call(x, DM_OP_sort, &rising, 1, &test, sorted)) return x->st;
  const dm_BucketAttr left = {false, false}, right = {true, false};
  dm_Tensor *begin = dm_x(x, DM_OP_bucketize, &left, 2, c->in[0], sorted[0]);
  dm_Tensor *end = dm_x(x, DM_OP_bucketize, &right, 2, c->in[0], sorted[0]);
  c->out[0] = dm_x(x, invert ? DM_OP_eq : DM_OP_ne, NULL, 2, begin, end);
  return x->st;
}
